"""How good a peer's models are on rows of its own, which of them it serves, and why."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from ...core.arrays import VACANT, all_losses
from ...core.losses import BERNOULLI, pooled_value
from ...core.models import Linear
from ..node.node import Node
from .model import packed

#: One-sided 90 % quantiles of Student's t, by degrees of freedom: 2 to 10, then 15, 20, 30, 60, and beyond.
_T = (1.886, 1.638, 1.533, 1.476, 1.44, 1.415, 1.397, 1.383, 1.372)
_T_LATER = ((15, 1.341), (20, 1.325), (30, 1.31), (60, 1.296), (math.inf, 1.282))
#: Without rows kept aside, from so many rows on: a model is useless whose squared error is so many times what the one
#: trained alone expects of itself on new rows; of classes, whose squared error of votes is above this (a coin: 0.25).
USELESS_FROM, USELESS, USELESS_VOTES = 6, 9.0, 0.5


class Served(NamedTuple):
    """The model that a peer serves."""

    how: str  # "together", "alone", "own": nothing is learned together yet, or "population": it has no rows
    why: str
    theta: np.ndarray  # (p,)
    covariance: np.ndarray | None  # (p, p) of what is not known of it
    noise: float | None  # variance of a label around its prediction
    trust: float | None = None  # weight of the population in it, where it is weighed against a broad prior


def influences(node: Node) -> dict[int, float]:
    """Shares of the neighbours in what moves the model, by address; nothing where the method cannot tell."""
    part: Any = node.method.inspection.influence
    if part is None:
        return {}
    peer = node.peer
    found = part(peer.arrays, peer.own, peer.edge)
    if found is None:
        return {}
    moved = np.where(np.isfinite(found), np.maximum(found, 0.0), 0.0)
    moved[peer.arrays.peer == VACANT] = 0.0
    total = float(moved.sum())
    if not 0.0 < total < np.inf:
        return {}
    return {int(j): float(m / total) for j, m in zip(peer.arrays.peer, moved, strict=True) if j != VACANT}


def losses_at(node: Node, theta: np.ndarray) -> np.ndarray:
    """Errors of a model on the rows it is measured with: 0 or 1 for classes, squared ones for numbers."""
    work = node.work
    with np.errstate(over="ignore"):
        margins = work.margins(theta)
        if node.charter.labels is not None:
            return (np.where(margins >= 0.0, 1.0, -1.0) != work.seen_labels).astype(float)
        return np.asarray((margins - work.seen_labels) ** 2)


def soft_errors(node: Node, theta: np.ndarray) -> np.ndarray:
    """Errors that tell two models apart on fewer rows: for classes, squares of how far votes are from the label.

    A vote is 2 p - 1 where the loss gives a probability p (Brier's score), and a margin cut to [-1, 1] elsewhere.
    """
    if node.charter.labels is None:
        return losses_at(node, theta)
    margins = node.work.margins(theta)
    bernoulli = node.work.loss.likelihood == BERNOULLI
    votes = np.tanh(0.5 * margins) if bernoulli else np.clip(margins, -1.0, 1.0)
    return np.asarray(0.25 * (votes - node.work.seen_labels) ** 2)


def score_of(node: Node, theta: np.ndarray) -> float | None:
    """Accuracy of a model for classes, root mean squared error in the target's units for numbers; None without rows."""
    if not node.work.seen_labels.size:
        return None
    mean = float(losses_at(node, theta).mean())
    return 1.0 - mean if node.charter.labels is not None else mean**0.5 * node.charter.target_unit[1]


def scores(node: Node, final: np.ndarray | None = None) -> dict[str, Any]:
    """How good the models are on the peer's own rows, on those kept aside if there are any; and which is served.

    ``final`` is what a private peer has worked out for itself alone, and uses in place of what it has published.
    """
    served = served_by(node, final)
    return {
        "score": score_of(node, node.theta if final is None else final),
        "score_alone": score_of(node, node.work.local),
        "scored_on": "rows kept aside" if node.work.aside else "own rows",
        "rows_aside": int(node.work.seen_labels.size) if node.work.aside else 0,
        "served": served.how,
        "why": served.why,
        "objective": _objective(node),
    }


def _objective(node: Node) -> float:
    """The mean loss of the model on the peer's own rows."""
    arrays, theta = node.peer.arrays, node.theta
    if isinstance(arrays.model, Linear):
        own = arrays.rows.values @ theta if node.work.features.size else np.zeros(0)
        return float(pooled_value(arrays.loss, own, arrays.labels, node.work.row_weight))
    found = np.zeros(1)
    all_losses(arrays, theta[None, :], found)
    return float(found[0] - node.work.ridge * np.vdot(theta, theta))


def worse(together: np.ndarray, alone: np.ndarray) -> bool:
    """Whether the first of two models is clearly worse, from their errors on the same rows kept aside.

    By a one-sided t test at 10 %. A peer looks again and again, but always with the same rows, at models that hardly
    change once they have settled: of peers for which both are equally good, about one of ten serves the one trained
    alone, and loses nothing; of those that gain from the others, fewer do. One row more, on which the models do not
    differ, stands for what so few rows cannot say: two that agree by chance decide nothing.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        apart = np.append(together - alone, 0.0)
        if not np.isfinite(apart).all():
            return not np.isfinite(together).all() and bool(np.isfinite(alone).all())
        k = apart.size
        if k < 3:
            return False
        quantile = _T[k - 3] if k - 3 < len(_T) else next(value for limit, value in _T_LATER if k - 1 <= limit)
        return bool(apart.mean() > quantile * apart.std(ddof=1) / k**0.5)


def useless(node: Node, theta: np.ndarray) -> bool:
    """Whether a model is so bad on the peer's own rows that no chance explains it, where none are kept aside.

    Own rows flatter the model that was trained on them, so it is measured by what it expects of itself on new rows;
    where it expects nothing, by what the mean of the labels would be wrong by.
    """
    work, errors = node.work, soft_errors(node, theta)
    if errors.size < USELESS_FROM:
        return False
    if node.charter.labels is not None:
        return not errors.mean() <= USELESS_VOTES
    expected = float(np.var(work.seen_labels))
    if work.spread.size:
        expected = work.noise + float(np.mean(np.einsum("ij,jk,ik->i", work.seen, work.spread, work.seen)))
    return not errors.mean() <= USELESS * expected


def heard_nobody(node: Node) -> bool:
    """Whether nothing that others said is in the peer's model, as far as it can tell after a restart.

    Pooling keeps what each neighbour has said; other methods may only keep the model that came of it.
    """
    if node.mail.received["messages"]:
        return False
    keeps = node.method.inspection.posterior is not None
    return node.starts <= 1 or (keeps and not influences(node))


def served_by(node: Node, final: np.ndarray | None = None) -> Served:
    """The model to use: learned together, or trained alone if that is clearly better on rows kept aside.

    So whatever neighbours send, a peer is no worse off than without them, as far as its own rows can tell. ``final`` is
    what a private peer has worked out for itself alone.
    """
    work, noise = node.work, 1.0 if node.charter.labels is not None else None
    known = None if final is not None else posterior_of(node)
    if known is None:
        mean, covariance, trust = (node.theta if final is None else final), None, None
    else:
        mean, covariance, noise, trust = known
    if not work.size and not work.aside:
        return Served("population", "it has no rows of its own", mean, covariance, noise, trust)
    k, scored = work.seen_labels.size, [score_of(node, theta) for theta in (mean, work.local)]
    kind = "accuracy" if node.charter.labels is not None else "rmse"
    told = f"on {k} rows kept aside: {kind} {scored[0]:.4g} together, {scored[1]:.4g} alone"
    spread = work.spread if work.spread.size else None
    alone = Served("alone", "", work.local, spread, work.noise if spread is not None else None)
    unheard = "nothing has come from the others yet: it is made of its own rows"
    if final is None and node.method.privacy.finish is not None:  # what it has published is noise for the most part
        later = "what is learned together is not worked out yet: it is made of its own rows"
        return alone._replace(how="own", why=unheard if heard_nobody(node) else later)
    if final is None and heard_nobody(node):
        return Served("own", unheard, mean, covariance, noise, trust)
    if not work.aside:
        few = f"it has too few rows to keep some aside and compare ({work.size})"
        if useless(node, mean):
            told = f"{kind} {scored[0]:.4g} together, {scored[1]:.4g} alone"
            return alone._replace(why=f"what is learned together is useless on its {k} rows: {told}")
        return Served("together", few, mean, covariance, noise, trust)
    errors = [soft_errors(node, theta) for theta in (mean, work.local)]
    if node.charter.labels is not None:  # what decides is how sure models are of wrong answers, not how many there are
        told += "; squared error of votes {:.3g} and {:.3g}".format(*(found.mean() for found in errors))
    if worse(*errors):
        return alone._replace(why=f"clearly better {told}")
    return Served("together", f"not clearly worse {told}", mean, covariance, noise, trust)


def posterior_of(node: Node) -> tuple[np.ndarray, np.ndarray, float, float] | None:
    """What the method says that the peer knows of its own model; None if it says nothing, or nothing finite yet."""
    find = node.method.inspection.posterior
    if find is None:
        return None
    found = find(node.peer.arrays, node.peer.own, node.peer.edge)
    if found is None:
        return None
    mean, covariance, noise, trust = (np.asarray(part)[0] for part in found[:4])
    if not (np.isfinite(mean).all() and np.isfinite(covariance).all() and np.isfinite(noise)):
        return None
    return mean, covariance, float(noise), float(trust)


def model_of(node: Node, final: np.ndarray | None) -> dict[str, Any]:
    """The file ``model.json``: the model for the peer's own use; ``final`` is what a private peer has worked out."""
    served = served_by(node, final)
    return {
        "format": 2,
        "run": node.charter.run,
        "served": served.how,
        "why": served.why,
        "wakes": node.wakes,
        "theta": served.theta.tolist(),
        "covariance": None if served.covariance is None else packed(served.covariance),
        "noise": served.noise,
        "trust": served.trust,
        "published": node.theta.tolist(),
        "alone": node.work.local.tolist(),
        "fill": [None if np.isnan(value) else value for value in np.ravel(node.work.fill).tolist()],
    }
