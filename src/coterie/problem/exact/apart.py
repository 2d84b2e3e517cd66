"""The exact minimiser for agents without edges, a batch that fits in the cache at a time."""

from __future__ import annotations

from typing import Any

import numpy as np

from .newton import newton, newton_connected, unseen
from .objective import Objective, PointBatch, RowBatch, Sweep, swept
from .systems import InexactSolver, Solver, everything


class SeparateAgents:
    """F of a batch of agents without edges, in the form that :func:`coterie.problem.exact.newton.newton` takes."""

    def __init__(self, batch: RowBatch | PointBatch, agents: np.ndarray, loss: Any, ridge: np.ndarray, p: int):
        self.batch, self.agents, self.loss, self.ridge = batch, agents, loss, ridge
        self.n = self.n_components = agents.shape[0]
        self.p = p
        self.flat: np.ndarray | None = None

    def sweep(self, theta: np.ndarray) -> Sweep:
        """Return F, its gradient and its Hessian, with the ridge."""
        value, gradient, bend = swept(self.batch, self.loss, theta, 2)
        value += (self.ridge * np.square(theta)).sum(axis=1)
        gradient += 2.0 * self.ridge * theta
        diagonal = bend if bend.ndim == 2 else np.einsum("ikk->ik", bend)  # a view
        diagonal += 2.0 * self.ridge
        return Sweep(value, gradient, bend)

    def flat_directions(self) -> Solver:
        """Return the projection that removes flat directions, see :func:`coterie.problem.exact.newton.flat_directions`.

        A flat direction is one along which all rows of an agent are zero and the agent has no ridge.
        """
        free = self.ridge.max(axis=1) == 0
        if isinstance(self.batch, PointBatch) or not free.any():
            return everything
        self.flat = flat = unseen(self.batch.bend(self.batch.scale), free)
        return everything if flat is None else lambda vector: vector - np.matmul(flat, vector[..., None])[..., 0]

    def solver(self, bend: np.ndarray, project: Solver) -> InexactSolver:
        """Return a solver of the linear system with each agent's Hessian."""
        diagonal = bend if bend.ndim == 2 else np.einsum("ikk->ik", bend)
        diagonal[diagonal == 0.0] = 1.0  # a feature that the agent does not have
        if bend.ndim == 2:
            return lambda target, _: target / diagonal
        unit = 1.0 / np.sqrt(diagonal)  # features may differ by many orders of magnitude
        blocks = bend
        blocks *= unit[:, :, None]
        blocks *= unit[:, None, :]
        if self.flat is not None:  # flat directions may have any stiffness: every target is zero along them
            stiff = self.flat * (unit[:, :, None] * unit[:, None, :])
            most = np.einsum("ikk->ik", stiff).max(axis=1)
            blocks += stiff / np.where(most > 0, most, 1.0)[:, None, None]

        def solve(target: np.ndarray, _: float) -> np.ndarray:
            diagonal = np.einsum("ikk->ik", blocks)
            for damping in (1e-15, 1e-14, 1e-12, 1e-10):
                diagonal += damping
                try:
                    return project(unit * np.linalg.solve(blocks, (unit * target)[..., None])[..., 0])
                except np.linalg.LinAlgError:
                    continue
            return project(target * unit * unit)

        return solve

    def by_component(self, per_agent: np.ndarray) -> np.ndarray:
        """Return `per_agent`: each agent is a component."""
        return per_agent

    def inner(self, a: np.ndarray, b: np.ndarray) -> np.ndarray:
        """Return the inner products of the vectors of each agent."""
        return np.einsum("ik,ik->i", a, b)

    def largest(self, vectors: np.ndarray) -> np.ndarray:
        """Return the largest absolute value in the vector of each agent."""
        return np.abs(vectors).max(axis=1)

    def spread(self, per_component: np.ndarray, vectors: np.ndarray) -> np.ndarray:
        """Multiply the vector of every agent by the agent's entry of `per_component`."""
        return per_component[:, None] * vectors

    def agent_of(self, component: int) -> int:
        """Return the number of an agent."""
        return int(self.agents[component])


def _newton(agents: SeparateAgents) -> np.ndarray:
    project = agents.flat_directions()
    return newton(agents, project, lambda bend: agents.solver(bend, project))


def newton_apart(objective: Objective) -> np.ndarray:
    """Return the minimiser of F for agents without edges, for a loss with a gradient."""
    theta = np.zeros((objective.n, objective.p))

    def work(part: Any) -> None:
        agents, _, sizes, _ = part
        if not objective.whole(agents, sizes):
            return
        batch = objective.batch(part)
        theta[agents] = _newton(SeparateAgents(batch, agents, objective.loss, objective.ridge[agents], objective.p))

    objective.in_threads(work, objective.batches)
    for i in {int(agents[0]) for agents, _, sizes, _ in objective.batches if not objective.whole(agents, sizes)}:
        theta[i] = newton_connected(objective.part(i, i + 1))[0]
    return theta
