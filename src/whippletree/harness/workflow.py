"""The W factor: what the harness does with an assistant message, as a pure state machine.

Invariant: a tool call runs only after the plan that `plan_first` asks for, and never while a verification is due.
A text that is neither plan nor verification, with no tool call, is the final answer.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from whippletree.harness.spec import HarnessSpec
from whippletree.types import Message

Action = Literal["run", "refuse", "reply", "finish"]


@dataclass(frozen=True, slots=True)
class State:
    planned: bool
    verifying: bool = False
    steps: int = 0
    """Turns with tool calls since the last verification was asked for."""


@dataclass(frozen=True, slots=True)
class Step:
    """What to do with one assistant message."""

    state: State
    action: Action
    say: str = ""
    """run: a user message after the observations, if any; refuse: the answer to each call; reply: a user message."""


def start(spec: HarnessSpec) -> State:
    return State(planned=not spec.workflow.plan_first)


def advance(spec: HarnessSpec, state: State, message: Message) -> Step:
    """Decide on a well-formed message. An empty one without tool calls finishes."""
    workflow = spec.workflow
    text, calls = bool(message.content.strip()), bool(message.tool_calls)
    due = state.verifying or not state.planned
    if not calls and not (due and text):
        return Step(state, "finish")
    if due and not text:
        return Step(state, "refuse", workflow.verify_missing if state.verifying else workflow.plan_missing)
    told = replace(state, planned=True, verifying=False)
    if not calls:
        return Step(told, "reply", workflow.verify_accepted if state.verifying else workflow.plan_accepted)
    if told.steps + 1 != workflow.verify_every:
        return Step(replace(told, steps=told.steps + 1), "run")
    return Step(replace(told, verifying=True, steps=0), "run", workflow.verify_request)
