import asyncio
from functools import partial

import numpy as np
import pytest
import reference
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from trees import GROUPS, groups_of, on_tokens, segments, turns

from whippletree.algorithms.ppo import PPO
from whippletree.policy.base import TokenBatch


class Critic:
    """A value for every token, by its id."""

    def __init__(self, value):
        self.value, self.added = value, []

    def add_critic(self, kind, *, lr):
        self.added.append((kind, lr))

    async def score(self, samples, by):
        assert by == "critic"
        return [np.array([self.value(i) for i in sample.ids], np.float32) * (sample.weights > 0) for sample in samples]


def arbitrary(token):
    return float(np.float32(np.sin(token)))


def appraised(algorithm, groups, value=arbitrary):
    return asyncio.run(algorithm.appraise(Critic(value), algorithm.credit(groups)))


def lone(*rollouts):
    """One rollout per task."""
    return groups_of([(f"t{i}", "h", [rollout]) for i, rollout in enumerate(rollouts)])


class Values(dict):
    def __missing__(self, token):
        return arbitrary(token)


@settings(max_examples=200)
@given(GROUPS, st.sampled_from([1.0, 0.9]), st.sampled_from([1.0, 0.95, 0.0]), st.sampled_from(["rollout", "token"]))
def test_credit_is_its_formula(described, gamma, gae_lambda, weighting):
    groups, chosen = groups_of(described), {"gamma": gamma, "gae_lambda": gae_lambda, "weighting": weighting}
    found = on_tokens(appraised(PPO(**chosen), groups).samples, "returns", "values")
    expected = reference.ppo(groups, Values(), **chosen)
    assert found.keys() == expected.keys()
    for token, (weight, advantage, target) in expected.items():
        by_product = (found[token][0], found[token][1], found[token][3])
        assert by_product == pytest.approx((weight, advantage, target), rel=1e-5, abs=1e-5)
        assert found[token][4] == arbitrary(token)


@given(GROUPS)
def test_without_discount_the_advantage_is_exactly_the_reward_less_the_value(described):
    groups = groups_of(described)
    rewards = {rollout.id: rollout.reward.value for group in groups for rollout in group.graded}
    for sample in appraised(PPO(), groups).samples:
        trained = sample.weights > 0
        values = np.array([arbitrary(token) for token in sample.ids[trained]], np.float32)
        np.testing.assert_array_equal(sample.advantages[trained], np.float32(rewards[sample.rollout_id]) - values)
        np.testing.assert_array_equal(sample.columns["returns"][trained], np.float32(rewards[sample.rollout_id]))


def test_what_a_harness_puts_between_two_turns_is_no_step():
    """Read as one long sequence of states, each tool result would cost the value of the turn after it."""
    one_turn, two_turns = turns(4), turns(2, 2)
    for gae_lambda in (1.0, 0.9, 0.0):
        algorithm = PPO(gae_lambda=gae_lambda)
        first, second = (
            [
                values[1]
                for values in on_tokens(appraised(algorithm, lone((1.0, calls)), lambda _: 0.25).samples).values()
            ]
            for calls in (one_turn, two_turns)
        )
        assert first == second


def test_a_shared_prefix_is_counted_once_and_on_its_first_branch():
    forked = [(0, "restart", 2, "main"), (0, "continue", 1, "main"), (0, "continue", 3, "main")]
    samples = appraised(PPO(), lone((1.0, forked)), lambda _: 0.5).samples
    assert [int((sample.weights > 0).sum()) for sample in samples] == [3, 3]
    assert sum(float(sample.weights.sum()) for sample in samples) == pytest.approx(1.0)
    assert [sample.columns["rewards"].sum() for sample in samples] == [1.0, 1.0]  # each branch ends with the reward


def test_one_rollout_per_task_is_enough_and_rollouts_count_alike():
    credit = appraised(PPO(), lone((1.0, turns(2)), (0.0, segments(3, 4)), (None, turns(1))))
    weights = {}
    for sample in credit.samples:
        weights[sample.rollout_id] = weights.get(sample.rollout_id, 0.0) + float(sample.weights.sum())
    assert weights == pytest.approx({"0/0": 0.5, "1/0": 0.5})


def test_a_reward_that_is_no_number_enters_nothing_and_is_named():
    credit = appraised(PPO(), lone((1.0, turns(2)), (float("nan"), turns(3))))
    assert {sample.rollout_id for sample in credit.samples} == {"0/0"}
    assert float(credit.samples[0].weights.sum()) == pytest.approx(1.0)
    assert credit.problems[0].startswith("rollout '1/0' has the reward nan")
    assert credit.metrics["rollouts/no_number"] == 1.0


def test_nothing_usable_gives_nothing():
    for groups in ([], lone((None, turns(2))), lone((1.0, turns(0)))):
        for whiten in (False, True):
            assert appraised(PPO(whiten=whiten), groups).samples == []


@given(GROUPS)
def test_whitened_advantages_have_mean_0_and_deviation_1(described):
    found = list(on_tokens(appraised(PPO(whiten=True), groups_of(described)).samples).values())
    if len(found) > 1:
        weights, advantages, _ = np.array(found).T
        assert np.average(advantages, weights=weights) == pytest.approx(0, abs=1e-4)
        assert np.average(advantages**2, weights=weights) == pytest.approx(1, rel=1e-3)


def test_negative_advantages_can_weigh_less():
    plain, softened = (
        appraised(PPO(negative_weight=weight), lone((1.0, turns(2)), (0.0, turns(2))), lambda _: 0.5).samples
        for weight in (1.0, 0.25)
    )
    assert [set(s.advantages[s.weights > 0]) for s in plain] == [{0.5}, {-0.5}]
    assert [set(s.advantages[s.weights > 0]) for s in softened] == [{0.5}, {-0.125}]


def test_the_metrics_say_how_much_the_values_explain():
    groups = lone((1.0, turns(2)), (0.0, turns(2)))
    right = {int(t): r.reward.value for g in groups for r in g.rollouts for c in r.calls for t in c.completion_ids}
    for value, mean, explained in ((lambda token: right.get(token, 0.0), 0.5, 1.0), (lambda _: 0.25, 0.25, 0.0)):
        metrics = appraised(PPO(), groups, value).metrics
        assert (metrics["value/mean"], metrics["value/explained"]) == pytest.approx((mean, explained))
    assert appraised(PPO(), lone((1.0, turns(2)))).metrics["value/explained"] == 0.0


def test_the_first_steps_are_the_critics_alone():
    algorithm = PPO(value_steps=2, kl=0.1)

    def moved(step):
        logprobs, values = (torch.linspace(-2, -1, 4).requires_grad_() for _ in range(2))
        fixed = partial(torch.full, (4,))
        columns = {"reference": fixed(-1.0), "values": fixed(0.0), "returns": fixed(1.0)}
        batch = TokenBatch(logprobs, fixed(1.0), fixed(-1.5), fixed(0.5), fixed(0.25), values, columns)
        loss, statistics = algorithm.loss(step)(batch)
        loss.backward()
        return logprobs.grad is not None, values.grad is not None, statistics.keys()

    first, second, third = map(moved, (0, 1, 2))
    assert first[:2] == second[:2] == (False, True)
    assert third[:2] == (True, True)
    assert first[2] == third[2] >= {"loss", "value_loss", "kl", "entropy", "correction_max"}


def test_the_policy_gets_its_critic_as_a_run_opens():
    policy = Critic(arbitrary)
    PPO(critic="head", critic_lr=1e-2).attach(policy)
    assert policy.added == [("head", 1e-2)]


def test_the_settings_are_checked():
    wrong = ({"gamma": 0}, {"gamma": 1.1}, {"gae_lambda": -0.1}, {"critic": "none"}, {"critic_lr": 0},
             {"value_steps": -1}, {"value_clip": -1}, {"weighting": "sequence"}, {"grouping": "task"})  # fmt: skip
    for each in wrong:
        with pytest.raises(ValidationError):
            PPO(**each)
