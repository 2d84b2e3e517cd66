"""The work of a peer: its own rows, and its part of the charter's objective.

:func:`coterie.peers.model.tables.work_of` makes the work from a table, with the :class:`~coterie.Problem` that
simulations use, which needs pandas and the rest of the library. The peer's process needs only the numbers, which it
gets as bytes from another process (:func:`write_work`), so its memory stays small.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..._archive import packed, reading, unpacked
from ...core import losses
from ...core.arrays import PERSONAL, TIED, VACANT, AgentArrays, paper
from ...core.linear import DenseRows, frozen
from ...core.losses import SIGNS
from ...core.messages import Bounds, Contents, in_single, longest
from ...core.methods import METHODS
from ...core.models import Linear
from ...core.training import SGD, Adam
from ...core.wrap.graph_rule import GraphRule
from ...core.wrap.learned import Learned
from ...core.wrap.robust import Trimmed
from ...errors import MismatchError, ParameterError
from ...problem.confidence import confidences
from ...problem.modelled import TRIAL_ROWS
from ..group.charter import MAX_MESSAGE_BYTES, MAX_PARAMETERS, TRAINING
from ..group.networks import margins, roles, shape_of
from ..wire.packet import OVERHEAD_BYTES

if TYPE_CHECKING:
    from ..group.charter import Charter

#: Default settings of boosting that belong to the problem, not to the method.
BOOSTING: dict[str, Any] = {"stumps": 200, "beta": 10.0, "low": -3.0, "high": 3.0}
#: Default arguments for learning edges.
LEARNED: dict[str, Any] = {"kappa": 3, "every": 10.0, "sampling": "shuffle"}
#: Optimisers of training methods, by name.
OPTIMISERS: dict[Any, Any] = {"sgd": SGD, "adam": Adam}
#: An empty array.
EMPTY = frozen(np.empty((0, 0)))


class Work(NamedTuple):
    """One agent's part of a problem, without its edges."""

    loss: Any
    features: np.ndarray  # (rows, p)
    labels: np.ndarray  # (rows,)
    size: int  # number of examples
    row_weight: float
    theta: np.ndarray  # (p,) initial model
    local: np.ndarray  # (p,) model trained alone
    seen: np.ndarray  # (k, p) features of the rows on which models are scored
    seen_labels: np.ndarray = np.empty(0)  # (k,)
    aside: bool = False  # whether the scored rows were kept aside, and are not among the rows to learn from
    ridge: float = 0.0
    weight: float = 1.0  # a_i / (c_i D_ii) if a_i grows with the degree, otherwise a_i / c_i
    confident: bool = False  # whether a_i includes the confidence c_i
    curvature: float = 0.0
    smooth: float = 0.5
    scaled: bool = False
    radius: float = math.inf
    outputs: int = 1
    spread: np.ndarray = EMPTY  # (p, p) covariance of the model trained alone; empty if unknown
    noise: float = 1.0  # variance of a label around its prediction by that model
    fill: np.ndarray = EMPTY  # (features,) value of a gap in each numeric feature; NaN if unknown
    notes: list[str] = []  # noqa: RUF012 - notes on how the rows were read
    roles: np.ndarray = EMPTY  # (p,) role of each parameter; empty if all are tied
    model: Any = Linear()  # maps rows and parameters to losses; made on both sides, never written

    @property
    def p(self) -> int:
        """Number of parameters of a model."""
        return self.theta.shape[0]

    def margins(self, theta: np.ndarray) -> np.ndarray:
        """Return the margins of a model on the rows on which models are scored."""
        return margins(self.model, theta, self.seen)


def arrays_of_one(
    work: Work, address: int, edges: Mapping[int, float], n_agents: int, largest: int, spare: int = 0, batch: int = 0
) -> AgentArrays:
    """Return the agents' arrays for one agent with these edges. `largest` is M in the confidences m/M.

    There are `spare` slots for further edges, and scratch space for minibatches of `batch` rows.
    """
    m = work.features.shape[0]
    roles = work.roles if work.roles.size else np.full(work.p, TIED, np.int8)
    peer = np.array([*edges, *[VACANT] * spare], np.int64)
    weight = np.array([*edges.values(), *[0.0] * spare])
    loss_weight = work.weight * (float(confidences(work.size, largest)) if work.confident else 1.0)
    arrays = AgentArrays(
        loss=work.loss,
        rows=DenseRows(frozen(work.features)),
        labels=frozen(work.labels),
        row_start=frozen(np.array([0, m])),
        edge_start=frozen(np.array([0, peer.size])),
        peer=peer,
        inverse=np.full(peer.size, VACANT),
        weight=weight,
        choice=(peer != VACANT).astype(float),
        row_weight=frozen(np.array([work.row_weight])),
        ridge=frozen(np.array([work.ridge])),
        loss_weight=frozen(np.array([loss_weight])),
        curvature=frozen(np.array([work.curvature])),
        address=frozen(np.array([address])),
        smooth=work.smooth,
        scaled=work.scaled,
        radius=work.radius,
        outputs=work.outputs,
        n_agents=n_agents,
        roles=frozen(roles),
        sent=frozen(np.flatnonzero(roles != PERSONAL)),
    )
    return paper(arrays, work.model, batch)


def check_parts(charter: Charter) -> None:
    """Refuse a charter whose loss, method, graph rule or privacy terms cannot be made."""
    loss = loss_of(charter)
    if loss.pooled and charter.objective != "boosting":
        raise ParameterError(f"loss={charter.loss!r} is for objective='boosting', not for {charter.objective!r}")
    if loss.labels == SIGNS and charter.labels is None:
        raise ParameterError(f"loss={charter.loss!r} is for classes: give their two labels, or choose loss='squared'")
    if charter.network:
        size = shape_of(charter).size
        if size > MAX_PARAMETERS:
            raise ParameterError(f"network: a model of {size} parameters; there may be {MAX_PARAMETERS} at most")
        needed = longest_message(charter)
        if needed > MAX_MESSAGE_BYTES:
            raise ParameterError(
                f"network: a message takes up to {needed} bytes, and there may be {MAX_MESSAGE_BYTES} at most: make "
                "the model smaller, or more of it personal"
            )
    method_of(charter)


def loss_of(charter: Charter) -> Any:
    """Return the loss of a charter."""
    if charter.loss not in losses.LOSSES:
        raise ParameterError(f"loss={charter.loss!r} is not known: choose one of {', '.join(losses.LOSSES)}")
    return losses.LOSSES[charter.loss]


def trimmable(charter: Charter) -> bool:
    """Whether neighbours' values can be trimmed, which needs a method that keeps copies of their models."""
    method = _bare_method(charter)
    return bool(method.promises.minimises and method.edges.copies)


def _bare_method(charter: Charter) -> Any:
    """Return the method of a charter, private if the charter says so, without trimming and learning of edges."""
    if charter.method not in METHODS:
        raise ParameterError(f"method={charter.method!r} is not known: choose one of {', '.join(METHODS)}")
    if charter.method in TRAINING:
        return _training_method(charter)
    if METHODS[charter.method].training.jobs:
        raise ParameterError(
            f"method={charter.method!r} cannot run if messages are lost, and so runs only in ct.simulate: of "
            f"the methods that train, peers run {', '.join(TRAINING)}"
        )
    apart = BOOSTING if charter.method == "boosting" else ()
    settings = {name: value for name, value in charter.settings.items() if name not in apart}
    kind = type(METHODS[charter.method])
    if charter.objective == "pooling" and "intercept" in inspect.signature(kind).parameters:
        settings.setdefault("intercept", charter.intercept)
    method = make_part("settings", kind, settings)
    if charter.privacy is not None:
        from ...privacy import Private  # needs SciPy, which other charters do not

        terms = dict(charter.privacy)
        if charter.method == "propagation":
            terms.setdefault("max_rows", charter.max_rows)
        method = make_part("privacy", Private, terms, method)
    return method


def _training_method(charter: Charter) -> Any:
    """Return a training method with its optimiser. The settings hold the arguments of both."""
    settings = dict(charter.settings)
    word = settings.pop("optimiser", "sgd")
    if word not in OPTIMISERS:
        raise ParameterError(f"settings: optimiser={word!r} must be one of {', '.join(OPTIMISERS)}")
    kind, method = OPTIMISERS[word], type(METHODS[charter.method])
    own = {name: settings.pop(name) for name in list(settings) if name in kind._fields}
    if settings:
        known = ", ".join(("optimiser", *kind._fields))
        raise ParameterError(f"settings has {next(iter(settings))!r}, which is not known: choose from {known}")
    try:
        return method(kind(**own))
    except (ParameterError, TypeError) as error:
        raise ParameterError(f"settings: {error}") from None


def wire_of(charter: Charter, method: Any, bounds: Bounds) -> Contents:
    """Return how messages are written and checked: models of networks in single precision, everything else as
    doubles.
    """
    return Contents(in_single(method.messages) if charter.network else method.messages, bounds)


def longest_message(charter: Charter) -> int:
    """Return the maximal bytes of a packet of a network's messages."""
    q = int(np.count_nonzero(roles(charter) != PERSONAL))
    method = method_of(charter)
    contents = wire_of(charter, method, Bounds(q))
    sizes = [len(contents.write(kind, np.zeros(longest([length])))) for kind, length in enumerate(contents.lengths)]
    return max(sizes) + OVERHEAD_BYTES


def method_of(charter: Charter) -> Any:
    """Return the method of a charter, composed as in simulations."""
    method = _bare_method(charter)
    if charter.trim > 0.0:
        method = make_part("trim", Trimmed, {}, method, charter.trim)
    if charter.learned is not None:
        given = LEARNED | charter.learned
        how = {name: given.pop(name) for name in ("every", "sampling")}
        rule = make_part("learned", GraphRule, given)
        if "max_weight" not in given:
            # An edge between honest agents weighs about 1 / sqrt(lam). This bounds the weight that a hostile member can
            # cause.
            rule = make_part("learned", GraphRule, given | {"max_weight": 10.0 / math.sqrt(rule.lam)})
        method = make_part("learned", Learned, how, method, rule)
    return method


def make_part(field: str, kind: Any, named: Mapping[str, Any], *first: Any) -> Any:
    """Make an object of the library with the arguments in a field of the charter. An error names the field."""
    known = list(inspect.signature(kind).parameters)[len(first) :]
    for name in named:
        if name not in known:
            raise ParameterError(f"{field} has {name!r}, which is not known: choose from {', '.join(known) or 'none'}")
    try:
        return kind(*first, **named)
    except (ParameterError, MismatchError, TypeError) as error:
        raise ParameterError(f"{field}: {error}") from None


# -- from one process to another --------------------------------------------------------------------------------------


def write_work(work: Work) -> bytes:
    """Return a work as bytes."""
    arrays: dict[str, Any] = {name: value for name, value in work._asdict().items() if isinstance(value, np.ndarray)}
    numbers = {name: value for name, value in work._asdict().items() if name not in (*arrays, "loss", "model")}
    return packed(arrays, {"loss": losses.loss_to_json(work.loss), "numbers": numbers}, "head")


def read_work(content: bytes, model: Any = None) -> Work:
    """Read a work: the inverse of :func:`write_work`. `model` is the group's, if not linear. Raise a DataError for bad
    bytes.
    """
    with reading("not the work of a peer"):
        arrays, head = unpacked(content, "head")
        work = Work(loss=losses.loss_from_json(head["loss"]), **head["numbers"], **arrays)
    if model is None:
        return work
    if hasattr(model, "check"):  # a model in Python may have to see rows before it can work on them
        model.check(work.features[:TRIAL_ROWS], work.labels[:TRIAL_ROWS])
    return work._replace(model=model)
