from dataclasses import dataclass, replace

import numpy as np
import pytest

from whippletree.errors import ScheduleError
from whippletree.schedule.base import Plan
from whippletree.schedule.checked import Checked
from whippletree.schedule.strategies import Locality
from whippletree.types import Assignment, Task

NAMES = tuple(f"S{level}T{other}" for level in range(3) for other in range(3))
TASK = Task("t", "test", "train", "kind", 1, "do it")
PLAN = Plan(NAMES, lambda a, b: int(a != b), [TASK], batch_size=2, group_size=4, seed=0)
GOOD = Assignment(7, TASK, "S0T0", 4)


@dataclass
class Scripted:
    assignments: list
    sketch_size: int = 3
    seen: tuple = ()
    kept: object = None

    def assign(self, step):
        return self.assignments

    def observe(self, *args):
        self.seen = args

    def state(self):
        return {"kept": self.kept}

    def restore(self, state):
        self.kept = state["kept"]


def test_what_a_run_can_roll_out_passes():
    scheduler = Locality().open(PLAN)
    assert Checked(scheduler, PLAN).assign(5) == scheduler.assign(5)
    twice = [GOOD, replace(GOOD, num_rollouts=1)]
    assert Checked(Scripted(twice), PLAN).assign(7) == twice


@pytest.mark.parametrize(
    ("assignments", "words"),
    [
        ([], ["nothing to step 7", "at least one group"]),
        ([GOOD, replace(GOOD, harness="S0T3")], ["'t' in step 7", "'S0T3'", "set of 9", "S0T0", "harnesses.train"]),
        ([replace(GOOD, step=6)], ["its step is 6"]),
        ([replace(GOOD, num_rollouts=0)], ["num_rollouts is 0", "plan.group_size"]),
    ],
)
def test_what_it_cannot_is_named(assignments, words):
    with pytest.raises(ScheduleError) as refused:
        Checked(Scripted(assignments), PLAN).assign(7)
    assert all(word in str(refused.value) for word in words)


def test_everything_else_is_the_schedulers_own():
    scheduler = Scripted([GOOD])
    checked = Checked(scheduler, PLAN)
    sketch = np.ones(3, np.float32)
    checked.observe(7, [], {"reward": 1.0}, sketch)
    assert scheduler.seen == (7, [], {"reward": 1.0}, sketch)
    checked.restore({"kept": 5})
    assert (checked.state(), checked.sketch_size) == ({"kept": 5}, 3)
