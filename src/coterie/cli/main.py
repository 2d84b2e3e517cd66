"""The command line ``coterie``. The modules of a command are imported when it is used, so that help is fast.

Exit codes: :data:`coterie.cli.console.EXIT_CODES`.
"""

from __future__ import annotations

import importlib
from typing import Annotated, Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from .._version import __version__
from . import console


class Later(NamedTuple):
    """A command that is imported when it is used: its place and its help."""

    module: str
    name: str  # of a function, or of a typer.Typer
    help: str


#: All commands. The help here must equal the first line of the command's own help (a test compares them).
COMMANDS = {
    "demo": Later(
        "demo",
        "demo",
        "Tour of the library: life expectancy in 142 countries, with one model for each, learned together.",
    ),
    "fit": Later("models", "fit", "Learn one model for each agent of a table, and save the models."),
    "predict": Later(
        "models", "predict", "Add a column of predictions to a table, each by the model of the row's agent."
    ),
    "inspect": Later(
        "models",
        "inspect",
        "Report on a model: gains of the agents, features that differ, outliers, and the choices of the fit.",
    ),
    "audit": Later(
        "audit",
        "audit",
        "Attack a private method's messages, and test whether they reveal more than the claimed budget allows.",
    ),
    "data": Later("data", "app", "Real datasets: list them, check their files, and convert their originals."),
    "group": Later("peers", "group", "A group of peers, as its admin sees it; and joining one."),
    "peer": Later("peers", "peer", "One real agent on this machine."),
    "relay": Later(
        "peers",
        "run_relay",
        "Pass messages on between peers that cannot reach each other. The relay cannot read the messages.",
    ),
    "watch": Later(
        "watch",
        "watch",
        "Show a peer, a lab or a simulation live, as a web page on this machine. It only reads. Ctrl-C ends it.",
    ),
    "lab": Later(
        "lab",
        "lab_command",
        "Run N real peers on this machine and compare them with the exact optimum; or control a running lab.",
    ),
}


class _Stub(TyperCommand):
    """Placeholder of a command until it is used."""

    def make_context(self, info_name: Any, args: Any, parent: Any = None, **extra: Any) -> Any:
        """Return the context of the command itself."""
        return loaded(str(self.name)).make_context(info_name, args, parent, **extra)


class _Commands(TyperGroup):
    """Group of all commands, none of them imported."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of the commands, in the order of help."""
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return the placeholder of a command."""
        later = COMMANDS.get(cmd_name)
        return None if later is None else _Stub(cmd_name, help=later.help)


def loaded(name: str) -> Any:
    """Import a command."""
    later = COMMANDS[name]
    found = getattr(importlib.import_module(f"{__package__}.{later.module}"), later.name)
    if not isinstance(found, typer.Typer):
        alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        alone.command(name)(found)
        found = alone
    command = get_command(found)
    command.name = name
    return command


app = typer.Typer(
    cls=_Commands,
    add_completion=False,
    invoke_without_command=True,
    pretty_exceptions_enable=False,
    help="Personalised models, learned together: agents exchange models with similar peers, never data.",
    epilog=console.EXIT_CODES,
)


#: Output of ``coterie`` without arguments.
FIRST = f"""\
coterie {__version__}: a model for everyone, learned together.

Three things to try:

  coterie demo           life expectancy in 142 countries, a model for each: seconds, and figures in coterie-demo/
  coterie fit TABLE.csv --agent COLUMN --target COLUMN -o MODEL
                         the same for your table: a model for each shop, patient, sensor ... that a column names
  coterie demo --peers   100 users look for similar ones, and exchange models with them, never data

All commands: coterie --help"""


def main() -> None:
    """Run the command line; report an error in one line, with its exit code."""
    console.run(app)


def _version(asked: bool) -> None:
    if asked:
        print(f"coterie {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    ctx: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    if ctx.invoked_subcommand is None:
        print(FIRST)
