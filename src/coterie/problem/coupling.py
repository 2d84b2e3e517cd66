"""``coupling``, the one knob of agreement, in the symbols of the papers."""

from __future__ import annotations

from .._checks import positive

#: Objectives whose mu weighs agreement. In the others it weighs the agents' own losses: the more, the less they agree.
MU_IS_AGREEMENT = ("boosting",)


def mu_of(coupling: float, objective: str) -> float:
    """The mu of an objective: ``coupling`` where mu weighs agreement, ``1 / coupling`` where it weighs losses."""
    coupling = positive("coupling", coupling)
    return coupling if objective in MU_IS_AGREEMENT else 1.0 / coupling
