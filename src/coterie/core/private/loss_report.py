"""What a learned graph is told of an agent's loss when that is private: nothing, or what was released."""

from __future__ import annotations

from typing import NamedTuple

from ..rules import rule


@rule
class HiddenLoss(NamedTuple):
    """The graph is learned from published models alone: the loss term is dropped."""

    def reported_loss(self, data, me):
        """Nothing."""
        return 0.0


@rule
class ReleasedLoss(NamedTuple):
    """The noisy loss that went through the ledger, which may be told as often as one likes."""

    def reported_loss(self, data, me):
        """``c_k L_k``: the losses as last released, and the ridge, which holds no data."""
        square = 0.0
        for k in range(me.theta.shape[0]):
            square += me.theta[k] * me.theta[k]
        return data.loss_weight * (max(0.0, me.loss[0]) + data.ridge * square) if data.scaled else 0.0


def loss_report_of(terms):
    """What may be told under these terms."""
    return ReleasedLoss() if terms.loss_fraction > 0.0 else HiddenLoss()
