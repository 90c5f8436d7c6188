"""The one interpreter of white-box harnesses: a spec, a task, a sandbox and a model session in, an outcome out.

Invariant: it reads the spec and never asks which harness it runs. A turn is one assistant message with
its observations.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from whippletree.errors import BudgetSpent, ContextOverflow
from whippletree.gateway.capture import Session
from whippletree.harness import context, observation, system_prompt, tools, workflow
from whippletree.harness.context import Turn
from whippletree.harness.spec import HarnessSpec, fill
from whippletree.rollout import builtin
from whippletree.rollout.runner import Attempt, Outcome
from whippletree.sandbox.base import Furnishing
from whippletree.types import (
    Completion,
    ExecResult,
    Message,
    Request,
    Sandbox,
    StopReason,
    Task,
    Tool,
    ToolCall,
)

CUT_OFF = "the message was cut off at the length limit, write a shorter one"


@dataclass(frozen=True, slots=True)
class WhiteBox:
    """A spec as a runner."""

    spec: HarnessSpec
    furnishing: Furnishing | None = None

    async def run(self, attempt: Attempt) -> Outcome:
        return await run(self.spec, attempt.task, attempt.sandbox, attempt.session, attempt.rng)


async def run(spec: HarnessSpec, task: Task, sandbox: Sandbox, session: Session, rng: random.Random) -> Outcome:
    """Act until the agent finishes or a limit is met.

    Stops with FINISHED at the final answer, MAX_TURNS when `max_turns` turns or `max_errors` consecutive turns without
    one proper action are used up, MAX_TOKENS when the session's budget is spent, CONTEXT_OVERFLOW when the messages do
    not fit. `rng` feeds simulated metadata alone. Raises SandboxError, PolicyError.
    """
    episode = _Episode(tools.draw_names(spec, task.id), task, sandbox, session, rng)
    try:
        while episode.stop_reason is None:
            await episode.compact()
            await episode.turn()
    except BudgetSpent as spent:
        reason = StopReason.MAX_TURNS if spent.of == "calls" else StopReason.MAX_TOKENS
        return Outcome(reason)
    except ContextOverflow:
        return Outcome(StopReason.CONTEXT_OVERFLOW)
    return Outcome(episode.stop_reason)


@dataclass(slots=True)
class _Episode:
    """The state of one run: what is given, and what the turns change."""

    spec: HarnessSpec
    task: Task
    sandbox: Sandbox
    session: Session
    rng: random.Random
    opening: tuple[Message, Message] = field(init=False)
    shown: tuple[Tool, ...] = field(init=False)
    host: observation.Host = field(init=False)
    workflow: workflow.State = field(init=False)
    turns: list[Turn] = field(default_factory=list[Turn])
    summary: str | None = None
    note: str = ""
    """What the model is told of the summarized turns."""
    num_turns: int = 0
    errors: int = 0
    """Consecutive turns without one proper action."""
    finished: bool = False

    def __post_init__(self) -> None:
        self.opening = system_prompt.render(self.spec, self.task)
        self.shown = tools.shown(self.spec)
        self.host = observation.draw_host(self.rng)
        self.workflow = workflow.start(self.spec)

    @property
    def stop_reason(self) -> StopReason | None:
        if self.finished:
            return StopReason.FINISHED
        limits = self.spec.limits
        spent = self.num_turns >= limits.max_turns or (
            limits.max_errors is not None and self.errors >= limits.max_errors
        )
        return StopReason.MAX_TURNS if spent else None

    async def turn(self) -> None:
        """One assistant message and what it leads to."""
        messages = context.messages(self.opening, self.note, self.turns)
        completion = await self.session.complete(Request(messages, self.shown))
        self.num_turns += 1
        message = completion.message
        if problem := _problem(completion):
            self._record(message, self._malformed(message, problem), proper=False)
            return
        step = workflow.advance(self.spec, self.workflow, message)
        self.workflow = step.state
        said = (Message("user", step.say),) if step.say else ()
        match step.action:
            case "finish":
                self.finished = True
            case "reply":
                self._record(message, said, proper=True)
            case "refuse":
                self._record(message, self._refused(message.tool_calls, step.say), proper=False)
            case "run":
                answers, proper = await self._run(message.tool_calls)
                self._record(message, (*answers, *said), proper=proper)

    async def compact(self) -> None:
        """Summarize the turns that the context policy lets go, by a model call of its own."""
        policy = self.spec.context
        old = context.old_turns(self.spec, self.turns)
        if not old:
            return
        request = Request(
            messages=context.request(self.spec, self.task, self.summary, old),
            kind="compaction",
            max_tokens=policy.max_tokens,
        )
        completion = await self.session.complete(request)
        self.summary = completion.message.content.strip() or policy.no_summary
        self.note = context.note(self.spec, self.summary)
        if policy.summary == "file":
            written = builtin.write(self.sandbox.workspace, policy.path, self.summary + "\n")
            if written.exit_code:
                # The agent may have put something in the way; it is told so, and the rollout goes on.
                self.note += f"\n{written.output}"
        del self.turns[: len(old)]

    async def _run(self, calls: Sequence[ToolCall]) -> tuple[list[Message], bool]:
        """Run the calls one after the other; the flag tells whether one of them was proper."""
        answers: list[Message] = []
        proper = False
        for call in calls:
            meant = tools.resolve(self.spec, call)
            if isinstance(meant, tools.Refusal):
                result = ExecResult(meant.text, exit_code=1)
                proper = proper or not meant.malformed
            else:
                result = await builtin.call(self.sandbox, meant)
                proper = True
            answers.append(self._answer(call, result))
        return answers, proper

    def _answer(self, call: ToolCall, result: ExecResult) -> Message:
        text = observation.render(self.spec, call.name, result, self.host, self.rng)
        return Message("tool", text, tool_call_id=call.id)

    def _refused(self, calls: Sequence[ToolCall], text: str) -> tuple[Message, ...]:
        return tuple(self._answer(call, ExecResult(text, exit_code=1)) for call in calls)

    def _malformed(self, message: Message, problem: str) -> tuple[Message, ...]:
        text = fill(self.spec.observation.malformed, {"error": problem})
        return (*self._refused(message.tool_calls, text), Message("user", text))

    def _record(self, message: Message, observations: tuple[Message, ...], *, proper: bool) -> None:
        self.turns.append(Turn(message, observations))
        self.errors = 0 if proper else self.errors + 1


def _problem(completion: Completion) -> str | None:
    """Why a message cannot be acted on. A text that was cut off is no final answer."""
    if completion.parse_error is not None:
        return completion.parse_error
    cut_off = completion.finish_reason == "length" and not completion.message.tool_calls
    return CUT_OFF if cut_off else None
