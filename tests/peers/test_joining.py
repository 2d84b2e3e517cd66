"""Whole peers over TLS in this process: who joins later is heard of, who was removed is told, strangers are logged."""

import contextlib
import io
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time

import numpy as np
import pytest

pytest.importorskip("nacl")
pytest.importorskip("cryptography")

from tls_people import eventually, free_endpoint

from coterie.errors import RemovedError
from coterie.peers.app.metrics import Log
from coterie.peers.group import groups
from coterie.peers.group.identity import Identity, split_endpoint
from coterie.peers.model.tables import work_of
from coterie.peers.model.work import method_of
from coterie.peers.node import program
from coterie.peers.node.node import Node
from coterie.peers.node.program import Program
from coterie.peers.node.state import FileStore
from coterie.peers.transport.over_tls import TlsTransport

pytestmark = pytest.mark.plain


class Running:
    """A peer in a thread."""

    def __init__(self, folder):
        joined = groups.membership(folder)
        charter, me = joined.charter, joined.me
        rng = np.random.default_rng(me.address)
        X = rng.normal(size=(8, 2))
        work, signed = work_of(charter, X, X.sum(axis=1)), (folder / "roster").read_bytes()
        store, method = FileStore(folder / "state"), method_of(charter)
        self.node = Node(charter, signed, me.address, method, work, joined.identity.sign, store, random=os.urandom)
        listen, more = joined.identity.listen, {"seed": joined.identity.seed, "relays": joined.roster.relays}
        self.transport = TlsTransport(charter.run, me.name, me.address, listen, folder, **more)
        self.said = io.StringIO()
        self.program = Program(self.node, self.transport, folder, Log(self.said))
        self.thread = threading.Thread(target=self._run)
        self.thread.start()

    def _run(self):
        with contextlib.suppress(RemovedError):
            self.program.run()

    def events(self, what):
        return [line for line in map(json.loads, self.said.getvalue().splitlines()) if line["event"] == what]

    def close(self):
        self.program.stop()
        self.thread.join()


@pytest.fixture
def club(tmp_path, closing):
    """A group with ann and bob in it: ``club.run(name)`` starts one, ``club.add(name)`` makes another."""

    class Club:
        folder = tmp_path / "club"
        run = staticmethod(lambda name: closing(Running(tmp_path / name)))

        def add(self, name, edges=(), listen=True):
            new = groups.Newcomer(tmp_path / name, name, free_endpoint() if listen else None, dict.fromkeys(edges, 1.0))
            groups.enroll_all(self.folder, [new], durable=False)

    groups.create(tmp_path / "club", features=["a", "b"], target="y", objective="personalized", rate=10.0)
    found = Club()
    found.add("ann")
    found.add("bob", ["ann"])
    groups.refresh(tmp_path / "ann", tmp_path / "club" / "roster")
    return found


@pytest.fixture
def relay(club, tmp_path):
    """The identity of a relay, its program, and the file of what it says."""
    hub, said = Identity.make(tmp_path / "hub", "hub", free_endpoint()), tmp_path / "said"
    groups.join(hub.folder, groups.invite(club.folder, groups.request(hub.folder), relay=True))
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "COTERIE_PLAIN": "1"}
    with said.open("w") as log:
        process = subprocess.Popen([sys.executable, "-m", "coterie", "relay", hub.folder], stderr=log, env=environment)
    yield hub, process, said
    process.send_signal(signal.SIGTERM)
    process.wait(20)


def test_who_joins_later_brings_the_list_and_nobody_else_is_disturbed(club, tmp_path):
    ann, bob = club.run("ann"), club.run("bob")
    began = time.monotonic()
    assert eventually(lambda: ann.node.fresh.proven == {1} and bob.node.fresh.proven == {0})
    assert time.monotonic() - began < 5.0
    for name in ("cat", "dan", "eve"):
        club.add(name, ["ann", "bob"])
        began = time.monotonic()
        new = club.run(name)  # the others know nothing of it
        assert eventually(lambda new=new: new.node.fresh.proven == {0, 1})
        assert time.monotonic() - began < 5.0
    assert eventually(lambda: {2, 3, 4} <= ann.node.fresh.proven)
    assert ann.node.group.roster.version == bob.node.group.roster.version
    for one in (ann, bob):
        assert not one.events("disconnected")
        ends = {reason for reason in one.transport.counts if reason.startswith("ended")}
        assert ends <= {"ended: double"}


@pytest.mark.slow
@pytest.mark.parametrize("listens", [True, False])
def test_who_was_removed_while_it_was_away_is_told_when_it_comes_back(club, tmp_path, listens):
    club.add("cat", ["ann"], listen=listens)
    groups.refresh(tmp_path / "ann", club.folder / "roster")
    ann = club.run("ann")
    groups.remove(club.folder, "cat")
    groups.refresh(tmp_path / "ann", club.folder / "roster")
    assert eventually(lambda: 2 not in ann.node.group.keys)
    cat = club.run("cat")
    cat.thread.join(10)
    assert not cat.thread.is_alive()
    assert cat.events("removed")


def test_strangers_are_logged_with_their_source(club, monkeypatch):
    monkeypatch.setattr(program, "SUMMARY_EVERY", 0.2)
    ann = club.run("ann")
    assert eventually(lambda: ann.events("started"))
    for _ in range(30):
        with socket.create_connection(split_endpoint(ann.transport.contact.endpoint)) as one:
            one.sendall(b"noise")
    expected = {"127.0.0.1": {"not TLS": 30}}
    assert eventually(lambda: [line for line in ann.events("strangers") if line["busiest"] == expected])


@pytest.mark.slow
def test_two_that_nobody_can_dial_learn_through_a_relay(club, tmp_path, relay):
    """The relay's program knows neither of them when it starts: the first who comes brings the roster."""
    hub, process, said = relay
    club.add("cat", listen=False)
    club.add("dan", ["cat"], listen=False)
    groups.refresh(tmp_path / "cat", club.folder / "roster")
    cat, dan = club.run("cat"), club.run("dan")
    assert eventually(lambda: cat.node.fresh.proven == {3} and dan.node.fresh.proven == {2}, patience=60)
    assert eventually(lambda: min(one.node.mail.received["messages"] for one in (cat, dan)) > 5)

    def status():
        path = hub.folder / "status.json"
        return json.loads(path.read_text()) if path.exists() else {"connected": [], "transport": {}}

    assert eventually(lambda: status()["connected"] == ["cat", "dan"])
    assert eventually(lambda: status()["transport"].get("forwarded", 0) > 10)
    process.send_signal(signal.SIGTERM)
    process.wait(20)
    assert said.read_text().count("members") == 1


@pytest.mark.slow
def test_a_relay_goes_on_with_a_full_disk_and_a_broken_certificate(relay):
    hub, process, said = relay
    assert eventually(lambda: (hub.folder / "status.json").exists())
    (hub.folder / "status.json").unlink()
    (hub.folder / "status.json").mkdir()  # nothing can be written there
    good = (hub.folder / "tls.crt").read_bytes()
    (hub.folder / "tls.crt").write_bytes(b"nothing of the kind")
    complaints = ("cannot be used for TLS", "status.json")
    assert eventually(lambda: all(words in said.read_text() for words in complaints))
    assert process.poll() is None
    (hub.folder / "tls.crt").write_bytes(good)
    (hub.folder / "status.json").rmdir()
    assert eventually(lambda: (hub.folder / "status.json").is_file())
