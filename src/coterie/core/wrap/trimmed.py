"""A method that does not follow the extremes of what it hears: ``Trimmed(method, fraction)``.

The handlers of the method run as they are, on ties that hold, in place of the models that were sent, what the trimmed
mean makes of them: coordinate by coordinate, the smallest and the largest values stand at the mean of the others,

    copy_i[j] = said_i[j] if it is kept, else mean_i,    mean_i = sum_{j kept} W_ij said_i[j] / sum_{j kept} W_ij,

so that  sum_j W_ij copy_i[j] = D_ii mean_i:  all neighbours together pull as strongly as ever, towards the trimmed mean
(Yin, Chen, Ramchandran and Bartlett, 2018, "Byzantine-Robust Distributed Learning", with the weights of the ties).

Values are ordered by size, those of equal size by weight, and trimmed by number; the mean goes by weight.

=============================  =====================================================
above                          here
=============================  =====================================================
copy_i[j]                      ``ties.model.copy[k]`` with ``data.peer[k] == j``
said_i[j]                      ``ties.said[k]``
W_ij                           ``data.weight[k]``
=============================  =====================================================
"""

from __future__ import annotations

from numbers import Real
from typing import Any, NamedTuple

import numpy as np

from ...errors import MismatchError, ParameterError
from ..compile import inline, kernel, noinline
from ..linear import copy_to
from ..method import method
from ..methods import ResilientPooling, resolve_method
from ..trimming import trimmed_count
from ..world import VACANT, Letter

#: Parts of a method that stay as they are when it is trimmed.
KEPT = (
    *("letters", "max_letters", "broadcasts", "dice", "exchanges", "footprint", "synchronous", "scratch_size"),
    *("fit_for", "accuracy", "remembers", "on_balls", "terms", "plan", "wakes_per_agent", "loss_report", "final"),
    "influence",
)


class Tie(NamedTuple):
    """State of the ties."""

    model: Any  # the method's own, its copies trimmed when it last read them
    said: np.ndarray  # (ties, p) the last model that the neighbour has sent


@inline
def before(weight, said, c, a, b):
    """Does the value of tie a come before that of tie b? By size, then by weight: names do not matter."""
    x, y = said[a, c], said[b, c]
    if x != y:
        return x < y
    return weight[a] < weight[b] or (weight[a] == weight[b] and a < b)


@inline
def extreme(peer, weight, said, c, count, last):
    """The tie with the ``count``-th smallest value, or the ``count``-th largest if ``last``."""
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


@kernel
def trim_all(fraction, start, peer, weight, said, copy):
    """Trim what every agent of a world has heard."""
    for i in range(start.shape[0] - 1):
        a, b = start[i], start[i + 1]
        trim(fraction, peer[a:b], weight[a:b], said[a:b], copy[a:b])


def _checked(cls):
    """Refuse bad parameters when the method is made."""
    make = cls.__new__

    def checked(cls, method, fraction=0.2):
        method = resolve_method(method)
        if isinstance(method, Trimmed):
            raise ParameterError(f"{method!r} is trimmed already")
        if method.spare:
            raise ParameterError(
                f"{method!r} learns its graph: trim the method in it, ct.Learned(ct.Trimmed({method.method!r}))"
            )
        if isinstance(method, ResilientPooling):
            raise MismatchError(f"{method!r} leaves out extremes by itself: how many, its own trim says")
        if not method.minimises:
            raise MismatchError(
                f"{method!r} exchanges averages over all agents with one neighbour at a time: there are no models of "
                "several neighbours to trim, and to leave out part of an average would change it for everybody; for "
                "neighbours that may lie use ct.ResilientPooling(), or ct.Trimmed(ct.CoordinateDescent())"
            )
        if not method.copies:
            raise ParameterError(
                f"{method!r} does not keep copies of its neighbours' models, and so there is nothing to trim: use "
                "ct.CoordinateDescent(), ct.ModelPropagation(), ct.DJAM(), or ct.Private(...) of the first two"
            )
        if isinstance(fraction, bool) or not (isinstance(fraction, Real) and 0 <= fraction < 0.5):
            raise ParameterError(
                f"fraction={fraction!r} must be a number in [0, 0.5): so many are left out at either end"
            )
        return make(cls, method, float(fraction), bool(method.exchanges))

    cls.__new__ = checked
    cls.__getnewargs__ = lambda self: (self.method, self.fraction)
    return cls


@_checked
@method(keeps=KEPT)
class Trimmed(NamedTuple):
    """A method whose agents leave out the extremes of what their neighbours send, coordinate by coordinate.

    For agents whose neighbours may lie, or be broken. Of d neighbours, the ``floor(fraction d)`` smallest and as many
    of the largest values of every coordinate are left out, and the neighbours pull towards the weighted mean of the
    others with the strength of all of them. As long as no more of an agent's neighbours lie than are left out at one
    end, what it is pulled towards lies between values that honest neighbours have sent. An agent with fewer than
    ``1 / fraction`` neighbours trusts them all.

    It works with every objective and graph, ``ct.Learned(ct.Trimmed(method))`` included, and costs no privacy: what was
    received is no secret. It no longer minimises the objective: honest extremes are left out, too.

    Parameters
    ----------
    method : CoordinateDescent, ModelPropagation, DJAM, or Private of one of the first two; or its name
    fraction : float
        Part of the neighbours that is left out at either end, in [0, 0.5).

    Examples
    --------
    Four agents agree on about 1, and a fifth, which learns nothing, says 1000:

    >>> import coterie as ct
    >>> models, sure = [[0.9], [1.0], [1.1], [1.2], [1000.0]], [0.1, 0.1, 0.1, 0.1, 1e6]
    >>> problem = ct.Problem.propagation(models, ct.graphs.complete(5), alpha=0.9, confidence=sure)
    >>> ct.simulate(problem, "cd", wakes=2000, seed=0).theta.round(1).ravel().tolist()
    [957.5, 957.5, 957.5, 957.5, 1000.0]
    >>> ct.simulate(problem, ct.Trimmed("cd", 0.25), wakes=2000, seed=0).theta.round(1).ravel().tolist()
    [1.1, 1.1, 1.1, 1.1, 1000.0]
    """

    method: Any
    fraction: float = 0.2
    early: bool = False  # does the method read its copies when a letter comes, and not only when it wakes?

    def __repr__(self):
        return f"Trimmed({self.method!r}, fraction={self.fraction:g})"

    def start(self, world, theta):
        """State before the first letter: the method's, and nothing else was said."""
        own, tie = self.method.start(world, theta)
        return own, Tie(tie, tie.copy.copy())

    def finish(self, world, own, tie):
        """The models that agents of a private method keep to themselves."""
        copy = tie.model.copy.copy()
        trim_all(self.fraction, world.tie_start, world.peer, world.weight, tie.said, copy)
        return self.method.finish(world, own, tie.model._replace(copy=copy))

    def open(self, data, me, ties, slot):
        """A new tie: the method's, and nothing else was said."""
        self.method.open(data, me, ties.model, slot)
        copy_to(ties.model.copy[slot], ties.said[slot])

    def greet(self, data, me, ties, outbox):
        """The initial swap of models."""
        self.method.greet(data, me, ties.model, outbox)

    def wake(self, data, me, ties, chance, outbox):
        """The method's wake, on trimmed copies."""
        trim(self.fraction, data.peer, data.weight, ties.said, ties.model.copy)
        self.method.wake(data, me, ties.model, chance, outbox)

    def receive(self, data, me, ties, letter, outbox):
        """Remember what was said, as far as the method takes it for a model; where it acts on it, trim it first."""
        slot, text = letter.slot, letter.text
        if slot != VACANT:
            if self.early:
                copy_to(text, ties.said[slot])
                trim(self.fraction, data.peer, data.weight, ties.said, ties.model.copy)
                text = ties.model.copy[slot]
            else:
                copy_to(ties.said[slot], ties.model.copy[slot])
        self.method.receive(data, me, ties.model, Letter(letter.sender, slot, letter.kind, text), outbox)
        if slot != VACANT and not self.early:
            copy_to(ties.model.copy[slot], ties.said[slot])

    def round(self, data, me, ties, outbox):
        """The method's round, on trimmed copies; there is one if the method is ``synchronous``."""
        trim(self.fraction, data.peer, data.weight, ties.said, ties.model.copy)
        self.method.round(data, me, ties.model, outbox)
