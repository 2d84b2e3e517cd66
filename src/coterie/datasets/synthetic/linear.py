"""Linear separators in a plane, more or less similar (CL, Section 5.2; CD, Section 5)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ..._checks import ascending, integer, probability
from ...data.agent_data import AgentData, means
from ...errors import ParameterError
from ...graphs import Graph, angles


@dataclass(frozen=True)
class LinearTask:
    """A collaborative linear classification task.

    Attributes
    ----------
    train, test : AgentData
        Labels are -1 and +1.
    graph : Graph
        Weights from the angles between the targets.
    targets : (n, p) ndarray
        The true separators of the agents.
    """

    train: AgentData
    test: AgentData
    graph: Graph
    targets: np.ndarray

    def accuracy(self, theta: np.ndarray) -> np.ndarray:
        """Return the test accuracy of each agent's model.

        Parameters
        ----------
        theta : (n, p) ndarray

        Returns
        -------
        (n,) ndarray

        Examples
        --------
        >>> task = linear_classification(n=4, p=2, seed=0)
        >>> task.accuracy(task.targets).tolist()
        [1.0, 1.0, 1.0, 1.0]
        """
        margins = np.einsum("rk,rk->r", self.test.X, theta[self.test.owner])
        right = np.where(margins >= 0, 1.0, -1.0) == self.test.y
        return means(self.test, right)


def linear_classification(
    n: int = 100,
    p: int = 20,
    seed: int | np.random.Generator = 0,
    rows: tuple[int, int] = (10, 100),
    test_rows: int = 100,
    noise: float = 0.05,
    gamma: float = 0.1,
    cut: float = 1e-3,
) -> LinearTask:
    """Collaborative linear classification (CL, Section 5.2; CD, Section 5).

    The true separator of each agent in R^p has two standard normal entries, and its other entries are zero. Points are
    uniform in the cube [-1, 1]^p, labelled by the separator, with some training labels flipped. Agents whose separators
    form an angle phi are connected by an edge of weight ``exp((cos phi - 1) / gamma)``.

    Parameters
    ----------
    n, p : int
        Number of agents, and of features.
    seed : int or Generator
    rows : (int, int)
        Range of the number of training rows of an agent, which is uniform between these two, inclusive.
    test_rows : int
        Number of test rows of every agent.
    noise : float
        Probability that a training label is flipped.
    gamma : float
        Angular scale of the weights: smaller values give smaller weights for the same angle.
    cut : float
        Smaller weights are dropped.

    Returns
    -------
    LinearTask

    Examples
    --------
    >>> task = linear_classification(n=10, p=5, seed=0)
    >>> task.train.n, task.train.p, bool(task.train.sizes.min() >= 10)
    (10, 5, True)
    """
    integer("n", n)
    if p < 2:
        raise ParameterError(f"p={p}: the targets lie in the first two dimensions, so p must be at least 2")
    ascending("rows", rows)
    integer("test_rows", test_rows)
    probability("noise", noise)
    rng = np.random.default_rng(seed)
    targets = np.zeros((n, p))
    targets[:, :2] = rng.normal(size=(n, 2))

    def draw(sizes: np.ndarray, noise: float) -> AgentData:
        owner = np.repeat(np.arange(n), sizes)
        X = rng.uniform(-1.0, 1.0, size=(owner.size, p))
        y = np.where(np.einsum("rk,rk->r", X, targets[owner]) >= 0, 1.0, -1.0)
        y[rng.random(owner.size) < noise] *= -1.0
        return AgentData(X, y, agents=owner, members=range(n))

    train = draw(rng.integers(rows[0], rows[1], size=n, endpoint=True), noise)
    return LinearTask(train, draw(np.full(n, test_rows), 0.0), angles(targets, gamma=gamma, cut=cut), targets)
