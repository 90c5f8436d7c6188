import json
from contextlib import suppress
from itertools import pairwise

import anthropic
import httpx2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from whippletree.gateway.dialects.base import CONTEXT_LENGTH, DialectError
from whippletree.gateway.dialects.messages import Messages, count_tokens_reply
from whippletree.types import Completion, Message, Tool, ToolCall

DIALECT = Messages()
BILLING = "x-anthropic-billing-header: cc_version=2.1.332.4bb; cc_entrypoint=sdk-cli;"
SCHEMA = {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]}
CALL = ToolCall("call7", "bash", '{"command": "ls"}')


def completion(message, finish_reason="stop", cached_tokens=0):
    ids = np.arange(3)
    return Completion(message, finish_reason, np.arange(10), ids, np.zeros(3, np.float32), 0, None, cached_tokens)


def read(*messages, system=None):
    body = {"messages": list(messages)} | ({} if system is None else {"system": system})
    return [message for message, _ in DIALECT.read(DIALECT.items(body), 0)]


def user(*blocks):
    return {"role": "user", "content": list(blocks)}


def assistant(*blocks):
    return {"role": "assistant", "content": list(blocks)}


def text(value, **more):
    return {"type": "text", "text": value, **more}


def used(id="a", name="bash", **input):
    return {"type": "tool_use", "id": id, "name": name, "input": input}


def result(id, content, **more):
    return {"type": "tool_result", "tool_use_id": id, "content": content, **more}


IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA"}}


# ---- reading -----------------------------------------------------------------------------------------------------


def test_a_string_equals_one_text_block_and_marks_for_caches_are_nothing():
    plain = read({"role": "user", "content": "do"}, system="act")
    marked = read(user(text("do", cache_control={"type": "ephemeral"})), system=[text("act", cache_control={})])
    assert plain == marked == [Message("system", "act"), Message("user", "do")]


@pytest.mark.parametrize("system", [[text(BILLING), text("act")], f"{BILLING}\nact", [text("act"), text(BILLING)]])
def test_the_billing_header_is_dropped_wherever_it_stands(system):
    assert read({"role": "user", "content": "do"}, system=system)[0] == Message("system", "act")
    assert read({"role": "user", "content": "do"}, {"role": "system", "content": system})[1].content == "act"


def test_a_system_that_says_nothing_is_no_message():
    for system in ("", [], BILLING, [text(BILLING)]):
        assert read({"role": "user", "content": "do"}, system=system) == [Message("user", "do")]


def test_system_messages_stay_in_mid_conversation():
    told = read(user(text("do")), {"role": "system", "content": [text("a"), text("b")]}, user(text("more")))
    assert told == [Message("user", "do"), Message("system", "a\nb"), Message("user", "more")]


def test_results_of_tools_are_messages_and_come_before_the_text_next_to_them():
    told = read(
        user(text("first"), result("a", "out"), result("b", [text("x"), IMAGE], is_error=True), text("go on")),
    )
    assert told == [
        Message("tool", "out", tool_call_id="a"),
        Message("tool", "x\n[image]", tool_call_id="b"),
        Message("user", "first\ngo on"),
    ]
    assert read(user({"type": "tool_result", "tool_use_id": "a"})) == [Message("tool", "", tool_call_id="a")]


def test_what_is_no_text_is_named():
    assert read(user(IMAGE, {"type": "document", "source": {}}, text("?"))) == [
        Message("user", "[image]\n[document]\n?")
    ]


def test_an_assistant_turn_is_read_whole():
    turn = assistant(
        {"type": "thinking", "thinking": "hm", "signature": "s"},
        {"type": "redacted_thinking", "data": "xyz"},
        text("I look"),
        used(command="ls", ünit="é"),
    )
    calls = (ToolCall("a", "bash", '{"command":"ls","ünit":"é"}'),)
    assert read(turn) == [Message("assistant", "I look", calls, reasoning="hm")]
    assert read(assistant(text("I ")), {"role": "assistant", "content": "look"}) == [Message("assistant", "I look")]
    assert read(assistant()) == [Message("assistant", "")]


def test_arguments_that_a_harness_could_not_parse_are_the_raw_text():
    turn = assistant(used(__unparsedToolInput={"raw": '{"command": "l', "len": 14}))
    assert read(turn)[0].tool_calls == (ToolCall("a", "bash", '{"command": "l'),)


def test_tools_that_the_model_cannot_call_are_left_out():
    raw = [
        {"name": "bash", "description": "Run.", "input_schema": SCHEMA, "cache_control": {"type": "ephemeral"}},
        {"name": "quiet", "input_schema": {}, "type": "custom"},
        {"name": "later", "input_schema": SCHEMA, "defer_loading": True},
        {"type": "web_search_20250305", "name": "web_search"},
        {"name": "placeholder"},
    ]
    assert DIALECT.raw_tools({"tools": raw}) is raw
    assert DIALECT.tools(raw) == (Tool("bash", "Run.", SCHEMA), Tool("quiet", "", {}))
    assert DIALECT.tools(None) == DIALECT.tools([]) == ()


def test_wishes_keep_what_was_asked():
    body = {"model": "m", "max_tokens": 32000, "stream": True, "stop_sequences": ["END"], "messages": []}
    body |= {"thinking": {"type": "adaptive"}, "temperature": 0.3, "metadata": {"user_id": "u"}}
    wishes = DIALECT.wishes(body)
    assert (wishes.model, wishes.stream, wishes.max_tokens, wishes.stop) == ("m", True, 32000, ("END",))
    assert wishes.asked == {k: body[k] for k in ("model", "max_tokens", "stop_sequences", "thinking", "temperature")}
    assert DIALECT.wishes({}).max_tokens is None


@pytest.mark.parametrize(
    ("body", "place"),
    [
        ({}, "messages"),
        ({"messages": []}, "messages"),
        ({"messages": ["x"]}, "messages[0]"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": ["user"], "content": "x"}]}, "messages[0].role"),
        ({"messages": [user(text("x")), {"role": "user"}]}, "messages[1].content"),
        ({"messages": [user("x")]}, "messages[0].content[0]"),
        ({"messages": [user({"type": "text"})]}, "messages[0].content[0].text"),
        ({"messages": [user({"text": "x"})]}, "messages[0].content[0].type"),
        ({"messages": [user({"type": "tool_result"})]}, "messages[0].content: tool_use_id"),
        ({"messages": [assistant({"type": "tool_use", "id": "a", "name": "b"})]}, "messages[0].content[0].input"),
        ({"messages": [user(text("x"))], "system": 3}, "system"),
    ],
)
def test_bad_conversations_are_refused_by_place(body, place):
    with pytest.raises(DialectError) as error:
        list(DIALECT.read(DIALECT.items(body), 0))
    assert str(error.value).startswith(f"{place} ")


def test_absurd_nesting_is_refused():
    deep = {}
    for _ in range(5000):
        deep = {"a": deep}
    with pytest.raises(DialectError, match=r"messages\[0\].content\[0\].input is nested"):
        read(assistant({"type": "tool_use", "id": "a", "name": "b", "input": deep}))
    with pytest.raises(DialectError, match=r"tools\[0\].input_schema is nested"):
        DIALECT.tools([{"name": "bash", "input_schema": deep}])
    with pytest.raises(DialectError, match="thinking is nested"):
        DIALECT.wishes({"thinking": deep})


# ---- properties --------------------------------------------------------------------------------------------------

WORDS = st.sampled_from(["", "a", BILLING, "\u2028"])
BLOCKS = st.lists(
    st.one_of(
        WORDS.map(text),
        st.builds(result, WORDS, st.one_of(WORDS, st.lists(WORDS.map(text), max_size=2))),
        WORDS.map(lambda word: used(command=word)),
        WORDS.map(lambda word: {"type": "thinking", "thinking": word}),
        st.just(IMAGE),
    ),
    max_size=4,
)
ROLES = st.sampled_from(["user", "assistant", "system"])
CONVERSATIONS = st.fixed_dictionaries(
    {
        "messages": st.lists(
            st.fixed_dictionaries({"role": ROLES, "content": st.one_of(WORDS, BLOCKS)}), min_size=1, max_size=8
        )
    },
    optional={"system": st.one_of(WORDS, st.lists(WORDS.map(text), max_size=3))},
)


@given(CONVERSATIONS, st.integers(0, 10))
def test_reading_can_begin_before_any_message_but_must_read_the_last_again(body, more):
    items = DIALECT.items(body)
    whole = list(DIALECT.read(items, 0))
    assert all(first < second for (_, first), (_, second) in pairwise(whole))
    for kept in range(len(whole)):
        start = whole[kept - 1][1] if kept else 0
        assert list(DIALECT.read(items, start)) == whole[kept:]
    head = items[: more % (len(items) + 1)]
    known = list(DIALECT.read(head, 0))[:-1]
    assert known == whole[: len(known)]


NAMES = ["role", "content", "type", "text", "id", "name", "input", "tool_use_id", "thinking", "messages", "system"]
NAMES += ["user", "assistant", "tool_use", "tool_result", "input_schema", "tools", "stop_sequences", "stream", "model"]
ATOMS = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.sampled_from(NAMES), st.text(max_size=3))
ANYTHING = st.recursive(
    ATOMS,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(NAMES), inner, max_size=4)),
    max_leaves=15,
)


def blocks_of_anything():
    kinds = st.sampled_from(["text", "tool_use", "tool_result", "thinking"])
    fields = dict.fromkeys(["text", "id", "name", "input", "tool_use_id", "content", "thinking"], ANYTHING)
    return st.fixed_dictionaries({"type": st.one_of(kinds, ANYTHING)}, optional=fields)


MESSAGES = st.fixed_dictionaries(
    {"role": st.one_of(ROLES, ANYTHING), "content": st.one_of(ANYTHING, st.lists(blocks_of_anything(), max_size=3))}
)
BODIES = st.one_of(
    st.dictionaries(st.sampled_from(NAMES), ANYTHING, max_size=6),
    st.fixed_dictionaries({"messages": st.lists(MESSAGES, max_size=3), "tools": ANYTHING}),
)


@given(BODIES)
def test_no_body_brings_another_error(body):
    for attempt in (
        lambda: list(DIALECT.read(DIALECT.items(body), 0)),
        lambda: DIALECT.tools(DIALECT.raw_tools(body)),
        lambda: DIALECT.wishes(body),
    ):
        with suppress(DialectError):
            attempt()


# ---- writing -----------------------------------------------------------------------------------------------------


def test_a_reply_has_its_blocks_in_order_and_counts_cached_tokens_apart():
    message = Message("assistant", "I look", (CALL, ToolCall("call8", "bash", "{oops")), reasoning="hm")
    told = DIALECT.reply(DIALECT.wishes({"model": "m"}), completion(message, "tool_calls", 4), "1f")
    unparsed = {"__unparsedToolInput": {"raw": "{oops", "len": 5}}
    assert told["content"] == [
        {"type": "thinking", "thinking": "hm", "signature": "1f"},
        text("I look"),
        used("call7", command="ls"),
        used("call8", **unparsed),
    ]
    assert (told["id"], told["model"], told["stop_reason"], told["stop_sequence"]) == ("msg_1f", "m", "tool_use", None)
    assert told["usage"] == {
        "input_tokens": 6,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": 4,
        "output_tokens": 3,
    }


def test_nothing_said_is_no_block():
    wishes = DIALECT.wishes({})
    assert DIALECT.reply(wishes, completion(Message("assistant", ""), "length"), "1")["content"] == []
    kinds = [frame.split(b"\n")[0] for frame in DIALECT.events(wishes, completion(Message("assistant", "")), "1")]
    assert kinds == [b"event: message_start", b"event: message_delta", b"event: message_stop"]


def test_errors_have_the_types_of_the_protocol():
    types = {400: "invalid_request_error", 401: "authentication_error", 404: "not_found_error", 500: "api_error"}
    types |= {413: "request_too_large", 429: "rate_limit_error", 529: "overloaded_error", 503: "api_error"}
    for status, kind in types.items():
        assert DIALECT.error(status, "no") == {"type": "error", "error": {"type": kind, "message": "no"}}
    overflow = json.loads(DIALECT.error_event(f"{CONTEXT_LENGTH}: 9 > 8").partition(b"data: ")[2])
    assert overflow == DIALECT.error(400, "prompt is too long: 9 > 8")


# ---- through the official client ---------------------------------------------------------------------------------

REPLIES = [
    completion(Message("assistant", "done\u2028 é 🙂")),
    completion(Message("assistant", "", (CALL, ToolCall("call8", "stop", ""))), "tool_calls", 4),
    completion(Message("assistant", "I look", (CALL,), reasoning="hm"), "tool_calls"),
    completion(Message("assistant", "cut o"), "length"),
    completion(Message("assistant", "")),
]


def client(answer):
    http = httpx2.Client(transport=httpx2.MockTransport(answer))
    return anthropic.Anthropic(api_key="k", base_url="http://here/s/1", http_client=http, max_retries=0)


def answering(reply, seen):
    def answer(request):
        body = json.loads(request.content)
        seen.append(body)
        wishes = DIALECT.wishes(body)
        if not wishes.stream:
            return httpx2.Response(200, json=DIALECT.reply(wishes, reply, "1f"))
        frames = [DIALECT.keep_alive, DIALECT.keep_alive, *DIALECT.events(wishes, reply, "1f")]
        return httpx2.Response(200, content=b"".join(frames), headers={"content-type": "text/event-stream"})

    return answer


ASKING = {
    "model": "any",
    "max_tokens": 100,
    "system": "act",
    "tools": [{"name": "bash", "description": "Run.", "input_schema": SCHEMA}],
}


@pytest.mark.parametrize("reply", REPLIES)
@pytest.mark.parametrize("stream", [False, True])
def test_the_official_client_hears_the_reply_and_hands_it_back(reply, stream):
    seen = []
    with client(answering(reply, seen)) as claude:
        conversation = [{"role": "user", "content": "do"}]
        if stream:
            with claude.messages.stream(messages=conversation, **ASKING) as events:
                heard = events.get_final_message()
        else:
            heard = claude.messages.create(messages=conversation, **ASKING)
        given_back = [block.to_dict() for block in heard.content]
        claude.messages.create(messages=[*conversation, {"role": "assistant", "content": given_back}], **ASKING)
    expected = {"stop": "end_turn", "tool_calls": "tool_use", "length": "max_tokens"}[reply.finish_reason]
    assert heard.stop_reason == expected
    assert heard.usage.input_tokens + heard.usage.cache_read_input_tokens == 10
    assert heard.usage.output_tokens == 3
    told = read(*seen[1]["messages"], system=seen[1]["system"])[2]
    assert (told.content, told.reasoning) == (reply.message.content, reply.message.reasoning)
    calls = [(call.id, call.name, json.loads(call.arguments or "{}")) for call in reply.message.tool_calls]
    assert [(call.id, call.name, json.loads(call.arguments)) for call in told.tool_calls] == calls
    assert DIALECT.tools(DIALECT.raw_tools(seen[0])) == (Tool("bash", "Run.", SCHEMA),)


def test_the_official_client_knows_the_errors():
    def refuse(request):
        return httpx2.Response(400, json=DIALECT.error(400, f"{CONTEXT_LENGTH}: 9 > 8"))

    def break_off(request):
        frames = DIALECT.keep_alive + DIALECT.error_event("the session was closed")
        return httpx2.Response(200, content=frames, headers={"content-type": "text/event-stream"})

    with client(refuse) as claude, pytest.raises(anthropic.BadRequestError, match="prompt is too long: 9 > 8"):
        claude.messages.create(messages=[{"role": "user", "content": "do"}], **ASKING)
    with client(break_off) as claude, pytest.raises(anthropic.APIError, match="the session was closed"):
        claude.messages.create(messages=[{"role": "user", "content": "do"}], stream=True, **ASKING).__next__()


def test_the_official_client_counts_tokens():
    with client(lambda request: httpx2.Response(200, json=count_tokens_reply(7))) as claude:
        counted = claude.messages.count_tokens(model="m", messages=[{"role": "user", "content": "do"}])
    assert counted.input_tokens == 7
