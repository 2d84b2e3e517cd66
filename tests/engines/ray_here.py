"""Ray on this machine for tests, and its processes, which tests may kill."""

from __future__ import annotations

import os
import uuid
from contextlib import contextmanager
from pathlib import Path

import pytest

QUIET = {"log_to_driver": False, "logging_level": "error"}
MARK = "COTERIE_TEST_RAY"


@contextmanager
def marked():
    """Settings of Ray, and a mark in the environment of all its processes."""
    with pytest.MonkeyPatch.context() as environment:
        # Ray's workers give way to all others, by default: where cores are busy, they would take minutes to begin.
        environment.setenv("RAY_worker_niceness", "0")
        environment.setenv("RAY_USAGE_STATS_ENABLED", "0")
        environment.setenv(MARK, uuid.uuid4().hex)
        yield


def ray_here():
    """The Ray of this run, with two CPUs whatever there are: it takes seconds to start, and all tests share it."""
    ray = pytest.importorskip("ray")
    if not ray.is_initialized():
        ray.init(address="local", num_cpus=2, include_dashboard=False, object_store_memory=80_000_000, **QUIET)
    return ray


@contextmanager
def machines(*cpus):
    """A cluster of several machines, the first one its head: a list of them, and what removes one at once."""
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    ray.shutdown()  # the one that all tests share: the next one that asks for it starts it anew
    size = {"object_store_memory": 80_000_000, "include_dashboard": False}
    with marked():
        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": cpus[0], **size})
        try:
            nodes = [cluster.head_node, *(cluster.add_node(num_cpus=each, **size) for each in cpus[1:])]
            ray.init(address=cluster.address, **QUIET)
            yield nodes, lambda node: cluster.remove_node(node, allow_graceful=False)
        finally:
            ray.shutdown()
            cluster.shutdown()


def processes(name):
    """Numbers of the living actors of a class, of the Ray that was started here, the youngest one last."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            begins = (folder / "cmdline").read_bytes().startswith(f"ray::{name}".encode())
            if begins and f"{MARK}={os.environ[MARK]}".encode() in (folder / "environ").read_bytes():
                found.append((int((folder / "stat").read_text().rpartition(")")[2].split()[19]), int(folder.name)))
        except OSError:  # gone meanwhile
            continue
    return [pid for _, pid in sorted(found)]
