"""A frozen pool of sibling harnesses of one base, and the outcomes that speak for each.

A pool is a directory: `pool.json`, and beside it one harness file `NAME.toml` per sibling, whose path stands wherever
the name of a harness does. Invariant: a sibling's file holds what its outcomes were seen with, by the content's hash.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from whippletree.errors import HarnessError
from whippletree.harness.files import read_spec
from whippletree.harness.spec import HarnessSpec

BASE = "base"
"""The name of the base harness among the names of a pool."""
FILE = "pool.json"

Outcomes = Mapping[str, Sequence[float]]
"""Task id -> rewards of the attempts at it under one harness."""


class _Data(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Sibling(_Data):
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*$")]
    parent: str = BASE
    """Of the pool, or a candidate that was not kept."""
    direction: str = ""
    """What it is to repair, in words."""
    causes: tuple[str, ...] = ()
    """The root causes that it answers."""
    hash: str
    """Of its spec's content."""


class Pool(_Data):
    """A base, its siblings in the order in which they were kept, and their outcomes on development tasks."""

    version: Annotated[int, Field(ge=1, le=1)] = 1
    base: str
    """The name of the base harness, as a configuration takes it."""
    base_hash: str
    siblings: tuple[Sibling, ...] = Field(min_length=1)
    outcomes: dict[str, dict[str, tuple[Annotated[float, Field(ge=0, le=1)], ...]]] = {}
    """Name in the pool, or `base` -> task id -> rewards."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        names = [BASE, *self.names]
        if len(set(names)) < len(names):
            raise ValueError(f"the names of siblings must differ from each other and from '{BASE}', got {names[1:]}")
        if strangers := set(self.outcomes) - set(names):
            raise ValueError(f"outcomes of '{min(strangers)}', which is no sibling of this pool")
        return self

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(sibling.name for sibling in self.siblings)

    def repaired(self, name: str, threshold: float = 1.0) -> set[str]:
        """Tasks that the sibling solves and the base does not, of those that both have met."""
        return (self._solved(name, threshold) & self._met(BASE)) - self._solved(BASE, threshold)

    def regressed(self, name: str, threshold: float = 1.0) -> set[str]:
        """Tasks that the base solves and the sibling does not, of those that both have met."""
        return (self._solved(BASE, threshold) & self._met(name)) - self._solved(name, threshold)

    def success(self, name: str, threshold: float = 1.0) -> float:
        """The share of the sibling's attempts that succeeded, each task counting the same; NaN where it met none."""
        rates = [success_rate(rewards, threshold) for rewards in self.outcomes.get(name, {}).values() if rewards]
        return sum(rates) / len(rates) if rates else math.nan

    def _met(self, name: str) -> set[str]:
        return {task for task, rewards in self.outcomes.get(name, {}).items() if rewards}

    def _solved(self, name: str, threshold: float) -> set[str]:
        """Tasks of which at least half of the attempts succeeded."""
        met = self.outcomes.get(name, {})
        return {task for task, rewards in met.items() if rewards and success_rate(rewards, threshold) >= 0.5}


def success_rate(rewards: Sequence[float], threshold: float) -> float:
    """The share of rewards that reach the threshold."""
    return sum(reward >= threshold for reward in rewards) / len(rewards)


def harness_of(directory: Path, name: str) -> str:
    """The name under which a configuration takes a sibling."""
    return str(directory / f"{name}.toml")


def read_pool(directory: Path) -> Pool:
    """Raises HarnessError where there is no pool, or one that disagrees with itself."""
    file = directory / FILE
    try:
        return Pool.model_validate_json(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise HarnessError(
            f"there is no pool in '{directory}': {error}; `whippletree evolve` makes one, a directory with {FILE}"
        ) from None
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "contents"
        raise HarnessError(f"{file} is no pool ({place}: {first['msg']})") from None


def require_fits(pool: Pool, directory: Path, base: HarnessSpec, named: Callable[[str], HarnessSpec]) -> None:
    """Raises HarnessError where the pool was built for another base, or a sibling's file was changed or is gone."""
    if pool.base_hash != base.content_hash:
        raise HarnessError(
            f"the pool in '{directory}' was built for the base harness {pool.base} ({pool.base_hash}), not for "
            f"{base.id} ({base.content_hash})"
        )
    for sibling in pool.siblings:
        path = Path(harness_of(directory, sibling.name))
        found = read_spec(path, named).content_hash
        if found != sibling.hash:
            raise HarnessError(
                f"{path} was changed after the pool was frozen: its hash is {found}, the pool says {sibling.hash}"
            )
