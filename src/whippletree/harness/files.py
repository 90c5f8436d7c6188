"""Harnesses in files, TOML or JSON: a whole spec, or a base and the edits on it.

    base = "S0T0O0C0W0"                 # a harness's name, or another file, looked for beside this one
    direction = "read all pages"        # what it is to repair, if anything
    edits = '''
    limits.max_turns: 30 -> 40
    '''

Invariant: a file is named by its path, ending in .toml or .json, wherever the name of a harness is taken.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from whippletree.errors import HarnessError
from whippletree.harness import edits
from whippletree.harness.places import get
from whippletree.harness.spec import HarnessSpec, parse_spec, validated
from whippletree.types import Json

SUFFIXES = (".toml", ".json")


class _Edited(BaseModel):
    model_config = ConfigDict(extra="forbid")
    id: str | None = None
    """Its path without the suffix, where it is not named."""
    base: str
    direction: str = ""
    edits: str | list[dict[str, Json]]
    """In text, or as tables with `path`, `before` and `after`; what a table leaves out is null."""


def is_file(name: str) -> bool:
    return name.endswith(SUFFIXES)


def read_spec(path: Path, named: Callable[[str], HarnessSpec]) -> HarnessSpec:
    """The harness of a file; `named` finds one that is no file.

    Raises HarnessError that names the file, and the key or the edit that is wrong in it.
    """
    return _read(path, named, ())


def _read(path: Path, named: Callable[[str], HarnessSpec], above: tuple[Path, ...]) -> HarnessSpec:
    if path.resolve() in above:
        raise HarnessError(f"{path} is its own base, by way of {', '.join(map(str, above))}")
    data, where = _parsed(path), str(path)
    if not isinstance(data, dict) or "base" not in data:
        # `harness show --json` prints a spec under its hash.
        return parse_spec(get(data, ["spec"]) or data, where)
    file = validated(_Edited.model_validate, data, where)
    beside = path.parent / file.base
    base = _read(beside, named, (*above, path.resolve())) if is_file(file.base) else named(file.base)
    given = file.edits
    changes = edits.from_text(given, where) if isinstance(given, str) else edits.from_json(given, where)
    try:
        return edits.apply(base, changes, id=file.id or path.stem, direction=file.direction)
    except HarnessError as error:
        raise HarnessError(f"{where}: {error}") from None


def read_edits(path: Path) -> edits.Edits:
    """A file of edits alone: JSON where it ends in .json, else text. Raises HarnessError."""
    if path.suffix == ".json":
        return edits.from_json(_parsed(path), str(path))
    return edits.from_text(_text(path), str(path))


def to_toml(base: str, changes: edits.Edits, *, id: str | None = None, direction: str = "") -> str:
    """A file of a base and edits on it."""
    head = {"id": id, "base": base, "direction": direction}
    lines = [f"{key} = {_string(value)}" for key, value in head.items() if value]
    body = edits.to_text(changes)
    text = f"'''\n{body}'''" if "'''" not in body else _string(body)
    return "\n".join([*lines, f"edits = {text}", ""])


def _parsed(path: Path) -> Json:
    text = _text(path)
    try:
        return tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)
    except ValueError as error:
        raise HarnessError(f"{path} is not {path.suffix[1:].upper()}: {error}") from None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise HarnessError(f"cannot read {path}: {error}; expected a file with a harness or edits") from None


def _string(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
