"""The nano model's own format: one special token per structural mark, as few tokens as possible.

    <|system|> text <|tool|> name : description <|arg|> name : description <|end|>
    <|user|> text <|end|>
    <|assistant|> text <|call|> name <|arg|> key <|val|> value <|end|>
    <|result|> text <|end|>

Invariant: text between special tokens is encoded by itself, decodes to itself exactly, and can never spell a special
token, whatever a file or a user contains.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import cast

import numpy as np
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from whippletree.errors import PolicyError
from whippletree.types import Ids, Json, Message, Part, Parts, Tool, ToolCall

SPECIAL_TOKENS = (
    "<|pad|>",
    "<|system|>",
    "<|user|>",
    "<|assistant|>",
    "<|result|>",
    "<|tool|>",
    "<|arg|>",
    "<|val|>",
    "<|call|>",
    "<|end|>",
)
"""Ids 0 to 9, in this order."""

_SPLIT = r" ?[\p{L}_]+|\.\p{L}+| ?\p{N}| ?[^\s\p{L}\p{N}_]|\n|[^\S\n]+(?!\S)|\s"
"""Words, extensions, single digits and single marks, each with the space before it; line ends; other white space."""

_MARKS = {"system": "<|system|>", "user": "<|user|>", "assistant": "<|assistant|>", "tool": "<|result|>"}

_PARTS = {"<|call|>": Part.ACTION, "<|arg|>": Part.ARGUMENT, "<|val|>": Part.ARGUMENT}
"""Of a mark and of the text after it."""

_TYPES: Mapping[str, tuple[type, ...]] = {
    "null": (type(None),),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
}


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """Byte-level BPE in which a frequent word is one token, and the same one within a line and at its start.

    Texts are free of special tokens. Every line gets a leading space before it is split, which decoding takes away.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend(" "), normalizers.Replace("\n", "\n ")])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=2,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


class CompactRenderer:
    """Renders by special tokens; see the module for the format."""

    def __init__(self, tokenizer: Tokenizer, cache_size: int = 8192) -> None:
        found = {token: tokenizer.token_to_id(token) for token in SPECIAL_TOKENS}
        missing = [token for token, id in found.items() if id is None]
        if missing:
            raise PolicyError(f"the tokenizer lacks the special tokens {missing}; make it with train_tokenizer")
        self._tokenizer = Tokenizer.from_str(tokenizer.to_str())
        self._tokenizer.encode_special_tokens = True
        self._special: dict[str, int] = {token: id for token, id in found.items() if id is not None}
        self._names = {id: token for token, id in self._special.items()}
        self._end = self._special["<|end|>"]
        self._encode = lru_cache(cache_size)(self._encode_text)
        self._message = lru_cache(cache_size)(self._encode_message)
        self.stop_ids: tuple[int, ...] = (self._end,)
        self.opening: Ids = _frozen([self._special["<|assistant|>"]])
        self._end_ids = _frozen([self._end])
        self._no_ids = _frozen([])

    def encode_head(self, messages: Sequence[Message], tools: Sequence[Tool]) -> Ids:
        """Tools stand at the end of the first system message, or in a system block of their own."""
        if not tools:
            return self.encode_messages(messages)
        has_system = bool(messages) and messages[0].role == "system"
        head = [self._special["<|system|>"], *(self._encode(messages[0].content) if has_system else ())]
        for tool in tools:
            head += self._encode_tool(tool)
        head.append(self._end)
        return np.concatenate([_frozen(head), *map(self._message, messages[1 if has_system else 0 :])])

    def encode_messages(self, messages: Sequence[Message]) -> Ids:
        return np.concatenate([self._no_ids, *map(self._message, messages)])

    def encode_completion(self, message: Message) -> Ids:
        return self._message(message)[len(self.opening) :]

    def closing(self, completion_ids: Ids) -> Ids:
        return self._no_ids if len(completion_ids) and completion_ids[-1] == self._end else self._end_ids

    def parse(self, completion_ids: Ids, tools: Sequence[Tool]) -> tuple[Message, str | None]:
        """Values are strings unless the tool's schema names another JSON type for the argument."""
        segments = self._segments(completion_ids)
        ended = len(segments) > 1 and segments[-1] == ("<|end|>", "")
        content, marked = segments[0][1], segments[1:-1] if ended else segments[1:]
        try:
            if marked and not ended:
                raise _Malformed("The answer was cut off inside a tool call; write a shorter one.")
            calls = _read_calls(marked, tools)
        except _Malformed as error:
            return Message("assistant", self.text(completion_ids)), str(error)
        return Message("assistant", content, calls), None

    def parts(self, completion_ids: Ids, message: Message) -> Parts:
        found = np.full(len(completion_ids), Part.OTHER, dtype=np.int8)
        part = Part.OTHER
        for position, id in enumerate(completion_ids.tolist() if message.tool_calls else ()):
            if id in self._names:
                part = _PARTS.get(self._names[id], Part.OTHER)
            found[position] = part
        return found

    def save(self, path: Path) -> None:
        self._tokenizer.save(str(path / "tokenizer.json"))

    def text(self, ids: Ids) -> str:
        return "".join(mark + text for mark, text in self._segments(ids))

    def _encode_text(self, text: str) -> tuple[int, ...]:
        valid = text.encode("utf-8", "replace").decode()  # lone surrogates cannot be encoded
        return tuple(self._tokenizer.encode(valid).ids)

    def _encode_tool(self, tool: Tool) -> list[int]:
        ids = [self._special["<|tool|>"], *self._encode(_labelled(tool.name, tool.description))]
        for name, schema in _properties(tool).items():
            told = schema.get("description") or schema.get("type") or ""
            ids += [self._special["<|arg|>"], *self._encode(_labelled(name, str(told)))]
        return ids

    def _encode_message(self, message: Message) -> Ids:
        # Of whole messages one copy is kept, as an array.
        ids = [self._special[_MARKS[message.role]], *self._encode_text(message.content)]
        for call in message.tool_calls:
            ids += [self._special["<|call|>"], *self._encode(call.name)]
            for key, value in _arguments(call).items():
                ids += [self._special["<|arg|>"], *self._encode(key)]
                ids += [self._special["<|val|>"], *self._encode(value)]
        return _frozen([*ids, self._end])

    def _segments(self, ids: Ids) -> list[tuple[str, str]]:
        """(special token, text after it) in order; the first one has no special token."""
        values: list[int] = ids.tolist()
        segments: list[tuple[str, str]] = []
        mark, start = "", 0
        for position, id in enumerate(values):
            if id in self._names:
                segments.append((mark, self._decode(values[start:position])))
                mark, start = self._names[id], position + 1
        segments.append((mark, self._decode(values[start:])))
        return segments

    def _decode(self, ids: list[int]) -> str:
        return self._tokenizer.decode(ids, skip_special_tokens=False).removeprefix(" ").replace("\n ", "\n")


class _Malformed(Exception):
    """What is wrong with sampled text, told to the model."""


def _frozen(ids: Sequence[int]) -> Ids:
    array = np.array(ids, dtype=np.int64)
    array.flags.writeable = False
    return array


def _labelled(name: str, told: str) -> str:
    return f"{name} : {told}" if told else name


def _arguments(call: ToolCall) -> dict[str, str]:
    """Key -> text as it is written in a call; text that is no JSON object goes under one key, so nothing is lost."""
    try:
        arguments = json.loads(call.arguments or "{}")
    except (ValueError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict):
        return {"arguments": call.arguments}
    items = cast(dict[str, Json], arguments)
    return {key: value if isinstance(value, str) else _compact_json(value) for key, value in items.items()}


def _properties(tool: Tool) -> dict[str, dict[str, Json]]:
    """Argument name -> schema; schemas that are no objects (`true`, for example) count as empty."""
    found: Json = tool.parameters.get("properties")
    if not isinstance(found, dict):
        return {}
    properties = cast(dict[str, Json], found)
    return {name: schema if isinstance(schema, dict) else {} for name, schema in properties.items()}


def _compact_json(value: Json) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _read_calls(marked: Sequence[tuple[str, str]], tools: Sequence[Tool]) -> tuple[ToolCall, ...]:
    calls: list[ToolCall] = []
    position = 0
    while position < len(marked):
        mark, name = marked[position]
        if mark != "<|call|>":
            raise _Malformed(f"Found {mark} where only <|call|> or <|end|> may stand.")
        if not name:
            raise _Malformed("A <|call|> names no tool; write the tool's name right after it.")
        position += 1
        arguments: dict[str, Json] = {}
        while position < len(marked) and marked[position][0] == "<|arg|>":
            key = marked[position][1]
            if position + 1 == len(marked) or marked[position + 1][0] != "<|val|>":
                raise _Malformed(f"Argument {key!r} of {name} has no <|val|>; give every <|arg|> one <|val|>.")
            if key in arguments:
                raise _Malformed(f"Argument {key!r} of {name} is given twice.")
            arguments[key] = _read_value(name, key, marked[position + 1][1], tools)
            position += 2
        calls.append(ToolCall("", name, _compact_json(arguments)))
    return tuple(calls)


def _read_value(name: str, key: str, text: str, tools: Sequence[Tool]) -> Json:
    tool = next((tool for tool in tools if tool.name == name), None)
    told: Json = _properties(tool).get(key, {}).get("type") if tool else None
    names = {str(name) for name in cast(list[Json], told)} if isinstance(told, list) else {str(told)}
    if not names or names - _TYPES.keys():
        return text
    try:
        value: Json = json.loads(text)
    except (ValueError, RecursionError):
        value = text
    accepted = tuple(type_ for type_name in names for type_ in _TYPES[type_name])
    if not isinstance(value, accepted) or (isinstance(value, bool) and bool not in accepted):
        raise _Malformed(f"Argument {key!r} of {name} must be {' or '.join(sorted(names))}, got {text!r}.")
    return value
