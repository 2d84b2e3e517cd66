"""What the parts of ``network.py`` share: groups of real peers on this machine, and what they use of it."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

FEATURES, ROWS = 100, 20
PYTHON = sys.executable


def free_ports(count):
    sockets = [socket.socket() for _ in range(count)]
    for one in sockets:
        one.bind(("127.0.0.1", 0))
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def found(folder, n, degree, rate, hidden=()):
    """Return a group of n peers in a circle, connected to the nearest ``degree``; hidden peers cannot be dialled."""
    from coterie.peers.group import groups

    charter = groups.create(
        folder / "group", title="benchmark", features=[f"x{k}" for k in range(FEATURES)], target="y", intercept=False,
        labels=["-1", "1"], objective="personalized", trim=0.0, rate=rate, messages_per_second=max(50.0, 25.0 * rate),
    )  # fmt: skip
    new = []
    for k, port in enumerate(free_ports(n)):
        near = {(k + s) % n for s in range(-(degree // 2), degree // 2 + 1)} if degree < n - 1 else set(range(n))
        edges = {f"p{j}": 1.0 for j in near if j < k}
        new.append(groups.Newcomer(folder / f"p{k}", f"p{k}", None if k in hidden else f"127.0.0.1:{port}", edges))
    (folder / "run.json").write_text(json.dumps(charter.run))
    groups.enroll_all(folder / "group", new, durable=False)
    for k in range(n):
        give_rows(charter, folder / f"p{k}", k)
    return charter


def give_rows(charter, home, seed):
    """Some rows for a peer."""
    import numpy as np

    from coterie.peers.model.tables import work_of
    from coterie.peers.model.work import write_work

    X = np.random.default_rng(seed).normal(size=(ROWS, FEATURES)) / FEATURES**0.5
    path = home / "work"
    path.touch(0o600)
    path.write_bytes(write_work(work_of(charter, X, np.where(X.sum(axis=1) > 0, 1.0, -1.0))))


def cpu(pid):
    """Seconds of CPU time of a process, of the system for it included."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def memory(pid):
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) / 1024
    return float("nan")


def status(folder, k):
    try:
        return json.loads((folder / f"p{k}" / "status.json").read_bytes())
    except (OSError, ValueError):
        return None


def start(home, *more, log=None):
    """The process of a peer; its log is a file in its folder."""
    command = [PYTHON, "-m", "coterie", "peer", "run", str(home), "--work", str(home / "work"), *more]
    with open(log or home / "log", "ab") as file:
        return subprocess.Popen(command, stderr=file, env=os.environ | {"COTERIE_PLAIN": "1"})


def stop(running):
    """End processes."""
    for one in running:
        one.send_signal(signal.SIGTERM)
    for one in running:
        one.wait(60)


def until_linked(folder, numbers, patience=120.0):
    """Wait until these peers have heard all neighbours among them."""
    deadline, names = time.monotonic() + patience, {f"p{k}" for k in numbers}
    while time.monotonic() < deadline:
        seen = [status(folder, k) for k in numbers]
        if all(one and all(edge["answered"] for edge in one["edges"] if edge["name"] in names) for one in seen):
            return
        time.sleep(0.3)
    raise SystemExit(f"the peers in {folder} did not find each other")


def fresh(folder, k, process):
    """The status of a running peer, written now."""
    before = (status(folder, k) or {}).get("at", 0.0)
    process.send_signal(signal.SIGUSR2)
    deadline = time.monotonic() + 10.0
    while time.monotonic() < deadline:
        now = status(folder, k)
        if now and now["at"] > before:
            return now
        time.sleep(0.05)
    return status(folder, k)


def events(home):
    """Return the log of a peer."""
    found = []
    for line in (home / "log").read_text().splitlines():
        try:
            found.append(json.loads(line))
        except ValueError:
            continue
    return found
