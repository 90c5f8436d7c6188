"""Harness-RL: which tool to use and with what arguments are two decisions, each with a loss of its own.

Known of the method (arXiv 2608.29641, by its notes): of a multi-agent harness the central agent alone is trained; the
clipped surrogates of action tokens and of argument tokens are averaged separately; a token's advantage is that of its
rollout's outcome within the group, plus a little of that of its call's process reward among the calls at the same
place of the group's other rollouts (0.1, and 0.25 of the units below, are a reimplementer's); and with CAPO each of
the two losses changes only the hidden units that its tokens use (`policy.units`). Inferred here: a call's process
reward is 1 where its message could be read and was not cut off, else 0; a call's place is its number among the
rollout's calls of its kind; and the average over a part takes rollouts alike, as everywhere in this package, unless
`weighting` says otherwise.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Literal, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, model_validator
from torch import Tensor

from whippletree.algorithms import base
from whippletree.algorithms.advantages import group_advantages, softened
from whippletree.algorithms.base import Credit, keep_reference, with_columns
from whippletree.algorithms.losses import of_tokens, policy_loss
from whippletree.algorithms.pools import Grouping, Pool, comparable, pools, scored
from whippletree.algorithms.weights import sample_metrics
from whippletree.policy.base import Loss, Policy, TokenBatch, add_statistics
from whippletree.trajectory.filters import TreeFilter
from whippletree.trajectory.samples import rollout_samples
from whippletree.types import Group, ModelCall, Rollout, Sample

Weight = Annotated[float, Field(ge=0)]


class HarnessRL(BaseModel):
    """GRPO with separate losses for the choice of tools and for their arguments, each with hidden units of its own."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    type: Literal["harness-rl"] = "harness-rl"
    clip_low: base.ClipLow = 0.2
    clip_high: base.ClipHigh = 0.28
    correction: base.Correction = 2.0
    kl: base.KL = 0.0
    reference: base.Reference = base.START
    grouping: Annotated[Grouping, Field(description="Which rollouts are compared, as in grpo.")] = "task_harness"
    normalise_std: base.NormaliseStd = True
    negative_weight: base.NegativeWeight = 1.0
    weighting: Annotated[base.Weighting, Field(description="Rollouts count alike, or tokens; in each part.")] = (
        "rollout"
    )
    action_weight: Annotated[Weight, Field(description="Of the loss of tokens that choose a tool.")] = 1.0
    argument_weight: Annotated[Weight, Field(description="Of the loss of tokens that are arguments.")] = 1.0
    other_weight: Annotated[Weight, Field(description="Of the loss of all other sampled tokens.")] = 0.0
    process_weight: Annotated[
        Weight, Field(description="Of a call's own advantage: whether its message could be read, against its siblings.")
    ] = 0.1
    neurons: Annotated[
        float,
        Field(
            ge=0,
            le=1,
            description="Share of the hidden units of each layer that a part's loss may change, nothing else being "
            "trained (CAPO); 0: each loss changes everything.",
        ),
    ] = 0.25
    probe_tokens: Annotated[
        int, Field(ge=1, description="Tokens of each part, in rollouts that passed, by which its units are chosen.")
    ] = 128
    kinds: base.Kinds = ("main",)
    max_leaves: base.MaxLeaves = 16

    @model_validator(mode="after")
    def _something_is_trained(self) -> Self:
        if not self.weights:
            raise ValueError(
                "action_weight, argument_weight and other_weight are all 0, so that nothing would be trained; "
                "set one of them above 0"
            )
        return self

    @property
    def weights(self) -> dict[str, float]:
        """Part -> weight of its loss, where it has one."""
        every = {"action": self.action_weight, "argument": self.argument_weight, "other": self.other_weight}
        return {part: weight for part, weight in every.items() if weight}

    def attach(self, policy: Policy) -> None:
        keep_reference(policy, self.kl, self.reference)
        if self.neurons:
            policy.keep_units(tuple(self.weights), share=self.neurons, tokens=self.probe_tokens)

    def credit(self, groups: Sequence[Group]) -> Credit:
        """Turn graded groups into samples; over the batch the weights of each part sum to the weight of its loss.

        As in GRPO a group with fewer than two graded rollouts is dropped, and one without any signal counts in the
        denominators alone. So do rollouts that have no token of a part.
        """
        rollouts, problems = scored(groups)
        usable, compared = comparable(pools(rollouts, self.grouping))
        entries = [entry for pool in usable for entry in self._entries(pool, 1.0 / (len(usable) * len(pool.rollouts)))]
        totals, stats = Counter[str](), Counter[str]()
        for entry in entries:
            totals.update(entry.num_tokens)
            stats.update(entry.stats if entry.trained else {})
        samples = [sample for entry in entries if entry.trained for sample in self._weighed(entry, totals)]
        metrics = {
            **compared,
            "rollouts/no_number": float(len(problems)),
            **sample_metrics(stats),
        }
        return Credit(samples, metrics, problems)

    def _entries(self, pool: Pool, share: float) -> list[_Entry]:
        outcome = group_advantages(pool.scores, normalise_std=self.normalise_std) * (not pool.flat)
        process = process_advantages(pool.rollouts, self.kinds, normalise_std=self.normalise_std)
        trained = not pool.flat or (self.process_weight > 0 and any(any(own.values()) for own in process))
        tree_filter = TreeFilter(self.kinds, self.max_leaves)
        entries: list[_Entry] = []
        for rollout, gained, own in zip(pool.rollouts, outcome, process, strict=True):
            samples, stats = rollout_samples(rollout, tree_filter)
            passed = [np.full(len(sample.ids), rollout.passed, np.float32) for sample in samples]
            other = [1.0 - sample.columns["action"] - sample.columns["argument"] for sample in samples]
            samples = with_columns(samples, {"passed": passed, "other": other})
            calls = {index: float(gained + self.process_weight * each) for index, each in own.items()}
            entries.append(_Entry(samples, stats, calls, share, trained, _num_tokens(samples)))
        return entries

    def _weighed(self, entry: _Entry, totals: Mapping[str, int]) -> list[Sample]:
        """The samples with the weights of their parts and the advantages of their calls, less what is not trained."""
        found: list[Sample] = []
        for sample in entry.samples:
            trained = sample.weights > 0
            weights = np.zeros(len(sample.ids), np.float64)
            for part, weight in self.weights.items():
                marked = trained & (sample.columns[part] > 0)
                alike, each = entry.share / max(1, entry.num_tokens[part]), 1.0 / max(1, totals[part])
                weights[marked] = weight * (each if self.weighting == "token" else alike)
            advantages = np.zeros(len(sample.ids), np.float64)
            advantages[trained] = [entry.advantages[int(call)] for call in sample.columns["call"][trained]]
            advantages = softened(advantages * (weights > 0), self.negative_weight)
            if weights.any():
                found.append(
                    replace(sample, weights=weights.astype(np.float32), advantages=advantages.astype(np.float32))
                )
        return found

    async def appraise(self, policy: Policy, credit: Credit) -> Credit:
        samples, metrics = credit.samples, credit.metrics
        if self.kl:
            samples = with_columns(samples, {"reference": await policy.score(samples, "reference")})
        if self.neurons:
            passed = [sample for sample in samples if sample.columns["passed"].any()]
            metrics = metrics | await policy.probe_units(passed)
        return Credit(samples, metrics, credit.problems)

    def loss(self, step: int) -> Loss:
        return self._losses

    def _losses(self, batch: TokenBatch) -> tuple[dict[str, Tensor], dict[str, float]]:
        terms: dict[str, Tensor] = {}
        totals: dict[str, float] = {}
        for part in self.weights:
            terms[part], statistics = policy_loss(
                of_tokens(batch, batch.columns_N[part] > 0),
                clip_low=self.clip_low,
                clip_high=self.clip_high,
                correction=self.correction,
                kl=self.kl,
            )
            add_statistics(totals, statistics | {f"{part}_loss": statistics["loss"]})
        return terms, totals


@dataclass(frozen=True, slots=True)
class _Entry:
    """One rollout of a pool."""

    samples: list[Sample]
    stats: Counter[str]
    advantages: Mapping[int, float]
    """By the index of the call."""
    share: float
    trained: bool
    num_tokens: Counter[str]
    """Trainable tokens of each part."""


def process_advantages(
    rollouts: Sequence[Rollout], kinds: Sequence[str], *, normalise_std: bool
) -> list[dict[int, float]]:
    """Per rollout, of each call of these kinds by its index: how its process reward compares at its place."""
    places: defaultdict[tuple[str, int], list[tuple[int, ModelCall]]] = defaultdict(list)
    for number, rollout in enumerate(rollouts):
        count: Counter[str] = Counter()
        for call in rollout.calls:
            if call.kind in kinds:
                places[call.kind, count[call.kind]].append((number, call))
                count[call.kind] += 1
    found: list[dict[int, float]] = [{} for _ in rollouts]
    for calls in places.values():
        rewards: NDArray[np.float64] = np.array([process_reward(call) for _, call in calls])
        advantages = group_advantages(rewards, normalise_std=normalise_std)
        for (number, call), advantage in zip(calls, advantages, strict=True):
            found[number][call.index] = float(advantage)
    return found


def process_reward(call: ModelCall) -> float:
    return float(call.parse_error is None and call.finish_reason != "length")


def _num_tokens(samples: Sequence[Sample]) -> Counter[str]:
    found: Counter[str] = Counter()
    for sample in samples:
        for part in ("action", "argument", "other"):
            found[part] += int(((sample.weights > 0) & (sample.columns[part] > 0)).sum())
    return found
