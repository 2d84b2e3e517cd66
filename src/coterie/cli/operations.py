"""Commands for operating a peer: ``check``, ``mute``, ``audit``, ``install``."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from ..errors import DataError, ParameterError
from .console import AUDIT_FAILED, BAD_INPUT, AsJson, columns, note, out, show
from .groups import Folder


def check_peer(folder: Folder, as_json: AsJson = False) -> None:
    """Print the health of a peer in one line, for monitoring, with exit code 0 ok, 1 warning, 2 critical, 3 unknown."""
    from ..peers.node.checks import LEVELS, checked, worst

    if not (folder / "identity.json").is_file():
        text = f"{folder} holds no peer"
        _say_health("unknown", folder.name, text, [], as_json)
        raise typer.Exit(BAD_INPUT)
    found, seen = checked(folder)
    level = worst(found)
    order = sorted(found, key=lambda one: one.level != "critical")
    text = "; ".join(one.text for one in order)
    if not found and seen.status is not None:
        text = f"process {seen.pid}, {seen.status.get('wakes', 0):,} wakes"
    name = folder.resolve().name if seen.status is None else str(seen.status.get("name"))
    _say_health(level, name, text, [one._asdict() for one in order], as_json)
    raise typer.Exit(LEVELS.index(level))


def _say_health(level: str, name: str, text: str, found: list[dict[str, str]], as_json: bool) -> None:
    if as_json:
        print(json.dumps({"health": level, "name": name, "findings": found}))
    else:
        print(f"{level.upper()}: {name}: {text or 'well'}".replace("\n", " "))


def mute_peer(
    folder: Folder,
    name: Annotated[str | None, typer.Argument(help="The neighbour.")] = None,
    undo: Annotated[bool, typer.Option("--undo", help="Take messages from the neighbour again.")] = False,
    listed: Annotated[bool, typer.Option("--list", help="Only list the muted neighbours.")] = False,
    as_json: AsJson = False,
) -> None:
    """Delete the messages of a neighbour, and accept no more of them. A running peer applies this within a second."""
    from ..peers.group.groups import membership
    from ..peers.node.audit_log import FILE, AuditLog
    from ..peers.node.process import running
    from ..peers.node.settings import change_muted, read_muted

    if listed:
        muted = read_muted(folder)
        show({"muted": muted}, f"muted: {', '.join(muted) or 'nobody'}", as_json)
        return
    if name is None:
        raise ParameterError("mute needs a neighbour's name, or --list")
    joined = membership(folder)
    muted = change_muted(folder, joined.roster, joined.identity.name, name, undo)
    if running(folder) is None:  # a running peer writes the event itself when it has muted the neighbour
        AuditLog(folder / FILE)("heard again" if undo else "muted", name=name)
    show({"muted": muted}, f"muted: {', '.join(muted) or 'nobody'}", as_json)


def audit_peer(
    folder: Folder,
    last: Annotated[int | None, typer.Option(help="Show only this number of events, the last ones.", min=1)] = None,
    as_json: AsJson = False,
) -> None:
    """Show the events in the audit log of a peer, and whether its chain of lines is intact."""
    from ..peers.node.audit_log import FILE, read_audit

    found = read_audit(folder / FILE)
    shown = found.entries if last is None else found.entries[-last:]
    if as_json:
        events = [{"number": e.number, "at": e.at, "event": e.event, **e.fields} for e in shown]
        whole = {"good": found.broken is None, "broken": found.broken, "torn": found.torn, "head": found.head}
        print(json.dumps(whole | {"events": events}))
    else:
        torn = f"; {found.torn} torn by a crash" if found.torn else ""
        verdict = f"every line fits the one before{torn}. The last one is {found.head[:16]}"
        if found.broken is not None:
            verdict = f"[bold red]changed after it was written: {escape(found.broken)}[/]"
        heads = columns("", "when", "event", "", overflow="fold")
        table = Table(*heads, title=f"{len(found.entries)} events", caption=verdict)
        for entry in shown:
            when = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(entry.at))
            told = ", ".join(f"{key} {_short(value)}" for key, value in entry.fields.items() if value not in ([], None))
            table.add_row(str(entry.number), when, escape(entry.event), escape(told))
        out.print(table)
    if found.broken is not None:
        raise typer.Exit(AUDIT_FAILED)


def _short(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def install_peer(
    folder: Folder,
    user: Annotated[str | None, typer.Option(help="User of the service. Default: the owner of the folder.")] = None,
    output: Annotated[Path, typer.Option("--output", "-o", help="The folder for the unit.")] = Path("."),
    as_json: AsJson = False,
) -> None:
    """Write a systemd unit that runs a peer, or a relay, as a service without privileges."""
    from .._files import write_atomic
    from ..peers.group.groups import membership
    from ..peers.group.roster import Relay
    from ..peers.node.service import owner_of, unit_of
    from ..peers.node.settings import read_settings

    joined, settings = membership(folder), read_settings(folder)
    relay = isinstance(joined.me, Relay)
    data = settings.path(folder.resolve(), "data")
    if data is not None and not data.is_file():
        raise DataError(f"{folder / 'peer.toml'}: data = {settings.data!r} is not a file: {data}")
    if data is None and not relay:
        note(f"{folder / 'peer.toml'} names no data, so the peer will have no rows")
    admin = None if relay else settings.path(folder.resolve(), "admin")
    if admin is not None and not admin.is_dir():
        raise DataError(f"{folder / 'peer.toml'}: admin = {settings.admin!r} is not a folder: {admin}")
    if user is not None and user != owner_of(folder):
        note(f"{folder} is not {user}'s, who could not read it: sudo chown -R {user} {folder}")
    if not output.is_dir():
        raise ParameterError(f"--output {output} is not a folder")
    unit = unit_of(folder, joined.identity.name, user or owner_of(folder), data=data, admin=admin, relay=relay)
    path = write_atomic(output / f"coterie-{joined.identity.name}.service", unit.encode())
    commands = [f"sudo install -m 644 {path} /etc/systemd/system/", f"sudo systemctl enable --now {path.name}"]
    show(
        {"unit": str(path), "commands": commands}, "\n  ".join([f"{path}. To run it from now on:", *commands]), as_json
    )


__all__ = ["audit_peer", "check_peer", "install_peer", "mute_peer"]
