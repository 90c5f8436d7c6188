"""Write what results/NAME.json and benchmarks/NAME.json hold between the pages' markers; run by `make docs`.

`results:NAME` takes a study's tables, `benchmark:NAME` a benchmark's ratios and curves; curves are drawn into
docs/NAME.png too. A block whose file is absent stays as it is. Running it twice changes nothing.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from whippletree.analysis.figures import growth_panels
from whippletree.analysis.growth import TOLERANCE, Growth
from whippletree.analysis.study import from_json, study_tables
from whippletree.analysis.tables import Table, markdown

ROOT = Path(__file__).resolve().parent.parent
BLOCK = re.compile(r"(<!-- (results|benchmark):([\w-]+) -->\n).*?(<!-- /\2:\3 -->)", re.DOTALL)
FOLDERS = {"results": "results", "benchmark": "benchmarks"}
PARTS = ("sampling", "learning", "sandbox", "other")


def filled(page: str, root: Path) -> str:
    """The page with every block filled whose file is in the folders `results` and `benchmarks` of `root`."""

    def block(match: re.Match[str]) -> str:
        file = root / FOLDERS[match[2]] / f"{match[3]}.json"
        if not file.exists():
            return match[0]
        text = file.read_text(encoding="utf-8")
        told = study(text, str(file)) if match[2] == "results" else benchmark(json.loads(text))
        return f"{match[1]}\n{told}\n{match[4]}"

    return BLOCK.sub(block, page)


def study(text: str, where: str) -> str:
    found = from_json(text, where)
    tables = "\n".join(markdown(table) for table in study_tables(found))
    seeds = ", ".join(map(str, found.seeds))
    return f"{tables}\n`{found.command}` at {found.commit}, {found.machine}, seeds {seeds}.\n"


def benchmark(found: Mapping[str, Any]) -> str:
    """Ratios and curves, where there are such, what each side did, and where it was measured."""
    tables: list[Table] = []
    if ratios := found.get("ratios"):
        rows = tuple((name, f"{value:.2f}") for name, value in ratios.items())
        tables.append(Table("Cost of the other over ours for the same work", ("Other", "Times"), rows))
    if curves := found.get("curves"):
        tables.append(growth_table(curves))
    did = [f"- {name}: {told}" for name, told in found.get("what", {}).items()]
    machine = ", ".join(f"{name.replace('_', ' ')} {told}" for name, told in found["machine"].items())
    origin = f"`{found['command']}`: {machine}."
    return "\n".join([*map(markdown, tables), *did, "", origin, ""])


def growth_table(curves: Mapping[str, Any]) -> Table:
    rows = tuple(
        (
            f"{curve['label']}, {points[0]['size']:g} to {points[-1]['size']:g}",
            f"{points[0]['total']:.2f} to {points[-1]['total']:.2f}",
            f"{curve['exponent']:.2f}",
            f"{curve['exponent_at_end']:.2f}",
            "not here" if curve["leaves_linear_at"] is None else f"at {curve['leaves_linear_at']:g}",
        )
        for curve in curves.values()
        for points in [curve["points"]]
    )
    columns = ("What grows", "CPU seconds of a step", "Exponent", "Between the last two", "Leaves its line")
    note = f"A cost leaves its line where it lies more than {TOLERANCE:.0%} above that through its first two points."
    return Table("Growth of a step's cost", columns, rows, note)


def picture(found: Mapping[str, Any]) -> bytes:
    """The curves of a benchmark, side by side."""

    def points(curve: Mapping[str, Any], part: str) -> list[tuple[float, float]]:
        return [(point["size"], point[part]) for point in curve["points"] if point[part] > 0]

    return growth_panels(
        [
            Growth(curve["label"], points(curve, "total"), {part: points(curve, part) for part in PARTS})
            for curve in found["curves"].values()
        ],
        "CPU seconds",
    )


if __name__ == "__main__":
    for file in sorted((ROOT / "benchmarks").glob("*.json")):
        found = json.loads(file.read_text(encoding="utf-8"))
        if "curves" in found:
            (ROOT / "docs" / file.name).with_suffix(".png").write_bytes(picture(found))
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        page.write_text(filled(page.read_text(encoding="utf-8"), ROOT), encoding="utf-8")
