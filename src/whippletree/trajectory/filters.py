"""Which calls of a tree are trained (ClawGym II, section 3.2.2).

Invariant: a filter only selects; the tree stays whole, and every call left out is counted under one reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from whippletree.trajectory.tree import CallTree
from whippletree.types import CallKind


@dataclass(frozen=True, slots=True)
class Selection:
    """Positions in `CallTree.nodes` that are trained, in canonical order."""

    kept: tuple[int, ...]
    dropped: Mapping[str, int]
    """Reason -> number of calls: `kind_<kind>`, `dead_leaf`, `over_branching`, `empty`."""


@dataclass(frozen=True, slots=True)
class TreeFilter:
    kinds: tuple[CallKind, ...] = ("main",)
    """Kinds of calls that are trained; the others stay as context where a trained call extends them."""
    max_leaves: int = 16
    """A rollout with more leaves of these kinds, dead ones included, is left out whole."""
    drop_dead_leaves: bool = True

    def select(self, tree: CallTree) -> Selection:
        dropped: Counter[str] = Counter()
        if tree.num_empty:
            dropped["empty"] = tree.num_empty
        kept: list[int] = []
        for position, node in enumerate(tree.nodes):
            if node.call.kind in self.kinds:
                kept.append(position)
            else:
                dropped[f"kind_{node.call.kind}"] += 1
        if len(leaves_among(tree, kept)) > self.max_leaves:
            dropped["over_branching"] = len(kept)
            return Selection((), dropped)
        dead = [position for position in kept if self.drop_dead_leaves and tree.nodes[position].dead]
        if dead:
            dropped["dead_leaf"] = len(dead)
        return Selection(tuple(position for position in kept if position not in set(dead)), dropped)


def leaves_among(tree: CallTree, kept: list[int] | tuple[int, ...]) -> tuple[int, ...]:
    """Those of `kept` that no other of `kept` extends, directly or through calls left out."""
    extended: set[int] = set()
    for position in kept:
        for above in tree.above(position):
            if above in extended:
                break
            extended.add(above)
    return tuple(position for position in kept if position not in extended)
