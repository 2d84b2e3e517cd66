"""The rows of the tasks: in this process already, or somewhere else, to be loaded by whoever works on them."""

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
    """What is known of the tasks, and the way to their rows. It can be sent to a worker, which loads its own."""

    #: Has ``members``, ids in the order of weights and covariance, and ``sizes``, the rows of each task.
    found: Any

    @property
    def members(self) -> tuple[Hashable, ...]:
        """Ids, in the order of weights and covariance."""
        return tuple(self.found.members)

    @property
    def sizes(self) -> np.ndarray:
        """Rows of each task."""
        return np.asarray(self.found.sizes)

    def load(self, which: ArrayLike) -> AgentData:
        """The rows of some tasks, by their numbers, with labels as the loss has them; in this order."""
        raise NotImplementedError


class TasksHere(Tasks):
    """Tasks whose rows are an AgentData."""

    def load(self, which: ArrayLike) -> AgentData:
        """The rows of some tasks."""
        data: AgentData = self.found
        return data if np.array_equal(which, np.arange(data.n)) else data.only(which)


class TasksElsewhere(Tasks):
    """Tasks whose rows a survey has seen; two classes are -1 and +1, in their sorted order, and more are numbered."""

    def load(self, which: ArrayLike) -> AgentData:
        """Load and encode the rows of some tasks."""
        table, classes = self.found.load(which), self.found.classes
        y = np.asarray(table.y) if classes is None or len(classes) != 2 else 2.0 * np.asarray(table.y) - 1.0
        data = AgentData.of_codes(table.X, y, table.codes, table.members)
        return data if self.found.names is None else data._like(feature_names=table.columns.names)


@dataclass(frozen=True)
class ChangedTasks(Tasks):
    """The same tasks with other features or labels: each row is changed by whoever loads it."""

    #: Of rows and the numbers of their tasks: it returns the same rows, changed.
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
    """The tasks of an AgentData, or of anything that a :class:`coterie.data.Source` is made of, checked; tasks as they are.

    Parameters
    ----------
    data : AgentData, Source, path, mapping, Ray Dataset, DataFrame or Tasks
    loss : rule
        It says what labels are.
    target, agents : str, optional
        Columns of the labels and the ids, where rows are tables.
    map : callable
        Looks at pieces of a source: :func:`builtins.map`, or workers of a cluster.
    put : callable, optional
        Where rows and functions of a mapping are put, so that what is sent to workers is small.

    Returns
    -------
    Tasks

    Raises
    ------
    DataError
        With all tasks that nothing can be learned from.

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
            "data must be an AgentData, or a mapping of task ids to their rows, a path, a Ray Dataset or a ct.data.Source;"
            f" found {type(data).__name__}"
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
