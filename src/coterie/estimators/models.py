"""Fitted models: the protocol :class:`FittedModel`, which reports, pages, figures, files and commands use."""

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
    """Return ``x_r . w_r`` for every row, dense or sparse."""
    return np.einsum("rk,rk->r", X, models) if isinstance(X, np.ndarray) else np.ravel(X.multiply(models).sum(axis=1))


class FittedModel(Protocol):
    """The models of the agents: for each output, one model for every agent and one for new agents."""

    @property
    def parts(self) -> Sequence[Any]:
        """The learned population of each output; empty if no population was learned."""

    @property
    def inputs(self) -> Inputs:
        """The inputs in which models are linear."""

    @property
    def runs(self) -> Sequence[Any]:
        """Runs that found the models, one for each output or one for all; empty if there are none."""

    @property
    def graph(self) -> Any:
        """The graph along whose edges models were smoothed, or None."""

    @property
    def edges(self) -> Any:
        """Strength and gain of the edges of a smoothed population, or None."""

    @property
    def covariances(self) -> Sequence[Any]:
        """Covariance of the agents' tasks for each output; empty if none was learned."""

    def latent(self, rows: Table, spread: bool = True, n_jobs: int | None = 1) -> tuple[np.ndarray, np.ndarray]:
        """Return means and variances of the linear predictors of rows by their agents' models, (rows, outputs)."""

    def weights(self) -> tuple[np.ndarray, np.ndarray]:
        """Weights (n + 1, outputs, size), intercepts (n + 1, outputs), in the columns' units; the last is common."""

    def names(self, columns: tuple[str, ...]) -> tuple[str, ...]:
        """Return the name of each weight, given the names of the columns."""

    def rows(self) -> Grouped | None:
        """Return the rows of the fit with labels as numbers or indices of classes; None if they are not available."""

    def summary(self) -> dict[str, Any]:
        """Return named facts about all agents together."""

    def to_arrays(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Return plain values and arrays for a file."""


class Inputs:
    """The inputs in which models are linear: here, the columns themselves."""

    #: Whether weights are slopes of columns.
    are_columns = True
    stumps: Any = None  # the decision stumps, if the inputs are stumps

    def of(self, X: Any, where: Where = row_only) -> Any:
        """Return the inputs for rows of columns; `where` names a row in errors."""
        return X

    def groups(self, names: Sequence[str]) -> list[tuple[str, np.ndarray]] | None:
        """Return names with the indices of their weights; None if the weights have no names."""
        return [(name, np.array([j])) for j, name in enumerate(names)]

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Return arrays for a file."""
        return {}


class Votes(Inputs):
    """Inputs that are the outputs of base predictors."""

    are_columns = False

    def __init__(self, base: Dictionary):
        self.base = base
        self.stumps = base if hasattr(base, "threshold") else None

    def of(self, X: Any, where: Where = row_only) -> Any:
        """See :class:`Inputs`."""
        from ..data.dictionaries import outputs

        return outputs(self.base, X, where)

    def groups(self, names: Sequence[str]) -> list[tuple[str, np.ndarray]]:
        """Return one group for each column: the stumps that cut it."""
        if self.stumps is None:
            return [(self.base.describe(j), np.array([j])) for j in range(self.base.size)]
        places = [np.flatnonzero(self.stumps.feature == f) for f in range(len(names))]
        return [(name, at) for name, at in zip(names, places, strict=True) if len(at)]

    def to_arrays(self) -> dict[str, np.ndarray]:
        """See :class:`Inputs`."""
        if self.stumps is None:
            from ..errors import DataError

            raise DataError(
                f"base={self.base!r} cannot be saved: only decision stumps can be saved, other base predictors are code"
            )
        return dict(self.stumps.to_arrays())


@dataclass(frozen=True)
class Linear:
    """Linear models without a population. The last model is for new agents."""

    coefficients: np.ndarray  # (n + 1, outputs, size)
    intercepts: np.ndarray  # (n + 1, outputs)
    inputs: Inputs = field(default_factory=Inputs)
    learned_from: Any = None  # X, labels, and the number of each row's agent, if the rows are available
    runs: Sequence[Any] = ()
    covariances: Sequence[Any] = ()
    graph: Any = None
    parts: ClassVar[tuple[()]] = ()
    edges: ClassVar[None] = None

    def latent(self, rows: Table, spread: bool = True, n_jobs: int | None = 1) -> tuple[np.ndarray, np.ndarray]:
        """Return X . theta_i + b_i for the agent i of every row; the variances are 0."""
        Z, codes = self.inputs.of(rows.X, rows.where), rows.codes
        out = np.empty((Z.shape[0], self.intercepts.shape[1]))
        for k in range(out.shape[1]):
            out[:, k] = products(Z, self.coefficients[codes, k]) + self.intercepts[codes, k]
        return out, np.zeros_like(out)

    def weights(self) -> tuple[np.ndarray, np.ndarray]:
        """See :class:`FittedModel`."""
        return self.coefficients, self.intercepts

    def names(self, columns: tuple[str, ...]) -> tuple[str, ...]:
        """See :class:`FittedModel`."""
        return tuple(name for name, _ in self.inputs.groups(columns) or ())

    def rows(self) -> Grouped | None:
        """See :class:`FittedModel`."""
        if self.learned_from is None:
            return None
        X, y, codes = self.learned_from
        return Grouped.of(X, y, codes, len(self.coefficients) - 1, None)

    def summary(self) -> dict[str, Any]:
        """See :class:`FittedModel`."""
        return {}

    def to_arrays(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """See :class:`FittedModel`."""
        packed = {"coefficients": self.coefficients, "intercepts": self.intercepts}
        return {"form": "linear"}, self.inputs.to_arrays() | packed

    @classmethod
    def from_arrays(cls, arrays: Any, n: int, width: int, inputs: Inputs | None = None, **more: Any) -> Self:
        """Return models from arrays of a file, for `n` agents and `width` inputs."""
        coefficients, intercepts = arrays["coefficients"], arrays["intercepts"]
        expected = (n + 1, *intercepts.shape[1:], width)
        if coefficients.shape != expected or intercepts.shape != expected[:2]:
            raise ValueError(f"coefficients have shape {coefficients.shape}, expected {expected}")
        return cls(coefficients, intercepts, inputs or Inputs(), **more)


@dataclass(frozen=True)
class Populations:
    """Models of partial pooling: for each output a :class:`~coterie.pooling.Pooled`, or a ``Wide`` for many columns."""

    parts: tuple[Any, ...]
    graph: Any = None
    edges: Any = None
    inputs: ClassVar[Inputs] = Inputs()
    runs: ClassVar[tuple[()]] = ()
    covariances: ClassVar[tuple[()]] = ()

    def latent(self, rows: Table, spread: bool = True, n_jobs: int | None = 1) -> tuple[np.ndarray, np.ndarray]:
        """See :class:`FittedModel`."""
        with one_thread():
            found = [part.latent(rows.X, rows.codes, spread, n_jobs) for part in self.parts]
        means, variances = (np.stack(parts, axis=1) for parts in zip(*found, strict=True))
        return means, variances

    def weights(self) -> tuple[np.ndarray, np.ndarray]:
        """Return weights of the unscaled columns of the design, and intercepts."""
        both = np.stack(
            [np.vstack([own, common]) for common, own in (part.coefficients() for part in self.parts)], axis=1
        )
        return both[..., :-1], both[..., -1]

    def names(self, columns: tuple[str, ...]) -> tuple[str, ...]:
        """See :class:`FittedModel`."""
        return tuple(self.parts[0].names(columns))

    def rows(self) -> Grouped | None:
        """See :class:`FittedModel`."""
        first = self.parts[0]
        X = first.features()
        if X is None:
            return None
        labels, weight = [part.grouped.y for part in self.parts], first.grouped.weight
        y = np.argmax(np.stack(labels), axis=0) if len(labels) > 1 else labels[0] * first.scale + first.center
        y = y.astype(np.int64) if first.family.name == "logistic" else y
        return Grouped(X, y, None if weight is None or np.all(weight == 1.0) else weight, first.grouped.start)

    def summary(self) -> dict[str, Any]:
        """See :class:`FittedModel`."""
        evidence = float(sum(part.log_evidence for part in self.parts))
        return {"design": self.parts[0].design_name, "loss": self.parts[0].family.name, "log_evidence": evidence}

    def to_arrays(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """See :class:`FittedModel`."""
        arrays = {f"{k}.{name}": value for k, part in enumerate(self.parts) for name, value in part.to_arrays().items()}
        return {"form": self.parts[0].form, "models": [part.to_dict() for part in self.parts]}, arrays

    @classmethod
    def from_arrays(cls, described: dict[str, Any], arrays: Any, n: int, graph: Any) -> Populations:
        """Return the models of a file."""
        kind: Any = {kind.form: kind for kind in (pooling.Wide, pooling.Pooled)}[described["form"]]
        names, parts = set(arrays), []
        for k, packed in enumerate(described["models"]):
            part = {name.partition(".")[2]: arrays[name] for name in names if name.startswith(f"{k}.")}
            parts.append(kind.from_arrays(pooling.Fitted.from_dict(packed), part))
            if parts[-1].n != n:
                raise ValueError(f"models of {parts[-1].n} agents, expected {n}")
        return cls(tuple(parts), graph)
