"""What agents make of what their neighbours send, before the method sees it: rules for :class:`coterie.Robust`.

A rule rewrites the models that were said, ``said_i[j]``, into the copies that the method reads, ``copy_i[j]``. Those
that leave neighbours out put these at the mean of the others, so that all of them together pull as strongly as ever:
``sum_j W_ij copy_i[j] = D_ii mean_i``.

=====================  =============================================================================================
rule                   from
=====================  =============================================================================================
``TrimmedMean``        Yin, Chen, Ramchandran, Bartlett (2018), "Byzantine-Robust Distributed Learning", Definition 2
``Median``             the same, Definition 1
``Krum``               Blanchard, El Mhamdi, Guerraoui, Stainer (2017), "Machine Learning with Adversaries", Section 4
``Clipping``           Karimireddy, He, Jaggi (2021), "Learning from History for Byzantine Robust Optimization",
                       Algorithm 2; He, Karimireddy, Jaggi (2022), "Byzantine-Robust Decentralized Learning"
``GeometricMedian``    Pillutla, Kakade, Harchaoui (2022), "Robust Aggregation for Federated Learning", Algorithm 2
``Consensus``          Koloskova, Stich, Jaggi (2019), "Decentralized SGD with compressed communication", Algorithm 2
=====================  =============================================================================================

All but the last are defences. ``theta`` is an agent's own model, and ``shown`` what its neighbours take it for.
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
    """The parts of an aggregation rule. A class decorated with ``@aggregation`` counts as a subclass."""

    @abstractmethod
    def combine(self, theta: Any, shown: Any, peer: Any, weight: Any, said: Any, copy: Any, room: Any) -> None:
        """Handler: write into ``copy`` what it makes of what was ``said``; ``room`` is scratch paper."""

    def room(self, neighbours, p):
        """How many numbers of scratch paper that takes, with so many neighbours at most."""
        return 0

    #: Whether that grows with the neighbours: then it does not go with edges that are learned.
    by_neighbours = False


def aggregation(cls):
    """Make an aggregation rule of a NamedTuple class: give every part that it leaves out its default."""
    return complete(cls, Aggregation)


@inline
def before(weight, said, c, a, b):
    """Does the value of edge a come before that of edge b? By size, then by weight: names do not matter."""
    x, y = said[a, c], said[b, c]
    if x != y:
        return x < y
    return weight[a] < weight[b] or (weight[a] == weight[b] and a < b)


@inline
def extreme(peer, weight, said, c, count, last):
    """The edge with the ``count``-th smallest value, or the ``count``-th largest if ``last``."""
    found = VACANT
    for _ in range(count):
        best = VACANT
        for k in range(peer.shape[0]):
            if peer[k] == VACANT or said[k, c] != said[k, c]:  # what is not a number has no place in an order
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
    """Write into ``copy`` what the trimmed mean makes of what was said."""
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
                mean += weight[k] / whole * said[k, c]  # divided first: a mean of finite numbers is finite
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
    """Copies of neighbours with ``chosen[k] > 0`` are what they said, those of others the weighted mean of these."""
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
    """Coordinate by coordinate, the smallest and the largest values stand at the mean of the others.

    Parameters
    ----------
    fraction : float
        Part of the neighbours that is left out at either end, in [0, 0.5).

    Examples
    --------
    >>> import coterie as ct
    >>> ct.Robust("cd", ct.robust.TrimmedMean(0.2))
    Robust(CoordinateDescent(), TrimmedMean(fraction=0.2))
    """

    fraction: float = 0.2

    def combine(self, theta, shown, peer, weight, said, copy, room):
        """See :func:`trim`."""
        trim(self.fraction, peer, weight, said, copy)


@aggregation
class Median(NamedTuple):
    """Coordinate by coordinate, the median of what neighbours sent; of an even number, the two in the middle.

    It is what a trimmed mean is when as much as possible is left out.

    Examples
    --------
    >>> import coterie as ct
    >>> models, sure = [[0.9], [1.0], [1.1], [1.2], [1000.0]], [0.1, 0.1, 0.1, 0.1, 1e6]
    >>> problem = ct.Problem.propagation(models, ct.graphs.complete(5), alpha=0.9, confidence=sure)
    >>> ct.simulate(problem, ct.Robust("cd", ct.robust.Median()), wakes=2000, seed=0).theta[:4].max().round(1)
    np.float64(1.1)
    """

    def combine(self, theta, shown, peer, weight, said, copy, room):
        """See :func:`trim`, which keeps one value, or two."""
        trim(0.5, peer, weight, said, copy)


@made_by(lambda liars=1, keep=1: (integer("liars", liars, 0), integer("keep", keep)))
@aggregation
class Krum(NamedTuple):
    """Keep the models that lie nearest to most others; with ``keep`` above 1, multi-Krum.

    Of d models, each is as good as the sum of its squared distances to the d - liars - 2 nearest others is small. The
    best ``keep`` of them stay as they are, all others stand at their mean. For d neighbours of whom fewer than
    (d - 2) / 2 lie.

    Parameters
    ----------
    liars : int
        How many of an agent's neighbours may lie, f in the paper.
    keep : int
        How many models to keep, m in the paper.

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
        """A score of each neighbour, distances of one to all others, and a mean."""
        return 2 * neighbours + p

    def combine(self, theta, shown, peer, weight, said, copy, room):
        """Krum, Section 4."""
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
        # The best so many, of equal ones the heaviest; from then on their score says whether they are kept.
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
    """No neighbour's model is farther from one's own than ``radius``: what is, is moved there, on a straight line.

    Parameters
    ----------
    radius : float
        tau in the papers.

    Examples
    --------
    >>> import coterie as ct
    >>> ct.Robust("cd", ct.robust.Clipping(0.5))
    Robust(CoordinateDescent(), Clipping(radius=0.5))
    """

    radius: float

    def combine(self, theta, shown, peer, weight, said, copy, room):
        """``copy_j = theta + min(1, radius / |said_j - theta|) (said_j - theta)``; what is not finite has no pull."""
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
    """All neighbours stand at the point whose weighted sum of distances to what they sent is the smallest.

    Found by Weiszfeld's iteration, from the coordinates' medians.

    Parameters
    ----------
    steps : int
        How many steps it takes.

    Examples
    --------
    >>> import coterie as ct
    >>> ct.Robust("cd", ct.robust.GeometricMedian())
    Robust(CoordinateDescent(), GeometricMedian(steps=32))
    """

    steps: int = 32

    def room(self, neighbours, p):
        """Where it is, and where it goes."""
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
                    pull = weight[k] / max(far, NEAR) if far < math.inf else 0.0
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


#: nu of RFA: nearer than this, two models are taken to be the same.
NEAR = 1e-9


@made_by(lambda gamma: (within("gamma", gamma, 0, 1, "(]"),))
@aggregation
class Consensus(NamedTuple):
    """Take only a part of the way towards one's neighbours, from what they take one for: the consensus step of CHOCO.

    With it, a method that mixes models, ``sum_j W_ij copy_j``, takes the step
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
