"""Rules and kernels: the ground that everything compiled stands on."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from numba import njit
from scipy import sparse

import coterie
from coterie.core import numba_backend as _numba
from coterie.core.compile import kernel
from coterie.core.linear import (
    axpy,
    diagonal_kernel,
    dot,
    gram_kernel,
    gram_norms,
    margins_kernel,
    rows_of,
    scatter_kernel,
    total,
)
from coterie.core.losses import Logistic
from coterie.core.rules import rule


def test_wrong_argument_names_are_refused_when_the_rule_is_defined():
    with pytest.raises(TypeError, match=r"value\(z, label\).*must be named \(margin, label\)"):

        @rule
        class Misnamed(NamedTuple):
            def value(self, z, label):
                return z


def test_a_rule_without_fields_can_be_called():
    @njit
    def use(loss):
        return loss.value(0.3, -1.0)

    assert use(Logistic()) == Logistic().value(0.3, -1.0)


def test_changing_a_parameter_does_not_recompile():
    @rule
    class Scale(NamedTuple):
        by: float

        def value(self, margin, label):
            return self.by * margin

    @njit
    def use(loss):
        return loss.value(2.0, 0.0)

    assert [use(Scale(3.0)), use(Scale(5.0))] == [6.0, 10.0]
    assert len(use.signatures) == 1


def test_views_of_rows_neither_leak_nor_free_memory():
    @njit
    def first(rows, v):
        result = 0.0
        for k in range(5):
            result += rows.take(k, k + 1).dot(0, v)
        return result

    X, v = np.random.default_rng(0).normal(size=(5, 3)), np.ones(3)
    for matrix in (X, sparse.csr_array(X)):
        rows = rows_of(matrix)
        first(rows, v)
        before = [sys.getrefcount(array) for array in rows]
        for _ in range(50):
            assert first(rows, v) == pytest.approx(X.sum())
        assert [sys.getrefcount(array) for array in rows] == before


@pytest.fixture
def ragged():
    rng = np.random.default_rng(1)
    start = np.array([0, 4, 4, 5, 12])
    X = rng.normal(size=(12, 3)) * (rng.random((12, 3)) < 0.6)
    return X, start, rng


@pytest.mark.parametrize("storage", [np.asarray, sparse.csr_array])
def test_row_kernels_against_numpy(ragged, storage):
    X, start, rng = ragged
    rows, theta, weights = rows_of(storage(X)), rng.normal(size=(4, 3)), rng.normal(size=12)
    slices = [slice(a, b) for a, b in pairwise(start)]

    margins = np.zeros(12)
    margins_kernel(rows, start, theta, margins)
    np.testing.assert_allclose(margins, np.concatenate([X[s] @ t for s, t in zip(slices, theta, strict=True)]))

    sums = np.zeros((4, 3))
    scatter_kernel(rows, start, weights, sums)
    np.testing.assert_allclose(sums, [weights[s] @ X[s] for s in slices])

    grams = np.zeros((4, 3, 3))
    gram_kernel(rows, start, weights, np.arange(4), grams)
    expected = np.array([X[s].T @ (weights[s, None] * X[s]) for s in slices])
    np.testing.assert_allclose(grams, expected, atol=1e-14)

    together = np.zeros((1, 3, 3))
    gram_kernel(rows, start, weights, np.zeros(4, int), together)
    np.testing.assert_allclose(together[0], expected.sum(axis=0), atol=1e-14)

    diagonals = np.zeros((4, 3))
    diagonal_kernel(rows, start, weights, diagonals)
    np.testing.assert_allclose(diagonals, [np.diagonal(g) for g in expected], atol=1e-14)

    norms = [np.linalg.norm(X[s], 2) ** 2 if s.start < s.stop else 0.0 for s in slices]
    np.testing.assert_allclose(gram_norms(rows, start, 3), norms, rtol=1e-12)


def test_norms_of_diagonal_and_of_large_sparse_grams():
    rng = np.random.default_rng(2)
    units = sparse.csr_array((rng.normal(size=6), [0, 1, 1, 2, 0, 0], np.arange(7)), shape=(6, 3))
    expected = [np.linalg.norm(units[:4].toarray(), 2) ** 2, np.linalg.norm(units[4:].toarray(), 2) ** 2]
    np.testing.assert_allclose(gram_norms(rows_of(units), np.array([0, 4, 6]), 3), expected, rtol=1e-12)

    large = sparse.random_array((700, 650), density=0.01, rng=rng, format="csr")
    exact = np.linalg.norm(large.toarray(), 2) ** 2
    np.testing.assert_allclose(gram_norms(rows_of(large), np.array([0, 700]), 650), [exact], rtol=1e-10)


def test_sums_of_vectors():
    a, b = np.random.default_rng(3).normal(size=(2, 37))
    assert dot(a, b) == pytest.approx(a @ b, rel=1e-13)
    assert total(a) == pytest.approx(a.sum(), rel=1e-13)
    out = b.copy()
    axpy(0.3, a, out)
    np.testing.assert_allclose(out, b + 0.3 * a, rtol=1e-14)
    assert np.isnan(dot(np.array([np.nan, 1.0]), np.ones(2)))  # reordered sums still propagate what is not a number


@kernel
def _halve(loss, x):
    return 0.5 * loss.value(x, 1.0)


def test_rules_from_elsewhere_use_the_uncached_twin():
    @rule
    class Foreign(Logistic):
        def value(self, margin, label):
            return 10.0 * margin

    assert _halve(Foreign(), 3.0) == 15.0 == _halve.python(Foreign(), 3.0)
    assert len(_halve._fresh.signatures) == 1
    assert not _halve._cached.signatures


def test_the_digest_sees_an_edit_in_every_file(tmp_path, monkeypatch):
    package = tmp_path / "coterie"
    shutil.copytree(Path(coterie.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(_numba, "HERE", package)
    fresh = _numba.digest.__wrapped__
    seen = {fresh()}
    paths = sorted(package.rglob("*.py"))
    idle = [path for path in paths if path.relative_to(package).parts[0] in _numba.NO_RULES]
    assert not [path for path in idle if re.search(r"^@(\w+\.)?(kernel|rule|inline|apart)", path.read_text(), re.M)]
    for path in paths:
        path.write_text(path.read_text() + "\n# edited\n")
        seen.add(fresh())
    assert len(seen) == 1 + len(paths) - len(idle)  # nothing is compiled in those


def test_kernels_are_kept_on_disk_between_processes(tmp_path):
    script = (
        "import logging; logging.basicConfig(level='INFO', format='%(message)s')\n"
        "import numpy as np; from coterie.core.linear import rows_of, margins_kernel\n"
        "out = np.zeros(2); margins_kernel(rows_of(np.eye(2)), np.array([0, 2]), np.ones((1, 2)), out); print(out)"
    )
    environment = {"COTERIE_CACHE": str(tmp_path), "PATH": "", "HOME": str(tmp_path)}
    first, second = (
        subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
        for _ in range(2)
    )
    assert first.stdout == second.stdout == "[1. 1.]\n"
    assert "compiling margins_kernel" in first.stderr
    assert "compiling" not in second.stderr


def test_an_unwritable_cache_is_no_obstacle(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("not a directory")
    script = (
        "import numpy as np; from coterie.core.linear import rows_of, margins_kernel\n"
        "out = np.zeros(2); margins_kernel(rows_of(np.eye(2)), np.array([0, 2]), np.ones((1, 2)), out); print(out)"
    )
    environment = {"COTERIE_CACHE": str(blocked), "PATH": "", "HOME": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "[1. 1.]\n"


def test_nothing_in_the_package_unpickles_or_evaluates():
    banned = ("import pickle", "allow_pickle=True", "joblib", " eval(")
    for path in Path(coterie.__file__).parent.rglob("*.py"):
        text = path.read_text()
        assert not [word for word in banned if word in text], path
