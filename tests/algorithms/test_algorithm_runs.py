"""Whole runs: PPO and Harness-RL in one piece and in two, and graders that fail to give numbers."""

import pytest
import torch

from whippletree.store.run_dir import RunStore
from whippletree.train import train
from whippletree.types import Reward

PPO = {
    "group_size": 1,
    "batch_size": 8,
    "algorithm": {"type": "ppo", "value_steps": 1, "kl": 0.1, "critic_lr": 1e-3},
    "evaluate": {"rollouts_per_set": 2},
}
HARNESS_RL = {
    "algorithm": {"type": "harness-rl", "probe_tokens": 4, "other_weight": 0.5},
    "evaluate": {"rollouts_per_set": 2},
}
KEPT = ("critic.pt", "units.pt")


def read(path):
    with RunStore.open(path, read_only=True) as store:
        metrics = {
            (record.step, name): value
            for record in store.steps()
            for name, value in record.metrics.items()
            if name != "wall_s" and not name.startswith("cpu_s/")
        }
        checkpoint = store.checkpoints()[2]
    kept = next(torch.load(checkpoint / name, weights_only=True) for name in KEPT if (checkpoint / name).exists())
    state = kept["weights"] if "weights" in kept else {name: torch.cat(sums) for name, sums in kept["sums"].items()}
    return metrics, (checkpoint / "model.safetensors").read_bytes(), state


@pytest.fixture(scope="module")
def whole(create, act, tmp_path_factory):
    path = tmp_path_factory.mktemp("ppo") / "whole"
    act(path, create(path, PPO), train)
    return read(path)


def test_values_are_learned_first_and_the_policy_moves_after(whole):
    metrics, _, critic = whole
    of = {name: [metrics[step, name] for step in range(3)] for _, name in metrics}
    assert of["grad_norm"][0] == 0.0 < min(of["grad_norm"][1:])
    assert min(of["value/grad_norm"]) > 0
    assert of["value/mean"][0] == 0.0 != of["value/mean"][1]
    assert of["kl"][0] == pytest.approx(0, abs=1e-6)
    assert of["kl"][1] == pytest.approx(0, abs=1e-6)  # the policy has not moved yet
    assert of["kl"][2] > 1e-6
    assert of["samples/rollouts"] == [8.0] * 3
    assert critic["head.weight"].abs().sum() > 0


class Stop(Exception):
    pass


async def train_to_step_2(run):
    def stop(rollout):
        if rollout.step == 2:
            raise Stop

    run.progress = stop
    await train(run)


def in_two_pieces(path, changes, create, act):
    config = create(path, changes)
    with pytest.raises(ExceptionGroup) as stopped:
        act(path, config, train_to_step_2)
    assert stopped.group_contains(Stop)
    act(path, config, train)


def test_a_run_in_two_pieces_is_the_run_in_one(whole, create, act, tmp_path):
    path = tmp_path / "stopped"
    in_two_pieces(path, PPO, create, act)
    found, expected = read(path), whole
    assert found[:2] == expected[:2]
    assert all(torch.equal(found[2][name], expected[2][name]) for name in expected[2])


def test_parts_of_calls_are_trained_through_their_units_and_go_on_where_they_stopped(create, act, tmp_path):
    whole, stopped = tmp_path / "whole", tmp_path / "stopped"
    act(whole, create(whole, HARNESS_RL), train)
    in_two_pieces(stopped, HARNESS_RL, create, act)
    found, expected = read(stopped), read(whole)
    assert found[:2] == expected[:2]
    assert all(torch.equal(found[2][name], expected[2][name]) for name in ("action", "argument", "other"))
    last = {name: value for (step, name), value in found[0].items() if step == 2}
    assert 0.25 < last["units/chosen"] < 0.75 + last["units/shared"]
    assert 0 not in (last["loss/action"], last["loss/argument"], last["loss/other"], last["grad_norm"])
    assert last["loss"] == pytest.approx(last["loss/action"] + last["loss/argument"] + last["loss/other"], abs=1e-6)


class NowAndThen:
    """A source whose grader fails to give a number every fifth time."""

    def __init__(self, tasks):
        self.tasks, self.graded = tasks, 0

    def __getattr__(self, name):
        return getattr(self.tasks, name)

    async def grade(self, task, ending):
        self.graded += 1
        return Reward(float("nan")) if self.graded % 5 == 0 else await self.tasks.grade(task, ending)


@pytest.mark.parametrize("changes", [{}, PPO])
def test_rewards_that_are_no_numbers_are_named_with_their_step_and_never_reach_the_weights(
    changes, create, act, tmp_path, caplog
):
    async def train_with_poor_grades(run):
        run.tasks = NowAndThen(run.tasks)
        await train(run)
        return run.policy

    path = tmp_path / "run"
    policy = act(
        path, create(path, {**changes, "steps": 2, "evaluate": {"rollouts_per_set": 2}}), train_with_poor_grades
    )
    assert all(parameter.isfinite().all() for parameter in policy.model.parameters())
    with RunStore.open(path, read_only=True) as store:
        steps = store.steps()
        names = [[rollout.id for rollout in store.rollouts() if rollout.step == step] for step in range(2)]
    for record, known in zip(steps, names, strict=True):
        said = [text for text in caplog.messages if text.startswith(f"step {record.step + 1}: rollout '")]
        assert record.metrics["rollouts/no_number"] == len(said) > 0
        assert all(any(f"'{name}' has the reward nan" in text for name in known) for text in said)
        assert (record.metrics["skipped_update"], 0 <= record.metrics["reward"] <= 1) == (0.0, True)
