"""The C factor: which turns the model still sees, and what stands for the others.

Invariant: compaction cuts between turns, so that a tool call is never separated from its answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from whippletree.harness.spec import HarnessSpec
from whippletree.harness.texts import fill
from whippletree.types import Message, Task


@dataclass(frozen=True, slots=True)
class Turn:
    """An assistant message and what followed it: tool messages and messages of the harness."""

    message: Message
    observations: tuple[Message, ...]


def old_turns(spec: HarnessSpec, turns: Sequence[Turn]) -> tuple[Turn, ...]:
    """The turns that are to be summarized now; none while the context holds `trigger_turns` or fewer."""
    context = spec.context
    if context.trigger_turns is None or len(turns) <= context.trigger_turns:
        return ()
    return tuple(turns[: len(turns) - context.keep_turns])


def request(spec: HarnessSpec, task: Task, summary: str | None, old: Sequence[Turn]) -> tuple[Message, Message]:
    """The messages of the compaction call. `summary` is the one before; the new one replaces it."""
    fields = {
        "instruction": task.instruction,
        "summary": summary or spec.context.no_summary,
        "turns": "\n".join(_as_text(turn) for turn in old),
    }
    return Message("system", spec.context.system), Message("user", fill(spec.context.request, fields))


def note(spec: HarnessSpec, summary: str) -> str:
    """How the model is told of the turns that it no longer sees."""
    return fill(spec.context.shown, {"summary": summary, "path": spec.context.path})


def messages(opening: tuple[Message, Message], note: str, turns: Sequence[Turn]) -> tuple[Message, ...]:
    """What the model sees: the opening, with the note (if any) after its user message, and the turns as they were."""
    system, user = opening
    if note:
        user = Message("user", f"{user.content}\n{note}")
    return (system, user, *(message for turn in turns for message in (turn.message, *turn.observations)))


def _as_text(turn: Turn) -> str:
    lines = [f"assistant: {turn.message.content}"] if turn.message.content else []
    lines += [f"call: {call.name} {call.arguments}" for call in turn.message.tool_calls]
    lines += [f"{message.role}: {message.content}" for message in turn.observations]
    return "\n".join(lines)
