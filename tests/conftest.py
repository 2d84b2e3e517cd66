"""What tests in several folders share, and which cases the default run takes."""

from __future__ import annotations

import os
import sys
from pathlib import Path

# Two workers on two cores: the threads of a BLAS would only wait for each other. Before NumPy is imported.
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")

import pytest  # noqa: E402
from hypothesis import settings  # noqa: E402

sys.path.insert(0, str(Path(__file__).parent))  # what tests of several folders share

settings.register_profile("repeatable", derandomize=True)  # the same examples every time
settings.load_profile("repeatable")

EVERY_CASE = "every_case"


def pytest_addoption(parser):
    parser.addoption(
        "--all-cases", action="store_true", help="every combination of parameters, as `make test-all` does"
    )


def pytest_collection_modifyitems(config, items):
    """Of a test with many combinations of parameters, the default run takes so many that every value occurs.

    Most of such tests are products, say of losses, methods and kinds of rows, whose combinations share nearly all of
    their code. ``@pytest.mark.every_case`` keeps all of them, as contracts do; ``make mutants`` shows that what is left
    still finds planted faults.
    """
    if config.getoption("--all-cases"):
        return
    tests = {}
    for item in items:
        tests.setdefault(item.nodeid.partition("[")[0], []).append(item)
    kept = {item for cases in tests.values() for item in _covering(cases)}
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = [item for item in items if item in kept]


def _covering(cases):
    """The fewest cases, greedily, in which every value of every parameter occurs."""
    if len(cases) == 1 or cases[0].get_closest_marker(EVERY_CASE) is not None:
        return cases
    values = {case: {(name, _name_of(value)) for name, value in case.callspec.params.items()} for case in cases}
    missing, chosen = set().union(*values.values()), []
    while missing:
        best = max(cases, key=lambda case: len(values[case] & missing))  # the first of the best: the same every time
        chosen.append(best)
        missing -= values[best]
    return chosen


def _name_of(value):
    return getattr(value, "__qualname__", None) or repr(value)[:500]


@pytest.fixture
def uncompiled(monkeypatch):
    """Loops over agents run in plain Python: for a short run, that takes much less time than to compile them.

    The source is the same. That compiled code does the same, bit by bit, is a promise of every method, which
    tests/contract checks.
    """
    from coterie.core import events, loop
    from coterie.core.methods import pooling, resilient
    from coterie.core.plain_backend import kernel
    from coterie.engines import together

    for module, names in (
        (loop, ("run", "rounds", "accept", "together", "publish_all")),
        (together, ("prepare_all", "pick_all", "step_all")),
        (events, ("begin", "meet", "run")),
        (pooling, ("know_all",)),
        (resilient, ("know_all", "weigh_ties")),
    ):
        for name in names:
            monkeypatch.setattr(module, name, kernel(getattr(module, name).python))
    monkeypatch.setattr(loop.meet, "__defaults__", (loop.run, None))


@pytest.fixture(params=["plain", pytest.param("compiled", marks=pytest.mark.slow)])
def seldom_compiled(request):
    """For tests that alone need a kernel: `make test-all` compiles it."""
    if request.param == "plain":
        request.getfixturevalue("uncompiled")
