"""Anderson's acceleration of a fixed point: leaps from what its last steps had in common."""

from __future__ import annotations

import numpy as np

#: Steps that a leap is learned from, and how far it goes beyond the last of them, at most.
DEPTH, FARTHEST = 3, 2.0
#: Plain steps before the first leap.
PLAIN_STEPS = 5
#: A leap must not lose more than this of what the steps raise.
SLACK = 0.01


class Leaps:
    """Where a fixed point has been, and where it goes on."""

    def __init__(self) -> None:
        self.steps: list[tuple[np.ndarray, np.ndarray]] = []  # the last ones: where they began, and where they ended
        self.count, self.value, self.stride = 0, -np.inf, 1.0
        self.left = 0.0  # nats to gain from where the last step began, about; infinite where steps grow

    @property
    def ready(self) -> bool:
        """Whether the next step is asked for its value: leaps have begun."""
        return self.count >= PLAIN_STEPS

    def after(self, at: np.ndarray, to: np.ndarray, weights: np.ndarray, value: float) -> np.ndarray:
        """Where to go on after a step from a place of this value; differences count by their weights.

        Where the last leap lost something, from the end of the step before it.
        """
        if value < self.value - SLACK:
            self.value, self.stride, self.left = -np.inf, max(0.25 * self.stride, 1.0), np.inf
            return self.steps[-1][1]
        self.steps = [*self.steps[-DEPTH:], (at, to)]
        self.count += 1
        if not self.ready:
            return to
        self.value = value if np.isfinite(value) else -np.inf
        begun, ends = (np.stack(each) for each in zip(*self.steps, strict=True))
        moved = (ends - begun) * np.sqrt(weights)
        mix = np.linalg.lstsq(np.diff(moved, axis=0).T, moved[-1], rcond=1e-5)[0]
        leap: np.ndarray = -(mix @ np.diff(ends, axis=0))
        step, far = float(np.linalg.norm(moved[-1])), float(np.linalg.norm(leap * np.sqrt(weights)))
        # Steps that grow lead away from a place behind them: on in that direction, farther every time.
        away = float((leap * np.sqrt(weights)) @ moved[-1]) < -0.5 * step**2
        self.stride = min(2.0 * self.stride, 8.0) if away else 1.0
        if away:
            leap = leap * -min(1.0, self.stride * step / far)
        self.left = np.inf if away else 0.25 * float(weights @ (to + leap - at) ** 2)
        return to + np.clip(leap, -FARTHEST, FARTHEST)
