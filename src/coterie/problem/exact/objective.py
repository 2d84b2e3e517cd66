"""The objective that is minimised, and its derivatives, with the same loss rules as everything else."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

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


@dataclass(frozen=True)
class Objective:
    """F of :mod:`coterie.problem.exact`, with its derivatives."""

    rows: DenseRows | SparseRows  # examples grouped by agent: those of agent i from start[i] on
    start: np.ndarray
    labels: np.ndarray
    loss: Any
    scale: np.ndarray  # (rows,) c_r, the weight of each example
    ridge: np.ndarray  # (n, 1) or (n, p) R_i, the weight of each |theta_i|^2, or of each coordinate's square
    graph: Graph
    smooth: float  # s
    p: int  # features

    def part(self, first: int, last: int) -> Objective:
        """The objective of agents ``first`` to ``last - 1``, where nobody is tied to anybody."""
        a, b = self.start[first], self.start[last]
        return Objective(
            self.rows.take(a, b),
            frozen(self.start[first : last + 1] - a),
            self.labels[a:b],
            self.loss,
            self.scale[a:b],
            self.ridge[first:last],
            empty(last - first),
            self.smooth,
            self.p,
        )

    def margins(self, theta: np.ndarray) -> np.ndarray:
        """``x_r . theta_i(r)`` for every row."""
        out = np.zeros(self.labels.shape[0])
        margins_kernel(self.rows, self.start, np.ascontiguousarray(theta), out)
        return out

    def scatter(self, weights: np.ndarray, shape: tuple[int, int]) -> np.ndarray:
        """``sum_r weights_r x_r`` for every agent."""
        out = np.zeros(shape)
        scatter_kernel(self.rows, self.start, weights, out)
        return out

    def examples(self, margins: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Loss, slope and curvature of every example."""
        value, slope, curvature = np.zeros((3, margins.shape[0]))
        loss_kernel(self.loss, margins, self.labels, value, slope, curvature)
        return value, slope, curvature

    def quadratic(self, theta: np.ndarray) -> np.ndarray:
        """Smoothness and ridge terms, (n,): an edge counts for its lower end."""
        i, j, w = self.graph.edges()
        apart = np.empty(i.shape[0])
        for block in np.array_split(np.arange(i.shape[0]), max(1, i.shape[0] * theta.shape[1] >> 24)):
            apart[block] = np.square(theta[i[block]] - theta[j[block]]).sum(axis=1)
        coupling = np.bincount(i, weights=self.smooth * w * apart, minlength=theta.shape[0])
        return coupling + (self.ridge * np.square(theta)).sum(axis=1)

    def quadratic_gradient(self, theta: np.ndarray) -> np.ndarray:
        """Gradient of the smoothness and ridge terms: ``2 s (D - W) Theta + 2 R Theta``."""
        out = 2.0 * self.ridge * theta
        pull_kernel(self.graph.start, self.graph.peer, self.graph.weight, 2.0 * self.smooth, theta, out)
        return out

    def value(self, theta: np.ndarray) -> np.ndarray:
        """F split over the agents, (n,)."""
        losses = self.examples(self.margins(theta))[0]
        return self.quadratic(theta) + self.by_agent(self.scale * losses)

    def gradient(self, theta: np.ndarray) -> np.ndarray:
        """``dF / dTheta``, (n, p)."""
        slope = self.examples(self.margins(theta))[1]
        return self.quadratic_gradient(theta) + self.scatter(self.scale * slope, theta.shape)

    def grams(self, weights: np.ndarray | None = None) -> np.ndarray:
        """``sum_r c_r weights_r x_r x_r'`` over each connected component, (components, p, p)."""
        out = np.zeros((self.graph.n_components, self.p, self.p))
        scale = self.scale if weights is None else self.scale * weights
        gram_kernel(self.rows, self.start, scale, self.graph.components, out)
        return out

    def row_norms(self) -> np.ndarray:
        """``|x_r|`` for every row."""
        out = np.zeros(self.labels.shape[0])
        row_norms_kernel(self.rows, out)
        return out

    def diagonals(self) -> np.ndarray:
        """``sum_r c_r x_r * x_r`` over each agent, (n, p)."""
        out = np.zeros((self.start.shape[0] - 1, self.p))
        diagonal_kernel(self.rows, self.start, self.scale, out)
        return out

    def norm(self, vectors: np.ndarray) -> np.ndarray:
        """Length of a vector of all models, for each connected component."""
        return np.sqrt(self.by_component(np.square(vectors).sum(axis=1)))

    def by_agent(self, per_row: np.ndarray) -> np.ndarray:
        """Sum a number per row over each agent."""
        return np.bincount(self.owner, weights=per_row, minlength=self.start.shape[0] - 1)

    @cached_property
    def owner(self) -> np.ndarray:
        """The agent of each row."""
        return np.repeat(np.arange(self.start.shape[0] - 1), np.diff(self.start))

    @cached_property
    def group(self) -> np.ndarray:
        """The connected component of each row."""
        return self.graph.components[self.owner]

    def by_component(self, per_agent: np.ndarray) -> np.ndarray:
        """Sum a number per agent over each connected component."""
        return np.bincount(self.graph.components, weights=per_agent, minlength=self.graph.n_components)

    def rows_by_component(self, per_row: np.ndarray) -> np.ndarray:
        """Sum a number per row over each connected component."""
        return np.bincount(self.group, weights=per_row, minlength=self.graph.n_components)

    def spread(self, per_component: np.ndarray, vectors: np.ndarray) -> np.ndarray:
        """Multiply the vector of every agent with the number of its component."""
        return per_component[self.graph.components][:, None] * vectors
