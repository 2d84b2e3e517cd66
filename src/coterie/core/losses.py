"""Losses of one example, as functions of its margin ``z = x . theta`` and its label ``y``.

A loss is one class, decorated with ``@loss``, and named in the list at the end of this file. No other file needs to
know it. It defines five scalar functions:

==============  =======================================================================
``value``       l(z, y), convex in z
``derivative``  l'(z, y); one subgradient where l has a kink
``curvature``   l''(z, y); one element of the generalised second derivative at a kink
``prox``        argmin_v  step * l(v, y) + 1/2 (v - center)^2
``conjugate``   l*(u, y) = sup_z u z - l(z, y), infinite outside its domain
==============  =======================================================================

and declares ``smoothness`` (the largest curvature, infinite at a kink), ``lipschitz`` (the largest slope),
``domain(label)`` (the interval of slopes, where the conjugate is finite), and the ``labels`` that it accepts.
``OPTIONAL`` lists further declarations with their defaults. :func:`coterie.testing.check_loss` checks all of them.

A loss of all examples of an agent together defines ``pool`` and ``slopes`` in place of the five functions.
"""

from __future__ import annotations

import functools
import math
import re
from operator import attrgetter
from typing import Any

from .._checks import named, positive
from ..errors import DataError, DeclarationError, ParameterError
from .compile import class_of, overload
from .exponential import exp_minus
from .rules import NamedTuple, checked, rule

#: Values of ``labels``, the labels that a loss accepts.
SIGNS, REALS = "-1 or +1", "real numbers"
#: Values of ``exact_solver``, the exact solver of a sum of losses: for twice differentiable losses; for losses whose
#: conjugate is quadratic on an interval; for log-sum-exp in l1 balls.
NEWTON, INTERIOR_POINT, LOG_SUM_EXP = "newton", "interior point", "log-sum-exp"
#: Values of ``proximal``, the solver of an agent's own problem: a mean of points, a linear system, or any loss.
MEAN, LEAST_SQUARES, DUAL_ASCENT = "mean", "least squares", "dual ascent"
#: Values of ``likelihood``: the loss is the negative log-likelihood of this distribution, up to scale.
GAUSSIAN, BERNOULLI = "gaussian", "bernoulli"

#: Declarations that every loss needs, and all parts of a loss of single examples, and of a loss of all examples
#: together.
CLAIMS = ("smoothness", "lipschitz", "labels")
LOSS_PARTS = ("value", "derivative", "curvature", "prox", "conjugate", "domain", *CLAIMS)
POOLED_PARTS = ("pool", "slopes", *CLAIMS)


def _usual_name(cls):
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "-", cls.__qualname__.rpartition(".")[2]).lower()


def _usual_solver(cls):
    if cls.pooled:
        return None  # no exact solver is known

    def solver(self):
        bounded = all(map(math.isfinite, self.domain(1.0)))
        return INTERIOR_POINT if bounded and self.dual_curvature is not None else NEWTON

    return property(solver)


#: Optional declarations of a loss, each with a function that returns its default.
OPTIONAL: dict[str, Any] = {
    # name in files, and in commands for losses that are listed below with their default parameters
    "name": _usual_name,
    # names of parameters that must be positive, checked when a loss is created
    "positive": lambda cls: (),
    # whether the loss is one function of all examples of an agent
    "pooled": lambda cls: hasattr(cls, "pool"),
    # whether the loss is for points without labels, where each coordinate is an example
    "unlabelled": lambda cls: False,
    # kappa, if the conjugate is u y + kappa u^2 / 2 on its domain; None otherwise
    "dual_curvature": lambda cls: None,
    # whether the curvature is positive everywhere, so that a sum of enough losses has one minimiser without a ridge
    "strictly_convex": lambda cls: False,
    # GAUSSIAN for (z - y)^2 / 2, BERNOULLI for log(1 + exp(-y z)), None for a loss without a likelihood
    "likelihood": lambda cls: None,
    # NEWTON, INTERIOR_POINT or LOG_SUM_EXP; by default chosen from the conjugate
    "exact_solver": _usual_solver,
    # MEAN or LEAST_SQUARES (both for (z - y)^2 / 2 only), or DUAL_ASCENT
    "proximal": lambda cls: DUAL_ASCENT,
    # reason why no noise can hide a single example in the gradients; None if noise can
    "not_private": lambda cls: None,
}


def loss(cls: Any = None, **declared: Any) -> Any:
    """Turn a NamedTuple class into a loss, a rule with all parts that solvers, methods, files and commands use.

    Parameters
    ----------
    cls : type
        A ``typing.NamedTuple`` with the functions and claims of :mod:`coterie.core.losses`.
    **declared
        Required declarations, and those of ``coterie.core.losses.OPTIONAL``, that the class does not state itself. A
        declaration that depends on a parameter is a property of the class.

    Returns
    -------
    type
        The same class, with defaults for optional declarations that are missing.

    Raises
    ------
    DeclarationError
        If a part is missing or unknown; the message names the part.

    Examples
    --------
    >>> from typing import NamedTuple
    >>> import coterie as ct
    >>> @ct.loss(labels="real numbers", smoothness=float("inf"), lipschitz=1.0)
    ... class Absolute(NamedTuple):
    ...     def value(self, margin, label):
    ...         return abs(margin - label)
    Traceback (most recent call last):
    ...
    coterie.errors.DeclarationError: the loss Absolute has no derivative, curvature, prox, conjugate, domain
    """
    if cls is None:
        return functools.partial(loss, **declared)
    unknown = [part for part in declared if part not in (*CLAIMS, *OPTIONAL)]
    if unknown:
        raise DeclarationError(
            f"a loss declares {', '.join((*CLAIMS, *OPTIONAL))}; {cls.__qualname__} has {unknown[0]}"
        )
    for part, value in declared.items():
        setattr(cls, part, value)
    needed = POOLED_PARTS if hasattr(cls, "pool") else LOSS_PARTS
    missing = [part for part in needed if not hasattr(cls, part)]
    if missing:
        raise DeclarationError(f"the loss {cls.__qualname__} has no {', '.join(missing)}")
    for part, usual in OPTIONAL.items():
        if not hasattr(cls, part) or (part == "name" and part not in vars(cls)):  # a name is not inherited
            setattr(cls, part, usual(cls))
    for part, known in _WORDS.items():
        word = getattr(cls, part)
        if not isinstance(word, property) and word not in known:
            raise DeclarationError(f"the loss {cls.__qualname__} has {part} = {word!r}: it must be one of {known}")
    cls.is_loss = True
    if "positive" in vars(cls):  # always as floats, so that each loss has one compiled type
        checked(**dict.fromkeys(cls.positive, positive))(cls)
    return rule(cls)


_WORDS = {
    "labels": (SIGNS, REALS),
    "likelihood": (None, GAUSSIAN, BERNOULLI),
    "exact_solver": (None, NEWTON, INTERIOR_POINT, LOG_SUM_EXP),
    "proximal": (MEAN, LEAST_SQUARES, DUAL_ASCENT),
}


@loss(
    labels=REALS,
    smoothness=1.0,
    lipschitz=math.inf,
    dual_curvature=1.0,
    strictly_convex=True,
    likelihood=GAUSSIAN,
    proximal=LEAST_SQUARES,
)
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
        return 0.5 * r * r  # not r ** 2, whose last bit may differ in CPython

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
        return -math.inf, math.inf


@loss(labels=SIGNS, smoothness=0.25, lipschitz=1.0, strictly_convex=True, likelihood=BERNOULLI)
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
        e = exp_minus(abs(t))
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
            # Newton's method alone may cycle: halve the bracket whenever a step does not halve the residual.
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
        return min(-label, 0.0), max(-label, 0.0)


@loss(labels=SIGNS, smoothness=math.inf, lipschitz=1.0, dual_curvature=0.0)
class Hinge(NamedTuple):
    """``l(z, y) = max(0, 1 - y z)``, labels -1 and +1. The loss has a kink: methods that need a gradient refuse it.

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
        return min(-label, 0.0), max(-label, 0.0)


@loss(labels=SIGNS, lipschitz=1.0, positive=("gamma",))
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
        """A full step below the rounded part, a smaller step on the rounded part, no step above."""
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
        return min(-label, 0.0), max(-label, 0.0)

    @property
    def dual_curvature(self):
        """Kappa of the conjugate, ``u y + kappa u^2 / 2``."""
        return self.gamma

    @property
    def smoothness(self):
        """The largest curvature."""
        return 1.0 / self.gamma


@loss(labels=REALS, smoothness=1.0, dual_curvature=1.0, positive=("delta",))
class Huber(NamedTuple):
    """``(z - y)^2 / 2`` for residuals up to ``delta``, linear beyond, so that outliers have a bounded gradient.

    Parameters
    ----------
    delta : float
        Absolute residual at which the loss becomes linear.

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
        return -self.delta, self.delta

    @property
    def lipschitz(self):
        """The largest slope."""
        return self.delta


@loss(
    unlabelled=True,
    not_private=(
        "it protects single examples, and here there are none with a gradient of their own: pass the problem with the "
        "data, such as ct.Problem.personalized(data, graph)"
    ),
)
class Location(NamedTuple):
    """A loss applied coordinate by coordinate to ``theta - x`` on unlabelled points: mean and field estimation.

    ``f_i(theta)`` sums ``loss(theta_k, x_k)`` over the coordinates k of the points x of agent i. A point is stored as p
    examples, one for each coordinate, with unit vectors as features. :class:`coterie.Problem` does this conversion.

    Parameters
    ----------
    loss : Squared or Huber
        Loss of a residual.

    Examples
    --------
    >>> Location(Huber(1.0)).value(3.0, 0.0)
    2.5
    """

    loss: Any = Squared()

    def value(self, margin, label):
        """Value of the inner loss."""
        return self.loss.value(margin, label)

    def derivative(self, margin, label):
        """Derivative of the inner loss."""
        return self.loss.derivative(margin, label)

    def curvature(self, margin, label):
        """Curvature of the inner loss."""
        return self.loss.curvature(margin, label)

    def prox(self, center, step, label):
        """Prox of the inner loss."""
        return self.loss.prox(center, step, label)

    def conjugate(self, dual, label):
        """Conjugate of the inner loss."""
        return self.loss.conjugate(dual, label)

    def domain(self, label):
        """Domain of the inner loss."""
        return self.loss.domain(label)

    labels = property(attrgetter("loss.labels"))  # the inner loss must be a loss of residuals
    strictly_convex = property(attrgetter("loss.strictly_convex"))
    dual_curvature = property(attrgetter("loss.dual_curvature"))
    smoothness = property(attrgetter("loss.smoothness"))
    lipschitz = property(attrgetter("loss.lipschitz"))

    @property
    def proximal(self):
        """A mean of points, if the inner loss is squared."""
        return MEAN if self.loss.proximal == LEAST_SQUARES else DUAL_ASCENT


@loss(
    name="adaboost",
    labels=SIGNS,
    smoothness=1.0,
    lipschitz=1.0,
    exact_solver=LOG_SUM_EXP,
    not_private=(
        "in it, one example can take all the weight, so that no noise would hide it; take the mean logistic loss, "
        'loss="logistic"'
    ),
)
class LogSumExp(NamedTuple):
    """``log sum_r exp(-y_r z_r)`` over all examples of an agent, labels -1 and +1: l1-Adaboost, DADA (2).

    This is not a sum of losses of single examples, and defines two functions of its own: ``pool``, its value, and
    ``slopes``. Its exponential bounds the number of training errors.

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
        """``out_r = -y_r eta_r`` with the boosting weights ``eta = softmax(-y z)``."""
        level = self.pool(margins, labels)
        for r in range(margins.shape[0]):
            out[r] = -labels[r] * math.exp(-labels[r] * margins[r] - level)


def pooled_value(loss, margins, labels, row_weight):
    """Return f_i without its ridge: ``row_weight`` times the sum of the losses, or the pooled loss of all rows."""
    if loss.pooled:
        return loss.pool(margins, labels)
    return _sum_of_values(loss, margins, labels, row_weight)


def pooled_slopes(loss, margins, labels, row_weight, out):
    """Write ``out_r``, the derivative of :func:`pooled_value` with respect to the margin of example r."""
    if loss.pooled:
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
    if class_of(loss).pooled:
        return lambda loss, margins, labels, row_weight: loss.pool(margins, labels)
    return _sum_of_values


@overload(pooled_slopes)
def _pooled_slopes(loss, margins, labels, row_weight, out):
    if class_of(loss).pooled:
        return lambda loss, margins, labels, row_weight, out: loss.slopes(margins, labels, out)
    return _slope_of_each


#: Every loss, with the parameters used in documentation and contract tests. A loss added here is tested automatically.
LOSSES: dict[str, Any] = {
    "squared": Squared(),
    "logistic": Logistic(),
    "hinge": Hinge(),
    "smooth-hinge": SmoothHinge(),
    "huber": Huber(),
    "location": Location(Squared()),
    "location-huber": Location(Huber()),
    "adaboost": LogSumExp(),
}


def resolve_loss(loss: Any, pooled: bool = False) -> Any:
    """Return a loss, given as a value or by its name; losses of all examples together only if `pooled`."""
    loss = named("loss", loss, LOSSES, ", or pass a loss itself")
    if isinstance(loss, type) or not getattr(loss, "is_loss", False):
        why = "a class" if isinstance(loss, type) else "its class is not decorated with @ct.loss"
        raise ParameterError(
            f"{loss!r} is not a loss ({why}): pass one of {', '.join(LOSSES)}, or a value such as ct.Logistic()"
        )
    if loss.pooled and not pooled:
        raise ParameterError(f"{loss!r} is not a loss of single examples: it is for Problem.boosting")
    return loss


def loss_to_json(loss: Any) -> dict[str, Any]:
    """Return a loss and its parameters as a dictionary for files; :func:`loss_from_json` reads it."""
    if _kinds().get(loss.name) is not type(loss):
        raise DataError(f"loss={loss!r} cannot be saved: it is not on the list of losses, coterie.core.losses.LOSSES")
    parts = [loss_to_json(part) if getattr(part, "is_loss", False) else part for part in loss]
    if not all(isinstance(part, bool | int | float | dict) for part in parts):
        raise DataError(f"loss={loss!r} cannot be saved: its parameters must be numbers or losses")
    return {"kind": loss.name, "parts": parts}


def loss_from_json(written: dict[str, Any]) -> Any:
    """Return the loss that :func:`loss_to_json` has written, if its kind is in ``LOSSES``."""
    kind = _kinds().get(written["kind"])
    if kind is None:
        raise DataError(f"there is no loss {written['kind']!r}")
    return kind(*(loss_from_json(part) if isinstance(part, dict) else part for part in written["parts"]))


def _kinds() -> dict[str, Any]:
    return {known.name: type(known) for known in LOSSES.values()}
