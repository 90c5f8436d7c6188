"""What is asked and how it is graded.

A source has `name`, `tasks(split)` and `grade(task, ending)` (`base.TaskSource`). The built-in one is in `paddock/`; a
suite from elsewhere is one file that ends with a `base.Suite`, and one line in the table of `suites`. Invariant: the
graders of this package run nothing from a workspace; those of suites are code and run in sandboxes of their own.
"""

from whippletree.tasks.base import Ending, Suite, TaskSource
from whippletree.tasks.paddock import Paddock
from whippletree.tasks.suites import SUITES

__all__ = ["SUITES", "Ending", "Paddock", "Suite", "TaskSource"]
