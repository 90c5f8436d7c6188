"""The places of a spec's JSON tree: what may stand at each, read from the types of the spec themselves.

Invariant: whatever shapes behaviour has one path, of field names and, in lists of named things, their names:
`limits.max_turns`, `prompt.sections.rules.text`, `state.hooks.NAME`. A value has one canonical form at its place. That
of a named thing leaves out its name, and `above` in it names the thing that it stands before; without, it is the last.
"""

from __future__ import annotations

import difflib
import json
import types
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, Any, Union, cast, get_args, get_origin

from pydantic import BaseModel, TypeAdapter
from pydantic.fields import FieldInfo

from whippletree.errors import HarnessError
from whippletree.harness.spec import IDENTITY, HarnessSpec, validated
from whippletree.types import Json

Keys = Sequence[str]


@dataclass(frozen=True, slots=True)
class Place:
    """What may stand at a path."""

    kind: Any
    """A type; Any within tables of free form, such as the schema of a tool."""
    item: str = ""
    """The name of a thing in a list of named things."""
    field: FieldInfo | None = None
    free: bool = False
    """Whether it is within a table of free form."""


@lru_cache(maxsize=1024)
def place(path: str) -> Place:
    """Raises HarnessError where no spec has such a path, with what there is instead."""
    found = Place(HarnessSpec)
    keys = path.split(".")
    for depth, key in enumerate(keys):
        found = _step(found, key, keys[:depth], path)
    return found


def canonical(path: str, value: Json) -> Json:
    """The one form of a value at its place; None for what is absent, also where absence has a default that is None.

    Raises HarnessError for a value that cannot stand there.
    """
    at = place(path)
    if value is None:
        return _absent(at, path)
    adapter = _adapter(path)
    if not at.item:
        valid = validated(adapter.validate_python, value, path)
        return adapter.dump_python(valid, mode="json", exclude_none=True)
    if not isinstance(value, dict):
        raise HarnessError(f"{path}: expected a table, got {json.dumps(value)}")
    given = dict(cast(dict[str, Json], value))
    above = given.pop("above", None)
    valid = validated(adapter.validate_python, {**given, "name": at.item}, path)
    table = adapter.dump_python(valid, mode="json", exclude_none=True, exclude={"name"})
    return table if above is None else {**table, "above": above}


def tree(spec: HarnessSpec) -> dict[str, Json]:
    """All that shapes behaviour, in canonical form."""
    return spec.model_dump(mode="json", exclude_none=True, exclude=IDENTITY)


def get(node: Json, keys: Keys) -> Json:
    """What stands in a tree; None for what is absent."""
    for key in keys:
        if isinstance(node, list):
            node = _item(cast(list[Json], node), key)
        elif isinstance(node, dict):
            node = cast(dict[str, Json], node).get(key)
        else:
            return None
    return node


def holder(root: Json, path: str) -> Json:
    """The table or list of named things that a path ends in. Raises HarnessError where it is not there."""
    *outer, _ = path.split(".")
    node = root
    for depth, key in enumerate(outer):
        inside: Json = _raw(cast(list[Json], node), key) if isinstance(node, list) else node.get(key)
        if inside is None:
            raise HarnessError(f"{path}: there is no {'.'.join(outer[: depth + 1])}; {_there(node)}")
        node = inside
    return node


def put(root: Json, path: str, value: Json) -> None:
    """Change a tree; None takes away. Raises HarnessError where what it would stand in is not there."""
    node, last = holder(root, path), path.split(".")[-1]
    value = deepcopy(value)  # later changes of the tree must not reach the edit that it came from
    if isinstance(node, list):
        _put_item(cast(list[Json], node), last, value, path)
    elif value is None:
        node.pop(last, None)
    else:
        node[last] = value


# ---- inside -----------------------------------------------------------------------------------------------------


@lru_cache(maxsize=1024)
def _adapter(path: str) -> TypeAdapter[Any]:
    return TypeAdapter(place(path).kind)


def _step(at: Place, key: str, before: Keys, path: str) -> Place:
    kind = _plain(at.kind)
    if kind is Any:
        return Place(Any, free=True)
    arguments = get_args(kind)
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        known = [name for name in kind.model_fields if before or name not in IDENTITY]
        known = [name for name in known if not (at.item and name == "name")]
        if key not in known:
            near = difflib.get_close_matches(key, known, n=1)
            hint = f"did you mean '{near[0]}'?" if near else f"there is {', '.join(known)}"
            raise HarnessError(f"{path}: {'.'.join(before) or 'a spec'} has no '{key}'; {hint}")
        field = kind.model_fields[key]
        kind = field.annotation
        return Place(Annotated[kind, *field.metadata] if field.metadata else kind, field=field)
    if get_origin(kind) is dict and key:
        return Place(arguments[1], free=arguments[1] is Any)
    if get_origin(kind) is tuple and isinstance(arguments[0], type) and key:
        return Place(arguments[0], item=key)
    raise HarnessError(f"{path}: {'.'.join(before)} is one value, there is nothing inside it; edit it as a whole")


def _plain(kind: Any) -> Any:
    """A type without what is told beside it, and without the None that it may be."""
    while get_origin(kind) in (Annotated, Union, types.UnionType):
        kind = next(each for each in get_args(kind) if each is not type(None))
    return kind


def _absent(at: Place, path: str) -> Json:
    if at.free:
        raise HarnessError(
            f"{path}: in a table of free form only what is there can be changed; to add or take away, "
            "edit the whole table"
        )
    if at.field is None:
        return None
    if at.field.is_required():
        raise HarnessError(f"{path} cannot be absent")
    default = at.field.get_default(call_default_factory=True)
    return None if default is None else _adapter(path).dump_python(default, mode="json", exclude_none=True)


def _raw(items: Sequence[Json], name: str) -> Json:
    return next((item for item in items if item["name"] == name), None)


def _item(items: Sequence[Json], name: str) -> Json:
    names = [item["name"] for item in items]
    if name not in names:
        return None
    at = names.index(name)
    table = {key: value for key, value in items[at].items() if key != "name"}
    return {**table, "above": names[at + 1]} if at + 1 < len(names) else table


def _put_item(items: list[Json], name: str, value: Json, path: str) -> None:
    names = [item["name"] for item in items if item["name"] != name]
    above = value.get("above") if value is not None else None
    if above is not None and above not in names:
        raise HarnessError(f"{path}: it is to stand above '{above}', which is not there; {_there(items)}")
    items[:] = [item for item in items if item["name"] != name]
    if value is not None:
        table = {key: part for key, part in value.items() if key != "above"}
        items.insert(names.index(above) if above is not None else len(items), {"name": name, **table})


def _there(node: Json) -> str:
    names = [str(item["name"]) for item in cast(list[Json], node)] if isinstance(node, list) else list(map(str, node))
    return f"there is {', '.join(names) or 'nothing'}"
