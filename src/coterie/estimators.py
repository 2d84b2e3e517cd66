"""The front door: scikit-learn estimators that learn one model for each agent.

``fit(X, y, agents=ids)`` is all a user of grouped data needs. The models are those of
:meth:`coterie.Problem.personalized`, CD (3), or of :meth:`coterie.Problem.boosting`, DADA (1), found by the agents
exchanging models over a graph that is given, or that they learn.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple, Self

import networkx as nx
import numpy as np
import pandas as pd
from scipy import sparse
from scipy.special import expit
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import accuracy_score, r2_score
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from . import graphs
from .data import AgentData, as_agent_ids, as_features, split_frame
from .engines.simulator import simulate
from .errors import DataError, MismatchError, ParameterError
from .graphs import Graph
from .linear import frozen, margins_kernel, rows_of
from .losses import SIGNS, Logistic
from .methods import ComponentModels, ModelPropagation, check_fit, resolve_method
from .problem import Problem, resolve_loss
from .results import Run
from .ties import GraphRule, Learned
from .ties.still import Still

#: Wakes of each agent between two looks at whether the models still move.
ROUND = 20
#: Peers that an agent asks at a time while it learns the graph.
KAPPA = 5
#: Wakes of each agent in which the graph is learned, at most, before the models are finished on it.
LEARNING = 200


class _Settled:
    """Whether a run may end: the objective is near its optimum or, where a kink hides that, models are at rest."""

    def __init__(self, problem: Problem, tol: float):
        self.problem, self.tol, self.yes = problem, tol, False
        self.last = np.full((problem.n, problem.p), np.inf)

    def __call__(self, theta: np.ndarray) -> bool:
        if np.isfinite(self.problem.radius):
            self.yes = self.problem.gap(theta) <= self.tol * self.problem.importance.sum()
        elif np.isfinite(self.problem.loss.smoothness):
            self.yes = self.problem.suboptimality(theta, enough=self.tol) <= self.tol
        else:
            self.yes = bool(np.abs(theta - self.last).max() <= self.tol * (1.0 + np.abs(theta).max()))
            self.last = theta.copy()
        return self.yes


class _Prepared(NamedTuple):
    """What a fit was given: checked, encoded, and standardised if it shall be."""

    data: AgentData
    targets: list[np.ndarray]  # of every output, in the order of the input
    fitted: dict[str, Any]  # what to remember of the labels
    column: Any  # that held the agents' ids
    center: np.ndarray
    scale: np.ndarray


class _Collaborative(BaseEstimator):
    """What all estimators share. Parameters are documented on the public classes."""

    def __init__(
        self,
        method: Any = "cd",
        graph: Any = "learn",
        loss: Any = "squared",
        mu: float = 1.0,
        lam: float = 1.0,
        ridge: Any = "1/m",
        confidence: Any = "size",
        neighbours: int = 5,
        fit_intercept: bool = True,
        standardize: bool = False,
        members: Any = None,
        tol: float = 1e-6,
        max_wakes: int = 10_000,
        seed: int = 0,
    ):
        self.method = method
        self.graph = graph
        self.loss = loss
        self.mu = mu
        self.lam = lam
        self.ridge = ridge
        self.confidence = confidence
        self.neighbours = neighbours
        self.fit_intercept = fit_intercept
        self.standardize = standardize
        self.members = members
        self.tol = tol
        self.max_wakes = max_wakes
        self.seed = seed

    # -- fitting -------------------------------------------------------------------------------------------------

    def _fit(self, X: Any, y: Any, agents: Any, progress: Callable[[int, int], None] | None) -> Self:
        """Encode, lay out, run, and take the models apart again."""
        method, loss = resolve_method(self.method), resolve_loss(self.loss)
        plain, targets, fitted, column, center, scale = self._prepared(X, y, agents, loss)
        data = _one_model_for_all_outputs(plain, targets, self.fit_intercept)

        outputs = len(targets)
        # A mean over the outputs' examples, weighted so that they count as so many separate problems.
        ridge = self.ridge if isinstance(self.ridge, str) else np.asarray(self.ridge) / outputs
        weights = {"loss": loss, "mu": self.mu * outputs, "ridge": ridge, "confidence": self.confidence}
        alone = Problem.personalized(data, graphs.empty(data.n), **weights)
        posed = alone
        if isinstance(method, ModelPropagation):  # trained alone, then smoothed: mu = (1 - alpha) / alpha
            confidence = alone.trust / (self.mu * outputs)
            posed = Problem.propagation(alone.local(), alone.graph, 1.0 / (1.0 + self.mu), confidence)
        advice = "raise max_wakes, or set standardize=True if the features have very different scales"
        run = self._together(posed, method, alone.local, lambda: self._graph(alone), progress, advice)
        # Nothing was changed before: a fit that is refused leaves the estimator as it was.
        self.agents_, self.graph_, self.run_, self._agent_column = data.members, run.graph, run, column
        for name, value in fitted.items():
            setattr(self, name, value)
        self._unpack(run.theta, outputs, plain.p, center, scale)
        return self

    def _prepared(self, X: Any, y: Any, agents: Any, loss: Any) -> _Prepared:
        """Check and encode what was given, and standardise the features if they shall be."""
        X, ids, column = _ids_of(X, agents)
        rows, y = self._validated(X, _no_missing(y, ids))
        targets, fitted = self._encode(y, loss)
        ids = np.zeros(rows.shape[0], int) if ids is None else as_agent_ids(ids, rows.shape[0])
        named = X if hasattr(X, "columns") else rows  # a frame names its columns in errors
        data = AgentData(named, targets[0], agents=ids, members=self.members)
        center, scale = self._standards(data)
        if self.standardize:
            data = AgentData(_scaled(rows, center, scale), targets[0], agents=ids, members=data.members)
        return _Prepared(data, targets, fitted, column, center, scale)

    def _together(
        self,
        alone: Problem,
        method: Any,
        start: Callable[[], np.ndarray],
        given: Callable[[], Graph],
        progress: Callable[[int, int], None] | None,
        advice: str,
    ) -> Run:
        """Let the agents of a problem without ties learn a graph if they shall, and then their models on it."""
        if getattr(method, "plan", None) is not None:
            raise MismatchError(
                f"method={method!r}: an estimator scales, starts from local models and takes a graph from them, "
                "all in the clear, so that nothing private could be claimed; use ct.simulate(problem, method)"
            )
        if getattr(method, "minimises", "") is None:
            raise MismatchError(
                f"method={method!r} minimises no objective, and an estimator goes on until its own is minimised: use "
                "ct.simulate(problem, method)"
            )
        if isinstance(method, Learned):
            raise ParameterError(
                f"method={method!r}: the estimator learns the graph, say how with graph=ct.GraphRule(...)"
            )
        if not hasattr(method, "models"):
            check_fit(method, alone)  # before a graph is learned for it
        n, before, theta = alone.n, None, start()
        rule = self._rule(n)
        if rule is not None and (not hasattr(method, "models") or isinstance(method, ComponentModels)):
            learning = min(LEARNING, self.max_wakes // 2)
            learner = Learned(self._meanwhile, rule, every=1)
            before = simulate(alone, learner, learning * n, self.seed, theta, progress=progress)
            theta, method = before.theta, self._afterwards(method, learning)
        problem = alone.on(graph=given() if before is None else before.graph)
        settled = _Settled(problem, self.tol)
        run = simulate(
            problem,
            method,
            wakes=self.max_wakes * n - (before.wakes if before else 0),
            seed=self.seed,
            start=theta,
            every=ROUND * n,
            until=settled,
            progress=progress,
        )
        if not (hasattr(method, "models") or settled.yes):
            warnings.warn(
                f"the objective is more than tol={self.tol:g} above its optimum after max_wakes={self.max_wakes} wakes "
                f"of each agent; {advice}",
                ConvergenceWarning,
                stacklevel=4,
            )
        return run if before is None else run.after(before)

    @property
    def _meanwhile(self) -> Any:
        """What models do while the graph is learned: they wait, as they were trained alone.

        Models that move towards their neighbours meanwhile look more and more alike, and so do ties that are worth
        having: linear models end up worse (see benchmarks/graphs.py).
        """
        return Still()

    def _afterwards(self, method: Any, learning: int) -> Any:
        """The method that finishes the models, once the graph is learned in so many wakes of each agent."""
        return method

    def _rule(self, n: int) -> GraphRule | None:
        """How the graph is learned, if it is."""
        if isinstance(self.graph, GraphRule):
            return self.graph
        if n == 1 or not (isinstance(self.graph, str) and self.graph == "learn"):
            return None
        return GraphRule(lam=self.lam, kappa=min(KAPPA, n - 1))

    def _validated(self, X: Any, *y: Any, **options: Any) -> Any:
        """X, and y if given, as scikit-learn wants them. Values that are not finite are left for AgentData to name."""
        if hasattr(X, "columns"):
            as_features(X)  # refuses a column of text by its name
        try:
            return validate_data(self, X, *y, accept_sparse="csr", dtype=np.float64, ensure_all_finite=False, **options)
        except ValueError as error:
            raise DataError(str(error)) from None

    def _standards(self, data: AgentData) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation of the features over all rows, for ``standardize``."""
        if not self.standardize:
            return np.zeros(data.p), np.ones(data.p)
        mean = np.asarray(data.X.mean(axis=0)).ravel()
        square = data.X.multiply(data.X).mean(axis=0) if data.is_sparse else np.square(data.X - mean).mean(axis=0)
        spread = np.sqrt(np.maximum(np.asarray(square).ravel() - (mean**2 if data.is_sparse else 0.0), 0.0))
        spread[spread <= 1e-12 * np.abs(mean)] = 1.0
        spread[spread == 0.0] = 1.0
        # Centring would fill a sparse matrix; and it only moves the intercept.
        return (mean if self.fit_intercept and not data.is_sparse else np.zeros(data.p)), spread

    def _graph(self, alone: Problem) -> Graph:
        """The graph asked for, on the agents of the data."""
        n, graph = alone.n, self.graph
        if isinstance(graph, str):
            if graph not in ("knn", "learn"):
                raise ParameterError(
                    f'graph={graph!r} must be "learn", "knn", a GraphRule, a Graph, a weight matrix or a networkx graph'
                )
            if graph == "learn":  # nobody to learn it from, or nobody to use it
                return graphs.empty(n)
            if self.neighbours < 1:
                raise ParameterError(f"neighbours={self.neighbours} must be at least 1")
            return graphs.knn(alone.local(), neighbours=min(self.neighbours, n - 1)) if n > 1 else graphs.empty(n)
        if isinstance(graph, nx.Graph):
            return graphs.from_networkx(graph, members=alone.members)
        if isinstance(graph, GraphRule):
            return graphs.empty(n)
        return graph if isinstance(graph, Graph) else Graph(graph)

    def _unpack(self, theta: np.ndarray, outputs: int, p: int, center: np.ndarray, scale: np.ndarray) -> None:
        self._take_apart(theta.reshape(len(theta), outputs, -1), self.run_.problem.data.sizes, p, center, scale)
        self.n_iter_ = max(1, self.run_.wakes // len(theta))

    def _take_apart(self, models: np.ndarray, sizes: np.ndarray, p: int, center: np.ndarray, scale: np.ndarray) -> None:
        """Take the models, (n, outputs, p + 1), apart into coefficients and intercepts, in the units of the input."""
        stranger = np.average(models, axis=0, weights=sizes)
        models = np.concatenate([models, stranger[None]])
        coefficients = models[:, :, :p] / scale
        intercepts = models[:, :, p] if self.fit_intercept else np.zeros(models.shape[:2])
        self._expose(coefficients, intercepts - coefficients @ center)

    def _expose(self, coefficients: np.ndarray, intercepts: np.ndarray) -> None:
        """Keep the models, (n + 1, outputs, p) and (n + 1, outputs); the last one is for agents never met."""
        self._coefficients, self._intercepts = coefficients, intercepts
        only = slice(None) if coefficients.shape[1] > 1 else 0
        self.coef_, self.intercept_ = coefficients[:-1, only], intercepts[:-1, only]
        self._roster = AgentData(np.empty((0, 1)), agents=[], members=self.agents_)

    # -- predicting ----------------------------------------------------------------------------------------------

    def _margins(self, X: Any, agents: Any) -> np.ndarray:
        """``x . theta_i`` for the agent i of every row, (rows, outputs)."""
        check_is_fitted(self, "coef_")
        if agents is None and self._agent_column is not None and hasattr(X, "columns"):
            agents = self._agent_column
        X, ids, _ = _ids_of(X, agents)
        rows = self._validated(X, reset=False)
        if ids is None and len(self.agents_) > 1:
            raise DataError(
                f"this model was fitted for {len(self.agents_)} agents: pass agents=..., one id for each row"
            )
        data = AgentData(X if hasattr(X, "columns") else rows, agents=ids)  # refuses what is not finite, by its place
        # -1, the last model, for agents never met; without ids, all rows are of the only agent.
        number = np.zeros(1, int) if ids is None else self._roster.numbers(data.members)
        known, asked = ({type(agent) for agent in agents} for agents in (self.agents_, data.members))
        if data.n_rows and np.all(number < 0) and known.isdisjoint(asked):
            warnings.warn(
                "none of these agents was met: all rows are predicted by the mean of all models. Are the ids of the "
                f"right type? The model knows agents such as {self.agents_[0]!r}; it was asked for {data.members[0]!r}",
                stacklevel=3,
            )
        margins = np.empty((data.n_rows, self._coefficients.shape[1]))
        inputs = rows_of(self._inputs(data))
        for k in range(margins.shape[1]):
            out = np.zeros(data.n_rows)
            coefficients = np.ascontiguousarray(self._coefficients[number, k])
            margins_kernel(inputs, frozen(data.start), coefficients, out)
            margins[data.origin, k] = out + self._intercepts[number, k][data.owner]
        return margins

    def _inputs(self, data: AgentData) -> Any:
        """What models are weights of: the features themselves."""
        return data.X

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags


class CollaborativeClassifier(ClassifierMixin, _Collaborative):
    """One linear classifier for each agent, learned together over a graph.

    Minimises CD (3), ``1/2 sum_{i<j} W_ij |theta_i - theta_j|^2 + mu sum_i D_ii c_i f_i(theta_i)``, where f_i is the
    mean loss of agent i's rows plus a ridge. More than two classes are learned one against the rest.

    Parameters
    ----------
    method : str or rule
        How the agents reach the optimum: "cd", asynchronous coordinate descent; "admm", for losses with a kink, too;
        "djam". "propagation" trains models alone and then smooths them, with mu = (1 - alpha) / alpha. For
        comparison "local", "global", "component" or "ridge-to-mean": exact, and in one place.
    graph : "learn", "knn", GraphRule, Graph, (n, n) array or sparse matrix, or networkx graph
        Who collaborates with whom. "learn": the agents find out from the models they train alone (DADA, Section 4),
        as ``GraphRule(lam=lam)`` or a given rule says. "knn" ties each agent to those whose models, trained alone, are
        nearest. A given graph has its agents in the order of ``agents_``: sorted ids, or ``members``; a networkx graph
        has their ids.
    loss : str or rule
        "logistic", "smooth-hinge", "hinge" (not with "cd"), or a loss for labels -1 and +1.
    mu : float
        Weight of the agents' own data against agreement with their neighbours: large means every man for himself.
    lam : float
        For ``graph="learn"``: the larger, the more ties, and the lighter.
    ridge : float, (n,) array_like or "1/m"
        Ridge of f_i, ``ridge |theta|^2``, the intercept included; "1/m" shrinks with the agent's rows.
    confidence : "size", None or (n,) array_like
        c_i: agents with more rows are trusted more, all alike, or as given.
    neighbours : int
        Of each agent, for ``graph="knn"``; all others where there are fewer.
    fit_intercept : bool
        Whether every model has a constant term, shared and shrunk like the other coefficients.
    standardize : bool
        Whether to scale the features to mean 0 and variance 1 over all rows (sparse features are not centred). It
        needs those two numbers of every feature to be known to all agents; ``coef_`` is in the original units.
    members : sequence, optional
        All agents and their order; those without rows learn from their neighbours.
    tol : float
        Stop when the objective is within this of its optimum, relative, as Newton's decrement estimates it; for a
        loss with a kink, when models move by less than this, relative, while every agent wakes 20 times.
    max_wakes : int
        Stop after this many wakes of each agent, on average.
    seed : int
        Of the agents' clocks.

    Attributes
    ----------
    agents_ : tuple
        Agent ids, in the order of the models.
    classes_ : ndarray
    coef_ : (n, p) ndarray, or (n, classes, p) for more than two classes
    intercept_ : (n,) ndarray, or (n, classes)
    graph_ : Graph
    run_ : Run
        The simulation: trace, letters, bytes.
    n_iter_ : int
        Wakes of each agent, on average.

    Notes
    -----
    An agent that was never met gets the mean of all models, weighted by rows. Without ``agents``, all rows belong to
    one agent, and this is plain ridge-penalised classification.

    With ``sklearn.set_config(enable_metadata_routing=True)``, ``set_fit_request(agents=True)``,
    ``set_score_request(agents=True)`` and ``set_predict_request(agents=True)`` let pipelines and searches pass
    ``agents`` on.

    Examples
    --------
    >>> import numpy as np
    >>> import coterie as ct
    >>> rng = np.random.default_rng(0)
    >>> X, agents = rng.normal(size=(60, 2)), np.repeat(["ann", "bob", "cyd"], 20)
    >>> y = X[:, 0] + (agents == "cyd") * X[:, 1] > 0
    >>> model = ct.CollaborativeClassifier().fit(X, y, agents=agents)
    >>> model.coef_.shape, model.agents_
    ((3, 2), ('ann', 'bob', 'cyd'))
    >>> model.predict([[1.0, 0.0]], agents=["dan"])  # never met: the mean model
    array([ True])
    """

    def __init__(
        self,
        method: Any = "cd",
        graph: Any = "learn",
        loss: Any = "logistic",
        mu: float = 1.0,
        lam: float = 1.0,
        ridge: Any = "1/m",
        confidence: Any = "size",
        neighbours: int = 5,
        fit_intercept: bool = True,
        standardize: bool = False,
        members: Any = None,
        tol: float = 1e-6,
        max_wakes: int = 10_000,
        seed: int = 0,
    ):
        super().__init__(
            method,
            graph,
            loss,
            mu,
            lam,
            ridge,
            confidence,
            neighbours,
            fit_intercept,
            standardize,
            members,
            tol,
            max_wakes,
            seed,
        )

    def fit(self, X: Any, y: Any, agents: Any = None, progress: Callable[[int, int], None] | None = None) -> Self:
        """Learn one model for each agent.

        Parameters
        ----------
        X : (rows, p) array_like, sparse matrix or DataFrame
        y : (rows,) array_like
            Classes.
        agents : (rows,) sequence of hashables, or a column name of X, optional
            Whose row it is. Default: all rows belong to one agent.
        progress : callable, optional
            Called with (wakes done, wakes at most) now and then.

        Returns
        -------
        CollaborativeClassifier

        Examples
        --------
        >>> import coterie as ct
        >>> X, y, ids = [[0.0], [1.0], [2.0], [3.0]], ["no", "no", "yes", "yes"], ["ann", "bob", "ann", "bob"]
        >>> model = ct.CollaborativeClassifier(standardize=True).fit(X, y, agents=ids)
        >>> model.classes_.tolist()
        ['no', 'yes']
        """
        return self._fit(X, y, agents, progress)

    def _encode(self, y: np.ndarray, loss: Any) -> tuple[list[np.ndarray], dict[str, Any]]:
        """Labels -1 and +1, one list for each output; and what to remember of them."""
        try:
            check_classification_targets(y)
        except ValueError as error:
            raise DataError(str(error)) from None
        if loss.labels != SIGNS:
            raise MismatchError(f"{loss!r} takes {loss.labels} for labels: a classifier needs a loss of -1 and +1")
        classes, codes = np.unique(y, return_inverse=True)
        if len(classes) < 2:
            only = classes.tolist()[0]
            raise DataError(f"y holds one class only, {only!r}: a classifier needs at least two classes")
        chosen = [1] if len(classes) == 2 else range(len(classes))
        return [np.where(codes == k, 1.0, -1.0) for k in chosen], {"classes_": classes}

    def decision_function(self, X: Any, agents: Any = None) -> np.ndarray:
        """Margins: positive for the second of two classes; the largest wins among more.

        Parameters
        ----------
        X : (rows, p) array_like, sparse matrix or DataFrame
        agents : (rows,) sequence of hashables, or a column name of X, optional

        Returns
        -------
        (rows,) ndarray, or (rows, classes)

        Examples
        --------
        >>> import coterie as ct
        >>> X, y, ids = [[0.0], [1.0], [2.0], [3.0]], ["no", "no", "yes", "yes"], ["ann", "bob", "ann", "bob"]
        >>> model = ct.CollaborativeClassifier(standardize=True).fit(X, y, agents=ids)
        >>> (model.decision_function(X, agents=ids) > 0).tolist()
        [False, False, True, True]
        """
        margins = self._margins(X, agents)
        return margins[:, 0] if len(self.classes_) == 2 else margins

    def predict(self, X: Any, agents: Any = None) -> np.ndarray:
        """The class of every row, by its agent's model; by the mean model for an agent never met.

        Parameters
        ----------
        X : (rows, p) array_like, sparse matrix or DataFrame
        agents : (rows,) sequence of hashables, or a column name of X, optional

        Returns
        -------
        (rows,) ndarray

        Examples
        --------
        >>> import coterie as ct
        >>> X, y, ids = [[0.0], [1.0], [2.0], [3.0]], ["no", "no", "yes", "yes"], ["ann", "bob", "ann", "bob"]
        >>> model = ct.CollaborativeClassifier(standardize=True).fit(X, y, agents=ids)
        >>> model.predict(X, agents=ids).tolist()
        ['no', 'no', 'yes', 'yes']
        """
        margins = self.decision_function(X, agents)
        best = (margins > 0).astype(int) if margins.ndim == 1 else margins.argmax(axis=1)
        return np.asarray(self.classes_[best])

    @available_if(lambda self: isinstance(resolve_loss(self.loss), Logistic))
    def predict_proba(self, X: Any, agents: Any = None) -> np.ndarray:
        """Probabilities of the classes (logistic loss only); one-against-rest scores are normalised.

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
        >>> model = ct.CollaborativeClassifier(standardize=True).fit(X, y, agents=ids)
        >>> model.predict_proba(X, agents=ids).sum(axis=1).round(6).tolist()
        [1.0, 1.0, 1.0, 1.0]
        """
        return _probabilities(self.decision_function(X, agents))

    def score(self, X: Any, y: Any, agents: Any = None, sample_weight: Any = None) -> float:
        """Accuracy over all rows.

        Parameters
        ----------
        X : (rows, p) array_like, sparse matrix or DataFrame
        y : (rows,) array_like
        agents : (rows,) sequence of hashables, or a column name of X, optional
        sample_weight : (rows,) array_like, optional

        Returns
        -------
        float

        Examples
        --------
        >>> import coterie as ct
        >>> X, y, ids = [[0.0], [1.0], [2.0], [3.0]], ["no", "no", "yes", "yes"], ["ann", "bob", "ann", "bob"]
        >>> model = ct.CollaborativeClassifier(standardize=True).fit(X, y, agents=ids)
        >>> model.score(X, y, agents=ids)
        1.0
        """
        return float(accuracy_score(y, self.predict(X, agents), sample_weight=sample_weight))


class CollaborativeRegressor(RegressorMixin, _Collaborative):
    """One linear regression for each agent, learned together over a graph.

    As :class:`CollaborativeClassifier`, with numbers in place of classes.

    Parameters
    ----------
    method, graph, mu, lam, ridge, confidence, neighbours, fit_intercept, standardize, members, tol, max_wakes, seed
        As in :class:`CollaborativeClassifier`.
    loss : str or rule
        "squared", "huber", or a loss of real labels.

    Attributes
    ----------
    agents_ : tuple
        Agent ids, in the order of the models.
    coef_ : (n, p) ndarray
    intercept_ : (n,) ndarray
    graph_ : Graph
    run_ : Run
    n_iter_ : int

    Examples
    --------
    >>> import numpy as np
    >>> import coterie as ct
    >>> rng = np.random.default_rng(0)
    >>> X, agents = rng.normal(size=(60, 2)), np.repeat(["ann", "bob", "cyd"], 20)
    >>> model = ct.CollaborativeRegressor(ridge=1e-3).fit(X, X @ [1.0, 2.0] + 3.0, agents=agents)
    >>> model.coef_.round(1).tolist(), model.intercept_.round(1).tolist()
    ([[1.0, 2.0], [1.0, 2.0], [1.0, 2.0]], [3.0, 3.0, 3.0])
    """

    def fit(self, X: Any, y: Any, agents: Any = None, progress: Callable[[int, int], None] | None = None) -> Self:
        """Learn one model for each agent.

        Parameters
        ----------
        X : (rows, p) array_like, sparse matrix or DataFrame
        y : (rows,) array_like
            Numbers.
        agents : (rows,) sequence of hashables, or a column name of X, optional
            Whose row it is. Default: all rows belong to one agent.
        progress : callable, optional
            Called with (wakes done, wakes at most) now and then.

        Returns
        -------
        CollaborativeRegressor

        Examples
        --------
        >>> import coterie as ct
        >>> X, y, ids = [[0.0], [1.0], [2.0], [3.0]], [0.0, 2.0, 4.0, 6.0], ["ann", "bob", "ann", "bob"]
        >>> model = ct.CollaborativeRegressor(ridge=1e-6).fit(X, y, agents=ids)
        >>> model.coef_.round(2).tolist()
        [[2.0], [2.0]]
        """
        return self._fit(X, y, agents, progress)

    def _encode(self, y: np.ndarray, loss: Any) -> tuple[list[np.ndarray], dict[str, Any]]:
        """The labels themselves, as the only output."""
        if loss.labels == SIGNS:
            raise MismatchError(f"{loss!r} is for classes: a regressor needs a loss of real labels, such as 'squared'")
        return [np.asarray(y, dtype=np.float64)], {}

    def predict(self, X: Any, agents: Any = None) -> np.ndarray:
        """The prediction of every row's agent; of the mean model for an agent never met.

        Parameters
        ----------
        X : (rows, p) array_like, sparse matrix or DataFrame
        agents : (rows,) sequence of hashables, or a column name of X, optional

        Returns
        -------
        (rows,) ndarray

        Examples
        --------
        >>> import coterie as ct
        >>> X, y, ids = [[0.0], [1.0], [2.0], [3.0]], [0.0, 2.0, 4.0, 6.0], ["ann", "bob", "ann", "bob"]
        >>> model = ct.CollaborativeRegressor(ridge=1e-6).fit(X, y, agents=ids)
        >>> model.predict([[5.0]], agents=["bob"]).round(2).tolist()
        [10.0]
        """
        return self._margins(X, agents)[:, 0]

    def score(self, X: Any, y: Any, agents: Any = None, sample_weight: Any = None) -> float:
        """R^2 over all rows.

        Parameters
        ----------
        X : (rows, p) array_like, sparse matrix or DataFrame
        y : (rows,) array_like
        agents : (rows,) sequence of hashables, or a column name of X, optional
        sample_weight : (rows,) array_like, optional

        Returns
        -------
        float

        Examples
        --------
        >>> import coterie as ct
        >>> X, y, ids = [[0.0], [1.0], [2.0], [3.0]], [0.0, 2.0, 4.0, 6.0], ["ann", "bob", "ann", "bob"]
        >>> model = ct.CollaborativeRegressor(ridge=1e-6).fit(X, y, agents=ids)
        >>> round(model.score(X, y, agents=ids), 3)
        1.0
        """
        return float(r2_score(y, self.predict(X, agents), sample_weight=sample_weight))


def _probabilities(log_odds: np.ndarray) -> np.ndarray:
    """Of two classes, or of several that are scored one against the rest."""
    if log_odds.ndim == 1:
        return np.stack([expit(-log_odds), expit(log_odds)], axis=1)
    scores = expit(log_odds)
    return np.asarray(scores / scores.sum(axis=1, keepdims=True))


def _ids_of(X: Any, agents: Any) -> tuple[Any, Any, Any]:
    """Features, agent ids, and the column that held them, if it was one."""
    if isinstance(agents, str):
        features, [ids] = split_frame(X, agents)
        return features, ids, agents
    return X, agents, None


def _no_missing(y: Any, ids: Any) -> Any:
    """Y, unless one of its values is missing: that is refused here, where the agent is known."""
    values = np.asarray(y)
    missing = np.flatnonzero(pd.isna(values)) if values.ndim == 1 else np.empty(0, int)
    if missing.size:
        owner = "" if ids is None else f" (agent {as_agent_ids(ids).tolist()[missing[0]]!r})"
        raise DataError(f"row {missing[0]}{owner}: the label is missing (NaN): fill it in, or drop the row")
    return y


def _scaled(X: Any, center: np.ndarray, scale: np.ndarray) -> Any:
    return X @ sparse.diags_array(1.0 / scale) if sparse.issparse(X) else (X - center) / scale


def _one_model_for_all_outputs(data: AgentData, targets: list[np.ndarray], intercept: bool) -> AgentData:
    """Append the intercept, and give every further output its own copy of the rows and of the features."""
    if intercept:
        data = data.append_column()
    if len(targets) == 1:
        return data
    X = sparse.block_diag([sparse.csr_array(data.X)] * len(targets), format="csr")
    y = np.concatenate([target[data.origin] for target in targets])
    members = np.empty(data.n, dtype=object)
    members[:] = data.members
    return AgentData(X, y, agents=np.concatenate([members[data.owner]] * len(targets)), members=data.members)
