"""Labels that some agents have wrong, on purpose: an attack by data, not by letters."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from typing import Any

import numpy as np

from ..errors import DataError
from .agent_data import AgentData


def flip_labels(data: AgentData, agents: Iterable[Hashable], among: Any = None) -> AgentData:
    """The same data, with the labels of some agents turned round.

    The k-th smallest label becomes the k-th largest: -1 and 1 change places, and of classes 0 to 9, 0 becomes 9.

    Parameters
    ----------
    data : AgentData
        With labels that are classes.
    agents : iterable of hashable
        The ids of those who have them wrong.
    among : array_like, optional
        All labels there are. Default: those that the data has.

    Returns
    -------
    AgentData

    Examples
    --------
    >>> import coterie as ct
    >>> data = ct.AgentData([[1.0], [2.0], [3.0]], [1.0, -1.0, 1.0], agents=["ann", "bob", "bob"])
    >>> ct.flip_labels(data, ["bob"]).y
    array([ 1.,  1., -1.])
    """
    if data.y is None:
        raise DataError("the data has no labels to flip")
    labels = np.unique(data.y if among is None else np.asarray(among, float))
    if labels.size > MANY:
        raise DataError(f"{labels.size} different labels are no classes: flip_labels is for at most {MANY}")
    ids = list(agents)
    numbers = data.numbers(ids)
    if np.any(numbers < 0):
        raise DataError(f"agent {ids[int(np.argmin(numbers))]!r} is none of the members of the data")
    wrong = np.isin(data.owner, numbers)
    place = np.searchsorted(labels, data.y[wrong])
    if not np.array_equal(labels[np.minimum(place, labels.size - 1)], data.y[wrong]):
        raise DataError(f"the data has labels that are not among {labels.tolist()}")
    y = np.array(data.y)
    y[wrong] = labels[::-1][place]
    return data._like(y=y)


#: So many different labels may be classes.
MANY = 1000
