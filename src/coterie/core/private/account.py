"""An account of releases, and the one rule that spends from it.

The simulator calls the rule compiled, on a row of its state; a :class:`~coterie.privacy.ledger.Ledger` calls it as
plain Python. So what a simulation counts is what a real peer would be refused.
"""

from __future__ import annotations

import numpy as np

from ..compile import inline

__all__ = ["ACCOUNT", "NOTHING", "RELEASES", "SPENT", "debit"]

#: Places in an account, which is an array of float64: releases made, and what they cost.
RELEASES, SPENT = 0, 1
#: The length of an account.
ACCOUNT = 2
#: What :func:`debit` answers when nothing is left.
NOTHING = -1
#: How far above the limit a sum of costs may be, by rounding, as a part of the limit.
SLACK = 1e-12


@inline
def debit(account: np.ndarray, cost: np.ndarray, limit: float) -> int:
    """Spend the cost of the next release, if the plan has one and the limit allows it."""
    k = int(account[RELEASES])
    if k >= cost.shape[0]:
        return NOTHING
    spent = account[SPENT] + cost[k]
    if not (cost[k] >= 0.0 and spent <= limit * (1.0 + SLACK)):  # so that nan is refused
        return NOTHING
    account[RELEASES] = k + 1
    account[SPENT] = spent
    return k
