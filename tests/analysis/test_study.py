import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from whippletree.analysis.study import StudyResult, aggregate, from_json, study_tables, to_json
from whippletree.errors import StoreError

VALUES = {
    "single": {
        1: {"base": 0.5, "held_out": 0.15},
        2: {"base": 0.52, "held_out": 0.17},
        3: {"base": 0.5, "held_out": 0.1},
    },
    "scaling": {1: {"base": 0.45, "held_out": 0.35}, 2: {"base": 0.44, "held_out": 0.36}},
    "start": {1: {"held_out": 0.2}, 2: {"held_out": 0.2}},
}


def study(values=VALUES) -> StudyResult:
    return aggregate(
        values,
        [("scaling", "single"), ("scaling", "start")],
        command="make study-nano",
        commit="abc",
        machine="2 cores",
        settings={"steps": 100},
    )


def test_seeds_that_all_arms_have_are_aggregated():
    result = study()
    assert result.seeds == (1, 2)
    assert result.arms["scaling"]["held_out"].seeds == (35.0, 36.0)
    assert result.arms["scaling"]["held_out"].mean == 35.5
    assert set(result.differences["scaling - start"]) == {"held_out"}
    difference = result.differences["scaling - single"]["held_out"]
    assert difference.mean == 19.5
    assert difference.low == pytest.approx(19.5 - 12.7062 * 0.5, abs=0.01)


def test_the_file_has_the_agreed_form():
    raw = json.loads(to_json(study()))
    assert set(raw) == {"command", "commit", "machine", "seeds", "settings", "arms", "differences"}
    assert set(raw["arms"]["single"]["held_out"]) == {"mean", "low", "high", "seeds"}
    assert set(raw["differences"]["scaling - single"]["base"]) == {"mean", "low", "high"}


@settings(deadline=None)
@given(
    st.lists(st.lists(st.floats(0, 1), min_size=2, max_size=2), min_size=1, max_size=5),
)
def test_every_study_can_be_written_and_read(rows):
    values = {
        arm: {seed: {"held_out": row[i]} for seed, row in enumerate(rows)} for i, arm in enumerate(("a", "b - c"))
    }
    result = aggregate(values, [("b - c", "a")], command="c", commit="c", machine="m", settings={})
    assert from_json(to_json(result)) == result
    assert len(study_tables(result)[0].rows) == 2


def test_one_seed_has_no_bounds():
    result = study({arm: {1: by_seed[1]} for arm, by_seed in VALUES.items()})
    assert result.arms["scaling"]["base"].low is None
    assert from_json(to_json(result)) == result
    arms, differences = study_tables(result)
    assert arms.rows[0] == ("single", "50.0", "15.0")
    assert differences.rows == (("scaling - single", "-5.0", "+20.0"), ("scaling - start", "–", "+15.0"))


def test_unfinished_or_uneven_arms_are_refused():
    with pytest.raises(ValueError, match="no seed is finished in every arm"):
        study({"scaling": {1: {"base": 0.1}}, "single": {2: {"base": 0.1}}, "start": {}})
    with pytest.raises(ValueError, match="must all have the same columns"):
        study({**VALUES, "start": {1: {"held_out": 0.2}, 2: {"base": 0.2}}})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda raw: raw["arms"]["scaling"]["held_out"].update(mean=34.0), "arms.scaling.held_out has mean 34.0"),
        (lambda raw: raw["arms"]["scaling"]["held_out"].update(low=90.0), "low <= mean <= high"),
        (lambda raw: raw["arms"]["scaling"]["held_out"].update(low=None), "must have low and high"),
        (lambda raw: raw["arms"]["scaling"]["held_out"].update(seeds=[35.5]), "expected one for each"),
        (
            lambda raw: raw["differences"]["scaling - single"]["base"].update(mean=1.0),
            "differences.scaling - single.base",
        ),
        (lambda raw: raw["differences"].update({"scaling - x": raw["differences"]["scaling - start"]}), "of two arms"),
        (lambda raw: raw.update(extra=1), "extra"),
        (lambda raw: raw.update(seeds=[1, 1]), "seeds must be present and differ"),
    ],
)
def test_a_file_that_disagrees_with_itself_is_refused(change, message):
    raw = json.loads(to_json(study()))
    change(raw)
    with pytest.raises(StoreError, match=r"results/x\.json is not a study's results") as caught:
        from_json(json.dumps(raw), "results/x.json")
    assert message in str(caught.value)
