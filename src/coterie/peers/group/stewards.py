"""More than one steward, and a steward that hands over to another.

=======================  ============================================================================================
:func:`ask_as_steward`   the second one: a key that signs, an authority of its own, and a request without secrets
:func:`appoint`          the first one: the next list has a mandate for that key, and names both authorities
:func:`take_office`      the second one: checks that, and has a group's folder from then on, as the first one has
:func:`hand_over`        the first one: the mandate says that it retires
=======================  ============================================================================================

Each steward has an authority of its own, so no secret ever leaves a folder; peers trust all that the list names. Two
stewards take turns: before it signs, each of them takes over what the other has signed
(:func:`coterie.peers.group.groups.update`); if both sign the same version, that is a fork, which is seen and can be
healed.
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
from .groups import MANDATED, MAX_REQUEST_BYTES, Group, Register, steward_at, stewards_of
from .records import PublicKey, to_json
from .roster import Roster, make_mandate, read_roster, signers
from .signed import Signed, SigningKey


class StewardRequest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a second steward asks the first one for."""

    format: Literal[1] = 1
    key: PublicKey
    ca: str
    signature: bytes = b""


class Appointment(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What the first one answers: all that a steward has to know, and nothing secret."""

    format: Literal[1] = 1
    charter: Charter
    roster: bytes
    relays: dict[str, bytes] = {}  # their signing keys
    signature: bytes = b""


STEWARD_REQUESTS = Signed(StewardRequest, b"coterie steward request 1\n", lambda asked: [asked.key])
APPOINTMENTS = Signed(Appointment, b"coterie steward mandate 1\n", stewards_of, MANDATED)


def ask_as_steward(folder: Where) -> Path:
    """Keys and an authority for a second steward, in a new folder, and ``steward.request`` for the first one."""
    where, key = Path(folder), ids.new_signing_key()
    public = ids.public_bytes(key)
    ca_key, certificate = ids.make_ca(f"coterie steward {public[:8].hex()}")
    asked = STEWARD_REQUESTS.sign(StewardRequest(key=public, ca=ids.certificate_pem(certificate).decode()), key)
    private_folder(where)
    files = {
        where / "steward.key": ids.private_pem(key),
        where / "ca.key": ids.private_pem(ca_key),
        where / "ca.crt": ids.certificate_pem(certificate),
        where / "steward.request": to_json(asked),
    }
    write_new(files, {"steward.key", "ca.key"}, "a steward")
    return where / "steward.request"


def appoint(group: Where, request_file: Where, *, retire: bool = False, to: Where | None = None) -> Path:
    """Let another steward sign, too, or, if this one is to `retire`, in its place; the file to send to it."""
    source = Path(request_file)
    asked = STEWARD_REQUESTS.read(read_bounded(source, limit=MAX_REQUEST_BYTES), str(source))
    ids.check_ca(ids.read_certificate(asked.ca.encode(errors="replace"), f"the authority's certificate in {source}"))
    path = source.with_name("steward.mandate") if to is None else Path(to)
    with steward_at(group) as office:
        if asked.key in _stewards(office):
            raise DataError(f"{source} is of a key that may sign already: name it by its key, {asked.key[:4].hex()}")
        roster = _with_mandate(office, asked.key, [asked.ca], retire)
        signed = office.signed(roster)
        office.keep(roster, signed)
        answer = Appointment(charter=office.charter, roster=signed, relays=office.register.relays)
        return write_atomic(path, to_json(APPOINTMENTS.sign(answer, office.steward)))


def hand_over(group: Where, key: str) -> Roster:
    """Retire, in favour of another steward that may sign already: its key in hex, or how that begins."""
    with steward_at(group) as office:
        found = [one for one in _stewards(office) if one.hex().startswith(key.lower())]
        if len(found) != 1:
            known = ", ".join(sorted(one[:4].hex() for one in _stewards(office))) or "none"
            raise DataError(f"{key!r:.80} is not the key of one other steward that may sign: there are {known}")
        return office.keep(_with_mandate(office, found[0], [], retire=True))


def take_office(folder: Where, mandate_file: Where, run: str | None = None) -> Roster:
    """Become a steward with what another one has sent: the folder is a group's from then on.

    `run` is the one it must be for, as heard from the other one otherwise.
    """
    where, what = Path(folder), f"the mandate {os.fspath(mandate_file)}"
    if not (where / "steward.key").is_file():
        raise IdentityError(f"{where} holds no key of a steward: coterie group steward init {where}")
    if (where / "group.json").exists():
        raise IdentityError(f"{where} is a group's folder already: take newer lists with coterie group update {where}")
    found = APPOINTMENTS.read(read_bounded(mandate_file), what)
    if run is not None and found.charter.run != run:
        raise DataError(f"{what} is for run {found.charter.run}, and not for {run!r:.80}")
    roster = read_roster(found.roster, found.charter, f"the list in {what}")
    key = ids.public_bytes(ids.read_key(where / "steward.key", SigningKey, "an Ed25519 key"))
    if key not in signers(found.charter, roster, version=roster.version + 1):
        raise DataError(f"{what} is not for the steward in {where}, whose key is {key[:4].hex()}")
    if read_bounded(where / "ca.crt").decode() not in roster.authorities:
        raise DataError(f"{what} does not name the authority in {where}")
    write_atomic(where / "charter.json", charter_json(found.charter))
    write_atomic(where / "roster", found.roster)
    write_atomic(where / "group.json", to_json(Register(addresses=roster.addresses, relays=found.relays)))
    return roster


def _stewards(office: Group) -> set[bytes]:
    """The other keys that may sign the next list."""
    allowed = signers(office.charter, office.roster, version=office.roster.version + 1)
    return allowed - {ids.public_bytes(office.steward)}


def _with_mandate(office: Group, key: bytes, authorities: list[str], retire: bool) -> Roster:
    mandate = make_mandate(office.charter.run, key, office.steward, office.roster.version + 1, retire)
    own = ids.certificate_pem(office.ca).decode()
    return office.roster.with_steward(mandate, [own, *authorities])
