"""Estimators that boost: one combination of base predictors for each agent, and a graph that they learn with it."""

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
from .over_graph import ROUND, Settled, check_settings, graph_of, run_together
from .per_agent import PerAgent, PerAgentClassifier, PerAgentRegressor, with_mean


@dataclass(repr=False, eq=False)
class _Boosted(PerAgent):
    """What both estimators share. Parameters are documented on the public classes."""

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
        """A copy that is not fitted. Base predictors stay as they are: cloned, they would not be fitted, either."""
        parameters = self.get_params(deep=False)
        made = type(self)(
            **{name: value if name == "base" else clone(value, safe=False) for name, value in parameters.items()}
        )
        if "_metadata_request" in vars(self):
            made._metadata_request = deepcopy(self._metadata_request)
        return made

    def _fit(self, X: Any, y: Any, agents: Any, progress: Any) -> Self:
        """Encode, evaluate the dictionary, run, find slopes and intercepts, and take the models apart again."""
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
        # Nothing was changed before: a fit that is refused leaves the estimator as it was.
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
        """While the graph is learned, models are, too: DADA alternates; and boosting goes on from there."""
        boosts = isinstance(method, FrankWolfeBoosting)

        def afterwards(method: Any, wakes: int) -> Any:
            # With the steps that it had come to: the first one of a fresh start forgets the model.
            return FrankWolfeBoosting(CLOCKS[method.clock], method.head + wakes) if boosts else method

        def asked_for() -> Graph:
            # One that is given has its agents in the order of agents_.
            graph = graph_of(self, alone, alone.members)
            named = isinstance(self.graph, str | GraphRule | nx.Graph)
            return graph if named or graph.n != alone.n else graph.relabel(order)

        zeros, meanwhile = np.zeros((alone.n, alone.p)), method if boosts else FrankWolfeBoosting()
        return run_together(self, alone, method, lambda: zeros, asked_for, progress, meanwhile, afterwards)

    def _posed(self, data: AgentData, base: Dictionary, parts: int, order: np.ndarray) -> Problem:
        """The problem of agents without edges."""
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
        """What to multiply the models of every output with, (outputs,), and the intercepts, (n, outputs)."""
        raise NotImplementedError


class BoostedClassifier(_Boosted, PerAgentClassifier):
    """One boosted classifier for each agent, over a graph that they learn together: DADA.

    Minimises DADA (1), ``coupling/2 sum_{i<j} W_ij |theta_i - theta_j|^2 + sum_i D_ii c_i L_i(theta_i)``, where a model
    weighs the votes of base predictors, stays in the ball ``|theta_i|_1 <= beta``, and L_i is the log of the sum of the
    exponential losses of agent i's rows. More than two classes are learned one against the rest, over one graph.

    Probabilities are calibrated: margins of rows that models have not seen, in five folds of each agent's rows over the
    same graph, say by what to multiply all models, and which intercepts agents have. An intercept is as far from the
    common one as an agent's rows say, with a variance that is learned from all agents (empirical Bayes): it is neither
    in the ball nor tied to neighbours, and one row, or rows of one class, are enough.

    Parameters
    ----------
    base : Stumps, int, list of fitted estimators, or callable
        The base predictors, the same for all agents: decision stumps, so many decision stumps, classifiers or
        regressors of scikit-learn that are fitted already, or a function of X that returns a column for each.
    graph : "learn", "knn", GraphRule, Graph, (n, n) array or sparse matrix, or networkx graph
        Who collaborates with whom; "learn" finds out while the models are learned. See
        :class:`coterie.CollaborativeClassifier`.
    coupling : float
        Weight of agreement with neighbours against an agent's own data: more is more agreement. The paper's mu.
    lam : float
        For ``graph="learn"``: the larger, the more edges, and the lighter.
    beta : float
        How much weight all base predictors may have in a model together: large fits the data closely.
    confidence, n_neighbors, members, random_state
        As in :class:`coterie.CollaborativeClassifier`.
    tol : float
        Stop when the Frank-Wolfe gap, which bounds how far the objective is from its optimum, is this for an agent's
        own loss, on average.
    max_iter : int
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
        Weights of the base predictors, calibrated: not in the ball any more.
    intercept_ : (n,) ndarray, or (n, classes)
    graph_ : Graph
    run_ : Run
        Its agents have an order of their own, ``run_.problem.members``: neither the order of rows nor names matter.
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
        """Log-odds of rows that models have not seen, in folds of each agent's rows, over the graph that was found."""
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
                every=ROUND * data.n,
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

    As :class:`BoostedClassifier`, with numbers in place of classes and half the mean squared error for L_i. Targets and
    base predictors are taken less a part of their agent's mean, which leaves the intercepts free.

    Parameters
    ----------
    base, graph, coupling, lam, confidence, n_neighbors, members, tol, max_iter, random_state, method
        As in :class:`BoostedClassifier`.
    beta : float
        How much weight all base predictors may have in a model together, in units of the standard deviation that
        intercepts leave of the targets.

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
        """Least squares on what is left when intercepts are taken out, of the targets and of every base predictor."""
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
        scale = float(np.std(without_levels(labels, data, part)))  # in which the models are measured
        said = scale * np.einsum("rj,rj->r", outputs(base, data.X, data.where), models[data.owner, 0])
        found = random_intercepts(labels, data.owner, data.n, said, classes=False)
        return np.array([scale]), found.own[:, None]


def between(stumps: StumpDictionary, X: Any) -> StumpDictionary:
    """Stumps that tell the same rows apart, with thresholds in the middle between two values.

    A threshold on a value would depend on how a column is rounded, and so on its units.
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
    """Features that are base predictors already."""
    return X


__all__ = ["BoostedClassifier", "BoostedRegressor"]
