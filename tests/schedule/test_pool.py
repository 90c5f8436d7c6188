import pytest

from whippletree.errors import HarnessError
from whippletree.harness.designs import PAPER_HELD_OUT, PAPER_SPACE, PAPER_TRAINING
from whippletree.harness.space import HarnessSpace
from whippletree.schedule.pool import harness_set

SMALL = HarnessSpace.of_levels(("S", 2), ("T", 3))


@pytest.mark.parametrize(
    ("wanted", "names"),
    [
        ("base", ["S0T0O0C0W0"]),
        ("training", PAPER_TRAINING),
        ("held-out", PAPER_HELD_OUT),
        ("S1T2O0C0W0", ["S1T2O0C0W0"]),
        (["S1T2O0C0W0", "S0T0O0C0W0"], ["S1T2O0C0W0", "S0T0O0C0W0"]),
        (("S2T2O2C2W2",), ["S2T2O2C2W2"]),
    ],
)
def test_what_a_name_stands_for(wanted, names):
    assert harness_set(PAPER_SPACE, wanted, seed=0).names == tuple(names)


def test_all_is_every_configuration():
    assert len(set(harness_set(PAPER_SPACE, "all", 0).names)) == 243
    assert harness_set(SMALL, "all", 0).names == ("S0T0", "S0T1", "S0T2", "S1T0", "S1T1", "S1T2")
    assert harness_set(SMALL, "base", 0).names == ("S0T0",)


@pytest.mark.parametrize("form", ["balanced", "random"])
def test_sized_sets_follow_the_seed(form):
    found = [harness_set(PAPER_SPACE, f"{form}:20", seed).names for seed in (1, 1, 2)]
    assert len(set(found[0])) == 20
    assert found[0] == found[1] != found[2]


def test_a_balanced_set_is_an_orthogonal_array_where_there_is_one():
    assert harness_set(PAPER_SPACE, "balanced:18", 5).names == PAPER_TRAINING
    assert harness_set(PAPER_SPACE, "balanced:18", 5).method == "orthogonal array"


@pytest.mark.parametrize("size", [1, 2, 9, 18, 54, 100, 243])
def test_balanced_sets_of_every_size_meet_levels_equally_often(size):
    names = harness_set(PAPER_SPACE, f"balanced:{size}", 0).names
    assert len(set(names)) == size
    for factor in zip(*map(PAPER_SPACE.parse, names), strict=True):
        met = [factor.count(level) for level in range(3)]
        assert max(met) - min(met) <= 1


@pytest.mark.parametrize(
    ("wanted", "message"),
    [
        ("everything", "'everything' names no set of harnesses; expected 'base', 'training', 'held-out', 'all'"),
        ("balanced", "'balanced:RUNS'"),
        ("balanced:-3", "names no set"),
        ("", "'' names no set"),
        ("Training", "names no set"),
        ("balanced:0", "cannot choose 0 distinct configurations"),
        ("random:244", "the space has 243"),
        ("S0T9O0C0W0", "factor T has levels 0-2, got 9"),
        ("S0T0", "factor O is missing"),
        (["S0T0O0C0W0", "S0T0O0C0W0"], "is listed twice"),
        ([], "no harness is listed"),
        (["base"], "base"),
    ],
)
def test_what_is_wrong_is_told(wanted, message):
    with pytest.raises(HarnessError) as error:
        harness_set(PAPER_SPACE, wanted, 0)
    assert message in str(error.value)


def test_the_papers_sets_need_its_factors():
    with pytest.raises(HarnessError, match="there is no factor O"):
        harness_set(SMALL, "training", 0)


@pytest.mark.parametrize("size", [1, 9, 18, 27, 81, 225])
@pytest.mark.parametrize("form", ["balanced", "random"])
def test_sets_that_are_drawn_leave_the_held_out_harnesses_out(form, size):
    drawn = harness_set(PAPER_SPACE, f"{form}:{size}", 3)
    assert len(drawn.configs) == size
    assert not set(drawn.names) & set(PAPER_HELD_OUT)


@pytest.mark.parametrize("form", ["balanced", "random"])
def test_where_too_few_others_are_left_held_out_harnesses_are_drawn_too(form):
    assert set(harness_set(PAPER_SPACE, f"{form}:226", 3).names) & set(PAPER_HELD_OUT)
