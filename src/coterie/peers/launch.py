"""Put the parts of a peer together, and run them."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import threading
import time
from pathlib import Path
from typing import Any

from .._files import locked, read_bounded, write_atomic
from ..errors import DataError, FileError, IdentityError
from .charter import Charter
from .groups import Membership, membership
from .metrics import Log
from .node import Node
from .process import Signals, only_one
from .program import Program
from .roster import Relay, Roster, newer, read_roster
from .state import FileStore
from .transport import Contact
from .work import method_of, read_work

#: Lists of members that a relay looks at in a second.
MOST_ROSTERS = 4


def launch(
    folder: Path,
    joined: Membership,
    work: bytes,
    *,
    metrics: int | None = None,
    wakes: int | None = None,
    insecure_loopback: bool = False,
    lab: bool = False,
) -> None:
    """Run the peer of a folder, with its work as bytes, until a signal stops it."""
    from .transport.over_zenoh import ZenohTransport

    me, charter = joined.me, joined.charter
    if isinstance(me, Relay):
        raise IdentityError(f"{me.name} is a relay: run it with coterie relay {folder}")
    signals, log = Signals(), Log()
    log.take_over()
    method = method_of(charter)
    with only_one(folder):
        ledger = _ledger(folder, method)
        node = Node(
            charter,
            read_bounded(folder / "roster"),
            me.address,
            method,
            read_work(work),
            joined.identity.sign,
            FileStore(folder / "state"),
            ledger=ledger,
            random=os.urandom,
            epoch=int(time.time()),
        )
        transport = ZenohTransport(
            charter.run,
            me.name,
            me.address,
            joined.identity.listen,
            None if insecure_loopback else folder,
            endpoint=me.endpoint,
            relays=joined.roster.relays,
            letter_bytes=charter.letter_bytes,
            insecure_loopback=insecure_loopback,
        )
        expires = joined.expires.isoformat()
        program = Program(node, transport, folder, log, metrics_port=metrics, lab=lab, wakes=wakes, expires=expires)
        signals.of(program)
        try:
            program.run()
        finally:
            if ledger is not None:
                ledger.close()


def _ledger(folder: Path, method: Any) -> Any:
    """The ledger of a private method, made when the peer joined. One that is missing was lost, and may be spent."""
    plan = method.plan
    if plan is None:
        return None
    from ..privacy.ledger import Ledger

    return Ledger(plan, folder / "ledger", identity=folder / "sign.key")


def launch_relay(folder: Path) -> None:
    """Run the relay of a folder until a signal stops it."""
    from .transport.over_zenoh import ZenohRelay

    joined = membership(folder)
    if not isinstance(joined.me, Relay):
        raise IdentityError(f"{joined.me.name} is no relay: run it with coterie peer run {folder}")
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT, getattr(signal, "SIGUSR1", signal.SIGTERM)):
        signal.signal(number, lambda *_: stop.set())
    if hasattr(signal, "SIGUSR2"):
        signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # its status is never old
    log, me, roster = Log(), joined.me, joined.roster
    others = [relay for relay in roster.relays if relay.name != me.name]
    relay = ZenohRelay(
        joined.charter.run,
        me.name,
        joined.identity.listen or me.endpoint,
        folder,
        contacts=_contacts(roster),
        relays=others,
        letter_bytes=joined.charter.letter_bytes,
    )
    came: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    with only_one(folder), relay:
        relay.listen(lambda signed: came.put(signed) if came.qsize() < MOST_ROSTERS else None)
        log.take_over()
        log("relaying", name=me.name, endpoint=me.endpoint, run=joined.charter.run, pid=os.getpid())
        while not stop.wait(1.0):
            new = _newest(folder, joined.charter, roster, came)
            if new is not roster:
                roster = new
                relay.admit(_contacts(roster))
                log("members", version=roster.version)
            status = {"name": me.name, "relay": me.endpoint, "run": joined.charter.run, "pid": os.getpid()}
            status |= {"members": len(roster.members), "connected": sorted(relay.alive()), "at": round(time.time(), 1)}
            write_atomic(folder / "status.json", json.dumps(status).encode(), private=True, durable=False)
        log("stopped")


def _newest(folder: Path, charter: Charter, roster: Roster, came: queue.SimpleQueue[bytes]) -> Roster:
    """The newest list of members of those that are known, in the folder, and that have come."""
    found = []
    with contextlib.suppress(DataError, FileError):
        found.append(read_bounded(folder / "roster"))
    for _ in range(min(came.qsize(), MOST_ROSTERS)):
        found.append(came.get())
    for k, signed in enumerate(found):
        with contextlib.suppress(DataError):
            new = read_roster(signed, charter)
            if newer(roster, new):
                roster = new
                if k > 0:
                    with locked(folder):
                        write_atomic(folder / "roster", signed)
    return roster


def _contacts(roster: Roster) -> list[Contact]:
    return [Contact(member.name, member.address, member.endpoint) for member in roster.members]
