"""Wall and CPU time of a run that acts while it learns, against one in which acting and learning take turns.

`python benchmarks/overlap.py` writes benchmarks/overlap.json. Both train nano with the same settings but for
`rollout.staleness`, in turns, each round with another seed. Before every command its sandbox sleeps, as if a slow
program ran: that is the time that learning can fill. The machine should have nothing else to do.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

from record import keep, machine

from whippletree.config import RunConfig, parse, to_toml
from whippletree.run import open_run
from whippletree.sandbox.base import Sandboxes
from whippletree.store.run_dir import RunStore
from whippletree.train import train
from whippletree.types import ExecResult, Sandbox

STALENESS = (0, 1)


class Slow:
    """The same sandboxes, in which every command comes after a sleep."""

    def __init__(self, sandboxes: Sandboxes, wait_s: float) -> None:
        self._sandboxes, self._wait_s = sandboxes, wait_s

    async def open(self, *given: Any) -> Sandbox:
        return SlowSandbox(await self._sandboxes.open(*given), self._wait_s)  # type: ignore[return-value]

    async def close(self) -> None:
        await self._sandboxes.close()


class SlowSandbox:
    def __init__(self, sandbox: Sandbox, wait_s: float) -> None:
        self._sandbox, self._wait_s = sandbox, wait_s

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sandbox, name)

    async def run(self, command: str) -> ExecResult:
        await self._sandbox.run(f"sleep {self._wait_s}")
        return await self._sandbox.run(command)


def configuration(staleness: int, seed: int, steps: int) -> RunConfig:
    tree = {
        "seed": seed,
        "steps": steps,
        "batch_size": 8,
        "group_size": 8,
        "policy": {"lockstep": False, "num_slots": 64, "micro_batch_tokens": 2048},
        "rollout": {"concurrency": 64, "staleness": staleness},
        "evaluate": {"rollouts_per_set": 1, "sets": {"base": "base"}},
    }
    return parse(tree, "the benchmark")


async def timed(path: Path, config: RunConfig, wait_s: float) -> dict[str, float]:
    """Seconds of all steps together, and how old the trained tokens were."""
    RunStore.create(path, to_toml(config), {}).close()
    with closing(RunStore.open(path)) as store:
        async with open_run(config, store) as run:
            run.sandboxes = Slow(run.sandboxes, wait_s)
            await train(run)
        steps, ages = store.steps(), [value for _, value in store.metric("staleness/mean")]
    return {
        "wall_s": round(sum(step.wall_s for step in steps), 2),
        "cpu_s": round(sum(step.cpu_s for step in steps), 2),
        "staleness_mean": round(statistics.mean(ages), 3),
        "reward_last_half": round(statistics.mean(step.metrics["reward"] for step in steps[len(steps) // 2 :]), 3),
    }


def measure(rounds: int, steps: int, wait_s: float) -> dict[str, Any]:
    found: dict[str, list[dict[str, float]]] = {f"staleness {staleness}": [] for staleness in STALENESS}
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(rounds):
            for staleness in STALENESS:
                path = Path(folder) / f"{staleness}-{seed}"
                told = asyncio.run(timed(path, configuration(staleness, seed, steps), wait_s))
                found[f"staleness {staleness}"].append(told)
                print(f"seed {seed}, staleness {staleness}: {told}", file=sys.stderr)
    in_turns, ahead = found.values()
    medians = [statistics.median(round_["wall_s"] for round_ in side) for side in (in_turns, ahead)]
    return {"ratios": {"staleness 0": round(medians[0] / medians[1], 2)}, "rounds": found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--wait-s", type=float, default=0.5, help="before each command")
    arguments = parser.parse_args()
    result = measure(**vars(arguments)) | {
        "what": {
            "staleness 1": "median wall time of the steps of a run of nano that acts while it learns",
            "staleness 0": "the same, acting and learning in turns",
        },
        "command": f"python benchmarks/overlap.py {' '.join(sys.argv[1:])}".strip(),
        "settings": vars(arguments),
        "machine": machine(os.getloadavg()[0]),
    }
    keep(__file__, result)


if __name__ == "__main__":
    main()
