"""What calls said, as compressed JSON, and back.

Invariant: reading what was written gives an equal record. Tool lists are long and every call repeats them, so each
distinct one is written once, under the hash of its content.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any, NamedTuple

from whippletree.types import Exchange, Json, Message, ModelCall, Tool, ToolCall

Tools = tuple[Tool, ...]


class ToolList(NamedTuple):
    tools: Tools
    hash: bytes
    blob: bytes


def tool_lists(calls: Iterable[ModelCall]) -> list[ToolList]:
    """Each distinct tool list of the calls that is not empty, once."""
    found: list[ToolList] = []
    for call in calls:
        if call.exchange and call.exchange.tools and _find(found, call.exchange.tools) is None:
            tools = call.exchange.tools
            text = json.dumps([[tool.name, tool.description, tool.parameters] for tool in tools], default=dict).encode()
            found.append(ToolList(tools, hashlib.blake2b(text, digest_size=16).digest(), zlib.compress(text)))
    return found


def hash_among(lists: Iterable[ToolList], call: ModelCall) -> bytes | None:
    """Of the call's tools; None where it has none."""
    found = _find(lists, call.exchange.tools) if call.exchange and call.exchange.tools else None
    return found.hash if found else None


def tools_of(blob: bytes) -> Tools:
    return tuple(Tool(*fields) for fields in json.loads(zlib.decompress(blob)))


def exchange_blob(exchange: Exchange) -> bytes:
    """All but the tools."""
    told = {
        "after": exchange.after,
        "messages": [asdict(message) for message in exchange.messages],
        "reply": asdict(exchange.reply),
        "asked": exchange.asked,
    }
    return zlib.compress(json.dumps(told, default=dict).encode())  # escapes keep lone surrogates, as UTF-8 cannot


def exchange_of(blob: bytes, tools: Tools) -> Exchange:
    told: dict[str, Json] = json.loads(zlib.decompress(blob))
    messages = tuple(map(_message, told["messages"]))
    return Exchange(told["after"], messages, _message(told["reply"]), tools, told["asked"])


def _message(told: dict[str, Any]) -> Message:
    calls: list[dict[str, str]] = told.pop("tool_calls")
    return Message(**told, tool_calls=tuple(ToolCall(**call) for call in calls))


def _find(lists: Iterable[ToolList], tools: Tools) -> ToolList | None:
    return next((known for known in lists if known.tools is tools or known.tools == tools), None)
