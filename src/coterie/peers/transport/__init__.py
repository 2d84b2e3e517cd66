"""Sending packets between peers: a protocol, and the transports that implement it.

``memory`` connects threads of one process, for tests and examples. ``over_tls`` connects programs and computers over
mutual TLS. :func:`coterie.testing.check_transport` checks that a transport obeys the protocol.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, Protocol, runtime_checkable

from ...core.arrays import EVERYONE

#: Function that takes a received packet: ``deliver(owner, data)``.
Deliver = Callable[[int, bytes], None]
#: Function that takes a received signed roster.
DeliverRoster = Callable[[bytes], None]


class Contact(NamedTuple):
    """Name, address, endpoint and key of a member."""

    name: str
    address: int
    endpoint: str | None = None  # "host:port"; None: reachable through a relay only
    #: Ed25519 public key, for pre-authentications and for sealing messages that go through relays.
    key: bytes | None = None


def contacts_of(roster: Any) -> list[Contact]:
    """Return the contacts of all members of a roster."""
    return [Contact(member.name, member.address, member.endpoint, member.key) for member in roster.members]


class Reachable(Protocol):
    """An object with a name and an endpoint, such as a relay of a roster or a :class:`Contact`."""

    @property
    def name(self) -> str: ...  # noqa: D102

    @property
    def endpoint(self) -> str | None: ...  # noqa: D102


@runtime_checkable
class Transport(Protocol):
    """Sends packets, which are bytes, between members.

    Delivery is AT MOST ONCE: a packet arrives unchanged and once, or not at all, and the sender is not told. Packets
    are lost while connections form or break, when a queue is full, and when they exceed the transport's limit. Packets
    of one sender may overtake each other on different routes.

    Every method may be called from any thread, also from inside ``deliver``, and none of them waits for another peer.
    """

    @property
    def contact(self) -> Contact:
        """Contact of this member itself."""

    @property
    def serial(self) -> str | None:
        """Serial number of this member's certificate, in lower-case hex without leading zeros; None if there is
        none.
        """

    @property
    def counts(self) -> Mapping[str, int]:
        """Numbers of packets ``sent``, ``received``, and ``dropped: <reason>``, as a copy. Sent does not imply
        delivered.
        """

    def dropped(self) -> dict[int, dict[str, int]]:
        """Numbers of dropped packets, by member: ``from: <reason>`` and ``to: <reason>``, as a copy."""

    def strangers(self) -> dict[str, dict[str, int]]:
        """Numbers of connections that failed before a name was proven, by source and reason, as a copy."""

    def open(self, deliver: Deliver, roster: DeliverRoster | None = None) -> None:
        """Start. Packets may come before this returns. A transport may be opened again after :meth:`close`.

        ``deliver(owner, data)`` is called with every packet, in any thread but never inside :meth:`send`; it must not
        block. ``owner`` is the address of the member whose key was used for the connection: it is as trustworthy as the
        transport's access control, and the packet's signature must prove it. An exception in ``deliver`` is logged.
        ``roster(signed)`` is called with every signed roster that arrives. It is not verified.
        """

    def admit(self, contacts: Iterable[Contact], revoked: Iterable[str] = ()) -> None:
        """Replace the set of members whose connections and packets are accepted.

        Linked members are admitted, too. Certificates with revoked serial numbers are refused at once, also on existing
        connections.
        """

    def link(self, contacts: Iterable[Contact]) -> None:
        """Replace the neighbours to stay connected with: immediately for :meth:`send`, soon for connections.

        Each side links for itself: broadcasts go to the members linked here, whether or not they link this peer.
        Connections with members that stay linked are not interrupted.
        """

    def send(self, to: int, data: bytes) -> None:
        """Send a packet at most once. Never waits for the receiver, and never raises for an absent one.

        ``to`` is an address, linked or only admitted; or ``EVERYONE``, for all linked neighbours.
        """

    def publish_roster(self, signed: bytes, to: int = EVERYONE) -> None:
        """Send a signed roster to all connected members, or at least to one member; at most once, as for packets."""

    def keep_roster(self, signed: bytes) -> None:
        """Set the roster for *non-members*: peers with a valid certificate that are not admitted.

        A non-member is newer than the roster held here, or was removed. It is sent this roster and may send its own
        one, which is delivered like any other. Nothing else is accepted from it.
        """

    def reload(self) -> None:
        """Read the certificates again, for new connections."""

    def use_relays(self, relays: Iterable[Reachable]) -> None:
        """Replace the relays to use where there is no direct connection."""

    def alive(self) -> set[int]:
        """Addresses of the members that are connected, as far as the transport can tell."""

    def close(self) -> None:
        """Stop: nothing is sent or delivered after this returns, unless it was called inside ``deliver``.

        May be called twice. Never raises.
        """


__all__ = ["Contact", "Deliver", "DeliverRoster", "Reachable", "Transport", "contacts_of"]
