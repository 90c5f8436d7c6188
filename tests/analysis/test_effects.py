from itertools import product
from math import isnan

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated import evaluation, levels_of, score

from whippletree.analysis.effects import main_effects
from whippletree.analysis.scores import by_level, pass_rate
from whippletree.types import Score

FULL = [f"S{s}T{t}" for s, t in product(range(3), range(2))]


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def additive(harness: str, task: int) -> Score:
    levels = levels_of(harness)
    reward = 0.3 + 0.1 * levels["S"] + 0.05 * levels["T"] + 0.01 * task
    return Score(f"t{task}", "copy", harness, (False,), (reward,))


def reward(cell: Score) -> float:
    return cell.rewards[0]


@given(st.integers(0, 1000))
@settings(deadline=None, max_examples=10)
def test_in_a_full_factorial_balanced_means_are_plain_means(seed):
    cells = evaluation(np.random.default_rng(seed), FULL, 8)
    found = main_effects(cells, levels_of, rng(), resamples=50)
    plain = by_level(cells, levels_of)
    assert {(e.factor, e.level): e.mean.mean for e in found.levels} == pytest.approx(
        {key: s.pass_at_1 for key, s in plain.items()}
    )
    for factor in "ST":
        assert sum(e.effect.mean for e in found.levels if e.factor == factor) == pytest.approx(0.0, abs=1e-12)
    assert all(e.mean.low <= e.mean.mean <= e.mean.high for e in found.levels)
    assert sum(found.variance_share.values()) == pytest.approx(1.0)
    assert not found.confounded


def test_an_unbalanced_set_of_harnesses_is_corrected():
    harnesses = ["S0T0", "S0T1", "S1T1", "S2T1", "S2T0"]
    cells = [additive(h, task) for h in harnesses for task in range(4)]
    found = main_effects(cells, levels_of, rng(), value=reward)
    effects = {(e.factor, e.level): e.effect.mean for e in found.levels}
    assert effects == pytest.approx(
        {("S", 0): -0.1, ("S", 1): 0.0, ("S", 2): 0.1, ("T", 0): -0.025, ("T", 1): 0.025}, abs=1e-12
    )
    assert all(e.effect.low == pytest.approx(e.effect.high) for e in found.levels)  # tasks shift all levels alike
    assert found.variance_share["S"] > found.variance_share["T"] > 0.0


def test_confounded_factors_are_said_to_be():
    cells = [score(f"t{i}", h, i % 2) for h in ("S0T0", "S1T1") for i in range(4)]
    found = main_effects(cells, levels_of, rng())
    assert found.confounded
    assert found.variance_share == {}
    assert [e.mean.mean for e in found.levels] == [0.5] * 4


def test_one_harness_and_no_variance():
    cells = evaluation(rng(), ["S2T1"], 20)
    found = main_effects(cells, levels_of, rng())
    assert [(e.factor, e.level, e.effect.mean) for e in found.levels] == [("S", 2, 0.0), ("T", 1, 0.0)]
    assert found.levels[0].mean.mean == pytest.approx(pass_rate(cells))
    assert found.variance_share == {"S": 0.0, "T": 0.0, "rest": 0.0}


def test_too_few_tasks_for_a_harness_give_no_bounds():
    cells = [score("t0", "S0T0", 1), score("t1", "S0T0", 0), score("t1", "S1T0", 1)]
    found = main_effects(cells, levels_of, rng())
    assert isnan(found.levels[1].mean.low)
    assert found.levels[1].mean.mean == pytest.approx(1.0)
