"""The model that a private peer keeps to itself, worked out in a process of its own.

When all is said, an agent trains once more on its own rows, near what it has heard (:mod:`coterie.core.private.final`).
That takes seconds of compiled code and minutes of plain Python, so a peer, which is plain and must answer letters, has
it done elsewhere. Nothing of it is ever sent.
"""

from __future__ import annotations

import os
import subprocess
import sys

import msgspec
import numpy as np

from ...engines.peer import Peer
from ...errors import StateError
from ..group.charter import charter_json, read_charter
from ..model.work import method_of, read_work, world_of_one, write_work
from .node import Node
from .state import read_record, restored

#: Seconds that it may take.
LONGEST = 300.0


class Job(msgspec.Struct):
    """What is needed for it."""

    charter: bytes
    work: bytes
    record: bytes
    largest: int


def job_of(node: Node) -> bytes:
    """What another process needs to know to do it."""
    job = Job(charter_json(node.charter), write_work(node.work), node.record(), node.largest)
    return msgspec.msgpack.encode(job)


def finished(job: bytes) -> np.ndarray:
    """The model for the peer's own use. Waits for another process."""
    done = subprocess.run(
        [sys.executable, "-m", "coterie.peers.node.finish"],
        input=job,
        capture_output=True,
        timeout=LONGEST,
        env=os.environ | {"COTERIE_PLAIN": "0"},
    )
    if done.returncode or not done.stdout:
        raise StateError(f"the final model could not be worked out: {done.stderr.decode(errors='replace')[-500:]}")
    return np.frombuffer(done.stdout, "<f8").copy()


def main() -> None:
    """Read a job from standard input, write the model to standard output."""
    from ...privacy import Ledger

    job = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=Job)
    charter = read_charter(job.charter)
    method, work, record = method_of(charter), read_work(job.work), read_record(job.record)
    world = world_of_one(work, record.address, {}, record.address + 1, job.largest)
    peer = Peer(method, world, work.theta, Ledger(method.plan))
    peer.resume(*restored(peer, record.arrays))
    sys.stdout.buffer.write(peer.final.astype("<f8").tobytes())


if __name__ == "__main__":
    main()
