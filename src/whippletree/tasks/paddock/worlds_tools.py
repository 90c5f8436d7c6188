"""The programs of the tool worlds: short scripts that lie in the workspace and are called as `sh NAME ...`.

Invariant: what a program does follows from its arguments and its state alone. The state is text in hidden files, which
the grader reads; nothing here is run by the grader. POSIX sh and awk, and python3 with its sqlite3 for SQL.
"""

from __future__ import annotations

from collections.abc import Sequence

PAGE = 3
"""Entries of one page."""
FORMS = ("send name text", "send text name", "post name text")
"""How a mail may have to be sent; the help tells which it is. The first is what one would guess."""


def mail(mails: Sequence[tuple[str, str]] = (), form: str = FORMS[0], *, more: str = "", refuse: str = "") -> str:
    """A mail box of pages; `more` is said where pages follow, `refuse` instead of sending before help was asked."""
    name, *order = form.split()
    to, text = (f"${2 + order.index(part)}" for part in ("name", "text"))
    gate = f'[ -e helped ] || fail "{refuse}"; ' if refuse else ""
    return (
        _HEAD.replace("@FOLDER", ".mail")
        + f"""\
case $1 in
list)
  {_page(max(1, -(-len(mails) // PAGE)))}
  for id in $((last - 2)) $((last - 1)) $last; do
    [ ! -f "inbox/$id" ] || {{ read -r from < "inbox/$id"; echo "$id $from"; }}
  done
  {_footer(more)};;
read) [ -f "inbox/$2" ] || fail "error : no such mail"; tail -n 1 "inbox/$2";;
delete) rm "inbox/$2" 2> /dev/null || fail "error : no such mail"; echo ok;;
{name})
  {gate}[ $# = 3 ] || fail "error : bad call"
  echo "{to} {text}" >> sent.txt; sort -o sent.txt sent.txt; echo ok;;
help | '') : > helped; echo "list page number"; echo "read number"; echo "delete number"; echo "{form}";;
*) fail "error : no such command";;
esac
"""
    )


def inbox(mails: Sequence[tuple[str, str]]) -> dict[str, str]:
    """The files of mails (sender, text), the oldest first."""
    return {f".mail/inbox/{i}": f"{sender}\n{text}\n" for i, (sender, text) in enumerate(mails, 1)}


def contacts(num_entries: int, *, more: str = "") -> str:
    """An address book of pages."""
    return (
        _HEAD.replace("@FOLDER", ".contacts")
        + f"""\
case $1 in
list)
  {_page(max(1, -(-num_entries // PAGE)))}
  awk -v last="$last" 'NR > last - {PAGE} && NR <= last' names.txt
  {_footer(more)};;
find) awk -v name="$2" '$1 == name' names.txt;;
help | '') echo "list page number"; echo "find name";;
*) fail "error : no such command";;
esac
"""
    )


def ship(*, again: str = "") -> str:
    """A carrier that is busy for as many calls as the file of the item says, then ships it."""
    return (
        _HEAD.replace("@FOLDER", ".ship")
        + f"""\
[ -f "$1" ] && [ $# = 2 ] || fail "error 404 : no such item"
read -r left < "$1"
case $left in
[1-9]) echo $((left - 1)) > "$1"; fail "error 503 : busy"{_also(again)};;
*) echo "$2" > "$1"; echo ok;;
esac
"""
    )


def store(*, check: str = "") -> str:
    """A store of numbers that says ok to every write, and drops those to entries that are closed."""
    return (
        _HEAD.replace("@FOLDER", ".store")
        + f"""\
[ -f "$2" ] || fail "error : no such entry"
read -r value state < "$2"
case $1 in
set) [ -n "$state" ] || echo "$3" > "$2"; printf '%s\\n' ok{_also(check)};;
get) echo "$2 $value${{state:+ $state}}";;
open) echo "$value" > "$2"; echo ok;;
*) fail "error : no such command";;
esac
"""
    )


def sql(*, schema: str = "", alone: bool = False) -> str:
    """SQLite on the tables that the CSV files in .sql hold; rows are kept sorted, as a table has no order.

    `schema` is said of a query that fails, after SQLite's words or `alone`.
    """
    problem = f'"{schema}"' if alone else f'"error : %s" % error{_also(schema, ", ")}'
    return f"""\
{_ENTER.replace("@FOLDER", ".sql")}
exec python3 -IS - "$@" << 'END'
import csv, os, sqlite3, sys

query = " ".join(sys.argv[1:])
db = sqlite3.connect(":memory:", isolation_level=None)
heads = {{}}
for file in sorted(os.listdir()):
    table = file.removesuffix(".csv")
    with open(file, newline="") as lines:
        heads[table], *rows = csv.reader(lines)
    db.execute("create table %s (%s)" % (table, ", ".join(name + " numeric" for name in heads[table])))
    db.executemany("insert into %s values (%s)" % (table, ", ".join("?" for name in heads[table])), rows)
if query in ("", ".schema", ".tables", "help"):
    for table, head in heads.items():
        print(table, "(", " , ".join(head), ")")
    sys.exit()
try:
    for row in db.execute(query).fetchall():
        print(*row)
    found = {{table: db.execute("select * from %s order by 1" % table).fetchall() for table in heads}}
except (sqlite3.Error, sqlite3.Warning) as error:
    sys.exit("\\n".join([{problem}]))
for table, rows in found.items():
    with open(table + ".csv", "w", newline="") as lines:
        csv.writer(lines, lineterminator="\\n").writerows([heads[table], *rows])
END
"""


_ENTER = 'case $0 in */*) cd "${0%/*}";; esac\ncd @FOLDER || exit 1'
_HEAD = _ENTER + """\nfail() { printf '%s\\n' "$@" >&2; exit 1; }\n"""


def _page(pages: int) -> str:
    """Understands `list`, `list 2`, `list page 2` and `list --page 2`."""
    known = " | ".join(map(str, range(1, pages + 1)))
    return (
        f'page=${{3:-${{2:-1}}}}; case $page in {known}) ;; *) fail "error : no such page";; esac\n'
        f"  pages={pages} last=$((page * {PAGE}))"
    )


def _footer(more: str) -> str:
    told = f'; [ "$page" = "$pages" ] || echo "{more}"' if more else ""
    return f'echo "page $page of $pages"{told}'


def _also(told: str, between: str = " ") -> str:
    """One more argument, where there is something to say."""
    return f'{between}"{told}"' if told else ""
