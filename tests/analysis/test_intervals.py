from math import isnan, sqrt

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated import evaluation, score

from whippletree.analysis.intervals import (
    bootstrap_interval,
    cluster_standard_error,
    common_cells,
    paired_difference,
    paired_t_interval,
    t_interval,
)
from whippletree.analysis.scores import pass_rate, reward_of

HARNESSES = ("S0T0", "S1T0", "S0T1", "S1T1")


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


@given(st.integers(0, 10_000), st.integers(2, 12))
@settings(deadline=None, max_examples=30)
def test_the_interval_holds_the_mean_and_repeats(seed, num_tasks):
    cells = evaluation(rng(seed), HARNESSES, num_tasks)
    found = bootstrap_interval(cells, rng(), resamples=200)
    assert found.mean == pytest.approx(pass_rate(cells))
    assert 0.0 <= found.low <= found.mean <= found.high <= 1.0
    assert found == bootstrap_interval(cells[::-1], rng(), resamples=200)
    wide = bootstrap_interval(cells, rng(), resamples=200, level=0.99)
    assert wide.low <= found.low
    assert wide.high >= found.high


def test_coverage_on_clustered_data_is_near_its_level_and_ignoring_clusters_is_not():
    source = rng(1)
    hits = naive_hits = 0
    repeats = 300
    for _ in range(repeats):
        cells = evaluation(source, HARNESSES, 30)
        found = bootstrap_interval(cells, source, resamples=400)
        hits += found.low <= 0.4 <= found.high
        half = 1.96 * sqrt(found.mean * (1 - found.mean) / (2 * len(cells)))
        naive_hits += abs(found.mean - 0.4) <= half
    assert 0.90 <= hits / repeats <= 0.98
    assert naive_hits < hits


def test_bootstrap_and_closed_form_agree():
    cells = evaluation(rng(2), HARNESSES, 200)[:-7]  # clusters of unequal size
    found = bootstrap_interval(cells, rng(), resamples=8000)
    assert (found.high - found.low) / 2 == pytest.approx(1.96 * cluster_standard_error(cells), rel=0.05)
    rewards = [c for c in cells if c.task_id != "t0"]
    assert cluster_standard_error(rewards, value=reward_of) == pytest.approx(cluster_standard_error(rewards))


def test_a_cell_repeated_in_its_task_adds_no_knowledge():
    once = evaluation(rng(3), HARNESSES[:1], 50)
    assert cluster_standard_error(once * 10) == pytest.approx(cluster_standard_error(once))


def test_all_passed_or_all_failed_still_has_width():
    failed = [score(f"t{i}", h, 0, 0) for i in range(10) for h in HARNESSES]
    found = bootstrap_interval(failed, rng())
    assert (found.mean, found.low) == (0.0, 0.0)
    assert found.high == pytest.approx(0.3085, abs=1e-4)  # exact binomial bound for 0 of 10
    passed = bootstrap_interval([score(f"t{i}", "S0", 1) for i in range(10)], rng())
    assert (passed.mean, passed.high) == (1.0, 1.0)
    assert passed.low == pytest.approx(1 - 0.3085, abs=1e-4)


def test_one_task_gives_no_interval():
    cells = [score("t0", "S0", 1, 0), score("t0", "S1", 1, 1)]
    assert isnan(bootstrap_interval(cells, rng()).low)
    assert isnan(cluster_standard_error(cells))


def test_a_paired_difference_uses_common_cells_and_is_narrower():
    a = evaluation(rng(4), HARNESSES, 60, attempts=8)
    b = [score(c.task_id, c.harness, *(p and i > 0 for i, p in enumerate(c.passes))) for c in a]
    found = paired_difference(a, [*b, score("elsewhere", "S0T0", 1)], rng())
    assert found.mean == pytest.approx(pass_rate(a) - pass_rate(b))
    alone = bootstrap_interval(a, rng())
    assert found.high - found.low < (alone.high - alone.low) / 2
    mirrored = paired_difference(b, a, rng())
    assert (mirrored.mean, mirrored.low, mirrored.high) == pytest.approx((-found.mean, -found.high, -found.low))
    assert len(common_cells(a, b[:7])) == 7
    with pytest.raises(ValueError, match="no common cell"):
        paired_difference(a, [score("elsewhere", "S0T0", 1)], rng())


def test_cells_of_several_seeds_are_joined_before_they_are_paired():
    a = [evaluation(rng(seed), HARNESSES, 20) for seed in (1, 2)]
    b = [evaluation(rng(seed), HARNESSES, 20) for seed in (3, 4)]
    found = paired_difference(a[0] + a[1], b[0] + b[1], rng())
    assert found.mean == pytest.approx(pass_rate(a[0] + a[1]) - pass_rate(b[0] + b[1]))


def test_t_intervals_over_seeds():
    found = t_interval([0.3, 0.35, 0.4])
    half = 4.30265 * 0.05 / sqrt(3)
    assert (found.mean, found.low, found.high) == pytest.approx((0.35, 0.35 - half, 0.35 + half), rel=1e-5)
    assert isnan(t_interval([0.3]).low)
    paired = paired_t_interval({1: 0.3, 2: 0.5, 3: 0.9}, {1: 0.1, 2: 0.3, 4: 0.0})
    assert (paired.mean, paired.low, paired.high) == pytest.approx((0.2, 0.2, 0.2))
    with pytest.raises(ValueError, match="no seed is common"):
        paired_t_interval({1: 0.3}, {2: 0.3})
    with pytest.raises(ValueError, match="at least one"):
        t_interval([])


@settings(deadline=None)
@given(st.lists(st.floats(0, 1), min_size=2, max_size=8))
def test_a_t_interval_is_centred_on_the_mean(values):
    found = t_interval(values)
    assert (found.low + found.high) / 2 == pytest.approx(found.mean, abs=1e-9)
