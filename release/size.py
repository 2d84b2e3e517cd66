"""Print the lines of code of src and tests by room: without docstrings, comments and blank lines."""

from __future__ import annotations

import ast
import tokenize
from collections import Counter
from pathlib import Path

NO_CODE = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def lines_of_code(path: Path) -> int:
    """How many lines of a file hold code; a statement on three lines counts as three."""
    with tokenize.open(path) as file:
        tokens = [token for token in tokenize.generate_tokens(file.readline) if token.type not in NO_CODE]
    lines = {line for token in tokens for line in range(token.start[0], token.end[0] + 1)}
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, DOCUMENTED) and ast.get_docstring(node, clean=False) is not None:
            text = node.body[0]
            lines -= set(range(text.lineno, text.end_lineno + 1))
    return len(lines)


def rooms(top: Path) -> Counter[str]:
    """Lines of code of each folder directly below ``top``, and of the files beside them."""
    counts: Counter[str] = Counter()
    for path in top.rglob("*.py"):
        inside = path.relative_to(top).parts
        counts[inside[0] if len(inside) > 1 else "(files)"] += lines_of_code(path)
    return counts


if __name__ == "__main__":
    root = Path(__file__).resolve().parents[1]
    for name in ("src/coterie", "tests"):
        counts = rooms(root / name)
        print(f"{name:14}{sum(counts.values()):>7,}")
        for room, count in counts.most_common():
            print(f"  {room:12}{count:>7,}")
