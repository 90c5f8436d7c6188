from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from test_tree import made, rollouts

from whippletree.trajectory.filters import TreeFilter
from whippletree.trajectory.samples import rollout_samples, rows, with_advantages
from whippletree.trajectory.tree import CallTree
from whippletree.types import ModelCall, Part, Reward, Rollout, StopReason


def rollout(calls: list[ModelCall], id: str = "r", error: str | None = None) -> Rollout:
    reward = None if error else Reward(1.0)
    return Rollout(id, "t", "k", "h", 0, "train", tuple(calls), reward, StopReason.FINISHED, error)


@given(rollouts())
def test_every_sampled_token_is_trained_once_and_on_its_own_path(calls: list[ModelCall]):
    tree = CallTree.build(calls)
    selection = TreeFilter(kinds=("main",), max_leaves=99).select(tree)
    made_rows = rows(tree, selection)
    seen: list[int] = []
    for row in made_rows:
        for position in selection.kept:
            call = tree.nodes[position].call
            start, end = len(call.prompt_ids), len(call.prompt_ids) + len(call.completion_ids)
            path = [*call.prompt_ids, *call.completion_ids]
            on_path = row.ids[:end].tolist() == path and np.array_equal(row.logprobs[start:end], call.logprobs)
            if on_path and row.trained[start:end].all():
                seen.append(position)
    total = sum(len(tree.nodes[position].call.completion_ids) for position in selection.kept)
    assert sum(int(row.trained.sum()) for row in made_rows) == total
    assert set(seen) == set(selection.kept)


@given(rollouts())
def test_nothing_is_trained_that_was_not_sampled_behind_exactly_that_prefix(calls: list[ModelCall]):
    """A turn that is kept after its history was rewritten is context there, whatever it looks like."""
    tree = CallTree.build(calls)
    allowed = {
        (tuple(call.prompt_ids.tolist() + call.completion_ids[: t + 1].tolist()), float(call.logprobs[t]))
        for call in calls
        for t in range(len(call.completion_ids))
    }
    for row in rows(tree, TreeFilter(max_leaves=99).select(tree)):
        for t in np.flatnonzero(row.trained):
            assert (tuple(row.ids[: t + 1].tolist()), float(row.logprobs[t])) in allowed


def test_a_kept_turn_in_a_rewritten_history_is_context():
    first = made(0, [1], [2, 3])
    compacted = made(1, [9, 2, 3, 5], [6])
    samples, _ = rollout_samples(rollout([first, compacted]))
    assert [s.ids.tolist() for s in samples] == [[1, 2, 3], [9, 2, 3, 5, 6]]
    assert [(s.weights > 0).tolist() for s in samples] == [[False, True, True], [False] * 4 + [True]]
    assert samples[1].rollout_logprobs.tolist() == [0, 0, 0, 0, compacted.logprobs[0]]


def test_a_shared_prefix_belongs_to_the_first_branch():
    calls = [made(0, [1], [2, 3]), made(1, [1, 2, 3, 7], [4]), made(2, [1, 2, 3, 8], [5, 6])]
    samples, stats = rollout_samples(rollout(calls))
    assert [s.weights.tolist() for s in samples] == [
        pytest.approx([0, 0.2, 0.2, 0, 0.2]),
        pytest.approx([0, 0, 0, 0, 0.2, 0.2]),
    ]
    assert samples[1].rollout_logprobs[1:3].tolist() == calls[0].logprobs.tolist()
    assert all((s.advantages == 0).all() for s in samples)
    assert stats == {
        "rollouts": 1, "rows": 2, "trainable_tokens": 5, "no_trainable_tokens": 0, "over_branching": 0
    }  # fmt: skip


@given(rollouts())
def test_the_weights_of_a_rollout_sum_to_one_in_equal_parts_whatever_its_number_of_rows(calls):
    samples, stats = rollout_samples(rollout(calls), TreeFilter(max_leaves=99))
    assert sum(float(s.weights.sum()) for s in samples) == pytest.approx(1.0 if samples else 0.0, rel=1e-5)
    assert len({weight for s in samples for weight in s.weights.tolist()} - {0.0}) <= 1
    assert all(s.weights[0] == 0 and s.rollout_id == "r" for s in samples)
    assert (stats["no_trainable_tokens"], stats["rows"]) == (0 if samples else 1, len(samples))
    assert stats["trainable_tokens"] == sum(int((s.weights > 0).sum()) for s in samples)


def test_rollouts_without_a_trainable_token_are_counted():
    unsampled = [[], [made(0, [1], [])], [made(0, [1], [2], "auxiliary")]]
    for calls in unsampled:
        samples, stats = rollout_samples(rollout(calls))
        assert (samples, stats["no_trainable_tokens"], stats["over_branching"]) == ([], 1, 0)
    assert stats["dropped_kind_auxiliary"] == 1
    samples, stats = rollout_samples(rollout([made(i, [1], [2, i]) for i in range(17)]))
    assert (samples, stats["no_trainable_tokens"], stats["over_branching"]) == ([], 0, 1)
    assert stats["dropped_over_branching"] == 17


def test_advantages_go_to_trained_tokens_and_nowhere_else():
    (sample,), _ = rollout_samples(rollout([made(0, [1], [2, 3])]))
    one = with_advantages(sample, -0.5, share=0.25)
    assert (one.advantages.tolist(), one.weights.tolist()) == ([0, -0.5, -0.5], [0, 0.125, 0.125])
    each = with_advantages(sample, np.array([0, 1, 2], np.float32))
    assert (each.advantages.tolist(), each.weights.tolist()) == ([0, 1, 2], [0, 0.5, 0.5])
    np.testing.assert_equal(with_advantages(sample, np.nan).advantages, [0, np.nan, np.nan])
    with pytest.raises(ValueError, match=r"'r': advantages on tokens that were not sampled, at \[0\]"):
        with_advantages(sample, np.ones(3, np.float32))


def test_temperature_comes_from_the_calls():
    hot = [replace(made(0, [1], [2]), temperature=0.7), replace(made(1, [1, 2], [3]), temperature=0.7)]
    (sample,), _ = rollout_samples(rollout(hot))
    assert sample.temperature == 0.7
    mixed = [hot[0], replace(hot[1], temperature=1.0)]
    with pytest.raises(ValueError, match=r"temperatures 0\.7 and 1\.0"):
        rollout_samples(rollout(mixed))


def test_the_first_token_of_a_sequence_is_never_trained():
    (sample,), _ = rollout_samples(rollout([made(0, [], [2, 3])]))
    assert sample.weights.tolist() == [0, 1]


def test_a_sample_knows_the_calls_and_the_parts_of_its_tokens():
    parts = np.array([Part.ACTION, Part.ARGUMENT], np.int8)
    calls = [replace(made(0, [1], [2, 3]), parts=parts), made(1, [1, 2, 3, 7], [4]), made(2, [1, 2, 3, 8], [5])]
    first, second = rollout_samples(rollout(calls))[0]
    columns = {name: [sample.columns[name].tolist() for sample in (first, second)] for name in first.columns}
    assert columns["action"] == [[0, 1, 0, 0, 0]] * 2
    assert columns["argument"] == [[0, 0, 1, 0, 0]] * 2
    assert columns["call"] == [[0, 0, 0, 0, 1], [0, 0, 0, 0, 2]]
