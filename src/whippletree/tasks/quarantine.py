"""What checks have found of the tasks of a suite, kept beside its files; tasks that failed are quarantined.

Invariant: one line a task and check, the last one counts; lines about other files than those that are here do not.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from whippletree.home import make_directories


@dataclass(frozen=True, slots=True)
class TaskCheck:
    """What came of one task's check."""

    task_id: str
    problem: str
    """Why the task cannot be trusted; empty where it can."""
    untouched: float | None = None
    """Reward of doing nothing; None where it could not be graded."""
    gold: float | None = None
    """Reward of the solution; None where there is none, or it could not be graded."""
    grading_s: float = 0.0
    """Wall seconds of one grading."""
    files: str = ""
    """The checksum of the suite's files; empty for those of a path."""


def read(file: Path, files: str) -> dict[str, TaskCheck]:
    """Task id -> its last check. A last line that was cut off is left out."""
    found: dict[str, TaskCheck] = {}
    if file.exists():
        for line in file.read_text(encoding="utf-8").splitlines():
            try:
                check = TaskCheck(**json.loads(line))
            except (ValueError, TypeError):
                continue
            if check.files == files:
                found[check.task_id] = check
    return found


def append(file: Path, check: TaskCheck) -> None:
    make_directories(file.parent)
    with file.open("ab+") as out:
        if out.tell() and out.seek(-1, os.SEEK_END) >= 0 and out.read(1) != b"\n":
            out.write(b"\n")  # what was cut off stays a line of its own
        out.write(json.dumps(asdict(check)).encode() + b"\n")


def quarantined(checks: Mapping[str, TaskCheck]) -> dict[str, str]:
    """Task id -> why it is left out."""
    return {task_id: check.problem for task_id, check in checks.items() if check.problem}
