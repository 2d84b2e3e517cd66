"""Announcements: messages of the admin beside the roster, which peers pass on to each other.

An announcement has a topic (a kind, and a name or a run), a version and a body. A peer keeps the newest announcement of
each topic, for itself and for peers that were away. It also passes on kinds that it does not know.

===============  ============================  ======================================================================
kind             about                         body
===============  ============================  ======================================================================
``certificate``  name of a member or a relay   its new certificate: :mod:`coterie.peers.group.renewal`
``charter``      run of the charter as it was  the charter as it is to be: :mod:`coterie.peers.group.amendments`
===============  ============================  ======================================================================

A greeting holds a digest of its sender's announcements (:attr:`Board.digest`). A peer with other announcements answers
with as many of its own as a packet carries, and with the next ones at the next greeting. A new announcement goes to all
neighbours at once.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Collection, Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Annotated

import msgspec
from cryptography import x509
from msgspec import Meta

from ..._files import private_folder, read_bounded, write_atomic
from ...errors import DataError, FileError, ParameterError, SignatureError
from ..wire.limits import Buckets, once
from ..wire.packet import OVERHEAD_BYTES, Refused, parsed
from .charter import Charter
from .identity import NAME, parsing
from .records import Count, from_msgpack
from .signed import Signed, SigningKey

#: Prefix of a package: a roster and announcements together.
PACKAGE_PREFIX = b"coterie package 1\n"
#: Kinds of announcements that peers act upon.
CERTIFICATE, CHARTER = "certificate", "charter"
#: Maximal number of topics that a peer keeps; and bytes of msgpack around the list of announcements, and around each.
MAX_TOPICS, FRAME_BYTES = 4096, 5
#: Bytes of the digest of all announcements.
DIGEST_BYTES = 8
#: Seconds between two greetings that are answered with announcements; announcements of one member that are read per
#: second; and how many at once.
BRING_EVERY, ANNOUNCEMENTS_PER_SECOND, ANNOUNCEMENTS_AT_ONCE = 10.0, 8.0, 1024.0
#: Name of the folder of announcements, in the folder of a group and of a peer.
FOLDER = "announcements"

Topic = tuple[str, str]


class Announcement(msgspec.Struct, frozen=True, array_like=True):
    """A message of the admin to all peers."""

    kind: Annotated[str, Meta(pattern=r"^[a-z]{1,20}\Z")]
    about: Annotated[str, Meta(pattern=rf"^{NAME.pattern}\Z")]
    version: Count  # seconds since 1970, or one more than the previous version
    body: bytes

    @property
    def topic(self) -> Topic:
        """Kind and subject. The newest announcement of a topic replaces older ones."""
        return self.kind, self.about


#: Signatures of announcements.
ANNOUNCEMENTS = Signed(Announcement, b"coterie announcement 2\n")


def room(charter: Charter) -> int:
    """Maximal bytes of a signed announcement that a packet of a run can carry."""
    return charter.message_bytes - OVERHEAD_BYTES - 2 * FRAME_BYTES


def sign_announcement(announcement: Announcement, admin: SigningKey, most: int, what: str) -> bytes:
    """Return an announcement as a file: the signature, and msgpack. `what` names it in the error if it exceeds `most`
    bytes.
    """
    signed = ANNOUNCEMENTS.pack(announcement, admin, what)
    if len(signed) > most:
        raise ParameterError(
            f"{what} takes {len(signed)} bytes, and messages of this run carry {most}: increase "
            "message_bytes in the charter"
        )
    return signed


def read_announcement(signed: bytes, keys: Collection[bytes], what: str = "the announcement") -> Announcement:
    """Read an announcement that one of these keys has signed. Nothing is parsed before the signature is verified."""
    return ANNOUNCEMENTS.unpack(signed, keys, what)


class Board:
    """The newest announcement of each topic that a peer keeps.

    Parameters
    ----------
    keys : set of bytes
        Keys that may sign announcements.
    most : int
        Maximal bytes of a signed announcement.
    """

    def __init__(self, keys: Collection[bytes], most: int):
        self.keys, self.most = frozenset(keys), most
        self.held: dict[Topic, Announcement] = {}
        self.signed: dict[Topic, bytes] = {}
        self._content: set[bytes] = set()
        self._digest = 0
        self._until: dict[Topic, datetime] = {}
        self._next: dict[int, int] = {}  # by member: position of the next announcement to send
        self._brought: dict[int, float] = {}  # by member: time of the last answer with announcements
        # Limits how many announcements of a member are read.
        self.reads = Buckets(ANNOUNCEMENTS_PER_SECOND, ANNOUNCEMENTS_AT_ONCE)

    def knows(self, signed: bytes) -> bool:
        """Return whether an announcement is held already."""
        return signed in self._content

    @property
    def digest(self) -> bytes:
        """Digest of all announcements held, independent of their order; empty if there are none."""
        return self._digest.to_bytes(DIGEST_BYTES) if self.held else b""

    def take(self, signed: bytes) -> Announcement:
        """Keep a new announcement. Raise :class:`Refused` if it is not signed, or not newer than the one held."""
        if len(signed) > self.most:
            raise Refused("size", f"an announcement of {len(signed)} bytes; at most {self.most}")
        try:
            new = read_announcement(signed, self.keys)
            until = certificate_in(new).not_valid_after_utc if new.kind == CERTIFICATE else None
        except SignatureError as error:
            raise Refused("signature", str(error)) from None
        except DataError as error:
            raise Refused("format", str(error)) from None
        old = self.held.get(new.topic)
        if old is not None and new.version <= old.version:
            raise Refused("outdated", f"{' '.join(new.topic)}: version {new.version}, after {old.version}")
        if old is None and len(self.held) >= MAX_TOPICS:
            raise Refused("size", f"there are {MAX_TOPICS} announcements already")
        self.drop(new.topic)
        self.held[new.topic], self.signed[new.topic] = new, signed
        if until is not None:
            self._until[new.topic] = until
        self._content.add(signed)
        self._digest ^= _number(signed)
        return new

    def drop(self, topic: Topic) -> None:
        """Delete the announcement of a topic."""
        if topic in self.held:
            signed = self.signed.pop(topic)
            del self.held[topic]
            self._until.pop(topic, None)
            self._content.discard(signed)
            self._digest ^= _number(signed)

    def forget(self, moment: datetime) -> None:
        """Delete certificates that have expired."""
        for topic in [topic for topic, until in self._until.items() if until <= moment]:
            self.drop(topic)

    def trust(self, keys: Collection[bytes]) -> None:
        """Trust these keys from now on, and drop announcements that none of them has signed."""
        if frozenset(keys) == self.keys:
            return
        self.keys = frozenset(keys)
        for topic, signed in list(self.signed.items()):
            try:
                read_announcement(signed, self.keys)
            except SignatureError:
                self.drop(topic)

    def may_bring(self, now: float, to: int) -> bool:
        """Return whether a member may be sent announcements again."""
        return once(self._brought, to, now, BRING_EVERY)

    def answer(self, now: float, to: int) -> bytes | None:
        """Return announcements for a member whose digest differs: as many as a packet carries; later calls give the
        next ones.
        """
        if not self.held or not self.may_bring(now, to):
            return None
        ordered = [self.signed[topic] for topic in sorted(self.held)]
        start = self._next.get(to, 0) % len(ordered)
        first = next(self.packets(ordered[start:] + ordered[:start]))
        self._next[to] = start + len(_bundle(first))
        return first

    def packets(self, signed: Iterable[bytes]) -> Iterator[bytes]:
        """Yield the contents of packets, each with as many announcements as it can carry."""
        bundle: list[bytes] = []
        for one in signed:
            if bundle and sum(map(len, bundle)) + len(one) + FRAME_BYTES * (len(bundle) + 1) > self.most + FRAME_BYTES:
                yield msgspec.msgpack.encode(bundle)
                bundle = []
            bundle.append(one)
        if bundle:
            yield msgspec.msgpack.encode(bundle)


_bundle = msgspec.msgpack.Decoder(list[bytes]).decode


def _number(signed: bytes) -> int:
    """Hash of an announcement as a number. The digest of a board is the XOR of these numbers."""
    return int.from_bytes(hashlib.sha256(signed).digest()[:DIGEST_BYTES])


def certificate_in(announcement: Announcement) -> x509.Certificate:
    """Return the certificate in an announcement."""
    with parsing(f"the certificate for {announcement.about}"):
        found = x509.load_der_x509_certificate(announcement.body)
        _ = found.subject, found.extensions, found.not_valid_after_utc  # these parts are parsed on first access
        return found


class _Package(msgspec.Struct, frozen=True, array_like=True):
    roster: bytes
    announcements: list[bytes]


def packaged(roster: bytes, announcements: Iterable[bytes]) -> bytes:
    """Pack a roster, or none, and announcements, for recipients that get rosters and no packets.

    These are relays and non-members, including members that are still in a run that was amended.
    """
    announcements = list(announcements)
    return (
        PACKAGE_PREFIX + msgspec.msgpack.encode(_Package(roster, announcements))
        if announcements or not roster
        else roster
    )


def unpackaged(data: bytes) -> tuple[bytes, list[bytes]]:
    """Return the roster and the announcements of a package: the inverse of :func:`packaged`."""
    if not data.startswith(PACKAGE_PREFIX):
        return data, []
    found = from_msgpack(data[len(PACKAGE_PREFIX) :], _Package, "the package")
    return found.roster, found.announcements


def unbundled(content: bytes) -> list[bytes]:
    """Return the announcements in a packet. Raise :class:`Refused` for other content."""
    return parsed(_bundle, content, "not announcements")


# -- files ------------------------------------------------------------------------------------------------------------


def file_of(folder: Path, topic: Topic) -> Path:
    """Path of an announcement in the folder of a group or of a peer."""
    return folder / FOLDER / "-".join(topic)


def write_announcement(folder: Path, topic: Topic, signed: bytes, durable: bool = True) -> None:
    """Write an announcement to a folder."""
    path = file_of(folder, topic)
    private_folder(path.parent)
    write_atomic(path, signed, private=True, durable=durable)


def signed_in(folder: Path) -> list[bytes]:
    """Return the signed announcements in a folder, unchecked; an empty list if the folder does not exist."""
    found = []
    for path in sorted(folder.iterdir() if folder.is_dir() else ()):
        if path.is_file() and not path.name.startswith("."):
            with contextlib.suppress(FileError):  # it has just been replaced
                found.append(read_bounded(path))
    return found
