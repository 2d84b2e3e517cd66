"""What compositions share: finding something in the state of the method inside, changing messages as they are sent."""

from __future__ import annotations

from ...errors import MismatchError
from ..arrays import TAIL, Randomness
from ..compile import class_of, overload

#: What does the same as a method with a server, without one.
WITHOUT_SERVER = "ct.gossip.LocalSGD(...) or ct.gossip.DPSGD(...) on ct.graphs.complete(n)"


def has_inside(method, parameter):
    """Whether a method, or one that it is a composition around, has such a parameter."""
    fields = method._fields
    return parameter in fields or ("method" in fields and has_inside(method.method, parameter))


def refuse_server(method, why, instead):
    """Refuse a method with a server, one that asks ``clients``."""
    if has_inside(method, "clients"):
        raise MismatchError(f"{method!r} has a server, {why}: use {instead}")


def model_of(me):
    """The model of an agent."""
    return me.theta if "theta" in me._fields else model_of(me.model)


@overload(model_of)
def _model_of(me):
    return (lambda me: me.theta) if "theta" in class_of(me)._fields else (lambda me: model_of(me.model))


def shown_by(me):
    """What neighbours take an agent's model for: the sum of what a compressed method has sent, or the model itself."""
    return me.sent if "sent" in me._fields else me.theta if "theta" in me._fields else shown_by(me.model)


@overload(shown_by)
def _shown_by(me):
    fields = class_of(me)._fields
    if "sent" in fields:
        return lambda me: me.sent
    return (lambda me: me.theta) if "theta" in fields else (lambda me: shown_by(me.model))


def heard_number(edges, slot, c):
    """Number c of the last model of a neighbour, as it was sent; 0 where the method keeps none of them."""
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


# -- of a composition whose ``edit`` changes messages as they are sent, with dice of its own after the others -----------


#: In its state, which holds that of the method as ``model``: models, and what agents of a private method have spent.
theta, account = property(lambda own: own.model.theta), property(lambda own: own.model.account)


def has_rounds(self):
    """Whether it has rounds: with dice of its own, if those of the method have dice."""
    training = self.method.training
    return training.synchronous and (training.jobs > 0 or self.dice == self.inner_dice)


def wake(self, data, me, edges, randomness, outbox):
    """The method's wake; what it sends is changed."""
    first = outbox.cursor[TAIL]
    inner = Randomness(randomness.dice[: self.inner_dice], randomness.peer, randomness.moment)
    self.method.wake(data, me.model, edges, inner, outbox)
    self.edit(data, me, edges, randomness.dice[self.inner_dice :], outbox, first)


def round(self, data, me, edges, outbox):
    """The method's round, if it has any; what it sends is changed."""
    first = outbox.cursor[TAIL]
    self.method.round(data, me.model, edges, outbox)
    self.edit(data, me, edges, outbox.scratch[:0], outbox, first)


def prepare(self, data, me, edges, randomness, outbox, phase):
    """What the method trains next."""
    inner = Randomness(randomness.dice[: self.inner_dice], randomness.peer, randomness.moment)
    return self.method.prepare(data, me.model, edges, inner, outbox, phase)


def publish(self, data, me, edges, randomness, outbox):
    """What the method sends after it has trained, changed."""
    first = outbox.cursor[TAIL]
    inner = Randomness(randomness.dice[: self.inner_dice], randomness.peer, randomness.moment)
    self.method.publish(data, me.model, edges, inner, outbox)
    self.edit(data, me, edges, randomness.dice[self.inner_dice :], outbox, first)
