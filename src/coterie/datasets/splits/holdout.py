"""Rows for training and rows for testing, of every agent."""

from __future__ import annotations

import numpy as np

from ..._checks import fraction, generator
from ...data.agent_data import AgentData
from .sizes import apportion

__all__ = ["train_test"]


def train_test(data: AgentData, test: float = 0.25, seed: int | np.random.Generator = 0) -> tuple[AgentData, AgentData]:
    """Some rows of each agent for testing, all others for training.

    Each label has its share of an agent's test rows, up to one row; where an agent has a label once, as all of a
    regression, chance decides. An agent with two rows or more has some of both kinds, and one with a single row trains.

    Parameters
    ----------
    data : AgentData
    test : float
        The part of each agent's rows that is for testing, strictly between 0 and 1.
    seed : int or Generator

    Returns
    -------
    train, test : AgentData
        Of the same members in the same order. Their `origin` is that of `data`.

    Examples
    --------
    >>> import coterie as ct
    >>> data = ct.AgentData(np.ones((12, 1)), y=[0, 1] * 6, agents=["anna"] * 8 + ["bo"] * 4)
    >>> train, test = ct.splits.train_test(data, test=0.25, seed=0)
    >>> train.members == test.members, test.sizes.tolist(), test.rows_of("anna")[1].tolist()
    (True, [2, 1], [0.0, 1.0])
    """
    fraction("test", test)
    rng = generator(seed)
    sizes = data.sizes
    totals = np.minimum(np.maximum(np.rint(test * sizes).astype(np.int64), 1), np.maximum(sizes - 1, 0))
    label = np.zeros(data.n_rows) if data.y is None else data.y
    # Rows of one agent and label side by side, shuffled: the first of them are for testing.
    order = np.lexsort((rng.random(data.n_rows), label, data.owner))
    owner, label = data.owner[order], label[order]
    first = np.flatnonzero(np.r_[True, (owner[1:] != owner[:-1]) | (label[1:] != label[:-1])][: order.size])
    count = np.diff(first, append=order.size)
    taken = apportion(totals, count, owner[first], rng)
    chosen = np.arange(order.size) - np.repeat(first, count) < np.repeat(taken, count)
    tested = np.zeros(data.n_rows, dtype=bool)
    tested[order] = chosen
    return _those(data, ~tested), _those(data, tested)


def _those(data: AgentData, keep: np.ndarray) -> AgentData:
    rows = np.flatnonzero(keep)
    return data._rows(rows, np.bincount(data.owner[rows], minlength=data.n))
