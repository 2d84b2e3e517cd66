"""Amending a charter: the admin proposes another one, and each member accepts it, and keeps the model learned so far.

A charter cannot change, because its hash is the run id. So :func:`amend` makes a new one, which names the run that it
amends, and a first roster with the same members, keys, addresses and edges. Both are announced in the old run. Each
member's owner decides (:func:`accept`). The member then begins the new run with its keys, its certificate, and its
model as far as the model still fits (:func:`start_from_past`). Files of the old run are kept in the folder ``runs``.

A member that was away gets the announcement from any member that has moved on
(:attr:`coterie.peers.node.node.Node.for_non_members`).
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from ..._files import Where, drafted, locked, private_folder, read_bounded, rename, sync_folder, write_atomic
from ...errors import CoterieError, DataError, IdentityError, ParameterError
from ..node.audit_log import FILE as AUDIT_FILE
from ..node.audit_log import AuditLog
from ..node.process import only_one
from .announcements import CHARTER, Announcement, Topic
from .charter import Charter, charter_in, charter_json, usual_messages
from .groups import _begin, _joined, _own_entry, admin_at, check_usable
from .identity import Identity, public_bytes
from .records import encoded, from_msgpack, made
from .renewal import board_of, post
from .roster import Roster, read_roster, signers

#: Files of a peer: an accepted amendment that is not carried out yet, and the previous run.
ACCEPTED, BEGAN = "accepted", "began.json"
#: Files that belong to a run, and are moved aside with it.
OF_A_RUN = ("state", "model.json", "ledger", "ledger.head", "ledger.kept")
#: Fields of a charter that an amendment sets by itself.
OF_ITSELF = ("admin", "amends")
#: Fields of a roster that belong to its own run.
OF_A_LIST = ("run", "version", "history", "voids", "delegations")


class Amendment(msgspec.Struct, frozen=True):
    """The body of an announcement: a charter, and its first roster, signed by the admin."""

    charter: Charter
    roster: bytes


class _Acceptance(msgspec.Struct, frozen=True):
    """The file ``accepted``."""

    run: str  # the run to be left
    amendment: Amendment


class Accepted(NamedTuple):
    """Result of :func:`accept`."""

    charter: Charter
    changes: dict[str, tuple[Any, Any]]
    notes: list[str]  # consequences that the owner of the peer has to know
    running: bool  # whether a running peer has still to carry the amendment out


# -- the admin ------------------------------------------------------------------------------------------------------


def amend(group: Where, **changes: Any) -> Charter:
    """Propose a charter with changed fields to the members of a group. The admin's folder has the new charter
    at once.
    """
    from ..model.tables import check_charter  # needs pandas, as in groups.create
    from ..model.work import check_parts

    with admin_at(group) as loaded:
        old = loaded.charter
        for name in changes:
            known = [field for field in Charter.__struct_fields__ if field not in (*OF_ITSELF, "format")]
            if name not in known:
                raise ParameterError(f"{name!r} cannot be changed: choose from {', '.join(known)}")
        if "rate" in changes and old.messages_per_second == usual_messages(old.rate):
            changes.setdefault("messages_per_second", usual_messages(changes["rate"]))
        mine = {"admin": public_bytes(loaded.admin), "amends": old.run}
        charter = made(Charter, {**msgspec.structs.asdict(old), **changes, **mine})
        if not differences(old, charter):
            raise ParameterError("nothing would change: the charter has these values already")
        check_parts(charter)
        check_charter(charter)
        kept = {name: getattr(loaded.roster, name) for name in Roster.__struct_fields__ if name not in OF_A_LIST}
        first = Roster(run=charter.run, version=1, **kept)
        signed = dataclasses.replace(loaded, charter=charter, roster=first).signed(first)
        _put_aside(loaded.folder, old.run)
        # The files are renamed at the very end, one after the other.
        with (
            drafted(loaded.folder / "charter.json", charter_json(charter)) as new_charter,
            drafted(loaded.folder / "roster", signed) as new_roster,
        ):
            body = encoded(Amendment(charter, signed))
            post(loaded, CHARTER, old.run, body, "the new charter with its roster")
            rename(new_charter, loaded.folder / "charter.json")
            rename(new_roster, loaded.folder / "roster")
        return charter


def differences(old: Charter, new: Charter) -> dict[str, tuple[Any, Any]]:
    """Return the old and the new value of each field that differs."""
    names = [name for name in Charter.__struct_fields__ if name not in OF_ITSELF]
    return {name: (a, b) for name in names if (a := getattr(old, name)) != (b := getattr(new, name))}


def in_words(changes: Mapping[str, tuple[Any, Any]]) -> str:
    """Describe the differences between two charters in words: see :func:`differences`."""
    return "; ".join(f"{name}: {_shown(a)} -> {_shown(b)}" for name, (a, b) in changes.items())


def _shown(value: Any) -> str:
    text = "none" if value is None or value is msgspec.UNSET else str(msgspec.to_builtins(value))
    return text if len(text) <= 200 else f"{text[:200]}..."


def changes_of(charter: Charter, given: Sequence[str]) -> dict[str, Any]:
    """Parse changes as typed: field=value, or field.name=value for one of several settings. The value may be none."""
    changes: dict[str, Any] = {}
    for one in given:
        path, equals, text = one.partition("=")
        field, _, name = path.strip().partition(".")
        if not (equals and field):
            raise ParameterError(f"--set {one}: must be field=value, or field.name=value")
        if not name:
            changes[field] = _value(charter, field, text.strip())
            continue
        settings = changes.get(field, getattr(charter, field, None))
        settings = {} if settings is None else settings
        if not isinstance(settings, dict):
            raise ParameterError(f"--set {one}: {field} has no parts with names")
        changes[field] = {key: value for key, value in settings.items() if key != name}
        if (value := _value(charter, "", text.strip())) is not None:
            changes[field][name] = value
    return changes


def _value(charter: Charter, field: str, text: str) -> Any:
    if text.lower() in ("none", "null"):
        return None
    with contextlib.suppress(ValueError):
        found = json.loads(text)
        if field not in ("features", "center", "scale", "labels") or isinstance(found, list):
            return str(text) if isinstance(getattr(charter, field, None), str) and field != "ridge" else found
    if field in ("center", "scale"):
        with contextlib.suppress(ValueError):
            return [float(part) for part in text.split(",")]
    return [part.strip() for part in text.split(",")] if field in ("features", "labels") else text


# -- a member ---------------------------------------------------------------------------------------------------------


def read_amendment(announcement: Announcement) -> Amendment:
    """Return the amendment in an announcement of the kind "charter"."""
    what = f"the charter that is to follow run {announcement.about}"
    found = from_msgpack(announcement.body, Amendment, what)
    if found.charter.amends != announcement.about:
        raise DataError(
            f"{what} says that it follows run {found.charter.amends}: the announcement is wrong, ask the admin"
        )
    read_roster(found.roster, found.charter, f"the roster of {what}")
    return found


def proposed(held: Mapping[Topic, Announcement], charter: Charter) -> Amendment | None:
    """Return the last of the amendments that follow a charter one after another, or None."""
    found, run, seen = None, charter.run, {charter.run}
    while (CHARTER, run) in held:
        found = read_amendment(held[CHARTER, run])
        run = found.charter.run
        if run in seen:  # cannot happen: a cycle of hashes
            break
        seen.add(run)
    return found


def accept(folder: Where, run: str | None = None) -> Accepted:
    """Accept the charter that the admin proposes. `run` is the expected run id, as the admin has told it by other
    means.
    """
    peer = Identity.load(folder)
    charter, roster = _joined(peer)
    found = proposed(board_of(peer.folder).held, charter)
    if found is None:
        raise DataError(
            f"{peer.name} has received no charter other than that of run {charter.run}, its own. To bring one: "
            f"coterie peer update {peer.folder} CLUB/announcements"
        )
    new = found.charter
    if run is not None and new.run != run:
        raise DataError(f"the admin proposes run {new.run}, and not {run!r:.80}: ask the admin which one it must be")
    if new.admin not in signers(charter, roster):
        raise DataError(f"run {new.run} is signed by an admin of another group: do not accept it")
    what = f"the charter of run {new.run}"
    first = read_roster(found.roster, new, f"the roster of {what}")
    _own_entry(peer, first, what, before=_own_entry(peer, roster, str(peer.folder / "roster")))
    check_usable(new, what)
    notes, changes = _notes(peer.folder, charter, new), differences(charter, new)
    write_atomic(peer.folder / ACCEPTED, encoded(_Acceptance(charter.run, found)), private=True)
    AuditLog(peer.folder / AUDIT_FILE)("accepted", run=new.run, instead_of=charter.run, changes=in_words(changes))
    try:
        with only_one(peer.folder):
            settle(peer.folder)
            running = False
    except IdentityError:  # the running peer notices the file, and carries it out when it has stopped
        running = True
    return Accepted(new, changes, notes, running)


def _notes(folder: Path, old: Charter, new: Charter) -> list[str]:
    """Return notes on privacy: what the owner's data have revealed so far, and what the new charter changes."""
    past = [charter_in(path.parent) for path in sorted((folder / "runs").glob("*/charter.json"))]
    past = [one for one in past if one.run != old.run] + [old]
    notes = []
    spent = [float(one.privacy.get("epsilon", 0.0)) for one in past if one.privacy is not None]
    if new.privacy is not None:
        epsilon = float(new.privacy.get("epsilon", 0.0))
        notes.append("a private run begins from zero, not from the model that this peer has")
        if any(one.privacy is None for one in past):
            notes.append("what this peer sent so far was not private, and is not made so by the new charter")
        if spent:
            parts = " + ".join(f"{one:g}" for one in (*spent, epsilon))
            notes.append(
                f"privacy budgets add up: the same rows may now tell epsilon {parts} = {sum(spent) + epsilon:g} in "
                f"all. The old ledger is kept in {folder / 'runs' / old.run}, and the new run has one of its own"
            )
    elif spent:
        notes.append("the new charter is not private: what this peer sends from now on tells of its rows")
    return notes


def waits(folder: Path) -> bool:
    """Return whether an accepted amendment is still to be carried out."""
    return (folder / ACCEPTED).exists()


def settle(folder: Path) -> bool:
    """Carry out an accepted amendment, if there is one. After a crash in between, the next call completes it."""
    marker = folder / ACCEPTED
    if not marker.exists():
        return False
    peer = Identity.load(folder)
    with locked(folder):
        found = from_msgpack(read_bounded(marker, private=True), _Acceptance, str(marker))
        new = found.amendment.charter
        with contextlib.suppress(CoterieError):  # the charter is new, and the roster is still the old one
            if _joined(peer)[0].run == new.run:  # all is done: files of these names belong to the new run
                marker.unlink()
                return True
        past = _put_aside(folder, found.run)
        for name in OF_A_RUN:
            # A file that was moved already is the old run's, and a file that has the name now is the new run's.
            if (folder / name).exists() and not (past / name).exists():
                os.replace(folder / name, past / name)
        sync_folder(past)
        sync_folder(folder)
        _begin(peer, new, f"run {new.run}")  # makes the ledger of the new run
        write_atomic(folder / BEGAN, json.dumps({"run": new.run, "from": found.run}).encode())
        write_atomic(peer.folder / "charter.json", charter_json(new))
        write_atomic(peer.folder / "roster", found.amendment.roster)
        marker.unlink()
        sync_folder(folder)
    return True


def _put_aside(folder: Path, run: str) -> Path:
    """Copy the charter and the roster of a run to a folder of their own."""
    past = private_folder(private_folder(folder / "runs") / run)
    for name in ("charter.json", "roster"):
        if not (past / name).exists():
            write_atomic(past / name, read_bounded(folder / name))
    return past
