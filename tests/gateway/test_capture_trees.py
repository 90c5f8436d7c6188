"""From what a harness does at the boundary to what is trained."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted_sampler import SYSTEM, TASK, Conversation, call, path_of, result, say, spelled

from whippletree.trajectory.samples import rollout_samples
from whippletree.trajectory.tree import CallTree
from whippletree.types import (
    Completion,
    Message,
    Reward,
    Rollout,
    Sample,
    Sampling,
    StopReason,
)


def trained(talk: Conversation) -> list[Sample]:
    rollout = Rollout(
        "r0", "t", "k", "h", 0, "train", tuple(talk.session.calls), Reward(1.0), StopReason.FINISHED, num_turns=1
    )
    return rollout_samples(rollout)[0]


def sampled_ids(sample: Sample) -> list[int]:
    return sample.ids[sample.weights > 0].tolist()


def test_an_episode_is_one_row_of_all_sampled_tokens():
    talk = Conversation(call("ls"), spelled("done"))
    first = talk.ask(SYSTEM, TASK)
    second = talk.ask(SYSTEM, TASK, first.message, result("a", first))
    (sample,) = trained(talk)
    assert sample.ids.tolist() == path_of(second).tolist()
    assert sampled_ids(sample) == [*first.completion_ids, *second.completion_ids]
    logprobs = sample.rollout_logprobs[sample.weights > 0].tolist()
    assert logprobs == [*first.logprobs, *second.logprobs]


def test_the_end_token_of_a_truncated_answer_is_not_trained():
    talk = Conversation(say("list the files"), say("done"), sampling=Sampling(max_tokens=2))
    first = talk.ask(SYSTEM, TASK)
    talk.ask(SYSTEM, TASK, first.message, Message("user", "more"))
    (sample,) = trained(talk)
    end = len(path_of(first))
    assert sample.weights[end - 1] > 0
    assert sample.weights[end] == 0


def test_a_compaction_gives_two_segments_and_no_token_twice():
    talk = Conversation(call("ls"), call("run"), say("list files"), say("done"))
    first = talk.ask(SYSTEM, TASK)
    second = talk.ask(SYSTEM, TASK, first.message, result("a", first))
    summary = talk.ask(Message("user", "list"), tools=(), kind="compaction")
    kept = (second.message, result("b", second))
    last = talk.ask(SYSTEM, Message("user", summary.message.content), *kept)
    before, after = trained(talk)
    assert sampled_ids(before) == [*first.completion_ids, *second.completion_ids]
    assert sampled_ids(after) == last.completion_ids.tolist()
    assert len(CallTree.build(talk.session.calls).roots) == 3


def test_a_retry_after_malformed_output_leaves_a_dead_leaf():
    broken = np.array([2, 2, 9])
    talk = Conversation(broken, call("ls"), say("done"))
    assert talk.ask(SYSTEM, TASK).parse_error is not None
    second = talk.ask(SYSTEM, TASK)
    third = talk.ask(SYSTEM, TASK, second.message, result("a", second))
    (sample,) = trained(talk)
    assert sampled_ids(sample) == [*second.completion_ids, *third.completion_ids]


def test_branches_train_their_shared_turn_once():
    talk = Conversation(call("ls"), say("done"), say("files"))
    first = talk.ask(SYSTEM, TASK)
    answers = [talk.ask(SYSTEM, TASK, first.message, result(text, first)) for text in "ab"]
    one, two = trained(talk)
    assert sampled_ids(one) == [*first.completion_ids, *answers[0].completion_ids]
    assert sampled_ids(two) == answers[1].completion_ids.tolist()


ANSWERS = st.sampled_from([call("ls"), call("run"), say("done"), say("files"), spelled("done"), np.array([2, 2, 9])])
MOVES = st.sampled_from(["continue", "continue", "continue", "retry", "rewind", "compact", "edit"])


@settings(max_examples=60)
@given(st.lists(st.tuples(MOVES, ANSWERS), min_size=1, max_size=10))
def test_whatever_a_harness_does_tokens_are_trained_where_they_were_sampled(plan):
    talk = Conversation(*[answer for _, answer in plan])
    history: list[Message] = [SYSTEM, TASK]
    completions: list[Completion] = []
    for move, _ in plan:
        if completions and move != "retry":
            history += [completions[-1].message, Message("user", "more")]
        if move == "rewind":
            history = history[: max(2, len(history) - 4)]
        if move == "compact":
            history = [SYSTEM, Message("user", "list"), *history[2:][-4:]]
        if move == "edit":
            history = [say(m.content + " and") if m.role == "assistant" else m for m in history]
        completions.append(talk.ask(*history))
        met = {kind: n for kind, n in talk.session.paths.counts.items() if kind not in ("realigned", "reencoded")}
        assert sum(met.values()) == len(completions)
    allowed = {
        (tuple(path_of(c)[: len(c.prompt_ids) + t + 1].tolist()), float(c.logprobs[t]))
        for c in completions
        for t in range(len(c.completion_ids))
    }
    seen = [
        (tuple(sample.ids[: t + 1].tolist()), float(sample.rollout_logprobs[t]))
        for sample in trained(talk)
        for t in np.flatnonzero(sample.weights)
    ]
    assert len(seen) == len(set(seen))
    assert set(seen) <= allowed
    if not any(node.dead for node in CallTree.build(talk.session.calls).nodes):
        assert set(seen) == allowed
