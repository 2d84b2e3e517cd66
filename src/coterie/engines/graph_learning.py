"""Learn only the graph: the edges between agents whose models are fixed."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ..core.methods.fixed import FixedModels, KnownLoss
from ..core.wrap.graph_rule import GraphRule
from ..core.wrap.learned import Learned
from ..core.wrap.sampling import CandidateList, Uniform
from ..data import AgentData
from ..errors import DataError
from ..graphs import Graph, empty
from ..graphs.builders import nearest
from ..problem import Problem
from .conditions import Conditions
from .run import Run
from .simulator import simulate

log = logging.getLogger("coterie")

#: Up to this number of agents, each agent may ask all others; with more agents, those with the nearest models.
MAX_AGENTS_ASKING_ALL, NEAREST_CANDIDATES = 100, 30
#: Rough speed for the message before the start, for kappa = 5 and twenty coefficients, without help of the cache.
WAKES_PER_SECOND = 80_000.0


def nearest_peers(models: np.ndarray, kappa: int, seed: Any = 0) -> Uniform | CandidateList:
    """Return the sampler for known models: all agents if there are few, those with the nearest models otherwise."""
    n = len(models)
    return (
        Uniform()
        if n <= MAX_AGENTS_ASKING_ALL
        else CandidateList(nearest(models, min(max(NEAREST_CANDIDATES, kappa), n - 1), seed=seed))
    )


def learn_graph(
    models: ArrayLike,
    losses: ArrayLike,
    confidence: ArrayLike | None = None,
    mu: float = 1.0,
    lam: float = 1.0,
    delta: float = 0.01,
    kappa: int = 5,
    wakes: int | None = None,
    seed: Any = 0,
    *,
    step: str = "exact",
    max_edges: int | None = None,
    sampling: Any = "nearest",
    graph: Graph | None = None,
    every: int | None = None,
    conditions: Conditions | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Run:
    """Let agents with fixed models learn their edges to agents with similar ones, DADA Section 4.

    Minimises, over the weights w >= 0 of all pairs::

        sum_k d_k c_k L_k + mu/2 sum_{k<l} w_kl |theta_k - theta_l|^2 + mu (lam |w|^2 - sum_k log(d_k + delta)).

    An agent that wakes asks kappa peers, and updates its edges to these peers.

    Parameters
    ----------
    models : (n, p) array_like
        Models theta_k of the agents.
    losses : (n,) array_like
        L_k: the log of the *sum* of exponential losses for boosting, otherwise the local loss.
    confidence : (n,) array_like, optional
        Confidence c_k of the agents. Default: all 1.
    mu, lam, delta, kappa, step, max_edges
        As in :class:`coterie.GraphRule`; mu is both mu_1 and mu_2.
    wakes : int, optional
        Number of wakes, of all agents together. Default: enough for every agent to ask each of its candidates 25
        times, on average, and at least 200 times per agent; the number is logged before the start.
    seed : int
    sampling : "nearest", "uniform", "shuffle", "friends" or a sampler
        Source of the peers to ask. Default: "nearest", which is all agents up to 100 agents, and the 30 with the
        nearest models beyond: the graph is then the optimum over these pairs, ``exact_graph(..., candidates=30)``.
    graph : Graph, optional
        Initial graph. Default: no edges.
    every : int, optional
        Number of wakes between two rows of the trace.
    conditions : Conditions, optional
        Latency, loss and so on. Default: messages arrive at once.
    progress : callable, optional
        Called regularly with (number of wakes done, total number of wakes).

    Returns
    -------
    Run
        With ``graph``; the trace holds values of the objective above.

    Examples
    --------
    >>> import numpy as np
    >>> import coterie as ct
    >>> models, losses = np.random.default_rng(0).normal(size=(8, 2)), np.zeros(8)
    >>> run = ct.learn_graph(models, losses, kappa=3)
    >>> best = ct.exact_graph(models, losses)
    >>> bool(abs(run.graph.W - best.W).max() < 1e-9)
    True
    """
    rule = GraphRule(mu, lam, delta, kappa, step, max_edges)
    theta = np.asarray(models, dtype=float)
    if theta.ndim != 2:
        raise DataError(f"models must be an (n, p) array, one row for each agent; found shape {theta.shape}")
    n = len(theta)
    if np.shape(losses) != (n,):
        raise DataError(f"losses must hold one number for each of the {n} agents; found shape {np.shape(losses)}")
    # One example per agent, without features, and with the loss as its label.
    data = AgentData(np.zeros_like(theta), losses, agents=np.arange(n), members=range(n))
    problem = Problem(
        data,
        empty(n) if graph is None else graph,
        KnownLoss(),
        smooth=0.5 * rule.mu,
        loss_weight=1.0,
        scaled=True,
        mean=True,
        confidence=confidence,
        name="graph",
    )
    if wakes is None:
        wakes = n * max(200, 25 * (n - 1 if n <= MAX_AGENTS_ASKING_ALL else NEAREST_CANDIDATES) // rule.kappa)
    log.info("learning the graph of %d agents in %d wakes, about %.3g s", n, wakes, wakes / WAKES_PER_SECOND)
    if isinstance(sampling, str) and sampling == "nearest":
        sampling = nearest_peers(theta, rule.kappa, seed)
    method = Learned(FixedModels(), rule, every=1, sampling=sampling)
    return simulate(problem, method, wakes, seed, theta, every=every, conditions=conditions, progress=progress)
