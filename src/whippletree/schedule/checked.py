"""A look at what a schedule assigns, before it costs a rollout.

Invariant: what passes can be rolled out by the run that the plan belongs to, and is stored under its own step.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from whippletree.errors import ScheduleError
from whippletree.schedule.base import Plan, Scheduler
from whippletree.types import Assignment, Floats, Group, Json


@dataclass(frozen=True, slots=True)
class Checked:
    """A scheduler whose assignments are looked at."""

    scheduler: Scheduler
    plan: Plan

    @property
    def sketch_size(self) -> int:
        return self.scheduler.sketch_size

    def assign(self, step: int) -> list[Assignment]:
        """Raises ScheduleError for a step without assignments, and for one that this run cannot roll out."""
        assignments = self.scheduler.assign(step)
        if not assignments:
            raise ScheduleError(f"the schedule assigns nothing to step {step}; a step needs at least one group")
        for assignment in assignments:
            if problem := self._problem(step, assignment):
                raise ScheduleError(f"the schedule's assignment of '{assignment.task.id}' in step {step}: {problem}")
        return assignments

    def _problem(self, step: int, assignment: Assignment) -> str | None:
        if assignment.harness not in self.plan.harnesses:
            near = difflib.get_close_matches(assignment.harness, self.plan.harnesses, n=3, cutoff=0.0)
            return (
                f"harness '{assignment.harness}' is not in the training set of {len(self.plan.harnesses)} "
                f"(among them {', '.join(near)}); take it from plan.harnesses, or add it to harnesses.train"
            )
        if assignment.step != step:
            return f"its step is {assignment.step}; give it the step that was asked for"
        if assignment.num_rollouts < 1:
            return f"num_rollouts is {assignment.num_rollouts}, expected 1 or more; plan.group_size is usual"
        return None

    def observe(self, step: int, groups: Sequence[Group], metrics: Mapping[str, float], sketch: Floats) -> None:
        self.scheduler.observe(step, groups, metrics, sketch)

    def state(self) -> Json:
        return self.scheduler.state()

    def restore(self, state: Json) -> None:
        self.scheduler.restore(state)
