"""Who wins where, by the tables on the page of the leaderboard.

python -m papers.leaderboard.winners [--page docs/papers/leaderboard.md]

To be run after `python -m papers.pages`: what is between the lines `<!-- winners -->` and `<!-- /winners -->` becomes
the best of each dataset, of all methods, of those that leave rows where they are, and of private ones.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ..pages import table

PAGE = Path(__file__).parents[2] / "docs" / "papers" / "leaderboard.md"
MARK = re.compile(r"(<!-- winners -->\n).*?(<!-- /winners -->)", re.DOTALL)
TABLES = re.compile(r"<!-- tables leaderboard[\w-]* -->\n(.*?)<!-- /tables -->", re.DOTALL)
#: Ways to one and the same optimum, under one name.
SAME = {"descent": "graph", "ADMM": "graph", "DJAM": "graph"}
#: Methods of the first table that have a private form.
PRIVATE = ("descent", "propagation", "pooling by gossip", "boosting")
#: These see more columns than all the others.
APART = "all columns"


@dataclass(frozen=True)
class Entry:
    """A line of a table."""

    method: str
    score: float
    error: float
    #: The more, the better, also for errors.
    goodness: float
    #: Megabytes; None if rows are needed in one place.
    sent: float | None
    seconds: float
    privacy: str

    @property
    def family(self) -> str:
        """Return the common name of the variants of a method, which may differ in model, graph or design."""
        words = self.method.split(", ")
        name = words[1] if words[0] in ("linear", "network", "additive") else words[0]
        return SAME.get(name, name)


def entries(page: str) -> dict[str, list[Entry]]:
    """All lines of all tables that have a score, by dataset."""
    found: dict[str, list[Entry]] = {}
    for block in TABLES.findall(page):
        for title, lines in re.findall(r"^\*\*(.+?)\*\*\n\n((?:\|.*\n)+)", block, re.MULTILINE):
            heads, _, *rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines.splitlines()]
            for row in rows:
                cells = dict(zip(heads, row, strict=True))
                if cells[heads[1]] and APART not in cells["method"]:
                    found.setdefault(title.removesuffix(", models"), []).append(_entry(cells, heads[1]))
    return found


def _entry(cells: dict[str, str], metric: str) -> Entry:
    score, sent = float(cells[metric]), cells["MB sent"]
    goodness = score if metric == "accuracy" else -score
    entry = Entry(
        cells["method"],
        score,
        float(cells["±"]),
        goodness,
        float(sent) if sent else None,
        float(cells["CPU s"]),
        cells.get("privacy", ""),
    )
    return entry if "privacy" in cells else Entry(**{**vars(entry), "privacy": _privacy(entry)})


def _privacy(entry: Entry) -> str:
    """Return the privacy of a method of the first table."""
    if entry.sent is None:
        return "none: rows in one place"
    if entry.sent == 0.0:
        return "nothing sent"
    return "with `ct.Private`" if entry.method.split(", ")[0] in PRIVATE else "no design"


def best(found: list[Entry]) -> Iterator[Entry]:
    """The best first, one of each family."""
    seen = set()
    for entry in sorted(found, key=lambda entry: -entry.goodness):
        if entry.family not in seen:
            seen.add(entry.family)
            yield entry


def _placed(found: list[Entry]) -> list[str]:
    """The best and the next, and what the best costs."""
    first, second = [*best(found)][:2]
    sent = "" if first.sent is None else f"{first.sent:.3g}"
    return [
        first.method,
        f"{first.score:.4g} ± {first.error:.2g}",
        second.method,
        f"{second.score:.4g}",
        sent,
        f"{first.seconds:.2g}",
        first.privacy,
    ]


HEADS = ["best", "score", "runner-up", "its score", "MB sent", "CPU s", "privacy"]


def winners(page: str) -> str:
    """The tables of winners."""
    found = entries(page)
    alone = {name: next(best([entry for entry in of if entry.sent == 0.0])) for name, of in found.items()}
    everyone = [[name, *_placed(of)] for name, of in found.items()]
    apart = [
        [name, *_placed([entry for entry in of if entry.sent]), f"{alone[name].method}: {alone[name].score:.4g}"]
        for name, of in found.items()
    ]
    parts = [
        "**Who wins**\n\n" + table(["dataset", *HEADS], everyone),
        "**Who wins where rows stay with their agents**\n\n" + table(["dataset", *HEADS, "best alone"], apart),
    ]
    hidden = []
    for name, of in found.items():
        budgets = [[*best([entry for entry in of if entry.method.endswith(f", epsilon={b}")])] for b in (10, 1)]
        if all(budgets):
            firsts = [cell for first, *_ in budgets for cell in (first.method, f"{first.score:.4g}")]
            hidden.append([name, *firsts, f"{alone[name].method}: {alone[name].score:.4g}"])
    if hidden:
        heads = ["dataset", "best, epsilon=10", "score", "best, epsilon=1", "score", "best alone"]
        parts.append("**Who wins with differential privacy**\n\n" + table(heads, hidden))
    return "\n".join(parts)


def filled(page: str) -> str:
    """The page with its tables of winners."""
    return MARK.sub(lambda match: f"{match[1]}\n{winners(page)}\n{match[2]}", page)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--page", type=Path, default=PAGE)
    page = parser.parse_args().page
    page.write_text(filled(page.read_text()))


if __name__ == "__main__":
    main()
