"""The tasks of the simulated peers: fields of their charter, their rows, and their roster."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from coterie.peers.group.charter import Charter, make_charter

FEATURES = 3
#: Standard deviation of the labels around the true models' predictions.
NOISE = 0.1
#: Accuracy of tasks whose models have no optimum to reach.
NO_LIMIT = np.inf


class Task(NamedTuple):
    """Fields of the charter, and the relative distance from the optimum that the models must reach."""

    words: dict[str, Any]
    accuracy: float = NO_LIMIT
    resists: bool = False  # whether some members lie, and the honest ones must still be no worse than alone
    beyond: float = 1e6  # a number that no message may hold


TASKS: dict[str, Task] = {
    "cd": Task({"method": "cd", "objective": "personalized"}, 1e-8),
    "djam": Task({"method": "djam", "objective": "personalized", "confidence": "gossip"}, 1e-8),
    "admm": Task({"method": "admm", "objective": "collaborative", "settings": {"rho": 1.0}}, 1e-7),
    "propagation": Task({"method": "propagation", "objective": "propagation"}, 1e-8),
    "boosting": Task(
        {
            "method": "boosting",
            "objective": "boosting",
            "settings": {"stumps": 6, "beta": 2.0, "low": -2.0, "high": 2.0},
        },
        3e-2,
    ),
    "learned": Task({"method": "cd", "objective": "personalized", "learned": {"kappa": 2, "every": 4.0}}, 1e-6),
    "private": Task({"method": "cd", "objective": "personalized", "privacy": {"epsilon": 2.0, "wakes_per_agent": 4}}),
    "published": Task({"method": "propagation", "objective": "personalized", "privacy": {"epsilon": 2.0}}),
    "trimmed": Task({"method": "cd", "objective": "personalized", "trim": 0.25}, resists=True),
    "trimmed djam": Task({"method": "djam", "objective": "personalized", "trim": 0.25}, resists=True),
    "pooled": Task({"method": "resilient-pooling", "intercept": True}, resists=True, beyond=1e300),
}


class Rows(NamedTuple):
    """The rows of all members, and the true models."""

    X: list[np.ndarray]
    y: list[np.ndarray]
    models: np.ndarray  # (n, FEATURES)


def charter_of(task: Task, title: str, admin: bytes) -> Charter:
    """What all members of a seed have agreed on."""
    boosting = task.words["method"] == "boosting"
    given: dict[str, Any] = {
        "title": title,
        "features": [f"x{k}" for k in range(FEATURES)],
        "target": "y",
        "labels": ["-1", "1"] if boosting else None,
        "intercept": False,
        "loss": "adaboost" if boosting else "squared",
        "ridge": 0.1,
        "max_rows": 20,
        "radius": 100.0,
        "trim": 0.0,
        "admin": admin,
    }
    return make_charter(**given | task.words)


def rows_of(rng: np.random.Generator, n: int, task: Task) -> Rows:
    """Draw a few rows for each of n members, whose true models are similar."""
    sizes = rng.integers(5 if task.resists else 1, 11, n)
    models = rng.normal(size=(1, FEATURES)) + 0.3 * rng.normal(size=(n, FEATURES))
    X = [rng.normal(size=(m, FEATURES)) for m in sizes]
    y = [x @ model + NOISE * rng.normal(size=len(x)) for x, model in zip(X, models, strict=True)]
    if task.words.get("intercept"):
        X = [np.column_stack([x, np.ones(len(x))]) for x in X]  # like rows that are read from a table
    if task.words["method"] == "boosting":
        y = [np.where(values >= 0, 1.0, -1.0) for values in y]
    return Rows(X, y, models)


def edges_of(rng: np.random.Generator, n: int, task: Task) -> list[tuple[int, int, float]]:
    """Return a connected graph; a complete one if each member needs enough honest neighbours."""
    if task.resists:
        return [(a, b, 1.0) for a in range(n) for b in range(a + 1, n)]
    edges = {(i, int(rng.integers(i))): 0.0 for i in range(1, n)}
    edges |= {tuple(sorted(rng.choice(n, 2, replace=False), reverse=True)): 0.0 for _ in range(n)}
    return [(int(b), int(a), float(rng.uniform(0.5, 2.0))) for a, b in edges]
