"""Put the parts of a peer or a relay together, and run it."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import threading
import time
from pathlib import Path
from typing import Any

from ..._files import locked, read_bounded, write_atomic
from ...errors import CoterieError, DataError, FileError, IdentityError, RemovedError
from ..app.metrics import Log
from ..group.amendments import settle
from ..group.charter import Charter
from ..group.groups import Membership, keep_authorities, membership
from ..group.networks import model_of
from ..group.roster import Relay, Roster, read_roster, relation
from ..model.work import method_of, read_work
from ..transport import contacts_of
from .maintenance import RelayMaintenance
from .node import Node
from .past import start_from_past
from .process import Signals, begin_again, only_one
from .program import Program
from .settings import Settings
from .state import FileStore

#: Maximal number of rosters that a relay reads per second.
MAX_ROSTERS_PER_SECOND = 4


def launch(
    folder: Path,
    joined: Membership,
    work: bytes,
    *,
    settings: Settings | None = None,
    lab: bool = False,
    model: Path | None = None,  # file of this peer's model, where members bring their own
    kind: type[Node] = Node,  # a test may run a malicious one
    **how: Any,  # arguments of Program
) -> None:
    """Run the peer of a folder until a signal stops it. `work` holds its rows."""
    from ..transport.over_tls import TlsTransport
    from ..wire.limits import raise_descriptors

    me, charter = joined.me, joined.charter
    if isinstance(me, Relay):
        raise IdentityError(f"{me.name} is a relay: run it with coterie relay {folder}")
    settings = settings or Settings()
    signals, log = Signals(), Log(level=settings.log_level)
    log.take_over()
    raise_descriptors()
    method = method_of(charter)
    with only_one(folder), contextlib.ExitStack() as stack:
        ledger = None
        if method.privacy.plan is not None:
            from ...privacy.ledger import Ledger

            # The ledger was made when the peer joined: a missing one was lost, and its budget may be spent.
            ledger = stack.enter_context(Ledger(method.privacy.plan, folder / "ledger", identity=folder / "sign.key"))
        node = kind(
            charter,
            read_bounded(folder / "roster"),
            me.address,
            method,
            read_work(work, model_of(charter, model)),
            joined.identity.sign,
            FileStore(folder / "state"),
            ledger=ledger,
            random=os.urandom,
            share_health=settings.share_health or lab,
        )
        transport = TlsTransport(
            charter.run,
            me.name,
            me.address,
            joined.identity.listen,
            folder,
            endpoint=me.endpoint,
            relays=joined.roster.relays,
            seed=joined.identity.seed,
            message_bytes=charter.message_bytes,
            messages_per_second=charter.messages_per_second,
        )
        began = start_from_past(folder, node)
        if began is not None:
            log("began", what=began)
        expires = joined.expires.isoformat()
        program = Program(node, transport, folder, log, lab=lab, expires=expires, settings=settings, **how)
        signals.call(program.stop)
        program.run()
    if program.again:
        settle(folder)
        begin_again()
    if program.failure:
        raise IdentityError(program.failure)


def launch_relay(folder: Path) -> None:
    """Run the relay of a folder until a signal stops it."""
    from ..transport.relay import TlsRelay
    from ..wire.limits import raise_descriptors

    joined = membership(folder)
    if not isinstance(joined.me, Relay):
        raise IdentityError(f"{joined.me.name} is no relay: run it with coterie peer run {folder}")
    stop = threading.Event()
    Signals().call(lambda _leave: stop.set())
    raise_descriptors()
    log, me, roster = Log(), joined.me, joined.roster
    relay = TlsRelay(
        joined.charter.run,
        me.name,
        joined.identity.listen or me.endpoint,
        folder,
        message_bytes=joined.charter.message_bytes,
        messages_per_second=joined.charter.messages_per_second,
    )
    _tell(relay, roster, read_bounded(folder / "roster"))
    came: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    with only_one(folder), relay:
        relay.listen(lambda signed: came.put(signed) if came.qsize() < MAX_ROSTERS_PER_SECOND else None)
        log.take_over()
        log("relaying", name=me.name, endpoint=me.endpoint, run=joined.charter.run, pid=os.getpid())
        maintenance = RelayMaintenance(folder, relay, log)
        while not stop.wait(1.0) and not maintenance.look():
            try:
                new = _newest(folder, joined.charter, roster, came, maintenance)
                if new is not roster:
                    roster = new
                    _tell(relay, roster, read_bounded(folder / "roster"))
                    log("members", version=roster.version)
                    relay.reload()
            except (OSError, CoterieError) as error:  # the relay goes on with a full disk or a damaged file
                log("failure", what=str(error))
            if all(other.name != me.name for other in roster.relays):
                raise RemovedError(f"the admin has removed this relay from the group (version {roster.version})")
            status = {"name": me.name, "relay": me.endpoint, "run": joined.charter.run, "pid": os.getpid()}
            status |= {"members": len(roster.members), "connected": sorted(relay.alive()), "at": round(time.time(), 1)}
            status |= {"transport": relay.counts, "dropped": relay.dropped(), "strangers": relay.strangers()}
            try:
                write_atomic(folder / "status.json", json.dumps(status).encode(), private=True, durable=False)
            except OSError as error:
                log("failure", what=str(error))
        log("stopped")
    if settle(folder):
        begin_again()


def _newest(
    folder: Path, charter: Charter, roster: Roster, came: queue.SimpleQueue[bytes], maintenance: RelayMaintenance
) -> Roster:
    """Return the newest of the known roster, the one in the folder, and those received; write it to the folder."""
    found = []
    with contextlib.suppress(DataError, FileError):
        found.append(read_bounded(folder / "roster"))
    for _ in range(min(came.qsize(), MAX_ROSTERS_PER_SECOND)):
        found.append(maintenance.take(came.get()))
    for k, signed in enumerate(found):
        with contextlib.suppress(DataError):
            new = read_roster(signed, charter, held=roster)
            if relation(roster, new) == "newer":
                roster = new
                if k > 0:
                    with locked(folder):
                        keep_authorities(folder, new)
                        write_atomic(folder / "roster", signed)
    return roster


def _tell(relay: Any, roster: Roster, signed: bytes) -> None:
    """Set the roster of a relay: its members are served, and it is sent to them and to non-members."""
    relay.keep_roster(signed)
    relay.admit(contacts_of(roster), roster.revoked)
    relay.publish_roster(signed)
