"""Translate the parameter ``coupling`` into the papers' mu."""

from __future__ import annotations

from .._checks import positive

#: Objectives whose mu is the weight of the smoothness term. In all others mu is the weight of the agents' own losses.
MU_IS_AGREEMENT = ("boosting",)


def mu_of(coupling: float, objective: str) -> float:
    """Return mu: ``coupling`` where mu weighs the smoothness term, ``1 / coupling`` where mu weighs the losses."""
    coupling = positive("coupling", coupling)
    return coupling if objective in MU_IS_AGREEMENT else 1.0 / coupling
