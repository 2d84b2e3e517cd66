"""Those who are told what a run does while it goes on: see :mod:`coterie.observers`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, runtime_checkable

from ..errors import ParameterError
from .run import Run


@runtime_checkable
class Watcher(Protocol):
    """What is told of a run."""

    def record(self, step: int, measures: Mapping[str, float]) -> None:
        """One row of the trace: after so many wakes, numbers by name."""

    def finish(self, run: Run | None) -> None:
        """The end of the run; None if it was broken off."""


def watchers_of(watch: Any) -> list[Watcher]:
    """One who watches, or several; checked."""
    given = [] if watch is None else list(watch) if isinstance(watch, Sequence) else [watch]
    for each in given:
        if isinstance(each, type) or not isinstance(each, Watcher):
            raise ParameterError(
                f"watch={each!r} must have record(step, measures) and finish(run), such as ct.observers.TensorBoard()"
            )
    return given


class Told:
    """Tells all who watch."""

    def __init__(self, watchers: list[Watcher]):
        self._watchers, self._ended = watchers, False

    def rows(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Rows of a trace."""
        for row in rows if self._watchers else ():
            step = int(row["wakes"])
            measures = {str(name): float(value) for name, value in row.items() if name != "wakes"}
            for watcher in self._watchers:
                watcher.record(step, measures)

    def end(self, run: Run | None) -> Any:
        """The end, once; gives back the run."""
        if not self._ended:
            self._ended = True
            for watcher in self._watchers:
                watcher.finish(run)
        return run


@contextmanager
def watching(watchers: list[Watcher]) -> Iterator[Told]:
    """Whoever watches is told of the end, also if there is an error."""
    told = Told(watchers)
    try:
        yield told
    except BaseException:
        told.end(None)
        raise
