"""The roster: who takes part in a run, and who is tied to whom. The steward signs every version of it.

A peer never goes back to an older version. What is signed, and what is read, is a good roster.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from .._files import MAX_BYTES
from ..errors import DataError, MissingExtra, ParameterError, SignatureError
from .charter import Charter
from .identity import SigningKey, check_name, split_endpoint, verify
from .records import Count, Positive, PublicKey, check_length, from_msgpack, made

try:
    import msgspec
    from msgspec import Meta
except ImportError as error:
    raise MissingExtra('peers on a network need msgspec: pip install "coterie[network]"') from error

#: What a signature is of: these bytes, and then the thing itself. So none is good for something else.
ROSTER_SEAL = b"coterie roster 1\n"
SIGNATURE = 64

Address = Annotated[int, Meta(ge=0, lt=2**31)]
Tie = tuple[Address, Address, Positive]


class Member(msgspec.Struct, frozen=True):
    """A peer that takes part."""

    name: str  # the common name of its certificate
    address: Address  # what methods and letters call it; never given to another
    key: PublicKey  # for Ed25519
    endpoint: str | None = None  # where others can connect to it; None: only through a relay

    def __post_init__(self) -> None:
        check_name(self.name)
        if self.endpoint is not None:
            split_endpoint(self.endpoint, f"endpoint of {self.name}")


class Relay(msgspec.Struct, frozen=True):
    """A program that passes on what peers send which cannot reach each other."""

    name: str  # the common name of its certificate
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

    Examples
    --------
    >>> ann, bob = Member("ann", 0, bytes(32)), Member("bob", 1, bytes(31) + b"1")
    >>> roster = Roster("0" * 32, 1, [ann, bob]).with_tie(1, 0, 0.5)
    >>> roster.version, roster.ties, roster.neighbours(1)
    (2, [(0, 1, 0.5)], {0: 0.5})
    """

    run: Annotated[str, Meta(pattern=r"^[0-9a-f]{32}\Z")]  # of its charter
    version: Count  # grows by one with every change
    members: list[Member] = []
    ties: list[Tie] = []  # two addresses, the smaller one first, and the weight
    relays: list[Relay] = []

    def __post_init__(self) -> None:
        here = [member.address for member in self.members]
        unique: tuple[tuple[str, list[Any]], ...] = (
            ("name", [*(member.name for member in self.members), *(relay.name for relay in self.relays)]),
            ("address", here),
            ("key", [member.key for member in self.members]),
            ("tie", [tie[:2] for tie in self.ties]),
        )
        for what, values in unique:
            if len(set(values)) < len(values):
                twice = next(value for k, value in enumerate(values) if value in values[:k])
                raise ParameterError(f"the {what} {twice!r} is there twice")
        known = set(here)
        for a, b, _ in self.ties:
            if a >= b:
                raise ParameterError(f"tie {a}-{b}: the smaller address comes first, and no member is tied to itself")
            if not {a, b} <= known:
                raise ParameterError(f"tie {a}-{b}: there is no member with the address {a if a not in known else b}")

    def member(self, address: int) -> Member:
        """The member at an address."""
        for member in self.members:
            if member.address == address:
                return member
        raise DataError(f"no member has the address {address!r} in roster {self.version}")

    def by_name(self, name: str) -> Member:
        """The member of a name."""
        for member in self.members:
            if member.name == name:
                return member
        some = ", ".join(member.name for member in self.members[:10]) or "none"
        raise DataError(
            f"{name!r:.80} is not a member in roster {self.version}: it has {some}"
            f"{', ...' if len(self.members) > 10 else ''}"
        )

    def neighbours(self, address: int) -> dict[int, float]:
        """Weights of a member's ties by address, in increasing order."""
        me = self.member(address).address
        found = {b if a == me else a: weight for a, b, weight in self.ties if me in (a, b)}
        return dict(sorted(found.items()))

    def with_member(self, member: Member, ties: Mapping[int, float] | None = None) -> Roster:
        """The next version, with a new member or what is new of the one at that address. A weight of 0 is no tie."""
        members = [*(other for other in self.members if other.address != member.address), member]
        pairs = {(member.address, other): weight for other, weight in (ties or {}).items()}
        return self._next(members=sorted(members, key=lambda one: one.address), ties=self._tied(pairs))

    def without_member(self, name: str) -> Roster:
        """The next version, without a member and its ties."""
        gone = self.by_name(name)
        return self._next(
            members=[other for other in self.members if other.address != gone.address],
            ties=[tie for tie in self.ties if gone.address not in tie[:2]],
        )

    def with_tie(self, a: int, b: int, weight: float = 1.0) -> Roster:
        """The next version, with a tie between two addresses. A weight of 0 is no tie."""
        return self._next(ties=self._tied({(a, b): weight}))

    def with_relay(self, relay: Relay) -> Roster:
        """The next version, with a relay, instead of an old one of its name."""
        return self._next(relays=[*(other for other in self.relays if other.name != relay.name), relay])

    def without_relay(self, name: str) -> Roster:
        """The next version, without a relay."""
        if all(relay.name != name for relay in self.relays):
            raise DataError(f"{name!r:.80} is not a relay in roster {self.version}")
        return self._next(relays=[relay for relay in self.relays if relay.name != name])

    def _tied(self, new: Mapping[tuple[int, int], float]) -> list[Tie]:
        pairs = {(a, b): weight for a, b, weight in self.ties}
        pairs |= {(min(pair), max(pair)): weight for pair, weight in new.items()}
        return [(a, b, weight) for (a, b), weight in sorted(pairs.items()) if weight != 0]

    def _next(self, **changes: Any) -> Roster:
        return made(Roster, {**msgspec.structs.asdict(self), "version": self.version + 1, **changes})


def newer(old: Roster | None, new: Roster) -> bool:
    """Whether a roster may replace another: it is of the same run, and of a later version."""
    return old is None or (new.run == old.run and new.version > old.version)


def sign_roster(roster: Roster, steward: SigningKey) -> bytes:
    """A roster as a file: the signature, and msgpack. What could not be read again is not signed."""
    body = msgspec.msgpack.encode(roster, order="deterministic")
    from_msgpack(body, Roster, "the roster", ParameterError)
    if SIGNATURE + len(body) > MAX_BYTES:
        raise ParameterError(
            f"a roster of {len(roster.members)} members and {len(roster.ties)} ties takes {len(body)} bytes, more than "
            f"{MAX_BYTES}: use fewer ties"
        )
    return steward.sign(ROSTER_SEAL + body) + body


def read_roster(signed: bytes, charter: Charter, what: str = "the roster") -> Roster:
    """A roster that the steward of a charter has signed. Nothing of it is parsed before that is sure."""
    check_length(signed, what)
    signature, body = bytes(signed[:SIGNATURE]), bytes(signed[SIGNATURE:])
    try:
        verify(charter.steward, signature, ROSTER_SEAL + body)
    except SignatureError:
        raise SignatureError(f"{what} is not signed with the steward's key") from None
    roster = from_msgpack(body, Roster, what)
    if roster.run != charter.run:
        raise DataError(f"{what} is of run {roster.run}, and not of {charter.run}")
    return roster
