"""A private warm start: models learned alone, released once, and smoothed over the graph; CD, Appendix B.

An agent's data meet the network only in the model it learns alone,

    theta_i = argmin f_i,    f_i(theta) = mean loss of its m_i rows + r_i |theta|^2 ,

so it is enough to release that one in private. Model propagation (14) makes of all releases what it likes: it is
post-processing. Two ways to release a model are those of Chaudhuri, Monteleoni and Sarwate (2011), "Differentially
Private Empirical Risk Minimization", of which CD speaks.

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
#: What makes the noise drawn here another than that drawn elsewhere from the same seed.
WARM = 0x7761726D
#: What exact solvers promise of a loss with a kink: so far above the minimum at most, as a part of f_i(0).
GAP = 1.001e-7
#: How far a gradient may be from zero in objective perturbation, as a part of what one row can change.
NEAR_ZERO = 1e-6


@dataclass(frozen=True)
class Claim:
    """What a release claims: it is (epsilon, delta)-differentially private.

    Examples
    --------
    >>> Claim(1.0, 0.0)
    Claim(epsilon=1.0, delta=0.0)
    """

    epsilon: float
    delta: float


@dataclass(frozen=True, eq=False, repr=False)
class WarmStart:
    """Models to start from, and what they have cost: pass it as ``start`` to :func:`coterie.simulate`.

    Attributes
    ----------
    theta : (n, p) ndarray
        The released models, smoothed over the graph.
    released : (n, p) ndarray
        What each agent has released; zeros for one without rows.
    plans : tuple
        One thing with ``epsilon`` and ``delta``, the budget of each agent.
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
    """Release a private version of the model that each agent learns alone, and smooth them over the graph.

    Two datasets of an agent are neighbours if one row differs: how many there are is public, and so are the ridge, the
    confidences and the graph. The budget of a warm start adds up with that of what is started from it; the simulator
    does that.

    * "output": add Gaussian noise to the model. Replacing one row moves it by ``lipschitz row_norm / (m_i r_i)`` at
      most, so with ridge="1/m", which is r_i = 1/m_i, more rows do not help: at a small epsilon, what is released is
      noise. A ridge that does not shrink with m_i is better here. The noise is discrete, on a grid that the model is
      rounded to, and wide enough for the rounding and for the solver's tolerance.
    * "objective": add a random linear term to f_i, and more ridge where the budget needs it, and release the minimiser.
      It claims (epsilon, 0), and needs a smooth loss. For simulation only, not for deployment: its proof assumes an
      exact minimiser and noise of real numbers, and here both are floating point.

    In both cases the noise is drawn from the seed, and whoever knows the seed can take it away.

    Parameters
    ----------
    problem : Problem
        With a loss of bounded slope, such as logistic or hinge, and a ridge > 0 for every agent with rows.
    epsilon, delta : float
        The budget of each agent, > 0, and in (0, 1). Objective perturbation does without delta.
    kind : "output" or "objective"
    row_norm : float
        Rows are scaled down to this L2 norm where they are longer, intercept included; > 0. Choose it without looking
        at the data.
    alpha : float
        Of :meth:`coterie.Problem.propagation`, in (0, 1). Confidences are those of the problem; where it takes sums of
        losses, which carry them, ``m_i / max_j m_j``; and 0 for an agent without rows.
    seed : int

    Returns
    -------
    WarmStart

    Raises
    ------
    MismatchError
        If the loss could change too much with one row.
    ParameterError
        If a number is out of its range, or an agent with rows has no ridge.

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
    generator = seeded(seed, WARM)
    _check_problem(problem, kind)
    clipped = problem.on(_shortened(problem.data, row_norm))
    if isinstance(plan, Plan):
        released = _noisy_models(clipped, float(plan.noise[0]), row_norm, generator)
    else:
        released = _models_of_noisy_objectives(clipped, plan.epsilon, row_norm, generator)
    smoothed = Problem.propagation(released, problem.graph, alpha, _confidence(problem))
    return WarmStart(frozen(smoothed.solve()), frozen(released), (plan,), kind)


def _check_problem(problem: Problem, kind: str) -> None:
    """Refuse what a claim would not hold for."""
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
    """The same rows, those of an L2 norm above ``row_norm`` scaled down to it."""
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
    """c_i, and 0 for an agent that has released nothing."""
    sizes, scale = problem.data.sizes, np.asarray(problem._recipe["loss_weight"])
    c = np.divide(problem.loss_weight, scale, out=np.zeros(problem.n), where=scale > 0)
    if not problem.mean:
        c *= sizes / max(1, sizes.max())
    return np.where(sizes > 0, c, 0.0)


def _sensitivity(problem: Problem, row_norm: float) -> np.ndarray:
    """How far replacing one row, of norm ``row_norm`` at most, moves ``argmin f_i``: f_i is 2 r_i-strongly convex.

    Zero for an agent without rows.
    """
    # The gradients of f_i with one row and with another are 2 share lipschitz row_norm apart, at most.
    r = np.where(problem.data.sizes > 0, problem.ridge, np.inf)
    return 2.0 * problem.row_weight * problem.loss.lipschitz * row_norm / (2.0 * r)


def _noisy_models(problem: Problem, noise: float, row_norm: float, generator: np.random.Generator) -> np.ndarray:
    """Output perturbation: models on a grid, and noise of so many times their sensitivity, in whole grid steps."""
    live, unit = problem.data.sizes > 0, _sensitivity(problem, row_norm) / GRID
    models, released = problem.local(), np.zeros((problem.n, problem.p))
    slack = _slack(problem, models, unit)
    dice = generator.random((problem.n, KEY))
    for k in np.flatnonzero(live):
        # Rounding moves each of two models by half a step in every coordinate, at most.
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
    """Grid steps that two models may be farther apart, because neither is exact: public numbers, and checked."""
    live, r = unit > 0, np.where(unit > 0, problem.ridge, 1.0)
    if not np.isfinite(problem.loss.smoothness):
        # There is no gradient to look at. f_i(theta) - min f_i >= r_i |theta - argmin f_i|^2, and the solver gives up
        # where it cannot bound the left side: by GAP f_i(0), which is the same for all rows, or below this.
        start = problem.row_weight * problem.data.sizes * max(problem.loss.value(0.0, label) for label in (-1.0, 1.0))
        away = np.sqrt(GAP * start / r)
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
    """Objective perturbation: ``argmin f_i(theta) + b_i . theta / m_i`` and perhaps more ridge.

    The algorithm is for rows and slopes of at most 1. It gets them with ``x / row_norm`` for a row, ``row_norm theta``
    for a model and ``l / lipschitz`` for a loss; all of f_i is divided by ``share m_i lipschitz``, where share is
    1 / m_i for a mean of losses and 1 for a sum.
    """
    live, n, p = problem.data.sizes > 0, problem.n, problem.p
    steep = problem.row_weight * problem.loss.lipschitz  # what a row pulls with, if its norm is 1
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
    bad = np.flatnonzero(live & ~(np.linalg.norm(gradient, axis=1) <= NEAR_ZERO * steep * row_norm))
    if bad.size:
        raise ConvergenceError(
            f"the model of agent {problem.members[bad[0]]!r} is not a minimiser: do features differ by very many "
            "orders of magnitude?"
        )
    theta[~live] = 0.0
    return theta
