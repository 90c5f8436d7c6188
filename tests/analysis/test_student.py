import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from whippletree.analysis.student import t_probability, t_quantile


@pytest.mark.parametrize(
    ("df", "expected"),
    [(1, 12.7062), (2, 4.30265), (3, 3.18245), (4, 2.77645), (9, 2.26216), (30, 2.04227), (500, 1.96472)],
)
def test_the_table_of_97_5_percent(df, expected):
    assert t_quantile(0.975, df) == pytest.approx(expected, rel=1e-5)


@settings(deadline=None)
@given(st.floats(0.001, 0.999), st.integers(1, 200))
def test_quantile_and_probability_are_inverse_and_symmetric(p, df):
    t = t_quantile(p, df)
    assert t == pytest.approx(-t_quantile(1 - p, df), abs=1e-7)
    assert t_probability(abs(t), df) == pytest.approx(abs(2 * p - 1), abs=1e-9)


def test_agrees_with_scipy():
    stats = pytest.importorskip("scipy.stats")
    for df in (1, 2, 3, 4, 5, 8, 17, 100):
        for p in (0.01, 0.3, 0.5, 0.8, 0.95, 0.995, 0.9999):
            assert t_quantile(p, df) == pytest.approx(stats.t.ppf(p, df), rel=1e-8, abs=1e-8)


@pytest.mark.parametrize(("p", "df"), [(0.0, 3), (1.0, 3), (0.5, 0), (float("nan"), 3)])
def test_impossible_arguments(p, df):
    with pytest.raises(ValueError, match="t quantile needs"):
        t_quantile(p, df)
