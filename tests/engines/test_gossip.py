"""Engines on a method that coordinate descent is not: it rolls dice, writes to one neighbour, and replies."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest

import coterie as ct
from coterie.core.letters import Vector
from coterie.core.linear import copy_to
from coterie.core.loop import NO_LIMIT
from coterie.core.world import VACANT, send
from coterie.engines.drivers import Timed
from coterie.engines.worlds import world_of
from coterie.testing import hard_problem
from coterie.testing.methods import METHOD_CHECKS

ASK, ANSWER = 0, 1


class Own(NamedTuple):
    theta: np.ndarray
    heard: np.ndarray  # (n, 3) letters received, who wrote the last one, when that was sent


class Tie(NamedTuple):
    copy: np.ndarray


@ct.method
class Gossip(NamedTuple):
    """Swap models with a random neighbour; both keep the mean."""

    letters = {ASK: Vector(), ANSWER: Vector()}
    max_letters = 2  # a question, and the answer to it
    dice = 1

    def scratch_size(self, world, p):
        return 0

    def start(self, world, theta):
        n = theta.shape[0]
        return Own(theta.copy(), np.zeros((n, 3))), Tie(np.zeros((world.peer.shape[0], theta.shape[1])))

    def wake(self, data, me, ties, chance, outbox):
        if data.peer.shape[0] > 0:
            send(outbox, data.peer[int(chance.dice[0] * data.peer.shape[0])], ASK, me.theta)

    def receive(self, data, me, ties, letter, outbox):
        if letter.kind == ASK:
            send(outbox, letter.sender, ANSWER, me.theta)
        if letter.slot == VACANT:
            return
        copy_to(letter.text, ties.copy[letter.slot])
        for k in range(me.theta.shape[0]):
            me.theta[k] = 0.5 * (me.theta[k] + letter.text[k])
        me.heard[0] += 1.0
        me.heard[1] = letter.sender


def replayed(problem, seed, wakes):
    """The same, in ten lines of Python: swap, then both take the mean."""
    streams = np.random.SeedSequence(seed).spawn(3)
    order = np.random.default_rng(streams[0]).integers(0, problem.n, wakes)
    dice = np.random.default_rng(streams[2]).random(wakes)
    theta = problem.local()
    for i, d in zip(order, dice, strict=True):
        peers = problem.graph.neighbours(i)
        if len(peers):
            j = peers[int(d * len(peers))]
            theta[i] = theta[j] = 0.5 * (theta[i] + theta[j])
    return theta, order


def test_exchanges_replay_event_by_event():
    problem = hard_problem()
    run = ct.simulate(problem, Gossip(), wakes=300, seed=5)
    theta, order = replayed(problem, 5, 300)
    np.testing.assert_allclose(run.theta, theta, rtol=0, atol=1e-12)
    talkative = np.count_nonzero(problem.graph.n_neighbours[order])
    assert run.letters == run.vectors == 2 * talkative


@pytest.mark.parametrize(
    "promise",
    [
        pytest.param("compiled equals python", marks=[pytest.mark.compiled, pytest.mark.slow]),
        "announces its letters",
        "runs on peers",
    ],
)
def test_the_contract_holds_with_dice_and_replies(promise):
    METHOD_CHECKS[promise](Gossip())


@pytest.mark.parametrize("latency", [0.0, 0.4])
def test_exchanges_keep_the_mean_under_calm_mail(latency):
    """Every letter arrives once: with instant mail the sum of a component is kept; letters received = letters sent."""
    data = ct.AgentData(np.random.default_rng(0).normal(size=(12, 2)), agents=range(12))
    problem = ct.Problem.separate(data, ct.graphs.ring(12), loss="location")
    run = ct.simulate(problem, Gossip(), wakes=4000, seed=1, conditions=ct.Conditions(latency=latency))
    assert np.ptp(run.theta, axis=0).max() < 1e-6  # consensus
    if latency == 0.0:
        np.testing.assert_allclose(run.theta.mean(axis=0), problem.local().mean(axis=0), atol=1e-12)
    assert run.letters - 24 <= 2 * 4000 <= run.letters + 24  # a few may still be under way


@ct.rule
class Numbered(ct.CoordinateDescent):
    """Sends how many times it has woken; receivers note a number smaller than the last one as overtaken."""

    def start(self, world, theta):
        n = theta.shape[0]
        return Own(np.zeros_like(theta), np.zeros((n, 3))), Tie(np.zeros((world.peer.shape[0], theta.shape[1])))

    def wake(self, data, me, ties, chance, outbox):
        me.theta[0] += 1.0
        send(outbox, -2, 0, me.theta)

    def receive(self, data, me, ties, letter, outbox):
        me.heard[0] += 1.0
        if letter.text[0] < ties.copy[letter.slot, 0]:
            me.heard[1] += 1.0
        elif letter.text[0] == ties.copy[letter.slot, 0] and letter.text[0] > 0.0:
            me.heard[2] += 1.0
        copy_to(letter.text, ties.copy[letter.slot])


def heard(**conditions):
    """Letters received, overtaken and doubled on a ring, once all are delivered or lost; and the run."""
    problem = ct.Problem.propagation(np.ones((6, 2)), ct.graphs.ring(6))
    engine = Timed.of(problem, Numbered(), problem.local(), 3, conditions=ct.Conditions(**conditions))
    engine.advance(3000, NO_LIMIT)
    return engine.own.heard.sum(axis=0), engine.account


def test_letters_overtake_only_with_jitter():
    (_, overtaken, _), _ = heard(latency=2.0, jitter=0.0)
    assert overtaken == 0
    (_, overtaken, _), _ = heard(latency=2.0, jitter=1.0)
    assert overtaken > 100


def test_what_is_sent_is_received_lost_or_doubled():
    (received, _, doubled), (sent, _, lost, copies, *_) = heard(loss=0.3, duplication=0.2)
    assert 0 <= sent - lost + copies - received <= 4  # those of the last wake are still under way
    assert 0 <= copies - doubled <= 12 + 4  # greetings carry no number, and cannot be told from their doubles


def test_mirrored_slots_point_back():
    world = world_of(hard_problem())
    owner = np.repeat(np.arange(9), np.diff(world.tie_start))
    back = world.tie_start[world.peer] + world.inverse
    assert np.array_equal(world.peer[back], owner)
    assert np.array_equal(owner[back], world.peer)
