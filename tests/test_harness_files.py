"""Harness files where harnesses are named: in sets, in commands, and in reports of what their hooks did."""

import json

import pytest
from typer.testing import CliRunner

from whippletree import report
from whippletree.cli import app
from whippletree.config import HarnessesSection, parse, to_toml
from whippletree.errors import HarnessError
from whippletree.harness.named import registry
from whippletree.harnesses import Harnesses
from whippletree.store.run_dir import RunStore
from whippletree.types import Reward, Rollout, StopReason

HOOK = {"event": "after_tool", "condition": "pagination_present", "action": "warn", "message": "there is more."}
BASE = "S0T0O0C0W0"


def cli(*arguments):
    done = CliRunner().invoke(app, [*map(str, arguments)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.fixture
def pager(tmp_path):
    """A file that `harness edit` has printed."""
    path = tmp_path / "pager.toml"
    edit = f"state.hooks.pages: null -> {json.dumps(HOOK)}"
    path.write_text(cli("harness", "edit", BASE, "--edit", edit, "--direction", "stops at the first page"))
    return str(path)


def test_a_file_is_shown_compared_and_edited_again(pager, tmp_path):
    assert "hook pages: after_tool, if pagination_present, warn" in cli("harness", "show", pager)
    shown = json.loads(cli("harness", "show", pager, "--json"))["spec"]
    assert (shown["id"], shown["parent"], shown["direction"]) == ("pager", BASE, "stops at the first page")
    (edit,) = json.loads(cli("harness", "diff", BASE, pager, "--json"))
    assert edit == {"path": "state.hooks.pages", "before": None, "after": {**HOOK, "parameters": {}}}
    printed = tmp_path / "printed.edits"
    printed.write_text(cli("harness", "diff", BASE, pager))
    again = tmp_path / "again.toml"
    again.write_text(cli("harness", "edit", BASE, "--edits", printed))
    assert cli("harness", "diff", pager, again) == ""
    both = tmp_path / "both.toml"
    both.write_text(cli("harness", "edit", pager, "--edit", 'state.hooks.pages.message: "there is more." -> "go on."'))
    assert '"go on."' in cli("harness", "diff", BASE, both)


@pytest.mark.parametrize("edit", ["limits.max_turns: 3 -> 4", "limits.max_turn: 30 -> 4", "limits.max_turns 30"])
def test_an_edit_that_does_not_fit_prints_no_file(edit):
    done = CliRunner().invoke(app, ["harness", "edit", BASE, "--edit", edit])
    assert isinstance(done.exception, HarnessError)
    assert done.stdout == ""


def test_the_registry_is_listed():
    listed = json.loads(cli("harness", "hooks", "--json"))
    assert [entry["name"] for entry in listed["rewriters"]] == [entry.name for entry in registry()["rewriters"]]
    assert listed["events"]["session_end"] == ["warn"]
    assert "pagination_present" in cli("harness", "hooks")


def test_files_stand_in_sets_beside_other_harnesses(pager):
    harnesses = Harnesses(HarnessesSection())
    assert harnesses.names(pager, 0) == (pager,)
    assert harnesses.names([BASE, pager], 0) == (BASE, pager)
    assert harnesses.design([BASE, pager], 0).names == (BASE,)
    assert harnesses.design(pager, 0) is None
    assert harnesses.levels(pager) == {}
    assert harnesses.distance(pager, pager) == 0
    assert harnesses.distance(pager, BASE) == 6
    assert harnesses.spec(pager).state.hooks["pages"].message == "there is more."


def test_the_report_tells_how_often_hooks_fired(pager, tmp_path):
    config = parse({"steps": 0, "harnesses": {"train": [pager]}, "evaluate": {"sets": {"pager": pager}}}, "here")
    RunStore.create(tmp_path / "run", to_toml(config), {}).close()
    rollouts = [
        Rollout(f"r{i}", "t", "copy", pager, 0, "evaluate", (), Reward(1.0), StopReason.FINISHED, counts=counts)
        for i, counts in enumerate([{"hook/pages": 2, "hook/never": 0}, {"hook/pages": 0, "hook/never": 0}])
    ]
    with RunStore.open(tmp_path / "run") as store:
        store.commit_scores("pager", "final", 0, [], rollouts)
    (table,) = report.collect({"run": [tmp_path / "run"]}, "Hooks").tables
    assert table.rows == ((pager, "never", "2", "0", "0"), (pager, "pages", "2", "50", "2"))
