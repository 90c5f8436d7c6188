import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from scripted_sampler import RENDERER, SYSTEM, TASK, Conversation, call, result, say

from whippletree.gateway.paths import Paths, Tape
from whippletree.types import Message, Request


@given(st.lists(st.lists(st.integers(0, 9), max_size=400), max_size=8))
def test_what_a_tape_gave_out_never_changes(parts):
    tape, given_out, whole = Tape(np.array([7, 7], dtype=np.int64)), [], [7, 7]
    for part in parts:
        given_out.append((tape.head(tape.length), list(whole)))
        tape.append(np.array(part, dtype=np.int64))
        whole += part
    assert tape.head(tape.length).tolist() == whole
    for ids, expected in given_out:
        assert ids.tolist() == expected
        assert not ids.flags.writeable


def test_a_path_that_is_continued_keeps_its_ids_once():
    talk = Conversation(*[call("ls")] * 20, max_context=1 << 20)
    messages = [SYSTEM, TASK]
    for turn in range(20):
        completion = talk.ask(*messages)
        messages += [completion.message, result("word " * 50 + str(turn), completion)]
    rooms = {id(c.prompt_ids.base) for c in talk.session.calls}
    assert len(rooms) < 10
    assert talk.session.paths.counts == {"root:start": 1, "continuation": 19}


def test_two_requests_that_continue_the_same_reply_do_not_mix():
    paths = Paths(RENDERER)
    first = paths.prompt(Request((SYSTEM, TASK)))
    reply = say("done")
    paths.record(first, RENDERER.encode_completion(reply), reply, 0)
    one = paths.prompt(Request((SYSTEM, TASK, reply, Message("user", "list"))))
    two = paths.prompt(Request((SYSTEM, TASK, reply, Message("user", "files"))))
    paths.record(one, RENDERER.encode_completion(say("run")), say("run"), 1)
    paths.record(two, RENDERER.encode_completion(say("ls")), say("ls"), 2)
    assert "list<|end|>" in RENDERER.text(one.ids)
    assert "files<|end|>" in RENDERER.text(two.ids)
    assert (one.after, two.after) == (0, 0)
    assert paths.counts == {"root:start": 1, "continuation": 1, "fork:branch": 1}


def test_reasons_are_counted():
    talk = Conversation(*[say("done")] * 6)
    first = talk.ask(SYSTEM, TASK)
    talk.ask(SYSTEM, TASK, say("other"), Message("user", "more"))
    talk.ask(Message("system", "act otherwise"), TASK)
    talk.ask(SYSTEM, Message("user", "summary"), Message("user", "more"))
    talk.ask(SYSTEM, TASK, first.message, Message("user", "a"), Message("user", "b"))
    talk.ask(SYSTEM, TASK, first.message, Message("user", "a"), Message("user", "c"))
    assert talk.session.paths.counts == {
        "root:start": 1,
        "root:reply": 1,
        "root:system": 1,
        "root:edit": 1,
        "continuation": 1,
        "fork:edit": 1,
        "reencoded": 1,
    }


def test_white_space_around_an_echoed_answer_does_not_fork():
    talk = Conversation(say("done"), say("done"))
    first = talk.ask(SYSTEM, TASK)
    second = talk.ask(SYSTEM, TASK, say(" done\n"), Message("user", "more"))
    assert second.prompt_ids[: len(first.prompt_ids)].tolist() == first.prompt_ids.tolist()
    assert talk.session.paths.counts == {"root:start": 1, "continuation": 1, "realigned": 1}


def test_an_exchange_says_what_was_new():
    talk = Conversation(call("ls"), say("done"))
    first = talk.ask(SYSTEM, TASK)
    answer = result("a", first)
    talk.ask(SYSTEM, TASK, first.message, answer, asked={"model": "m"})
    one, two = (c.exchange for c in talk.session.calls)
    assert (one.after, one.messages, one.reply) == (None, (SYSTEM, TASK), first.message)
    assert (two.after, two.messages, two.reply, two.asked) == (0, (answer,), say("done"), {"model": "m"})
