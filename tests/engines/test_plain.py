"""Plain mode: peers without Numba, light and quick to start, that do what compiled peers do.

This file is also the program that runs in plain mode: it reads worlds, dice and schedules, and writes models.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import coterie as ct
from coterie.core import linear, losses
from coterie.core.linear import DenseRows, SparseRows
from coterie.core.methods import METHODS, check_fit
from coterie.core.world import VACANT, World
from coterie.engines.worlds import world_of
from coterie.testing.shared import Crowd

#: What a peer imports, and what must not come with it.
LIGHT = (
    "engines.peer",
    "engines.wire",
    *(f"core.{name}" for name in ("loop", "world", "losses", "linear", "methods", "wrap.learned", "wrap.robust")),
)
PRIVATE = (
    "privacy.ledger",
    "privacy.private",
    "accounting.plans",
    *(f"core.private.{name}" for name in ("boosting", "descent", "propagation", "pooling")),
)
HEAVY = ("numba", "pandas", "sklearn", "matplotlib", "networkx", "ray")
LOSSES = {repr(loss): loss for loss in (*losses.LOSSES.values(), losses.LogSumExp())}
SPARSE = ("cd-sparse",)
WAKES = 60


def all_methods():
    """Every method, and what may be put around one. A file holds no objects: both processes make their own."""
    return {
        **METHODS,
        **{name: METHODS[name.partition("-")[0]] for name in SPARSE},
        "learned": ct.Learned("cd", ct.GraphRule(kappa=3), every=20),
        "private-cd": ct.Private("cd", wakes_per_agent=8),
        "private-propagation": ct.Private("propagation"),
        "private-pooling": ct.Private("gossip-pooling"),
    }


def problem_for(name, method):
    """The first problem that the method can solve."""
    hard = ct.testing.hard_problem(storage="sparse" if name in SPARSE else "dense")
    models = np.random.default_rng(0).normal(size=(hard.n, hard.p))
    for problem in (
        hard,
        ct.Problem.boosting(hard.data, hard.graph, base=lambda X: X, mu=0.5, beta=1.5),
        ct.Problem.propagation(models, hard.graph, alpha=0.6),
    ):
        try:
            check_fit(method, problem)
        except ct.errors.MismatchError:
            continue
        return problem
    raise AssertionError(f"no problem for {name}")


def replay(method, world, start, *events):
    """Models of peers that exchange bytes, where every letter arrives before the next wake."""
    return np.array([peer.theta for peer in Crowd(method, world, start).replay(events).peers])


def write(path, world, **arrays):
    fields = world._asdict()
    parts, loss = fields.pop("rows")._asdict(), repr(fields.pop("loss"))
    np.savez(path, loss=loss, **{f"rows.{key}": value for key, value in parts.items()}, **fields, **arrays)


def read(path):
    with np.load(path) as file:
        arrays = {key: value if value.ndim else value.item() for key, value in file.items()}
    parts = {key[5:]: arrays.pop(key) for key in list(arrays) if key.startswith("rows.")}
    rows = DenseRows(**parts) if len(parts) == 1 else SparseRows(**parts)
    loss = LOSSES[arrays.pop("loss")]
    world = World(loss=loss, rows=rows, **{key: arrays.pop(key) for key in World._fields if key in arrays})
    return world, arrays


def main(folder):
    """The program in plain mode."""
    for name in LIGHT + PRIVATE:
        importlib.import_module(f"coterie.{name}")
    assert not set(HEAVY) & set(sys.modules)
    for name, method in all_methods().items():
        world, arrays = read(folder / f"{name}.npz")
        np.save(folder / f"{name}.npy", replay(method, world, **arrays))
    check_vectors()
    assert not set(HEAVY) & set(sys.modules), "heavy modules were imported on the way"


def run(*arguments):
    environment = {**os.environ, "COTERIE_PLAIN": "1", "PYTHONWARNINGS": "error"}
    done = subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.compiled
@pytest.mark.slow
def test_peers_do_the_same_without_numba(tmp_path):
    expected = {}
    for name, method in all_methods().items():
        problem, rng = problem_for(name, method), np.random.default_rng(5)
        world = world_of(problem, spare=getattr(method, "spare", 0))
        order = rng.integers(0, problem.n, WAKES)
        neighbours = np.full(WAKES, VACANT)
        if getattr(method, "exchanges", False):
            ties = [problem.graph.neighbours(i) for i in order]
            neighbours[:] = [rng.choice(peers) if len(peers) else VACANT for peers in ties]
        start = np.zeros((problem.n, problem.p)) if getattr(method, "plan", None) else problem.local()
        arrays = {"start": start, "order": order, "neighbours": neighbours, "dice": rng.random((WAKES, method.dice))}
        expected[name] = replay(method, world, **arrays)
        assert np.abs(expected[name] - start).max() > 1e-3  # something happened
        write(tmp_path / f"{name}.npz", world, **arrays)
    run(__file__, str(tmp_path))
    for name, models in expected.items():
        np.testing.assert_allclose(np.load(tmp_path / f"{name}.npy"), models, rtol=0, atol=1e-9, err_msg=name)


def test_a_peer_is_light():
    """Half of what is asked of a peer with its network; the rest is for that."""
    code = (
        f"import importlib; [importlib.import_module('coterie.' + name) for name in {LIGHT}]\n"
        "print(next(line.split()[1] for line in open('/proc/self/status') if line.startswith('VmRSS')))"
    )
    if Path("/proc/self/status").exists():
        assert int(run("-c", code)) < 40 * 1024


def check_vectors():
    """Loops over one vector, and NumPy in their place in plain mode, as written in their docstrings."""
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
def test_vectors():
    check_vectors()  # as they are here: compiled; the plain process checks its own


@pytest.mark.parametrize("shape", [(3, 5), (4, 4), (0, 0), (2, 0)])
def test_plain_products_with_a_matrix_in_one_vector(shape):
    """Also an empty one: that of an agent without rows."""
    script = (
        "import numpy as np; from coterie.core.linear import times; rng = np.random.default_rng(0); "
        f"matrix, vector, out = rng.normal(size={shape}), rng.normal(size={shape[1]}), np.ones({shape[0]}); "
        "times(matrix.ravel(), vector, out); np.testing.assert_allclose(out, matrix @ vector, rtol=1e-12, atol=0)"
    )
    subprocess.run([sys.executable, "-c", script], env=os.environ | {"COTERIE_PLAIN": "1"}, check=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
