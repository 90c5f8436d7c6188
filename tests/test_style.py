"""The house rules that no linter knows: short files and functions, docstrings, and no word of where it was made."""

import ast
import io
import re
import tokenize
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCES = sorted((ROOT / "src").rglob("*.py"))
PYTHON = [*SOURCES, *sorted((ROOT / "docs").glob("*.py")), *sorted((ROOT / "tests").rglob("*.py"))]
TEXTS = [
    *(path for path in sorted((ROOT / "src").rglob("*")) if path.suffix in (".py", ".toml")),
    *(path for path in sorted((ROOT / "docs").rglob("*")) if path.suffix in (".py", ".md")),
    *sorted(ROOT.glob("*.md")),
    *(ROOT / name for name in ("Makefile", "constraints.txt", "pyproject.toml", ".ci/run")),
]
MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 70
PLAIN_LINES = 20
"""A public function up to this length may speak for itself."""

PLACES = re.compile(r"/work/|\.\./shared|/root/|/tmp/bash|-index-url|--index")
UNFINISHED = re.compile(r"TODO|FIXME|XXX|HACK")

Function = ast.FunctionDef | ast.AsyncFunctionDef


def read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def lines_of(function: Function) -> int:
    assert function.end_lineno is not None
    return function.end_lineno - function.lineno + 1


def functions(path: Path) -> list[Function]:
    return [node for node in ast.walk(ast.parse(read(path))) if isinstance(node, Function)]


def public_functions(path: Path) -> list[Function]:
    """Of the module itself. Methods are told of by their class, or by the protocol that it implements."""
    return [node for node in ast.parse(read(path)).body if isinstance(node, Function) and node.name[0] != "_"]


def test_files_are_short():
    assert {name(p): n for p in PYTHON if (n := len(read(p).splitlines())) > MAX_FILE_LINES} == {}


def test_functions_are_short():
    assert [f"{name(p)}: {f.name}" for p in PYTHON for f in functions(p) if lines_of(f) > MAX_FUNCTION_LINES] == []


def test_modules_have_docstrings():
    modules = {p: ast.parse(read(p)) for p in SOURCES if p.name != "__main__.py"}
    assert [name(p) for p, module in modules.items() if module.body and not ast.get_docstring(module)] == []


def test_longer_public_functions_have_docstrings():
    found = [(p, f) for p in SOURCES for f in public_functions(p) if lines_of(f) > PLAIN_LINES]
    assert [f"{name(p)}: {f.name}" for p, f in found if not ast.get_docstring(f)] == []


def test_nothing_is_tied_to_one_machine():
    assert [f"{name(p)}: {line}" for p in TEXTS for line in read(p).splitlines() if PLACES.search(line)] == []


def test_nothing_is_left_open():
    tokens = [(p, token) for p in SOURCES for token in tokenize.generate_tokens(io.StringIO(read(p)).readline)]
    comments = [(p, token.string) for p, token in tokens if token.type == tokenize.COMMENT]
    assert [f"{name(p)}: {comment}" for p, comment in comments if UNFINISHED.search(comment)] == []
