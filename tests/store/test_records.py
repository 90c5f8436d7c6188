import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from whippletree.store import records, words
from whippletree.types import Exchange, Message, ModelCall, Reward, Rollout, Score, StopReason, Tool, ToolCall


def same_call(a: ModelCall, b: ModelCall) -> bool:
    arrays = ("prompt_ids", "completion_ids", "logprobs", *(("parts",) if a.parts is not None else ()))
    rest = [f for f in ModelCall.__dataclass_fields__ if f not in arrays]
    return all(getattr(a, f) == getattr(b, f) for f in rest) and all(
        getattr(a, f).dtype == getattr(b, f).dtype and np.array_equal(getattr(a, f), getattr(b, f)) for f in arrays
    )


TEXT = st.text(st.characters(), max_size=8)  # with lone surrogates, which JSON can escape and UTF-8 cannot hold
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | TEXT,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(TEXT, inner, max_size=2),
    max_leaves=4,
)
OBJECTS = st.dictionaries(TEXT, JSON, max_size=2)
TOOLS = st.lists(st.builds(Tool, TEXT, TEXT, OBJECTS), max_size=2).map(tuple)
MESSAGES = st.builds(
    Message,
    st.sampled_from(["system", "user", "assistant", "tool"]),
    TEXT,
    st.lists(st.builds(ToolCall, TEXT, TEXT, TEXT), max_size=2).map(tuple),
    st.none() | TEXT,
    TEXT,
)


@st.composite
def exchanges(draw, tools):
    messages = tuple(draw(st.lists(MESSAGES, max_size=2)))
    return Exchange(draw(st.none() | st.integers(0, 9)), messages, draw(MESSAGES), draw(tools), draw(OBJECTS))


UPDATES = st.dictionaries(st.integers(1, 9), st.integers(1, 9)).map(lambda found: tuple(sorted(found.items())))


@st.composite
def model_calls(draw):
    calls = []
    tools = st.sampled_from(draw(st.lists(TOOLS, min_size=1, max_size=2)))
    known = []
    for index in range(draw(st.integers(0, 5))):
        tail = draw(st.lists(st.integers(0, 2**31 - 1), max_size=6))
        prompt = known[: draw(st.integers(0, len(known)))] + tail
        completion = draw(st.lists(st.integers(0, 9), max_size=6))
        known = prompt + completion
        calls.append(
            ModelCall(
                index=index,
                kind=draw(st.sampled_from(["main", "subagent", "compaction"])),
                prompt_ids=np.array(prompt, np.int64),
                completion_ids=np.array(completion, np.int64),
                logprobs=-np.arange(len(completion), dtype=np.float32) / 3,
                policy_version=index,
                finish_reason="stop",
                temperature=0.7,
                parse_error=draw(st.sampled_from([None, "no JSON"])),
                cached_tokens=2,
                exchange=draw(st.none() | exchanges(tools)),
                updates=draw(UPDATES),
                parts=draw(st.sampled_from([None, np.arange(len(completion), dtype=np.int8) % 3])),
            )
        )
    return tuple(calls)


@settings(deadline=None)
@given(model_calls())
def test_calls_come_back_equal(calls):
    lists = words.tool_lists(calls)
    table = {found.hash: found.blob for found in lists}
    rows = [row[1:] for row in records.call_rows(1, calls, lists)]
    back = records.calls_of(rows, lambda hash: words.tools_of(table[hash]))
    assert len(back) == len(calls)
    assert all(same_call(a, b) for a, b in zip(calls, back, strict=True))


def test_a_growing_prompt_is_stored_once():
    ids = np.arange(10_000)
    none = np.empty(0, np.int64)
    calls = [ModelCall(i, "main", ids[: 1000 * (i + 1)], none, none.astype(np.float32), 0, "stop") for i in range(10)]
    stored = sum(len(row[5]) for row in records.call_rows(1, calls))
    assert stored == 4 * len(ids)


def test_a_tool_list_is_told_once_whoever_repeats_it():
    none = np.empty(0, np.int64)

    def call(index: int, *names: str) -> ModelCall:
        tools = tuple(Tool(name, "Runs.", {"type": "object"}) for name in names)
        said = Exchange(None, (), Message("assistant", ""), tools)
        return ModelCall(index, "main", none, none, none.astype(np.float32), 0, "stop", exchange=said)

    calls = [call(0, "bash"), call(1, "bash", "read"), call(2, "bash"), call(3)]
    lists = words.tool_lists(calls)
    assert [len(found.tools) for found in lists] == [1, 2]
    hashes = [row[-3] for row in records.call_rows(1, calls, lists)]
    assert hashes == [lists[0].hash, lists[1].hash, lists[0].hash, None]


def test_rollouts_and_scores_come_back_equal():
    graded = Rollout(
        "r1",
        "t",
        "copy",
        "S0T1",
        3,
        "train",
        (),
        Reward(0.5, {"file": 1.0}),
        StopReason.MAX_TURNS,
        None,
        4,
        {"total": 1.5},
        {"continuation": 3, "fork:retry": 1},
    )
    broken = Rollout("r2", "t", "copy", "S0T1", 3, "evaluate", (), None, StopReason.ERROR, "sandbox died")
    for rollout in (graded, broken):
        assert records.rollout_of(records.rollout_row(rollout), ()) == rollout
    score = Score("t", "copy", "S0T1", (True, False), (1.0, 0.25))
    assert records.score_of(records.score_row(score)) == score
