"""Base class of designs, which turn features into columns of a model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np

from ..sums import Sums


class Given(NamedTuple):
    """The rows of a fit, as statistics of their columns (:class:`.values.Values`), in this or other processes."""

    rows: Sums  # of all agents
    some: Callable[[], Sums]  # of enough agents for quantiles, with their labels; held while the design is learned
    fixed: Callable[[], Any]  # features that are constant inside every agent, if there are few agents; else None
    named: bool = False  # whether the user asked for this design by name: then it leaves no column out


@dataclass(frozen=True)
class Design:
    """Turns features into columns of a model, in standard units, with a column of ones last.

    A design is learned from the rows of a fit, and applied to any rows. Each kind of design is a file in this folder
    with a subclass of this class, listed in ``DESIGNS``. Fields that are arrays are saved with a model; a class with
    other fields extends :meth:`to_arrays` and :meth:`from_arrays`.
    """

    #: Name of the design in the estimators.
    name: ClassVar[str]
    #: Name of the columns of a feature that has several.
    part: ClassVar[str] = "part"
    #: Minimum of the agents' mean number of rows for which ``design="auto"`` considers the design.
    least_rows: ClassVar[float] = 0.0

    mean: np.ndarray  # of the columns, without the ones
    scale: np.ndarray
    source: np.ndarray  # the feature from which each column is made

    @classmethod
    def learn(cls, given: Given) -> Design | None:
        """Learn the design from the rows of a fit; return None if it would equal the linear one."""
        raise NotImplementedError

    def unscaled(self, X: np.ndarray) -> np.ndarray:
        """Return the unscaled columns for rows of features."""
        raise NotImplementedError

    def line(self, feature: int) -> Any:
        """Return the coefficients with which a feature's unscaled columns equal the feature, plus a constant."""
        return 1.0

    @property
    def size(self) -> int:
        """Number of columns, including the ones."""
        return len(self.mean) + 1

    @property
    def features(self) -> int:
        """Number of features."""
        return int(self.source.max(initial=-1)) + 1

    @property
    def curves(self) -> list[int]:
        """Features with several columns, on which predictions depend by a curve."""
        return np.flatnonzero(np.bincount(self.source) > 1).tolist()

    def names(self, features: tuple[str, ...]) -> tuple[str, ...]:
        """Return the names of the columns, without the ones."""
        curves, met, out = self.curves, dict.fromkeys(self.source.tolist(), 0), []
        for k in self.source.tolist():
            out.append(f"{features[k]} {self.part} {met[k]}" if k in curves else features[k])
            met[k] += 1
        return tuple(out)

    def columns(self, X: np.ndarray) -> np.ndarray:
        """Return the columns of the model for rows of features."""
        out = np.empty((len(X), self.size))
        np.subtract(self.unscaled(X), self.mean, out=out[:, :-1])
        out[:, :-1] /= self.scale
        out[:, -1] = 1.0
        return out

    def along(self, feature: int, x: np.ndarray) -> np.ndarray:
        """Return rows of the model's columns with one feature as given, and all others at their means."""
        X = np.zeros((len(x), self.features))
        X[:, feature] = x
        A = self.columns(X)
        A[:, :-1][:, self.source != feature] = 0.0
        return A

    def lines(self) -> np.ndarray:
        """Return (size, p + 1): linear models of the features (ones last) as models of the columns of this design."""
        p = self.features
        out = np.zeros((self.size, p + 1))
        for k in range(p):
            out[:-1, k][self.source == k] = self.line(k)
            # The missing constant is the value at the origin of the features, subtracted below.
        out[:-1] *= self.scale[:, None]
        origin = self.columns(np.zeros((1, p)))[0]
        out[-1, :-1] = -(origin @ out[:, :-1])
        out[-1, -1] = 1.0
        return out

    def units(self) -> np.ndarray:
        """Return (size, size): models of the scaled columns as models of the unscaled columns; ones are last."""
        out = np.diag(1.0 / np.append(self.scale, 1.0))
        out[-1, :-1] = -self.mean / self.scale
        return out

    def to_arrays(self) -> dict[str, Any]:
        """Return all fields that are arrays, for a file. A design with other fields adds them as arrays."""
        values = {f"design_{each.name}": getattr(self, each.name) for each in fields(self)}
        arrays = {name: value for name, value in values.items() if isinstance(value, np.ndarray)}
        for name in ("design_bent", "design_knots", "design_lengths"):  # older versions expect these, even if empty
            arrays.setdefault(name, np.empty(0, dtype=np.int64))
        return arrays

    @classmethod
    def from_arrays(cls, arrays: Any) -> Self:
        """Return a design from arrays of a file. A design with fields that are no arrays extends this method."""
        names = [each.name for each in fields(cls) if f"design_{each.name}" in arrays]
        return cls(**{name: arrays[f"design_{name}"] for name in names})
