"""The tool worlds: gold passes, the habit fails where there is trouble and passes elsewhere, failures can be seen."""

import hashlib
import json
import re
import subprocess
from collections import Counter
from random import Random

import pytest

from whippletree.tasks import Paddock
from whippletree.tasks.paddock import worlds
from whippletree.tasks.paddock.checks import grade
from whippletree.tasks.paddock.kinds import KINDS, TIER4, TIER5

REMINDERS = (worlds.MORE, worlds.LOOK_UP, worlds.SCHEMA, worlds.RETRY, worlds.READ_BACK)
kinds = pytest.mark.parametrize("kind", [*TIER5, *TIER4], ids=lambda kind: kind.name)


def lay_out(files, workspace):
    for path, content in files.items():
        file = workspace / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
    return workspace


def run_all(folder, attempts):
    """Run each (job, commands) in a workspace of its own, all in one shell; returns (workspace, output) of each."""
    workspaces = [lay_out(job.files, folder / str(i)) for i, (job, _) in enumerate(attempts)]
    script = []
    for workspace, (_, commands) in zip(workspaces, attempts, strict=True):
        script += [f"( cd {workspace}", *commands, ") 2>&1 < /dev/null", "echo ===="]
    done = subprocess.run(["sh"], input="\n".join(script), capture_output=True, text=True, check=True)
    assert done.stderr == ""
    *outputs, _ = done.stdout.split("====\n")
    return list(zip(workspaces, outputs, strict=True))


def verdicts(folder, attempts):
    found = run_all(folder, attempts)
    return [grade(job.files, job.goals, place) for (job, _), (place, _) in zip(attempts, found, strict=True)]


def check_kind(kind, seeds, folder):
    """Returns the share of instances that ask for no care."""
    jobs = [kind.make(Random(seed)) for seed in seeds]
    golds = verdicts(folder / "gold", [(job, job.gold) for job in jobs])
    assert [reward.value for reward in golds] == [1.0] * len(jobs)
    assert {reward.value for reward in verdicts(folder / "idle", [(job, ()) for job in jobs])} == {0.0}
    misses = [(job, miss) for job in jobs for miss in job.near_misses]
    assert [miss for (_, miss), r in zip(misses, verdicts(folder / "miss", misses), strict=True) if r.passed] == []
    return sum(reward.passed for reward in verdicts(folder / "habit", [(job, job.habit) for job in jobs])) / len(jobs)


@kinds
def test_gold_passes_and_nothing_else(kind, tmp_path):
    easy = check_kind(kind, range(2), tmp_path)
    assert easy == 0.0 if kind in TIER4 else 0.0 < easy < 1.0


@pytest.mark.slow
@kinds
def test_over_many_seeds_a_quarter_asks_for_no_care(kind, tmp_path):
    easy = check_kind(kind, range(1000, 1200), tmp_path)
    assert easy == 0.0 if kind in TIER4 else 0.15 < easy < 0.35


@kinds
def test_instances_are_well_formed(kind):
    for seed in range(30):
        job = kind.make(Random(seed))
        assert job == kind.make(Random(seed))
        assert 1 <= len(job.gold) <= 6
        assert len(job.near_misses) == 2
        assert len(job.habit) <= len(job.gold)
        assert all(content.endswith("\n") for content in job.files.values())
        assert json.loads(json.dumps(job.goals)) == {goal: list(checks) for goal, checks in job.goals.items()}


def test_reminders_are_in_one_place_in_tier_4_and_in_none_in_tier_5():
    def places(kind):
        for seed in range(30):
            job = kind.make(Random(seed))
            texts = [job.instruction, *job.files.values()]
            yield tuple(any(words in text for words in REMINDERS) for text in (texts[0], "\n".join(texts[1:])))

    for kind in TIER4:
        assert set(places(kind)) == {(True, False), (False, True)}
    for kind in TIER5:
        assert set(places(kind)) == {(False, False)}


def test_splits_share_no_job_and_kinds_take_turns():
    source = Paddock(tiers=(4, 5), per_split={"train": 480, "validation": 160, "test": 160})
    jobs = {
        split: {repr((sorted(task.files.items()), task.check)) for task in source.tasks(split)}
        for split in ("train", "validation", "test")
    }
    assert not jobs["train"] & jobs["validation"]
    assert not (jobs["train"] | jobs["validation"]) & jobs["test"]
    assert set(Counter(task.kind for task in source.tasks("test")).values()) == {10}
    assert {len(job.splits) for job in (*TIER4, *TIER5)} == {3}


def test_a_task_knows_its_habit_and_the_other_tiers_know_none():
    task = Paddock(kinds=("store_set",)).tasks("validation")[0]
    assert task.habit == task.gold.split("\n")[0]
    assert not any(task.habit for task in Paddock(tiers=(1, 2, 3)).tasks("train")[:60])


def test_the_suite_at_its_defaults_is_what_it_was():
    tasks = Paddock().tasks("train")[:200]
    told = [[t.id, t.instruction, dict(t.files), t.gold, t.check] for t in tasks]
    assert hashlib.sha256(json.dumps(told).encode()).hexdigest()[:16] == "eb9119ed00295e38"


# ---- what can be seen -------------------------------------------------------------------------------------------


def troubled(name, needs=lambda job: True):
    """An instance in which the habit is not enough."""
    jobs = (KINDS[name].make(Random(seed)) for seed in range(1000))
    return next(job for job in jobs if job.habit != job.gold[-len(job.habit) :] and needs(job))


def seen(job, commands, tmp_path):
    return run_all(tmp_path, [(job, commands)])[0][1]


@pytest.mark.parametrize("name", ["mail_last", "mail_delete", "contacts_send"])
def test_the_first_page_tells_of_more(name, tmp_path):
    job = troubled(name)
    assert re.search(r"^page 1 of [23]$", seen(job, job.habit, tmp_path), re.MULTILINE)


@pytest.mark.parametrize("way", ["list 2", "list page 2", "list --page 2"])
def test_pages_can_be_asked_for_in_several_ways(way, tmp_path):
    job = troubled("mail_last")
    assert seen(job, [f"sh mail {way}"], tmp_path).splitlines()[-1].startswith("page 2 of ")


@pytest.mark.parametrize("name", ["sql_get", "sql_set"])
def test_a_wrong_guess_of_names_is_an_error(name, tmp_path):
    job = troubled(name)
    assert re.match(r"error : no such (table|column)", seen(job, job.habit, tmp_path))


def test_a_busy_carrier_says_so(tmp_path):
    job = troubled("ship_two")
    assert "error 503 : busy\n" in seen(job, job.habit, tmp_path)


def test_a_closed_entry_takes_no_value_and_says_ok(tmp_path):
    job = troubled("store_set", lambda job: len(job.gold) == 5)
    put, get, *_ = job.gold
    assert re.fullmatch(r"ok\n\w+ \d closed\n", seen(job, [put, get], tmp_path))


def test_a_mail_in_the_wrong_form_is_sent_or_refused(tmp_path):
    job = troubled("mail_send", lambda job: "text name" in job.files["mail"])
    assert seen(job, job.habit, tmp_path / "sent") == "ok\n"
    job = troubled("mail_send", lambda job: "post" in job.files["mail"])
    assert seen(job, job.habit, tmp_path / "refused") == "error : no such command\n"


HOSTILE = (
    "sh mail list page x",
    "sh mail list page 9",
    "sh mail read ../../mail/x",
    "sh mail delete 99",
    "sh mail fly",
)


def test_bad_calls_are_errors_and_change_nothing(tmp_path):
    job = troubled("mail_last")
    place, output = run_all(tmp_path, [(job, HOSTILE)])[0]
    assert [line.split(" :")[0] for line in output.splitlines()] == ["error"] * len(HOSTILE)
    assert grade(job.files, job.goals, place).parts["untouched"] == 1.0


def test_sql_keeps_rows_and_refuses_nonsense(tmp_path):
    job = troubled("sql_set")
    table = next(path for path in job.files if path.startswith(".sql"))
    name = table.removeprefix(".sql/").removesuffix(".csv")
    queries = [f"delete from {name}", f"select * from {name}", "fly", f"drop table {name}", "select 1; select 2"]
    place, output = run_all(tmp_path, [(job, [f'sh sql "{query}"' for query in queries])])[0]
    assert [line[:7] for line in output.splitlines()] == ["error :"] * 3
    assert (place / table).read_text() == job.files[table].split("\n")[0] + "\n"


def test_changed_programs_and_states_do_not_pass(tmp_path):
    """Neither rewriting a program nor writing what it would have written beside the task's goal is free."""
    job = troubled("store_set")
    name = job.instruction.split()[1]
    cheats = [
        [*job.gold, "echo 'echo ok' > store"],
        [f"rm .store/{name}", f"ln -s /dev/zero .store/{name}"],
        [f"rm .store/{name}", f"mkdir .store/{name}"],
        ["mv .store other", "ln -s other .store", *job.gold],
    ]
    assert not any(reward.passed for reward in verdicts(tmp_path, [(job, commands) for commands in cheats]))
