import os
import random
import signal
import subprocess
import sys
import time

import pytest

from whippletree import cli
from whippletree.sandbox.workspace import place_for_roots
from whippletree.store.run_dir import RunStore
from whippletree.train import train

EVERY = {"evaluate": {"every": 2}}


def read(path):
    """All that two runs of the same seed must have in common."""
    with RunStore.open(path, read_only=True) as store:
        metrics = {
            (record.step, name): value
            for record in store.steps()
            for name, value in record.metrics.items()
            if name != "wall_s" and not name.startswith("cpu_s/")
        }
        calls = [
            (rollout.id, rollout.reward, [(c.prompt_ids.tolist(), c.completion_ids.tolist()) for c in rollout.calls])
            for rollout in store.rollouts(with_calls=True)
        ]
        scores = {(e.name, e.label, e.step): store.scores(e.name, e.label, e.step) for e in store.evaluations()}
        weights = (store.checkpoints()[2] / "model.safetensors").read_bytes()
        return metrics, calls, scores, weights


@pytest.fixture(scope="module")
def undisturbed(create, act, tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "undisturbed"
    act(path, create(path, EVERY), train)
    return path


def command_line(path):
    return [sys.executable, "-m", "whippletree", "train", "--resume", str(path), "--plain"]


def start(path):
    return subprocess.Popen(
        command_line(path),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # tests in the background inherit SIG_IGN
    )


def wait_for_step(process, path, count):
    """Until so many steps are committed."""
    while True:
        with RunStore.open(path, read_only=True) as store:
            if store.num_steps() >= count:
                return
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.005)


def resume(path, monkeypatch):
    monkeypatch.setattr(sys, "argv", ["whippletree", *command_line(path)[3:]])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 0


def test_everything_of_a_run_is_in_its_store(undisturbed, tree):
    with RunStore.open(undisturbed, read_only=True) as store:
        assert store.meta()["finished"] is True
        assert [record.step for record in store.steps()] == [0, 1, 2]
        assert [record.policy_version for record in store.steps()] == [1, 2, 3]
        rollouts = [rollout for rollout in store.rollouts(with_calls=True) if rollout.purpose == "train"]
        assert len(rollouts) == 3 * tree["batch_size"] * tree["group_size"]
        assert all(rollout.error is None and rollout.calls for rollout in rollouts)
        assert {call.policy_version for rollout in rollouts for call in rollout.calls} == {0, 1, 2}
        assert any(rollout.passed for rollout in rollouts)
        assert not all(rollout.passed for rollout in rollouts)
        assert max(value for _, value in store.metric("tokens/trained")) > 0
        assert all(value < 1e-3 for _, value in store.metric("probe_gap"))
        assert {(e.name, e.label, e.step, e.num_cells) for e in store.evaluations()} == {
            (name, label, step, 6) for name in ("base", "held_out") for label, step in (("step 2", 1), ("final", 2))
        }
        assert list(store.checkpoints()) == [1, 2]


def test_the_same_seed_gives_the_same_run(undisturbed, create, act, tmp_path):
    act(tmp_path / "again", create(tmp_path / "again", EVERY), train)
    assert read(tmp_path / "again") == read(undisturbed)


def test_another_seed_gives_another_run(undisturbed, create, act, tmp_path):
    act(tmp_path / "other", create(tmp_path / "other", {**EVERY, "seed": 1}), train)
    assert read(tmp_path / "other")[1] != read(undisturbed)[1]


class Stop(Exception):
    pass


@pytest.mark.parametrize("point", [("train", 1), ("evaluate", 1), ("train", 2), ("evaluate", 2)])
def test_a_run_that_fails_anywhere_resumes_as_if_nothing_had_happened(point, undisturbed, create, act, tmp_path):
    async def train_to_the_point(run):
        def stop(rollout):
            if (rollout.purpose, rollout.step) == point:
                raise Stop

        run.progress = stop
        await train(run)

    path = tmp_path / "stopped"
    config = create(path, EVERY)
    with pytest.raises(ExceptionGroup) as stopped:
        act(path, config, train_to_the_point)
    assert stopped.group_contains(Stop)
    act(path, config, train)
    assert read(path) == read(undisturbed)


@pytest.mark.parametrize("moment", ["after the first step", "at random"])
def test_a_killed_run_resumes_as_if_nothing_had_happened(moment, undisturbed, create, tmp_path, monkeypatch, capsys):
    path = tmp_path / "killed"
    create(path, EVERY)
    process = start(path)
    wait_for_step(process, path, 1)
    delay_s = 0.0 if moment == "after the first step" else random.uniform(0.0, 1.0)
    time.sleep(delay_s)
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    if moment == "after the first step":
        with RunStore.open(path, read_only=True) as store:
            assert "finished" not in store.meta()
    resume(path, monkeypatch)
    assert read(path) == read(undisturbed), f"killed {delay_s:.3f} s after the first step"
    assert "written: " in capsys.readouterr().out
    assert (path / "report.html").is_file()


def test_resuming_a_finished_run_does_nothing(undisturbed, monkeypatch, capsys):
    before = read(undisturbed)
    monkeypatch.setattr("whippletree.evaluate.roll_out", None)
    monkeypatch.setattr("whippletree.rollout.ahead.roll_out", None)
    resume(undisturbed, monkeypatch)
    assert read(undisturbed) == before
    assert "Pass@1" in capsys.readouterr().out


def sandbox_roots(process):
    return list(place_for_roots().glob(f"whippletree-sandboxes-{process.pid}-*"))


def test_an_interrupted_run_says_how_to_go_on_and_leaves_nothing_behind(create, tmp_path):
    path = tmp_path / "interrupted"
    create(path, {"steps": 1000})
    process = start(path)
    wait_for_step(process, path, 1)
    assert sandbox_roots(process)
    process.send_signal(signal.SIGINT)
    said = process.communicate()[0]
    assert process.returncode == 130, said
    assert f"whippletree train --resume {path}" in " ".join(said.split())
    assert "Traceback" not in said
    assert not sandbox_roots(process)
    with pytest.raises(ProcessLookupError):  # nobody is left of its session
        os.killpg(process.pid, 0)
