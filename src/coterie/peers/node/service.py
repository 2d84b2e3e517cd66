"""A systemd service for a peer: a unit without the permissions that the peer does not need."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

from ..._files import Where
from ...errors import ParameterError

#: Folders of users' homes, which are hidden from a service that needs none of them.
HOMES = ("/home", "/root", "/run/user")

_UNIT = """\
# Written by `coterie peer install`. Limits are generous: change them with `systemctl edit {unit}`.
[Unit]
Description=coterie {kind} {name}
After=network-online.target
Wants=network-online.target
StartLimitIntervalSec=600
StartLimitBurst=10

[Service]
Type={type}
ExecStart={command}
User={user}
WorkingDirectory={folder}
Environment=PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 HOME={folder} COTERIE_CACHE={folder}/cache
UMask=0077
Restart=on-failure
RestartSec=10
# A usage error, bad input, or removal from the group: another start would not help.
RestartPreventExitStatus=2 3 5
TimeoutStartSec=600
TimeoutStopSec=60
{watchdog}
# Resources that the service may use.
MemoryMax=2G
TasksMax=64
LimitNOFILE=4096
LimitCORE=0
CPUWeight=50
IOWeight=50

# Files and system calls that the service may use.
ReadWritePaths={writes}
{reads}ProtectSystem=strict
ProtectHome={home}
PrivateTmp={tmp}
PrivateDevices=yes
ProtectClock=yes
ProtectHostname=yes
ProtectKernelLogs=yes
ProtectKernelModules=yes
ProtectKernelTunables=yes
ProtectControlGroups=yes
ProtectProc=invisible
ProcSubset=pid
NoNewPrivileges=yes
CapabilityBoundingSet=
AmbientCapabilities=
LockPersonality=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
RestrictNamespaces=yes
RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX
RemoveIPC=yes
KeyringMode=private
SystemCallArchitectures=native
SystemCallFilter=@system-service
SystemCallFilter=~@privileged
SystemCallErrorNumber=EPERM

[Install]
WantedBy=multi-user.target
"""


def unit_of(
    folder: Where, name: str, user: str, *, data: Path | None = None, admin: Path | None = None, relay: bool = False
) -> str:
    """Return the text of a unit. ``data`` is the path of the rows, which the service may read; ``admin`` is the group's
    folder, in which it renews certificates.
    """
    where = Path(folder).resolve()
    if not re.fullmatch(r"[a-z_][a-z0-9_-]*\$?", user):
        raise ParameterError(f"user={user!r:.80} is not the name of a user")
    # Not resolved, because the interpreter of a virtual environment is a link that must be called by its own name.
    interpreter = Path(os.path.abspath(sys.executable))
    used = [where, interpreter, *(path.resolve() for path in (data, admin) if path is not None)]
    for path in used:
        if not re.fullmatch(r"[\w@+=:,./-]+", str(path), re.ASCII):
            raise ParameterError(f"{path}: a unit cannot name a path with such characters; choose another")
    at_home = any(path.is_relative_to(home) for home in HOMES for path in (*used, interpreter.resolve()))
    outside = data is not None and not data.resolve().is_relative_to(where)
    return _UNIT.format(
        unit=f"coterie-{name}.service",
        name=name,
        kind="relay" if relay else "peer",
        type="simple" if relay else "notify",
        command=f"{interpreter} -m coterie {'relay' if relay else 'peer run'} {where}",
        user=user,
        folder=where,
        writes=where if admin is None else f"{where} {admin.resolve()}",
        # A peer that hangs is restarted. The limit is long enough for slow steps.
        watchdog="" if relay else "WatchdogSec=300\n",
        reads=f"ReadOnlyPaths={data.resolve()}\n" if outside and data is not None else "",
        home="read-only" if at_home else "yes",
        tmp="no" if any(path.is_relative_to(top) for top in ("/tmp", "/var/tmp") for path in used) else "yes",
    )


def owner_of(folder: Where) -> str:
    """Return the user who owns a folder."""
    try:
        return Path(folder).owner()
    except (KeyError, OSError, NotImplementedError):
        raise ParameterError(f"the owner of {folder} is unknown: name the user who runs the peer with --user") from None
