"""Shared parts of all commands: output, progress bars, errors and exit codes.

The exit codes of all commands are defined here only: see :data:`EXIT_CODES`.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console, RenderableType
from rich.markup import escape
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Column

from .._files import plain as plain
from .._progress import progress_bar
from ..errors import CoterieError, DataError, RemovedError

#: Exit codes: invalid input to a command; a failed audit; the admin has removed the peer; a temporary failure, such as
#: a full disk or a port in use.
BAD_INPUT, AUDIT_FAILED, REMOVED, NOT_NOW = 3, 4, 5, 6
#: Exit code 1 is an unexpected error, which should be reported. ``peer check`` follows the convention of monitoring
#: plugins: 1 and 2 are the severity, and 3 means invalid input.
EXIT_CODES = (
    "Exit codes: 0 done, 1 a bug, 2 command not understood, 3 bad input, 4 audit failed, 5 removed from the group, "
    "6 not now (disk, port), 130 interrupted. Of peer check: 0 ok, 1 warning, 2 critical, 3 cannot tell."
)

#: Messages go to standard error, results to standard output.
talk = Console(stderr=True)
out = Console()

Seed = Annotated[int, typer.Option(help="Seed of all random numbers.", min=0)]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as json, and nothing else.")]


def run(app: typer.Typer) -> None:
    """Run a command; report an error in one line, with its exit code."""
    logging.getLogger("coterie").addHandler(_Talk())
    logging.getLogger("coterie").setLevel(logging.INFO)
    try:
        app()
    except CoterieError as error:
        refuse(error)
        sys.exit(REMOVED if isinstance(error, RemovedError) else BAD_INPUT)
    except KeyboardInterrupt:
        talk.print("interrupted")
        sys.exit(130)


def refuse(error: Exception) -> None:
    """Report an error in one line."""
    if "--json" in sys.argv:
        print(json.dumps({"error": str(error), "kind": type(error).__name__}))
    else:
        talk.print(f"[bold red]error:[/] {escape(str(error))}", soft_wrap=True)


class _Talk(logging.Handler):
    """Shows the log messages of the library, such as notes on compilation."""

    def emit(self, record: logging.LogRecord) -> None:
        talk.print(f"[dim]{escape(record.getMessage())}[/]")


def show(result: dict[str, Any], table: RenderableType, as_json: bool) -> None:
    """Print a result as a table or as JSON."""
    if as_json:
        print(json.dumps(result, default=plain))
    else:
        out.print(table, soft_wrap=isinstance(table, str))  # commands in a text must be copied without line breaks


def columns(*left: str, right: Iterable[str] = (), **how: Any) -> list[Column]:
    """Return the columns of a table: words aligned left, numbers right."""
    return [Column(name, **how) for name in left] + [Column(name, justify="right") for name in right]


@contextmanager
def bar(text: str, quiet: bool, known: bool = True, unit: str = "rounds") -> Iterator[Any]:
    """Show the progress bar of a command on standard error, see :func:`coterie.observers.progress_bar`."""
    try:
        with progress_bar(text, known, unit, talk, quiet) as update:
            yield update
    except KeyboardInterrupt:
        talk.print("interrupted: nothing was written")
        raise


@contextmanager
def waiting(text: str, quiet: bool) -> Iterator[None]:
    """Show a spinner with a text and the elapsed time, for work that cannot be counted; it is removed at the end."""
    with Progress(
        SpinnerColumn(),
        TextColumn("{task.description}"),
        TimeElapsedColumn(),
        console=talk,
        transient=True,
        disable=quiet or not talk.is_terminal,
    ) as progress:
        progress.add_task(text, total=None)
        yield


@contextmanager
def until_signal(*numbers: signal.Signals) -> Iterator[threading.Event]:
    """Return an event that Ctrl-C and the given signals set."""
    stop = threading.Event()
    before = {number: signal.signal(number, lambda *_: stop.set()) for number in numbers}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def warnings_said() -> Iterator[None]:
    """Print each warning of the library once, without a source line."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        yield
    for message in dict.fromkeys(str(warning.message) for warning in caught):
        note(message, "warning")


def note(text: str, kind: str = "note") -> None:
    """Print a note beside the result."""
    talk.print(f"[yellow]{kind}:[/] {escape(text)}", soft_wrap=True)


def check_writable(path: Path) -> None:
    """Refuse a path to which a file or folder cannot be written later."""
    ancestor = path
    while not ancestor.exists() and ancestor != ancestor.parent:
        ancestor = ancestor.parent
    if not (ancestor.is_dir() and os.access(ancestor, os.W_OK)):
        raise DataError(f"cannot write to {path}: {ancestor} is not a folder that can be written to")


@contextmanager
def writing(what: str, path: Path) -> Iterator[None]:
    """Report write errors with the name of the content and the path."""
    try:
        yield
    except (OSError, DataError) as error:
        raise DataError(f"cannot write {what} to {path}: {error}") from None


def write_figures(figures: dict[str, Any], folder: Path) -> list[str]:
    """Write figures to a folder under their names; return the paths of the files."""
    from .. import plots  # imported here: most commands draw nothing

    with writing("figures", folder):
        folder.mkdir(parents=True, exist_ok=True)
        for name, figure in figures.items():
            plots.save(figure, folder / name)
    return [str(folder / name) for name in figures]
