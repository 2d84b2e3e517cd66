"""Curves of bounded length: scores of many agents since the watch began."""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping, Sequence
from typing import Any

#: Maximal number of moments. When it is reached, every other one is dropped, and half as many are recorded from then
#: on.
MAX_MOMENTS = 600
#: Maximal number of agents with lines of their own on the page; more are shown as bands.
MAX_LINES = 12
#: Quantiles at the edges of the bands.
BANDS = (0.1, 0.25, 0.5, 0.75, 0.9)
_NONE = math.nan

Scores = tuple[float | None, float | None]  # together, alone


class History:
    """Scores of all agents, together and alone, at no more than :data:`MAX_MOMENTS` moments since the start."""

    def __init__(self, moments: int = MAX_MOMENTS, generation: int = 0):
        self.limit = moments
        self.generation = generation  # grows when moments are dropped, so that the page reads all of them again
        self.times: list[float] = []
        self._rows: list[tuple[array[float], array[float]]] = []
        self._bands: list[tuple[list[float | None], list[float | None]]] = []
        self._places: dict[str, int] = {}
        self._stride, self._skipped = 1, 0

    def add(self, moment: float, scores: Mapping[str, Scores]) -> None:
        """Add the scores of one moment."""
        self._skipped += 1
        if self._skipped < self._stride:
            return
        self._skipped = 0
        for name in scores:
            self._places.setdefault(name, len(self._places))
        together, alone = (array("f", [_NONE]) * len(self._places) for _ in range(2))
        for name, (with_others, without) in scores.items():
            place = self._places[name]
            together[place] = _NONE if with_others is None else with_others
            alone[place] = _NONE if without is None else without
        self.times.append(round(moment, 1))
        self._rows.append((together, alone))
        self._bands.append((bands_of(together), bands_of(alone)))
        if len(self.times) > self.limit:
            for kept in (self.times, self._rows, self._bands):
                del kept[1::2]  # type: ignore[attr-defined]
            self._stride, self.generation = 2 * self._stride, self.generation + 1

    def since(self, generation: int, begin: int) -> dict[str, Any]:
        """Return bands, and lines for few agents, from moment ``begin`` on; all moments if `generation` has changed."""
        begin = max(0, begin) if generation == self.generation else 0
        found: dict[str, Any] = {"generation": self.generation, "begin": begin, "times": self.times[begin:]}
        found["together"] = [together for together, _ in self._bands[begin:]]
        found["alone"] = [alone for _, alone in self._bands[begin:]]
        if len(self._places) <= MAX_LINES:
            found["lines"] = {name: self._line(name, 0, begin) for name in self._places}
        return found

    def of(self, name: str) -> dict[str, Any]:
        """Return the curves of one agent."""
        return {"times": self.times, "together": self._line(name, 0), "alone": self._line(name, 1)}

    def _line(self, name: str, which: int, begin: int = 0) -> list[float | None]:
        place = self._places.get(name)
        rows = (row[which] for row in self._rows[begin:])
        return [None if place is None or place >= len(row) else rounded(row[place]) for row in rows]


def rounded(value: float | None) -> float | None:
    """Round to five digits. None if the value is not finite."""
    return None if value is None or not math.isfinite(value) else float(f"{value:.5g}")


def bands_of(values: Sequence[float]) -> list[float | None]:
    """Return the quantiles at :data:`BANDS` of the finite values."""
    there = sorted(value for value in values if math.isfinite(value))
    if not there:
        return [None] * len(BANDS)
    last = len(there) - 1
    found = []
    for share in BANDS:
        low, part = divmod(share * last, 1.0)
        here, above = there[int(low)], there[min(int(low) + 1, last)]
        found.append(rounded(here + part * (above - here)))
    return found
