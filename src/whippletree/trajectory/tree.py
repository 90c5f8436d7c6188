"""The call tree: the model calls of one rollout, merged by exact token prefix (ClawGym II, section 3.2.1).

Invariant: a call's parent is the call whose prompt and completion together are the longest prefix of its prompt, so
that every path from a root is one token sequence as the policy saw it. The tree does not depend on the order in which
calls are given.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from whippletree.types import Ids, ModelCall


@dataclass(frozen=True, slots=True)
class Node:
    """One call in its place."""

    call: ModelCall
    parent: int | None
    """Position in `CallTree.nodes`; None starts a root: a task, a sub-agent, or the segment after a compaction."""
    children: tuple[int, ...]
    start: int
    """Tokens of the parent's path; `call.prompt_ids[start:]` is what was inserted between the two calls."""
    dead: bool
    """A retry that was given up: never extended, while a later call with the same kind and prompt was."""


@dataclass(frozen=True)
class CallTree:
    """Nodes in canonical order: by index, then by content."""

    nodes: tuple[Node, ...]
    num_empty: int
    """Calls without a sampled token; they are not in the tree."""

    @classmethod
    def build(cls, calls: Iterable[ModelCall]) -> CallTree:
        """From the calls of one rollout in any order."""
        given = list(calls)
        ordered = sorted((call for call in given if len(call.completion_ids)), key=_canonical)
        parents = _parents(ordered)
        children: list[list[int]] = [[] for _ in ordered]
        for position, parent in enumerate(parents):
            if parent is not None:
                children[parent].append(position)
        dead = _dead(ordered, parents, children)
        nodes = tuple(
            Node(call, parent, tuple(below), 0 if parent is None else _length(ordered[parent]), is_dead)
            for call, parent, below, is_dead in zip(ordered, parents, children, dead, strict=True)
        )
        return cls(nodes, num_empty=len(given) - len(ordered))

    @cached_property
    def roots(self) -> tuple[int, ...]:
        return tuple(i for i, node in enumerate(self.nodes) if node.parent is None)

    @cached_property
    def leaves(self) -> tuple[int, ...]:
        return tuple(i for i, node in enumerate(self.nodes) if not node.children)

    def above(self, position: int) -> Iterator[int]:
        """The ancestors of a node, nearest first."""
        while (parent := self.nodes[position].parent) is not None:
            yield parent
            position = parent

    def path(self, position: int) -> tuple[int, ...]:
        """Positions from the root to `position` inclusive."""
        return (*tuple(self.above(position))[::-1], position)

    @cached_property
    def branches(self) -> tuple[tuple[int, ...], ...]:
        """The path of each leaf, in canonical order."""
        return tuple(self.path(leaf) for leaf in self.leaves)


def _length(call: ModelCall) -> int:
    return len(call.prompt_ids) + len(call.completion_ids)


def _bytes(*ids: Ids) -> bytes:
    """Fixed width, so that a prefix of tokens is a prefix of bytes and the other way round."""
    return np.concatenate(ids).astype(np.int32).tobytes()


def _canonical(call: ModelCall) -> tuple[int, bytes, bytes, bytes, str]:
    return call.index, _bytes(call.prompt_ids), _bytes(call.completion_ids), call.logprobs.tobytes(), call.kind


def _parents(calls: list[ModelCall]) -> list[int | None]:
    """Position of each call's parent.

    Sorted byte strings keep everything with a common prefix together and after it, so a stack of open prefixes has
    the longest one on top: n log n comparisons of strings, exact.
    """
    events: list[tuple[bytes, bool, int]] = []
    for position, call in enumerate(calls):
        events.append((_bytes(call.prompt_ids, call.completion_ids), False, position))
        events.append((_bytes(call.prompt_ids), True, position))
    events.sort()
    parents: list[int | None] = [None] * len(calls)
    open_paths: list[tuple[bytes, list[int]]] = []
    for ids, is_prompt, position in events:
        while open_paths and not ids.startswith(open_paths[-1][0]):
            open_paths.pop()
        if is_prompt:
            parents[position] = _latest_before(position, open_paths[-1][1]) if open_paths else None
        elif open_paths and open_paths[-1][0] == ids:
            open_paths[-1][1].append(position)
        else:
            open_paths.append((ids, [position]))
    return parents


def _latest_before(position: int, equals: list[int]) -> int:
    """Of calls with equal tokens the one that a later call most plausibly followed: the last one before it."""
    return max((equal for equal in equals if equal < position), default=equals[0])


def _dead(calls: list[ModelCall], parents: list[int | None], children: list[list[int]]) -> list[bool]:
    """Whether each call is unextended while a later sibling with the same kind and prompt is extended."""
    last_extended: dict[tuple[int | None, str, bytes], int] = {}
    keys = [(parent, call.kind, _bytes(call.prompt_ids)) for call, parent in zip(calls, parents, strict=True)]
    for position, key in enumerate(keys):
        if children[position]:
            last_extended[key] = position
    return [not children[i] and last_extended.get(key, -1) > i for i, key in enumerate(keys)]
