"""The objective F of :mod:`coterie.problem.exact` and its derivatives, computed with the loss rules of coterie.

All quantities are computed for a few agents at a time, in threads, and combined in an order that does not depend on the
number of threads. Dense rows are processed by NumPy in batches of agents with similar numbers of rows
(:mod:`coterie.core.batches`); CSR rows, and quantities of single rows, are processed by compiled loops.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from ..._threads import in_threads
from ...core.batches import MAX_BATCH_ENTRIES, batches, padded
from ...core.exact import loss_kernel, pull_kernel
from ...core.linear import (
    DenseRows,
    SparseRows,
    diagonal_kernel,
    frozen,
    gram_kernel,
    margins_kernel,
    row_norms_kernel,
    scatter_kernel,
)
from ...graphs import Graph, empty

#: Largest number of numbers in a batch of rows of one agent.
MAX_PIECE_NUMBERS = 1 << 22
#: Number of agents that a thread processes at a time, in operations with one vector for each agent.
AGENTS_PER_SPAN = 4096
#: Largest number of numbers in the p x p blocks of all agents; more are allowed up to four times the dense rows.
MAX_BLOCK_NUMBERS = 40_000_000

_NOTHING = np.zeros(0)


class Sweep(NamedTuple):
    """Results of one pass over all rows at models Theta."""

    value: np.ndarray  # (n,) F split over the agents
    gradient: np.ndarray  # (n, p)
    bend: np.ndarray  # second derivative of the losses: (n, p, p), or (n, p) if diagonal, or (rows,) weights of rows


class RowBatch(NamedTuple):
    """Rows of k agents with similar numbers of rows, padded to the same number m by rows of weight zero."""

    X: np.ndarray  # (k, m, p)
    labels: np.ndarray  # (k, m)
    scale: np.ndarray  # (k, m)

    def margins(self, theta: np.ndarray) -> np.ndarray:
        """Return ``x_r . theta_i``, (k, m)."""
        return np.matmul(self.X, theta[..., None])[..., 0]

    def scatter(self, weights: np.ndarray) -> np.ndarray:
        """Return ``sum_r weights_r x_r``, (k, p)."""
        return np.matmul(weights[:, None, :], self.X)[:, 0]

    def bend(self, weights: np.ndarray) -> np.ndarray:
        """Return ``sum_r weights_r x_r x_r'``, (k, p, p)."""
        return np.matmul(self.X.transpose(0, 2, 1) * weights[:, None, :], self.X)


class PointBatch(NamedTuple):
    """Unlabelled points of k agents, padded as in :class:`RowBatch`.

    Each coordinate of a point is an example: its features are a unit vector, its label is the coordinate.
    """

    labels: np.ndarray  # (k, m, p)
    scale: np.ndarray  # (k, m, 1)

    def margins(self, theta: np.ndarray) -> np.ndarray:
        """Return theta_i for every point, (k, m, p)."""
        return np.repeat(theta[:, None, :], self.labels.shape[1], axis=1)

    def scatter(self, weights: np.ndarray) -> np.ndarray:
        """Return sums over the points of each agent, (k, p)."""
        return weights.sum(axis=1)

    def bend(self, weights: np.ndarray) -> np.ndarray:
        """Return the diagonals of ``sum_r weights_r x_r x_r'``, (k, p)."""
        return self.scatter(weights)


def examples(loss: Any, margins: np.ndarray, labels: np.ndarray, order: int) -> list[np.ndarray]:
    """Return the loss of every example, and its derivatives up to `order`, 1 or 2."""
    out = [np.empty(margins.size) if k <= order else _NOTHING for k in range(3)]
    loss_kernel(loss, np.ascontiguousarray(margins).ravel(), frozen(labels.ravel()), *out)
    return [part.reshape(margins.shape) for part in out[: order + 1]]


def swept(batch: RowBatch | PointBatch, loss: Any, theta: np.ndarray, order: int) -> list[np.ndarray]:
    """Return sums of the losses of each agent of a batch, and their derivatives up to `order`, 1 or 2."""
    parts = [batch.scale * part for part in examples(loss, batch.margins(theta), batch.labels, order)]
    k = theta.shape[0]
    sums = (batch.scatter, batch.bend)
    return [parts[0].reshape(k, -1).sum(axis=1), *(add(part) for add, part in zip(sums, parts[1:], strict=False))]


@dataclass(frozen=True)
class Objective:
    """F of :mod:`coterie.problem.exact`, with its derivatives."""

    rows: DenseRows | SparseRows  # examples grouped by agent: agent i has examples start[i] to start[i + 1] - 1
    start: np.ndarray
    labels: np.ndarray
    loss: Any
    # c_r, the weight of each example: (rows,), or (n, 1) if the examples of an agent have equal weights.
    scale: np.ndarray
    ridge: np.ndarray  # (n, 1) or (n, p) R_i, the weight of each |theta_i|^2, or of each coordinate's square
    graph: Graph
    smooth: float  # s
    p: int  # features
    n_jobs: int | None = field(default=None, kw_only=True)

    @property
    def n(self) -> int:
        """Number of agents."""
        return self.start.shape[0] - 1

    def part(self, first: int, last: int) -> Objective:
        """Return the objective of agents ``first`` to ``last - 1`` of a graph without edges."""
        a, b = self.start[first], self.start[last]
        return replace(
            self,
            rows=self.rows.take(a, b),
            start=frozen(self.start[first : last + 1] - a),
            labels=self.labels[a:b],
            scale=self.scale[first:last] if self.scale.ndim == 2 else self.scale[a:b],
            ridge=self.ridge[first:last],
            graph=empty(last - first),
        )

    # -- some agents at a time ----------------------------------------------------------------------------------

    def in_threads(self, work: Callable[[Any], Any], parts: list[Any]) -> list[Any]:
        """Return ``[work(part) for part in parts]``, computed in several threads if the problem is large enough."""
        if len(parts) == 1 or max(self.labels.shape[0], self.n) * self.p <= 4 * MAX_BATCH_ENTRIES:
            return [work(part) for part in parts]
        return in_threads(work, parts, self.n_jobs)

    @cached_property
    def spans(self) -> list[tuple[int, int]]:
        """Ranges of agents (first, last) that are processed at a time."""
        return [(a, min(a + AGENTS_PER_SPAN, self.n)) for a in range(0, self.n, AGENTS_PER_SPAN)]

    @property
    def in_batches(self) -> bool:
        """Whether NumPy can process batches of rows: the rows are dense, or unlabelled points."""
        return bool(self.loss.unlabelled) or isinstance(self.rows, DenseRows)

    @cached_property
    def batches(self) -> list[tuple[np.ndarray, np.ndarray, np.ndarray, int]]:
        """For each batch: agents, their first rows (or points), numbers of rows, and number of rows after padding.

        Every agent is in one batch, except agents with very many rows: each piece of their rows is a batch of its own.
        """
        unit = self.p if self.loss.unlabelled else 1
        first, sizes = self.start[:-1] // unit, np.diff(self.start) // unit
        most = max(1, MAX_PIECE_NUMBERS // self.p)
        large = sizes > most
        parts = []
        for agents, width in batches(np.where(large, 0, sizes), self.p):
            at_once = max(1, 4 * MAX_BATCH_ENTRIES // self.p**2)  # bounds the memory of their p x p blocks
            for k in range(0, agents.shape[0], at_once):
                some = agents[k : k + at_once]
                parts.append((some, first[some], sizes[some], width))
        for i in np.flatnonzero(large):
            for a in range(0, int(sizes[i]), most):
                size = min(most, int(sizes[i]) - a)
                parts.append((np.array([i]), first[[i]] + a, np.array([size]), size))
        return parts

    def whole(self, agents: np.ndarray, sizes: np.ndarray) -> bool:
        """Whether a batch holds all rows of its agents."""
        unit = self.p if self.loss.unlabelled else 1
        return bool(sizes[0] * unit == self.start[agents[0] + 1] - self.start[agents[0]])

    def batch(self, part: Any, weights: np.ndarray | None = None) -> RowBatch | PointBatch:
        """Return the rows of a batch, as float64; if `weights` of rows are given, they replace c_r."""
        agents, first, sizes, width = part
        index, real = padded(first, sizes, width)
        scale = self.scale if weights is None else weights
        if self.loss.unlabelled and scale.ndim == 1:
            scale = scale[:: self.p]
        scale = np.where(real, scale[agents] if scale.ndim == 2 else scale.take(index), 0.0)
        if self.loss.unlabelled:
            points = self.labels.reshape(-1, self.p).take(index, axis=0).astype(np.float64, copy=False)
            return PointBatch(points, scale[..., None])
        X = self.rows.values.take(index, axis=0).astype(np.float64, copy=False)
        return RowBatch(X, self.labels.take(index), scale)

    def over_batches(
        self,
        work: Callable[[Any, np.ndarray], list[np.ndarray]],
        out: list[np.ndarray],
        weights: np.ndarray | None = None,
    ) -> None:
        """Apply `work` to the rows and agents of each batch, and write its results to `out`, arrays over the agents."""

        def one(part: Any) -> Any:
            found = work(self.batch(part, weights), part[0])
            if not self.whole(part[0], part[2]):
                return part[0], found
            for array, rows in zip(out, found, strict=True):
                array[part[0]] = rows
            return None

        for piece in self.in_threads(one, self.batches):
            if piece is not None:
                for array, rows in zip(out, piece[1], strict=True):
                    array[piece[0]] += rows

    # -- F and its derivatives ----------------------------------------------------------------------------------

    def sweep(self, theta: np.ndarray, order: int = 2) -> Sweep:
        """Return F, its gradient, and for an order of 2 the bend of the losses, in one pass over the rows."""
        value, gradient, bend = np.zeros(self.n), np.zeros((self.n if order > 0 else 0, self.p)), _NOTHING
        if self.in_batches and not (order == 2 and self.bend_shape == 1):
            if order == 2:
                bend = np.zeros((self.n, self.p) if self.bend_shape == 2 else (self.n, self.p, self.p))
            out = [value, gradient, bend][: order + 1]
            self.over_batches(lambda batch, agents: swept(batch, self.loss, theta[agents], order), out)
        else:
            parts = self.examples(self.margins(theta))
            value += self.by_agent(self.row_scale * parts[0])
            if order > 0:
                gradient += self.scatter(self.row_scale * parts[1], theta.shape)
            if order > 1:
                bend = self.bend(self.row_scale * parts[2])
        value += self.quadratic(theta)
        if order > 0:
            gradient += self.quadratic_gradient(theta)
        return Sweep(value, gradient, bend)

    def value(self, theta: np.ndarray) -> np.ndarray:
        """Return F split over the agents, (n,)."""
        return self.sweep(theta, 0).value

    def gradient(self, theta: np.ndarray) -> np.ndarray:
        """Return ``dF / dTheta``, (n, p)."""
        return self.sweep(theta, 1).gradient

    def quadratic(self, theta: np.ndarray) -> np.ndarray:
        """Return smoothness and ridge terms, (n,); the term of an edge counts for the agent with the lower number."""
        start, peer, weight = self.graph.start, self.graph.peer, self.graph.weight

        def work(span: tuple[int, int]) -> np.ndarray:
            first, last = span
            j, w = peer[start[first] : start[last]], weight[start[first] : start[last]]
            i = np.repeat(np.arange(first, last), np.diff(start[first : last + 1]))
            once = i < j
            i, j, w = i[once], j[once], w[once]
            apart = np.square(theta[i] - theta[j]).sum(axis=1)
            coupling = np.bincount(i - first, weights=self.smooth * w * apart, minlength=last - first)
            return coupling + (self.ridge[first:last] * np.square(theta[first:last])).sum(axis=1)

        return np.concatenate(self.in_threads(work, self.spans))

    def quadratic_gradient(self, theta: np.ndarray) -> np.ndarray:
        """Return the gradient of the smoothness and ridge terms, ``2 s (D - W) Theta + 2 R Theta``."""
        out, theta = np.empty(theta.shape), np.ascontiguousarray(theta)

        def work(span: tuple[int, int]) -> None:
            first, last = span
            np.multiply(2.0 * self.ridge[first:last], theta[first:last], out=out[first:last])
            self.add_edges(theta, first, out[first:last])

        self.in_threads(work, self.spans)
        return out

    def add_edges(self, theta: np.ndarray, first: int, out: np.ndarray) -> None:
        """Add ``2 s (D - W) Theta`` to `out`, for agents from `first` on."""
        if self.graph.n_edges:
            pull_kernel(self.graph.start, self.graph.peer, self.graph.weight, 2.0 * self.smooth, first, theta, out)

    @cached_property
    def bend_shape(self) -> int:
        """Form of the second derivative of the losses: 3 for blocks, 2 for their diagonals, 1 for weights of rows.

        Blocks are diagonal if every row has one nonzero coordinate, as in mean estimation and propagation.
        """
        if self.loss.unlabelled:
            return 2
        if isinstance(self.rows, SparseRows) and bool(np.all(np.diff(self.rows.start) <= 1)):
            return 2
        stored = self.rows.values.size if isinstance(self.rows, DenseRows) else 0
        return 3 if self.n * self.p**2 <= max(MAX_BLOCK_NUMBERS, 4 * stored) else 1

    def bend(self, weights: np.ndarray) -> np.ndarray:
        """Return ``X' diag(weights) X`` in the form of :attr:`bend_shape`: blocks, diagonals, or `weights` itself."""
        if self.bend_shape == 1:
            return weights
        return self.diagonals(weights) if self.bend_shape == 2 else self.blocks(weights)

    def blocks(self, weights: np.ndarray) -> np.ndarray:
        """Return ``X_i' diag(weights) X_i`` of each agent, (n, p, p)."""
        out = np.zeros((self.n, self.p, self.p))
        if isinstance(self.rows, SparseRows):
            gram_kernel(self.rows, self.start, weights, np.arange(self.n), out)
            return out
        self.over_batches(lambda batch, _: [batch.bend(batch.scale)], [out], weights)
        return out

    def grams(self, weights: np.ndarray | None = None) -> np.ndarray:
        """Return ``sum_r c_r weights_r x_r x_r'`` over each connected component, (components, p, p)."""
        out = np.zeros((self.graph.n_components, self.p, self.p))
        scale = self.row_scale if weights is None else self.row_scale * weights
        gram_kernel(self.rows, self.start, scale, self.graph.components, out)
        return out

    # -- numbers for single rows --------------------------------------------------------------------------------

    def margins(self, theta: np.ndarray) -> np.ndarray:
        """Return ``x_r . theta_i(r)`` for every row."""
        out, theta = np.zeros(self.labels.shape[0]), np.ascontiguousarray(theta)
        self.in_threads(
            lambda span: margins_kernel(self.rows, self.start[span[0] : span[1] + 1], theta[span[0] : span[1]], out),
            self.spans,
        )
        return out

    def scatter(self, weights: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
        """Return ``sum_r weights_r x_r`` for every agent."""
        out = np.zeros(shape)
        self.in_threads(
            lambda span: scatter_kernel(self.rows, self.start[span[0] : span[1] + 1], weights, out[span[0] : span[1]]),
            self.spans,
        )
        return out

    def examples(self, margins: np.ndarray) -> list[np.ndarray]:
        """Return loss, slope and curvature of every example."""
        return examples(self.loss, margins, self.labels, 2)

    def row_norms(self) -> np.ndarray:
        """Return ``|x_r|`` for every row."""
        out = np.zeros(self.labels.shape[0])
        row_norms_kernel(self.rows, out)
        return out

    def diagonals(self, weights: np.ndarray) -> np.ndarray:
        """Return ``sum_r weights_r x_r * x_r`` over each agent, (n, p)."""
        out = np.zeros((self.n, self.p))
        diagonal_kernel(self.rows, self.start, weights, out)
        return out

    @cached_property
    def row_scale(self) -> np.ndarray:
        """c_r of every row."""
        return np.repeat(self.scale[:, 0], np.diff(self.start)) if self.scale.ndim == 2 else self.scale

    @cached_property
    def owner(self) -> np.ndarray:
        """The agent of each row."""
        return np.repeat(np.arange(self.n), np.diff(self.start))

    def by_agent(self, per_row: np.ndarray) -> np.ndarray:
        """Sum a number per row over each agent."""
        return np.bincount(self.owner, weights=per_row, minlength=self.n)

    # -- connected components -----------------------------------------------------------------------------------

    @property
    def n_components(self) -> int:
        """Number of connected components."""
        return self.graph.n_components

    @cached_property
    def group(self) -> np.ndarray:
        """The connected component of each row."""
        return self.graph.components[self.owner]

    @cached_property
    def component_order(self) -> tuple[np.ndarray, np.ndarray]:
        """The agents in the order of their components, and the first position of each component."""
        order = np.argsort(self.graph.components, kind="stable")
        return order, np.concatenate([[0], np.cumsum(np.bincount(self.graph.components))[:-1]])

    def by_component(self, per_agent: np.ndarray) -> np.ndarray:
        """Sum a number per agent over each connected component."""
        return np.bincount(self.graph.components, weights=per_agent, minlength=self.n_components)

    def rows_by_component(self, per_row: np.ndarray) -> np.ndarray:
        """Sum a number per row over each connected component."""
        return self.by_component(self.by_agent(per_row))

    def least(self, per_row: np.ndarray) -> np.ndarray:
        """Return the smallest of the numbers of rows of each connected component; infinite without rows."""
        out, some = np.full(self.n, np.inf), np.diff(self.start) > 0
        if some.any():
            out[some] = np.minimum.reduceat(per_row, self.start[:-1][some])
        order, first = self.component_order
        return np.minimum.reduceat(out[order], first)

    def largest(self, vectors: np.ndarray) -> np.ndarray:
        """Return the largest absolute value in the vectors of each connected component."""
        order, first = self.component_order
        return np.maximum.reduceat(np.abs(vectors).max(axis=1, initial=0.0)[order], first)

    def inner(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """Return the inner product of two vectors of all models, for each connected component."""
        return self.by_component(np.einsum("ik,ik->i", a, b))

    def norm(self, vectors: np.ndarray) -> np.ndarray:
        """Return the norm of a vector of all models, for each connected component."""
        return np.sqrt(self.inner(vectors, vectors))

    def spread(self, per_component: np.ndarray, vectors: np.ndarray) -> np.ndarray:
        """Multiply the vector of every agent by the entry of `per_component` of its component."""
        if per_component.shape[0] == 1:
            return per_component[0] * vectors
        return per_component[self.graph.components][:, None] * vectors

    def agent_of(self, component: int) -> int:
        """Return the number of the first agent of a component."""
        order, first = self.component_order
        return int(order[first[component]])
