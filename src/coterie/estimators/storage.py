"""Saved models: a JSON file that describes the model, and an npz file of arrays.

Nothing in these files is ever executed. The arrays are written first, to a file whose name contains their checksum; the
JSON file, which names them, is then replaced in one step. A model directory thus holds the old or the new model, whole.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import astuple
from pathlib import Path
from typing import Any

import numpy as np

from .._archive import check_format, packed, reading, unpacked
from .._files import write_atomic
from .._version import __version__
from ..core.losses import LOSSES, loss_from_json, loss_to_json
from ..core.methods import METHODS
from ..core.wrap.graph_rule import GraphRule
from ..data.columns import Columns, plain
from ..data.dictionaries import StumpDictionary, Stumps
from ..data.ids import packed_id, unpacked_id
from ..engines.run import Run
from ..engines.stored_runs import load_run, save_run
from ..errors import DataError, MismatchError
from ..graphs import Graph
from ..problem.baselines import BASELINES
from . import CollaborativeClassifier, CollaborativeRegressor
from .boosted import BoostedClassifier, BoostedRegressor
from .relationship import RelationshipClassifier, RelationshipRegressor

FORMAT = 5
#: Value of a given graph in the JSON file; the graph itself is among the arrays.
GIVEN = "given"
KINDS = {
    kind.__name__: kind
    for kind in (
        CollaborativeClassifier,
        CollaborativeRegressor,
        BoostedClassifier,
        BoostedRegressor,
        RelationshipClassifier,
        RelationshipRegressor,
    )
}


def save(model: Any, path: str | os.PathLike[str]) -> Path:
    """Write a fitted estimator to a directory, or a run to a file.

    Parameters
    ----------
    model : estimator or Run
        A fitted estimator of this package. Boosted models must use decision stumps, and relationship models no feature
        map, since other base predictors and maps are code. The cluster on which a model was fitted is not saved. For a
        run: models, trace, account and state are saved, and problem and method by name, so that the run can continue
        with the same problem and method.
    path : path
        A directory, created if necessary; for a run, the name of a file that ends with ``.npz``.

    Returns
    -------
    Path

    Examples
    --------
    >>> import tempfile
    >>> import numpy as np
    >>> import coterie as ct
    >>> X, y, ids = np.arange(8.0)[:, None], np.arange(8.0), list("aabbaabb")
    >>> model = ct.CollaborativeRegressor(n_neighbors=1).fit(X, y, agents=ids)
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     again = ct.load(ct.save(model, folder))
    >>> bool(np.all(again.predict(X, agents=ids) == model.predict(X, agents=ids)))
    True
    """
    if isinstance(model, Run):
        return save_run(model, path)
    if type(model).__name__ not in KINDS or not hasattr(model, "coef_"):
        raise MismatchError(f"only a fitted {' or '.join(KINDS)}, or a run, can be saved, not {model!r}")
    described, parts = model._packed()  # refuses what cannot be saved before anything is written
    agents = [packed_id(agent) for agent in model.agents_]
    # The number of threads depends on the machine, and is no part of the model.
    given = {name: value for name, value in model.get_params(deep=False).items() if name != "n_jobs"}
    parameters = {name: _parameter(name, value) for name, value in given.items()}
    graph = model._models.graph
    edges = {} if graph is None else {"edge_start": graph.start, "edge_peer": graph.peer, "edge_weight": graph.weight}
    content = packed({**edges, **parts})
    checksum = hashlib.sha256(content).hexdigest()
    folder = Path(path)
    folder.mkdir(parents=True, exist_ok=True)
    arrays = f"arrays-{checksum[:16]}.npz"
    description = {
        "format": FORMAT,
        "coterie": __version__,
        "kind": type(model).__name__,
        "parameters": parameters,
        "agents": agents,
        "agent_column": model._agent_column,
        "target_column": model._target_column,
        "given_names": dict(model._given_names),
        "features": list(model.feature_names_in_) if hasattr(model, "feature_names_in_") else None,
        "feature_count": int(model.n_features_in_),
        "classes": model.classes_.tolist() if hasattr(model, "classes_") else None,
        "columns": None if described or model._columns.is_identity else model._columns.to_dict(),
        "models": described,
        "arrays": arrays,
        "sha256": checksum,
    }
    write_atomic(folder / arrays, content)
    write_atomic(folder / "model.json", json.dumps(description, indent=1).encode())
    for old in folder.glob("arrays-*.npz"):
        if old.name != arrays:
            old.unlink()
    return folder


def load(path: str | os.PathLike[str]) -> Any:
    """Read an estimator or a run that :func:`save` wrote.

    Parameters
    ----------
    path : path
        The directory; for a run, the file.

    Returns
    -------
    estimator or Run
        Ready to predict, and to be fitted again. ``run_``, the simulation of the fit, is not saved. In a run,
        ``problem`` and ``method`` are records: continue with ``simulate(problem, method, start=run)``.

    Examples
    --------
    >>> load("no/such/model")
    Traceback (most recent call last):
    ...
    coterie.errors.DataError: no/such/model holds no model: there is no model.json in it
    """
    folder = Path(path)
    if folder.is_file():
        return load_run(folder)
    if not (folder / "model.json").is_file():
        raise DataError(f"{folder} holds no model: there is no model.json in it")
    with reading(f"{folder} holds a damaged model"):
        description = json.loads((folder / "model.json").read_text())
        form, kind = description["format"], description["kind"]
        if form == 2:
            description["parameters"] = _of_format_2(kind, description["parameters"])
        check_format(f"{folder} holds a model", form, FORMAT, 2, 3, 4)
        if kind not in KINDS:
            raise DataError(f"{folder} holds a {kind!r}; this version knows {', '.join(KINDS)}")
        content = (folder / Path(description["arrays"]).name).read_bytes()
        if hashlib.sha256(content).hexdigest() != description["sha256"]:
            raise DataError(f"{folder} holds a damaged model: {description['arrays']} does not have its checksum")
        arrays = unpacked(content)[0]
        if form < FORMAT:  # earlier formats named the arrays of edges "tie_..."
            arrays = {name.replace("tie_", "edge_", 1): array for name, array in arrays.items()}
        return _restored(KINDS[kind], description, arrays)


def _restored(kind: Any, description: dict[str, Any], arrays: Any) -> Any:
    """Return the estimator that a description and its arrays describe."""
    model = kind(**{name: _value(value) for name, value in description["parameters"].items()})
    model._target_column = description.get("target_column")
    members = tuple(unpacked_id(agent) for agent in description["agents"])
    model._given_names = {str(of): str(name) for of, name in dict(description.get("given_names", {})).items()}
    if description["classes"] is not None:
        model.classes_ = np.array(description["classes"])
    described, features = description["models"], description["features"]
    encoded = described.get("columns") or description.get("columns")
    columns = (
        plain([0.0] * int(description["feature_count"]), "refuse", None if features is None else tuple(features))
        if encoded is None
        else Columns.from_dict(encoded)
    )
    linked = {"edge_start", "edge_peer", "edge_weight"} & set(arrays)
    graph = Graph.from_arrays(arrays["edge_start"], arrays["edge_peer"], arrays["edge_weight"]) if linked else None
    models = model._unpacked(described, arrays, len(members), len(columns.names), graph)
    model._take(columns, members, description["agent_column"], models)
    return _as_given(model, description) if "graph" in description["parameters"] else model


def _of_format_2(kind: str, parameters: dict[str, Any]) -> dict[str, Any]:
    """Return parameters under their names since format 3; mu weighed agreement in boosting, and own rows elsewhere."""
    now = {"neighbours": "n_neighbors", "max_wakes": "max_iter", "alternations": "max_iter", "seed": "random_state"}
    now |= {"mu": "coupling"}
    if "mu" in parameters and not kind.startswith("Boosted"):
        parameters = parameters | {"mu": 1.0 / parameters["mu"]}
    return {now.get(name, name): value for name, value in parameters.items()}


def _as_given(model: Any, description: dict[str, Any]) -> Any:
    """Set a given graph and given members from the fitted attributes."""
    given = description["parameters"]
    return model.set_params(
        graph=model.graph_ if given["graph"] == GIVEN else model.graph,
        members=None if given["members"] is None else model.agents_,
    )


def _parameter(name: str, value: Any) -> Any:
    """Return a parameter as JSON. A given graph and given members are restored from the fitted attributes."""
    if name == "graph" and not isinstance(value, GraphRule):
        return value if value is None or isinstance(value, str) else GIVEN
    if name == "engine":
        return None  # the cluster is no part of the model
    if name == "members":
        return None if value is None else True
    if isinstance(value, StumpDictionary):
        return None  # restored from the fitted base predictors
    if value is None or isinstance(value, (str, int, float, bool)):
        return value
    if getattr(value, "is_loss", False):
        return {"loss": loss_to_json(value)}
    if type(value) in _rules().values():
        made_of = value.__getnewargs__() if hasattr(value, "__getnewargs__") else astuple(value)
        return {"rule": type(value).__name__, "fields": [_parameter(f"{name}'s part", field) for field in made_of]}
    if name == "covariance" and isinstance(value, tuple):
        return {"tuple": [np.asarray(part).tolist() for part in value]}  # factors have different shapes
    if isinstance(value, (np.ndarray, list, np.generic)) or type(value) is tuple:
        return np.asarray(value).tolist()
    raise DataError(f"{name}={value!r} cannot be saved: only numbers, names, and losses and methods of coterie can")


def _value(packed: Any) -> Any:
    if isinstance(packed, dict) and "loss" in packed:
        return loss_from_json(packed["loss"])
    if isinstance(packed, dict) and "tuple" in packed:
        return tuple(packed["tuple"])
    if isinstance(packed, dict):
        return _rules()[packed["rule"]](*map(_value, packed["fields"]))
    return packed


def _rules() -> dict[str, Any]:
    """Return the classes of rules that a parameter may hold, by name; format 2 also named losses so."""
    known = (*METHODS.values(), *BASELINES.values(), GraphRule(), Stumps(), *LOSSES.values())
    return {type(rule).__name__: type(rule) for rule in known}
