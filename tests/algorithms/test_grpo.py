import asyncio

import numpy as np
import pytest
import reference
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from trees import GROUPS, groups_of, on_tokens, segments, turns

from whippletree.algorithms.grpo import GRPO

SETTINGS = st.fixed_dictionaries(
    {
        "grouping": st.sampled_from(["task_harness", "task", "residual"]),
        "weighting": st.sampled_from(["rollout", "token"]),
        "normalise_std": st.booleans(),
        "negative_weight": st.sampled_from([1.0, 0.25]),
        "keep_flat": st.booleans(),
    }
)


def one_task(*groups):
    """Groups of a task each, under one harness, of (reward, lengths of turns)."""
    return groups_of(
        [(f"t{g}", "h", [(reward, turns(*lengths)) for reward, lengths in group]) for g, group in enumerate(groups)]
    )


def weights_of(samples):
    found = {}
    for sample in samples:
        found[sample.rollout_id] = found.get(sample.rollout_id, 0.0) + float(sample.weights.sum())
    return found


@settings(max_examples=200)
@given(GROUPS, SETTINGS)
def test_credit_is_its_formula(described, chosen):
    groups = groups_of(described)
    credit = GRPO(**chosen).credit(groups)
    found, expected = on_tokens(credit.samples), reference.grpo(groups, **chosen)
    assert found.keys() == expected.keys()
    for token, values in expected.items():
        assert found[token][:2] == pytest.approx(values, rel=1e-5, abs=1e-6)
    logprobs = {int(t): float(p) for g in groups for r in g.rollouts for c in r.calls
                for t, p in zip(c.completion_ids, c.logprobs, strict=True)}  # fmt: skip
    assert all(logprobs[token] == logprob for token, (_, _, logprob) in found.items())
    assert credit.problems == ()


@given(st.lists(st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=3), max_size=4), min_size=1, max_size=4))
def test_weights_sum_to_one_where_every_group_has_signal_and_rollouts_count_alike(lengths):
    groups = [[(1.0, [2]), (0.0, [3, 1]), *((0.5, answers) for answers in more)] for more in lengths]
    for weighting in ("rollout", "token"):
        credit = GRPO(weighting=weighting).credit(one_task(*groups))
        assert sum(weights_of(credit.samples).values()) == pytest.approx(1.0, rel=1e-5)
        assert credit.metrics["groups/with_signal"] == 1.0
    weights = weights_of(GRPO().credit(one_task(*groups)).samples)
    for g, group in enumerate(groups):
        shares = [weights[f"{g}/{r}"] for r in range(len(group))]
        assert shares == pytest.approx([1 / (len(groups) * len(group))] * len(group), rel=1e-5)


def test_a_flat_group_counts_in_the_mean_and_is_trained_on_only_if_asked():
    groups = one_task([(1.0, [2]), (0.0, [2])], [(0.5, [2]), (0.5, [4])])
    for weighting in ("rollout", "token"):
        without, kept = (GRPO(weighting=weighting, keep_flat=keep).credit(groups) for keep in (False, True))
        assert {sample.rollout_id for sample in without.samples} == {"0/0", "0/1"}
        assert {sample.rollout_id for sample in kept.samples} == {"0/0", "0/1", "1/0", "1/1"}
        assert all((sample.advantages == 0).all() for sample in kept.samples if sample.rollout_id[0] == "1")
        on_kept = on_tokens(kept.samples)
        assert all(on_kept[token] == values for token, values in on_tokens(without.samples).items())
        for credit in (without, kept):
            assert credit.metrics["groups/flat"] == 1.0
            assert credit.metrics["groups/with_signal"] == 0.5
            assert credit.metrics["groups/dropped"] == 0.0


def test_a_group_with_fewer_than_two_graded_rollouts_is_dropped():
    mixed, lone = [(1.0, [2]), (0.0, [2]), (None, [2])], [(1.0, [2]), (None, [3]), (None, [])]
    credit = GRPO().credit(one_task(lone, mixed, [(None, [1])]))
    assert weights_of(credit.samples) == pytest.approx({"1/0": 0.5, "1/1": 0.5})
    assert credit.metrics["groups/dropped"] == 2.0
    assert credit.metrics["groups/with_signal"] == 1.0


def test_a_rollout_without_sampled_tokens_keeps_its_place_in_the_mean():
    credit = GRPO().credit(one_task([(1.0, [2]), (0.0, []), (0.0, [0])]))
    assert weights_of(credit.samples) == pytest.approx({"0/0": 1 / 3})
    assert credit.metrics["samples/no_trainable_tokens"] == 2.0


@pytest.mark.parametrize("poor", [float("nan"), float("inf")])
def test_a_reward_that_is_no_number_enters_nothing_and_is_named(poor):
    sound = [(1.0, [2]), (0.0, [3])]
    credit = GRPO().credit(one_task([*sound, (poor, [2])], [(poor, [2]), (1.0, [2])]))
    assert weights_of(credit.samples) == pytest.approx({"0/0": 0.5, "0/1": 0.5})
    assert on_tokens(credit.samples).keys() == on_tokens(GRPO().credit(one_task(sound)).samples).keys()
    assert credit.metrics["rollouts/no_number"] == 2.0
    assert credit.metrics["groups/dropped"] == 1.0
    assert [problem.split(" and ")[0] for problem in credit.problems] == [
        f"rollout '{name}' has the reward {poor}" for name in ("0/2", "1/0")
    ]


def test_nothing_usable_gives_nothing():
    for groups in ([], [[]], [[(None, [1]), (1.0, [2])]]):
        credit = GRPO().credit(one_task(*groups))
        assert credit.samples == []
        assert credit.metrics["groups/with_signal"] == 0.0


# ---- what is compared -------------------------------------------------------------------------------------------


def advantages(groups, **chosen):
    samples = GRPO(normalise_std=False, **chosen).credit(groups_of(groups)).samples
    return {sample.rollout_id: float(sample.advantages[sample.weights > 0][0]) for sample in samples}


def cell(task, harness, *rewards):
    return (task, harness, [(reward, turns(2)) for reward in rewards])


def test_groups_of_one_task_are_pooled_over_harnesses_only_if_asked():
    groups = [cell("t", "h", 1, 0), cell("u", "h", 1, 0), cell("t", "i", 0, 0)]
    assert advantages(groups) == pytest.approx({"0/0": 0.5, "0/1": -0.5, "1/0": 0.5, "1/1": -0.5})
    pooled = {"0/0": 0.75, "0/1": -0.25, "1/0": 0.5, "1/1": -0.5, "2/0": -0.25, "2/1": -0.25}
    assert advantages(groups, grouping="task") == pytest.approx(pooled)
    one_each = [cell("t", "h", 1), cell("t", "i", 0)]
    assert advantages(one_each) == {}
    assert advantages(one_each, grouping="task") == pytest.approx({"0/0": 0.5, "1/0": -0.5})


def test_a_harness_that_is_easier_everywhere_gives_no_advantage_once_its_baseline_is_off():
    groups = [cell("t", "easy", 1, 1), cell("t", "hard", 0, 0), cell("u", "easy", 1, 1), cell("u", "hard", 0, 0)]
    assert set(advantages(groups, grouping="task").values()) == {0.5, -0.5}
    assert advantages(groups, grouping="residual") == {}
    better = [cell("t", "hard", 0, 1), *groups[2:], cell("t", "easy", 1, 1)]
    assert advantages(better, grouping="residual")["0/1"] == pytest.approx(0.75)  # 1 - 0, against 0 on the average of t


@given(st.lists(st.floats(0, 1), min_size=2, max_size=16))
def test_advantages_are_centred_and_of_unit_size(rewards):
    found = GRPO().advantages(np.array(rewards))
    assert abs(found.mean()) < 1e-6
    assert found.std() <= 1 + 1e-9
    if np.std(rewards) > 1e-3:
        assert found.std() == pytest.approx(1.0, abs=2e-3)


# ---- what the policy is asked -----------------------------------------------------------------------------------


class Scorer:
    """Answers with a number per scorer, and remembers what it was asked."""

    def __init__(self):
        self.kept, self.asked = [], []

    def keep_reference(self, path=None):
        self.kept.append(path)

    async def score(self, samples, by):
        self.asked.append(by)
        return [(sample.weights > 0) * np.float32({"policy": -1.0, "reference": -2.0}[by]) for sample in samples]


def appraised(algorithm):
    policy = Scorer()
    algorithm.attach(policy)
    groups = groups_of([("t", "h", [(1.0, segments(2, 3)), (0.0, turns(2))])])
    return policy, asyncio.run(algorithm.appraise(policy, algorithm.credit(groups))).samples


def test_plain_grpo_asks_the_policy_nothing():
    policy, samples = appraised(GRPO())
    assert (policy.kept, policy.asked) == ([], [])
    assert all(sample.columns.keys() == {"call", "version", "action", "argument"} for sample in samples)


@pytest.mark.parametrize(("given", "path"), [("start", None), ("some/model", "some/model")])
def test_a_divergence_asks_for_the_reference_once(given, path):
    policy, samples = appraised(GRPO(kl=0.1, reference=given))
    assert (policy.kept, policy.asked) == ([path], ["reference"])
    assert {value for *_, value in on_tokens(samples, "reference").values()} == {-2.0}


def test_sequence_weighting_asks_how_far_policy_and_sampler_are_apart():
    policy, samples = appraised(GRPO(weighting="sequence", correction=0))
    assert policy.asked == ["policy"]
    gaps = {}
    for sample in samples:
        gaps.setdefault(sample.rollout_id, []).extend((-1.0 - sample.rollout_logprobs)[sample.weights > 0])
    for sample in samples:
        found = sample.columns["log_ratio"][sample.weights > 0]
        assert found == pytest.approx([np.mean(gaps[sample.rollout_id])] * len(found))


def test_the_settings_are_checked():
    wrong = ({"clip_low": 1.0}, {"clip_low": 0.0}, {"clip_high": 0.0}, {"clip": 0.2}, {"correction": -1}, {"kl": -1},
             {"grouping": "harness"}, {"weighting": "row"}, {"kinds": []}, {"max_leaves": 0})  # fmt: skip
    for each in wrong:
        with pytest.raises(ValidationError):
            GRPO(**each)
    with pytest.raises(ValidationError, match=r'weighting = "sequence" .* set correction = 0'):
        GRPO(weighting="sequence")
