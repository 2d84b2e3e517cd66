"""The final step of a private method, whose result stays with the agent: training on exact data near published models.

No result leaves the agent, so the step costs no privacy. The anchor is the mean of the neighbours' published models,

    argmin_theta  f_i(theta) + weight/2 |theta - length * anchor|^2 ,

and an agent chooses its weight and length by cross-validation on its own examples (clipped gradients tell more about
the direction of a model than about its length). One candidate omits the anchor: useless neighbours are ignored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from ..._folds import split
from .. import proximal
from ..arrays import VACANT, AgentArrays, data_of, owners, row
from ..compile import kernel
from ..linear import SparseRows, frozen

#: Candidates (length, weight); weights are relative to the public bound on the curvature of the losses.
CANDIDATES = ((0.0, 0.004), *((length, weight) for length in (1.0, 4.0) for weight in (0.04, 0.12, 0.4, 1.2)))
#: The candidate of an agent with too few examples to choose.
DEFAULT_CANDIDATE = (1.0, 0.4)
#: Largest number of folds.
MAX_FOLDS = 5


@kernel
def solve_all(arrays, cache, weight, center, theta, scratch):
    """Compute ``argmin f_i(theta) + weight_i/2 |theta - center_i|^2`` for all agents."""
    for k in range(arrays.address.shape[0]):
        row(cache, k).solver.minimise(data_of(arrays, k), 1.0, weight[k], center[k], theta[k], scratch)


@kernel
def losses_of(arrays, theta, out):
    """Write the sum of the losses of each agent's examples."""
    for k in range(arrays.address.shape[0]):
        for r in range(arrays.row_start[k], arrays.row_start[k + 1]):
            out[k] += arrays.loss.value(arrays.rows.dot(r, theta[k]), arrays.labels[r])


def anchors(arrays: AgentArrays, copies: np.ndarray) -> np.ndarray:
    """Return the weighted mean of the models that each agent has received; zeros for an agent without neighbours."""
    n = arrays.address.shape[0]
    weight = np.where(arrays.peer == VACANT, 0.0, arrays.weight)
    owner = owners(arrays.edge_start)
    degree = np.bincount(owner, weights=weight, minlength=n)
    sums = np.zeros((n, copies.shape[1]))
    np.add.at(sums, owner, (weight / np.where(degree > 0, degree, 1.0)[owner])[:, None] * copies)
    return sums


def own_models(arrays: AgentArrays, anchor: np.ndarray, bend: np.ndarray) -> np.ndarray:
    """Return the model that each agent trains for its own use, from its exact data and the anchor."""
    sizes = np.diff(arrays.row_start)
    trials = [lambda seen, c=c: _solved(seen, c[0] * anchor, c[1] * bend) for c in CANDIDATES]
    choice = np.array(CANDIDATES)[best_of(arrays, trials)]
    choice[sizes < 2] = DEFAULT_CANDIDATE
    models = _solved(arrays, choice[:, :1] * anchor, choice[:, 1] * bend)
    models[sizes == 0] = anchor[sizes == 0]
    return models


def best_of(arrays: AgentArrays, trials: Sequence[Callable[[AgentArrays], np.ndarray]]) -> np.ndarray:
    """Return, for each agent, the index of the trial whose models have the smallest loss on held-out examples."""
    scores = np.zeros((len(trials), arrays.address.shape[0]))
    for seen, held in folds(arrays):
        for score, trial in zip(scores, trials, strict=True):
            theta = trial(seen)
            with np.errstate(all="ignore"):
                losses_of(held, theta, score)
    scores[~np.isfinite(scores)] = np.inf
    return np.argmin(scores, axis=0)


def folds(arrays: AgentArrays) -> Iterator[tuple[AgentArrays, AgentArrays]]:
    """Divide every agent's examples into folds: yield the arrays without one fold, and the arrays of that fold."""
    sizes = np.diff(arrays.row_start)
    # Rows may be sorted by label. An agent's folds do not depend on which other agents are hosted.
    shuffled = {m: np.random.default_rng(0).permutation(m) for m in np.unique(sizes).tolist()}
    rank = np.concatenate([np.zeros(0, np.int64), *(shuffled[m] for m in sizes.tolist())])
    for kept, held in split(rank % MAX_FOLDS):
        yield only(arrays, kept), only(arrays, held)


def _solved(arrays: AgentArrays, center: np.ndarray, weight: np.ndarray) -> np.ndarray:
    n, p = center.shape
    theta = np.zeros((n, p))
    weight = np.where(weight > 0, weight, 1.0)
    solve_all(arrays, proximal.prepare(arrays, p), weight, center, theta, np.zeros(proximal.scratch(arrays, p)))
    return theta


def only(arrays: AgentArrays, keep: np.ndarray) -> AgentArrays:
    """Return the arrays with a subset of the examples, weighted so that their total weight stays."""
    owner = owners(arrays.row_start)
    before, sizes = np.diff(arrays.row_start), np.bincount(owner[keep], minlength=arrays.row_weight.shape[0])
    rows: Any
    if isinstance(arrays.rows, SparseRows):
        count = np.diff(arrays.rows.start)
        entries = np.repeat(keep, count)
        first, last = arrays.rows.start[0], arrays.rows.start[-1]
        start = np.concatenate([[0], np.cumsum(count[keep])])
        parts = (start, arrays.rows.column[first:last][entries], arrays.rows.values[first:last][entries])
        rows = SparseRows(*map(frozen, parts))
    else:
        rows = type(arrays.rows)(frozen(arrays.rows.values[keep]))
    return arrays._replace(
        rows=rows,
        labels=frozen(arrays.labels[keep]),
        row_start=frozen(np.concatenate([[0], np.cumsum(sizes)])),
        row_weight=frozen(arrays.row_weight * before / np.maximum(sizes, 1)),
    )
