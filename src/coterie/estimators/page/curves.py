"""Coefficients and curves of all agents with their intervals, in few numbers."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy import stats

from ...pooling.fitted import Pooled
from ...pooling.rows import Grouped, dense
from ..report import MAX_VARIANCE_ROWS

#: Maximum count of numbers for all models, and for all bands: features that differ least are dropped first.
MAX_MODEL_NUMBERS, MAX_BAND_NUMBERS = 500_000, 400_000
#: Number of points of a curve, and maximum number of levels of a step function.
CURVE_POINTS, MAX_STEP_LEVELS = 25, 24
#: Probability of intervals and bands.
COVERAGE = 0.9
#: Agents with fewer rows are shown without the range of their columns, which would reveal the rows.
MIN_RANGE_ROWS = 3


@dataclass
class Shown:
    """One feature of one output, for all agents."""

    name: str
    kind: str  # "line", "curve", "steps" or "intercept"
    common: np.ndarray  # (size,)
    own: np.ndarray  # (n, size)
    half: np.ndarray | None = None  # (n,) half-width of the interval of a coefficient
    x: np.ndarray | None = None  # points at which the feature is drawn
    basis: np.ndarray | None = None  # (points, size) contribution of each coefficient; None if `own` holds values
    band: np.ndarray | None = None  # (n + 1, points) half-width of the band; the common one is last
    low: np.ndarray | None = None  # (n,) range of an agent's own rows
    high: np.ndarray | None = None


@dataclass
class ShownOutput:
    """One output: a number, or the log-odds of a class."""

    name: str
    link: str  # "identity", "logistic" or "exp"
    said: str  # name of the quantity on the axis of a curve
    features: list[Shown] = field(default_factory=list)


def outputs_of(model: Any, rows: Grouped | None, ranked: list[list[str]] | None, who: np.ndarray) -> list[ShownOutput]:
    """Return for every output the intercept and the features that differ most."""
    parts = model._models.parts
    if parts and parts[0].has_intervals:
        return [_pooled(model, k, ranked[k] if ranked else [], who) for k in range(len(parts))]
    if model._models.inputs.groups(model._columns.names) is None:
        return []
    return _others(model, rows, ranked, who)


def _name(model: Any, k: int, several: bool) -> tuple[str, str, str]:
    """Return the name of an output, its link, and the name of the predicted quantity."""
    if model._kind == "classifier":
        label = str(model.classes_[k if several else 1])
        if not model._has_probabilities:
            return label, "identity", "margin"
        return label, "logistic", f"probability of class {label}{' against the rest' if several else ''}"
    target = model._given_names.get("target")
    of = f" of “{target}”" if target else ""
    if any(part.family.name == "poisson" for part in model._models.parts):
        return "", "exp", f"expected count{of}"
    return "", "identity", f"prediction{of}"


def _pooled(model: Any, k: int, ranked: list[str], who: np.ndarray) -> ShownOutput:
    """Return coefficients and curves with their intervals; the intercept is last."""
    parts, names = model._models.parts, model._columns.names
    part, outputs = parts[k], len(parts)
    out, design, last = ShownOutput(*_name(model, k, outputs > 1)), part.design, part.design.size - 1
    _, common, own = part.at_means()
    low, high = part.ranges(who)
    few = part.sizes[who] < MIN_RANGE_ROWS
    chosen = _within_budget(
        [(name, _columns(design, names, name)) for name in ranked if name != "intercept"], who, outputs
    )
    banded = len(who) * CURVE_POINTS * len(chosen) * outputs <= MAX_BAND_NUMBERS
    rows: list[tuple[Shown, np.ndarray, np.ndarray | None]] = []  # each with its columns, and the points of its band
    for name, at in chosen:
        feature = names.index(name)
        curve = feature in design.curves
        one, along = Shown(name, "curve" if curve else "line", common[at], own[who][:, at]), None
        ends = low[:, feature], high[:, feature]
        known = np.isfinite(ends[0]) & np.isfinite(ends[1])
        if known.any():
            points = CURVE_POINTS if curve or banded or out.link != "identity" else 2
            one.x = np.linspace(float(ends[0][known].min()), float(ends[1][known].max()), points)
            along = design.along(feature, one.x)
            one.basis = along[:, at] * design.scale[at]
            one.low, one.high = (np.where(few | ~known, np.nan, end) for end in ends)
        rows.append((one, at, along if banded else None))
    level = Shown("intercept", "intercept", common[[last]], own[who][:, [last]])
    rows.append((level, np.array([last]), None))
    _add_intervals(part, who, rows)
    out.features = [one for one, _, _ in rows]
    return out


def _columns(design: Any, names: tuple[str, ...], name: str) -> np.ndarray:
    return np.flatnonzero(design.source == names.index(name))


def _within_budget(groups: list[tuple[str, np.ndarray]], who: np.ndarray, outputs: int) -> list[tuple[str, np.ndarray]]:
    """Return the first groups whose numbers fit into the limit of the page; at least one."""
    used = np.cumsum([len(at) for _, at in groups])
    return groups[: max(1, int(np.searchsorted(used, MAX_MODEL_NUMBERS // (max(1, len(who)) * outputs), side="right")))]


def _add_intervals(part: Pooled, who: np.ndarray, rows: list[tuple[Shown, np.ndarray, np.ndarray | None]]) -> None:
    """Set the half-widths of coefficients' intervals and curves' bands, for a batch of agents at a time."""
    unit, z = part.at_means()[0], float(stats.norm.ppf(0.5 + 0.5 * COVERAGE))
    for one, _, along in rows:
        one.half = np.zeros(len(who)) if one.kind in ("line", "intercept") else None
        if along is not None:
            spread = np.einsum("ij,jl,il->i", along, part.population.cov, along)
            one.band = np.zeros((len(who) + 1, len(along)))
            one.band[-1] = z * part.scale * np.sqrt(np.maximum(spread, 0.0))
    step = max(1, 4_000_000 // part.design.size**2)
    for begin in range(0, len(who), step):
        covariance, some = part.covariances(who[begin : begin + step]), slice(begin, begin + step)
        for one, at, along in rows:
            if one.half is not None:
                one.half[some] = z * unit[at[0]] * np.sqrt(np.maximum(covariance[:, at[0], at[0]], 0.0))
            if one.band is not None and along is not None:
                spread = np.einsum("ij,kjl,il->ki", along, covariance, along)
                one.band[:-1][some] = z * part.scale * np.sqrt(np.maximum(spread, 0.0))


def _others(model: Any, rows: Grouped | None, ranked: list[list[str]] | None, who: np.ndarray) -> list[ShownOutput]:
    """Return the outputs of models without a posterior: coefficients, or step functions of stumps."""
    inputs, (weights, levels), names = model._models.inputs, model._models.weights(), list(model._columns.names)
    groups, columns = inputs.groups(names), None if model._models.parts else rows  # wide models draw no curves
    means = low = high = None
    if columns is not None:
        some = columns.X[np.random.default_rng(0).permutation(len(columns.y))[:MAX_VARIANCE_ROWS]]
        means = np.asarray(inputs.of(some).mean(axis=0)).ravel()
        levels = levels + weights @ means
        low, high = (dense(end).ravel() for end in (columns.X.min(axis=0), columns.X.max(axis=0)))
    places, found, shown = dict(groups), [], np.append(who, len(weights) - 1)
    for k in range(weights.shape[1]):
        out, weight = ShownOutput(*_name(model, k, weights.shape[1] > 1)), weights[shown, k]
        ordered = [(name, places[name]) for name in (ranked[k] if ranked else []) or places if name in places]
        for name, at in _within_budget(ordered, who, weights.shape[1]):
            if inputs.stumps is not None:
                out.features.append(_steps(inputs.stumps, name, names.index(name), at, weight, means, low, high))
                continue
            one = Shown(name, "line", weight[-1, at], weight[:-1, at])
            if name in names and means is not None and low is not None and high is not None and inputs.are_columns:
                j = names.index(name)
                one.x = np.linspace(low[j], high[j], 2 if out.link == "identity" else CURVE_POINTS)
                one.basis = (one.x - means[j])[:, None]
            out.features.append(one)
        level = levels[shown, k]
        out.features.append(Shown("intercept", "intercept", level[-1:], level[:-1, None]))
        found.append(out)
    return found


def _steps(
    base: Any, name: str, feature: int, at: np.ndarray, weight: np.ndarray, means: Any, low: Any, high: Any
) -> Shown:
    """Return the sum of the stumps of one feature as a step function, with a value between each two thresholds."""
    edges = np.unique(base.threshold[at])
    inside = 0.5 * (edges[1:] + edges[:-1])
    step = float(np.median(np.diff(edges))) if len(edges) > 1 else 1.0
    first = edges[0] - step if low is None else min(float(low[feature]), edges[0] - 1e-9)
    last = edges[-1] + step if high is None else max(float(high[feature]), edges[-1] + 1e-9)
    middles = np.concatenate([[0.5 * (first + edges[0])], inside, [0.5 * (edges[-1] + last)]])
    starts = np.concatenate([[first], edges])
    if len(middles) > MAX_STEP_LEVELS:
        keep = np.unique(np.linspace(0, len(middles) - 1, MAX_STEP_LEVELS).round().astype(int))
        middles, starts = middles[keep], starts[keep]
    signs = np.where(middles[:, None] > base.threshold[at], 1.0, -1.0) - (0.0 if means is None else means[at])
    values = weight[:, at] @ signs.T
    return Shown(name, "steps", values[-1], values[:-1], x=np.append(starts, last))
