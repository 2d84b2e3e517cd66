"""A progress bar for functions with an argument ``progress``."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


@contextmanager
def progress_bar(
    text: str, known: bool = True, unit: str = "rounds", console: Console | None = None, quiet: bool = False
) -> Iterator[Callable[..., None]]:
    """Show a progress bar: pass the function that the context manager returns as ``progress``.

    Parameters
    ----------
    text : str
        Description of the work.
    known : bool
        Whether the total amount of work is known: the bar then shows the total and the remaining time. For work that
        ends at convergence, as in ``fit``, the bar shows the amount of work done and the elapsed time.
    unit : str
        Unit of the amount of work, if the total is not known.
    console : rich.console.Console, optional
        Console of the bar. Default: standard error. If the console is not a terminal, only the end is shown.
    quiet : bool
        Show nothing.

    Returns
    -------
    context manager
        Returns a function of (done, total).

    Examples
    --------
    >>> import coterie as ct
    >>> problem = ct.Problem.propagation([[0.0], [1.0]], ct.graphs.complete(2))
    >>> with ct.observers.progress_bar("simulating") as progress:
    ...     run = ct.simulate(problem, "propagation", wakes=100, seed=0, progress=progress)
    >>> run.wakes
    100
    """
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    counted = (
        (MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("left:"), TimeRemainingColumn())
        if known
        else (TextColumn(f"{{task.completed:,.0f}} {unit}"), TimeElapsedColumn())
    )
    progress = Progress(
        TextColumn("{task.description}"), BarColumn(), *counted, console=console or Console(stderr=True), disable=quiet
    )
    task = progress.add_task(text, total=None)

    def update(done: float, total: float = 0) -> None:
        progress.start()
        progress.update(task, completed=done, total=total if known else None)

    try:
        yield update
        done = max(progress.tasks[0].completed, 1)
        progress.update(task, total=done, completed=done)
    finally:
        if progress.live.is_started:  # else it would print an empty line
            progress.stop()
