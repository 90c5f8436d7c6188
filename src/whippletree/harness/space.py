"""The factorised harness space: ordered factors with ordered levels, and the names of their combinations.

Invariant: every configuration of a space has exactly one name, and `parse` and `name` are each other's inverse.
Levels carry a patch for the harness spec, which is opaque here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product
from typing import Self

from whippletree.errors import HarnessError
from whippletree.types import Json

Config = tuple[int, ...]
"""One level index for each factor, in the order of the space's factors."""

_PART = re.compile(r"([A-Za-z]+)([0-9]+)")


@dataclass(frozen=True, slots=True)
class Level:
    name: str
    summary: str
    patch: Mapping[str, Json] = field(default_factory=dict[str, Json], hash=False)
    """What the level changes in a harness spec."""


@dataclass(frozen=True, slots=True)
class Factor:
    key: str
    """ASCII letters only, so that names such as `S0T2` can be read back."""
    title: str
    levels: tuple[Level, ...]

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[A-Za-z]+", self.key):
            raise HarnessError(f"factor key {self.key!r} must be one or more ASCII letters, such as 'S'")
        if not self.levels:
            raise HarnessError(f"factor {self.key} has no levels; give it at least one")
        names = [level.name for level in self.levels]
        if twice := _repeated(names):
            raise HarnessError(f"factor {self.key} has two levels named {twice!r}; names must differ")


@dataclass(frozen=True, slots=True)
class HarnessSpace:
    """All combinations of one level per factor; iterates over them in lexicographic order."""

    factors: tuple[Factor, ...]

    def __post_init__(self) -> None:
        if not self.factors:
            raise HarnessError("a harness space needs at least one factor, got none")
        if twice := _repeated(self.keys):
            raise HarnessError(f"two factors have the key {twice}; keys must differ")

    @classmethod
    def of_levels(cls, *factors: tuple[str, int]) -> Self:
        """A space of bare level counts, such as `of_levels(("S", 3), ("T", 2))`, for designs without realisations."""
        return cls(tuple(Factor(key, key, tuple(Level(str(i), "") for i in range(count))) for key, count in factors))

    @property
    def keys(self) -> tuple[str, ...]:
        return tuple(factor.key for factor in self.factors)

    @property
    def level_counts(self) -> tuple[int, ...]:
        return tuple(len(factor.levels) for factor in self.factors)

    @property
    def size(self) -> int:
        """The number of configurations; unlike `len`, not bounded by the machine's word."""
        return math.prod(self.level_counts)

    def __len__(self) -> int:
        return self.size

    def __iter__(self) -> Iterator[Config]:
        return product(*(range(count) for count in self.level_counts))

    def __contains__(self, config: Config) -> bool:
        return len(config) == len(self.factors) and all(
            level in range(count) for level, count in zip(config, self.level_counts, strict=True)
        )

    def name(self, config: Config) -> str:
        """The one name of a configuration, such as `S0T2O1C1W2`; HarnessError where it is not in the space."""
        if config not in self:
            counts = ", ".join(f"{key} {count}" for key, count in zip(self.keys, self.level_counts, strict=True))
            raise HarnessError(f"configuration {config} is not in the space, which has the level counts {counts}")
        return "".join(f"{key}{level}" for key, level in zip(self.keys, config, strict=True))

    def parse(self, name: str) -> Config:
        """The configuration of a name; HarnessError names the part that is wrong."""
        parts = list(self._parts(name))
        given = [key for key, _ in parts]
        for key in given:
            if key not in self.keys:
                raise self._malformed(name, f"there is no factor {key}")
        if twice := _repeated(given):
            raise self._malformed(name, f"factor {twice} is given twice")
        for key in self.keys:
            if key not in given:
                raise self._malformed(name, f"factor {key} is missing")
        for key, expected in zip(given, self.keys, strict=True):
            if key != expected:
                raise self._malformed(name, f"factor {key} stands where {expected} is expected")
        return tuple(self._level(name, factor, text) for factor, (_, text) in zip(self.factors, parts, strict=True))

    def distance(self, a: Config, b: Config) -> int:
        """Hamming distance: the number of factors in which two configurations differ."""
        if len(a) != len(self.factors) or len(b) != len(self.factors):
            raise HarnessError(f"configurations {a} and {b} must both have {len(self.factors)} levels")
        return sum(x != y for x, y in zip(a, b, strict=True))

    def _parts(self, name: str) -> Iterator[tuple[str, str]]:
        position = 0
        while position < len(name):
            part = _PART.match(name, position)
            if part is None:
                raise self._malformed(name, f"cannot read {name[position:]!r}")
            yield part[1], part[2]
            position = part.end()

    def _level(self, name: str, factor: Factor, text: str) -> int:
        top = len(factor.levels) - 1
        if len(text) > 1 and text[0] == "0":
            raise self._malformed(name, f"level {text} of factor {factor.key} has a leading zero")
        if len(text) > len(str(top)) or int(text) > top:
            raise HarnessError(f"harness {name!r}: factor {factor.key} has levels 0-{top}, got {text}")
        return int(text)

    def _malformed(self, name: str, problem: str) -> HarnessError:
        order, example = ", ".join(self.keys), self.name((0,) * len(self.factors))
        return HarnessError(
            f"harness {name!r}: {problem}; write one level for each factor, in the order {order}, such as {example}"
        )


def _repeated(names: list[str] | tuple[str, ...]) -> str | None:
    return next((name for i, name in enumerate(names) if name in names[:i]), None)
