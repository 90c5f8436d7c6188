"""Real agent programs, installed and run: one in the fast tests, all in the slow ones."""

import json

import pytest
from typer.testing import CliRunner

from whippletree.cli import app
from whippletree.errors import HarnessError
from whippletree.home import default_root
from whippletree.rollout.adapters import ADAPTERS, install
from whippletree.store.run_dir import RunStore

NAMES = [f"{a.name}:{suffix}" if suffix else a.name for a in ADAPTERS.values() for suffix in a.variants]
BRANCHING = {"smolagents", "openclaw:full"}
"""They rewrite what was said, so that each turn is a branch."""


def cli(*arguments):
    done = CliRunner().invoke(app, [*map(str, arguments)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


def installed(name):
    """Install into the place that `harness install` uses; skip where that cannot be done here."""
    try:
        return install.install(ADAPTERS[name.partition(":")[0]], default_root(), print)
    except HarnessError as error:
        pytest.skip(f"{name} cannot be installed here: {error}")


def examine(name):
    installed(name)
    (found,) = json.loads(cli("harness", "doctor", name, "--json"))
    assert found["problem"] is None
    assert found["kinds"]["main"] == 3
    assert found["trainable_tokens"] > 0
    assert found["version"] == ADAPTERS[name.partition(":")[0]].package.version
    if name not in BRANCHING:
        assert found["one_path"] or found["counts"].get("reencoded")


def test_a_real_program_plays_an_episode():
    examine("smolagents")


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in NAMES if name != "smolagents"])
def test_every_program_plays_an_episode(name):
    examine(name)


@pytest.mark.slow
def test_a_program_and_a_white_box_harness_are_trained_in_one_batch(tmp_path):
    installed("claude-code:minimal")
    settings = ["policy.max_context=2048", "policy.max_positions=2049", "policy.num_slots=8", "policy.lockstep=false"]
    settings += ["rollout.max_calls=3", "steps=1", "batch_size=2", "group_size=2", "schedule.type=mixed"]
    settings += ['harnesses.train=["S0T0O0C0W0", "claude-code:minimal"]', 'evaluate.sets={ base = "base" }']
    settings += ["evaluate.rollouts_per_set=2"]
    cli("train", "scaling", "--plain", "--dir", tmp_path / "run", *(f"--set={setting}" for setting in settings))
    with RunStore.open(tmp_path / "run", read_only=True) as store:
        rollouts = store.rollouts(purpose="train", with_calls=True)
    assert {rollout.harness for rollout in rollouts} == {"S0T0O0C0W0", "claude-code:minimal"}
    assert [rollout.error for rollout in rollouts] == [None] * 4
    assert all(len(call.completion_ids) for rollout in rollouts for call in rollout.calls)


def test_programs_are_listed():
    rows = json.loads(cli("harness", "list", "--json"))
    assert {"pi", "codex", "claude-code:minimal", "dsh"} <= {row["harness"] for row in rows}


def test_a_program_that_is_not_installed_is_named_before_any_rollout(tmp_path, monkeypatch):
    monkeypatch.setenv("WHIPPLETREE_HOME", str(tmp_path / "nothing"))
    done = CliRunner().invoke(app, ["train", "pi", "--plain", "--dir", str(tmp_path / "run")])
    assert isinstance(done.exception, HarnessError)
    assert "whippletree harness install pi" in str(done.exception)
    assert not (tmp_path / "run").exists()
