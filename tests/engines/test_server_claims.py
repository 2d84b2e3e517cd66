"""What the papers of methods with a server claim, each on one small experiment. Seeded: one draw, with its margin."""

from __future__ import annotations

import federated
import numpy as np
import pytest

import coterie as ct

pytestmark = pytest.mark.slow


def least_squares(p):
    """A linear model as NumPy functions: in plain loops that is the fastest."""
    return ct.models.Function(
        p,
        lambda theta, X, y: 0.5 * np.mean((X @ theta - y) ** 2),
        lambda theta, X, y: X.T @ (X @ theta - y) / len(y),
    )


def logistic(p):
    return ct.models.Function(p, federated.logistic_loss, federated.logistic_gradient)


def regressions(n=10, m=12, p=5, apart=2.0, seed=0):
    """Least squares of clients whose models, and whose features, differ; and the best common model, exactly."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(n, m, p)) * np.exp(rng.normal(scale=0.5, size=(n, 1, p)))
    y = np.einsum("imp,ip->im", X, 1.0 + apart * rng.normal(size=(n, p)))
    flat = X.reshape(-1, p)
    data = ct.AgentData(flat, y.ravel(), agents=np.repeat(np.arange(n), m))
    return ct.Problem.federated(data, least_squares(p)), np.linalg.lstsq(flat, y.ravel(), rcond=None)[0]


def classifications(n=12, train=12, p=6, apart=1.0, seed=0):
    """Linear classes of clients with models around a common one; and a function for the accuracy of each client."""
    rng = np.random.default_rng(seed)
    models = rng.normal(size=p) * 1.5 + apart * rng.normal(size=(n, p))
    X, fresh = rng.normal(size=(n, train, p)), rng.normal(size=(n, 400, p))
    y = np.sign(np.einsum("imp,ip->im", X, models) + 0.3 * rng.normal(size=(n, train)))
    truth = np.sign(np.einsum("imp,ip->im", fresh, models))
    data = ct.AgentData(X.reshape(-1, p), y.ravel(), agents=np.repeat(np.arange(n), train))

    def accuracies(theta):
        return (np.sign(np.einsum("imp,ip->im", fresh, theta[1:])) == truth).mean(axis=1)

    return data, accuracies


def learned(problem, method, rounds, seed=0):
    return ct.simulate(problem, method, rounds=rounds, seed=seed, start="zeros").theta


def rounds_to(problem, method, best, near, limit=200):
    """How many rounds until the server's model is so near to the best one; the limit if never."""
    run = ct.simulate(
        problem,
        method,
        rounds=limit,
        start="zeros",
        every=1,
        observe={"apart": lambda theta: float(np.linalg.norm(theta[0] - best))},
    )
    good = np.flatnonzero(run.trace.apart < near)
    return int(good[0]) if good.size else limit


@pytest.mark.plain
def test_scaffold_needs_fewer_rounds_than_fedavg_where_clients_differ():
    """Karimireddy et al. 2020, Theorem III and Table 3: fewer rounds; the drift of FedAvg is a floor for it."""
    problem, best = regressions()
    local = ct.optim.SGD(0.03, steps=10)
    near = 0.05 * np.linalg.norm(best)
    assert rounds_to(problem, ct.federated.SCAFFOLD(local), best, near) <= 0.3 * rounds_to(
        problem, ct.federated.FedAvg(local), best, near
    )
    found = learned(problem, ct.federated.SCAFFOLD(local), 200)[0]
    drifted = learned(problem, ct.federated.FedAvg(local), 200)[0]
    assert np.linalg.norm(found - best) < 1e-3 * np.linalg.norm(drifted - best)


@pytest.mark.plain
def test_fedprox_bounds_the_drift():
    """Li et al. 2020, Section 3.2: the proximal term limits the impact of local updates."""
    problem, best = regressions()
    local = ct.optim.SGD(0.03, steps=30)
    apart = [
        np.linalg.norm(learned(problem, ct.federated.FedProx(local, mu=mu), 120)[0] - best) for mu in (0.0, 1.0, 10.0)
    ]
    assert np.all(np.diff(apart) < 0)
    assert apart[-1] < 0.4 * apart[0]


@pytest.mark.plain
def test_ditto_is_robust_and_fair():
    """Li et al. 2021, Sections 4.2 and 4.3: with a third of liars, honest clients do better, and more alike."""
    data, accuracies = classifications(apart=0.7)
    liar = np.arange(12) % 3 == 0
    lied = ct.AgentData(data.X, np.where(liar[data.owner], -3.0, 1.0) * data.y, agents=data.owner)
    problem = ct.Problem.federated(lied, least_squares(6))
    local = ct.optim.SGD(0.05, steps=5)
    ditto, fedavg = (
        accuracies(learned(problem, method, 60))[~liar]
        for method in (ct.federated.Ditto(local, pull=0.3), ct.federated.FedAvg(local))
    )
    assert ditto.mean() > fedavg.mean() + 0.15
    assert ditto.std() < 0.8 * fedavg.std()


@pytest.mark.plain
@pytest.mark.every_case
@pytest.mark.parametrize(
    "method",
    [
        ct.federated.PFedMe(ct.optim.SGD(0.1, steps=10), pull=2.0, rate=0.1, repeats=5),
        ct.federated.APFL(ct.optim.SGD(0.2, steps=5), alpha=0.5),
        ct.federated.APFL(ct.optim.SGD(0.2, steps=5), alpha=0.1, alpha_rate=0.5),
        ct.federated.Ditto(ct.optim.SGD(0.2, steps=5), pull=0.2),
    ],
)
def test_personal_models_beat_one_for_all(method):
    """T. Dinh et al. 2020, Table 1, and Deng et al. 2020, Table 1: where clients differ, by several per cent."""
    data, accuracies = classifications(apart=1.5, train=30)
    problem = ct.Problem.federated(data, logistic(6), ridge=0.01)
    one = accuracies(learned(problem, ct.federated.FedAvg(ct.optim.SGD(0.2, steps=5)), 60)).mean()
    assert accuracies(learned(problem, method, 60)).mean() > one + 0.05


@pytest.mark.plain
def test_ifca_finds_the_clusters():
    """Ghosh et al. 2020, Section 6: linear models theta and -theta; every client is in its cluster, with its model."""
    rng = np.random.default_rng(0)
    truth, side = rng.normal(size=6), np.where(np.arange(16) % 2, 1.0, -1.0)
    X = rng.normal(size=(16, 10, 6))
    y = np.einsum("imp,p->im", X, truth) * side[:, None] + 0.1 * rng.normal(size=(16, 10))
    data = ct.AgentData(X.reshape(-1, 6), y.ravel(), agents=np.repeat(np.arange(16), 10))
    problem = ct.Problem.federated(data, least_squares(6))
    found = learned(problem, ct.federated.IFCA(ct.optim.SGD(0.1, steps=5), clusters=2, spread=0.5), 40)[1:]
    for sign in (-1.0, 1.0):  # as near as least squares on all rows of the cluster, within a tenth
        rows = X[side == sign].reshape(-1, 6), y[side == sign].ravel()
        best = np.linalg.lstsq(*rows, rcond=None)[0]
        assert np.abs(found[side == sign] - best).max() < 0.1 * np.linalg.norm(best - sign * truth) + 0.02
    common = learned(problem, ct.federated.FedAvg(ct.optim.SGD(0.1, steps=5)), 40)[0]
    assert np.linalg.norm(common) < 0.5 * np.linalg.norm(truth)  # one model for both is near neither


def representation(p, k):
    """The model of the paper: ``head . (body x)``, a common body of k rows under a head of k numbers."""

    def parts(theta):
        return theta[: k * p].reshape(k, p), theta[k * p :]

    def gradient(theta, X, y):
        body, head = parts(theta)
        rest = (X @ body.T @ head - y) / len(y)
        return np.concatenate([np.outer(head, rest @ X).ravel(), rest @ X @ body.T])

    def predict(theta, X):
        body, head = parts(theta)
        return X @ body.T @ head

    return ct.models.Function(
        k * p + k,
        lambda theta, X, y: 0.5 * np.mean((predict(theta, X) - y) ** 2),
        gradient,
        predict,
        initial=0.5 * np.random.default_rng(1).normal(size=k * p + k),
        parts={"body": slice(0, k * p), "head": slice(k * p, k * p + k)},
    )


@pytest.mark.plain
def test_fedrep_learns_a_common_representation():
    """Collins et al. 2021, Section 6, Figure 2: with few rows each, clients find the subspace; FedAvg does not."""
    rng = np.random.default_rng(0)
    n, m, p, k = 20, 5, 10, 2
    truth, heads = np.linalg.qr(rng.normal(size=(p, k)))[0], rng.normal(size=(n, k))
    X, fresh = rng.normal(size=(n, m, p)), rng.normal(size=(n, 100, p))
    y, wanted = (np.einsum("imp,pk,ik->im", rows, truth, heads) for rows in (X, fresh))
    data = ct.AgentData(X.reshape(-1, p), y.ravel(), agents=np.repeat(np.arange(n), m))
    model = representation(p, k)

    def error(method, **parts):
        theta = ct.simulate(ct.Problem.federated(data, model, **parts), method, rounds=60).theta[1:]
        scores = np.array([model.predict(theta[i], fresh[i]) for i in range(n)])
        return np.mean((scores - wanted) ** 2) / np.mean(wanted**2)

    local = ct.optim.SGD(0.1, steps=10)
    representations = error(ct.federated.FedRep(local, body_steps=5), personal="head")
    assert representations < 0.2 * error(ct.federated.FedAvg(local))
    assert representations < 0.5 * error(ct.federated.FedPer(local), personal="head")
