import pytest

from whippletree.errors import ConfigError
from whippletree.store.run_dir import RunStore, StepRecord
from whippletree.store.where import keys_of, where
from whippletree.types import Reward, Rollout, StopReason

ROLLOUTS = (
    ("pi", "paddock/train/copy/1", "copy", 0, "train", 1.0),
    ("pi:bare", "paddock/train/move/2", "move", 10, "train", 0.5),
    ("S0T1", "shed/test/a?b/3", "a?b", 20, "evaluate", 0.0),
    ("S0T1", "lone", "copy", 30, "rescue", None),
)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    made = [
        Rollout(
            str(number),
            task,
            kind,
            harness,
            step,
            purpose,
            (),
            None if reward is None else Reward(reward),
            StopReason.ERROR if reward is None else StopReason.FINISHED,
            num_turns=number,
        )
        for number, (harness, task, kind, step, purpose, reward) in enumerate(ROLLOUTS)
    ]
    with RunStore.create(tmp_path_factory.mktemp("where") / "run", "", {}) as store:
        store.commit_step(StepRecord(0, 1, 0.0, 0.0), made)
        yield store


@pytest.mark.parametrize(
    ("conditions", "found"),
    [
        ([], "0123"),
        (["harness=pi"], "0"),
        (["harness=pi*"], "01"),
        (["harness!=pi*"], "23"),
        (["harness != pi"], "123"),
        (["passed=true"], "0"),
        (["passed=false"], "123"),
        (["passed!=false"], "0"),
        (["graded=true"], "012"),
        (["reward<1"], "12"),
        (["reward>=0.5"], "01"),
        (["step>=10"], "123"),
        (["step>=10", "step<30"], "12"),
        (["task_kind=a?b"], "2"),
        (["task_kind=a?*"], "2"),
        (["task_kind=c?*"], ""),
        (["task=paddock/*/copy/*"], "0"),
        (["source=paddock"], "01"),
        (["source=lone"], "3"),
        (["purpose=train", "turns>0"], "1"),
        (["stop_reason=error"], "3"),
        (["id=2"], "2"),
        (["harness=x' OR '1'='1"], ""),
    ],
)
def test_conditions_select(store, conditions, found):
    assert "".join(rollout.id for rollout in store.select(where(conditions))) == found


@pytest.mark.parametrize(
    ("condition", "words"),
    [
        ("passed", "expected KEY=VALUE"),
        ("", "expected KEY=VALUE"),
        ("colour=red", "no key 'colour'; the keys are id, harness"),
        ("passed=yes", "true or false, not 'yes'"),
        ("passed>true", "compared with = and !="),
        ("harness>pi", "compared with = and !="),
        ("step=ten", "expected a number, not 'ten'"),
        ("purpose=training", "purpose is one of evaluate, rescue"),
        ("stop_reason=tired", "stop_reason is one of context_overflow"),
    ],
)
def test_what_is_no_condition_is_explained(condition, words):
    with pytest.raises(ConfigError, match=words):
        where(["step=1", condition])


def test_the_keys_of_conditions_are_known():
    assert keys_of(["passed=true", "step >= 3"]) == {"passed", "step"}
