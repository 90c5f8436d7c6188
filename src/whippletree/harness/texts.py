"""Texts with `{name}` fields.

Invariant: a text is filled in one pass, and which names it may use is part of its type.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from pydantic import AfterValidator

_FIELD = re.compile(r"\{([a-z_]+)\}")


def fill(template: str, values: Mapping[str, object]) -> str:
    """Replace each `{name}` by its field, in one pass: braces inside a value stay as they are."""
    return _FIELD.sub(lambda match: str(values[match[1]]), template)


def fields(*names: str, required: tuple[str, ...] = ()) -> AfterValidator:
    """The type of a text that may use `names` and must use those of `required`."""

    def check(template: str) -> str:
        used = set(_FIELD.findall(template))
        if unknown := used - set(names):
            raise ValueError(f"unknown field {{{sorted(unknown)[0]}}}; this text may use {', '.join(names)}")
        if missing := set(required) - used:
            raise ValueError(f"the text must contain {{{sorted(missing)[0]}}}")
        return template

    return AfterValidator(check)
