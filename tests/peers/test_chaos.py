"""The fault simulator: honest code passes it, and code with a planted mistake does not."""

from __future__ import annotations

import copy

import numpy as np
import pytest

from chaos import FAULTS, TASKS, Chaos, Weather, demands, faults, simulated
from coterie.errors import ContractError, ParameterError
from coterie.peers.node import node
from coterie.peers.node.freshness import Freshness
from coterie.peers.node.membership import Members
from coterie.peers.wire import gate
from coterie.peers.wire.gate import REASONS, check_message

pytestmark = pytest.mark.plain


#: Few of them: messages of a learned graph, and of one that publishes, are many.
PEERS = {"published": 3}
SEEDS = {"learned": (5,), "published": (2,)}
#: And some that take longer, of as many peers as are drawn.
MORE = [("learned", 5), ("learned", 21), ("published", 1), ("boosting", 3), ("boosting", 4), ("cd", 1), ("admm", 1)]
PLAIN_TASKS = [task for task in TASKS if not TASKS[task].resists]


@pytest.mark.parametrize(
    ("task", "seed", "peers"),
    [
        pytest.param(task, seed, PEERS.get(task, 4), marks=pytest.mark.slow if seed == 3 else ())
        for task in PLAIN_TASKS
        for seed in SEEDS.get(task, (2, 3))
    ]
    + [pytest.param(task, seed, None, marks=pytest.mark.slow) for task, seed in MORE],
)
def test_seeds_pass(task, seed, peers):
    report = Chaos(seed, task, peers, faults=()).run()
    assert (report.seed, report.task, report.faults) == (seed, task, ())
    assert set(report.refused) <= set(REASONS)
    assert report.messages > 100
    assert np.isnan(report.gap) or report.gap <= TASKS[task].accuracy


#: What each fault is tried with by default.
FAULTY = {
    "floods": [("cd", 1)],
    "clocks": [("djam", 1), ("private", 3)],
    "disks": [("propagation", 1), ("private", 2)],
    "backups": [("cd", 1), ("private", 3)],
    "fork": [("private", 6)],
    "removal": [("admm", 1), ("private", 3)],
}


@pytest.mark.parametrize(
    ("fault", "task", "seed"), [(fault, *case) for fault, cases in FAULTY.items() for case in cases]
)
@pytest.mark.every_case
def test_every_fault_is_lived_through(fault, task, seed):
    report = Chaos(seed, task, peers=4, faults=(fault,)).run()
    assert report.faults == (fault,)


@pytest.mark.parametrize("fault", [*FAULTY, "liars"])
@pytest.mark.parametrize("seed", range(11, 17))
@pytest.mark.slow
def test_every_fault_in_any_task(fault, seed):
    Chaos(seed, faults=(fault,)).run()


@pytest.mark.slow
@pytest.mark.parametrize(("task", "seed"), [("trimmed", 7), ("trimmed djam", 7), ("pooled", 7)])
def test_honest_members_among_liars(task, seed, monkeypatch):
    monkeypatch.setattr(simulated, "LIARS_SECONDS", 40.0)
    chaos = Chaos(seed, task, faults=("liars",))
    assert len(chaos.liars) == chaos.n // 5
    assert chaos.run().faults == ("liars",)


@pytest.mark.slow
def test_without_trimming_liars_would_be_noticed(monkeypatch):
    """The same members without their defence: the demand is one that can fail."""
    monkeypatch.setattr(simulated, "LIARS_SECONDS", 40.0)
    monkeypatch.setattr(simulated, "PRIVATE_SECONDS", 40.0)
    monkeypatch.setitem(TASKS, "trimmed djam", TASKS["djam"]._replace(accuracy=np.inf, resists=True))
    monkeypatch.setattr(faults.Liars, "LIES", ("opposite", "far"))
    with pytest.raises(ContractError, match="among liars"):
        Chaos(7, "trimmed djam", faults=("liars",)).run()


def test_the_weather_of_these_seeds_is_bad():
    """Each fault happens in some seed that is tried, or it would not be tested."""
    drawn = [Chaos(seed, "cd", peers=4).weather for seed in (2, 3)]
    for fault in Weather._fields:
        assert any(getattr(weather, fault) > 0.0 for weather in drawn), fault


def test_faults_are_drawn_and_fit():
    drawn = [set(Chaos(seed, task, peers=4).faults) for seed in range(16) for task in ("cd", "trimmed djam")]
    assert set().union(*drawn) == set(FAULTS)
    assert set() in drawn
    assert all(("liars" in found) == (k % 2 == 1) for k, found in enumerate(drawn))
    assert not any("removal" in found for found in drawn[1::2])
    with pytest.raises(ParameterError, match="cannot come with"):
        Chaos(1, "cd", faults=("liars",))
    assert TASKS[Chaos(3, faults=("liars",)).task].resists


@pytest.mark.slow
def test_many_peers():
    """Too many to wait for their optimum: what must hold always, holds for a while."""
    many = Chaos(2, "djam", peers=120)
    many.advance(3.0)
    assert many.messages > 1000
    assert many.crashes > 0
    assert sum(here is not None for here in many.nodes) > 60


@pytest.mark.slow
@pytest.mark.parametrize(("task", "chosen"), [("private", ()), ("djam", ("clocks", "backups", "fork", "removal"))])
def test_a_seed_can_be_run_again(task, chosen):
    one, other = (Chaos(2, task, peers=4, faults=chosen).run() for _ in range(2))
    assert repr(one) == repr(other)  # the gap may be no number
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
    """Numbers of messages that nobody remembers: the sessions alone."""

    def get(self, key, default=None):
        last = super().get(key, default)
        return last and (last[0], 0)


class OneForAll(dict):
    """One question, for everybody and for ever."""

    def get(self, key, default=None):
        return bytes(16)

    def __delitem__(self, key):
        """It stays as good as it is."""


def same_question(monkeypatch):
    def change(peer):
        peer.fresh._asked = OneForAll()

    after_init(monkeypatch, change)


def no_proof(monkeypatch):
    monkeypatch.setattr(Freshness, "is_current", lambda self, packet: True)


def no_signature(monkeypatch):
    monkeypatch.setattr(gate, "is_signed", lambda *_: True)


def same_session(monkeypatch):
    def change(peer):
        peer.fresh.session = 7

    after_init(monkeypatch, change)


def no_replay_check(monkeypatch):
    def change(peer):
        peer.mail.gate.last = Forgetful(peer.mail.gate.last)

    after_init(monkeypatch, change)


def no_state(monkeypatch):
    monkeypatch.setattr(node, "restored", lambda peer, arrays: (peer.arrays, peer.own, peer.edge))


def no_norm_check(monkeypatch):
    def lenient(contents, *rest):
        boundless = copy.copy(contents)
        boundless.bounds = contents.bounds._replace(radius=float("inf"))
        return check_message(boundless, *rest)

    monkeypatch.setattr(node, "check_message", lenient)


def no_greeting(monkeypatch):
    """Whoever begins again is not told the models: of a private run, it will never hear them."""
    monkeypatch.setattr(node.Node, "_greetings", lambda self, j: [])


def no_farewell(monkeypatch):
    """Who was removed is not told."""
    honest = Members.take

    def silent(self, now, signed, by=None):
        news = honest(self, now, signed, by)
        self.farewell = None
        return news

    monkeypatch.setattr(Members, "take", silent)


def no_alert(monkeypatch):
    """Two rosters, and nobody says so."""
    monkeypatch.setattr(Members, "_is_new_fork", lambda self, *_: False)


def no_limit(monkeypatch):
    """As many messages as anybody likes."""
    monkeypatch.setattr("coterie.peers.wire.limits.Bucket.take", lambda self, now: True)


@pytest.mark.parametrize(
    ("plant", "task", "fault", "complaint"),
    [
        (same_session, "cd", None, "uses session|sends number"),
        (no_replay_check, "cd", None, "twice"),
        (no_state, "cd", None, "does not go on from"),
        (no_norm_check, "cd", None, "hostile message"),
        (no_signature, "cd", None, "hostile message|stays"),
        (no_proof, "cd", None, "twice"),
        (same_question, "cd", None, "twice"),
        (no_greeting, "private", None, "has not heard"),
        (no_farewell, "cd", "removal", "'removal' is not over"),
        (no_alert, "cd", "fork", "no alert of the fork"),
        (no_limit, "cd", "floods", "'floods' is not over"),
    ],
)
def test_a_planted_mistake_is_found(plant, task, fault, complaint, monkeypatch):
    plant(monkeypatch)
    # no need to wait for the optimum
    monkeypatch.setattr(simulated, "RECOVERY_SECONDS", 280.0 if fault == "fork" else 40.0)
    monkeypatch.setitem(TASKS, "cd", TASKS["cd"]._replace(accuracy=10.0))
    if plant in (no_norm_check, no_proof, same_question, no_signature):  # which takes an adversary some patience
        monkeypatch.setattr(Weather, "draw", lambda rng: Weather(0.0, 0.3, 0.0, 0.2, 0.0, 0.5, 40.0, 0.0))
    found = []
    for seed in range(1, 25):
        try:
            Chaos(seed, task, peers=4, faults=(fault,) if fault else ()).run()
        except ContractError as error:
            found.append(str(error))
            break
    assert found, "no seed has found it"
    assert any(part in found[0] for part in complaint.split("|")), found[0]


def test_who_is_never_heard_again_is_missed():
    """A demand of its own, whatever the models do: here, that everybody has been heard in the future."""
    chaos = Chaos(2, "cd", peers=4, faults=())
    chaos.advance(40.0)
    assert "has not heard" in demands.missing(chaos, chaos.now + 1.0)
