"""An expert's rollouts: all pass, unless it is told to be careless where a task knows a weak habit."""

import pytest

from whippletree.config import parse, to_toml
from whippletree.demonstrate import demonstrate
from whippletree.store.run_dir import RunStore


@pytest.mark.parametrize(("careless", "passed"), [(0.0, 1.0), (0.5, None), (1.0, 0.0)])
def test_the_careless_share(act, tmp_path, sandbox_kind, careless, passed):
    tree = {
        "steps": 0,
        "tasks": {"kinds": ["ship_two_told"]},
        "harnesses": {"train": "base"},
        "sandbox": {"kind": sandbox_kind},
        "evaluate": {"rollouts_per_set": 1, "sets": {"base": "base"}},
    }
    config = parse(tree, "the test's configuration")
    RunStore.create(tmp_path / "run", to_toml(config), {}).close()

    async def story(run):
        first = await demonstrate(run, 8, lambda rollout: None, careless)
        again = await demonstrate(run, 8, lambda rollout: None, careless)
        assert again == (0, 0)
        return first, list(run.store.rollouts())

    (num_passed, made), rollouts = act(tmp_path / "run", config, story)
    assert made == len(rollouts) == 8
    assert num_passed == sum(rollout.passed for rollout in rollouts)
    assert num_passed == 8 * passed if passed is not None else 0 < num_passed < 8
    assert {rollout.num_turns for rollout in rollouts if not rollout.passed} <= {3}  # two calls and the end
