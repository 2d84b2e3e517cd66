"""The main estimators: one model for each agent of a table, learned together.

``fit(X, y, agents=ids)`` is all that grouped data need. The default method is partial pooling (:mod:`coterie.pooling`):
a common model and personal deviations from it, whose variances are learned from the rows. The papers' methods over a
graph are chosen by name, and imported when chosen.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np

from .. import pooling
from .._checks import choice, fraction
from .._threads import one_thread
from ..data.frames import split_ids
from ..data.ids import agent_codes
from ..data.sources import is_dataset
from ..data.table import Table, labels_of, split_target, weights_of
from ..engines.cluster import Cluster
from ..errors import DataError, MismatchError, ParameterError
from ..pooling.designs import DESIGNS, PLAIN
from ..pooling.families import MAX_LOG_RATE
from .by_batches import by_batches
from .models import FittedModel, Linear, Populations
from .protocol import Estimator
from .reported import FittedEstimator, given_names

DEVIATIONS = ("auto", "full", "diagonal", "scalar")
#: Names of methods; other methods of the library cannot be used with these estimators.
METHODS = ("pooling", "cd", "admm", "djam", "propagation", "local", "global", "component", "ridge-to-mean")
#: Losses of pooling, for a regressor and for a classifier.
REGRESSOR_LOSSES, CLASSIFIER_LOSSES = ("auto", "squared", "student", "poisson"), ("auto", "logistic")


@dataclass(repr=False, eq=False)
class _Collaborative(FittedEstimator, Estimator):
    """Common base of both estimators. Parameters are documented on the public classes."""

    _losses: ClassVar[tuple[str, ...]]
    _stranger = "the common model"

    method: Any = "pooling"
    design: str = "auto"
    deviations: str = "auto"
    graph: Any = None
    loss: Any = None
    missing: str = "fill"
    members: Any = None
    coupling: float = 1.0
    lam: float = 1.0
    ridge: Any = "1/m"
    confidence: Any = "size"
    n_neighbors: int = 5
    tol: float = 1e-6
    max_iter: int = 10_000
    random_state: int = 0
    n_jobs: int | None = None
    engine: Any = None

    def _encode(self, y: np.ndarray) -> tuple[np.ndarray, dict[str, Any]]:
        """Return labels as the model takes them (numbers, or indices of classes), and the attributes to set."""
        raise NotImplementedError

    # -- fitting -------------------------------------------------------------------------------------------------

    def fit(
        self,
        X: Any,
        y: Any,
        agents: Any = None,
        sample_weight: Any = None,
        progress: Callable[..., None] | None = None,
    ) -> Self:
        """Learn one model for each agent.

        Parameters
        ----------
        X : (rows, p) array_like, sparse matrix or DataFrame; or a source of rows
            A source is a path, a directory, a glob, a mapping, a Ray Dataset, or a :class:`coterie.data.Source`. With
            ``engine`` the workers read the source.
        y : (rows,) array_like, or a column name of X
            Numbers for a regressor, classes for a classifier. A named column is not used as a feature; ``predict``
            ignores the column if a frame still contains it.
        agents : (rows,) sequence of hashables, or a column name of X, optional
            The agent of each row. Default: all rows belong to one agent.
        sample_weight : (rows,) array_like, optional
            Weights of the rows: a row of weight 2 counts as two rows. Not allowed with a source.
        progress : callable, optional
            Called repeatedly: with the number of rounds done, or, over a graph, with (wakes done, maximum of wakes).

        Returns
        -------
        self

        Examples
        --------
        >>> import coterie as ct
        >>> X, y, ids = [[0.0], [1.0], [2.0], [3.0]], [0.0, 2.0, 4.0, 6.0], ["ann", "bob", "ann", "bob"]
        >>> ct.CollaborativeRegressor().fit(X, y, agents=ids).coef_.round(2).tolist()
        [[2.0], [2.0]]
        >>> ct.CollaborativeClassifier().fit(X, ["no", "no", "yes", "yes"], agents=ids).classes_.tolist()
        ['no', 'yes']
        >>> homes = ct.datasets.radon()[["county", "floor", "log_radon"]]
        >>> model = ct.CollaborativeRegressor().fit(homes, "log_radon", agents="county")
        >>> model.coef_names_, model.predict(homes).shape
        (('floor=first',), (919,))
        """
        pools = isinstance(self.method, str) and self.method == "pooling"
        self._check_parameters(pools)
        X, y, target = split_target(X, y)
        if self.engine is not None:
            from .on_cluster import learn_on_cluster

            table: Any
            models: FittedModel
            table, models, found = learn_on_cluster(self, X, y, agents, sample_weight, progress)
        else:
            table = Table.learn(X, y, agents, self.members, self.missing, sample_weight, type(self).__name__)
            models, found = self._learn(table, pools, progress)
        # Attributes change only from here on: a fit that is refused leaves the estimator as it was.
        for name in [name for name in vars(self) if name.endswith("_") and not name.startswith("__")]:
            delattr(self, name)
        self._target_column = target
        for name, value in found.items():
            setattr(self, name, value)
        self._take(table.columns, table.members, table.agent_column, models)
        self._given_names = given_names(agents, y)
        return self

    def _learn(self, table: Table, pools: bool, progress: Any) -> tuple[FittedModel, dict[str, Any]]:
        """Learn models from rows in this process; return them and the attributes to set."""
        labels, fitted = self._encode(np.asarray(table.y))
        targets = pooling.targets_of(labels, len(fitted.get("classes_", ())))
        if not pools:
            from .over_graph import learn_over_graph

            if table.weight is not None:
                raise MismatchError(f'method={self.method!r} takes no sample_weight; method="pooling" does')
            over_graph, extra = learn_over_graph(self, table, targets, labels, progress)
            return over_graph, fitted | extra
        if table.X.shape[1] > pooling.MAX_DENSE_COLUMNS:
            self._check_wide()
        settings = self._family(), self.design, self._deviations(), table.weight, progress, self.n_jobs
        with one_thread():  # more threads slow down computations with thousands of small matrices
            parts = pooling.fit(table.X, targets, table.codes, len(table.members), *settings)
        return Populations(tuple(parts)) if self.graph is None else self._edge(parts, table.members), fitted

    def _check_parameters(self, pools: bool) -> None:
        """Refuse invalid parameters before anything is computed."""
        choice("design", self.design, ("auto", *DESIGNS))
        choice("deviations", self.deviations, DEVIATIONS)
        choice("missing", self.missing, ("fill", "error"))
        if isinstance(self.method, str) and self.method not in METHODS:
            raise ParameterError(f"unknown method {self.method!r}: choose one of {', '.join(METHODS)}")
        if pools:
            if not (self.loss is None or self.loss in self._losses):
                raise ParameterError(
                    f'loss={self.loss!r}: a {self._kind} with method="pooling" takes {", ".join(self._losses)}'
                )
        elif self.design not in ("auto", PLAIN):
            raise MismatchError(f'design="{self.design}" needs method="pooling"; method={self.method!r} is linear')
        if self.engine is not None:
            if not isinstance(self.engine, Cluster):
                raise ParameterError(f"engine={self.engine!r}: expected a ct.Cluster, or None for this process")
            if not pools:
                raise MismatchError(f'engine= needs method="pooling"; method={self.method!r} works in this process')
            if self.graph is not None:
                raise MismatchError("graph= needs all rows in this process: leave engine out, or graph")

    def _family(self) -> str:
        return str(self.loss or self._losses[1])

    def _deviations(self) -> str:
        return "full" if self.deviations == "auto" else self.deviations

    def _check_wide(self) -> None:
        """Refuse parameters that are not available for many columns, before anything is computed."""
        asked = {"design": self.design not in ("auto", PLAIN), "deviations": self.deviations in ("full", "scalar")}
        asked |= {"loss": self._kind == "regressor" and self.loss == "auto", "graph": self.graph is not None}
        for name, unfit in asked.items():
            if unfit:
                raise MismatchError(
                    f"{name}={getattr(self, name)!r} is for at most {pooling.MAX_DENSE_COLUMNS} columns; with more, "
                    "models are linear, deviations diagonal, and there are no edges"
                )

    def _edge(self, parts: Any, members: tuple[Any, ...]) -> Populations:
        """Smooth deviations over a graph, as strongly as held-out rows favour."""
        from ..graphs import Graph
        from ..pooling.edges import smooth
        from .over_graph import weights_of

        weights = weights_of(self, parts, members)
        with one_thread():
            parts, W, tied = smooth(parts, weights)
        return Populations(tuple(parts), Graph(W) if tied.strength > 0.0 else None, tied)

    def _expose(self) -> None:
        """Set the fitted attributes: coefficients in the units of the columns, and the population's parameters."""
        super()._expose()
        models, (weights, levels) = self._models, self._models.weights()
        only = 0 if levels.shape[1] == 1 else slice(None)
        self.common_coef_, self.common_intercept_ = weights[-1, only], levels[-1, only]
        self.coef_names_, self.graph_ = models.names(self._columns.names), models.graph
        if models.edges is not None:
            self.edges_ = models.edges
        if models.parts:
            self.personal_variance_ = np.stack([part.variances()[0] for part in models.parts])[only, ..., :-1]
            found = models.summary()
            self.design_, self.log_evidence_ = found["design"], found["log_evidence"]
            self.n_iter_ = max(part.rounds for part in models.parts)

    # -- files ---------------------------------------------------------------------------------------------------

    def _packed(self) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
        """Return plain values and arrays that a file holds. The rows are left out where possible."""
        described, arrays = self._models.to_arrays()
        more = {"sharpness": getattr(self, "sharpness_", 1.0)} if self._models.parts else {}
        return {"columns": self._columns.to_dict(), **described, **more}, arrays

    def _unpacked(self, described: dict[str, Any], arrays: Any, n: int, width: int, graph: Any) -> FittedModel:
        """Return the models of a file, checked against the number of agents and of columns."""
        if described["form"] == "linear":
            return Linear.from_arrays(arrays, n, width, graph=graph)
        if self._kind == "classifier":
            self.sharpness_ = float(described["sharpness"])
        return Populations.from_arrays(described, arrays, n, graph)

    # -- more rows -----------------------------------------------------------------------------------------------

    def partial_fit(self, X: Any, y: Any, agents: Any = None, sample_weight: Any = None) -> Self:
        """Add rows of known or new agents and update the posteriors of these agents only.

        The population (common model, variances, noise) stays as learned; call ``fit`` when much has changed. On an
        estimator that is not fitted, this is ``fit``.

        Parameters
        ----------
        X, y, agents, sample_weight
            As in :meth:`fit`.

        Returns
        -------
        self

        Examples
        --------
        >>> import coterie as ct
        >>> X, y, ids = [[0.0], [1.0], [2.0], [3.0]], [0.0, 2.1, 3.9, 6.0], ["ann", "bob", "ann", "bob"]
        >>> model = ct.CollaborativeRegressor().fit(X, y, agents=ids)
        >>> model.partial_fit([[1.0], [2.0]], [7.0, 9.0], agents=["cyd", "cyd"]).agents_
        ('ann', 'bob', 'cyd')
        """
        if not self.__sklearn_is_fitted__():
            return self.fit(X, y, agents, sample_weight)
        if not self._models.parts:
            raise MismatchError(f'method={self.method!r} cannot take more rows; method="pooling" can')
        if self.graph_ is not None:
            raise MismatchError(
                "deviations are smoothed over a graph, where new rows also change neighbours: call fit with all rows"
            )
        X, y, agents = self._labelled(X, y, agents)
        X, ids, _ = split_ids(X, agents, self._agent_column)
        matrix = self._columns.apply(X, type(self).__name__)
        rows = matrix.shape[0]
        if ids is None:
            ids = [self.agents_[0]] * rows if len(self.agents_) == 1 else None
        if ids is None:
            raise DataError("agents is missing: pass the agent of every row, one id for each row")
        places, asked = agent_codes(ids, None, rows)
        values = labels_of(y, rows, places, asked)
        targets = pooling.targets_of(self._encode_more(values), len(getattr(self, "classes_", ())))
        weight = weights_of(sample_weight, rows)
        members = (*self.agents_, *(agent for agent in asked if agent not in self._number))
        number = {member: k for k, member in enumerate(members)}
        codes = np.array([number[agent] for agent in asked], dtype=np.int64)[places]
        with one_thread():
            parts = zip(self._models.parts, targets, strict=True)
            grown = tuple(part.with_rows(matrix, target, codes, len(members), weight) for part, target in parts)
        self._models = Populations(grown, edges=self._models.edges)
        self._name(members)
        self._expose()
        return self

    def _posterior_only(self, what: str) -> None:
        self._check_fitted()
        if not self._models.parts:
            raise MismatchError(f'{what} needs a posterior, which method="pooling" has and {self.method!r} has not')


class CollaborativeRegressor(_Collaborative):
    """One regression for each agent, learned together.

    The default method is partial pooling: ``theta_i ~ N(w, V)``, where the common model w, the covariance V of personal
    deviations and the noise are learned from the rows by maximising the evidence. Models of agents with few rows are
    close to the common model, and models of agents with many rows follow their own rows, coordinate by coordinate.
    Nothing needs to be scaled or tuned.

    Parameters
    ----------
    method : str or rule
        "pooling"; or one of the papers' methods over a graph: "cd", "admm", "djam", "propagation"; or, for comparison,
        "local", "global", "component", "ridge-to-mean".
    design : "auto", "linear" or "additive"
        For pooling: models are linear, or have for each agent a smooth curve of every feature with more than six
        values. "auto" chooses curves where the evidence clearly favours them.
    deviations : "auto", "full", "diagonal" or "scalar"
        For pooling: V is a matrix (shrunk to its diagonal), has one variance for each coefficient, or one for all
        slopes. "auto" is "full".
    graph : None, "auto", "knn", "learn", GraphRule, Graph, (n, n) array or sparse matrix, or networkx graph
        Which agents are similar. Pooling needs no graph: with one, deviations are smoothed over its edges as strongly
        as held-out rows favour; "auto" tries the nearest neighbours. For methods over a graph, None means "learn": the
        agents learn the graph. A matrix or Graph has its agents in the order of ``agents_``; a networkx graph has their
        ids.
    loss : str or rule, optional
        For pooling: "squared" (default), "student" for heavy-tailed noise, "auto" to choose between these two by the
        evidence, "poisson" for counts. Over a graph: "squared", "huber", or a loss of real labels.
    missing : "fill" or "error"
        "fill" replaces missing values by the column's mean and adds a column that marks them; "error" refuses them.
    members : sequence, optional
        All agents in their order, including agents without rows. Default: the agents of the rows.
    coupling : float
        Over a graph: strength of agreement with neighbours; larger values make neighbours' models more alike.
    lam : float
        Over a learned graph: larger values give more edges.
    ridge, confidence
        Over a graph: see :meth:`coterie.Problem.personalized`.
    n_neighbors : int
        Number of edges of each agent, for ``graph="knn"``.
    tol : float
        Over a graph: agents learn until the objective is this close to its optimum.
    max_iter : int
        Over a graph: maximum number of wakes of each agent.
    random_state : int
        Over a graph: seed of the order in which agents wake, and of the peers that they choose.
    n_jobs : int, optional
        Number of threads, which does not change the result. None uses one thread for each core if there is enough work,
        -1 all cores. Not saved with the model.
    engine : Cluster, optional
        For pooling: workers of a cluster hold the rows, and only models and sums are sent; the result is equal up to
        rounding. The fitted model then keeps no rows, like a model that was loaded from a file. Default: this process.
        Not saved with the model.

    Attributes
    ----------
    agents_ : tuple
        Agent ids, in the order of the models.
    coef_ : (n, p) ndarray
        Coefficients of the encoded columns, whose names are ``coef_names_``, in the units of the input.
    intercept_ : (n,) ndarray
    common_coef_ : (p,) ndarray
        The common model w. Predictions for new agents use w, or one model fitted to all rows where that did better (see
        :meth:`report`).
    common_intercept_ : float
    personal_variance_ : (p,) ndarray
        Variance of each coefficient between agents: large for features whose effect differs between agents.
    noise_ : float or None
        Standard deviation of a label around its prediction.
    log_evidence_ : float
    design_ : str
        "linear" or "additive".
    graph_ : Graph or None
        Edges along which models were smoothed.
    edges_ : EdgeSmoothing
        For pooling with a graph: strength of the edges, their gain on held-out rows, and its standard error.
    run_ : Run
        Over a graph: the simulation.

    Notes
    -----
    Text, categories, booleans and missing values in X are encoded; constant and duplicate columns are dropped;
    :meth:`report` lists these changes. Predictions for an agent that was not in the training rows use the common model,
    with the spread of the population. Without ``agents``, all rows belong to one agent, and the model is a ridge
    regression whose strength is learned.

    With ``sklearn.set_config(enable_metadata_routing=True)``, methods such as ``set_fit_request(agents=True)`` make
    pipelines and searches pass ``agents`` on.

    Examples
    --------
    >>> import numpy as np
    >>> import coterie as ct
    >>> rng = np.random.default_rng(0)
    >>> X, agents = rng.normal(size=(60, 2)), np.repeat(["ann", "bob", "cyd"], 20)
    >>> y = X @ [1.0, 2.0] + 3.0 + (agents == "cyd") + 0.1 * rng.normal(size=60)
    >>> model = ct.CollaborativeRegressor().fit(X, y, agents=agents)
    >>> model.coef_.round(1).tolist(), model.intercept_.round(1).tolist()
    ([[1.0, 2.0], [1.0, 2.0], [1.0, 2.0]], [3.0, 3.0, 4.0])
    """

    _kind = "regressor"
    _losses = REGRESSOR_LOSSES

    def _encode(self, y: np.ndarray) -> tuple[np.ndarray, dict[str, Any]]:
        return self._encode_more(y), {}

    def _encode_more(self, y: np.ndarray) -> np.ndarray:
        """Return the labels as numbers."""
        if y.dtype.kind in "mM":
            raise DataError("y holds dates or times: convert them to numbers, such as days since a start")
        try:
            values = y.astype(np.float64)
        except (TypeError, ValueError):
            found = next(value for value in y.tolist() if not isinstance(value, (int, float)))
            raise DataError(
                f"y holds {found!r}: a regressor needs numbers; for classes use CollaborativeClassifier"
            ) from None
        if self.loss == "poisson":
            check_counts(values, lambda row: f"row {row}: the label")
        return np.asarray(values)

    def _expose(self) -> None:
        super()._expose()
        parts = self._models.parts
        self.noise_ = parts[0].noise if parts else None

    def predict(self, X: Any, agents: Any = None, return_std: bool = False) -> Any:
        """Predict every row by its agent's model, or by the common model if the agent was not in the training rows.

        Parameters
        ----------
        X, agents
            As in :meth:`fit`; or a Ray Dataset, whose column ``agents`` names each row's agent (default: as at fit).
        return_std : bool
            Also return the standard deviation of a new label of every row: noise and uncertainty of the model.

        Returns
        -------
        ndarray of shape (rows,), or two of them
            For a Ray Dataset: the Dataset with a column "prediction", and "std"; predictions are computed in batches
            when the Dataset is read, and Ray may change the order of rows.

        Examples
        --------
        >>> import coterie as ct
        >>> X, y, ids = [[0.0], [1.0], [2.0], [3.0]], [0.0, 2.0, 4.0, 6.0], ["ann", "bob", "ann", "bob"]
        >>> ct.CollaborativeRegressor().fit(X, y, agents=ids).predict([[2.5]], agents=["bob"]).round(2).tolist()
        [5.0]
        """
        if is_dataset(X):
            names = ["prediction", "std"] if return_std else ["prediction"]
            return by_batches(self, X, agents, "predict", names, return_std=return_std)
        if return_std:
            self._posterior_only("return_std")
        means, variances, _ = self._latent(X, agents, spread=return_std or self.loss == "poisson")
        if not self._models.parts:
            return means[:, 0]
        model, mean, variance = self._models.parts[0], means[:, 0], variances[:, 0]
        if model.family.name == "poisson":
            # The mean of exp(z), z ~ N(mean, variance); the variance is bounded, as a vague z has no reliable tail.
            log = np.minimum(mean + 0.5 * np.minimum(variance, 2.0), MAX_LOG_RATE)
            rate = np.exp(log)
            return (rate, np.sqrt(rate + rate**2 * np.expm1(np.minimum(variance, 2.0)))) if return_std else rate
        center = mean * model.scale + model.center
        if not return_std:
            return center
        return center, model.scale * np.sqrt(variance + model.family.variance(model.s2))

    def predict_interval(self, X: Any, agents: Any = None, coverage: float = 0.9) -> Any:
        """Return intervals that contain a new label of every row with the given probability.

        Parameters
        ----------
        X, agents
            As in :meth:`fit`.
        coverage : float
            Probability, between 0 and 1.

        Returns
        -------
        (rows, 2) ndarray
            Lower and upper ends.

        Examples
        --------
        >>> import numpy as np
        >>> import coterie as ct
        >>> rng = np.random.default_rng(0)
        >>> X, ids = rng.normal(size=(400, 1)), np.repeat(np.arange(20), 20)
        >>> y = X[:, 0] + rng.normal(size=20)[ids] + rng.normal(size=400)
        >>> low, high = ct.CollaborativeRegressor().fit(X, y, agents=ids).predict_interval(X, agents=ids).T
        >>> bool(0.85 < np.mean((low <= y) & (y <= high)) < 0.95)
        True
        """
        fraction("coverage", coverage)
        if is_dataset(X):
            return by_batches(self, X, agents, "predict_interval", ["low", "high"], coverage=coverage)
        self._posterior_only("predict_interval")
        means, variances, _ = self._latent(X, agents)
        part = self._models.parts[0]
        return np.asarray(part.interval(means[:, 0], variances[:, 0], part.s2, coverage))


def check_counts(y: np.ndarray, named: Callable[[int], str]) -> None:
    """Refuse labels that are no counts; `named` returns the name of a row's label for the error."""
    if (y < 0.0).any():
        row = int(np.argmax(y < 0.0))
        raise DataError(f'{named(row)} is {y[row]:g}: loss="poisson" needs counts, 0 or more')


def check_classes(classes: np.ndarray) -> None:
    """Refuse classes that are numbers on a scale, and a single class."""
    if classes.dtype.kind == "f" and np.any(classes != np.floor(classes)):
        raise DataError(
            "Unknown label type: continuous. y holds numbers such as "
            f"{classes[classes != np.floor(classes)][0]:g}, not classes; for numbers use a regressor"
        )
    if len(classes) < 2:
        raise DataError(
            f"y holds one class only, {classes.tolist()[0]!r}: a classifier needs at least two classes in all "
            "(single agents may have rows of one class)"
        )


def numbered_classes(y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the classes, checked, and the index of every label's class."""
    try:
        classes, codes = np.unique(y, return_inverse=True)
    except TypeError:
        raise DataError(
            "y mixes classes that cannot be compared, such as text and numbers: convert all labels to one type"
        ) from None
    check_classes(classes)
    return classes, codes


def gives_probabilities(loss: Any) -> bool:
    """Return whether a loss gives probabilities of classes; None stands for the logistic loss, which does."""
    if loss is None:
        return True
    from ..core.losses import BERNOULLI, resolve_loss

    return bool(resolve_loss(loss).likelihood == BERNOULLI)


def class_numbers(classes: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return the index of every label among the classes of a fit; refuse a class that was not in the fit."""
    place = np.clip(np.searchsorted(classes, y), 0, len(classes) - 1)
    unknown = np.flatnonzero(classes[place] != y)
    if unknown.size:
        raise DataError(
            f"row {unknown[0]}: the class {y[unknown].tolist()[0]!r} was not in the training rows; the model knows "
            f"{', '.join(map(repr, classes.tolist()))}"
        )
    return np.asarray(place)


class CollaborativeClassifier(_Collaborative):
    """One classifier for each agent, learned together.

    Like :class:`CollaborativeRegressor`, with classes as labels. Models are logistic, one against the rest for more
    than two classes; the log-odds of the classes then go through one softmax, whose sharpness is learned on held-out
    rows. (A joint softmax model was no better on the data sets we tried, and its blocks are larger by the number of
    classes.)

    Parameters
    ----------
    loss : str or rule, optional
        For pooling: "logistic". Over a graph: "logistic", "smooth-hinge", "hinge" (not with "cd"), or a loss of labels
        -1 and +1.
    method, design, deviations, graph, missing, members, coupling, lam, ridge, confidence, n_neighbors
        As in :class:`CollaborativeRegressor`; tol, max_iter, random_state, n_jobs and engine, too.

    Attributes
    ----------
    agents_ : tuple
        Agent ids, in the order of the models.
    classes_ : ndarray
    coef_ : (n, p) ndarray, or (n, classes, p) for more than two classes
        Log-odds for the encoded columns, whose names are ``coef_names_``, in the units of the input.
    intercept_ : (n,) ndarray, or (n, classes)
    common_coef_ : (p,) ndarray, or (classes, p)
    common_intercept_ : float, or (classes,) ndarray
    sharpness_ : float
        Factor of the log-odds before the softmax, learned on held-out rows.
    personal_variance_ : (p,) ndarray, or (classes, p)
        Variance of each coefficient between agents: large for features whose effect differs between agents.
    log_evidence_ : float
    design_ : str
        "linear" or "additive".
    graph_ : Graph or None
    run_ : Run
        Over a graph: the simulation.

    Notes
    -----
    Agents may have one row, or rows of one class only. With two or three rows of each agent and two classes, the
    variances of deviations are underestimated (Laplace's approximation is poor there); common model and predictions are
    still sound.

    Examples
    --------
    >>> import numpy as np
    >>> import coterie as ct
    >>> rng = np.random.default_rng(0)
    >>> X, agents = rng.normal(size=(60, 2)), np.repeat(["ann", "bob", "cyd"], 20)
    >>> y = X[:, 0] + (agents == "cyd") * X[:, 1] > 0
    >>> model = ct.CollaborativeClassifier().fit(X, y, agents=agents)
    >>> model.coef_.shape, model.agents_
    ((3, 2), ('ann', 'bob', 'cyd'))
    >>> model.predict([[1.0, 0.0]], agents=["dan"])  # never met: the common model
    array([ True])
    """

    _kind = "classifier"
    _losses = CLASSIFIER_LOSSES
    _routed = Estimator._routed | {"predict_proba": ("agents",), "decision_function": ("agents",)}
    classes_: np.ndarray

    def partial_fit(  # type: ignore[override]  # scikit-learn has `classes` before `sample_weight`
        self, X: Any, y: Any, agents: Any = None, classes: Any = None, sample_weight: Any = None
    ) -> Self:
        """Add rows, like :meth:`CollaborativeRegressor.partial_fit`; all classes must be known to the model.

        Parameters
        ----------
        X, y, agents, sample_weight
            As in :meth:`fit`.
        classes : ignored
            Exists for compatibility with scikit-learn.

        Returns
        -------
        self

        Examples
        --------
        >>> import coterie as ct
        >>> X, y, ids = [[0.0], [1.0], [2.0], [3.0]], ["no", "no", "yes", "yes"], ["ann", "bob", "ann", "bob"]
        >>> model = ct.CollaborativeClassifier().fit(X, y, agents=ids)
        >>> model.partial_fit([[1.0], [2.0]], ["yes", "yes"], agents=["cyd", "cyd"]).agents_
        ('ann', 'bob', 'cyd')
        """
        return super().partial_fit(X, y, agents, sample_weight)

    def _encode(self, y: np.ndarray) -> tuple[np.ndarray, dict[str, Any]]:
        classes, codes = numbered_classes(y)
        return codes, {"classes_": classes}

    def _expose(self) -> None:
        super()._expose()
        if not hasattr(self, "sharpness_"):  # partial_fit does not change the sharpness
            with one_thread():
                self.sharpness_ = pooling.sharpness(self._models.parts) if self._models.parts else 1.0

    def _encode_more(self, y: np.ndarray) -> np.ndarray:
        return class_numbers(self.classes_, y)

    @property
    def _has_probabilities(self) -> bool:
        return bool(self._models.parts) or gives_probabilities(self.loss)

    def decision_function(self, X: Any, agents: Any = None) -> Any:
        """Return the log-odds, reduced by the uncertainty of the model; positive for the second of two classes.

        Parameters
        ----------
        X, agents
            As in :meth:`fit`.

        Returns
        -------
        (rows,) ndarray, or (rows, classes): the largest value is the predicted class

        Examples
        --------
        >>> import coterie as ct
        >>> X, y, ids = [[0.0], [1.0], [2.0], [3.0]], ["no", "no", "yes", "yes"], ["ann", "bob", "ann", "bob"]
        >>> model = ct.CollaborativeClassifier().fit(X, y, agents=ids)
        >>> (model.decision_function(X, agents=ids) > 0).tolist()
        [False, False, True, True]
        """
        if is_dataset(X):
            several = [f"decision_{each}" for each in self._classes_of()]
            return by_batches(self, X, agents, "decision_function", several if len(several) > 2 else ["decision"])
        return self._odds(*self._latent(X, agents)[:2])

    def _classes_of(self) -> list[Any]:
        self._check_fitted()
        return self.classes_.tolist()

    def _odds(self, mean: np.ndarray, variance: np.ndarray) -> np.ndarray:
        odds = pooling.moderated(mean, variance)
        return odds[:, 0] if len(self.classes_) == 2 else odds

    def predict(self, X: Any, agents: Any = None) -> Any:
        """Predict the class of every row by its agent's model, or by the common model for a new agent.

        Parameters
        ----------
        X, agents
            As in :meth:`fit`; or a Ray Dataset, as in :meth:`CollaborativeRegressor.predict`.

        Returns
        -------
        (rows,) ndarray, or a Dataset with a column "prediction"

        Examples
        --------
        >>> import coterie as ct
        >>> X, y, ids = [[0.0], [1.0], [2.0], [3.0]], ["no", "no", "yes", "yes"], ["ann", "bob", "ann", "bob"]
        >>> ct.CollaborativeClassifier().fit(X, y, agents=ids).predict(X, agents=ids).tolist()
        ['no', 'no', 'yes', 'yes']
        """
        if is_dataset(X):
            return by_batches(self, X, agents, "predict", ["prediction"])
        return self._decided(self.decision_function(X, agents))

    def predict_proba(self, X: Any, agents: Any = None) -> Any:
        """Return the probabilities of the classes, which take the uncertainty of the model into account.

        Parameters
        ----------
        X, agents
            As in :meth:`fit`; or a Ray Dataset, as in :meth:`CollaborativeRegressor.predict`.

        Returns
        -------
        (rows, classes) ndarray, or a Dataset with a column ``"probability_..."`` for each class

        Examples
        --------
        >>> import coterie as ct
        >>> X, y, ids = [[0.0], [1.0], [2.0], [3.0]], ["no", "no", "yes", "yes"], ["ann", "bob", "ann", "bob"]
        >>> model = ct.CollaborativeClassifier().fit(X, y, agents=ids)
        >>> model.predict_proba(X, agents=ids).sum(axis=1).round(6).tolist()
        [1.0, 1.0, 1.0, 1.0]
        """
        if is_dataset(X):
            return by_batches(self, X, agents, "predict_proba", [f"probability_{each}" for each in self._classes_of()])
        self._check_fitted()
        if not self._has_probabilities:
            raise MismatchError(f"loss={self.loss!r} gives no probabilities; the logistic loss does")
        mean, variance, known = self._latent(X, agents)
        if not self._models.parts:
            return pooling.one_against_rest(self._odds(mean, variance))
        if not self._models.parts[0].has_intervals:
            known[:] = True  # the variances of wide models are rough for all rows
        return pooling.probabilities(self._odds(mean, variance), self.sharpness_, known)


__all__ = ["CollaborativeClassifier", "CollaborativeRegressor"]
