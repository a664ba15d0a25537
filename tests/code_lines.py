"""How much code the library is: `python -m tests.code_lines`, which `make lint` runs.

A line of code is a line on which a token stands that is no comment and no docstring. Blank lines,
comments and docstrings are free, so that explaining costs nothing.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import genesis_fn

# Lines of the commit before the library's structure was made anew (13b8e7e), formatted
# as now.
REFERENCE = 58_353

_BLANK = frozenset(
    (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT,
     tokenize.ENCODING, tokenize.ENDMARKER)
)  # fmt: skip


def code_lines(source: str) -> int:
    """How many lines of a module's source are code."""
    tree = ast.parse(source)
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type not in _BLANK:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(tree):
        if isinstance(node, documented) and ast.get_docstring(node, clean=False) is not None:
            text = node.body[0]
            lines.difference_update(range(text.lineno, (text.end_lineno or text.lineno) + 1))
    return len(lines)


def per_package(root: Path) -> Counter[str]:
    """{package: its lines of code}, by the folders right below `root`; modules that stand there
    alone are one of them, `(top)`."""
    found: Counter[str] = Counter()
    for path in sorted(root.rglob("*.py")):
        inner = path.relative_to(root).parts
        found[inner[0] if len(inner) > 1 else "(top)"] += code_lines(path.read_text("utf-8"))
    return found


def main(arguments: Sequence[str]) -> None:
    """Print the table, of the library or of the packages that are named."""
    for root in map(Path, arguments or [genesis_fn.__path__[0]]):
        found = per_package(root)
        for name, count in sorted(found.items(), key=lambda item: -item[1]):
            print(f"{count:>7,}  {name}")
        total = sum(found.values())
        print(f"{total:>7,}  {root}: {total / REFERENCE:.1%} of {REFERENCE:,}")


if __name__ == "__main__":
    main(sys.argv[1:])
