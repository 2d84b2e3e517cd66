"""Starting a run after an amendment from the model learned in the run before, as far as it still fits.

For objectives with a graph the model itself is taken over: columns are matched by their names, and coefficients are
converted to the new units. For pooling, the agent's contribution to the population's averages is taken over, too. State
of edges is not, because not all neighbours may have moved on yet. A private run begins from zeros, which are public.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np

from ..._files import read_bounded
from ...errors import DataError, StateError
from ..group.amendments import BEGAN, differences
from ..group.charter import Charter, charter_in
from .node import Node
from .state import FileStore, filled, read_record, unpack

#: Fields of a charter that may change while the model stays valid.
FREE = frozenset(
    {
        *("title", "coupling", "ridge", "confidence", "max_rows", "method", "settings", "trim", "learned", "privacy"),
        *("radius", "rate", "message_bytes", "messages_per_second", "objective", "loss"),
    }
)
#: Fields of a charter that change the columns or their units.
COLUMNS = frozenset({"features", "center", "scale"})


def start_from_past(folder: Path, node: Node) -> str | None:
    """Let a node's first run after an amendment begin from the earlier model. Return a text for the log, or None."""
    if (folder / "state").exists() or not (folder / BEGAN).exists():
        return None
    try:
        began = json.loads(read_bounded(folder / BEGAN))
        if began["run"] != node.charter.run:
            return None
        past = folder / "runs" / str(began["from"])
        old = charter_in(past)
        state = FileStore(past / "state").load()
        if state is None:
            return f"this peer had learned nothing in run {old.run}"
        kept = read_record(state, str(past / "state")).arrays
        own, edge = _begin_from(node, old, kept)
    except (DataError, StateError, ValueError, KeyError, TypeError, AttributeError) as error:
        return f"the model of the run before is not used: {error}"
    node.peer.resume(node.peer.arrays, own, edge)
    return f"begins from what was learned in run {old.run}"


def _begin_from(node: Node, old: Charter, kept: dict[str, Any]) -> tuple[Any, Any]:
    """Return the state of a method at its start, with the model learned under another charter."""
    new, method, arrays = node.charter, node.method, node.peer.arrays
    if new.privacy is not None:
        raise DataError("a private run begins from zeros")
    path = next((name for name in kept if re.fullmatch(r"own(\.model)*\.theta", name)), None)
    if path is None:
        raise DataError("there is no model in its state")
    changed = set(differences(old, new))
    theta = _converted(unpack(kept, path)[0], old, new, changed)
    if theta.shape != node.theta.shape:
        raise DataError(f"it has {theta.size} parameters, and models of this run have {node.theta.size}")
    if not np.linalg.norm(theta) <= new.radius:
        raise DataError(f"its norm is greater than {new.radius:g}, the radius of this run")
    own, edge = method.start(arrays, theta[None, :])
    if not method.promises.minimises and not changed & (COLUMNS | {"method", "settings", "loss", "privacy"}):
        own = filled(own, kept, "own")  # pooling
    return own, edge


def _converted(theta: np.ndarray, old: Charter, new: Charter, changed: set[str]) -> np.ndarray:
    """Convert a model to the columns and units of another charter."""
    linear = not {"boosting", "differentiable"} & {old.objective, new.objective}
    others = changed - FREE - (COLUMNS if linear else frozenset())
    if not linear:
        others |= changed & {"objective", "loss"}
    if "boosting" in (old.objective, new.objective):
        others |= changed & {"settings"}
    if others:
        raise DataError(f"the new charter has another {', '.join(sorted(others))}")
    if not changed & COLUMNS:
        return theta
    if theta.size != len(old.features) + old.intercept:
        raise DataError("its columns are made of features in a way that cannot be converted")
    # theta_k (x - c) / s  =  theta_k s' / s (x - c') / s'  +  theta_k (c' - c) / s; a feature that is gone is at c.
    weights, shift = dict.fromkeys(new.features, 0.0), 0.0
    for k, name in enumerate(old.features):
        center, scale = _units(old, k)
        slope = theta[k] / scale
        if name in weights:
            there, unit = _units(new, new.features.index(name))
            weights[name] = slope * unit
            shift += slope * (there - center)
    if not old.intercept:
        if shift:
            raise DataError("it has no intercept to move the centre with")
        return np.array([*weights.values()])
    return np.array([*weights.values(), theta[-1] + shift])


def _units(charter: Charter, k: int) -> tuple[float, float]:
    return (charter.center[k] if charter.center else 0.0), (charter.scale[k] if charter.scale else 1.0)
