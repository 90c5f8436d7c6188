from math import nan

import pytest

from whippletree.analysis.intervals import Interval
from whippletree.analysis.tables import Table, markdown, percent, text


def test_text_is_aligned_and_markdown_escaped():
    table = Table("Title", ("Policy", "Base"), (("a|b", "1.0"), ("longer name", "2.0")), "A note.")
    assert text(table) == "Title\nPolicy       Base\n-----------  ----\na|b          1.0\nlonger name  2.0\nA note.\n"
    assert markdown(table) == (
        "**Title**\n\n| Policy | Base |\n| --- | --- |\n| a\\|b | 1.0 |\n| longer name | 2.0 |\n\nA note.\n"
    )


def test_rows_must_fit_the_columns():
    with pytest.raises(ValueError, match="must have 2 entries"):
        Table("Title", ("a", "b"), (("1",),))


def test_percent():
    assert percent(Interval(0.347, 0.312, 0.381)) == "34.7 (31.2 to 38.1)"
    assert percent(Interval(0.05, -0.01, 0.11), signed=True) == "+5.0 (-1.0 to +11.0)"
    assert percent(Interval(0.5, nan, nan)) == "50.0"
