"""The results file of a study, `results/NAME.json`: arms and differences over seeds, in percentage points.

Invariant: the file agrees with itself; means follow from the seeds, and differences are paired by seed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from whippletree.analysis.intervals import Interval, paired_t_interval, t_interval
from whippletree.analysis.scores import set_title
from whippletree.analysis.tables import Table
from whippletree.errors import StoreError
from whippletree.types import Json

_TOLERANCE = 0.02
"""Percentage points by which numbers rounded to two decimals may disagree."""

ArmValues = Mapping[int, Mapping[str, float]]
"""Seed -> column, e.g. `held_out` -> value in [0, 1]."""


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Difference(_Strict):
    mean: float
    low: float | None
    """None, like `high`, where there is a single seed."""
    high: float | None


class Column(Difference):
    seeds: tuple[float, ...]
    """The value of each seed, in the order of the study's `seeds`."""


class StudyResult(_Strict):
    """What was run, and what came of it. Intervals are Student's t over seeds, at 95%."""

    command: str
    commit: str
    machine: str
    seeds: tuple[int, ...]
    settings: dict[str, Json]
    arms: dict[str, dict[str, Column]]
    differences: dict[str, dict[str, Difference]]

    @model_validator(mode="after")
    def _agrees(self) -> Self:
        if not self.seeds or len(set(self.seeds)) != len(self.seeds):
            raise ValueError(f"seeds must be present and differ, got {list(self.seeds)}")
        for arm, columns in self.arms.items():
            for name, column in columns.items():
                where = f"arms.{arm}.{name}"
                self._check_interval(where, column, 0.0)
                if len(column.seeds) != len(self.seeds):
                    raise ValueError(f"{where} has {len(column.seeds)} values, expected one for each of {self.seeds}")
                _check_close(where, column.mean, sum(column.seeds) / len(column.seeds))
        for key, columns in self.differences.items():
            for name, difference in columns.items():
                where = f"differences.{key}.{name}"
                self._check_interval(where, difference, -100.0)
                a, b = self._sides(key, name)
                _check_close(where, difference.mean, a.mean - b.mean)
        return self

    def _check_interval(self, where: str, value: Difference, lowest: float) -> None:
        if value.low is None or value.high is None:
            if len(self.seeds) > 1 or value.low != value.high:
                raise ValueError(f"{where} must have low and high, for there are {len(self.seeds)} seeds")
            return
        ordered = lowest, value.low, value.mean, value.high, 100.0
        if len(self.seeds) == 1 or list(ordered) != sorted(ordered):
            raise ValueError(
                f"{where} must have {lowest} <= low <= mean <= high <= 100 over two or more seeds: {value}"
            )

    def _sides(self, key: str, name: str) -> tuple[Column, Column]:
        for a, columns in self.arms.items():
            b = key.removeprefix(f"{a} - ")
            if b != key and b in self.arms and name in columns and name in self.arms[b]:
                return columns[name], self.arms[b][name]
        raise ValueError(f"difference {key!r} of {name!r} must be 'A - B' of two arms that have this column")


def aggregate(
    values: Mapping[str, ArmValues],
    differences: Sequence[tuple[str, str]],
    *,
    command: str,
    commit: str,
    machine: str,
    settings: Mapping[str, Json],
) -> StudyResult:
    """Aggregate the seeds that every arm has finished; `differences` names the pairs (A, B) of A - B.

    Raises ValueError where no seed is finished in every arm, or an arm's seeds do not have the same columns.
    """
    seeds = sorted(set[int].intersection(*(set(arm) for arm in values.values())))
    if not seeds:
        raise ValueError(f"no seed is finished in every arm: { ({arm: sorted(v) for arm, v in values.items()}) }")
    for arm, by_seed in values.items():
        if len({frozenset(by_seed[seed]) for seed in seeds}) > 1:
            raise ValueError(f"the seeds of arm {arm!r} must all have the same columns: {by_seed}")
    columns = {arm: list(by_seed[seeds[0]]) for arm, by_seed in values.items()}
    series = {arm: {c: {s: 100.0 * values[arm][s][c] for s in seeds} for c in columns[arm]} for arm in values}
    return StudyResult(
        command=command,
        commit=commit,
        machine=machine,
        seeds=tuple(seeds),
        settings=dict(settings),
        arms={arm: {c: _column(list(v.values())) for c, v in series[arm].items()} for arm in series},
        differences={
            f"{a} - {b}": {
                c: Difference(**_bounds(paired_t_interval(series[a][c], series[b][c]), -100.0))
                for c in columns[a]
                if c in series[b]
            }
            for a, b in differences
        },
    )


def to_json(result: StudyResult) -> str:
    """The text of the results file."""
    return result.model_dump_json(indent=1) + "\n"


def from_json(text: str, name: str = "the results file") -> StudyResult:
    """Read and check a results file; raises StoreError that says which entry is wrong."""
    try:
        return StudyResult.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "contents"
        raise StoreError(f"{name} is not a study's results ({place}: {first['msg']}): run the study again") from error


def values_of(result: StudyResult) -> dict[str, dict[int, dict[str, float]]]:
    """What `aggregate` was given: arm -> seed -> column -> value in [0, 1]."""
    return {
        arm: {seed: {c: column.seeds[i] / 100.0 for c, column in row.items()} for i, seed in enumerate(result.seeds)}
        for arm, row in result.arms.items()
    }


def study_tables(result: StudyResult) -> tuple[Table, Table]:
    """Arms by columns, and their differences."""
    note = f"Mean and 95% t interval over {len(result.seeds)} seeds."
    columns = list(dict.fromkeys(name for row in result.arms.values() for name in row))
    head = tuple(map(set_title, columns))
    arms = tuple((arm, *(_entry(row.get(c), "") for c in columns)) for arm, row in result.arms.items())
    pairs = tuple((pair, *(_entry(row.get(c), "+") for c in columns)) for pair, row in result.differences.items())
    return (
        Table("Pass@1 in percent", ("Arm", *head), arms, note),
        Table("Differences in percentage points", ("Arms", *head), pairs, note + " Paired by seed."),
    )


def _entry(value: Difference | None, sign: str) -> str:
    if value is None:
        return "–"
    mean = f"{value.mean:{sign}z.1f}"
    return mean if value.low is None else f"{mean} ({value.low:{sign}z.1f} to {value.high:{sign}z.1f})"


def _column(values: Sequence[float]) -> Column:
    return Column(**_bounds(t_interval(values), 0.0), seeds=tuple(round(v, 2) for v in values))


def _bounds(interval: Interval, lowest: float) -> dict[str, Any]:
    """Rounded to two decimals and cut to what is possible; no bounds for a single seed."""
    found = {"mean": interval.mean, "low": interval.low, "high": interval.high}
    return {k: round(min(max(v, lowest), 100.0), 2) if isfinite(v) else None for k, v in found.items()}


def _check_close(where: str, value: float, expected: float) -> None:
    if abs(value - expected) > _TOLERANCE:
        raise ValueError(f"{where} has mean {value}, but the values of its seeds give {expected:.2f}")
