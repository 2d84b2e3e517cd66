"""One model for each agent, linear in what the rows are turned into: what boosted and relationship estimators share.

Raw rows come in at two places: :meth:`PerAgent._prepared` when models are learned, and :meth:`PerAgent._margins` when
they predict.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, NamedTuple, Self

import numpy as np
import pandas as pd
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.metrics import accuracy_score, r2_score
from sklearn.utils.metaestimators import available_if
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from ..core.linear import frozen, margins_kernel, rows_of
from ..core.losses import SIGNS
from ..data import AgentData
from ..data.frames import split_ids
from ..data.ids import agent_numbers, as_agent_ids
from ..data.matrix import as_features
from ..errors import DataError, MismatchError
from ..pooling import one_against_rest
from .canonical import by_content


class Prepared(NamedTuple):
    """What a fit was given: checked, encoded, and in an order of its own, so that neither names nor order matter."""

    data: AgentData  # labels: of the only output, or the number of the class
    order: np.ndarray  # agent k of the data is agent order[k] of those that were given
    targets: list[np.ndarray]  # of every output, row by row of the data
    members: tuple[Any, ...]  # the agents as they were given
    fitted: dict[str, Any]  # what to remember of the labels
    column: Any  # that held the agents' ids

    @property
    def place(self) -> np.ndarray:
        """Where the data have each agent that was given."""
        return np.argsort(self.order)


class PerAgent(BaseEstimator):
    """Rows in, a linear model for each agent out. Parameters are documented on the public classes."""

    members: Any = None
    _loss: Any  # which says what labels are
    _center, _unit = 0.0, 1.0  # of the labels; a unit of 0 if they are all alike: there is only the mean to learn

    def fit(self, X: Any, y: Any, agents: Any = None, progress: Callable[..., None] | None = None) -> Self:
        """Learn one model for each agent.

        Parameters
        ----------
        X : (rows, p) array_like, sparse matrix or DataFrame
        y : (rows,) array_like
            Classes of a classifier, numbers of a regressor.
        agents : (rows,) sequence of hashables, or a column name of X, optional
            Whose row it is. Default: all rows belong to one agent.
        progress : callable, optional
            Called now and then: with (wakes done, wakes at most) while agents learn over a graph; with (rounds done,
            part of the objective that it may be from its optimum) while they learn how they are related.

        Returns
        -------
        self
        """
        return self._fit(X, y, agents, progress)

    def _fit(self, X: Any, y: Any, agents: Any, progress: Any) -> Self:
        raise NotImplementedError

    def _encode(self, y: np.ndarray) -> tuple[list[np.ndarray], dict[str, Any]]:
        """Labels as the loss has them, one list for each output; and what to remember of them."""
        raise NotImplementedError

    def _prepared(self, X: Any, y: Any, agents: Any) -> Prepared:
        """Check and encode what a fit was given: the way in for its rows."""
        X, ids, column = split_ids(X, agents)
        rows, y = self._validated(X, _no_missing(y, ids))
        targets, fitted = self._encode(y)
        labels = targets[0] if len(targets) == 1 else np.argmax(np.stack(targets), axis=0).astype(float)
        named = X if hasattr(X, "columns") else rows  # a frame names its columns in errors
        given = AgentData(named, labels, agents=ids, members=self.members, dtype=np.float64)
        data, order = by_content(given)
        return Prepared(data, order, [target[data.origin] for target in targets], given.members, fitted, column)

    def _validated(self, X: Any, *y: Any, **options: Any) -> Any:
        """X, and y if given, as scikit-learn wants them. Values that are not finite are left for AgentData to name."""
        if hasattr(X, "columns"):
            as_features(X)  # refuses a column of text by its name
        try:
            return validate_data(self, X, *y, accept_sparse="csr", dtype=np.float64, ensure_all_finite=False, **options)
        except ValueError as error:
            raise DataError(str(error)) from None

    def _remember(self, given: Prepared) -> None:
        """Agents and labels of a fit that went well: one that is refused leaves the estimator as it was."""
        self.agents_, self._agent_column = given.members, given.column
        for name, value in given.fitted.items():
            setattr(self, name, value)

    def _expose(self, coefficients: np.ndarray, intercepts: np.ndarray) -> None:
        """Keep the models, (n + 1, outputs, p) and (n + 1, outputs); the last one is for agents never met."""
        self._coefficients, self._intercepts = coefficients, intercepts
        only = slice(None) if coefficients.shape[1] > 1 else 0
        self.coef_, self.intercept_ = coefficients[:-1, only], intercepts[:-1, only]
        self._number = {member: k for k, member in enumerate(self.agents_)}

    def _margins(self, X: Any, agents: Any) -> np.ndarray:
        """``x . theta_i`` for the agent i of every row, (rows, outputs): the way in for rows to predict."""
        check_is_fitted(self, "coef_")
        X, ids, _ = split_ids(X, agents, self._agent_column)
        rows = self._validated(X, reset=False)
        if ids is None and len(self.agents_) > 1:
            raise DataError(
                f"this model was fitted for {len(self.agents_)} agents: pass agents=..., one id for each row"
            )
        data = AgentData(X if hasattr(X, "columns") else rows, agents=ids)  # refuses what is not finite, by its place
        # -1, the last model, for agents never met; without ids, all rows are of the only agent.
        number = np.zeros(1, int) if ids is None else agent_numbers(data.members, self._number)
        known, asked = ({type(agent) for agent in agents} for agents in (self.agents_, data.members))
        if data.n_rows and np.all(number < 0) and known.isdisjoint(asked):
            warnings.warn(
                "none of these agents was met: all rows are predicted by the mean of all models. Are the ids of the "
                f"right type? The model knows agents such as {self.agents_[0]!r}; it was asked for {data.members[0]!r}",
                stacklevel=3,
            )
        margins = np.empty((data.n_rows, self._coefficients.shape[1]))
        inputs = rows_of(self._inputs(data))
        for k in range(margins.shape[1]):
            out = np.zeros(data.n_rows)
            coefficients = np.ascontiguousarray(self._coefficients[number, k])
            margins_kernel(inputs, frozen(data.start), coefficients, out)
            margins[data.origin, k] = out + self._intercepts[number, k][data.owner]
        return margins

    def _inputs(self, data: AgentData) -> Any:
        """What models are weights of."""
        raise NotImplementedError

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags


class PerAgentClassifier(ClassifierMixin, PerAgent):
    """Classes: one output for two of them, and for more each against the rest."""

    @property
    def _has_probabilities(self) -> bool:
        return True

    def _encode(self, y: np.ndarray) -> tuple[list[np.ndarray], dict[str, Any]]:
        """Labels -1 and +1."""
        try:
            check_classification_targets(y)
        except ValueError as error:
            raise DataError(str(error)) from None
        check_labels(self._loss, classifies=True)
        classes, codes = np.unique(y, return_inverse=True)
        if len(classes) < 2:
            only = classes.tolist()[0]
            raise DataError(f"y holds one class only, {only!r}: a classifier needs at least two classes")
        chosen = [1] if len(classes) == 2 else range(len(classes))
        return [np.where(codes == k, 1.0, -1.0) for k in chosen], {"classes_": classes}

    def decision_function(self, X: Any, agents: Any = None) -> np.ndarray:
        """Margins: positive for the second of two classes; the largest wins among more.

        Parameters
        ----------
        X : (rows, p) array_like, sparse matrix or DataFrame
        agents : (rows,) sequence of hashables, or a column name of X, optional

        Returns
        -------
        (rows,) ndarray, or (rows, classes)
        """
        margins = self._margins(X, agents)
        return margins[:, 0] if len(self.classes_) == 2 else margins

    def predict(self, X: Any, agents: Any = None) -> np.ndarray:
        """The class of every row, by its agent's model; by the mean model for an agent never met.

        Parameters
        ----------
        X : (rows, p) array_like, sparse matrix or DataFrame
        agents : (rows,) sequence of hashables, or a column name of X, optional

        Returns
        -------
        (rows,) ndarray
        """
        margins = self.decision_function(X, agents)
        best = (margins > 0).astype(int) if margins.ndim == 1 else margins.argmax(axis=1)
        return np.asarray(self.classes_[best])

    @available_if(lambda self: self._has_probabilities)
    def predict_proba(self, X: Any, agents: Any = None) -> np.ndarray:
        """Probabilities of the classes, calibrated; one-against-rest scores are normalised.

        Parameters
        ----------
        X : (rows, p) array_like, sparse matrix or DataFrame
        agents : (rows,) sequence of hashables, or a column name of X, optional

        Returns
        -------
        (rows, classes) ndarray
        """
        return one_against_rest(self.decision_function(X, agents))

    def score(self, X: Any, y: Any, agents: Any = None, sample_weight: Any = None) -> float:
        """Accuracy over all rows.

        Parameters
        ----------
        X : (rows, p) array_like, sparse matrix or DataFrame
        y : (rows,) array_like
        agents : (rows,) sequence of hashables, or a column name of X, optional
        sample_weight : (rows,) array_like, optional

        Returns
        -------
        float
        """
        return float(accuracy_score(y, self.predict(X, agents), sample_weight=sample_weight))


class PerAgentRegressor(RegressorMixin, PerAgent):
    """Numbers, learned in units of their deviation from their mean."""

    def _encode(self, y: np.ndarray) -> tuple[list[np.ndarray], dict[str, Any]]:
        """The labels in standard units, as the only output."""
        check_labels(self._loss, classifies=False)
        values = np.asarray(y, dtype=np.float64)
        center, unit = float(np.mean(values)), float(np.std(values))
        if unit <= 1e-12 * abs(center):
            return [np.zeros_like(values)], {"_center": center, "_unit": 0.0}
        return [(values - center) / unit], {"_center": center, "_unit": unit}

    def predict(self, X: Any, agents: Any = None) -> np.ndarray:
        """The prediction of every row's agent; of the mean model for an agent never met.

        Parameters
        ----------
        X : (rows, p) array_like, sparse matrix or DataFrame
        agents : (rows,) sequence of hashables, or a column name of X, optional

        Returns
        -------
        (rows,) ndarray
        """
        return self._margins(X, agents)[:, 0]

    def score(self, X: Any, y: Any, agents: Any = None, sample_weight: Any = None) -> float:
        """R^2 over all rows.

        Parameters
        ----------
        X : (rows, p) array_like, sparse matrix or DataFrame
        y : (rows,) array_like
        agents : (rows,) sequence of hashables, or a column name of X, optional
        sample_weight : (rows,) array_like, optional

        Returns
        -------
        float
        """
        return float(r2_score(y, self.predict(X, agents), sample_weight=sample_weight))


def check_labels(loss: Any, classifies: bool) -> None:
    """Refuse a loss of numbers for a classifier, and a loss of classes for a regressor."""
    if classifies and loss.labels != SIGNS:
        raise MismatchError(f"{loss!r} takes {loss.labels} for labels: a classifier needs a loss of -1 and +1")
    if not classifies and loss.labels == SIGNS:
        raise MismatchError(f"{loss!r} is for classes: a regressor needs a loss of real labels, such as 'squared'")


def with_mean(models: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Models of agents with so many rows, and one more: their mean by rows, for agents never met."""
    return np.concatenate([models, np.average(models, axis=0, weights=sizes)[None]])


def _no_missing(y: Any, ids: Any) -> Any:
    """Y, unless one of its values is missing: that is refused here, where the agent is known."""
    values = np.asarray(y)
    missing = np.flatnonzero(pd.isna(values)) if values.ndim == 1 else np.empty(0, int)
    if missing.size:
        owner = "" if ids is None else f" (agent {as_agent_ids(ids).tolist()[missing[0]]!r})"
        raise DataError(f"row {missing[0]}{owner}: the label is missing (NaN): fill it in, or drop the row")
    return y
