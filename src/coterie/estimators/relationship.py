"""Estimators that learn how their tasks are related: one linear model for each, and a covariance of them all: DMTRL."""

from __future__ import annotations

import warnings
from typing import Any, Self

import numpy as np
from scipy import sparse
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

from .._checks import integer
from ..core.losses import BERNOULLI, SIGNS, resolve_loss
from ..core.offsets import Offset, with_offsets
from ..data import AgentData
from ..data.matrix import as_features, nonfinite
from ..errors import DataError, MismatchError, ParameterError
from ..multitask import Relationship, relationship
from ..multitask.covariance import correlation
from .canonical import spread
from .intercepts import calibrated, folds, random_intercepts, some_rows, without_levels
from .over_graph import scaled
from .per_agent import PerAgent, PerAgentClassifier, PerAgentRegressor, with_mean

#: How near the optimum models are that only say how sure to be.
ROUGH = 1e-3


class _Related(PerAgent):
    """What both estimators share. Parameters are documented on the public classes.

    ``members`` is no parameter: a task without rows has nothing to relate it to others by.
    """

    features_: Any = None
    _usual: str  # the loss by default

    def __init__(
        self,
        loss: Any = None,
        lam: float = 1e-2,
        features: Any = None,
        covariance: Any = None,
        method: str = "dmtrl",
        max_iter: int = 5000,
        rounds: int | None = None,
        local_steps: int | None = None,
        passes: float = 10.0,
        tol: float | None = None,
        staleness: int | None = None,
        random_state: int = 0,
        engine: Any = None,
    ):
        self.loss = loss
        self.lam = lam
        self.features = features
        self.covariance = covariance
        self.method = method
        self.max_iter = max_iter
        self.rounds = rounds
        self.local_steps = local_steps
        self.passes = passes
        self.tol = tol
        self.staleness = staleness
        self.random_state = random_state
        self.engine = engine

    @property
    def _loss(self) -> Any:  # type: ignore[override]
        return resolve_loss(self._usual if self.loss is None else self.loss)

    def _fit(self, X: Any, y: Any, agents: Any, progress: Any) -> Self:
        """Encode, scale, map, learn weights and covariance of every output, and take the models apart again."""
        if self.method == "exact" and not np.isfinite(self._loss.smoothness):
            raise MismatchError(
                f'method="exact" is for smooth losses, and {self._loss!r} has a kink: use method="sdca"'
            )
        integer("max_iter", self.max_iter)
        integer("random_state", self.random_state, least=0)
        given = self._prepared(X, y, agents)
        data, order, place = given.data, given.order, given.place
        standard = center, scale = _standards(data.X)
        data, features = data.with_features(scaled(data.X, center, scale)), self._fresh_map()
        if features is not None:  # the models are of what the map makes of the rows, and so in its units
            data = data.with_features(_mapped(features.fit(data.X.copy()), data, data.X.copy()))
            center, scale = _standards(data.X)[0], np.ones(data.p)
            data = data.with_features(scaled(data.X, center, scale))
        covariance = self.covariance
        if covariance is not None and np.shape(covariance) == (data.n, data.n):
            covariance = np.asarray(covariance)[np.ix_(order, order)]
        runs = self._runs(data, given.targets, covariance, progress)
        found = [self._levels(run, data, target, covariance) for run, target in zip(runs, given.targets, strict=True)]
        # Nothing was changed before: a fit that is refused leaves the estimator as it was.
        self._remember(given)
        self.run_ = runs[0] if len(runs) == 1 else runs
        self.features_, self._standard = features, standard
        models, intercepts = (np.stack(each, axis=1)[place] for each in zip(*found, strict=True))
        coefficients = self._unit * models / scale
        intercepts = self._unit * intercepts + self._center - coefficients @ center
        sizes = data.sizes[place]
        self._expose(with_mean(coefficients, sizes), with_mean(intercepts, sizes))
        self._relate(np.stack([run.covariance[np.ix_(place, place)] for run in runs]), max(run.gap for run in runs))
        self.n_iter_ = max(1, *(run.rounds for run in runs))
        return self

    def _runs(self, data: AgentData, targets: list[np.ndarray], covariance: Any, progress: Any) -> list[Relationship]:
        """Weights and covariance of every output: problems of their own."""
        runs: list[Relationship] = []
        for target in targets:
            before = sum(run.rounds for run in runs)
            options = {"tol": self.tol, "engine": self.engine, "progress": _after(before, progress)}
            runs.append(self._learn(data, target, covariance, **options))
        apart = [run.gap / max(abs(run.value), 1e-300) for run in runs if not run.converged]
        if apart:
            advice = "" if self.method == "exact" else "; raise max_iter, rounds or passes"
            warnings.warn(
                f"stopped before the objective was near enough its optimum: it may be {max(apart):.1e} of itself above"
                + advice,
                ConvergenceWarning,
                stacklevel=4,
            )
        return runs

    def _learn(self, data: AgentData, labels: np.ndarray, covariance: Any, **options: Any) -> Relationship:
        """Weights and covariance of one output, for intercepts that take what the levels of the tasks explain."""
        posed = self._loss
        signs = posed.labels == SIGNS
        level = random_intercepts(labels, data.owner, data.n, classes=signs)
        X = data.X if data.is_sparse else without_levels(data.X, data, level.part)
        if signs:
            # The margin of a task's mean row; for other losses of classes, whose margins are about 1, the mean label.
            own = level.own if posed.likelihood == BERNOULLI else np.tanh(0.5 * level.own)
            posed, labels = Offset(posed), with_offsets(labels, own[data.owner])
        else:
            unit, own = self._within(data, labels), level.own[data.owner]
            labels = (labels - own if data.is_sparse else without_levels(labels, data, level.part)) / unit
        return relationship(
            data._like(X=X, y=labels),
            posed,
            lam=self.lam,
            alternations=self.max_iter,
            rounds=self.rounds,
            local_steps=self.local_steps,
            covariance=covariance,
            seed=self.random_state,
            method=self.method,
            passes=self.passes,
            staleness=self.staleness,
            **options,
        )

    def _levels(
        self, run: Relationship, data: AgentData, labels: np.ndarray, covariance: Any
    ) -> tuple[np.ndarray, np.ndarray]:
        """Models (m, d) and intercepts (m,) of one output."""
        raise NotImplementedError

    @staticmethod
    def _within(data: AgentData, labels: np.ndarray) -> float:
        """The deviation of labels that intercepts leave, in which weights are measured."""
        part = random_intercepts(labels, data.owner, data.n, classes=False).part
        return float(np.std(without_levels(labels, data, part))) or 1.0

    def _fresh_map(self) -> Any:
        """A copy of the feature map that is not fitted; None if there is no map."""
        if self.features is None:
            return None
        if isinstance(self.features, type) or not all(hasattr(self.features, name) for name in ("fit", "transform")):
            raise ParameterError(
                f"features={self.features!r} must be a transformer of scikit-learn, such as "
                "RBFSampler(gamma=0.5, random_state=0), or None"
            )
        return clone(self.features, safe=False)

    def _relate(self, covariances: np.ndarray, gap: float) -> None:
        """Keep how the tasks are related, (outputs, m, m), and how sure that is."""
        only = slice(None) if len(covariances) > 1 else 0
        self.covariance_ = covariances[only]
        self.correlation_ = np.stack([correlation(covariance) for covariance in covariances])[only]
        self.duality_gap_ = float(gap)

    def _inputs(self, data: AgentData) -> Any:
        """What models are weights of: the features, or what the map makes of them."""
        if self.features_ is None:
            return data.X
        return _mapped(self.features_, data, scaled(data.X, *self._standard))


class RelationshipClassifier(_Related, PerAgentClassifier):
    """One linear classifier for each agent, learned with how the agents' tasks are related: DMTRL.

    Minimises ``sum_i 1/n_i sum_j l(w_i . x_ij, y_ij) + lam/2 tr(W' Sigma^-1 W)`` over the weights W and the covariance
    Sigma of the tasks, positive semidefinite of trace one. Every agent is a task. Tasks may be alike, opposite, or
    nothing to each other. More than two classes are learned one against the rest, each with a covariance of its own.
    See :func:`coterie.relationship`.

    Features are scaled inside. Intercepts are not part of the penalty: they are as far from a common one as the rows
    of a task say, with a variance that is learned from all tasks (empirical Bayes), so that one row, or rows of one
    class, are enough. A slope for all margins, and the intercepts, come from rows that models have not seen, in five
    folds: so probabilities are calibrated.

    Parameters
    ----------
    loss : str or rule, optional
        "logistic" (default), "hinge", "smooth-hinge", or a loss for labels -1 and +1.
    lam : float
        Weight of the penalty against the sum of the tasks' mean losses. Since Sigma has trace one, m tasks that are
        all alike pay ``lam/2 |w_i|^2`` each, as they do with "single-task"; m tasks of the same size that have nothing
        in common pay m times as much. So a large lam keeps weights small, and makes tasks share. It is no ``coupling``:
        no lam makes opposite tasks agree, and what related tasks share is learned.
    features : transformer of scikit-learn, optional
        A feature map phi, such as ``RBFSampler(gamma=0.5, n_components=300, random_state=0)``: models are linear in
        phi(x), and ``coef_`` are weights of phi(x), where x is scaled to mean 0 and variance 1. A copy of it is fitted
        to the rows of all tasks together, as an array, without labels: it sees all of them. Random Fourier features
        look at no more than how many columns there are. Give it a seed, if it is random.
    covariance : (m, m) array_like, optional
        Keep this one: positive semidefinite of trace one, in the order of ``agents_``, sorted ids.
    method : {"dmtrl", "single-task", "exact", "sdca"}
        "dmtrl": workers and a server. For comparison "single-task", every task alone; "exact" and "sdca", with all
        rows in one place.
    max_iter : int
        How many times the covariance may be fitted to the weights.
    rounds : int, optional
        How many rounds of communication there may be with the same covariance. Default: 1 where it is learned; 10,000
        where it is given.
    local_steps : int, optional
        Local steps of each task in a round, the same for all. Default: ``passes`` for each row that a task has.
    passes : float
        Local steps in a round for each row of a task.
    tol : float, optional
        Stop when the objective is within this part of itself of its optimum, by the duality gap. Default: 1e-7 for a
        given covariance, 5e-5 for a learned one.
    staleness : int, optional
        Rounds without waiting: a worker may be so many rounds ahead of the slowest. Default: all wait for each other.
    random_state : int
        Of the order in which workers take their rows.
    engine : Cluster, optional
        Run on a Ray cluster. Default: in this process.

    Attributes
    ----------
    agents_ : tuple
        Agent ids, in the order of the models.
    classes_ : ndarray
    coef_ : (m, p) ndarray, or (m, classes, p) for more than two classes
    intercept_ : (m,) ndarray, or (m, classes)
    covariance_, correlation_ : (m, m) ndarray, or (classes, m, m)
        Of the tasks.
    duality_gap_ : float
        How far the objective may be from its optimum; the largest among the classes.
    features_ : transformer or None
        The feature map, fitted.
    run_ : Relationship, or list of Relationship
        What :func:`coterie.relationship` found; of each class.
    n_iter_ : int
        Rounds; the most among the classes.

    Notes
    -----
    An agent that was never met gets the mean of all models, weighted by rows. Without ``agents``, all rows belong to
    one task. Neither the order of the rows nor the names of the agents matter; ``run_`` has the tasks in an order of
    its own, ``run_.members``.

    Examples
    --------
    Two tasks that are alike, and one that is the opposite:

    >>> import numpy as np
    >>> import coterie as ct
    >>> rng = np.random.default_rng(0)
    >>> X, agents = rng.normal(size=(90, 2)), np.repeat(["ann", "bob", "cyd"], 30)
    >>> y = (X[:, 0] > 0) != (agents == "cyd")
    >>> model = ct.RelationshipClassifier().fit(X, y, agents=agents)
    >>> np.sign(model.correlation_).tolist()
    [[1.0, 1.0, -1.0], [1.0, 1.0, -1.0], [-1.0, -1.0, 1.0]]
    >>> model.predict([[1.0, 0.0], [1.0, 0.0]], agents=["bob", "cyd"])
    array([ True, False])
    """

    _usual = "logistic"

    @property
    def _has_probabilities(self) -> bool:
        return self._loss.likelihood == BERNOULLI

    def _levels(
        self, run: Relationship, data: AgentData, labels: np.ndarray, covariance: Any
    ) -> tuple[np.ndarray, np.ndarray]:
        """A slope and intercepts for log-odds that are right, by rows that models have not seen."""
        margins = np.zeros(data.n_rows)
        for train, test in folds(data):
            part = some_rows(data, train)
            here = np.flatnonzero(part.sizes)
            sub = None if covariance is None else np.asarray(covariance)[np.ix_(here, here)]
            if sub is not None:
                total = np.trace(sub)
                sub = sub / total if total > 0 else np.eye(len(here)) / len(here)
            rough = max(ROUGH, self.tol or 0.0)
            found = _models_of(self._learn(part.only(here), labels[train], sub, tol=rough))
            models = np.repeat(np.average(found, axis=0, weights=part.sizes[here])[None], data.n, axis=0)
            models[here] = found
            margins[test] = _products(data.X[test], models[data.owner[test]])
        slope, intercepts = calibrated(labels, data.owner, data.n, margins)
        return slope * _models_of(run), intercepts


class RelationshipRegressor(_Related, PerAgentRegressor):
    """One linear regression for each agent, learned with how the agents' tasks are related: DMTRL.

    As :class:`RelationshipClassifier`, with numbers in place of classes. Labels are scaled inside, too, to the
    deviation that the intercepts leave: a squared loss with random intercepts is that of rows and labels less a part
    of their task's mean.

    Parameters
    ----------
    loss : str or rule, optional
        "squared" (default), "huber", or a loss of real labels, in units of their deviation.
    lam : float
        Weight of the penalty against the sum of the tasks' mean losses, as in :class:`RelationshipClassifier`.
    features, covariance, method, max_iter, rounds, local_steps, passes, tol, staleness, random_state, engine
        As in :class:`RelationshipClassifier`.

    Attributes
    ----------
    agents_ : tuple
        Agent ids, in the order of the models.
    coef_ : (m, p) ndarray
    intercept_ : (m,) ndarray
    covariance_, correlation_ : (m, m) ndarray
        Of the tasks.
    duality_gap_ : float
        How far the objective may be from its optimum.
    features_ : transformer or None
    run_ : Relationship
    n_iter_ : int
        Rounds.

    Examples
    --------
    >>> import numpy as np
    >>> import coterie as ct
    >>> rng = np.random.default_rng(0)
    >>> X, agents = rng.normal(size=(60, 2)), np.repeat(["ann", "bob", "cyd"], 20)
    >>> model = ct.RelationshipRegressor().fit(X, X @ [1.0, 2.0] + 3.0, agents=agents)
    >>> model.coef_.round(1).tolist(), model.intercept_.round(1).tolist()
    ([[1.0, 2.0], [1.0, 2.0], [1.0, 2.0]], [3.0, 3.0, 3.0])
    >>> model.correlation_.round(2).tolist()
    [[1.0, 1.0, 1.0], [1.0, 1.0, 1.0], [1.0, 1.0, 1.0]]
    """

    _usual = "squared"

    def _levels(
        self, run: Relationship, data: AgentData, labels: np.ndarray, covariance: Any
    ) -> tuple[np.ndarray, np.ndarray]:
        models = self._within(data, labels) * _models_of(run)
        said = _products(data.X, models[data.owner])
        return models, random_intercepts(labels, data.owner, data.n, said, classes=False).own


def _models_of(run: Relationship) -> np.ndarray:
    """One row for each task."""
    return run.weights


def _after(before: int, progress: Any) -> Any:
    """Progress that goes on where it was, in rounds."""
    return None if progress is None else lambda rounds, apart: progress(before + rounds, apart)


def _standards(X: Any) -> tuple[np.ndarray, np.ndarray]:
    """What to take off columns, and what to divide them by. Centring would fill a sparse matrix."""
    mean, deviation = spread(X)
    return (np.zeros_like(mean) if sparse.issparse(X) else mean), deviation


def _products(X: Any, models: np.ndarray) -> np.ndarray:
    """``x_r . w_r`` for every row."""
    if sparse.issparse(X):
        return np.asarray(X.multiply(models).sum(axis=1)).ravel()
    return np.einsum("rk,rk->r", X, models)


def _mapped(features: Any, data: AgentData, X: Any) -> Any:
    """What a fitted feature map makes of rows, checked."""
    matrix, _ = as_features(features.transform(X))
    if matrix.shape[0] != data.n_rows:
        raise DataError(f"{features!r} made {matrix.shape[0]} rows of {data.n_rows}: expected one for each")
    rows, _ = nonfinite(matrix)
    if rows.size:
        raise DataError(f"{data.where(int(rows[0]))}: {features!r} makes NaN or infinity of it")
    return matrix


__all__ = ["RelationshipClassifier", "RelationshipRegressor"]
