"""How a group comes about: its steward creates it, peers ask to be in it, are invited, and join.

======================  ==============================================================================================
:func:`create`          the steward: a key that signs rosters, an authority, the charter, and a roster of nobody
:func:`request`         a peer: who it is, and where; signed with both of its keys. Nothing in it is secret
:func:`invite`          the steward: a certificate, and a new roster with the peer in it. Nothing in it is secret
:func:`join`            the peer: checks all of that, and keeps it
:func:`remove`,         the steward: a new roster. It is the file ``roster`` of the group, which any member can take
:func:`tie`             (:func:`refresh`) and pass on
======================  ==============================================================================================

What a peer believes hangs on one thing, the charter: it holds the steward's key, and the steward signs the invitation
and every roster. So the charter of a first invitation has to come from somebody one trusts; its run can be compared by
word of mouth.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import DataError, IdentityError, MissingExtra, ParameterError, SignatureError
from .agreement import (
    Charter,
    Member,
    Relay,
    Roster,
    charter_json,
    check_steward,
    from_json,
    newer,
    read_charter,
    read_roster,
    sign_roster,
)
from .files import drafted, locked, private_folder, read, rename, write, write_new
from .identity import (
    MEMBER_DAYS,
    AuthorityKey,
    Identity,
    SigningKey,
    certificate_pem,
    check_ca,
    check_certificate,
    check_name,
    make_ca,
    make_csr,
    new_signing_key,
    private_pem,
    public_bytes,
    read_certificate,
    read_csr,
    read_key,
    sign_csr,
    split_endpoint,
    verify,
)
from .packet import OVERHEAD

try:
    import msgspec
except ImportError as error:
    raise MissingExtra('peers on a network need msgspec: pip install "coterie[network]"') from error

if TYPE_CHECKING:
    from cryptography import x509

FORMAT = 1
REQUEST_SEAL = b"coterie request 1\n"
INVITATION_SEAL = b"coterie invitation 1\n"
MOST_REQUEST_BYTES = 50_000

Where = str | os.PathLike[str]


class Request(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a peer asks the steward for. It checks itself: see :func:`read_request`."""

    format: int = FORMAT
    name: str
    endpoint: str | None
    csr: str
    key: bytes
    signature: bytes = b""

    def __post_init__(self) -> None:
        _check_format(self.format)
        check_name(self.name)
        if self.endpoint is not None:
            split_endpoint(self.endpoint)


class Invitation(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What the steward answers: see :func:`read_invitation`."""

    format: int = FORMAT
    name: str
    charter: Charter
    ca: str
    certificate: str
    roster: bytes
    signature: bytes = b""

    def __post_init__(self) -> None:
        _check_format(self.format)
        check_name(self.name)


class _Register(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What the steward remembers and rosters do not say."""

    format: int = FORMAT
    addresses: int = 0  # given so far, also to members that have left
    ca_key: str | None = None  # where it is, if not here
    relays: dict[str, bytes] = {}  # their signing keys

    def __post_init__(self) -> None:
        _check_format(self.format)
        if self.addresses < 0:
            raise ParameterError(f"addresses={self.addresses} must not be negative")


def _check_format(found: int) -> None:
    if found != FORMAT:
        raise ParameterError(f"format={found} is not known: this version reads format {FORMAT}")


@dataclass(frozen=True)
class Group:
    """A group as its steward sees it: see :func:`load_group`."""

    folder: Path
    charter: Charter
    roster: Roster
    steward: SigningKey
    ca: x509.Certificate
    ca_key: AuthorityKey
    register: _Register


@dataclass(frozen=True)
class Membership:
    """What a peer knows after joining: see :func:`membership`.

    ``me`` is the peer's own entry in the roster, a :class:`~coterie.peers.agreement.Relay` of one that only relays.
    """

    identity: Identity
    charter: Charter
    roster: Roster
    me: Member | Relay
    expires: datetime


# -- the steward -----------------------------------------------------------------------------------------------------


def create(folder: Where, *, ca: tuple[Where, Where] | None = None, **fields: Any) -> Charter:
    """A new group, of nobody yet, in a folder that is the steward's.

    Parameters
    ----------
    folder : path
        Made if it does not exist.
    ca : (path, path), optional
        Key and certificate of an authority to use, instead of one for this group alone. The key stays where it is.
    **fields
        Of the :class:`~coterie.peers.agreement.Charter`, all but the steward.

    Returns
    -------
    Charter

    Raises
    ------
    ParameterError
        A field is not what it must be.
    IdentityError
        There is a group already: it is never overwritten.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     charter = create(folder, title="test", features=["x"], target="y", labels=["no", "yes"],
    ...                      objective="personalized")
    ...     load_group(folder).roster.version
    1
    """
    steward = new_signing_key()
    try:
        charter = Charter(**fields, steward=public_bytes(steward))
    except TypeError as error:  # a field that is missing, or not known
        raise ParameterError(f"the charter cannot be made: {error}") from None
    where = Path(folder)
    kept: dict[Path, bytes] = {where / "steward.key": private_pem(steward)}
    if ca is None:
        ca_key, certificate = make_ca(f"coterie {charter.run}")
        kept[where / "ca.key"] = private_pem(ca_key)
        register = _Register()
    else:
        certificate = read_certificate(read(Path(ca[1]), most=MOST_REQUEST_BYTES), f"the certificate {ca[1]}")
        check_ca(certificate, read_key(Path(ca[0]), AuthorityKey, "an EC, RSA or Ed25519 key"))
        register = _Register(ca_key=os.path.abspath(ca[0]))
    kept[where / "ca.crt"] = certificate_pem(certificate)
    kept[where / "group.json"] = _json(register)
    kept[where / "charter.json"] = charter_json(charter)
    kept[where / "roster"] = sign_roster(Roster(charter.run, 1), steward)
    private_folder(where)
    for path in (*kept, where / "ca.key"):
        if os.path.lexists(path):
            raise IdentityError(
                f"{where} holds a group already ({path.name}), never overwritten: choose another folder"
            )
    write_new(kept, {"steward.key", "ca.key"})
    return charter


def load_group(folder: Where) -> Group:
    """A group as its steward sees it.

    Parameters
    ----------
    folder : path

    Returns
    -------
    Group

    Raises
    ------
    IdentityError, DataError
        There is none, or it is damaged.

    Examples
    --------
    >>> load_group("no/such/folder")
    Traceback (most recent call last):
    ...
    coterie.errors.IdentityError: no/such/folder holds no group: there is no group.json in it
    """
    where = Path(folder)
    if not (where / "group.json").is_file():
        raise IdentityError(f"{where} holds no group: there is no group.json in it")
    register = from_json(read(where / "group.json"), _Register, str(where / "group.json"))
    charter = read_charter(read(where / "charter.json"), str(where / "charter.json"))
    steward = read_key(where / "steward.key", SigningKey, "an Ed25519 key")
    check_steward(charter, steward)
    roster = read_roster(read(where / "roster"), charter, str(where / "roster"))
    ca = read_certificate(read(where / "ca.crt", most=MOST_REQUEST_BYTES), str(where / "ca.crt"))
    ca_key = read_key(Path(register.ca_key or where / "ca.key"), AuthorityKey, "an EC, RSA or Ed25519 key")
    check_ca(ca, ca_key)
    return Group(where, charter, roster, steward, ca, ca_key, register)


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
    """Take a peer into a group: a certificate, and the next version of the roster.

    Inviting a member again, with the same key, renews its certificate and its endpoint; it keeps its address and ties.

    Parameters
    ----------
    group : path
    request_file : path
        That :func:`request` wrote.
    ties : dict, optional
        Weights by the names of other members; 0 for no tie. Other ties stay as they are.
    relay : bool
        It only passes on what others send: it gets no address, and is nobody's neighbour.
    replace : bool
        Give the name of a member to a peer with another key. It has its ties, but a new address.
    days : int
        How long the certificate is good for.
    to : path, optional
        The file to write. Default: ``<name>.invitation``, beside the request.

    Returns
    -------
    Path
        The invitation, to be given to the peer.

    Raises
    ------
    SignatureError
        The request is not signed with its own keys.
    DataError
        The name belongs to another key, or something else is wrong with the request.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     charter = create(f"{folder}/group", title="", features=["x"], target="y", loss="squared",
    ...                      objective="separate")
    ...     ann = Identity.make(f"{folder}/ann", "ann", "127.0.0.1:7447")
    ...     invite(f"{folder}/group", request(f"{folder}/ann")).name
    'ann.invitation'
    """
    source = Path(request_file)
    asked = read_request(read(source, most=MOST_REQUEST_BYTES), str(source))
    with _steward_at(group) as where:
        office = load_group(where)
        roster, register = (
            _with_relay(office, asked, ties, replace) if relay else _with_member(office, asked, ties, replace)
        )
        csr = read_csr(asked.csr.encode(), asked.name, asked.key)
        certificate = sign_csr(csr, office.ca_key, office.ca, name=asked.name, endpoint=asked.endpoint, days=days)
        signed = sign_next(office, roster)
        invitation = Invitation(
            name=asked.name,
            charter=office.charter,
            ca=certificate_pem(office.ca).decode(),
            certificate=certificate_pem(certificate).decode(),
            roster=signed,
        )
        content = _json(_sealed(invitation, INVITATION_SEAL, office.steward))
        path = source.with_name(f"{asked.name}.invitation") if to is None else Path(to)
        if path.is_dir():
            raise ParameterError(f"{path} is a folder: name the file to write the invitation to")
        # The invitation is on the disk before the roster, and gets its name after it: so there is never an invitation
        # of a version that the steward could give to another roster. An address that is lost on the way stays unused.
        with drafted(path, content) as draft:
            write(where / "group.json", _json(register))
            write(where / "roster", signed)
            rename(draft, path)
        return path


def remove(group: Where, name: str) -> Roster:
    """Leave out a member or a relay from the next version of the roster.

    Its certificate stays good until it expires; but peers that have the roster listen to nothing that it says.

    Parameters
    ----------
    group : path
    name : str

    Returns
    -------
    Roster
        Signed, it is the file ``roster`` of the group.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     charter = create(f"{folder}/group", title="", features=["x"], target="y", loss="squared",
    ...                      objective="separate")
    ...     ann = enroll(f"{folder}/group", f"{folder}/ann", "ann")
    ...     remove(f"{folder}/group", "ann").members
    []
    """
    with _steward_at(group) as where:
        office = load_group(where)
        old = office.roster
        relays = any(one.name == name for one in old.relays)
        roster = old.without_relay(name) if relays else old.without_member(name)
        write(where / "group.json", _json(_counted(office)))
        write(where / "roster", sign_next(office, roster))
        return roster


def tie(group: Where, a: str, b: str, weight: float = 1.0) -> Roster:
    """Tie two members in the next version of the roster.

    Parameters
    ----------
    group : path
    a, b : str
        Names.
    weight : float
        0 for no tie.

    Returns
    -------
    Roster
        Signed, it is the file ``roster`` of the group.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     charter = create(f"{folder}/group", title="", features=["x"], target="y", loss="squared",
    ...                      objective="separate")
    ...     for name in ("ann", "bob"):
    ...         peer = enroll(f"{folder}/group", f"{folder}/{name}", name)
    ...     tie(f"{folder}/group", "ann", "bob").ties
    [(0, 1, 1.0)]
    """
    with _steward_at(group) as where:
        office = load_group(where)
        roster = office.roster.with_tie(
            office.roster.by_name(a).address, office.roster.by_name(b).address, _weight(b, weight)
        )
        write(where / "roster", sign_next(office, roster))
        return roster


def read_request(content: bytes, what: str = "the request") -> Request:
    """A peer's request, if both keys in it have signed it.

    Parameters
    ----------
    content : bytes
    what : str
        What to call it in an error.

    Returns
    -------
    Request

    Raises
    ------
    SignatureError, DataError

    Examples
    --------
    >>> read_request(b"[]")
    Traceback (most recent call last):
    ...
    coterie.errors.DataError: the request is damaged: Expected `object`, got `array`
    """
    found = from_json(content, Request, what)
    if len(found.key) != 32:
        raise DataError(f"{what} is damaged: its key must be an Ed25519 public key, 32 bytes")
    _check_seal(found, REQUEST_SEAL, found.key, what)
    read_csr(found.csr.encode(errors="replace"), found.name, found.key)
    return found


def sign_next(office: Group, roster: Roster) -> bytes:
    """The next version, if a letter can carry it."""
    signed, most = sign_roster(roster, office.steward), office.charter.letter_bytes - OVERHEAD
    if len(signed) > most:
        raise ParameterError(
            f"a list of {len(roster.members)} members and {len(roster.ties)} ties takes {len(signed)} bytes, and "
            f"letters of this run carry {most}: letter_bytes={office.charter.letter_bytes}"
        )
    return signed


def _with_member(
    office: Group, asked: Request, ties: Mapping[str, float] | None, replace: bool
) -> tuple[Roster, _Register]:
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
    for name, weight in (ties or {}).items():
        if name == asked.name:
            raise ParameterError(f"ties: {name!r} cannot be tied to itself")
        kept[roster.by_name(name).address] = _weight(name, weight)
    return roster.with_member(Member(asked.name, address, asked.key, asked.endpoint), kept), register


def _with_relay(
    office: Group, asked: Request, ties: Mapping[str, float] | None, replace: bool
) -> tuple[Roster, _Register]:
    """The next roster, with a relay that asks."""
    roster, register = office.roster, _counted(office)
    if ties:
        raise ParameterError(f"ties={dict(ties)!r}: a relay is nobody's neighbour")
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
def _steward_at(group: Where) -> Iterator[Path]:
    """The group's folder, for one steward at a time."""
    where = Path(group)
    if not where.is_dir():
        raise IdentityError(f"{where} holds no group: there is no such folder")
    with locked(where):
        yield where


# -- a peer ----------------------------------------------------------------------------------------------------------


def request(folder: Where) -> Path:
    """Write the request of a peer, to be given to the steward.

    Parameters
    ----------
    folder : path
        With an identity: :meth:`coterie.peers.identity.Identity.make`.

    Returns
    -------
    Path
        ``<name>.request`` in the folder. Nothing in it is secret.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     ann = Identity.make(folder, "ann", "127.0.0.1:7447")
    ...     read_request(request(folder).read_bytes()).endpoint
    '127.0.0.1:7447'
    """
    peer = Identity.load(folder)
    csr = make_csr(peer.tls, peer.name, peer.public).decode()
    asked = Request(name=peer.name, endpoint=peer.listen, csr=csr, key=peer.public)
    return write(peer.folder / f"{peer.name}.request", _json(_sealed(asked, REQUEST_SEAL, peer.signing_key)))


def read_invitation(content: bytes, what: str = "the invitation") -> tuple[Invitation, Roster]:
    """An invitation that the steward of its charter has signed, and the roster in it.

    Parameters
    ----------
    content : bytes
    what : str
        What to call it in an error.

    Returns
    -------
    Invitation, Roster

    Raises
    ------
    SignatureError, DataError

    Examples
    --------
    >>> read_invitation(b"")
    Traceback (most recent call last):
    ...
    coterie.errors.DataError: the invitation is damaged: Input data was truncated
    """
    found = from_json(content, Invitation, what)
    _check_seal(found, INVITATION_SEAL, found.charter.steward, what)
    return found, read_roster(found.roster, found.charter, f"the roster in {what}")


def join(folder: Where, invitation: Where, run: str | None = None) -> Membership:
    """Accept an invitation, or a renewed one.

    Parameters
    ----------
    folder : path
        Of the peer.
    invitation : path
        That :func:`invite` wrote.
    run : str, optional
        The run that it must be for, as heard from the steward by another way.

    Returns
    -------
    Membership

    Raises
    ------
    SignatureError
        Something in it is not signed by the one who had to.
    DataError
        It is for somebody else, of another run, or older than what the peer has.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     charter = create(f"{folder}/group", title="", features=["x"], target="y", loss="squared",
    ...                      objective="separate")
    ...     ann = Identity.make(f"{folder}/ann", "ann", "127.0.0.1:7447")
    ...     join(ann.folder, invite(f"{folder}/group", request(ann.folder))).me.address
    0
    """
    peer = Identity.load(folder)
    source = Path(invitation)
    what = f"the invitation {source}"
    found, roster = read_invitation(read(source), what)
    if run is not None and found.charter.run != run:
        raise DataError(f"{what} is to run {found.charter.run}, and not to {run!r:.80}")
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
            roster, signed = _update(peer, found, roster, certificate, what)
        else:
            open_ledger(peer, found.charter)
        write(peer.tls_certificate, certificate_pem(certificate))
        write(peer.ca_certificate, certificate_pem(ca))
        if signed is not None:
            # The roster comes last: a peer that has one has joined.
            write(peer.charter, charter_json(found.charter))
            write(peer.roster, signed)
    return membership(folder)


def open_ledger(peer: Identity, charter: Charter) -> None:
    """A private peer has its ledger from the day it joins: one that is missing later was lost, and may be spent."""
    if charter.privacy is None:
        return
    from ..privacy.ledger import Ledger
    from .work import method_of

    Ledger(method_of(charter).plan, peer.folder / "ledger").close()


def _update(
    peer: Identity, found: Invitation, roster: Roster, certificate: x509.Certificate, what: str
) -> tuple[Roster, bytes | None]:
    """The roster to go on with, and its bytes if they are new."""
    charter = read_charter(read(peer.charter), str(peer.charter))
    if charter.run != found.charter.run:
        raise DataError(
            f"{peer.folder} has joined run {charter.run}, and {what} is to run {found.charter.run}: one folder, one "
            "run. Make another identity in another folder"
        )
    here = read(peer.roster)
    held = read_roster(here, charter, str(peer.roster))
    if newer(held, roster):
        return roster, found.roster
    if held.version == roster.version:
        if here != found.roster:
            raise DataError(
                f"{what} has another roster of version {held.version} than {peer.roster}: ask the steward which is it"
            )
        return held, None
    # Newer rosters get around without invitations; but a certificate that is older, too, is old hat.
    old = read_certificate(read(peer.tls_certificate), str(peer.tls_certificate))
    if certificate.not_valid_before_utc <= old.not_valid_before_utc:
        raise DataError(
            f"{what} is old: its roster is version {roster.version}, and {peer.roster} is version {held.version}"
        )
    _own_entry(peer, held, str(peer.roster))
    return held, None


def refresh(folder: Where, roster_file: Where) -> Roster:
    """Take a newer roster.

    Parameters
    ----------
    folder : path
        Of a peer that has joined.
    roster_file : path
        The file ``roster`` of the group, or of another member.

    Returns
    -------
    Roster

    Raises
    ------
    SignatureError
        The steward has not signed it.
    DataError
        It is not newer, or leaves this peer out.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     charter = create(f"{folder}/group", title="", features=["x"], target="y", loss="squared",
    ...                      objective="separate")
    ...     for name in ("ann", "bob"):
    ...         peer = enroll(f"{folder}/group", f"{folder}/{name}", name)
    ...     refresh(f"{folder}/ann", f"{folder}/group/roster").version
    3
    """
    peer = Identity.load(folder)
    with locked(peer.folder):
        charter, held = _joined(peer)
        what = f"the roster {os.fspath(roster_file)}"
        content = read(Path(roster_file))
        roster = read_roster(content, charter, what)
        if not newer(held, roster):
            raise DataError(f"{what} is version {roster.version}; {peer.name} has version {held.version} already")
        old, new = _own_entry(peer, held, str(peer.roster)), _own_entry(peer, roster, what)
        if getattr(old, "address", None) != getattr(new, "address", None):
            raise DataError(f"{what} gives {peer.name} another address: it has to be invited again, in a new folder")
        write(peer.roster, content)
        return roster


def membership(folder: Where) -> Membership:
    """What a peer knows after joining, checked as a whole.

    Parameters
    ----------
    folder : path

    Returns
    -------
    Membership

    Raises
    ------
    IdentityError, DataError
        It has not joined, a file is damaged, or the certificate has expired.

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     ann = Identity.make(folder, "ann")
    ...     membership(folder)
    Traceback (most recent call last):
    ...
    coterie.errors.IdentityError: ann has not joined a group: there is no roster in ...
    """
    peer = Identity.load(folder)
    charter, roster = _joined(peer)
    ca = read_certificate(read(peer.ca_certificate), str(peer.ca_certificate))
    certificate = read_certificate(read(peer.tls_certificate), str(peer.tls_certificate))
    check_certificate(certificate, ca, name=peer.name, key=peer.tls, endpoint=peer.listen)
    me = _own_entry(peer, roster, str(peer.roster))
    return Membership(peer, charter, roster, me, certificate.not_valid_after_utc)


def enroll(
    group: Where,
    folder: Where,
    name: str,
    listen: str | None = None,
    ties: Mapping[str, float] | None = None,
    relay: bool = False,
) -> Membership:
    """Identity, request, invitation and joining at once, where the steward and the peer are on one machine.

    Parameters
    ----------
    group : path
    folder : path
        Of the peer.
    name : str
    listen : str, optional
    ties : dict, optional
        Weights by the names of other members.
    relay : bool

    Returns
    -------
    Membership

    Examples
    --------
    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     charter = create(f"{folder}/group", title="", features=["x"], target="y", loss="squared",
    ...                      objective="separate")
    ...     enroll(f"{folder}/group", f"{folder}/ann", "ann", "127.0.0.1:7447").me.name
    'ann'
    """
    load_group(group)  # before anything is made
    peer = Identity.make(folder, name, listen)
    return join(peer.folder, invite(group, request(peer.folder), ties, relay))


def _joined(peer: Identity) -> tuple[Charter, Roster]:
    if not peer.roster.exists():
        raise IdentityError(f"{peer.name} has not joined a group: there is no roster in {peer.folder}")
    charter = read_charter(read(peer.charter), str(peer.charter))
    return charter, read_roster(read(peer.roster), charter, str(peer.roster))


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


# -- seals -----------------------------------------------------------------------------------------------------------


def _json(thing: Any) -> bytes:
    return msgspec.json.format(msgspec.json.encode(thing), indent=1) + b"\n"


def _unsealed(thing: Any, seal: bytes) -> bytes:
    """What is signed: what it is, and all of it but the signature."""
    return seal + msgspec.msgpack.encode(msgspec.structs.replace(thing, signature=b""), order="deterministic")


def _sealed(thing: Any, seal: bytes, key: SigningKey) -> Any:
    return msgspec.structs.replace(thing, signature=key.sign(_unsealed(thing, seal)))


def _check_seal(thing: Any, seal: bytes, public: bytes, what: str) -> None:
    try:
        message = _unsealed(thing, seal)
    except (ValueError, OverflowError):  # text that cannot be written
        raise SignatureError(f"{what} is not signed") from None
    verify(public, thing.signature, message, what)
