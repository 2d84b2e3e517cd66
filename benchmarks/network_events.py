"""How fast peers link up, how soon a silent one is missed, and whether newcomers disturb those that are there."""

from __future__ import annotations

import signal
import tempfile
import time
from pathlib import Path

from network_parts import events, found, free_ports, give_rows, start, stop, until_linked

PEERS = 4


def seen(home, event, name, since):
    """When a peer first said that it is (not) connected with another, after a moment; None if it has not."""
    times = [one["at"] for one in events(home) if one["event"] == event and one.get("name") == name]
    return min((at for at in times if at >= since), default=None)


def wait_for(homes, event, name, since, patience=60.0):
    """Seconds until all of these have said so."""
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline:
        times = [seen(home, event, name, since) for home in homes]
        if None not in times:
            return max(times) - since
        time.sleep(0.1)
    return float("inf")


def comings_and_goings(quick, console):
    """One row for each thing that was timed."""
    from rich.table import Table

    joins, rows = 5 if quick else 30, []
    table = Table(title=f"{PEERS} peers on a complete graph; seconds from their logs, which are read twice a second")
    table.add_column("")
    table.add_column("", justify="right")

    def add(what, value, text):
        rows.append({"event": what, "value": value})
        table.add_row(what, text)

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        charter = found(folder, PEERS, PEERS, 1.0)
        homes = [folder / f"p{k}" for k in range(PEERS)]
        began, running = time.time(), [start(home) for home in homes]
        try:
            ready = began + max(wait_for([home], "started", home.name, began) for home in homes)
            linked = began + max(
                wait_for([home for home in homes if home.name != f"p{k}"], "connected", f"p{k}", began)
                for k in range(PEERS)
            )
            until_linked(folder, range(PEERS))
            add("the last process is ready after", ready - began, f"{ready - began:.1f} s")
            add("all linked after that within", linked - ready, f"{max(0.0, linked - ready):.1f} s")
            time.sleep(3.0)
            since = time.time()
            running[-1].send_signal(signal.SIGSTOP)
            took = wait_for(homes[:-1], "disconnected", f"p{PEERS - 1}", since)
            add("one stands still (SIGSTOP): missed by all after", took, f"{took:.1f} s")
            since = time.time()
            running[-1].send_signal(signal.SIGCONT)
            took = wait_for(homes[:-1], "connected", f"p{PEERS - 1}", since)
            add("it goes on (SIGCONT): linked again after", took, f"{took:.1f} s")
            since = time.time()
            running[-1].kill()
            running.pop().wait()
            took = wait_for(homes[:-1], "disconnected", f"p{PEERS - 1}", since)
            add("it is killed (kill -9): missed by all after", took, f"{took:.1f} s")
            add(f"{joins} join: lost links that those before them saw", *joined(folder, charter, joins, running))
        finally:
            stop(running)
    console.print(table)
    return rows


def joined(folder, charter, joins, running):
    """Links that the first peers lost while others came, one after the other."""
    from coterie.peers.group import groups

    since, first = time.time(), range(len(running))
    for k, port in enumerate(free_ports(joins), start=PEERS):
        home = folder / f"p{k}"
        groups.enroll(folder / "group", home, f"p{k}", f"127.0.0.1:{port}", {f"p{k % len(first)}": 1.0})
        give_rows(charter, home, k)
        running.append(start(home))
        time.sleep(0.3)
    there = [k for k in range(PEERS + joins) if k != PEERS - 1]
    until_linked(folder, there, 120.0)
    known = {f"p{k}" for k in there}
    lost = sum(
        one["event"] == "disconnected" and one["at"] >= since and one.get("name") in known
        for k in first
        for one in events(folder / f"p{k}")
    )
    return lost, str(lost)
