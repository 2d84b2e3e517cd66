"""Event-driven simulation: messages take time, get lost, arrive twice or out of order, and agents leave and return.

A method runs with the handlers of the plain simulator; only the network differs. The unit of time is the mean interval
between two wakes of one agent.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .arrays import AUTHOR, HEAD, NEEDS_ROOM, REFUSED, TAIL, VACANT, Randomness, agent
from .compile import inline, kernel
from .loop import DUPLICATED, LOST, book, give, recipient, recipients, spent


class Channel(NamedTuple):
    """:class:`Conditions` in the form that kernels read."""

    latency: float
    jitter: float
    loss: float
    duplication: float
    moment: np.ndarray  # (moments,) times at which an agent leaves or returns, in order
    agent: np.ndarray  # (moments,)
    change: np.ndarray  # (moments,) +1 where an outage begins, -1 where one ends
    participation: np.ndarray  # (n,) probability that an agent takes part when its clock ticks
    interval: np.ndarray  # (n,) mean time between two ticks of the agent's clock


class EventQueue(NamedTuple):
    """Future events: a heap of times, and the messages in transit."""

    time: np.ndarray  # (events,) heap, by (time, turn)
    turn: np.ndarray  # (events,) order of creation, which decides at equal times
    what: np.ndarray  # (events,) slot of a message in transit, or ~agent for a wake
    text: np.ndarray  # (messages, size)
    length: np.ndarray  # (messages,)
    sender: np.ndarray  # (messages,)
    to: np.ndarray  # (messages,)
    kind: np.ndarray  # (messages,)
    free: np.ndarray  # (messages,) stack of free slots
    away: np.ndarray  # (n,) number of outages that the agent is in
    counter: np.ndarray  # SIZE, FREE, TURN, MOMENT, BROADCASTS
    clock: np.ndarray  # (1,) current time


SIZE, FREE, TURN, MOMENT, BROADCASTS = 0, 1, 2, 3, 4


def new_queue(n, messages, size, broadcasts):
    """Return an empty queue for n agents with `messages` slots; one event makes at most `broadcasts` broadcasts."""
    integers = lambda count: np.zeros(count, np.int64)  # noqa: E731
    return EventQueue(
        np.zeros(n + messages),
        integers(n + messages),
        integers(n + messages),
        np.zeros((messages, size)),
        *[integers(messages) for _ in range(4)],
        np.arange(messages)[::-1].copy(),
        integers(n),
        np.array([0, messages, 0, 0, broadcasts]),
        np.zeros(1),
    )


def grown(queue):
    """Return a copy of the queue with twice as many message slots."""
    messages = queue.to.shape[0]
    bigger = new_queue(queue.away.shape[0], 2 * messages, queue.text.shape[1], 0)
    for old, new in zip(queue, bigger, strict=True):
        new[: old.shape[0]] = old
    count = queue.counter[FREE]
    bigger.free[count : count + messages] = np.arange(messages, 2 * messages)
    bigger.counter[FREE] += messages
    return bigger


@inline
def _before(queue, a, b):
    if queue.time[a] != queue.time[b]:
        return queue.time[a] < queue.time[b]
    return queue.turn[a] < queue.turn[b]


@inline
def _swap(queue, a, b):
    queue.time[a], queue.time[b] = queue.time[b], queue.time[a]
    queue.turn[a], queue.turn[b] = queue.turn[b], queue.turn[a]
    queue.what[a], queue.what[b] = queue.what[b], queue.what[a]


@inline
def _plan(queue, time, what):
    k = queue.counter[SIZE]
    queue.time[k], queue.turn[k], queue.what[k] = time, queue.counter[TURN], what
    queue.counter[SIZE] += 1
    queue.counter[TURN] += 1
    while k > 0 and _before(queue, k, (k - 1) >> 1):
        _swap(queue, k, (k - 1) >> 1)
        k = (k - 1) >> 1


@inline
def _next(queue):
    """Remove the earliest event, and advance the clock to its time."""
    queue.clock[0] = queue.time[0]
    size = queue.counter[SIZE] - 1
    queue.counter[SIZE] = size
    _swap(queue, 0, size)
    k = 0
    while True:
        child = 2 * k + 1
        if child >= size:
            break
        if child + 1 < size and _before(queue, child + 1, child):
            child += 1
        if not _before(queue, child, k):
            break
        _swap(queue, child, k)
        k = child


@inline
def _dispatch(arrays, outbox, queue, channel, rng, account):
    """Schedule delivery of the posted messages; each may be lost or duplicated."""
    for h in range(outbox.cursor[TAIL]):
        a, b = recipients(arrays, outbox, h)
        for e in range(a, b):
            to = recipient(arrays, outbox.to[h], e)
            if to == VACANT:
                continue
            if not 0 <= to < arrays.address.shape[0]:
                outbox.cursor[REFUSED] += 1
                continue
            book(account, outbox.kind[h], 1, outbox.length[h])
            copies = 1
            if channel.loss > 0.0 and rng.random() < channel.loss:
                copies = 0
                account[LOST] += 1
            elif channel.duplication > 0.0 and rng.random() < channel.duplication:
                copies = 2
                account[DUPLICATED] += 1
            for _ in range(copies):
                queue.counter[FREE] -= 1
                slot = queue.free[queue.counter[FREE]]
                for c in range(outbox.length[h]):
                    queue.text[slot, c] = outbox.text[h, c]
                queue.length[slot], queue.kind[slot] = outbox.length[h], outbox.kind[h]
                queue.sender[slot], queue.to[slot] = arrays.address[outbox.author[h]], to
                delay = 1.0 - channel.jitter + channel.jitter * rng.standard_exponential()
                _plan(queue, queue.clock[0] + channel.latency * delay, slot)
    outbox.cursor[HEAD] = 0
    outbox.cursor[TAIL] = 0


@inline
def _room(arrays, outbox, queue, k):
    """Return whether the queue has room for all messages that agent k could post in one event, each delivered twice."""
    edges = arrays.edge_start[k + 1] - arrays.edge_start[k]
    return queue.counter[FREE] >= 2 * (outbox.to.shape[0] + queue.counter[BROADCASTS] * edges)


@inline
def _come_and_go(queue, channel):
    """Apply outages that have begun or ended by now."""
    past = queue.counter[MOMENT]
    while past < channel.moment.shape[0] and channel.moment[past] <= queue.clock[0]:
        queue.away[channel.agent[past]] += channel.change[past]
        past += 1
    queue.counter[MOMENT] = past


@kernel
def begin(queue, channel, rng):
    """Schedule the first wake of all agents."""
    for k in range(queue.away.shape[0]):
        _plan(queue, channel.interval[k] * rng.standard_exponential(), ~k)
    _come_and_go(queue, channel)


@kernel
def meet(method, arrays, own, edge, outbox, queue, channel, rng, account, first):
    """Let agents from ``first`` on greet their neighbours. Return the first agent whose messages find no room."""
    n = arrays.address.shape[0]
    for k in range(first, n):
        if not _room(arrays, outbox, queue, k):
            return k
        if queue.away[k] == 0:
            outbox.cursor[AUTHOR] = k
            data, me, edges = agent(arrays, own, edge, k)
            method.greet(data, me, edges, outbox)
            _dispatch(arrays, outbox, queue, channel, rng, account)
    return n


@kernel
def run(method, arrays, own, edge, outbox, queue, channel, rng, account, budget, wakes, dice):
    """Process events until ``wakes`` agents have woken, the budget is spent, or messages or edges find no room.

    Return the number of agents that have woken.
    """
    done = 0
    while done < wakes and outbox.cursor[REFUSED] + outbox.cursor[NEEDS_ROOM] == 0 and not spent(account, budget):
        what = queue.what[0]
        k = ~what if what < 0 else queue.to[what]
        if not _room(arrays, outbox, queue, k):
            return done
        _next(queue)
        _come_and_go(queue, channel)
        if what >= 0:
            if queue.away[k] > 0:
                account[LOST] += 1
            else:
                text = queue.text[what, : queue.length[what]]
                give(method, arrays, own, edge, outbox, k, queue.sender[what], VACANT, queue.kind[what], text)
            queue.free[queue.counter[FREE]] = what
            queue.counter[FREE] += 1
        else:
            likely = channel.participation[k]  # a random number is drawn only if the agent may skip its turn
            if queue.away[k] == 0 and (likely >= 1.0 or rng.random() < likely):
                for d in range(dice.shape[0]):
                    dice[d] = rng.random()
                outbox.cursor[AUTHOR] = k
                data, me, edges = agent(arrays, own, edge, k)
                method.wake(data, me, edges, Randomness(dice, VACANT, queue.clock[0]), outbox)
                done += 1
            _plan(queue, queue.clock[0] + channel.interval[k] * rng.standard_exponential(), what)
        _dispatch(arrays, outbox, queue, channel, rng, account)
    return done
