"""Hyper-parameters, chosen by cross-validation inside each agent's own training rows (DADA, appendix E.1)."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import numpy as np
import pandas as pd
from scipy import sparse
from sklearn.base import clone, is_classifier
from sklearn.exceptions import ConvergenceWarning
from sklearn.model_selection import ParameterGrid

from ..data import AgentData
from ..data.agent_data import as_agent_ids, split_frame
from ..errors import CoterieError, DataError, ParameterError

#: What is tried by default, of those parameters that the estimator has and uses.
GRID = {"mu": (0.1, 1, 10), "lam": (0.1, 1, 10), "beta": (1, 3, 10, 30)}

#: Scores that differ by less than this are equal, and the first wins.
TIE = 1e-12


@dataclass(frozen=True, repr=False, eq=False)
class Tuning:
    """The outcome of :func:`tune`.

    Attributes
    ----------
    estimator : estimator
        A clone of the one given, with the best parameters set; not fitted.
    parameters : dict
        The best parameters.
    score : float
        Their score: the mean, over folds, of the mean over agents of accuracy or of minus the root mean squared error.
    table : DataFrame
        One row for each point of the grid: its parameters, score and std (mean and standard deviation over folds),
        unconverged (how many of its fits warned that they had not converged), and failed (why a fit was refused, or
        ""). A point that failed has no score.

    Examples
    --------
    >>> import coterie as ct
    >>> X, y, ids = [[0.0], [1.0], [2.0], [3.0]], [0.0, 2.0, 4.0, 6.0], ["ann", "ann", "bob", "bob"]
    >>> result = tune(ct.CollaborativeRegressor(ridge=0.01), X, y, ids, {"mu": [0.01, 100.0]}, count=2)
    >>> result.parameters
    {'mu': 0.01}
    >>> result.estimator.mu
    0.01
    """

    estimator: Any
    parameters: dict[str, Any]
    score: float
    table: pd.DataFrame

    def __repr__(self) -> str:
        chosen = ", ".join(f"{name}={value!r}" for name, value in self.parameters.items())
        lines = [
            f"Tuning of {type(self.estimator).__name__}: {chosen} is best of {len(self.table)}, score {self.score:.6g}"
        ]
        if unconverged := int(self.table["unconverged"].sum()):
            lines.append(f"  {unconverged} of the fits had not converged")
        if failed := int((self.table["failed"] != "").sum()):
            lines.append(f"  {failed} of the points failed: see table['failed']")
        shown = self.table.drop(columns=["unconverged", "failed"])
        return "\n".join([*lines, shown.to_string(max_rows=20, max_colwidth=40)])


def folds(ids: Any, count: int = 3, seed: int = 0, y: Any = None) -> np.ndarray:
    """Deal each agent's rows out to folds, as evenly as its rows allow.

    Parameters
    ----------
    ids : (rows,) sequence of hashables
        Whose row it is.
    count : int
        How many folds.
    seed : int
        Of the shuffling.
    y : (rows,) array_like, optional
        Classes: each agent's rows of one class are then spread over the folds as evenly as possible, too.

    Returns
    -------
    (rows,) int ndarray
        The fold in which a row is tested; -1 for the only row of an agent, which is always trained on. So every agent
        has rows to train on in every fold.

    Examples
    --------
    >>> fold = folds(["ann", "ann", "ann", "bob"])
    >>> sorted(fold[:3].tolist()), fold[3].item()
    ([0, 1, 2], -1)
    """
    ids = as_agent_ids(ids)
    if not len(ids):
        raise DataError("agents holds no ids: there are no rows to split")
    _check_count(count)
    classes = np.zeros(len(ids), int) if y is None else pd.factorize(_labels(y, len(ids)))[0]
    _, owner, sizes = _owners(ids)
    random = np.random.default_rng(seed)
    order = random.permutation(len(ids))
    order = order[np.lexsort((classes[order], owner[order]))]  # stable: still shuffled within agent and class
    rank = np.arange(len(ids)) - (np.cumsum(sizes) - sizes)[owner[order]]
    # Dealt out from a fold of its own choice, or the first folds would test all the small agents.
    dealt = (rank + random.integers(count, size=len(sizes))[owner[order]]) % count
    fold = np.empty(len(ids), int)
    fold[order] = np.where(sizes[owner[order]] > 1, dealt, -1)
    return fold


def tune(
    estimator: Any,
    X: Any,
    y: Any,
    agents: Any,
    grid: Mapping[str, Iterable[Any]] | None = None,
    count: int = 3,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
) -> Tuning:
    """Choose hyper-parameters by cross-validation: in each fold, every agent tests on some of its own rows.

    A point of the grid is scored by each agent's accuracy (minus its root mean squared error, if the estimator is no
    classifier), averaged over the agents that have rows in the fold, whatever their number, and then over folds. Give
    it training rows only: what is chosen then knows nothing of the rows kept for the final test.

    Parameters
    ----------
    estimator : estimator
        With ``fit(X, y, agents=ids)`` and ``predict(X, agents=ids)``. It is cloned, never changed.
    X : (rows, p) array_like, sparse matrix or DataFrame
    y : (rows,) array_like
    agents : (rows,) sequence of hashables, or a column name of X
        Whose row it is.
    grid : mapping, optional
        Values to try, by the name of the parameter. By default 0.1, 1, 10 for mu and lam and 1, 3, 10, 30 for beta,
        whichever of them the estimator has.
    count : int
        How many folds.
    seed : int
        Of the folds, see :func:`folds`.
    progress : callable, optional
        Called with (fits done, fits in all) after each fit.

    Returns
    -------
    Tuning

    Raises
    ------
    ParameterError
        If the grid is empty or names what the estimator does not have, or there are fewer than two folds.
    DataError
        If no agent has two rows.
    CoterieError
        The first one, if the fits of all points were refused.

    Notes
    -----
    Of points with the same score the first in the order of the grid (names sorted, the last one varying fastest) wins.
    An estimator whose parameter ``members`` is None is told all agents, so that they have the same numbers in every
    fold. After a refused fit, the remaining folds of its point are skipped.

    Examples
    --------
    >>> import numpy as np
    >>> import coterie as ct
    >>> random = np.random.default_rng(0)
    >>> X, agents = random.normal(size=(48, 3)), np.repeat(np.arange(8), 6)
    >>> y = X @ [1.0, -1.0, 2.0] + random.normal(size=48)
    >>> result = tune(ct.CollaborativeRegressor(graph=ct.graphs.complete(8)), X, y, agents, {"mu": [0.1, 100.0]})
    >>> result.parameters  # all agents want the same model, so they should collaborate
    {'mu': 0.1}
    >>> model = result.estimator.fit(X, y, agents=agents)
    """
    points = _points(estimator, grid)
    _check_count(count)
    if isinstance(agents, str):
        X, [agents] = split_frame(X, agents)
    X = _indexable(X)
    ids = as_agent_ids(agents, X.shape[0])
    classifies = is_classifier(estimator)
    y = _labels(y, len(ids)) if classifies else _numbers(y, len(ids))
    fold = folds(ids, count, seed, y if classifies else None)
    members, owner, _ = _owners(ids)
    # With fewer rows than folds for every agent, a fold may have nothing to test.
    tested = [number for number in range(count) if (fold == number).any()]
    if not tested:
        raise DataError("no agent has two rows: cross-validation trains on some of an agent's rows and tests on others")

    def score(model: Any, test: np.ndarray) -> float:
        rows = np.flatnonzero(~test)
        model.fit(_take(X, rows), y[rows], agents=ids[rows])
        rows = np.flatnonzero(test)
        found = np.asarray(model.predict(_take(X, rows), agents=ids[rows]))
        if found.shape != rows.shape:
            raise DataError(f"predict returned shape {found.shape} for {rows.size} rows: one number each is needed")
        agreement = found == y[rows] if classifies else -np.square(found - y[rows])
        _, who = np.unique(owner[rows], return_inverse=True)
        means = np.bincount(who, agreement) / np.bincount(who)
        if not np.isfinite(means).all():
            raise DataError("predict returned numbers that are not finite")
        return float(np.mean(means if classifies else -np.sqrt(-means)))

    lines, errors = [], []
    for number, point in enumerate(points):
        scores, unconverged, failed = [], 0, ""
        for k, this in enumerate(tested, start=1):
            done = number * len(tested) + k
            try:
                model = _with(estimator, point, members)
                got, warned = _without_warnings(score, model, fold == this)
                scores.append(got)
                unconverged += warned
            except CoterieError as error:
                errors.append(error)
                scores, failed = [np.nan], str(error) or type(error).__name__
                done = (number + 1) * len(tested)
            if progress is not None:
                progress(done, len(points) * len(tested))
            if failed:
                break
        lines.append(
            {**point, "score": np.mean(scores), "std": np.std(scores), "unconverged": unconverged, "failed": failed}
        )
    if len(errors) == len(points):
        raise errors[0]
    table = pd.DataFrame(lines)
    best = int(np.argmax(table["score"] >= table["score"].max() - TIE))  # the first, of equals
    return Tuning(
        estimator=clone(estimator).set_params(**points[best]),
        parameters=points[best],
        score=float(table["score"].iloc[best]),
        table=table,
    )


def _points(estimator: Any, grid: Any) -> list[dict[str, Any]]:
    """Every point of the grid, once it has been found fit for the estimator."""
    if not hasattr(estimator, "get_params"):
        raise ParameterError(f"estimator={estimator!r} has no get_params: it must be a scikit-learn estimator")
    known = sorted(estimator.get_params())
    if grid is None:
        given = estimator.get_params()
        graph, method = given.get("graph", "learn"), given.get("method")
        learns = graph is None or (isinstance(graph, str) and graph == "learn")
        grid = {name: values for name, values in GRID.items() if name in known and (name != "lam" or learns)}
        if isinstance(method, str) and method == "pooling":
            raise ParameterError(
                'method="pooling" learns its strengths by itself, there is nothing to tune by default: give '
                "grid={name: values}, or another method"
            )
        if not grid:
            raise ParameterError(
                f"{type(estimator).__name__} has none of the parameters that are tuned by default "
                f"({', '.join(GRID)}): give grid={{name: values}}; it has {', '.join(known) or 'no parameters'}"
            )
    if not isinstance(grid, Mapping) or not grid:
        raise ParameterError(f"grid={grid!r} must map the name of at least one parameter to the values to try")
    for name, values in grid.items():
        if name not in known:
            raise ParameterError(
                f"grid: {type(estimator).__name__} has no parameter {name!r}; it has {', '.join(known)}"
            )
        listed = isinstance(values, Iterable) and not isinstance(values, str | bytes | Mapping)
        if not listed or getattr(values, "ndim", 1) != 1:
            raise ParameterError(f"grid: the values of {name!r} must be a list, got {values!r}")
    lists = {name: list(values) for name, values in grid.items()}
    for name, values in lists.items():
        if not values:
            raise ParameterError(f"grid: there are no values to try for {name!r}")
    return list(ParameterGrid(lists))


def _with(estimator: Any, point: dict[str, Any], members: tuple[Any, ...]) -> Any:
    """A clone at this point of the grid, which knows all agents."""
    model = clone(estimator).set_params(**point)
    if model.get_params(deep=False).get("members", members) is None:
        model.set_params(members=members)
    return model


def _without_warnings(score: Callable[..., float], model: Any, test: np.ndarray) -> tuple[float, bool]:
    """The score, and whether the fit had not converged. Other warnings are passed on."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ConvergenceWarning)
        value = score(model, test)
    others = [warning for warning in caught if not issubclass(warning.category, ConvergenceWarning)]
    for warning in others:
        warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
    return value, len(others) < len(caught)


def _check_count(count: Any) -> None:
    if not isinstance(count, Integral) or count < 2:
        raise ParameterError(f"count={count!r} must be an integer, at least 2: one fold is tested, the rest train")


def _owners(ids: np.ndarray) -> tuple[tuple[Any, ...], np.ndarray, np.ndarray]:
    """The agents, the number of each row's agent, and how many rows each has."""
    data = AgentData(np.zeros((len(ids), 1)), agents=ids)
    owner = np.empty(len(ids), int)
    owner[data.origin] = data.owner
    return data.members, owner, data.sizes


def _labels(y: Any, rows: int) -> np.ndarray:
    labels = np.asarray(y)
    if labels.shape != (rows,):
        raise DataError(f"y has shape {labels.shape} for {rows} rows; one label per row is needed")
    return labels


def _numbers(y: Any, rows: int) -> np.ndarray:
    labels = _labels(y, rows)
    try:
        return labels.astype(np.float64)
    except (TypeError, ValueError):
        raise DataError("y must hold numbers, as the estimator is no classifier (no ClassifierMixin)") from None


def _indexable(X: Any) -> Any:
    """X, in a form whose rows can be taken."""
    if sparse.issparse(X):
        return X.tocsr()
    X = X if hasattr(X, "columns") else np.asarray(X)
    if not X.shape:
        raise DataError(f"X must be 2-D, (rows, features); got {X.item()!r}")
    return X


def _take(X: Any, rows: np.ndarray) -> Any:
    return X.iloc[rows] if hasattr(X, "iloc") else X[rows]
