"""Tier 3, tables and logs: rules that interact, on data that is not clean.

Invariant: every instance holds each trouble that its rules speak of, so that leaving out a rule changes the result. The
expected result is computed here and, independently, by the gold commands.
"""

from __future__ import annotations

from random import Random

from whippletree.tasks.paddock.checks import csv_rows
from whippletree.tasks.paddock.kind import Instance
from whippletree.tasks.paddock.pools import ITEMS, PEOPLE
from whippletree.tasks.paddock.tier2 import csv_text, lines_text


def join_tables(rng: Random) -> Instance:
    """Two customer lists with untidy keys, a repeated row, empty cells, and customers known to one list only."""
    ids = [f"{letter}{n}" for letter, n in zip(rng.choices("ABC", k=8), rng.sample(range(10, 100), 8), strict=True)]
    phones = iter([str(n) for n in rng.sample(range(1000, 10000), 16)])

    def untidy(rows: list[list[str]]) -> list[list[str]]:
        styles = ("{0}", " {0}", "{1} ", " {1} ")
        return [[styles[i % 4].format(key, key.lower()), *cells] for i, (key, *cells) in enumerate(rows)]

    crm = [[key, f"{name}@mail.test", next(phones)] for key, name in zip(ids[:6], rng.sample(PEOPLE, 6), strict=True)]
    crm.insert(rng.randint(0, 2), [crm[3][0], "old@mail.test", next(phones)])
    billing = [[key, next(phones), rng.choice(["basic", "plus"])] for key in ids[2:]]
    billing[0][1] = billing[1][1] = ""
    rng.shuffle(billing)
    want: dict[str, list[str]] = {}
    for key, mail, phone in crm:
        want[key] = [key, mail, phone, ""]
    for key, phone, plan in billing:
        _, mail, before, _ = want.get(key, ["", "", "", ""])
        want[key] = [key, mail, phone or before, plan]
    header = ["id", "email", "phone", "plan"]
    files = {
        "crm.csv": csv_text([header[:3], *untidy(crm)]),
        "billing.csv": csv_text([["id", "phone", "plan"], *untidy(billing)]),
    }
    instruction = (
        "Join crm.csv and billing.csv into customers.csv with the header id,email,phone,plan and one row per "
        "customer, sorted by id. Ids are compared, and written, without spaces and in upper case. If an id repeats "
        "in crm.csv, its last row counts. The phone comes from billing.csv unless it is empty there; then from "
        "crm.csv. Customers who are in only one of the files are kept; what is unknown of them stays empty."
    )

    def gold(key: str = "toupper(s)", prefer: str = '$2 != "" || !(k in phone)', again: str = "1") -> tuple[str, ...]:
        tidy = f'function key(s) {{gsub(/ /, "", s); return {key}}} FNR == 1 {{next}} {{k = key($1); ids[k] = 1}}'
        crm_row = f'FILENAME == "crm.csv" && ({again}) {{mail[k] = $2; phone[k] = $3}}'
        bill_row = f'FILENAME == "billing.csv" {{if ({prefer}) phone[k] = $2; plan[k] = $3}}'
        end = "END {for (k in ids) print k, mail[k], phone[k], plan[k]}"
        program = f"awk -F, -v OFS=, '{tidy} {crm_row} {bill_row} {end}' crm.csv billing.csv"
        return ("echo id,email,phone,plan > customers.csv", f"{program} | sort -t, -k1,1 >> customers.csv")

    misses = (gold(key="s"), gold(prefer="1"), gold(again="!(k in mail)"), gold(prefer="!(k in phone)"))
    rows = [header, *(want[key] for key in sorted(want))]
    return Instance(instruction, files, gold(), {"customers": [csv_rows("customers.csv", rows)]}, misses)


def sessions(rng: Random) -> Instance:
    """Visits of a user are spread over two unsorted logs; one gap is exactly the limit, one is a second more."""
    users = rng.sample(PEOPLE, 3)
    logs: tuple[list[str], list[str]] = ([], [])
    rows: list[list[str]] = []
    for user in users:
        gaps = [1800, 1801, rng.randint(1, 600), rng.randint(2000, 4000), rng.randint(1, 1799)]
        rng.shuffle(gaps)
        gaps.append(rng.randint(1, 9))
        times = [rng.randint(8, 9) * 3600 + rng.randint(0, 3599)]
        for gap in gaps:
            times.append(times[-1] + gap)
        spans = [0]
        for gap in gaps:
            spans = [*spans, 0] if gap > 1800 else [*spans[:-1], spans[-1] + gap]
        rows.append([user, str(len(spans)), str(max(spans))])
        for i, time in enumerate(times):
            stamp = f"{time // 3600:02d}:{time // 60 % 60:02d}:{time % 60:02d}"
            logs[i % 2].append(f"{stamp} {user} /{rng.choice(ITEMS)}")
    for log in logs:
        rng.shuffle(log)
    header = ["user", "sessions", "longest"]
    instruction = (
        "web1.log and web2.log hold the requests of one day (time, user, page) of two servers, in no order. A "
        "session of a user is a run of requests, over both servers, in which no gap is longer than 30 minutes. "
        "Write sessions.csv with the header user,sessions,longest: for each user the number of sessions and the "
        "length in seconds of the longest one (from its first to its last request), sorted by user."
    )

    def gold(beyond: str = "> 1800", logs: str = "web1.log web2.log") -> tuple[str, ...]:
        time = '{split($1, t, ":"); now = t[1] * 3600 + t[2] * 60 + t[3]}'
        fresh = f"!($2 in last) || now - last[$2] {beyond} {{n[$2]++; start[$2] = now}}"
        span = "{last[$2] = now; if (now - start[$2] > best[$2]) best[$2] = now - start[$2]}"
        end = "END {for (u in n) print u, n[u], best[u] + 0}"
        merged = f"sort -k2,2 -k1,1 {logs} | awk -v OFS=, '{time} {fresh} {span} {end}'"
        return ("echo user,sessions,longest > sessions.csv", f"{merged} | sort -t, -k1,1 >> sessions.csv")

    files = {"web1.log": lines_text(logs[0]), "web2.log": lines_text(logs[1])}
    misses = (gold(beyond=">= 1800"), gold(beyond="> 1801"), gold(logs="web1.log"))
    goals = {"sessions": [csv_rows("sessions.csv", [header, *sorted(rows)])]}
    return Instance(instruction, files, gold(), goals, misses)


def reconcile(rng: Random) -> Instance:
    """A ledger in which one reversal is itself reversed, and goods that were never in the opening stock.

    No two quantities that can be reversed are equal, so two reversals never cancel out.
    """
    items = rng.sample(ITEMS, 5)
    opening = {item: rng.randint(50, 99) for item in items[:4]}
    entries: list[tuple[str, str, int, int]] = []
    for i, qty in enumerate(rng.sample(range(2, 20), 9)):
        item = items[4] if i == 4 else rng.choice(items)
        entries.append((item, "ship" if i % 3 == 2 else "receive", qty, 0))
    for reversed_id in (*rng.sample(range(1, 10), 3), 10):
        entries.append(("", "reverse", 0, reversed_id))
    entries.append((rng.choice(items), "ship", rng.randint(2, 9), 0))
    cancelled: set[int] = set()
    for number in range(len(entries), 0, -1):
        if number not in cancelled and entries[number - 1][1] == "reverse":
            cancelled.add(entries[number - 1][3])
    stock = dict.fromkeys(items, 0) | opening
    for number, (item, act, qty, _) in enumerate(entries, 1):
        if number not in cancelled and act != "reverse":
            stock[item] += qty if act == "receive" else -qty
    ledger = [[str(i), item, act, str(qty or ""), str(ref or "")] for i, (item, act, qty, ref) in enumerate(entries, 1)]
    files = {
        "opening.csv": csv_text([["item", "qty"], *([item, str(qty)] for item, qty in opening.items())]),
        "ledger.csv": csv_text([["id", "item", "act", "qty", "ref"], *ledger]),
    }
    instruction = (
        "Work out the closing stock from opening.csv and ledger.csv and write it to closing.csv with the header "
        "item,qty, sorted by item; include every item that either file names. `receive` adds and `ship` takes "
        "away. `reverse` cancels the earlier ledger line whose id is in ref, as if it had never been. A reverse "
        "line can be cancelled too: then what it had cancelled counts again."
    )

    def gold(undo: str = '!(i in gone) && act[i] == "reverse"', start: str = "opening.csv") -> tuple[str, ...]:
        read = f'FNR == 1 {{next}} FILENAME == "{start}" {{stock[$1] += $2; next}} FILENAME == "opening.csv" {{next}}'
        keep = '{n = $1; item[n] = $2; act[n] = $3; qty[n] = $4; ref[n] = $5; if ($2 != "") stock[$2] += 0}'
        cancel = f"for (i = n; i > 0; i--) if ({undo}) gone[ref[i]] = 1;"
        add = 'if (!(i in gone) && item[i] != "") stock[item[i]] += act[i] == "ship" ? -qty[i] : qty[i];'
        end = f"END {{{cancel} for (i = 1; i <= n; i++) {add} for (k in stock) print k, stock[k]}}"
        program = f"awk -F, -v OFS=, '{read} {keep} {end}' opening.csv ledger.csv"
        return ("echo item,qty > closing.csv", f"{program} | sort -t, -k1,1 >> closing.csv")

    misses = (gold(undo='act[i] == "reverse"'), gold(undo="0"), gold(start="none"))
    rows = [["item", "qty"], *([item, str(stock[item])] for item in sorted(stock))]
    return Instance(instruction, files, gold(), {"closing": [csv_rows("closing.csv", rows)]}, misses)


RULES = """\
Known faults of payments.csv (columns id, date, amount, state) and what to do about them:

1. Some dates are DD/MM/YYYY. All dates must be YYYY-MM-DD.
2. Some amounts are in cents and then end in `c`. All amounts must be in units with two decimals (1250c is 12.50).
3. Spaces around cells do not belong there. States are lowercase.
4. In some rows date and amount have changed places. A date is the cell that has a `-` or a `/`.
5. If an id occurs more than once, only its last row is right. It stays where its last row is.
6. Rows whose state, once lowercase, is `void` are left out.
"""


def repair_table(rng: Random) -> Instance:
    """Six documented faults; the last row of one id is void, so that id vanishes altogether."""
    ids = rng.sample(range(100, 1000), 9)
    order = [*ids, ids[0], ids[1]]
    clean: list[list[str]] = []
    dirty: list[list[str]] = []
    for i, number in enumerate(order):
        year, month, day = rng.randint(2021, 2024), rng.randint(1, 12), rng.randint(1, 28)
        cents = rng.randint(101, 99999)
        state = "void" if i in (4, 10) else rng.choice(["paid", "open"])
        amount = f"{cents // 100}.{cents % 100:02d}"
        clean.append([str(number), f"{year}-{month:02d}-{day:02d}", amount, state])
        date = f"{day:02d}/{month:02d}/{year}" if i % 3 == 0 else clean[-1][1]
        cells = [date, f"{cents}c" if i % 4 < 2 else amount]
        if i in (3, 6, 7):
            cells.reverse()
        state = rng.choice([state.upper(), state.capitalize()]) if i % 2 == 0 else state
        dirty.append([f" {number}" if i % 5 == 2 else str(number), cells[0] + " " * (i % 2), f" {cells[1]}", state])
    header = ["id", "date", "amount", "state"]
    last = {row[0]: i for i, row in enumerate(clean)}
    want = [header, *(row for i, row in enumerate(clean) if last[row[0]] == i and row[3] != "void")]
    instruction = "Repair payments.csv by the rules in RULES.md. Write the result, with the same header, to clean.csv."

    def gold(swapped: str = "$3 ~ /[-\\/]/", void: str = "void", final: str = "last[id[i]] == i") -> tuple[str, ...]:
        trim = 'NR == 1 {print; next} {for (i = 1; i <= 4; i++) gsub(/^ +| +$/, "", $i)}'
        swap = f"{swapped} {{s = $2; $2 = $3; $3 = s}}"
        date = '$2 ~ /\\// {split($2, d, "/"); $2 = d[3] "-" d[2] "-" d[1]}'
        cents = '$3 ~ /c$/ {sub(/c/, "", $3); $3 = sprintf("%.2f", $3 / 100)}'
        keep = "{$4 = tolower($4); n++; id[n] = $1; row[n] = $0; state[n] = $4; last[$1] = n}"
        end = f'END {{for (i = 1; i <= n; i++) if ({final} && state[i] != "{void}") print row[i]}}'
        return (f"awk -F, -v OFS=, '{trim} {swap} {date} {cents} {keep} {end}' payments.csv > clean.csv",)

    misses = (gold(swapped="0"), gold(void="VOID"), gold(final="1"), ("cp payments.csv clean.csv",))
    files = {"payments.csv": csv_text([header, *dirty]), "RULES.md": RULES}
    return Instance(instruction, files, gold(), {"clean": [csv_rows("clean.csv", want)]}, misses)
