"""Prediction error, and duality gap against time and rounds, on School, MNIST and MDS, with λ = 1e-6."""

from __future__ import annotations

from .._experiment import Plan
from .common import FILES
from .real import draw, numbers, real_claims, real_plan
from .rounds import w_step as work

__all__ = ["CLAIMS", "DATA", "MINUTES", "draw", "numbers", "plan", "work"]

MINUTES = 2.1
DATA = tuple(FILES.values())
LAM = 1e-6
CLAIMS = real_claims(LAM)


def plan(quick: bool) -> Plan:
    yield from real_plan(quick, LAM)
