"""Neighbours that a peer does not listen to: the file ``muted`` in its folder, a list of names.

A mute is this peer's own: nobody is told, and the list of members stays as it is. To the peer, a muted member is one
that has gone: its tie and all that came by it is dropped, and what it sends is refused.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

from ..._files import Where, locked, read_bounded, write_atomic
from ...errors import DataError
from ..group.roster import Roster

FILE = "muted"


def read_muted(folder: Where) -> list[str]:
    """Names of those that are muted."""
    path = Path(folder) / FILE
    if not path.exists():
        return []
    try:
        found = json.loads(read_bounded(path))
    except ValueError:
        found = None
    if not (isinstance(found, list) and all(isinstance(name, str) for name in found)):
        raise DataError(f'{path} is damaged: it must be a list of names, such as ["eve"]')
    return sorted(set(found))


def write_muted(folder: Where, names: Iterable[str]) -> None:
    """Mute these, and nobody else."""
    write_atomic(Path(folder) / FILE, json.dumps(sorted(set(names))).encode() + b"\n")


def change(folder: Where, roster: Roster, me: str, name: str, undo: bool = False) -> list[str]:
    """Mute one more member, or listen to it again; all that are muted then."""
    with locked(Path(folder)):
        muted = read_muted(folder)
        if undo:
            if name not in muted:
                raise DataError(f"{name!r:.80} is not muted; muted: {', '.join(muted) or 'nobody'}")
            muted.remove(name)
        else:
            roster.by_name(name)  # or it says who there is
            if name == me:
                raise DataError(f"{name!r} is this peer itself")
            muted = sorted({*muted, name})
        write_muted(folder, muted)
    return muted


def addresses_of(names: Iterable[str], roster: Roster) -> frozenset[int]:
    """Addresses of those names that are members."""
    wanted = set(names)
    return frozenset(member.address for member in roster.members if member.name in wanted)
