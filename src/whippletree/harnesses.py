"""The harnesses of a run by name: configurations of one factor space, a central agent with those as its sub-agents
(`central`, `central:S0T1O0C0W0`), files (`mine.toml`), and real agent programs (`pi`, `codex`, ...)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from whippletree.config import HarnessesSection
from whippletree.errors import HarnessError
from whippletree.gateway.server import Gateway
from whippletree.harness import designs
from whippletree.harness.designs import Design
from whippletree.harness.files import is_file, read_spec
from whippletree.harness.levels import compose, load_space, paper_base, paper_space, patched
from whippletree.harness.space import Config, HarnessSpace
from whippletree.harness.spec import HarnessSpec
from whippletree.harness.subagents import CENTRAL, central
from whippletree.home import default_root
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

    def stands_apart(self, name: str) -> bool:
        """Whether the name has no place in the factor space: an agent program's, a central agent's, or a file's."""
        return self.is_program(name) or is_file(name) or name.partition(":")[0] == CENTRAL

    def _config(self, name: str) -> Config:
        """Of the space; of a central agent's name that of its sub-agents."""
        kind, _, under = name.partition(":")
        return (0,) * len(self.space.keys) if name == CENTRAL else self.space.parse(under if kind == CENTRAL else name)

    def _check(self, name: str) -> None:
        """Raises HarnessError where the name stands for no harness; files are read when they are used."""
        if self.is_program(name):
            adapters.find(name, self._adapters)
        elif not is_file(name):
            self._config(name)

    def names(self, wanted: str | Sequence[str], seed: int) -> tuple[str, ...]:
        """The harnesses of a set: one that `schedule.pool` knows, one name, or a list of names of all kinds.

        Raises HarnessError for a name that is none, and for one that is listed twice.
        """
        if isinstance(wanted, str):
            if self.stands_apart(wanted):
                self._check(wanted)
                return (wanted,)
            return harness_set(self.space, wanted, seed).names
        if not wanted:
            raise HarnessError("no harness is listed; a set holds at least one")
        for place, name in enumerate(wanted):
            if name in wanted[:place]:
                raise HarnessError(f"harness {name!r} is listed twice; a set holds each once")
            self._check(name)
        return tuple(wanted)

    def design(self, wanted: str | Sequence[str], seed: int) -> Design | None:
        """Those of a set that have a place in the factor space; None where none has."""
        if not isinstance(wanted, str) or self.stands_apart(wanted):
            inside = [name for name in self.names(wanted, seed) if not self.stands_apart(name)]
            return designs.listed(self.space, inside) if inside else None
        return harness_set(self.space, wanted, seed)

    def levels(self, name: str) -> dict[str, int]:
        """Factor -> level; empty where a name stands apart."""
        if self.stands_apart(name):
            return {}
        return dict(zip(self.space.keys, self.space.parse(name), strict=True))

    def distance(self, one: str, other: str) -> int:
        """Factors in which two harnesses differ; one more than there are where a name stands apart."""
        if one == other:
            return 0
        if self.stands_apart(one) or self.stands_apart(other):
            return len(self.space.keys) + 1
        return self.space.distance(self.space.parse(one), self.space.parse(other))

    def spec(self, name: str) -> HarnessSpec:
        """Raises HarnessError for a name that is none of a configuration or a central agent, and for a bad file."""
        if name not in self._specs:
            self._specs[name] = self._made(name)
        return self._specs[name]

    def _made(self, name: str) -> HarnessSpec:
        kind, _, under = name.partition(":")
        if is_file(name):
            return central(self.spec(under)) if kind == CENTRAL else read_spec(Path(name), self.spec)
        spec = compose(self.space, self._config(name), self.base)
        return central(spec) if kind == CENTRAL else spec

    def runner(self, name: str, gateway: Gateway, terms: Terms) -> Runner:
        """Raises HarnessError for a name that is none, and for a program that is not installed."""
        if not self.is_program(name):
            return WhiteBox(self.spec(name))
        adapter, variant = adapters.find(name, self._adapters)
        installation = install.installed(adapter, default_root())
        if installation is None:
            raise HarnessError(f"{name} is not installed: run `whippletree harness install {adapter.name}`")
        return BlackBox(adapter, variant, installation, gateway, terms)
