"""A group on disk, whose peers run in memory by a clock of their own: what tests of the life of a group are about."""

from __future__ import annotations

import io
import json
import time
from datetime import UTC, datetime, timedelta

import numpy as np

from coterie.peers.app.metrics import Log
from coterie.peers.group.amendments import accept, amend
from coterie.peers.group.charter import charter_in
from coterie.peers.group.groups import create, enroll, load_group, membership
from coterie.peers.group.identity import read_certificate
from coterie.peers.group.renewal import update
from coterie.peers.model.tables import work_of
from coterie.peers.model.work import method_of
from coterie.peers.node.mailbox import NOBODY
from coterie.peers.node.node import Node
from coterie.peers.node.past import start_from_past
from coterie.peers.node.program import Program
from coterie.peers.node.state import FileStore
from coterie.peers.transport.memory import Exchange, Memory
from coterie.privacy import Ledger

FIELDS = {
    "features": ["x0", "x1", "x2"],
    "target": "y",
    "loss": "squared",
    "objective": "personalized",
    "method": "cd",
    "ridge": 0.1,
    "max_rows": 50,
    "messages_per_second": 1e6,
}


def snapshot(folder):
    """What is in the files of a folder and of those in it."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


class Club:
    """Folders of an admin and of some members, in a ring; :meth:`start` runs them."""

    def __init__(self, folder, names=("ann", "bob", "cat"), **fields):
        self.root, self.group, self.names = folder, folder / "club", list(names)
        create(self.group, **FIELDS | fields)
        for k, name in enumerate(self.names):
            enroll(self.group, folder / name, name, edges={self.names[k - 1]: 1.0} if k else {})
        self.charter = load_group(self.group).charter
        self.exchange = Exchange(by_hand=True)
        self.now, self.days = 0.0, 0.0
        self.programs, self.logs = {}, {}

    def moment(self):
        """Seconds since 1970, in these arrays."""
        return time.time() + self.now + 86400.0 * self.days

    @property
    def today(self):
        return datetime.fromtimestamp(self.moment(), UTC)

    def rows(self, name, features=3):
        rng = np.random.default_rng(sorted(name.encode()))
        X = rng.normal(size=(12, features))
        return X, X @ np.arange(1.0, features + 1.0) + 0.1 * rng.normal(size=12)

    def node(self, name):
        """A member's node, from its folder."""
        folder = self.root / name
        charter = charter_in(folder)
        joined = membership(folder)
        X, y = self.rows(name, len(charter.features))
        X = X if charter.center is None else X - charter.center
        X = X if charter.scale is None else X / charter.scale
        X = np.column_stack([X, np.ones(len(X))]) if charter.intercept else X
        method = method_of(charter)
        ledger = None if method.plan is None else Ledger(method.plan, folder / "ledger")
        rng = np.random.default_rng([1, *name.encode()])
        node = Node(
            charter,
            (folder / "roster").read_bytes(),
            joined.me.address,
            method,
            work_of(charter, X, y),
            joined.identity.sign,
            FileStore(folder / "state"),
            ledger=ledger,
            random=rng.bytes,
            dice=None if ledger is not None else rng.random,
        )
        self.words = start_from_past(folder, node)
        return node

    def amend(self, *names, **changes):
        """The admin proposes another charter, and these members accept it: what the last of them is told."""
        amend(self.group, **changes)
        for name in names:
            update(self.root / name, self.group)
            done = accept(self.root / name)
        return done

    def start(self, *names, **more):
        for name in names or self.names:
            node, log = self.node(name), io.StringIO()
            transport = Memory(self.exchange, name, node.address)
            transport.reloads = 0
            transport.reload = lambda t=transport: setattr(t, "reloads", t.reloads + 1)
            program = Program(node, transport, self.root / name, Log(log), clock=lambda: self.now, **more)
            program.maintenance._moment = self.moment
            self.programs[name], self.logs[name] = program, log
            transport.open(program._deliver, roster=lambda signed, p=program: p._deliver(NOBODY, signed))
            program._link()
            program._send(node.open(self.now))
            program._chronicle.start()
        return self

    def stop(self, *names):
        for name in names or list(self.programs):
            program = self.programs.pop(name)
            program._send(program.node.close())
            program._write_model()
            program.transport.close()
            if program.node.ledger is not None:
                program.node.ledger.close()
        return self

    def run(self, seconds):
        """Let time pass."""
        until = self.now + seconds
        while self.now < until:
            self.now += 0.25
            for program in list(self.programs.values()):
                program._housekeeping(self.now)
                if self.now >= program.node.next_time:
                    program._send(program.node.tick(self.now))
            self.deliver()
        return self

    def run_until(self, holds, seconds=120.0):
        until = self.now + seconds
        while not holds():
            assert self.now < until, f"still not so after {seconds:g} seconds"
            self.run(1.0)
        return self

    def deliver(self):
        while len(self.exchange):
            self.exchange.run()
            for program in self.programs.values():
                for item in program.inbox.take():
                    program._receive(self.now, *item)

    def events(self, name):
        return [json.loads(line) for line in self.logs[name].getvalue().splitlines()]

    def expires(self, name):
        return read_certificate((self.root / name / "tls.crt").read_bytes()).not_valid_after_utc

    def pass_days(self, days):
        self.days += days
        return timedelta(days=days)
