"""Differential privacy that holds for everything an agent sends: mechanisms, accountants, ledger, audit."""

from .accountants import calibrate, composition_bound, delta_of, epsilon_of, exponential_mu, gdp_delta, gdp_mu
from .audit import Audit, audit
from .ledger import Ledger
from .local import perturbed
from .plans import Plan, allocation_weights, make_plan
from .private import Private
from .warm import Claim, WarmStart, warm_start

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
