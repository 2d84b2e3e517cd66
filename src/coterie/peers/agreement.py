"""What the members of a group agree on: the charter, which never changes, and the roster, which the steward signs.

The charter holds every public number of a run, and the steward's key; its hash is the run. So two peers that name the
same run have read the same charter, and nobody can change a number of it without starting another run. Who takes part
does change: rosters have versions, each is signed by the steward, and a peer never goes back to an older one.

Whatever is made or read here is checked: what a peer holds as a :class:`Charter` or a :class:`Roster` is a good one.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping
from numbers import Integral, Real
from typing import Any, TypeVar

from ..core.methods import METHODS
from ..errors import DataError, IdentityError, MissingExtra, ParameterError, SignatureError
from .files import MOST_BYTES
from .identity import SigningKey, check_name, public_bytes, split_endpoint, verify

try:
    import msgspec
except ImportError as error:
    raise MissingExtra('peers on a network need msgspec: pip install "coterie[network]"') from error

FORMAT = 1
#: What a charter may name. The names are those of the parts of coterie itself, which a test compares them with: a
#: charter can be read where nothing of it is ever run.
OBJECTIVES = ("personalized", "collaborative", "separate", "propagation", "boosting")
LOSSES = ("squared", "logistic", "hinge", "smooth-hinge", "huber", "location", "location-huber", "adaboost")
#: Losses of classes, which need labels.
OF_CLASSES = ("logistic", "hinge", "smooth-hinge", "adaboost")
CONFIDENCES = ("public", "gossip", "none")
#: Arguments of :func:`coterie.Private`, and the methods that have a private form.
PRIVACY = (
    "epsilon",
    "delta",
    "mechanism",
    "clip",
    "wakes_per_agent",
    "allocation",
    "final",
    "accountant",
    "rate",
    "row_norm",
    "max_rows",
    "loss_fraction",
)
PRIVATE_METHODS = ("cd", "propagation", "boosting", "gossip-pooling")
MECHANISMS = ("gaussian", "laplace", "exponential")
#: Arguments of :class:`coterie.GraphRule`, and of :class:`coterie.Learned`.
LEARNED = ("mu", "lam", "delta", "kappa", "step", "max_edges", "max_weight", "every", "sampling")
STEPS = ("exact", "local", "paper")
SAMPLERS = ("ideal", "shuffle")

#: What a signature is of: these bytes, and then the thing itself. So none is good for something else.
ROSTER_SEAL = b"coterie roster 1\n"
SIGNATURE = 64
#: Whole numbers that every reader of json and msgpack takes for the same.
WHOLE = 2**53
MOST_ADDRESSES = 2**31 - 1
MOST_FEATURES = 100_000
#: What the transport carries in one piece.
MOST_LETTER = 1 << 19

Setting = float | int | str
Settings = dict[str, Setting]
Kind = TypeVar("Kind")


class Charter(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The public numbers that all members of a group share.

    Parameters
    ----------
    title : str
        Free text.
    features : list of str
        Columns, in order.
    target : str
        The column to predict.
    labels : list of two str, optional
        The negative and the positive class. None: the target is a number.
    intercept : bool
        A last feature that is always one.
    center, scale : list of float, optional
        Public scaling of the features, (x - center) / scale.
    objective : "personalized", "collaborative", "separate", "propagation" or "boosting"
        As in :class:`coterie.Problem`.
    loss : str
        Name of a loss.
    mu : float
        How much the data count against the neighbours, as in the objective.
    ridge : float or "1/m"
    confidence : "public", "gossip" or "none"
        c_i: rows / max_rows; rows / the most that were heard of; or all 1.
    max_rows : int
        Public. Nobody may claim more rows.
    method : "cd", "propagation", "admm", "djam", "boosting" or "gossip-pooling"
        The last takes no more of the objective than rows, labels and loss.
    settings : dict
        Further arguments of the method or the objective.
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
        The key that signs rosters.
    format : int

    Raises
    ------
    ParameterError
        Naming the first field that is not what it must be.

    Examples
    --------
    >>> Charter(title="test", features=["age"], target="ill", labels=["no", "yes"], objective="personalized",
    ...         steward=bytes(32)).run
    '...'
    >>> Charter(title="test", features=["age"], target="age", objective="personalized", steward=bytes(32))
    Traceback (most recent call last):
    ...
    coterie.errors.ParameterError: target='age' is one of the features
    """

    format: int = FORMAT
    title: str
    features: list[str]
    target: str
    labels: list[str] | None = None
    intercept: bool = True
    center: list[float] | None = None
    scale: list[float] | None = None
    objective: str
    loss: str = "logistic"
    mu: float = 1.0
    ridge: float | str = "1/m"
    confidence: str = "public"
    max_rows: int = 1000
    method: str = "cd"
    settings: dict[str, float | int | str] = {}
    trim: float = 0.0
    learned: dict[str, float | int | str] | None = None
    privacy: dict[str, float | int | str] | None = None
    radius: float = 1e3
    rate: float = 1.0
    letter_bytes: int = 200_000
    letters_per_second: float = 50.0
    steward: bytes

    def __post_init__(self) -> None:
        _set(self, _checked_charter(self))

    @property
    def run(self) -> str:
        """Name of the run: one charter, one run.

        Examples
        --------
        >>> charter = Charter(title="a", features=["x"], target="y", objective="separate", loss="squared",
        ...                   steward=bytes(32))
        >>> len(charter.run)
        32
        """
        return hashlib.sha256(msgspec.msgpack.encode(self, order="deterministic")).digest()[:16].hex()


class Member(msgspec.Struct, frozen=True):
    """A peer that takes part.

    Parameters
    ----------
    name : str
        The common name of its certificate.
    address : int
        What methods and letters call it. Never given to another.
    key : bytes
        Its Ed25519 public key.
    endpoint : str or None
        Where others can connect to it. None: only through a relay.

    Examples
    --------
    >>> Member("ann", 0, bytes(32), "192.0.2.7:7447").endpoint
    '192.0.2.7:7447'
    """

    name: str
    address: int
    key: bytes
    endpoint: str | None = None

    def __post_init__(self) -> None:
        check_name(self.name)
        address = _whole(f"address of {self.name}", self.address, 0, MOST_ADDRESSES)
        key = _key(f"key of {self.name}", self.key)
        if self.endpoint is not None:
            split_endpoint(self.endpoint, f"endpoint of {self.name}")
        _set(self, {"address": address, "key": key})


class Relay(msgspec.Struct, frozen=True):
    """A program that passes on what peers send which cannot reach each other.

    Parameters
    ----------
    name : str
        The common name of its certificate.
    endpoint : str

    Examples
    --------
    >>> Relay("hub", "hub.example.org:7447").name
    'hub'
    """

    name: str
    endpoint: str

    def __post_init__(self) -> None:
        check_name(self.name)
        split_endpoint(self.endpoint, f"endpoint of {self.name}")


class Roster(msgspec.Struct, frozen=True):
    """Who takes part in a run, and who is tied to whom.

    Parameters
    ----------
    run : str
        Of its charter.
    version : int
        Grows by one with every change.
    members : list of Member
    ties : list of (int, int, float)
        Two addresses, the smaller one first, and the weight.
    relays : list of Relay

    Raises
    ------
    ParameterError

    Examples
    --------
    >>> ann, bob = Member("ann", 0, bytes(32)), Member("bob", 1, bytes(31) + b"1")
    >>> roster = Roster("0" * 32, 1, [ann, bob], [(0, 1, 0.5)])
    >>> roster.neighbours(1)
    {0: 0.5}
    """

    run: str
    version: int
    members: list[Member] = []
    ties: list[tuple[int, int, float]] = []
    relays: list[Relay] = []

    def __post_init__(self) -> None:
        _set(self, _checked_roster(self))

    def member(self, address: int) -> Member:
        """The member at an address.

        Parameters
        ----------
        address : int

        Returns
        -------
        Member

        Raises
        ------
        DataError
            There is none.

        Examples
        --------
        >>> Roster("0" * 32, 1, [Member("ann", 7, bytes(32))]).member(7).name
        'ann'
        """
        for member in self.members:
            if member.address == address:
                return member
        raise DataError(f"nobody has the address {address!r} in roster {self.version}")

    def by_name(self, name: str) -> Member:
        """The member of a name.

        Parameters
        ----------
        name : str

        Returns
        -------
        Member

        Raises
        ------
        DataError
            There is none.

        Examples
        --------
        >>> Roster("0" * 32, 1, [Member("ann", 7, bytes(32))]).by_name("bob")
        Traceback (most recent call last):
        ...
        coterie.errors.DataError: 'bob' is not a member in roster 1: it has ann
        """
        for member in self.members:
            if member.name == name:
                return member
        some = ", ".join(member.name for member in self.members[:10]) or "none"
        raise DataError(
            f"{name!r:.80} is not a member in roster {self.version}: it has {some}"
            f"{', ...' if len(self.members) > 10 else ''}"
        )

    def neighbours(self, address: int) -> dict[int, float]:
        """Weights of a member's ties.

        Parameters
        ----------
        address : int

        Returns
        -------
        dict
            By address, in increasing order.

        Examples
        --------
        >>> Roster("0" * 32, 1, [Member("ann", 7, bytes(32))]).neighbours(7)
        {}
        """
        me = self.member(address).address
        found = {b if a == me else a: weight for a, b, weight in self.ties if me in (a, b)}
        return dict(sorted(found.items()))

    def with_member(self, member: Member, ties: Mapping[int, float] | None = None) -> Roster:
        """The next version, with a new member, or with what is new of the one at that address.

        Parameters
        ----------
        member : Member
        ties : dict, optional
            Weights by address, of new ties or instead of old ones; 0 for none. Other ties stay.

        Returns
        -------
        Roster

        Examples
        --------
        >>> roster = Roster("0" * 32, 1, [Member("ann", 0, bytes(32))])
        >>> roster.with_member(Member("bob", 1, bytes(31) + b"1"), {0: 1.0}).neighbours(0)
        {1: 1.0}
        """
        others = [other for other in self.members if other.address != member.address]
        pairs = {(a, b): weight for a, b, weight in self.ties}
        for other, weight in (ties or {}).items():
            pairs[_pair(member.address, other)] = weight
        members = sorted([*others, member], key=lambda one: one.address)
        return self._next(members=members, ties=_listed(pairs))

    def without_member(self, name: str) -> Roster:
        """The next version, without a member and its ties.

        Parameters
        ----------
        name : str

        Returns
        -------
        Roster

        Examples
        --------
        >>> Roster("0" * 32, 1, [Member("ann", 0, bytes(32))]).without_member("ann").members
        []
        """
        gone = self.by_name(name)
        return self._next(
            members=[other for other in self.members if other.address != gone.address],
            ties=[tie for tie in self.ties if gone.address not in tie[:2]],
        )

    def with_tie(self, a: int, b: int, weight: float = 1.0) -> Roster:
        """The next version, with a tie between two addresses.

        Parameters
        ----------
        a, b : int
        weight : float
            0 for none.

        Returns
        -------
        Roster

        Examples
        --------
        >>> roster = Roster("0" * 32, 1, [Member("ann", 0, bytes(32)), Member("bob", 1, bytes(31) + b"1")])
        >>> roster.with_tie(1, 0, 2.0).ties
        [(0, 1, 2.0)]
        """
        pairs = {(one, other): held for one, other, held in self.ties}
        pairs[_pair(a, b)] = weight
        return self._next(ties=_listed(pairs))

    def with_relay(self, relay: Relay) -> Roster:
        """The next version, with a relay, instead of an old one of its name.

        Parameters
        ----------
        relay : Relay

        Returns
        -------
        Roster

        Examples
        --------
        >>> Roster("0" * 32, 1).with_relay(Relay("hub", "192.0.2.1:7447")).version
        2
        """
        return self._next(relays=[*(other for other in self.relays if other.name != relay.name), relay])

    def without_relay(self, name: str) -> Roster:
        """The next version, without a relay.

        Parameters
        ----------
        name : str

        Returns
        -------
        Roster

        Examples
        --------
        >>> Roster("0" * 32, 1, relays=[Relay("hub", "192.0.2.1:7447")]).without_relay("hub").relays
        []
        """
        if all(relay.name != name for relay in self.relays):
            raise DataError(f"{name!r:.80} is not a relay in roster {self.version}")
        return self._next(relays=[relay for relay in self.relays if relay.name != name])

    def _next(self, **changes: Any) -> Roster:
        return msgspec.structs.replace(self, version=self.version + 1, **changes)


def newer(old: Roster | None, new: Roster) -> bool:
    """Whether a roster may replace another: it is of the same run, and of a later version.

    Parameters
    ----------
    old : Roster or None
        None: there is none yet.
    new : Roster

    Returns
    -------
    bool

    Examples
    --------
    >>> old = Roster("0" * 32, 1)
    >>> newer(old, old), newer(old, old.with_relay(Relay("hub", "192.0.2.1:7447")))
    (False, True)
    """
    return old is None or (new.run == old.run and new.version > old.version)


# -- on disk and on the wire -----------------------------------------------------------------------------------------


def charter_json(charter: Charter) -> bytes:
    """A charter as a file.

    Parameters
    ----------
    charter : Charter

    Returns
    -------
    bytes

    Examples
    --------
    >>> charter = Charter(title="", features=["x"], target="y", objective="separate", loss="squared", steward=bytes(32))
    >>> read_charter(charter_json(charter)) == charter
    True
    """
    return msgspec.json.format(msgspec.json.encode(charter), indent=1) + b"\n"


def read_charter(content: bytes, what: str = "the charter") -> Charter:
    """A charter from its file.

    Parameters
    ----------
    content : bytes
    what : str
        What to call it in an error.

    Returns
    -------
    Charter

    Raises
    ------
    DataError

    Examples
    --------
    >>> read_charter(b"{}")
    Traceback (most recent call last):
    ...
    coterie.errors.DataError: the charter is damaged: Object missing required field `title`
    """
    return from_json(content, Charter, what)


def sign_roster(roster: Roster, steward: SigningKey) -> bytes:
    """A roster as a file: the signature, and msgpack.

    Parameters
    ----------
    roster : Roster
    steward : Ed25519PrivateKey

    Returns
    -------
    bytes

    Raises
    ------
    ParameterError
        It is too long.

    Examples
    --------
    >>> from coterie.peers.identity import new_signing_key
    >>> key = new_signing_key()
    >>> charter = Charter(title="a", features=["x"], target="y", objective="separate", loss="squared",
    ...                   steward=public_bytes(key))
    >>> roster = Roster(charter.run, 1)
    >>> read_roster(sign_roster(roster, key), charter) == roster
    True
    """
    body = msgspec.msgpack.encode(roster, order="deterministic")
    if SIGNATURE + len(body) > MOST_BYTES:
        raise ParameterError(
            f"a roster of {len(roster.members)} members and {len(roster.ties)} ties takes {len(body)} bytes, more than "
            f"{MOST_BYTES}: use fewer ties"
        )
    return steward.sign(ROSTER_SEAL + body) + body


def read_roster(signed: bytes, charter: Charter, what: str = "the roster") -> Roster:
    """A roster that the steward of a charter has signed. Nothing of it is parsed before that is sure.

    Parameters
    ----------
    signed : bytes
    charter : Charter
    what : str
        What to call it in an error.

    Returns
    -------
    Roster

    Raises
    ------
    SignatureError
        The steward has not signed it.
    DataError
        It is of another run, or not a good one.

    Examples
    --------
    >>> charter = Charter(title="", features=["x"], target="y", objective="separate", loss="squared", steward=bytes(32))
    >>> read_roster(bytes(100), charter)
    Traceback (most recent call last):
    ...
    coterie.errors.SignatureError: the roster is not signed with the steward's key
    """
    _check_length(signed, what)
    seal, body = bytes(signed[:SIGNATURE]), bytes(signed[SIGNATURE:])
    try:
        verify(charter.steward, seal, ROSTER_SEAL + body)
    except SignatureError:
        raise SignatureError(f"{what} is not signed with the steward's key") from None
    with _Reading(what):
        roster = msgspec.msgpack.decode(body, type=Roster)
    if roster.run != charter.run:
        raise DataError(f"{what} is of run {roster.run}, and not of {charter.run}")
    return roster


def from_json(content: bytes, kind: type[Kind], what: str) -> Kind:
    """Something that others have written, if it is what it must be.

    Parameters
    ----------
    content : bytes
    kind : type
        A Struct that checks itself.
    what : str
        What to call it in an error.

    Returns
    -------
    kind

    Raises
    ------
    DataError

    Examples
    --------
    >>> from_json(b'{"name": "Ann", "endpoint": ""}', Relay, "the relay")
    Traceback (most recent call last):
    ...
    coterie.errors.DataError: the relay is damaged: name='Ann' must be 1 to 63 of ...
    """
    _check_length(content, what)
    with _Reading(what):
        return msgspec.json.decode(content, type=kind)
    raise AssertionError  # pragma: no cover - for mypy: _Reading lets nothing pass


def check_steward(charter: Charter, steward: SigningKey) -> None:
    """Refuse a key that is not that of a charter's steward.

    Parameters
    ----------
    charter : Charter
    steward : Ed25519PrivateKey

    Raises
    ------
    IdentityError

    Examples
    --------
    >>> from coterie.peers.identity import new_signing_key
    >>> charter = Charter(title="", features=["x"], target="y", objective="separate", loss="squared", steward=bytes(32))
    >>> check_steward(charter, new_signing_key())
    Traceback (most recent call last):
    ...
    coterie.errors.IdentityError: the steward's key is not the one of the charter
    """
    if public_bytes(steward) != charter.steward:
        raise IdentityError("the steward's key is not the one of the charter")


class _Reading:
    """Turns whatever goes wrong in reading into one kind of error, that says what was read."""

    def __init__(self, what: str) -> None:
        self.what = what

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, (msgspec.MsgspecError, ValueError, TypeError, OverflowError, RecursionError)):
            raise DataError(f"{self.what} is damaged: {error!s:.300}") from None


def _check_length(content: bytes, what: str) -> None:
    if len(content) > MOST_BYTES:
        raise DataError(f"{what} takes {len(content)} bytes, more than {MOST_BYTES}")


# -- checks ----------------------------------------------------------------------------------------------------------


def _set(thing: Any, fields: dict[str, Any]) -> None:
    """Put in what was checked: numbers of the declared type, so that equal charters have equal bytes."""
    for name, value in fields.items():
        msgspec.structs.force_setattr(thing, name, value)


def _checked_charter(charter: Charter) -> dict[str, Any]:
    """What a charter holds, each field of its own type."""
    form = _whole("format", charter.format, 0, WHOLE)
    if form != FORMAT:
        raise ParameterError(f"format={form} is not known: this version reads format {FORMAT}")
    _text("title", charter.title, most=500, empty=True)
    features = _texts("features", charter.features, MOST_FEATURES)
    _text("target", charter.target)
    if charter.target in features:
        raise ParameterError(f"target={charter.target!r} is one of the features")
    labels = None if charter.labels is None else _texts("labels", charter.labels, 2)
    if labels is not None and len(labels) != 2:
        raise ParameterError(f"labels={labels!r} must be two, the negative and the positive class")
    if not isinstance(charter.intercept, bool):
        raise ParameterError(f"intercept={charter.intercept!r} must be True or False")
    center = _numbers("center", charter.center, len(features))
    scale = _numbers("scale", charter.scale, len(features))
    for k, width in enumerate(scale or ()):
        if width <= 0:
            raise ParameterError(f"scale[{k}]={width!r}, of feature {features[k]!r}, must be > 0")
    _choice("objective", charter.objective, OBJECTIVES)
    _choice("loss", charter.loss, LOSSES)
    _choice("confidence", charter.confidence, CONFIDENCES)
    _choice("method", charter.method, METHODS)
    _check_together(charter, labels)
    ridge: float | str = charter.ridge
    if isinstance(ridge, str):
        _choice("ridge", ridge, ("1/m",), " or a number")
    else:
        ridge = _number("ridge", ridge, low=0.0)
    letter_bytes = _whole("letter_bytes", charter.letter_bytes, 1_000, MOST_LETTER)
    numbers = len(features) + charter.intercept
    if charter.objective != "boosting" and 8 * numbers > letter_bytes:
        raise ParameterError(
            f"letter_bytes={letter_bytes} is too few for a model of {numbers} numbers, which takes {8 * numbers}"
        )
    return {
        "format": form,
        "features": features,
        "labels": labels,
        "center": center,
        "scale": scale,
        "mu": _number("mu", charter.mu, low=0.0, open_low=charter.objective != "boosting"),
        "ridge": ridge,
        "max_rows": _whole("max_rows", charter.max_rows, 1, WHOLE),
        "settings": _settings("settings", charter.settings),
        "trim": _number("trim", charter.trim, low=0.0, high=0.5),
        "learned": _checked_learned(charter.learned),
        "privacy": _checked_privacy(charter),
        "radius": _number("radius", charter.radius, low=0.0, open_low=True),
        "rate": _number("rate", charter.rate, low=0.0, open_low=True),
        "letter_bytes": letter_bytes,
        "letters_per_second": _number("letters_per_second", charter.letters_per_second, low=0.0, open_low=True),
        "steward": _key("steward", charter.steward),
    }


def _check_together(charter: Charter, labels: list[str] | None) -> None:
    """Refuse two good names that do not go together."""
    if (charter.objective == "boosting") != (charter.method == "boosting"):
        raise ParameterError(
            f"objective={charter.objective!r} and method={charter.method!r} do not go together: both or neither of "
            "them must be 'boosting'"
        )
    if charter.loss == "adaboost" and charter.objective != "boosting":
        raise ParameterError(f"loss='adaboost' is for objective='boosting', not for {charter.objective!r}")
    if charter.loss in OF_CLASSES and labels is None:
        raise ParameterError(f"loss={charter.loss!r} is for classes: give their two labels, or choose loss='squared'")


def _checked_learned(given: Any) -> Settings | None:
    if given is None:
        return None
    learned = _settings("learned", given, LEARNED)
    if "step" in learned:
        _choice("learned step", learned["step"], STEPS)
    if "sampling" in learned:
        _choice("learned sampling", learned["sampling"], SAMPLERS)
    for name in {"kappa", "max_edges"} & set(learned):
        _whole(f"learned {name}", learned[name], 1, WHOLE)
    for name in {"mu", "lam", "delta", "every", "max_weight"} & set(learned):
        _number(f"learned {name}", learned[name], low=0.0, open_low=True)
    return learned


def _checked_privacy(charter: Charter) -> Settings | None:
    if charter.privacy is None:
        return None
    privacy = _settings("privacy", charter.privacy, PRIVACY)
    if charter.confidence == "gossip":
        raise ParameterError(
            "confidence='gossip' does not go with privacy: the largest number of rows tells of somebody's data; "
            "use 'public' or 'none'"
        )
    if charter.method not in PRIVATE_METHODS:
        raise ParameterError(
            f"method={charter.method!r} has no private form: choose {', '.join(PRIVATE_METHODS)}, or privacy=None"
        )
    if "mechanism" in privacy:
        known = ("exponential",) if charter.method == "boosting" else ("gaussian", "laplace")
        _choice("privacy mechanism", privacy["mechanism"], known, f" for method={charter.method!r}")
    if "delta" in privacy:
        _number("privacy delta", privacy["delta"], low=0.0, high=1.0)
    for name in {"epsilon", "clip", "row_norm"} & set(privacy):
        _number(f"privacy {name}", privacy[name], low=0.0, open_low=True)
    for name in {"wakes_per_agent", "max_rows"} & set(privacy):
        _whole(f"privacy {name}", privacy[name], 1, WHOLE)
    return privacy


def _checked_roster(roster: Roster) -> dict[str, Any]:
    run = roster.run
    if not (isinstance(run, str) and len(run) == 32 and set(run) <= set("0123456789abcdef")):
        raise ParameterError(f"run={run!r:.80} must be 32 hexadecimal digits")
    version = _whole("version", roster.version, 1, WHOLE)
    members = _all_of("members", roster.members, Member)
    relays = _all_of("relays", roster.relays, Relay)
    _unique("name", [*(member.name for member in members), *(relay.name for relay in relays)])
    _unique("address", [member.address for member in members])
    _unique("key", [member.key.hex() for member in members])
    if not isinstance(roster.ties, (list, tuple)):
        raise ParameterError(f"ties={roster.ties!r:.80} must be a list")
    here = {member.address for member in members}
    ties = [_tie(tie, here) for tie in roster.ties]
    _unique("tie", [(a, b) for a, b, _ in ties])
    return {"version": version, "members": members, "ties": ties, "relays": relays}


def _all_of(what: str, things: Any, kind: type[Kind]) -> list[Kind]:
    if not isinstance(things, (list, tuple)) or not all(isinstance(thing, kind) for thing in things):
        raise ParameterError(f"{what} must be a list of {kind.__name__}")
    return list(things)


def _unique(what: str, values: list[Any]) -> None:
    seen: set[Any] = set()
    for value in values:
        if value in seen:
            raise ParameterError(f"the {what} {value!r} is there twice")
        seen.add(value)


def _tie(tie: Any, here: set[int]) -> tuple[int, int, float]:
    if not (isinstance(tie, (list, tuple)) and len(tie) == 3):
        raise ParameterError(f"tie {tie!r:.80} must be two addresses and a weight")
    a, b = (_whole(f"address of tie {tie!r:.80}", end, 0, MOST_ADDRESSES) for end in tie[:2])
    if a >= b:
        raise ParameterError(f"tie {tie!r}: the smaller address comes first, and nobody is tied to itself")
    for end in (a, b):
        if end not in here:
            raise ParameterError(f"tie {tie!r}: there is no member with the address {end}")
    return a, b, _number(f"weight of tie {a}-{b}", tie[2], low=0.0, open_low=True)


def _pair(a: int, b: int) -> tuple[int, int]:
    return (a, b) if a < b else (b, a)


def _listed(pairs: Mapping[tuple[int, int], float]) -> list[tuple[int, int, float]]:
    return [(a, b, weight) for (a, b), weight in sorted(pairs.items()) if weight != 0]


def _choice(what: str, value: Any, known: Iterable[str], also: str = "") -> None:
    if not isinstance(value, str) or value not in known:
        raise ParameterError(f"{what}={value!r:.80} is not known: choose one of {', '.join(known)}{also}")


def _text(what: str, value: Any, most: int = 200, empty: bool = False) -> str:
    if not isinstance(value, str) or len(value) > most or not (value or empty):
        raise ParameterError(f"{what}={value!r:.80} must be text of {0 if empty else 1} to {most} characters")
    if not value.isprintable():  # it will be shown on terminals; and lone surrogates cannot be written
        raise ParameterError(f"{what}={value!r:.80} must be of printable characters")
    return value


def _texts(what: str, values: Any, most: int) -> list[str]:
    if not isinstance(values, (list, tuple)) or not 1 <= len(values) <= most:
        raise ParameterError(f"{what}={values!r:.80} must be a list of 1 to {most} names")
    named = [_text(f"{what}[{k}]", value) for k, value in enumerate(values)]
    seen: set[str] = set()
    for k, value in enumerate(named):
        if value in seen:
            raise ParameterError(f"{what}[{k}]={value!r} is there twice")
        seen.add(value)
    return named


def _number(what: str, value: Any, low: float = -math.inf, high: float = math.inf, *, open_low: bool = False) -> float:
    """A finite number at or above `low` (above it, if that is open) and below `high`."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise ParameterError(f"{what}={value!r:.80} must be a number")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number) or number < low or (open_low and number == low) or number >= high:
        upper = f" and < {high:g}" if high < math.inf else ""
        lower = f" {'>' if open_low else '>='} {low:g}" if low > -math.inf else ""
        raise ParameterError(f"{what}={value!r:.80} must be a finite number{lower}{upper}")
    return number


def _whole(what: str, value: Any, low: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral) or not low <= int(value) <= high:
        raise ParameterError(f"{what}={value!r:.80} must be a whole number from {low} to {high}")
    return int(value)


def _numbers(what: str, values: Any, length: int) -> list[float] | None:
    if values is None:
        return None
    if not isinstance(values, (list, tuple)) or len(values) != length:
        found = len(values) if isinstance(values, (list, tuple)) else f"{values!r:.80}"
        raise ParameterError(f"{what} must be a list of {length} numbers, one for each feature; found {found}")
    return [_number(f"{what}[{k}]", value) for k, value in enumerate(values)]


def _settings(what: str, given: Any, known: tuple[str, ...] | None = None) -> Settings:
    if not isinstance(given, Mapping) or len(given) > 100:
        raise ParameterError(f"{what}={given!r:.80} must be a dict of up to 100 names and values")
    found: Settings = {}
    for name, value in given.items():
        if not (isinstance(name, str) and name.isascii() and name.isidentifier() and len(name) <= 64):
            raise ParameterError(f"{what} has {name!r:.80}, which is not the name of an argument")
        if known is not None and name not in known:
            raise ParameterError(f"{what} has {name!r}, which is not known: choose from {', '.join(known)}")
        if isinstance(value, str):
            found[name] = _text(f"{what} {name}", value)
        elif isinstance(value, Integral) and not isinstance(value, bool):
            found[name] = _whole(f"{what} {name}", value, -WHOLE, WHOLE)
        else:
            found[name] = _number(f"{what} {name}", value)
    return found


def _key(what: str, value: Any) -> bytes:
    if not isinstance(value, (bytes, bytearray)) or len(value) != 32:
        raise ParameterError(f"{what} must be an Ed25519 public key: 32 bytes")
    return bytes(value)
