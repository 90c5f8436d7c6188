"""Anthropic Messages: `POST /v1/messages`, as claude-code and the SDKs speak it.

Invariant: an item is a system text, a message, or one tool result of a user message, so that each makes one message at
most. `cache_control` and the billing header change from call to call and are nothing to the model: both are left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import cast

from whippletree.gateway.dialects.base import (
    CONTEXT_LENGTH,
    DialectError,
    Wishes,
    arguments_object,
    arguments_text,
    ascii_json,
    count_of,
    flag_of,
    json_of,
    list_of,
    object_of,
    shown,
    text_of,
    texts_of,
    unparsed,
)
from whippletree.types import Completion, Json, Message, Tool, ToolCall

_BILLING = "x-anthropic-billing-header:"
_ASKED = (
    "model",
    "max_tokens",
    "stop_sequences",
    "temperature",
    "top_p",
    "top_k",
    "thinking",
    "output_config",
    "output_format",
    "tool_choice",
    "context_management",
    "speed",
)
_STOP_REASONS = {"stop": "end_turn", "tool_calls": "tool_use", "length": "max_tokens"}
_ERRORS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    504: "timeout_error",
    529: "overloaded_error",
}


class Messages:
    name = "messages"
    keep_alive = b'event: ping\ndata: {"type":"ping"}\n\n'

    def items(self, body: Mapping[str, Json]) -> list[Json]:
        """Triples of the message's number (-1: `system`), a role, and content (of `tool`: the tool_result block)."""
        system = body.get("system")
        found: list[Json] = [] if system is None else [(-1, "system", system)]
        messages = list_of(body.get("messages"), "messages")
        if not messages:
            raise DialectError("messages must hold at least one message, got none")
        for number, message in enumerate(messages):
            told = object_of(message, f"messages[{number}]")
            role, content = told.get("role"), told.get("content")
            if role == "user" and isinstance(content, list):
                found += _user_items(number, content)  # pyright: ignore[reportUnknownArgumentType]
            elif role in ("user", "assistant", "system"):
                found.append((number, role, content))
            else:
                raise DialectError(f"messages[{number}].role must be user, assistant or system, got {shown(role)}")
        return found

    def read(self, items: Sequence[Json], start: int) -> Iterator[tuple[Message, int]]:
        place = start
        while place < len(items):
            number, role, content = items[place]
            where = "system" if number < 0 else f"messages[{number}].content"
            place += 1
            if role == "assistant":
                turn = _Turn()
                turn.add(content, where)
                while place < len(items) and items[place][1] == "assistant":
                    number, _, content = items[place]
                    turn.add(content, f"messages[{number}].content")
                    place += 1
                yield turn.message(), place
            elif role == "tool":
                call = text_of(content.get("tool_use_id"), f"{where}: tool_use_id of a tool_result")
                told = content.get("content")
                yield Message("tool", "" if told is None else _text(told, where), tool_call_id=call), place
            elif role == "user":
                yield Message("user", _text(content, where)), place
            elif text := _text(content, where, billed=True):
                yield Message("system", text), place

    def raw_tools(self, body: Mapping[str, Json]) -> Json:
        return body.get("tools")

    def tools(self, raw: Json) -> tuple[Tool, ...]:
        """Tools whose loading is deferred are left out too."""
        found: list[Tool] = []
        for i, each in enumerate(list_of(raw, "tools") if raw is not None else ()):
            tool = object_of(each, f"tools[{i}]")
            schema = tool.get("input_schema")
            if schema is None or tool.get("defer_loading") is True:
                continue
            name = text_of(tool.get("name"), f"tools[{i}].name")
            description = text_of(tool.get("description") or "", f"tools[{i}].description")
            where = f"tools[{i}].input_schema"
            found.append(Tool(name, description, object_of(json_of(schema, where), where)))
        return tuple(found)

    def wishes(self, body: Mapping[str, Json]) -> Wishes:
        return Wishes(
            model=text_of(body.get("model") or "", "model"),
            stream=flag_of(body.get("stream"), "stream"),
            max_tokens=count_of(body.get("max_tokens"), "max_tokens"),
            stop=texts_of(body.get("stop_sequences"), "stop_sequences"),
            asked={name: json_of(body[name], name) for name in _ASKED if name in body},
        )

    def reply(self, wishes: Wishes, completion: Completion, id: str) -> Json:
        told = _opening(wishes, completion, id)
        told["content"] = [block for block, _ in _blocks(completion.message, id)]
        told |= _ending(completion)
        told["usage"]["output_tokens"] = len(completion.completion_ids)
        return told

    def events(self, wishes: Wishes, completion: Completion, id: str) -> Iterator[bytes]:
        yield _event("message_start", message=_opening(wishes, completion, id))
        for index, (block, deltas) in enumerate(_blocks(completion.message, id)):
            yield _event("content_block_start", index=index, content_block={**block, **_EMPTY[block["type"]]})
            for delta in deltas:
                yield _event("content_block_delta", index=index, delta=delta)
            yield _event("content_block_stop", index=index)
        usage = _usage(completion, len(completion.completion_ids))
        stop = _ending(completion)
        yield _event("message_delta", delta=stop, usage=usage)
        yield _event("message_stop")

    def error(self, status: int, problem: str) -> Json:
        # This protocol's own words for a context that overflows are those of CONTEXT_LENGTH.
        kind = _ERRORS.get(status, "invalid_request_error" if status < 500 else "api_error")
        return {"type": "error", "error": {"type": kind, "message": problem}}

    def error_event(self, problem: str) -> bytes:
        return _event("error", error=self.error(400 if problem.startswith(CONTEXT_LENGTH) else 500, problem)["error"])


def count_tokens_reply(num_tokens: int) -> Json:
    """The reply of `/v1/messages/count_tokens`."""
    return {"input_tokens": num_tokens}


# ---- reading -----------------------------------------------------------------------------------------------------


def _user_items(number: int, content: list[Json]) -> list[Json]:
    """Results of tools come before the rest: they answer what was said last."""
    found: list[Json] = [(number, "tool", block) for block in content if _is_result(block)]
    if not found:
        return [(number, "user", content)]
    rest = [block for block in content if not _is_result(block)]
    return [*found, (number, "user", rest)] if rest else found


def _is_result(block: Json) -> bool:
    return isinstance(block, dict) and cast(dict[str, Json], block).get("type") == "tool_result"


def _text(content: Json, where: str, *, billed: bool = False) -> str:
    """Text of a string or of blocks, one to a line; `billed` text may have the billing header in front."""
    if isinstance(content, str):
        return _unbilled(content) if billed else content
    texts = [_block_text(object_of(each, f"{where}[{i}]"), f"{where}[{i}]") for i, each in _blocks_of(content, where)]
    return "\n".join(text for text in map(_unbilled, texts) if text) if billed else "\n".join(texts)


def _unbilled(text: str) -> str:
    return text.partition("\n")[2] if text.startswith(_BILLING) else text


def _blocks_of(content: Json, where: str) -> enumerate[Json]:
    if not isinstance(content, list):
        raise DialectError(f"{where} must be a string or a list of blocks, got {shown(content)}")
    return enumerate(content)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]


def _block_text(block: Mapping[str, Json], where: str) -> str:
    kind = text_of(block.get("type"), f"{where}.type")
    return text_of(block.get("text"), f"{where}.text") if kind == "text" else f"[{kind}]"


class _Turn:
    """An assistant turn that is being read."""

    __slots__ = ("calls", "reasoning", "text")

    def __init__(self) -> None:
        self.text = self.reasoning = ""
        self.calls: list[ToolCall] = []

    def add(self, content: Json, where: str) -> None:
        if isinstance(content, str):
            self.text += content
            return
        for i, each in _blocks_of(content, where):
            place = f"{where}[{i}]"
            block = object_of(each, place)
            match block.get("type"):
                case "tool_use":
                    arguments = arguments_text(block.get("input"), f"{place}.input")
                    name = text_of(block.get("name"), f"{place}.name")
                    self.calls.append(ToolCall(text_of(block.get("id"), f"{place}.id"), name, arguments))
                case "thinking":
                    self.reasoning += text_of(block.get("thinking"), f"{place}.thinking")
                case "redacted_thinking":
                    pass  # says nothing to anybody but the server that wrote it
                case _:
                    self.text += _block_text(block, place)

    def message(self) -> Message:
        return Message("assistant", self.text, tuple(self.calls), reasoning=self.reasoning)


# ---- writing -----------------------------------------------------------------------------------------------------

_EMPTY: dict[str, dict[str, Json]] = {
    "thinking": {"thinking": "", "signature": ""},
    "text": {"text": ""},
    "tool_use": {"input": {}},
}
"""What a block has at its start, by its type."""


def _blocks(message: Message, id: str) -> Iterator[tuple[dict[str, Json], tuple[Json, ...]]]:
    """The blocks of a reply, each with the deltas that fill it in a stream."""
    if message.reasoning:
        thought, signature = {"thinking": message.reasoning}, {"signature": id}
        deltas = ({"type": "thinking_delta", **thought}, {"type": "signature_delta", **signature})
        yield {"type": "thinking", **thought, **signature}, deltas
    if message.content:
        yield {"type": "text", "text": message.content}, ({"type": "text_delta", "text": message.content},)
    for call in message.tool_calls:
        arguments, text = arguments_object(call.arguments), call.arguments
        if arguments is None:
            arguments = unparsed(text)
            text = ascii_json(arguments)
        block = {"type": "tool_use", "id": call.id, "name": call.name, "input": arguments}
        yield block, ({"type": "input_json_delta", "partial_json": text},)


def _opening(wishes: Wishes, completion: Completion, id: str) -> dict[str, Json]:
    """The reply before anything is said."""
    return {
        "id": f"msg_{id}",
        "type": "message",
        "role": "assistant",
        "model": wishes.model,
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": _usage(completion, 0),
    }


def _usage(completion: Completion, output_tokens: int) -> dict[str, int]:
    cached = completion.cached_tokens
    return {
        "input_tokens": len(completion.prompt_ids) - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": output_tokens,
    }


def _event(kind: str, **fields: Json) -> bytes:
    return f"event: {kind}\ndata: {ascii_json({'type': kind, **fields})}\n\n".encode()


def _ending(completion: Completion) -> dict[str, Json]:
    if completion.stop is not None and completion.finish_reason == "stop":
        return {"stop_reason": "stop_sequence", "stop_sequence": completion.stop}
    return {"stop_reason": _STOP_REASONS[completion.finish_reason], "stop_sequence": None}
