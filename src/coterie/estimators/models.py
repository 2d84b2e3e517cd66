"""What estimators learn, as one thing: reports, pages, figures, files and commands ask a :class:`FittedModel`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self

import numpy as np

from .. import pooling
from .._threads import one_thread
from ..data.columns import Where, row_only
from ..data.table import Table
from ..pooling.rows import Grouped

if TYPE_CHECKING:
    from ..data.dictionaries import Dictionary


def products(X: Any, models: np.ndarray) -> np.ndarray:
    """``x_r . w_r`` for every row, of dense or sparse rows."""
    return np.einsum("rk,rk->r", X, models) if isinstance(X, np.ndarray) else np.ravel(X.multiply(models).sum(axis=1))


class FittedModel(Protocol):
    """The models of agents, for each output one of every agent and one for agents never met."""

    @property
    def parts(self) -> Sequence[Any]:
        """What was learned of the population, for each output; empty where no population was learned."""

    @property
    def inputs(self) -> Inputs:
        """What models are linear in."""

    @property
    def runs(self) -> Sequence[Any]:
        """Runs that found them, one for each output or one for all; empty if there were none, or they are unknown."""

    @property
    def graph(self) -> Any:
        """Edges between agents that were used, if any."""

    @property
    def edges(self) -> Any:
        """How edges were found to pay, of populations."""

    @property
    def covariances(self) -> Sequence[Any]:
        """Of the agents' tasks, one for each output; empty where none were learned."""

    def latent(self, rows: Table, spread: bool = True, n_jobs: int | None = 1) -> tuple[np.ndarray, np.ndarray]:
        """Means and variances of the linear predictors of rows by their agents' models, (rows, outputs)."""

    def weights(self) -> tuple[np.ndarray, np.ndarray]:
        """(n + 1, outputs, size) and intercepts (n + 1, outputs) in the units of the columns; the last is common."""

    def names(self, columns: tuple[str, ...]) -> tuple[str, ...]:
        """What weights are of, given the names of the columns."""

    def rows(self) -> Grouped | None:
        """The rows of the fit, with labels as numbers or numbers of classes; None if they are not here."""

    def summary(self) -> dict[str, Any]:
        """What there is to say of all agents together, by name."""

    def to_arrays(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """For a file: plain values, and arrays."""


class Inputs:
    """What models are linear in: the columns themselves."""

    #: Whether weights are slopes of columns.
    are_columns = True
    #: Stumps that columns are cut by.
    stumps: Any = None

    def of(self, X: Any, where: Where = row_only) -> Any:
        """What rows of columns become; `where` names a row in errors."""
        return X

    def groups(self, names: Sequence[str]) -> list[tuple[str, np.ndarray]] | None:
        """What weights are of, by name, and their places; None if that has no names."""
        return [(name, np.array([j])) for j, name in enumerate(names)]

    def to_arrays(self) -> dict[str, np.ndarray]:
        """For a file."""
        return {}


class Votes(Inputs):
    """What base predictors say of rows."""

    are_columns = False

    def __init__(self, base: Dictionary):
        self.base = base
        self.stumps = base if hasattr(base, "threshold") else None

    def of(self, X: Any, where: Where = row_only) -> Any:
        """Of every base predictor."""
        from ..data.dictionaries import outputs

        return outputs(self.base, X, where)

    def groups(self, names: Sequence[str]) -> list[tuple[str, np.ndarray]]:
        """Stumps of a column go together."""
        if self.stumps is None:
            return [(self.base.describe(j), np.array([j])) for j in range(self.base.size)]
        places = [np.flatnonzero(self.stumps.feature == f) for f in range(len(names))]
        return [(name, at) for name, at in zip(names, places, strict=True) if len(at)]

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Of decision stumps."""
        if self.stumps is None:
            from ..errors import DataError

            raise DataError(
                f"base={self.base!r} cannot be saved: only decision stumps can, other base predictors are code"
            )
        return dict(self.stumps.to_arrays())


@dataclass(frozen=True)
class Linear:
    """Models without a population: numbers, however they were found. The last one is for agents never met."""

    coefficients: np.ndarray  # (n + 1, outputs, size)
    intercepts: np.ndarray  # (n + 1, outputs)
    inputs: Inputs = field(default_factory=Inputs)
    learned_from: Any = None  # X, labels, and the number of each row's agent, where they are here
    runs: Sequence[Any] = ()
    covariances: Sequence[Any] = ()
    graph: Any = None
    parts: ClassVar[tuple[()]] = ()
    edges: ClassVar[None] = None

    def latent(self, rows: Table, spread: bool = True, n_jobs: int | None = 1) -> tuple[np.ndarray, np.ndarray]:
        """X . theta_i + b_i for the agent i of every row; nothing is known of variances."""
        Z, codes = self.inputs.of(rows.X, rows.where), rows.codes
        out = np.empty((Z.shape[0], self.intercepts.shape[1]))
        for k in range(out.shape[1]):
            out[:, k] = products(Z, self.coefficients[codes, k]) + self.intercepts[codes, k]
        return out, np.zeros_like(out)

    def weights(self) -> tuple[np.ndarray, np.ndarray]:
        """The numbers themselves."""
        return self.coefficients, self.intercepts

    def names(self, columns: tuple[str, ...]) -> tuple[str, ...]:
        """Of the inputs."""
        return tuple(name for name, _ in self.inputs.groups(columns) or ())

    def rows(self) -> Grouped | None:
        """The rows of the fit, agent by agent."""
        if self.learned_from is None:
            return None
        X, y, codes = self.learned_from
        return Grouped.of(X, y, codes, len(self.coefficients) - 1, None)

    def summary(self) -> dict[str, Any]:
        """Nothing: there is no population."""
        return {}

    def to_arrays(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """For a file: coefficients, and what the inputs are made of."""
        packed = {"coefficients": self.coefficients, "intercepts": self.intercepts}
        return {"form": "linear"}, self.inputs.to_arrays() | packed

    @classmethod
    def from_arrays(cls, arrays: Any, n: int, width: int, inputs: Inputs | None = None, **more: Any) -> Self:
        """Back from a file; models of so many agents, linear in so many inputs."""
        coefficients, intercepts = arrays["coefficients"], arrays["intercepts"]
        expected = (n + 1, *intercepts.shape[1:], width)
        if coefficients.shape != expected or intercepts.shape != expected[:2]:
            raise ValueError(f"coefficients of shape {coefficients.shape}, and not {expected}")
        return cls(coefficients, intercepts, inputs or Inputs(), **more)


@dataclass(frozen=True)
class Populations:
    """Models of partial pooling: for each output a :class:`~coterie.pooling.Pooled`, or of many columns a ``Wide``."""

    parts: tuple[Any, ...]
    graph: Any = None
    edges: Any = None
    inputs: ClassVar[Inputs] = Inputs()
    runs: ClassVar[tuple[()]] = ()
    covariances: ClassVar[tuple[()]] = ()

    def latent(self, rows: Table, spread: bool = True, n_jobs: int | None = 1) -> tuple[np.ndarray, np.ndarray]:
        """Of every output, side by side."""
        with one_thread():
            found = [part.latent(rows.X, rows.codes, spread, n_jobs) for part in self.parts]
        means, variances = (np.stack(parts, axis=1) for parts in zip(*found, strict=True))
        return means, variances

    def weights(self) -> tuple[np.ndarray, np.ndarray]:
        """Of columns of the design, before it scales them."""
        both = np.stack(
            [np.vstack([own, common]) for common, own in (part.coefficients() for part in self.parts)], axis=1
        )
        return both[..., :-1], both[..., -1]

    def names(self, columns: tuple[str, ...]) -> tuple[str, ...]:
        """Of the columns of the design."""
        return tuple(self.parts[0].names(columns))

    def rows(self) -> Grouped | None:
        """The rows of the fit, if they are here."""
        first = self.parts[0]
        X = first.features()
        if X is None:
            return None
        labels, weight = [part.grouped.y for part in self.parts], first.grouped.weight
        y = np.argmax(np.stack(labels), axis=0) if len(labels) > 1 else labels[0] * first.scale + first.center
        y = y.astype(np.int64) if first.family.name == "logistic" else y
        return Grouped(X, y, None if weight is None or np.all(weight == 1.0) else weight, first.grouped.start)

    def summary(self) -> dict[str, Any]:
        """What the population was found to be."""
        evidence = float(sum(part.log_evidence for part in self.parts))
        return {"design": self.parts[0].design_name, "loss": self.parts[0].family.name, "log_evidence": evidence}

    def to_arrays(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """For a file, without the rows where that is possible."""
        arrays = {f"{k}.{name}": value for k, part in enumerate(self.parts) for name, value in part.to_arrays().items()}
        return {"form": self.parts[0].form, "models": [part.to_dict() for part in self.parts]}, arrays

    @classmethod
    def from_arrays(cls, described: dict[str, Any], arrays: Any, n: int, graph: Any) -> Populations:
        """Back from a file."""
        kind: Any = {kind.form: kind for kind in (pooling.Wide, pooling.Pooled)}[described["form"]]
        names, parts = set(arrays), []
        for k, packed in enumerate(described["models"]):
            part = {name.partition(".")[2]: arrays[name] for name in names if name.startswith(f"{k}.")}
            parts.append(kind.from_arrays(pooling.Fitted.from_dict(packed), part))
            if parts[-1].n != n:
                raise ValueError(f"models of {parts[-1].n} agents, and not {n}")
        return cls(tuple(parts), graph)
