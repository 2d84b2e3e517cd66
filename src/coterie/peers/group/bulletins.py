"""Bulletins: what the steward has signed beside the list of members, and peers pass on to each other.

A bulletin has a topic (a kind, and whom or what it is about), a version and a body. Of each topic a peer keeps the
newest, for itself and for those who were away. Kinds that it does not know it passes on all the same.

===============  ============================  ======================================================================
kind             about                         body
===============  ============================  ======================================================================
``certificate``  name of a member or a relay   its new certificate: :mod:`coterie.peers.group.renewal`
``charter``      run of the charter as it was  the charter as it is to be: :mod:`coterie.peers.group.amendments`
===============  ============================  ======================================================================

A greeting holds a digest of what its sender has (:attr:`Board.digest`). Whoever has other bulletins answers with as
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

#: What begins with this is a list of members and bulletins together.
PACKAGE = b"coterie package 1\n"
#: Kinds that peers act upon.
CERTIFICATE, CHARTER = "certificate", "charter"
#: Topics that a peer keeps at most; and bytes of msgpack around the bulletins of a packet, and around each.
MOST_TOPICS, FRAME = 4096, 5
#: Bytes of the digest of all bulletins.
DIGEST = 8
#: Seconds between two packets of bulletins that a greeting is answered with; and bulletins of one member that are
#: looked at in a second, and at once.
BRING_EVERY, BULLETINS_PER_SECOND, BULLETINS_AT_ONCE = 10.0, 8.0, 1024.0
#: The folder of bulletins, in that of a group and in that of a peer.
FOLDER = "bulletins"

Topic = tuple[str, str]


class Bulletin(msgspec.Struct, frozen=True, array_like=True):
    """Something that the steward says to all."""

    kind: Annotated[str, Meta(pattern=r"^[a-z]{1,20}\Z")]
    about: Annotated[str, Meta(pattern=rf"^{NAME.pattern}\Z")]
    version: Count  # seconds since 1970, or one more than the last one
    body: bytes

    @property
    def topic(self) -> Topic:
        """Of all bulletins of a topic the newest counts."""
        return self.kind, self.about


#: How bulletins are signed.
BULLETINS = Signed(Bulletin, b"coterie bulletin 1\n")


def room(charter: Charter) -> int:
    """Bytes of a signed bulletin that a letter of a run can carry."""
    return charter.letter_bytes - OVERHEAD - 2 * FRAME


def sign_bulletin(bulletin: Bulletin, steward: SigningKey, most: int, what: str) -> bytes:
    """A bulletin as a file: the signature, and msgpack. `what` it is called if it is longer than `most` bytes."""
    signed = BULLETINS.pack(bulletin, steward, what)
    if len(signed) > most:
        raise ParameterError(
            f"{what} takes {len(signed)} bytes, and letters of this run carry {most}: its charter has too small a "
            "letter_bytes"
        )
    return signed


def read_bulletin(signed: bytes, keys: Collection[bytes], what: str = "the bulletin") -> Bulletin:
    """A bulletin that one of these keys has signed. Nothing of it is parsed before that is sure."""
    return BULLETINS.unpack(signed, keys, what)


class Board:
    """The newest bulletin of each topic, as a peer keeps them.

    Parameters
    ----------
    keys : set of bytes
        Who may sign them.
    most : int
        None is longer.
    """

    def __init__(self, keys: Collection[bytes], most: int):
        self.keys, self.most = frozenset(keys), most
        self.held: dict[Topic, Bulletin] = {}
        self.signed: dict[Topic, bytes] = {}
        self._content: set[bytes] = set()
        self._digest = 0
        self._until: dict[Topic, datetime] = {}
        self._next: dict[int, int] = {}  # where to go on with somebody
        self._brought: dict[int, float] = {}  # when somebody was last answered with bulletins
        self.reads = Buckets(BULLETINS_PER_SECOND, BULLETINS_AT_ONCE)  # how many of a member are looked at

    def knows(self, signed: bytes) -> bool:
        """Whether it is here already."""
        return signed in self._content

    @property
    def digest(self) -> bytes:
        """Of all that is here, in whatever order it came; of nothing, nothing."""
        return self._digest.to_bytes(DIGEST) if self.held else b""

    def take(self, signed: bytes) -> Bulletin:
        """Keep a bulletin, if it is signed, and newer than the one that is here; or it is :class:`Refused`."""
        if len(signed) > self.most:
            raise Refused("size", f"a bulletin of {len(signed)} bytes; at most {self.most}")
        try:
            new = read_bulletin(signed, self.keys)
            until = certificate_in(new).not_valid_after_utc if new.kind == CERTIFICATE else None
        except SignatureError as error:
            raise Refused("signature", str(error)) from None
        except DataError as error:
            raise Refused("format", str(error)) from None
        old = self.held.get(new.topic)
        if old is not None and new.version <= old.version:
            raise Refused("outdated", f"{' '.join(new.topic)}: version {new.version}, after {old.version}")
        if old is None and len(self.held) >= MOST_TOPICS:
            raise Refused("size", f"there are {MOST_TOPICS} bulletins already")
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
                read_bulletin(signed, self.keys)
            except SignatureError:
                self.drop(topic)

    def may_bring(self, now: float, to: int) -> bool:
        """Whether it is long enough since somebody was last brought some."""
        return once(self._brought, to, now, BRING_EVERY)

    def answer(self, now: float, to: int) -> bytes | None:
        """What to bring to somebody who has other bulletins: as many as a packet carries, and the next ones later."""
        if not self.held or not self.may_bring(now, to):
            return None
        ordered = [self.signed[topic] for topic in sorted(self.held)]
        start = self._next.get(to, 0) % len(ordered)
        first = next(self.packets(ordered[start:] + ordered[:start]))
        self._next[to] = start + len(_bundle(first))
        return first

    def packets(self, signed: Iterable[bytes]) -> Iterator[bytes]:
        """Bulletins as contents of packets, as many in each as it carries."""
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
    """A bulletin as a number: all of those that are here make the digest."""
    return int.from_bytes(hashlib.sha256(signed).digest()[:DIGEST])


def certificate_in(bulletin: Bulletin) -> x509.Certificate:
    """The certificate that a bulletin brings to whom it is about."""
    with parsing(f"the certificate for {bulletin.about}"):
        found = x509.load_der_x509_certificate(bulletin.body)
        _ = found.subject, found.extensions, found.not_valid_after_utc  # they are parsed when asked for
        return found


class _Package(msgspec.Struct, frozen=True, array_like=True):
    roster: bytes
    bulletins: list[bytes]


def packaged(roster: bytes, bulletins: Iterable[bytes]) -> bytes:
    """A list of members, or nothing, and bulletins, for those who are given lists of members and no packets.

    They are relays; and visitors, among whom are members that still are in a run that was amended.
    """
    bulletins = list(bulletins)
    return PACKAGE + msgspec.msgpack.encode(_Package(roster, bulletins)) if bulletins or not roster else roster


def unpackaged(data: bytes) -> tuple[bytes, list[bytes]]:
    """The other way round; what is no package is a list of members."""
    if not data.startswith(PACKAGE):
        return data, []
    found = from_msgpack(data[len(PACKAGE) :], _Package, "the package")
    return found.roster, found.bulletins


def unbundled(content: bytes) -> list[bytes]:
    """The bulletins in a packet; :class:`Refused` for anything else."""
    return parsed(_bundle, content, "not bulletins")


# -- files ------------------------------------------------------------------------------------------------------------


def file_of(folder: Path, topic: Topic) -> Path:
    """Where a bulletin is kept, in the folder of a group or of a peer."""
    return folder / FOLDER / "-".join(topic)


def write_bulletin(folder: Path, topic: Topic, signed: bytes, durable: bool = True) -> None:
    """Keep a bulletin."""
    path = file_of(folder, topic)
    private_folder(path.parent)
    write_atomic(path, signed, private=True, durable=durable)


def signed_in(folder: Path) -> list[bytes]:
    """What is in a folder of bulletins, and may be good or not; nothing if there is no such folder."""
    found = []
    for path in sorted(folder.iterdir() if folder.is_dir() else ()):
        if path.is_file() and not path.name.startswith("."):
            with contextlib.suppress(FileError):  # it has just been replaced
                found.append(read_bounded(path))
    return found
