"""Gemini: `generateContent` and `streamGenerateContent`, as gemini-cli and the SDKs speak it.

Invariant: an item is the instruction, a content, or one function response of a content, so that each makes one message
at most. The URL says which model and whether to stream; the server puts both into the body. Names of fields may be
written in camel case or in snake case, as the real service takes them.
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

_STATUSES = {
    400: "INVALID_ARGUMENT",
    401: "UNAUTHENTICATED",
    403: "PERMISSION_DENIED",
    404: "NOT_FOUND",
    429: "RESOURCE_EXHAUSTED",
    499: "CANCELLED",
    501: "UNIMPLEMENTED",
    503: "UNAVAILABLE",
    504: "DEADLINE_EXCEEDED",
}
_OVERFLOW = "The input token count exceeds the maximum number of tokens allowed"


class Gemini:
    name = "gemini"
    # Blank lines: Google's clients take a comment for data, and an empty chunk for an invalid turn.
    keep_alive = b"\n\n"

    def items(self, body: Mapping[str, Json]) -> list[Json]:
        """Triples of the content's number (-1: the instruction), a role, and parts (of `tool`: a functionResponse)."""
        system = _field(body, "systemInstruction", "system_instruction")
        found: list[Json] = [] if system is None else [(-1, "system", _parts(system, "systemInstruction"))]
        contents = list_of(body.get("contents"), "contents")
        if not contents:
            raise DialectError("contents must hold at least one content, got none")
        for number, content in enumerate(contents):
            where = f"contents[{number}]"
            role = object_of(content, where).get("role")
            parts = _parts(content, where)
            if role == "model":
                found.append((number, "model", parts))
            elif role in ("user", "function", None):
                found += _user_items(number, parts)
            else:
                raise DialectError(f"{where}.role must be user or model, got {shown(role)}")
        return found

    def read(self, items: Sequence[Json], start: int) -> Iterator[tuple[Message, int]]:
        place = start
        while place < len(items):
            number, role, parts = items[place]
            where = f"contents[{number}]"
            place += 1
            if role == "model":
                turn = _Turn()
                turn.add(parts, where)
                while place < len(items) and items[place][1] == "model":
                    number, _, parts = items[place]
                    turn.add(parts, f"contents[{number}]")
                    place += 1
                yield turn.message(), place
            elif role == "tool":
                yield _tool_message(object_of(parts, f"{where}: functionResponse"), where), place
            elif role == "user":
                yield Message("user", _text(parts, where)), place
            elif text := _text(parts, "systemInstruction"):
                yield Message("system", text), place

    def raw_tools(self, body: Mapping[str, Json]) -> Json:
        return body.get("tools")

    def tools(self, raw: Json) -> tuple[Tool, ...]:
        found: list[Tool] = []
        for i, each in enumerate(list_of(raw, "tools") if raw is not None else ()):
            declared = _field(object_of(each, f"tools[{i}]"), "functionDeclarations", "function_declarations")
            if declared is not None:
                where = f"tools[{i}].functionDeclarations"
                found += [_tool(tool, f"{where}[{j}]") for j, tool in enumerate(list_of(declared, where))]
        return tuple(found)

    def wishes(self, body: Mapping[str, Json]) -> Wishes:
        given = _field(body, "generationConfig", "generation_config")
        config = object_of({} if given is None else json_of(given, "generationConfig"), "generationConfig")
        choice = json_of(_field(body, "toolConfig", "tool_config"), "toolConfig")
        model = text_of(body.get("model") or "", "model")
        limit = _field(config, "maxOutputTokens", "max_output_tokens")
        stop = _field(config, "stopSequences", "stop_sequences")
        return Wishes(
            model=model,
            stream=flag_of(body.get("stream"), "stream"),
            max_tokens=count_of(limit, "generationConfig.maxOutputTokens"),
            stop=texts_of(stop, "generationConfig.stopSequences"),
            asked={**config, **({} if choice is None else {"toolConfig": choice}), "model": model},
        )

    def reply(self, wishes: Wishes, completion: Completion, id: str) -> Json:
        return _chunk(wishes, id, list(_reply_parts(completion.message)), completion)

    def events(self, wishes: Wishes, completion: Completion, id: str) -> Iterator[bytes]:
        for chunk in chunks(wishes, completion, id):
            yield f"data: {ascii_json(chunk)}\n\n".encode()

    def error(self, status: int, problem: str) -> Json:
        if status == 400 and problem.startswith(CONTEXT_LENGTH):
            problem = _OVERFLOW + problem.removeprefix(CONTEXT_LENGTH)
        name = _STATUSES.get(status, "INVALID_ARGUMENT" if status < 500 else "INTERNAL")
        return {"error": {"code": status, "message": problem, "status": name}}

    def error_event(self, problem: str) -> bytes:
        # The bare body: in it all of Google's clients find the error, in an event not all of them do.
        return ascii_json(self.error(400 if problem.startswith(CONTEXT_LENGTH) else 500, problem)).encode()


def chunks(wishes: Wishes, completion: Completion, id: str) -> list[Json]:
    """The reply part by part. As one JSON list it answers `streamGenerateContent` without `alt=sse`."""
    parts = list(_reply_parts(completion.message))
    return [*(_chunk(wishes, id, [part]) for part in parts[:-1]), _chunk(wishes, id, parts[-1:], completion)]


# ---- reading -----------------------------------------------------------------------------------------------------


def _field(told: Mapping[str, Json], camel: str, snake: str) -> Json:
    found = told.get(camel)
    return told.get(snake) if found is None else found


def _parts(content: Json, where: str) -> list[Json]:
    if where == "systemInstruction" and isinstance(content, str):
        return [{"text": content}]
    parts = object_of(content, where).get("parts")
    return [] if parts is None else list_of(parts, f"{where}.parts")


def _user_items(number: int, parts: list[Json]) -> list[Json]:
    """Results of tools come before the rest: they answer what was said last."""
    results = [_response_of(part) for part in parts]
    found: list[Json] = [(number, "tool", result) for result in results if result is not None]
    if not found:
        return [(number, "user", parts)]
    rest = [part for part, result in zip(parts, results, strict=True) if result is None]
    return [*found, (number, "user", rest)] if rest else found


def _response_of(part: Json) -> Json:
    if not isinstance(part, dict):
        return None
    return _field(part, "functionResponse", "function_response")  # pyright: ignore[reportUnknownArgumentType]


def _text(parts: list[Json], where: str) -> str:
    """Text of parts, one to a line."""
    texts = [_part_text(object_of(each, f"{where}.parts[{i}]"), f"{where}.parts[{i}]") for i, each in enumerate(parts)]
    return "\n".join(text for text in texts if text is not None)


_NAMED = (
    "functionCall",
    "functionResponse",
    "executableCode",
    "codeExecutionResult",
    "toolCall",
    "toolResponse",
)
"""What else a part may hold."""


def _part_text(part: Mapping[str, Json], where: str) -> str | None:
    """None where the part holds nothing but notes, such as a signature."""
    text = part.get("text")
    if text is not None:
        return text_of(text, f"{where}.text")
    for name, snake in (("inlineData", "inline_data"), ("fileData", "file_data")):
        file = _field(part, name, snake)
        if file is not None:
            mime = _field(object_of(file, f"{where}.{name}"), "mimeType", "mime_type")
            kind = text_of(mime or "", f"{where}.{name}.mimeType").partition("/")[0]
            return f"[{kind}]" if kind in ("image", "audio", "video") else "[file]"
    return next((f"[{name}]" for name in _NAMED if name in part), None)


class _Turn:
    """A model turn that is being read."""

    __slots__ = ("calls", "reasoning", "text")

    def __init__(self) -> None:
        self.text = self.reasoning = ""
        self.calls: list[ToolCall] = []

    def add(self, parts: list[Json], where: str) -> None:
        for i, each in enumerate(parts):
            place = f"{where}.parts[{i}]"
            part = object_of(each, place)
            called = _field(part, "functionCall", "function_call")
            if called is not None:
                call = object_of(called, f"{place}.functionCall")
                id, args = call.get("id"), call.get("args")
                name = text_of(call.get("name"), f"{place}.functionCall.name")
                arguments = "{}" if args is None else arguments_text(args, f"{place}.functionCall.args")
                self.calls.append(ToolCall(text_of(id or "", f"{place}.functionCall.id"), name, arguments))
            elif part.get("thought") is True:
                self.reasoning += _part_text(part, place) or ""
            else:
                self.text += _part_text(part, place) or ""

    def message(self) -> Message:
        return Message("assistant", self.text, tuple(self.calls), reasoning=self.reasoning)


def _tool_message(result: Mapping[str, Json], where: str) -> Message:
    where = f"{where}: functionResponse"
    id, response, parts = result.get("id"), result.get("response"), result.get("parts")
    texts = [] if response is None else [_response_text(object_of(response, f"{where}.response"), f"{where}.response")]
    if parts is not None and (text := _text(list_of(parts, f"{where}.parts"), where)):
        texts.append(text)
    return Message("tool", "\n".join(texts), tool_call_id=text_of(id or "", f"{where}.id"))


def _response_text(response: Mapping[str, Json], where: str) -> str:
    """The text itself where it is all there is, under one of the names that are in use for it; else JSON."""
    if len(response) == 1:
        name, value = next(iter(response.items()))
        if name in ("output", "error", "result") and isinstance(value, str):
            return value
    return arguments_text(response, where)


# ---- tools -------------------------------------------------------------------------------------------------------


def _tool(told: Json, where: str) -> Tool:
    tool = object_of(told, where)
    name = text_of(tool.get("name"), f"{where}.name")
    description = text_of(tool.get("description") or "", f"{where}.description")
    schema = _field(tool, "parametersJsonSchema", "parameters_json_schema")
    if schema is None:
        schema = _lowered(json_of(tool.get("parameters", {"type": "object", "properties": {}}), f"{where}.parameters"))
    return Tool(name, description, object_of(json_of(schema, f"{where}.parameters"), f"{where}.parameters"))


_OF_FIELDS = ("properties", "defs", "$defs")
_OF_SCHEMAS = ("items", "anyOf", "any_of", "allOf", "oneOf", "prefixItems", "additionalProperties")


def _lowered(schema: Json) -> Json:
    """A schema, or a list of them, with types in lower case, as JSON schema has them; examples stay as they are."""
    if isinstance(schema, list):
        return [_lowered(each) for each in cast(list[Json], schema)]
    if not isinstance(schema, dict):
        return schema
    lowered = dict(cast(dict[str, Json], schema))
    for name, value in lowered.items():
        if name == "type" and isinstance(value, str):
            lowered[name] = value.lower()
        elif name in _OF_FIELDS and isinstance(value, dict):
            lowered[name] = {field: _lowered(inner) for field, inner in cast(dict[str, Json], value).items()}
        elif name in _OF_SCHEMAS:
            lowered[name] = _lowered(value)
    return lowered


# ---- writing -----------------------------------------------------------------------------------------------------


def _reply_parts(message: Message) -> Iterator[Json]:
    if message.reasoning:
        yield {"text": message.reasoning, "thought": True}
    if message.content:
        yield {"text": message.content}
    for call in message.tool_calls:
        arguments = arguments_object(call.arguments)
        arguments = unparsed(call.arguments) if arguments is None else arguments
        yield {"functionCall": {"id": call.id, "name": call.name, "args": arguments}}


def _chunk(wishes: Wishes, id: str, parts: list[Json], last: Completion | None = None) -> Json:
    """A part of a reply; the last part comes with the completion, for what is said at the end."""
    candidate: dict[str, Json] = {"content": {"role": "model", "parts": parts}, "index": 0}
    told: dict[str, Json] = {"candidates": [candidate], "modelVersion": wishes.model, "responseId": id}
    if last is not None:
        candidate["finishReason"] = "MAX_TOKENS" if last.finish_reason == "length" else "STOP"
        prompt, sampled = len(last.prompt_ids), len(last.completion_ids)
        told["usageMetadata"] = {
            "promptTokenCount": prompt,
            "cachedContentTokenCount": last.cached_tokens,
            "candidatesTokenCount": sampled,
            "totalTokenCount": prompt + sampled,
        }
    return told
