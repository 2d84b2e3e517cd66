"""Local differential privacy: noise on the data itself, CD, Appendix C, Figure 4.

The most cautious of all ways: every example is made private by itself, before anything is learned from it. Whatever is
done with the result is post-processing. It is the baseline that says what noise on updates is worth: with this much
noise, little is left to learn.
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

#: What makes the noise drawn here another than that drawn elsewhere from the same seed.
LOCAL = 0x6C6F63616C


def perturbed(data: AgentData, epsilon: float, row_norm: float = 1.0, seed: Any = 0) -> AgentData:
    """Data in which every example, features and label, is epsilon-differentially private by itself.

    Half of the budget goes to the features and half to the label. A row is scaled down to an L1 norm of ``row_norm``
    where it is longer, so that no two rows are farther apart than ``2 row_norm``, and every feature gets Laplace noise
    of scale ``2 row_norm / (epsilon / 2)``. A label is kept with probability ``e^(epsilon/2) / (1 + e^(epsilon/2))``,
    and turned otherwise. How many rows an agent has is public.

    The noise is drawn from the seed: this is for simulation, and whoever knows the seed can take it away.

    Parameters
    ----------
    data : AgentData
        With labels -1 and +1. Append an intercept afterwards, or it will be noise, too.
    epsilon : float
        The budget of each example, > 0.
    row_norm : float
        L1 norm that longer rows are scaled down to, > 0. Choose it without looking at the data.
    seed : int

    Returns
    -------
    AgentData
        The same agents, sizes and members. Dense, even where ``data`` is sparse: a zero gets noise like any number.

    Raises
    ------
    DataError
        If the data has no labels, or one that is neither -1 nor +1.

    Examples
    --------
    >>> data = AgentData([[0.5, 0.5], [3.0, -1.0]], [1, -1], agents=["bo", "anna"])
    >>> noisy = perturbed(data, epsilon=1.0)
    >>> noisy
    AgentData(agents=2, rows=2 (1 per agent), features=2, dense, labelled)

    With next to no privacy, one can see what is done to long rows:

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
    generator = seeded(seed, LOCAL)
    # No two rows are more than 2 GRID steps apart, exactly; discrete Laplace noise is exact, too, whatever its width.
    steps, width = _on_grid(data, row_norm), math.ceil(2 * GRID / (0.5 * epsilon))
    for k, dice in enumerate(generator.random((data.n, KEY))):  # every agent has a key of its own
        rows = steps[data.start[k] : data.start[k + 1]]
        rows += sample("laplace", width, rows.size, dice=dice).reshape(rows.shape)
    # The generator gives multiples of 2^-53: with this chance, rounded up to one, it is below exactly so often.
    turned = generator.random(data.n_rows) < math.ceil(expit(-0.5 * epsilon) * 2.0**53) * 2.0**-53
    return data._like(X=steps * (row_norm / GRID), y=np.where(turned, -labels, labels))


def seeded(seed: Any, purpose: int) -> np.random.Generator:
    """A generator of its own: another purpose has other numbers for the same seed."""
    return np.random.default_rng(np.random.SeedSequence(_checks.integer("seed", seed, least=0), spawn_key=(purpose,)))


def _signs(data: AgentData) -> np.ndarray:
    """The labels, all of them -1 or +1."""
    if data.y is None:
        raise DataError("data has no labels: make it with y, of -1 and +1")
    bad = np.flatnonzero(np.abs(data.y) != 1.0)
    if bad.size:
        row = int(bad[np.argmin(data.origin[bad])])
        raise DataError(f"{data.where(row)} has label {data.y[row]:g}: labels must be -1 or +1 to be turned at random")
    return data.y


def _on_grid(data: AgentData, row_norm: float) -> np.ndarray:
    """The rows in whole steps of row_norm / GRID, cut towards zero: no L1 norm is above GRID."""
    X = np.asarray(data.X.toarray() if data.is_sparse else data.X, np.float64)
    largest = np.abs(X).max(axis=1, keepdims=True)
    X = X / np.where(largest > 0, largest, 1.0)  # divided first, so that no sum overflows
    norm = np.abs(X).sum(axis=1, keepdims=True)
    with np.errstate(over="ignore"):  # a row far too long
        scale = GRID * np.minimum(largest / row_norm, 1.0 / np.maximum(norm, 1.0))
    # Rounding here is far below one step, so that a sum of whole numbers cannot be above GRID because of it.
    return np.trunc(X * scale).astype(np.int64)
