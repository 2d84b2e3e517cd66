"""Contracts: what every loss, method and graph rule promises, as checks that anyone can run on their own.

Like scikit-learn's ``check_estimator``. A broken promise raises :class:`~coterie.errors.ContractError`, which says
which one and by how much. Our own tests run these on every loss and method in the public lists.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from scipy import sparse

from .. import graphs
from ..core import loop
from ..core.exact import loss_table_kernel, pool_table_kernel
from ..core.letters import Bounds, Contents
from ..core.losses import (
    BERNOULLI,
    GAUSSIAN,
    INTERIOR_POINT,
    LEAST_SQUARES,
    LOG_SUM_EXP,
    LOSS_PARTS,
    MEAN,
    NEWTON,
    SIGNS,
    Logistic,
)
from ..core.method import Method, Promises
from ..core.methods import check_fit
from ..core.methods.fixed import FixedModels, KnownLoss
from ..core.models import TwoLayer
from ..core.world import (
    AUTHOR,
    EVERYONE,
    HEAD,
    NEEDS_ROOM,
    REFUSED,
    TAIL,
    VACANT,
    Chance,
    Letter,
    World,
    data_of,
    new_outbox,
    row,
    rows,
    stored_once,
)
from ..core.wrap.graph_objective import regularizer
from ..core.wrap.graph_rule import AUTO, MAX_WEIGHT, GraphRule
from ..core.wrap.learned import ANSWER, Learned
from ..data import AgentData
from ..engines.conditions import Conditions
from ..engines.drivers import Driver, Immediate, Timed
from ..engines.parallel import in_levels
from ..engines.peer import Peer
from ..engines.simulator import simulate
from ..engines.wire import decode, letters_size
from ..engines.worlds import part_of, world_of
from ..errors import ContractError, ConvergenceError, DataError, MismatchError
from ..graphs import DirectedGraph, Graph
from ..graphs.exact import exact_tie_weights
from ..models import Function
from ..peers.transport import Transport
from ..problem import Problem
from ..problem.exact import project

#: Seconds within which a transport's ``send`` must return.
SEND_LIMIT = 1.0


def _demand(kept: bool | np.bool_, promise: str) -> None:
    if not kept:
        raise ContractError(promise)


# -- losses -----------------------------------------------------------------------------------------------------------


def check_loss(loss: Any, seed: int = 0) -> None:
    """Check everything that a loss promises.

    Compiled code and plain Python agree bit for bit; the derivative is a subgradient everywhere (which
    also proves convexity); its curvature integrates to the derivative; ``prox`` is optimal; ``conjugate`` satisfies
    Fenchel-Young, with equality at the derivative; the claimed bounds, domain and dual curvature hold.

    Parameters
    ----------
    loss : rule
    seed : int
        For the margins and labels tried.

    Raises
    ------
    ContractError

    Examples
    --------
    >>> import coterie as ct
    >>> from coterie.testing import check_loss
    >>> check_loss(ct.Huber(0.5))
    """
    _demand(getattr(loss, "is_loss", False), f"{loss!r} is not a loss: decorate its class with @ct.loss")
    if loss.pooled:
        _check_pooled_loss(loss, seed)
        return
    rng = np.random.default_rng(seed)
    z = np.concatenate([rng.normal(scale=2.0, size=200), np.linspace(-3.0, 3.0, 61), [-40.0, 40.0, 700.0, -700.0]])
    y = np.sign(rng.normal(size=z.size)) if loss.labels == SIGNS else np.round(rng.normal(scale=2.0, size=z.size), 1)
    name = repr(loss)

    plain = np.zeros((5, z.size))
    loss_table_kernel.python(loss, z, y, 0.7, plain)

    w = rng.normal(scale=3.0, size=(z.size, 40))
    values = np.array([[loss.value(b, label) for b in row] for row, label in zip(w, y, strict=True)])
    value, slope = plain[0], plain[1]
    room = 1e-12 * (1.0 + np.abs(value)[:, None] + np.abs(values) + np.abs(slope[:, None] * (w - z[:, None])))
    below = value[:, None] + slope[:, None] * (w - z[:, None]) - values
    _demand(np.all(below <= room), f"{name}: the derivative is not a subgradient, or the value is not convex")
    _demand(np.all(value >= 0), f"{name}: a loss is negative")

    h = 1e-6
    for shift in (-h, h):
        beside = np.array([loss.value(a + shift, label) for a, label in zip(z, y, strict=True)])
        steps = shift * np.array([loss.derivative(a + shift, label) for a, label in zip(z, y, strict=True)])
        _demand(
            np.all(beside - value <= steps + 1e-9 * (1.0 + np.abs(value))),
            f"{name}: the derivative disagrees with finite differences of the value",
        )

    for step in (0.01, 0.7, 30.0):
        v = np.array([loss.prox(a, step, label) for a, label in zip(z, y, strict=True)])
        force = (z - v) / step  # must be a subgradient of the loss at v
        at = np.array([loss.value(a, label) for a, label in zip(v, y, strict=True)])
        below = at[:, None] + force[:, None] * (w - v[:, None]) - values
        room = 1e-10 * (1.0 + np.abs(at)[:, None] + np.abs(values) + np.abs(force[:, None] * (w - v[:, None])))
        _demand(np.all(below <= room), f"{name}: prox is not a minimiser at step {step:g}")

    conjugate = plain[4]
    _demand(
        np.all(np.abs(value + conjugate - slope * z) <= 1e-9 * (1.0 + np.abs(slope * z))),
        f"{name}: Fenchel-Young is not tight at the derivative",
    )
    duals = rng.choice(slope, size=z.size)
    bound = value + np.array([loss.conjugate(u, label) for u, label in zip(duals, y, strict=True)])
    _demand(np.all(bound >= duals * z - 1e-9 * (1.0 + np.abs(duals * z))), f"{name}: Fenchel-Young is violated")

    _demand(
        np.all(np.abs(slope) <= loss.lipschitz * (1 + 1e-12)),
        f"{name}: a slope exceeds the claimed Lipschitz bound",
    )
    for label in np.unique(y)[:10]:
        lo, hi = loss.domain(label)
        _demand(max(abs(lo), abs(hi)) <= loss.lipschitz, f"{name}: the domain exceeds the Lipschitz bound")
        outside = [u for u in (lo - 0.01, hi + 0.01) if np.isfinite(u)]
        _demand(
            np.all(np.isinf([loss.conjugate(u, label) for u in outside])), f"{name}: the conjugate is finite too far"
        )
        inside = np.linspace(max(lo, -5.0), min(hi, 5.0), 21)[1:-1]
        conjugates = np.array([loss.conjugate(u, label) for u in inside])
        _demand(np.all(np.isfinite(conjugates)), f"{name}: the conjugate is infinite in its domain")
        if loss.dual_curvature is not None:
            quadratic = inside * label + 0.5 * loss.dual_curvature * inside**2
            _demand(np.allclose(conjugates, quadratic), f"{name}: the conjugate is not u y + kappa u^2 / 2")
    if np.isfinite(loss.smoothness):
        _demand(
            np.all(plain[2] <= loss.smoothness * (1 + 1e-12)),
            f"{name}: a curvature exceeds the claimed smoothness",
        )
        for label in np.unique(y)[:5]:
            grid = np.linspace(-5.0, 5.0, 20_001)
            bend = np.array([loss.curvature(a, label) for a in grid])
            slopes = np.array([loss.derivative(a, label) for a in grid])
            rise = np.concatenate([[0.0], np.cumsum(0.5 * (bend[1:] + bend[:-1]) * np.diff(grid))])
            _demand(
                np.all(np.abs(slopes - slopes[0] - rise) <= 2e-3 * loss.smoothness),
                f"{name}: the curvature does not integrate to the derivative",
            )

    _check_declarations(loss, z, y, value, plain[2])
    compiled = np.zeros_like(plain)
    loss_table_kernel(loss, z, y, 0.7, compiled)
    for part, ours, theirs in zip(LOSS_PARTS[:5], compiled, plain, strict=True):
        apart = np.flatnonzero(~((ours == theirs) | (np.isnan(ours) & np.isnan(theirs))))
        where = f"{part} at margin {z[apart[0]]:g}, label {y[apart[0]]:g}" if apart.size else ""
        _demand(
            apart.size == 0,
            f"{name}: compiled code and plain Python disagree in {where} (is there a power? write r * r, not r ** 2: "
            "their last bits differ)",
        )


def _check_declarations(loss: Any, z: np.ndarray, y: np.ndarray, value: np.ndarray, curvature: np.ndarray) -> None:
    """What solvers and methods are told about a loss is true of it."""
    name, near = repr(loss), np.abs(z) <= 30.0
    if loss.proximal in (MEAN, LEAST_SQUARES) or loss.likelihood == GAUSSIAN:
        _demand(np.allclose(value, 0.5 * (z - y) ** 2), f"{name} is not (z - y)^2 / 2, as its solver would think")
    if loss.likelihood == BERNOULLI:
        _demand(np.allclose(value, np.logaddexp(0.0, -y * z)), f"{name} is not the log-likelihood that it claims to be")
    if loss.strictly_convex:
        _demand(np.all(curvature[near] > 0.0), f"{name} is flat in places, and claims to be strictly convex")
    if loss.exact_solver == INTERIOR_POINT:
        bounded = np.all(np.isfinite(loss.domain(1.0))) and loss.dual_curvature is not None
        _demand(bounded, f"{name} asks for the interior point method, which needs a quadratic conjugate on an interval")
    else:
        _demand(
            loss.exact_solver == NEWTON and np.isfinite(loss.smoothness), f"{name} has no exact solver that fits it"
        )


def _check_pooled_loss(loss: Any, seed: int) -> None:
    """The promises of a loss of all examples of an agent together."""
    rng, name = np.random.default_rng(seed), repr(loss)
    z = rng.normal(scale=2.0, size=(40, 7))
    z[:4] *= 100.0
    y = np.sign(rng.normal(size=7)) if loss.labels == SIGNS else rng.normal(size=7)
    value, slopes = np.zeros(len(z)), np.zeros_like(z)
    pool_table_kernel.python(loss, z, y, value, slopes)
    _demand(loss.pool(z[0, :0], y[:0]) == 0.0, f"{name}: an agent without examples has a loss")
    below = value[:, None] + np.einsum("ar,bar->ab", slopes, z[:, None] - z) - value
    room = 1e-10 * (
        1.0 + np.abs(value[:, None]) + np.abs(value) + np.abs(slopes).sum(axis=1)[:, None] * np.abs(z).max()
    )
    _demand(np.all(below <= room), f"{name}: slopes are not a subgradient, or the value is not convex")
    _demand(np.all(np.abs(slopes) <= loss.lipschitz * (1 + 1e-12)), f"{name}: a slope exceeds the Lipschitz bound")
    for r in range(z.shape[1]):
        beside = z + 1e-5 * np.eye(z.shape[1])[r]
        bent, unused = np.zeros_like(z), np.zeros(len(z))
        pool_table_kernel.python(loss, beside, y, unused, bent)
        bend = (bent - slopes)[:, r] / 1e-5
        _demand(np.all(bend <= loss.smoothness * (1 + 1e-6) + 1e-6), f"{name}: a curvature exceeds the smoothness")
    if loss.exact_solver == LOG_SUM_EXP:
        _demand(np.allclose(value, np.logaddexp.reduce(-y * z, axis=1)), f"{name} is not log sum exp, as it claims")
    compiled = np.zeros(len(z)), np.zeros_like(z)
    pool_table_kernel(loss, z, y, *compiled)
    same = all(np.array_equal(*pair) for pair in zip(compiled, (value, slopes), strict=True))
    _demand(same, f"{name}: compiled code and plain Python disagree")


# -- methods ----------------------------------------------------------------------------------------------------------


def hard_problem(seed: int = 0, storage: str = "dense", loss: Any = None) -> Problem:
    """A small personalised problem with everything that is awkward in it, on which methods are checked.

    Two components, an agent without ties, an agent without data, weights over several orders of magnitude, ragged
    sizes, a ridge that matters.

    Parameters
    ----------
    seed : int
    storage : "dense" or "sparse"
    loss : rule, optional
        Default: logistic.

    Returns
    -------
    Problem

    Examples
    --------
    >>> from coterie.testing import hard_problem
    >>> hard_problem().graph
    Graph(n=9, edges=11, components=3, isolated=1)
    """
    rng = np.random.default_rng(seed)
    n, p = 9, 3
    sizes = np.array([4, 1, 7, 0, 3, 5, 2, 6, 4])  # agent 3 has no data
    i = np.array([0, 0, 0, 1, 1, 2, 2, 3, 5, 5, 6])
    j = np.array([1, 2, 3, 2, 3, 3, 4, 4, 6, 7, 7])  # agent 8 has no ties, {5, 6, 7} keep to themselves
    weight = np.array([1.0, 1e-3, 0.5, 2.0, 1.5, 30.0, 0.7, 1e-2, 1.0, 5.0, 1e-3])
    X = rng.normal(size=(sizes.sum(), p)) * (rng.random((sizes.sum(), p)) < 0.8)
    y = np.where(X @ rng.normal(size=p) + 0.5 * rng.normal(size=len(X)) >= 0, 1.0, -1.0)
    features = sparse.csr_array(X) if storage == "sparse" else X
    data = AgentData(features, y, agents=np.repeat(np.arange(n), sizes), members=range(n))
    loss = loss or Logistic()
    return Problem.personalized(data, Graph.from_edges(n, i, j, weight), loss, mu=0.8, ridge="1/m")


def _checkable(method: Any, storage: str = "dense") -> Problem:
    """The problem to check a method on: :func:`hard_problem`, or whatever else it does with its data or graph."""
    problem = hard_problem(storage=storage)
    models = np.random.default_rng(0).normal(size=(problem.n, problem.p))
    c = np.where(problem.data.sizes > 0, problem.data.sizes / 7, 0.0)
    star = problem.relabel([3, 0, 1, 2, 4, 5, 6, 7, 8]).on(graph=graphs.star(problem.n))  # in the middle, no rows
    candidates = (
        problem,
        Problem.boosting(problem.data, problem.graph, base=lambda X: X, mu=0.5, beta=1.5),
        Problem.propagation(models, problem.graph, alpha=0.6, confidence=c),
        star,
        _with_network(star),
    )
    found = next((candidate for candidate in candidates if _fits(method, candidate)), None)
    if found is None:
        raise ContractError(f"{method!r} refuses every problem")
    return found


def _fits(method: Any, problem: Problem) -> bool:
    try:
        check_fit(method, problem)
    except MismatchError:
        return False
    return True


#: Features, hidden units and classes of the network that methods are checked on.
_NETWORK = 3, 2, 3


def _with_network(problem: Problem, model: Any = None) -> Problem:
    """The same agents with a small network, of which every part has another role."""
    labels = np.random.default_rng(15).integers(0, _NETWORK[2], problem.data.n_rows)
    data = AgentData(problem.data.X, labels, agents=problem.data.owner, members=range(problem.n))
    roles: dict[str, Any] = {"personal": "head.bias", "shared": "body", "tied": "head.weight"}
    return Problem.differentiable(data, problem.graph, model or TwoLayer(*_NETWORK), ridge=0.01, **roles)


def _network(method: Any, model: Any = None) -> Problem | None:
    """The problem of :func:`_checkable` with a network, for a method that trains; None if it refuses it."""
    if not method.training.jobs:
        return None
    problem = _with_network(_checkable(method), model)
    return problem if _fits(method, problem) else None


def _posed(method: Any) -> Iterator[Problem]:
    """All problems to check a method on: one with a network if it trains, and on one-way ties if it takes them."""
    problem, network = _checkable(method), _network(method)
    yield problem
    if network is not None:
        yield network
    if method.ties.directed:
        W = problem.graph.W.tocoo()
        kept = (W.row < W.col) | ((W.row + W.col) % 3 > 0)
        ties = sparse.coo_array((W.data[kept], (W.row[kept], W.col[kept])), shape=W.shape)
        yield problem.on(graph=DirectedGraph(ties))


def _calm(method: Any) -> Problem:
    """The problem to look for a limit on: that of :func:`_checkable`, if there it is an optimum.

    For a method that has only a limit of its own, one with the same awkward graph, where rows are many, and models and
    labels so different that whatever could be estimated of them is well determined.
    """
    problem = _checkable(method)
    if method.promises.minimises:
        return problem
    rng = np.random.default_rng(0)
    owner = np.repeat(np.arange(problem.n), 40 + 4 * problem.data.sizes)
    owner = owner[problem.data.sizes[owner] > 0]  # who has no data has none
    X = rng.normal(size=(owner.size, problem.p))
    i, k = np.indices((problem.n, problem.p))
    models = 2.0 * ((i * (1 + k % 2) + k) % 3) - 1.0  # any three neighbours differ in every coordinate
    z = np.sum(X * models[owner], axis=1)
    y = np.where(rng.random(z.size) * (1.0 + np.exp(-z)) < 1.0, 1.0, -1.0)
    for loss, labels in (("logistic", y), ("squared", z + 0.5 * rng.normal(size=z.size))):
        calm = Problem.separate(AgentData(X, labels, agents=owner, members=range(problem.n)), problem.graph, loss=loss)
        try:
            check_fit(method, calm)
        except MismatchError:
            continue
        return calm
    raise ContractError(f"{method!r} minimises nothing, and has neither the squared nor the logistic loss")


class _Goal:
    """Where a method must come to: the optimum, or where a long run of it comes to rest that nothing disturbs."""

    def __init__(self, method: Any, problem: Problem):
        self.problem, self.solved = problem, method.promises.minimises
        self.name = "the optimum" if self.solved else "where it comes to rest by itself"
        if self.solved:
            self.theta, self.judged = problem.solve(), problem.determined
        else:  # who has no ties has nowhere to go
            start = problem.local() + 1.0
            self.theta = simulate(problem, method, wakes=4000 * problem.n, seed=14, start=start).theta
            self.judged = ~problem.graph.isolated

    def distance(self, theta: np.ndarray) -> tuple[float, float]:
        """Relative suboptimality, if that is to be small; and largest distance where the goal is determined."""
        apart = float(np.abs(theta - self.theta)[self.judged].max(initial=0.0))
        if not self.solved:
            return 0.0, apart
        optimum = self.problem.value(self.theta)
        return (self.problem.value(theta) - optimum) / max(abs(optimum), 1e-300), apart


class _Replay:
    """Events and dice of a run, to give to several engines."""

    def __init__(self, method: Any, problem: Problem, wakes: int, seed: int):
        rng = np.random.default_rng(seed)
        self.order = rng.integers(0, problem.n, wakes)
        self.dice = rng.random((wakes, method.traffic.dice))
        self.peers = np.full(wakes, VACANT)
        if method.traffic.exchanges:
            ties = [problem.graph.neighbours(i) for i in self.order]
            self.peers[:] = [rng.choice(peers) if len(peers) else VACANT for peers in ties]
        self.events = np.column_stack([self.order, self.peers]) if np.any(self.peers != VACANT) else self.order
        self.start = problem.local() + rng.normal(size=(problem.n, problem.p))
        if np.isfinite(problem.radius):
            self.start = project(self.start, problem.radius, problem.outputs)


def _hosted(
    method: Any, problem: Problem, replay: _Replay, compiled: bool, once: bool = False, place: Any = slice(None)
) -> tuple[Any, np.ndarray, bool]:
    """State, account and overflow after a replay on one host, compiled or in plain Python, in this order of wakes."""
    world = world_of(problem, once=once, batch=method.training.batch)
    own, tie = stored_once(method, world, replay.start) if once else method.start(world, replay.start)
    outbox, egress = new_outbox(method, world, problem.p, method.traffic.max_letters), loop.new_egress(0, 1)
    account = loop.new_account(method)
    run = loop.run if compiled else loop.run.python
    loop.meet(method, world, own, tie, outbox, egress, account, run)
    events = (replay.order, replay.peers, replay.dice, np.arange(len(replay.order)) / problem.n)
    events = tuple(part[place] for part in events)
    run(method, world, own, tie, *events, outbox, egress, account, loop.NO_LIMIT)
    return (own, tie), account, bool(outbox.cursor[REFUSED])


def _arrays(state: Any) -> list[np.ndarray]:
    return [leaf for part in state for leaf in (_arrays(part) if isinstance(part, tuple) else [part])]


class _Guarded(np.ndarray):
    """Numbers that may not be read or written beyond their ends: there, compiled code would go on without a word."""

    def _check(self, key: Any) -> None:
        size = self.shape[0] if self.ndim else 0
        for at in [key.start, key.stop] if isinstance(key, slice) else [key]:
            if isinstance(at, int | np.integer) and not -size <= at < size + isinstance(key, slice):
                raise IndexError(f"{key!r} of {size} number(s)")

    def __getitem__(self, key: Any) -> Any:
        self._check(key)
        return super().__getitem__(key)

    def __setitem__(self, key: Any, value: Any) -> None:
        self._check(key)
        super().__setitem__(key, value)


class _Watched:
    """Agents run by plain Python, whose handlers get what the method has declared, and not a number more.

    Addresses are far from 0, so that they differ from slots and from numbers in the world.
    """

    FIRST = 1000

    def __init__(self, method: Any, problem: Problem, start: np.ndarray):
        world, first = world_of(problem, batch=method.training.batch), 0 if method.ties.spare else self.FIRST
        self.world = world._replace(
            address=world.address + first, peer=np.where(world.peer == VACANT, VACANT, world.peer + first)
        )
        self.method, self.members, self.first = method, set(self.world.address.tolist()), first
        self.own, self.tie = method.start(self.world, start)
        outbox = new_outbox(method, self.world, problem.p, method.traffic.max_letters)
        self.outbox = outbox._replace(scratch=outbox.scratch.view(_Guarded))
        told = self.world.sent.shape[0] or problem.p  # what is personal is never told
        self.contents = Contents(method.letters, Bounds(told, ball=problem.radius, outputs=problem.outputs))

    def call(self, handler: Any, k: int, *more: Any, lenient: bool = False) -> list[tuple[int, Letter]]:
        """Call a handler of agent k. Returns the letters that it posts, with their recipients, unless `lenient`."""
        if self.outbox.cursor[NEEDS_ROOM]:
            self.world, self.tie = loop.widen(self.method, self.world, self.tie, self.outbox)
        a, b = self.world.tie_start[k], self.world.tie_start[k + 1]
        self.outbox.cursor[[HEAD, TAIL]], self.outbox.cursor[AUTHOR] = 0, k
        state = data_of(self.world, k), row(self.own, k), rows(self.tie, a, b)
        try:
            handler(*state, *more, self.outbox)
        except IndexError as error:
            raise ContractError(
                f"{handler.__name__} reads or writes beyond the end of an array, {error}: does it use more than dice="
                f"{self.method.traffic.dice} dice, or more scratch than the {self.outbox.scratch.shape[0]} numbers of "
                "scratch_size?"
            ) from error
        _demand(
            not self.outbox.cursor[REFUSED],
            f"{handler.__name__} posts more, or longer, letters than the {self.method.traffic.max_letters} of "
            f"{self.outbox.text.shape[1]} numbers that it announces",
        )
        posted = range(0 if lenient else self.outbox.cursor[TAIL])
        return [letter for h in posted for letter in self._posted(handler.__name__, k, h)]

    def _posted(self, handler: str, k: int, h: int) -> Iterator[tuple[int, Letter]]:
        to, kind, sender = int(self.outbox.to[h]), int(self.outbox.kind[h]), int(self.world.address[k])
        text = self.outbox.text[h, : self.outbox.length[h]].copy()
        ties = self.world.peer[self.world.tie_start[k] : self.world.tie_start[k + 1]]
        _demand(
            to in (EVERYONE, VACANT) or to in self.members,
            f"{handler} sends a letter to {to}, which is no agent's address: to a slot? Send to data.peer[slot], to "
            "letter.sender or to EVERYONE",
        )
        try:
            self.contents.check_length(kind, text.shape[0])
        except DataError as error:
            raise ContractError(f"{handler} posts what 'letters' does not declare: {error}") from error
        finite = bool(np.all(np.isfinite(text)))
        _demand(finite and self.contents.read(kind, text, self.members)[1], f"{handler} posts a letter of kind {kind} "
                f"with a number out of the range that 'letters' declares: {text}")  # fmt: skip
        for peer in ties[ties != VACANT].tolist() if to == EVERYONE else [to] * (to != VACANT):
            there = self.world.peer[slice(*self.world.tie_start[peer - self.first : peer - self.first + 2])]
            yield peer, Letter(sender, int(next(iter(np.flatnonzero(there == sender)), VACANT)), kind, text.copy())

    def deliver(self, letters: list[tuple[int, Letter]]) -> None:
        """Hand out letters, and those that they cause."""
        queue = deque(letters)
        while queue:
            to, letter = queue.popleft()
            queue.extend(self.call(self.method.receive, to - self.first, letter))


def _keeps_to_what_it_declares(method: Any) -> None:
    """No more dice and scratch than asked for, letters as declared, and to addresses."""
    for problem in _posed(method):
        replay = _Replay(method, problem, 100, seed=2)
        agents = _Watched(method, problem, replay.start)
        for k in range(problem.n):
            agents.deliver(agents.call(method.greet, k))
        for t, (k, dice) in enumerate(zip(replay.order, replay.dice, strict=True)):
            agents.deliver(agents.call(method.wake, k, Chance(dice.view(_Guarded), VACANT, t / problem.n)))
        if method.training.synchronous and not method.training.jobs:
            letters: list[tuple[int, Letter]] = []
            agents.outbox = agents.outbox._replace(**_larger(agents.outbox, problem))
            for k in range(problem.n):
                letters += agents.call(method.round, k)
            agents.deliver(letters)


def _larger(outbox: Any, problem: Problem) -> dict[str, np.ndarray]:
    """Room for what one agent may post in a round: a letter along each tie."""
    most = max(1, int(problem.graph.n_neighbours.max()))
    letters = {name: part for name, part in outbox._asdict().items() if name not in ("cursor", "scratch")}
    return {name: np.zeros((most, *part.shape[1:]), part.dtype) for name, part in letters.items()}


def _compiled_equals_python(method: Any) -> None:
    _demand_same_bits(method, _checkable(method))


def _compiled_equals_python_with_a_network(method: Any) -> None:
    network = _network(method)
    if network is not None:
        _demand_same_bits(method, network)


def _demand_same_bits(method: Any, problem: Problem) -> None:
    replay = _Replay(method, problem, 200, seed=1)
    compiled, account, _ = _hosted(method, problem, replay, compiled=True)
    plain, python_account, _ = _hosted(method, problem, replay, compiled=False)
    same = all(np.array_equal(a, b) for a, b in zip(_arrays(compiled), _arrays(plain), strict=True))
    _demand(same, "compiled code and plain Python disagree")
    _demand(np.array_equal(account, python_account), "compiled code and plain Python count letters differently")


def _same(one: Any, other: Any) -> bool:
    """Whether two runs end in the same state, with the same account."""
    pairs = zip([*_arrays(one[0]), one[1]], [*_arrays(other[0]), other[1]], strict=True)
    return all(np.array_equal(a, b, equal_nan=True) for a, b in pairs)


def _touches_what_its_footprint_says(method: Any) -> None:
    if method.traffic.footprint is None or method.ties.spare:
        return
    problem = _checkable(method)
    for given in (True, False):
        replay = _Replay(method, problem, 200, seed=7)
        if not given:  # who talks to whom is left to the dice
            replay.peers[:] = VACANT
        plain = _hosted(method, problem, replay, compiled=True)
        events = replay.order, replay.peers, replay.dice
        place, first = in_levels(method, world_of(problem), *events, np.zeros(problem.n, np.int32))
        backwards = np.concatenate([level[::-1] for level in np.split(place, first[1:-1])])
        for order in (place, backwards):
            _demand(
                _same(plain, _hosted(method, problem, replay, compiled=True, place=order)),
                f'with footprint = "{method.traffic.footprint}" wakes may change places that do not commute',
            )


def _may_be_stored_once(method: Any) -> None:
    if not method.traffic.publishes or method.ties.spare:
        return
    problem = _checkable(method)
    replay = _Replay(method, problem, 200, seed=8)
    (own, tie), account, _ = _hosted(method, problem, replay, compiled=True)
    (same_own, same_tie), same_account, _ = _hosted(method, problem, replay, compiled=True, once=True)
    same = _same(((own,), account), ((same_own,), same_account)) and np.array_equal(tie.copy, same_tie.copy)
    _demand(same, "publishes = True, and letters stored once make another run than a copy at each neighbour")


def _announces_its_letters(method: Any) -> None:
    problem = _checkable(method)
    _, _, overflow = _hosted(method, problem, _Replay(method, problem, 100, seed=2), compiled=True)
    _demand(
        not overflow,
        f"it posts more, or longer, letters in one event than the {method.traffic.max_letters} it announces",
    )


def _converge(method: Any, problem: Problem, goal: _Goal, **options: Any) -> np.ndarray:
    """Run until the goal is reached, or patience ends."""
    theta = problem.local()
    for patience in (400, 2000, 8000):
        theta = simulate(problem, method, wakes=patience * problem.n, seed=3, **options).theta
        gap, apart = goal.distance(theta)
        if gap <= 0.1 * method.promises.accuracy and apart <= 1e-7:
            break
    return theta


def _demand_goal(method: Any, goal: _Goal, theta: np.ndarray, where: str = "") -> None:
    gap, apart = goal.distance(theta)
    _demand(gap <= method.promises.accuracy, f"the objective stays {gap:.1e} (relative) above the optimum{where}")
    _demand(apart <= 1e-6, f"the models stay {apart:.1e} away from {goal.name}{where}")


def _reaches_the_optimum(method: Any) -> None:
    if method.promises.minimises is None:
        return
    problem = _calm(method)
    goal = _Goal(method, problem)
    _demand_goal(method, goal, _converge(method, problem, goal, start="zeros"))


def _its_rounds_reach_the_optimum(method: Any) -> None:
    if not method.training.synchronous or method.promises.minimises is None:
        return
    problem = _calm(method)
    goal, theta = _Goal(method, problem), problem.local()
    for patience in (400, 2000, 8000):
        theta = simulate(problem, method, rounds=patience, start="zeros").theta
        if max(goal.distance(theta)) <= min(1e-7, method.promises.accuracy):
            break
    _demand_goal(method, goal, theta, " in synchronous rounds")


def _follows_changes(method: Any) -> None:
    """Agents leave, join and learn new things while it runs; it goes to the optimum of the problem as it is now."""
    if method.promises.minimises is None:
        return
    problem = _calm(method)
    n, p = problem.n, problem.p
    fewer = problem.on(graph=problem.graph.without([2, 5]))
    if problem.name == "propagation":
        more = problem.on(graph=problem.graph.without([0]))
    else:
        rng = np.random.default_rng(12)
        X, members = rng.normal(size=(8, p)), rng.integers(0, n, 8)
        data = hard_problem().data if method.promises.minimises else problem.data
        more = problem.on(data=data.with_rows(X, np.sign(X[:, 0]), agents=members))
    goal, theta = _Goal(method, more), problem.local()
    for patience in (400, 2000, 8000):
        stay = patience * n
        changes = [(200 * n, fewer), (400 * n, more)]
        theta = simulate(problem, method, wakes=400 * n + stay, seed=13, changes=changes).theta
        if max(goal.distance(theta)) <= min(1e-7, method.promises.accuracy):
            break
    _demand_goal(method, goal, theta, " after agents left and joined, and data changed")


def _solves_other_objectives(method: Any) -> None:
    if not method.promises.minimises:
        return
    rng = np.random.default_rng(5)
    models, graph = rng.normal(size=(6, 2)), graphs.ring(6)
    points = AgentData(rng.normal(size=(12, 2)), agents=np.arange(12) % 6)
    labelled = AgentData(rng.normal(size=(24, 2)), rng.normal(size=24), agents=np.arange(24) % 6)
    for problem in (
        Problem.propagation(models, graph, alpha=0.7, confidence=[1.0, 0.2, 0.0, 0.5, 0.1, 1.0]),
        Problem.separate(points, graph, loss="location"),
        Problem.collaborative(labelled, graph, loss="squared", mu=0.3),
    ):
        try:
            check_fit(method, problem)
        except MismatchError:
            continue
        goal = _Goal(method, problem)
        _demand_goal(method, goal, _converge(method, problem, goal), f" on Problem.{problem.name}")


def _stays_at_the_optimum(method: Any) -> None:
    if method.promises.accuracy > Promises().accuracy or method.promises.minimises is None:
        return  # its steps become small by and by, wherever it is; or there is none
    problem = _calm(method)
    goal, n = _Goal(method, problem), problem.n
    best = goal.theta
    if method.promises.remembers or not method.promises.minimises:  # models are not all: it must return
        apart = {"apart": lambda theta: float(np.abs(theta - best)[goal.judged].max())}
        run = simulate(problem, method, wakes=2020 * n, start=best, seed=4, observe=apart, every=20 * n)
        _demand(run.trace["apart"].tail(2).max() <= 1e-8, f"it leaves {goal.name}, or does not return to it")
        return
    theta = simulate(problem, method, wakes=20 * n, start=best, seed=4).theta
    _demand(np.allclose(theta, best, rtol=0, atol=1e-9), "it leaves the optimum when it starts there")


def _ignores_names(method: Any) -> None:
    problem = _checkable(method)
    replay = _Replay(method, problem, 300, seed=6)
    order = np.random.default_rng(7).permutation(problem.n)
    renamed = np.where(replay.events == VACANT, VACANT, np.argsort(order)[replay.events])
    one = simulate(problem, method, events=replay.events, start=replay.start)
    other = simulate(problem.relabel(order), method, events=renamed, start=replay.start[order])
    _demand(
        np.allclose(one.theta[order], other.theta, rtol=0, atol=1e-10),
        "relabelling the agents changes their models",
    )
    _demand(one.vectors == other.vectors, "relabelling the agents changes what they send")


def _leaves_the_isolated_alone(method: Any) -> None:
    problem = _checkable(method)
    local = problem.local()[problem.graph.isolated]
    if method.promises.minimises is None:
        return  # that it trains as if there were nobody else says as much
    if method.promises.accuracy > Promises().accuracy:
        return  # that it finds the optimum says as much
    theta = simulate(problem, method, wakes=50 * problem.n, seed=8).theta[problem.graph.isolated]
    _demand(np.allclose(theta, local, rtol=0, atol=1e-9), "an agent without ties does not keep its local model")
    if not method.promises.minimises:
        return  # what would be its own model without the loss of the problem is for it to say
    theta = simulate(problem, method, wakes=2000 * problem.n, seed=8, start="zeros").theta[problem.graph.isolated]
    _demand(np.allclose(theta, local, rtol=0, atol=1e-6), "an agent without ties does not find its local model")


def _teaches_those_without_data(method: Any) -> None:
    if not method.promises.minimises:
        return  # that it comes to rest from anywhere says as much
    problem = _checkable(method)
    theta = _converge(method, problem, _Goal(method, problem))
    silent = int(np.flatnonzero(problem.data.sizes == 0)[0])
    mean = (problem.graph.W @ theta)[silent] / problem.graph.degrees[silent]
    _demand(
        np.allclose(theta[silent], mean, rtol=0, atol=max(1e-6, 10 * method.promises.accuracy)),
        "an agent without data does not get its neighbours' model",
    )


def _reads_sparse_rows(method: Any) -> None:
    dense, csr = _checkable(method), _checkable(method, "sparse")
    if dense.name in ("propagation", "boosting"):
        return  # it does not look at features
    replay = _Replay(method, dense, 300, seed=9)
    one, other = (simulate(p, method, events=replay.events, start=replay.start).theta for p in (dense, csr))
    _demand(np.allclose(one, other, rtol=0, atol=1e-10), "sparse and dense features give different models")


#: Letters that are late, lost, doubled and out of order, and agents that are away.
_BAD = Conditions(latency=1.5, jitter=1.0, loss=0.2, duplication=0.2, outages=[(0, 5.0, 40.0), (2, 20.0, 60.0)])


def _survives_late_and_lost_letters(method: Any) -> None:
    if method.promises.minimises is None:
        return  # it promises nothing but numbers, and those are looked at below
    if method.traffic.sums:
        return  # simulate refuses such conditions
    problem = _calm(method)
    goal = _Goal(method, problem)
    theta = _converge(method, problem, goal, conditions=_BAD)
    _demand_goal(method, goal, theta, " when letters are late, lost, doubled and out of order")


def _runs_on_peers(method: Any) -> None:
    """Simulator and peers exchanging encoded bytes agree bit for bit, and count alike."""
    for problem in _posed(method):
        _demand_peers(method, problem)


def _demand_peers(method: Any, problem: Problem) -> None:
    replay = _Replay(method, problem, 200, seed=10)
    (own, _), account, _ = _hosted(method, problem, replay, compiled=True)
    world = world_of(problem, batch=method.training.batch)
    peers = [Peer(method, part_of(world, i, i + 1), replay.start[i]) for i in range(problem.n)]
    letters = size = 0
    queue: deque[Any] = deque()

    def deliver() -> None:
        nonlocal letters, size
        while queue:
            post = queue.popleft()
            letters, size = letters + 1, size + len(post.data)
            queue.extend(peers[post.to].receive(post.data))

    for peer in peers:
        queue.extend(peer.greet())
        deliver()
    for i, dice, peer in zip(replay.order, replay.dice, replay.peers, strict=True):
        queue.extend(peers[i].wake(dice, peer))
        deliver()
    _demand(
        np.array_equal(own.theta, [peer.own.theta[0] for peer in peers]),
        "simulator and peers exchanging bytes disagree",
    )
    _demand(int(account[loop.LETTERS]) == letters, "the simulator counts other letters than peers send")
    if method.traffic.dice == 0 or replay.events.ndim == 2:
        counted = simulate(problem, method, events=replay.events, start=replay.start)
        _demand(counted.letters == letters and counted.bytes == size, "the account differs from what peers send")


# -- of a method that trains, whatever it minimises


def _finite_run(problem: Problem, method: Any, **options: Any) -> Any:
    """A run whose models stay finite."""
    try:
        return simulate(problem, method, **options)
    except ConvergenceError as error:
        raise ContractError(f"with {', '.join(options)} models grow without end: {error}") from error


def _alone(problem: Problem, agent: int) -> Problem:
    """The problem of one agent by itself."""
    mine = problem.data.owner == agent
    rows = (problem.data.X[mine], np.asarray(problem.data.y)[mine])
    return Problem(
        AgentData(*rows, agents=np.zeros(int(mine.sum()), int), members=[0]),
        graphs.empty(1),
        problem.loss,
        smooth=problem.smooth,
        loss_weight=problem.loss_weight[agent],
        scaled=problem.scaled,
        mean=True,
        ridge=problem.ridge[agent],
        model=None if problem.is_linear else problem.model,
        roles=problem.roles,
    )


def _trains_alone_without_ties(method: Any) -> None:
    """An agent without ties does what the method does on a graph of one agent, and writes to nobody."""
    if not method.training.jobs:
        return
    for problem in _posed(method):
        start = problem.local() + np.random.default_rng(16).normal(size=(problem.n, problem.p))
        for agent in np.flatnonzero(problem.graph.isolated).tolist():
            here = _finite_run(problem, method, events=np.full(20, agent), start=start).theta[agent]
            alone = _finite_run(_alone(problem, agent), method, events=np.zeros(20, int), start=start[[agent]])
            _demand(np.array_equal(here, alone.theta[0]), "an agent without ties does not train as it would alone")
            _demand(alone.letters == 0, "an agent without ties sends a letter")


def _repeats_itself(method: Any) -> None:
    """The same seed makes the same bits, however a run is divided."""
    if not method.training.jobs:
        return
    for problem in _posed(method):
        lengths: tuple[dict[str, Any], ...] = ({"wakes": 12 * problem.n}, {"rounds": 12})
        for length in lengths:
            runs = [_finite_run(problem, method, seed=17, every=every, **length) for every in (None, 5)]
            same = np.array_equal(runs[0].theta, runs[1].theta) and runs[0].bytes == runs[1].bytes
            _demand(same, f"to look at a run of {next(iter(length))} on the way changes it")


def _bears_with_the_network(method: Any) -> None:
    """Models stay finite when letters are late, lost, doubled or out of order, and every letter is counted."""
    if not method.training.jobs:
        return
    for problem in _posed(method):
        try:
            runs = [_finite_run(problem, method, wakes=60 * problem.n, seed=18, conditions=_BAD) for _ in range(2)]
        except MismatchError:
            return  # it says that it cannot
        _demand(np.array_equal(runs[0].theta, runs[1].theta), "late and lost letters are not the same in a second run")
        counted = runs[0].letters == runs[0].tally[:, 0].sum() and 0 < runs[0].lost < runs[0].letters
        _demand(counted or not runs[0].letters, "letters of all kinds are not all letters, or more are lost than sent")


def _goes_on_after_changes(method: Any) -> None:
    """Agents leave and come back while it runs, in wakes and in rounds."""
    if not method.training.jobs:
        return
    for problem in _posed(method):
        fewer = problem.on(graph=problem.graph.without([2, 5]))
        lengths: tuple[tuple[dict[str, Any], int], ...] = (
            ({"wakes": 30 * problem.n}, 10 * problem.n),
            ({"rounds": 30}, 10),
        )
        for length, when in lengths:
            try:
                _finite_run(problem, method, seed=19, changes=[(when, fewer), (2 * when, problem)], **length)
            except MismatchError:
                return  # those who are left have no graph that it knows


def _trains_all_at_once(method: Any) -> None:
    """Rounds in which a model in Python trains all agents in one call are those of the same model compiled."""
    if not method.training.jobs:
        return
    problem, twin = _network(method), _network(method, _python_network())
    if problem is None or twin is None:
        return
    start = problem.local() + 0.1 * np.random.default_rng(20).normal(size=(problem.n, problem.p))
    one, other = (_finite_run(posed, method, rounds=6, seed=21, start=start) for posed in (problem, twin))
    apart = float(np.abs(one.theta - other.theta).max())
    _demand(apart <= 1e-9, f"models that are trained all at once are {apart:.1e} away from those trained one by one")
    _demand(one.bytes == other.bytes, "agents that are trained all at once send other letters")


def _python_network() -> Function:
    """The network of :func:`_network` in NumPy."""
    rule = TwoLayer(*_NETWORK)

    def slopes(theta: np.ndarray, X: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        hidden = np.tanh(
            X @ theta[rule.parts["body.weight"]].reshape(rule.hidden, -1).T + theta[rule.parts["body.bias"]]
        )
        score = rule.predict(theta, X)
        log_sum = np.logaddexp.reduce(score, axis=1)
        slope = np.exp(score - log_sum[:, None])
        slope[np.arange(len(y)), y.astype(int)] -= 1.0
        return hidden, slope / len(y), log_sum - score[np.arange(len(y)), y.astype(int)]

    def gradient(theta: np.ndarray, X: np.ndarray, y: np.ndarray) -> np.ndarray:
        hidden, slope, _ = slopes(theta, X, y)
        head = theta[rule.parts["head.weight"]].reshape(rule.outputs, -1)
        back = (slope @ head) * (1.0 - hidden * hidden)
        parts = (back.T @ X, back.sum(axis=0), slope.T @ hidden, slope.sum(axis=0))
        return np.concatenate([part.ravel() for part in parts])

    def value(theta: np.ndarray, X: np.ndarray, y: np.ndarray) -> float:
        return float(slopes(theta, X, y)[2].mean())

    return Function(rule.size, value, gradient, rule.predict, rule.initial(), rule.parts)


def _ignores_bad_letters(method: Any) -> None:
    """A letter of a wrong length or kind changes nothing, and none at all stops an agent."""
    if not method.training.jobs:
        return
    for problem in _posed(method):
        start = problem.local()
        agents = _Watched(method, problem, start)
        posted = [agents.call(method.greet, k) for k in range(problem.n)]
        dice = np.full(method.traffic.dice, 0.5)
        posted += [agents.call(method.wake, k, Chance(dice, VACANT, 0.0)) for k in range(problem.n)]
        seen: dict[int, tuple[int, Letter]] = {}
        for to, letter in (one for letters in posted for one in letters):
            if letter.slot == 0:  # what is written too far is found in the next one
                seen.setdefault(letter.kind, (to, letter))
        for kind, (to, letter) in seen.items():
            for size in {0, 1, len(letter.text) - 1, len(letter.text) + 1, 2 * len(letter.text)} - {len(letter.text)}:
                bad = letter._replace(text=np.resize(letter.text, max(size, 0)))
                _demand_unmoved(agents, to, bad, f"a letter of kind {kind} with {size} numbers in place of "
                                f"{len(letter.text)}")  # fmt: skip
            _demand_unmoved(agents, to, letter._replace(kind=len(method.letters)), "a letter of an unknown kind")
            stranger = letter._replace(sender=agents.first + problem.n, slot=VACANT)
            for text in (letter.text, np.full_like(letter.text, np.nan), np.full_like(letter.text, np.inf)):
                for other in (letter, stranger):  # they may be believed, and may not stop anybody
                    agents.call(method.receive, to - agents.first, other._replace(text=text.copy()))
                    with np.errstate(all="ignore"):
                        agents.call(method.wake, to - agents.first, Chance(dice, VACANT, 0.0), lenient=True)


def _demand_unmoved(agents: _Watched, to: int, letter: Letter, what: str) -> None:
    before = [part.copy() for part in _arrays((agents.own, agents.tie))]
    try:
        agents.call(agents.method.receive, to - agents.first, letter)
    except (ValueError, IndexError) as error:
        raise ContractError(f"{what} stops the agent that it comes to: {error}") from error
    after = _arrays((agents.own, agents.tie))
    same = all(np.array_equal(a, b, equal_nan=True) for a, b in zip(before, after, strict=True))
    _demand(same, f"{what} changes what an agent knows: compare letter.text.shape[0] before it is read")


#: Every promise of a method, in the order in which they are checked.
METHOD_CHECKS: dict[str, Callable[[Any], None]] = {
    check.__name__.strip("_").replace("_", " "): check
    for check in (
        _keeps_to_what_it_declares,  # first: compiled code would read and write elsewhere
        _compiled_equals_python,
        _announces_its_letters,
        _touches_what_its_footprint_says,
        _may_be_stored_once,
        _stays_at_the_optimum,
        _reaches_the_optimum,
        _leaves_the_isolated_alone,
        _teaches_those_without_data,
        _ignores_names,
        _runs_on_peers,
        _reads_sparse_rows,
        _solves_other_objectives,
        _its_rounds_reach_the_optimum,
        _follows_changes,
        _survives_late_and_lost_letters,
        _compiled_equals_python_with_a_network,
        _trains_alone_without_ties,
        _ignores_bad_letters,
        _repeats_itself,
        _bears_with_the_network,
        _goes_on_after_changes,
        _trains_all_at_once,
    )
}


def check_method(method: Any) -> None:
    """Check everything that a method promises; see ``METHOD_CHECKS``.

    A method defined outside the package is compiled afresh, which takes a minute or so.

    Parameters
    ----------
    method : rule

    Raises
    ------
    ContractError

    Examples
    --------
    >>> import coterie as ct
    >>> from coterie.testing import check_method
    >>> check_method(ct.CoordinateDescent())
    """
    _demand(isinstance(method, Method), f"{method!r} is no value of a class that is decorated with @ct.method")
    for promise, check in METHOD_CHECKS.items():
        try:
            check(method)
        except ContractError as broken:
            raise ContractError(f"{method!r} breaks a promise, {promise!r}: {broken}") from None


# -- graph rules ------------------------------------------------------------------------------------------------------


class _Meeting:
    """Agents whose models and losses stay as they are, and what a graph of them costs."""

    def __init__(self, learned: Any, seed: int):
        rng = np.random.default_rng(seed)
        n, p, rule = max(8, learned.rule.kappa + 2), 2, learned.rule
        self.theta = 0.7 * rng.normal(size=(n, p)) + 2.0 * rng.integers(0, 2, (n, 1))  # two groups
        loss, confidence = 0.3 * rng.normal(size=n), rng.random(n)  # losses of both signs
        self.problem = Problem(
            AgentData(np.zeros((n, p)), loss, agents=np.arange(n), members=range(n)),
            graphs.ring(n),  # ties to give up, and pairs that have none
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
        """The weights that minimise h."""
        return exact_tie_weights(self.cost, *self.reg)

    def replay(self, learned: Any, wakes: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
        """Who wakes, and with which dice."""
        rng = np.random.default_rng(seed)
        return rng.integers(0, self.problem.n, wakes), rng.random((wakes, learned.traffic.dice))


def _held(world: World, values: np.ndarray) -> np.ndarray:
    """What every agent holds of its ties: row i is agent i's side of them."""
    n = world.address.shape[0]
    owner, tied = np.repeat(np.arange(n), np.diff(world.tie_start)), world.peer != VACANT
    held = np.zeros((n, world.n_agents))
    np.add.at(held, (owner[tied], world.peer[tied]), values[tied])  # a peer in two slots would count twice
    return held


def _wakes_of(learned: Any, meeting: _Meeting, wakes: int, seed: int) -> Iterator[Driver]:
    """The driver after every wake; letters arrive at once."""
    driver = Immediate(meeting.problem, learned, meeting.theta, "uniform", None, seed, None)
    for _ in range(wakes):
        driver.advance(1, loop.NO_LIMIT)
        yield driver


def _keeps_both_ends_alike(learned: Any) -> None:
    for t, driver in enumerate(_wakes_of(learned, _Meeting(learned, 20), 300, seed=1)):
        world, tied = driver.world, driver.world.peer != VACANT
        weights, stamps = _held(world, world.weight), _held(world, driver.tie.stamp)
        when = f"after {t + 1} wakes"
        _demand(np.all(world.weight[tied] > 0), f"{when}, the weight of a tie is not positive")
        _demand(np.all(world.weight[~tied] == 0), f"{when}, somebody holds a weight of a tie to nobody")
        _demand(np.array_equal(weights, weights.T), f"{when}, the two ends of a tie hold different weights")
        _demand(np.array_equal(stamps, stamps.T), f"{when}, the two ends of a tie hold different stamps")
        _demand(not np.any(np.diag(weights)), f"{when}, an agent is tied to itself")
        ties = int(np.count_nonzero(weights, axis=1).max())
        _demand(ties <= (learned.rule.max_edges or ties), f"{when}, an agent has {ties} ties")
        _demand(weights.max() <= learned.rule.max_weight, f"{when}, a tie weighs {weights.max():g}")


def _kept_from_the_best(learned: Any) -> bool:
    """Is there a limit on ties, in number or weight?"""
    return learned.rule.max_edges > 0 or learned.rule.max_weight < MAX_WEIGHT


def _never_increases_the_objective(learned: Any) -> None:
    if _kept_from_the_best(learned):
        return  # a tie that has to go may have paid
    meeting = _Meeting(learned, 21)
    before = first = meeting.objective(meeting.problem.graph.W.toarray())
    for t, driver in enumerate(_wakes_of(learned, meeting, 300, seed=2)):
        after = meeting.objective(_held(driver.world, driver.world.weight))
        room = 1e-12 * (1.0 + abs(before))
        _demand(after <= before + room, f"wake {t + 1} increases the objective by {after - before:.1e}")
        before = after
    _demand(before < first, "the objective does not go down")


def _patient(learned: Any) -> Any:
    """The same with a delta for which gradient steps, of the size of its square, can be waited for."""
    mu, lam, delta, kappa, step, *limits = learned.rule.__getnewargs__()
    rule = learned.rule if step == "exact" else GraphRule(mu, lam, max(delta, 0.5), kappa, step, *limits)
    return type(learned)(learned.method, rule, learned.every, learned.sampling)


def _demand_best(learned: Any, meeting: _Meeting, driver: Driver, where: str = "") -> None:
    """Go on until both ends of every tie hold its best weight, or patience ends."""
    best, apart, limited = meeting.best(), np.inf, _kept_from_the_best(learned)
    for _ in range(60):
        driver.advance(100 * meeting.problem.n, loop.NO_LIMIT)
        apart = float(np.abs(_held(driver.world, driver.world.weight) - best).max())
        if apart <= 1e-7 or limited:
            break
    _demand(apart <= 1e-6 or limited, f"the weights stay {apart:.1e} away from the best{where}")


def _finds_the_best_graph(learned: Any) -> None:
    learned = _patient(learned)
    meeting = _Meeting(learned, 22)
    driver = Immediate(meeting.problem, learned, meeting.theta, "uniform", None, 3, None)
    _demand_best(learned, meeting, driver)


def _comes_to_agree_after_late_and_lost_letters(learned: Any) -> None:
    learned = _patient(learned)
    meeting = _Meeting(learned, 23)
    n = meeting.problem.n
    bad = Conditions(latency=1.5, jitter=1.0, loss=0.2, duplication=0.2, outages=[(0, 5.0, 40.0), (2, 20.0, 60.0)])
    driver = Timed(meeting.problem, learned, meeting.theta, "uniform", bad, 4, None)
    driver.advance(200 * n, loop.NO_LIMIT)
    driver.channel = Conditions().channel(n)  # from now on, letters arrive at once, except those on their way
    _demand_best(learned, meeting, driver, " after letters were late, lost, doubled and out of order")
    weights, stamps = (_held(driver.world, held) for held in (driver.world.weight, driver.tie.stamp))
    alike = np.array_equal(weights, weights.T) and np.array_equal(stamps, stamps.T)
    _demand(alike, "the ends of a tie do not come to agree after letters were lost")


def _learn(learned: Any, meeting: _Meeting, order: np.ndarray, dice: np.ndarray, compiled: bool) -> tuple[Any, ...]:
    """World, state and account after a replay on one host, with more slots for ties where they are wished for."""
    problem = meeting.problem
    world = world_of(problem, spare=learned.ties.spare)
    own, tie = learned.start(world, meeting.theta)
    outbox, egress = new_outbox(learned, world, problem.p, learned.traffic.max_letters), loop.new_egress(0, 1)
    account = loop.new_account(learned)
    run = loop.run if compiled else loop.run.python
    loop.meet(learned, world, own, tie, outbox, egress, account, run)
    done, peers, moments = 0, np.full(len(order), VACANT), np.zeros(len(order))
    while done < len(order):
        rest = (part[done:] for part in (order, peers, dice, moments))
        done += run(learned, world, own, tie, *rest, outbox, egress, account, loop.NO_LIMIT)
        _demand(
            not outbox.cursor[REFUSED],
            f"it posts more, or longer, letters than the {learned.traffic.max_letters} it announces",
        )
        if outbox.cursor[NEEDS_ROOM]:
            world, tie = loop.widen(learned, world, tie, outbox)
    return world, own, tie, account


def _learns_the_same_compiled_or_not(learned: Any) -> None:
    meeting = _Meeting(learned, 24)
    replay = meeting.replay(learned, 120, seed=5)
    (one, *compiled), (other, *plain) = (_learn(learned, meeting, *replay, compiled) for compiled in (True, False))
    ties = np.array_equal(one.peer, other.peer) and np.array_equal(one.weight, other.weight)
    _demand(ties, "compiled code and plain Python learn different ties")
    same = all(np.array_equal(a, b) for a, b in zip(_arrays(compiled), _arrays(plain), strict=True))
    _demand(same, "compiled code and plain Python remember, or count, different things")


def _learns_the_same_on_peers(learned: Any) -> None:
    """Simulator and peers exchanging encoded bytes agree bit for bit; and what peers say of their ties is true."""
    meeting = _Meeting(learned, 25)
    order, dice = meeting.replay(learned, 120, seed=6)
    world, own, _, account = _learn(learned, meeting, order, dice, compiled=True)
    start = world_of(meeting.problem, spare=learned.ties.spare)
    peers = [Peer(learned, part_of(start, i, i + 1), meeting.theta[i]) for i in range(meeting.problem.n)]
    queue: deque[Any] = deque()
    letters = size = 0

    def post(peer: Peer, posts: list[Any]) -> None:
        nonlocal letters, size
        degree, held = float(peer.world.weight.sum()), _held(peer.world, peer.world.weight)[0]
        for letter in posts:
            _, kind, text = decode(letter.data)
            letters, size = letters + 1, size + len(letter.data)
            if kind == ANSWER:
                _demand(text[0] == held[letter.to], "an agent says another weight than it holds")
                _demand(abs(text[4] - degree) <= 1e-12 * degree, "an agent's degree is not the sum of its weights")
        queue.extend(posts)

    def deliver() -> None:
        while queue:
            letter = queue.popleft()
            post(peers[letter.to], peers[letter.to].receive(letter.data))

    for peer in peers:
        post(peer, peer.greet())
        deliver()
    for i, numbers in zip(order, dice, strict=True):
        post(peers[i], peers[i].wake(numbers))
        deliver()
    theirs = np.concatenate([_held(peer.world, peer.world.weight) for peer in peers])
    same = np.array_equal(_held(world, world.weight), theirs)
    _demand(same, "simulator and peers exchanging bytes learn different ties")
    _demand(np.array_equal(own.theta, [peer.theta for peer in peers]), "simulator and peers have different models")
    counted = letters_size(int(account[loop.LETTERS]), int(account[loop.NUMBERS]))
    _demand(account[loop.LETTERS] == letters and counted == size, "the account differs from what peers send")


#: Every promise of a rule that learns a graph, in the order in which they are checked. A check takes a ``Learned``.
GRAPH_RULE_CHECKS: dict[str, Callable[[Any], None]] = {
    check.__name__.strip("_").replace("_", " "): check
    for check in (
        _keeps_both_ends_alike,
        _never_increases_the_objective,
        _finds_the_best_graph,
        _learns_the_same_compiled_or_not,
        _learns_the_same_on_peers,
        _comes_to_agree_after_late_and_lost_letters,
    )
}


def check_graph_rule(rule: Any, sampling: Any = "ideal") -> None:
    """Check everything that a rule for learning a graph promises; see ``GRAPH_RULE_CHECKS``.

    On models that stay as they are. That a rule finds the best graph is checked with a larger ``delta`` where it takes
    gradient steps, and not at all where ``max_edges`` or ``max_weight`` keeps it from it.

    Parameters
    ----------
    rule : GraphRule
    sampling : "ideal", "shuffle" or a sampler
        Where random peers come from.

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
    for promise, check in GRAPH_RULE_CHECKS.items():
        try:
            check(learned)
        except ContractError as broken:
            raise ContractError(f"{rule!r} breaks a promise, {promise!r}: {broken}") from None


# -- transports -------------------------------------------------------------------------------------------------------


class _Post:
    """Some open transports, and the account of what they were given and what came of it."""

    def __init__(
        self, make: Callable[[list[int]], dict[int, Transport]], letter_bytes: int, patience: float, relayed: bool
    ):
        self.letter_bytes, self.patience, self.relayed = letter_bytes, patience, relayed
        self.members = make([3, 0, 7])
        self.linked: dict[int, list[int]] = {address: [] for address in self.members}
        self.may_come: Counter[tuple[int, int, bytes]] = Counter()  # receiver, sender, payload
        self.came: Counter[tuple[int, int, bytes]] = Counter()
        self.rosters: dict[int, list[bytes]] = {address: [] for address in self.members}
        self.news = threading.Condition()
        self.number = 0
        for address in self.members:
            self.open(address)

    def open(self, address: int, also: Callable[[int, bytes], None] | None = None) -> None:
        def deliver(owner: int, payload: bytes) -> None:
            with self.news:
                self.came[address, owner, payload] += 1
                self.news.notify_all()
            if also is not None:
                also(owner, payload)

        self.members[address].open(deliver, roster=self.rosters[address].append)

    def link(self, address: int, peers: list[int]) -> None:
        self.linked[address] = peers
        self.members[address].link(self.members[peer].contact for peer in peers)

    def fresh(self, size: int = 20) -> bytes:
        """A payload like no other."""
        self.number += 1
        return self.number.to_bytes(8, "big").ljust(size, b".")

    def send(self, sender: int, to: int, payload: bytes, arrives: bool = True) -> bytes:
        goals = self.linked[sender] if to == EVERYONE else [to]
        with self.news:
            self.may_come.update((goal, sender, payload) for goal in goals if arrives)
        start = time.monotonic()
        self.members[sender].send(to, payload)
        _demand(time.monotonic() - start < SEND_LIMIT, "send waits")
        return payload

    def until(self, act: Callable[[], bytes], sender: int, goals: list[int], promise: str) -> None:
        """Try again and again, for letters may get lost while connections form: at last one reaches all goals."""
        end = time.monotonic() + self.patience
        while True:
            payload = act()
            again = time.monotonic() + 0.2
            with self.news:
                while not all(self.came[goal, sender, payload] for goal in goals) and time.monotonic() < again:
                    self.news.wait(again - time.monotonic())
                if all(self.came[goal, sender, payload] for goal in goals):
                    return
            _demand(time.monotonic() < end, promise)

    def reach(self, sender: int, goal: int, promise: str) -> None:
        self.until(lambda: self.send(sender, goal, self.fresh()), sender, [goal], promise)

    def reach_everyone(self, sender: int, promise: str) -> None:
        act = lambda: self.send(sender, EVERYONE, self.fresh())  # noqa: E731
        self.until(act, sender, self.linked[sender], promise)

    def close(self) -> None:
        """Close everything, and look through the account."""
        for member in self.members.values():
            member.close()
            member.close()
        for (receiver, owner, payload), times in self.came.items():
            what = f"a letter of {len(payload)} bytes that came to {receiver} as from {owner}"
            _demand(self.may_come[receiver, owner, payload] > 0, f"{what} was never sent to it so")
            _demand(times <= self.may_come[receiver, owner, payload], f"{what} came more often than it was sent")
        for address, member in self.members.items():
            received = sum(times for (receiver, _, _), times in self.came.items() if receiver == address)
            _demand(member.counts.get("received", 0) == received, "it counts other letters than it delivers")


def _one_letter_reaches_one(post: _Post) -> None:
    post.link(3, [0])
    for sender, goal in ((3, 0), (0, 3), (3, 7), (7, 0)):
        post.reach(sender, goal, f"no letter from {sender} reaches {goal}, which is admitted")


def _everyone_is_all_linked_and_nobody_else(post: _Post) -> None:
    for links in ([0], [0, 7], [7], [0, 7]):
        post.link(3, links)
        post.reach_everyone(3, f"no broadcast reaches all that are linked now, {links}")
    post.link(0, [3])
    post.link(3, [7])  # though 0 stays linked with 3
    post.reach_everyone(3, "no broadcast reaches the one that is linked")
    post.reach_everyone(0, "no broadcast reaches one that is linked with others only")
    post.link(3, [])
    post.send(3, EVERYONE, post.fresh())
    post.reach(3, 0, "no letter reaches a member that is not linked any more")


def _bytes_arrive_unchanged(post: _Post) -> None:
    post.link(3, [0])
    noise = np.random.default_rng(0).bytes(post.letter_bytes)
    for payload in (b"", b"\0", bytes(range(256)), noise[: post.letter_bytes // 2], noise):
        for to in (0, EVERYONE):
            act = lambda to=to, payload=payload: post.send(3, to, payload)  # noqa: E731
            post.until(act, 3, [0], f"a letter of {len(payload)} bytes does not arrive unchanged")


def _too_long_letters_vanish(post: _Post) -> None:
    post.link(3, [0])
    post.reach(3, 0, "no letter arrives")
    for size in (post.letter_bytes + 1, 10 * post.letter_bytes):
        for to in (0, 7, EVERYONE):
            post.send(3, to, post.fresh(size), arrives=False)
        post.reach(3, 0, "after a letter that was too long no other arrives")
        post.reach(3, 7, "after a letter that was too long no other arrives at a member that is not linked")


def _absent_peers_do_not_matter(post: _Post) -> None:
    post.link(3, [0, 7])
    post.members[0].close()
    for to in (0, 99, EVERYONE):
        for _ in range(20):
            post.send(3, to, post.fresh())
    post.link(3, [7])
    for _ in range(20):
        post.send(3, 0, post.fresh())
    post.reach(3, 7, "no letter reaches a peer while another is absent")


def _closed_is_closed(post: _Post) -> None:
    post.link(3, [0])
    post.reach(3, 0, "no letter arrives")
    member = post.members[3]
    member.close()
    member.close()
    for to in (0, 7, EVERYONE):
        post.send(3, to, post.fresh(), arrives=False)
    member.publish_roster(b"roster")
    post.link(3, [0, 7])
    _demand(not member.alive(), "it sees somebody alive though it is closed")
    post.reach(7, 0, "no letter arrives after another peer has closed")


def _who_comes_back_is_reached(post: _Post) -> None:
    post.link(3, [0, 7])
    post.link(0, [3])
    post.reach_everyone(3, "no broadcast arrives")
    post.members[0].close()
    post.send(3, EVERYONE, post.fresh())
    post.open(0)
    post.reach_everyone(3, "no broadcast reaches a peer that came back")
    post.reach(3, 0, "no letter reaches a peer that came back")
    post.reach_everyone(0, "no broadcast of a peer that came back arrives")


def _callbacks_may_use_it(post: _Post) -> None:
    """Answers, relinks and closes inside deliver."""
    member = post.members[0]
    member.close()
    done = threading.Event()

    def answer(owner: int, payload: bytes) -> None:
        post.send(0, owner, payload)
        post.link(0, [owner])
        if payload.startswith(b"close"):
            member.close()
            done.set()

    post.open(0, also=answer)
    post.link(3, [0])

    def ask() -> bytes:
        return post.send(3, 0, post.fresh())

    post.until(ask, 0, [3], "no answer comes that is sent inside deliver")
    end = time.monotonic() + post.patience
    while not done.is_set():
        post.send(3, 0, b"close" + post.fresh())
        done.wait(0.2)
        _demand(time.monotonic() < end, "it cannot be closed inside deliver")
    post.open(0)
    post.reach(3, 0, "it cannot be opened again after it was closed inside deliver")


def _threads_may_share_it(post: _Post) -> None:
    post.link(3, [0, 7])
    post.reach_everyone(3, "no broadcast arrives")
    letters = [post.fresh() for _ in range(200)]
    for payload in letters:
        post.may_come.update((goal, 3, payload) for goal in (0, 7))
    faults: list[BaseException] = []

    def work(mine: list[bytes]) -> None:
        try:
            for payload in mine:
                post.members[3].send(EVERYONE, payload)
        except BaseException as fault:
            faults.append(fault)

    threads = [threading.Thread(target=work, args=(letters[k::4],)) for k in range(4)]
    for thread in threads:
        thread.start()
    post.link(3, [0, 7])  # changes nothing
    for thread in threads:
        thread.join()
    _demand(not faults, f"sending from several threads fails: {faults[:1]}")
    post.reach_everyone(3, "no broadcast arrives after several threads have sent")
    for goal in (0, 7):
        arrived = sum(post.came[goal, 3, payload] > 0 for payload in letters)
        _demand(arrived > 0, f"of {len(letters)} letters sent by several threads none arrives")


def _rosters_are_published(post: _Post) -> None:
    post.link(3, [0])
    end = time.monotonic() + post.patience
    while not post.rosters[0]:
        post.members[3].publish_roster(b"signed")
        time.sleep(0.02)
        _demand(time.monotonic() < end, "no roster reaches a linked peer")
    _demand(set(post.rosters[0]) == {b"signed"}, "a roster changes on its way")


def _visitors_exchange_rosters_and_nothing_else(post: _Post) -> None:
    host, guest = post.members[0], post.members[7]
    host.admit([post.members[3].contact])
    host.keep_roster(b"of the host")
    guest.keep_roster(b"of the guest")
    post.link(7, [0])
    end = time.monotonic() + post.patience
    while b"of the guest" not in post.rosters[0] or b"of the host" not in post.rosters[7]:
        post.send(7, 0, post.fresh())  # which may come when it is admitted
        time.sleep(0.05)
        missing = 0 if b"of the guest" not in post.rosters[0] else 7
        _demand(time.monotonic() < end, f"of a visitor and its host, {missing} does not get the other's roster")
    came = [owner for receiver, owner, _ in post.came if receiver == 0]
    _demand(7 not in came, "a letter of somebody who is not admitted is delivered")
    host.admit([post.members[3].contact, guest.contact])
    post.reach(7, 0, "no letter of a visitor arrives when it was admitted")


def _others_stay_connected(post: _Post) -> None:
    """Members come and go, and not one letter between two others is lost."""
    post.link(3, [0])
    post.reach(3, 0, "no letter arrives")
    contacts = {address: member.contact for address, member in post.members.items()}
    sent = []
    for links in ([0, 7], [0], [7, 0], [0]):
        post.link(3, links)
        post.members[0].admit([contacts[3], contacts[7]] if len(links) > 1 else [contacts[3]])
        for _ in range(10):
            sent.append(post.send(3, 0, post.fresh()))
            time.sleep(0.005)
    end = time.monotonic() + post.patience
    while not all(post.came[0, 3, payload] for payload in sent):
        time.sleep(0.02)
        lost = sum(not post.came[0, 3, payload] for payload in sent)
        _demand(time.monotonic() < end, f"{lost} of {len(sent)} letters are lost while others come and go")


def _revoked_certificates_are_refused(post: _Post) -> None:
    host, guest = post.members[0], post.members[7]
    if post.relayed or guest.serial is None:
        return  # a relay sees the certificates of those who use it
    contacts = [post.members[3].contact, guest.contact]
    post.link(7, [0])
    post.reach(7, 0, "no letter arrives")
    host.admit(contacts, revoked=[guest.serial])
    end = time.monotonic() + post.patience
    while 7 in host.alive():
        time.sleep(0.02)
        _demand(time.monotonic() < end, "a connection outlives its certificate")
    with post.news:
        before = sum(times for (receiver, owner, _), times in post.came.items() if (receiver, owner) == (0, 7))
    for _ in range(10):
        post.send(7, 0, post.fresh())
        time.sleep(0.03)
    with post.news:
        after = sum(times for (receiver, owner, _), times in post.came.items() if (receiver, owner) == (0, 7))
    _demand(after == before, "a letter comes from somebody whose certificate is revoked")
    host.admit(contacts)
    post.reach(7, 0, "no letter arrives when a certificate is good again")


#: Every promise of a transport, in the order in which they are checked.
TRANSPORT_CHECKS: dict[str, Callable[[_Post], None]] = {
    check.__name__.strip("_").replace("_", " "): check
    for check in (
        _one_letter_reaches_one,
        _everyone_is_all_linked_and_nobody_else,
        _bytes_arrive_unchanged,
        _too_long_letters_vanish,
        _absent_peers_do_not_matter,
        _closed_is_closed,
        _who_comes_back_is_reached,
        _callbacks_may_use_it,
        _threads_may_share_it,
        _rosters_are_published,
        _visitors_exchange_rosters_and_nothing_else,
        _others_stay_connected,
        _revoked_certificates_are_refused,
    )
}


def check_transport(
    make: Callable[[list[int]], dict[int, Transport]],
    letter_bytes: int = 200_000,
    patience: float = 20.0,
    relayed: bool = False,
) -> None:
    """Check everything that a transport promises; see ``TRANSPORT_CHECKS``.

    Letters may get lost, so what must arrive is sent again until it does; what must not is looked for at the end: every
    letter that came was sent, by that owner, to that receiver, and came at most once.

    Parameters
    ----------
    make : function of (addresses)
        Returns a transport for each address: not open yet, with no links, on the same network, all of them admitted by
        each other. Called once for every check.
    letter_bytes : int
        The longest letter that these carry.
    patience : float
        Seconds after which a letter that must arrive is given up.
    relayed : bool
        Whether they reach each other through a relay only, and so do not see each other's certificates.

    Raises
    ------
    ContractError

    Examples
    --------
    >>> from coterie.peers.transport.memory import Exchange, Memory
    >>> from coterie.testing import check_transport
    >>> def make(addresses):
    ...     exchange = Exchange()
    ...     return {address: Memory(exchange, f"peer{address}", address) for address in addresses}
    >>> check_transport(make)
    """
    for promise, check in TRANSPORT_CHECKS.items():
        try:
            post = _Post(make, letter_bytes, patience, relayed)
            try:
                check(post)
            except BaseException:
                for member in post.members.values():
                    member.close()
                raise
            post.close()
        except ContractError as broken:
            raise ContractError(f"a transport breaks a promise, {promise!r}: {broken}") from None
