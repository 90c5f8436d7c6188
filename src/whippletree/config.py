"""The whole configuration of a run: TOML in, a frozen object out, every key with its meaning, unit and default.

Unknown keys and impossible values are refused before anything starts, with the key, the value and what is accepted.
"""

from __future__ import annotations

import difflib
import tomllib
import types
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, get_args, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.fields import FieldInfo

from whippletree.algorithms.grpo import GRPO
from whippletree.errors import ConfigError
from whippletree.sandbox.base import SandboxLimits
from whippletree.schedule.strategies import Locality, Strategy
from whippletree.types import Json

M = TypeVar("M", bound=BaseModel)


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class PolicySection(Section):
    model: str = Field(
        "nano", description="`nano`, a directory written by save_pretrained, or a Hugging Face model name."
    )
    max_context: int = Field(768, ge=32, description="Tokens of prompt and completion together.")
    num_slots: int = Field(128, ge=1, description="Completions that are sampled at the same time.")
    micro_batch_tokens: int = Field(8192, ge=1, description="Padded tokens in one forward and backward pass.")
    lockstep: bool = Field(
        True, description="Wait for all rollouts before sampling: the same seed then gives the same numbers."
    )
    threads: int = Field(1, ge=1, description="Threads of torch.")


class SamplingSection(Section):
    temperature: float = Field(1.0, gt=0, le=2, description="Divides the logits, in sampling and in the loss.")
    max_tokens: int = Field(64, ge=1, description="Of one completion.")


class TasksSection(Section):
    source: Literal["paddock"] = Field("paddock", description="The suite of tasks.")
    tiers: tuple[Literal[1, 2, 3], ...] = Field((1,), min_length=1, description="Levels of difficulty to draw from.")
    kinds: tuple[str, ...] | None = Field(None, description="Kinds of task to draw from; all of the tiers by default.")
    split: Literal["train", "validation", "test"] = Field("train", description="What is trained on.")


class HarnessesSection(Section):
    space: str = Field("paper", description="`paper`, or the path of a TOML file that defines factors and levels.")
    train: str | tuple[str, ...] = Field(
        "training",
        description="base, training, held-out, all, balanced:RUNS, random:RUNS, one name, or a list of names.",
    )
    draw_names: bool = Field(
        False, description="Draw the tools' names for each task, so that the policy must read the tool list."
    )


class RolloutSection(Section):
    concurrency: int = Field(128, ge=1, description="Rollouts at the same time.")
    timeout_s: float = Field(120.0, gt=0, description="Wall seconds of one rollout; it is then graded as it is.")
    max_calls: int = Field(40, ge=1, description="Model calls of one rollout.")
    max_tokens: int = Field(2000, ge=1, description="Sampled tokens of one rollout.")


class SandboxSection(Section):
    kind: Literal["bubblewrap", "process"] = Field(
        "bubblewrap", description="How commands are isolated; `process` does not isolate at all."
    )
    limits: SandboxLimits = Field(SandboxLimits(), description="Of each sandbox.")


class OptimizerSection(Section):
    lr: float = Field(3e-4, gt=0, description="Learning rate of AdamW.")
    warmup_steps: int = Field(5, ge=0, description="Steps over which the learning rate rises linearly.")
    decay_to: float = Field(1.0, gt=0, le=1, description="Share of the learning rate left at the last step (linear).")
    max_grad_norm: float = Field(1.0, gt=0, description="Gradients are clipped to this norm.")


class EvaluateSection(Section):
    every: int = Field(0, ge=0, description="Steps between evaluations; 0 evaluates at the end only.")
    split: Literal["train", "validation", "test"] = Field("test", description="Tasks that are evaluated on.")
    sets: dict[str, str | tuple[str, ...]] = Field(
        {"base": "base", "training": "training", "held_out": "held-out"},
        description="Columns of the report: a name and a set of harnesses each.",
    )
    rollouts_per_set: int = Field(
        360, ge=1, description="Shared equally by the harnesses of a set; tasks all distinct."
    )
    new_kinds: bool = Field(False, description="Also kinds of task that the training split does not show.")
    seed: int = Field(0, ge=0, description="Of sampling in evaluations.")


class RunConfig(Section):
    """One training run and its evaluation."""

    seed: int = Field(0, ge=0, description="Everything random follows from it.")
    steps: int = Field(100, ge=0, description="Optimizer steps.")
    batch_size: int = Field(16, ge=1, description="Tasks per step.")
    group_size: int = Field(8, ge=2, description="Rollouts per task and step: the group that is normalised together.")
    policy: PolicySection = Field(PolicySection(), description="The weights and how they are held.")
    sampling: SamplingSection = Field(SamplingSection(), description="How completions are drawn.")
    tasks: TasksSection = Field(TasksSection(), description="What is asked.")
    harnesses: HarnessesSection = Field(HarnessesSection(), description="The harnesses to train through.")
    schedule: Strategy = Field(Locality(), description="Which task meets which harness, and when.")
    algorithm: GRPO = Field(GRPO(), description="Credit and loss.")
    optimizer: OptimizerSection = Field(OptimizerSection(), description="The update.")
    rollout: RolloutSection = Field(RolloutSection(), description="Limits of acting.")
    sandbox: SandboxSection = Field(SandboxSection(), description="Where commands run.")
    evaluate: EvaluateSection = Field(EvaluateSection(), description="The harness x task matrix.")


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
    """Apply `a.b=value` settings, values in TOML syntax or plain words; later ones win."""
    changed = _copied(tree)
    for override in overrides:
        key, equals, text = override.partition("=")
        if not equals or not key.strip():
            raise ConfigError(f"--set {override}: expected KEY=VALUE, for example optimizer.lr=1e-4")
        place: dict[str, Json] = changed
        *outer, last = key.strip().split(".")
        for part in outer:
            inner: Json = place.setdefault(part, {})
            if not isinstance(inner, dict):
                raise ConfigError(f"--set {override}: {part} is a value, not a section")
            place = inner
        place[last] = _value(text.strip())
    return changed


def merged(tree: dict[str, Json], changes: dict[str, Json]) -> dict[str, Json]:
    """`tree` with `changes` laid over it, section by section; a change of `type` replaces the whole section."""
    result = dict(tree)
    for key, value in changes.items():
        old = result.get(key)
        replaces = not isinstance(value, dict) or not isinstance(old, dict) or "type" in value
        result[key] = value if replaces else merged(old, value)
    return result


def parse(tree: dict[str, Json], where: str) -> RunConfig:
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


def explain(model: type[BaseModel] = RunConfig) -> Iterator[tuple[str, str, str, str]]:
    """(key, accepted, default, meaning) of every key, in order."""
    yield from _explain(model, ())


# ---- inside -----------------------------------------------------------------------------------------------------


def _copied(tree: dict[str, Json]) -> dict[str, Json]:
    return {key: _copied(value) if isinstance(value, dict) else value for key, value in tree.items()}


def _value(text: str) -> Json:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _explained(model: type[BaseModel], problem: Any) -> str:
    path = [str(part) for part in problem["loc"]]
    key = ".".join(part for part in path if part not in _strategy_names())
    if problem["type"] == "extra_forbidden":
        known = [row[0] for row in explain(model)]
        near = difflib.get_close_matches(key, known, n=3, cutoff=0.5)
        hint = f"did you mean {', '.join(near)}?" if near else "`whippletree config explain` lists the keys"
        return f"unknown key '{key}' (value {problem['input']!r}); {hint}"
    return f"{key} = {problem['input']!r}: {problem['msg'].removeprefix('Value error, ')}"


def _strategy_names() -> set[str]:
    return {member.model_fields["type"].default for member in get_args(get_args(Strategy)[0])}


def _toml_lines(tree: dict[str, Json], path: tuple[str, ...]) -> list[str]:
    plain = {key: value for key, value in tree.items() if not isinstance(value, dict)}
    tables: dict[str, dict[str, Json]] = {key: value for key, value in tree.items() if isinstance(value, dict)}
    lines = ["", f"[{'.'.join(path)}]"] if path and plain else []
    lines += [f"{_toml_key(key)} = {_toml_value(value)}" for key, value in plain.items()]
    for key, table in tables.items():
        lines += _toml_lines(table, (*path, _toml_key(key)))
    return lines


def _toml_key(key: str) -> str:
    return key if key.replace("_", "").replace("-", "").isalnum() else _toml_value(key)


def _toml_value(value: Json) -> str:
    match value:
        case bool():
            return str(value).lower()
        case str():
            escaped = value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
            return f'"{escaped}"'
        case list():
            return "[" + ", ".join(_toml_value(item) for item in value) + "]"  # pyright: ignore[reportUnknownVariableType]
        case _:
            return repr(value)


def _explain(model: type[BaseModel], path: tuple[str, ...]) -> Iterator[tuple[str, str, str, str]]:
    for name, field in model.model_fields.items():
        key = ".".join((*path, name))
        members = [member for member in _members(field) if isinstance(member, type) and issubclass(member, BaseModel)]
        if not members:
            yield key, _accepted(field), _toml_value(_plain(field.default)), field.description or ""
        elif len(members) == 1:
            yield from _explain(members[0], (*path, name))
        else:
            names = [member.model_fields["type"].default for member in members]
            yield f"{key}.type", " | ".join(names), _toml_value(field.default.type), field.description or ""
            for member in members:
                for row in _explain(member, (*path, name)):
                    if not row[0].endswith(".type"):
                        yield row[0], f"{row[1]} (type {member.model_fields['type'].default})", row[2], row[3]


def _members(field: FieldInfo) -> tuple[Any, ...]:
    annotation: Any = field.annotation
    return get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else (annotation,)


def _accepted(field: FieldInfo) -> str:
    bounds = [
        f"{symbol} {getattr(bound, name)}"
        for bound in field.metadata
        for name, symbol in _BOUNDS
        if hasattr(bound, name)
    ]
    return " ".join([_type_name(field.annotation), *bounds])


_BOUNDS = (("gt", ">"), ("ge", ">="), ("lt", "<"), ("le", "<="))


def _type_name(annotation: Any) -> str:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return " | ".join(map(str, arguments))
    if origin in (Union, types.UnionType):
        return " | ".join(_type_name(argument) for argument in arguments if argument is not type(None))
    if origin is tuple:
        return f"list of {_type_name(arguments[0])}"
    if origin is dict:
        return f"table of {_type_name(arguments[1])}"
    return {"str": "text", "int": "whole number", "float": "number", "bool": "true | false"}.get(
        getattr(annotation, "__name__", ""), str(annotation)
    )


def _plain(value: Any) -> Json:
    return list(value) if isinstance(value, tuple) else value  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
