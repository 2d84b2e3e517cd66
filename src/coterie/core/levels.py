"""Schedules of wakes that run in parallel, with the result of running the wakes one after the other.

A wake must come after every earlier wake that reads what it changes, or changes what it reads. Its level is one more
than the largest level of those wakes: wakes of one level do not touch each other, and levels run one after the other.
The ``footprint`` of a method says what a wake touches.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .arrays import VACANT, Randomness, choose, slot_of
from .compile import kernel


class Edges(NamedTuple):
    """The part of an agent's data that :func:`choose` reads."""

    peer: np.ndarray
    choice: np.ndarray


@kernel
def stranger(order, peers, start, peer, first, last):
    """Return the first of wakes ``first`` to ``last - 1`` that is to exchange with no neighbour; or ``last``.

    VACANT, for no neighbour, is valid for an agent without edges.
    """
    for t in range(first, last):
        a, b = start[order[t]], start[order[t] + 1]
        if slot_of(peer[a:b], peers[t], VACANT) == VACANT and (a < b or peers[t] != VACANT):
            return t
    return last


@kernel
def arrange(order, peers, dice, start, peer, choice, partner, floor, last, level, first, place):
    """Sort the wakes of ``order`` by their levels. Return the number of levels.

    Level l becomes ``place[first[l] : first[l + 1]]``, in the order of the schedule. ``last`` (n,) holds the last level
    of each agent, counted from ``floor``: a smaller value belongs to an earlier schedule. With ``partner``, a wake
    touches its agent and the neighbour that it chooses; otherwise its agent, and the neighbours' states of their edges
    to the agent. Two agents with a common neighbour do not conflict there, for each changes another edge.
    """
    depth = 0
    for t in range(order.shape[0]):
        i, j = order[t], VACANT
        a, b = start[i], start[i + 1]
        top = max(floor, last[i])
        if partner:
            slot = choose(Edges(peer[a:b], choice[a:b]), Randomness(dice[t], peers[t], 0.0))
            if slot != VACANT:
                j = peer[a + slot]
                top = max(top, last[j])
        else:
            for e in range(a, b):
                top = max(top, last[peer[e]])  # an empty slot reads the last agent's level: waiting for it does no harm
        last[i] = top + 1
        if j != VACANT:
            last[j] = top + 1
        level[t] = top - floor
        depth = max(depth, top - floor + 1)
    for k in range(depth + 1):
        first[k] = 0
    for t in range(order.shape[0]):
        first[level[t] + 1] += 1
    for k in range(depth):
        first[k + 1] += first[k]
    for t in range(order.shape[0]):  # move first[l] from the start of level l to its end ...
        place[first[level[t]]] = t
        first[level[t]] += 1
    for k in range(depth, 0, -1):  # ... and back
        first[k] = first[k - 1]
    first[0] = 0
    return depth
