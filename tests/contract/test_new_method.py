"""A method of one's own takes one file and one line in the public list: everything else reads what it declares."""

from __future__ import annotations

import importlib
from collections import deque

import numpy as np
import pytest

import coterie as ct
from coterie.core import foreign, methods
from coterie.core.letters import Bounds, Contents
from coterie.engines.peer import Peer
from coterie.engines.wire import write_numbers
from coterie.engines.worlds import part_of, world_of
from coterie.peers.group.charter import charter_json, make_charter, read_charter
from coterie.peers.model.tables import check_charter
from coterie.peers.model.work import method_of
from coterie.peers.wire.gate import Refused, check_letter
from coterie.peers.wire.packet import VERSION, Packet
from coterie.testing import check_method, hard_problem

FILE = '''
"""Coordinate descent whose letters are numbered, so that a late one does not replace a newer one."""

from typing import NamedTuple

import numpy as np

import coterie as ct
from coterie.core.letters import Counter, Number, Vector
from coterie.core.linear import axpy, copy_to, fill, total
from coterie.core.world import EVERYONE, VACANT, add_loss_gradient, importance, send

MODEL = 0


class Own(NamedTuple):
    theta: np.ndarray
    steps: np.ndarray


class Tie(NamedTuple):
    copy: np.ndarray
    heard: np.ndarray


@ct.method
class Numbered(NamedTuple):
    """Steps of a part of the usual length, in letters that say which step it was."""

    length: float = 1.0

    letters = {MODEL: (Vector(), Counter(), Number(0.0, 1.0))}

    def scratch_size(self, world, p):
        return p + 2

    def fit_for(self, problem):
        if not np.isfinite(problem.loss.smoothness):
            raise ct.errors.MismatchError("Numbered needs a smooth loss")

    def start(self, world, theta):
        owner = np.repeat(np.arange(theta.shape[0]), np.diff(world.tie_start))
        return Own(theta.copy(), np.zeros((theta.shape[0], 1))), Tie(theta[owner], np.full(owner.shape[0], -1.0))

    def open(self, data, me, ties, slot):
        copy_to(me.theta, ties.copy[slot])
        ties.heard[slot] = -1.0

    def greet(self, data, me, ties, outbox):
        p = me.theta.shape[0]
        copy_to(me.theta, outbox.scratch[:p])
        outbox.scratch[p], outbox.scratch[p + 1] = me.steps[0], self.length
        send(outbox, EVERYONE, MODEL, outbox.scratch[: p + 2])

    def wake(self, data, me, ties, chance, outbox):
        gradient, degree = outbox.scratch[: me.theta.shape[0]], total(data.weight)
        a = importance(data, degree)
        fill(0.0, gradient)
        axpy(2.0 * data.smooth * degree, me.theta, gradient)
        for k in range(data.peer.shape[0]):
            axpy(-2.0 * data.smooth * data.weight[k], ties.copy[k], gradient)
        add_loss_gradient(data, me.theta, a, gradient)
        lipschitz = 2.0 * data.smooth * degree + a * data.curvature
        if lipschitz > 0.0:
            axpy(-self.length / lipschitz, gradient, me.theta)
        me.steps[0] += 1.0
        self.greet(data, me, ties, outbox)

    def receive(self, data, me, ties, letter, outbox):
        p = me.theta.shape[0]
        if letter.slot != VACANT and letter.text[p] > ties.heard[letter.slot]:
            copy_to(letter.text[:p], ties.copy[letter.slot])
            ties.heard[letter.slot] = letter.text[p]
'''


@pytest.fixture(scope="module")
def numbered(tmp_path_factory):
    """The class, imported from a file that holds nothing but the method."""
    folder = tmp_path_factory.mktemp("outside")
    (folder / "numbered.py").write_text(FILE)
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(folder))
        yield importlib.import_module("numbered").Numbered


@pytest.fixture
def listed(numbered, monkeypatch):
    """The one line in the public list."""
    monkeypatch.setitem(methods.METHODS, "numbered", numbered())


def test_it_keeps_every_promise(numbered):
    check_method(numbered())


@pytest.mark.plain
@pytest.mark.usefixtures("listed")
def test_the_simulator_knows_it_by_name():
    problem = hard_problem()
    run = ct.simulate(problem, "numbered", wakes=300 * problem.n, seed=0)
    assert problem.suboptimality(run.theta) < 1e-6
    assert run.letters == run.tally[0, 0] == run.tally[0, 1] / (problem.p + 2)
    assert run.bits(32) == run.letters * (problem.p + 1) * 32  # the number of a step says nothing
    learned = ct.simulate(problem, ct.Learned("numbered", ct.GraphRule(kappa=2)), wakes=100, seed=0)
    assert learned.graph != problem.graph


def gates(method, problem, radius):
    """A peer for each of two agents, and what its gate knows of letters."""
    contents = Contents(method.letters, Bounds(problem.p, radius, problem.radius, problem.outputs))
    world, start = world_of(problem), problem.local()
    return contents, [Peer(method, part_of(world, i, i + 1), start[i]) for i in range(problem.n)]


def packet(sender, to, kind, text):
    return Packet(VERSION, bytes(16), sender, to, 1, 1, 0, kind, write_numbers(text))


@pytest.mark.plain
def test_peers_exchange_its_bytes_through_the_gate(numbered):
    rng = np.random.default_rng(0)
    data = ct.AgentData(rng.normal(size=(12, 2)), rng.normal(size=12), agents=np.arange(12) % 2)
    problem = ct.Problem.collaborative(data, ct.graphs.complete(2), loss="squared")
    contents, peers = gates(numbered(), problem, radius=50.0)
    queue, passed = deque(), 0
    for peer in peers:
        queue.extend(peer.greet())
    for turn in range(400):
        queue.extend(peers[turn % 2].wake())
        while queue:
            letter = queue.popleft()
            text = check_letter(contents, {0, 1}, packet(letter.sender, letter.to, letter.kind, letter.text))
            queue.extend(peers[letter.to].take(letter.sender, letter.kind, text))
            passed += 1
    assert passed == 402
    np.testing.assert_allclose([peer.theta for peer in peers], problem.solve(), atol=1e-9)

    good = peers[0].wake()[0].text
    for change, reason in [
        (lambda text: text[:-1], "shape"),
        (lambda text: np.append(text, 1.0), "shape"),
        (lambda text: text + np.array([100.0, 0.0, 0.0, 0.0]), "norm"),
        (lambda text: text * [1.0, 1.0, -1.0, 1.0], "range"),  # the number of the step
        (lambda text: text * [1.0, 1.0, 1.0, 2.0], "range"),  # the length of steps
        (lambda text: text * [1.0, np.nan, 1.0, 1.0], "finite"),
    ]:
        with pytest.raises(Refused, match=f"^{reason}"):
            check_letter(contents, {0, 1}, packet(0, 1, 0, change(good)))
    with pytest.raises(Refused, match=r"^shape"):
        check_letter(contents, {0, 1}, packet(0, 1, 1, good))


@pytest.mark.usefixtures("listed")
def test_a_charter_names_it(numbered):
    fields = {"title": "a group", "features": ["x"], "target": "y", "loss": "squared", "objective": "collaborative"}
    fields |= {"method": "numbered", "settings": {"length": 0.5}}
    charter = make_charter(steward=bytes(32), **fields)
    assert method_of(charter) == numbered(0.5)
    assert method_of(read_charter(charter_json(charter))) == numbered(0.5)
    check_charter(charter)


def test_its_kernels_are_kept_on_disk(numbered):
    """A key can be made of what it does, though it does without some handlers."""
    assert numbered().training.round is None
    assert foreign.key(numbered)


def test_what_it_claims_stays_its_own_in_a_composition(numbered):
    @ct.method
    class Claiming(numbered):
        plan = "a plan of its own"
        loss_report = object()

    assert ct.Learned(Claiming(), ct.GraphRule()).plan == "a plan of its own"
