"""A few peers with their keys, rows and edges, in memory: what the tests of this folder are about."""

from __future__ import annotations

from collections import deque

import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from coterie.core.arrays import EVERYONE
from coterie.engines.wire import write_numbers
from coterie.peers.group.charter import make_charter
from coterie.peers.group.roster import Member, Roster, sign_roster
from coterie.peers.model.tables import work_of
from coterie.peers.model.work import method_of
from coterie.peers.node.node import Node
from coterie.peers.wire.packet import VERSION, Packet, write_packet
from coterie.privacy import Ledger

P = 3


class MemoryStore:
    """A state in memory."""

    def __init__(self):
        self._content = None

    def load(self):
        return self._content

    def save(self, content):
        self._content = content


#: A ring with a chord.
EDGES = [(0, 1, 1.0), (1, 2, 0.5), (2, 3, 2.0), (0, 3, 0.7), (0, 2, 1.5)]

BOOSTING = {
    "method": "boosting",
    "objective": "boosting",
    "loss": "adaboost",
    "labels": ["-1", "1"],
    "settings": {"stumps": 6, "beta": 2.0, "low": -2.0, "high": 2.0},
}
#: Every method that a charter may state, in its words.
WORDS = {
    "cd": {},
    "propagation": {"method": "propagation", "objective": "propagation"},
    "admm": {"method": "admm", "objective": "collaborative"},
    "djam": {"method": "djam"},
    "boosting": BOOSTING,
    "gossip-pooling": {"method": "gossip-pooling"},
    "resilient-pooling": {"method": "resilient-pooling"},
    "learned": {"learned": {"kappa": 2, "every": 2.0}},
    "learned boosting": BOOSTING | {"learned": {"kappa": 2, "every": 2.0}},
    "private": {"privacy": {"epsilon": 2.0, "wakes_per_agent": 4}},
    "published": {"method": "propagation", "privacy": {"epsilon": 2.0}},
    "pooled in private": {"method": "gossip-pooling", "privacy": {"epsilon": 2.0}},
    "trimmed": {"trim": 0.2},
} | {
    method: {
        "method": method,
        "objective": "differentiable",
        "network": {"hidden": 4} | roles,
        "settings": {"rate": 0.05, "steps": 2, "batch": batch},
    }
    for method, roles, batch in (
        ("dpsgd", {"personal": ["head"]}, 3),
        ("local-sgd", {"personal": ["body.bias"], "seed": 1}, 0),
        ("tied-sgd", {}, 3),
    )
}


def key_of(number):
    """A member's key: always the same one."""
    return Ed25519PrivateKey.from_private_bytes(number.to_bytes(32, "little"))


def public(number):
    return key_of(number).public_key().public_bytes_raw()


ADMIN = 10_000


def charter_of(**words):
    given = {
        "title": "small group",
        "features": [f"x{k}" for k in range(P)],
        "target": "y",
        "labels": None,
        "intercept": False,
        "loss": "squared",
        "ridge": 0.1,
        "objective": "personalized",
        "max_rows": 20,
        "radius": 100.0,
        "messages_per_second": 1e6,
        "trim": 0.0,
        "admin": public(ADMIN),
    }
    if words.get("method", "").endswith("pooling"):
        given["objective"] = "pooling"
    return make_charter(**given | words)


def rows_of(charter, sizes, seed=0):
    """Features and targets of members with so many rows."""
    rng = np.random.default_rng(seed)
    targets = rng.normal(size=P) + 0.3 * rng.normal(size=(len(sizes), P))
    X = [rng.normal(size=(m, P)) for m in sizes]
    y = [x @ t + 0.1 * rng.normal(size=len(x)) for x, t in zip(X, targets, strict=True)]
    return X, y if charter.labels is None else [np.where(values >= 0, 1.0, -1.0) for values in y]


class SmallGroup:
    """Members whose messages arrive at once, in the order in which they were sent.

    What was delivered is in ``mail``: (from, to, data). In place of words there may be a charter, with works.
    """

    def __init__(self, words="cd", sizes=(4, 6, 3, 5), edges=EDGES, seed=0, work=None, **more):
        if work is None:
            words = charter_of(**(WORDS[words] if isinstance(words, str) else words) | more)
            self.X, self.y = rows_of(words, sizes, seed)
            work = [work_of(words, x, y) for x, y in zip(self.X, self.y, strict=True)]
        self.charter, self.method, self.work = words, method_of(words), work
        self.edges, self.version, self.present = list(edges), 1, set(range(len(sizes)))
        self.lists = []  # of members, one after the other
        self.signed = self.roster()
        self.stores = [MemoryStore() for _ in sizes]
        self.ledgers = [Ledger(self.method.plan) if self.charter.privacy else None for _ in sizes]
        self._streams = [np.random.default_rng([seed, i]) for i in range(len(sizes))]
        self.nodes = {}
        self.now = 0.0
        self.mail, self.queue = [], deque()

    def roster(self):
        members = [Member(f"m{i}", i, public(i)) for i in sorted(self.present)]
        edges = [edge for edge in self.edges if set(edge[:2]) <= self.present]
        last, new = self.lists[-1:], Roster(self.charter.run, self.version, members, edges)
        self.lists.append(new.after(last[0]) if last and last[0].version < new.version else new)
        return sign_roster(self.lists[-1], key_of(ADMIN))

    def change(self, *, add=(), drop=()):
        """The admin signs another roster."""
        self.present = (self.present | set(add)) - set(drop)
        self.version += 1
        self.signed = self.roster()
        return self.signed

    def make(self, i, **more):
        """A member as it begins, or begins again: with what its store has."""
        stream = self._streams[i]
        given = {"ledger": self.ledgers[i], "random": stream.bytes, "dice": stream.random} | more
        store = given.pop("store", self.stores[i])
        return Node(self.charter, self.signed, i, self.method, self.work[i], key_of(i).sign, store, **given)

    def start(self, *members, **more):
        """Begin, and let everybody say hello."""
        members = members or sorted(self.present)
        for i in members:
            self.nodes[i] = self.make(i, **more)
        for i in members:
            self.send(i, self.nodes[i].open(self.now))
        self.settle()
        return self

    def crash(self, i):
        return self.nodes.pop(i)

    def send(self, i, sends):
        for send in sends:
            goals = self.nodes[i].edges if send.to == EVERYONE else [send.to]
            self.queue.extend((i, j, send) for j in goals)

    def settle(self):
        """Deliver everything, and what comes of it."""
        while self.queue:
            i, j, send = self.queue.popleft()
            if send.roster:
                if j in self.nodes:
                    self.send(j, self.nodes[j].take_roster(self.now, send.data))
                continue
            self.mail.append((i, j, send.data))
            if j in self.nodes:
                self.send(j, self.nodes[j].receive(self.now, i, send.data))

    def run(self, seconds):
        """Let time pass."""
        until = self.now + seconds
        while self.nodes:
            i = min(self.nodes, key=lambda i: self.nodes[i].next_time)
            at = self.nodes[i].next_time
            if at > until:
                break
            self.now = max(self.now, at)
            self.send(i, self.nodes[i].tick(self.now))
            self.settle()
        self.now = until
        return self

    def run_until(self, holds, seconds, step=10.0):
        """Let time pass until something holds, which must not take longer."""
        until = self.now + seconds
        while not holds():
            assert self.now < until, f"still not so after {seconds:g} seconds"
            self.run(step)
        return self

    def packet(self, i, to, kind=0, content=b"", sign=None, **fields):
        """A packet that member i signs, with its next number; fields of the header may be others."""
        node = self.nodes.get(i)
        if node is not None:
            node.fresh.sequence += 1
        session, sequence = (1, 1) if node is None else (node.fresh.session, node.fresh.sequence)
        run = bytes.fromhex(self.charter.run)
        given = {"version": VERSION, "run": run, "sender": i, "to": to, "session": session, "sequence": sequence}
        packet = Packet(**given | {"largest": 0} | fields, kind=kind, content=content)
        return write_packet(packet, key_of(i if sign is None else sign).sign)

    def offered(self, i, j, kind, text, **fields):
        """What comes of numbers that member i sends to j: the reason why they are refused, or None."""
        node = self.nodes[j]
        before, taken = node.mail.gate.refused.copy(), node.mail.received["messages"]
        node.receive(self.now, i, self.packet(i, j, kind, write_numbers(np.asarray(text, float)), **fields))
        reasons = list(node.mail.gate.refused - before)
        assert (node.mail.received["messages"] - taken) + len(reasons) == 1
        return reasons[0] if reasons else None

    @property
    def theta(self):
        return np.array([self.nodes[i].theta for i in sorted(self.nodes)])
