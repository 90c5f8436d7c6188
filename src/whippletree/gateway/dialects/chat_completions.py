"""OpenAI Chat Completions: `POST /v1/chat/completions`, the protocol that most harnesses speak.

Invariant: an item is a message of the body, and makes exactly one message.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from whippletree.gateway.dialects.base import (
    DialectError,
    Wishes,
    ascii_json,
    count_of,
    flag_of,
    list_of,
    object_of,
    shown,
    text_of,
    texts_of,
)
from whippletree.gateway.dialects.openai import KEEP_ALIVE, asked, content_text, error_body, function_tool, late_error
from whippletree.types import Completion, Json, Message, Tool, ToolCall

_ASKED = (
    "model",
    "temperature",
    "top_p",
    "top_k",
    "min_p",
    "frequency_penalty",
    "presence_penalty",
    "repetition_penalty",
    "logit_bias",
    "logprobs",
    "top_logprobs",
    "seed",
    "tool_choice",
    "parallel_tool_calls",
    "response_format",
    "reasoning_effort",
    "verbosity",
    "chat_template_kwargs",
)


class ChatCompletions:
    name = "chat_completions"
    keep_alive = KEEP_ALIVE

    def items(self, body: Mapping[str, Json]) -> list[Json]:
        messages = list_of(body.get("messages"), "messages")
        if not messages:
            raise DialectError("messages must hold at least one message, got none")
        return messages

    def read(self, items: Sequence[Json], start: int) -> Iterator[tuple[Message, int]]:
        for index in range(start, len(items)):
            yield _message(items[index], f"messages[{index}]"), index + 1

    def raw_tools(self, body: Mapping[str, Json]) -> Json:
        return body.get("tools")

    def tools(self, raw: Json) -> tuple[Tool, ...]:
        """Raises DialectError for every kind of tool but functions: none of the others can be left to the server."""
        found: list[Tool] = []
        for i, each in enumerate(list_of(raw, "tools") if raw is not None else ()):
            where = f"tools[{i}]"
            tool = object_of(each, where)
            if tool.get("type") != "function":
                raise DialectError(f"{where}.type must be 'function', got {shown(tool.get('type'))}; offer functions")
            function = object_of(tool.get("function"), f"{where}.function")
            name = text_of(function.get("name"), f"{where}.function.name")
            found.append(function_tool(function, name, f"{where}.function"))
        return tuple(found)

    def wishes(self, body: Mapping[str, Json]) -> Wishes:
        if body.get("functions"):
            raise DialectError("functions are the retired form and are not read; send them as tools")
        if body.get("n") not in (None, 1):
            raise DialectError(f"n must be 1, got {shown(body['n'])}; send one request for each reply")
        options = body.get("stream_options")
        options = object_of({} if options is None else options, "stream_options")
        limit = count_of(body.get("max_completion_tokens"), "max_completion_tokens")
        stop = body.get("stop")
        return Wishes(
            model=text_of(body.get("model", ""), "model"),
            stream=flag_of(body.get("stream"), "stream"),
            max_tokens=count_of(body.get("max_tokens"), "max_tokens") if limit is None else limit,
            stop=(stop,) if isinstance(stop, str) else texts_of(stop, "stop"),
            asked=asked(body, _ASKED),
            extra={"usage": flag_of(options.get("include_usage"), "stream_options.include_usage")},
        )

    def reply(self, wishes: Wishes, completion: Completion, id: str) -> Json:
        said = completion.message
        message: dict[str, Json] = {"role": "assistant", "content": said.content, "refusal": None}
        if said.reasoning:
            message["reasoning_content"] = said.reasoning
        if said.tool_calls:
            message["content"] = said.content or None
            message["tool_calls"] = [_written(call) for call in said.tool_calls]
        choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": completion.finish_reason}
        return {**_head(wishes, id, "chat.completion"), "choices": [choice], "usage": _usage(completion)}

    def events(self, wishes: Wishes, completion: Completion, id: str) -> Iterator[bytes]:
        head = _head(wishes, id, "chat.completion.chunk")
        for delta in _deltas(completion.message):
            yield _frame({**head, "choices": [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": None}]})
        end: Json = {"index": 0, "delta": {}, "logprobs": None, "finish_reason": completion.finish_reason}
        yield _frame({**head, "choices": [end]})
        if wishes.extra.get("usage"):
            yield _frame({**head, "choices": [], "usage": _usage(completion)})
        yield b"data: [DONE]\n\n"

    def error(self, status: int, problem: str) -> Json:
        return error_body(status, problem)

    def error_event(self, problem: str) -> bytes:
        return _frame(late_error(problem))


# ---- reading -----------------------------------------------------------------------------------------------------


def _message(item: Json, where: str) -> Message:
    told = object_of(item, where)
    role, content = told.get("role"), told.get("content")
    match role:
        case "assistant":
            return _assistant(told, where)
        case "tool":
            call = text_of(told.get("tool_call_id"), f"{where}.tool_call_id")
            return Message("tool", content_text(content, f"{where}.content"), tool_call_id=call)
        case "user":
            return Message("user", content_text(content, f"{where}.content"))
        case "system" | "developer":
            return Message("system", content_text(content, f"{where}.content"))
        case _:
            expected = "system, developer, user, assistant or tool"
            raise DialectError(f"{where}.role must be {expected}, got {shown(role)}")


def _assistant(told: Mapping[str, Json], where: str) -> Message:
    if told.get("function_call") is not None:
        raise DialectError(f"{where}.function_call is the retired form and is not read; send tool_calls")
    content, calls = told.get("content"), told.get("tool_calls")
    reasoning = told.get("reasoning_content")
    if reasoning is None:  # the name that some servers and harnesses have for it
        reasoning = told.get("reasoning")
    calls = () if calls is None else list_of(calls, f"{where}.tool_calls")
    return Message(
        "assistant",
        "" if content is None else content_text(content, f"{where}.content"),
        tuple(_call(call, f"{where}.tool_calls[{i}]") for i, call in enumerate(calls)),
        reasoning="" if reasoning is None else text_of(reasoning, f"{where}.reasoning_content"),
    )


def _call(item: Json, where: str) -> ToolCall:
    told = object_of(item, where)
    if told.get("type", "function") != "function":
        raise DialectError(f"{where}.type must be 'function', got {shown(told['type'])}")
    function = object_of(told.get("function"), f"{where}.function")
    return ToolCall(
        text_of(told.get("id"), f"{where}.id"),
        text_of(function.get("name"), f"{where}.function.name"),
        text_of(function.get("arguments"), f"{where}.function.arguments"),
    )


# ---- writing -----------------------------------------------------------------------------------------------------


def _head(wishes: Wishes, id: str, kind: str) -> dict[str, Json]:
    return {"id": f"chatcmpl-{id}", "object": kind, "created": 0, "model": wishes.model}


def _deltas(said: Message) -> Iterator[dict[str, Json]]:
    yield {"role": "assistant", "content": ""}
    if said.reasoning:
        yield {"reasoning_content": said.reasoning}
    if said.content:
        yield {"content": said.content}
    for index, call in enumerate(said.tool_calls):
        yield {"tool_calls": [{"index": index, **_written(call)}]}


def _written(call: ToolCall) -> dict[str, Json]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def _usage(completion: Completion) -> dict[str, Json]:
    prompt, sampled = len(completion.prompt_ids), len(completion.completion_ids)
    return {
        "prompt_tokens": prompt,
        "completion_tokens": sampled,
        "total_tokens": prompt + sampled,
        "prompt_tokens_details": {"cached_tokens": completion.cached_tokens},
    }


def _frame(chunk: Json) -> bytes:
    return f"data: {ascii_json(chunk)}\n\n".encode()
