"""The vocabulary: data that crosses folders, and the small protocols between them.

Everything here is frozen and does no I/O. Token data are numpy arrays of one length; shapes are given as (T,).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import socket

Ids = NDArray[np.int64]
Floats = NDArray[np.float32]
Parts = NDArray[np.int8]
"""Values of `Part`."""
Updates = tuple[tuple[int, int], ...]
"""(place, version): the sampled tokens from this place on are by other weights than the one before, in order."""
Json = Any
"""A JSON value."""

Role = Literal["system", "user", "assistant", "tool"]
CallKind = Literal["main", "subagent", "compaction", "auxiliary", "notification"]
"""A retry is a place in the call tree and no kind; `notification` tells the main agent something after its answer."""
Purpose = Literal["train", "evaluate", "rescue", "search"]
FinishReason = Literal["stop", "length", "tool_calls"]


class Part(IntEnum):
    """Of a sampled token: ACTION opens a tool call or names its tool, ARGUMENT names or gives arguments; OTHER is all
    else, and all of a message without a proper call."""

    OTHER, ACTION, ARGUMENT = range(3)


# ---- messages ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ToolCall:
    id: str
    name: str
    arguments: str
    """JSON text of one object."""


@dataclass(frozen=True, slots=True)
class Message:
    role: Role
    content: str
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    """Set on tool messages: the call that they answer."""
    reasoning: str = ""
    """Thinking of an assistant message. Not part of its identity: harnesses drop it or hand it back as they like."""


@dataclass(frozen=True, slots=True)
class Tool:
    """What the model is told of one tool."""

    name: str
    description: str
    parameters: Mapping[str, Json]
    """JSON schema of the argument object."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How the run samples, whatever a harness asks for."""

    temperature: float = 1.0
    """Divides the logits; the loss divides by it too. 0 is greedy."""
    max_tokens: int = 1024
    """Of one completion."""


@dataclass(frozen=True, slots=True)
class Request:
    messages: tuple[Message, ...]
    tools: tuple[Tool, ...] = ()
    kind: CallKind = "main"
    max_tokens: int | None = None
    """Lowers the run's limit; it never raises it."""
    stop: tuple[str, ...] = ()
    """Strings that end the completion."""
    asked: Mapping[str, Json] = field(default_factory=dict[str, Json])
    """What else the harness asked for; recorded, not obeyed."""


@dataclass(frozen=True, slots=True)
class Completion:
    message: Message
    finish_reason: FinishReason
    prompt_ids: Ids
    completion_ids: Ids
    """What was sampled, including the end-of-message token where it was sampled."""
    logprobs: Floats
    """Of the sampled tokens under the sampling distribution (after temperature), shape of completion_ids."""
    policy_version: int
    """Of the weights that sampled the first token."""
    parse_error: str | None = None
    """Why the sampled text is no proper message, in words that the model can act on; content then holds the text."""
    cached_tokens: int = 0
    """Prompt tokens that were not computed again."""
    stop: str | None = None
    """The request's stop string that ended it, where one did; it is not in the message."""
    updates: Updates = ()
    """Where weights were published while it was sampled."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """One call in words: for people, export and diagnosis. Learning reads tokens alone."""

    after: int | None
    """Index of the call that the request continues, all of whose messages and reply come before; None: from the start.
    """
    messages: tuple[Message, ...]
    """Of the request, those that are new."""
    reply: Message
    tools: tuple[Tool, ...] = ()
    asked: Mapping[str, Json] = field(default_factory=dict[str, Json])
    """The sampling settings and the model that the harness asked for, in its own words; recorded, not obeyed."""


@dataclass(frozen=True, slots=True)
class ModelCall:
    """One captured call; the recorded calls of a rollout are the only training data."""

    index: int
    """Order within its rollout, from 0."""
    kind: CallKind
    prompt_ids: Ids
    completion_ids: Ids
    logprobs: Floats
    policy_version: int
    finish_reason: FinishReason
    temperature: float = 1.0
    parse_error: str | None = None
    cached_tokens: int = 0
    exchange: Exchange | None = None
    parts: Parts | None = None
    """Of the sampled tokens, shape of completion_ids; None where the record is older than they are."""
    updates: Updates = ()

    @property
    def versions(self) -> Ids:
        """The version of the policy that sampled each token, shape of completion_ids."""
        found = np.full(len(self.completion_ids), self.policy_version, dtype=np.int64)
        for place, version in self.updates:
            found[place:] = version
        return found


# ---- sampling ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TokenSample:
    """What a sampler returns: tokens and nothing else."""

    ids: Ids
    """Sampled tokens; ends with a stop id where `finish_reason` is "stop"."""
    logprobs: Floats
    finish_reason: Literal["stop", "length"]
    policy_version: int
    """Of the weights that sampled the first token."""
    cached_tokens: int = 0
    updates: Updates = ()


class Sampler(Protocol):
    """Tokens in, tokens out: the half of a policy that acting needs."""

    max_context: int
    """Tokens of prompt and completion together."""

    async def sample(
        self, prompt_ids: Ids, sampling: Sampling, *, stop_ids: tuple[int, ...], session: str, seed: int
    ) -> TokenSample:
        """Sample until a stop id or `max_tokens`.

        `session` names the rollout, so that prefixes can be reused; the same weights, prompt and `seed` give the same
        tokens. Raises ContextOverflow where the prompt leaves no room for one token.
        """
        ...


# ---- tasks ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Task:
    id: str
    """Unique over all sources, e.g. `paddock/train/copy/17`."""
    source: str
    split: str
    kind: str
    tier: int
    """1 is the easiest."""
    instruction: str
    files: Mapping[str, str] = field(default_factory=dict[str, str])
    """Workspace-relative path -> text at the start."""
    gold: str = ""
    """Shell commands that solve the task, one per line; empty where none is known."""
    check: Mapping[str, Json] = field(default_factory=dict[str, Json])
    """What the source's grader needs; never shown to the policy."""
    habit: str = ""  # what a careless agent does, as `gold`, in a task that is about a weak habit
    tree: Path | None = None
    """A directory of the host that is copied into the workspace, beside `files`: where they are many, or no text."""
    workspace_at: str = ""
    """A second path at which the workspace is seen inside, for tasks and graders that name it."""
    tools: Path | None = None
    """A directory of the host that is seen inside, read-only, with its `bin` first in PATH."""
    timeout_s: float | None = None
    """Wall seconds of one rollout; a run may allow less, but not more."""
    tags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Reward:
    value: float
    """In [0, 1]."""
    parts: Mapping[str, float] = field(default_factory=dict[str, float])
    """Named checks, each in [0, 1]."""

    @property
    def passed(self) -> bool:
        return self.value >= 1.0


# ---- acting -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ExecResult:
    output: str
    """stdout and stderr as they came, cut to the sandbox's output limit."""
    exit_code: int
    timed_out: bool = False
    truncated: bool = False


class Sandbox(Protocol):
    """Where commands run. One per rollout; `workspace` is the host's view of the directory it may change."""

    workspace: Path
    home: Path
    """The host's view of the HOME of a furnished sandbox's program."""

    def inside(self, path: Path) -> str:
        """How processes in the sandbox see a host path below the workspace, the home or the program's directory."""
        ...

    def write_home(self, files: Mapping[str, str]) -> None:
        """Put files (path below HOME -> text) into a furnished sandbox, before a command of the agent has run in it."""
        ...

    async def listen(self) -> socket.socket:
        """A listening TCP socket on 127.0.0.1 as the sandbox's processes see it, which accepts connections here."""
        ...

    async def run(self, command: str) -> ExecResult:
        """Run in the persistent shell; a timeout is a result, a dead sandbox raises SandboxError."""
        ...

    async def stop(self) -> None:
        """Kill every process and keep the files, so that they can be graded; `run` raises SandboxError from then on."""
        ...

    async def close(self) -> None:
        """Leave no process and no file. Safe to call twice."""
        ...


class StopReason(StrEnum):
    FINISHED = "finished"
    """The agent said that it was done."""
    MAX_TURNS = "max_turns"
    MAX_TOKENS = "max_tokens"
    """The rollout's token budget is spent."""
    CONTEXT_OVERFLOW = "context_overflow"
    TIMEOUT = "timeout"
    IDLE = "idle"
    """A black-box harness made no model call for too long."""
    STOPPED = "stopped"  # by a hook of a white-box harness
    HARNESS_EXIT = "harness_exit"
    """A black-box harness ended by itself."""
    ERROR = "error"
    """Infrastructure failed; not graded, not trained on."""


@dataclass(frozen=True, slots=True)
class Assignment:
    """One group to roll out: which task under which harness, how often, and why."""

    step: int
    task: Task
    harness: str
    num_rollouts: int
    purpose: Purpose = "train"


@dataclass(frozen=True, slots=True)
class Rollout:
    """One attempt at one task under one harness."""

    id: str
    task_id: str
    task_kind: str
    harness: str
    step: int
    purpose: Purpose
    calls: tuple[ModelCall, ...]
    reward: Reward | None
    """None exactly where `error` is set."""
    stop_reason: StopReason
    error: str | None = None
    num_turns: int = 0
    timings_s: Mapping[str, float] = field(default_factory=dict[str, float])
    """Wall seconds in `sandbox`, `policy`, `grade`, and `total`."""
    counts: Mapping[str, int] = field(default_factory=dict[str, int])
    """How the model boundary met the requests (see `gateway.paths`), and how often each hook fired: `hook/NAME`."""

    @property
    def passed(self) -> bool:
        return self.reward is not None and self.reward.passed


@dataclass(frozen=True, slots=True)
class Group:
    """The rollouts that are normalised together."""

    assignment: Assignment
    rollouts: tuple[Rollout, ...]

    @property
    def graded(self) -> tuple[Rollout, ...]:
        return tuple(r for r in self.rollouts if r.reward is not None)


# ---- learning ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Sample:
    """One branch of a call tree for the trainer. All arrays have shape (T,).

    `weights[t] > 0` marks the tokens that are trained: sampled, and owned by this branch. Position t predicts itself
    from the tokens before it, so weights[0] is 0.
    """

    ids: Ids
    weights: Floats
    rollout_logprobs: Floats
    advantages: Floats
    temperature: float = 1.0
    rollout_id: str = ""
    columns: Mapping[str, Floats] = field(default_factory=dict[str, Floats])
    """What else a loss needs of each token, by name (see `trajectory.samples` and `algorithms.losses`)."""

    def __post_init__(self) -> None:
        arrays = (self.ids, self.weights, self.rollout_logprobs, self.advantages, *self.columns.values())
        lengths = set(map(len, arrays))
        if len(lengths) != 1:
            raise ValueError(f"arrays of a Sample must have one length, got lengths {sorted(lengths)}")


@dataclass(frozen=True, slots=True)
class Score:
    """An evaluation cell: the rewards of one task under one harness."""

    task_id: str
    task_kind: str
    harness: str
    passes: tuple[bool, ...]
    rewards: tuple[float, ...]
