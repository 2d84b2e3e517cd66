"""The command line: what ``coterie`` can do.

Exit codes: 0 done; 1 something unforeseen (a bug: please report it); 2 the command was not understood; 3 something
given to it, a file, a column or a number, is not what it must be; 4 an audit failed; 130 interrupted.
"""

from __future__ import annotations

from typing import Annotated

import typer

from .._version import __version__
from . import console, peers
from . import data as real_data
from . import lab as _lab  # noqa: F401 - it adds a command
from .audit import audit
from .demo import demo
from .models import fit, inspect, predict

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    help="Personalised models, learned together: agents exchange models with similar peers, never data.",
    epilog=console.EXIT_CODES,
)
for command in (demo, fit, predict, inspect, audit):
    app.command()(command)
app.add_typer(peers.group, name="group")
app.add_typer(peers.peer, name="peer")
app.registered_commands += peers.app.registered_commands
app.add_typer(real_data.app, name="data")


def main() -> None:
    """Run the command line; turn refusals into one line and an exit code."""
    console.run(app)


def _version(asked: bool) -> None:
    if asked:
        print(f"coterie {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass
