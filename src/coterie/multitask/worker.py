"""A worker: the rows and dual variables of some tasks. It takes weights, improves its dual variables, and answers with
how far its vectors ``b_i`` went. Rows and dual variables never leave it.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from ..core.dual_ascent import ascend_kernel, conjugate_kernel, evaluate_kernel, keep_kernel, slopes_kernel
from ..core.linear import frozen, margins_kernel, row_norms_kernel, rows_of, scatter_kernel
from ..core.losses import SIGNS
from ..data import AgentData
from ..errors import DataError
from ..problem.modelled import refuse_labels

#: What of a worker changes in a run.
CHANGING = ("dual", "before", "vectors", "last_vectors", "last_weights")


class Request(NamedTuple):
    """What the server asks of a worker with k tasks."""

    number: int  # of the round
    weights: np.ndarray  # (k, d) w_i
    curvature: np.ndarray  # (k,) rho sigma_ii / lam: of the quadratic term of each task's subproblem
    keep: float  # which part of the step before to keep: 1, or less if it turns out to have gone too far
    momentum: float  # how far to go on in the direction of the step before


class Update(NamedTuple):
    """What a worker answers."""

    change: np.ndarray  # (k, d) of b_i, since the last update of which all was kept
    loss: np.ndarray  # (k,) mean loss of the weights in the request
    slack: np.ndarray  # (k,) what they and the dual variables, as they were then, add to the duality gap
    before: np.ndarray  # (k,) mean conjugate of the dual variables before the step
    after: np.ndarray  # (k,) and after it


class WorkerState(NamedTuple):
    """The state of a worker when it begins, and when it begins again after a crash."""

    vectors: np.ndarray  # (k, d) b_i
    conjugate: np.ndarray  # (k,)
    sizes: np.ndarray  # (k,) n_i
    task: Hashable  # the first of its tasks, and ...
    columns: tuple[str, ...] | None  # ... the names of its features, if they have any
    restored: bool = False  # from the checkpoint that was asked for: as the server knows it


class Worker:
    """Some tasks, with their rows and dual variables.

    ``tasks`` are their numbers among all tasks: a task draws the same random numbers on whichever worker it is. In a
    round it takes ``passes`` local steps for each of its rows, or ``local_steps``, H of DMTRL Algorithm 2.
    """

    def __init__(
        self, data: AgentData, loss: Any, tasks: ArrayLike, *, passes: float, local_steps: int | None, seed: Any
    ):
        self.data, self.loss = data, loss
        self.rows, self.start, self.labels = rows_of(data.X), frozen(data.start), frozen(np.asarray(data.y))
        self.row_weight = 1.0 / data.sizes
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
        self.restored = False

    def state(self) -> WorkerState:
        """Vectors, conjugates and sizes of its tasks."""
        if not self.restored:
            self.vectors = self._vectors(self.dual)
        data = self.data
        return WorkerState(
            self.vectors.copy(), self._conjugates(), data.sizes, data.members[0], data.feature_names, self.restored
        )

    def pack(self) -> dict[str, np.ndarray]:
        """All that changes in a run, for a checkpoint; and the labels, which must be the same later."""
        return {name: getattr(self, name) for name in CHANGING} | {"labels": self.labels}

    def unpack(self, packed: Mapping[str, np.ndarray]) -> None:
        """Go on from a checkpoint, bit by bit."""
        same = packed["dual"].shape == self.dual.shape and np.array_equal(packed["labels"], self.labels)
        # Vectors are made of dual variables and features.
        if not same or not np.allclose(self._vectors(packed["dual"]), packed["vectors"], rtol=1e-9, atol=1e-12):
            raise DataError(
                f"the rows of task {self.data.members[0]!r} and others are not those of the checkpoint: name another "
                "folder to resume from, or remove this one to begin anew"
            )
        for name in CHANGING:
            setattr(self, name, np.array(packed[name]))
        self.restored = True

    def improve(self, request: Request) -> Update:
        """Evaluate the weights, and take local steps from there: DMTRL, Algorithm 2."""
        self.restored = False
        if request.keep < 1.0:
            self.dual = self._kept(request.keep)
            self.vectors = self.last_vectors + request.keep * (self.vectors - self.last_vectors)
        loss, before, slack = self._evaluate(request.weights).T
        # The models that the steps start from: those of dual variables that went on in the direction of the last step.
        ahead = request.momentum * (self.vectors - self.last_vectors)
        self._draft[:] = request.weights + request.momentum * (request.weights - self.last_weights)
        self._draft -= request.curvature[:, None] * ahead
        self.before, self.last_vectors, self.last_weights = self.dual.copy(), self.vectors, request.weights.copy()
        examples, bend = (self.rows, self.start, self.labels, self.square), request.curvature * self.row_weight
        steps = self.steps, self.seeds, request.number
        ascend_kernel(self.loss, self.smooth, *examples, bend, *steps, self.dual, self._draft, self._order)
        self.vectors = self._vectors(self.dual)
        after = self._conjugates()
        return Update(self.vectors - self.last_vectors, loss, slack, before, after)

    def set_dual_of(self, weights: np.ndarray) -> None:
        """Take the dual variables that belong to these weights: minus the slopes of the losses."""
        margins = np.zeros(self.data.n_rows)
        margins_kernel(self.rows, self.start, frozen(weights), margins)
        slopes_kernel(self.loss, margins, self.labels, self.dual)
        np.negative(self.dual, out=self.dual)

    def evaluate(self, weights: np.ndarray, keep: float = 1.0) -> np.ndarray:
        """Mean loss, mean conjugate and slack of every task, (k, 3), at these weights."""
        return self._evaluate(weights, self._kept(keep))

    def _kept(self, keep: float) -> np.ndarray:
        """The dual variables, if only a part of the last step is kept."""
        if keep == 1.0:
            return self.dual
        out = self.before.copy()
        keep_kernel(self.loss, self.labels, keep, self.dual, out)
        return out

    def _evaluate(self, weights: np.ndarray, dual: np.ndarray | None = None) -> np.ndarray:
        out = np.zeros((self.data.n, 3))
        dual = self.dual if dual is None else dual
        evaluate_kernel(self.loss, self.rows, self.start, self.labels, self.row_weight, dual, frozen(weights), out)
        return out

    def _conjugates(self) -> np.ndarray:
        out = np.zeros(self.data.n)
        conjugate_kernel(self.loss, self.start, self.labels, self.row_weight, self.dual, out)
        return out

    def _vectors(self, dual: np.ndarray) -> np.ndarray:
        """``b_i = 1/n_i sum_j a_ij x_ij``."""
        out = np.zeros((self.data.n, self.data.p))
        scatter_kernel(self.rows, self.start, self.row_weight[self.data.owner] * dual, out)
        return out


def check_tasks(data: AgentData, loss: Any) -> None:
    """Refuse tasks without rows, all at once, and labels that the loss has no use for. Rows of one class will do."""
    if data.y is None:
        raise DataError("the data have no labels: relationship learning needs y")
    empty = np.flatnonzero(data.sizes == 0)
    if empty.size:
        others = ", ".join(repr(data.members[i]) for i in empty[1:20].tolist()) + (", ..." if empty.size > 20 else "")
        more = f"; so it is with {empty.size - 1} more: {others}" if empty.size > 1 else ""
        raise DataError(
            f"task {data.members[empty[0]]!r} has no rows: every task needs some, or must be left out{more}"
        )
    if loss.labels == SIGNS:
        why = f"{loss!r} needs -1 or +1: encode the classes so, or use ct.RelationshipClassifier, which does"
        refuse_labels(data, np.abs(data.y) != 1.0, why)
