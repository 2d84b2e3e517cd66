"""Creating a group, and inviting, joining, removing and revoking its members.

======================  ==============================================================================================
:func:`create`          the admin: makes a signing key, an authority, the charter, and a roster without members
:func:`request`         a peer: writes its name and endpoint, signed with both of its keys. Nothing in it is secret
:func:`invite`          the admin: signs a certificate, and a roster with the peer. Nothing in them is secret
:func:`join`            the peer: checks the invitation, and keeps its certificate, charter and roster
:func:`enroll`          request, invite and join in one step, where peer and admin are on one machine
:func:`remove`,         the admin: signs a new roster, the file ``roster`` of the group, which any member can take
:func:`edge`             (:func:`refresh`) and pass on
======================  ==============================================================================================

A peer trusts the charter: it holds the admin's key, and the admin signs the invitation and every roster. So the charter
of a first invitation has to come from a trusted person. Its run id can be compared by phone or in person.
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
from ..wire.packet import OVERHEAD_BYTES
from . import identity as ids
from .charter import MAX_MESSAGE_BYTES, Charter, charter_in, charter_json, make_charter
from .identity import MEMBER_DAYS, AuthorityKey, Identity, check_name, split_endpoint
from .records import PublicKey, read_json, to_json
from .roster import Fork, Member, Relay, Roster, described, read_roster, relation, roster_in, sign_roster, signers
from .signed import Signed, SigningKey

if TYPE_CHECKING:
    from cryptography import x509

#: Maximal bytes of a request, and of a certificate.
MAX_REQUEST_BYTES = 50_000
#: Number of edges that a new member of a pooling group gets by default.
USUAL_EDGES = 6


class Request(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A peer's request to be invited: see :func:`read_request`."""

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
    """The admin's answer to a request: a certificate, and a roster that lists the peer."""

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
    """Return the keys that may sign a record with a charter and a roster. The record itself is checked later."""
    try:
        allowed = signers(record.charter, read_roster(record.roster, record.charter))
    except DataError:
        allowed = {record.charter.admin}
    return sorted(allowed, key=lambda key: key != record.charter.admin)


REQUESTS = Signed(Request, b"coterie request 1\n", lambda asked: [asked.key])
#: Names the signers beside the admin of a charter, in error messages.
DELEGATED = ", or one with a delegation of it"
INVITATIONS = Signed(Invitation, b"coterie invitation 2\n", admins_of, DELEGATED)


class Register(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What the admin remembers beyond the roster."""

    format: Literal[1] = 1
    addresses: Annotated[int, Meta(ge=0)] = 0  # number of addresses given so far, also to members that have left
    ca_key: str | None = None  # path of the authority's key, if it is in another folder
    relays: dict[str, bytes] = {}  # their signing keys
    issued: dict[str, dict[str, int]] = {}  # of each name: serial numbers and expiry times of its certificates
    certificates: dict[str, bytes] = {}  # the newest certificate of each member and relay, to be renewed

    def with_certificate(self, name: str, certificate: x509.Certificate) -> Register:
        """Return the register with one more certificate, so that the certificate can be revoked and renewed."""
        now = time.time()
        known = {serial: ends for serial, ends in self.issued.get(name, {}).items() if ends > now}
        known[ids.serial_of(certificate)] = int(certificate.not_valid_after_utc.timestamp())
        newest = self.certificates | {name: ids.certificate_der(certificate)}
        return msgspec.structs.replace(self, issued=self.issued | {name: known}, certificates=newest)

    def revoking(self, roster: Roster, name: str) -> Roster:
        """Return the next roster, which revokes all certificates issued to a name so far."""
        return roster.with_revoked(self.issued.get(name, {}), time.time())


@dataclasses.dataclass(frozen=True)
class Group:
    """A group with the admin's keys: see :func:`load_group`."""

    folder: Path
    charter: Charter
    roster: Roster
    admin: SigningKey
    ca: x509.Certificate
    ca_key: AuthorityKey
    register: Register

    def signed(self, roster: Roster) -> bytes:
        """Sign the next roster. Raise a ParameterError if no message could carry the roster."""
        signed, most = sign_roster(roster, self.admin), self.charter.message_bytes - OVERHEAD_BYTES
        if len(signed) > most:
            raise ParameterError(
                f"a roster of {len(roster.members)} members and {len(roster.edges)} edges takes {len(signed)} bytes, "
                f"and messages of this run carry {most}: use fewer edges, or agree on longer messages (coterie group "
                f"amend {self.folder} --set message_bytes={min(MAX_MESSAGE_BYTES, 2 * self.charter.message_bytes)})"
            )
        return signed

    def keep(self, roster: Roster, signed: bytes | None = None, register: Register | None = None) -> Roster:
        """Write the register, with the number of addresses given so far, and then the next roster."""
        signed, register = self.signed(roster) if signed is None else signed, register or self.register
        most = max(register.addresses, self.roster.given, roster.given)
        self.keep_register(msgspec.structs.replace(register, addresses=most))
        write_atomic(self.folder / "roster", signed)
        return roster

    def keep_register(self, register: Register) -> None:
        """Write the register only, where the roster stays as it is."""
        write_atomic(self.folder / "group.json", to_json(register))


@dataclasses.dataclass(frozen=True)
class Membership:
    """What a peer knows after joining: see :func:`membership`. ``me`` is the peer's own entry in the roster."""

    identity: Identity
    charter: Charter
    roster: Roster
    me: Member | Relay
    expires: datetime


#: Message for a peer whose certificate is revoked.
REVOKED = "the admin has revoked this peer's certificate. To be invited again, make a request with a new TLS key"


class Newcomer(NamedTuple):
    """A peer to be enrolled: its folder, its name, its endpoint and its edges."""

    folder: Where
    name: str
    listen: str | None = None
    edges: Mapping[str, float] = {}  # weights by the names of members, or of newcomers earlier in the same list


# -- the admin -----------------------------------------------------------------------------------------------------


def create(
    folder: Where, *, ca: tuple[Where, Where] | None = None, model: Where | None = None, **fields: Any
) -> Charter:
    """Create a group without members, with a charter of these fields.

    `ca` gives the files of an authority's key and certificate to use. `model` is a file that makes the model, for a
    group whose members bring their own model.
    """
    from ..model.tables import check_charter  # needs pandas, which only `create` imports

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
    """Load a group with the admin's keys. With `signing`, refuse an admin that may not sign the next roster."""
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
    """Refuse a key that may not sign the next roster."""
    allowed = signers(charter, roster, version=roster.version + 1)
    if key in allowed:
        return
    if key == charter.admin or any(delegation.key == key for delegation in roster.delegations):
        now = ", ".join(sorted(one[:4].hex() for one in allowed))
        raise IdentityError(f"this admin has handed over: rosters are signed by {now} now")
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
    """Take a peer into a group: write a certificate, the next roster, and the invitation, by default beside the
    request.

    Inviting a member again, with the same key, renews its certificate and its endpoint, and keeps its address and
    edges. Edges are weights by the names of other members; a weight of 0 removes an edge. A relay has no edges and no
    address. With `replace`, a peer with another key takes over the name and the edges of a member, but not the member's
    address.
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
        # The draft of the invitation is on disk before the roster, and is renamed after it: so the admin never signs
        # two rosters of one version. A crash in between wastes an address.
        with drafted(path, to_json(invitation)) as draft:
            loaded.keep(roster, signed, _with_issued(register, [invitation]))
            rename(draft, path)
        return path


def enroll_all(group: Where, newcomers: Sequence[Newcomer], *, durable: bool = True) -> list[Membership]:
    """Make identities, requests and invitations and join, where admin and peers are on one machine.

    All newcomers enter in one new version of the roster. Without `durable`, files are not synced to disk, as in an
    experiment that need not survive a crash of the machine.
    """
    with admin_at(group) as loaded, ThreadPoolExecutor(8) as pool:  # threads wait mostly for the disk
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
                peer.unmake()  # so that the corrected command does not find an identity already there
            raise
        loaded.keep(next_roster, signed, _with_issued(register, invitations))

        def accepted(peer: Identity, invitation: Invitation) -> Membership:
            _accept(peer, invitation, f"the invitation of {peer.name}", durable)
            return membership(peer.folder)

        return list(pool.map(accepted, peers, invitations))


def enroll(
    group: Where, folder: Where, name: str, listen: str | None = None, edges: Mapping[str, float] | None = None
) -> Membership:
    """Enrol one peer: see :func:`enroll_all`."""
    return enroll_all(group, [Newcomer(folder, name, listen, edges or {})])[0]


def remove(group: Where, name: str, *, revoked: bool = False) -> Roster:
    """Leave a member or a relay out of the next version of the roster.

    From then on peers ignore its messages, and show it the new roster when it connects. Its certificate still lets it
    connect for that; if it is `revoked`, no peer accepts the connection. The certificate is revoked at the latest when
    the name is given to another key.
    """
    with admin_at(group) as loaded:
        roster = loaded.roster.without(name)
        if revoked:
            roster = loaded.register.revoking(roster, name).after(loaded.roster)
        return loaded.keep(roster)


def revoke(group: Where, name: str, serial: str | None = None) -> Roster:
    """Revoke the certificates of a name, or one by its serial number, in the next version of the roster.

    No member is removed. A member that has lost its TLS key makes a new one, and is invited again. A certificate that
    another admin has signed can be revoked by its serial number only.
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
    """Result of :func:`update`."""

    roster: Roster
    healed: bool  # whether there was a fork
    lost: list[str]  # members and relays that only the void branch has, to be invited again


def update(group: Where, roster_file: Where) -> Updated:
    """Take over a roster that members hold: after a backup was restored, or when another admin has signed.

    A roster that continues the admin's own one replaces it. If neither continues the other, there is a fork, which the
    admin resolves: the next version continues the given roster and declares the admin's own one void. Peers of both
    branches take over the next version. Members that only the void branch has must be invited again.
    """
    content, what = read_bounded(roster_file), f"the roster {os.fspath(roster_file)}"
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
            f"{what} is version {theirs.version}, and this group has version {mine.version}: there is nothing to update"
        )


def edge(group: Where, a: str, b: str, weight: float = 1.0) -> Roster:
    """Set the weight of an edge between two members in the next version of the roster. A weight of 0 removes it."""
    with admin_at(group) as loaded:
        one, other = (loaded.roster.by_name(name).address for name in (a, b))
        return loaded.keep(loaded.roster.with_edge(one, other, _weight(b, weight)))


def read_request(content: bytes, what: str = "the request") -> Request:
    """Read a peer's request. Refuse a request that is not signed with both keys in it."""
    found = REQUESTS.read(content, what)
    ids.read_csr(found.csr.encode(errors="replace"), found.name, found.key)
    return found


def invitation_to(group: Group, asked: Request, signed_roster: bytes, days: int = MEMBER_DAYS) -> Invitation:
    """Return the admin's signed answer to a request: a certificate, and a roster that lists the peer."""
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
    """Return the next roster and register, with the member or relay that asks."""
    roster, register, name = group.roster, group.register, asked.name
    if relay and edges:
        raise ParameterError(f"edges={dict(edges)!r}: a relay has no neighbours")
    if relay and asked.endpoint is None:
        raise DataError(
            f"{name!r} has no endpoint to listen at, so it cannot be a relay: make its identity with listen"
        )
    old = roster.named(name)
    if old is not None and isinstance(old, Relay) != relay:
        other = "member" if relay else "relay"
        raise DataError(f"{name!r} is a {other} of this group: choose another name, or remove it first")
    keys = {one.key: one.name for one in roster.members}
    keys |= {register.relays[one.name]: one.name for one in roster.relays if one.name in register.relays}
    if keys.get(asked.key, name) != name:
        raise DataError(
            f"the request of {name!r} is signed with the key of {keys[asked.key]!r}: a key can have one name only"
        )
    known = old.key if isinstance(old, Member) else register.relays.get(name) if relay else None
    kept: dict[int, float] = {}
    if known != asked.key:
        if old is not None and not replace:
            raise DataError(
                f"{name!r} is taken, by a peer with another key. If that peer has lost its key, and the new "
                "one is to replace it, give --replace (in Python replace=True). If not, the request may be forged"
            )
        if isinstance(old, Member):
            kept = roster.neighbours(old.address)
            roster, old = roster.without(name), None
        roster = register.revoking(roster, name)  # the previous owner of the name must not pass for the new one
    if asked.endpoint is not None and relay:
        register = msgspec.structs.replace(register, relays={**register.relays, name: asked.key})
        return roster.with_relay(Relay(name, asked.endpoint)).after(group.roster), register
    address = old.address if isinstance(old, Member) else max(register.addresses, group.roster.given)
    if not edges and not kept and old is None and group.charter.objective == "pooling":
        kept = usual_edges(roster, name)
    for other, weight in edges.items():
        if other == name:
            raise ParameterError(f"edges: {name!r} cannot have an edge to itself")
        kept[roster.by_name(other).address] = _weight(other, weight)
    member = Member(name, address, asked.key, asked.endpoint)
    return roster.with_member(member, kept).after(group.roster), register  # one change, one version


def usual_edges(roster: Roster, name: str) -> dict[int, float]:
    """Return the default edges of a new member: half to members with the fewest edges, half drawn by a hash of the
    names.

    With the first half alone, members that join one after another would form a long chain.
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
    """Load the group in a folder, and lock the folder against another admin command."""
    where = Path(group)
    if not where.is_dir():
        raise IdentityError(f"{where} holds no group: there is no such folder")
    with locked(where):
        yield load_group(where, signing=signing)


# -- a peer ----------------------------------------------------------------------------------------------------------


def request(folder: Where, *, new_tls_key: bool = False) -> Path:
    """Write a peer's request to the admin, ``<name>.request`` in its folder.

    With a new TLS key the peer cannot run until it is invited again, because its certificate is for the old key.
    """
    peer = Identity.load(folder)
    if new_tls_key:
        peer = peer.rekey()
    return write_atomic(peer.folder / f"{peer.name}.request", to_json(request_of(peer)))


def request_of(peer: Identity) -> Request:
    """Return a peer's request to the admin, signed with both of the peer's keys. Nothing in it is secret."""
    csr = ids.make_csr(peer.tls, peer.name, peer.public).decode()
    return REQUESTS.sign(Request(name=peer.name, endpoint=peer.listen, csr=csr, key=peer.public), peer.signing_key)


def join(folder: Where, invitation: Where, run: str | None = None) -> Membership:
    """Accept an invitation, or a renewed one. `run` is the expected run id, as the admin has told it by other means."""
    what = f"the invitation {os.fspath(invitation)}"
    peer, found = Identity.load(folder), INVITATIONS.read(read_bounded(invitation), what)
    if run is not None and found.charter.run != run:
        raise DataError(f"{what} is to run {found.charter.run}, and not to {run!r:.80}")
    _accept(peer, found, what)
    return membership(folder)


def _accept(peer: Identity, found: Invitation, what: str, durable: bool = True) -> None:
    """Check a signed invitation, and write its charter, roster and certificate."""
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
            # The roster is written last: a peer with a roster has joined.
            write_atomic(peer.folder / "charter.json", charter_json(found.charter), durable=durable)
            write_atomic(peer.folder / "roster", signed, durable=durable)


def check_usable(charter: Charter, what: str) -> None:
    """Refuse a charter with a part that this version of coterie cannot make."""
    from ..model.work import check_parts  # needs NumPy, which a peer that has joined does not need here

    try:
        check_parts(charter)
    except ParameterError as error:
        raise DataError(f"{what} cannot be used with this version of coterie: {error}") from None


def _begin(peer: Identity, charter: Charter, what: str) -> None:
    """Check a charter, and make the ledger of a private peer.

    A private peer has a ledger from the day it joins, so a ledger that is missing later was lost, and its budget may be
    spent.
    """
    check_usable(charter, f"the charter in {what}")
    if charter.privacy is not None:
        from ...privacy.ledger import Ledger
        from ..model.work import method_of

        Ledger(method_of(charter).plan, peer.folder / "ledger").close()


def _update(
    peer: Identity, found: Invitation, roster: Roster, certificate: x509.Certificate, what: str
) -> bytes | None:
    """Return the invitation's signed roster if it is newer than the one held, or None."""
    charter, path = charter_in(peer.folder), peer.folder / "roster"
    if charter.run != found.charter.run:
        if found.charter.amends is not None and found.charter.admin == charter.admin:
            raise DataError(
                f"{peer.folder} has joined run {charter.run}, and {what} is to a later run of the same group: take "
                f"over the admin's announcements (coterie peer update {peer.folder} CLUB/announcements), and then run: "
                f"coterie peer accept {peer.folder}"
            )
        raise DataError(
            f"{peer.folder} has joined run {charter.run}, and {what} is to run {found.charter.run}: a folder can "
            "hold one run only. Make another identity in another folder"
        )
    held = roster_in(peer.folder, charter)
    # Refuse a roster that is signed by an admin that has handed over.
    read_roster(found.roster, charter, f"the roster in {what}", held)
    word = _relation(peer, charter, held, roster, found.roster, what)
    if word in ("newer", "same"):
        return found.roster if word == "newer" else None
    # Newer rosters also arrive without invitations; an invitation is old if its certificate is older, too.
    if certificate.not_valid_before_utc <= peer.certificate.not_valid_before_utc:
        raise DataError(f"{what} is old: its roster is version {roster.version}, and {path} is version {held.version}")
    _own_entry(peer, held, str(path))
    return None


def _relation(peer: Identity, charter: Charter, held: Roster, new: Roster, signed: bytes, what: str) -> str:
    """Return the relation of another roster to the one that a peer holds. Refuse a fork."""
    word = relation(held, new)
    if word == "fork":
        raise DataError(f"{what}: {described(Fork(read_bounded(peer.folder / 'roster'), signed), charter)}")
    return word


def refresh(folder: Where, roster_file: Where) -> Roster:
    """Take over a newer roster: the file ``roster`` of the group, or of another member.

    A roster that leaves this peer out is written, too, before a RemovedError is raised.
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
    """Return whether a roster revokes the certificate in a peer's folder."""
    path = folder / "tls.crt"
    return bool(roster.revoked) and path.exists() and ids.serial_of(ids.read_authorities(path)[0]) in roster.revoked


def authorities_pem(roster: Roster, brought: bytes) -> bytes:
    """Return the content of ``ca.crt``: the authorities of a roster, or the one `brought` by an invitation."""
    return "".join(roster.authorities).encode() if roster.authorities else brought


def keep_authorities(folder: Path, roster: Roster) -> None:
    """Write ``ca.crt`` as a roster demands. Called before the roster is written, because a written roster is not read
    again.
    """
    path, wanted = folder / "ca.crt", authorities_pem(roster, b"")
    if wanted and not (path.exists() and read_bounded(path) == wanted):
        write_atomic(path, wanted)


def membership(folder: Where) -> Membership:
    """Load and check what a peer knows after joining. Raise a RemovedError if the peer is not a member any more."""
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
    """Return a roster's entry for a peer. Refuse an entry whose address differs from that of `before`."""
    me = roster.named(peer.name)
    if isinstance(me, Member) and me.key != peer.public:
        raise refusal(f"{what} has {peer.name!r} with another signing key: another peer has that name")
    if me is not None:
        if before is not None and getattr(before, "address", None) != getattr(me, "address", None):
            raise DataError(f"{what} gives {peer.name} another address: it has to be invited again, in a new folder")
        return me
    raise refusal(
        f"{what} leaves {peer.name!r} out: it is not a member, or the admin has removed it from the group "
        f"(version {roster.version}). To take part it has to be invited, or invited again"
    )
