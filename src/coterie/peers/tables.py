"""From a charter and a table of rows to a problem, a method, and the work of a peer.

The one place where a charter becomes the objects of the library; a peer and the exact optimum that it is compared with
are made by the same functions.
"""

from __future__ import annotations

import json
import sys
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy import sparse

from .._files import read_bounded, write_atomic
from ..core.letters import longest
from ..core.linear import DenseRows
from ..core.methods import check_fit
from ..core.wrap.learned import Learned
from ..data import AgentData
from ..data.dictionaries import Stumps
from ..data.readers import read_table
from ..errors import CoterieError, DataError, ParameterError
from ..graphs import Graph, complete, empty
from ..problem import Problem
from ..problem.confidence import confidences
from ..problem.coupling import mu_of
from .charter import Charter, read_charter
from .packet import OVERHEAD
from .work import BOOSTING, Work, loss_of, make_part, method_of, write_work

#: Objectives in which an agent's loss is weighed by how many rows it has.
CONFIDENT = ("personalized", "propagation", "boosting")


def check_charter(charter: Charter) -> None:
    """Refuse a charter whose parts do not go together, before anybody has agreed to it."""
    X = np.ones((4, len(charter.features) + charter.intercept))
    pair = AgentData(X, np.array([1.0, -1.0, 1.0, -1.0]), agents=[0, 0, 1, 1])
    method, problem = method_of(charter), problem_of(charter, pair, complete(2))
    check_fit(alone(method), problem)
    longest_letter = 8 * longest(method.lengths(problem.p)) + OVERHEAD
    if longest_letter > charter.letter_bytes:
        raise ParameterError(
            f"letter_bytes={charter.letter_bytes}: a letter of {method!r} takes up to {longest_letter} bytes"
        )


def alone(method: Any) -> Any:
    """The method without the learning of ties, which asks for more members than there may be yet."""
    return method.method if isinstance(method, Learned) else method


def problem_of(charter: Charter, data: AgentData, graph: Graph, confident: bool = True) -> Problem:
    """The problem that a charter states for some members; `confident`: losses are weighed as the charter says."""
    c = None
    if confident and charter.confidence != "none":
        largest = charter.max_rows if charter.confidence == "public" else int(data.sizes.max(initial=1))
        c = confidences(data.sizes, largest)
    loss, mu = loss_of(charter), mu_of(charter.coupling, charter.objective)
    match charter.objective:
        case "personalized":
            return Problem.personalized(data, graph, loss, mu, charter.ridge, c)
        case "collaborative":
            return Problem.collaborative(data, graph, loss, mu, charter.ridge)
        case "separate":
            return Problem.separate(data, graph, loss, charter.ridge)
        case "propagation":
            alone = Problem.personalized(data, empty(data.n), loss, mu, charter.ridge, None)
            return Problem.propagation(alone.local(), graph, alpha=1.0 / (1.0 + mu), confidence=c)
        case "boosting":
            beta: Any = charter.settings.get("beta", BOOSTING["beta"])
            return Problem.boosting(data, graph, dictionary_of(charter), mu, beta, c, loss)


def dictionary_of(charter: Charter) -> Stumps:
    """The base predictors of boosting, which are public: decision stumps over a public range."""
    given = BOOSTING | charter.settings
    made: Stumps = make_part("settings", Stumps, {"low": given["low"], "high": given["high"]}, given["stumps"])
    return made


def rows_of(charter: Charter, table: str | PathLike[str] | pd.DataFrame) -> tuple[np.ndarray, np.ndarray]:
    """Features and labels of a table, scaled as the charter says."""
    frame = table if isinstance(table, pd.DataFrame) else read_table(table)
    where = "the table" if isinstance(table, pd.DataFrame) else str(table)
    if charter.target not in frame.columns:
        raise DataError(f"{where} has no column {charter.target!r}, the target; it has {list(frame.columns)}")
    if len(frame) > charter.max_rows:
        raise DataError(
            f"{where} has {len(frame)} rows; the charter allows {charter.max_rows} at most: give fewer, "
            "or agree on another charter"
        )
    X, target = features_of(charter, frame, where), frame[charter.target]
    if charter.labels is None:
        return X, _numbers(target, charter.target, where)
    said = target.map(spelt)
    for row, value in enumerate(said):
        if value not in charter.labels:
            raise DataError(
                f"{where}: {value!r} in column {charter.target!r}, row {row + 1}, is no class of the charter: "
                f"{charter.labels}"
            )
    return X, np.where(said.to_numpy() == charter.labels[1], 1.0, -1.0)


def features_of(charter: Charter, frame: pd.DataFrame, where: str) -> np.ndarray:
    """Features of a table, scaled as the charter says; `where` is what to call it in an error."""
    for name in charter.features:
        if name not in frame.columns:
            raise DataError(f"{where} has no column {name!r}, which the charter asks for; it has {list(frame.columns)}")
    X = np.empty((len(frame), len(charter.features)))
    for k, name in enumerate(charter.features):
        X[:, k] = _numbers(frame[name], name, where)
    if charter.center is not None:
        X -= charter.center
    if charter.scale is not None:
        X /= charter.scale
    return np.column_stack([X, np.ones(len(X))]) if charter.intercept else X


def spelt(value: Any) -> str:
    """A label as text: 1.0 of a column of numbers is "1"."""
    return str(int(value)) if isinstance(value, float) and value.is_integer() else str(value)


def _numbers(column: pd.Series, name: str, where: str) -> np.ndarray:
    values = pd.to_numeric(column, errors="coerce").to_numpy(float)
    bad = np.flatnonzero(~np.isfinite(values))
    if bad.size:
        row = int(bad[0])
        found = "a missing value" if pd.isna(column.iloc[row]) else f"{str(column.iloc[row])!r}"
        raise DataError(f"{where}: {found} in column {name!r}, row {row + 1}, and not a finite number")
    return values


def work_of(charter: Charter, X: np.ndarray, y: np.ndarray, holdout: float = 0.0, seed: int = 0) -> Work:
    """What a peer with these rows works on; a share `holdout` of them is kept aside to measure models with."""
    aside = np.zeros(len(X), bool)
    aside[np.random.default_rng(seed).permutation(len(X))[: int(holdout * len(X))]] = True
    data = AgentData(X[~aside], y[~aside], agents=np.zeros(int((~aside).sum()), int), members=[0])
    problem = problem_of(charter, data, empty(1), confident=False)
    check_fit(alone(method_of(charter)), problem)
    rows, local = problem.rows, problem.local()[0]
    if not np.linalg.norm(local) <= charter.radius:
        raise DataError(
            f"the model of these rows alone has the norm {np.linalg.norm(local):.4g}, and in this run none may be "
            f"longer than {charter.radius:g}: scale features or target, or agree on a larger --radius"
        )
    features = rows.values
    if not isinstance(rows, DenseRows):
        features = sparse.csr_array((rows.values, rows.column, rows.start), (len(rows.start) - 1, problem.p)).toarray()
    public = charter.privacy is not None or charter.objective == "boosting"
    seen = aside if aside.any() else ~aside
    shown = X[seen] if problem.base is None else problem.base.transform(X[seen])
    return Work(
        loss=problem.loss,
        features=np.ascontiguousarray(features, float),
        labels=np.ascontiguousarray(problem.labels, float),
        size=int(data.sizes[0]),
        row_weight=float(problem.row_weight[0]),
        ridge=float(problem.ridge[0]),
        weight=float(problem.loss_weight[0]),
        confident=charter.objective in CONFIDENT and charter.confidence != "none",
        curvature=float(problem.local_lipschitz[0]),
        smooth=problem.smooth,
        scaled=bool(problem.scaled),
        radius=problem.radius,
        outputs=problem.outputs,
        theta=np.zeros(problem.p) if public else np.array(local),
        local=np.array(local),
        seen=np.ascontiguousarray(shown, float),
        seen_labels=y[seen],
        aside=bool(aside.any()),
    )


# -- commands ---------------------------------------------------------------------------------------------------------


def predict_file(folder: PathLike[str], table: PathLike[str], output: PathLike[str]) -> tuple[int, str]:
    """Write predictions for a table, by the model in a peer's folder, as csv: how many, and which model it was."""
    charter = read_charter(read_bounded(Path(folder) / "charter.json"))
    if not (Path(folder) / "model.json").exists():
        raise DataError(f"the peer in {folder} has no model yet: coterie peer run {folder} --data ...")
    try:
        model = json.loads(read_bounded(Path(folder) / "model.json"))
        theta, served = np.array(model["theta"], float), str(model["served"])
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{Path(folder) / 'model.json'} is damaged: {error}") from None
    frame = read_table(table)
    X = features_of(charter, frame, str(table))
    base = dictionary_of(charter) if charter.objective == "boosting" else None
    if base is not None:
        X = base.fitted(X).transform(X)
    if X.shape[1] != theta.size:
        raise DataError(f"the model in {folder} has {theta.size} numbers, and the charter asks for {X.shape[1]}")
    margins = X @ theta
    columns = {"prediction": margins}
    if charter.labels is not None:
        columns = {"prediction": np.where(margins >= 0.0, charter.labels[1], charter.labels[0]), "score": margins}
    write_atomic(Path(output), pd.DataFrame(columns).to_csv(index=False).encode())
    return len(frame), served


def main() -> None:
    """Read a table for a peer, and write its work to standard output."""
    folder, table, holdout = sys.argv[1:]
    try:
        charter = read_charter(read_bounded(Path(folder) / "charter.json"))
        work = work_of(charter, *rows_of(charter, table), holdout=float(holdout))
    except CoterieError as error:
        print(error, file=sys.stderr)
        sys.exit(3)
    sys.stdout.buffer.write(write_work(work))


if __name__ == "__main__":
    main()
