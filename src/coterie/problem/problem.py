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

Two conventions. An agent without edges has a_i = 0 in the first three: by convention it keeps the model it would
learn alone. A component of the graph in which nobody has data is undetermined: its models are zero.
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

#: More features than this, without a ridge, and nobody asks whether the minimiser is unique.
MANY = 1000
#: What sets the published objectives apart: the table above. s of the last three is half of what the user gives.
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
    """Data, graph, loss and weights: everything that defines Q. Make one with a constructor below.

    Every constructor returns a Problem. Methods take and return models as Theta, an (n, p) array: row i is theta_i,
    the model of agent ``members[i]``.

    Parameters
    ----------
    data : AgentData
    graph : Graph
        One agent for each member of ``data``, in the same order.
    loss : rule
        One of ``coterie.core.losses.LOSSES``, or another that passes :func:`coterie.testing.check_loss`.
        Constructors also take the name of a loss, such as "logistic".
    smooth : float
        s, the weight of the smoothness term.
    loss_weight : float or (n,) array_like
        a_i, or a_i / D_ii when ``scaled``; without c_i, which it is multiplied with.
    scaled : bool
        Whether a_i grows with the degree D_ii.
    mean : bool
        Whether f_i takes the mean of the losses or their sum.
    ridge : float, (n,) array_like or "1/m"
        r_i, added to f_i as ``r_i |theta|^2`` (without 1/2); "1/m" is 1 / m_i, and 0 for an agent without rows.
    confidence : "size", None or (n,) array_like
        c_i: ``m_i / max_j m_j`` (1e-9 for an agent without rows), all 1, or given.
    name : str
        Which published objective this is.
    radius : float
        Models stay in the l1 ball of this radius; infinite where they may be anything.
    outputs : int
        A model is so many parts side by side, each with its own ball; the rows of an agent are those of the first
        part, then those of the second, ...
    base : Dictionary, optional
        What the features are outputs of.
    model : model, optional
        What turns rows and parameters into losses. Default: linear, under ``loss``.
    roles : (p,) array, optional
        What becomes of each parameter: 0 if it is personal, 1 if shared by all, 2 if tied over the graph.
        Default: all 2.
    curvature : float, optional
        L_i^loc of a model: a bound on the curvature of f_i, for methods whose steps are one over it, such as
        :class:`coterie.CoordinateDescent`. Linear models and ``ct.models.Softmax`` know theirs.

    Attributes
    ----------
    n, p : int
        Number of agents, and of features.
    members : tuple
        Agent ids, in the order of the rows of Theta.
    loss_weight : (n,) ndarray
        a_i without the degree: a_i / D_ii when ``scaled``, confidences included.
    a : (n,) ndarray
        a_i as in the table above.
    importance : (n,) ndarray
        a_i, and 1 for an agent that ``scaled`` leaves without any: what an agent weighs its own loss with.
    """

    #: What defines the objective, the edges apart: see :func:`coterie._digest.digest_of`.
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
        # A word stays a word, for it stands for other numbers on other data.
        self._recipe = {
            "loss_weight": weight,
            "confidence": confidence if isinstance(confidence, str) else c,
            "ridge": ridge if isinstance(ridge, str) else self.ridge,
        }
        if not self.is_linear:
            check_rows(self.model, data)
        self.rows, self.start, self.labels = _lay_out(data, loss)
        if data.is_sparse and getattr(self.model, "opaque", False):
            self.rows = rows_of(data.X.toarray())  # what Python's models take
        alone = scaled & graph.mutual.isolated
        self.a = frozen(self.loss_weight * graph.mutual.degrees if scaled else self.loss_weight)
        self.importance = frozen(np.where(alone, 1.0, self.a))
        self.row_weight = frozen(outputs / np.maximum(data.sizes, 1) if mean else np.ones(self.n))
        self.radius, self.outputs, self.base = float(radius), outputs, base
        self._optimum: np.ndarray | None = None
        self._alone: np.ndarray | None = None
        self._least = -np.inf  # what Q is never below, known by solving

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
            theta_i^sol, trained alone.
        graph : Graph
        alpha : float
            In (0, 1): near 1, neighbours count more than an agent's own model.
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
        speaks = np.flatnonzero(c > 0)
        data = AgentData(models[speaks], agents=speaks, members=range(len(models)))
        mu = (1.0 - alpha) / alpha
        return cls._published("propagation", data, graph, Location(Squared()), loss_weight=mu * c)

    @classmethod
    def collaborative(
        cls, data: AgentData, graph: Graph, loss: Any = "logistic", mu: float = 1.0, ridge: Any = 0.0
    ) -> Problem:
        """Collaborative learning, CL (7): losses are summed, so that an agent with more data counts for more.

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
            As in :meth:`collaborative`.
        ridge : float, (n,) array_like or "1/m"
        confidence : "size", None or (n,) array_like
            Both as in :class:`Problem`.

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
        """Personal models with given couplings, DJAM (1): every f_i counts once, whatever the degree.

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
        """Boosting on a dictionary of base predictors h_1, h_2, ..., DADA (1): theta weighs their votes.

        ``mu/2 sum_{i<j} W_ij |theta_i - theta_j|^2 + sum_i D_ii c_i L_i(theta_i)``, where every theta_i stays in the
        ball ``|theta|_1 <= beta``, and ``L_i = log sum_r exp(-y_r sum_j theta_j h_j(x_r))`` over the rows of agent i.

        Parameters
        ----------
        data : AgentData or None
            Features and labels -1 and +1 (numbers for the squared loss).
        graph : Graph
        base : Stumps, int, list of fitted estimators, callable, Dictionary, or list of (m_i, size) arrays
            The dictionary: decision stumps, so many decision stumps, the predictions of estimators, or a function of X
            that returns a column for each base predictor. Or, with ``data=None``, the margins
            ``A_i[r, j] = y_r h_j(x_r)`` of each agent.
        mu : float
            Weight of the smoothness term, >= 0.
        beta : float
            Radius of the ball, > 0.
        confidence : "size", None or (n,) array_like
            As in :class:`Problem`.
        loss : "adaboost", "squared", or a smooth loss
            L_i: the log of the sum of exponential losses; or the mean of other losses, such as least squares for
            regression.
        outputs : int
            1, or the number of classes: labels are then 0, 1, ..., and a model has a part for each class against the
            rest, with its own L_i and its own ball; they share the graph.

        Returns
        -------
        Problem
            Its features are the outputs of the dictionary, ``problem.base``.

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
            raise ParameterError(f"outputs={outputs} needs data: margins are of one output")
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
        """Any differentiable model; parts of it personal, shared by all, or tied over the graph.

        ``coupling/2 sum_{i<j} W_ij |theta_i - theta_j|^2 + sum_i c_i f_i(theta_i)``, the distances over tied
        parameters, f_i the mean loss of agent i.

        Parameters
        ----------
        data : AgentData
        graph : Graph
            Who may talk to whom; ``ct.graphs.star(n)`` for a server in the middle, or see :meth:`federated`.
        model : model, loss or name of a loss
            ``ct.models.Torch(module, loss)``, ``ct.models.Function(...)``, ``ct.models.TwoLayer(...)``, ``ct.models.Softmax(...)``, or a linear
            model under a loss, such as ``"logistic"``.
        coupling : float
            Weight of the edges, >= 0: more is more agreement.
        personal, shared, tied : str or sequence of str
            Parameters by the beginnings of their names: those that stay with their agent, that are one and the same for
            all, that are tied over the graph. The rest is personal; or, where personal ones are named, tied, or else
            shared. Default: all are tied. A method with one common model takes shared and tied ones alike.
        ridge : float, (n,) array_like or "1/m"
        confidence : "size", None or (n,) array_like
        curvature : float, optional
            All three as in :class:`Problem`.

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
        """The clients of a server: any differentiable model, and one agent more, ``"server"``, number 0, without rows.

        The server is in the middle of a star, for methods such as :class:`coterie.federated.FedAvg`. Clients keep their order,
        from number 1 on.

        Parameters
        ----------
        data : AgentData
            Of the clients.
        model, personal, shared, tied, ridge, confidence, curvature
            As in :meth:`differentiable`, but for this: what is not named is shared by all, also where personal
            parameters are named. Numbers given for each agent begin with the server's.
        coupling : float
            Weight of the edges of tied parameters to those of the server, >= 0.

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
            raise DataError(f"there is an agent {SERVER!r} already, which is the name of the one that is added")
        data = data.with_members([SERVER, *data.members])
        words = {"personal": personal, "shared": shared, "tied": tied, "rest": SHARED}
        weights = {"coupling": coupling, "ridge": ridge, "confidence": confidence, "curvature": curvature}
        return cls._modelled("federated", data, star(data.n), model, words, **weights)

    @classmethod
    def _modelled(
        cls, name: str, data: AgentData, graph: Graph, model: Any, words: dict[str, Any], **given: Any
    ) -> Problem:
        """Any differentiable model; words say what becomes of its parameters (:func:`roles_of`)."""
        loss, model = model_of(model)
        roles = roles_of(model, data.p if model is None else int(model.size), **words)
        smooth, curvature = 0.5 * nonnegative("coupling", given.pop("coupling")), given["curvature"]
        given |= {"smooth": smooth, "curvature": None if curvature is None else positive("curvature", curvature)}
        return cls._published(name, data, graph, loss, model=model, roles=roles, **given)

    @classmethod
    def _published(cls, name: str, data: AgentData, graph: Graph, loss: Any, **given: Any) -> Problem:
        return cls(data, graph, loss, name=name, **PUBLISHED[name], **given)

    # -- what can be asked of it ---------------------------------------------------------------------------------

    @property
    def is_linear(self) -> bool:
        """Whether the model is linear."""
        return isinstance(self.model, Linear)

    @property
    def has_optimum(self) -> bool:
        """Whether the optimum can be computed: the model is linear, and all of its parameters are tied."""
        return self.is_linear and not np.any(self.roles != TIED)

    def _expect_convex(self, what: str) -> None:
        """Refuse a question that only a convex problem with one kind of parameters answers."""
        if not self.is_linear:
            raise MismatchError(
                f"{what} is for linear models: the optimum of {self.model!r} is not known; look at value, or at "
                "what the models predict (ct.evaluate)"
            )
        if not self.has_optimum:
            raise MismatchError(
                f"{what} is for problems whose parameters are all tied: some are personal or shared here"
            )

    def value(self, theta: ArrayLike) -> float:
        """Q(Theta).

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
        """Q(Theta) split over the agents: an edge counts for its lower end.

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
        """``dQ / dTheta``, the blocks of CD (4); at a kink, one subgradient.

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
        """Estimate how far Theta is above the optimum, relative to the objective, by half of Newton's decrement.

        Exact for the squared loss, and near the optimum for other smooth ones. Agents without edges count, too: each
        with its own loss.

        Parameters
        ----------
        theta : (n, p) array_like
        enough : float
            Who only asks whether it is below this is given a lower bound, which is cheap, as soon as that is above.

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
        """f_i(theta_i) of each agent: what :func:`coterie.learn_graph` asks for.

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
        """An upper bound of how far Q(Theta) is above its optimum: proven, not estimated.

        By duality, from the gradient g: ``g' H^-1 g / 2``, where H is the Hessian of the smoothness terms and ridges,
        and for the squared loss that of Q, which makes it exact. Models in their balls have the Frank-Wolfe gap,
        ``sum_i max { (theta_i - v)' dQ/dtheta_i : |v|_1 <= beta }``. The hinge, which has no gradient at its kinks,
        is compared with the lower bound that comes with :meth:`solve`. Agents without edges count, too, each with its
        own loss.

        Nothing is solved for it otherwise, and away from the optimum it may be far too large. Who has solved the
        problem knows better: ``value(theta) - value(best) + gap(best)`` with ``best = solve()``.

        Parameters
        ----------
        theta : (n, p) array_like

        Returns
        -------
        float
            Infinite where there is no proof: a connected component of the graph in which nobody has a ridge (or, with
            the squared loss, rows that see all directions) may have models without bound.

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
        """The :meth:`gap` of models in balls split over the agents: each one's Frank-Wolfe gap.

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
            raise MismatchError(f"gaps are of models that stay in balls, and Problem.{self.name} has none: use gap")
        objective: Any = self._objective(self.importance)
        found: np.ndarray = objective.gaps(self.checked(theta))
        return found

    def solve(self, n_jobs: int | None = None) -> np.ndarray:
        """The exact minimiser of Q, the reference for every method.

        Agents without edges keep their local model; components without data are zero. Elsewhere, where Q has several
        minimisers (see :attr:`determined`), one of them. The log (``coterie``, info) tells its :meth:`gap`, the proof.

        Parameters
        ----------
        n_jobs : int, optional
            Threads; default: one for each core, where there is enough to do. The result does not depend on it.

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
                theta[isolated] = self.local(n_jobs)[isolated]  # the same minimiser, also where there are several
            if slopes is not None:
                self._least = lower_bound(objective, theta, slopes)
            self._optimum = theta
            if log.isEnabledFor(logging.INFO):
                log.info("%s problem solved: at most %.2g above the optimum", self.name, self.gap(theta))
        return self._optimum.copy()

    def local(self, n_jobs: int | None = None) -> np.ndarray:
        """Models that the agents would train alone, ``argmin f_i``; of several, one of small norm.

        Where rows leave a direction unseen, the model is zero along it; where a loss is flat, it is near zero.

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
        if self._alone is None:
            self._alone = _minimiser(self._objective(np.ones(self.n), empty(self.n), n_jobs))
        return self._alone.copy()

    @cached_property
    def determined(self) -> np.ndarray:
        """Whether Q alone fixes the model of an agent: its minimiser is unique there, and rests on some data.

        False for an agent without edges whose loss Q ignores, for a component without data, and where the losses
        leave a direction free (too few examples and no ridge). A loss with flat parts and no ridge counts as free
        where it has no curvature at the minimiser; so do more than 1000 features without a ridge, and boosting,
        whose base predictors may agree on all examples.

        Examples
        --------
        >>> import coterie as ct
        >>> graph = ct.Graph.from_edges(3, [0], [1])  # the third agent has no edges
        >>> ct.Problem.propagation([[0.0], [2.0], [5.0]], graph).determined.tolist()
        [True, True, False]
        """
        self._expect_convex("determined")
        component, count = self.graph.components, self.graph.n_components

        def somewhere(agents: np.ndarray) -> np.ndarray:
            return np.bincount(component, weights=agents, minlength=count) > 0

        heard = self.a > 0
        fixed = somewhere(heard & (self.ridge > 0))
        speaks = somewhere(heard & (self.data.sizes > 0))
        if np.isfinite(self.radius):
            return frozen(np.zeros(self.n, bool))
        if np.any(speaks & ~fixed) and np.isfinite(self.loss.smoothness) and self.p <= MANY:
            fixed |= self._curved()
        return frozen((fixed & speaks)[component])

    def _curved(self) -> np.ndarray:
        """Do the losses of each component curve in every direction that its agents could move in together?"""
        objective: Any = self._objective(self.a)
        curvature = objective.examples(objective.margins(self.solve()))[2]
        most = np.einsum("ckk->ck", objective.grams()) * self.loss.smoothness
        unit = 1.0 / np.sqrt(np.where(most > 0, most, 1.0))  # whatever the scales of the features
        least = np.linalg.eigvalsh(objective.grams(curvature) * unit[:, :, None] * unit[:, None, :])[:, 0]
        return least > 1e-9

    @cached_property
    def block_lipschitz(self) -> np.ndarray:
        """L_i of CD: block i of the gradient is L_i-Lipschitz, ``L_i = 2 s D_ii + a_i L_i^loc``; infinite at a kink.

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
        """L_i^loc: f_i has a L_i^loc-Lipschitz gradient; from the largest eigenvalue of X_i' X_i."""
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
        """The same problem with agent k renamed: it was agent ``order[k]``.

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
        """The same objective on other data, on another graph, or on both.

        What is worked out from the sizes of the data, ridge="1/m" and confidence="size", is worked out anew;
        numbers given for each agent are kept.

        Parameters
        ----------
        data : AgentData, optional
            Of the same members in the same order. Not for :meth:`propagation`, whose data are its models.
        graph : Graph, optional
            Of as many agents.

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
                "the data of Problem.propagation are its models, which do not grow by rows: "
                "make another problem of the new models"
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
        """The same problem as a part of one in which somebody has so many rows: confidence="size" asks for it.

        Parameters
        ----------
        largest : int
            The most rows of any agent, here or elsewhere.

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
        """The objective on other data and another graph, where agent k is the old agent ``order[k]``."""
        recipe: dict[str, Any] = {
            name: value if isinstance(value, str) else value[order] for name, value in self._recipe.items()
        }
        return Problem(data, graph, **self._kept, **recipe | others)

    @property
    def _kept(self) -> dict[str, Any]:
        """What the same objective has on any data and graph: arguments of :class:`Problem`."""
        names = ("loss", "smooth", "scaled", "mean", "name", "radius", "outputs", "base", "roles", "curvature")
        return {name: getattr(self, name) for name in names} | {"model": None if self.is_linear else self.model}

    def checked(self, theta: ArrayLike) -> np.ndarray:
        """Theta as an (n, p) array of floats, or an error that says what is wrong with it.

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
    """A margin matrix for each agent, all with the same number of columns, at least one."""
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
    """The outputs of the base predictors as features; with several parts, each class against the rest in its own."""
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
    """Examples as kernels see them: rows, where each agent's begin, labels."""
    if loss.unlabelled:
        if loss.labels != REALS:
            raise MismatchError(f"{loss!r}: points need a loss of residuals, such as Squared or Huber")
        if data.y is not None:
            raise MismatchError(f"{loss!r} is for unlabelled points, and this data has labels: leave y out")
        X = data.X.toarray() if data.is_sparse else data.X
        # Each coordinate of a point is an example: a unit vector for features, the coordinate for a label.
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
    """What to do with labels that are not -1 and +1."""
    if np.all(np.isin(y, (0.0, 1.0))):
        return " (for 0 and 1, pass 2 * y - 1)"
    if np.all(y >= 0) and np.all(y == np.floor(y)):
        return (
            " (for classes 0, 1, ..., say ct.Problem.differentiable or ct.Problem.federated with the model "
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
