"""Loaders of real datasets, with the rows, splits and labels of the papers as far as the papers describe them.

The files are found and verified by :mod:`coterie.datasets.sources`. Features are those of the originals;
:meth:`RealTask.scaled` scales them by statistics of the training rows.
"""

from __future__ import annotations

import random
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
from scipy import sparse

from .._checks import choice, within
from ..data.agent_data import AgentData, means
from ..errors import MismatchError, ParameterError
from .sources import features, raw

__all__ = [
    "ACTIVITIES",
    "RealTask",
    "computer_buyers",
    "human_activity",
    "landmine",
    "mnist_one_vs_all",
    "parkinsons",
    "school",
    "school_pass",
    "sentiment",
    "vehicle_sensor",
]

#: Activities of the subjects of :func:`human_activity`, in the order of the labels 1 to 6.
ACTIVITIES = ("walking", "walking upstairs", "walking downstairs", "sitting", "standing", "laying")


@dataclass(frozen=True)
class RealTask:
    """A real task: training and test rows of the same agents.

    Attributes
    ----------
    name : str
    train, test : AgentData
        Both have the same agents. Labels are -1 and +1, indices of classes, or numbers.
    kind : {"classification", "regression"}
    feature_names : tuple of str or None
    auxiliary : dict of str to ndarray
        Further data. ``covariates`` has one row for each agent, and ``covariate_names`` their names.
    """

    name: str
    train: AgentData
    test: AgentData
    kind: Literal["classification", "regression"]
    feature_names: tuple[str, ...] | None = None
    auxiliary: Mapping[str, np.ndarray] = field(default_factory=dict)

    def scaled(self, how: Literal["standard", "minmax"] = "standard") -> RealTask:
        """Return the same task with scaled features; statistics are those of all training rows together.

        Parameters
        ----------
        how : {"standard", "minmax"}
            Scale to mean 0 and variance 1, or to [0, 1]; test rows may exceed this range. A column that is constant
            over the training rows is not changed, so that a column of ones is kept. Sparse features are not shifted,
            but only divided, by the standard deviation or by the largest absolute value.

        Returns
        -------
        RealTask

        Examples
        --------
        >>> rows = AgentData([[1.0, 10.0], [1.0, 30.0]], y=[-1, 1])
        >>> task = RealTask("two rows", rows, AgentData([[1.0, 50.0]], y=[1]), "classification")
        >>> task.scaled("minmax").train.X.tolist(), task.scaled("minmax").test.X.tolist()
        ([[1.0, 0.0], [1.0, 1.0]], [[1.0, 2.0]])
        """
        choice("how", how, ("standard", "minmax"))
        shift, scale = _statistics(self.train.X, how)

        def apply(data: AgentData) -> AgentData:
            if not data.is_sparse:
                return data.with_features((data.X - shift) / scale)
            X = data.X.astype(np.float64)
            X.data = X.data / scale[X.indices]
            return data.with_features(X)

        return replace(self, train=apply(self.train), test=apply(self.test))

    def score(self, theta: Any) -> np.ndarray:
        """Score linear models on the test rows: accuracies, or root mean squared errors.

        Parameters
        ----------
        theta : (n, p) array-like
            A model for each agent.

        Returns
        -------
        (n,) ndarray
            NaN for an agent without test rows.

        Examples
        --------
        >>> rows = AgentData([[1.0], [-2.0]], y=[1, -1], agents=["anna", "bo"])
        >>> task = RealTask("two rows", rows, rows, "classification")
        >>> task.score([[1.0], [-1.0]]).tolist()
        [1.0, 0.0]
        """
        theta = np.asarray(theta, dtype=np.float64)
        test = self.test
        other = np.setdiff1d(np.asarray(test.y), (-1.0, 1.0))
        if self.kind == "classification" and other.size:
            raise MismatchError(
                f"score is for linear models of two classes, -1 and +1, and this task has the label {other[0]:g}: "
                "compare predictions with test.y"
            )
        if theta.shape != (test.n, test.p):
            raise ParameterError(f"theta has shape {theta.shape}, expected {(test.n, test.p)}: a model for each agent")
        own = [test.X[slice(*test.start[agent : agent + 2])] @ theta[agent] for agent in range(test.n)]
        said = np.concatenate(own)
        return agent_scores(test, np.where(said >= 0, 1.0, -1.0) if self.kind == "classification" else said, self.kind)

    def __repr__(self) -> str:
        sizes = f"{self.train.n_rows} + {self.test.n_rows} rows"
        return f"RealTask({self.name}: {self.kind}, {self.train.n} agents, {self.train.p} features, {sizes})"


def agent_scores(test: AgentData, predicted: np.ndarray, kind: str) -> np.ndarray:
    """Return each agent's accuracy or root mean squared error, from predictions of all test rows; NaN without rows."""
    labels = np.asarray(test.y)
    if kind == "classification":
        return means(test, predicted == labels)
    return np.sqrt(means(test, (predicted - labels) ** 2))


# -- the loaders ------------------------------------------------------------------------------------------------------


def school(split: int = 0) -> RealTask:
    """School: exam scores of 15,362 pupils of 139 schools, a regression (DMTRL, Section 7).

    Parameters
    ----------
    split : int
        Number of one of the ten official splits, 0 to 9; each has about 75 % of a school's pupils for training.

    Returns
    -------
    RealTask
        28 features, the last one constant 1. ``auxiliary["covariates"]`` describes the schools.

    Examples
    --------
    >>> school()  # doctest: +SKIP
    RealTask(school: regression, 139 agents, 28 features, 11472 + 3890 rows)
    """
    return _school("school", split, slice(None))


def school_pass(split: int = 0) -> RealTask:
    """School as a classification: whether a pupil scores more than 20 (DADA, Section E.1).

    DADA uses split 0, scales every column by its range over training and test rows together, and loses the last
    training and the last test row of the last school; here no row is lost, and :meth:`RealTask.scaled` scales by the
    training rows.

    Parameters
    ----------
    split : int
        Number of one of the ten official splits, 0 to 9.

    Returns
    -------
    RealTask
        17 features of pupils, the last one constant 1. ``auxiliary["covariates"]`` describes the schools; DADA builds
        a graph from them.

    Examples
    --------
    >>> school_pass()  # doctest: +SKIP
    RealTask(school pass: classification, 139 agents, 17 features, 11472 + 3890 rows)
    """
    return _school("school pass", split, np.r_[5:21, 27], passed=20.0)


#: Columns of School: the three years, and columns that describe a school rather than a pupil.
_YEARS, _OF_SCHOOLS = slice(0, 3), np.r_[3:5, 21:27]


def _school(name: str, split: int, columns: Any, passed: float | None = None) -> RealTask:
    if split not in range(10):
        raise ParameterError(f"split must be in 0..9, got {split!r}")
    arrays = raw("school")
    X, y, agent, splits, names = (arrays[key] for key in ("X", "y", "agent", "splits", "feature_names"))
    train = splits[split] == 0
    # A school is described by its mean over the years in which it has training rows (DADA, Section E.1).
    described = [
        np.unique(X[train & (agent == k)][:, np.r_[_YEARS, _OF_SCHOOLS]], axis=0)[:, 3:].mean(axis=0, dtype=np.float64)
        for k in range(agent.max() + 1)
    ]
    return task_of(
        name,
        X[:, columns],
        y if passed is None else _signs(y > passed),
        agent,
        train,
        kind="regression" if passed is None else "classification",
        names=names[columns],
        auxiliary={"covariates": np.array(described), "covariate_names": names[_OF_SCHOOLS]},
    )


def computer_buyers(seed: int = 2018) -> RealTask:
    """Computer Buyers: whether each of 190 people would buy a computer, i.e. scores it above 5 (DADA, Section E.1).

    All buyers have rated the same 20 computers, which are put in one random order. For each buyer, the first 5 to 10
    computers (a random number) are for training, and the others for testing.

    Parameters
    ----------
    seed : int
        Seed of both draws, made as in DADA's code: 2018 gives its split, with 1407 rows for training.

    Returns
    -------
    RealTask
        14 features, the first one constant 1. ``auxiliary["covariates"]`` describes the buyers.

    Examples
    --------
    >>> computer_buyers()  # doctest: +SKIP
    RealTask(computer buyers: classification, 190 agents, 14 features, 1407 + 2393 rows)
    """
    seed = _seed(seed)
    arrays = raw("computers")
    agent, item = arrays["agent"], arrays["item"]
    computers, buyers = item.max() + 1, agent.max() + 1
    order = np.random.RandomState(seed).permutation(computers)  # as DADA's code draws it
    place = np.argsort(order)
    draw = random.Random(seed)
    learned = np.array([draw.randint(5, 10) for _ in range(buyers)])
    return task_of(
        "computer buyers",
        arrays["X"],
        _signs(arrays["y"] > 5),
        agent,
        place[item] < learned[agent],
        names=arrays["feature_names"],
        auxiliary={"covariates": np.ascontiguousarray(arrays["agent_covariates"], dtype=np.float64)},
    )


def human_activity(positive: str = "sitting", train_size: float = 0.2, seed: int = 0) -> RealTask:
    """Human activity recognition with smartphones: 30 subjects, one activity against the others (DADA, Section E.1).

    Parameters
    ----------
    positive : str
        The activity with the label +1, one of :data:`ACTIVITIES`.
    train_size : float
        Part of each subject's rows that is for training, drawn at random. DADA: 20 %.
    seed : int

    Returns
    -------
    RealTask
        561 features in [-1, 1].

    Examples
    --------
    >>> human_activity()  # doctest: +SKIP
    RealTask(human activity: classification, 30 agents, 561 features, 2059 + 8240 rows)
    """
    choice("positive", positive, ACTIVITIES)
    train_size, seed = within("train_size", train_size, 0, 1, "(]"), _seed(seed)
    arrays = raw("harws")
    y = _signs(arrays["y"] == ACTIVITIES.index(positive) + 1)
    train = _draw(arrays["agent"], train_size, seed)
    return task_of("human activity", arrays["X"], y, arrays["agent"], train, names=arrays["feature_names"])


def vehicle_sensor(train_size: float = 0.2, seed: int = 0) -> RealTask:
    """A SMALL RANDOM SUBSET of Vehicle Sensor: 1,860 of about 43,700 rows; do not compare with published numbers.

    The rows are those that the authors of Ditto drew for training: 23 sensors with 7 to 534 rows, standardised for each
    sensor by all rows that it had. Papers (DADA, Section E.1) have about 1,900 rows for each sensor.

    Parameters
    ----------
    train_size : float
        Part of each sensor's rows that is for training, drawn at random. DADA: 20 %, of many more rows.
    seed : int

    Returns
    -------
    RealTask
        100 features; two kinds of vehicles, and which of them has the label +1 is not known.

    Examples
    --------
    >>> vehicle_sensor()  # doctest: +SKIP
    RealTask(vehicle sensor (subset): classification, 23 agents, 100 features, 373 + 1487 rows)
    """
    train_size, seed = within("train_size", train_size, 0, 1, "(]"), _seed(seed)
    arrays = raw("vehicle_ditto_train")
    train = _draw(arrays["agent"], train_size, seed)
    return task_of("vehicle sensor (subset)", arrays["X"], arrays["y"], arrays["agent"], train)


def mnist_one_vs_all(seed: int = 0, rows: int | None = None) -> RealTask:
    """MNIST as ten tasks: one digit against equally many random other digits (DMTRL, Section 7).

    Parameters
    ----------
    seed : int
        Seed of the choice of the other digits, and of the task's digit if `rows` limits its rows.
    rows : int, optional
        Maximum number of training rows for each task, half of them of the digit. All official test images of a digit
        are always for testing.

    Returns
    -------
    RealTask
        784 grey values in [0, 1], sparse: four in five are 0. About 120,000 rows for training, 20,000 for testing.

    Examples
    --------
    >>> mnist_one_vs_all(rows=100)  # doctest: +SKIP
    RealTask(mnist one vs all: classification, 10 agents, 784 features, 1000 + 20000 rows)
    """
    if rows is not None and (isinstance(rows, bool) or int(rows) != rows or rows < 2):
        raise ParameterError(f"rows must be a whole number >= 2, got {rows!r}")
    rng = np.random.default_rng(_seed(seed))
    arrays = raw("mnist")
    digit, split = arrays["y"], arrays["split"]

    def part(test: int, most: int | None) -> AgentData:
        chosen, labels, owners = [], [], []
        for task in range(10):
            own = np.flatnonzero((split == test) & (digit == task))
            others = np.flatnonzero((split == test) & (digit != task))
            if most is not None and own.size > most // 2:
                own = np.sort(rng.choice(own, most // 2, replace=False))
            others = np.sort(rng.choice(others, own.size, replace=False))
            chosen += [own, others]
            labels += [np.ones(own.size), -np.ones(own.size)]
            owners += [np.full(2 * own.size, task)]
        X = sparse.csr_array(arrays["X"][np.concatenate(chosen)]).astype(np.float64) / 255.0
        return AgentData(X, np.concatenate(labels), np.concatenate(owners), members=range(10))

    return RealTask("mnist one vs all", part(0, rows), part(1, None), "classification")


def sentiment(domains: int = 14, train_size: float | None = 0.7, seed: int = 0) -> RealTask:
    """Multi-domain sentiment: whether a review is positive, for each kind of product (DMTRL, Section 7, has 25 kinds).

    Parameters
    ----------
    domains : {14, 4}
        14 kinds of products with unigrams, or 4 with unigrams and bigrams; both with about 2,000 reviews of each kind.
    train_size : float or None
        Part of each domain's rows that is for training, drawn at random. None: the published split of the 14 domains.
    seed : int

    Returns
    -------
    RealTask
        Sparse counts of words that occur in at least ten reviews. Agents are named by their domains.

    Examples
    --------
    >>> sentiment(train_size=None)  # doctest: +SKIP
    RealTask(sentiment 14: classification, 14 agents, 13298 features, 22180 + 5600 rows)
    """
    if domains not in (14, 4):
        raise ParameterError(f"domains must be 14 or 4, got {domains!r}")
    if train_size is None and domains == 4:
        raise ParameterError("train_size=None is for the published split, and the 4 domains have none: give a number")
    train_size, seed = None if train_size is None else within("train_size", train_size, 0, 1, "(]"), _seed(seed)
    arrays = raw(f"mds{domains}")
    # The last two of the sixteen domains are films, IMDB and MR, which are from other collections.
    keep = arrays["agent"] < domains
    X = features(arrays)[keep]
    agent = arrays["agent"][keep]
    return task_of(
        f"sentiment {domains}",
        X,
        arrays["y"][keep],
        agent,
        arrays["split"][keep] == 0 if train_size is None else _draw(agent, train_size, seed),
        names=arrays["feature_names"],
        members=arrays["agent_names"][:domains].tolist(),
    )


def landmine(train_size: float = 0.5, seed: int = 0) -> RealTask:
    """Landmine: whether there is a mine, in each of 29 fields (Xue et al., 2007). Only about 6 % of the rows are +1.

    Parameters
    ----------
    train_size : float
        Part of each field's rows that is for training, drawn at random.
    seed : int

    Returns
    -------
    RealTask
        9 features. ``auxiliary["covariates"]`` is the kind of ground: fields 0 to 14 are foliated.

    Examples
    --------
    >>> landmine()  # doctest: +SKIP
    RealTask(landmine: classification, 29 agents, 9 features, 7406 + 7414 rows)
    """
    train_size, seed = within("train_size", train_size, 0, 1, "(]"), _seed(seed)
    arrays = raw("landmine")
    agent = arrays["agent"]
    foliated = (np.arange(agent.max() + 1) < 15).astype(np.float64)[:, None]
    return task_of(
        "landmine",
        arrays["X"],
        _signs(arrays["y"] == 1),
        agent,
        _draw(agent, train_size, seed),
        auxiliary={"covariates": foliated, "covariate_names": np.array(["foliated"])},
    )


def parkinsons(train_size: float = 0.5, seed: int = 0, target: Literal["total", "motor"] = "total") -> RealTask:
    """Parkinson's telemonitoring: symptom scores of 42 patients from their voices, a regression (Tsanas et al., 2010).

    Parameters
    ----------
    train_size : float
        Part of each patient's rows that is for training, drawn at random. Rows near in time are nearly equal, which
        makes the test easy.
    seed : int
    target : {"total", "motor"}
        The UPDRS score to predict.

    Returns
    -------
    RealTask
        19 features: age, sex, time, and 16 measures of the voice. There is no bias column.

    Examples
    --------
    >>> parkinsons(target="motor")  # doctest: +SKIP
    RealTask(parkinsons: regression, 42 agents, 19 features, 2934 + 2941 rows)
    """
    choice("target", target, ("total", "motor"))
    train_size, seed = within("train_size", train_size, 0, 1, "(]"), _seed(seed)
    arrays = raw("parkinsons")
    return task_of(
        "parkinsons",
        arrays["X"],
        arrays["y" if target == "total" else "y_motor"],
        arrays["agent"],
        _draw(arrays["agent"], train_size, seed),
        kind="regression",
        names=arrays["feature_names"],
    )


# -- shared helpers ---------------------------------------------------------------------------------------------------


def task_of(
    name: str,
    X: Any,
    y: np.ndarray,
    agent: np.ndarray,
    train: np.ndarray,
    kind: Literal["classification", "regression"] = "classification",
    names: np.ndarray | None = None,
    members: Sequence[Hashable] | None = None,
    auxiliary: Mapping[str, np.ndarray] | None = None,
) -> RealTask:
    """Return a task from rows and a mask of the training rows."""
    everyone = list(range(int(agent.max()) + 1)) if members is None else list(members)
    owners = agent if members is None else np.array(everyone, dtype=object)[agent]
    return RealTask(
        name,
        AgentData(X[train], y[train], owners[train], members=everyone),
        AgentData(X[~train], y[~train], owners[~train], members=everyone),
        kind,
        None if names is None else tuple(names.tolist()),
        dict(auxiliary or {}),
    )


def _draw(agent: np.ndarray, train_size: float, seed: int) -> np.ndarray:
    """Return a mask of training rows: the given part of each agent's rows, and at least one row."""
    rng = np.random.default_rng(seed)
    train = np.zeros(agent.size, dtype=bool)
    for k in range(int(agent.max()) + 1):
        rows = np.flatnonzero(agent == k)
        train[rng.permutation(rows)[: max(1, round(train_size * rows.size))]] = True
    return train


def _statistics(X: Any, how: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the shift and the scale of columns; 0 and 1 for constant columns."""
    X = X.astype(np.float64, copy=False)
    if sparse.issparse(X):
        low, high = X.min(axis=0).toarray().ravel(), X.max(axis=0).toarray().ravel()
        if how == "minmax":
            scale = np.maximum(np.abs(low), np.abs(high))
        else:
            mean = np.asarray(X.mean(axis=0)).ravel()
            scale = np.sqrt(np.maximum(np.asarray(X.power(2).mean(axis=0)).ravel() - mean**2, 0))
        shift = np.zeros_like(scale)
    else:
        low, high = X.min(axis=0), X.max(axis=0)
        shift, scale = (low, high - low) if how == "minmax" else (X.mean(axis=0), X.std(axis=0))
    constant = (low == high) | (scale == 0)
    return np.where(constant, 0.0, shift), np.where(constant, 1.0, scale)


def _signs(positive: np.ndarray) -> np.ndarray:
    return np.where(positive, 1.0, -1.0)


def _seed(seed: int) -> int:
    if isinstance(seed, bool) or not isinstance(seed, int | np.integer) or not 0 <= seed < 2**32:
        raise ParameterError(f"seed must be a whole number in [0, 2**32), got {seed!r}")
    return int(seed)
