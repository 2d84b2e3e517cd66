"""Rows of a source as an estimator fits them on a cluster: workers look at them and load them, and none is here."""

from __future__ import annotations

from functools import partial
from typing import Any

from ..data.sources import as_source, placed
from ..data.sources.survey import deal, survey
from ..multitask.sources import ChangedTasks, TasksElsewhere
from .canonical import by_content
from .per_agent import Prepared
from .task_changes import Encoded
from .task_rows import TaskRows

#: Parts of the tasks for each worker: one that is done early takes another one, and each has room for its part.
PARTS = 4


def surveyed(model: Any, ray: Any, X: Any, y: Any, agents: Any) -> Prepared:
    """What :meth:`coterie.estimators.per_agent.PerAgent._prepared` finds, with all rows on the workers of an engine."""
    engine = model.engine
    spread = partial(engine.map, ray)
    source = placed(as_source(X), ray.put)
    asked = {"target": y, "agents": agents, "labels": model._labels, "drop": False, "owner": type(model).__name__}
    found = survey(source, **asked, map=spread)
    if found.names is None and not found.columns.is_identity:
        # Gaps in arrays, which have no names, are refused, here as in one process.
        found = survey(source, **asked, map=spread, missing="error")
    outputs, fitted = model._seen(found)
    encoded = Encoded(fitted.get("_center", 0.0), fitted.get("_unit", 1.0))
    tasks = ChangedTasks(TasksElsewhere(found), encoded)
    rows = TaskRows(tasks, deal(found.sizes, PARTS * engine.count(ray, found.n)), spread)
    ordered, order = by_content(rows)
    return Prepared(ordered, order, outputs, found.members, fitted, found.agent_column, found.columns)
