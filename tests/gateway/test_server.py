import asyncio
import json

import anthropic
import httpx
import openai
import pytest
from scripted_sampler import RENDERER, TOKENIZER, ScriptedSampler, call, is_prefix, path_of, say
from served import play

from whippletree.errors import PolicyError
from whippletree.gateway.wire import CLOSING
from whippletree.types import StopReason

CHAT_TOOL = {"type": "function", "function": {"name": "bash", "description": "Run.", "parameters": {"type": "object"}}}
ANTHROPIC_TOOL = {"name": "bash", "description": "Run.", "input_schema": {"type": "object", "properties": {}}}
TASK = {"role": "user", "content": "list the files"}


def openai_client(url):
    return openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0)


def anthropic_client(url):
    return anthropic.AsyncAnthropic(base_url=url, api_key="any", max_retries=0)


# ---- the protocols, driven by their own clients -----------------------------------------------------------------


def test_chat_completions_with_tools():
    async def story(there):
        url, capture, _ = there.session(call("ls", "look"), say("done"))
        async with openai_client(url) as client:
            first = await client.chat.completions.create(model="m", messages=[TASK], tools=[CHAT_TOOL])
            message = first.choices[0].message
            assert (first.choices[0].finish_reason, message.content) == ("tool_calls", "look")
            answer = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "a.txt"}
            history = [TASK, message.model_dump(exclude_none=True), answer]
            chunks = [
                chunk
                async for chunk in await client.chat.completions.create(
                    model="m", messages=history, tools=[CHAT_TOOL], stream=True, stream_options={"include_usage": True}
                )
            ]
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        assert text == "done"
        assert chunks[-1].usage.completion_tokens == len(capture.calls[1].completion_ids)
        return capture

    capture = play(story)
    assert is_prefix(path_of(capture.calls[0]), capture.calls[1].prompt_ids)
    assert capture.paths.counts == {"root:start": 1, "continuation": 1}


def test_responses_with_tools():
    tool = {
        "type": "function",
        "name": "bash",
        "description": "Run.",
        "parameters": {"type": "object"},
        "strict": False,
    }

    async def story(there):
        url, capture, _ = there.session(call("ls"), say("done"))
        async with openai_client(url) as client:
            history = [{"role": "developer", "content": "act"}, TASK]
            first = await client.responses.create(model="m", input=history, tools=[tool], store=False)
            asked = next(item for item in first.output if item.type == "function_call")
            assert json.loads(asked.arguments) == {"command": "ls"}
            history += [item.model_dump(exclude_none=True) for item in first.output]
            history.append({"type": "function_call_output", "call_id": asked.call_id, "output": "a.txt"})
            async with client.responses.stream(model="m", input=history, tools=[tool], store=False) as stream:
                second = await stream.get_final_response()
        assert second.output_text == "done"
        return capture

    capture = play(story)
    assert is_prefix(path_of(capture.calls[0]), capture.calls[1].prompt_ids)


def test_messages_with_tools():
    async def story(there):
        url, capture, _ = there.session(call("ls", "look"), say("done"))
        async with anthropic_client(url) as client:
            common = {"model": "m", "max_tokens": 100, "tools": [ANTHROPIC_TOOL], "system": "act"}
            first = await client.messages.create(messages=[TASK], **common)
            assert [block.type for block in first.content] == ["text", "tool_use"]
            result = {"type": "tool_result", "tool_use_id": first.content[1].id, "content": "a.txt"}
            history = [TASK, {"role": "assistant", "content": first.content}, {"role": "user", "content": [result]}]
            async with client.messages.stream(messages=history, **common) as stream:
                second = await stream.get_final_message()
            counted = await client.messages.count_tokens(model="m", messages=[TASK], system="act")
        assert (second.content[0].text, second.stop_reason) == ("done", "end_turn")
        assert counted.input_tokens > 0
        return capture

    capture = play(story)
    assert is_prefix(path_of(capture.calls[0]), capture.calls[1].prompt_ids)
    assert len(capture.calls) == 2


def test_gemini_over_plain_http():
    async def story(there):
        url, capture, _ = there.session(call("ls"), say("done"))
        tools = [{"functionDeclarations": [{"name": "bash", "parameters": {"type": "OBJECT"}}]}]
        contents = [{"role": "user", "parts": [{"text": "list the files"}]}]
        async with httpx.AsyncClient(base_url=f"{url}/v1beta/models") as client:
            body = {"contents": contents, "tools": tools}
            first = (await client.post("/gemini:generateContent", json=body)).json()
            part = first["candidates"][0]["content"]
            assert part["parts"][0]["functionCall"]["args"] == {"command": "ls"}
            answer = {"role": "user", "parts": [{"functionResponse": {"name": "bash", "response": {"output": "a"}}}]}
            body = {"contents": [*contents, part, answer], "tools": tools}
            second = await client.post("/gemini:streamGenerateContent", params={"alt": "sse"}, json=body)
        assert "done" in second.text
        return capture

    capture = play(story)
    assert is_prefix(path_of(capture.calls[0]), capture.calls[1].prompt_ids)


# ---- sessions ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("header", ["Authorization", "x-api-key", "x-goog-api-key"])
def test_the_key_may_stand_in_for_the_path(header):
    async def story(there):
        url, capture, _ = there.session(say("done"))
        root, key = url.split("/s/")
        async with httpx.AsyncClient(headers={header: f"Bearer {key}" if header == "Authorization" else key}) as client:
            reply = await client.post(f"{root}/v1/chat/completions", json={"messages": [TASK]})
        return reply.json(), capture

    reply, capture = play(story)
    assert reply["choices"][0]["message"]["content"] == "done"
    assert len(capture.calls) == 1


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("HEAD", "", 200),
        ("HEAD", "/anything", 200),
        ("GET", "/v1/models", 200),
        ("GET", "/models", 200),
        ("GET", "/v1/nothing", 404),
        ("GET", "/v1/chat/completions", 404),
        ("POST", "/v1/embeddings", 404),
        ("POST", "/v1beta/models/m:embedContent", 404),
    ],
)
def test_routes(method, path, status):
    async def story(there):
        url, _, _ = there.session()
        async with httpx.AsyncClient() as client:
            return (await client.request(method, url + path)).status_code

    assert play(story) == status


BAD_BODIES = [
    b"",
    b"{",
    b"[]",
    b"null",
    b'{"messages": 3}',
    b'{"messages": [{"role": "king"}]}',
    b"\xff\xfe",
    b"[" * 9999,
]


@pytest.mark.parametrize(
    "path", ["/v1/chat/completions", "/v1/responses", "/v1/messages", "/v1beta/models/m:generateContent"]
)
@pytest.mark.parametrize("body", BAD_BODIES)
def test_a_bad_body_is_refused_and_nothing_is_sampled(path, body):
    async def story(there):
        url, capture, wire = there.session(say("done"))
        async with httpx.AsyncClient() as client:
            reply = await client.post(url + path, content=body)
        return reply, capture, wire

    reply, capture, wire = play(story)
    assert reply.status_code == 400
    assert "error" in reply.json()
    assert (capture.calls, wire.counts) == ([], {"wire:refused": 1})


def test_a_body_that_is_too_large_is_refused(monkeypatch):
    monkeypatch.setattr("whippletree.gateway.server.MAX_BODY", 1000)

    async def story(there):
        url, _, _ = there.session()
        async with httpx.AsyncClient() as client:
            return await client.post(f"{url}/v1/chat/completions", json={"messages": [TASK] * 100})

    assert play(story).status_code == 413


def test_an_unknown_session_is_told_so():
    async def story(there):
        async with httpx.AsyncClient() as client:
            return await client.post(f"http://127.0.0.1:{there.port}/s/nobody/v1/messages", json={"messages": [TASK]})

    reply = play(story)
    assert reply.status_code == 404
    assert reply.json()["error"]["type"] == "not_found_error"


def test_half_a_surrogate_pair_is_read():
    async def story(there):
        url, capture, _ = there.session(say("done"))
        async with httpx.AsyncClient() as client:
            body = b'{"messages": [{"role": "user", "content": "cut \\ud83d"}]}'
            return (await client.post(f"{url}/v1/chat/completions", content=body)).status_code, capture

    status, capture = play(story)
    assert (status, len(capture.calls)) == (200, 1)


# ---- endings ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("budget", "reason"), [({"max_calls": 1}, StopReason.MAX_TURNS), ({"max_tokens": 1}, StopReason.MAX_TOKENS)]
)
def test_a_spent_budget_ends_with_a_normal_reply(budget, reason):
    async def story(there):
        url, capture, wire = there.session(say("done"), **budget)
        async with openai_client(url) as client:
            for expected in (None, CLOSING, CLOSING):
                reply = await client.chat.completions.create(model="m", messages=[TASK])
                if expected:
                    assert (reply.choices[0].message.content, reply.choices[0].finish_reason) == (expected, "stop")
        return capture, wire

    capture, wire = play(story)
    assert (len(capture.calls), wire.stop_reason, wire.counts["wire:closing"]) == (1, reason, 2)


def test_a_prompt_that_is_too_long_is_told_twice_and_then_ends():
    async def story(there):
        url, _, wire = there.session(say("done"), max_context=2)
        statuses = []
        async with httpx.AsyncClient() as client:
            for _ in range(3):
                reply = await client.post(f"{url}/v1/messages", json={"messages": [TASK], "max_tokens": 5})
                statuses.append((reply.status_code, "prompt is too long" in reply.text))
        return statuses, wire

    statuses, wire = play(story)
    assert statuses == [(400, True), (400, True), (200, False)]
    assert wire.stop_reason is StopReason.CONTEXT_OVERFLOW


def test_a_policy_that_breaks_ends_the_session():
    class Broken(ScriptedSampler):
        async def sample(self, *args, **settings):
            raise PolicyError("out of memory")

    async def story(there):
        url, _, wire = there.session(sampler=Broken([]))
        async with openai_client(url) as client:
            reply = await client.chat.completions.create(model="m", messages=[TASK])
        return reply.choices[0].message.content, wire

    text, wire = play(story)
    assert text == CLOSING
    assert (wire.stop_reason, str(wire.failure)) == (StopReason.ERROR, "out of memory")


# ---- slow and broken connections --------------------------------------------------------------------------------


class Slow(ScriptedSampler):
    """Samples when it is let go."""

    def __init__(self, *script):
        super().__init__(script)
        self.go = asyncio.Event()

    async def sample(self, *args, **settings):
        await self.go.wait()
        return await super().sample(*args, **settings)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": [TASK]}),
        ("/v1/responses", {"input": [TASK]}),
        ("/v1/messages", {"messages": [TASK], "max_tokens": 9}),
    ],
)
def test_a_stream_is_kept_alive_while_it_is_sampled(path, body):
    async def story(there):
        slow = Slow(say("done"))
        url, capture, _ = there.session(sampler=slow)
        async with (
            httpx.AsyncClient() as client,
            client.stream("POST", url + path, json=body | {"stream": True}) as reply,
        ):
            parts = reply.aiter_bytes()
            first = await anext(parts)
            assert capture.calls == []
            slow.go.set()
            rest = b"".join([part async for part in parts])
        return first, rest

    first, rest = play(story, keep_alive_s=0.01)
    assert b"done" not in first
    assert b"done" in rest


def test_a_retry_after_a_broken_connection_gets_the_same_reply():
    async def story(there):
        slow = Slow(say("done"), say("files"))
        url, capture, wire = there.session(sampler=slow)
        impatient = httpx.Timeout(None, read=0.1)
        body = {"messages": [TASK]}
        async with httpx.AsyncClient() as client:
            with pytest.raises(httpx.ReadTimeout):
                await client.post(f"{url}/v1/chat/completions", json=body, timeout=impatient)
            while not wire.counts["wire:abandoned"]:
                await asyncio.sleep(0.01)
            slow.go.set()
            again = await client.post(f"{url}/v1/chat/completions", json=body)
            third = await client.post(f"{url}/v1/chat/completions", json=body)
        return [r.json()["choices"][0]["message"]["content"] for r in (again, third)], capture, wire

    texts, capture, wire = play(story)
    assert texts == ["done", "files"]  # the second was delivered, so that the third is a new sample
    assert len(capture.calls) == 2
    assert (wire.counts["wire:redelivered"], capture.paths.counts["fork:retry"]) == (1, 1)


def test_a_session_that_is_settled_samples_no_more():
    async def story(there):
        slow = Slow(say("done"))
        url, capture, wire = there.session(sampler=slow)
        async with httpx.AsyncClient() as client:
            asking = asyncio.ensure_future(client.post(f"{url}/v1/chat/completions", json={"messages": [TASK]}))
            while not wire.busy:
                await asyncio.sleep(0.01)
            await wire.settle()
            assert (await asking).status_code == 503
            after = await client.post(f"{url}/v1/chat/completions", json={"messages": [TASK]})
        assert after.json()["choices"][0]["message"]["content"] == CLOSING
        return capture

    assert play(story).calls == []


def test_stop_strings_and_limits_of_the_harness_are_kept_and_the_rest_is_recorded():
    async def story(there):
        url, capture, _ = there.session(say("list the files"), say("list the files"))
        async with openai_client(url) as client:
            one = await client.chat.completions.create(model="m", messages=[TASK], stop=[" files"], temperature=0.1)
            two = await client.chat.completions.create(model="m", messages=[TASK], max_tokens=1)
        return one, two, capture

    one, two, capture = play(story)
    assert one.choices[0].message.content == "list the"
    assert two.choices[0].finish_reason == "length"
    assert len(capture.calls[1].completion_ids) == 1
    assert capture.calls[0].exchange.asked["temperature"] == 0.1
    assert capture.calls[0].temperature == 1.0


def test_a_stop_string_is_named_where_the_protocol_has_a_place_for_it():
    async def story(there):
        url, _, _ = there.session(say("list the files"))
        async with anthropic_client(url) as client:
            return await client.messages.create(model="m", max_tokens=9, messages=[TASK], stop_sequences=[" files"])

    reply = play(story)
    assert (reply.content[0].text, reply.stop_reason, reply.stop_sequence) == ("list the", "stop_sequence", " files")


def test_malformed_tool_calls_reach_the_harness_as_text():
    ids = RENDERER.encode_completion(call("ls"))
    ids = ids[ids != TOKENIZER.token_to_id("<|val|>")]

    async def story(there):
        url, capture, _ = there.session(ids)
        async with openai_client(url) as client:
            reply = await client.chat.completions.create(model="m", messages=[TASK], tools=[CHAT_TOOL])
        return reply.choices[0].message, capture

    message, capture = play(story)
    assert message.tool_calls is None
    assert "<|call|>" in message.content
    assert capture.calls[0].parse_error
