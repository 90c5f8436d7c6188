from dataclasses import replace

import numpy as np
import pytest

from whippletree.errors import PolicyError
from whippletree.trajectory.samples import rollout_samples
from whippletree.trajectory.staleness import staleness
from whippletree.types import ModelCall, Reward, Rollout, StopReason


def rollout(*calls):
    return Rollout("train/3/h/t/0", "t", "k", "h", 3, "train", calls, Reward(1.0), StopReason.FINISHED)


def call(index, prompt, count, version, updates=()):
    ids = np.arange(count, dtype=np.int64) + 10 * (index + 1)
    logprobs = np.zeros(count, np.float32)
    return ModelCall(index, "main", np.array(prompt), ids, logprobs, version, "stop", updates=updates)


CALLS = (call(0, [1, 2], 4, 5, ((1, 6), (3, 7))), call(1, [3, 4], 2, 7))


def test_a_version_belongs_to_each_token():
    assert [c.versions.tolist() for c in CALLS] == [[5, 6, 6, 7], [7, 7]]
    samples, _ = rollout_samples(rollout(*CALLS))
    assert [s.columns["version"].tolist() for s in samples] == [[0, 0, 5, 6, 6, 7], [0, 0, 7, 7]]


def test_ages_are_those_of_trained_tokens():
    samples, _ = rollout_samples(rollout(*CALLS))
    assert staleness(samples, 7, 2) == {"staleness/mean": pytest.approx(4 / 6), "staleness/max": 2.0}
    assert staleness([], 7, 0) == {"staleness/mean": 0.0, "staleness/max": 0.0}
    untrained = [replace(s, weights=0 * s.weights) for s in samples]
    assert staleness(untrained, 7, 0)["staleness/max"] == 0.0


@pytest.mark.parametrize(("version", "most"), [(7, 1), (8, 2), (6, 5)])
def test_a_rollout_out_of_bounds_is_named(version, most):
    samples, _ = rollout_samples(rollout(*CALLS))
    with pytest.raises(PolicyError, match=rf"'train/3/h/t/0' has .* version {version}; .* rollout\.staleness = {most}"):
        staleness(samples, version, most)
