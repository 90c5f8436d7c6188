"""When a hook fires: named, pure predicates with parameters.

Invariant: a condition is a function of the moment and its own fields, and of nothing else. Its docstring is what the
table of conditions says of it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from whippletree.harness.acts import (
    EVENTS,
    Act,
    Event,
    Moment,
    changes_in_place,
    looked_at,
    mentions,
    named_files,
    unread_writes,
    written,
)

Part = Literal["state", "message", "call", "observation"]
SEEN: Mapping[Part, frozenset[Event]] = {
    "state": frozenset(EVENTS),
    "message": frozenset({"after_model", "before_finish"}),
    "call": frozenset({"before_tool", "after_tool"}),
    "observation": frozenset({"after_tool"}),
}
"""The events at which there is something of each part to look at."""


def _compiles(pattern: str) -> str:
    try:
        re.compile(pattern)
    except re.error as error:
        raise ValueError(f"this is no regular expression: {error}") from None
    return pattern


Pattern = Annotated[str, Field(min_length=1), AfterValidator(_compiles)]
"""A regular expression that is searched for, without regard to case."""
Count = Annotated[int, Field(ge=1)]


def search(pattern: str, text: str) -> bool:
    return re.search(pattern, text, re.IGNORECASE | re.MULTILINE) is not None


class Condition(BaseModel):
    """What conditions are made of: the fields are their parameters."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    looks_at: ClassVar[Part] = "state"

    @property
    def events(self) -> frozenset[Event]:
        """Where it can be used."""
        return SEEN[self.looks_at]

    def holds(self, moment: Moment) -> bool:
        raise NotImplementedError


# ---- the state of the work --------------------------------------------------------------------------------------


class Always(Condition):
    """At every event."""

    def holds(self, moment: Moment) -> bool:
        return True


class TurnsLeft(Condition):
    """So few turns are left."""

    at_most: Annotated[int, Field(ge=0)] = 3

    def holds(self, moment: Moment) -> bool:
        return moment.turns_left <= self.at_most


class EveryTurns(Condition):
    """So many turns have passed, and again after as many more."""

    turns: Count = 5

    def holds(self, moment: Moment) -> bool:
        return moment.turns > 0 and moment.turns % self.turns == 0


class InstructionMatches(Condition):
    """The task's instruction matches."""

    pattern: Pattern

    def holds(self, moment: Moment) -> bool:
        return search(self.pattern, moment.instruction)


class NothingDone(Condition):
    """No tool call has succeeded yet."""

    def holds(self, moment: Moment) -> bool:
        return not any(act.status == "done" for act in moment.past)


class NothingWritten(Condition):
    """No call that succeeded has written a file."""

    def holds(self, moment: Moment) -> bool:
        return not any(act.status == "done" and written(act) for act in moment.past)


class UnreadWrite(Condition):
    """A file was written, and nothing has looked at it since."""

    def holds(self, moment: Moment) -> bool:
        return bool(unread_writes(moment.acts))


class NamedFileUntouched(Condition):
    """The instruction names a file that no call has named."""

    def holds(self, moment: Moment) -> bool:
        files = named_files(moment.instruction)
        return any(not any(mentions(act, file) for act in moment.acts) for file in files)


class HasDone(Condition):
    """So many calls have succeeded whose arguments match; of one canonical tool, where it is named."""

    pattern: Pattern
    tool: str = ""
    times: Count = 1

    def holds(self, moment: Moment) -> bool:
        done = [act for act in moment.past if act.status == "done" and self.tool in ("", act.tool)]
        return sum(search(self.pattern, act.words) for act in done) >= self.times


class RepeatedFailure(Condition):
    """The last calls, so many, have all failed or were refused."""

    times: Count = 2

    def holds(self, moment: Moment) -> bool:
        answered = [act for act in moment.acts if act.status != "asked"][-self.times :]
        return len(answered) == self.times and all(act.status != "done" for act in answered)


# ---- the assistant's message ------------------------------------------------------------------------------------


class MessageMatches(Condition):
    """The text of the message matches."""

    looks_at: ClassVar[Part] = "message"
    pattern: Pattern

    def holds(self, moment: Moment) -> bool:
        return moment.message is not None and search(self.pattern, moment.message.content)


class EmptyMessage(Condition):
    """The message has no text."""

    looks_at: ClassVar[Part] = "message"

    def holds(self, moment: Moment) -> bool:
        return moment.message is not None and not moment.message.content.strip()


class ManyCalls(Condition):
    """The message has more tool calls than this."""

    looks_at: ClassVar[Part] = "message"
    more_than: Count = 1

    def holds(self, moment: Moment) -> bool:
        return moment.message is not None and len(moment.message.tool_calls) > self.more_than


# ---- the call ---------------------------------------------------------------------------------------------------


class CallMatches(Condition):
    """The call's arguments match; of one canonical tool or argument, where they are named."""

    looks_at: ClassVar[Part] = "call"
    pattern: Pattern = "."
    tool: str = ""
    argument: str = ""

    def holds(self, moment: Moment) -> bool:
        act = moment.act
        if act is None or self.tool not in ("", act.tool):
            return False
        return search(self.pattern, str(act.arguments.get(self.argument, "")) if self.argument else act.words)


class RepeatedCall(Condition):
    """The same call, for the so manyth time in a row."""

    looks_at: ClassVar[Part] = "call"
    times: Annotated[int, Field(ge=2)] = 2

    def holds(self, moment: Moment) -> bool:
        last = moment.acts[-self.times :]
        calls = [(act.called, act.arguments) for act in last]
        return len(last) == self.times and all(call == calls[0] for call in calls)


class UnseenChange(Condition):
    """The call changes a part of a file that nothing has looked at or written before."""

    looks_at: ClassVar[Part] = "call"

    def holds(self, moment: Moment) -> bool:
        act = moment.act
        return act is not None and changes_in_place(act) and not all(_known(moment, path) for path in written(act))


def _known(moment: Moment, path: str) -> bool:
    return any(looked_at(act, path) or (act.status == "done" and path in written(act)) for act in moment.past)


class SchemaNotLookedUp(Condition):
    """The call uses what has a schema, and no call that succeeded has looked it up; the patterns say what is which."""

    looks_at: ClassVar[Part] = "call"
    use: Pattern = r"\b(select\b.*\bfrom|insert\s+into|update\b.*\bset|delete\s+from)\b"
    lookup: Pattern = (
        r"\.schema|\.tables|\bpragma\b|information_schema|sqlite_master|\bdescribe\b|\bshow\s+(tables|columns)"
    )

    def holds(self, moment: Moment) -> bool:
        act = moment.act
        if act is None or not search(self.use, act.words) or search(self.lookup, act.words):
            return False
        return not any(before.status == "done" and search(self.lookup, before.words) for before in moment.past)


# ---- the observation --------------------------------------------------------------------------------------------


class Observed(Condition):
    """What conditions on an observation share."""

    looks_at: ClassVar[Part] = "observation"

    def holds(self, moment: Moment) -> bool:
        return moment.act is not None and self.seen(moment.act, moment)

    def seen(self, act: Act, moment: Moment) -> bool:
        raise NotImplementedError


class PaginationPresent(Observed):
    """The output tells of further pages."""

    def seen(self, act: Act, moment: Moment) -> bool:
        return search(_PAGES, act.output)


_PAGES = (
    r"\b(next_?(page|cursor|token|link|url)|page_?(index|number|limit|size|token|count)|total_?(pages|count|results)|"
    r"has_?(more|next)|per_?page)\b|\bpage\s+\d+\s+(of|/)\s+\d+|rel=\"?next|--\s*more\s*--"
)


class OutputMatches(Observed):
    """The output matches."""

    pattern: Pattern

    def seen(self, act: Act, moment: Moment) -> bool:
        return search(self.pattern, act.output)


class ErrorInOutput(Observed):
    """The call failed or was refused, or its output reads like an error although it ended well."""

    pattern: Pattern = (
        r"^\s*\w*(error|exception)\b|\b(error|fatal):|traceback \(most recent|no such file|permission denied|"
        r"command not found|syntax error|\"?status(_code)?\"?\s*[:=]\s*\"?[45]\d\d\b"
    )

    def seen(self, act: Act, moment: Moment) -> bool:
        return act.status != "done" or search(self.pattern, act.output)


class EmptyOutput(Observed):
    """The call ran well and printed nothing."""

    def seen(self, act: Act, moment: Moment) -> bool:
        return act.status == "done" and not act.output.strip()


class LongOutput(Observed):
    """The output is longer than this, or was cut."""

    chars: Count = 4000

    def seen(self, act: Act, moment: Moment) -> bool:
        return act.truncated or len(act.output) > self.chars


class TimedOut(Observed):
    """The command ran out of time."""

    def seen(self, act: Act, moment: Moment) -> bool:
        return act.timed_out


class SameOutput(Observed):
    """The last calls, so many, printed the same, though they may differ."""

    times: Annotated[int, Field(ge=2)] = 3

    def seen(self, act: Act, moment: Moment) -> bool:
        last = moment.acts[-self.times :]
        return len(last) == self.times and all(before.output == act.output for before in last)


CONDITIONS: Mapping[str, type[Condition]] = {
    "always": Always,
    "turns_left": TurnsLeft,
    "every_turns": EveryTurns,
    "instruction_matches": InstructionMatches,
    "nothing_done": NothingDone,
    "nothing_written": NothingWritten,
    "unread_write": UnreadWrite,
    "named_file_untouched": NamedFileUntouched,
    "has_done": HasDone,
    "repeated_failure": RepeatedFailure,
    "message_matches": MessageMatches,
    "empty_message": EmptyMessage,
    "many_calls": ManyCalls,
    "call_matches": CallMatches,
    "repeated_call": RepeatedCall,
    "unseen_change": UnseenChange,
    "schema_not_looked_up": SchemaNotLookedUp,
    "pagination_present": PaginationPresent,
    "output_matches": OutputMatches,
    "error_in_output": ErrorInOutput,
    "empty_output": EmptyOutput,
    "long_output": LongOutput,
    "timed_out": TimedOut,
    "same_output": SameOutput,
}
"""What a condition is called -> what it is; `harness.named` joins them, and finds those of the user's own."""
