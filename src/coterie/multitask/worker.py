"""A worker: the rows and dual variables of some tasks. It takes weights, improves its dual variables, and answers with
how far its vectors ``b_i`` went. Rows and dual variables never leave it.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from .._compile import inline, kernel
from ..data import AgentData
from ..errors import DataError, MismatchError
from ..linear import frozen, margins_kernel, row_norms_kernel, rows_of, scatter_kernel
from ..losses import SIGNS


class Order(NamedTuple):
    """What the server asks of a worker with k tasks."""

    number: int  # of the round
    weights: np.ndarray  # (k, d) w_i
    stiffness: np.ndarray  # (k,) rho sigma_ii / lam
    keep: float  # which part of the step before to keep: 1, or less if it turns out to have gone too far
    momentum: float  # how far to go on in the direction of the step before


class Report(NamedTuple):
    """What a worker answers."""

    change: np.ndarray  # (k, d) of b_i, since the last report of which all was kept
    loss: np.ndarray  # (k,) mean loss of the weights in the order
    slack: np.ndarray  # (k,) what they and the dual variables, as they were then, add to the duality gap
    before: np.ndarray  # (k,) mean conjugate of the dual variables before the step
    after: np.ndarray  # (k,) and after it


class Standing(NamedTuple):
    """Where a worker stands, when it begins, and when it begins again after a crash."""

    vectors: np.ndarray  # (k, d) b_i
    conjugate: np.ndarray  # (k,)
    sizes: np.ndarray  # (k,) n_i
    task: Hashable  # the first of its tasks, and ...
    columns: tuple[str, ...] | None  # ... the names of its features, if they have any


class Worker:
    """Some tasks, with their rows and dual variables.

    Parameters
    ----------
    data : AgentData
        The rows of these tasks.
    loss : rule
    tasks : (k,) array_like of int
        Their numbers among all tasks: a task draws the same random numbers on whichever worker it is.
    passes : float
        Local steps in a round, for each row of a task.
    local_steps : int or None
        Local steps of every task in a round, whatever its size: H of DMTRL, Algorithm 2.
    seed : int

    Examples
    --------
    >>> import coterie as ct
    >>> data = ct.AgentData([[1.0], [2.0]], [1.0, 2.0], agents=["a", "b"])
    >>> worker = Worker(data, ct.Squared(), [0, 1], passes=1.0, local_steps=None, seed=0)
    >>> report = worker.improve(Order(0, np.zeros((2, 1)), np.ones(2), 1.0, 0.0))
    >>> report.change.round(3).ravel().tolist()
    [0.5, 0.8]
    """

    def __init__(
        self, data: AgentData, loss: Any, tasks: ArrayLike, *, passes: float, local_steps: int | None, seed: Any
    ):
        self.data, self.loss = data, loss
        self.rows, self.start, self.labels = rows_of(data.X), frozen(data.start), frozen(np.asarray(data.y))
        self.share = 1.0 / data.sizes
        norms = np.zeros(data.n_rows)
        row_norms_kernel(self.rows, norms)
        self.square = norms * norms
        self.steps = np.maximum(1, np.ceil(passes * data.sizes)).astype(np.int64)
        if local_steps is not None:
            self.steps[:] = local_steps
        children = [np.random.SeedSequence([seed, int(task)]) for task in np.asarray(tasks)]
        self.seeds = np.array([child.generate_state(1, np.uint64)[0] for child in children])
        self.smooth = bool(np.isfinite(loss.smoothness))
        self.dual, self.before = np.zeros(data.n_rows), np.zeros(data.n_rows)
        shape = (data.n, data.p)
        self.vectors, self.last_vectors, self.last_weights = np.zeros(shape), np.zeros(shape), np.zeros(shape)
        self._draft, self._order = np.zeros(shape), np.zeros(int(data.sizes.max()), np.int64)

    def stand(self) -> Standing:
        """Where this worker stands."""
        self.vectors = self._vectors(self.dual)
        data = self.data
        return Standing(self.vectors.copy(), self._conjugates(), data.sizes, data.members[0], data.feature_names)

    def improve(self, order: Order) -> Report:
        """Judge the weights, and take local steps from there: DMTRL, Algorithm 2."""
        if order.keep < 1.0:
            self.dual = self._kept(order.keep)
            self.vectors = self.last_vectors + order.keep * (self.vectors - self.last_vectors)
        loss, before, slack = self._look(order.weights).T
        # The models that the steps start from: those of dual variables that went on in the direction of the last step.
        ahead = order.momentum * (self.vectors - self.last_vectors)
        self._draft[:] = order.weights + order.momentum * (order.weights - self.last_weights)
        self._draft -= order.stiffness[:, None] * ahead
        self.before, self.last_vectors, self.last_weights = self.dual.copy(), self.vectors, order.weights.copy()
        ascend_kernel(
            self.loss,
            self.smooth,
            self.rows,
            self.start,
            self.labels,
            self.square,
            order.stiffness * self.share,
            self.steps,
            self.seeds,
            order.number,
            self.dual,
            self._draft,
            self._order,
        )
        self.vectors = self._vectors(self.dual)
        after = self._conjugates()
        return Report(self.vectors - self.last_vectors, loss, slack, before, after)

    def settle(self, weights: np.ndarray) -> None:
        """Take the dual variables that belong to these weights: minus the slopes of the losses."""
        margins = np.zeros(self.data.n_rows)
        margins_kernel(self.rows, self.start, frozen(weights), margins)
        slopes_kernel(self.loss, margins, self.labels, self.dual)
        np.negative(self.dual, out=self.dual)

    def evaluate(self, weights: np.ndarray, keep: float = 1.0) -> np.ndarray:
        """Mean loss, mean conjugate and slack of every task, (k, 3), at these weights."""
        return self._look(weights, self._kept(keep))

    def _kept(self, keep: float) -> np.ndarray:
        """The dual variables, if only a part of the last step is kept."""
        if keep == 1.0:
            return self.dual
        out = self.before.copy()
        keep_kernel(self.loss, self.labels, keep, self.dual, out)
        return out

    def _look(self, weights: np.ndarray, dual: np.ndarray | None = None) -> np.ndarray:
        out = np.zeros((self.data.n, 3))
        dual = self.dual if dual is None else dual
        evaluate_kernel(self.loss, self.rows, self.start, self.labels, self.share, dual, frozen(weights), out)
        return out

    def _conjugates(self) -> np.ndarray:
        out = np.zeros(self.data.n)
        conjugate_kernel(self.loss, self.start, self.labels, self.share, self.dual, out)
        return out

    def _vectors(self, dual: np.ndarray) -> np.ndarray:
        """``b_i = 1/n_i sum_j a_ij x_ij``."""
        out = np.zeros((self.data.n, self.data.p))
        scatter_kernel(self.rows, self.start, self.share[self.data.owner] * dual, out)
        return out


def check_tasks(data: AgentData, loss: Any) -> None:
    """Refuse tasks that nothing can be learned from.

    Parameters
    ----------
    data : AgentData
    loss : rule

    Raises
    ------
    DataError
        If a task has no rows or, for a loss of classes, rows of one class only; or if labels are not what they must be.

    Examples
    --------
    >>> import coterie as ct
    >>> check_tasks(ct.AgentData([[1.0], [2.0]], [1, 1], agents=["a", "a"]), ct.Hinge())
    Traceback (most recent call last):
        ...
    coterie.errors.DataError: task 'a' has rows of one class only, 1: both are needed to learn what tells them apart
    """
    if data.y is None:
        raise DataError("the data have no labels: relationship learning needs y")
    empty = np.flatnonzero(data.sizes == 0)
    if empty.size:
        raise DataError(f"task {data.members[empty[0]]!r} has no rows: every task needs some, or must be left out")
    if not hasattr(loss, "conjugate"):
        raise MismatchError(f"{loss!r} has no conjugate, and so no dual: choose another loss")
    if loss.labels != SIGNS:
        return
    bad = np.flatnonzero(np.abs(data.y) != 1.0)
    if bad.size:
        raise DataError(
            f"{data.where(bad[0])}: the label is {data.y[bad[0]]:g}; {loss!r} needs -1 or +1: encode the classes so, "
            "or use ct.RelationshipClassifier, which does"
        )
    low, high = (f.reduceat(data.y, data.start[:-1]) for f in (np.minimum, np.maximum))
    single = np.flatnonzero(low == high)
    if single.size:
        raise DataError(
            f"task {data.members[single[0]]!r} has rows of one class only, {low[single[0]]:g}: both are needed to "
            "learn what tells them apart"
        )


@inline
def scrambled(state):
    """The next number of SplitMix64."""
    z = state + np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@kernel
def ascend_kernel(  # type: ignore[no-untyped-def]
    loss, smooth, rows, start, labels, square, bend, steps, seeds, number, dual, models, order
):
    """Local steps of SDCA on one task after the other, DMTRL (4): each makes one dual variable the best it can be.

    With ``v`` the local model and ``q = rho sigma_ii |x|^2 / (lam n_i)``, the best slope of the loss is the one that
    its proximal step from ``x . v + q slope`` finds; the dual variable is minus that slope. Rows are taken in a random
    order, all of them before any comes again.
    """
    for k in range(start.shape[0] - 1):
        first, count, model = start[k], start[k + 1] - start[k], models[k]
        state = scrambled(seeds[k] + np.uint64(number))
        for r in range(count):
            order[r] = r
        for h in range(steps[k]):
            t = h % count
            state = scrambled(state)
            other = t + np.int64(state % np.uint64(count - t))  # the next step of a shuffle
            order[t], order[other] = order[other], order[t]
            r = first + order[t]
            q = bend[k] * square[r]
            margin = rows.dot(r, model)
            goal = loss.prox(margin - q * dual[r], q, labels[r])
            if q == 0.0 or (smooth and q <= 1.0):
                slope = loss.derivative(goal, labels[r])
            else:  # at a kink, and where slopes are small beside labels, how far the step went tells; within the domain
                low, high = loss.domain(labels[r])
                slope = min(max((margin - goal) / q - dual[r], low), high)
            change = -slope - dual[r]
            dual[r] = -slope
            rows.add(r, bend[k] * change, model)


@kernel
def keep_kernel(loss, labels, keep, after, out):  # type: ignore[no-untyped-def]
    """``out += keep (after - out)``, within the domain of the conjugate, which rounding could leave."""
    for r in range(out.shape[0]):
        low, high = loss.domain(labels[r])
        out[r] = -min(max(-(out[r] + keep * (after[r] - out[r])), low), high)


@kernel
def evaluate_kernel(loss, rows, start, labels, share, dual, weights, out):  # type: ignore[no-untyped-def]
    """Mean loss, mean conjugate, and mean of ``l(z) + l*(-a) + a z >= 0``, whose sum is the duality gap, of each task.

    Adding up what is not negative, the gap keeps its digits where primal and dual, all but equal, would lose them.
    """
    for k in range(start.shape[0] - 1):
        for r in range(start[k], start[k + 1]):
            margin = rows.dot(r, weights[k])
            value, conjugate = loss.value(margin, labels[r]), loss.conjugate(-dual[r], labels[r])
            out[k, 0] += share[k] * value
            out[k, 1] += share[k] * conjugate
            out[k, 2] += share[k] * max(0.0, value + conjugate + dual[r] * margin)


@kernel
def slopes_kernel(loss, margins, labels, out):  # type: ignore[no-untyped-def]
    """The slope of the loss of every row."""
    for r in range(margins.shape[0]):
        out[r] = loss.derivative(margins[r], labels[r])


@kernel
def conjugate_kernel(loss, start, labels, share, dual, out):  # type: ignore[no-untyped-def]
    """Mean of ``l*(-a)`` of each task."""
    for k in range(start.shape[0] - 1):
        for r in range(start[k], start[k + 1]):
            out[k] += share[k] * loss.conjugate(-dual[r], labels[r])
