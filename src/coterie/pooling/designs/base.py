"""What a design is: how features become columns of a model."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np

from ..sums import Sums


class Given(NamedTuple):
    """The rows of a fit, as statistics of their columns (:class:`.values.Values`), wherever they are."""

    rows: Sums  # of all agents
    some: Callable[[], Sums]  # of enough agents for quantiles and the like, and their labels; held meanwhile
    fixed: Callable[[], Any]  # features that are constant inside every agent, where agents are few; or else None
    named: bool = False  # whether this design was asked for by its name: it is not for itself to leave something out


@dataclass(frozen=True)
class Design:
    """How features become columns of a model: in standard units, with ones at the end.

    It is learned from the rows of a fit, and applied to any others. A kind of design is a file of this folder, with a
    class like this one, and a name in ``DESIGNS``. Fields that are arrays are saved with a model; a class with others
    extends :meth:`to_arrays` and :meth:`from_arrays`.
    """

    #: How estimators call it.
    name: ClassVar[str]
    #: How the columns of a feature are called that has several.
    part: ClassVar[str] = "part"
    #: It is not tried by itself where agents have fewer rows than this, on average.
    least_rows: ClassVar[float] = 0.0

    mean: np.ndarray  # of the columns, without the ones
    scale: np.ndarray
    source: np.ndarray  # the feature that each column is made of

    @classmethod
    def learn(cls, given: Given) -> Design | None:
        """From the rows of a fit; None where it would be no other than a linear one."""
        raise NotImplementedError

    def unscaled(self, X: np.ndarray) -> np.ndarray:
        """The columns of rows of features, not yet scaled."""
        raise NotImplementedError

    def line(self, feature: int) -> Any:
        """Coefficients of the unscaled columns of a feature with which they are the feature itself, plus a constant."""
        return 1.0

    @property
    def size(self) -> int:
        """How many columns, the ones included."""
        return len(self.mean) + 1

    @property
    def features(self) -> int:
        """How many features."""
        return int(self.source.max(initial=-1)) + 1

    @property
    def curves(self) -> list[int]:
        """Features that several columns are made of: what a model makes of them is a curve."""
        return np.flatnonzero(np.bincount(self.source) > 1).tolist()

    def names(self, features: tuple[str, ...]) -> tuple[str, ...]:
        """Of the columns, without the ones."""
        curves, met, out = self.curves, dict.fromkeys(self.source.tolist(), 0), []
        for k in self.source.tolist():
            out.append(f"{features[k]} {self.part} {met[k]}" if k in curves else features[k])
            met[k] += 1
        return tuple(out)

    def columns(self, X: np.ndarray) -> np.ndarray:
        """The columns of the model for rows of features."""
        out = np.empty((len(X), self.size))
        np.subtract(self.unscaled(X), self.mean, out=out[:, :-1])
        out[:, :-1] /= self.scale
        out[:, -1] = 1.0
        return out

    def along(self, feature: int, x: np.ndarray) -> np.ndarray:
        """Rows of the model's columns with one feature as given, and all others at their means."""
        X = np.zeros((len(x), self.features))
        X[:, feature] = x
        A = self.columns(X)
        A[:, :-1][:, self.source != feature] = 0.0
        return A

    def lines(self) -> np.ndarray:
        """(size, p + 1): a linear model of the features (ones last) as a model of the columns of this design."""
        p = self.features
        out = np.zeros((self.size, p + 1))
        for k in range(p):
            out[:-1, k][self.source == k] = self.line(k)
            # Whatever constant is missing: the value at the origin of the features, taken off below.
        out[:-1] *= self.scale[:, None]
        origin = self.columns(np.zeros((1, p)))[0]
        out[-1, :-1] = -(origin @ out[:, :-1])
        out[-1, -1] = 1.0
        return out

    def units(self) -> np.ndarray:
        """(size, size): a model of the scaled columns as a model of the columns before that; ones are last."""
        out = np.diag(1.0 / np.append(self.scale, 1.0))
        out[-1, :-1] = -self.mean / self.scale
        return out

    def to_arrays(self) -> dict[str, Any]:
        """For a file: every field that is an array. A design with other fields adds them, as arrays."""
        values = {f"design_{each.name}": getattr(self, each.name) for each in fields(self)}
        arrays = {name: value for name, value in values.items() if isinstance(value, np.ndarray)}
        for name in ("design_bent", "design_knots", "design_lengths"):  # of no splines: older versions ask for them
            arrays.setdefault(name, np.empty(0, dtype=np.int64))
        return arrays

    @classmethod
    def from_arrays(cls, arrays: Any) -> Self:
        """Back from a file: every field that is there. A design with others reads them."""
        names = [each.name for each in fields(cls) if f"design_{each.name}" in arrays]
        return cls(**{name: arrays[f"design_{name}"] for name in names})
