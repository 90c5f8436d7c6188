"""From call trees to samples: one row per branch, each sampled token trained once.

Invariant: a token's weight is 1 / (graded rollouts in the group x trainable tokens of its rollout), so that a rollout
counts the same however many branches or segments it has; and a token is trained only on the path on which it was
sampled, with the logprob that it was sampled with.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from whippletree.trajectory.filters import Selection, TreeFilter, leaves_among
from whippletree.trajectory.tree import CallTree
from whippletree.types import Floats, Group, Ids, Sample


@dataclass(frozen=True, slots=True)
class Row:
    """One branch: the path of a trained leaf. All arrays have shape (T,)."""

    ids: Ids
    trained: NDArray[np.bool_]
    """Sampled tokens that this row owns."""
    logprobs: Floats
    """At all sampled positions of selected calls, 0 elsewhere."""
    temperature: float


def rows(tree: CallTree, selection: Selection) -> list[Row]:
    """One row per selected leaf in canonical order; a call on several branches belongs to the first of them.

    Raises ValueError where calls of one branch were sampled at different temperatures: a Sample has only one.
    """
    selected, owned = set(selection.kept), set[int]()
    return [_row(tree, leaf, selected, owned) for leaf in leaves_among(tree, selection.kept)]


def group_samples(
    group: Group, advantages: Sequence[float], tree_filter: TreeFilter | None = None
) -> tuple[list[Sample], dict[str, int]]:
    """Samples of the graded rollouts of a group, and counts of what went in and what did not.

    `advantages` has one value per graded rollout, given to each of its trainable tokens (ClawGym II, equation 7).
    The weights of each rollout sum to 1 / (graded rollouts). A graded rollout without a trainable token is counted as
    `no_trainable_tokens` and keeps its share of the denominator, so that it does not make the others count more;
    one that is left out for `over_branching` likewise, under that name.
    """
    graded = group.graded
    if len(advantages) != len(graded):
        raise ValueError(f"expected one advantage per graded rollout ({len(graded)}), got {len(advantages)}")
    samples: list[Sample] = []
    stats = Counter(rollouts=len(graded), rows=0, trainable_tokens=0, no_trainable_tokens=0, over_branching=0)
    tree_filter = tree_filter or TreeFilter()
    for rollout, advantage in zip(graded, advantages, strict=True):
        tree = CallTree.build(rollout.calls)
        selection = tree_filter.select(tree)
        stats.update({f"dropped_{reason}": count for reason, count in selection.dropped.items()})
        branches = rows(tree, selection)
        num_tokens = sum(int(row.trained.sum()) for row in branches)
        if not num_tokens:
            stats["over_branching" if "over_branching" in selection.dropped else "no_trainable_tokens"] += 1
            continue
        weight = 1 / (len(graded) * num_tokens)
        samples += [_sample(row, weight, advantage, rollout.id) for row in branches]
        stats.update(rows=len(branches), trainable_tokens=num_tokens)
    return samples, dict(stats)


def _row(tree: CallTree, leaf: int, selected: set[int], owned: set[int]) -> Row:
    call = tree.nodes[leaf].call
    ids = np.concatenate([call.prompt_ids, call.completion_ids])
    trained = np.zeros(len(ids), dtype=np.bool_)
    logprobs = np.zeros(len(ids), dtype=np.float32)
    for position in tree.path(leaf):
        if position not in selected:
            continue
        sampled = tree.nodes[position].call
        if sampled.temperature != call.temperature:
            raise ValueError(
                f"calls {sampled.index} and {call.index} of one branch were sampled at temperatures "
                f"{sampled.temperature} and {call.temperature}; a run samples at one temperature"
            )
        start = len(sampled.prompt_ids)
        end = start + len(sampled.completion_ids)
        logprobs[start:end] = sampled.logprobs
        trained[start:end] = position not in owned
        owned.add(position)
    trained[:1] = False  # nothing predicts the first token
    return Row(ids, trained, logprobs, call.temperature)


def _sample(row: Row, weight: float, advantage: float, rollout_id: str) -> Sample:
    trained = row.trained.astype(np.float32)
    return Sample(
        ids=row.ids,
        weights=trained * np.float32(weight),
        rollout_logprobs=row.logprobs,
        advantages=trained * np.float32(advantage),
        temperature=row.temperature,
        rollout_id=rollout_id,
    )
