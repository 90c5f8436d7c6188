"""What is asked and how it is graded.

A source is a class with `name`, `tasks(split)` and `grade(task, workspace)` (`types.TaskSource`), in one file or folder
and one line of the table below. Invariant: grading never runs anything from a workspace and never raises because of it.
"""

from collections.abc import Callable

from whippletree.tasks.paddock import Paddock
from whippletree.types import TaskSource

SOURCES: dict[str, Callable[..., TaskSource]] = {"paddock": Paddock}

__all__ = ["SOURCES", "Paddock"]
