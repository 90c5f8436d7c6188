import json
from contextlib import suppress
from itertools import pairwise

import pytest
from gemini_words import CALL, DIALECT, SCHEMA, called, completion, model, read, result, text, user
from hypothesis import given
from hypothesis import strategies as st

from whippletree.gateway.dialects.base import CONTEXT_LENGTH, DialectError
from whippletree.gateway.dialects.gemini import chunks
from whippletree.types import Message, Tool, ToolCall

# ---- reading -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["systemInstruction", "system_instruction"])
@pytest.mark.parametrize("told", [{"parts": [text("act")]}, {"role": "user", "parts": [text("act")]}, "act"])
def test_the_instruction_is_a_system_message(name, told):
    assert read(user(text("do")), **{name: told}) == [Message("system", "act"), Message("user", "do")]


def test_an_instruction_that_says_nothing_is_no_message():
    for told in ("", {}, {"parts": []}):
        assert read(user(text("do")), systemInstruction=told) == [Message("user", "do")]


def test_a_model_turn_is_read_whole():
    turn = (
        model(text("hm", thought=True), text("I ")),
        model(text("look", thoughtSignature="c2ln"), {"text": "", "thoughtSignature": "c2ln"}),
        model({**called(command="ls"), "thoughtSignature": "c2ln"}, {"functionCall": {"id": "7", "name": "stop"}}),
    )
    calls = (ToolCall("", "bash", '{"command":"ls"}'), ToolCall("7", "stop", "{}"))
    assert read(user(text("do")), *turn, user(text("go")))[1:] == [
        Message("assistant", "I look", calls, reasoning="hm"),
        Message("user", "go"),
    ]
    assert read(model()) == [Message("assistant", "")]


def test_results_of_tools_are_messages_and_come_before_the_text_next_to_them():
    picture = {"inlineData": {"mimeType": "image/png", "data": "AA"}}
    told = read(
        user(
            text("look"),
            result({"output": "a.txt"}, id="7"),
            result({"error": "no such file"}),
            result({"stdout": "é", "code": 1}, parts=[picture]),
            {"functionResponse": {"name": "bash"}},
        )
    )
    assert told == [
        Message("tool", "a.txt", tool_call_id="7"),
        Message("tool", "no such file", tool_call_id=""),
        Message("tool", '{"stdout":"é","code":1}\n[image]', tool_call_id=""),
        Message("tool", "", tool_call_id=""),
        Message("user", "look"),
    ]
    assert read({"role": "function", "parts": [result({"result": "x"})]})[0].content == "x"


def test_what_is_no_text_is_named():
    parts = (
        {"inline_data": {"mime_type": "image/png", "data": "AA"}},
        {"fileData": {"mimeType": "application/pdf", "fileUri": "x"}},
        {"executableCode": {"code": "1"}},
        {"videoMetadata": {}},
        text("?"),
    )
    assert read({"parts": list(parts)}) == [Message("user", "[image]\n[file]\n[executableCode]\n?")]


def test_tools_have_schemas_in_lower_case():
    given = {
        "type": "OBJECT",
        "properties": {
            "type": {"type": "STRING", "enum": ["STRING"], "example": {"type": "STRING"}},
            "many": {"type": "ARRAY", "items": {"anyOf": [{"type": "INTEGER"}, {"type": "NULL"}]}},
        },
        "required": ["type"],
    }
    wanted = {
        "type": "object",
        "properties": {
            "type": {"type": "string", "enum": ["STRING"], "example": {"type": "STRING"}},
            "many": {"type": "array", "items": {"anyOf": [{"type": "integer"}, {"type": "null"}]}},
        },
        "required": ["type"],
    }
    raw = [
        {"functionDeclarations": [{"name": "a", "description": "A.", "parameters": given}]},
        {"googleSearch": {}},
        {"function_declarations": [{"name": "b", "parametersJsonSchema": SCHEMA}, {"name": "c"}]},
    ]
    assert DIALECT.raw_tools({"tools": raw}) is raw
    nothing = {"type": "object", "properties": {}}
    assert DIALECT.tools(raw) == (Tool("a", "A.", wanted), Tool("b", "", SCHEMA), Tool("c", "", nothing))
    assert given["type"] == "OBJECT"
    assert DIALECT.tools(None) == ()


def test_wishes_keep_what_was_asked():
    config = {"temperature": 1, "topP": 0.95, "thinkingConfig": {"thinkingBudget": 8192}}
    config |= {"maxOutputTokens": 50, "stopSequences": ["END"]}
    choice = {"functionCallingConfig": {"mode": "ANY"}}
    body = {"model": "m", "stream": True, "generationConfig": config, "toolConfig": choice, "safetySettings": []}
    wishes = DIALECT.wishes(body)
    assert (wishes.model, wishes.stream, wishes.max_tokens, wishes.stop) == ("m", True, 50, ("END",))
    assert wishes.asked == {**config, "toolConfig": choice, "model": "m"}
    assert DIALECT.wishes({"generation_config": {"max_output_tokens": 50}}).max_tokens == 50
    assert DIALECT.wishes({}).max_tokens is None


@pytest.mark.parametrize(
    ("body", "place"),
    [
        ({}, "contents"),
        ({"contents": []}, "contents"),
        ({"contents": ["x"]}, "contents[0]"),
        ({"contents": [{"role": "assistant", "parts": []}]}, "contents[0].role"),
        ({"contents": [{"role": ["user"], "parts": []}]}, "contents[0].role"),
        ({"contents": [{"role": "user", "parts": "x"}]}, "contents[0].parts"),
        ({"contents": [user("x")]}, "contents[0].parts[0]"),
        ({"contents": [user(text(3))]}, "contents[0].parts[0].text"),
        ({"contents": [user({"inlineData": "x"})]}, "contents[0].parts[0].inlineData"),
        ({"contents": [user({"inlineData": {"mimeType": 3}})]}, "contents[0].parts[0].inlineData.mimeType"),
        ({"contents": [user(result("x"))]}, "contents[0]: functionResponse.response"),
        ({"contents": [user(result({}, parts=["x"]))]}, "contents[0]: functionResponse.parts[0]"),
        ({"contents": [model({"functionCall": {}})]}, "contents[0].parts[0].functionCall.name"),
        ({"contents": [model({"functionCall": {"name": "a", "args": 1}})]}, "contents[0].parts[0].functionCall.args"),
        ({"contents": [user(text("x"))], "systemInstruction": {"parts": [3]}}, "systemInstruction.parts[0]"),
    ],
)
def test_bad_conversations_are_refused_by_place(body, place):
    with pytest.raises(DialectError) as error:
        list(DIALECT.read(DIALECT.items(body), 0))
    assert str(error.value).startswith(f"{place} ")


def test_absurd_nesting_is_refused():
    deep = {}
    for _ in range(5000):
        deep = {"properties": deep}
    with pytest.raises(DialectError, match=r"functionCall.args is nested"):
        read(model({"functionCall": {"name": "a", "args": deep}}))
    with pytest.raises(DialectError, match=r"functionResponse.response is nested"):
        read(user(result(deep)))
    with pytest.raises(DialectError, match=r"functionDeclarations\[0\].parameters is nested"):
        DIALECT.tools([{"functionDeclarations": [{"name": "a", "parameters": deep}]}])
    with pytest.raises(DialectError, match="generationConfig is nested"):
        DIALECT.wishes({"generationConfig": deep})


# ---- properties --------------------------------------------------------------------------------------------------

WORDS = st.sampled_from(["", "a", "\u2028"])
PARTS = st.lists(
    st.one_of(
        WORDS.map(text),
        WORDS.map(lambda word: text(word, thought=True)),
        WORDS.map(lambda word: called(command=word)),
        WORDS.map(lambda word: result({"output": word})),
        st.just({"thoughtSignature": "c2ln"}),
    ),
    max_size=4,
)
CONTENTS = st.fixed_dictionaries({"role": st.sampled_from(["user", "model"]), "parts": PARTS})
CONVERSATIONS = st.fixed_dictionaries(
    {"contents": st.lists(CONTENTS, min_size=1, max_size=8)},
    optional={"systemInstruction": PARTS.map(lambda parts: {"parts": parts})},
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


NAMES = ["role", "parts", "text", "functionCall", "function_response", "inlineData", "mimeType", "name", "args", "id"]
NAMES += [
    "response",
    "contents",
    "systemInstruction",
    "generationConfig",
    "maxOutputTokens",
    "stopSequences",
    "thought",
]
NAMES += ["tools", "functionDeclarations", "parameters", "properties", "type", "items", "user", "model", "stream"]
ATOMS = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.sampled_from(NAMES), st.text(max_size=3))
ANYTHING = st.recursive(
    ATOMS,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(NAMES), inner, max_size=4)),
    max_leaves=15,
)


def with_any(*names):
    return st.fixed_dictionaries({}, optional=dict.fromkeys(names, ANYTHING))


PART_OF_ANYTHING = st.one_of(
    with_any("text", "thought", "functionCall", "functionResponse", "inlineData", "fileData"),
    with_any("id", "name", "args").map(lambda call: {"functionCall": call}),
    with_any("id", "response", "parts").map(lambda response: {"functionResponse": response}),
)
ROLES = st.one_of(st.sampled_from(["user", "model"]), ANYTHING)
CONTENT_OF_ANYTHING = st.fixed_dictionaries(
    {"role": ROLES, "parts": st.one_of(ANYTHING, st.lists(PART_OF_ANYTHING, max_size=3))}
)
DECLARED = st.lists(with_any("name", "description", "parameters", "parametersJsonSchema"), max_size=2)
TOOLS = st.lists(st.one_of(ANYTHING, DECLARED.map(lambda tools: {"functionDeclarations": tools})), max_size=2)
BODIES = st.one_of(
    st.dictionaries(st.sampled_from(NAMES), ANYTHING, max_size=6),
    st.fixed_dictionaries({"contents": st.lists(CONTENT_OF_ANYTHING, max_size=3), "tools": TOOLS}),
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


def test_a_reply_has_its_parts_in_order():
    message = Message("assistant", "I look", (CALL, ToolCall("call8", "bash", "{oops")), reasoning="hm")
    told = DIALECT.reply(DIALECT.wishes({"model": "m"}), completion(message, "tool_calls", 4), "1f")
    unparsed = {"__unparsedToolInput": {"raw": "{oops", "len": 5}}
    parts = [
        text("hm", thought=True),
        text("I look"),
        {"functionCall": {"id": "call7", "name": "bash", "args": {"command": "ls"}}},
        {"functionCall": {"id": "call8", "name": "bash", "args": unparsed}},
    ]
    assert told == {
        "candidates": [{"content": {"role": "model", "parts": parts}, "index": 0, "finishReason": "STOP"}],
        "modelVersion": "m",
        "responseId": "1f",
        "usageMetadata": {
            "promptTokenCount": 10,
            "cachedContentTokenCount": 4,
            "candidatesTokenCount": 3,
            "totalTokenCount": 13,
        },
    }
    frames = list(DIALECT.events(DIALECT.wishes({"model": "m"}), completion(message, "tool_calls", 4), "1f"))
    told_in_parts = [json.loads(frame.removeprefix(b"data: ")) for frame in frames]
    assert told_in_parts == chunks(DIALECT.wishes({"model": "m"}), completion(message, "tool_calls", 4), "1f")
    assert [chunk["candidates"][0]["content"]["parts"] for chunk in told_in_parts] == [[part] for part in parts]
    assert ["usageMetadata" in chunk for chunk in told_in_parts] == [False, False, False, True]


def test_errors_have_the_statuses_of_the_protocol():
    statuses = {400: "INVALID_ARGUMENT", 401: "UNAUTHENTICATED", 404: "NOT_FOUND", 413: "INVALID_ARGUMENT"}
    statuses |= {429: "RESOURCE_EXHAUSTED", 500: "INTERNAL", 502: "INTERNAL", 503: "UNAVAILABLE"}
    for status, name in statuses.items():
        assert DIALECT.error(status, "no") == {"error": {"code": status, "message": "no", "status": name}}
    words = "The input token count exceeds the maximum number of tokens allowed: 9 > 8"
    assert DIALECT.error(400, f"{CONTEXT_LENGTH}: 9 > 8")["error"]["message"] == words
    assert json.loads(DIALECT.error_event(f"{CONTEXT_LENGTH}: 9 > 8"))["error"]["code"] == 400
