"""A bound on how often something may happen."""

from __future__ import annotations


class Bucket:
    """Lets ``rate`` through in a second, and ``capacity`` at once."""

    __slots__ = ("_left", "_then", "capacity", "rate")

    def __init__(self, rate: float, capacity: float):
        self.rate, self.capacity, self._left, self._then = rate, capacity, capacity, 0.0

    def take(self, now: float) -> bool:
        """Whether one more may pass."""
        self._fill(now)
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True

    def spend(self, now: float, amount: float) -> float:
        """Let so much through, whatever there is; the seconds to wait before more."""
        self._fill(now)
        self._left -= amount
        return max(0.0, -self._left / self.rate)

    def _fill(self, now: float) -> None:
        self._left = min(self.capacity, self._left + max(0.0, now - self._then) * self.rate)
        self._then = now
