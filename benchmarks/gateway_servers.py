"""The servers of benchmarks/gateway.py that are ours: our gateway, and an inference server that answers at once.

Invariant: the inference server's replies are the same for all sides, and the ids of a prompt begin with those of the
shorter prompt and reply before it, as they do where a conversation grows.
"""

from __future__ import annotations

import asyncio
import json
import random
import sys
from functools import cache
from importlib import resources

import numpy as np
from tokenizers import Tokenizer

from whippletree.chat.compact import CompactRenderer
from whippletree.gateway.capture import CaptureSession
from whippletree.gateway.server import Ending, Gateway, serve
from whippletree.gateway.wire import WireSession
from whippletree.policy.remote import RemoteSampler
from whippletree.types import Ids, Message, Rollout, Sampler, Sampling, StopReason, TokenSample, ToolCall

TOKENIZER = resources.files("whippletree.policy.nano") / "weights" / "tokenizer.json"
HEAD, STEP = 1000, 500
"""Tokens of the first request, and by which each call is longer than the one before."""


# ---- what is said ------------------------------------------------------------------------------------------------

COMMAND = '{"command":"sed -n 1,200p src/parser.py"}'
SAYS = "look at the next part of the file"
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"{told} Use it with care, and only where no other tool does the same with less.",
            "parameters": {
                "type": "object",
                "properties": {key: {"type": "string", "description": f"The {key} to use."} for key in keys},
                "required": keys,
            },
        },
    }
    for name, told, keys in (
        ("bash", "Run a command.", ["command"]),
        ("read", "Read a file.", ["path", "offset", "limit"]),
        ("edit", "Replace a text.", ["path", "old", "new"]),
        ("grep", "Search files.", ["pattern", "path", "glob"]),
    )
]


@cache
def renderer() -> CompactRenderer:
    return CompactRenderer(Tokenizer.from_str(TOKENIZER.read_text()))


@cache
def reply_ids() -> Ids:
    return renderer().encode_completion(Message("assistant", SAYS, (ToolCall("", "bash", COMMAND),)))


@cache
def words() -> list[str]:
    """Each is one token with the space before it."""
    vocabulary = json.loads(TOKENIZER.read_text())["model"]["vocab"]
    return sorted(token[1:] for token in vocabulary if token[0] == "Ġ" and token[1:].isalpha() and len(token) > 3)


def text(tokens: int, seed: str) -> str:
    return " ".join(random.Random(seed).choices(words(), k=tokens))


def result_text(session: str, call: int) -> str:
    """With a reply it makes STEP tokens."""
    return text(STEP - len(reply_ids()) - 3, f"{session} {call}")


def reply_message(call: int) -> dict[str, object]:
    tool_call = {"id": f"call_{call}", "type": "function", "function": {"name": "bash", "arguments": COMMAND}}
    return {"role": "assistant", "content": SAYS, "tool_calls": [tool_call]}


# ---- the inference server ----------------------------------------------------------------------------------------


class Upstream(asyncio.Protocol):
    """Gives every request the same reply. The ids of a prompt are those of the shorter one before it, and more."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport, self._data = transport, bytearray()

    def data_received(self, data: bytes) -> None:
        self._data += data
        while (end := self._data.find(b"\r\n\r\n")) >= 0:
            head = bytes(self._data[:end]).lower()
            _, found, length = head.partition(b"content-length:")
            stop = end + 4 + (int(length.split(b"\r\n")[0]) if found else 0)
            if len(self._data) < stop:
                return
            path = head.split(b" ", 2)[1]
            body = self._data[end + 4 : stop]
            if path.endswith(b"/chat/completions"):
                told = chat_reply((body.count(b'"role"') - 2) // 2)
            else:
                told = completion_reply() if path.endswith(b"/completions") else b'{"status":"ok"}'
            self._transport.write(
                b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(told) + told
            )
            del self._data[:stop]


@cache
def chat_reply(turn: int) -> bytes:
    sampled = [150_000 - i for i in range(len(reply_ids()))]
    prompt = [1000 + i * 7919 % 140_000 for i in range(HEAD)]
    for i in range(turn):
        prompt += sampled + [1000 + (i * STEP + j) * 7907 % 140_000 for j in range(STEP - len(sampled))]
    entries = [{"token": f"token_id:{id}", "logprob": -0.25, "bytes": None, "top_logprobs": []} for id in sampled]
    choice = {"index": 0, "message": reply_message(turn), "finish_reason": "tool_calls", "token_ids": sampled}
    usage = {"prompt_tokens": len(prompt), "completion_tokens": len(sampled), "total_tokens": len(prompt + sampled)}
    told = {"id": "c", "object": "chat.completion", "created": 0, "model": "m", "prompt_token_ids": prompt}
    return json.dumps(told | {"choices": [choice | {"logprobs": {"content": entries}}], "usage": usage}).encode()


@cache
def completion_reply() -> bytes:
    ids: list[int] = reply_ids().tolist()
    choice = {"index": 0, "text": "", "finish_reason": "stop", "token_ids": ids}
    logprobs = {"token_logprobs": [-0.25] * len(ids), "tokens": [f"token_id:{id}" for id in ids]}
    return json.dumps({"id": "c", "object": "text_completion", "choices": [choice | {"logprobs": logprobs}]}).encode()


async def serve_upstream(port: int) -> None:
    server = await asyncio.get_running_loop().create_server(Upstream, "127.0.0.1", port, backlog=2048)
    await server.serve_forever()


# ---- our gateway -------------------------------------------------------------------------------------------------


class InstantSampler:
    max_context = 1 << 20

    async def sample(
        self, prompt_ids: Ids, sampling: Sampling, *, stop_ids: tuple[int, ...], session: str, seed: int
    ) -> TokenSample:
        return TokenSample(reply_ids(), np.full(len(reply_ids()), -0.25, np.float32), "stop", 0)


async def serve_ours(port: int, upstream: str = "") -> None:
    sampler: Sampler = InstantSampler()
    if upstream:
        sampler = await RemoteSampler(f"{upstream}/v1", "m", max_context=1 << 20).__aenter__()
    sessions: dict[str, CaptureSession] = {}

    def find(key: str) -> WireSession:
        sessions[key] = CaptureSession(key, sampler, renderer(), Sampling(), seed=0)
        return WireSession(sessions[key])

    async def end(key: str, ending: Ending) -> Rollout:
        session = sessions.pop(key)
        calls, counts = tuple(session.calls), session.paths.counts
        assert len(calls[-1].prompt_ids) > HEAD + (len(calls) - 1) * STEP - 20, "the history is as long as it is said"
        return Rollout(key, "", "", "", 0, "train", calls, None, StopReason.HARNESS_EXIT, counts=counts)

    await serve(Gateway(find=find, end=end), "127.0.0.1", port)
    await asyncio.Event().wait()


if __name__ == "__main__":
    kind, port, *upstream = sys.argv[1:]
    asyncio.run(serve_ours(int(port), *upstream) if kind == "ours" else serve_upstream(int(port)))
