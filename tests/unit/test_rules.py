"""Rules and kernels: the ground that everything compiled stands on."""

from __future__ import annotations

import ast
import errno
import inspect
import os
import re
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numba
import numpy as np
import pytest
from numba import njit
from numba.core.errors import NumbaError
from scipy import sparse

import coterie
from coterie.core import fingerprint, kernel_cache, numba_backend
from coterie.core.compile import inline, kernel
from coterie.core.kernel_cache import KernelCache
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
from coterie.core.losses import Hinge, Huber, Location, Logistic, SmoothHinge, Squared
from coterie.core.methods.djam import DJAM
from coterie.core.methods.propagation import ModelPropagation
from coterie.core.rules import rule
from coterie.core.wrap.robust import Trimmed
from coterie.errors import CompileError

pytestmark = pytest.mark.compiled


def test_wrong_argument_names_are_refused_when_the_rule_is_defined():
    with pytest.raises(TypeError, match=r"value\(z, label\).*must be named \(margin, label\)"):

        @rule
        class Misnamed(NamedTuple):
            def value(self, z, label):
                return z


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


def test_a_subclass_from_elsewhere_runs_its_own_body():
    @rule
    class Foreign(Logistic):
        def value(self, margin, label):
            return 10.0 * margin

    class Undecorated(Foreign):
        def value(self, margin, label):
            return 20.0 * margin

    assert _halve(Foreign(), 3.0) == 15.0 == _halve.python(Foreign(), 3.0)
    assert _halve(Undecorated(), 3.0) == 30.0


@pytest.mark.slow
def test_only_core_is_in_the_fingerprint(tmp_path, monkeypatch):
    package = tmp_path / "coterie"
    shutil.copytree(Path(coterie.__file__).parent, package, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(fingerprint, "HERE", package / "core")
    fresh = fingerprint.digest.__wrapped__
    before = fresh()
    for path in sorted(package.rglob("*.py")):
        path.write_text(path.read_text() + "\n# edited\n")
        after = fresh()
        assert (after != before) == path.is_relative_to(package / "core"), path
        before = after


def test_nothing_is_compiled_outside_core():
    package = Path(coterie.__file__).parent
    marked = re.compile(r"^\s*@(\w+\.)*(kernel|rule|loss|inline|inline_sum|noinline|njit|jit|overload)\b(?!\w)", re.M)
    for path in package.rglob("*.py"):
        if not path.is_relative_to(package / "core"):
            assert not marked.search(path.read_text()), path


def test_the_fingerprint_needs_no_numba():
    script = "import sys; from coterie.core.compile import digest; print(digest(), 'numba' in sys.modules)"
    done = _python(script, COTERIE_PLAIN="1")
    assert done.stdout == f"{fingerprint.digest()} False\n"


def _python(script, **environment):
    """Run a script in a process of its own; what it prints, and what it logs."""
    environment = {"PATH": "", "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **environment}
    return subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)


#: Runs a method with helpers that return views, and says what was found and how it was compiled.
VIEWS = """
import logging; logging.basicConfig(level="INFO", format="%(message)s")
import numba, numpy as np
{change}
import coterie as ct
data = ct.AgentData(np.arange(12.0).reshape(6, 2) % 5, [1.0, 0, 2, 1, 0, 3], agents=[0, 0, 1, 1, 2, 2])
problem = ct.Problem.separate(data, ct.graphs.complete(3), loss="squared")
print(*ct.simulate(problem, "gossip-pooling", wakes=30, seed=0).theta.ravel())
"""


def test_kernels_are_compiled_in_our_own_way():
    assert numba_backend.pipelines is not None
    assert numba.version_info.short <= fingerprint.NEWEST_NUMBA


@pytest.mark.parametrize(
    ("change", "said"),
    [
        pytest.param(
            "numba.version_info = numba.version_info._replace(short=(9, 9))",
            "compiling run for this machine",
            marks=pytest.mark.slow,
        ),
        ("del numba.core.caching.CompileResultCacheImpl", "loops run as plain Python, and slowly"),
    ],
    ids=["newer", "moved"],
)
def test_an_unknown_numba_makes_things_slower_and_not_broken(tmp_path, change, said):
    script = VIEWS.format(change=f"import numba.core.caching\n{change}")
    done = _python(script, COTERIE_CACHE=str(tmp_path))
    known = _python(VIEWS.format(change=""), COTERIE_PLAIN="1")
    found, expected = (np.array(run.stdout.split(), float) for run in (done, known))
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    assert said in done.stderr


MINE = """
from typing import NamedTuple
from coterie.core.compile import inline
from coterie.core.rules import rule

FACTOR = 1.0

@inline
def bent(x):
    return {helper} * x

@rule
class Mine(NamedTuple):
    scale: float = 2.0
    def derivative(self, margin, label):
        return {body} * self.scale * bent(margin)
    smoothness = property(lambda self: {claim})
"""
USE = """
import logging; logging.basicConfig(level="INFO", format="%(message)s")
import numpy as np
from mine import Mine
from coterie.core.dual_ascent import slopes_kernel
out = np.zeros(1)
slopes_kernel(Mine(), np.ones(1), np.ones(1), out)
print(out[0])
"""


@pytest.mark.slow
def test_rules_of_users_are_kept_on_disk_by_what_they_do(tmp_path):
    def run(**parts):
        (tmp_path / "mine.py").write_text(MINE.format(**{"helper": "1.0", "body": "FACTOR", "claim": "1.0"} | parts))
        shutil.rmtree(tmp_path / "__pycache__", ignore_errors=True)  # edits within a second look alike to Python
        path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
        done = _python(USE, COTERIE_CACHE=str(tmp_path / "cache"), PYTHONPATH=path)
        return float(done.stdout), "compiling slopes_kernel for this machine (once; kept on disk)" in done.stderr

    assert run() == (2.0, True)
    assert run() == (2.0, False)
    assert run(body="5.0") == (10.0, True)
    assert run(helper="3.0") == (6.0, True)
    assert run(helper="FACTOR + 3.0") == (8.0, True)
    assert run() == (2.0, False)  # and the first is still there


@pytest.mark.slow
def test_what_cannot_be_looked_through_is_compiled_in_every_process(tmp_path):
    (tmp_path / "helpers.py").write_text("FACTOR = 3.0")
    (tmp_path / "mine.py").write_text(
        MINE.format(helper="helpers.FACTOR", body="1.0", claim="1.0").replace("FACTOR =", "import helpers\nFACTOR =")
    )
    path = os.pathsep.join([str(tmp_path), *filter(None, sys.path)])
    for _ in range(2):
        done = _python(USE, COTERIE_CACHE=str(tmp_path / "cache"), PYTHONPATH=path)
        assert done.stdout == "6.0\n"
        assert "in every process, for code from outside the package has no key: it looks into the module helpers" in (
            done.stderr
        )


def test_a_helper_that_changes_after_the_key_was_made_is_not_kept_under_it(tmp_path, monkeypatch):
    monkeypatch.setenv("COTERIE_CACHE", str(tmp_path))

    @inline
    def bent(x):
        return 2.0 * x

    @inline
    def other(x):
        return 3.0 * x

    scope = {"__name__": __name__, "NamedTuple": NamedTuple, "rule": rule, "bent": bent}
    exec(ONCE.format("bent(margin)"), scope)
    kept = KernelCache(_halve.python, (scope["Once"],))
    assert not kept._changed()
    scope["bent"] = other
    assert kept._changed()


ONCE = """
@rule
class Once(NamedTuple):
    scale: float = 1.0
    def value(self, margin, label):
        return {}
"""


def _defined(body, module=__name__):
    scope = {"__name__": module, "NamedTuple": NamedTuple, "rule": rule}
    exec(ONCE.format(body), scope)
    return scope["Once"]()


@pytest.mark.parametrize("modules", [(__name__, __name__), (__name__, "coterie.testing")])
def test_a_rule_defined_anew_runs_its_new_body(modules):
    old, new = _defined("10.0 * margin", modules[0]), _defined("20.0 * margin", modules[1])

    @njit
    def use(loss):
        return loss.value(1.0, 1.0)

    for _ in range(2):  # the second time by what Numba remembers
        assert [_halve(loss, 1.0) for loss in (old, new)] == [5.0, 10.0]
        assert [_halve(Location(loss), 1.0) for loss in (old, new)] == [5.0, 10.0]
        assert [use(loss) for loss in (old, new)] == [10.0, 20.0]
    assert repr(old) == repr(new) == "Once(scale=1.0)"
    assert old != new


@pytest.mark.plain
def test_rules_are_values():
    assert len({Squared(), Logistic(), Hinge()}) == 3
    assert SmoothHinge(1.0) != Huber(1.0)
    assert Huber(1.0) == Huber() != Huber(2.0)
    assert hash(Huber(1.0)) == hash(Huber())
    assert all(map(bool, (Squared(), Location(Squared()), Huber(0.5))))
    assert Location(Huber()) == Location(Huber(1.0)) != Location(Squared())
    # Inside others, too: these have the same fields, and are not the same.
    assert Location(Huber(1.0)) != Location(SmoothHinge(1.0))
    assert len({Trimmed(DJAM(), 0.2), Trimmed(ModelPropagation(), 0.2)}) == 2


def test_arrays_in_rules_are_compared_by_content():
    a, b, c = (rows_of(np.array([[1.0, x]])) for x in (2.0, 2.0, 3.0))
    assert a == b != c
    assert len({a, b, c}) == 2
    assert rows_of(np.ones((1, 4))) != rows_of(np.ones((2, 2)))


@rule
class Unfit(NamedTuple):
    def value(self, margin, label):
        z = 2.0 * margin
        return z + "one"


@rule
class Outer(NamedTuple):
    """A method-like rule: the fault is in what its handler calls."""

    loss: Unfit = Unfit()

    def reported_loss(self, data, me):
        return data + self.loss.value(me, 1.0)


@kernel
def _told(method, x):
    return method.reported_loss(x, x)


def test_what_does_not_compile_is_named():
    line = inspect.getsourcelines(Unfit.value)[1] + 2
    for run in (lambda: _halve(Unfit(), 1.0), lambda: _told(Outer(), 1.0)):
        with pytest.raises(CompileError, match=rf"Unfit\.value cannot be compiled: .*, line {line}: ") as told:
            run()
        assert isinstance(told.value.__cause__, NumbaError)
        assert "add(float64" in str(told.value)


def test_a_handler_that_does_not_compile_is_named():
    @rule
    class Forgetful(NamedTuple):
        def reported_loss(self, data, me):
            return me.nothing

    with pytest.raises(CompileError, match=r"Forgetful\.reported_loss cannot be compiled: .*Unknown attribute"):
        _told(Forgetful(), 1.0)


def test_an_argument_that_no_kernel_takes_is_refused_in_our_words():
    with pytest.raises(CompileError, match="_halve cannot be compiled for these arguments"):
        _halve(object(), 1.0)


@pytest.mark.slow
def test_bounds_are_checked_if_asked_for(tmp_path):
    script = """
import numpy as np
from typing import NamedTuple
from coterie.core.compile import inline, inline_sum, kernel, noinline
from coterie.core.rules import rule

@rule
class Past(NamedTuple):
    def pool(self, margins, labels):
        return margins[margins.shape[0]]

def past(x):
    return x[x.shape[0]]

a, b, c = inline(lambda x: x[x.shape[0]]), noinline(past), inline_sum(lambda x: x[x.shape[0]])
reads = [lambda r, x: x[x.shape[0]], lambda r, x: a(x), lambda r, x: b(x), lambda r, x: c(x), lambda r, x: r.pool(x, x)]
for read in reads:
    read.__name__ = "read"
    try:
        kernel(read)(Past(), np.zeros(3))
        print("read")
    except IndexError:
        print("refused")
"""
    cache = {"COTERIE_CACHE": str(tmp_path)}
    assert _python(script, **cache).stdout == 5 * "read\n"
    assert _python(script, COTERIE_DEBUG="1", **cache).stdout == 5 * "refused\n"
    assert _python(script, **cache).stdout == 5 * "read\n"  # the two kinds are kept apart


def test_kernels_are_kept_on_disk_between_processes(tmp_path):
    first, second = (_at_once(tmp_path, 1)[0] for _ in range(2))
    assert "compiling margins_kernel" in first
    assert "compiling" not in second


COLD = """
import logging, sys; logging.basicConfig(level="INFO", format="%(message)s")
import numpy as np
from concurrent.futures import ThreadPoolExecutor
from coterie.core.linear import rows_of, margins_kernel

def use(_):
    out = np.zeros(2)
    margins_kernel(rows_of(np.eye(2)), np.array([0, 2]), np.ones((1, 2)), out)
    return out.tolist()

print("ready", flush=True)
sys.stdin.readline()
with ThreadPoolExecutor(2) as pool:
    print(list(pool.map(use, range(2))))
"""
USED = "[[1.0, 1.0], [1.0, 1.0]]\n"


def _at_once(cache, count):
    """Processes that begin with the same at the same moment: what each of them logs."""
    environment = {"COTERIE_CACHE": str(cache), "PATH": "", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    started = [
        subprocess.Popen([sys.executable, "-c", COLD], env=environment, text=True, **pipes) for _ in range(count)
    ]
    for process in started:
        assert process.stdout.readline() == "ready\n"
    for process in started:
        process.stdin.write("\n")
        process.stdin.flush()
    ended = [process.communicate() for process in started]
    assert [out for out, _ in ended] == count * [USED]
    return [log for _, log in ended]


def test_threads_and_processes_that_need_the_same_kernel_compile_it_once(tmp_path):
    logs = _at_once(tmp_path, 2)
    assert "".join(logs).count("compiling margins_kernel") == 1


HOLDS = """
import time
import numpy as np
from coterie.core import linear
def stay(args, return_type):
    print("compiling", flush=True)
    time.sleep(60)
linear.margins_kernel._prepare(frozenset())._compiler.compile = stay
linear.margins_kernel(linear.rows_of(np.eye(2)), np.array([0, 2]), np.ones((1, 2)), np.zeros(2))
"""


def test_who_is_killed_while_compiling_is_not_waited_for(tmp_path):
    environment = {"COTERIE_CACHE": str(tmp_path), "PATH": "", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen([sys.executable, "-c", HOLDS], env=environment, stdout=subprocess.PIPE, text=True) as holder:
        try:
            assert holder.stdout.readline() == "compiling\n"
            (lock,) = tmp_path.glob("kernels/*/margins_kernel-*.lock")
            with lock.open("a") as file:
                assert not kernel_cache._locked(file)
                holder.kill()
                holder.wait()
                assert kernel_cache._locked(file)
        finally:
            holder.kill()
    assert "compiling margins_kernel" in _at_once(tmp_path, 1)[0]


def test_one_that_holds_a_lock_for_ever_is_not_waited_for_so_long(tmp_path, monkeypatch):
    monkeypatch.setattr(kernel_cache, "LOCK_TIMEOUT_SECONDS", 0.05)
    with kernel_cache._alone(tmp_path / "lock", "it"), kernel_cache._alone(tmp_path / "lock", "it"):
        pass


def test_where_nothing_can_be_locked_or_kept_it_is_compiled_all_the_same(tmp_path, monkeypatch, caplog):
    def fails(*_):
        raise OSError(errno.ENOLCK, "no locks here")

    monkeypatch.setenv("COTERIE_CACHE", str(tmp_path))
    monkeypatch.setattr(kernel_cache, "_locked", fails)
    monkeypatch.setattr(kernel_cache.FunctionCache, "save_overload", fails)

    def twice(x):
        return 2.0 * x

    twice.__module__ = "coterie.core.tested"  # as if it were ours
    assert kernel(twice)(3.0) == 6.0
    assert "twice was compiled and cannot be kept" in caplog.text


@pytest.mark.slow
def test_an_unwritable_cache_is_no_obstacle(tmp_path):
    blocked = tmp_path / "file"
    blocked.write_text("not a directory")
    assert "in every process" in _at_once(blocked, 1)[0]


def test_nothing_in_the_package_unpickles_or_evaluates():
    # pickletools takes a pickle apart without running it.
    banned = (r"import pickle\b", r"joblib\.load", "joblib import load", r" eval\(")
    for path in Path(coterie.__file__).parent.rglob("*.py"):
        text = path.read_text()
        assert not [word for word in banned if re.search(word, text)], path
        named = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.keyword)]
        assert all(ast.literal_eval(node.value) is False for node in named if node.arg == "allow_pickle"), path
