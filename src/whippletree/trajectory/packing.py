"""Micro-batches for the trainer: rows that begin alike are packed into trees, whose tokens are computed once.

Invariant: every sample is in exactly one pack, and its tokens are those at `Pack.places`, in order; which pack that is
follows from the samples and the budget alone.

A tree is kept as segments. The first is the longest of its rows, whole; every other row, again the longest first, is a
segment from the place on where it leaves one that is there, and sees that one up to this place. So a conversation with
many short branches has two levels, however many places it branches at.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import TypeVar

import numpy as np

from whippletree.types import Ids, Sample

T = TypeVar("T")

MIN_SHARED_TOKENS = 16
"""A shorter stretch between two branchings is computed again by each branch: one pass more costs more."""
PASS_TOKENS = 48
"""One pass more costs about as much as so many tokens."""
REACH = 1024
"""Attending to so many tokens costs about as much as everything else about a token."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Tokens [start, end) of a sample, computed together; what they see before `start` is on their parent's path."""

    row: int
    start: int
    end: int
    parent: int
    """Position in `Pack.segments`, -1 for a root."""
    first: int
    """Place of its first token in the pack."""
    level: int
    """How many segments are above it."""

    def __len__(self) -> int:
        return self.end - self.start


@dataclass(frozen=True)
class Pack:
    """One micro-batch. Segments are in depth-first order, the deepest branch of each first."""

    rows: tuple[int, ...]
    """The samples."""
    ends_in: tuple[int, ...]
    """Per row the segment that holds its last token."""
    lengths: tuple[int, ...]
    """Per row its tokens."""
    segments: tuple[Segment, ...]
    together: bool = False
    """Whether segments of one level are computed in one pass, however much is padded."""

    @property
    def num_tokens(self) -> int:
        """Tokens to compute."""
        return sum(map(len, self.segments))

    @cached_property
    def paths(self) -> list[Ids]:
        """Per segment the places in the pack of all tokens from the root to its end, shape (end,)."""
        found: list[Ids] = []
        for segment in self.segments:
            own = np.arange(segment.first, segment.first + len(segment), dtype=np.int64)
            found.append(np.concatenate([found[segment.parent][: segment.start], own]) if segment.start else own)
        return found

    @cached_property
    def places(self) -> list[Ids]:
        """Per row the places of its tokens in the pack, shape (T,)."""
        return [self.paths[leaf][:length] for leaf, length in zip(self.ends_in, self.lengths, strict=True)]

    @cached_property
    def seen_until(self) -> Ids:
        """Per token the place after the last that sees it, shape (N,): all from itself to there do, and no other."""
        ends = np.empty(self.num_tokens, dtype=np.int64)
        for segment in self.segments:
            ends[segment.first : segment.first + len(segment)] = segment.first + len(segment)
        for segment in reversed(self.segments):  # children first, so that a parent's first token is seen by all below
            if segment.start:
                parent = self.segments[segment.parent]
                seen = ends[parent.first : parent.first + segment.start - parent.start]
                np.maximum(seen, int(ends[segment.first]), out=seen)
        return ends

    def passes(self) -> list[list[int]]:
        """Segments that are computed together, ancestors first: of one level and of about one length."""
        levels: dict[int, list[int]] = {}
        for number, segment in enumerate(self.segments):
            levels.setdefault(segment.level, []).append(number)
        if self.together:
            return [levels[level] for level in sorted(levels)]
        return [chosen for level in sorted(levels) for chosen in self._split(levels[level])]

    def _split(self, numbers: list[int]) -> list[list[int]]:
        """The cheapest cut of one level into passes, by length."""
        ordered = sorted(numbers, key=lambda number: len(self.segments[number]))
        widths = [len(self.segments[number]) for number in ordered]
        starts = [self.segments[number].start for number in ordered]
        best: list[tuple[float, int]] = [(0.0, 0)]
        """Per number of segments the least cost of computing so many, and where the last pass begins."""
        for high in range(1, len(ordered) + 1):
            width, reach, options = widths[high - 1], 0, list[tuple[float, int]]()
            for low in range(high - 1, -1, -1):
                reach = max(reach, starts[low])
                cost = PASS_TOKENS + (high - low) * width * (1 + (reach + width / 2) / REACH)
                options.append((best[low][0] + cost, low))
            best.append(min(options))
        cuts = [len(ordered)]
        while cuts[-1]:
            cuts.append(best[cuts[-1]][1])
        return [ordered[low:high] for low, high in pairwise(cuts[::-1])]


@dataclass(frozen=True, slots=True)
class _Forest:
    """All samples in lexical order, those apart that are the beginning of another."""

    rows: list[int]
    carried: dict[int, list[int]]
    """Per row those that are a beginning of it, or equal."""
    lengths: list[int]
    shared: list[int]
    """Tokens that each row has in common with the one before it; 0 for the first."""


def num_unique(samples: Sequence[Sample]) -> int:
    """Tokens of the samples, each shared prefix counted once."""
    forest = _forest(samples)
    return sum(forest.lengths) - sum(forest.shared)


def micro_batches(samples: Sequence[Sample], max_tokens: int, *, packing: bool = True) -> list[Pack]:
    """Fill packs up to a budget of computed tokens; only what does not fit a pack of its own is above it.

    What shares most stays together first. Without `packing` every row is computed by itself, beside others of about its
    length.
    """
    if not packing:
        alone = sorted(range(len(samples)), key=lambda row: len(samples[row].ids))
        return [
            _pack([[row] for row in rows], [0] * len(rows), samples, together=True)
            for rows in _fill([([row], len(samples[row].ids)) for row in alone], max_tokens)
        ]
    forest = _forest(samples)
    shared = _without_short_stretches(forest.shared)
    units = _units(forest.lengths, shared, max_tokens)
    units.sort(key=lambda unit: max(forest.lengths[k] for k in unit))
    costs = [sum(forest.lengths[k] - shared[k] for k in unit) + shared[unit[0]] for unit in units]
    packs: list[Pack] = []
    for chosen in _fill([([unit], cost) for unit, cost in zip(units, costs, strict=True)], max_tokens):
        rows = [[forest.rows[k], *forest.carried[forest.rows[k]]] for unit in chosen for k in unit]
        packs.append(_pack(rows, [shared[k] if k > unit[0] else 0 for unit in chosen for k in unit], samples))
    return packs


def _fill(units: Sequence[tuple[list[T], int]], max_tokens: int) -> list[list[T]]:
    """Neighbouring units together, while their costs fit."""
    filled: list[list[T]] = []
    room = 0
    for unit, cost in units:
        if not filled or cost > room:
            filled.append([])
            room = max_tokens
        filled[-1] += unit
        room -= cost
    return filled


def _forest(samples: Sequence[Sample]) -> _Forest:
    keys = [sample.ids.astype(">i8").tobytes() for sample in samples]  # in the order of the tokens
    rows: list[int] = []
    carried: dict[int, list[int]] = {}
    for row in sorted(range(len(samples)), key=keys.__getitem__, reverse=True):
        if rows and keys[rows[-1]].startswith(keys[row]):
            carried[rows[-1]].append(row)
        else:
            rows.append(row)
            carried[row] = []
    rows.reverse()
    shared = [common_prefix(samples[a].ids, samples[b].ids) for a, b in pairwise(rows)]
    return _Forest(rows, carried, [len(samples[row].ids) for row in rows], [0, *shared] if rows else [])


def common_prefix(a: Ids, b: Ids) -> int:
    length = min(len(a), len(b))
    differs = np.flatnonzero(a[:length] != b[:length])
    return int(differs[0]) if len(differs) else length


def _without_short_stretches(shared: list[int]) -> list[int]:
    """The same tree, with branchings moved up to the one before where less than MIN_SHARED_TOKENS lie between them."""
    found = np.array(shared, dtype=np.int64)
    todo = [(1, len(shared), 0)]
    while todo:
        low, high, above = todo.pop()
        if low < high:
            depth = found[low:high].min()
            cuts = (low + np.flatnonzero(found[low:high] == depth)).tolist()
            here = int(depth) if depth - above >= MIN_SHARED_TOKENS else above
            found[cuts] = here
            todo += [(a + 1, b, here) for a, b in pairwise([low - 1, *cuts, high])]
    return found.tolist()


def _units(lengths: list[int], shared: list[int], max_tokens: int) -> list[range]:
    """Neighbouring rows that stay together: those that share most are joined first, while they fit."""
    begin = {k + 1: k for k in range(len(lengths))}
    """Of the unit that ends there."""
    end = {k: k + 1 for k in range(len(lengths))}
    cost = list(lengths)
    """Of the unit that begins there."""
    for k in sorted(range(1, len(lengths)), key=lambda k: -shared[k]):
        low, high = begin[k], end[k]
        together = cost[low] + cost[k] - shared[k]
        if shared[k] and together <= max_tokens:
            del begin[k], end[k]
            begin[high], end[low], cost[low] = low, high, together
    return [range(low, high) for low, high in sorted(end.items())]


def _pack(rows: list[list[int]], shared: list[int], samples: Sequence[Sample], *, together: bool = False) -> Pack:
    """The tree of neighbouring rows, each with those that are a beginning of it."""
    lengths = [len(samples[row[0]].ids) for row in rows]
    segments: list[Segment] = []
    ends_in = [0] * len(rows)
    roots = [k for k in range(len(rows)) if not shared[k]]
    todo = [(low, high, 0, -1) for low, high in pairwise([*roots, len(rows)])][::-1]
    first = 0
    while todo:
        low, high, start, parent = todo.pop()
        longest = max(range(low, high), key=lambda k: lengths[k])
        level = segments[parent].level + 1 if start else 0
        ends_in[longest] = len(segments)
        segments.append(Segment(rows[longest][0], start, lengths[longest], parent, first, level))
        first += lengths[longest] - start
        branches = sorted(_branches(shared, low, high, longest))
        todo += [(a, b, depth, ends_in[longest]) for depth, a, b in branches]
    every = [(row, ends_in[k]) for k, same in enumerate(rows) for row in same]
    return Pack(
        rows=tuple(row for row, _ in every),
        ends_in=tuple(leaf for _, leaf in every),
        lengths=tuple(len(samples[row].ids) for row, _ in every),
        segments=tuple(segments),
        together=together,
    )


def _branches(shared: list[int], low: int, high: int, trunk: int) -> list[tuple[int, int, int]]:
    """The rows that leave `trunk`, among neighbours [low, high): (where, first, last + 1) of each branch."""
    found: list[tuple[int, int, int]] = []
    for k in range(trunk + 1, high):
        if not found or shared[k] <= found[-1][0]:
            found.append((shared[k], k, k + 1))
        else:
            found[-1] = (*found[-1][:2], k + 1)
    left: list[tuple[int, int, int]] = []
    for k in range(trunk - 1, low - 1, -1):
        if not left or shared[k + 1] <= left[-1][0]:
            left.append((shared[k + 1], k, k + 1))
        else:
            left[-1] = (left[-1][0], k, left[-1][2])
    return found + left
