from test_tree import made

from whippletree.trajectory.filters import TreeFilter, leaves_among
from whippletree.trajectory.tree import CallTree


def test_only_main_calls_are_trained_by_default():
    calls = [made(0, [1], [2]), made(1, [1, 2, 8], [3], "compaction"), made(2, [5], [6], "subagent"), made(3, [7], [])]
    tree = CallTree.build(calls)
    selection = TreeFilter().select(tree)
    assert selection.kept == (0,)
    assert selection.dropped == {"kind_compaction": 1, "kind_subagent": 1, "empty": 1}
    assert TreeFilter(kinds=("main", "subagent")).select(tree).kept == (0, 2)


def test_dead_leaves_are_dropped():
    tree = CallTree.build([made(0, [1], [2]), made(1, [1], [3]), made(2, [1, 3], [4])])
    selection = TreeFilter().select(tree)
    assert (selection.kept, selection.dropped) == ((1, 2), {"dead_leaf": 1})
    assert TreeFilter(drop_dead_leaves=False).select(tree).kept == (0, 1, 2)


def test_a_rollout_with_too_many_leaves_is_left_out_whole():
    tree = CallTree.build([made(i, [1], [2, i]) for i in range(17)])
    assert TreeFilter().select(tree).kept == ()
    assert TreeFilter().select(tree).dropped == {"over_branching": 17}
    assert len(TreeFilter(max_leaves=17).select(tree).kept) == 17


def test_leaves_of_other_kinds_do_not_count_as_branching():
    auxiliary = [made(i, [3], [2, i], "auxiliary") for i in range(1, 40)]
    assert TreeFilter().select(CallTree.build([made(0, [1], [2]), *auxiliary])).kept == (0,)


def test_leaves_are_those_that_no_selected_call_extends():
    calls = [
        made(0, [1], [2]),
        made(1, [1, 2], [3], "auxiliary"),
        made(2, [1, 2, 3], [4]),
        made(3, [1, 2], [5], "retry"),
    ]
    tree = CallTree.build(calls)
    assert leaves_among(tree, (0, 2)) == (2,)
    assert leaves_among(tree, (0,)) == (0,)
