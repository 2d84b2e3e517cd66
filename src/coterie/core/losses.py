"""Losses of one example, as functions of its margin ``z = x . theta`` and its label ``y``.

Each loss is a rule with five scalar functions, each defined here and nowhere else:

=============  =======================================================================
``value``      l(z, y), convex in z
``derivative`` l'(z, y); one subgradient where l has a kink
``curvature``  l''(z, y); one element of the generalised second derivative at a kink
``prox``       argmin_v  step * l(v, y) + 1/2 (v - center)^2
``conjugate``  l*(u, y) = sup_z u z - l(z, y), infinite outside its domain
=============  =======================================================================

and what it claims about itself: ``smoothness`` (the largest curvature, infinite at a kink), ``lipschitz`` (the
largest slope), ``domain(label)`` (the interval of slopes, where the conjugate is finite), ``dual_curvature`` (kappa if
the conjugate there is ``u y + kappa u^2 / 2``, else None), and the ``labels`` it accepts.
:func:`coterie.testing.check_loss` checks every claim.
"""

from __future__ import annotations

import math
from numbers import Real
from typing import Any, NamedTuple

from ..errors import ParameterError
from .compile import class_of, overload
from .rules import rule

#: What a loss may say about the labels it accepts.
SIGNS, REALS = "-1 or +1", "real numbers"


def _positive(name):
    """Refuse a nonpositive parameter when the loss is made, before any work starts."""

    def decorate(cls):
        make = cls.__new__

        def checked(cls, *arguments, **named):
            self = make(cls, *arguments, **named)
            value = getattr(self, name)
            if not (isinstance(value, Real) and math.isfinite(value) and value > 0):
                raise ParameterError(f"{cls.__name__}({name}={value!r}): {name} must be a positive number")
            return self._replace(**{name: float(value)})  # a float always: one compiled type for each loss

        cls.__new__ = checked
        return cls

    return decorate


@rule
class Squared(NamedTuple):
    """``l(z, y) = (z - y)^2 / 2``.

    Examples
    --------
    >>> Squared().value(3.0, 1.0)
    2.0
    """

    def value(self, margin, label):
        """``(z - y)^2 / 2``."""
        r = margin - label
        return 0.5 * r * r  # not r ** 2: CPython's power may differ from it in the last bit

    def derivative(self, margin, label):
        """``z - y``."""
        return margin - label

    def curvature(self, margin, label):
        """``1``."""
        return 1.0

    def prox(self, center, step, label):
        """``(center + step y) / (1 + step)``."""
        return (center + step * label) / (1.0 + step)

    def conjugate(self, dual, label):
        """``u^2 / 2 + u y``."""
        return 0.5 * dual * dual + dual * label

    def domain(self, label):
        """The interval of its slopes."""
        return -math.inf, math.inf

    @property
    def dual_curvature(self):
        """Kappa of its conjugate, ``u y + kappa u^2 / 2``."""
        return 1.0

    @property
    def smoothness(self):
        """The largest curvature."""
        return 1.0

    @property
    def lipschitz(self):
        """The largest slope."""
        return math.inf

    @property
    def labels(self):
        """The labels it takes."""
        return REALS


@rule
class Logistic(NamedTuple):
    """``l(z, y) = log(1 + exp(-y z))``, labels -1 and +1.

    Examples
    --------
    >>> round(Logistic().value(0.0, 1.0), 6)
    0.693147
    """

    def value(self, margin, label):
        """``log(1 + exp(-t))`` with ``t = y z``, without overflow."""
        t = label * margin
        return max(-t, 0.0) + math.log1p(math.exp(-abs(t)))

    def derivative(self, margin, label):
        """``-y / (1 + exp(t))``."""
        t = label * margin
        e = math.exp(-abs(t))
        return -label * (e if t > 0.0 else 1.0) / (1.0 + e)

    def curvature(self, margin, label):
        """``exp(t) / (1 + exp(t))^2``."""
        e = math.exp(-abs(margin))
        return e / ((1.0 + e) * (1.0 + e))

    def prox(self, center, step, label):
        """The root in ``t = y v`` of ``g(t) = t - y center - step / (1 + exp(t))``, by safeguarded Newton."""
        base = label * center
        low, high = base, base + step  # g(low) <= 0 <= g(high), because 0 < 1 / (1 + exp(t)) < 1
        t, last = base + 0.5 * step, math.inf
        for _ in range(200):
            e = math.exp(-abs(t))
            g = t - base - step * (e if t > 0.0 else 1.0) / (1.0 + e)
            if abs(g) <= 2e-16 * (abs(t) + abs(base) + step) or not low < t < high:
                break
            if g > 0.0:
                high = t
            else:
                low = t
            newton = t - g / (1.0 + step * e / ((1.0 + e) * (1.0 + e)))
            # Newton alone may run in a circle: halve the bracket wherever it does not halve the residual.
            t = newton if low < newton < high and abs(g) <= 0.5 * last else low + 0.5 * (high - low)
            last = abs(g)
        return label * t

    def conjugate(self, dual, label):
        """``b log b + (1 - b) log(1 - b)`` with ``b = -u y`` in [0, 1]."""
        b = -dual * label
        if b < 0.0 or b > 1.0:
            return math.inf
        first = b * math.log(b) if b > 0.0 else 0.0
        return first + ((1.0 - b) * math.log1p(-b) if b < 1.0 else 0.0)

    def domain(self, label):
        """The interval of its slopes."""
        return min(-label, 0.0), max(-label, 0.0)

    @property
    def dual_curvature(self):
        """Its conjugate is not quadratic."""
        return None

    @property
    def smoothness(self):
        """The largest curvature."""
        return 0.25

    @property
    def lipschitz(self):
        """The largest slope."""
        return 1.0

    @property
    def labels(self):
        """The labels it takes."""
        return SIGNS


@rule
class Hinge(NamedTuple):
    """``l(z, y) = max(0, 1 - y z)``, labels -1 and +1. It has a kink: methods that need a gradient refuse it.

    Examples
    --------
    >>> Hinge().value(0.5, 1.0), Hinge().value(2.0, 1.0)
    (0.5, 0.0)
    """

    def value(self, margin, label):
        """``max(0, 1 - y z)``."""
        return max(0.0, 1.0 - label * margin)

    def derivative(self, margin, label):
        """``-y`` before the kink, 0 after it."""
        return -label if label * margin < 1.0 else 0.0 * label

    def curvature(self, margin, label):
        """``0`` off the kink."""
        return 0.0

    def prox(self, center, step, label):
        """Move by ``step`` towards the margin 1, and not beyond it."""
        t = label * center
        return label * max(t, min(t + step, 1.0))

    def conjugate(self, dual, label):
        """``u y`` for ``u y`` in [-1, 0]."""
        t = dual * label
        return t if -1.0 <= t <= 0.0 else math.inf

    def domain(self, label):
        """The interval of its slopes."""
        return min(-label, 0.0), max(-label, 0.0)

    @property
    def dual_curvature(self):
        """Kappa of its conjugate, ``u y + kappa u^2 / 2``."""
        return 0.0

    @property
    def smoothness(self):
        """The largest curvature."""
        return math.inf

    @property
    def lipschitz(self):
        """The largest slope."""
        return 1.0

    @property
    def labels(self):
        """The labels it takes."""
        return SIGNS


@_positive("gamma")
@rule
class SmoothHinge(NamedTuple):
    """The hinge with its kink rounded over a width ``gamma``, labels -1 and +1.

    With ``t = y z``: 0 for t >= 1, ``(1 - t)^2 / (2 gamma)`` for 1 - gamma <= t <= 1, and ``1 - t - gamma / 2`` below.

    Parameters
    ----------
    gamma : float
        Width of the rounded part; the curvature there is ``1 / gamma``.

    Examples
    --------
    >>> SmoothHinge(1.0).value(0.5, 1.0)
    0.125
    """

    gamma: float = 1.0

    def value(self, margin, label):
        """Zero, quadratic or linear in ``1 - y z``."""
        short = 1.0 - label * margin
        if short <= 0.0:
            return 0.0
        if short < self.gamma:
            return 0.5 * short * short / self.gamma
        return short - 0.5 * self.gamma

    def derivative(self, margin, label):
        """``-y min(1, max(0, 1 - y z) / gamma)``."""
        return -label * min(1.0, max(0.0, 1.0 - label * margin) / self.gamma)

    def curvature(self, margin, label):
        """``1 / gamma`` on the rounded part."""
        return 1.0 / self.gamma if 0.0 < 1.0 - label * margin < self.gamma else 0.0

    def prox(self, center, step, label):
        """Full step below, a shrunk one on the rounded part, none above."""
        t = label * center
        if t >= 1.0:
            return center
        if t + step <= 1.0 - self.gamma:
            return label * (t + step)
        return label * (self.gamma * t + step) / (self.gamma + step)

    def conjugate(self, dual, label):
        """``u y + gamma u^2 / 2`` for ``u y`` in [-1, 0]."""
        t = dual * label
        return t + 0.5 * self.gamma * t * t if -1.0 <= t <= 0.0 else math.inf

    def domain(self, label):
        """The interval of its slopes."""
        return min(-label, 0.0), max(-label, 0.0)

    @property
    def dual_curvature(self):
        """Kappa of its conjugate, ``u y + kappa u^2 / 2``."""
        return self.gamma

    @property
    def smoothness(self):
        """The largest curvature."""
        return 1.0 / self.gamma

    @property
    def lipschitz(self):
        """The largest slope."""
        return 1.0

    @property
    def labels(self):
        """The labels it takes."""
        return SIGNS


@_positive("delta")
@rule
class Huber(NamedTuple):
    """``(z - y)^2 / 2`` for residuals up to ``delta``, linear beyond: outliers pull with a bounded force.

    Parameters
    ----------
    delta : float
        Where the loss turns linear.

    Examples
    --------
    >>> Huber(1.0).value(0.5, 0.0), Huber(1.0).value(3.0, 0.0)
    (0.125, 2.5)
    """

    delta: float = 1.0

    def value(self, margin, label):
        """Quadratic, then linear."""
        r = abs(margin - label)
        if r <= self.delta:
            return 0.5 * r * r
        return self.delta * (r - 0.5 * self.delta)

    def derivative(self, margin, label):
        """The residual, clipped to [-delta, delta]."""
        return min(max(margin - label, -self.delta), self.delta)

    def curvature(self, margin, label):
        """``1`` on the quadratic part."""
        return 1.0 if abs(margin - label) < self.delta else 0.0

    def prox(self, center, step, label):
        """Shrink small residuals, move large ones by ``step delta``."""
        r = center - label
        return center - step * min(max(r / (1.0 + step), -self.delta), self.delta)

    def conjugate(self, dual, label):
        """``u^2 / 2 + u y`` for ``|u| <= delta``."""
        return 0.5 * dual * dual + dual * label if abs(dual) <= self.delta else math.inf

    def domain(self, label):
        """The interval of its slopes."""
        return -self.delta, self.delta

    @property
    def dual_curvature(self):
        """Kappa of its conjugate, ``u y + kappa u^2 / 2``."""
        return 1.0

    @property
    def smoothness(self):
        """The largest curvature."""
        return 1.0

    @property
    def lipschitz(self):
        """The largest slope."""
        return self.delta

    @property
    def labels(self):
        """The labels it takes."""
        return REALS


@rule
class Location(NamedTuple):
    """A loss applied coordinate by coordinate to ``theta - x`` on unlabelled points: mean and field estimation.

    ``f_i(theta)`` sums ``loss(theta_k, x_k)`` over the coordinates k of the points x of agent i. So a point is p
    examples, one for each coordinate, with the unit vectors as features: :class:`coterie.Problem` lays it out that
    way, and nothing else has to know.

    Parameters
    ----------
    loss : Squared or Huber
        A loss of residuals.

    Examples
    --------
    >>> Location(Huber(1.0)).value(3.0, 0.0)
    2.5
    """

    loss: Any = Squared()

    def value(self, margin, label):
        """That of the inner loss."""
        return self.loss.value(margin, label)

    def derivative(self, margin, label):
        """That of the inner loss."""
        return self.loss.derivative(margin, label)

    def curvature(self, margin, label):
        """That of the inner loss."""
        return self.loss.curvature(margin, label)

    def prox(self, center, step, label):
        """That of the inner loss."""
        return self.loss.prox(center, step, label)

    def conjugate(self, dual, label):
        """That of the inner loss."""
        return self.loss.conjugate(dual, label)

    def domain(self, label):
        """That of the inner loss."""
        return self.loss.domain(label)

    @property
    def dual_curvature(self):
        """That of the inner loss."""
        return self.loss.dual_curvature

    @property
    def smoothness(self):
        """The largest curvature."""
        return self.loss.smoothness

    @property
    def lipschitz(self):
        """The largest slope."""
        return self.loss.lipschitz

    @property
    def labels(self):
        """The labels it takes."""
        return REALS


@rule
class LogSumExp(NamedTuple):
    """``log sum_r exp(-y_r z_r)`` over all examples of an agent, labels -1 and +1: l1-Adaboost, DADA (2).

    Not a sum of losses of single examples, so it has two functions of its own: ``pool``, its value, and ``slopes``.
    Its exponential bounds the number of training errors.

    Examples
    --------
    >>> import numpy as np
    >>> round(float(LogSumExp().pool(np.zeros(3), np.ones(3))), 6)  # log 3
    1.098612
    """

    def pool(self, margins, labels):
        """``log sum_r exp(-y_r z_r)``; 0 without examples."""
        top = -math.inf
        for r in range(margins.shape[0]):
            top = max(top, -labels[r] * margins[r])
        if margins.shape[0] == 0:
            return 0.0
        total = 0.0
        for r in range(margins.shape[0]):
            total += math.exp(-labels[r] * margins[r] - top)
        return top + math.log(total)

    def slopes(self, margins, labels, out):
        """``out_r = -y_r eta_r`` with the weights ``eta = softmax(-y z)`` of boosting."""
        level = self.pool(margins, labels)
        for r in range(margins.shape[0]):
            out[r] = -labels[r] * math.exp(-labels[r] * margins[r] - level)

    @property
    def pooled(self):
        """It looks at all examples of an agent together."""
        return True

    @property
    def smoothness(self):
        """The largest curvature, along any example."""
        return 1.0

    @property
    def labels(self):
        """The labels it takes."""
        return SIGNS


def pooled_value(loss, margins, labels, row_weight):
    """f_i without its ridge: ``row_weight`` times the sum of the losses, or what a loss makes of all rows together."""
    if getattr(loss, "pooled", False):
        return loss.pool(margins, labels)
    return _sum_of_values(loss, margins, labels, row_weight)


def pooled_slopes(loss, margins, labels, row_weight, out):
    """``out_r``: derivative of :func:`pooled_value` by the margin of example r."""
    if getattr(loss, "pooled", False):
        loss.slopes(margins, labels, out)
    else:
        _slope_of_each(loss, margins, labels, row_weight, out)


def _sum_of_values(loss, margins, labels, row_weight):
    total = 0.0
    for r in range(margins.shape[0]):
        total += loss.value(margins[r], labels[r])
    return row_weight * total


def _slope_of_each(loss, margins, labels, row_weight, out):
    for r in range(margins.shape[0]):
        out[r] = row_weight * loss.derivative(margins[r], labels[r])


@overload(pooled_value)
def _pooled_value(loss, margins, labels, row_weight):
    if hasattr(class_of(loss), "pool"):
        return lambda loss, margins, labels, row_weight: loss.pool(margins, labels)
    return _sum_of_values


@overload(pooled_slopes)
def _pooled_slopes(loss, margins, labels, row_weight, out):
    if hasattr(class_of(loss), "slopes"):
        return lambda loss, margins, labels, row_weight, out: loss.slopes(margins, labels, out)
    return _slope_of_each


#: What a loss must have.
LOSS_PARTS = (
    *("value", "derivative", "curvature", "prox", "conjugate"),
    *("domain", "dual_curvature", "smoothness", "lipschitz", "labels"),
)

#: Every loss, with the parameters used in documentation and contract tests. Adding one here adds its tests.
LOSSES = {
    "squared": Squared(),
    "logistic": Logistic(),
    "hinge": Hinge(),
    "smooth-hinge": SmoothHinge(),
    "huber": Huber(),
    "location": Location(Squared()),
    "location-huber": Location(Huber()),
}
