"""The whole configuration of a run: TOML in, a frozen object out, and TOML again.

Unknown keys and impossible values are refused before anything starts, with the key, the value and what is accepted.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, Self, TypeVar, cast

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from whippletree.algorithms import GRPO, AnyAlgorithm
from whippletree.errors import ConfigError
from whippletree.keys import hint, types_of
from whippletree.policy.lora import Lora
from whippletree.sandbox.base import SandboxLimits
from whippletree.schedule.strategies import Locality, Strategy
from whippletree.types import Json

M = TypeVar("M", bound=BaseModel)


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class PolicySection(Section):
    model: str = Field(
        default="nano", description="`nano`, a directory written by save_pretrained, or a Hugging Face model name."
    )
    max_context: int = Field(default=768, ge=32, description="Tokens of prompt and completion together.")
    max_positions: int | None = Field(
        default=None,
        ge=32,
        description="Replaces the model's own limit of positions; beyond it the model must be fine-tuned first.",
    )
    num_slots: int = Field(default=128, ge=1, description="Completions that are sampled at the same time.")
    micro_batch_tokens: int = Field(default=8192, ge=1, description="Computed tokens in one forward and backward pass.")
    packing: bool = Field(default=True, description="Compute what rows of a micro-batch have in common once.")
    checkpointing: bool = Field(
        default=False, description="Keep little of a forward pass and compute it again in the backward pass."
    )
    lockstep: bool = Field(
        default=True, description="Wait for all rollouts before sampling: the same seed then gives the same numbers."
    )
    threads: int = Field(default=1, ge=1, description="Threads of torch.")
    lora: Lora | None = Field(default=None, description="Train adapters beside a fixed model; absent by default.")


class SamplingSection(Section):
    temperature: float = Field(default=1.0, gt=0, le=2, description="Divides the logits, in sampling and in the loss.")
    max_tokens: int = Field(default=64, ge=1, description="Of one completion.")


class TasksSection(Section):
    source: str = Field(
        default="paddock",
        min_length=1,
        description="The suite of tasks: `paddock`, the name of one that was added, a directory in its format, or "
        "MODULE:CLASS.",
    )
    tiers: tuple[Literal[1, 2, 3, 4, 5], ...] = Field(
        default=(1,), min_length=1, description="Of paddock: levels of difficulty to draw from."
    )
    kinds: tuple[str, ...] | None = Field(
        default=None, description="Kinds of task to draw from; by default all, of paddock all of the tiers."
    )
    quarantined: bool = Field(default=False, description="Also tasks that `whippletree tasks check` found unsound.")
    split: Literal["train", "validation", "test"] = Field(default="train", description="What is trained on.")


class HarnessesSection(Section):
    space: str = Field(
        default="paper", description="`paper`, or the path of a TOML file that defines factors and levels."
    )
    train: str | tuple[str, ...] = Field(
        default="training",
        description="base, training, held-out, all, balanced:RUNS, random:RUNS, one name (such as S0T1O0C0W2, pi, "
        "claude-code:minimal or mine.toml), or a list of names.",
    )
    adapters: tuple[str, ...] = Field(
        default=(), description="Modules outside the package that hold an ADAPTER, by their dotted names."
    )
    draw_names: bool = Field(
        default=False, description="Draw the tools' names for each task, so that the policy must read the tool list."
    )


class RolloutSection(Section):
    concurrency: int = Field(default=128, ge=1, description="Rollouts at the same time.")
    timeout_s: float = Field(
        default=120.0, gt=0, description="Wall seconds of one rollout; it is then graded as it is."
    )
    idle_timeout_s: float = Field(
        default=60.0, gt=0, description="Seconds after which an agent program that makes no model call is stopped."
    )
    max_calls: int = Field(default=40, ge=1, description="Model calls of one rollout.")
    max_tokens: int = Field(default=2000, ge=1, description="Sampled tokens of one rollout.")
    staleness: int = Field(
        default=0,
        ge=0,
        description="Updates that the weights of a rollout may be older than those that learn from it: above 0 the "
        "next steps' rollouts run during the update.",
    )


class SandboxSection(Section):
    kind: Literal["bubblewrap", "process"] = Field(
        default="bubblewrap", description="How commands are isolated; `process` does not isolate at all."
    )
    limits: SandboxLimits = Field(default=SandboxLimits(), description="Of each sandbox.")


class OptimizerSection(Section):
    lr: float = Field(default=3e-4, gt=0, description="Learning rate of AdamW.")
    warmup_steps: int = Field(default=5, ge=0, description="Steps over which the learning rate rises linearly.")
    decay_to: float = Field(
        default=1.0, gt=0, le=1, description="Share of the learning rate left at the last step (linear)."
    )
    max_grad_norm: float = Field(default=1.0, gt=0, description="Gradients are clipped to this norm.")

    def lr_at(self, step: int, num_steps: int) -> float:
        """Linear warm-up, then linear decay."""
        warm = min(1.0, (step + 1) / max(1, self.warmup_steps))
        left = 1.0 - step / max(1, num_steps - 1)
        return self.lr * warm * (self.decay_to + (1.0 - self.decay_to) * left)


class EvaluateSection(Section):
    every: int = Field(default=0, ge=0, description="Steps between evaluations; 0 evaluates at the end only.")
    split: Literal["train", "validation", "test"] = Field(default="test", description="Tasks that are evaluated on.")
    sets: dict[str, str | tuple[str, ...]] = Field(
        default={"base": "base", "training": "training", "held_out": "held-out"},
        description="Columns of the report: a name and a set of harnesses each.",
    )
    rollouts_per_set: int = Field(
        default=360, ge=1, description="Shared equally by the harnesses of a set; tasks all distinct."
    )
    new_kinds: bool = Field(default=False, description="Also kinds of task that the training split does not show.")
    seed: int = Field(default=0, ge=0, description="Of sampling in evaluations.")


class RunConfig(Section):
    """One training run and its evaluation."""

    seed: int = Field(default=0, ge=0, description="Everything random follows from it.")
    steps: int = Field(default=100, ge=0, description="Optimizer steps.")
    batch_size: int = Field(default=16, ge=1, description="Tasks per step.")
    group_size: int = Field(
        default=8, ge=1, description="Rollouts per task and step; ppo does with one, the others compare them."
    )
    policy: PolicySection = Field(default=PolicySection(), description="The weights and how they are held.")
    sampling: SamplingSection = Field(default=SamplingSection(), description="How completions are drawn.")
    tasks: TasksSection = Field(default=TasksSection(), description="What is asked.")
    harnesses: HarnessesSection = Field(default=HarnessesSection(), description="The harnesses to train through.")
    schedule: Strategy = Field(default=Locality(), description="Which task meets which harness, and when.")
    algorithm: AnyAlgorithm = Field(default=GRPO(), description="Credit and loss.")
    optimizer: OptimizerSection = Field(default=OptimizerSection(), description="The update.")
    rollout: RolloutSection = Field(default=RolloutSection(), description="Limits of acting.")
    sandbox: SandboxSection = Field(default=SandboxSection(), description="Where commands run.")
    evaluate: EvaluateSection = Field(default=EvaluateSection(), description="The harness x task matrix.")

    @field_validator("algorithm", mode="before")
    @classmethod
    def _grpo_unless_named(cls, value: Json) -> Json:
        return {"type": "grpo", **cast(dict[str, Json], value)} if isinstance(value, dict) else value

    @model_validator(mode="after")
    def _lockstep_or_ahead(self) -> Self:
        if self.rollout.staleness and self.policy.lockstep:
            raise ValueError(
                f"rollout.staleness = {self.rollout.staleness}: rollouts that run during an update take tokens as they "
                "come, and policy.lockstep = true forbids that; set policy.lockstep = false, or staleness to 0"
            )
        return self

    @model_validator(mode="after")
    def _groups_that_can_be_compared(self) -> Self:
        if self.algorithm.type != "ppo" and self.group_size < 2:
            raise ValueError(
                f"group_size = {self.group_size}: {self.algorithm.type} compares the rollouts of a group, so that it "
                'must be greater than or equal to 2; algorithm.type = "ppo" does with 1'
            )
        return self


# ---- reading ----------------------------------------------------------------------------------------------------


def read_toml(path: Path) -> dict[str, Json]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(f"there is no file '{path}'; the recipes/ folder holds some to begin with") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read '{path}': {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"'{path}' is no valid TOML: {error}") from error


def with_overrides(tree: dict[str, Json], overrides: Sequence[str]) -> dict[str, Json]:
    """Apply `a.b=value` settings as `merged` does, values in TOML syntax or plain words; later ones win."""
    for override in overrides:
        key, equals, text = override.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"--set {override}: expected KEY=VALUE, for example optimizer.lr=1e-4")
        *outer, last = key.strip().split(".")
        change: dict[str, Json] = {last: _value(text.strip())}
        for part in reversed(outer):
            change = {part: change}
        tree = merged(tree, change)
    return tree


def merged(tree: dict[str, Json], changes: dict[str, Json]) -> dict[str, Json]:
    """`tree` with `changes` laid over it, section by section; a change of `type` replaces the whole section."""
    result = dict(tree)
    for key, value in changes.items():
        old: Json = result.get(key)
        joins = isinstance(value, dict) and isinstance(old, dict) and "type" not in value
        result[key] = merged(cast(dict[str, Json], old), cast(dict[str, Json], value)) if joins else value
    return result


def parse(tree: dict[str, Json], where: str) -> RunConfig:
    if "arms" in tree:
        raise ConfigError(f"{where} is a study, of several runs: give it to `whippletree study`")
    return validated(RunConfig, tree, where)


def validated(model: type[M], tree: dict[str, Json], where: str) -> M:
    """Raises ConfigError that names every bad key, its value and what is accepted."""
    try:
        return model.model_validate(tree)
    except ValidationError as error:
        lines = [_explained(model, problem) for problem in error.errors()]
        raise ConfigError(f"{where}: " + "\n".join(lines)) from None


def to_toml(model: BaseModel) -> str:
    """The resolved configuration; reading it back gives an equal object."""
    return "\n".join(_toml_lines(model.model_dump(mode="json", exclude_none=True), ()))


# ---- inside -----------------------------------------------------------------------------------------------------


def _value(text: str) -> Json:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _explained(model: type[BaseModel], problem: Any) -> str:
    key, value = ".".join(_keys(problem["loc"])), problem["input"]
    match problem["type"]:
        case "missing":
            return f"the key '{key}' is missing"
        case "extra_forbidden" | "unexpected_keyword_argument":
            return f"unknown key '{key}' (value {value!r}); {hint(model, key)}"
        case "union_tag_invalid" | "union_tag_not_found":
            if not isinstance(value, dict):
                return f"{key} = {value!r}: expected a dictionary whose type is one of {', '.join(_TYPES[key])}"
            return f"{key}.type = {cast(Json, value).get('type')!r}: expected one of {', '.join(_TYPES[key])}"
        case _:
            told = problem["msg"].removeprefix("Value error, ")
            return f"{key} = {value!r}: {told}" if key else told


def _keys(place: Sequence[str | int]) -> Iterator[str]:
    """The keys of the file, without what pydantic adds: the chosen type, and the members of a plain union."""
    for before, part in zip(("", *place), place, strict=False):
        chosen = part in _TYPES.get(str(before), ())
        if not chosen and part != "str" and not str(part).startswith("tuple["):
            yield str(part)


_TYPES = {"schedule": types_of(Strategy), "algorithm": types_of(AnyAlgorithm)}


def _toml_lines(tree: dict[str, Json], path: tuple[str, ...]) -> list[str]:
    plain = {key: value for key, value in tree.items() if not isinstance(value, dict)}
    tables: dict[str, dict[str, Json]] = {key: value for key, value in tree.items() if isinstance(value, dict)}
    lines = ["", f"[{'.'.join(path)}]"] if path and (plain or not tables) else []
    lines += [f"{_toml_key(key)} = {_toml_value(value)}" for key, value in plain.items()]
    for key, table in tables.items():
        lines += _toml_lines(table, (*path, _toml_key(key)))
    return lines


def _toml_key(key: str) -> str:
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else _toml_value(key)


def _toml_value(value: Json) -> str:
    match value:
        case bool():
            return str(value).lower()
        case str():
            return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
        case list():
            return "[" + ", ".join(map(_toml_value, cast(list[Json], value))) + "]"
        case _:
            return repr(value)
