import re

import pytest

from whippletree import report
from whippletree.errors import StoreError
from whippletree.store.run_dir import RunStore
from whippletree.train import train

PNG = b"\x89PNG\r\n\x1a\n"
LOADS = re.compile(r"""((src|href|action|poster|data)\s*=|url\()\s*["']?\s*(https?:)?//|@import""")


@pytest.fixture(scope="module")
def paths(create, act, tmp_path_factory):
    """Two seeds of one arm, and one run of another."""
    root = tmp_path_factory.mktemp("report")
    changes = {"a": {"seed": 0}, "b": {"seed": 1}, "start": {"steps": 0}}
    for name, change in changes.items():
        act(root / name, create(root / name, {"steps": 1, **change}), train)
    return root


@pytest.fixture(scope="module")
def data(paths):
    return report.collect({"start": [paths / "start"], "trained": [paths / "a", paths / "b"]}, "Two <arms>")


def test_runs_become_policies_curves_and_designs(data, paths):
    assert [policy.label for policy in data.policies] == ["start", "trained"]
    assert {len(cells) for cells in data.policies[0].sets.values()} == {6}
    assert {len(cells) for cells in data.policies[1].sets.values()} == {12}
    assert {curve.metric for curve in data.curves} == {metric for metric, _ in report.PANELS}
    assert {(curve.arm, curve.seed) for curve in data.curves} == {("trained", 0), ("trained", 1)}
    assert set(data.certificates) == {"start: trained on", "trained: trained on", "held out"}
    assert data.timing is not None
    assert data.timing.num_rollouts == 32
    assert set(data.timing.cpu_s) == {"sampling", "sandbox", "learning", "other"}
    assert "# trained" in data.config


def test_the_page_needs_nothing_from_elsewhere(data, tmp_path):
    written = report.write(data, tmp_path)
    page = written[0].read_text()
    assert not LOADS.search(page)
    assert "<script" not in page
    assert "Two &lt;arms&gt;" in page
    assert "<svg" in page or "data:image/png;base64," in page
    assert "[evaluate]" in page


def test_figures_are_written_beside_the_page(data, tmp_path):
    names = ["report.html", "scores.png", "curves.png", "levels.png"]
    written = report.write(data, tmp_path / "new" / "folder")
    assert [path.name for path in written] == names
    assert all(path.read_bytes().startswith(PNG) for path in written[1:])


def test_the_same_data_give_the_same_text(data):
    assert report.as_text(data) == report.as_text(data)
    assert report.as_text(data, markdown=True).startswith("# Two <arms>")


def test_a_run_that_has_not_begun_has_a_report_too(create, tmp_path):
    create(tmp_path / "new")
    data = report.collect({"new": [tmp_path / "new"]}, "New")
    assert "No evaluation has been stored yet." in report.as_text(data)
    assert [path.name for path in report.write(data, tmp_path / "out")] == ["report.html"]
    assert data.timing is None


def test_what_is_no_run_is_refused(tmp_path):
    with pytest.raises(StoreError, match="does not exist"):
        report.collect({"a": [tmp_path / "nothing"]}, "Nothing")


def test_reading_does_not_change_a_run(paths):
    before = (paths / "a" / "run.sqlite").read_bytes()
    report.collect({"a": [paths / "a"]}, "One")
    assert (paths / "a" / "run.sqlite").read_bytes() == before
    with RunStore.open(paths / "a") as store:  # nobody holds it
        assert store.num_steps() == 1
