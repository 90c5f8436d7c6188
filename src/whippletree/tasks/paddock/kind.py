"""What a kind of job is: a name, a tier, the splits that show it, and a generator of instances.

Invariant: `make` draws from the given rng alone, so equal seeds give equal instances.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random

from whippletree.tasks.paddock.checks import Goals

SPLITS = ("train", "validation", "test")


@dataclass(frozen=True, slots=True)
class Instance:
    """One job."""

    instruction: str
    files: Mapping[str, str]
    """Workspace-relative path -> text at the start."""
    gold: tuple[str, ...]
    """Commands that do the job from the workspace, one agent step each: POSIX sh with coreutils, sed, grep, awk."""
    goals: Goals
    """None of them is met at the start."""
    near_misses: tuple[tuple[str, ...], ...]
    """Command lists that look right and must not pass: wrong source, off by one, wrong destination, damage."""
    habit: tuple[str, ...] = ()
    """What a careless agent does, where the kind is about one: it passes in those instances that ask for no care."""


@dataclass(frozen=True, slots=True)
class Kind:
    name: str
    tier: int
    make: Callable[[Random], Instance]
    splits: tuple[str, ...] = SPLITS
