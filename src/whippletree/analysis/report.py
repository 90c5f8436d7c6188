"""The report of a run or a study: one web page, or the same tables as text.

Invariant: every number in the headline stands in a table below it, with its interval.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite

import numpy as np

from whippletree.analysis import page
from whippletree.analysis.effects import Effects, main_effects
from whippletree.analysis.figures import PANELS, Curve, heatmap, interval_chart, learning_curves
from whippletree.analysis.intervals import Interval
from whippletree.analysis.scores import LevelsOf, PolicyScores, set_title
from whippletree.analysis.tables import (
    Table,
    difference_table,
    effects_table,
    markdown,
    pass_differences,
    pass_intervals,
    pass_table,
    reward_table,
    text,
)
from whippletree.errors import HarnessError
from whippletree.types import Score


@dataclass(frozen=True, slots=True)
class Timing:
    """Where the time of the training rollouts went."""

    num_rollouts: int
    wall_s: float
    cpu_s: Mapping[str, float]
    """CPU seconds per stage, e.g. sandbox, policy, update."""


@dataclass(frozen=True, slots=True)
class ReportData:
    """All that a report shows. The first policy is the reference, the last the one that the headline is about."""

    title: str
    policies: tuple[PolicyScores, ...]
    levels_of: LevelsOf
    curves: tuple[Curve, ...] = ()
    panels: Sequence[tuple[str, str]] = PANELS
    tables: tuple[Table, ...] = ()
    """Shown after the tables of scores."""
    certificates: Mapping[str, str] = field(default_factory=dict[str, str])
    """Name of a design -> the text of its balance certificate."""
    config: str = ""
    timing: Timing | None = None
    notes: tuple[str, ...] = ()
    """What a reader must know to judge the numbers."""


@dataclass(frozen=True, slots=True)
class _Findings:
    headline: str
    intervals: Mapping[str, Mapping[str, Interval]]
    tables: tuple[Table, ...]
    effects: Mapping[str, Effects]
    """Of each policy on the target set."""
    target: str


def html_report(data: ReportData, rng: np.random.Generator) -> str:
    """One self-contained page."""
    found = _find(data, rng)
    body = [page.heading(data.title, 1), page.paragraph(found.headline, "lead")]
    if found.intervals:
        body += [page.heading("Scores"), page.table(found.tables[0])]
        chart = interval_chart(found.intervals, "Pass@1 and 95% intervals")
        body += [page.figure(chart, "Pass@1 of each policy by set of harnesses, with 95% intervals over tasks.")]
    body += [page.table(table) for table in found.tables[1:]]
    if any(curve.metric in dict(data.panels) and curve.points for curve in data.curves):
        caption = "Training by step. Faint: each run; bold: the mean over runs, smoothed where there are many steps."
        body += [page.heading("Learning curves"), page.figure(learning_curves(data.curves, data.panels), caption)]
    if found.effects:
        body += _effect_section(found)
    if data.certificates:
        body += [page.heading("Designs"), *(page.fold(name, words) for name, words in data.certificates.items())]
    if data.config:
        body += [page.heading("Configuration"), page.fold("Show the whole configuration", data.config)]
    if data.timing is not None:
        body += [page.heading("Time"), page.table(timing_table(data.timing))]
    if data.notes:
        body += [page.heading("Notes"), page.bullets(data.notes)]
    return page.page(data.title, body)


def text_report(data: ReportData, rng: np.random.Generator, *, as_markdown: bool = False) -> str:
    """Headline, tables and notes, as plain text or markdown; the same numbers as the page for the same `rng`."""
    found = _find(data, rng)
    show = markdown if as_markdown else text
    tables = [*found.tables, *(effects_table(e, _effects_title(label, found)) for label, e in found.effects.items())]
    if data.timing is not None:
        tables.append(timing_table(data.timing))
    title = f"# {data.title}" if as_markdown else data.title
    notes = "".join(f"- {note}\n" for note in data.notes)
    parts = [f"{title}\n", f"{found.headline}\n", *map(show, tables), *([notes] if notes else [])]
    return "\n".join(parts)


def timing_table(timing: Timing) -> Table:
    """Rollouts per CPU-second, and what each stage takes of it."""
    total = sum(timing.cpu_s.values())
    each = max(timing.num_rollouts, 1)

    def row(name: str, seconds: float) -> tuple[str, ...]:
        share = 100 * seconds / total if total else 0.0
        return name, f"{seconds:.1f}", f"{share:.0f}%", f"{1000 * seconds / each:.1f}"

    rate = timing.num_rollouts / total if total else 0.0
    return Table(
        f"{timing.num_rollouts} rollouts at {rate:.2f} per CPU-second",
        ("Stage", "CPU seconds", "Share", "CPU ms per rollout"),
        (*(row(name, seconds) for name, seconds in timing.cpu_s.items()), row("all", total)),
        f"Wall time: {timing.wall_s:.0f} s.",
    )


def _find(data: ReportData, rng: np.random.Generator) -> _Findings:
    policies = [
        PolicyScores(p.label, {name: cells for name, cells in p.sets.items() if any(cell.passes for cell in cells)})
        for p in data.policies
    ]
    policies = [p for p in policies if p.sets]
    if not policies:
        return _Findings("No evaluation has been stored yet.", {}, data.tables, {}, "")
    reference, focus = policies[0], policies[-1]
    target = "held_out" if "held_out" in focus.sets else list(focus.sets)[-1]
    intervals = pass_intervals(policies, rng)
    differences = pass_differences(policies, reference, rng)
    tables = [pass_table(intervals)]
    if any(differences.values()):
        tables.append(difference_table(differences, reference.label))
    effects = {
        p.label: main_effects(p.sets[target], data.levels_of, rng)
        for p in policies
        if target in p.sets and _can_compare_levels(p.sets[target], data.levels_of)
    }
    change = differences.get(focus.label, {}).get(target)
    return _Findings(
        _headline(reference.label, focus.label, target, intervals[focus.label][target], change),
        intervals,
        (*tables, reward_table(policies), *data.tables),
        effects,
        target,
    )


def _can_compare_levels(scores: Sequence[Score], levels_of: LevelsOf) -> bool:
    harnesses = {score.harness for score in scores if score.passes}
    try:
        return len(harnesses) > 1 and all(map(levels_of, harnesses))
    except HarnessError:  # a real harness is no point of the factor space
        return False


def _headline(reference: str, focus: str, target: str, reached: Interval, change: Interval | None) -> str:
    known = {
        "base": "In the base harness",
        "training": "In the training harnesses",
        "held_out": "In harnesses never met in training",
    }
    sentence = f"{known.get(target, f'In {target}')}, {focus} passes {_points(reached, '%')} of attempts"
    if change is None:
        return sentence + "."
    if isfinite(change.low) and change.low <= 0.0 <= change.high:
        return f"{sentence}, which cannot be told from {reference}: the difference is {_points(change, ' points')}."
    size = Interval(abs(change.mean), *sorted((abs(change.low), abs(change.high))))
    word = "more" if change.mean > 0 else "less"
    return f"{sentence}: {_points(size, ' points')} {word} than {reference}."


def _points(interval: Interval, unit: str) -> str:
    mean = f"{100 * interval.mean:.1f}{unit}"
    if not isfinite(interval.low):
        return mean
    return f"{mean} (95% interval {100 * interval.low:.1f} to {100 * interval.high:.1f})"


def _effect_section(found: _Findings) -> list[str]:
    where = set_title(found.target)
    columns = {
        label: {(e.factor, e.level): e.mean.mean for e in effects.levels} for label, effects in found.effects.items()
    }
    picture = heatmap(columns, f"Pass@1 (%) by factor level, {where.lower()} harnesses")
    caption = f"Mean pass@1 (%) at each factor level with the other factors balanced; {where.lower()} harnesses."
    tables = [page.table(effects_table(e, _effects_title(label, found))) for label, e in found.effects.items()]
    return [page.heading("Factor levels"), page.figure(picture, caption), *tables]


def _effects_title(label: str, found: _Findings) -> str:
    return f"Effects of factor levels on {label}, {set_title(found.target).lower()} harnesses"
