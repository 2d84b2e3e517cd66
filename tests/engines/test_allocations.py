"""A compiled loop allocates nothing, however many agents wake in it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

pytestmark = [pytest.mark.slow, pytest.mark.compiled]

PROGRAM = """
import sys
import numba
import numpy as np
from numba.core.runtime import rtsys
import coterie as ct
from coterie.core import loop
from coterie.engines.drivers import Immediate

@numba.njit
def wasteful(wakes):
    total = 0.0
    for k in range(wakes):
        total += np.full(3, k)[0]
    return total

def allocations(run, wakes):
    before = rtsys.get_allocation_stats().alloc
    run(wakes)
    return rtsys.get_allocation_stats().alloc - before

wasteful(1)
print("control", allocations(wasteful, 1_000), allocations(wasteful, 2_000))
task = ct.datasets.linear_classification(n=10, p=3, seed=0)
for loss in ("squared", "logistic", "hinge"):
    problem = ct.Problem.personalized(task.train, task.graph, loss=loss)
    driver = Immediate.of(problem, ct.CollaborativeADMM(1.0), problem.local(), 0)
    advance = lambda wakes: driver.advance(wakes, loop.NO_LIMIT)
    advance(10)
    print(loss, allocations(advance, 1_000), allocations(advance, 10_000))
"""


@pytest.fixture(scope="module")
def counts():
    """Allocations of a short and a long loop, for each loss."""
    environment = {**os.environ, "NUMBA_NRT_STATS": "1"}
    ran = subprocess.run([sys.executable, "-c", PROGRAM], env=environment, capture_output=True, text=True, check=True)
    return {name: (int(short), int(long)) for name, short, long in map(str.split, ran.stdout.splitlines())}


def test_the_count_counts(counts):
    assert counts["control"] == (1_000, 2_000)


@pytest.mark.parametrize("loss", ["squared", "logistic", "hinge"])
def test_exact_primal_steps_of_admm_allocate_nothing(counts, loss):
    short, long = counts[loss]
    assert short == long
