import json
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from whippletree.cli import recipe
from whippletree.config import parse
from whippletree.schedule.bandit import Bandit, scaled, unit
from whippletree.schedule.base import Plan
from whippletree.types import Group, Task

NAMES = ("a", "b", "c", "d", "e")


def make_plan(seed=0, harnesses=NAMES, batch_size=3):
    tasks = [Task(f"t{i}", "test", "train", "kind", 1, "do it") for i in range(50)]
    return Plan(harnesses, lambda a, b: int(a != b), tasks, batch_size, group_size=2, seed=seed)


def opened(seed=0, harnesses=NAMES, **options):
    return Bandit(**options).open(make_plan(seed, harnesses))


def take(scheduler, step, learnability, sketch):
    """One step, in which every harness has its own learnability and sketch; gives the harness."""
    assignments = scheduler.assign(step)
    (name,) = {assignment.harness for assignment in assignments}
    groups = [Group(assignment, ()) for assignment in assignments]
    scheduler.observe(step, groups, {"advantage": learnability(name, step)}, np.asarray(sketch(name, step), np.float32))
    return name


def drawn(name, step):
    return np.random.default_rng((ord(name), step)).normal(size=256)


def alike(name, step):
    return 0.5


def uneven(name, step):
    return float(np.random.default_rng((ord(name), step, 1)).random())


def met(scheduler, count, learnability=alike, sketch=drawn):
    return [take(scheduler, step, learnability, sketch) for step in range(count)]


def test_a_step_is_a_batch_in_one_harness():
    step = opened().assign(0)
    assert len({assignment.task.id for assignment in step}) == 3
    assert len({assignment.harness for assignment in step}) == 1
    assert {(a.step, a.num_rollouts, a.purpose) for a in step} == {(0, 2, "train")}


@given(st.integers(0, 10**6))
def test_every_harness_is_met_once_before_any_is_met_twice(seed):
    assert sorted(met(opened(seed), len(NAMES))) == list(NAMES)


def test_the_first_round_is_in_an_order_of_the_seed():
    assert len({tuple(met(opened(seed), len(NAMES))) for seed in range(20)}) > 10


@settings(max_examples=10)
@given(st.integers(0, 10**6), st.integers(0, 25))
def test_a_resumed_run_makes_the_same_choices(seed, interrupted):
    whole, first, second = opened(seed), opened(seed), opened(seed)
    expected = met(whole, 40, uneven)
    met(first, interrupted, uneven)
    second.restore(json.loads(json.dumps(first.state())))
    assert [take(second, step, uneven, drawn) for step in range(interrupted, 40)] == expected[interrupted:]
    assert second.state() == whole.state()


def test_asking_twice_gives_the_same_step():
    scheduler = opened()
    met(scheduler, 9)
    assert scheduler.assign(9) == scheduler.assign(9)


def test_what_teaches_more_is_met_more_often_and_the_rest_not_never():
    counts = Counter(met(opened(floor=0.2), 400, learnability=lambda name, step: 0.9 if name == "c" else 0.1))
    assert counts.most_common(1)[0][0] == "c"
    assert counts["c"] > 100
    assert min(counts[name] for name in NAMES) > 10


def test_what_helps_the_others_is_met_more_often():
    """Four harnesses share a direction, one pulls the other way."""
    shared = drawn("z", 0)
    counts = Counter(met(opened(bonus=0.0), 300, sketch=lambda name, step: -shared if name == "e" else shared))
    assert counts["e"] < min(counts[name] for name in "abcd") / 2


def test_a_harness_does_not_help_itself():
    """Its transferability is that to the averages of the others alone, before its own moves."""
    scheduler = opened(harnesses=("a", "b"))
    plane = {"a": [1.0, 0.0], "b": [0.6, 0.8]}
    first = met(scheduler, 2, sketch=lambda name, step: plane[name])
    assert scheduler.memory.transferabilities == pytest.approx([0.6])
    third = take(scheduler, 2, alike, lambda name, step: [0.0, 1.0])
    other = plane["b" if third == "a" else "a"]
    assert scheduler.memory.transferabilities[-1] == pytest.approx(other[1])
    assert sorted(first) == ["a", "b"]


def test_averages_of_sketches_have_length_one_and_move_by_their_rate():
    scheduler = opened(harnesses=("a",), sketch_decay=0.75)
    met(scheduler, 2, sketch=lambda name, step: [[2.0, 0.0], [0.0, 5.0]][step])
    expected = np.array([0.75, 0.25]) / np.hypot(0.75, 0.25)
    assert scheduler.memory.sketches["a"] == pytest.approx(expected.tolist())


def test_worth_is_the_weighted_sum_on_the_shared_scale():
    scheduler = opened(harnesses=("a", "b"), learnability=0.25, worth_rate=1.0, sketch_decay=0.0)
    worths = []
    for step in range(3):
        name = take(
            scheduler, step, lambda _, step: [0.2, 0.6, 0.4][step], lambda _, step: [[1, 0], [1, 0], [0, 1]][step]
        )
        worths.append(scheduler.memory.worths[name])
    assert worths[0] == 0.5  # nothing to compare with, and no other harness
    assert worths[1] == pytest.approx(0.25 * 1.0 + 0.75 * 0.5)  # the highest so far; the only cosine
    assert worths[2] == pytest.approx(0.25 * 0.5 + 0.75 * 0.0)  # in the middle; against the others' direction


@pytest.mark.parametrize("sketch", [np.zeros(4), np.full(4, np.nan), np.zeros(0)])
def test_a_step_without_a_direction_is_worth_what_it_teaches(sketch):
    scheduler = opened(worth_rate=1.0)
    names = met(scheduler, 5, sketch=lambda name, step: sketch)
    assert scheduler.memory.sketches == {}
    assert scheduler.memory.transferabilities == []
    assert {scheduler.memory.worths[name] for name in names} == {0.5}
    assert sum(scheduler.probabilities()) == pytest.approx(1.0)


@given(
    st.lists(st.floats(0, 1), min_size=5, max_size=5),
    st.lists(st.integers(1, 1000), min_size=5, max_size=5),
    st.floats(0, 1),
    st.floats(0.01, 3),
    st.floats(0.01, 3),
)
def test_the_floor_holds_and_the_bonus_prefers_the_seldom_visited(worths, visits, floor, bonus, temperature):
    scheduler = opened(floor=floor, bonus=bonus, temperature=temperature)
    scheduler.memory.worths = dict(zip(NAMES, worths, strict=True))
    scheduler.memory.visits = dict(zip(NAMES, visits, strict=True))
    found = scheduler.probabilities()
    assert found.sum() == pytest.approx(1.0)
    assert found.min() >= floor / 5 - 1e-12
    scheduler.memory.worths = dict.fromkeys(NAMES, 0.5)
    order = np.array(visits)
    equal = scheduler.probabilities()
    assert all(equal[a] >= equal[b] - 1e-12 for a in range(5) for b in range(5) if order[a] <= order[b])


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=30), st.integers(1, 8))
def test_scaled_values_lie_within_the_window(values, size):
    window = []
    for seen, value in enumerate(values, 1):
        assert 0.0 <= scaled(window, value, size) <= 1.0
        assert window == values[max(0, seen - size) : seen]
    assert scaled([], 3.0, 5) == 0.5
    assert [scaled([1.0, 3.0], value, 5) for value in (1.0, 2.0, 3.0, 9.0)] == [0.0, 0.5, 1.0, 1.0]


def test_vectors_without_direction_have_no_unit():
    assert unit(np.array([3.0, 4.0])).tolist() == pytest.approx([0.6, 0.8])
    assert [unit(np.array(values)) for values in ([], [0.0], [np.inf, 1.0], [np.nan])] == [None] * 4


@pytest.mark.parametrize("name", ["bandit", "mixed"])
def test_the_recipe_is_valid(name):
    assert parse(recipe(name), name).schedule.type == name


def test_the_sketch_is_of_the_size_that_was_asked_for():
    assert opened(sketch_size=12).sketch_size == 12
    assert parse({"schedule": {"type": "bandit", "sketch_size": 12}}, "here").schedule == Bandit(sketch_size=12)


@pytest.mark.parametrize("lag", [1, 2, len(NAMES), len(NAMES) + 2])
def test_steps_that_are_observed_late_do_not_break_the_first_round(lag):
    scheduler, steps = opened(), {}
    for step in range(30):
        for due in range(len(steps), min(step + lag + 1, 30)):
            steps[due] = scheduler.assign(due)
        groups = [Group(assignment, ()) for assignment in steps[step]]
        name = groups[0].assignment.harness
        scheduler.observe(step, groups, {"advantage": uneven(name, step)}, drawn(name, step).astype(np.float32))
    assert sorted(steps[step][0].harness for step in range(len(NAMES))) == list(NAMES)
    assert sum(scheduler.memory.visits.values()) == 30
