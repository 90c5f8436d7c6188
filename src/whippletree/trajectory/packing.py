"""Micro-batches for the trainer: rows that begin alike stay together, so that what they share is computed once.

Invariant: every sample is in exactly one micro-batch; which one follows from the samples and the budget alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from whippletree.types import Ids, Sample

MIN_PREFIX_TOKENS = 16
"""A shorter common prefix is not worth a second pass."""


@dataclass(frozen=True, slots=True)
class Family:
    """Rows that share their first `prefix` tokens, none of which is predicted by a trained position."""

    rows: tuple[int, ...]
    prefix: int

    def cost(self, samples: Sequence[Sample]) -> int:
        """Tokens to compute."""
        return self.prefix + sum(len(samples[row].ids) - self.prefix for row in self.rows)


def families(samples: Sequence[Sample]) -> list[Family]:
    """Group neighbouring samples by common prefix; a sample like no neighbour is a family by itself, without prefix."""
    found: list[Family] = []
    rows: list[int] = []
    prefix = 0
    for row, sample in enumerate(samples):
        limit = max(0, int(np.flatnonzero(sample.weights)[0]) - 1) if sample.weights.any() else len(sample.ids) - 1
        shared = min(prefix, limit, common_prefix(samples[rows[0]].ids, sample.ids)) if rows else 0
        if rows and shared >= MIN_PREFIX_TOKENS and shared * 2 >= prefix:
            rows.append(row)
            prefix = shared
        else:
            if rows:
                found.append(Family(tuple(rows), prefix if len(rows) > 1 else 0))
            rows, prefix = [row], limit
    return [*found, Family(tuple(rows), prefix if len(rows) > 1 else 0)] if rows else found


def common_prefix(a: Ids, b: Ids) -> int:
    length = min(len(a), len(b))
    differs = np.flatnonzero(a[:length] != b[:length])
    return int(differs[0]) if len(differs) else length


def micro_batches(samples: Sequence[Sample], max_tokens: int) -> list[list[Family]]:
    """Fill micro-batches up to a budget of computed tokens, families without prefix apart, by length."""
    every = families(samples)
    batches: list[list[Family]] = []
    for shared in (True, False):
        kin = [family for family in every if (family.prefix > 0) == shared]
        kin.sort(key=lambda family: max(len(samples[row].ids) - family.prefix for row in family.rows))
        room = 0
        for family in kin:
            cost = family.cost(samples)
            if cost > room:
                batches.append([])
                room = max_tokens
            batches[-1].append(family)
            room -= cost
    return batches
