"""A deterministic simulator of faults: real peers' code in a world where everything goes wrong, from one seed.

Letters are late, lost, doubled and out of order; the network falls apart and comes together; peers crash in the
middle of what they do, with what they have saved and nothing else; disks refuse to write; clocks are wrong and run at
different speeds; members join and leave; and an adversary replays what it has seen, mutates it, and sends what no
honest peer would. Then the faults stop, and the models must come to the exact optimum.

    python -m coterie.testing.chaos --seeds 1000        (make chaos SEEDS=1000)
    python -m coterie.testing.chaos --seed 17           one seed again, exactly

Always, whatever happens: no peer uses a number of a letter twice; nothing that fails a check reaches a method, and no
letter reaches it twice; no budget is exceeded, and no release is made twice with other noise; a restarted peer goes on
from what it had saved.
"""

from __future__ import annotations

import argparse
import heapq
import itertools
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import partial
from typing import Any, NamedTuple

import msgspec
import numpy as np
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from ..core.world import EVERYONE
from ..data import AgentData
from ..engines.wire import encode, read_numbers, write_numbers
from ..errors import ContractError, StateError
from ..graphs import Graph
from ..peers.agreement import Charter, Member, Roster, sign_roster
from ..peers.node import Node, Send
from ..peers.packet import SIGNATURE, VERSION, Packet, read_packet, write_packet
from ..peers.state import read_record, theta_path, unpack
from ..peers.tables import problem_of, work_of
from ..peers.work import method_of
from ..privacy import Ledger

#: What the peers do, by turns: the charter's words for it, and how near the optimum they must come.
TASKS: dict[str, tuple[dict[str, Any], float]] = {
    "cd": ({"method": "cd", "objective": "personalized"}, 1e-8),
    "djam": ({"method": "djam", "objective": "personalized", "confidence": "gossip"}, 1e-8),
    "admm": ({"method": "admm", "objective": "collaborative", "settings": {"rho": 1.0}}, 1e-7),
    "propagation": ({"method": "propagation", "objective": "propagation"}, 1e-8),
    "boosting": (
        {
            "method": "boosting",
            "objective": "boosting",
            "settings": {"stumps": 6, "beta": 2.0, "low": -2.0, "high": 2.0},
        },
        3e-2,
    ),
    "learned": ({"method": "cd", "objective": "personalized", "learned": {"kappa": 2, "every": 4.0}}, 1e-6),
    "private": (
        {"method": "cd", "objective": "personalized", "privacy": {"epsilon": 2.0, "wakes_per_agent": 4}},
        np.inf,
    ),
    "published": ({"method": "propagation", "objective": "personalized", "privacy": {"epsilon": 2.0}}, np.inf),
}
FEATURES = 3
#: Seconds, at one wake a second: how long the faults last, and how long it may take from then on.
STORM, CALM = 40.0, 4000.0
#: And how long what private peers have published may take to reach all their neighbours.
HUSH = 400.0
#: How often it is looked whether the models have come to the optimum.
LOOK = 40.0


class Weather(NamedTuple):
    """How bad it is."""

    latency: float
    loss: float
    duplication: float
    crash: float  # rate, for each peer
    split: float  # rate
    disk: float  # probability that a save fails
    hostile: float  # rate
    skew: float  # clocks run up to so much faster or slower, and are wrong by any amount

    @classmethod
    def draw(cls, rng: np.random.Generator) -> Weather:
        """Some faults, in any combination."""
        often = rng.random(8) < 0.7
        worst = (2.0, 0.4, 0.3, 0.05, 0.05, 0.1, 2.0, 0.2)
        return cls(*(float(on * rng.random() * most) for on, most in zip(often, worst, strict=True)))


class Disk:
    """A disk that may refuse to write, and keeps what it has when its peer crashes."""

    def __init__(self, fails: Callable[[], bool]):
        self.content: bytes | None = None
        self._fails = fails

    def load(self) -> bytes | None:
        """The last content saved."""
        return self.content

    def save(self, content: bytes) -> None:
        """Save, or not."""
        if self._fails():
            raise OSError("no space left on device")
        self.content = content


class Report(NamedTuple):
    """What came of a seed."""

    seed: int
    task: str
    peers: int
    weather: Weather
    letters: int
    refused: dict[str, int]
    crashes: int
    seconds: float  # simulated, from the end of the faults to the optimum
    gap: float


class Chaos:
    """Peers, and everything that goes wrong around them.

    Parameters
    ----------
    seed : int
    task : str, optional
        A key of :data:`TASKS`. Default: drawn.
    peers : int, optional
        Default: drawn, a few; now and then, more than a hundred.
    """

    def __init__(self, seed: int, task: str | None = None, peers: int | None = None):
        self.seed = seed
        self.rng = np.random.default_rng([seed, 7])
        self.task = task or list(TASKS)[seed % len(TASKS)]
        drawn = int(self.rng.integers(3, 11)) if seed % 97 else int(self.rng.integers(100, 200))
        self.n = peers or drawn
        self.weather = Weather.draw(self.rng)
        self.charter, self.accuracy = self._charter()
        self._keys = [Ed25519PrivateKey.from_private_bytes(self.rng.bytes(32)) for _ in range(self.n)]
        self._make_data()
        self.method = method_of(self.charter)
        self._p = work_of(self.charter, self.X[0], self.y[0]).p
        self.storm = True
        self.now = 0.0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count()
        self._seen: list[tuple[int, int, bytes]] = []  # what the adversary has recorded: from, to, data
        self._side = np.zeros(self.n, int)  # of the partition
        self._last: dict[int, tuple[int, int]] = {}
        self._taken: list[set[tuple[int, tuple[int, int]]]] = [set() for _ in range(self.n)]
        self._ticking = [0] * self.n
        self._kept: list[set[bytes]] = [set() for _ in range(self.n)]
        self.letters = self.crashes = 0
        self.refused: dict[str, int] = {}
        self._begin()

    # -- what they work on --------------------------------------------------------------------------------------------

    def _charter(self) -> tuple[Charter, float]:
        words, accuracy = TASKS[self.task]
        steward = Ed25519PrivateKey.from_private_bytes(self.rng.bytes(32))
        self._steward = steward
        boosting = words["objective"] == "boosting"
        charter = Charter(
            title=f"chaos {self.seed}",
            features=[f"x{k}" for k in range(FEATURES)],
            target="y",
            labels=["-1", "1"] if boosting else None,
            intercept=False,
            loss="squared",
            ridge=0.1,
            max_rows=20,
            radius=100.0,
            steward=steward.public_key().public_bytes_raw(),
            **words,
        )
        return charter, accuracy

    def _make_data(self) -> None:
        rng, n = self.rng, self.n
        sizes = rng.integers(1, 11, n)
        targets = rng.normal(size=(1, FEATURES)) + 0.3 * rng.normal(size=(n, FEATURES))
        self.X = [rng.normal(size=(m, FEATURES)) for m in sizes]
        self.y = [x @ t + 0.1 * rng.normal(size=len(x)) for x, t in zip(self.X, targets, strict=True)]
        if self.charter.labels is not None:
            self.y = [np.where(y >= 0, 1.0, -1.0) for y in self.y]
        ties = {(i, int(rng.integers(i))): 0.0 for i in range(1, n)}  # connected
        ties |= {tuple(sorted(rng.choice(n, 2, replace=False), reverse=True)): 0.0 for _ in range(n)}
        self.ties = [(int(b), int(a), float(rng.uniform(0.5, 2.0))) for a, b in ties]
        # Some join late, and some leave early; enough stay.
        some = rng.permutation(n)[: n // 4 if rng.random() < 0.5 else 0]
        self.late = {int(i): float(rng.uniform(5.0, 0.7 * STORM)) for i in some[::2]}
        self.early = {int(i): float(rng.uniform(5.0, 0.7 * STORM)) for i in some[1::2]}
        self.present = set(range(n)) - set(self.late)
        self.version = 1

    def _roster(self) -> bytes:
        members = [
            Member(name=f"m{i}", address=i, key=self._keys[i].public_key().public_bytes_raw(), endpoint=None)
            for i in sorted(self.present)
        ]
        ties = [tie for tie in self.ties if tie[0] in self.present and tie[1] in self.present]
        roster = Roster(run=self.charter.run, version=self.version, members=members, ties=ties, relays=[])
        return sign_roster(roster, self._steward)

    # -- life and death -----------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        rng, skew = self.rng, self.weather.skew
        self.nodes: list[Node | None] = [None] * self.n
        self._streams = [np.random.default_rng([self.seed, 11, i]) for i in range(self.n)]
        self._speed = 1.0 + skew * rng.uniform(-1, 1, self.n)
        self._offset = rng.uniform(-1e6, 1e6, self.n) if skew else np.zeros(self.n)
        self.disks = [Disk(lambda: self.storm and self.rng.random() < self.weather.disk) for _ in range(self.n)]
        private = self.charter.privacy is not None
        self.ledgers = [Ledger(self.method.plan) if private else None for _ in range(self.n)]
        self.signed = self._roster()
        for i in sorted(self.present):
            self.start(i)
        for i, at in self.late.items():
            self._at(at, partial(self._join, i))
        for i, at in self.early.items():
            self._at(at, partial(self._leave, i))
        for rate, what in (
            (self.weather.crash * self.n, self._crash),
            (self.weather.split, self._split),
            (self.weather.hostile, self._attack),
        ):
            for at in self._times(rate):
                self._at(at, what)

    def _times(self, rate: float) -> Iterator[float]:
        at = 0.0
        while rate > 0.0 and (at := at + self.rng.exponential(1.0 / rate)) < STORM:
            yield at

    def clock(self, i: int) -> float:
        """Time as a peer's own clock has it."""
        return float(self._offset[i] + self._speed[i] * self.now)

    def start(self, i: int) -> None:
        """Start a peer, with what is on its disk."""
        if self.nodes[i] is not None or i not in self.present:
            return
        stream, before = self._streams[i], self.disks[i].content
        work = work_of(self.charter, self.X[i], self.y[i])
        node = Node(
            self.charter, self.signed, i, self.method, work, self._keys[i].sign, self.disks[i],
            ledger=self.ledgers[i], random=stream.bytes, dice=stream.random,
        )  # fmt: skip
        if before is not None:
            record = read_record(before)
            kept = unpack(record.arrays, f"own.{theta_path(node.peer.own)}")[0]
            self.demand(np.array_equal(node.theta, kept), f"peer {i} does not go on from the model it had saved")
            self.demand(node.boot > record.boot, f"peer {i} uses boot {node.boot} again")
        try:
            sends = node.open(self.clock(i))
        except StateError:  # it could not write down that it begins: so it does not
            self._at(self.now + 1.0, lambda: self.start(i))
            return
        self.nodes[i] = node
        self._send(i, sends)
        self._schedule(i)

    def _schedule(self, i: int) -> None:
        node = self.nodes[i]
        if node is None:
            return
        self._ticking[i] += 1
        at = (node.next_time - self._offset[i]) / self._speed[i]
        self._at(max(self.now, at), partial(self._tick, i, self._ticking[i]))

    def _tick(self, i: int, turn: int) -> None:
        node = self.nodes[i]
        if node is None or turn != self._ticking[i]:
            return
        self._send(i, node.tick(max(self.clock(i), node.next_time)))
        self._schedule(i)

    def _crash(self) -> None:
        self.crash(int(self.rng.integers(self.n)))

    def crash(self, i: int) -> None:
        """Kill -9: nothing is left but what is on disk. It is started again some time later."""
        node = self.nodes[i]
        if node is None:
            return
        self.crashes += 1
        self._close_books(node)
        self.nodes[i] = None
        self._at(self.now + self.rng.exponential(3.0), lambda: self.start(i))

    def _close_books(self, node: Node) -> None:
        for reason, count in node.gate.refused.items():
            self.refused[reason] = self.refused.get(reason, 0) + count

    def _join(self, i: int) -> None:
        self.present.add(i)
        self.version += 1
        self.signed = self._roster()
        self.start(i)

    def _leave(self, i: int) -> None:
        node = self.nodes[i]
        if node is None:
            self._at(self.now + 1.0, lambda: self._leave(i))
            return
        self._send(i, node.close(leave=True))
        self._close_books(node)
        self.nodes[i] = None
        self.present.discard(i)
        self.version += 1
        self.signed = self._roster()
        told = int(self.rng.choice(sorted(self.present)))  # the steward tells one of them, who tells the others
        self._at(self.now + 1.0, lambda: self._tell(told))

    def _tell(self, i: int) -> None:
        node = self.nodes[i]
        if node is None:
            self._at(self.now + 1.0, lambda: self._tell(i))
        else:
            self._send(i, node.take_roster(self.clock(i), self.signed))
            self._schedule(i)

    def _split(self) -> None:
        self._side = self.rng.integers(2, size=self.n)
        self._at(self.now + self.rng.exponential(5.0), self._heal)

    def _heal(self) -> None:
        self._side = np.zeros(self.n, int)

    # -- the mail -----------------------------------------------------------------------------------------------------

    def _at(self, when: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._events, (when, next(self._count), what))

    def _send(self, i: int, sends: list[Send]) -> None:
        node = self.nodes[i]
        for send in sends:
            if not send.roster:
                self._watch(i, send.data)
            goals = list(node.ties) if send.to == EVERYONE and node is not None else [send.to]
            for j in goals:
                if 0 <= j < self.n:
                    self.letters += 1
                    self._seen.append((i, j, send.data))
                    self._carry(i, j, send)
        if len(self._seen) > 5000:
            del self._seen[:2500]

    def _watch(self, i: int, data: bytes) -> None:
        """What a peer sends carries a number that it has never used; and a release is made once."""
        packet, last = read_packet(data)[0], self._last.get(i)
        self.demand(last is None or packet.number > last, f"peer {i} sends number {packet.number} after {last}")
        self._last[i] = packet.number
        ledger = self.ledgers[i]
        if ledger is not None:
            self.demand(ledger.releases <= self.method.plan.steps, f"peer {i} has made {ledger.releases} releases")
            if self.task == "private" and packet.kind >= 0:
                # Descent publishes its model and nothing else: where it began, and one for each release.
                self._kept[i] |= set(ledger.kept)
                text = read_numbers(packet.content)
                known = not text.any() or encode(i, packet.kind, text) in self._kept[i]
                self.demand(known, f"peer {i} publishes a model that is of no release")
                self.demand(len(self._kept[i]) <= ledger.releases, f"peer {i} has made a release twice")

    def _carry(self, i: int, j: int, send: Send) -> None:
        rng, w = self.rng, self.weather
        if self.storm and (self._side[i] != self._side[j] or rng.random() < w.loss):
            return
        copies = 2 if self.storm and rng.random() < w.duplication else 1
        for _ in range(copies):
            wait = rng.exponential(w.latency) if self.storm and w.latency else 1e-3 * rng.random()
            self._at(self.now + wait, lambda: self._deliver(i, j, send, honest=True))

    def _deliver(self, i: int, j: int, send: Send, honest: bool) -> None:
        node = self.nodes[j]
        if node is None:
            return
        if send.roster:
            self._send(j, node.take_roster(self.clock(j), send.data))
            self._schedule(j)
            return
        before = node.received["letters"]
        sends = node.receive(self.clock(j), i, send.data)
        if node.received["letters"] > before:
            self.demand(honest, f"a hostile letter by the key of {i} reached the method of {j}")
            packet = read_packet(send.data)[0]
            mark = (packet.sender, packet.number)
            self.demand(mark not in self._taken[j], f"letter {mark} reached the method of {j} twice")
            self._taken[j].add(mark)
        self.demand(bool(np.all(np.isfinite(node.theta))), f"the model of {j} is not finite")
        self._send(j, sends)
        self._schedule(j)

    # -- the adversary ------------------------------------------------------------------------------------------------

    def _attack(self) -> None:
        rng = self.rng
        if not self._seen:
            return
        i, j, data = self._seen[int(rng.integers(len(self._seen)))]
        match int(rng.integers(7)):
            case 0:  # again, to the same one or to another
                to = j if rng.random() < 0.5 else int(rng.integers(self.n))
                self._replay(i, to, data)
                return
            case 1:  # with some bytes changed
                broken = bytearray(data)
                for _ in range(int(rng.integers(1, 4))):
                    broken[int(rng.integers(len(broken)))] ^= int(rng.integers(1, 256))
                self._offer(i, j, bytes(broken))
            case 2:  # cut off, or with something added
                cut = int(rng.integers(len(data)))
                self._offer(i, j, data[:cut] if rng.random() < 0.5 else data + bytes(rng.bytes(cut)))
            case 3:  # under another's name
                other = int(rng.integers(self.n))
                if other != i:
                    self._offer(other, j, data)
            case 4:  # nothing at all like a letter
                self._offer(i, j, bytes(rng.bytes(int(rng.integers(300)))))
            case 5:  # for another run
                self._offer(i, j, self._forged(i, j, run=bytes(rng.bytes(16)), text=np.zeros(FEATURES)))
            case _:  # from a member that has turned hostile: signed, new, and with numbers that must not pass
                bad = rng.choice([np.nan, np.inf, -np.inf, 1e6, 1e300])
                lengths = self.method.lengths(self._p)
                kind = int(rng.integers(len(lengths) + 1))
                length = int(rng.choice([1, 5, 40]))
                if kind < len(lengths) and rng.random() < 0.8:
                    length = lengths[kind][-1] if isinstance(lengths[kind], range) else lengths[kind]
                if length:
                    self._offer(i, j, self._forged(i, j, text=np.full(length, bad), kind=kind), own=True)

    def _forged(self, i: int, j: int, text: np.ndarray, kind: int = 0, run: bytes | None = None) -> bytes:
        node, (boot, sequence) = self.nodes[i], self._last.get(i, (1, 1))
        number = boot, sequence + 1
        if run is None and node is not None:  # the member itself: it takes a number, which its next packet must not use
            node.sequence += 1
            number = self._last[i] = node.boot, node.sequence
        run = run or bytes.fromhex(self.charter.run)
        packet = Packet(VERSION, run, i, j, *number, largest=0, kind=kind, content=write_numbers(text))
        return write_packet(packet, self._keys[i].sign)

    def _offer(self, i: int, j: int, data: bytes, own: bool = False) -> None:
        if not own and any(data == seen for _, _, seen in self._seen[-50:]):
            return
        self._deliver(i, j, Send(j, data), honest=False)

    def _replay(self, i: int, j: int, data: bytes) -> None:
        """An old letter: it may be one that its receiver has never seen, which is just a late one."""
        if len(data) > SIGNATURE:
            try:
                packet = read_packet(data)[0]
            except ValueError:
                return  # a roster
            node = self.nodes[j]
            meant = packet.to in (j, EVERYONE)
            self._deliver(i, j, Send(j, data), honest=meant and node is not None)

    # -- the course ---------------------------------------------------------------------------------------------------

    def demand(self, holds: bool, what: str) -> None:
        """An invariant."""
        if not holds:
            raise ContractError(f"seed {self.seed} ({self.task}, {self.n} peers), at {self.now:.3f}: {what}")

    def _advance(self, until: float) -> None:
        while self._events and self._events[0][0] <= until:
            self.now, _, what = heapq.heappop(self._events)
            what()
        self.now = until

    def run(self) -> Report:
        """The storm, the calm after it, and what came of it."""
        self._advance(STORM)
        self.storm = False
        self._heal()
        for i in sorted(self.present):
            self.start(i)
        began, gap = self.now, np.inf
        exact = np.isfinite(self.accuracy)
        while self.now < began + (CALM if exact else HUSH) and not (exact and gap <= self.accuracy):
            self._advance(self.now + LOOK)
            gap = self.gap() if exact else np.inf
        self.demand(gap <= self.accuracy, f"stays {gap:.2e} from the optimum")
        self._check_end()
        for node in self.nodes:
            if node is not None:
                self._close_books(node)
        return Report(
            self.seed, self.task, self.n, self.weather, self.letters, self.refused, self.crashes, self.now - began, gap
        )

    def gap(self) -> float:
        """How far above the optimum the models of those present are, relative."""
        here = sorted(self.present)
        nodes = [node for node in map(self.nodes.__getitem__, here) if node is not None]
        if len(nodes) < len(here) or any(node.roster.version < self.version for node in nodes):
            return np.inf
        place = {i: k for k, i in enumerate(here)}
        W = np.zeros((len(here), len(here)))
        for k, node in enumerate(nodes):
            for j, weight in node.ties.items():
                if j not in place:
                    return np.inf
                W[k, place[j]] = weight
        if not np.array_equal(W, W.T):
            return np.inf  # two ends of a tie do not agree yet
        owner = np.repeat(np.arange(len(here)), [len(self.X[i]) for i in here])
        X, y = (np.concatenate([part[i] for i in here]) for part in (self.X, self.y))
        data = AgentData(X, y, agents=owner, members=range(len(here)))
        problem = problem_of(self.charter, data, Graph(W))
        if self.charter.confidence == "gossip":
            largest = max(node.largest for node in nodes)  # of all that there ever were
            if any(node.largest != largest for node in nodes):
                return np.inf
            problem = problem_of(_with_public(self.charter, largest), data, Graph(W))
        theta = np.array([node.theta for node in nodes])
        best = problem.value(problem.solve())
        return (problem.value(theta) - best) / max(1.0, abs(best))

    def _check_end(self) -> None:
        """Private peers do not come to the optimum; but everybody has heard what was published."""
        if self.charter.privacy is None:
            return
        for i in sorted(self.present):
            node, ledger = self.nodes[i], self.ledgers[i]
            if node is None or ledger is None:
                continue
            self.demand(ledger.releases <= self.method.plan.steps, f"peer {i} has spent {ledger.releases} releases")
            if self.task == "private" and node.ties:
                self.demand(ledger.exhausted, f"peer {i} has made {ledger.releases} releases only")
                for slot, j in enumerate(node.peer.world.peer):
                    other = self.nodes[int(j)]
                    same = other is not None and np.array_equal(node.peer.tie.copy[slot], other.theta)
                    self.demand(same, f"{i} has not heard what {j} published")


def _with_public(charter: Charter, most: int) -> Charter:
    """The same charter with a public number of rows."""
    return msgspec.structs.replace(charter, confidence="public", max_rows=most)


def run_seed(seed: int, task: str | None = None) -> Report:
    """One seed from beginning to end.

    Parameters
    ----------
    seed : int
    task : str, optional
        A key of :data:`TASKS`.

    Returns
    -------
    Report

    Raises
    ------
    ContractError
        If an invariant does not hold.

    Examples
    --------
    >>> report = run_seed(8)
    >>> report.task, report.gap <= 1e-8
    ('cd', True)
    """
    return Chaos(seed, task).run()


def main() -> None:
    """Run seeds; stop at the first that fails, and say how to run it again."""
    parser = argparse.ArgumentParser(prog="python -m coterie.testing.chaos", description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=100, help="how many")
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--seed", type=int, help="this one alone")
    parser.add_argument("--task", choices=list(TASKS), help="this task alone")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    given = parser.parse_args()
    if given.seed is not None:
        print(run_seed(given.seed, given.task))
        return
    began, done, letters, refused, crashes = time.time(), 0, 0, 0, 0
    with ProcessPoolExecutor(given.jobs) as pool:
        runs = {pool.submit(run_seed, given.first + k, given.task): given.first + k for k in range(given.seeds)}
        for run in as_completed(runs):
            try:
                report = run.result()
            except Exception as error:
                pool.shutdown(wait=False, cancel_futures=True)
                task = f" --task {given.task}" if given.task else ""
                again = f"python -m coterie.testing.chaos --seed {runs[run]}{task}"
                print(f"FAILED, seed {runs[run]}: {error}\nagain: {again}", file=sys.stderr)
                sys.exit(1)
            done, letters, crashes = done + 1, letters + report.letters, crashes + report.crashes
            refused += sum(report.refused.values())
            if done % 50 == 0:
                text = f"{done} seeds, {letters:,} letters, {refused:,} refused, {crashes:,} crashes"
                print(text, file=sys.stderr, flush=True)
    print(
        f"{done} seeds passed in {time.time() - began:.0f} s: {letters:,} letters, {refused:,} refused, "
        f"{crashes:,} crashes"
    )


if __name__ == "__main__":
    main()
