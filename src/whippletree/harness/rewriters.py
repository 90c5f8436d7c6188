"""What a hook makes of a call's arguments or of an observation: named, pure functions with parameters.

Invariant: a rewriter is a function of the call and its own fields. One of `before_tool` changes arguments alone, one of
`after_tool` the output alone; exit codes stay what they were.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, ClassVar

from pydantic import BaseModel, ConfigDict, Field, model_validator

from whippletree.harness.acts import Act, Event
from whippletree.harness.conditions import Count, Pattern
from whippletree.types import Json


class Rewriter(BaseModel):
    """What rewriters are made of: the fields are their parameters."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    event: ClassVar[Event] = "after_tool"

    def rewrite(self, act: Act) -> Act:
        """The call with other arguments, or another output."""
        raise NotImplementedError


class _Output(Rewriter):
    def rewrite(self, act: Act) -> Act:
        return replace(act, output=self.text(act.output))

    def text(self, output: str) -> str:
        raise NotImplementedError


class _Arguments(Rewriter):
    """Changes arguments that are text; of one canonical tool or argument, where they are named."""

    event: ClassVar[Event] = "before_tool"
    tool: str = ""
    argument: str = ""

    def rewrite(self, act: Act) -> Act:
        if self.tool not in ("", act.tool):
            return act
        changed: dict[str, Json] = {
            name: self.text(value) if isinstance(value, str) and self.argument in ("", name) else value
            for name, value in act.arguments.items()
        }
        return replace(act, arguments=changed)

    def text(self, value: str) -> str:
        raise NotImplementedError


def _substituted(pattern: str, by: str, text: str) -> str:
    return re.sub(pattern, by, text, flags=re.IGNORECASE | re.MULTILINE)


def _check_template(pattern: str, by: str) -> None:
    """Raises ValueError where `by` names a group that the pattern has not."""
    try:
        re.compile(f"{pattern}|").sub(by, "")
    except (re.error, IndexError) as error:
        raise ValueError(f"'{by}' cannot stand for '{pattern}': {error}") from None


class ReplaceInArguments(_Arguments):
    """Puts one text for each match of a pattern in the arguments."""

    pattern: Pattern
    by: str

    @model_validator(mode="after")
    def _check(self) -> ReplaceInArguments:
        _check_template(self.pattern, self.by)
        return self

    def text(self, value: str) -> str:
        return _substituted(self.pattern, self.by, value)


class WrapCommand(Rewriter):
    """Puts text before and after a shell command."""

    event: ClassVar[Event] = "before_tool"
    before: str = ""
    after: str = ""

    def rewrite(self, act: Act) -> Act:
        if act.tool != "execute_bash":
            return act
        return replace(
            act, arguments={**act.arguments, "command": f"{self.before}{act.arguments['command']}{self.after}"}
        )


class StripFences(_Arguments):
    """Takes away the lines of a code fence around a whole argument."""

    def text(self, value: str) -> str:
        match = re.fullmatch(r"\s*```[\w+-]*\n(.*?)\n?```\s*", value, re.DOTALL)
        return match[1] if match else value


class KeepEnds(_Output):
    """Keeps the beginning and the end of a long output, and says how much is left out."""

    head_chars: Count = 2000
    tail_chars: Annotated[int, Field(ge=0)] = 1000
    mark: str = "\n... {left_out} characters left out ...\n"

    def text(self, output: str) -> str:
        left_out = len(output) - self.head_chars - self.tail_chars
        mark = self.mark.replace("{left_out}", str(left_out))
        if left_out <= len(mark):
            return output
        return output[: self.head_chars] + mark + output[len(output) - self.tail_chars :]


class KeepLines(_Output):
    """Keeps the lines that match; the whole output where none does."""

    pattern: Pattern

    def text(self, output: str) -> str:
        kept = [line for line in output.splitlines() if re.search(self.pattern, line, re.IGNORECASE)]
        return "\n".join(kept) if kept else output


class DropLines(_Output):
    """Drops the lines that match."""

    pattern: Pattern

    def text(self, output: str) -> str:
        return "\n".join(line for line in output.splitlines() if not re.search(self.pattern, line, re.IGNORECASE))


class ReplaceInOutput(_Output):
    """Puts one text for each match of a pattern in the output."""

    pattern: Pattern
    by: str

    @model_validator(mode="after")
    def _check(self) -> ReplaceInOutput:
        _check_template(self.pattern, self.by)
        return self

    def text(self, output: str) -> str:
        return _substituted(self.pattern, self.by, output)


class StripTerminalCodes(_Output):
    """Takes away colours, cursor movements and what a carriage return has overwritten."""

    def text(self, output: str) -> str:
        plain = re.sub(r"\x1b(\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\))", "", output)
        return re.sub(r"[^\n]*\r(?!\n|$)", "", plain)


class NumberLines(_Output):
    """Numbers the lines of the output from 1."""

    def text(self, output: str) -> str:
        return "\n".join(f"{number}\t{line}" for number, line in enumerate(output.splitlines(), start=1))


class AppendToOutput(_Output):
    """Adds a last line to the output."""

    line: str

    def text(self, output: str) -> str:
        return f"{output.rstrip()}\n{self.line}".lstrip("\n")


REWRITERS: Mapping[str, type[Rewriter]] = {
    "replace_in_arguments": ReplaceInArguments,
    "wrap_command": WrapCommand,
    "strip_fences": StripFences,
    "keep_ends": KeepEnds,
    "keep_lines": KeepLines,
    "drop_lines": DropLines,
    "replace_in_output": ReplaceInOutput,
    "strip_terminal_codes": StripTerminalCodes,
    "number_lines": NumberLines,
    "append_to_output": AppendToOutput,
}
