"""The sides of benchmarks/step.py: each takes a step of GRPO whenever it is told to, and says what it cost.

Invariant: both sides begin with the same weights and prompts, and give the same reward to the same tokens. A line on
stdin asks for a step, a line on stdout answers; CPU seconds are those of the process and its children since the last
answer, and those until the rewards were asked for.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import resources
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer

from whippletree.algorithms.grpo import GRPO
from whippletree.config import PolicySection
from whippletree.gateway.capture import call_seed
from whippletree.harness import system_prompt, tools
from whippletree.nano import harness
from whippletree.policy.local import LocalPolicy
from whippletree.policy.weights import load_model
from whippletree.run import nano_renderer, open_policy
from whippletree.tasks import Paddock
from whippletree.types import Assignment, Group, Ids, ModelCall, Reward, Rollout, Sampling, StopReason, Task

WEIGHTS = Path(str(resources.files("whippletree.policy.nano") / "weights"))
HARNESS = "S0T0O0C0W0"
LR = 1e-6
"""Small, so that all steps are of the same length."""


@dataclass(frozen=True)
class Work:
    """What a step is made of."""

    prompts: int = 16
    group: int = 8
    tokens: int = 48
    """Of a completion."""
    ends: bool = False
    """Whether it may end before."""
    micro_batch: int = 0
    """Rows of one forward and backward pass, where a side counts them."""

    @property
    def rollouts(self) -> int:
        return self.prompts * self.group


class Turns:
    """Waits to be asked for the next step, and answers."""

    def __init__(self) -> None:
        self._answers = os.fdopen(os.dup(1), "w", buffering=1)
        os.dup2(2, 1)  # what libraries print is no answer
        self._answered, self._sampled, self._tokens = cpu_s(), 0.0, 0

    def wait(self) -> None:
        if not sys.stdin.readline():
            os._exit(0)

    def sampled(self, completions: Sequence[Sequence[int]]) -> None:
        self._sampled, self._tokens = cpu_s(), sum(map(len, completions))

    def answer(self) -> None:
        spent = {"cpu_s": cpu_s() - self._answered, "sampling_cpu_s": self._sampled - self._answered}
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        print(json.dumps({**spent, "tokens": self._tokens, "peak_mib": peak}), file=self._answers)
        self._answered = cpu_s()


def cpu_s() -> float:
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def tasks(number: int) -> list[Task]:
    every = Paddock().tasks("train")
    return [every[i] for i in range(number)]


def prompt(task: Task) -> Ids:
    """The first request of the base harness."""
    spec, renderer = harness(HARNESS), nano_renderer()
    head = renderer.encode_head(system_prompt.render(spec, task), tools.shown(spec))
    return np.concatenate([head, renderer.opening])


def reward(completion: Sequence[int]) -> float:
    """The share of odd ids: cheap, and hardly ever the same for a whole group."""
    return float(np.mean(np.asarray(completion) % 2))


# ---- ours --------------------------------------------------------------------------------------------------------


async def ours(work: Work) -> None:
    policy = open_policy(PolicySection(num_slots=work.rollouts, threads=torch.get_num_threads()))
    chosen, algorithm, turns = tasks(work.prompts), GRPO(), Turns()
    prompts = [prompt(task) for task in chosen]
    for step in count():
        turns.wait()
        assignments = [Assignment(step, task, HARNESS, work.group) for task in chosen]
        calls = await asyncio.gather(
            *(
                sample(policy, ids, work, step * work.rollouts + row * work.group + attempt)
                for row, ids in enumerate(prompts)
                for attempt in range(work.group)
            )
        )
        turns.sampled([call.completion_ids.tolist() for call in calls])
        groups = [
            Group(assignment, tuple(graded(assignment, call) for call in calls[row * work.group :][: work.group]))
            for row, assignment in enumerate(assignments)
        ]
        credit = algorithm.credit(groups)
        credit = await algorithm.appraise(policy, credit)
        await policy.forward_backward(credit.samples, algorithm.loss(step))
        await policy.optim_step(lr=LR, max_grad_norm=1.0)
        await policy.publish()
        turns.answer()


async def sample(policy: LocalPolicy, ids: Ids, work: Work, number: int) -> ModelCall:
    stop_ids = policy.renderer.stop_ids if work.ends else ()
    with policy.worker():
        found = await policy.sample(
            ids, Sampling(1.0, work.tokens), stop_ids=stop_ids, session=f"{number:09d}", seed=call_seed(0, number)
        )
    return ModelCall(0, "main", ids, found.ids, found.logprobs, found.policy_version, found.finish_reason)


def graded(assignment: Assignment, call: ModelCall) -> Rollout:
    return Rollout(
        "", assignment.task.id, assignment.task.kind, assignment.harness, assignment.step, "train", (call,),
        Reward(reward(call.completion_ids.tolist())), StopReason.FINISHED,
    )  # fmt: skip


# ---- TRL ---------------------------------------------------------------------------------------------------------


def trl(work: Work) -> None:
    import datasets
    from transformers import PreTrainedTokenizerFast, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    turns = Turns()

    class Told(TrainerCallback):
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            turns.wait()

        def on_step_end(self, *_: Any, **__: Any) -> None:
            turns.answer()

    def rewards(completion_ids: list[list[int]], **_: Any) -> list[float]:
        turns.sampled(completion_ids)
        return [reward(ids) for ids in completion_ids]

    words = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_file(str(WEIGHTS / "tokenizer.json")), pad_token="<|pad|>", eos_token="<|end|>"
    )
    prompts = [prompt(task) for task in tasks(work.prompts)]
    texts = [nano_renderer().text(ids) for ids in prompts]
    assert [words(text)["input_ids"] for text in texts] == [ids.tolist() for ids in prompts], "the prompts differ"
    with TemporaryDirectory() as folder:
        settings = GRPOConfig(
            output_dir=folder, use_cpu=True, bf16=False, report_to=[], save_strategy="no", disable_tqdm=True,
            logging_steps=1_000_000, max_steps=1_000_000, learning_rate=LR, loss_type="grpo",
            gradient_checkpointing=False,
            per_device_train_batch_size=work.micro_batch,
            gradient_accumulation_steps=work.rollouts // work.micro_batch,
            num_generations=work.group, max_completion_length=work.tokens,
            generation_kwargs={} if work.ends else {"min_new_tokens": work.tokens},
        )  # fmt: skip
        trainer = GRPOTrainer(
            model=load_model(WEIGHTS),
            reward_funcs=rewards,
            args=settings,
            train_dataset=datasets.Dataset.from_list([{"prompt": text} for text in texts]),
            processing_class=words,
            callbacks=[Told()],
        )
        trainer.train()


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    name, given = sys.argv[1:]
    work = Work(**json.loads(given))
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    if name == "trl":
        trl(work)
    else:
        asyncio.run(ours(work))
