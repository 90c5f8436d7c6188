"""Against openenv's capture server on the same traffic: the same tokens, or a difference that is meant.

`make check-parity` installs it beside `.venv` and runs this; elsewhere it is skipped. Theirs never encodes: a prompt is
what the inference server made of the text. Ours encodes what is new and splices in what was sampled. So the two agree
where text becomes the tokens that it came from, and where it does not, ours keeps the conversation whole.
"""

import asyncio
from itertools import pairwise

import numpy as np
import pytest
from scripted_sampler import RENDERER, call, say, spelled
from two_captures import both_sides

pytestmark = [pytest.mark.slow, pytest.mark.parity, pytest.mark.filterwarnings("ignore")]

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "bash",
            "description": "Run.",
            "parameters": {"type": "object", "properties": {"command": {"type": "string"}}},
        },
    }
]
REPLIES = {
    "list the files": call("ls", "look"),
    "a.txt b.txt": call("cat a.txt"),
    "some text": say("done"),
    "other text": say("done, I say"),
    "and now": say("the end"),
    "in short": say("files were listed"),
}


@pytest.fixture(autouse=True)
def openenv():
    pytest.importorskip(
        "openenv.core.harness.capture.server", reason="openenv is absent: `make check-parity` installs it"
    )


def captured(story, replies=REPLIES, keys=("a",)):
    """Play the story on both sides; by key, what ours and theirs have of it, and the sides themselves."""

    async def run():
        async with both_sides(replies) as sides:
            for side in sides:
                await asyncio.gather(*(story(side.harness(key, TOOLS)) for key in keys))
            return [{key: side.captured(key) for key in keys} for side in sides], sides

    return asyncio.run(run())


async def plain(harness):
    harness.history = [{"role": "system", "content": "act"}]
    await harness.say("user", "list the files")
    await harness.say("tool", "a.txt b.txt")
    await harness.say("tool", "some text")
    await harness.say("user", "and now")


async def compacted(harness):
    """The history is replaced by a summary that was sampled without tools."""
    await plain(harness)
    harness.tools = []
    said = await harness.say("user", "in short")
    harness.tools = TOOLS
    harness.history = [{"role": "system", "content": "act"}, {"role": "user", "content": said["content"]}]
    await harness.say("user", "list the files")
    await harness.say("tool", "a.txt b.txt")


async def edited(harness):
    """An old observation is told otherwise, after which the conversation goes on from there."""
    await plain(harness)
    harness.history = harness.history[:5]
    await harness.say("tool", "other text")
    await harness.say("user", "and now")


async def branched(harness):
    """Two continuations of one reply, and the second of them asked twice."""
    await plain(harness)
    start = harness.history[:3]
    for _ in range(2):
        harness.history = [*start]
        await harness.say("tool", "other text")


async def cut_off(harness):
    await harness.say("user", "some text", max_tokens=2)
    await harness.say("user", "and now")


@pytest.mark.parametrize("story", [plain, compacted, edited, branched, cut_off])
def test_both_capture_the_same_calls(story):
    (ours, theirs), _ = captured(story)
    assert len(ours["a"]) > 1
    assert ours == theirs


def test_both_keep_parallel_sessions_apart():
    async def story(harness):
        key = harness.headers["Authorization"]
        harness.history = [{"role": "system", "content": f"act as {key}"}]
        for _ in range(2):
            await harness.say("user", "list the files")
            await harness.say("tool", "a.txt b.txt")

    keys = [f"k{i}" for i in range(12)]
    (ours, theirs), _ = captured(story, keys=keys)
    assert ours == theirs
    assert [call.parent for call in ours["k3"]] == [None, 0, 1, 2]
    assert len({tuple(calls[0].prompt) for calls in ours.values()}) == len(keys)


# ---- where the two differ, and are meant to ----------------------------------------------------------------------


def whole(calls):
    """Each prompt begins with all that came before."""
    return all(later.prompt[: len(call.path)] == call.path for call, later in pairwise(calls))


def test_ours_keeps_sampled_tokens_that_the_text_would_not_give_back():
    """So the rollout stays one sequence; theirs forks where the prompt has the same text in other tokens."""
    (ours, theirs), _ = captured(plain, REPLIES | {"some text": spelled("done")})
    assert [call.parent for call in ours["a"]] == [None, 0, 1, 2]
    assert whole(ours["a"])
    assert [call.parent for call in theirs["a"]] == [None, 0, 1, 1]
    assert ours["a"][:3] == theirs["a"][:3]
    last, other = ours["a"][3], theirs["a"][3]
    assert (last.sampled, last.logprobs) == (other.sampled, other.logprobs)
    assert RENDERER.text(np.array(last.prompt)) == RENDERER.text(np.array(other.prompt))


def test_ours_recognises_a_reply_that_the_harness_wrote_otherwise():
    async def story(harness):
        await harness.say("user", "some text")
        harness.history[-1]["content"] = "done"  # what was said had white space around it
        await harness.say("user", "and now")

    (ours, theirs), (side, _) = captured(story, REPLIES | {"some text": say(" done ")})
    assert [call.parent for call in ours["a"]] == [None, 0]
    assert whole(ours["a"])
    assert side.sessions["a"].paths.counts == {"root:start": 1, "continuation": 1, "realigned": 1}
    assert [call.parent for call in theirs["a"]] == [None, None]
    assert ours["a"][0] == theirs["a"][0]


def test_ours_samples_as_the_run_says_and_theirs_as_the_harness_asks():
    """The loss divides the logits by the run's temperature; a harness's own wish is recorded and goes no further."""

    async def story(harness):
        await harness.say("user", "some text", temperature=0.3)

    _, sides = captured(story)
    assert [[body["temperature"] for body in side.engine.bodies] for side in sides] == [[1.0], [0.3]]
    assert sides[0].sessions["a"].calls[0].exchange.asked["temperature"] == 0.3
