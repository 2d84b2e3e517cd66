"""Running an experiment: pieces side by side, each kept when it is done, so that an interrupted run goes on."""

from __future__ import annotations

import ast
import hashlib
import inspect
import json
import math
import os
import platform
import signal
import sys
import textwrap
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import closing, contextmanager
from dataclasses import asdict, dataclass, field
from functools import cache, partial
from importlib.metadata import version
from multiprocessing import active_children, get_context
from pathlib import Path
from typing import Any

import pandas as pd
from threadpoolctl import threadpool_limits

from coterie._files import write_atomic
from coterie._version import __version__
from coterie.cli.console import plain
from coterie.core.compile import digest
from coterie.datasets import sources
from coterie.engines.cluster import Cluster
from coterie.errors import DataError, MissingDataError, ParameterError

from ._claims import Claim
from ._experiment import Experiment, Row

#: Where results go, unless another folder is named.
OUTPUT = Path("reproduced")
#: Packages whose versions are put on record.
PACKAGES = ("numpy", "scipy", "numba", "scikit-learn", "pandas", "matplotlib")

Progress = Callable[[int, int], None]
Settings = dict[str, Any]
#: Pieces as they are finished: the place of each among those asked for, what it found, and in how many seconds.
Pieces = Generator[tuple[int, tuple[Row, float]], None, None]
#: Whoever works out pieces, given an experiment's work and the settings of each.
Workers = Callable[[Callable[..., Row], Sequence[Settings]], Pieces]


@dataclass(frozen=True, repr=False, eq=False)
class Outcome:
    """What :func:`reproduce` found, and where it was written. Verdicts of a quick run are no more than a hint."""

    experiment: Experiment
    quick: bool
    rows: list[Row]
    claims: list[Claim]
    tables: dict[str, pd.DataFrame] = field(default_factory=dict)
    seconds: float = 0.0  # of one core, over all pieces, also of those that an earlier run had finished
    figure: Path = Path()
    record: Path = Path()

    def __repr__(self) -> str:
        lines = [f"{self.experiment.name}: {self.experiment.title}"]
        lines += [f"  {claim.verdict}: {claim.what}: {claim.paper} in the paper, {claim.seen}" for claim in self.claims]
        return "\n".join([*lines, f"  {self.figure}, {self.record}"])


def reproduce(
    experiment: Experiment,
    folder: str | os.PathLike[str] = OUTPUT,
    *,
    quick: bool = False,
    workers: int = 1,
    fresh: bool = False,
    progress: Progress | None = None,
    engine: Cluster | None = None,
) -> Outcome:
    """Run an experiment, or what is left of it, and write its figure and its numbers.

    ``NAME.png`` and ``NAME.json`` go into the folder, finished pieces into its ``pieces/``; `fresh` forgets these.
    Pieces are worked out by so many processes of this machine, or as tasks on an `engine`, a cluster.
    `progress` is called with (pieces done, pieces known of) at first and after each piece: there may be more to come.
    """
    if workers < 1:
        raise ParameterError(f"workers={workers}: at least 1 process is needed")
    if not quick and (absent := experiment.missing):  # a quick run may need less, and loaders say what
        first = sources.missing(sources.source_of(absent[0]))
        raise MissingDataError(f"{experiment.name} needs real data, of which {', '.join(absent)} is missing: {first}")
    started = time.time()
    home = Path(folder)
    store = _Store(home / "pieces", experiment)
    if fresh:
        store.forget(quick)
    rows: list[Row] = []
    seconds = 0.0
    with threadpool_limits(1), _workers(workers, engine) as at_work:
        plan = experiment.plan(quick)
        batch = next(plan)
        while True:
            done = len(rows)
            if progress is not None:
                progress(done, done + len(batch))
            found: list[Row | None] = [None] * len(batch)
            for place, (row, spent) in _worked(experiment, batch, store, at_work, quick):
                found[place], seconds = row, seconds + spent
                if progress is not None:
                    done += 1
                    progress(done, len(rows) + len(batch))
            rows += [row for row in found if row is not None]
            try:
                batch = plan.send([row for row in found if row is not None])
            except StopIteration:
                break
    claims = list(experiment.claims(rows))
    tables = dict(experiment.tables(rows)) if experiment.tables is not None else {}
    name = experiment.name + ("-quick" if quick else "")
    figure, record = home / f"{name}.png", home / f"{name}.json"
    experiment.draw(rows).savefig(draft := home / f".{name}.png", dpi=120)
    draft.replace(figure)
    text = {
        "experiment": experiment.name,
        "title": experiment.title,
        "quick": quick,
        "command": f"python -m papers {experiment.name}{' --quick' if quick else ''}",
        "claims": [asdict(claim) for claim in claims],
        "tables": {title: json.loads(table.to_json(orient="split")) for title, table in tables.items()},
        "data": {name: sources.SOURCES[name].digest for name in experiment.data},
        "seeds": sorted({row["seed"] for row in rows if "seed" in row}),
        "rows": rows,
        "cpu seconds": seconds,
        "started": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(started)),
        "seconds of this run": time.time() - started,
        "versions": _versions(),
        "sources": fingerprint(experiment),
    }
    strict = _strict(json.loads(json.dumps(text, default=plain)))
    write_atomic(record, json.dumps(strict, indent=1, allow_nan=False).encode(), durable=False)
    return Outcome(experiment, quick, rows, claims, tables, seconds, figure, record)


def _strict(value: Any) -> Any:
    """Null in place of numbers that are none: json has no word for them."""
    if isinstance(value, dict):
        return {name: _strict(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_strict(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


@cache
def _versions() -> dict[str, str]:
    return {"coterie": __version__, "python": platform.python_version(), "machine": platform.machine()} | {
        name: version(name) for name in PACKAGES
    }


@cache
def fingerprint(experiment: Experiment) -> str:
    """A digest of what the numbers depend on: compiled code, the experiment's work, and what that uses of papers/."""
    state = hashlib.sha256(digest().encode())
    for text in [*sorted(_used(experiment.work, {})), repr(_versions())]:
        state.update(text.encode())
    return state.hexdigest()[:16]


def _used(thing: Any, seen: dict[Any, str]) -> Iterable[str]:
    """Sources of a function or class, and of the functions, classes and constants of its module that they name."""
    source = textwrap.dedent(inspect.getsource(thing))
    seen[thing.__module__, thing.__qualname__] = source
    scope = vars(inspect.getmodule(thing))
    # All names in the text, those of defaults, decorators and nested functions included.
    for name in {node.id for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Name)} & scope.keys():
        found = inspect.unwrap(scope[name]) if callable(scope[name]) else scope[name]
        if inspect.isfunction(found) or inspect.isclass(found):
            near = found.__module__ == thing.__module__ or found.__module__.startswith(__package__)
            if near and (found.__module__, found.__qualname__) not in seen:
                _used(found, seen)
        elif not inspect.ismodule(found):
            seen[thing.__module__, name] = f"{name} = {found!r}"
    return seen.values()


class _Store:
    """Finished pieces on disk, by what was asked."""

    def __init__(self, folder: Path, experiment: Experiment) -> None:
        self._experiment = experiment
        self._folder = folder / experiment.name
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise DataError(f"cannot write to {folder.parent}: {error.strerror}") from None

    def path(self, settings: dict[str, Any], quick: bool) -> Path:
        """Where a piece is kept: settings and sources are its name."""
        asked = json.dumps([fingerprint(self._experiment), settings], sort_keys=True, default=plain)
        return self._folder / f"{'quick' if quick else 'full'}-{hashlib.sha256(asked.encode()).hexdigest()[:24]}.json"

    def find(self, settings: dict[str, Any], quick: bool) -> tuple[Row, float] | None:
        """What a piece found, and in how many seconds; None if it is not there."""
        try:
            kept = json.loads(self.path(settings, quick).read_text())
        except (OSError, ValueError):
            return None
        return {**settings, **kept["found"]}, kept["seconds"]

    def keep(self, settings: dict[str, Any], quick: bool, found: Row, seconds: float) -> tuple[Row, float]:
        """Keep a piece, and give it back as it will be found."""
        if both := settings.keys() & found.keys():
            raise ParameterError(f"{self._experiment.name} finds what it was given: {', '.join(sorted(both))}")
        text = json.dumps({"found": found, "seconds": seconds}, default=plain)
        write_atomic(self.path(settings, quick), text.encode(), durable=False)
        return {**settings, **json.loads(text)["found"]}, seconds

    def forget(self, quick: bool) -> None:
        """Delete all pieces of one size."""
        for path in self._folder.glob(f"{'quick' if quick else 'full'}-*.json"):
            path.unlink()


def _worked(
    experiment: Experiment,
    batch: Sequence[dict[str, Any]],
    store: _Store,
    workers: Workers,
    quick: bool,
) -> Iterator[tuple[int, tuple[Row, float]]]:
    """The pieces of a batch as they are finished: place in the batch, and (row, seconds)."""
    left = []
    for place, settings in enumerate(batch):
        if (kept := store.find(settings, quick)) is not None:
            yield place, kept
        else:
            left.append(place)
    with closing(workers(experiment.work, [batch[place] for place in left])) as finished:
        for k, (found, seconds) in finished:
            yield left[k], store.keep(batch[left[k]], quick, found, seconds)


def _timed(work: Callable[..., Row], settings: Settings) -> tuple[Row, float]:
    start = time.process_time()
    return work(**settings), time.process_time() - start


def _elsewhere(work: Callable[..., Row], settings: Settings) -> tuple[Row, float]:
    """One piece, in another process."""
    with threadpool_limits(1):
        return _timed(work, settings)


def _deaf() -> None:
    """An interruption is for the process that gave out the pieces: it ends the others."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


@contextmanager
def _workers(count: int, engine: Cluster | None) -> Iterator[Workers]:
    """Whoever works out the pieces: a cluster, some processes, or this one."""
    if engine is not None:
        with engine.connect() as ray:
            yield partial(_on_cluster, engine, ray)
    elif count > 1:
        with _pool(count) as pool:
            yield partial(_in_pool, pool)
    else:
        yield _here


def _here(work: Callable[..., Row], pieces: Sequence[Settings]) -> Pieces:
    for k, settings in enumerate(pieces):
        yield k, _timed(work, settings)


def _in_pool(pool: ProcessPoolExecutor, work: Callable[..., Row], pieces: Sequence[Settings]) -> Pieces:
    asked = {pool.submit(_elsewhere, work, settings): k for k, settings in enumerate(pieces)}
    for answer in as_completed(asked):
        yield asked[answer], answer.result()


def _on_cluster(engine: Cluster, ray: Any, work: Callable[..., Row], pieces: Sequence[Settings]) -> Pieces:
    # papers/ is not installed: its code travels with the work.
    ray.cloudpickle.register_pickle_by_value(package := sys.modules[__package__])
    try:
        with closing(engine.as_completed(ray, partial(_elsewhere, work), pieces, name=_name)) as finished:
            yield from finished
    finally:
        ray.cloudpickle.unregister_pickle_by_value(package)


def _name(settings: Settings) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in settings.items())


@contextmanager
def _pool(workers: int) -> Iterator[ProcessPoolExecutor]:
    others = set(active_children())
    pool = ProcessPoolExecutor(workers, mp_context=get_context("spawn"), initializer=_deaf)
    try:
        yield pool
    except BaseException:
        for process in set(active_children()) - others:  # nobody waits for the pieces they are at
            process.terminate()
        raise
    finally:
        pool.shutdown(cancel_futures=True)
