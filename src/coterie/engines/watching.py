"""Watchers, which receive the trace of a run while it goes on: see :mod:`coterie.observers`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, runtime_checkable

from ..errors import ParameterError
from .run import Run


@runtime_checkable
class Watcher(Protocol):
    """Receives the rows of a run's trace."""

    def record(self, step: int, measures: Mapping[str, float]) -> None:
        """Receive one row of the trace: the number of wakes, and values by name."""

    def finish(self, run: Run | None) -> None:
        """Receive the end of the run; None if it was interrupted."""


def watchers_of(watch: Any) -> list[Watcher]:
    """Return one or several watchers as a list, checked."""
    given = [] if watch is None else list(watch) if isinstance(watch, Sequence) else [watch]
    for each in given:
        if isinstance(each, type) or not isinstance(each, Watcher):
            raise ParameterError(
                f"watch={each!r} must have record(step, measures) and finish(run), such as "
                "ct.observers.TensorBoard(); a FileRecorder is given as observe="
            )
    return given


class Notifier:
    """Forwards rows and the end of a run to all watchers."""

    def __init__(self, watchers: list[Watcher]):
        self._watchers, self._ended = watchers, False

    def rows(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Forward rows of a trace."""
        for row in rows if self._watchers else ():
            step = int(row["wakes"])
            measures = {str(name): float(value) for name, value in row.items() if name != "wakes"}
            for watcher in self._watchers:
                watcher.record(step, measures)

    def end(self, run: Run | None) -> Any:
        """Forward the end, once; return the run."""
        if not self._ended:
            self._ended = True
            for watcher in self._watchers:
                watcher.finish(run)
        return run


@contextmanager
def watching(watchers: list[Watcher]) -> Iterator[Notifier]:
    """Notify all watchers of the end, also after an error."""
    told = Notifier(watchers)
    try:
        yield told
    except BaseException:
        told.end(None)
        raise
