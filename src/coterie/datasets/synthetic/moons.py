"""Rotated moons, with angles in clusters (DADA, Sections 6 and E.1) or uniform (DADA, Section E.5)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from sklearn.datasets import make_moons

from ..._checks import ascending, choice, fraction, integer, nonnegative, positive, probability
from ...data.agent_data import AgentData
from ...errors import ParameterError
from ...graphs import Graph, angles


@dataclass(frozen=True)
class MoonsTask:
    """A collaborative task of rotated moons, which linear models cannot separate.

    Attributes
    ----------
    train, test : AgentData
        Labels are -1 and +1.
    graph : Graph
        The oracle's weights, computed from the angles.
    angles : (n,) ndarray
        Rotation of each agent's moons, in degrees.
    cluster : (n,) ndarray
        Number of each agent's cluster. Agents of a cluster have consecutive numbers. All 0 without clusters.
    """

    train: AgentData
    test: AgentData
    graph: Graph
    angles: np.ndarray
    cluster: np.ndarray


def clustered_moons(
    n: int = 100,
    p: int = 20,
    seed: int | np.random.Generator = 0,
    rows: tuple[int, int] = (3, 15),
    test_rows: int = 100,
    noise: float = 0.05,
    empty: str = "zeros",
    spread: float = 5.0,
    moon_noise: float = 0.05,
    sigma: float = 0.1,
    cut: float = 1e-3,
    clusters: Sequence[float] = (0.1, 0.2, 0.3, 0.4),
    pivot: tuple[float, float] = (0.0, 0.0),
) -> MoonsTask:
    """Clustered moons (DADA, Sections 6 and E.1).

    Each agent separates two interleaved moons, rotated by an angle of its own. The angles form clusters, so that agents
    of the same cluster are useful to each other and others are not. Agents whose angles differ by phi are connected by
    an edge of weight ``exp((cos phi - 1) / sigma)``, which an oracle knows and a learned graph should find.

    Parameters
    ----------
    n, p : int
        Number of agents, and of features. The moons lie in the plane of the first two; the other features are empty.
    seed : int or Generator
    rows : (int, int)
        Range of the number of training rows of an agent, which is uniform between these two, inclusive. An agent with
        at least two rows has both classes before labels are flipped.
    test_rows : int
        Number of test rows of every agent. Their labels are not flipped.
    noise : float
        Probability that a training label is flipped.
    empty : {"zeros", "random"}
        Content of the empty features: zeros, or values uniform in [-1, 1]. The text of the paper says random values,
        but its figures match zeros, which its authors' code also uses: with random values no setting of the learned
        graphs is better than one global model.
    spread : float
        Standard deviation of the angles in a cluster, in degrees.
    moon_noise : float
        Standard deviation of the points around their moon.
    sigma : float
        Angular scale of the weights: smaller values give smaller weights for the same angle.
    cut : float
        Smaller weights are dropped.
    clusters : sequence of float
        Shares of the clusters, whose angles are centred at equal distances: four at 45, 135, 225 and 315 degrees.
    pivot : (float, float)
        The centre of rotation, which becomes the origin. The default is that of scikit-learn and of the authors' code:
        the moons of the clusters then also lie in different places, by which one global model can distinguish many of
        them. Around the moons' centre, (0.5, 0.25), clusters half a turn apart have the same points with opposite
        labels, and no single model is good for both.

    Returns
    -------
    MoonsTask

    Examples
    --------
    >>> task = clustered_moons(seed=0)
    >>> task.train.n, task.train.p, np.bincount(task.cluster).tolist()
    (100, 20, [10, 20, 30, 40])
    >>> bool((task.train.X[:, 2:] == 0.0).all()), np.unique(task.train.y).tolist()
    (True, [-1.0, 1.0])
    """
    nonnegative("spread", spread)
    share = np.asarray(clusters, dtype=np.float64)
    if share.ndim != 1 or share.size == 0 or not (np.isfinite(share).all() and (share > 0.0).all()):
        raise ParameterError(f"clusters={clusters!r} must be shares, one finite number > 0 per cluster")
    # The ends of clusters are rounded, rather than their sizes, so that the sizes add up to n.
    ends = np.rint(max(n, 0) * np.cumsum(share) / share.sum()).astype(int)
    cluster = np.repeat(np.arange(share.size), np.diff(ends, prepend=0))

    def turns(rng: np.random.Generator) -> np.ndarray:
        return rng.normal((cluster + 0.5) * 360.0 / share.size, spread)

    return _task(turns, cluster, n, p, seed, rows, test_rows, noise, empty, moon_noise, sigma, cut, pivot)


def rotated_moons(
    n: int = 100,
    p: int = 20,
    seed: int | np.random.Generator = 0,
    rows: tuple[int, int] = (3, 20),
    test_rows: int = 100,
    noise: float = 0.05,
    empty: str = "zeros",
    moon_noise: float = 0.05,
    sigma: float = 0.1,
    cut: float = 1e-6,
    pivot: tuple[float, float] = (0.0, 0.0),
) -> MoonsTask:
    """Moons rotated by any angle (DADA, Section E.5: Moons100).

    Like :func:`clustered_moons`, but without clusters: each agent has an axis, a standard normal vector of the plane,
    and its moons are rotated by the angle of the axis. Angles are thus uniform, and every agent has similar ones.

    Parameters
    ----------
    n, p : int
        Number of agents, and of features. The moons lie in the plane of the first two; the other features are empty.
    seed : int or Generator
    rows : (int, int)
        Range of the number of training rows of an agent, which is uniform between these two, inclusive. An agent with
        at least two rows has both classes before labels are flipped.
    test_rows : int
        Number of test rows of every agent. Their labels are not flipped.
    noise : float
        Probability that a training label is flipped.
    empty : {"zeros", "random"}
        Content of the empty features: zeros, or values uniform in [-1, 1]. See :func:`clustered_moons`.
    moon_noise : float
        Standard deviation of the points around their moon.
    sigma : float
        Angular scale of the weights: smaller values give smaller weights for the same angle.
    cut : float
        Smaller weights are dropped. With 1e-6, an agent has 61.8 neighbours on average, and 60.86 in the paper, which
        does not give its threshold.
    pivot : (float, float)
        The centre of rotation, which becomes the origin.

    Returns
    -------
    MoonsTask

    Examples
    --------
    >>> task = rotated_moons(seed=0)
    >>> task.train.n, task.train.p, bool(-180.0 <= task.angles.min() <= task.angles.max() <= 180.0)
    (100, 20, True)
    >>> float(task.graph.n_neighbours.mean())
    61.7
    """

    def turns(rng: np.random.Generator) -> np.ndarray:
        axis = rng.normal(size=(n, 2))
        return np.rad2deg(np.arctan2(axis[:, 1], axis[:, 0]))

    one = np.zeros(max(n, 0), dtype=int)
    return _task(turns, one, n, p, seed, rows, test_rows, noise, empty, moon_noise, sigma, cut, pivot)


def _task(
    turns: Callable[[np.random.Generator], np.ndarray],
    cluster: np.ndarray,
    n: int,
    p: int,
    seed: int | np.random.Generator,
    rows: tuple[int, int],
    test_rows: int,
    noise: float,
    empty: str,
    moon_noise: float,
    sigma: float,
    cut: float,
    pivot: tuple[float, float],
) -> MoonsTask:
    """Return moons of all agents, rotated by angles in degrees that `turns` draws."""
    integer("n", n)
    if p < 2:
        raise ParameterError(f"p={p}: the moons lie in the first two dimensions, so p must be at least 2")
    ascending("rows", rows)
    integer("test_rows", test_rows)
    probability("noise", noise)
    choice("empty", empty, ("zeros", "random"))
    nonnegative("moon_noise", moon_noise)
    positive("sigma", sigma)
    fraction("cut", cut)
    centre = np.asarray(pivot, dtype=np.float64)
    if centre.shape != (2,) or not np.isfinite(centre).all():
        raise ParameterError(f"pivot={pivot!r} must be a point of the plane, two finite numbers")
    rng = np.random.default_rng(seed)
    degrees = turns(rng)
    theta = np.deg2rad(degrees)
    # For each agent, the images of the two axes as rows, so that ``points @ turn`` rotates points that are rows.
    turn = np.stack([np.cos(theta), np.sin(theta), -np.sin(theta), np.cos(theta)], axis=1).reshape(n, 2, 2)

    def draw(sizes: np.ndarray, noise: float) -> AgentData:
        owner = np.repeat(np.arange(n), sizes)
        X = np.zeros((owner.size, p))
        if empty == "random":
            X[:, 2:] = rng.uniform(-1.0, 1.0, size=(owner.size, p - 2))
        moons = [make_moons(int(m), noise=moon_noise, random_state=int(rng.integers(2**32))) for m in sizes]
        X[:, :2] = np.concatenate([(points - centre) @ turn[k] for k, (points, _) in enumerate(moons)])
        y = np.where(np.concatenate([lower for _, lower in moons]) == 1, 1.0, -1.0)
        y[rng.random(owner.size) < noise] *= -1.0
        return AgentData(X, y, agents=owner, members=range(n))

    train = draw(rng.integers(rows[0], rows[1], size=n, endpoint=True), noise)
    test = draw(np.full(n, test_rows), 0.0)
    return MoonsTask(train, test, angles(turn[:, 0], gamma=sigma, cut=cut), degrees, cluster)
