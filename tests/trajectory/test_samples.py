from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_tree import made, rollouts

from whippletree.trajectory.filters import TreeFilter
from whippletree.trajectory.samples import group_samples, rows
from whippletree.trajectory.tree import CallTree
from whippletree.types import Assignment, Group, ModelCall, Reward, Rollout, StopReason, Task

TASK = Task("t", "s", "train", "k", 1, "do")


def rollout(calls: list[ModelCall], id: str = "r", error: str | None = None) -> Rollout:
    reward = None if error else Reward(1.0)
    return Rollout(id, "t", "k", "h", 0, "train", tuple(calls), reward, StopReason.FINISHED, error)


def group(*rollouts: Rollout) -> Group:
    return Group(Assignment(0, TASK, "h", len(rollouts)), rollouts)


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
    samples, _ = group_samples(group(rollout([first, compacted])), [1.0])
    assert [s.ids.tolist() for s in samples] == [[1, 2, 3], [9, 2, 3, 5, 6]]
    assert [(s.weights > 0).tolist() for s in samples] == [[False, True, True], [False] * 4 + [True]]
    assert samples[1].rollout_logprobs.tolist() == [0, 0, 0, 0, compacted.logprobs[0]]


def test_a_shared_prefix_belongs_to_the_first_branch():
    calls = [made(0, [1], [2, 3]), made(1, [1, 2, 3, 7], [4]), made(2, [1, 2, 3, 8], [5, 6])]
    samples, stats = group_samples(group(rollout(calls)), [0.5])
    assert [s.weights.tolist() for s in samples] == [
        pytest.approx([0, 0.2, 0.2, 0, 0.2]),
        pytest.approx([0, 0, 0, 0, 0.2, 0.2]),
    ]
    assert samples[1].rollout_logprobs[1:3].tolist() == calls[0].logprobs.tolist()
    assert [s.advantages.tolist() for s in samples] == [[0, 0.5, 0.5, 0, 0.5], [0, 0, 0, 0, 0.5, 0.5]]
    assert stats == {
        "rollouts": 1, "rows": 2, "trainable_tokens": 5, "no_trainable_tokens": 0, "over_branching": 0
    }  # fmt: skip


def test_rollouts_count_alike_whatever_their_number_of_rows():
    plain = rollout([made(0, [1], [2])], "plain")
    segments = rollout([made(i, [i + 1], [2] * 9) for i in range(8)], "segments")
    samples, _ = group_samples(group(plain, segments), [1.0, -1.0])
    shares = {id: sum(float(s.weights.sum()) for s in samples if s.rollout_id == id) for id in ("plain", "segments")}
    assert len(samples) == 9
    assert shares == pytest.approx({"plain": 0.5, "segments": 0.5})


@given(st.lists(rollouts(), min_size=1, max_size=4), st.data())
def test_the_weights_of_a_group_sum_to_one_in_equal_shares(all_calls, data):
    advantages = data.draw(st.lists(st.floats(-3, 3, width=32), min_size=len(all_calls), max_size=len(all_calls)))
    members = [rollout(calls, f"r{i}") for i, calls in enumerate(all_calls)]
    samples, stats = group_samples(group(*members), advantages, TreeFilter(max_leaves=99))
    trained = [member for member in members if any(s.rollout_id == member.id for s in samples)]
    for member, advantage in zip(members, advantages, strict=True):
        own = [s for s in samples if s.rollout_id == member.id]
        assert sum(float(s.weights.sum()) for s in own) == pytest.approx(1 / len(members) if own else 0, rel=1e-5)
        assert all((s.advantages[s.weights > 0] == np.float32(advantage)).all() for s in own)
        assert all((s.weights[0] == 0) and len(np.unique(s.weights[s.weights > 0])) <= 1 for s in own)
    assert stats["no_trainable_tokens"] == len(members) - len(trained)


def test_rollouts_without_a_trainable_token_are_counted_and_keep_the_denominator():
    empty = rollout([made(0, [1], [2], "auxiliary")], "empty")
    bushy = rollout([made(i, [1], [2, i]) for i in range(17)], "bushy")
    samples, stats = group_samples(group(rollout([made(0, [1], [2])]), empty, bushy, rollout([], "none")), [1.0] * 4)
    assert [s.weights.tolist() for s in samples] == [[0, 0.25]]
    assert (stats["no_trainable_tokens"], stats["over_branching"]) == (2, 1)
    assert (stats["dropped_kind_auxiliary"], stats["dropped_over_branching"]) == (1, 17)


def test_rollouts_with_an_error_are_not_in_the_group():
    broken = rollout([made(0, [1], [2])], "broken", error="sandbox died")
    samples, stats = group_samples(group(broken, rollout([made(0, [1], [2])])), [1.0])
    assert [(s.rollout_id, s.weights.tolist()) for s in samples] == [("r", [0, 1])]
    assert stats["rollouts"] == 1
    with pytest.raises(ValueError, match="one advantage per graded rollout"):
        group_samples(group(broken), [1.0])


def test_temperature_comes_from_the_calls():
    hot = [replace(made(0, [1], [2]), temperature=0.7), replace(made(1, [1, 2], [3]), temperature=0.7)]
    (sample,), _ = group_samples(group(rollout(hot)), [1.0])
    assert sample.temperature == 0.7
    mixed = [hot[0], replace(hot[1], temperature=1.0)]
    with pytest.raises(ValueError, match=r"temperatures 0\.7 and 1\.0"):
        group_samples(group(rollout(mixed)), [1.0])


def test_the_first_token_of_a_sequence_is_never_trained():
    (sample,), _ = group_samples(group(rollout([made(0, [], [2, 3])])), [1.0])
    assert sample.weights.tolist() == [0, 1]
