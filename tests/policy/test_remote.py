"""A policy behind HTTP, played by a small server that speaks as vLLM does."""

import asyncio
import socket

import numpy as np
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.routing import Route

from whippletree.errors import ContextOverflow, PolicyError
from whippletree.policy import remote
from whippletree.policy.remote import RemoteSampler
from whippletree.types import Sampling

PROMPT = np.arange(40)[::2]
"""Every second one: not contiguous, as a slice of a path may be."""


def choice(ids=(7, 9), logprobs=(-0.5, -0.25)):
    return {"choices": [{"text": "ab", "token_ids": list(ids), "logprobs": {"token_logprobs": list(logprobs)}}]}


def play(story, *script, api_key="", max_context=100):
    """What `story(sampler)` gives, and the requests that a server with these replies had; the last one is repeated."""
    bodies = []
    replies = list(script)

    async def answer(request):
        bodies.append((request.headers.get("authorization"), await request.json()))
        told = replies.pop(0) if len(replies) > 1 else replies[0]
        return told if isinstance(told, PlainTextResponse) else JSONResponse(told)

    async def run():
        app = Starlette(routes=[Route("/v1/completions", answer, methods=["POST"])])
        server = uvicorn.Server(uvicorn.Config(app, lifespan="off", log_config=None, ws="none"))
        with socket.create_server(("127.0.0.1", 0)) as sock:
            serving = asyncio.create_task(server.serve([sock]))
            url = f"http://127.0.0.1:{sock.getsockname()[1]}/v1/"
            try:
                async with RemoteSampler(url, "m", max_context=max_context, api_key=api_key) as sampler:
                    return await story(sampler)
            finally:
                server.should_exit = True
                await serving

    return asyncio.run(run()), bodies


def sample(sampler, prompt=PROMPT, stop_ids=(9,)):
    sampling = Sampling(temperature=0.5, max_tokens=90)
    return sampler.sample(prompt, sampling, stop_ids=stop_ids, session="r0", seed=1 << 70 | 3)


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch):
    monkeypatch.setattr(remote, "FIRST_PAUSE_S", 0.001)


def test_tokens_go_out_and_come_back_with_their_logprobs():
    told, [(key, body)] = play(sample, choice(), api_key="k")
    assert key == "Bearer k"
    assert told.ids.dtype == np.int64
    assert told.logprobs.dtype == np.float32
    assert (told.ids.tolist(), told.logprobs.tolist(), told.finish_reason) == ([7, 9], [-0.5, -0.25], "stop")
    assert body["prompt"] == PROMPT.tolist()
    assert (body["model"], body["temperature"], body["stop_token_ids"], body["seed"]) == ("m", 0.5, [9], 3)
    assert body["max_tokens"] == 80, "what the context leaves of 90"
    assert body["return_token_ids"]


def test_a_reply_that_ends_with_no_stop_token_was_cut():
    assert play(sample, choice((7, 8)))[0].finish_reason == "length"
    assert play(sample, choice((), ()))[0].finish_reason == "length"


def test_a_prompt_that_fills_the_context_is_not_sent():
    async def story(sampler):
        with pytest.raises(ContextOverflow, match="r0: a prompt of 20 tokens, a context of 20"):
            await sample(sampler)

    assert play(story, choice(), max_context=20)[1] == []


def test_a_busy_or_broken_server_is_asked_again():
    told, bodies = play(sample, PlainTextResponse("", 500), PlainTextResponse("", 429), choice())
    assert told.ids.tolist() == [7, 9]
    assert len(bodies) == 3


@pytest.mark.parametrize(
    ("reply", "asked", "said"),
    [
        (PlainTextResponse("no room", 503), remote.RETRIES + 1, "failed 4 times, at last: status 503: no room"),
        (PlainTextResponse("no such model", 400), 1, "refused: status 400: no such model"),
        (PlainTextResponse("<html>"), 1, "answers with no JSON object but '<html>'; check the base URL"),
        ({"choices": [{"text": "ab"}]}, 1, "returns no token ids with log-probabilities; use vLLM"),
        (choice((7, 9), (-0.5,)), 1, "returns no token ids with log-probabilities; use vLLM"),
        ({}, 1, "returns no token ids"),
    ],
)
def test_what_the_server_said_is_told(reply, asked, said):
    async def story(sampler):
        with pytest.raises(PolicyError) as raised:
            await sample(sampler)
        return str(raised.value)

    told, bodies = play(story, reply)
    assert "http://127.0.0.1:" in told
    assert said in told
    assert len(bodies) == asked


def test_a_server_that_is_not_there_is_named():
    async def story():
        with socket.create_server(("127.0.0.1", 0)) as sock:
            port = sock.getsockname()[1]
        async with RemoteSampler(f"http://127.0.0.1:{port}/v1", "m", max_context=100) as sampler:
            with pytest.raises(PolicyError, match=rf"127.0.0.1:{port}/v1 failed 4 times, at last: ClientConnector"):
                await sampler.returns_tokens()

    asyncio.run(story())


@pytest.mark.parametrize(
    ("reply", "gives"),
    [(choice(), True), ({"choices": [{"text": "ab"}]}, False), (PlainTextResponse("a chat model", 404), False)],
)
def test_a_server_is_asked_whether_it_gives_tokens(reply, gives):
    assert play(lambda sampler: sampler.returns_tokens(), reply)[0] is gives


def test_a_wrong_key_is_not_taken_for_a_server_of_text():
    async def story(sampler):
        with pytest.raises(PolicyError, match="status 401: who"):
            await sampler.returns_tokens()

    play(story, PlainTextResponse("who are you", 401))
