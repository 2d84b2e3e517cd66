"""What all commands share: where they talk, how they show results, and how they refuse.

The exit codes of all commands are here, and nowhere else: see :data:`EXIT_CODES`.
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

#: Something given to a command, a file, a column or a number, is not what it must be; an audit failed; the admin has
#: removed the peer; and what was asked for cannot be done now, and may be later: a full disk, a port that is taken.
BAD_INPUT, AUDIT_FAILED, REMOVED, NOT_NOW = 3, 4, 5, 6
#: 1 is something unforeseen: please report it. ``peer check`` speaks the language of monitoring: 1 and 2 are how bad it
#: is, and 3 is the same as elsewhere.
EXIT_CODES = (
    "Exit codes: 0 done, 1 a bug, 2 command not understood, 3 bad input, 4 audit failed, 5 removed from the group, "
    "6 not now (disk, port), 130 interrupted. Of peer check: 0 ok, 1 warning, 2 critical, 3 cannot tell."
)

#: Talk goes to standard error, results to standard output.
talk = Console(stderr=True)
out = Console()

Seed = Annotated[int, typer.Option(help="Seed of everything random.", min=0)]
AsJson = Annotated[bool, typer.Option("--json", help="Print the result as json, and nothing else.")]


def run(app: typer.Typer) -> None:
    """Run a command; turn refusals into one line and an exit code."""
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
    """Say in one line what is wrong."""
    if "--json" in sys.argv:
        print(json.dumps({"error": str(error), "kind": type(error).__name__}))
    else:
        talk.print(f"[bold red]error:[/] {escape(str(error))}", soft_wrap=True)


class _Talk(logging.Handler):
    """Shows what the library logs, such as that it compiles something."""

    def emit(self, record: logging.LogRecord) -> None:
        talk.print(f"[dim]{escape(record.getMessage())}[/]")


def show(result: dict[str, Any], table: RenderableType, as_json: bool) -> None:
    """A result: as a table, or as json."""
    if as_json:
        print(json.dumps(result, default=plain))
    else:
        out.print(table, soft_wrap=isinstance(table, str))  # commands in a text are to be copied whole


def columns(*left: str, right: Iterable[str] = (), **how: Any) -> list[Column]:
    """The columns of a table: words to the left, numbers to the right."""
    return [Column(name, **how) for name in left] + [Column(name, justify="right") for name in right]


@contextmanager
def bar(text: str, quiet: bool, known: bool = True, unit: str = "rounds") -> Iterator[Any]:
    """The progress bar of a command: :func:`coterie.observers.progress_bar`, on standard error."""
    try:
        with progress_bar(text, known, unit, talk, quiet) as update:
            yield update
    except KeyboardInterrupt:
        talk.print("interrupted: nothing was written")
        raise


@contextmanager
def waiting(text: str, quiet: bool) -> Iterator[None]:
    """Say what is being done, and for how long it has been, while nothing can be counted; nothing is left of it."""
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
    """Set by Ctrl-C, and by the other signals that want a process to end."""
    stop = threading.Event()
    before = {number: signal.signal(number, lambda *_: stop.set()) for number in numbers}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def warnings_said() -> Iterator[None]:
    """Say what the library warns of, once, without a source line."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        yield
    for message in dict.fromkeys(str(warning.message) for warning in caught):
        note(message, "warning")


def note(text: str, kind: str = "note") -> None:
    """Say something beside the result."""
    talk.print(f"[yellow]{kind}:[/] {escape(text)}", soft_wrap=True)


def check_writable(path: Path) -> None:
    """Refuse early where a folder or file cannot be made later."""
    ancestor = path
    while not ancestor.exists() and ancestor != ancestor.parent:
        ancestor = ancestor.parent
    if not (ancestor.is_dir() and os.access(ancestor, os.W_OK)):
        raise DataError(f"cannot write to {path}: {ancestor} is not a folder that can be written to")


@contextmanager
def writing(what: str, path: Path) -> Iterator[None]:
    """Say what could not be written where."""
    try:
        yield
    except (OSError, DataError) as error:
        raise DataError(f"cannot write {what} to {path}: {error}") from None


def write_figures(figures: dict[str, Any], folder: Path) -> list[str]:
    """Write figures to a folder under their names; the paths of the files."""
    from .. import plots  # most commands draw nothing

    with writing("figures", folder):
        folder.mkdir(parents=True, exist_ok=True)
        for name, figure in figures.items():
            plots.save(figure, folder / name)
    return [str(folder / name) for name in figures]
