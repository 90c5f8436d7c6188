"""Tool worlds without pages: SQL whose names must be looked up, a busy carrier, a store that drops writes silently.

Invariant: every failure shows: as an error, or to who reads back.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from whippletree.tasks.paddock.checks import csv_rows, text
from whippletree.tasks.paddock.kind import Instance
from whippletree.tasks.paddock.pools import FOLDERS, STEMS, WORDS
from whippletree.tasks.paddock.tier2 import csv_text
from whippletree.tasks.paddock.worlds import READ_BACK, RETRY, SCHEMA, Reminder, in_trouble, remind
from whippletree.tasks.paddock.worlds_tools import ship, sql, store

Called = tuple[str, str, str]
"""Names of a table, its key and its other column."""

TABLES, KEYS = ("box", "shelf", "chest"), ("number", "id", "key")
NAMES, COUNTS = ("name", "word", "note"), ("count", "total", "value")
"""What tables and columns may be called; the first is what one would guess."""


def sql_get(rng: Random, told: bool) -> Instance:
    """The table and its columns are not called what one would guess."""
    out = rng.choice(STEMS) + ".txt"
    called, numbers = _table(rng, told, NAMES)
    cells = rng.sample(WORDS, len(numbers))
    place = rng.randrange(len(numbers))
    number, cell = numbers[place], cells[place]

    def get(table: str, key: str, column: str) -> str:
        return f'sh sql "select {column} from {table} where {key} = {number}" > {out}'

    reminder = remind(rng, SCHEMA, told)
    return Instance(
        instruction=f"write the name of number {number} to {out} . use sh sql .{reminder.asked}",
        files=_files(rng, reminder, called, numbers, cells),
        gold=_looked_up(reminder, get(TABLES[0], KEYS[0], NAMES[0]), get(*called)),
        goals={"written": [text(out, cell)]},
        near_misses=(
            ("sh sql .schema", f"sh sql .schema > {out}"),
            ("sh sql .schema", f'sh sql "select {called[2]} from {called[0]}" > {out}'),
        ),
        habit=(get(TABLES[0], KEYS[0], NAMES[0]),),
    )


def sql_set(rng: Random, told: bool) -> Instance:
    """The table and its columns are not called what one would guess."""
    called, numbers = _table(rng, told, COUNTS)
    *counts, new = rng.sample(range(1, 10), len(numbers) + 1)
    place = rng.randrange(len(numbers))

    def put(table: str, key: str, column: str, where: str = f" = {numbers[place]}") -> str:
        return f'sh sql "update {table} set {column} = {new} where {key}{where}"'

    after = [str(new if i == place else count) for i, count in enumerate(counts)]
    rows = [[*called[1:]], *([str(number), count] for number, count in zip(numbers, after, strict=True))]
    reminder = remind(rng, SCHEMA, told)
    return Instance(
        instruction=f"set the count of number {numbers[place]} to {new} . use sh sql .{reminder.asked}",
        files=_files(rng, reminder, called, numbers, list(map(str, counts))),
        gold=_looked_up(reminder, put(TABLES[0], KEYS[0], COUNTS[0]), put(*called)),
        goals={"set": [csv_rows(f".sql/{called[0]}.csv", rows)]},
        near_misses=(
            ("sh sql .schema", put(*called, " > 0")),
            ("sh sql .schema", put(*called, f" = {numbers[place - 1]}")),
        ),
        habit=(put(TABLES[0], KEYS[0], COUNTS[0]),),
    )


def ship_two(rng: Random, told: bool) -> Instance:
    """The carrier is busy for some calls, and ships when it is asked again."""
    items = rng.sample(WORDS, 3)
    place, elsewhere = rng.sample(FOLDERS, 2)
    busy = rng.choice(((1, 0), (0, 1), (1, 1), (2, 0), (0, 2), (2, 1), (1, 2))) if in_trouble(rng, told) else (0, 0)
    reminder = remind(rng, RETRY, told)
    calls = [f"sh ship {item} {place}" for item in items]
    gold = tuple(call for call, times in zip(calls, busy, strict=False) for _ in range(times + 1))
    lefts = zip(items, (*busy, 0), strict=True)
    return Instance(
        instruction=f"ship {items[0]} and {items[1]} to {place} . use sh ship .{reminder.asked}",
        files={"ship": ship(again=reminder.printed), **{f".ship/{item}": f"{left}\n" for item, left in lefts}},
        gold=gold,
        goals={"shipped": [text(f".ship/{item}", place) for item in items[:2]]},
        near_misses=((*gold, calls[2]), (*gold[:-1], gold[-1].replace(place, elsewhere))),
        habit=tuple(calls[:2]),
    )


def store_set(rng: Random, told: bool) -> Instance:
    """The entry is closed: the store says ok and drops what is written, until the entry is opened."""
    names = rng.sample(WORDS, 3)
    *values, new = rng.sample(range(1, 10), 4)
    closed = [in_trouble(rng, told), *(rng.random() < 0.5 for _ in names[1:])]
    reminder = remind(rng, READ_BACK, told)
    put, get = f"sh store set {names[0]} {new}", f"sh store get {names[0]}"
    gold = (put, get, f"sh store open {names[0]}", put, get) if closed[0] else (put, get)
    entries = zip(names, values, closed, strict=True)
    return Instance(
        instruction=f"set {names[0]} to {new} in the store . use sh store .{reminder.asked}",
        files={
            "store": store(check=reminder.printed),
            **{f".store/{name}": f"{value}{' closed' * shut}\n" for name, value, shut in entries},
        },
        gold=gold,
        goals={"set": [text(f".store/{names[0]}", str(new))]},
        near_misses=(
            (get, f"sh store open {names[0]}"),
            (*gold, f"sh store open {names[1]}", put.replace(names[0], names[1])),
        ),
        habit=(put,),
    )


# ---- SQL --------------------------------------------------------------------------------------------------------


def _table(rng: Random, told: bool, columns: tuple[str, ...]) -> tuple[Called, list[int]]:
    """What the table, its key and its column are called, and the keys of three rows."""
    called = guess = (TABLES[0], KEYS[0], columns[0])
    if in_trouble(rng, told):
        while called == guess:
            called = (rng.choice(TABLES), rng.choice(KEYS), rng.choice(columns))
    return called, sorted(rng.sample(range(1, 10), 3))


def _files(
    rng: Random, reminder: Reminder, called: Called, numbers: Sequence[int], cells: Sequence[str]
) -> dict[str, str]:
    table, *head = called
    program = sql(schema=reminder.printed, alone=bool(reminder.printed) and rng.random() < 0.5)
    rows = [head, *([str(number), cell] for number, cell in zip(numbers, cells, strict=True))]
    return {"sql": program, f".sql/{table}.csv": csv_text(rows)}


def _looked_up(reminder: Reminder, guess: str, command: str) -> tuple[str, ...]:
    """Look first; where the program is to remind of it, guess before that."""
    return (*((guess,) if reminder.printed else ()), "sh sql .schema", command)
