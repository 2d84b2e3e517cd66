"""The roster: the members of a run, and the edges between them. An admin signs every version of it.

A peer never goes back to an older version. Every roster is checked when it is signed and when it is read.

Every version names the hashes of the versions before it. So a peer can tell whether another roster continues its own
one, or is a *fork*: two rosters of which neither continues the other. A fork arises if an admin goes on from an old
backup, or if two admins sign without taking over each other's changes. A person heals a fork: the next version says
which branch is void.
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
from .signed import SIGNATURE_BYTES, Signed, SigningKey

#: Maximal number of earlier versions whose hashes a roster names; of void versions; and bytes of each hash.
MAX_HISTORY, MAX_VOID_VERSIONS, DIGEST_BYTES = 64, 512, 16
#: Maximal number of delegations of admins.
MAX_DELEGATIONS = 64

Address = Annotated[int, Meta(ge=0, lt=2**31)]
Edge = tuple[Address, Address, Positive]
Digest = Annotated[bytes, Meta(min_length=DIGEST_BYTES, max_length=DIGEST_BYTES)]
VersionDigest = tuple[Count, Digest]
Serial = Annotated[str, Meta(pattern=r"^[1-9a-f][0-9a-f]{0,39}\Z")]
#: Relation of another roster to the one that is held: see :func:`relation`.
Relation = Literal["same", "newer", "older", "fork"]


class Member(msgspec.Struct, frozen=True, omit_defaults=True):
    """A peer that is in the group."""

    name: str  # common name of the member's certificate
    address: Address  # identifier of the member in methods and messages; never given to another member
    key: PublicKey  # Ed25519
    endpoint: str | None = None  # "host:port" for incoming connections; None: only through a relay

    def __post_init__(self) -> None:
        check_name(self.name)
        if self.endpoint is not None:
            split_endpoint(self.endpoint, f"endpoint of {self.name}")


class Relay(msgspec.Struct, frozen=True):
    """A program that forwards packets between peers that cannot connect to each other."""

    name: str  # common name of the relay's certificate
    endpoint: str

    def __post_init__(self) -> None:
        check_name(self.name)
        split_endpoint(self.endpoint, f"endpoint of {self.name}")


class Delegation(msgspec.Struct, frozen=True, omit_defaults=True):
    """An admin's signed permission for another key to sign rosters, beside the admin or in its place.

    The charter names the first admin's key, which cannot change, because the run id is the hash of the charter. Every
    further key is allowed by a chain of delegations, each signed with a key that was allowed at that time. Delegations
    are part of the roster. A peer keeps every delegation that retires a key.
    """

    key: PublicKey
    by: PublicKey
    since: Count  # the first roster version that has this delegation
    retires: bool = False  # whether the key in `by` may not sign later versions
    signature: bytes = b""


class Roster(msgspec.Struct, frozen=True, omit_defaults=True):
    """The members of a run, and the edges between them.

    Parameters
    ----------
    run : str
        Run id: the hash of the charter.
    version : int
        Version of the roster, which grows by one with every change.
    members : list of Member
    edges : list of (int, int, float)
        Two addresses, the smaller one first, and the weight of each edge.
    relays : list of Relay
    history : list of (int, bytes)
        Versions that this roster continues and their hashes, the newest first.
    voids : list of bytes
        Hashes of void versions: signed rosters on the other branch of a fork.
    addresses : int
        Number of addresses given so far, also to members that have left.
    revoked : dict
        Certificates that are refused although they have not expired: serial numbers in lower-case hex, without leading
        zeros, and expiry times in seconds since 1970.
    delegations : list of Delegation
        Permissions of further keys to sign: see :func:`signers`.
    authorities : list of str
        Certificates of all authorities as PEM, if there is more than the one that an invitation brings.

    Examples
    --------
    >>> ann, bob = Member("ann", 0, bytes(32)), Member("bob", 1, bytes(31) + b"1")
    >>> roster = Roster("0" * 32, 1, [ann, bob]).with_edge(1, 0, 0.5)
    >>> roster.version, roster.edges, roster.neighbours(1)
    (2, [(0, 1, 0.5)], {0: 0.5})
    """

    run: Annotated[str, Meta(pattern=r"^[0-9a-f]{32}\Z")]
    version: Count
    members: list[Member] = []
    edges: list[Edge] = []
    relays: list[Relay] = []
    history: Annotated[list[VersionDigest], Meta(max_length=MAX_HISTORY)] = []
    voids: Annotated[list[Digest], Meta(max_length=MAX_VOID_VERSIONS)] = []
    addresses: Address = 0
    revoked: dict[Serial, Annotated[int, Meta(ge=0)]] = {}
    delegations: Annotated[list[Delegation], Meta(max_length=MAX_DELEGATIONS)] = []
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
                raise ParameterError(
                    f"edge {a}-{b}: the smaller address comes first, and no member has an edge to itself"
                )
            if not {a, b} <= known:
                raise ParameterError(f"edge {a}-{b}: there is no member with the address {a if a not in known else b}")

    @property
    def digest(self) -> bytes:
        """Hash by which later versions name this one."""
        return hashlib.sha256(ROSTERS.seal + encoded(self)).digest()[:DIGEST_BYTES]

    def after(self, base: Roster) -> Roster:
        """Return this roster as the next version after `base`, with the history of `base`."""
        chain = [(base.version, base.digest), *base.history][:MAX_HISTORY]
        return self._with(version=base.version + 1, history=chain, addresses=max(base.addresses, self.given))

    @property
    def given(self) -> int:
        """Number of addresses given so far."""
        return max([self.addresses, *(member.address + 1 for member in self.members)])

    def named(self, name: str) -> Member | Relay | None:
        """Return the member or the relay of a name, or None."""
        return next((one for one in self.everybody if one.name == name), None)

    @property
    def everybody(self) -> list[Member | Relay]:
        """Members and relays."""
        return [*self.members, *self.relays]

    def member(self, address: int) -> Member:
        """Return the member at an address."""
        for member in self.members:
            if member.address == address:
                return member
        raise DataError(f"no member has the address {address!r} in roster {self.version}")

    def by_name(self, name: str) -> Member:
        """Return the member of a name."""
        found = self.named(name)
        if isinstance(found, Member):
            return found
        some = ", ".join(member.name for member in self.members[:10]) or "none"
        raise DataError(
            f"{name!r:.80} is not a member in roster {self.version}: it has {some}"
            f"{', ...' if len(self.members) > 10 else ''}"
        )

    def neighbours(self, address: int) -> dict[int, float]:
        """Return the weights of a member's edges by the neighbours' addresses, in increasing order."""
        me = self.member(address).address
        found = {b if a == me else a: weight for a, b, weight in self.edges if me in (a, b)}
        return dict(sorted(found.items()))

    def with_member(self, member: Member, edges: Mapping[int, float] | None = None) -> Roster:
        """Return the next version with a member added or replaced. A weight of 0 removes an edge."""
        members = [*(other for other in self.members if other.address != member.address), member]
        pairs = {(member.address, other): weight for other, weight in (edges or {}).items()}
        return self._next(members=sorted(members, key=lambda one: one.address), edges=self._edges_with(pairs))

    def without(self, name: str) -> Roster:
        """Return the next version without a member and its edges, or without a relay."""
        gone = self.named(name)
        if isinstance(gone, Relay):
            return self._next(relays=[one for one in self.relays if one is not gone])
        gone = self.by_name(name)
        return self._next(
            members=[one for one in self.members if one is not gone],
            edges=[edge for edge in self.edges if gone.address not in edge[:2]],
        )

    def with_edge(self, a: int, b: int, weight: float = 1.0) -> Roster:
        """Return the next version with an edge between two addresses. A weight of 0 removes the edge."""
        return self._next(edges=self._edges_with({(a, b): weight}))

    def with_relay(self, relay: Relay) -> Roster:
        """Return the next version with a relay added, or replaced if the name is known."""
        return self._next(relays=[*(other for other in self.relays if other.name != relay.name), relay])

    def _edges_with(self, new: Mapping[tuple[int, int], float]) -> list[Edge]:
        pairs = {(a, b): weight for a, b, weight in self.edges}
        pairs |= {(min(pair), max(pair)): weight for pair, weight in new.items()}
        return [(a, b, weight) for (a, b), weight in sorted(pairs.items()) if weight != 0]

    def with_revoked(self, serials: Mapping[str, int], now: float) -> Roster:
        """Return the next version, which also refuses these certificates. Expired certificates are dropped from the
        list.
        """
        kept = {serial: ends for serial, ends in {**self.revoked, **serials}.items() if ends > now}
        return self._next(revoked=kept)

    def with_admin(self, delegation: Delegation, authorities: list[str]) -> Roster:
        """Return the next version with another admin's delegation and authorities."""
        known = [*self.authorities, *(pem for pem in authorities if pem not in self.authorities)]
        return self._next(delegations=[*self.delegations, delegation], authorities=known)

    def healing(self, void: Roster) -> Roster:
        """Return the next version of this branch, which declares the branch of `void` void."""
        mine = {self.digest, *(digest for _, digest in self.history)}
        branch = itertools.takewhile(lambda d: d not in mine, [void.digest, *(digest for _, digest in void.history)])
        voids = list(dict.fromkeys([*branch, *self.voids, *void.voids]))
        healed = self._next(voids=[digest for digest in voids if digest not in mine][:MAX_VOID_VERSIONS])
        return healed._with(
            version=max(self.version, void.version) + 1,
            addresses=max(healed.addresses, void.addresses),
            revoked=void.revoked | self.revoked,
        )

    def _next(self, **changes: Any) -> Roster:
        return self._with(**changes).after(self)

    def _with(self, **changes: Any) -> Roster:
        return made(Roster, {**msgspec.structs.asdict(self), **changes})


#: Signatures of rosters, and of the delegations of one run.
ROSTERS, DELEGATIONS = Signed(Roster, b"coterie roster 2\n"), Signed(Delegation, b"coterie delegation 2\n")


def relation(held: Roster, other: Roster) -> Relation:
    """Return the relation of another roster of the run to the one that is held: same, newer, older or fork.

    A roster is newer if its version is greater and it continues the held one, or declares the held one void. If its
    history does not reach back to the held version, the greater version counts as newer.
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
    """Return whether `by` declares a roster, or a version that the roster continues, void."""
    return not {one.digest, *(digest for _, digest in one.history)}.isdisjoint(by.voids)


def _continues(new: Roster, version: int, digest: bytes) -> bool:
    reached = not new.history or version < new.history[-1][0]
    return reached or (version, digest) in new.history


def signers(
    charter: Charter, roster: Roster | _Head, held: Roster | None = None, version: int | None = None
) -> set[bytes]:
    """Return the keys that may sign a roster of this run, or anything else of an admin, at its version or at `version`.

    These are the key of the charter's admin, and the keys allowed by delegations. Delegations of the ``held`` roster
    are applied first, so that a retired key cannot sign a roster that omits its retirement.
    """
    before = [] if held is None else held.delegations
    delegations = [*before, *(delegation for delegation in roster.delegations if delegation not in before)]
    version = roster.version if version is None else version
    keys = {charter.admin}
    for delegation in delegations:
        # A delegation by a key that may not sign, or may not sign any more, is ignored.
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
    """Return a signed delegation for a key, valid in one run."""
    return DELEGATIONS.sign(Delegation(key, public_bytes(by), since, retires), by, run)


def sign_roster(roster: Roster, admin: SigningKey) -> bytes:
    """Return a roster as a file: the signature, and msgpack. A roster that could not be read again is not signed."""
    signed = ROSTERS.pack(roster, admin, "the roster")
    if len(signed) > MAX_BYTES:
        raise ParameterError(
            f"a roster of {len(roster.members)} members and {len(roster.edges)} edges takes {len(signed)} bytes, more "
            f"than {MAX_BYTES}: use fewer edges"
        )
    return signed


def read_roster(signed: bytes, charter: Charter, what: str = "the roster", held: Roster | None = None) -> Roster:
    """Read a roster that an admin of the charter has signed. Delegations of the ``held`` roster are respected."""
    return read_signed(signed, charter, what, held)[0]


def roster_in(folder: Path, charter: Charter) -> Roster:
    """Read the roster in a folder."""
    return read_roster(read_bounded(folder / "roster"), charter, str(folder / "roster"))


class _Head(msgspec.Struct, frozen=True):
    """The fields of a roster that decide which keys may have signed the roster."""

    run: str
    version: Count
    delegations: Annotated[list[Delegation], Meta(max_length=MAX_DELEGATIONS)] = []


def read_signed(
    signed: bytes, charter: Charter, what: str = "the roster", held: Roster | None = None
) -> tuple[Roster, bytes]:
    """Read a roster, and return the roster and the key that has signed it: see :func:`read_roster`.

    Anybody can send a long roster. So only the delegations, which are few, are parsed before an admin's signature is
    verified. Of a roster that the first admin has signed, nothing is parsed before.
    """
    check_length(signed, what)
    by, body = ROSTERS.signer(signed, [charter.admin]), bytes(signed[SIGNATURE_BYTES:])
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
    # Check the signer against the roster's own delegations, so that it can be read again without `held`; and against
    # `held`.
    if by not in signers(charter, roster) or by not in signers(charter, roster, held):
        raise SignatureError(f"{what} is signed with the key of an admin that has handed over ({by[:4].hex()})")
    if encoded(roster) != body:
        raise DataError(f"{what} is damaged: it says more than this version of coterie knows. Install the newest one")
    return roster, by


# -- forks ------------------------------------------------------------------------------------------------------------

#: What to do about a fork, in words for messages.
HOW_TO_HEAL = (
    "ask the admin which roster is right. The admin heals the fork with: coterie group update CLUB LIST, where LIST is "
    "the file roster of a peer that has the right one"
)


class Fork(msgspec.Struct, frozen=True):
    """Two signed rosters of which neither continues the other: the one that is held, and another."""

    held: bytes
    other: bytes


def read_fork(content: bytes) -> Fork:
    """Read the two rosters of a fork from a file. The rosters are not checked."""
    return from_msgpack(content, Fork, "the fork")


def lists_in(content: bytes) -> list[bytes]:
    """Return the signed rosters in a file: one, or the two of a fork."""
    try:
        fork = read_fork(content)
    except DataError:
        return [content]
    return [fork.held, fork.other]


def version_text(roster: Roster) -> str:
    """Return the version and the beginning of the hash of a roster, which two people can compare."""
    return f"version {roster.version} ({roster.digest.hex()[:8]})"


def described(fork: Fork, charter: Charter) -> str:
    """Describe a fork: both rosters, their last common version, and the keys that signed them."""
    (held, by), (other, other_by) = (read_signed(signed, charter) for signed in (fork.held, fork.other))
    common = sorted(set(held.history) & set(other.history))
    parted = f" Both continue version {common[-1][0]}." if common else ""
    gone = sorted({member.name for member in held.members} ^ {member.name for member in other.members})
    differ = f" They differ in {', '.join(gone[:10])}{', ...' if len(gone) > 10 else ''}." if gone else ""
    return (
        f"the roster has forked: {version_text(held)}, signed by {by[:4].hex()}, is kept; "
        f"{version_text(other)}, signed by {other_by[:4].hex()}, does not continue it.{parted}{differ} To heal it, "
        f"{HOW_TO_HEAL}"
    )


def compared(one: bytes, other: bytes, charter: Charter) -> str:
    """Describe the relation of one roster to another."""
    (mine, _), (theirs, by) = read_signed(one, charter), read_signed(other, charter)
    match relation(mine, theirs):
        case "same":
            return f"both are {version_text(mine)}"
        case "fork":
            return described(Fork(one, other), charter)
        case word:
            told = f"{version_text(theirs)}, signed by {by[:4].hex()}"
            return f"the other one, {told}, is {word} than this, {version_text(mine)}"
