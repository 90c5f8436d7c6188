"""Fine-tune a policy on rollouts of earlier runs: select, weigh, update, publish, validate."""

from __future__ import annotations

import tempfile
import tomllib
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from pydantic import Field, field_validator

from whippletree.algorithms.base import Credit
from whippletree.algorithms.sft import SFT
from whippletree.chat.base import Renderer
from whippletree.config import OptimizerSection, PolicySection, Section, validated
from whippletree.errors import ConfigError, PolicyError
from whippletree.policy.local import LocalPolicy
from whippletree.policy.weights import NANO, NANO_WEIGHTS
from whippletree.run import Clock, config_of, open_policy, renderer_for
from whippletree.store.run_dir import RunStore, StepRecord
from whippletree.store.where import keys_of, where
from whippletree.types import Json, Rollout

Pick = tuple[int, str]
"""(place in `SftConfig.runs`, id of the rollout)"""


class SftConfig(Section):
    """One run of fine-tuning."""

    runs: tuple[str, ...] = Field(min_length=1, description="Directories of the runs whose rollouts are imitated.")
    where: tuple[str, ...] = Field(
        default=(),
        validate_default=True,
        description="Conditions on rollouts; only those that passed, unless a condition names `passed` or `reward`.",
    )
    seed: int = Field(default=0, ge=0, description="Of the order of the rollouts, and of what is held back.")
    epochs: int = Field(default=2, ge=1, description="Times that each rollout is seen.")
    batch_size: int = Field(default=32, ge=1, description="Rollouts per optimizer step.")
    validation_share: float = Field(
        default=0.1, ge=0, lt=1, description="Share of the rollouts held back, whole tasks at a time; 0 for none."
    )
    policy: PolicySection = Field(default=PolicySection(), description="The weights to begin with.")
    algorithm: SFT = Field(default=SFT(), description="What of a rollout is imitated.")
    optimizer: OptimizerSection = Field(default=OptimizerSection(), description="The update.")

    @field_validator("where")
    @classmethod
    def _passed_unless_told(cls, conditions: tuple[str, ...]) -> tuple[str, ...]:
        where(conditions)
        return conditions if keys_of(conditions) & {"passed", "reward"} else (*conditions, "passed=true")


@dataclass
class Tuning:
    """Everything open that the story uses."""

    config: SftConfig
    store: RunStore
    policy: LocalPolicy
    sources: Sequence[RunStore]
    train: Sequence[Pick]
    held_back: Sequence[Pick]
    next_step: int
    progress: Callable[[int, Mapping[str, float]], None] = field(default=lambda step, metrics: None)
    """Told of every step that is done, with its metrics."""

    @property
    def steps_per_epoch(self) -> int:
        return -(-len(self.train) // self.config.batch_size)

    @property
    def num_steps(self) -> int:
        return self.config.epochs * self.steps_per_epoch

    def steps(self) -> Iterator[int]:
        """The steps that are left."""
        yield from range(self.next_step, self.num_steps)

    def ends_epoch(self, step: int) -> bool:
        return (step + 1) % self.steps_per_epoch == 0

    def batch(self, step: int) -> list[Rollout]:
        """The rollouts of a step, in a new order in each epoch; the last batch of an epoch may be smaller."""
        epoch, place = divmod(step, self.steps_per_epoch)
        order = shuffled(len(self.train), self.config.seed, 1 + epoch)
        size = self.config.batch_size
        return self.read([self.train[index] for index in order[place * size : (place + 1) * size]])

    def read(self, picks: Sequence[Pick]) -> list[Rollout]:
        return [self.sources[source].rollout(id) for source, id in picks]

    def lr(self, step: int) -> float:
        return self.config.optimizer.lr_at(step, self.num_steps)

    def commit(self, step: int, metrics: Mapping[str, float], clock: Clock) -> None:
        """Make the step permanent: checkpoint first, then its record."""
        self.store.write_checkpoint(step, self.policy.save)
        record = StepRecord(step, self.policy.version, clock.wall_s, clock.cpu_s, metrics=metrics)
        self.store.commit_step(record, ())
        self.progress(step, metrics)


async def sft(run: Tuning) -> None:
    """Go on from where the run stopped, to its last step; every finished step is permanent."""
    policy, algorithm = run.policy, run.config.algorithm
    for step in run.steps():
        clock = Clock(policy)
        credit = algorithm.credit(run.batch(step))  # call trees to weighted samples
        learned = await policy.forward_backward(credit.samples, algorithm.loss)
        learned |= await policy.optim_step(lr=run.lr(step), max_grad_norm=run.config.optimizer.max_grad_norm)
        learned["probe_gap"] = await policy.publish()  # serve the new weights, and check that they are served
        if run.held_back and run.ends_epoch(step):
            learned["validation/loss"] = await validation_loss(run)
        run.commit(step, step_metrics(run, step, credit, learned, clock), clock)
    run.store.set_meta("finished", True)


async def validation_loss(run: Tuning) -> float:
    """Mean over the rollouts held back of the mean nats of their tokens."""
    total, size = 0.0, run.config.batch_size
    for start in range(0, len(run.held_back), size):
        picks = run.held_back[start : start + size]
        samples = run.config.algorithm.credit(run.read(picks)).samples
        logprobs = await run.policy.score(samples, "policy")
        loss = sum(float(-(s.weights * own).sum()) for s, own in zip(samples, logprobs, strict=True))
        total += loss * len(picks)
    return total / len(run.held_back)


def step_metrics(
    run: Tuning, step: int, credit: Credit, learned: Mapping[str, float], clock: Clock
) -> dict[str, float]:
    """One step in numbers; the table in docs/export.md explains them."""
    told = ("loss", "validation/loss", "probe_gap", "grad_norm", "skipped_update")
    return {
        "epoch": float(step // run.steps_per_epoch),
        "lr": run.lr(step),
        "rollouts": credit.metrics["samples/rollouts"],
        "tokens/trained": learned.get("trained_tokens", 0.0),
        **{f"tokens/{name}": count for name, count in clock.learned_tokens().items()},
        "entropy": learned.get("entropy", 0.0) / max(learned.get("weight", 0.0), 1e-9),
        **{name: learned[name] for name in told if name in learned},
        **credit.metrics,
        **{f"cpu_s/{name}": seconds for name, seconds in clock.split().items()},
        "wall_s": clock.wall_s,
    }


# ---- what is imitated -------------------------------------------------------------------------------------------


def select(config: SftConfig) -> dict[str, list[Pick]]:
    """The graded rollouts that meet the conditions and have tokens to train on: `train`, and those `held_back`.

    Raises ConfigError where there are none, or where one does not fit the context.
    """
    picks: list[tuple[Pick, str]] = []
    num_found = longest = 0
    for source, path in enumerate(config.runs):
        with RunStore.open(Path(path), read_only=True) as store:
            for rollout in store.select(where((*config.where, "graded=true"))):
                num_found += 1
                if samples := config.algorithm.credit([rollout]).samples:
                    picks.append(((source, rollout.id), rollout.task_id))
                    longest = max(longest, *(len(sample.ids) for sample in samples))
    runs, conditions = ", ".join(config.runs), " and ".join(config.where)
    if not num_found:
        raise ConfigError(f"no graded rollout of {runs} meets {conditions}; choose other runs or another --where")
    if not picks:
        raise ConfigError(
            f"none of the {num_found} rollouts of {runs} with {conditions} has a token to train on: no call of kind "
            f"{' or '.join(config.algorithm.kinds)} whose tokens were captured; see algorithm.kinds"
        )
    if longest > config.policy.max_context:
        raise ConfigError(
            f"policy.max_context = {config.policy.max_context}: the longest of the chosen rollouts has {longest} "
            f"tokens; set it to that or more"
        )
    return split(picks, config.validation_share, config.seed)


def split(picks: Sequence[tuple[Pick, str]], share: float, seed: int) -> dict[str, list[Pick]]:
    """Hold back the rollouts of whole tasks until the share is reached; those of one task at least are trained on."""
    sizes = Counter(task for _, task in picks)
    tasks = list(sizes)
    held_back: set[str] = set()
    for index in shuffled(len(tasks), seed, 0)[:-1]:
        if sum(sizes[task] for task in held_back) >= share * len(picks):
            break
        held_back.add(tasks[index])
    return {
        "train": [pick for pick, task in picks if task not in held_back],
        "held_back": [pick for pick, task in picks if task in held_back],
    }


def shuffled(count: int, seed: int, stream: int) -> list[int]:
    """0 to count - 1 in an order that is the same for the same seed and stream."""
    return np.random.default_rng([seed, stream]).permutation(count).tolist()


# ---- opening ----------------------------------------------------------------------------------------------------


def parse_sft(tree: dict[str, Json], where: str) -> SftConfig:
    return validated(SftConfig, tree, where)


def is_tuning(store: RunStore) -> bool:
    return "selection" in store.meta()


def sft_config_of(store: RunStore) -> SftConfig:
    """Raises ConfigError where the run is of another kind."""
    if not is_tuning(store):
        raise ConfigError(f"{store.path} is no run of fine-tuning: `whippletree train --resume` goes on with others")
    return parse_sft(tomllib.loads(store.config_toml), str(store.path / "config.toml"))


@asynccontextmanager
async def open_sft(config: SftConfig, store: RunStore) -> AsyncGenerator[Tuning]:
    """Open a run of fine-tuning where it stopped, or at its beginning; its selection is in its meta."""
    selection: dict[str, list[Pick]] = store.meta()["selection"]
    point = store.resume_point()
    async with AsyncExitStack() as stack:
        sources = [stack.enter_context(RunStore.open(Path(path), read_only=True)) for path in config.runs]
        policy = open_policy(config.policy)
        stack.push_async_callback(policy.close)
        for source in sources:
            require_same_tokens(source, policy.renderer, config.policy.model)
        store.truncate_after(point.next_step - 1)
        if point.checkpoint is not None:
            policy.load(point.checkpoint)
        yield Tuning(config, store, policy, sources, selection["train"], selection["held_back"], point.next_step)


def require_same_tokens(source: RunStore, renderer: Renderer, model: str) -> None:
    """Raises PolicyError where the tokens of a run mean something else to the model that is to learn from them."""
    origin = tokenizer_of(source)
    if tokenizer_files(renderer_for(origin)) != tokenizer_files(renderer):
        raise PolicyError(
            f"the rollouts of {source.path} are in tokens of '{origin}', and '{model}' has another tokenizer or chat "
            "template; give a --model with the same ones"
        )


def tokenizer_of(source: RunStore) -> Path | str:
    """Where the tokenizer of the policy that made a run's rollouts is: a directory, or the name of a model."""
    if told := source.meta().get("tokenizer"):
        return str(told)
    if checkpoints := source.checkpoints():
        return checkpoints[max(checkpoints)]
    model = config_of(source).policy.model
    return NANO_WEIGHTS if model == NANO else model


def tokenizer_files(renderer: Renderer) -> dict[str, bytes]:
    """What decides which tokens a text becomes, as the renderer writes it."""
    with tempfile.TemporaryDirectory() as folder:
        renderer.save(Path(folder))
        files = [path for path in Path(folder).iterdir() if path.name != "tokenizer_config.json"]  # knows its origin
        return {path.name: path.read_bytes() for path in files}
