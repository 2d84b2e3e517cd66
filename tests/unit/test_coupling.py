"""More coupling is more agreement, whatever a paper's mu means."""

import numpy as np
import pytest

import coterie as ct
from coterie.errors import ParameterError
from coterie.problem.coupling import mu_of

OBJECTIVES = ("propagation", "collaborative", "personalized", "boosting")


def solved(objective, coupling):
    """Exact models of two agents who see opposite things."""
    data = ct.AgentData([[0.0], [1.0], [0.0], [1.0]], [-1, 1, 1, -1], agents=["a", "a", "b", "b"])
    graph, mu = ct.graphs.complete(2), mu_of(coupling, objective)
    match objective:
        case "propagation":
            return ct.Problem.propagation([[-1.0], [1.0]], graph, alpha=1.0 / (1.0 + mu)).solve()
        case "collaborative":
            return ct.Problem.collaborative(data, graph, loss="squared", mu=mu, ridge=0.1).solve()
        case "personalized":
            return ct.Problem.personalized(data, graph, loss="squared", mu=mu, ridge=0.1).solve()
    return ct.Problem.boosting(data, graph, ct.Stumps(2, low=0.0, high=1.0), mu=mu, beta=1.0, loss="squared").solve()


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_more_coupling_is_more_agreement(objective):
    apart = [np.linalg.norm(np.diff(solved(objective, coupling), axis=0)) for coupling in (0.1, 1.0, 10.0)]
    assert apart[0] > 1.05 * apart[1] > 1.1 * apart[2] > 0


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_the_default_is_the_papers(objective):
    assert mu_of(1.0, objective) == 1.0


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), float("inf"), "much", None])
def test_bad_couplings_are_named(bad):
    with pytest.raises(ParameterError, match="coupling"):
        mu_of(bad, "personalized")
