"""Peers among each other: to the last bit what the simulator does, through joins, farewells, crashes and full disks."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from village import TIES, WORDS, Village

import coterie as ct
from coterie.core.world import VACANT
from coterie.data import AgentData
from coterie.engines.wire import encode
from coterie.engines.worlds import part_of, world_of
from coterie.errors import StateError
from coterie.graphs import Graph
from coterie.peers.letters import BYE, LETTER, unseal
from coterie.peers.node import REFRESH
from coterie.peers.state import read_record, theta_path, unpack
from coterie.peers.tables import problem_of
from coterie.privacy import Ledger
from coterie.problem.confidence import confidences


def problem_for(village, members=None, **other):
    """The problem that some members solve together."""
    here = sorted(village.present if members is None else members)
    place = {i: k for k, i in enumerate(here)}
    owner = np.repeat(np.arange(len(here)), [len(village.X[i]) for i in here])
    X, y = (np.concatenate([part[i] for i in here]) for part in (village.X, village.y))
    W = np.zeros((len(here), len(here)))
    for a, b, weight in village.ties:
        if a in place and b in place:
            W[place[a], place[b]] = W[place[b], place[a]] = weight
    charter = msgspec.structs.replace(village.charter, **other)
    return problem_of(charter, AgentData(X, y, agents=owner, members=range(len(here))), Graph(W))


def gap(problem, theta):
    """How far above the optimum, relative."""
    best = problem.value(problem.solve())
    return (problem.value(theta) - best) / max(1.0, abs(best))


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


@pytest.mark.parametrize(("words", "more"), CASES)
def test_a_peer_works_on_what_the_simulator_works_on(words, more):
    """A peer's world, made from its own rows alone, is its part of the world of all, bit for bit."""
    village = Village(words, **more).start()
    world = world_of(problem_for(village))
    for i, node in village.nodes.items():
        mine, theirs = node.peer.world, part_of(world, i, i + 1)
        for name in ("labels", "row_start", "peer", "weight", "share", "ridge", "curvature", "address"):
            assert np.array_equal(getattr(mine, name), getattr(theirs, name)), name
        np.testing.assert_allclose(mine.loss_weight, theirs.loss_weight, rtol=1e-15)
        if words != "propagation":  # whose rows are unit vectors, stored in another way
            assert np.array_equal(mine.rows.values, theirs.rows.values)
        for name in ("loss", "smooth", "scaled", "radius", "outputs", "n_agents"):
            assert getattr(mine, name) == getattr(theirs, name), name


def check_against_simulator(words, more):
    """The same wakes in the same order, every letter sealed, opened and delivered at once: the same models."""
    village = Village(words, **more)
    problem, rng, method = problem_for(village), np.random.default_rng(4), village.method
    order = rng.integers(0, problem.n, 300)
    neighbours = [int(rng.choice(problem.graph.neighbours(i))) for i in order]
    exchanges = getattr(method, "exchanges", False)
    start = np.array([work.theta for work in village.work])
    events = np.column_stack([order, neighbours]) if exchanges else order
    expected = ct.simulate(problem, method, events=events, start=start)

    dice = []
    village.start(dice=lambda count: dice.pop() if count else np.zeros(0))
    for node in village.nodes.values():  # one number that differs in its last bit is not what this is about
        world = part_of(world_of(problem), node.address, node.address + 1)
        assert np.array_equal(node.peer.world.peer, world.peer)
        node.peer.world = node.peer.world._replace(loss_weight=world.loss_weight)
    for i, node in village.nodes.items():  # the initial swap, which a method that remembers leaves to its exchanges
        village.send(i, node._post(0.0, node.peer.greet()))
        village.settle()
    before = sum(node.received["letters"] for node in village.nodes.values())
    for i, neighbour in zip(order.tolist(), neighbours, strict=True):
        node = village.nodes[i]
        if method.dice:  # such that the neighbour is chosen
            slot = node.peer.world.peer.tolist().index(neighbour)
            dice.append(np.full(method.dice, (slot + 0.5) / len(node.ties)))
        village.send(i, node._wake(village.now))
        village.settle()
    assert np.array_equal(village.theta, expected.theta)
    assert np.abs(village.theta - start).max() > 1e-3
    assert all(not node.gate.refused for node in village.nodes.values())
    heard = sum(node.received["letters"] for node in village.nodes.values()) - before
    assert heard == expected.letters - len(world_of(problem).peer)  # without those of the initial swap


@pytest.mark.parametrize(("words", "more"), CASES)
def test_nodes_do_what_the_simulator_does(words, more):
    check_against_simulator(words, more)


@pytest.mark.parametrize("words", ["cd", "djam", "admm", "propagation", "trimmed"])
def test_peers_come_to_the_optimum_by_themselves(words):
    village = Village(words).start().run(250.0)
    if words != "trimmed":
        assert gap(problem_for(village), village.theta) < 1e-8
    assert all(not node.trouble for node in village.nodes.values())


# -- confidences -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", ["cd", "djam"])
def test_the_largest_data_set_is_known_everywhere_in_the_end(words):
    line = [(0, 1, 1.0), (1, 2, 1.0), (2, 3, 1.0), (3, 4, 1.0)]
    sizes = (2, 3, 1, 4, 9)  # the largest one at the end of the line
    village = Village(words, sizes=sizes, ties=line, confidence="gossip").start()
    assert village.nodes[0].largest < 9  # nobody has told it yet
    village.run(250.0)
    assert [node.largest for node in village.nodes.values()] == [9] * 5
    for i, node in village.nodes.items():
        assert node.peer.world.loss_weight[0] == village.work[i].weight * (sizes[i] / 9)
        assert confidences(sizes[i], 9) == sizes[i] / 9
    assert gap(problem_for(village), village.theta) < 1e-8
    again = village.make(0)  # and it is kept
    assert again.largest == 9


def test_what_is_public_is_not_gossiped():
    village = Village(confidence="public").start().run(5.0)
    assert all(unseal(payload)[0].largest == 0 for _, _, payload in village.mail)
    village.offered(1, 0, 0, np.ones(3), largest=15)
    assert village.nodes[0].largest == village.charter.max_rows


# -- members come and go -----------------------------------------------------------------------------------------------


def without(village, i):
    """Somebody is not there yet."""
    village.present.discard(i)
    village.signed = village.roster()
    return village


def test_a_new_member_becomes_known_through_one():
    village = without(Village(), 3).start().run(20.0)
    assert sorted(village.nodes) == [0, 1, 2]
    signed = village.change(add=[3])
    village.send(1, village.nodes[1].take_roster(village.now, signed))  # who is not even its neighbour
    village.settle()
    village.run(REFRESH * 10)
    assert [node.roster.version for node in village.nodes.values()] == [2, 2, 2]
    assert 3 in village.nodes[0].ties
    village.start(3).run(250.0)
    assert village.nodes[3].proven >= {0, 2}
    assert gap(problem_for(village), village.theta) < 1e-8


def test_a_new_member_brings_the_list_itself():
    """The steward has told nobody but the new one."""
    village = without(Village(), 3).start().run(20.0)
    village.change(add=[3])
    village.start(3).run(250.0)
    assert [node.roster.version for node in village.nodes.values()] == [2] * 4
    assert gap(problem_for(village), village.theta) < 1e-8


def test_who_leaves_is_forgotten():
    village = Village().start().run(50.0)
    village.send(3, village.nodes[3].close(leave=True))
    del village.nodes[3]  # it has gone; what it has sent is under way
    village.present.discard(3)
    village.queue = type(village.queue)((i, j, parcel) for i, j, parcel in village.queue if j != 3)
    village.settle()
    assert sorted(village.nodes[0].ties) == [1, 2]
    assert sorted(village.nodes[2].ties) == [0, 1]
    village.run(250.0)
    assert gap(problem_for(village), village.theta) < 1e-8
    village.crash(0)
    assert sorted(village.make(0).ties) == [1, 2]  # also after a restart


def test_who_stops_is_waited_for():
    village = Village().start().run(20.0)
    for parcel in village.nodes[3].close():
        assert unseal(parcel.payload)[0].topic == BYE
        village.send(3, [parcel])
    village.settle()
    village.crash(3)
    village.run(20.0)
    assert 3 in village.nodes[0].ties
    village.start(3).run(250.0)
    assert gap(problem_for(village), village.theta) < 1e-8


def test_who_has_left_may_come_back():
    village = Village().start().run(20.0)
    village.send(3, village.nodes[3].close(leave=True))
    village.settle()
    village.crash(3)
    village.run(20.0)
    assert 3 not in village.nodes[0].ties
    village.start(3).run(250.0)
    assert 3 in village.nodes[0].ties
    assert gap(problem_for(village), village.theta) < 1e-8


def test_who_was_removed_is_not_heard():
    village = Village().start().run(20.0)
    removed = village.nodes.pop(3)
    signed = village.change(drop=[3])
    village.send(0, village.nodes[0].take_roster(village.now, signed))
    village.settle()
    assert [node.roster.version for node in village.nodes.values()] == [2] * 3
    assert 3 not in village.nodes[0].ties
    for parcel in removed._wake(village.now):
        for node in village.nodes.values():
            before = node.gate.refused["stranger"]
            assert node.hear(village.now, 3, parcel.payload) == []
            assert node.gate.refused["stranger"] == before + 1
    assert removed.take_roster(village.now, signed) == []
    assert removed.trouble["removed"] == 1
    assert "removed this peer" in removed.last_trouble
    village.run(250.0)
    assert gap(problem_for(village), village.theta) < 1e-8


def test_a_list_of_members_must_be_the_stewards_and_newer():
    village = Village().start()
    node, old = village.nodes[0], village.signed
    new = village.change(drop=[3])
    for k in (0, 63, 64, 100, -1):
        broken = bytearray(new)
        broken[k] ^= 1
        assert node.take_roster(0.0, bytes(broken)) == []
    assert node.take_roster(0.0, b"") == []
    assert node.gate.refused["signature"] == 6
    assert node.roster.version == 1
    assert node.take_roster(0.0, new) != []
    assert node.take_roster(0.0, old) == []  # never back
    assert node.roster.version == 2
    other = Village("djam")  # a list of another run, by the same steward
    assert node.take_roster(0.0, other.change(drop=[1])) == []
    assert node.roster.version == 2


# -- learned ties ------------------------------------------------------------------------------------------------------


def test_learned_ties_change_and_both_ends_agree():
    village = Village("learned", sizes=(4, 6, 3, 5, 4), seed=3).start()
    before = {i: dict(node.ties) for i, node in village.nodes.items()}
    village.run(120.0)
    ties = {i: node.ties for i, node in village.nodes.items()}
    assert ties != before
    pairs = {(i, j) for i in ties for j in ties[i]}
    assert pairs == {(j, i) for i, j in pairs}
    assert any((i, j) not in {(a, b) for a, b, _ in TIES} | {(b, a) for a, b, _ in TIES} for i, j in pairs)
    assert all(ties[i][j] == ties[j][i] for i, j in pairs)
    village.nodes[0]._save()
    again = village.make(0)  # they are kept, not those of the roster
    assert again.ties == ties[0]


def test_the_ends_of_a_tie_agree_after_a_word_was_lost():
    """Also where views have come apart, as they do when letters of the sampler are lost: here {0, 2} and {1, 3}."""
    village = Village("learned").start().run(20.0)
    for i, node in village.nodes.items():
        view = node.peer.own.known
        view.address[:], view.sent[:] = VACANT, VACANT
        view.address[0, 0] = (i + 2) % 4
    world, tie = village.nodes[0].peer.world, village.nodes[0].peer.tie
    slot = world.peer.tolist().index(1)
    world.weight[slot] *= 1.5  # what 0 has told 1 about it was lost
    tie.stamp[slot] += 2.0
    village.run(200.0)
    assert village.nodes[0].ties[1] == village.nodes[1].ties[0]


def test_a_sampler_finds_its_way_back_to_all_members():
    village = Village("learned").start().run(20.0)
    for i, node in village.nodes.items():
        view = node.peer.own.known
        view.address[:], view.sent[:] = VACANT, VACANT
        view.address[0, 0] = (i + 2) % 4
    known = set()
    for _ in range(20):  # views are swapped all the time: nobody is in one for ever
        village.run(10.0)
        known |= {int(j) for j in village.nodes[0].peer.own.known.address[0]} - {VACANT}
    assert known == {1, 2, 3}


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
    village = Village(words, **more)
    plan, steps, made = village.method.plan, village.method.plan.steps, {}
    nothing = encode(0, 0, np.zeros(3))  # what there is to say before the first release

    def watch(parcels):
        """What leaves a peer that descends is a model that it has released, and nothing else."""
        for parcel in parcels:
            letter = unseal(parcel.payload)[0]
            if letter.topic == LETTER and words == "private":
                assert letter.body == nothing or [letter.body] in map(list, map(set, made.values()))

    for point in [first, None, *POINTS, None, None, *POINTS, None]:
        ledger = Ledger(plan, tmp_path / "ledger")
        before = ledger.releases
        fragile = Fragile(ledger, village.stores[0], None)
        node = village.make(0, ledger=fragile, store=fragile, dice=None)
        watch(node.open(0.0))
        node.proven |= set(node.ties)  # they are there
        watch(node._post(0.0, node.peer.greet()))  # what a neighbour that says hello is sent
        fragile.point = point
        try:
            for _ in range(1 if point is None else 9):
                spent, parcels = ledger.releases, node._wake(0.0)
                if ledger.releases > spent:
                    assert made.setdefault(ledger.releases, ledger.kept) == ledger.kept
                watch(parcels)
            watch(node._post(0.0, node.peer.greet()))
        except Crash:
            pass
        if ledger.kept and point in ("after keep", "before save", "after save") and before < steps:
            assert made.setdefault(ledger.releases, ledger.kept) == ledger.kept
        ledger.close()
        assert before <= ledger.releases <= min(steps, before + 1)
        assert ledger.releases == min(steps, before + (point != "before debit"))
    assert ledger.exhausted
    assert len({repr(frames) for frames in made.values()}) == len(made)  # fresh noise for each


def test_a_spent_budget_is_spent_after_a_restart_without_a_state(tmp_path):
    village = Village("private")
    with Ledger(village.method.plan, tmp_path / "ledger") as ledger:
        node = village.make(0, ledger=ledger, dice=None)
        node.open(0.0)
        node.proven |= set(node.ties)  # they are there
        for _ in range(10):
            node._wake(0.0)
        assert ledger.exhausted
    with Ledger(village.method.plan, tmp_path / "ledger") as ledger:
        village.stores[0] = type(village.stores[0])()
        node = village.make(0, ledger=ledger, dice=None)
        node.open(0.0)
        node.proven |= set(node.ties)  # they are there
        before = node.theta
        for _ in range(5):
            node._wake(0.0)
        assert np.array_equal(node.theta, before)
        assert ledger.releases == village.method.plan.steps


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
    village = Village(words)
    village.stores[0] = store = Full()
    village.start().run(5.0)
    node, kept = village.nodes[0], store.content
    store.full = True
    letters = node.sent["letters"]
    for k in range(6):
        assert node._wake(village.now) == []
        assert node.trouble["disk"] == k + 1
    assert node.sent["letters"] == letters
    assert "No space left" in node.last_trouble
    assert store.content == kept
    store.full = False
    assert node._wake(village.now) != [] or village.charter.privacy
    assert store.content != kept
    record = read_record(store.content)
    assert np.array_equal(unpack(record.arrays, f"own.{theta_path(node.peer.own)}")[0], node.theta)


def test_a_peer_that_cannot_write_down_that_it_begins_does_not():
    village = Village()
    village.stores[0] = store = Full()
    store.full = True
    with pytest.raises(StateError, match="cannot begin"):
        village.make(0).open(0.0)
    store.full = False
    village.start()
    assert village.nodes[0].boot == 1


def test_no_number_is_used_twice():
    village = Village().start()
    used = []
    for _ in range(5):
        village.run(2.0)
        for i, _, payload in village.mail:
            if i == 0:
                letter = unseal(payload)[0]
                used.append((letter.boot, letter.sequence, payload))
        village.mail.clear()
        village.crash(0)  # without a word
        village.start(0)
    assert [place[:2] for place in used] == sorted(place[:2] for place in used)
    texts = {}
    for boot, sequence, payload in used:
        assert texts.setdefault((boot, sequence), payload) == payload
    assert {boot for boot, _, _ in used} == {1, 2, 3, 4, 5}
    assert village.nodes[0].boot == 6


def test_neighbours_that_crash_often_still_come_to_the_optimum():
    village = Village("djam").start()
    for k in range(20):
        village.run(3.0)
        village.crash(k % 4)
        village.run(1.0)
        village.start(k % 4)
    village.run(250.0)
    assert gap(problem_for(village), village.theta) < 1e-8


def test_a_peer_without_neighbours_is_content():
    village = Village(sizes=(5, 4), ties=[]).start().run(50.0)
    node = village.nodes[0]
    assert node.ties == {}
    assert node.close() == []
    np.testing.assert_allclose(node.theta, village.work[0].local, atol=1e-6)


def test_a_private_peer_spends_nothing_while_nobody_is_there():
    village = Village("private").start(0).run(60.0)
    assert village.ledgers[0].releases == 0
    village.start(1).run(60.0)  # one of three neighbours: not yet half of them
    assert village.ledgers[0].releases == 0
    village.start(2, 3).run(60.0)
    assert all(ledger.exhausted for ledger in village.ledgers)


def test_a_removed_member_is_told_and_stops():
    village = Village().start().run(20.0)
    signed = village.change(drop=[3])
    village.send(1, village.nodes[1].take_roster(village.now, signed))
    village.settle()
    village.run(200.0)
    assert village.nodes[3].trouble["removed"] >= 1
    assert all(3 not in village.nodes[i].ties for i in (0, 1, 2))


def test_members_without_ties_hear_of_a_newer_list():
    """A learned graph that begins empty: who joined later brings the list to who knows nobody."""
    village = without(Village("learned", ties=[]), 3).start().run(5.0)
    signed = village.change(add=[3])
    village.start(3).run(200.0)
    assert signed == village.signed
    assert {node.roster.version for node in village.nodes.values()} == {2}
    assert village.nodes[3].ties


def test_pooling_peers_agree_on_the_population_also_when_one_begins_again():
    """Flows that a store remembers wrongly are made good by the next letters."""
    village = Village("gossip-pooling", sizes=(9, 12, 8, 10)).start().run(5.0)
    village.nodes[1]._save()
    village.run(20.0)
    village.crash(1)
    village.run(5.0)
    village.start(1)
    village.run(600.0)
    peers = [node.peer for node in village.nodes.values()]
    means = [peer.method.population(peer.world, peer.own, peer.tie).mean[0] for peer in peers]
    assert np.ptp(means, axis=0).max() < 1e-6
    shared = sum(peer.own.shared[0] for peer in peers)
    assert np.allclose(sum(peer.tie.flow.sum(axis=0) for peer in peers), 0.0, atol=1e-6 * np.abs(shared).max())
