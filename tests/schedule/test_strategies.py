from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from whippletree.harness.designs import PAPER_HELD_OUT, PAPER_SPACE, PAPER_TRAINING
from whippletree.schedule.base import Plan
from whippletree.schedule.strategies import All, Locality, Mixed, RandomAssign, Repeat, Single, Strategy
from whippletree.types import Task

STRATEGIES = [Single(), RandomAssign(), Repeat(), Locality(), All(), Mixed()]
NOTHING = np.zeros(0, np.float32)
SHAPES = {"batch_size": st.integers(1, 9), "num_tasks": st.integers(1, 40), "seed": st.integers(0, 2**32)}


def make_plan(batch_size=4, num_tasks=100, seed=0, harnesses=PAPER_TRAINING):
    tasks = [Task(f"t{i}", "test", "train", "kind", 1, "do it") for i in range(num_tasks)]
    return Plan(tuple(harnesses), differing_factors, tasks, batch_size, group_size=3, seed=seed)


def differing_factors(one, other):
    return PAPER_SPACE.distance(PAPER_SPACE.parse(one), PAPER_SPACE.parse(other))


def steps(strategy, plan, count):
    scheduler = strategy.open(plan)
    return [scheduler.assign(step) for step in range(count)]


def harnesses(step):
    return [assignment.harness for assignment in step]


def tasks(step):
    return [assignment.task.id for assignment in step]


# ---- what all strategies have in common -------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda strategy: strategy.type)
@settings(max_examples=20, deadline=None)
@given(**SHAPES)
def test_a_step_is_a_batch_of_groups_in_training_harnesses(strategy, batch_size, num_tasks, seed):
    for number, step in enumerate(steps(strategy, make_plan(batch_size, num_tasks, seed), 7)):
        assert len(step) == batch_size
        assert {(a.step, a.num_rollouts, a.purpose) for a in step} == {(number, 3, "train")}
        assert set(harnesses(step)) <= set(PAPER_TRAINING)
        assert not set(harnesses(step)) & set(PAPER_HELD_OUT)


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda strategy: strategy.type)
@settings(max_examples=10, deadline=None)
@given(st.permutations(range(12)), st.integers(0, 10**6))
def test_a_step_depends_on_the_seed_and_its_number_alone(strategy, order, seed):
    in_order = steps(strategy, make_plan(seed=seed), 12)
    scheduler = strategy.open(make_plan(seed=seed))
    for step in order:
        scheduler.observe(step, [], {"reward": 0.5}, NOTHING)
        assert scheduler.assign(step) == in_order[step]
    resumed = strategy.open(make_plan(seed=seed))
    resumed.restore(scheduler.state())
    assert resumed.assign(5) == in_order[5]


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda strategy: strategy.type)
def test_seeds_differ(strategy):
    assert tasks(steps(strategy, make_plan(seed=1), 1)[0]) != tasks(steps(strategy, make_plan(seed=2), 1)[0])


@settings(max_examples=20, deadline=None)
@given(steps_per_task=st.integers(1, 4), **SHAPES)
def test_tasks_are_met_equally_often_and_for_as_many_steps_as_asked(steps_per_task, batch_size, num_tasks, seed):
    plan = make_plan(batch_size, num_tasks, seed)
    found = [tasks(step) for step in steps(Locality(steps_per_task=steps_per_task), plan, 6 * steps_per_task)]
    for first in range(0, len(found), steps_per_task):
        assert all(step == found[first] for step in found[first : first + steps_per_task])
    counts = Counter(task for step in found[::steps_per_task] for task in step)
    met = [counts[task.id] for task in plan.tasks]
    assert max(met) - min(met) <= 1


# ---- each strategy ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("strategy", [Repeat(), Locality()], ids=lambda strategy: strategy.type)
@settings(max_examples=20, deadline=None)
@given(batch_size=st.integers(1, 9), blocks=st.integers(1, 20), seed=st.integers(0, 10**6))
def test_anchors_meet_every_harness_equally_often(strategy, batch_size, blocks, seed):
    found = steps(strategy, make_plan(batch_size, seed=seed), 2 * blocks)[::2]
    counts = Counter(name for step in found for name in harnesses(step))
    met = [counts[name] for name in PAPER_TRAINING]
    assert max(met) - min(met) <= 1


def test_single_stays_in_the_first_harness():
    found = steps(Single(), make_plan(), 5)
    assert {name for step in found for name in harnesses(step)} == {PAPER_TRAINING[0]}
    assert len({task for step in found for task in tasks(step)}) == 20


def test_repeat_keeps_task_and_anchor():
    found = steps(Repeat(steps_per_task=3), make_plan(), 9)
    for first in range(0, 9, 3):
        assert len({tuple(zip(tasks(step), harnesses(step), strict=True)) for step in found[first : first + 3]}) == 1


def test_random_draws_each_cell_by_itself_and_evenly():
    found = steps(RandomAssign(), make_plan(batch_size=18), 200)
    assert any(harnesses(a) != harnesses(b) for a, b in zip(found[::2], found[1::2], strict=True))
    counts = Counter(name for step in found for name in harnesses(step))
    assert set(counts) == set(PAPER_TRAINING)
    assert max(abs(count - 200) for count in counts.values()) < 5 * 200**0.5


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 10**6))
def test_locality_moves_to_a_nearest_neighbour_which_in_the_papers_set_is_two_factors_away(seed):
    found = steps(Locality(), make_plan(seed=seed), 12)
    for anchor, neighbour in zip(found[::2], found[1::2], strict=True):
        for a, b in zip(harnesses(anchor), harnesses(neighbour), strict=True):
            assert differing_factors(a, b) == 2


def test_locality_goes_outwards_and_meets_no_harness_twice():
    found = steps(Locality(steps_per_task=18), make_plan(batch_size=3), 18)
    for slot in range(3):
        met = [harnesses(step)[slot] for step in found]
        assert sorted(met) == sorted(PAPER_TRAINING)
        distances = [differing_factors(met[0], name) for name in met]
        assert distances == sorted(distances)


def test_neighbours_at_the_same_distance_take_turns():
    found = steps(Locality(), make_plan(batch_size=18), 60)
    pairs = Counter(
        pair
        for a, b in zip(found[::2], found[1::2], strict=True)
        for pair in zip(harnesses(a), harnesses(b), strict=True)
    )
    reached = {}
    for anchor, neighbour in pairs:
        reached.setdefault(anchor, set()).add(neighbour)
    at_two = {
        anchor: {name for name in PAPER_TRAINING if differing_factors(anchor, name) == 2} for anchor in PAPER_TRAINING
    }
    assert reached == at_two


def test_all_covers_every_harness_for_every_task():
    found = steps(All(), make_plan(batch_size=2), 36)
    for first in (0, 18):
        block = found[first : first + 18]
        assert len({tuple(tasks(step)) for step in block}) == 1
        for slot in range(2):
            assert sorted(harnesses(step)[slot] for step in block) == sorted(PAPER_TRAINING)
    assert tasks(found[0]) != tasks(found[18])


@given(batch_size=st.integers(1, 40), count=st.integers(1, 18), steps_taken=st.integers(1, 30), seed=st.integers(0, 99))
def test_mixed_batches_are_balanced_each_and_together(batch_size, count, steps_taken, seed):
    plan = make_plan(batch_size, seed=seed, harnesses=PAPER_TRAINING[:count])
    counts = Counter(dict.fromkeys(plan.harnesses, 0))
    for step in steps(Mixed(), plan, steps_taken):
        of_step = Counter(harnesses(step))
        assert max(of_step.values()) - min(of_step[name] for name in plan.harnesses) <= 1
        counts.update(harnesses(step))
        assert max(counts.values()) - min(counts.values()) <= 1


def test_mixed_batches_do_not_repeat_their_order():
    found = [tuple(harnesses(step)) for step in steps(Mixed(), make_plan(batch_size=18), 20)]
    assert len(set(found)) == 20
    assert len({first for first, *_ in found}) > 5


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda strategy: strategy.type)
def test_one_harness_is_enough(strategy):
    found = steps(strategy, make_plan(harnesses=PAPER_TRAINING[:1]), 4)
    assert {name for step in found for name in harnesses(step)} == {PAPER_TRAINING[0]}


# ---- settings ---------------------------------------------------------------------------------------------------


def test_the_strategy_is_its_configuration():
    adapter = TypeAdapter(Strategy)
    for strategy in STRATEGIES:
        assert adapter.validate_python(strategy.model_dump()) == strategy
    assert adapter.validate_python({"type": "locality", "steps_per_task": 3}) == Locality(steps_per_task=3)
    for wrong in (
        {"type": "nearest"},
        {"type": "single", "steps_per_task": 2},
        {"type": "repeat", "steps_per_task": 0},
    ):
        with pytest.raises(ValidationError):
            adapter.validate_python(wrong)
