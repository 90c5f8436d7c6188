"""Hooks: at an event, if a condition holds, an action. What they decide is a function of what has happened.

Invariant: a hook that does not fire changes nothing. Hooks of one event are asked in the order of their names; each
sees the call as those before it have left it, and none is asked after one that refuses or stops.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PrivateAttr,
    SerializerFunctionWrapHandler,
    model_serializer,
    model_validator,
)

from whippletree.errors import HarnessError
from whippletree.harness.acts import Act, Event, Moment
from whippletree.harness.conditions import Condition
from whippletree.harness.named import condition, rewriter
from whippletree.harness.rewriters import Rewriter
from whippletree.harness.texts import fields, fill
from whippletree.types import Json

Action = Literal["warn", "block", "require", "rewrite", "stop"]
ACTIONS: tuple[Action, ...] = get_args(Action)
FITS: Mapping[Event, frozenset[Action]] = {
    "session_start": frozenset({"warn"}),
    "before_model": frozenset({"warn", "stop"}),
    "after_model": frozenset({"warn", "block", "require", "stop"}),
    "before_tool": frozenset({"warn", "block", "require", "rewrite", "stop"}),
    "after_tool": frozenset({"warn", "rewrite", "stop"}),
    "before_finish": frozenset({"warn", "block", "require"}),
    "session_end": frozenset({"warn"}),
}
"""What can be done at an event. At `session_end` nobody hears a warning: it is counted."""
COUNT = "hook/"
"""Before the name of a hook in `Rollout.counts`."""


class Rewriting(BaseModel):
    """A rewriter by name, with its parameters."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    name: str
    parameters: dict[str, Json] = {}
    _found: Rewriter = PrivateAttr()

    @model_validator(mode="after")
    def _find(self) -> Self:
        self._found = rewriter(self.name, self.parameters)
        return self

    @property
    def event(self) -> Event:
        return self._found.event

    def rewrite(self, act: Act) -> Act:
        return self._found.rewrite(act)


class Hook(BaseModel):
    """`warn`, `block`, `rewrite` or `stop` while the condition holds; `require` that it holds, else refuse."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    event: Event
    condition: str
    """A name of the registry, or MODULE:NAME."""
    action: Action
    message: Annotated[str, fields("turn", "turns_left", "tool")] = ""
    """What the model is told: a user message, or the answer to a call that is refused."""
    parameters: dict[str, Json] = {}
    """Of the condition."""
    rewriter: Rewriting | None = None
    """Of the action `rewrite`."""
    limit: Annotated[int, Field(ge=1)] | None = None
    """Activations in one rollout, after which the hook rests."""
    _condition: Condition = PrivateAttr()

    @model_validator(mode="after")
    def _check(self) -> Self:
        self._condition = condition(self.condition, self.parameters)
        if self.action not in FITS[self.event]:
            raise ValueError(f"action {self.action} does not fit {self.event}, which takes {_listed(FITS[self.event])}")
        if self.event not in (events := self._condition.events):
            where = _listed(events) or "no event: what it is made of goes with different ones"
            raise ValueError(f"condition {self.condition} cannot be judged at {self.event}, but at {where}")
        if (self.rewriter is None) == (self.action == "rewrite"):
            raise ValueError("a rewriter goes with the action rewrite, which needs one")
        if self.rewriter and self.rewriter.event != self.event:
            raise ValueError(f"rewriter {self.rewriter.name} is for {self.rewriter.event}, not for {self.event}")
        if not self.message and self.action in ("warn", "block", "require") and self.event != "session_end":
            raise ValueError(f"the action {self.action} needs a message")
        return self

    @model_serializer(mode="wrap")
    def _without_nulls(self, dump: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {key: value for key, value in dump(self).items() if value is not None}

    @property
    def most(self) -> int | None:
        """A warning at the end of the work is given once: the second time the agent means it."""
        return self.limit or (1 if (self.event, self.action) == ("before_finish", "warn") else None)

    def fires(self, moment: Moment) -> bool:
        return self._condition.holds(moment) is not (self.action == "require")


def _listed(names: frozenset[Event] | frozenset[Action]) -> str:
    return ", ".join(sorted(names))


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the hooks of an event decide."""

    act: Act | None
    """The call, with what was rewritten of it."""
    says: tuple[str, ...] = ()
    """To be told to the model."""
    refusal: str | None = None
    """Why the message, the call or the end is refused."""
    stop: bool = False


@dataclass(slots=True)
class Watch:
    """The hooks in one rollout: what has been done so far, and how often each has fired."""

    hooks: Mapping[str, Hook]
    instruction: str
    max_turns: int
    counts: MutableMapping[str, int]
    """Where activations are counted, `hook/NAME`; every hook has its entry, also one that never fires."""
    past: list[Act] = field(default_factory=list[Act])
    fired: Counter[str] = field(default_factory=Counter[str])

    def __post_init__(self) -> None:
        for name in sorted(self.hooks):
            self.counts.setdefault(COUNT + name, 0)

    def consult(self, event: Event, turns: int, act: Act | None = None, **more: Any) -> Verdict:
        """Ask the hooks of an event after so many turns; `more` are further fields of the moment.

        Raises HarnessError where a condition or rewriter from outside the package fails.
        """
        says: list[str] = []
        for name, hook in self._awake(event):
            moment = Moment(self.instruction, turns, self.max_turns - turns, self.past, act, **more)
            if not _guarded(name, hook.fires, moment):
                continue
            if hook.rewriter and act:
                rewritten = _guarded(name, hook.rewriter.rewrite, act)
                if rewritten == act:
                    continue
                act = _checked(name, act, rewritten)
            self.fired[name] += 1
            self.counts[COUNT + name] += 1
            told = {"turn": turns, "turns_left": moment.turns_left, "tool": act.called if act else ""}
            message = fill(hook.message, told)
            if hook.action == "stop":
                return Verdict(act, tuple(says), stop=True)
            if hook.action in ("block", "require"):
                return Verdict(act, tuple(says), refusal=message)
            says += [message] if message else []
        return Verdict(act, tuple(says))

    def _awake(self, event: Event) -> Iterator[tuple[str, Hook]]:
        for name, hook in sorted(self.hooks.items()):
            if hook.event == event and (hook.most is None or self.fired[name] < hook.most):
                yield name, hook


def _guarded(name: str, ask: Callable[[Any], Any], about: Moment | Act) -> Any:
    try:
        return ask(about)
    except Exception as error:  # whatever a condition of the user's raises
        raise HarnessError(f"hook {name} failed with {type(error).__name__}: {error}") from error


def _checked(name: str, before: Act, after: Act) -> Act:
    """Only arguments or output may change, and arguments keep their names and types."""
    kept = before.arguments.keys() == after.arguments.keys() and all(
        isinstance(after.arguments[key], type(value)) for key, value in before.arguments.items()
    )
    if not kept or replace(after, arguments=before.arguments, output=before.output) != before:
        raise HarnessError(f"hook {name}: its rewriter may change the values of arguments or the output, got {after}")
    return after
