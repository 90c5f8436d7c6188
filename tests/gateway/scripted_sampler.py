"""A sampler that says what it is told to, and the small world around it that gateway tests share."""

import asyncio
from collections.abc import Sequence

import numpy as np

from whippletree.chat.compact import CompactRenderer, train_tokenizer
from whippletree.errors import ContextOverflow
from whippletree.gateway.capture import CaptureSession
from whippletree.types import Completion, Ids, Message, Request, Sampling, TokenSample, Tool, ToolCall

TOKENIZER = train_tokenizer(["run ls and say done\nlist the files"] * 3, 300)
RENDERER = CompactRenderer(TOKENIZER)
BASH = Tool("bash", "Run.", {"type": "object", "properties": {"command": {"type": "string"}}})
SYSTEM, TASK = Message("system", "act"), Message("user", "list the files")


def call(command: str, content: str = "") -> Message:
    return Message("assistant", content, (ToolCall("", "bash", f'{{"command": "{command}"}}'),))


def say(content: str) -> Message:
    return Message("assistant", content)


def spelled(text: str) -> Ids:
    """An answer sampled letter by letter, which no encoder would give."""
    return np.array([TOKENIZER.token_to_id(token) for token in [*("Ġ" + text), "<|end|>"]])


class ScriptedSampler:
    """Says the script in order. Each logprob is unique: -(call + position / 1000) - 1."""

    def __init__(self, script: Sequence[Message | Ids], max_context: int = 4096) -> None:
        self.max_context = max_context
        self.script = list(script)
        self.prompts: list[Ids] = []
        self.samplings: list[Sampling] = []
        self.seeds: list[int] = []

    async def sample(
        self, prompt_ids: Ids, sampling: Sampling, *, stop_ids: tuple[int, ...], session: str, seed: int
    ) -> TokenSample:
        if len(prompt_ids) >= self.max_context:
            raise ContextOverflow(f"{session}: prompt of {len(prompt_ids)} tokens, context of {self.max_context}")
        number = len(self.prompts)
        self.prompts.append(prompt_ids)
        self.samplings.append(sampling)
        self.seeds.append(seed)
        said = self.script[number]
        await asyncio.sleep(0)
        ids = (RENDERER.encode_completion(said) if isinstance(said, Message) else said)[: sampling.max_tokens]
        logprobs = -(number + np.arange(len(ids)) / 1000 + 1).astype(np.float32)
        ended = len(ids) > 0 and int(ids[-1]) in stop_ids
        return TokenSample(ids, logprobs, "stop" if ended else "length", policy_version=7)


class Conversation:
    """A session and its scripted sampler, driven synchronously."""

    def __init__(self, *script: Message | Ids, max_context: int = 4096, **session) -> None:
        self.sampler = ScriptedSampler(script, max_context)
        given = {"sampling": Sampling(max_tokens=100), "seed": 1, "max_calls": None, "max_tokens": None} | session
        sampling = given.pop("sampling")
        self.session = CaptureSession("r0", self.sampler, RENDERER, sampling, **given)

    def ask(self, *messages: Message, **request) -> Completion:
        return asyncio.run(self.session.complete(Request(messages, **({"tools": (BASH,)} | request))))


def result(text: str, completion: Completion) -> Message:
    return Message("tool", text, tool_call_id=completion.message.tool_calls[0].id)


def is_prefix(short: Ids, long: Ids) -> bool:
    return len(short) <= len(long) and bool(np.array_equal(short, long[: len(short)]))


def path_of(completion: Completion) -> Ids:
    return np.concatenate([completion.prompt_ids, completion.completion_ids])
