"""A method of one's own takes one file, as docs/how-to/bring-a-method.md shows, and one line in the public list."""

from __future__ import annotations

from collections import deque

import numpy as np
import pytest

import coterie as ct
from coterie.core import foreign, methods
from coterie.core.messages import Bounds, Contents
from coterie.engines.arrays import arrays_of, part_of
from coterie.engines.peer import Peer
from coterie.engines.wire import write_numbers
from coterie.peers.group.charter import charter_json, make_charter, read_charter
from coterie.peers.model.tables import check_charter
from coterie.peers.model.work import method_of
from coterie.peers.wire.gate import Refused, check_message
from coterie.peers.wire.packet import VERSION, Packet
from coterie.testing import check_method, hard_problem
from shown import shown


@pytest.fixture(scope="module")
def step(tmp_path_factory):
    """The class, imported from a file that holds nothing but the method."""
    return shown("how-to/bring-a-method.md", "descent.py", tmp_path_factory.mktemp("outside")).GradientStep


@pytest.fixture
def listed(step, monkeypatch):
    """The one line in the public list."""
    monkeypatch.setitem(methods.METHODS, "gradient-step", step())


def test_it_keeps_every_promise(step):
    check_method(step())


@pytest.mark.plain
@pytest.mark.usefixtures("listed")
def test_the_simulator_knows_it_by_name():
    problem = hard_problem()
    run = ct.simulate(problem, "gradient-step", wakes=300 * problem.n, seed=0)
    assert problem.suboptimality(run.theta) < 1e-6
    assert run.messages == run.tally[0, 0] == run.tally[0, 1] / problem.p
    assert run.bits(32) == run.messages * problem.p * 32
    learned = ct.simulate(problem, ct.Learned("gradient-step", ct.GraphRule(kappa=2)), wakes=100, seed=0)
    assert learned.graph != problem.graph


def gates(method, problem, radius):
    """A peer for each of two agents, and what its gate knows of messages."""
    contents = Contents(method.messages, Bounds(problem.p, radius, problem.radius, problem.outputs))
    arrays, start = arrays_of(problem), problem.local()
    return contents, [Peer(method, part_of(arrays, i, i + 1), start[i]) for i in range(problem.n)]


def packet(sender, to, kind, text):
    return Packet(VERSION, bytes(16), sender, to, 1, 1, 0, kind, write_numbers(text))


@pytest.mark.plain
def test_peers_exchange_its_bytes_through_the_gate(step):
    rng = np.random.default_rng(0)
    data = ct.AgentData(rng.normal(size=(12, 2)), rng.normal(size=12), agents=np.arange(12) % 2)
    problem = ct.Problem.collaborative(data, ct.graphs.complete(2), loss="squared")
    contents, peers = gates(step(), problem, radius=50.0)
    queue, passed = deque(), 0
    for peer in peers:
        queue.extend(peer.greet())
    for turn in range(400):
        queue.extend(peers[turn % 2].wake())
        while queue:
            message = queue.popleft()
            text = check_message(contents, {0, 1}, packet(message.sender, message.to, message.kind, message.text))
            queue.extend(peers[message.to].take(message.sender, message.kind, text))
            passed += 1
    assert passed == 402
    np.testing.assert_allclose([peer.theta for peer in peers], problem.solve(), atol=1e-9)

    good = peers[0].wake()[0].text
    for change, reason in [
        (lambda text: text[:-1], "shape"),
        (lambda text: np.append(text, 1.0), "shape"),
        (lambda text: text + np.array([100.0, 0.0]), "norm"),
        (lambda text: text * [1.0, np.nan], "finite"),
    ]:
        with pytest.raises(Refused, match=f"^{reason}"):
            check_message(contents, {0, 1}, packet(0, 1, 0, change(good)))
    with pytest.raises(Refused, match=r"^shape"):
        check_message(contents, {0, 1}, packet(0, 1, 1, good))


@pytest.mark.usefixtures("listed")
def test_a_charter_names_it(step):
    fields = {"title": "a group", "features": ["x"], "target": "y", "loss": "squared", "objective": "collaborative"}
    fields |= {"method": "gradient-step", "settings": {"step": 0.5}}
    charter = make_charter(admin=bytes(32), **fields)
    for agreed in (charter, read_charter(charter_json(charter))):
        assert method_of(agreed).method == step(0.5)  # within what trims the copies of its neighbours
    check_charter(charter)


def test_its_kernels_are_kept_on_disk(step):
    """A key can be made of what it does, though it does without some handlers."""
    assert step().training.round is None
    assert foreign.key(step)


def test_what_it_claims_stays_its_own_in_a_composition(step):
    @ct.method
    class Claiming(step):
        plan = "a plan of its own"
        loss_report = object()

    assert ct.Learned(Claiming(), ct.GraphRule()).plan == "a plan of its own"
