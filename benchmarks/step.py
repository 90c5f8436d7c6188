"""Completion tokens per CPU second of a full step of GRPO, sampling and learning, against TRL's GRPOTrainer.

`make check-parity` sets up an environment with TRL; then `.venv-parity/bin/python benchmarks/step.py` writes
benchmarks/step.json. Each side is a process of its own with the same model (nano), prompts, group size, lengths, dtype
and number of threads. The sides take turns, step by step, after a step each that is not counted; CPU seconds are those
of the process and its children, in all threads.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from record import keep, machine
from step_sides import Work

SIDES = Path(__file__).with_name("step_sides.py")
MICRO_BATCHES = (16, 64, 128)
"""What TRL is tried with; the cheapest is compared with."""
WHAT = {
    "whippletree": "samples by slots, with the prompt of a group computed once; credit, forward and backward over what "
    "was sampled, with the prompt of a group computed once again; AdamW; publishes the weights and checks the sampler",
    "TRL": "GRPOTrainer on the same model: `generate` of transformers with its key-value cache, no vLLM (which is for "
    "accelerators), no gradient checkpointing, no reference, AdamW; of several micro-batches the cheapest",
}


class Side:
    """A process that takes a step when it is asked to."""

    def __init__(self, name: str, work: Work) -> None:
        command = [sys.executable, str(SIDES), name, json.dumps(asdict(work))]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.steps: list[dict[str, float]] = []

    def step(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        self.steps.append(json.loads(self.process.stdout.readline()))

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()

    def figures(self) -> dict[str, float]:
        """Of the steps after the first."""
        steps = self.steps[1:]
        per_token = statistics.median(step["cpu_s"] / step["tokens"] for step in steps)
        return {
            "tokens_per_cpu_s": round(1 / per_token, 1),
            "cpu_s_per_step": round(statistics.median(step["cpu_s"] for step in steps), 3),
            "of_which_sampling": round(statistics.median(step["sampling_cpu_s"] for step in steps), 3),
            "tokens_per_step": statistics.median(step["tokens"] for step in steps),
            "peak_mib": round(self.steps[-1]["peak_mib"]),
        }


def compare(works: dict[str, tuple[str, Work]], steps: int) -> dict[str, dict[str, float]]:
    """So many counted steps of each, in turns."""
    sides: dict[str, Side] = {}
    try:
        for label, (name, work) in works.items():
            sides[label] = Side(name, work)
        for _ in range(steps + 1):
            for side in sides.values():
                side.step()
    finally:
        for side in sides.values():
            side.close()
    return {label: side.figures() for label, side in sides.items()}


def measure(work: Work, micro_batches: Sequence[int], steps: int) -> dict[str, Any]:
    tried = {f"TRL, micro-batch {size}": ("trl", replace(work, micro_batch=size)) for size in micro_batches}
    full = compare({"whippletree": ("ours", work), **tried}, steps)
    best = max(tried, key=lambda label: full[label]["tokens_per_cpu_s"])
    free = replace(work, ends=True)
    ending = compare({"whippletree": ("ours", free), best: ("trl", replace(tried[best][1], ends=True))}, steps)

    def ratio(figures: dict[str, dict[str, float]]) -> float:
        return round(figures["whippletree"]["tokens_per_cpu_s"] / figures[best]["tokens_per_cpu_s"], 2)

    return {
        "ratios": {"TRL": ratio(full), "TRL, where completions end by themselves": ratio(ending)},
        "completions_of_one_length": full,
        "completions_that_end": ending,
        "what": WHAT,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=3, help="that are counted, of each side")
    parser.add_argument("--tokens", type=int, default=Work.tokens, help="of a completion")
    parser.add_argument("--micro-batches", type=int, nargs="+", default=MICRO_BATCHES, help="of TRL, in rows")
    arguments = parser.parse_args()
    work = Work(tokens=arguments.tokens)
    load = os.getloadavg()[0]
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    result = measure(work, arguments.micro_batches, arguments.steps) | {
        "command": f"python benchmarks/step.py {' '.join(sys.argv[1:])}".strip(),
        "settings": {
            "model": "nano", "prompts": work.prompts, "group": work.group, "tokens": work.tokens, "dtype": "float32",
            "threads": int(os.environ["OMP_NUM_THREADS"]), "steps": arguments.steps,
        },
        "versions": {name: version(name) for name in ("trl", "transformers", "torch")},
        "machine": machine(load),
    }  # fmt: skip
    keep(__file__, result)


if __name__ == "__main__":
    main()
