"""Near-balanced subsets: a seeded search for any size and any mix of level counts.

Invariant: the levels of each factor occur equally often, to within 1, at every step of the search. A step swaps the
levels of one factor between two rows, which keeps these counts; it lowers first the number of conflicts (rows that
are equal, or that are to be avoided), then the sum of squared counts of level pairs, over all pairs of factors. For
a fixed size the latter differs by a constant from the sum of squared deviations from equal counts.
"""

from __future__ import annotations

from collections.abc import Set
from itertools import combinations, cycle
from math import lcm
from typing import cast

import numpy as np
from numpy.typing import NDArray

from whippletree.harness.space import Config

Rows = NDArray[np.int64]
Codes = NDArray[np.uint64]

_EFFORT = 10_000
"""Rows in all restarts together; there are 5 to 200 restarts."""
_CANDIDATES = 128
"""Rows among which a step looks for its swap; all of them in designs of that size."""


def balanced_rows(
    level_counts: tuple[int, ...], size: int, avoid: Set[Config], rng: np.random.Generator
) -> Rows | None:
    """`size` distinct rows, none in `avoid`, shape (size, factors), or None where the search finds none.

    Without `avoid` it always finds some, as long as `size` is at most the number of combinations.
    """
    weights = rng.integers(0, 2**64, len(level_counts), dtype=np.uint64)
    avoided = np.array(sorted(avoid), dtype=np.uint64).reshape(-1, len(level_counts)) @ weights
    goal = _least_pair_sum(level_counts, size)
    best, best_sum = None, None
    for restart in range(min(max(_EFFORT // size, 5), 200)):
        # The first start has no equal rows, so that tight sizes are met as well.
        start = _cyclic_start if restart == 0 else _shuffled_start
        rows = _descend(start(level_counts, size, rng), level_counts, weights, avoided, rng)
        distinct = {tuple(row) for row in rows.tolist()}
        if len(distinct) < size or distinct & avoid:
            continue
        pair_sum = _pair_sum(rows, level_counts)
        if best_sum is None or pair_sum < best_sum:
            best, best_sum = rows, pair_sum
        if best_sum == goal:
            break
    return best


# ---- starts, balanced in each factor ----------------------------------------------------------------------------


def _cyclic_start(level_counts: tuple[int, ...], size: int, rng: np.random.Generator) -> Rows:
    """Walk along diagonals, every level rising by 1 from row to row: distinct rows, and any stretch is balanced."""
    period = lcm(*level_counts)
    rows: list[list[int]] = []
    seen: set[Config] = set()
    while len(rows) < size:
        corner = rng.integers(0, level_counts)
        if tuple(corner.tolist()) in seen:
            continue
        diagonal = ((corner + np.arange(min(period, size - len(rows)))[:, None]) % level_counts).tolist()
        seen.update(tuple(row) for row in diagonal)
        rows.extend(diagonal)
    return np.array(rows, dtype=np.int64)


def _shuffled_start(level_counts: tuple[int, ...], size: int, rng: np.random.Generator) -> Rows:
    columns = [rng.permutation(rng.permutation(count)[np.arange(size) % count]) for count in level_counts]
    return np.column_stack(columns)


# ---- the search -------------------------------------------------------------------------------------------------


def _descend(
    rows: Rows, level_counts: tuple[int, ...], weights: Codes, avoided: Codes, rng: np.random.Generator
) -> Rows:
    """Swap, factor by factor, until no factor offers a better design."""
    size, factors = rows.shape
    order: list[int] = rng.permutation(factors).tolist()
    stale = 0
    for factor in cycle(order):
        picked: Rows = np.sort(rng.permutation(size)[:_CANDIDATES])
        conflicts = _conflict_change(rows, picked, factor, level_counts[factor], weights, avoided)
        differences = _differences(rows[picked], factor)
        pairs = _pair_change(rows, picked, factor, level_counts) + 4 * differences
        change = conflicts * (8 * rows.size + 1) + pairs  # |pairs| is at most 8 * rows.size
        change[differences == 0] = 0  # such a swap gives the same two rows again
        i, j = divmod(int(change.argmin()), len(picked))
        if change[i, j] < 0:
            a, b = picked[i], picked[j]
            rows[[a, b], factor] = rows[[b, a], factor]
            stale = 0
        else:
            stale += 1
        if stale == factors:
            break
    return rows


def _pair_change(rows: Rows, picked: Rows, factor: int, level_counts: tuple[int, ...]) -> Rows:
    """Change of the pair sum when rows i and j of `picked` swap their levels of `factor`, shape (picked, picked).

    To first order: each other factor in which the two rows differ adds 4.
    """
    offsets = np.concatenate([[0], np.cumsum(level_counts)])
    one_hot = np.zeros((len(rows), offsets[-1]), dtype=np.int64)
    one_hot[np.arange(len(rows))[:, None], rows + offsets[:-1]] = 1
    own = slice(offsets[factor], offsets[factor + 1])
    counts = one_hot.T @ one_hot[:, own]  # how often each level of any factor meets each level of this one
    counts[own] = 0
    levels = rows[picked, factor]
    met = counts[rows[picked] + offsets[:-1]].sum(axis=1)[:, levels]  # row i's other levels with row j's level
    stay = np.diag(met)
    return 2 * (met + met.T - stay[:, None] - stay)


def _conflict_change(rows: Rows, picked: Rows, factor: int, count: int, weights: Codes, avoided: Codes) -> Rows:
    """Change of the number of conflicts for the same swaps, shape (picked, picked).

    Rows are compared by 64-bit codes with random weights. Equal rows have equal codes; a chance collision can only
    forbid a swap.
    """
    codes = rows.astype(np.uint64) @ weights
    levels = rows[picked, factor]
    shifts = (np.arange(count) - levels[:, None]).astype(np.uint64)  # modulo 2^64, as the codes are
    moved = codes[picked][:, None] + shifts * weights[factor]
    present, times = np.unique(codes, return_counts=True)
    at = cast(Rows, np.searchsorted(present[:-1], moved))  # numpy's stubs leave its type open
    taken = np.where(present[at] == moved, times[at], 0) + np.isin(moved, avoided)
    new = taken[:, levels]
    old = np.diag(new) - 1  # without the row itself
    return new + new.T - old[:, None] - old


def _differences(rows: Rows, factor: int) -> Rows:
    """In how many of the other factors rows i and j differ, where they differ in this one; else 0."""
    unequal = rows[:, None, :] != rows[None, :, :]
    return np.where(unequal[:, :, factor], unequal.sum(axis=2) - 1, 0)


# ---- the pair sum -----------------------------------------------------------------------------------------------


def _pair_sum(rows: Rows, level_counts: tuple[int, ...]) -> int:
    total = 0
    for f, g in combinations(range(len(level_counts)), 2):
        counts = np.bincount(rows[:, f] * level_counts[g] + rows[:, g])
        total += int((counts**2).sum())
    return total


def _least_pair_sum(level_counts: tuple[int, ...], size: int) -> int:
    """A bound from below: each pair of factors as even as whole counts can be."""
    total = 0
    for f, g in combinations(level_counts, 2):
        low, extra = divmod(size, f * g)
        total += f * g * low**2 + extra * (2 * low + 1)
    return total
