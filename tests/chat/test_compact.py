import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models

from whippletree.chat.compact import SPECIAL_TOKENS, CompactRenderer, train_tokenizer
from whippletree.errors import PolicyError
from whippletree.types import Ids, Message, Part, Tool, ToolCall

TEXTS = ["cat notes.txt | wc -l\ncat the notes\nnotes = 12"] * 4
TOKENIZER = train_tokenizer(TEXTS, 400)
RENDERER = CompactRenderer(TOKENIZER)
ARGUMENTS = {
    "type": "object",
    "properties": {
        "command": {"type": "string", "description": "what to run"},
        "times": {"type": "integer"},
        "ratio": {"type": ["number", "null"]},
        "quiet": {"type": "boolean"},
        "files": {"type": "array"},
        "env": {"type": "object"},
        "odd": True,
    },
}
BASH = Tool("bash", "Run a command.", ARGUMENTS)
NAMES = st.text(min_size=1, max_size=8)
VALUES = {
    "command": st.text(max_size=20),
    "times": st.integers(-(10**12), 10**12),
    "ratio": st.none() | st.floats(allow_nan=False, allow_infinity=False),
    "quiet": st.booleans(),
    "files": st.lists(st.text(max_size=5), max_size=3),
    "env": st.dictionaries(NAMES, st.integers(), max_size=3),
    "odd": st.text(max_size=5),
    "unknown": st.text(max_size=5),
}


def ids_of(*parts: str | int) -> Ids:
    """Special tokens by name, other text as the renderer encodes it."""
    ids: list[int] = []
    for part in parts:
        special = TOKENIZER.token_to_id(part) if part in SPECIAL_TOKENS else None
        ids += [special] if special is not None else RENDERER._encode(part)
    return np.array(ids, dtype=np.int64)


def words(ids: Ids) -> list[str]:
    return [TOKENIZER.id_to_token(int(id)) for id in ids]


def test_the_special_tokens_have_fixed_ids():
    assert [TOKENIZER.token_to_id(token) for token in SPECIAL_TOKENS] == list(range(len(SPECIAL_TOKENS)))


def test_training_a_tokenizer_is_deterministic():
    assert train_tokenizer(TEXTS, 400).to_str() == TOKENIZER.to_str()


def test_a_frequent_word_is_one_token_wherever_it_stands():
    assert words(RENDERER._encode("cat notes\ncat")) == ["Ġcat", "Ġnotes", "Ċ", "Ġcat"]
    assert words(RENDERER._encode("notes.txt")) == ["Ġnotes", ".txt"]
    assert words(RENDERER._encode("12")) == ["Ġ1", "2"]


def test_a_tokenizer_without_the_special_tokens_is_refused():
    with pytest.raises(PolicyError, match="lacks the special tokens"):
        CompactRenderer(Tokenizer(models.BPE()))


@given(st.text())
def test_any_text_decodes_to_itself(text):
    ids = RENDERER.encode_messages([Message("user", text)])
    assert RENDERER.text(ids) == f"<|user|>{text}<|end|>"
    assert not set(ids[1:-1].tolist()) & set(range(len(SPECIAL_TOKENS)))


@given(st.lists(st.sampled_from(["\n", " ", "  ", "a", "<|end|>", "<|call|>", ".txt", "\r", "\t"])).map("".join))
def test_white_space_and_spelled_marks_decode_to_themselves(text):
    assert RENDERER.text(RENDERER.encode_messages([Message("tool", text)])) == f"<|result|>{text}<|end|>"


def test_lone_surrogates_are_replaced_not_fatal():
    assert RENDERER.text(RENDERER.encode_messages([Message("user", "a\ud800b")])) == "<|user|>a?b<|end|>"


def test_the_head_shows_tools_in_the_system_block():
    messages = [Message("system", "cat"), Message("user", "notes")]
    tools = [Tool("bash", "", {"properties": {"cat": {"type": "string"}, "wc": {"description": "the notes"}}})]
    expected = "<|system|>cat<|tool|>bash<|arg|>cat : string<|arg|>wc : the notes<|end|><|user|>notes<|end|>"
    assert RENDERER.text(RENDERER.encode_head(messages, tools)) == expected
    assert RENDERER.text(RENDERER.encode_head([], [BASH])).startswith("<|system|><|tool|>bash : Run a command.<|arg|>")
    assert len(RENDERER.encode_head([], [])) == 0


def test_rendering_is_concatenative():
    messages = [Message("user", "a"), Message("assistant", "b"), Message("tool", "c"), Message("user", "d")]
    whole = RENDERER.encode_messages(messages)
    assert whole.tolist() == np.concatenate([RENDERER.encode_messages([m]) for m in messages]).tolist()
    turn = [RENDERER.opening, RENDERER.encode_completion(messages[1])]
    assert np.concatenate(turn).tolist() == RENDERER.encode_messages([messages[1]]).tolist()


@given(st.text(max_size=30), st.lists(st.tuples(NAMES, st.fixed_dictionaries({}, optional=VALUES)), max_size=3))
def test_what_is_said_is_read_back(content, calls):
    tools = [Tool(name, "", ARGUMENTS) for name, _ in calls]
    said = tuple(ToolCall("", name, json.dumps(arguments)) for name, arguments in calls)
    message, error = RENDERER.parse(RENDERER.encode_completion(Message("assistant", content, said)), tools)
    assert error is None
    assert message.content == content
    read = [(call.name, json.loads(call.arguments)) for call in message.tool_calls]
    assert read == [(name, arguments) for name, arguments in calls]


def test_values_are_strings_without_a_schema():
    said = Message("assistant", "", (ToolCall("", "other", '{"n": 3, "s": "x"}'),))
    message, error = RENDERER.parse(RENDERER.encode_completion(said), [BASH])
    assert error is None
    assert json.loads(message.tool_calls[0].arguments) == {"n": "3", "s": "x"}


def test_arguments_that_are_no_object_are_kept_as_text():
    said = Message("assistant", "", (ToolCall("", "bash", "not json"),))
    assert RENDERER.text(RENDERER.encode_completion(said)) == "<|call|>bash<|arg|>arguments<|val|>not json<|end|>"


@pytest.mark.parametrize(
    ("parts", "told"),
    [
        (("a", "<|call|>", "<|end|>"), "names no tool"),
        (("<|call|>", "bash", "<|arg|>", "command", "<|end|>"), "has no <|val|>"),
        (("<|call|>", "bash", "<|val|>", "x", "<|end|>"), "Found <|val|>"),
        (("<|user|>", "x", "<|end|>"), "Found <|user|>"),
        (("a", "<|end|>", "b", "<|end|>"), "Found <|end|>"),
        (("<|call|>", "bash", "<|arg|>", "command", "<|val|>", "x"), "cut off"),
        (("<|call|>", "b", "<|arg|>", "c", "<|val|>", "x", "<|arg|>", "c", "<|val|>", "y", "<|end|>"), "given twice"),
        (("<|call|>", "bash", "<|arg|>", "times", "<|val|>", "three", "<|end|>"), "must be integer, got 'three'"),
        (("<|call|>", "bash", "<|arg|>", "times", "<|val|>", "true", "<|end|>"), "must be integer, got 'true'"),
        (("<|call|>", "bash", "<|arg|>", "files", "<|val|>", "[" * 5000, "<|end|>"), "must be array"),
    ],
)
def test_malformed_output_is_told_in_words(parts, told):
    message, error = RENDERER.parse(ids_of(*parts), [BASH])
    assert error is not None
    assert told in error
    assert message == Message("assistant", "".join(parts))


@given(st.lists(st.integers(0, TOKENIZER.get_vocab_size() - 1), max_size=30))
def test_parsing_never_raises(ids):
    message, error = RENDERER.parse(np.array(ids, dtype=np.int64), [BASH])
    assert message.role == "assistant"
    assert error is None or not message.tool_calls


def test_a_truncated_answer_is_closed_by_context():
    assert RENDERER.closing(ids_of("a", "<|end|>")).tolist() == []
    assert RENDERER.closing(ids_of("a")).tolist() == [TOKENIZER.token_to_id("<|end|>")]
    assert RENDERER.closing(ids_of()).tolist() == [TOKENIZER.token_to_id("<|end|>")]
    assert RENDERER.parse(ids_of("a"), []) == (Message("assistant", "a"), None)


@given(st.text(max_size=30), st.lists(st.tuples(NAMES, st.fixed_dictionaries({}, optional=VALUES)), max_size=3))
def test_the_parts_of_a_message_are_its_calls_names_and_arguments(content, calls):
    said = tuple(ToolCall("", name, json.dumps(arguments)) for name, arguments in calls)
    ids = RENDERER.encode_completion(Message("assistant", content, said))
    expected = [Part.OTHER] * len(ids_of(content))
    for call in said:
        whole = len(RENDERER.encode_completion(Message("assistant", "", (call,)))) - 1
        action = len(ids_of("<|call|>", call.name))
        expected += [Part.ACTION] * action + [Part.ARGUMENT] * (whole - action)
    message, error = RENDERER.parse(ids, [Tool(name, "", ARGUMENTS) for name, _ in calls])
    assert error is None
    assert RENDERER.parts(ids, message).tolist() == [*expected, Part.OTHER]


@given(st.lists(st.integers(0, TOKENIZER.get_vocab_size() - 1), max_size=30))
def test_what_is_malformed_or_calls_nothing_has_no_parts(ids):
    sampled = np.array(ids, dtype=np.int64)
    message, _ = RENDERER.parse(sampled, [BASH])
    parts = RENDERER.parts(sampled, message)
    assert (len(parts), bool(parts.any())) == (len(ids), bool(message.tool_calls))
