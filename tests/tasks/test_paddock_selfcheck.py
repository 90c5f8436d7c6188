"""check_kind finds what is wrong with a kind."""

import asyncio
import subprocess
from dataclasses import replace

from whippletree.tasks.paddock import KINDS, check_kind
from whippletree.tasks.paddock.checks import text


def shell(folder):
    """Runs commands in fresh folders with plain sh."""
    count = iter(range(1_000_000))

    async def run_commands(files, commands):
        workspace = folder / str(next(count))
        workspace.mkdir()
        for path, content in files.items():
            (workspace / path).write_text(content)
        if commands:
            subprocess.run(["sh", "-c", "\n".join(commands)], cwd=workspace, check=False, capture_output=True)
        return workspace

    return run_commands


def altered(kind, **changes):
    """The kind with parts of every instance replaced by functions of the instance."""
    return replace(
        kind, make=lambda rng: (lambda job: replace(job, **{k: f(job) for k, f in changes.items()}))(kind.make(rng))
    )


def report(kind, tmp_path, seeds=range(3)):
    return asyncio.run(check_kind(kind, seeds, shell(tmp_path)))


def test_a_sound_kind(tmp_path):
    found = report(KINDS["rename"], tmp_path)
    assert (found.kind, found.seeds, found.sound) == ("rename", 3, True)


def test_a_gold_that_fails(tmp_path):
    found = report(altered(KINDS["rename"], gold=lambda job: ("true",)), tmp_path)
    assert found.gold_fails == (0, 1, 2)
    assert not found.sound


def test_a_near_miss_that_passes(tmp_path):
    found = report(altered(KINDS["copy"], near_misses=lambda job: (("true",), job.gold)), tmp_path)
    assert found.near_miss_passes == ((0, 1), (1, 1), (2, 1))
    assert not found.sound


def test_a_goal_that_is_met_from_the_start(tmp_path):
    def goals(job):
        name, content = next(iter(job.files.items()))
        return {"idle": [text(name, content)]}

    found = report(altered(KINDS["copy"], goals=goals), tmp_path)
    assert found.untouched_earns == (0, 1, 2)
    assert not found.sound
