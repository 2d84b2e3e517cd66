"""Common base of all estimators: the fitted models, rows to predict, scores and the report."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from ..data.columns import Columns
from ..data.frames import split_ids
from ..data.ids import agent_codes
from ..data.table import Table, more_labelled
from ..errors import DataError, ExtrapolationWarning, NotFittedError
from .models import FittedModel


def given_names(agents: Any, y: Any) -> dict[str, str]:
    """Return the names of the columns of agents and labels, where the arguments of a fit have names."""
    named = {"agents": agents, "target": y}
    found = {of: value if isinstance(value, str) else getattr(value, "name", None) for of, value in named.items()}
    return {of: name for of, name in found.items() if isinstance(name, str) and name}


class FittedEstimator:
    """Methods of estimators that use only their :class:`.models.FittedModel`."""

    _kind = ""  # "classifier" or "regressor"
    _stranger: str  # name of the model that predicts new agents
    n_jobs: int | None = 1
    _takes_long = False  # whether a fit is slow: gains are then measured on fewer agents
    _models: FittedModel
    _columns: Columns
    _agent_column: str | None  # name of the column of ids, if ids were a column of X
    _target_column: str | None = None  # name of the column of labels, if labels were a column of X
    _given_names: Mapping[str, str] = MappingProxyType({})  # names for "agents" and "target", where known
    agents_: tuple[Any, ...]
    classes_: np.ndarray  # classifiers only

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "agents_")

    def _check_fitted(self) -> None:
        if not self.__sklearn_is_fitted__():
            raise NotFittedError.of(self)

    def _encode_more(self, y: np.ndarray) -> np.ndarray:
        """Return the labels of more rows as numbers, or as indices of classes."""
        raise NotImplementedError

    def _decided(self, margins: np.ndarray) -> np.ndarray:
        """Return the class of every row, from a classifier's margins."""
        best = (margins > 0).astype(int) if margins.ndim == 1 else margins.argmax(axis=1)
        return np.asarray(self.classes_[best])

    def _take(self, columns: Columns, members: tuple[Any, ...], column: Any, models: FittedModel) -> None:
        """Store the results of a fit, and set the public fitted attributes."""
        self._columns, self._agent_column, self._models = columns, column, models
        self.n_features_in_ = columns.n_features_in
        self.__dict__.pop("feature_names_in_", None)
        if columns.input_names is not None:
            self.feature_names_in_ = np.array(columns.input_names, dtype=object)
        self._name(members)
        self._expose()

    def _name(self, members: tuple[Any, ...]) -> None:
        self.agents_ = members
        self._number = {member: k for k, member in enumerate(members)}

    def _numbers(self, agents: Iterable[Any]) -> np.ndarray:
        """Return the numbers of some agents, all of which must have been in the fit."""
        asked = list(agents)
        unknown = [agent for agent in asked if agent not in self._number]
        if unknown:
            raise DataError(f"no agent {unknown[0]!r}; there are {len(self.agents_)}, such as {self.agents_[0]!r}")
        return np.array([self._number[agent] for agent in asked], dtype=np.int64)

    def _expose(self) -> None:
        """Set the coefficients, in the units of the columns."""
        weights, levels = self._models.weights()
        only = 0 if levels.shape[1] == 1 else slice(None)
        self.coef_, self.intercept_ = weights[:-1, only], levels[:-1, only]

    def _rows(self, X: Any, agents: Any) -> Table:
        """Return more rows, encoded as at fit."""
        self._check_fitted()
        known, owner = (self._number, self._agent_column), type(self).__name__
        return Table.more(X, agents, self._columns, *known, owner, self._target_column)

    def _labelled(self, X: Any, y: Any, agents: Any) -> tuple[Any, Any, Any]:
        """Return features, labels and agents of more rows; columns may be named as at fit, or given."""
        self._check_fitted()
        return more_labelled(X, y, agents, self._agent_column, self._target_column, type(self).__name__)

    def _latent(self, X: Any, agents: Any, spread: bool = True) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return means and variances of linear predictors, (rows, outputs), and a mask of rows of known agents."""
        table = self._rows(X, agents)
        if np.all(table.codes < 0):
            self._warn_of_types(X, agents)
        for part in self._models.parts[:1]:
            self._warn_of_range(part.outside(table.X, table.codes))
        known = table.codes >= 0
        return *self._models.latent(table, spread, self.n_jobs), known

    def _warn_of_types(self, X: Any, agents: Any) -> None:
        """Warn if no agent is known and the types of ids differ, such as text in one table and numbers in the other."""
        asked = agent_codes(split_ids(X, agents, self._agent_column)[1])[1]
        if {type(agent) for agent in self.agents_}.isdisjoint(type(agent) for agent in asked):
            warnings.warn(
                f"none of these agents was in the training rows: all rows are predicted by {self._stranger}. Are the "
                f"ids of the right type? The model knows agents such as {self.agents_[0]!r}; it was asked for "
                f"{asked[0]!r}",
                stacklevel=4,
            )

    def _warn_of_range(self, outside: dict[int, float]) -> None:
        """Warn where most rows of a column lie outside the range of their agents' own rows, which evidence cannot
        detect.
        """
        if outside:
            listed = ", ".join(f"{self._columns.names[k]!r} ({share:.0%} of the rows)" for k, share in outside.items())
            warnings.warn(
                f"rows to predict lie outside the range of their agents' own rows of {listed}: what is predicted there "
                "is an extrapolation, and intervals may be too narrow",
                ExtrapolationWarning,
                stacklevel=4,
            )

    def predict(self, X: Any, agents: Any = None) -> Any:
        """Predict every row by its agent's model."""
        raise NotImplementedError

    def score(self, X: Any, y: Any, agents: Any = None, sample_weight: Any = None) -> float:
        """Return R^2 for numbers, or the accuracy for classes, over all rows.

        Parameters
        ----------
        X, y, agents, sample_weight
            As in :meth:`fit`.

        Returns
        -------
        float

        Examples
        --------
        >>> import coterie as ct
        >>> X, y, ids = [[0.0], [1.0], [2.0], [3.0]], [0.0, 2.0, 4.0, 6.0], ["ann", "bob", "ann", "bob"]
        >>> round(ct.CollaborativeRegressor().fit(X, y, agents=ids).score(X, y, agents=ids), 3)
        1.0
        """
        from sklearn.metrics import accuracy_score, r2_score

        X, y, agents = self._labelled(X, y, agents)
        measure = accuracy_score if self._kind == "classifier" else r2_score
        return float(measure(y, self.predict(X, agents), sample_weight=sample_weight))

    def report(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        folds: int = 5,
        random_state: int = 0,
        X: Any = None,
        y: Any = None,
        agents: Any = None,
    ) -> Any:
        """Report the gain of each agent, the features that differ, outliers, and the choices of the fit.

        Gains are measured by cross-validation inside agents: a part of each agent's rows is held out, and predicted by
        this estimator fitted to the other rows (together), by a model of the agent's other rows (alone) and by one
        model of the other rows of all agents (one model for all). For linear and pooled models, "alone" and "one model
        for all" are regressions whose strengths are learned; for boosted models and models with a feature map, they are
        the same estimator. The report takes a little more than `folds` times as long as a fit, and three times that
        with three estimators of the same kind; with many agents, a sample is measured, and the notes say so.

        Parameters
        ----------
        path : path, optional
            Also write the report to this file, as an HTML page; the same as calling `Report.save` later.
        folds : int
            Number of parts into which the rows of each agent are divided, to measure gains.
        random_state : int
            Seed of the folds, and of the sample of agents if there are many.
        X, y, agents
            The rows of the fit, for a model that was loaded from a file or fitted on a cluster. Columns may be named as
            in a fit.

        Returns
        -------
        Report
            Printing it shows the report; its tables are DataFrames, and ``to_dict()`` returns plain values.

        Examples
        --------
        >>> import numpy as np
        >>> import coterie as ct
        >>> rng = np.random.default_rng(0)
        >>> X, agents = rng.normal(size=(200, 2)), np.repeat(np.arange(20), 10)
        >>> y = X[:, 0] * rng.normal(2.0, 1.0, size=20)[agents] + X[:, 1] + 0.5 * rng.normal(size=200)
        >>> report = ct.CollaborativeRegressor().fit(X, y, agents=agents).report()
        >>> report.features["feature"][0], len(report.outliers)
        ('x0', 0)
        >>> report.summary["gains"]["one_model"]["low"] > 0
        True
        """
        from .report import report

        return report(self, path, folds, random_state, X, y, agents)
