import json
import math

import pytest

from whippletree.errors import HarnessError
from whippletree.evolution.pool import BASE, Pool, harness_of, read_pool, require_fits
from whippletree.harness import edits
from whippletree.harness.files import to_toml
from whippletree.harness.levels import paper_base

CHANGE = edits.from_text("limits.max_turns: 30 -> 40", "test")
OUTCOMES = {
    BASE: {"a": (0.0, 0.0), "b": (1.0, 0.0), "c": (0.2,), "d": (1.0,), "e": ()},
    "patient": {"a": (1.0, 0.0), "b": (0.0, 0.9), "c": (1.0,), "e": (1.0,), "f": (1.0,)},
}


def named(name):
    assert name == "S0T0O0C0W0"
    return paper_base()


def pool(**changes):
    base = paper_base()
    sibling = {"name": "patient", "hash": edits.apply(base, CHANGE).content_hash}
    whole = {"base": base.id, "base_hash": base.content_hash, "siblings": [sibling], "outcomes": OUTCOMES}
    return Pool.model_validate_json(json.dumps(whole | changes))


def frozen(directory, found):
    (directory / "pool.json").write_text(found.model_dump_json())
    (directory / "patient.toml").write_text(to_toml("S0T0O0C0W0", CHANGE))
    return directory


def test_tasks_that_both_met_are_compared_by_the_majority_of_their_attempts():
    found = pool()
    assert found.repaired("patient") == {"a", "c"}
    assert found.regressed("patient") == {"b"}
    assert found.regressed("patient", threshold=0.9) == set()
    assert found.success("patient") == pytest.approx((0.5 + 0 + 1 + 1 + 1) / 5)
    assert math.isnan(pool(outcomes={}).success("patient"))


def test_a_pool_is_read_as_it_was_frozen(tmp_path):
    directory = frozen(tmp_path, pool())
    assert read_pool(directory) == pool()
    require_fits(read_pool(directory), directory, paper_base(), named)
    assert harness_of(directory, "patient") == str(directory / "patient.toml")


def test_a_pool_of_another_base_and_a_changed_sibling_are_refused(tmp_path):
    directory = frozen(tmp_path, pool())
    with pytest.raises(HarnessError, match="built for the base harness"):
        require_fits(pool(), directory, edits.apply(paper_base(), CHANGE), named)
    (directory / "patient.toml").write_text(to_toml("S0T0O0C0W0", CHANGE).replace("40", "41"))
    with pytest.raises(HarnessError, match=r"patient\.toml was changed after the pool was frozen"):
        require_fits(pool(), directory, paper_base(), named)
    (directory / "patient.toml").unlink()
    with pytest.raises(HarnessError, match="cannot read"):
        require_fits(pool(), directory, paper_base(), named)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"siblings": []}, "siblings"),
        ({"siblings": [{"name": "base", "hash": "x"}]}, "must differ"),
        ({"outcomes": {"other": {}}}, "outcomes of 'other'"),
        ({"outcomes": {BASE: {"a": [2.0]}}}, "less than or equal to 1"),
        ({"extra": 1}, "extra"),
    ],
)
def test_a_pool_that_disagrees_with_itself_is_refused(tmp_path, change, message):
    (tmp_path / "pool.json").write_text(json.dumps(json.loads(pool().model_dump_json()) | change))
    with pytest.raises(HarnessError, match=message):
        read_pool(tmp_path)


def test_a_directory_without_a_pool_is_named(tmp_path):
    with pytest.raises(HarnessError, match="there is no pool in"):
        read_pool(tmp_path / "nowhere")
