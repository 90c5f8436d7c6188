"""ClawGym: office work on files, graded by code. A task is a folder of `data_entry.json`, `input_files`, `reward`.

Its graders print an object of checks, whose mean is the reward; `passed` means all of them. They name the workspace by
the path below, so it is seen there too. Source: https://github.com/ClawGym/ClawGym-Agents.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import cast

from whippletree.errors import TaskError
from whippletree.tasks.base import Ending, GitFolder, Opening, Suite, Tools
from whippletree.tasks.grading import mean_of_checks, run_python
from whippletree.types import Json, Reward, Task

NAME = "clawgym"
WORKSPACE = str(Path("/root", ".openclaw", "workspace"))
TIMEOUT_S = 900.0
"""Of a rollout and, below, of a grading: those of the suite's own training."""
GRADING_TIMEOUT_S = 120.0
FOLDERS: Mapping[str, tuple[str, ...]] = {
    "train": ("clawgym_train", "train"),
    "validation": ("clawgym_validation", "validation"),
    "test": ("clawgym_eval", "test"),
}
"""Split -> the folder of its tasks, by the first name that there is."""


class ClawGym:
    name = NAME

    def __init__(self, opening: Opening) -> None:
        self._tools = opening.tools
        self._splits = _splits(opening.folder)
        if not self._splits:
            names = " or ".join(name for name, *_ in FOLDERS.values())
            raise TaskError(
                f"{opening.folder} holds no ClawGym tasks: expected {names}, or folders with data_entry.json"
            )
        self.tasks = cache(self._tasks)

    def _tasks(self, split: str) -> Sequence[Task]:
        if split not in self._splits:
            raise TaskError(f"clawgym has no split {split!r} here; it has {' and '.join(self._splits)}")
        folders = sorted(folder for folder in self._splits[split].iterdir() if folder.is_dir())
        return tuple(read_task(folder, split, self._tools) for folder in folders)

    async def grade(self, task: Task, ending: Ending) -> Reward:
        """The mean of the task's checks. Raises GradingError."""
        grader = Path(task.check["grader"])
        said = await run_python(
            task, ending, "check.py", [task.workspace_at], grader=grader, timeout_s=GRADING_TIMEOUT_S
        )
        return mean_of_checks(task, said)


def read_task(folder: Path, split: str, tools: Path | None = None) -> Task:
    """The task in a folder. Raises TaskError that says what is missing or wrong."""
    try:
        entry: Json = json.loads((folder / "data_entry.json").read_text(encoding="utf-8"))
        instruction = entry["user_query"]
        mount = cast(str, entry.get("input_mount_dir") or WORKSPACE)
    except FileNotFoundError:
        raise TaskError(f"{folder} is no ClawGym task: it has no data_entry.json") from None
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise TaskError(f"{folder / 'data_entry.json'} cannot be read: {type(error).__name__}: {error}") from None
    if not isinstance(instruction, str) or not instruction.strip():
        raise TaskError(f"{folder / 'data_entry.json'}: user_query is {instruction!r}; expected what is asked")
    if not (folder / "reward" / "check.py").is_file():
        raise TaskError(f"{folder} has no grader: expected reward/check.py, which prints an object of checks")
    inputs = folder / "input_files"
    suffixes = Counter(path.suffix.lstrip(".").lower() or "none" for path in inputs.rglob("*") if path.is_file())
    return Task(
        id=f"{NAME}/{split}/{folder.name}",
        source=NAME,
        split=split,
        kind=max(sorted(suffixes), key=suffixes.__getitem__, default="none"),
        tier=1,
        instruction=instruction,
        check={"grader": str(folder / "reward")},
        tree=inputs if inputs.is_dir() else None,
        workspace_at=mount,
        tools=tools,
        timeout_s=TIMEOUT_S,
        tags=tuple(sorted(suffixes)),
    )


def holds(folder: Path) -> bool:
    return bool(_splits(folder))


def _splits(folder: Path) -> dict[str, Path]:
    """Split -> folder of tasks. A folder of tasks alone is a training split."""
    for base in (folder, folder / "RL" / "data", folder / "data"):
        named = {split: [base / name for name in names if _has_tasks(base / name)] for split, names in FOLDERS.items()}
        found = {split: folders[0] for split, folders in named.items() if folders}
        if found:
            return found
    return {"train": folder} if _has_tasks(folder) else {}


def _has_tasks(folder: Path) -> bool:
    return next(folder.glob("*/data_entry.json"), None) is not None


SUITE = Suite(
    name=NAME,
    about="2,000 training tasks and the 200 of ClawGym-Bench: office work on files, graded by code",
    licence="Apache-2.0",
    origin=GitFolder(
        "https://github.com/ClawGym/ClawGym-Agents", "0e8526d8f5e0999896c74cee4d6b998fb8a0429e", "RL/data"
    ),
    size_mb=91,
    sha256="dcb0fd93848d96b778151d3d2db6bda315a3cb3de236d7925b5b3858b20761b5",
    open=ClawGym,
    holds=holds,
    tools=Tools(("pytest==8.4.2", "PyYAML==6.0.3", "cryptography==46.0.3", "pandas==2.3.3")),
)
