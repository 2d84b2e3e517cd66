"""Insert figures and tables of `python -m papers` into the pages of the papers.

python -m papers.pages FOLDER [--pages docs/papers]

FOLDER is the output of `python -m papers ... -o FOLDER`. In every page, the text between the lines
`<!-- claims NAME -->` and `<!-- /claims -->` is replaced by the table of the claims of NAME, and the text between
`<!-- tables NAME -->` and `<!-- /tables -->` by its further tables; NAME.png is copied to the folder of the page. Quick
runs are refused, and experiments without results in FOLDER are skipped.
"""

import argparse
import json
import math
import re
import shutil
import sys
from pathlib import Path
from typing import Any

MARK = re.compile(r"(<!-- (claims|tables) ([\w-]+) -->\n).*?(<!-- /\2 -->)", re.DOTALL)


def cell(value: Any, form: str = ".4g") -> str:
    """Format a number or a text for a markdown table."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    text = format(value, form) if isinstance(value, float) else str(value)
    return text.replace("|", "\\|")


def table(heads: list[str], rows: list[list[str]]) -> str:
    """Return a markdown table."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def claims(record: dict[str, Any]) -> str:
    """Return the table of claims: the paper's number, our number, and the verdict."""
    rows = []
    for claim in record["claims"]:
        seen = cell(claim["ours"] if claim["ours"] is None else float(claim["ours"]), claim["form"])
        if claim["error"] is not None and not math.isnan(claim["error"]):
            seen += f" ± {cell(float(claim['error']), claim['form'])}"
        rows.append([cell(claim["what"]), cell(claim["paper"]), seen, claim["verdict"], cell(claim["reason"])])
    return table(["what", "paper", "ours", "verdict", "why"], rows)


def tables(record: dict[str, Any]) -> str:
    """Return further tables, each with its title."""
    parts = []
    for title, frame in record["tables"].items():
        named = frame["index"] != list(range(len(frame["data"])))
        rows = [[key, *row] if named else row for key, row in zip(frame["index"], frame["data"], strict=True)]
        heads = ["", *frame["columns"]] if named else frame["columns"]
        parts.append(f"**{title}**\n\n" + table(heads, [[cell(value) for value in row] for row in rows]))
    return "\n".join(parts)


def fill(page: Path, folder: Path) -> tuple[list[str], list[str]]:
    """Fill in the tables and figures of a page; return the names of inserted and of missing experiments."""
    filled: list[str] = []
    missing: list[str] = []

    def replaced(match: re.Match[str]) -> str:
        head, kind, name, tail = match.groups()
        path = folder / f"{name}.json"
        if not path.exists():
            missing.append(name)
            return match.group(0)
        record = json.loads(path.read_text())
        if record["quick"]:
            sys.exit(f"{path} is of a quick run")
        shutil.copy(folder / f"{name}.png", page.parent / f"{name}.png")
        filled.append(name)
        return f"{head}\n{claims(record) if kind == 'claims' else tables(record)}\n{tail}"

    page.write_text(MARK.sub(replaced, page.read_text()))
    return filled, missing


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--pages", type=Path, default=Path(__file__).parents[1] / "docs" / "papers")
    given = parser.parse_args()
    for page in sorted(given.pages.glob("*.md")):
        filled, missing = fill(page, given.folder)
        print(f"{page}: {', '.join(filled) or 'nothing'}" + (f"; missing {', '.join(missing)}" if missing else ""))


if __name__ == "__main__":
    main()
