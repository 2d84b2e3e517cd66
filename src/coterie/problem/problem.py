"""One objective, and a constructor for each published one.

    Q(Theta) = s sum_{i<j} W_ij |theta_i - theta_j|^2 + sum_i a_i f_i(theta_i)

    f_i(theta) = (1/m_i or 1) sum over the examples of agent i of l(x . theta, y) + r_i |theta|^2

=====================  =====  ==============  ==========================================  ========
constructor            s      a_i             f_i                                         equation
=====================  =====  ==============  ==========================================  ========
``propagation``        1/2    mu D_ii c_i     |theta - theta_i^sol|^2 / 2                 MP (3)
``collaborative``      1      mu D_ii         sum of losses                               CL (7)
``personalized``       1/2    mu D_ii c_i     mean of losses + r_i |theta|^2              CD (3)
``separate``           1/2    1               mean of losses + r_i |theta|^2              DJAM (1)
``boosting``           mu/2   D_ii c_i        log sum exp of margins, |theta|_1 <= beta   DADA (1)
=====================  =====  ==============  ==========================================  ========

Two conventions fix the models that Q leaves free. An agent without edges has a_i = 0 in the first three objectives:
its model is its local model, ``argmin f_i``. In a component of the graph without any data, all models are zero.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy import sparse

from .._checks import floats, fraction, integer, nonnegative, per_agent, positive
from ..core.arrays import SHARED, TIED
from ..core.linear import SparseRows, frozen, gram_norms, rows_of
from ..core.losses import REALS, SIGNS, Location, Squared, resolve_loss
from ..core.models import Linear
from ..data.agent_data import AgentData
from ..data.dictionaries import Dictionary, outputs, resolve_base
from ..errors import DataError, GraphError, MismatchError, ParameterError
from ..graphs import Graph, empty, star
from .confidence import confidences
from .exact import BallObjective, Objective, gap, lower_bound, minimise, minimise_on_balls, suboptimality
from .modelled import SERVER, check_rows, gradients_of, losses_of, model_of, refuse_labels, roles_of

log = logging.getLogger("coterie")

#: Without a ridge, uniqueness of the minimiser is only checked up to this number of features.
MAX_CHECKED_FEATURES = 1000
#: Settings of the published objectives, see the table above. For the last three, s is half of the user's weight.
PUBLISHED: dict[str, dict[str, Any]] = {
    "propagation": {"smooth": 0.5, "scaled": True, "mean": True},
    "collaborative": {"smooth": 1.0, "scaled": True, "mean": False},
    "personalized": {"smooth": 0.5, "scaled": True, "mean": True},
    "separate": {"smooth": 0.5, "scaled": False, "mean": True, "loss_weight": 1.0},
    "boosting": {"scaled": True, "mean": True, "loss_weight": 1.0},
    "differentiable": {"scaled": False, "mean": True, "loss_weight": 1.0},
    "federated": {"scaled": False, "mean": True, "loss_weight": 1.0},
}


class Problem:
    """Data, graph, loss and weights: everything that defines the objective Q. Use one of the constructors below.

    Methods take and return models as Theta, an (n, p) array: row i is theta_i, the model of agent ``members[i]``.

    Parameters
    ----------
    data : AgentData
    graph : Graph
        One agent for each member of ``data``, in the same order.
    loss : rule
        One of ``coterie.core.losses.LOSSES``, or a user-defined loss that passes :func:`coterie.testing.check_loss`.
        Constructors also take the name of a loss, such as "logistic".
    smooth : float
        s, the weight of the smoothness term.
    loss_weight : float or (n,) array_like
        a_i, or a_i / D_ii when ``scaled``, before the multiplication by c_i.
    scaled : bool
        Whether a_i grows with the degree D_ii.
    mean : bool
        Whether f_i is the mean of the losses of the rows or their sum.
    ridge : float, (n,) array_like or "1/m"
        r_i: ``r_i |theta|^2`` (without 1/2) is added to f_i. "1/m" is 1 / m_i, and 0 for an agent without rows.
    confidence : "size", None or (n,) array_like
        c_i: "size" is ``m_i / max_j m_j`` (1e-9 for an agent without rows), None is 1 for all agents.
    name : str
        Name of the published objective.
    radius : float
        Radius of the l1 ball that contains every model; infinite for unconstrained models.
    outputs : int
        Number of parts of a model, each with its own l1 ball. An agent's rows are ordered by part: first the rows of
        part 0, then the rows of part 1, ...
    base : Dictionary, optional
        Dictionary of base predictors whose outputs are the features.
    model : model, optional
        Computes losses from rows and parameters. Default: a linear model with the given ``loss``.
    roles : (p,) array, optional
        Role of each parameter: 0 for personal, 1 for shared by all agents, 2 for tied over the graph. Default: all 2.
    curvature : float, optional
        L_i^loc of a model: a bound on the curvature of f_i, for methods with step size ``1 / curvature``, such as
        :class:`coterie.CoordinateDescent`. Computed for linear models and ``ct.models.Softmax``.

    Attributes
    ----------
    n, p : int
        Number of agents, and number of parameters of a model.
    members : tuple
        Agent ids, in the order of the rows of Theta.
    loss_weight : (n,) ndarray
        a_i without the degree: a_i / D_ii when ``scaled``, confidences included.
    a : (n,) ndarray
        a_i as in the table above.
    importance : (n,) ndarray
        Weight of each agent's own loss: a_i, or 1 for an agent without edges when ``scaled``.
    """

    #: Attributes that define the objective, without the edges: see :func:`coterie._digest.digest_of`.
    without_edges: tuple[str, ...] = ("data", "loss", "model", "roles", "smooth", "scaled", "mean", "loss_weight")
    without_edges += ("ridge", "radius", "outputs")
    digest_parts = (*without_edges, "graph")

    def __init__(
        self,
        data: AgentData,
        graph: Graph,
        loss: Any,
        *,
        smooth: float,
        loss_weight: ArrayLike,
        scaled: bool,
        mean: bool,
        ridge: float | str | ArrayLike = 0.0,
        confidence: ArrayLike | str | None = None,
        name: str = "custom",
        radius: float = np.inf,
        outputs: int = 1,
        base: Dictionary | None = None,
        model: Any = None,
        roles: np.ndarray | None = None,
        curvature: float | None = None,
    ):
        _expect(data)
        if not isinstance(graph, Graph):
            raise ParameterError(f"a problem needs a Graph, such as ct.Graph(W); found {type(graph).__name__}")
        if graph.n != data.n:
            raise GraphError(
                f"the graph has {graph.n} agents and the data {data.n}: "
                "they must describe the same members in the same order"
            )
        self.data, self.graph, self.loss, self.name = data, graph, loss, name
        self.smooth, self.scaled, self.mean = float(smooth), scaled, mean
        self.model: Any = Linear() if model is None else model
        self.n, self.p, self.members = data.n, data.p if model is None else int(model.size), data.members
        self.roles = frozen(np.full(self.p, TIED, np.int8) if roles is None else roles, np.int8)
        self.curvature = curvature
        weight = np.array(np.broadcast_to(np.asarray(loss_weight, dtype=float), data.n))
        c = _confidence(confidence, data.sizes)
        self.loss_weight = frozen(weight * c)
        self.ridge = frozen(_ridge(ridge, data.sizes))
        # A keyword such as "size" is kept as text, because its numbers depend on the data.
        self._recipe = {
            "loss_weight": weight,
            "confidence": confidence if isinstance(confidence, str) else c,
            "ridge": ridge if isinstance(ridge, str) else self.ridge,
        }
        if not self.is_linear:
            check_rows(self.model, data)
        self.rows, self.start, self.labels = _lay_out(data, loss)
        if data.is_sparse and getattr(self.model, "opaque", False):
            self.rows = rows_of(data.X.toarray())  # models in Python take dense rows
        unweighted = scaled & graph.mutual.isolated
        self.a = frozen(self.loss_weight * graph.mutual.degrees if scaled else self.loss_weight)
        self.importance = frozen(np.where(unweighted, 1.0, self.a))
        self.row_weight = frozen(outputs / np.maximum(data.sizes, 1) if mean else np.ones(self.n))
        self.radius, self.outputs, self.base = float(radius), outputs, base
        self._optimum: np.ndarray | None = None
        self._local: np.ndarray | None = None
        self._least = -np.inf  # lower bound of Q, found by solve

    # -- the published objectives ------------------------------------------------------------------------------

    @classmethod
    def propagation(
        cls, models: ArrayLike, graph: Graph, alpha: float = 0.99, confidence: ArrayLike | None = None
    ) -> Problem:
        """Model propagation, MP (3): smooth given models over the graph.

        ``1/2 sum_{i<j} W_ij |theta_i - theta_j|^2 + mu/2 sum_i D_ii c_i |theta_i - models_i|^2``,
        with mu = (1 - alpha) / alpha.

        Parameters
        ----------
        models : (n, p) array_like
            theta_i^sol, the models that the agents have trained alone.
        graph : Graph
        alpha : float
            In (0, 1); near 1, neighbours count more than an agent's own model.
        confidence : (n,) array_like, optional
            c_i >= 0, usually m_i / max_j m_j; 0 for an agent without a model, whose row is ignored. Default: all 1.

        Examples
        --------
        >>> import coterie as ct
        >>> problem = ct.Problem.propagation([[0.0], [2.0]], ct.graphs.complete(2), alpha=0.5)
        >>> problem.solve().ravel().round(4).tolist()  # each moves a third of the way
        [0.6667, 1.3333]
        """
        models = floats("models", models)
        if models.ndim != 2:
            raise DataError(f"models must be an (n, p) array, one row for each agent; found shape {models.shape}")
        alpha = fraction("alpha", alpha)
        c = np.ones(len(models)) if confidence is None else per_agent("confidence", confidence, len(models), least=0)
        with_model = np.flatnonzero(c > 0)
        data = AgentData(models[with_model], agents=with_model, members=range(len(models)))
        mu = (1.0 - alpha) / alpha
        return cls._published("propagation", data, graph, Location(Squared()), loss_weight=mu * c)

    @classmethod
    def collaborative(
        cls, data: AgentData, graph: Graph, loss: Any = "logistic", mu: float = 1.0, ridge: Any = 0.0
    ) -> Problem:
        """Collaborative learning, CL (7): losses are summed, so that agents with more rows have more weight.

        ``sum_{i<j} W_ij |theta_i - theta_j|^2 + mu sum_i D_ii f_i(theta_i)``.

        Parameters
        ----------
        data : AgentData
        graph : Graph
        loss : loss or name
        mu : float
            Weight of the losses against smoothness, > 0.
        ridge : float, (n,) array_like or "1/m"
            As in :class:`Problem`.

        Examples
        --------
        >>> import coterie as ct
        >>> data = ct.AgentData([[1.0], [1.0], [1.0]], [1.0, 3.0, 0.0], agents=["a", "a", "b"])
        >>> problem = ct.Problem.collaborative(data, ct.graphs.complete(2), loss=ct.Squared())
        >>> problem.solve().ravel().round(4).tolist()
        [1.5, 1.0]
        """
        mu = positive("mu", mu)
        return cls._published("collaborative", data, graph, resolve_loss(loss), loss_weight=mu, ridge=ridge)

    @classmethod
    def personalized(
        cls,
        data: AgentData,
        graph: Graph,
        loss: Any = "logistic",
        mu: float = 1.0,
        ridge: Any = "1/m",
        confidence: ArrayLike | str | None = "size",
    ) -> Problem:
        """Personalised learning, CD (3): mean losses, weighted by confidences.

        ``1/2 sum_{i<j} W_ij |theta_i - theta_j|^2 + mu sum_i D_ii c_i f_i(theta_i)``.

        Parameters
        ----------
        data : AgentData
        graph : Graph
        loss : loss or name
        mu : float
            Weight of the losses against smoothness, > 0.
        ridge : float, (n,) array_like or "1/m"
            As in :class:`Problem`.
        confidence : "size", None or (n,) array_like
            As in :class:`Problem`.

        Examples
        --------
        >>> import coterie as ct
        >>> data = ct.AgentData([[1.0], [1.0], [1.0]], [1.0, 3.0, 0.0], agents=["a", "a", "b"])
        >>> problem = ct.Problem.personalized(data, ct.graphs.complete(2), loss=ct.Squared(), ridge=0.0)
        >>> problem.solve().ravel().round(4).tolist()
        [1.5, 1.0]
        """
        given = {"loss_weight": positive("mu", mu), "ridge": ridge, "confidence": confidence}
        return cls._published("personalized", data, graph, resolve_loss(loss), **given)

    @classmethod
    def separate(cls, data: AgentData, graph: Graph, loss: Any = "squared", ridge: Any = 0.0) -> Problem:
        """Personal models with given couplings, DJAM (1): every f_i has weight 1, for every degree.

        ``1/2 sum_{i<j} W_ij |theta_i - theta_j|^2 + sum_i f_i(theta_i)``.

        Parameters
        ----------
        data : AgentData
        graph : Graph
        loss : loss or name
        ridge : float, (n,) array_like or "1/m"
            As in :class:`Problem`.

        Examples
        --------
        >>> import coterie as ct
        >>> data = ct.AgentData([[0.0], [3.0]], agents=["a", "b"])
        >>> problem = ct.Problem.separate(data, ct.graphs.complete(2), loss=ct.Location(ct.Squared()))
        >>> problem.solve().ravel().round(4).tolist()
        [1.0, 2.0]
        """
        return cls._published("separate", data, graph, resolve_loss(loss), ridge=ridge)

    @classmethod
    def boosting(
        cls,
        data: AgentData | None,
        graph: Graph,
        base: Any = 200,
        mu: float = 1.0,
        beta: float = 10.0,
        confidence: ArrayLike | str | None = "size",
        loss: Any = "adaboost",
        outputs: int = 1,
    ) -> Problem:
        """Boosting on a dictionary of base predictors h_1, h_2, ..., DADA (1): theta holds their weights.

        ``mu/2 sum_{i<j} W_ij |theta_i - theta_j|^2 + sum_i D_ii c_i L_i(theta_i)``, where every theta_i stays in the
        ball ``|theta|_1 <= beta``, and ``L_i = log sum_r exp(-y_r sum_j theta_j h_j(x_r))`` over the rows of agent i.

        Parameters
        ----------
        data : AgentData or None
            Features and labels -1 and +1 (numbers for the squared loss).
        graph : Graph
        base : Stumps, int, list of fitted estimators, callable, Dictionary, or list of (m_i, size) arrays
            The dictionary: decision stumps, a number of decision stumps, fitted estimators, or a function of X that
            returns one column for each base predictor. With ``data=None``, the margins ``A_i[r, j] = y_r h_j(x_r)``
            of each agent.
        mu : float
            Weight of the smoothness term, >= 0.
        beta : float
            Radius of the ball, > 0.
        confidence : "size", None or (n,) array_like
            As in :class:`Problem`.
        loss : "adaboost", "squared", or a smooth loss
            L_i: "adaboost" is the log of the sum of exponential losses; any other loss is averaged over the rows,
            such as least squares for regression.
        outputs : int
            1, or the number of classes, with labels 0, 1, ...; a model then has one part for each class against the
            rest, with its own L_i and its own ball, and all parts use the same graph.

        Returns
        -------
        Problem
            A problem whose features are the outputs of the dictionary ``problem.base``.

        Examples
        --------
        >>> import coterie as ct
        >>> data = ct.AgentData([[0.0], [1.0], [2.0], [3.0]], [-1, -1, 1, 1], agents=["a", "b", "a", "b"])
        >>> problem = ct.Problem.boosting(data, ct.graphs.complete(2), base=ct.Stumps(3), beta=2.0)
        >>> problem.solve().round(3).tolist()  # three stumps, with thresholds 0.5, 1.5 and 2.5
        [[0.0, 2.0, 0.0], [0.0, 2.0, 0.0]]
        """
        mu, beta, outputs = nonnegative("mu", mu), positive("beta", beta), integer("outputs", outputs)
        loss = resolve_loss(loss, pooled=True)
        dictionary = None
        if data is None and outputs > 1:
            raise ParameterError(f"outputs={outputs} needs data: margins describe one output only")
        if data is None:
            given = _margins_given(base)
            data = AgentData(
                np.concatenate(given),
                np.ones(sum(map(len, given))),
                agents=np.repeat(np.arange(len(given)), list(map(len, given))),
                members=range(len(given)),
            )
        else:
            _expect(data)
            dictionary = resolve_base(base, data.X)
            data = _voted(data, dictionary, outputs)
        balls = {"radius": beta, "outputs": outputs, "base": dictionary}
        return cls._published("boosting", data, graph, loss, smooth=0.5 * mu, confidence=confidence, **balls)

    @classmethod
    def differentiable(
        cls,
        data: AgentData,
        graph: Graph,
        model: Any,
        *,
        coupling: float = 1.0,
        personal: Any = (),
        shared: Any = (),
        tied: Any = (),
        ridge: Any = 0.0,
        confidence: ArrayLike | str | None = "size",
        curvature: float | None = None,
    ) -> Problem:
        """Any differentiable model, with parameters that are personal, shared by all agents, or tied over the graph.

        ``coupling/2 sum_{i<j} W_ij |theta_i - theta_j|^2 + sum_i c_i f_i(theta_i)``, where the distances are between
        the tied parameters, and f_i is the mean loss of agent i.

        Parameters
        ----------
        data : AgentData
        graph : Graph
            Which agents exchange messages; for a server and its clients, see :meth:`federated`.
        model : model, loss or name of a loss
            ``ct.models.Torch(module, loss)``, ``ct.models.Function(...)``, ``ct.models.TwoLayer(...)``,
            ``ct.models.Softmax(...)``, or a loss such as ``"logistic"`` for a linear model.
        coupling : float
            Weight of the smoothness term, >= 0; the larger, the more alike the models of neighbours.
        personal, shared, tied : str or sequence of str
            Names, or beginnings of names, of parameters: personal parameters stay with their agent, shared parameters
            are equal for all agents, tied parameters are coupled by the edges. If `personal` is empty, all parameters
            not named are personal; otherwise they are tied, or shared if `tied` is given. Default: all parameters are
            tied. A method with one common model treats shared and tied parameters alike.
        ridge : float, (n,) array_like or "1/m"
            As in :class:`Problem`.
        confidence : "size", None or (n,) array_like
            As in :class:`Problem`.
        curvature : float, optional
            As in :class:`Problem`.

        Examples
        --------
        >>> import numpy as np
        >>> import coterie as ct
        >>> rng = np.random.default_rng(0)
        >>> data = ct.AgentData(rng.normal(size=(30, 4)), rng.integers(0, 2, 30), agents=np.arange(30) % 3)
        >>> problem = ct.Problem.differentiable(data, ct.graphs.ring(3), ct.models.TwoLayer(4, 3, 2), personal="head")
        >>> problem.p, int((problem.roles == 0).sum())
        (23, 8)
        """
        _expect(data)
        words = {"personal": personal, "shared": shared, "tied": tied}
        weights = {"coupling": coupling, "ridge": ridge, "confidence": confidence, "curvature": curvature}
        return cls._modelled("differentiable", data, graph, model, words, **weights)

    @classmethod
    def federated(
        cls,
        data: AgentData,
        model: Any,
        *,
        coupling: float = 0.0,
        personal: Any = (),
        shared: Any = (),
        tied: Any = (),
        ridge: Any = 0.0,
        confidence: ArrayLike | str | None = "size",
        curvature: float | None = None,
    ) -> Problem:
        """A server and its clients, with any differentiable model.

        The graph is a star: agent number 0, ``"server"``, is added without rows, and is connected to all clients, which
        keep their order from number 1 on. For methods such as :class:`coterie.federated.FedAvg`.

        Parameters
        ----------
        data : AgentData
            The rows of the clients.
        model, personal, shared, tied, ridge, confidence, curvature
            As in :meth:`differentiable`, except that all parameters not named are shared, also if `personal` is given.
            Arrays with one number for each agent begin with the server's number.
        coupling : float
            Weight of the distances between the tied parameters of clients and server, >= 0.

        Examples
        --------
        >>> import numpy as np
        >>> import coterie as ct
        >>> rng = np.random.default_rng(0)
        >>> data = ct.AgentData(rng.normal(size=(30, 4)), rng.integers(0, 2, 30), agents=np.arange(30) % 3)
        >>> problem = ct.Problem.federated(data, ct.models.TwoLayer(4, 3, 2), personal="head")
        >>> problem.members, problem.graph.n_neighbours.tolist()
        (('server', 0, 1, 2), [3, 1, 1, 1])
        """
        _expect(data)
        if SERVER in data.members:
            raise DataError(f"there is an agent {SERVER!r} already, the name of the agent that is added: rename it")
        data = data.with_members([SERVER, *data.members])
        words = {"personal": personal, "shared": shared, "tied": tied, "rest": SHARED}
        weights = {"coupling": coupling, "ridge": ridge, "confidence": confidence, "curvature": curvature}
        return cls._modelled("federated", data, star(data.n), model, words, **weights)

    @classmethod
    def _modelled(
        cls, name: str, data: AgentData, graph: Graph, model: Any, words: dict[str, Any], **given: Any
    ) -> Problem:
        """Return a problem with any differentiable model; `words` are arguments of :func:`roles_of`."""
        loss, model = model_of(model)
        roles = roles_of(model, data.p if model is None else int(model.size), **words)
        smooth, curvature = 0.5 * nonnegative("coupling", given.pop("coupling")), given["curvature"]
        given |= {"smooth": smooth, "curvature": None if curvature is None else positive("curvature", curvature)}
        return cls._published(name, data, graph, loss, model=model, roles=roles, **given)

    @classmethod
    def _published(cls, name: str, data: AgentData, graph: Graph, loss: Any, **given: Any) -> Problem:
        return cls(data, graph, loss, name=name, **PUBLISHED[name], **given)

    # -- values, gradients and solutions -------------------------------------------------------------------------

    @property
    def is_linear(self) -> bool:
        """Whether the model is linear."""
        return isinstance(self.model, Linear)

    @property
    def has_optimum(self) -> bool:
        """Whether the optimum can be computed: the model is linear, and all parameters are tied."""
        return self.is_linear and not np.any(self.roles != TIED)

    def _expect_convex(self, what: str) -> None:
        """Refuse `what`, a name of a method, for problems that are not convex or have personal or shared parameters."""
        if not self.is_linear:
            raise MismatchError(
                f"{what} is for linear models: the optimum of {self.model!r} is not known; use value, or evaluate "
                "the predictions of the models (ct.evaluate)"
            )
        if not self.has_optimum:
            raise MismatchError(
                f"{what} is for problems whose parameters are all tied: some are personal or shared here"
            )

    def value(self, theta: ArrayLike) -> float:
        """Return Q(Theta).

        Parameters
        ----------
        theta : (n, p) array_like

        Returns
        -------
        float

        Examples
        --------
        >>> import coterie as ct
        >>> problem = ct.Problem.propagation([[0.0], [2.0]], ct.graphs.complete(2), alpha=0.5)
        >>> problem.value([[0.0], [2.0]])
        2.0
        """
        return float(self.values(theta).sum())

    def values(self, theta: ArrayLike) -> np.ndarray:
        """Return Q(Theta) split over the agents: the term of an edge counts for the agent with the lower number.

        Parameters
        ----------
        theta : (n, p) array_like

        Returns
        -------
        (n,) ndarray

        Examples
        --------
        >>> import coterie as ct
        >>> problem = ct.Problem.propagation([[0.0], [2.0]], ct.graphs.complete(2), alpha=0.5)
        >>> problem.values([[0.0], [2.0]]).tolist()
        [2.0, 0.0]
        """
        theta = self.checked(theta)
        if not self.has_optimum:
            i, j, w = self.graph.edges()
            tied = self.roles == TIED
            apart = self.smooth * w * np.square(theta[i][:, tied] - theta[j][:, tied]).sum(axis=1)
            return self.a * self.losses(theta) + np.bincount(np.minimum(i, j), weights=apart, minlength=self.n)
        return self._objective(self.a).value(theta)

    def gradient(self, theta: ArrayLike) -> np.ndarray:
        """Return the gradient ``dQ / dTheta``, the blocks of CD (4); at a kink, one subgradient.

        Parameters
        ----------
        theta : (n, p) array_like

        Returns
        -------
        (n, p) ndarray

        Examples
        --------
        >>> import coterie as ct
        >>> problem = ct.Problem.propagation([[0.0], [2.0]], ct.graphs.complete(2), alpha=0.5)
        >>> problem.gradient([[0.0], [2.0]]).ravel().tolist()
        [-2.0, 2.0]
        """
        theta = self.checked(theta)
        if not self.has_optimum:
            return gradients_of(self, theta)
        return self._objective(self.a).gradient(theta)

    def suboptimality(self, theta: ArrayLike, enough: float = np.inf) -> float:
        """Estimate ``(Q(Theta) - min Q) / Q(Theta)`` by half of Newton's decrement.

        The estimate is exact for the squared loss, and near the optimum for other smooth losses. Agents without edges
        count with their own losses.

        Parameters
        ----------
        theta : (n, p) array_like
        enough : float
            Stop early and return a lower bound, which is cheap, if that bound already exceeds `enough`.

        Returns
        -------
        float

        Examples
        --------
        >>> import coterie as ct
        >>> problem = ct.Problem.propagation([[0.0], [2.0]], ct.graphs.complete(2), alpha=0.5)
        >>> round(problem.suboptimality([[0.0], [2.0]]), 4)  # the value is 2, the optimum 2/3
        0.6667
        """
        self._expect_convex("suboptimality")
        if np.isfinite(self.radius):
            gap, value = self.gap(theta), self.value(theta)
            return gap / max(abs(value), abs(value - gap), 1e-300)
        objective: Any = self._objective(self.importance)
        return suboptimality(objective, self.checked(theta), enough)

    def losses(self, theta: ArrayLike) -> np.ndarray:
        """Return f_i(theta_i) of each agent, the losses that :func:`coterie.learn_graph` takes.

        Parameters
        ----------
        theta : (n, p) array_like

        Returns
        -------
        (n,) ndarray

        Examples
        --------
        >>> import coterie as ct
        >>> problem = ct.Problem.propagation([[0.0], [2.0]], ct.graphs.complete(2))
        >>> problem.losses([[1.0], [2.0]]).tolist()
        [0.5, 0.0]
        """
        theta = self.checked(theta)
        if not self.is_linear:
            return losses_of(self, theta)
        return self._objective(np.ones(self.n), empty(self.n)).value(theta)

    def gap(self, theta: ArrayLike) -> float:
        """Return a proven upper bound of ``Q(Theta) - min Q``.

        The bound is ``g' H^-1 g / 2``, by duality, where g is the gradient, and H is the Hessian of the smoothness
        terms and ridges; for the squared loss H is the Hessian of Q, and the bound is exact. For models in l1 balls,
        the bound is the Frank-Wolfe gap, ``sum_i max { (theta_i - v)' dQ/dtheta_i : |v|_1 <= beta }``. For the hinge
        loss, which has no gradient at its kinks, the bound is the distance to the lower bound found by :meth:`solve`.
        Agents without edges count with their own losses.

        Except for the hinge loss, nothing is solved, and the bound may be far too large away from the optimum. After
        ``best = solve()``, ``value(theta) - value(best) + gap(best)`` is a better bound.

        Parameters
        ----------
        theta : (n, p) array_like

        Returns
        -------
        float
            Infinite if there is no proof: a connected component of the graph in which no agent has a ridge (or, for
            the squared loss, rows that span all directions) may have unbounded models.

        Examples
        --------
        >>> import coterie as ct
        >>> problem = ct.Problem.propagation([[0.0], [2.0]], ct.graphs.complete(2), alpha=0.5)
        >>> round(problem.gap([[0.0], [2.0]]), 4)  # the value is 2, the optimum 2/3
        1.3333
        >>> problem.gap(problem.solve()) < 1e-12
        True
        """
        self._expect_convex("gap")
        objective: Any = self._objective(self.importance)
        theta = self.checked(theta)
        if np.isfinite(self.radius):
            return float(self.gaps(theta).sum())
        if np.isfinite(self.loss.smoothness):
            return gap(objective, theta)
        self.solve()
        return max(0.0, float(objective.value(theta).sum()) - self._least)

    def gaps(self, theta: ArrayLike) -> np.ndarray:
        """Return the Frank-Wolfe gap of each agent, for models in balls; their sum is :meth:`gap`.

        Parameters
        ----------
        theta : (n, p) array_like

        Returns
        -------
        (n,) ndarray

        Examples
        --------
        >>> import coterie as ct
        >>> problem = ct.Problem.boosting(None, ct.graphs.complete(2), base=[[[1.0]], [[-1.0]]], beta=2.0)
        >>> problem.gaps([[0.0], [0.0]]).tolist()
        [2.0, 2.0]
        """
        if not np.isfinite(self.radius):
            raise MismatchError(f"gaps is for models in l1 balls, and Problem.{self.name} has no balls: use gap")
        objective: Any = self._objective(self.importance)
        found: np.ndarray = objective.gaps(self.checked(theta))
        return found

    def solve(self, n_jobs: int | None = None) -> np.ndarray:
        """Return the exact minimiser of Q, the reference for every method.

        Agents without edges have their local models; components without data have zero models. If Q has several other
        minimisers (see :attr:`determined`), one of them is returned. The log ``coterie`` reports the :meth:`gap` of
        the solution at level info.

        Parameters
        ----------
        n_jobs : int, optional
            Number of threads; the result does not depend on this number. Default: one for each core, if the problem is
            large enough.

        Returns
        -------
        (n, p) ndarray

        Examples
        --------
        >>> import coterie as ct
        >>> problem = ct.Problem.propagation([[0.0], [4.0]], ct.graphs.empty(2))
        >>> problem.solve().ravel().tolist()
        [0.0, 4.0]
        """
        self._expect_convex("solve")
        if self._optimum is None:
            objective: Any = self._objective(self.importance, n_jobs=n_jobs)
            slopes = None
            if isinstance(objective, Objective) and not np.isfinite(self.loss.smoothness):
                slopes = np.zeros(objective.labels.shape[0])
            theta = _minimiser(objective, slopes)
            isolated = self.graph.mutual.isolated
            if isolated.any():
                theta[isolated] = self.local(n_jobs)[isolated]  # the minimiser of `local`, also if there are several
            if slopes is not None:
                self._least = lower_bound(objective, theta, slopes)
            self._optimum = theta
            if log.isEnabledFor(logging.INFO):
                log.info("%s problem solved: at most %.2g above the optimum", self.name, self.gap(theta))
        return self._optimum.copy()

    def local(self, n_jobs: int | None = None) -> np.ndarray:
        """Return the models that the agents would train alone, ``argmin f_i``; if ambiguous, one of small norm.

        A model is zero along the directions in which all rows are zero, and near zero where a loss is flat.

        Parameters
        ----------
        n_jobs : int, optional
            As in :meth:`solve`.

        Returns
        -------
        (n, p) ndarray
            Zero for an agent without rows.

        Examples
        --------
        >>> import coterie as ct
        >>> data = ct.AgentData([[0.0], [2.0], [5.0]], agents=["a", "a", "b"])
        >>> problem = ct.Problem.separate(data, ct.graphs.complete(2), loss=ct.Location(ct.Squared()))
        >>> problem.local().ravel().tolist()
        [1.0, 5.0]
        """
        if not self.is_linear:
            return np.tile(self.model.initial(), (self.n, 1))
        if self._local is None:
            self._local = _minimiser(self._objective(np.ones(self.n), empty(self.n), n_jobs))
        return self._local.copy()

    @cached_property
    def determined(self) -> np.ndarray:
        """Whether Q determines the model of an agent: the minimiser is unique, and depends on some data.

        False for an agent without edges whose loss has weight zero in Q, for a component without data, and for a
        component whose losses leave a direction free (too few examples and no ridge). Also False without a ridge if a
        loss has no curvature at the minimiser or there are more than 1000 features, and for boosting, whose base
        predictors may agree on all examples.

        Examples
        --------
        >>> import coterie as ct
        >>> graph = ct.Graph.from_edges(3, [0], [1])  # the third agent has no edges
        >>> ct.Problem.propagation([[0.0], [2.0], [5.0]], graph).determined.tolist()
        [True, True, False]
        """
        self._expect_convex("determined")
        component, count = self.graph.components, self.graph.n_components

        def any_in_component(agents: np.ndarray) -> np.ndarray:
            return np.bincount(component, weights=agents, minlength=count) > 0

        weighted = self.a > 0
        fixed = any_in_component(weighted & (self.ridge > 0))
        with_data = any_in_component(weighted & (self.data.sizes > 0))
        if np.isfinite(self.radius):
            return frozen(np.zeros(self.n, bool))
        if np.any(with_data & ~fixed) and np.isfinite(self.loss.smoothness) and self.p <= MAX_CHECKED_FEATURES:
            fixed |= self._curved()
        return frozen((fixed & with_data)[component])

    def _curved(self) -> np.ndarray:
        """Whether the losses of each component have curvature in every direction common to its agents."""
        objective: Any = self._objective(self.a)
        curvature = objective.examples(objective.margins(self.solve()))[2]
        most = np.einsum("ckk->ck", objective.grams()) * self.loss.smoothness
        unit = 1.0 / np.sqrt(np.where(most > 0, most, 1.0))  # the result does not depend on the scales of the features
        least = np.linalg.eigvalsh(objective.grams(curvature) * unit[:, :, None] * unit[:, None, :])[:, 0]
        return least > 1e-9

    @cached_property
    def block_lipschitz(self) -> np.ndarray:
        """L_i of CD, Lipschitz constants of the blocks of the gradient: ``2 s D_ii + a_i L_i^loc``; infinite at a kink.

        Examples
        --------
        >>> import coterie as ct
        >>> ct.Problem.propagation([[0.0], [2.0]], ct.graphs.complete(2), alpha=0.5).block_lipschitz.tolist()
        [2.0, 2.0]
        """
        own = np.where(self.a > 0, self.a, 1.0) * np.where(self.a > 0, self.local_lipschitz, 0.0)  # 0 * inf is 0 here
        return frozen(2.0 * self.smooth * self.graph.mutual.degrees + own)

    @cached_property
    def local_lipschitz(self) -> np.ndarray:
        """L_i^loc, Lipschitz constant of the gradient of f_i, from the largest eigenvalue of X_i' X_i."""
        if not self.is_linear:
            known = np.nan if self.curvature is None else self.curvature
            if self.curvature is None and hasattr(self.model, "curvatures"):
                known = self.model.curvatures(self.rows, self.start)
            return frozen(np.full(self.n, known) + 2.0 * self.ridge)
        norms = gram_norms(self.rows, self.start, self.p)
        curved = np.where(norms > 0, self.loss.smoothness, 0.0) * np.where(norms > 0, norms, 1.0)
        row_weight = 1.0 if self.loss.pooled else self.row_weight
        return frozen(row_weight * curved + 2.0 * self.ridge)

    def relabel(self, order: Sequence[int] | np.ndarray) -> Problem:
        """Return the problem with renumbered agents: the new agent k is the old agent ``order[k]``.

        Parameters
        ----------
        order : (n,) sequence of int
            A permutation.

        Returns
        -------
        Problem

        Examples
        --------
        >>> import coterie as ct
        >>> problem = ct.Problem.propagation([[0.0], [2.0]], ct.graphs.complete(2), alpha=0.5)
        >>> problem.relabel([1, 0]).solve().ravel().round(4).tolist()
        [1.3333, 0.6667]
        """
        order = np.asarray(order)
        return self._again(self.data.relabel(order), self.graph.relabel(order), order)

    def on(self, data: AgentData | None = None, graph: Graph | None = None) -> Problem:
        """Return the same objective on other data, on another graph, or on both.

        ``ridge="1/m"`` and ``confidence="size"`` are computed from the new data; numbers given for each agent are
        kept.

        Parameters
        ----------
        data : AgentData, optional
            Data of the same members in the same order. Not for :meth:`propagation`, whose data are its models.
        graph : Graph, optional
            Graph of the same number of agents.

        Returns
        -------
        Problem

        Examples
        --------
        >>> import coterie as ct
        >>> data = ct.AgentData([[1.0], [1.0]], [2.0, 0.0], agents=["a", "b"])
        >>> problem = ct.Problem.personalized(data, ct.graphs.complete(2), loss="squared")
        >>> later = problem.on(data.with_rows([[1.0]], [4.0], agents=["a"]))
        >>> problem.loss_weight.tolist(), later.loss_weight.tolist()
        ([1.0, 1.0], [1.0, 0.5])
        >>> problem.on(graph=problem.graph.without([1])).graph
        Graph(n=2, edges=0, components=2, isolated=2)
        """
        if data is None:
            data = self.data
        elif self.name == "propagation":
            raise MismatchError(
                "the data of Problem.propagation are its models, which have no rows to add to: "
                "make a new problem of the new models"
            )
        else:
            _expect(data)
            if data.n != self.n:
                raise DataError(f"the new data has {data.n} agents and the problem {self.n}: they must be the same")
            for k, (new, old) in enumerate(zip(data.members, self.members, strict=True)):
                if new != old:
                    raise DataError(
                        f"agent number {k} of the new data is {new!r}, and {old!r} of the problem: "
                        "they must be the same in the same order (see members= of AgentData)"
                    )
            if self.base is not None:
                data = _voted(data, self.base, self.outputs)
        return self._again(data, self.graph if graph is None else graph)

    def among(self, largest: int) -> Problem:
        """Return the problem with ``confidence="size"`` computed relative to `largest` rows.

        For the part of a larger problem in which some agent has `largest` rows.


        Parameters
        ----------
        largest : int
            The largest number of rows of any agent of the larger problem.

        Returns
        -------
        Problem

        Examples
        --------
        >>> import coterie as ct
        >>> data = ct.AgentData([[1.0], [1.0]], [2.0, 0.0], agents=["a", "b"])
        >>> ct.Problem.personalized(data, ct.graphs.complete(2), loss="squared").among(4).loss_weight.tolist()
        [0.25, 0.25]
        """
        if not isinstance(self._recipe["confidence"], str) or largest == self.data.sizes.max(initial=1):
            return self
        return self._again(self.data, self.graph, confidence=confidences(self.data.sizes, largest))

    def _again(self, data: AgentData, graph: Graph, order: Any = slice(None), **others: Any) -> Problem:
        """Return the objective on other data and another graph, where agent k is the old agent ``order[k]``."""
        recipe: dict[str, Any] = {
            name: value if isinstance(value, str) else value[order] for name, value in self._recipe.items()
        }
        return Problem(data, graph, **self._kept, **recipe | others)

    @property
    def _kept(self) -> dict[str, Any]:
        """Arguments of :class:`Problem` that do not depend on data and graph."""
        names = ("loss", "smooth", "scaled", "mean", "name", "radius", "outputs", "base", "roles", "curvature")
        return {name: getattr(self, name) for name in names} | {"model": None if self.is_linear else self.model}

    def checked(self, theta: ArrayLike) -> np.ndarray:
        """Return Theta as an (n, p) array of floats, or raise a ParameterError.

        Parameters
        ----------
        theta : array_like

        Returns
        -------
        (n, p) ndarray

        Examples
        --------
        >>> import coterie as ct
        >>> problem = ct.Problem.propagation([[0.0], [2.0]], ct.graphs.complete(2))
        >>> problem.checked([1.0, 2.0])
        Traceback (most recent call last):
        ...
        coterie.errors.ParameterError: models must have shape (2, 1), one row for each agent; found (2,)
        """
        theta = floats("models", theta)
        if theta.shape != (self.n, self.p):
            raise ParameterError(
                f"models must have shape ({self.n}, {self.p}), one row for each agent; found {theta.shape}"
            )
        bad = np.argwhere(~np.isfinite(theta))
        if bad.size:
            i, k = bad[0]
            raise ParameterError(
                f"the model of agent {self.members[i]!r} is {theta[i, k]} at coordinate {k}: models must be finite"
            )
        norms = np.abs(theta).reshape(self.n, self.outputs, -1).sum(axis=2).max(axis=1)
        outside = np.flatnonzero(norms > self.radius * (1.0 + 1e-9))
        if outside.size:
            i = outside[0]
            raise ParameterError(
                f"the model of agent {self.members[i]!r} has l1 norm {norms[i]:g}: models must stay within "
                f"beta={self.radius:g}"
            )
        return theta

    def _objective(
        self, importance: np.ndarray, graph: Graph | None = None, n_jobs: int | None = None
    ) -> Objective | BallObjective:
        examples = (self.rows, self.start, self.labels, self.loss)
        edges = ((self.graph if graph is None else graph).mutual, self.smooth, self.p)
        if np.isfinite(self.radius):
            return BallObjective(*examples, importance, *edges, self.radius, self.outputs)
        scale, ridge = importance * self.row_weight, importance * self.ridge
        return Objective(*examples, scale[:, None], ridge[:, None], *edges, n_jobs=n_jobs)

    def __repr__(self) -> str:
        return f"Problem.{self.name}({self.data!r}, {self.graph!r}, {(self.loss if self.is_linear else self.model)!r})"


def _minimiser(objective: Objective | BallObjective, slopes: np.ndarray | None = None) -> np.ndarray:
    return minimise_on_balls(objective) if isinstance(objective, BallObjective) else minimise(objective, slopes)


def _margins_given(margins: Any) -> list[np.ndarray]:
    """Check the margin matrices of the agents: all have the same number of columns, at least one."""
    try:
        given = [np.array(A, dtype=float, ndmin=2) for A in margins]
    except (TypeError, ValueError):
        raise DataError("without data, base must be a list of margin matrices, one for each agent") from None
    if not given or given[0].shape[1] == 0:
        raise DataError("a dictionary needs at least one base predictor: these margin matrices have no column")
    for k, A in enumerate(given):
        if A.ndim != 2 or A.shape[1] != given[0].shape[1]:
            raise DataError(
                f"the margin matrix of agent number {k} has shape {A.shape}: each must have {given[0].shape[1]} "
                "columns, one for each base predictor"
            )
        bad = np.argwhere(~np.isfinite(A))
        if bad.size:
            r, j = bad[0]
            raise DataError(
                f"base predictor {j} has margin {A[r, j]} on row {r} of agent number {k}: margins must be finite"
            )
    return given


def _voted(data: AgentData, base: Dictionary, parts: int) -> AgentData:
    """Return data with the outputs of the base predictors as features; several parts are one-against-rest classes."""
    data = data.with_features(outputs(base, data.X, data.where))
    if parts == 1:
        return data
    if data.y is None:
        raise DataError("boosting needs labels: make the data with y")
    refuse_labels(data, ~np.isin(data.y, np.arange(parts)), f"outputs={parts} takes 0 to {parts - 1}")
    return AgentData(
        sparse.block_diag([sparse.csr_array(data.X)] * parts, format="csr"),
        np.concatenate([np.where(data.y == k, 1.0, -1.0) for k in range(parts)]),
        agents=np.tile(data.owner, parts),
        members=range(data.n),
    )._like(members=data.members)


def _lay_out(data: AgentData, loss: Any) -> tuple[Any, np.ndarray, np.ndarray]:
    """Return the examples as kernels take them: rows, the first row of each agent, labels."""
    if loss.unlabelled:
        if loss.labels != REALS:
            raise MismatchError(f"{loss!r}: points need a loss of residuals, such as Squared or Huber")
        if data.y is not None:
            raise MismatchError(f"{loss!r} is for unlabelled points, and this data has labels: leave y out")
        X = data.X.toarray() if data.is_sparse else data.X
        # Each coordinate of a point is an example: its features are a unit vector, its label is the coordinate.
        count, p = X.shape
        column = np.tile(np.arange(p, dtype=np.int32), count)
        units = SparseRows(frozen(np.arange(count * p + 1)), frozen(column), frozen(np.ones(count * p)))
        return units, frozen(data.start * p), frozen(X.ravel(), np.float64)
    if data.y is None:
        raise DataError(f"{loss!r} needs labels: make the data with y")
    if loss.labels == SIGNS:
        bad = np.abs(data.y) != 1.0
        refuse_labels(data, bad, f"{loss!r} takes labels {SIGNS}{_labels_instead(data.y) if bad.any() else ''}")
    return rows_of(data.X), frozen(data.start), frozen(data.y)


def _labels_instead(y: np.ndarray) -> str:
    """Return advice for labels that are not -1 and +1, as the end of a message."""
    if np.all(np.isin(y, (0.0, 1.0))):
        return " (for 0 and 1, pass 2 * y - 1)"
    if np.all(y >= 0) and np.all(y == np.floor(y)):
        return (
            " (for classes 0, 1, ..., use ct.Problem.differentiable or ct.Problem.federated with the model "
            "ct.models.Softmax(features, classes))"
        )
    return ""


def _expect(data: Any) -> None:
    if not isinstance(data, AgentData):
        raise ParameterError(f"a problem needs an AgentData; found {type(data).__name__}")


def _confidence(confidence: ArrayLike | str | None, sizes: np.ndarray) -> np.ndarray:
    if confidence is None:
        return np.ones(sizes.shape[0])
    if isinstance(confidence, str):
        if confidence != "size":
            raise ParameterError(f'confidence={confidence!r} must be "size", None, or one number for each agent')
        return confidences(sizes, int(sizes.max(initial=1)))
    return per_agent("confidence", confidence, sizes.shape[0], least=0)


def _ridge(ridge: Any, sizes: np.ndarray) -> np.ndarray:
    if isinstance(ridge, str):
        if ridge != "1/m":
            raise ParameterError(f'ridge={ridge!r} must be a number, one number for each agent, or "1/m"')
        return np.where(sizes > 0, 1.0 / np.maximum(sizes, 1), 0.0)
    every = np.broadcast_to(ridge, sizes.shape) if np.ndim(ridge) == 0 else ridge
    return per_agent("ridge", every, sizes.shape[0], least=0)
