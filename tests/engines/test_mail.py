"""Messages under way: they overtake, get lost and are doubled as conditions say; edges know their other end."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

import coterie as ct
from coterie.core.arrays import send
from coterie.core.linear import copy_to
from coterie.core.loop import NO_LIMIT
from coterie.engines.arrays import arrays_of
from coterie.engines.drivers import Timed
from coterie.testing import hard_problem


class Own(NamedTuple):
    theta: np.ndarray
    heard: np.ndarray  # (n, 3) messages received, overtaken, doubled


class Edge(NamedTuple):
    copy: np.ndarray


@ct.rule
class Numbered(ct.CoordinateDescent):
    """Sends how many times it has woken; receivers note a number smaller than the last one as overtaken."""

    def start(self, arrays, theta):
        n = theta.shape[0]
        return Own(np.zeros_like(theta), np.zeros((n, 3))), Edge(np.zeros((arrays.peer.shape[0], theta.shape[1])))

    def wake(self, data, me, edges, randomness, outbox):
        me.theta[0] += 1.0
        send(outbox, -2, 0, me.theta)

    def receive(self, data, me, edges, message, outbox):
        me.heard[0] += 1.0
        if message.text[0] < edges.copy[message.slot, 0]:
            me.heard[1] += 1.0
        elif message.text[0] == edges.copy[message.slot, 0] and message.text[0] > 0.0:
            me.heard[2] += 1.0
        copy_to(message.text, edges.copy[message.slot])


def heard(**conditions):
    """Messages received, overtaken and doubled on a ring, once all are delivered or lost; and the run."""
    problem = ct.Problem.propagation(np.ones((6, 2)), ct.graphs.ring(6))
    engine = Timed.of(problem, Numbered(), problem.local(), 3, conditions=ct.Conditions(**conditions))
    engine.advance(3000, NO_LIMIT)
    return engine.own.heard.sum(axis=0), engine.account


def test_messages_overtake_only_with_jitter():
    (_, overtaken, _), _ = heard(latency=2.0, jitter=0.0)
    assert overtaken == 0
    (_, overtaken, _), _ = heard(latency=2.0, jitter=1.0)
    assert overtaken > 100


def test_what_is_sent_is_received_lost_or_doubled():
    (received, _, doubled), (sent, _, lost, copies, *_) = heard(loss=0.3, duplication=0.2)
    assert 0 <= sent - lost + copies - received <= 4  # those of the last wake are still under way
    assert 0 <= copies - doubled <= 12 + 4  # greetings carry no number, and cannot be told from their doubles


def test_mirrored_slots_point_back():
    arrays = arrays_of(hard_problem())
    owner = np.repeat(np.arange(9), np.diff(arrays.edge_start))
    back = arrays.edge_start[arrays.peer] + arrays.inverse
    assert np.array_equal(arrays.peer[back], owner)
    assert np.array_equal(owner[back], arrays.peer)
