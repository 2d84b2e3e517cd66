"""The one compiled loop. It hosts the agents of a world; a letter to anyone else leaves through ``egress``.

Letters are delivered in the order in which they were posted, before the next agent wakes.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from .compile import class_of, fetch, inline, kernel, overload
from .linear import copy_to
from .world import (
    AUTHOR,
    EVERYONE,
    HEAD,
    NEEDS_ROOM,
    REFUSED,
    TAIL,
    VACANT,
    Chance,
    Heard,
    Letter,
    agent,
    as_sender,
    choose,
    data_of,
    row,
    slot_of,
    widened,
)

#: What an account counts: letters and numbers sent, letters lost and doubled on the way; and from KINDS on, letters and
#: numbers of each kind.
LETTERS, NUMBERS, LOST, DUPLICATED, KINDS = 0, 1, 2, 3, 4
#: From so many agents on, the state of who wakes next is loaded while another one works: fewer are in the cache.
MANY = 4_000
#: Fields of a state that are made anew when an agent goes on in another world: what it works out from its data, and how
#: many agents there are.
ANEW = ("cache", "n_agents")


def new_account(method):
    """An account at zero."""
    return np.zeros(KINDS + 2 * len(method.letters), np.int64)


class Egress(NamedTuple):
    """Letters for agents of other hosts."""

    text: np.ndarray  # (capacity, size)
    length: np.ndarray  # (capacity,)
    sender: np.ndarray  # (capacity,) address
    to: np.ndarray  # (capacity,) address
    kind: np.ndarray  # (capacity,)
    counter: np.ndarray  # (2,) letters kept, letters refused because the box was full


class Budget(NamedTuple):
    """When to stop: as soon as the letters sent cost so much."""

    letter: np.ndarray  # (kinds,) price of a letter of each kind
    number: np.ndarray  # (kinds,) price of each number in it, beside
    limit: float


NO_LIMIT = Budget(np.zeros(0), np.zeros(0), math.inf)


def new_egress(capacity, size):
    """An empty box for letters to other hosts."""
    box = [np.zeros(capacity, np.int64) for _ in range(4)]
    return Egress(np.zeros((capacity, size)), *box, np.zeros(2, np.int64))


@inline
def give(method, world, own, tie, outbox, k, sender, hint, kind, text):
    """Hand one letter to agent k of this world."""
    outbox.cursor[AUTHOR] = k
    data, me, ties = agent(world, own, tie, k)
    method.receive(data, me, ties, Letter(sender, slot_of(data.peer, sender, hint), kind, text), outbox)


@inline
def recipients(world, outbox, h):
    """The range of ties that letter h of the outbox goes along; a letter to one address takes one turn."""
    a = world.tie_start[outbox.author[h]]
    if outbox.to[h] == EVERYONE:
        return a, world.tie_start[outbox.author[h] + 1]
    a += max(outbox.slot[h], 0)
    return a, a + 1


@inline
def recipient(world, to, e):
    """The address that a letter to ``to`` goes to along tie e."""
    if to == EVERYONE:
        return world.peer[e]
    return to


@inline
def book(account, kind, letters, length):
    """Count letters of one kind and length."""
    account[LETTERS] += letters
    account[NUMBERS] += letters * length
    account[KINDS + 2 * kind] += letters
    account[KINDS + 2 * kind + 1] += letters * length


@inline
def to_each(method, world, own, tie, outbox, egress, h):
    """Hand letter h of the outbox to all that it goes to. Returns how many."""
    first = world.address[0]
    last = first + world.address.shape[0]
    sender = world.address[outbox.author[h]]
    goal, kind, text = outbox.to[h], outbox.kind[h], outbox.text[h, : outbox.length[h]]
    a, b = recipients(world, outbox, h)
    known = goal == EVERYONE or outbox.slot[h] != VACANT
    sent = 0
    for e in range(a, b):
        to = recipient(world, goal, e)
        if to == VACANT:
            continue
        sent += 1
        if first <= to < last:
            hint = world.inverse[e] if known else VACANT
            give(method, world, own, tie, outbox, to - first, sender, hint, kind, text)
        elif egress.counter[0] < egress.to.shape[0]:
            c = egress.counter[0]
            copy_to(text, egress.text[c])
            egress.length[c], egress.sender[c], egress.to[c], egress.kind[c] = text.shape[0], sender, to, kind
            egress.counter[0] = c + 1
        else:
            egress.counter[1] += 1
    return sent


@inline
def to_all(method, world, own, tie, outbox, egress, h):
    """The same where letters are stored once: it is taken in once, in the place where all neighbours read it.

    Receiving it is the same for all of them, so the sender stands for them: nobody else's memory is touched.
    """
    k = outbox.author[h]
    address = world.address[k : k + 1]
    letter = Letter(address[0], 0, outbox.kind[h], outbox.text[h, : outbox.length[h]])
    method.receive(data_of(world, k, VACANT), row(own, k), as_sender(tie, address), letter, outbox)
    return world.tie_start[k + 1] - world.tie_start[k]


def deliver(method, world, own, tie, outbox, egress, h):
    """Hand over letter h of the outbox, in the way that the state of the ties asks for. Returns to how many."""
    way = to_all if any(isinstance(part, Heard) for part in tie) else to_each
    return way(method, world, own, tie, outbox, egress, h)


@overload(deliver)
def _deliver(method, world, own, tie, outbox, egress, h):
    return to_all if any(class_of(part) is Heard for part in tie.types) else to_each


@inline
def hand_over(method, world, own, tie, outbox, egress, account):
    """Deliver all posted letters, and those that they cause."""
    while outbox.cursor[HEAD] < outbox.cursor[TAIL]:
        h = outbox.cursor[HEAD]
        outbox.cursor[HEAD] = h + 1
        book(account, outbox.kind[h], deliver(method, world, own, tie, outbox, egress, h), outbox.length[h])
    outbox.cursor[HEAD] = 0
    outbox.cursor[TAIL] = 0


@inline
def spent(account, budget):
    """Has what was sent reached the budget?"""
    return budget.limit < math.inf and cost_of(account, budget.letter, budget.number) >= budget.limit


@inline
def cost_of(account, letter, number):
    """What was sent, at these prices of letters of each kind and of numbers in them."""
    cost = 0.0
    for kind in range(letter.shape[0]):
        cost += account[KINDS + 2 * kind] * letter[kind] + account[KINDS + 2 * kind + 1] * number[kind]
    return cost


def partner(method, world, k, chance):
    """With whom agent k will talk; VACANT where the method does not exchange with one neighbour, or nobody minds."""
    return VACANT


@overload(partner)
def _partner(method, world, k, chance):
    if getattr(class_of(method), "exchanges", False) is True:

        def chosen(method, world, k, chance):
            data = data_of(world, k, VACANT)
            slot = choose(data, chance)
            return data.peer[slot] - world.address[0] if slot != VACANT else VACANT

        return chosen
    return lambda method, world, k, chance: VACANT


@inline
def who_is_next(world, order, peers, t):
    """Who wakes after wake t, if what it needs is to be loaded meanwhile; else VACANT."""
    if world.address.shape[0] < MANY or t + 2 >= order.shape[0] or peers[t] == EVERYONE:
        return VACANT
    return order[t + 1]


@inline
def prepare(world, own, tie, following, later):
    """Begin to load what the agent of the next wake needs, and the ties of that of the one after it."""
    if following != VACANT:
        fetch((world.peer, world.weight, world.choice), world.tie_start[later], world.tie_start[later + 1])
        fetch(own, following, following + 1)
        fetch(tie, world.tie_start[following], world.tie_start[following + 1])
        fetch(world.labels, world.row_start[following], world.row_start[following + 1])


@inline
def prepare_partner(method, world, own, tie, following, chance):
    """The same for the neighbour that it will talk to."""
    if following != VACANT:
        other = partner(method, world, following, chance)
        if 0 <= other < world.address.shape[0]:
            a, b = world.tie_start[other], world.tie_start[other + 1]
            fetch((world.peer, world.weight, world.choice), a, b)
            fetch(own, other, other + 1)
            fetch(tie, a, b)


@kernel
def run(method, world, own, tie, order, peers, dice, moments, outbox, egress, account, budget):
    """Wake the agents of ``order`` (numbers in this world) one after the other. Returns how many woke.

    Stops early when the budget is spent, or when an agent needs more slots for its ties.

    Each talks to the address in ``peers``, or chooses for itself where that is VACANT, or greets its neighbours where
    that is EVERYONE: one kernel for both, because compiling the handlers twice would double the wait for it.
    """
    for t in range(order.shape[0]):
        if outbox.cursor[REFUSED] > 0 or outbox.cursor[NEEDS_ROOM] > 0 or spent(account, budget):
            return t
        k = order[t]
        outbox.cursor[AUTHOR] = k
        following, after = who_is_next(world, order, peers, t), min(t + 1, order.shape[0] - 1)
        prepare(world, own, tie, following, order[min(t + 2, order.shape[0] - 1)])
        data, me, ties = agent(world, own, tie, k, following)
        if peers[t] == EVERYONE:
            method.greet(data, me, ties, outbox)
        else:
            method.wake(data, me, ties, Chance(dice[t], peers[t], moments[t]), outbox)
        prepare_partner(method, world, own, tie, following, Chance(dice[after], peers[after], moments[after]))
        hand_over(method, world, own, tie, outbox, egress, account)
    return order.shape[0]


def widen(method, world, tie, outbox):
    """Make room for agents that are short of it: twice as many slots for ties, or larger ones.

    Returns world and state of ties.
    """
    slots = np.diff(world.tie_start)
    used = np.add.reduceat(np.append(world.peer != VACANT, False), world.tie_start[:-1]) * (slots > 0)
    spare = method.ties.spare
    # All that will be short soon, at once: laying out a world takes its time.
    short = slots - used < 2 * spare
    world, place = widened(world, np.where(short, used + np.maximum(used, 4 * spare), slots))
    tie = spread(tie, world.peer.shape[0], place)
    outbox.cursor[NEEDS_ROOM] = 0
    enlarge = method.ties.enlarge
    return world, tie if enlarge is None else enlarge(world, tie)


def spread(tie, slots, place):
    """The state of ties at another place each; what is between them is for :meth:`open` to fill."""
    parts = []
    for part in tie:
        if isinstance(part, tuple):
            parts.append(spread(part, slots, place))
        else:
            parts.append(np.zeros((slots, *part.shape[1:]), part.dtype))
            parts[-1][place] = part
    return type(tie)(*parts)


def moved(old, new, there, here, skip=()):
    """The new state with parts ``there`` of the old one at ``here``; fields to be skipped stay new.

    Slots are no smaller than they were.
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


def meet(method, world, own, tie, outbox, egress, account, run=run, who=None):
    """The initial swap: every agent, or each of those named, greets its neighbours."""
    who = np.arange(world.address.shape[0]) if who is None else who
    everyone, dice = np.full(len(who), EVERYONE), np.zeros((len(who), method.traffic.dice))
    run(method, world, own, tie, who, everyone, dice, np.zeros(len(who)), outbox, egress, account, NO_LIMIT)


@kernel
def rounds(method, world, own, tie, count, outbox, egress, account, budget):
    """Synchronous rounds: all agents act, and only then are their letters delivered. Returns how many rounds."""
    for t in range(count):
        if outbox.cursor[REFUSED] > 0 or outbox.cursor[NEEDS_ROOM] > 0 or spent(account, budget):
            return t
        for k in range(world.address.shape[0]):
            outbox.cursor[AUTHOR] = k
            data, me, ties = agent(world, own, tie, k)
            method.round(data, me, ties, outbox)
        hand_over(method, world, own, tie, outbox, egress, account)
    return count


@kernel
def partial_round(method, world, own, tie, present, outbox, egress, account):
    """One synchronous round of those who are present: they act, and only then are their letters delivered."""
    for k in range(world.address.shape[0]):
        if present[k]:
            outbox.cursor[AUTHOR] = k
            data, me, ties = agent(world, own, tie, k)
            method.round(data, me, ties, outbox)
    hand_over(method, world, own, tie, outbox, egress, account)


@kernel
def together(method, world, own, tie, present, dice, moment, outbox, egress, account):
    """The same of a method that trains: agents wake, and only then are their letters delivered."""
    for k in range(world.address.shape[0]):
        if not present[k]:
            continue
        outbox.cursor[AUTHOR] = k
        data, me, ties = agent(world, own, tie, k)
        method.wake(data, me, ties, Chance(dice[k], VACANT, moment), outbox)
    hand_over(method, world, own, tie, outbox, egress, account)


@kernel
def publish_all(method, world, own, tie, present, dice, moment, outbox, egress, account):
    """The end of such a round where all have trained: what they send, and its delivery."""
    for k in range(world.address.shape[0]):
        if not present[k]:
            continue
        outbox.cursor[AUTHOR] = k
        data, me, ties = agent(world, own, tie, k)
        method.publish(data, me, ties, Chance(dice[k], VACANT, moment), outbox)
    hand_over(method, world, own, tie, outbox, egress, account)


@kernel
def accept(method, world, own, tie, outbox, egress, account, sender, to, kind, length, text):
    """Letters that came from other hosts. Returns how many were taken in: fewer where an agent needs room first."""
    for c in range(to.shape[0]):
        give(
            method, world, own, tie, outbox, to[c] - world.address[0], sender[c], VACANT, kind[c], text[c, : length[c]]
        )
        hand_over(method, world, own, tie, outbox, egress, account)
        if outbox.cursor[NEEDS_ROOM] > 0:
            return c + 1
    return to.shape[0]
