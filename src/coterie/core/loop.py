"""The one compiled loop, which runs the agents of one process; messages to other agents leave through ``egress``.

Messages are delivered in the order in which they were posted, before the next agent wakes.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from .arrays import (
    AUTHOR,
    EVERYONE,
    HEAD,
    NEEDS_ROOM,
    REFUSED,
    TAIL,
    VACANT,
    Heard,
    Message,
    Randomness,
    agent,
    as_sender,
    choose,
    data_of,
    row,
    slot_of,
    widened,
)
from .compile import class_of, fetch, inline, kernel, overload
from .linear import copy_to

#: Entries of an account: messages and numbers sent, messages lost and duplicated in transit; and from KINDS on,
#: messages and numbers of each kind.
MESSAGES, NUMBERS, LOST, DUPLICATED, KINDS = 0, 1, 2, 3, 4
#: Number of agents from which the next agent's state is prefetched; the states of fewer agents fit in the cache.
PREFETCH_MIN_AGENTS = 4_000
#: Fields of a state that are recomputed when an agent's data change: results computed from data, and the number of
#: agents.
RECOMPUTED_FIELDS = ("cache", "n_agents")


def new_account(method):
    """Return an account at zero."""
    return np.zeros(KINDS + 2 * len(method.messages), np.int64)


class Egress(NamedTuple):
    """Messages for agents of other processes."""

    text: np.ndarray  # (capacity, size)
    length: np.ndarray  # (capacity,)
    sender: np.ndarray  # (capacity,) address
    to: np.ndarray  # (capacity,) address
    kind: np.ndarray  # (capacity,)
    counter: np.ndarray  # (2,) messages stored, messages refused because the buffer was full


class Budget(NamedTuple):
    """Price limit: the loop stops as soon as the messages sent cost this much."""

    message: np.ndarray  # (kinds,) price of a message of each kind
    number: np.ndarray  # (kinds,) price of each number in a message, in addition
    limit: float


NO_LIMIT = Budget(np.zeros(0), np.zeros(0), math.inf)


def new_egress(capacity, size):
    """Return an empty buffer for messages to other processes."""
    box = [np.zeros(capacity, np.int64) for _ in range(4)]
    return Egress(np.zeros((capacity, size)), *box, np.zeros(2, np.int64))


@inline
def give(method, arrays, own, edge, outbox, k, sender, hint, kind, text):
    """Deliver one message to agent k of these arrays."""
    outbox.cursor[AUTHOR] = k
    data, me, edges = agent(arrays, own, edge, k)
    method.receive(data, me, edges, Message(sender, slot_of(data.peer, sender, hint), kind, text), outbox)


@inline
def recipients(arrays, outbox, h):
    """Return the range of edges for message h of the outbox; a range of length one for a message to one address."""
    a = arrays.edge_start[outbox.author[h]]
    if outbox.to[h] == EVERYONE:
        return a, arrays.edge_start[outbox.author[h] + 1]
    a += max(outbox.slot[h], 0)
    return a, a + 1


@inline
def recipient(arrays, to, e):
    """Return the address, along edge e, of a message to ``to``."""
    if to == EVERYONE:
        return arrays.peer[e]
    return to


@inline
def book(account, kind, messages, length):
    """Count messages of one kind and length."""
    account[MESSAGES] += messages
    account[NUMBERS] += messages * length
    account[KINDS + 2 * kind] += messages
    account[KINDS + 2 * kind + 1] += messages * length


@inline
def to_each(method, arrays, own, edge, outbox, egress, h):
    """Deliver message h of the outbox to all its recipients. Return their number."""
    first = arrays.address[0]
    last = first + arrays.address.shape[0]
    sender = arrays.address[outbox.author[h]]
    goal, kind, text = outbox.to[h], outbox.kind[h], outbox.text[h, : outbox.length[h]]
    a, b = recipients(arrays, outbox, h)
    known = goal == EVERYONE or outbox.slot[h] != VACANT
    sent = 0
    for e in range(a, b):
        to = recipient(arrays, goal, e)
        if to == VACANT:
            continue
        sent += 1
        if first <= to < last:
            hint = arrays.inverse[e] if known else VACANT
            give(method, arrays, own, edge, outbox, to - first, sender, hint, kind, text)
        elif egress.counter[0] < egress.to.shape[0]:
            c = egress.counter[0]
            copy_to(text, egress.text[c])
            egress.length[c], egress.sender[c], egress.to[c], egress.kind[c] = text.shape[0], sender, to, kind
            egress.counter[0] = c + 1
        else:
            egress.counter[1] += 1
    return sent


@inline
def to_all(method, arrays, own, edge, outbox, egress, h):
    """As :func:`to_each` if messages are stored once: deliver the message once, into the row that all neighbours read.

    Receipt is equal for all neighbours, so it runs once, for the sender, and touches no other agent's memory.
    """
    k = outbox.author[h]
    address = arrays.address[k : k + 1]
    message = Message(address[0], 0, outbox.kind[h], outbox.text[h, : outbox.length[h]])
    method.receive(data_of(arrays, k, VACANT), row(own, k), as_sender(edge, address), message, outbox)
    return arrays.edge_start[k + 1] - arrays.edge_start[k]


def deliver(method, arrays, own, edge, outbox, egress, h):
    """Deliver message h of the outbox, stored once or per edge as the state requires.

    Return the number of recipients.
    """
    way = to_all if any(isinstance(part, Heard) for part in edge) else to_each
    return way(method, arrays, own, edge, outbox, egress, h)


@overload(deliver)
def _deliver(method, arrays, own, edge, outbox, egress, h):
    return to_all if any(class_of(part) is Heard for part in edge.types) else to_each


@inline
def hand_over(method, arrays, own, edge, outbox, egress, account):
    """Deliver all posted messages, and those that they cause."""
    while outbox.cursor[HEAD] < outbox.cursor[TAIL]:
        h = outbox.cursor[HEAD]
        outbox.cursor[HEAD] = h + 1
        book(account, outbox.kind[h], deliver(method, arrays, own, edge, outbox, egress, h), outbox.length[h])
    outbox.cursor[HEAD] = 0
    outbox.cursor[TAIL] = 0


@inline
def spent(account, budget):
    """Return whether the budget is spent."""
    return budget.limit < math.inf and cost_of(account, budget.message, budget.number) >= budget.limit


@inline
def cost_of(account, message, number):
    """Return the price of what was sent, given prices of messages of each kind and of their numbers."""
    cost = 0.0
    for kind in range(message.shape[0]):
        cost += account[KINDS + 2 * kind] * message[kind] + account[KINDS + 2 * kind + 1] * number[kind]
    return cost


def partner(method, arrays, k, randomness):
    """Return the neighbour that agent k will exchange with; VACANT if the method has no exchanges."""
    return VACANT


@overload(partner)
def _partner(method, arrays, k, randomness):
    if getattr(class_of(method), "exchanges", False) is True:

        def chosen(method, arrays, k, randomness):
            data = data_of(arrays, k, VACANT)
            slot = choose(data, randomness)
            return data.peer[slot] - arrays.address[0] if slot != VACANT else VACANT

        return chosen
    return lambda method, arrays, k, randomness: VACANT


@inline
def who_is_next(arrays, order, peers, t):
    """Return the agent that wakes after wake t, for prefetching; VACANT if not needed."""
    if arrays.address.shape[0] < PREFETCH_MIN_AGENTS or t + 2 >= order.shape[0] or peers[t] == EVERYONE:
        return VACANT
    return order[t + 1]


@inline
def prepare(arrays, own, edge, following, later):
    """Prefetch the state of the agent of the next wake, and the edges of the agent of the wake after it."""
    if following != VACANT:
        fetch((arrays.peer, arrays.weight, arrays.choice), arrays.edge_start[later], arrays.edge_start[later + 1])
        fetch(own, following, following + 1)
        fetch(edge, arrays.edge_start[following], arrays.edge_start[following + 1])
        fetch(arrays.labels, arrays.row_start[following], arrays.row_start[following + 1])


@inline
def prepare_partner(method, arrays, own, edge, following, randomness):
    """Prefetch the state of the neighbour that the agent will exchange with."""
    if following != VACANT:
        other = partner(method, arrays, following, randomness)
        if 0 <= other < arrays.address.shape[0]:
            a, b = arrays.edge_start[other], arrays.edge_start[other + 1]
            fetch((arrays.peer, arrays.weight, arrays.choice), a, b)
            fetch(own, other, other + 1)
            fetch(edge, a, b)


@kernel
def run(method, arrays, own, edge, order, peers, dice, moments, outbox, egress, account, budget):
    """Wake the agents of ``order`` (numbers in these arrays) one after the other. Return how many have woken.

    Stops early when the budget is spent, or when an agent needs more slots for its edges.

    ``peers`` holds the address that each agent exchanges with; VACANT to let the agent choose; EVERYONE to greet its
    neighbours instead. One kernel does both, because compiling the handlers twice would double the compile time.
    """
    for t in range(order.shape[0]):
        if outbox.cursor[REFUSED] > 0 or outbox.cursor[NEEDS_ROOM] > 0 or spent(account, budget):
            return t
        k = order[t]
        outbox.cursor[AUTHOR] = k
        following, after = who_is_next(arrays, order, peers, t), min(t + 1, order.shape[0] - 1)
        prepare(arrays, own, edge, following, order[min(t + 2, order.shape[0] - 1)])
        data, me, edges = agent(arrays, own, edge, k, following)
        if peers[t] == EVERYONE:
            method.greet(data, me, edges, outbox)
        else:
            method.wake(data, me, edges, Randomness(dice[t], peers[t], moments[t]), outbox)
        prepare_partner(method, arrays, own, edge, following, Randomness(dice[after], peers[after], moments[after]))
        hand_over(method, arrays, own, edge, outbox, egress, account)
    return order.shape[0]


def widen(method, arrays, edge, outbox):
    """Enlarge arrays for agents that need it: twice as many slots for edges, or larger ones.

    Return arrays and state of edges.
    """
    slots = np.diff(arrays.edge_start)
    used = np.add.reduceat(np.append(arrays.peer != VACANT, False), arrays.edge_start[:-1]) * (slots > 0)
    spare = method.edges.spare
    # Enlarge all agents that will soon need it at once: a new layout of the arrays takes time.
    short = slots - used < 2 * spare
    arrays, place = widened(arrays, np.where(short, used + np.maximum(used, 4 * spare), slots))
    edge = spread(edge, arrays.peer.shape[0], place)
    outbox.cursor[NEEDS_ROOM] = 0
    enlarge = method.edges.enlarge
    return arrays, edge if enlarge is None else enlarge(arrays, edge)


def spread(edge, slots, place):
    """Return the state of edges, moved to new slots; :meth:`open` initialises the slots in between."""
    parts = []
    for part in edge:
        if isinstance(part, tuple):
            parts.append(spread(part, slots, place))
        else:
            parts.append(np.zeros((slots, *part.shape[1:]), part.dtype))
            parts[-1][place] = part
    return type(edge)(*parts)


def moved(old, new, there, here, skip=()):
    """Return the new state with parts ``there`` of the old one at ``here``; fields in `skip` keep their new values.

    The slots are at least as large as before.
    """
    parts = []
    for name, source, goal in zip(old._fields, old, new, strict=True):
        if name in skip:
            part = goal
        elif isinstance(source, tuple):
            part = moved(source, goal, there, here, skip)
        else:
            part = np.zeros((goal.shape[0], *map(max, source.shape[1:], goal.shape[1:])), goal.dtype)
            part[tuple(map(slice, goal.shape))] = goal
            part[(here, *map(slice, source.shape[1:]))] = source[there]
        parts.append(part)
    return type(old)(*parts)


def meet(method, arrays, own, edge, outbox, egress, account, run=run, who=None):
    """Run the initial exchange: every agent, or each of the given ones, greets its neighbours."""
    who = np.arange(arrays.address.shape[0]) if who is None else who
    everyone, dice = np.full(len(who), EVERYONE), np.zeros((len(who), method.traffic.dice))
    run(method, arrays, own, edge, who, everyone, dice, np.zeros(len(who)), outbox, egress, account, NO_LIMIT)


@kernel
def rounds(method, arrays, own, edge, count, outbox, egress, account, budget):
    """Run synchronous rounds: all agents act, and then their messages are delivered. Return the number of rounds."""
    for t in range(count):
        if outbox.cursor[REFUSED] > 0 or outbox.cursor[NEEDS_ROOM] > 0 or spent(account, budget):
            return t
        for k in range(arrays.address.shape[0]):
            outbox.cursor[AUTHOR] = k
            data, me, edges = agent(arrays, own, edge, k)
            method.round(data, me, edges, outbox)
        hand_over(method, arrays, own, edge, outbox, egress, account)
    return count


@kernel
def partial_round(method, arrays, own, edge, present, outbox, egress, account):
    """Run one synchronous round of the present agents: they act, and then their messages are delivered."""
    for k in range(arrays.address.shape[0]):
        if present[k]:
            outbox.cursor[AUTHOR] = k
            data, me, edges = agent(arrays, own, edge, k)
            method.round(data, me, edges, outbox)
    hand_over(method, arrays, own, edge, outbox, egress, account)


@kernel
def training_round(method, arrays, own, edge, present, dice, moment, outbox, egress, account):
    """Run one synchronous round of a method that trains: the present agents wake, then messages are delivered."""
    for k in range(arrays.address.shape[0]):
        if not present[k]:
            continue
        outbox.cursor[AUTHOR] = k
        data, me, edges = agent(arrays, own, edge, k)
        method.wake(data, me, edges, Randomness(dice[k], VACANT, moment), outbox)
    hand_over(method, arrays, own, edge, outbox, egress, account)


@kernel
def publish_all(method, arrays, own, edge, present, dice, moment, outbox, egress, account):
    """End a synchronous round of a method that trains: after all agents have trained, they publish and messages are
    delivered.
    """
    for k in range(arrays.address.shape[0]):
        if not present[k]:
            continue
        outbox.cursor[AUTHOR] = k
        data, me, edges = agent(arrays, own, edge, k)
        method.publish(data, me, edges, Randomness(dice[k], VACANT, moment), outbox)
    hand_over(method, arrays, own, edge, outbox, egress, account)


@kernel
def accept(method, arrays, own, edge, outbox, egress, account, sender, to, kind, length, text):
    """Deliver messages from other processes. Return how many were delivered: fewer if an agent needs room first."""
    for c in range(to.shape[0]):
        give(
            method,
            arrays,
            own,
            edge,
            outbox,
            to[c] - arrays.address[0],
            sender[c],
            VACANT,
            kind[c],
            text[c, : length[c]],
        )
        hand_over(method, arrays, own, edge, outbox, egress, account)
        if outbox.cursor[NEEDS_ROOM] > 0:
            return c + 1
    return to.shape[0]
