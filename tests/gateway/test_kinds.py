import numpy as np

from whippletree.gateway.kinds import Rules, classify
from whippletree.types import Exchange, Message, ModelCall, Tool, ToolCall

IDS, LOGPROBS = np.zeros(1, np.int64), np.zeros(1, np.float32)
TOOLS = (Tool("bash", "", {}), Tool("edit", "", {}))
ANSWER = Message("assistant", "done")
ACTION = Message("assistant", "", (ToolCall("1", "bash", "{}"),))


def told(index, *texts, after=None, system="act", tools=TOOLS, headers=None, reply=ACTION, kind="main"):
    begin = (Message("system", system),) if after is None else ()
    messages = (*begin, *(Message("user", text) for text in texts))
    said = Exchange(after, messages, reply, tools, {"headers": headers or {}})
    return ModelCall(index, kind, IDS, IDS, LOGPROBS, 0, "stop", exchange=said)


def test_one_thread_is_main():
    assert classify([told(0, "do"), told(1, after=0), told(2, after=1)], Rules()) == ["main"] * 3


def test_calls_are_told_by_shape():
    calls = [
        told(0, "a title, please", system="you write titles", tools=()),
        told(1, "do"),
        told(2, "look around", system="you explore", tools=TOOLS[:1]),
        told(3, after=2, system="you explore", tools=TOOLS[:1]),
        told(4, after=1),
        told(5, "summarise all", after=4, tools=()),
        told(6, "the summary"),
    ]
    kinds = ["auxiliary", "main", "subagent", "subagent", "main", "compaction", "main"]
    assert classify(calls, Rules()) == kinds
    assert classify(calls[::-1], Rules()) == kinds[::-1]
    assert classify(calls, Rules(side_by_shape=False)) == ["main"] * 7


def test_harnesses_without_tools_have_main_calls_too():
    calls = [told(0, "do", tools=()), told(1, "x", after=0, tools=()), told(2, "give up", system="sum up", tools=())]
    assert classify(calls, Rules()) == ["main", "main", "subagent"]


def test_calls_are_told_by_signs():
    rules = Rules(subagent_header="x-agent-id: .", compaction_user="CHECKPOINT", auxiliary_system="^title")
    calls = [
        told(0, "do"),
        told(1, "help", headers={"x-agent-id": "7"}),
        told(2, "CHECKPOINT now", after=0),
        told(3, "do", system="title maker"),
    ]
    assert classify(calls, rules) == ["main", "subagent", "compaction", "auxiliary"]


def test_what_comes_after_the_answer_is_a_notification():
    calls = [
        told(0, "do", reply=ANSWER),
        told(1, "<task-notification>finished</task-notification>", after=0),
        told(2, "<task-notification>while at work</task-notification>", after=1),
    ]
    assert classify(calls, Rules()) == ["main", "notification", "main"]


def test_a_kind_that_was_named_stays():
    assert classify([told(0, "do"), told(1, "sum up", kind="compaction")], Rules()) == ["main", "compaction"]
