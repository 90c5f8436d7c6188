"""The gateway by itself, on a real port, with the embedded policy or with a server in front of which it stands."""

import asyncio
import re
import signal
import socket
import subprocess
import sys
from contextlib import asynccontextmanager
from importlib import resources

import httpx
import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.responses import JSONResponse
from starlette.routing import Route

from whippletree import cli, serve
from whippletree.config import parse, to_toml
from whippletree.errors import PolicyError
from whippletree.policy import remote
from whippletree.run import renderer_for
from whippletree.serve import Upstream, serve_gateway
from whippletree.sft import tokenizer_of
from whippletree.store.run_dir import RunStore
from whippletree.trajectory.export import as_atif, as_chats
from whippletree.types import StopReason

NANO = str(resources.files("whippletree.policy.nano") / "weights")
CONFIG = parse({"steps": 0, "policy": {"model": "nano"}, "sampling": {"max_tokens": 8}}, "the test's configuration")
ASK = {"model": "x", "messages": [{"role": "user", "content": "list the files"}]}
CHAT = "/v1/chat/completions"


@asynccontextmanager
async def running(path, upstream=None):
    """A client of a gateway that keeps its run in `path`, and what the gateway says; stopped at the end."""
    RunStore.create(path, to_toml(CONFIG), {}).close()
    said = []
    with RunStore.open(path) as store:
        work = asyncio.create_task(serve_gateway(CONFIG, store, ("127.0.0.1", 0), upstream, said.append))
        while not (url := re.search(r"(http://127\.0\.0\.1:[1-9]\d*)/s/NAME ", "\n".join(said))):
            if work.done():
                work.result()
            await asyncio.sleep(0.005)
        try:
            async with httpx.AsyncClient(base_url=url[1], timeout=60) as client:
                yield client, said
        finally:
            work.cancel()
            with pytest.raises(asyncio.CancelledError):
                await work


@asynccontextmanager
async def server_of(**endpoints):
    """The base URL of a server that answers `completions(body)` and so on; one that gives None fails."""

    def endpoint(answer):
        async def reply(request):
            told = answer(await request.json() if request.method == "POST" else None)
            return JSONResponse(told, 500 if told is None else 200)

        return reply

    routes = [
        Route("/" + name.replace("_", "/"), endpoint(one), methods=["GET", "POST"]) for name, one in endpoints.items()
    ]
    server = uvicorn.Server(uvicorn.Config(Starlette(routes=routes), lifespan="off", log_config=None, ws="none"))
    with socket.create_server(("127.0.0.1", 0)) as sock:
        serving = asyncio.create_task(server.serve([sock]))
        yield f"http://127.0.0.1:{sock.getsockname()[1]}"
        server.should_exit = True
        await serving


def stored(path):
    with RunStore.open(path, read_only=True) as store:
        return {rollout.id: rollout for rollout in store.rollouts(with_calls=True)}


def test_sessions_begin_with_a_request_and_are_kept_when_they_end(tmp_path):
    async def story():
        async with running(tmp_path / "run") as (client, said):
            for name in ("one", "two"):
                assert (await client.post(f"/s/{name}{CHAT}", json=ASK)).status_code == 200
            assert (await client.post(CHAT, json=ASK, headers={"Authorization": "Bearer three"})).status_code == 200

            refused = await client.post("/s/one/end", json={"reward": 2})
            assert (refused.status_code, "from 0 to 1, got 2" in refused.text) == (400, True)
            assert (await client.post("/s/one/end", json={"score": 1})).status_code == 400
            assert (await client.post("/s/none/end", json={"reward": 1})).status_code == 404
            given = {"reward": 1, "task": "t", "harness": "h"}
            told = (await client.post("/s/one/end", json=given)).json()
            assert (told["rollout"], told["calls"], told["error"]) == ("captured/one", {"main": 1}, None)
            assert (await client.post("/s/two/end")).json()["error"] == "no reward was given"
            assert (await client.post("/s/one/end", json=given)).status_code == 404
        assert any(re.fullmatch(r"one: ended, 1 main, [1-8] sampled tokens, reward 1", line) for line in said)
        assert any("two: ended" in line and "not graded: no reward was given" in line for line in said)

    asyncio.run(story())
    kept = stored(tmp_path / "run")
    assert list(kept) == ["captured/one", "captured/two", "captured/three"]
    one, two, three = kept.values()
    assert (one.passed, one.task_id, one.harness, one.stop_reason) == (True, "t", "h", StopReason.HARNESS_EXIT)
    assert (two.reward, two.task_id, two.error) == (None, "two", "no reward was given")
    assert (three.error, len(three.calls)) == ("no reward was given", 1), "stopping the server keeps what is open"
    assert all(0 < len(call.completion_ids) <= 8 for rollout in kept.values() for call in rollout.calls)
    (chat,) = as_chats(one)
    assert chat["messages"][0]["content"] == "list the files"
    assert len(list(as_atif(two))) == 1


def test_a_name_can_be_used_again_and_its_rewards_are_kept_together(tmp_path):
    async def story():
        async with running(tmp_path / "run") as (client, _):
            for reward in (1, 0.5):
                await client.post(f"/s/one{CHAT}", json=ASK)
                await client.post("/s/one/end", json={"reward": reward})

    asyncio.run(story())
    assert [*stored(tmp_path / "run")] == ["captured/one", "captured/one/2"]
    with RunStore.open(tmp_path / "run", read_only=True) as store:
        (cell,) = store.scores("captured")
    assert (cell.task_id, cell.passes, cell.rewards) == ("one", (True, False), (1.0, 0.5))


def test_a_session_in_which_nothing_was_said_is_not_graded(tmp_path):
    async def story():
        async with running(tmp_path / "run") as (client, _):
            assert (await client.post(f"/s/one{CHAT}", json={"messages": 1})).status_code == 400
            told = (await client.post("/s/one/end", json={"reward": 1})).json()
            assert told["error"].startswith("no_trainable_token")

    asyncio.run(story())


def test_a_silent_session_is_over_and_its_name_free(tmp_path, monkeypatch):
    monkeypatch.setattr(serve, "SILENCE_S", 0.0)
    monkeypatch.setattr(serve, "LOOK_S", 0.01)

    async def story():
        async with running(tmp_path / "run") as (client, said):
            for name in ("one", "one/2"):
                await client.post(f"/s/one{CHAT}", json=ASK)
                while not any(line.startswith(f"{name}: ended, 1 main") for line in said):
                    await asyncio.sleep(0.01)

    asyncio.run(story())
    assert [*stored(tmp_path / "run")] == ["captured/one", "captured/one/2"]


# ---- in front of another server ---------------------------------------------------------------------------------


def test_tokens_of_an_upstream_are_captured_in_its_tokenizer(tmp_path):
    renderer = renderer_for(NANO)
    stop = renderer.stop_ids[0]

    def completions(body):
        return {"choices": [{"token_ids": [5, stop], "logprobs": {"token_logprobs": [-1.0, -0.5]}}]}

    async def story():
        async with (
            server_of(completions=completions) as url,
            running(tmp_path / "run", Upstream(url, "big", NANO)) as (client, said),
        ):
            assert not any("only text" in line for line in said)
            assert (await client.get("/v1/models")).json()["data"][0]["id"] == "big"
            assert (await client.post(f"/s/one{CHAT}", json=ASK)).status_code == 200
            await client.post("/s/one/end", json={"reward": 0})

    asyncio.run(story())
    (call,) = stored(tmp_path / "run")["captured/one"].calls
    assert (call.completion_ids.tolist(), call.logprobs.tolist()) == ([5, stop], [-1.0, -0.5])
    with RunStore.open(tmp_path / "run", read_only=True) as store:
        assert tokenizer_of(store) == NANO


@pytest.mark.parametrize(
    ("listed", "context"),
    [
        ({"data": [{"id": "small", "max_model_len": 9}, {"id": "big", "max_model_len": 32768}]}, 32768),
        ({"data": [{"id": "big"}]}, 768),
        ({"object": "error"}, 768),
    ],
)
def test_the_context_is_what_the_upstream_states(tmp_path, listed, context):
    def completions(body):
        return {"choices": [{"token_ids": [5], "logprobs": {"token_logprobs": [-1.0]}}]}

    async def story():
        async with (
            server_of(completions=completions, models=lambda body: listed) as url,
            running(tmp_path / "run", Upstream(url, "big", NANO)) as (_, said),
        ):
            return said

    assert any(f"at most {context} tokens of context" in line for line in asyncio.run(story()))


def test_a_server_of_text_is_captured_for_reading_alone(tmp_path):
    def chat(body):
        return {"choices": [{"message": {"content": "a.txt"}, "finish_reason": "stop"}]}

    async def story():
        async with (
            server_of(chat_completions=chat) as url,
            running(tmp_path / "run", Upstream(url, "big", "nowhere")) as (client, said),
        ):
            assert any(f"{url} returns no token ids" in line and "only text is captured" in line for line in said)
            reply = (await client.post(f"/s/one{CHAT}", json=ASK)).json()
            assert reply["choices"][0]["message"]["content"] == "a.txt"
            await client.post("/s/one/end", json={"reward": 1})

    asyncio.run(story())
    rollout = stored(tmp_path / "run")["captured/one"]
    assert rollout.passed
    assert (rollout.calls[0].exchange.reply.content, len(rollout.calls[0].completion_ids)) == ("a.txt", 0)


def test_a_session_that_the_upstream_broke_is_not_graded(tmp_path, monkeypatch):
    monkeypatch.setattr(remote, "FIRST_PAUSE_S", 0.001)

    async def story():
        async with (
            server_of(chat_completions=lambda body: None) as url,
            running(tmp_path / "run", Upstream(url, "big", "nowhere")) as (client, said),
        ):
            assert "session is over" in (await client.post(f"/s/one{CHAT}", json=ASK)).text
            await client.post("/s/one/end", json={"reward": 1})
            assert any("one: ended" in line and "not graded: PolicyError" in line for line in said)

    asyncio.run(story())
    rollout = stored(tmp_path / "run")["captured/one"]
    assert (rollout.reward, rollout.stop_reason) == (None, StopReason.ERROR)
    assert "failed 4 times, at last: status 500" in rollout.error


def test_a_tokenizer_that_is_not_there_is_asked_for(tmp_path):
    def completions(body):
        return {"choices": [{"token_ids": [5], "logprobs": {"token_logprobs": [-1.0]}}]}

    async def story():
        async with server_of(completions=completions) as url:
            with pytest.raises(PolicyError, match="give the model's tokenizer with --tokenizer"):
                async with running(tmp_path / "run", Upstream(url, "big", str(tmp_path / "nowhere"))):
                    pass

    asyncio.run(story())


# ---- the command ------------------------------------------------------------------------------------------------


@pytest.fixture
def refused(monkeypatch, capsys):
    """What a command line that ends with code 2 says."""

    def refused(*arguments):
        monkeypatch.setattr(sys, "argv", ["whippletree", "gateway", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        assert ended.value.code == 2
        return " ".join(capsys.readouterr().err.split())

    return refused


def test_a_port_in_use_is_said_and_leaves_no_run(tmp_path, refused):
    with socket.create_server(("127.0.0.1", 0)) as sock:
        address = f"127.0.0.1:{sock.getsockname()[1]}"
        told = refused("--address", address, "--dir", tmp_path / "run")
    assert f"error: cannot listen on {address}: Address already in use" in told
    assert told.endswith("choose another address")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--address", "8080"], "expected HOST:PORT"),
        (["--address", ":8080"], "expected HOST:PORT"),
        (["--address", "127.0.0.1:99999"], "expected HOST:PORT"),
        (["--upstream", "http://127.0.0.1:1"], "--upstream needs --model"),
        (["--tokenizer", "t"], "--tokenizer goes with --upstream"),
    ],
)
def test_what_does_not_go_together_is_refused(refused, arguments, said):
    assert said in refused(*arguments)


def test_a_stopped_command_keeps_what_was_captured(tmp_path):
    command = [sys.executable, "-m", "whippletree", "gateway", "--address", "127.0.0.1:0", "--dir", tmp_path / "run"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as gateway:
        said = ""
        while not (url := re.search(r"http://\S+/s/NAME(?= )", said)):
            said += gateway.stderr.readline() or pytest.fail(f"the gateway ended: {said}")
        session = url[0].replace("NAME", "one")
        assert httpx.post(session + CHAT, json=ASK, timeout=60).status_code == 200
        gateway.send_signal(signal.SIGTERM)
        _, said = gateway.communicate()
    assert gateway.returncode == 130
    assert "one: ended, 1 main" in said
    assert said.endswith(f"interrupted; what was captured is in {tmp_path / 'run'}\n")
    assert len(stored(tmp_path / "run")["captured/one"].calls) == 1
