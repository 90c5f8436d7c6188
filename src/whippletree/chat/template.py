"""Any Hugging Face chat template as a renderer.

Invariant: only heads and runs of other messages go through the template, never sampled text. A run is rendered behind
a fixed dummy turn, and what follows the dummy's text is the run's; templates for which that does not hold (they rewrite
earlier messages) are refused at construction.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from jinja2 import TemplateError

from whippletree.chat.parts import SPANS, parts_of_tokens
from whippletree.chat.toolcalls import PARSERS, Malformed, detect_parser, split_thinking
from whippletree.errors import PolicyError
from whippletree.types import Ids, Json, Message, Part, Parts, Tool, ToolCall

_MARKER = "whippletree-dummy-answer"
_DUMMY = (Message("user", "whippletree-dummy-question"), Message("assistant", _MARKER))
_FOLLOW_UPS: tuple[tuple[Message, ...], ...] = (
    (Message("user", "more"),),
    (Message("user", "more"), Message("assistant", "fine"), Message("user", "again")),
)
_RESULTS: tuple[tuple[Message, ...], ...] = (
    (Message("tool", "one", tool_call_id="call_0"),),
    (Message("tool", "one", tool_call_id="call_0"), Message("tool", "two", tool_call_id="call_1")),
)
_PROBE = Tool("whippletree_probe_tool", "A probe.", {"type": "object", "properties": {}})


class ChatTokenizer(Protocol):
    """What is used of a Hugging Face tokenizer."""

    chat_template: Any
    eos_token_id: Any
    all_special_ids: Any

    def apply_chat_template(self, conversation: Any, *args: Any, **kwargs: Any) -> Any: ...

    def encode(self, text: str, *, add_special_tokens: bool) -> Any: ...

    def decode(self, token_ids: Any, **kwargs: Any) -> Any: ...

    def save_pretrained(self, save_directory: Any, **kwargs: Any) -> Any: ...


class TemplateRenderer:
    """Renders with `tokenizer.chat_template`; `template_kwargs` (`enable_thinking`, for example) go to the template.

    Text that spells a special token is encoded as that token, as everywhere with Hugging Face tokenizers.
    Raises PolicyError where the template is missing, rewrites history, or teaches tool calls in an unknown form.
    """

    def __init__(
        self,
        tokenizer: ChatTokenizer,
        *,
        parser: str | None = None,
        template_kwargs: dict[str, Json] | None = None,
        cache_size: int = 1024,
    ) -> None:
        template = tokenizer.chat_template
        if not isinstance(template, str):
            raise PolicyError("the tokenizer has no single chat template; load one that has, or set chat_template")
        name = parser or detect_parser(template)
        if name not in PARSERS:
            raise PolicyError(f"the template's tool calls are in no known form ({name}); pass one of {sorted(PARSERS)}")
        self._parser, self._spans = PARSERS[name], SPANS[name]
        self._tokenizer, self._kwargs = tokenizer, template_kwargs or {}
        self._run = lru_cache(cache_size)(self._encode_run)
        question = self._render(_DUMMY[:1])
        self._tail = self._after_dummy(())
        tail_ids = self._encode(self._tail)
        if not len(tail_ids) or tail_ids[0] not in tokenizer.all_special_ids:
            raise PolicyError(f"the template ends an answer with {self._tail!r}, expected a special token first")
        self._opening = self._render(_DUMMY[:1], opening=True).removeprefix(question)
        self._check(question)
        eos = tokenizer.eos_token_id
        self.stop_ids: tuple[int, ...] = tuple(dict.fromkeys([int(tail_ids[0]), *([] if eos is None else [int(eos)])]))
        self.opening: Ids = self._encode(self._opening)
        self._tail_ids, self._after_stop = tail_ids, tail_ids[1:]
        self._stop = self.text(tail_ids[:1])

    def encode_head(self, messages: Sequence[Message], tools: Sequence[Tool]) -> Ids:
        """Raises PolicyError where the template refuses the messages or does not show tools."""
        text = self._render(messages, tools)
        if tools and tools[0].name not in text:
            raise PolicyError("the chat template does not show tools; use a model whose template does")
        return self._encode(text)

    def encode_messages(self, messages: Sequence[Message]) -> Ids:
        return self._run(tuple(messages))

    def encode_completion(self, message: Message) -> Ids:
        text = self._render((_DUMMY[0], message)).removeprefix(self._render(_DUMMY[:1]))
        return self._encode(text.removeprefix(self._opening).removesuffix(self._tail) + self._stop)

    def closing(self, completion_ids: Ids) -> Ids:
        ended = len(completion_ids) and int(completion_ids[-1]) in self.stop_ids
        return self._after_stop if ended else self._tail_ids

    def parse(self, completion_ids: Ids, tools: Sequence[Tool]) -> tuple[Message, str | None]:
        """Thinking is taken out of the content; where no tools are offered, everything else is text."""
        raw = self.text(self._said(completion_ids))
        try:
            text = self._answer(raw)
            content, calls = self._parser(text) if tools else (text, ())
        except Malformed as error:
            return Message("assistant", raw), str(error)
        return Message("assistant", content, calls), None

    def parts(self, completion_ids: Ids, message: Message) -> Parts:
        found = np.full(len(completion_ids), Part.OTHER, dtype=np.int8)
        if message.tool_calls:
            said = self._said(completion_ids)
            raw = self.text(said)
            spans = self._spans(raw, len(raw) - len(self._answer(raw)))
            found[: len(said)] = parts_of_tokens(spans, raw, len(said), lambda count: self.text(said[:count]))
        return found

    def save(self, path: Path) -> None:
        self._tokenizer.save_pretrained(path)

    def text(self, ids: Ids) -> str:
        return str(self._tokenizer.decode(ids.tolist(), skip_special_tokens=False, clean_up_tokenization_spaces=False))

    def _said(self, completion_ids: Ids) -> Ids:
        """Without the stop token."""
        ended = len(completion_ids) and int(completion_ids[-1]) in self.stop_ids
        return completion_ids[:-1] if ended else completion_ids

    def _answer(self, raw: str) -> str:
        """What follows the thinking, a suffix of `raw`."""
        return split_thinking(raw, opened=self._opening.rstrip().endswith("<think>"))

    def _encode(self, text: str) -> Ids:
        valid = text.encode("utf-8", "replace").decode()  # lone surrogates cannot be encoded
        ids = np.array(self._tokenizer.encode(valid, add_special_tokens=False), dtype=np.int64)
        ids.flags.writeable = False
        return ids

    def _encode_run(self, messages: tuple[Message, ...]) -> Ids:
        after = self._after_dummy(messages)
        if not after.startswith(self._tail):
            raise PolicyError(f"the chat template changes the turn before a {messages[0].role} message; cannot splice")
        return self._encode(after.removeprefix(self._tail))

    def _after_dummy(self, messages: tuple[Message, ...], *, opening: bool = False) -> str:
        before, found, after = self._render((*_DUMMY, *messages), opening=opening).partition(_MARKER)
        if not found:
            raise PolicyError(f"the chat template drops an answer from the history: {before!r}")
        return after

    def _render(self, messages: Sequence[Message], tools: Sequence[Tool] = (), *, opening: bool = False) -> str:
        try:
            text = self._tokenizer.apply_chat_template(
                [message_as_dict(message, _arguments) for message in messages],
                tools=[tool_as_dict(tool) for tool in tools] or None,
                tokenize=False,
                add_generation_prompt=opening,
                **self._kwargs,
            )
        except (TemplateError, TypeError, ValueError, LookupError) as error:
            roles = [message.role for message in messages]
            raise PolicyError(f"the chat template refuses messages with roles {roles}: {error}") from error
        return str(text)

    def _check(self, question: str) -> None:
        """Raise PolicyError unless what is new is always a suffix and every answer is opened alike."""
        refused = "the chat template rewrites earlier messages, so sampled tokens cannot be kept; use another template"
        if not self._opening:
            raise PolicyError("the chat template opens no answer (add_generation_prompt); use another template")
        has_tools = self._parser is not PARSERS["none"]
        for run in _FOLLOW_UPS + (_RESULTS if has_tools else ()):
            after, opened = self._after_dummy(run), self._after_dummy(run, opening=True)
            whole = self._render((*_DUMMY, *run))
            if not after.startswith(self._tail) or opened != after + self._opening or not whole.startswith(question):
                raise PolicyError(f"{refused} (seen with a {run[0].role} message)")
            if has_tools:
                before = self._render(_DUMMY[:1], [_PROBE])
                if not self._render((*_DUMMY, *run), [_PROBE]).startswith(before):
                    raise PolicyError(f"{refused} (seen with tools)")


def message_as_dict(message: Message, arguments: Callable[[ToolCall], Json]) -> dict[str, Json]:
    """A message in the form of chat completions, the arguments of its calls as `arguments` gives them."""
    told: dict[str, Json] = {"role": message.role, "content": message.content}
    if message.tool_calls:
        told["tool_calls"] = [
            {"id": c.id, "type": "function", "function": {"name": c.name, "arguments": arguments(c)}}
            for c in message.tool_calls
        ]
    if message.tool_call_id is not None:
        told["tool_call_id"] = message.tool_call_id
    return told


def _arguments(call: ToolCall) -> Json:
    """As an object, which templates expect; text that is no JSON stays text."""
    try:
        return json.loads(call.arguments or "{}")
    except (ValueError, RecursionError):
        return call.arguments


def tool_as_dict(tool: Tool) -> dict[str, Json]:
    function = {"name": tool.name, "description": tool.description, "parameters": dict(tool.parameters)}
    return {"type": "function", "function": function}
