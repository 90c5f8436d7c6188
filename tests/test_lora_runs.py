"""Runs that train adapters: stopped and resumed, evaluated by their checkpoints, and fine-tuned."""

import asyncio
from contextlib import closing

import pytest

from whippletree.config import to_toml
from whippletree.evaluate import evaluate
from whippletree.policy.lora import WEIGHTS
from whippletree.sft import open_sft, parse_sft, select, sft, sft_config_of
from whippletree.store.run_dir import RunStore
from whippletree.train import train

LORA = {"rank": 4, "alpha": 8, "dropout": 0.1}
CHANGES = {
    "steps": 2,
    "policy": {"lora": LORA},
    "optimizer": {"lr": 1e-2, "warmup_steps": 0},
    "algorithm": {"kl": 0.01},
    "evaluate": {"rollouts_per_set": 2, "sets": {"base": "base"}},
}


class Stop(Exception):
    pass


def checkpoint(path):
    with RunStore.open(path, read_only=True) as store:
        return list(store.checkpoints().values())[-1]


def adapters(path):
    return (checkpoint(path) / WEIGHTS).read_bytes()


@pytest.fixture(scope="module")
def trained(create, act, tmp_path_factory):
    path = tmp_path_factory.mktemp("runs") / "lora"
    act(path, create(path, CHANGES), train)
    return path


def test_a_run_of_adapters_resumes_as_if_nothing_had_happened(trained, create, act, tmp_path):
    async def train_to_the_second_step(run):
        def stop(rollout):
            if rollout.step == 1:
                raise Stop

        run.progress = stop
        await train(run)

    path = tmp_path / "stopped"
    config = create(path, CHANGES)
    with pytest.raises(ExceptionGroup):
        act(path, config, train_to_the_second_step)
    act(path, config, train)
    assert adapters(path) == adapters(trained)
    with RunStore.open(path, read_only=True) as store:
        assert store.num_steps() == 2
        assert max(value for _, value in store.metric("grad_norm")) > 0
        assert max(value for _, value in store.metric("kl")) > 0


def test_a_checkpoint_is_evaluated_by_its_path(trained, create, act, tmp_path, tiny):
    changes = {**CHANGES, "steps": 0, "policy": {"model": str(checkpoint(trained))}}
    found = act(tmp_path / "it", create(tmp_path / "it", changes), lambda run: evaluate(run, label="it", step=-1))
    with RunStore.open(trained, read_only=True) as store:
        assert found["base"] == store.scores("base", "final", 1)
    assert not (checkpoint(trained) / "model.safetensors").exists()


def test_adapters_are_fine_tuned(trained, tmp_path, tiny):
    tree = {"runs": [str(trained)], "epochs": 4, "batch_size": 4, "where": ["graded=true"], "validation_share": 0}
    path = tmp_path / "sft"
    config = parse_sft({**tree, "policy": {"model": str(tiny), "lora": LORA}, "optimizer": {"lr": 1e-2}}, "test")
    RunStore.create(path, to_toml(config), {"selection": select(config)}).close()

    async def tune():
        with closing(RunStore.open(path)) as store:
            async with open_sft(sft_config_of(store), store) as run:
                await sft(run)
                return [loss for _, loss in store.metric("loss")]

    losses = asyncio.run(tune())
    assert losses[-1] < losses[0]
    assert len(adapters(path)) < (tiny / "model.safetensors").stat().st_size
