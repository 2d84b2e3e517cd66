"""Estimators that boost: one combination of base predictors for each agent, and a graph that they learn with it."""

from __future__ import annotations

from collections.abc import Callable
from numbers import Integral
from typing import Any, Self

import numpy as np
from sklearn.base import clone

from . import graphs
from .data import AgentData, as_agent_ids
from .dictionaries import Dictionary, StumpDictionary, Stumps, outputs, resolve_base
from .errors import ParameterError
from .estimators.over_graph import (
    GraphClassifier,
    GraphRegressor,
    _Collaborative,
    _ids_of,
    _no_missing,
    probabilities,
)
from .losses import LogSumExp, Squared
from .methods import FrankWolfeBoosting, resolve_method
from .methods.boosting import CLOCKS
from .problem import Problem


class _Boosted(_Collaborative):
    """What both estimators share. Parameters are documented on the public classes."""

    _loss: Any
    _constant = False  # whether stumps are joined by one that always says 1

    def __init__(
        self,
        base: Any = 200,
        graph: Any = "learn",
        mu: float = 1.0,
        lam: float = 1.0,
        beta: float = 3.0,
        confidence: Any = "size",
        neighbours: int = 5,
        members: Any = None,
        tol: float = 0.1,
        max_wakes: int = 5000,
        seed: int = 0,
        method: Any = "boosting",
    ):
        self.base = base
        self.graph = graph
        self.mu = mu
        self.lam = lam
        self.beta = beta
        self.confidence = confidence
        self.neighbours = neighbours
        self.members = members
        self.tol = tol
        self.max_wakes = max_wakes
        self.seed = seed
        self.method = method

    def __sklearn_clone__(self) -> Self:
        """A copy that is not fitted. Base predictors stay as they are: cloned, they would not be fitted, either."""
        parameters = self.get_params(deep=False)
        return type(self)(
            **{name: value if name == "base" else clone(value, safe=False) for name, value in parameters.items()}
        )

    @property
    def _meanwhile(self) -> Any:
        """While the graph is learned, models are, too: DADA alternates."""
        method = resolve_method(self.method)
        return method if isinstance(method, FrankWolfeBoosting) else FrankWolfeBoosting()

    def _afterwards(self, method: Any, learning: int) -> Any:
        """Boosting goes on with the steps that it had come to: the first one of a fresh start forgets the model."""
        if not isinstance(method, FrankWolfeBoosting):
            return method
        return FrankWolfeBoosting(CLOCKS[method.clock], method.head + learning)

    def _fit(self, X: Any, y: Any, agents: Any, progress: Callable[[int, int], None] | None) -> Self:
        """Encode, evaluate the dictionary, run, and take the models apart again."""
        method = resolve_method(self.method)
        if not (isinstance(method, FrankWolfeBoosting) or hasattr(method, "models")):
            raise ParameterError(
                f'method={self.method!r} does not boost: choose "boosting", "local", "global" or "component"'
            )
        X, ids, column = _ids_of(X, agents)
        rows, y = self._validated(X, _no_missing(y, ids))
        targets, fitted = self._encode(y, self._loss)
        ids = np.zeros(rows.shape[0], int) if ids is None else as_agent_ids(ids, rows.shape[0])
        parts = len(targets)
        labels = targets[0] if parts == 1 else np.argmax(np.stack(targets), axis=0).astype(float)
        data = AgentData(X if hasattr(X, "columns") else rows, labels, agents=ids, members=self.members)
        base = self._dictionary(data)
        alone = Problem.boosting(
            data,
            graphs.empty(data.n),
            base=base,
            mu=self.mu,
            beta=self.beta,
            confidence=self.confidence,
            loss=self._loss,
            outputs=parts,
        )
        zeros = np.zeros((alone.n, alone.p))  # what boosting begins with
        run = self._together(alone, method, lambda: zeros, lambda: self._graph(alone), progress, "raise max_wakes")
        self.agents_, self.graph_, self.run_, self._agent_column = data.members, run.graph, run, column
        self.base_ = base
        for name, value in fitted.items():
            setattr(self, name, value)
        self._unpack(run.theta, parts)
        return self

    def _dictionary(self, data: AgentData) -> Dictionary:
        base = resolve_base(self.base, data.X)
        if self._constant and isinstance(base, StumpDictionary) and isinstance(self.base, (Integral, Stumps)):
            always = -np.finfo(float).max
            return StumpDictionary(np.append(base.feature, 0), np.append(base.threshold, always))
        return base

    def _unpack(self, theta: np.ndarray, parts: int) -> None:  # type: ignore[override]
        models = theta.reshape(len(theta), parts, -1)
        stranger = np.average(models, axis=0, weights=self.run_.problem.data.sizes)
        models = np.concatenate([models, stranger[None]])
        self._expose(models, np.zeros(models.shape[:2]))
        self.n_iter_ = max(1, self.run_.wakes // len(theta))

    def _inputs(self, data: AgentData) -> Any:
        """What models are weights of: the outputs of the base predictors."""
        return outputs(self.base_, data.X, data.where)


class BoostedClassifier(_Boosted, GraphClassifier):
    """One boosted classifier for each agent, over a graph that they learn together: DADA.

    Minimises DADA (1), ``mu/2 sum_{i<j} W_ij |theta_i - theta_j|^2 + sum_i D_ii c_i L_i(theta_i)``, where a model
    weighs the votes of base predictors, stays in the ball ``|theta_i|_1 <= beta``, and L_i is the log of the sum of the
    exponential losses of agent i's rows. More than two classes are learned one against the rest, over one graph.

    Parameters
    ----------
    base : Stumps, int, list of fitted estimators, or callable
        The base predictors, the same for all agents: decision stumps, so many decision stumps, classifiers or
        regressors of scikit-learn that are fitted already, or a function of X that returns a column for each.
    graph : "learn", "knn", GraphRule, Graph, (n, n) array or sparse matrix, or networkx graph
        Who collaborates with whom; "learn" finds out while the models are learned. See
        :class:`coterie.CollaborativeClassifier`.
    mu : float
        Weight of agreement with neighbours against an agent's own data.
    lam : float
        For ``graph="learn"``: the larger, the more ties, and the lighter.
    beta : float
        How much weight all base predictors may have in a model together: large fits the data closely.
    confidence, neighbours, members, seed
        As in :class:`coterie.CollaborativeClassifier`.
    tol : float
        Stop when the Frank-Wolfe gap, which bounds how far the objective is from its optimum, is this for an agent's
        own loss, on average.
    max_wakes : int
        Stop after this many wakes of each agent, on average.
    method : str or rule
        "boosting"; for comparison "local", "global" or "component": exact, and in one place.

    Attributes
    ----------
    agents_ : tuple
        Agent ids, in the order of the models.
    classes_ : ndarray
    base_ : Dictionary
        The base predictors.
    coef_ : (n, size) ndarray, or (n, classes, size) for more than two classes
        Weights of the base predictors.
    intercept_ : (n,) ndarray, or (n, classes)
        Zeros.
    graph_ : Graph
    run_ : Run
    n_iter_ : int
        Wakes of each agent, on average.

    Examples
    --------
    >>> import coterie as ct
    >>> task = ct.datasets.clustered_moons(n=20, seed=0)
    >>> model = ct.BoostedClassifier().fit(task.train.X, task.train.y, agents=task.train.owner)
    >>> model.coef_.shape
    (20, 200)
    >>> model.score(task.test.X, task.test.y, agents=task.test.owner) > 0.8
    True
    """

    _loss = LogSumExp()
    loss = LogSumExp()  # for what is shared with the linear classifier

    def predict_proba(self, X: Any, agents: Any = None) -> np.ndarray:
        """Probabilities of the classes, as the exponential loss has them; one-against-rest scores are normalised.

        Parameters
        ----------
        X : (rows, p) array_like, sparse matrix or DataFrame
        agents : (rows,) sequence of hashables, or a column name of X, optional

        Returns
        -------
        (rows, classes) ndarray

        Examples
        --------
        >>> import coterie as ct
        >>> X, y, ids = [[0.0], [1.0], [2.0], [3.0]], ["no", "no", "yes", "yes"], ["ann", "bob", "ann", "bob"]
        >>> model = ct.BoostedClassifier(base=3).fit(X, y, agents=ids)
        >>> model.predict_proba(X, agents=ids).argmax(axis=1).tolist()
        [0, 0, 1, 1]
        """
        return probabilities(2.0 * self.decision_function(X, agents))


class BoostedRegressor(_Boosted, GraphRegressor):
    """One boosted regression for each agent, over a graph that they learn together: least squares on the same ball.

    As :class:`BoostedClassifier`, with numbers in place of classes and half the mean squared error for L_i. Stumps are
    joined by one that always says 1.

    Parameters
    ----------
    base, graph, mu, lam, confidence, neighbours, members, tol, max_wakes, seed, method
        As in :class:`BoostedClassifier`.
    beta : float
        How much weight all base predictors may have in a model together, in units of the standard deviation of the
        targets around their mean: two numbers that all agents must know.

    Attributes
    ----------
    agents_ : tuple
        Agent ids, in the order of the models.
    base_ : Dictionary
    coef_ : (n, size) ndarray
    intercept_ : (n,) ndarray
        The mean of the targets.
    graph_ : Graph
    run_ : Run
    n_iter_ : int

    Examples
    --------
    >>> import numpy as np
    >>> import coterie as ct
    >>> rng = np.random.default_rng(0)
    >>> X, agents = rng.uniform(size=(200, 1)), np.repeat(list("abcd"), 50)
    >>> model = ct.BoostedRegressor(base=20).fit(X, np.sin(6 * X[:, 0]), agents=agents)
    >>> model.score(X, np.sin(6 * X[:, 0]), agents=agents) > 0.9
    True
    """

    _loss = Squared()
    loss = Squared()
    _constant = True

    def _encode(self, y: np.ndarray, loss: Any) -> tuple[list[np.ndarray], dict[str, Any]]:
        """The labels in units in which beta is measured."""
        [values], _ = super()._encode(y, loss)
        center, scale = float(np.mean(values)), float(np.std(values))
        if scale <= 1e-12 * abs(center):  # all alike: there is nothing to learn but the mean
            return [np.zeros_like(values)], {"_center": center, "_scale": 0.0}
        return [(values - center) / scale], {"_center": center, "_scale": scale}

    def _unpack(self, theta: np.ndarray, parts: int) -> None:  # type: ignore[override]
        super()._unpack(theta, parts)
        self._expose(self._scale * self._coefficients, self._intercepts + self._center)


__all__ = ["BoostedClassifier", "BoostedRegressor"]
