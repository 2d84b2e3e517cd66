"""Scaling of columns that a group agrees on, from statistics of its members: for objectives over a graph.

A member writes means and spreads of its columns to a small file. Values are clipped to a robust range around the
median. With ``epsilon``, values are clipped to a public range instead, and sums get Laplace noise. The budget is
recorded before the noise is drawn, and noise is drawn only once. The admin takes medians over members, so fewer than
half of the members cannot move the result far.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import msgspec
import numpy as np
from msgspec import Meta

from ..._files import Where, read_bounded, write_atomic
from ...errors import DataError, ParameterError
from ..model.cells import column_of, numbers, read_cells
from .charter import Charter, charter_in
from .records import Count, Finite, read_json, to_json

#: Values are clipped to so many robust standard deviations around the median.
CLIP_DEVIATIONS = 5.0
#: Number of steps into which a public range is divided, so that noise can be a whole number.
RANGE_STEPS = 1 << 20


class ColumnStatistics(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A member's statistics of its columns."""

    format: Literal[1] = 1
    run: str
    rows: Count
    mean: list[Finite]
    spread: list[Annotated[float, Meta(ge=0, lt=1.7e308)]]
    epsilon: Annotated[float, Meta(gt=0)] | None = None


class ProposedScale(NamedTuple):
    """The proposed scaling."""

    features: list[str]
    center: list[float]
    scale: list[float]


def write_scale(
    folder: Where, data: Where, ranges: Sequence[str] = (), epsilon: float | None = None, output: Where | None = None
) -> Path:
    """Write a peer's statistics of its columns, for the admin. With `epsilon` they are epsilon-private, and written
    once.
    """
    where = Path(folder)
    charter = charter_in(where)
    if charter.design is not None:
        raise ParameterError("this charter has units of a fitted model: there is nothing to propose")
    path, note = Path(output or where / f"{where.resolve().name}.scale"), where / "scale.spent"
    bounds = _bounds(charter, ranges)
    cells = read_cells(data)
    columns = {name: numbers(column_of(cells, name, str(data)), name, str(data)) for name in _of_numbers(charter)}
    m = len(next(iter(columns.values()), ()))
    if not m:
        raise DataError(f"{data} has no rows to say anything of")
    if epsilon is None:
        said = {name: _cut(values, bounds.get(name)) for name, values in columns.items()}
    else:
        if not (math.isfinite(epsilon) and epsilon > 0):
            raise ParameterError(f"epsilon = {epsilon:g} must be a positive number")
        missing = [name for name in columns if name not in bounds]
        if missing:
            raise ParameterError(f"--epsilon needs a public range of every column: --range {missing[0]}=LOW:HIGH")
        if note.exists():
            raise ParameterError(
                f"{note}: this peer has spent {json.loads(read_bounded(note))['epsilon']:g} on its scales already; "
                "send the same file again, which costs nothing"
            )
        write_atomic(note, json.dumps({"epsilon": epsilon, "at": int(time.time())}).encode(), private=True)
        said = {name: _noisy(v, bounds[name], epsilon / (2 * len(columns))) for name, v in columns.items()}
    means = [said[name][0] if name in said else 0.0 for name in charter.features]
    spreads = [said[name][1] if name in said else 1.0 for name in charter.features]
    record = ColumnStatistics(run=charter.run, rows=m, mean=means, spread=spreads, epsilon=epsilon)
    return write_atomic(path, to_json(record))


def _of_numbers(charter: Charter) -> list[str]:
    """Names of features that are numbers."""
    kinds = ["number"] * len(charter.features) if charter.columns is None else charter.columns.kinds
    return [name for name, kind in zip(charter.features, kinds, strict=True) if kind == "number"]


def _bounds(charter: Charter, ranges: Sequence[str]) -> dict[str, tuple[float, float]]:
    found = {}
    for word in ranges:
        name, _, span = word.partition("=")
        low, _, high = span.partition(":")
        try:
            found[name.strip()] = float(low), float(high)
        except ValueError:
            raise ParameterError(f"--range {word}: must be NAME=LOW:HIGH") from None
        if name.strip() not in charter.features or not float(low) < float(high):
            raise ParameterError(f"--range {word}: LOW must be below HIGH, and the name a feature: {charter.features}")
    return found


def _cut(values: np.ndarray, bounds: tuple[float, float] | None) -> tuple[float, float]:
    """Return mean and standard deviation of values, clipped to `bounds` or to a robust range around the median."""
    values = values[~np.isnan(values)]
    if not values.size:
        return 0.0, 0.0
    middle = float(np.median(values))
    deviation = 1.4826 * float(np.median(np.abs(values - middle)))
    if bounds is not None:
        values = np.clip(values, *bounds)
    elif deviation > 0.0:
        values = np.clip(values, middle - CLIP_DEVIATIONS * deviation, middle + CLIP_DEVIATIONS * deviation)
    return float(values.mean()), float(values.std())


def _noisy(values: np.ndarray, bounds: tuple[float, float], epsilon: float) -> tuple[float, float]:
    """Return mean and standard deviation with noise: sums of values and of squares, each with half of the budget."""
    from ...core.private.noise import sample

    low, high = bounds
    parts = np.where(np.isnan(values), 0.5, (np.clip(values, low, high) - low) / (high - low))
    sums = [int(np.rint(RANGE_STEPS * part).astype(np.int64).sum()) for part in (parts, parts * parts)]
    # Replacing one row changes each sum by at most RANGE_STEPS.
    noise = sample("laplace", math.ceil(RANGE_STEPS / epsilon), 2)
    first, second = (
        (total + int(extra)) / (RANGE_STEPS * len(values)) for total, extra in zip(sums, noise, strict=True)
    )
    first = min(max(first, 0.0), 1.0)
    spread = math.sqrt(max(second - first * first, 0.0))
    return low + (high - low) * first, (high - low) * spread


def combined(group: Where, files: Sequence[Where]) -> ProposedScale:
    """Return the medians over members of their statistics, which fewer than half of the members cannot move far."""
    charter = charter_in(group)
    said = [read_json(Path(path), ColumnStatistics) for path in files]
    for path, one in zip(files, said, strict=True):
        if one.run != charter.run or not len(one.mean) == len(one.spread) == len(charter.features):
            raise DataError(f"{path} is of another run, {one.run}, and this is {charter.run}")
    means, spreads = (np.array([getattr(one, name) for one in said]) for name in ("mean", "spread"))
    center = np.median(means, axis=0)
    scale = np.median(np.hypot(spreads, means - center), axis=0)
    return ProposedScale(list(charter.features), center.tolist(), np.where(scale > 0.0, scale, 1.0).tolist())
