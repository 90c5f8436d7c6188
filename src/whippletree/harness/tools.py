"""The T factor: what the model is shown of the tools, and what its calls mean.

Invariant: a call resolves to one canonical tool with canonical arguments that satisfy the shown schema, or to a text
that tells the model what was wrong.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from whippletree.harness.spec import HarnessSpec, ToolSpec
from whippletree.types import Json, Tool, ToolCall


@dataclass(frozen=True, slots=True)
class CanonicalCall:
    """A call of a tool that the program has, under its canonical names."""

    name: str
    arguments: Mapping[str, Json]
    shown: Mapping[str, str]
    """Canonical argument -> the name that the model knows it by, for messages about it."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """An answer without an effect."""

    text: str
    malformed: bool
    """False for a distractor: the call was proper and its tool does nothing."""


def shown(spec: HarnessSpec) -> tuple[Tool, ...]:
    """The tools as the model sees them, in the order of the spec."""
    return tuple(Tool(tool.name, tool.description, tool.parameters) for tool in spec.tools)


def draw_names(spec: HarnessSpec, task_id: str) -> HarnessSpec:
    """Draw the names and the order of the tools for one task where the spec asks for it, its sub-agents' tools too.

    Depends on the task alone, so that all rollouts of a group see the same prompt. Tools without a pool keep their
    name.
    """
    subagents = spec.subagents
    if spec.draw == "level" or not any(tool.pool for tool in (*spec.tools, *(subagents.tools if subagents else ()))):
        return spec
    if subagents is not None:
        subagents = subagents.model_copy(update={"tools": _drawn(subagents.tools, spec.name_pools, task_id)})
    drawn = _drawn(spec.tools, spec.name_pools, task_id)
    return spec.model_copy(update={"tools": drawn, "subagents": subagents, "draw": "level", "name_pools": {}})


def _drawn(tools: Sequence[ToolSpec], pools: Mapping[str, Sequence[str]], task_id: str) -> tuple[ToolSpec, ...]:
    rng = random.Random(f"tool names of {task_id}")
    left = {pool: rng.sample(names, len(names)) for pool, names in sorted(pools.items())}
    drawn: list[ToolSpec] = []
    for tool in tools:
        # The canonical tool must be kept by name where the name itself said which it was.
        alias = None if tool.distractor else tool.canonical
        changed = {"name": left[tool.pool].pop(), "alias_of": alias, "pool": ""} if tool.pool else {}
        drawn.append(tool.model_copy(update=changed))
    rng.shuffle(drawn)
    return tuple(drawn)


def resolve(spec: HarnessSpec, call: ToolCall) -> CanonicalCall | Refusal:
    """What a call means under this harness."""
    tool = next((tool for tool in spec.tools if tool.name == call.name), None)
    if tool is None:
        names = ", ".join(tool.name for tool in spec.tools)
        return Refusal(f"error: there is no tool {call.name}. the tools are {names}.", malformed=True)
    if tool.distractor:
        return Refusal(tool.error, malformed=False)
    try:
        arguments: Json = json.loads(call.arguments)
    except ValueError:
        arguments = None
    if not isinstance(arguments, dict):
        return Refusal(f"error: the arguments of {tool.name} must be one JSON object.", malformed=True)
    # Models write null for an argument that they leave out.
    given: dict[str, Json] = {name: value for name, value in arguments.items() if value is not None}  # pyright: ignore
    if problem := _problem(tool, given):
        return Refusal(f"error: {problem}.", malformed=True)
    typed = {tool.canonical_argument(name): _typed(tool.properties[name], value) for name, value in given.items()}
    return CanonicalCall(tool.canonical, typed, {tool.canonical_argument(name): name for name in tool.properties})


def _problem(tool: ToolSpec, given: Mapping[str, Json]) -> str | None:
    """Why the arguments do not satisfy the tool's schema, in words that the model can act on."""
    for name in tool.parameters.get("required", []):
        if name not in given:
            return f"{tool.name} needs the argument {name}"
    for name, value in given.items():
        if name not in tool.properties:
            return f"{tool.name} has no argument {name}, it has {', '.join(tool.properties)}"
        schema = tool.properties[name]
        value = _typed(schema, value)
        if schema.get("type") == "integer" and (not isinstance(value, int) or isinstance(value, bool)):
            return f"{name} must be a whole number, got {json.dumps(value)}"
        if schema.get("type") == "string" and not isinstance(value, str):
            return f"{name} must be a string, got {json.dumps(value)}"
        if "enum" in schema and value not in schema["enum"]:
            return f"{name} must be one of {', '.join(schema['enum'])}, got {value}"
    return None


def _typed(schema: Mapping[str, Json], value: Json) -> Json:
    """Take a whole number that was written as a string."""
    if schema.get("type") == "integer" and isinstance(value, str) and value.strip().isdecimal():
        return int(value)
    return value
