"""One study is run through real child processes, in the order in which a user would meet its states."""

import asyncio
import os
import sys

import pytest

from whippletree import cli
from whippletree.analysis.study import from_json
from whippletree.config import to_toml
from whippletree.errors import StoreError
from whippletree.store.run_dir import RunStore
from whippletree.study import Job, StudyConfig, StudyFailed, finished, jobs, prepare, read_earlier, run_jobs, summarise

WRONG = "/nowhere/policy"


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return tmp_path_factory.mktemp("study") / "runs"


@pytest.fixture(scope="module")
def study(tree):
    """`study(seeds, model)`: a trained arm, and an arm whose policy can be wrong."""

    def study(seeds, model=None, **changes):
        run = {**tree, "steps": 1, "batch_size": 2, "evaluate": {**tree["evaluate"], "rollouts_per_set": 4}}
        arms = {"trained": {}, "start": {"steps": 0, "policy": {"model": model or tree["policy"]["model"]}}}
        compare = [["trained", "start"]]
        return StudyConfig.model_validate(
            {"name": "tiny", "seeds": seeds, "compare": compare, "run": run | changes, "arms": arms}
        )

    return study


@pytest.fixture(scope="module")
def failed(root, study):
    """The study after a first try in which one arm could not run."""
    todo = prepare(study([0], WRONG), root)
    seen = []
    with pytest.raises(StudyFailed) as failure:
        asyncio.run(run_jobs(todo, 2, lambda running: seen.append([job.arm for job in running])))
    assert ["trained", "start"] in seen
    return failure.value


@pytest.fixture(scope="module")
def whole(root, study, failed):
    """The study mended and with one more seed; gives what was there before."""
    kept = (root / "seed-0/trained/run.sqlite").stat().st_mtime_ns
    todo = prepare(study([0, 1]), root)
    asyncio.run(run_jobs(todo, 2, lambda running: None))
    return kept


def test_runs_are_listed_seed_by_seed(study, tmp_path):
    assert [(job.seed, job.arm) for job in jobs(study([3, 1]), tmp_path)] == [
        (3, "trained"),
        (3, "start"),
        (1, "trained"),
        (1, "start"),
    ]


def test_a_failing_arm_is_reported_and_the_others_are_kept(root, failed):
    log = root / "seed-0/start.log"
    assert failed.exit_code == 1
    assert "1 of 2 runs failed" in str(failed)
    assert WRONG in str(failed)
    assert str(log) in str(failed)
    assert "Traceback" not in log.read_text()
    assert finished(Job("trained", 0, root / "seed-0/trained"))
    assert not finished(Job("start", 0, root / "seed-0/start"))


def test_a_mended_arm_and_a_new_seed_are_run_and_the_old_is_kept(root, study, whole):
    assert all(finished(job) for job in jobs(study([0, 1]), root))
    assert (root / "seed-0/trained/run.sqlite").stat().st_mtime_ns == whole
    for job in jobs(study([0, 1]), root):
        with RunStore.open(job.path, read_only=True) as store:
            assert store.num_steps() == (1 if job.arm == "trained" else 0)
            assert store.config_toml == to_toml(study([0, 1]).config(job.arm, job.seed))
            assert {name: len(store.scores(name, "final")) for name in ("base", "held_out")} == {
                "base": 4,
                "held_out": 4,
            }


def test_a_finished_study_runs_nothing(root, study, whole):
    watched = []
    asyncio.run(run_jobs(prepare(study([0, 1]), root), 2, watched.append))
    assert watched in ([], [[]])


def test_other_settings_are_refused_once_there_are_results(root, study, whole):
    with pytest.raises(StoreError, match="was made with other settings than arm 'trained' has now"):
        prepare(study([0], batch_size=3), root)


def test_a_directory_that_is_no_run_is_refused(study, tmp_path):
    (tmp_path / "seed-0/trained").mkdir(parents=True)
    (tmp_path / "seed-0/trained/notes.txt").write_text("mine")
    with pytest.raises(StoreError, match="exists already"):
        prepare(study([0]), tmp_path)


def test_results_are_what_the_runs_scored(root, study, whole):
    summary = summarise(study([0, 1]), root, ["study", "tiny.toml"])
    result = from_json(summary.results_json)
    assert result.seeds == (0, 1)
    assert result.command == "whippletree study tiny.toml"
    assert result.settings["run"]["steps"] == 1
    for arm in ("trained", "start"):
        for place, seed in enumerate((0, 1)):
            with RunStore.open(root / f"seed-{seed}" / arm, read_only=True) as store:
                passes = [all(score.passes) for score in store.scores("held_out", "final")]
            assert result.arms[arm]["held_out"].seeds[place] == 100 * sum(passes) / len(passes)
    assert set(result.differences["trained - start"]) == {"base", "held_out"}
    assert "Differences in percentage points" in summary.text
    assert [path.name for path in summary.written] == ["report.html", "scores.png", "curves.png", "levels.png"]
    assert all(path.stat().st_size > 0 for path in summary.written)


def test_the_command_writes_the_results_file(root, study, whole, tmp_path, monkeypatch, capsys):
    file = tmp_path / "tiny.toml"
    file.write_text(to_toml(study([0, 1])))
    results = tmp_path / "results/tiny.json"
    monkeypatch.setattr(sys, "argv", ["whippletree", "study", str(file), "--dir", str(root), "--results", str(results)])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 0
    assert from_json(results.read_text()).seeds == (0, 1)
    assert f"written: {results}" in capsys.readouterr().out


def test_a_seed_is_added_to_the_results_of_others_whose_runs_are_gone(root, study, whole, tmp_path, monkeypatch):
    file, results = tmp_path / "tiny.toml", tmp_path / "tiny.json"
    file.write_text(to_toml(study([7])))  # the seeds of the command count

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["whippletree", "study", str(file), "--results", str(results), *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        return ended.value.code

    assert run("--dir", str(root), "--seed", "0") == 0
    alone = from_json(results.read_text())
    (tmp_path / "moved").mkdir()
    (root / "seed-1").rename(tmp_path / "moved/seed-1")
    try:
        assert run("--dir", str(tmp_path / "moved"), "--seed", "1") == 0
    finally:
        (tmp_path / "moved/seed-1").rename(root / "seed-1")
    both = from_json(results.read_text())
    assert (alone.seeds, both.seeds, both.settings["seeds"]) == ((0,), (0, 1), [0, 1])
    assert both.arms == from_json(summarise(study([0, 1]), root, []).results_json).arms
    assert run("--dir", str(root), "--seed", "1") == 2


def test_results_of_other_settings_or_of_the_same_seed_are_not_added_to(root, study, whole, tmp_path):
    results = tmp_path / "tiny.json"
    assert read_earlier(study([0]), results) is None
    results.write_text(summarise(study([0]), root, []).results_json)
    with pytest.raises(StoreError, match="was made with other settings than study 'tiny' has now"):
        read_earlier(study([1], batch_size=3), results)
    with pytest.raises(StoreError, match="already has seed 0; its seeds are 0"):
        read_earlier(study([1, 0]), results)


def test_an_interrupted_study_ends_its_children(root, study, tmp_path):
    """The children clean up and are gone before the study is."""
    todo = prepare(study([0], steps=1000), tmp_path)
    job = todo[0]

    async def interrupted():
        work = asyncio.create_task(run_jobs([job], 1, lambda running: None))
        while True:
            await asyncio.sleep(0.02)
            with RunStore.open(job.path, read_only=True) as store:
                if store.num_steps() > 0:
                    break
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work

    asyncio.run(interrupted())
    assert "interrupted; what is finished is kept" in job.log.read_text()
    holder = (job.path / "lock").read_text().split()[1]
    with pytest.raises(ProcessLookupError):
        os.kill(int(holder), 0)
