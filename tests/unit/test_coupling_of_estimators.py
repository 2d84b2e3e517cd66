"""``coupling`` is one knob: the more of it, the more agents agree with their neighbours, in every estimator."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from sklearn.base import is_classifier

import coterie as ct
from coterie.errors import ParameterError
from coterie.problem.coupling import mu_of

COUPLINGS = (0.1, 1.0, 10.0, 100.0)
N = 6
GRAPH = ct.graphs.ring(N)
#: Where 100 times as much agreement as data makes the last steps of Frank-Wolfe slow, 200 wakes are near enough.
BOOSTED = {"base": 8, "tol": 0.05, "max_iter": 200}
LINEAR = {"tol": 1e-4}
ESTIMATORS = [
    (ct.CollaborativeClassifier, "cd", LINEAR),
    (ct.CollaborativeRegressor, "cd", LINEAR),
    (ct.CollaborativeClassifier, "propagation", LINEAR),
    (ct.CollaborativeRegressor, "admm", LINEAR),
    (ct.CollaborativeRegressor, "djam", LINEAR),
    (ct.CollaborativeRegressor, "ridge-to-mean", LINEAR),
    pytest.param(ct.BoostedClassifier, "boosting", BOOSTED, marks=pytest.mark.slow),
    (ct.BoostedRegressor, "boosting", BOOSTED),
]


@pytest.fixture(scope="module")
def rows():
    """Agents whose models turn little by little around a ring; numbers."""
    rng = np.random.default_rng(0)
    X, ids = rng.normal(size=(60, 2)), np.repeat(np.arange(N), 10)
    turn = 2 * np.pi * ids / N
    return X, X[:, 0] * np.cos(turn) + X[:, 1] * np.sin(turn) + 0.3 * rng.normal(size=60), ids


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@pytest.mark.parametrize(("kind", "method", "settings"), ESTIMATORS, ids=lambda value: getattr(value, "__name__", None))
def test_the_more_coupling_the_more_neighbours_agree(rows, kind, method, settings):
    X, numbers, ids = rows
    y = numbers > 0 if is_classifier(kind()) else numbers
    apart = []
    for coupling in COUPLINGS:
        run = kind(method=method, graph=GRAPH, coupling=coupling, **settings).fit(X, y, agents=ids).run_
        # The models as they were learned: what calibrates boosted ones afterwards has no neighbours.
        apart.append(np.einsum("ij,ij->", run.theta, run.graph.laplacian() @ run.theta))
    assert all(more < less for less, more in pairwise(apart)), apart
    assert apart[-1] < 0.3 * apart[0]


@pytest.mark.parametrize("objective", ["propagation", "collaborative", "personalized", "separate"])
def test_where_mu_weighs_losses_it_is_the_inverse(objective):
    assert [mu_of(coupling, objective) for coupling in (0.5, 1.0, 4.0)] == [2.0, 1.0, 0.25]


def test_where_mu_weighs_agreement_it_is_the_same():
    assert [mu_of(coupling, "boosting") for coupling in (0.5, 1.0, 4.0)] == [0.5, 1.0, 4.0]


@pytest.mark.parametrize("coupling", [0.0, -1.0, np.nan, np.inf, "much", None])
def test_what_is_no_strength_is_refused(coupling):
    with pytest.raises(ParameterError, match=r"coupling = .*expected a positive finite number"):
        mu_of(coupling, "personalized")
