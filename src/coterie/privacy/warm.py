"""A private warm start: local models, released once, and smoothed over the graph; CD, Appendix B.

Messages depend on an agent's data only through its local model,

    theta_i = argmin f_i,    f_i(theta) = mean loss of its m_i rows + r_i |theta|^2 ,

so it is enough to release this model privately. Model propagation (14) of the released models is post-processing. The
two mechanisms that release a model are those of Chaudhuri, Monteleoni and Sarwate (2011), "Differentially Private
Empirical Risk Minimization", which CD cites.

=============================  =====================================================
paper                          here
=============================  =====================================================
Theta_i^loc, private           ``WarmStart.released``
solution of (14)               ``WarmStart.theta``
lambda_i                       ``problem.ridge``
=============================  =====================================================
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import sparse

from .. import _checks
from ..accounting.accountants import target_epsilon
from ..accounting.plans import Plan, make_plan
from ..core.linear import frozen
from ..core.losses import SIGNS
from ..core.private.final import solve_all
from ..core.private.noise import KEY, LARGEST, sample
from ..core.private.terms import GRID, MIN_WIDTH
from ..core.proximal import prepare, scratch
from ..data import AgentData
from ..engines.arrays import arrays_of
from ..errors import ConvergenceError, MismatchError, ParameterError
from ..graphs import empty
from ..problem import Problem
from .local import seeded

__all__ = ["Claim", "WarmStart", "warm_start"]

KINDS = ("output", "objective")
#: Spawn key that separates this noise from other noise drawn from the same seed.
WARM_SPAWN_KEY = 0x7761726D
#: Largest distance to the minimum that exact solvers guarantee for a loss with a kink, relative to f_i(0).
MAX_RELATIVE_GAP = 1.001e-7
#: Largest norm of a gradient that counts as zero in objective perturbation, relative to the gradient of one row.
MAX_RELATIVE_GRADIENT = 1e-6


@dataclass(frozen=True)
class Claim:
    """The guarantee of a release, (epsilon, delta)-differential privacy.

    Examples
    --------
    >>> Claim(1.0, 0.0)
    Claim(epsilon=1.0, delta=0.0)
    """

    epsilon: float
    delta: float


@dataclass(frozen=True, eq=False, repr=False)
class WarmStart:
    """Models to start from, and their privacy budget; the argument ``start`` of :func:`coterie.simulate`.

    Attributes
    ----------
    theta : (n, p) ndarray
        The released models, smoothed over the graph.
    released : (n, p) ndarray
        The released model of each agent; zeros for an agent without rows.
    plans : tuple
        One object with ``epsilon`` and ``delta``, the budget of each agent.
    kind : "output" or "objective"
    """

    theta: np.ndarray
    released: np.ndarray
    plans: tuple[Plan | Claim, ...]
    kind: str

    def __repr__(self) -> str:
        n, p = self.theta.shape
        [plan] = self.plans
        return f"WarmStart({self.kind}, epsilon={plan.epsilon:g}, delta={plan.delta:g}, agents={n}, features={p})"


def warm_start(
    problem: Problem,
    epsilon: float,
    delta: float = 1e-5,
    kind: str = "output",
    row_norm: float = 1.0,
    alpha: float = 0.99,
    seed: Any = 0,
) -> WarmStart:
    """Release a private version of the local model of each agent, and smooth these models over the graph.

    Two datasets of an agent are neighbouring if one row differs; the number of rows, the ridge, the confidences and the
    graph are public. The budgets of a warm start and of the run that starts from it add up, which the simulator
    accounts for.

    * "output": add Gaussian noise to the model. Replacing one row moves the model by at most
      ``lipschitz row_norm / (m_i r_i)``, so with ridge="1/m", which is r_i = 1/m_i, more rows do not help, and at a
      small epsilon the released model is mostly noise. Use a ridge that does not decrease with m_i. The noise is
      discrete, on a grid to which the model is rounded, and its width accounts for rounding and the solver's tolerance.
    * "objective": add a random linear term to f_i, and more ridge if the budget needs it, and release the minimiser.
      The guarantee is (epsilon, 0), and the loss must be smooth. For simulation only, not for deployment: the proof
      assumes an exact minimiser and real-valued noise, whereas both are floating-point numbers here.

    In both cases the noise is drawn from the seed: anyone who knows the seed can remove the noise.

    Parameters
    ----------
    problem : Problem
        A problem with a loss of bounded slope, such as logistic or hinge, and a ridge > 0 for every agent with rows.
    epsilon, delta : float
        Budget of each agent: epsilon > 0, delta in (0, 1). Objective perturbation ignores delta.
    kind : "output" or "objective"
        The mechanism, see above.
    row_norm : float
        L2 norm to which longer rows are scaled down, intercept included; > 0. Choose it without looking at the data.
    alpha : float
        alpha of :meth:`coterie.Problem.propagation`, in (0, 1). Confidences are those of the problem; for sums of
        losses they are multiplied by ``m_i / max_j m_j``. An agent without rows has confidence 0.
    seed : int

    Returns
    -------
    WarmStart

    Raises
    ------
    MismatchError
        If the loss does not have the properties that the mechanism needs.
    ParameterError
        If a number is invalid, or an agent with rows has no ridge.

    Examples
    --------
    >>> import coterie as ct
    >>> task = ct.datasets.linear_classification(n=30, p=5, seed=0)
    >>> problem = ct.Problem.personalized(task.train, task.graph, ridge=0.1)
    >>> warm = warm_start(problem, epsilon=1.0)
    >>> warm
    WarmStart(output, epsilon=1, delta=1e-05, agents=30, features=5)
    >>> warm_start(problem, epsilon=1.0, kind="objective").plans
    (Claim(epsilon=1.0, delta=0.0),)
    """
    if not isinstance(problem, Problem):
        raise ParameterError(f"a warm start needs a Problem; found {type(problem).__name__}")
    _checks.choice("kind", kind, KINDS)
    row_norm, alpha = _checks.positive("row_norm", row_norm), _checks.fraction("alpha", alpha)
    plan: Plan | Claim
    if kind == "output":
        plan = make_plan(epsilon, delta, 1)
    else:
        _checks.within("delta", delta, 0, 1, "[)")
        plan = Claim(target_epsilon(epsilon), 0.0)
    generator = seeded(seed, WARM_SPAWN_KEY)
    _check_problem(problem, kind)
    clipped = problem.on(_shortened(problem.data, row_norm))
    if isinstance(plan, Plan):
        released = _noisy_models(clipped, float(plan.noise[0]), row_norm, generator)
    else:
        released = _models_of_noisy_objectives(clipped, plan.epsilon, row_norm, generator)
    smoothed = Problem.propagation(released, problem.graph, alpha, _confidence(problem))
    return WarmStart(frozen(smoothed.solve()), frozen(released), (plan,), kind)


def _check_problem(problem: Problem, kind: str) -> None:
    """Refuse problems for which the guarantee would not hold."""
    loss = problem.loss
    if loss.unlabelled:
        raise MismatchError(
            f"a warm start is for models learned from rows, and Problem.{problem.name} has the loss {loss!r}: pass the "
            "problem with the data, such as ct.Problem.personalized(data, graph)"
        )
    if np.isfinite(problem.radius):
        raise MismatchError(f"there is no private warm start of Problem.{problem.name}, whose models stay in a ball")
    if not np.isfinite(loss.lipschitz):
        raise MismatchError(
            f"{loss!r} has no bounded slope, so that one row could move a model anywhere: use Logistic, Hinge, "
            "SmoothHinge or Huber"
        )
    kink = not np.isfinite(loss.smoothness)
    if kink and (loss.dual_curvature is None or loss.labels != SIGNS):
        raise MismatchError(f"{loss!r} has a kink, and no solver bounds how far from exact a model is: use ct.Hinge()")
    if kink and kind == "objective":
        raise MismatchError(f'kind="objective" needs a smooth loss, and {loss!r} has a kink: use kind="output"')
    bare = np.flatnonzero((problem.data.sizes > 0) & (problem.ridge == 0))
    if bare.size:
        raise ParameterError(
            f"the ridge of agent {problem.members[bare[0]]!r} is 0, so that one row could move its model anywhere: it "
            "must be > 0"
        )


def _shortened(data: AgentData, row_norm: float) -> AgentData:
    """Scale rows with an L2 norm above ``row_norm`` down to ``row_norm``."""
    X = sparse.csr_array(data.X, dtype=np.float64)
    owner = np.repeat(np.arange(data.n_rows), np.diff(X.indptr))
    largest, square = np.zeros(data.n_rows), np.zeros(data.n_rows)
    np.maximum.at(largest, owner, np.abs(X.data))
    unit = np.where(largest > 0, largest, 1.0)
    np.add.at(square, owner, (X.data / unit[owner]) ** 2)  # divided first, so that no square overflows or vanishes
    with np.errstate(over="ignore"):
        long = largest * np.sqrt(square) > row_norm
    if not long.any():
        return data
    at = long[owner]
    values = X.data.copy()
    values[at] = values[at] / unit[owner][at] * (row_norm / np.sqrt(square))[owner][at]
    short = sparse.csr_array((values, X.indices, X.indptr), shape=X.shape)
    return data.with_features(short if data.is_sparse else short.toarray())


def _confidence(problem: Problem) -> np.ndarray:
    """Return c_i of each agent, and 0 for an agent without a released model."""
    sizes, scale = problem.data.sizes, np.asarray(problem._recipe["loss_weight"])
    c = np.divide(problem.loss_weight, scale, out=np.zeros(problem.n), where=scale > 0)
    if not problem.mean:
        c *= sizes / max(1, sizes.max())
    return np.where(sizes > 0, c, 0.0)


def _sensitivity(problem: Problem, row_norm: float) -> np.ndarray:
    """Return the largest distance that replacing one row, of norm at most ``row_norm``, moves ``argmin f_i``.

    f_i is 2 r_i-strongly convex. The result is zero for an agent without rows.
    """
    # The gradients of f_i for two neighbouring datasets differ by at most 2 row_weight lipschitz row_norm.
    r = np.where(problem.data.sizes > 0, problem.ridge, np.inf)
    return 2.0 * problem.row_weight * problem.loss.lipschitz * row_norm / (2.0 * r)


def _noisy_models(problem: Problem, noise: float, row_norm: float, generator: np.random.Generator) -> np.ndarray:
    """Release models by output perturbation: round to a grid, and add noise of `noise` times the sensitivity."""
    live, unit = problem.data.sizes > 0, _sensitivity(problem, row_norm) / GRID
    models, released = problem.local(), np.zeros((problem.n, problem.p))
    slack = _slack(problem, models, unit)
    dice = generator.random((problem.n, KEY))
    for k in np.flatnonzero(live):
        # Rounding moves each of two models by at most half a step in every coordinate.
        width = noise * (GRID + math.isqrt(problem.p - 1) + 1 + slack[k])
        if not MIN_WIDTH <= width <= LARGEST:
            raise ParameterError(
                f"this budget needs noise of {noise:.3g} times the sensitivity for agent {problem.members[k]!r}: the "
                f"mechanism is made for {MIN_WIDTH / GRID:.1g} to {LARGEST / GRID:.1g}; change epsilon or delta"
            )
        steps = np.rint(models[k] / unit[k]).astype(np.int64)
        released[k] = unit[k] * (steps + sample("gaussian", math.ceil(width), problem.p, dice=dice[k]))
    return released


def _slack(problem: Problem, models: np.ndarray, unit: np.ndarray) -> np.ndarray:
    """Return a public bound, in grid steps, of the errors of two inexact models, and check that it holds."""
    live, r = unit > 0, np.where(unit > 0, problem.ridge, 1.0)
    if not np.isfinite(problem.loss.smoothness):
        # There is no gradient to check. f_i(theta) - min f_i >= r_i |theta - argmin f_i|^2, and the solver raises an
        # error unless the left side is at most MAX_RELATIVE_GAP f_i(0), a bound that does not depend on the rows.
        start = problem.row_weight * problem.data.sizes * max(problem.loss.value(0.0, label) for label in (-1.0, 1.0))
        away = np.sqrt(MAX_RELATIVE_GAP * start / r)
        return np.where(live, np.ceil(2.0 * away / np.where(live, unit, 1.0)), 0.0)
    gradient = problem._objective(np.ones(problem.n), empty(problem.n)).gradient(models)
    away = np.linalg.norm(gradient, axis=1) / (2.0 * r)
    bad = np.flatnonzero(live & ~(away <= 0.5 * unit))
    if bad.size:
        raise ConvergenceError(
            f"the model of agent {problem.members[bad[0]]!r} may be {away[bad[0]]:.1e} from exact, and "
            f"{0.5 * unit[bad[0]]:.1e} is what its noise covers: do features differ by very many orders of magnitude?"
        )
    return np.where(live, 1.0, 0.0)


def _more_ridge(epsilon: float, q: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Algorithm 2 of Chaudhuri, Monteleoni and Sarwate (2011): Delta / Lambda and eps', from q = c / (m Lambda)."""
    left = epsilon - 2.0 * np.log1p(q)  # eps' = eps - log(1 + 2 c / (m Lambda) + c^2 / (m^2 Lambda^2))
    enough = left > 0
    return np.where(enough, 0.0, q / np.expm1(0.25 * epsilon) - 1.0), np.where(enough, left, 0.5 * epsilon)


def _models_of_noisy_objectives(
    problem: Problem, epsilon: float, row_norm: float, generator: np.random.Generator
) -> np.ndarray:
    """Release models by objective perturbation: ``argmin f_i(theta) + b_i . theta / m_i``, perhaps with more ridge.

    The algorithm is stated for rows and slopes of at most 1. Its row is ``x / row_norm`` here, its model is
    ``row_norm theta``, and its loss is ``l / lipschitz``; f_i is divided by ``share m_i lipschitz``, where share is
    1 / m_i for a mean of losses and 1 for a sum.
    """
    live, n, p = problem.data.sizes > 0, problem.n, problem.p
    steep = problem.row_weight * problem.loss.lipschitz  # largest gradient of a row of norm 1
    # c / (m Lambda), with c = smoothness / lipschitz and Lambda = 2 r / (share m lipschitz row_norm^2).
    r = np.where(live, problem.ridge, np.inf)
    more, left = _more_ridge(epsilon, problem.row_weight * problem.loss.smoothness * row_norm**2 / (2.0 * r))
    # b has a density proportional to exp(-eps' |b| / 2).
    direction = generator.standard_normal((n, p))
    direction /= np.linalg.norm(direction, axis=1, keepdims=True)
    b = generator.gamma(p, 2.0 / left)[:, None] * direction
    ridge = np.where(live, 2.0 * problem.ridge * (1.0 + more), 1.0)
    pull = np.where(live, steep * row_norm, 0.0)[:, None] * b
    # ridge/2 |theta|^2 + pull . theta = ridge/2 |theta + pull / ridge|^2 and a constant: a proximal step.
    arrays = arrays_of(problem)._replace(ridge=frozen(np.zeros(n)))
    theta = np.zeros((n, p))
    solve_all(arrays, prepare(arrays, p), ridge, -pull / ridge[:, None], theta, np.zeros(scratch(arrays, p)))
    gradient = problem._objective(np.ones(n), empty(n)).gradient(theta)
    gradient += (ridge - 2.0 * problem.ridge)[:, None] * theta + pull
    bad = np.flatnonzero(live & ~(np.linalg.norm(gradient, axis=1) <= MAX_RELATIVE_GRADIENT * steep * row_norm))
    if bad.size:
        raise ConvergenceError(
            f"the model of agent {problem.members[bad[0]]!r} is not a minimiser: do features differ by very many "
            "orders of magnitude?"
        )
    theta[~live] = 0.0
    return theta
