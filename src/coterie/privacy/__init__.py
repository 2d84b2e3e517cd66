"""Differential privacy of all messages that an agent sends: mechanisms, accountants, ledger, audit."""

import lazy_loader

from ..accounting.accountants import (
    calibrate,
    composition_bound,
    delta_of,
    epsilon_of,
    exponential_mu,
    gdp_delta,
    gdp_mu,
)
from ..accounting.plans import Plan, allocation_weights, make_plan

__getattr__, __dir__, _ = lazy_loader.attach(  # modules that import Numba are imported when first used
    __name__,
    submod_attrs={
        "auditing": ["Audit", "audit"],
        "ledger": ["Ledger"],
        "local": ["perturbed"],
        "private": ["Private"],
        "warm": ["Claim", "WarmStart", "warm_start"],
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
