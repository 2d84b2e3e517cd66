"""Estimators that learn how their tasks are related: one linear model for each, and a covariance of them all: DMTRL."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any, Self

import numpy as np
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

from .data import AgentData, _nonfinite, as_features
from .errors import DataError, ParameterError
from .estimators.over_graph import GraphClassifier, GraphRegressor, _Collaborative, _scaled
from .multitask import Relationship, relationship
from .multitask.covariance import correlation
from .problem import resolve_loss


class _Related(_Collaborative):
    """What both estimators share. Parameters are documented on the public classes."""

    members = None  # a task without rows has nothing to relate it to others by
    tol: Any
    run_: Any
    features_: Any = None
    _center = 0.0  # of the labels

    def __init__(
        self,
        loss: Any = "squared",
        lam: float = 1e-2,
        features: Any = None,
        fit_intercept: bool = True,
        standardize: bool = False,
        covariance: Any = None,
        method: str = "dmtrl",
        alternations: int = 5000,
        rounds: int | None = None,
        local_steps: int | None = None,
        passes: float = 10.0,
        tol: float | None = None,
        staleness: int | None = None,
        seed: int = 0,
        engine: Any = None,
    ):
        self.loss = loss
        self.lam = lam
        self.features = features
        self.fit_intercept = fit_intercept
        self.standardize = standardize
        self.covariance = covariance
        self.method = method
        self.alternations = alternations
        self.rounds = rounds
        self.local_steps = local_steps
        self.passes = passes
        self.tol = tol
        self.staleness = staleness
        self.seed = seed
        self.engine = engine

    def _fit(  # type: ignore[override]
        self, X: Any, y: Any, agents: Any, progress: Callable[[int, float], None] | None
    ) -> Self:
        """Encode, map, learn weights and covariance of every output, and take the models apart again."""
        loss = resolve_loss(self.loss)
        data, targets, fitted, column, center, scale = self._prepared(X, y, agents, loss)
        self._check_tasks(data, targets, fitted)
        features = self._fresh_map()
        standard = center, scale
        if features is not None:  # the models are of what the map makes of the rows, and so in its units
            data = data.with_features(_mapped(features.fit(data.X.copy()), data, data.X.copy()))
            center, scale = np.zeros(data.p), np.ones(data.p)
        runs = self._runs(data.append_column() if self.fit_intercept else data, targets, loss, progress)
        # Nothing was changed before: a fit that is refused leaves the estimator as it was.
        self.agents_, self._agent_column = data.members, column
        self.run_ = runs[0] if len(runs) == 1 else runs
        self.features_, self._standard = features, standard
        for name, value in fitted.items():
            setattr(self, name, value)
        models = np.stack([run.weights.T for run in runs], axis=1)
        self._take_apart(models, data.sizes, data.p, center, scale)
        self._expose(self._coefficients, self._intercepts + self._center)
        self._relate(np.stack([run.covariance for run in runs]), max(run.gap for run in runs))
        self.n_iter_ = max(1, *(run.rounds for run in runs))
        return self

    def _runs(self, data: AgentData, targets: list[np.ndarray], loss: Any, progress: Any) -> list[Relationship]:
        """Weights and covariance of every output: problems of their own."""
        runs: list[Relationship] = []
        for target in targets:
            before = sum(run.rounds for run in runs)
            runs.append(
                relationship(
                    data.with_labels(target),
                    loss,
                    self.lam,
                    self.alternations,
                    self.rounds,
                    self.local_steps,
                    self.covariance,
                    self.seed,
                    self.engine,
                    method=self.method,
                    passes=self.passes,
                    tol=self.tol,
                    staleness=self.staleness,
                    progress=_after(before, progress),
                )
            )
        late = [run for run in runs if not run.converged]
        if late:
            worst = max(late, key=lambda run: run.gap / max(abs(run.value), 1e-300))
            warnings.warn(
                f"{worst.notes[-1]}: standardize=True does",
                ConvergenceWarning,
                stacklevel=4,
            )
        return runs

    def _check_tasks(self, data: AgentData, targets: list[np.ndarray], fitted: dict[str, Any]) -> None:
        """Refuse tasks that nothing can be learned from, in terms of the labels that were given."""

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
        return _mapped(self.features_, data, _scaled(data.X, *self._standard))


class RelationshipClassifier(_Related, GraphClassifier):
    """One linear classifier for each agent, learned with how the agents' tasks are related: DMTRL.

    Minimises ``sum_i 1/n_i sum_j l(w_i . x_ij, y_ij) + lam/2 tr(W Sigma^-1 W')`` over the weights W and the covariance
    Sigma of the tasks, positive semidefinite of trace one. Every agent is a task. Tasks may be alike, opposite, or
    nothing to each other. More than two classes are learned one against the rest, each with a covariance of its own.
    See :func:`coterie.relationship`.

    Parameters
    ----------
    loss : str or rule
        "logistic", "hinge", "smooth-hinge", or a loss for labels -1 and +1.
    lam : float
        Weight of the penalty against the sum of the tasks' mean losses. Since Sigma has trace one, m tasks that are
        all alike pay ``lam/2 |w_i|^2`` each, as they do with "single-task"; m tasks of the same size that have nothing
        in common pay m times as much. So a large lam keeps weights small, and makes tasks share.
    features : transformer of scikit-learn, optional
        A feature map phi, such as ``RBFSampler(gamma=0.5, n_components=300, random_state=0)``: models are linear in
        phi(x), and ``coef_`` are weights of phi(x). A copy of it is fitted to the rows of all tasks together, as an
        array, without labels: it sees all of them. Random Fourier features look at no more than how many columns there
        are. Give it a seed, if it is random.
    fit_intercept : bool
        Whether every model has a constant feature. Its weight is penalised and shared like the others.
    standardize : bool
        Whether to scale the features to mean 0 and variance 1 over all rows (sparse features are not centred), before
        a feature map. It needs those two numbers of every feature to be known to all agents; ``coef_`` is in the
        original units, or in those of the map.
    covariance : (m, m) array_like, optional
        Keep this one: positive semidefinite of trace one, in the order of ``agents_``, sorted ids.
    method : {"dmtrl", "single-task", "exact", "sdca"}
        "dmtrl": workers and a server. For comparison "single-task", every task alone; "exact" and "sdca", with all
        rows in one place.
    alternations : int
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
    seed : int
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
    Every task needs rows of all classes. An agent that was never met gets the mean of all models, weighted by rows.
    Without ``agents``, all rows belong to one task.

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

    def __init__(
        self,
        loss: Any = "logistic",
        lam: float = 1e-2,
        features: Any = None,
        fit_intercept: bool = True,
        standardize: bool = False,
        covariance: Any = None,
        method: str = "dmtrl",
        alternations: int = 5000,
        rounds: int | None = None,
        local_steps: int | None = None,
        passes: float = 10.0,
        tol: float | None = None,
        staleness: int | None = None,
        seed: int = 0,
        engine: Any = None,
    ):
        super().__init__(
            loss,
            lam,
            features,
            fit_intercept,
            standardize,
            covariance,
            method,
            alternations,
            rounds,
            local_steps,
            passes,
            tol,
            staleness,
            seed,
            engine,
        )

    def fit(  # type: ignore[override]
        self, X: Any, y: Any, agents: Any = None, progress: Callable[[int, float], None] | None = None
    ) -> Self:
        """Learn one model for each agent, and how they are related.

        Parameters
        ----------
        X : (rows, p) array_like, sparse matrix or DataFrame
        y : (rows,) array_like
            Classes.
        agents : (rows,) sequence of hashables, or a column name of X, optional
            Whose row it is. Default: all rows belong to one task.
        progress : callable, optional
            Called with (rounds done, part of the objective that it may be from its optimum) now and then; for one
            class after the other.

        Returns
        -------
        RelationshipClassifier

        Raises
        ------
        DataError
            If a task has no rows of one of the classes, among other things.

        Examples
        --------
        >>> import coterie as ct
        >>> X, y, ids = [[0.0], [1.0], [2.0], [3.0]], ["no", "no", "yes", "yes"], ["ann", "bob", "ann", "bob"]
        >>> model = ct.RelationshipClassifier(standardize=True).fit(X, y, agents=ids)
        >>> model.predict(X, agents=ids).tolist()
        ['no', 'no', 'yes', 'yes']
        """
        return self._fit(X, y, agents, progress)

    def _check_tasks(self, data: AgentData, targets: list[np.ndarray], fitted: dict[str, Any]) -> None:
        signs = targets if len(targets) > 1 else [-targets[0], targets[0]]
        rows = [np.bincount(data.owner, weights=sign[data.origin] > 0, minlength=data.n) for sign in signs]
        has, names = np.stack(rows, axis=1) > 0, fitted["classes_"].tolist()
        lacking = np.flatnonzero(~has.all(axis=1))
        if not lacking.size:
            return
        task, here = data.members[lacking[0]], has[lacking[0]]
        needed = "both are" if len(names) == 2 else "all are"
        found = (
            f"rows of one class only, {names[int(here.argmax())]!r}"
            if here.sum() == 1
            else f"no rows of class {names[int(here.argmin())]!r}"
        )
        raise DataError(f"task {task!r} has {found}: {needed} needed to learn what tells them apart")


class RelationshipRegressor(_Related, GraphRegressor):
    """One linear regression for each agent, learned with how the agents' tasks are related: DMTRL.

    As :class:`RelationshipClassifier`, with numbers in place of classes. With an intercept, the overall mean of the
    labels, a number that all agents must know, is subtracted first: what is penalised is only how far a task's
    intercept is from it.

    Parameters
    ----------
    loss : str or rule
        "squared", "huber", or a loss of real labels.
    lam : float
        Weight of the penalty against the sum of the tasks' mean losses, as in :class:`RelationshipClassifier`. Losses
        grow with the scale of the labels, and so should lam.
    features, fit_intercept, standardize, covariance, method, alternations, rounds, local_steps, passes, tol
        As in :class:`RelationshipClassifier`.
    staleness, seed, engine
        As in :class:`RelationshipClassifier`.

    Attributes
    ----------
    agents_ : tuple
        Agent ids, in the order of the models.
    coef_ : (m, p) ndarray
    intercept_ : (m,) ndarray
        With the mean of the labels.
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

    def fit(  # type: ignore[override]
        self, X: Any, y: Any, agents: Any = None, progress: Callable[[int, float], None] | None = None
    ) -> Self:
        """Learn one model for each agent, and how they are related.

        Parameters
        ----------
        X : (rows, p) array_like, sparse matrix or DataFrame
        y : (rows,) array_like
            Numbers.
        agents : (rows,) sequence of hashables, or a column name of X, optional
            Whose row it is. Default: all rows belong to one task.
        progress : callable, optional
            Called with (rounds done, part of the objective that it may be from its optimum) now and then.

        Returns
        -------
        RelationshipRegressor

        Examples
        --------
        >>> import coterie as ct
        >>> X, y, ids = [[0.0], [1.0], [2.0], [3.0]], [0.0, 2.0, 4.0, 6.0], ["ann", "bob", "ann", "bob"]
        >>> model = ct.RelationshipRegressor(lam=1e-6).fit(X, y, agents=ids)
        >>> model.coef_.round(2).tolist()
        [[2.0], [2.0]]
        """
        return self._fit(X, y, agents, progress)

    def _encode(self, y: np.ndarray, loss: Any) -> tuple[list[np.ndarray], dict[str, Any]]:
        """The labels around their mean, if models have an intercept to put it back."""
        [values], _ = super()._encode(y, loss)
        center = float(np.mean(values)) if self.fit_intercept else 0.0
        return [values - center], {"_center": center}


def _after(before: int, progress: Any) -> Any:
    """Progress that goes on where it was, in rounds."""
    return None if progress is None else lambda rounds, apart: progress(before + rounds, apart)


def _mapped(features: Any, data: AgentData, X: Any) -> Any:
    """What a fitted feature map makes of rows, checked."""
    matrix, _ = as_features(features.transform(X))
    if matrix.shape[0] != data.n_rows:
        raise DataError(f"{features!r} made {matrix.shape[0]} rows of {data.n_rows}: expected one for each")
    rows, _ = _nonfinite(matrix)
    if rows.size:
        raise DataError(f"{data.where(int(rows[0]))}: {features!r} makes NaN or infinity of it")
    return matrix


__all__ = ["RelationshipClassifier", "RelationshipRegressor"]
