"""The rows of the tasks, in the memory of this process, or in a source from which workers load them."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ..core.losses import SIGNS
from ..data import AgentData
from ..data.frames import is_frame
from ..data.sources import as_source, is_source, placed
from ..data.sources.survey import survey
from ..errors import DataError, MismatchError
from .worker import check_tasks


@dataclass(frozen=True)
class Tasks:
    """Ids and sizes of tasks, and a method that loads their rows; can be sent to workers."""

    #: Object with ``members``, ids in the order of weights and covariance, and ``sizes``, numbers of rows.
    found: Any

    @property
    def members(self) -> tuple[Hashable, ...]:
        """Ids of the tasks, in the order of weights and covariance."""
        return tuple(self.found.members)

    @property
    def sizes(self) -> np.ndarray:
        """Number of rows of each task."""
        return np.asarray(self.found.sizes)

    def load(self, which: ArrayLike) -> AgentData:
        """Return the rows of the tasks with the numbers `which`, in this order, with labels as the loss needs them."""
        raise NotImplementedError


class TasksHere(Tasks):
    """Tasks with rows in an AgentData."""

    def load(self, which: ArrayLike) -> AgentData:
        """Return the rows of some tasks."""
        data: AgentData = self.found
        return data if np.array_equal(which, np.arange(data.n)) else data.only(which)


class TasksElsewhere(Tasks):
    """Tasks with rows in a surveyed source; two classes are encoded as -1 and +1, in sorted order, more as numbers."""

    def load(self, which: ArrayLike) -> AgentData:
        """Load and encode the rows of some tasks."""
        table, classes = self.found.load(which), self.found.classes
        y = np.asarray(table.y) if classes is None or len(classes) != 2 else 2.0 * np.asarray(table.y) - 1.0
        data = AgentData.of_codes(table.X, y, table.codes, table.members)
        return data if self.found.names is None else data._like(feature_names=table.columns.names)


@dataclass(frozen=True)
class ChangedTasks(Tasks):
    """Tasks whose features or labels are changed by a function when they are loaded."""

    #: Function of the rows and the numbers of their tasks that returns changed rows.
    change: Callable[[AgentData, np.ndarray], AgentData]

    def load(self, which: ArrayLike) -> AgentData:
        """Load the rows of some tasks, and change them."""
        return self.change(self.found.load(which), np.asarray(which))


def tasks_of(
    data: Any,
    loss: Any,
    target: str | None = "y",
    agents: str | None = None,
    *,
    map: Callable[[Callable[[Any], Any], Iterable[Any]], Iterable[Any]] = builtins.map,
    put: Callable[[Any], Any] | None = None,
) -> Tasks:
    """Return the checked tasks of an AgentData or a :class:`coterie.data.Source`; Tasks are returned unchanged.

    Parameters
    ----------
    data : AgentData, Source, path, mapping, Ray Dataset, DataFrame or Tasks
    loss : rule
        Loss, which determines the encoding of labels.
    target, agents : str, optional
        Columns of the labels and the ids, if rows are tables.
    map : callable
        Applies a function to the pieces of a source: :func:`builtins.map`, or a map over workers of a cluster.
    put : callable, optional
        Stores rows and functions of a mapping on a cluster, so that messages to workers are small.

    Returns
    -------
    Tasks

    Raises
    ------
    DataError
        If the rows of some tasks cannot be used; the message names all of these tasks.

    Examples
    --------
    >>> import coterie as ct
    >>> rows = {"north": ([[1.0], [2.0]], ["no", "yes"]), "south": ([[3.0], [4.0]], ["yes", "no"])}
    >>> tasks = tasks_of(rows, ct.Logistic())
    >>> tasks.members, tasks.sizes, tasks.load([1]).y
    (('north', 'south'), array([2, 2]), array([ 1., -1.]))
    """
    if not hasattr(loss, "conjugate"):
        raise MismatchError(f"{loss!r} has no conjugate, and so no dual: choose another loss")
    if isinstance(data, AgentData):
        check_tasks(data, loss)
        return TasksHere(data)
    if not is_source(data) and not is_frame(data):
        if isinstance(data, Tasks):
            return data
        raise DataError(
            "data must be an AgentData, or a mapping of task ids to their rows, a path, a Ray Dataset or a "
            f"ct.data.Source; found {type(data).__name__}"
        )
    source = as_source(data)
    if put is not None:
        source = placed(source, put)
    signs = loss.labels == SIGNS
    found = survey(
        source,
        target=target,
        agents=agents,
        labels="class" if signs else "number",
        drop=False,  # a constant feature is an intercept
        map=map,
        owner="relationship",
    )
    if signs and found.classes is not None and len(found.classes) != 2:
        few = ", ".join(repr(each) for each in found.classes.tolist()[:5]) + (", ..." if len(found.classes) > 5 else "")
        raise DataError(
            f"the labels are of {len(found.classes)} classes, {few}; {loss!r} needs two: use"
            " ct.RelationshipClassifier, which learns each against the rest"
        )
    return TasksElsewhere(found)
