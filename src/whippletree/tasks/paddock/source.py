"""The suite as a task source: procedural, endless in principle, cut to a size per split.

Invariants: a task is a function of its id alone; no job (files and goals) is in two splits.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import overload

from whippletree.errors import TaskError
from whippletree.tasks.base import Ending
from whippletree.tasks.paddock.checks import grade
from whippletree.tasks.paddock.kind import SPLITS, Instance, Kind
from whippletree.tasks.paddock.kinds import KINDS
from whippletree.types import Reward, Task

SIZES: Mapping[str, int] = {"train": 20000, "validation": 2000, "test": 2000}

_BUCKETS = {"train": (0, 1), "validation": (2,), "test": (3,)}
"""The splits part the jobs by a hash of their content, modulo 4."""


@dataclass
class Paddock:
    """Built-in workspace jobs in three tiers, graded on the final files.

    Raises TaskError for an unknown kind, tier or split.
    """

    tiers: Sequence[int] = (1,)
    kinds: Sequence[str] | None = None
    """Exactly these kinds, whatever their tier; None is all kinds of `tiers`."""
    per_split: Mapping[str, int] = field(default_factory=lambda: dict(SIZES))
    """Number of tasks, over all kinds together; a split that is not given has none."""
    name: str = field(default="paddock", init=False)

    def __post_init__(self) -> None:
        _require("kinds", self.kinds or (), KINDS)
        _require("tiers", self.tiers, {kind.tier for kind in KINDS.values()})
        _require("splits", self.per_split, SPLITS)

    def tasks(self, split: str) -> Sequence[Task]:
        """The tasks of a split, each made on access; kinds take turns, so any prefix is balanced."""
        kinds = tuple(KINDS[name] for name in self.kinds_of(split))
        if not kinds:
            raise TaskError(
                f"paddock has no kind for split {split!r} among tiers {list(self.tiers)}, kinds {self.kinds}; "
                "name kinds that this split has"
            )
        return _Tasks(split, kinds, self.per_split.get(split, 0))

    def kinds_of(self, split: str) -> tuple[str, ...]:
        """The names of the kinds that a split shows, in the order of the table."""
        _require("splits", [split], SPLITS)
        chosen = [k for k in KINDS.values() if (k.tier in self.tiers if self.kinds is None else k.name in self.kinds)]
        return tuple(kind.name for kind in chosen if split in kind.splits)

    def near_misses(self, task: Task) -> tuple[tuple[str, ...], ...]:
        """Command lists that look as if they did a task of this suite, and do not."""
        number = int(task.id.rsplit("/", 1)[1])
        return _job(task.split, KINDS[task.kind], number).near_misses

    def task_by_id(self, task_id: str) -> Task:
        """The task of an id `paddock/SPLIT/KIND/N`, whatever this source's tiers, kinds and sizes."""
        match task_id.split("/"):
            case ["paddock", split, kind, number] if (
                kind in KINDS and split in KINDS[kind].splits and number.isdecimal() and str(int(number)) == number
            ):
                return make_task(split, KINDS[kind], int(number))
            case _:
                raise TaskError(
                    f"no paddock task has the id {task_id!r}; expected paddock/SPLIT/KIND/N, e.g. "
                    "paddock/train/copy/17, with a kind that is in that split"
                )

    async def grade(self, task: Task, ending: Ending) -> Reward:
        """Parts: one per goal, and `untouched`; see `checks.grade`. Nothing is run and nothing waited for."""
        return grade(task.files, task.check["goals"], ending.workspace)


def make_task(split: str, kind: Kind, number: int) -> Task:
    """The `number`-th task of a kind in a split."""
    job = _job(split, kind, number)
    return Task(
        id=f"paddock/{split}/{kind.name}/{number}",
        source="paddock",
        split=split,
        kind=kind.name,
        tier=kind.tier,
        instruction=job.instruction,
        files=job.files,
        gold="\n".join(job.gold),
        check={"goals": {goal: list(checks) for goal, checks in job.goals.items()}},
        habit="\n".join(job.habit),
    )


def _job(split: str, kind: Kind, number: int) -> Instance:
    rng = Random(int.from_bytes(hashlib.sha256(f"paddock/{split}/{kind.name}/{number}".encode()).digest()[:8]))
    job = kind.make(rng)
    while _bucket(job) not in _BUCKETS[split]:
        job = kind.make(rng)
    return job


def _bucket(job: Instance) -> int:
    content = json.dumps([job.files, job.goals], sort_keys=True)
    return hashlib.sha256(content.encode()).digest()[0] % 4


class _Tasks(Sequence[Task]):
    """Task i is number i // K of kind i % K."""

    def __init__(self, split: str, kinds: tuple[Kind, ...], size: int) -> None:
        self._split, self._kinds, self._indices = split, kinds, range(size)

    def __len__(self) -> int:
        return len(self._indices)

    @overload
    def __getitem__(self, index: int) -> Task: ...

    @overload
    def __getitem__(self, index: slice) -> Sequence[Task]: ...

    def __getitem__(self, index: int | slice) -> Task | Sequence[Task]:
        if isinstance(index, slice):
            return [self[i] for i in self._indices[index]]
        number, kind = divmod(self._indices[index], len(self._kinds))
        return make_task(self._split, self._kinds[kind], number)


def _require(what: str, given: Iterable[object], known: Collection[object]) -> None:
    unknown = [entry for entry in given if entry not in known]
    if unknown:
        raise TaskError(f"paddock has no {what} {unknown}; expected some of {sorted(known, key=str)}")
