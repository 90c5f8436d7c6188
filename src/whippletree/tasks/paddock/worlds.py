"""Tool worlds, whose tasks fail for want of one habit: to turn the page, look things up, try again, read back.

Tier 5 asks and says no more. Tier 4 is the same with a reminder, in the instruction or in what a program prints; its
tasks teach a policy that knows no language what reminders mean. Invariant: in an instance of tier 4 the habit is
needed; in one of tier 5 it is with a chance of TROUBLE, so that it cannot be a rule without a reason.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

MORE = "there are more pages ."
LOOK_UP = "look at the help first ."
SCHEMA = "look at the schema first ."
RETRY = "try again ."
READ_BACK = "read back what you wrote ."

TROUBLE = 0.75


@dataclass(frozen=True, slots=True)
class Reminder:
    """Where the words stand; at most one of the two is not empty."""

    asked: str = ""
    """At the end of the instruction, with a space before it."""
    printed: str = ""
    """By a program of the world."""


def remind(rng: Random, words: str, told: bool) -> Reminder:
    if not told:
        return Reminder()
    return Reminder(asked=f" {words}") if rng.random() < 0.5 else Reminder(printed=words)


def in_trouble(rng: Random, told: bool) -> bool:
    return told or rng.random() < TROUBLE
