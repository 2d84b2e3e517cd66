"""Dictionaries of base predictors, which boosted models combine.

Agents that boost (DADA, Section 3) share a dictionary of base predictors h_1, ..., h_size, and each agent learns their
weights: its model is ``sum_j alpha_j h_j(x)``. A dictionary is fixed before learning, and equal for all agents.

=======================  =====================================================================
:class:`Stumps`          number and placement of decision stumps
:class:`Dictionary`      base class; subclass it for other base predictors
:class:`StumpDictionary` decision stumps
:class:`Ensemble`        fitted scikit-learn estimators
:class:`Function`        all base predictors at once, as one function
resolve_base             make a Dictionary from any description of one
outputs                  outputs of the base predictors for every row, checked
=======================  =====================================================================
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import sparse

from .._checks import choice, integer
from ..errors import DataError, ParameterError
from .matrix import as_features, nonfinite

__all__ = ["Dictionary", "Ensemble", "Function", "StumpDictionary", "Stumps", "outputs", "resolve_base"]

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

_EMPTY = "a dictionary needs at least one base predictor"


class Dictionary(ABC):
    """Base predictors, numbered from 0.

    A subclass defines their number (`size`) and their outputs for rows (`transform`).

    Examples
    --------
    >>> class Coordinates(Dictionary):
    ...     size = 2
    ...
    ...     def transform(self, X):
    ...         return np.array(X, dtype=float, order="C")
    >>> outputs(Coordinates(), np.array([[1.0, 2.0]]))
    array([[1., 2.]])
    """

    @property
    @abstractmethod
    def size(self) -> int:
        """Number of base predictors."""

    @abstractmethod
    def transform(self, X: Any) -> Floats:
        """Return the outputs of the base predictors.

        Parameters
        ----------
        X : array or sparse matrix of shape (rows, p)

        Returns
        -------
        (rows, size) ndarray
            float64, C-contiguous; h_j of row r is at ``[r, j]``.
        """

    def describe(self, j: int) -> str:
        """Describe one base predictor."""
        return f"base predictor {j}"


@dataclass(frozen=True, eq=False, repr=False)
class StumpDictionary(Dictionary):
    """Decision stumps: ``h(x) = +1 if x[feature] > threshold else -1``.

    The output of a stump is NaN if its feature is missing (NaN), and :func:`outputs` refuses NaN.
    """

    feature: Integers
    threshold: Floats
    from_data = False  # whether thresholds were placed by data, and thus reveal something about the data

    def __init__(self, feature: ArrayLike, threshold: ArrayLike) -> None:
        features, thresholds = np.array(feature), np.array(threshold)  # copies, which are made read-only below
        if features.ndim != 1 or features.shape != thresholds.shape:
            raise ParameterError(
                f"feature has shape {features.shape} and threshold {thresholds.shape}: expected one of each per stump"
            )
        if features.size == 0:
            raise ParameterError(f"no stumps: {_EMPTY}")
        if features.dtype.kind not in "iu" or features.min() < 0:
            raise ParameterError("feature must hold the column of each stump, whole numbers >= 0")
        if thresholds.dtype.kind not in "iuf" or not np.isfinite(thresholds).all():
            raise ParameterError("threshold must hold a finite number per stump")
        for name, array in (("feature", features.astype(np.int64)), ("threshold", thresholds.astype(np.float64))):
            array.flags.writeable = False
            object.__setattr__(self, name, array)

    @property
    def size(self) -> int:
        """Number of stumps."""
        return int(self.feature.size)

    def transform(self, X: Any) -> Floats:
        """Return the outputs of the stumps, -1 and +1."""
        matrix = as_features(X, np.float64)[0]
        last = int(self.feature.max())
        if matrix.shape[1] <= last:
            raise DataError(f"X has {matrix.shape[1]} columns, but there are stumps of column {last}")
        values = matrix[:, self.feature]
        if sparse.issparse(values):
            values = values.toarray()
        result = np.where(values > self.threshold, 1.0, -1.0)
        # Comparisons with NaN are False: without this line, a missing value would count as a small one.
        result[np.isnan(values)] = np.nan
        return np.ascontiguousarray(result)

    def describe(self, j: int) -> str:
        """Describe one stump by the condition for +1."""
        return f"base predictor {j} (x[{self.feature[j]}] > {self.threshold[j]:g})"

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Return the stumps as arrays, which :meth:`from_arrays` reads."""
        return {"feature": self.feature, "threshold": self.threshold}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, ArrayLike]) -> StumpDictionary:
        """Return the stumps that :meth:`to_arrays` wrote."""
        for name in ("feature", "threshold"):
            if name not in arrays:
                raise DataError(f"no array {name!r} among {sorted(arrays)}: these are not stumps")
        return cls(arrays["feature"], arrays["threshold"])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, StumpDictionary):
            return NotImplemented
        return np.array_equal(self.feature, other.feature) and np.array_equal(self.threshold, other.threshold)

    def __hash__(self) -> int:
        return hash((tuple(self.feature.tolist()), tuple(self.threshold.tolist())))

    def __repr__(self) -> str:
        return f"StumpDictionary(size={self.size}, features={np.unique(self.feature).size})"


@dataclass(frozen=True)
class Stumps:
    """Number and placement of decision stumps, independent of data until ``fitted`` is called.

    The stumps are divided over the features as evenly as possible: if `count` is no multiple of the number of features,
    the first features get one more; if `count` is smaller, evenly spread features get one each. The stumps of a
    constant feature always return -1.

    Parameters
    ----------
    count : int
        Number of stumps.
    spread : {"uniform", "quantile"}
        Placement of the c thresholds of a feature: in the middle of c equal parts of its value range, or at its
        ``(k + 1/2) / c`` quantiles.
    low, high : float or (p,) array, optional
        Public value range of the features, for ``spread="uniform"``. By default the range is taken from the data of all
        agents, so that all agents learn the smallest and the largest value of every feature. Give both arguments to
        avoid this.

    Notes
    -----
    Quantiles reveal more about the data than the range does, and are refused together with `low` and `high`.

    Examples
    --------
    >>> Stumps(4, low=0.0, high=1.0).fitted(np.zeros((1, 2))).to_arrays()
    {'feature': array([0, 0, 1, 1]), 'threshold': array([0.25, 0.75, 0.25, 0.75])}
    >>> Stumps(2, spread="quantile").fitted(np.array([[0.0], [1.0], [2.0], [3.0], [100.0]])).threshold
    array([1., 3.])
    """

    count: int = 200
    spread: str = "uniform"
    low: Any = None
    high: Any = None

    def __post_init__(self) -> None:
        count = integer("count", self.count)
        choice("spread", self.spread, ("uniform", "quantile"))
        # Stored as plain numbers and tuples, so that two Stumps can be compared and hashed.
        low, high = _bound("low", self.low), _bound("high", self.high)
        if (low is None) != (high is None):
            missing, given = ("low", "high") if low is None else ("high", "low")
            raise ParameterError(f"{given} is given without {missing}: expected both ends of the range, or neither")
        if low is not None and high is not None:
            if self.spread == "quantile":
                raise ParameterError("low and high: quantiles come from data, not from a range; leave both out")
            if isinstance(low, tuple) and isinstance(high, tuple) and len(low) != len(high):
                raise ParameterError(
                    f"low has {len(low)} values and high {len(high)}: expected one value of each for every feature"
                )
            lows, highs = np.broadcast_arrays(np.atleast_1d(low), np.atleast_1d(high))
            if (lows > highs).any():
                j = int((lows > highs).argmax())
                feature = f" for feature {j}" if lows.size > 1 else ""
                raise ParameterError(f"low={lows[j]} is above high={highs[j]}{feature}")
        object.__setattr__(self, "count", count)
        object.__setattr__(self, "low", low)
        object.__setattr__(self, "high", high)

    def fitted(self, X: Any) -> StumpDictionary:
        """Return the stumps for some data.

        Parameters
        ----------
        X : array or sparse matrix of shape (rows, p)
            If `low` and `high` are given, only its number of columns matters.

        Returns
        -------
        StumpDictionary
            Ordered by feature, and by threshold.

        Examples
        --------
        >>> Stumps(3).fitted(np.array([[0.0, 10.0], [4.0, 20.0]])).to_arrays()
        {'feature': array([0, 0, 1]), 'threshold': array([ 1.,  3., 15.])}
        """
        matrix = as_features(X, np.float64)[0]
        p = matrix.shape[1]
        if self.low is None:
            if matrix.shape[0] == 0:
                raise DataError("X has no rows to place stumps by; give Stumps(low=..., high=...)")
            rows, columns = nonfinite(matrix)
            if rows.size:
                place = int(rows[0]), int(columns[0])
                raise DataError(f"row {place[0]}: column {place[1]} of X is {matrix[place]}: expected finite features")
        counts = np.full(p, self.count // p)
        if self.count < p:
            # Steps are at least one, so that no two of them round to the same feature.
            counts[np.linspace(0, p - 1, self.count).round().astype(int)] = 1
        else:
            counts[: self.count % p] += 1
        feature = np.repeat(np.arange(p), counts)
        level = np.concatenate([(np.arange(c) + 0.5) / c for c in counts if c])
        if self.spread == "quantile":
            columns = sparse.csc_array(matrix) if sparse.issparse(matrix) else matrix
            threshold = np.concatenate(
                [np.quantile(_column(columns, j), level[feature == j]) for j in np.flatnonzero(counts).tolist()]
            )
        else:
            low, high = self._range(matrix)
            with np.errstate(over="ignore"):
                width = high - low
            if not np.isfinite(width).all():
                raise DataError(f"feature {np.argmin(np.isfinite(width))}: its range is too wide for a float; scale it")
            threshold = low[feature] + level * width[feature]
        stumps = StumpDictionary(feature, threshold)
        object.__setattr__(stumps, "from_data", self.low is None)
        return stumps

    def _range(self, matrix: Any) -> tuple[Floats, Floats]:
        p = matrix.shape[1]
        if self.low is None:
            ends = matrix.min(axis=0), matrix.max(axis=0)
            low, high = (end.toarray().ravel() if sparse.issparse(end) else end for end in ends)
            return low, high
        for name, end in (("low", self.low), ("high", self.high)):
            if isinstance(end, tuple) and len(end) != p:
                raise ParameterError(f"{name} has {len(end)} values for {p} features: expected one number, or {p}")
        return np.broadcast_to(self.low, p).astype(np.float64), np.broadcast_to(self.high, p).astype(np.float64)


@dataclass(frozen=True, init=False, repr=False)
class Ensemble(Dictionary):
    """Fitted estimators of scikit-learn, or other objects with a ``predict`` method.

    A classifier must have exactly two classes: its output is -1 for the first of its ``classes_`` and +1 for the
    second. The output of a regressor is its prediction.
    """

    estimators: tuple[Any, ...]

    def __init__(self, estimators: Iterable[Any]) -> None:
        object.__setattr__(self, "estimators", tuple(estimators))
        if not self.estimators:
            raise ParameterError(f"the list of estimators is empty: {_EMPTY}")
        for j, estimator in enumerate(self.estimators):
            self._check(j, estimator)

    def _check(self, j: int, estimator: Any) -> None:
        if isinstance(estimator, type):
            raise ParameterError(f"base predictor {j} is the class {estimator.__name__}: expected a fitted instance")
        if not hasattr(estimator, "predict"):
            raise ParameterError(f"{self.describe(j)} has no predict: expected a fitted estimator")
        # Only estimators that follow scikit-learn's rules can tell whether they are fitted.
        if hasattr(estimator, "fit") and hasattr(estimator, "__sklearn_tags__"):
            from sklearn.exceptions import NotFittedError  # imported here: the import takes most of a second
            from sklearn.utils.validation import check_is_fitted

            try:
                check_is_fitted(estimator)
            except NotFittedError:
                raise ParameterError(f"{self.describe(j)} is not fitted: call its fit first") from None
        classes = getattr(estimator, "classes_", None)
        if isinstance(classes, list) and not np.isscalar(classes[0]):
            raise ParameterError(f"{self.describe(j)} predicts {len(classes)} labels for each row: expected one")
        if classes is not None and len(classes) != 2:
            found = ", ".join(str(c) for c in classes[:5]) + (", ..." if len(classes) > 5 else "")
            raise ParameterError(f"{self.describe(j)}: its classes are {found}: expected exactly two")

    @property
    def size(self) -> int:
        """Number of estimators."""
        return len(self.estimators)

    def transform(self, X: Any) -> Floats:
        """Return the outputs of the estimators."""
        matrix = as_features(X, np.float64)[0]
        rows = matrix.shape[0]
        result = np.empty((rows, self.size))
        if rows == 0:  # scikit-learn refuses empty arrays
            return result
        for j, estimator in enumerate(self.estimators):
            said = np.asarray(estimator.predict(matrix))
            if said.shape != (rows,):
                raise DataError(f"{self.describe(j)} predicts an array of shape {said.shape}: expected {(rows,)}")
            classes = getattr(estimator, "classes_", None)
            if classes is not None:
                result[:, j] = np.where(said == classes[1], 1.0, -1.0)
            else:
                result[:, j] = _numbers(said, self.describe(j))
        return result

    def describe(self, j: int) -> str:
        """Describe one estimator by its number and type."""
        return f"base predictor {j} ({type(self.estimators[j]).__name__})"

    def __repr__(self) -> str:
        kinds = dict.fromkeys(type(estimator).__name__ for estimator in self.estimators)
        return f"Ensemble(size={self.size}, {', '.join(kinds)})"


class Function(Dictionary):
    """All base predictors as one function of X.

    The number of base predictors is found at the first call on data, and must not change later.
    """

    def __init__(self, call: Callable[[Any], ArrayLike]) -> None:
        if not callable(call):
            raise ParameterError(f"call is {type(call).__name__}, which cannot be called: expected a function of X")
        self.call = call
        self._size: int | None = None

    @property
    def size(self) -> int:
        """Number of base predictors, known after the first use."""
        if self._size is None:
            raise ParameterError("the number of a function's base predictors is not known before its first use on data")
        return self._size

    def transform(self, X: Any) -> Floats:
        """Return the outputs of the function."""
        matrix = as_features(X, np.float64)[0]
        returned: Any = self.call(matrix)
        said = returned.toarray() if sparse.issparse(returned) else np.asarray(returned)
        rows = matrix.shape[0]
        wanted = f"({rows}, size)" if self._size is None else f"({rows}, {self._size})"
        if said.ndim != 2 or said.shape[0] != rows or self._size not in (None, said.shape[1]):
            raise DataError(f"the function returned an array of shape {said.shape}: expected {wanted}")
        if said.shape[1] == 0:
            raise DataError(f"the function returned an array of shape {said.shape}: {_EMPTY}")
        numbers = _numbers(said, "the function")
        self._size = int(said.shape[1])
        return np.ascontiguousarray(numbers)

    def __eq__(self, other: object) -> bool:
        return self.call == other.call if isinstance(other, Function) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.call)

    def __repr__(self) -> str:
        return f"Function({getattr(self.call, '__name__', repr(self.call))})"


def resolve_base(base: Any, X: Any) -> Dictionary:
    """Return a dictionary from any description of one."""
    if isinstance(base, Dictionary):
        return base
    if isinstance(base, Integral) and not isinstance(base, bool):
        base = Stumps(int(base))
    if isinstance(base, Stumps):
        return base.fitted(X)
    if isinstance(base, list | tuple):
        return Ensemble(base)
    if isinstance(base, type):  # a class is callable, but is no function of X
        raise ParameterError(f"base is the class {base.__name__}: expected an instance of it")
    if hasattr(base, "predict"):
        raise ParameterError(f"base is a single {type(base).__name__}: expected a list of fitted estimators")
    if callable(base):
        function = Function(base)
        function.transform(X)  # sets its size, and refuses a wrong shape before a run
        return function
    raise ParameterError(
        f"base={base!r} is {type(base).__name__}: expected Stumps, a whole number of stumps, a Dictionary,"
        " a list of fitted estimators, or a function of X"
    )


def outputs(dictionary: Dictionary, X: Any, where: Callable[[int], str] | None = None) -> Floats:
    """Return the outputs of the base predictors for every row, checked."""
    if getattr(X, "dtype", None) == np.float32:
        X = X.astype(np.float64)  # the precision of all computations
    said = np.ascontiguousarray(dictionary.transform(X), dtype=np.float64)
    expected = (X.shape[0] if hasattr(X, "shape") else len(X), dictionary.size)
    if said.shape != expected:
        raise DataError(f"{dictionary!r} returned an array of shape {said.shape}: expected {expected}")
    bad = ~np.isfinite(said)
    if bad.any():
        row, j = (int(k) for k in np.unravel_index(bad.argmax(), bad.shape))
        place = f"row {row}" if where is None else where(row)
        raise DataError(f"{place}: {dictionary.describe(j)} says {said[row, j]}: expected finite outputs")
    return said


def _column(columns: Any, j: int) -> Floats:
    return columns[:, [j]].toarray().ravel() if sparse.issparse(columns) else columns[:, j]


def _numbers(said: np.ndarray, who: str) -> Floats:
    if said.dtype.kind not in "biuf":
        raise DataError(f"{who} says {said.flat[0]!r}: expected numbers" if said.size else f"{who}: expected numbers")
    return said.astype(np.float64)


def _bound(name: str, value: Any) -> float | tuple[float, ...] | None:
    if value is None:
        return None
    array = np.asarray(value)
    if array.dtype.kind not in "iuf" or array.ndim > 1 or array.size == 0 or not np.isfinite(array).all():
        raise ParameterError(f"{name}={value!r} must be a finite number, or one per feature")
    return tuple(array.astype(float).tolist()) if array.ndim else float(array)
