"""The loss that an agent with a private method reports to a rule that learns the graph: none, or the released one."""

from __future__ import annotations

from typing import NamedTuple

from ..rules import rule


@rule
class HiddenLoss(NamedTuple):
    """Report no loss: the graph is learned from published models alone."""

    def reported_loss(self, data, me):
        """Return zero."""
        return 0.0


@rule
class ReleasedLoss(NamedTuple):
    """Report the noisy loss that the ledger has released, which may be sent any number of times."""

    def reported_loss(self, data, me):
        """Return ``c_k L_k``: the losses as last released, and the ridge, which contains no data."""
        square = 0.0
        for k in range(me.theta.shape[0]):
            square += me.theta[k] * me.theta[k]
        return data.loss_weight * (max(0.0, me.loss[0]) + data.ridge * square) if data.scaled else 0.0


def loss_report_of(terms):
    """Return the report that these terms allow."""
    return ReleasedLoss() if terms.loss_fraction > 0.0 else HiddenLoss()
