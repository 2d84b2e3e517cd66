"""Accountants of differential privacy: the guarantee of given noise, and the noise for a given guarantee.

A *guarantee* is a pair (epsilon, delta). *Noise* is a noise multiplier: the scale of the noise, which is the standard
deviation for Gaussian noise and b for Laplace noise, divided by the sensitivity. A step of the exponential mechanism,
``P(r) ~ exp(eps_t score(r) / (2 sensitivity))``, counts as noise ``1 / eps_t``.

============  ==========  ==========================================================================================
mechanism     accountant  computation
============  ==========  ==========================================================================================
gaussian      gdp         exact: T steps are mu-GDP with ``mu^2 = sum 1/noise_t^2`` (Dong, Roth, Su, 2022)
gaussian      pld         numerical, by dp-accounting: a cross-check of gdp
laplace       bound       Kairouz, Oh, Viswanath (2017), Theorem 3.5: :func:`.composition_bound`
laplace       pld         numerical, by dp-accounting: up to 1.5 times less noise than the bound, over about 20 steps
exponential   gdp         each step is mu_t-GDP, :func:`.exponential_mu`: better for many steps
exponential   bound       each step is eps_t-DP, :func:`.composition_bound`: better for few steps
============  ==========  ==========================================================================================

The first accountant of a mechanism is the default. ``pld`` needs ``pip install 'coterie[privacy]'``.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import erfcx, erfinv, log_expit, ndtr, ndtri_exp

from .. import _checks
from ..errors import MissingExtra, ParameterError

Floats = NDArray[np.float64]

#: Smallest and largest epsilon of a guarantee.
MIN_EPSILON, MAX_EPSILON = 1e-12, 1e12
#: Accountants of each mechanism, the default first.
ACCOUNTANTS = {"gaussian": ("gdp", "pld"), "laplace": ("bound", "pld"), "exponential": ("gdp", "bound")}
#: Grid spacing of the privacy loss for dp-accounting, which rounds pessimistically.
PLD_INTERVAL = 1e-4
#: Smallest delta of accountant "pld": the convolutions of privacy loss distributions have rounding errors of 1e-15.
MIN_PLD_DELTA = 1e-12
#: Relative increase of the noise, so that a budget still holds if its costs are added in another order.
NOISE_MARGIN = 1e-12

_TINY = float(np.finfo(np.float64).tiny)
# Gauss-Legendre over (0, 1).
_NODES = 0.5 + 0.5 * np.polynomial.legendre.leggauss(8)[0]
_NODE_WEIGHTS = 0.5 * np.polynomial.legendre.leggauss(8)[1]


# Checks of arguments


def target_epsilon(epsilon: Any) -> float:
    """Check the epsilon of a guarantee: a positive number within wide limits."""
    epsilon = _checks.positive("epsilon", epsilon)
    if not MIN_EPSILON <= epsilon <= MAX_EPSILON:
        raise ParameterError(f"epsilon = {epsilon!r}: expected a number from {MIN_EPSILON:g} to {MAX_EPSILON:g}")
    return epsilon


def accountant_of(mechanism: Any, accountant: Any = None) -> str:
    """Return the name of the accountant for a mechanism: `accountant`, if valid, or the default."""
    able = ACCOUNTANTS[_checks.choice("mechanism", mechanism, ACCOUNTANTS)]
    if accountant is None:
        return able[0]
    known = sorted({name for names in ACCOUNTANTS.values() for name in names})
    if _checks.choice("accountant", accountant, known) not in able:
        raise ParameterError(
            f"accountant={accountant!r} cannot account for mechanism={mechanism!r}: use {' or '.join(able)}"
        )
    return str(accountant)


def _delta(delta: Any, mechanism: str, accountant: str) -> float:
    """Check that the accountant can guarantee `delta`."""
    if accountant != "bound" and isinstance(delta, Real) and delta == 0:
        why = {
            "gaussian": "Gaussian noise cannot give delta 0, only Laplace noise can: mechanism='laplace'",
            "laplace": "delta 0 is for accountant='bound'",
            "exponential": "delta 0 is for accountant='bound'",
        }
        raise ParameterError(f"delta = {delta!r}: expected a number in (0, 1); {why[mechanism]}")
    found = _checks.within("delta", delta, 0, 1, "[)" if accountant == "bound" else "()")
    if accountant == "pld" and found < MIN_PLD_DELTA:
        raise ParameterError(
            f"delta = {delta!r} is lost in the rounding of accountant='pld': take delta >= {MIN_PLD_DELTA:g}, "
            f"or accountant={ACCOUNTANTS[mechanism][0]!r}"
        )
    return found


def _noise(noise: Any, steps: Any) -> Floats:
    """Return one noise multiplier for each step."""
    steps = _checks.integer("steps", steps)
    array = _checks.numbers("noise", noise)
    if array.ndim == 0:
        return np.full(steps, float(array))
    if array.ndim > 1 or array.size == 0:
        raise ParameterError(f"noise has shape {array.shape}: expected a number, or one number for each step")
    if steps not in (1, array.size):
        raise ParameterError(f"steps = {steps!r}: expected the length of noise, {array.size}, or nothing")
    return array


def _total(values: Floats) -> float:
    """Return the sum, rounded once, so that it does not depend on the order of the steps."""
    try:
        return math.fsum(values.tolist())
    except OverflowError:
        return math.inf


def _over(noise: Floats) -> Floats:
    """Return 1 / noise, which is infinite for tiny noise."""
    with np.errstate(over="ignore"):
        return 1.0 / noise


# Gaussian differential privacy


def _gdp_delta(epsilon: Floats, mu: float) -> Floats:
    """Return the profile of mu-GDP, mu > 0, without e^epsilon and without cancellation."""
    # With x, y = eps/mu -+ mu/2 and M(s) = Phi(-s)/phi(s), e^eps phi(y) = phi(x) gives
    #     delta = Phi(-x) - e^eps Phi(-y) = phi(x) (M(x) - M(y)).
    with np.errstate(over="ignore"):
        ratio = epsilon / mu
    left = ratio - 0.5 * mu
    x = np.clip(left, -40.0, 40.0)  # where phi is below 1e-340
    density = np.exp(-0.5 * x * x) / math.sqrt(2.0 * math.pi)
    if mu < 0.5:
        # -M'(s) = 1 - s M(s), integrated over (x, x + mu): exact to rounding with eight nodes.
        s = x[..., None] + mu * _NODES
        delta = density * mu * ((1.0 - s * _mills(s)) * _NODE_WEIGHTS).sum(axis=-1)
    else:
        right = _mills(ratio + 0.5 * mu)
        near = density * (_mills(np.maximum(x, -5.0)) - right)
        # Far to the left M(x) overflows, and Phi(-x) dominates.
        delta = np.where(left < -5.0, ndtr(-left) - density * right, near)
    return np.clip(delta, 0.0, 1.0)


def _mills(s: Floats) -> Floats:
    """Return the Mills ratio, Phi(-s) / phi(s)."""
    return math.sqrt(0.5 * math.pi) * erfcx(s / math.sqrt(2.0))


def gdp_delta(epsilon: ArrayLike, mu: float) -> Any:
    """Return delta of a mu-GDP mechanism at given epsilons: its privacy profile.

    ``delta(eps) = Phi(-eps/mu + mu/2) - e^eps Phi(-eps/mu - mu/2)`` (Dong, Roth, Su, 2022, Corollary 1). A mechanism
    is mu-GDP if telling two neighbouring datasets apart is at least as hard as telling N(0, 1) from N(mu, 1).

    Parameters
    ----------
    epsilon : float or array_like, at least 0
    mu : float, at least 0

    Returns
    -------
    float or ndarray
        Delta, in the shape of ``epsilon``. The relative error is below 1e-10 for all epsilon and mu.

    Examples
    --------
    >>> round(gdp_delta(1.0, 1.0), 6)
    0.126937
    >>> gdp_delta([0.0, 1.0], 0.0)
    array([0., 0.])
    >>> gdp_delta(800.0, 40.0) > 0.4
    True
    """
    at = _checks.numbers("epsilon", epsilon, zero=True)
    mu = _checks.nonnegative("mu", mu)
    delta = _gdp_delta(at, mu) if mu > 0.0 else np.zeros_like(at)
    return float(delta) if at.ndim == 0 else delta


def gdp_mu(epsilon: float, delta: float) -> float:
    """Return the largest mu for which mu-GDP implies (epsilon, delta)-differential privacy.

    Parameters
    ----------
    epsilon : float, above 0
    delta : float in (0, 1)

    Returns
    -------
    float
        mu; ``gdp_delta(epsilon, mu) <= delta`` also holds in floating point.

    Examples
    --------
    >>> round(gdp_mu(1.0, 1e-5), 6)
    0.268051
    >>> gdp_delta(1.0, gdp_mu(1.0, 1e-5)) <= 1e-5
    True
    """
    epsilon, delta = target_epsilon(epsilon), _checks.within("delta", delta, 0, 1, "()")
    at = np.asarray(epsilon)

    def spent(scale: float) -> float:  # decreasing in the scale, 1 / mu
        return float(_gdp_delta(at, 1.0 / scale))

    scale = _smallest(spent, delta, start=1.0 / math.sqrt(2.0 * epsilon) if epsilon > 1.0 else 1.0 / epsilon)
    mu, step = 1.0 / scale, 2.0**-52
    while _gdp_delta(at, mu) > delta:
        mu, step = mu * (1.0 - step), 2.0 * step
    return mu


def _gdp_epsilon(mu: float, delta: float) -> float:
    """Return the smallest epsilon at which the delta of mu-GDP is at most `delta`."""
    if mu == 0.0 or (mu < math.inf and _gdp_delta(np.asarray(0.0), mu) <= delta):
        return 0.0
    # delta(eps) <= Phi(-x) <= exp(-x^2/2)/2 with x = eps/mu - mu/2, so here it is at most delta/2.
    most = mu * (0.5 * mu + math.sqrt(-2.0 * math.log(delta)))
    if most == math.inf:
        return math.inf

    def excess(epsilon: float) -> float:  # the logarithm is nearly quadratic in epsilon, which suits root finding
        return math.log(max(float(_gdp_delta(np.asarray(epsilon), mu)), 5e-324)) - math.log(delta)

    epsilon = _root(excess, 0.0, most, 1e-14)
    step = 2.0**-52
    while _gdp_delta(np.asarray(epsilon), mu) > delta:
        epsilon, step = epsilon * (1.0 + step), 2.0 * step
    return epsilon


def exponential_mu(epsilon: ArrayLike) -> Any:
    """Return the mu for which an exponential mechanism is mu-GDP: ``2 Phi^-1( 1 / (1 + e^(-epsilon/2)) )``.

    The result holds for every mechanism of bounded range epsilon (Dong, Durfee, Rogers, 2020), such as the exponential
    mechanism with ``P(r) ~ exp(epsilon score(r) / (2 sensitivity))``. For small epsilon, mu is 0.627 epsilon.

    Parameters
    ----------
    epsilon : float or array_like, above 0

    Returns
    -------
    float or ndarray

    Notes
    -----
    Take any test of two neighbouring datasets, of power p and size q: (q, 1 - p) is a point of their trade-off curve.
    Bounded range says that the log-likelihood ratio of every outcome lies in [t - epsilon, t] for some t. Hence
    ``p <= e^t q`` and ``1 - p >= e^(t - epsilon) (1 - q)``, and so ``logit(p) - logit(q) <= epsilon``. The curve is
    above that of mu-GDP if ``Phi^-1(p) - Phi^-1(q) <= mu`` at all of its points.

    How large can that be? Write ``x = Phi^-1(p)``, ``y = Phi^-1(q)`` and ``L(x) = logit(Phi(x))``, and suppose the
    worst, ``L(x) - L(y) = epsilon``. There ``dx/dy = L'(y) / L'(x)``, where ``L' = phi / (Phi (1 - Phi))`` increases
    with ``|x|``. So ``x - y`` grows with y while ``|y| > |x|`` and falls when ``|y| < |x|``: it is largest at
    ``y = -x``, where ``logit(p) = epsilon / 2``. A mechanism of two outcomes with that p and ``q = 1 - p`` reaches it.

    Examples
    --------
    >>> round(exponential_mu(1.0), 6)
    0.623893
    >>> exponential_mu([0.01, 0.1]).round(6)
    array([0.006267, 0.062663])
    """
    at = _checks.numbers("epsilon", epsilon)
    mu = _exponential_mu(at)
    return float(mu) if at.ndim == 0 else mu


def _exponential_mu(epsilon: Floats) -> Floats:
    # Phi^-1(1/2 + tanh(eps/4)/2) = sqrt(2) erfinv(tanh(eps/4)) is accurate for small eps, the other form for large eps.
    small = 2.0 * math.sqrt(2.0) * erfinv(np.tanh(0.25 * np.minimum(epsilon, 8.0)))
    return np.where(epsilon < 8.0, small, -2.0 * ndtri_exp(log_expit(-0.5 * np.maximum(epsilon, 8.0))))


def _total_mu(noise: Floats, mechanism: str) -> float:
    """Return mu of the composition of all steps, the root of the sum of squares."""
    step = _over(noise)
    return math.hypot(*(_exponential_mu(step) if mechanism == "exponential" else step))


# Laplace: the bound of the paper


def composition_bound(epsilons: ArrayLike, delta: float) -> float:
    """Return epsilon of the composition of epsilon_t-differentially private steps, by a closed form.

    ``min{ S1, A + sqrt(2 S2 ln(e + sqrt(S2)/delta)), A + sqrt(2 S2 ln(1/delta)) }`` with ``S1 = sum eps_t``,
    ``S2 = sum eps_t^2``, ``A = sum eps_t tanh(eps_t/2)``: Kairouz, Oh, Viswanath (2017), Theorem 3.5. Theorem 1 of
    Bellet et al. (2018) prints the sums outside the roots, which is not the theorem.

    Parameters
    ----------
    epsilons : float or (T,) array_like, above 0
    delta : float in [0, 1)
        At delta 0, the bound is S1.

    Returns
    -------
    float

    Examples
    --------
    >>> round(composition_bound([0.03353] * 100, 0.0067379), 3)
    1.0
    >>> composition_bound([0.25, 0.5], 0.0)
    0.75
    """
    steps = np.atleast_1d(_checks.numbers("epsilons", epsilons))
    if steps.ndim > 1 or steps.size == 0:
        raise ParameterError(f"epsilons has shape {steps.shape}: expected a number, or one number for each step")
    return _bound_epsilon(steps, _checks.within("delta", delta, 0, 1, "[)"))


def _sums(epsilons: Floats) -> tuple[float, float, float]:
    """Return S1, S2 and A of the bound."""
    with np.errstate(over="ignore"):
        return _total(epsilons), _total(epsilons * epsilons), _total(epsilons * np.tanh(0.5 * epsilons))


def _bound_epsilon(epsilons: Floats, delta: float) -> float:
    s1, s2, a = _sums(epsilons)
    if delta == 0.0:
        return s1
    second = a + math.sqrt(2.0 * s2 * math.log(math.e + math.sqrt(s2) / delta))
    third = a + math.sqrt(-2.0 * s2 * math.log(delta))
    return min(s1, second, third)


def _bound_delta(at: Floats, epsilons: Floats) -> Floats:
    """Return the smallest delta for which the bound is at most `at`, by solving each of its three terms for delta."""
    s1, s2, a = _sums(epsilons)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        q = np.maximum(at - a, 0.0) ** 2 / (2.0 * s2)
        second = np.where(q > 1.0, math.sqrt(s2) * np.exp(-q) / -np.expm1(1.0 - q), 1.0)
    third = np.exp(-q)
    return np.where(at >= s1, 0.0, np.minimum(np.minimum(second, third), 1.0))


# Privacy loss distributions, by dp-accounting


def _pld(noise: Floats, mechanism: str) -> Any:
    """Return the privacy loss distribution of all steps, rounded pessimistically."""
    try:
        from dp_accounting.pld import privacy_loss_distribution as pld  # type: ignore[import-untyped]
    except ImportError as error:
        raise MissingExtra("accountant='pld' needs dp-accounting: pip install 'coterie[privacy]'") from error
    make = {"gaussian": pld.from_gaussian_mechanism, "laplace": pld.from_laplace_mechanism}[mechanism]
    values, counts = np.unique(noise, return_counts=True)
    parts = [make(float(v), value_discretization_interval=PLD_INTERVAL) for v in values]
    parts = [part.self_compose(int(c)) if c > 1 else part for part, c in zip(parts, counts, strict=True)]
    while len(parts) > 1:  # in pairs, so that long distributions are only convolved at the end
        pairs = zip(parts[::2], parts[1::2], strict=False)
        parts = [one.compose(other) for one, other in pairs] + parts[len(parts) // 2 * 2 :]
    return parts[0]


def _pld_epsilon(noise: Floats, delta: float, mechanism: str) -> float:
    epsilon = float(_pld(noise, mechanism).get_epsilon_for_delta(delta))
    if epsilon == math.inf:  # each convolution of different steps truncates 1e-15 of the tail
        raise ParameterError(f"delta = {delta!r} is lost in the rounding of accountant='pld' over {noise.size} steps")
    return epsilon


def _pld_delta(at: Floats, noise: Floats, mechanism: str) -> Floats:
    # dp-accounting needs sorted epsilons, and its e^epsilon overflows above 709; delta at a smaller epsilon is an upper
    # bound.
    places, inverse = np.unique(np.minimum(at, 700.0).ravel(), return_inverse=True)
    delta = np.asarray(_pld(noise, mechanism).get_delta_for_epsilon(places))
    return np.clip(delta, 0.0, 1.0)[inverse].reshape(at.shape)


# From noise to a guarantee, and back


def _epsilon_of(noise: Floats, delta: float, mechanism: str, accountant: str) -> float:
    if accountant == "gdp":
        return _gdp_epsilon(_total_mu(noise, mechanism), delta)
    if accountant == "bound":
        return _bound_epsilon(_over(noise), delta)
    return _pld_epsilon(noise, delta, mechanism)


def epsilon_of(
    noise: ArrayLike,
    delta: float,
    steps: int = 1,
    mechanism: str = "gaussian",
    accountant: str | None = None,
) -> float:
    """Return epsilon of a number of steps with given noise, at a given delta.

    Parameters
    ----------
    noise : float or (steps,) array_like, above 0
        Noise multiplier: one number for all steps, or one for each step.
    delta : float in (0, 1)
        Laplace noise with accountant "bound" also allows 0.
    steps : int
        Number of steps; may be omitted for an array of noise.
    mechanism : "gaussian", "laplace" or "exponential"
    accountant : "gdp", "bound" or "pld", optional
        See the table at the top of this module.

    Returns
    -------
    float
        The smallest epsilon that the accountant can prove; 0.0 if delta alone is enough.

    Notes
    -----
    The gdp accountant also holds for steps chosen adaptively, given the published values. For an exponential mechanism
    it is an upper bound, which is tight for many steps; for a single step, epsilon_t itself is smaller.

    Examples
    --------
    >>> round(epsilon_of(8.342139, 1e-5, steps=5), 4)
    1.0
    >>> epsilon_of([4.0, 2.0], 0.0, mechanism="laplace")
    0.75
    >>> epsilon_of(100.0, 0.5)
    0.0
    """
    name = accountant_of(mechanism, accountant)
    return _epsilon_of(_noise(noise, steps), _delta(delta, mechanism, name), mechanism, name)


def delta_of(
    epsilon: ArrayLike,
    noise: ArrayLike,
    steps: int = 1,
    mechanism: str = "gaussian",
    accountant: str | None = None,
) -> Any:
    """Return delta of a number of steps with given noise, at given epsilons: their privacy profile.

    Parameters
    ----------
    epsilon : float or array_like, at least 0
    noise, steps, mechanism, accountant
        As in :func:`epsilon_of`.

    Returns
    -------
    float or ndarray
        Delta, in the shape of ``epsilon``. With accountant "bound", the smallest delta for which the bound is at most
        epsilon: 0 for epsilon >= S1, and 1, which guarantees nothing, for epsilon < A.

    Examples
    --------
    >>> round(delta_of(1.0, 1.0), 6)
    0.126937
    >>> delta_of([0.5, 0.75, 1.0], [4.0, 2.0], mechanism="laplace").round(3)
    array([0.825, 0.   , 0.   ])
    """
    name = accountant_of(mechanism, accountant)
    at = _checks.numbers("epsilon", epsilon, zero=True)
    array = _noise(noise, steps)
    if name == "gdp":
        mu = _total_mu(array, mechanism)
        delta = _gdp_delta(at, mu) if mu < math.inf else np.ones_like(at)
    elif name == "bound":
        delta = _bound_delta(at, _over(array))
    else:
        delta = _pld_delta(at, array, mechanism)
    return float(delta) if at.ndim == 0 else delta


def _root(function: Callable[[float], float], low: float, high: float, precision: float) -> float:
    """Return the root of a function between two numbers at which its signs differ."""
    from scipy.optimize import brentq  # not above: a large import that a peer with a plan does not need

    return float(brentq(function, low, high, xtol=_TINY, rtol=precision, maxiter=1000))


def _smallest(spent: Callable[[float], float], limit: float, start: float) -> float:
    """Return the smallest argument at which a decreasing function is at most `limit`; a near `start` saves time."""
    spent = cache(spent)
    low = high = start
    if spent(start) > limit:
        while spent(high := 2.0 * high) > limit:
            low = high
    else:
        while spent(low := 0.5 * low) <= limit:
            high = low
    return _root(lambda k: spent(k) - limit, low, high, 1e-13)


def _scale(epsilon: float, delta: float, weights: Floats, mechanism: str, accountant: str) -> float:
    """Return approximately the smallest k for which noise k / weights gives the guarantee."""
    if accountant == "gdp":
        limit, length = gdp_mu(epsilon, delta), math.hypot(*weights)
        if mechanism == "gaussian":  # sqrt(sum (w_t / k)^2) = mu, solved
            return length / limit
        start = 0.627 * length / limit
        return _smallest(lambda k: _total_mu(k / weights, mechanism), limit, start)
    if accountant == "bound":  # the start has S1 = epsilon, which is sufficient
        return _smallest(lambda k: _bound_epsilon(weights / k, delta), epsilon, _total(weights) / epsilon)
    # Evaluations are slow, so the search starts from the closed form, which is near.
    near = _scale(epsilon, delta, weights, mechanism, ACCOUNTANTS[mechanism][0])
    return _smallest(lambda k: _pld_epsilon(k / weights, delta, mechanism), epsilon, near)


def calibrate(
    epsilon: float,
    delta: float,
    steps: int = 1,
    mechanism: str = "gaussian",
    accountant: str | None = None,
    weights: ArrayLike | None = None,
) -> Any:
    """Return the smallest noise that gives a guarantee: the inverse of :func:`epsilon_of`.

    Parameters
    ----------
    epsilon : float, above 0
    delta : float in (0, 1)
        Laplace noise with accountant "bound" also allows 0.
    steps : int
        Number of steps.
    mechanism : "gaussian", "laplace" or "exponential"
    accountant : "gdp", "bound" or "pld", optional
        See the table at the top of this module. With "pld" the guarantee only holds for this schedule of noise, fixed
        before the first step: the noise must not be changed later, not even depending on published values.
    weights : (steps,) array_like, above 0, optional
        Share of each step in the budget: noise_t is k / weights_t, with the smallest possible k. See
        :func:`coterie.privacy.allocation_weights`.

    Returns
    -------
    float or (steps,) ndarray
        Noise multiplier: one number for all steps, or, with weights, one for each step. Rounding is pessimistic:
        ``epsilon_of(calibrate(epsilon, delta, ...), delta, ...) <= epsilon`` holds in floating point.

    Examples
    --------
    >>> round(calibrate(1.0, 1e-5, steps=5), 5)
    8.34195
    >>> round(1.0 / calibrate(1.0, 0.006737947, steps=100, mechanism="laplace"), 5)
    0.03353
    >>> calibrate(1.0, 0.0, steps=2, mechanism="laplace", weights=[1.0, 3.0]).round(6)
    array([4.      , 1.333333])
    """
    name = accountant_of(mechanism, accountant)
    epsilon, delta, steps = target_epsilon(epsilon), _delta(delta, mechanism, name), _checks.integer("steps", steps)
    shares = np.ones(steps) if weights is None else _checks.numbers("weights", weights)
    if shares.shape != (steps,):
        raise ParameterError(f"weights has shape {shares.shape}: expected one number for each of steps={steps}")
    k, step = _scale(epsilon, delta, shares, mechanism, name) * (1.0 + NOISE_MARGIN), NOISE_MARGIN
    while _epsilon_of(k / shares, delta, mechanism, name) > epsilon:
        k, step = k * (1.0 + step), 2.0 * step
    return k if weights is None else k / shares
