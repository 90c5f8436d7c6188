"""The same conversations through our gateway and through openenv's capture server, in front of one inference server.

The inference server speaks as vLLM does: a reply follows from the last message of the prompt alone, so that the order
of requests and the way in which the prompt arrived, as text or as ids, make no difference.
"""

import asyncio
import json
import re
from collections.abc import Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

import httpx
import numpy as np
import uvicorn
from scripted_sampler import RENDERER
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from whippletree.gateway.capture import CaptureSession
from whippletree.gateway.dialects import CHAT_COMPLETIONS
from whippletree.gateway.server import Gateway, serve
from whippletree.gateway.wire import WireSession
from whippletree.policy.remote import RemoteSampler
from whippletree.types import Ids, Message, Sampling

MAX_TOKENS = 60


@dataclass(frozen=True)
class Call:
    """One captured call, whoever captured it."""

    prompt: list[int]
    sampled: list[int]
    logprobs: list[float]
    parent: int | None
    """Index of the call that it continues."""

    @property
    def path(self) -> list[int]:
        return self.prompt + self.sampled


class Engine:
    """Text or ids in, ids and log-probabilities out; `bodies` are the requests as they came."""

    def __init__(self, replies: Mapping[str, Message | Ids]) -> None:
        ids = {said: r if isinstance(r, np.ndarray) else RENDERER.encode_completion(r) for said, r in replies.items()}
        self.replies = {said: [int(id) for id in reply] for said, reply in ids.items()}
        self.bodies: list[dict] = []

    def reply(self, said: str, max_tokens: int) -> tuple[list[int], list[float], str]:
        ids = self.replies[said]
        number = list(self.replies).index(said)
        logprobs = [-(1 + number + place / 1000) for place in range(len(ids))]
        return ids[:max_tokens], logprobs[:max_tokens], "stop" if len(ids) <= max_tokens else "length"

    async def chat(self, request: Request) -> JSONResponse:
        body = await self.read(request)
        tools = CHAT_COMPLETIONS.tools(body.get("tools"))
        messages = [message for message, _ in CHAT_COMPLETIONS.read(body["messages"], 0)]
        prompt = [*RENDERER.encode_head(messages, tools), *RENDERER.opening]
        ids, logprobs, finish = self.reply(messages[-1].content, body.get("max_tokens") or MAX_TOKENS)
        said, _ = RENDERER.parse(np.array(ids), tools)
        calls = [
            {"id": f"c{i}", "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for i, call in enumerate(said.tool_calls)
        ]
        message = {"role": "assistant", "content": said.content} | ({"tool_calls": calls} if calls else {})
        entries = [
            {"token": f"token_id:{id}", "logprob": lp, "bytes": None} for id, lp in zip(ids, logprobs, strict=True)
        ]
        choice = {
            "index": 0, "message": message, "finish_reason": "tool_calls" if calls else finish, "token_ids": ids,
            "logprobs": {"content": entries},
        }  # fmt: skip
        told = {"id": "c", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice]}
        return JSONResponse(told | {"prompt_token_ids": [int(id) for id in prompt]})

    async def completions(self, request: Request) -> JSONResponse:
        body = await self.read(request)
        text = RENDERER.text(np.array(body["prompt"]))
        said = re.split(r"<\|(?:user|result)\|>", text)[-1].removesuffix("<|end|><|assistant|>")
        ids, logprobs, finish = self.reply(said, body["max_tokens"])
        choice = {"index": 0, "text": "", "finish_reason": finish, "token_ids": ids}
        choice["logprobs"] = {"token_logprobs": logprobs}
        return JSONResponse({"id": "c", "object": "text_completion", "choices": [choice]})

    async def read(self, request: Request) -> dict:
        self.bodies.append(json.loads(await request.body()))
        return self.bodies[-1]


class Harness:
    """One conversation over the wire; `history` is what its next request will say."""

    def __init__(self, client: httpx.AsyncClient, path: str, key: str, tools: list[dict]) -> None:
        self.client, self.path, self.tools = client, path, tools
        self.headers = {"Authorization": f"Bearer {key}"}
        self.history: list[dict] = []

    async def say(self, role: str, content: str, **more) -> dict:
        """Add a message, and the reply to it."""
        linked = {"tool_call_id": self.history[-1]["tool_calls"][0]["id"]} if role == "tool" else {}
        self.history.append({"role": role, "content": content, **linked})
        body = {"model": "m", "messages": self.history, "tools": self.tools, "max_tokens": MAX_TOKENS, **more}
        answer = await self.client.post(self.path, json=body, headers=self.headers)
        assert answer.status_code == 200, answer.text
        said = answer.json()["choices"][0]["message"]
        self.history.append({key: said[key] for key in ("role", "content", "tool_calls") if said.get(key) is not None})
        return said


class Side:
    """`captured` is what the side has of a session, `harness` begins one."""

    name: str
    engine: Engine
    client: httpx.AsyncClient

    def harness(self, key: str, tools: list[dict]) -> Harness:
        raise NotImplementedError

    def captured(self, key: str) -> list[Call]:
        raise NotImplementedError


class Ours(Side):
    name = "ours"

    def __init__(self, engine: Engine, client: httpx.AsyncClient, gateway: Gateway, sampler: RemoteSampler) -> None:
        self.engine, self.client, self.gateway, self.sampler = engine, client, gateway, sampler
        self.sessions: dict[str, CaptureSession] = {}

    def harness(self, key: str, tools: list[dict]) -> Harness:
        session = CaptureSession(key, self.sampler, RENDERER, Sampling(max_tokens=MAX_TOKENS), seed=0)
        self.sessions[key] = session
        self.gateway.open(WireSession(session), key)
        return Harness(self.client, f"/s/{key}/v1/chat/completions", key, tools)

    def captured(self, key: str) -> list[Call]:
        return [
            Call(
                call.prompt_ids.tolist(), call.completion_ids.tolist(), call.logprobs.astype(float).round(4).tolist(),
                call.exchange.after,
            )
            for call in self.sessions[key].calls
        ]  # fmt: skip


class Theirs(Side):
    name = "theirs"

    def __init__(self, engine: Engine, client: httpx.AsyncClient, app) -> None:
        self.engine, self.client, self.registry = engine, client, app.state.registry

    def harness(self, key: str, tools: list[dict]) -> Harness:
        return Harness(self.client, "/v1/chat/completions", key, tools)

    def captured(self, key: str) -> list[Call]:
        nodes = self.registry.get(key).graph.nodes()
        place = {node.node_id: node.index for node in nodes}
        return [
            Call(node.prompt_ids, node.sampled_ids, node.sampled_logprobs, place.get(node.parent_id)) for node in nodes
        ]


@asynccontextmanager
async def both_sides(replies: Mapping[str, Message | Ids]):
    """Ours and theirs, each before an engine of its own."""
    from openenv.core.harness.capture.server import create_app

    async with engine_at(replies) as (engine, url), RemoteSampler(f"{url}/v1", "m", max_context=4096) as sampler:
        gateway = Gateway()
        port = (await serve(gateway, "127.0.0.1", 0)).sockets[0].getsockname()[1]
        try:
            async with (
                httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}") as client,
                engine_at(replies) as (other, url),
            ):
                app = create_app(llm_url=url, model="m", require_registered=False)
                async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://theirs") as inside:
                    yield Ours(engine, client, gateway, sampler), Theirs(other, inside, app)
        finally:
            await gateway.stop()


@asynccontextmanager
async def engine_at(replies: Mapping[str, Message | Ids]):
    engine = Engine(replies)
    routes = [Route("/v1/chat/completions", engine.chat, methods=["POST"])]
    routes.append(Route("/v1/completions", engine.completions, methods=["POST"]))
    config = uvicorn.Config(Starlette(routes=routes), port=0, lifespan="off", log_config=None)
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    try:
        yield engine, f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        await serving
