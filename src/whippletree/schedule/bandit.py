"""HarnessBandit: each step in the harness that teaches most, and most that helps in the others.

Invariant: a choice is a function of the seed, the step, and the state; and the state is JSON without loss.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from whippletree.schedule.base import CHOICES, WARM_UP, Plan, Scheduler
from whippletree.types import Assignment, Floats, Group, Json

Vector = NDArray[np.float64]


class Bandit(BaseModel):
    """One harness a step, drawn by what the steps in it were worth (HarnessBandit, arXiv 2609.13739).

    From its abstract: a step's worth joins learnability, the mean size of its advantages, and transferability, the mean
    cosine between the sketch of its gradient and moving averages of the other harnesses' sketches, each on the scale of
    a sliding window that all harnesses share; the draw has a bonus for harnesses seldom visited and an explicit
    floor. Inferred are: a first visit to each harness in shuffled order; the worth as a weighted sum, averaged
    exponentially; the softmax; the form of the bonus; and every default. The first step, and a step without a gradient,
    have no transferability: they are worth their learnability alone.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")
    type: Literal["bandit"] = "bandit"
    learnability: Annotated[
        float, Field(ge=0, le=1, description="Weight of learnability in a step's worth; transferability has the rest.")
    ] = 0.5
    window: Annotated[int, Field(ge=1, description="Steps whose extremes are the scale of both signals.")] = 50
    worth_rate: Annotated[
        float, Field(gt=0, le=1, description="Weight of the newest step in a harness's average worth.")
    ] = 0.3
    sketch_size: Annotated[int, Field(ge=0, description="Numbers that a gradient is reduced to.")] = 256
    sketch_decay: Annotated[
        float, Field(ge=0, lt=1, description="Weight of the older steps in a harness's average sketch.")
    ] = 0.9
    bonus: Annotated[float, Field(ge=0, description="Of harnesses that were seldom visited, in units of worth.")] = 0.5
    temperature: Annotated[
        float, Field(gt=0, description="Differences in worth and bonus that matter to the draw.")
    ] = 0.2
    floor: Annotated[float, Field(ge=0, le=1, description="Share of the steps that is drawn uniformly.")] = 0.1

    def open(self, plan: Plan) -> Scheduler:
        return BanditScheduler(plan, self)


@dataclass
class Memory:
    """All that is learned; kept with every checkpoint."""

    visits: dict[str, int] = field(default_factory=dict[str, int])
    worths: dict[str, float] = field(default_factory=dict[str, float])
    """Moving averages, from 0."""
    sketches: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    """Moving averages of unit vectors, themselves of unit length; of the harnesses that had a gradient."""
    learnabilities: list[float] = field(default_factory=list[float])
    """Of the last steps in whatever harness, oldest first."""
    transferabilities: list[float] = field(default_factory=list[float])


class BanditScheduler:
    """See `Bandit`."""

    def __init__(self, plan: Plan, settings: Bandit) -> None:
        self.plan, self.settings = plan, settings
        self.sketch_size = settings.sketch_size
        self.memory = Memory()

    def assign(self, step: int) -> list[Assignment]:
        harness = self._first_visit(step) or self._drawn(step)
        return [Assignment(step, task, harness, self.plan.group_size) for task in self.plan.batch(step)]

    def _first_visit(self, step: int) -> str | None:
        """By the step and not by what was observed, which may lag behind."""
        order: list[str] = self.plan.rng(WARM_UP).permutation(self.plan.harnesses).tolist()
        return order[step] if step < len(order) else None

    def _drawn(self, step: int) -> str:
        return str(self.plan.rng(CHOICES, step).choice(self.plan.harnesses, p=self.probabilities()))

    def probabilities(self) -> Vector:
        """Of the next draw, in the order of the training set; once every harness was visited.

        One whose first visit is not observed yet counts as worth what the others are, on average.
        """
        settings, memory = self.settings, self.memory
        visits = np.array([memory.visits.get(name, 1) for name in self.plan.harnesses])
        usual = sum(memory.worths.values()) / max(1, len(memory.worths))
        worths = np.array([memory.worths.get(name, usual) for name in self.plan.harnesses])
        scores = worths + settings.bonus * np.sqrt(np.log1p(visits.sum()) / (1 + visits))
        softmax = np.exp((scores - scores.max()) / settings.temperature)
        return settings.floor / len(visits) + (1 - settings.floor) * softmax / softmax.sum()

    def observe(self, step: int, groups: Sequence[Group], metrics: Mapping[str, float], sketch: Floats) -> None:
        settings, memory = self.settings, self.memory
        harness = groups[0].assignment.harness
        worth = scaled(memory.learnabilities, metrics["advantage"], settings.window)
        direction = unit(sketch)
        others = [np.array(average) for name, average in memory.sketches.items() if name != harness]
        if direction is not None and others:  # before its own average moves, which has no part in it
            cosine = float(np.mean([average @ direction for average in others]))
            transfer = scaled(memory.transferabilities, cosine, settings.window)
            worth = settings.learnability * worth + (1 - settings.learnability) * transfer
        if direction is not None:
            before = np.array(memory.sketches.get(harness, direction))
            moved = unit(settings.sketch_decay * before + (1 - settings.sketch_decay) * direction)
            memory.sketches[harness] = (before if moved is None else moved).tolist()
        old = memory.worths.get(harness, 0.0)
        memory.worths[harness] = old + settings.worth_rate * (worth - old)
        memory.visits[harness] = memory.visits.get(harness, 0) + 1

    def state(self) -> Json:
        return asdict(self.memory)

    def restore(self, state: Json) -> None:
        self.memory = Memory(**state)


def scaled(window: list[float], value: float, size: int) -> float:
    """Where the value lies between the extremes of the window that it now joins, 0 to 1; 0.5 where all are equal."""
    window.append(value)
    del window[:-size]
    low, high = min(window), max(window)
    return (value - low) / (high - low) if high > low else 0.5


def unit(vector: NDArray[np.floating]) -> Vector | None:
    """The vector at length 1; None where it has no direction, or is not finite."""
    double = vector.astype(np.float64)
    norm = np.linalg.norm(double)
    return double / norm if 0 < norm < np.inf else None
