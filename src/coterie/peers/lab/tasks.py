"""What the peers of a lab learn: the rows of each peer, the graph, and the fields of the charter."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ...errors import DataError, ParameterError

if TYPE_CHECKING:
    import pandas as pd

    from ...graphs import Graph

#: Default wakes of a peer per second.
WAKES_PER_SECOND = 5.0


class LabTask(NamedTuple):
    """The learning task of a lab."""

    fields: dict[str, Any]  # fields of the charter
    agents: list[Any]  # names of the agents
    frames: list[pd.DataFrame]  # the rows of each peer
    unseen: list[pd.DataFrame] | None  # rows on which models are scored
    graph: Graph | None  # None: edges to the agents with the nearest local models
    neighbours: int


def synthetic(n: int, features: int = 20, seed: int = 0, neighbours: int = 10) -> LabTask:
    """Return a task of linear classification, in which some agents are alike
    (:func:`coterie.datasets.linear_classification`).

    Each peer keeps its `neighbours` heaviest edges of the data set; an edge stays if one of its ends keeps it.
    """
    import pandas as pd

    from ...datasets import linear_classification

    rows = (10, 100)
    made = linear_classification(n=n, p=features, seed=seed, rows=rows)
    columns = [f"x{k}" for k in range(features)]

    def frames(data: Any) -> list[pd.DataFrame]:
        return [
            pd.DataFrame(data.X[a:b], columns=columns).assign(y=data.y[a:b].astype(int))
            for a, b in zip(data.start[:-1], data.start[1:], strict=True)
        ]

    fields = {"features": columns, "target": "y", "labels": ["-1", "1"], "intercept": False, "max_rows": rows[1]}
    graph = _heaviest(made.graph, neighbours)
    return LabTask(fields, list(range(n)), frames(made.train), frames(made.test), graph, neighbours)


def _heaviest(graph: Graph, count: int) -> Graph:
    """Return the edges that are among the `count` heaviest of at least one of their ends."""
    from ...graphs import Graph

    W = graph.W.toarray()
    order = np.argsort(-W, axis=1, kind="stable")
    kept = np.zeros(W.shape, bool)
    np.put_along_axis(kept, order[:, :count], True, axis=1)
    return Graph(np.where(kept | kept.T, W, 0.0))


def from_table(
    table: Path, agent: str, target: str, n: int | None = None, edges: Path | None = None, neighbours: int = 10
) -> LabTask:
    """Return a task with one peer for each agent of a table, or for the first ``n`` of them.

    A target with two values has classes, one with more holds numbers. All other columns are features, which are scaled
    to mean 0 and variance 1; in a lab the scaling is public. Without a file of edges, agents with the nearest local
    models are connected.
    """
    import pandas as pd

    from ...data.frames import split_frame
    from ...data.ids import agent_codes
    from ...data.sources.readers import read_table
    from ...graphs.builders import read_edges
    from ..model.tables import spelt

    if agent == target:
        raise ParameterError(f"--agent and --target are both {agent!r}: they must be two columns")
    frame = read_table(table)
    features, [ids, y] = split_frame(frame, agent, target)
    for name in features.columns:
        if not pd.api.types.is_numeric_dtype(features[name]):
            raise DataError(f"{table}: column {name!r} does not hold numbers: turn it into numbers, or leave it out")
    owner, members = agent_codes(ids)
    if n is not None and n > len(members):
        raise ParameterError(f"{n} peers: {table} has rows of {len(members)} agents only")
    classes = sorted({spelt(value) for value in y.unique()})
    if len(classes) != 2 and not pd.api.types.is_numeric_dtype(y):
        raise DataError(f"column {target!r} of {table} has {len(classes)} classes: peers know two, or numbers")
    values = features.to_numpy(float)
    spread = values.std(axis=0)
    number = len(members) if n is None else n
    fields = {
        "features": [str(name) for name in features.columns],
        "target": target,
        "labels": classes if len(classes) == 2 else None,
        "center": values.mean(axis=0).tolist(),
        "scale": np.where(spread > 0, spread, 1.0).tolist(),
        "max_rows": int(np.bincount(owner)[:number].max()),
    }
    graph = None
    if edges is not None:
        from ...graphs import Graph

        graph = Graph(read_edges(edges, members).W[:number, :number])
    rows = frame.drop(columns=agent)
    frames = [rows[owner == i] for i in range(number)]
    return LabTask(fields, list(members[:number]), frames, None, graph, neighbours)


def charter_fields(
    method: str = "cd",
    *,
    classes: bool = True,
    coupling: float | None = None,
    rate: float = WAKES_PER_SECOND,
    learn: bool = False,
    epsilon: float | None = None,
) -> dict[str, Any]:
    """Return the fields of a charter that do not concern the data. ``learn`` learns the graph; ``epsilon`` is for
    private peers.
    """
    from ...problem.coupling import mu_of
    from ..group.charter import usual_loss, usual_objective

    objective = usual_objective(method, epsilon is not None)
    if coupling is None:
        coupling = mu_of(3.0, objective)  # mu = 3; mu_of is its own inverse
    return {
        "method": method,
        "objective": objective,
        "loss": usual_loss(method, classes, epsilon is not None),
        "coupling": coupling,
        "rate": rate,
        "trim": 0.0,  # the exact optimum is not trimmed
        "messages_per_second": max(50.0, 25.0 * rate),
        "learned": {"lam": 1.0, "kappa": 3, "every": 10.0, "sampling": "shuffle"} if learn else None,
        "privacy": None if epsilon is None else {"epsilon": epsilon, "delta": 1e-5, "clip": 1.0, "row_norm": 1.0},
    }
