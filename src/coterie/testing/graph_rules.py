"""Contract checks for rules that learn a graph."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from .. import graphs
from ..core import loop
from ..core.arrays import VACANT, AgentArrays, owners
from ..core.methods import check_fit
from ..core.methods.fixed import FixedModels, KnownLoss
from ..core.wrap.graph_objective import regularizer
from ..core.wrap.graph_rule import AUTO, MAX_WEIGHT, GraphRule
from ..core.wrap.learned import ANSWER, Learned
from ..data import AgentData
from ..engines.arrays import arrays_of
from ..engines.conditions import Conditions
from ..engines.drivers import Driver, Immediate, Timed
from ..engines.peer import Peer
from ..engines.wire import decode, messages_size
from ..graphs.exact import exact_edge_weights
from ..problem import Problem
from .shared import BAD_CONDITIONS, Crowd, check_all, demand, hosted, promise, same

#: All checks of a rule that learns a graph, in order. A check takes a ``Learned`` method.
GRAPH_RULE_CHECKS: dict[str, Callable[[Any], None]] = {}


class _Meeting:
    """Agents with fixed models and losses, and the objective of a graph of these agents."""

    def __init__(self, learned: Any, seed: int):
        rng = np.random.default_rng(seed)
        n, p, rule = max(8, learned.rule.kappa + 2), 2, learned.rule
        self.theta = 0.7 * rng.normal(size=(n, p)) + 2.0 * rng.integers(0, 2, (n, 1))  # two groups
        loss, confidence = 0.3 * rng.normal(size=n), rng.random(n)  # losses of both signs
        self.problem = Problem(
            AgentData(np.zeros((n, p)), loss, agents=np.arange(n), members=range(n)),
            graphs.ring(n),  # edges to remove, and pairs without an edge
            KnownLoss(),
            smooth=0.4,
            loss_weight=1.0,
            scaled=True,
            mean=True,
            confidence=confidence,
            name="graph",
        )
        check_fit(learned, self.problem)
        self.reg = (0.8 if rule.mu == AUTO else rule.mu, rule.lam, rule.delta)
        own, square = confidence * loss, np.square(self.theta[:, None] - self.theta).sum(axis=2)
        self.cost = own[:, None] + own + 0.4 * square

    def objective(self, weights: np.ndarray) -> float:
        """h(w)."""
        pairs = np.triu_indices(len(weights), 1)
        return float(self.cost[pairs] @ weights[pairs]) + regularizer(weights[pairs], weights.sum(axis=1), *self.reg)

    def best(self) -> np.ndarray:
        """Return the weights that minimise h."""
        return exact_edge_weights(self.cost, *self.reg)

    def events(self, learned: Any, wakes: int, seed: int) -> tuple[np.ndarray, ...]:
        """Draw waking agents, no fixed neighbours, random numbers, and times."""
        rng = np.random.default_rng(seed)
        order, dice = rng.integers(0, self.problem.n, wakes), rng.random((wakes, learned.traffic.dice))
        return order, np.full(wakes, VACANT), dice, np.zeros(wakes)


def held(arrays: AgentArrays, values: np.ndarray) -> np.ndarray:
    """Return the agents' views of their edges as a matrix: row i is agent i's view."""
    n = arrays.address.shape[0]
    owner, linked = owners(arrays.edge_start), arrays.peer != VACANT
    sides = np.zeros((n, arrays.n_agents))
    np.add.at(sides, (owner[linked], arrays.peer[linked]), values[linked])  # a peer in two slots would count twice
    return sides


def _wakes_of(learned: Any, meeting: _Meeting, wakes: int, seed: int) -> Iterator[Driver]:
    """Yield the driver after every wake; messages arrive at once."""
    driver = Immediate.of(meeting.problem, learned, meeting.theta, seed)
    for _ in range(wakes):
        driver.advance(1, loop.NO_LIMIT)
        yield driver


@promise(GRAPH_RULE_CHECKS)
def _keeps_both_ends_alike(learned: Any) -> None:
    for t, driver in enumerate(_wakes_of(learned, _Meeting(learned, 20), 300, seed=1)):
        arrays, linked = driver.arrays, driver.arrays.peer != VACANT
        weights, stamps = held(arrays, arrays.weight), held(arrays, driver.edge.stamp)
        when = f"after {t + 1} wakes"
        demand(np.all(arrays.weight[linked] > 0), f"{when}, the weight of an edge is not positive")
        demand(np.all(arrays.weight[~linked] == 0), f"{when}, an empty slot has a weight")
        demand(np.array_equal(weights, weights.T), f"{when}, the two ends of an edge hold different weights")
        demand(np.array_equal(stamps, stamps.T), f"{when}, the two ends of an edge hold different stamps")
        demand(not np.any(np.diag(weights)), f"{when}, an agent has an edge to itself")
        edges = int(np.count_nonzero(weights, axis=1).max())
        demand(edges <= (learned.rule.max_edges or edges), f"{when}, an agent has {edges} edges")
        demand(weights.max() <= learned.rule.max_weight, f"{when}, an edge weighs {weights.max():g}")


def _kept_from_the_best(learned: Any) -> bool:
    """Return whether the number or the weights of edges are limited."""
    return learned.rule.max_edges > 0 or learned.rule.max_weight < MAX_WEIGHT


@promise(GRAPH_RULE_CHECKS)
def _never_increases_the_objective(learned: Any) -> None:
    if _kept_from_the_best(learned):
        return  # the removal of an edge may increase the objective
    meeting = _Meeting(learned, 21)
    before = first = meeting.objective(meeting.problem.graph.W.toarray())
    for t, driver in enumerate(_wakes_of(learned, meeting, 300, seed=2)):
        after = meeting.objective(held(driver.arrays, driver.arrays.weight))
        room = 1e-12 * (1.0 + abs(before))
        demand(after <= before + room, f"wake {t + 1} increases the objective by {after - before:.1e}")
        before = after
    demand(before < first, "the objective does not go down")


def _patient(learned: Any) -> Any:
    """Return the rule with a larger delta, for which gradient steps, of size delta squared, converge in time."""
    mu, lam, delta, kappa, step, *limits = learned.rule.__getnewargs__()
    rule = learned.rule if step == "exact" else GraphRule(mu, lam, max(delta, 0.5), kappa, step, *limits)
    return type(learned)(learned.method, rule, learned.every, learned.sampling)


def _demand_best(learned: Any, meeting: _Meeting, driver: Driver, where: str = "") -> None:
    """Run until both ends of every edge hold its optimal weight; raise an error if this takes too long."""
    best, apart, limited = meeting.best(), np.inf, _kept_from_the_best(learned)
    for _ in range(60):
        driver.advance(100 * meeting.problem.n, loop.NO_LIMIT)
        apart = float(np.abs(held(driver.arrays, driver.arrays.weight) - best).max())
        if apart <= 1e-7 or limited:
            break
    demand(apart <= 1e-6 or limited, f"the weights stay {apart:.1e} away from the optimum{where}")


@promise(GRAPH_RULE_CHECKS)
def _finds_the_best_graph(learned: Any) -> None:
    learned = _patient(learned)
    meeting = _Meeting(learned, 22)
    driver = Immediate.of(meeting.problem, learned, meeting.theta, 3)
    _demand_best(learned, meeting, driver)


@promise(GRAPH_RULE_CHECKS)
def _comes_to_agree_after_late_and_lost_messages(learned: Any) -> None:
    learned = _patient(learned)
    meeting = _Meeting(learned, 23)
    n = meeting.problem.n
    driver = Timed.of(meeting.problem, learned, meeting.theta, 4, conditions=BAD_CONDITIONS)
    driver.advance(200 * n, loop.NO_LIMIT)
    driver.channel = Conditions().channel(n)  # from now on, messages arrive at once, except those in transit
    _demand_best(learned, meeting, driver, " after messages were late, lost, duplicated and out of order")
    weights, stamps = (held(driver.arrays, values) for values in (driver.arrays.weight, driver.edge.stamp))
    alike = np.array_equal(weights, weights.T) and np.array_equal(stamps, stamps.T)
    demand(alike, "the ends of an edge do not agree after messages were lost")


@promise(GRAPH_RULE_CHECKS)
def _learns_the_same_compiled_or_not(learned: Any) -> None:
    meeting = _Meeting(learned, 24)
    events = meeting.events(learned, 120, seed=5)
    one, other = (hosted(learned, meeting.problem, meeting.theta, events, compiled) for compiled in (True, False))
    edges = np.array_equal(one.arrays.peer, other.arrays.peer) and np.array_equal(
        one.arrays.weight, other.arrays.weight
    )
    demand(edges, "compiled code and plain Python learn different edges")
    demand(same(one[1:], other[1:]), "compiled code and plain Python have different states or accounts")


@promise(GRAPH_RULE_CHECKS)
def _learns_the_same_on_peers(learned: Any) -> None:
    """Simulator and peers that exchange encoded bytes agree bit for bit; what peers send about their edges is true."""
    meeting = _Meeting(learned, 25)
    events = meeting.events(learned, 120, seed=6)
    host = hosted(learned, meeting.problem, meeting.theta, events, compiled=True)

    def look(peer: Peer, message: Any) -> None:
        _, kind, text = decode(message.data)
        if kind == ANSWER:
            degree, weights = float(peer.arrays.weight.sum()), held(peer.arrays, peer.arrays.weight)[0]
            demand(text[0] == weights[message.to], "an agent sends another weight than it holds")
            demand(abs(text[4] - degree) <= 1e-12 * degree, "an agent's degree is not the sum of its weights")

    arrays = arrays_of(meeting.problem, spare=learned.edges.spare)
    crowd = Crowd(learned, arrays, meeting.theta, look).replay(events)
    theirs = np.concatenate([held(peer.arrays, peer.arrays.weight) for peer in crowd.peers])
    alike = np.array_equal(held(host.arrays, host.arrays.weight), theirs)
    demand(alike, "simulator and peers that exchange bytes learn different edges")
    models = np.array_equal(host.own.theta, [peer.theta for peer in crowd.peers])
    demand(models, "simulator and peers have different models")
    messages, numbers = int(host.account[loop.MESSAGES]), int(host.account[loop.NUMBERS])
    counted = messages == crowd.messages and messages_size(messages, numbers) == crowd.size
    demand(counted, "the account differs from the messages of peers")


def check_graph_rule(rule: Any, sampling: Any = "uniform") -> None:
    """Check the contract of a rule that learns a graph; see ``GRAPH_RULE_CHECKS``.

    Agents have fixed models. For rules with gradient steps, the check that a rule finds the optimal graph uses a larger
    ``delta``; it is omitted if ``max_edges`` or ``max_weight`` excludes this graph.

    Parameters
    ----------
    rule : GraphRule
    sampling : "uniform", "shuffle" or a sampler
        Source of random peers.

    Raises
    ------
    ContractError

    Examples
    --------
    >>> import coterie as ct
    >>> from coterie.testing import check_graph_rule
    >>> check_graph_rule(ct.GraphRule(kappa=2))
    """
    learned = Learned(FixedModels(), rule, every=1, sampling=sampling)
    check_all(GRAPH_RULE_CHECKS, lambda check: check(learned), repr(rule))
