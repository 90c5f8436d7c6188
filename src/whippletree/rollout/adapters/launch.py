"""From an adapter's templates to what is started: command line, environment, files. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from string import Template

from whippletree.errors import HarnessError
from whippletree.rollout.adapters.base import Adapter, Place, Variant

ENVIRONMENT = {
    "HOME": "$home",
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "SHELL": "/bin/bash",
    "USER": "agent",
    "TMPDIR": "/tmp",
    "LANG": "C.UTF-8",
    "TERM": "dumb",
    "NO_COLOR": "1",
}
"""Of every harness, and so of the commands that its agent runs: the system's programs, none of the harness's own."""


@dataclass(frozen=True, slots=True)
class Launch:
    argv: tuple[str, ...]
    env: dict[str, str]
    """The whole environment."""
    files: dict[str, str]
    """Path below HOME -> text."""
    setup: tuple[tuple[str, ...], ...]
    """Commands that must run before."""


def materialise(adapter: Adapter, variant: Variant, place: Place) -> Launch:
    """Fill every template. Raises HarnessError for one that names what there is not."""
    values = {name: str(value) for name, value in asdict(place).items()}
    fixed = {name: value for name, value in values.items() if name != "instruction"}
    if place.instruction.startswith(tuple(adapter.misread)):
        values["instruction"] = " " + place.instruction
    return Launch(
        argv=_filled(adapter, _arguments(adapter, variant), values),
        env=_filled_table(adapter, {**ENVIRONMENT, **adapter.env, **variant.env}, fixed),
        files=_filled_table(adapter, {**adapter.files, **variant.files}, fixed),
        setup=tuple(_filled(adapter, command, fixed) for command in adapter.setup),
    )


def _arguments(adapter: Adapter, variant: Variant) -> list[str]:
    parts = [variant.args if part == "$args" else (part,) for part in adapter.command]
    return [*adapter.program, *(argument for part in parts for argument in part)]


def _filled_table(adapter: Adapter, table: Mapping[str, str], values: Mapping[str, str]) -> dict[str, str]:
    return dict(zip(table, _filled(adapter, table.values(), values), strict=True))


def _filled(adapter: Adapter, texts: Iterable[str], values: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(_fill(adapter, text, values) for text in texts)


def _fill(adapter: Adapter, text: str, values: Mapping[str, str]) -> str:
    try:
        return Template(text).substitute(values)
    except (KeyError, ValueError) as error:
        problem = f"names ${error.args[0]}" if isinstance(error, KeyError) else str(error)
        known = ", ".join(f"${name}" for name in values)
        raise HarnessError(
            f"harness {adapter.name!r}: the template {text[:80]!r} {problem}; known are {known}, and $$ is a dollar"
        ) from None
