"""A line for each run under a folder.

Invariant: a run that cannot be read is listed as such and hides no other.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from whippletree.errors import StoreError
from whippletree.store.lock import is_locked
from whippletree.store.run_dir import RunStore

RunState = Literal["running", "finished", "stopped", "unreadable"]


@dataclass(frozen=True, slots=True)
class RunSummary:
    path: Path
    state: RunState
    """`running` while a process holds the run; `finished` where its meta says `"finished": true`."""
    steps_done: int = 0
    metrics: Mapping[str, float] = field(default_factory=dict[str, float])
    """Of the last step."""
    problem: str = ""
    """Why the run is unreadable."""


def list_runs(root: Path) -> list[RunSummary]:
    """Runs that are `root` or lie up to two folders below, by path; raises StoreError where `root` is no folder."""
    if not root.is_dir():
        raise StoreError(f"{root} is not a folder: give the folder that holds the runs")
    found = {file.parent for depth in ("", "*/", "*/*/") for file in root.glob(depth + "run.sqlite")}
    return [_summary(path) for path in sorted(found) if not path.name.startswith(".")]


def _summary(path: Path) -> RunSummary:
    try:
        with RunStore.open(path, read_only=True) as store:
            state: RunState = "finished" if store.meta().get("finished") else "stopped"
            if is_locked(path):
                state = "running"
            return RunSummary(path, state, store.num_steps(), store.last_metrics())
    except (StoreError, sqlite3.Error) as error:
        return RunSummary(path, "unreadable", problem=str(error))
