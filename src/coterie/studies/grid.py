"""Studies: one function, a grid of settings, and several seeds."""

from __future__ import annotations

import inspect
import itertools
import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np

from .._digest import digest_of
from .._files import write_atomic
from .._threads import threads
from ..engines.cluster import Cluster, check_cluster
from ..engines.run import Run
from ..errors import DataError, ParameterError, StudyError
from ..evaluation import Evaluation
from .pieces import Failure, Row, Settings, Store, at_work, name_of, worked
from .results import Study, framed
from .sources import fingerprint, versions

#: Name of the file that describes the study in a folder.
RECORD = "study.json"
Job = Callable[..., Any]


def study(
    job: Job,
    grid: Mapping[str, Any],
    seeds: Iterable[int] = (0,),
    *,
    folder: str | os.PathLike[str] | None = None,
    n_jobs: int | None = 1,
    engine: Cluster | None = None,
    progress: Callable[[int, int], None] | None = None,
    fresh: bool = False,
) -> Study:
    """Call a function for every combination of settings and every seed, and put its results in a table.

    Parameters
    ----------
    job : callable
        ``job(**setting, seed=seed)`` returns numbers by name; or a :class:`coterie.Run`, from which the last row of the
        trace is kept; or a :class:`coterie.studies.Evaluation`. For other processes, it must be a function of a module
        or a script.
    grid : mapping
        Values to try for each argument: a list; or, if values do not print well, a mapping of labels to values.
    seeds : iterable of int
    folder : path, optional
        Folder in which each result is stored when it is finished: an interrupted call continues there, with the same
        results. A grid with more values, or more seeds, adds to the folder. Another job, a job whose source has
        changed, or a grid with missing values is refused.
    n_jobs : int, optional
        Number of processes. None or -1 uses one for each core. Results do not depend on it.
    engine : Cluster, optional
        Ray cluster whose tasks call the function, instead of processes.
    progress : callable, optional
        Called with (calls done, calls in all).
    fresh : bool
        Whether to delete the results in the folder.

    Returns
    -------
    Study

    Raises
    ------
    StudyError
        If a call has failed, when all others are done; its attribute ``study`` has the results of the others.

    Examples
    --------
    >>> import coterie as ct
    >>> def job(method, mu, seed):
    ...     task = ct.datasets.linear_classification(n=30, p=20, seed=seed)
    ...     problem = ct.Problem.personalized(task.train, task.graph, mu=mu)
    ...     return ct.evaluate(ct.simulate(problem, method, wakes=1000, seed=seed), problem, task.test)
    >>> found = ct.studies.study(job, {"method": ["cd", "local"], "mu": [0.3, 1.0]}, seeds=range(3))
    >>> found.table("accuracy", rows="mu", columns="method")
    method               cd            local
    mu
    0.3     0.8536 ± 0.0017  0.8319 ± 0.0081
    1.0     0.8860 ± 0.0025  0.8319 ± 0.0081
    """
    names, labelled = _grid(grid)
    numbers = _seeds(seeds)
    if not callable(job):
        raise ParameterError(f"job={job!r} must be a function of the settings and of a seed")
    _check_call(job, names)
    check_cluster(engine, n_jobs=None if n_jobs == 1 else n_jobs)
    count = threads(n_jobs)
    if count > 1 and engine is None:
        _check_importable(job)
    if not (progress is None or callable(progress)):
        raise ParameterError(f"progress={progress!r} must be a function of two numbers")
    store = None if folder is None else _opened(Path(folder), job, names, labelled, numbers, fresh)

    combined = [dict(zip(names, pairs, strict=True)) for pairs in itertools.product(*labelled)]
    asked: list[Settings] = []
    given: list[Settings] = []
    for setting, seed in itertools.product(combined, numbers):
        asked.append({name: label for name, (label, _) in setting.items()} | {"seed": seed})
        given.append({name: value for name, (_, value) in setting.items()} | {"seed": seed})
    rows: list[Row | None] = [None] * len(asked)
    failures: dict[int, Exception] = {}
    seconds, done = 0.0, 0
    with at_work(min(count, len(asked)), engine) as processes:
        for place, found in worked(Measured(job), asked, store, processes, given):
            if isinstance(found, Failure):
                failures[place] = found.error
            else:
                rows[place], seconds = found[0], seconds + found[1]
            done += 1
            if progress is not None:
                progress(done, len(asked))
    frame, values = framed([row for row in rows if row is not None], names)
    failed = tuple((asked[place], failures[place]) for place in sorted(failures))
    result = Study(frame, tuple(names), values, seconds, failed)
    if failed:
        raise _failed(result, len(asked), folder)
    return result


@dataclass(frozen=True)
class Measured:
    """A job whose result is converted to numbers by name."""

    job: Job

    @property
    def home(self) -> str:
        """The module of the job, which a cluster needs."""
        return str(_named(self.job).__module__)

    def __call__(self, **setting: Any) -> Row:
        """Return the numbers of one call."""
        found = self.job(**setting)
        if isinstance(found, Run):
            found = found.trace.iloc[-1].to_dict()
        elif isinstance(found, Evaluation):
            found = found.summary
        if not isinstance(found, Mapping):
            raise ParameterError(f"the job returned {found!r}: numbers by name are needed, a run, or an evaluation")
        for name, value in found.items():
            number = isinstance(value, Real | np.bool_) or value is None
            if not isinstance(name, str) or not number:
                raise ParameterError(f"the job returned {name!r}: {value!r}, which is not a number by name")
        return {
            name: None if value is None else int(value) if _whole(value) else float(value)
            for name, value in found.items()
        }


def _whole(value: Any) -> bool:
    return isinstance(value, bool | np.bool_ | int | np.integer)


def _named(job: Any) -> Any:
    """Return the function inside a partial, or the class of a callable object."""
    while isinstance(job, partial):
        job = job.func
    return job if hasattr(job, "__qualname__") else type(job)


def _failed(result: Study, count: int, folder: Any) -> StudyError:
    first, error = result.failures[0]
    kept = "the attribute `study` of this error has the others"
    if folder is not None:
        kept += f", {folder} keeps them, and the same call works out only what has failed"
    raised = StudyError(
        f"{len(result.failures)} of {count} pieces failed; {name_of(first)}: {type(error).__name__}: {error}; {kept}"
    )
    raised.study, raised.__cause__ = result, error
    return raised


# -- checks -----------------------------------------------------------------------------------------------------------


def _grid(grid: Any) -> tuple[list[str], list[list[tuple[Any, Any]]]]:
    """Return the names of the settings, and for each setting pairs of label and value."""
    if not isinstance(grid, Mapping):
        raise ParameterError(f"grid={grid!r} must be a mapping of names to lists of values")
    names, labelled = [], []
    for name, values in grid.items():
        if not isinstance(name, str) or name == "seed":
            raise ParameterError(
                f"a setting may not be called {name!r}" + (": say seeds=..." if name == "seed" else "")
            )
        if isinstance(values, Mapping):
            pairs = [(str(label), value) for label, value in values.items()]
        elif isinstance(values, Sequence | np.ndarray | range) and not isinstance(values, str):
            pairs = [
                (_label(name, value), value.item() if isinstance(value, np.generic) else value) for value in values
            ]
        else:
            raise ParameterError(f"grid[{name!r}]={values!r} must be a list of values, or a mapping of labels to them")
        texts = [json.dumps(label) for label, _ in pairs]
        if not pairs or len(set(texts)) < len(texts):
            raise ParameterError(f"grid[{name!r}] must hold some values, none of them twice; found {values!r}")
        names.append(name)
        labelled.append(pairs)
    return names, labelled


def _label(name: str, value: Any) -> Any:
    """Return the label of a value in tables and files."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, str | bool | int | float):
        return value
    said = getattr(value, "__name__", None) if inspect.isroutine(value) or inspect.isclass(value) else repr(value)
    if said is None or " at 0x" in said or said == "<lambda>":
        raise ParameterError(
            f"grid[{name!r}] holds {value!r}, which has no name: pass a mapping of labels, {{'a label': value, ...}}"
        )
    return said


def _seeds(seeds: Any) -> list[int]:
    try:
        found = [int(seed) for seed in seeds if not isinstance(seed, str)]
        same = found == list(seeds)
    except (TypeError, ValueError):
        found, same = [], False
    if not same or not found or len(set(found)) < len(found) or min(found) < 0:
        raise ParameterError(f"seeds={seeds!r} must be different whole numbers >= 0, such as range(5)")
    return found


def _check_call(job: Job, names: Sequence[str]) -> None:
    """Refuse a function that does not accept the settings, before any work."""
    try:
        signature = inspect.signature(job)
    except (TypeError, ValueError):
        return
    try:
        signature.bind(**dict.fromkeys([*names, "seed"]))
    except TypeError as error:
        called = ", ".join([*names, "seed"])
        raise ParameterError(f"job{signature} cannot be called with {called} by name: {error}") from None


def _check_importable(job: Job) -> None:
    """Refuse a job that other processes cannot import."""
    named = _named(job)
    typed = named.__module__ == "__main__" and not hasattr(sys.modules["__main__"], "__file__")
    if typed or "<" in named.__qualname__:
        raise ParameterError(
            f"{named.__qualname__} was {'typed in' if typed else 'defined inside a function'}, where other processes "
            "cannot import it from: put it into a module, or leave n_jobs out"
        )


# -- the folder -------------------------------------------------------------------------------------------------------


def _opened(folder: Path, job: Job, names: list[str], labelled: list[Any], seeds: list[int], fresh: bool) -> Store:
    """Return the store of a folder; refuse the folder of another study."""
    now = {
        "job": f"{_named(job).__module__}.{_named(job).__qualname__}",
        "sources": fingerprint(job),
        "versions": versions(),
        "grid": {name: [label for label, _ in pairs] for name, pairs in zip(names, labelled, strict=True)},
        "values": {
            name: {json.dumps(label): digest_of(value) for label, value in pairs}
            for name, pairs in zip(names, labelled, strict=True)
        },
        "seeds": seeds,
    }
    store = Store(folder / "pieces", str(now["sources"]))
    record = folder / RECORD
    if fresh:
        store.forget()
    elif record.exists():
        _check_same(folder, _read(record), now)
    write_atomic(record, json.dumps(now, indent=1).encode(), durable=False)
    return store


def _read(record: Path) -> dict[str, Any]:
    try:
        before = json.loads(record.read_text())
        return {name: before[name] for name in ("job", "sources", "versions", "grid", "values", "seeds")}
    except (OSError, ValueError, KeyError, TypeError):
        raise DataError(f"{record} is damaged: choose another folder, or fresh=True to start again") from None


def _check_same(folder: Path, before: dict[str, Any], now: dict[str, Any]) -> None:
    """Refuse the folder of another study."""
    advice = "choose another folder, or say fresh=True to forget what is there"
    if before["job"] != now["job"]:
        raise DataError(f"{folder} is a study of {before['job']}, not of {now['job']}: {advice}")
    for name, version in now["versions"].items():
        if (found := before["versions"].get(name)) != version:
            raise DataError(f"{folder} was worked out with {name} {found}, and here is {version}: {advice}")
    if before["sources"] != now["sources"]:
        raise DataError(
            f"the source of {now['job']}, or of what it uses, has changed since {folder} was made: {advice}"
        )
    if list(before["grid"]) != list(now["grid"]):
        raise DataError(
            f"{folder} is a study of {', '.join(before['grid']) or 'no settings'}, "
            f"not of {', '.join(now['grid']) or 'none'}: {advice}"
        )
    for name, known in before["values"].items():
        if changed := [label for label, value in now["values"][name].items() if known.get(label, value) != value]:
            raise DataError(f"{name}={json.loads(changed[0])} is another value than it was in {folder}: {advice}")
    for name, values in [*before["grid"].items(), ("seeds", before["seeds"])]:
        wanted = now["seeds"] if name == "seeds" else now["grid"][name]
        if absent := [value for value in values if json.dumps(value) not in map(json.dumps, wanted)]:
            raise DataError(
                f"{folder} is a study with {name}={values!r}, of which {absent!r} is not asked for now; add to them, "
                f"or {advice}"
            )
