"""How a group comes about: its admin creates it, peers ask to be in it, are invited, and join.

======================  ==============================================================================================
:func:`create`          the admin: a key that signs rosters, an authority, the charter, and a roster of nobody
:func:`request`         a peer: who it is, and where; signed with both of its keys. Nothing in it is secret
:func:`invite`          the admin: a certificate, and a new roster with the peer in it. Nothing in it is secret
:func:`join`            the peer: checks all of that, and keeps it
:func:`enroll`          request, invitation and joining at once, where peer and admin are on one machine
:func:`remove`,         the admin: a new roster. It is the file ``roster`` of the group, which any member can take
:func:`edge`             (:func:`refresh`) and pass on
======================  ==============================================================================================

What a peer believes hangs on one thing, the charter: it holds the admin's key, and the admin signs the invitation
and every roster. So the charter of a first invitation has to come from somebody one trusts; its run can be compared by
word of mouth.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import msgspec
from msgspec import Meta

from ..._files import Where, drafted, locked, private_folder, read_bounded, rename, write_atomic, write_new
from ...errors import DataError, IdentityError, ParameterError, RemovedError
from ..wire.packet import OVERHEAD
from . import identity as ids
from .charter import MAX_MESSAGE, Charter, charter_in, charter_json, make_charter
from .identity import MEMBER_DAYS, AuthorityKey, Identity, check_name, split_endpoint
from .records import PublicKey, read_json, to_json
from .roster import Fork, Member, Relay, Roster, described, read_roster, relation, roster_in, sign_roster, signers
from .signed import Signed, SigningKey

if TYPE_CHECKING:
    from cryptography import x509

#: No request, and no certificate, is longer.
MAX_REQUEST_BYTES = 50_000
#: Members that a newcomer of a group that pools is tied to, if nobody says.
USUAL_EDGES = 6


class Request(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a peer asks the admin for: see :func:`read_request`."""

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
    """What the admin answers: a certificate, and a roster that the peer is in."""

    format: Literal[1] = 1
    name: str
    charter: Charter
    ca: str
    certificate: str
    roster: bytes
    signature: bytes = b""

    def __post_init__(self) -> None:
        check_name(self.name)


def admins_of(record: Any) -> list[bytes]:
    """The keys that may sign a record with a charter and a list of members, which is checked by itself later."""
    try:
        allowed = signers(record.charter, read_roster(record.roster, record.charter))
    except DataError:
        allowed = {record.charter.admin}
    return sorted(allowed, key=lambda key: key != record.charter.admin)


REQUESTS = Signed(Request, b"coterie request 1\n", lambda asked: [asked.key])
#: Whom an error names beside the admin of a charter.
DELEGATED = ", or one with a delegation of it"
INVITATIONS = Signed(Invitation, b"coterie invitation 2\n", admins_of, DELEGATED)


class Register(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What the admin remembers and rosters do not say."""

    format: Literal[1] = 1
    addresses: Annotated[int, Meta(ge=0)] = 0  # given so far, also to members that have left
    ca_key: str | None = None  # where it is, if not here
    relays: dict[str, bytes] = {}  # their signing keys
    issued: dict[str, dict[str, int]] = {}  # certificates by name: serial numbers, and when they expire
    certificates: dict[str, bytes] = {}  # the newest of each member and relay, to be renewed

    def with_certificate(self, name: str, certificate: x509.Certificate) -> Register:
        """The register after a certificate was made: so it can be revoked by its serial number, and renewed."""
        now = time.time()
        known = {serial: ends for serial, ends in self.issued.get(name, {}).items() if ends > now}
        known[ids.serial_of(certificate)] = int(certificate.not_valid_after_utc.timestamp())
        newest = self.certificates | {name: ids.certificate_der(certificate)}
        return msgspec.structs.replace(self, issued=self.issued | {name: known}, certificates=newest)

    def revoking(self, roster: Roster, name: str) -> Roster:
        """The next roster, in which all certificates of a name that were issued so far are revoked."""
        return roster.with_revoked(self.issued.get(name, {}), time.time())


@dataclasses.dataclass(frozen=True)
class Group:
    """A group as its admin sees it: see :func:`load_group`."""

    folder: Path
    charter: Charter
    roster: Roster
    admin: SigningKey
    ca: x509.Certificate
    ca_key: AuthorityKey
    register: Register

    def signed(self, roster: Roster) -> bytes:
        """The next version, if a message can carry it."""
        signed, most = sign_roster(roster, self.admin), self.charter.message_bytes - OVERHEAD
        if len(signed) > most:
            raise ParameterError(
                f"a list of {len(roster.members)} members and {len(roster.edges)} edges takes {len(signed)} bytes, and "
                f"messages of this run carry {most}: use fewer edges, or agree on longer messages (coterie group amend "
                f"{self.folder} --set message_bytes={min(MAX_MESSAGE, 2 * self.charter.message_bytes)})"
            )
        return signed

    def keep(self, roster: Roster, signed: bytes | None = None, register: Register | None = None) -> Roster:
        """Keep the next version; first what the admin remembers, with every address counted that it has given."""
        signed, register = self.signed(roster) if signed is None else signed, register or self.register
        most = max(register.addresses, self.roster.given, roster.given)
        self.keep_register(msgspec.structs.replace(register, addresses=most))
        write_atomic(self.folder / "roster", signed)
        return roster

    def keep_register(self, register: Register) -> None:
        """What the admin remembers, where the list of members stays as it is."""
        write_atomic(self.folder / "group.json", to_json(register))


@dataclasses.dataclass(frozen=True)
class Membership:
    """What a peer knows after joining: see :func:`membership`. ``me`` is its own entry in the roster."""

    identity: Identity
    charter: Charter
    roster: Roster
    me: Member | Relay
    expires: datetime


#: What to say to a peer whose certificate is.
REVOKED = "the admin has revoked this peer's certificate. To be invited again, make a request with a new TLS key"


class Newcomer(NamedTuple):
    """A peer to be enrolled: where its folder is to be, and with whom it is to be tied."""

    folder: Where
    name: str
    listen: str | None = None
    edges: Mapping[str, float] = {}  # weights by the names of members, or of those enrolled before it


# -- the admin -----------------------------------------------------------------------------------------------------


def create(
    folder: Where, *, ca: tuple[Where, Where] | None = None, model: Where | None = None, **fields: Any
) -> Charter:
    """A new group, of nobody yet, with a charter of these fields; `ca`: key and certificate of an authority to use.

    `model`: a file that makes the model, for a group whose members bring it.
    """
    from ..model.tables import check_charter  # with pandas, which only the one who creates a group needs here

    where, admin = Path(folder), ids.new_signing_key()
    if model is not None:
        from .networks import described, load_model

        given = dict(fields.get("network") or {})
        parts = fields["features"] if fields.get("columns") is None else fields["columns"].parts
        width = len(parts) + bool(fields.get("intercept", False))
        fields["network"] = given | described(load_model(model), width, given.get("seed", 0))
    charter = make_charter(**fields, admin=ids.public_bytes(admin))
    check_charter(charter)
    kept = {where / "admin.key": ids.private_pem(admin)}
    if ca is None:
        ca_key, certificate = ids.make_ca(f"coterie {charter.run}")
        kept[where / "ca.key"] = ids.private_pem(ca_key)
        register = Register()
    else:
        content = read_bounded(ca[1], limit=MAX_REQUEST_BYTES)
        certificate = ids.read_certificate(content, f"the certificate {ca[1]}")
        ids.check_ca(certificate, _authority_key(Path(ca[0])))
        register = Register(ca_key=os.path.abspath(ca[0]))
    kept[where / "ca.crt"] = ids.certificate_pem(certificate)
    kept[where / "group.json"] = to_json(register)
    kept[where / "charter.json"] = charter_json(charter)
    kept[where / "roster"] = sign_roster(Roster(charter.run, 1), admin)
    private_folder(where)
    write_new(kept, {"admin.key", "ca.key"}, "a group")
    return charter


def load_group(folder: Where, *, signing: bool = True) -> Group:
    """A group as its admin sees it, who is to be one that may sign."""
    where = Path(folder)
    if not (where / "group.json").is_file():
        raise IdentityError(f"{where} holds no group: there is no group.json in it")
    register = read_json(where / "group.json", Register)
    charter = charter_in(where)
    admin = ids.read_key(where / "admin.key", SigningKey, "an Ed25519 key")
    roster = roster_in(where, charter)
    if signing:
        _check_admin(charter, roster, ids.public_bytes(admin))
    ca = ids.read_certificate(read_bounded(where / "ca.crt", limit=MAX_REQUEST_BYTES), str(where / "ca.crt"))
    ca_key = _authority_key(Path(register.ca_key or where / "ca.key"))
    ids.check_ca(ca, ca_key)
    return Group(where, charter, roster, admin, ca, ca_key, register)


def _check_admin(charter: Charter, roster: Roster, key: bytes) -> None:
    """Refuse a key that may not sign the next list."""
    allowed = signers(charter, roster, version=roster.version + 1)
    if key in allowed:
        return
    if key == charter.admin or any(delegation.key == key for delegation in roster.delegations):
        now = ", ".join(sorted(one[:4].hex() for one in allowed))
        raise IdentityError(f"this admin has handed over: who signs lists of members now is {now}")
    raise IdentityError("the admin's key is not the one of the charter, and has no delegation of it")


def _authority_key(path: Path) -> AuthorityKey:
    key: AuthorityKey = ids.read_key(path, AuthorityKey, "an EC, RSA or Ed25519 key")
    return key


def invite(
    group: Where,
    request_file: Where,
    edges: Mapping[str, float] | None = None,
    relay: bool = False,
    *,
    replace: bool = False,
    days: int = MEMBER_DAYS,
    to: Where | None = None,
) -> Path:
    """Take a peer into a group: a certificate, the next roster, and the invitation, by default beside the request.

    Inviting a member again, with the same key, renews its certificate and its endpoint; it keeps its address and edges.
    Edges are weights by the names of other members, 0 for none; a relay has none, and no address. With `replace`, a peer
    with another key takes over the name and the edges of a member, but not its address.
    """
    source = Path(request_file)
    asked = read_request(read_bounded(source, limit=MAX_REQUEST_BYTES), str(source))
    with admin_at(group) as loaded:
        roster, register = _with(loaded, asked, edges or {}, relay, replace)
        signed = loaded.signed(roster)
        invitation = invitation_to(loaded, asked, signed, days)
        path = source.with_name(f"{asked.name}.invitation") if to is None else Path(to)
        if path.is_dir():
            raise ParameterError(f"{path} is a folder: name the file to write the invitation to")
        # The invitation is on the disk before the roster, and gets its name after it: so there is never an invitation
        # of a version that the admin could give to another roster. An address that is lost on the way stays unused.
        with drafted(path, to_json(invitation)) as draft:
            loaded.keep(roster, signed, _with_issued(register, [invitation]))
            rename(draft, path)
        return path


def enroll_all(group: Where, newcomers: Sequence[Newcomer], *, durable: bool = True) -> list[Membership]:
    """Identities, requests, invitations and joining at once, where admin and peers are on one machine.

    There is one new version of the roster. Not `durable`: for an experiment, which a crash of the machine may end.
    """
    with admin_at(group) as loaded, ThreadPoolExecutor(8) as pool:  # it is mostly the disk that they wait for
        peers = list(pool.map(lambda new: Identity.make(new.folder, new.name, new.listen), newcomers))
        try:
            requests = list(pool.map(request_of, peers))
            next_roster, register = loaded.roster, loaded.register
            for asked, new in zip(requests, newcomers, strict=True):
                so_far = dataclasses.replace(loaded, roster=next_roster, register=register)
                next_roster, register = _with(so_far, asked, new.edges)
            next_roster = next_roster.after(loaded.roster)  # one change, one version
            signed = loaded.signed(next_roster)
            invitations = list(pool.map(lambda asked: invitation_to(loaded, asked, signed), requests))
        except BaseException:
            for peer in peers:
                peer.unmake()  # so that the same command, put right, finds no identity in its way
            raise
        loaded.keep(next_roster, signed, _with_issued(register, invitations))

        def accepted(peer: Identity, invitation: Invitation) -> Membership:
            _accept(peer, invitation, f"the invitation of {peer.name}", durable)
            return membership(peer.folder)

        return list(pool.map(accepted, peers, invitations))


def enroll(
    group: Where, folder: Where, name: str, listen: str | None = None, edges: Mapping[str, float] | None = None
) -> Membership:
    """The same of one peer."""
    return enroll_all(group, [Newcomer(folder, name, listen, edges or {})])[0]


def remove(group: Where, name: str, *, revoked: bool = False) -> Roster:
    """Leave out a member or a relay from the next version of the roster.

    From then on peers listen to nothing that it says, and when it comes back they show it the list, which it is not on.
    Its certificate is good for that and nothing else; if it is `revoked` nobody shows it anything. It is revoked at the
    latest when the name is given to another key.
    """
    with admin_at(group) as loaded:
        roster = loaded.roster.without(name)
        if revoked:
            roster = loaded.register.revoking(roster, name).after(loaded.roster)
        return loaded.keep(roster)


def revoke(group: Where, name: str, serial: str | None = None) -> Roster:
    """Revoke the certificates of a name, or one, in the next version of the roster, and remove nobody.

    A member that stays, and has lost its TLS key, makes a new one, and is invited again. Certificates that another
    admin has signed are known by their serial number alone.
    """
    with admin_at(group) as loaded:
        if serial is not None:
            number = serial.lower().replace(":", "").lstrip("0")
            until = int(loaded.ca.not_valid_after_utc.timestamp())
            return loaded.keep(loaded.roster.with_revoked({number: until}, time.time()))
        if not loaded.register.issued.get(name):
            raise DataError(f"no certificate of {name!r:.80} is known here: give its serial number")
        return loaded.keep(loaded.register.revoking(loaded.roster, name))


class Updated(NamedTuple):
    """What has come of :func:`update`: see there."""

    roster: Roster
    healed: bool  # whether there was a fork
    lost: list[str]  # members and relays of the branch that is void now, to be invited again


def update(group: Where, roster_file: Where) -> Updated:
    """Go on from a list that members hold: after a backup was put back, or when another admin has signed.

    If it continues the admin's own list, it takes its place. If neither continues the other, there is a fork, and the
    admin decides it: the next version continues the list that is given, and says that the admin's own is void.
    Peers of both branches take it over; but who is on the void one alone has to be invited again.
    """
    content, what = read_bounded(roster_file), f"the list {os.fspath(roster_file)}"
    with admin_at(group, signing=False) as loaded:
        mine, theirs = loaded.roster, read_roster(content, loaded.charter, what, held=loaded.roster)
        match relation(mine, theirs):
            case "newer":
                return Updated(loaded.keep(theirs, content), False, [])
            case "fork":
                _check_admin(loaded.charter, theirs, ids.public_bytes(loaded.admin))
                lost = [one.name for one in mine.everybody if one not in theirs.everybody]
                return Updated(loaded.keep(theirs.healing(mine)), True, lost)
        raise DataError(
            f"{what} is version {theirs.version}, and this group has version {mine.version}: nothing is new"
        )


def edge(group: Where, a: str, b: str, weight: float = 1.0) -> Roster:
    """Edge two members in the next version of the roster. A weight of 0 is no edge."""
    with admin_at(group) as loaded:
        one, other = (loaded.roster.by_name(name).address for name in (a, b))
        return loaded.keep(loaded.roster.with_edge(one, other, _weight(b, weight)))


def read_request(content: bytes, what: str = "the request") -> Request:
    """A peer's request, if both keys in it have signed it."""
    found = REQUESTS.read(content, what)
    ids.read_csr(found.csr.encode(errors="replace"), found.name, found.key)
    return found


def invitation_to(group: Group, asked: Request, signed_roster: bytes, days: int = MEMBER_DAYS) -> Invitation:
    """The admin's answer to a request: a certificate, and a roster in which the peer is."""
    csr = ids.read_csr(asked.csr.encode(), asked.name, asked.key)
    certificate = ids.sign_csr(csr, group.ca_key, group.ca, name=asked.name, endpoint=asked.endpoint, days=days)
    invitation = Invitation(
        name=asked.name,
        charter=group.charter,
        ca=ids.certificate_pem(group.ca).decode(),
        certificate=ids.certificate_pem(certificate).decode(),
        roster=signed_roster,
    )
    return INVITATIONS.sign(invitation, group.admin)


def _with_issued(register: Register, invitations: Sequence[Invitation]) -> Register:
    for one in invitations:
        register = register.with_certificate(one.name, ids.read_certificate(one.certificate.encode()))
    return register


def _with(
    group: Group, asked: Request, edges: Mapping[str, float], relay: bool = False, replace: bool = False
) -> tuple[Roster, Register]:
    """The next roster, with a member or a relay that asks."""
    roster, register, name = group.roster, group.register, asked.name
    if relay and edges:
        raise ParameterError(f"edges={dict(edges)!r}: a relay has no neighbours")
    if relay and asked.endpoint is None:
        raise DataError(f"{name!r} listens nowhere, so it cannot be a relay: make its identity with listen")
    old = roster.named(name)
    if old is not None and isinstance(old, Relay) != relay:
        other = "member" if relay else "relay"
        raise DataError(f"{name!r} is a {other} of this group: choose another name, or remove it first")
    keys = {one.key: one.name for one in roster.members}
    keys |= {register.relays[one.name]: one.name for one in roster.relays if one.name in register.relays}
    if keys.get(asked.key, name) != name:
        raise DataError(f"the request of {name!r} is signed with the key of {keys[asked.key]!r}: one key, one name")
    known = old.key if isinstance(old, Member) else register.relays.get(name) if relay else None
    kept: dict[int, float] = {}
    if known != asked.key:
        if old is not None and not replace:
            raise DataError(
                f"{name!r} is taken, by a peer with another key. If the peer has lost its key and is to be replaced by "
                "the one that asks, say so (--replace, in Python replace=True); if not, somebody may want to pass for "
                "it"
            )
        if isinstance(old, Member):
            kept = roster.neighbours(old.address)
            roster, old = roster.without(name), None
        roster = register.revoking(roster, name)  # who had the name before is not to pass for it
    if asked.endpoint is not None and relay:
        register = msgspec.structs.replace(register, relays={**register.relays, name: asked.key})
        return roster.with_relay(Relay(name, asked.endpoint)).after(group.roster), register
    address = old.address if isinstance(old, Member) else max(register.addresses, group.roster.given)
    if not edges and not kept and old is None and group.charter.objective == "pooling":
        kept = usual_edges(roster, name)
    for other, weight in edges.items():
        if other == name:
            raise ParameterError(f"edges: {name!r} cannot be tied to itself")
        kept[roster.by_name(other).address] = _weight(other, weight)
    member = Member(name, address, asked.key, asked.endpoint)
    return roster.with_member(member, kept).after(group.roster), register  # one change, one version


def usual_edges(roster: Roster, name: str) -> dict[int, float]:
    """With whom a newcomer is tied if nobody says: half of them have few edges, half are drawn by their names.

    Only the former would make a long chain of those who joined one after the other.
    """
    others = [one for one in roster.members if one.name != name]
    few = sorted(others, key=lambda one: (len(roster.neighbours(one.address)), one.address))[: USUAL_EDGES // 2]
    drawn = [one for one in others if one not in few]
    drawn.sort(key=lambda one: hashlib.sha256(f"{name}\n{one.name}".encode()).digest())
    return dict.fromkeys((one.address for one in [*few, *drawn][:USUAL_EDGES]), 1.0)


def _weight(name: str, weight: Any) -> float:
    try:
        found = float(weight)
    except (TypeError, ValueError):
        found = -1.0
    if not 0.0 <= found < float("inf"):
        raise ParameterError(f"the weight of the edge to {name}, {weight!r:.80}, must be a finite number >= 0")
    return found


@contextlib.contextmanager
def admin_at(group: Where, *, signing: bool = True) -> Iterator[Group]:
    """The group in a folder, for one admin at a time."""
    where = Path(group)
    if not where.is_dir():
        raise IdentityError(f"{where} holds no group: there is no such folder")
    with locked(where):
        yield load_group(where, signing=signing)


# -- a peer ----------------------------------------------------------------------------------------------------------


def request(folder: Where, *, new_tls_key: bool = False) -> Path:
    """Write the request of a peer that has an identity, for the admin: ``<name>.request`` in its folder.

    With a new TLS key it cannot run before it is invited again: its certificate is of the old one.
    """
    peer = Identity.load(folder)
    if new_tls_key:
        peer = peer.rekey()
    return write_atomic(peer.folder / f"{peer.name}.request", to_json(request_of(peer)))


def request_of(peer: Identity) -> Request:
    """What a peer asks the admin for, signed with both of its keys. Nothing in it is secret."""
    csr = ids.make_csr(peer.tls, peer.name, peer.public).decode()
    return REQUESTS.sign(Request(name=peer.name, endpoint=peer.listen, csr=csr, key=peer.public), peer.signing_key)


def join(folder: Where, invitation: Where, run: str | None = None) -> Membership:
    """Accept an invitation, or a renewed one; `run` is the one it must be for, as heard from the admin otherwise."""
    what = f"the invitation {os.fspath(invitation)}"
    peer, found = Identity.load(folder), INVITATIONS.read(read_bounded(invitation), what)
    if run is not None and found.charter.run != run:
        raise DataError(f"{what} is to run {found.charter.run}, and not to {run!r:.80}")
    _accept(peer, found, what)
    return membership(folder)


def _accept(peer: Identity, found: Invitation, what: str, durable: bool = True) -> None:
    """Keep what a signed invitation says, if all of it is right."""
    roster = read_roster(found.roster, found.charter, f"the roster in {what}")
    if found.name != peer.name:
        raise DataError(f"{what} is for {found.name!r}; this is {peer.name!r}")
    ca = ids.read_certificate(found.ca.encode(errors="replace"), f"the authority's certificate in {what}")
    certificate = ids.read_certificate(found.certificate.encode(errors="replace"), f"the certificate in {what}")
    ids.check_certificate(certificate, ca, name=peer.name, key=peer.tls, endpoint=peer.listen)
    me = _own_entry(peer, roster, what)
    if me.endpoint != peer.listen:
        raise DataError(
            f"{what} says that {peer.name} listens at {me.endpoint}, and here it is {peer.listen}: give the admin a "
            "new request"
        )
    with locked(peer.folder):
        signed: bytes | None = found.roster
        if (peer.folder / "roster").exists():
            signed = _update(peer, found, roster, certificate, what)
        else:
            _begin(peer, found.charter, what)
        newest = roster if signed is not None else _joined(peer)[1]
        write_atomic(peer.folder / "tls.crt", ids.certificate_pem(certificate), durable=durable)
        write_atomic(peer.folder / "ca.crt", authorities_pem(newest, ids.certificate_pem(ca)), durable=durable)
        if signed is not None:
            # The roster comes last: a peer that has one has joined.
            write_atomic(peer.folder / "charter.json", charter_json(found.charter), durable=durable)
            write_atomic(peer.folder / "roster", signed, durable=durable)


def check_usable(charter: Charter, what: str) -> None:
    """Make all parts of a charter once, before it is accepted."""
    from ..model.work import check_parts  # with NumPy, which a peer that has joined does not need here

    try:
        check_parts(charter)
    except ParameterError as error:
        raise DataError(f"{what} cannot be used with this version of coterie: {error}") from None


def _begin(peer: Identity, charter: Charter, what: str) -> None:
    """Check a charter, and make the ledger of a private peer.

    It has one from the day it joins: one that is missing later was lost, and may be spent.
    """
    check_usable(charter, f"the charter in {what}")
    if charter.privacy is not None:
        from ...privacy.ledger import Ledger
        from ..model.work import method_of

        Ledger(method_of(charter).plan, peer.folder / "ledger").close()


def _update(
    peer: Identity, found: Invitation, roster: Roster, certificate: x509.Certificate, what: str
) -> bytes | None:
    """The roster to go on with, if it is a new one."""
    charter, path = charter_in(peer.folder), peer.folder / "roster"
    if charter.run != found.charter.run:
        if found.charter.amends is not None and found.charter.admin == charter.admin:
            raise DataError(
                f"{peer.folder} has joined run {charter.run}, and {what} is to a later run of the same group: take "
                f"over the admin's announcements (coterie peer update {peer.folder} CLUB/announcements), and then run: "
                f"coterie peer accept {peer.folder}"
            )
        raise DataError(
            f"{peer.folder} has joined run {charter.run}, and {what} is to run {found.charter.run}: one folder, one "
            "run. Make another identity in another folder"
        )
    held = roster_in(peer.folder, charter)
    read_roster(found.roster, charter, f"the roster in {what}", held)  # not of an admin that has handed over
    word = _relation(peer, charter, held, roster, found.roster, what)
    if word in ("newer", "same"):
        return found.roster if word == "newer" else None
    # Newer rosters get around without invitations; but an invitation whose certificate is older, too, is old.
    if certificate.not_valid_before_utc <= peer.certificate.not_valid_before_utc:
        raise DataError(f"{what} is old: its roster is version {roster.version}, and {path} is version {held.version}")
    _own_entry(peer, held, str(path))
    return None


def _relation(peer: Identity, charter: Charter, held: Roster, new: Roster, signed: bytes, what: str) -> str:
    """What another list is to the one that a peer holds, if they are no fork."""
    word = relation(held, new)
    if word == "fork":
        raise DataError(f"{what}: {described(Fork(read_bounded(peer.folder / 'roster'), signed), charter)}")
    return word


def refresh(folder: Where, roster_file: Where) -> Roster:
    """Take a newer roster: the file ``roster`` of the group, or of another member.

    One that leaves this peer out is kept, too, before a RemovedError says so.
    """
    peer = Identity.load(folder)
    with locked(peer.folder):
        charter, held = _joined(peer)
        what = f"the roster {os.fspath(roster_file)}"
        content = read_bounded(roster_file)
        roster = read_roster(content, charter, what, held)
        if _relation(peer, charter, held, roster, content, what) != "newer":
            raise DataError(f"{what} is version {roster.version}; {peer.name} has version {held.version} already")
        old = _own_entry(peer, held, str(peer.folder / "roster"), RemovedError)
        try:
            _own_entry(peer, roster, what, RemovedError, old)
        except RemovedError:
            write_atomic(peer.folder / "roster", content)
            raise
        keep_authorities(peer.folder, roster)
        write_atomic(peer.folder / "roster", content)
        return roster


def is_revoked(folder: Path, roster: Roster) -> bool:
    """Whether a list of members revokes the own certificate of a peer's folder."""
    path = folder / "tls.crt"
    return bool(roster.revoked) and path.exists() and ids.serial_of(ids.read_authorities(path)[0]) in roster.revoked


def authorities_pem(roster: Roster, brought: bytes) -> bytes:
    """What ``ca.crt`` has to be, of a list of members and the authority that an invitation has brought."""
    return "".join(roster.authorities).encode() if roster.authorities else brought


def keep_authorities(folder: Path, roster: Roster) -> None:
    """Let ``ca.crt`` be what a list of members says; before the list is kept, which is looked at once."""
    path, wanted = folder / "ca.crt", authorities_pem(roster, b"")
    if wanted and not (path.exists() and read_bounded(path) == wanted):
        write_atomic(path, wanted)


def membership(folder: Where) -> Membership:
    """What a peer knows after joining, checked as a whole; a RemovedError if it is no member any more."""
    peer = Identity.load(folder)
    charter, roster = _joined(peer)
    me = _own_entry(peer, roster, str(peer.folder / "roster"), RemovedError)
    certificate = peer.certificate
    ca = ids.issuer_of(certificate, ids.read_authorities(peer.folder / "ca.crt"))
    ids.check_certificate(certificate, ca, name=peer.name, key=peer.tls, endpoint=peer.listen)
    if ids.serial_of(certificate) in roster.revoked:
        raise IdentityError(f"{REVOKED}: coterie group request {peer.folder} --new-tls-key")
    return Membership(peer, charter, roster, me, certificate.not_valid_after_utc)


def _joined(peer: Identity) -> tuple[Charter, Roster]:
    if not (peer.folder / "roster").exists():
        raise IdentityError(f"{peer.name} has not joined a group: there is no roster in {peer.folder}")
    charter = charter_in(peer.folder)
    return charter, roster_in(peer.folder, charter)


def _own_entry(
    peer: Identity,
    roster: Roster,
    what: str,
    refusal: type[DataError | RemovedError] = DataError,
    before: Member | Relay | None = None,
) -> Member | Relay:
    """What a roster says of a peer, which keeps the address that it has had `before`."""
    me = roster.named(peer.name)
    if isinstance(me, Member) and me.key != peer.public:
        raise refusal(f"{what} has {peer.name!r} with another signing key: somebody else has that name")
    if me is not None:
        if before is not None and getattr(before, "address", None) != getattr(me, "address", None):
            raise DataError(f"{what} gives {peer.name} another address: it has to be invited again, in a new folder")
        return me
    raise refusal(
        f"{what} leaves {peer.name!r} out: it is not a member, or the admin has removed it from the group "
        f"(version {roster.version}). To take part it has to be invited, or invited again"
    )
