"""The charter: every public number of a run, and the steward's key. Its hash is the run.

So two peers that name the same run have read the same charter, and nobody can change a number of it without starting
another run. Its bounds are its types; its method, loss, graph rule and privacy terms are checked by making them
(:func:`coterie.peers.work.check_parts`), where a charter is made and where a peer joins.
"""

from __future__ import annotations

import hashlib
from typing import Annotated, Any, Literal

from ..errors import MissingExtra, ParameterError
from .records import EXACT, Count, Finite, Positive, PublicKey, from_json, made, to_json

try:
    import msgspec
    from msgspec import Meta
except ImportError as error:
    raise MissingExtra('peers on a network need msgspec: pip install "coterie[network]"') from error

Text = Annotated[str, Meta(min_length=1, max_length=200)]
Argument = Annotated[str, Meta(max_length=64, pattern=r"^[A-Za-z_][A-Za-z0-9_]*\Z")]
Setting = Annotated[int, Meta(ge=-EXACT, le=EXACT)] | Finite | Text
Settings = Annotated[dict[Argument, Setting], Meta(max_length=100)]


class Charter(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The public numbers that all members of a group share, made by :func:`make_charter`; ``run`` is its hash.

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
    center, scale : list of float, optional
        Public scaling of the features, (x - center) / scale.
    objective : "personalized", "collaborative", "separate", "propagation" or "boosting"
        As in :class:`coterie.Problem`.
    loss : str
        Name of a loss; "adaboost" for boosting alone.
    coupling : float
        The more, the more alike are the models of neighbours.
    ridge : float or "1/m"
    confidence : "public", "gossip" or "none"
        c_i: rows / max_rows; rows / the most that were heard of; or all 1.
    max_rows : int
        Public. Nobody may claim more rows.
    method : str
        Name of a method, such as "cd".
    settings : dict
        Further arguments of the method; of boosting also ``stumps``, ``beta``, and ``low`` and ``high``, the public
        range of the features.
    trim : float
        Share of the neighbours' values that is left out at each end.
    learned : dict, optional
        Arguments of :class:`coterie.GraphRule`, ``every`` and ``sampling``. None: the ties are those of the roster.
    privacy : dict, optional
        Arguments of :func:`coterie.Private`. None: not private.
    radius : float
        No honest model is longer.
    rate : float
        Wakes of a peer in a second, on average.
    letter_bytes : int
        No letter is longer.
    letters_per_second : float
        From one sender.
    steward : bytes
        The public key that signs rosters.

    Examples
    --------
    >>> charter = make_charter(features=["age"], target="ill", labels=["no", "yes"], steward=bytes(32))
    >>> charter.objective, charter.loss, len(charter.run)
    ('personalized', 'logistic', 32)
    """

    format: Literal[1] = 1
    title: Annotated[str, Meta(max_length=500)] = ""
    features: Annotated[list[Text], Meta(min_length=1, max_length=100_000)]
    target: Text
    labels: tuple[Text, Text] | None = None
    intercept: bool = True
    center: list[Finite] | None = None
    scale: list[Positive] | None = None
    objective: Literal["personalized", "collaborative", "separate", "propagation", "boosting"]
    loss: Text
    coupling: Positive = 1.0
    ridge: Annotated[float, Meta(ge=0, lt=1.7e308)] | Literal["1/m"] = "1/m"
    confidence: Literal["public", "gossip", "none"] = "public"
    max_rows: Count = 1000
    method: Text = "cd"
    settings: Settings = {}
    trim: Annotated[float, Meta(ge=0, lt=0.5)] = 0.0
    learned: Settings | None = None
    privacy: Settings | None = None
    radius: Positive = 1e3
    rate: Positive = 1.0
    letter_bytes: Annotated[int, Meta(ge=1_000, le=1 << 19)] = 200_000  # what the transport carries in one piece
    letters_per_second: Positive = 50.0
    steward: PublicKey

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
        if (self.objective == "boosting") != (self.method == "boosting"):
            raise ParameterError(
                f"objective={self.objective!r} and method={self.method!r} do not go together: both or neither of them "
                "must be 'boosting'"
            )
        if self.confidence == "gossip" and self.privacy is not None:
            raise ParameterError(
                "confidence='gossip' does not go with privacy: the largest number of rows tells of somebody's data; "
                "use 'public' or 'none'"
            )

    @property
    def run(self) -> str:
        """Name of the run: one charter, one run."""
        return hashlib.sha256(msgspec.msgpack.encode(self, order="deterministic")).digest()[:16].hex()


def make_charter(**fields: Any) -> Charter:
    """A charter whose every part can be made: bounds are its types; loss, method, rule and privacy terms are made.

    Parameters
    ----------
    **fields
        Of the :class:`Charter`. Objective, loss and letters_per_second have defaults that fit the others.

    Returns
    -------
    Charter

    Raises
    ------
    ParameterError
        Naming the first field that is not what it must be.

    Examples
    --------
    >>> make_charter(features=["age"], target="dose", method="boosting", steward=bytes(32)).loss
    'squared'
    >>> make_charter(features=["age"], target="dose", coupling=-1.0, steward=bytes(32))
    Traceback (most recent call last):
    ...
    coterie.errors.ParameterError: coupling: expected a number > 0.0
    """
    from .work import check_parts  # with NumPy, which a reader does not need

    method, private = fields.get("method", "cd"), fields.get("privacy") is not None
    fields.setdefault("objective", usual_objective(method, private))
    fields.setdefault("loss", usual_loss(method, fields.get("labels") is not None, private))
    charter = made(Charter, fields)
    if "letters_per_second" not in fields:
        charter = msgspec.structs.replace(charter, letters_per_second=max(50.0, 25.0 * charter.rate))
    check_parts(charter)
    return charter


def usual_objective(method: Any, private: bool) -> str:
    """What a method is mostly used for."""
    if method == "propagation" and not private:  # the private form starts from rows
        return "propagation"
    return "collaborative" if method == "admm" else "boosting" if method == "boosting" else "personalized"


def usual_loss(method: Any, classes: bool, private: bool) -> str:
    """The loss of a method, unless another one is asked for: in Adaboost's, one example can take all the weight."""
    return "squared" if not classes else "adaboost" if method == "boosting" and not private else "logistic"


def charter_json(charter: Charter) -> bytes:
    """A charter as a file."""
    return to_json(charter)


def read_charter(content: bytes, what: str = "the charter") -> Charter:
    """A charter from its file, checked by its types; a DataError says what is wrong with it."""
    return from_json(content, Charter, what)
