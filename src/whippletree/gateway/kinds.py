"""What each model call of a black-box rollout was for: main, sub-agent, compaction, side call, notification.

Invariant: the judgement is made once, over all calls of a rollout, from what the requests said; no order of arrival
and no timing counts. White-box harnesses name the kinds of their calls themselves.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from whippletree.types import CallKind


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of one call."""

    system: str
    """System messages before the first other message."""
    tools: tuple[str, ...]
    """Their names, in order."""
    last_user: str
    """Text of the last user message of the request."""
    headers: Mapping[str, str]
    """Of HTTP, names in lower case."""
    after: int | None
    """Index of the call whose reply the request continues."""
    after_final: bool = False
    """Whether that reply called no tool."""
    given: CallKind = "main"
    """The kind that the request named; anything but main stays."""


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


def classify(calls: Sequence[Facts], rules: Rules) -> list[CallKind]:
    """The kind of each call, in order."""
    signed = [_by_sign(call, rules) for call in calls]
    shapes = Counter((call.system, call.tools) for call, kind in zip(calls, signed, strict=True) if kind is None)
    if not shapes:
        return [kind or "main" for kind in signed]
    main = max(shapes, key=lambda shape: (bool(shape[1]), shapes[shape]))  # the first of equals
    return [kind or _by_shape(call, main, rules) for call, kind in zip(calls, signed, strict=True)]


def _by_sign(call: Facts, rules: Rules) -> CallKind | None:
    if call.given != "main":
        return call.given
    headers = "\n".join(f"{name}: {value}" for name, value in sorted(call.headers.items()))
    signs: tuple[tuple[CallKind, str, str], ...] = (
        ("compaction", rules.compaction_header, headers),
        ("compaction", rules.compaction_system, call.system),
        ("compaction", rules.compaction_user, call.last_user),
        ("subagent", rules.subagent_header, headers),
        ("subagent", rules.subagent_system, call.system),
        ("auxiliary", rules.auxiliary_header, headers),
        ("auxiliary", rules.auxiliary_system, call.system),
        ("auxiliary", rules.auxiliary_user, call.last_user),
        ("notification", rules.notification_user if call.after_final else "", call.last_user),
    )
    for kind, pattern, text in signs:
        if pattern and re.search(pattern, text):
            return kind
    return None


def _by_shape(call: Facts, main: tuple[str, tuple[str, ...]], rules: Rules) -> CallKind:
    if not rules.side_by_shape or (call.system, call.tools) == main:
        return "main"
    if not call.tools and main[1]:
        return "compaction" if call.system == main[0] and call.after is not None else "auxiliary"
    return "main" if call.system == main[0] else "subagent"
