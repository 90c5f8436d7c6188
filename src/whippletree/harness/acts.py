"""What an agent has done so far, as the conditions of hooks see it.

Invariant: everything is in the harness's own terms (canonical tools, raw output), so that a condition means the same
under every tool interface and observation format. Which files a shell command writes is read from its words: a good
guess, and no more.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

from whippletree.types import Json, Message, StopReason

Event = Literal[
    "session_start", "before_model", "after_model", "before_tool", "after_tool", "before_finish", "session_end"
]
EVENTS: tuple[Event, ...] = get_args(Event)
Status = Literal["asked", "done", "failed", "refused"]
"""Not run yet; run with exit code 0; run with another; answered without having been run."""


@dataclass(frozen=True, slots=True)
class Act:
    """One tool call, with its answer once there is one."""

    called: str
    """The tool's name as the model knows it."""
    tool: str
    """The canonical tool; the called name where it stands for none."""
    arguments: Mapping[str, Json] = field(default_factory=dict[str, Json])
    """Under their canonical names; empty where the call was not understood."""
    status: Status = "asked"
    output: str = ""
    timed_out: bool = False
    truncated: bool = False

    @property
    def ran(self) -> bool:
        return self.status in ("done", "failed")

    @property
    def words(self) -> str:
        """All arguments that are text, one after the other."""
        return "\n".join(value for value in self.arguments.values() if isinstance(value, str))


@dataclass(frozen=True, slots=True)
class Moment:
    """What a condition may look at."""

    instruction: str
    """Of the task."""
    turns: int
    """Assistant messages so far."""
    turns_left: int
    past: Sequence[Act] = ()
    """Calls that have been answered, oldest first."""
    act: Act | None = None
    """The call that is about to be run, or whose answer is about to be shown."""
    message: Message | None = None
    """The assistant message that has come, or that would end the work."""
    stop_reason: StopReason | None = None
    """Why it ended, at the session's end."""

    @property
    def acts(self) -> tuple[Act, ...]:
        """All calls, with the present one."""
        return (*self.past, *([self.act] if self.act else []))


# ---- files ------------------------------------------------------------------------------------------------------

_HEREDOC = re.compile(r"(<<-?\s*)(['\"]?)(\w+)\2([^\n]*)\n[\s\S]*?\n\s*\3\b")
_QUOTED = re.compile(r"(>\s*)?('[^']*'|\"[^\"]*\")")
_WORD = r"([^\s;|&<>()]+)"
_WRITES = (
    re.compile(r"(?<![&<])>{1,2}\s*" + _WORD),
    re.compile(r"\btee\s+(?:-\w+\s+)*" + _WORD),
    re.compile(r"\bsed\s+(?:-\w+\s+)*(?:-\w*i\w*|--in-place\S*)\s[^;|&\n]*?" + _WORD + r"\s*(?=$|[;|&\n])"),
    re.compile(r"\b(?:cp|mv)\s+(?:-\w+\s+)*[^\s;|&<>()]+\s+" + _WORD + r"\s*(?=$|[;|&\n])"),
)
_EDITS = frozenset({"create", "str_replace", "insert"})
_NAMED = re.compile(r"(?<![\w/.-])[\w./-]*\w\.[A-Za-z]\w{1,4}\b")


def named_files(text: str) -> tuple[str, ...]:
    """Words of a text that look like a file with a suffix, each once."""
    return tuple(dict.fromkeys(_normal(word) for word in _NAMED.findall(text)))


def written(act: Act) -> tuple[str, ...]:
    """Paths that a call writes to, relative to the workspace."""
    if act.tool == "file_editor":
        return (_normal(str(act.arguments["path"])),) if act.arguments.get("command") in _EDITS else ()
    return tuple(dict.fromkeys(path for path, _ in _shell_writes(str(act.arguments.get("command", "")))))


def changes_in_place(act: Act) -> bool:
    """Whether a call changes a part of a file that is there."""
    if act.tool == "file_editor":
        return act.arguments.get("command") in ("str_replace", "insert")
    return bool(_WRITES[2].search(_bare(str(act.arguments.get("command", "")))))


def mentions(act: Act, path: str) -> bool:
    """Whether a call names a file, by its path or its last part."""
    return re.search(rf"(?<![\w.-]){re.escape(posixpath.basename(path))}(?![\w-])", act.words) is not None


def looked_at(act: Act, path: str) -> bool:
    """Whether a call has run that names a file and does not end with writing it."""
    if not act.ran or not mentions(act, path):
        return False
    if path not in written(act):
        return True
    if act.tool == "file_editor":
        return False
    command = _bare(str(act.arguments["command"]))
    end = max(end for written_path, end in _shell_writes(command) if written_path == path)
    return posixpath.basename(path) in command[end:]


def unread_writes(acts: Sequence[Act]) -> tuple[str, ...]:
    """Files that no call has looked at since they were last written."""
    pending: dict[str, None] = {}
    for act in acts:
        if act.status == "done":
            pending |= dict.fromkeys(written(act))
        for path in [path for path in pending if looked_at(act, path)]:
            del pending[path]
    return tuple(pending)


def _shell_writes(command: str) -> Iterator[tuple[str, int]]:
    """Paths that a command writes to, each with where it ends in the bare command."""
    bare = _bare(command)
    for pattern in _WRITES:
        for match in pattern.finditer(bare):
            path = _normal(match[1])
            if path and not path.startswith("/dev/"):
                yield path, match.end(1)


def _bare(command: str) -> str:
    """A command without the bodies of here-documents and quoted texts; a quoted target of `>` loses its quotes."""
    command = _HEREDOC.sub(r"\1\3\4", command)
    return _QUOTED.sub(lambda match: match[1] + match[2][1:-1] if match[1] else "_", command)


def _normal(path: str) -> str:
    return posixpath.normpath(path).removeprefix("/workspace/") if path else ""
