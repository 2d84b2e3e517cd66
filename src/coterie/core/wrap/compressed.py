"""A method with compressed messages: ``Compressed(method, how)``.

Agent i and its neighbours keep a reconstruction xhat_i, the sum of what agent i has sent. In place of its model
theta_i, the agent sends the difference, compressed by an operator C, and all of them add it:

    q_i = C(theta_i - xhat_i),    xhat_i <- xhat_i + q_i      (CHOCO: Koloskova, Stich, Jaggi (2019), Algorithm 2).

What a message leaves out is part of the next difference: this is error feedback (Stich, Cordonnier, Jaggi, 2018), with
the memory ``theta_i - xhat_i``. The method reads xhat_j in place of theta_j; when models converge, both agree, and the
fixed points are those of the method.

The sums are correct as long as no message is lost, duplicated, or overtakes the first one. For conditions in which
messages are, an agent sends its whole reconstruction once in ``whole_every`` messages.

=============================  =====================================================
paper                          here
=============================  =====================================================
xhat_i, at i                   ``me.sent``
xhat_j, at i                   ``edges.copy[k]`` with ``data.peer[k] == j``
Q                              ``how.compress``, followed by ``how.restore``
=============================  =====================================================
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..._checks import integer
from ...errors import MismatchError, ParameterError
from ..arrays import EVERYONE, REFUSED, TAIL, VACANT, Message
from ..compile import noinline
from ..linear import axpy, copy_to
from ..messages import Vector, is_numbers
from ..method import NamedTuple, method
from ..methods import resolve_method
from ..rules import made_by
from . import parts
from .compression import Compression
from .parts import WITHOUT_SERVER, refuse_server

#: Kinds of messages: a whole model, and its compressed change.
WHOLE, CHANGE = 0, 1


class Own(NamedTuple):
    """State of the agents."""

    model: Any  # state of the method
    sent: np.ndarray  # (n, q) sum of what was sent, which neighbours know as the model, without personal parameters
    since: np.ndarray  # (n, 1) number of messages since the last whole model

    theta = parts.theta


@noinline
def shorten(self, me, dice, outbox, first):
    """Replace the models in messages from ``first`` on by their compressed changes."""
    for h in range(first, outbox.cursor[TAIL]):
        if outbox.kind[h] != WHOLE:  # not a model: stays as it is
            outbox.kind[h] += 1
            continue
        if outbox.to[h] != EVERYONE:  # a message to one neighbour would make several sums
            outbox.cursor[REFUSED] += 1
        p = outbox.length[h]
        text, sent = outbox.text[h], me.sent[:p]
        change, room = outbox.scratch[:p], outbox.scratch[p:]
        me.since[0] += 1.0
        if self.whole_every > 0 and me.since[0] >= self.whole_every:
            me.since[0] = 0.0
            copy_to(text[:p], sent)
            outbox.kind[h] = WHOLE
            continue
        for c in range(p):
            change[c] = text[c] - sent[c]
        outbox.length[h] = self.how.compress(change, dice, room, text)
        outbox.kind[h] = CHANGE
        # Add exactly what receivers will add, to the last bit.
        self.how.restore(text[: outbox.length[h]], change)
        axpy(1.0, change, sent)


def _one_sum(method, how, whole_every=0):
    """Check the fields of a compressed method; refuse a method whose messages do not form one sum."""
    method = resolve_method(method)
    if isinstance(method, Compressed):
        raise ParameterError(f"{method!r} is compressed already")
    if not isinstance(how, Compression):
        raise ParameterError(
            f"how={how!r} must be a compression, such as ct.compression.TopK(0.1) or ct.compression.Quantised(4)"
        )
    whole_every = integer("whole_every", whole_every, least=0)
    if method.privacy.plan is not None:
        raise MismatchError(f"{method!r} is private: its releases are stored and sent as they are, not compressed")
    refuse_server(
        method,
        "and its messages differ by kind, models down and answers with their weight up, not one sum of changes",
        WITHOUT_SERVER,
    )
    more = [message for kind, message in method.messages.items() if kind != WHOLE]
    alike = method.edges.copies and not method.traffic.exchanges and method.messages.get(WHOLE) == Vector()
    if not (alike and all(map(is_numbers, more))):
        raise MismatchError(
            f"{method!r} does more than send its model to all neighbours, who store it, and so there is no single sum "
            "of changes to send: use ct.CoordinateDescent() or a method that trains and mixes models; a defence goes "
            "around compression, ct.robust.Trimmed(ct.compression.Compressed(...))"
        )
    return method, how, whole_every, int(method.traffic.dice)


@made_by(_one_sum)
@method
class Compressed(NamedTuple):
    """A method whose agents send compressed changes of their models, and add what was left out to the next change.

    The first message to a neighbour is the whole model. The method converges to its usual fixed points, with more wakes
    and fewer bytes; ``run.bytes`` counts bytes as sent.

    Parameters
    ----------
    method : CoordinateDescent, or another method that only sends its model to all neighbours; or its name
    how : TopK, Quantised or Float32
    whole_every : int
        One in this many messages of an agent holds the whole model; 0 for never. Needed if messages may be lost,
        duplicated or out of order; without it, :func:`coterie.simulate` refuses such conditions.

    Examples
    --------
    >>> import numpy as np
    >>> import coterie as ct
    >>> models = np.random.default_rng(0).normal(size=(6, 40))
    >>> problem = ct.Problem.propagation(models, ct.graphs.ring(6), alpha=0.5)
    >>> plain = ct.simulate(problem, "cd", wakes=600, seed=0)
    >>> short = ct.simulate(problem, ct.compression.Compressed("cd", ct.compression.TopK(0.1)), wakes=600, seed=0)
    >>> [round(problem.suboptimality(run.theta), 9) for run in (plain, short)], plain.bytes, short.bytes
    ([0.0, 0.0], 407232, 80832)
    """

    method: Any
    how: Any
    whole_every: int = 0
    inner_dice: int = 0

    open = None  # a new neighbour would need the whole sum
    directed = False
    publishes = property(lambda self: self.method.traffic.publishes)
    footprint = property(lambda self: self.method.traffic.footprint)
    synchronous = property(parts.has_rounds)
    wake, round, prepare, publish = parts.wake, parts.round, parts.prepare, parts.publish

    def __repr__(self):
        more = f", whole_every={self.whole_every}" if self.whole_every else ""
        return f"Compressed({self.method!r}, {self.how!r}{more})"

    @property
    def messages(self):
        """Whole models, their compressed changes, and the method's other messages."""
        more = {kind + 1: message for kind, message in self.method.messages.items() if kind != WHOLE}
        return {WHOLE: Vector(), CHANGE: self.how.parts, **more}

    @property
    def dice(self):
        return self.inner_dice + self.how.dice

    @property
    def sums(self):
        """Return whether a lost message corrupts the sums for good."""
        return self.whole_every == 0

    def scratch_size(self, arrays, p):
        return max(self.method.scratch_size(arrays, p), p + max(p, self.how.room(p)))

    def start(self, arrays, theta):
        """State of the method, and empty reconstructions."""
        own, edge = self.method.start(arrays, theta)
        whole = edge.copy.shape[1] == theta.shape[1]
        sent = own.theta.copy() if whole else np.ascontiguousarray(own.theta[:, arrays.sent])
        return Own(own, sent, np.zeros((theta.shape[0], 1))), edge

    def greet(self, data, me, edges, outbox):
        """Send the reconstruction of the agent's model that neighbours have."""
        first = outbox.cursor[TAIL]
        self.method.greet(data, me.model, edges, outbox)
        for h in range(first, outbox.cursor[TAIL]):
            if outbox.kind[h] != WHOLE:
                outbox.kind[h] += 1
                continue
            copy_to(me.sent[: outbox.length[h]], outbox.text[h])

    def edit(self, data, me, edges, dice, outbox, first):
        """Compress the messages."""
        shorten(self, me, dice, outbox, first)

    def receive(self, data, me, edges, message, outbox):
        """Pass a whole model to the method: the one received, or the reconstruction plus the received change."""
        if message.slot == VACANT:
            return
        if message.kind != CHANGE:
            kind = WHOLE if message.kind == WHOLE else message.kind - 1
            self.method.receive(
                data, me.model, edges, Message(message.sender, message.slot, kind, message.text), outbox
            )
            return
        known = edges.copy[message.slot]
        p = known.shape[0]
        change, whole = outbox.scratch[:p], outbox.scratch[p : 2 * p]
        if not self.how.fits(message.text, p):
            return
        self.how.restore(message.text, change)
        copy_to(known, whole)
        axpy(1.0, change, whole)
        self.method.receive(data, me.model, edges, Message(message.sender, message.slot, 0, whole), outbox)
