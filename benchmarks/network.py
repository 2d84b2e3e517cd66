"""Real peers: the cost of a message compared with the bare transport, the speed of links, and peers under attack.

    python benchmarks/network.py            # less than ten minutes
    python benchmarks/network.py --quick    # about one
    python benchmarks/network.py --only messages | events | strangers | members

Messages: peers and the bare transport run in equally many processes on this machine, over mutual TLS, with equal
neighbours, mean rates and packet lengths. The bare transport carries random bytes and counts them. A peer checks every
message, verifies its signature, applies it, runs its method, and saves its state to disk at every wake.

Events (network_events.py): seconds until a link is established, and until a dead link is noticed.

Strangers: non-members open 500 connections a second to one peer, from another address of this machine and from the
address of the honest peers. They send noise, nothing, or the first half of a TLS handshake. Meanwhile a member, who
can pre-authenticate, and a new member, who cannot, try to connect.

Members that mean harm (network_members.py): lies, floods, replays, messages that are too long.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from network_events import comings_and_goings
from network_members import bad_members
from network_parts import FEATURES, PYTHON, ROWS, cpu, found, fresh, memory, start, status, stop, until_linked

#: Strangers: connections a second, and how many of them are held open.
ATTACK, HELD = 500, 1500
SOURCES = {"another address": "127.0.0.2", "the same address": "127.0.0.1"}


def measure(pids, counts, seconds):
    """Measure CPU seconds and messages, sent and received, of all processes during some time."""
    messages0, cpu0, began = counts(), sum(map(cpu, pids)), time.monotonic()
    time.sleep(seconds)
    messages, took = [b - a for a, b in zip(messages0, counts(), strict=True)], time.monotonic() - began
    used = sum(map(cpu, pids)) - cpu0
    return {
        "sent": messages[0] / took,
        "received": messages[1] / took,
        "cpu": used / took,
        "per_message": used / sum(messages) * 1e6,
        "memory": sum(map(memory, pids)) / len(pids),
    }


def ours(folder, n, seconds):
    running = [start(folder / f"p{k}") for k in range(n)]
    try:
        until_linked(folder, range(n), 60 + 2 * n)

        def counts():
            for one in running:
                one.send_signal(signal.SIGUSR2)  # write your status now
            time.sleep(0.5)
            seen = [status(folder, k) for k in range(n)]
            return sum(one["messages_out"] for one in seen), sum(one["messages_in"] for one in seen)

        return measure([one.pid for one in running], counts, seconds)
    finally:
        stop(running)


def bare(folder, n, degree, rate, seconds, length):
    running = []
    for k in range(n):
        near = [(k + s) % n for s in range(-(degree // 2), degree // 2 + 1) if s] if degree < n - 1 else range(n)
        command = [PYTHON, __file__, "--bare", str(folder), str(k), ",".join(str(j) for j in near if j != k)]
        command += [str(rate), str(length)]
        running.append(subprocess.Popen(command, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True))
    try:
        time.sleep(4 + n / 5)  # links form

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


def members(folder):
    """Return the transport contacts of all members of a group."""
    from coterie.peers.group.groups import membership
    from coterie.peers.transport import contacts_of

    return contacts_of(membership(folder / "p0").roster)


def transport_of(folder, k, preauths=True):
    """The bare transport of a member."""
    from coterie.peers.group.identity import Identity
    from coterie.peers.transport.over_tls import TlsTransport

    contacts = members(folder)
    home, me = folder / f"p{k}", contacts[k]
    seed = Identity.load(home).seed if preauths else None
    run = json.loads((folder / "run.json").read_text())
    return TlsTransport(run, me.name, me.address, me.endpoint, home, contacts=contacts, seed=seed), contacts


def bare_process(folder, k, near, rate, length):
    """Sends random bytes to every neighbour at the times of a Poisson clock, and counts what comes."""
    import threading

    from coterie.core.arrays import EVERYONE

    transport, contacts = transport_of(Path(folder), k)
    payload = os.urandom(length)
    transport.open(lambda owner, data: None)
    transport.link(contacts[j] for j in near)

    def tell():
        for _ in sys.stdin:
            counts = transport.counts
            print(counts.get("sent", 0), counts.get("received", 0), flush=True)

    threading.Thread(target=tell, daemon=True).start()
    while True:
        if rate == float("inf"):
            for _ in range(200):
                transport.send(EVERYONE, payload)
            while transport._hub.channels and any(len(c._queue) > 100 for c in list(transport._hub.channels.values())):
                time.sleep(0.0005)
            while len(transport._thread._mail) > 200:
                time.sleep(0.0005)
        else:
            time.sleep(random.expovariate(rate))
            transport.send(EVERYONE, payload)


# -- attacks ----------------------------------------------------------------------------------------------------------


def hello():
    """The first half of a handshake."""
    outgoing, context = ssl.MemoryBIO(), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    with contextlib.suppress(ssl.SSLWantReadError):
        context.wrap_bio(ssl.MemoryBIO(), outgoing).do_handshake()
    return outgoing.read()


def attack_process(endpoint, source, kind):
    """Strangers at an endpoint until the process is killed."""
    host, _, port = endpoint.rpartition(":")
    say = {"garbage": os.urandom(200).replace(b"\x16", b"x"), "idle": b"", "half TLS": hello()}[kind]
    held, made, began = [], 0, time.monotonic()
    while True:
        while made < (time.monotonic() - began) * ATTACK:
            one = socket.socket()
            one.setblocking(False)
            with contextlib.suppress(OSError):
                one.bind((source, 0))
                one.connect_ex((host, int(port)))
            held.append(one)
            made += 1
            if say and len(held) > 5:
                with contextlib.suppress(OSError):
                    held[-5].send(say)
            if len(held) > HELD:
                held.pop(0).close()
        time.sleep(0.002)


def entry(folder, k, preauths, patience=10.0):
    """Return seconds until p0 accepts a member that cannot be dialled; infinity if it does not."""
    transport, contacts = transport_of(folder, k, preauths)
    transport.open(lambda owner, data: None)
    try:
        began = time.monotonic()
        transport.link([contacts[0]])
        while not transport.alive():
            if time.monotonic() - began > patience:
                return float("inf")
            time.sleep(0.0005)
        return time.monotonic() - began
    finally:
        transport.close()


def under_attack(folder, kinds, seconds):
    """A group of four, of which one is attacked: before, during and after."""
    running = [start(folder / f"p{k}") for k in range(4)]
    endpoint, pid, rows = members(folder)[0].endpoint, running[0].pid, []
    try:
        until_linked(folder, range(4))

        def messages():
            return fresh(folder, 0, running[0])["messages_in"]

        def phase(load, name):
            began, used, came, most = time.monotonic(), cpu(pid), messages(), 0
            times = {"member": [], "newcomer": []}
            while time.monotonic() < began + seconds:
                for who, preauths in (("member", True), ("newcomer", False)):
                    times[who].append(entry(folder, 4, preauths))
                    most = max(most, len(os.listdir(f"/proc/{pid}/fd")))
                time.sleep(0.1)
            took = time.monotonic() - began
            row = {"load": load, "phase": name, "messages": (messages() - came) / took, "cpu": (cpu(pid) - used) / took}
            worst = {f"{who}_worst": max(found) for who, found in times.items()}
            rows.append(row | worst | {"descriptors": most, "memory": memory(pid)})

        phase("", "before")
        for where, source in SOURCES.items():
            for kind in kinds:
                strangers = subprocess.Popen([PYTHON, __file__, "--attack", endpoint, source, kind])
                try:
                    time.sleep(1.5)
                    phase(f"{ATTACK} {kind} a second from {where}", "during")
                finally:
                    strangers.kill()
                    strangers.wait()
        phase("", "after")
        return rows
    finally:
        stop(running)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--bare", nargs=5, help=argparse.SUPPRESS)
    parser.add_argument("--attack", nargs=3, help=argparse.SUPPRESS)
    parser.add_argument("--only", choices=["messages", "events", "strangers", "members"])
    given = parser.parse_args()
    if given.attack:
        attack_process(*given.attack)
        return
    if given.bare:
        folder, k, near, rate, length = given.bare
        bare_process(folder, int(k), [int(j) for j in near.split(",")], float(rate), int(length))
        return
    from rich.console import Console

    console, rows = Console(width=140), []
    parts = {"messages": messages, "events": comings_and_goings, "strangers": strangers, "members": bad_members}
    for name, measured in parts.items():
        if given.only in (None, name):
            rows += measured(given.quick, console)
    if given.json:
        given.json.write_text(json.dumps(rows, indent=2))


def messages(quick, console):
    """Measure the cost of a message."""
    from rich.table import Table

    seconds = 5.0 if quick else 20.0
    loads = [(11, 10, 10.0), (100, 10, 1.0)] if not quick else [(11, 10, 10.0)]
    rows, length = [], 64 + 35 + 8 * FEATURES  # signature, header, numbers
    table = Table(title=f"Models of {FEATURES} numbers, {ROWS} rows; CPU of all processes together")
    for column in ("load", "", "messages/s sent", "received", "CPU, cores", "us of CPU a message", "MB a process"):
        table.add_column(column, justify="left" if column in ("load", "") else "right")

    def add(load, side, seen):
        rows.append({"load": load, "side": side} | seen)
        numbers = [f"{seen['sent']:,.0f}", f"{seen['received']:,.0f}", f"{seen['cpu']:.2f}"]
        table.add_row(load, side, *numbers, f"{seen['per_message']:.0f}", f"{seen['memory']:.0f}")

    for n, degree, rate in loads:
        with tempfile.TemporaryDirectory() as name:
            folder, load = Path(name), f"{n} peers, {degree} neighbours, rate {rate:g}"
            found(folder, n, degree, rate)
            sides = {"bare": bare(folder, n, degree, rate, seconds, length), "coterie": ours(folder, n, seconds)}
            for side, seen in sides.items():
                add(load, side, seen)
        table.add_row(
            "", "ratio", "", "", "", f"x{sides['coterie']['per_message'] / sides['bare']['per_message']:.2f}", ""
        )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        found(folder, 2, 1, 1.0)
        add("two, as fast as they can", "bare", bare(folder, 2, 2, float("inf"), 4.0, length))
    if not quick:
        with tempfile.TemporaryDirectory() as name:  # a peer without neighbours that wakes once in ten minutes
            folder = Path(name)
            found(folder, 2, 1, 1 / 600)
            alone = start(folder / "p0")
            time.sleep(15)
            table.add_row("one idle peer", "coterie", "", "", "", "", f"{memory(alone.pid):.0f}")
            rows.append({"load": "idle", "side": "coterie", "memory": memory(alone.pid)})
            stop([alone])
    console.print(table)
    return rows


def strangers(quick, console):
    """Measure the effect of non-members on a peer."""
    from rich.table import Table

    with tempfile.TemporaryDirectory() as name:
        found(Path(name), 5, 4, 10.0, hidden=(4,))
        rows = under_attack(
            Path(name), ["idle", "half TLS"] if quick else ["garbage", "idle", "half TLS"], 2.0 if quick else 5.0
        )
    table = Table(title="One of four peers is attacked; worst time until somebody else is let in")
    for column in ("", "", "member, ms", "newcomer, ms", "messages/s taken in", "CPU, cores", "descriptors", "MB"):
        table.add_column(column, justify="left" if not column else "right")
    for row in rows:
        times = [f"{1000 * row[f'{who}_worst']:.0f}" for who in ("member", "newcomer")]
        numbers = [f"{row['messages']:.0f}", f"{row['cpu']:.2f}", str(row["descriptors"]), f"{row['memory']:.0f}"]
        table.add_row(row["phase"], row["load"], *times, *numbers)
    console.print(table)
    return rows


if __name__ == "__main__":
    main()
