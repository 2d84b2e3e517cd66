"""Run experiments: pieces run in parallel, and finished pieces are stored, so that interrupted runs can be resumed."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd

from coterie import plots
from coterie._files import plain, write_atomic
from coterie.datasets import sources
from coterie.engines.cluster import Cluster
from coterie.errors import CoterieError, MissingDataError, ParameterError, about
from coterie.studies import sources as sources_of
from coterie.studies.pieces import Failure, Store, at_work, name_of, worked

from ._claims import Claim
from ._experiment import Experiment, Row

#: Default folder of results.
OUTPUT = Path("reproduced")

Progress = Callable[[int, int], None]


@dataclass(frozen=True, repr=False, eq=False)
class Outcome:
    """Results of :func:`reproduce`, and their files. Verdicts of a quick run are only a hint."""

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
    suffix: str = "png",
) -> Outcome:
    """Run an experiment, or the remaining pieces of an interrupted run, and write its figure and its numbers.

    ``NAME.png`` and ``NAME.json`` are written into the folder, finished pieces into ``pieces/``; `fresh` deletes
    finished pieces. Pieces run in `workers` processes of this machine, or as tasks on an `engine`, a cluster.
    `progress` is called with (pieces done, pieces known) at first and after each piece; more pieces may follow. The
    figure is a png, or, by its `suffix`, a pdf or svg.
    """
    if workers < 1:
        raise ParameterError(f"workers={workers}: at least 1 process is needed")
    if suffix not in ("png", "pdf", "svg"):
        raise ParameterError(f"suffix={suffix!r} must be png, pdf or svg")
    if not quick and (absent := experiment.missing):  # a quick run may need less, and loaders say what
        first = sources.missing(sources.source_of(absent[0]))
        raise MissingDataError(f"{experiment.name} needs real data, of which {', '.join(absent)} is missing: {first}")
    started = time.time()
    home = Path(folder)
    store = Store(home / "pieces" / experiment.name, fingerprint(experiment), "quick" if quick else "full")
    if fresh:
        store.forget()
    rows: list[Row] = []
    seconds = 0.0
    with at_work(workers, engine) as processes:
        plan = experiment.plan(quick)
        batch = next(plan)
        while True:
            done = len(rows)
            if progress is not None:
                progress(done, done + len(batch))
            found: list[Row | None] = [None] * len(batch)
            for place, outcome in worked(experiment.work, batch, store, processes):
                if isinstance(outcome, Failure):
                    error = outcome.error
                    raise about(error, name_of(batch[place])) if isinstance(error, CoterieError) else error
                found[place], seconds = outcome[0], seconds + outcome[1]
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
    figure, record = home / f"{name}.{suffix}", home / f"{name}.json"
    plots.save(experiment.draw(rows), figure)
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
        "versions": sources_of.versions(),
        "sources": fingerprint(experiment),
    }
    strict = _strict(json.loads(json.dumps(text, default=plain)))
    write_atomic(record, json.dumps(strict, indent=1, allow_nan=False).encode(), durable=False)
    return Outcome(experiment, quick, rows, claims, tables, seconds, figure, record)


def _strict(value: Any) -> Any:
    """Replace numbers that are not finite by null, because json cannot represent them."""
    if isinstance(value, dict):
        return {name: _strict(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_strict(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


@cache
def fingerprint(experiment: Experiment) -> str:
    """Return a digest of the code that the numbers depend on: compiled code, and the experiment's code in papers/."""
    return sources_of.fingerprint(experiment.work)
