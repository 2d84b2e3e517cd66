"""Messages between computers: frames over TCP and mutual TLS 1.3, on the standard library's event loop.

One thread runs all connections (:mod:`.loops`). Strangers get few resources before a certificate has proven a name on
the roster (:mod:`.front`). Then there is one link between each two members (:mod:`.hub`, :mod:`.channel`). A member
that cannot accept connections is reached through a relay (:mod:`.relay`), which cannot read what it forwards.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

from ..._files import Where
from ...core.arrays import EVERYONE
from ...errors import ParameterError
from ..group.identity import check_name, split_endpoint
from ..group.signed import public_of, signer
from ..wire.limits import Limits
from . import Contact, Deliver, DeliverRoster, Reachable
from .channel import LIST
from .loops import Endpoint
from .peer_hub import PeerHub, named
from .proofs import Seals


class TlsTransport(Endpoint[PeerHub]):
    """Messages over mutual TLS. Implements :class:`~coterie.peers.transport.Transport`.

    Parameters
    ----------
    run : str
        Run id. Connections of other runs carry no messages.
    name, address : str, int
        This member's name, which is in its certificate, and its address.
    listen : str, optional
        "host:port" to listen at. None: accept no connections.
    folder : path, optional
        Folder with ``tls.key``, ``tls.crt`` and ``ca.crt``, unless ``credentials`` are given.
    endpoint : str, optional
        "host:port" at which others reach this member. Default: ``listen``.
    seed : bytes, optional
        Seed of this member's Ed25519 key. Without it, it cannot pre-authenticate or use relays.
    message_bytes, messages_per_second : int, float
        Maximal bytes of a message; and messages per second above which a neighbour is read more slowly.
    uvloop : bool, optional
        Whether to use uvloop. Default: if it is installed.
    """

    def __init__(
        self,
        run: str,
        name: str,
        address: int,
        listen: str | None,
        folder: Where | None = None,
        *,
        contacts: Iterable[Contact] = (),
        relays: Iterable[Reachable] = (),
        endpoint: str | None = None,
        seed: bytes | None = None,
        messages_per_second: float | None = None,
        **how: Any,
    ):
        super().__init__(run, name, listen, folder, **how)
        rate = None if messages_per_second is None else 2.0 * messages_per_second
        self._limits = self._limits._replace(messages=rate)
        reached = endpoint if endpoint is not None else listen
        self.contact = Contact(name, address, reached, None if seed is None else public_of(seed))
        self._seed = seed
        self._admitted: dict[int, Contact] = {}
        self._linked: dict[int, Contact] = {}
        self._known: dict[int, Contact] = {}
        self._addresses: dict[str, int] = {}
        self._relays = checked_relays(relays)
        self.admit(contacts)

    # -- state

    @property
    def serial(self) -> str:
        """Serial number of this member's certificate."""
        return self._contexts.serial

    def dropped(self) -> dict[int, dict[str, int]]:
        """Numbers of dropped messages from and to members, by address, since the transport was opened."""
        known = self._addresses
        return {known[name]: counts for name, counts in super().dropped().items() if name in known}

    def alive(self) -> set[int]:
        """Addresses of the members that are connected, directly or through a relay."""
        hub, known = self._hub, self._addresses
        return set() if hub is None else {known[name] for name in hub.alive() if name in known}

    # -- start and stop

    def open(self, deliver: Deliver, roster: DeliverRoster | None = None) -> None:
        """Listen, and connect to the linked neighbours."""
        seed, name = self._seed, self.contact.name

        def make(loop: asyncio.AbstractEventLoop, limits: Limits) -> PeerHub:
            hub = PeerHub(
                loop,
                name,
                self._contexts,
                limits,
                roster or (lambda signed: None),
                None if seed is None else signer(seed),
                deliver=lambda sender, body: self._hand(hub, deliver, sender, body),
                seals=None if seed is None else Seals(self._run, name, seed),
                reachable=self.contact.endpoint is not None,
            )
            return hub

        def begin(hub: PeerHub) -> None:
            # Read here and not before, so that nothing can be admitted or revoked in between.
            hub.know(named(self._known.values()), named(self._linked.values()), self._revoked)
            hub.use_relays(dict(self._relays))

        self._open(make, begin)

    # -- members

    def admit(self, contacts: Iterable[Contact], revoked: Iterable[str] = ()) -> None:
        """Replace the admitted members, and revoke certificates."""
        with self._changing:
            self._admitted, self._revoked = self._checked(contacts), frozenset(revoked)
            self._tell()

    def link(self, contacts: Iterable[Contact]) -> None:
        """Replace the neighbours to stay connected with. Other connections stay."""
        with self._changing:
            self._linked = self._checked(contacts)
            self._tell()

    def use_relays(self, relays: Iterable[Reachable]) -> None:
        """Replace the relays."""
        found = checked_relays(relays)
        with self._changing:
            if found == self._relays:
                return
            self._relays = found
            self._do(lambda hub: hub.use_relays(dict(found)))

    def _checked(self, contacts: Iterable[Contact]) -> dict[int, Contact]:
        found: dict[int, Contact] = {}
        for contact in contacts:
            if contact.address == self.contact.address:
                continue
            check_name(contact.name)
            if contact.name == self.contact.name:
                raise ParameterError(f"{contact.name} is my own name, and belongs to address {self.contact.address}")
            if contact.endpoint is not None:
                split_endpoint(contact.endpoint)
            found[contact.address] = Contact(*contact)
        return found

    def _tell(self) -> None:
        self._known = {**self._admitted, **self._linked}
        self._addresses = {contact.name: address for address, contact in self._known.items()}
        state = named(self._known.values()), named(self._linked.values()), self._revoked
        self._do(lambda hub: hub.know(*state))

    # -- messages

    def send(self, to: int, payload: bytes) -> None:
        """Send a message at most once."""
        hub, thread = self._hub, self._thread
        goals = list(self._linked.values()) if to == EVERYONE else [self._known.get(to)]
        payload = bytes(payload)
        if hub is None or thread is None:
            self._before["dropped: closed"] += len(goals)
            return
        reason = "too large" if len(payload) > self._limits.message else None
        names = []
        for contact in goals:
            if contact is None or reason is not None:
                thread.call(hub.drop, "to", "" if contact is None else contact.name, reason or "unknown address")
            else:
                names.append(contact.name)
        if names and not thread.call(hub.send_message, names, payload):
            hub.counts["dropped: queue full"] += len(names)

    def publish_roster(self, signed: bytes, to: int = EVERYONE) -> None:
        """Send a signed roster to all connected members, or to one member."""
        contact, signed = self._known.get(to), bytes(signed)
        if contact is not None:
            name = contact.name
            self._do(lambda hub: hub.send(name, LIST, signed))
        elif to == EVERYONE:
            self._do(lambda hub: hub.publish(signed))

    def _hand(self, hub: PeerHub, deliver: Deliver, sender: str, body: bytes) -> None:
        address = self._addresses.get(sender)
        if address is None or hub is not self._hub:
            hub.drop("from", sender, "not admitted")
        else:
            hub.counts["received"] += 1
            deliver(address, body)


def checked_relays(relays: Iterable[Reachable]) -> dict[str, tuple[str, int]]:
    """Return host and port of relays, by name."""
    found = {}
    for relay in relays:
        check_name(relay.name)
        if relay.endpoint is None:
            raise ParameterError(f"relay {relay.name} has no endpoint")
        found[relay.name] = split_endpoint(relay.endpoint)
    return found
