"""From run directories to a report: reads stores, fills `analysis.report`, writes page and pictures."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from whippletree.analysis.figures import Curve, heatmap, interval_chart, learning_curves
from whippletree.analysis.report import ReportData, Timing, html_report, text_report
from whippletree.analysis.scores import PolicyScores, by_level
from whippletree.analysis.tables import Table, activations_table, pass_intervals
from whippletree.config import RunConfig
from whippletree.harness.certificate import certify
from whippletree.harness.hooks import COUNT as HOOK
from whippletree.harnesses import Harnesses
from whippletree.run import config_of
from whippletree.sft import is_tuning
from whippletree.store.run_dir import RunStore
from whippletree.types import Score

PANELS = (
    ("passed", "Tasks solved in training"),
    ("entropy", "Entropy (nats per token)"),
    ("groups/with_signal", "Share of groups with signal"),
    ("tokens/sampled", "Sampled tokens per step"),
)
TUNING = (
    ("loss", "Loss on the rollouts of a step (nats per token)"),
    ("validation/loss", "Loss on the rollouts held back (nats per token)"),
)
"""Panels of fine-tuning, which acts in no harness."""


def collect(runs: Mapping[str, Sequence[Path]], title: str, tables: Sequence[Table] = ()) -> ReportData:
    """Data of one or more arms, each with one run per seed. Scores of the seeds are pooled task by task.

    Raises StoreError where a path is no run.
    """
    policies: list[PolicyScores] = []
    curves: list[Curve] = []
    cpu_s: dict[str, float] = {}
    wall_s, num_rollouts = 0.0, 0
    certificates: dict[str, str] = {}
    configs: list[str] = []
    hooks: dict[tuple[str, str], list[int]] = {}
    config = RunConfig()
    for arm, paths in runs.items():
        sets: dict[str, list[Score]] = {}
        text = ""
        for seed, path in enumerate(paths):
            with RunStore.open(path, read_only=True) as store:
                text, tuning = store.config_toml, is_tuning(store)
                curves += [Curve(arm, name, store.metric(name), seed) for name, _ in (TUNING if tuning else PANELS)]
                for record in store.steps():
                    wall_s += record.wall_s
                    num_rollouts += int(record.metrics["rollouts"])
                    for stage in ("sampling", "sandbox", "learning", "other"):
                        cpu_s[stage] = cpu_s.get(stage, 0.0) + record.metrics[f"cpu_s/{stage}"]
                if not tuning:
                    config = config_of(store)
                    _count_hooks(store, config, hooks)
                    for name in config.evaluate.sets:
                        sets.setdefault(name, []).extend(store.scores(name, "final"))
        policies.append(PolicyScores(arm, {name: cells for name, cells in sets.items() if cells}))
        certificates |= _certificates(config, arm) if sets else {}
        configs.append(f"# {arm}\n{text}")
    return ReportData(
        title=title,
        policies=tuple(policies),
        levels_of=Harnesses(config.harnesses).levels,
        curves=tuple(curve for curve in curves if curve.points),
        panels=PANELS + TUNING,
        tables=(*tables, *([activations_table(hooks)] if hooks else [])),
        certificates=certificates,
        config="\n".join(configs),
        timing=Timing(num_rollouts, wall_s, cpu_s) if num_rollouts else None,
        notes=_notes(config) if any(policy.sets for policy in policies) else (),
    )


def write(data: ReportData, folder: Path) -> list[Path]:
    """`report.html` and the figures beside it as PNG; returns what was written, the page first."""
    figures = folder / "figures"
    figures.mkdir(parents=True, exist_ok=True)
    page = folder / "report.html"
    page.write_text(html_report(data, _rng()), encoding="utf-8")
    written = [page]
    pictures: dict[str, bytes] = {}
    if scored := [policy for policy in data.policies if policy.sets]:
        pictures["scores.png"] = interval_chart(pass_intervals(scored, _rng()), "Pass@1 and 95% intervals")
    if data.curves:
        pictures["curves.png"] = learning_curves(data.curves, data.panels)
    levels = {policy.label: _level_rates(data, policy) for policy in data.policies if policy.sets.get("held_out")}
    if levels:
        pictures["levels.png"] = heatmap(levels, "Pass@1 on held-out harnesses by factor level (%)")
    for name, png in pictures.items():
        (figures / name).write_bytes(png)
        written.append(figures / name)
    return written


def as_text(data: ReportData, *, markdown: bool = False) -> str:
    return text_report(data, _rng(), as_markdown=markdown)


def _level_rates(data: ReportData, policy: PolicyScores) -> dict[tuple[str, int], float]:
    return {level: found.pass_at_1 for level, found in by_level(policy.sets["held_out"], data.levels_of).items()}


def _rng() -> np.random.Generator:
    return np.random.default_rng(0)


def _count_hooks(store: RunStore, config: RunConfig, hooks: dict[tuple[str, str], list[int]]) -> None:
    """Add how often each hook fired in each rollout. The paper's configurations have no hooks to look for."""
    harnesses = Harnesses(config.harnesses)
    sets = [config.harnesses.train, *config.evaluate.sets.values()]
    if config.harnesses.space == "paper" and not any(map(harnesses.stands_apart, _listed(sets))):
        return
    for rollout in store.rollouts(with_calls=False):
        for name, count in rollout.counts.items():
            if name.startswith(HOOK):
                hooks.setdefault((rollout.harness, name.removeprefix(HOOK)), []).append(count)


def _listed(sets: Iterable[str | Sequence[str]]) -> list[str]:
    return [name for wanted in sets for name in ([wanted] if isinstance(wanted, str) else wanted)]


def _certificates(config: RunConfig, arm: str) -> dict[str, str]:
    harnesses = Harnesses(config.harnesses)
    trained = harnesses.design(config.harnesses.train, config.seed)
    found = {f"{arm}: trained on": certify(trained).to_text()} if trained else {}
    if "held_out" in config.evaluate.sets:
        held_out = harnesses.design(config.evaluate.sets["held_out"], config.seed)
        if held_out:
            found["held out"] = certify(held_out, other=trained).to_text()
    return found


def _notes(config: RunConfig) -> tuple[str, ...]:
    kinds = "all kinds of task" if config.evaluate.new_kinds else "kinds of task that training shows, in new instances"
    return (
        f"Tasks are of the {config.evaluate.split} split, {kinds}; each is attempted once at temperature "
        f"{config.sampling.temperature:g}.",
        "Intervals over tasks say how exact the evaluation of these policies is; how much training varies from seed "
        "to seed only several seeds can say.",
    )
