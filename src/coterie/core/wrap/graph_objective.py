"""The objective of a learned graph, and two update steps on a block of its weights.

    h(w) = sum_{k<l} z_kl w_kl + mu ( lam |w|^2 - sum_k log(d_k + delta) ),     w >= 0,  d_k = sum_l w_kl

with each pair counted once in |w|^2, and with the cost of an edge

    z_kl = c_k L_k + c_l L_l + mu/2 |theta_k - theta_l|^2.

Source: Zantedeschi, Bellet and Tommasi, 2020, "Fully Decentralized Joint Learning of Personalized Models and
Collaboration Graphs" (DADA), Section 4. The derivative of -log(d_k + delta) is -1/(d_k + delta): the paper's Appendix C
prints it without the sign, and with that sign the optimal graph would be empty.

A block is the weights between one agent k and some peers l:

==================  =================================================================
paper               here
==================  =================================================================
w_kl, l in K        ``weight``, ``out``
kappa = |K|         ``kappa``, ``len(cost)``
z_kl                ``cost``
d_k without block   ``own``
d_l without w_kl    ``others``
mu_2, lambda        ``mu``, ``lam``
==================  =================================================================
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from ..._checks import positive
from ...errors import ParameterError
from ..compile import inline

Floats = np.ndarray[Any, np.dtype[np.float64]]

#: Largest number of Newton steps in each of the two passes over a block, far more than are needed for any weights.
MAX_NEWTON_STEPS = 200
#: Relative size of a step at which the first pass over a block may stop.
COARSE_STEP = 1e-14


#: Reasons why each parameter of h must be positive, for messages.
WHY_NOT_ZERO = {
    "mu": "the weights depend on the costs divided by mu",
    "lam": "without it the optimal weights are not unique",
    "delta": "it keeps the logarithm smooth at an agent without edges; 0.01 or less works, 0.1 isolates agents",
}


def check_parameters(mu: Any, lam: Any, delta: Any) -> tuple[float, float, float]:
    """Return the three parameters of h as floats; raise a ParameterError for invalid ones."""
    return check_parameter("mu", mu), check_parameter("lam", lam), check_parameter("delta", delta)


def check_parameter(name: str, value: Any) -> float:
    """Return one parameter of h as a float; raise a ParameterError if it is invalid."""
    try:
        return positive(name, value)
    except ParameterError as error:
        why = f": {WHY_NOT_ZERO[name.rpartition(' ')[2]]}" if value == 0 else ""
        raise ParameterError(f"{error}{why}") from None


@inline
def edge_cost(mine: Any, theirs: Any, square: Any, mu: float) -> Any:
    """Return z_kl, the cost of one unit of weight between two agents."""
    # DADA (4), the terms that do not depend on w
    return mine + theirs + 0.5 * mu * square


def regularizer(weights_of_edges: Floats, degrees: Floats, mu: float, lam: float, delta: float) -> float:
    """Return mu ( lam |w|^2 - sum_k log(d_k + delta) ), which keeps weights small and every agent connected."""
    # DADA, Section 4, "Proposed regularizer"
    return float(mu * (lam * np.sum(np.square(weights_of_edges)) - np.sum(np.log(degrees + delta))))


@inline
def _weight_at(price: float, base: float, u: float, other: float, lam: float) -> float:
    """Return the root w of (2 lam w + cost) (other + w) = 1 if it is positive, else zero, for cost = price - base - u.

    All arguments are in units of mu, with other > 0.
    """
    cost = (price - base) - u
    missing = 1.0 - cost * other
    if missing < 0.5:  # small after cancellation: digits may be lost
        missing = other * (((1.0 / other - price) + base) + u)
    if not missing > 0.0:
        return 0.0
    # 2 lam w^2 + middle w = missing. The discriminant is middle^2 + 8 lam missing, written as a sum of squares.
    middle, gap = 2.0 * lam * other + cost, 2.0 * lam * other - cost
    root = math.sqrt(gap * gap + 8.0 * lam)
    if middle >= 0.0:
        return 2.0 * missing / (middle + root)
    return (root - middle) / (4.0 * lam)


@inline
def block(cost: Floats, others: Floats, own: float, mu: float, lam: float, delta: float, out: Floats) -> None:
    """Minimise h exactly over the weights between one agent and some peers.

    Over w >= 0, this minimises

        sum_l cost_l w_l + mu ( lam sum_l w_l^2 - log(own + delta + sum_l w_l) - sum_l log(others_l + delta + w_l) ).

    For u = 1 / (own + delta + sum_l w_l), each weight is the root of one quadratic, or zero. Each is convex and
    nondecreasing in u, so that u (own + delta + sum_l w_l(u)) - 1 is convex and increasing: Newton's method from
    u = 1 / (own + delta) comes down to its zero without a line search.
    """
    kappa = len(cost)
    free = own + delta
    # Where u and cost / mu nearly cancel, u alone has too few digits: the second pass computes a correction to be
    # added.
    base, u = 0.0, 1.0 / free
    for fine in range(2):
        for step in range(MAX_NEWTON_STEPS):
            degree, slope = free, 0.0
            for l in range(kappa):  # noqa: E741 - the paper's own name
                other = others[l] + delta
                w = _weight_at(cost[l] / mu, base, u, other, lam)
                degree += w
                if w > 0.0:
                    # dw/du, at a point where the product in _weight_at equals 1
                    slope += 1.0 / (2.0 * lam + 1.0 / ((other + w) * (other + w)))
            excess = (base * degree - 1.0) + u * degree
            move = excess / (degree + (base + u) * slope)
            # All steps but the first of the second pass decrease u: an increase is rounding.
            if move == 0.0 or (move < 0.0 and not (fine == 1 and step == 0)):
                break
            u -= move
            if fine == 0 and move <= COARSE_STEP * u:
                break
        if fine == 0:
            base, u = u, 0.0
    for l in range(kappa):  # noqa: E741
        out[l] = _weight_at(cost[l] / mu, base, u, others[l] + delta, lam)


@inline
def proximal_step(
    weight: Floats,
    cost: Floats,
    others: Floats,
    own: float,
    mu: float,
    lam: float,
    delta: float,
    lipschitz: float,
    out: Floats,
) -> None:
    """Take one projected gradient step on a block: max(0, w - grad / lipschitz)."""
    kappa = len(weight)
    degree = own + delta
    for l in range(kappa):  # noqa: E741
        degree += weight[l]
    for l in range(kappa):  # noqa: E741
        # DADA (4), with the signs that Appendix C omits
        gradient = cost[l] + mu * (2.0 * lam * weight[l] - 1.0 / degree - 1.0 / (others[l] + delta + weight[l]))
        # DADA, Section 4, step 2
        out[l] = max(0.0, weight[l] - gradient / lipschitz)


@inline
def local_lipschitz(others: Floats, own: float, mu: float, lam: float, delta: float, kappa: int) -> float:
    """Return a curvature bound on a block: mu ( kappa/(d_k+delta)^2 + max_l 1/(d_l+delta)^2 + 2 lam ).

    The degrees are those without the block, so that the bound holds for all weights of the block. These degrees are the
    only difference to :func:`paper_lipschitz`; the resulting bound is smaller by orders of magnitude.
    """
    least = math.inf
    for l in range(kappa):  # noqa: E741
        least = min(least, others[l] + delta)
    return mu * (kappa / ((own + delta) * (own + delta)) + 1.0 / (least * least) + 2.0 * lam)


@inline
def paper_lipschitz(kappa: int, mu: float, lam: float, delta: float) -> float:
    """Return the bound of the paper's Theorem 2, mu ( (kappa+1)/delta^2 + 2 lam ), which leads to very small steps."""
    return mu * ((kappa + 1.0) / (delta * delta) + 2.0 * lam)
