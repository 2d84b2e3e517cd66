"""Models learned over a graph that is given or learned: the estimators' methods such as "cd", and boosted estimators.

The linear models solve :meth:`coterie.Problem.personalized`, CD (3); agents find them by exchanging models.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import networkx as nx
import numpy as np
from scipy import sparse
from sklearn.exceptions import ConvergenceWarning

from .. import graphs
from .._checks import integer, nonnegative
from ..core.losses import resolve_loss
from ..core.methods import ModelPropagation, check_fit
from ..core.methods.fixed import FixedModels
from ..core.wrap.graph_rule import AUTO, GraphRule
from ..core.wrap.learned import Learned
from ..data import AgentData
from ..data.table import Table
from ..engines.graph_learning import MAX_AGENTS_ASKING_ALL, nearest_peers
from ..engines.run import Run
from ..engines.simulator import simulate
from ..errors import GraphError, MismatchError, ParameterError
from ..graphs import Graph
from ..pooling.designs import standards
from ..problem import Problem
from ..problem.baselines import Baseline, ComponentModels, resolve_method
from ..problem.coupling import mu_of
from .models import Linear
from .per_agent import check_labels, with_mean

#: Wakes of each agent between two checks of convergence.
WAKES_PER_CHECK = 20
#: Number of peers that an agent contacts at a time while it learns the graph.
PEERS_PER_WAKE = 5
#: Maximum number of wakes of each agent while the graph is learned, before the models are finished on it.
MAX_LEARNING_WAKES = 200
#: Up to MAX_ALL_PAIRS_AGENTS agents every pair is a candidate edge; beyond, each agent with its CANDIDATE_NEIGHBOURS
#: nearest models.
MAX_ALL_PAIRS_AGENTS, CANDIDATE_NEIGHBOURS = 1_000, 30


class Settled:
    """Stopping rule: the objective is near its optimum or, where a kink prevents this check, models hardly move."""

    def __init__(self, problem: Problem, tol: float):
        self.problem, self.tol, self.yes = problem, tol, False
        self.last = np.full((problem.n, problem.p), np.inf)

    def __call__(self, theta: np.ndarray) -> bool:
        """Return whether the run may stop at these models."""
        if np.isfinite(self.problem.radius):
            self.yes = self.problem.gap(theta) <= self.tol * self.problem.importance.sum()
        elif np.isfinite(self.problem.loss.smoothness):
            self.yes = self.problem.suboptimality(theta, enough=self.tol) <= self.tol
        else:
            self.yes = bool(np.abs(theta - self.last).max() <= self.tol * (1.0 + np.abs(theta).max()))
            self.last = theta.copy()
        return self.yes


# -- any problem, given without edges ----------------------------------------------------------------------------------


def check_settings(model: Any) -> None:
    """Refuse numbers out of their range before anything is computed."""
    integer("n_neighbors", model.n_neighbors)
    integer("max_iter", model.max_iter)
    integer("random_state", model.random_state, least=0)
    nonnegative("tol", model.tol)


def run_together(
    model: Any,
    alone: Problem,
    method: Any,
    start: Callable[[], np.ndarray],
    given: Callable[[], Graph],
    progress: Any,
    meanwhile: Any = None,
    afterwards: Callable[[Any, int], Any] = lambda method, wakes: method,
) -> Run:
    """Learn a graph for the agents of a problem without edges, if the model asks for one, then models on the graph.

    ``meanwhile`` is the method that updates models while the graph is learned. By default models do not move, and are
    those that agents trained alone: linear models that move towards their neighbours become more and more alike, and
    the learned edges with them (see benchmarks/graphs.py). For models that do not move, the best graph is computed
    directly, in this process. ``afterwards`` returns the method that finishes models that moved, given the wakes of
    each agent so far.
    """
    _check_method(method)
    solved = isinstance(method, Baseline)
    if not solved:
        check_fit(method, alone)  # before a graph is learned for it
    n, before, theta = alone.n, None, start()
    rule = _rule_of(model, n)
    if rule is None or (solved and not isinstance(method, ComponentModels)):
        graph = given()
    elif meanwhile is None and not rule.limited:
        graph = best_graph(alone, rule, theta, model.random_state)
    else:
        learning = min(MAX_LEARNING_WAKES, model.max_iter // 2)
        # Models far from their optimum cannot tell which agents are near: use models that agents train alone.
        models = theta if meanwhile is None or n <= MAX_AGENTS_ASKING_ALL else alone.local()
        peers = nearest_peers(models, rule.kappa, model.random_state)
        learner = Learned(meanwhile or FixedModels(), rule, every=1, sampling=peers)
        before = simulate(alone, learner, learning * n, model.random_state, theta, progress=progress, keep_state=False)
        theta, method, graph = before.theta, afterwards(method, learning), before.graph
    problem = alone.on(graph=graph)
    settled = Settled(problem, model.tol)
    run = simulate(
        problem,
        method,
        wakes=model.max_iter * n - (before.wakes if before else 0),
        seed=model.random_state,
        start=theta,
        every=WAKES_PER_CHECK * n,
        until=settled,
        progress=progress,
        keep_state=False,
    )
    if not (solved or settled.yes):
        warnings.warn(
            f"the objective is more than tol={model.tol:g} above its optimum after max_iter={model.max_iter} wakes of "
            "each agent; raise max_iter",
            ConvergenceWarning,
            stacklevel=5,
        )
    return run if before is None else run.after(before)


def best_graph(problem: Problem, rule: GraphRule, theta: np.ndarray, seed: int) -> Graph:
    """Return the graph that agents with these models would learn by a rule, computed from all candidate pairs."""
    Learned(FixedModels(), rule).fit_for(problem)
    own = problem.loss_weight * problem.losses(theta) if problem.scaled else np.zeros(problem.n)
    # Distances are weighted by the problem's mu_1, and the regulariser by the rule's mu_2.
    mu_1 = 2.0 * problem.smooth
    mu_2 = mu_1 if rule.mu == AUTO else rule.mu
    models = theta if mu_1 == mu_2 else np.sqrt(mu_1 / mu_2) * theta
    return graphs.exact_graph(
        models, own, mu=mu_2, lam=rule.lam, delta=rule.delta, candidates=_candidates(problem.n), seed=seed
    )


def _candidates(n: int) -> int | None:
    return None if n <= MAX_ALL_PAIRS_AGENTS else CANDIDATE_NEIGHBOURS


def _check_method(method: Any) -> None:
    """Refuse methods with which an estimator cannot keep its promises."""
    if isinstance(method, Baseline):
        return
    if isinstance(method, Learned):
        raise ParameterError(
            f"method={method!r}: the estimator learns the graph; choose how with graph=ct.GraphRule(...)"
        )
    if method.privacy.plan is not None:
        raise MismatchError(
            f"method={method!r}: an estimator scales rows, starts from local models and derives a graph from them "
            "without privacy, so that no privacy can be claimed; use ct.simulate(problem, method)"
        )
    if not method.promises.minimises:
        raise MismatchError(
            f"method={method!r} minimises no objective, and an estimator stops when its objective is minimised; use "
            "ct.simulate(problem, method)"
        )


def _rule_of(model: Any, n: int) -> GraphRule | None:
    """Return the rule by which the graph is learned, or None if it is not learned."""
    if isinstance(model.graph, GraphRule):
        return model.graph
    learns = model.graph is None or (isinstance(model.graph, str) and model.graph == "learn")
    return GraphRule(lam=model.lam, kappa=min(PEERS_PER_WAKE, n - 1)) if learns and n > 1 else None


def graph_of(model: Any, alone: Problem, members: tuple[Any, ...]) -> Graph:
    """Return the graph of a model for the agents of a problem; the nodes of a networkx graph are ids, ``members``."""
    n, graph = alone.n, model.graph
    if graph is None or isinstance(graph, GraphRule):  # one agent only, or a method that uses no graph
        return graphs.empty(n)
    if isinstance(graph, str):
        if graph not in ("knn", "learn"):
            raise ParameterError(
                f'graph={graph!r} must be "learn", "knn", a GraphRule, a Graph, a weight matrix or a networkx graph'
            )
        if graph == "learn" or n == 1:
            return graphs.empty(n)
        return graphs.knn(alone.local(), min(model.n_neighbors, n - 1))
    return _given(graph, members)


def _given(graph: Any, members: tuple[Any, ...]) -> Graph:
    if isinstance(graph, nx.Graph):
        return graphs.from_networkx(graph, members=members)
    return graph if isinstance(graph, Graph) else Graph(graph)


# -- the main estimators ----------------------------------------------------------------------------------------------


def learn_over_graph(
    model: Any, table: Table, targets: list[np.ndarray], labels_given: np.ndarray, progress: Any
) -> tuple[Linear, dict[str, Any]]:
    """Learn the models of a main estimator by one of the papers' methods; features and numbers are scaled first.

    Returns the models in the units of the input, and the attributes that describe the run.
    """
    classifies = model._kind == "classifier"
    method, loss = resolve_method(model.method), resolve_loss(model.loss or ("logistic" if classifies else "squared"))
    check_labels(loss, classifies)
    check_settings(model)
    if isinstance(model.graph, str) and model.graph == "auto":
        raise ParameterError(
            f'graph="auto" is for method="pooling"; for method={model.method!r} choose "learn" or "knn"'
        )
    center, scale = standards(table.X)
    middle, unit = (0.0, 1.0) if classifies else (part.item() for part in standards(targets[0][:, None]))
    labels = [np.where(target > 0.0, 1.0, -1.0) if classifies else (target - middle) / unit for target in targets]
    data = _one_model_for_all_outputs(scaled(table.X, center, scale), labels, table)
    alone, posed = _posed(model, method, loss, data, len(labels))
    run = run_together(model, posed, method, alone.local, lambda: graph_of(model, alone, table.members), progress)
    models = with_mean(run.theta.reshape(data.n, len(labels), -1), run.problem.data.sizes)
    coefficients = models[:, :, :-1] * (unit / scale)
    intercepts = models[:, :, -1] * unit + middle - coefficients @ center
    extra = {"run_": run, "n_iter_": max(1, run.wakes // data.n)}
    kept = (table.X, labels_given, table.codes)
    return Linear(coefficients, intercepts, learned_from=kept, runs=(run,), graph=run.graph), extra


def _posed(model: Any, method: Any, loss: Any, data: AgentData, outputs: int) -> tuple[Problem, Problem]:
    """Return the agents' own problem, and the problem that the method solves: the same one, or model propagation."""
    # The loss is a mean over the examples of all outputs: the weights make outputs count as separate problems.
    ridge = model.ridge if isinstance(model.ridge, str) else np.asarray(model.ridge) / outputs
    weight = mu_of(model.coupling, "personalized") * outputs
    settings = {"loss": loss, "mu": weight, "ridge": ridge, "confidence": model.confidence}
    alone = Problem.personalized(data, graphs.empty(data.n), **settings)
    if not isinstance(method, ModelPropagation):
        return alone, alone
    alpha = 1.0 / (1.0 + mu_of(model.coupling, "propagation"))  # mu = (1 - alpha) / alpha
    return alone, Problem.propagation(alone.local(), alone.graph, alpha, alone.loss_weight / weight)


def _one_model_for_all_outputs(X: Any, labels: list[np.ndarray], table: Table) -> AgentData:
    """Append the intercept, and give every further output its own copy of the rows and of the features."""
    n = len(table.members)
    data = AgentData.of_codes(X, labels[0], table.codes, range(n)).append_column()
    if len(labels) == 1:
        return data
    copies = sparse.block_diag([sparse.csr_array(data.X)] * len(labels), format="csr")
    y = np.concatenate([target[data.origin] for target in labels])
    return AgentData.of_codes(copies, y, np.tile(data.owner, len(labels)), range(n))


def scaled(X: Any, center: np.ndarray, scale: np.ndarray) -> Any:
    """Return columns in standard units; sparse columns are scaled but not centred, which would fill them."""
    return X @ sparse.diags_array(1.0 / scale) if sparse.issparse(X) else (X - center) / scale


# -- pooling with edges ------------------------------------------------------------------------------------------------


def weights_of(model: Any, models: list[Any], members: tuple[Any, ...]) -> Callable[[list[np.ndarray]], Any]:
    """Return a function from agents' deviations to the weights of the edges: of nearest agents, learned, or given."""
    graph, n = model.graph, len(members)
    if not isinstance(graph, (str, GraphRule)):
        found = _given(graph, members)
        if found.n != n:
            raise GraphError(f"the graph has {found.n} agents, and the rows have {n}: give a graph of {n} agents")
        return lambda deviations: found.W
    if isinstance(graph, str) and graph not in ("auto", "knn", "learn"):
        raise ParameterError(
            f'graph={graph!r} must be None, "auto", "knn", "learn", a GraphRule, a Graph, a weight matrix or a '
            "networkx graph"
        )
    check_settings(model)
    # Distances between agents are in units of the population's standard deviations.
    units = [np.sqrt(np.maximum(each.population.variances, 1e-12)) for each in models]

    def weights(deviations: list[np.ndarray]) -> Any:
        apart = np.hstack([D / unit for D, unit in zip(deviations, units, strict=True)])
        if n == 1:
            return graphs.empty(1).W
        rule = _rule_of(model, n)
        if rule is None:
            return graphs.knn(apart, min(model.n_neighbors, n - 1)).W
        settings = {"lam": rule.lam, "delta": rule.delta, "seed": model.random_state}
        return graphs.exact_graph(apart, np.zeros(n), candidates=_candidates(n), **settings).W

    return weights
