"""Pieces of a self-contained web page.

Invariant: all text is escaped here and nothing is loaded from elsewhere, so that a page is one file.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from html import escape
from string import Template

from whippletree.analysis.tables import Table

_PAGE = Template("""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>$title</title>
<style>
:root { color-scheme: light dark; --ink: #1c1c1c; --soft: #5c5c5c; --rule: #d9d9d9; --paper: #ffffff; --box: #f6f6f4; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e8e8e6; --soft: #a8a8a4; --rule: #44443f; --paper: #1b1b1a; --box: #262624; }
}
body { max-width: 58rem; margin: 2.5rem auto; padding: 0 1.25rem; color: var(--ink); background: var(--paper);
  font: 16px/1.55 system-ui, sans-serif; }
h1 { font-size: 1.6rem; line-height: 1.25; margin: 0 0 .5rem; }
h2 { font-size: 1.15rem; margin: 2.4rem 0 .6rem; }
.lead { font-size: 1.1rem; }
.note, figcaption, caption { color: var(--soft); font-size: .88rem; text-align: left; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; margin: .8rem 0; font-variant-numeric: tabular-nums; }
caption { padding-bottom: .3rem; font-weight: 600; }
th, td { padding: .3rem 1.2rem .3rem 0; text-align: left; white-space: nowrap; border-bottom: 1px solid var(--rule); }
thead th { color: var(--soft); font-weight: 500; font-size: .88rem; }
tbody th { font-weight: 500; }
figure { margin: 1rem 0; }
img { max-width: 100%; height: auto; background: #fff; border: 1px solid var(--rule); border-radius: 4px; }
pre { background: var(--box); padding: .8rem 1rem; overflow-x: auto; font-size: .82rem; line-height: 1.4;
  border-radius: 4px; }
summary { cursor: pointer; }
</style>
</head>
<body>
$body
</body>
</html>
""")


def page(title: str, body: Sequence[str]) -> str:
    """The whole page; `body` holds finished pieces."""
    return _PAGE.substitute(title=escape(title), body="\n".join(body))


def heading(text: str, level: int = 2) -> str:
    return f"<h{level}>{escape(text)}</h{level}>"


def paragraph(text: str, css_class: str = "") -> str:
    opening = f'<p class="{css_class}">' if css_class else "<p>"
    return f"{opening}{escape(text)}</p>"


def bullets(items: Sequence[str]) -> str:
    return "<ul>" + "".join(f"<li>{escape(item)}</li>" for item in items) + "</ul>"


def figure(png: bytes, description: str) -> str:
    """A picture, embedded, with its description as caption and alternative text."""
    words = escape(description)
    data = b64encode(png).decode("ascii")
    return f'<figure><img src="data:image/png;base64,{data}" alt="{words}"><figcaption>{words}</figcaption></figure>'


def fold(summary: str, text: str) -> str:
    """Preformatted text behind a line that opens it."""
    return f"<details><summary>{escape(summary)}</summary><pre>{escape(text)}</pre></details>"


def table(content: Table) -> str:
    head = "".join(f'<th scope="col">{escape(column)}</th>' for column in content.columns)
    rows = "".join(
        f'<tr><th scope="row">{escape(row[0])}</th>'
        + "".join(f"<td>{escape(entry)}</td>" for entry in row[1:])
        + "</tr>"
        for row in content.rows
    )
    note = paragraph(content.note, "note") if content.note else ""
    return (
        f'<div class="wide"><table><caption>{escape(content.title)}</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>{note}"
    )
