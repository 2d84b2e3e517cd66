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
from sklearn.utils.validation import check_is_fitted, check_X_y, validate_data

from ..core.linear import frozen, margins_kernel, rows_of
from ..core.losses import SIGNS
from ..data import AgentData
from ..data.columns import Columns
from ..data.frames import split_ids
from ..data.ids import agent_numbers, as_agent_ids
from ..data.matrix import as_features
from ..data.sources import is_source
from ..data.sources.survey import Survey, collected
from ..data.table import more_labelled, split_target, without_target
from ..errors import DataError, MismatchError
from ..pooling import one_against_rest
from .canonical import by_content
from .collaborative import class_numbers
from .reported import Reported, given_names
from .task_rows import TaskRows


class Prepared(NamedTuple):
    """What a fit was given: checked, encoded, and in an order of its own, so that neither names nor order matter."""

    rows: TaskRows  # labels: of the only output, or the number of the class
    order: np.ndarray  # agent k of the rows is agent order[k] of those that were given
    outputs: int  # what is to be learned: one class against the rest each
    members: tuple[Any, ...]  # the agents as they were given
    fitted: dict[str, Any]  # what to remember of the labels
    column: Any  # that held the agents' ids
    columns: Columns | None = None  # how features became numbers; None if they were numbers, checked by scikit-learn
    given: AgentData | None = None  # rows as they were given, agent by agent, if they are in this process

    @property
    def data(self) -> AgentData:
        """All rows, in this process."""
        return self.rows.data

    @property
    def place(self) -> np.ndarray:
        """Where the rows have each agent that was given."""
        return np.argsort(self.order)


class Coded(NamedTuple):
    """Rows of numbers, and whose they are."""

    X: Any
    codes: np.ndarray  # -1 for agents never met


class PerAgent(Reported, BaseEstimator):
    """Rows in, a linear model for each agent out. Parameters are documented on the public classes."""

    members: Any = None
    _loss: Any  # which says what labels are
    _agent_column: str | None
    _target_column: str | None = None  # the column that held the labels, if it was one
    _columns: Columns | None = None  # how features that were no numbers became such
    _learned_from: AgentData | None = None  # the rows of the fit, if they are in this process
    _center, _unit = 0.0, 1.0  # of the labels; a unit of 0 if they are all alike: there is only the mean to learn

    def fit(self, X: Any, y: Any, agents: Any = None, progress: Callable[..., None] | None = None) -> Self:
        """Learn one model for each agent.

        Parameters
        ----------
        X : (rows, p) array_like, sparse matrix or DataFrame; or where the rows are
            A path, a directory, a glob, a mapping, a Ray Dataset, or a :class:`coterie.Source`.
        y : (rows,) array_like, or a column name of X
            Classes of a classifier, numbers of a regressor. A column that is named is no feature, and may stay in
            frames that are predicted later: it is left out there.
        agents : (rows,) sequence of hashables, or a column name of X, optional
            Whose row it is. Default: all rows belong to one agent.
        progress : callable, optional
            Called now and then: with (wakes done, wakes at most) while agents learn over a graph; with (rounds done,
            part of the objective that it may be from its optimum) while they learn how they are related.

        Returns
        -------
        self
        """
        X, y, target = split_target(X, y)
        self._fit(X, y, agents, progress)
        self._target_column = target
        self._given_names = given_names(agents, y)
        return self

    def _fit(self, X: Any, y: Any, agents: Any, progress: Any) -> Self:
        raise NotImplementedError

    def _encode(self, y: np.ndarray) -> tuple[np.ndarray, int, dict[str, Any]]:
        """Labels as the loss has them, or numbers of classes; how many outputs; and what to remember of the labels."""
        raise NotImplementedError

    def _prepared(self, X: Any, y: Any, agents: Any) -> Prepared:
        """Check and encode what a fit was given: the way in for its rows."""
        members = self.members
        if is_source(X):
            X, y, agents, known = collected(X, y, agents, type(self).__name__)
            members = known if members is None else members
        X, ids, column = split_ids(X, agents)
        X, columns = self._numbers(X)
        y = _no_missing(y, ids)
        rows, y = self._validated(X, y) if columns is None else _checked(X, y)
        labels, outputs, fitted = self._encode(y)
        named = X if hasattr(X, "columns") else rows  # a frame names its columns in errors
        given = AgentData(named, labels, agents=ids, members=members, dtype=np.float64)
        ordered, order = by_content(TaskRows.here(given))
        return Prepared(ordered, order, outputs, given.members, fitted, column, columns, given)

    def _seen(self, found: Survey) -> tuple[int, dict[str, Any]]:
        """How many outputs there are, and what to remember of labels that workers have looked at."""
        raise NotImplementedError

    def _numbers(self, X: Any) -> tuple[Any, Columns | None]:
        """Features as numbers, and how they became such; as they are, by default."""
        return X, None

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
        self._learned_from = given.given
        columns = given.columns
        self._columns = None if columns is None or columns.is_identity else columns
        if columns is not None:
            self.n_features_in_, names = columns.n_features_in, columns.input_names
            self.__dict__.pop("feature_names_in_", None)
            if names is not None:
                self.feature_names_in_ = np.array(names, dtype=object)
        for name, value in given.fitted.items():
            setattr(self, name, value)

    def _expose(self, coefficients: np.ndarray, intercepts: np.ndarray) -> None:
        """Keep the models, (n + 1, outputs, p) and (n + 1, outputs); the last one is for agents never met."""
        self._coefficients, self._intercepts = coefficients, intercepts
        only = slice(None) if coefficients.shape[1] > 1 else 0
        self.coef_, self.intercept_ = coefficients[:-1, only], intercepts[:-1, only]
        self._number = {member: k for k, member in enumerate(self.agents_)}

    # -- what a report asks for ----------------------------------------------------------------------------------

    def _check_fitted(self) -> None:
        check_is_fitted(self, "coef_")

    def _column_names(self) -> tuple[str, ...]:
        """Names of the columns, as numbers."""
        if self._columns is not None:
            return self._columns.names
        return tuple(getattr(self, "feature_names_in_", [f"x{j}" for j in range(self.n_features_in_)]))

    def _kept_rows(self) -> tuple[Any, np.ndarray, np.ndarray] | None:
        """X, labels, and the number of each row's agent, of the rows of the fit."""
        data = self._learned_from
        return None if data is None else (data.X, self._decoded(np.asarray(data.y)), data.owner)

    def _decoded(self, labels: np.ndarray) -> np.ndarray:
        """Numbers, or numbers of classes, from labels as a fit has them."""
        raise NotImplementedError

    def _rows(self, X: Any, agents: Any) -> Coded:
        """More rows, encoded as at fit."""
        _, rows, ids = self._encoded(X, agents)
        if ids is None and len(self.agents_) > 1:
            raise DataError("agents is missing: say whose rows these are, one id for each row")
        number = np.zeros(rows.shape[0], np.int64) if ids is None else agent_numbers(ids, self._number, rows.shape[0])
        return Coded(rows, number)

    # -- predicting ----------------------------------------------------------------------------------------------

    def _encoded(self, X: Any, agents: Any) -> tuple[Any, Any, Any]:
        """Rows as they are named, as numbers, and the ids of their agents."""
        check_is_fitted(self, "coef_")
        X, ids, _ = split_ids(without_target(X, self._target_column), agents, self._agent_column)
        if self._columns is None:
            rows = self._validated(X, reset=False)
        else:
            X = rows = self._columns.apply(X, type(self).__name__)
        return X, rows, ids

    def _labelled(self, X: Any, y: Any, agents: Any) -> tuple[Any, Any, Any]:
        """More rows with labels, named as at fit or given: features, labels and agents."""
        check_is_fitted(self, "coef_")
        return more_labelled(X, y, agents, self._agent_column, self._target_column, type(self).__name__)

    def _margins(self, X: Any, agents: Any) -> np.ndarray:
        """``x . theta_i`` for the agent i of every row, (rows, outputs): the way in for rows to predict."""
        X, rows, ids = self._encoded(X, agents)
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


def _check_targets(y: np.ndarray) -> None:
    """Refuse numbers on a scale."""
    try:
        check_classification_targets(y)
    except ValueError as error:
        raise DataError(str(error)) from None


class PerAgentClassifier(ClassifierMixin, PerAgent):
    """Classes: one output for two of them, and for more each against the rest."""

    _kind = "classifier"
    _labels = "class"

    @property
    def _has_probabilities(self) -> bool:
        return True

    def _encode(self, y: np.ndarray) -> tuple[np.ndarray, int, dict[str, Any]]:
        """Labels -1 and +1; numbers of more classes than two."""
        _check_targets(y)
        check_labels(self._loss, classifies=True)
        classes, codes = np.unique(y, return_inverse=True)
        outputs, fitted = self._of_classes(classes)
        return (2.0 * codes - 1.0 if len(classes) == 2 else codes.astype(float)), outputs, fitted

    def _of_classes(self, classes: np.ndarray) -> tuple[int, dict[str, Any]]:
        """How many outputs there are, and what to remember."""
        _check_targets(classes)
        if len(classes) < 2:
            only = classes.tolist()[0]
            raise DataError(f"y holds one class only, {only!r}: a classifier needs at least two classes")
        return (1 if len(classes) == 2 else len(classes)), {"classes_": classes}

    def _seen(self, found: Survey) -> tuple[int, dict[str, Any]]:
        check_labels(self._loss, classifies=True)
        return self._of_classes(np.asarray(found.classes))

    def _decoded(self, labels: np.ndarray) -> np.ndarray:
        return (labels > 0.0 if len(self.classes_) == 2 else labels).astype(np.int64)

    def _encode_more(self, y: np.ndarray) -> list[np.ndarray]:
        return [class_numbers(self.classes_, y)]

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
        y : (rows,) array_like, or a column name of X
        agents : (rows,) sequence of hashables, or a column name of X, optional
        sample_weight : (rows,) array_like, optional

        Returns
        -------
        float
        """
        X, y, agents = self._labelled(X, y, agents)
        return float(accuracy_score(y, self.predict(X, agents), sample_weight=sample_weight))


class PerAgentRegressor(RegressorMixin, PerAgent):
    """Numbers, learned in units of their deviation from their mean."""

    _kind = "regressor"
    _labels = "number"

    def _encode(self, y: np.ndarray) -> tuple[np.ndarray, int, dict[str, Any]]:
        """The labels in standard units."""
        check_labels(self._loss, classifies=False)
        values = np.asarray(y, dtype=np.float64)
        fitted = self._of_numbers(float(np.mean(values)), float(np.std(values)))
        return standard_units(values, fitted["_center"], fitted["_unit"]), 1, fitted

    def _of_numbers(self, center: float, unit: float) -> dict[str, Any]:
        """What to remember."""
        return {"_center": center, "_unit": 0.0 if unit <= 1e-12 * abs(center) else unit}

    def _seen(self, found: Survey) -> tuple[int, dict[str, Any]]:
        check_labels(self._loss, classifies=False)
        assert found.label_mean is not None
        assert found.label_scale is not None
        return 1, self._of_numbers(found.label_mean, found.label_scale)

    def _decoded(self, labels: np.ndarray) -> np.ndarray:
        return np.asarray(labels * self._unit + self._center)

    def _encode_more(self, y: np.ndarray) -> list[np.ndarray]:
        return [np.asarray(y, dtype=np.float64)]

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
        y : (rows,) array_like, or a column name of X
        agents : (rows,) sequence of hashables, or a column name of X, optional
        sample_weight : (rows,) array_like, optional

        Returns
        -------
        float
        """
        X, y, agents = self._labelled(X, y, agents)
        return float(r2_score(y, self.predict(X, agents), sample_weight=sample_weight))


def standard_units(values: Any, mean: float, unit: float) -> np.ndarray:
    """Numbers less their mean, in units of their deviation; all 0 if there is none."""
    numbers = np.asarray(values, dtype=np.float64)
    return np.zeros_like(numbers) if unit == 0.0 else (numbers - mean) / unit


def check_labels(loss: Any, classifies: bool) -> None:
    """Refuse a loss of numbers for a classifier, and a loss of classes for a regressor."""
    if classifies and loss.labels != SIGNS:
        raise MismatchError(f"{loss!r} takes {loss.labels} for labels: a classifier needs a loss of -1 and +1")
    if not classifies and loss.labels == SIGNS:
        raise MismatchError(f"{loss!r} is for classes: a regressor needs a loss of real labels, such as 'squared'")


def with_mean(models: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Models of agents with so many rows, and one more: their mean by rows, for agents never met."""
    return np.concatenate([models, np.average(models, axis=0, weights=sizes)[None]])


def _checked(X: np.ndarray, y: Any) -> tuple[np.ndarray, np.ndarray]:
    """Encoded features, and labels, as scikit-learn wants them."""
    try:
        return check_X_y(X, y, dtype=np.float64, ensure_all_finite=False)
    except ValueError as error:
        raise DataError(str(error)) from None


def _no_missing(y: Any, ids: Any) -> Any:
    """Y, unless one of its values is missing: that is refused here, where the agent is known."""
    values = np.asarray(y)
    missing = np.flatnonzero(pd.isna(values)) if values.ndim == 1 else np.empty(0, int)
    if missing.size:
        owner = "" if ids is None else f" (agent {as_agent_ids(ids).tolist()[missing[0]]!r})"
        raise DataError(f"row {missing[0]}{owner}: the label is missing (NaN): fill it in, or drop the row")
    return y
