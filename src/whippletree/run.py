"""Opens what a story needs (policy, sandboxes, schedule, store) and closes it, whatever happens."""

from __future__ import annotations

import logging
import resource
import shutil
import time
import tomllib
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import isfinite
from pathlib import Path

import numpy as np
import torch
from tokenizers import Tokenizer
from transformers.utils import logging as transformers_logging

from whippletree.algorithms.base import Algorithm, Credit
from whippletree.chat.base import Renderer
from whippletree.chat.compact import CompactRenderer
from whippletree.chat.template import TemplateRenderer
from whippletree.config import PolicySection, RunConfig, parse
from whippletree.errors import ConfigError, PolicyError, SandboxError
from whippletree.gateway.server import Gateway
from whippletree.harness.hooks import COUNT as HOOK
from whippletree.harnesses import Harnesses
from whippletree.policy.local import LocalPolicy
from whippletree.policy.lora import open_model
from whippletree.policy.tokens import Learning
from whippletree.policy.weights import NANO, NANO_WEIGHTS
from whippletree.rollout.ahead import Acting, acting
from whippletree.rollout.blackbox import Terms
from whippletree.rollout.lifecycle import World
from whippletree.rollout.runner import Runner
from whippletree.sandbox import Sandboxes, open_sandboxes
from whippletree.schedule.base import Plan, Scheduler
from whippletree.schedule.checked import Checked
from whippletree.store.run_dir import RunStore, StepRecord
from whippletree.tasks import Paddock, TaskSource
from whippletree.tasks.suites import open_source
from whippletree.trajectory.staleness import staleness
from whippletree.types import Group, ModelCall, Part, Rollout, Sampling, Task

log = logging.getLogger(__name__)


def task_source(config: RunConfig) -> TaskSource:
    """Raises TaskError where the suite is not here, or cannot be used as the configuration says."""
    section = config.tasks
    if section.source == "paddock":
        return Paddock(tiers=section.tiers, kinds=section.kinds)
    return open_source(
        section.source,
        section.kinds,
        quarantined=section.quarantined,
        training=config.steps > 0,
        isolated=config.sandbox.kind != "process",
    )


def open_policy(section: PolicySection) -> LocalPolicy:
    """Load model and renderer; raises PolicyError where there are none."""
    torch.set_num_threads(section.threads)
    transformers_logging.disable_progress_bar()  # one for every checkpoint would be written over ours
    path = Path(section.model)
    if (path / "run.sqlite").exists():
        raise PolicyError(f"'{path}' is a run: give one of its policies, in {path / 'checkpoints'}")
    if not path.exists() and (path.is_absolute() or (len(path.parts) > 1 and path.parent.is_dir())):
        raise PolicyError(f"cannot load a model from '{path}': there is no such directory")
    model, keeper = open_model(section.model, section.lora)
    if section.max_positions is not None:
        if not getattr(model.config, "rope_parameters", None):
            raise PolicyError(
                f"policy.max_positions = {section.max_positions}: '{section.model}' has a table of positions; only "
                "rotary positions can be more than a model was made with"
            )
        model.config.max_position_embeddings = section.max_positions
    return LocalPolicy(
        model,
        renderer_for(NANO_WEIGHTS if section.model == NANO else section.model),
        num_slots=section.num_slots,
        max_context=section.max_context,
        lockstep=section.lockstep,
        keeper=keeper,
        learning=Learning(section.micro_batch_tokens, section.packing, section.checkpointing),
    )


def nano_renderer() -> Renderer:
    """That of the embedded policy, without its weights."""
    return renderer_for(NANO_WEIGHTS)


def renderer_for(path: Path | str) -> Renderer:
    """The compact format where the tokenizer has its marks, the model's own chat template elsewhere."""
    from transformers import AutoTokenizer

    file = Path(path) / "tokenizer.json"
    try:
        if file.exists():
            tokenizer = Tokenizer.from_file(str(file))
            if tokenizer.token_to_id("<|call|>") is not None:
                return CompactRenderer(tokenizer)
        return TemplateRenderer(AutoTokenizer.from_pretrained(path))  # pyright: ignore
    except PolicyError:
        raise
    except Exception as error:  # tokenizers raises nothing narrower
        raise PolicyError(f"cannot load the tokenizer of '{path}': {error}") from error


@dataclass
class Run:
    """Everything open that a story uses."""

    config: RunConfig
    store: RunStore
    policy: LocalPolicy
    harnesses: Harnesses
    gateway: Gateway
    sandboxes: Sandboxes
    tasks: TaskSource
    scheduler: Scheduler
    next_step: int
    progress: Callable[[Rollout], None] = field(default=lambda rollout: None)

    @property
    def algorithm(self) -> Algorithm:
        return self.config.algorithm

    @cached_property
    def evaluation_tasks(self) -> Sequence[Task]:
        """The split that is evaluated on, without the kinds that training does not show unless they are asked for."""
        section = self.config.evaluate
        if section.new_kinds or not isinstance(self.tasks, Paddock):  # others show all kinds in all splits
            return self.tasks.tasks(section.split)
        trained = Paddock(self.config.tasks.tiers, self.config.tasks.kinds).kinds_of(self.config.tasks.split)
        return Paddock(kinds=trained).tasks(section.split)

    def evaluation_share(self, set_name: str) -> tuple[tuple[str, ...], int]:
        """The harnesses of a set of the evaluation, and how many tasks each gets, so that none is met twice.

        Raises HarnessError for a set that is none, ConfigError where the split has too few tasks.
        """
        section = self.config.evaluate
        harnesses = self.harnesses.names(section.sets[set_name], self.config.seed)
        per_harness = -(-section.rollouts_per_set // len(harnesses))
        needed, there = per_harness * len(harnesses), len(self.evaluation_tasks)
        if there < needed:
            raise ConfigError(
                f"evaluate.rollouts_per_set = {section.rollouts_per_set}: set '{set_name}' needs {needed} distinct "
                f"tasks, but split '{section.split}' has {there}; ask for fewer"
            )
        return harnesses, per_harness

    def runner(self, name: str) -> Runner:
        """What runs the harness of that name. Raises HarnessError where nothing does."""
        config = self.config
        terms = Terms(
            timeout_s=config.rollout.timeout_s,
            idle_timeout_s=config.rollout.idle_timeout_s,
            context=config.policy.max_context,
            max_tokens=config.sampling.max_tokens,
        )
        return self.harnesses.runner(name, self.gateway, terms)

    @cached_property
    def world(self) -> World:
        return self.world_for(self.config.seed)

    def world_for(self, seed: int) -> World:
        limits = self.config.rollout
        return World(
            policy=self.policy,
            sandboxes=self.sandboxes,
            tasks=self.tasks,
            harness=self.runner,
            sampling=Sampling(self.config.sampling.temperature, self.config.sampling.max_tokens),
            seed=seed,
            max_calls=limits.max_calls,
            max_tokens=limits.max_tokens,
            timeout_s=limits.timeout_s,
        )

    def acting(self) -> AbstractAsyncContextManager[Acting]:
        """The rollouts of the steps, as far ahead of the updates as the configuration allows."""
        limits = self.config.rollout
        return acting(
            self.world,
            concurrency=limits.concurrency,
            progress=self.progress,
            staleness=limits.staleness,
            num_steps=self.config.steps,
        )

    def fresh(self, credit: Credit) -> Credit:
        """Say how old what is trained is; raises PolicyError where it is older than `rollout.staleness` updates."""
        ages = staleness(credit.samples, self.policy.version, self.config.rollout.staleness)
        return replace(credit, metrics={**credit.metrics, **ages})

    def steps(self) -> Iterator[int]:
        """The steps that are left."""
        yield from range(self.next_step, self.config.steps)

    def lr(self, step: int) -> float:
        return self.config.optimizer.lr_at(step, self.config.steps)

    def report(self, step: int, problems: Iterable[str]) -> None:
        """Say what was wrong with a step's input; the step goes on without it."""
        for problem in problems:
            log.warning("step %d: %s", step + 1, problem)

    def commit(self, step: int, groups: Sequence[Group], metrics: Mapping[str, float], clock: Clock) -> None:
        """Make the step permanent: checkpoint first, then everything else in one transaction."""
        self.store.write_checkpoint(step, self.policy.save)
        record = StepRecord(step, self.policy.version, clock.wall_s, clock.cpu_s, self.scheduler.state(), metrics)
        self.store.commit_step(record, (rollout for group in groups for rollout in group.rollouts))


def config_of(store: RunStore) -> RunConfig:
    """The configuration that a run directory keeps; raises ConfigError where it is no longer one."""
    return parse(tomllib.loads(store.config_toml), str(store.path / "config.toml"))


@asynccontextmanager
async def open_run(config: RunConfig, store: RunStore) -> AsyncGenerator[Run]:
    """Open a run where it stopped, or at its beginning.

    Everything that the user may have got wrong is found here, before the first rollout.
    """
    harnesses = Harnesses(config.harnesses)
    tasks = task_source(config)
    plan = Plan(
        harnesses=harnesses.names(config.harnesses.train, config.seed),
        distance=harnesses.distance,
        tasks=tasks.tasks(config.tasks.split),
        batch_size=config.batch_size,
        group_size=config.group_size,
        seed=config.seed,
    )
    scheduler = Checked(config.schedule.open(plan), plan)
    point = store.resume_point()
    async with AsyncExitStack() as stack:
        sandboxes = open_sandboxes(config.sandbox.kind, config.sandbox.limits)
        stack.push_async_callback(sandboxes.close)
        gateway = Gateway()
        stack.push_async_callback(gateway.stop)
        policy = open_policy(config.policy)
        stack.push_async_callback(policy.close)
        config.algorithm.attach(policy)
        run = Run(config, store, policy, harnesses, gateway, sandboxes, tasks, scheduler, point.next_step)
        met = set(plan.harnesses if config.steps else ())
        for set_name in config.evaluate.sets:
            met.update(run.evaluation_share(set_name)[0])
        for name in met:
            run.runner(name)
        store.truncate_after(point.next_step - 1)
        if point.checkpoint is not None:
            policy.load(point.checkpoint)
            scheduler.restore(point.scheduler_state)
        yield run


def discard_unused(path: Path) -> bool:
    """Remove a run directory in which nothing has been computed yet, so that a better try can take its place.

    False where something has. Raises StoreError where the run is going on.
    """
    with RunStore.open(path) as store:
        unused = store.num_steps() == 0 and not store.evaluations()
        if unused:
            shutil.rmtree(path)
    return unused


def require_graded(groups: Sequence[Group], what: str) -> None:
    """Raise SandboxError where not one rollout could be graded: a broken machine must not pass for a weak policy."""
    errors = [rollout.error for group in groups for rollout in group.rollouts]
    if errors and None not in errors:
        raise SandboxError(f"none of the {len(errors)} rollouts of {what} could be graded; the first: {errors[0]}")


class Clock:
    """Wall and CPU seconds since it was made, CPU split by who used it."""

    def __init__(self, policy: LocalPolicy) -> None:
        self._policy = policy
        self._wall = time.perf_counter()
        self._start = self._cpu()
        self._tokens = Counter(policy.learned_tokens)

    def _cpu(self) -> dict[str, float]:
        own, children = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
        return {
            "own": own.ru_utime + own.ru_stime,
            "sandbox": children.ru_utime + children.ru_stime,
            **self._policy.cpu_s,
        }

    @property
    def wall_s(self) -> float:
        return time.perf_counter() - self._wall

    @property
    def cpu_s(self) -> float:
        split = self.split()
        return sum(split.values())

    def learned_tokens(self) -> dict[str, float]:
        """In the rows that were learned from, in their trees (a shared prefix counts once), and computed."""
        return {name: float(count - self._tokens[name]) for name, count in self._policy.learned_tokens.items()}

    def split(self) -> dict[str, float]:
        """CPU seconds in sampling, learning, sandboxes (all their processes), and everything else."""
        spent = {name: value - self._start[name] for name, value in self._cpu().items()}
        other = max(0.0, spent["own"] - spent["sampling"] - spent["learning"])
        return {name: spent[name] for name in ("sampling", "learning", "sandbox")} | {"other": other}


def step_metrics(
    groups: Sequence[Group], credit: Credit, learned: Mapping[str, float], gap: float, clock: Clock
) -> dict[str, float]:
    """One step in numbers; the table in docs/metrics.md explains them."""
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    graded = [rollout for rollout in rollouts if rollout.reward is not None and isfinite(rollout.reward.value)]
    weight = max(learned.get("weight", 0.0), 1e-9)
    calls = [call for rollout in rollouts for call in rollout.calls]
    counts: Counter[str] = Counter()
    for rollout in rollouts:
        counts.update({name if name.startswith(HOOK) else f"boundary/{name}": n for name, n in rollout.counts.items()})
    prompt_tokens = sum(len(call.prompt_ids) for call in calls)
    return {
        "reward": mean(rollout.reward.value for rollout in graded if rollout.reward is not None),
        "passed": mean(float(rollout.passed) for rollout in graded),
        "rollouts": float(len(rollouts)),
        "rollouts/errors": float(len(rollouts) - len(graded)),
        "rollouts/turns": mean(rollout.num_turns for rollout in rollouts),
        "calls/malformed": mean(float(call.parse_error is not None) for call in calls),
        "calls/action_tokens": mean_of(Part.ACTION, calls),
        "calls/argument_tokens": mean_of(Part.ARGUMENT, calls),
        "tokens/sampled": float(sum(len(call.completion_ids) for call in calls)),
        "tokens/prompt": float(prompt_tokens),
        "tokens/cached_share": sum(call.cached_tokens for call in calls) / max(1, prompt_tokens),
        "tokens/trained": learned.get("trained_tokens", 0.0),
        "staleness/mean": 0.0,
        "staleness/max": 0.0,
        **{f"tokens/{name}": count for name, count in clock.learned_tokens().items()},
        "loss": learned.get("loss", 0.0),
        **{f"loss/{part}": learned.get(f"{part}_loss", 0.0) for part in ("action", "argument", "other")},
        "advantage": float(sum(np.abs(sample.advantages) @ sample.weights for sample in credit.samples)),
        "entropy": learned.get("entropy", 0.0) / weight,
        "clipped": learned.get("clipped", 0.0) / weight,
        "logprob_gap": learned.get("logprob_gap", 0.0) / weight,
        "correction/mean": learned.get("correction", 0.0) / weight,
        "correction/truncated": learned.get("correction_truncated", 0.0) / weight,
        "correction/max": learned.get("correction_max", 0.0),
        "kl": learned.get("kl", 0.0) / weight,
        "value/loss": learned.get("value_loss", 0.0),
        "value/mean": 0.0,
        "value/explained": 0.0,
        "value/grad_norm": learned.get("critic_grad_norm", 0.0),
        "units/chosen": 0.0,
        "units/shared": 0.0,
        "probe_gap": gap,
        "grad_norm": learned.get("grad_norm", 0.0),
        "skipped_update": learned.get("skipped_update", 0.0),
        **credit.metrics,
        **{name: float(count) for name, count in sorted(counts.items())},
        **{f"cpu_s/{name}": seconds for name, seconds in clock.split().items()},
        "wall_s": clock.wall_s,
    }


def mean_of(part: Part, calls: Iterable[ModelCall]) -> float:
    """Tokens of a part of tool calls, per model call."""
    return mean(float((call.parts == part).sum()) for call in calls if call.parts is not None)


def mean(values: Iterable[float]) -> float:
    listed = list(values)
    return sum(listed) / len(listed) if listed else 0.0
