"""The status of a running peer, as names and values, for ``status.json``, metrics and other callers."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

from ..model.scores import influences, scores
from ..node.checks import disk_of, state_age
from ..node.mailbox import NOBODY
from ..node.process import memory

if TYPE_CHECKING:
    from ..node.program import Program


def status_of(program: Program, running: bool = True) -> dict[str, Any]:
    """Return the status of a peer."""
    node, now = program.node, program.clock()
    alive = program.transport.alive()
    moved = influences(node)
    edges = [
        {
            "name": node.group.name_of(j),
            "weight": weight,
            "alive": j in alive,
            "answered": j in node.fresh.proven,
            "heard": round(now - node.fresh.heard[j], 1) if j in node.fresh.heard else None,
            "influence": round(moved[j], 4) if j in moved else None,
        }
        for j, weight in sorted(node.edges.items())
    ]
    names = {member.address: member.name for member in node.group.roster.members}
    status: dict[str, Any] = {
        "name": node.group.name_of(node.address),
        "address": node.address,
        "run": node.charter.run,
        "method": repr(node.method),
        "running": running,
        "pid": os.getpid(),
        "at": round(time.time(), 1),
        "period": program.period,
        "uptime": round(now - program.began, 1),
        "starts": node.starts,
        "roster": node.group.roster.version,
        "members": len(node.group.roster.members),
        "wakes": node.wakes,
        "rows": node.work.size,
        "classes": node.charter.labels,
        "edges": edges,
        "messages_in": node.mail.received["messages"],
        "messages_by": {node.group.name_of(j): count for j, count in node.mail.messages_by.items()},
        "messages_out": node.mail.sent["messages"],
        "bytes_out": node.mail.sent["bytes"],
        "rate": node.charter.rate,
        **_refused(program),
        "muted": sorted(node.group.name_of(j) for j in node.group.muted),
        "transport": dict(program.transport.counts),
        "strangers": program.transport.strangers(),
        "errors": {what: count for what, count in node.errors.items() if count},
        "error_at": dict(node.errors.at),
        "last_error": node.errors.last,
        "alerts": dict(node.errors.alerts),
        "status_error": program.unwritten,
        "certificate_expires": program.expires,
        "disk": disk_of(program.folder),
        "state_age": state_age(program.folder),
        "silent_minutes": program.settings.silent_minutes,
        "proposal": program.maintenance.proposal,
        "memory_mb": memory(),
        **scores(node, program._final),
        "group": [{"name": names[row["address"]], **row} for row in node.health.rows(now)],
    }
    ledger = node.ledger
    if ledger is not None:
        plan = ledger.plan
        status |= {"epsilon": plan.epsilon, "delta": plan.delta, "releases": ledger.releases}
        status |= {"releases_left": ledger.left, "spent": ledger.spent, "waits": not node.ready}
    if program.metrics is not None:
        status["metrics"] = f"http://127.0.0.1:{program.metrics.port}/metrics"
    return status


def _refused(program: Program) -> dict[str, Any]:
    """Return counts of refused messages: by reason; and for members by sender and reason."""
    node, dropped = program.node, program.inbox.dropped.copy()
    every = {reason: count for reason, count in node.mail.gate.refused.items() if count}
    if dropped.total():
        every["overflow"] = dropped.total()
    by: dict[str, dict[str, int]] = {}
    for (j, reason), count in [*node.mail.gate.refused_by.items(), *(((j, "overflow"), n) for j, n in dropped.items())]:
        if j != NOBODY and count:
            by.setdefault(node.group.name_of(j), {})[reason] = count
    for j, reasons in program.transport.dropped().items():  # dropped by the transport, before the gate
        for reason, count in reasons.items():
            if reason.startswith("from: "):
                by.setdefault(node.group.name_of(j), {})[reason.removeprefix("from: ")] = count
    return {"refused": every, "refused_by": by}
