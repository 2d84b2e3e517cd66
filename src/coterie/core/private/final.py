"""The final step, which nobody else ever sees: an agent trains on its own clean data, near what it has heard.

Nothing of it leaves the agent, so it costs no privacy. What the neighbours have published is an anchor, the mean of
their models,

    argmin_theta  f_i(theta) + weight/2 |theta - length * anchor|^2 ,

and how far to trust it, and how long it should be (clipped gradients say more of the direction of a model than of its
length), an agent finds out by cross-validation on its own examples. One candidate leaves the anchor out: neighbours
that talk nonsense are not followed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from ..._folds import split
from .. import proximal
from ..compile import kernel
from ..linear import SparseRows, frozen
from ..world import VACANT, World, data_of, owners, row

#: (length, weight) to choose from; weights as parts of the public bound on the curvature of the losses.
CANDIDATES = ((0.0, 0.004), *((length, weight) for length in (1.0, 4.0) for weight in (0.04, 0.12, 0.4, 1.2)))
#: What an agent takes that has too few examples to choose.
UNTESTED = (1.0, 0.4)
#: Into so many parts examples are divided, at most.
FOLDS = 5


@kernel
def solve_all(world, cache, weight, center, theta, scratch):
    """``argmin f_i(theta) + weight_i/2 |theta - center_i|^2`` for all agents."""
    for k in range(world.address.shape[0]):
        row(cache, k).solver.minimise(data_of(world, k), 1.0, weight[k], center[k], theta[k], scratch)


@kernel
def losses_of(world, theta, out):
    """Sum of the losses of each agent's examples."""
    for k in range(world.address.shape[0]):
        for r in range(world.row_start[k], world.row_start[k + 1]):
            out[k] += world.loss.value(world.rows.dot(r, theta[k]), world.labels[r])


def anchors(world: World, copies: np.ndarray) -> np.ndarray:
    """The weighted mean of what each agent has heard from its neighbours; zeros for one that has none."""
    n = world.address.shape[0]
    weight = np.where(world.peer == VACANT, 0.0, world.weight)
    owner = owners(world.tie_start)
    degree = np.bincount(owner, weights=weight, minlength=n)
    sums = np.zeros((n, copies.shape[1]))
    np.add.at(sums, owner, (weight / np.where(degree > 0, degree, 1.0)[owner])[:, None] * copies)
    return sums


def own_models(world: World, anchor: np.ndarray, bend: np.ndarray) -> np.ndarray:
    """What each agent makes of its own data and of the anchor, for its own use."""
    sizes = np.diff(world.row_start)
    trials = [lambda seen, c=c: _solved(seen, c[0] * anchor, c[1] * bend) for c in CANDIDATES]
    choice = np.array(CANDIDATES)[best_of(world, trials)]
    choice[sizes < 2] = UNTESTED
    models = _solved(world, choice[:, :1] * anchor, choice[:, 1] * bend)
    models[sizes == 0] = anchor[sizes == 0]
    return models


def best_of(world: World, trials: Sequence[Callable[[World], np.ndarray]]) -> np.ndarray:
    """For each agent, which of some ways to make models does best on examples that were left out."""
    scores = np.zeros((len(trials), world.address.shape[0]))
    for seen, held in folds(world):
        for score, trial in zip(scores, trials, strict=True):
            theta = trial(seen)
            with np.errstate(all="ignore"):
                losses_of(held, theta, score)
    scores[~np.isfinite(scores)] = np.inf
    return np.argmin(scores, axis=0)


def folds(world: World) -> Iterator[tuple[World, World]]:
    """Divide every agent's examples into parts: the world without one of them, and the world of that alone."""
    sizes = np.diff(world.row_start)
    # Rows may be sorted by label. An agent's parts do not depend on who else is in the world.
    shuffled = {m: np.random.default_rng(0).permutation(m) for m in np.unique(sizes).tolist()}
    rank = np.concatenate([np.zeros(0, np.int64), *(shuffled[m] for m in sizes.tolist())])
    for kept, held in split(rank % FOLDS):
        yield only(world, kept), only(world, held)


def _solved(world: World, center: np.ndarray, weight: np.ndarray) -> np.ndarray:
    n, p = center.shape
    theta = np.zeros((n, p))
    weight = np.where(weight > 0, weight, 1.0)
    solve_all(world, proximal.prepare(world, p), weight, center, theta, np.zeros(proximal.scratch(world, p)))
    return theta


def only(world: World, keep: np.ndarray) -> World:
    """The same agents with some of their examples, weighted so that they count for all."""
    owner = owners(world.row_start)
    before, sizes = np.diff(world.row_start), np.bincount(owner[keep], minlength=world.row_weight.shape[0])
    rows: Any
    if isinstance(world.rows, SparseRows):
        count = np.diff(world.rows.start)
        entries = np.repeat(keep, count)
        first, last = world.rows.start[0], world.rows.start[-1]
        start = np.concatenate([[0], np.cumsum(count[keep])])
        parts = (start, world.rows.column[first:last][entries], world.rows.values[first:last][entries])
        rows = SparseRows(*map(frozen, parts))
    else:
        rows = type(world.rows)(frozen(world.rows.values[keep]))
    return world._replace(
        rows=rows,
        labels=frozen(world.labels[keep]),
        row_start=frozen(np.concatenate([[0], np.cumsum(sizes)])),
        row_weight=frozen(world.row_weight * before / np.maximum(sizes, 1)),
    )
