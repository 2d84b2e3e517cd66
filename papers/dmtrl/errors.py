"""Errors on real data, with parameters by cross-validation (DMTRL, Tables 2 and 3)."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from coterie.datasets import RealTask
from coterie.multitask import exact_weights, relationship

from .._experiment import Plan, Row, best, held_out, where
from .common import centralised, error_of, explained_variance, loss_of, tasks_of

#: What is tried, by method: lam of STL is that of lam/2 |w_i|^2.
_GRID: dict[str, dict[str, tuple[float, ...]]] = {
    "School": {"DMTRL": (1e-3, 3e-3, 1e-2, 3e-2, 1e-1), "STL": (1e-3, 1e-2, 3e-2, 1e-1, 3e-1)},
    "MNIST": {"DMTRL": (3e-6, 1e-5, 3e-5, 1e-4), "STL": (3e-5, 1e-4, 3e-4, 1e-3)},
    "MDS": {"DMTRL": (3e-6, 1e-5, 3e-5, 1e-4), "STL": (1e-5, 3e-5, 1e-4, 3e-4, 1e-3)},
}
#: Splits of the centralised method, which takes a minute for each.
_CENTRAL = 3


def _fit(task: RealTask, method: str, lam: float) -> np.ndarray:
    """Weights of one method of the tables, (m, d)."""
    if method == "Centralized MTRL":
        return centralised(task, lam, 100)
    if method == "DMTRL":
        tol = 2e-3 if task.kind == "regression" else 2e-2
        return relationship(task.train, loss_of(task), lam, 400, tol=tol, passes=10.0 if tol < 1e-2 else 3.0).weights
    if task.kind == "regression":
        return exact_weights(task.train, "squared", lam, np.eye(task.train.n))
    return relationship(task.train, "hinge", lam, rounds=300, method="single-task", tol=1e-2, passes=3.0).weights


def table(data: str, size: int | None, seed: int, method: str, lam: float, part: str) -> Row:
    """One fit: scored on the rows of three folds in turn, or on the test rows."""
    task = tasks_of(data, size, seed)
    if part == "test":
        theta = _fit(task, method, lam)
        found = {"error": error_of(task, theta)}
        return found | ({"explained": explained_variance(task, theta)} if data == "School" else {})
    errors = []
    for fold in range(3):
        train, test = held_out(task.train, fold, by_class=data != "School")
        inner = replace(task, train=train, test=test)
        errors.append(error_of(inner, _fit(inner, method, lam)))
    return {"fold_error": float(np.mean(errors))}


def table_plan(quick: bool, sizes: dict[str, int | None], capped: dict[str, int | None], splits: int) -> Plan:
    chosen: dict[tuple[str, str], float] = {}
    tuned = yield [
        {"data": data, "size": capped[data], "seed": 0, "method": method, "lam": lam, "part": "tune"}
        for data in sizes
        for method, grid in _GRID[data].items()
        for lam in (grid[2:3] if quick else grid)
    ]
    for data in sizes:
        for method in _GRID[data]:
            [chosen[data, method]] = best(where(tuned, data=data, method=method), "fold_error", "lam", highest=False)
        if data == "School":
            chosen[data, "Centralized MTRL"] = chosen[data, "DMTRL"]
    yield [
        {"data": data, "size": sizes[data], "seed": seed, "method": method, "lam": lam, "part": "test"}
        for (data, method), lam in chosen.items()
        for seed in range(min(splits, _CENTRAL) if method == "Centralized MTRL" else splits)
    ]
