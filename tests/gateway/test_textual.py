"""A session in front of a server of text."""

import asyncio

import pytest
from scripted_sampler import BASH, SYSTEM, TASK

from whippletree.gateway.kinds import Rules, classify
from whippletree.gateway.textual import TextSession
from whippletree.types import Message, Request, Sampling, ToolCall

LS = {"id": "c1", "type": "function", "function": {"name": "bash", "arguments": '{"command": "ls"}'}}


class Server:
    """Says the script in order, as a chat completions endpoint."""

    def __init__(self, *script):
        self.script = list(script)
        self.bodies = []
        self.session = TextSession("r0", "m", Sampling(temperature=0.5, max_tokens=50), self.post)

    async def post(self, path, body):
        assert path == "/chat/completions"
        self.bodies.append(body)
        message, reason = self.script.pop(0)
        return {"choices": [{"message": {"role": "assistant", **message}, "finish_reason": reason}]}

    def ask(self, *messages, **request):
        return asyncio.run(self.session.complete(Request(messages, **request)))


def test_an_exchange_holds_what_is_new_and_no_token():
    server = Server(({"content": None, "tool_calls": [LS]}, "tool_calls"), ({"content": "done"}, "stop"))
    first = server.ask(SYSTEM, TASK, tools=(BASH,), asked={"model": "x"})
    told = Message("tool", "a.txt", tool_call_id="c1")
    last = server.ask(SYSTEM, TASK, first.message, told, tools=(BASH,))

    assert first.message == Message("assistant", "", (ToolCall("c1", "bash", '{"command": "ls"}'),))
    assert (first.finish_reason, last.finish_reason, last.message.content) == ("tool_calls", "stop", "done")
    one, two = server.session.calls
    assert (one.index, one.exchange.after, one.exchange.messages) == (0, None, (SYSTEM, TASK))
    assert (one.exchange.reply, one.exchange.tools, one.exchange.asked) == (first.message, (BASH,), {"model": "x"})
    assert (two.index, two.exchange.after, two.exchange.messages) == (1, 0, (told,))
    assert [len(ids) for call in (one, two) for ids in (call.prompt_ids, call.completion_ids, call.logprobs)] == [0] * 6
    assert one.temperature == 0.5


def test_tools_calls_and_results_go_upstream_in_its_own_form():
    server = Server(({"tool_calls": [LS]}, "tool_calls"), ({"content": "done"}, "stop"))
    first = server.ask(SYSTEM, TASK, tools=(BASH,))
    server.ask(SYSTEM, TASK, first.message, Message("tool", "a.txt", tool_call_id="c1"), max_tokens=7, stop=("END",))

    one, two = server.bodies
    function = {"name": "bash", "description": "Run.", "parameters": dict(BASH.parameters)}
    assert one == {
        "model": "m",
        "messages": [{"role": "system", "content": "act"}, {"role": "user", "content": "list the files"}],
        "temperature": 0.5,
        "max_tokens": 50,
        "tools": [{"type": "function", "function": function}],
    }
    assert two["messages"][2:] == [
        {"role": "assistant", "content": "", "tool_calls": [LS]},
        {"role": "tool", "content": "a.txt", "tool_call_id": "c1"},
    ]
    assert (two["max_tokens"], two["stop"], "tools" in two) == (7, ["END"], False)


def test_reasoning_and_a_cut_reply_come_back():
    server = Server(({"content": "don", "reasoning_content": "so"}, "length"))
    completion = server.ask(TASK)
    assert (completion.message.reasoning, completion.finish_reason) == ("so", "length")


def test_calls_are_told_apart_by_their_words():
    title = {"content": "A title"}
    server = Server(({"tool_calls": [LS]}, "tool_calls"), (title, "stop"), ({"content": "done"}, "stop"))
    first = server.ask(SYSTEM, TASK, tools=(BASH,))
    server.ask(Message("system", "Give a title."), TASK)
    server.ask(SYSTEM, TASK, first.message, Message("tool", "a.txt", tool_call_id="c1"), tools=(BASH,))
    server.session.name_kinds(classify(server.session.calls, Rules()))
    assert [call.kind for call in server.session.calls] == ["main", "auxiliary", "main"]
    assert server.session.count_tokens(Request((TASK,))) == len(TASK.content) // 4


def test_what_the_server_refuses_is_not_captured():
    async def post(path, body):
        raise ConnectionError("gone")

    session = TextSession("r0", "m", Sampling(), post)
    with pytest.raises(ConnectionError):
        asyncio.run(session.complete(Request((TASK,))))
    assert session.calls == []
