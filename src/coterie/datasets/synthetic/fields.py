"""A smooth field measured by sensors, some of which are outliers (DJAM, Section IV)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.spatial.distance import cdist

from ..._checks import ascending, nonnegative, positive, probability
from ...core.losses import Huber, Location
from ...data.agent_data import AgentData
from ...errors import ParameterError
from ...graphs import Graph, knn
from ...problem.problem import Problem


@dataclass(frozen=True)
class FieldTask:
    """A field estimation task: each agent estimates the value of a field at its position.

    Attributes
    ----------
    points : AgentData
        The measurement of each agent: one unlabelled number.
    graph : Graph
        Weights are sigma_ij: minus the off-diagonal entries of the precision matrix.
    ridge : (n,) ndarray
        sigma_ii / 2, where sigma_ii is the sum of row i of the precision matrix.
    values : (n, 1) ndarray
        The true values of the field.
    positions : (n, 2) ndarray
        Positions of the agents in the unit square.
    outlier : (n,) ndarray of bool
        Whether each agent's measurement is an outlier.
    """

    points: AgentData
    graph: Graph
    ridge: np.ndarray
    values: np.ndarray
    positions: np.ndarray
    outlier: np.ndarray

    @property
    def precision(self) -> np.ndarray:
        """The inverse of the covariance of the values, (n, n).

        Examples
        --------
        >>> task = field_estimation(n=6, seed=0)
        >>> bool(np.allclose(task.precision.sum(axis=1), 2.0 * task.ridge))
        True
        """
        return _precision(self.graph, 2.0 * self.ridge)

    def problem(self, delta: float = 1.0) -> Problem:
        """Return the problem of the posterior of the values, DJAM (9): its optimum is the most probable field.

        ``sum_i phi(y_i - theta_i) + 1/2 theta' Q theta``, with Q the precision matrix, is the problem DJAM (1) with
        ``f_i(theta) = phi(y_i - theta) + sigma_ii / 2 theta^2``.

        Parameters
        ----------
        delta : float
            Residual from which on the penalty phi is linear: :class:`coterie.Huber`.

        Returns
        -------
        Problem

        Examples
        --------
        >>> task = field_estimation(seed=0)
        >>> task.error(task.problem().solve()) < task.error(task.points.X)
        True
        """
        positive("delta", delta)
        return Problem.separate(self.points, self.graph, loss=Location(Huber(delta)), ridge=self.ridge)

    def error(self, theta: np.ndarray) -> float:
        """Return the mean squared error of the models.

        Parameters
        ----------
        theta : (n, 1) ndarray

        Returns
        -------
        float

        Examples
        --------
        >>> task = field_estimation(seed=0)
        >>> task.error(task.values)
        0.0
        """
        if np.shape(theta) != self.values.shape:
            raise ParameterError(f"theta has shape {np.shape(theta)}: expected {self.values.shape}, a row per agent")
        return float(np.mean(np.square(theta - self.values)))


def field_estimation(
    n: int = 30,
    seed: int | np.random.Generator = 0,
    neighbours: int = 4,
    noise: float = 0.5,
    outliers: float = 0.1,
    outlier_noise: float = 10.0,
    coupling: tuple[float, float] = (0.5, 1.5),
    own: tuple[float, float] = (0.02, 0.1),
) -> FieldTask:
    """Estimation of a smooth field (DJAM, Section IV).

    Agents are uniform in a square, with edges between near agents. The values of the field at their positions have a
    normal distribution of mean 0, whose precision matrix has entries -sigma_ij for neighbours, and rows that sum to
    sigma_ii (the paper's signs and diagonal are different, and make no problem of its form: erratum 13). Each agent
    measures its value with noise.

    The paper describes these parameters, but gives no values except n: the defaults are ours.

    Parameters
    ----------
    n : int
        Number of agents, at least 2.
    seed : int or Generator
    neighbours : int
        Number of nearest agents of each agent: two agents have an edge if one is among the nearest of the other. The
        shortest edges between components are added, so that the graph is connected.
    noise : float
        Standard deviation of the noise.
    outliers : float
        Probability that a measurement is an outlier.
    outlier_noise : float
        Standard deviation of the noise of outliers.
    coupling : (float, float)
        sigma_ij of neighbours are uniform between these positive numbers: larger values make the field smoother.
    own : (float, float)
        sigma_ii are uniform between these positive numbers: smaller values let the field vary further from 0.

    Returns
    -------
    FieldTask

    Examples
    --------
    >>> task = field_estimation(seed=0)
    >>> task.points.n, task.points.n_rows, task.graph.n_components
    (30, 30, 1)
    """
    if n < 2:
        raise ParameterError(f"n={n}: a field needs at least 2 agents")
    nonnegative("noise", noise)
    nonnegative("outlier_noise", outlier_noise)
    probability("outliers", outliers)
    ascending("coupling", coupling)
    ascending("own", own)
    rng = np.random.default_rng(seed)
    positions = rng.uniform(size=(n, 2))
    i, j, _ = _joined(knn(positions, neighbours), positions).edges()
    graph = Graph.from_edges(n, i, j, rng.uniform(*coupling, i.shape[0]))
    sums = rng.uniform(*own, n)
    # If the precision is L L', then L'^-1 z has its inverse as covariance.
    factor = np.linalg.cholesky(_precision(graph, sums))
    values = np.linalg.solve(factor.T, rng.standard_normal(n))
    error = rng.standard_normal(n)
    outlier = rng.random(n) < outliers
    measured = values + error * np.where(outlier, outlier_noise, noise)
    points = AgentData(measured[:, None], agents=range(n))
    return FieldTask(points, graph, sums / 2.0, values[:, None], positions, outlier)


def _precision(graph: Graph, sums: np.ndarray) -> np.ndarray:
    """Return the matrix with -sigma_ij off the diagonal, and rows that sum to sigma_ii (erratum 13)."""
    return np.diag(sums) + graph.laplacian().toarray()


def _joined(graph: Graph, positions: np.ndarray) -> Graph:
    """Connect the components of a graph by the shortest edges, as in Kruskal's algorithm."""
    while graph.n_components > 1:
        part = graph.components
        apart = np.where(part[:, None] == part, np.inf, cdist(positions, positions))
        a, b = np.unravel_index(np.argmin(apart), apart.shape)
        i, j, weight = graph.edges()
        graph = Graph.from_edges(graph.n, np.append(i, a), np.append(j, b), np.append(weight, 1.0))
    return graph
