"""The account of an agent's releases, and the only function that spends from it.

The simulator calls this function compiled, on a row of its state; a :class:`~coterie.privacy.ledger.Ledger` calls it as
plain Python. A simulation and a real peer therefore count and refuse equally.
"""

from __future__ import annotations

import numpy as np

from ..compile import inline

__all__ = ["ACCOUNT", "NOTHING", "RELEASES", "SPENT", "debit"]

#: Entries of an account, an array of float64: number of releases, and sums of their costs.
RELEASES, SPENT = 0, 1
#: Number of entries of an account.
ACCOUNT = 2
#: Result of :func:`debit` if the budget is spent.
NOTHING = -1
#: Tolerance for rounding in a sum of costs, relative to the limit.
ROUNDING_SLACK = 1e-12


@inline
def debit(account: np.ndarray, cost: np.ndarray, limit: float) -> int:
    """Spend the cost of the next release if plan and limit allow it; return its number, or NOTHING."""
    k = int(account[RELEASES])
    if k >= cost.shape[0]:
        return NOTHING
    spent = account[SPENT] + cost[k]
    if not (cost[k] >= 0.0 and spent <= limit * (1.0 + ROUNDING_SLACK)):  # refuses NaN, too
        return NOTHING
    account[RELEASES] = k + 1
    account[SPENT] = spent
    return k
