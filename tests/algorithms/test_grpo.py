import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from whippletree.algorithms.grpo import GRPO
from whippletree.policy.base import TokenBatch
from whippletree.types import Assignment, Group, ModelCall, Reward, Rollout, StopReason, Task

TASK = Task("t", "test", "train", "kind", 1, "do it")
REWARDS = st.sampled_from([0.0, 0.25, 0.5, 1.0]) | st.none()
"""None: infrastructure failed."""
GROUPS = st.lists(st.lists(st.tuples(REWARDS, st.lists(st.integers(1, 5), max_size=3)), max_size=5), max_size=4)
"""Per group and rollout the reward, and the length of each answer."""


def rollout_of(name, reward, lengths, rng):
    """A conversation of calls that continue each other; ids are unique so that no two tokens can be mistaken."""
    calls, context = [], rng.integers(0, 100, 4)
    for index, length in enumerate(lengths):
        ids, logprobs = rng.integers(100, 10**9, length), -rng.random(length).astype(np.float32)
        calls.append(ModelCall(index, "main", context, ids, logprobs, policy_version=0, finish_reason="stop"))
        context = np.concatenate([context, ids, rng.integers(0, 100, 3)])
    graded = None if reward is None else Reward(reward)
    stop = StopReason.ERROR if reward is None else StopReason.FINISHED
    error = "broken" if reward is None else None
    return Rollout(name, "t", "kind", "h", 0, "train", tuple(calls), graded, stop, error)


def groups_of(described):
    rng = np.random.default_rng(0)
    return [
        Group(
            Assignment(0, TASK, "h", max(1, len(rollouts))),
            tuple(rollout_of(f"{g}/{r}", reward, lengths, rng) for r, (reward, lengths) in enumerate(rollouts)),
        )
        for g, rollouts in enumerate(described)
    ]


def reference(groups, *, normalise_std=True):
    """Sampled token -> (weight, advantage, rollout logprob) by ClawGym II, equations 5 to 7, in double precision."""
    usable = [[r for r in group.rollouts if r.reward is not None] for group in groups]
    usable = [rollouts for rollouts in usable if len(rollouts) >= 2]
    expected = {}
    for rollouts in usable:
        rewards = np.array([r.reward.value for r in rollouts], dtype=np.float64)
        scale = np.sqrt(((rewards - rewards.mean()) ** 2).mean()) + 1e-6 if normalise_std else 1.0
        for rollout, advantage in zip(rollouts, (rewards - rewards.mean()) / scale, strict=True):
            count = sum(len(call.completion_ids) for call in rollout.calls)
            for call in rollout.calls:
                for token, logprob in zip(call.completion_ids.tolist(), call.logprobs.tolist(), strict=True):
                    if rewards.min() < rewards.max():
                        expected[token] = (1 / (len(usable) * len(rollouts) * count), advantage, logprob)
    return expected


def credited(samples):
    return {
        int(sample.ids[t]): (sample.weights[t], sample.advantages[t], sample.rollout_logprobs[t])
        for sample in samples
        for t in np.flatnonzero(sample.weights)
    }


@settings(deadline=None)
@given(GROUPS, st.booleans())
def test_credit_is_its_formula(described, normalise_std):
    groups = groups_of(described)
    found = credited(GRPO(normalise_std=normalise_std).credit(groups).samples)
    expected = reference(groups, normalise_std=normalise_std)
    assert found.keys() == expected.keys()
    for token, values in expected.items():
        assert found[token] == pytest.approx(values, rel=1e-5, abs=1e-6)


@settings(deadline=None)
@given(GROUPS)
def test_the_loss_over_the_batch_is_its_formula(described):
    groups = groups_of(described)
    algorithm = GRPO(clip_low=0.2, clip_high=0.28)
    columns = list(credited(algorithm.credit(groups).samples).values())
    weights, advantages, old = np.array(columns, dtype=np.float32).reshape(-1, 3).T
    moved = np.random.default_rng(1).normal(0, 0.3, len(columns)).astype(np.float32)
    as_tensor = [torch.from_numpy(array.copy()) for array in (old + moved, old, old, advantages, weights)]
    loss, _ = algorithm.loss(TokenBatch(*as_tensor))
    expected = np.array(list(reference(groups).values()), dtype=np.float64).reshape(-1, 3)
    ratio = np.exp(moved.astype(np.float64))
    gains = np.minimum(ratio * expected[:, 1], np.clip(ratio, 0.8, 1.28) * expected[:, 1])
    assert loss.item() == pytest.approx(-(expected[:, 0] * gains).sum(), abs=1e-5)


@settings(deadline=None)
@given(st.lists(st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=3), max_size=4), min_size=1, max_size=4))
def test_weights_sum_to_one_where_every_group_has_signal(lengths):
    described = [[(1.0, [2]), (0.0, [3, 1]), *((0.5, answers) for answers in more)] for more in lengths]
    credit = GRPO().credit(groups_of(described))
    assert sum(sample.weights.sum() for sample in credit.samples) == pytest.approx(1.0, rel=1e-5)
    assert credit.metrics["groups/with_signal"] == 1.0
    per_rollout = {}
    for sample in credit.samples:
        group = sample.rollout_id.split("/")[0]
        per_rollout.setdefault(group, {}).setdefault(sample.rollout_id, []).append(sample.weights.sum())
    for rollouts in per_rollout.values():  # a long rollout counts as much as a short one
        sums = [sum(parts) for parts in rollouts.values()]
        assert sums == pytest.approx([sums[0]] * len(sums), rel=1e-5)


def test_a_group_without_signal_counts_in_the_mean_but_gives_no_samples():
    mixed, equal = [(1.0, [2]), (0.0, [2])], [(0.5, [2]), (0.5, [4])]
    credit = GRPO().credit(groups_of([mixed, equal]))
    assert {sample.rollout_id for sample in credit.samples} == {"0/0", "0/1"}
    assert sum(sample.weights.sum() for sample in credit.samples) == pytest.approx(0.5)
    assert credit.metrics["groups/with_signal"] == 0.5
    assert credit.metrics["groups/dropped"] == 0.0


def test_a_group_with_fewer_than_two_graded_rollouts_is_dropped():
    mixed, lone = [(1.0, [2]), (0.0, [2]), (None, [2])], [(1.0, [2]), (None, [3]), (None, [])]
    credit = GRPO().credit(groups_of([lone, mixed, [(None, [1])]]))
    assert {sample.rollout_id for sample in credit.samples} == {"1/0", "1/1"}
    assert sum(sample.weights.sum() for sample in credit.samples) == pytest.approx(1.0)
    assert credit.metrics["groups/dropped"] == 2.0
    assert credit.metrics["groups/with_signal"] == 1.0


def test_nothing_usable_gives_nothing():
    for described in ([], [[]], [[(None, [1]), (1.0, [2])]]):
        credit = GRPO().credit(groups_of(described))
        assert credit.samples == []
        assert credit.metrics["groups/with_signal"] == 0.0


@given(st.lists(st.floats(0, 1), min_size=2, max_size=16))
def test_advantages_are_centred_and_of_unit_size(rewards):
    found = GRPO().advantages(np.array(rewards))
    assert abs(found.mean()) < 1e-6
    assert found.std() <= 1 + 1e-9
    if np.std(rewards) > 1e-3:
        assert found.std() == pytest.approx(1.0, abs=2e-3)


def test_the_settings_are_checked():
    for wrong in ({"clip_low": 1.0}, {"clip_low": 0.0}, {"clip_high": 0.0}, {"clip": 0.2}):
        with pytest.raises(ValidationError):
            GRPO(**wrong)
