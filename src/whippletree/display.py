"""What the terminal shows while work goes on: how far, how fast, and an honest remaining time."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Generator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from whippletree.config import RunConfig
from whippletree.run import Run
from whippletree.store.run_dir import RunStore
from whippletree.study import Job, StudyConfig
from whippletree.types import Rollout

RECENT_S = 60.0
"""The remaining time is reckoned from the rate of this many seconds."""


class Pace:
    """Units done, and what the recent rate says of the rest."""

    def __init__(self, total: int, done: int = 0) -> None:
        self.total, self.done = total, done
        self._seen: deque[tuple[float, int]] = deque([(time.monotonic(), done)])

    def advance(self, done: int) -> None:
        now = time.monotonic()
        self.done = done
        self._seen.append((now, done))
        while len(self._seen) > 2 and now - self._seen[0][0] > RECENT_S:
            self._seen.popleft()

    @property
    def per_s(self) -> float:
        (start, before), (end, after) = self._seen[0], self._seen[-1]
        return (after - before) / (end - start) if end > start else 0.0

    @property
    def left(self) -> str:
        """Not said before there is a rate to say it from."""
        if self.per_s <= 0 or self._seen[-1][0] - self._seen[0][0] < 2.0:
            return "reckoning"
        seconds = (self.total - self.done) / self.per_s
        return f"{seconds / 60:.0f} min left" if seconds > 90 else f"{seconds:.0f} s left"


def cells_of(config: RunConfig) -> int:
    """Rollouts of one evaluation, up to rounding within the sets."""
    return config.evaluate.rollouts_per_set * len(config.evaluate.sets)


def _cells_left(run: Run) -> int:
    """Rollouts of the evaluations that are not stored yet, up to rounding within the sets."""
    config, every = run.config, run.config.evaluate.every
    steps = [*(range(every, config.steps, every) if every else ()), config.steps]
    stored = sum(found.num_cells for found in run.store.evaluations())
    return max(0, len(steps) * cells_of(config) - stored)


def _columns(unit: str) -> tuple[TextColumn | BarColumn | MofNCompleteColumn | TimeElapsedColumn, ...]:
    return (
        TextColumn("{task.description}"),
        BarColumn(bar_width=24),
        MofNCompleteColumn(),
        TextColumn(unit),
        TextColumn("{task.fields[rate]}"),
        TimeElapsedColumn(),
        TextColumn("{task.fields[left]}"),
    )


@contextmanager
def watched(run: Run, console: Console, *, plain: bool) -> Generator[None]:
    """Show the rollouts that are left of a run: those of training and of its evaluations."""
    per_step = run.config.batch_size * run.config.group_size
    total = (run.config.steps - run.next_step) * per_step + _cells_left(run)
    pace = Pace(total)
    passed: deque[bool] = deque(maxlen=per_step)
    last_said = time.monotonic()
    with Progress(*_columns("rollouts"), console=console, disable=plain, refresh_per_second=2) as progress:
        bar = progress.add_task("starting", total=total, rate="", left="")

        def saw(rollout: Rollout) -> None:
            nonlocal last_said
            pace.advance(pace.done + 1)
            passed.append(rollout.passed)
            what = f"step {rollout.step + 1}/{run.config.steps}" if rollout.purpose == "train" else "evaluating"
            text = f"{what}, {sum(passed) / len(passed):.0%} solved"
            progress.update(bar, completed=pace.done, description=text, rate=f"{pace.per_s:.0f}/s", left=pace.left)
            if plain and time.monotonic() - last_said > 10:
                last_said = time.monotonic()
                console.print(f"{text}, {pace.done}/{total} rollouts, {pace.per_s:.0f}/s, {pace.left}")

        run.progress = saw
        yield


class StudyDisplay:
    """One bar for all rollouts of a study, read from the stores, and a line for each run that goes on."""

    def __init__(self, study: StudyConfig, jobs: Sequence[Job], console: Console) -> None:
        self._sizes = {job: study.config(job.arm, job.seed) for job in jobs}
        self._counts = {job: self._done(job) for job in jobs}
        self._watched: Sequence[Job] = ()
        self._pace = Pace(sum(self._size(job) for job in jobs), sum(self._counts.values()))
        self._progress = Progress(*_columns("rollouts"), console=console, refresh_per_second=1)
        self._bar = self._progress.add_task("starting", total=self._pace.total, rate="", left="")
        self._interactive = console.is_terminal
        self._console = console
        self._said = 0.0

    def __enter__(self) -> StudyDisplay:
        if self._interactive:
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._progress.stop()

    def watch(self, running: Sequence[Job]) -> None:
        for job in {*self._watched, *running}:  # what ended since the last look is counted once more
            self._counts[job] = self._done(job)
        self._watched = list(running)
        self._pace.advance(sum(self._counts.values()))
        names = ", ".join(f"{job.arm} (seed {job.seed}) step {_steps(job)}" for job in running)
        self._progress.update(
            self._bar,
            completed=self._pace.done,
            description=names,
            rate=f"{self._pace.per_s:.0f}/s",
            left=self._pace.left,
        )
        if not self._interactive and time.monotonic() - self._said > 30:
            self._said = time.monotonic()
            done = f"{self._pace.done}/{self._pace.total} rollouts, {self._pace.per_s:.0f}/s, {self._pace.left}"
            self._console.print(f"{names}: {done}")

    def _size(self, job: Job) -> int:
        config = self._sizes[job]
        return config.steps * config.batch_size * config.group_size + cells_of(config)

    def _done(self, job: Job) -> int:
        config = self._sizes[job]
        with RunStore.open(job.path, read_only=True) as store:
            cells = sum(found.num_cells for found in store.evaluations() if found.label == "final")
            return store.num_steps() * config.batch_size * config.group_size + cells


def _steps(job: Job) -> int:
    with RunStore.open(job.path, read_only=True) as store:
        return store.num_steps()
