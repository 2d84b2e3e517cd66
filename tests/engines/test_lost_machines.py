"""Relationship learning on several machines, of which one is lost: in a file of its own, with its own Ray."""

from __future__ import annotations

import time

import pytest
from ray_here import machines
from test_relationship_cluster import SLOW, Once, assert_optimal, functions, here, learn

import coterie as ct


@pytest.mark.slow
@pytest.mark.parametrize("cpus", [(1, 1), (3, 1)], ids=["tight", "with room"])
def test_a_machine_is_lost(cpus, tmp_path, caplog):
    """All CPUs are reserved, or there are others; the machine may have been that of the server, too."""
    with machines(*cpus) as (nodes, remove):
        once = Once(lambda: remove(nodes[1]), delay=0.05)
        began = time.monotonic()
        run = learn(functions(tmp_path), True, engine=ct.Cluster(shards=2), progress=once, **SLOW)
        assert time.monotonic() - began < 120  # there were five silent minutes, and then an error
    once.check(run)
    assert_optimal(run, here(given=True), 1e-6)
    assert any("died" in each.getMessage() for each in caplog.records if each.name == "coterie")
