"""Rotated moons, with angles in clusters (DADA, Sections 6 and E.1) or all around (DADA, Section E.5)."""

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
    """A collaborative task of rotated moons, which no linear model solves.

    Attributes
    ----------
    train, test : AgentData
        Labels are -1 and +1.
    graph : Graph
        The oracle's weights, from the angles.
    angles : (n,) ndarray
        By how many degrees the moons of each agent are rotated.
    cluster : (n,) ndarray
        Number of the cluster that each agent belongs to. Agents of a cluster are side by side. All 0 without clusters.
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

    Everybody separates two interleaved moons, rotated by an angle of their own. The angles come in clusters, so that
    an agent's own cluster is of help and the others are not. Agents whose angles differ by phi are tied with weight
    ``exp((cos phi - 1) / sigma)``, which is what an oracle knows and a learned graph should find.

    Parameters
    ----------
    n, p : int
        Number of agents, and of features. The moons lie in the plane of the first two; the other axes are empty.
    seed : int or Generator
    rows : (int, int)
        Training rows of an agent are uniform between these two, inclusive. Two and more are of both classes, before
        labels are flipped.
    test_rows : int
        Test rows of every agent. Their labels are not flipped.
    noise : float
        Probability that a training label is flipped.
    empty : {"zeros", "random"}
        What is on the empty axes: zeros, or values uniform in [-1, 1]. The text of the paper says random values, yet
        its figures fit zeros, which is also what its authors' code has: with random values no setting of the learned
        graphs beats one global model.
    spread : float
        Standard deviation of the angles in a cluster, in degrees.
    moon_noise : float
        Standard deviation of the points around their moon.
    sigma : float
        How fast edges fade with the angle.
    cut : float
        Weights below it are dropped.
    clusters : sequence of float
        Shares of the clusters, whose angles are centred at equal distances: four at 45, 135, 225 and 315 degrees.
    pivot : (float, float)
        The point of the plane around which the moons are rotated, and where the origin is put. By default that of
        scikit-learn, as the authors' code has it: then the moons of the clusters also lie in different places, from
        which one global model can tell many of them apart. Around their centre, (0.5, 0.25), clusters half a turn
        apart have the same points with opposite labels, and no model of all agents is good for both.

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
    # Rounding where clusters end, and not their sizes, is what makes the sizes add up to n.
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

    As :func:`clustered_moons`, but without clusters: each agent has an axis, a standard normal vector of the plane,
    and its moons are rotated by the angle of the axis. So angles are uniform, and everybody has some that are near.

    Parameters
    ----------
    n, p : int
        Number of agents, and of features. The moons lie in the plane of the first two; the other axes are empty.
    seed : int or Generator
    rows : (int, int)
        Training rows of an agent are uniform between these two, inclusive. Two and more are of both classes, before
        labels are flipped.
    test_rows : int
        Test rows of every agent. Their labels are not flipped.
    noise : float
        Probability that a training label is flipped.
    empty : {"zeros", "random"}
        What is on the empty axes: zeros, or values uniform in [-1, 1]. See :func:`clustered_moons`.
    moon_noise : float
        Standard deviation of the points around their moon.
    sigma : float
        How fast edges fade with the angle.
    cut : float
        Weights below it are dropped. With 1e-6, an agent has 61.8 neighbours on average, and 60.86 in the paper, which
        does not say what it drops.
    pivot : (float, float)
        The point of the plane around which the moons are rotated, and where the origin is put.

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
    """Moons of everybody, rotated by angles that `turns` draws, in degrees."""
    integer("n", n)
    if p < 2:
        raise ParameterError(f"p={p}: the moons live in the first two dimensions, so p must be at least 2")
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
    # Of each agent: the images of the two axes, as rows, so that ``points @ turn`` rotates points that are rows.
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
