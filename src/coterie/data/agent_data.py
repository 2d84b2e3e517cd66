"""Rows grouped by agent: ragged, contiguous, checked once and read-only from then on.

:class:`AgentData` is the only door for data. It takes arrays, SciPy sparse matrices, pandas and polars
frames, refuses what is not a finite number by naming the row, the column and the agent, and stores the
rows of an agent side by side, so that what runs behind it can trust its input and slice it.

==================  =========================================================================
:class:`AgentData`  rows, labels and owners, grouped by agent
as_features         what a feature matrix may look like -> a float64 matrix and column names
as_agent_ids        what a list of agent ids may look like -> a 1-D array
split_frame         named columns of a data frame, and the rest of it
read_table          a file -> a data frame
==================  =========================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from difflib import get_close_matches
from functools import cached_property
from itertools import islice, pairwise
from numbers import Real
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from ..errors import DataError, MissingExtra

__all__ = ["AgentData", "as_agent_ids", "as_features", "read_table", "split_frame"]

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

_ENCODE = "encode it as numbers first"
_CLASSES = "labels must be numbers here (the estimators encode classes for you)"


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
        X, columns = split_frame(X, *(given for given in (y, agents) if _is_name(given)))
        y, agents = (columns.pop(0) if _is_name(given) else given for given in (y, agents))
        matrix, names = as_features(X)
        rows = matrix.shape[0]
        labels = None if y is None else _labels(y, rows)
        codes, ids = _distinct(as_agent_ids(agents, rows))
        if members is not None:
            ordered = _members(members)
        elif rows:
            ordered = _in_order(ids)
        else:
            raise DataError("X has no rows; give members=[...] to describe agents that have no data")
        number = _numbers(codes, ids, {member: k for k, member in enumerate(ordered)})
        if (number < 0).any():
            row = int(np.argmax(number < 0))
            raise DataError(f"{_where(row, ids[codes[row]])}: this agent is not among members=")
        # Stable, so that the rows of one agent keep the order in which they were given.
        origin = np.argsort(number, kind="stable")
        self._fill(
            X=matrix[origin],
            y=None if labels is None else labels[origin],
            members=ordered,
            owner=number[origin],
            origin=origin,
            feature_names=names,
        )
        # Only now, since a stored row can be named in terms of the input.
        self._check_features()
        self._check_labels()

    def _fill(self, *, X: Any, owner: Integers, **parts: Any) -> None:
        """Set every attribute from rows that are already grouped."""
        if not _is_sparse(X):
            X = np.ascontiguousarray(X)  # NumPy leaves the memory order of an indexed array open
        sizes = np.bincount(owner, minlength=len(parts["members"])).astype(np.int64)
        start = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
        self.__setstate__({"X": X, "owner": owner, "sizes": sizes, "start": start, **parts})

    def __setstate__(self, state: dict[str, Any]) -> None:
        # Also the way back from pickle and copy, which do not preserve read-only flags.
        vars(self).update(state)
        X = state["X"]
        features = (X.data, X.indices, X.indptr) if _is_sparse(X) else (X,)
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
        rows, columns = _nonfinite(self.X)
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
        return _is_sparse(self.X)

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
            raise DataError(f"no agent {agent_id!r}; {_hint(agent_id, self.members)}") from None

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
        return _numbers(*_distinct(as_agent_ids(ids)), self._number)

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
        return _where(int(self.origin[row]), self.members[self.owner[row]])

    def with_labels(self, y: ArrayLike | None) -> AgentData:
        """The same rows with other labels, given in the order of the input.

        Examples
        --------
        >>> data = AgentData([[1.0], [2.0], [3.0]], agents=["bo", "anna", "bo"])
        >>> data.with_labels([10, 20, 30]).y
        array([20., 10., 30.])
        """
        labels = None if y is None else _labels(y, self.n_rows)[self.origin]
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


def as_features(X: Any) -> tuple[Any, tuple[str, ...] | None]:
    """Features as a float64 matrix, and the names of its columns.

    Parameters
    ----------
    X : array-like, sparse matrix or DataFrame of shape (rows, p)
        Numbers or booleans. Text is refused, never parsed.

    Returns
    -------
    matrix : ndarray or csr_array of shape (rows, p)
        Missing values of any kind are NaN. A csr_array is canonical and a copy; an ndarray may be `X`.
    names : tuple of str or None
        Columns of a frame.

    Examples
    --------
    >>> as_features(pd.DataFrame({"age": [31, None], "ill": [True, False]}))
    (array([[31.,  1.],
           [nan,  0.]]), ('age', 'ill'))
    """
    names = None
    if _is_frame(X):
        names = tuple(map(str, X.columns))
        columns = X.iter_columns() if _is_polars(X) else (column for _, column in X.items())
        arrays = [_column(c, f"column {name!r}", _ENCODE) for name, c in zip(names, columns, strict=True)]
        matrix: Any = np.column_stack(arrays) if arrays else np.empty((len(X), 0))
    elif _is_sparse(X):
        _check_kind(X.dtype.kind, X.data, "X", _ENCODE)
        _check_2d(X.shape)
        matrix = sparse.csr_array(X, dtype=np.float64, copy=True)
        matrix.sum_duplicates()
    else:
        matrix = _floats(X, "X", _ENCODE)
    _check_2d(matrix.shape)
    if matrix.shape[1] == 0:
        raise DataError("X has no columns left to learn from; at least one feature is needed")
    return matrix, names


def as_agent_ids(values: Any, rows: int | None = None, what: str = "agents") -> NDArray[Any]:
    """Agent ids as a 1-D array, one per row.

    Parameters
    ----------
    values : sequence or None
        List, tuple, array or Series of hashable ids. None gives every row to agent 0.
    rows : int, optional
        How many ids there must be.
    what : str
        What to call `values` in an error.

    Returns
    -------
    ndarray of shape (rows,)
        Of dtype object unless `values` had a type of its own: a list is never coerced, so that
        ``[1, "a"]`` does not turn into ``["1", "a"]``.

    Examples
    --------
    >>> as_agent_ids([("Lyon", 3), "anna"], rows=2)
    array([('Lyon', 3), 'anna'], dtype=object)
    """
    if values is None:
        return np.zeros(rows or 0, dtype=np.int64)
    if np.ma.isMaskedArray(values):
        values = values.tolist()  # None where masked
    elif _is_polars(values) and not _is_frame(values) and not values.dtype.is_numeric():
        values = values.to_list()  # to_numpy would turn dates into datetime64
    if isinstance(values, Sequence) and not isinstance(values, str | bytes):
        ids = np.fromiter(values, dtype=object, count=len(values))
    elif hasattr(values, "__array__"):
        ids = np.asarray(values)
    else:
        raise DataError(f"{what} must be a list, an array or a Series of ids, got {type(values).__name__}")
    if ids.ndim != 1:
        raise DataError(f"{what} must be 1-D, one id per row; got shape {ids.shape}")
    if rows is not None and len(ids) != rows:
        raise DataError(f"{what} has {len(ids)} ids for {rows} rows; one per row is needed")
    return ids


def split_frame(X: Any, *names: Hashable) -> tuple[Any, list[Any]]:
    """Take named columns out of a data frame.

    Parameters
    ----------
    X : DataFrame
        From pandas or polars. Anything else is returned as it is if no names are given.
    *names : str or int
        Names of columns.

    Returns
    -------
    rest : DataFrame
        The other columns.
    columns : list of Series
        The named ones, in the order asked for.

    Examples
    --------
    >>> rest, [who] = split_frame(pd.DataFrame({"who": ["bo", "anna"], "age": [31, 27]}), "who")
    >>> list(rest.columns), list(who)
    (['age'], ['bo', 'anna'])
    """
    if not names:
        return X, []
    if not _is_frame(X):
        raise DataError(f"the column name {names[0]!r} needs a DataFrame, but X is {type(X).__name__}")
    columns = list(X.columns)
    for name in names:
        if (count := columns.count(name)) != 1:
            found = f"column {name!r} occurs {count} times" if count else f"no column {name!r}"
            raise DataError(f"{found}; {_hint(name, columns)}")
    others = [j for j, name in enumerate(columns) if name not in names]
    # By position: a pandas frame may repeat the names of its other columns.
    rest = X[:, others] if _is_polars(X) else X.iloc[:, others]
    return rest, [X[name] for name in names]


def read_table(path: str | PathLike[str]) -> pd.DataFrame:
    r"""Read a data frame from a file.

    Parameters
    ----------
    path : path
        Of a ``.csv``, ``.csv.gz``, ``.parquet`` or ``.feather`` file.

    Raises
    ------
    DataError
        If the file is missing, of another kind, damaged, or without rows.
    MissingExtra
        If reading it needs pyarrow, which is not installed.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder, "visits.csv")
    ...     _ = path.write_text("who,age\nbo,31\n")
    ...     read_table(path)
      who  age
    0  bo   31
    """
    path = Path(path)
    readers: dict[str, Callable[[Path], pd.DataFrame]] = {
        ".csv": pd.read_csv,
        ".csv.gz": pd.read_csv,
        ".parquet": pd.read_parquet,
        ".feather": pd.read_feather,
    }
    suffix = next((suffix for suffix in readers if path.name.lower().endswith(suffix)), None)
    if suffix is None:
        raise DataError(f"{path}: unknown kind of file; known are {', '.join(readers)}")
    if not path.is_file():
        raise DataError(f"{path}: no such file")
    if path.stat().st_size == 0:
        raise DataError(f"{path}: the file is empty")
    try:
        frame = readers[suffix](path)
    except ImportError as error:
        raise MissingExtra(f"reading {path} needs pyarrow: pip install pyarrow") from error
    except (ValueError, OSError, EOFError) as error:
        raise DataError(f"{path}: cannot be read as {suffix}: {error}") from error
    if frame.empty:
        raise DataError(f"{path}: the table is empty (shape {frame.shape})")
    return frame


# ---------------------------------------------------------------------------------------- kinds of input


def _is_polars(value: Any) -> bool:
    """Without importing polars: whoever hands us a polars object has it loaded already."""
    return type(value).__module__.partition(".")[0] == "polars"


def _is_sparse(value: Any) -> bool:
    return bool(sparse.issparse(value))


def _is_frame(value: Any) -> bool:
    if _is_polars(value) and type(value).__name__ == "LazyFrame":
        raise DataError("X is a polars LazyFrame; call .collect() first")
    return isinstance(value, pd.DataFrame) or (_is_polars(value) and type(value).__name__ == "DataFrame")


def _is_name(value: Any) -> bool:
    return isinstance(value, str | int)


# ----------------------------------------------------------------------------------------------- numbers


def _floats(values: Any, what: str, advice: str) -> Floats:
    """Numbers and booleans as float64, what is missing as NaN; anything else is refused, not parsed."""
    if isinstance(getattr(values, "dtype", None), pd.CategoricalDtype):
        raise DataError(f"{what} holds categories; {advice}")
    if np.ma.isMaskedArray(values):
        values = np.where(np.ma.getmaskarray(values), np.nan, values.data)
    try:
        array = np.asarray(values)
    except ValueError as error:
        raise DataError(f"{what} is not a regular array: {error}") from error
    if array.dtype.kind == "O":
        array = np.where(pd.isna(array), np.nan, array)
    _check_kind(array.dtype.kind, array, what, advice)
    try:
        return array.astype(np.float64, copy=False)
    except OverflowError as error:
        raise DataError(f"{what} holds an integer too large for a float") from error


def _column(values: Any, what: str, advice: str) -> Floats:
    column = _floats(values, what, advice)
    if column.ndim != 1:
        raise DataError(f"{what} must be 1-D, one number per row; got shape {column.shape}")
    return column


def _check_kind(kind: str, array: NDArray[Any], what: str, advice: str) -> None:
    if kind in "biuf":
        return
    # An object array may hold numbers, and only its elements can tell; of other kinds no element is one.
    allowed = (Real, Decimal, np.bool_) if kind == "O" else ()
    for value in array.flat:
        if not isinstance(value, allowed):
            noun = "text" if isinstance(value, str) else type(value).__name__
            raise DataError(f"{what} holds {noun}, such as {str(value)!r}; {advice}")


def _check_2d(shape: tuple[int, ...]) -> None:
    if len(shape) != 2:
        raise DataError(f"X must be 2-D, (rows, features); got shape {shape}")


def _labels(y: Any, rows: int) -> Floats:
    labels = _column(y, "y", _CLASSES)
    if len(labels) != rows:
        raise DataError(f"y has {len(labels)} labels for {rows} rows; one per row is needed")
    return labels


def _nonfinite(X: Any) -> tuple[Integers, Integers]:
    """Rows and columns of NaN and infinities."""
    if _is_sparse(X):
        X = X.tocoo()
        bad = ~np.isfinite(X.data)
        return X.row[bad], X.col[bad]
    rows, columns = np.nonzero(~np.isfinite(X))
    return rows, columns


# ------------------------------------------------------------------------------------------------- agents


def _distinct(ids: NDArray[Any], what: str = "agents") -> tuple[Integers, list[Hashable]]:
    """Distinct ids in order of appearance, as Python scalars, and which of them each entry is."""
    if ids.dtype.kind == "f":
        ids = ids.astype(np.float64)  # pandas has no hash table for half precision
    elif ids.dtype.kind not in "biuM":
        ids = ids.astype(object)
    try:
        codes, uniques = pd.factorize(ids)
    except TypeError:
        row = next(row for row, value in enumerate(ids) if not _is_hashable(value))
        raise DataError(
            f"{what}: the id at row {row} is {ids[row]!r}, which is not hashable;"
            " use a number, a string or a tuple of such"
        ) from None
    if (codes < 0).any():
        raise DataError(f"{what}: the id at row {np.argmax(codes < 0)} is missing")
    # An index gives Timestamps for datetime64; told its dtype, it leaves objects as they are.
    values = pd.Index(uniques, dtype=uniques.dtype).tolist()
    return codes.astype(np.int64), [_plain(value) for value in values]


def _is_hashable(value: Any) -> bool:
    # A tuple that holds a list claims to be hashable; only trying tells.
    try:
        hash(value)
    except TypeError:
        return False
    return True


def _plain(value: Any) -> Any:
    if isinstance(value, np.datetime64):
        return pd.Timestamp(value)  # .item() is an integer for nanoseconds
    return value.item() if isinstance(value, np.generic) else value


def _in_order(ids: list[Any]) -> tuple[Hashable, ...]:
    """Sorted if the ids have a total order, else as they are."""
    try:
        ordered = sorted(ids)
        # Sets compare without complaint, by inclusion, and then sort to nothing in particular.
        total = all(a < b for a, b in pairwise(ordered))
    except TypeError:
        total = False
    return tuple(ordered if total else ids)


def _members(values: Any) -> tuple[Hashable, ...]:
    codes, ids = _distinct(as_agent_ids(values, what="members"), what="members")
    if not ids:
        raise DataError("members is empty; at least one agent is needed")
    if len(ids) < len(codes):
        # Codes count up as ids appear, so the first that fails to is the first repetition.
        again = int(np.argmax(np.diff(np.maximum.accumulate(codes)) == 0)) + 1
        raise DataError(f"members holds {ids[codes[again]]!r} twice")
    return tuple(ids)


def _numbers(codes: Integers, ids: list[Hashable], number: dict[Hashable, int]) -> Integers:
    """Number of the agent of each entry, -1 if it is not a member."""
    table = np.array([number.get(value, -1) for value in ids], dtype=np.int64)
    return table[codes]


# --------------------------------------------------------------------------------------------------- words


def _where(row: int, agent: Hashable) -> str:
    return f"row {row} (agent {agent!r})"


def _hint(name: Any, known: Sequence[Any]) -> str:
    """What may have been meant, or a few examples."""
    # Only the first ones are compared: the search is slow, and an error should not be.
    texts = {str(value): value for value in islice(known, 10_000)}
    close = get_close_matches(str(name), texts)
    if close:
        return "did you mean " + " or ".join(repr(texts[text]) for text in close) + "?"
    few = ", ".join(map(repr, known[:5]))
    return f"there are {len(known)}: {few}" + (", ..." if len(known) > 5 else "")
