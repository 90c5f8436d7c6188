"""Rollouts, calls and scores as table rows, and back.

Invariant: reading a written record gives an equal record. Token ids are int32 and log-probabilities float32, little
endian. A prompt mostly repeats the call before it, so only the part after the common prefix is stored.
What calls said is in `words`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from whippletree.store import words
from whippletree.types import Ids, ModelCall, Reward, Rollout, Score, StopReason

Row = tuple[Any, ...]

ROLLOUT_COLUMNS = (
    "id, task_id, task_kind, harness, step, purpose, reward, reward_parts, stop_reason, error, num_turns, timings_s, "
    "counts"
)
CALL_COLUMNS = (
    'position, "index", kind, shared, prompt_tail, completion_ids, logprobs, policy_version, finish_reason, '
    "temperature, parse_error, cached_tokens, exchange, tools, parts, updates"
)
SCORE_COLUMNS = "harness, task_id, task_kind, passes, rewards"


def rollout_row(rollout: Rollout) -> Row:
    """Values of ROLLOUT_COLUMNS."""
    reward = rollout.reward
    return (
        rollout.id,
        rollout.task_id,
        rollout.task_kind,
        rollout.harness,
        rollout.step,
        rollout.purpose,
        None if reward is None else reward.value,
        None if reward is None else json.dumps(dict(reward.parts)),
        str(rollout.stop_reason),
        rollout.error,
        rollout.num_turns,
        json.dumps(dict(rollout.timings_s)),
        json.dumps(dict(rollout.counts)),
    )


def rollout_of(row: Row, calls: tuple[ModelCall, ...]) -> Rollout:
    """The rollout of a row of ROLLOUT_COLUMNS."""
    id_, task_id, task_kind, harness, step, purpose, reward, parts, stop_reason, error, num_turns, timings, counts = row
    return Rollout(
        id=id_,
        task_id=task_id,
        task_kind=task_kind,
        harness=harness,
        step=step,
        purpose=purpose,
        calls=calls,
        reward=None if reward is None else Reward(reward, json.loads(parts)),
        stop_reason=StopReason(stop_reason),
        error=error,
        num_turns=num_turns,
        timings_s=json.loads(timings),
        counts=json.loads(counts),
    )


def call_rows(key: int, calls: Iterable[ModelCall], lists: Sequence[words.ToolList] = ()) -> Iterator[Row]:
    """Values of (rollout, *CALL_COLUMNS), one row a call, in order; `lists` are `words.tool_lists(calls)`."""
    known = np.empty(0, np.int64)
    for position, call in enumerate(calls):
        shared = _common_prefix(known, call.prompt_ids)
        yield (
            key,
            position,
            call.index,
            call.kind,
            shared,
            call.prompt_ids[shared:].astype("<i4").tobytes(),
            call.completion_ids.astype("<i4").tobytes(),
            call.logprobs.astype("<f4").tobytes(),
            call.policy_version,
            call.finish_reason,
            call.temperature,
            call.parse_error,
            call.cached_tokens,
            None if call.exchange is None else words.exchange_blob(call.exchange),
            words.hash_among(lists, call),
            None if call.parts is None else call.parts.astype("i1").tobytes(),
            json.dumps(call.updates) if call.updates else None,
        )
        known = np.concatenate((call.prompt_ids, call.completion_ids))


def calls_of(rows: Iterable[Row], tools_of: Callable[[bytes], words.Tools]) -> tuple[ModelCall, ...]:
    """The calls of one rollout from its rows of CALL_COLUMNS, in order of position; `tools_of` knows hashes."""
    calls: list[ModelCall] = []
    known = np.empty(0, np.int64)
    for row in rows:
        _, index, kind, shared, tail, completion, logprobs, version, finish, temperature, parse_error, cached = row[:12]
        exchange, tools, parts, updates = row[12:]
        prompt_ids = np.concatenate((known[:shared], _ids(tail)))
        completion_ids = _ids(completion)
        calls.append(
            ModelCall(
                index=index,
                kind=kind,
                prompt_ids=prompt_ids,
                completion_ids=completion_ids,
                logprobs=np.frombuffer(logprobs, "<f4").astype(np.float32),
                policy_version=version,
                finish_reason=finish,
                temperature=temperature,
                parse_error=parse_error,
                cached_tokens=cached,
                exchange=None if exchange is None else words.exchange_of(exchange, tools_of(tools) if tools else ()),
                parts=None if parts is None else np.frombuffer(parts, "i1"),
                updates=tuple((place, version) for place, version in json.loads(updates or "[]")),
            )
        )
        known = np.concatenate((prompt_ids, completion_ids))
    return tuple(calls)


def score_row(score: Score) -> Row:
    """Values of SCORE_COLUMNS."""
    return (
        score.harness,
        score.task_id,
        score.task_kind,
        json.dumps([bool(p) for p in score.passes]),
        json.dumps([float(r) for r in score.rewards]),
    )


def score_of(row: Row) -> Score:
    """The score of a row of SCORE_COLUMNS."""
    harness, task_id, task_kind, passes, rewards = row
    return Score(task_id, task_kind, harness, tuple(json.loads(passes)), tuple(json.loads(rewards)))


def _common_prefix(a: Ids, b: Ids) -> int:
    length = min(len(a), len(b))
    differ = a[:length] != b[:length]
    first = int(differ.argmax()) if length else 0
    return first if length and differ[first] else length


def _ids(blob: bytes) -> Ids:
    return np.frombuffer(blob, "<i4").astype(np.int64)
