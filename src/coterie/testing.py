"""Contracts: what every loss and every method promises, as checks that anyone can run on their own.

Like scikit-learn's ``check_estimator``. A broken promise raises :class:`~coterie.errors.ContractError`, which says
which one and by how much. Our own tests run these on every loss and method in the public lists.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import sparse

from . import graphs
from ._compile import kernel
from .data import AgentData
from .engines import host
from .engines.events import Conditions
from .engines.simulator import simulate
from .errors import ContractError, MismatchError
from .exact import project
from .graphs import Graph
from .losses import LOSS_PARTS, SIGNS, Logistic
from .methods import METHOD_PARTS, check_fit
from .network.peer import Peer
from .problem import Problem
from .world import REFUSED, VACANT, new_mail, part_of, world_of


def _demand(kept: bool | np.bool_, promise: str) -> None:
    if not kept:
        raise ContractError(promise)


# -- losses -----------------------------------------------------------------------------------------------------------


@kernel
def _loss_table(loss, margins, labels, step, out):  # type: ignore[no-untyped-def]
    for r in range(margins.shape[0]):
        z, y = margins[r], labels[r]
        out[0, r] = loss.value(z, y)
        out[1, r] = loss.derivative(z, y)
        out[2, r] = loss.curvature(z, y)
        out[3, r] = loss.prox(z, step, y)
        out[4, r] = loss.conjugate(loss.derivative(z, y), y)


def check_loss(loss: Any, seed: int = 0) -> None:
    """Check everything that a loss promises.

    It is complete; compiled code and plain Python agree bit for bit; the derivative is a subgradient everywhere (which
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
    missing = [part for part in LOSS_PARTS if not hasattr(loss, part)]
    _demand(not missing, f"{loss!r} has no {', '.join(missing)}")
    rng = np.random.default_rng(seed)
    z = np.concatenate([rng.normal(scale=2.0, size=200), np.linspace(-3.0, 3.0, 61), [-40.0, 40.0, 700.0, -700.0]])
    y = np.sign(rng.normal(size=z.size)) if loss.labels == SIGNS else np.round(rng.normal(scale=2.0, size=z.size), 1)
    name = repr(loss)

    plain = np.zeros((5, z.size))
    _loss_table.python(loss, z, y, 0.7, plain)

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

    compiled = np.zeros_like(plain)
    _loss_table(loss, z, y, 0.7, compiled)
    for part, ours, theirs in zip(LOSS_PARTS[:5], compiled, plain, strict=True):
        apart = np.flatnonzero(~((ours == theirs) | (np.isnan(ours) & np.isnan(theirs))))
        where = f"{part} at margin {z[apart[0]]:g}, label {y[apart[0]]:g}" if apart.size else ""
        _demand(
            apart.size == 0,
            f"{name}: compiled code and plain Python disagree in {where} (is there a power? write r * r, not r ** 2: "
            "their last bits differ)",
        )


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
    loss = Logistic() if loss is None else loss  # not "or": a rule without fields is an empty tuple, and false
    return Problem.personalized(data, Graph.from_edges(n, i, j, weight), loss, mu=0.8, ridge="1/m")


def _checkable(method: Any, storage: str = "dense") -> Problem:
    """The problem to check a method on: :func:`hard_problem`, or whatever else it does with its data or graph."""
    problem = hard_problem(storage=storage)
    models = np.random.default_rng(0).normal(size=(problem.n, problem.p))
    c = np.where(problem.data.sizes > 0, problem.data.sizes / 7, 0.0)
    for candidate in (
        problem,
        Problem.boosting(problem.data, problem.graph, base=lambda X: X, mu=0.5, beta=1.5),
        Problem.propagation(models, problem.graph, alpha=0.6, confidence=c),
    ):
        try:
            check_fit(method, candidate)
        except MismatchError:
            continue
        return candidate
    raise ContractError(f"{method!r} refuses every problem")


class _Replay:
    """Events and dice of a run, to give to several engines."""

    def __init__(self, method: Any, problem: Problem, wakes: int, seed: int):
        rng = np.random.default_rng(seed)
        self.order = rng.integers(0, problem.n, wakes)
        self.dice = rng.random((wakes, method.dice))
        self.peers = np.full(wakes, VACANT)
        if getattr(method, "exchanges", False):
            ties = [problem.graph.neighbours(i) for i in self.order]
            self.peers[:] = [rng.choice(peers) if len(peers) else VACANT for peers in ties]
        self.events = np.column_stack([self.order, self.peers]) if np.any(self.peers != VACANT) else self.order
        self.start = problem.local() + rng.normal(size=(problem.n, problem.p))
        if np.isfinite(problem.radius):
            self.start = project(self.start, problem.radius, problem.outputs)


def _hosted(method: Any, problem: Problem, replay: _Replay, compiled: bool) -> tuple[Any, np.ndarray, bool]:
    """State, account and overflow after a replay on one host, compiled or in plain Python."""
    world = world_of(problem)
    own, tie = method.start(world, replay.start)
    mail, away = new_mail(method, world, problem.p, method.letters), host.new_away(0, 1)
    account = host.new_account(method, problem.p)
    run = host.run if compiled else host.run.python
    host.meet(method, world, own, tie, mail, away, account, run)
    moments = np.arange(len(replay.order)) / problem.n
    run(method, world, own, tie, replay.order, replay.peers, replay.dice, moments, mail, away, account, host.NO_LIMIT)
    return (own, tie), account, bool(mail.cursor[REFUSED])


def _arrays(state: Any) -> list[np.ndarray]:
    return [leaf for part in state for leaf in (_arrays(part) if isinstance(part, tuple) else [part])]


def _compiled_equals_python(method: Any) -> None:
    problem = _checkable(method)
    replay = _Replay(method, problem, 200, seed=1)
    compiled, account, _ = _hosted(method, problem, replay, compiled=True)
    plain, python_account, _ = _hosted(method, problem, replay, compiled=False)
    same = all(np.array_equal(a, b) for a, b in zip(_arrays(compiled), _arrays(plain), strict=True))
    _demand(same, "compiled code and plain Python disagree")
    _demand(np.array_equal(account, python_account), "compiled code and plain Python count letters differently")


def _announces_its_letters(method: Any) -> None:
    problem = _checkable(method)
    _, _, overflow = _hosted(method, problem, _Replay(method, problem, 100, seed=2), compiled=True)
    _demand(not overflow, f"it posts more, or longer, letters in one event than the {method.letters} it announces")


def _accuracy(method: Any) -> float:
    """How near to the optimum, relative, a method must come. One that converges sublinearly says so itself."""
    return float(getattr(method, "accuracy", 1e-8))


def _distance(problem: Problem, theta: np.ndarray) -> tuple[float, float]:
    """Relative suboptimality, and largest distance to the optimum where that is determined."""
    best, optimum = problem.solve(), problem.value(problem.solve())
    apart = np.abs(theta - best)[problem.determined]
    return (problem.value(theta) - optimum) / max(abs(optimum), 1e-300), float(apart.max(initial=0.0))


def _converge(method: Any, problem: Problem, **options: Any) -> np.ndarray:
    """Run until the optimum is reached, or patience ends."""
    theta = problem.local()
    for patience in (400, 2000, 8000):
        theta = simulate(problem, method, wakes=patience * problem.n, seed=3, **options).theta
        gap, apart = _distance(problem, theta)
        if gap <= 0.1 * _accuracy(method) and apart <= 1e-7:
            break
    return theta


def _demand_optimum(method: Any, problem: Problem, theta: np.ndarray, where: str = "") -> None:
    gap, apart = _distance(problem, theta)
    _demand(gap <= _accuracy(method), f"the objective stays {gap:.1e} (relative) above the optimum{where}")
    _demand(apart <= 1e-6, f"the models stay {apart:.1e} away from the optimum{where}")


def _reaches_the_optimum(method: Any) -> None:
    problem = _checkable(method)
    _demand_optimum(method, problem, _converge(method, problem, start="zeros"))


def _its_rounds_reach_the_optimum(method: Any) -> None:
    if not hasattr(method, "round"):
        return
    problem = _checkable(method)
    theta = problem.local()
    for patience in (400, 2000, 8000):
        theta = simulate(problem, method, rounds=patience, start="zeros").theta
        if max(_distance(problem, theta)) <= min(1e-7, _accuracy(method)):
            break
    _demand_optimum(method, problem, theta, " in synchronous rounds")


def _follows_changes(method: Any) -> None:
    """Agents leave, join and learn new things while it runs; it goes to the optimum of the problem as it is now."""
    problem = _checkable(method)
    n, p = problem.n, problem.p
    fewer = problem.on(graph=problem.graph.without([2, 5]))
    if problem.name == "propagation":
        more = problem.on(graph=problem.graph.without([0]))
    else:
        rng = np.random.default_rng(12)
        X, members = rng.normal(size=(8, p)), rng.integers(0, n, 8)
        more = problem.on(data=hard_problem().data.with_rows(X, np.sign(X[:, 0]), agents=members))
    theta = problem.local()
    for patience in (400, 2000, 8000):
        stay = patience * n
        changes = [(200 * n, fewer), (400 * n, more)]
        theta = simulate(problem, method, wakes=400 * n + stay, seed=13, changes=changes).theta
        if max(_distance(more, theta)) <= min(1e-7, _accuracy(method)):
            break
    _demand_optimum(method, more, theta, " after agents left and joined, and data changed")


def _solves_other_objectives(method: Any) -> None:
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
        _demand_optimum(method, problem, _converge(method, problem), f" on Problem.{problem.name}")


def _stays_at_the_optimum(method: Any) -> None:
    problem = _checkable(method)
    best, n = problem.solve(), problem.n
    if hasattr(method, "accuracy"):
        return  # its steps become small by and by, wherever it is
    if getattr(method, "remembers", False):  # the models alone are not the optimum: it must get there, and then stay
        apart = {"apart": lambda theta: float(np.abs(theta - best).max())}
        run = simulate(problem, method, wakes=2020 * n, start=best, seed=4, observe=apart, every=20 * n)
        _demand(run.trace["apart"].tail(2).max() <= 1e-8, "it leaves the optimum, or does not return to it")
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
    if hasattr(method, "accuracy"):
        return  # that it finds the optimum says as much
    theta = simulate(problem, method, wakes=50 * problem.n, seed=8).theta[problem.graph.isolated]
    _demand(np.allclose(theta, local, rtol=0, atol=1e-9), "an agent without ties does not keep its local model")
    theta = simulate(problem, method, wakes=2000 * problem.n, seed=8, start="zeros").theta[problem.graph.isolated]
    _demand(np.allclose(theta, local, rtol=0, atol=1e-6), "an agent without ties does not find its local model")


def _teaches_those_without_data(method: Any) -> None:
    problem = _checkable(method)
    theta = _converge(method, problem)
    silent = int(np.flatnonzero(problem.data.sizes == 0)[0])
    mean = (problem.graph.W @ theta)[silent] / problem.graph.degrees[silent]
    _demand(
        np.allclose(theta[silent], mean, rtol=0, atol=max(1e-6, 10 * _accuracy(method))),
        "an agent without data does not get its neighbours' model",
    )


def _reads_sparse_rows(method: Any) -> None:
    dense, csr = _checkable(method), _checkable(method, "sparse")
    if dense.name in ("propagation", "boosting"):
        return  # it does not look at features
    replay = _Replay(method, dense, 300, seed=9)
    one, other = (simulate(p, method, events=replay.events, start=replay.start).theta for p in (dense, csr))
    _demand(np.allclose(one, other, rtol=0, atol=1e-10), "sparse and dense features give different models")


def _survives_bad_mail(method: Any) -> None:
    problem = _checkable(method)
    bad = Conditions(latency=1.5, jitter=1.0, loss=0.2, duplication=0.2, outages=[(0, 5.0, 40.0), (2, 20.0, 60.0)])
    theta = _converge(method, problem, conditions=bad)
    _demand_optimum(method, problem, theta, " when letters are late, lost, doubled and out of order")


def _runs_on_peers(method: Any) -> None:
    """Simulator and peers exchanging encoded bytes agree bit for bit, and count alike."""
    problem = _checkable(method)
    replay = _Replay(method, problem, 200, seed=10)
    (own, _), account, _ = _hosted(method, problem, replay, compiled=True)
    world = world_of(problem)
    peers = [Peer(method, part_of(world, i, i + 1), replay.start[i]) for i in range(problem.n)]
    letters = size = 0
    queue: deque[Any] = deque()

    def deliver() -> None:
        nonlocal letters, size
        while queue:
            post = queue.popleft()
            letters, size = letters + 1, size + len(post.frame)
            queue.extend(peers[post.to].receive(post.frame))

    for peer in peers:
        queue.extend(peer.greet())
        deliver()
    for i, dice, peer in zip(replay.order, replay.dice, replay.peers, strict=True):
        queue.extend(peers[i].wake(dice, peer))
        deliver()
    _demand(
        np.array_equal(own.theta, [peer.theta for peer in peers]),
        "simulator and peers exchanging bytes disagree",
    )
    _demand(int(account[host.LETTERS]) == letters, "the simulator counts other letters than peers send")
    if method.dice == 0 or replay.events.ndim == 2:
        counted = simulate(problem, method, events=replay.events, start=replay.start)
        _demand(counted.letters == letters and counted.bytes == size, "the account differs from what peers send")


#: Every promise of a method, in the order in which they are checked.
METHOD_CHECKS: dict[str, Callable[[Any], None]] = {
    check.__name__.strip("_").replace("_", " "): check
    for check in (
        _compiled_equals_python,
        _announces_its_letters,
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
        _survives_bad_mail,
    )
}


def check_method(method: Any) -> None:
    """Check everything that a method promises; see :data:`METHOD_CHECKS`.

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
    missing = [part for part in METHOD_PARTS if not hasattr(method, part)]
    _demand(not missing, f"{method!r} has no {', '.join(missing)}")
    for promise, check in METHOD_CHECKS.items():
        try:
            check(method)
        except ContractError as broken:
            raise ContractError(f"{method!r} breaks a promise, {promise!r}: {broken}") from None
