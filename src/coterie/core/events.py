"""Event-driven simulation: letters take time, get lost, arrive twice or out of order, and agents go away and return.

The rules of a method are those of the plain simulator; only the mail is worse. Time is measured in mean intervals
between two wakes of one agent.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .compile import inline, kernel
from .loop import DUPLICATED, LOST, book, give, recipient, recipients, spent
from .world import AUTHOR, HEAD, NEEDS_ROOM, REFUSED, TAIL, VACANT, Chance, data_of, row, rows


class Weather(NamedTuple):
    """:class:`Conditions` as kernels see them."""

    latency: float
    jitter: float
    loss: float
    duplication: float
    moment: np.ndarray  # (moments,) times at which an agent leaves or returns, in order
    agent: np.ndarray  # (moments,)
    change: np.ndarray  # (moments,) +1 an outage begins, -1 it ends


class Agenda(NamedTuple):
    """What is going to happen: a heap of moments, and the letters under way."""

    time: np.ndarray  # (events,) heap, by (time, turn)
    turn: np.ndarray  # (events,) order of creation: first come, first served at equal times
    what: np.ndarray  # (events,) a letter's place among those under way, or ~agent for a wake
    text: np.ndarray  # (letters, size)
    length: np.ndarray  # (letters,)
    sender: np.ndarray  # (letters,)
    to: np.ndarray  # (letters,)
    kind: np.ndarray  # (letters,)
    free: np.ndarray  # (letters,) stack of free places
    away: np.ndarray  # (n,) how many outages the agent is in
    counter: np.ndarray  # SIZE, FREE, TURN, MOMENT, BROADCASTS
    clock: np.ndarray  # (1,) now


SIZE, FREE, TURN, MOMENT, BROADCASTS = 0, 1, 2, 3, 4


def new_agenda(n, letters, size, broadcasts):
    """An empty agenda for n agents with room for some letters under way; an event makes so many broadcasts at most.

    Examples
    --------
    >>> new_agenda(2, 8, 3, 1).text.shape
    (8, 3)
    """
    integers = lambda count: np.zeros(count, np.int64)  # noqa: E731
    return Agenda(
        np.zeros(n + letters),
        integers(n + letters),
        integers(n + letters),
        np.zeros((letters, size)),
        *[integers(letters) for _ in range(4)],
        np.arange(letters)[::-1].copy(),
        integers(n),
        np.array([0, letters, 0, 0, broadcasts]),
        np.zeros(1),
    )


def grown(agenda):
    """The same agenda with room for twice as many letters.

    Examples
    --------
    >>> grown(new_agenda(2, 8, 3, 1)).text.shape
    (16, 3)
    """
    n, letters = agenda.away.shape[0], agenda.to.shape[0]
    bigger = new_agenda(n, 2 * letters, agenda.text.shape[1], 0)
    for name in ("time", "turn", "what", "text", "length", "sender", "to", "kind"):
        old = getattr(agenda, name)
        getattr(bigger, name)[: old.shape[0]] = old
    count = agenda.counter[FREE]
    bigger.free[:count] = agenda.free[:count]
    bigger.free[count : count + letters] = np.arange(letters, 2 * letters)
    bigger.counter[:] = agenda.counter
    bigger.counter[FREE] += letters
    bigger.away[:] = agenda.away
    bigger.clock[:] = agenda.clock
    return bigger


@inline
def _before(agenda, a, b):
    if agenda.time[a] != agenda.time[b]:
        return agenda.time[a] < agenda.time[b]
    return agenda.turn[a] < agenda.turn[b]


@inline
def _swap(agenda, a, b):
    agenda.time[a], agenda.time[b] = agenda.time[b], agenda.time[a]
    agenda.turn[a], agenda.turn[b] = agenda.turn[b], agenda.turn[a]
    agenda.what[a], agenda.what[b] = agenda.what[b], agenda.what[a]


@inline
def _plan(agenda, time, what):
    k = agenda.counter[SIZE]
    agenda.time[k], agenda.turn[k], agenda.what[k] = time, agenda.counter[TURN], what
    agenda.counter[SIZE] += 1
    agenda.counter[TURN] += 1
    while k > 0 and _before(agenda, k, (k - 1) >> 1):
        _swap(agenda, k, (k - 1) >> 1)
        k = (k - 1) >> 1


@inline
def _next(agenda):
    """Remove the earliest event; the clock goes to its time."""
    agenda.clock[0] = agenda.time[0]
    size = agenda.counter[SIZE] - 1
    agenda.counter[SIZE] = size
    _swap(agenda, 0, size)
    k = 0
    while True:
        child = 2 * k + 1
        if child >= size:
            break
        if child + 1 < size and _before(agenda, child + 1, child):
            child += 1
        if not _before(agenda, child, k):
            break
        _swap(agenda, child, k)
        k = child


@inline
def _dispatch(world, mail, agenda, weather, rng, account):
    """Put the posted letters on their way, as many times as the mail pleases."""
    for h in range(mail.cursor[TAIL]):
        a, b = recipients(world, mail, h)
        for e in range(a, b):
            to = recipient(world, mail.to[h], e)
            if to == VACANT:
                continue
            if not 0 <= to < world.address.shape[0]:
                mail.cursor[REFUSED] += 1
                continue
            book(account, mail.kind[h], 1, mail.length[h])
            copies = 1
            if weather.loss > 0.0 and rng.random() < weather.loss:
                copies = 0
                account[LOST] += 1
            elif weather.duplication > 0.0 and rng.random() < weather.duplication:
                copies = 2
                account[DUPLICATED] += 1
            for _ in range(copies):
                agenda.counter[FREE] -= 1
                slot = agenda.free[agenda.counter[FREE]]
                for c in range(mail.length[h]):
                    agenda.text[slot, c] = mail.text[h, c]
                agenda.length[slot], agenda.kind[slot] = mail.length[h], mail.kind[h]
                agenda.sender[slot], agenda.to[slot] = world.address[mail.author[h]], to
                delay = 1.0 - weather.jitter + weather.jitter * rng.standard_exponential()
                _plan(agenda, agenda.clock[0] + weather.latency * delay, slot)
    mail.cursor[HEAD] = 0
    mail.cursor[TAIL] = 0


@inline
def _room(world, mail, agenda, k):
    """Is there room for all that agent k could post in one event, each letter delivered twice?"""
    ties = world.tie_start[k + 1] - world.tie_start[k]
    return agenda.counter[FREE] >= 2 * (mail.to.shape[0] + agenda.counter[BROADCASTS] * ties)


@inline
def _come_and_go(agenda, weather):
    """Outages that have begun or ended by now."""
    past = agenda.counter[MOMENT]
    while past < weather.moment.shape[0] and weather.moment[past] <= agenda.clock[0]:
        agenda.away[weather.agent[past]] += weather.change[past]
        past += 1
    agenda.counter[MOMENT] = past


@kernel
def begin(agenda, weather, rng):
    """All agents set their clocks."""
    for k in range(agenda.away.shape[0]):
        _plan(agenda, rng.standard_exponential(), ~k)
    _come_and_go(agenda, weather)


@kernel
def meet(method, world, own, tie, mail, agenda, weather, rng, account, first):
    """Agents from ``first`` on greet their neighbours. Returns the first that found no room for its letters."""
    n = world.address.shape[0]
    for k in range(first, n):
        if not _room(world, mail, agenda, k):
            return k
        if agenda.away[k] == 0:
            a, b = world.tie_start[k], world.tie_start[k + 1]
            mail.cursor[AUTHOR] = k
            method.greet(data_of(world, k), row(own, k), rows(tie, a, b), mail)
            _dispatch(world, mail, agenda, weather, rng, account)
    return n


@kernel
def run(method, world, own, tie, mail, agenda, weather, rng, account, budget, wakes, dice):
    """Let time pass until ``wakes`` agents have woken, the budget is spent, or letters or ties find no room.

    Returns how many woke.
    """
    done = 0
    while done < wakes and mail.cursor[REFUSED] + mail.cursor[NEEDS_ROOM] == 0 and not spent(account, budget):
        what = agenda.what[0]
        k = ~what if what < 0 else agenda.to[what]
        if not _room(world, mail, agenda, k):
            return done
        _next(agenda)
        _come_and_go(agenda, weather)
        if what >= 0:
            if agenda.away[k] > 0:
                account[LOST] += 1
            else:
                text = agenda.text[what, : agenda.length[what]]
                give(method, world, own, tie, mail, k, agenda.sender[what], VACANT, agenda.kind[what], text)
            agenda.free[agenda.counter[FREE]] = what
            agenda.counter[FREE] += 1
        else:
            if agenda.away[k] == 0:
                for d in range(dice.shape[0]):
                    dice[d] = rng.random()
                a, b = world.tie_start[k], world.tie_start[k + 1]
                mail.cursor[AUTHOR] = k
                method.wake(
                    data_of(world, k), row(own, k), rows(tie, a, b), Chance(dice, VACANT, agenda.clock[0]), mail
                )
                done += 1
            _plan(agenda, agenda.clock[0] + rng.standard_exponential(), what)
        _dispatch(world, mail, agenda, weather, rng, account)
    return done
