"""The model in a peer's folder, and its predictions: numbers with intervals, classes with probabilities.

Imports no more than NumPy, so that the command starts fast.
"""

from __future__ import annotations

import base64
import csv
import io
import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..._files import Where, read_bounded, write_atomic
from ..._laplace import expit, moderated
from ...core.losses import BERNOULLI
from ...core.models import Linear
from ...errors import DataError
from ..group.charter import Charter, charter_in
from ..group.networks import margins, model_of
from .cells import column_of, read_cells
from .encoding import columns_of_cells
from .work import loss_of

#: Quantile of a standard normal variable with 5 % above it, so that intervals hold 90 % of new labels.
Z90 = 1.6448536269514722
#: Number of parameters above which only variances of the covariance are stored.
MAX_DENSE_PARAMETERS = 400
#: Maximal bytes of the file of a model.
MAX_MODEL_BYTES = 32_000_000
_LINEAR = Linear()


class Model(NamedTuple):
    """A model as it is stored."""

    served: str  # "together", "alone", "own" or "population"
    theta: np.ndarray  # (p,)
    covariance: np.ndarray | None  # (p, p), or (p,) variances
    noise: float | None
    fill: np.ndarray  # (features,)


def packed(covariance: np.ndarray) -> str:
    """Return a covariance as text: its lower triangle, or its diagonal if the triangle is too long."""
    p = len(covariance)
    kept = covariance[np.tril_indices(p)] if p <= MAX_DENSE_PARAMETERS else np.diagonal(covariance)
    return base64.b64encode(np.ascontiguousarray(kept, "<f8").tobytes()).decode()


def _unpacked(text: str, p: int) -> np.ndarray:
    values = np.frombuffer(base64.b64decode(text, validate=True), "<f8")
    if values.shape == (p,) and p > 1:
        return values
    full = np.zeros((p, p))
    full[np.tril_indices(p)] = values
    return full + np.tril(full, -1).T


def read_model(folder: Where, charter: Charter) -> Model:
    """Read the model of a peer. Files of format 1 have no covariance."""
    path = Path(folder) / "model.json"
    if not path.exists():
        raise DataError(f"the peer in {folder} has no model yet: coterie peer run {folder} --data ...")
    try:
        given: dict[str, Any] = json.loads(read_bounded(path, limit=MAX_MODEL_BYTES))
        theta = np.array(given["theta"], float)
        text, noise = given.get("covariance"), given.get("noise")
        fill = np.array([np.nan if value is None else value for value in given.get("fill") or []], float)
        known = None if text is None else _unpacked(text, theta.size)
        found = Model(str(given["served"]), theta, known, None if noise is None else float(noise), fill)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{path} is damaged: {error}") from None
    if found.fill.shape != (len(charter.features),):
        found = found._replace(fill=np.full(len(charter.features), np.nan))
    return found


def predicted(charter: Charter, model: Model, X: np.ndarray, network: Any = _LINEAR) -> dict[str, Any]:
    """Return columns of predictions: numbers with ``std``, ``low`` and ``high``, classes with ``probability``.

    ``probability`` is that of the second class. ``network`` is the group's model, if it is not linear. Probabilities
    are moderated by the covariance C of the model: sigmoid(z / sqrt(1 + pi/8 x' C x)).
    """
    found, C = margins(network, model.theta, X), model.covariance
    variance = np.zeros(len(X)) if C is None else X * X @ C if C.ndim == 1 else np.einsum("ij,jk,ik->i", X, C, X)
    variance = np.maximum(variance, 0.0)
    if charter.labels is not None:
        words = np.where(found >= 0.0, charter.labels[1], charter.labels[0])
        columns: dict[str, Any] = {"prediction": words, "score": found}
        if loss_of(charter).likelihood == BERNOULLI:
            columns["probability"] = expit(moderated(found, variance))
        return columns
    center, scale = charter.target_unit
    found = center + scale * found
    columns = {"prediction": found}
    if C is not None and model.noise is not None:
        std = scale * np.sqrt(variance + model.noise)
        columns |= {"std": std, "low": found - Z90 * std, "high": found + Z90 * std}
    return columns


def predict_table(
    folder: Where, table: Where, file: Where | None = None, notes: list[str] | None = None
) -> tuple[dict[str, np.ndarray], str]:
    """Return predictions for a table by the model in a peer's folder, as columns by name, and the served model's name.

    ``file`` makes the group's model, if members bring it. Notes on the rows are appended to ``notes``.
    """
    charter = charter_in(folder)
    network = model_of(charter, file)
    model, cells = read_model(folder, charter), read_cells(table)
    some = {name: column_of(cells, name, str(table)) for name in charter.features}
    X = columns_of_cells(charter, some, str(table), model.fill, notes)
    if charter.objective == "boosting":
        from .tables import dictionary_of

        X = dictionary_of(charter).fitted(X).transform(X)
    size = network.size if charter.network else X.shape[1]
    if size != model.theta.size:
        raise DataError(f"the model in {folder} has {model.theta.size} parameters, and the charter asks for {size}")
    return predicted(charter, model, X, network), model.served


def csv_of(columns: dict[str, np.ndarray]) -> str:
    """Return a table as the text of a CSV file."""
    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*(column.tolist() for column in columns.values()), strict=True))
    return text.getvalue()


def predict_file(
    folder: Where,
    table: Where,
    output: Where,
    file: Where | None = None,
    notes: list[str] | None = None,
) -> tuple[int, str]:
    """Write the predictions of :func:`predict_table` as CSV. Return their number, and the served model's name."""
    columns, served = predict_table(folder, table, file, notes)
    write_atomic(Path(output), csv_of(columns).encode())
    return len(columns["prediction"]), served
