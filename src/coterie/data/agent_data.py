"""Rows grouped by agent: contiguous for each agent, checked once, and read-only.

:class:`AgentData` accepts arrays, SciPy sparse matrices, and pandas and polars frames. Values that are not finite are
refused with their row, column and agent. The rows of each agent are stored side by side, so that later code can trust
and slice them. Rows that come grouped are not copied.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from ..errors import DataError, ParameterError
from .frames import hint, split_frame
from .ids import agent_codes, agent_numbers, grouping, is_sorted
from .matrix import as_features, as_labels, nonfinite, take_rows

__all__ = ["AgentData", "flip_labels"]

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

#: Maximum number of distinct labels that are treated as classes.
MAX_CLASSES = 1000


@dataclass(frozen=True, init=False, repr=False, eq=False)
class AgentData:
    """Rows grouped by agent.

    Parameters
    ----------
    X : array-like, sparse matrix or DataFrame of shape (rows, p)
        Features: finite numbers or booleans. The frame may be a pandas or polars frame; its columns
        named by `y` and `agents` are not features.
    y : array-like of shape (rows,) or column name, optional
        Labels: finite numbers or booleans. None for unlabelled points. Matched with `X` by position,
        like `agents`; the index of a Series is ignored.
    agents : sequence of shape (rows,) or column name, optional
        The agent of each row: any hashable id. With None, all rows belong to one agent, 0.
    members : sequence, optional
        Every agent, including agents without rows, in the order of their numbers. By default
        the distinct ids, sorted if they can be and otherwise in order of appearance.
    dtype : {"float32", "float64"}, optional
        Type of the stored features. By default float32 is kept, and everything else becomes float64. float32 only saves
        memory: all computations are in float64.
    copy : bool
        Whether to always store a copy. If False, `X` and `y` are views of the given arrays where these are C-contiguous
        (or CSR with sorted indices), of the stored type, and grouped by agent in the order of `members`. Do not change
        these arrays while the data is in use.

    Attributes
    ----------
    X : ndarray of shape (n_rows, p) or csr_array
        Features, float64 or float32; C-contiguous, or CSR with sorted indices and without duplicates.
    y : ndarray of shape (n_rows,) or None
        Labels, float64.
    members : tuple
        Id of each agent.
    start : ndarray of shape (n + 1,)
        The rows of agent ``k`` are ``start[k]:start[k + 1]``.
    sizes : ndarray of shape (n,)
        Number of rows of each agent.
    owner : ndarray of shape (n_rows,)
        Number of the agent of each stored row. Computed at each access, like `origin`.
    origin : ndarray of shape (n_rows,)
        Position of each stored row in the input; rows of one agent keep their order. To put a result ``r`` of
        the stored rows in the order of the input, use ``out[data.origin] = r``.
    feature_names : tuple of str or None
        Columns of the frame; None if `X` was not a frame.

    Raises
    ------
    DataError
        If a value is missing, infinite or not a number, or an argument has the wrong length or repeats a name.

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

    digest_parts = ("X", "y", "members", "sizes")
    X: Any
    y: Floats | None
    members: tuple[Hashable, ...]
    start: Integers
    sizes: Integers
    feature_names: tuple[str, ...] | None
    _order: NDArray[Any] | None  # `origin` as small integers; None if rows are stored in the order of the input
    _part: bool  # whether these are some of the rows to which `origin` refers

    def __init__(
        self, X: Any, y: Any = None, agents: Any = None, members: Any = None, *, dtype: Any = None, copy: bool = False
    ) -> None:
        X, columns = split_frame(X, *(given for given in (y, agents) if isinstance(given, str | int)))
        y, agents = (columns.pop(0) if isinstance(given, str | int) else given for given in (y, agents))
        matrix, names = as_features(X, _checked_dtype(dtype))
        codes, ordered = agent_codes(agents, members, matrix.shape[0])
        self._group(matrix, y, codes, ordered, names, copy)

    @classmethod
    def of_codes(cls, X: Any, y: Any, codes: Integers, members: Sequence[Hashable]) -> AgentData:
        """Return data whose agents are numbered already, as in ``coterie.data.table.Table``."""
        data = object.__new__(cls)
        matrix, names = as_features(X)
        data._group(matrix, y, codes, tuple(members), names)
        return data

    def _group(
        self,
        matrix: Any,
        y: Any,
        codes: Integers,
        members: tuple[Hashable, ...],
        names: tuple[str, ...] | None,
        copy: bool = False,
    ) -> None:
        """Group the rows by agent, and check them."""
        labels = None if y is None else as_labels(y, matrix.shape[0])
        sizes = np.bincount(codes, minlength=len(members)).astype(np.int64, copy=False)
        order = None if is_sorted(codes) else grouping(codes, len(members))
        if order is not None:
            matrix, labels = take_rows(matrix, order), None if labels is None else labels[order]
        elif copy:
            matrix, labels = matrix.copy(), None if labels is None else labels.copy()
        self._fill(X=matrix, y=labels, members=members, sizes=sizes, order=order, part=False, feature_names=names)
        # Rows are checked after grouping, when errors can name the row of the input and its agent.
        self._check_features()
        self._check_labels()

    def _fill(self, *, X: Any, sizes: Integers, order: NDArray[Any] | None, part: bool, **parts: Any) -> None:
        """Set every attribute from rows that are already grouped."""
        # Arrays are made read-only below: store views, so that the caller's arrays stay writeable.
        if sparse.issparse(X):
            X = sparse.csr_array((X.data.view(), X.indices.view(), X.indptr.view()), shape=X.shape)
        else:
            X = np.ascontiguousarray(X).view()
        if parts["y"] is not None:
            parts["y"] = np.ascontiguousarray(parts["y"]).view()
        start = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
        self.__setstate__({"X": X, "sizes": sizes, "start": start, "_order": order, "_part": part, **parts})

    def __setstate__(self, state: dict[str, Any]) -> None:
        # pickle and copy also call this method, since they do not preserve read-only flags.
        vars(self).update(state)
        X = state["X"]
        features = (X.data, X.indices, X.indptr) if sparse.issparse(X) else (X,)
        for array in (*features, *state.values()):
            if isinstance(array, np.ndarray):
                array.flags.writeable = False

    def _like(self, **changes: Any) -> AgentData:
        """Return the same data with other parts; `start` is computed from `sizes`."""
        kept = ("X", "y", "members", "sizes", "feature_names")
        other = object.__new__(AgentData)
        own = {"order": self._order, "part": self._part} | {name: getattr(self, name) for name in kept}
        other._fill(**own | changes)
        return other

    def _rows(self, rows: NDArray[Any], sizes: Integers, **changes: Any) -> AgentData:
        """Return some of the stored rows, grouped, with the given numbers of rows for each agent."""
        changes = {"X": take_rows(self.X, rows), "y": None if self.y is None else self.y[rows]} | changes
        changes = {"part": self._part or len(rows) < self.n_rows} | changes
        return self._like(**{"sizes": sizes, "order": rows if self._order is None else self._order[rows]} | changes)

    @property
    def owner(self) -> Integers:
        """Number of the agent of each stored row."""
        return _locked(np.repeat(np.arange(self.n), self.sizes))

    @property
    def origin(self) -> Integers:
        """Position of each stored row in the input."""
        return _locked(np.arange(self.n_rows) if self._order is None else self._order.astype(np.int64))

    def _origin_of(self, rows: Any) -> Any:
        """Return the positions of some stored rows in the input."""
        return rows if self._order is None else self._order[rows]

    def _stored(self, values: Any) -> Any:
        """Return values of the input's rows in the stored order; for a part, values are in the stored order already."""
        return values if self._order is None or self._part else values[self._order]

    def _check_features(self) -> None:
        rows, columns = nonfinite(self.X)
        if rows.size:
            first = np.argmin(self._origin_of(rows))
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
            row = int(bad[np.argmin(self._origin_of(bad))])
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
        """Return the number of one agent.

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
        """Return the numbers of many agents, -1 for agents that are not members.

        Parameters
        ----------
        ids : sequence
            Agent ids, as in the constructor; a missing value is an error.

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
        """Return features and labels of one agent; the labels are None for unlabelled data.

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
        """Describe a stored row by its position in the input and its agent.

        Examples
        --------
        >>> AgentData([[1.0], [2.0]], agents=["bo", "anna"]).where(0)
        "row 1 (agent 'anna')"
        """
        owner = int(np.searchsorted(self.start, row, side="right")) - 1
        return f"row {self._origin_of(row)} (agent {self.members[owner]!r})"

    def with_labels(self, y: ArrayLike | None) -> AgentData:
        """Return the same rows with other labels, one for each row, in the order of the input.

        If these are some rows of larger data, such as the training rows of :func:`coterie.datasets.splits.train_test`,
        labels are given in the stored order, like `y`: pass ``labels[data.origin]`` for labels of the larger input.

        Parameters
        ----------
        y : array-like of shape (n_rows,) or None
            The labels; None for unlabelled points.

        Examples
        --------
        >>> data = AgentData([[1.0], [2.0], [3.0]], agents=["bo", "anna", "bo"])
        >>> data.with_labels([10, 20, 30]).y
        array([20., 10., 30.])
        >>> part = data.only([1])
        >>> part.with_labels([10, 30]).y, part.with_labels(np.array([10, 20, 30])[part.origin]).y
        (array([10., 30.]), array([10., 30.]))
        """
        other = self._like(y=None if y is None else self._stored(as_labels(y, self.n_rows)))
        other._check_labels()
        return other

    def with_rows(self, X: Any, y: Any = None, *, agents: Any) -> AgentData:
        """Return the same agents with further rows, after each agent's present rows.

        Parameters
        ----------
        X : array-like, sparse matrix or DataFrame of shape (rows, p)
            Features, as in the constructor. They are stored dense or sparse like the present rows.
        y : array-like of shape (rows,) or column name, optional
            Labels; required if the present rows have labels, and forbidden otherwise.
        agents : sequence of shape (rows,) or column name
            The agent of each row, which must be a member.

        Returns
        -------
        AgentData
            In `origin`, the new rows are counted from ``n_rows`` on.

        Raises
        ------
        DataError
            As in the constructor, with rows counted in the new `X`; also if `agents` names an agent that is
            not a member, or `X` and `y` do not match the present rows.

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
        both = grouping(np.concatenate([self.owner, new.owner]), self.n)
        if self.is_sparse:
            matrix = sparse.vstack([self.X, sparse.csr_array(new.X)], format="csr")
        else:
            matrix = np.vstack([self.X, new.X.toarray() if new.is_sparse else new.X])
        return self._like(
            X=take_rows(matrix, both),
            y=None if self.y is None else np.concatenate([self.y, new.y])[both],
            sizes=self.sizes + new.sizes,
            order=np.concatenate([self.origin, self.n_rows + new.origin])[both],
        )

    def relabel(self, order: ArrayLike) -> AgentData:
        """Return the same agents in another order: the new agent ``k`` is the old agent ``order[k]``.

        Examples
        --------
        >>> data = AgentData([[1.0], [2.0], [3.0]], agents=["bo", "anna", "bo"])
        >>> data.relabel([1, 0]).members
        ('bo', 'anna')
        """
        order = np.asarray(order)
        if not np.array_equal(np.sort(order, axis=None), np.arange(self.n)):
            raise DataError(f"order must hold each of 0..{self.n - 1} once, got {order.tolist()}")
        return self.only(order)

    def with_members(self, members: Iterable[Hashable]) -> AgentData:
        """Return the same rows with the given members, in this order; new members have no rows.

        Examples
        --------
        >>> data = AgentData([[1.0], [2.0]], agents=["bo", "anna"])
        >>> data = data.with_members(["server", *data.members])
        >>> data.members, data.sizes.tolist()
        (('server', 'anna', 'bo'), [0, 1, 1])
        """
        named = tuple(members)
        if len(set(named)) < len(named):
            raise DataError("members must be distinct: one of them occurs twice")
        missing = next((member for member in self.members if member not in set(named)), None)
        if missing is not None:
            raise DataError(f"agent {missing!r} has rows, and is missing in members=")
        old = np.array([self._number.get(member, -1) for member in named], dtype=np.int64)
        part = self.only(old[old >= 0])
        sizes = np.zeros(len(named), np.int64)
        sizes[old >= 0] = part.sizes
        return part._like(members=named, sizes=sizes)

    def only(self, numbers: ArrayLike) -> AgentData:
        """Return some of the agents, in this order, with their rows; `origin` still refers to the input.

        Examples
        --------
        >>> data = AgentData([[1.0], [2.0], [3.0]], agents=["bo", "anna", "bo"])
        >>> data.only([1]).members, data.only([1]).X.ravel()
        (('bo',), array([1., 3.]))
        """
        chosen = np.asarray(numbers, dtype=np.int64)
        sizes = self.sizes[chosen]
        return self._rows(
            spans(self.start[chosen], sizes), sizes, members=tuple(self.members[k] for k in chosen.tolist())
        )

    def append_column(self, value: float = 1.0, name: str = "intercept") -> AgentData:
        """Return the same rows with a constant last feature.

        Examples
        --------
        >>> AgentData([[5.0], [6.0]]).append_column().X
        array([[5., 1.],
               [6., 1.]])
        """
        if not np.isfinite(value):
            raise DataError(f"the value of column {name!r} must be finite, got {value}")
        dtype = self.X.dtype if float(self.X.dtype.type(value)) == value else np.dtype(np.float64)
        if self.is_sparse:
            X = sparse.hstack([self.X, sparse.csr_array(np.full((self.n_rows, 1), value, dtype))], format="csr")
        else:
            X = np.empty((self.n_rows, self.p + 1), dtype)
            X[:, :-1], X[:, -1] = self.X, value
        names = self.feature_names
        return self._like(X=X, feature_names=None if names is None else (*names, name))

    def with_features(self, X: np.ndarray) -> AgentData:
        """Return the same rows with other features, given in the stored order.

        Examples
        --------
        >>> AgentData([[5.0], [6.0]]).with_features(np.ones((2, 3))).p
        3
        """
        return self._like(X=X, feature_names=None)

    def restrict(self, mask: ArrayLike) -> AgentData:
        """Return some of the rows, with all agents.

        Parameters
        ----------
        mask : array-like of bool, shape (n_rows,)
            Whether to keep each row, in the order of the input; for a part of larger data, in the stored order.

        Returns
        -------
        AgentData
            Equal to ``AgentData(X[mask], y[mask], agents[mask], members)``: `origin` counts the kept rows only. For a
            part of larger data, `origin` still refers to the larger input.

        Examples
        --------
        >>> data = AgentData([[1.0], [2.0], [3.0]], agents=["bo", "anna", "bo"])
        >>> data.restrict([True, False, True])
        AgentData(agents=2 (1 without rows), rows=2 (0..2 per agent), features=1, dense, unlabelled)
        """
        mask = np.asarray(mask)
        if mask.dtype != bool or mask.shape != (self.n_rows,):
            raise DataError(f"mask must be {self.n_rows} booleans, one per row; got {mask.dtype} of shape {mask.shape}")
        keep = np.flatnonzero(self._stored(mask))
        sizes = np.diff(np.searchsorted(keep, self.start))
        if self._part:
            return self._rows(keep, sizes)
        order = None if self._order is None else (np.cumsum(mask) - 1)[self._order[keep]]
        return self._rows(keep, sizes, order=order, part=False)

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


def _checked_dtype(dtype: Any) -> Any:
    if dtype is None:
        return None
    try:
        found = np.dtype(dtype)
    except TypeError:
        found = None
    if found not in (np.float32, np.float64):
        raise ParameterError(f'dtype={dtype!r}: features are stored as "float32" or "float64"')
    return found


def _locked(array: Integers) -> Integers:
    array.flags.writeable = False
    return array


def means(data: AgentData, values: np.ndarray) -> Floats:
    """Return the mean of values over the rows of each agent; NaN for an agent without rows."""
    with np.errstate(invalid="ignore"):
        return np.bincount(data.owner, weights=values, minlength=data.n) / data.sizes


def spans(start: Integers, sizes: Integers) -> Integers:
    """Return ``start_k, start_k + 1, ...``, ``sizes_k`` numbers for each k, concatenated."""
    first = np.cumsum(sizes) - sizes
    return np.repeat(start - first, sizes) + np.arange(sizes.sum())


def flip_labels(data: AgentData, agents: Iterable[Hashable], among: Any = None) -> AgentData:
    """Return the same data, with reversed labels of some agents.

    The k-th smallest label becomes the k-th largest: -1 and 1 are swapped, and of classes 0 to 9, 0 becomes 9.

    Parameters
    ----------
    data : AgentData
        Data with labels that are classes.
    agents : iterable of hashable
        The ids of the agents whose labels are reversed.
    among : array_like, optional
        All classes. Default: the distinct labels of the data.

    Returns
    -------
    AgentData

    Examples
    --------
    >>> import coterie as ct
    >>> data = ct.AgentData([[1.0], [2.0], [3.0]], [1.0, -1.0, 1.0], agents=["ann", "bob", "bob"])
    >>> ct.robust.flip_labels(data, ["bob"]).y
    array([ 1.,  1., -1.])
    """
    if data.y is None:
        raise DataError("the data has no labels to flip")
    labels = np.unique(data.y if among is None else np.asarray(among, float))
    if labels.size > MAX_CLASSES:
        raise DataError(f"{labels.size} different labels are no classes: flip_labels takes at most {MAX_CLASSES}")
    ids = list(agents)
    numbers = data.numbers(ids)
    if np.any(numbers < 0):
        raise DataError(f"agent {ids[int(np.argmin(numbers))]!r} is not a member of the data")
    wrong = np.isin(data.owner, numbers)
    place = np.searchsorted(labels, data.y[wrong])
    if not np.array_equal(labels[np.minimum(place, labels.size - 1)], data.y[wrong]):
        raise DataError(f"the data has labels that are not among {labels.tolist()}")
    y = np.array(data.y)
    y[wrong] = labels[::-1][place]
    return data._like(y=y)
