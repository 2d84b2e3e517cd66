"""A loss is one file: that of docs/how-to/bring-a-loss.md, put on the list, goes everywhere that losses go."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pytest

import coterie as ct
from coterie.core import losses
from coterie.engines.peer import Peer
from coterie.peers import make_charter
from coterie.peers.model.tables import work_of
from coterie.peers.model.work import arrays_of_one, write_work
from coterie.testing import check_loss, hard_problem
from shown import shown

PEER = """
import sys
import squared_hinge
from coterie.core import losses
from coterie.core.methods import METHODS
from coterie.engines.peer import Peer
from coterie.peers.model.work import read_work, arrays_of_one

losses.LOSSES["squared-hinge"] = squared_hinge.SquaredHinge()
with open(sys.argv[1], "rb") as file:
    work = read_work(file.read())
assert work.loss == squared_hinge.SquaredHinge()
peer = Peer(METHODS["cd"], arrays_of_one(work, 0, {1: 1.0}, 2, 60), 0.0 * work.theta)
peer.wake()
assert "numba" not in sys.modules
print(*peer.theta)
"""


@pytest.fixture
def loss(tmp_path, monkeypatch):
    """The new loss, from a module of its own, and on the list."""
    monkeypatch.syspath_prepend(tmp_path)  # for peers in processes of their own
    made = shown("how-to/bring-a-loss.md", "squared_hinge.py", tmp_path).SquaredHinge()
    monkeypatch.setitem(losses.LOSSES, "squared-hinge", made)
    yield made
    sys.modules.pop("squared_hinge")


def rows(seed=0):
    rng = np.random.default_rng(seed)
    X, ids = rng.normal(size=(60, 2)), np.repeat(np.arange(4), 15)
    return X, np.where(X @ np.array([1.0, -2.0]) + 0.3 * rng.normal(size=60) > 0, 1.0, -1.0), ids


def test_its_contract_and_its_names(loss):
    check_loss(loss)
    assert loss.name == "squared-hinge"
    assert losses.resolve_loss("squared-hinge") is loss


@pytest.mark.plain
def test_exact_solutions_and_methods(loss):
    problem = hard_problem(loss=loss)
    theta = problem.solve()
    gradient = problem.gradient(theta)
    assert np.abs(gradient[problem.graph.degrees > 0]).max() < 1e-9 * max(1.0, problem.value(theta))
    for method in (ct.CoordinateDescent(), ct.CollaborativeADMM()):
        run = ct.simulate(problem, method, wakes=3_000, seed=0)
        assert problem.suboptimality(run.theta) < 1e-3


@pytest.mark.compiled
def test_by_name_in_compiled_code(loss):
    X, y, ids = rows()
    data = ct.AgentData(X, y, agents=ids)
    problem = ct.Problem.personalized(data, ct.graphs.ring(4), loss="squared-hinge")
    assert problem.loss is loss
    run = ct.simulate(problem, ct.CoordinateDescent(), wakes=4_000, seed=0)
    np.testing.assert_allclose(run.theta, problem.solve(), atol=1e-6)


@pytest.mark.plain
def test_private_methods_and_related_tasks_take_it(loss):
    X, y, ids = rows()
    problem = ct.Problem.personalized(ct.AgentData(X, y, agents=ids), ct.graphs.ring(4), loss=loss)
    ct.simulate(problem, ct.Private("cd", epsilon=1.0, wakes_per_agent=2), wakes=8, seed=0)
    weights = ct.relationship(problem.data, "squared-hinge", lam=0.1, covariance=np.eye(4) / 4)
    assert weights.converged


@pytest.mark.parametrize("by_name", [True, False])
@pytest.mark.plain
def test_in_files(loss, by_name, tmp_path):
    X, y, ids = rows()
    asked = "squared-hinge" if by_name else loss
    model = ct.CollaborativeClassifier("cd", loss=asked, graph=ct.graphs.ring(4)).fit(X, y, agents=ids)
    again = ct.load(ct.save(model, tmp_path / "model"))
    assert again.loss == asked
    np.testing.assert_array_equal(again.predict(X, agents=ids), model.predict(X, agents=ids))


def test_a_charter_may_name_it_and_a_plain_peer_works_with_it(loss, tmp_path):
    fields = {"title": "", "features": ["a", "b"], "target": "c", "labels": ["no", "yes"], "loss": "squared-hinge"}
    charter = make_charter(**fields, objective="personalized", method="cd", intercept=False, admin=bytes(32))
    X, y, _ = rows()
    work = work_of(charter, X, y)
    (tmp_path / "work").write_bytes(write_work(work))
    done = subprocess.run(
        [sys.executable, "-c", PEER, str(tmp_path / "work")],
        env={"PATH": "", "COTERIE_PLAIN": "1", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        check=True,
    )
    peer = Peer(ct.CoordinateDescent(), arrays_of_one(work, 0, {1: 1.0}, 2, 60), 0.0 * work.theta)
    peer.wake()
    np.testing.assert_allclose(np.array(done.stdout.split(), float), peer.theta, rtol=1e-12)
    assert np.any(peer.theta)
