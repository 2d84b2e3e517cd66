"""Parts common to compositions: access to the inner method's state, and messages that are modified when sent."""

from __future__ import annotations

from ...errors import MismatchError
from ..arrays import TAIL, Randomness
from ..compile import class_of, overload

#: A method equivalent to one with a server, for messages.
WITHOUT_SERVER = "ct.gossip.LocalSGD(...) or ct.gossip.DPSGD(...) on ct.graphs.complete(n)"


def has_inside(method, parameter):
    """Return whether a method, or an inner method of a composition, has a parameter."""
    fields = method._fields
    return parameter in fields or ("method" in fields and has_inside(method.method, parameter))


def refuse_server(method, why, instead):
    """Refuse a method with a server, recognised by its parameter ``clients``."""
    if has_inside(method, "clients"):
        raise MismatchError(f"{method!r} has a server, {why}: use {instead}")


def model_of(me):
    """Return the model of an agent."""
    return me.theta if "theta" in me._fields else model_of(me.model)


@overload(model_of)
def _model_of(me):
    return (lambda me: me.theta) if "theta" in class_of(me)._fields else (lambda me: model_of(me.model))


def shown_by(me):
    """Return the model that neighbours know: the sum of what a compressed method has sent, or the model itself."""
    return me.sent if "sent" in me._fields else me.theta if "theta" in me._fields else shown_by(me.model)


@overload(shown_by)
def _shown_by(me):
    fields = class_of(me)._fields
    if "sent" in fields:
        return lambda me: me.sent
    return (lambda me: me.theta) if "theta" in fields else (lambda me: shown_by(me.model))


def heard_number(edges, slot, c):
    """Return coordinate c of the last model received from a neighbour; 0 if the method stores none."""
    if "said" in edges._fields:
        return edges.said[slot][c]
    if "copy" in edges._fields:
        return edges.copy[slot][c]
    return heard_number(edges.model, slot, c) if "model" in edges._fields else 0.0


@overload(heard_number)
def _heard_number(edges, slot, c):
    fields = class_of(edges)._fields
    if "said" in fields:
        return lambda edges, slot, c: edges.said[slot][c]
    if "copy" in fields:
        return lambda edges, slot, c: edges.copy[slot][c]
    if "model" in fields:
        return lambda edges, slot, c: heard_number(edges.model, slot, c)
    return lambda edges, slot, c: 0.0


# -- for a composition whose ``edit`` modifies messages when sent, with random numbers of its own after the others
# ------


#: Parts of a state inside the composition's, under ``model``: models, and the privacy accounts of agents.
theta, account = property(lambda own: own.model.theta), property(lambda own: own.model.account)


def has_rounds(self):
    """Return whether the method has rounds; if it has random numbers, then with those of the composition."""
    training = self.method.training
    return training.synchronous and (training.jobs > 0 or self.dice == self.inner_dice)


def wake(self, data, me, edges, randomness, outbox):
    """Run the method's wake, and modify its messages."""
    first = outbox.cursor[TAIL]
    inner = Randomness(randomness.dice[: self.inner_dice], randomness.peer, randomness.moment)
    self.method.wake(data, me.model, edges, inner, outbox)
    self.edit(data, me, edges, randomness.dice[self.inner_dice :], outbox, first)


def round(self, data, me, edges, outbox):
    """Run the method's round, if it has any, and modify its messages."""
    first = outbox.cursor[TAIL]
    self.method.round(data, me.model, edges, outbox)
    self.edit(data, me, edges, outbox.scratch[:0], outbox, first)


def prepare(self, data, me, edges, randomness, outbox, phase):
    """Prepare the method's next job."""
    inner = Randomness(randomness.dice[: self.inner_dice], randomness.peer, randomness.moment)
    return self.method.prepare(data, me.model, edges, inner, outbox, phase)


def publish(self, data, me, edges, randomness, outbox):
    """Send the method's messages after training, modified."""
    first = outbox.cursor[TAIL]
    inner = Randomness(randomness.dice[: self.inner_dice], randomness.peer, randomness.moment)
    self.method.publish(data, me.model, edges, inner, outbox)
    self.edit(data, me, edges, randomness.dice[self.inner_dice :], outbox, first)
