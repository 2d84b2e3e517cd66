"""Estimators of DMTRL: one linear model for each task, and a learned covariance of the tasks."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning

from .._checks import integer
from ..core.losses import BERNOULLI, SIGNS, resolve_loss
from ..core.offsets import Offset
from ..data.columns import Where, row_only
from ..data.sources import as_source, is_source, placed
from ..data.sources.survey import deal, survey
from ..errors import DataError, MismatchError, ParameterError
from ..multitask import Relationship, relationship
from ..multitask.covariance import Covariance, Dense, LowRank, checked_covariance, unrelated
from ..multitask.learn import check_parameters
from ..multitask.sources import ChangedTasks, TasksElsewhere
from . import task_changes
from .canonical import by_content
from .intercepts import FOLDS, calibrated, fold_numbers, random_intercepts, without_levels
from .models import Inputs, Linear
from .over_graph import scaled
from .per_agent import PerAgent, PerAgentClassifier, PerAgentRegressor, Prepared, with_mean
from .task_rows import Look, TaskRows, look, spread

#: Default tolerance for a learned covariance, relative to the objective: a smaller one costs up to five times as much,
#: and changes scores by less than a thousandth (``python benchmarks/relationship.py tolerance``).
LEARNED_TOL = 2e-4
#: Relative tolerance of models that serve only to calibrate probabilities.
CALIBRATION_TOL = 1e-3
#: Parts of the tasks for each worker: a worker that finishes early takes another part, and each holds its own.
PARTS_PER_WORKER = 4
#: Maximum number of rows to which a feature map is fitted, if rows are on a cluster.
MAX_MAP_ROWS = 10_000


class TaskOutput(NamedTuple):
    """One output to learn: two classes, one class against the rest, or numbers."""

    rows: TaskRows
    number: int | None  # of the class; None if there is only one output
    labels: np.ndarray  # of every row
    means: np.ndarray | None  # of columns: first of all rows, then without each fold; None if columns are sparse


class Mapped(Inputs):
    """Inputs that a fitted feature map makes of columns in standard units."""

    are_columns = False

    def __init__(self, features: Any, standard: tuple[np.ndarray, np.ndarray]):
        self.features, self.standard = features, standard

    def of(self, X: Any, where: Where = row_only) -> Any:
        return task_changes.mapped(self.features, scaled(X, *self.standard), where)

    def groups(self, names: Sequence[str]) -> None:
        """Return None: the columns of a feature map have no names here."""

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Refuse to save: a feature map is code."""
        raise DataError(
            f"features={self.features!r} cannot be saved: a feature map is code. Map the rows before they are given "
            "to the model, and leave features out"
        )


@dataclass(repr=False, eq=False)
class _Related(PerAgent):
    """Common base of both estimators. Parameters are documented on the public classes.

    There is no parameter ``members``: a task without rows cannot be related to others.
    """

    features_: Any = field(default=None, init=False)
    _usual: ClassVar[str]  # the default loss
    _folds = 0  # number of folds of rows for calibration

    loss: Any = None
    lam: float = 1e-2
    features: Any = None
    covariance: Any = None
    method: str = "dmtrl"
    max_iter: int = 5000
    rounds: int | None = None
    local_steps: int | None = None
    passes: float = 10.0
    tol: float | None = None
    staleness: int | None = None
    random_state: int = 0
    engine: Any = None

    @property
    def _loss(self) -> Any:  # type: ignore[override]
        return resolve_loss(self._usual if self.loss is None else self.loss)

    def _fit(self, X: Any, y: Any, agents: Any, progress: Any) -> Self:
        """Encode, scale and map rows, learn every output, and put the models in the order of the input."""
        if self.method == "exact" and not np.isfinite(self._loss.smoothness):
            raise MismatchError(
                f'method="exact" is for smooth losses, and {self._loss!r} has a kink: use method="sdca"'
            )
        integer("max_iter", self.max_iter)
        integer("random_state", self.random_state, least=0)
        check_parameters(self._settings() | {"tol": self.tol})
        features = self._fresh_map()
        with ExitStack() as until:
            # Rows of this process are distributed when tasks are related; rows of a source stay with the workers.
            ray = None if self.engine is None else until.enter_context(self.engine.connect())
            given = surveyed(self, ray, X, y, agents) if ray and is_source(X) else self._prepared(X, y, agents)
            order, place = given.order, given.place
            covariance = None
            if self.covariance is not None:
                covariance = checked_covariance(self.covariance, given.members).take(order)
            seen, deviation = spread(given.rows)
            standard = center, scale = _center(seen), deviation
            rows = given.rows.become(ChangedTasks(given.rows.tasks, partial(task_changes.in_units, center, scale)))
            if features is not None:  # the models are linear in the map's columns, so that these are centred, too
                features.fit(rows.sample(rows.n_rows if rows.are_here else MAX_MAP_ROWS))
                rows = rows.become(ChangedTasks(rows.tasks, partial(task_changes.with_map, features)))
                seen = look(rows)
                center, scale = _center(seen), np.ones(len(seen.mean))
                rows = rows.become(ChangedTasks(rows.tasks, partial(task_changes.in_units, center, scale)))
            means = None if seen.square is not None else task_changes.centers(rows, self._folds)
            numbers = [None] if given.outputs == 1 else range(given.outputs)
            outputs = [TaskOutput(rows, k, task_changes.labels_of(seen.labels, k), means) for k in numbers]
            runs = self._runs(outputs, covariance, progress)
            found = [self._levels(run, each, covariance) for run, each in zip(runs, outputs, strict=True)]
        middle, unit = given.label_units
        models, intercepts = (np.stack(each, axis=1)[place] for each in zip(*found, strict=True))
        coefficients = unit * models / scale
        intercepts = unit * intercepts + middle - coefficients @ center
        sizes, covariances = rows.sizes[place], [run._covariance.take(place) for run in runs]
        inputs = Inputs() if features is None else Mapped(features, standard)
        learned = Linear(with_mean(coefficients, sizes), with_mean(intercepts, sizes), inputs, None, runs, covariances)
        # Attributes change only from here on: a fit that is refused leaves the estimator as it was.
        self.features_ = features
        self._remember(given, learned)
        self.run_ = runs[0] if len(runs) == 1 else runs
        self.duality_gap_ = float(max(run.gap for run in runs))
        self.n_iter_ = max(1, *(run.rounds for run in runs))
        return self

    def _runs(self, outputs: list[TaskOutput], covariance: Any, progress: Any) -> list[Relationship]:
        """Learn weights and covariance of every output, each a problem of its own."""
        runs: list[Relationship] = []
        for output in outputs:
            before = sum(run.rounds for run in runs)
            learned = covariance is None and self.method != "single-task"
            tol = LEARNED_TOL if self.tol is None and learned else self.tol
            # The count of rounds continues from the outputs before.
            told = progress and (lambda rounds, apart, before=before: progress(before + rounds, apart))
            runs.append(self._learn(output, covariance, tol=tol, progress=told))
        apart = [run.gap / max(abs(run.value), 1e-300) for run in runs if not run.converged]
        if apart:
            advice = "" if self.method == "exact" else "; raise max_iter, rounds or passes"
            warnings.warn(
                f"stopped before the objective was near its optimum: it may be {max(apart):.1e} of its value above it"
                + advice,
                ConvergenceWarning,
                stacklevel=4,
            )
        return runs

    def _learn(self, output: TaskOutput, covariance: Any, **options: Any) -> Relationship:
        """Learn weights and covariance of one output, after subtracting what the intercepts of the tasks explain."""
        rows, labels, posed = output.rows, output.labels, self._loss
        signs = posed.labels == SIGNS
        level = random_intercepts(labels, rows.owner, rows.n, classes=signs)
        own, numbers = level.own, None
        if signs:
            # For the logistic loss the margin of a task's mean row; for others, with margins about 1, the mean label.
            own = own if posed.likelihood == BERNOULLI else np.tanh(0.5 * own)
            posed = Offset(posed)
        else:
            numbers = float(labels.mean()), self._within(output)
        center = None if output.means is None else output.means[0]
        levels = task_changes.Levels(output.number, center, level.part, own, numbers)
        tasks = rows.become(ChangedTasks(rows.tasks, partial(task_changes.without_task_levels, levels))).tasks
        return relationship(tasks, posed, covariance=covariance, **self._settings(), **options)

    def _settings(self) -> dict[str, Any]:
        """Return the parameters of :func:`coterie.relationship`."""
        return {
            "lam": self.lam,
            "alternations": self.max_iter,
            "rounds": self.rounds,
            "local_steps": self.local_steps,
            "seed": self.random_state,
            "method": self.method,
            "passes": self.passes,
            "staleness": self.staleness,
            "engine": self.engine,
        }

    def _levels(self, run: Relationship, output: TaskOutput, covariance: Any) -> tuple[np.ndarray, np.ndarray]:
        """Return models (m, d) and intercepts (m,) of one output."""
        raise NotImplementedError

    @staticmethod
    def _within(output: TaskOutput) -> float:
        """Return the standard deviation of labels after intercepts are subtracted, the unit of the weights."""
        rows, labels = output.rows, output.labels
        part = random_intercepts(labels, rows.owner, rows.n, classes=False).part
        return float(np.std(without_levels(labels, rows, part))) or 1.0

    def _fresh_map(self) -> Any:
        """Return an unfitted copy of the feature map; None if there is no map."""
        if self.features is None:
            return None
        if isinstance(self.features, type) or not all(hasattr(self.features, name) for name in ("fit", "transform")):
            raise ParameterError(
                f"features={self.features!r} must be a transformer of scikit-learn, such as "
                "RBFSampler(gamma=0.5, random_state=0), or None"
            )
        return clone(self.features, safe=False)

    def _alone(self) -> dict[str, Any]:
        return {"method": "single-task", "covariance": None}

    def _packed(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Add the covariance of the tasks: a matrix for each output if one was given, otherwise factors."""
        described, out = super()._packed()
        out |= {"duality_gap": np.array(self.duality_gap_)}
        covariances = self._models.covariances
        if isinstance(covariances[0], Dense):
            return described, out | {"covariance": np.stack([covariance.dense() for covariance in covariances])}
        for k, (directions, sizes, rest) in enumerate(covariance.factors for covariance in covariances):
            out |= {f"directions_{k}": directions, f"sizes_{k}": sizes, f"rest_{k}": np.array(rest)}
        return described, out

    def _unpacked(self, described: dict[str, Any], arrays: Any, n: int, width: int, graph: Any) -> Linear:
        found, outputs = list[Covariance](), arrays["intercepts"].shape[1]
        if "covariance" in arrays:
            found += [Dense(matrix) for matrix in _finite(arrays, "covariance", (outputs, n, n))]
        for k in range(0 if found else outputs):
            sizes = _finite(arrays, f"sizes_{k}", (len(arrays[f"sizes_{k}"]),))
            directions = _finite(arrays, f"directions_{k}", (n, len(sizes)))
            found.append(LowRank(directions, sizes, float(_finite(arrays, f"rest_{k}", ()))))
        self.duality_gap_ = float(arrays["duality_gap"])
        return Linear.from_arrays(arrays, n, width, covariances=found)

    def _expose(self) -> None:
        super()._expose()
        for name in ("covariance_", "correlation_", "factors_"):
            self.__dict__.pop(name, None)  # cached by the fit before

    def _of_outputs(self, what: Callable[[Covariance], Any]) -> list[Any]:
        self._check_fitted()
        return [what(covariance) for covariance in self._models.covariances]

    @cached_property
    def covariance_(self) -> np.ndarray:
        """The covariance of the tasks as a matrix (one for each class), computed at first access."""
        return _only(np.stack(self._of_outputs(lambda covariance: covariance.dense())))

    @cached_property
    def correlation_(self) -> np.ndarray:
        """The correlations of all tasks as a matrix (one for each class), computed at first access."""
        return _only(np.stack(self._of_outputs(lambda covariance: covariance.correlation())))

    @cached_property
    def factors_(self) -> Any:
        """The covariance of the tasks in factors (for each class), ``Q diag(s) Q' + c I``."""
        return _only(self._of_outputs(lambda covariance: covariance.factors))

    def correlation(self, tasks: Iterable[Any]) -> np.ndarray:
        """Return the correlations of some agents' tasks, without computing the matrix of all tasks.

        Parameters
        ----------
        tasks : iterable of k hashables
            Ids of agents.

        Returns
        -------
        (k, k) ndarray, or (classes, k, k) for more than two classes
            Correlations, in the order of `tasks`.

        Examples
        --------
        >>> import numpy as np
        >>> import coterie as ct
        >>> X, agents = np.random.default_rng(0).normal(size=(60, 2)), np.repeat(["ann", "bob", "cyd"], 20)
        >>> y = np.where(agents == "cyd", -1.0, 1.0) * X[:, 0]
        >>> ct.RelationshipRegressor().fit(X, y, agents=agents).correlation(["cyd", "ann"]).round(2).tolist()
        [[1.0, -1.0], [-1.0, 1.0]]
        """
        self._check_fitted()
        places = self._numbers(tasks)
        return _only(np.stack(self._of_outputs(lambda covariance: covariance.correlation(places))))

    @property
    def coef_names_(self) -> tuple[str, ...]:
        """Names of the columns of ``coef_``, which are not known for the columns of a feature map."""
        self._check_fitted()
        if self.features_ is not None:
            raise AttributeError(f"{self.features_!r} makes columns without names")
        return self._models.names(self._columns.names)


class RelationshipClassifier(_Related, PerAgentClassifier):
    """One linear classifier for each agent, learned together with the relationships of the agents' tasks: DMTRL.

    Minimises ``sum_i 1/n_i sum_j l(w_i . x_ij, y_ij) + lam/2 tr(W' Sigma^-1 W)`` over the weights W and the covariance
    Sigma of the tasks, positive semidefinite of trace one. Every agent is a task. Tasks may be similar, opposite, or
    unrelated. More than two classes are learned one against the rest, each with a covariance of its own. See
    :func:`coterie.relationship`.

    Features are scaled internally; text, categories and missing values of a table are encoded first. Intercepts are not
    penalised: their variance around a common value is learned from all tasks (empirical Bayes), so that one row, or
    rows of one class, are enough. Probabilities are calibrated by five-fold cross-validation: one factor for all
    margins, and the intercepts, are fitted to held-out rows.

    Parameters
    ----------
    loss : str or rule, optional
        "logistic" (default), "hinge", "smooth-hinge", or a loss of labels -1 and +1.
    lam : float
        Weight of the penalty relative to the sum of the tasks' mean losses. Since Sigma has trace one, each of m equal
        tasks pays ``lam/2 |w_i|^2``, as with "single-task", and each of m unrelated tasks with weights of equal norm
        pays m times as much. A large lam thus makes weights small, and favours related tasks. Unlike ``coupling``, lam
        never makes opposite tasks agree: the relationships are learned.
    features : transformer of scikit-learn, optional
        A feature map phi, such as ``RBFSampler(gamma=0.5, n_components=300, random_state=0)``: models are linear in
        phi(x), and ``coef_`` are weights of phi(x), where x is scaled to mean 0 and variance 1. A copy of the map is
        fitted to the rows of all tasks together, as an array without labels. (Random Fourier features use only the
        number of columns.) Give a random map a seed.
    covariance : (m, m) array_like, or (Q, s, c), optional
        A fixed covariance: positive semidefinite of trace one, in the order of ``agents_`` (sorted ids). Three factors,
        Q (m, r), s (r,) and a number c, stand for ``Q diag(s) Q' + c I``. Default: the covariance is learned.
    method : {"dmtrl", "single-task", "exact", "sdca"}
        "dmtrl": distributed, with workers and a server. For comparison: "single-task" learns every task alone; "exact"
        and "sdca" use all rows in one process.
    max_iter : int
        Maximum number of updates of the covariance.
    rounds : int, optional
        Maximum number of rounds of communication with the same covariance. Default: 1 for a learned covariance, 10,000
        for a given one.
    local_steps : int, optional
        Number of local steps of each task in a round. Default: ``passes`` for each row of the task.
    passes : float
        Number of local steps in a round for each row of a task.
    tol : float, optional
        Stop when the duality gap is at most this part of the objective. Default: 1e-7 for a given covariance, 2e-4 for
        a learned one, below which scores hardly change. For reliable correlations use at most 5e-5, the default of
        :func:`coterie.relationship`.
    staleness : int, optional
        Maximum number of rounds by which a worker may be ahead of the slowest. Default: all wait for each other.
    random_state : int
        Seed of the order in which workers process their rows.
    engine : Cluster, optional
        Ray cluster to run on. Rows of a source are then loaded only by its workers, and the result is equal up to
        rounding; ``features`` are fitted to at most 10,000 rows of all tasks. Default: this process.

    Attributes
    ----------
    agents_ : tuple
        Agent ids, in the order of the models.
    classes_ : ndarray
    coef_ : (m, p) ndarray, or (m, classes, p) for more than two classes
    coef_names_ : tuple of str
        Names of the columns of ``coef_``: features, levels of text except the most frequent, and missing indicators.
    intercept_ : (m,) ndarray, or (m, classes)
    factors_ : Factors, or list of Factors
        The covariance of the tasks, ``Q diag(s) Q' + c I``, for each class.
    covariance_, correlation_ : (m, m) ndarray, or (classes, m, m)
        Matrices of the tasks, computed at first access, for at most 16,000 tasks; see also :meth:`correlation`.
    duality_gap_ : float
        Upper bound of the distance of the objective to its optimum; the largest of the classes.
    features_ : transformer or None
        The feature map, fitted.
    run_ : Relationship, or list of Relationship
        Result of :func:`coterie.relationship`, for each class.
    n_iter_ : int
        Number of rounds; the largest of the classes.

    Notes
    -----
    Predictions for an agent that was not in the training rows use the mean of all models, weighted by rows. Without
    ``agents``, all rows belong to one task. The order of the rows and the names of the agents do not matter; ``run_``
    has the tasks in an order of its own, ``run_.members``.

    Examples
    --------
    Two similar tasks, and one that is opposite:

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

    _folds = FOLDS

    def _levels(self, run: Relationship, output: TaskOutput, covariance: Any) -> tuple[np.ndarray, np.ndarray]:
        """Calibrate by held-out rows: return models and intercepts that give right log-odds."""
        rows, labels = output.rows, output.labels
        folds = fold_numbers(rows.sizes, np.arange(rows.n))
        models = np.zeros((rows.n, FOLDS, run.weights.shape[1]))
        for k in np.unique(folds):
            training = task_changes.TrainingTasks.of(rows, folds, k)
            here, sizes = training.numbers, training.sizes
            sub = None if covariance is None else covariance.take(here)
            if sub is not None:
                total = float(sub.diagonal().sum())
                sub = sub.scaled(1.0 / total) if total > 0 else unrelated(len(here))
            means = None if output.means is None else output.means[1 + k :]
            part = TaskOutput(rows.become(training), output.number, labels[folds != k], means)
            found = self._learn(part, sub, tol=max(CALIBRATION_TOL, self.tol or 0.0)).weights
            models[:, k] = np.average(found, axis=0, weights=sizes)
            models[here, k] = found
        slope, intercepts = calibrated(labels, rows.owner, rows.n, task_changes.held_out_margins(rows, models))
        return slope * run.weights, intercepts


class RelationshipRegressor(_Related, PerAgentRegressor):
    """One linear regression for each agent, learned together with the relationships of the agents' tasks: DMTRL.

    Like :class:`RelationshipClassifier`, with numbers as labels. Labels are also scaled internally, to the standard
    deviation that remains without intercepts: a squared loss with random intercepts equals a squared loss of rows and
    labels from which a part of their task's mean is subtracted.

    Parameters
    ----------
    loss : str or rule, optional
        "squared" (default), "huber", or a loss of real labels, which are in units of their standard deviation.
    lam : float
        Weight of the penalty relative to the sum of the tasks' mean losses, as in :class:`RelationshipClassifier`.
    features, covariance, method, max_iter, rounds, local_steps, passes, tol, staleness, random_state, engine
        As in :class:`RelationshipClassifier`.

    Attributes
    ----------
    agents_ : tuple
        Agent ids, in the order of the models.
    coef_ : (m, p) ndarray
    coef_names_ : tuple of str
    intercept_ : (m,) ndarray
    factors_ : Factors
        The covariance of the tasks, ``Q diag(s) Q' + c I``.
    covariance_, correlation_ : (m, m) ndarray
        Matrices of the tasks, computed at first access, for at most 16,000 tasks; see also :meth:`correlation`.
    duality_gap_ : float
        Upper bound of the distance of the objective to its optimum.
    features_ : transformer or None
    run_ : Relationship
    n_iter_ : int
        Number of rounds.

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

    def _levels(self, run: Relationship, output: TaskOutput, covariance: Any) -> tuple[np.ndarray, np.ndarray]:
        rows, models = output.rows, self._within(output) * run.weights
        said = task_changes.margins(rows, models)
        return models, random_intercepts(output.labels, rows.owner, rows.n, said, classes=False).own


def surveyed(model: Any, ray: Any, X: Any, y: Any, agents: Any) -> Prepared:
    """Prepare the rows of a source, like :meth:`.per_agent.PerAgent._prepared`, on the workers of an engine."""
    engine = model.engine
    shared = partial(engine.map, ray)
    source = placed(as_source(X), ray.put)
    asked = {"target": y, "agents": agents, "labels": model._labels, "drop": False, "owner": type(model).__name__}
    found = survey(source, **asked, map=shared)
    if found.names is None and not found.columns.is_identity:
        # Missing values in arrays, which have no names, are refused, as in one process.
        found = survey(source, **asked, map=shared, missing="error")
    outputs, fitted = model._seen(found)
    units = fitted.get("_center", 0.0), fitted.get("_unit", 1.0)
    tasks = ChangedTasks(TasksElsewhere(found), partial(task_changes.encoded, *units))
    rows = TaskRows(tasks, deal(found.sizes, PARTS_PER_WORKER * engine.count(ray, found.n)), shared)
    ordered, order = by_content(rows)
    return Prepared(ordered, order, outputs, found.members, fitted, found.agent_column, found.columns)


def _only(outputs: Any) -> Any:
    """Return a list of outputs, or the only output itself."""
    return outputs if len(outputs) > 1 else outputs[0]


def _finite(arrays: Any, name: str, shape: tuple[int, ...]) -> np.ndarray:
    array: np.ndarray = arrays[name]
    if array.shape != shape:
        raise ValueError(f"{name} has shape {array.shape}, expected {shape}")
    if not np.all(np.isfinite(array)):
        raise ValueError(f"{name} has values that are not finite")
    return array


def _center(found: Look) -> np.ndarray:
    """Return the values to subtract from columns: 0 for sparse ones, since centring would fill them."""
    return found.mean if found.square is None else np.zeros_like(found.mean)


__all__ = ["RelationshipClassifier", "RelationshipRegressor"]
