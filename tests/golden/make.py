"""What coterie found and wrote on the day when this was run last: ``python tests/golden/make.py`` writes it anew.

Run it only when numbers or files are to change, or when there is a new case; the change then says why, and the diff of
``numbers.json`` shows what. Files that hold keys, ids of processes or dates (``RANDOM``) are written only where they
are absent: delete their folder to make new ones. The keys in them are for tests, and open nothing.

A case is a name with two halves: ``write`` leaves files in a folder, and ``read`` makes numbers from them. Cases without
files have the second half alone. ``test_golden.py`` compares both with what is stored here.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "COTERIE_PLAIN"):
    os.environ.setdefault(variable, "1")
HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent / "peers"))

import msgspec  # noqa: E402
import numpy as np  # noqa: E402
import pandas as pd  # noqa: E402

import coterie as ct  # noqa: E402
from coterie.privacy import Ledger, make_plan, warm_start  # noqa: E402
from coterie.testing import hard_problem  # noqa: E402

# isort: split
# Internals, which may move: nothing else here names their places.
import small_group as small  # noqa: E402

from coterie.core.methods import METHODS  # noqa: E402
from coterie.engines.wire import decode, encode  # noqa: E402
from coterie.multitask import checkpoints, learn  # noqa: E402
from coterie.peers.group import bulletins, charter, groups, identity, mandates, renewal, roster  # noqa: E402
from coterie.peers.node import state  # noqa: E402
from coterie.peers.wire import packet  # noqa: E402

#: Old enough for every certificate here, which lasts for ninety years and more.
DAYS = 36_000


class Case(NamedTuple):
    """What is stored under a name."""

    read: Callable[[Path], Any]
    write: Callable[[Path], Any] | None = None
    random: bool = False  # files hold keys, ids or dates, and are made once
    same_bytes: bool = False  # files are the same bytes on every machine
    tolerance: float = 1e-10  # relative to the largest number of an array


CASES: dict[str, Case] = {}


def case(name: str, write: Callable[[Path], Any] | None = None, **how: Any) -> Callable[..., Any]:
    def add(read: Callable[[Path], Any]) -> Callable[[Path], Any]:
        CASES[name] = Case(read, write, **how)
        return read

    return add


# -- numbers as json ---------------------------------------------------------------------------------------------------


def told(value: Any) -> Any:
    """A result as plain numbers, texts and lists. Of a large array: its shape, its sum and some of its entries."""
    match value:
        case dict():
            return {str(name): told(part) for name, part in value.items()}
        case ct.Run():
            return told(_of_run(value))
        case ct.Relationship():
            numbers = ("weights", "factors", "value", "bound", "converged", "rounds", "vectors", "bytes")
            return {name: told(getattr(value, name)) for name in numbers}
        case ct.Graph() | ct.DirectedGraph():
            return told(value.W.toarray())
        case ct.AgentData():
            return told({"X": value.X, "y": value.y, "owner": value.owner})
        case pd.DataFrame():
            return {name: told(value[name].to_numpy()) for name in value}
        case np.ndarray() if value.size > 64:
            flat = np.ravel(value)
            return {"shape": list(value.shape), "sum": told(flat.sum()), "some": flat[:: flat.size // 32].tolist()}
        case np.ndarray() | np.generic():
            return value.tolist()
        case bytes():
            return value.hex()
        case list() | tuple():
            return [told(part) for part in value]
    return value


def _of_run(run: ct.Run) -> dict[str, Any]:
    names = ["theta", "published", "tally", "wakes", "time", "letters", "vectors", "bytes", "lost", "duplicated"]
    found = {name: getattr(run, name) for name in (*names, "epsilon", "delta", "population")}
    found |= {"value": run.trace["value"].to_numpy(), "notes": run.notes}
    if isinstance(run.method, ct.Learned):
        found["graph"] = run.graph
    return {name: value for name, value in found.items() if value is not None}


# -- runs --------------------------------------------------------------------------------------------------------------


@cache
def hard() -> ct.Problem:
    return hard_problem()


def models() -> np.ndarray:
    return np.random.default_rng(0).normal(size=(hard().n, hard().p))


def propagation(**more: Any) -> ct.Problem:
    return ct.Problem.propagation(models(), hard().graph, **{"alpha": 0.6} | more)


def boosting(loss: str = "adaboost") -> ct.Problem:
    return ct.Problem.boosting(hard().data, hard().graph, base=ct.Stumps(6, low=-2.0, high=2.0), mu=0.5, beta=1.5, loss=loss)


def with_loss(loss: Any, kind: str = "personalized", **more: Any) -> ct.Problem:
    return getattr(ct.Problem, kind)(hard().data, hard().graph, loss=loss, **{"ridge": 0.3} | more)


def three_classes() -> ct.AgentData:
    labels = np.random.default_rng(15).integers(0, 3, hard().data.n_rows)
    return ct.AgentData(hard().data.X, labels, agents=hard().data.owner, members=range(hard().n))


def network(**roles: Any) -> ct.Problem:
    roles = roles or {"personal": "head.bias", "shared": "body", "tied": "head.weight"}
    return ct.Problem.differentiable(three_classes(), hard().graph, ct.TwoLayer(3, 2, 3), ridge=0.01, **roles)


def federated(**roles: Any) -> ct.Problem:
    return ct.Problem.federated(three_classes(), ct.TwoLayer(3, 2, 3), ridge=0.01, **roles)


def run(method: Any, problem: Callable[[], ct.Problem] = hard, **how: Any) -> Callable[[Path], ct.Run]:
    return lambda folder: ct.simulate(problem(), method, **{"wakes": 60, "every": 20, "seed": 1} | how)


def rounds(method: Any, problem: Callable[[], ct.Problem] = network, **how: Any) -> Callable[[Path], ct.Run]:
    return run(method, problem, **{"wakes": None, "rounds": 6, "every": 2} | how)


TRAINED, SERVED = ct.SGD(0.3, steps=3, batch=4), partial(federated, personal="head")
LEARNED = ct.GraphRule(kappa=2, lam=0.5)
RUNS = {
    "cd": run("cd"),
    "propagation": run("propagation", propagation),
    "admm": run("admm"),
    "djam": run("djam"),
    "boosting": run("boosting", boosting),
    "gossip-pooling": run("gossip-pooling"),
    "resilient-pooling": run("resilient-pooling"),
    "dpsgd": rounds(ct.DPSGD(TRAINED)),
    "local-sgd": rounds(ct.LocalSGD(TRAINED)),
    "gradient-tracking": rounds("gradient-tracking"),
    "push-sum": rounds("push-sum", lambda: hard().on(graph=ct.graphs.directed_ring(hard().n))),
    "tied-sgd": rounds(ct.TiedSGD(TRAINED)),
    "fedavg": rounds(ct.FedAvg(TRAINED, clients=3), federated),
    "fedprox": rounds(ct.FedProx(TRAINED, clients=2, mu=0.7), federated),
    "scaffold": rounds(ct.SCAFFOLD(TRAINED, clients=3, server_rate=0.8), federated),
    "fedper": rounds(ct.FedPer(TRAINED, clients=3), SERVED),
    "fedrep": rounds(ct.FedRep(TRAINED, clients=3, body_steps=2), SERVED),
    "ditto": rounds(ct.Ditto(TRAINED, clients=3, pull=0.6), federated),
    "pfedme": rounds(ct.PFedMe(TRAINED, pull=2.0, rate=0.2, mixing=0.9, repeats=2), federated),
    "apfl": rounds(ct.APFL(TRAINED, clients=3, alpha=0.4, alpha_rate=0.5), federated),
    "ifca": rounds(ct.IFCA(TRAINED, clients=3, clusters=2, spread=0.5), federated),
}  # fmt: skip
assert set(RUNS) == set(METHODS)
LATE = ct.Conditions(latency=1.5, loss=0.2, duplication=0.1, outages=[(1, 2.0, 4.0)], slow={2: 3.0}, participation=0.8)
RUNS |= {f"baseline {name}": run(name) for name in ("local", "global", ct.ComponentModels(), ct.RidgeToMean(2.0))}
RUNS |= {f"{name} in rounds": rounds(name) for name in ("dpsgd", "local-sgd", "tied-sgd")}
RUNS |= {f"{name} in wakes": run(name, network) for name in ("dpsgd", "gradient-tracking", "tied-sgd")}
RUNS |= {f"{name} late": run(name, seed=3, conditions=LATE) for name in ("cd", "admm", "djam", "gossip-pooling")}
RUNS |= {
    f"robust {rule!r}": run(ct.Robust("cd", rule))
    for rule in (
        ct.Clipping(0.5), ct.Consensus(0.4), ct.GeometricMedian(), ct.Krum(1), ct.Median(), ct.TrimmedMean(0.3),
    )
}  # fmt: skip
RUNS |= {f"compressed {how!r}": run(ct.Compressed("cd", how, 7)) for how in (ct.TopK(2), ct.Quantised(3), ct.Float32())}
RUNS |= {f"attacked {lie!r}": run(ct.Attacked("cd", [1, 4], lie)) for lie in ("sign-flip", "noise", "little")}
RUNS |= {f"learned {by}": run(ct.Learned("cd", LEARNED, 3, by)) for by in ("ideal", "shuffle", "friends")}
RUNS |= {
    f"private {name} {mechanism or ''} {more}".strip(): run(
        ct.Private(name, epsilon=2.0, mechanism=mechanism, **more), problem, wakes=None, every=None
    )
    for name, problem, mechanism, more in (
        ("cd", hard, "gaussian", {"wakes_per_agent": 4, "allocation": "decreasing"}),
        ("cd", hard, "laplace", {"wakes_per_agent": 4, "final": None}),
        ("propagation", hard, None, {}),
        ("propagation", hard, "laplace", {}),
        ("boosting", boosting, None, {"wakes_per_agent": 3}),
        ("gossip-pooling", hard, None, {}),
    )
}
RUNS |= {
    "cd by events": run("cd", events=[0, 3, 1, 1, 7, 8, 5, 2], wakes=None, every=2),
    "cd until 900 bytes more": run("cd", wakes=None, every=None, bytes=3000),
    "cd with changes": run("cd", changes=[(30, hard().on(graph=hard().graph.without([2])))]),
    "cd from zeros": run("cd", start="zeros", choice="weight"),
    "cd with a network": run("cd", lambda: hard().on(graph=ct.graphs.ring(9)), n_jobs=2),
    "djam by weight": run("djam", choice="weight"),
    "propagation in rounds": rounds("propagation", propagation),
    "propagation one way": run("cd", lambda: propagation(confidence=np.arange(9.0) / 9.0)),
    "admm in rounds": rounds("admm", lambda: with_loss("squared", "collaborative")),
    "boosting in rounds": rounds("boosting", lambda: boosting("squared")),
    "trimmed cd": run(ct.Trimmed("cd", 0.3)),
    "trimmed and learned cd": run(ct.Learned(ct.Trimmed("cd", 0.3), LEARNED, 3)),
    "learned boosting": run(ct.Learned("boosting", LEARNED, 3), boosting),
    "learned djam late": run(ct.Learned("djam", LEARNED, 3), conditions=LATE),
    "private learned cd": run(ct.Private(ct.Learned("cd", LEARNED, 3), wakes_per_agent=4, loss_fraction=0.2)),
    "robust compressed training": rounds(ct.Robust(ct.Compressed(ct.DPSGD(TRAINED), ct.TopK(4)), ct.Clipping(0.5))),
    "training by Adam": rounds(ct.TiedSGD(ct.Adam(0.01, steps=2, batch=3))),
    "fedavg with some away": rounds(ct.FedAvg(TRAINED), federated, conditions=ct.Conditions(participation=0.6)),
    "warm start": lambda folder: ct.simulate(
        with_loss("logistic"), ct.Private("cd"), seed=1, start=warm_start(with_loss("logistic"), 1.0)
    ),
    "learned graph": lambda folder: ct.learn_graph(models(), np.arange(9.0) / 9.0, kappa=2, wakes=200).graph,
    "exact graph": lambda folder: ct.exact_graph(models(), np.arange(9.0) / 9.0),
}
LOSSES = (ct.Squared(), ct.Logistic(), ct.Hinge(), ct.SmoothHinge(0.5), ct.Huber(0.5))
CASES |= {name: Case(found) for name, found in RUNS.items()}


# -- exact solutions, relationships, tasks, graphs ---------------------------------------------------------------------


def exact(problem: ct.Problem) -> dict[str, Any]:
    theta, start = problem.solve(), problem.local()
    at_start = {"value": problem.value(start), "gap": problem.gap(start), "gradient": problem.gradient(start)}
    return {"solution": theta, "least": problem.value(theta), "alone": start} | at_start


for loss in LOSSES:
    for kind in ("personalized", "collaborative", "separate"):
        CASES[f"exact {kind} {loss!r}"] = Case(
            lambda folder, loss=loss, kind=kind: exact(with_loss(loss, kind)), tolerance=1e-8
        )
CASES["exact propagation"] = Case(lambda folder: exact(propagation()))
CASES["exact boosting"] = Case(lambda folder: exact(boosting()), tolerance=1e-6)


def tasks(loss: str = "logistic") -> ct.AgentData:
    return ct.datasets.related_tasks(n=5, p=3, rows=12, seed=0, loss=loss).train


FOUND = {f"relationship {loss}": {"loss": loss} for loss in ("logistic", "hinge", "smooth-hinge", "squared", "huber")}
FOUND |= {f"relationship {method}": {"method": method} for method in ("single-task", "exact", "sdca")}
FOUND |= {
    "relationship late": {"staleness": 1},
    "relationship in small steps": {"eta": 0.5, "rho": "lemma10", "momentum": False},
    "relationship given": {"covariance": np.diag([1.0, 2.0, 3.0, 2.0, 2.0]) / 10.0, "local_steps": 5},
    "relationship by factors": {"covariance": (np.ones((5, 1)), [0.1], 0.1)},
}
for name, how in FOUND.items():
    real = how.get("loss") in ("squared", "huber")
    CASES[name] = Case(
        lambda folder, how=how, real=real: ct.relationship(
            tasks("squared" if real else "logistic"), **{"lam": 0.05, "alternations": 8, "rounds": 3, "passes": 2.0} | how
        )
    )


@case("tasks")
def _(folder: Path) -> Any:
    linear = ct.datasets.linear_classification(n=5, p=4, rows=(3, 6), test_rows=3, seed=0)
    means, field = ct.datasets.mean_estimation(n=5, seed=0), ct.datasets.field_estimation(n=8, seed=0)
    moons = ct.datasets.clustered_moons(n=5, p=4, seed=0), ct.datasets.rotated_moons(n=5, p=4, seed=0)
    rows = np.random.default_rng(0).normal(size=(60, 3)), np.arange(60) % 4
    parts = {
        "iid": ct.splits.iid(*rows, 5, sizes=ct.splits.PowerLawSizes()),
        "dirichlet": ct.splits.dirichlet(*rows, 5, 0.3),
        "pathological": ct.splits.pathological(*rows, 5, 2),
        "features": ct.splits.feature_shift(tasks(), offset=[0.0, 1.0], turn=[0.0, 30.0], seed=1).data,
        "concepts": ct.splits.concept_shift(tasks(), flip=[1, -1], seed=1).data,
        "held out": ct.splits.train_test(tasks(), 0.3)[1],
        "flipped": ct.flip_labels(tasks(), [1]),
    }
    made = {"linear": (linear.train, linear.graph), "means": (means.points, means.graph), "related": tasks()}
    return made | parts | {"field": (field.points, field.graph), "moons": [(one.train, one.graph) for one in moons]}


@case("graphs")
def _(folder: Path) -> Any:
    make, rng = ct.graphs, np.random.default_rng(0)
    names = {"erdos_renyi": (9, 0.4), "random_regular": (8, 3), "grid": (3, 3), "directed_random": (8, 2)}
    found = {name: getattr(make, name)(*given) for name, given in names.items()}
    positions = rng.normal(size=(8, 2))
    return found | {"knn": make.knn(positions, 2), "kernel": make.kernel(positions), "path": make.path(5)}


@case("evaluation")
def _(folder: Path) -> Any:
    task = ct.datasets.linear_classification(n=8, p=4, seed=0)
    problem = ct.Problem.personalized(task.train, task.graph)
    one = ct.evaluate(ct.simulate(problem, "cd", wakes=40), problem, task.test)
    found = ct.compare(["local", "global", "cd", "djam"], problem, vectors=200, test=task.test, points=2, n_jobs=1)
    return {"one": one.summary, "several": found.summary.drop(columns="time"), "optimum": found.optimum}


@case("a study")
def _(folder: Path) -> Any:
    return ct.study(lambda mu, seed: run("cd", lambda: propagation(alpha=mu), seed=seed)(folder), {"mu": [0.3, 0.6]}, [0, 1]).frame


@case("noise")
def _(folder: Path) -> Any:
    from coterie import privacy

    plans = {f"{by} {split}": make_plan(1.0, 1e-5, 4, mechanism=by, allocation=split)
             for by in ("gaussian", "laplace") for split in ("equal", "decreasing", "as-printed")}
    found = {name: (plan.noise, plan.spent(2), plan.digest) for name, plan in plans.items()}
    return found | {"bound": privacy.composition_bound([0.1] * 20, 1e-5), "mu": privacy.gdp_mu(1.0, 1e-5)}
