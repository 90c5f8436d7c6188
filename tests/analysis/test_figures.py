from io import BytesIO
from math import nan

import pytest
from PIL import Image

from whippletree.analysis.figures import Curve, heatmap, interval_chart, learning_curves
from whippletree.analysis.intervals import Interval


def size(png: bytes) -> tuple[int, int]:
    with Image.open(BytesIO(png)) as image:
        image.load()
        return image.size


def curves() -> list[Curve]:
    points = [(step, step / 100) for step in range(60)]
    return [
        Curve("scaling", "reward", points, seed=1),
        Curve("scaling", "reward", points[:40], seed=2),
        Curve("single", "reward", [(0, 0.1), (1, nan), (2, 0.3)]),
        Curve("single", "entropy", [(0, 2.0)]),
    ]


def test_learning_curves_leave_out_panels_without_data():
    two = size(learning_curves(curves()))
    one = size(learning_curves([c for c in curves() if c.metric == "reward"]))
    assert two[0] > 1.5 * one[0]
    with pytest.raises(ValueError, match="no curve"):
        learning_curves([Curve("a", "unknown", [(0, 1.0)])])


def test_figures_are_the_same_each_time():
    assert learning_curves(curves()) == learning_curves(curves())


def test_heatmap_grows_with_its_rows_and_allows_gaps():
    few = {"start": {("S", 0): 0.1, ("S", 1): 0.1}, "after": {("S", 0): 0.4}}
    many = {"start": {("S", i): 0.1 for i in range(9)}}
    assert size(heatmap(many, "levels"))[1] > size(heatmap(few, "levels"))[1]
    with pytest.raises(ValueError, match="at least one"):
        heatmap({"start": {}}, "levels")


def test_interval_chart_draws_missing_sets_and_bounds():
    policies = {
        "start": {"base": Interval(0.5, 0.4, 0.6), "held_out": Interval(0.1, nan, nan)},
        "after": {"held_out": Interval(0.3, 0.2, 0.4)},
    }
    assert size(interval_chart(policies, "policies"))[0] > 500
    with pytest.raises(ValueError, match="at least one"):
        interval_chart({}, "policies")
