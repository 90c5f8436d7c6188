import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
from simulated import evaluation, levels_of, score

from whippletree.analysis.figures import Curve
from whippletree.analysis.report import ReportData, Timing, html_report, text_report
from whippletree.analysis.scores import PolicyScores
from whippletree.errors import HarnessError

BASE = ("S0T0",)
HELD_OUT = ("S1T0", "S0T1", "S1T1", "S2T0", "S2T1")


def rng() -> np.random.Generator:
    return np.random.default_rng(3)


def policy(label: str, mean: float) -> PolicyScores:
    source = np.random.default_rng(5)
    sets = {name: evaluation(source, h, 40, mean=mean) for name, h in (("base", BASE), ("held_out", HELD_OUT))}
    return PolicyScores(label, sets)


def data() -> ReportData:
    return ReportData(
        title="Scaling <harnesses>",
        policies=(policy("start", 0.2), policy("scaling & more", 0.6)),
        levels_of=levels_of,
        curves=(Curve("scaling", "reward", [(0, 0.2), (1, 0.6)]),),
        certificates={"training design": "every pair of levels once\n"},
        config="[policy]\nname = 'nano'\n",
        timing=Timing(100, 60.0, {"sandbox": 30.0, "policy": 20.0}),
        notes=("One seed only.",),
    )


class Reader(HTMLParser):
    """Collects what a page would load, and checks that tags are closed in order."""

    void = ("meta", "img", "br")

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loads: list[str] = []

    def handle_starttag(self, tag, attrs):
        if tag not in self.void:
            self.open.append(tag)
        self.loads += [value for name, value in attrs if name in ("src", "href")]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_page_is_one_whole_file():
    page = html_report(data(), rng())
    reader = Reader()
    reader.feed(page)
    assert reader.open == []
    assert len(reader.loads) == 3
    assert all(url.startswith("data:image/png;base64,") for url in reader.loads)
    assert "http" not in re.sub('base64,[^"]*', "", page)
    assert "Scaling &lt;harnesses&gt;" in page
    assert "scaling &amp; more" in page
    for part in (
        "every pair of levels once",
        "name = &#x27;nano&#x27;",
        "One seed only.",
        "100 rollouts at 2.00 per CPU",
    ):
        assert part in page


def test_numbers_of_the_headline_stand_in_the_tables():
    words = text_report(data(), rng())
    headline, tables = words.split("\n\n", 1)[1].split("\n\n", 1)
    assert headline.startswith("In harnesses never met in training, scaling & more passes ")
    assert "points (95% interval" in headline
    assert "more than start" in headline
    numbers = re.findall(r"\d+\.\d", headline)
    assert len(numbers) == 6
    assert all(number in tables for number in numbers)
    page = html_report(data(), rng())
    assert all(number in page for number in numbers)


def test_a_difference_within_noise_is_not_called_one():
    words = text_report(replace(data(), policies=(policy("a", 0.4), policy("b", 0.4))), rng())
    assert "cannot be told from a" in words
    down = text_report(replace(data(), policies=(policy("a", 0.6), policy("b", 0.2))), rng())
    assert "less than a" in down


def test_markdown_has_the_same_tables():
    words = text_report(data(), rng(), as_markdown=True)
    assert words.startswith("# Scaling <harnesses>\n")
    assert "| Policy | Base | Held-out |\n| --- | --- | --- |\n| start | " in words
    assert "- One seed only." in words


def test_a_run_without_evaluation_has_a_report():
    page = html_report(replace(data(), policies=(PolicyScores("start", {"base": []}),)), rng())
    assert "No evaluation has been stored yet." in page
    assert "Learning curves" in page


def test_harnesses_outside_the_space_have_no_factor_levels():
    def strict(harness: str) -> dict[str, int]:
        raise HarnessError(f"{harness} is not in the space")

    cells = [score(f"t{i}", h, i % 2) for i in range(4) for h in ("claude-code:minimal", "other")]
    only = replace(data(), policies=(PolicyScores("start", {"claude-code:minimal": cells}),), levels_of=strict)
    page = html_report(only, rng())
    assert "In claude-code:minimal, start passes 50.0%" in page
    assert "Factor levels" not in page
