"""Newton's method, for losses that are twice differentiable."""

from __future__ import annotations

import numpy as np

from ...errors import ConvergenceError
from .objective import Objective
from .systems import BLOCKS, Solver, everything, system

#: Relative accuracy of the objective at which an iteration may stop.
TOLERANCE = 1e-13
#: Where F has fallen to this part of F(0), it has vanished: the fit is exact, or the infimum 0 is not attained.
VANISHED = 1e-12


def newton(objective: Objective) -> np.ndarray:
    """Minimise a twice differentiable F."""
    theta = np.zeros((objective.start.shape[0] - 1, objective.p))
    spread, count = objective.graph.components, objective.graph.n_components
    project = flat_directions(objective)
    margins = objective.margins(theta)
    first, polish = None, np.zeros(count, int)
    for _ in range(200):
        value, slope, curvature = objective.examples(margins)
        level = objective.by_component(objective.quadratic(theta) + objective.by_agent(objective.scale * value))
        first = level if first is None else first
        pull = objective.scatter(objective.scale * slope, theta.shape)
        gradient = project(objective.quadratic_gradient(theta) + pull)
        step = -system(objective, objective.scale * curvature, tight=bool(polish.any()), project=project)(gradient)
        decrement = -objective.by_component((gradient * step).sum(axis=1))
        settled = (decrement <= TOLERANCE * np.abs(level)) | (level <= VANISHED * first)
        length = np.where(polish < 3, _line_search(objective, theta, step, margins, settled), 0.0)
        theta = theta + objective.spread(length, step)
        margins = objective.margins(theta)
        # Once the objective is exact, a step or two more make the models exact, too.
        polish += settled
        moved, size = _largest(np.abs(step), spread, count), _largest(np.abs(theta), spread, count)
        if np.all((polish >= 3) | ((polish > 0) & (moved <= 1e-9 * size))):
            return theta
    worst = int(np.argmax(np.where(polish > 0, -np.inf, decrement)))
    agent = int(np.flatnonzero(spread == worst)[0])
    raise ConvergenceError(
        f"Newton's method did not converge in 200 steps around agent number {agent}: do weights or features differ by "
        "very many orders of magnitude?"
    )


def _line_search(
    objective: Objective, theta: np.ndarray, step: np.ndarray, margins: np.ndarray, settled: np.ndarray
) -> np.ndarray:
    """Step lengths in (0, 1], one for each component: 1, or near a zero of the directional derivative."""
    spread, count = objective.graph.components, objective.graph.n_components
    along = objective.margins(step)
    start = (objective.quadratic_gradient(theta) * step).sum(axis=1)
    bend = (objective.quadratic_gradient(step) * step).sum(axis=1)

    def slope(length: np.ndarray) -> np.ndarray:
        moved = margins + length[spread][objective.owner] * along
        losses = objective.by_agent(objective.scale * objective.examples(moved)[1] * along)
        return objective.by_component(start + length[spread] * bend + losses)

    low, high, length = np.zeros(count), np.ones(count), np.ones(count)
    at_low = slope(low)
    steep = np.where((at_low < 0) & ~settled, -at_low, np.inf)  # settled: only rounding is left, and any step will do
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
    """Remove from a vector what F cannot see: moving a whole component along a direction that none of its rows has.

    Without it, rounding would be amplified there; with it, Newton from zero ends at the minimiser of least norm.
    """
    spread, count, p = objective.graph.components, objective.graph.n_components, objective.p
    free = objective.by_component(objective.ridge.max(axis=1)) == 0
    if not free.any() or p > 1000 or count * p * p > BLOCKS:
        return everything
    grams = objective.grams()
    # A Gram matrix whose diagonal outweighs the rest of every row sees all directions: no need to look for others.
    rest = np.abs(grams).sum(axis=2) - np.einsum("ckk->ck", grams)
    free &= ~np.all(rest < 0.5 * np.einsum("ckk->ck", grams), axis=1)
    flat = [_null_space(gram) if open_ else np.zeros((p, 0)) for gram, open_ in zip(grams, free, strict=True)]
    if not any(directions.size for directions in flat):
        return everything
    projector = np.stack([directions @ directions.T for directions in flat])
    members = np.bincount(spread, minlength=count)

    def project(vector: np.ndarray) -> np.ndarray:
        mean = np.stack([objective.by_component(column) for column in vector.T], axis=1) / members[:, None]
        return vector - np.einsum("ckl,cl->ck", projector, mean)[spread]

    return project


def _null_space(gram: np.ndarray) -> np.ndarray:
    """An orthonormal basis of the directions that a Gram matrix does not see, whatever the scales of the features."""
    scale = np.sqrt(np.diagonal(gram))
    scale[scale == 0.0] = 1.0
    sizes, directions = np.linalg.eigh(gram / (scale[:, None] * scale))
    unseen = directions[:, sizes <= 1e-13 * len(gram)] / scale[:, None]
    return np.linalg.qr(unseen)[0] if unseen.size else unseen


def _largest(values: np.ndarray, spread: np.ndarray, count: int) -> np.ndarray:
    """The largest number of each component."""
    out = np.zeros(count)
    np.maximum.at(out, spread, values.max(axis=1, initial=0.0))
    return out
