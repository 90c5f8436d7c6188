import pytest
from hypothesis import given
from hypothesis import strategies as st

from whippletree.analysis.figures import growth_panels
from whippletree.analysis.growth import Growth, exponent, leaves_linear, line

SIZES = (1.0, 2.0, 4.0, 8.0, 16.0)
NUMBERS = st.floats(0.01, 100)


@given(NUMBERS, st.floats(0, 3))
def test_the_exponent_of_a_power_law_is_found(factor, power):
    assert exponent([(size, factor * size**power) for size in SIZES]) == pytest.approx(power, abs=1e-6)


@given(NUMBERS, NUMBERS)
def test_a_fixed_and_a_proportional_cost_make_a_line(fixed, slope):
    points = [(size, fixed + slope * size) for size in SIZES]
    assert line(points) == pytest.approx((fixed, slope), rel=1e-6, abs=1e-6)
    assert leaves_linear(points) is None


def test_a_square_leaves_its_line_as_soon_as_it_is_seen():
    assert leaves_linear([(size, size**2) for size in SIZES]) == 4.0
    assert leaves_linear([(size, 100 + size + 0.5 * size**2) for size in SIZES]) == 16.0


def test_a_figure_has_the_growths_side_by_side():
    total = [(size, 2.0 * size) for size in SIZES]
    growth = Growth("turns", total, {"sampling": [(size, size) for size in SIZES]})
    assert growth_panels([growth, growth], "CPU seconds").startswith(b"\x89PNG")
