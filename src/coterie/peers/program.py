"""A peer as a process: a clock, a transport, a disk and signals around a :class:`~coterie.peers.node.Node`.

One thread does everything that the node does; the transport's threads only put what has come into a queue of bounded
length. SIGTERM and SIGINT end it cleanly. What a `kill -9` loses is the wake that it interrupts.
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from .._files import locked, read_bounded, write_atomic
from ..core.world import EVERYONE
from ..errors import CoterieError, DataError, IdentityError, LedgerError, StateError
from .finish import finished, job_of
from .inbox import INBOX_SECONDS, NOBODY, Inbox
from .metrics import Log, Metrics, prometheus
from .node import Node, Send
from .process import memory
from .scores import scores, serve
from .transport import Contact, Transport

#: Seconds that a connection outlives its tie, and that lie between two changes of connections.
LINK_LINGERS, RELINK_EVERY = 60.0, 2.0
#: How long letters are gathered before they are looked at, in mean intervals between two wakes.
GATHER = 0.2
#: Seconds between two looks at everything that is not urgent: status, links, summary of the log, the model's file.
STATUS_EVERY, LINK_EVERY, SUMMARY_EVERY, MODEL_EVERY, FINAL_EVERY = 5.0, 0.5, 30.0, 10.0, 300.0
#: The same for status and model of a peer in a lab.
LAB_EVERY = 1.0
#: How long links are given to form, and goodbyes to leave.
LINGER = 0.2


class Program:
    """Runs a node until it is told to stop."""

    def __init__(
        self,
        node: Node,
        transport: Transport,
        folder: str | os.PathLike[str],
        log: Log,
        *,
        metrics_port: int | None = None,  # to serve Prometheus text on loopback; 0 for any free port
        lab: bool = False,  # an experiment: obey the file "blocked", write the model often, end with the parent process
        wakes: int | None = None,  # stop after so many
        expires: str | None = None,  # when the certificate does
        clock: Callable[[], float] = time.monotonic,
    ):
        self.node, self.transport, self.folder, self.log = node, transport, Path(folder), log
        self.clock, self.lab, self.wakes, self.expires = clock, lab, wakes, expires
        self._parent = os.getppid()
        self._inbox = Inbox(max(64, int(INBOX_SECONDS * node.charter.letters_per_second)))
        self._stopping = self._leaving = False
        self._wakes_before = node.wakes
        self._tied: dict[int, float] = {}  # when a member was last a neighbour
        self._relink_at = 0.0
        self._blocked: frozenset[int] = frozenset()
        self._linked: tuple[int, frozenset[int]] = (-1, frozenset())
        self._told: dict[str, int] = {}
        self._last_trouble = ""
        self._here: set[int] = set()
        self._roster_stamp, self._roster_version = 0, node.roster.version
        self._status: dict[str, Any] = {}
        self._final: np.ndarray | None = None  # what a private peer has worked out for itself alone
        self._finishing: threading.Thread | None = None
        self._began = clock()
        self._due = dict.fromkeys(("status", "link", "summary", "model"), 0.0) | {"final": clock() + FINAL_EVERY}
        self.metrics = None if metrics_port is None else Metrics(metrics_port, lambda: prometheus(self._status))

    # -- the loop -----------------------------------------------------------------------------------------------------

    def stop(self, leave: bool = False) -> None:
        """End soon. May be called from a signal handler or another thread."""
        self._stopping, self._leaving = True, leave
        self._inbox.wake()

    def tell(self) -> None:
        """Write the status soon. May be called from a signal handler."""
        self._due["status"] = 0.0
        self._inbox.wake()

    def run(self) -> None:
        """Until :meth:`stop`."""
        node, clock, gather = self.node, self.clock, GATHER / self.node.charter.rate
        self.transport.open(self._deliver, roster=lambda signed: self._deliver(NOBODY, signed))
        try:
            self._link()
            self._send(node.open(clock()))
            self.log("started", name=self._name(node.address), run=node.charter.run, boot=node.boot, pid=os.getpid())
            while not self._stopping:
                self._housekeeping(clock())
                item = self._inbox.get(min(node.next_time, *self._due.values()) - clock())
                if item is not None and not self._stopping:
                    # What comes soon after is looked at together: one waking of the process costs more than a letter.
                    time.sleep(max(0.0, min(gather, node.next_time - clock())))
                while item is not None:
                    self._receive(clock(), *item)
                    item = self._inbox.get(0.0)
                now = clock()
                if now >= node.next_time:
                    self._send(node.tick(now))
                done = self.wakes is not None and node.wakes - self._wakes_before >= self.wakes
                if done or node.trouble["removed"]:
                    self.stop()
        except LedgerError as error:  # it must not go on without knowing what it has spent
            self.log("trouble", what=f"stops, because its ledger cannot be written: {error}")
            raise
        finally:
            self._end()

    def _deliver(self, owner: int, data: bytes) -> None:
        if owner != NOBODY or data != self.node.signed_roster:  # whoever looks for somebody brings the list to all
            self._inbox.put(owner, data)

    def _receive(self, now: float, owner: int, data: bytes) -> None:
        if owner in self._blocked:
            return
        node = self.node
        self._send(node.take_roster(now, data) if owner == NOBODY else node.receive(now, owner, data))

    def _send(self, sends: list[Send]) -> None:
        for to, data, roster in sends:
            if roster:
                self.transport.publish_roster(data, to)
                continue
            # Not the transport's own broadcast: a connection outlives its tie.
            for j in self.node.ties if to == EVERYONE else (to,):
                if j not in self._blocked:
                    self.transport.send(j, data)

    def _end(self) -> None:
        """The state is safe, the neighbours are told, and the model is written."""
        try:
            self._send(self.node.close(self._leaving))
            time.sleep(LINGER)  # goodbyes are under way
            self._write_model()
            self._write_status(running=False)
        except (OSError, CoterieError) as error:
            self.log("trouble", what=str(error))
        finally:
            self.transport.close()
            if self.metrics is not None:
                self.metrics.close()
        if self.node.trouble["removed"]:
            self.log("removed", what=self.node.last_trouble)
        if self._finishes:
            self.log("finishing", what="the model for this peer's own use; the network is left already")
            if self._finishing is not None:
                self._finishing.join()
            self._finish(job_of(self.node))
            self._write_model()
        self.log("stopped", wakes=self.node.wakes)

    # -- now and then -------------------------------------------------------------------------------------------------

    def _housekeeping(self, now: float) -> None:
        for what, every, act in (
            ("link", LINK_EVERY, self._link),
            ("status", LAB_EVERY if self.lab else STATUS_EVERY, self._write_status),
            ("summary", SUMMARY_EVERY, self._summarise),
            ("model", LAB_EVERY if self.lab else MODEL_EVERY, self._write_model),
            ("final", FINAL_EVERY, self._start_finishing),
        ):
            if now >= self._due[what]:
                self._due[what] = now + every
                try:
                    act()
                except (OSError, IdentityError, DataError) as error:  # a full disk is no reason to stop
                    self.node.trouble["disk"] += 1
                    self.log("trouble", what=f"{what}: {error}")

    def _link(self) -> None:
        """Keep connections to the neighbours, and let the members in."""
        node = self.node
        if self.lab:
            self._blocked = _read_blocked(self.folder / "blocked")
            if os.getppid() != self._parent:
                self.stop()
        self._look_for_roster()
        self._look_who_is_there()
        # A change of connections cuts all of them for a moment, so one that is no longer needed stays for a while.
        now, ties = self.clock(), set(node.ties)
        self._tied |= dict.fromkeys(ties, now)
        self._tied = {j: at for j, at in self._tied.items() if j in node.members and now < at + LINK_LINGERS}
        wanted = (node.roster.version, frozenset(self._tied))
        if wanted != self._linked and (now >= self._relink_at or not ties <= self._linked[-1]):
            contacts = {m.address: Contact(m.name, m.address, m.endpoint) for m in node.roster.members}
            self.transport.use_relays(node.roster.relays)
            self.transport.admit(c for c in contacts.values() if c.address != node.address)
            self.transport.link(contacts[j] for j in sorted(self._tied))
            self._linked, self._relink_at = wanted, now + RELINK_EVERY

    def _look_who_is_there(self) -> None:
        """Tell the log of neighbours that come and go."""
        here = self.transport.alive() & set(self.node.ties)
        for j in sorted(here ^ self._here):
            self.log("connected" if j in here else "disconnected", name=self._name(j))
        self._here = here

    def _look_for_roster(self) -> None:
        """The list of members in the folder and the node's: the newer one goes to the other."""
        path = self.folder / "roster"
        stamp = path.stat().st_mtime_ns
        if stamp != self._roster_stamp:
            self._send(self.node.take_roster(self.clock(), read_bounded(path)))
        if self.node.roster.version != self._roster_version:
            with locked(self.folder):
                write_atomic(path, self.node.signed_roster)
            self._roster_version, stamp = self.node.roster.version, path.stat().st_mtime_ns
            self.log("members", version=self.node.roster.version, count=len(self.node.roster.members))
        self._roster_stamp = stamp

    def _summarise(self) -> None:
        """One line for all that was refused since the last one."""
        refused = dict(self.node.gate.refused)
        new = {reason: count - self._told.get(reason, 0) for reason, count in refused.items()}
        new = {reason: count for reason, count in new.items() if count}
        if new:
            self.log("refused", **new, last=self.node.last_refusal)
        if self.node.last_trouble != self._last_trouble:
            self._last_trouble = self.node.last_trouble
            self.log("trouble", what=self._last_trouble)
        self._told = refused

    def _name(self, address: int) -> str:
        try:
            return self.node.roster.member(address).name
        except LookupError:
            return str(address)

    def status(self, running: bool = True) -> dict[str, Any]:
        """What there is to know of the peer."""
        node, now = self.node, self.clock()
        alive = self.transport.alive()
        ties = [
            {
                "name": self._name(j),
                "weight": weight,
                "alive": j in alive,
                "answered": j in node.proven,
                "heard": round(now - node.heard[j], 1) if j in node.heard else None,
            }
            for j, weight in sorted(node.ties.items())
        ]
        status: dict[str, Any] = {
            "name": self._name(node.address),
            "address": node.address,
            "run": node.charter.run,
            "method": repr(node.method),
            "running": running,
            "pid": os.getpid(),
            "at": round(time.time(), 1),
            "uptime": round(now - self._began, 1),
            "boot": node.boot,
            "roster": node.roster.version,
            "members": len(node.roster.members),
            "wakes": node.wakes,
            "rows": node.work.size,
            "classes": node.charter.labels,
            "ties": ties,
            "letters_in": node.received["letters"],
            "letters_out": node.sent["letters"],
            "bytes_out": node.sent["bytes"],
            "refused": {reason: count for reason, count in node.gate.refused.items() if count}
            | ({"overflow": self._inbox.dropped} if self._inbox.dropped else {}),
            "transport": dict(self.transport.counts),
            "trouble": {what: count for what, count in node.trouble.items() if count},
            "last_trouble": node.last_trouble,
            "certificate_expires": self.expires,
            "memory_mb": memory(),
            **scores(node),
        }
        ledger = node.ledger
        if ledger is not None:
            plan = ledger.plan
            status |= {"epsilon": plan.epsilon, "delta": plan.delta, "releases": ledger.releases}
            status |= {"releases_left": ledger.left, "spent": ledger.spent, "waits": not node.ready}
        if self.metrics is not None:
            status["metrics"] = f"http://127.0.0.1:{self.metrics.port}/metrics"
        return status

    def _write_status(self, running: bool = True) -> None:
        self._status = self.status(running)
        write_atomic(self.folder / "status.json", _json(self._status), private=True, durable=False)

    @property
    def _finishes(self) -> bool:
        """Whether the peer's own model is another than the one that it publishes. A lab looks at the latter alone."""
        return not self.lab and self.node.method.final is not None

    def _start_finishing(self) -> None:
        """Work out the peer's own model in the background: letters do not wait for it."""
        if self._finishes and (self._finishing is None or not self._finishing.is_alive()):
            job = job_of(self.node)  # here, where nothing changes meanwhile
            self._finishing = threading.Thread(target=self._finish, args=(job,), name="finish", daemon=True)
            self._finishing.start()

    def _finish(self, job: bytes) -> None:
        try:
            self._final = finished(job)
        except (OSError, subprocess.SubprocessError, StateError) as error:
            self.node.trouble["final"] += 1
            self.log("trouble", what=str(error))

    def _write_model(self) -> None:
        """The model for the peer's own use."""
        node = self.node
        served, theta = serve(node, node.theta if self._final is None else self._final)
        model = {
            "format": 1,
            "run": node.charter.run,
            "served": served,
            "wakes": node.wakes,
            "theta": theta.tolist(),
            "published": node.theta.tolist(),
            "alone": node.work.local.tolist(),
        }
        write_atomic(self.folder / "model.json", _json(model), private=True, durable=False)


def _json(thing: dict[str, Any]) -> bytes:
    """As json, in which there is no infinity: null in its place."""
    try:
        return json.dumps(thing, allow_nan=False).encode()
    except ValueError:
        finite = {k: None if isinstance(v, float) and not np.isfinite(v) else v for k, v in thing.items()}
        return json.dumps(finite).encode()


def _read_blocked(path: Path) -> frozenset[int]:
    try:
        return frozenset(json.loads(path.read_text()))
    except (OSError, ValueError):
        return frozenset()
