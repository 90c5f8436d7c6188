"""What all tests share: no deadlines, and a tiny policy that solves one kind of task now and then."""

import asyncio
import random
import shutil
import sys
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import settings

from whippletree import cli, nano
from whippletree.chat.compact import CompactRenderer
from whippletree.config import merged, parse, to_toml
from whippletree.policy.local import LocalPolicy
from whippletree.run import open_run
from whippletree.sandbox import open_sandboxes
from whippletree.store.run_dir import RunStore
from whippletree.tasks.paddock import Paddock

settings.register_profile("no-deadline", deadline=None)
settings.load_profile("no-deadline")

KIND = "delete"
RECIPE = nano.NanoRecipe(
    hidden_size=32, num_layers=2, num_heads=2, mlp_size=64, noise=0.0, slips=0.0, context_weight=0.0
)


@pytest.fixture(scope="session")
def tokenizer():
    return nano.make_tokenizer(RECIPE)


@pytest.fixture(scope="session")
def tiny(tokenizer, tmp_path_factory):
    """A directory with a policy that has seen a few dozen traces: some of its rollouts pass, others do not."""
    path = tmp_path_factory.mktemp("policy") / "tiny"
    asyncio.run(_make(tokenizer, path))
    return path


async def _make(tokenizer, path):
    torch.set_num_threads(1)
    torch.manual_seed(0)
    renderer = CompactRenderer(tokenizer)
    policy = LocalPolicy(nano.new_model(RECIPE, tokenizer), renderer, max_context=RECIPE.max_context)
    paddock = Paddock(kinds=(KIND,), per_split={"train": 128})
    sandboxes = open_sandboxes("process")
    traces = [
        await nano.trace(RECIPE, renderer, sandboxes, paddock, task, nano.harness(nano.BASE), random.Random(0))
        for task in paddock.tasks("train")
    ]
    await sandboxes.close()
    rng = np.random.default_rng(0)
    for step in range(150):
        chosen = rng.permutation(len(traces))[:8]
        samples = [sample for index in chosen for sample in traces[index]]
        await nano.fit(policy, samples, 6e-3 * min(1.0, (step + 1) / 10))
    nano.save(policy, RECIPE, path)
    await policy.close()


@pytest.fixture(scope="session")
def sandbox_kind():
    return "bubblewrap" if shutil.which("bwrap") else "process"


@pytest.fixture(scope="session")
def tree(tiny, sandbox_kind):
    """A small run as a TOML file would give it."""
    return {
        "steps": 3,
        "batch_size": 4,
        "group_size": 4,
        "policy": {"model": str(tiny), "num_slots": 16},
        "sampling": {"max_tokens": 12},
        "tasks": {"kinds": [KIND]},
        "schedule": {"type": "single"},
        "harnesses": {"train": "base"},
        "optimizer": {"lr": 3e-4},
        "rollout": {"max_calls": 3, "concurrency": 16},
        "sandbox": {"kind": sandbox_kind},
        "evaluate": {"rollouts_per_set": 6, "sets": {"base": "base", "held_out": ["S0T0O1C0W0", "S0T0O0C1W0"]}},
    }


@pytest.fixture(scope="session")
def create(tree):
    """Make a run directory of `tree` with changes: `create(path, changes)` gives the configuration."""

    def create(path, changes=None):
        config = parse(merged(tree, changes or {}), "the test's configuration")
        RunStore.create(path, to_toml(config), {}).close()
        return config

    return create


@pytest.fixture(scope="session")
def act():
    """Open a run and do something with it: `act(path, config, story)` gives what the story returns."""

    def act(path, config, story):
        async def opened():
            with closing(RunStore.open(path)) as store:
                async with open_run(config, store) as run:
                    return await story(run)

        return asyncio.run(opened())

    return act


@pytest.fixture
def run(monkeypatch, capsys):
    """Run a command line in this process: `run("space", "show")` gives exit code, stdout and stderr."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["whippletree", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        captured = capsys.readouterr()
        assert "Traceback" not in captured.err
        return ended.value.code or 0, captured.out, " ".join(captured.err.split())

    for console in (cli.out, cli.err):
        monkeypatch.setattr(console, "_width", 200)
    return run


@pytest.fixture(scope="session")
def grades_by_code():
    """Skips where graders that are code cannot be run."""
    if not (shutil.which("bwrap") and Path("/usr/bin/python3").exists()):
        pytest.skip("graders run under bubblewrap, by a Python that sandboxes see")
