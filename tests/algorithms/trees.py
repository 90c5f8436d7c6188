"""Random rollouts with forks, retries, restarts and calls of other kinds; every sampled token has an id of its own."""

import numpy as np
from hypothesis import strategies as st

from whippletree.types import Assignment, Group, ModelCall, Reward, Rollout, StopReason, Task

REWARDS = st.sampled_from([0.0, 0.25, 0.5, 1.0])
CALLS = st.lists(
    st.tuples(
        st.integers(0, 5),  # which earlier call
        st.sampled_from(["continue", "continue", "retry", "restart"]),
        st.integers(0, 4),  # sampled tokens
        st.sampled_from(["main", "main", "main", "compaction"]),
    ),
    max_size=6,
)
ROLLOUTS = st.lists(st.tuples(REWARDS | st.none(), CALLS), max_size=4)
"""The reward, None where infrastructure failed, and the calls."""
GROUPS = st.lists(st.tuples(st.sampled_from("pq"), st.sampled_from("hij"), ROLLOUTS), max_size=4)
"""Task, harness and rollouts."""


def turns(*lengths):
    """Calls that continue each other."""
    return [(index - 1, "continue", length, "main") for index, length in enumerate(lengths)]


def segments(*lengths):
    """Calls that begin anew, as after a compaction."""
    return [(0, "restart", length, "main") for length in lengths]


def calls_of(described, rng):
    calls = []
    for base, how, length, kind in described:
        earlier = calls[base % len(calls)] if calls else None
        if earlier is None or how == "restart":
            prompt = rng.integers(100, 10**9, 3)
        elif how == "retry":
            prompt = earlier.prompt_ids
        else:
            prompt = np.concatenate([earlier.prompt_ids, earlier.completion_ids, rng.integers(100, 10**9, 2)])
        ids, logprobs = rng.integers(100, 10**9, length), -rng.random(length).astype(np.float32)
        own = np.random.default_rng(int(prompt[0]) + len(calls))  # another stream, which leaves the ids as they are
        parts, error = own.integers(0, 3, length).astype(np.int8), None if own.random() < 0.7 else "malformed"
        call = ModelCall(len(calls), kind, prompt, ids, logprobs, 0, "stop", parse_error=error, parts=parts)
        calls.append(call)
    return tuple(calls)


def rollout_of(name, task, harness, reward, described, rng):
    broken = reward is None
    return Rollout(
        name, task, "kind", harness, 0, "train", calls_of(described, rng),
        reward=None if broken else Reward(reward),
        stop_reason=StopReason.ERROR if broken else StopReason.FINISHED,
        error="broken" if broken else None,
    )  # fmt: skip


def groups_of(described):
    """`described` as GROUPS makes it; rollouts are named by the places of group and rollout."""
    rng = np.random.default_rng(0)
    return [
        Group(
            Assignment(0, Task(task, "test", "train", "kind", 1, "do it"), harness, max(1, len(rollouts))),
            tuple(
                rollout_of(f"{g}/{r}", task, harness, reward, calls, rng) for r, (reward, calls) in enumerate(rollouts)
            ),
        )
        for g, (task, harness, rollouts) in enumerate(described)
    ]


def on_tokens(samples, *names):
    """Trained token -> weight, advantage, rollout logprob, and the columns named; all as floats."""
    found = {}
    for sample in samples:
        arrays = [sample.weights, sample.advantages, sample.rollout_logprobs, *(sample.columns[n] for n in names)]
        for t in np.flatnonzero(sample.weights):
            assert int(sample.ids[t]) not in found, "a token is trained twice"
            found[int(sample.ids[t])] = tuple(float(array[t]) for array in arrays)
    return found
