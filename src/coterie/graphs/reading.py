"""Ties read from a file."""

from __future__ import annotations

from os import PathLike

import numpy as np

from ..data import AgentData
from ..data.readers import ids_like, read_table
from ..errors import DataError
from .graph import Graph


def read_ties(path: str | PathLike[str], everyone: AgentData) -> Graph:
    r"""Read a graph from a table of ties.

    Parameters
    ----------
    path : path
        Of a table with columns ``agent`` and ``peer``, and ``weight`` if it is not 1; as :func:`read_table` reads it.
    everyone : AgentData
        The agents.

    Returns
    -------
    Graph

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder, "ties.csv")
    ...     _ = path.write_text("agent,peer,weight\nbo,anna,0.5\n")
    ...     read_ties(path, AgentData([[1.0], [2.0]], agents=["anna", "bo"])).n_edges
    1
    """
    table = read_table(path, ids=("agent", "peer"))
    missing = [name for name in ("agent", "peer") if name not in table.columns]
    if missing:
        raise DataError(f"{path} has no column {missing[0]!r}: a table of ties has columns agent, peer and weight")
    ends = {name: everyone.numbers(ids_like(table[name], everyone.members)) for name in ("agent", "peer")}
    for name, numbers in ends.items():
        unknown = np.flatnonzero(numbers < 0)
        if unknown.size:
            stranger = table[name].tolist()[unknown[0]]
            raise DataError(f"{path}, row {unknown[0]}: {stranger!r} is not an agent of the data")
    weight = table["weight"].to_numpy(float) if "weight" in table.columns else np.ones(len(table))
    bad = np.flatnonzero(~(np.isfinite(weight) & (weight >= 0)))
    if bad.size:
        raise DataError(f"{path}, row {bad[0]}: weight {weight[bad[0]]:g} must be a finite number >= 0")
    return Graph.from_edges(everyone.n, ends["agent"], ends["peer"], weight)
