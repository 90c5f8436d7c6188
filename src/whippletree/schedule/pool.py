"""Sets of harnesses by name: the shorthand that configurations and commands share."""

from __future__ import annotations

import re
from collections.abc import Sequence

from whippletree.errors import HarnessError
from whippletree.harness import designs
from whippletree.harness.designs import Design
from whippletree.harness.space import Config, HarnessSpace

FORMS = "'base', 'training', 'held-out', 'all', 'balanced:RUNS', 'random:RUNS', or a list of names"
_SIZED = re.compile(r"(balanced|random):(\d+)")


def harness_set(space: HarnessSpace, wanted: str | Sequence[str], seed: int) -> Design:
    """The design that a name stands for; raises HarnessError where it stands for none.

    `training` and `held-out` are the paper's Tables 6 and 8, and exist in spaces with its factors. There the sets that
    are chosen or drawn leave the held-out ones out, as long as there are enough others.
    """
    if not isinstance(wanted, str):
        return designs.listed(space, wanted)
    if sized := _SIZED.fullmatch(wanted):
        make = designs.choose if sized[1] == "balanced" else designs.random_subset
        return make(space, int(sized[2]), seed, _kept_apart(space, int(sized[2])))
    match wanted:
        case "base":
            return designs.listed(space, [space.name((0,) * len(space.keys))])
        case "training":
            return designs.listed(space, designs.PAPER_TRAINING)
        case "held-out":
            return designs.listed(space, designs.PAPER_HELD_OUT)
        case "all":
            return designs.full(space)
        case _ if _looks_like_name(space, wanted):
            return designs.listed(space, [wanted])
        case _:
            raise HarnessError(f"'{wanted}' names no set of harnesses; expected {FORMS}")


def _kept_apart(space: HarnessSpace, size: int) -> frozenset[Config]:
    """The paper's held-out harnesses, where the space has its factors and `size` others."""
    if (space.keys, space.level_counts) != (designs.PAPER_SPACE.keys, designs.PAPER_SPACE.level_counts):
        return frozenset()
    held_out = designs.listed(space, designs.PAPER_HELD_OUT).configs
    return frozenset(held_out if size <= space.size - len(held_out) else ())


def _looks_like_name(space: HarnessSpace, text: str) -> bool:
    return text.startswith(space.keys[0]) and any(letter.isdigit() for letter in text)
