"""How much each rollout, and each of its tokens, counts.

Invariant: what is left out of training keeps its part of the denominators, so that it makes nothing else count more.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from whippletree.trajectory.filters import TreeFilter
from whippletree.trajectory.samples import rollout_samples, with_advantages
from whippletree.types import Rollout, Sample


@dataclass(frozen=True, slots=True)
class Entry:
    rollout: Rollout
    advantage: float
    share: float
    """Of the batch, where rollouts and not tokens count alike."""
    trained: bool = True


def weighed(entries: Sequence[Entry], *, by_token: bool, tree_filter: TreeFilter) -> tuple[list[Sample], Counter[str]]:
    """Samples of the trained entries, and counts of what went into them.

    A rollout's weights sum to its share; `by_token`, each token weighs 1 / (trainable tokens of all entries).
    """
    made = [rollout_samples(entry.rollout, tree_filter) for entry in entries]
    total = sum(counts["trainable_tokens"] for _, counts in made)
    samples: list[Sample] = []
    stats: Counter[str] = Counter()
    for entry, (found, counts) in zip(entries, made, strict=True):
        if not entry.trained:
            continue
        stats.update(counts)
        share = counts["trainable_tokens"] / max(1, total) if by_token else entry.share
        samples += [with_advantages(sample, entry.advantage, share) for sample in found]
    return samples, stats


def sample_metrics(stats: Counter[str]) -> dict[str, float]:
    return {f"samples/{name}": float(count) for name, count in sorted(stats.items())}
