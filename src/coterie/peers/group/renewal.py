"""Renewal of certificates that expire: the admin signs new ones as announcements, and their owners install them.

A new certificate is for the TLS key that the member has already. So nothing secret travels, and anybody can pass the
announcement on. The owner checks the new certificate as it checked the first one.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from ..._files import Where, locked, read_bounded, write_atomic
from ...errors import DataError, SignatureError
from ..wire.packet import Refused
from . import announcements
from . import identity as ids
from .announcements import (
    CERTIFICATE,
    CHARTER,
    FOLDER,
    Announcement,
    Board,
    Topic,
    certificate_in,
    read_announcement,
    room,
)
from .charter import charter_in
from .groups import Group, _joined, admin_at, refresh
from .identity import MEMBER_DAYS, Identity
from .roster import Roster, read_roster, relation, signers

#: Minimal time by which a new certificate must outlast the old one.
MIN_EXTENSION = timedelta(days=1)


class Renewed(NamedTuple):
    """Result of :func:`renew`, as names of members and relays."""

    renewed: list[str]
    unknown: list[str]  # the admin has no certificate of them; they have to be invited again
    capped: list[str]  # not renewed, because the authority's certificate expires no later than theirs
    revoked: list[str]  # not renewed, because their TLS keys may be stolen; they have to be invited again with new keys
    left: int  # number of certificates that are due, but were left for the next call


def renew(
    group: Where, within: float = 60.0, days: int = MEMBER_DAYS, *, most: int | None = None, now: datetime | None = None
) -> Renewed:
    """Sign new certificates for all members whose certificates expire `within` days, as announcements of the group."""
    moment = datetime.now(UTC) if now is None else now
    done = Renewed([], [], [], [], 0)
    with admin_at(group) as loaded:
        register = loaded.register
        for one in loaded.roster.everybody:
            if one.name not in register.certificates:
                done.unknown.append(one.name)
                continue
            old = certificate_in(Announcement(CERTIFICATE, one.name, 1, register.certificates[one.name]))
            if old.not_valid_after_utc - moment > timedelta(days=within):
                continue
            if ids.serial_of(old) in loaded.roster.revoked:
                done.revoked.append(one.name)
                continue
            # Valid from the beginning of the old one: so it is valid today even if this clock is years ahead.
            since, ca = old.not_valid_before_utc, (loaded.ca_key, loaded.ca)
            new = ids.sign_csr(old, *ca, name=one.name, endpoint=one.endpoint, days=days, since=since, now=moment)
            if new.not_valid_after_utc - old.not_valid_after_utc < MIN_EXTENSION:
                done.capped.extend([one.name] if new.not_valid_after_utc == loaded.ca.not_valid_after_utc else [])
            elif most is not None and len(done.renewed) >= most:
                done = done._replace(left=done.left + 1)
            else:
                post(loaded, CERTIFICATE, one.name, ids.certificate_der(new), f"the certificate of {one.name}", moment)
                register = register.with_certificate(one.name, new)
                done.renewed.append(one.name)
        if done.renewed:
            loaded.keep_register(register)  # last: after a crash, renewals that are not recorded are repeated
    return done


def post(group: Group, kind: str, about: str, body: bytes, what: str, now: datetime | None = None) -> bytes:
    """Sign the next announcement of a topic, and write it to the group's folder. `what` names it in an error."""
    version = int(time.time() if now is None else now.timestamp())
    path = announcements.file_of(group.folder, (kind, about))
    if path.exists():
        old = read_announcement(read_bounded(path), signers(group.charter, group.roster), str(path))
        version = max(version, old.version + 1)  # even if the clock was set back
    signed = announcements.sign_announcement(
        Announcement(kind, about, version, body), group.admin, room(group.charter), what
    )
    announcements.write_announcement(group.folder, (kind, about), signed)
    return signed


# -- a peer -----------------------------------------------------------------------------------------------------------


def install_certificate(folder: Path, announcement: Announcement, now: datetime | None = None) -> datetime | None:
    """Install a new certificate in the folder of its peer, after checking it. Return its expiry time.

    Return None if the certificate expires no later than the current one. Raise a DataError if it is not for this peer.
    """
    peer = Identity.load(folder)
    if announcement.topic != (CERTIFICATE, peer.name):
        raise DataError(f"{' '.join(announcement.topic)} is not a certificate of {peer.name}")
    new = certificate_in(announcement)
    with locked(folder):
        ca = ids.issuer_of(new, ids.read_authorities(peer.folder / "ca.crt"))
        if new.not_valid_after_utc <= peer.certificate.not_valid_after_utc:
            return None
        ids.check_certificate(new, ca, name=peer.name, key=peer.tls, endpoint=peer.listen, now=now)
        write_atomic(peer.folder / "tls.crt", ids.certificate_pem(new))
    return new.not_valid_after_utc


def board_of(folder: Path) -> Board:
    """Read the announcements in the folder of a peer that has joined. The peer's certificate is not checked."""
    charter, roster = _joined(Identity.load(folder))
    board = Board(signers(charter, roster), room(charter))
    for signed in announcements.signed_in(folder / FOLDER):
        with contextlib.suppress(Refused):
            board.take(signed)
    return board


def update_announcements(folder: Path, signed: Iterable[bytes], *, only_own: bool = False) -> list[Topic]:
    """Write announcements that are new to the peer of a folder, and install its certificate. Return the new topics.

    An announcement that the admin has not signed is an error; an outdated one is skipped. A running peer passes new
    announcements on.
    """
    peer, board, new = Identity.load(folder), board_of(folder), []
    charter, _ = _joined(peer)
    for one in signed:
        if board.knows(one):
            continue
        try:
            taken = board.take(one)
        except Refused as refusal:
            if refusal.reason == "outdated":
                continue
            raise
        if not only_own or taken.topic in ((CERTIFICATE, peer.name), (CHARTER, charter.run)):
            announcements.write_announcement(folder, taken.topic, one)
            new.append(taken.topic)
    if (CERTIFICATE, peer.name) in new:
        # Last, so that an error in the certificate does not keep other announcements out.
        install_certificate(folder, board.held[CERTIFICATE, peer.name])
    return new


def update(folder: Where, source: Where) -> tuple[Roster, list[Topic]]:
    """Take over what the admin has signed: a roster, an announcement, a folder of announcements, or a group's
    folder.
    """
    peer, path = Identity.load(folder), Path(source)
    charter, held = _joined(peer)
    if path.is_dir():
        new = update_announcements(
            peer.folder, announcements.signed_in(path / FOLDER if (path / "roster").exists() else path)
        )
        if (path / "roster").exists():
            content = read_bounded(path / "roster")
            # After an amendment the roster is of the next run, which `peer accept` installs.
            same = charter_in(path).run == charter.run
            if same and relation(held, read_roster(content, charter, str(path / "roster"))) == "newer":
                held = refresh(peer.folder, path / "roster")
        return held, new
    try:
        read_announcement(read_bounded(path), signers(charter, held))
    except SignatureError:
        return refresh(peer.folder, path), []
    return held, update_announcements(peer.folder, [read_bounded(path)])
