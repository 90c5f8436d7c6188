"""Tables of results, as plain text and markdown.

Invariant: a table is rows of finished strings; all numbers of scores are in percent or percentage points.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite

import numpy as np

from whippletree.analysis.effects import Effects
from whippletree.analysis.intervals import Interval, bootstrap_interval, common_cells, paired_difference
from whippletree.analysis.scores import PolicyScores, set_title, summary


@dataclass(frozen=True, slots=True)
class Table:
    title: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    """Each as long as `columns`; the first entry names the row."""
    note: str = ""

    def __post_init__(self) -> None:
        if bad := [row for row in self.rows if len(row) != len(self.columns)]:
            raise ValueError(f"rows of the table {self.title!r} must have {len(self.columns)} entries, got {bad[0]}")


def percent(interval: Interval, *, signed: bool = False) -> str:
    """`34.7 (31.2 to 38.1)`, of an interval in [0, 1]; without bounds where there are none."""
    sign = "+" if signed else ""
    mean = f"{100 * interval.mean:{sign}z.1f}"
    if not (isfinite(interval.low) and isfinite(interval.high)):
        return mean
    return f"{mean} ({100 * interval.low:{sign}z.1f} to {100 * interval.high:{sign}z.1f})"


def activations_table(hooks: Mapping[tuple[str, str], Sequence[int]]) -> Table:
    """(harness, hook) -> how often it fired in each rollout."""
    rows = [
        (harness, hook, str(len(counts)), f"{100 * sum(map(bool, counts)) / max(1, len(counts)):.0f}", str(sum(counts)))
        for (harness, hook), counts in sorted(hooks.items())
    ]
    columns = ("Harness", "Hook", "Rollouts", "Fired in (%)", "Activations")
    return Table("Hooks", columns, tuple(rows), "Rollouts of training and of evaluations.")


def pass_intervals(policies: Sequence[PolicyScores], rng: np.random.Generator) -> dict[str, dict[str, Interval]]:
    """Pass@1 with its interval, clustered by task: policy -> set of harnesses -> interval."""
    return {p.label: {name: bootstrap_interval(cells, rng) for name, cells in p.sets.items()} for p in policies}


def pass_table(intervals: Mapping[str, Mapping[str, Interval]]) -> Table:
    """Policies by sets of harnesses."""
    sets = list(dict.fromkeys(name for row in intervals.values() for name in row))
    rows = [(label, *(percent(row[s]) if s in row else "–" for s in sets)) for label, row in intervals.items()]
    return Table(
        "Pass@1 in percent",
        ("Policy", *map(set_title, sets)),
        tuple(rows),
        "In brackets: 95% intervals of a bootstrap over tasks. They hold for these weights; they do not include the "
        "spread between training seeds.",
    )


def pass_differences(
    policies: Sequence[PolicyScores], reference: PolicyScores, rng: np.random.Generator
) -> dict[str, dict[str, Interval]]:
    """Pass@1 of every other policy minus that of the reference, on the cells that both hold, where there are any."""
    return {
        p.label: {
            name: paired_difference(cells, reference.sets[name], rng)
            for name, cells in p.sets.items()
            if name in reference.sets and common_cells(cells, reference.sets[name])
        }
        for p in policies
        if p.label != reference.label
    }


def difference_table(differences: Mapping[str, Mapping[str, Interval]], reference: str) -> Table:
    """Policies by sets of harnesses."""
    sets = list(dict.fromkeys(name for row in differences.values() for name in row))
    rows = [
        (label, *(percent(row[s], signed=True) if s in row else "–" for s in sets))
        for label, row in differences.items()
    ]
    return Table(
        f"Difference to {reference} in percentage points",
        ("Policy", *map(set_title, sets)),
        tuple(rows),
        "Paired on the same tasks and harnesses; 95% intervals of a bootstrap over tasks.",
    )


def reward_table(policies: Sequence[PolicyScores]) -> Table:
    """Mean reward and the size of the evaluation, a row for each policy and set."""
    rows: list[tuple[str, ...]] = []
    for policy in policies:
        for name, cells in policy.sets.items():
            s = summary(cells)
            rows.append((policy.label, set_title(name), f"{s.mean_reward:.3f}", str(s.num_cells), str(s.num_attempts)))
    return Table("Mean reward", ("Policy", "Harnesses", "Mean reward", "Cells", "Attempts"), tuple(rows))


def effects_table(effects: Effects, title: str) -> Table:
    """Balanced mean and effect of each factor level, and the factor's share of the variance."""
    rows: list[tuple[str, ...]] = []
    shares = dict(effects.variance_share)
    for e in effects.levels:
        share = shares.pop(e.factor, None)  # on the factor's first row only
        shown = "" if share is None else f"{100 * share:.0f}%"
        rows.append((f"{e.factor}{e.level}", percent(e.mean), percent(e.effect, signed=True), shown))
    note = (
        "These harnesses cannot tell the factors apart: the means are plain averages, and no shares are given."
        if effects.confounded
        else f"Share of the variance between harnesses that no single factor explains: "
        f"{100 * effects.variance_share['rest']:.0f}%, sampling noise included."
    )
    return Table(title, ("Level", "Pass@1", "Effect", "Factor's share of variance"), tuple(rows), note)


def text(table: Table) -> str:
    """Aligned plain text."""
    lines = [table.columns, *table.rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(table.columns))]
    aligned = ["  ".join(entry.ljust(w) for entry, w in zip(line, widths, strict=True)).rstrip() for line in lines]
    aligned.insert(1, "  ".join("-" * w for w in widths))
    return "\n".join([table.title, *aligned, *([table.note] if table.note else [])]) + "\n"


def markdown(table: Table) -> str:
    """A GitHub table under its title in bold."""
    lines = [table.columns, ("---",) * len(table.columns), *table.rows]
    body = ["| " + " | ".join(entry.replace("|", "\\|") for entry in line) + " |" for line in lines]
    return "\n".join([f"**{table.title}**", "", *body, *(["", table.note] if table.note else [])]) + "\n"
