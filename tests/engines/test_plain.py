"""Plain mode: peers without Numba, light and quick to start.

That they do what compiled peers do is shown by the contract of methods, whose kernels run in both ways, and by the
replays of this folder, which run in plain mode unless asked otherwise.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from coterie.core import linear

#: What a peer imports, and what must not come with it.
LIGHT = (
    "engines.peer",
    "engines.wire",
    *(f"core.{name}" for name in ("loop", "arrays", "losses", "linear", "methods", "wrap.learned", "wrap.robust")),
)
PRIVATE = (
    "privacy.ledger",
    "privacy.private",
    "accounting.plans",
    *(f"core.private.{name}" for name in ("boosting", "descent", "propagation", "pooling")),
)
HEAVY = {"numba", "pandas", "sklearn", "matplotlib", "networkx", "ray"}


def run(modules, then):
    """What a process in plain mode prints that imports these modules."""
    code = f"import importlib, sys; [importlib.import_module('coterie.' + name) for name in {modules}]\n{then}"
    environment = {**os.environ, "COTERIE_PLAIN": "1", "PYTHONWARNINGS": "error"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_peer_is_light():
    """Half of the memory that is asked of a peer with its network; the rest is for that."""
    assert run((*LIGHT, *PRIVATE), f"print({HEAVY} & set(sys.modules))") == "set()\n"
    memory = "print(next(line.split()[1] for line in open('/proc/self/status') if line.startswith('VmRSS')))"
    if Path("/proc/self/status").exists():
        assert int(run(LIGHT, memory)) < 40 * 1024


def test_loops_over_one_vector_are_what_their_docstrings_say():
    """NumPy stands in their place in plain mode."""
    a, b = np.random.default_rng(3).normal(size=(2, 5))
    index, values = np.array([4, 0, 4]), np.array([1.0, 2.0, 3.0])  # one coordinate twice, as CSR may have it
    np.testing.assert_allclose(linear.dot(a, b), sum(a * b), rtol=1e-14)
    np.testing.assert_allclose(linear.sparse_dot(index, values, a), 4.0 * a[4] + 2.0 * a[0], rtol=1e-14)
    for change, result in [
        (lambda out: linear.axpy(0.3, a, out), b + 0.3 * a),
        (lambda out: linear.sparse_axpy(0.5, index, values, out), b + np.array([1.0, 0.0, 0.0, 0.0, 2.0])),
        (lambda out: linear.fill(7.0, out), np.full(5, 7.0)),
        (lambda out: linear.copy_to(a[:3], out), np.concatenate([a[:3], b[3:]])),
    ]:
        out = b.copy()
        change(out)
        np.testing.assert_allclose(out, result, rtol=1e-14)


@pytest.mark.compiled
def test_and_so_are_compiled_ones():
    test_loops_over_one_vector_are_what_their_docstrings_say()


@pytest.mark.parametrize("shape", [(3, 5), (4, 4), (0, 0), (2, 0)])
def test_products_with_a_matrix_in_one_vector(shape):
    """Also an empty one: that of an agent without rows."""
    rng = np.random.default_rng(0)
    matrix, vector, out = rng.normal(size=shape), rng.normal(size=shape[1]), np.ones(shape[0])
    linear.times(matrix.ravel(), vector, out)
    np.testing.assert_allclose(out, matrix @ vector, rtol=1e-12, atol=0)
