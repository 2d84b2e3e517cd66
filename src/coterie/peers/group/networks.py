"""Nonlinear models of a group: a network that the charter describes, or a model that each member brings.

A charter holds no code. It gives either the number of hidden units of a :class:`coterie.models.TwoLayer`; or the names
and sizes of the parameters of a model that each peer's owner provides as a file on their own machine, ``coterie peer
run --model FILE.py``, and the predictions of the initial model for a few public rows. So a member with another model
gets an error before a message is sent. Nothing in a charter or from the network names a file or a module.
"""

from __future__ import annotations

import runpy
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..._files import Where
from ...core.arrays import PERSONAL
from ...core.models import Linear, TwoLayer
from ...errors import CoterieError, DataError, ParameterError
from ...problem.modelled import MODEL_ATTRIBUTES, roles_of

if TYPE_CHECKING:
    from .charter import Charter

#: Number of public rows whose predictions are compared, and relative and absolute tolerance for rounding.
PROBE_ROWS, RELATIVE_TOLERANCE, ABSOLUTE_TOLERANCE = 3, 1e-3, 1e-4


class Shape(NamedTuple):
    """Size and named parts of a model's parameters: enough to know which parameters are sent, without the model
    itself.
    """

    size: int
    parts: dict[str, slice]


def model_of(charter: Charter, file: Where | None = None) -> Any:
    """Make the model of a charter. `file` is the owner's own model file, for a charter that describes none."""
    network = charter.network
    if not network:
        if file is not None:
            raise ParameterError(f"--model {file}: this group learns linear models, and needs no file for that")
        return Linear()
    if network.hidden is not None:
        if file is not None:
            raise ParameterError(
                f"--model {file}: the charter says what this group learns, {two_layer(charter)!r}: leave out --model"
            )
        return two_layer(charter)
    if file is None:
        raise DataError(
            f"each member of this group brings its model, with the parameters {_named(network.parts)}: give the file "
            "that makes it, --model FILE.py, or model = ... in peer.toml"
        )
    model = load_model(file)
    check_same(charter, model, str(file))
    return model


def two_layer(charter: Charter) -> TwoLayer:
    """Make the network that a charter describes. Columns are the inputs; two classes have one output each."""
    assert charter.network
    assert charter.network.hidden is not None
    return TwoLayer(charter.width, charter.network.hidden, 1 if charter.labels is None else 2)


def load_model(file: Where) -> Any:
    """Run a Python file, and return what its ``model()`` returns. Only the owner of this machine can have named the
    file.
    """
    try:
        scope = runpy.run_path(str(file))
    except OSError as error:
        raise DataError(f"the model {file} cannot be read: {error.strerror or error}") from None
    except Exception as error:
        raise DataError(f"the model {file} cannot be made: {type(error).__name__}: {error}") from error
    if not callable(scope.get("model")):
        raise DataError(
            f"{file} has no function model(): it must define one that returns a ct.models.Torch, or another model"
        )
    try:
        model = scope["model"]()
    except Exception as error:
        raise DataError(f"model() of {file} raised {type(error).__name__}: {error}") from error
    missing = [name for name in MODEL_ATTRIBUTES if not hasattr(model, name)]
    if missing:
        raise DataError(f"model() of {file} returned {model!r:.200}, which is no model: it has no {missing[0]}")
    return model


def described(model: Any, width: int, seed: int) -> dict[str, Any]:
    """Return the fields of a charter's :class:`.charter.Network` for a model that members bring."""
    at, parts = 0, []
    for name, part in model.parts.items():
        if part.start != at or part.stop <= at:
            raise ParameterError(f"the parameter {name!r} of {model!r:.200} does not follow the one before it")
        parts.append((name, part.stop - at))
        at = part.stop
    if at != model.size:
        raise ParameterError(f"{model!r:.200} has {model.size} parameters, and names {at} of them")
    return {"parts": parts, "probe": _answers(model, width, seed)}


def _answers(model: Any, width: int, seed: int) -> list[float]:
    """Return the predictions of the initial model for a few public rows."""
    inputs = getattr(model, "inputs", 0)
    if inputs and inputs != width:
        raise ParameterError(f"{model!r:.200} takes {inputs} features, and the charter has {width} columns")
    rows = np.cos(np.arange(float(PROBE_ROWS * width))).reshape(PROBE_ROWS, width)
    try:
        found = np.asarray(model.predict(model.initial(seed), rows), float)
    except CoterieError:
        raise
    except Exception as error:  # whatever the owner's code raises
        raise ParameterError(f"{model!r:.200} cannot predict rows of {width} columns: {error}") from error
    if (
        found.shape[:1] != (PROBE_ROWS,)
        or found.ndim > 2
        or found.size > 2 * PROBE_ROWS
        or not np.isfinite(found).all()
    ):
        raise ParameterError(
            f"{model!r:.200} predicts an array of shape {found.shape} for {PROBE_ROWS} rows: it must give one finite "
            "number for each, or two for two classes"
        )
    return [float(value) for value in found.ravel()]


def check_same(charter: Charter, model: Any, where: str) -> None:
    """Refuse a model whose parameters or initial predictions differ from the charter's."""
    network = charter.network
    assert network
    try:
        found = described(model, charter.width, network.seed)
    except ParameterError as error:
        raise DataError(f"{where}: {error}") from None
    wanted = [(name, size) for name, size in network.parts]
    if found["parts"] != wanted:
        raise DataError(
            f"{where} makes another model than this group learns: its parameters are {_named(found['parts'])}, and the "
            f"charter has {_named(wanted)}. Ask the admin for the file"
        )
    if len(found["probe"]) != len(network.probe) or not np.allclose(
        found["probe"], network.probe, rtol=RELATIVE_TOLERANCE, atol=ABSOLUTE_TOLERANCE
    ):
        raise DataError(
            f"{where} makes a model with the parameters of the charter, but with other initial predictions: with seed "
            f"{network.seed} it predicts {_few(found['probe'])} for public rows, and the charter "
            f"has {_few(network.probe)}. Ask the admin for the file, and use the same version of what it imports"
        )


def shape_of(charter: Charter) -> Shape:
    """Return sizes and names of the parameters, also of a model that is not on this machine."""
    network = charter.network
    assert network
    if network.hidden is not None:
        model = two_layer(charter)
        return Shape(model.size, model.parts)
    parts, at = {}, 0
    for name, size in network.parts:
        parts[name] = slice(at, at + size)
        at += size
    return Shape(at, parts)


def roles(charter: Charter) -> np.ndarray:
    """Return the role of each parameter: see :meth:`coterie.Problem.differentiable`."""
    network, shape = charter.network, shape_of(charter)
    assert network
    found = roles_of(shape, shape.size, network.personal, network.shared, network.tied)
    if np.all(found == PERSONAL):
        raise ParameterError("network: all parameters are personal, and there is nothing to learn together")
    return found


def margins(model: Any, theta: np.ndarray, X: np.ndarray) -> np.ndarray:
    """Return one number for each row: a prediction, or the logit of the second class against the first."""
    if isinstance(model, Linear):
        return np.asarray(X @ theta)
    if not len(X):
        return np.zeros(0)
    scores = np.asarray(model.predict(theta, X), float)
    if scores.ndim == 1:
        return scores
    return np.asarray(scores[:, 0] if scores.shape[1] == 1 else scores[:, 1] - scores[:, 0])


def _named(parts: Any) -> str:
    told = [f"{name} ({size})" for name, size in parts]
    return ", ".join(told[:20]) + (f" and {len(told) - 20} more" if len(told) > 20 else "")


def _few(numbers: Any) -> str:
    return ", ".join(f"{value:.4g}" for value in numbers)


__all__ = ["check_same", "described", "load_model", "margins", "model_of", "roles", "shape_of", "two_layer"]
