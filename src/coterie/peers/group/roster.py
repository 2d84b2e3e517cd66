"""The roster: who takes part in a run, and who is tied to whom. An admin signs every version of it.

A peer never goes back to an older version. What is signed, and what is read, is a good roster.

Every version names the hashes of those before it. So whoever holds one can tell whether another continues it, or is a
*fork*: two lists of which neither continues the other, as an admin makes them who goes on from an old backup, or two
admins who do not talk to each other. A fork is for people to heal: the next version says which branch is void.
"""

from __future__ import annotations

import contextlib
import hashlib
import itertools
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from ..._files import MAX_BYTES, read_bounded
from ...errors import DataError, ParameterError, SignatureError
from .charter import Charter
from .identity import check_name, public_bytes, split_endpoint
from .records import Count, Positive, PublicKey, check_length, encoded, from_msgpack, made
from .signed import SIGNATURE, Signed, SigningKey

#: How many hashes of earlier versions a list names; of void ones, at most; bytes of each of them.
HISTORY, MOST_VOID, DIGEST = 64, 512, 16
#: Delegations of admins, at most.
MOST_DELEGATIONS = 64

Address = Annotated[int, Meta(ge=0, lt=2**31)]
Edge = tuple[Address, Address, Positive]
Digest = Annotated[bytes, Meta(min_length=DIGEST, max_length=DIGEST)]
Link = tuple[Count, Digest]
Serial = Annotated[str, Meta(pattern=r"^[1-9a-f][0-9a-f]{0,39}\Z")]
#: What a list is to the one that is held. See :func:`relation`.
Relation = Literal["same", "newer", "older", "fork"]


class Member(msgspec.Struct, frozen=True, omit_defaults=True):
    """A peer that takes part."""

    name: str  # the common name of its certificate
    address: Address  # what methods and messages call it; never given to another
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


class Delegation(msgspec.Struct, frozen=True, omit_defaults=True):
    """The word of one admin's key that another may sign lists of members, too, or in its place.

    The charter names the first admin's key, for ever: it is a part of what the run's id is the hash of. Every further
    key hangs on it by a chain of delegations, each signed with a key that was allowed to sign at that time. They travel
    inside the list of members, and a peer that has seen one that retires a key does not forget it.
    """

    key: PublicKey
    by: PublicKey
    since: Count  # version of the list of members that says so first
    retires: bool = False  # whether the key that signs this signs no later version
    signature: bytes = b""


class Roster(msgspec.Struct, frozen=True, omit_defaults=True):
    """Who takes part in a run, and who is tied to whom.

    Parameters
    ----------
    run : str
        Of its charter.
    version : int
        Grows by one with every change.
    members : list of Member
    edges : list of (int, int, float)
        Two addresses, the smaller one first, and the weight.
    relays : list of Relay
    history : list of (int, bytes)
        The versions that this one continues and their hashes, the newest first.
    voids : list of bytes
        Hashes of versions that were signed, too, and do not count: the other branch of a fork.
    addresses : int
        How many were given so far, also to members that have left.
    revoked : dict
        Certificates that are refused although they have not expired: serial numbers in lower-case hex, without leading
        zeros, and when they expire, in seconds since 1970.
    delegations : list of Delegation
        Who may sign beside the admin of the charter, or in its place: see :func:`signers`.
    authorities : list of str
        Certificates of all authorities, as PEM, where there is more than the one that an invitation brings.

    Examples
    --------
    >>> ann, bob = Member("ann", 0, bytes(32)), Member("bob", 1, bytes(31) + b"1")
    >>> roster = Roster("0" * 32, 1, [ann, bob]).with_edge(1, 0, 0.5)
    >>> roster.version, roster.edges, roster.neighbours(1)
    (2, [(0, 1, 0.5)], {0: 0.5})
    """

    run: Annotated[str, Meta(pattern=r"^[0-9a-f]{32}\Z")]  # of its charter
    version: Count  # grows by one with every change
    members: list[Member] = []
    edges: list[Edge] = []  # two addresses, the smaller one first, and the weight
    relays: list[Relay] = []
    history: Annotated[list[Link], Meta(max_length=HISTORY)] = []
    voids: Annotated[list[Digest], Meta(max_length=MOST_VOID)] = []
    addresses: Address = 0
    revoked: dict[Serial, Annotated[int, Meta(ge=0)]] = {}
    delegations: Annotated[list[Delegation], Meta(max_length=MOST_DELEGATIONS)] = []
    authorities: Annotated[list[Annotated[str, Meta(max_length=20_000)]], Meta(max_length=16)] = []

    def __post_init__(self) -> None:
        versions = [self.version, *(version for version, _ in self.history)]
        if any(old >= new for new, old in itertools.pairwise(versions)):
            raise ParameterError(
                f"the history of version {self.version} must list older versions, the newest of them first"
            )
        here = [member.address for member in self.members]
        unique: tuple[tuple[str, list[Any]], ...] = (
            ("name", [*(member.name for member in self.members), *(relay.name for relay in self.relays)]),
            ("address", here),
            ("key", [member.key for member in self.members]),
            ("edge", [edge[:2] for edge in self.edges]),
        )
        for what, values in unique:
            if len(set(values)) < len(values):
                twice = Counter(values).most_common(1)[0][0]
                raise ParameterError(f"the {what} {twice!r} is there twice: each must be there once")
        known = set(here)
        for a, b, _ in self.edges:
            if a >= b:
                raise ParameterError(f"edge {a}-{b}: the smaller address comes first, and no member is tied to itself")
            if not {a, b} <= known:
                raise ParameterError(f"edge {a}-{b}: there is no member with the address {a if a not in known else b}")

    @property
    def digest(self) -> bytes:
        """The hash that later versions know this one by."""
        return hashlib.sha256(ROSTERS.seal + encoded(self)).digest()[:DIGEST]

    def after(self, base: Roster) -> Roster:
        """The same list as the next version after another one, whose history it continues."""
        chain = [(base.version, base.digest), *base.history][:HISTORY]
        return self._with(version=base.version + 1, history=chain, addresses=max(base.addresses, self.given))

    @property
    def given(self) -> int:
        """How many addresses were given so far."""
        return max([self.addresses, *(member.address + 1 for member in self.members)])

    def named(self, name: str) -> Member | Relay | None:
        """The member or the relay of a name, if there is one."""
        return next((one for one in self.everybody if one.name == name), None)

    @property
    def everybody(self) -> list[Member | Relay]:
        """Members and relays."""
        return [*self.members, *self.relays]

    def member(self, address: int) -> Member:
        """The member at an address."""
        for member in self.members:
            if member.address == address:
                return member
        raise DataError(f"no member has the address {address!r} in roster {self.version}")

    def by_name(self, name: str) -> Member:
        """The member of a name."""
        found = self.named(name)
        if isinstance(found, Member):
            return found
        some = ", ".join(member.name for member in self.members[:10]) or "none"
        raise DataError(
            f"{name!r:.80} is not a member in roster {self.version}: it has {some}"
            f"{', ...' if len(self.members) > 10 else ''}"
        )

    def neighbours(self, address: int) -> dict[int, float]:
        """Weights of a member's edges by address, in increasing order."""
        me = self.member(address).address
        found = {b if a == me else a: weight for a, b, weight in self.edges if me in (a, b)}
        return dict(sorted(found.items()))

    def with_member(self, member: Member, edges: Mapping[int, float] | None = None) -> Roster:
        """The next version, with a new member or what is new of the one at that address. A weight of 0 is no edge."""
        members = [*(other for other in self.members if other.address != member.address), member]
        pairs = {(member.address, other): weight for other, weight in (edges or {}).items()}
        return self._next(members=sorted(members, key=lambda one: one.address), edges=self._tied(pairs))

    def without(self, name: str) -> Roster:
        """The next version, without a member and its edges, or without a relay."""
        gone = self.named(name)
        if isinstance(gone, Relay):
            return self._next(relays=[one for one in self.relays if one is not gone])
        gone = self.by_name(name)
        return self._next(
            members=[one for one in self.members if one is not gone],
            edges=[edge for edge in self.edges if gone.address not in edge[:2]],
        )

    def with_edge(self, a: int, b: int, weight: float = 1.0) -> Roster:
        """The next version, with an edge between two addresses. A weight of 0 is no edge."""
        return self._next(edges=self._tied({(a, b): weight}))

    def with_relay(self, relay: Relay) -> Roster:
        """The next version, with a relay, instead of an old one of its name."""
        return self._next(relays=[*(other for other in self.relays if other.name != relay.name), relay])

    def _tied(self, new: Mapping[tuple[int, int], float]) -> list[Edge]:
        pairs = {(a, b): weight for a, b, weight in self.edges}
        pairs |= {(min(pair), max(pair)): weight for pair, weight in new.items()}
        return [(a, b, weight) for (a, b), weight in sorted(pairs.items()) if weight != 0]

    def with_revoked(self, serials: Mapping[str, int], now: float) -> Roster:
        """The next version, which refuses these certificates, too; those that have expired are left out."""
        kept = {serial: ends for serial, ends in {**self.revoked, **serials}.items() if ends > now}
        return self._next(revoked=kept)

    def with_admin(self, delegation: Delegation, authorities: list[str]) -> Roster:
        """The next version, with the delegation of an admin; it, and others, may sign certificates."""
        known = [*self.authorities, *(pem for pem in authorities if pem not in self.authorities)]
        return self._next(delegations=[*self.delegations, delegation], authorities=known)

    def healing(self, void: Roster) -> Roster:
        """The next version, of which everybody who holds another branch knows that theirs is void."""
        mine = {self.digest, *(digest for _, digest in self.history)}
        branch = itertools.takewhile(lambda d: d not in mine, [void.digest, *(digest for _, digest in void.history)])
        voids = list(dict.fromkeys([*branch, *self.voids, *void.voids]))
        healed = self._next(voids=[digest for digest in voids if digest not in mine][:MOST_VOID])
        return healed._with(
            version=max(self.version, void.version) + 1,
            addresses=max(healed.addresses, void.addresses),
            revoked=void.revoked | self.revoked,
        )

    def _next(self, **changes: Any) -> Roster:
        return self._with(**changes).after(self)

    def _with(self, **changes: Any) -> Roster:
        return made(Roster, {**msgspec.structs.asdict(self), **changes})


#: How lists of members, and delegations of one run, are signed.
ROSTERS, DELEGATIONS = Signed(Roster, b"coterie roster 2\n"), Signed(Delegation, b"coterie delegation 2\n")


def relation(held: Roster, other: Roster) -> Relation:
    """What another list of the run is to the one that is held: the same, newer, older; or a fork.

    A list is newer if its version is greater and it continues the one that is held, or says that it is void. Where its
    history does not reach back that far, nobody can tell, and the greater version counts.
    """
    mine, theirs = held.digest, other.digest
    if mine == theirs:
        return "same"
    if held.run != other.run:
        return "fork"
    held_void, other_void = _is_void(held, other), _is_void(other, held)
    if held_void != other_void:
        newest = other if held_void else held
        return "fork" if newest.version < max(held.version, other.version) else "newer" if held_void else "older"
    if other.version > held.version:
        return "newer" if not held_void and _continues(other, held.version, mine) else "fork"
    if other.version < held.version:
        return "older" if not held_void and _continues(held, other.version, theirs) else "fork"
    return "fork"


def _is_void(one: Roster, by: Roster) -> bool:
    """Whether a list, or one that it continues, is void as another one says."""
    return not {one.digest, *(digest for _, digest in one.history)}.isdisjoint(by.voids)


def _continues(new: Roster, version: int, digest: bytes) -> bool:
    reached = not new.history or version < new.history[-1][0]
    return reached or (version, digest) in new.history


def signers(
    charter: Charter, roster: Roster | _Head, held: Roster | None = None, version: int | None = None
) -> set[bytes]:
    """The keys that may sign a list of this run, and all else that an admin signs; of its own or another version.

    They are the admin's of the charter, and those that hang on it by delegations: those of the list that is ``held``
    count first, so that a key that has retired cannot sign a list that does not say so.
    """
    before = [] if held is None else held.delegations
    delegations = [*before, *(delegation for delegation in roster.delegations if delegation not in before)]
    version = roster.version if version is None else version
    keys = {charter.admin}
    for delegation in delegations:
        # One of a key that may not sign, or not any more, gives nothing.
        if (
            delegation.since > version
            or delegation.by not in keys
            or not DELEGATIONS.is_by(delegation, [delegation.by], charter.run)
        ):
            continue
        keys.add(delegation.key)
        if delegation.retires and version > delegation.since and delegation.key != delegation.by:
            keys.discard(delegation.by)
    return keys


def make_delegation(run: str, key: bytes, by: SigningKey, since: int, retires: bool = False) -> Delegation:
    """A delegation for a key, good in one run."""
    return DELEGATIONS.sign(Delegation(key, public_bytes(by), since, retires), by, run)


def sign_roster(roster: Roster, admin: SigningKey) -> bytes:
    """A roster as a file: the signature, and msgpack. What could not be read again is not signed."""
    signed = ROSTERS.pack(roster, admin, "the roster")
    if len(signed) > MAX_BYTES:
        raise ParameterError(
            f"a roster of {len(roster.members)} members and {len(roster.edges)} edges takes {len(signed)} bytes, more "
            f"than {MAX_BYTES}: use fewer edges"
        )
    return signed


def read_roster(signed: bytes, charter: Charter, what: str = "the roster", held: Roster | None = None) -> Roster:
    """A roster that an admin of a charter has signed; what a list that is ``held`` says of admins counts, too."""
    return read_signed(signed, charter, what, held)[0]


def roster_in(folder: Path, charter: Charter) -> Roster:
    """The list of members in a folder."""
    return read_roster(read_bounded(folder / "roster"), charter, str(folder / "roster"))


class _Head(msgspec.Struct, frozen=True):
    """What of a list says who may have signed it."""

    run: str
    version: Count
    delegations: Annotated[list[Delegation], Meta(max_length=MOST_DELEGATIONS)] = []


def read_signed(
    signed: bytes, charter: Charter, what: str = "the roster", held: Roster | None = None
) -> tuple[Roster, bytes]:
    """The same, with the key that has signed it.

    Anybody can send a long list. So nothing of it is looked at before it is sure that an admin has signed it, but the
    delegations in it, which are few: and of a list that the first admin has signed, not even these.
    """
    check_length(signed, what)
    by, body = ROSTERS.signer(signed, [charter.admin]), bytes(signed[SIGNATURE:])
    if by is None:
        with contextlib.suppress(DataError):
            head = from_msgpack(body, _Head, what)
            if head.run == charter.run:
                by = ROSTERS.signer(signed, signers(charter, head))
    if by is None:
        raise SignatureError(f"{what} is not signed with the admin's key")
    roster = from_msgpack(body, Roster, what)
    if roster.run != charter.run:
        raise DataError(
            f"{what} is of run {roster.run}, and not of {charter.run}: one of them is another group's, or the charter "
            "was changed by hand, which only coterie group amend can do"
        )
    # By what it says itself: so it can be read again where nothing is held. And by what is held.
    if by not in signers(charter, roster) or by not in signers(charter, roster, held):
        raise SignatureError(f"{what} is signed with the key of an admin that has handed over ({by[:4].hex()})")
    if encoded(roster) != body:
        raise DataError(f"{what} is damaged: it says more than this version of coterie knows. Install the newest one")
    return roster, by


# -- forks ------------------------------------------------------------------------------------------------------------

#: How to heal it.
CURE = (
    "ask the admin which one is right, who heals it with: coterie group update CLUB LIST, where LIST is the file "
    "roster of a peer that has the right one"
)


class Fork(msgspec.Struct, frozen=True):
    """Two signed lists of which neither continues the other: the one that is held, and another."""

    held: bytes
    other: bytes


def read_fork(content: bytes) -> Fork:
    """The evidence from a file. The lists in it are not checked yet."""
    return from_msgpack(content, Fork, "the fork")


def lists_in(content: bytes) -> list[bytes]:
    """The signed lists in a file: one, or the two of a fork."""
    try:
        fork = read_fork(content)
    except DataError:
        return [content]
    return [fork.held, fork.other]


def told(roster: Roster) -> str:
    """A list in few words, which two people can compare: version and the beginning of its hash."""
    return f"version {roster.version} ({roster.digest.hex()[:8]})"


def described(fork: Fork, charter: Charter) -> str:
    """Both lists, where they part, and whose signatures are under them."""
    (held, by), (other, other_by) = (read_signed(signed, charter) for signed in (fork.held, fork.other))
    common = sorted(set(held.history) & set(other.history))
    parted = f" Both continue version {common[-1][0]}." if common else ""
    gone = sorted({member.name for member in held.members} ^ {member.name for member in other.members})
    differ = f" They differ in {', '.join(gone[:10])}{', ...' if len(gone) > 10 else ''}." if gone else ""
    return (
        f"the list of members has forked: {told(held)}, signed by {by[:4].hex()}, is kept; {told(other)}, signed by "
        f"{other_by[:4].hex()}, does not go with it.{parted}{differ} To heal it, {CURE}"
    )


def compared(one: bytes, other: bytes, charter: Charter) -> str:
    """What one list is to another, for people."""
    (mine, _), (theirs, by) = read_signed(one, charter), read_signed(other, charter)
    match relation(mine, theirs):
        case "same":
            return f"both are {told(mine)}"
        case "fork":
            return described(Fork(one, other), charter)
        case word:
            return f"the other one, {told(theirs)}, signed by {by[:4].hex()}, is {word} than this, {told(mine)}"
