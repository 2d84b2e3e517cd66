"""How good a peer's models are on rows of its own, and which of them to use."""

from __future__ import annotations

from typing import Any

import numpy as np

from ..core.losses import pooled_value
from .node import Node


def losses_at(node: Node, theta: np.ndarray) -> np.ndarray:
    """Errors of a model on the rows it is measured with: 0 or 1 for classes, squared ones for numbers."""
    work = node.work
    margins = work.seen @ theta
    if node.charter.labels is not None:
        return (np.where(margins >= 0.0, 1.0, -1.0) != work.seen_labels).astype(float)
    return (margins - work.seen_labels) ** 2


def score_of(node: Node, theta: np.ndarray) -> float | None:
    """Accuracy of a model for classes, root mean squared error for numbers; None without rows."""
    if not node.work.seen_labels.size:
        return None
    mean = float(losses_at(node, theta).mean())
    return 1.0 - mean if node.charter.labels is not None else mean**0.5


def scores(node: Node) -> dict[str, Any]:
    """How good the models are on the peer's own rows: on those kept aside, if there are any."""
    world = node.peer.world
    own = world.rows.values @ node.theta if node.work.features.size else np.zeros(0)
    return {
        "score": score_of(node, node.theta),
        "score_alone": score_of(node, node.work.local),
        "scored_on": "rows kept aside" if node.work.aside else "own rows",
        "objective": float(pooled_value(world.loss, own, world.labels, node.work.row_weight)),
    }


def serve(node: Node, together: np.ndarray) -> tuple[str, np.ndarray]:
    """The model to use: learned together, or trained alone if that is clearly better on rows kept aside.

    Clearly: by more than a standard error. So whatever neighbours send, a peer is no worse off than without them, as
    far as its own rows can tell.
    """
    if node.work.aside and node.work.seen_labels.size > 1:
        worse = losses_at(node, together) - losses_at(node, node.work.local)
        if worse.mean() > worse.std(ddof=1) / worse.size**0.5:
            return "alone", node.work.local
    return "together", together
