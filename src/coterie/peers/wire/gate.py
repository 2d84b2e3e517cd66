"""What a message must pass before a method sees it.

In this order: its packet is from a member; short enough; not one too many; it decodes; its version and run are ours;
its sender owns the key that it came by; it is for us; it is newer than the last one from that start of its sender; its
signature is good; its sender has proved that it is that start that speaks now; and then what it holds: a kind that the
method knows, as many numbers as there must be, all of them finite, no model longer than the run's public radius.
Anything else is refused, and counted by its reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Mapping

import numpy as np

from ...core.arrays import EVERYONE
from ...core.messages import Contents, Unsound
from ..group.signed import is_signed
from .limits import Buckets
from .packet import VERSION, Packet, Refused, read_packet

#: Why messages are refused.
REASONS = (
    "stranger",  # not from a member
    "muted",  # from one that this peer does not want to hear
    "size",
    "rate",  # too many in a second
    "format",  # not a packet
    "version",
    "run",
    "sender",  # not the owner of the key it came by
    "recipient",  # for somebody else
    "replay",  # no newer than the last one
    "outdated",  # an announcement of the admin, and there is a newer one
    "signature",
    "unproven",  # may be an old one: this start of the sender has not yet answered to this start of ours
    "rows",  # claims a larger data set than there may be
    "shape",  # a kind or a length that the method does not know
    "finite",
    "norm",  # a model beyond the public radius
    "range",  # another number that no honest peer sends
    "method",  # the method raised
)
#: How many seconds' worth of messages may come at once.
BURST = 4.0


class Gate:
    """Checks packets that come to a peer, and remembers the number of the last one of each sender's proven session."""

    def __init__(self, run: bytes, address: int, message_bytes: int, messages_per_second: float, max_rows: int):
        self.run, self.address, self.message_bytes, self.max_rows = run, address, message_bytes, max_rows
        self.rate = messages_per_second
        self.last: dict[bytes, tuple[int, int]] = {}  # numbers, by public key: a session that has proved itself
        self.refused: Counter[str] = Counter()
        self.refused_by: Counter[tuple[int, str]] = Counter()  # of members, by address
        self.muted: frozenset[int] = frozenset()
        self._keys: dict[int, bytes] = {}
        self._messages = Buckets(messages_per_second, BURST * messages_per_second)

    def admit(self, keys: Mapping[int, bytes]) -> None:
        """Whose messages may pass: addresses and public keys."""
        self._keys = {address: key for address, key in keys.items() if address != self.address}
        self._messages.keep(self._keys)

    def count(self, reason: str, owner: int) -> None:
        """Count a refusal; those of members by sender, too. (Who else there is is for the transport to say.)"""
        self.refused[reason] += 1
        if owner in self._keys or owner in self.muted:
            self.refused_by[owner, reason] += 1

    def check(self, now: float, owner: int, data: bytes) -> Packet:
        """The packet that came by a key of ``owner``: authentic and new in its session, or :class:`Refused`.

        Whether that session has proved itself is another question (:meth:`proven`), and what the packet holds is not
        looked at yet: :func:`check_message`.
        """
        if owner in self.muted:
            raise Refused("muted", f"from {owner}")
        if owner not in self._keys:
            raise Refused("stranger", f"from {owner}, who is no member, or is this peer itself")
        if len(data) > self.message_bytes:
            raise Refused("size", f"{len(data)} bytes from {owner}; at most {self.message_bytes}")
        if not self._messages.take(owner, now):
            raise Refused("rate", f"more than {self.rate:g} messages a second from {owner}")
        try:
            packet, signature, signed = read_packet(data)
        except Refused as error:
            raise Refused(error.reason, f"from {owner}: {error}") from None
        if packet.version != VERSION:
            raise Refused("version", f"{packet.version} from {owner}; this is {VERSION}")
        if packet.run != self.run:
            raise Refused("run", f"{packet.run.hex()} from {owner}; this is {self.run.hex()}")
        if packet.sender != owner:
            raise Refused("sender", f"{packet.sender} by the key of {owner}")
        if packet.to not in (self.address, EVERYONE):
            raise Refused("recipient", f"from {owner} for {packet.to}; this is {self.address}")
        key = self._keys[owner]
        last = self.last.get(key, (0, 0))
        if packet.session == last[0] and packet.sequence <= last[1]:
            raise Refused("replay", f"number {packet.number} from {owner}, after {last}")
        if not is_signed(key, signature, signed):
            raise Refused("signature", f"not {owner}'s")
        if packet.session == last[0]:
            self.last[key] = packet.number  # it was sent by its sender, whatever it holds: never again
        if packet.largest > self.max_rows:
            raise Refused("rows", f"{owner} tells of {packet.largest} rows; at most {self.max_rows}")
        return packet

    def session_of(self, address: int) -> int | None:
        """The session of a member that has proved itself last."""
        last = self.last.get(self._keys.get(address, b""))
        return None if last is None else last[0]

    def prove(self, packet: Packet) -> None:
        """From now on the session of this packet is its sender's: of it, what is newer passes; of others, nothing."""
        key = self._keys[packet.sender]
        last = self.last.get(key, (0, 0))
        self.last[key] = max(last, packet.number) if packet.session == last[0] else packet.number


def check_message(contents: Contents, members: Container[int], packet: Packet) -> np.ndarray:
    """The numbers of a method's message; refuses what no honest peer sends. ``members`` are the addresses there are."""
    try:
        return contents.check(packet.kind, contents.parse(packet.kind, packet.content), members)
    except Unsound as error:
        raise Refused(error.reason, f"from {packet.sender}: {error}") from None
