"""How a group comes about: its steward creates it, peers ask to be in it, are invited, and join.

======================  ==============================================================================================
:func:`create`          the steward: a key that signs rosters, an authority, the charter, and a roster of nobody
:func:`request`         a peer: who it is, and where; signed with both of its keys. Nothing in it is secret
:func:`invite`          the steward: a certificate, and a new roster with the peer in it. Nothing in it is secret
:func:`join`            the peer: checks all of that, and keeps it
:func:`enroll`          request, invitation and joining at once, where peer and steward are on one machine
:func:`remove`,         the steward: a new roster. It is the file ``roster`` of the group, which any member can take
:func:`tie`             (:func:`refresh`) and pass on
======================  ==============================================================================================

What a peer believes hangs on one thing, the charter: it holds the steward's key, and the steward signs the invitation
and every roster. So the charter of a first invitation has to come from somebody one trusts; its run can be compared by
word of mouth.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

from .._files import Where, drafted, locked, private_folder, read_bounded, rename, write_atomic, write_new
from ..errors import DataError, IdentityError, MissingExtra, ParameterError
from .charter import Charter, charter_json, make_charter, read_charter
from .identity import (
    MEMBER_DAYS,
    AuthorityKey,
    Identity,
    SigningKey,
    certificate_pem,
    check_ca,
    check_certificate,
    check_name,
    check_seal,
    make_ca,
    make_csr,
    new_signing_key,
    private_pem,
    public_bytes,
    read_certificate,
    read_csr,
    read_key,
    sealed,
    sign_csr,
    split_endpoint,
)
from .packet import OVERHEAD
from .records import PublicKey, from_json, to_json
from .roster import Member, Relay, Roster, newer, read_roster, sign_roster

try:
    import msgspec
    from msgspec import Meta
except ImportError as error:
    raise MissingExtra('peers on a network need msgspec: pip install "coterie[network]"') from error

if TYPE_CHECKING:
    from cryptography import x509

REQUEST_SEAL = b"coterie request 1\n"
INVITATION_SEAL = b"coterie invitation 1\n"
#: No request, and no certificate, is longer.
MAX_REQUEST_BYTES = 50_000


class Request(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a peer asks the steward for: see :func:`read_request`."""

    format: Literal[1] = 1
    name: str
    endpoint: str | None
    csr: str
    key: PublicKey
    signature: bytes = b""

    def __post_init__(self) -> None:
        check_name(self.name)
        if self.endpoint is not None:
            split_endpoint(self.endpoint)


class Invitation(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What the steward answers: see :func:`read_invitation`."""

    format: Literal[1] = 1
    name: str
    charter: Charter
    ca: str
    certificate: str
    roster: bytes
    signature: bytes = b""

    def __post_init__(self) -> None:
        check_name(self.name)


class _Register(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What the steward remembers and rosters do not say."""

    format: Literal[1] = 1
    addresses: Annotated[int, Meta(ge=0)] = 0  # given so far, also to members that have left
    ca_key: str | None = None  # where it is, if not here
    relays: dict[str, bytes] = {}  # their signing keys


@dataclasses.dataclass(frozen=True)
class Group:
    """A group as its steward sees it: see :func:`load_group`."""

    folder: Path
    charter: Charter
    roster: Roster
    steward: SigningKey
    ca: x509.Certificate
    ca_key: AuthorityKey
    register: _Register


@dataclasses.dataclass(frozen=True)
class Membership:
    """What a peer knows after joining: see :func:`membership`. ``me`` is its own entry in the roster."""

    identity: Identity
    charter: Charter
    roster: Roster
    me: Member | Relay
    expires: datetime


class Newcomer(NamedTuple):
    """A peer to be enrolled: where its folder is to be, and with whom it is to be tied."""

    folder: Where
    name: str
    listen: str | None = None
    ties: Mapping[str, float] = {}  # weights by the names of members, or of those enrolled before it


# -- the steward -----------------------------------------------------------------------------------------------------


def create(folder: Where, *, ca: tuple[Where, Where] | None = None, **fields: Any) -> Charter:
    """A new group, of nobody yet, with a charter of these fields; `ca`: key and certificate of an authority to use."""
    from .tables import check_charter  # with pandas, which only the one who creates a group needs here

    steward = new_signing_key()
    charter = make_charter(**fields, steward=public_bytes(steward))
    check_charter(charter)
    where = Path(folder)
    kept: dict[Path, bytes] = {where / "steward.key": private_pem(steward)}
    if ca is None:
        ca_key, certificate = make_ca(f"coterie {charter.run}")
        kept[where / "ca.key"] = private_pem(ca_key)
        register = _Register()
    else:
        certificate = read_certificate(read_bounded(ca[1], limit=MAX_REQUEST_BYTES), f"the certificate {ca[1]}")
        check_ca(certificate, _authority_key(Path(ca[0])))
        register = _Register(ca_key=os.path.abspath(ca[0]))
    kept[where / "ca.crt"] = certificate_pem(certificate)
    kept[where / "group.json"] = to_json(register)
    kept[where / "charter.json"] = charter_json(charter)
    kept[where / "roster"] = sign_roster(Roster(charter.run, 1), steward)
    private_folder(where)
    write_new(kept, {"steward.key", "ca.key"}, "a group")
    return charter


def load_group(folder: Where) -> Group:
    """A group as its steward sees it."""
    where = Path(folder)
    if not (where / "group.json").is_file():
        raise IdentityError(f"{where} holds no group: there is no group.json in it")
    register = from_json(read_bounded(where / "group.json"), _Register, str(where / "group.json"))
    charter = read_charter(read_bounded(where / "charter.json"), str(where / "charter.json"))
    steward = read_key(where / "steward.key", SigningKey, "an Ed25519 key")
    if public_bytes(steward) != charter.steward:
        raise IdentityError("the steward's key is not the one of the charter")
    roster = read_roster(read_bounded(where / "roster"), charter, str(where / "roster"))
    ca = read_certificate(read_bounded(where / "ca.crt", limit=MAX_REQUEST_BYTES), str(where / "ca.crt"))
    ca_key = _authority_key(Path(register.ca_key or where / "ca.key"))
    check_ca(ca, ca_key)
    return Group(where, charter, roster, steward, ca, ca_key, register)


def _authority_key(path: Path) -> AuthorityKey:
    key: AuthorityKey = read_key(path, AuthorityKey, "an EC, RSA or Ed25519 key")
    return key


def invite(
    group: Where,
    request_file: Where,
    ties: Mapping[str, float] | None = None,
    relay: bool = False,
    *,
    replace: bool = False,
    days: int = MEMBER_DAYS,
    to: Where | None = None,
) -> Path:
    """Take a peer into a group: a certificate, the next roster, and the invitation, by default beside the request.

    Inviting a member again, with the same key, renews its certificate and its endpoint; it keeps its address and ties.
    Ties are weights by the names of other members, 0 for none; a relay has none, and no address. With `replace`, a peer
    with another key takes over the name and the ties of a member, but not its address.
    """
    source = Path(request_file)
    asked = read_request(read_bounded(source, limit=MAX_REQUEST_BYTES), str(source))
    with _steward_at(group) as office:
        roster, register = (_with_relay if relay else _with_member)(office, asked, ties or {}, replace)
        signed = sign_next(office, roster)
        content = to_json(invitation_to(office, asked, signed, days))
        path = source.with_name(f"{asked.name}.invitation") if to is None else Path(to)
        if path.is_dir():
            raise ParameterError(f"{path} is a folder: name the file to write the invitation to")
        # The invitation is on the disk before the roster, and gets its name after it: so there is never an invitation
        # of a version that the steward could give to another roster. An address that is lost on the way stays unused.
        with drafted(path, content) as draft:
            _keep(office, register, signed)
            rename(draft, path)
        return path


def enroll_all(group: Where, newcomers: Sequence[Newcomer], *, durable: bool = True) -> list[Membership]:
    """Identities, requests, invitations and joining at once, where steward and peers are on one machine.

    There is one new version of the roster. Not `durable`: for an experiment, which a crash of the machine may end.
    """
    with _steward_at(group) as office, ThreadPoolExecutor(8) as pool:  # it is mostly the disk that they wait for
        peers = list(pool.map(lambda new: Identity.make(new.folder, new.name, new.listen), newcomers))
        requests = list(pool.map(request_of, peers))
        next_roster, register = office.roster, office.register
        for asked, new in zip(requests, newcomers, strict=True):
            so_far = dataclasses.replace(office, roster=next_roster, register=register)
            next_roster, register = _with_member(so_far, asked, new.ties, replace=False)
        # One change, one version.
        signed = sign_next(office, msgspec.structs.replace(next_roster, version=office.roster.version + 1))
        _keep(office, register, signed)

        def accepted(peer: Identity, asked: Request) -> Membership:
            _accept(peer, invitation_to(office, asked, signed), f"the invitation of {peer.name}", durable)
            return membership(peer.folder)

        return list(pool.map(accepted, peers, requests))


def enroll(
    group: Where, folder: Where, name: str, listen: str | None = None, ties: Mapping[str, float] | None = None
) -> Membership:
    """The same of one peer."""
    return enroll_all(group, [Newcomer(folder, name, listen, ties or {})])[0]


def remove(group: Where, name: str) -> Roster:
    """Leave out a member or a relay from the next version of the roster.

    Its certificate stays good until it expires; but peers that have the roster listen to nothing that it says.
    """
    with _steward_at(group) as office:
        old = office.roster
        relays = any(one.name == name for one in old.relays)
        roster = old.without_relay(name) if relays else old.without_member(name)
        _keep(office, _counted(office), sign_next(office, roster))
        return roster


def tie(group: Where, a: str, b: str, weight: float = 1.0) -> Roster:
    """Tie two members in the next version of the roster. A weight of 0 is no tie."""
    with _steward_at(group) as office:
        one, other = (office.roster.by_name(name).address for name in (a, b))
        roster = office.roster.with_tie(one, other, _weight(b, weight))
        write_atomic(office.folder / "roster", sign_next(office, roster))
        return roster


def read_request(content: bytes, what: str = "the request") -> Request:
    """A peer's request, if both keys in it have signed it."""
    found = from_json(content, Request, what)
    check_seal(found, REQUEST_SEAL, found.key, what)
    read_csr(found.csr.encode(errors="replace"), found.name, found.key)
    return found


def invitation_to(office: Group, asked: Request, signed_roster: bytes, days: int = MEMBER_DAYS) -> Invitation:
    """The steward's answer to a request: a certificate, and a roster in which the peer is."""
    csr = read_csr(asked.csr.encode(), asked.name, asked.key)
    certificate = sign_csr(csr, office.ca_key, office.ca, name=asked.name, endpoint=asked.endpoint, days=days)
    invitation = Invitation(
        name=asked.name,
        charter=office.charter,
        ca=certificate_pem(office.ca).decode(),
        certificate=certificate_pem(certificate).decode(),
        roster=signed_roster,
    )
    return sealed(invitation, INVITATION_SEAL, office.steward)


def sign_next(office: Group, roster: Roster) -> bytes:
    """The next version, if a letter can carry it."""
    signed, most = sign_roster(roster, office.steward), office.charter.letter_bytes - OVERHEAD
    if len(signed) > most:
        raise ParameterError(
            f"a list of {len(roster.members)} members and {len(roster.ties)} ties takes {len(signed)} bytes, and "
            f"letters of this run carry {most}: letter_bytes={office.charter.letter_bytes}"
        )
    return signed


def _keep(office: Group, register: _Register, signed: bytes) -> None:
    write_atomic(office.folder / "group.json", to_json(register))
    write_atomic(office.folder / "roster", signed)


def _with_member(office: Group, asked: Request, ties: Mapping[str, float], replace: bool) -> tuple[Roster, _Register]:
    """The next roster, with a member that asks."""
    roster, register = office.roster, _counted(office)
    if any(one.name == asked.name for one in roster.relays):
        raise DataError(f"{asked.name!r} is a relay of this group: choose another name, or remove it first")
    old = next((one for one in roster.members if one.name == asked.name), None)
    _check_key(roster, register, asked)
    kept: dict[int, float] = {}
    if old is not None and old.key != asked.key:
        if not replace:
            raise _taken(asked.name)
        kept = roster.neighbours(old.address)
        # One change, one version.
        roster = msgspec.structs.replace(roster.without_member(old.name), version=roster.version)
        old = None
    address = register.addresses if old is None else old.address
    if old is None:
        register = msgspec.structs.replace(register, addresses=address + 1)
    for name, weight in ties.items():
        if name == asked.name:
            raise ParameterError(f"ties: {name!r} cannot be tied to itself")
        kept[roster.by_name(name).address] = _weight(name, weight)
    return roster.with_member(Member(asked.name, address, asked.key, asked.endpoint), kept), register


def _with_relay(office: Group, asked: Request, ties: Mapping[str, float], replace: bool) -> tuple[Roster, _Register]:
    """The next roster, with a relay that asks."""
    roster, register = office.roster, _counted(office)
    if ties:
        raise ParameterError(f"ties={dict(ties)!r}: a relay has no neighbours")
    if asked.endpoint is None:
        raise DataError(f"{asked.name!r} listens nowhere, so it cannot be a relay: make its identity with listen")
    if any(one.name == asked.name for one in roster.members):
        raise DataError(f"{asked.name!r} is a member of this group: choose another name, or remove it first")
    _check_key(roster, register, asked)
    here = any(one.name == asked.name for one in roster.relays)
    if here and register.relays.get(asked.name) != asked.key and not replace:
        raise _taken(asked.name)
    register = msgspec.structs.replace(register, relays={**register.relays, asked.name: asked.key})
    return roster.with_relay(Relay(asked.name, asked.endpoint)), register


def _check_key(roster: Roster, register: _Register, asked: Request) -> None:
    """Refuse the key of somebody else."""
    present = {one.name for one in roster.relays}
    owners = {one.key: one.name for one in roster.members}
    owners |= {key: name for name, key in register.relays.items() if name in present}
    owner = owners.get(asked.key, asked.name)
    if owner != asked.name:
        raise DataError(f"the request of {asked.name!r} is signed with the key of {owner!r}: one key, one name")


def _taken(name: str) -> DataError:
    return DataError(
        f"{name!r} is taken, by a peer with another key. If the peer has lost its key and is to be replaced by the one "
        "that asks, say so (replace=True); if not, somebody may want to pass for it"
    )


def _counted(office: Group) -> _Register:
    """The register, with every address counted: those of the roster, whatever happened to the file."""
    most = max((one.address + 1 for one in office.roster.members), default=0)
    return msgspec.structs.replace(office.register, addresses=max(office.register.addresses, most))


def _weight(name: str, weight: Any) -> float:
    try:
        found = float(weight)
    except (TypeError, ValueError):
        found = -1.0
    if not 0.0 <= found < float("inf"):
        raise ParameterError(f"the weight of the tie to {name}, {weight!r:.80}, must be a finite number >= 0")
    return found


@contextlib.contextmanager
def _steward_at(group: Where) -> Iterator[Group]:
    """The group in a folder, for one steward at a time."""
    where = Path(group)
    if not where.is_dir():
        raise IdentityError(f"{where} holds no group: there is no such folder")
    with locked(where):
        yield load_group(where)


# -- a peer ----------------------------------------------------------------------------------------------------------


def request(folder: Where) -> Path:
    """Write the request of a peer that has an identity, for the steward: ``<name>.request`` in its folder."""
    peer = Identity.load(folder)
    return write_atomic(peer.folder / f"{peer.name}.request", to_json(request_of(peer)))


def request_of(peer: Identity) -> Request:
    """What a peer asks the steward for, signed with both of its keys. Nothing in it is secret."""
    csr = make_csr(peer.tls, peer.name, peer.public).decode()
    return sealed(
        Request(name=peer.name, endpoint=peer.listen, csr=csr, key=peer.public), REQUEST_SEAL, peer.signing_key
    )


def read_invitation(content: bytes, what: str = "the invitation") -> Invitation:
    """An invitation that the steward of its charter has signed."""
    found = from_json(content, Invitation, what)
    check_seal(found, INVITATION_SEAL, found.charter.steward, what)
    return found


def join(folder: Where, invitation: Where, run: str | None = None) -> Membership:
    """Accept an invitation, or a renewed one; `run` is the one it must be for, as heard from the steward otherwise."""
    what = f"the invitation {os.fspath(invitation)}"
    peer, found = Identity.load(folder), read_invitation(read_bounded(invitation), what)
    if run is not None and found.charter.run != run:
        raise DataError(f"{what} is to run {found.charter.run}, and not to {run!r:.80}")
    _accept(peer, found, what)
    return membership(folder)


def _accept(peer: Identity, found: Invitation, what: str, durable: bool = True) -> None:
    """Keep what a signed invitation says, if all of it is right."""
    roster = read_roster(found.roster, found.charter, f"the roster in {what}")
    if found.name != peer.name:
        raise DataError(f"{what} is for {found.name!r}; this is {peer.name!r}")
    ca = read_certificate(found.ca.encode(errors="replace"), f"the authority's certificate in {what}")
    certificate = read_certificate(found.certificate.encode(errors="replace"), f"the certificate in {what}")
    check_certificate(certificate, ca, name=peer.name, key=peer.tls, endpoint=peer.listen)
    me = _own_entry(peer, roster, what)
    if me.endpoint != peer.listen:
        raise DataError(
            f"{what} says that {peer.name} listens at {me.endpoint}, and here it is {peer.listen}: give the steward a "
            "new request"
        )
    with locked(peer.folder):
        signed: bytes | None = found.roster
        if peer.roster.exists():
            signed = _update(peer, found, roster, certificate, what)
        else:
            _begin(peer, found.charter, what)
        write_atomic(peer.tls_certificate, certificate_pem(certificate), durable=durable)
        write_atomic(peer.ca_certificate, certificate_pem(ca), durable=durable)
        if signed is not None:
            # The roster comes last: a peer that has one has joined.
            write_atomic(peer.charter, charter_json(found.charter), durable=durable)
            write_atomic(peer.roster, signed, durable=durable)


def _begin(peer: Identity, charter: Charter, what: str) -> None:
    """Make all parts of a charter once, before it is accepted; and the ledger of a private peer.

    It has one from the day it joins: one that is missing later was lost, and may be spent.
    """
    from .work import check_parts, method_of  # with NumPy, which a peer that has joined does not need here

    try:
        check_parts(charter)
    except ParameterError as error:
        raise DataError(f"the charter in {what} cannot be used: {error}") from None
    if charter.privacy is not None:
        from ..privacy.ledger import Ledger

        Ledger(method_of(charter).plan, peer.folder / "ledger").close()


def _update(
    peer: Identity, found: Invitation, roster: Roster, certificate: x509.Certificate, what: str
) -> bytes | None:
    """The roster to go on with, if it is a new one."""
    charter = read_charter(read_bounded(peer.charter), str(peer.charter))
    if charter.run != found.charter.run:
        raise DataError(
            f"{peer.folder} has joined run {charter.run}, and {what} is to run {found.charter.run}: one folder, one "
            "run. Make another identity in another folder"
        )
    here = read_bounded(peer.roster)
    held = read_roster(here, charter, str(peer.roster))
    if newer(held, roster):
        return found.roster
    if held.version == roster.version:
        if here != found.roster:
            raise DataError(
                f"{what} has another roster of version {held.version} than {peer.roster}: ask the steward which one is "
                "right"
            )
        return None
    # Newer rosters get around without invitations; but an invitation whose certificate is older, too, is old.
    old = read_certificate(read_bounded(peer.tls_certificate), str(peer.tls_certificate))
    if certificate.not_valid_before_utc <= old.not_valid_before_utc:
        raise DataError(
            f"{what} is old: its roster is version {roster.version}, and {peer.roster} is version {held.version}"
        )
    _own_entry(peer, held, str(peer.roster))
    return None


def refresh(folder: Where, roster_file: Where) -> Roster:
    """Take a newer roster: the file ``roster`` of the group, or of another member."""
    peer = Identity.load(folder)
    with locked(peer.folder):
        charter, held = _joined(peer)
        what = f"the roster {os.fspath(roster_file)}"
        content = read_bounded(roster_file)
        roster = read_roster(content, charter, what)
        if not newer(held, roster):
            raise DataError(f"{what} is version {roster.version}; {peer.name} has version {held.version} already")
        old, new = _own_entry(peer, held, str(peer.roster)), _own_entry(peer, roster, what)
        if getattr(old, "address", None) != getattr(new, "address", None):
            raise DataError(f"{what} gives {peer.name} another address: it has to be invited again, in a new folder")
        write_atomic(peer.roster, content)
        return roster


def membership(folder: Where) -> Membership:
    """What a peer knows after joining, checked as a whole."""
    peer = Identity.load(folder)
    charter, roster = _joined(peer)
    ca = read_certificate(read_bounded(peer.ca_certificate), str(peer.ca_certificate))
    certificate = read_certificate(read_bounded(peer.tls_certificate), str(peer.tls_certificate))
    check_certificate(certificate, ca, name=peer.name, key=peer.tls, endpoint=peer.listen)
    me = _own_entry(peer, roster, str(peer.roster))
    return Membership(peer, charter, roster, me, certificate.not_valid_after_utc)


def _joined(peer: Identity) -> tuple[Charter, Roster]:
    if not peer.roster.exists():
        raise IdentityError(f"{peer.name} has not joined a group: there is no roster in {peer.folder}")
    charter = read_charter(read_bounded(peer.charter), str(peer.charter))
    return charter, read_roster(read_bounded(peer.roster), charter, str(peer.roster))


def _own_entry(peer: Identity, roster: Roster, what: str) -> Member | Relay:
    """What a roster says of a peer."""
    for relay in roster.relays:
        if relay.name == peer.name:
            return relay
    for member in roster.members:
        if member.name == peer.name:
            if member.key != peer.public:
                raise DataError(f"{what} has {peer.name!r} with another signing key: somebody else has that name")
            return member
    raise DataError(f"{what} leaves {peer.name!r} out: it is not a member, or no longer")
