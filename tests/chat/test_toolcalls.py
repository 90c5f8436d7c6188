import contextlib
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whippletree.chat.toolcalls import PARSERS, Malformed, detect_parser, parse_hermes, parse_llama, split_thinking
from whippletree.types import ToolCall


def test_hermes_reads_several_calls_and_the_text_around_them():
    first, second = '\n{"name": "ls", "arguments": {"n": 1}}\n', '{"name": "pwd"}'
    text = f"Look.\n<tool_call>{first}</tool_call>\n<tool_call>{second}</tool_call>"
    assert parse_hermes(text) == ("Look.", (ToolCall("", "ls", '{"n": 1}'), ToolCall("", "pwd", "{}")))


def test_hermes_accepts_arguments_as_json_text():
    call = json.dumps({"name": "ls", "arguments": '{"n": 1}'})
    assert parse_hermes(f"<tool_call>{call}</tool_call>")[1] == (ToolCall("", "ls", '{"n": 1}'),)


def test_llama_reads_one_bare_object():
    assert parse_llama(' {"name": "ls", "parameters": {"n": "é"}}') == ("", (ToolCall("", "ls", '{"n": "é"}'),))
    assert parse_llama('<|python_tag|>{"type": "function", "name": "ls", "parameters": {}}')[1][0].name == "ls"


@pytest.mark.parametrize("text", ["plain", '{"answer": 3}', '{"name": "a person"}', '{"nam'])
def test_llama_leaves_other_answers_alone(text):
    assert parse_llama(text) == (text, ())


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("hermes", '<tool_call>{"name": "ls"}', "not closed"),
        ("hermes", "<tool_call>{name: ls}</tool_call>", "not valid JSON"),
        ("hermes", "<tool_call>[1]</tool_call>", "must be a JSON object"),
        ("hermes", '<tool_call>{"arguments": {}}</tool_call>', 'no "name"'),
        ("hermes", '<tool_call>{"name": "ls", "arguments": [1]}</tool_call>', '"arguments" of ls must be'),
        ("hermes", "<tool_call>" + "[" * 10**5 + "</tool_call>", "nested too deeply"),
        ("llama", '{"name": "ls", "parameters": {"a": }}', "not valid JSON"),
        ("llama", '{"name": "ls", "parameters": {}} and more', "not valid JSON"),
    ],
)
def test_malformed_calls_are_told_in_words(name, text, told):
    with pytest.raises(Malformed, match=told):
        PARSERS[name](text)


@given(st.lists(st.sampled_from(['{"name":', '"x"', "}", "<tool_call>", "</tool_call>", "[", " ", "a"])).map("".join))
def test_parsers_raise_nothing_else(text):
    for parse in PARSERS.values():
        with contextlib.suppress(Malformed):
            parse(text)


def test_thinking_is_split_off():
    assert split_thinking("<think>\nhm\n</think>\n\nyes <think> no", opened=False) == "yes <think> no"
    assert split_thinking("hm</think>yes", opened=True) == "yes"
    assert split_thinking("yes", opened=False) == "yes"
    with pytest.raises(Malformed, match="inside its thinking"):
        split_thinking("<think>hm", opened=False)


def test_detection_reads_the_template():
    assert detect_parser("{{ tools }} <tool_call>") == "hermes"
    assert detect_parser("{{ tools }} <tool_call><function=x>") is None
    assert detect_parser('{{ tools }} "parameters": dictionary of argument name and its value}') == "llama"
    assert detect_parser("{{ tools }} [AVAILABLE_TOOLS]") is None
    assert detect_parser("{{ messages }}") == "none"
