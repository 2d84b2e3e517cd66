"""Accuracy on collaborative linear classification (CL, Section 5.2; CD, Section 5), against solvers of another kind.

The objectives are written out again in NumPy, and minimised by SciPy's L-BFGS: the logistic one as it is, the hinge one
through its dual, where it is a quadratic in a box.
"""

import numpy as np
import pytest
from scipy.optimize import minimize

import coterie as ct
from coterie._threads import one_thread

pytestmark = [pytest.mark.compiled, pytest.mark.slow]  # what a paper claims

SEARCH = {"maxiter": 20_000, "maxfun": 40_000, "ftol": 1e-15, "gtol": 1e-8, "maxcor": 30}
#: What the dual adds to CL (7), DELTA / 2 |Theta|^2: without it, moving all agents together costs nothing.
DELTA = 1e-2


def parts(task):
    W = task.graph.W.toarray()
    degrees = W.sum(axis=1)
    return task.train.X, task.train.y, task.train.owner, degrees, np.diag(degrees) - W


def gathered(owner, rows, n):
    out = np.zeros((n, rows.shape[1]))
    np.add.at(out, owner, rows)
    return out


def personalized(task, mu):
    """CD (3) with c_i = m_i / max_j m_j, the logistic loss and ridge 1 / m_i: the models, and the objective."""
    X, y, owner, degrees, laplacian = parts(task)
    n, p = task.train.n, X.shape[1]
    sizes = np.bincount(owner, minlength=n)
    share = mu * degrees * (sizes / sizes.max()) / sizes  # of each example, and also of the ridge

    def objective(vector):
        theta = vector.reshape(n, p)
        margins = y * np.einsum("rk,rk->r", X, theta[owner])
        value = 0.5 * np.sum(theta * (laplacian @ theta)) + np.sum(share[:, None] * theta**2)
        slopes = -y * share[owner] * np.exp(-np.logaddexp(0.0, margins))
        gradient = laplacian @ theta + 2.0 * share[:, None] * theta + gathered(owner, slopes[:, None] * X, n)
        return value + share[owner] @ np.logaddexp(0.0, -margins), gradient.ravel()

    found = minimize(objective, np.zeros(n * p), jac=True, method="L-BFGS-B", options=SEARCH)
    return found.x.reshape(n, p), lambda theta: objective(theta.ravel())[0]


def collaborative(task, mu):
    """CL (7) with the hinge loss: the models, and the objective.

    The dual is ``max sum_r u_r - 1/2 |sum_r u_r y_r x_r|^2`` in the norm of ``(2 L + DELTA)^-1``, with u_r between 0
    and mu D_ii; then ``Theta = (2 L + DELTA)^-1 sum_r u_r y_r x_r``.
    """
    X, y, owner, degrees, laplacian = parts(task)
    inverse = np.linalg.inv(2.0 * laplacian + DELTA * np.eye(task.train.n))
    signed, most = y[:, None] * X, mu * degrees[owner]
    gram = inverse[np.ix_(owner, owner)] * (signed @ signed.T)

    def dual(u):
        image = gram @ u
        return 0.5 * u @ image - u.sum(), image - 1.0

    def primal(theta):
        hinge = np.maximum(0.0, 1.0 - np.einsum("rk,rk->r", signed, theta[owner]))
        return np.sum(theta * (laplacian @ theta)) + most @ hinge

    box = [(0.0, limit) for limit in most]
    with one_thread():  # small products: threads would mostly wait for each other
        found = minimize(dual, most / 2.0, jac=True, method="L-BFGS-B", bounds=box, options=SEARCH)
    return inverse @ gathered(owner, found.x[:, None] * signed, task.train.n), primal


@pytest.mark.parametrize("p", [2, 20, 50])
def test_logistic_models_are_as_accurate_as_those_of_another_solver(p):
    task = ct.datasets.linear_classification(p=p, seed=7, rows=(10, 100))
    ours = ct.Problem.personalized(task.train, task.graph, loss="logistic", mu=2.0).solve()
    theirs, objective = personalized(task, mu=2.0)
    np.testing.assert_allclose(ours, theirs, atol=1e-5)
    assert objective(ours) <= objective(theirs) * (1 + 1e-12)
    assert abs(task.accuracy(ours).mean() - task.accuracy(theirs).mean()) <= 0.001


@pytest.mark.parametrize("p", [2, 20, 50])
def test_hinge_models_are_as_accurate_as_those_of_another_solver(p):
    task = ct.datasets.linear_classification(p=p, seed=7, rows=(1, 20))
    ours = ct.Problem.collaborative(task.train, task.graph, loss="hinge", mu=0.1).solve()
    theirs, objective = collaborative(task, mu=0.1)
    assert objective(ours) <= objective(theirs) <= objective(ours) * (1 + 1e-3)
    assert abs(task.accuracy(ours).mean() - task.accuracy(theirs).mean()) <= 0.015


def test_propagation_beats_learning_alone_and_learning_together_beats_both():
    """CL, Figure 3, left, at p = 20; with alpha and mu near the best of other instances."""
    found = []
    for seed in range(3):
        task = ct.datasets.linear_classification(p=20, seed=seed, rows=(1, 20))
        together = ct.Problem.collaborative(task.train, task.graph, loss="hinge", mu=0.1)
        alone, sizes = together.local(), task.train.sizes
        smoothed = ct.Problem.propagation(alone, task.graph, alpha=0.8, confidence=sizes / sizes.max()).solve()
        found.append([task.accuracy(theta).mean() for theta in (alone, smoothed, together.solve())])
    alone, smoothed, together = np.mean(found, axis=0)
    # 67, 87 and 90 %, with standard errors below 1.5.
    assert alone + 0.1 < smoothed < together - 0.01
