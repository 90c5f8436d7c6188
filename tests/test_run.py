import asyncio
import json
import os
import shutil

import pytest
from tokenizers import Tokenizer

from whippletree.chat.compact import CompactRenderer
from whippletree.config import HarnessesSection, PolicySection
from whippletree.errors import ConfigError, HarnessError, PolicyError, SandboxError, StoreError, TaskError
from whippletree.run import Clock, Harnesses, discard_unused, mean, open_policy, renderer_for
from whippletree.sandbox.workspace import place_for_roots
from whippletree.store.run_dir import RunStore
from whippletree.train import train
from whippletree.types import Score


async def nothing(run):
    return run


def sandbox_roots():
    """Of this process."""
    return list(place_for_roots().glob(f"whippletree-sandboxes-{os.getpid()}-*"))


def test_harnesses_are_specs_by_name():
    harnesses = Harnesses(HarnessesSection())
    spec = harnesses.spec("S1T2O0C1W2")
    assert spec.id == "S1T2O0C1W2"
    assert harnesses.spec("S1T2O0C1W2") is spec
    with pytest.raises(HarnessError):
        harnesses.spec("S9T0O0C0W0")


def test_names_can_be_drawn_for_each_task():
    assert Harnesses(HarnessesSection(draw_names=True)).spec("S0T0O0C0W0").draw == "task"
    assert Harnesses(HarnessesSection()).spec("S0T0O0C0W0").draw == "level"


def test_a_space_of_ones_own(tmp_path):
    path = tmp_path / "space.toml"
    path.write_text('extends = "paper"\n[[factors]]\nkey = "W"\n[[factors.levels]]\nname = "short"\n')
    harnesses = Harnesses(HarnessesSection(space=str(path)))
    assert harnesses.space.size == 81 * 4
    assert harnesses.spec("S0T0O0C0W3").id == "S0T0O0C0W3"


def test_nano_renders_compactly(tiny):
    assert isinstance(renderer_for(tiny), CompactRenderer)


def test_a_policy_has_the_context_that_it_is_given(tiny):
    policy = open_policy(PolicySection(model=str(tiny), max_context=100))
    assert policy.max_context == 100
    asyncio.run(policy.close())


def test_what_is_no_policy_is_refused(tmp_path, tiny):
    with pytest.raises(PolicyError, match="cannot load a model from"):
        open_policy(PolicySection(model=str(tmp_path)))
    with pytest.raises(PolicyError, match="there is no such directory"):
        open_policy(PolicySection(model=str(tmp_path / "typo")))
    (tmp_path / "run.sqlite").touch()
    with pytest.raises(PolicyError, match=r"is a run: give one of its policies, in .*checkpoints"):
        open_policy(PolicySection(model=str(tmp_path)))
    for name, text in (("no-tokenizer", None), ("broken-tokenizer", "{")):
        shutil.copytree(tiny, tmp_path / name)
        file = tmp_path / name / "tokenizer.json"
        file.unlink() if text is None else file.write_text(text)
        with pytest.raises(PolicyError, match="cannot load the tokenizer of"):
            open_policy(PolicySection(model=str(tmp_path / name)))


def test_a_context_beyond_the_models_positions_is_refused(tiny):
    with pytest.raises(PolicyError, match="max_context is 5000"):
        open_policy(PolicySection(model=str(tiny), max_context=5000))


def test_the_learning_rate_rises_then_falls_to_its_share(create, act, tmp_path):
    changes = {"steps": 11, "optimizer": {"lr": 1.0, "warmup_steps": 2, "decay_to": 0.5}}
    run = act(tmp_path / "run", create(tmp_path / "run", changes), nothing)
    rates = [run.lr(step) for step in range(11)]
    assert rates[0] == 0.5
    assert rates[1:] == pytest.approx([1 - 0.05 * step for step in range(1, 11)])
    assert rates[-1] == pytest.approx(0.5)


def test_a_run_of_one_step_learns_at_the_full_rate(create, act, tmp_path):
    changes = {"steps": 1, "optimizer": {"lr": 1.0, "warmup_steps": 0, "decay_to": 0.1}}
    assert act(tmp_path / "run", create(tmp_path / "run", changes), nothing).lr(0) == 1.0


@pytest.mark.parametrize(
    ("changes", "error", "words"),
    [
        ({"harnesses": {"train": "trainig"}}, HarnessError, "'trainig' names no set of harnesses"),
        ({"harnesses": {"train": ["S0T0O0C0W9"]}}, HarnessError, "W9"),
        ({"harnesses": {"space": "nowhere.toml"}}, HarnessError, "nowhere.toml"),
        ({"evaluate": {"sets": {"mine": "unseen"}}}, HarnessError, "'unseen' names no set of harnesses"),
        ({"evaluate": {"rollouts_per_set": 10**6}}, ConfigError, "evaluate.rollouts_per_set = 1000000"),
        ({"tasks": {"kinds": ["colour"]}}, TaskError, "colour"),
        ({"policy": {"model": "/nowhere/policy"}}, PolicyError, "/nowhere/policy"),
        ({"policy": {"max_context": 4000}}, PolicyError, "max_context is 4000"),
    ],
)
def test_mistakes_are_found_before_the_first_rollout(changes, error, words, create, act, tmp_path):
    async def story(run):
        raise AssertionError("the run was opened")

    config = create(tmp_path / "run", changes)
    with pytest.raises(error, match=words):
        act(tmp_path / "run", config, story)


def test_a_missing_bubblewrap_is_found_before_the_first_rollout(create, act, tmp_path, monkeypatch):
    config = create(tmp_path / "run", {"sandbox": {"kind": "bubblewrap"}})
    monkeypatch.setattr("shutil.which", lambda *_: None)
    with pytest.raises(SandboxError, match="Install it"):
        act(tmp_path / "run", config, nothing)


@pytest.mark.parametrize("fails", [False, True])
def test_a_run_leaves_no_sandboxes_behind(fails, create, act, tmp_path):
    seen = []

    async def story(run):
        seen.extend(sandbox_roots())
        if fails:
            raise PolicyError("the policy broke")

    config = create(tmp_path / "run")
    if fails:
        with pytest.raises(PolicyError):
            act(tmp_path / "run", config, story)
    else:
        act(tmp_path / "run", config, story)
    assert seen
    assert not sandbox_roots()


def test_sandboxes_are_closed_where_the_policy_cannot_be_opened(create, act, tmp_path):
    with pytest.raises(PolicyError):
        act(tmp_path / "run", create(tmp_path / "run", {"policy": {"model": str(tmp_path)}}), nothing)
    assert not sandbox_roots()


def test_only_unused_runs_are_discarded(create, act, tmp_path):
    create(tmp_path / "unused")
    assert discard_unused(tmp_path / "unused")
    assert not (tmp_path / "unused").exists()

    act(tmp_path / "trained", create(tmp_path / "trained", {"steps": 1}), train)
    create(tmp_path / "evaluated")
    with RunStore.open(tmp_path / "evaluated") as store:
        store.commit_scores("base", "final", -1, [Score("t", "k", "S0T0O0C0W0", (True,), (1.0,))])
    for name in ("trained", "evaluated"):
        assert not discard_unused(tmp_path / name)
        assert (tmp_path / name / "run.sqlite").exists()


def test_a_run_that_goes_on_is_not_discarded(create, tmp_path):
    create(tmp_path / "running")
    with RunStore.open(tmp_path / "running"), pytest.raises(StoreError, match="is being written by"):
        discard_unused(tmp_path / "running")
    assert (tmp_path / "running").exists()


def test_the_clock_splits_what_is_spent(create, act, tmp_path):
    async def story(run):
        clock = Clock(run.policy)
        await run.policy.logprobs([run.policy.renderer.opening.repeat(50)] * 3)
        return clock.split(), clock.wall_s, clock.cpu_s

    split, wall_s, cpu_s = act(tmp_path / "run", create(tmp_path / "run"), story)
    assert set(split) == {"sampling", "learning", "sandbox", "other"}
    assert split["learning"] > 0
    assert split["sampling"] == 0
    assert wall_s > 0
    assert cpu_s >= split["learning"]


def test_the_mean_of_nothing_is_nothing():
    assert (mean([]), mean([1, 2])) == (0.0, 1.5)


def test_a_policy_is_its_directory(tiny):
    recipe = json.loads((tiny / "recipe.json").read_text())
    assert recipe["hidden_size"] == 32
    assert Tokenizer.from_file(str(tiny / "tokenizer.json")).token_to_id("<|call|>") is not None
