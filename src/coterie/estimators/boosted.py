"""Estimators that boost: each agent learns a weighted vote of base predictors, and the agents learn a graph."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any, Self

import networkx as nx
import numpy as np
from scipy import sparse
from sklearn.base import clone

from .. import graphs
from .._folds import split
from ..core.losses import LogSumExp, Squared
from ..core.methods import FrankWolfeBoosting
from ..core.methods.boosting import CLOCKS
from ..core.wrap.graph_rule import GraphRule
from ..data import AgentData
from ..data.dictionaries import Dictionary, Function, StumpDictionary, Stumps, outputs, resolve_base
from ..engines.run import Run
from ..engines.simulator import simulate
from ..errors import DataError, ParameterError
from ..graphs import Graph
from ..problem import Problem
from ..problem.baselines import Baseline, resolve_method
from ..problem.coupling import mu_of
from .intercepts import calibrated, fold_numbers, random_intercepts, some_rows, without_levels
from .models import Linear, Votes
from .over_graph import WAKES_PER_CHECK, Settled, check_settings, graph_of, run_together
from .per_agent import PerAgent, PerAgentClassifier, PerAgentRegressor, with_mean


@dataclass(repr=False, eq=False)
class _Boosted(PerAgent):
    """Common base of both estimators. Parameters are documented on the public classes."""

    _gaps = "refuse"

    base: Any = 200
    graph: Any = "learn"
    coupling: float = 1.0
    lam: float = 1.0
    beta: float = 3.0
    confidence: Any = "size"
    n_neighbors: int = 5
    members: Any = None
    tol: float = 0.1
    max_iter: int = 5000
    random_state: int = 0
    method: Any = "boosting"

    def __sklearn_clone__(self) -> Self:
        """Return an unfitted copy. Base predictors are kept as they are: a clone of them would be unfitted, too."""
        parameters = self.get_params(deep=False)
        made = type(self)(
            **{name: value if name == "base" else clone(value, safe=False) for name, value in parameters.items()}
        )
        if "_metadata_request" in vars(self):
            made._metadata_request = deepcopy(self._metadata_request)
        return made

    def _fit(self, X: Any, y: Any, agents: Any, progress: Any) -> Self:
        """Encode the rows, evaluate the dictionary, run, find slopes and intercepts, and split the models by output."""
        method = resolve_method(self.method)
        if not isinstance(method, FrankWolfeBoosting | Baseline):
            raise ParameterError(
                f'method={self.method!r} does not boost: choose "boosting", "local", "global" or "component"'
            )
        check_settings(self)
        given = self._prepared(X, y, agents)
        data, parts = given.data, given.outputs
        base = resolve_base(self.base, data.X)
        placed = isinstance(self.base, Integral) or (isinstance(self.base, Stumps) and self.base.low is None)
        base = between(base, data.X) if placed and isinstance(base, StumpDictionary) else base
        run = self._run(method, self._posed(data, base, parts, given.order), given.order, progress)
        models = run.theta.reshape(data.n, parts, -1)
        slopes, intercepts = self._levels(run.problem, data, base, models)
        place, (center, unit) = given.place, given.label_units
        kept = (slopes[:, None] * models[place], intercepts[place])
        coefficients, levels = (with_mean(each, data.sizes[place]) for each in kept)
        # All attributes are set here, at the end: a fit that is refused leaves the estimator as it was.
        learned = Linear(unit * coefficients, unit * levels + center, Votes(base), runs=(run,))
        self._remember(given, replace(learned, graph=run.graph.relabel(place)))
        self.base_, self.run_, self.n_iter_ = base, run, max(1, run.wakes // data.n)
        return self

    def _alone(self) -> dict[str, Any]:
        n = len(self.agents_)
        return {"method": "local", "graph": graphs.empty(n), "members": range(n)}

    def _expose(self) -> None:
        super()._expose()
        self.graph_ = self._models.graph

    def _unpacked(self, described: dict[str, Any], arrays: Any, n: int, width: int, graph: Any) -> Linear:
        try:
            self.base_ = StumpDictionary.from_arrays(arrays)
        except DataError as error:
            raise ValueError(str(error)) from None
        self.base = self.base_ if self.base is None else self.base
        return Linear.from_arrays(arrays, n, self.base_.size, Votes(self.base_), graph=graph)

    def _run(self, method: Any, alone: Problem, order: np.ndarray, progress: Any) -> Run:
        """Run the method, which goes on from boosted models (DADA) where a graph is learned first."""
        boosts = isinstance(method, FrankWolfeBoosting)

        def afterwards(method: Any, wakes: int) -> Any:
            # The step sizes continue from here: the first step of a fresh start would forget the model.
            return FrankWolfeBoosting(CLOCKS[method.clock], method.head + wakes) if boosts else method

        def asked_for() -> Graph:
            # A graph given as a matrix has its agents in the order of agents_.
            graph = graph_of(self, alone, alone.members)
            named = isinstance(self.graph, str | GraphRule | nx.Graph)
            return graph if named or graph.n != alone.n else graph.relabel(order)

        zeros, meanwhile = np.zeros((alone.n, alone.p)), method if boosts else FrankWolfeBoosting()
        return run_together(self, alone, method, lambda: zeros, asked_for, progress, meanwhile, afterwards)

    def _posed(self, data: AgentData, base: Dictionary, parts: int, order: np.ndarray) -> Problem:
        """Return the problem of the agents, without edges."""
        confidence = self.confidence
        if not (confidence is None or isinstance(confidence, str)) and np.shape(confidence) == (data.n,):
            confidence = np.asarray(confidence)[order]
        return Problem.boosting(
            data,
            graphs.empty(data.n),
            base=base,
            mu=mu_of(self.coupling, "boosting"),
            beta=self.beta,
            confidence=confidence,
            loss=self._loss,
            outputs=parts,
        )

    def _levels(
        self, problem: Problem, data: AgentData, base: Dictionary, models: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the factors for the models of every output, (outputs,), and the intercepts, (n, outputs)."""
        raise NotImplementedError


class BoostedClassifier(_Boosted, PerAgentClassifier):
    """One boosted classifier for each agent, over a graph that they learn together: DADA.

    Minimises DADA (1), ``coupling/2 sum_{i<j} W_ij |theta_i - theta_j|^2 + sum_i D_ii c_i L_i(theta_i)``, where a model
    weighs the votes of base predictors, stays in the ball ``|theta_i|_1 <= beta``, and L_i is the log of the sum of the
    exponential losses of agent i's rows. More than two classes are learned one against the rest, over one graph.

    Probabilities are calibrated by cross-validation in five folds of each agent's rows, over the learned graph: the
    margins of held-out rows give one factor for all models, and the agents' intercepts. The variance of the intercepts
    around their common value is learned from all agents (empirical Bayes), so that one row, or rows of one class, are
    enough. Intercepts are neither in the ball nor smoothed over edges.

    Parameters
    ----------
    base : Stumps, int, list of fitted estimators, or callable
        The base predictors, the same for all agents: decision stumps, a number of decision stumps, fitted classifiers
        or regressors of scikit-learn, or a function of X that returns one column for each base predictor.
    graph : "learn", "knn", GraphRule, Graph, (n, n) array or sparse matrix, or networkx graph
        Who collaborates with whom; with "learn", the graph is learned along with the models. See
        :class:`coterie.CollaborativeClassifier`.
    coupling : float
        Strength of agreement with neighbours: larger values make neighbours' models more alike. The paper's mu.
    lam : float
        For ``graph="learn"``: larger values give more edges, of smaller weight.
    beta : float
        Upper bound of the sum of the absolute weights of a model: larger values fit the data more closely.
    confidence, n_neighbors, members, random_state
        As in :class:`coterie.CollaborativeClassifier`.
    tol : float
        Stop when the Frank-Wolfe gap (an upper bound of the distance to the optimum), as a mean over the agents' own
        losses, is at most this.
    max_iter : int
        Maximum number of wakes of each agent, on average.
    method : str or rule
        "boosting"; for comparison "local", "global" or "component", which are solved exactly in one process.

    Attributes
    ----------
    agents_ : tuple
        Agent ids, in the order of the models.
    classes_ : ndarray
    base_ : Dictionary
        The base predictors.
    coef_ : (n, size) ndarray, or (n, classes, size) for more than two classes
        Weights of the base predictors, calibrated: their absolute sum may exceed ``beta``.
    intercept_ : (n,) ndarray, or (n, classes)
    graph_ : Graph
    run_ : Run
        The simulation. Its agents are in an order of their own, ``run_.problem.members``.
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

    def _levels(
        self, problem: Problem, data: AgentData, base: Dictionary, models: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Calibrate on the log-odds of held-out rows, in folds of each agent's rows, over the learned graph."""
        parts = models.shape[1]
        margins = np.zeros((data.n_rows, parts))
        for train, test in split(fold_numbers(data.sizes, np.arange(data.n))):
            part = problem.on(some_rows(data, train))
            run = simulate(
                part,
                resolve_method(self.method),
                wakes=self.max_iter * data.n,
                seed=self.random_state,
                start=np.zeros((part.n, part.p)),
                every=WAKES_PER_CHECK * data.n,
                until=Settled(part, self.tol),
            )
            said = outputs(base, data.X[test], None)
            margins[test] = np.einsum("rj,rkj->rk", said, run.theta.reshape(models.shape)[data.owner[test]])
        # The log-odds of the exponential loss are twice its margins.
        signs = [np.where(data.y == (k if parts > 1 else 1.0), 1.0, -1.0) for k in range(parts)]
        found = [calibrated(signs[k], data.owner, data.n, 2.0 * margins[:, k]) for k in range(parts)]
        slopes, intercepts = zip(*found, strict=True)
        return 2.0 * np.array(slopes), np.stack(intercepts, axis=1)


class BoostedRegressor(_Boosted, PerAgentRegressor):
    """One boosted regression for each agent, over a graph that they learn together: least squares on the same ball.

    Like :class:`BoostedClassifier`, with numbers as labels and half the mean squared error as L_i. A part of each
    agent's mean is subtracted from the targets and base predictors, so that the intercepts are free.

    Parameters
    ----------
    base, graph, coupling, lam, confidence, n_neighbors, members, tol, max_iter, random_state, method
        As in :class:`BoostedClassifier`.
    beta : float
        Upper bound of the sum of the absolute weights of a model, in units of the standard deviation of the targets
        after intercepts are subtracted.

    Attributes
    ----------
    agents_ : tuple
        Agent ids, in the order of the models.
    base_ : Dictionary
    coef_ : (n, size) ndarray
    intercept_ : (n,) ndarray
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

    def _posed(self, data: AgentData, base: Dictionary, parts: int, order: np.ndarray) -> Problem:
        """Return the least-squares problem of targets and base predictors from which intercepts are subtracted."""
        part = random_intercepts(np.asarray(data.y), data.owner, data.n, classes=False).part
        said = without_levels(outputs(base, data.X, data.where), data, part)
        labels = without_levels(np.asarray(data.y), data, part)
        left = data._like(X=said, y=labels / (np.std(labels) or 1.0), feature_names=None)
        return super()._posed(left, Function(_themselves), parts, order)

    def _levels(
        self, problem: Problem, data: AgentData, base: Dictionary, models: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        labels = np.asarray(data.y)
        part = random_intercepts(labels, data.owner, data.n, classes=False).part
        scale = float(np.std(without_levels(labels, data, part)))  # the unit of the models
        said = scale * np.einsum("rj,rj->r", outputs(base, data.X, data.where), models[data.owner, 0])
        found = random_intercepts(labels, data.owner, data.n, said, classes=False)
        return np.array([scale]), found.own[:, None]


def between(stumps: StumpDictionary, X: Any) -> StumpDictionary:
    """Return stumps that separate the same rows, with each threshold in the middle between two values of its column.

    A threshold equal to a value would depend on how a column is rounded, and so on the unit of the column.
    """
    columns = X.tocsc() if sparse.issparse(X) else X
    threshold = stumps.threshold.copy()
    for j in np.unique(stumps.feature):
        values = np.unique(columns[:, [j]].toarray() if sparse.issparse(X) else columns[:, j])
        mine, near = stumps.feature == j, 1e-9 * (values[-1] - values[0])
        above = np.searchsorted(values, threshold[mine] + near, side="right")
        inside = (above > 0) & (above < len(values))
        middle = 0.5 * (values[np.maximum(above - 1, 0)] + values[np.minimum(above, len(values) - 1)])
        threshold[mine] = np.where(inside, middle, threshold[mine])
    return StumpDictionary(stumps.feature, threshold)


def _themselves(X: Any) -> Any:
    """Return features that are base predictors already."""
    return X


__all__ = ["BoostedClassifier", "BoostedRegressor"]
