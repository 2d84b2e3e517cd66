"""Background faults in every seed: their rates, and an adversary on the network without a key, or with a
member's key.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from coterie.core.messages import lengths_of, longest
from coterie.errors import DataError
from coterie.peers.node.mailbox import Send
from coterie.peers.wire.packet import SIGNATURE_BYTES, read_packet

from .tasks import FEATURES, TASKS

if TYPE_CHECKING:
    from .simulated import Chaos


class Weather(NamedTuple):
    """Rates of the background faults."""

    latency: float
    loss: float
    duplication: float
    crash: float  # per second and peer
    split: float  # per second
    disk: float  # probability that a save fails
    hostile: float  # messages of the adversary per second
    skew: float  # maximal relative difference of the clocks' speeds; their times differ arbitrarily

    @classmethod
    def draw(cls, rng: np.random.Generator) -> Weather:
        """Draw some faults, in any combination."""
        often = rng.random(8) < 0.7
        worst = (2.0, 0.4, 0.3, 0.05, 0.05, 0.1, 2.0, 0.2)
        return cls(*(float(on * rng.random() * most) for on, most in zip(often, worst, strict=True)))


class Disk:
    """A disk that may refuse to write, and keeps its content when its peer crashes."""

    def __init__(self, chaos: Chaos):
        self.content: bytes | None = None
        self.full = False
        self._chaos = chaos

    def load(self) -> bytes | None:
        """Return the last saved content."""
        return self.content

    def save(self, content: bytes) -> None:
        """Save the content, or raise an OSError."""
        chaos = self._chaos
        if self.full or (chaos.faulty and chaos.rng.random() < chaos.weather.disk):
            raise OSError("no space left on device")
        self.content = content


class Adversary:
    """Records messages, and sends them again, changed, or under other names; also signs messages that no honest peer
    sends.
    """

    def __init__(self, chaos: Chaos):
        self._chaos = chaos
        self._seen: list[tuple[int, int, bytes]] = []  # sender, receiver, bytes

    def record(self, i: int, j: int, data: bytes) -> None:
        """Record a message."""
        self._seen.append((i, j, data))
        if len(self._seen) > 5000:
            del self._seen[:2500]

    def attack(self) -> None:
        """Send one bad message, of many kinds."""
        chaos, rng = self._chaos, self._chaos.rng
        if not self._seen:
            return
        i, j, data = self._seen[int(rng.integers(len(self._seen)))]
        match int(rng.integers(7)):
            case 0:  # a replay, to the same receiver or to another
                to = j if rng.random() < 0.5 else int(rng.integers(chaos.n))
                self._replay(i, to, data)
                return
            case 1:  # some bytes changed
                broken = bytearray(data)
                for _ in range(int(rng.integers(1, 4))):
                    broken[int(rng.integers(len(broken)))] ^= int(rng.integers(1, 256))
                self._offer(i, j, bytes(broken))
            case 2:  # cut off, or extended
                cut = int(rng.integers(len(data)))
                self._offer(i, j, data[:cut] if rng.random() < 0.5 else data + bytes(rng.bytes(cut)))
            case 3:  # under another member's name
                other = int(rng.integers(chaos.n))
                if other != i:
                    self._offer(other, j, data)
            case 4:  # random bytes
                self._offer(i, j, bytes(rng.bytes(int(rng.integers(300)))))
            case 5:  # for another run
                self._offer(i, j, chaos.forged(i, j, run=bytes(rng.bytes(16)), text=np.zeros(FEATURES)))
            case _:  # from a hostile member: signed, new, and with numbers that must not pass
                bad = rng.choice([np.nan, np.inf, -np.inf, TASKS[chaos.task].beyond, 1e300])
                lengths = lengths_of(chaos.method.messages, chaos.p)
                kind = int(rng.integers(len(lengths) + 1))
                length = int(rng.choice([2, 5, 40]))  # with one number, some messages are a valid count
                if kind < len(lengths) and rng.random() < 0.8:
                    length = longest(lengths[kind : kind + 1])
                if length:
                    self._offer(i, j, chaos.forged(i, j, text=np.full(length, bad), kind=kind), own=True)

    def _offer(self, i: int, j: int, data: bytes, own: bool = False) -> None:
        if not own and any(data == seen for _, _, seen in self._seen[-50:]):
            return
        self._chaos.deliver(i, j, Send(j, data), honest=False)

    def _replay(self, i: int, j: int, data: bytes) -> None:
        """Replay an old message, which may be a late one, if its receiver has never seen it."""
        if len(data) > SIGNATURE_BYTES:
            try:
                packet = read_packet(data)[0]
            except DataError:
                return  # a roster
            self._chaos.deliver(i, j, Send(j, data), honest=self._chaos.is_for(packet.to, j))
