"""Paddock, the built-in suite: procedural workspace jobs with deterministic graders, in three tiers.

Invariant: nothing here reads the clock, the network or files of the package; a task follows from its id.
"""

from whippletree.tasks.paddock.kind import SPLITS, Instance, Kind
from whippletree.tasks.paddock.kinds import KINDS
from whippletree.tasks.paddock.selfcheck import KindReport, RunCommands, check_kind
from whippletree.tasks.paddock.source import Paddock

__all__ = ["KINDS", "SPLITS", "Instance", "Kind", "KindReport", "Paddock", "RunCommands", "check_kind"]
