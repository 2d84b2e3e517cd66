"""Models learned over a graph that is given, or that the agents learn: what the front door does for ``method="cd"`` and
the like, and how boosted estimators run.

The linear models are those of :meth:`coterie.Problem.personalized`, CD (3), found by agents that exchange models.
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

#: Wakes of each agent between two looks at whether the models still move.
ROUND = 20
#: Peers that an agent asks at a time while it learns the graph.
KAPPA = 5
#: Wakes of each agent in which the graph is learned, at most, before the models are finished on it.
LEARNING = 200
#: Among so many agents every pair may be tied; of more, each agent and those with the nearest models, so many of them.
ALL_PAIRS, CANDIDATES = 1_000, 30


class Settled:
    """Whether a run may end: the objective is near its optimum or, where a kink hides that, models are at rest."""

    def __init__(self, problem: Problem, tol: float):
        self.problem, self.tol, self.yes = problem, tol, False
        self.last = np.full((problem.n, problem.p), np.inf)

    def __call__(self, theta: np.ndarray) -> bool:
        """Look at the models of all agents."""
        if np.isfinite(self.problem.radius):
            self.yes = self.problem.gap(theta) <= self.tol * self.problem.importance.sum()
        elif np.isfinite(self.problem.loss.smoothness):
            self.yes = self.problem.suboptimality(theta, enough=self.tol) <= self.tol
        else:
            self.yes = bool(np.abs(theta - self.last).max() <= self.tol * (1.0 + np.abs(theta).max()))
            self.last = theta.copy()
        return self.yes


# -- any problem of agents without edges -------------------------------------------------------------------------------


def check_settings(model: Any) -> None:
    """Refuse numbers out of their range, before anything is computed."""
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
    """Let the agents of a problem without edges learn a graph if they shall, and then their models on it.

    ``meanwhile`` is what models do while the graph is learned. By default they wait, as they were trained alone: linear
    models that move towards their neighbours look more and more alike, and so do edges that are worth having (see
    benchmarks/graphs.py). The best graph for models that wait is found at once, in one place. ``afterwards`` says which
    method finishes models that moved, after so many wakes of each agent.
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
        learning = min(LEARNING, model.max_iter // 2)
        # Models that are not there yet cannot say who is near: those that agents train alone do.
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
        every=ROUND * n,
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
    """The graph that agents with these models would come to by a rule, in the time of a few looks at each pair."""
    Learned(FixedModels(), rule).fit_for(problem)
    own = problem.loss_weight * problem.losses(theta) if problem.scaled else np.zeros(problem.n)
    # The distances count with mu_1, that of the problem, and the regulariser with mu_2, that of the rule.
    mu_1 = 2.0 * problem.smooth
    mu_2 = mu_1 if rule.mu == AUTO else rule.mu
    models = theta if mu_1 == mu_2 else np.sqrt(mu_1 / mu_2) * theta
    return graphs.exact_graph(
        models, own, mu=mu_2, lam=rule.lam, delta=rule.delta, candidates=_candidates(problem.n), seed=seed
    )


def _candidates(n: int) -> int | None:
    return None if n <= ALL_PAIRS else CANDIDATES


def _check_method(method: Any) -> None:
    """Refuse what an estimator cannot keep the promises of."""
    if isinstance(method, Baseline):
        return
    if isinstance(method, Learned):
        raise ParameterError(f"method={method!r}: the estimator learns the graph, say how with graph=ct.GraphRule(...)")
    if method.privacy.plan is not None:
        raise MismatchError(
            f"method={method!r}: an estimator scales, starts from local models and takes a graph from them, "
            "all in the clear, so that nothing private could be claimed; use ct.simulate(problem, method)"
        )
    if not method.promises.minimises:
        raise MismatchError(
            f"method={method!r} minimises no objective, and an estimator goes on until its own is minimised: use "
            "ct.simulate(problem, method)"
        )


def _rule_of(model: Any, n: int) -> GraphRule | None:
    """How the graph is learned, if it is."""
    if isinstance(model.graph, GraphRule):
        return model.graph
    learns = model.graph is None or (isinstance(model.graph, str) and model.graph == "learn")
    return GraphRule(lam=model.lam, kappa=min(KAPPA, n - 1)) if learns and n > 1 else None


def graph_of(model: Any, alone: Problem, members: tuple[Any, ...]) -> Graph:
    """The graph asked for, on the agents of a problem; a networkx graph has their ids, ``members``."""
    n, graph = alone.n, model.graph
    if graph is None or isinstance(graph, GraphRule):  # nobody to learn it from, or nobody to use it
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


# -- the front door ---------------------------------------------------------------------------------------------------


def learn_over_graph(
    model: Any, table: Table, targets: list[np.ndarray], labels_given: np.ndarray, progress: Any
) -> tuple[Linear, dict[str, Any]]:
    """Models of a front-door estimator by one of the papers' methods; features and numbers are scaled first.

    Returns the models in the units of the input, and attributes that tell of the run.
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
    """The agents' own problems; and what a method solves, also without edges: the same, or to smooth their solutions."""
    # A mean over the outputs' examples, weighted so that they count as so many separate problems.
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
    """Columns in standard units; sparse ones are not centred, which would fill them."""
    return X @ sparse.diags_array(1.0 / scale) if sparse.issparse(X) else (X - center) / scale


# -- pooling with edges ------------------------------------------------------------------------------------------------


def weights_of(model: Any, models: list[Any], members: tuple[Any, ...]) -> Callable[[list[np.ndarray]], Any]:
    """Weights of the edges that a pooling estimator asks for, of agents' deviations: nearest, learned, or given."""
    graph, n = model.graph, len(members)
    if not isinstance(graph, (str, GraphRule)):
        found = _given(graph, members)
        if found.n != n:
            raise GraphError(f"the graph has {found.n} agents, and the rows have {n}")
        return lambda deviations: found.W
    if isinstance(graph, str) and graph not in ("auto", "knn", "learn"):
        raise ParameterError(
            f'graph={graph!r} must be None, "auto", "knn", "learn", a GraphRule, a Graph, a weight matrix or a '
            "networkx graph"
        )
    check_settings(model)
    # In units of their spread: as far apart as the population finds remarkable.
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
