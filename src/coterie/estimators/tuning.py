"""Hyper-parameter search by cross-validation inside each agent's own rows (DADA, appendix E.1).

Fits and scores equal those of scikit-learn's ``GridSearchCV`` with the splitter :class:`WithinAgents`. Each grid point
in each fold is a separate task, for this process, for other processes, or for a cluster.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from functools import wraps
from typing import Any

import numpy as np
import pandas as pd
from sklearn.base import clone, is_classifier
from sklearn.metrics import get_scorer
from sklearn.model_selection import BaseCrossValidator, ParameterGrid
from sklearn.utils import _safe_indexing, indexable
from sklearn.utils.multiclass import type_of_target
from sklearn.utils.parallel import Parallel, delayed

from .._checks import integer
from .._folds import dealt, places, split
from ..data.frames import split_ids
from ..data.ids import agent_codes, as_agent_ids
from ..data.table import split_target
from ..engines.cluster import Cluster, check_cluster
from ..errors import CoterieError, DataError, ParameterError, about
from .collaborative import gives_probabilities

#: Default values to try, for the parameters that the estimator has and uses.
GRID = {"coupling": (0.1, 1, 10), "lam": (0.1, 1, 10), "beta": (1, 3, 10, 30)}

Scoring = str | Callable[[Any, Any, Any, Any], float]


# -- folds ------------------------------------------------------------------------------------------------------------


def folds(ids: Any, count: int = 3, seed: int = 0, y: Any = None, shuffle: bool = True) -> np.ndarray:
    """Return the fold in which each row is tested; -1 for the only row of an agent, which is always used for training.

    Each agent's rows, and with classes y also its rows of one class, are divided as evenly as possible, so that every
    agent has rows to train on in every fold.
    """
    ids = as_agent_ids(ids)
    if not len(ids):
        raise DataError("agents holds no ids: there are no rows to split")
    integer("count", count, least=2)
    classes = np.zeros(len(ids), int) if y is None else pd.factorize(_labels(y, len(ids)))[0]
    owner = agent_codes(ids)[0]
    sizes = np.bincount(owner)
    random = np.random.default_rng(seed)
    order = random.permutation(len(ids)) if shuffle else np.arange(len(ids))
    # Each agent starts at a random fold, or the first folds would test all small agents.
    first = random.integers(count, size=len(sizes)) if shuffle else np.arange(len(sizes))
    fold = dealt(owner, places(owner, np.argsort(order), classes), first, count)
    return np.where(sizes[owner] > 1, fold, -1)


class WithinAgents(BaseCrossValidator):
    """Cross-validation inside agents: in each fold, agents test on some of their own rows and train on the others.

    Every agent has training rows in every fold; predictions for new agents are not tested. Each row is tested once,
    except for the only row of an agent, which is always used for training. Where y holds classes, the rows of one class
    of each agent are spread over the folds.

    Parameters
    ----------
    n_splits : int
        Number of folds, at least 2.
    shuffle : bool
        Whether rows are shuffled before they are divided into folds.
    random_state : int
        Seed of the shuffling.

    Examples
    --------
    Pass it to scikit-learn's functions as ``cv``, with the agents as ``groups``:

    >>> import coterie as ct
    >>> agents = ["ann", "ann", "ann", "bob", "bob", "cyd"]
    >>> for train, test in ct.WithinAgents(n_splits=2, shuffle=False).split(agents, groups=agents):
    ...     print(train, test)
    [1 3 5] [0 2 4]
    [0 2 4 5] [1 3]
    """

    __metadata_request__split = {"groups": True}  # noqa: RUF012 - the name and form that scikit-learn looks for

    def __init__(self, n_splits: int = 3, *, shuffle: bool = True, random_state: int = 0):
        self.n_splits = n_splits
        self.shuffle = shuffle
        self.random_state = random_state

    def split(self, X: Any, y: Any = None, groups: Any = None) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Generate training and test rows for each fold.

        Parameters
        ----------
        X : ignored
        y : (rows,) array_like, optional
            Classes are stratified; numbers are ignored.
        groups : (rows,) sequence of hashables
            The agent of each row.

        Yields
        ------
        (train, test) : pair of ndarray of int
            Indices of rows.
        """
        count, seed = self.get_n_splits(), integer("random_state", self.random_state, least=0)
        if groups is None:
            raise DataError("groups is missing: pass the agent of every row, one id for each row")
        classes = y is not None and type_of_target(y) in ("binary", "multiclass")
        fold = folds(groups, count, seed, y if classes else None, self.shuffle)
        tested = np.bincount(fold[fold >= 0], minlength=count)
        if not tested.any():
            raise DataError(
                "no agent has two rows: cross-validation trains on some of an agent's rows and tests on others"
            )
        if not tested.all():
            raise DataError(
                f"n_splits={count} leaves a fold without rows to test: agents have too few rows, choose fewer folds"
            )
        for train, test in split(fold):
            yield np.flatnonzero(train), np.flatnonzero(test)

    def get_n_splits(self, X: Any = None, y: Any = None, groups: Any = None) -> int:
        """Return the number of folds.

        Parameters
        ----------
        X, y, groups : ignored

        Returns
        -------
        int
        """
        return integer("n_splits", self.n_splits, least=2)


def _labels(y: Any, rows: int) -> np.ndarray:
    labels = np.asarray(y)
    if labels.shape != (rows,):
        raise DataError(f"y has shape {labels.shape} for {rows} rows; one label per row is needed")
    return labels


# -- the search -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, repr=False, eq=False)
class Tuning:
    """The result of :func:`tune`.

    Attributes
    ----------
    best_params_ : dict
        The best parameters.
    best_score_ : float
        Mean score of the best parameters over folds.
    best_estimator_ : estimator
        A clone of the estimator with the best parameters, fitted to all rows unless ``refit=False``.
    table : DataFrame
        One row for each grid point: its parameters, and the mean (``score``) and standard deviation (``std``) of its
        scores over folds.
    """

    best_params_: dict[str, Any]
    best_score_: float
    best_estimator_: Any
    table: pd.DataFrame

    def __repr__(self) -> str:
        chosen = ", ".join(f"{name}={value!r}" for name, value in self.best_params_.items())
        name = type(self.best_estimator_).__name__
        first = f"Tuning of {name}: {chosen} is best of {len(self.table)}, score {self.best_score_:.6g}"
        return f"{first}\n{self.table.to_string(max_rows=20, max_colwidth=40)}"


def tune(
    estimator: Any,
    X: Any,
    y: Any,
    agents: Any,
    grid: Mapping[str, Iterable[Any]] | None = None,
    n_splits: int = 3,
    random_state: int = 0,
    scoring: Scoring | None = None,
    refit: bool = True,
    n_jobs: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    engine: Cluster | None = None,
) -> Tuning:
    """Choose hyper-parameters by cross-validation: in each fold, every agent tests on some of its own rows.

    Scores equal those of scikit-learn's ``GridSearchCV`` with :class:`WithinAgents`. Pass training rows only, so that
    the choice does not depend on the rows kept for the final test.

    Parameters
    ----------
    estimator : estimator
        An estimator with ``fit(X, y, agents=ids)`` and ``predict(X, agents=ids)``, which is cloned and not changed.
    X : (rows, p) array_like, sparse matrix or DataFrame
    y : (rows,) array_like, or a column name of X
    agents : (rows,) sequence of hashables, or a column name of X
        The agent of each row.
    grid : mapping, optional
        Values to try, by the name of the parameter. Default: 0.1, 1, 10 for coupling and lam and 1, 3, 10, 30 for beta,
        for those of these parameters that the estimator has.
    n_splits : int
        Number of folds.
    random_state : int
        Seed of the folds.
    scoring : str or callable, optional
        A name of one of scikit-learn's scores, or a function of (fitted estimator, X, y, agents); larger is better.
        Default: minus the squared error for a regressor; minus the log-loss for a classifier, or its accuracy if its
        loss gives no probabilities; each over all rows of a fold.
    refit : bool
        Whether the best estimator is fitted to all rows.
    n_jobs : int, optional
        Number of processes, as in scikit-learn.
    progress : callable, optional
        Called with (fits done, fits in all) after each fit.
    engine : Cluster, optional
        Cluster whose tasks run the fits; the rows are sent once, and the result is the same. The best estimator is
        fitted to all rows in this process. The estimator itself must have ``engine=None``.

    Returns
    -------
    Tuning

    Raises
    ------
    ParameterError
        If the grid is empty or names a parameter that the estimator does not have, or there are fewer than two folds;
        also for every error of a fit, which then names the grid point and the fold.
    DataError
        If no agent has two rows.

    Examples
    --------
    >>> import numpy as np
    >>> import coterie as ct
    >>> random = np.random.default_rng(0)
    >>> X, agents = random.normal(size=(48, 3)), np.repeat(np.arange(8), 6)
    >>> y = X @ [1.0, -1.0, 2.0] + random.normal(size=48)
    >>> model = ct.CollaborativeRegressor(method="cd", graph=ct.graphs.complete(8))
    >>> result = ct.tune(model, X, y, agents, {"coupling": [0.01, 10.0]})
    >>> result.best_params_  # all agents want the same model, so they should collaborate
    {'coupling': 10.0}
    >>> result.best_estimator_.predict(X[:2], agents=agents[:2]).shape
    (2,)
    """
    points = list(_grid(estimator, grid))
    check_cluster(engine, n_jobs=n_jobs)
    if engine is not None:
        _refuse_nesting(estimator, points)
    rows, labels, _ = split_target(X, y)
    rows, ids, _ = split_ids(rows, agents)
    ids = as_agent_ids(ids, len(rows) if isinstance(rows, list) else rows.shape[0])
    _labels(labels, len(ids))
    classes = is_classifier(estimator)
    default = (
        (_log_loss if gives_probabilities(estimator.get_params().get("loss")) else "accuracy")
        if classes
        else _squared_error
    )
    # Whole numbers look like classes: a regression does not show its labels to the splitter.
    splits = list(
        WithinAgents(n_splits, random_state=random_state).split(rows, labels if classes else None, groups=ids)
    )
    rows, y_rows = indexable(rows, labels)
    search = _Search(clone(estimator), rows, y_rows, ids, splits, default if scoring is None else scoring)
    scores = np.reshape(_scores(search, points, n_jobs, progress, engine), (len(points), len(splits)))
    mean = np.average(scores, axis=1)
    with np.errstate(invalid="ignore"):  # infinite scores are reported below
        std = np.sqrt(np.average((scores - mean[:, np.newaxis]) ** 2, axis=1))
    table = pd.DataFrame(points).assign(score=mean, std=std)
    if not np.isfinite(mean).all():
        odd = table[~np.isfinite(mean)].to_string(max_rows=20)
        warnings.warn(
            f"the score of some points is not finite; one that is no number is the worst:\n{odd}", stacklevel=2
        )
    place = int(np.argmax(np.where(np.isnan(mean), -np.inf, mean)))
    best = clone(estimator).set_params(**points[place])
    return Tuning(
        best_params_=points[place],
        best_score_=float(mean[place]),
        best_estimator_=best.fit(X, y, agents=agents) if refit else best,
        table=table,
    )


GridFold = tuple[dict[str, Any], int]  # a grid point and the number of a fold


@dataclass(frozen=True, eq=False)
class _Search:
    """Fits and scores grid points in folds; holds the rows and options that all of them share."""

    estimator: Any
    X: Any
    y: Any
    ids: np.ndarray
    splits: list[tuple[np.ndarray, np.ndarray]]
    scoring: Scoring

    def __call__(self, piece: GridFold) -> float:
        point, fold = piece
        train, test = self.splits[fold]
        model = clone(self.estimator).set_params(**clone(point, safe=False))  # a value may be an estimator
        model.fit(*self._of(train), agents=self.ids[train])
        X, y = self._of(test)
        if isinstance(self.scoring, str):
            return float(get_scorer(self.scoring)(_Asked(model, self.ids[test]), X, y))
        return float(self.scoring(model, X, np.asarray(y), self.ids[test]))

    def _of(self, which: np.ndarray) -> tuple[Any, Any]:
        return _safe_indexing(self.X, which), _safe_indexing(self.y, which)

    def name(self, piece: GridFold) -> str:
        """Name a grid point and a fold in an error."""
        point, fold = piece
        chosen = ", ".join(f"{name}={value!r}" for name, value in point.items())
        return f"{chosen}, fold {fold + 1} of {len(self.splits)}"

    def here(self, piece: GridFold) -> float:
        """Fit and score like ``__call__``; errors name the grid point and the fold."""
        try:
            return self(piece)
        except CoterieError as error:
            raise about(error, self.name(piece)) from error
        except Exception as error:
            error.add_note(self.name(piece))
            raise


def _scores(
    search: _Search,
    points: list[dict[str, Any]],
    n_jobs: int | None,
    progress: Callable[[int, int], None] | None,
    engine: Cluster | None,
) -> list[float]:
    """Return the score of each point and fold, in order."""
    pieces = [(point, fold) for point in points for fold in range(len(search.splits))]
    if engine is not None:
        with engine.connect() as ray, closing(engine.map(ray, search, pieces, progress, search.name)) as found:
            return list(found)
    scores: list[float] = []
    parallel = Parallel(n_jobs=n_jobs, return_as="generator")
    with closing(parallel(delayed(search.here)(piece) for piece in pieces)) as found:
        for score in found:
            scores.append(score)
            if progress is not None:
                progress(len(scores), len(pieces))
    return scores


def _refuse_nesting(estimator: Any, points: list[dict[str, Any]]) -> None:
    """Refuse an estimator that would use a cluster inside a task of a cluster."""
    for params in (estimator.get_params(), *points):
        for name, value in params.items():
            if (name == "engine" or name.endswith("__engine")) and value is not None:
                raise ParameterError(
                    f"{type(estimator).__name__}({name}=...) in tune(engine=...): fits on a cluster cannot ask for "
                    f"the cluster again; set {name}=None to run each fit in one task, or leave tune's engine out to "
                    "run one fit after the other, each of them on the cluster"
                )


def _grid(estimator: Any, grid: Any) -> ParameterGrid:
    """Return the grid points to try: the given ones, or the default ones for the estimator's parameters."""
    given = estimator.get_params()
    if grid is None:
        if given.get("method") == "pooling":
            raise ParameterError(
                'method="pooling" learns its strengths by itself, there is nothing to tune by default: give '
                "grid={name: values}, or another method"
            )
        learns = given.get("graph") is None or (isinstance(given["graph"], str) and given["graph"] == "learn")
        grid = {name: values for name, values in GRID.items() if name in given and (name != "lam" or learns)}
    if not (isinstance(grid, Mapping) and grid and set(grid) <= set(given)):
        raise ParameterError(
            f"grid={grid!r} must map names of parameters to the values to try, at least one; "
            f"{type(estimator).__name__} has {', '.join(sorted(given)) or 'no parameters'}"
        )
    try:
        return ParameterGrid(grid)
    except (TypeError, ValueError) as error:
        raise ParameterError(f"grid: {error}") from None


class _Asked:
    """A fitted estimator with the agents of the rows, for scikit-learn's scores, which pass only the rows."""

    def __init__(self, model: Any, agents: np.ndarray):
        self._model, self._agents = model, agents

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._model, name)
        if name not in ("predict", "predict_proba", "decision_function"):
            return found
        return wraps(found)(lambda X: found(X, agents=self._agents))


def _log_loss(model: Any, X: Any, y: np.ndarray, agents: np.ndarray) -> float:
    """Return minus the log-loss; a class that was in no training row counts as nearly impossible."""
    shares = np.asarray(model.predict_proba(X, agents=agents))
    right = shares[np.arange(len(y)), np.clip(np.searchsorted(model.classes_, y), 0, shares.shape[1] - 1)]
    return float(np.mean(np.log(np.clip(np.where(np.isin(y, model.classes_), right, 0.0), 1e-15, 1.0))))


def _squared_error(model: Any, X: Any, y: np.ndarray, agents: np.ndarray) -> float:
    """Return minus the mean squared error over rows."""
    return float(-np.mean((np.asarray(model.predict(X, agents=agents)) - y) ** 2))
