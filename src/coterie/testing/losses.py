"""Contract checks for losses."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ..core import losses
from ..core.exact import loss_table_kernel, pool_table_kernel
from .shared import demand


def _each(function: Any, *columns: Any) -> np.ndarray:
    """Return the values of a part of a loss at every margin, with its label or other arguments."""
    return np.array([function(*row) for row in zip(*columns, strict=True)])


def check_loss(loss: Any, seed: int = 0) -> None:
    """Check the contract of a loss.

    Compiled code and plain Python agree bit for bit; the derivative is a subgradient everywhere (which
    also proves convexity); its curvature integrates to the derivative; ``prox`` is optimal; ``conjugate`` satisfies
    Fenchel-Young, with equality at the derivative; the claimed bounds, domain and dual curvature hold.

    Parameters
    ----------
    loss : rule
    seed : int
        Seed of the margins and labels.

    Raises
    ------
    ContractError

    Examples
    --------
    >>> import coterie as ct
    >>> from coterie.testing import check_loss
    >>> check_loss(ct.Huber(0.5))
    """
    demand(getattr(loss, "is_loss", False), f"{loss!r} is not a loss: decorate its class with @ct.loss")
    if loss.pooled:
        _check_pooled_loss(loss, seed)
        return
    rng = np.random.default_rng(seed)
    z = np.concatenate([rng.normal(scale=2.0, size=200), np.linspace(-3.0, 3.0, 61), [-40.0, 40.0, 700.0, -700.0]])
    labels = rng.normal(size=z.size)
    y = np.sign(labels) if loss.labels == losses.SIGNS else np.round(2.0 * labels, 1)
    plain = np.zeros((5, z.size))
    loss_table_kernel.python(loss, z, y, 0.7, plain)
    value, slope, bends, _, conjugate = plain
    kept = _demands(loss)

    w = rng.normal(scale=3.0, size=(z.size, 40))
    values = np.array([[loss.value(b, label) for b in row] for row, label in zip(w, y, strict=True)])

    def supports(slope: np.ndarray, at: np.ndarray, value: np.ndarray, room: float) -> np.ndarray:
        """Return whether lines with these slopes, through these points, are nowhere above the loss."""
        rise = slope[:, None] * (w - at[:, None])
        size = 1.0 + np.abs(value)[:, None] + np.abs(values) + np.abs(rise)
        return np.asarray(value[:, None] + rise - values <= room * size)

    kept(supports(slope, z, value, 1e-12), "the derivative is not a subgradient, or the value is not convex")
    kept(value >= 0, "a loss is negative")
    for shift in (-1e-6, 1e-6):
        beside, steps = _each(loss.value, z + shift, y), shift * _each(loss.derivative, z + shift, y)
        near = beside - value <= steps + 1e-9 * (1.0 + np.abs(value))
        kept(near, "the derivative disagrees with finite differences of the value")
    for step in (0.01, 0.7, 30.0):
        v = _each(loss.prox, z, np.full(z.size, step), y)
        force = (z - v) / step  # must be a subgradient of the loss at v
        kept(supports(force, v, _each(loss.value, v, y), 1e-10), f"prox is not a minimiser at step {step:g}")
    tight = np.abs(value + conjugate - slope * z) <= 1e-9 * (1.0 + np.abs(slope * z))
    kept(tight, "Fenchel-Young is not tight at the derivative")
    duals = rng.choice(slope, size=z.size)
    bound = value + _each(loss.conjugate, duals, y)
    kept(bound >= duals * z - 1e-9 * (1.0 + np.abs(duals * z)), "Fenchel-Young is violated")
    kept(np.abs(slope) <= loss.lipschitz * (1 + 1e-12), "a slope exceeds the claimed Lipschitz bound")
    for label in np.unique(y)[:10]:
        lo, hi = loss.domain(label)
        kept(max(abs(lo), abs(hi)) <= loss.lipschitz, "the domain exceeds the Lipschitz bound")
        outside = [u for u in (lo - 0.01, hi + 0.01) if np.isfinite(u)]
        kept(np.isinf([loss.conjugate(u, label) for u in outside]), "the conjugate is finite outside the domain")
        inside = np.linspace(max(lo, -5.0), min(hi, 5.0), 21)[1:-1]
        conjugates = np.array([loss.conjugate(u, label) for u in inside])
        kept(np.isfinite(conjugates), "the conjugate is infinite in its domain")
        if loss.dual_curvature is not None:
            quadratic = inside * label + 0.5 * loss.dual_curvature * inside**2
            kept(np.allclose(conjugates, quadratic), "the conjugate is not u y + kappa u^2 / 2")
    if np.isfinite(loss.smoothness):
        kept(bends <= loss.smoothness * (1 + 1e-12), "a curvature exceeds the claimed smoothness")
        grid = np.linspace(-5.0, 5.0, 20_001)
        for label in np.unique(y)[:5]:
            bend, slopes = (np.array([part(a, label) for a in grid]) for part in (loss.curvature, loss.derivative))
            rise = np.concatenate([[0.0], np.cumsum(0.5 * (bend[1:] + bend[:-1]) * np.diff(grid))])
            near = np.abs(slopes - slopes[0] - rise) <= 2e-3 * loss.smoothness
            kept(near, "the curvature does not integrate to the derivative")

    _check_declarations(loss, z, y, value, bends)
    compiled = np.zeros_like(plain)
    loss_table_kernel(loss, z, y, 0.7, compiled)
    for part, ours, theirs in zip(losses.LOSS_PARTS[:5], compiled, plain, strict=True):
        apart = np.flatnonzero(~((ours == theirs) | (np.isnan(ours) & np.isnan(theirs))))
        where = f"{part} at margin {z[apart[0]]:g}, label {y[apart[0]]:g}" if apart.size else ""
        kept(
            apart.size == 0,
            f"compiled code and plain Python disagree in {where} (if there is a power, write r * r, not r ** 2: "
            "their last bits differ)",
        )


def _demands(loss: Any) -> Callable[[Any, str], None]:
    """Return a function that demands a property of this loss at every tested number."""
    return lambda held, promise: demand(bool(np.all(held)), f"{loss!r}: {promise}")


def _check_declarations(loss: Any, z: np.ndarray, y: np.ndarray, value: np.ndarray, curvature: np.ndarray) -> None:
    """Check the declarations of a loss that solvers and methods use."""
    name, near = repr(loss), np.abs(z) <= 30.0
    if loss.proximal in (losses.MEAN, losses.LEAST_SQUARES) or loss.likelihood == losses.GAUSSIAN:
        demand(np.allclose(value, 0.5 * (z - y) ** 2), f"{name} is not (z - y)^2 / 2, which its solver assumes")
    if loss.likelihood == losses.BERNOULLI:
        demand(np.allclose(value, np.logaddexp(0.0, -y * z)), f"{name} is not the log-likelihood that it declares")
    if loss.strictly_convex:
        demand(np.all(curvature[near] > 0.0), f"{name} is flat in places, and declares strict convexity")
    if loss.exact_solver == losses.INTERIOR_POINT:
        bounded = np.all(np.isfinite(loss.domain(1.0))) and loss.dual_curvature is not None
        demand(bounded, f"{name} declares the interior point method, which needs a quadratic conjugate on an interval")
    else:
        fits = loss.exact_solver == losses.NEWTON and np.isfinite(loss.smoothness)
        demand(fits, f"{name} declares an exact solver that does not fit it")


def _check_pooled_loss(loss: Any, seed: int) -> None:
    """Check the contract of a loss of all examples of an agent together."""
    rng, name = np.random.default_rng(seed), repr(loss)
    z = rng.normal(scale=2.0, size=(40, 7))
    z[:4] *= 100.0
    y = np.sign(rng.normal(size=7)) if loss.labels == losses.SIGNS else rng.normal(size=7)
    value, slopes = np.zeros(len(z)), np.zeros_like(z)
    pool_table_kernel.python(loss, z, y, value, slopes)
    demand(loss.pool(z[0, :0], y[:0]) == 0.0, f"{name}: the loss of an agent without examples is not 0")
    below = value[:, None] + np.einsum("ar,bar->ab", slopes, z[:, None] - z) - value
    rise = np.abs(slopes).sum(axis=1)[:, None] * np.abs(z).max()
    room = 1e-10 * (1.0 + np.abs(value[:, None]) + np.abs(value) + rise)
    demand(np.all(below <= room), f"{name}: slopes are not a subgradient, or the value is not convex")
    demand(np.all(np.abs(slopes) <= loss.lipschitz * (1 + 1e-12)), f"{name}: a slope exceeds the Lipschitz bound")
    for r in range(z.shape[1]):
        beside = z + 1e-5 * np.eye(z.shape[1])[r]
        bent, unused = np.zeros_like(z), np.zeros(len(z))
        pool_table_kernel.python(loss, beside, y, unused, bent)
        bend = (bent - slopes)[:, r] / 1e-5
        demand(np.all(bend <= loss.smoothness * (1 + 1e-6) + 1e-6), f"{name}: a curvature exceeds the smoothness")
    if loss.exact_solver == losses.LOG_SUM_EXP:
        demand(np.allclose(value, np.logaddexp.reduce(-y * z, axis=1)), f"{name} is not log sum exp, as it declares")
    compiled = np.zeros(len(z)), np.zeros_like(z)
    pool_table_kernel(loss, z, y, *compiled)
    same = all(np.array_equal(*pair) for pair in zip(compiled, (value, slopes), strict=True))
    demand(same, f"{name}: compiled code and plain Python disagree")
