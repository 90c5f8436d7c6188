"""Many rollouts at once through one gateway over HTTP: nothing is lost, and nothing gets into another's session."""

import asyncio
import json
import socket

import numpy as np
from scripted_sampler import BASH, RENDERER

from whippletree.gateway.capture import CaptureSession
from whippletree.gateway.server import Gateway
from whippletree.gateway.wire import WireSession
from whippletree.types import Ids, Message, Sampling, TokenSample, ToolCall

CALLS = 3
TOOLS = [{"type": "function", "function": {"name": "bash", "description": "Run.", "parameters": BASH.parameters}}]


def command(session: str, call: int) -> str:
    return f"ls {session} part {call}"


class EchoSampler:
    """Names the session that it is asked for, and which call of it, at once."""

    max_context = 4096

    def __init__(self) -> None:
        self.calls: dict[str, int] = {}

    async def sample(
        self, prompt_ids: Ids, sampling: Sampling, *, stop_ids: tuple[int, ...], session: str, seed: int
    ) -> TokenSample:
        call = self.calls[session] = self.calls.get(session, -1) + 1
        said = ToolCall("", "bash", json.dumps({"command": command(session, call)}))
        ids = RENDERER.encode_completion(Message("assistant", "", (said,)))
        await asyncio.sleep(0)
        return TokenSample(ids, np.full(len(ids), -0.5, np.float32), "stop", policy_version=0)


class Harness:
    """Asks over a connection of its own, with the whole conversation each time."""

    def __init__(self, port: int, key: str, name: str) -> None:
        self.port, self.key, self.name = port, key, name
        self.messages: list[dict] = [
            {"role": "system", "content": f"act as {name}"},
            {"role": "user", "content": f"list the files of {name}"},
        ]

    async def work(self) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        for call in range(CALLS):
            body = json.dumps({"model": "m", "messages": self.messages, "tools": TOOLS}).encode()
            head = f"POST /s/{self.key}/v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
            writer.write(head.encode() + body)
            answer = (await reader.readuntil(b"\r\n\r\n")).lower()
            told = json.loads(await reader.readexactly(int(answer.partition(b"content-length:")[2].split()[0])))
            reply = told["choices"][0]["message"]
            (asked,) = reply["tool_calls"]
            assert json.loads(asked["function"]["arguments"]) == {"command": command(self.name, call)}
            said = {"role": "tool", "tool_call_id": asked["id"], "content": f"file {call} of {self.name}"}
            self.messages += [reply, said]
        writer.close()
        await writer.wait_closed()


async def converse(num_sessions: int) -> list[CaptureSession]:
    """All of them at the same time; the sessions after their last call."""
    gateway, sampler = Gateway(), EchoSampler()
    names = [f"s{i}" for i in range(num_sessions)]
    sessions = [CaptureSession(name, sampler, RENDERER, Sampling(), seed=0) for name in names]
    keys = [gateway.open(WireSession(session)) for session in sessions]
    sock = socket.create_server(("127.0.0.1", 0), backlog=num_sessions)
    await gateway.listen(sock)
    port = sock.getsockname()[1]
    await asyncio.gather(*(Harness(port, key, name).work() for key, name in zip(keys, names, strict=True)))
    await gateway.stop()
    return sessions


def check(session: CaptureSession) -> None:
    """What it has captured is what its harness and its sampler said, word by word, and one conversation."""
    name = session.rollout_id
    head = RENDERER.encode_head(
        [Message("system", f"act as {name}"), Message("user", f"list the files of {name}")], [BASH]
    )
    expected = RENDERER.text(head)
    assert len(session.calls) == CALLS
    for number, call in enumerate(session.calls):
        said = f"<|assistant|><|call|>bash<|arg|>command<|val|>{command(name, number)}<|end|>"
        assert RENDERER.text(call.prompt_ids) == expected + "<|assistant|>"
        assert RENDERER.text(np.concatenate([RENDERER.opening, call.completion_ids])) == said
        assert call.logprobs.shape == call.completion_ids.shape
        expected += f"{said}<|result|>file {number} of {name}<|end|>"
    assert session.paths.counts == {"root:start": 1, "continuation": CALLS - 1}


def test_small_parts_of_a_reply_are_sent_at_once():
    async def listen() -> bool:
        gateway = Gateway()
        sock = socket.create_server(("127.0.0.1", 0))
        await gateway.listen(sock)
        _, writer = await asyncio.open_connection(*sock.getsockname())
        await asyncio.sleep(0.01)
        (connection,) = gateway._state.connections
        accepted = connection.transport.get_extra_info("socket")
        writer.close()
        await gateway.stop()
        return bool(accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))

    assert asyncio.run(listen())


def test_a_thousand_sessions_at_once_lose_and_mix_nothing():
    for session in asyncio.run(converse(1000)):
        check(session)
