"""What all commands share: where they talk, how they show results, and how they refuse.

Exit codes: 0 done; 1 something unforeseen (a bug: please report it); 2 the command was not understood; 3 something
given to it, a file, a column or a number, is not what it must be; 4 an audit failed; 130 interrupted.
"""

from __future__ import annotations

import json
import logging
import sys
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from ..errors import CoterieError

BAD_INPUT = 3
EXIT_CODES = "Exit codes: 0 done, 1 a bug, 2 command not understood, 3 bad input, 4 audit failed, 130 interrupted."

#: Talk goes to standard error, results to standard output.
talk = Console(stderr=True)
out = Console()

AsJson = Annotated[bool, typer.Option("--json", help="Print the result as json, and nothing else.")]


def run(app: typer.Typer) -> None:
    """Run a command; turn refusals into one line and an exit code."""
    logging.getLogger("coterie").addHandler(_Talk())
    logging.getLogger("coterie").setLevel(logging.INFO)
    try:
        app()
    except CoterieError as error:
        if "--json" in sys.argv:
            print(json.dumps({"error": str(error), "kind": type(error).__name__}))
        else:
            talk.print(f"[bold red]error:[/] {escape(str(error))}", soft_wrap=True)
        sys.exit(BAD_INPUT)
    except KeyboardInterrupt:
        talk.print("interrupted")
        sys.exit(130)


class _Talk(logging.Handler):
    """Shows what the library logs, such as that it compiles something."""

    def emit(self, record: logging.LogRecord) -> None:
        talk.print(f"[dim]{escape(record.getMessage())}[/]")


def show(result: dict[str, Any], table: Table | str, as_json: bool) -> None:
    """A result: as a table, or as json."""
    if as_json:
        print(json.dumps(result, default=plain))
    else:
        out.print(table)


def plain(value: Any) -> Any:
    """What json can hold in place of a NumPy number or array, or of a path."""
    return value.tolist() if hasattr(value, "tolist") else str(value)
