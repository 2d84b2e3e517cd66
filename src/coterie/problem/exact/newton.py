"""Newton's method, for losses that are twice differentiable or piecewise quadratic."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ...core.batches import MAX_BATCH_ENTRIES
from ...core.losses import INTERIOR_POINT
from ...errors import ConvergenceError
from .objective import MAX_BLOCK_NUMBERS, Objective
from .systems import InexactSolver, Solver, everything, system

#: Relative accuracy of the objective at which an iteration may stop.
TOLERANCE = 1e-13
#: F below this fraction of F(0) counts as zero: the fit is exact, or the infimum 0 is not attained.
VANISHED = 1e-12
#: Largest and smallest relative residual of the linear systems: for the first steps, and for the last steps.
ROUGH, FINE = 1e-2, 1e-9


def newton(objective: Any, project: Solver, solver: Callable[[np.ndarray], InexactSolver]) -> np.ndarray:
    """Return the minimiser of F, for a loss with a gradient.

    `objective` is an :class:`Objective`, or :class:`.apart.SeparateAgents`. ``project`` removes flat directions, and
    ``solver(bend)`` solves linear systems with the Hessian. For piecewise quadratic losses, ``bend`` is an element of
    the generalised second derivative: ridges make every step a descent step, and once the right pieces are found, a
    full step is exact.

    Each step needs one pass over the rows: the gradient at the new models decides whether the step was too long, and
    is used for the next step. The closer the optimum, the more accurately the linear systems are solved.
    """
    theta = np.zeros((objective.n, objective.p))
    here = objective.sweep(theta)
    pieces = in_pieces(objective.loss)
    first, polish = objective.by_component(here.value), np.zeros(objective.n_components, int)
    accuracy = ROUGH
    for _ in range(200):
        level = objective.by_component(here.value)
        gradient = project(here.gradient)
        step = -solver(here.bend)(gradient, accuracy)
        # Newton's decrement estimates F - min F, but not on the wrong pieces; the bound from the ridges always holds
        # (:mod:`.certificate`).
        decrement = (
            objective.inner(gradient, 0.5 * gradient / objective.ridge) if pieces else -objective.inner(gradient, step)
        )
        settled = (decrement <= TOLERANCE * np.abs(level)) | (level <= VANISHED * first)
        step = objective.spread((polish < 3).astype(float), step)
        # Once the objective is exact, up to two more steps make the models exact, too.
        polish += settled
        ahead = theta + step
        if np.all((polish >= 3) | ((polish > 0) & (objective.largest(step) <= 1e-9 * objective.largest(ahead)))):
            return ahead
        at_zero = objective.inner(gradient, step)
        here = here._replace(bend=None)  # blocks may be large: free them before the next are made

        def slope(length: np.ndarray, step: np.ndarray = step, theta: np.ndarray = theta) -> np.ndarray:
            nonlocal here
            here = here._replace(bend=None)
            here = objective.sweep(theta + objective.spread(length, step))
            return objective.inner(here.gradient, step)

        theta = theta + objective.spread(step_lengths(at_zero, slope, settled), step)
        # Exact steps square the distance to the optimum; residuals smaller than that square gain nothing.
        with np.errstate(invalid="ignore", divide="ignore"):
            left = np.sqrt(np.abs(decrement / level))[polish == 0]
        accuracy = float(np.clip(np.nanmin(left, initial=ROUGH), FINE, ROUGH)) if left.size else FINE
    worst = int(np.argmax(np.where(polish > 0, -np.inf, decrement)))
    raise ConvergenceError(
        f"Newton's method did not converge in 200 steps around agent number {objective.agent_of(worst)}: do weights or "
        "features differ by very many orders of magnitude?"
    )


def in_pieces(loss: Any) -> bool:
    """Whether a loss is piecewise quadratic."""
    return bool(loss.exact_solver == INTERIOR_POINT)


def newton_connected(objective: Objective) -> np.ndarray:
    """Return the minimiser of F for agents with edges, for a loss with a gradient."""
    project = flat_directions(objective)
    return newton(objective, project, lambda bend: system(objective, bend, project))


def step_lengths(at_zero: np.ndarray, slope: Callable[[np.ndarray], np.ndarray], settled: np.ndarray) -> np.ndarray:
    """Return step lengths in (0, 1], one for each component: 1, or near a zero of the directional derivative.

    ``slope(lengths)`` is the directional derivative; the last call has the returned lengths as its argument.
    """
    count = at_zero.shape[0]
    low, high, length = np.zeros(count), np.ones(count), np.ones(count)
    at_low = at_zero
    # Settled components only have rounding errors left: any step length is accepted.
    steep = np.where((at_low < 0) & ~settled, -at_low, np.inf)
    now = slope(length)
    at_high = now
    for attempt in range(60):
        open_ = (now > 0.3 * steep) | ((now < -0.3 * steep) & (length < 1.0))
        if not np.any(open_):
            break
        with np.errstate(invalid="ignore", divide="ignore"):
            secant = low + (high - low) * at_low / (at_low - at_high)
        middle = 0.5 * (low + high)
        useful = (attempt % 2 == 0) & (low < secant) & (secant < high)
        length = np.where(open_, np.where(useful, secant, middle), length)
        now = np.where(open_, slope(length), now)
        low, at_low = np.where(now <= 0, length, low), np.where(now <= 0, now, at_low)
        high, at_high = np.where(now > 0, length, high), np.where(now > 0, now, at_high)
    return length


def flat_directions(objective: Objective) -> Solver:
    """Return the projection that removes flat directions.

    A flat direction moves all models of a component along a direction in which all its rows are zero. Without the
    projection, rounding errors would be amplified there; with it, Newton's method, started at zero, ends at the
    minimiser of least norm.
    """
    spread, count, p = objective.graph.components, objective.n_components, objective.p
    free = objective.by_component(objective.ridge.max(axis=1)) == 0
    if not free.any() or p > 1000 or count * p * p > MAX_BLOCK_NUMBERS:
        return everything
    flat = unseen(objective.grams(), free)
    if flat is None:
        return everything
    members = np.bincount(spread, minlength=count)

    def project(vector: np.ndarray) -> np.ndarray:
        mean = np.stack([objective.by_component(column) for column in vector.T], axis=1) / members[:, None]
        return vector - np.einsum("ckl,cl->ck", flat, mean)[spread]

    return project


def unseen(grams: np.ndarray, free: np.ndarray) -> np.ndarray | None:
    """Return projections onto the null spaces of the Gram matrices marked `free`, (c, p, p); None if all are {0}.

    The result does not depend on the scales of the features.
    """
    out, which = None, np.flatnonzero(free)
    at_once = max(1, 4 * MAX_BATCH_ENTRIES // grams.shape[1] ** 2)
    for some in np.split(which, range(at_once, which.shape[0], at_once)):
        found = _null_spaces(grams[some])
        if found is not None:
            out = np.zeros_like(grams) if out is None else out
            out[some] = found
    return out


def _null_spaces(grams: np.ndarray) -> np.ndarray | None:
    p = grams.shape[1]
    scale = np.sqrt(np.einsum("ckk->ck", grams))
    scale[scale == 0.0] = 1.0
    unit = grams / (scale[:, :, None] * scale[:, None, :])
    try:  # the inverse of a well-conditioned matrix is not large, and faster to compute than eigenvalues
        sure = np.abs(np.linalg.inv(unit + 1e-14 * np.eye(p))).max(axis=(1, 2)) < 1e6
    except np.linalg.LinAlgError:
        sure = np.zeros(grams.shape[0], bool)
    if sure.all():
        return None
    sizes, directions = np.linalg.eigh(unit[~sure])
    dark = sizes <= 1e-13 * p  # the first ones
    if not dark.any():
        return None
    basis = np.linalg.qr(directions / scale[~sure][:, :, None])[0] * dark[:, None, :]
    out = np.zeros_like(grams)
    out[~sure] = np.matmul(basis, basis.transpose(0, 2, 1))
    return out
