"""Adding an admin, and handing over from one admin to another.

=========================  =========================================================================================
:func:`ask_as_admin`       the second admin: makes a signing key, an authority, and a request without secrets
:func:`appoint`            the first admin: the next roster has a delegation for that key, and names both authorities
:func:`accept_delegation`  the second admin: checks the delegation, and turns the folder into a group's folder
:func:`hand_over`          the first admin: the next roster has a delegation that retires the first admin
=========================  =========================================================================================

Each admin has an authority of its own, so no secret leaves a folder. Peers trust all authorities that the roster names.
Two admins take turns: before signing, each admin takes over what the other has signed
(:func:`coterie.peers.group.groups.update`). If both sign the same version, peers detect the fork, and an admin can heal
it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

import msgspec

from ..._files import Where, private_folder, read_bounded, write_atomic, write_new
from ...errors import DataError, IdentityError
from . import identity as ids
from .charter import Charter, charter_json
from .groups import DELEGATED, MAX_REQUEST_BYTES, Group, Register, admin_at, admins_of
from .records import PublicKey, to_json
from .roster import Roster, make_delegation, read_roster, signers
from .signed import Signed, SigningKey


class AdminRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A second admin's request for a delegation."""

    format: Literal[1] = 1
    key: PublicKey
    ca: str
    signature: bytes = b""


class Appointment(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The first admin's answer: all that a second admin has to know, and nothing secret."""

    format: Literal[1] = 1
    charter: Charter
    roster: bytes
    relays: dict[str, bytes] = {}  # signing keys of the relays
    signature: bytes = b""


ADMIN_REQUESTS = Signed(AdminRequest, b"coterie admin request 2\n", lambda asked: [asked.key])
APPOINTMENTS = Signed(Appointment, b"coterie appointment 2\n", admins_of, DELEGATED)


def ask_as_admin(folder: Where) -> Path:
    """Make keys and an authority for a second admin in a new folder, and ``admin.request`` for the first admin."""
    where, key = Path(folder), ids.new_signing_key()
    public = ids.public_bytes(key)
    ca_key, certificate = ids.make_ca(f"coterie admin {public[:8].hex()}")
    asked = ADMIN_REQUESTS.sign(AdminRequest(key=public, ca=ids.certificate_pem(certificate).decode()), key)
    private_folder(where)
    files = {
        where / "admin.key": ids.private_pem(key),
        where / "ca.key": ids.private_pem(ca_key),
        where / "ca.crt": ids.certificate_pem(certificate),
        where / "admin.request": to_json(asked),
    }
    write_new(files, {"admin.key", "ca.key"}, "an admin")
    return where / "admin.request"


def appoint(group: Where, request_file: Where, *, retire: bool = False, to: Where | None = None) -> Path:
    """Write a delegation that lets another admin sign, too. With `retire`, the other admin replaces this one."""
    source = Path(request_file)
    asked = ADMIN_REQUESTS.read(read_bounded(source, limit=MAX_REQUEST_BYTES), str(source))
    ids.check_ca(ids.read_certificate(asked.ca.encode(errors="replace"), f"the authority's certificate in {source}"))
    path = source.with_name("admin.delegation") if to is None else Path(to)
    with admin_at(group) as loaded:
        if asked.key in _admins(loaded):
            raise DataError(f"{source} is of a key that may sign already: name the key instead, {asked.key[:4].hex()}")
        roster = _with_delegation(loaded, asked.key, [asked.ca], retire)
        signed = loaded.signed(roster)
        loaded.keep(roster, signed)
        answer = Appointment(charter=loaded.charter, roster=signed, relays=loaded.register.relays)
        return write_atomic(path, to_json(APPOINTMENTS.sign(answer, loaded.admin)))


def hand_over(group: Where, key: str) -> Roster:
    """Retire in favour of another admin that may sign already. `key` is the beginning of the other key in hex."""
    with admin_at(group) as loaded:
        found = [one for one in _admins(loaded) if one.hex().startswith(key.lower())]
        if len(found) != 1:
            known = ", ".join(sorted(one[:4].hex() for one in _admins(loaded))) or "none"
            raise DataError(f"{key!r:.80} is not the key of one other admin that may sign: there are {known}")
        return loaded.keep(_with_delegation(loaded, found[0], [], retire=True))


def accept_delegation(folder: Where, delegation_file: Where, run: str | None = None) -> Roster:
    """Become an admin with the delegation that another admin has sent, and turn the folder into a group's folder.

    `run` is the expected run id, as the other admin has told it by other means.
    """
    where, what = Path(folder), f"the delegation {os.fspath(delegation_file)}"
    if not (where / "admin.key").is_file():
        raise IdentityError(f"{where} holds no key of an admin: coterie group admin init {where}")
    if (where / "group.json").exists():
        raise IdentityError(
            f"{where} is a group's folder already: take newer rosters with coterie group update {where}"
        )
    found = APPOINTMENTS.read(read_bounded(delegation_file), what)
    if run is not None and found.charter.run != run:
        raise DataError(f"{what} is for run {found.charter.run}, and not for {run!r:.80}")
    roster = read_roster(found.roster, found.charter, f"the roster in {what}")
    key = ids.public_bytes(ids.read_key(where / "admin.key", SigningKey, "an Ed25519 key"))
    if key not in signers(found.charter, roster, version=roster.version + 1):
        raise DataError(f"{what} is not for the admin in {where}, whose key is {key[:4].hex()}")
    if read_bounded(where / "ca.crt").decode() not in roster.authorities:
        raise DataError(f"{what} does not name the authority in {where}")
    write_atomic(where / "charter.json", charter_json(found.charter))
    write_atomic(where / "roster", found.roster)
    write_atomic(where / "group.json", to_json(Register(addresses=roster.addresses, relays=found.relays)))
    return roster


def _admins(group: Group) -> set[bytes]:
    """Return the keys of the other admins that may sign the next roster."""
    allowed = signers(group.charter, group.roster, version=group.roster.version + 1)
    return allowed - {ids.public_bytes(group.admin)}


def _with_delegation(group: Group, key: bytes, authorities: list[str], retire: bool) -> Roster:
    delegation = make_delegation(group.charter.run, key, group.admin, group.roster.version + 1, retire)
    own = ids.certificate_pem(group.ca).decode()
    return group.roster.with_admin(delegation, [own, *authorities])
