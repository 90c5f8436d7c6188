import errno
import math
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from whippletree.errors import StoreError
from whippletree.store import disk
from whippletree.store.listing import list_runs
from whippletree.store.run_dir import RunStore, StepRecord
from whippletree.store.where import where
from whippletree.types import Exchange, Message, ModelCall, Reward, Rollout, Score, StopReason, Tool

BASH = Tool("bash", "Runs a command.", {"type": "object"})
SAID = Exchange(None, (Message("user", "go"),), Message("assistant", "done"), (BASH,), {"temperature": 0.2})


def rollout(id_: str, step: int, purpose="train", tokens: int = 5) -> Rollout:
    ids, logprobs = np.arange(tokens), -np.arange(tokens, dtype=np.float32)
    calls = tuple(ModelCall(i, "main", ids, ids + i, logprobs, step, "stop", exchange=SAID) for i in range(2))
    made = Rollout(id_, "task", "copy", "S0T1", step, purpose, calls, Reward(1.0), StopReason.FINISHED)
    return replace(made, counts={"continuation": 1})


def weights(step: int):
    return lambda folder: (folder / "weights").write_text(str(step))


def do_step(store: RunStore, step: int, *, keep: bool = False) -> None:
    store.write_checkpoint(step, weights(step), keep=keep)
    record = StepRecord(step, step + 1, 2.0, 1.5, {"rng": step}, {"reward": step / 10, "loss": math.nan})
    store.commit_step(record, [rollout(f"{step}-{i}", step) for i in range(3)])


@pytest.fixture
def store(tmp_path):
    with RunStore.create(tmp_path / "run", "seed = 1\n", {"command": "train"}) as store:
        yield store


def test_what_is_written_is_read_back(store):
    do_step(store, 0)
    do_step(store, 1)
    assert store.config_toml == "seed = 1\n"
    assert store.meta() == {"command": "train"}
    assert [(s.step, s.policy_version, s.scheduler_state) for s in store.steps()] == [
        (0, 1, {"rng": 0}),
        (1, 2, {"rng": 1}),
    ]
    assert store.metric("reward") == [(0, 0.0), (1, 0.1)]
    assert math.isnan(store.metric("loss")[0][1])
    assert store.metric_names() == ["loss", "reward"]
    assert [r.id for r in store.rollouts(step=1)] == ["1-0", "1-1", "1-2"]
    assert len(store.rollouts(purpose="train")) == 6
    assert store.rollouts(purpose="evaluate") == []
    calls = store.calls("1-2")
    assert [c.completion_ids.tolist() for c in calls] == [[0, 1, 2, 3, 4], [1, 2, 3, 4, 5]]
    whole = store.rollouts(step=1, with_calls=True)[2]
    assert np.array_equal(whole.calls[1].logprobs, calls[1].logprobs)
    assert (whole.counts, whole.calls[1].exchange) == ({"continuation": 1}, SAID)
    assert store.rollout("1-2").calls[0].exchange.tools is whole.calls[0].exchange.tools
    assert [r.id for r in store.select(where(["step=0", "id=*-1"]))] == ["0-1"]
    with pytest.raises(StoreError, match="no rollout 'x'"):
        store.calls("x")


def test_resume_goes_on_after_the_last_step_with_a_checkpoint(store):
    assert store.resume_point() == (0, None, None)
    do_step(store, 0)
    do_step(store, 1)
    store.commit_step(StepRecord(2, 3, 0.0, 0.0, {"rng": 2}), [])  # a step without a checkpoint
    store.write_checkpoint(3, weights(3))  # a checkpoint without its step
    point = store.resume_point()
    assert point.next_step == 2
    assert point.checkpoint is not None
    assert (point.checkpoint / "weights").read_text() == "1"
    assert point.scheduler_state == {"rng": 1}
    store.truncate_after(point.next_step - 1)
    assert [s.step for s in store.steps()] == [0, 1]
    assert list(store.checkpoints()) == [0, 1]
    do_step(store, 2)
    assert store.resume_point().next_step == 3


def test_truncation_forgets_all_later_rows(store):
    for step in range(4):
        do_step(store, step)
        store.commit_scores("validation", "policy", step, [Score("t", "copy", "S0", (True,), (1.0,))])
    store.truncate_after(1)
    assert {r.step for r in store.rollouts()} == {0, 1}
    assert [step for step, _ in store.metric("reward")] == [0, 1]
    assert [e.step for e in store.evaluations()] == [0, 1]
    with sqlite3.connect(store.path / "run.sqlite") as db:
        assert db.execute("SELECT count(*) FROM calls").fetchone() == (2 * 3 * 2,)
    db.close()


def test_a_step_is_stored_once(store):
    do_step(store, 0)
    with pytest.raises(StoreError, match="holds step 0 already"):
        do_step(store, 0)


def test_a_failing_rollout_stream_leaves_no_part_of_the_step(store):
    def stream():
        yield rollout("a", 0)
        raise RuntimeError("stop here")

    with pytest.raises(RuntimeError):
        store.commit_step(StepRecord(0, 1, 0.0, 0.0, metrics={"reward": 1.0}), stream())
    assert store.steps() == []
    assert store.rollouts() == []
    assert store.metric("reward") == []


def test_the_last_two_and_the_kept_checkpoints_stay(store):
    for step in range(6):
        do_step(store, step, keep=step == 1)
        if step == 3:
            store.keep_checkpoint(2)
    assert list(store.checkpoints()) == [1, 2, 4, 5]
    with pytest.raises(StoreError, match="no checkpoint of step 0"):
        store.keep_checkpoint(0)


def test_a_failed_checkpoint_leaves_nothing(store):
    def half(folder: Path) -> None:
        (folder / "weights").write_text("half")
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        store.write_checkpoint(0, half)
    assert list((store.path / "checkpoints").iterdir()) == []


def test_an_evaluation_is_taken_up_where_it_stopped(store):
    cells = [Score(f"t{i}", "copy", "S0", (i % 2 == 0,), (float(i % 2 == 0),)) for i in range(4)]
    store.commit_scores("held_out", "start", 0, cells[:2], [rollout("e0", 0, "evaluate")])
    store.commit_scores("held_out", "start", 5, cells[2:])
    assert store.finished_cells("held_out", "start") == {("S0", f"t{i}") for i in range(4)}
    assert store.finished_cells("held_out", "start", 0) == {("S0", "t0"), ("S0", "t1")}
    assert store.finished_cells("held_out", "other") == set()
    assert store.scores("held_out", "start", 5) == cells[2:]
    assert store.scores("held_out") == cells
    assert store.evaluations() == [("held_out", "start", 0, 2), ("held_out", "start", 5, 2)]
    assert [r.id for r in store.rollouts(purpose="evaluate")] == ["e0"]


def test_one_writer_and_any_number_of_readers(store):
    do_step(store, 0)
    with pytest.raises(StoreError, match="being written by process"):
        RunStore.open(store.path)
    with RunStore.open(store.path, read_only=True) as reader:
        assert reader.num_steps() == 1
        do_step(store, 1)
        assert reader.num_steps() == 2
        with pytest.raises(StoreError, match="for reading only"):
            reader.set_meta("finished", True)
    store.close()
    with RunStore.open(store.path) as again:
        assert again.resume_point().next_step == 2


def test_wrong_paths_are_explained(tmp_path, store):
    with pytest.raises(StoreError, match="does not exist"):
        RunStore.open(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(StoreError, match="not a run directory"):
        RunStore.open(tmp_path / "empty")
    (tmp_path / "empty" / "run.sqlite").write_text("not a database, though it has the name of one")
    with pytest.raises(StoreError, match="cannot be read"):
        RunStore.open(tmp_path / "empty")
    with pytest.raises(StoreError, match="exists already: choose another"):
        RunStore.create(tmp_path, "", {})
    with pytest.raises(StoreError, match="exists already: resume it"):
        RunStore.create(store.path, "", {})
    with pytest.raises(StoreError, match="cannot be created"):
        RunStore.create(tmp_path / "empty" / "run.sqlite" / "run", "", {})


def test_runs_are_listed_with_their_state(tmp_path, store):
    do_step(store, 0)
    with RunStore.create(tmp_path / "deep" / "done", "", {}) as done:
        done.set_meta("finished", True)
    RunStore.create(tmp_path / "stopped", "", {}).close()
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "run.sqlite").write_text("nothing that SQLite could read, of more than a few bytes")
    runs = {s.path.name: s for s in list_runs(tmp_path)}
    states = {name: s.state for name, s in runs.items()}
    assert states == {"run": "running", "done": "finished", "stopped": "stopped", "broken": "unreadable"}
    assert runs["run"].steps_done == 1
    assert runs["run"].metrics["reward"] == 0.0
    with pytest.raises(StoreError, match="is not a folder"):
        list_runs(tmp_path / "nowhere")


def test_files_are_written_whole(store):
    path = store.write_file("figures/curves.png", b"png")
    assert path.read_bytes() == b"png"
    assert store.write_file("report.html", "<p>ü").read_text(encoding="utf-8") == "<p>ü"
    assert list(path.parent.iterdir()) == [path]


# ---- full disks -------------------------------------------------------------------------------------------------


def test_no_run_starts_without_room(tmp_path):
    with pytest.raises(StoreError, match="free space, but a run needs"):
        RunStore.create(tmp_path / "run", "", {}, min_free_bytes=2**62)
    assert not (tmp_path / "run").exists()


def test_a_full_database_loses_nothing(store):
    do_step(store, 0)
    pages = store._db.execute("PRAGMA page_count").fetchone()[0]
    store._db.execute(f"PRAGMA max_page_count={pages + 4}")
    store.write_checkpoint(1, weights(1))
    big = [rollout("big", 1, tokens=100_000)]
    with pytest.raises(StoreError, match=r"is full .*: step 1 was not stored, nothing stored before it is lost"):
        store.commit_step(StepRecord(1, 2, 0.0, 0.0), big)
    assert store.resume_point().next_step == 1
    store._db.execute("PRAGMA max_page_count=1000000")
    store.commit_step(StepRecord(1, 2, 0.0, 0.0), big)
    assert store.resume_point().next_step == 2


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "No space left on device"), RuntimeError("I/O error: No space left on device")]
)
def test_a_full_disk_under_a_checkpoint_is_explained(store, error):
    do_step(store, 0)

    def fill(folder: Path) -> None:
        (folder / "weights").write_text("some")
        raise error

    with pytest.raises(StoreError, match="the checkpoint of step 1 was not stored"):
        store.write_checkpoint(1, fill)
    assert list(store.checkpoints()) == [0]


def test_an_error_of_the_writer_is_not_taken_for_a_full_disk(tmp_path):
    with pytest.raises(KeyError), disk.storing(tmp_path, "it"):
        raise KeyError("a bug")


FILL = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from test_run_dir import do_step, rollout
from whippletree.errors import StoreError
from whippletree.store.run_dir import RunStore, StepRecord

with RunStore.create(Path(sys.argv[1]) / "run", "", {}, min_free_bytes=0) as store:
    step = 0
    try:
        while True:
            store.commit_step(StepRecord(step, 0, 0.0, 0.0), [rollout(str(step), step, tokens=20_000)])
            step += 1
    except StoreError as error:
        assert f"is full (0 MiB free): step {step} was not stored" in str(error), error
    assert store.num_steps() == step > 3
    try:
        store.write_checkpoint(step, lambda folder: (folder / "weights").write_bytes(bytes(10**7)))
    except StoreError as error:
        assert f"the checkpoint of step {step} was not stored" in str(error), error
    assert store.checkpoints() == {}
    assert store.num_steps() == len(store.rollouts(with_calls=True)) == step
print("full and whole")
"""


def test_a_file_system_without_room_loses_nothing(tmp_path):
    if shutil.which("unshare") is None:
        pytest.skip("needs unshare")
    mount = ["unshare", "--mount", "sh", "-c", 'mount -t tmpfs -o size=3m tmpfs "$1" && shift && exec "$@"', "-"]
    probe = subprocess.run([*mount, str(tmp_path), "true"], capture_output=True, check=False)
    if probe.returncode:
        pytest.skip("needs the right to mount a file system")
    command = [*mount, str(tmp_path), sys.executable, "-c", FILL, str(tmp_path), str(Path(__file__).parent)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.stdout == "full and whole\n", result.stderr


# ---- kill -9 ----------------------------------------------------------------------------------------------------

CRASH = """
import os, signal, sys
from pathlib import Path
sys.path.insert(0, sys.argv[3])
from test_run_dir import do_step
from whippletree.store.run_dir import RunStore

left = int(sys.argv[2])

def count(frame, event, arg):
    global left
    left -= 1
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)

with RunStore.open(Path(sys.argv[1])) as store:
    point = store.resume_point()
    store.truncate_after(point.next_step - 1)
    sys.setprofile(count)
    for step in range(point.next_step, point.next_step + 4):
        do_step(store, step)
    sys.setprofile(None)
print(sys.argv[2], left)
"""


def assert_consistent(store: RunStore) -> int:
    point = store.resume_point()
    steps = [s.step for s in store.steps()]
    assert steps == list(range(point.next_step))
    assert [r.step for r in store.rollouts()] == [s for s in steps for _ in range(3)]
    assert all(len(r.calls) == 2 for r in store.rollouts(with_calls=True))
    assert [s for s, _ in store.metric("reward")] == steps
    for step, path in store.checkpoints().items():
        assert (path / "weights").read_text() == str(step)
    if point.next_step:
        assert point.scheduler_state == {"rng": point.next_step - 1}
    return point.next_step


def test_killed_at_any_moment_a_run_resumes_at_a_complete_step(tmp_path):
    path = tmp_path / "run"
    RunStore.create(path, "", {}).close()
    rng = random.Random(7)
    done = 0
    for _ in range(5):
        command = [sys.executable, "-c", CRASH, str(path), str(rng.randrange(1, 4000)), str(Path(__file__).parent)]
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        assert result.returncode == -signal.SIGKILL, result.stdout + result.stderr
        with RunStore.open(path, read_only=True) as reader:  # without the writer's repairs
            assert_consistent(reader)
        with RunStore.open(path) as store:
            now = assert_consistent(store)
            assert now >= done
            assert not [p for p in (path / "checkpoints").iterdir() if p.name.startswith(".")]
        done = now
    assert done > 0


def test_a_rollout_that_two_sets_share_is_kept_once(store):
    shared = rollout("evaluate/-1/h/t/0", -1, purpose="evaluate")
    for name in ("a", "b"):
        store.commit_scores(name, "final", -1, [], [shared])
    assert [found.id for found in store.rollouts()] == [shared.id]
