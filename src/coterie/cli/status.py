"""``coterie peer status``: the state of a peer or a relay, as a table."""

from __future__ import annotations

import time
from typing import Any

from rich.markup import escape
from rich.table import Table

from ..errors import IdentityError
from .console import AsJson, show
from .groups import Folder, check_peer_folder


def peer_status(folder: Folder, as_json: AsJson = False) -> None:
    """How a peer is doing: edges, messages, refusals, score, budget."""
    from ..peers.node.checks import look

    seen = look(folder)
    other = seen.status is not None and not {"relay", "messages_in"} & seen.status.keys()  # of another version
    if seen.status is None or other:
        if seen.pid is not None:
            raise IdentityError(f"the peer in {folder} is starting, as process {seen.pid}: ask again in a moment")
        if (folder / "status.json").exists():
            raise IdentityError(
                f"{folder / 'status.json'} is damaged, or of another version: the peer writes it anew when it runs"
            )
        check_peer_folder(folder)
        raise IdentityError(f"the peer in {folder} has not run yet: coterie peer run {folder}")
    told = {"running": seen.pid is not None, "stale": seen.stale, "age": round(seen.age, 1), "why_stale": seen.why}
    status = seen.status | told
    show(status, _relay_table(status) if "relay" in status else _status_table(status), as_json)


def _state(status: dict[str, Any]) -> str:
    """Return whether the peer runs, and otherwise the time of its last status."""
    if status["stale"]:
        return f"running, but its status is {status['age']:.0f} s old: {status['why_stale']}"
    if status["running"]:
        return f"running, process {status['pid']}"
    return f"not running; this is as of {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(status['at']))}"


def _relay_table(status: dict[str, Any]) -> Table:
    table = Table(title=f"{status['name']}: a relay, {_state(status)}", show_header=False)
    table.add_row("endpoint", status["relay"])
    table.add_row("connected", f"{', '.join(status['connected']) or 'nobody'}; of {status['members']} members")
    return table


def _status_table(status: dict[str, Any]) -> Table:
    table = Table(title=f"{status['name']}: {_state(status)}", show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    for name, text in _rows(status).items():
        if text:
            table.add_row(name, escape(text))
    width = max((len(edge["name"]) for edge in status["edges"]), default=0)
    for k, edge in enumerate(status["edges"]):
        heard = "never heard" if edge["heard"] is None else f"heard {edge['heard']:.0f} s ago"
        known = status["running"] and not status["stale"]
        here = f"  {'connected' if edge['alive'] else 'not connected'}, {heard}" if known else ""
        moves = "" if edge.get("influence") is None else f"  moves it {edge['influence']:.0%}"
        table.add_row("edges" if k == 0 else "", f"{edge['name']:{width}}  weight {edge['weight']:.3g}{here}{moves}")
    if not status["edges"]:
        table.add_row("edges", "none")
    return table


def _rows(status: dict[str, Any]) -> dict[str, str | None]:
    """Return the lines of the table by name; None for lines without content."""
    kind = "accuracy" if status.get("classes") else "rmse"
    score, alone = (status.get(name) for name in ("score", "score_alone"))
    by = [f"{name}: {_counted(reasons)}" for name, reasons in sorted(status.get("refused_by", {}).items())]
    expires, proposal = status.get("certificate_expires"), status.get("proposal")
    rows: dict[str, str | None] = {
        "method": status["method"],
        "wakes": f"{status['wakes']:,} (start {status['starts']}, up {status['uptime']:.0f} s)",
        "messages": (
            f"{status['messages_in']:,} in, {status['messages_out']:,} out ({status['bytes_out'] / 1e6:.2f} MB)"
        ),
        "refused": _counted(status["refused"]) or "none",
        kind: "no rows" if score is None else f"{score:.4g} together, {alone:.4g} alone, on {_judged_by(status)}",
    }
    if status.get("served") == "own" and alone is not None:  # no model is learned together yet, for a comparison
        rows[kind] = f"{alone:.4g} alone, on {_judged_by(status)}"
    if "epsilon" in status:
        rows["privacy"] = _privacy(status)
    rows |= {
        "refused from": "; ".join(by),
        "muted": ", ".join(status.get("muted") or ()),
        "served": _served(status) if status.get("served") else None,
        "certificate": f"until {expires[:10]}" if expires else None,
        "disk": status.get("status_error"),
        "charter": proposal and f"the admin proposes {proposal['changes']}; accept with {proposal['accept']}",
        "errors": ", ".join(f"{count} {what}" for what, count in (status.get("errors") or {}).items()),
    }
    last, alerts = status.get("last_error"), status.get("alerts", {})
    if rows["errors"] and last and last not in alerts.values():
        rows["errors"] += f"; the last one: {last}"
    return rows | alerts


def _counted(reasons: dict[str, int]) -> str:
    return ", ".join(f"{count:,} {reason}" for reason, count in sorted(reasons.items()))


def _privacy(status: dict[str, Any]) -> str:
    """Return how much of the budget is spent, and whether further releases follow."""
    made, left = status["releases"], status["releases_left"]
    budget = f"epsilon {status['epsilon']:g} at delta {status['delta']:.3g}"
    text = f"{made} of {made + left} releases made; the budget is {budget}"
    if status.get("waits"):
        return f"{text}; it waits for its neighbours before it makes another"
    return text if left else f"{text}; it has nothing new to say, and listens"


def _judged_by(status: dict[str, Any]) -> str:
    """Return which rows the scores are measured on, with a warning if these are training rows."""
    on = str(status["scored_on"])
    return on if status.get("rows_aside") else f"{on}, which it has learned from: says little"


def _served(status: dict[str, Any]) -> str:
    """Return the model that is used, the reason, and advice if it is the model trained alone."""
    from ..peers.node.checks import mover

    if status["served"] != "alone":
        return f"{status['served']}: {status['why']}" if status.get("why") else str(status["served"])
    text, most = (
        f"alone: {status.get('why') or 'the model learned together is clearly worse on rows kept aside'}",
        mover(status),
    )
    return text if most is None else f"{text}; {most} moves it most (coterie peer mute FOLDER {most})"
