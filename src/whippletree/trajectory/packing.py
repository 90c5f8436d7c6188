"""Micro-batches under a token budget.

Invariant: every sample is in exactly one micro-batch, and rows x longest row never exceeds the budget, unless a single
sample does by itself.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from whippletree.types import Sample


def pack(samples: Sequence[Sample], max_tokens: int) -> list[list[int]]:
    """Positions of `samples` per micro-batch, longest first: the fewest micro-batches, and of those the least padding.

    A micro-batch costs rows x longest row tokens. Samples are sorted by length, and the cuts are chosen by dynamic
    programming over the last micro-batch.
    """
    if max_tokens < 1:
        raise ValueError(f"max_tokens must be at least 1, got {max_tokens}")
    order = sorted(range(len(samples)), key=lambda i: (-len(samples[i].ids), i))
    lengths = np.array([len(samples[i].ids) for i in order], dtype=np.int64)
    batch = int(lengths.sum()) * len(order) + 1  # one micro-batch outweighs any padding
    costs = np.zeros(len(order) + 1, dtype=np.int64)
    cuts = np.zeros(len(order) + 1, dtype=np.int64)
    first = 0
    for end in range(1, len(order) + 1):
        while first < end - 1 and lengths[first] * (end - first) > max_tokens:
            first += 1
        starts = np.arange(first, end)
        candidates = costs[starts] + batch + lengths[starts] * (end - starts)
        best = int(candidates.argmin())
        costs[end], cuts[end] = candidates[best], starts[best]
    batches: list[list[int]] = []
    end = len(order)
    while end:
        batches.append(order[cuts[end] : end])
        end = int(cuts[end])
    return batches[::-1]
