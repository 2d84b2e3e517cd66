"""One model for each agent, linear in what the rows are turned into: what boosted and relationship estimators share.

Raw rows come in at two places: :meth:`PerAgent._prepared` when models are learned, and ``_rows`` when they predict.
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
    """What a fit was given: checked, encoded, and in an order of its own, so that neither names nor order matter."""

    rows: TaskRows  # labels: of the only output, or the number of the class
    order: np.ndarray  # agent k of the rows is agent order[k] of those that were given
    outputs: int  # what is to be learned: one class against the rest each
    members: tuple[Any, ...]  # the agents as they were given
    fitted: dict[str, Any]  # what to remember of the labels
    column: str | None  # that held the agents' ids
    columns: Columns  # how features became numbers
    given: AgentData | None = None  # rows as they were given, agent by agent, if they are in this process

    @property
    def label_units(self) -> tuple[float, float]:
        """Mean and unit of labels that are numbers, as the rows have them."""
        return self.fitted.get("_center", 0.0), self.fitted.get("_unit", 1.0)

    @property
    def data(self) -> AgentData:
        """All rows, in this process."""
        return self.rows.data

    @property
    def place(self) -> np.ndarray:
        """Where the rows have each agent that was given."""
        return np.argsort(self.order)


class PerAgent(FittedEstimator, BaseEstimator):
    """Rows in, a linear model for each agent out. Parameters are documented on the public classes."""

    members: Any = None
    _takes_long = True
    _gaps = "fill"  # what is done about gaps of tables
    _loss: Any  # which says what labels are
    _stranger = "the mean of all models"
    _center, _unit = 0.0, 1.0  # of the labels; a unit of 0 if they are all alike: there is only the mean to learn

    def fit(self, X: Any, y: Any, agents: Any = None, progress: Callable[..., None] | None = None) -> Self:
        """Learn one model for each agent.

        Parameters
        ----------
        X : (rows, p) array_like, sparse matrix or DataFrame; or where the rows are
            A path, a directory, a glob, a mapping, a Ray Dataset, or a :class:`coterie.data.Source`.
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
        table = Table.learn(X, y, agents, self.members, self._gaps, owner=type(self).__name__, drop=False)
        labels, outputs, fitted = self._encode(np.asarray(table.y))
        given = AgentData.of_codes(table.X.astype(np.float64), labels, table.codes, table.members)
        ordered, order = by_content(TaskRows.here(given))
        return Prepared(ordered, order, outputs, given.members, fitted, table.agent_column, table.columns, given)

    def _seen(self, found: Survey) -> tuple[int, dict[str, Any]]:
        """How many outputs there are, and what to remember of labels that workers have looked at."""
        raise NotImplementedError

    def _remember(self, given: Prepared, models: Linear) -> None:
        """What a fit has learned that went well: one that is refused leaves the estimator as it was."""
        for name, value in given.fitted.items():
            setattr(self, name, value)
        data = given.given
        kept = None if data is None else (data.X, self._decoded(np.asarray(data.y)), data.owner)
        self._take(given.columns, given.members, given.column, replace(models, learned_from=kept))

    def _alone(self) -> dict[str, Any]:
        """Settings with which agents learn by themselves."""
        raise NotImplementedError

    # -- files ---------------------------------------------------------------------------------------------------

    def _packed(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """What a file holds of the models: arrays."""
        return {}, self._models.to_arrays()[1]

    def _unpacked(self, described: dict[str, Any], arrays: Any, n: int, width: int, graph: Any) -> Linear:
        """Models back from a file, of so many agents and columns."""
        raise NotImplementedError

    def _decoded(self, labels: np.ndarray) -> np.ndarray:
        """Numbers, or numbers of classes, from labels as a fit has them."""
        raise NotImplementedError

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags


class PerAgentClassifier(ClassifierMixin, PerAgent):
    """Classes: one output for two of them, and for more each against the rest."""

    _kind = "classifier"
    _labels = "class"

    @property
    def _has_probabilities(self) -> bool:
        return True

    def _encode(self, y: np.ndarray) -> tuple[np.ndarray, int, dict[str, Any]]:
        """Labels -1 and +1; numbers of more classes than two."""
        check_labels(self._loss, classifies=True)
        classes, codes = numbered_classes(y)
        outputs, fitted = self._of_classes(classes)
        return (2.0 * codes - 1.0 if len(classes) == 2 else codes.astype(float)), outputs, fitted

    def _of_classes(self, classes: np.ndarray) -> tuple[int, dict[str, Any]]:
        """How many outputs there are, and what to remember."""
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
        """Margins: positive for the second of two classes; the largest wins among more.

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
        """The class of every row, by its agent's model; by the mean model for an agent never met.

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
        """Probabilities of the classes, calibrated; one-against-rest scores are normalised.

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

    def _encode_more(self, y: np.ndarray) -> np.ndarray:
        return np.asarray(y, dtype=np.float64)

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
        return np.asarray(self._latent(X, agents)[0][:, 0])

    score = FittedEstimator.score


def check_labels(loss: Any, classifies: bool) -> None:
    """Refuse a loss of numbers for a classifier, and a loss of classes for a regressor."""
    if classifies and loss.labels != SIGNS:
        raise MismatchError(f"{loss!r} takes {loss.labels} for labels: a classifier needs a loss of -1 and +1")
    if not classifies and loss.labels == SIGNS:
        raise MismatchError(f"{loss!r} is for classes: a regressor needs a loss of real labels, such as 'squared'")


def with_mean(models: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Models of agents with so many rows, and one more: their mean by rows, for agents never met."""
    return np.concatenate([models, np.average(models, axis=0, weights=sizes)[None]])
