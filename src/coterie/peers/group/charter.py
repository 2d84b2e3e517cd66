"""The charter: every public number of a run, and the admin's key. Its hash is the run id.

Two peers with the same run id have the same charter, and changing any number of a charter starts another run. The types
of the fields state their bounds. Method, loss, graph rule and privacy terms are checked by making them
(:func:`coterie.peers.model.work.check_parts`), where a charter is made and where a peer joins.
"""

from __future__ import annotations

import hashlib
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from ..._files import Where, read_bounded
from ...errors import ParameterError
from .records import MAX_EXACT_INTEGER, Count, Finite, Positive, PublicKey, encoded, from_json, made, to_json

Text = Annotated[str, Meta(min_length=1, max_length=200)]
Argument = Annotated[str, Meta(max_length=64, pattern=r"^[A-Za-z_][A-Za-z0-9_]*\Z")]
Setting = Annotated[int, Meta(ge=-MAX_EXACT_INTEGER, le=MAX_EXACT_INTEGER)] | Finite | Text
Settings = Annotated[dict[Argument, Setting], Meta(max_length=100)]
Index = Annotated[int, Meta(ge=0, le=100_000)]

#: Methods of the objective "differentiable", in which losing a message does no more harm than delaying it.
TRAINING = ("tied-sgd", "local-sgd", "dpsgd")
#: Maximal number of parameters of a model, and maximal bytes of a message.
MAX_PARAMETERS, MAX_MESSAGE_BYTES = 200_000, 1_000_000
#: Maximal radius of a model that is sent in single precision.
MAX_SINGLE_RADIUS = 1e30
#: Methods of the objective "pooling". The first available one is the default.
POOLING = ("resilient-pooling", "gossip-pooling")
#: Default share of the neighbours' values that is left out at each end: one of four.
DEFAULT_TRIM = 0.25
#: Default bounds on the norm of a model and on the number of rows: over a graph, and in pooling, where units of
#: columns are arbitrary and messages have bounds of their own.
GRAPH_RADIUS, POOLING_RADIUS, GRAPH_MAX_ROWS, POOLING_MAX_ROWS = 1e3, 1e50, 1000, 1_000_000
#: Fields that :func:`make_charter` sets to values that fit the other fields, if they are not given.
FITTED = ("method", "objective", "loss", "trim", "radius", "max_rows", "ridge", "messages_per_second")


class Encoding(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Public rules that turn text features and gaps into columns, the same for every member.

    Parameters
    ----------
    kinds : list of "number", "text" or "category"
        Kind of every feature. A text feature refuses numbers; a category may be written as a number.
    fills : list of float or None
        Value in place of a gap, for each feature that is a number. None: the mean of the peer's own rows.
    source : list of int
        The feature from which each column is made.
    parts : list of ("value", None), ("level", text) or ("missing", None)
        Content of each column: the number; 1 where the feature has that level, else 0; 1 where there is a gap, else 0.
    references : list of str or None, optional
        The level of each text feature that has no column. Where it is known, levels are compared without regard to
        case, and an unlisted value is counted as the reference level, with a note.
    """

    kinds: list[Literal["number", "text", "category"]]
    fills: list[Finite | None]
    source: list[Index]
    parts: list[tuple[Literal["value", "level", "missing"], Text | None]]
    references: list[Text | None] | msgspec.UnsetType = msgspec.UNSET  # left out, not null, as network below

    def reference(self, feature: int) -> str | None:
        """Return the level of a feature that has no column, or None if it is not known."""
        return self.references[feature] if self.references else None


class Curves(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A design learned on sample rows: splines in place of some columns, and units of all columns.

    Parameters
    ----------
    mean, scale : list of float
        Mean and scale of each column of the model; columns of splines come last.
    knots : list of (int, list of float)
        Knots of each spline, and the column that the spline replaces.
    """

    mean: list[Finite]
    scale: list[Positive]
    knots: list[tuple[Index, Annotated[list[Finite], Meta(min_length=7, max_length=100)]]]


Size = Annotated[int, Meta(ge=1, le=MAX_PARAMETERS)]
Names = Annotated[list[Text], Meta(max_length=1000)]


class Network(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A model that is not linear, for the objective "differentiable": parameters, their roles and initial values.

    Without ``hidden``, members bring the model. The texts of fields are also the help of ``coterie group create``.

    Parameters
    ----------
    hidden : int, optional
        Learn a network with one hidden layer of so many units, instead of linear models.
    parts : list of (str, int)
        Of a model that members bring: name and size of each parameter.
    probe : list of float
        Of a model that members bring: predictions of the initial model for a few public rows
        (:mod:`coterie.peers.group.networks`).
    personal : list of str
        With --hidden or --model: names of parameters that never leave their peer.
    shared : list of str
        With --hidden or --model: names of parameters that all members have in common.
    tied : list of str
        With --hidden or --model: names of parameters tied to those of neighbours, as strongly as --coupling says. Names
        may be cut short, with commas between them. Default: with --hidden a shared body and tied heads, with --model
        all tied.
    seed : int
        Seed of the initial parameters, which are the same for all members.
    """

    hidden: Size | None = None
    parts: Annotated[list[tuple[Text, Size]], Meta(max_length=10_000)] = []
    probe: Annotated[list[Finite], Meta(max_length=100)] = []
    personal: Names = []
    shared: Names = []
    tied: Names = []
    seed: Annotated[int, Meta(ge=0, lt=1 << 32)] = 0

    def __post_init__(self) -> None:
        if (self.hidden is None) == (not self.parts):
            raise ParameterError("network: give either hidden, the units of a two-layer network, or parts of a model")
        if len({name for name, _ in self.parts}) < len(self.parts):
            raise ParameterError("network: parts holds a name twice")
        for word in (*(name for name, _ in self.parts), *self.personal, *self.shared, *self.tied):
            if not word.isprintable():
                raise ParameterError(f"network: {word!r:.80} must be of printable characters")


class Charter(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The public numbers that all members of a group share, made by :func:`make_charter`. The hash is ``run``.

    The texts of fields are also the help of ``coterie group create``, so they name its options.

    Parameters
    ----------
    title : str
        Free text.
    features : list of str
        Names of the columns, in order.
    target : str
        Name of the column to predict.
    labels : (str, str), optional
        The negative and the positive class. None: the target is a number.
    intercept : bool
        Whether to add a last feature that is always one.
    center : list of float, optional
        Public scaling: what to subtract from each feature that is a number, in their order (50,2) or by name
        (age=50,dose=2).
    scale : list of float, optional
        Public scaling: what to divide each of them by after that, in the same way.
    target_center : float, optional
        Public scaling of a target that is a number: what to subtract from it.
    target_scale : float, optional
        Public scaling of a target that is a number: what to divide by after that. Predictions have the units of the
        target.
    columns : Encoding, optional
        How text and gaps become columns. None: all features are numbers, and a gap counts as the mean of a peer's own
        rows.
    design : Curves, optional
        Splines and units of a model that was fitted on sample rows. None: the columns as they are.
    objective : str
        pooling; or, over a graph, personalized, collaborative, separate, propagation, boosting or differentiable.
        Default: the method's own.
    network : Network, optional
        Of the objective "differentiable": the model.
    loss : str
        For classes logistic, smooth-hinge or, with boosting, adaboost; for numbers squared or huber. Default: one that
        fits the method.
    coupling : float
        Strength of coupling: the larger, the more alike are the models of neighbours.
    ridge : float or "1/m"
        Coefficient of the ridge penalty: a number, or "1/m" for one over the number of a member's rows. Default: 1/m,
        for networks 0.
    confidence : "public", "gossip" or "none"
        Confidence in each member's rows. public: rows / max-rows; gossip: rows / the largest number heard of; none:
        equal.
    max_rows : int
        Public upper bound on the number of rows of a member. Default: a million, and over a graph 1000.
    method : str
        resilient-pooling or gossip-pooling; over a graph cd, propagation, admm, djam or boosting; of networks tied-sgd,
        local-sgd or dpsgd. Default: pooling, or cd with --learn or an objective over a graph; of networks tied-sgd.
    settings : dict
        Further arguments of the method; of boosting also ``stumps``, ``beta``, and ``low`` and ``high``, the public
        range of the features; of one that trains, those of its optimiser, :class:`coterie.optim.SGD` or, with
        ``optimiser="adam"``, :class:`coterie.optim.Adam`.
    trim : float
        Against poisoning: share of neighbours' values left out at each end. Default: a quarter, if the method supports
        it.
    learned : dict, optional
        Arguments of :class:`coterie.GraphRule`, ``every`` and ``sampling``. None: the edges are those of the roster.
    privacy : dict, optional
        Arguments of :func:`coterie.Private`. None: not private.
    radius : float
        Upper bound on the norm of an honest model. Default: 1000, for pooling practically none.
    rate : float
        Wakes of a member per second.
    message_bytes : int
        Upper bound on the bytes of a message.
    messages_per_second : float
        Upper bound on the messages per second from one sender.
    admin : bytes
        Public key of the first admin, which signs rosters.
    amends : str, optional
        The run that this run follows. So no two charters of a group have equal hashes, even after a change and its
        reversal.

    Examples
    --------
    >>> charter = make_charter(features=["age"], target="ill", labels=["no", "yes"], admin=bytes(32))
    >>> charter.objective, charter.loss, len(charter.run)
    ('pooling', 'logistic', 32)
    """

    format: Literal[2] = 2
    title: Annotated[str, Meta(max_length=500)] = ""
    features: Annotated[list[Text], Meta(min_length=1, max_length=100_000)]
    target: Text
    labels: tuple[Text, Text] | None = None
    intercept: bool = True
    center: list[Finite] | None = None
    scale: list[Positive] | None = None
    columns: Encoding | None = None
    design: Curves | None = None
    objective: Literal[
        "pooling", "personalized", "collaborative", "separate", "propagation", "boosting", "differentiable"
    ]
    loss: Text
    coupling: Positive = 1.0
    ridge: Annotated[float, Meta(ge=0, lt=1.7e308)] | Literal["1/m"] = "1/m"
    confidence: Literal["public", "gossip", "none"] = "public"
    max_rows: Count = GRAPH_MAX_ROWS
    method: Text = "cd"
    settings: Settings = {}
    trim: Annotated[float, Meta(ge=0, lt=0.5)] = 0.0
    learned: Settings | None = None
    privacy: Settings | None = None
    radius: Positive = GRAPH_RADIUS
    rate: Positive = 1.0
    message_bytes: Annotated[int, Meta(ge=1_000, le=MAX_MESSAGE_BYTES)] = (
        400_000  # a list of 1,000 members takes 200 kB
    )
    messages_per_second: Positive = 50.0
    admin: PublicKey
    amends: Annotated[str, Meta(pattern=r"^[0-9a-f]{32}\Z")] | None = None
    network: Network | msgspec.UnsetType = msgspec.UNSET  # left out, not null: runs without one keep their hashes
    target_center: Finite | msgspec.UnsetType = msgspec.UNSET
    target_scale: Positive | msgspec.UnsetType = msgspec.UNSET

    def __post_init__(self) -> None:
        texts = {"title": [self.title], "features": self.features, "target": [self.target]}
        texts |= {"labels": list(self.labels or ()), "loss": [self.loss], "method": [self.method]}
        for name in ("settings", "learned", "privacy"):
            texts[name] = [value for value in (getattr(self, name) or {}).values() if isinstance(value, str)]
        for name, values in texts.items():
            for value in values:
                if not value.isprintable():  # values are shown on terminals, and lone surrogates cannot be encoded
                    raise ParameterError(f"{name}={value!r:.80} must be of printable characters")
        for name in ("features", "labels"):
            if len(set(texts[name])) < len(texts[name]):
                raise ParameterError(f"{name} holds a name twice")
        if self.target in self.features:
            raise ParameterError(f"target={self.target!r} is one of the features")
        for name in ("center", "scale"):
            if len(getattr(self, name) or self.features) != len(self.features):
                raise ParameterError(f"{name} must hold {len(self.features)} numbers, one for each feature")
        if self.labels is not None and self.target_unit != (0.0, 1.0):
            raise ParameterError("target_center and target_scale are for a target that is a number, not for classes")
        _check_columns(self)
        for kind, methods in (("boosting", ("boosting",)), ("pooling", POOLING), ("differentiable", TRAINING)):
            if (self.objective == kind) != (self.method in methods):
                raise ParameterError(
                    f"objective={self.objective!r} and method={self.method!r} do not go together: {kind!r} needs "
                    f"the method {' or '.join(map(repr, methods))}, which no other objective takes"
                )
        if self.objective == "pooling" and self.learned is not None:
            raise ParameterError("learned does not go with pooling, where every peer learns from all: leave it out")
        _check_network(self)
        if self.confidence == "gossip" and self.privacy is not None:
            raise ParameterError(
                "confidence='gossip' does not go with privacy: the largest number of rows reveals a member's data; "
                "use 'public' or 'none'"
            )

    @property
    def target_unit(self) -> tuple[float, float]:
        """Return the number that is subtracted from the target, and the number that it is divided by then."""
        center, scale = self.target_center, self.target_scale
        return 0.0 if center is msgspec.UNSET else center, 1.0 if scale is msgspec.UNSET else scale

    @property
    def width(self) -> int:
        """Number of coefficients of a linear model of these columns."""
        if self.design is not None:
            return len(self.design.mean) + 1
        return (len(self.features) if self.columns is None else len(self.columns.parts)) + self.intercept

    @property
    def run(self) -> str:
        """Run id: the hash of the charter in hex."""
        return hashlib.sha256(encoded(self)).digest()[:16].hex()


def _check_network(charter: Charter) -> None:
    """Refuse a network without the objective "differentiable", and fields that do not go with a network."""
    if (charter.objective == "differentiable") != bool(charter.network):
        raise ParameterError(
            f"objective={charter.objective!r}: 'differentiable' needs a network, and no other objective has one"
        )
    if not charter.network:
        return
    if charter.privacy is not None:
        raise ParameterError(
            "privacy does not go with a network: peers cannot train networks privately yet. Leave out the network, "
            "or --epsilon"
        )
    if charter.learned is not None:
        raise ParameterError("learned does not go with a network: its edges are those of the list of members")
    if charter.design is not None:
        raise ParameterError("design is for linear models: make the charter from columns, and give center and scale")
    if charter.loss != usual_loss(charter.method, charter.labels is not None, False):
        raise ParameterError(
            f"loss={charter.loss!r}: a network has the loss 'logistic' for classes and 'squared' for numbers"
        )
    if charter.radius > MAX_SINGLE_RADIUS:
        raise ParameterError(
            f"radius={charter.radius:g} must be at most {MAX_SINGLE_RADIUS:g}: networks are sent in single precision"
        )


def _check_columns(charter: Charter) -> None:
    """Refuse an encoding and a design that do not fit together, so that no index is out of bounds."""
    width, columns, design = len(charter.features), charter.columns, charter.design
    if columns is not None:
        width = len(columns.parts)
        allowed = {"value": ("number",), "level": ("text", "category"), "missing": ("number", "text", "category")}
        if not len(columns.kinds) == len(columns.fills) == len(charter.features):
            raise ParameterError(f"columns must hold {len(charter.features)} kinds and fills, one for each feature")
        if columns.references and len(columns.references) != len(charter.features):
            raise ParameterError(f"columns must hold {len(charter.features)} references, one for each feature")
        for text in (*(columns.references or ()), *(text for _, text in columns.parts)):
            if text is not None and not text.isprintable():
                raise ParameterError(f"columns: the level {text!r:.80} must be of printable characters")
        if len(columns.source) != width or not width or any(j >= len(columns.kinds) for j in columns.source):
            raise ParameterError(
                "columns: source must name a feature for each of the parts, and there must be at least one part"
            )
        for j, (what, text) in zip(columns.source, columns.parts, strict=True):
            if columns.kinds[j] not in allowed[what] or (what == "level") != (text is not None):
                raise ParameterError(f"columns: {what!r} {text or ''} is no part of a {columns.kinds[j]}")
        if len(set(zip(columns.source, columns.parts, strict=True))) < width:
            raise ParameterError("columns holds a part twice: each must be there once")
    if design is not None:
        bent = [k for k, _ in design.knots]
        size = width - len(bent) + sum(len(knots) - 4 for _, knots in design.knots)
        if len(set(bent)) < len(bent) or any(k >= width for k in bent):
            raise ParameterError(f"design: knots must be of different columns, of which there are {width}")
        if any(a >= b for _, knots in design.knots for a, b in pairwise(knots)):
            raise ParameterError("design: the knots of a column must increase")
        if not len(design.mean) == len(design.scale) == size:
            raise ParameterError(f"design must hold {size} means and scales, one for each column")
        if not charter.intercept or charter.center is not None or charter.scale is not None:
            raise ParameterError("design has an intercept and units of its own: leave out center and scale")
        if charter.objective == "boosting":
            raise ParameterError("design is for linear models, and boosting has stumps of its own")


def make_charter(**fields: Any) -> Charter:
    """Make a charter, and check that its loss, method, graph rule and privacy terms can be made.

    Parameters
    ----------
    **fields
        Fields of the :class:`Charter`. Method, objective, loss, trim, radius, max_rows and messages_per_second have
        defaults that fit the other fields.

    Returns
    -------
    Charter

    Raises
    ------
    ParameterError
        If a field has a bad value; the message names the first such field.

    Examples
    --------
    >>> make_charter(features=["age"], target="dose", method="boosting", admin=bytes(32)).loss
    'squared'
    >>> make_charter(features=["age"], target="dose", coupling=-1.0, admin=bytes(32))
    Traceback (most recent call last):
    ...
    coterie.errors.ParameterError: coupling: expected a number > 0.0
    """
    from ..model.work import check_parts, longest_message, trimmable  # needs NumPy, which reading a charter does not

    if fields.get("network") and fields.get("objective", "differentiable") == "differentiable":
        fields = usual_network(fields)
    private = fields.get("privacy") is not None
    graph = fields.get("objective", "pooling") != "pooling" or fields.get("learned") is not None
    method = fields.setdefault("method", usual_method(graph, private))
    fields.setdefault("objective", usual_objective(method, private))
    if fields["objective"] == "pooling":
        fields = {"radius": POOLING_RADIUS, "max_rows": POOLING_MAX_ROWS} | fields
    fields.setdefault("loss", usual_loss(method, fields.get("labels") is not None, private))
    charter = made(Charter, fields)
    if "messages_per_second" not in fields:
        charter = msgspec.structs.replace(charter, messages_per_second=usual_messages(charter.rate))
    check_parts(charter)
    _check_gaps(charter)
    if charter.network and "message_bytes" not in fields:
        needed = longest_message(charter)
        charter = made(Charter, msgspec.structs.asdict(charter) | {"message_bytes": max(charter.message_bytes, needed)})
    if "trim" not in fields and trimmable(charter):
        charter = msgspec.structs.replace(charter, trim=DEFAULT_TRIM)
    return charter


def _check_gaps(charter: Charter) -> None:
    """Refuse gaps in a private group without public values to fill them: the mean would let one row change
    other rows.
    """
    columns = charter.columns
    if charter.privacy is None or charter.center is not None or columns is None:
        return
    for j, (what, _) in zip(columns.source, columns.parts, strict=True):
        if what == "missing" and columns.kinds[j] == "number" and columns.fills[j] is None:
            raise ParameterError(
                f"{charter.features[j]!r} may have gaps, and in a private group gaps need a public number to be filled "
                "with: give --center, a number for each feature that is a number"
            )


def usual_network(fields: dict[str, Any]) -> dict[str, Any]:
    """Return fields of a charter with a network, with the default roles: a shared body, and heads tied over the
    graph.
    """
    network = msgspec.to_builtins(fields["network"])
    if isinstance(network, dict) and network.get("hidden") and not {"personal", "shared", "tied"} & {*network}:
        network |= {"shared": ["body"], "tied": ["head"]}
    usual = {"objective": "differentiable", "method": TRAINING[0], "intercept": False, "ridge": 0.0}
    return usual | fields | {"network": network}


def usual_method(graph: bool, private: bool) -> str:
    """Return the default method: the first available pooling method, or "cd" if a graph is asked for."""
    from ...core.methods import METHODS

    return "cd" if graph else next(name for name in POOLING if name in METHODS and (name != POOLING[0] or not private))


def usual_objective(method: Any, private: bool) -> str:
    """Return the default objective of a method."""
    if method in POOLING:
        return "pooling"
    if method in TRAINING:
        return "differentiable"
    if method == "propagation" and not private:  # the private method starts from rows
        return "propagation"
    return "collaborative" if method == "admm" else "boosting" if method == "boosting" else "personalized"


def usual_messages(rate: Any) -> float:
    """Return the default number of messages per second from one sender. `rate` may not have been checked yet."""
    return max(50.0, 25.0 * rate) if isinstance(rate, int | float) else 50.0


def usual_loss(method: Any, classes: bool, private: bool) -> str:
    """Return the default loss of a method. A private method gets no AdaBoost, whose weights can concentrate on
    one row.
    """
    return "squared" if not classes else "adaboost" if method == "boosting" and not private else "logistic"


def charter_json(charter: Charter) -> bytes:
    """Return a charter as JSON."""
    return to_json(charter)


def read_charter(content: bytes, what: str = "the charter") -> Charter:
    """Read a charter from JSON. Raise a DataError that names the first field with a bad value."""
    return from_json(content, Charter, what)


def charter_in(folder: Where) -> Charter:
    """Read the charter in a folder."""
    path = Path(folder) / "charter.json"
    return read_charter(read_bounded(path), str(path))
