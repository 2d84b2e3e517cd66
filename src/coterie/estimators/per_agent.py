"""Common base of boosted and relationship estimators: one model for each agent, linear in inputs made of the rows.

Raw rows enter at two places: :meth:`PerAgent._prepared` at fit, and ``_rows`` at prediction.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple, Self

import numpy as np
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils.metaestimators import available_if

from ..core.losses import SIGNS
from ..data import AgentData
from ..data.columns import Columns
from ..data.sources.survey import Survey
from ..data.table import Table, split_target
from ..errors import MismatchError
from ..pooling import one_against_rest
from .canonical import by_content, standard_units
from .collaborative import check_classes, class_numbers, numbered_classes
from .models import Linear
from .reported import FittedEstimator, given_names
from .task_rows import TaskRows


class Prepared(NamedTuple):
    """The rows of a fit: checked, encoded, and in a canonical order, so that neither names nor order matter."""

    rows: TaskRows  # labels: of the only output, or indices of classes
    order: np.ndarray  # agent k of the rows is agent order[k] of the input
    outputs: int  # number of outputs to learn: with more than two classes, one class against the rest each
    members: tuple[Any, ...]  # the agents in the order of the input
    fitted: dict[str, Any]  # attributes to set, from the labels
    column: str | None  # name of the column of agents' ids
    columns: Columns  # the encoding of the features
    given: AgentData | None = None  # rows in the order of the input, agent by agent, if they are in this process

    @property
    def label_units(self) -> tuple[float, float]:
        """Mean and unit of labels that are numbers, 0 and 1 for classes."""
        return self.fitted.get("_center", 0.0), self.fitted.get("_unit", 1.0)

    @property
    def data(self) -> AgentData:
        """All rows, in this process."""
        return self.rows.data

    @property
    def place(self) -> np.ndarray:
        """The index of each agent of the input among the agents of the rows."""
        return np.argsort(self.order)


class PerAgent(FittedEstimator, BaseEstimator):
    """Base class that fits one linear model for each agent. Parameters are documented on the public classes."""

    members: Any = None
    _takes_long = True
    _gaps = "fill"  # how missing values of tables are handled
    _loss: Any  # its `labels` say which labels it takes
    _stranger = "the mean of all models"
    _center, _unit = 0.0, 1.0  # of the labels; the unit is 0 if all labels are equal

    def fit(self, X: Any, y: Any, agents: Any = None, progress: Callable[..., None] | None = None) -> Self:
        """Learn one model for each agent.

        Parameters
        ----------
        X : (rows, p) array_like, sparse matrix or DataFrame; or a source of rows
            A source is a path, a directory, a glob, a mapping, a Ray Dataset, or a :class:`coterie.data.Source`.
        y : (rows,) array_like, or a column name of X
            Classes for a classifier, numbers for a regressor. A named column is not used as a feature; ``predict``
            ignores the column if a frame still contains it.
        agents : (rows,) sequence of hashables, or a column name of X, optional
            The agent of each row. Default: all rows belong to one agent.
        progress : callable, optional
            Called repeatedly: with (wakes done, maximum of wakes) while agents learn over a graph; with (rounds done,
            relative distance from the optimum) while relationships are learned.

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
        """Return labels as the loss takes them or indices of classes, the number of outputs, and attributes to set."""
        raise NotImplementedError

    def _prepared(self, X: Any, y: Any, agents: Any) -> Prepared:
        """Check, encode and order the rows of a fit."""
        table = Table.learn(X, y, agents, self.members, self._gaps, owner=type(self).__name__, drop=False)
        labels, outputs, fitted = self._encode(np.asarray(table.y))
        given = AgentData.of_codes(table.X.astype(np.float64), labels, table.codes, table.members)
        ordered, order = by_content(TaskRows.here(given))
        return Prepared(ordered, order, outputs, given.members, fitted, table.agent_column, table.columns, given)

    def _seen(self, found: Survey) -> tuple[int, dict[str, Any]]:
        """Return the number of outputs and the attributes to set, for labels that workers have surveyed."""
        raise NotImplementedError

    def _remember(self, given: Prepared, models: Linear) -> None:
        """Set the attributes of a fit that succeeded: a fit that is refused leaves the estimator as it was."""
        for name, value in given.fitted.items():
            setattr(self, name, value)
        data = given.given
        kept = None if data is None else (data.X, self._decoded(np.asarray(data.y)), data.owner)
        self._take(given.columns, given.members, given.column, replace(models, learned_from=kept))

    def _alone(self) -> dict[str, Any]:
        """Return parameters with which agents learn without each other."""
        raise NotImplementedError

    # -- files ---------------------------------------------------------------------------------------------------

    def _packed(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Return plain values and arrays that a file holds."""
        return {}, self._models.to_arrays()[1]

    def _unpacked(self, described: dict[str, Any], arrays: Any, n: int, width: int, graph: Any) -> Linear:
        """Return the models of a file, checked against the number of agents and of columns."""
        raise NotImplementedError

    def _decoded(self, labels: np.ndarray) -> np.ndarray:
        """Return numbers, or indices of classes, from labels as the loss takes them."""
        raise NotImplementedError

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags


class PerAgentClassifier(ClassifierMixin, PerAgent):
    """Base class for classes: two classes have one output, and more than two have one output each, against the rest."""

    _kind = "classifier"
    _labels = "class"

    @property
    def _has_probabilities(self) -> bool:
        return True

    def _encode(self, y: np.ndarray) -> tuple[np.ndarray, int, dict[str, Any]]:
        check_labels(self._loss, classifies=True)
        classes, codes = numbered_classes(y)
        outputs, fitted = self._of_classes(classes)
        return (2.0 * codes - 1.0 if len(classes) == 2 else codes.astype(float)), outputs, fitted

    def _of_classes(self, classes: np.ndarray) -> tuple[int, dict[str, Any]]:
        """Return the number of outputs and the attributes to set."""
        return (1 if len(classes) == 2 else len(classes)), {"classes_": classes}

    def _seen(self, found: Survey) -> tuple[int, dict[str, Any]]:
        check_labels(self._loss, classifies=True)
        classes = np.asarray(found.classes)
        check_classes(classes)
        return self._of_classes(classes)

    def _decoded(self, labels: np.ndarray) -> np.ndarray:
        return (labels > 0.0 if len(self.classes_) == 2 else labels).astype(np.int64)

    def _encode_more(self, y: np.ndarray) -> np.ndarray:
        return class_numbers(self.classes_, y)

    def decision_function(self, X: Any, agents: Any = None) -> np.ndarray:
        """Return margins: positive for the second of two classes; with more classes, the largest is predicted.

        Parameters
        ----------
        X : (rows, p) array_like, sparse matrix or DataFrame
        agents : (rows,) sequence of hashables, or a column name of X, optional

        Returns
        -------
        (rows,) ndarray, or (rows, classes)
        """
        margins = self._latent(X, agents)[0]
        return margins[:, 0] if len(self.classes_) == 2 else margins

    def predict(self, X: Any, agents: Any = None) -> np.ndarray:
        """Predict the class of every row by its agent's model, or by the mean model for a new agent.

        Parameters
        ----------
        X, agents
            As in :meth:`decision_function`.

        Returns
        -------
        (rows,) ndarray
        """
        return self._decided(self.decision_function(X, agents))

    @available_if(lambda self: self._has_probabilities)
    def predict_proba(self, X: Any, agents: Any = None) -> np.ndarray:
        """Return calibrated probabilities of the classes; one-against-rest scores are normalised.

        Parameters
        ----------
        X, agents
            As in :meth:`decision_function`.

        Returns
        -------
        (rows, classes) ndarray
        """
        return one_against_rest(self.decision_function(X, agents))

    score = FittedEstimator.score


class PerAgentRegressor(RegressorMixin, PerAgent):
    """Base class for numbers, which are learned in standard units."""

    _kind = "regressor"
    _labels = "number"

    def _encode(self, y: np.ndarray) -> tuple[np.ndarray, int, dict[str, Any]]:
        check_labels(self._loss, classifies=False)
        values = np.asarray(y, dtype=np.float64)
        fitted = self._of_numbers(float(np.mean(values)), float(np.std(values)))
        return standard_units(values, fitted["_center"], fitted["_unit"]), 1, fitted

    def _of_numbers(self, center: float, unit: float) -> dict[str, Any]:
        """Return the attributes to set."""
        return {"_center": center, "_unit": 0.0 if unit <= 1e-12 * abs(center) else unit}

    def _seen(self, found: Survey) -> tuple[int, dict[str, Any]]:
        check_labels(self._loss, classifies=False)
        assert found.label_mean is not None
        assert found.label_scale is not None
        return 1, self._of_numbers(found.label_mean, found.label_scale)

    def _decoded(self, labels: np.ndarray) -> np.ndarray:
        return np.asarray(labels * self._unit + self._center)

    def _encode_more(self, y: np.ndarray) -> np.ndarray:
        return np.asarray(y, dtype=np.float64)

    def predict(self, X: Any, agents: Any = None) -> np.ndarray:
        """Predict every row by its agent's model, or by the mean model for a new agent.

        Parameters
        ----------
        X : (rows, p) array_like, sparse matrix or DataFrame
        agents : (rows,) sequence of hashables, or a column name of X, optional

        Returns
        -------
        (rows,) ndarray
        """
        return np.asarray(self._latent(X, agents)[0][:, 0])

    score = FittedEstimator.score


def check_labels(loss: Any, classifies: bool) -> None:
    """Refuse a loss of numbers for a classifier, and a loss of classes for a regressor."""
    if classifies and loss.labels != SIGNS:
        raise MismatchError(f"{loss!r} takes {loss.labels} as labels: a classifier needs a loss of labels -1 and +1")
    if not classifies and loss.labels == SIGNS:
        raise MismatchError(f"{loss!r} is for classes: a regressor needs a loss of real labels, such as 'squared'")


def with_mean(models: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Append the mean of the models, weighted by the agents' numbers of rows, as the model for new agents."""
    return np.concatenate([models, np.average(models, axis=0, weights=sizes)[None]])
