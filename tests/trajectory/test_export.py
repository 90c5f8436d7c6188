import asyncio
import json
from dataclasses import replace

import numpy as np
import pytest
from atif import Trajectory
from hypothesis import given, settings
from hypothesis import strategies as st

from whippletree.chat.compact import CompactRenderer, train_tokenizer
from whippletree.errors import StoreError
from whippletree.gateway.capture import CaptureSession
from whippletree.trajectory.export import FORMATS, as_chats, line
from whippletree.trajectory.filters import TreeFilter
from whippletree.trajectory.tree import CallTree
from whippletree.types import (
    Exchange,
    Message,
    ModelCall,
    Part,
    Request,
    Reward,
    Rollout,
    Sampling,
    StopReason,
    TokenSample,
    Tool,
    ToolCall,
)

RENDERER = CompactRenderer(train_tokenizer(["list the files and say done"], 280))
BASH = Tool("bash", "Runs.", {"type": "object", "properties": {"command": {"type": "string"}}})
SYSTEM, TASK = Message("system", "act"), Message("user", "list the files")


def say(text: str) -> Message:
    return Message("assistant", text)


def run(command: str) -> Message:
    return Message("assistant", "", (ToolCall("", "bash", json.dumps({"command": command})),))


class Talk:
    """A session whose policy says what it is told to."""

    max_context = 4096

    def __init__(self, *script: Message) -> None:
        self.script = iter(script)
        self.session = CaptureSession("r0", self, RENDERER, Sampling(), seed=0)

    async def sample(self, prompt_ids, sampling, *, stop_ids, session, seed):
        ids = RENDERER.encode_completion(next(self.script))
        return TokenSample(ids, -np.ones(len(ids), np.float32), "stop", policy_version=7, cached_tokens=2)

    def ask(self, *messages: Message, **request) -> Message:
        asked = Request(messages, **({"tools": (BASH,)} | request))
        return asyncio.run(self.session.complete(asked)).message

    @property
    def rollout(self) -> Rollout:
        calls = tuple(self.session.calls)
        return Rollout("r0", "suite/t", "copy", "S0T1", 3, "train", calls, Reward(0.5, {"a": 1.0}), StopReason.FINISHED)


def answer(text: str, message: Message) -> Message:
    return Message("tool", text, tool_call_id=message.tool_calls[0].id)


def exported(form: str, rollout: Rollout) -> list[dict]:
    return [json.loads(line(document)) for document in FORMATS[form](rollout)]


def atif(rollout: Rollout) -> dict:
    (document,) = exported("atif", rollout)
    Trajectory.model_validate(document)
    return document


def sources(document: dict) -> list[str]:
    """Who says each step; in brackets what is copied."""
    return [f"({s['source']})" if s.get("is_copied_context") else s["source"] for s in document["steps"]]


@pytest.fixture
def episode():
    talk = Talk(run("ls"), say("done"))
    first = talk.ask(SYSTEM, TASK)
    talk.ask(SYSTEM, TASK, first, answer("a.txt", first))
    return talk.rollout


@pytest.fixture
def compacted():
    """Two turns, a retry, a compaction that continues them, and what comes after it."""
    talk = Talk(run("ls"), say("what"), run("cat a"), say("listed"), say("done"))
    first = talk.ask(SYSTEM, TASK)
    history = (SYSTEM, TASK, first, answer("a.txt", first))
    talk.ask(*history)
    second = talk.ask(*history)
    history += (second, answer("text", second))
    summary = talk.ask(*history, Message("user", "summarize"), kind="compaction")
    talk.ask(SYSTEM, Message("user", f"list the files; {summary.content}"))
    return talk.rollout


def test_everything_of_a_record_is_in_its_json(episode):
    (told,) = exported("jsonl", episode)
    call, made = told["calls"][1], episode.calls[1]
    assert (told["id"], told["harness"], told["stop_reason"]) == ("r0", "S0T1", "finished")
    assert told["reward"] == {"value": 0.5, "parts": {"a": 1.0}}
    assert set(call) == set(ModelCall.__dataclass_fields__)
    assert call["prompt_ids"] == made.prompt_ids.tolist()
    assert call["logprobs"] == made.logprobs.tolist()
    assert call["exchange"]["after"] == 0
    assert call["exchange"]["reply"]["content"] == "done"
    assert call["exchange"]["tools"][0]["name"] == "bash"


def test_tokens_without_words_are_still_exported_as_json(episode):
    old = replace(episode, calls=tuple(replace(call, exchange=None) for call in episode.calls))
    assert exported("jsonl", old)[0]["calls"][0]["exchange"] is None
    for form in ("openai", "atif"):
        with pytest.raises(StoreError, match=r"'r0' was recorded without words.*--format jsonl"):
            exported(form, old)


def test_a_chat_is_what_was_said_with_its_tools(episode):
    (chat,) = exported("openai", episode)
    assert [tool["function"]["name"] for tool in chat["tools"]] == ["bash"]
    system, user, call, result, final = chat["messages"]
    assert (system, user) == ({"role": "system", "content": "act"}, {"role": "user", "content": "list the files"})
    assert call == {
        "role": "assistant",
        "content": "",
        "tool_calls": [
            {"id": "call_0", "type": "function", "function": {"name": "bash", "arguments": '{"command":"ls"}'}}
        ],
        "weight": 1,
    }
    assert result == {"role": "tool", "content": "a.txt", "tool_call_id": "call_0"}
    assert final == {"role": "assistant", "content": "done", "weight": 1}


def test_reasoning_is_told_where_there_is_some(episode):
    call = episode.calls[0]
    thought = replace(call.exchange, reply=replace(call.exchange.reply, reasoning="files?"))
    episode = replace(episode, calls=(replace(call, exchange=thought), episode.calls[1]))
    assert exported("openai", episode)[0]["messages"][2]["reasoning_content"] == "files?"
    assert atif(episode)["steps"][2]["reasoning_content"] == "files?"


def test_chats_hold_what_is_trained_each_message_once(compacted):
    def weights(chat):
        return [m["weight"] for m in chat["messages"] if m["role"] == "assistant"]

    before, after = exported("openai", compacted)
    assert before["messages"][-1]["tool_calls"][0]["function"]["arguments"] == '{"command":"cat a"}'
    assert (weights(before), weights(after)) == ([1, 1], [1])
    both = list(as_chats(compacted, ("main", "compaction")))
    assert [weights(chat) for chat in both] == [[1, 1, 1], [1]]
    (only,) = as_chats(compacted, ("compaction",))
    assert weights(only) == [0, 0, 1]


def test_a_trajectory_has_tokens_observations_and_an_outcome(episode):
    document = atif(episode)
    assert sources(document) == ["system", "user", "agent", "agent"]
    step, made = document["steps"][2], episode.calls[0]
    assert step["tool_calls"] == [
        {"tool_call_id": "call_0", "function_name": "bash", "arguments": {"command": "ls"}},
    ]
    assert step["observation"] == {"results": [{"content": "a.txt", "source_call_id": "call_0"}]}
    assert step["metrics"] == {
        "prompt_tokens": len(made.prompt_ids),
        "completion_tokens": len(made.completion_ids),
        "cached_tokens": 2,
        "prompt_token_ids": made.prompt_ids.tolist(),
        "completion_token_ids": made.completion_ids.tolist(),
        "logprobs": made.logprobs.tolist(),
        "extra": {"token_parts": [Part(part).name.lower() for part in made.parts]},
    }
    assert document["agent"]["name"] == "S0T1"
    assert document["extra"]["reward"] == 0.5
    assert document["final_metrics"]["total_steps"] == 4
    assert "subagent_trajectories" not in document


def test_branches_are_embedded_and_what_they_share_is_copied(compacted):
    document = atif(compacted)
    after, retry = document["subagent_trajectories"]
    assert sources(document) == ["system", "user", "agent", "agent", "user", "agent"]
    assert [step["extra"]["kind"] for step in document["steps"] if "metrics" in step] == ["main", "main", "compaction"]
    assert document["continued_trajectory_ref"] == after["trajectory_id"] == "r0/4"
    assert sources(after) == ["system", "user", "agent"]
    assert sources(retry) == ["(system)", "(user)", "(agent)", "agent"]
    assert retry["extra"] == {"kind": "main", "given_up": True}
    documents = (document, after, retry)
    sampled = sum(d["final_metrics"]["total_completion_tokens"] for d in documents)
    assert sampled == sum(len(call.completion_ids) for call in compacted.calls)


def test_text_without_tokens_is_exported_too():
    none = np.empty(0, np.int64)
    said = (
        Exchange(None, (SYSTEM, TASK), Message("assistant", "", (ToolCall("x", "bash", "ls"),)), (BASH,)),
        Exchange(0, (Message("tool", "a", tool_call_id="y"), Message("user", "go on")), say("done"), (BASH,)),
        Exchange(None, (Message("tool", "lost"), say("told")), say("fine")),
    )
    calls = tuple(
        ModelCall(i, "main", none, none, none.astype(np.float32), 0, "stop", exchange=exchange)
        for i, exchange in enumerate(said)
    )
    rollout = Rollout("r", "t", "k", "h", 0, "train", calls, None, StopReason.ERROR, "no reward was given")
    document = atif(rollout)
    assert all("metrics" not in step for step in document["steps"])
    assert document["steps"][2]["tool_calls"][0] == {
        "tool_call_id": "x",
        "function_name": "bash",
        "arguments": {},
        "extra": {"arguments": "ls"},
    }
    assert document["steps"][2]["observation"]["results"] == [{"content": "a", "extra": {"tool_call_id": "y"}}]
    assert sources(document["subagent_trajectories"][0]) == ["system", "(agent)", "agent"]
    assert [len(chat["messages"]) for chat in exported("openai", rollout)] == [6, 3]
    assert exported("openai", rollout)[1]["messages"][1]["weight"] == 0


def test_a_rollout_without_a_call_has_nothing_to_say():
    rollout = Rollout("r", "t", "k", "h", 0, "train", (), None, StopReason.ERROR, "the sandbox died")
    assert [len(exported(form, rollout)) for form in FORMATS] == [1, 0, 0]


MOVES = st.sampled_from(["continue", "continue", "continue", "retry", "rewind", "compact", "edit"])
ANSWERS = st.sampled_from([run, say])
KINDS = st.sampled_from(["main", "main", "main", "compaction", "subagent"])


@settings(max_examples=40)
@given(st.lists(st.tuples(MOVES, ANSWERS, KINDS), min_size=1, max_size=10))
def test_whatever_a_harness_does_exports_are_valid_and_agree_with_what_is_trained(plan):
    talk = Talk(*[answer(f"file {number}") for number, (_, answer, _) in enumerate(plan)])  # no two alike
    history: list[Message] = [SYSTEM, TASK]
    last = None
    for move, _, kind in plan:
        if last is not None and move != "retry":
            history += [last, Message("user", "more")]
        if move == "rewind":
            history = history[: max(2, len(history) - 4)]
        if move == "compact":
            history = [SYSTEM, Message("user", "list"), *history[2:][-4:]]
        if move == "edit":
            history = [say(m.content + " and") if m.role == "assistant" else m for m in history]
        last = talk.ask(*history, kind=kind)
    rollout = talk.rollout
    document = atif(rollout)
    documents = [document, *document.get("subagent_trajectories", ())]
    told = [step["metrics"]["completion_token_ids"] for d in documents for step in d["steps"] if "metrics" in step]
    assert sorted(told) == sorted(call.completion_ids.tolist() for call in rollout.calls)
    learned = [m["weight"] for chat in exported("openai", rollout) for m in chat["messages"] if "weight" in m]
    trained = TreeFilter(max_leaves=99).select(CallTree.build(rollout.calls)).kept
    assert sum(learned) == len(trained)
