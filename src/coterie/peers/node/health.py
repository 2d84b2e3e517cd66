"""The health of the members of a group, visible to all members: small signed records that spread from peer to peer.

A member that consents writes a record about itself from time to time, signs it, and sends it to its neighbours with a
few records of other members. A peer verifies the owner's signature of each record, keeps the newest record of each
member, and passes it on. A member that does not consent writes no record, but passes on those of others.

Clocks of members may be wrong. So records of a member are ordered by its own (start, number), and the age of a record
is the sum of the times for which peers on its way have kept it. This sum is not signed, and only display and expiry
depend on it.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta

from ..._version import __version__
from ...errors import SignatureError
from ..group.records import Finite
from ..group.signed import verify
from ..wire.limits import Buckets
from ..wire.packet import OVERHEAD_BYTES, SIGNATURE_BYTES, Refused, Whole, parsed
from ..wire.packet import Counter as Number
from .checks import expires_in

#: Prefix of every signed record, followed by the run and the record. So the signature is not valid for anything else.
HEALTH_SEAL = b"coterie health 2\n"
#: Maximal bytes of a record with its signature; records in a packet; and bytes around each record in a packet.
RECORD_BYTES, MAX_RECORDS, FRAME_BYTES = 300, 16, 16
#: Seconds between two packets of records: at the beginning, and in the end.
FIRST_WAIT, MAX_WAIT = 2.0, 30.0
#: Packets of records that one member may send per second, and at once.
PACKETS_PER_SECOND, PACKETS_AT_ONCE = 0.5, 8.0
#: Seconds after which a record is no longer shown or passed on. After twice this time, its number is forgotten.
EXPIRY_SECONDS = 6 * 3600.0
#: Maximal start number: the largest number that :data:`~coterie.peers.wire.packet.Counter` holds.
MAX_START = (1 << 53) - 1
#: Maximal number of kinds of errors in a record.
MAX_ERROR_KINDS = 4

Word = Annotated[str, Meta(pattern=r"^[a-z0-9_ -]{1,16}\Z")]


class HealthRecord(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A member's statement about itself to the group. New fields come last, and have a default."""

    address: Whole
    start: Number
    number: Number  # of this record since the member was started
    time: Whole  # seconds since 1970 by its own clock, which may be wrong
    version: Annotated[str, Meta(pattern=r"^[0-9A-Za-z.+-]{1,20}\Z")]
    wakes: Whole
    score: Finite | None  # of the model learned together; None if rows are private or absent
    score_alone: Finite | None
    served: Word | None  # the model in use, which depends on the rows, so None if they are private
    edges: Whole
    alive: Whole  # neighbours that it is connected to
    refused: Whole  # number of messages
    expires: Annotated[int, Meta(ge=-100_000, le=100_000)] | None  # days until the certificate expires
    errors: Annotated[tuple[Word, ...], Meta(max_length=MAX_ERROR_KINDS)] = ()

    @property
    def order(self) -> tuple[int, int]:
        """Key that orders the records of one member."""
        return self.start, self.number


class _Known(NamedTuple):
    record: HealthRecord
    signed: bytes
    born: float  # time when the record was written, by this peer's clock


_encode = msgspec.msgpack.Encoder().encode
_record = msgspec.msgpack.Decoder(HealthRecord).decode
_batch = msgspec.msgpack.Decoder(
    Annotated[list[tuple[Annotated[float, Meta(ge=0)], bytes]], Meta(max_length=MAX_RECORDS)]
).decode


class HealthBoard:
    """The newest health record of every member that this peer has received.

    Parameters
    ----------
    run : bytes
        Run id of the charter.
    address : int
        Address of this peer.
    sign, random : callable
        See :class:`~coterie.peers.node.node.Node`.
    packet_bytes : int
        Maximal bytes of a packet.
    shares : bool
        Whether this peer shares its own health.
    private : bool
        Whether the rows are private. Then numbers that depend on the rows are left out.
    """

    def __init__(
        self,
        run: bytes,
        address: int,
        sign: Callable[[bytes], bytes],
        random: Callable[[int], bytes],
        *,
        packet_bytes: int,
        shares: bool = False,
        private: bool = False,
    ):
        self._seal, self.address, self._sign, self._random = HEALTH_SEAL + run, address, sign, random
        self.shares, self.private = shares, private
        self.limit = max(1, min(MAX_RECORDS, (packet_bytes - OVERHEAD_BYTES) // (RECORD_BYTES + FRAME_BYTES)))
        #: Returns this peer's status; set by the program that runs the peer.
        self.status: Callable[[], Mapping[str, Any]] = dict
        self.start = 1
        self._number = 1
        self._keys: Mapping[int, bytes] = {}
        self._known: dict[int, _Known] = {}
        self._news: set[int] = set()  # addresses of records that were not passed on yet
        self._packets = Buckets(PACKETS_PER_SECOND, PACKETS_AT_ONCE)
        self._wait = FIRST_WAIT
        #: Time of the next call of :meth:`batch`; infinity if there is nothing to send.
        self.next_time = math.inf

    def admit(self, keys: Mapping[int, bytes]) -> None:
        """Set the addresses and public keys of the members whose records are kept."""
        changed = {address for address, key in keys.items() if self._keys.get(address, key) != key}
        self._keys = keys
        self._known = {j: known for j, known in self._known.items() if j in keys and j not in changed}
        self._packets.keep(keys)
        self._news &= set(self._known)

    def open(self, now: float, start: int) -> None:
        """Start, with the number of this start."""
        self.start = start
        if self.shares:
            self.next_time = now + FIRST_WAIT

    def batch(self, now: float) -> bytes | None:
        """Return the packet content for all neighbours, or None: the own record, new records, and a random choice of
        others.
        """
        self._forget(now)
        told: list[tuple[float, bytes]] = []
        own = self._own()
        if own is not None:
            self._number += 1
            body = _encode(own)
            told.append((0.0, self._sign(self._seal + body) + body))
        others = [j for j, known in self._known.items() if now < known.born + EXPIRY_SECONDS]
        fresh = [j for j in others if j in self._news]
        chosen = self._some(fresh, self.limit - len(told))
        old = [j for j in others if j not in self._news]
        chosen += self._some(old, self.limit - len(told) - len(chosen))
        self._news -= set(chosen)
        told += [(round(now - self._known[j].born, 1), self._known[j].signed) for j in chosen]
        spread = 0.75 + 0.5 * self._uniform()  # so that members do not all speak at the same time
        self.next_time = now + self._wait * spread if told or self.shares else math.inf
        self._wait = min(2.0 * self._wait, MAX_WAIT)
        return _encode(told) if told else None

    def take(self, now: float, sender: int, content: bytes) -> int:
        """Take in records that ``sender`` has passed on, and return the number of new ones.

        A bad record raises :class:`~coterie.peers.wire.gate.Refused` and counts against the sender, because honest
        peers check records before they pass them on. A record that is known already is no fault.
        """
        if not self._packets.take(sender, now):
            raise Refused("rate", f"records of health from {sender}")
        if len(content) > MAX_RECORDS * (RECORD_BYTES + FRAME_BYTES):
            raise Refused("size", f"{len(content)} bytes of records from {sender}")
        told = parsed(_batch, content, f"records of health from {sender}")
        return sum(self._take_one(now, sender, age, signed) for age, signed in told)

    def _take_one(self, now: float, sender: int, age: float, signed: bytes) -> bool:
        if len(signed) > RECORD_BYTES:
            raise Refused("size", f"a record of {len(signed)} bytes from {sender}; at most {RECORD_BYTES}")
        record = parsed(_record, signed[SIGNATURE_BYTES:], f"a record of health from {sender}")
        owner = record.address
        key, known = self._keys.get(owner), self._known.get(owner)
        if key is None or not age < EXPIRY_SECONDS:
            return False  # a non-member may be a member in a newer roster
        newest = (self.start, self._number) if owner == self.address else known.record.order if known else (0, 0)
        if record.order <= newest:
            return False
        try:
            verify(key, signed[:SIGNATURE_BYTES], self._seal + signed[SIGNATURE_BYTES:])
        except SignatureError:
            raise Refused("signature", f"a record of {owner} that it has not signed, from {sender}") from None
        if owner == self.address:  # an own record from before the state was lost: the next record must be newer
            self.start = min(record.start + 1, MAX_START)
            return False
        self._known[owner] = _Known(record, signed, now - age)
        self._news.add(owner)
        if self.next_time == math.inf:
            self.next_time = now + self._wait * self._uniform()
        return True

    def rows(self, now: float) -> list[dict[str, Any]]:
        """Return the record and its age in seconds for each member that has one, by address."""
        own = self._own()
        found = [] if own is None else [(0.0, own)]
        found += [
            (now - known.born, known.record) for known in self._known.values() if now < known.born + EXPIRY_SECONDS
        ]
        return [
            msgspec.structs.asdict(record) | {"errors": list(record.errors), "age": round(age, 1)}
            for age, record in sorted(found, key=lambda row: row[1].address)
        ]

    # -- helpers ------------------------------------------------------------------------------------------------------

    def _own(self) -> HealthRecord | None:
        """Return this peer's record, or None if it does not consent or has no status yet."""
        status = self.status() if self.shares else {}
        return record_of(status, self.address, self.start, self._number, self.private) if status else None

    def _forget(self, now: float) -> None:
        """Delete records that are so old that no copies are in transit, and their numbers."""
        for j in [j for j, known in self._known.items() if now > known.born + 2.0 * EXPIRY_SECONDS]:
            del self._known[j]
            self._news.discard(j)

    def _uniform(self) -> float:
        return int.from_bytes(self._random(4), "little") / 2.0**32

    def _some(self, items: list[int], count: int) -> list[int]:
        """Draw up to ``count`` items without replacement."""
        left, chosen = sorted(items), list[int]()
        while left and len(chosen) < count:
            chosen.append(left.pop(int(self._uniform() * len(left))))
        return chosen


def record_of(status: Mapping[str, Any], address: int, start: int, number: int, private: bool) -> HealthRecord:
    """Make a record from a status. If rows are private, values that depend on them are left out."""
    edges = status.get("edges", [])
    return HealthRecord(
        address=address,
        start=start,
        number=number,
        time=int(max(0.0, status.get("at", time.time()))),
        version=__version__[:20],
        wakes=int(status.get("wakes", 0)),
        score=None if private else _rounded(status.get("score")),
        score_alone=None if private else _rounded(status.get("score_alone")),
        served=None if private else next(iter(_words([status.get("served")])), None),
        edges=len(edges),
        alive=sum(bool(edge.get("alive")) for edge in edges),
        refused=sum(status.get("refused", {}).values()),
        expires=days_left(status.get("certificate_expires")),
        errors=tuple(_words(status.get("alerts", {}) | status.get("errors", {})))[:MAX_ERROR_KINDS],
    )


def days_left(expires: str | None) -> int | None:
    """Return whole days until a time in ISO 8601, or None if there is none."""
    left = expires_in(expires, time.time())
    return None if left is None else max(-100_000, min(100_000, int(left // 86400.0)))


def _rounded(score: float | None) -> float | None:
    """Round to three digits, which reveals little."""
    return None if score is None or not math.isfinite(score) else float(f"{score:.3g}")


def _words(texts: Iterable[Any]) -> list[str]:
    """Clean texts for a record, and drop those without a permitted character."""
    cleaned = (re.sub(r"[^a-z0-9_ -]", "", str(text or "").lower())[:16] for text in texts)
    return [word for word in cleaned if word]


__all__ = ["HealthBoard", "HealthRecord", "days_left", "record_of"]
