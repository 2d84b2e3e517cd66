"""Aggregation rules for :class:`coterie.Robust`: what replaces the models received from neighbours.

A rule maps the received models ``said_i[j]`` to the copies that the method reads, ``copy_i[j]``. Rules that
leave neighbours out replace these by the mean of the others, so that all neighbours together pull with unchanged
strength: ``sum_j W_ij copy_i[j] = D_ii mean_i``.

=====================  =============================================================================================
rule                   from
=====================  =============================================================================================
``TrimmedMean``        Yin, Chen, Ramchandran, Bartlett (2018), "Byzantine-Robust Distributed Learning", Definition 2
``Median``             as TrimmedMean, Definition 1
``Krum``               Blanchard, El Mhamdi, Guerraoui, Stainer (2017), "Machine Learning with Adversaries", Section 4
``Clipping``           Karimireddy, He, Jaggi (2021), "Learning from History for Byzantine Robust Optimization",
                       Algorithm 2; He, Karimireddy, Jaggi (2022), "Byzantine-Robust Decentralized Learning"
``GeometricMedian``    Pillutla, Kakade, Harchaoui (2022), "Robust Aggregation for Federated Learning", Algorithm 2
``Consensus``          Koloskova, Stich, Jaggi (2019), "Decentralized SGD with compressed communication", Algorithm 2
=====================  =============================================================================================

All but the last are defences. ``theta`` is an agent's own model, and ``shown`` the model that its neighbours know.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any

from ..._checks import integer, positive, within
from ..arrays import VACANT
from ..compile import inline, noinline
from ..linear import copy_to, fill
from ..method import NamedTuple, complete
from ..rules import made_by
from ..trimming import sort, trimmed_count


class Aggregation(ABC):
    """Parts of an aggregation rule. A class decorated with ``@aggregation`` is registered as a subclass."""

    @abstractmethod
    def combine(self, theta: Any, shown: Any, peer: Any, weight: Any, said: Any, copy: Any, room: Any) -> None:
        """Write the aggregated copies of the ``said`` models into ``copy``; ``room`` is scratch space (a handler)."""

    def room(self, neighbours, p):
        """Return how many numbers of scratch space ``combine`` needs, for at most `neighbours` neighbours."""
        return 0

    #: Whether this number depends on the neighbours: such a rule cannot be used with learned edges.
    by_neighbours = False


def aggregation(cls):
    """Turn a NamedTuple class into an aggregation rule: add the defaults of parts that it leaves out."""
    return complete(cls, Aggregation)


@inline
def before(weight, said, c, a, b):
    """Return whether the value of edge a precedes that of edge b: by size, then by weight, not by position."""
    x, y = said[a, c], said[b, c]
    if x != y:
        return x < y
    return weight[a] < weight[b] or (weight[a] == weight[b] and a < b)


@inline
def extreme(peer, weight, said, c, count, last):
    """Return the edge with the ``count``-th smallest value, or the ``count``-th largest if ``last``."""
    found = VACANT
    for _ in range(count):
        best = VACANT
        for k in range(peer.shape[0]):
            if peer[k] == VACANT or said[k, c] != said[k, c]:  # NaN is not ordered
                continue
            if last:
                out = found == VACANT or before(weight, said, c, k, found)
                best = k if out and (best == VACANT or before(weight, said, c, best, k)) else best
            else:
                out = found == VACANT or before(weight, said, c, found, k)
                best = k if out and (best == VACANT or before(weight, said, c, k, best)) else best
        if best == VACANT:
            break
        found = best
    return found


@noinline
def trim(fraction, peer, weight, said, copy):
    """Write the trimmed mean of the received models into ``copy``."""
    neighbours = 0
    for k in range(peer.shape[0]):
        if peer[k] != VACANT:
            neighbours += 1
            copy_to(said[k], copy[k])
    count = trimmed_count(fraction, neighbours)
    if count == 0:
        return
    for c in range(said.shape[1]):
        low = extreme(peer, weight, said, c, count, False)
        high = extreme(peer, weight, said, c, count, True)
        whole = 0.0
        for k in range(peer.shape[0]):
            if peer[k] != VACANT and before(weight, said, c, low, k) and before(weight, said, c, k, high):
                whole += weight[k]
        mean = 0.0
        for k in range(peer.shape[0]):
            if peer[k] != VACANT and before(weight, said, c, low, k) and before(weight, said, c, k, high):
                mean += weight[k] / whole * said[k, c]  # divide first: then a mean of finite numbers is finite
        for k in range(peer.shape[0]):
            kept = before(weight, said, c, low, k) and before(weight, said, c, k, high)
            if peer[k] != VACANT and not kept:
                copy[k, c] = mean


@inline
def apart(x, y):
    """``|x - y|^2``; infinite if a number is not finite."""
    square = 0.0
    for c in range(x.shape[0]):
        square += (x[c] - y[c]) * (x[c] - y[c])
    return square if square < math.inf else math.inf


@inline
def others_at_mean(peer, weight, said, copy, chosen, mean):
    """Copy the received models with ``chosen[k] > 0``; replace all others by the weighted mean of these."""
    whole = 0.0
    for k in range(peer.shape[0]):
        if peer[k] != VACANT and chosen[k] > 0.0:
            whole += weight[k]
    fill(0.0, mean)
    for k in range(peer.shape[0]):
        if peer[k] != VACANT and chosen[k] > 0.0:
            for c in range(mean.shape[0]):
                mean[c] += weight[k] / whole * said[k, c]
    for k in range(peer.shape[0]):
        if peer[k] != VACANT:
            if chosen[k] > 0.0:
                copy_to(said[k], copy[k])
            else:
                copy_to(mean, copy[k])


@made_by(lambda fraction=0.2: (within("fraction", fraction, 0, 0.5, "[)"),))
@aggregation
class TrimmedMean(NamedTuple):
    """Coordinate by coordinate, replace the smallest and the largest values by the mean of the others.

    Parameters
    ----------
    fraction : float
        Fraction of the neighbours that is left out at either end, in [0, 0.5).

    Examples
    --------
    >>> import coterie as ct
    >>> ct.Robust("cd", ct.robust.TrimmedMean(0.2))
    Robust(CoordinateDescent(), TrimmedMean(fraction=0.2))
    """

    fraction: float = 0.2

    def combine(self, theta, shown, peer, weight, said, copy, room):
        trim(self.fraction, peer, weight, said, copy)


@aggregation
class Median(NamedTuple):
    """Coordinate by coordinate, the median of the received values; for an even number, the mean of the middle two.

    This is the trimmed mean with the largest possible fraction.

    Examples
    --------
    >>> import coterie as ct
    >>> models, sure = [[0.9], [1.0], [1.1], [1.2], [1000.0]], [0.1, 0.1, 0.1, 0.1, 1e6]
    >>> problem = ct.Problem.propagation(models, ct.graphs.complete(5), alpha=0.9, confidence=sure)
    >>> ct.simulate(problem, ct.Robust("cd", ct.robust.Median()), wakes=2000, seed=0).theta[:4].max().round(1)
    np.float64(1.1)
    """

    def combine(self, theta, shown, peer, weight, said, copy, room):
        """Trim all but one value, or two."""
        trim(0.5, peer, weight, said, copy)


@made_by(lambda liars=1, keep=1: (integer("liars", liars, 0), integer("keep", keep)))
@aggregation
class Krum(NamedTuple):
    """Keep the models that are nearest to most others; with ``keep`` above 1, multi-Krum.

    The score of each of d models is the sum of its squared distances to the d - liars - 2 nearest others. The ``keep``
    models with the smallest scores are kept, and all others replaced by their mean. Valid for d neighbours with fewer
    than (d - 2) / 2 liars.

    Parameters
    ----------
    liars : int
        Largest number of an agent's neighbours that may lie, f in the paper.
    keep : int
        Number of models to keep, m in the paper.

    Examples
    --------
    >>> import coterie as ct
    >>> ct.Robust("cd", ct.robust.Krum(liars=1, keep=3))
    Robust(CoordinateDescent(), Krum(liars=1, keep=3))
    """

    liars: int = 1
    keep: int = 1

    by_neighbours = True

    def room(self, neighbours, p):
        """A score of each neighbour, distances of one neighbour to all others, and a mean."""
        return 2 * neighbours + p

    def combine(self, theta, shown, peer, weight, said, copy, room):
        d = peer.shape[0]
        score, distance, mean = room[:d], room[d : 2 * d], room[2 * d : 2 * d + said.shape[1]]
        neighbours = 0
        for k in range(d):
            neighbours += 1 if peer[k] != VACANT else 0
        nearest = max(1, neighbours - self.liars - 2)
        for k in range(d):
            count = 0
            for j in range(d):
                if peer[k] != VACANT and peer[j] != VACANT and j != k:
                    distance[count] = apart(said[k], said[j])
                    count += 1
            sort(distance[:count])
            score[k] = 0.0
            for j in range(min(nearest, count)):
                score[k] += distance[j]
        # Select the best `keep`, among equal ones the heaviest; the score then marks the kept ones.
        for _ in range(min(self.keep, neighbours)):
            best = VACANT
            for k in range(d):
                if peer[k] != VACANT and score[k] >= 0.0:
                    lower = best == VACANT or score[k] < score[best]
                    best = k if lower or (score[k] == score[best] and weight[k] > weight[best]) else best
            score[best] = -1.0
        for k in range(d):
            score[k] = 1.0 if score[k] == -1.0 else 0.0
        others_at_mean(peer, weight, said, copy, score, mean)


@made_by(lambda radius: (positive("radius", radius),))
@aggregation
class Clipping(NamedTuple):
    """Move each received model that is farther than ``radius`` from the agent's own to that distance, on a line.

    Parameters
    ----------
    radius : float
        Largest distance, tau in the papers.

    Examples
    --------
    >>> import coterie as ct
    >>> ct.Robust("cd", ct.robust.Clipping(0.5))
    Robust(CoordinateDescent(), Clipping(radius=0.5))
    """

    radius: float

    def combine(self, theta, shown, peer, weight, said, copy, room):
        """``copy_j = theta + min(1, radius / |said_j - theta|) (said_j - theta)``; ignores NaN and infinity."""
        for k in range(peer.shape[0]):
            if peer[k] != VACANT:
                far = math.sqrt(apart(said[k], theta))
                part = min(1.0, self.radius / far) if far > 0.0 else 1.0
                for c in range(copy.shape[1]):
                    if part == 1.0:
                        copy[k, c] = said[k, c]
                    else:
                        copy[k, c] = theta[c] + part * (said[k, c] - theta[c]) if part > 0.0 else theta[c]


@made_by(lambda steps=32: (integer("steps", steps),))
@aggregation
class GeometricMedian(NamedTuple):
    """Replace all received models by their geometric median, the point with the smallest weighted sum of distances.

    Computed by Weiszfeld's iteration, from the coordinates' medians.

    Parameters
    ----------
    steps : int
        Number of iterations.

    Examples
    --------
    >>> import coterie as ct
    >>> ct.Robust("cd", ct.robust.GeometricMedian())
    Robust(CoordinateDescent(), GeometricMedian(steps=32))
    """

    steps: int = 32

    def room(self, neighbours, p):
        """The current point, and the next."""
        return 2 * p

    def combine(self, theta, shown, peer, weight, said, copy, room):
        """RFA, Algorithm 2: ``z <- sum_j b_j said_j / sum_j b_j`` with ``b_j = W_ij / max(nu, |z - said_j|)``."""
        p = said.shape[1]
        point, goal = room[:p], room[p : 2 * p]
        trim(0.5, peer, weight, said, copy)
        fill(0.0, point)
        whole, neighbours = 0.0, 0
        for k in range(peer.shape[0]):
            if peer[k] != VACANT:
                whole += weight[k]
                neighbours += 1
        if neighbours == 0:
            return
        for k in range(peer.shape[0]):
            if peer[k] != VACANT:
                for c in range(p):
                    point[c] += weight[k] / whole * copy[k, c]
        for _ in range(self.steps):
            fill(0.0, goal)
            total = 0.0
            for k in range(peer.shape[0]):
                if peer[k] != VACANT:
                    far = math.sqrt(apart(point, said[k]))
                    pull = weight[k] / max(far, MIN_DISTANCE) if far < math.inf else 0.0
                    total += pull
                    for c in range(p):
                        goal[c] += pull * said[k, c] if pull > 0.0 else 0.0
            if total == 0.0:
                break
            for c in range(p):
                point[c] = goal[c] / total
        for k in range(peer.shape[0]):
            if peer[k] != VACANT:
                copy_to(point, copy[k])


#: nu of RFA: smallest distance by which the iteration divides.
MIN_DISTANCE = 1e-9


@made_by(lambda gamma: (within("gamma", gamma, 0, 1, "(]"),))
@aggregation
class Consensus(NamedTuple):
    """Take only a part of the way towards the neighbours, from the model that they know: the consensus step of CHOCO.

    With this rule, a method that mixes models, ``sum_j W_ij copy_j``, takes the step
    ``theta_i + gamma sum_j W_ij (xhat_j - xhat_i)``.

    Parameters
    ----------
    gamma : float
        In (0, 1]; gamma in the paper.

    Examples
    --------
    >>> import coterie as ct
    >>> ct.Robust(ct.compression.Compressed("cd", ct.compression.TopK(0.5)), ct.robust.Consensus(0.4)).rule
    Consensus(gamma=0.4)
    """

    gamma: float

    def combine(self, theta, shown, peer, weight, said, copy, room):
        """``copy_j = theta + gamma (xhat_j - xhat_i)``."""
        for k in range(peer.shape[0]):
            if peer[k] != VACANT:
                for c in range(copy.shape[1]):
                    copy[k, c] = theta[c] + self.gamma * (said[k, c] - shown[c])
