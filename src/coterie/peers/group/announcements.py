"""Announcements: what the admin has signed beside the list of members, and peers pass on to each other.

An announcement has a topic (a kind, and whom or what it is about), a version and a body. Of each topic a peer keeps the
newest, for itself and for those who were away. Kinds that it does not know it passes on all the same.

===============  ============================  ======================================================================
kind             about                         body
===============  ============================  ======================================================================
``certificate``  name of a member or a relay   its new certificate: :mod:`coterie.peers.group.renewal`
``charter``      run of the charter as it was  the charter as it is to be: :mod:`coterie.peers.group.amendments`
===============  ============================  ======================================================================

A greeting holds a digest of what its sender has (:attr:`Board.digest`). Whoever has other announcements answers with as
many of its own as a packet carries, and with the next ones at the next greeting. New ones go to all neighbours at once.
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
from ..wire.packet import OVERHEAD, Refused, parsed
from .charter import Charter
from .identity import NAME, parsing
from .records import Count, from_msgpack
from .signed import Signed, SigningKey

#: What begins with this is a list of members and announcements together.
PACKAGE = b"coterie package 1\n"
#: Kinds that peers act upon.
CERTIFICATE, CHARTER = "certificate", "charter"
#: Topics that a peer keeps at most; and bytes of msgpack around the announcements of a packet, and around each.
MOST_TOPICS, FRAME = 4096, 5
#: Bytes of the digest of all announcements.
DIGEST = 8
#: Seconds between two packets of announcements that a greeting is answered with; and announcements of one member that are
#: looked at in a second, and at once.
BRING_EVERY, ANNOUNCEMENTS_PER_SECOND, ANNOUNCEMENTS_AT_ONCE = 10.0, 8.0, 1024.0
#: The folder of announcements, in that of a group and in that of a peer.
FOLDER = "announcements"

Topic = tuple[str, str]


class Announcement(msgspec.Struct, frozen=True, array_like=True):
    """Something that the admin says to all."""

    kind: Annotated[str, Meta(pattern=r"^[a-z]{1,20}\Z")]
    about: Annotated[str, Meta(pattern=rf"^{NAME.pattern}\Z")]
    version: Count  # seconds since 1970, or one more than the last one
    body: bytes

    @property
    def topic(self) -> Topic:
        """Of all announcements of a topic the newest counts."""
        return self.kind, self.about


#: How announcements are signed.
ANNOUNCEMENTS = Signed(Announcement, b"coterie announcement 2\n")


def room(charter: Charter) -> int:
    """Bytes of a signed announcement that a message of a run can carry."""
    return charter.message_bytes - OVERHEAD - 2 * FRAME


def sign_announcement(announcement: Announcement, admin: SigningKey, most: int, what: str) -> bytes:
    """An announcement as a file: the signature, and msgpack. `what` it is called if it is longer than `most` bytes."""
    signed = ANNOUNCEMENTS.pack(announcement, admin, what)
    if len(signed) > most:
        raise ParameterError(
            f"{what} takes {len(signed)} bytes, and messages of this run carry {most}: its charter has too small a "
            "message_bytes"
        )
    return signed


def read_announcement(signed: bytes, keys: Collection[bytes], what: str = "the announcement") -> Announcement:
    """An announcement that one of these keys has signed. Nothing of it is parsed before that is sure."""
    return ANNOUNCEMENTS.unpack(signed, keys, what)


class Board:
    """The newest announcement of each topic, as a peer keeps them.

    Parameters
    ----------
    keys : set of bytes
        Who may sign them.
    most : int
        None is longer.
    """

    def __init__(self, keys: Collection[bytes], most: int):
        self.keys, self.most = frozenset(keys), most
        self.held: dict[Topic, Announcement] = {}
        self.signed: dict[Topic, bytes] = {}
        self._content: set[bytes] = set()
        self._digest = 0
        self._until: dict[Topic, datetime] = {}
        self._next: dict[int, int] = {}  # where to go on with somebody
        self._brought: dict[int, float] = {}  # when somebody was last answered with announcements
        self.reads = Buckets(ANNOUNCEMENTS_PER_SECOND, ANNOUNCEMENTS_AT_ONCE)  # how many of a member are looked at

    def knows(self, signed: bytes) -> bool:
        """Whether it is here already."""
        return signed in self._content

    @property
    def digest(self) -> bytes:
        """Of all that is here, in whatever order it came; of nothing, nothing."""
        return self._digest.to_bytes(DIGEST) if self.held else b""

    def take(self, signed: bytes) -> Announcement:
        """Keep an announcement, if it is signed, and newer than the one that is here; or it is :class:`Refused`."""
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
        if old is None and len(self.held) >= MOST_TOPICS:
            raise Refused("size", f"there are {MOST_TOPICS} announcements already")
        self.drop(new.topic)
        self.held[new.topic], self.signed[new.topic] = new, signed
        if until is not None:
            self._until[new.topic] = until
        self._content.add(signed)
        self._digest ^= _number(signed)
        return new

    def drop(self, topic: Topic) -> None:
        """Keep it no longer."""
        if topic in self.held:
            signed = self.signed.pop(topic)
            del self.held[topic]
            self._until.pop(topic, None)
            self._content.discard(signed)
            self._digest ^= _number(signed)

    def forget(self, moment: datetime) -> None:
        """Drop what nobody needs any more."""
        for topic in [topic for topic, until in self._until.items() if until <= moment]:
            self.drop(topic)

    def trust(self, keys: Collection[bytes]) -> None:
        """Other keys sign from now on: what is here must be signed by one of them."""
        if frozenset(keys) == self.keys:
            return
        self.keys = frozenset(keys)
        for topic, signed in list(self.signed.items()):
            try:
                read_announcement(signed, self.keys)
            except SignatureError:
                self.drop(topic)

    def may_bring(self, now: float, to: int) -> bool:
        """Whether it is long enough since somebody was last brought some."""
        return once(self._brought, to, now, BRING_EVERY)

    def answer(self, now: float, to: int) -> bytes | None:
        """What to bring to somebody who has other announcements: as many as a packet carries, and the next ones later."""
        if not self.held or not self.may_bring(now, to):
            return None
        ordered = [self.signed[topic] for topic in sorted(self.held)]
        start = self._next.get(to, 0) % len(ordered)
        first = next(self.packets(ordered[start:] + ordered[:start]))
        self._next[to] = start + len(_bundle(first))
        return first

    def packets(self, signed: Iterable[bytes]) -> Iterator[bytes]:
        """Announcements as contents of packets, as many in each as it carries."""
        bundle: list[bytes] = []
        for one in signed:
            if bundle and sum(map(len, bundle)) + len(one) + FRAME * (len(bundle) + 1) > self.most + FRAME:
                yield msgspec.msgpack.encode(bundle)
                bundle = []
            bundle.append(one)
        if bundle:
            yield msgspec.msgpack.encode(bundle)


_bundle = msgspec.msgpack.Decoder(list[bytes]).decode


def _number(signed: bytes) -> int:
    """An announcement as a number: all of those that are here make the digest."""
    return int.from_bytes(hashlib.sha256(signed).digest()[:DIGEST])


def certificate_in(announcement: Announcement) -> x509.Certificate:
    """The certificate that an announcement brings to whom it is about."""
    with parsing(f"the certificate for {announcement.about}"):
        found = x509.load_der_x509_certificate(announcement.body)
        _ = found.subject, found.extensions, found.not_valid_after_utc  # they are parsed when asked for
        return found


class _Package(msgspec.Struct, frozen=True, array_like=True):
    roster: bytes
    announcements: list[bytes]


def packaged(roster: bytes, announcements: Iterable[bytes]) -> bytes:
    """A list of members, or nothing, and announcements, for those who are given lists of members and no packets.

    They are relays; and non-members, among whom are members that still are in a run that was amended.
    """
    announcements = list(announcements)
    return PACKAGE + msgspec.msgpack.encode(_Package(roster, announcements)) if announcements or not roster else roster


def unpackaged(data: bytes) -> tuple[bytes, list[bytes]]:
    """The other way round; what is no package is a list of members."""
    if not data.startswith(PACKAGE):
        return data, []
    found = from_msgpack(data[len(PACKAGE) :], _Package, "the package")
    return found.roster, found.announcements


def unbundled(content: bytes) -> list[bytes]:
    """The announcements in a packet; :class:`Refused` for anything else."""
    return parsed(_bundle, content, "not announcements")


# -- files ------------------------------------------------------------------------------------------------------------


def file_of(folder: Path, topic: Topic) -> Path:
    """Where an announcement is kept, in the folder of a group or of a peer."""
    return folder / FOLDER / "-".join(topic)


def write_announcement(folder: Path, topic: Topic, signed: bytes, durable: bool = True) -> None:
    """Keep an announcement."""
    path = file_of(folder, topic)
    private_folder(path.parent)
    write_atomic(path, signed, private=True, durable=durable)


def signed_in(folder: Path) -> list[bytes]:
    """What is in a folder of announcements, and may be good or not; nothing if there is no such folder."""
    found = []
    for path in sorted(folder.iterdir() if folder.is_dir() else ()):
        if path.is_file() and not path.name.startswith("."):
            with contextlib.suppress(FileError):  # it has just been replaced
                found.append(read_bounded(path))
    return found
