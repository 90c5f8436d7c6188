"""Orthogonal arrays for three-level factors, all built from arithmetic modulo 3.

Invariant: `orthogonal_array(runs, factors)` has strength 2 or more, and its rows are distinct.

Sizes that are powers of 3 are linear: all combinations of the generators, one point of the projective geometry
PG(m-1, 3) for each column. Any t columns are balanced exactly where any t of the points are linearly independent.
Sizes 18 and 54 develop a difference scheme: each row and its two cyclic shifts (Hedayat, Sloane and Stufken,
"Orthogonal Arrays", 1999, chapters 3 and 6).
"""

from __future__ import annotations

from collections import Counter
from functools import cache
from itertools import product

import numpy as np
from numpy.typing import NDArray

from whippletree.errors import HarnessError

Rows = NDArray[np.int64]
"""Level indices, shape (runs, factors)."""

_MAX_FACTORS = {9: 4, 18: 7, 27: 13, 54: 25, 81: 40, 243: 121}
_DIMENSION = {9: 2, 27: 3, 81: 4, 243: 5}

_DIFFERENCES_6 = np.array(
    [
        [0, 0, 0, 0, 0, 0],
        [0, 0, 1, 1, 2, 2],
        [0, 1, 0, 2, 1, 2],
        [0, 2, 2, 1, 1, 0],
        [0, 1, 2, 0, 2, 1],
        [0, 2, 1, 2, 0, 1],
    ]
)
"""D(6, 6; 3): the difference of any two columns takes each value twice."""
_DIFFERENCES_3 = np.outer(range(3), range(3)) % 3
"""D(3, 3; 3): the multiplication table modulo 3."""


def orthogonal_runs(factors: int) -> tuple[int, ...]:
    """The run counts for which `orthogonal_array` has an array of that many three-level factors, ascending."""
    return tuple(runs for runs, most in _MAX_FACTORS.items() if factors <= most and runs <= 3**factors)


def orthogonal_array(runs: int, factors: int) -> Rows:
    """An array of the highest strength built here for three-level factors, shape (runs, factors).

    18 runs of up to five factors are Taguchi's L18, columns 2-6, in its order. HarnessError where there is none.
    """
    possible = orthogonal_runs(factors)
    if runs not in possible:
        nearest = [n for n in possible if n < runs][-1:] + [n for n in possible if n > runs][:1]
        sizes = " and ".join(map(str, nearest))
        advice = f"the nearest run counts that work: {sizes}" if sizes else "there is none for this many factors"
        raise HarnessError(f"no orthogonal array of {runs} runs for {factors} three-level factors; {advice}")
    if runs == 18:
        return taguchi_l18()[:, 1 : factors + 1]
    if runs == 54:
        return _fifty_four(factors)
    dimension = _DIMENSION[runs]
    generators = np.array(list(product(range(3), repeat=dimension)))
    return generators @ np.array(_columns(dimension, factors)).T % 3


def taguchi_l18() -> Rows:
    """Taguchi's L18 (2^1 x 3^7), levels from 0, shape (18, 8); column 1 has two levels, columns 2-8 have three."""
    block = np.arange(18) // 3
    return np.column_stack([block // 3, block % 3, _develop(_DIFFERENCES_6)])


def _fifty_four(factors: int) -> Rows:
    if factors <= 5:
        # Strength 3: columns 3-6 of the L18, shifted along one direction, and the shift itself.
        base, direction = taguchi_l18()[:, 2:6], np.array([0, 0, 1, 1])
        rows = np.vstack([np.column_stack([(base + z * direction) % 3, np.full(18, z)]) for z in range(3)])
        return rows[:, -factors:]
    scheme = (_DIFFERENCES_6[:, None, :, None] + _DIFFERENCES_3[None, :, None, :]).reshape(18, 18) % 3
    scheme = np.roll(scheme, -1, axis=1)  # the constant column last: six columns then tell all rows apart
    return np.column_stack([_develop(scheme), np.repeat(taguchi_l18()[:, 1:], 3, axis=0)])[:, :factors]


def _develop(scheme: Rows) -> Rows:
    """Each row of a difference scheme with its shifts by 0, 1 and 2, shape (3 * rows, columns)."""
    return ((scheme[:, None, :] + np.arange(3)[None, :, None]) % 3).reshape(-1, scheme.shape[1])


# ---- columns of the linear arrays: points of PG(dimension - 1, 3) -----------------------------------------------

Point = tuple[int, ...]


def _columns(dimension: int, factors: int) -> tuple[Point, ...]:
    """As many points of which any t are independent, for the largest t that allows so many."""
    strengths = range(dimension, min(dimension, 3) - 1, -1)
    sets = [_independent(dimension, strength) for strength in strengths]
    large = next((points for points in sets if len(points) >= factors), None)
    return large[:factors] if large else _extend(sets[-1], dimension, factors)


def _points(dimension: int) -> list[Point]:
    """All points, as vectors whose first non-zero entry is 1; those of few entries first, the unit vectors in order."""
    vectors = (v for v in product(range(3), repeat=dimension) if next((x for x in v if x), 0) == 1)
    return sorted(vectors, key=lambda v: (sum(x > 0 for x in v), [-x for x in v]))


def _plus(a: Point, times: int, b: Point) -> Point:
    return tuple((x + times * y) % 3 for x, y in zip(a, b, strict=True))


@cache
def _independent(dimension: int, strength: int) -> tuple[Point, ...]:
    """Points of which any `strength` are linearly independent."""
    points = _points(dimension)
    if strength == 3 and dimension == 4:  # the ten points of an elliptic quadric; the greedy search stops at eight
        return tuple(p for p in points if (p[0] * p[1] + p[2] * p[2] + p[3] * p[3]) % 3 == 0)
    if strength == 3 and dimension == 5:  # twenty: each of the ten with and without the fifth coordinate
        ten = set(_independent(4, 3))
        return tuple(p for p in points if p[:4] in ten and p[4] < 2)
    chosen: list[Point] = []
    reached: list[set[Point]] = [{(0,) * dimension}, *(set[Point]() for _ in range(strength - 1))]
    for point in points:  # reached[j]: the sums of multiples of j chosen points
        if any(point in sums for sums in reached):
            continue
        for count in range(strength - 1, 0, -1):
            reached[count] |= {_plus(sum_, times, point) for sum_ in reached[count - 1] for times in (1, 2)}
        chosen.append(point)
    return tuple(chosen)


def _extend(columns: tuple[Point, ...], dimension: int, factors: int) -> tuple[Point, ...]:
    """Add points one by one, each on as few lines through two others as can be: a line is a triple that aliases."""
    chosen, lines = list[Point](), Counter[Point]()

    def add(point: Point) -> None:
        for other in chosen:
            for third in (_plus(point, 1, other), _plus(point, 2, other)):
                lead = next(x for x in third if x)
                lines[tuple(x * lead % 3 for x in third)] += 1
        chosen.append(point)

    for column in columns:
        add(column)
    rest = [point for point in _points(dimension) if point not in columns]
    while len(chosen) < factors:
        best = min(rest, key=lambda point: lines[point])
        rest.remove(best)
        add(best)
    return tuple(chosen)
