"""Models learned over a graph: those of :meth:`coterie.Problem.personalized`, CD (3), found by the agents exchanging
models over a graph that is given, or that they learn.

What the front door does for ``method="cd"`` and the like, and what boosted and relationship estimators share.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple, Self

import networkx as nx
import numpy as np
import pandas as pd
from scipy import sparse
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import accuracy_score, r2_score
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from .. import graphs
from ..core.linear import frozen, margins_kernel, rows_of
from ..core.losses import SIGNS, Logistic
from ..core.methods import ModelPropagation, check_fit
from ..core.methods.fixed import FixedModels
from ..core.wrap.graph_rule import GraphRule
from ..core.wrap.learned import Learned
from ..data import AgentData
from ..data.agent_data import as_agent_ids, as_features, split_frame
from ..engines.graph_learning import learn_graph
from ..engines.run import Run
from ..engines.simulator import simulate
from ..errors import DataError, GraphError, MismatchError, ParameterError
from ..graphs import Graph
from ..pooling.designs import standards
from ..problem import Problem
from ..problem.baselines import ComponentModels, resolve_method
from ..problem.problem import resolve_loss
from .collaborative import Linear
from .collaborative import probabilities as probabilities

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
    """What a fit was given: checked and encoded."""

    data: AgentData
    targets: list[np.ndarray]  # of every output, in the order of the input
    fitted: dict[str, Any]  # what to remember of the labels
    column: Any  # that held the agents' ids


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
        self.members = members
        self.tol = tol
        self.max_wakes = max_wakes
        self.seed = seed

    # -- fitting -------------------------------------------------------------------------------------------------

    def _fit(self, X: Any, y: Any, agents: Any, progress: Callable[[int, int], None] | None) -> Self:
        """Encode, lay out, run, and take the models apart again."""
        method, loss = resolve_method(self.method), resolve_loss(self.loss)
        plain, targets, fitted, column = self._prepared(X, y, agents, loss)
        data = _one_model_for_all_outputs(plain, targets)

        outputs = len(targets)
        # A mean over the outputs' examples, weighted so that they count as so many separate problems.
        ridge = self.ridge if isinstance(self.ridge, str) else np.asarray(self.ridge) / outputs
        weights = {"loss": loss, "mu": self.mu * outputs, "ridge": ridge, "confidence": self.confidence}
        alone = Problem.personalized(data, graphs.empty(data.n), **weights)
        posed = alone
        if isinstance(method, ModelPropagation):  # trained alone, then smoothed: mu = (1 - alpha) / alpha
            confidence = alone.loss_weight / (self.mu * outputs)
            posed = Problem.propagation(alone.local(), alone.graph, 1.0 / (1.0 + self.mu), confidence)
        advice = "raise max_wakes"
        run = self._together(posed, method, alone.local, lambda: self._graph(alone), progress, advice)
        # Nothing was changed before: a fit that is refused leaves the estimator as it was.
        self.agents_, self.graph_, self.run_, self._agent_column = data.members, run.graph, run, column
        for name, value in fitted.items():
            setattr(self, name, value)
        self._unpack(run.theta, outputs, plain.p)
        return self

    def _prepared(self, X: Any, y: Any, agents: Any, loss: Any) -> _Prepared:
        """Check and encode what was given."""
        X, ids, column = _ids_of(X, agents)
        rows, y = self._validated(X, _no_missing(y, ids))
        targets, fitted = self._encode(y, loss)
        ids = np.zeros(rows.shape[0], int) if ids is None else as_agent_ids(ids, rows.shape[0])
        named = X if hasattr(X, "columns") else rows  # a frame names its columns in errors
        data = AgentData(named, targets[0], agents=ids, members=self.members)
        return _Prepared(data, targets, fitted, column)

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
        return FixedModels()

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

    def _unpack(self, theta: np.ndarray, outputs: int, p: int) -> None:
        """Take the models apart into coefficients and intercepts; agents never met get the mean, by rows."""
        models = theta.reshape(len(theta), outputs, -1)
        stranger = np.average(models, axis=0, weights=self.run_.problem.data.sizes)
        models = np.concatenate([models, stranger[None]])
        self._expose(models[:, :, :p], models[:, :, p])
        self.n_iter_ = max(1, self.run_.wakes // len(theta))

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


def learn_over_graph(
    model: Any, X: Any, targets: list[np.ndarray], codes: np.ndarray, members: tuple[Any, ...], progress: Any
) -> tuple[Linear, dict[str, Any]]:
    """Models of a front-door estimator by one of the papers' methods; features and numbers are scaled first.

    Returns the models in the units of the input, and attributes that tell of the run.
    """
    classifies = model._kind == "classifier"
    center, scale = standards(X) if isinstance(X, np.ndarray) else (np.zeros(X.shape[1]), _root_mean_square(X))
    middle, unit = (0.0, 1.0) if classifies else (part.item() for part in standards(targets[0][:, None]))
    labels = np.argmax(np.stack(targets), axis=0) if len(targets) > 1 else (targets[0] - middle) / unit
    graph: Any = "learn" if model.graph is None else model.graph
    if isinstance(graph, str) and graph == "auto":
        raise ParameterError(
            f'graph="auto" is for method="pooling"; for method={model.method!r} choose "learn" or "knn"'
        )
    if isinstance(graph, nx.Graph):
        graph = graphs.from_networkx(graph, members=members)
    settings = {name: getattr(model, name) for name in SETTINGS}
    loss = model.loss or ("logistic" if classifies else "squared")
    inner = (GraphClassifier if classifies else GraphRegressor)(
        graph=graph, loss=loss, members=range(len(members)), **settings
    )
    inner._fit(_scaled(X, center, scale), labels, codes, progress)
    coefficients = inner._coefficients * (unit / scale)
    intercepts = inner._intercepts * unit + middle - coefficients @ center
    extra = {"graph_": inner.graph_, "run_": inner.run_, "n_iter_": inner.n_iter_}
    return Linear(coefficients, intercepts), extra


def weights_of(model: Any, models: list[Any], members: tuple[Any, ...]) -> Callable[[list[np.ndarray]], Any]:
    """Weights of the ties that a pooling estimator asks for, of agents' deviations: nearest, learned, or given."""
    graph, n = model.graph, len(members)
    if not isinstance(graph, (str, GraphRule)):
        if isinstance(graph, nx.Graph):
            graph = graphs.from_networkx(graph, members=members)
        found = graph if isinstance(graph, Graph) else Graph(graph)
        if found.n != n:
            raise GraphError(f"the graph has {found.n} agents, and the rows have {n}")
        return lambda deviations: found.W
    if isinstance(graph, str) and graph not in ("auto", "knn", "learn"):
        raise ParameterError(
            f'graph={graph!r} must be None, "auto", "knn", "learn", a GraphRule, a Graph, a weight matrix or a '
            "networkx graph"
        )
    if model.neighbours < 1:
        raise ParameterError(f"neighbours={model.neighbours} must be at least 1")
    # In units of their spread: as far apart as the population finds remarkable.
    units = [np.sqrt(np.maximum(each.population.variances, 1e-12)) for each in models]

    def weights(deviations: list[np.ndarray]) -> Any:
        apart = np.hstack([D / unit for D, unit in zip(deviations, units, strict=True)])
        if n == 1:
            return graphs.empty(1).W
        if isinstance(graph, str) and graph != "learn":
            return graphs.knn(apart, neighbours=min(model.neighbours, n - 1)).W
        rule = graph if isinstance(graph, GraphRule) else GraphRule(lam=model.lam, kappa=min(KAPPA, n - 1))
        wakes = min(LEARNING, model.max_wakes) * n
        return learn_graph(apart, np.zeros(n), lam=rule.lam, kappa=rule.kappa, wakes=wakes, seed=model.seed).graph.W

    return weights


#: Parameters of the front door that concern methods over a graph alone.
SETTINGS = ("method", "mu", "lam", "ridge", "confidence", "neighbours", "tol", "max_wakes", "seed")


def _root_mean_square(X: Any) -> np.ndarray:
    """Scales of sparse columns, which are not centred: that would fill them."""
    square = np.sqrt(np.asarray(X.multiply(X).mean(axis=0)).ravel())
    return np.where(square > 0.0, square, 1.0)


class GraphClassifier(ClassifierMixin, _Collaborative):
    """One linear classifier for each agent, learned together over a graph; several classes one against the rest."""

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
            Called with what is done, and how much there is at most, now and then.

        Returns
        -------
        self
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
        """
        return probabilities(self.decision_function(X, agents))

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
        """
        return float(accuracy_score(y, self.predict(X, agents), sample_weight=sample_weight))


class GraphRegressor(RegressorMixin, _Collaborative):
    """One linear regression for each agent, learned together over a graph."""

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
            Called with what is done, and how much there is at most, now and then.

        Returns
        -------
        self
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
        """
        return float(r2_score(y, self.predict(X, agents), sample_weight=sample_weight))


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


def _one_model_for_all_outputs(data: AgentData, targets: list[np.ndarray]) -> AgentData:
    """Append the intercept, and give every further output its own copy of the rows and of the features."""
    data = data.append_column()
    if len(targets) == 1:
        return data
    X = sparse.block_diag([sparse.csr_array(data.X)] * len(targets), format="csr")
    y = np.concatenate([target[data.origin] for target in targets])
    members = np.empty(data.n, dtype=object)
    members[:] = data.members
    return AgentData(X, y, agents=np.concatenate([members[data.owner]] * len(targets)), members=data.members)
