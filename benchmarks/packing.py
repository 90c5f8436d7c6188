"""CPU time and memory of one learning step's forward and backward passes, packed as trees and row by row.

`python benchmarks/packing.py --run DIR` writes benchmarks/packing.json. The rollouts of the first two kinds are made
here with nano: groups of eight plain episodes of the base harness, and groups of eight under harnesses that compact or
cut their context, so that a rollout is several segments with the same system prompt. Those of the third are recorded
ones of an agent program, the last of the training run DIR, such as `make study-programs` leaves; without DIR they are
left out. The two sides learn from the same samples with the same weights and the same budget of tokens in one pass, and
take turns; the unpacked side is `policy.packing = false`: rows sorted by length and padded. The gradients are compared.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
from record import keep, machine

from whippletree.algorithms.losses import negative_log_likelihood
from whippletree.config import PolicySection
from whippletree.policy.local import LocalPolicy
from whippletree.policy.tokens import Learning
from whippletree.run import open_policy
from whippletree.store.run_dir import RunStore
from whippletree.trajectory.samples import rollout_samples
from whippletree.types import Rollout, Sample

MADE = {
    "plain episodes": ("S0T0O0C0W0",),
    "compacting harnesses": ("S0T0O0C1W0", "S0T0O0C2W0"),
}
GROUP = 8


def made(harnesses: Sequence[str], groups: int) -> list[Rollout]:
    """Rollouts of nano, from one training step of the program."""
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "run"
        settings = {
            "steps": 1,
            "batch_size": groups,
            "group_size": GROUP,
            "harnesses.train": list(harnesses),
            "evaluate.sets": {},
        }
        changes = [part for key, value in settings.items() for part in ("--set", f"{key}={json.dumps(value)}")]
        command = [sys.executable, "-m", "whippletree", "train", "scaling", "--plain", "--dir", str(path), *changes]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        with RunStore.open(path, read_only=True) as store:
            return store.rollouts(with_calls=True)


def recorded(path: Path, harness: str, groups: int) -> list[Rollout]:
    """The last training rollouts of that harness."""
    with RunStore.open(path, read_only=True) as store:
        found = [rollout for rollout in store.rollouts(purpose="train") if rollout.harness == harness]
        assert found, f"{path} has no rollouts of {harness}"
        return [store.rollout(rollout.id) for rollout in found[-groups * GROUP :]]


def samples_of(rollouts: Sequence[Rollout]) -> list[Sample]:
    return [sample for rollout in rollouts for sample in rollout_samples(rollout)[0]]


def measured(policy: LocalPolicy, samples: Sequence[Sample]) -> dict[str, float]:
    """One forward and backward pass over all samples; leaves the gradient."""
    policy.model.zero_grad(set_to_none=True)
    policy.learned_tokens.clear()
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark begins anew
    before, begin = _memory_mib("VmRSS"), time.process_time()
    asyncio.run(policy.forward_backward(samples, negative_log_likelihood))
    taken = time.process_time() - begin
    return {"cpu_s": taken, "peak_mib": _memory_mib("VmHWM") - before, **policy.learned_tokens}


def _memory_mib(name: str) -> float:
    (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(name)]
    return int(line.split()[1]) / 1024


def compared(policies: dict[str, LocalPolicy], samples: Sequence[Sample], rounds: int) -> dict[str, object]:
    """Both sides in turn, the first round for warmth alone."""
    told: dict[str, list[dict[str, float]]] = {name: [] for name in policies}
    gradients: list[torch.Tensor] = []
    for turn in range(rounds + 1):
        for name, policy in policies.items():
            found = measured(policy, samples)
            if turn:
                told[name].append(found)
            else:
                gradients.append(torch.cat([p.grad.flatten() for p in policy.model.parameters() if p.grad is not None]))
            policy.model.zero_grad(set_to_none=True)
    torch.testing.assert_close(gradients[0], gradients[1], rtol=1e-3, atol=1e-4 * float(gradients[1].abs().max()))
    middle = {
        name: {key: statistics.median(run[key] for run in runs) for key in runs[0]} for name, runs in told.items()
    }
    packed, unpacked = middle["packed"], middle["unpacked"]
    speedup, sharing = unpacked["cpu_s"] / packed["cpu_s"], unpacked["rows"] / packed["unique"]
    return {
        "speedup": round(speedup, 2),
        "tokens_over_unique": round(sharing, 2),
        "cpu_over_what_unique_tokens_promise": round(sharing / speedup, 2),
        "rows": len(samples),
        "tokens": int(unpacked["rows"]),
        "unique_tokens": int(packed["unique"]),
        "trained_tokens": sum(int((sample.weights > 0).sum()) for sample in samples),
        **{
            name: {
                "computed_tokens": int(side["computed"]),
                "cpu_s": round(side["cpu_s"], 3),
                "peak_mib": round(side["peak_mib"]),
                "rounds_cpu_s": [round(run["cpu_s"], 3) for run in told[name]],
            }
            for name, side in middle.items()
        },
    }


def cases(arguments: argparse.Namespace) -> Iterator[tuple[str, list[Sample]]]:
    for name, harnesses in MADE.items():
        yield name, samples_of(made(harnesses, arguments.groups))
    if arguments.run:
        yield arguments.harness, samples_of(recorded(arguments.run, arguments.harness, arguments.groups))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", type=Path, help="a training run with rollouts of an agent program")
    parser.add_argument("--harness", default="claude-code:minimal", help="of which rollouts of DIR are taken")
    parser.add_argument("--groups", type=int, default=4, help=f"of {GROUP} rollouts, in each case")
    parser.add_argument("--micro-batch-tokens", type=int, default=8192)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    section = PolicySection(max_context=4096, max_positions=4097, micro_batch_tokens=arguments.micro_batch_tokens)
    policies = {name: open_policy(section) for name in ("packed", "unpacked")}
    policies["unpacked"].learning = Learning(arguments.micro_batch_tokens, packing=False)
    load = os.getloadavg()[0]
    found = {name: compared(policies, samples, arguments.rounds) for name, samples in cases(arguments)}
    for policy in policies.values():
        asyncio.run(policy.close())
    result = {
        "ratios": {name: case["speedup"] for name, case in found.items()},
        "ratios_of_memory": {
            name: round(case["unpacked"]["peak_mib"] / max(1, case["packed"]["peak_mib"]), 2)  # type: ignore[index]
            for name, case in found.items()
        },
        "cases": found,
        "what": {
            "packed": "the rows of a micro-batch as trees: what they have in common is computed once, level by level",
            "unpacked": "policy.packing = false: rows sorted by length, padded to the longest of their micro-batch",
            "both": "forward and backward of the negative log-likelihood with nano, in single precision on one thread",
        },
        "command": "python benchmarks/packing.py --run DIR",
        "settings": {
            "groups": arguments.groups,
            "group_size": GROUP,
            "micro_batch_tokens": arguments.micro_batch_tokens,
            "rounds": arguments.rounds,
        },
        "machine": machine(load) | {"torch": torch.__version__},
    }
    keep(__file__, result)


if __name__ == "__main__":
    main()
