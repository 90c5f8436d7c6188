"""Random trees of rows: branches anywhere, rows that are the beginning of others, equal rows."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from whippletree.trajectory.packing import MIN_SHARED_TOKENS, common_prefix, micro_batches, num_unique
from whippletree.types import Sample

ROWS = st.lists(st.tuples(st.integers(-1, 8), st.integers(1, 80), st.integers(0, 30)), min_size=1, max_size=12)
"""(row whose beginning it shares, so many tokens of it, own tokens)"""


def drawn(described):
    rows = []
    for number, (source, cut, own) in enumerate(described):
        shared = rows[source][:cut] if 0 <= source < number else np.zeros(0, np.int64)
        own = np.random.default_rng((number, own)).integers(0, 50, own if len(shared) else own + 1)
        rows.append(np.concatenate([shared, own]))
    zeros = [np.zeros(len(ids), np.float32) for ids in rows]
    return [Sample(ids, np.ones(len(ids), np.float32), z, z) for ids, z in zip(rows, zeros, strict=True)]


def prefixes(samples):
    return {tuple(sample.ids[: end + 1].tolist()) for sample in samples for end in range(len(sample.ids))}


def ids_of(pack, samples):
    return np.concatenate([samples[segment.row].ids[segment.start : segment.end] for segment in pack.segments])


@settings(max_examples=30, deadline=None)
@given(ROWS)
def test_unique_tokens_are_the_distinct_prefixes(described):
    samples = drawn(described)
    assert num_unique(samples) == len(prefixes(samples))


@settings(max_examples=30, deadline=None)
@given(ROWS, st.integers(1, 300), st.booleans())
def test_every_sample_is_in_one_pack_and_its_tokens_are_at_its_places(described, max_tokens, packing):
    samples = drawn(described)
    packs = micro_batches(samples, max_tokens, packing=packing)
    assert sorted(row for pack in packs for row in pack.rows) == list(range(len(samples)))
    for pack in packs:
        ids = ids_of(pack, samples)
        assert pack.num_tokens == len(ids)
        for row, places in zip(pack.rows, pack.places, strict=True):
            np.testing.assert_array_equal(ids[places], samples[row].ids)
        trees = {pack.paths[leaf][0] for leaf in pack.ends_in}
        assert pack.num_tokens <= max_tokens or len(trees) == 1
        assert packing or pack.num_tokens == sum(pack.lengths)


@settings(max_examples=30, deadline=None)
@given(ROWS)
def test_one_pack_computes_hardly_more_than_the_unique_tokens(described):
    samples = drawn(described)
    (pack,) = micro_batches(samples, 10**6)
    assert pack.num_tokens <= num_unique(samples) + (MIN_SHARED_TOKENS - 1) * len(samples)
    assert num_unique(samples) <= pack.num_tokens <= sum(pack.lengths)


@settings(max_examples=30, deadline=None)
@given(ROWS, st.integers(1, 300))
def test_a_token_is_seen_by_what_comes_after_it_in_its_tree_alone(described, max_tokens):
    samples = drawn(described)
    for pack in micro_batches(samples, max_tokens):
        at = np.arange(pack.num_tokens)
        seen = (at <= at[:, None]) & (at[:, None] < pack.seen_until)
        expected = np.zeros_like(seen)
        for segment, path in zip(pack.segments, pack.paths, strict=True):
            for depth in range(segment.start, segment.end):
                expected[path[depth], path[: depth + 1]] = True
        np.testing.assert_array_equal(seen, expected)


@settings(max_examples=30, deadline=None)
@given(ROWS, st.integers(1, 300))
def test_passes_compute_every_segment_after_what_is_above_it(described, max_tokens):
    samples = drawn(described)
    for pack in micro_batches(samples, max_tokens):
        done = set()
        for numbers in pack.passes():
            assert len({pack.segments[number].level for number in numbers}) == 1
            assert all(pack.segments[number].parent in {-1, *done} for number in numbers)
            done.update(numbers)
        assert sorted(number for numbers in pack.passes() for number in numbers) == list(range(len(pack.segments)))


@settings(max_examples=30, deadline=None)
@given(ROWS, st.integers(30, 300))
def test_what_fits_together_with_all_that_it_shares_a_lot_with_is_not_torn_apart(described, max_tokens):
    samples = drawn(described)
    home = {row: number for number, pack in enumerate(micro_batches(samples, max_tokens)) for row in pack.rows}
    for sample in samples:
        for shared in range(MIN_SHARED_TOKENS, len(sample.ids) + 1):
            kin = [k for k, other in enumerate(samples) if common_prefix(other.ids, sample.ids) >= shared]
            (pack,) = micro_batches([samples[k] for k in kin], 10**6)
            if pack.num_tokens + (MIN_SHARED_TOKENS - 1) * len(kin) <= max_tokens:
                assert len({home[k] for k in kin}) == 1


def rows_like(*described):
    """Samples of the given lengths after the given numbers of tokens of the first."""
    first = np.arange(1000, dtype=np.int64)
    rows = [np.concatenate([first[:cut], first[:own] + 1000 * (n + 1)]) for n, (cut, own) in enumerate(described)]
    zeros = np.zeros(2000, np.float32)
    return [Sample(ids, zeros[: len(ids)], zeros[: len(ids)], zeros[: len(ids)]) for ids in rows]


def test_a_conversation_with_branches_at_many_places_has_two_levels():
    samples = rows_like((500, 0), *((40 * turn, 10) for turn in range(1, 12)))
    (pack,) = micro_batches(samples, 10_000)
    assert pack.num_tokens == num_unique(samples) == 500 + 11 * 10
    assert [segment.level for segment in pack.segments] == [0] + [1] * 11


def test_a_tree_above_the_budget_is_split_and_pays_for_its_prefix_again():
    samples = rows_like(*((100, 50) for _ in range(8)))
    packs = micro_batches(samples, 260)
    assert [(len(pack.rows), pack.num_tokens) for pack in packs] == [(3, 250), (3, 250), (2, 200)]
    assert [pack.num_tokens for pack in micro_batches(samples, 40)] == [150] * 8


def test_a_row_costs_nothing_where_a_longer_one_is():
    samples = rows_like((300, 0), (200, 0), (300, 0), (10, 0))
    (pack,) = micro_batches(samples, 20)
    assert (pack.num_tokens, len(pack.segments)) == (300, 1)


def test_nothing_is_no_pack():
    assert micro_batches([], 100) == micro_batches([], 100, packing=False) == []
    assert num_unique([]) == 0
