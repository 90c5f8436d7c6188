"""What every algorithm is to the story, and the settings that algorithms share.

An algorithm gives credit twice. `credit` is pure: it turns call trees into weighted samples. `appraise` then asks the
policy what its weights, before they are updated, say of those samples; an algorithm that asks nothing returns them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal, Protocol

from pydantic import Field

from whippletree.policy.base import Loss, Policy
from whippletree.types import CallKind, Floats, Group, Sample

START = "start"

ClipLow = Annotated[float, Field(gt=0, lt=1, description="Ratios below 1 - clip_low gain nothing.")]
ClipHigh = Annotated[float, Field(gt=0, description="Ratios above 1 + clip_high gain nothing.")]
Correction = Annotated[
    float,
    Field(
        ge=0,
        description="A token's loss is multiplied by the trainer's probability over the sampler's, at most this; 0: "
        "it is not, and the ratio that is clipped is taken to the sampler.",
    ),
]
KL = Annotated[float, Field(ge=0, description="Weight of the divergence from the reference (k3); 0 keeps none.")]
Reference = Annotated[
    str, Field(min_length=1, description="`start`: the policy at the start of the run; or another model's path.")
]
NormaliseStd = Annotated[bool, Field(description="Divide advantages by the group's standard deviation (population).")]
NegativeWeight = Annotated[
    float, Field(ge=0, description="Factor of negative advantages; below 1 a small model unlearns less.")
]
Kinds = Annotated[tuple[CallKind, ...], Field(min_length=1, description="Kinds of model calls that are trained.")]
MaxLeaves = Annotated[
    int, Field(ge=1, description="Leaves of a rollout's call tree, dead ones included; with more it is left out.")
]
Weighting = Literal["rollout", "token"]


@dataclass(frozen=True, slots=True)
class Credit:
    samples: list[Sample]
    metrics: dict[str, float]
    problems: tuple[str, ...] = ()
    """What was wrong with the input and is left out, in words."""


class Algorithm(Protocol):
    def attach(self, policy: Policy) -> None:
        """Have the policy keep what will be asked of it: once, as a run opens, before weights are loaded."""
        ...

    def credit(self, groups: Sequence[Group]) -> Credit:
        """Call trees to weighted samples."""
        ...

    async def appraise(self, policy: Policy, credit: Credit) -> Credit:
        """Add what only the policy can tell, by its weights before the update."""
        ...

    def loss(self, step: int) -> Loss:
        """What a step minimises."""
        ...


def keep_reference(policy: Policy, kl: float, reference: str) -> None:
    if kl:
        policy.keep_reference(None if reference == START else reference)


def with_columns(samples: Sequence[Sample], columns: Mapping[str, Sequence[Floats]]) -> list[Sample]:
    """Each sample with its own array of each column."""
    return [
        replace(sample, columns={**sample.columns, **{name: arrays[index] for name, arrays in columns.items()}})
        for index, sample in enumerate(samples)
    ]
