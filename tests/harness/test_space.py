import pytest
from hypothesis import given
from hypothesis import strategies as st

from whippletree.errors import HarnessError
from whippletree.harness.space import Factor, HarnessSpace, Level

SPACE = HarnessSpace.of_levels(("S", 3), ("T", 3), ("O", 3), ("C", 3), ("W", 3))

keys = st.from_regex(r"[A-Za-z]{1,3}", fullmatch=True)
spaces = st.lists(st.tuples(keys, st.integers(1, 25)), min_size=1, max_size=6, unique_by=lambda f: f[0]).map(
    lambda factors: HarnessSpace.of_levels(*factors)
)


@given(spaces, st.data())
def test_parse_is_the_inverse_of_name(space, data):
    config = data.draw(st.tuples(*(st.integers(0, count - 1) for count in space.level_counts)))
    assert config in space
    assert space.parse(space.name(config)) == config


@given(spaces, st.text(alphabet="STOab0123456789", max_size=12))
def test_whatever_parses_is_the_canonical_name(space, text):
    try:
        config = space.parse(text)
    except HarnessError:
        return
    assert space.name(config) == text


def test_names_of_the_paper():
    assert SPACE.parse("S0T2O1C1W2") == (0, 2, 1, 1, 2)
    assert SPACE.name((2, 1, 0, 2, 0)) == "S2T1O0C2W0"


def test_levels_of_two_digits():
    space = HarnessSpace.of_levels(("A", 11), ("B", 3))
    assert space.parse("A10B2") == (10, 2)
    assert space.name((10, 2)) == "A10B2"


def test_size_and_order():
    space = HarnessSpace.of_levels(("A", 2), ("B", 3))
    assert len(space) == space.size == 6
    assert list(space) == [(0, 0), (0, 1), (0, 2), (1, 0), (1, 1), (1, 2)]
    assert HarnessSpace.of_levels(*((key, 3) for key in "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnop")).size == 3**42


def test_hamming_distance():
    assert SPACE.distance((0, 1, 2, 0, 1), (0, 1, 2, 0, 1)) == 0
    assert SPACE.distance((0, 1, 2, 0, 1), (0, 2, 2, 0, 0)) == 2
    with pytest.raises(HarnessError, match="must both have 5 levels"):
        SPACE.distance((0, 1), (0, 1))


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("S3T0O0C0W0", "harness 'S3T0O0C0W0': factor S has levels 0-2, got 3"),
        ("S0T0O0C0W" + "9" * 5000, "factor W has levels 0-2, got 999"),
        ("S0T0O0W0", "factor C is missing"),
        ("S0T0X1O0C0W0", "there is no factor X"),
        ("S0T0O0C0W0S1", "factor S is given twice"),
        ("T0S0O0C0W0", "factor T stands where S is expected"),
        ("S0T0O0C0W01", "level 01 of factor W has a leading zero"),
        ("S0T0-O0C0W0", "cannot read '-O0C0W0'"),
        ("S0T0O0C0W", "cannot read 'W'"),
        ("S0T0O0C0W²", "cannot read 'W²'"),
        ("", "factor S is missing"),
    ],
)
def test_parse_errors_name_the_bad_part(name, problem):
    with pytest.raises(HarnessError) as error:
        SPACE.parse(name)
    assert problem in str(error.value)


def test_parse_errors_give_the_accepted_form():
    with pytest.raises(HarnessError, match="in the order S, T, O, C, W, such as S0T0O0C0W0"):
        SPACE.parse("base")


@pytest.mark.parametrize("config", [(0, 0, 0, 0), (0, 0, 0, 0, 3), (0, 0, -1, 0, 0)])
def test_only_configurations_of_the_space_have_names(config):
    assert config not in SPACE
    with pytest.raises(HarnessError, match="level counts S 3, T 3, O 3, C 3, W 3"):
        SPACE.name(config)


def test_spaces_that_make_no_sense():
    with pytest.raises(HarnessError, match="at least one factor"):
        HarnessSpace(())
    with pytest.raises(HarnessError, match="two factors have the key S"):
        HarnessSpace.of_levels(("S", 2), ("S", 3))
    with pytest.raises(HarnessError, match="ASCII letters"):
        HarnessSpace.of_levels(("S1", 2))
    with pytest.raises(HarnessError, match="factor S has no levels"):
        HarnessSpace.of_levels(("S", 0))
    with pytest.raises(HarnessError, match="two levels named 'raw'"):
        Factor("O", "Observation", (Level("raw", "as it is"), Level("raw", "again")))


def test_spaces_with_patches_can_be_hashed_and_compared():
    space = HarnessSpace((Factor("O", "Observation", (Level("raw", "as it is", {"observation": {"kind": "raw"}}),)),))
    assert hash(space) == hash(HarnessSpace(space.factors))
    other = HarnessSpace((Factor("O", "Observation", (Level("raw", "as it is", {}),)),))
    assert space != other
