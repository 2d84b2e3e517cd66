"""A report as one JSON document, with all data of the page."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np

from ..._version import __version__
from ..report import FALSE_DISCOVERY_RATE, MEASURES, plain, sizes_of
from .curves import COVERAGE, Shown, ShownOutput, outputs_of
from .places import places
from .words import explained, headline

#: Maximum number of agents on a page. Agents that were measured, or are outliers, come first.
MAX_PAGE_AGENTS = 20_000
#: Digits of a number, and of a position on the map.
NUMBER_DIGITS, POSITION_DIGITS = 5, 4


def document(report: Any) -> dict[str, Any]:
    """Return plain values, stored by column rather than by record to keep pages with many agents small."""
    model, rows = report._model, report._rows
    every = _names(model.agents_)
    who = _chosen(report)
    sizes = sizes_of(model, rows)
    found = places(model, rows)
    place = {int(k): i for i, k in enumerate(who)}
    errors = _errors(report, who)
    named = dict(zip(model.agents_, every, strict=True))
    few = max(5, report.summary["columns"] + 1)
    tables = report.to_dict()
    return {
        "version": 1,
        "coterie": __version__,
        "title": f"{report.summary['estimator']}: {len(every):,} agents",
        "summary": rounded(plain(report.summary)),
        "measure": MEASURES.get(report.summary.get("measure", ""), ""),
        "explained": explained(report.summary),
        "headline": headline(report, named),
        "agents": {
            "total": len(every),
            "name": [every[k] for k in who],
            "rows": None if sizes is None else sizes[who].tolist(),
            "far": numbers(found.far[who]),
            **{name: numbers(values) for name, values in errors.items()},
        },
        "few": few,
        "map": _map(found, who, place),
        "outputs": [_output(output) for output in _shown(report, who)],
        "coverage": COVERAGE,
        "features": _columns(tables["features"]),
        "tests": _tested(report, place),
        "threshold": FALSE_DISCOVERY_RATE,
        "choices": _columns(tables["choices"]),
        "sent": rounded(tables["sent"]),
        "columns": tables["columns"],
        "notes": tables["notes"] + _more_notes(report, who),
        "text": repr(report),
    }


def _names(agents: tuple[Any, ...]) -> list[str]:
    """Return distinct names of agents: agents with equal text are written as in Python, and numbered if still equal."""
    texts = [str(agent) for agent in agents]
    twice = {text for text, count in Counter(texts).items() if count > 1}
    texts = [repr(agent) if text in twice else text for agent, text in zip(agents, texts, strict=True)]
    taken: Counter[str] = Counter()
    out = []
    for text in texts:
        taken[text] += 1
        out.append(text if taken[text] == 1 else f"{text} ({taken[text]})")
    return out


def _chosen(report: Any) -> np.ndarray:
    """Return the sorted numbers of the agents that are shown."""
    model = report._model
    n = len(model.agents_)
    if n <= MAX_PAGE_AGENTS:
        return np.arange(n)
    first = np.zeros(n)
    for table in (report.gains, report.outliers):
        if table is not None:
            first[[model._number[agent] for agent in table["agent"]]] = 1.0
    order = np.lexsort((np.random.default_rng(0).random(n), -first))
    return np.sort(order[:MAX_PAGE_AGENTS])


def _errors(report: Any, who: np.ndarray) -> dict[str, np.ndarray]:
    """Return the errors of every agent that is shown; NaN where they are not known."""
    if report.gains is None:
        return {}
    model, table = report._model, report.gains
    at = np.array([model._number[agent] for agent in table["agent"]])
    out = {}
    for name in ("alone", "one_model", "together"):
        values = np.full(len(model.agents_), np.nan)
        values[at] = table[name]
        out[name] = values[who]
    return out


def _map(found: Any, who: np.ndarray, place: dict[int, int]) -> dict[str, Any]:
    """Return positions in a square, edges, and nearest agents; agents are numbered as on the page."""
    xy, bent = _bent(found.xy) if found.kind == "models" else (found.xy, False)
    xy = xy - (xy.max(axis=0) + xy.min(axis=0)) / 2.0
    xy = xy / (np.abs(xy).max(initial=0.0) or 1.0)
    to = np.full(len(found.xy) + 1, -1)
    to[list(place)] = list(place.values())
    i, j, weight = found.edges
    kept = (to[i] >= 0) & (to[j] >= 0)
    near = to[found.near[who]]
    return {
        "kind": found.kind,
        "shares": numbers(np.array(found.shares)),
        "bent": bent,
        "x": numbers(xy[who, 0], POSITION_DIGITS),
        "y": numbers(xy[who, 1], POSITION_DIGITS),
        "edges": [to[i][kept].tolist(), to[j][kept].tolist(), numbers(weight[kept], 3)],
        "near": near.ravel().tolist(),
        "near_by": numbers(found.near_by[who].ravel(), POSITION_DIGITS),
        "nearest": int(near.shape[1]),
    }


def _bent(xy: np.ndarray) -> tuple[np.ndarray, bool]:
    """Return positions and whether outlying ones were moved towards the middle, to leave the others room."""
    middle = np.median(xy, axis=0)
    radius = np.sqrt(np.sum((xy - middle) ** 2, axis=1))
    usual = float(np.quantile(radius, 0.8))
    if usual <= 0.0 or radius.max() <= 3.0 * usual:
        return xy, False
    far = np.maximum(radius, 1e-300) / usual
    return middle + (xy - middle) * (np.where(far > 1.0, 1.0 + np.log(np.maximum(far, 1.0)), far) / far)[:, None], True


def _shown(report: Any, who: np.ndarray) -> list[ShownOutput]:
    model, table = report._model, report.features
    ranked = None
    if table is not None:
        several = "class" in table
        labels = list(model.classes_) if several else [None]
        ranked = [list(table[table["class"] == label]["feature"] if several else table["feature"]) for label in labels]
    elif model._models.parts:
        ranked = [list(model._columns.names)] * len(model._models.parts)
    return outputs_of(model, report._rows, ranked, who)


def _output(output: ShownOutput) -> dict[str, Any]:
    return vars(output) | {"features": [_feature(shown) for shown in output.features]}


def _feature(shown: Shown) -> dict[str, Any]:
    out: dict[str, Any] = {
        "name": shown.name,
        "kind": shown.kind,
        "common": numbers(shown.common),
        "own": numbers(shown.own.ravel()),
    }
    for name in ("half", "x", "low", "high"):
        value = getattr(shown, name)
        out[name] = None if value is None else numbers(value)
    out["basis"] = None if shown.basis is None else [numbers(row) for row in shown.basis]
    out["band"] = None if shown.band is None else numbers(shown.band.ravel(), 3)
    return out


def _tested(report: Any, place: dict[int, int]) -> dict[str, Any] | None:
    """Return both tests of every agent that is shown, by column."""
    table = report._tests
    if table is None:
        return None
    table = table[table["agent"].isin(place)]
    classes = [str(name) for name in getattr(report._model, "classes_", [])]
    of = [""] * len(table) if "class" not in table else [str(name) for name in table["class"]]
    features = sorted(set(table["feature"]))
    return {
        "agent": [place[k] for k in table["agent"]],
        "output": [classes.index(name) if name in classes and "class" in table else 0 for name in of],
        "residuals": [int(by == "residuals") for by in table["by"]],
        "p": numbers(table["p"].to_numpy(), 2),
        "q": numbers(table["q"].to_numpy(), 3),
        "z": numbers(table["z"].to_numpy(), 3),
        "feature": [features.index(name) for name in table["feature"]],
        "names": features,
    }


def _columns(records: list[dict[str, Any]] | None) -> dict[str, list[Any]] | None:
    """Return a table by column."""
    if records is None:
        return None
    names = list(records[0]) if records else []
    return {name: [rounded(line[name]) for line in records] for name in names}


def _more_notes(report: Any, who: np.ndarray) -> list[str]:
    total = len(report._model.agents_)
    if len(who) == total:
        return []
    return [
        f"this page shows {len(who):,} of {total:,} agents: those measured, those that stand out, and a sample "
        "of the others"
    ]


def numbers(values: np.ndarray, digits: int = NUMBER_DIGITS) -> list[Any]:
    """Return numbers rounded to `digits` significant digits; None for numbers that are not finite."""
    form = f"%.{digits}g"
    out: list[Any] = []
    for value in np.asarray(values, dtype=float).tolist():
        if not math.isfinite(value):
            out.append(None)
            continue
        short = float(form % value)
        out.append(int(short) if short == int(short) and abs(short) < 1e15 else short)
    return out


def rounded(value: Any) -> Any:
    """Return a nested value with its numbers rounded to ``NUMBER_DIGITS`` significant digits."""
    if isinstance(value, dict):
        return {key: rounded(part) for key, part in value.items()}
    if isinstance(value, list):
        return [rounded(part) for part in value]
    return float(f"%.{NUMBER_DIGITS}g" % value) if isinstance(value, float) else value
