"""Ties read from a file."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from os import PathLike

import numpy as np

from ..data.ids import agent_numbers
from ..data.sources.readers import ids_like, read_table
from ..errors import DataError
from .graph import Graph


def read_ties(path: str | PathLike[str], members: Sequence[Hashable]) -> Graph:
    """The graph of a table of ties: columns agent and peer, and weight if it is not 1; of agents with these ids."""
    table = read_table(path, ids=("agent", "peer"))
    missing = [name for name in ("agent", "peer") if name not in table.columns]
    if missing:
        raise DataError(f"{path} has no column {missing[0]!r}: a table of ties has columns agent, peer and weight")
    number = {member: k for k, member in enumerate(members)}
    ends = {name: agent_numbers(ids_like(table[name], members), number) for name in ("agent", "peer")}
    for name, numbers in ends.items():
        unknown = np.flatnonzero(numbers < 0)
        if unknown.size:
            stranger = table[name].tolist()[unknown[0]]
            raise DataError(f"{path}, row {unknown[0]}: {stranger!r} is not an agent of the data")
    weight = table["weight"].to_numpy(float) if "weight" in table.columns else np.ones(len(table))
    bad = np.flatnonzero(~(np.isfinite(weight) & (weight >= 0)))
    if bad.size:
        raise DataError(f"{path}, row {bad[0]}: weight {weight[bad[0]]:g} must be a finite number >= 0")
    return Graph.from_edges(len(members), ends["agent"], ends["peer"], weight)
