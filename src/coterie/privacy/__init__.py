"""Differential privacy that holds for everything an agent sends: mechanisms, accountants, ledger, audit."""

from typing import TYPE_CHECKING

from .._lazy import lazy

if TYPE_CHECKING:
    from .accountants import calibrate, composition_bound, delta_of, epsilon_of, exponential_mu, gdp_delta, gdp_mu
    from .auditing import Audit, audit
    from .ledger import Ledger
    from .local import perturbed
    from .plans import Plan, allocation_weights, make_plan
    from .private import Private
    from .warm import Claim, WarmStart, warm_start
else:
    __getattr__, __dir__ = lazy(
        __name__,
        {
            "accountants": "calibrate composition_bound delta_of epsilon_of exponential_mu gdp_delta gdp_mu",
            "auditing": "Audit audit",
            "ledger": "Ledger",
            "local": "perturbed",
            "plans": "Plan allocation_weights make_plan",
            "private": "Private",
            "warm": "Claim WarmStart warm_start",
        },
    )

__all__ = [
    "Audit",
    "Claim",
    "Ledger",
    "Plan",
    "Private",
    "WarmStart",
    "allocation_weights",
    "audit",
    "calibrate",
    "composition_bound",
    "delta_of",
    "epsilon_of",
    "exponential_mu",
    "gdp_delta",
    "gdp_mu",
    "make_plan",
    "perturbed",
    "warm_start",
]
