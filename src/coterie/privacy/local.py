"""Local differential privacy: noise on the data, CD, Appendix C, Figure 4.

Every example is made private before anything is learned from it; all later computations are post-processing. Local
privacy is the strictest form, and the baseline for methods that add noise to updates: with this much noise, little is
left to learn.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from scipy.special import expit

from .. import _checks
from ..accounting.accountants import target_epsilon
from ..core.private.noise import KEY, LARGEST, sample
from ..core.private.terms import GRID
from ..data import AgentData
from ..errors import DataError, ParameterError

__all__ = ["perturbed"]

#: Spawn key that separates this noise from other noise drawn from the same seed.
LOCAL_SPAWN_KEY = 0x6C6F63616C


def perturbed(data: AgentData, epsilon: float, row_norm: float = 1.0, seed: Any = 0) -> AgentData:
    """Return data in which every example, features and label, is epsilon-differentially private by itself.

    Half of the budget is spent on the features and half on the label. Rows with an L1 norm above ``row_norm`` are
    scaled down to ``row_norm``, so that the distance of two rows is at most ``2 row_norm``, and Laplace noise of scale
    ``2 row_norm / (epsilon / 2)`` is added to every feature. A label is kept with probability
    ``e^(epsilon/2) / (1 + e^(epsilon/2))``, and flipped otherwise. The number of rows of an agent is public.

    The noise is drawn from the seed, and anyone who knows the seed can remove it: the function is for simulations.

    Parameters
    ----------
    data : AgentData
        Data with labels -1 and +1. Append an intercept afterwards, otherwise it gets noise, too.
    epsilon : float
        Budget of each example, > 0.
    row_norm : float
        L1 norm that longer rows are scaled down to, > 0. Choose it without looking at the data.
    seed : int

    Returns
    -------
    AgentData
        Data of the same agents, sizes and members; always dense, because zeros get noise, too.

    Raises
    ------
    DataError
        If the data has no labels, or a label that is neither -1 nor +1.

    Examples
    --------
    >>> data = AgentData([[0.5, 0.5], [3.0, -1.0]], [1, -1], agents=["bo", "anna"])
    >>> noisy = perturbed(data, epsilon=1.0)
    >>> noisy
    AgentData(agents=2, rows=2 (1 per agent), features=2, dense, labelled)

    With a very large epsilon, there is little noise, and the scaling of long rows can be seen:

    >>> perturbed(data, epsilon=1e6).X.round(3) + 0.0
    array([[ 0.75, -0.25],
           [ 0.5 ,  0.5 ]])
    """
    if not isinstance(data, AgentData):
        raise ParameterError(f"data must be an AgentData; found {type(data).__name__}")
    epsilon, row_norm = target_epsilon(epsilon), _checks.positive("row_norm", row_norm)
    least = 4.0 * GRID / LARGEST
    if epsilon < least:
        raise ParameterError(f"epsilon = {epsilon!r}: expected at least {least:.1g}, noise is not made that large")
    labels = _signs(data)
    generator = seeded(seed, LOCAL_SPAWN_KEY)
    # The distance of two rows is at most 2 GRID steps, exactly; discrete Laplace noise is exact for every width.
    steps, width = _on_grid(data, row_norm), math.ceil(2 * GRID / (0.5 * epsilon))
    for k, dice in enumerate(generator.random((data.n, KEY))):  # one key for each agent
        rows = steps[data.start[k] : data.start[k + 1]]
        rows += sample("laplace", width, rows.size, dice=dice).reshape(rows.shape)
    # The generator draws multiples of 2^-53; the probability is rounded up to such a multiple, and is then exact.
    turned = generator.random(data.n_rows) < math.ceil(expit(-0.5 * epsilon) * 2.0**53) * 2.0**-53
    return data._like(X=steps * (row_norm / GRID), y=np.where(turned, -labels, labels))


def seeded(seed: Any, purpose: int) -> np.random.Generator:
    """Return a generator for a purpose: different purposes draw different numbers from the same seed."""
    return np.random.default_rng(np.random.SeedSequence(_checks.integer("seed", seed, least=0), spawn_key=(purpose,)))


def _signs(data: AgentData) -> np.ndarray:
    """Return the labels, after a check that all are -1 or +1."""
    if data.y is None:
        raise DataError("data has no labels: make it with y, of -1 and +1")
    bad = np.flatnonzero(np.abs(data.y) != 1.0)
    if bad.size:
        row = int(bad[np.argmin(data.origin[bad])])
        raise DataError(f"{data.where(row)} has label {data.y[row]:g}: labels must be -1 or +1 to be turned at random")
    return data.y


def _on_grid(data: AgentData, row_norm: float) -> np.ndarray:
    """Return the rows as integers in steps of row_norm / GRID, truncated, with L1 norms of at most GRID."""
    X = np.asarray(data.X.toarray() if data.is_sparse else data.X, np.float64)
    largest = np.abs(X).max(axis=1, keepdims=True)
    X = X / np.where(largest > 0, largest, 1.0)  # divided first, so that no sum overflows
    norm = np.abs(X).sum(axis=1, keepdims=True)
    with np.errstate(over="ignore"):  # for very long rows
        scale = GRID * np.minimum(largest / row_norm, 1.0 / np.maximum(norm, 1.0))
    # Rounding errors are far below one step, so they cannot make a sum of integers exceed GRID.
    return np.trunc(X * scale).astype(np.int64)
