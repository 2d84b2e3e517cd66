"""Maintenance of a running peer: announcements, certificates, and the admin's folder.

A peer keeps announcements, and acts on those that concern it. A peer that runs beside the admin's folder looks into it
every minute: it sends out new rosters and announcements, and renews certificates that expire soon. So the certificates
of a group with one such peer never expire.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..._files import read_bounded
from ...errors import CoterieError, DataError, FileError
from ..group import announcements as news
from ..group.amendments import differences, in_words, proposed, waits
from ..group.charter import charter_in
from ..group.identity import read_certificate
from ..group.renewal import install_certificate, renew, update_announcements

if TYPE_CHECKING:
    from .mailbox import Send
    from .program import Program

#: Seconds between two looks at the peer's own folder, and at the admin's folder.
LOOK_EVERY, ADMIN_EVERY = 1.0, 60.0
#: Seconds between two messages to relays, which are repeated because a relay may be unreachable.
RELAYS_EVERY = 600.0
#: Days before expiry from which on a certificate is reported, and renewed if the admin's folder is available; and
#: certificates renewed at a time, so that messages do not wait.
RENEW_DAYS, MAX_RENEWALS_AT_ONCE = 30.0, 8


class PeerMaintenance:
    """Maintenance of a running peer: see :meth:`look`.

    Parameters
    ----------
    program : Program
    send : callable
        Sends the packets that the node returns.
    admin : path, optional
        The group's folder, if this peer renews certificates for the admin.
    moment : callable
        Returns the seconds since 1970.
    """

    def __init__(
        self,
        program: Program,
        send: Callable[[list[Send]], None],
        admin: Path | None = None,
        moment: Callable[[], float] = time.time,
    ):
        self.program, self.folder, self.admin, self._moment = program, program.folder, admin, moment
        self.node, self._send = program.node, send
        self.proposal: dict[str, Any] | None = None
        self.expires: datetime | None = None
        self._kept: dict[news.Topic, bytes] = {}  # announcements on disk
        self._stamp = self._certificate_stamp = 0
        self._tried: set[bytes] = set()  # certificates that were tried
        self._admin_at = self._relays_at = 0.0
        self._told: set[str] = set()
        self._for_non_members = b""
        self._read()
        self._look_at_certificate()

    def look(self) -> None:
        """Do everything that is due."""
        self._read()
        if self.admin is not None and self.program.clock() >= self._admin_at:
            self._admin_at = self.program.clock() + ADMIN_EVERY
            try:
                self._look_at_admin_folder(self.admin)
            except (CoterieError, OSError) as error:
                self.node.errors.report("admin")
                self._say_once("failure", f"the admin's folder {self.admin}: {error}")
        self.node.group.board.forget(self._now)
        self._install()
        self._keep()
        self._bring_to_relays()
        non_members = self.node.group.for_non_members
        if non_members != self._for_non_members:
            self._for_non_members = non_members
            self.program.transport.keep_roster(non_members)
        self._look_at_certificate()
        self._look_at_expiry()
        self._look_at_proposal()
        if waits(self.folder):
            self.program.log("accepted", what="another charter was accepted: the peer begins again under it")
            self.program.begin_again()

    @property
    def _now(self) -> datetime:
        return datetime.fromtimestamp(self._moment(), UTC)

    def _say_once(self, event: str, what: str) -> None:
        if what not in self._told and len(self._told) < 1000:
            self._told.add(what)
            self.program.log(event, what=what)

    # -- this peer's folder -------------------------------------------------------------------------------------------

    def _read(self) -> None:
        """Take over announcements that `coterie peer update` has written."""
        with contextlib.suppress(FileNotFoundError):
            stamp = (self.folder / news.FOLDER).stat().st_mtime_ns
            if stamp != self._stamp:
                self._stamp = stamp
                self._take(news.signed_in(self.folder / news.FOLDER))

    def _take(self, signed: list[bytes]) -> None:
        sends = self.node.take_announcements(self.program.clock(), signed)
        if sends:
            self._send(sends)

    def _keep(self) -> None:
        """Write new announcements, and delete files of those that are no longer held."""
        signed = self.node.group.board.signed
        for topic in self._kept.keys() - signed.keys():
            news.file_of(self.folder, topic).unlink(missing_ok=True)
            del self._kept[topic]
        for topic, content in signed.items():
            if self._kept.get(topic) != content:
                path = news.file_of(self.folder, topic)
                if not (path.exists() and path.read_bytes() == content):
                    # Durable=False: other peers have it, too.
                    news.write_announcement(self.folder, topic, content, durable=False)
                    self.program.log("announcement", kind=topic[0], about=topic[1])
                self._kept[topic] = content

    def _bring_to_relays(self) -> None:
        """Send relays their certificates and the next charter as rosters, because relays get no packets."""
        relays, run = {relay.name for relay in self.node.group.roster.relays}, self.node.charter.run
        if not relays or self.program.clock() < self._relays_at:
            return
        self._relays_at = self.program.clock() + RELAYS_EVERY
        signed = self.node.group.board.signed
        found = [signed[news.CERTIFICATE, name] for name in sorted(relays) if (news.CERTIFICATE, name) in signed]
        found += [signed[news.CHARTER, run]] if (news.CHARTER, run) in signed else []
        if found:
            self.program.transport.publish_roster(news.packaged(b"", found))

    # -- certificates -------------------------------------------------------------------------------------------------

    def _install(self) -> None:
        """Install a new certificate of this peer, if there is one."""
        announcement = self.node.group.board.held.get((news.CERTIFICATE, self.node.group.name_of(self.node.address)))
        if announcement is None or announcement.body in self._tried:
            return
        self._tried.add(announcement.body)
        try:
            install_certificate(self.folder, announcement, self._now)
        except DataError as error:
            self.node.errors.report("certificate", f"a new certificate was not installed: {error}")

    def _look_at_certificate(self) -> None:
        """Use a certificate that is new in the folder. Connections stay open."""
        path = self.folder / "tls.crt"
        try:
            stamp = path.stat().st_mtime_ns
        except FileNotFoundError:  # the transport is in memory
            return
        if stamp == self._certificate_stamp:
            return
        first, self._certificate_stamp = self._certificate_stamp == 0, stamp
        try:
            self.expires = read_certificate(read_bounded(path), str(path)).not_valid_after_utc
        except (DataError, FileError) as error:
            self._say_once("failure", str(error))
            return
        self.program.expires = self.expires.isoformat()
        if not first:
            self.program.transport.reload()
            self.program.log("certificate", expires=self.program.expires)

    def _look_at_expiry(self) -> None:
        if self.expires is None:
            return
        left = self.expires - self._now
        if left.total_seconds() <= 0:
            why = expired(self.folder, self.expires, self._now)
            self.node.errors.report("expiry", why)
            self.program.give_up(why)
        elif left.days < RENEW_DAYS:
            text = f"the certificate expires on {self.expires:%Y-%m-%d}: {HOW_TO_RENEW.format(folder=self.folder)}"
            if not self.node.errors["expiry"]:
                self.node.errors.report("expiry", text)
            self._say_once("expiry", text)
        else:
            self.node.errors.pop("expiry", None)

    # -- another charter ----------------------------------------------------------------------------------------------

    def _look_at_proposal(self) -> None:
        """Show the charter that the admin proposes."""
        board, charter = self.node.group.board, self.node.charter
        if (news.CHARTER, charter.run) not in board.held:
            return
        try:
            found = proposed(board.held, charter)
        except DataError as error:
            self._say_once("failure", f"the admin proposes another charter, which cannot be read: {error}")
            return
        if found is None or (self.proposal or {}).get("run") == found.charter.run:
            return
        changes = differences(charter, found.charter)
        command = f"coterie peer accept {self.folder}"
        self.proposal = {"run": found.charter.run, "changes": in_words(changes), "accept": command}
        self.program.log("proposal", what=f"the admin proposes {in_words(changes)}; accept with {command}")

    # -- the admin's folder -----------------------------------------------------------------------------------------

    def _look_at_admin_folder(self, club: Path) -> None:
        """Send out new rosters and announcements in the admin's folder, and renew certificates that expire."""
        charter = charter_in(club)
        if charter.admin not in {self.node.charter.admin, *self.node.group.board.keys}:
            raise DataError("it is the folder of another group: correct admin = ... in peer.toml")
        # Otherwise the charter was amended, and this peer has not accepted it yet.
        if charter.run == self.node.charter.run:
            self._send(self.node.take_roster(self.program.clock(), read_bounded(club / "roster")))
        done = renew(club, RENEW_DAYS, most=MAX_RENEWALS_AT_ONCE, now=self._now)
        if done.renewed:
            self.program.log("renewed", names=done.renewed)
        if done.left:
            self._admin_at = 0.0  # the next look renews the rest
        if done.capped:
            self._say_once("failure", f"{', '.join(done.capped)}: the group's authority itself expires soon")
        self._take(news.signed_in(club / news.FOLDER))


class RelayMaintenance:
    """Maintenance of a running relay: it keeps announcements about itself."""

    def __init__(self, folder: Path, relay: Any, log: Callable[..., None]):
        self.folder, self.relay, self.log = folder, relay, log
        self._stamp = (folder / "tls.crt").stat().st_mtime_ns

    def take(self, data: bytes) -> bytes:
        """Unpack a received roster or package: keep announcements about this relay, and return the roster, which may be
        empty.
        """
        try:
            roster, announcements = news.unpackaged(data)
            if announcements:
                update_announcements(self.folder, announcements, only_own=True)
            return roster
        except (DataError, OSError) as error:
            self.log("failure", what=str(error))
            return b""

    def look(self) -> bool:
        """Use a new certificate. Return whether an amendment was accepted, so that the relay must start again."""
        try:
            stamp = (self.folder / "tls.crt").stat().st_mtime_ns
            if stamp != self._stamp:
                self._stamp = stamp
                self.relay.reload()
                self.log("certificate", what="a new one is used")
        except (OSError, CoterieError) as error:  # the old certificate is used as long as it is valid
            self.log("failure", what=str(error))
        return waits(self.folder)


#: What to do before a certificate expires.
HOW_TO_RENEW = (
    "the admin renews it (coterie group renew CLUB) and brings it to any one peer, or to this one: coterie peer "
    "update {folder} CLUB/announcements"
)


def expired(folder: Path, expires: datetime, now: datetime) -> str:
    """Return the text of the error with which a peer stops when its certificate has expired."""
    return (
        f"the certificate expired on {expires:%Y-%m-%d %H:%M} UTC, and by this machine's clock it is "
        f"{now:%Y-%m-%d %H:%M}: {HOW_TO_RENEW.format(folder=folder)}"
    )
