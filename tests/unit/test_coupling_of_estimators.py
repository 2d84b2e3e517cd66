"""``coupling`` is one knob: the more of it, the more agents agree with their neighbours, in every estimator."""

from __future__ import annotations

import numpy as np
import pytest

import coterie as ct
from coterie.errors import ParameterError
from coterie.problem.coupling import mu_of

COUPLINGS = (0.1, 1.0, 10.0, 100.0)
N = 8
GRAPH = ct.graphs.ring(N)


def rows(kind):
    """Agents whose models turn little by little around a ring."""
    rng = np.random.default_rng(0)
    X, ids = rng.normal(size=(160, 2)), np.repeat(np.arange(N), 20)
    turn = 2 * np.pi * ids / N
    margins = X[:, 0] * np.cos(turn) + X[:, 1] * np.sin(turn) + 0.3 * rng.normal(size=160)
    return X, (np.where(margins > 0, "yes", "no") if kind == "Classifier" else margins), ids


def models(name, kind, coupling):
    """The models as they were learned, in the order of the agents: without what calibrates them afterwards."""
    family, method, settings = ESTIMATORS[name]
    X, y, ids = rows(kind)
    model = getattr(ct, family + kind)(method=method, graph=GRAPH, coupling=coupling, **settings).fit(X, y, agents=ids)
    return model.run_.theta[[model.run_.problem.members.index(agent) for agent in range(N)]]


ESTIMATORS = {
    method: ("Collaborative", method, {"tol": 1e-8}) for method in ("cd", "admm", "djam", "propagation", "ridge-to-mean")
}
ESTIMATORS["boosting"] = ("Boosted", "boosting", {"base": 12, "tol": 0.005})


def disagreement(theta):
    """How far neighbours are apart, as a part of how long models are."""
    return float(np.einsum("ij,ij->", theta, GRAPH.laplacian() @ theta) / np.einsum("ij,ij->", theta, theta))


def spread(theta):
    return float(np.square(theta - theta.mean(axis=0)).sum())


@pytest.mark.usefixtures("seldom_compiled")
@pytest.mark.parametrize("kind", ["Classifier", "Regressor"])
@pytest.mark.parametrize("name", ESTIMATORS)
def test_the_more_coupling_the_more_neighbours_agree(name, kind):
    apart = [np.einsum("ij,ij->", theta, GRAPH.laplacian() @ theta) for theta in (models(name, kind, c) for c in COUPLINGS)]
    assert all(more < less for less, more in zip(apart, apart[1:], strict=False)), apart
    assert apart[-1] < 0.3 * apart[0]


@pytest.mark.parametrize("objective", ["propagation", "collaborative", "personalized", "separate"])
def test_where_mu_weighs_losses_it_is_the_inverse(objective):
    assert [mu_of(coupling, objective) for coupling in (0.5, 1.0, 4.0)] == [2.0, 1.0, 0.25]


def test_where_mu_weighs_agreement_it_is_the_same():
    assert [mu_of(coupling, "boosting") for coupling in (0.5, 1.0, 4.0)] == [0.5, 1.0, 4.0]


@pytest.mark.parametrize("coupling", [0.0, -1.0, np.nan, np.inf, "much", None])
def test_what_is_no_strength_is_refused(coupling):
    with pytest.raises(ParameterError, match="coupling = .*expected a positive finite number"):
        mu_of(coupling, "personalized")
