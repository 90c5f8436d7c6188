"""Edits of specs: `path: before -> after`, null for what is absent.

Invariant: an edit is applied only where `before` is what stands there, so that applying a set of edits and then its
inverse gives back the same content, and one that was made for another spec is refused.

    state.hooks.pages: null -> {"event": "after_tool", "condition": "pagination_present", ...}
    limits.max_turns: 30 -> 40

Sets of edits are sequences, applied in order and validated as a whole.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import cast

from whippletree.errors import HarnessError
from whippletree.harness.places import canonical, get, holder, place, put, tree
from whippletree.harness.spec import HarnessSpec, parse_spec
from whippletree.types import Json


@dataclass(frozen=True, slots=True)
class Edit:
    """One change, its values in canonical form (see `harness.places`).

    Raises HarnessError where there is no such place, where a value cannot stand there, and where nothing would change.
    """

    path: str
    before: Json = field(hash=False)
    after: Json = field(hash=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "before", canonical(self.path, self.before))
        object.__setattr__(self, "after", canonical(self.path, self.after))
        if self.before == self.after:
            raise HarnessError(f"{self.path}: the edit changes nothing; before and after are {_shown(self.after)}")

    def __str__(self) -> str:
        return f"{self.path}: {_json(self.before)} -> {_json(self.after)}"


Edits = tuple[Edit, ...]


def apply(spec: HarnessSpec, edits: Sequence[Edit], *, id: str | None = None, direction: str = "") -> HarnessSpec:
    """The edited spec, whose parent is `spec`; named after the parent and the edits where it gets no `id`.

    Raises HarnessError where a `before` does not match, or where the whole is no valid spec.
    """
    name = id or f"{spec.id}~{digest(edits)[:8]}"
    data: Json = tree(spec)
    for edit in edits:
        holder(data, edit.path)
        found = get(data, edit.path.split("."))
        if found != edit.before:
            raise HarnessError(
                f"edit of {spec.id}: {edit.path} is {_shown(found)}, but the edit expects {_shown(edit.before)} there; "
                "it was made for another spec"
            )
        put(data, edit.path, edit.after)
    return parse_spec({**data, "id": name, "parent": spec.id, "direction": direction}, f"{spec.id}, edited")


def invert(edits: Sequence[Edit]) -> Edits:
    """The edits that undo these."""
    return tuple(Edit(edit.path, edit.after, edit.before) for edit in reversed(edits))


def compose(*sets: Sequence[Edit]) -> Edits:
    """One set that does what the sets do in order; two edits of one value become one, or none.

    Raises HarnessError where a set does not find what those before it have left.
    """
    joined: list[Edit] = []
    for edits in sets:
        for edit in edits:
            _join(joined, edit)
    return tuple(joined)


def diff(one: HarnessSpec, other: HarnessSpec) -> Edits:
    """The edits that make the content of one spec that of the other."""
    at, goal = tree(one), tree(other)
    return tuple(_differences(at, goal, ()))


def digest(edits: Sequence[Edit]) -> str:
    """16 hex digits; the same on every machine."""
    return hashlib.sha256(json.dumps(to_json(edits), sort_keys=True).encode()).hexdigest()[:16]


# ---- written forms ----------------------------------------------------------------------------------------------

_HEAD = re.compile(r"\s*([^\s:#]+)\s*:\s*")
_ARROW = re.compile(r"\s*(?:->|→)\s*")
_REST = re.compile(r"[ \t]*(?:#[^\n]*)?(?:\n|$)")
_NOTHING = re.compile(r"(?:\s*(?:#[^\n]*(?:\n|$))?)*")


def to_json(edits: Sequence[Edit]) -> list[dict[str, Json]]:
    return [{"path": edit.path, "before": edit.before, "after": edit.after} for edit in edits]


def from_json(data: Json, where: str) -> Edits:
    """Edits of a list of tables with `path`, `before` and `after`; a value that is not given is null."""
    if not isinstance(data, list):
        raise HarnessError(f"{where}: expected a list of edits, got {_shown(data)}")
    return tuple(_from_table(table, where) for table in cast(list[Json], data))


def to_text(edits: Sequence[Edit]) -> str:
    """An edit a line."""
    return "".join(f"{edit}\n" for edit in edits)


def from_text(text: str, where: str) -> Edits:
    """Edits in the form of `to_text`; values may go over several lines, and lines that begin with # are comments."""
    edits: list[Edit] = []
    at = _end(_NOTHING, text, 0)
    while at < len(text):
        head = _HEAD.match(text, at)
        if head is None:
            raise _unread(text, at, where, "a path and a colon")
        before, at = _value(text, head.end(), where)
        if _ARROW.match(text, at) is None:
            raise _unread(text, at, where, "->")
        after, at = _value(text, _end(_ARROW, text, at), where)
        if _REST.match(text, at) is None:
            raise _unread(text, at, where, "the end of the line")
        edits.append(_made(head[1], before, after, where))
        at = _end(_NOTHING, text, at)
    return tuple(edits)


# ---- inside -----------------------------------------------------------------------------------------------------


def _join(done: list[Edit], new: Edit) -> None:
    """Add an edit to a set, checked against those that tell of its place: what it expects is followed back in time."""
    expected: Json = {"value": deepcopy(new.before)}
    adjacent = True
    for index in reversed(range(len(done))):
        old = done[index]
        if _inside(new.path, old.path):
            _agree(old, new, get(old.after, _rest(new.path, old.path)), expected["value"])
            if old.path == new.path and adjacent and not place(new.path).item:
                done[index : index + 1] = [] if old.before == new.after else [Edit(new.path, old.before, new.after)]
                return
            break
        if _inside(old.path, new.path):
            rest = ["value", *_rest(old.path, new.path)]
            _agree(old, new, old.after, get(expected, rest))
            put(expected, ".".join(rest), old.before)
            adjacent = False
    done.append(new)


def _agree(old: Edit, new: Edit, known: Json, expected: Json) -> None:
    """Neighbours come and go: where a thing stood does not tell two states of it apart."""
    if _unplaced(known) != _unplaced(expected):
        raise HarnessError(
            f"the edits conflict: one makes {old.path} {_shown(old.after)}, a later one expects {new.path} to be "
            f"{_shown(new.before)}"
        )


def _inside(path: str, other: str) -> bool:
    return path == other or path.startswith(f"{other}.")


def _rest(path: str, outer: str) -> list[str]:
    return path[len(outer) + 1 :].split(".") if path != outer else []


def _unplaced(value: Json) -> Json:
    if not isinstance(value, dict):
        return value
    return {key: part for key, part in cast(dict[str, Json], value).items() if key != "above"}


def _differences(at: Json, goal: Json, keys: tuple[str, ...]) -> Iterator[Edit]:
    """Edits one by one, each made on `at` before the next is looked for."""
    here, there = get(at, keys), get(goal, keys)
    if here == there:
        return
    path = ".".join(keys)
    if isinstance(here, dict) and isinstance(there, dict) and _has_places(here, there, path):
        names = cast(set[str], {*here, *there} - {"above"})
        for key in sorted(names):
            yield from _differences(at, goal, (*keys, key))
        return
    if isinstance(here, list) and isinstance(there, list) and _same_order(here, there):
        yield from _of_named(at, goal, keys)
        return
    edit = Edit(path, here, there)
    put(at, path, edit.after)
    yield edit


def _of_named(at: Json, goal: Json, keys: tuple[str, ...]) -> Iterator[Edit]:
    """What goes, what comes (from the end, so that what it stands above is there), and what changes."""
    path = ".".join(keys)
    here, there = ([item["name"] for item in get(root, keys)] for root in (at, goal))
    for name in here:
        if name not in there:
            yield _put(at, f"{path}.{name}", None)
    for name in reversed(there):
        if name not in here:
            yield _put(at, f"{path}.{name}", get(goal, (*keys, name)))
    for name in there:
        if name in here:
            yield from _differences(at, goal, (*keys, name))


def _put(at: Json, path: str, value: Json) -> Edit:
    edit = Edit(path, get(at, path.split(".")), value)
    put(at, path, edit.after)
    return edit


def _has_places(here: Json, there: Json, path: str) -> bool:
    """Whether the parts of two tables can be edited one by one."""
    if any("." in key for key in (*here, *there)):
        return False
    free = bool(path) and (place(path).free or place(f"{path}.x" if not here else f"{path}.{next(iter(here))}").free)
    return not free or (here.keys() == there.keys() and None not in (*here.values(), *there.values()))


def _same_order(here: Json, there: Json) -> bool:
    """Whether two lists are of named things, and those that are in both stand in one order."""
    if not all(isinstance(item, dict) and "name" in item and "." not in item["name"] for item in (*here, *there)):
        return False
    names = [[item["name"] for item in items] for items in (here, there)]
    return [name for name in names[0] if name in names[1]] == [name for name in names[1] if name in names[0]]


def _from_table(table: Json, where: str) -> Edit:
    if not isinstance(table, dict) or "path" not in table or {*table} - {"path", "before", "after"}:
        raise HarnessError(f"{where}: expected a table with path, before and after, got {_shown(table)}")
    given = cast(dict[str, Json], table)
    return _made(str(given["path"]), given.get("before"), given.get("after"), where)


def _made(path: str, before: Json, after: Json, where: str) -> Edit:
    try:
        return Edit(path, before, after)
    except HarnessError as error:
        raise HarnessError(f"{where}: {error}") from None


def _value(text: str, at: int, where: str) -> tuple[Json, int]:
    try:
        return json.JSONDecoder().raw_decode(text, at)
    except ValueError:
        raise _unread(text, at, where, "a JSON value (null for what is absent)") from None


def _end(pattern: re.Pattern[str], text: str, at: int) -> int:
    match = pattern.match(text, at)
    return match.end() if match else at


def _unread(text: str, at: int, where: str, expected: str) -> HarnessError:
    line = text.count("\n", 0, at) + 1
    found = text[at:].partition("\n")[0][:60]
    return HarnessError(
        f"{where}, line {line}: expected {expected}, got '{found}'; the form is `path: before -> after`"
    )


def _json(value: Json) -> str:
    return json.dumps(value, ensure_ascii=False)


def _shown(value: Json) -> str:
    text = _json(value)
    return text if len(text) <= 200 else text[:197] + "..."
