from itertools import combinations
from statistics import fmean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from simulated import levels_of, score

from whippletree.analysis.scores import by_harness, by_level, pass_at_k, pass_rate, summary


@settings(deadline=None)
@given(st.lists(st.booleans(), min_size=1, max_size=7), st.data())
def test_pass_at_k_is_the_share_of_subsets_with_a_pass(passes, data):
    k = data.draw(st.integers(1, len(passes)))
    expected = fmean(any(subset) for subset in combinations(passes, k))
    assert pass_at_k(len(passes), sum(passes), k) == pytest.approx(expected)


@pytest.mark.parametrize("case", [(2, 1, 3), (2, 3, 1), (2, 1, 0), (0, 0, 1)])
def test_pass_at_k_refuses_impossible_numbers(case):
    with pytest.raises(ValueError, match="pass@"):
        pass_at_k(*case)


def test_every_cell_counts_the_same():
    cells = [score("a", "S0T0", 1), score("b", "S0T0", 0, 0, 0, 0), score("c", "S0T0")]
    assert summary(cells).pass_at_1 == 0.5
    assert summary(cells).num_cells == 2
    assert summary(cells).num_attempts == 5
    assert pass_rate(cells) == 0.5
    assert pass_rate(cells, k=2) == 0.0
    with pytest.raises(ValueError, match="pass@5"):
        pass_rate(cells, k=5)
    with pytest.raises(ValueError, match="no cell"):
        summary([])


def test_scores_by_harness_and_by_level():
    cells = [score("a", "S1T0", 1, 1), score("a", "S0T0", 1, 0), score("a", "S0T1", 0, 0)]
    assert {h: s.pass_at_1 for h, s in by_harness(cells).items()} == {"S0T0": 0.5, "S0T1": 0.0, "S1T0": 1.0}
    found = by_level(cells, levels_of)
    assert {key: s.mean_reward for key, s in found.items()} == {
        ("S", 0): 0.25,
        ("S", 1): 1.0,
        ("T", 0): 0.75,
        ("T", 1): 0.0,
    }
