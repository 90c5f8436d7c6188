"""What each model call of a black-box rollout was for: main, sub-agent, compaction, side call, notification.

Invariant: the judgement is made once, over all calls of a rollout, from what the requests said; no order of arrival
and no timing counts. White-box harnesses name the kinds of their calls themselves.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile

from whippletree.types import CallKind, Exchange, Message, ModelCall


@dataclass(frozen=True, slots=True)
class Rules:
    """Signs by which a harness's calls are known, as regular expressions; empty ones match nothing.

    `*_header` is searched in the lines `name: value` of the request's headers, the others in its texts.
    """

    subagent_header: str = ""
    subagent_system: str = ""
    compaction_header: str = ""
    compaction_system: str = ""
    compaction_user: str = ""
    auxiliary_header: str = ""
    auxiliary_system: str = ""
    auxiliary_user: str = ""
    notification_user: str = r"<(task|subagent)[-_]notification>"
    side_by_shape: bool = True
    """Whether a call that matches no sign, and has other tools or another system prompt than most calls with tools, is
    a side call: `subagent` with tools, `auxiliary` without, `compaction` where it continues a main call without them.
    """


@dataclass(frozen=True, slots=True)
class _Facts:
    """What is known of one call."""

    system: str
    """System messages before the first other message."""
    tools: tuple[str, ...]
    last_user: str
    """Text of the last user message of the request."""
    headers: str
    continues: bool
    """Whether the request continues the reply of another call."""
    after_final: bool
    """Whether that reply called no tool."""
    named: CallKind
    """The kind that the request itself named."""


def classify(calls: Sequence[ModelCall], rules: Rules) -> list[CallKind]:
    """The kind of each call of one rollout, in order. A kind other than main that a request named itself stays."""
    facts = _facts(calls)
    signed: list[CallKind | None] = [_by_sign(call, rules) for call in facts]
    shapes = Counter((call.system, call.tools) for call, kind in zip(facts, signed, strict=True) if kind is None)
    # Of the shapes the most frequent with tools; the first of equals.
    nothing: tuple[str, tuple[str, ...]] = ("", ())
    main = max(shapes, key=lambda shape: (bool(shape[1]), shapes[shape]), default=nothing)
    return [_by_shape(call, main, rules) if kind is None else kind for call, kind in zip(facts, signed, strict=True)]


def _facts(calls: Sequence[ModelCall]) -> list[_Facts]:
    found: dict[int, _Facts] = {}
    replies: dict[int, Message] = {}
    for call in sorted(calls, key=lambda call: call.index):
        said = call.exchange or Exchange(None, (), Message("assistant", ""))
        before = None if said.after is None else found.get(said.after)
        texts = [message.content for message in said.messages if message.role == "user"]
        headers: Mapping[str, str] = said.asked.get("headers", {})
        found[call.index] = _Facts(
            system=before.system if before else _system(said.messages),
            tools=tuple(tool.name for tool in said.tools),
            last_user=texts[-1] if texts else before.last_user if before else "",
            headers="\n".join(f"{name}: {value}" for name, value in sorted(headers.items())),
            continues=said.after is not None,
            after_final=said.after in replies and not replies[said.after].tool_calls,
            named=call.kind,
        )
        replies[call.index] = said.reply
    return [found[call.index] for call in calls]


def _system(messages: Sequence[Message]) -> str:
    leading = takewhile(lambda message: message.role == "system", messages)
    return "\n".join(message.content for message in leading)


def _by_sign(call: _Facts, rules: Rules) -> CallKind | None:
    if call.named != "main":
        return call.named
    signs: tuple[tuple[CallKind, str, str], ...] = (
        ("compaction", rules.compaction_header, call.headers),
        ("compaction", rules.compaction_system, call.system),
        ("compaction", rules.compaction_user, call.last_user),
        ("subagent", rules.subagent_header, call.headers),
        ("subagent", rules.subagent_system, call.system),
        ("auxiliary", rules.auxiliary_header, call.headers),
        ("auxiliary", rules.auxiliary_system, call.system),
        ("auxiliary", rules.auxiliary_user, call.last_user),
        ("notification", rules.notification_user if call.after_final else "", call.last_user),
    )
    for kind, pattern, text in signs:
        if pattern and re.search(pattern, text):
            return kind
    return None


def _by_shape(call: _Facts, main: tuple[str, tuple[str, ...]], rules: Rules) -> CallKind:
    if not rules.side_by_shape or (call.system, call.tools) == main:
        return "main"
    if not call.tools and main[1]:
        return "compaction" if call.system == main[0] and call.continues else "auxiliary"
    return "main" if call.system == main[0] else "subagent"
