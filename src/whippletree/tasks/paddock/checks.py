"""What can be demanded of a final workspace, as JSON data, and the grader of such data.

Invariant: grading is deterministic, runs nothing, and returns a reward for every workspace, however hostile.

A *goal* is a named list of checks that are met together. The parts of a reward are the goals and `untouched`: every
file of the start that no check names is as it was. New files do no harm.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from whippletree.tasks.paddock.reading import is_absent, read_text
from whippletree.types import Json, Reward

Check = Mapping[str, Json]
Goals = Mapping[str, Sequence[Check]]


def text(path: str, want: str) -> Check:
    """The file holds this text, up to `normalise`."""
    return {"is": "text", "path": path, "want": want}


def absent(path: str) -> Check:
    """Nothing lies at this path."""
    return {"is": "absent", "path": path}


def json_value(path: str, want: Json) -> Check:
    """The file is JSON of this value; layout and the order of keys are free."""
    return {"is": "json", "path": path, "want": want}


def csv_rows(path: str, want: Sequence[Sequence[str]]) -> Check:
    """The file is CSV of these rows, the header included; quoting and spaces around cells are free."""
    return {"is": "csv", "path": path, "want": [list(row) for row in want]}


def normalise(content: str) -> str:
    """Without white space at the ends of lines and without blank lines at the end."""
    return "\n".join(line.rstrip() for line in content.split("\n")).rstrip("\n")


def grade(files: Mapping[str, str], goals: Goals, workspace: Path) -> Reward:
    """The share of parts that hold, but 0 where no goal is met: leaving files alone earns nothing by itself."""
    met = {name: float(all(_holds(check, workspace) for check in checks)) for name, checks in goals.items()}
    named = {check["path"] for checks in goals.values() for check in checks}
    kept = all(_is_text(workspace, path, start) for path, start in files.items() if path not in named)
    parts = {**met, "untouched": float(kept)}
    return Reward(sum(parts.values()) / len(parts) if any(met.values()) else 0.0, parts)


def _holds(check: Check, workspace: Path) -> bool:
    path, want = cast(str, check["path"]), cast(Any, check.get("want"))
    match check["is"]:
        case "text":
            return _is_text(workspace, path, want)
        case "absent":
            return is_absent(workspace, path)
        case "json":
            return _is_json(read_text(workspace, path), want)
        case "csv":
            return _is_csv(read_text(workspace, path), want)
        case other:
            raise ValueError(f"unknown check {other!r}; expected text, absent, json or csv")


def _is_text(workspace: Path, path: str, want: str) -> bool:
    found = read_text(workspace, path)
    return found is not None and normalise(found) == normalise(want)


def _is_json(found: str | None, want: Json) -> bool:
    try:
        return found is not None and _same(json.loads(found), want)
    except (ValueError, RecursionError):
        return False


def _same(found: Json, want: Json) -> bool:
    """Equality of JSON values; unlike `==` it tells true from 1."""
    if isinstance(want, dict):
        wanted = cast(dict[str, Json], want)
        return (
            isinstance(found, dict)
            and found.keys() == wanted.keys()
            and all(_same(found[k], wanted[k]) for k in wanted)
        )
    if isinstance(want, list):
        members = cast(list[Json], want)
        if not isinstance(found, list):
            return False
        others = cast(list[Json], found)
        return len(others) == len(members) and all(map(_same, others, members))
    return isinstance(found, bool) == isinstance(want, bool) and found == want


def _is_csv(found: str | None, want: list[list[str]]) -> bool:
    if found is None:
        return False
    try:
        rows = [[cell.strip() for cell in row] for row in csv.reader(io.StringIO(found, newline="")) if row]
    except csv.Error:
        return False
    return rows == want
