"""Rows grouped by agent: ragged, contiguous, checked once and read-only from then on.

:class:`AgentData` takes arrays, SciPy sparse matrices, pandas and polars frames, refuses what is not a finite number by
naming the row, the column and the agent, and stores the rows of an agent side by side, so that what runs behind it can
trust its input and slice it.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from ..errors import DataError
from .frames import hint, split_frame
from .ids import agent_codes, agent_numbers
from .matrix import as_features, as_labels, nonfinite

__all__ = ["AgentData"]

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


@dataclass(frozen=True, init=False, repr=False, eq=False)
class AgentData:
    """Rows grouped by agent.

    Parameters
    ----------
    X : array-like, sparse matrix or DataFrame of shape (rows, p)
        Features: finite numbers or booleans. The frame may come from pandas or from polars; its columns
        named by `y` and `agents` are not features.
    y : array-like of shape (rows,) or column name, optional
        Labels: finite numbers or booleans. None for unlabelled points. Matched with `X` by position,
        like `agents`; the index of a Series plays no role.
    agents : sequence of shape (rows,) or column name, optional
        The agent each row belongs to: any hashable id. None gives all rows to one agent, 0.
    members : sequence, optional
        Every agent, in the order in which they are numbered, including those without rows. By default
        the distinct ids, sorted if they can be and otherwise in order of appearance.

    Attributes
    ----------
    X : ndarray of shape (n_rows, p) or csr_array
        Features, float64; C-contiguous, or CSR with sorted indices and without duplicates.
    y : ndarray of shape (n_rows,) or None
        Labels, float64.
    members : tuple
        Id of each agent.
    start : ndarray of shape (n + 1,)
        The rows of agent ``k`` are ``start[k]:start[k + 1]``.
    sizes : ndarray of shape (n,)
        How many rows each agent has.
    owner : ndarray of shape (n_rows,)
        Number of the agent each stored row belongs to.
    origin : ndarray of shape (n_rows,)
        Position of each stored row in the input; rows of one agent keep their order. A result ``r`` of
        the stored rows is put back in the order of the input by ``out[data.origin] = r``.
    feature_names : tuple of str or None
        Columns of the frame, None if `X` was not a frame.

    Raises
    ------
    DataError
        If anything is missing, infinite, not a number, of the wrong length or given twice.

    Examples
    --------
    >>> data = AgentData([[1.0], [2.0], [3.0]], y=[0, 1, 1], agents=["bo", "anna", "bo"])
    >>> data
    AgentData(agents=2, rows=3 (1..2 per agent), features=1, dense, labelled)
    >>> data.members, data.start, data.origin
    (('anna', 'bo'), array([0, 1, 3]), array([1, 0, 2]))
    >>> data.X[data.start[1] : data.start[2]].ravel()
    array([1., 3.])

    With a data frame, labels and agents may be named columns:

    >>> import pandas as pd
    >>> frame = pd.DataFrame({"who": ["bo", "anna"], "age": [31, 27], "ill": [True, False]})
    >>> AgentData(frame, y="ill", agents="who").feature_names
    ('age',)
    """

    X: Any
    y: Floats | None
    members: tuple[Hashable, ...]
    start: Integers
    sizes: Integers
    owner: Integers
    origin: Integers
    feature_names: tuple[str, ...] | None

    def __init__(self, X: Any, y: Any = None, agents: Any = None, members: Any = None) -> None:
        X, columns = split_frame(X, *(given for given in (y, agents) if isinstance(given, str | int)))
        y, agents = (columns.pop(0) if isinstance(given, str | int) else given for given in (y, agents))
        matrix, names = as_features(X)
        codes, ordered = agent_codes(agents, members, matrix.shape[0])
        self._group(matrix, y, codes, ordered, names)

    @classmethod
    def of_codes(cls, X: Any, y: Any, codes: Integers, members: Sequence[Hashable]) -> AgentData:
        """Rows whose agents are numbered already, as those of a :class:`~coterie.data.table.Table` are."""
        data = object.__new__(cls)
        matrix, names = as_features(X)
        data._group(matrix, y, codes, tuple(members), names)
        return data

    def _group(
        self, matrix: Any, y: Any, codes: Integers, members: tuple[Hashable, ...], names: tuple[str, ...] | None
    ) -> None:
        """Put the rows of each agent side by side, and check them."""
        labels = None if y is None else as_labels(y, matrix.shape[0])
        # Stable, so that the rows of one agent keep the order in which they were given.
        origin = np.argsort(codes, kind="stable")
        self._fill(
            X=matrix[origin],
            y=None if labels is None else labels[origin],
            members=members,
            owner=codes[origin],
            origin=origin,
            feature_names=names,
        )
        # Only now, since a stored row can be named in terms of the input.
        self._check_features()
        self._check_labels()

    def _fill(self, *, X: Any, owner: Integers, **parts: Any) -> None:
        """Set every attribute from rows that are already grouped."""
        if not sparse.issparse(X):
            X = np.ascontiguousarray(X)  # NumPy leaves the memory order of an indexed array open
        sizes = np.bincount(owner, minlength=len(parts["members"])).astype(np.int64)
        start = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
        self.__setstate__({"X": X, "owner": owner, "sizes": sizes, "start": start, **parts})

    def __setstate__(self, state: dict[str, Any]) -> None:
        # Also the way back from pickle and copy, which do not preserve read-only flags.
        vars(self).update(state)
        X = state["X"]
        features = (X.data, X.indices, X.indptr) if sparse.issparse(X) else (X,)
        for array in (*features, *state.values()):
            if isinstance(array, np.ndarray):
                array.flags.writeable = False

    def _like(self, **changes: Any) -> AgentData:
        """The same data with other parts; `start` and `sizes` follow from `owner`."""
        kept = ("X", "y", "members", "owner", "origin", "feature_names")
        other = object.__new__(AgentData)
        other._fill(**{name: getattr(self, name) for name in kept} | changes)
        return other

    def _check_features(self) -> None:
        rows, columns = nonfinite(self.X)
        if rows.size:
            first = np.argmin(self.origin[rows])
            row, column = int(rows[first]), int(columns[first])
            name = column if self.feature_names is None else repr(self.feature_names[column])
            raise DataError(
                f"{self.where(row)}: column {name} of X is {self.X[row, column]};"
                " features must be finite, not NaN or inf: fill it in, or drop the row"
            )

    def _check_labels(self) -> None:
        if self.y is None:
            return
        bad = np.flatnonzero(~np.isfinite(self.y))
        if bad.size:
            row = int(bad[np.argmin(self.origin[bad])])
            raise DataError(
                f"{self.where(row)}: the label is {self.y[row]};"
                " labels must be finite, not NaN or inf: fill it in, or drop the row"
            )

    @property
    def n(self) -> int:
        """Number of agents."""
        return len(self.members)

    @property
    def p(self) -> int:
        """Number of features."""
        return int(self.X.shape[1])

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return int(self.X.shape[0])

    @property
    def is_sparse(self) -> bool:
        """Whether `X` is a csr_array."""
        return sparse.issparse(self.X)

    @cached_property
    def _number(self) -> dict[Hashable, int]:
        return {member: k for k, member in enumerate(self.members)}

    def index(self, agent_id: Hashable) -> int:
        """Number of one agent.

        Examples
        --------
        >>> AgentData([[1.0], [2.0]], agents=["bo", "anna"]).index("bo")
        1
        """
        try:
            return self._number[agent_id]
        except (KeyError, TypeError):  # TypeError: not even hashable
            raise DataError(f"no agent {agent_id!r}; {hint(agent_id, self.members)}") from None

    def numbers(self, ids: Any) -> Integers:
        """Numbers of many agents, -1 for those that are not members.

        Parameters
        ----------
        ids : sequence
            Agent ids, as in the constructor; a missing one is an error, not an unknown agent.

        Returns
        -------
        ndarray of shape (len(ids),)

        Examples
        --------
        >>> AgentData([[1.0], [2.0]], agents=["bo", "anna"]).numbers(["anna", "zoe", "bo"])
        array([ 0, -1,  1])
        """
        return agent_numbers(ids, self._number)

    def rows_of(self, agent_id: Hashable) -> tuple[Any, Floats | None]:
        """Features and labels of one agent; the labels are None if there are none.

        Examples
        --------
        >>> AgentData([[1.0], [2.0], [3.0]], y=[4, 5, 6], agents=[7, 8, 7]).rows_of(7)
        (array([[1.],
               [3.]]), array([4., 6.]))
        """
        k = self.index(agent_id)
        rows = slice(self.start[k], self.start[k + 1])
        return self.X[rows], None if self.y is None else self.y[rows]

    def where(self, row: int) -> str:
        """A stored row in words: its position in the input, and whose it is.

        Examples
        --------
        >>> AgentData([[1.0], [2.0]], agents=["bo", "anna"]).where(0)
        "row 1 (agent 'anna')"
        """
        return f"row {self.origin[row]} (agent {self.members[self.owner[row]]!r})"

    def with_labels(self, y: ArrayLike | None) -> AgentData:
        """The same rows with other labels, given in the order of the input.

        Examples
        --------
        >>> data = AgentData([[1.0], [2.0], [3.0]], agents=["bo", "anna", "bo"])
        >>> data.with_labels([10, 20, 30]).y
        array([20., 10., 30.])
        """
        labels = None if y is None else as_labels(y, self.n_rows)[self.origin]
        other = self._like(y=labels)
        other._check_labels()
        return other

    def with_rows(self, X: Any, y: Any = None, *, agents: Any) -> AgentData:
        """The same agents with further rows, each agent's after those that it has.

        Parameters
        ----------
        X : array-like, sparse matrix or DataFrame of shape (rows, p)
            Features, as in the constructor. They are stored like the old ones, dense or sparse.
        y : array-like of shape (rows,) or column name, optional
            Labels: given if and only if the old rows have some.
        agents : sequence of shape (rows,) or column name
            The member each row belongs to.

        Returns
        -------
        AgentData
            Its `origin` counts the new rows from ``n_rows`` on.

        Raises
        ------
        DataError
            As the constructor does, with rows counted in the new `X`; and if `agents` names somebody who is
            not a member, or `X` and `y` do not match the old rows.

        Examples
        --------
        >>> data = AgentData([[1.0], [2.0], [3.0]], agents=["bo", "anna", "bo"])
        >>> more = data.with_rows([[4.0], [5.0]], agents=["anna", "bo"])
        >>> more.X.ravel(), more.origin
        (array([2., 4., 1., 3., 5.]), array([1, 3, 0, 2, 4]))
        """
        new = AgentData(X, y, agents, members=self.members)
        if new.p != self.p:
            raise DataError(f"X has {new.p} columns for {self.p} features; one per feature is needed")
        if self.feature_names and new.feature_names and self.feature_names != new.feature_names:
            k = next(k for k in range(self.p) if self.feature_names[k] != new.feature_names[k])
            raise DataError(f"column {k} of X is {new.feature_names[k]!r}, expected {self.feature_names[k]!r}")
        if self.y is None and new.y is not None:
            raise DataError("y is given, but the rows of this data have no labels; leave it out")
        if self.y is not None and new.y is None:
            raise DataError("y is missing; the rows of this data have labels, and so must the new ones")
        owner = np.concatenate([self.owner, new.owner])
        rows = np.argsort(owner, kind="stable")
        if self.is_sparse:
            matrix = sparse.vstack([self.X, sparse.csr_array(new.X)], format="csr")
        else:
            matrix = np.vstack([self.X, new.X.toarray() if new.is_sparse else new.X])
        return self._like(
            X=matrix[rows],
            y=None if self.y is None else np.concatenate([self.y, new.y])[rows],
            owner=owner[rows],
            origin=np.concatenate([self.origin, self.n_rows + new.origin])[rows],
        )

    def relabel(self, order: ArrayLike) -> AgentData:
        """The same agents in another order: the new agent ``k`` is the old agent ``order[k]``.

        Examples
        --------
        >>> data = AgentData([[1.0], [2.0], [3.0]], agents=["bo", "anna", "bo"])
        >>> data.relabel([1, 0]).members
        ('bo', 'anna')
        """
        order = np.asarray(order)
        if not np.array_equal(np.sort(order, axis=None), np.arange(self.n)):
            raise DataError(f"order must hold each of 0..{self.n - 1} once, got {order.tolist()}")
        # argsort of a permutation is its inverse: where each old agent goes.
        owner = np.argsort(order)[self.owner]
        rows = np.argsort(owner, kind="stable")
        return self._like(
            X=self.X[rows],
            y=None if self.y is None else self.y[rows],
            members=tuple(self.members[k] for k in order),
            owner=owner[rows],
            origin=self.origin[rows],
        )

    def only(self, numbers: ArrayLike) -> AgentData:
        """Some of the agents, in this order, with their rows; rows keep their position in the input as `origin`.

        Examples
        --------
        >>> data = AgentData([[1.0], [2.0], [3.0]], agents=["bo", "anna", "bo"])
        >>> data.only([1]).members, data.only([1]).X.ravel()
        (('bo',), array([1., 3.]))
        """
        chosen = np.asarray(numbers, dtype=np.int64)
        rows = np.concatenate([np.arange(self.start[k], self.start[k + 1]) for k in chosen])
        return self._like(
            X=self.X[rows],
            y=None if self.y is None else self.y[rows],
            members=tuple(self.members[k] for k in chosen),
            owner=np.repeat(np.arange(chosen.size), self.sizes[chosen]),
            origin=self.origin[rows],
        )

    def append_column(self, value: float = 1.0, name: str = "intercept") -> AgentData:
        """The same rows with a constant last feature.

        Examples
        --------
        >>> AgentData([[5.0], [6.0]]).append_column().X
        array([[5., 1.],
               [6., 1.]])
        """
        if not np.isfinite(value):
            raise DataError(f"the value of column {name!r} must be finite, got {value}")
        column = np.full((self.n_rows, 1), value, dtype=np.float64)
        if self.is_sparse:
            X = sparse.hstack([self.X, sparse.csr_array(column)], format="csr")
        else:
            X = np.hstack([self.X, column])
        names = self.feature_names
        return self._like(X=X, feature_names=None if names is None else (*names, name))

    def with_features(self, X: np.ndarray) -> AgentData:
        """The same rows with other features, given in the order in which they are stored.

        Examples
        --------
        >>> AgentData([[5.0], [6.0]]).with_features(np.ones((2, 3))).p
        3
        """
        return self._like(X=X, feature_names=None)

    def restrict(self, mask: ArrayLike) -> AgentData:
        """Some of the rows, all of the agents.

        Parameters
        ----------
        mask : array-like of bool, shape (n_rows,)
            Which rows to keep, in the order of the input.

        Returns
        -------
        AgentData
            What ``AgentData(X[mask], y[mask], agents[mask], members)`` would be: its `origin` counts
            the kept rows only.

        Examples
        --------
        >>> data = AgentData([[1.0], [2.0], [3.0]], agents=["bo", "anna", "bo"])
        >>> data.restrict([True, False, True])
        AgentData(agents=2 (1 without rows), rows=2 (0..2 per agent), features=1, dense, unlabelled)
        """
        mask = np.asarray(mask)
        if mask.dtype != bool or mask.shape != (self.n_rows,):
            raise DataError(f"mask must be {self.n_rows} booleans, one per row; got {mask.dtype} of shape {mask.shape}")
        keep = mask[self.origin]
        return self._like(
            X=self.X[keep],
            y=None if self.y is None else self.y[keep],
            owner=self.owner[keep],
            origin=np.cumsum(mask)[self.origin[keep]] - 1,
        )

    def __repr__(self) -> str:
        low, high = self.sizes.min(), self.sizes.max()
        each = f"{low}" if low == high else f"{low}..{high}"
        empty = int((self.sizes == 0).sum())
        agents = f"{self.n} ({empty} without rows)" if empty else f"{self.n}"
        kind = "sparse" if self.is_sparse else "dense"
        labelled = "unlabelled" if self.y is None else "labelled"
        return (
            f"AgentData(agents={agents}, rows={self.n_rows} ({each} per agent), features={self.p}, {kind}, {labelled})"
        )
