"""From tables of texts to harness specs: the paper's factors and levels (Table 5), and users' own.

Invariant: a level is a patch on the base spec and nothing else, so a new level or factor is a TOML file and no code.

A patch maps spec paths to values: `"prompt.user" = "..."`, or the same as nested tables. A table changes the fields
that it names and leaves the others. Sections and tools are reached by name (`"prompt.sections.rules.text"`); a name
that is not there yet is added at the end, and a list replaces the whole list.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Literal, cast

from pydantic import BaseModel, ConfigDict, Field

from whippletree.errors import HarnessError
from whippletree.harness.space import Config, Factor, HarnessSpace, Level
from whippletree.harness.spec import HarnessSpec, parse_spec, validated
from whippletree.types import Json

PAPER_FACTORS = ("S", "T", "O", "C", "W")

_WHOLE = frozenset({"parameters", "argument_aliases"})
"""Tables that are one value: a patch replaces them."""


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid")


class _LevelTable(_File):
    name: str
    summary: str = ""
    patch: dict[str, Json] = {}


class _FactorTable(_File):
    key: str
    title: str = ""
    levels: list[_LevelTable] = Field(min_length=1)


class _SpaceFile(_File):
    extends: Literal["paper"] | None = None
    base: dict[str, Json] = {}
    factors: list[_FactorTable] = []


def paper_space() -> HarnessSpace:
    """The factors S, T, O, C, W with three levels each: 243 configurations."""
    return _paper()[0]


def paper_base() -> HarnessSpec:
    """The spec that the paper's levels are patches on; its content is that of S0T0O0C0W0."""
    return _paper()[1]


def load_space(path: Path) -> tuple[HarnessSpace, HarnessSpec]:
    """A user's factors, levels and base spec.

    The file has `extends = "paper"` to start from the paper's space, a table `base` that patches the base spec, and
    `[[factors]]` with `key`, `title` and `levels` (`name`, `summary`, `patch`). A key that is there already gets the
    levels appended. Raises HarnessError that names the file, the key and the value.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise HarnessError(f"cannot read the harness space {path}: {error}; expected a TOML file") from None
    file = _read(text, str(path))
    if file.extends is None:
        return _build([(str(path), file)], {}, {"id": "base"})
    space, base = _paper()
    return _build([(str(path), file)], {factor.key: factor for factor in space.factors}, base.model_dump(mode="json"))


def compose(space: HarnessSpace, config: Config, base: HarnessSpec) -> HarnessSpec:
    """The spec of a configuration: the patches of its levels on the base, in the order of the factors."""
    name = space.name(config)
    spec = base
    for factor, index in zip(space.factors, config, strict=True):
        level = factor.levels[index]
        spec = patched(spec, level.patch, f"harness {name}, factor {factor.key}, level {level.name}")
    return spec.model_copy(update={"id": name, "parent": base.id})


def patched(spec: HarnessSpec, patch: Mapping[str, Json], where: str) -> HarnessSpec:
    """Apply one patch. Raises HarnessError that names `where`, the key and the value."""
    return parse_spec(_merge(spec.model_dump(mode="json"), dict(patch)), where) if patch else spec


@cache
def _paper() -> tuple[HarnessSpace, HarnessSpec]:
    folder = resources.files("whippletree.harness") / "levels"
    names = [f"{key}.toml" for key in PAPER_FACTORS]
    files = [(name, _read((folder / name).read_text(encoding="utf-8"), name)) for name in names]
    return _build(files, {}, {"id": "base"})


def _read(text: str, where: str) -> _SpaceFile:
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise HarnessError(f"{where} is not TOML: {error}") from None
    return validated(_SpaceFile.model_validate, data, where)


def _build(
    files: Sequence[tuple[str, _SpaceFile]], factors: Mapping[str, Factor], base: Json
) -> tuple[HarnessSpace, HarnessSpec]:
    """Join files to a space and its base; every level is tried on the base, so that a bad one is found here."""
    factors = dict(factors)
    for where, file in files:
        base = _merge(base, file.base)
        for table in file.factors:
            factors[table.key] = _factor(factors.get(table.key), table, where)
    spec = parse_spec(base, f"{', '.join(where for where, _ in files)}: base")
    for where, file in files:
        for table in file.factors:
            for level in table.levels:
                patched(spec, level.patch, f"{where}: factor {table.key}, level {level.name}")
    return HarnessSpace(tuple(factors.values())), spec


def _factor(known: Factor | None, table: _FactorTable, where: str) -> Factor:
    levels = tuple(Level(level.name, level.summary, level.patch) for level in table.levels)
    title, before = (known.title, known.levels) if known else (table.title or table.key, ())
    try:
        return Factor(table.key, title, before + levels)
    except HarnessError as error:
        raise HarnessError(f"{where}: {error}") from None


def _merge(old: Json, new: Json, key: str = "") -> Json:
    """`old` with the fields that `new` names; a key `a.b` is a table in a table."""
    if not isinstance(new, dict) or key in _WHOLE:
        return cast(Json, new)
    if isinstance(old, list) and all(isinstance(item, dict) and "name" in item for item in cast(list[Json], old)):
        named = _merge({item["name"]: item for item in cast(list[dict[str, Json]], old)}, new)
        return [{"name": name, **item} if isinstance(item, dict) else item for name, item in named.items()]
    merged: dict[str, Json] = dict(cast(dict[str, Json], old)) if isinstance(old, dict) else {}
    for path, value in cast(dict[str, Json], new).items():
        head, _, rest = path.partition(".")
        merged[head] = _merge(merged.get(head), {rest: value} if rest else value, head)
    return merged
