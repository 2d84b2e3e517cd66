"""Scores of a peer's models on its own rows, and the choice of the model that it serves."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from ...core.arrays import VACANT, all_losses
from ...core.losses import BERNOULLI, pooled_value
from ...core.models import Linear
from ..node.node import Node
from .model import packed

#: One-sided 90 % quantiles of Student's t: for 2 to 10 degrees of freedom, then up to 15, 20, 30, 60, and beyond.
_T = (1.886, 1.638, 1.533, 1.476, 1.44, 1.415, 1.397, 1.383, 1.372)
_T_LATER = ((15, 1.341), (20, 1.325), (30, 1.31), (60, 1.296), (math.inf, 1.282))
#: Without rows kept aside, a model can be called useless from MIN_USELESS_ROWS rows on. For numbers, its mean squared
#: error must exceed USELESS_ERROR_RATIO times what the model trained alone expects on new rows; for classes, its mean
#: squared error of votes must exceed USELESS_VOTE_ERROR (a coin has 0.25).
MIN_USELESS_ROWS, USELESS_ERROR_RATIO, USELESS_VOTE_ERROR = 6, 9.0, 0.5


class Served(NamedTuple):
    """The model that a peer serves."""

    how: str  # "together", "alone", "own" (nothing is learned together yet), or "population" (the peer has no rows)
    why: str
    theta: np.ndarray  # (p,)
    covariance: np.ndarray | None  # (p, p) posterior covariance
    noise: float | None  # variance of a label around its prediction
    trust: float | None = None  # weight of the population in it, where it is weighed against a broad prior


def influences(node: Node) -> dict[int, float]:
    """Return the neighbours' shares in what moves the model, by address; empty if the method cannot tell."""
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
    """Return errors of a model on the scored rows: 0 or 1 for classes, squared errors for numbers."""
    work = node.work
    with np.errstate(over="ignore"):
        margins = work.margins(theta)
        if node.charter.labels is not None:
            return (np.where(margins >= 0.0, 1.0, -1.0) != work.seen_labels).astype(float)
        return np.asarray((margins - work.seen_labels) ** 2)


def soft_errors(node: Node, theta: np.ndarray) -> np.ndarray:
    """Return errors that distinguish two models on fewer rows: for classes, squared distances of votes from labels.

    A vote is 2 p - 1 if the loss gives a probability p (Brier's score), otherwise a margin clipped to [-1, 1].
    """
    if node.charter.labels is None:
        return losses_at(node, theta)
    margins = node.work.margins(theta)
    bernoulli = node.work.loss.likelihood == BERNOULLI
    votes = np.tanh(0.5 * margins) if bernoulli else np.clip(margins, -1.0, 1.0)
    return np.asarray(0.25 * (votes - node.work.seen_labels) ** 2)


def score_of(node: Node, theta: np.ndarray) -> float | None:
    """Return accuracy for classes, root mean squared error in the target's units for numbers, or None without rows."""
    if not node.work.seen_labels.size:
        return None
    mean = float(losses_at(node, theta).mean())
    return 1.0 - mean if node.charter.labels is not None else mean**0.5 * node.charter.target_unit[1]


def scores(node: Node, final: np.ndarray | None = None) -> dict[str, Any]:
    """Return the scores of the models on rows kept aside, or else on the peer's own rows, and which model is served.

    ``final`` is a private peer's model for its own use, which takes the place of the published one.
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
    """Return the mean loss of the model on the peer's own rows."""
    arrays, theta = node.peer.arrays, node.theta
    if isinstance(arrays.model, Linear):
        own = arrays.rows.values @ theta if node.work.features.size else np.zeros(0)
        return float(pooled_value(arrays.loss, own, arrays.labels, node.work.row_weight))
    found = np.zeros(1)
    all_losses(arrays, theta[None, :], found)
    return float(found[0] - node.work.ridge * np.vdot(theta, theta))


def worse(together: np.ndarray, alone: np.ndarray) -> bool:
    """Return whether the first of two models is clearly worse, from their errors on the same rows kept aside.

    This is a one-sided t test at 10 %. A peer tests repeatedly, but always on the same rows and on models that hardly
    change once they have settled. So of peers whose two models are equally good, about one in ten serves the model
    trained alone, and loses nothing; of peers that gain from the others, fewer do. One more row without a difference is
    added, so that two rows that agree by chance decide nothing.
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
    """Return whether a model is too bad on the peer's own rows to be chance. Used if no rows are kept aside.

    Own rows favour the model that was trained on them. So the model is compared with the error that the model trained
    alone expects on new rows; if this is unknown, with the variance of the labels.
    """
    work, errors = node.work, soft_errors(node, theta)
    if errors.size < MIN_USELESS_ROWS:
        return False
    if node.charter.labels is not None:
        return not errors.mean() <= USELESS_VOTE_ERROR
    expected = float(np.var(work.seen_labels))
    if work.spread.size:
        expected = work.noise + float(np.mean(np.einsum("ij,jk,ik->i", work.seen, work.spread, work.seen)))
    return not errors.mean() <= USELESS_ERROR_RATIO * expected


def heard_nobody(node: Node) -> bool:
    """Return whether the peer's model contains nothing from other peers, as far as it can tell after a restart.

    Pooling keeps what each neighbour has sent; other methods may keep only the resulting model.
    """
    if node.mail.received["messages"]:
        return False
    keeps = node.method.inspection.posterior is not None
    return node.starts <= 1 or (keeps and not influences(node))


def served_by(node: Node, final: np.ndarray | None = None) -> Served:
    """Choose the model to use: learned together, or trained alone if that is clearly better on rows kept aside.

    So messages from neighbours cannot make a peer worse off than it is alone, as far as its own rows can tell.
    ``final`` is a private peer's model for its own use.
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
    unheard = "no messages have come from other peers yet: the model is made of its own rows"
    if final is None and node.method.privacy.finish is not None:  # the published model is mostly noise
        later = "the model learned together is not computed yet: this one is made of its own rows"
        return alone._replace(how="own", why=unheard if heard_nobody(node) else later)
    if final is None and heard_nobody(node):
        return Served("own", unheard, mean, covariance, noise, trust)
    if not work.aside:
        few = f"it has too few rows to keep some aside and compare ({work.size})"
        if useless(node, mean):
            told = f"{kind} {scored[0]:.4g} together, {scored[1]:.4g} alone"
            return alone._replace(why=f"the model learned together is useless on its {k} rows: {told}")
        return Served("together", few, mean, covariance, noise, trust)
    errors = [soft_errors(node, theta) for theta in (mean, work.local)]
    if node.charter.labels is not None:  # the test compares squared errors of votes, not the numbers of wrong answers
        told += "; squared error of votes {:.3g} and {:.3g}".format(*(found.mean() for found in errors))
    if worse(*errors):
        return alone._replace(why=f"clearly better {told}")
    return Served("together", f"not clearly worse {told}", mean, covariance, noise, trust)


def posterior_of(node: Node) -> tuple[np.ndarray, np.ndarray, float, float] | None:
    """Return the method's posterior of the peer's own model, or None if there is none or it is not finite yet."""
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
    """Return the content of ``model.json``: the model for the peer's own use. ``final`` is that of a private peer."""
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
