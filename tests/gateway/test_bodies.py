import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from whippletree.gateway.bodies import Bodies
from whippletree.gateway.dialects.base import DialectError

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
bodies = st.dictionaries(st.sampled_from(["messages", "tools", "model"]), st.lists(values, max_size=4) | values)


@given(st.lists(bodies, min_size=1, max_size=4), st.booleans())
def test_bodies_are_read_as_if_each_were_the_first(sent, ascii_only):
    reader = Bodies()
    for body in [*sent, *sent]:
        told = json.dumps(body, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
        assert reader.read(told) == body


def test_what_was_in_the_body_before_is_the_same_object():
    reader, a, b = Bodies(), {"role": "user", "content": "a"}, {"role": "user", "content": "b"}
    first = reader.read(json.dumps({"messages": [a, b], "tools": [a]}).encode())
    second = reader.read(json.dumps({"model": "m", "tools": [a], "messages": [a, a, b]}).encode())
    assert second["messages"] == [a, a, b]
    assert second["messages"][0] is first["messages"][0]
    assert second["tools"][0] is first["tools"][0]
    assert first["messages"] == [a, b]


def test_halves_of_surrogate_pairs_are_read():
    assert Bodies().read(b'{"messages": ["cut \\ud83d"]}') == {"messages": ["cut \ud83d"]}


@pytest.mark.parametrize("data", [b"", b"[1]", b'{"a": NaN', b'{"a": [1, }', b'{"a": "\xff"}', b"[" * 100_000])
def test_what_is_no_object_is_refused(data):
    with pytest.raises(DialectError, match=r"no valid JSON|must be a JSON object"):
        Bodies().read(data)
