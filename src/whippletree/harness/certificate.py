"""The balance certificate: what can be counted about a design, exactly, and shown to others.

Invariant: every number is a count over the design or the whole space, or a ratio of two; nothing is sampled.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations
from math import prod

import numpy as np
from numpy.typing import NDArray

from whippletree.errors import HarnessError
from whippletree.harness.designs import Design
from whippletree.types import Json

Rows = NDArray[np.int64]

_LARGEST_SPACE = 200_000
_BLOCK = 1024
"""Rows whose distances to all others are held at once."""


@dataclass(frozen=True, slots=True)
class Coverage:
    """How often the combinations of levels of a few factors occur."""

    factors: tuple[str, ...]
    min: int
    max: int
    covered: float
    """Fraction of the combinations that occur at all."""


@dataclass(frozen=True, slots=True)
class Overlap:
    """A design against another one."""

    shared: int
    """Distinct configurations that are in both."""
    nearest: Mapping[int, int]
    """Distance to the nearest configuration of the other -> number of runs."""


@dataclass(frozen=True, slots=True)
class Certificate:
    method: str
    runs: int
    distinct_runs: int
    space_size: int
    strength: int
    """Largest t such that all level combinations of any t factors occur equally often."""
    level_counts: Mapping[str, tuple[int, ...]]
    """Factor -> runs at each of its levels."""
    pairs: tuple[Coverage, ...]
    """Every pair of factors; empty with fewer than two."""
    triples: tuple[Coverage, ...]
    """Every triple of factors; empty with fewer than three."""
    distances: Mapping[int, int]
    """Hamming distance -> number of pairs of runs."""
    covering_radius: int | None
    """Largest distance from any configuration of the space to the design; None in spaces too large to walk."""
    covering_radius_note: str
    """Why there is none, or empty."""
    overlap: Overlap | None
    """None where no other design was given."""

    @property
    def pair_coverage(self) -> float:
        """Mean fraction of level pairs covered, over all pairs of factors; 1 where there are none."""
        return _mean(self.pairs)

    @property
    def triple_coverage(self) -> float:
        """Mean fraction of level triples covered, over all triples of factors; 1 where there are none."""
        return _mean(self.triples)

    @property
    def least_triple(self) -> Coverage | None:
        """The triple of factors with the smallest fraction covered."""
        return _worst(self.triples)

    def to_json(self) -> dict[str, Json]:
        return {
            "method": self.method,
            "runs": self.runs,
            "distinct_runs": self.distinct_runs,
            "space_size": self.space_size,
            "strength": self.strength,
            "level_counts": {key: list(counts) for key, counts in self.level_counts.items()},
            "pairs": _coverage_json(self.pairs),
            "triples": _coverage_json(self.triples),
            "distances": _histogram_json(self.distances),
            "covering_radius": self.covering_radius,
            "covering_radius_note": self.covering_radius_note,
            "overlap": None
            if self.overlap is None
            else {"shared": self.overlap.shared, "nearest": _histogram_json(self.overlap.nearest)},
        }

    def to_text(self) -> str:
        """A plain table, one line for each property."""
        levels = (f"{key} {'/'.join(map(str, counts))}" for key, counts in self.level_counts.items())
        radius = self.covering_radius_note if self.covering_radius is None else str(self.covering_radius)
        lines = [
            ("method", self.method),
            ("runs", f"{self.runs} ({self.distinct_runs} distinct) of {self.space_size}"),
            ("strength", str(self.strength)),
            ("runs per level", "  ".join(levels)),
            ("level pairs", _coverage_text(self.pairs)),
            ("level triples", _coverage_text(self.triples)),
            ("distances", _histogram_text(self.distances)),
            ("covering radius", radius),
        ]
        if self.overlap:
            lines += [
                ("shared with other", str(self.overlap.shared)),
                ("nearest in other", _histogram_text(self.overlap.nearest)),
            ]
        return "\n".join(f"{title:<18} {value}" for title, value in lines)


def certify(design: Design, other: Design | None = None) -> Certificate:
    """Count what there is to count; `other` must be a design of the same factors, else HarnessError."""
    rows = _rows(design)
    radius, note = _covering_radius(rows, design.level_counts)
    return Certificate(
        method=design.method if design.seed is None else f"{design.method}, seed {design.seed}",
        runs=len(rows),
        distinct_runs=len(set(design.configs)),
        space_size=prod(design.level_counts),
        strength=_strength(rows, design.level_counts),
        level_counts={
            key: tuple(np.bincount(rows[:, i], minlength=design.level_counts[i]).tolist())
            for i, key in enumerate(design.keys)
        },
        pairs=tuple(_coverages(design, rows, 2)),
        triples=tuple(_coverages(design, rows, 3)),
        distances=_distances(rows),
        covering_radius=radius,
        covering_radius_note=note,
        overlap=_overlap(design, other) if other else None,
    )


def _rows(design: Design) -> Rows:
    if not design.configs:
        raise HarnessError("a design without configurations cannot be certified; give it at least one")
    return np.array(design.configs, dtype=np.int64)


# ---- projections ------------------------------------------------------------------------------------------------


def _occurrences(rows: Rows, factors: tuple[int, ...], level_counts: tuple[int, ...]) -> Rows:
    """How often each level combination of the factors occurs, without those that do not."""
    code = np.zeros(len(rows), dtype=np.int64)
    for factor in factors:
        code = code * level_counts[factor] + rows[:, factor]
    if prod(level_counts[factor] for factor in factors) > 8 * len(rows):  # then sorting is cheaper than a table
        return np.unique(code, return_counts=True)[1]
    counts = np.bincount(code)
    return counts[counts > 0]


def _coverages(design: Design, rows: Rows, order: int) -> Iterator[Coverage]:
    for factors in combinations(range(len(design.keys)), order):
        counts = _occurrences(rows, factors, design.level_counts)
        cells = prod(design.level_counts[factor] for factor in factors)
        least = int(counts.min()) if len(counts) == cells else 0
        keys = tuple(design.keys[factor] for factor in factors)
        yield Coverage(keys, least, int(counts.max()), len(counts) / cells)


def _strength(rows: Rows, level_counts: tuple[int, ...]) -> int:
    def balanced(factors: tuple[int, ...]) -> bool:
        cells = prod(level_counts[factor] for factor in factors)
        if len(rows) % cells:
            return False
        counts = _occurrences(rows, factors, level_counts)
        return len(counts) == cells and counts.min() == counts.max()

    strength, total = 0, len(level_counts)
    while strength < total and all(balanced(factors) for factors in combinations(range(total), strength + 1)):
        strength += 1
    return strength


# ---- distances --------------------------------------------------------------------------------------------------


def _distance_blocks(rows: Rows, others: Rows) -> Iterator[Rows]:
    """Hamming distances of a few rows at a time to all others, shape (block, others)."""
    for start in range(0, len(rows), _BLOCK):
        block = rows[start : start + _BLOCK]
        distances = np.zeros((len(block), len(others)), dtype=np.int64)
        for factor in range(rows.shape[1]):
            distances += block[:, factor, None] != others[:, factor]
        yield distances


def _distances(rows: Rows) -> dict[int, int]:
    histogram = np.zeros(rows.shape[1] + 1, dtype=np.int64)
    for distances in _distance_blocks(rows, rows):
        histogram += np.bincount(distances.ravel(), minlength=len(histogram))
    histogram[0] -= len(rows)  # each run to itself
    return _nonzero(histogram // 2)


def _covering_radius(rows: Rows, level_counts: tuple[int, ...]) -> tuple[int | None, str]:
    """Grow the design by one changed factor at a time until it fills the space."""
    size = prod(level_counts)
    if size > _LARGEST_SPACE:
        return None, f"not computed: the space has {size} configurations, more than {_LARGEST_SPACE}"
    varied = [factor for factor, count in enumerate(level_counts) if count > 1]
    reached = np.zeros([level_counts[factor] for factor in varied], dtype=bool)
    reached[tuple(rows[:, varied].T)] = True
    radius = 0
    while not reached.all():
        lines = (reached.any(axis=axis, keepdims=True) for axis in range(reached.ndim))
        reached = np.logical_or.reduce(np.broadcast_arrays(reached, *lines))
        radius += 1
    return radius, ""


def _overlap(design: Design, other: Design) -> Overlap:
    if (design.keys, design.level_counts) != (other.keys, other.level_counts):
        raise HarnessError(
            f"cannot compare a design over {_factors_text(design)} with one over {_factors_text(other)}; "
            "both must have the same factors and level counts"
        )
    nearest = [block.min(axis=1) for block in _distance_blocks(_rows(design), _rows(other))]
    shared = len(set(design.configs) & set(other.configs))
    return Overlap(shared, _nonzero(np.bincount(np.concatenate(nearest))))


def _nonzero(histogram: Rows) -> dict[int, int]:
    return {value: count for value, count in enumerate(histogram.tolist()) if count}


# ---- rendering --------------------------------------------------------------------------------------------------


def _coverage_json(coverages: tuple[Coverage, ...]) -> dict[str, Json]:
    worst = _worst(coverages)
    return {
        "covered_mean": _mean(coverages),
        "covered_min": worst.covered if worst else 1.0,
        "each": [{"factors": list(c.factors), "min": c.min, "max": c.max, "covered": c.covered} for c in coverages],
    }


def _coverage_text(coverages: tuple[Coverage, ...]) -> str:
    worst = _worst(coverages)
    if worst is None:
        return "none, there are too few factors"
    low, high = min(c.min for c in coverages), max(c.max for c in coverages)
    times = f"{low}" if low == high else f"{low}-{high}"
    text = f"{times} runs each, {_mean(coverages):.1%} covered"
    return text if worst.covered == 1 else f"{text}; least {'-'.join(worst.factors)} {worst.covered:.1%}"


def _histogram_json(histogram: Mapping[int, int]) -> dict[str, int]:
    return {str(value): count for value, count in histogram.items()}


def _histogram_text(histogram: Mapping[int, int]) -> str:
    return "  ".join(f"{value}:{count}" for value, count in histogram.items()) or "none"


def _factors_text(design: Design) -> str:
    return ", ".join(f"{key} ({count} levels)" for key, count in zip(design.keys, design.level_counts, strict=True))


def _mean(coverages: tuple[Coverage, ...]) -> float:
    return sum(c.covered for c in coverages) / len(coverages) if coverages else 1.0


def _worst(coverages: tuple[Coverage, ...]) -> Coverage | None:
    return min(coverages, key=lambda c: c.covered, default=None)
