"""The table of suites, and how a suite is found: by its name, as a directory in its format, or as MODULE:CLASS."""

from __future__ import annotations

import difflib
import hashlib
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from whippletree import outside
from whippletree.errors import TaskError
from whippletree.home import default_root
from whippletree.tasks import clawgym, fetching, quarantine, tools
from whippletree.tasks.base import Ending, Opening, Suite, TaskSource
from whippletree.tasks.paddock import Paddock
from whippletree.types import Reward, Task

SUITES: Mapping[str, Suite] = {suite.name: suite for suite in (clawgym.SUITE,)}
"""One file and one line each."""

EXTERNAL = re.compile(r"[\w.]+:\w+")


@dataclass(frozen=True, slots=True)
class Found:
    """A suite with its files, wherever they are."""

    source: TaskSource
    suite: Suite | None
    """None for a class outside the package."""
    checks: Path
    """The file of what checks have found."""
    files: str = ""
    """The checksum of the suite's files; empty for those of a path."""

    @property
    def quarantine(self) -> dict[str, str]:
        """Task id -> why it is left out."""
        found = quarantine.quarantined(quarantine.read(self.checks, self.files))
        if self.suite is None or self.files != self.suite.sha256:
            return found
        return {**self.suite.quarantine, **found}


@dataclass
class Chosen:
    """A source without some of its tasks."""

    source: TaskSource
    kinds: Collection[str] | None
    """Those to draw from; None for all."""
    left_out: Collection[str]
    """Ids of tasks."""
    name: str = field(init=False)

    def __post_init__(self) -> None:
        self.name = self.source.name

    def tasks(self, split: str) -> Sequence[Task]:
        """Raises TaskError where none is left, and for a kind that the split does not have."""
        found = self.source.tasks(split)
        there = {task.kind for task in found}
        if self.kinds is not None and (unknown := [kind for kind in self.kinds if kind not in there]):
            raise TaskError(f"{self.name} has no kinds {unknown} in split {split!r}; it has {sorted(there)}")
        kinds = there if self.kinds is None else self.kinds
        left = [task for task in found if task.kind in kinds and task.id not in self.left_out]
        if not left:
            raise TaskError(
                f"all {len(found)} tasks of {self.name}, split {split!r}, are left out; see tasks.quarantined"
            )
        return left

    async def grade(self, task: Task, ending: Ending) -> Reward:
        return await self.source.grade(task, ending)


def find(name: str, root: Path | None = None) -> Found:
    """The suite of a name, a directory or MODULE:CLASS; `root` is where suites are, `home.default_root()` by default.

    Raises TaskError where there is none, its files or tools are not here, or they are not what they should be.
    """
    root = root or default_root()
    if name in SUITES:
        suite = SUITES[name]
        folder, record = fetching.folder_of(suite, root), fetching.added(suite, root)
        source = suite.open(Opening(folder, _tools(suite, root)))
        return Found(source, suite, root / "suites" / name / "checks.jsonl", record.sha256 if record else "")
    if EXTERNAL.fullmatch(name):
        return Found(_external(name), None, root / "suites" / name.replace(":", ".") / "checks.jsonl")
    path = Path(name).expanduser()
    if not path.is_dir():
        near = difflib.get_close_matches(name, ("paddock", *SUITES), n=1)
        hint = f"did you mean {near[0]}?" if near else f"the suites are paddock, {', '.join(SUITES)}"
        raise TaskError(f"there is no suite and no directory '{name}'; {hint}")
    suite = next((suite for suite in SUITES.values() if suite.holds(path)), None)
    if suite is None:
        raise TaskError(f"'{name}' holds no tasks in a format that is known: {', '.join(SUITES)}")
    source = suite.open(Opening(path.resolve(), _tools(suite, root)))
    digest = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:16]
    return Found(source, suite, root / "suites" / suite.name / f"checks-{digest}.jsonl")


def task_by_id(task_id: str) -> Task:
    """The task of an id, SUITE/SPLIT/...; raises TaskError where there is none."""
    name, _, rest = task_id.partition("/")
    if name not in SUITES:
        return Paddock().task_by_id(task_id)
    for task in find(name).source.tasks(rest.partition("/")[0]):
        if task.id == task_id:
            return task
    raise TaskError(f"{name} has no task {task_id!r}; `whippletree tasks list {name}` counts those that it has")


def open_source(
    name: str, kinds: Collection[str] | None, *, quarantined: bool, training: bool, isolated: bool
) -> TaskSource:
    """The tasks that a configuration asks for.

    Raises TaskError also where the suite must not be trained on, and where it needs sandboxes that isolate.
    """
    found = find(name)
    if found.suite is not None and found.suite.isolated and not isolated:
        raise TaskError(
            f"{found.suite.name} cannot be graded in sandboxes that do not isolate: its graders are code, which the "
            'policy must not reach. Set sandbox.kind = "bubblewrap"'
        )
    if training and found.suite is not None and found.suite.evaluation_only:
        raise TaskError(
            f"{found.suite.name} must not be trained on: {found.suite.evaluation_only}. Evaluate on it "
            f"(`whippletree evaluate --tasks {found.suite.name}`)"
        )
    return Chosen(found.source, kinds, () if quarantined else found.quarantine)


def _tools(suite: Suite, root: Path) -> Path | None:
    """The suite's tools, which are built as it is added."""
    place = tools.place_of(suite.tools, root)
    if missing := tools.missing_programs(suite.tools):
        raise TaskError(f"{suite.name} needs {', '.join(missing)} in sandboxes: install it (`apt install ...`)")
    if place is not None and not place.is_dir():
        raise TaskError(
            f"the tools of {suite.name} ({', '.join(suite.tools.requirements)}) are not here: "
            f"`whippletree tasks tools {suite.name}` installs them for sandboxes"
        )
    return place


def _external(path: str) -> TaskSource:
    """What the class at MODULE:CLASS makes without arguments."""
    try:
        made = outside.load(path)
    except ValueError as error:
        raise TaskError(f"tasks.source = '{path}': {error}") from error
    if not callable(made):
        raise TaskError(f"tasks.source = '{path}' is no class, but {made!r}")
    source = made()
    if missing := [part for part in ("name", "tasks", "grade") if not hasattr(source, part)]:
        raise TaskError(
            f"tasks.source = '{path}' is no suite: it lacks {', '.join(missing)}; see TaskSource in tasks/base.py"
        )
    return cast(TaskSource, source)
