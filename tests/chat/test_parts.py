"""Parts of calls at token level: against the offsets that the tokenizer itself gives, however a text was cut."""

import json
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from test_template import BASH, LLAMA, QWEN, make

from whippletree.chat.parts import SPANS
from whippletree.chat.toolcalls import PARSERS
from whippletree.types import Message, Part

TOKENIZER, QWEN_RENDERER = make(QWEN, "<|im_end|>")
LLAMA_TOKENIZER, LLAMA_RENDERER = make(LLAMA, "<|eot_id|>")

TEXT = st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="<"), max_size=6)
SPACE = st.sampled_from(["", " ", "\n", "\n  "])
ARGUMENTS = st.dictionaries(TEXT, st.recursive(TEXT | st.integers(), lambda inner: st.lists(inner, max_size=2)))
Pieces = list[tuple[str, Part]]


@st.composite
def objects(draw, key: str, opening: str) -> Pieces:
    """The object of a call in any layout, in pieces with their parts."""
    dumped = json.dumps(draw(ARGUMENTS), ensure_ascii=draw(st.booleans()))
    name = "name", json.dumps(draw(TEXT.filter(bool)), ensure_ascii=False), Part.ACTION
    members = [name, (key, dumped, Part.ARGUMENT), ("id", "1", Part.OTHER)]
    members = draw(st.permutations(members[: draw(st.integers(2, 3))]))
    pieces = [(f"{opening}{draw(SPACE)}{{{draw(SPACE)}", Part.ACTION)]
    for number, (name, value, part) in enumerate(members):
        if number:
            pieces.append((f"{draw(SPACE)},{draw(SPACE)}", Part.OTHER))
        pieces.append((f'"{name}"{draw(SPACE)}:{draw(SPACE)}{value}', part))
    return [*pieces, (f"{draw(SPACE)}}}", Part.OTHER)]


@st.composite
def hermes(draw) -> Pieces:
    pieces: Pieces = [(draw(st.sampled_from(["", "<think>a</think>", "<think>\n</think>\n\n"])), Part.OTHER)]
    for _ in range(draw(st.integers(1, 2))):
        opened = draw(objects(draw(st.sampled_from(["arguments", "parameters"])), "<tool_call>"))
        pieces += [(draw(TEXT), Part.OTHER), *opened, (f"{draw(SPACE)}</tool_call>", Part.OTHER)]
    return pieces


@st.composite
def llama(draw) -> Pieces:
    pieces = draw(objects("parameters", draw(st.sampled_from(["", "<|python_tag|>"]))))
    return [(draw(SPACE), Part.OTHER), (pieces[0][0].lstrip(), Part.ACTION), *pieces[1:], (draw(SPACE), Part.OTHER)]


def tokens(tokenizer, pieces: Pieces, cuts: list[int]) -> tuple[list[int], list[int]]:
    """Ids of the text encoded in stretches, and the part of each token by its offsets: of its first character that
    has one."""
    text = "".join(text for text, _ in pieces)
    parts = [part for text, part in pieces for _ in text]
    ids, expected = [], []
    places = sorted({0, len(text), *(cut % (len(text) + 1) for cut in cuts)})
    for start, end in pairwise(places):
        encoded = tokenizer(text[start:end], add_special_tokens=False, return_offsets_mapping=True)
        ids += encoded["input_ids"]
        for first, last in encoded["offset_mapping"]:
            expected.append(next((part for part in parts[start + first : start + last] if part), Part.OTHER))
    return ids, expected


@pytest.mark.parametrize(
    ("tokenizer", "renderer", "made"),
    [(TOKENIZER, QWEN_RENDERER, hermes()), (LLAMA_TOKENIZER, LLAMA_RENDERER, llama())],
    ids=["hermes", "llama"],
)
def test_tokens_have_the_parts_of_their_characters(tokenizer, renderer, made):
    @given(made, st.lists(st.integers(0, 200), max_size=5), st.booleans())
    def check(pieces, cuts, stopped):
        said, expected = tokens(tokenizer, pieces, cuts)
        ids = np.array([*said, *([renderer.stop_ids[0]] if stopped else [])], dtype=np.int64)
        message, error = renderer.parse(ids, [BASH])
        if not message.tool_calls:  # a llama object that begins with its arguments is no call
            expected = [Part.OTHER] * len(expected)
        assert error is None
        assert renderer.parts(ids, message).tolist() == expected + [Part.OTHER] * stopped

    check()


@pytest.mark.parametrize("renderer", [QWEN_RENDERER, LLAMA_RENDERER])
def test_malformed_calls_and_plain_text_have_no_parts(renderer):
    for raw in ('<tool_call>{"name": "ls"', "<tool_call>{oops}</tool_call>", '{"name": "ls", "parameters": [', "done"):
        ids = renderer._encode(raw)
        message, _ = renderer.parse(ids, [BASH])
        assert renderer.parts(ids, message).tolist() == [Part.OTHER] * len(ids)
    assert len(renderer.parts(renderer._encode(""), Message("assistant", ""))) == 0


def test_every_convention_of_calls_has_its_spans():
    assert SPANS.keys() == PARSERS.keys()
