"""What a peer works on: its own rows, and its part of the objective that the charter states.

:func:`coterie.peers.model.tables.work_of` makes it from a table with the same :class:`~coterie.Problem` that the
laboratory uses; it needs pandas and the rest of the library for that. The peer itself needs only the numbers, which
travel from one process to the other as bytes (:func:`write_work`): so a peer stays small.
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
from ..group.charter import MAX_MESSAGE, MAX_PARAMETERS, TRAINING
from ..group.networks import margins, roles, shape_of
from ..wire.packet import OVERHEAD

if TYPE_CHECKING:
    from ..group.charter import Charter

#: Settings of boosting that are the problem's, not the method's.
BOOSTING: dict[str, Any] = {"stumps": 200, "beta": 10.0, "low": -3.0, "high": 3.0}
#: How peers learn their edges, where the charter says no more than that.
LEARNED: dict[str, Any] = {"kappa": 3, "every": 10.0, "sampling": "shuffle"}
#: Optimisers of methods that train, by name.
OPTIMISERS: dict[Any, Any] = {"sgd": SGD, "adam": Adam}
#: An array of nothing.
NOTHING = frozen(np.empty((0, 0)))


class Work(NamedTuple):
    """One agent's part of a problem, without its edges."""

    loss: Any
    features: np.ndarray  # (rows, p)
    labels: np.ndarray  # (rows,)
    size: int  # examples
    row_weight: float
    theta: np.ndarray  # (p,) the model to start from
    local: np.ndarray  # (p,) the model trained alone
    seen: np.ndarray  # (k, p) features of the rows that models are measured with
    seen_labels: np.ndarray = np.empty(0)  # (k,)
    aside: bool = False  # whether these were kept aside, and are not among the rows to learn from
    ridge: float = 0.0
    weight: float = 1.0  # a_i / (c_i D_ii) where a_i grows with the degree, a_i / c_i where it does not
    confident: bool = False  # whether a_i has a confidence c_i in it
    curvature: float = 0.0
    smooth: float = 0.5
    scaled: bool = False
    radius: float = math.inf
    outputs: int = 1
    spread: np.ndarray = NOTHING  # (p, p) covariance of the model trained alone; nothing where it is not known
    noise: float = 1.0  # variance of a label around its prediction by that model
    fill: np.ndarray = NOTHING  # (features,) what a gap among numbers counts as; NaN where nothing is known
    notes: list[str] = []  # noqa: RUF012 - what was done to the rows, in plain words
    roles: np.ndarray = NOTHING  # (p,) what becomes of each parameter; nothing where all are tied
    model: Any = Linear()  # what turns rows and parameters into losses; made on both sides, never written

    @property
    def p(self) -> int:
        """Numbers in a model."""
        return self.theta.shape[0]

    def margins(self, theta: np.ndarray) -> np.ndarray:
        """What a model says to the rows that models are measured with."""
        return margins(self.model, theta, self.seen)


def arrays_of_one(
    work: Work, address: int, edges: Mapping[int, float], n_agents: int, largest: int, spare: int = 0, batch: int = 0
) -> AgentArrays:
    """The agents' arrays of one agent, tied as given; `largest` is M of the confidences.

    There are `spare` slots for further edges, and room for minibatches of `batch` rows.
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
        if needed > MAX_MESSAGE:
            raise ParameterError(
                f"network: a message takes up to {needed} bytes, and there may be {MAX_MESSAGE} at most: make the model "
                "smaller, or more of it personal"
            )
    method_of(charter)


def loss_of(charter: Charter) -> Any:
    """The loss that a charter names."""
    if charter.loss not in losses.LOSSES:
        raise ParameterError(f"loss={charter.loss!r} is not known: choose one of {', '.join(losses.LOSSES)}")
    return losses.LOSSES[charter.loss]


def trimmable(charter: Charter) -> bool:
    """Whether neighbours' values can be trimmed: the method keeps copies of their models."""
    method = _bare_method(charter)
    return bool(method.promises.minimises and method.edges.copies)


def _bare_method(charter: Charter) -> Any:
    """The method that a charter names, private if it says so."""
    if charter.method not in METHODS:
        raise ParameterError(f"method={charter.method!r} is not known: choose one of {', '.join(METHODS)}")
    if charter.method in TRAINING:
        return _training_method(charter)
    if METHODS[charter.method].training.jobs:
        raise ParameterError(
            f"method={charter.method!r} does not bear lost messages, and so runs in ct.simulate alone: of those that "
            f"train, peers run {', '.join(TRAINING)}"
        )
    apart = BOOSTING if charter.method == "boosting" else ()
    settings = {name: value for name, value in charter.settings.items() if name not in apart}
    kind = type(METHODS[charter.method])
    if charter.objective == "pooling" and "intercept" in inspect.signature(kind).parameters:
        settings.setdefault("intercept", charter.intercept)
    method = make_part("settings", kind, settings)
    if charter.privacy is not None:
        from ...privacy import Private  # with SciPy, which others do not need

        terms = dict(charter.privacy)
        if charter.method == "propagation":
            terms.setdefault("max_rows", charter.max_rows)
        method = make_part("privacy", Private, terms, method)
    return method


def _training_method(charter: Charter) -> Any:
    """A method that trains, with its optimiser: both have their arguments in the settings."""
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
    """How messages are written and checked: models of networks in single precision, all else as doubles."""
    return Contents(in_single(method.messages) if charter.network else method.messages, bounds)


def longest_message(charter: Charter) -> int:
    """Bytes of the longest packet of a network's messages, at most."""
    q = int(np.count_nonzero(roles(charter) != PERSONAL))
    method = method_of(charter)
    contents = wire_of(charter, method, Bounds(q))
    sizes = [len(contents.write(kind, np.zeros(longest([length])))) for kind, length in enumerate(contents.lengths)]
    return max(sizes) + OVERHEAD


def method_of(charter: Charter) -> Any:
    """The method that a charter states, composed as in the laboratory."""
    method = _bare_method(charter)
    if charter.trim > 0.0:
        method = make_part("trim", Trimmed, {}, method, charter.trim)
    if charter.learned is not None:
        given = LEARNED | charter.learned
        how = {name: given.pop(name) for name in ("every", "sampling")}
        rule = make_part("learned", GraphRule, given)
        if "max_weight" not in given:
            # An edge of an honest agent weighs about 1 / sqrt(lam); one that a hostile one makes, no more than this.
            rule = make_part("learned", GraphRule, given | {"max_weight": 10.0 / math.sqrt(rule.lam)})
        method = make_part("learned", Learned, how, method, rule)
    return method


def make_part(field: str, kind: Any, named: Mapping[str, Any], *first: Any) -> Any:
    """A part of the library with the arguments that a field of the charter holds; an error names the field."""
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
    """A work as bytes."""
    arrays: dict[str, Any] = {name: value for name, value in work._asdict().items() if isinstance(value, np.ndarray)}
    numbers = {name: value for name, value in work._asdict().items() if name not in (*arrays, "loss", "model")}
    return packed(arrays, {"loss": losses.loss_to_json(work.loss), "numbers": numbers}, "head")


def read_work(content: bytes, model: Any = None) -> Work:
    """The other way round, with the `model` of the group, if that is not linear; a DataError for anything else."""
    with reading("not the work of a peer"):
        arrays, head = unpacked(content, "head")
        work = Work(loss=losses.loss_from_json(head["loss"]), **head["numbers"], **arrays)
    if model is None:
        return work
    if hasattr(model, "check"):  # a model in Python may have to see rows before it can work on them
        model.check(work.features[:TRIAL_ROWS], work.labels[:TRIAL_ROWS])
    return work._replace(model=model)
