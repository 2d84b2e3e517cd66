"""Real peers against bare Zenoh: letters, CPU time of a letter, memory. Ratios of one run.

    python benchmarks/network.py            # about four minutes
    python benchmarks/network.py --quick

Both sides are as many processes on this machine, over mutual TLS, with the same neighbours, the same mean rate, and
packets of the same length. Bare Zenoh puts random bytes and counts what comes. A peer checks every letter, verifies
its signature and takes it in, runs its method, and saves its state to disk at every wake.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
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


def found(folder, n, degree, rate):
    """A group of n peers in a circle, each tied to its nearest ``degree``."""
    import numpy as np

    from coterie.peers import groups
    from coterie.peers.tables import work_of
    from coterie.peers.work import write_work

    charter = groups.create(
        folder / "group", title="benchmark", features=[f"x{k}" for k in range(FEATURES)], target="y", intercept=False,
        labels=["-1", "1"], objective="personalized", rate=rate, letters_per_second=max(50.0, 25.0 * rate),
    )  # fmt: skip
    rng = np.random.default_rng(0)
    new = []
    for k, port in enumerate(free_ports(n)):
        near = {(k + s) % n for s in range(-(degree // 2), degree // 2 + 1)} if degree < n - 1 else set(range(n))
        ties = {f"p{j}": 1.0 for j in near if j < k}
        new.append(groups.Newcomer(folder / f"p{k}", f"p{k}", f"127.0.0.1:{port}", ties))
    groups.enroll_all(folder / "group", new, durable=False)
    for k in range(n):
        X = rng.normal(size=(ROWS, FEATURES)) / FEATURES**0.5
        work = write_work(work_of(charter, X, np.where(X.sum(axis=1) > 0, 1.0, -1.0)))
        path = folder / f"p{k}" / "work"
        path.touch(0o600)
        path.write_bytes(work)


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


def measure(pids, counts, seconds):
    """CPU seconds and letters, sent and received, of all processes together while some time passes."""
    letters0, cpu0, began = counts(), sum(map(cpu, pids)), time.monotonic()
    time.sleep(seconds)
    letters, took = [b - a for a, b in zip(letters0, counts(), strict=True)], time.monotonic() - began
    used = sum(map(cpu, pids)) - cpu0
    return {
        "sent": letters[0] / took,
        "received": letters[1] / took,
        "cpu": used / took,
        "per_letter": used / sum(letters) * 1e6,
        "memory": sum(map(memory, pids)) / len(pids),
    }


def ours(folder, n, seconds):
    environment = os.environ | {"COTERIE_PLAIN": "1"}
    command = [PYTHON, "-m", "coterie", "peer", "run"]
    with open(folder / "log", "wb") as log:
        homes = [folder / f"p{k}" for k in range(n)]
        running = [
            subprocess.Popen([*command, str(home), "--work", str(home / "work")], stderr=log, env=environment)
            for home in homes
        ]
    try:
        deadline = time.monotonic() + 60 + 2 * n
        while time.monotonic() < deadline:
            seen = [status(folder, k) for k in range(n)]
            if all(one and one["ties"] and all(tie["answered"] for tie in one["ties"]) for one in seen):
                break
            time.sleep(0.5)
        else:
            raise SystemExit(f"the peers did not find each other: see {folder / 'log'}")

        def counts():
            for one in running:
                one.send_signal(signal.SIGUSR2)  # write your status now
            time.sleep(0.5)
            seen = [status(folder, k) for k in range(n)]
            return sum(one["letters_out"] for one in seen), sum(one["letters_in"] for one in seen)

        return measure([one.pid for one in running], counts, seconds)
    finally:
        for one in running:
            one.send_signal(signal.SIGTERM)
        for one in running:
            one.wait(30)


def bare(folder, n, degree, rate, seconds, length):
    running = []
    endpoints = [json.loads((folder / f"p{k}" / "identity.json").read_text())["listen"] for k in range(n)]
    for k in range(n):
        near = [(k + s) % n for s in range(-(degree // 2), degree // 2 + 1) if s] if degree < n - 1 else range(n)
        near = [j for j in near if j != k]
        ends = json.dumps([endpoints[k], *(endpoints[j] for j in near)])
        command = [
            PYTHON,
            __file__,
            "--bare",
            str(folder),
            str(k),
            ",".join(map(str, near)),
            str(rate),
            str(length),
            ends,
        ]
        running.append(subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True))
    try:
        time.sleep(6 + n / 5)  # links form

        def counts():
            total = [0, 0]
            for one in running:
                one.stdin.write("\n")
                one.stdin.flush()
                sent, received = map(int, one.stdout.readline().split())
                total[0] += sent
                total[1] += received
            return total

        return measure([one.pid for one in running], counts, seconds)
    finally:
        for one in running:
            one.kill()
            one.wait()


def bare_process(folder, k, near, rate, length, mine, *theirs):
    """Puts random bytes to every neighbour at the times of a Poisson clock, and counts what comes."""
    import threading

    import zenoh

    home = Path(folder) / f"p{k}"
    tls = {"root_ca_certificate": "ca.crt", "listen_private_key": "tls.key", "listen_certificate": "tls.crt"}
    tls |= {"connect_private_key": "tls.key", "connect_certificate": "tls.crt"}
    config = {
        "mode": "peer",
        "listen": {"endpoints": [f"tls/{mine}"]},
        "connect": {
            "endpoints": [f"tls/{endpoint}" for endpoint in theirs],
            "timeout_ms": -1,
            "exit_on_failure": False,
        },
        "scouting": {"multicast": {"enabled": False}, "gossip": {"enabled": False}},
        "transport": {
            "shared_memory": {"enabled": False},
            "link": {
                "protocols": ["tls"],
                "tls": {name: str(home / file) for name, file in tls.items()} | {"enable_mtls": True},
            },
        },
    }
    session = zenoh.open(zenoh.Config.from_json5(json.dumps(config)))
    counts, payload = [0, 0], os.urandom(length)

    def take(sample):
        sample.payload.to_bytes()
        counts[1] += 1

    session.declare_subscriber(f"bare/to/{k}/*", take)

    def tell():
        for _ in sys.stdin:
            print(*counts, flush=True)

    threading.Thread(target=tell, daemon=True).start()
    keys = [f"bare/to/{j}/{k}" for j in near]
    while True:
        time.sleep(random.expovariate(rate))
        for key in keys:
            session.put(key, payload)
        counts[0] += len(keys)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--bare", nargs=6, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.bare:
        folder, k, near, rate, length, ends = given.bare
        bare_process(folder, int(k), [int(j) for j in near.split(",")], float(rate), int(length), *json.loads(ends))
        return
    from rich.console import Console
    from rich.table import Table

    seconds = 5.0 if given.quick else 20.0
    loads = [(11, 10, 10.0), (100, 10, 1.0)] if not given.quick else [(11, 10, 10.0), (30, 10, 1.0)]
    rows = []
    table = Table(title=f"Models of {FEATURES} numbers, {ROWS} rows; CPU of all processes together")
    for column in ("load", "", "letters/s sent", "received", "CPU, cores", "us of CPU a letter", "MB a process"):
        table.add_column(column, justify="left" if column in ("load", "") else "right")
    for n, degree, rate in loads:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            found(folder, n, degree, rate)
            length = 64 + 35 + 8 * FEATURES  # signature, header, numbers
            sides = {"bare Zenoh": bare(folder, n, degree, rate, seconds, length), "coterie": ours(folder, n, seconds)}
        for side, seen in sides.items():
            load = f"{n} peers, {degree} neighbours, rate {rate:g}"
            rows.append({"load": load, "side": side} | seen)
            numbers = [f"{seen['sent']:,.0f}", f"{seen['received']:,.0f}", f"{seen['cpu']:.2f}"]
            table.add_row(load, side, *numbers, f"{seen['per_letter']:.0f}", f"{seen['memory']:.0f}")
        ratio = sides["coterie"]["per_letter"] / sides["bare Zenoh"]["per_letter"]
        table.add_row("", "ratio", "", "", "", f"x{ratio:.2f}", "")
    with tempfile.TemporaryDirectory() as name:  # a peer that has nobody to talk to, and wakes once in ten minutes
        folder = Path(name)
        found(folder, 2, 1, 1 / 600)
        alone = subprocess.Popen([PYTHON, "-m", "coterie", "peer", "run", str(folder / "p0"), "--work",
                                  str(folder / "p0" / "work")], stderr=subprocess.DEVNULL)  # fmt: skip
        time.sleep(15)
        table.add_row("one idle peer", "coterie", "", "", "", "", f"{memory(alone.pid):.0f}")
        rows.append({"load": "idle", "side": "coterie", "memory": memory(alone.pid)})
        alone.terminate()
        alone.wait()
    Console(width=130).print(table)
    if given.json:
        given.json.write_text(json.dumps(rows, indent=2))


if __name__ == "__main__":
    main()
