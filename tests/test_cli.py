import asyncio
import json
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from whippletree import cli, show
from whippletree.config import parse, to_toml
from whippletree.errors import SandboxError
from whippletree.store.run_dir import RunStore
from whippletree.tasks.paddock.kinds import KINDS
from whippletree.types import Score


def test_the_program_is_installed_and_says_errors_without_a_traceback(tmp_path):
    command = [sys.executable, "-m", "whippletree", "train", "--resume", str(tmp_path / "[/nowhere]")]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.startswith(f"error: {tmp_path}/[/nowhere] does not exist")
    assert len(ended.stderr.strip().splitlines()) == 1


def test_the_space_is_shown(run):
    code, text, _ = run("space", "show")
    assert code == 0
    assert "243 harnesses, from S0T0O0C0W0 on" in text
    assert all(f"{key}{level}" in text for key in "STOCW" for level in range(3))
    shown = json.loads(run("space", "show", "--json")[1])
    assert shown["size"] == 243
    assert [factor["key"] for factor in shown["factors"]] == list("STOCW")


def test_a_design_comes_with_its_certificate(run):
    code, text, _ = run("space", "design", "--runs", 18, "--held-out", 5)
    assert code == 0
    assert "training" in text
    assert "held_out" in text
    shown = json.loads(run("space", "design", "--runs", 9, "--held-out", 3, "--seed", 1, "--json")[1])
    assert {name: len(set(part["harnesses"])) for name, part in shown.items()} == {"training": 9, "held_out": 3}
    assert not set(shown["training"]["harnesses"]) & set(shown["held_out"]["harnesses"])
    assert all(part["certificate"] and part["method"] for part in shown.values())


def test_a_harness_is_shown_as_the_model_sees_it(run):
    plain = run("harness", "show", "S1T2O0C1W2")[1]
    told = run("harness", "show", "S1T2O0C1W2", "--task", "paddock/train/copy/0")[1]
    assert "(the instruction of the task)" in plain
    assert "(the instruction of the task)" not in told
    spec = json.loads(run("harness", "show", "S1T2O0C1W2", "--json")[1])
    other = json.loads(run("harness", "show", "S1T2O0C1W1", "--json")[1])
    drawn = json.loads(run("harness", "show", "S1T2O0C1W2", "--draw-names", "--json")[1])
    assert spec["hash"] in plain
    assert spec["spec"]["id"] == "S1T2O0C1W2"
    assert len({spec["hash"], other["hash"], drawn["hash"]}) == 3


def test_tasks_are_listed_and_shown(run):
    assert all(kind in run("tasks", "list")[1] for kind in KINDS)
    assert {row["name"] for row in json.loads(run("tasks", "list", "--json")[1])} == set(KINDS)
    text = run("tasks", "show", "paddock/train/copy/17")[1]
    assert "--- gold\ncp " in text
    assert ".txt" in text


def test_kinds_of_task_are_checked_in_real_sandboxes(run, sandbox_kind):
    code, text, _ = run("tasks", "check", "copy", "--seeds", 1, "--sandbox", sandbox_kind)
    assert code == 0
    assert text.split("\n")[1].split() == ["copy", "1", "0", "0", "0"]


def test_every_key_is_explained(run):
    text = run("config", "explain")[1]
    assert all(key in text for key in ("optimizer.lr", "sandbox.limits.memory_mb", "schedule.steps_per_task"))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["train"], ["give either a configuration", "train scaling"]),
        (["train", "scaling", "--resume", "x"], ["give either a configuration"]),
        (["train", "--resume", "x", "--set", "seed=1"], ["do not go with --resume"]),
        (["train", "headline2"], ["no recipe and no file 'headline2'", "quickstart", "scaling", "single"]),
        (["train", "nowhere.toml"], ["there is no file 'nowhere.toml'"]),
        (["train", "quickstart"], ["quickstart is a study", "whippletree study"]),
        (["train", "scaling", "--set", "stepz=1"], ["unknown key 'stepz'", "did you mean steps?"]),
        (["train", "scaling", "--set", "steps"], ["expected KEY=VALUE"]),
        (["train", "scaling", "--set", "tasks.tiers=[9]"], ["tasks.tiers.0 = 9"]),
        (["study", "scaling"], ["scaling has no arms", "whippletree train"]),
        (["report", "nowhere"], ["nowhere does not exist"]),
        (["runs", "nowhere"], ["nowhere is not a folder"]),
        (["harness", "show", "S9"], ["S9"]),
        (["harness", "show", "S0T0O0C0W0", "--task", "copy/1"], ["'copy/1'", "paddock/SPLIT/KIND/N"]),
        (["tasks", "show", "copy/1"], ["'copy/1'"]),
        (["tasks", "check", "colour"], ["no kind 'colour'"]),
        (["tasks", "check", "copy", "--sandbox", "jail"], ["unknown sandbox kind 'jail'"]),
        (["space", "show", "--space", "nowhere.toml"], ["nowhere.toml"]),
        (["space", "design", "--runs", "100000"], ["100000"]),
        (["nano", "make", "weights", "--set", "layers=2"], ["unknown key 'layers'"]),
        (["space", "design", "--runs", "0"], ["Invalid value"]),
        (["sing"], ["No such command"]),
    ],
)
def test_mistakes_end_with_one_message_and_code_2(arguments, words, run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert all(word in err for word in words)
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def recipe(tree, tmp_path):
    path = tmp_path / "tiny.toml"
    path.write_text(to_toml(parse(tree, "here")))
    return path


def test_a_run_is_made_listed_evaluated_and_reported(run, recipe, tmp_path):
    folder = tmp_path / "runs"
    small = ["--set", "evaluate.rollouts_per_set=2", "--plain"]
    code, text, err = run("train", recipe, "--dir", folder / "one", "--set", "steps=1", *small)
    assert code == 0
    assert "run directory" in err
    assert f"written: {folder}/one/report.html" in text
    code, text, _ = run("evaluate", recipe, "--dir", folder / "two", "--json", *small)
    scores = json.loads(text)
    assert {name: len(part["cells"]) for name, part in scores.items()} == {"base": 2, "held_out": 2}
    assert all(0 <= part["pass_at_1"] <= part["mean_reward"] <= 1 for part in scores.values())
    checkpoint = folder / "one" / "checkpoints" / "step-000000"
    code, text, _ = run("evaluate", recipe, "--model", checkpoint, "--dir", folder / "three", "--json", *small)
    assert {name: len(part["cells"]) for name, part in json.loads(text).items()} == {"base": 2, "held_out": 2}
    again = run("evaluate", recipe, "--dir", folder / "two", "--json", *small)[1]
    assert json.loads(again) == scores
    code, _, err = run("evaluate", recipe, "--dir", folder / "two", "--json", *small, "--set", "seed=9")
    assert code == 2
    assert "was made with other settings" in err

    (folder / "broken").mkdir()
    (folder / "broken" / "run.sqlite").write_text("no database")
    code, text, err = run("runs", folder)
    rows = {line.split()[0].rsplit("/", 1)[1]: line.split()[1:3] for line in text.splitlines()[1:]}
    assert rows == {
        "one": ["finished", "1"],
        "two": ["finished", "0"],
        "three": ["finished", "0"],
        "broken": ["unreadable", "0"],
    }
    assert "broken" in err

    code, text, _ = run("report", folder / "two", folder / "one", "--dir", tmp_path / "page")
    assert code == 0
    assert "Differences" in text or "difference" in text
    assert (tmp_path / "page" / "report.html").is_file()


def test_runs_called_alike_are_told_apart_by_their_paths(run, create, tmp_path):
    for seed in ("seed-0", "seed-1"):
        create(tmp_path / seed / "scaling")
        with RunStore.open(tmp_path / seed / "scaling") as store:
            store.commit_scores("base", "final", 2, [Score("t", "k", "S0T0O0C0W0", (True,), (1.0,))])
    text = run("report", tmp_path / "seed-0/scaling", tmp_path / "seed-1/scaling", "--dir", tmp_path / "page")[1]
    assert f"{tmp_path}/seed-0/scaling" in text
    assert f"{tmp_path}/seed-1/scaling" in text


@pytest.mark.parametrize("command", ["train", "evaluate"])
def test_a_policy_that_cannot_be_loaded_leaves_no_run_behind(command, run, recipe, tmp_path):
    folder = tmp_path / "run"
    option = ["--set", "policy.model=/nowhere"] if command == "train" else ["--model", tmp_path / "it's [not] there"]
    code, out, err = run(command, recipe, "--dir", folder, *option)
    assert (code, out) == (2, "")
    assert "cannot load a model from" in err
    assert "there is no such directory" in err
    assert not folder.exists()


def test_a_run_that_is_resumed_is_never_removed(run, create, tmp_path):
    create(tmp_path / "run", {"policy": {"model": "/nowhere"}})
    assert run("train", "--resume", tmp_path / "run")[0] == 2
    assert (tmp_path / "run" / "run.sqlite").exists()


def test_a_directory_in_use_is_left_alone(run, recipe, tmp_path):
    code, _, err = run("train", recipe, "--dir", tmp_path)
    assert code == 2
    assert "exists already" in err
    assert recipe.exists()


def test_a_disk_error_is_a_message(run, create, tmp_path, monkeypatch):
    create(tmp_path / "run")
    (tmp_path / "page").mkdir()
    (tmp_path / "page" / "figures").write_text("a file in the way")
    code, _, err = run("report", tmp_path / "run", "--dir", tmp_path / "page")
    assert code == 2
    assert "error: [Errno 17] File exists" in err


def test_help_names_every_command():
    help = CliRunner().invoke(cli.app, ["--help"]).output
    commands = ["train", "evaluate", "report", "runs", "quickstart", "study", "space", "harness", "tasks", "nano"]
    assert all(command in help for command in commands)


def test_an_interruption_says_how_to_go_on(run, monkeypatch):
    async def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("whippletree.check.check_kinds", interrupted)
    code, _, err = run("tasks", "check")
    assert code == 130
    assert err == "interrupted; nothing is kept of a check"


async def fail(*errors):
    async def one(error):
        raise error

    async with asyncio.TaskGroup() as group:
        for error in errors:
            group.create_task(one(error))


def test_of_several_failures_at_once_one_is_told():
    with pytest.raises(SandboxError, match="full"):
        show.wait_for(fail(SandboxError("full"), OSError("full too")), "again")


def test_a_bug_among_failures_is_shown_whole():
    with pytest.raises(ExceptionGroup):
        show.wait_for(fail(SandboxError("full"), KeyError("a bug")), "again")
