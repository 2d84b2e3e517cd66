"""Debit, fsync, draw, send: in that order, as the operating system sees it, for everything that releases something.

Nothing of the library is replaced here, only functions of the operating system, which are watched, or at which a
process dies. Noise is a function of a key that ``os.urandom`` gives: before that is asked, there is no noise.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from pathlib import Path

import numpy as np
import pytest
from test_ledger import ended, forked

import coterie as ct
from coterie.core.private.noise import KEY
from coterie.engines.arrays import arrays_of, part_of
from coterie.engines.peer import Peer
from coterie.errors import BudgetError
from coterie.privacy import Ledger

sys.path.insert(0, str(Path(__file__).parents[1] / "peers"))
from small_group import SmallGroup

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork"),
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
]
NAMES = ("open", "write", "pwrite", "fsync", "replace", "urandom")
REAL = {name: getattr(os, name) for name in NAMES}
RELEASES = 3
AGENT = 0


def made(name):
    """A private method, its problem, and how often it releases something."""
    if name == "boosting":
        rng = np.random.default_rng(0)
        data = ct.AgentData(rng.normal(size=(12, 3)), np.sign(rng.normal(size=12)), agents=np.repeat([0, 1, 2], 4))
        problem = ct.Problem.boosting(data, ct.graphs.complete(3), base=lambda X: X, beta=1.0, loss="logistic")
        return problem, ct.Private("boosting", wakes_per_agent=RELEASES), RELEASES
    rng = np.random.default_rng(1)
    data = ct.AgentData(rng.normal(size=(12, 3)), rng.normal(size=12), agents=np.repeat([0, 1, 2], 4))
    problem = ct.Problem.personalized(data, ct.graphs.complete(3), loss="squared")
    if name == "cd":
        return problem, ct.Private("cd", wakes_per_agent=RELEASES), RELEASES
    return problem, ct.Private(name), 1


def peer_of(name, ledger):
    problem, method, _ = made(name)
    return Peer(method, part_of(arrays_of(problem), AGENT, AGENT + 1), np.zeros(problem.p), ledger)


def debits(content):
    """How many releases the text of a ledger counts."""
    return sum(json.loads(line)["kind"] == "debit" for line in content.splitlines() if line.endswith(b"}"))


class Disk:
    """Watches the ledger: what of it would be left if the power failed now; and what happened, in order."""

    def __init__(self, path, monkeypatch):
        self.path, self.durable, self.events = path, b"", []
        for name in NAMES:
            monkeypatch.setattr(os, name, lambda *arguments, name=name: self.call(name, *arguments))

    def call(self, name, *arguments):
        result = REAL[name](*arguments)
        where = ""
        if name in ("pwrite", "fsync", "write"):
            where = os.path.basename(os.readlink(f"/proc/self/fd/{arguments[0]}"))
        if name == "fsync" and where == self.path.name:
            self.durable = self.path.read_bytes()
        if name == "replace":
            where = os.path.basename(arguments[1])
        if name != "open":
            self.events.append((name, where, arguments[0] if name == "urandom" else None, debits(self.durable)))
        return result


def is_key(event):
    """Whether this asks for the key of some noise, and not for a nonce or a name."""
    return event[0] == "urandom" and event[2] >= 8 * KEY


needs_proc = pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="needs /proc")


@needs_proc
@pytest.mark.parametrize("name", ["cd", "propagation", "boosting", "gossip-pooling"])
def test_a_debit_is_durable_before_its_noise_is_drawn(name, tmp_path, monkeypatch):
    path = tmp_path / "ledger"
    with Ledger(made(name)[1].plan, path) as ledger:
        peer, most = peer_of(name, ledger), made(name)[2]
        disk = Disk(path, monkeypatch)
        for release in range(most):
            del disk.events[:]
            messages = peer.wake()
            keys = [event for event in disk.events if is_key(event)]
            assert len(keys) == 1  # one key for a release
            assert keys[0][3] == release + 1, "noise was drawn before its debit was on the disk"
            after = disk.events[disk.events.index(keys[0]) + 1 :]
            assert not any(where == "ledger" for _, where, *_ in after)  # nothing is taken back
            # what is to be sent is kept, durably, before anybody can send it
            assert [event[:2] for event in after if event[0] != "pwrite"][-3:] == [
                ("fsync", ".ledger.kept.draft"),
                ("replace", "ledger.kept"),
                ("fsync", tmp_path.name),
            ]
            assert ledger.kept == [message.data for message in messages]


@needs_proc
@pytest.mark.parametrize("words", ["private", "published", "pooled in private"])
def test_a_member_of_a_group_keeps_the_order(words, tmp_path, monkeypatch):
    """A whole peer with its state on disk keeps the order: debit, noise, kept messages, state, mail."""
    from coterie.peers.node.node import Node
    from coterie.peers.node.state import FileStore

    group = SmallGroup(words)
    ledger = Ledger(group.method.plan, tmp_path / "ledger")
    node = Node(
        group.charter, group.signed, 0, group.method, group.work[0], lambda text: hashlib.sha512(text).digest(),
        FileStore(tmp_path / "state"), ledger=ledger, random=REAL["urandom"],
    )  # fmt: skip
    node.open(0.0)
    node.fresh.proven |= {1, 2, 3}
    disk = Disk(tmp_path / "ledger", monkeypatch)
    before, now = 0, 0.0
    while not ledger.exhausted:
        del disk.events[:]
        now = node.next_time
        sends = node.tick(now)
        if ledger.releases == before:
            continue
        before = ledger.releases
        places = [k for k, event in enumerate(disk.events) if is_key(event)]
        assert len(places) == 1
        assert disk.events[places[0]][3] == ledger.releases
        names = [where for what, where, *_ in disk.events if what == "replace"]
        assert names == ["ledger.head", "ledger.kept"]
        synced = [k for k, (what, where, *_) in enumerate(disk.events) if (what, where) == ("fsync", "state")]
        assert len(synced) == 1
        assert synced[0] > places[0]
        assert disk.events.index(("replace", "ledger.head", None, ledger.releases)) < places[0]
        assert sends
    ledger.close()


# -- death at every call ----------------------------------------------------------------------------------------------


class Death:
    """Ends the process at the k-th call of the operating system; with ``power``, what was not synced is gone."""

    CODE = 77

    def __init__(self, path, drawn, k, power):
        self.path, self.drawn, self.k, self.power, self.made = path, drawn, k, power, 0
        self.durable = path.read_bytes() if path.exists() else b""
        for name in NAMES:
            setattr(os, name, lambda *arguments, name=name: self.call(name, *arguments))

    def call(self, name, *arguments):
        if self.made == self.k:
            if self.power:
                fd = REAL["open"](self.path, os.O_WRONLY | os.O_TRUNC)
                REAL["write"](fd, self.durable)
            os._exit(self.CODE)
        self.made += 1
        if name == "urandom" and arguments[0] >= 8 * KEY:
            fd = REAL["open"](self.drawn, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            REAL["write"](fd, b"x")
            os.close(fd)
        result = REAL[name](*arguments)
        if name == "fsync":
            self.durable = self.path.read_bytes()
        return result


@pytest.mark.parametrize("power", [False, True])
@pytest.mark.parametrize("name", ["cd", "boosting"])
def test_no_more_noise_is_ever_drawn_than_was_paid_for(name, power, tmp_path, monkeypatch):
    """A peer dies at every call of a release, one after the other, and goes on: of all its lives together, no more keys
    are drawn than the ledger counts, and no more than the budget.
    """
    monkeypatch.setattr(os, "fsync", lambda fd: None)  # not to wait for the disk: only the order matters
    monkeypatch.setitem(REAL, "fsync", lambda fd: None)
    peer_of(name, Ledger(made(name)[1].plan)).wake()  # compiled before there are forks
    calls = []
    for k in range(60):
        folder = tmp_path / str(k)
        folder.mkdir()
        path, drawn = folder / "ledger", folder / "drawn"
        with Ledger(made(name)[1].plan, path) as ledger:
            pass

        def live(path=path, drawn=drawn, k=k):
            with Ledger(made(name)[1].plan, path) as ledger:
                peer = peer_of(name, ledger)
                Death(path, drawn, k, power)
                peer.wake()

        code = ended(forked(live))
        with Ledger(made(name)[1].plan, path) as ledger:
            keys = len(drawn.read_bytes()) if drawn.exists() else 0
            calls.append((ledger.releases, keys))
            assert ledger.releases >= keys, f"noise was drawn that was not paid for, by death at call {k}"
            peer = peer_of(name, ledger)
            while not ledger.exhausted:
                keys += bool(peer.wake())
            assert keys <= RELEASES
            with pytest.raises(BudgetError):
                ledger.debit()
        if code == 0:
            break
        assert code == Death.CODE
    assert code == 0  # it came to the end
    assert {(0, 0), (1, 0), (1, 1)} <= set(calls)  # before the debit, between it and the noise, and after
