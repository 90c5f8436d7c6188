"""Conditions and rewriters by name: those of the package, those made of others, and the user's own at MODULE:NAME.

Invariant: what a name leads to is found, and its parameters are checked, when a hook is read; never in a rollout.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Self, TypeVar

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationError, model_validator

from whippletree import outside
from whippletree.harness.acts import EVENTS, Event, Moment
from whippletree.harness.conditions import CONDITIONS, Condition
from whippletree.harness.rewriters import REWRITERS, Rewriter
from whippletree.types import Json

N = TypeVar("N", Condition, Rewriter)


class Use(BaseModel):
    """A condition by name, with its parameters."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    condition: str
    parameters: dict[str, Json] = {}
    _found: Condition = PrivateAttr()

    @model_validator(mode="after")
    def _find(self) -> Self:
        self._found = condition(self.condition, self.parameters)
        return self

    @property
    def events(self) -> frozenset[Event]:
        return self._found.events

    def holds(self, moment: Moment) -> bool:
        return self._found.holds(moment)


class Not(Condition):
    """The other condition does not hold."""

    of: Use

    @property
    def events(self) -> frozenset[Event]:
        return self.of.events

    def holds(self, moment: Moment) -> bool:
        return not self.of.holds(moment)


class _Several(Condition):
    of: Annotated[tuple[Use, ...], Field(min_length=1)]

    @property
    def events(self) -> frozenset[Event]:
        return frozenset(event for event in EVENTS if all(event in use.events for use in self.of))


class All(_Several):
    """All of the other conditions hold."""

    def holds(self, moment: Moment) -> bool:
        return all(use.holds(moment) for use in self.of)


class AnyOf(_Several):
    """At least one of the other conditions holds."""

    def holds(self, moment: Moment) -> bool:
        return any(use.holds(moment) for use in self.of)


ALL_CONDITIONS: Mapping[str, type[Condition]] = {**CONDITIONS, "not": Not, "all": All, "any": AnyOf}


def condition(name: str, parameters: Mapping[str, Json]) -> Condition:
    """Raises ValueError that names the condition or the parameter that is wrong."""
    return _made(ALL_CONDITIONS, Condition, "condition", name, parameters)


def rewriter(name: str, parameters: Mapping[str, Json]) -> Rewriter:
    """Raises ValueError that names the rewriter or the parameter that is wrong."""
    return _made(REWRITERS, Rewriter, "rewriter", name, parameters)


@dataclass(frozen=True, slots=True)
class Entry:
    """A line of the registry."""

    name: str
    events: tuple[Event, ...]
    parameters: Mapping[str, str]
    """Name -> the JSON of its default, or its type where it must be given."""
    about: str


def registry() -> Mapping[str, tuple[Entry, ...]]:
    """All conditions and rewriters of the package, for tables and for whoever writes hooks."""
    return {
        "conditions": tuple(_entry(name, found) for name, found in ALL_CONDITIONS.items()),
        "rewriters": tuple(_entry(name, found) for name, found in REWRITERS.items()),
    }


def _made(table: Mapping[str, type[N]], base: type[N], what: str, name: str, parameters: Mapping[str, Json]) -> N:
    found = table.get(name)
    if found is None and ":" in name:
        try:
            loaded = outside.load(name)
        except ValueError as error:
            raise ValueError(f"{what} '{name}': {error}") from error
        if not (isinstance(loaded, type) and issubclass(loaded, base)):
            raise ValueError(f"{what} '{name}' is none; expected a subclass of {base.__module__}.{base.__name__}")
        found = loaded
    if found is None:
        near = difflib.get_close_matches(name, table, n=1)
        hint = f"did you mean '{near[0]}'?" if near else "`whippletree harness hooks` lists them"
        raise ValueError(f"there is no {what} '{name}'; {hint}")
    try:
        return found.model_validate(parameters)
    except ValidationError as error:
        raise ValueError(
            f"{what} '{name}': " + "; ".join(_told(found, problem) for problem in error.errors())
        ) from None


def _told(found: type[BaseModel], problem: Any) -> str:
    key = ".".join(map(str, problem["loc"])) or "parameters"
    if problem["type"] == "extra_forbidden":
        return f"there is no parameter '{key}', it has {', '.join(found.model_fields) or 'none'}"
    if problem["type"] == "missing":
        return f"the parameter '{key}' is missing"
    return f"{key} = {problem['input']!r}: {problem['msg'].removeprefix('Value error, ')}"


def _entry(name: str, found: type[Condition] | type[Rewriter]) -> Entry:
    about = (found.__doc__ or "").partition("\n")[0]
    return Entry(name, tuple(_events(found)), dict(_parameters(found)), about)


def _events(found: type[Condition] | type[Rewriter]) -> Iterator[Event]:
    if issubclass(found, Rewriter):
        yield found.event
    elif found not in (Not, All, AnyOf):  # those are used where what they are made of can be
        possible = found.model_construct().events
        for event in EVENTS:
            if event in possible:
                yield event


def _parameters(found: type[BaseModel]) -> Iterator[tuple[str, str]]:
    for name, schema in found.model_json_schema().get("properties", {}).items():
        kind = schema.get("type", "condition")
        yield name, repr(schema["default"]) if "default" in schema else f"({kind})"
