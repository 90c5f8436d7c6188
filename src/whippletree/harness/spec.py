"""The whole state of a white-box harness as data: frozen, hashable, JSON.

Invariant: what differs between two white-box harnesses is in their specs, and nowhere else; one interpreter runs them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import PurePosixPath
from typing import Annotated, Literal, Self, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from whippletree.errors import HarnessError
from whippletree.harness.hooks import Hook
from whippletree.harness.texts import fields
from whippletree.types import Json

CANONICAL: Mapping[str, tuple[str, ...]] = {
    "execute_bash": ("command",),
    "file_editor": ("command", "path", "file_text", "old_str", "new_str", "insert_line"),
    "delegate": ("task",),
}
"""The tools that the program really has, with their arguments; every functional tool of a spec is one of these."""

REQUIRED: Mapping[str, frozenset[str]] = {
    "execute_bash": frozenset({"command"}),
    "file_editor": frozenset({"command", "path"}),
    "delegate": frozenset({"task"}),
}
OBSERVATION_FIELDS = ("output", "tool", "exit_code", "pid", "duration_s", "node", "pod", "namespace", "scheduled")

IDENTITY = {"id", "parent", "direction"}
"""Fields of a spec that say which one it is, and nothing of what it does."""
_ADDED = ("state", "subagents")
"""Sections that the first version did not have."""

T = TypeVar("T")


def _workspace_path(path: str) -> str:
    parts = PurePosixPath(path).parts
    if not parts or path.startswith("/") or ".." in parts:
        raise ValueError("must be a path inside the workspace, such as .notes/summary.txt")
    return path


ToolName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_-]{0,63}$")]
"""What every model API accepts."""


class _Data(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Section(_Data):
    name: str
    text: str


class Prompt(_Data):
    sections: tuple[Section, ...]
    """Joined by newlines into the system message, followed by the workflow's instruction."""
    user: Annotated[str, fields("instruction", required=("instruction",))] = "{instruction}"


class ToolSpec(_Data):
    name: ToolName
    description: str
    parameters: dict[str, Json]
    """JSON schema of type object, under the argument names that are shown."""
    alias_of: str | None = None
    """The canonical tool that this name stands for; None where the name is canonical itself."""
    argument_aliases: dict[str, str] = {}
    """Shown argument -> canonical argument; arguments that are not listed keep their canonical name."""
    distractor: bool = False
    error: str = ""
    """What a distractor answers."""
    pool: str = ""
    """The pool in `name_pools` that the name is drawn from when names are drawn per task."""

    @property
    def canonical(self) -> str:
        return self.alias_of or self.name

    @property
    def properties(self) -> Mapping[str, Mapping[str, Json]]:
        return self.parameters["properties"]

    def canonical_argument(self, shown: str) -> str:
        return self.argument_aliases.get(shown, shown)

    @model_validator(mode="after")
    def _check(self) -> Self:
        properties = self.parameters.get("properties")
        tables = isinstance(properties, dict) and all(isinstance(schema, dict) for schema in self.properties.values())
        if self.parameters.get("type") != "object" or not tables:
            raise ValueError(f"parameters of {self.name} must be a JSON schema of type object with properties")
        if strangers := {*self.argument_aliases, *self.parameters.get("required", [])} - set(self.properties):
            raise ValueError(f"{self.name} has no argument {sorted(strangers)[0]}")
        if self.distractor:
            if self.alias_of or self.argument_aliases or not self.error:
                raise ValueError(f"distractor {self.name} needs an error text and must not be an alias")
            return self
        if self.canonical not in CANONICAL:
            raise ValueError(f"{self.name} stands for {self.canonical}, expected one of {', '.join(CANONICAL)}")
        arguments = [self.canonical_argument(shown) for shown in self.properties]
        if len(set(arguments)) < len(arguments) or not set(arguments) <= set(CANONICAL[self.canonical]):
            raise ValueError(
                f"arguments of {self.name} must stand one to one for {', '.join(CANONICAL[self.canonical])}, "
                f"got {', '.join(arguments)}"
            )
        required = {self.canonical_argument(shown) for shown in self.parameters.get("required", [])}
        if missing := REQUIRED[self.canonical] - required:
            raise ValueError(f"{self.name} must require {sorted(missing)[0]}")
        return self


class Observation(_Data):
    template: Annotated[str, fields(*OBSERVATION_FIELDS, required=("output",))]
    """Around every answer to a tool call."""
    xml_escape: bool = False
    namespace: str = "sandbox"
    empty: str
    """Stands for an empty output."""
    timed_out: str
    """A last line of the output of a command that ran out of time."""
    truncated: str
    """A last line of an output that was cut."""
    malformed: Annotated[str, fields("error", required=("error",))]
    """The user message after a message that could not be read."""


class Context(_Data):
    trigger_turns: Annotated[int, Field(ge=1)] | None = None
    """Compact when the context holds more turns than this; None keeps the whole history."""
    keep_turns: Annotated[int, Field(ge=0)] = 0
    """The most recent turns that stay as they are."""
    summary: Literal["message", "file"] = "message"
    path: Annotated[str, AfterValidator(_workspace_path)] = ".notes/summary.txt"
    """Where the summary goes with `summary = "file"`."""
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    """Of one summary; None leaves it to the run."""
    system: str
    """System message of the compaction call."""
    request: Annotated[str, fields("instruction", "summary", "turns", required=("summary", "turns"))]
    """User message of the compaction call; `summary` is the one before."""
    no_summary: str
    """Stands for the summary where there is none yet, or an empty one came."""
    shown: Annotated[str, fields("summary", "path")]
    """Follows the user message once older turns are summarized."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.trigger_turns is not None and self.keep_turns > self.trigger_turns:
            raise ValueError(f"keep_turns is {self.keep_turns}, must be at most trigger_turns ({self.trigger_turns})")
        return self


class Workflow(_Data):
    instruction: Annotated[str, fields("verify_every")] = ""
    """A last section of the system message."""
    plan_first: bool = False
    verify_every: Annotated[int, Field(ge=1)] | None = None
    """Turns with tool calls between two progress verifications."""
    plan_missing: str
    """Answers a tool call that comes before the plan."""
    plan_accepted: str
    verify_request: str
    """The user message after every `verify_every` turns with tool calls."""
    verify_missing: str
    """Answers a tool call that comes instead of a verification."""
    verify_accepted: str


class Limits(_Data):
    max_turns: Annotated[int, Field(ge=1)] = 30
    max_errors: Annotated[int, Field(ge=1)] | None = None
    """Consecutive turns without one proper action that end the rollout; None never does."""


class Subagents(_Data):
    """Agents of the same policy, each with a task that the tool `delegate` hands over, in the sandbox of its caller."""

    prompt: Prompt
    """Its `instruction` is the task that was handed over."""
    tools: tuple[ToolSpec, ...]
    limits: Limits = Limits()
    unfinished: str
    """What the caller is told of one that stopped without an answer."""


HookName = Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9_-]{0,63}$")]


class State(_Data):
    """What the harness adds to the plain loop."""

    hooks: dict[HookName, Hook] = {}
    """Asked in the order of their names."""


class HarnessSpec(_Data):
    """A white-box harness. Equal specs are equal in content and in name; `content_hash` leaves the names out."""

    id: str
    parent: str | None = None
    """Id of the spec that this one was made from."""
    direction: str = ""
    """What this one is to repair of its parent, in words."""
    prompt: Prompt
    tools: tuple[ToolSpec, ...]
    observation: Observation
    context: Context
    workflow: Workflow
    limits: Limits
    draw: Literal["level", "task"] = "level"
    """Tool names are fixed, or drawn from their pools for each task, so that the tool list must be read."""
    name_pools: dict[str, tuple[ToolName, ...]] = {}
    state: State = State()
    subagents: Subagents | None = None

    @property
    def content_hash(self) -> str:
        """16 hex digits over all but `IDENTITY`; the same on every machine, and with every version.

        What later versions have added is left out where it is not used, so that old hashes stay.
        """
        content = self.model_dump(mode="json", exclude=IDENTITY)
        for name in _ADDED:
            if getattr(self, name) == type(self).model_fields[name].default:
                del content[name]
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]

    def __hash__(self) -> int:
        return hash(self.content_hash)

    @model_validator(mode="after")
    def _check(self) -> Self:
        _unique("section", [section.name for section in self.prompt.sections])
        delegates = "delegate" in _functional(self.tools, self.name_pools)
        if delegates != (self.subagents is not None):
            raise ValueError("a spec has both the tool delegate and the section subagents, or neither")
        if self.subagents is not None:
            _unique("section", [section.name for section in self.subagents.prompt.sections])
            if "delegate" in _functional(self.subagents.tools, self.name_pools):
                raise ValueError("a sub-agent cannot delegate in its turn; leave delegate out of subagents.tools")
        return self


def _functional(tools: tuple[ToolSpec, ...], pools: Mapping[str, tuple[str, ...]]) -> list[str]:
    """The canonical tools behind those of one agent. Raises ValueError where they cannot be told apart."""
    _unique("tool", [tool.name for tool in tools])
    functional = [tool.canonical for tool in tools if not tool.distractor]
    _unique("alias of", functional)
    if not functional:
        raise ValueError("a harness needs at least one tool that is no distractor")
    users = [tool.pool for tool in tools if tool.pool]
    for pool in users:
        names = pools.get(pool, ())
        if len(set(names)) < users.count(pool):
            raise ValueError(f"pool {pool} has {len(set(names))} names for {users.count(pool)} tools")
    fixed = [tool.name for tool in tools if not tool.pool]
    _unique("name", fixed + [name for pool in sorted(set(users)) for name in pools[pool]])
    return functional


def _unique(what: str, names: list[str]) -> None:
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"{what} {twice[0]} is there twice")


def parse_spec(data: Json, where: str) -> HarnessSpec:
    """Validate the JSON value of a spec. Raises HarnessError that names `where`, the key and the value."""
    return validated(HarnessSpec.model_validate, data, where)


def validated(validate: Callable[[Json], T], data: Json, where: str) -> T:
    """Run a pydantic validation. Raises HarnessError that names `where`, the first bad key and its value."""
    try:
        return validate(data)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(str(step) for step in first["loc"]) or "the spec"
        value = json.dumps(first["input"], default=str)
        shown = value if len(value) <= 120 else value[:117] + "..."
        raise HarnessError(f"{where}: {key}: {first['msg'].removeprefix('Value error, ')}; got {shown}") from None
