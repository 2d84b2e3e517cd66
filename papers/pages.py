"""Put figures and tables of `python -m papers` into the pages of the papers.

python -m papers.pages FOLDER [--pages docs/papers]

FOLDER is what `python -m papers ... -o FOLDER` has written. In every page, what is between the lines
`<!-- claims NAME -->` and `<!-- /claims -->` becomes the table of the claims of NAME, what is between
`<!-- tables NAME -->` and `<!-- /tables -->` its further tables; NAME.png is put beside the page. Quick runs are not
taken, and what FOLDER does not have stays as it is.
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
    """A number or a text, for a table of markdown."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return ""
    text = format(value, form) if isinstance(value, float) else str(value)
    return text.replace("|", "\\|")


def table(heads: list[str], rows: list[list[str]]) -> str:
    """A table of markdown."""
    lines = [heads, ["---"] * len(heads), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"


def claims(record: dict[str, Any]) -> str:
    """What the paper says, what we see, and the verdict."""
    rows = []
    for claim in record["claims"]:
        seen = cell(claim["ours"] if claim["ours"] is None else float(claim["ours"]), claim["form"])
        if claim["error"] is not None and not math.isnan(claim["error"]):
            seen += f" ± {cell(float(claim['error']), claim['form'])}"
        rows.append([cell(claim["what"]), cell(claim["paper"]), seen, claim["verdict"], cell(claim["reason"])])
    return table(["what", "paper", "ours", "verdict", "why"], rows)


def tables(record: dict[str, Any]) -> str:
    """Further tables, each with its title."""
    parts = []
    for title, frame in record["tables"].items():
        named = frame["index"] != list(range(len(frame["data"])))
        rows = [[key, *row] if named else row for key, row in zip(frame["index"], frame["data"], strict=True)]
        heads = ["", *frame["columns"]] if named else frame["columns"]
        parts.append(f"**{title}**\n\n" + table(heads, [[cell(value) for value in row] for row in rows]))
    return "\n".join(parts)


def fill(page: Path, folder: Path) -> tuple[list[str], list[str]]:
    """One page: its tables and figures. Gives the names of what was filled, and of what was not there."""
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
