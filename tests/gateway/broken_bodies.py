"""Request bodies that no proper client sends, and the openai client over a transport that answers what it is told."""

import json
import math
from collections.abc import Callable, Iterator
from typing import Any

import httpx2
from hypothesis import strategies as st
from openai import OpenAI

from whippletree.gateway.dialects.base import Dialect, DialectError


def nested(levels: int) -> list[Any]:
    found: list[Any] = []
    for _ in range(levels):
        found = [found]
    return found


REMOVED = object()
WRONG = [REMOVED, None, True, 0, -1, math.nan, math.inf, "", "nonsense", [], {}, [None], [{}], nested(3000)]

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)


def breakages(body: Any) -> Iterator[tuple[tuple[Any, ...], Any]]:
    """The body with each of its places in turn replaced by each wrong value, and which place that was."""
    for path in _paths(body):
        for wrong in WRONG:
            yield path, _replaced(body, path, wrong)


def _paths(value: Any) -> Iterator[tuple[Any, ...]]:
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in inner:
        yield (key,)
        yield from ((key, *path) for path in _paths(child))


def _replaced(value: Any, path: tuple[Any, ...], wrong: Any) -> Any:
    if not path:
        return wrong
    copy = value.copy()
    copy[path[0]] = _replaced(value[path[0]], path[1:], wrong)
    if copy[path[0]] is REMOVED:
        del copy[path[0]]
    return copy


def refusal(dialect: Dialect, body: dict[str, Any]) -> str | None:
    """Read all of a body; what the dialect refuses of it, None where it is accepted."""
    try:
        dialect.wishes(body)
        dialect.tools(dialect.raw_tools(body))
        list(dialect.read(dialect.items(body), 0))
    except DialectError as problem:
        return str(problem)
    return None


def client(answer: Callable[[dict[str, Any]], bytes | dict[str, Any]], status: int = 200) -> OpenAI:
    """`answer` maps a body to a reply, or to the bytes of an event stream."""

    def handle(request: httpx2.Request) -> httpx2.Response:
        told = answer(json.loads(request.content))
        if isinstance(told, bytes):
            return httpx2.Response(status, content=told, headers={"content-type": "text/event-stream"})
        return httpx2.Response(status, json=told)

    transport = httpx2.Client(transport=httpx2.MockTransport(handle))
    return OpenAI(api_key="key", base_url="http://gateway/v1", http_client=transport, max_retries=0)
