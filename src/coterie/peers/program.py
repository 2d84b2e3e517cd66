"""A peer as a process: a clock, a transport, a disk and signals around a :class:`~coterie.peers.node.Node`.

One thread does everything that the node does; the transport's threads only put what has come into a queue of bounded
length. SIGTERM and SIGINT end it cleanly. What a `kill -9` loses is the wake that it interrupts.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ..core.losses import pooled_value
from ..core.world import EVERYONE
from ..errors import CoterieError, DataError, IdentityError, LedgerError, StateError
from .files import locked, read, write
from .finish import finished, job_of
from .metrics import Log, Metrics, prometheus
from .node import Node, Send, declared
from .transport import Contact, Transport

try:
    import fcntl
except ImportError:  # pragma: no cover - not on this platform
    fcntl = None  # type: ignore[assignment]

#: What has come and was not looked at yet: more letters, or bytes, are dropped; and more than so many seconds' worth of
#: one sender's, or lists of members.
INBOX, INBOX_BYTES, INBOX_SECONDS, INBOX_ROSTERS = 10_000, 1 << 26, 4.0, 8
#: Seconds that a connection outlives its tie, and that lie between two changes of connections.
LINK_LINGERS, RELINK_EVERY = 60.0, 2.0
#: How long letters are gathered before they are looked at, in mean intervals between two wakes.
GATHER = 0.2
#: Whose lists of members are.
NOBODY = -1
#: Seconds between two looks at everything that is not urgent: status, links, summary of the log, the model's file.
STATUS_EVERY, LINK_EVERY, SUMMARY_EVERY, MODEL_EVERY, FINAL_EVERY = 5.0, 0.5, 30.0, 10.0, 300.0
#: The same for status and model of a peer in a lab.
LAB_EVERY = 1.0
#: How long links are given to form, and goodbyes to leave.
LINGER = 0.2


class Inbox:
    """A queue that no sender can fill for the others.

    Parameters
    ----------
    per_sender : int
        How much of one sender's may wait.

    Examples
    --------
    >>> inbox = Inbox(per_sender=2)
    >>> [inbox.put(7, b"letter") for _ in range(3)]
    [True, True, False]
    >>> inbox.get(0.0)
    (7, b'letter')
    """

    def __init__(self, per_sender: int):
        self._queue: queue.SimpleQueue[tuple[int, bytes] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._waiting: Counter[int] = Counter()
        self._bytes = 0
        self._most = per_sender
        self.dropped = 0

    def put(self, owner: int, payload: bytes) -> bool:
        """Whether there was room."""
        with self._lock:
            most = INBOX_ROSTERS if owner == NOBODY else self._most
            full = self._queue.qsize() >= INBOX or self._bytes + len(payload) > INBOX_BYTES
            if full or self._waiting[owner] >= most:
                self.dropped += 1
                return False
            self._waiting[owner] += 1
            self._bytes += len(payload)
        self._queue.put((owner, payload))
        return True

    def wake(self) -> None:
        """Let whoever waits go on. May be called from a signal handler."""
        self._queue.put(None)

    def get(self, wait: float) -> tuple[int, bytes] | None:
        """The next one, or None if there is none before so many seconds have passed."""
        try:
            item = self._queue.get(timeout=wait) if wait > 0.0 else self._queue.get_nowait()
        except queue.Empty:
            return None
        if item is not None:
            with self._lock:
                self._waiting[item[0]] -= 1
                if not self._waiting[item[0]]:
                    del self._waiting[item[0]]
                self._bytes -= len(item[1])
        return item


class Program:
    """Runs a node until it is told to stop.

    Parameters
    ----------
    node : Node
    transport : Transport
    folder : path
        The peer's own.
    log : Log
    metrics_port : int, optional
        Serve Prometheus text on loopback; 0 for any free port.
    lab : bool
        An experiment: look for a file ``blocked`` in the folder, with the addresses whose letters are dropped; write
        the model as often as the status; and stop when the process that started this one is gone.
    wakes : int, optional
        Stop after so many.
    expires : str, optional
        When the certificate does.
    """

    def __init__(
        self,
        node: Node,
        transport: Transport,
        folder: str | os.PathLike[str],
        log: Log,
        *,
        metrics_port: int | None = None,
        lab: bool = False,
        wakes: int | None = None,
        expires: str | None = None,
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
            self.log("connected" if j in here else "lost", name=self._name(j))
        self._here = here

    def _look_for_roster(self) -> None:
        """The list of members in the folder and the node's: the newer one goes to the other."""
        path = self.folder / "roster"
        stamp = path.stat().st_mtime_ns
        if stamp != self._roster_stamp:
            self._send(self.node.take_roster(self.clock(), read(path)))
        if self.node.roster.version != self._roster_version:
            with locked(self.folder):
                write(path, self.node.signed_roster)
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
        write(self.folder / "status.json", _json(self._status), secret=True, durable=False)

    @property
    def _finishes(self) -> bool:
        """Whether the peer's own model is another than the one that it publishes. A lab looks at the latter alone."""
        return not self.lab and declared(self.node.method, "final", None) is not None

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
        write(self.folder / "model.json", _json(model), secret=True, durable=False)


def _json(thing: dict[str, Any]) -> bytes:
    """As json, in which there is no infinity: null in its place."""
    try:
        return json.dumps(thing, allow_nan=False).encode()
    except ValueError:
        finite = {k: None if isinstance(v, float) and not np.isfinite(v) else v for k, v in thing.items()}
        return json.dumps(finite).encode()


def losses_at(node: Node, theta: np.ndarray) -> np.ndarray:
    """Errors of a model on the rows it is measured with: 0 or 1 for classes, squared ones for numbers."""
    work = node.work
    margins = work.seen @ theta
    if node.charter.labels is not None:
        return (np.where(margins >= 0.0, 1.0, -1.0) != work.seen_labels).astype(float)
    return (margins - work.seen_labels) ** 2


def score_of(node: Node, theta: np.ndarray) -> float | None:
    """Accuracy of a model for classes, root mean squared error for numbers; None without rows."""
    if not node.work.seen_labels.size:
        return None
    mean = float(losses_at(node, theta).mean())
    return 1.0 - mean if node.charter.labels is not None else mean**0.5


def scores(node: Node) -> dict[str, Any]:
    """How good the models are on the peer's own rows: on those kept aside, if there are any."""
    world = node.peer.world
    own = world.rows.values @ node.theta if node.work.features.size else np.zeros(0)
    return {
        "score": score_of(node, node.theta),
        "score_alone": score_of(node, node.work.local),
        "scored_on": "rows kept aside" if node.work.aside else "own rows",
        "objective": float(pooled_value(world.loss, own, world.labels, node.work.row_weight)),
    }


def serve(node: Node, together: np.ndarray) -> tuple[str, np.ndarray]:
    """The model to use: learned together, or trained alone if that is clearly better on rows kept aside.

    Clearly: by more than a standard error. So whatever neighbours send, a peer is no worse off than without them, as
    far as its own rows can tell.
    """
    if node.work.aside and node.work.seen_labels.size > 1:
        worse = losses_at(node, together) - losses_at(node, node.work.local)
        if worse.mean() > worse.std(ddof=1) / worse.size**0.5:
            return "alone", node.work.local
    return "together", together


def memory() -> float | None:
    """Resident megabytes of this process, where the system tells."""
    try:
        with open("/proc/self/statm") as file:
            return round(int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20, 1)
    except (OSError, ValueError):
        return None


def _read_blocked(path: Path) -> frozenset[int]:
    try:
        return frozenset(json.loads(path.read_text()))
    except (OSError, ValueError):
        return frozenset()


# -- one process for one folder ---------------------------------------------------------------------------------------


@contextmanager
def only_one(folder: Path) -> Iterator[None]:
    """Hold the folder's lock; an :class:`~coterie.errors.IdentityError` if another process does."""
    handle = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if fcntl is not None:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                pid = os.read(handle, 20).decode(errors="replace").strip()
                raise IdentityError(f"the peer in {folder} is running already, as process {pid}") from None
        os.ftruncate(handle, 0)
        os.write(handle, f"{os.getpid()}\n".encode())
        for name in ("state", "status.json", "model.json", "roster"):
            for draft in folder.glob(f".{name}.*"):  # what a kill has left unfinished
                draft.unlink(missing_ok=True)
        yield
    finally:
        os.close(handle)


def running(folder: str | os.PathLike[str]) -> int | None:
    """The process that runs the peer of a folder, or None.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     running(folder)
    """
    try:
        handle = os.open(Path(folder) / "lock", os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        if fcntl is not None:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return None  # nobody holds it
    except OSError:
        return int(os.read(handle, 20) or 0) or None
    finally:
        os.close(handle)
    return None


class Signals:
    """SIGTERM and SIGINT stop a program; SIGUSR1 stops it for good, as one who leaves; SIGUSR2 asks for its status.

    They may come before there is a program: then it stops as soon as it has begun.
    """

    def __init__(self) -> None:
        self._program: Program | None = None
        self._came: int | None = None
        for number in (signal.SIGTERM, signal.SIGINT, getattr(signal, "SIGUSR1", signal.SIGTERM)):
            signal.signal(number, self._take)
        if hasattr(signal, "SIGUSR2"):
            signal.signal(signal.SIGUSR2, self._ask)

    def _ask(self, _number: int, _frame: Any) -> None:
        if self._program is not None:
            self._program.tell()

    def _take(self, number: int, _frame: Any) -> None:
        self._came = number
        if self._program is not None:
            self._program.stop(leave=number not in (signal.SIGTERM, signal.SIGINT))

    def of(self, program: Program) -> None:
        """From now on, they are for this one."""
        self._program = program
        if self._came is not None:
            self._take(self._came, None)
