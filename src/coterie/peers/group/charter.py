"""The charter: every public number of a run, and the admin's key. Its hash is the run.

So two peers that name the same run have read the same charter, and nobody can change a number of it without starting
another run. Its bounds are its types; its method, loss, graph rule and privacy terms are checked by making them
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
from .records import EXACT, Count, Finite, Positive, PublicKey, encoded, from_json, made, to_json

Text = Annotated[str, Meta(min_length=1, max_length=200)]
Argument = Annotated[str, Meta(max_length=64, pattern=r"^[A-Za-z_][A-Za-z0-9_]*\Z")]
Setting = Annotated[int, Meta(ge=-EXACT, le=EXACT)] | Finite | Text
Settings = Annotated[dict[Argument, Setting], Meta(max_length=100)]
Place = Annotated[int, Meta(ge=0, le=100_000)]

#: Methods of the objective "differentiable": those for which a lost message is no more than an old one.
TRAINING = ("tied-sgd", "local-sgd", "dpsgd")
#: No model has more parameters; and no message more bytes.
MAX_PARAMETERS, MAX_MESSAGE = 200_000, 1_000_000
#: What is written in single precision must fit there.
SINGLE_RADIUS = 1e30
#: Methods of the objective "pooling"; the first that there is, is the default.
POOLING = ("resilient-pooling", "gossip-pooling")
#: Share of the neighbours' values that is left out at each end by default: one of four.
TRIM = 0.25
#: What bounds models and rows where a charter does not say: in pooling, units are nobody's business, and messages have
#: bounds of their own.
RADIUS, ANY_RADIUS, MAX_ROWS, ANY_ROWS = 1e3, 1e50, 1000, 1_000_000
#: Fields that :func:`make_charter` gives values that fit the others, if they are not given.
FITTED = ("method", "objective", "loss", "trim", "radius", "max_rows", "ridge", "messages_per_second")


class Encoding(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How features that are more than numbers without gaps become columns: public, and so alike for everybody.

    Parameters
    ----------
    kinds : list of "number", "text" or "category"
        Of every feature. A text that is given as a number is refused; a category may be written as one.
    fills : list of float or None
        What a gap among the numbers of a feature counts as; None: the mean of the peer's own rows.
    source : list of int
        The feature that each column is made of.
    parts : list of ("value", None), ("level", text) or ("missing", None)
        What each column holds: the number; 1 where the feature has that level; 1 where there is a gap.
    references : list of str or None, optional
        Of a text, the level that has no column. Where it is known, upper case of a level does not matter, and values
        that are not listed are told from it.
    """

    kinds: list[Literal["number", "text", "category"]]
    fills: list[Finite | None]
    source: list[Place]
    parts: list[tuple[Literal["value", "level", "missing"], Text | None]]
    references: list[Text | None] | msgspec.UnsetType = msgspec.UNSET  # left out, not null, as network below

    def reference(self, feature: int) -> str | None:
        """The level of a feature that has no column, where it is known."""
        return self.references[feature] if self.references else None


class Curves(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A design that was learned on sample rows: splines in place of some columns, and the units of all of them.

    Parameters
    ----------
    mean, scale : list of float
        Of the columns of the model, those of splines last.
    knots : list of (int, list of float)
        By the column that a spline replaces.
    """

    mean: list[Finite]
    scale: list[Positive]
    knots: list[tuple[Place, Annotated[list[Finite], Meta(min_length=7, max_length=100)]]]


Size = Annotated[int, Meta(ge=1, le=MAX_PARAMETERS)]
Names = Annotated[list[Text], Meta(max_length=1000)]


class Network(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A model that is not linear, of the objective "differentiable"; what becomes of its parameters; where all begin.

    Without ``hidden``, members bring the model. What is said of fields is also the help of ``coterie group create``.

    Parameters
    ----------
    hidden : int, optional
        Learn a network of one hidden layer with so many units, not linear models.
    parts : list of (str, int)
        Of a model that members bring: names of its parameters, and how many numbers each has.
    probe : list of float
        Of such a model: what it answers to a few public rows in the beginning (:mod:`coterie.peers.group.networks`).
    personal : list of str
        Of --hidden or --model: parameters that never leave their peer, by name.
    shared : list of str
        The same: parameters that all have in common.
    tied : list of str
        The same: parameters tied to those of neighbours, as strongly as --coupling says. Names may be cut short, with
        commas between them. Default: of --hidden a shared body and tied heads, of --model all tied.
    seed : int
        Of the initial parameters, which are the same for all.
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
    """The public numbers that all members of a group share, made by :func:`make_charter`; ``run`` is its hash.

    What is said of fields is also the help of ``coterie group create``, in whose words it is.

    Parameters
    ----------
    title : str
        Free text.
    features : list of str
        Columns, in order.
    target : str
        The column to predict.
    labels : (str, str), optional
        The negative and the positive class. None: the target is a number.
    intercept : bool
        A last feature that is always one.
    center : list of float, optional
        Public scaling: what to subtract from each feature that is a number, in their order (50,2) or by name
        (age=50,dose=2).
    scale : list of float, optional
        Public scaling: what to divide each of them by then, in the same way.
    target_center : float, optional
        Public scaling of a target that is a number: what to subtract from it.
    target_scale : float, optional
        The same: what to divide it by then. Predictions are in its own units again.
    columns : Encoding, optional
        How text and gaps become columns. None: all features are numbers, a gap counts as the mean of a peer's own rows.
    design : Curves, optional
        Splines and units, of a model that was fitted on sample rows. None: the columns as they are.
    objective : str
        pooling; or, over a graph, personalized, collaborative, separate, propagation, boosting or differentiable.
        Default: the method's own.
    network : Network, optional
        Of the objective "differentiable": the model.
    loss : str
        For classes logistic, smooth-hinge or, to boost, adaboost; for numbers squared or huber. Default: one that fits
        the method.
    coupling : float
        The more, the more alike are the models of neighbours.
    ridge : float or "1/m"
        A number, or "1/m". Default: 1/m, of networks 0.
    confidence : "public", "gossip" or "none"
        public: rows / max-rows; gossip: rows / the largest heard of; none.
    max_rows : int
        No member has more rows than this. Public. Default: a million, and over a graph 1000.
    method : str
        resilient-pooling or gossip-pooling; over a graph cd, propagation, admm, djam or boosting; of networks tied-sgd,
        local-sgd or dpsgd. Default: pooling, or cd with --learn or an objective over a graph; of networks tied-sgd.
    settings : dict
        Further arguments of the method; of boosting also ``stumps``, ``beta``, and ``low`` and ``high``, the public
        range of the features; of one that trains, those of its optimiser, :class:`coterie.optim.SGD` or, with
        ``optimiser="adam"``, :class:`coterie.optim.Adam`.
    trim : float
        Against poisoning: share of neighbours' values left out at each end. Default: a quarter, where the method can.
    learned : dict, optional
        Arguments of :class:`coterie.GraphRule`, ``every`` and ``sampling``. None: the edges are those of the roster.
    privacy : dict, optional
        Arguments of :func:`coterie.Private`. None: not private.
    radius : float
        No honest model is longer than this. Default: 1000, for pooling any.
    rate : float
        Wakes of a member in a second.
    message_bytes : int
        No message is longer.
    messages_per_second : float
        From one sender.
    admin : bytes
        The public key that signs rosters.
    amends : str, optional
        The run that this one follows. So no two charters of a group have the same hash, whatever is changed and back.

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
    max_rows: Count = MAX_ROWS
    method: Text = "cd"
    settings: Settings = {}
    trim: Annotated[float, Meta(ge=0, lt=0.5)] = 0.0
    learned: Settings | None = None
    privacy: Settings | None = None
    radius: Positive = RADIUS
    rate: Positive = 1.0
    message_bytes: Annotated[int, Meta(ge=1_000, le=MAX_MESSAGE)] = 400_000  # a list of 1,000 members takes 200 kB
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
                if not value.isprintable():  # it will be shown on terminals; and lone surrogates cannot be written
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
                    f"objective={self.objective!r} and method={self.method!r} do not go together: {kind!r} is for the "
                    f"method {' or '.join(map(repr, methods))}, and these are for it"
                )
        if self.objective == "pooling" and self.learned is not None:
            raise ParameterError("learned does not go with pooling, where every peer learns from all: leave it out")
        _check_network(self)
        if self.confidence == "gossip" and self.privacy is not None:
            raise ParameterError(
                "confidence='gossip' does not go with privacy: the largest number of rows tells of somebody's data; "
                "use 'public' or 'none'"
            )

    @property
    def target_unit(self) -> tuple[float, float]:
        """What is subtracted from the target, and what it is divided by then."""
        center, scale = self.target_center, self.target_scale
        return 0.0 if center is msgspec.UNSET else center, 1.0 if scale is msgspec.UNSET else scale

    @property
    def width(self) -> int:
        """Numbers in a model of its columns."""
        if self.design is not None:
            return len(self.design.mean) + 1
        return (len(self.features) if self.columns is None else len(self.columns.parts)) + self.intercept

    @property
    def run(self) -> str:
        """Name of the run: one charter, one run."""
        return hashlib.sha256(encoded(self)).digest()[:16].hex()


def _check_network(charter: Charter) -> None:
    """Refuse what does not go with a model that is not linear."""
    if (charter.objective == "differentiable") != bool(charter.network):
        raise ParameterError(
            f"objective={charter.objective!r}: a network, and only that, has the objective 'differentiable'"
        )
    if not charter.network:
        return
    if charter.privacy is not None:
        raise ParameterError(
            "privacy does not go with a network: there is no design yet that says which rows a private step may take. "
            "Leave out the network, or --epsilon"
        )
    if charter.learned is not None:
        raise ParameterError("learned does not go with a network: its edges are those of the list of members")
    if charter.design is not None:
        raise ParameterError("design is for linear models: make the charter from columns, and give center and scale")
    if charter.loss != usual_loss(charter.method, charter.labels is not None, False):
        raise ParameterError(
            f"loss={charter.loss!r}: the loss of a network is its own, 'logistic' of classes and 'squared' of numbers"
        )
    if charter.radius > SINGLE_RADIUS:
        raise ParameterError(
            f"radius={charter.radius:g} must be at most {SINGLE_RADIUS:g}: networks are sent in single precision"
        )


def _check_columns(charter: Charter) -> None:
    """Refuse an encoding and a design that do not fit together, before anything reads out of bounds."""
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
    """A charter whose every part can be made: bounds are its types; loss, method, rule and privacy terms are made.

    Parameters
    ----------
    **fields
        Of the :class:`Charter`. Method, objective, loss, trim, radius, max_rows and messages_per_second have defaults
        that fit the others.

    Returns
    -------
    Charter

    Raises
    ------
    ParameterError
        Naming the first field that is not what it must be.

    Examples
    --------
    >>> make_charter(features=["age"], target="dose", method="boosting", admin=bytes(32)).loss
    'squared'
    >>> make_charter(features=["age"], target="dose", coupling=-1.0, admin=bytes(32))
    Traceback (most recent call last):
    ...
    coterie.errors.ParameterError: coupling: expected a number > 0.0
    """
    from ..model.work import check_parts, longest_message, trimmable  # with NumPy, which a reader does not need

    if fields.get("network") and fields.get("objective", "differentiable") == "differentiable":
        fields = usual_network(fields)
    private = fields.get("privacy") is not None
    graph = fields.get("objective", "pooling") != "pooling" or fields.get("learned") is not None
    method = fields.setdefault("method", usual_method(graph, private))
    fields.setdefault("objective", usual_objective(method, private))
    if fields["objective"] == "pooling":
        fields = {"radius": ANY_RADIUS, "max_rows": ANY_ROWS} | fields
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
        charter = msgspec.structs.replace(charter, trim=TRIM)
    return charter


def _check_gaps(charter: Charter) -> None:
    """Refuse gaps that no private peer could fill: the mean of its rows would put one row into others."""
    columns = charter.columns
    if charter.privacy is None or charter.center is not None or columns is None:
        return
    for j, (what, _) in zip(columns.source, columns.parts, strict=True):
        if what == "missing" and columns.kinds[j] == "number" and columns.fills[j] is None:
            raise ParameterError(
                f"{charter.features[j]!r} may have gaps, and in a private group they need a public number to be filled "
                "with: give --center, a number for each feature that is one"
            )


def usual_network(fields: dict[str, Any]) -> dict[str, Any]:
    """Fields of a charter with a network, with what is usual: a body that all share, and heads tied over the graph."""
    network = msgspec.to_builtins(fields["network"])
    if isinstance(network, dict) and network.get("hidden") and not {"personal", "shared", "tied"} & {*network}:
        network |= {"shared": ["body"], "tied": ["head"]}
    usual = {"objective": "differentiable", "method": TRAINING[0], "intercept": False, "ridge": 0.0}
    return usual | fields | {"network": network}


def usual_method(graph: bool, private: bool) -> str:
    """What peers do if nothing else is said: pooling, unless a graph is asked for."""
    from ...core.methods import METHODS

    return "cd" if graph else next(name for name in POOLING if name in METHODS and (name != POOLING[0] or not private))


def usual_objective(method: Any, private: bool) -> str:
    """What a method is mostly used for."""
    if method in POOLING:
        return "pooling"
    if method in TRAINING:
        return "differentiable"
    if method == "propagation" and not private:  # the private form starts from rows
        return "propagation"
    return "collaborative" if method == "admm" else "boosting" if method == "boosting" else "personalized"


def usual_messages(rate: Any) -> float:
    """Messages a second from one sender, for a rate, which may not be one yet."""
    return max(50.0, 25.0 * rate) if isinstance(rate, int | float) else 50.0


def usual_loss(method: Any, classes: bool, private: bool) -> str:
    """The loss of a method, unless another one is asked for: in Adaboost's, one example can take all the weight."""
    return "squared" if not classes else "adaboost" if method == "boosting" and not private else "logistic"


def charter_json(charter: Charter) -> bytes:
    """A charter as a file."""
    return to_json(charter)


def read_charter(content: bytes, what: str = "the charter") -> Charter:
    """A charter from its file, checked by its types; a DataError says what is wrong with it."""
    return from_json(content, Charter, what)


def charter_in(folder: Where) -> Charter:
    """The charter in a folder."""
    path = Path(folder) / "charter.json"
    return read_charter(read_bounded(path), str(path))
