"""How old the weights are that sampled what is trained now, in updates.

Invariant: what passes is no older than the run allows.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from whippletree.errors import PolicyError
from whippletree.types import Sample


def staleness(samples: Sequence[Sample], version: int, most: int) -> dict[str, float]:
    """Mean and maximum over the trained tokens of the updates between their weights and `version`, the present one.

    Raises PolicyError for a rollout with a trained token that is older than `most` updates, or newer than the present.
    """
    ages = [version - sample.columns["version"][sample.weights > 0] for sample in samples]
    for sample, age in zip(samples, ages, strict=True):
        if len(age) and not 0 <= age.min() <= age.max() <= most:
            raise PolicyError(
                f"rollout '{sample.rollout_id}' has trained tokens that are {age.min():g} to {age.max():g} updates "
                f"older than the policy, version {version}; expected 0 to rollout.staleness = {most}"
            )
    every = np.concatenate([*ages, np.zeros(0, np.float32)])
    return {
        "staleness/mean": float(every.mean()) if len(every) else 0.0,
        "staleness/max": float(every.max(initial=0.0)),
    }
