"""Conditions on rollouts, `KEY=VALUE` as on the command line, as SQL.

Invariant: a value never becomes a part of the SQL, and a key only where it is in the table below.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple, cast

from whippletree.errors import ConfigError
from whippletree.types import Purpose, StopReason

Kind = Literal["text", "number", "flag"]
Value = str | float

KEYS: Mapping[str, tuple[Kind, str]] = {
    "id": ("text", "id"),
    "harness": ("text", "harness"),
    "task": ("text", "task_id"),
    "task_kind": ("text", "task_kind"),
    "source": ("text", "substr(task_id, 1, instr(task_id || '/', '/') - 1)"),
    "purpose": ("text", "purpose"),
    "stop_reason": ("text", "stop_reason"),
    "step": ("number", "step"),
    "turns": ("number", "num_turns"),
    "reward": ("number", "reward"),
    "passed": ("flag", "coalesce(reward, 0) >= 1"),
    "graded": ("flag", "reward IS NOT NULL"),
}
"""What a condition may name: how its value is read, and the expression over the table of rollouts."""

ACCEPTED: Mapping[str, frozenset[str]] = {
    "purpose": frozenset(Purpose.__args__),
    "stop_reason": frozenset(StopReason),
}
"""The only values of some keys of text."""

_CONDITION = re.compile(r"\s*(\w+)\s*(!=|<=|>=|=|<|>)\s*(.*?)\s*", re.DOTALL)


class Where(NamedTuple):
    """An SQL expression over the table of rollouts, and the values of its parameters."""

    sql: str
    values: tuple[Value, ...] = ()


def where(conditions: Iterable[str]) -> Where:
    """All of the conditions: `harness=claude-code:*`, `passed=true`, `step>=10`.

    In text, `*` stands for any characters. Raises ConfigError for what is no condition.
    """
    parts = [_condition(condition) for condition in conditions]
    sql = " AND ".join(part.sql for part in parts)
    return Where(sql or "TRUE", tuple(value for part in parts for value in part.values))


def keys_of(conditions: Iterable[str]) -> set[str]:
    """The keys that the conditions name."""
    return {match[1] for condition in conditions if (match := _CONDITION.fullmatch(condition))}


def _condition(text: str) -> Where:
    match = _CONDITION.fullmatch(text)
    if match is None:
        raise ConfigError(f"where '{text}': expected KEY=VALUE, for example passed=true or step>=10")
    key, sign, value = cast(tuple[str, str, str], match.groups())
    if key not in KEYS:
        raise ConfigError(f"where '{text}': there is no key '{key}'; the keys are {', '.join(KEYS)}")
    kind, expression = KEYS[key]
    if kind != "number" and sign not in ("=", "!="):
        raise ConfigError(f"where '{text}': {key} can be compared with = and != only")
    match kind:
        case "number":
            return Where(f"({expression}) {sign} ?", (_number(text, value),))
        case "flag":
            if value not in ("true", "false"):
                raise ConfigError(f"where '{text}': {key} is true or false, not '{value}'")
            return Where(f"({expression}) {sign} ?", (float(value == "true"),))
        case "text":
            if key in ACCEPTED and value not in ACCEPTED[key]:
                raise ConfigError(f"where '{text}': {key} is one of {', '.join(sorted(ACCEPTED[key]))}")
            return _text(expression, sign, value)


def _number(text: str, value: str) -> float:
    try:
        return float(value)
    except ValueError:
        raise ConfigError(f"where '{text}': expected a number, not '{value}'") from None


def _text(expression: str, sign: str, value: str) -> Where:
    if "*" not in value:
        return Where(f"({expression}) {sign} ?", (value,))
    pattern = re.sub(r"[\[?]", r"[\g<0>]", value)  # the other signs of GLOB stand for themselves
    return Where(f"({expression}) {'' if sign == '=' else 'NOT '}GLOB ?", (pattern,))
