"""Proof that a kind's grader tells right from wrong: gold passes, doing nothing earns nothing, near misses fail.

Invariant: commands run only through the callable that is given.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from whippletree.tasks.paddock.checks import grade
from whippletree.tasks.paddock.kind import Kind

RunCommands = Callable[[Mapping[str, str], Sequence[str]], Awaitable[Path]]
"""Lays out the files, runs the commands one by one in one shell there, and returns the workspace as it then is."""


@dataclass(frozen=True, slots=True)
class KindReport:
    """What went wrong, by seed; all empty for a sound kind."""

    kind: str
    seeds: int
    """How many were tried."""
    gold_fails: tuple[int, ...]
    untouched_earns: tuple[int, ...]
    """Seeds where doing nothing gets a reward above 0."""
    near_miss_passes: tuple[tuple[int, int], ...]
    """(seed, position in `near_misses`)."""

    @property
    def sound(self) -> bool:
        return not (self.gold_fails or self.untouched_earns or self.near_miss_passes)


async def check_kind(kind: Kind, seeds: Iterable[int], run_commands: RunCommands) -> KindReport:
    """Try a kind over seeds of its generator."""
    tried = 0
    gold_fails: list[int] = []
    untouched_earns: list[int] = []
    near_miss_passes: list[tuple[int, int]] = []
    for seed in seeds:
        tried += 1
        job = kind.make(Random(seed))
        if not grade(job.files, job.goals, await run_commands(job.files, job.gold)).passed:
            gold_fails.append(seed)
        if grade(job.files, job.goals, await run_commands(job.files, ())).value > 0:
            untouched_earns.append(seed)
        for position, commands in enumerate(job.near_misses):
            if grade(job.files, job.goals, await run_commands(job.files, commands)).passed:
                near_miss_passes.append((seed, position))
    return KindReport(kind.name, tried, tuple(gold_fails), tuple(untouched_earns), tuple(near_miss_passes))
