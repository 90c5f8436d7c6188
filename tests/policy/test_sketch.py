import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from whippletree.policy.sketch import gradient_sketch, sketch

SIZE = 64


def drawn(count, seed):
    return torch.randn(count, generator=torch.Generator().manual_seed(seed))


def cosine(a, b):
    return float(a @ b / (np.linalg.norm(a) * np.linalg.norm(b)))


@given(st.integers(1, 3000), st.integers(1, 300), st.floats(-4, 4), st.integers(0, 99))
def test_it_is_linear(count, size, factor, seed):
    one, other = drawn(count, 2 * seed), drawn(count, 2 * seed + 1)
    of_sum = sketch(one + factor * other, size, "weight")
    torch.testing.assert_close(of_sum, sketch(one, size, "weight") + factor * sketch(other, size, "weight"))


@given(st.integers(1, 3000), st.integers(1, 300), st.integers(40, 5000))
def test_it_is_the_same_in_chunks_of_any_size(count, size, chunk):
    gradient = drawn(count, 0)
    torch.testing.assert_close(sketch(gradient, size, "weight", chunk=chunk), sketch(gradient, size, "weight"))


@given(st.integers(1, 300), st.lists(st.integers(0, 700), min_size=1, max_size=6))
def test_shards_add_up_to_the_whole(size, lengths):
    gradient = drawn(sum(lengths), 1)
    starts = np.cumsum([0, *lengths[:-1]]).tolist()
    shards = torch.split(gradient, lengths)
    total = sum(sketch(shard, size, "w", start=start) for shard, start in zip(shards, starts, strict=True))
    torch.testing.assert_close(total, sketch(gradient, size, "w"), rtol=1e-5, atol=1e-4)


@given(st.integers(0, 5000), st.integers(1, 300))
def test_a_coordinate_lands_in_one_bucket_with_a_sign(place, size):
    unit = torch.zeros(place + 1)
    unit[place] = 1.0
    assert sketch(unit, size, "w").abs().sort().values.tolist() == [0.0] * (size - 1) + [1.0]


@pytest.mark.parametrize("kind", ["random", "constant", "one column"])
def test_inner_products_are_right_on_average_and_vary_as_promised(kind):
    """One column of a matrix that is as wide as the sketch is the worst for a projection that forgets to mix."""
    one = torch.ones(40, SIZE) if kind == "constant" else drawn(40 * SIZE, 1).view(40, SIZE)
    if kind == "one column":
        one[:, 1:] = 0.0
    other = one + one.flip(0) * drawn(40, 2).sign()[:, None]
    exact = float((one * other).sum() / (one.norm() * other.norm()))
    found = [
        float(sketch(one, SIZE, f"{seed}") @ sketch(other, SIZE, f"{seed}") / (one.norm() * other.norm()))
        for seed in range(400)
    ]
    assert np.std(found) < 2 / SIZE**0.5
    assert np.mean(found) == pytest.approx(exact, abs=4 * np.std(found) / len(found) ** 0.5)


def test_seeds_and_names_differ():
    gradient = drawn(1000, 3)
    first = gradient_sketch([("a", gradient)], 256, seed=0)
    for name, seed in (("b", 0), ("a", 1)):
        assert abs(cosine(first, gradient_sketch([(name, gradient)], 256, seed))) < 0.3
    assert np.array_equal(first, gradient_sketch([("a", gradient), ("b", None)], 256, seed=0))


def test_precision_and_shape_are_of_no_account():
    gradient = drawn(600, 4).bfloat16()
    torch.testing.assert_close(
        sketch(gradient.view(20, 30).T.contiguous().T, 50, "w"), sketch(gradient.float(), 50, "w")
    )


def test_a_sketch_can_be_compared_with_one_that_was_made_elsewhere_or_earlier():
    assert sketch(torch.arange(1.0, 13.0), 4, "weight").tolist() == [-3.0, 18.0, -13.0, -4.0]
