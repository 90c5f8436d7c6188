import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from whippletree.errors import HarnessError
from whippletree.harness import designs
from whippletree.harness.certificate import certify
from whippletree.harness.designs import PAPER_HELD_OUT, PAPER_SPACE, PAPER_TRAINING
from whippletree.harness.orthogonal import orthogonal_array, orthogonal_runs, taguchi_l18
from whippletree.harness.space import HarnessSpace

TABLE_6 = """
S0T0O0C0W0 S0T1O1C1W1 S0T2O2C2W2
S1T0O0C1W1 S1T1O1C2W2 S1T2O2C0W0
S2T0O1C0W2 S2T1O2C1W0 S2T2O0C2W1
S0T0O2C2W1 S0T1O0C0W2 S0T2O1C1W0
S1T0O1C2W0 S1T1O2C0W1 S1T2O0C1W2
S2T0O2C1W2 S2T1O0C2W0 S2T2O1C0W1
"""

mixes = st.lists(st.integers(1, 5), min_size=1, max_size=5)
seeds = st.integers(0, 2**32)


def three_level(factors):
    return HarnessSpace.of_levels(*(("F" + chr(65 + i // 26) + chr(65 + i % 26), 3) for i in range(factors)))


def mixed(level_counts):
    return HarnessSpace.of_levels(*zip("ABCDE", level_counts, strict=False))


def assert_level_balanced(design):
    for counts in certify(design).level_counts.values():
        assert max(counts) - min(counts) <= 1


# ---- the paper's sets -------------------------------------------------------------------------------------------


def test_the_training_set_is_table_6_in_printed_order():
    assert tuple(TABLE_6.split()) == PAPER_TRAINING
    assert designs.choose(PAPER_SPACE, 18, seed=7).names == PAPER_TRAINING
    assert [PAPER_SPACE.parse(name) for name in PAPER_TRAINING] == [tuple(r) for r in taguchi_l18()[:, 1:6].tolist()]


def test_the_held_out_set_has_18_others():
    assert len({*PAPER_HELD_OUT, *PAPER_TRAINING}) == 36
    assert PAPER_HELD_OUT[:2] == ("S0T2O1C1W2", "S2T1O1C2W0")
    assert designs.listed(PAPER_SPACE, PAPER_HELD_OUT).names == PAPER_HELD_OUT


# ---- orthogonal arrays ------------------------------------------------------------------------------------------

STRENGTHS = [
    *((9, k, 2) for k in (2, 3, 4)),
    *((18, k, 2) for k in range(3, 8)),
    *((27, k, 3) for k in (3, 4)),
    *((27, k, 2) for k in range(5, 14)),
    *((54, k, 3) for k in (4, 5)),
    *((54, k, 2) for k in (6, 7, 12, 18, 19, 25)),
    *((81, k, 4) for k in (4, 5)),
    *((81, k, 3) for k in range(6, 11)),
    *((81, k, 2) for k in (11, 14, 27, 40)),
    *((243, k, 5) for k in (5, 6)),
    *((243, k, 4) for k in range(7, 12)),
    *((243, k, 3) for k in (12, 13, 20)),
    *((243, k, 2) for k in (21, 40)),
]


@pytest.mark.parametrize(("runs", "factors", "strength"), STRENGTHS)
def test_orthogonal_arrays_are_distinct_and_of_the_best_known_strength(runs, factors, strength):
    design = designs.orthogonal(three_level(factors), runs)
    certificate = certify(design)
    assert (certificate.runs, certificate.distinct_runs, certificate.strength) == (runs, runs, strength)


def test_the_largest_array_has_every_pair_of_its_121_factors_balanced():
    rows = orthogonal_array(243, 121)
    one_hot = (rows[:, :, None] == np.arange(3)).reshape(243, 363).astype(int)
    counts = (one_hot.T @ one_hot).reshape(121, 3, 121, 3).swapaxes(1, 2)
    assert (counts[~np.eye(121, dtype=bool)] == 27).all()


def test_81_runs_of_five_factors_have_one_defining_relation_of_length_five():
    rows = orthogonal_array(81, 5)
    words = [w for w in np.ndindex(*(3,) * 5) if any(w) and len(set((rows @ w % 3).tolist())) == 1]
    assert [all(word) for word in words] == [True, True]  # a word and its double


def test_27_runs_of_five_factors_leave_one_triple_aliased():
    triples = certify(designs.choose(PAPER_SPACE, 27, seed=0)).triples
    assert sorted(round(27 * c.covered) for c in triples) == [9] + [27] * 9


@pytest.mark.parametrize(
    ("factors", "runs", "advice"),
    [
        (5, 20, "no orthogonal array of 20 runs for 5 three-level factors.*: 18 and 27"),
        (5, 9, "nearest run counts that work: 18"),
        (8, 18, "nearest run counts that work: 27"),
        (3, 54, "nearest run counts that work: 27"),
        (122, 243, "there is none for this many factors"),
    ],
)
def test_impossible_arrays_name_the_nearest_sizes(factors, runs, advice):
    with pytest.raises(HarnessError, match=advice):
        designs.orthogonal(three_level(factors), runs)


def test_orthogonal_arrays_need_three_levels():
    with pytest.raises(HarnessError, match="need three levels in every factor, got 2 in B"):
        designs.orthogonal(mixed((3, 2)), 9)
    assert designs.orthogonal(mixed((3, 2)), 6) == designs.full(mixed((3, 2)))


def test_run_counts_that_work():
    assert orthogonal_runs(5) == (18, 27, 54, 81, 243)
    assert orthogonal_runs(1) == ()
    assert orthogonal_runs(26) == (81, 243)


@pytest.mark.parametrize(("runs", "factors"), [(9, 4), (18, 5), (27, 4), (54, 5), (81, 10), (243, 11)])
def test_oapackage_agrees_on_the_strength(runs, factors):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        oapackage = pytest.importorskip("oapackage", reason="OApackage, the oracle for strengths, is not installed")
        rows = orthogonal_array(runs, factors)
        array = oapackage.array_link(rows.astype(np.int32))
        assert array.strength() == certify(designs.orthogonal(three_level(factors), runs)).strength


# ---- near-balanced, held-out and random -------------------------------------------------------------------------


@settings(max_examples=40, deadline=None)
@given(mixes, seeds, st.data())
def test_near_balanced_designs_are_distinct_and_level_balanced(level_counts, seed, data):
    space = mixed(level_counts)
    size = data.draw(st.integers(1, min(space.size, 150)))
    design = designs.near_balanced(space, size, seed)
    assert len(set(design.configs)) == size
    assert all(config in space for config in design.configs)
    assert_level_balanced(design)
    assert design == designs.near_balanced(space, size, seed)


@settings(max_examples=25, deadline=None)
@given(seeds, st.integers(1, 60), st.integers(1, 60))
def test_held_out_sets_are_disjoint_from_all_that_they_avoid(seed, trained, size):
    one = designs.random_subset(PAPER_SPACE, trained, seed).configs
    two = designs.choose(PAPER_SPACE, 18, seed).configs
    design = designs.held_out(PAPER_SPACE, size, seed, one, two)
    assert len(set(design.configs) - set(one) - set(two)) == size
    assert_level_balanced(design)
    assert design == designs.held_out(PAPER_SPACE, size, seed, one, two)


@settings(max_examples=40, deadline=None)
@given(mixes, seeds, st.data())
def test_random_subsets_are_distinct_and_seeded(level_counts, seed, data):
    space = mixed(level_counts)
    size = data.draw(st.integers(1, space.size))
    design = designs.random_subset(space, size, seed)
    assert len(set(design.configs)) == size
    assert list(design.configs) == sorted(design.configs)
    assert all(config in space for config in design.configs)
    assert design == designs.random_subset(space, size, seed)


def test_random_subsets_are_uniform():
    space = mixed((2, 3))
    drawn = [designs.random_subset(space, 2, seed).configs for seed in range(600)]
    counts = [sum(config in configs for configs in drawn) for config in space]
    assert min(counts) > 150 < 250 > max(counts)  # 200 expected, standard deviation 11.5


@pytest.mark.parametrize("size", [12, 27, 36, 45, 100, 225, 242])
def test_pairs_are_as_even_as_whole_counts_allow(size):
    for pair in certify(designs.near_balanced(PAPER_SPACE, size, seed=0)).pairs:
        assert pair.max - pair.min <= 1


def test_different_seeds_give_different_designs():
    made = [
        {make(PAPER_SPACE, 10, seed).configs for seed in range(5)}
        for make in (designs.near_balanced, designs.random_subset)
    ]
    assert [len(each) for each in made] == [5, 5]


def test_large_spaces_are_searched_without_walking_them():
    space = three_level(50)
    design = designs.near_balanced(space, 7, seed=0)
    assert_level_balanced(design)
    assert len(set(designs.random_subset(space, 7, seed=0).configs)) == 7
    assert len(set(design.configs)) == 7


def test_the_whole_space():
    everything = designs.full(PAPER_SPACE)
    assert everything.configs == tuple(PAPER_SPACE)
    assert designs.near_balanced(PAPER_SPACE, 243, seed=1) == everything
    assert designs.choose(mixed((2, 2)), 4, seed=1) == designs.full(mixed((2, 2)))
    assert designs.random_subset(PAPER_SPACE, 243, seed=1).configs == everything.configs


@pytest.mark.parametrize("make", [designs.near_balanced, designs.random_subset, designs.held_out, designs.choose])
@pytest.mark.parametrize("size", [0, 244])
def test_sizes_outside_the_space(make, size):
    with pytest.raises(HarnessError, match=rf"cannot choose {size} .* the space has 243; ask for 1 to 243"):
        make(PAPER_SPACE, size, 0)


def test_held_out_sets_that_cannot_be():
    space = mixed((2, 2))
    with pytest.raises(HarnessError, match="the space has 4, of which 2 are to be avoided; ask for 1 to 2"):
        designs.held_out(space, 3, 0, [(0, 0), (0, 1)])
    with pytest.raises(HarnessError, match="found no 2 level-balanced configurations among the 2"):
        designs.held_out(space, 2, 0, [(0, 0), (0, 1)])
    with pytest.raises(HarnessError, match="not in the space"):
        designs.held_out(space, 1, 0, [(0, 2)])
    with pytest.raises(HarnessError, match="avoid fewer"):
        designs.held_out(space, 1, 0, space)


def test_listed_designs():
    with pytest.raises(HarnessError, match="'S0T0O0C0W0' is listed twice"):
        designs.listed(PAPER_SPACE, ["S0T0O0C0W0", "S0T0O0C0W0"])
    with pytest.raises(HarnessError, match="factor S has levels 0-2, got 3"):
        designs.listed(PAPER_SPACE, ["S3T0O0C0W0"])
    with pytest.raises(HarnessError, match="no harness is listed"):
        designs.listed(PAPER_SPACE, [])
