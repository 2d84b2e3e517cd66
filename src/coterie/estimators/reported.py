"""What all estimators have in common once they are fitted: models, rows to predict, scores, and a report."""

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
    """How the columns of agents and of labels are called, as far as what a fit was given says."""
    named = {"agents": agents, "target": y}
    found = {of: value if isinstance(value, str) else getattr(value, "name", None) for of, value in named.items()}
    return {of: name for of, name in found.items() if isinstance(name, str) and name}


class FittedEstimator:
    """What estimators can do with a :class:`.models.FittedModel`, whatever it is."""

    _kind = ""  # "classifier" or "regressor"
    _stranger: str  # what predicts agents never met
    n_jobs: int | None = 1
    _takes_long = False  # a fit does, so that gains are measured on fewer agents
    _models: FittedModel
    _columns: Columns
    _agent_column: str | None  # the column that held the ids, if it was one
    _target_column: str | None = None  # the column that held the labels, if it was one
    _given_names: Mapping[str, str] = MappingProxyType({})  # of "agents" and "target", where they are known
    agents_: tuple[Any, ...]
    classes_: np.ndarray  # of a classifier

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "agents_")

    def _check_fitted(self) -> None:
        if not self.__sklearn_is_fitted__():
            raise NotFittedError.of(self)

    def _encode_more(self, y: np.ndarray) -> np.ndarray:
        """Labels of more rows: numbers, or numbers of classes."""
        raise NotImplementedError

    def _decided(self, margins: np.ndarray) -> np.ndarray:
        """The class of every row, from the margins of a classifier."""
        best = (margins > 0).astype(int) if margins.ndim == 1 else margins.argmax(axis=1)
        return np.asarray(self.classes_[best])

    def _take(self, columns: Columns, members: tuple[Any, ...], column: Any, models: FittedModel) -> None:
        """Keep what was learned, and show it under the names that people look for."""
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
        """The numbers of some agents, who must have been there at fit."""
        asked = list(agents)
        unknown = [agent for agent in asked if agent not in self._number]
        if unknown:
            raise DataError(f"no agent {unknown[0]!r}; there are {len(self.agents_)}, such as {self.agents_[0]!r}")
        return np.array([self._number[agent] for agent in asked], dtype=np.int64)

    def _expose(self) -> None:
        """Coefficients in the units of the columns."""
        weights, levels = self._models.weights()
        only = 0 if levels.shape[1] == 1 else slice(None)
        self.coef_, self.intercept_ = weights[:-1, only], levels[:-1, only]

    def _rows(self, X: Any, agents: Any) -> Table:
        """More rows, encoded as at fit."""
        self._check_fitted()
        known, owner = (self._number, self._agent_column), type(self).__name__
        return Table.more(X, agents, self._columns, *known, owner, self._target_column)

    def _labelled(self, X: Any, y: Any, agents: Any) -> tuple[Any, Any, Any]:
        """More rows with labels, named as at fit or given: features, labels and agents."""
        self._check_fitted()
        return more_labelled(X, y, agents, self._agent_column, self._target_column, type(self).__name__)

    def _latent(self, X: Any, agents: Any, spread: bool = True) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Means and variances of the linear predictors, (rows, outputs), and which rows are of agents that were met."""
        table = self._rows(X, agents)
        if np.all(table.codes < 0):
            self._warn_of_types(X, agents)
        for part in self._models.parts[:1]:
            self._warn_of_range(part.outside(table.X, table.codes))
        known = table.codes >= 0
        return *self._models.latent(table, spread, self.n_jobs), known

    def _warn_of_types(self, X: Any, agents: Any) -> None:
        """Nobody was met: perhaps because ids are text in one table and numbers in the other."""
        asked = agent_codes(split_ids(X, agents, self._agent_column)[1])[1]
        if {type(agent) for agent in self.agents_}.isdisjoint(type(agent) for agent in asked):
            warnings.warn(
                f"none of these agents was met: all rows are predicted by {self._stranger}. Are the ids of the right "
                f"type? The model knows agents such as {self.agents_[0]!r}; it was asked for {asked[0]!r}",
                stacklevel=4,
            )

    def _warn_of_range(self, outside: dict[int, float]) -> None:
        """Evidence cannot see extrapolation, in time for one: say so where most rows lie outside their agents' own."""
        if outside:
            listed = ", ".join(f"{self._columns.names[k]!r} ({share:.0%} of the rows)" for k, share in outside.items())
            warnings.warn(
                f"rows to predict lie outside the range of their agents' own rows of {listed}: what is predicted there "
                "is an extrapolation, and intervals may be too narrow",
                ExtrapolationWarning,
                stacklevel=4,
            )

    def predict(self, X: Any, agents: Any = None) -> Any:
        """The prediction of every row by its agent's model."""
        raise NotImplementedError

    def score(self, X: Any, y: Any, agents: Any = None, sample_weight: Any = None) -> float:
        """How well rows are predicted: R^2 of numbers, accuracy of classes, over all rows.

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
        """Who gains how much, which features differ, who is an outlier, what was chosen and why.

        Gains are measured by cross-validation inside agents: some of an agent's rows are held out at a time, and
        predicted by this estimator fitted anew (together), by a model of the agent's other rows (alone) and by one
        model of everybody's (one model for all). Of linear and pooled models the other two are regressions whose
        strengths are learned; of boosted ones, and of those with a feature map, the same estimator alone, and for one
        agent with all rows. That takes a little more than `folds` times as long as a fit, three times that where the
        others are estimators of the same kind; of many agents, a sample is measured, and the notes say so.

        Parameters
        ----------
        path : path, optional
            Also write the report to this file, as a page for a browser: one HTML file that needs nothing else.
            `Report.save` does the same later.
        folds : int
            How many parts the rows of each agent are dealt into, to measure gains.
        random_state : int
            Seed of the folds, and of the sample of agents where these are many.
        X, y, agents
            The rows of the fit, for a model that does not have them: one from a file, or from a cluster. They may be
            named as in a fit.

        Returns
        -------
        Report
            Printing it shows it; its tables are DataFrames, and ``to_dict()`` is plain.

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
