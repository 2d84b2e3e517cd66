"""Settings of a peer's owner on this machine: ``peer.toml``, and the file ``muted`` with names of ignored members.

Nothing in ``peer.toml`` is secret or agreed on in the group; flags override it. Muting concerns this peer only: nobody
is informed, and the roster stays as it is. The peer treats a muted member as one that has left: it drops the edge and
all that came by it, and refuses its messages.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, field, fields, replace
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..._files import Where, locked, read_bounded, write_atomic
from ...errors import DataError, ParameterError

if TYPE_CHECKING:
    from ..group.roster import Roster

FILE, MUTED = "peer.toml", "muted"
LEVELS = ("info", "warning")


def _key(kinds: tuple[type, ...], must: str, example: Any, comment: str, default: Any = None, holds: Any = bool) -> Any:
    """Make a setting: its types, the condition that holds, the condition in words, and its text in the file."""
    return field(default=default, metadata=dict(kinds=kinds, must=must, example=example, comment=comment, holds=holds))


def _path(example: str, comment: str) -> Any:
    return _key((str,), "a path", example, comment)


def _flag(comment: str, default: bool | None = False) -> Any:
    return _key((bool,), "true or false", False, comment, default, lambda _: True)


def _number(must: str, low: float, high: float, example: float, comment: str, default: Any = None) -> Any:
    """Make a setting with a number in a range; a whole number if its example is one."""
    kinds = (int,) if isinstance(example, int) else (int, float)
    return _key(kinds, must, example, comment, default, lambda x: low <= x <= high)


@dataclass(frozen=True)
class Settings:
    """The settings in ``peer.toml``. None stands for a default."""

    data: str | None = _path("rows.csv", "This peer's own rows: csv or parquet. They never leave.")
    holdout: float | None = _number(
        "a number from 0 to 0.9", 0, 0.9, 0.2, "Share of the rows kept aside to judge models by."
    )
    metrics: int | None = _number(
        "a port, 0 to 65535", 0, 65535, 9100, "Port on 127.0.0.1 for /metrics and /healthz; 0 for any that is free."
    )
    log_level: str = _key(
        (str,), f"one of {', '.join(LEVELS)}", "info", "What is logged, at least.", "info", LEVELS.__contains__
    )
    silent_minutes: float = _number(
        "a number > 0", 5e-324, inf, 10.0, "`coterie peer check` warns if no neighbour was heard for so long.", 10.0
    )
    share_health: bool = _flag("Tell the group how this peer is doing, for `coterie watch`.")
    admin: str | None = _path("../club", "The group's folder, if the admin's machine is this one.")
    nice: int = _number("a whole number from 0 to 19", 0, 19, 0, "Give way to other programs: 0 to 19.", 0)
    compiled: bool | None = _flag("Compile the method, or not. Default: where there are many rows.", None)
    model: str | None = _path(
        "model.py", "A Python file of your own that makes the model, if members of the group bring it. It is run."
    )

    def path(self, folder: Where, name: str) -> Path | None:
        """Return the path in a setting. A relative path is relative to the peer's folder."""
        given = getattr(self, name)
        return None if given is None else Path(folder, Path(given).expanduser())


_KEYS = {one.name: one.metadata for one in fields(Settings)}


def read_settings(folder: Where) -> Settings:
    """Read the settings in a peer's folder, or return the defaults. An error names the bad setting."""
    path = Path(folder) / FILE
    if not path.exists():
        return Settings()
    try:
        found = tomllib.loads(read_bounded(path, limit=100_000).decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise DataError(f"{path} is not TOML: {error}") from None
    for name, value in found.items():
        _check(str(path), name, value)
    return Settings(**found)


def _check(where: str, name: str, value: Any) -> None:
    key = _KEYS.get(name)
    if key is None:
        raise ParameterError(f"{where}: {name!r:.80} is not known; there are {', '.join(_KEYS)}")
    # In Python a bool is an int, but a setting that is a number must not be true or false.
    right = isinstance(value, key["kinds"]) and (bool in key["kinds"] or not isinstance(value, bool))
    if not (right and key["holds"](value)):
        raise ParameterError(f"{where}: {name} = {value!r:.80} must be {key['must']}")


def write_settings(folder: Where, **given: Any) -> Path:
    """Write a ``peer.toml`` with comments and these settings. An existing file is not changed."""
    path = Path(folder) / FILE
    known = {name: value for name, value in given.items() if value is not None}
    for name, value in known.items():
        _check(FILE, name, value)
    if path.exists():
        return path
    lines = ["# How this machine runs its peer: coterie peer run FOLDER. Flags override what is set here;", ""]
    lines[0] += " relative paths\n# are relative to this folder. Lines that begin with # are off."
    for name, key in _KEYS.items():
        on = name in known
        # Text and numbers have the same form in TOML and in JSON.
        value = json.dumps(known[name] if on else key["example"], ensure_ascii=False)
        lines += [f"# {key['comment']}", f"{'' if on else '# '}{name} = {value}", ""]
    return write_atomic(path, "\n".join(lines).encode())


def overridden(settings: Settings, **given: Any) -> Settings:
    """Return the settings with the values of flags in place of those in the file."""
    return replace(settings, **{name: value for name, value in given.items() if value is not None})


# -- whom it does not listen to ---------------------------------------------------------------------------------------


def read_muted(folder: Where) -> list[str]:
    """Read the names of muted members."""
    path = Path(folder) / MUTED
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
    """Write the names of muted members."""
    write_atomic(Path(folder) / MUTED, json.dumps(sorted(set(names))).encode() + b"\n")


def change_muted(folder: Where, roster: Roster, me: str, name: str, undo: bool = False) -> list[str]:
    """Mute a member, or undo this, and return the names of all muted members."""
    with locked(Path(folder)):
        muted = read_muted(folder)
        if undo:
            if name not in muted:
                raise DataError(f"{name!r:.80} is not muted; muted: {', '.join(muted) or 'nobody'}")
            muted.remove(name)
        else:
            roster.by_name(name)  # raises a DataError that names the members
            if name == me:
                raise DataError(f"{name!r} is this peer itself")
            muted = sorted({*muted, name})
        write_muted(folder, muted)
    return muted


def addresses_of(names: Iterable[str], roster: Roster) -> frozenset[int]:
    """Return the addresses of those names that are members."""
    wanted = set(names)
    return frozenset(member.address for member in roster.members if member.name in wanted)
