"""Peers among each other: to the last bit what the simulator does, through joins, farewells, crashes and full disks."""

from __future__ import annotations

import io
import json
import time

import msgspec
import numpy as np
import pytest
from small_group import ADMIN, EDGES, WORDS, SmallGroup, key_of, public

import coterie as ct
from coterie.core.arrays import VACANT
from coterie.data import AgentData
from coterie.engines.arrays import arrays_of, part_of
from coterie.engines.wire import encode, read_numbers
from coterie.errors import IdentityError, ParameterError, RemovedError, StateError
from coterie.graphs import Graph
from coterie.peers.app.metrics import Log
from coterie.peers.app.status import status_of
from coterie.peers.group.roster import lists_in, sign_roster
from coterie.peers.model.tables import problem_of
from coterie.peers.node.mailbox import NOBODY
from coterie.peers.node.membership import MAX_FORKS
from coterie.peers.node.node import WAKES_PER_HELLO
from coterie.peers.node.program import Program
from coterie.peers.node.state import read_record, theta_path, unpack
from coterie.peers.transport.memory import Exchange, Memory
from coterie.peers.wire.packet import ROSTER, read_packet
from coterie.privacy import Ledger
from coterie.problem.confidence import confidences

pytestmark = pytest.mark.plain


def problem_for(group, members=None, **other):
    """The problem that some members solve together."""
    here = sorted(group.present if members is None else members)
    place = {i: k for k, i in enumerate(here)}
    owner = np.repeat(np.arange(len(here)), [len(group.X[i]) for i in here])
    X, y = (np.concatenate([part[i] for i in here]) for part in (group.X, group.y))
    W = np.zeros((len(here), len(here)))
    for a, b, weight in group.edges:
        if a in place and b in place:
            W[place[a], place[b]] = W[place[b], place[a]] = weight
    charter = msgspec.structs.replace(group.charter, **other)
    return problem_of(charter, AgentData(X, y, agents=owner, members=range(len(here))), Graph(W))


def gap(problem, theta):
    """How far above the optimum, relative."""
    best = problem.value(problem.solve())
    return (problem.value(theta) - best) / max(1.0, abs(best))


def at_optimum(group, **more):
    """Let time pass until the models are those of the optimum."""
    problem = problem_for(group, **more)
    return group.run_until(lambda: gap(problem, group.theta) < 1e-8, 250.0)


# -- the simulator -----------------------------------------------------------------------------------------------------

CASES = [
    ("cd", {}),
    ("cd", {"confidence": "none"}),
    ("djam", {}),
    ("djam", {"confidence": "none", "ridge": 0.0}),
    ("admm", {}),
    ("admm", {"settings": {"rho": 1.0}}),
    ("admm", {"objective": "separate"}),
    ("propagation", {}),
    ("boosting", {}),
    ("trimmed", {}),
]


def check_against_simulator(words, more):
    """The same wakes in the same order, every message sent as a packet and delivered at once: the same models."""
    group = SmallGroup(words, **more)
    problem, rng, method = problem_for(group), np.random.default_rng(4), group.method
    order = rng.integers(0, problem.n, 300)
    neighbours = [int(rng.choice(problem.graph.neighbours(i))) for i in order]
    exchanges = getattr(method, "exchanges", False)
    start = np.array([work.theta for work in group.work])
    events = np.column_stack([order, neighbours]) if exchanges else order
    expected = ct.simulate(problem, method, events=events, start=start)

    dice = []
    group.start(dice=lambda count: dice.pop() if count else np.zeros(0))
    for node in group.nodes.values():  # one number that differs in its last bit is not what this is about
        arrays = part_of(arrays_of(problem), node.address, node.address + 1)
        assert np.array_equal(node.peer.arrays.peer, arrays.peer)
        np.testing.assert_allclose(node.peer.arrays.loss_weight, arrays.loss_weight, rtol=1e-15)
        node.peer.arrays = node.peer.arrays._replace(loss_weight=arrays.loss_weight)
    for i, node in group.nodes.items():  # the initial swap, which a method that remembers leaves to its exchanges
        group.send(i, node._packets(0.0, node.peer.greet()))
        group.settle()
    before = sum(node.mail.received["messages"] for node in group.nodes.values())
    for i, neighbour in zip(order.tolist(), neighbours, strict=True):
        node = group.nodes[i]
        if method.dice:  # such that the neighbour is chosen
            slot = node.peer.arrays.peer.tolist().index(neighbour)
            dice.append(np.full(method.dice, (slot + 0.5) / len(node.edges)))
        group.send(i, node._wake(group.now))
        group.settle()
    assert np.array_equal(group.theta, expected.theta)
    assert np.abs(group.theta - start).max() > 1e-3
    assert all(not node.mail.gate.refused for node in group.nodes.values())
    heard = sum(node.mail.received["messages"] for node in group.nodes.values()) - before
    assert heard == expected.messages - len(arrays_of(problem).peer)  # without those of the initial swap


@pytest.mark.parametrize(("words", "more"), CASES)
def test_nodes_do_what_the_simulator_does(words, more):
    check_against_simulator(words, more)


# -- confidences -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", ["cd", "djam"])
def test_the_largest_data_set_is_known_everywhere_in_the_end(words):
    line = [(0, 1, 1.0), (1, 2, 1.0), (2, 3, 1.0), (3, 4, 1.0)]
    sizes = (2, 3, 1, 4, 9)  # the largest one at the end of the line
    group = SmallGroup(words, sizes=sizes, edges=line, confidence="gossip").start()
    assert group.nodes[0].largest < 9  # nobody has told it yet
    at_optimum(group)
    assert [node.largest for node in group.nodes.values()] == [9] * 5
    for i, node in group.nodes.items():
        assert node.peer.arrays.loss_weight[0] == group.work[i].weight * (sizes[i] / 9)
        assert confidences(sizes[i], 9) == sizes[i] / 9
    again = group.make(0)  # and it is kept
    assert again.largest == 9


def test_what_is_public_is_not_gossiped():
    group = SmallGroup(confidence="public").start().run(5.0)
    assert all(read_packet(data)[0].largest == 0 for _, _, data in group.mail)
    group.offered(1, 0, 0, np.ones(3), largest=15)
    assert group.nodes[0].largest == group.charter.max_rows


# -- members come and go -----------------------------------------------------------------------------------------------


def without(group, i):
    """Somebody is not there yet."""
    group.present.discard(i)
    group.signed = group.roster()
    return group


def test_a_new_member_becomes_known_through_one():
    group = without(SmallGroup(), 3).start().run(20.0)
    assert sorted(group.nodes) == [0, 1, 2]
    signed = group.change(add=[3])
    group.send(1, group.nodes[1].take_roster(group.now, signed))  # who is not even its neighbour
    group.settle()
    group.run(WAKES_PER_HELLO * 10)
    assert [node.group.roster.version for node in group.nodes.values()] == [2, 2, 2]
    assert 3 in group.nodes[0].edges
    at_optimum(group.start(3))
    assert group.nodes[3].fresh.proven >= {0, 2}


def test_who_leaves_is_forgotten():
    group = SmallGroup().start().run(50.0)
    group.send(3, group.nodes[3].close(leave=True))
    del group.nodes[3]  # it has gone; what it has sent is under way
    group.present.discard(3)
    group.queue = type(group.queue)((i, j, send) for i, j, send in group.queue if j != 3)
    group.settle()
    assert sorted(group.nodes[0].edges) == [1, 2]
    assert sorted(group.nodes[2].edges) == [0, 1]
    at_optimum(group)
    group.crash(0)
    assert sorted(group.make(0).edges) == [1, 2]  # also after a restart


@pytest.mark.parametrize("leave", [True, False])
def test_who_stops_is_waited_for_and_who_leaves_may_come_back(leave):
    group = SmallGroup().start().run(20.0)
    group.send(3, group.nodes[3].close(leave))
    group.settle()
    group.crash(3)
    group.run(20.0)
    assert (3 in group.nodes[0].edges) != leave
    at_optimum(group.start(3))
    assert 3 in group.nodes[0].edges


def test_who_was_removed_is_not_heard():
    group = SmallGroup().start().run(20.0)
    removed = group.nodes.pop(3)
    signed = group.change(drop=[3])
    group.send(0, group.nodes[0].take_roster(group.now, signed))
    group.settle()
    assert [node.group.roster.version for node in group.nodes.values()] == [2] * 3
    assert 3 not in group.nodes[0].edges
    assert group.nodes[0].group.name_of(3) == "m3"  # what is told of it is told by its name
    for send in removed._wake(group.now):
        for node in group.nodes.values():
            before = node.mail.gate.refused["stranger"]
            assert node.receive(group.now, 3, send.data) == []
            assert node.mail.gate.refused["stranger"] == before + 1
    assert removed.take_roster(group.now, signed) == []
    assert removed.errors["removed"] == 1
    assert removed.group.farewell == signed
    assert "removed this peer" in removed.errors.alerts["removed"]
    at_optimum(group)


def test_a_list_of_members_must_be_the_admins_and_newer():
    group = SmallGroup().start()
    node, old = group.nodes[0], group.signed
    new = group.change(drop=[3])
    for k in (0, 63, 64, 100, -1):
        broken = bytearray(new)
        broken[k] ^= 1
        assert node.take_roster(0.0, bytes(broken)) == []
    assert node.take_roster(0.0, b"") == []
    assert node.mail.gate.refused["signature"] == 6
    assert node.group.roster.version == 1
    assert node.take_roster(0.0, new) != []
    assert node.take_roster(0.0, old) == []  # never back
    assert node.group.roster.version == 2
    other = SmallGroup("djam")  # a roster of another run, by the same admin
    assert node.take_roster(60.0, other.change(drop=[1])) == []
    assert node.group.roster.version == 2
    assert (node.mail.gate.refused["signature"], node.mail.gate.refused["run"]) == (6, 1)  # which is no attack


def test_nobody_keeps_a_list_from_others_by_bringing_many_that_are_none():
    """Lists were looked at one a second, whoever brought them: a member could so prevent its own removal."""
    group = SmallGroup().start()
    node, signed = group.nodes[0], group.change(drop=[3])
    for k in range(100):
        node.receive(group.now, 3, group.packet(3, 0, ROSTER, signed + bytes([k])))
        node.take_signed(group.now, signed + bytes([k]))
    assert node.mail.gate.refused_by[3, "rate"] > 80
    node.receive(group.now, 1, group.packet(1, 0, ROSTER, signed))
    assert node.group.roster.version == 2
    assert node.take_roster(group.now, group.change(drop=[2]))  # nor from the peer's own folder
    assert node.group.roster.version == 3


def test_a_question_to_somebody_who_is_muted_is_void():
    group = SmallGroup().start()
    node = group.nodes[0]
    node.tick(group.now)
    node._question(1)
    node.mute(group.now, [1])
    assert 1 not in node.fresh._asked
    assert 1 not in node.fresh.proven


# -- learned edges ----------------------------------------------------------------------------------------------------


def test_learned_edges_change_and_both_ends_agree():
    group = SmallGroup("learned", sizes=(4, 6, 3, 5, 4), seed=3).start()
    before = {i: dict(node.edges) for i, node in group.nodes.items()}
    begun = {(a, b) for a, b, _ in EDGES} | {(b, a) for a, b, _ in EDGES}

    def changed_and_agreed():
        edges = {i: node.edges for i, node in group.nodes.items()}
        pairs = {(i, j) for i in edges for j in edges[i]}
        agreed = pairs == {(j, i) for i, j in pairs} and all(edges[i][j] == edges[j][i] for i, j in pairs)
        return edges != before and agreed and bool(pairs - begun)

    group.run_until(changed_and_agreed, 120.0)
    edges = {i: node.edges for i, node in group.nodes.items()}
    group.nodes[0]._save()
    again = group.make(0)  # they are kept, not those of the roster
    assert again.edges == edges[0]


def test_the_ends_of_a_edge_agree_after_a_word_was_lost():
    """Also where views have come apart, as they do when messages of the sampler are lost: here {0, 2} and {1, 3}."""
    group = SmallGroup("learned").start().run(20.0)
    for i, node in group.nodes.items():
        view = node.peer.own.known
        view.address[:], view.sent[:] = VACANT, VACANT
        view.address[0, 0] = (i + 2) % 4
    arrays, edge = group.nodes[0].peer.arrays, group.nodes[0].peer.edge
    slot = arrays.peer.tolist().index(1)
    arrays.weight[slot] *= 1.5  # what 0 has told 1 about it was lost
    edge.stamp[slot] += 2.0
    known = set()

    def all_seen():  # views are swapped all the time: nobody is in one for ever
        known.update({int(j) for j in group.nodes[0].peer.own.known.address[0]} - {VACANT})
        return known == {1, 2, 3}

    group.run_until(lambda: all_seen() and group.nodes[0].edges[1] == group.nodes[1].edges[0], 300.0)


# -- a budget ----------------------------------------------------------------------------------------------------------


class Crash(Exception):  # noqa: N818 - it says what happened
    pass


POINTS = ["before debit", "after debit", "after keep", "before save", "after save"]


class Fragile:
    """A ledger on disk, and a store, whose process is killed at a given point."""

    def __init__(self, ledger, store, point):
        self._ledger, self._store, self.point = ledger, store, point

    def __getattr__(self, name):
        return getattr(self._ledger, name)

    def _at(self, point):
        if self.point == point:
            raise Crash

    def debit(self):
        self._at("before debit")
        self._ledger.debit()
        self._at("after debit")

    def keep(self, frames):
        self._ledger.keep(frames)
        self._at("after keep")

    def load(self):
        return self._store.load()

    def save(self, content):
        self._at("before save")
        self._store.save(content)
        self._at("after save")


@pytest.mark.parametrize("first", POINTS)
@pytest.mark.parametrize("words", ["private", "published"])
def test_no_crash_makes_a_second_release(words, first, tmp_path):
    """Killed at every point of every wake: never more releases than planned, never two models for one."""
    more = {"privacy": {"epsilon": 2.0, "wakes_per_agent": 9}} if words == "private" else {}
    group = SmallGroup(words, **more)
    plan, steps, made = group.method.plan, group.method.plan.steps, {}
    nothing = encode(0, 0, np.zeros(3))  # what there is to say before the first release

    def watch(sends):
        """What leaves a peer that descends is a model that it has released, and nothing else."""
        for send in sends:
            packet = read_packet(send.data)[0]
            if packet.kind >= 0 and words == "private":
                message = encode(0, packet.kind, read_numbers(packet.content))  # as the ledger keeps it
                assert message == nothing or [message] in map(list, map(set, made.values()))

    for point in [first, None, *POINTS, None, None, *POINTS, None]:
        ledger = Ledger(plan, tmp_path / "ledger")
        before = ledger.releases
        fragile = Fragile(ledger, group.stores[0], None)
        node = group.make(0, ledger=fragile, store=fragile, dice=None)
        watch(node.open(0.0))
        node.fresh.proven |= set(node.edges)  # they are there
        watch(node._packets(0.0, node.peer.greet()))  # what a neighbour that says hello is sent
        fragile.point = point
        try:
            for _ in range(1 if point is None else 9):
                spent, sends = ledger.releases, node._wake(0.0)
                if ledger.releases > spent:
                    assert made.setdefault(ledger.releases, ledger.kept) == ledger.kept
                watch(sends)
            watch(node._packets(0.0, node.peer.greet()))
        except Crash:
            pass
        if ledger.kept and point in ("after keep", "before save", "after save") and before < steps:
            assert made.setdefault(ledger.releases, ledger.kept) == ledger.kept
        ledger.close()
        assert before <= ledger.releases <= min(steps, before + 1)
        assert ledger.releases == min(steps, before + (point != "before debit"))
    assert ledger.exhausted
    assert len({repr(frames) for frames in made.values()}) == len(made)  # fresh noise for each


# -- full disks --------------------------------------------------------------------------------------------------------


class Full:
    """A store that may be full."""

    def __init__(self):
        self.content, self.full = None, False

    def load(self):
        return self.content

    def save(self, content):
        if self.full:
            raise OSError(28, "No space left on device")
        self.content = content


@pytest.mark.parametrize("words", WORDS)
def test_what_cannot_be_kept_is_not_sent(words):
    group = SmallGroup(words)
    group.stores[0] = store = Full()
    group.start().run(5.0)
    node, kept = group.nodes[0], store.content
    store.full = True
    messages = node.mail.sent["messages"]
    for k in range(6):
        assert node._wake(group.now) == []
        assert node.errors["disk"] == k + 1
    assert node.mail.sent["messages"] == messages
    assert "No space left" in node.errors.last
    assert store.content == kept
    store.full = False
    assert node._wake(group.now) != [] or group.charter.privacy
    assert store.content != kept
    record = read_record(store.content)
    assert np.array_equal(unpack(record.arrays, f"own.{theta_path(node.peer.own)}")[0], node.peer.own.theta[0])


def test_a_peer_that_cannot_write_down_that_it_begins_does_not():
    group = SmallGroup()
    group.stores[0] = store = Full()
    store.full = True
    with pytest.raises(StateError, match="cannot begin"):
        group.make(0).open(0.0)
    store.full = False
    group.start()
    assert group.nodes[0].starts == 1


def test_a_peer_without_neighbours_is_content():
    group = SmallGroup(sizes=(5, 4), edges=[]).start().run(50.0)
    node = group.nodes[0]
    assert node.edges == {}
    assert node.close() == []
    np.testing.assert_allclose(node.theta, group.work[0].local, atol=1e-6)


def test_a_private_peer_spends_nothing_while_nobody_is_there():
    group = SmallGroup("private").start(0).run(60.0)
    assert group.ledgers[0].releases == 0
    group.start(1).run(60.0)  # one of three neighbours: not yet half of them
    assert group.ledgers[0].releases == 0
    group.start(2, 3).run(60.0)
    assert all(ledger.exhausted for ledger in group.ledgers)


def test_members_without_edges_hear_of_a_newer_roster():
    """A learned graph that begins empty: who joined later brings the roster to who knows nobody."""
    group = without(SmallGroup("learned", edges=[]), 3).start().run(5.0)
    signed = group.change(add=[3])
    group.start(3)
    assert signed == group.signed
    group.run_until(lambda: {node.group.roster.version for node in group.nodes.values()} == {2}, 200.0)
    group.run_until(lambda: group.nodes[3].edges, 200.0)


def test_pooling_peers_agree_on_the_population_also_when_one_begins_again():
    """Flows that a store remembers wrongly are made good by the next messages."""
    group = SmallGroup("gossip-pooling", sizes=(9, 12, 8, 10)).start().run(5.0)
    group.nodes[1]._save()
    group.run(20.0)
    group.crash(1)
    group.run(5.0)
    group.start(1)
    peers = [node.peer for node in group.nodes.values()]

    def agreed():
        means = [peer.method.population(peer.arrays, peer.own, peer.edge).mean[0] for peer in peers]
        return np.ptp(means, axis=0).max() < 1e-6

    group.run_until(agreed, 600.0)
    shared = sum(peer.own.shared[0] for peer in peers)
    assert np.allclose(sum(peer.edge.flow.sum(axis=0) for peer in peers), 0.0, atol=1e-6 * np.abs(shared).max())


# -- forks -------------------------------------------------------------------------------------------------------------


def forked():
    """Four members with version 2; and two more lists of version 3: of one branch, and of the other."""
    group = SmallGroup().start().run(5.0)
    group.edges = [*EDGES, (1, 3, 0.25)]
    group.send(0, group.nodes[0].take_roster(group.now, group.change()))
    group.settle()
    group.run_until(lambda: {node.group.roster.version for node in group.nodes.values()} == {2}, 200.0)
    base = group.lists[-1]
    return group, [base.with_edge(1, 3, weight) for weight in (0.5, 0.75)]


def give(group, i, roster):
    group.now += 20.0
    group.send(i, group.nodes[i].take_roster(group.now, sign_roster(roster, key_of(ADMIN))))
    group.settle()


def test_a_fork_is_named_by_all_and_healed():
    group, (one, other) = forked()
    give(group, 0, one)
    group.run_until(lambda: all(node.group.roster == one for node in group.nodes.values()), 200.0)
    give(group, 2, other)  # the admin, from a backup, has told one peer
    group.run_until(lambda: all(node.group.fork for node in group.nodes.values()), 200.0).run(30.0)
    for node in group.nodes.values():
        assert node.group.roster == one  # what it holds
        assert node.errors["fork"] == 1  # said once
        for text in ("version 3", one.digest.hex()[:8], other.digest.hex()[:8], public(ADMIN)[:4].hex()):
            assert text in node.errors.alerts["fork"]
        assert {node.group.fork.held, node.group.fork.other} == {
            sign_roster(each, key_of(ADMIN)) for each in (one, other)
        }
    healed = one.healing(other)
    give(group, 1, healed)
    group.run_until(lambda: all(node.group.roster == healed for node in group.nodes.values()), 200.0)
    assert all(node.group.fork is None and not node.errors.alerts for node in group.nodes.values())
    give(group, 3, other)  # once void, it is an old roster like any other
    assert not group.nodes[3].errors.alerts


def test_two_halves_with_different_lists_find_out_and_are_healed():
    """Each has one branch, of the same version: it is in what they say in a greeting."""
    group, (one, other) = forked()
    for i, roster in ((0, one), (1, one), (2, other), (3, other)):
        group.nodes[i].take_roster(group.now, sign_roster(roster, key_of(ADMIN)))
    group.run_until(lambda: all(node.group.fork for node in group.nodes.values()), 400.0)
    assert [node.group.roster for node in group.nodes.values()] == [one, one, other, other]
    assert all(node.edges for node in group.nodes.values())  # they go on meanwhile
    give(group, 1, other.healing(one))
    group.run_until(lambda: all(node.group.roster.version == 4 for node in group.nodes.values()), 400.0)
    assert all(node.group.fork is None and not node.errors.alerts for node in group.nodes.values())
    assert group.nodes[1].edges[3] == 0.75


def test_an_older_list_that_was_never_a_part_of_this_one_is_a_fork():
    group, (one, other) = forked()
    long = one.with_edge(0, 2, 3.0).with_edge(0, 2, 4.0)
    give(group, 0, long)
    give(group, 0, one)  # an ancestor
    assert group.nodes[0].group.fork is None
    give(group, 0, other)
    assert group.nodes[0].group.fork is not None
    for k in range(20):  # however many there are, what is said of it is bounded
        give(group, 0, other.with_edge(0, 2, 5.0 + k))
    assert group.nodes[0].errors["fork"] <= MAX_FORKS
    assert group.nodes[0].group.roster == long


# -- as a program ------------------------------------------------------------------------------------------------------


class Programs:
    """Members of a small group as programs, whose transports are in this process."""

    def __init__(self, group, folder):
        self.group, self.exchange, self.log = group, Exchange(by_hand=True), io.StringIO()
        self.here, self.folders = {}, {i: folder / f"m{i}" for i in range(4)}

    def start(self, *members):
        for i in members:
            self.folders[i].mkdir(exist_ok=True)
            (self.folders[i] / "roster").write_bytes(self.group.signed)
            node = self.group.make(i)
            transport = Memory(self.exchange, f"m{i}", i)
            self.here[i] = Program(node, transport, self.folders[i], Log(self.log), clock=lambda: self.group.now)
            transport.open(self.here[i]._deliver, roster=lambda signed, i=i: self.here[i]._deliver(NOBODY, signed))
            self.here[i]._link()
            self.here[i]._send(node.open(self.group.now))
        return self

    def run(self, seconds):
        until = self.group.now + seconds
        while self.group.now < until:
            self.group.now += 0.25
            for program in self.here.values():
                program._housekeeping(self.group.now)
                self.exchange.run()
                for item in program.inbox.take():
                    program._receive(self.group.now, *item)
                if self.group.now >= program.node.next_time:
                    program._send(program.node.tick(self.group.now))
        return self


def test_neighbours_of_a_removed_member_go_on(tmp_path):
    """They keep their links, admit who comes later, and call nothing an error."""
    group = without(SmallGroup(), 3)
    programs = Programs(group, tmp_path).start(0, 1, 2).run(5.0)
    signed = group.change(drop=[1])
    (tmp_path / "m0/roster").write_bytes(signed)  # as coterie peer update does it
    programs.run(10.0)
    assert programs.here.pop(1).node.group.farewell == signed
    for i in (0, 2):
        node = programs.here[i].node
        assert (node.group.roster.version, sorted(node.edges)) == (2, [2 - i])
        assert dict(node.errors) == {}
        assert (tmp_path / f"m{i}/roster").read_bytes() == signed
    before = programs.here[0].node.mail.received["messages"]
    signed = group.change(add=[3])
    programs.start(3).run(30.0)
    for i in (0, 2):
        assert 3 in programs.here[i].node.edges
        assert 3 in programs.here[i].transport.alive()
        assert 3 in programs.here[i].node.fresh.proven
        assert dict(programs.here[i].node.errors) == {}
    assert programs.here[0].node.mail.received["messages"] > before
    assert '"error"' not in programs.log.getvalue()


def test_not_everything_that_goes_wrong_is_the_disk(tmp_path):
    group = SmallGroup()
    (tmp_path / "m0").mkdir()
    (tmp_path / "m0/fork").write_bytes(b"not a fork")
    programs = Programs(group, tmp_path).start(0)
    program = programs.here[0]
    assert not (tmp_path / "m0/fork").exists()
    (tmp_path / "m0/roster").write_bytes(bytes(5_000_000))
    programs.run(1.0)
    assert program.node.errors["disk"] == 0
    assert program.node.errors["link"] >= 1
    assert "roster is longer than" in program.node.errors.last
    (tmp_path / "m0/roster").unlink()
    programs.run(1.0)
    assert program.node.errors["disk"] >= 1


def test_alerts_are_in_the_log_at_once_and_once(tmp_path):
    group = SmallGroup()
    programs = Programs(group, tmp_path).start(0)
    programs.here[0].node.errors.alerts["duplicate"] = "another process runs with this identity"
    programs.run(20.0)
    assert programs.log.getvalue().count('"event": "duplicate"') == 1


def test_a_program_that_is_removed_says_so_and_keeps_the_list(tmp_path):
    group = SmallGroup()
    programs = Programs(group, tmp_path).start(0, 1)
    program = programs.here[1]
    program.transport.close()
    signed = group.change(drop=[1])
    program.inbox.put(NOBODY, signed)
    program.clock = time.monotonic
    with pytest.raises(RemovedError, match="removed this peer"):
        program.run()
    assert (tmp_path / "m1/roster").read_bytes() == signed
    assert "removed this peer" in json.loads((tmp_path / "m1/status.json").read_text())["alerts"]["removed"]
    assert '"event": "removed"' in programs.log.getvalue()


class Taken(Memory):
    """A transport whose port another process has."""

    def open(self, deliver, roster=None):
        taken = OSError(98, "Address already in use")
        raise ParameterError("m0 cannot open 127.0.0.1 port 7447: Address already in use") from taken


def test_a_copied_folder_on_one_machine_is_told_why_it_cannot_listen(tmp_path):
    node, taken = SmallGroup().make(0), Taken(Exchange(by_hand=True), "m0", 0)
    with pytest.raises(
        IdentityError, match=r"already in use\. Is a peer .* another copy of .*identity and a port of its"
    ) as told:
        Program(node, taken, tmp_path, Log(io.StringIO())).run()
    assert isinstance(told.value.__cause__, OSError)  # so it is tried again later


def test_the_evidence_of_a_fork_is_a_file_until_it_is_healed(tmp_path):
    group, (one, other) = forked()
    one, other = (sign_roster(each, key_of(ADMIN)) for each in (one, other))
    group.signed = one
    programs = Programs(group, tmp_path).start(0)
    program = programs.here[0]
    program.inbox.put(NOBODY, other)
    programs.run(2.0)
    assert lists_in((tmp_path / "m0/fork").read_bytes()) == [one, other]
    assert "has forked" in status_of(program)["alerts"]["fork"]
    assert '"event": "fork"' in programs.log.getvalue()
    program.transport.close()
    again = programs.start(0).run(2.0).here[0]  # it is known after a restart
    assert again.node.group.fork is not None
    healed = group.lists[-1].with_edge(1, 3, 0.5).healing(group.lists[-1].with_edge(1, 3, 0.75))
    again.inbox.put(NOBODY, sign_roster(healed, key_of(ADMIN)))
    programs.run(2.0)
    assert not (tmp_path / "m0/fork").exists()
    assert '"event": "healed"' in programs.log.getvalue()
