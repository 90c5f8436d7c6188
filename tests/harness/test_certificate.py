import json
from itertools import combinations, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from whippletree.errors import HarnessError
from whippletree.harness import designs
from whippletree.harness.certificate import certify
from whippletree.harness.designs import PAPER_HELD_OUT, PAPER_SPACE, PAPER_TRAINING, Design
from whippletree.harness.space import HarnessSpace

TRAINING = designs.listed(PAPER_SPACE, PAPER_TRAINING)
HELD_OUT = designs.listed(PAPER_SPACE, PAPER_HELD_OUT)


def test_the_papers_training_set():
    certificate = certify(TRAINING)
    assert (certificate.runs, certificate.distinct_runs, certificate.strength) == (18, 18, 2)
    assert certificate.level_counts == dict.fromkeys("STOCW", (6, 6, 6))
    assert {(pair.min, pair.max, pair.covered) for pair in certificate.pairs} == {(2, 2, 1.0)}
    covered = {"".join(triple.factors): round(27 * triple.covered) for triple in certificate.triples}
    assert covered == dict.fromkeys(map("".join, combinations("STOCW", 3)), 18) | {"SOC": 9, "STW": 15}
    assert certificate.least_triple.factors == ("S", "O", "C")
    assert certificate.triple_coverage == pytest.approx(168 / 270)
    assert certificate.distances == {2: 12, 3: 54, 4: 81, 5: 6}
    assert certificate.covering_radius == 2
    assert certificate.overlap is None


def test_the_papers_held_out_set():
    certificate = certify(HELD_OUT, TRAINING)
    assert certificate.strength == 1
    assert certificate.level_counts == dict.fromkeys("STOCW", (6, 6, 6))
    assert (min(pair.min for pair in certificate.pairs), max(pair.max for pair in certificate.pairs)) == (1, 3)
    balanced = {"".join(pair.factors) for pair in certificate.pairs if pair.min == pair.max}
    assert balanced == {"SO", "SC", "TO", "TW"}
    assert certificate.overlap.shared == 0
    assert certificate.overlap.nearest == {1: 8, 2: 10}


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, 4), min_size=1, max_size=4), st.data())
def test_counts_agree_with_counting_by_hand(level_counts, data):
    space = HarnessSpace.of_levels(*zip("ABCD", level_counts, strict=False))
    config = st.tuples(*(st.integers(0, count - 1) for count in level_counts))
    configs, others = (tuple(data.draw(st.lists(config, min_size=1, max_size=20))) for _ in range(2))
    design, other = (Design(space.keys, space.level_counts, each, "drawn") for each in (configs, others))
    certificate = certify(design, other)

    assert certificate.strength == max(t for t in range(len(level_counts) + 1) if _has_strength(design, t))
    for coverage in (*certificate.pairs, *certificate.triples):
        counts = _counts(design, [space.keys.index(key) for key in coverage.factors])
        assert (coverage.min, coverage.max) == (min(counts), max(counts))
        assert coverage.covered == sum(count > 0 for count in counts) / len(counts)
    distances = [space.distance(a, b) for a, b in combinations(configs, 2)]
    assert certificate.distances == {d: distances.count(d) for d in sorted(set(distances))}
    assert certificate.covering_radius == max(min(space.distance(x, c) for c in configs) for x in space)
    nearest = [min(space.distance(a, b) for b in others) for a in configs]
    assert certificate.overlap.nearest == {d: nearest.count(d) for d in sorted(set(nearest))}
    assert certificate.overlap.shared == len(set(configs) & set(others))


def _counts(design, factors):
    chosen = [tuple(config[i] for i in factors) for config in design.configs]
    return [chosen.count(levels) for levels in product(*(range(design.level_counts[i]) for i in factors))]


def _has_strength(design, t):
    return all(len(set(_counts(design, factors))) == 1 for factors in combinations(range(len(design.keys)), t))


def test_the_full_factorial_has_full_strength():
    certificate = certify(designs.full(HarnessSpace.of_levels(("A", 2), ("B", 3), ("C", 4))))
    assert certificate.strength == 3
    assert certificate.triple_coverage == 1
    assert certificate.covering_radius == 0


def test_large_spaces_have_no_covering_radius_and_say_why():
    space = HarnessSpace.of_levels(*((key, 3) for key in "ABCDEFGHIJKL"))
    certificate = certify(designs.orthogonal(space, 27))
    assert certificate.covering_radius is None
    assert certificate.covering_radius_note == "not computed: the space has 531441 configurations, more than 200000"
    assert "not computed" in certificate.to_text()


def test_text():
    assert certify(HELD_OUT, TRAINING).to_text().splitlines() == [
        "method             listed",
        "runs               18 (18 distinct) of 243",
        "strength           1",
        "runs per level     S 6/6/6  T 6/6/6  O 6/6/6  C 6/6/6  W 6/6/6",
        "level pairs        1-3 runs each, 100.0% covered",
        "level triples      0-2 runs each, 63.0% covered; least S-T-O 59.3%",
        "distances          2:10  3:72  4:51  5:20",
        "covering radius    2",
        "shared with other  0",
        "nearest in other   1:8  2:10",
    ]


def test_one_factor_and_one_run_can_be_certified():
    certificate = certify(designs.listed(HarnessSpace.of_levels(("A", 2)), ["A1"]))
    assert (certificate.strength, certificate.pairs, certificate.triples) == (0, (), ())
    assert (certificate.distances, certificate.covering_radius, certificate.least_triple) == ({}, 1, None)
    assert "too few factors" in certificate.to_text()


def test_json_is_plain():
    written = json.loads(json.dumps(certify(HELD_OUT, TRAINING).to_json()))
    assert written["level_counts"]["S"] == [6, 6, 6]
    assert written["distances"] == {"2": 10, "3": 72, "4": 51, "5": 20}
    assert written["overlap"] == {"shared": 0, "nearest": {"1": 8, "2": 10}}
    assert len(written["triples"]["each"]) == 10
    assert json.loads(json.dumps(certify(TRAINING).to_json()))["overlap"] is None


def test_the_seed_is_part_of_how_it_was_made():
    assert certify(designs.random_subset(PAPER_SPACE, 18, seed=3)).method == "random, seed 3"


def test_designs_that_cannot_be_certified():
    with pytest.raises(HarnessError, match="same factors and level counts"):
        certify(TRAINING, designs.full(HarnessSpace.of_levels(("S", 2))))
    with pytest.raises(HarnessError, match="without configurations"):
        certify(Design(("S",), (3,), (), "empty"))
