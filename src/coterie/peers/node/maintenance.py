"""What a running peer does with the admin's announcements: keeps them, acts upon those that concern it, and, beside the
admin's own folder, brings what is new there to the others.

A peer that runs with the admin's folder at hand looks into it every minute: newer lists of members and announcements go
out by themselves, and certificates that expire soon are renewed. So a group with one such peer never expires.
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
from ..group.charter import read_charter
from ..group.identity import read_certificate
from ..group.renewal import install_certificate, renew, update_announcements

if TYPE_CHECKING:
    from .mailbox import Send
    from .program import Program

#: Seconds between two looks at the peer's own folder, and at the admin's.
LOOK_EVERY, ADMIN_EVERY = 1.0, 60.0
#: Seconds between two times that relays are brought what concerns them: they may be away.
RELAYS_EVERY = 600.0
#: Days before a certificate expires from which on that is an error, and renewed where the admin's folder is at hand;
#: and how many are made at a time, so that messages do not wait.
SOON, AT_A_TIME = 30.0, 8


class PeerMaintenance:
    """Announcements of a running peer: see :meth:`look`.

    Parameters
    ----------
    program : Program
    send : callable
        Sends what the node answers.
    admin : path, optional
        The folder of the group, if this peer may do the admin's chores.
    moment : callable
        Seconds since 1970.
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
        self._kept: dict[news.Topic, bytes] = {}  # what is on disk
        self._stamp = self._certificate_stamp = 0
        self._tried: set[bytes] = set()  # certificates that were looked at
        self._admin_at = self._relays_at = 0.0
        self._told: set[str] = set()
        self._for_non_members = b""
        self._read()
        self._look_at_certificate()

    def look(self) -> None:
        """All that is due."""
        self._read()
        if self.admin is not None and self.program.clock() >= self._admin_at:
            self._admin_at = self.program.clock() + ADMIN_EVERY
            try:
                self._do_chores(self.admin)
            except (CoterieError, OSError) as error:
                self.node.errors.report("admin")
                self._say_once("error", f"the admin's folder {self.admin}: {error}")
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
        """Take over what `coterie peer update` has brought."""
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
        """What is new is written, and what nobody needs any more is deleted."""
        signed = self.node.group.board.signed
        for topic in self._kept.keys() - signed.keys():
            news.file_of(self.folder, topic).unlink(missing_ok=True)
            del self._kept[topic]
        for topic, content in signed.items():
            if self._kept.get(topic) != content:
                path = news.file_of(self.folder, topic)
                if not (path.exists() and path.read_bytes() == content):
                    news.write_announcement(self.folder, topic, content, durable=False)  # others have it, too
                    self.program.log("announcement", kind=topic[0], about=topic[1])
                self._kept[topic] = content

    def _bring_to_relays(self) -> None:
        """Relays are sent no packets, only lists of members: their certificates, and other charters, go that way."""
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
        """Keep a new certificate of this peer, if there is one."""
        announcement = self.node.group.board.held.get((news.CERTIFICATE, self.node.group.name_of(self.node.address)))
        if announcement is None or announcement.body in self._tried:
            return
        self._tried.add(announcement.body)
        try:
            install_certificate(self.folder, announcement, self._now)
        except DataError as error:
            self.node.errors.report("certificate", f"a new certificate was not taken: {error}")

    def _look_at_certificate(self) -> None:
        """A certificate that is new in the folder, from wherever, is used from now on: live links stay."""
        path = self.folder / "tls.crt"
        try:
            stamp = path.stat().st_mtime_ns
        except FileNotFoundError:  # in memory
            return
        if stamp == self._certificate_stamp:
            return
        first, self._certificate_stamp = self._certificate_stamp == 0, stamp
        try:
            self.expires = read_certificate(read_bounded(path), str(path)).not_valid_after_utc
        except (DataError, FileError) as error:
            self._say_once("error", str(error))
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
        elif left.days < SOON:
            text = f"the certificate expires on {self.expires:%Y-%m-%d}: {HOW_TO_RENEW.format(folder=self.folder)}"
            if not self.node.errors["expiry"]:
                self.node.errors.report("expiry", text)
            self._say_once("expiry", text)
        else:
            self.node.errors.pop("expiry", None)

    # -- another charter ----------------------------------------------------------------------------------------------

    def _look_at_proposal(self) -> None:
        """Show what the admin proposes."""
        board, charter = self.node.group.board, self.node.charter
        if (news.CHARTER, charter.run) not in board.held:
            return
        try:
            found = proposed(board.held, charter)
        except DataError as error:
            self._say_once("error", f"the admin proposes another charter, which cannot be read: {error}")
            return
        if found is None or (self.proposal or {}).get("run") == found.charter.run:
            return
        changes = differences(charter, found.charter)
        command = f"coterie peer accept {self.folder}"
        self.proposal = {"run": found.charter.run, "changes": in_words(changes), "accept": command}
        self.program.log("proposal", what=f"the admin proposes {in_words(changes)}; accept with {command}")

    # -- the admin's folder -----------------------------------------------------------------------------------------

    def _do_chores(self, club: Path) -> None:
        """Bring out what is new there, and renew what expires."""
        charter = read_charter(read_bounded(club / "charter.json"), str(club / "charter.json"))
        if charter.admin not in {self.node.charter.admin, *self.node.group.board.keys}:
            raise DataError("it is that of another group: correct admin = ... in peer.toml")
        if charter.run == self.node.charter.run:  # or the charter was amended, and this peer has not accepted it yet
            self._send(self.node.take_roster(self.program.clock(), read_bounded(club / "roster")))
        done = renew(club, SOON, most=AT_A_TIME, now=self._now)
        if done.renewed:
            self.program.log("renewed", names=done.renewed)
        if done.left:
            self._admin_at = 0.0  # the rest at the next look
        if done.capped:
            self._say_once("error", f"{', '.join(done.capped)}: the group's authority itself expires soon")
        self._take(news.signed_in(club / news.FOLDER))


class RelayMaintenance:
    """Announcements of a running relay: it keeps what concerns itself."""

    def __init__(self, folder: Path, relay: Any, log: Callable[..., None]):
        self.folder, self.relay, self.log = folder, relay, log
        self._stamp = (folder / "tls.crt").stat().st_mtime_ns

    def take(self, data: bytes) -> bytes:
        """What came in the way of lists of members: the list, or nothing. Announcements that concern the relay are kept."""
        try:
            roster, announcements = news.unpackaged(data)
            if announcements:
                update_announcements(self.folder, announcements, only_own=True)
            return roster
        except (DataError, OSError) as error:
            self.log("error", what=str(error))
            return b""

    def look(self) -> bool:
        """Use a new certificate; whether another charter was accepted, and the relay must begin again."""
        try:
            stamp = (self.folder / "tls.crt").stat().st_mtime_ns
            if stamp != self._stamp:
                self._stamp = stamp
                self.relay.reload()
                self.log("certificate", what="a new one is used")
        except (OSError, CoterieError) as error:  # the old one is used as long as it lasts
            self.log("error", what=str(error))
        return waits(self.folder)


#: What to do before a certificate expires.
HOW_TO_RENEW = (
    "the admin renews it (coterie group renew CLUB) and brings it to any one peer, or to this one: coterie peer "
    "update {folder} CLUB/announcements"
)


def expired(folder: Path, expires: datetime, now: datetime) -> str:
    """Why a peer stops."""
    return (
        f"the certificate expired on {expires:%Y-%m-%d %H:%M} UTC, and by this machine's clock it is "
        f"{now:%Y-%m-%d %H:%M}: {HOW_TO_RENEW.format(folder=folder)}"
    )
