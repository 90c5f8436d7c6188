"""Designs: which configurations of a space to train or evaluate in, and how they were chosen.

Invariant: the configurations of a design are distinct and lie in the space, and the same seed gives the same design.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import compress

import numpy as np

from whippletree.errors import HarnessError
from whippletree.harness.balanced import balanced_rows
from whippletree.harness.orthogonal import Rows, orthogonal_array, orthogonal_runs
from whippletree.harness.space import Config, HarnessSpace


@dataclass(frozen=True, slots=True)
class Design:
    keys: tuple[str, ...]
    level_counts: tuple[int, ...]
    """Of the space, in the order of `keys`."""
    configs: tuple[Config, ...]
    method: str
    """How it was made, such as `orthogonal array`."""
    seed: int | None = None
    """None where nothing was drawn."""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple("".join(f"{k}{level}" for k, level in zip(self.keys, c, strict=True)) for c in self.configs)


def choose(space: HarnessSpace, runs: int, seed: int, avoid: Collection[Config] = ()) -> Design:
    """An orthogonal array where there is one for these runs that avoids what it must, else a near-balanced subset."""
    if set(space.level_counts) == {3} and runs in orthogonal_runs(len(space.factors)):
        array = orthogonal(space, runs)
        if not set(array.configs) & set(avoid):
            return array
    return held_out(space, runs, seed, avoid) if avoid else near_balanced(space, runs, seed)


def full(space: HarnessSpace) -> Design:
    """All configurations, in lexicographic order."""
    return _design(space, space, "full factorial")


def listed(space: HarnessSpace, names: Sequence[str]) -> Design:
    """The named configurations, in the given order; HarnessError for no name, a wrong one, or one given twice."""
    if not names:
        raise HarnessError("no harness is listed; a design holds at least one configuration")
    configs = [space.parse(name) for name in names]
    if twice := next((name for i, name in enumerate(names) if name in names[:i]), None):
        raise HarnessError(f"harness {twice!r} is listed twice; a design holds each configuration once")
    return _design(space, configs, "listed")


def orthogonal(space: HarnessSpace, runs: int) -> Design:
    """An orthogonal array of the highest strength available; HarnessError names the nearest sizes that work.

    18 runs of five factors are the training set of Harness Scaling (Table 6), in its order.
    """
    if runs == space.size:
        return full(space)
    if other := [key for key, count in zip(space.keys, space.level_counts, strict=True) if count != 3]:
        counts = dict(zip(space.keys, space.level_counts, strict=True))
        raise HarnessError(
            f"orthogonal arrays need three levels in every factor, got {counts[other[0]]} in {other[0]}; "
            f"use a near-balanced design, or all {space.size} configurations"
        )
    return _design(space, _configs(orthogonal_array(runs, len(space.factors))), "orthogonal array")


def near_balanced(space: HarnessSpace, size: int, seed: int) -> Design:
    """Levels of each factor equally often, to within 1; then level pairs as evenly as a seeded search finds them."""
    _check_size(space, size, space.size)
    if size == space.size:
        return full(space)
    rng = np.random.default_rng(seed)
    # What is left out is as balanced as what is kept, and quicker to find where it is the smaller part.
    kept = 2 * size <= space.size
    rows = balanced_rows(space.level_counts, size if kept else space.size - size, frozenset(), rng)
    assert rows is not None, "without configurations to avoid the search always succeeds"
    found = set(_configs(rows))
    return _design(space, sorted(found) if kept else (c for c in space if c not in found), "near-balanced", seed)


def held_out(space: HarnessSpace, size: int, seed: int, *avoid: Iterable[Config]) -> Design:
    """A near-balanced subset that shares no configuration with any of the sets in `avoid`.

    HarnessError where too few are left, or where no balanced subset of what is left is found.
    """
    avoided = {config for configs in avoid for config in configs}
    for config in avoided:
        space.name(config)  # raises where it is not in the space
    _check_size(space, size, space.size - len(avoided))
    rows = balanced_rows(space.level_counts, size, avoided, np.random.default_rng(seed))
    if rows is None:
        raise HarnessError(
            f"found no {size} level-balanced configurations among the {space.size - len(avoided)} that are not "
            "avoided; ask for fewer, avoid fewer, or try another seed"
        )
    return _design(space, sorted(_configs(rows)), "held-out", seed)


def random_subset(space: HarnessSpace, size: int, seed: int, avoid: Collection[Config] = ()) -> Design:
    """Uniform over what is not avoided, without replacement; sorted."""
    _check_size(space, size, space.size - len(avoid))
    rng = np.random.default_rng(seed)
    if 2 * size > space.size:
        allowed = [config for config in space if config not in avoid]
        kept: list[bool] = rng.permutation(np.arange(len(allowed)) < size).tolist()
        return _design(space, compress(allowed, kept), "random", seed)
    drawn: set[Config] = set()
    while len(drawn) < size:  # at least every second draw is new, where little is avoided
        drawn |= {tuple(rng.integers(0, space.level_counts).tolist())} - set(avoid)
    return _design(space, sorted(drawn), "random", seed)


def _check_size(space: HarnessSpace, size: int, available: int) -> None:
    if not 1 <= size <= available:
        avoided = f", of which {space.size - available} are to be avoided" if available < space.size else ""
        raise HarnessError(
            f"cannot choose {size} distinct configurations: the space has {space.size}{avoided}; "
            + (f"ask for 1 to {available}" if available else "avoid fewer")
        )


def _configs(rows: Rows) -> list[Config]:
    return [tuple(row) for row in rows.tolist()]


def _design(space: HarnessSpace, configs: Iterable[Config], method: str, seed: int | None = None) -> Design:
    return Design(space.keys, space.level_counts, tuple(configs), method, seed)


# ---- the sets of Harness Scaling --------------------------------------------------------------------------------

PAPER_SPACE = HarnessSpace.of_levels(("S", 3), ("T", 3), ("O", 3), ("C", 3), ("W", 3))
"""The level counts of Harness Scaling's factor space (Table 5)."""

PAPER_TRAINING: tuple[str, ...] = orthogonal(PAPER_SPACE, 18).names
"""The 18 training harnesses (Table 6), in printed order: columns 2-6 of Taguchi's L18."""

_TABLE_8 = """
S0T2O1C1W2 S2T1O1C2W0 S0T1O0C2W2
S2T2O0C0W1 S0T1O2C0W1 S1T0O0C2W1
S0T0O0C1W2 S0T0O1C0W1 S0T2O2C2W0
S1T0O1C1W0 S1T0O2C2W2 S1T1O0C0W0
S1T2O1C0W2 S1T2O2C1W1 S2T0O2C0W0
S2T1O1C1W2 S2T1O2C2W1 S2T2O0C1W0
"""
PAPER_HELD_OUT: tuple[str, ...] = tuple(_TABLE_8.split())
"""The 18 held-out harnesses (Table 8), in printed order."""
