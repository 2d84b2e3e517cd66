"""What noise costs, and how much noise a guarantee needs: accountants of differential privacy.

A *guarantee* is a pair (epsilon, delta). *Noise* is a noise multiplier, the scale of the noise over the sensitivity of
what it hides: the standard deviation of Gaussian noise, b of Laplace noise. A step of the exponential mechanism,
``P(r) ~ exp(eps_t score(r) / (2 sensitivity))``, counts as noise ``1 / eps_t``.

============  ==========  ==========================================================================================
mechanism     accountant  what it does
============  ==========  ==========================================================================================
gaussian      gdp         exact: T steps are mu-GDP with ``mu^2 = sum 1/noise_t^2`` (Dong, Roth, Su, 2022)
gaussian      pld         the same numerically, by dp-accounting: a cross-check
laplace       bound       Kairouz, Oh, Viswanath (2017), Theorem 3.5: :func:`.composition_bound`
laplace       pld         numerical, by dp-accounting: up to 1.5 times less noise than the bound, over 20 steps or so
exponential   gdp         each step is mu_t-GDP, :func:`.exponential_mu`: better over many steps
exponential   bound       each step is eps_t-DP, :func:`.composition_bound`: better over few
============  ==========  ==========================================================================================

The first accountant of a mechanism is its default. Those called ``pld`` need ``pip install 'coterie[privacy]'``.
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

#: The least and the largest epsilon that may be guaranteed.
LEAST, MOST = 1e-12, 1e12
#: Accountants of each mechanism, the default first.
ACCOUNTANTS = {"gaussian": ("gdp", "pld"), "laplace": ("bound", "pld"), "exponential": ("gdp", "bound")}
#: Grid of the privacy loss for dp-accounting, which rounds to the pessimistic side.
INTERVAL = 1e-4
#: The convolutions of a privacy loss distribution round at about 1e-15; a smaller delta than this is lost in that.
LEAST_PLD_DELTA = 1e-12
#: Noise is made larger by this much, so that a budget still holds when its costs are added up in another order.
MARGIN = 1e-12

_TINY = float(np.finfo(np.float64).tiny)
# Gauss-Legendre over (0, 1).
_NODES = 0.5 + 0.5 * np.polynomial.legendre.leggauss(8)[0]
_NODE_WEIGHTS = 0.5 * np.polynomial.legendre.leggauss(8)[1]


# What is accepted


def target_epsilon(epsilon: Any) -> float:
    """An epsilon to guarantee: a positive number, and no absurd one."""
    epsilon = _checks.positive("epsilon", epsilon)
    if not LEAST <= epsilon <= MOST:
        raise ParameterError(f"epsilon = {epsilon!r}: expected a number from {LEAST:g} to {MOST:g}")
    return epsilon


def accountant_of(mechanism: Any, accountant: Any = None) -> str:
    """The name of the accountant of a mechanism: the one asked for, if it can, or the default."""
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
    """A delta that the accountant can guarantee."""
    if accountant != "bound" and isinstance(delta, Real) and delta == 0:
        why = {
            "gaussian": "Gaussian noise cannot give delta 0, only Laplace noise can: mechanism='laplace'",
            "laplace": "delta 0 is for accountant='bound'",
            "exponential": "delta 0 is for accountant='bound'",
        }
        raise ParameterError(f"delta = {delta!r}: expected a number in (0, 1); {why[mechanism]}")
    found = _checks.within("delta", delta, 0, 1, "[)" if accountant == "bound" else "()")
    if accountant == "pld" and found < LEAST_PLD_DELTA:
        raise ParameterError(
            f"delta = {delta!r} is lost in the rounding of accountant='pld': take delta >= {LEAST_PLD_DELTA:g}, "
            f"or accountant={ACCOUNTANTS[mechanism][0]!r}"
        )
    return found


def _noise(noise: Any, steps: Any) -> Floats:
    """One noise multiplier for each step."""
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
    """The sum, rounded once: it does not depend on the order of the steps."""
    try:
        return math.fsum(values.tolist())
    except OverflowError:
        return math.inf


def _over(noise: Floats) -> Floats:
    """1 / noise, which is infinite for noise of next to nothing."""
    with np.errstate(over="ignore"):
        return 1.0 / noise


# Gaussian differential privacy


def _gdp_delta(epsilon: Floats, mu: float) -> Floats:
    """The profile of mu-GDP, mu > 0, without e^epsilon and without the difference of two nearly equal numbers."""
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
        # Far to the left M(x) overflows, and Phi(-x) is all that counts.
        delta = np.where(left < -5.0, ndtr(-left) - density * right, near)
    return np.clip(delta, 0.0, 1.0)


def _mills(s: Floats) -> Floats:
    """Phi(-s) / phi(s)."""
    return math.sqrt(0.5 * math.pi) * erfcx(s / math.sqrt(2.0))


def gdp_delta(epsilon: ArrayLike, mu: float) -> Any:
    """Delta of a mu-GDP mechanism at some epsilon: its privacy profile.

    ``delta(eps) = Phi(-eps/mu + mu/2) - e^eps Phi(-eps/mu - mu/2)`` (Dong, Roth, Su, 2022, Corollary 1). A mechanism
    is mu-GDP if telling two neighbouring datasets apart is at least as hard as telling N(0, 1) from N(mu, 1).

    Parameters
    ----------
    epsilon : float or array_like, at least 0
    mu : float, at least 0

    Returns
    -------
    float or ndarray
        Like ``epsilon``. Relative error below 1e-10, however large epsilon and however small or large mu.

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
    """The largest mu with which mu-GDP implies (epsilon, delta)-differential privacy.

    Parameters
    ----------
    epsilon : float, above 0
    delta : float in (0, 1)

    Returns
    -------
    float
        ``gdp_delta(epsilon, mu) <= delta`` holds in floating point too.

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
    """The smallest epsilon at which mu-GDP has at most this delta."""
    if mu == 0.0 or (mu < math.inf and _gdp_delta(np.asarray(0.0), mu) <= delta):
        return 0.0
    # delta(eps) <= Phi(-x) <= exp(-x^2/2)/2 with x = eps/mu - mu/2, so here it is at most delta/2.
    most = mu * (0.5 * mu + math.sqrt(-2.0 * math.log(delta)))
    if most == math.inf:
        return math.inf

    def excess(epsilon: float) -> float:  # logarithms are nearly quadratic in epsilon, easy to find a root of
        return math.log(max(float(_gdp_delta(np.asarray(epsilon), mu)), 5e-324)) - math.log(delta)

    epsilon = _root(excess, 0.0, most, 1e-14)
    step = 2.0**-52
    while _gdp_delta(np.asarray(epsilon), mu) > delta:
        epsilon, step = epsilon * (1.0 + step), 2.0 * step
    return epsilon


def exponential_mu(epsilon: ArrayLike) -> Any:
    """The mu with which an exponential mechanism is mu-GDP: ``2 Phi^-1( 1 / (1 + e^(-epsilon/2)) )``.

    It holds for every mechanism of bounded range epsilon (Dong, Durfee, Rogers, 2020), of which the exponential
    mechanism with ``P(r) ~ exp(epsilon score(r) / (2 sensitivity))`` is one. For small epsilon it is 0.627 epsilon.

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
    # Phi^-1(1/2 + tanh(eps/4)/2) = sqrt(2) erfinv(tanh(eps/4)) keeps its digits when eps is small, the other when it
    # is large.
    small = 2.0 * math.sqrt(2.0) * erfinv(np.tanh(0.25 * np.minimum(epsilon, 8.0)))
    return np.where(epsilon < 8.0, small, -2.0 * ndtri_exp(log_expit(-0.5 * np.maximum(epsilon, 8.0))))


def _total_mu(noise: Floats, mechanism: str) -> float:
    """Mu of all steps together: GDP composes like the lengths of orthogonal vectors."""
    step = _over(noise)
    return math.hypot(*(_exponential_mu(step) if mechanism == "exponential" else step))


# Laplace: the bound of the paper


def composition_bound(epsilons: ArrayLike, delta: float) -> float:
    """Epsilon of several steps, each of them epsilon_t-differentially private, by a closed form.

    ``min{ S1, A + sqrt(2 S2 ln(e + sqrt(S2)/delta)), A + sqrt(2 S2 ln(1/delta)) }`` with ``S1 = sum eps_t``,
    ``S2 = sum eps_t^2``, ``A = sum eps_t tanh(eps_t/2)``: Kairouz, Oh, Viswanath (2017), Theorem 3.5. Theorem 1 of
    Bellet et al. (2018) prints the sums outside the roots, which is not the theorem.

    Parameters
    ----------
    epsilons : float or (T,) array_like, above 0
    delta : float in [0, 1)
        With 0, the bound is S1.

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
    """S1, S2 and A of the bound."""
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
    """The smallest delta with which the bound is at most each of some epsilons: each of its three terms, solved."""
    s1, s2, a = _sums(epsilons)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        q = np.maximum(at - a, 0.0) ** 2 / (2.0 * s2)
        second = np.where(q > 1.0, math.sqrt(s2) * np.exp(-q) / -np.expm1(1.0 - q), 1.0)
    third = np.exp(-q)
    return np.where(at >= s1, 0.0, np.minimum(np.minimum(second, third), 1.0))


# Privacy loss distributions, by dp-accounting


def _pld(noise: Floats, mechanism: str) -> Any:
    """The privacy loss distribution of all steps, rounded to the pessimistic side."""
    try:
        from dp_accounting.pld import privacy_loss_distribution as pld  # type: ignore[import-untyped]
    except ImportError as error:
        raise MissingExtra("accountant='pld' needs dp-accounting: pip install 'coterie[privacy]'") from error
    make = {"gaussian": pld.from_gaussian_mechanism, "laplace": pld.from_laplace_mechanism}[mechanism]
    values, counts = np.unique(noise, return_counts=True)
    parts = [make(float(v), value_discretization_interval=INTERVAL) for v in values]
    parts = [part.self_compose(int(c)) if c > 1 else part for part, c in zip(parts, counts, strict=True)]
    while len(parts) > 1:  # in pairs: long ones meet only at the end
        pairs = zip(parts[::2], parts[1::2], strict=False)
        parts = [one.compose(other) for one, other in pairs] + parts[len(parts) // 2 * 2 :]
    return parts[0]


def _pld_epsilon(noise: Floats, delta: float, mechanism: str) -> float:
    epsilon = float(_pld(noise, mechanism).get_epsilon_for_delta(delta))
    if epsilon == math.inf:  # each convolution of different steps gives up 1e-15 of the tail
        raise ParameterError(f"delta = {delta!r} is lost in the rounding of accountant='pld' over {noise.size} steps")
    return epsilon


def _pld_delta(at: Floats, noise: Floats, mechanism: str) -> Floats:
    # It wants them sorted. Its e^epsilon overflows above 709; a smaller epsilon has a larger delta, which is safe.
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
    """Epsilon of some steps with given noise, at a given delta.

    Parameters
    ----------
    noise : float or (steps,) array_like, above 0
        Noise multiplier: of every step, or one for each.
    delta : float in (0, 1)
        Laplace noise with the bound may have 0 too.
    steps : int
        How many; with an array of noise, its length or nothing.
    mechanism : "gaussian", "laplace" or "exponential"
    accountant : "gdp", "bound" or "pld", optional
        See the table at the top of this module.

    Returns
    -------
    float
        The smallest epsilon that the accountant can vouch for: 0.0 if delta is enough by itself.

    Notes
    -----
    The gdp accountant holds for steps chosen as the run goes, given what was published before. For an exponential
    mechanism it is an upper bound, a good one for many steps: of a single one, epsilon_t itself is the better account.

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
    """Delta of some steps with given noise, at given epsilons: their privacy profile.

    Parameters
    ----------
    epsilon : float or array_like, at least 0
    noise, steps, mechanism, accountant
        As in :func:`epsilon_of`.

    Returns
    -------
    float or ndarray
        Like ``epsilon``. With the bound, the smallest delta for which the bound gives at most this epsilon: 0 from
        S1 on, and 1, which guarantees nothing, below A.

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
    """Where a function that changes its sign between two numbers is zero."""
    from scipy.optimize import brentq  # not above: a peer with a plan needs none of it, and it is large

    return float(brentq(function, low, high, xtol=_TINY, rtol=precision, maxiter=1000))


def _smallest(spent: Callable[[float], float], limit: float, start: float) -> float:
    """Where a decreasing function comes down to a limit, from a start that had better be near."""
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
    """About the smallest k for which noise k / weights gives the guarantee."""
    if accountant == "gdp":
        limit, length = gdp_mu(epsilon, delta), math.hypot(*weights)
        if mechanism == "gaussian":  # sqrt(sum (w_t / k)^2) = mu, solved
            return length / limit
        start = 0.627 * length / limit
        return _smallest(lambda k: _total_mu(k / weights, mechanism), limit, start)
    if accountant == "bound":  # S1 = epsilon to begin with, which is enough
        return _smallest(lambda k: _bound_epsilon(weights / k, delta), epsilon, _total(weights) / epsilon)
    # The closed form is near, and evaluations are dear.
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
    """The smallest noise that gives a guarantee: :func:`epsilon_of`, inverted.

    Parameters
    ----------
    epsilon : float, above 0
    delta : float in (0, 1)
        Laplace noise with the bound may have 0 too.
    steps : int
    mechanism : "gaussian", "laplace" or "exponential"
    accountant : "gdp", "bound" or "pld", optional
        See the table at the top of this module. With "pld" the guarantee holds for this schedule of noise only, fixed
        before the first step; it must not be changed on the way, not even given what was published.
    weights : (steps,) array_like, above 0, optional
        Share of each step in the budget: noise_t = k / weights_t, with the smallest k. See
        :func:`coterie.privacy.allocation_weights`.

    Returns
    -------
    float or (steps,) ndarray
        Noise multiplier: of every step, or one for each if there are weights. It is on the safe side:
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
    k, step = _scale(epsilon, delta, shares, mechanism, name) * (1.0 + MARGIN), MARGIN
    while _epsilon_of(k / shares, delta, mechanism, name) > epsilon:
        k, step = k * (1.0 + step), 2.0 * step
    return k if weights is None else k / shares
