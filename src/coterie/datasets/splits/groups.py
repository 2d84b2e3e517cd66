"""Clusters: groups of agents that share one shift."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ..._checks import generator, integer, numbers
from ...data.agent_data import AgentData
from ...errors import ParameterError
from .shifts import Shifted
from .sizes import apportion

__all__ = ["clusters"]


def clusters(
    data: AgentData,
    groups: int | Sequence[float],
    shift: Callable[..., Shifted],
    *,
    seed: int | np.random.Generator = 0,
    **how: Any,
) -> Shifted:
    """Put agents into groups at random, and shift each group in its own way.

    Parameters
    ----------
    data : AgentData
    groups : int or sequence of float
        How many groups, as large as each other up to one agent; or their shares of the agents.
    shift : callable
        :func:`feature_shift` or :func:`concept_shift`, or anything like them that takes `group` and `seed`.
    seed : int or Generator
        Of the groups and of the shift.
    **how
        What `shift` takes.

    Returns
    -------
    Shifted
        Its `group` says which group each agent is in.

    Examples
    --------
    Four groups that name the digits differently:

    >>> import coterie as ct
    >>> from sklearn.datasets import load_digits
    >>> data = ct.splits.iid(*load_digits(return_X_y=True), n_agents=20, seed=0)
    >>> found = ct.splits.clusters(data, 4, ct.splits.concept_shift, permute=True, seed=0)
    >>> found
    Shifted(groups=4 (5 agents each), by permute; AgentData(agents=20, rows=1797 (89..90 per agent), ...))
    >>> found.parameters["permute"].shape, np.bincount(found.group).tolist()
    ((4, 10), [5, 5, 5, 5])
    """
    rng = generator(seed)
    shares = numbers("groups", groups) if np.ndim(groups) else np.ones(integer("groups", groups))
    if shares.ndim != 1 or not 1 <= shares.size <= data.n:
        raise ParameterError(f"groups = {groups!r}: expected from 1 to {data.n} groups, as many as there are agents")
    sizes = apportion(np.array([data.n]), shares, np.zeros(shares.size, np.int64), rng)
    if not sizes.all():
        raise ParameterError(f"groups = {groups!r}: group {sizes.argmin()} of {data.n} agents would have none")
    return shift(data, group=rng.permutation(np.repeat(np.arange(shares.size), sizes)), seed=rng, **how)
