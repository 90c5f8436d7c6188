"""OpenAI Responses: `POST /v1/responses`, as codex and the SDKs speak it.

Invariant: the server keeps no state, so each request holds its whole history. Neighbouring items of the assistant
(reasoning, text, calls) are one message; every other item is a message of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from whippletree.gateway.dialects.base import (
    DialectError,
    Wishes,
    arguments_object,
    arguments_text,
    ascii_json,
    count_of,
    flag_of,
    list_of,
    object_of,
    shown,
    text_of,
)
from whippletree.gateway.dialects.offers import offers_of, renamed, tool_of
from whippletree.gateway.dialects.openai import KEEP_ALIVE, asked, content_text, error_body, late_error
from whippletree.types import Completion, Json, Message, Tool, ToolCall

_ASKED = (
    "model",
    "temperature",
    "top_p",
    "top_logprobs",
    "tool_choice",
    "parallel_tool_calls",
    "max_tool_calls",
    "reasoning",
    "text",
    "include",
    "truncation",
)
_KEPT_ELSEWHERE = ("previous_response_id", "conversation", "prompt")


@dataclass(frozen=True, slots=True)
class _Instructions:
    """The item that stands for the instructions, which are no item on the wire."""

    text: str


class Responses:
    name = "responses"
    keep_alive = KEEP_ALIVE

    def items(self, body: Mapping[str, Json]) -> list[Json]:
        given = body.get("input")
        items: list[Json] = [{"role": "user", "content": given}] if isinstance(given, str) else list_of(given, "input")
        if not items:
            raise DialectError("input must hold at least one item, got none")
        offers = [offer for offer in offers_of(body.get("tools")) if offer.name != offer.inner]
        if offers:
            items = [renamed(item, offers) for item in items]
        instructions = body.get("instructions")
        return items if instructions is None else [_Instructions(text_of(instructions, "instructions")), *items]

    def read(self, items: Sequence[Json], start: int) -> Iterator[tuple[Message, int]]:
        shift = int(bool(items) and isinstance(items[0], _Instructions))
        turn: list[Message] = []
        for index in range(start, len(items)):
            message = _message(items[index], f"input[{index - shift}]")
            if message.role == "assistant":
                turn.append(message)
                continue
            if turn:
                yield _joined(turn), index
                turn = []
            yield message, index + 1
        if turn:
            yield _joined(turn), len(items)

    def raw_tools(self, body: Mapping[str, Json]) -> Json:
        return body.get("tools")

    def tools(self, raw: Json) -> tuple[Tool, ...]:
        return tuple(tool_of(offer) for offer in offers_of(raw))

    def wishes(self, body: Mapping[str, Json]) -> Wishes:
        for name in _KEPT_ELSEWHERE:
            if body.get(name) is not None:
                raise DialectError(f"{name} is not served: the server keeps no state; send the full history as input")
        if flag_of(body.get("background"), "background"):
            raise DialectError("background is not served: the server keeps no state; wait for the reply")
        return Wishes(
            model=text_of(body.get("model", ""), "model"),
            stream=flag_of(body.get("stream"), "stream"),
            max_tokens=count_of(body.get("max_output_tokens"), "max_output_tokens"),
            asked=asked(body, _ASKED),
            extra={offer.name: offer.written for offer in offers_of(body.get("tools")) if offer.written},
        )

    def reply(self, wishes: Wishes, completion: Completion, id: str) -> Json:
        return _response(wishes, completion, id)

    def events(self, wishes: Wishes, completion: Completion, id: str) -> Iterator[bytes]:
        for number, event in enumerate(_events(_response(wishes, completion, id))):
            yield _frame({**event, "sequence_number": number})

    def error(self, status: int, problem: str) -> Json:
        return error_body(status, problem)

    def error_event(self, problem: str) -> bytes:
        error = late_error(problem)["error"]
        failed = {"code": error["code"] or "server_error", "message": error["message"]}
        response = {**_head(Wishes(), "0"), "status": "failed", "error": failed}
        return _frame({"type": "response.failed", "response": response, "sequence_number": 0})


# ---- reading -----------------------------------------------------------------------------------------------------


def _message(item: Json, where: str) -> Message:
    """One item as a message; of an assistant's turn, what the item adds to it."""
    if isinstance(item, _Instructions):
        return Message("system", item.text)
    told = object_of(item, where)
    kind = told.get("type")
    if kind is None and "role" in told:
        kind = "message"
    match kind:
        case "message":
            return _spoken(told, where)
        case "reasoning":
            summary = told.get("summary")
            text = "" if summary is None else content_text(summary, f"{where}.summary")
            return Message("assistant", "", reasoning=text)
        case "function_call":
            return _calling(told, text_of(told.get("name"), f"{where}.name"), told.get("arguments"), where)
        case "custom_tool_call":
            arguments = arguments_text({"input": text_of(told.get("input"), f"{where}.input")}, where)
            return _calling(told, text_of(told.get("name"), f"{where}.name"), arguments, where)
        case "local_shell_call":
            return _calling(told, "local_shell", arguments_text(told.get("action"), f"{where}.action"), where)
        case "function_call_output" | "custom_tool_call_output" | "local_shell_call_output":
            call = text_of(told.get("call_id", told.get("id")), f"{where}.call_id")
            return Message("tool", content_text(told.get("output"), f"{where}.output"), tool_call_id=call)
        case "item_reference":
            raise DialectError(f"{where} refers to an item: the server keeps no state; send the full history as input")
        case _:
            raise DialectError(f"{where}.type {shown(kind)} is not served; send messages, reasoning, calls and outputs")


def _spoken(told: Mapping[str, Json], where: str) -> Message:
    content = content_text(told.get("content"), f"{where}.content")
    match told.get("role"):
        case "user" | "assistant" as role:
            return Message(role, content)
        case "system" | "developer":
            return Message("system", content)
        case role:
            raise DialectError(f"{where}.role must be system, developer, user or assistant, got {shown(role)}")


def _calling(told: Mapping[str, Json], name: str, arguments: Json, where: str) -> Message:
    call_id = text_of(told.get("call_id"), f"{where}.call_id")
    return Message("assistant", "", (ToolCall(call_id, name, text_of(arguments, f"{where}.arguments")),))


def _joined(turn: list[Message]) -> Message:
    if len(turn) == 1:
        return turn[0]
    return Message(
        "assistant",
        "\n".join(part.content for part in turn if part.content),
        tuple(call for part in turn for call in part.tool_calls),
        reasoning="\n".join(part.reasoning for part in turn if part.reasoning),
    )


# ---- writing -----------------------------------------------------------------------------------------------------

_FILLED = ("summary", "content", "arguments", "input")
"""What a stream fills: empty when an item is announced."""


def _head(wishes: Wishes, id: str) -> dict[str, Json]:
    """A response before anything is said."""
    return {
        "id": f"resp_{id}",
        "object": "response",
        "created_at": 0,
        "status": "in_progress",
        "background": False,
        "error": None,
        "incomplete_details": None,
        "instructions": None,
        "max_output_tokens": wishes.max_tokens,
        "metadata": {},
        "model": wishes.model,
        "output": [],
        "parallel_tool_calls": True,
        "previous_response_id": None,
        "store": False,
        "temperature": None,
        "tool_choice": "auto",
        "tools": [],
        "top_p": None,
        "truncation": "disabled",
        "usage": None,
    }


def _response(wishes: Wishes, completion: Completion, id: str) -> dict[str, Json]:
    output = _output(wishes, completion.message, id)
    response: dict[str, Json] = {**_head(wishes, id), "status": "completed", "output": output}
    if completion.finish_reason == "length":
        response["status"], response["incomplete_details"] = "incomplete", {"reason": "max_output_tokens"}
        output[-1]["status"] = "incomplete"
    prompt, sampled = len(completion.prompt_ids), len(completion.completion_ids)
    response["usage"] = {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": completion.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": sampled,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": prompt + sampled,
    }
    return response


def _output(wishes: Wishes, said: Message, id: str) -> list[dict[str, Json]]:
    """At least one item, so that a turn without words is still a turn."""
    items: list[dict[str, Json]] = []
    if said.reasoning:
        items.append({"id": f"rs_{id}", "type": "reasoning", "summary": [_part("summary_text", said.reasoning)]})
    if said.content or not said.tool_calls:
        text: Json = {**_part("output_text", said.content), "annotations": [], "logprobs": []}
        items.append({"id": f"msg_{id}", "type": "message", "role": "assistant", "content": [text]})
    for number, call in enumerate(said.tool_calls):
        items.append(_call_item(call, wishes.extra.get(call.name, {}), f"{id}{number}"))
    return [{**item, "status": "completed"} for item in items]


def _part(kind: str, text: str) -> dict[str, Json]:
    return {"type": kind, "text": text}


def _call_item(call: ToolCall, written: Mapping[str, Json], id: str) -> dict[str, Json]:
    """`written` is what the offer of the tool says of its calls."""
    item: dict[str, Json] = {"id": f"fc_{id}", "type": "function_call", "call_id": call.id, "name": call.name}
    item |= {name: written[name] for name in ("name", "namespace") if name in written}
    if written.get("type") != "custom":
        return {**item, "arguments": call.arguments}
    arguments = arguments_object(call.arguments) or {}
    text: Json = arguments.get("input")
    # What is no such object goes to the harness as it was said: its tool tells the model what is wrong.
    text = text if isinstance(text, str) else call.arguments
    return {**item, "id": f"ctc_{id}", "type": "custom_tool_call", "input": text}


def _events(response: Mapping[str, Json]) -> Iterator[dict[str, Json]]:
    begun: Json = {**response, "status": "in_progress", "incomplete_details": None, "output": [], "usage": None}
    yield {"type": "response.created", "response": begun}
    yield {"type": "response.in_progress", "response": begun}
    for index, item in enumerate(response["output"]):
        at = {"output_index": index, "item_id": item["id"]}
        empty = {**item, "status": "in_progress", **{name: type(item[name])() for name in _FILLED if name in item}}
        yield {"type": "response.output_item.added", "output_index": index, "item": empty}
        match item["type"]:
            case "reasoning":
                yield from _part_events("response.reasoning_summary_", item["summary"][0], {**at, "summary_index": 0})
            case "message":
                yield from _part_events("response.", item["content"][0], {**at, "content_index": 0})
            case "custom_tool_call":
                yield {"type": "response.custom_tool_call_input.delta", **at, "delta": item["input"]}
                yield {"type": "response.custom_tool_call_input.done", **at, "input": item["input"]}
            case _:
                told = {"name": item["name"], "arguments": item["arguments"]}
                yield {"type": "response.function_call_arguments.delta", **at, "delta": item["arguments"]}
                yield {"type": "response.function_call_arguments.done", **at, **told}
        yield {"type": "response.output_item.done", "output_index": index, "item": item}
    yield {"type": f"response.{response['status']}", "response": response}


def _part_events(prefix: str, part: Mapping[str, Json], at: Mapping[str, Json]) -> Iterator[dict[str, Json]]:
    kind, text = part["type"], part["text"]
    logprobs: dict[str, Json] = {"logprobs": []} if kind == "output_text" else {}
    part_name, text_name = ("content_part", "output_text") if kind == "output_text" else ("part", "text")
    yield {"type": f"{prefix}{part_name}.added", **at, "part": {**part, "text": ""}}
    yield {"type": f"{prefix}{text_name}.delta", **at, "delta": text, **logprobs}
    yield {"type": f"{prefix}{text_name}.done", **at, "text": text, **logprobs}
    yield {"type": f"{prefix}{part_name}.done", **at, "part": part}


def _frame(event: Mapping[str, Json]) -> bytes:
    return f"event: {event['type']}\ndata: {ascii_json(event)}\n\n".encode()
