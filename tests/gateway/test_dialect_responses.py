import json
from dataclasses import replace
from typing import Any

import numpy as np
import openai
import pytest
from broken_bodies import breakages, client, json_values, nested, refusal
from hypothesis import given
from hypothesis import strategies as st
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from whippletree.gateway.dialects.base import CONTEXT_LENGTH, DialectError, Wishes
from whippletree.gateway.dialects.responses import Responses
from whippletree.types import Completion, Message, Tool, ToolCall

RESPONSES = Responses()
EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
SCHEMA = {"type": "object", "properties": {"command": {"type": "string"}}}
SPAWN = {"type": "function", "name": "spawn", "description": "Start one.", "parameters": SCHEMA}
PATCH = {
    "type": "custom",
    "name": "patch",
    "description": "Edit.",
    "format": {"type": "grammar", "syntax": "lark", "definition": "start: /.+/"},
}
TOOLS: list[Any] = [
    {"type": "function", "name": "bash", "description": "Run.", "parameters": SCHEMA, "strict": False},
    {"type": "namespace", "name": "agents", "description": "Others.", "tools": [SPAWN]},
    {"type": "web_search"},
    PATCH,
]
BODY: dict[str, Any] = {
    "model": "m",
    "instructions": "act",
    "stream": True,
    "store": False,
    "max_output_tokens": 50,
    "temperature": 0.5,
    "reasoning": {"summary": "auto"},
    "include": ["reasoning.encrypted_content"],
    "tools": TOOLS,
    "input": [
        {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "be brief"}]},
        {"role": "user", "content": [{"type": "input_text", "text": "look:"}, {"type": "input_image"}]},
        {
            "type": "reasoning",
            "id": "rs_1",
            "summary": [{"type": "summary_text", "text": "hm"}],
            "content": None,
            "encrypted_content": "xyz",
        },
        {
            "type": "message",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "so:", "annotations": []}],
        },
        {"type": "function_call", "id": "fc_1", "call_id": "c0", "name": "bash", "arguments": '{"command":  "ls"}'},
        {"type": "function_call", "call_id": "c1", "name": "spawn", "namespace": "agents", "arguments": "{}"},
        {"type": "custom_tool_call", "call_id": "c2", "name": "patch", "input": "+ä"},
        {"type": "local_shell_call", "call_id": "c3", "action": {"type": "exec", "command": ["ls"]}, "status": "x"},
        {"type": "function_call_output", "call_id": "c0", "output": "a.txt"},
        {
            "type": "function_call_output",
            "call_id": "c1",
            "output": [{"type": "input_text", "text": "see"}, {"type": "input_image", "image_url": "data:"}],
        },
        {"type": "custom_tool_call_output", "call_id": "c2", "output": "ok"},
        {"type": "local_shell_call_output", "id": "c3", "output": "a.txt"},
        {"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "no"}]},
        {"type": "message", "role": "user", "content": "go on"},
    ],
}
TURN = Message(
    "assistant",
    "so:",
    (
        ToolCall("c0", "bash", '{"command":  "ls"}'),
        ToolCall("c1", "spawn", "{}"),
        ToolCall("c2", "patch", '{"input":"+ä"}'),
        ToolCall("c3", "local_shell", '{"type":"exec","command":["ls"]}'),
    ),
    reasoning="hm",
)


def completion(message: Message, finish: Any = "stop") -> Completion:
    return Completion(message, finish, np.arange(5), np.arange(3), np.zeros(3, np.float32), 0, cached_tokens=2)


def read(items: list[Any], **body: Any) -> list[Message]:
    return [message for message, _ in RESPONSES.read(RESPONSES.items({"input": items, **body}), 0)]


# ---- reading -----------------------------------------------------------------------------------------------------


def test_a_whole_body_is_read_and_a_turn_is_one_message():
    assert list(RESPONSES.read(RESPONSES.items(BODY), 0)) == [
        (Message("system", "act"), 1),
        (Message("system", "be brief"), 2),
        (Message("user", "look:\n[image]"), 3),
        (TURN, 9),
        (Message("tool", "a.txt", tool_call_id="c0"), 10),
        (Message("tool", "see\n[image]", tool_call_id="c1"), 11),
        (Message("tool", "ok", tool_call_id="c2"), 12),
        (Message("tool", "a.txt", tool_call_id="c3"), 13),
        (Message("assistant", "no"), 14),
        (Message("user", "go on"), 15),
    ]


def test_an_input_may_be_a_string():
    assert read("go") == [Message("user", "go")]  # type: ignore[arg-type]
    assert read("go", instructions="act") == [Message("system", "act"), Message("user", "go")]  # type: ignore[arg-type]


def test_reasoning_has_no_effect_but_on_reasoning():
    bare = [item for item in BODY["input"] if item.get("type") != "reasoning"]
    assert read(bare)[2] == replace(TURN, reasoning="")
    assert read([{"type": "reasoning", "id": "rs", "summary": []}]) == [Message("assistant", "")]
    assert read([{"type": "reasoning", "encrypted_content": "xyz"}]) == [Message("assistant", "")]


def test_texts_and_thoughts_of_one_turn_are_joined():
    thought = {"type": "reasoning", "summary": [{"type": "summary_text", "text": "a"}]}
    said = {"role": "assistant", "content": "x"}
    assert read([thought, said, thought, said]) == [Message("assistant", "x\nx", reasoning="a\na")]


def test_wishes_are_read_and_what_is_not_obeyed_is_recorded():
    wishes = RESPONSES.wishes(BODY)
    assert (wishes.model, wishes.stream, wishes.max_tokens, wishes.stop) == ("m", True, 50, ())
    assert wishes.asked == {name: BODY[name] for name in ("model", "temperature", "reasoning", "include")}
    assert RESPONSES.wishes({"previous_response_id": None, "background": False}) == Wishes()


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id is not served: the server keeps no state"),
        ({"conversation": "conv_1"}, "conversation is not served"),
        ({"prompt": {"id": "p"}}, "prompt is not served"),
        ({"background": True}, "background is not served"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0] refers to an item: the server keeps no"),
        ({"input": []}, "input must hold"),
        ({"input": None}, "input must be"),
        ({"input": [{"type": "compaction"}]}, "input[0].type 'compaction' is not served"),
        ({"input": [{"role": "user", "content": "x"}, {"role": "tool", "content": "x"}]}, "input[1].role"),
        ({"input": [{"type": "function_call", "call_id": "c", "name": "f"}]}, "input[0].arguments"),
        ({"input": [{"type": "function_call_output", "output": "x"}]}, "input[0].call_id"),
        ({"input": [{"type": "local_shell_call", "call_id": "c", "action": {"a": nested(3000)}}]}, "input[0].action"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"temperature": float("inf")}, "temperature"),
        ({"tools": [SPAWN, SPAWN]}, "tools[1].name"),
        ({"tools": [{**SPAWN, "parameters": {"a": nested(3000)}}]}, "tools[0].parameters"),
        ({"tools": [{"type": "namespace", "name": "a", "tools": [SPAWN, {"type": "function"}]}]}, "tools[0].tools[1]"),
    ],
)
def test_what_is_not_served_is_refused_by_name(change: dict[str, Any], problem: str):
    assert problem in str(refusal(RESPONSES, {**BODY, **change}))


ITEMS = st.lists(st.sampled_from(BODY["input"]), min_size=1, max_size=12)


@given(ITEMS, st.none() | st.just("act"), st.data())
def test_reading_goes_on_where_the_last_but_one_message_ended(items: list[Any], instructions: Any, data: Any):
    items = RESPONSES.items({"input": items, "instructions": instructions})
    whole = list(RESPONSES.read(items, 0))
    assert whole[-1][1] == len(items)
    known = list(RESPONSES.read(items[: data.draw(st.integers(0, len(items)))], 0))[:-1]
    assert known + list(RESPONSES.read(items, known[-1][1] if known else 0)) == whole


def test_a_body_that_is_broken_anywhere_is_refused_or_read():
    refusals = [(path, refusal(RESPONSES, broken)) for path, broken in breakages(BODY)]
    told = [(path[0], problem) for path, problem in refusals if problem is not None]
    assert len(told) > 400
    assert all(place in problem and len(problem) < 300 for place, problem in told)


@given(st.dictionaries(st.sampled_from(["input", "tools", "instructions", "model", "prompt"]), json_values))
def test_random_json_is_refused_or_read(body: dict[str, Any]):
    refusal(RESPONSES, body)


@given(json_values)
def test_a_random_item_is_refused_by_its_place(item: Any):
    with pytest.raises(DialectError, match=r"input\[1\]"):
        read([{"role": "user", "content": ""}, item], instructions="act")


# ---- tools -------------------------------------------------------------------------------------------------------


def test_tools_are_offered_by_names_that_the_model_can_say():
    grammar = {"type": "string", "description": "Text that follows this lark grammar:\nstart: /.+/"}
    assert RESPONSES.tools(RESPONSES.raw_tools(BODY)) == (
        Tool("bash", "Run.", SCHEMA),
        Tool("spawn", "Start one.", SCHEMA),
        Tool("patch", "Edit.", {"type": "object", "properties": {"input": grammar}, "required": ["input"]}),
    )
    assert RESPONSES.tools(None) == ()


CLASH: list[Any] = [
    {**SPAWN, "name": "find"},
    {"type": "namespace", "name": "web", "tools": [{**SPAWN, "name": "find"}, {**SPAWN, "name": "open"}]},
    {"type": "namespace", "name": "disk", "tools": [{"type": "custom", "name": "find"}, {"type": "mcp"}]},
]


def test_a_name_that_two_tools_have_is_told_with_its_namespace():
    assert [tool.name for tool in RESPONSES.tools(CLASH)] == ["find", "web__find", "open", "disk__find"]
    with pytest.raises(DialectError, match="'web__find'"):
        RESPONSES.tools([*CLASH, {**SPAWN, "name": "web__find"}])


def test_calls_are_written_back_as_the_harness_knows_them():
    calls = (
        ToolCall("c0", "find", "{}"),
        ToolCall("c1", "web__find", "{}"),
        ToolCall("c2", "open", "{}"),
        ToolCall("c3", "disk__find", '{"input": "x\\ny"}'),
        ToolCall("c4", "unknown", "{"),
    )
    said = completion(Message("assistant", "", calls), "tool_calls")
    output = RESPONSES.reply(RESPONSES.wishes({"tools": CLASH}), said, "i")["output"]
    kept = [{name: item[name] for name in item if name not in ("id", "status", "call_id")} for item in output]
    assert kept == [
        {"type": "function_call", "name": "find", "arguments": "{}"},
        {"type": "function_call", "name": "find", "namespace": "web", "arguments": "{}"},
        {"type": "function_call", "name": "open", "namespace": "web", "arguments": "{}"},
        {"type": "custom_tool_call", "name": "find", "namespace": "disk", "input": "x\ny"},
        {"type": "function_call", "name": "unknown", "arguments": "{"},
    ]
    echoed = read([{"role": "user", "content": "x"}, *output], tools=CLASH)[1]
    assert [call.name for call in echoed.tool_calls] == [call.name for call in calls]
    assert [call.id for call in echoed.tool_calls] == [call.id for call in calls]
    assert len({item["id"] for item in output}) == len(output)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [('{"input": "x"}', "x"), ("x", "x"), ('{"patch": "x"}', '{"patch": "x"}'), ('{"input": 1}', '{"input": 1}')],
)
def test_a_free_form_call_that_is_malformed_goes_out_as_it_was_said(arguments: str, text: str):
    said = completion(Message("assistant", "", (ToolCall("c", "patch", arguments),)), "tool_calls")
    assert RESPONSES.reply(RESPONSES.wishes(BODY), said, "i")["output"][0]["input"] == text


# ---- writing -----------------------------------------------------------------------------------------------------

CALLS = (*TURN.tool_calls[:3], ToolCall("c9", "bash", "{broken"))
REPLIES = [
    completion(Message("assistant", "done\u2028")),
    completion(Message("assistant", "")),
    completion(Message("assistant", "cut of", reasoning="hm"), "length"),
    completion(Message("assistant", "", CALLS), "tool_calls"),
    completion(Message("assistant", "so:", CALLS, reasoning="hm\n\nwell"), "tool_calls"),
]


def dumped(response: Response) -> list[Any]:
    return [item.model_dump(exclude_none=True) for item in response.output]


@pytest.mark.parametrize("said", REPLIES)
def test_a_reply_comes_back_as_the_message_that_was_sampled(said: Completion):
    body = {name: BODY[name] for name in ("model", "tools", "max_output_tokens")}
    with client(lambda body: RESPONSES.reply(RESPONSES.wishes(body), said, "id0")) as sdk:
        reply = sdk.responses.create(input="go", **body)
    Response.model_validate(RESPONSES.reply(RESPONSES.wishes(body), said, "id0"))
    assert (reply.id, reply.model, reply.max_output_tokens) == ("resp_id0", "m", 50)
    assert read(dumped(reply)) == [said.message]
    assert reply.output_text == said.message.content
    assert reply.status == ("incomplete" if said.finish_reason == "length" else "completed")
    usage = reply.usage
    assert usage is not None
    assert (usage.input_tokens, usage.input_tokens_details.cached_tokens) == (5, 2)
    assert (usage.output_tokens, usage.total_tokens) == (3, 8)


def test_a_reply_that_was_cut_says_so():
    reply = RESPONSES.reply(Wishes(), REPLIES[2], "i")
    assert reply["incomplete_details"] == {"reason": "max_output_tokens"}
    assert [item["status"] for item in reply["output"]] == ["completed", "incomplete"]


@pytest.mark.parametrize("said", REPLIES)
def test_a_stream_adds_up_to_the_reply(said: Completion):
    def answer(body: dict[str, Any]) -> bytes:
        return RESPONSES.keep_alive * 2 + b"".join(RESPONSES.events(RESPONSES.wishes(body), said, "id0"))

    body = {name: BODY[name] for name in ("model", "tools")}
    with client(answer) as sdk, sdk.responses.stream(input="go", **body) as stream:
        events: list[Any] = list(stream)
    assert events[-1].type == ("response.incomplete" if said.finish_reason == "length" else "response.completed")
    whole = Response.model_validate(RESPONSES.reply(RESPONSES.wishes(body), said, "id0"))
    last = events[-1].response
    assert (last.id, last.usage, dumped(last)) == (whole.id, whole.usage, dumped(whole))
    done = [event.item.model_dump(exclude_none=True) for event in events if event.type == "response.output_item.done"]
    assert read(done) == [said.message]


def frames(said: Completion) -> list[dict[str, Any]]:
    found = [frame.decode() for frame in RESPONSES.events(RESPONSES.wishes(BODY), said, "id0")]
    events = [json.loads(frame.partition("\ndata: ")[2]) for frame in found]
    kinds = [frame.partition("\n")[0] for frame in found]
    assert kinds == [f"event: {event['type']}" for event in events]
    return events


@pytest.mark.parametrize("said", REPLIES)
def test_every_event_is_one_of_the_protocols(said: Completion):
    events = frames(said)
    for event in events:
        EVENT.validate_python(event)
    assert [event["sequence_number"] for event in events] == list(range(len(events)))


def test_the_events_of_a_stream_come_in_order():
    said = completion(Message("assistant", "so:", CALLS[:1] + CALLS[2:3], reasoning="hm"), "tool_calls")
    events = frames(said)
    assert [event["type"].removeprefix("response.") for event in events] == [
        "created",
        "in_progress",
        "output_item.added",
        "reasoning_summary_part.added",
        "reasoning_summary_text.delta",
        "reasoning_summary_text.done",
        "reasoning_summary_part.done",
        "output_item.done",
        "output_item.added",
        "content_part.added",
        "output_text.delta",
        "output_text.done",
        "content_part.done",
        "output_item.done",
        "output_item.added",
        "function_call_arguments.delta",
        "function_call_arguments.done",
        "output_item.done",
        "output_item.added",
        "custom_tool_call_input.delta",
        "custom_tool_call_input.done",
        "output_item.done",
        "completed",
    ]
    announced = [event["item"] for event in events if event["type"] == "response.output_item.added"]
    empty = [
        {name: item[name] for name in ("summary", "content", "arguments", "input") if name in item}
        for item in announced
    ]
    assert empty == [{"summary": []}, {"content": []}, {"arguments": ""}, {"input": ""}]
    assert {item["status"] for item in announced} == {"in_progress"}
    assert [event["output_index"] for event in events[2:-1]] == [0] * 6 + [1] * 6 + [2] * 4 + [3] * 4
    assert [event["response"]["output"] for event in events[:2]] == [[], []]
    assert [event["delta"] for event in events if "delta" in event] == ["hm", "so:", CALLS[0].arguments, "+ä"]


def test_the_call_of_a_namespace_names_it_in_the_stream_too():
    events = frames(completion(Message("assistant", "", CALLS[1:2]), "tool_calls"))
    items = [event["item"] for event in events if "item" in event]
    assert [(item["name"], item["namespace"], item["call_id"]) for item in items] == [("spawn", "agents", "c1")] * 2


def test_errors_have_the_protocols_form():
    for problem, code in ((f"{CONTEXT_LENGTH}: 9 of 8", "context_length_exceeded"), ("input must be", None)):
        told = RESPONSES.error(400, problem)
        assert told["error"].keys() == {"message", "type", "param", "code"}
        with client(lambda body, told=told: told, 400) as sdk, pytest.raises(openai.BadRequestError) as raised:
            sdk.responses.create(model="m", input="go")
        assert raised.value.code == code
        assert problem in raised.value.message


def test_an_error_ends_a_stream_as_a_response_that_failed():
    for problem, code in ((f"{CONTEXT_LENGTH}: 9 of 8", "context_length_exceeded"), ("over", "server_error")):
        told = RESPONSES.keep_alive + RESPONSES.error_event(problem)
        with client(lambda body, told=told: told) as sdk:
            events: list[Any] = list(sdk.responses.create(model="m", input="go", stream=True))
        assert [event.type for event in events] == ["response.failed"]
        assert (events[0].response.status, events[0].response.error.code) == ("failed", code)
        assert problem in events[0].response.error.message
