"""Which neighbour moves a peer's model most."""

from __future__ import annotations

from typing import Any

import numpy as np

from ...core.world import VACANT
from ..node.node import Node


def influences(node: Node) -> dict[int, float]:
    """Shares of the neighbours in what moves the model, by address; nothing where the method cannot tell."""
    part: Any = getattr(node.method, "influence", None)
    if part is None:
        return {}
    peer = node.peer
    found = part(peer.world, peer.own, peer.tie)
    if found is None:
        return {}
    moved = np.where(np.isfinite(found), np.maximum(found, 0.0), 0.0)
    moved[peer.world.peer == VACANT] = 0.0
    total = float(moved.sum())
    if not 0.0 < total < np.inf:
        return {}
    return {int(j): float(m / total) for j, m in zip(peer.world.peer, moved, strict=True) if j != VACANT}
