import tomllib
from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from whippletree.algorithms import GRPO, PPO
from whippletree.cli import recipe
from whippletree.config import RunConfig, merged, parse, read_toml, to_toml, with_overrides
from whippletree.errors import ConfigError, SandboxError
from whippletree.keys import explain
from whippletree.sandbox import SandboxLimits
from whippletree.study import StudyConfig, read_study

RECIPES = Path(__file__).parent.parent / "src/whippletree/recipes"
TEXTS = st.text(st.characters(codec="utf-8"), max_size=12)
TREES = st.fixed_dictionaries(
    {
        "seed": st.integers(0, 2**31),
        "schedule": st.one_of(
            st.fixed_dictionaries({"type": st.sampled_from(["single", "all"])}),
            st.fixed_dictionaries(
                {"type": st.sampled_from(["random", "repeat", "locality"]), "steps_per_task": st.integers(1, 9)}
            ),
        ),
        "policy": st.fixed_dictionaries({"model": TEXTS, "lockstep": st.booleans()}),
        "harnesses": st.fixed_dictionaries({"train": TEXTS | st.lists(TEXTS, max_size=3)}),
        "tasks": st.fixed_dictionaries(
            {"tiers": st.lists(st.integers(1, 3), min_size=1, max_size=3), "kinds": st.none() | st.lists(TEXTS)}
        ),
        "optimizer": st.fixed_dictionaries({"lr": st.floats(1e-12, 1e6)}),
        "sandbox": st.fixed_dictionaries(
            {"limits": st.fixed_dictionaries({"idle_timeout_s": st.none() | st.floats(0.1, 9)})}
        ),
        "evaluate": st.fixed_dictionaries(
            {"sets": st.dictionaries(TEXTS, TEXTS | st.lists(TEXTS, max_size=2), max_size=3)}
        ),
    }
)


@settings(max_examples=40)
@given(TREES)
def test_toml_gives_the_same_configuration_back(tree):
    config = parse(tree, "here")
    assert parse(tomllib.loads(to_toml(config)), "there") == config


def test_defaults_survive_toml():
    assert parse(tomllib.loads(to_toml(parse({}, "here"))), "there") == parse({}, "here")


@pytest.mark.parametrize("path", sorted(RECIPES.glob("*.toml")), ids=lambda path: path.stem)
def test_recipes_are_valid_and_a_run_fits_a_screen(path):
    tree = recipe(path.stem)
    if "arms" in tree:
        read_study(tree, path.stem)
        return
    config = parse(tree, path.stem)
    assert parse(tomllib.loads(to_toml(config)), path.stem) == config
    assert len(path.read_text().splitlines()) <= 40


def test_overrides_are_toml_or_plain_words_and_later_ones_win():
    changes = ["seed=3", "harnesses.train=base", "optimizer.lr=1e-4", "tasks.tiers=[1, 2]", "seed = 4", "a.b.c=true"]
    assert with_overrides({"seed": 1, "optimizer": {"lr": 2, "warmup_steps": 0}}, changes) == {
        "seed": 4,
        "harnesses": {"train": "base"},
        "optimizer": {"lr": 1e-4, "warmup_steps": 0},
        "tasks": {"tiers": [1, 2]},
        "a": {"b": {"c": True}},
    }


def test_overrides_leave_the_tree_alone():
    tree = {"policy": {"threads": 1}}
    with_overrides(tree, ["policy.threads=2"])
    assert tree == {"policy": {"threads": 1}}


def test_another_type_replaces_the_whole_section():
    tree = {"schedule": {"type": "locality", "steps_per_task": 2}}
    assert with_overrides(tree, ["schedule.type=single"]) == {"schedule": {"type": "single"}}
    assert merged(tree, {"schedule": {"steps_per_task": 3}})["schedule"] == {"type": "locality", "steps_per_task": 3}


@pytest.mark.parametrize("override", ["seed", "=3"])
def test_overrides_must_be_key_and_value(override):
    with pytest.raises(ConfigError, match="expected KEY=VALUE"):
        with_overrides({}, [override])


@pytest.mark.parametrize(
    ("tree", "words"),
    [
        ({"stepz": 3}, ["'stepz'", "3", "did you mean steps?"]),
        ({"optimizer": {"learning": 1}}, ["'optimizer.learning'", "1"]),
        ({"sandbox": {"limits": {"memory": 5}}}, ["'sandbox.limits.memory'", "5", "sandbox.limits.memory_mb"]),
        ({"zzzz": 0}, ["'zzzz'", "config explain"]),
        ({"steps": -1}, ["steps = -1", "greater than or equal to 0"]),
        ({"steps": "ten"}, ["steps = 'ten'", "valid integer"]),
        ({"group_size": 1}, ["group_size = 1", "greater than or equal to 2"]),
        ({"optimizer": {"lr": float("inf")}}, ["optimizer.lr = inf", "finite"]),
        ({"tasks": {"split": "tests"}}, ["tasks.split = 'tests'", "'train', 'validation' or 'test'"]),
        ({"tasks": {"tiers": [6]}}, ["tasks.tiers.0 = 6", "1, 2, 3, 4 or 5"]),
        ({"evaluate": {"sets": {"all": 3}}}, ["evaluate.sets.all = 3", "valid string", "valid tuple"]),
        ({"schedule": {"type": "locality", "steps_per_task": 0}}, ["schedule.steps_per_task = 0", "equal to 1"]),
        ({"schedule": {"type": "single", "steps_per_task": 2}}, ["schedule.steps_per_task", "(type random, repeat"]),
        ({"schedule": {"type": "bandid"}}, ["schedule.type = 'bandid'", "single, random, repeat, locality, all"]),
        ({"schedule": {"steps_per_task": 2}}, ["schedule.type = None", "single"]),
        ({"algorithm": {"type": "sarsa"}}, ["algorithm.type = 'sarsa'", "grpo, ppo"]),
        ({"algorithm": {"gamma": 1}}, ["unknown key 'algorithm.gamma'", "(type ppo)"]),
        ({"algorithm": {"type": "ppo", "gamma": 2}}, ["algorithm.gamma = 2", "less than or equal to 1"]),
        ({"algorithm": {"weighting": "sequence"}}, ["set correction = 0"]),
        ({"schedule": "single"}, ["schedule = 'single'", "dictionary"]),
    ],
)
def test_what_is_wrong_is_named_with_what_is_accepted(tree, words):
    with pytest.raises(ConfigError) as refused:
        parse(tree, "recipe.toml")
    assert all(word in str(refused.value) for word in ["recipe.toml", *words])


def test_an_algorithm_is_grpo_unless_it_says_otherwise_and_only_ppo_does_with_one_rollout():
    assert parse({"algorithm": {"kl": 0.1}}, "here").algorithm == GRPO(kl=0.1)
    assert parse({"algorithm": {"type": "ppo"}, "group_size": 1}, "here").algorithm == PPO()


def test_every_mistake_is_named_at_once():
    with pytest.raises(ConfigError) as refused:
        parse({"steps": -1, "seed": -1, "colour": "red"}, "recipe.toml")
    assert all(key in str(refused.value) for key in ("steps", "seed", "colour"))


def test_impossible_limits_are_refused():
    with pytest.raises(SandboxError, match="memory_mb must be positive, got 0"):
        parse({"sandbox": {"limits": {"memory_mb": 0}}}, "recipe.toml")


def test_a_study_is_no_run():
    with pytest.raises(ConfigError, match="is a study"):
        parse(recipe("quickstart"), "quickstart")


@pytest.mark.parametrize(("text", "reason"), [(None, "there is no file"), ("steps = = 3", "no valid TOML")])
def test_files_that_cannot_be_read_are_named(tmp_path, text, reason):
    path = tmp_path / "recipe.toml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigError, match=reason) as refused:
        read_toml(path)
    assert str(path) in str(refused.value)


def test_every_key_is_explained_once():
    rows = list(explain(RunConfig))
    keys = [row[0] for row in rows]
    assert len(keys) == len(set(keys))
    assert all(accepted and meaning for _, accepted, _, meaning in rows)
    in_toml = {row[0] for row in _leaves(RunConfig().model_dump(mode="json"))}
    assert in_toml - {"policy.lora"} <= {*keys, *(f"evaluate.sets.{name}" for name in RunConfig().evaluate.sets)}
    assert {f"sandbox.limits.{field.name}" for field in fields(SandboxLimits)} <= set(keys)
    assert "schedule.type" in keys


def _leaves(tree, path=""):
    for key, value in tree.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{path}{key}.")
        else:
            yield f"{path}{key}", value


def test_explained_types_and_defaults():
    rows = {row[0]: row[1:3] for row in explain(RunConfig)}
    assert rows["optimizer.lr"] == ("number > 0", "0.0003")
    assert rows["policy.lockstep"] == ("true | false", "true")
    assert rows["tasks.tiers"] == ("list of 1 | 2 | 3 | 4 | 5", "[1]")
    assert rows["sandbox.limits.idle_timeout_s"] == ("number", "")
    assert rows["schedule.steps_per_task"][0] == "whole number >= 1 (type random, repeat, locality)"


def test_keys_of_studies_are_explained_too():
    assert all(meaning for *_, meaning in explain(StudyConfig))


STUDY = {"name": "s", "seeds": [0], "arms": {"a": {}, "b": {"steps": 1}}}


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"seeds": []}, "at least 1 item"),
        ({"seeds": [1, 1]}, "named once"),
        ({"arms": {}}, "at least 1 item"),
        ({"name": None}, "name = None: Input should be a valid string"),
        ({"arms": {"../a": {}}}, "pattern"),
        ({"compare": [["a", "c"]]}, "names the arm 'c'; the arms are a, b"),
        ({"arms": {"a": {"stepz": 1}}}, "arm 'a' of study 's': unknown key 'stepz'"),
        ({"seed": 1}, "unknown key 'seed'"),
    ],
)
def test_mistakes_in_a_study_are_found_before_it_runs(changes, reason):
    with pytest.raises(ConfigError, match=reason):
        read_study({**STUDY, **changes}, "study.toml")


def test_an_arm_is_the_run_with_its_changes_and_the_seed():
    study = read_study({**STUDY, "seeds": [7], "run": {"steps": 9, "batch_size": 3}}, "study.toml")
    config = study.config("b", 7)
    assert (config.steps, config.batch_size, config.seed) == (1, 3, 7)
    assert study.config("a", 7).steps == 9
