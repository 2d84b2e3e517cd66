"""What more than one generator refuses."""

from __future__ import annotations

import numpy as np

from ...errors import ParameterError


def row_range(rows: tuple[int, int]) -> None:
    """Refuse what is not a least and a most number of rows."""
    if not 1 <= rows[0] <= rows[1]:
        raise ParameterError(f"rows={rows!r} must be two whole numbers, 1 <= least <= most")


def at_least(name: str, value: int, least: int, of: str = "") -> None:
    """Refuse too small a number of things."""
    if value < least:
        raise ParameterError(f"{name}={value}: at least {least}{of} is needed")


def share(name: str, value: float) -> None:
    """Refuse what is no probability."""
    if not 0.0 <= value <= 1.0:
        raise ParameterError(f"{name}={value!r} must lie between 0 and 1")


def nonnegative(name: str, value: float) -> None:
    """Refuse negative and infinite numbers."""
    if not (np.isfinite(value) and value >= 0.0):
        raise ParameterError(f"{name}={value!r} must be a finite number >= 0")


def positive(name: str, value: float) -> None:
    """Refuse numbers that are not more than zero, and infinite ones."""
    if not (np.isfinite(value) and value > 0.0):
        raise ParameterError(f"{name}={value!r} must be a finite number > 0")


def positive_range(name: str, least: float, most: float) -> None:
    """Refuse ends of a range that are not positive, or the wrong way round."""
    if not 0.0 < least <= most < np.inf:
        raise ParameterError(f"{name}={(least, most)!r} must be two finite numbers, 0 < least <= most")
