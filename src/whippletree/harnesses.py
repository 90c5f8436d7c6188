"""The harnesses of a run by name: configurations of one factor space, and real agent programs (`pi`, `codex`, ...)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from whippletree.config import HarnessesSection
from whippletree.errors import HarnessError
from whippletree.gateway.server import Gateway
from whippletree.harness import designs
from whippletree.harness.designs import Design
from whippletree.harness.levels import compose, load_space, paper_base, paper_space, patched
from whippletree.harness.space import HarnessSpace
from whippletree.harness.spec import HarnessSpec
from whippletree.rollout import adapters
from whippletree.rollout.adapters import install
from whippletree.rollout.blackbox import BlackBox, Terms
from whippletree.rollout.runner import Runner
from whippletree.rollout.whitebox import WhiteBox
from whippletree.schedule.pool import harness_set


class Harnesses:
    """Names to what they stand for."""

    def __init__(self, section: HarnessesSection) -> None:
        self.space: HarnessSpace
        self.base: HarnessSpec
        if section.space == "paper":
            self.space, self.base = paper_space(), paper_base()
        else:
            self.space, self.base = load_space(Path(section.space))
        if section.draw_names:
            self.base = patched(self.base, {"draw": "task"}, "harnesses.draw_names")
        self._adapters = adapters.known(section.adapters)
        self._specs: dict[str, HarnessSpec] = {}

    def is_program(self, name: str) -> bool:
        """Whether the name is that of an agent program, in any variant."""
        return name.partition(":")[0] in self._adapters

    def names(self, wanted: str | Sequence[str], seed: int) -> tuple[str, ...]:
        """The harnesses of a set: one that `schedule.pool` knows, one name, or a list of names of both kinds.

        Raises HarnessError for a name that is none, and for one that is listed twice.
        """
        if isinstance(wanted, str):
            if self.is_program(wanted):
                adapters.find(wanted, self._adapters)
                return (wanted,)
            return harness_set(self.space, wanted, seed).names
        if not wanted:
            raise HarnessError("no harness is listed; a set holds at least one")
        for place, name in enumerate(wanted):
            if name in wanted[:place]:
                raise HarnessError(f"harness {name!r} is listed twice; a set holds each once")
            if self.is_program(name):
                adapters.find(name, self._adapters)
            else:
                self.space.parse(name)
        return tuple(wanted)

    def design(self, wanted: str | Sequence[str], seed: int) -> Design | None:
        """Those of a set that have a place in the factor space; None where none has."""
        if not isinstance(wanted, str) or self.is_program(wanted):
            inside = [name for name in self.names(wanted, seed) if not self.is_program(name)]
            return designs.listed(self.space, inside) if inside else None
        return harness_set(self.space, wanted, seed)

    def levels(self, name: str) -> dict[str, int]:
        """Factor -> level; empty for a program."""
        if self.is_program(name):
            return {}
        return dict(zip(self.space.keys, self.space.parse(name), strict=True))

    def distance(self, one: str, other: str) -> int:
        """Factors in which two harnesses differ; a program counts as one factor more than there are from all others."""
        if one == other:
            return 0
        if self.is_program(one) or self.is_program(other):
            return len(self.space.keys) + 1
        return self.space.distance(self.space.parse(one), self.space.parse(other))

    def spec(self, name: str) -> HarnessSpec:
        """Raises HarnessError for a name that the space does not have."""
        if name not in self._specs:
            self._specs[name] = compose(self.space, self.space.parse(name), self.base)
        return self._specs[name]

    def runner(self, name: str, gateway: Gateway, terms: Terms) -> Runner:
        """Raises HarnessError for a name that is none, and for a program that is not installed."""
        if not self.is_program(name):
            return WhiteBox(self.spec(name))
        adapter, variant = adapters.find(name, self._adapters)
        installation = install.installed(adapter, install.default_root())
        if installation is None:
            raise HarnessError(f"{name} is not installed: run `whippletree harness install {adapter.name}`")
        return BlackBox(adapter, variant, installation, gateway, terms)
