"""Tier 3, plans and settings: the result depends on an order that has to be worked out.

Invariant: as in `tier3_tables`: every rule bites in every instance, and the gold commands are an independent solution.
"""

from __future__ import annotations

import re
from random import Random

from whippletree.tasks.paddock.checks import absent, text
from whippletree.tasks.paddock.kind import Instance
from whippletree.tasks.paddock.pools import ITEMS, STEMS, WORDS
from whippletree.tasks.paddock.tier2 import lines_text


def merge_config(rng: Random) -> Instance:
    """Three layers, references that lead to references to overridden values, an unset key, and an unknown one."""
    root, host, port, url, log, title, extra, spare = rng.sample(ITEMS, 8)
    a, b, c, d = rng.sample(WORDS, 4)
    base = [
        "# defaults",
        f"{root} = /srv/{a}",
        f"{host} = {b}.test",
        f"{port} = {rng.randint(1000, 4999)}",
        f"{url} = http://${{{host}}}:${{{port}}}/{c}",
        f"{log} = ${{{root}}}/log",
        f"{extra} = {c}",
    ]
    site = [
        "# site",
        f"{title} = see ${{{url}}} or ${{{spare}}}.",
        f"{port} = {rng.randint(5000, 7999)}",
        f"{spare} = {d}",
    ]
    local = [f"{root} = /home/{d}", "", f"unset {extra}", "# quiet", f"unset {spare}", f"{log} = ${{{root}}}/{b}.log"]
    rng.shuffle(base)
    rng.shuffle(site)
    rng.shuffle(local)
    merged: dict[str, str] = {}
    for line in [*base, *site, *local]:
        if line.startswith("unset "):
            merged.pop(line.split()[1], None)
        elif "=" in line:
            key, value = line.split(" = ")
            merged[key] = value

    def resolve(value: str) -> str:
        return re.sub(r"\$\{(\w+)\}", lambda found: resolve(merged.get(found[1], "")), value)

    final = [f"{key} = {resolve(merged[key])}" for key in sorted(merged)]
    instruction = (
        "Merge base.conf, site.conf and local.conf, in this order, into final.conf. A line `key = value` sets a "
        "key, a later file wins over an earlier one, `unset key` removes what the files before it have set, and "
        "lines that start with # and blank lines say nothing. After the merge replace each ${key} in a value by "
        "the final value of that key, which may itself hold such references; an unknown key gives nothing. Write "
        "lines `key = value`, sorted by key."
    )

    def gold(
        names: str = "base.conf site.conf local.conf", unset: str = "unset", again: str = "while"
    ) -> tuple[str, ...]:
        read = f'$1 == "{unset}" {{delete v[$2]; next}} $2 == "=" {{k = $1; sub(/^[^=]*= /, ""); v[k] = $0}}'
        found = "match(s, /[$][{][a-z]+[}]/)"
        put = "{r = substr(s, RSTART + 2, RLENGTH - 3); "
        put += 's = substr(s, 1, RSTART - 1) (r in v ? v[r] : "") substr(s, RSTART + RLENGTH)}'
        end = f'END {{for (k in v) {{s = v[k]; {again} ({found}) {put} print k " = " s}}}}'
        return (f"awk '{read} {end}' {names} | sort > final.conf",)

    files = {"base.conf": lines_text(base), "site.conf": lines_text(site), "local.conf": lines_text(local)}
    misses = (gold(names="local.conf site.conf base.conf"), gold(unset="none"), gold(again="if"))
    return Instance(instruction, files, gold(), {"final": [text("final.conf", lines_text(final))]}, misses)


def build_order(rng: Random) -> Instance:
    """A graph with free choices, a cycle, and one package that waits for the cycle."""
    names = rng.sample(WORDS, 9)
    good, (x, y, waits) = names[:6], names[6:]
    needs: dict[str, list[str]] = {name: [] for name in good}
    for i, name in enumerate(good[2:], 2):
        needs[name] = sorted(rng.sample(good[:i], rng.randint(1, 2)))
    needs |= {x: [y, good[0]], y: [x], waits: [x, good[1]]}
    listed = [name for name in needs if needs[name]]
    listed += [name for name in good if not needs[name] and not any(name in n for n in needs.values())]
    rng.shuffle(listed)
    order: list[str] = []
    while ready := sorted(n for n in needs if n not in order and all(other in order for other in needs[n])):
        order.append(ready[0])
    blocked = sorted(set(needs) - set(order))
    instruction = (
        "deps.txt says what each package needs (`a: b c`: a needs b and c). Packages that are only named behind a "
        "colon need nothing. Write to order.txt the order in which the packages can be built, one per line: of all "
        "packages whose needs are built, always take the alphabetically first. Write to blocked.txt, sorted, the "
        "packages that can never be built because they are in a cycle or need, directly or not, one that is."
    )

    def gold(better: str = "k < best", blocked: str = "blocked.txt", scan: str = "2") -> tuple[str, ...]:
        read = '{sub(/:/, ""); all[$1]; for (i = 2; i <= NF; i++) {all[$i]; need[$1, i] = $i}}'
        find = f'best = ""; for (k in all) if (!(k in done) && ok(k) && (best == "" || {better})) best = k;'
        loop = f'do {{{find} if (best != "") {{done[best]; print best > "order.txt"}}}} while (best != "");'
        end = f'END {{{loop} for (k in all) if (!(k in done)) print k | "sort > {blocked}"}}'
        ready = (
            f"function ok(k, i) {{for (i = {scan}; (k, i) in need; i++) if (!(need[k, i] in done)) return 0; return 1}}"
        )
        return (f"awk '{ready} {read} {end}' deps.txt",)

    files = {"deps.txt": lines_text([f"{name}: {' '.join(needs[name])}".rstrip() for name in listed])}
    goals = {
        "order": [text("order.txt", lines_text(order))],
        "blocked": [text("blocked.txt", lines_text(blocked))],
    }
    misses = (gold(better="k > best"), gold(blocked="cycle.txt"), gold(scan="3"))
    return Instance(instruction, files, gold(), goals, misses)


def rename_plan(rng: Random) -> Instance:
    """A swap, a chain, a chain onto a taken name, two files that want one name, and a file that is not there.

    The line that falls only because a later one is skipped comes first, so one pass over the plan is not enough.
    """
    stems = rng.sample(STEMS, 14)
    a, b, c, d, e, f, g, h, i, j, k, free, gone, both = stems
    plan = [(a, b), (b, a), (c, d), (d, free), (e, f), (f, g), (h, both), (i, both), (gone, k)]
    rng.shuffle(plan)
    first, second = sorted([plan.index((e, f)), plan.index((f, g))])
    plan[first], plan[second] = (e, f), (f, g)
    present = [a, b, c, d, e, f, g, h, i, j]
    words = rng.sample(WORDS, len(present))
    content = {name: word + "\n" for name, word in zip(present, words, strict=True)}
    moves = {a: b, b: a, c: d, d: free}
    skipped = [f"{old} -> {new}" for old, new in plan if old not in moves]
    after = {moves.get(name, name): content[name] for name in present}
    instruction = (
        "Rename the files in the folder barn by plan.txt (`old -> new`). All renames happen at once, so names may "
        "be swapped and a file may take a name that another one gives up. Skip a line if its old file does not "
        "exist, if another line has the same new name, or if the new name belongs to a file that keeps it, be it "
        "because no line renames it or because its own line is skipped. Write the skipped lines to skipped.txt in "
        "the order of the plan. No file may be lost, and plan.txt stays."
    )
    judge = (
        "function bad(i) {return !(old[i] in here) || want[new[i]] > 1 || (new[i] in here) && !(new[i] in leaves)} "
        "NR == FNR {here[$1]; next} {n++; old[n] = $1; new[n] = $3; want[$3]++; leaves[$1]} "
        "END {do {more = 0; for (i = 1; i <= n; i++) if (!(i in skip) && bad(i)) {"
        "skip[i]; delete leaves[old[i]]; more = 1}} "
        'while (more); for (i = 1; i <= n; i++) print old[i], "->", new[i] > (i in skip ? "skipped.txt" : "kept")}'
    )
    move = ("mkdir new", "while read a x b; do mv barn/$a new/$b; done < kept", "mv new/* barn", "rm -r new kept")

    def decide(program: str) -> str:
        return f"ls barn | awk '{program}' - plan.txt"

    gold = (decide(judge), *move)
    checks = [text(f"barn/{name}", want) for name, want in after.items() if content.get(name) != want]
    goals = {
        "renamed": [*checks, absent(f"barn/{c}"), absent(f"barn/{k}"), absent(f"barn/{both}")],
        "skipped": [text("skipped.txt", lines_text(skipped))],
    }
    misses = (
        (decide(judge), "while read a x b; do mv barn/$a barn/$b; done < kept", "rm kept"),
        (decide(judge.replace("more = 1", "more = 0")), *move),
        (decide(judge.replace("want[new[i]] > 1", "0")), *move),
        ("while read a x b; do [ ! -e barn/$a ] || mv barn/$a barn/$b; done < plan.txt",),
    )
    files = {"plan.txt": lines_text([f"{old} -> {new}" for old, new in plan])}
    files |= {f"barn/{name}": word for name, word in content.items()}
    return Instance(instruction, files, gold, goals, misses)
