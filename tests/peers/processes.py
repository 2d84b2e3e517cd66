"""Real peers, each a process of its own."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time


def until(holds, what="", seconds=90.0):
    """Wait for something: what it returns."""
    deadline = time.monotonic() + seconds
    while not (found := holds()):
        assert time.monotonic() < deadline, what
        time.sleep(0.1)
    return found


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def status(folder):
    """What a peer has written of itself; nothing yet if it has just begun."""
    path = folder / "status.json"
    return json.loads(path.read_bytes()) if path.exists() else {"edges": [], "alerts": {}, "wakes": 0}


class Processes:
    """Peers by the names of their folders, which are in one folder, with their logs."""

    def __init__(self, folder):
        self.folder, self.here = folder, {}

    def start(self, name, *words, program=("-m", "coterie", "peer", "run")):
        """Run a peer of this folder, with more words after its name."""
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, *program, name, *map(str, words)]
        with open(self.folder / f"{name}.log", "ab") as log:
            self.here[name] = subprocess.Popen(command, cwd=self.folder, env=environment, stdout=log, stderr=log)
        return self.here[name]

    def stop(self):
        """The exit codes of all, by name."""
        for process in self.here.values():
            process.terminate()
        return {name: process.wait(30) for name, process in self.here.items()}
