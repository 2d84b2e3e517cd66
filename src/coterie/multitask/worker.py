"""A worker, which holds the rows and dual variables of some tasks.

A worker receives weights, improves its dual variables, and answers with the changes of its vectors ``b_i``. Rows and
dual variables never leave the worker.
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

#: Attributes of a worker that change in a run.
CHANGING = ("dual", "before", "vectors", "last_vectors", "last_weights")


class Request(NamedTuple):
    """A request of the server to a worker with k tasks."""

    number: int  # number of the round
    weights: np.ndarray  # (k, d) w_i
    curvature: np.ndarray  # (k,) rho sigma_ii / lam, the curvature of the quadratic term of each task's subproblem
    keep: float  # fraction of the previous step to keep: less than 1 if the step was too long
    momentum: float  # factor of the extrapolation in the direction of the previous step


class Update(NamedTuple):
    """The answer of a worker."""

    change: np.ndarray  # (k, d) change of b_i by this step
    loss: np.ndarray  # (k,) mean loss of the weights in the request
    slack: np.ndarray  # (k,) contributions of these weights, and of the dual variables before the step, to the gap
    before: np.ndarray  # (k,) mean conjugate of the dual variables before the step
    after: np.ndarray  # (k,) mean conjugate of the dual variables after the step


class WorkerState(NamedTuple):
    """The state of a worker when it begins, also after a crash."""

    vectors: np.ndarray  # (k, d) b_i
    conjugate: np.ndarray  # (k,)
    sizes: np.ndarray  # (k,) n_i
    task: Hashable  # id of the first task
    columns: tuple[str, ...] | None  # names of the features of the first task, if they have names
    restored: bool = False  # whether the state is that of the requested checkpoint


class Worker:
    """The rows and dual variables of some tasks.

    ``tasks`` are the numbers of the tasks among all tasks: the random numbers of a task do not depend on its worker. In
    a round a task takes ``passes`` local steps for each of its rows, or ``local_steps``, H of DMTRL Algorithm 2.
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
        """Return vectors, conjugates and sizes of the tasks."""
        if not self.restored:
            self.vectors = self._vectors(self.dual)
        data = self.data
        return WorkerState(
            self.vectors.copy(), self._conjugates(), data.sizes, data.members[0], data.feature_names, self.restored
        )

    def pack(self) -> dict[str, np.ndarray]:
        """Return the state for a checkpoint, with the labels, which are compared when the run is resumed."""
        return {name: getattr(self, name) for name in CHANGING} | {"labels": self.labels}

    def unpack(self, packed: Mapping[str, np.ndarray]) -> None:
        """Restore the state from a checkpoint."""
        same = packed["dual"].shape == self.dual.shape and np.array_equal(packed["labels"], self.labels)
        # The vectors are computed from dual variables and features, so they reveal changed features.
        if not same or not np.allclose(self._vectors(packed["dual"]), packed["vectors"], rtol=1e-9, atol=1e-12):
            raise DataError(
                f"the rows of task {self.data.members[0]!r} and others are not those of the checkpoint: name another "
                "folder to resume from, or remove this one to begin anew"
            )
        for name in CHANGING:
            setattr(self, name, np.array(packed[name]))
        self.restored = True

    def improve(self, request: Request) -> Update:
        """Evaluate the weights, and take local steps: DMTRL, Algorithm 2."""
        self.restored = False
        if request.keep < 1.0:
            self.dual = self._kept(request.keep)
            self.vectors = self.last_vectors + request.keep * (self.vectors - self.last_vectors)
        loss, before, slack = self._evaluate(request.weights).T
        # Steps start from the models of dual variables extrapolated in the direction of the last step.
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
        """Set the dual variables to those of the given weights: minus the slopes of the losses."""
        margins = np.zeros(self.data.n_rows)
        margins_kernel(self.rows, self.start, frozen(weights), margins)
        slopes_kernel(self.loss, margins, self.labels, self.dual)
        np.negative(self.dual, out=self.dual)

    def evaluate(self, weights: np.ndarray, keep: float = 1.0) -> np.ndarray:
        """Return mean loss, mean conjugate and slack of every task, (k, 3), at the given weights."""
        return self._evaluate(weights, self._kept(keep))

    def _kept(self, keep: float) -> np.ndarray:
        """Return the dual variables if only the fraction `keep` of the last step is applied."""
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
        """Return ``b_i = 1/n_i sum_j a_ij x_ij``."""
        out = np.zeros((self.data.n, self.data.p))
        scatter_kernel(self.rows, self.start, self.row_weight[self.data.owner] * dual, out)
        return out


def check_tasks(data: AgentData, loss: Any) -> None:
    """Refuse tasks without rows, in one message, and labels that the loss cannot use; one class in a task is enough."""
    if data.y is None:
        raise DataError("the data have no labels: relationship learning needs y")
    empty = np.flatnonzero(data.sizes == 0)
    if empty.size:
        others = ", ".join(repr(data.members[i]) for i in empty[1:20].tolist()) + (", ..." if empty.size > 20 else "")
        more = f"; {empty.size - 1} more tasks have no rows: {others}" if empty.size > 1 else ""
        raise DataError(
            f"task {data.members[empty[0]]!r} has no rows: every task needs some, or must be left out{more}"
        )
    if loss.labels == SIGNS:
        why = f"{loss!r} needs -1 or +1: encode the classes so, or use ct.RelationshipClassifier, which does"
        refuse_labels(data, np.abs(data.y) != 1.0, why)
