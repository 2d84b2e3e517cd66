"""Pieces of work, done in processes of this machine or as tasks of a cluster, and stored when they are finished."""

from __future__ import annotations

import hashlib
import json
import signal
import sys
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing, contextmanager
from dataclasses import dataclass
from functools import partial
from multiprocessing import active_children, get_context
from pathlib import Path
from typing import Any

from .._files import plain, write_atomic
from .._threads import one_thread
from ..engines.cluster import Cluster
from ..errors import ClusterError, CoterieError, DataError, ParameterError, StudyError

#: Settings and results of a piece, in one dictionary that JSON can hold.
Row = dict[str, Any]
Settings = dict[str, Any]
Work = Callable[..., Row]


@dataclass(frozen=True)
class Failure:
    """Result of a piece that has raised an error."""

    error: Exception


#: Results of a piece, and its CPU seconds.
Found = tuple[Row, float]
#: Pieces in the order in which they finish: the index of each, and its result.
Pieces = Generator[tuple[int, Found | Failure], None, None]
#: A function that does pieces, given the work and the arguments of each.
Workers = Callable[[Work, Sequence[Settings]], Pieces]


def name_of(settings: Mapping[str, Any]) -> str:
    """Name a piece in an error."""
    return ", ".join(f"{name}={value!r}" for name, value in settings.items())


class Store:
    """Finished pieces on disk, in files named by the settings and the fingerprint of the work."""

    def __init__(self, folder: Path, fingerprint: str, prefix: str = "piece") -> None:
        self._folder, self._fingerprint, self._prefix = folder, fingerprint, prefix
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DataError(f"cannot write to {folder}: {error.strerror}") from None

    def path(self, settings: Settings) -> Path:
        """Return the file of a piece."""
        asked = json.dumps([self._fingerprint, settings], sort_keys=True, default=plain)
        return self._folder / f"{self._prefix}-{hashlib.sha256(asked.encode()).hexdigest()[:24]}.json"

    def find(self, settings: Settings) -> Found | None:
        """Return the stored result of a piece; None if it is missing or damaged."""
        try:
            kept = json.loads(self.path(settings).read_text())
            return {**settings, **kept["found"]}, float(kept["seconds"])
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def keep(self, settings: Settings, found: Found) -> Found:
        """Store a piece, and return it as it will be read."""
        text, row = in_words(settings, found)
        write_atomic(self.path(settings), text.encode(), durable=False)
        return row

    def forget(self) -> None:
        """Delete all pieces."""
        for path in self._folder.glob(f"{self._prefix}-*.json"):
            path.unlink()


def in_words(settings: Settings, found: Found) -> tuple[str, Found]:
    """Return a piece as JSON, and as it is read from JSON."""
    values, seconds = found
    if both := settings.keys() & values.keys():
        raise ParameterError(
            f"the job returned {', '.join(sorted(both))}, which is one of its settings: return it under another name"
        )
    text = json.dumps({"found": values, "seconds": seconds}, default=plain)
    return text, ({**settings, **json.loads(text)["found"]}, seconds)


def worked(
    work: Work,
    asked: Sequence[Settings],
    store: Store | None,
    workers: Workers,
    given: Sequence[Settings] | None = None,
) -> Iterator[tuple[int, Found | Failure]]:
    """Generate pieces in the order in which they finish, stored ones first: index, and row with seconds, or failure.

    A piece is identified by its entry in `asked`; `given` are the arguments, if they are more than JSON can hold.
    """
    given = asked if given is None else given
    left = []
    for place, settings in enumerate(asked):
        kept = None if store is None else store.find(settings)
        if kept is not None:
            yield place, kept
        else:
            left.append(place)
    with closing(workers(work, [given[place] for place in left])) as finished:
        for k, found in finished:
            settings = asked[left[k]]
            if not isinstance(found, Failure):
                try:
                    found = in_words(settings, found)[1] if store is None else store.keep(settings, found)
                except ParameterError as error:
                    found = Failure(error)
            yield left[k], found


# -- workers ----------------------------------------------------------------------------------------------------------


def _attempt(work: Work, settings: Settings) -> Found | Failure:
    start = time.process_time()
    try:
        return work(**settings), time.process_time() - start
    except Exception as error:
        return Failure(error)


def _elsewhere(work: Work, settings: Settings) -> Found | Failure:
    """Do one piece in another process; other errors than coterie's become text, as they may not be picklable."""
    with one_thread(None):
        found = _attempt(work, settings)
    if isinstance(found, Failure) and not isinstance(found.error, CoterieError):
        return Failure(StudyError(f"{type(found.error).__name__}: {found.error}"))
    return found


def _deaf() -> None:
    """Ignore interruptions in a worker: the main process handles them, and ends the workers."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


@contextmanager
def at_work(count: int, engine: Cluster | None) -> Iterator[Workers]:
    """Return a function that does pieces: on a cluster, in several processes, or in this one."""
    with one_thread(None):
        if engine is not None:
            with engine.connect() as ray:
                yield partial(_on_cluster, engine, ray)
        elif count > 1:
            with _pool(count) as pool:
                yield partial(_in_pool, pool)
        else:
            yield _here


def _here(work: Work, pieces: Sequence[Settings]) -> Pieces:
    for k, settings in enumerate(pieces):
        yield k, _attempt(work, settings)


def _in_pool(pool: ProcessPoolExecutor, work: Work, pieces: Sequence[Settings]) -> Pieces:
    died = Failure(
        ClusterError(
            "a worker process has died: it was killed, ran out of memory, or could not import the script, which must "
            'do its work under if __name__ == "__main__"'
        )
    )
    asked: dict[Future[Found | Failure], int] = {}
    for k, settings in enumerate(pieces):
        try:
            asked[pool.submit(_elsewhere, work, settings)] = k
        except BrokenProcessPool:
            yield k, died
    for answer in as_completed(asked):
        try:
            yield asked[answer], answer.result()
        except BrokenProcessPool:
            yield asked[answer], died


def _on_cluster(engine: Cluster, ray: Any, work: Work, pieces: Sequence[Settings]) -> Pieces:
    top = sys.modules.get(getattr(work, "home", work.__module__).partition(".")[0])
    # Modules that may not be installed on the cluster are sent with the work, unless the user has registered them.
    known = {"__main__", "coterie", *ray.cloudpickle.list_registry_pickle_by_value()}
    travels = top is not None and top.__name__ not in known
    if travels:
        ray.cloudpickle.register_pickle_by_value(top)
    try:
        with closing(engine.as_completed(ray, partial(_elsewhere, work), pieces, name=name_of)) as finished:
            yield from finished
    finally:
        if travels:
            ray.cloudpickle.unregister_pickle_by_value(top)


@contextmanager
def _pool(workers: int) -> Iterator[ProcessPoolExecutor]:
    others = set(active_children())
    pool = ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=_deaf)
    try:
        yield pool
    except BaseException:
        for process in set(active_children()) - others:  # the pieces in progress are abandoned
            process.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)
