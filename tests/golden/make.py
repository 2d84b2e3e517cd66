"""Stored results and files of coterie, for comparison: ``python tests/golden/make.py`` writes them anew.

Run this script only when numbers or files are meant to change, or for a new case; the commit then explains the change,
and the diff of ``numbers.json`` shows the change. Files with keys, process ids or dates (``RANDOM``) are only written
if they are missing: delete their folder to make new ones. The keys are for tests only.

A case is a name with two functions: ``write`` writes files into a folder, and ``read`` computes numbers from these
files. Cases without files only have ``read``. ``test_golden.py`` compares files and numbers with the stored ones.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import tempfile
import warnings
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
from sklearn.exceptions import ConvergenceWarning  # noqa: E402

import coterie as ct  # noqa: E402
from coterie.privacy import Ledger, make_plan, warm_start  # noqa: E402
from coterie.testing import hard_problem  # noqa: E402

# isort: split
# Internals, which may move: nothing else here names their places.
import small_group as small  # noqa: E402

from coterie.core.methods import METHODS  # noqa: E402
from coterie.engines.wire import decode, encode  # noqa: E402
from coterie.multitask import checkpoints, learn  # noqa: E402
from coterie.peers.group import announcements, charter, groups, identity, renewal, roster  # noqa: E402
from coterie.peers.node import state  # noqa: E402
from coterie.peers.wire import packet  # noqa: E402

#: Old enough for every certificate here, which lasts for ninety years and more.
DAYS = 36_000


class Case(NamedTuple):
    """Results stored under a name."""

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
        case ct.multitask.Relationship():
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
            parts = [told(part) for part in value]
            return dict(enumerate(parts)) if any(isinstance(part, dict) for part in parts) else parts
    return value


def _of_run(run: ct.Run) -> dict[str, Any]:
    names = ["theta", "published", "tally", "wakes", "time", "messages", "vectors", "bytes", "lost", "duplicated"]
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


def boosting(loss: str = "adaboost", base: Any = np.asarray) -> ct.Problem:
    return ct.Problem.boosting(hard().data, hard().graph, base=base, mu=0.5, beta=1.5, loss=loss)


def with_loss(loss: Any, kind: str = "personalized", **more: Any) -> ct.Problem:
    return getattr(ct.Problem, kind)(hard().data, hard().graph, loss=loss, **{"ridge": 0.3} | more)


def three_classes() -> ct.AgentData:
    labels = np.random.default_rng(15).integers(0, 3, hard().data.n_rows)
    return ct.AgentData(hard().data.X, labels, agents=hard().data.owner, members=range(hard().n))


def network(**roles: Any) -> ct.Problem:
    roles = roles or {"personal": "head.bias", "shared": "body", "tied": "head.weight"}
    return ct.Problem.differentiable(three_classes(), hard().graph, ct.models.TwoLayer(3, 2, 3), ridge=0.01, **roles)


def federated(**roles: Any) -> ct.Problem:
    return ct.Problem.federated(three_classes(), ct.models.TwoLayer(3, 2, 3), ridge=0.01, **roles)


def run(method: Any, problem: Callable[[], ct.Problem] = hard, **how: Any) -> Callable[[Path], ct.Run]:
    return lambda folder: ct.simulate(problem(), method, **{"wakes": 60, "every": 20, "seed": 1} | how)


def rounds(method: Any, problem: Callable[[], ct.Problem] = network, **how: Any) -> Callable[[Path], ct.Run]:
    return run(method, problem, **{"wakes": None, "rounds": 6, "every": 2} | how)


STUMPS = ct.Stumps(6, low=-2.0, high=2.0)
TRAINED, SERVED = ct.optim.SGD(0.3, steps=3, batch=4), partial(federated, personal="head")
LEARNED = ct.GraphRule(kappa=2, lam=0.5)
RUNS = {
    "cd": run("cd"),
    "propagation": run("propagation", propagation),
    "admm": run("admm"),
    "djam": run("djam"),
    "boosting": run("boosting", boosting),
    "gossip-pooling": run("gossip-pooling"),
    "resilient-pooling": run("resilient-pooling"),
    "dpsgd": rounds(ct.gossip.DPSGD(TRAINED)),
    "local-sgd": rounds(ct.gossip.LocalSGD(TRAINED)),
    "gradient-tracking": rounds("gradient-tracking"),
    "push-sum": rounds("push-sum", lambda: hard().on(graph=ct.graphs.directed_ring(hard().n))),
    "tied-sgd": rounds(ct.gossip.TiedSGD(TRAINED)),
    "fedavg": rounds(ct.federated.FedAvg(TRAINED, clients=3), federated),
    "fedprox": rounds(ct.federated.FedProx(TRAINED, clients=2, mu=0.7), federated),
    "scaffold": rounds(ct.federated.SCAFFOLD(TRAINED, clients=3, server_rate=0.8), federated),
    "fedper": rounds(ct.federated.FedPer(TRAINED, clients=3), SERVED),
    "fedrep": rounds(ct.federated.FedRep(TRAINED, clients=3, body_steps=2), SERVED),
    "ditto": rounds(ct.federated.Ditto(TRAINED, clients=3, pull=0.6), federated),
    "pfedme": rounds(ct.federated.PFedMe(TRAINED, pull=2.0, rate=0.2, mixing=0.9, repeats=2), federated),
    "apfl": rounds(ct.federated.APFL(TRAINED, clients=3, alpha=0.4, alpha_rate=0.5), federated),
    "ifca": rounds(ct.federated.IFCA(TRAINED, clients=3, clusters=2, spread=0.5), federated),
}  # fmt: skip
assert set(RUNS) == set(METHODS)
LATE = ct.Conditions(latency=1.5, loss=0.2, duplication=0.1, outages=[(1, 2.0, 4.0)], slow={2: 3.0}, participation=0.8)
RUNS |= {
    f"baseline {name}": run(name)
    for name in ("local", "global", ct.baselines.ComponentModels(), ct.baselines.RidgeToMean(2.0))
}
RUNS |= {f"{name} in rounds": rounds(name) for name in ("dpsgd", "local-sgd", "tied-sgd")}
RUNS |= {f"{name} in wakes": run(name, network) for name in ("dpsgd", "gradient-tracking", "tied-sgd")}
RUNS |= {f"{name} late": run(name, seed=3, conditions=LATE) for name in ("cd", "admm", "djam", "gossip-pooling")}
RUNS |= {
    f"robust {rule!r}": run(ct.Robust("cd", rule))
    for rule in (
        ct.robust.Clipping(0.5), ct.robust.Consensus(0.4), ct.robust.GeometricMedian(), ct.robust.Krum(1),
        ct.robust.Median(), ct.robust.TrimmedMean(0.3),
    )
}  # fmt: skip
RUNS |= {
    f"compressed {how!r}": run(ct.compression.Compressed("cd", how, 7))
    for how in (ct.compression.TopK(2), ct.compression.Quantised(3), ct.compression.Float32())
}
RUNS |= {f"attacked {lie!r}": run(ct.robust.Attacked("cd", [1, 4], lie)) for lie in ("sign-flip", "noise", "little")}
RUNS |= {f"learned {by}": run(ct.Learned("cd", LEARNED, 3, by)) for by in ("uniform", "shuffle", "friends")}
RUNS |= {
    f"private {name} {mechanism or ''} {more}".strip(): run(
        ct.Private(name, epsilon=2.0, mechanism=mechanism, **more), problem, events=np.arange(18) % 9, wakes=None
    )
    for name, problem, mechanism, more in (
        ("cd", hard, "gaussian", {"wakes_per_agent": 4, "allocation": "decreasing"}),
        ("cd", hard, "laplace", {"wakes_per_agent": 4, "final": None}),
        ("propagation", hard, None, {}),
        ("propagation", hard, "laplace", {}),
        ("boosting", lambda: boosting("logistic", STUMPS), None, {"wakes_per_agent": 2}),
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
    "trimmed cd": run(ct.robust.Trimmed("cd", 0.3)),
    "trimmed and learned cd": run(ct.Learned(ct.robust.Trimmed("cd", 0.3), LEARNED, 3)),
    "learned boosting": run(ct.Learned("boosting", LEARNED, 3), boosting),
    "learned djam late": run(ct.Learned("djam", LEARNED, 3), conditions=LATE),
    "private learned cd": run(ct.Private(ct.Learned("cd", LEARNED, 3), wakes_per_agent=4, loss_fraction=0.2)),
    "robust compressed training": rounds(
        ct.Robust(ct.compression.Compressed(ct.gossip.DPSGD(TRAINED), ct.compression.TopK(4)), ct.robust.Clipping(0.5))
    ),
    "training by Adam": rounds(ct.gossip.TiedSGD(ct.optim.Adam(0.01, steps=2, batch=3))),
    "fedavg with some away": rounds(
        ct.federated.FedAvg(TRAINED), federated, conditions=ct.Conditions(participation=0.6)
    ),
    "warm start": lambda folder: ct.simulate(
        with_loss("logistic"), ct.Private("cd"), seed=1, start=warm_start(with_loss("logistic"), 1.0)
    ),
    "learned graph": lambda folder: ct.learn_graph(models(), np.arange(9.0) / 9.0, kappa=2, wakes=200).graph,
    "exact graph": lambda folder: ct.exact_graph(models(), np.arange(9.0) / 9.0),
}
CASES |= {name: Case(found) for name, found in RUNS.items()}


# -- exact solutions, relationships, tasks, graphs ---------------------------------------------------------------------


def exact(folder: Path, problem: Callable[[], ct.Problem]) -> dict[str, Any]:
    posed = problem()
    theta, start = posed.solve(), posed.local()
    at_start = {"value": posed.value(start), "gap": posed.gap(start), "gradient": posed.gradient(start)}
    return {"solution": theta, "least": posed.value(theta), "alone": start} | at_start


SOLVED: dict[str, Any] = {"propagation": propagation, "boosting": boosting} | {
    f"{kind} {loss!r}": partial(with_loss, loss, kind)
    for loss in (ct.Squared(), ct.Logistic(), ct.Hinge(), ct.SmoothHinge(0.5), ct.Huber(0.5))
    for kind in ("personalized", "collaborative", "separate")
}
CASES |= {f"exact {name}": Case(partial(exact, problem=posed), tolerance=1e-8) for name, posed in SOLVED.items()}


def tasks(loss: str = "logistic") -> ct.AgentData:
    return ct.datasets.related_tasks(n=5, p=3, rows=12, seed=0, loss=loss).train


FOUND: dict[str, Any] = {name: {"loss": name} for name in ("logistic", "hinge", "smooth-hinge", "squared", "huber")}
FOUND |= {method: {"method": method} for method in ("single-task", "exact", "sdca")}
FOUND |= {
    "late": {"staleness": 1},
    "in small steps": {"eta": 0.5, "rho": "lemma10", "momentum": False},
    "given": {"covariance": np.diag([1.0, 2.0, 3.0, 2.0, 2.0]) / 10.0, "local_steps": 5},
    "by factors": {"covariance": (np.ones((5, 1)), [0.1], 0.1)},
}


def relationship(folder: Path, name: str) -> ct.multitask.Relationship:
    rows = tasks("squared" if name in ("squared", "huber") else "logistic")
    return ct.relationship(rows, **{"lam": 0.05, "alternations": 8, "rounds": 3, "passes": 2.0} | FOUND[name])


CASES |= {f"relationship {name}": Case(partial(relationship, name=name)) for name in FOUND}


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
        "features": ct.splits.feature_shift(tasks(), offset=np.arange(5.0), turn=10.0 * np.arange(5.0), seed=1).data,
        "concepts": ct.splits.concept_shift(tasks(), flip=[1, -1, 1, 1, -1], seed=1).data,
        "held out": ct.splits.train_test(tasks(), 0.3)[1],
        "flipped": ct.robust.flip_labels(tasks(), [1]),
    }
    made = {"linear": (linear.train, linear.graph), "means": (means.points, means.graph), "related": tasks()}
    return made | parts | {"field": (field.points, field.graph), "moons": [(one.train, one.graph) for one in moons]}


@case("graphs")
def _(folder: Path) -> Any:
    make, rng = ct.graphs, np.random.default_rng(0)
    names = {"erdos_renyi": (9, 0.4, 0), "random_regular": (8, 3, 0), "grid": (3, 3), "directed_random": (8, 2, 0)}
    found = {name: getattr(make, name)(*given) for name, given in names.items()}
    positions = rng.normal(size=(8, 2))
    return found | {"knn": make.knn(positions, 2), "kernel": make.kernel(positions, 1.0), "path": make.path(5)}


@case("evaluation")
def _(folder: Path) -> Any:
    task = ct.datasets.linear_classification(n=8, p=4, seed=0)
    problem = ct.Problem.personalized(task.train, task.graph)
    one = ct.evaluate(ct.simulate(problem, "cd", wakes=40), problem, task.test)
    found = ct.compare(["local", "global", "cd", "djam"], problem, vectors=60, test=task.test, points=2, n_jobs=1)
    return {"one": one.summary, "several": found.summary.drop(columns="time"), "optimum": found.optimum}


@case("a study")
def _(folder: Path) -> Any:
    return ct.studies.study(
        lambda mu, seed: run("cd", lambda: propagation(alpha=mu), seed=seed)(folder), {"mu": [0.3, 0.6]}, [0, 1]
    ).frame


# -- models, saved and fitted anew -------------------------------------------------------------------------------------


@cache
def tables() -> dict[str, tuple[Any, Any]]:
    """Return features, with the agent in the first column, and labels."""
    houses, firms, lives = ct.datasets.radon(), ct.datasets.grunfeld(), ct.datasets.gapminder().iloc[:300]
    X, y = firms[["firm", "value", "capital"]], firms["invest"] / 100.0
    wide = np.random.default_rng(3).normal(size=(24, 151))
    many = pd.DataFrame(wide, columns=[f"x{k}" for k in range(151)])
    many.insert(0, "who", list("abcd") * 6)
    gaps = lives[["country", "year"]].assign(income=lives["gdpPercap"].where(lives.index % 9 > 0))
    home = houses[["county", "floor", "uranium"]]
    return {
        "houses": (home, houses["log_radon"]),
        "high": (home, np.where(houses["log_radon"] > 1.2, "high", "low")),
        "firms": (X, y),
        "busy": (X[:120], y[:120] > 1.0),
        "levels": (X[:120], np.array(["low", "some", "much"])[np.digitize(y[:120], [1.0, 3.0])]),
        "counts": (X, np.floor(y)),
        "gaps": (gaps, lives["lifeExp"]),
        "wide": (many, wide[:, :5].sum(axis=1)),
    }


Regressor, Classifier = ct.CollaborativeRegressor, ct.CollaborativeClassifier
BASE, SOON = ct.Stumps(6, spread="quantile"), {"max_iter": 100, "n_neighbors": 3}
MODELS = {
    "pooled": (Regressor(), "houses"),
    "pooled linear": (Regressor(design="linear", deviations="full"), "firms"),
    "pooled diagonal": (Regressor(deviations="diagonal"), "firms"),
    "pooled scalar": (Regressor(deviations="scalar", loss="student"), "firms"),
    "pooled counts": (Regressor(loss="poisson"), "counts"),
    "pooled with gaps": (Regressor(loss="auto"), "gaps"),
    "pooled with edges": (Regressor(graph="knn", n_neighbors=3), "firms"),
    "pooled wide": (Regressor(), "wide"),
    "pooled classes": (Classifier(), "high"),
    "pooled three classes": (Classifier(design="linear"), "levels"),
    "cd": (Regressor("cd", graph="knn", **SOON), "firms"),
    "cd huber": (Regressor("cd", loss=ct.Huber(0.5), ridge=0.1, graph=ct.graphs.ring(11), **SOON), "firms"),
    "cd classes": (Classifier("cd", **SOON), "busy"),
    "cd three classes": (Classifier("cd", **SOON), "levels"),
    "cd learned": (Classifier("cd", graph=LEARNED, **SOON), "busy"),
    "admm": (Regressor("admm", **SOON), "firms"),
    "djam": (Regressor("djam", **SOON), "firms"),
    "propagation": (Regressor("propagation", **SOON), "firms"),
    "component": (Regressor("component", **SOON), "firms"),
    "local": (Regressor("local"), "firms"),
    "global": (Classifier("global"), "busy"),
    "ridge to mean": (Regressor(ct.baselines.RidgeToMean(2.0)), "firms"),
    "boosted": (ct.BoostedClassifier(base=BASE, beta=3.0, graph=ct.graphs.ring(6), max_iter=40), "busy"),
    "boosted learned": (ct.BoostedClassifier(base=4, graph=LEARNED, max_iter=20), "busy"),
    "boosted three classes": (ct.BoostedClassifier(base=4, graph=ct.graphs.ring(6), max_iter=20), "levels"),
    "boosted numbers": (ct.BoostedRegressor(base=4, max_iter=40, graph="knn"), "firms"),
    "related": (ct.RelationshipClassifier(max_iter=4, rounds=2, passes=2.0), "busy"),
    "related three classes": (ct.RelationshipClassifier(max_iter=2, rounds=1, passes=1.0), "levels"),
    "related numbers": (ct.RelationshipRegressor(method="exact", max_iter=5), "firms"),
    "related by factors": (
        ct.RelationshipRegressor(covariance=(np.ones((11, 1)), [0.05], 0.45 / 11), rounds=3, passes=2.0), "firms",
    ),
}  # fmt: skip


def fitted(folder: Path, name: str) -> None:
    model, rows = MODELS[name]
    X, y = tables()[rows]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # they are to be quick
        ct.save(model.fit(X, y, agents=X.columns[0]), folder)


def predicted(folder: Path, name: str) -> dict[str, Any]:
    """Return predictions of the model in a folder for some rows, one of an unknown agent."""
    model, X = ct.load(folder), tables()[MODELS[name][1]][0]
    some = X.iloc[:: max(1, len(X) // 12)].copy()
    some[some.columns[0]] = ["nobody", *some.iloc[1:, 0]]
    given = {name: repr(value) for name, value in model.get_params().items()}
    found = {"predict": model.predict(some), "parameters": given, "agents": model.agents_[:3]}
    found["fields"] = sorted(json.loads((folder / "model.json").read_text()))
    if hasattr(model, "predict_proba"):
        found["predict_proba"] = model.predict_proba(some)
    if name.startswith("pooled") and "classes" not in name:
        found["spread"] = model.predict(some, return_std=True)[1]
    return found | {"coef": model.coef_, "graph": getattr(model, "graph_", None)}


for name in MODELS:
    CASES[f"models/{name}"] = Case(partial(predicted, name=name), partial(fitted, name=name), tolerance=1e-8)


# -- what is kept of runs and of releases ------------------------------------------------------------------------------


def half(folder: Path) -> None:
    ct.save(RUNS["cd"](folder), folder / "run.npz")
    learned = ct.Learned("cd", LEARNED, 3)
    ct.save(ct.simulate(hard(), learned, wakes=30, conditions=LATE), folder / "learned.npz")


@case("runs", half)
def _(folder: Path) -> Any:
    """Return the content of the files, and the results of continued runs."""
    first, second = ct.load(folder / "run.npz"), ct.load(folder / "learned.npz")
    on = ct.simulate(hard(), "cd", wakes=20, start=first)
    late = ct.simulate(hard(), ct.Learned("cd", LEARNED, 3), wakes=20, start=second, conditions=LATE)
    return {"run": first, "members": first.problem.members, "state": sorted(first.state.arrays), "on": on, "late": late}


def spent(folder: Path) -> None:
    with Ledger(make_plan(1.0, 1e-5, 5, allocation="decreasing"), folder / "ledger") as ledger:
        ledger.debit()
        ledger.debit()
        ledger.keep([b"one letter", b"another"])


@case("ledger", spent, random=True)
def _(folder: Path) -> Any:
    with Ledger.open(folder / "ledger") as ledger:
        names = ("releases", "left", "spent", "committed", "sessions", "kept", "account")
        found = {name: getattr(ledger, name) for name in names} | {"digest": ledger.plan.digest}
        return told(found | {"noise": ledger.plan.noise, "next": ledger.debit(), "then": ledger.left})


class EndedError(Exception):
    """A run is cut short on purpose."""


def related(folder: Path, tell: Callable[[int, float], None]) -> ct.multitask.Relationship:
    often = (
        patch.multiple(checkpoints, MIN_INTERVAL_SECONDS=0.0, MIN_INTERVAL_FACTOR=0.0),
        patch.object(learn, "PROGRESS_SECONDS", 0.0),
    )
    with often[0], often[1]:
        return ct.relationship(tasks(), lam=0.05, alternations=12, passes=2.0, resume=folder, progress=tell)


def cut_short(folder: Path) -> None:
    def stop(rounds: int, gap: float) -> None:
        if rounds >= 5:
            raise EndedError

    with contextlib.suppress(EndedError):
        related(folder, stop)


@case("relationship checkpoint", cut_short, random=True)
def _(folder: Path) -> Any:
    heard: list[int] = []
    return {"found": related(folder, lambda rounds, gap: heard.append(rounds)), "rounds": heard}


# -- peers -------------------------------------------------------------------------------------------------------------

WORDS = small.WORDS | {
    "columns": {
        "features": ["age", "kind"],
        "columns": {
            "kinds": ["number", "text"], "fills": [1.5, None], "source": [0, 0, 1],
            "parts": [["value", None], ["missing", None], ["level", "b"]], "references": [None, "a"],
        },
        "center": [1.0, 0.0], "scale": [2.0, 1.0], "intercept": True, "labels": ["no", "yes"], "loss": "logistic",
    }
}  # fmt: skip


def charters(folder: Path) -> None:
    for name, words in WORDS.items():
        (folder / f"{name}.json").write_bytes(charter.charter_json(small.charter_of(**words)))


@case("charters", charters, same_bytes=True)
def _(folder: Path) -> Any:
    found = {path.stem: charter.read_charter(path.read_bytes()) for path in sorted(folder.glob("*.json"))}
    return {name: {"run": one.run} | msgspec.to_builtins(one) for name, one in found.items()}


def lists(folder: Path) -> None:
    """A roster with all that there may be in one, signed by a second admin; and what goes with it."""
    run, first, second = small.charter_of().run, small.key_of(small.ADMIN), small.key_of(7)
    members = [roster.Member(f"m{i}", i, small.public(i), f"192.0.2.{i + 1}:7447" if i else None) for i in range(4)]
    one = roster.Roster(run, 1, members, small.EDGES).with_relay(roster.Relay("hub", "hub.example.org:7447"))
    two = one.with_admin(roster.make_delegation(run, small.public(7), first, 3), ["a certificate"])
    three = two.with_revoked({"b": 9_999_999_999, "abc": 9_999_999_998}, 0.0).without("m3").with_edge(1, 2, 4.0)
    announcement = announcements.Announcement("charter", run, 5, b"another charter")
    signed = announcements.sign_announcement(announcement, second, 10_000, "the announcement")
    files = {"first": roster.sign_roster(one, first), "last": roster.sign_roster(three, second), "announcement": signed}
    for name, content in (files | {"package": announcements.packaged(files["last"], [signed])}).items():
        (folder / name).write_bytes(content)


@case("lists", lists, same_bytes=True)
def _(folder: Path) -> Any:
    agreed = small.charter_of()
    one, last = (roster.read_roster((folder / name).read_bytes(), agreed) for name in ("first", "last"))
    keys = roster.signers(agreed, last)
    found = announcements.read_announcement((folder / "announcement").read_bytes(), keys)
    package = announcements.unpackaged((folder / "package").read_bytes())
    parts = [msgspec.to_builtins(each) for each in (one, last, found)]
    relation = roster.relation(one, last), roster.relation(last, one)
    return {
        "lists": parts,
        "digests": [one.digest, last.digest],
        "keys": sorted(keys),
        "relation": relation,
        "package": package,
    }


NUMBERS = np.array([0.0, -1.5, 1e300, 0.1])


def packets(folder: Path) -> None:
    hello = packet.write_hello(bytes(range(16)), 3, bytes(16), bytes(8))
    contents = {0: encode(5, 2, NUMBERS)[16:], packet.HELLO: hello, packet.DUPLICATE: packet.write_duplicate(1, 2)}
    for number, (kind, content) in enumerate(contents.items()):
        one = packet.Packet(packet.VERSION, bytes(range(16)), 3, -1, 2**53 - 1, 300, 40, kind, content)
        (folder / f"packet-{number}").write_bytes(packet.write_packet(one, small.key_of(3).sign))
    (folder / "message").write_bytes(encode(5, 2, NUMBERS))


@case("packets", packets, same_bytes=True)
def _(folder: Path) -> Any:
    found = [packet.read_packet(path.read_bytes()) for path in sorted(folder.glob("packet-*"))]
    for _, signature, signed in found:
        small.key_of(3).public_key().verify(signature, signed)
    greeting, two = packet.read_hello(found[1][0].content), packet.read_duplicate(found[2][0].content)
    parts = [msgspec.to_builtins(each) for each in (*(one for one, _, _ in found), greeting, two)]
    return {"packets": parts, "message": decode((folder / "message").read_bytes())}


def states(folder: Path) -> None:
    arrays = state.pack("own", {"theta": NUMBERS[None, :]}) | state.pack("arrays", {"peer": np.array([1, -1])})
    content = state.write_record(state.Record("00" * 16, 7, 3, 20, 12, [5], arrays))
    store = state.FileStore(folder / "state")
    store.save(b"the one before")
    store.save(content)


@case("state", states, same_bytes=True)
def _(folder: Path) -> Any:
    record = state.read_record(state.FileStore(folder / "state").load())
    arrays = {name: state.unpack(record.arrays, name) for name in record.arrays}
    return {"arrays": arrays} | {
        name: getattr(record, name) for name in ("run", "address", "starts", "largest", "wakes", "gone")
    }


def peers(folder: Path, words: str) -> None:
    """Run a group in memory for some seconds: store the states of all peers, and the messages of the first peer."""
    group = small.SmallGroup(words).start().run(4.0)
    for i, node in group.nodes.items():
        (folder / f"state-{i}").write_bytes(node.record())
    sent = [data for i, j, data in group.mail if i == 0][:12]
    (folder / "mail").write_bytes(msgspec.msgpack.encode(sent))


def of_peers(folder: Path, words: str) -> Any:
    """Return the content of states and packets, and the models after some more seconds."""
    group = small.SmallGroup(words)
    for i, store in enumerate(group.stores):
        store.save((folder / f"state-{i}").read_bytes())
    group.start()
    before = group.theta
    mail = [packet.read_packet(data)[0] for data in msgspec.msgpack.decode((folder / "mail").read_bytes())]
    heads = [(each.kind, each.to, each.sequence, len(each.content)) for each in mail]
    if group.ledgers[0] is None:
        group.run(3.0)
    return {"before": before, "after": group.theta, "heads": heads, "mail": len(group.mail)}


for words in WORDS:
    if words != "columns":
        CASES[f"peers/{words}"] = Case(partial(of_peers, words=words), partial(peers, words=words), tolerance=1e-8)


def member(folder: Path) -> None:
    """A group of two that was made by its admin, with certificates that last."""
    group = folder / "group"
    agreed = groups.create(group, title="golden", features=["x"], target="y", labels=None, method="cd")
    key, certificate = identity.make_ca("golden", DAYS + 300)
    (group / "ca.key").write_bytes(identity.private_pem(key))
    (group / "ca.crt").write_bytes(identity.certificate_pem(certificate))
    for name in ("ann", "bob"):
        identity.Identity.make(folder / name, name, "192.0.2.1:7447" if name == "ann" else None)
        invitation = groups.invite(
            group, groups.request(folder / name), {"ann": 2.0} if name == "bob" else None, days=DAYS
        )
        groups.join(folder / name, invitation, agreed.run)
    groups.refresh(folder / "ann", group / "roster")
    renewal.renew(group, within=2 * DAYS, days=DAYS + 200, now=datetime.now(UTC))


@case("member", member, random=True)
def _(folder: Path) -> Any:
    """Membership; what the admin has; and the certificate that was renewed, taken over."""
    here = [groups.membership(folder / name) for name in ("ann", "bob")]
    loaded = groups.load_group(folder / "group")
    topics = renewal.update(folder / "bob", folder / "group")[1]
    known = [(one.me.name, one.me.address, one.me.endpoint, one.identity.listen) for one in here]
    public = [one.identity.public == one.me.key for one in here]
    return {
        "known": known,
        "edges": loaded.roster.edges,
        "version": loaded.roster.version,
        "topics": topics,
        "own keys": public,
    }


# -- writing -----------------------------------------------------------------------------------------------------------


def numbers_of(name: str, folder: Path) -> Any:
    """Return the numbers read from a folder, as json values."""
    return json.loads(json.dumps(told(CASES[name].read(folder))))


def files_of(name: str) -> Path:
    return HERE / "files" / name.replace(" ", "-")


def copied(name: str, folder: Path) -> Path:
    """The files of a case, to be opened; secret ones are for their owner's eyes only, which git does not keep."""
    shutil.copytree(files_of(name), folder, dirs_exist_ok=True)
    for path in folder.rglob("*"):
        path.chmod(0o700 if path.is_dir() else 0o600)
    return folder


def main() -> None:
    found = {}
    for name, one in CASES.items():
        with tempfile.TemporaryDirectory() as scratch:
            if one.write is not None:
                if not (one.random and files_of(name).exists()):
                    shutil.rmtree(files_of(name), ignore_errors=True)
                    files_of(name).mkdir(parents=True)
                    one.write(files_of(name))
                copied(name, Path(scratch))
            found[name] = numbers_of(name, Path(scratch))
    lines = (f"{json.dumps(name)}: {json.dumps(value, sort_keys=True)}" for name, value in sorted(found.items()))
    (HERE / "numbers.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
