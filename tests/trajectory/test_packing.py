import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from whippletree.trajectory.packing import pack
from whippletree.types import Sample


def sized(*lengths: int) -> list[Sample]:
    return [Sample(np.zeros(n, np.int64), *(np.zeros(n, np.float32),) * 3) for n in lengths]


def cost(samples: list[Sample], batch: list[int]) -> int:
    return len(batch) * max(len(samples[i].ids) for i in batch)


def partitions(items: list[int]):
    """All ways to cut a list into runs."""
    for cuts in itertools.product([False, True], repeat=max(len(items) - 1, 0)):
        runs = [[items[0]]]
        for item, cut in zip(items[1:], cuts, strict=True):
            if cut:
                runs.append([item])
            else:
                runs[-1].append(item)
        yield runs


def test_lengths_are_bucketed():
    assert pack(sized(10, 100, 12, 90, 11), 200) == [[1, 3], [2, 4, 0]]


def test_a_sample_over_the_budget_stands_alone():
    assert pack(sized(5, 50, 5), 10) == [[1], [0, 2]]


def test_nothing_packs_to_nothing():
    assert pack([], 10) == []
    with pytest.raises(ValueError, match="at least 1"):
        pack([], 0)


@given(st.lists(st.integers(1, 40), min_size=1, max_size=8), st.integers(1, 100))
def test_the_fewest_batches_and_then_the_least_padding(lengths, budget):
    samples = sized(*lengths)
    batches = pack(samples, budget)
    assert sorted(i for batch in batches for i in batch) == list(range(len(samples)))
    assert all(len(batch) == 1 or cost(samples, batch) <= budget for batch in batches)
    order = sorted(range(len(samples)), key=lambda i: (-lengths[i], i))
    allowed = [
        (len(runs), sum(cost(samples, run) for run in runs))
        for runs in partitions(order)
        if all(len(run) == 1 or cost(samples, run) <= budget for run in runs)
    ]
    assert (len(batches), sum(cost(samples, batch) for batch in batches)) == min(allowed)
