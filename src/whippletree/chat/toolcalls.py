"""Tool calls in sampled text, one parser per convention.

Invariant: a parser gives the text that is left and the calls, or raises `Malformed` with words that the model can act
on; nothing else is raised, whatever the text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import cast

from whippletree.types import Json, ToolCall

Parser = Callable[[str], tuple[str, tuple[ToolCall, ...]]]


class Malformed(Exception):
    """What is wrong with sampled text, told to the model."""


def parse_none(text: str) -> tuple[str, tuple[ToolCall, ...]]:
    """For templates without tools: everything is text."""
    return text, ()


def parse_hermes(text: str) -> tuple[str, tuple[ToolCall, ...]]:
    """`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, any number of them (Hermes, Qwen 2.5 and 3)."""
    first, *rest = text.split("<tool_call>")
    left, calls = [first], list[ToolCall]()
    for piece in rest:
        body, end, after = piece.partition("</tool_call>")
        if not end:
            raise Malformed("A <tool_call> is not closed; end each tool call with </tool_call>.")
        calls.append(_read_call(_load(body), "arguments"))
        left.append(after)
    return "".join(left).strip(), tuple(calls)


def parse_llama(text: str) -> tuple[str, tuple[ToolCall, ...]]:
    """One bare `{"name": ..., "parameters": {...}}` as the whole answer (Llama 3.1 and later)."""
    body = text.strip().removeprefix("<|python_tag|>").strip()
    if not re.match(r'\{\s*"(name|type)"', body):
        return text, ()
    call = _load(body)
    if isinstance(call, dict) and not {"parameters", "arguments"} & call.keys():
        return text, ()  # a JSON answer
    return "", (_read_call(call, "parameters"),)


PARSERS: dict[str, Parser] = {"none": parse_none, "hermes": parse_hermes, "llama": parse_llama}


def detect_parser(template: str) -> str | None:
    """The name of the convention that a chat template teaches; None where it teaches one that is not known here."""
    if "<function=" in template:
        return None
    if "<tool_call>" in template:
        return "hermes"
    if '"parameters": dictionary of argument name' in template:
        return "llama"
    return None if "tools" in template else "none"


def split_thinking(text: str, opened: bool) -> str:
    """`text` without its leading `<think>...</think>` blocks; `opened` where the prompt ends inside one."""
    text = f"<think>{text}" if opened else text
    while (rest := text.lstrip()).startswith("<think>"):
        _, closed, text = rest.partition("</think>")
        if not closed:
            raise Malformed("The answer ended inside its thinking; think less, close </think>, and then answer.")
        text = text.lstrip()
    return text


def _load(body: str) -> Json:
    try:
        return json.loads(body)
    except ValueError as error:
        raise Malformed(f"The tool call is not valid JSON ({error}); write one JSON object.") from None
    except RecursionError:
        raise Malformed("The tool call is nested too deeply; write one flat JSON object.") from None


def _read_call(call: Json, key: str) -> ToolCall:
    """`key` names the arguments; both names in use are accepted."""
    if not isinstance(call, dict):
        raise Malformed(f'The tool call must be a JSON object with "name" and "{key}".')
    fields = cast(dict[str, Json], call)
    name = fields.get("name")
    if not isinstance(name, str) or not name:
        raise Malformed('The tool call has no "name"; name the tool as a string.')
    arguments: Json = fields.get(key, fields.get("arguments", fields.get("parameters", {})))
    if isinstance(arguments, str):
        arguments = _load(arguments)
    if not isinstance(arguments, dict):
        raise Malformed(f'"{key}" of {name} must be a JSON object.')
    return ToolCall("", name, json.dumps(arguments, ensure_ascii=False))
