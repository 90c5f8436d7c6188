"""Write the tables of results/NAME.json between the pages' `results:NAME` markers; run by `make docs`.

A block whose results file is absent stays as it is. Running it twice changes nothing.
"""

from __future__ import annotations

import re
from pathlib import Path

from whippletree.analysis.study import from_json, study_tables
from whippletree.analysis.tables import markdown

ROOT = Path(__file__).resolve().parent.parent
BLOCK = re.compile(r"(<!-- results:([\w-]+) -->\n).*?(<!-- /results:\2 -->)", re.DOTALL)


def filled(page: str, results: Path) -> str:
    """The page with every block filled whose file is in the folder `results`."""

    def block(match: re.Match[str]) -> str:
        file = results / f"{match[2]}.json"
        if not file.exists():
            return match[0]
        found = from_json(file.read_text(encoding="utf-8"), str(file))
        tables = "\n".join(markdown(table) for table in study_tables(found))
        seeds = ", ".join(map(str, found.seeds))
        origin = f"`{found.command}` at {found.commit}, {found.machine}, seeds {seeds}."
        return f"{match[1]}\n{tables}\n{origin}\n\n{match[3]}"

    return BLOCK.sub(block, page)


if __name__ == "__main__":
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        page.write_text(filled(page.read_text(encoding="utf-8"), ROOT / "results"), encoding="utf-8")
