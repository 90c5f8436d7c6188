"""From call trees to samples: one row per branch, each sampled token trained once.

Invariant: the weights of a rollout sum to 1, so that it counts the same however many branches or segments it has; and a
token is trained only on the path on which it was sampled, with the logprob that it was sampled with.

Every sample has the columns `call`, the index of the call that sampled a token, `version`, that of the policy that
sampled it, and `action` and `argument`, which are 1 on tokens that choose a tool and on its arguments (see
`types.Part`). All are 0 where nothing was sampled, and the latter two in records that are older than they are.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from whippletree.trajectory.filters import Selection, TreeFilter, leaves_among
from whippletree.trajectory.tree import CallTree
from whippletree.types import Floats, Ids, Part, Parts, Rollout, Sample


@dataclass(frozen=True, slots=True)
class Row:
    """One branch: the path of a trained leaf. All arrays have shape (T,)."""

    ids: Ids
    trained: NDArray[np.bool_]
    """Sampled tokens that this row owns."""
    logprobs: Floats
    """At all sampled positions of selected calls, 0 elsewhere."""
    parts: Parts
    calls: Ids
    """Indices."""
    versions: Ids
    """Of the policy; all three are as the logprobs."""
    temperature: float


def rows(tree: CallTree, selection: Selection) -> list[Row]:
    """One row per selected leaf in canonical order; a call on several branches belongs to the first of them.

    Raises ValueError where calls of one branch were sampled at different temperatures: a Sample has only one.
    """
    selected, owned = set(selection.kept), set[int]()
    return [_row(tree, leaf, selected, owned) for leaf in leaves_among(tree, selection.kept)]


def rollout_samples(rollout: Rollout, tree_filter: TreeFilter | None = None) -> tuple[list[Sample], Counter[str]]:
    """Samples of one rollout, without advantages yet, and counts of what went in and what did not.

    Their weights sum to 1, in equal parts over the trainable tokens. A rollout without such a token gives no samples
    and is counted as `no_trainable_tokens`, or as `over_branching` where that is why.
    """
    tree = CallTree.build(rollout.calls)
    selection = (tree_filter or TreeFilter()).select(tree)
    branches = rows(tree, selection)
    num_tokens = sum(int(row.trained.sum()) for row in branches)
    stats = Counter(rollouts=1, rows=0, trainable_tokens=0, no_trainable_tokens=0, over_branching=0)
    stats.update({f"dropped_{reason}": count for reason, count in selection.dropped.items()})
    if not num_tokens:
        stats["over_branching" if "over_branching" in selection.dropped else "no_trainable_tokens"] += 1
        return [], stats
    stats.update(rows=len(branches), trainable_tokens=num_tokens)
    return [_sample(row, 1 / num_tokens, rollout.id) for row in branches], stats


def with_advantages(sample: Sample, advantages: float | Floats, share: float = 1.0) -> Sample:
    """The sample with its weights multiplied by `share`, and an advantage for each trained token, or one for all.

    Raises ValueError for an advantage on a token that is not trained: nobody sampled it here.
    """
    trained = sample.weights > 0
    one = isinstance(advantages, int | float)
    each = np.where(trained, np.float32(advantages), np.float32(0)) if one else advantages
    if astray := np.flatnonzero((each != 0) & ~trained).tolist():
        raise ValueError(f"rollout '{sample.rollout_id}': advantages on tokens that were not sampled, at {astray[:5]}")
    return replace(sample, advantages=each, weights=sample.weights * np.float32(share))


def _row(tree: CallTree, leaf: int, selected: set[int], owned: set[int]) -> Row:
    call = tree.nodes[leaf].call
    ids = np.concatenate([call.prompt_ids, call.completion_ids])
    trained = np.zeros(len(ids), dtype=np.bool_)
    logprobs = np.zeros(len(ids), dtype=np.float32)
    parts = np.zeros(len(ids), dtype=np.int8)
    calls, versions = np.zeros((2, len(ids)), dtype=np.int64)
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
        parts[start:end] = Part.OTHER if sampled.parts is None else sampled.parts
        calls[start:end] = sampled.index
        versions[start:end] = sampled.versions
        trained[start:end] = position not in owned
        owned.add(position)
    trained[:1] = False  # nothing predicts the first token
    return Row(ids, trained, logprobs, parts, calls, versions, call.temperature)


def _sample(row: Row, weight: float, rollout_id: str) -> Sample:
    return Sample(
        ids=row.ids,
        weights=row.trained * np.float32(weight),
        rollout_logprobs=row.logprobs,
        advantages=np.zeros(len(row.ids), dtype=np.float32),
        temperature=row.temperature,
        rollout_id=rollout_id,
        columns={
            "call": row.calls.astype(np.float32),  # exact up to 2 ** 24
            "version": row.versions.astype(np.float32),
            "action": (row.parts == Part.ACTION).astype(np.float32),
            "argument": (row.parts == Part.ARGUMENT).astype(np.float32),
        },
    )
