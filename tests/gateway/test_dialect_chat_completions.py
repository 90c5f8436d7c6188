import json
from dataclasses import replace
from typing import Any

import numpy as np
import openai
import pytest
from broken_bodies import breakages, client, json_values, nested, refusal
from hypothesis import given
from hypothesis import strategies as st
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from whippletree.gateway.dialects.base import CONTEXT_LENGTH, DialectError, Wishes
from whippletree.gateway.dialects.chat_completions import ChatCompletions
from whippletree.types import Completion, Message, Tool, ToolCall

CHAT = ChatCompletions()
SCHEMA = {"type": "object", "properties": {"command": {"type": "string"}}}
CALLS = (ToolCall("call0", "bash", '{"command":  "ls"}'), ToolCall("call1", "bash", "{"))
BODY: dict[str, Any] = {
    "model": "m",
    "stream": True,
    "stream_options": {"include_usage": True},
    "max_tokens": 99,
    "max_completion_tokens": 50,
    "stop": ["END", "</code>"],
    "n": 1,
    "temperature": 0.5,
    "logprobs": True,
    "tool_choice": {"type": "function", "function": {"name": "bash"}},
    "tools": [{"type": "function", "function": {"name": "bash", "description": "Run.", "parameters": SCHEMA}}],
    "messages": [
        {"role": "developer", "content": "act"},
        {"role": "user", "content": [{"type": "text", "text": "look:"}, {"type": "image_url", "image_url": {}}]},
        {
            "role": "assistant",
            "content": None,
            "reasoning_content": "hm",
            "tool_calls": [
                {"id": "call0", "type": "function", "function": {"name": "bash", "arguments": '{"command":  "ls"}'}}
            ],
        },
        {"role": "tool", "tool_call_id": "call0", "content": "a.txt"},
    ],
}


def completion(message: Message, finish: Any = "stop", cached: int = 2) -> Completion:
    prompt, sampled = np.arange(5), np.arange(3)
    return Completion(message, finish, prompt, sampled, np.zeros(3, np.float32), 0, cached_tokens=cached)


def read(*messages: Any) -> list[Message]:
    return [message for message, _ in CHAT.read(CHAT.items({"messages": list(messages)}), 0)]


def chunks(wishes: Wishes, said: Completion) -> list[ChatCompletionChunk]:
    frames = list(CHAT.events(wishes, said, "id0"))
    assert frames[-1] == b"data: [DONE]\n\n"
    assert all(frame.startswith(b"data: ") and frame.endswith(b"\n\n") for frame in frames)
    return [ChatCompletionChunk.model_validate(json.loads(frame[6:])) for frame in frames[:-1]]


# ---- reading -----------------------------------------------------------------------------------------------------


def test_a_whole_body_is_read():
    items = CHAT.items(BODY)
    assert list(CHAT.read(items, 0)) == [
        (Message("system", "act"), 1),
        (Message("user", "look:\n[image]"), 2),
        (Message("assistant", "", CALLS[:1], reasoning="hm"), 3),
        (Message("tool", "a.txt", tool_call_id="call0"), 4),
    ]
    assert CHAT.tools(CHAT.raw_tools(BODY)) == (Tool("bash", "Run.", SCHEMA),)


def test_wishes_are_read_and_what_is_not_obeyed_is_recorded():
    wishes = CHAT.wishes(BODY)
    assert (wishes.model, wishes.stream, wishes.max_tokens) == ("m", True, 50)
    assert wishes.stop == ("END", "</code>")
    assert wishes.asked == {name: BODY[name] for name in ("model", "temperature", "logprobs", "tool_choice")}
    assert CHAT.wishes({"max_tokens": 9, "stop": "END", "n": None, "stream": None, "functions": None}) == Wishes(
        max_tokens=9, stop=("END",), extra={"usage": False}
    )


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("plain", "plain"),
        ([{"type": "text", "text": "plain", "cache_control": {}}], "plain"),
        ([{"type": "text", "text": "one"}, {"type": "text", "text": "two"}], "one\ntwo"),
        ([{"type": "refusal", "refusal": "no"}], "no"),
        ([{"type": "image_url", "image_url": {"url": "data:"}}], "[image]"),
        ([{"type": "input_audio"}, {"type": "file"}, {"type": "video_url"}], "[audio]\n[file]\n[video_url]"),
        ([], ""),
    ],
)
def test_content_is_text(content: Any, text: str):
    for role in ("user", "assistant"):
        assert read({"role": role, "content": content})[0].content == text
    assert read({"role": "tool", "tool_call_id": "c", "content": content})[0].content == text


def test_an_assistant_message_may_have_no_content_and_its_thoughts_by_either_name():
    assert read({"role": "assistant"}) == [Message("assistant", "")]
    thought = [Message("assistant", "x", reasoning="hm")]
    assert read({"role": "assistant", "content": "x", "reasoning": "hm", "tool_calls": None}) == thought
    assert read({"role": "assistant", "content": "x", "reasoning_content": "hm", "function_call": None}) == thought


def test_arguments_stay_as_they_are_written():
    for arguments in ('{"a":1}', '{ "a": 1 }', "", "{broken"):
        call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
        assert read({"role": "assistant", "tool_calls": [call]})[0].tool_calls == (ToolCall("c", "f", arguments),)


def test_a_tool_needs_no_more_than_a_name():
    empty = {"type": "object", "properties": {}}
    assert CHAT.tools([{"type": "function", "function": {"name": "f"}}]) == (Tool("f", "", empty),)
    assert CHAT.tools(CHAT.raw_tools({})) == ()


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"functions": [{"name": "f"}]}, "functions"),
        ({"n": 2}, "n must be 1"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "assistant", "function_call": {}}]}, "messages[0].function_call"),
        ({"messages": [{"role": "function", "content": ""}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "tool", "content": ""}]}, "messages[0].tool_call_id"),
        ({"messages": [{"role": "assistant", "tool_calls": [{"type": "custom"}]}]}, "messages[0].tool_calls[0].type"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"),
        ({"temperature": float("nan")}, "temperature"),
        ({"logit_bias": nested(3000)}, "logit_bias"),
    ],
)
def test_what_is_not_served_is_refused_by_name(change: dict[str, Any], problem: str):
    assert problem in str(refusal(CHAT, {**BODY, **change}))


def test_reading_goes_on_from_any_message():
    items = CHAT.items(BODY)
    for start in range(len(items)):
        assert list(CHAT.read(items, start)) == list(CHAT.read(items, 0))[start:]


def test_a_body_that_is_broken_anywhere_is_refused_or_read():
    refusals = [(path, refusal(CHAT, broken)) for path, broken in breakages(BODY)]
    told = [(path[0], problem) for path, problem in refusals if problem is not None]
    assert len(told) > 200
    assert all(place in problem and len(problem) < 300 for place, problem in told)


@given(st.dictionaries(st.sampled_from(["messages", "tools", "stop", "n", "stream_options", "model"]), json_values))
def test_random_json_is_refused_or_read(body: dict[str, Any]):
    refusal(CHAT, body)


@given(json_values)
def test_a_random_message_is_refused_by_its_place(message: Any):
    with pytest.raises(DialectError, match=r"messages\[1\]"):
        read({"role": "user", "content": ""}, {"role": "assistant", "tool_calls": [message]})


# ---- writing -----------------------------------------------------------------------------------------------------

REPLIES = [
    completion(Message("assistant", "done\u2028")),
    completion(Message("assistant", "")),
    completion(Message("assistant", "cut of"), "length"),
    completion(Message("assistant", "", CALLS), "tool_calls"),
    completion(Message("assistant", "so:", CALLS[:1], reasoning="hm\n\nwell"), "tool_calls"),
]


@pytest.mark.parametrize("said", REPLIES)
def test_a_reply_comes_back_as_the_message_that_was_sampled(said: Completion):
    with client(lambda body: CHAT.reply(CHAT.wishes(body), said, "id0")) as sdk:
        reply = sdk.chat.completions.create(model="m", messages=[{"role": "user", "content": "go"}])
    ChatCompletion.model_validate(CHAT.reply(Wishes(), said, "id0"))
    choice = reply.choices[0]
    assert (reply.id, reply.model, choice.finish_reason) == ("chatcmpl-id0", "m", said.finish_reason)
    assert read(choice.message.model_dump()) == [said.message]
    assert reply.usage is not None
    assert reply.usage.model_dump(exclude_none=True) == {
        "prompt_tokens": 5,
        "completion_tokens": 3,
        "total_tokens": 8,
        "prompt_tokens_details": {"cached_tokens": 2},
    }


def test_a_reply_of_calls_alone_has_null_content_and_a_silent_one_has_not():
    assert CHAT.reply(Wishes(), REPLIES[3], "i")["choices"][0]["message"]["content"] is None
    assert CHAT.reply(Wishes(), REPLIES[1], "i")["choices"][0]["message"] == {
        "role": "assistant",
        "content": "",
        "refusal": None,
    }


@pytest.mark.parametrize("said", REPLIES)
def test_a_stream_adds_up_to_the_reply(said: Completion):
    def answer(body: dict[str, Any]) -> bytes:
        return CHAT.keep_alive * 2 + b"".join(CHAT.events(CHAT.wishes(body), said, "id0"))

    state = ChatCompletionStreamState()
    with client(answer) as sdk:
        options: Any = {"model": "m", "messages": [], "stream": True, "stream_options": {"include_usage": True}}
        for chunk in sdk.chat.completions.create(**options):
            state.handle_chunk(chunk)
    told = state.current_completion_snapshot
    whole = ChatCompletion.model_validate(CHAT.reply(CHAT.wishes({"model": "m"}), said, "id0"))
    assert (told.id, told.model, told.usage) == (whole.id, whole.model, whole.usage)
    assert told.choices[0].finish_reason == said.finish_reason
    assert read(told.choices[0].message.model_dump()) == [said.message]


def test_a_stream_says_role_thoughts_text_calls_and_end_in_order():
    said = replace(REPLIES[4], message=replace(REPLIES[4].message, tool_calls=CALLS))
    found = chunks(CHAT.wishes(BODY), said)
    deltas = [chunk.choices[0].delta.model_dump(exclude_none=True) for chunk in found[:-1]]
    assert deltas == [
        {"role": "assistant", "content": ""},
        {"reasoning_content": "hm\n\nwell"},
        {"content": "so:"},
        *(
            {
                "tool_calls": [
                    {
                        "index": i,
                        "id": call.id,
                        "type": "function",
                        "function": {"name": "bash", "arguments": call.arguments},
                    }
                ]
            }
            for i, call in enumerate(CALLS)
        ),
        {},
    ]
    assert [chunk.choices[0].finish_reason for chunk in found[:-1]] == [None] * 5 + ["tool_calls"]
    assert found[-1].choices == []
    assert found[-1].usage == ChatCompletion.model_validate(CHAT.reply(Wishes(), said, "id0")).usage


def test_usage_is_streamed_where_it_is_asked_for():
    assert all(chunk.usage is None and chunk.choices for chunk in chunks(Wishes(), REPLIES[0]))


@pytest.mark.parametrize(
    ("status", "problem", "error"),
    [
        (400, "n must be 1", openai.BadRequestError),
        (400, f"{CONTEXT_LENGTH}: 900 of 800 tokens", openai.BadRequestError),
        (404, "nobody", openai.NotFoundError),
        (429, "later", openai.RateLimitError),
        (503, "over", openai.InternalServerError),
    ],
)
def test_errors_have_the_protocols_form(status: int, problem: str, error: type[openai.APIStatusError]):
    told = CHAT.error(status, problem)
    assert told["error"].keys() == {"message", "type", "param", "code"}
    with client(lambda body: told, status) as sdk, pytest.raises(error) as raised:
        sdk.chat.completions.create(model="m", messages=[])
    assert problem in raised.value.message
    too_long = problem.startswith(CONTEXT_LENGTH)
    assert raised.value.code == ("context_length_exceeded" if too_long else None)
    assert ("maximum context length" in raised.value.message) is too_long


def test_an_error_ends_a_stream():
    for problem, code in ((f"{CONTEXT_LENGTH}: 9 of 8", "context_length_exceeded"), ("the session was closed", None)):
        frames = CHAT.keep_alive + CHAT.error_event(problem)
        with client(lambda body, frames=frames: frames) as sdk, pytest.raises(openai.APIError, match=problem) as raised:
            list(sdk.chat.completions.create(model="m", messages=[], stream=True))
        assert raised.value.code == code
