import asyncio
import re
import shutil
import sys
from collections import Counter
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from atif import Trajectory

from whippletree import cli, report
from whippletree.chat.compact import CompactRenderer, train_tokenizer
from whippletree.config import PolicySection, to_toml
from whippletree.errors import ConfigError
from whippletree.keys import explain
from whippletree.run import open_policy
from whippletree.sft import SftConfig, open_sft, parse_sft, select, sft, sft_config_of, split, tokenizer_files
from whippletree.store.run_dir import RunStore, StepRecord
from whippletree.store.where import KEYS
from whippletree.train import train


@pytest.fixture(scope="module")
def source(create, act, tmp_path_factory):
    """A run with rollouts of which some passed."""
    path = tmp_path_factory.mktemp("source") / "run"
    act(path, create(path, {"steps": 2, "batch_size": 8, "group_size": 8, "optimizer": {"lr": 1e-6}}), train)
    return path


@pytest.fixture(scope="module")
def settings(source, tiny):
    return {
        "runs": [str(source)],
        "batch_size": 2,
        "epochs": 2,
        "validation_share": 0.25,
        "policy": {"model": str(tiny), "num_slots": 4},
        "optimizer": {"lr": 1e-3, "warmup_steps": 2, "decay_to": 0.5},
    }


def make(path, tree):
    config = parse_sft(tree, "the test's configuration")
    RunStore.create(path, to_toml(config), {"selection": select(config)}).close()
    return path


def tune(path, progress=lambda step, metrics: None):
    async def opened():
        with closing(RunStore.open(path)) as store:
            async with open_sft(sft_config_of(store), store) as run:
                run.progress = progress
                await sft(run)

    asyncio.run(opened())


def read(path):
    """All that two runs of the same seed must have in common."""
    with RunStore.open(path, read_only=True) as store:
        timed = ("wall_s", "cpu_s/sampling", "cpu_s/learning", "cpu_s/sandbox", "cpu_s/other")
        steps = [
            (r.step, r.policy_version, {name: value for name, value in r.metrics.items() if name not in timed})
            for r in store.steps()
        ]
        files = list(store.checkpoints().values())[-1]
        return steps, (files / "model.safetensors").read_bytes(), (files / "trainer.pt").read_bytes()


@pytest.fixture(scope="module")
def undisturbed(settings, tmp_path_factory):
    path = make(tmp_path_factory.mktemp("sft") / "undisturbed", settings)
    tune(path)
    return path


def test_what_passed_is_imitated_and_becomes_likelier(undisturbed, source):
    with RunStore.open(source, read_only=True) as store:
        passed = [rollout.id for rollout in store.rollouts() if rollout.passed]
        assert 0 < len(passed) < len(store.rollouts())
    with RunStore.open(undisturbed, read_only=True) as store:
        meta, steps = store.meta(), store.steps()
        train, held_back = (meta["selection"][part] for part in ("train", "held_back"))
        assert sorted(id for _, id in train + held_back) == sorted(passed)
        assert meta["finished"] is True
        per_epoch = -(-len(train) // 2)
        assert len(steps) == 2 * per_epoch
        assert [r.metrics["epoch"] for r in steps] == [0.0] * per_epoch + [1.0] * per_epoch
        assert sum(r.metrics["rollouts"] for r in steps) == 2 * len(train)
        assert steps[0].metrics["lr"] == pytest.approx(5e-4)
        assert steps[-1].metrics["lr"] == pytest.approx(5e-4)
        assert all(r.metrics["probe_gap"] < 1e-3 for r in steps)
        assert [step for step, _ in store.metric("validation/loss")] == [per_epoch - 1, 2 * per_epoch - 1]
        losses = [value for _, value in store.metric("loss")]
        assert np.mean(losses[per_epoch:]) < np.mean(losses[:per_epoch])


def test_losses_are_those_of_the_recorded_log_probabilities_while_the_policy_stays(settings, source, tmp_path):
    still = {"where": ["step=0", "reward>=0"], "epochs": 1, "batch_size": 64, "optimizer": {"lr": 1e-12}}
    path = make(tmp_path / "still", settings | still)
    tune(path)
    with RunStore.open(source, read_only=True) as store, RunStore.open(path, read_only=True) as tuned:
        (record,), selection = tuned.steps(), tuned.meta()["selection"]
        for part, name in (("train", "loss"), ("held_back", "validation/loss")):
            said = [np.concatenate([call.logprobs for call in store.calls(id)]) for _, id in selection[part]]
            assert len(said) > 8
            assert record.metrics[name] == pytest.approx(-np.mean([each.mean() for each in said]), abs=1e-3)


def test_the_tables_of_keys_and_metrics_are_complete(undisturbed):
    page = (Path(__file__).parent.parent / "docs" / "export.md").read_text(encoding="utf-8")
    named = set(re.findall(r"`([a-z_/.*]+)`(?=.*\|.*\|)", page))
    with RunStore.open(undisturbed, read_only=True) as store:
        metrics = {re.sub(r"^(samples|cpu_s)/.*", r"\1/*", name) for name in store.metric_names()}
    keys = {re.sub(r"^(policy|optimizer)\..*", r"\1.*", row[0]) for row in explain(SftConfig)}
    assert metrics | keys | set(KEYS) <= named


class Stop(Exception):
    pass


@pytest.mark.parametrize("stop", [0, 2])
def test_a_run_that_fails_resumes_as_if_nothing_had_happened(stop, undisturbed, settings, tmp_path):
    def fail(step, metrics):
        if step == stop:
            raise Stop

    path = make(tmp_path / "stopped", settings)
    with pytest.raises(Stop):
        tune(path, fail)
    tune(path)
    assert read(path) == read(undisturbed)


def test_resuming_a_finished_run_does_nothing(undisturbed):
    before = read(undisturbed)
    tune(undisturbed, progress=None)
    assert read(undisturbed) == before


def test_another_seed_gives_another_order(undisturbed, settings, tmp_path):
    path = make(tmp_path / "other", {**settings, "seed": 1})
    with RunStore.open(path, read_only=True) as other, RunStore.open(undisturbed, read_only=True) as store:
        assert other.meta()["selection"] != store.meta()["selection"]


def test_the_policy_can_be_taken_up_by_others(undisturbed, tiny):
    with RunStore.open(undisturbed, read_only=True) as store:
        checkpoint = list(store.checkpoints().values())[-1]
    tuned, start = (open_policy(PolicySection(model=str(path))) for path in (checkpoint, tiny))
    assert tuned.fingerprint() != start.fingerprint()
    assert tokenizer_files(tuned.renderer) == tokenizer_files(start.renderer)
    for policy in (tuned, start):
        asyncio.run(policy.close())


def test_conditions_choose_and_failures_are_taken_only_where_they_are_asked_for(source, settings):
    with RunStore.open(source, read_only=True) as store:
        every = store.rollouts()

    def chosen(*conditions):
        found = select(parse_sft({**settings, "where": conditions, "validation_share": 0}, "test"))
        assert found["held_back"] == []
        return {id for _, id in found["train"]}

    assert chosen() == {r.id for r in every if r.passed}
    assert chosen("step=1") == {r.id for r in every if r.passed and r.step == 1}
    assert chosen("reward>=0") == {r.id for r in every}
    assert chosen("passed=false", "step>=1") == {r.id for r in every if not r.passed and r.step == 1}
    assert parse_sft({**settings, "where": ["step=1"]}, "test").where == ("step=1", "passed=true")


def test_whole_tasks_are_held_back_and_one_is_always_trained_on():
    picks = [((0, f"{task}{n}"), task) for task in "abcde" for n in range(3)]
    found = split(picks, 0.3, seed=0)
    assert len(found["held_back"]) == 6
    assert set(Counter(id[0] for _, id in found["held_back"]).values()) == {3}
    assert sorted(found["train"] + found["held_back"]) == [pick for pick, _ in picks]
    assert split(picks, 0.3, seed=0) == found
    assert split(picks, 0.0, seed=0)["held_back"] == []
    assert len(split(picks, 0.99, seed=0)["train"]) == 3
    assert split(picks[:3], 0.5, seed=0) == {"train": [pick for pick, _ in picks[:3]], "held_back": []}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"runs": []}, "runs ="),
        ({"epoch": 3}, "unknown key 'epoch'.*did you mean epochs"),
        ({"where": ["colour=red"]}, "no key 'colour'"),
        ({"optimizer": {"lr": 0}}, r"optimizer.lr = 0"),
        ({"algorithm": {"kinds": ["loud"]}}, "algorithm.kinds"),
    ],
)
def test_a_bad_configuration_is_refused(changes, words, settings):
    with pytest.raises(ConfigError, match=words):
        parse_sft({**settings, **changes}, "test")


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"where": ["harness=pi"]}, "no graded rollout of .* meets harness=pi and passed=true"),
        ({"algorithm": {"kinds": ["subagent"]}}, "none of the .* has a token to train on: no call of kind subagent"),
        ({"policy": {"max_context": 32}}, "policy.max_context = 32: the longest of the chosen rollouts has"),
    ],
)
def test_a_selection_that_cannot_be_trained_on_is_refused(changes, words, settings):
    with pytest.raises(ConfigError, match=words):
        select(parse_sft({**settings, **changes}, "test"))


def test_a_run_of_another_kind_is_not_taken_for_one_of_fine_tuning(source):
    with RunStore.open(source, read_only=True) as store, pytest.raises(ConfigError, match="no run of fine-tuning"):
        sft_config_of(store)


# ---- the command line -------------------------------------------------------------------------------------------


@pytest.fixture
def command(monkeypatch, capsys):
    """Run a command line in this process; gives exit code, stdout and stderr."""

    def command(*arguments):
        monkeypatch.setattr(sys, "argv", ["whippletree", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        said = capsys.readouterr()
        return ended.value.code or 0, said.out, " ".join(said.err.split())

    for console in (cli.out, cli.err):
        monkeypatch.setattr(console, "_width", 200)
    return command


def test_from_a_run_to_a_policy_and_its_report(command, source, tiny, tmp_path):
    path = tmp_path / "runs" / "tuned"
    changes = ["--set", "epochs=1", "--set", "batch_size=8", "--set", "policy.num_slots=4"]
    code, said, told = command(
        "sft", "--from", source, "--where", "step=0", "--model", tiny, "--dir", path, *changes, "--plain"
    )
    assert code == 0, told
    assert "rollouts to learn from" in told
    assert "epoch 1: loss" in told
    (policy,) = (path / "checkpoints").iterdir()
    assert said == f"the policy: {policy}\n"
    assert command("sft", "--resume", path, "--plain")[1] == said
    assert "tuned finished" in " ".join(command("runs", tmp_path / "runs")[1].split())
    code, said, told = command("report", path, "--dir", tmp_path)
    assert code == 0, told
    assert "Rollouts" in said or "rollouts" in said
    assert "batch_size = 8" in (tmp_path / "report.html").read_text()
    assert (tmp_path / "figures" / "curves.png").exists()
    both = report.collect({"source": [source], "tuned": [path]}, "Both")
    assert {curve.metric for curve in both.curves if curve.arm == "tuned"} <= {name for name, _ in report.TUNING}
    assert [bool(policy.sets) for policy in both.policies] == [True, False]
    asyncio.run(open_policy(PolicySection(model=str(policy))).close())


def test_rollouts_are_exported(command, source, tmp_path):
    with RunStore.open(source, read_only=True) as store:
        passed = [rollout.id for rollout in store.rollouts() if rollout.passed]
    file = tmp_path / "deep" / "passed.jsonl"
    code, said, told = command("export", source, "--format", "atif", "--where", "passed=true", "--out", file)
    assert (code, said) == (0, ""), told
    assert f"{file}, {len(passed)} lines" in told
    documents = [Trajectory.model_validate_json(line) for line in file.read_text().splitlines()]
    assert [document.session_id for document in documents] == passed
    code, said, told = command("export", source, "--where", "step=0", "--where", "passed=true")
    assert code == 0, told
    assert len(said.splitlines()) == sum(id.startswith("train/0/") for id in passed)
    code, said, _ = command("export", source, "--format", "openai", "--kind", "main")
    assert code == 0
    assert len(said.splitlines()) >= len(passed)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["sft"], "give either runs to learn from or --resume"),
        (["sft", "--from", "x", "--resume", "y"], "give either runs to learn from"),
        (["sft", "--resume", "x", "--set", "epochs=1"], "--resume goes alone"),
        (["sft", "--from", "nowhere"], "nowhere does not exist"),
        (["sft", "--from", "x", "--where", "passed"], "expected KEY=VALUE"),
        (["sft", "--from", "x", "--set", "lr=1"], "unknown key 'lr'"),
        (["export", "nowhere"], "nowhere does not exist"),
        (["export", "x", "--format", "csv"], "--format csv: expected one of jsonl, openai, atif"),
        (["export", "x", "--kind", "main"], "--kind goes with --format openai"),
        (["export", "x", "--format", "openai", "--kind", "loud"], "--kind loud: expected one of"),
        (["export", "x", "--where", "step=now"], "expected a number"),
    ],
)
def test_a_bad_command_line_is_explained(command, arguments, words):
    code, _, told = command(*arguments)
    assert code == 2
    assert words in told


def test_rollouts_in_other_tokens_are_refused_and_leave_no_run(command, source, tiny, tmp_path):
    other, path = tmp_path / "other", tmp_path / "sft"
    with RunStore.open(source, read_only=True) as store, RunStore.create(other, store.config_toml, {}) as copy:
        rollouts = [replace(rollout, step=0) for rollout in store.rollouts(with_calls=True)]
        copy.write_checkpoint(0, CompactRenderer(train_tokenizer(["other words"], 280)).save)
        copy.commit_step(StepRecord(0, 1, 0.0, 0.0), rollouts)
    given = ("sft", "--from", other, "--model", tiny, "--dir", path, "--set", "epochs=1", "--plain")
    code, _, told = command(*given)
    assert code == 2
    assert f"rollouts of {other} are in tokens of '{other}/checkpoints/step-000000'" in told
    assert not path.exists()
    shutil.rmtree(other / "checkpoints")  # then the run's configuration says what they are
    assert command(*given)[0] == 0
    assert "exists already" in command(*given)[2]


def test_a_file_is_exported_whole_or_not_at_all(command, source, tmp_path):
    old = tmp_path / "old"
    with RunStore.open(source, read_only=True) as store, RunStore.create(old, store.config_toml, {}) as copy:
        first, second = store.rollouts(step=0, with_calls=True)[:2]
        wordless = replace(second, calls=tuple(replace(call, exchange=None) for call in second.calls))
        copy.commit_step(StepRecord(0, 1, 0.0, 0.0), [first, wordless])
    code, _, told = command("export", source, "--where", "harness=pi", "--out", tmp_path / "file")
    assert (code, "meets harness=pi" in told) == (2, True)
    code, _, told = command("export", old, "--format", "openai", "--out", tmp_path / "file")
    assert code == 2
    assert f"'{second.id}' was recorded without words" in told
    assert [path.name for path in tmp_path.iterdir()] == ["old"]
