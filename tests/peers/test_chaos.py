"""The fault simulator: honest code passes it, and code with a planted mistake does not."""

from __future__ import annotations

import pytest

from coterie.errors import ContractError
from coterie.peers import node
from coterie.peers.gate import REASONS, check_letter
from coterie.testing import chaos
from coterie.testing.chaos import TASKS, Chaos, Weather

#: Few of them: letters of a learned graph, and of one that publishes, are many.
PEERS = {"published": 3}
SEEDS = {"learned": (5,), "published": (2,)}
#: And some that take longer, of as many peers as are drawn.
MORE = [("learned", 5), ("learned", 21), ("published", 1), ("boosting", 3), ("boosting", 4), ("cd", 1), ("admm", 1)]


@pytest.mark.parametrize(
    ("task", "seed", "peers"),
    [(task, seed, PEERS.get(task, 4)) for task in TASKS for seed in SEEDS.get(task, (2, 3))]
    + [pytest.param(task, seed, None, marks=pytest.mark.slow) for task, seed in MORE],
)
def test_seeds_pass(task, seed, peers):
    report = Chaos(seed, task, peers).run()
    assert (report.seed, report.task) == (seed, task)
    assert set(report.refused) <= set(REASONS)
    assert report.letters > 100
    assert report.gap <= TASKS[task][1]


def test_the_weather_of_these_seeds_is_bad():
    """Each fault happens in some seed that is tried, or it would not be tested."""
    weathers = [Chaos(seed, "cd", peers=4).weather for seed in (2, 3)]
    for fault in chaos.Weather._fields:
        assert any(getattr(weather, fault) > 0.0 for weather in weathers), fault


def test_many_peers():
    """Too many to wait for their optimum: what must hold always, holds for a while."""
    storm = Chaos(2, "djam", peers=120)
    storm._advance(3.0)
    assert storm.letters > 1000
    assert storm.crashes > 0
    assert sum(here is not None for here in storm.nodes) > 60


def test_a_seed_can_be_run_again():
    one, other = (Chaos(2, "private", peers=4).run() for _ in range(2))
    assert one == other
    assert one.crashes > 0


# -- a test of the tester ----------------------------------------------------------------------------------------------


def after_init(monkeypatch, change):
    """Nodes with something changed when they are made."""
    honest = node.Node.__init__

    def changed(self, *arguments, **more):
        honest(self, *arguments, **more)
        change(self)

    monkeypatch.setattr(node.Node, "__init__", changed)


class Forgetful(dict):
    """Numbers of letters that nobody remembers."""

    def get(self, key, default=None):
        return None


def same_boot(monkeypatch):
    def change(peer):
        peer.boot = max(1, peer.boot - 1)

    after_init(monkeypatch, change)


def no_replay_check(monkeypatch):
    def change(peer):
        peer.gate.last = Forgetful(peer.gate.last)

    after_init(monkeypatch, change)


def no_state(monkeypatch):
    monkeypatch.setattr(node, "restored", lambda peer, arrays: (peer.world, peer.own, peer.tie))


def no_norm_check(monkeypatch):
    def lenient(terms, *rest):
        return check_letter(terms._replace(radius=float("inf")), *rest)

    monkeypatch.setattr(node, "check_letter", lenient)


def no_proof(monkeypatch):
    def change(peer):
        peer.proven = {member.address for member in peer.roster.members}

    after_init(monkeypatch, change)


def no_signature(monkeypatch):
    class Yes:
        def verify(self, signature, signed):
            """Anything goes."""

    def change(peer):
        admit = peer.gate.admit

        def lenient(keys):
            admit(keys)
            peer.gate._keys = {address: (key, Yes()) for address, (key, _) in peer.gate._keys.items()}

        peer.gate.admit = lenient
        lenient({member.address: member.key for member in peer.roster.members})

    after_init(monkeypatch, change)


def no_greeting(monkeypatch):
    """Whoever begins again is not told the models: of a private run, it will never hear them."""
    monkeypatch.setattr(node.Node, "_greetings", lambda self, j: [])


@pytest.mark.parametrize(
    ("plant", "task", "complaint"),
    [
        (same_boot, "cd", "uses boot|sends number"),
        (no_replay_check, "cd", "twice"),
        (no_state, "cd", "does not go on from"),
        (no_norm_check, "cd", "hostile letter"),
        (no_signature, "cd", "hostile letter|stays"),
        (no_proof, "cd", "twice"),
        (no_greeting, "private", "has not heard"),
    ],
)
def test_a_planted_mistake_is_found(plant, task, complaint, monkeypatch):
    plant(monkeypatch)
    monkeypatch.setattr(chaos, "CALM", 40.0)  # no need to wait for the optimum
    monkeypatch.setitem(TASKS, "cd", (TASKS["cd"][0], 10.0))
    if plant in (no_norm_check, no_proof, no_signature):  # which takes an adversary some patience to come upon
        monkeypatch.setattr(Weather, "draw", lambda rng: Weather(0.0, 0.3, 0.0, 0.2, 0.0, 0.5, 40.0, 0.0))
    found = []
    for seed in range(1, 25):
        try:
            Chaos(seed, task, peers=4).run()
        except ContractError as error:
            found.append(str(error))
            break
    assert found, "no seed has found it"
    assert any(part in found[0] for part in complaint.split("|")), found[0]
