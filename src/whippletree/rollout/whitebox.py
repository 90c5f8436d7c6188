"""The one interpreter of white-box harnesses: a spec, a task, a sandbox and a model session in, an outcome out.

Invariant: it reads the spec and never asks which harness it runs. A turn is one assistant message with
its observations.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from whippletree.errors import BudgetSpent, ContextOverflow
from whippletree.gateway.capture import Session
from whippletree.harness import context, hooks, observation, system_prompt, tools, workflow
from whippletree.harness.acts import Act, Event
from whippletree.harness.context import Turn
from whippletree.harness.spec import HarnessSpec
from whippletree.harness.subagents import subagent
from whippletree.harness.texts import fill
from whippletree.rollout import builtin
from whippletree.rollout.runner import Attempt, Outcome
from whippletree.sandbox.base import Furnishing
from whippletree.types import (
    CallKind,
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
        counts = attempt.session.paths.counts
        return await run(self.spec, attempt.task, attempt.sandbox, attempt.session, attempt.rng, counts)


async def run(
    spec: HarnessSpec,
    task: Task,
    sandbox: Sandbox,
    session: Session,
    rng: random.Random,
    counts: Counter[str] | None = None,
) -> Outcome:
    """Act until the agent finishes or a limit is met.

    Stops with FINISHED at the final answer, MAX_TURNS when `max_turns` turns or `max_errors` consecutive turns without
    one proper action are used up, MAX_TOKENS when the session's budget is spent, CONTEXT_OVERFLOW when the messages do
    not fit, STOPPED when a hook says so. `rng` feeds simulated metadata alone; in `counts` the activations of hooks are
    counted. Raises SandboxError, PolicyError, HarnessError where a hook's own code fails.
    """
    counts = Counter() if counts is None else counts
    episode = _Episode(tools.draw_names(spec, task.id), task, sandbox, session, rng, counts)
    reason = await _act(episode)
    episode.consult("session_end", stop_reason=reason)
    return Outcome(reason)


async def _act(episode: _Episode) -> StopReason:
    try:
        return await episode.play()
    except BudgetSpent as spent:
        return StopReason.MAX_TURNS if spent.of == "calls" else StopReason.MAX_TOKENS
    except ContextOverflow:
        return StopReason.CONTEXT_OVERFLOW


@dataclass(slots=True)
class _Episode:
    """The state of one run: what is given, and what the turns change."""

    spec: HarnessSpec
    task: Task
    sandbox: Sandbox
    session: Session
    rng: random.Random
    counts: Counter[str]
    opening: tuple[Message, Message] = field(init=False)
    shown: tuple[Tool, ...] = field(init=False)
    host: observation.Host = field(init=False)
    workflow: workflow.State = field(init=False)
    watch: hooks.Watch = field(init=False)
    turns: list[Turn] = field(default_factory=list[Turn])
    summary: str | None = None
    note: str = ""
    """What the model is told of the summarized turns."""
    num_turns: int = 0
    errors: int = 0
    """Consecutive turns without one proper action."""
    finished: bool = False
    stopped: bool = False
    """By a hook."""
    answer: str = ""
    """The final message."""
    kind: CallKind = "main"

    def __post_init__(self) -> None:
        limits, instruction = self.spec.limits, self.task.instruction
        self.watch = hooks.Watch(self.spec.state.hooks, instruction, limits.max_turns, self.counts)
        system, user = system_prompt.render(self.spec, self.task)
        self.opening = (system, _with([user], self.consult("session_start").says)[0])
        self.shown = tools.shown(self.spec)
        self.host = observation.draw_host(self.rng)
        self.workflow = workflow.start(self.spec)

    @property
    def stop_reason(self) -> StopReason | None:
        if self.finished or self.stopped:
            return StopReason.FINISHED if self.finished else StopReason.STOPPED
        limits = self.spec.limits
        spent = self.num_turns >= limits.max_turns or (
            limits.max_errors is not None and self.errors >= limits.max_errors
        )
        return StopReason.MAX_TURNS if spent else None

    def consult(self, event: Event, act: Act | None = None, **more: Any) -> hooks.Verdict:
        verdict = self.watch.consult(event, self.num_turns, act, **more)
        self.stopped = self.stopped or verdict.stop
        return verdict

    async def play(self) -> StopReason:
        """Turns, until there is a reason to stop."""
        while (reason := self.stop_reason) is None:
            await self.compact()
            await self.turn()
        return reason

    async def turn(self) -> None:
        """One assistant message and what it leads to, unless a hook stops before it."""
        self._hear(self.consult("before_model").says)
        if self.stopped:
            return
        messages = context.messages(self.opening, self.note, self.turns)
        completion = await self.session.complete(Request(messages, self.shown, self.kind))
        self.num_turns += 1
        message = completion.message
        if problem := _problem(completion):
            self._record(message, self._malformed(message, problem), proper=False)
            return
        told = self.consult("after_model", message=message)
        if told.refusal is not None or self.stopped:
            self._refuse(message, told)
            return
        step = workflow.advance(self.spec, self.workflow, message)
        self.workflow = step.state
        says = [*told.says, *([step.say] if step.say else [])]
        match step.action:
            case "finish":
                self._finish(message, told.says)
            case "reply":
                self._record(message, _with([], says), proper=True)
            case "refuse":
                answers = self._refused(message.tool_calls, step.say)
                self._record(message, _with(answers, told.says), proper=False)
            case "run":
                answers, heard, proper = await self._run(message.tool_calls)
                self._record(message, _with(answers, [*heard, *says]), proper=proper)

    def _finish(self, message: Message, says: Sequence[str]) -> None:
        """Take the final answer, unless a hook has something to say to it."""
        told = self.consult("before_finish", message=message)
        if told.refusal is not None:
            self._refuse(message, replace(told, says=(*says, *told.says)))
        elif told.says:
            self._record(message, _with([], [*says, *told.says]), proper=True)
        else:
            self.finished, self.answer = True, message.content

    def _refuse(self, message: Message, told: hooks.Verdict) -> None:
        """Answer each call of a message that is not acted on; a message without calls is answered by the user."""
        reason = told.refusal or ""
        said = told.says if message.tool_calls else (*told.says, reason)
        self._record(message, _with(self._refused(message.tool_calls, reason), said), proper=False)

    def _hear(self, says: Sequence[str]) -> None:
        """Tell the model something before its next message: after what it was told last."""
        if self.turns and says:
            last = self.turns[-1]
            self.turns[-1] = Turn(last.message, _with(last.observations, says))
        elif says:
            self.note = "\n".join([*([self.note] if self.note else []), *says])

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

    async def _run(self, calls: Sequence[ToolCall]) -> tuple[list[Message], list[str], bool]:
        """Run the calls one after the other: the answers, what hooks say, and whether one call was proper."""
        answers: list[Message] = []
        heard: list[str] = []
        proper = False
        for call in calls:
            result, says, well_formed = await self._call(call)
            proper = proper or well_formed
            answers.append(self._answer(call, result))
            heard += says
            if self.stopped:
                break
        return answers, heard, proper

    async def _call(self, call: ToolCall) -> tuple[ExecResult, Sequence[str], bool]:
        """One call between the hooks before and after it; one that a hook refuses is not run."""
        meant = tools.resolve(self.spec, call)
        says: tuple[str, ...] = ()
        if isinstance(meant, tools.Refusal):
            act, proper = Act(call.name, call.name, status="refused"), not meant.malformed
            result = ExecResult(meant.text, exit_code=1)
        else:
            told = self.consult("before_tool", Act(call.name, meant.name, meant.arguments))
            assert told.act is not None
            act, says, proper = told.act, told.says, True
            if told.refusal is not None or self.stopped:
                self.watch.past.append(replace(act, status="refused"))
                return ExecResult(told.refusal or "", exit_code=1), says, False
            result = await self._carry_out(replace(meant, arguments=act.arguments))
            act = replace(act, status="failed" if result.exit_code else "done")
        act = replace(act, output=result.output, timed_out=result.timed_out, truncated=result.truncated)
        told = self.consult("after_tool", act)
        assert told.act is not None
        self.watch.past.append(told.act)
        return replace(result, output=told.act.output), (*says, *told.says), proper

    async def _carry_out(self, meant: tools.CanonicalCall) -> ExecResult:
        """In the sandbox, or by a sub-agent, whose final message is the output."""
        if meant.name != "delegate" or self.spec.subagents is None:
            return await builtin.call(self.sandbox, meant, self.task.workspace_at)
        task = replace(self.task, instruction=str(meant.arguments["task"]))
        helper = _Episode(subagent(self.spec), task, self.sandbox, self.session, self.rng, self.counts, kind="subagent")
        with suppress(ContextOverflow):  # its own; the caller's context may have room still
            await helper.play()
        if helper.finished:
            return ExecResult(helper.answer, exit_code=0)
        return ExecResult(self.spec.subagents.unfinished, exit_code=1)

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


def _with(observations: Sequence[Message], says: Sequence[str]) -> tuple[Message, ...]:
    """Messages with words of the harness after them, in one user message."""
    if not says:
        return tuple(observations)
    told = tuple(observations)
    if told and told[-1].role == "user":
        told, says = told[:-1], [told[-1].content, *says]
    return (*told, Message("user", "\n".join(says)))


def _problem(completion: Completion) -> str | None:
    """Why a message cannot be acted on. A text that was cut off is no final answer."""
    if completion.parse_error is not None:
        return completion.parse_error
    cut_off = completion.finish_reason == "length" and not completion.message.tool_calls
    return CUT_OFF if cut_off else None
