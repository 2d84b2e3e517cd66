"""A method with robust aggregation of what agents receive: ``Robust(method, rule)``.

The handlers of the method run unchanged, on edges that hold, in place of the received models, the result of a rule of
:mod:`~coterie.core.wrap.aggregation`.

=============================  =====================================================
aggregation rule               here
=============================  =====================================================
copy_i[j]                      ``edges.model.copy[k]`` with ``data.peer[k] == j``
said_i[j]                      ``edges.said[k]``
W_ij                           ``data.weight[k]``
=============================  =====================================================

With a trimmed mean this composition is called ``Trimmed(method, fraction)``: coordinate by coordinate, the smallest and
the largest values are replaced by the mean of the others,

    copy_i[j] = said_i[j] if it is kept, else mean_i,    mean_i = sum_{j kept} W_ij said_i[j] / sum_{j kept} W_ij,

so that  sum_j W_ij copy_i[j] = D_ii mean_i:  all neighbours together pull with unchanged strength, towards the trimmed
mean (Yin, Chen, Ramchandran and Bartlett, 2018, "Byzantine-Robust Distributed Learning", with the weights of the
edges). Values are ordered by size, equal values by weight, and trimmed by number; the mean is weighted.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ...errors import MismatchError, ParameterError
from ..arrays import VACANT, Message, row
from ..compile import inline, kernel
from ..linear import copy_to, gather
from ..method import NamedTuple, method
from ..methods import ResilientPooling, resolve_method
from ..rules import made_by
from .aggregation import Aggregation, TrimmedMean
from .parts import WITHOUT_SERVER, model_of, refuse_server, shown_by


class Edge(NamedTuple):
    """State of the edges."""

    model: Any  # state of the method, with copies as last rewritten
    said: np.ndarray  # (edges, p) the last model received from the neighbour


@kernel
def combine_all(rule, own, start, peer, weight, said, copy, room):
    """Rewrite the copies of all hosted agents."""
    for i in range(start.shape[0] - 1):
        a, b = start[i], start[i + 1]
        me = row(own, i)
        rule.combine(model_of(me), shown_by(me), peer[a:b], weight[a:b], said[a:b], copy[a:b], room)


@inline
def rewrite(rule, data, me, edges, outbox):
    """Compute the method's copies from the received models."""
    theta, shown, size = model_of(me), shown_by(me), edges.said.shape[1]
    mine, room = outbox.scratch[:size], outbox.scratch[size:]
    if theta.shape[0] == size:
        copy_to(theta, mine)
    else:  # personal parameters are not sent
        gather(theta, data.sent, mine)
    rule.combine(
        mine, shown if shown.shape[0] == size else mine, data.peer, data.weight, edges.said, edges.model.copy, room
    )


def _room(rule, arrays, p):
    return rule.room(int(np.diff(arrays.edge_start).max(initial=0)), p)


def check_method(method, what):
    """Raise an error that names a method without copies of its neighbours' models to rewrite."""
    if isinstance(method, Robust):
        raise ParameterError(f"{method!r} is {'trimmed' if what == 'trim' else 'robust'} already")
    if method.edges.spare:
        raise ParameterError(
            f"{method!r} learns its graph: {what} inside it, "
            f"ct.Learned(ct.{'robust.Trimmed' if what == 'trim' else 'Robust'}({method.method!r}))"
        )
    if isinstance(method, ResilientPooling):
        raise MismatchError(f"{method!r} leaves out extremes itself: set its parameter trim")
    refuse_server(
        method,
        f"which adds up answers as they come: it keeps no copies of several neighbours' models to {what}",
        f"{WITHOUT_SERVER}, where every agent keeps such copies",
    )
    if not method.edges.copies and method.training.jobs:
        raise MismatchError(
            f"{method!r} sends more than models, and keeps no copies of its neighbours' models to {what}: use "
            "one that averages models, ct.gossip.DPSGD(...), ct.gossip.LocalSGD(...) or ct.gossip.TiedSGD(...)"
        )
    if not method.edges.copies and not method.promises.minimises:
        raise MismatchError(
            f"{method!r} exchanges averages over all agents with one neighbour at a time: it keeps no models of "
            f"several neighbours to {what}, and leaving out part of an average would change it for all agents; for "
            "neighbours that may lie use ct.gossip.ResilientPooling(), or ct.robust.Trimmed(ct.CoordinateDescent())"
        )
    if not method.edges.copies:
        raise ParameterError(
            f"{method!r} does not keep copies of its neighbours' models to {what}: use "
            "ct.CoordinateDescent(), ct.ModelPropagation(), ct.DJAM(), or ct.Private(...) of the first two"
        )


def _defended(method, rule):
    method = resolve_method(method)
    check_method(method, "defend")
    if not isinstance(rule, Aggregation):
        raise ParameterError(
            f"rule={rule!r} must be an aggregation rule, such as ct.robust.Median() or ct.robust.Krum(liars=1)"
        )
    return method, rule, bool(method.traffic.exchanges)


@made_by(_defended)
@method
class Robust(NamedTuple):
    """A method whose agents replace the models received from neighbours by the result of an aggregation rule.

    For agents whose neighbours may lie or be broken. Works with every objective, and costs no privacy, as received
    models are known to others. The result no longer minimises the objective: honest extremes are left out, too.

    Parameters
    ----------
    method : a method that keeps copies of its neighbours' models, or its name
        CoordinateDescent, ModelPropagation, DJAM, Private of one of the first two, or one that trains and mixes models.
    rule : TrimmedMean, Median, Krum, Clipping or GeometricMedian

    Examples
    --------
    Four agents agree on about 1, and a fifth, which learns nothing, says 1000:

    >>> import coterie as ct
    >>> models, sure = [[0.9], [1.0], [1.1], [1.2], [1000.0]], [0.1, 0.1, 0.1, 0.1, 1e6]
    >>> problem = ct.Problem.propagation(models, ct.graphs.complete(5), alpha=0.9, confidence=sure)
    >>> for rule in (ct.robust.Median(), ct.robust.Krum(liars=1), ct.robust.GeometricMedian()):
    ...     print(ct.simulate(problem, ct.Robust("cd", rule), wakes=2000, seed=0).theta[:4].max().round(1))
    1.1
    1.0
    1.1
    """

    method: Any
    rule: Any
    early: bool = False  # whether the method reads its copies when a message arrives, and not only when it wakes

    copies = publishes = False  # the method's copies are not the received models
    footprint = property(lambda self: self.method.traffic.footprint)

    def __repr__(self):
        return f"Robust({self.method!r}, {self.rule!r})"

    def scratch_size(self, arrays, p):
        return max(self.method.scratch_size(arrays, p), p + _room(self.rule, arrays, p))

    def start(self, arrays, theta):
        """State of the method; received models start at its copies."""
        own, edge = self.method.start(arrays, theta)
        return own, Edge(edge, edge.copy.copy())

    def inside(self, arrays, own, edge):
        """Return the method's state, with copies as the rule would compute them now."""
        copy = edge.model.copy.copy()
        room = np.zeros(_room(self.rule, arrays, copy.shape[1]))
        combine_all(self.rule, own, arrays.edge_start, arrays.peer, arrays.weight, edge.said, copy, room)
        return own, edge.model._replace(copy=copy)

    def open(self, data, me, edges, slot):
        """As the method; the received model starts at its copy."""
        self.method.open(data, me, edges.model, slot)
        copy_to(edges.model.copy[slot], edges.said[slot])

    def greet(self, data, me, edges, outbox):
        self.method.greet(data, me, edges.model, outbox)

    def wake(self, data, me, edges, randomness, outbox):
        """Run the method's wake, on rewritten copies."""
        rewrite(self.rule, data, me, edges, outbox)
        self.method.wake(data, me, edges.model, randomness, outbox)

    def receive(self, data, me, edges, message, outbox):
        """Store the received model; if the method acts on it at once, rewrite the copies first."""
        slot, text, copy = message.slot, message.text, edges.model.copy
        if slot != VACANT:
            if self.early:
                copy_to(text, edges.said[slot])
                rewrite(self.rule, data, me, edges, outbox)
                text = copy[slot]
            else:
                copy_to(edges.said[slot], copy[slot])
        self.method.receive(data, me, edges.model, Message(message.sender, slot, message.kind, text), outbox)
        if slot != VACANT and not self.early:
            copy_to(copy[slot], edges.said[slot])

    def round(self, data, me, edges, outbox):
        """Run the method's round, on rewritten copies; only for a ``synchronous`` method."""
        rewrite(self.rule, data, me, edges, outbox)
        self.method.round(data, me, edges.model, outbox)

    def prepare(self, data, me, edges, randomness, outbox, phase):
        """Prepare the method's next job, on rewritten copies; :meth:`publish` also uses these."""
        if phase == 0:
            rewrite(self.rule, data, me, edges, outbox)
        return self.method.prepare(data, me, edges.model, randomness, outbox, phase)

    def publish(self, data, me, edges, randomness, outbox):
        self.method.publish(data, me, edges.model, randomness, outbox)


@method
class Trimmed(Robust):
    """A method whose agents leave out the extremes of the received models, coordinate by coordinate.

    For agents whose neighbours may lie or be broken. Of d neighbours, the ``floor(fraction d)`` smallest and equally
    many of the largest values of every coordinate are left out, and the neighbours pull towards the weighted mean of
    the others with the strength of all. If no more of an agent's neighbours lie than are left out at one end, the pull
    is towards a point between values that honest neighbours have sent. An agent with fewer than ``1 / fraction``
    neighbours trusts all of them.

    Works with every objective and graph, including ``ct.Learned(ct.robust.Trimmed(method))``, and costs no privacy, as
    received models are known to others. The result no longer minimises the objective: honest extremes are left out,
    too.

    Parameters
    ----------
    method : CoordinateDescent, ModelPropagation, DJAM, or Private of one of the first two; or its name
    fraction : float
        Fraction of the neighbours that is left out at either end, in [0, 0.5).

    Examples
    --------
    Four agents agree on about 1, and a fifth, which learns nothing, says 1000:

    >>> import coterie as ct
    >>> models, sure = [[0.9], [1.0], [1.1], [1.2], [1000.0]], [0.1, 0.1, 0.1, 0.1, 1e6]
    >>> problem = ct.Problem.propagation(models, ct.graphs.complete(5), alpha=0.9, confidence=sure)
    >>> ct.simulate(problem, "cd", wakes=2000, seed=0).theta.round(1).ravel().tolist()
    [957.5, 957.5, 957.5, 957.5, 1000.0]
    >>> ct.simulate(problem, ct.robust.Trimmed("cd", 0.25), wakes=2000, seed=0).theta.round(1).ravel().tolist()
    [1.1, 1.1, 1.1, 1.1, 1000.0]
    """

    def __new__(cls, method, fraction=0.2):
        """Check parameters when the method is created."""
        method = resolve_method(method)
        check_method(method, "trim")
        return Robust.__new__(cls, method, TrimmedMean(fraction))

    def __getnewargs__(self):
        """Return the arguments of the constructor."""
        return self.method, self.fraction

    def __repr__(self):
        return f"Trimmed({self.method!r}, fraction={self.fraction:g})"

    @property
    def fraction(self):
        """Fraction of the neighbours that is left out at either end."""
        return self.rule.fraction
