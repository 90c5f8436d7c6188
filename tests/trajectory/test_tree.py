import itertools
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from whippletree.trajectory.tree import CallTree
from whippletree.types import ModelCall


def made(index: int, prompt: list[int], completion: list[int], kind="main") -> ModelCall:
    logprobs = -np.arange(len(completion), dtype=np.float32) - index
    return ModelCall(index, kind, np.array(prompt, np.int64), np.array(completion, np.int64), logprobs, 0, "stop")


@st.composite
def rollouts(draw) -> list[ModelCall]:
    """Calls over few tokens that continue, retry, fork and start anew, often with equal ids."""
    tokens = st.lists(st.integers(0, 2), min_size=1, max_size=2)
    calls: list[ModelCall] = []
    for index in range(draw(st.integers(1, 9))):
        kind = draw(st.sampled_from(["main", "main", "main", "compaction"]))
        base = draw(st.sampled_from(calls)) if calls and draw(st.booleans()) else None
        prompt = draw(tokens)
        if base is not None and draw(st.booleans()):
            prompt = [*base.prompt_ids, *base.completion_ids, *draw(st.lists(st.integers(0, 2), max_size=2))]
        elif base is not None:
            prompt = base.prompt_ids.tolist()
        calls.append(made(index, prompt, draw(st.lists(st.integers(0, 2), max_size=3)), kind))
    return calls


def full(call: ModelCall) -> list[int]:
    return [*call.prompt_ids.tolist(), *call.completion_ids.tolist()]


def structure(tree: CallTree) -> list[tuple]:
    return [(n.call.index, full(n.call), n.parent, n.children, n.start, n.dead) for n in tree.nodes]


def test_a_plain_episode_is_a_path():
    tree = CallTree.build([made(0, [1], [2]), made(1, [1, 2, 3], [4]), made(2, [1, 2, 3, 4], [5])])
    assert [node.parent for node in tree.nodes] == [None, 0, 1]
    assert [node.start for node in tree.nodes] == [0, 2, 4]
    assert tree.branches == ((0, 1, 2),)
    assert (tree.roots, tree.leaves) == ((0,), (2,))


def test_a_compaction_starts_a_new_root():
    calls = [made(0, [1], [2]), made(1, [9, 1, 2], [7], "compaction"), made(2, [1, 7], [3]), made(3, [1, 7, 3], [4])]
    tree = CallTree.build(calls)
    assert tree.roots == (0, 1, 2)
    assert tree.branches == ((0,), (1,), (2, 3))


def test_the_longest_prefix_is_the_parent():
    tree = CallTree.build([made(0, [1], [2]), made(1, [1, 2], [3, 4]), made(2, [1, 2, 3, 4, 5], [6])])
    assert tree.nodes[2].parent == 1


def test_a_retry_that_was_given_up_is_dead():
    tree = CallTree.build([made(0, [1], [2]), made(1, [1], [3]), made(2, [1, 3], [4]), made(3, [1], [5])])
    assert [node.dead for node in tree.nodes] == [True, False, False, False]


def test_siblings_that_nobody_extends_are_branches():
    tree = CallTree.build([made(0, [1], [2]), made(1, [1], [3])])
    assert [node.dead for node in tree.nodes] == [False, False]


def test_extended_retries_are_both_kept():
    tree = CallTree.build([made(0, [1], [2]), made(1, [1, 2], [4]), made(2, [1], [3]), made(3, [1, 3], [4])])
    assert not any(node.dead for node in tree.nodes)


def test_of_equal_retries_the_last_one_before_is_continued():
    tree = CallTree.build([made(0, [1], [2]), made(1, [1], [2]), made(2, [1, 2], [3]), made(3, [1], [2])])
    assert tree.nodes[2].parent == 1
    assert [node.dead for node in tree.nodes] == [True, False, False, False]


def test_calls_without_a_token_are_counted_not_placed():
    tree = CallTree.build([made(0, [1], []), made(1, [1], [2])])
    assert tree.num_empty == 1
    assert [node.call.index for node in tree.nodes] == [1]
    assert CallTree.build([]).nodes == ()


@given(rollouts(), st.randoms(use_true_random=False))
def test_the_order_of_insertion_does_not_matter(calls: list[ModelCall], rng: random.Random):
    shuffled = rng.sample(calls, len(calls))
    assert structure(CallTree.build(shuffled)) == structure(CallTree.build(calls))


@given(rollouts())
def test_every_parent_is_the_longest_prefix(calls: list[ModelCall]):
    nodes = CallTree.build(calls).nodes
    for node in nodes:
        prompt = node.call.prompt_ids.tolist()
        prefixes = [len(full(n.call)) for n in nodes if full(n.call) == prompt[: len(full(n.call))]]
        assert node.start == max(prefixes, default=0)
        if node.parent is not None:
            assert full(nodes[node.parent].call) == prompt[: node.start]
        else:
            assert not prefixes


@given(rollouts())
def test_branches_cover_the_tree(calls: list[ModelCall]):
    tree = CallTree.build(calls)
    assert {position for branch in tree.branches for position in branch} == set(range(len(tree.nodes)))
    for branch in tree.branches:
        assert branch[0] in tree.roots
        assert all(tree.nodes[child].parent == parent for parent, child in itertools.pairwise(branch))


@pytest.mark.parametrize("index", [0, 1])
def test_equal_calls_with_equal_indices_are_still_ordered(index):
    calls = [made(index, [1], [2]), made(index, [1], [3]), made(2, [1, 3], [4])]
    assert structure(CallTree.build(calls[::-1])) == structure(CallTree.build(calls))
