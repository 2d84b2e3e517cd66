"""Which wakes of a schedule may run at the same time, with the result of running them one after the other.

A wake may not overtake an earlier one that reads what it changes, or changes what it reads. Its level is one more than
the largest of those: wakes of one level do not touch each other, and levels run one after the other. What a wake
touches is its method's ``footprint``.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from .arrays import VACANT, Randomness, choose, slot_of
from .compile import kernel


class Edges(NamedTuple):
    """As much of what an agent knows as it takes to choose a neighbour."""

    peer: np.ndarray
    choice: np.ndarray


@kernel
def stranger(order, peers, start, peer, first, last):
    """The first of wakes ``first`` to ``last - 1`` whose agent is to talk to somebody it has no edge to; or ``last``.

    VACANT, for nobody, is right for an agent without edges.
    """
    for t in range(first, last):
        a, b = start[order[t]], start[order[t] + 1]
        if slot_of(peer[a:b], peers[t], VACANT) == VACANT and (a < b or peers[t] != VACANT):
            return t
    return last


@kernel
def arrange(order, peers, dice, start, peer, choice, partner, floor, last, level, first, place):
    """Sort the wakes of ``order`` by their levels. Returns how many levels there are.

    Level l becomes ``place[first[l] : first[l + 1]]``, in the order of the schedule. ``last`` (n,) holds the last level
    of each agent, counted from ``floor``: what is not above it is of an earlier schedule. With ``partner``, a wake
    touches its agent and the neighbour that it chooses; else its agent and, at their other ends, the agent's edges: two
    agents with a common neighbour do not meet there, for each changes an edge of its own.
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
                top = max(top, last[peer[e]])  # of an empty slot, the last agent's: no harm in waiting for it
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
    for t in range(order.shape[0]):  # now first[l] goes from where level l begins to where it ends ...
        place[first[level[t]]] = t
        first[level[t]] += 1
    for k in range(depth, 0, -1):  # ... and back
        first[k] = first[k - 1]
    first[0] = 0
    return depth
