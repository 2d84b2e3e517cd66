"""Compile what the default tests share, once, before several workers would each do so: called by conftest.py.

A part is a list of things to run whose kernels stay on disk; parts run side by side, each in a process of its own.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np

import coterie as ct
from coterie.core.kernel_cache import cache_directory
from coterie.core.methods import METHODS
from coterie.testing.contracts import METHOD_CHECKS

PARTS = (
    ("cd", "djam", "gossip-pooling", "solvers"),
    ("boosting", "boosted", "admm", "propagation", "resilient-pooling"),
)


def solvers():
    """The exact solvers, on dense and on sparse rows."""
    for storage in ("dense", "sparse"):
        hard = ct.testing.hard_problem(storage=storage)
        for loss in ("logistic", "squared", "hinge", "smooth-hinge"):
            data = hard.data
            problem = ct.Problem.personalized(data, hard.graph, loss=loss)
            problem.gradient(problem.solve()) if loss != "hinge" else problem.solve()


def boosted():
    """Boosting behind the estimators, with a graph that is learned."""
    moons = ct.datasets.clustered_moons(n=6, seed=0)
    X, y, ids = np.asarray(moons.train.X), np.asarray(moons.train.y), moons.train.owner
    for graph in ("learn", ct.graphs.ring(6)):
        ct.BoostedClassifier(base=8, graph=graph, max_iter=60, tol=1.0).fit(X, y, agents=ids)
        ct.BoostedRegressor(base=8, graph=graph, max_iter=60, tol=1.0).fit(X, X[:, 0], agents=ids)


def run(part):
    """Everything of one part."""
    for name in part:
        if name in METHODS:
            METHOD_CHECKS["compiled equals python"](METHODS[name])
        else:
            {"solvers": solvers, "boosted": boosted}[name]()


def everything():
    """All parts side by side, unless that was done for this version of the core already."""
    done = cache_directory() / "prewarmed"
    if done.exists() or os.environ.get("COTERIE_PLAIN") == "1":
        return
    print("compiling what the tests share, once for this version of coterie/core", file=sys.stderr, flush=True)
    command = [sys.executable, __file__]
    parts = [subprocess.Popen([*command, str(k)], cwd=Path(__file__).parents[1]) for k in range(len(PARTS))]
    if all([part.wait() == 0 for part in parts]):  # a list: all of them have ended
        done.touch()


if __name__ == "__main__":
    run(PARTS[int(sys.argv[1])])
