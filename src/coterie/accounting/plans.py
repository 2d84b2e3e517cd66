"""Plans: a privacy guarantee, and the noise of every step, fixed before the first step."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from .. import _checks
from ..errors import ParameterError
from .accountants import (
    ACCOUNTANTS,
    Floats,
    accountant_of,
    calibrate,
    delta_of,
    epsilon_of,
    exponential_mu,
    gdp_mu,
    target_epsilon,
)

#: Names of the ways to share a budget over the steps.
ALLOCATIONS = ("equal", "decreasing", "as-printed")
#: Relative tolerance of the check of a guarantee, for rounding in files and on other machines.
GUARANTEE_TOLERANCE = 1e-9


def allocation_weights(
    steps: int,
    allocation: str | ArrayLike = "equal",
    rate: float = 0.9,
    mechanism: str = "gaussian",
) -> Floats:
    """Return the share of each step in a privacy budget.

    The noise of step t increases the final objective in proportion to ``rate^(T-1-t)``, so late noise has the largest
    effect, and "decreasing" noise is optimal. For Laplace noise and the exponential mechanism, eps_t is proportional to
    ``rate^((T-1-t)/3)``, which minimises ``sum_t rate^(T-1-t) / eps_t^2`` for a given sum of eps_t: Proposition 2 of
    Bellet et al. (2018), corrected. For Gaussian noise, mu_t is proportional to ``rate^((T-1-t)/4)``, which minimises
    ``sum_t rate^(T-1-t) / mu_t^2`` for a given sum of mu_t^2.

    Parameters
    ----------
    steps : int
        T, the number of steps.
    allocation : "equal", "decreasing", "as-printed", or (steps,) array_like, above 0
        "as-printed" is ``rate^(t/3)`` (Gaussian: ``rate^(t/4)``), the paper's formula, with increasing noise, to
        reproduce the paper. Numbers are used as the shares.
    rate : float in (0, 1]
        Factor by which one wake of an agent reduces the distance to the optimum: C of the paper, for the agent's own
        wakes. With 1, all shares are equal.
    mechanism : "gaussian", "laplace" or "exponential"

    Returns
    -------
    (steps,) ndarray
        Weights with mean 1: of mu_t for Gaussian noise, of eps_t for the other mechanisms. The noise of step t is
        proportional to 1 / weight.

    Examples
    --------
    >>> allocation_weights(3, "decreasing", rate=0.5).round(3)
    array([0.833, 0.99 , 1.177])
    >>> allocation_weights(3, [1, 2, 3])
    array([0.5, 1. , 1.5])
    """
    accountant_of(mechanism)
    steps = _checks.integer("steps", steps)
    rate = _checks.within("rate", rate, 0, 1, "(]")
    if isinstance(allocation, str):
        _checks.choice("allocation", allocation, ALLOCATIONS)
        # Erratum 5: the later, the more budget and the less noise.
        left = np.arange(steps)[::-1] / (4.0 if mechanism == "gaussian" else 3.0)
        if allocation == "as-printed":
            left = left[::-1]
        shares = np.ones(steps) if allocation == "equal" else rate**left
        if shares.min() < np.finfo(np.float64).tiny:
            raise ParameterError(f"rate = {rate!r} leaves some of steps={steps} without any budget: take a larger rate")
    else:
        shares = _checks.numbers("allocation", allocation)
        if shares.shape != (steps,):
            raise ParameterError(f"allocation has shape {shares.shape}: expected one share for each of steps={steps}")
    shares = shares / shares.max()
    return shares / shares.mean()


#: Names of the fields of a plan.
PLAN_FIELDS = ("mechanism", "epsilon", "delta", "accountant", "noise")


@dataclass(frozen=True, eq=False, repr=False)
class Plan:
    """A privacy guarantee and the noise of each step; the guarantee is checked when the plan is made.

    Parameters
    ----------
    mechanism : "gaussian", "laplace" or "exponential"
    epsilon : float, above 0
    delta : float in (0, 1)
        Laplace noise with accountant "bound" also allows 0.
    accountant : "gdp", "bound" or "pld"
        An accountant for the mechanism: see :mod:`coterie.accounting.accountants`.
    noise : (T,) array_like, above 0
        Noise multiplier of each step, scale of the noise / sensitivity; stored as a read-only array.

    Raises
    ------
    ParameterError
        If the noise does not give the guarantee; the message contains the epsilon of the noise.

    Examples
    --------
    >>> plan = make_plan(1.0, 1e-5, steps=5)
    >>> plan
    Plan(gaussian, epsilon=1, delta=1e-05, steps=5, noise 8.34)
    >>> round(plan.spent(2), 3)
    0.606
    >>> Plan("gaussian", 1.0, 1e-5, "gdp", [2.0])
    Traceback (most recent call last):
    ...
    coterie.errors.ParameterError: epsilon = 1.0 is not kept by this noise, which gives epsilon 1.99... at delta=1e-05
    """

    mechanism: str
    epsilon: float
    delta: float
    accountant: str
    noise: Floats

    def __post_init__(self) -> None:
        set_ = object.__setattr__
        accountant_of(self.mechanism, self.accountant)
        if self.accountant is None:  # a plan must name its accountant
            raise ParameterError(f"accountant = None: expected one of {', '.join(ACCOUNTANTS[self.mechanism])}")
        set_(self, "epsilon", target_epsilon(self.epsilon))
        noise = _checks.numbers("noise", self.noise)
        if noise.ndim != 1 or noise.size == 0:
            raise ParameterError(f"noise has shape {noise.shape}: expected one number for each step")
        noise.flags.writeable = False
        set_(self, "noise", noise)
        given = epsilon_of(noise, self.delta, mechanism=self.mechanism, accountant=self.accountant)
        set_(self, "delta", float(self.delta) + 0.0)  # no -0.0, which is equal to 0.0 and has another digest
        if given > self.epsilon * (1.0 + GUARANTEE_TOLERANCE):
            raise ParameterError(
                f"epsilon = {self.epsilon!r} is not kept by this noise, which gives epsilon {given:.12g} "
                f"at delta={self.delta!r}"
            )

    @property
    def steps(self) -> int:
        """Number of releases of the plan."""
        return int(self.noise.size)

    @property
    def cost(self) -> Floats:
        """Cost of each step, (T,): eps_t for Laplace noise and for accountant "bound", otherwise mu_t^2."""
        per_step = 1.0 / self.noise
        if self.accountant == "bound" or self.mechanism == "laplace":
            return per_step
        return (exponential_mu(per_step) if self.mechanism == "exponential" else per_step) ** 2

    @cached_property
    def limit(self) -> float:
        """Largest sum of the costs: mu^2 of the guarantee, or the sum of all eps_t if costs are eps_t.

        The limit is at least the sum of the costs of the plan, added in order.
        """
        planned = float(np.cumsum(self.cost)[-1])  # in the order in which a ledger adds them
        additive = self.accountant == "gdp" or self.mechanism == "gaussian"
        return max(planned, gdp_mu(self.epsilon, self.delta) ** 2) if additive else planned

    def spent(self, releases: int) -> float:
        """Return epsilon of the first `releases` releases, at the plan's delta."""
        if _checks.integer("releases", releases, least=0) > self.steps:
            raise ParameterError(f"releases = {releases!r}: expected at most the steps of the plan, {self.steps}")
        if releases == 0:
            return 0.0
        return epsilon_of(self.noise[:releases], self.delta, mechanism=self.mechanism, accountant=self.accountant)

    def profile(self, epsilons: ArrayLike) -> Any:
        """Return delta of the whole plan at other epsilons, the claims that an audit tests."""
        return delta_of(epsilons, self.noise, mechanism=self.mechanism, accountant=self.accountant)

    def describe(self) -> dict[str, Any]:
        """Return the plan as plain values, for a json file; :meth:`of` restores the plan exactly."""
        return {name: getattr(self, name) for name in PLAN_FIELDS} | {"noise": self.noise.tolist()}

    @classmethod
    def of(cls, described: Mapping[str, Any]) -> Plan:
        """Return the plan of a result of :meth:`describe`, checked again."""
        if not isinstance(described, Mapping) or set(described) != set(PLAN_FIELDS):
            raise ParameterError(f"described = {described!r}: expected {', '.join(PLAN_FIELDS)}, and nothing else")
        return cls(**described)

    @property
    def digest(self) -> str:
        """Hexadecimal SHA-256 of the plan's canonical json; two plans are equal if and only if their digests are."""
        text = json.dumps(self.describe(), sort_keys=True, separators=(",", ":"), allow_nan=False)
        return hashlib.sha256(text.encode()).hexdigest()

    def __eq__(self, other: object) -> bool:
        return self.describe() == other.describe() if isinstance(other, Plan) else NotImplemented

    def __hash__(self) -> int:
        return hash((self.mechanism, self.epsilon, self.delta, self.accountant, self.noise.tobytes()))

    def __reduce__(self) -> tuple[Any, ...]:
        # Calls the constructor, so that a plan from a pickle is checked and read-only.
        return type(self), tuple(getattr(self, name) for name in PLAN_FIELDS)

    def __repr__(self) -> str:
        low, high = f"{self.noise.min():.3g}", f"{self.noise.max():.3g}"
        noise = low if low == high else f"{low} to {high}"
        by = "" if self.accountant == ACCOUNTANTS[self.mechanism][0] else f" by {self.accountant}"
        promise = f"epsilon={self.epsilon:g}, delta={self.delta:g}"
        return f"Plan({self.mechanism}{by}, {promise}, steps={self.steps}, noise {noise})"


def make_plan(
    epsilon: float,
    delta: float,
    steps: int,
    mechanism: str = "gaussian",
    accountant: str | None = None,
    allocation: str | ArrayLike = "equal",
    rate: float = 0.9,
) -> Plan:
    """Return the plan with the least noise that gives a guarantee for a number of releases.

    Parameters
    ----------
    epsilon : float, above 0
    delta : float in (0, 1)
        Laplace noise with accountant "bound" also allows 0.
    steps : int
        Number of releases of one agent.
    mechanism : "gaussian", "laplace" or "exponential"
    accountant : "gdp", "bound" or "pld", optional
        See :mod:`coterie.accounting.accountants`. Default for the exponential mechanism: whichever needs less noise.
    allocation, rate
        Shares of the steps in the budget: see :func:`allocation_weights`.

    Returns
    -------
    Plan

    Examples
    --------
    >>> make_plan(1.0, 1e-5, steps=10, allocation="decreasing")
    Plan(gaussian, epsilon=1, delta=1e-05, steps=10, noise 10.5 to 13.4)
    """
    weights = allocation_weights(steps, allocation, rate, mechanism)
    if accountant is None and mechanism == "exponential":
        # Which accountant needs less noise depends on the number of steps.
        plans = [make_plan(epsilon, delta, steps, mechanism, name, weights) for name in ACCOUNTANTS[mechanism]]
        return min(plans, key=lambda plan: float(plan.noise.max()))
    noise = calibrate(epsilon, delta, steps, mechanism, accountant, weights)
    return Plan(mechanism, epsilon, delta, accountant_of(mechanism, accountant), noise)
