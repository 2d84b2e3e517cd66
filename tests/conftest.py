"""What tests in several folders share, which cases the default run takes, and how loops run.

Loops run as the plain Python that they are written in, unless ``COTERIE_PLAIN=0``: to compile them takes longer than
most tests. That compiled code does the same, bit by bit, is what tests marked ``compiled`` prove; `make test` runs them
in a second run, and `make test-all` compiles everything but tests marked ``plain``.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

# Two workers on two cores: the threads of a BLAS would only wait for each other. Before NumPy is imported.
for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(name, "1")
os.environ.setdefault("COTERIE_PLAIN", "1")  # before coterie is imported, here and in the processes that tests start

import pytest  # noqa: E402
from hypothesis import settings  # noqa: E402

sys.path.insert(0, str(Path(__file__).parent))  # what tests of several folders share

settings.register_profile("repeatable", derandomize=True)  # the same examples every time
settings.load_profile("repeatable")

EVERY_CASE = "every_case"
PLAIN = os.environ["COTERIE_PLAIN"] not in ("", "0")
OTHER_MODE = "compiled" if PLAIN else "plain"


#: Modules whose examples are about compiled code, or take many seconds in plain Python.
COMPILED_EXAMPLES = {
    "coterie.comparison",
    "coterie.core.rules",
    "coterie.estimators.boosted",
    "coterie.estimators.relationship",
    "coterie.multitask.covariance",
    "coterie.multitask.learn",
    "coterie.privacy.auditing",
    "coterie.privacy.private",
    "coterie.testing.graph_rules",
    "coterie.testing.methods",
}


#: Examples that take a second or more to show what other tests prove.
LONG_EXAMPLES = {
    "coterie.core.methods.pooling.GossipPooling",
    "coterie.core.wrap.robust.Robust",
    "coterie.studies.grid.study",
    "coterie.studies.results.Study.best",
    "coterie.studies.tables.StudyTable.to_latex",
    "coterie.testing.graph_rules.check_graph_rule",
}


def pytest_addoption(parser):
    parser.addoption(
        "--all-cases", action="store_true", help="every combination of parameters, as `make test-all` does"
    )


def pytest_ignore_collect(collection_path, config):
    """A run of ``-m compiled`` reads only the files that have something to run."""
    if PLAIN or not config.getoption("markexpr").startswith("compiled") or collection_path.suffix != ".py":
        return None
    module = ".".join(collection_path.with_suffix("").parts)
    if module.endswith(tuple(COMPILED_EXAMPLES)) or "mark.compiled" in collection_path.read_text(encoding="utf-8"):
        return None
    return True


@pytest.hookimpl(wrapper=True)
def pytest_collection_modifyitems(config, items):
    """Leave out tests of the other mode, and all but a few cases of each test.

    Of a test with many combinations of parameters, the default run takes so many that every value occurs.

    Most of such tests are products, say of losses, methods and kinds of rows, whose combinations share nearly all of
    their code. ``@pytest.mark.every_case`` keeps all of them, as contracts do; ``make mutants`` shows that planted
    faults are found by what is left, or by what ``make test-all`` has beside it.
    """
    for item in items:
        if isinstance(item, pytest.DoctestItem) and item.dtest.globs["__name__"] in COMPILED_EXAMPLES:
            item.add_marker("compiled")
        if item.name in LONG_EXAMPLES:
            item.add_marker("slow")
        if item.name == "coterie.models.torch_module.Torch":
            item.add_marker("torch")
    _leave_out(config, items, [item for item in items if _mode(item) == OTHER_MODE])
    for item in items:
        if "ray_of_this_run" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("ray"))  # in one process, which starts it once
    result = yield  # ``-m`` leaves out the slow ones: those that are left have to cover every value
    if config.getoption("--all-cases"):
        return result
    tests = {}
    for item in items:
        tests.setdefault(item.nodeid.partition("[")[0], []).append(item)
    kept = {item for cases in tests.values() for item in _covering(cases)}
    _leave_out(config, items, [item for item in items if item not in kept])
    return result


def _mode(item):
    """The mode that a test is for, if it is for one: what its case says, or else its function, or else its file."""
    marks = (mark.name for node in reversed(item.listchain()) for mark in reversed(node.own_markers))
    return next((name for name in marks if name in ("compiled", "plain")), None)


def _leave_out(config, items, others):
    config.hook.pytest_deselected(items=others)
    others = set(others)
    items[:] = [item for item in items if item not in others]


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
