"""Faults that trainers of agents have had when one rollout becomes several rows, each turned into a test."""

import asyncio

import numpy as np
import pytest
import torch
from trees import groups_of, segments, turns

from whippletree.algorithms.grpo import GRPO
from whippletree.algorithms.ppo import PPO
from whippletree.policy.base import TokenBatch
from whippletree.types import Assignment, Group, ModelCall, Reward, Rollout, StopReason, Task


class Expects:
    """A critic that expects the same everywhere."""

    def __init__(self, value):
        self.value = np.float32(value)

    async def score(self, samples, by):
        return [(sample.weights > 0) * self.value for sample in samples]


def group(*rollouts, task="t"):
    return (task, "h", rollouts)


def pushes(credit, loss):
    """Per rollout the sum of the sizes of the gradient on its tokens, as the loss gives it row by row."""
    found = {}
    for sample in credit.samples:
        at = sample.weights > 0
        columns = {name: torch.from_numpy(array[at]) for name, array in sample.columns.items()}
        logprobs = torch.from_numpy(sample.rollout_logprobs[at]).requires_grad_()
        ones = torch.ones_like(logprobs)
        given = [torch.from_numpy(array[at]) for array in (sample.rollout_logprobs, sample.advantages, sample.weights)]
        value, _ = loss(TokenBatch(logprobs, ones, *given, values_N=ones.clone().requires_grad_(), columns_N=columns))
        value.backward()
        found[sample.rollout_id] = found.get(sample.rollout_id, 0.0) + logprobs.grad.abs().sum().item()
    return found


def advantages(credit):
    """Per rollout the advantages of its trained tokens."""
    found = {}
    for sample in credit.samples:
        found.setdefault(sample.rollout_id, []).extend(sample.advantages[sample.weights > 0].tolist())
    return found


def ppo_credit(groups, value=0.5):
    algorithm = PPO()
    return asyncio.run(algorithm.appraise(Expects(value), algorithm.credit(groups)))


@pytest.mark.parametrize("pieces", [turns(12), segments(3, 3, 3, 3), segments(*[1] * 12), segments(6, 6)])
def test_a_rollout_does_not_pull_harder_for_being_cut_into_more_rows(pieces):
    groups = groups_of([group((1.0, pieces), (0.0, turns(4)))])
    grpo, ppo = GRPO(), PPO()
    assert pushes(grpo.credit(groups), grpo.loss(0)) == pytest.approx({"0/0": 0.5, "0/1": 0.5}, rel=1e-4)
    assert pushes(ppo_credit(groups), ppo.loss(9)) == pytest.approx({"0/0": 0.25, "0/1": 0.25}, rel=1e-4)


def test_rows_with_common_turns_do_not_train_them_once_each():
    shared = [(0, "restart", 6, "main"), *[(0, "continue", 1, "main")] * 4]
    groups = groups_of([group((1.0, shared), (0.0, turns(10)))])
    credit = GRPO().credit(groups)
    rows = [sample for sample in credit.samples if sample.rollout_id == "0/0"]
    assert [int((sample.weights > 0).sum()) for sample in rows] == [7, 1, 1, 1]
    assert pushes(credit, GRPO().loss(0)) == pytest.approx({"0/0": 0.5, "0/1": 0.5}, rel=1e-4)


def test_uneven_numbers_of_rows_do_not_mix_the_baselines_of_groups():
    """Groups told from the number of rows become one group as soon as a rollout has two."""
    groups = groups_of(
        [
            group((1.0, segments(2, 2, 2)), (0.0, turns(3)), task="t"),
            group((0.5, turns(2)), (0.5, segments(1, 1)), (None, turns(1)), task="u"),
        ]
    )
    found = advantages(GRPO(normalise_std=False, keep_flat=True).credit(groups))
    assert found == {"0/0": [0.5] * 6, "0/1": [-0.5] * 3, "1/0": [0.0] * 2, "1/1": [0.0] * 2}


def test_a_rollout_of_many_rows_counts_once_in_mean_and_deviation():
    groups = groups_of([group((1.0, segments(*[1] * 9)), (0.0, turns(1)), (0.0, turns(1)))])
    found = advantages(GRPO().credit(groups))
    scores = np.array([1.0, 0.0, 0.0])
    for name, expected in zip(("0/0", "0/1", "0/2"), (scores - scores.mean()) / scores.std(), strict=True):
        assert found[name] == pytest.approx([expected] * len(found[name]), rel=1e-4)


def test_rollouts_of_one_task_are_compared_and_not_each_a_group_of_its_own():
    """Grouped by rollout instead of by task, what failed would not be pushed down at all."""
    groups = groups_of([group((1.0, turns(2)), (0.0, turns(2)), (1.0, turns(2)), (0.0, turns(2)))])
    found = advantages(GRPO(normalise_std=False).credit(groups))
    assert {name: set(values) for name, values in found.items()} == {
        "0/0": {0.5}, "0/1": {-0.5}, "0/2": {0.5}, "0/3": {-0.5}
    }  # fmt: skip


def test_whether_a_group_is_flat_is_judged_by_rollouts_and_not_by_rows():
    """One rollout of several rows is no group, and a lone survivor's rows are not compared with each other."""
    lone = groups_of([group((1.0, segments(2, 2, 2)), (None, turns(2)))])
    assert GRPO().credit(lone).metrics["groups/dropped"] == 1.0
    equal = groups_of([group((0.5, segments(2, 2)), (0.5, turns(1)))])
    assert GRPO().credit(equal).metrics["groups/flat"] == 1.0


def test_every_segment_gets_the_advantage_on_its_own_tokens():
    """Spread from the last row with that row's places, it would miss the tokens of the rows before."""
    pieces = [(0, "restart", 5, "main"), (0, "restart", 1, "main"), (0, "restart", 3, "main")]
    for credit in (
        GRPO(normalise_std=False).credit(groups_of([group((1.0, pieces), (0.0, turns(1)))])),
        ppo_credit(groups_of([group((1.0, pieces))])),
    ):
        for sample in credit.samples:
            if sample.rollout_id == "0/0":
                assert (sample.advantages == np.float32(0.5) * (sample.weights > 0)).all()
        assert advantages(credit)["0/0"] == [0.5] * 9


def test_a_turn_kept_in_a_rewritten_history_is_not_trained_with_the_logprob_of_another_prefix():
    def call(index, prompt, answer, logprob):
        logprobs = np.full(len(answer), logprob, np.float32)
        return ModelCall(index, "main", np.array(prompt), np.array(answer), logprobs, 0, "stop")

    before, after = call(0, [1, 2], [7, 8], -1.0), call(1, [5, 7, 8, 6], [9], -3.0)
    plain = call(0, [1, 2], [4], -2.0)
    rollouts = tuple(
        Rollout(name, "t", "k", "h", 0, "train", calls, Reward(reward), StopReason.FINISHED)
        for name, calls, reward in (("cut", (before, after), 1.0), ("plain", (plain,), 0.0))
    )
    groups = [Group(Assignment(0, Task("t", "s", "train", "k", 1, "do"), "h", 2), rollouts)]
    for credit in (GRPO().credit(groups), ppo_credit(groups)):
        kept = next(sample for sample in credit.samples if sample.ids.tolist() == [5, 7, 8, 6, 9])
        assert (kept.weights > 0).tolist() == [False, False, False, False, True]
        assert kept.rollout_logprobs.tolist() == [0, 0, 0, 0, -3.0]
        assert kept.advantages[:4].tolist() == [0] * 4
