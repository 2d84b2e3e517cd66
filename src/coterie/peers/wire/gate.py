"""The checks that a message must pass before a method sees it.

In this order: the packet is from a member, not too long, and within the sender's rate; it decodes; its version and run
are this peer's; its sender owns the key under which it came; it is addressed to this peer; its number is greater than
the last one of its session; its signature is valid; its sender has proved that the session is live. Then the content: a
kind that the method knows, the right count of numbers, all of them finite, and no model with a norm above the run's
public radius. Other messages are refused, and counted by reason.
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

#: Reasons for refusing messages.
REASONS = (
    "stranger",  # not from a member
    "muted",  # from a muted member
    "size",
    "rate",  # too many per second
    "format",  # not a packet
    "version",
    "run",
    "sender",  # the sender does not own the key under which the packet came
    "recipient",  # addressed to another peer
    "replay",  # number not greater than the last one
    "outdated",  # an announcement that is not newer than the one held
    "signature",
    "unproven",  # possibly a replay: the sender's session has not answered a question of this peer yet
    "rows",  # claims more rows than the charter allows
    "shape",  # a kind or a length that the method does not know
    "finite",
    "norm",  # a model with a norm above the public radius
    "range",  # another value that no honest peer sends
    "method",  # the method raised an error
)
#: Seconds' worth of messages that may come at once.
BURST_SECONDS = 4.0


class Gate:
    """Checks packets that come to a peer, and remembers the last number of each sender's proven session."""

    def __init__(self, run: bytes, address: int, message_bytes: int, messages_per_second: float, max_rows: int):
        self.run, self.address, self.message_bytes, self.max_rows = run, address, message_bytes, max_rows
        self.rate = messages_per_second
        # By public key: session and sequence of the last packet of the proven session.
        self.last: dict[bytes, tuple[int, int]] = {}
        self.refused: Counter[str] = Counter()
        self.refused_by: Counter[tuple[int, str]] = Counter()  # by address and reason
        self.muted: frozenset[int] = frozenset()
        self._keys: dict[int, bytes] = {}
        self._messages = Buckets(messages_per_second, BURST_SECONDS * messages_per_second)

    def admit(self, keys: Mapping[int, bytes]) -> None:
        """Set the addresses and public keys of the members whose messages may pass."""
        self._keys = {address: key for address, key in keys.items() if address != self.address}
        self._messages.keep(self._keys)

    def count(self, reason: str, owner: int) -> None:
        """Count a refusal, for members also by sender. Connections of non-members are counted by the transport."""
        self.refused[reason] += 1
        if owner in self._keys or owner in self.muted:
            self.refused_by[owner, reason] += 1

    def check(self, now: float, owner: int, data: bytes) -> Packet:
        """Return a packet that came under a key of ``owner``, if it is authentic and new in its session; else raise
        Refused.

        This does not check whether the session is proven (see :meth:`prove`), nor the content (:func:`check_message`).
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
            raise Refused("version", f"packet version {packet.version} from {owner}; this peer speaks {VERSION}")
        if packet.run != self.run:
            raise Refused("run", f"packet of run {packet.run.hex()} from {owner}; this peer is in run {self.run.hex()}")
        if packet.sender != owner:
            raise Refused("sender", f"{packet.sender} by the key of {owner}")
        if packet.to not in (self.address, EVERYONE):
            raise Refused("recipient", f"from {owner} for {packet.to}; this peer is {self.address}")
        key = self._keys[owner]
        last = self.last.get(key, (0, 0))
        if packet.session == last[0] and packet.sequence <= last[1]:
            raise Refused("replay", f"number {packet.number} from {owner}, after {last}")
        if not is_signed(key, signature, signed):
            raise Refused("signature", f"not {owner}'s")
        if packet.session == last[0]:
            self.last[key] = packet.number  # an authentic packet is accepted once only, whatever its content
        if packet.largest > self.max_rows:
            raise Refused("rows", f"{owner} claims {packet.largest} rows; at most {self.max_rows}")
        return packet

    def session_of(self, address: int) -> int | None:
        """Return the proven session of a member, or None."""
        last = self.last.get(self._keys.get(address, b""))
        return None if last is None else last[0]

    def prove(self, packet: Packet) -> None:
        """Make the session of this packet the proven one of its sender, and refuse its earlier packets."""
        key = self._keys[packet.sender]
        last = self.last.get(key, (0, 0))
        self.last[key] = max(last, packet.number) if packet.session == last[0] else packet.number


def check_message(contents: Contents, members: Container[int], packet: Packet) -> np.ndarray:
    """Return the numbers of a method's message. Raise Refused for values that no honest peer sends."""
    try:
        return contents.check(packet.kind, contents.parse(packet.kind, packet.content), members)
    except Unsound as error:
        raise Refused(error.reason, f"from {packet.sender}: {error}") from None
