"""How packets travel between peers: a small contract, and the transports that keep it.

``memory`` carries them between threads of one process, for tests and examples; ``over_tls`` between programs and
computers, over mutual TLS. :func:`coterie.testing.check_transport` checks the contract on any other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple, Protocol, runtime_checkable

from ...core.arrays import EVERYONE

#: What a transport does with a packet that came: ``deliver(owner, data)``.
Deliver = Callable[[int, bytes], None]
#: What a transport does with a signed roster that came.
DeliverRoster = Callable[[bytes], None]


class Contact(NamedTuple):
    """Where a member is found."""

    name: str
    address: int
    endpoint: str | None = None  # "host:port", or None: nobody can connect to it, it is reached through a relay
    #: Its Ed25519 public key: what it pre-authentications with, and what messages through relays are sealed for.
    key: bytes | None = None


def contacts_of(roster: Any) -> list[Contact]:
    """The members of a roster, as a transport must know them."""
    return [Contact(member.name, member.address, member.endpoint, member.key) for member in roster.members]


class Reachable(Protocol):
    """Anything with a name and an endpoint, such as a relay of a roster or a :class:`Contact`."""

    @property
    def name(self) -> str: ...  # noqa: D102

    @property
    def endpoint(self) -> str | None: ...  # noqa: D102


@runtime_checkable
class Transport(Protocol):
    """Carries packets, which are bytes, between members.

    Delivery is AT MOST ONCE: a packet arrives unchanged and once, or not at all, and nobody is told. Packets are lost
    while connections form or break, when a queue is full, and when they are longer than the transport's limit. Those
    of one sender may overtake each other where they take different ways.

    Every method may be called from any thread, also from inside ``deliver``, and none of them waits for another peer.
    """

    @property
    def contact(self) -> Contact:
        """Who I am, as others must know me to reach me."""

    @property
    def serial(self) -> str | None:
        """Serial number of my certificate, in lower-case hex without leading zeros; None if there is none."""

    @property
    def counts(self) -> Mapping[str, int]:
        """How many packets were ``sent``, ``received``, and ``dropped: <reason>``: a copy. Sent is not delivered."""

    def dropped(self) -> dict[int, dict[str, int]]:
        """Packets that were dropped, by member: ``from: <reason>`` and ``to: <reason>``. A copy."""

    def strangers(self) -> dict[str, dict[str, int]]:
        """Connections that came to nothing before a name was proven: reasons by source, of the last sources. A copy."""

    def open(self, deliver: Deliver, roster: DeliverRoster | None = None) -> None:
        """Start. Packets may come before this returns. After :meth:`close`, it may be opened again.

        ``deliver(owner, data)`` is called with every packet, in any thread but never inside :meth:`send`; it must not
        block. ``owner`` is the address of the member that the key belongs to on which the packet came: a claim, as
        good as the transport's access control, that the signature must prove. What it raises is logged.
        ``roster(signed)`` is called with every signed roster that a member publishes: unchecked, so verify it.
        """

    def admit(self, contacts: Iterable[Contact], revoked: Iterable[str] = ()) -> None:
        """Whom to let in, and to whom packets may go: everybody in the roster. Replaces those of before.

        Members that are linked are admitted too. Certificates with these serial numbers are refused at once, also
        where there is a connection.
        """

    def link(self, contacts: Iterable[Contact]) -> None:
        """Neighbours to stay connected with, instead of those of before. At once for :meth:`send`, soon for the wires.

        Each side links for itself: my broadcasts go to those I link, whether or not they link me. Connections with
        those that stay are not touched.
        """

    def send(self, to: int, data: bytes) -> None:
        """Send a packet, at most once. Never waits for the other side, never raises for a peer that is not there.

        ``to`` is an address, linked or only admitted; or ``EVERYONE``, all linked neighbours and nobody else.
        """

    def publish_roster(self, signed: bytes, to: int = EVERYONE) -> None:
        """Give a signed roster to everybody connected, or at least to one member; at most once, like packets."""

    def keep_roster(self, signed: bytes) -> None:
        """The roster for *non-members*: those with a good certificate that are not admitted.

        Such a one is so new that we do not know it yet, or was removed. It is handed this roster and may hand over its
        own, which is delivered like any other; nothing else passes until it is admitted.
        """

    def reload(self) -> None:
        """Read my certificate and the authority's anew, for connections that are made from now on."""

    def use_relays(self, relays: Iterable[Reachable]) -> None:
        """Go through these where there is no other way, instead of those of before."""

    def alive(self) -> set[int]:
        """Addresses that were seen alive and not yet seen to vanish, as far as the transport can tell."""

    def close(self) -> None:
        """Stop: nothing is sent any more, nothing delivered once it returns (unless called inside ``deliver``).

        Twice is fine. Never raises.
        """


__all__ = ["Contact", "Deliver", "DeliverRoster", "Reachable", "Transport", "contacts_of"]
