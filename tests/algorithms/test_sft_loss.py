from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from trees import GROUPS, groups_of, segments, turns

from whippletree.algorithms.sft import SFT
from whippletree.policy.base import TokenBatch


@given(GROUPS)
def test_every_rollout_counts_the_same_and_each_of_its_tokens_too(described):
    rollouts = [rollout for group in groups_of(described) for rollout in group.rollouts]
    if not rollouts:
        return
    credit = SFT().credit(rollouts)
    weights: Counter[str] = Counter()
    for sample in credit.samples:
        trained = sample.weights > 0
        assert np.array_equal(sample.advantages, trained.astype(np.float32))
        assert len(set(sample.weights[trained].tolist())) <= 1
        weights[sample.rollout_id] += float(sample.weights.sum())
    assert all(weight == pytest.approx(1 / len(rollouts), rel=1e-5) for weight in weights.values())
    untrained = credit.metrics.get("samples/no_trainable_tokens", 0.0)
    assert len(weights) + untrained == credit.metrics["samples/rollouts"] == len(rollouts)


def test_only_the_kinds_that_are_asked_for_are_imitated():
    described = [(0, "restart", 3, "main"), (0, "continue", 2, "compaction")]
    ((rollout,),) = [group.rollouts for group in groups_of([("t", "h", [(1.0, described)])])]
    both = SFT(kinds=("main", "compaction"))
    assert [int((s.weights > 0).sum()) for s in SFT().credit([rollout]).samples] == [3]
    assert [int((s.weights > 0).sum()) for s in both.credit([rollout]).samples] == [5]


def test_the_loss_is_the_mean_over_rollouts_of_their_mean_nats_per_token():
    (group,) = groups_of([("t", "h", [(1.0, turns(1, 3)), (1.0, segments(2, 6))])])
    samples = SFT().credit(group.rollouts).samples
    weights = np.concatenate([sample.weights[sample.weights > 0] for sample in samples])
    logprobs = np.concatenate([sample.rollout_logprobs[sample.weights > 0] for sample in samples])
    tensors = [torch.from_numpy(array) for array in (logprobs, np.ones_like(weights), logprobs, weights, weights)]
    loss, statistics = SFT().loss(TokenBatch(*tensors))
    nats = [-np.concatenate([call.logprobs for call in rollout.calls]).mean() for rollout in group.rollouts]
    assert loss.item() == pytest.approx(np.mean(nats), rel=1e-5)
    assert statistics == pytest.approx(
        {"loss": np.mean(nats), "entropy": 1.0, "weight": 1.0, "trained_tokens": 12.0}, rel=1e-5
    )
