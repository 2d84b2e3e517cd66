"""A peer as a process: a clock, a transport, a disk and signals around a :class:`~coterie.peers.node.node.Node`.

One thread runs the node. The transport's threads only put received packets into a queue of bounded length. SIGTERM and
SIGINT end the peer cleanly. `kill -9` loses only the wake that it interrupts.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ..._files import Where, locked, read_bounded, write_atomic
from ...core.arrays import EVERYONE
from ...errors import CoterieError, DataError, IdentityError, LedgerError, ParameterError, RemovedError, StateError
from ..app.metrics import Log, Metrics, health, prometheus
from ..app.status import status_of
from ..group.groups import REVOKED, is_revoked, keep_authorities
from ..group.records import encoded
from ..group.roster import Fork, read_fork
from ..model.scores import model_of
from ..transport import Transport, contacts_of
from .audit_log import FILE as AUDIT_FILE
from .audit_log import AuditLog, Chronicle
from .jobs import LOOK_EVERY, Feed, finished, job_of
from .mailbox import INBOX_SECONDS, NOBODY, Inbox, Send
from .maintenance import LOOK_EVERY as MAINTENANCE_EVERY
from .maintenance import PeerMaintenance
from .node import Node
from .process import ANSWER_TIMEOUT, Live, notify
from .settings import Settings, addresses_of, read_muted

#: Time for which messages are gathered before they are processed, in mean intervals between two wakes: for a method
#: that keeps copies of its neighbours' models, and needs them when it wakes; for a method that may have to answer; and
#: the upper bound in seconds.
COPIES_GATHER_WAKES, GATHER_WAKES, MAX_GATHER_SECONDS = 2.0, 0.4, 0.2
#: Seconds between two runs of each task that is not urgent: status, links, summary of the log, model file, final model.
STATUS_EVERY, LINK_EVERY, SUMMARY_EVERY, MODEL_EVERY, FINAL_EVERY = 5.0, 0.5, 30.0, 10.0, 300.0
#: Seconds until a private peer first computes its own final model. Until then it predicts with the noisy one.
FIRST_FINAL_AFTER = 30.0
#: Maximal number of sources of failed connections that one line of the log names.
MAX_LOGGED_SOURCES = 5
#: Seconds between two writes of status and model of a peer in a lab.
LAB_EVERY = 1.0
#: Seconds between two searches for events of the audit log.
CHRONICLE_EVERY = 1.0


class Program:
    """Runs a node until it is told to stop."""

    def __init__(
        self,
        node: Node,
        transport: Transport,
        folder: Where,
        log: Log,
        *,
        lab: bool = False,  # an experiment: obey the file "blocked", write the model often, end with the parent process
        wakes: int | None = None,  # stop after so many wakes
        expires: str | None = None,  # expiry time of the certificate
        feed: Feed | None = None,  # the file of the peer's rows, which may change
        settings: Settings | None = None,  # from peer.toml
        admin: Path | None = None,  # the folder of the group, if this peer renews certificates for the admin
        clock: Callable[[], float] = time.monotonic,
    ):
        self.node, self.transport, self.folder, self.log = node, transport, Path(folder), log
        self.clock, self.lab, self.wakes, self.expires = clock, lab, wakes, expires
        self._feed = feed
        self._parent = os.getppid()
        self.inbox = Inbox(max(64, int(INBOX_SECONDS * node.charter.messages_per_second)))
        self._stopping = self._leaving = False
        self._wakes_before = node.wakes
        self._blocked: frozenset[int] = frozenset()
        self._linked: tuple[bytes, frozenset[int]] = (b"", frozenset())  # roster and neighbours of the transport
        self._told: Counter[str] = Counter()  # refusals that were logged, by reason
        self._strangers: Counter[str] = Counter()  # failed connections that were logged, by source
        self._last_error = ""
        self._here: set[int] = set()
        self._roster_stamp, self._roster_version = 0, node.group.roster.version
        self._authorities = node.group.roster.authorities
        self._alerts: dict[str, str] = {}
        self._fork: Fork | None = None
        self._fork_known = False  # whether the file of an earlier start was read
        self.settings = settings or Settings()
        self.period = LAB_EVERY if lab else STATUS_EVERY
        self._status: dict[str, Any] = {}
        node.health.status = lambda: self._status
        self._status_at = clock()
        self._status_made = threading.Event()
        self.unwritten: str | None = None  # the error that kept the status from being written
        self._live: Live | None = None
        # The folder of a lab is temporary, so it needs no audit log.
        self._chronicle = None if lab else Chronicle(self, AuditLog(self.folder / AUDIT_FILE))
        self._final: np.ndarray | None = None  # the model of a private peer for its own use
        self._finishing: threading.Thread | None = None
        self.began = clock()
        self.again, self.failure = False, ""  # whether to start again under another charter; why the peer gave up
        self.maintenance = PeerMaintenance(self, self._send, admin)
        self._due = dict.fromkeys(
            ("status", "link", "muted", "maintenance", "summary", "model", "rows", "chronicle"), 0.0
        )
        self._due["final"] = clock() + FIRST_FINAL_AFTER
        self.metrics = None
        if self.settings.metrics is not None:
            self.metrics = Metrics(self.settings.metrics, lambda: prometheus(self.status), lambda: health(self.status))

    # -- the loop -----------------------------------------------------------------------------------------------------

    def stop(self, leave: bool = False) -> None:
        """Make :meth:`run` return soon. May be called from a signal handler or another thread."""
        self._stopping, self._leaving = True, leave
        self.inbox.wake()

    def begin_again(self) -> None:
        """Stop, to start again under another charter."""
        self.again = True
        self.stop()

    def give_up(self, why: str) -> None:
        """Stop, because the peer cannot go on."""
        self.failure = why
        self.log("failure", what=f"stops: {why}")
        self.stop()

    @property
    def status(self) -> dict[str, Any]:
        """The last status, with its age in seconds. May be read in any thread."""
        return self._status | {"age": round(self.clock() - self._status_at, 1)}

    def tell(self) -> bytes:
        """Return the current status, or an older one if the loop does not answer in time. For other threads."""
        self._status_made.clear()
        self._due["status"] = 0.0
        self.inbox.wake()
        self._status_made.wait(ANSWER_TIMEOUT)
        return _json(self.status)

    def run(self) -> None:
        """Run until :meth:`stop`."""
        node, clock = self.node, self.clock
        gather = min(
            MAX_GATHER_SECONDS, (COPIES_GATHER_WAKES if node.method.edges.copies else GATHER_WAKES) / node.charter.rate
        )
        self._open()
        try:
            self._look_who_is_muted()
            self._link()
            self._send(node.open(clock()))
            me = node.group.name_of(node.address)
            self.log("started", name=me, run=node.charter.run, session=node.fresh.session, pid=os.getpid())
            self._tell_of_rows()
            self._begin()
            busy = False
            while not self._stopping:
                self._housekeeping(clock())
                if not busy:
                    self.inbox.wait(min(node.next_time, *self._due.values()) - clock())
                # Messages that come shortly after each other are processed together, because waking the process costs
                # more than a message. While there is much to do, the first message does not wake it, either.
                if (busy or self.inbox) and not self._stopping:
                    time.sleep(max(0.0, min(gather, node.next_time - clock())))
                items = self.inbox.take()
                busy = len(items) > 0
                for owner, data in items:
                    self._receive(clock(), owner, data)
                if node.group.signed is not self._linked[0]:
                    self._due["link"] = 0.0  # a new member may be waiting to be admitted
                now = clock()
                if now >= node.next_time:
                    self._send(node.tick(now))
                done = self.wakes is not None and node.wakes - self._wakes_before >= self.wakes
                if done or node.group.farewell is not None:
                    self.stop()
        except LedgerError as error:  # the peer must not go on without recording the spent budget
            self.log("failure", what=f"stops, because its ledger cannot be written: {error}")
            raise
        finally:
            self._end()
        if node.group.farewell is not None:
            raise RemovedError(node.errors.alerts["removed"])

    def _open(self) -> None:
        try:
            self.transport.open(self._deliver, roster=lambda signed: self._deliver(NOBODY, signed))
        except ParameterError as error:
            if "in use" not in str(error):
                raise
            raise IdentityError(
                f"{error}. Is a peer running there already, with this identity, from another copy of {self.folder}? "
                "Each peer needs an identity and a port of its own"
            ) from error.__cause__  # keep the system's error, after which a supervisor may try again

    def _deliver(self, owner: int, data: bytes) -> None:
        if owner != NOBODY or data != self.node.group.signed:  # skip copies of the held roster, which are frequent
            self.inbox.put(owner, data)

    def _receive(self, now: float, owner: int, data: bytes) -> None:
        if owner in self._blocked:
            return
        node = self.node
        self._send(node.take_signed(now, data) if owner == NOBODY else node.receive(now, owner, data))

    def _send(self, sends: list[Send]) -> None:
        for to, data, roster in sends:
            if roster:
                self.transport.publish_roster(data, to)
                continue
            if to == EVERYONE and not self._blocked and self._linked[1] == self.node.edges.keys():
                self.transport.send(EVERYONE, data)
                continue
            for j in self.node.edges if to == EVERYONE else (to,):
                if j not in self._blocked:
                    self.transport.send(j, data)

    def _begin(self) -> None:
        """Tell supervisor, audit log and status socket that the peer has started."""
        if self._chronicle is not None:
            self._chronicle.start()
        if hasattr(socket, "AF_UNIX"):
            try:
                self._live = Live(self.folder, self.tell)
            except OSError as error:
                self.log("failure", what=f"its status can only be read from the disk: {error}")
        notify("READY=1")

    def _end(self) -> None:
        """Save the state, say goodbye to the neighbours, and write the model."""
        if not self.again:
            notify("STOPPING=1")
        if self._live is not None:
            self._live.close()
        if self._chronicle is not None:
            self._chronicle.stop("it leaves" if self._leaving else "it was told to" if self._stopping else "an error")
        try:
            self._send(self.node.close(self._leaving))
            self._write_model()
            self._write_status(running=False)
            if self.node.group.farewell is not None:  # the roster that removed this peer is kept for the next start
                with locked(self.folder):
                    write_atomic(self.folder / "roster", self.node.group.farewell)
        except (OSError, CoterieError) as error:
            self.log("failure", what=str(error))
        finally:
            self.transport.close()
            if self.metrics is not None:
                self.metrics.close()
        if self.node.group.farewell is not None:
            self.log("removed", what=self.node.errors.alerts["removed"])
        if self._finishes:
            self.log("finishing", what="the model for this peer's own use; the network is left already")
            if self._finishing is not None:
                self._finishing.join()
            self._finish(job_of(self.node))
            self._write_model()
            self._write_status(running=False)  # the scores in the status are those of this model
        self.log("stopped", wakes=self.node.wakes)

    # -- periodic tasks -----------------------------------------------------------------------------------------------

    def _housekeeping(self, now: float) -> None:
        if now < min(self._due.values()):
            return
        for what, every, act in (
            ("link", LINK_EVERY, self._link),
            ("muted", LINK_EVERY, self._look_who_is_muted),
            ("maintenance", MAINTENANCE_EVERY, self.maintenance.look),
            ("status", self.period, self._write_status),
            ("summary", SUMMARY_EVERY, self._summarise),
            ("model", LAB_EVERY if self.lab else MODEL_EVERY, self._write_model),
            ("final", FINAL_EVERY, self._start_finishing),
            ("rows", LOOK_EVERY, self._look_for_rows),
            ("chronicle", CHRONICLE_EVERY, self._write_chronicle),
        ):
            if now >= self._due[what]:
                self._due[what] = now + every
                try:
                    act()
                except (LedgerError, StateError):
                    raise
                except (OSError, CoterieError) as error:  # the peer goes on with a full disk or a damaged file
                    self.node.errors.report("disk" if isinstance(error, OSError) else what, f"{what}: {error}")
                    self.log("failure", what=f"{what}: {error}")

    def _link(self) -> None:
        """Keep connections to the neighbours, and admit the members."""
        node = self.node
        if self.lab:
            with contextlib.suppress(OSError, ValueError):
                self._blocked = frozenset(json.loads((self.folder / "blocked").read_text()))
            if os.getppid() != self._parent:
                self.stop()
        self._look_for_roster()
        here = self.transport.alive() & set(node.edges)
        for j in sorted(here ^ self._here):
            self.log("connected" if j in here else "disconnected", name=node.group.name_of(j))
        self._here = here
        wanted = (node.group.signed, frozenset(node.edges))
        if wanted == self._linked:
            return
        contacts = {contact.address: contact for contact in contacts_of(node.group.roster)}
        if wanted[0] != self._linked[0]:
            self.transport.keep_roster(node.group.for_non_members)
            self.transport.use_relays(node.group.roster.relays)
            others = (contact for contact in contacts.values() if contact.address != node.address)
            self.transport.admit(others, node.group.roster.revoked)
        self.transport.link(contacts[j] for j in sorted(wanted[1]) if j in contacts)
        self._linked = wanted

    def _look_for_roster(self) -> None:
        """Compare the roster in the folder with the node's, and copy the newer one to the other place."""
        path = self.folder / "roster"
        stamp = path.stat().st_mtime_ns
        if stamp != self._roster_stamp:
            self._send(self.node.take_roster(self.clock(), read_bounded(path)))
        if self.node.group.roster.version != self._roster_version:
            with locked(self.folder):
                keep_authorities(self.folder, self.node.group.roster)
                write_atomic(path, self.node.group.signed)
            if is_revoked(self.folder, self.node.group.roster):
                self.node.errors.alerts["revoked"] = f"{REVOKED}: coterie group request {self.folder} --new-tls-key"
            if self.node.group.roster.authorities != self._authorities:
                self._authorities = self.node.group.roster.authorities
                self.transport.reload()
            self._roster_version, stamp = self.node.group.roster.version, path.stat().st_mtime_ns
            self.log("members", version=self.node.group.roster.version, count=len(self.node.group.roster.members))
        self._roster_stamp = stamp
        self._look_for_fork()
        alerts = dict(self.node.errors.alerts)
        for what, text in alerts.items():  # alerts are logged at once
            if self._alerts.get(what) != text and what != "removed":  # "removed" is logged at the end
                self.log(what, what=text)
        self._alerts = alerts

    def _look_for_fork(self) -> None:
        """Keep the two rosters of a fork in a file, as long as the fork lasts."""
        node, path = self.node, self.folder / "fork"
        if not self._fork_known:
            self._fork_known = True
            if path.exists():  # of an earlier start; the fork may be healed since
                with contextlib.suppress(DataError):  # a damaged file; other peers will report the fork again
                    self._send(node.take_roster(self.clock(), read_fork(read_bounded(path)).other))
                if node.group.fork is None:
                    path.unlink()
        if node.group.fork is self._fork:
            return
        self._fork = node.group.fork
        if node.group.fork is None:
            path.unlink(missing_ok=True)
            self.log("healed", version=node.group.roster.version)
        else:
            write_atomic(path, encoded(node.group.fork), durable=False)

    def _look_for_rows(self) -> None:
        """Take in the rows of a file that has changed. If they cannot be read, report the error and keep the
        old rows.
        """
        try:
            work = None if self._feed is None else self._feed.look()
            if work is not None:
                self.node.take_work(work)
        except DataError as error:
            text = f"the rows could not be read again, and those from before stay: {error}"
            self.node.errors.report("data", text)
            return
        if work is not None:
            self._due |= {"model": 0.0, "status": 0.0}
            self._tell_of_rows()

    def _tell_of_rows(self) -> None:
        """Log the number of rows, and the notes on how they were read."""
        work = self.node.work
        aside = int(work.seen_labels.size) if work.aside else 0
        self.log("rows", count=work.size, aside=aside, **({"notes": list(work.notes)} if work.notes else {}))

    def _summarise(self) -> None:
        """Log all refusals since the last summary in one line."""
        refused = self.node.mail.gate.refused.copy()
        if new := refused - self._told:
            self.log("refused", **new, last=self.node.mail.last_refusal)
        if self.node.errors.last != self._last_error:
            self._last_error = self.node.errors.last
            self.log("failure", what=self._last_error)
        self._told = refused
        reasons = self.transport.strangers()
        came = Counter({source: sum(counts.values()) for source, counts in reasons.items()})
        if strangers := came - self._strangers:
            busiest = {source: reasons[source] for source, _ in strangers.most_common(MAX_LOGGED_SOURCES)}
            self.log("strangers", connections=strangers.total(), sources=len(strangers), busiest=busiest)
        self._strangers = came

    def _look_who_is_muted(self) -> None:
        """Mute the members that the file ``muted`` names."""
        node = self.node
        wanted = addresses_of(read_muted(self.folder), node.group.roster) - {node.address}
        if wanted != node.group.muted:
            node.mute(self.clock(), wanted)
            self.log("muted", names=sorted(node.group.name_of(j) for j in wanted))
            self._write_chronicle()  # at once, because the mute may be undone soon

    def _write_status(self, running: bool = True) -> None:
        self._status, self._status_at = status_of(self, running), self.clock()
        notify("WATCHDOG=1")
        try:
            write_atomic(self.folder / "status.json", _json(self._status), private=True, durable=False)
            self.unwritten = None
        except OSError as error:  # processes that ask the peer itself see the error; the loop counts it, and goes on
            self.unwritten = self._status["status_error"] = str(error)
            self._status["errors"]["disk"] = self.node.errors["disk"] + 1
            raise
        finally:
            self._status_made.set()

    def _write_chronicle(self) -> None:
        if self._chronicle is not None:
            failed = self._chronicle.audit.failed
            self._chronicle.look()
            for _ in range(self._chronicle.audit.failed - failed):
                self.node.errors.report("audit")

    @property
    def _finishes(self) -> bool:
        """Whether the peer's own model differs from the published one. A lab shows only the published one."""
        return not self.lab and self.node.method.privacy.finish is not None

    def _start_finishing(self) -> None:
        """Compute the peer's own model in a background thread, so that messages do not wait."""
        if self._finishes and (self._finishing is None or not self._finishing.is_alive()):
            job = job_of(self.node)  # made in this thread, in which nothing changes meanwhile
            self._finishing = threading.Thread(target=self._finish, args=(job,), name="finish", daemon=True)
            self._finishing.start()

    def _finish(self, job: bytes) -> None:
        try:
            self._final = finished(job)
        except (OSError, subprocess.SubprocessError, StateError) as error:
            self.node.errors.report("final")
            self.log("failure", what=str(error))

    def _write_model(self) -> None:
        """Write the model for the peer's own use."""
        model = model_of(self.node, self._final)
        write_atomic(self.folder / "model.json", _json(model), private=True, durable=False)


def _json(thing: dict[str, Any]) -> bytes:
    """Encode as JSON. Infinity and NaN, which JSON does not have, become null."""
    try:
        return json.dumps(thing, allow_nan=False).encode()
    except ValueError:
        return json.dumps(json.loads(json.dumps(thing), parse_constant=lambda _: None)).encode()
