"""Files as peers, labs and recorders leave them: what the tests of watching look at."""

from __future__ import annotations

import json
import os
import time


def status(name="ann", edges=(), **more):
    """A status as a running peer writes it: of this very process."""
    return {
        "name": name,
        "address": 0,
        "run": "0123456789abcdef" * 2,
        "method": "CoordinateDescent()",
        "running": True,
        "pid": os.getpid(),
        "at": round(time.time(), 1),
        "uptime": 60.0,
        "starts": 3,
        "roster": 4,
        "members": 4,
        "wakes": 120,
        "rows": 20,
        "classes": ["no", "yes"],
        "edges": [
            {"name": other, "weight": weight, "alive": alive, "answered": alive, "heard": 1.0, "influence": influence}
            for other, weight, alive, influence in edges
        ],
        "messages_in": 60,
        "messages_out": 118,
        "messages_by": {other: 40 for other, *_ in edges},
        "bytes_out": 20_000,
        "refused": {"norm": 3, "signature": 9},
        "refused_by": {},
        "transport": {},
        "errors": {},
        "last_error": "",
        "certificate_expires": "2999-01-01T00:00:00+00:00",
        "memory_mb": 80.0,
        "score": 0.8,
        "score_alone": 0.7,
        "scored_on": "rows kept aside",
        "served": "together",
        "group": [],
    } | more


def write_json(path, content):
    draft = path.with_name(f".{path.name}.draft")
    draft.write_text(json.dumps(content))
    draft.replace(path)


def peer_folder(folder, private=False, **more):
    """The folder of a peer with two neighbours, one of them away; and a fourth member who tells of itself."""
    folder.mkdir(exist_ok=True)
    (folder / "identity.json").write_text("{}")
    told = {"name": "dan", "address": 3, "start": 1, "number": 2, "time": 1, "version": "1", "wakes": 7, "score": 0.71}
    told |= {"score_alone": 0.6, "served": "together", "edges": 2, "alive": 1, "refused": 0, "expires": 20}
    found = status(
        edges=[("bob", 1.0, True, 0.75), ("cleo", 0.5, False, 0.1)],
        refused_by={"bob": {"norm": 3}, "eve": {"signature": 9}},
        errors={"disk": 2},
        last_error="the state could not be saved: no space left on device",
        group=[told | {"errors": [], "age": 12.0}],
    )
    if private:
        found |= {"epsilon": 1.0, "delta": 1e-5, "releases": 3, "releases_left": 37, "spent": 0.1, "waits": False}
    write_json(folder / "status.json", found | more)
    return folder


def lab_folder(folder, n, score=0.8, run="0" * 32):
    """The folder of a lab: a ring with weights; the last but one is killed, the last has not started yet."""
    folder.mkdir(exist_ok=True)
    write_json(folder / "lab.json", {"format": 1, "peers": n})
    rows = []
    for i in range(n):
        peer = folder / f"p{i}"
        peer.mkdir(exist_ok=True)
        state = "killed" if i == n - 2 else "starting" if i == n - 1 else "up"
        rows.append({"name": f"p{i}", "agent": i, "state": state, "distance": 0.1 * i, "wakes": i, "refused": i})
        if state != "starting":
            edges = [(f"p{j % n}", 1.0 + i % 3, j % n < n - 2 and state == "up", None) for j in (i - 1, i + 1)]
            refused = {f"p{(i + 1) % n}": {"norm": i}}
            more = {"score": score + 0.001 * i, "wakes": 10 * i, "refused_by": refused, "address": i, "run": run}
            more |= {"errors": {"radius": 1} if i == 1 else {}, "served": "alone" if i == 2 else "together"}
            more |= {"score_alone": 0.95 if i == 2 else 0.7}
            write_json(
                peer / "status.json", status(f"p{i}", edges, **more, **({"pid": 2**22 + 1} if state != "up" else {}))
            )
    report = {
        "method": "cd",
        "seconds": 9.0,
        "gap": 0.01,
        "peers": rows,
        "done": [[1.0, "paused p1"], [7.5, "killed p4"]],
    }
    write_json(folder / "report.json", report)
    return folder


def recording(path, n, moments):
    """A recording of agents on a ring with chords, as :class:`coterie.observers.FileRecorder` writes it."""
    edges = [[i, (i + 1) % n, 1.0] for i in range(n)]
    edges += [[i, (i * 7 + 3) % n, 0.5] for i in range(n) if n > 20 and i != (i * 7 + 3) % n]
    head = {"coterie": "simulation", "format": 1, "at": time.time(), "pid": os.getpid(), "problem": "a problem"}
    head |= {"what": "accuracy", "higher": True, "names": [f"a{i}" for i in range(n)], "edges": edges}
    lines = [head | {"alone": [0.6 + 0.1 * (i % 3) for i in range(n)]}]
    lines += [
        {"at": time.time(), "scores": [0.6 + 0.01 * k + 0.05 * (i % 5) for i in range(n)]} for k in range(moments)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path
