"""Every key of a configuration: what it accepts, its default and its meaning.

Invariant: all of it is read from the sections themselves, so that it cannot fall behind them.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import types
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, Union, cast, get_args, get_origin, get_type_hints

from pydantic import BaseModel, ConfigDict, create_model
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from whippletree.types import Json

Row = tuple[str, str, str, str]
"""(key, accepted, default, meaning)"""


def explain(model: type[BaseModel]) -> Iterator[Row]:
    """Every key once, in order."""
    yield from _explain(model, ())


def hint(model: type[BaseModel], key: str) -> str:
    """What to say of a key that is not known."""
    accepted = {row[0]: row[1] for row in explain(model)}
    if key in accepted:
        return f"it is only known as: {accepted[key]}"
    near = difflib.get_close_matches(key, accepted, n=3, cutoff=0.5)
    return f"did you mean {', '.join(near)}?" if near else "`whippletree config explain` lists the keys"


def _explain(model: type[Any], path: tuple[str, ...], told: str = "") -> Iterator[Row]:
    for name, field in _fields(model).items():
        key, meaning = ".".join((*path, name)), field.description or told
        alternatives = _alternatives(field.annotation)
        members = [member for member in alternatives if isinstance(member, type) and _is_section(member)]
        if not members:
            yield key, _accepted(field), _shown(field.default), meaning
        elif len(members) == 1:
            yield from _explain(members[0], (*path, name), meaning)
        else:
            yield f"{key}.type", " | ".join(map(_type_of, members)), _shown(field.default.type), meaning
            yield from _explain_alternatives(members, (*path, name))


def _explain_alternatives(members: Sequence[type[BaseModel]], path: tuple[str, ...]) -> Iterator[Row]:
    """One row a key, with the types that have it."""
    rows: dict[str, Row] = {}
    owners: dict[str, list[str]] = {}
    for member in members:
        for row in _explain(member, path):
            rows.setdefault(row[0], row)
            owners.setdefault(row[0], []).append(_type_of(member))
    for key, accepted, default, meaning in rows.values():
        if not key.endswith(".type"):
            yield key, f"{accepted} (type {', '.join(owners[key])})", default, meaning


def types_of(union: Any) -> tuple[str, ...]:
    """What `type` may be in a union of sections."""
    return tuple(_type_of(member) for member in _alternatives(union))


def _type_of(member: type[BaseModel]) -> str:
    """Its default, or an example of its form where it has none."""
    field = member.model_fields["type"]
    return (field.examples or [""])[0] if field.is_required() else field.default


def _is_section(member: type[Any]) -> bool:
    return issubclass(member, BaseModel) or dataclasses.is_dataclass(member)


def _fields(section: type[Any]) -> Mapping[str, FieldInfo]:
    """Of a plain dataclass, its attributes' docstrings are the meanings."""
    if issubclass(section, BaseModel):
        return section.model_fields
    hints = get_type_hints(section)
    documented = ConfigDict(use_attribute_docstrings=True)
    told = create_model("_", __config__=documented, section=(section, ...)).model_json_schema()["$defs"]
    return {
        field.name: FieldInfo(
            annotation=hints[field.name],
            default=field.default,
            description=told[section.__name__]["properties"][field.name]["description"],
        )
        for field in dataclasses.fields(section)
    }


def _alternatives(annotation: Any) -> tuple[Any, ...]:
    """The members of a union, or the annotation itself, without what pydantic is told beside."""
    plain = get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation
    members = get_args(plain) if get_origin(plain) in (Union, types.UnionType) else (plain,)
    return tuple(get_args(member)[0] if get_origin(member) is Annotated else member for member in members)


def _accepted(field: FieldInfo) -> str:
    bounds = [
        f"{symbol} {getattr(bound, name)}"
        for bound in field.metadata
        for name, symbol in _BOUNDS
        if hasattr(bound, name)
    ]
    return " ".join([_type_name(field.annotation), *bounds])


_BOUNDS = (("gt", ">"), ("ge", ">="), ("lt", "<"), ("le", "<="))


def _type_name(annotation: Any) -> str:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return " | ".join(map(str, arguments))
    if origin in (Union, types.UnionType):
        return " | ".join(_type_name(argument) for argument in arguments if argument is not type(None))
    if origin is tuple:
        return f"list of {_type_name(arguments[0])}"
    if origin is dict:
        return f"table of {_type_name(arguments[1])}"
    return {str: "text", int: "whole number", float: "number", bool: "true | false"}.get(annotation, "value")


def _shown(default: Any) -> str:
    if isinstance(default, dict):
        return ", ".join(f"{key} = {_shown(value)}" for key, value in cast(dict[str, Json], default).items())
    if default in (None, PydanticUndefined):
        return ""
    return json.dumps(default)
