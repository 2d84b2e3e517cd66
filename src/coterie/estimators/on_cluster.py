"""Fitting on a cluster: rows in this process are sent to workers, and rows of a source are read by the workers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from .. import pooling
from .._threads import one_thread
from ..data.columns import Columns
from ..data.ids import agent_codes
from ..data.sources import is_source
from ..data.sources.survey import Survey, survey
from ..data.table import Table
from ..errors import DataError, MismatchError
from ..pooling.rows import Grouped
from .collaborative import check_classes, check_counts
from .models import Populations
from .pooling_workers import Loader, StoredRows, cluster_agents


class Given(NamedTuple):
    """Facts about the rows before they are distributed to workers."""

    columns: Columns
    members: tuple[Any, ...]
    agent_column: str | None
    sizes: np.ndarray  # (n,) number of rows of each agent
    classes: np.ndarray | None
    loader: Callable[[list[np.ndarray]], Loader]  # takes the agents of each shard


class SurveyedRows:
    """Rows of a source, which workers read."""

    def __init__(self, found: Survey, index: np.ndarray, counts: bool):
        self.found, self.index, self.counts = found, index, counts

    def load(self, which: np.ndarray) -> Grouped:
        """Return the rows of these agents; some agents may have none."""
        numbers = self.index[which]
        there = np.flatnonzero(numbers >= 0)
        table = self.found.load(numbers[there])
        y = np.asarray(table.y)
        if self.counts:
            check_counts(y, lambda row: f"agent {table.members[table.codes[row]]!r}: a label")
        return Grouped.of(table.X, y, there[table.codes], len(which), None)


def learn_on_cluster(
    model: Any, X: Any, y: Any, agents: Any, sample_weight: Any, progress: Callable[..., None] | None
) -> tuple[Given, Populations, dict[str, Any]]:
    """Fit partial pooling on the workers of the engine; return facts about rows, models, and attributes to set."""
    engine = model.engine
    with engine.connect() as ray:
        given = (_surveyed if is_source(X) else _read)(ray, model, X, y, agents, sample_weight)
        width, classes = len(given.columns.names), 0 if given.classes is None else len(given.classes)
        if width > pooling.MAX_DENSE_COLUMNS:
            raise MismatchError(
                f"there are {width} columns, and engine= takes at most {pooling.MAX_DENSE_COLUMNS}: choose fewer "
                "columns, or leave engine out"
            )
        workers = cluster_agents(ray, engine, given.loader, given.sizes, width, classes)
        with workers as those, one_thread():
            outputs, counter = classes if classes > 2 else 1, pooling.Counter(progress)
            models = pooling.fit_agents(those, outputs, model._family(), model.design, model._deviations(), counter)
            found: dict[str, Any] = {}
            if classes:
                found |= {"classes_": given.classes, "sharpness_": pooling.sharpness(models, those)}
    return given, Populations(tuple(models)), found


def _read(ray: Any, model: Any, X: Any, y: Any, agents: Any, sample_weight: Any) -> Given:
    """Prepare rows that are in this process."""
    table = Table.learn(X, y, agents, model.members, model.missing, sample_weight, type(model).__name__)
    labels, fitted = model._encode(np.asarray(table.y))
    rows = Grouped.of(table.X, labels, table.codes, len(table.members), table.weight)
    loader = partial(StoredRows.put, ray, rows)
    return Given(table.columns, table.members, table.agent_column, rows.sizes, fitted.get("classes_"), loader)


def _surveyed(ray: Any, model: Any, X: Any, y: Any, agents: Any, sample_weight: Any) -> Given:
    """Prepare rows of a source, which the workers survey once."""
    if sample_weight is not None:
        raise DataError("sample_weight needs rows in this process: leave it out where X is a source of rows")
    labels = "class" if model._kind == "classifier" else "number"
    asked = {"target": y, "agents": agents, "missing": model.missing, "labels": labels}
    found = survey(X, **asked, map=partial(model.engine.map, ray), owner=type(model).__name__)
    if found.classes is not None:
        check_classes(found.classes)
    members, numbers = found.members, np.arange(found.n)
    if model.members is not None:
        numbers, members = agent_codes(list(found.members), model.members)
    index, sizes = np.full(len(members), -1), np.zeros(len(members), dtype=np.int64)
    index[numbers], sizes[numbers] = np.arange(found.n), found.sizes
    rows = SurveyedRows(found, index, model.loss == "poisson")
    return Given(found.columns, members, found.agent_column, sizes, found.classes, lambda shards: rows)
