"""The recipe of nano, the embedded policy: a tokenizer, copy pre-training, then gold traces with noise.

Traces are made by a scripted expert that acts through the real interpreter, boundary and sandbox, so that what nano
learns from is what it will meet: mostly the base harness, a little of others, never a held-out one. A share of the
traces makes a mistake, so that reinforcement has something left to teach.
"""

# pyright: reportUnknownMemberType=false
# torch is typed in part only.

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field
from tokenizers import Tokenizer

from whippletree.algorithms.losses import negative_log_likelihood
from whippletree.chat.compact import SPECIAL_TOKENS, CompactRenderer, train_tokenizer
from whippletree.config import validated
from whippletree.harness import system_prompt, tools
from whippletree.harness.designs import PAPER_TRAINING
from whippletree.harness.levels import compose, paper_base, paper_space
from whippletree.harness.spec import HarnessSpec
from whippletree.policy.local import LocalPolicy
from whippletree.policy.nano.modeling import NanoConfig, NanoForCausalLM
from whippletree.policy.tokens import Learning
from whippletree.rollout.expert import CHECKED, FINAL, Expert
from whippletree.rollout.whitebox import run as run_whitebox
from whippletree.sandbox import Sandboxes, open_sandboxes
from whippletree.tasks.paddock import Paddock, pools
from whippletree.trajectory.filters import TreeFilter
from whippletree.trajectory.samples import rows
from whippletree.trajectory.tree import CallTree
from whippletree.types import Floats, Ids, Json, Sample, Task

BASE = "S0T0O0C0W0"
CONCURRENCY = 32

Progress = Callable[[str, int, int], None]
"""(what, done, of how many)"""


class NanoRecipe(BaseModel):
    """Everything that decides what nano becomes."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    seed: int = 0
    vocab_size: int = 1024
    hidden_size: int = 128
    num_layers: int = 4
    num_heads: int = 4
    mlp_size: int = 384
    max_context: int = 768
    num_traces: Annotated[int, Field(description="Gold traces, each of its own task.")] = 10000
    base_share: Annotated[float, Field(description="Share of the traces in the base harness.")] = 0.9
    training_share: Annotated[float, Field(description="Share in a harness of the paper's training set.")] = 0.03
    noise: Annotated[float, Field(description="Share of the traces with a mistake.")] = 0.45
    slips: Annotated[
        float,
        Field(description="Share of turns that mishandle the harness; they are read, and the recovery is imitated."),
    ] = 0.06
    copy_steps: int = 200
    epochs: int = 3
    batch_size: int = 32
    lr: float = 3e-3
    copies_per_batch: Annotated[int, Field(description="Synthetic copy sequences beside the traces.")] = 8
    context_weight: Annotated[float, Field(description="Weight of a token that is read; 1 for one that is said.")] = (
        0.02
    )


# ---- tokenizer --------------------------------------------------------------------------------------------------


def corpus(specs: Sequence[HarnessSpec], tasks: Sequence[Task]) -> list[str]:
    """Texts in which every word that nano meets is frequent enough to become one token."""
    shown = [FINAL, CHECKED, "plan did"]
    names: list[str] = []
    for spec in specs:
        shown += [message.content for message in system_prompt.render(spec, tasks[0])]
        for tool in tools.shown(spec):
            names.append(tool.name)
            shown.append(tool.description)
            for name, schema in tool.parameters["properties"].items():
                names += [name, *schema.get("enum", [])]
                shown.append(str(schema.get("description", "")))
        dumped = spec.model_dump()
        shown += [str(text) for part in ("observation", "context", "workflow") for text in dumped[part].values()]
        shown += [tool.error for tool in spec.tools]
        names += [name for pool in spec.name_pools.values() for name in pool]
    texts = shown * 50
    for task in tasks:
        texts += [task.instruction, task.gold, *task.files.values(), *task.files]
    words = [*names, *pools.WORDS, *pools.STEMS, *pools.FOLDERS]
    return texts + [f"{word} {word}\n{word}" for word in words] * 20


# ---- samples ----------------------------------------------------------------------------------------------------


def copy_sample(rng: np.random.Generator, vocab_size: int, length: int = 96) -> Sample:
    """Random tokens, then copies of random spans of them; the second and later tokens of a copy are trained."""
    source = int(rng.integers(16, length // 2))
    ids = rng.integers(len(SPECIAL_TOKENS), vocab_size, length, dtype=np.int64)
    weights = np.zeros(length, dtype=np.float32)
    place = source
    while place < length:
        span = min(int(rng.integers(3, 14)), length - place)
        start = int(rng.integers(0, source - span)) if source > span else 0
        ids[place : place + span] = ids[start : start + span]
        weights[place + 1 : place + span] = 1.0
        place += span
    return imitation(ids, weights)


def imitation(ids: Ids, weights: Floats) -> Sample:
    return Sample(ids, weights, np.zeros(len(ids), np.float32), np.ones(len(ids), np.float32))


async def gold_samples(
    recipe: NanoRecipe, renderer: CompactRenderer, sandboxes: Sandboxes, progress: Progress
) -> list[list[Sample]]:
    """One list of branches per trace; the expert acts in real sandboxes."""
    paddock = Paddock(tiers=(1,), per_split={"train": recipe.num_traces})
    tasks = paddock.tasks("train")
    found: list[list[Sample]] = [[] for _ in tasks]
    left = iter(range(len(tasks)))
    done = 0

    async def work() -> None:
        nonlocal done
        for index in left:
            rng = random.Random(f"trace {recipe.seed} {index}")
            spec = draw_harness(recipe, rng)
            found[index] = await trace(recipe, renderer, sandboxes, paddock, tasks[index], spec, rng)
            done += 1
            progress("traces", done, len(tasks))

    async with asyncio.TaskGroup() as workers:
        for _ in range(CONCURRENCY):
            workers.create_task(work())
    return found


async def trace(
    recipe: NanoRecipe,
    renderer: CompactRenderer,
    sandboxes: Sandboxes,
    paddock: Paddock,
    task: Task,
    spec: HarnessSpec,
    rng: random.Random,
) -> list[Sample]:
    """What the expert said and read on one task, with or without a mistake."""
    commands: Sequence[str] = task.gold.split("\n")
    if rng.random() < recipe.noise:
        commands = rng.choice(paddock.near_misses(task))
    expert = Expert(spec, commands, renderer, files=task.files, slips=recipe.slips, rng=rng)
    sandbox = await sandboxes.open(task.files)
    try:
        await run_whitebox(spec, task, sandbox, expert, rng)
    finally:
        await sandbox.close()
    calls = [replace(call, kind="auxiliary") if call.index in expert.slipped else call for call in expert.calls]
    tree = CallTree.build(calls)
    said = TreeFilter(kinds=("main", "compaction"))
    return [
        imitation(row.ids, np.where(row.trained, 1.0, recipe.context_weight).astype(np.float32))
        for row in rows(tree, said.select(tree))
    ]


def draw_harness(recipe: NanoRecipe, rng: random.Random) -> HarnessSpec:
    """The base harness mostly; else one of the training set; else the base with one factor changed."""
    drawn = rng.random()
    if drawn < recipe.base_share:
        return harness(BASE)
    if drawn < recipe.base_share + recipe.training_share:
        return harness(rng.choice(PAPER_TRAINING))
    space = paper_space()
    factor = rng.randrange(len(space.keys))
    return harness(space.name(tuple(rng.choice((1, 2)) if i == factor else 0 for i in range(len(space.keys)))))


@cache
def harness(name: str) -> HarnessSpec:
    space = paper_space()
    return compose(space, space.parse(name), paper_base())


# ---- training ---------------------------------------------------------------------------------------------------


async def make(recipe: NanoRecipe, sandboxes: Sandboxes, progress: Progress) -> LocalPolicy:
    """Follow the recipe; the same recipe gives the same weights on the same machine."""
    torch.manual_seed(recipe.seed)
    tokenizer = make_tokenizer(recipe)
    renderer = CompactRenderer(tokenizer)
    apart = Learning(packing=False)  # the recipe must give the same bits, and there is little to share
    policy = LocalPolicy(new_model(recipe, tokenizer), renderer, max_context=recipe.max_context, learning=apart)
    rng = np.random.default_rng(recipe.seed)
    for step in range(recipe.copy_steps):
        loss = await fit(policy, copies(rng, tokenizer, 40), recipe.lr * min(1.0, (step + 1) / 30))
        progress(f"copying, loss {loss:.2f}", step + 1, recipe.copy_steps)
    traces = await gold_samples(recipe, renderer, sandboxes, progress)
    plan = [int(index) for _ in range(recipe.epochs) for index in rng.permutation(len(traces))]
    total = len(plan) // recipe.batch_size
    for step in range(total):
        chosen = plan[step * recipe.batch_size : (step + 1) * recipe.batch_size]
        batch = [sample for index in chosen for sample in traces[index]]
        rate = recipe.lr * min(1.0, (step + 1) / 50) * (1.0 - 0.95 * step / total)
        loss = await fit(policy, batch + copies(rng, tokenizer, recipe.copies_per_batch), rate)
        progress(f"imitating, loss {loss:.3f}", step + 1, total)
    return policy


def copies(rng: np.random.Generator, tokenizer: Tokenizer, count: int) -> list[Sample]:
    return [copy_sample(rng, tokenizer.get_vocab_size()) for _ in range(count)]


async def fit(policy: LocalPolicy, samples: Sequence[Sample], lr: float) -> float:
    """One step of imitation; returns the mean loss per unit of weight, in nats."""
    weight = float(sum(sample.weights[1:].sum() for sample in samples))
    scaled = [replace(sample, weights=sample.weights / weight) for sample in samples]
    statistics = await policy.forward_backward(scaled, negative_log_likelihood)
    await policy.optim_step(lr=lr, max_grad_norm=1.0)
    return statistics["loss"]


def make_tokenizer(recipe: NanoRecipe) -> Tokenizer:
    space, base = paper_space(), paper_base()
    levels = range(3)
    specs = [compose(space, (level,) * len(space.keys), base) for level in levels]
    tasks = Paddock(tiers=(1,), per_split={"train": 2000}).tasks("train")
    return train_tokenizer(corpus(specs, list(tasks)), recipe.vocab_size)


def new_model(recipe: NanoRecipe, tokenizer: Tokenizer) -> NanoForCausalLM:
    config = NanoConfig(
        vocab_size=tokenizer.get_vocab_size(),
        hidden_size=recipe.hidden_size,
        intermediate_size=recipe.mlp_size,
        num_hidden_layers=recipe.num_layers,
        num_attention_heads=recipe.num_heads,
        num_key_value_heads=recipe.num_heads,
        max_position_embeddings=recipe.max_context + 1,
        tie_word_embeddings=True,
        initializer_range=0.06,
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=tokenizer.token_to_id("<|end|>"),
    )
    return NanoForCausalLM(config)


def save(policy: LocalPolicy, recipe: NanoRecipe, path: Path) -> None:
    """Weights, tokenizer and recipe, as the package ships them."""
    policy.save(path, optimizer=False)
    (path / "recipe.json").write_text(recipe.model_dump_json(indent=2) + "\n")


def recipe_of(tree: dict[str, Json]) -> NanoRecipe:
    return validated(NanoRecipe, tree, "the recipe of nano")


async def make_and_save(recipe: NanoRecipe, path: Path, say: Callable[[str], None]) -> None:
    """Follow the recipe and write the result, saying now and then how far it is."""

    def progress(what: str, done: int, of: int) -> None:
        if done == of or done % max(1, of // 20) == 0:
            say(f"{what}: {done}/{of}")

    path.mkdir(parents=True, exist_ok=True)  # a path that cannot be written is found now
    sandboxes = open_sandboxes("bubblewrap")
    try:
        policy = await make(recipe, sandboxes, progress)
    finally:
        await sandboxes.close()
    save(policy, recipe, path)
    await policy.close()
