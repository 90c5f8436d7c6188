import asyncio
from dataclasses import replace

import numpy as np
import pytest
from scripted_sampler import (
    BASH,
    RENDERER,
    SYSTEM,
    TASK,
    TOKENIZER,
    Conversation,
    call,
    is_prefix,
    path_of,
    result,
    say,
    spelled,
)

from whippletree.errors import BudgetSpent, ContextOverflow
from whippletree.gateway.capture import call_seed
from whippletree.types import Message, Part, Request, Sampling, Tool, ToolCall


def test_a_call_is_recorded_as_it_was_sampled():
    talk = Conversation(call("ls", "run"), sampling=Sampling(temperature=0.7, max_tokens=100))
    completion = talk.ask(SYSTEM, TASK)
    assert completion.message == Message("assistant", "run", (ToolCall("call_0", "bash", '{"command":"ls"}'),))
    assert (completion.finish_reason, completion.policy_version, completion.parse_error) == ("tool_calls", 7, None)
    expected = np.concatenate([RENDERER.encode_head([SYSTEM, TASK], [BASH]), RENDERER.opening])
    assert completion.prompt_ids.tolist() == expected.tolist()
    (recorded,) = talk.session.calls
    assert (recorded.index, recorded.kind, recorded.temperature) == (0, "main", 0.7)
    assert recorded.completion_ids is completion.completion_ids
    assert recorded.logprobs is completion.logprobs
    assert recorded.parts is not None
    assert RENDERER.text(recorded.completion_ids[recorded.parts == Part.ACTION]) == "<|call|>bash"
    assert RENDERER.text(recorded.completion_ids[recorded.parts == Part.ARGUMENT]) == "<|arg|>command<|val|>ls"


def test_a_continued_path_is_spliced_never_encoded_again():
    talk = Conversation(spelled("done"), say("done"))
    first = talk.ask(SYSTEM, TASK)
    assert first.message == say("done")
    assert len(RENDERER.encode_completion(first.message)) < len(first.completion_ids)
    second = talk.ask(SYSTEM, TASK, first.message, Message("user", "more"))
    assert is_prefix(path_of(first), second.prompt_ids)
    assert talk.session.paths.counts["continuation"] == 1


def test_what_a_harness_does_to_an_echoed_message_does_not_fork():
    talk = Conversation(call("ls"), say("done"))
    first = talk.ask(SYSTEM, TASK)
    echoed = replace(first.message, tool_calls=(ToolCall("toolu_9", "bash", '{ "command" : "ls" }'),))
    second = talk.ask(SYSTEM, TASK, echoed, Message("tool", "a", tool_call_id="toolu_9"))
    assert is_prefix(path_of(first), second.prompt_ids)
    assert talk.session.paths.counts == {"root:start": 1, "continuation": 1, "realigned": 1}


def test_an_edited_answer_is_encoded_from_its_text():
    talk = Conversation(say("done"), say("done"))
    talk.ask(SYSTEM, TASK)
    second = talk.ask(SYSTEM, TASK, say("files"), Message("user", "more"))
    assert "<|assistant|>files<|end|>" in RENDERER.text(second.prompt_ids)
    assert talk.session.paths.counts == {"root:start": 1, "root:reply": 1, "reencoded": 1}


def test_other_tools_make_another_path():
    talk = Conversation(say("done"), say("done"))
    first = talk.ask(SYSTEM, TASK)
    talk.ask(SYSTEM, TASK, first.message, Message("user", "more"), tools=(BASH, Tool("edit", "", {})))
    assert talk.session.paths.counts == {"root:start": 1, "root:tools": 1}


def test_equal_tools_need_not_be_the_same_object():
    talk = Conversation(say("done"), say("done"))
    first = talk.ask(SYSTEM, TASK)
    talk.ask(SYSTEM, TASK, first.message, Message("user", "more"), tools=(replace(BASH),))
    assert talk.session.paths.counts["continuation"] == 1


def test_retries_and_branches_are_forks():
    talk = Conversation(call("ls"), call("run"), say("done"), say("files"))
    talk.ask(SYSTEM, TASK)
    second = talk.ask(SYSTEM, TASK)
    third = talk.ask(SYSTEM, TASK, second.message, result("a", second))
    fourth = talk.ask(SYSTEM, TASK, second.message, result("b", second))
    assert talk.session.paths.counts == {"root:start": 1, "continuation": 1, "fork:retry": 1, "fork:branch": 1}
    assert is_prefix(path_of(second), third.prompt_ids)
    assert is_prefix(path_of(second), fourth.prompt_ids)


def test_kept_turns_come_from_sampled_ids_in_a_new_context():
    sampled = spelled("done")
    talk = Conversation(call("ls"), sampled, say("done"))
    first = talk.ask(SYSTEM, TASK)
    second = talk.ask(SYSTEM, TASK, first.message, result("a", first))
    third = talk.ask(SYSTEM, Message("user", "summary"), second.message, Message("user", "go on"))
    tail = np.concatenate(
        [RENDERER.opening, sampled, RENDERER.encode_messages([Message("user", "go on")]), RENDERER.opening]
    )
    assert third.prompt_ids[-len(tail) :].tolist() == tail.tolist()
    assert talk.session.paths.counts["root:edit"] == 1


def test_a_context_may_begin_with_a_kept_turn():
    talk = Conversation(say("done"), say("done"))
    first = talk.ask(SYSTEM, TASK)
    second = talk.ask(first.message, Message("user", "more"))
    expected = "<|assistant|>done<|end|><|user|>more<|end|><|assistant|>"
    head = RENDERER.text(RENDERER.encode_head([], [BASH]))
    assert RENDERER.text(second.prompt_ids) == head + expected


def test_a_truncated_answer_is_closed_by_context():
    talk = Conversation(say("list the files"), say("done"), sampling=Sampling(max_tokens=2))
    first = talk.ask(SYSTEM, TASK)
    assert first.finish_reason == "length"
    assert first.message.content == "list the"
    second = talk.ask(SYSTEM, TASK, first.message, Message("user", "more"))
    assert is_prefix(path_of(first), second.prompt_ids)
    assert RENDERER.text(second.prompt_ids).endswith("list the<|end|><|user|>more<|end|><|assistant|>")


def test_malformed_output_is_an_answer_with_an_error():
    ids = RENDERER.encode_completion(call("ls"))
    ids = ids[ids != TOKENIZER.token_to_id("<|val|>")]
    talk = Conversation(ids, say("done"))
    first = talk.ask(SYSTEM, TASK)
    assert first.parse_error is not None
    assert "has no <|val|>" in first.parse_error
    assert first.finish_reason == "stop"
    second = talk.ask(SYSTEM, TASK, first.message, Message("user", first.parse_error))
    assert is_prefix(path_of(first), second.prompt_ids)


def test_tool_calls_are_numbered_over_the_rollout():
    twice = replace(call("ls"), tool_calls=call("ls").tool_calls * 2)
    talk = Conversation(twice, call("run"))
    first = talk.ask(SYSTEM, TASK)
    second = talk.ask(SYSTEM, TASK, first.message, result("a", first), result("b", first))
    ids = [c.id for completion in (first, second) for c in completion.message.tool_calls]
    assert ids == ["call_0", "call_1", "call_2"]


def test_a_request_may_only_lower_max_tokens():
    talk = Conversation(*[say("done")] * 4, sampling=Sampling(temperature=0.5, max_tokens=2000), max_context=1500)
    talk.ask(TASK, tools=())
    talk.ask(TASK, tools=(), max_tokens=10)
    talk.ask(TASK, tools=(), max_tokens=5000)
    room = 1500 - len(talk.sampler.prompts[0])
    assert [s.max_tokens for s in talk.sampler.samplings] == [room, 10, room]
    assert {s.temperature for s in talk.sampler.samplings} == {0.5}


def test_stop_strings_end_a_completion_at_their_token():
    talk = Conversation(say("list the files done"), say("done"))
    first = talk.ask(SYSTEM, TASK, stop=(" files", "done"))
    assert first.message == Message("assistant", "list the")
    assert first.finish_reason == "stop"
    assert first.completion_ids.tolist() == RENDERER.encode_completion(say("list the files"))[:-1].tolist()
    assert len(first.logprobs) == len(first.completion_ids)
    second = talk.ask(SYSTEM, TASK, first.message, Message("user", "more"))
    assert is_prefix(path_of(first), second.prompt_ids)


def test_budgets_end_a_rollout():
    talk = Conversation(say("done"), say("done"), max_calls=1)
    talk.ask(TASK)
    with pytest.raises(BudgetSpent, match="has made its 1 model calls"):
        talk.ask(TASK)
    talk = Conversation(say("done"), say("list the files"), max_tokens=4)
    talk.ask(TASK)
    assert talk.ask(TASK).finish_reason == "length"
    assert talk.session.sampled_tokens == 4
    with pytest.raises(BudgetSpent, match="has sampled 4 of 4 tokens"):
        talk.ask(TASK)


def test_a_prompt_that_is_too_long_is_the_samplers_error_and_not_recorded():
    talk = Conversation(say("done"), max_context=20)
    with pytest.raises(ContextOverflow):
        talk.ask(Message("user", "files " * 30))
    assert talk.session.calls == []
    assert talk.ask(TASK, tools=()).message.content == "done"
    assert talk.session.calls[0].index == 0


def test_seeds_are_stable_and_differ_by_call():
    talk = Conversation(say("done"), say("done"), seed=5)
    talk.ask(TASK)
    talk.ask(TASK)
    assert talk.sampler.seeds == [call_seed(5, 0), call_seed(5, 1)]
    assert call_seed(5, 0) == 3937460233806143885
    assert len({call_seed(seed, attempt) for seed in range(20) for attempt in range(20)}) == 400


def test_concurrent_calls_are_each_recorded_once():
    talk = Conversation(*[say(f"files {i}") for i in range(8)])

    async def all_at_once():
        requests = [Request((SYSTEM, Message("user", f"list {i}")), (BASH,)) for i in range(8)]
        return await asyncio.gather(*(talk.session.complete(request) for request in requests))

    completions = asyncio.run(all_at_once())
    assert [call.index for call in talk.session.calls] == list(range(8))
    for i, completion in enumerate(completions):
        assert f"list {i}" in RENDERER.text(completion.prompt_ids)
        follow_up = talk.session.paths.prompt(
            Request((SYSTEM, Message("user", f"list {i}"), completion.message), (BASH,))
        ).ids
        assert is_prefix(path_of(completion), follow_up)
