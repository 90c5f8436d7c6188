"""Every kind, over many seeds: gold passes, doing nothing earns nothing, near misses fail."""

import json
import re
import subprocess
from random import Random

import pytest

from whippletree.tasks.paddock.checks import grade
from whippletree.tasks.paddock.kinds import KINDS
from whippletree.tasks.paddock.pools import FOLDERS, STEMS, WORDS

TIER1 = [kind for kind in KINDS.values() if kind.tier == 1]
WITHOUT_TOOLS = [kind for kind in KINDS.values() if kind.tier <= 3]
kinds = pytest.mark.parametrize("kind", WITHOUT_TOOLS, ids=lambda kind: kind.name)


def lay_out(files, workspace):
    workspace.mkdir()
    for path, content in files.items():
        file = workspace / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)


def run_all(folder, attempts):
    """Run each (job, commands) in a workspace of its own, all in one shell; returns the workspaces.

    Every command must succeed: a near miss with a slip in its syntax would prove nothing.
    """
    workspaces = [folder / str(i) for i in range(len(attempts))]
    script = []
    for workspace, (job, commands) in zip(workspaces, attempts, strict=True):
        lay_out(job.files, workspace)
        script += [f"(set -e; cd {workspace}", *commands, ") 2>&1 >/dev/null </dev/null", "[ $? = 0 ] || echo failed"]
    done = subprocess.run(["sh"], input="\n".join([*script, "echo end"]), capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("end\n", "")
    return workspaces


def verdicts(folder, attempts):
    workspaces = run_all(folder, attempts)
    return [grade(job.files, job.goals, ws) for (job, _), ws in zip(attempts, workspaces, strict=True)]


def check_gold_and_nothing(kind, seeds, folder):
    jobs = [kind.make(Random(seed)) for seed in seeds]
    rewards = verdicts(folder, [(job, job.gold) for job in jobs] + [(job, ()) for job in jobs])
    assert [r.value for r in rewards] == [1.0] * len(jobs) + [0.0] * len(jobs)
    assert all(r.parts["untouched"] == 1.0 for r in rewards)


def check_near_misses(kind, seeds, folder):
    attempts = [(job, miss) for seed in seeds for job in [kind.make(Random(seed))] for miss in job.near_misses]
    passed = [miss for (_, miss), r in zip(attempts, verdicts(folder, attempts), strict=True) if r.passed]
    assert passed == []


@kinds
def test_gold_passes_and_doing_nothing_earns_nothing(kind, tmp_path):
    check_gold_and_nothing(kind, range(20), tmp_path)


@kinds
def test_near_misses_fail(kind, tmp_path):
    check_near_misses(kind, range(6), tmp_path)


@pytest.mark.slow
@kinds
def test_many_seeds(kind, tmp_path):
    for start in range(1000, 1300, 50):
        (tmp_path / f"g{start}").mkdir()
        (tmp_path / f"m{start}").mkdir()
        check_gold_and_nothing(kind, range(start, start + 50), tmp_path / f"g{start}")
        check_near_misses(kind, range(start, start + 50), tmp_path / f"m{start}")


@kinds
def test_instances_are_well_formed(kind):
    for seed in range(20):
        job = kind.make(Random(seed))
        assert job == kind.make(Random(seed))
        assert len(job.near_misses) >= 2
        assert job.gold
        assert not any("\n" in command for command in job.gold)
        assert all(content.endswith("\n") for content in job.files.values())
        assert json.loads(json.dumps(job.goals)) == {goal: list(checks) for goal, checks in job.goals.items()}


def test_a_part_of_the_kinds_is_in_one_split_only():
    for tier, least in ((1, 10), (2, 5), (3, 4)):
        tiered = [kind for kind in KINDS.values() if kind.tier == tier]
        shared = [kind for kind in tiered if len(kind.splits) == 3]
        assert len(shared) >= least
        assert 0.6 <= len(shared) / len(tiered) <= 0.9
        assert all(kind.splits in (("validation",), ("test",)) for kind in tiered if kind not in shared)


def test_tier_1_pools_are_disjoint_and_free_of_substrings():
    pool = WORDS + STEMS + FOLDERS
    assert (len(WORDS), len(STEMS), len(FOLDERS)) == (64, 24, 8)
    assert not [(a, b) for i, a in enumerate(pool) for j, b in enumerate(pool) if i != j and a in b]


def tier_1_jobs(split):
    return [(kind, kind.make(Random(seed))) for kind in TIER1 if split in kind.splits for seed in range(15)]


def split_words(text):
    return set(re.findall(r"[A-Za-z]+|\d|[^\w\s]", text))


def test_tier_1_is_simple():
    shape = re.compile(r"([A-Za-z]+( [a-z]+| [a-z]+\.txt)* \. )*[A-Za-z]+( [a-z]+| [a-z]+\.txt)* \.")
    for _, job in tier_1_jobs("train") + tier_1_jobs("validation") + tier_1_jobs("test"):
        assert shape.fullmatch(job.instruction), job.instruction
        assert all(len(sentence.split()) <= 14 for sentence in job.instruction.split(" . "))
        assert re.findall("[A-Z]", job.instruction) == [s[0] for s in job.instruction.split(" . ")]
        assert 2 <= len(job.files) <= 4
        assert all(1 <= content.count("\n") <= 4 for content in job.files.values())


def test_tier_1_has_a_small_vocabulary_that_training_shows_whole():
    shown, seen = (
        {w for _, job in tier_1_jobs(split) for w in split_words("\n".join([job.instruction, *job.gold]))}
        for split in ("train", "test")
    )
    assert len(shown) <= 200
    assert seen - set(WORDS) - set(STEMS) - set(FOLDERS) <= shown


def test_two_fifths_of_tier_1_training_take_several_steps():
    jobs = [job for _, job in tier_1_jobs("train")]
    assert 0.3 <= sum(len(job.gold) > 1 for job in jobs) / len(jobs) <= 0.5
