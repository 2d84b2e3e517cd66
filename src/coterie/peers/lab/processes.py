"""Actions on the peers of a lab from any process: kill, pause, resume, cut off; and end the lab."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..._files import write_atomic
from ...errors import IdentityError, ParameterError
from ..node.process import running

#: Ports of peers: below the ports of outgoing connections, which could take the port of a dead peer.
PORTS = range(10240, 32768)
#: Maximal seconds for a peer to start, and to end.
START_TIMEOUT, END_TIMEOUT = 60.0, 20.0


def peers_of(folder: Path) -> list[Path]:
    """Return the folders of the peers of a lab."""
    found = read_json(folder / "lab.json", None)
    if found is None:
        raise IdentityError(f"there is no lab in {folder}: coterie lab 20{_folder_option(folder)} starts one")
    return [folder / f"p{i}" for i in range(int(found["peers"]))]


def check_folder(folder: Path) -> None:
    """Refuse a folder that is in use, or that is not for labs."""
    where = _folder_option(folder)
    if running(folder):
        raise IdentityError(f"a lab is running in {folder}, as process {running(folder)}: coterie lab stop{where}")
    if (folder / "lab.json").exists():
        left = [peer.name for peer in peers_of(folder) if running(peer)]
        if left:
            raise IdentityError(f"peers of an earlier lab still run in {folder}, {left[0]}: coterie lab stop{where}")
    elif folder.exists() and (not folder.is_dir() or any(one.name != "lock" for one in folder.iterdir())):
        raise IdentityError(f"{folder} is there already, and is not the folder of a lab: choose another --folder")


def clear(folder: Path) -> None:
    """Remove an earlier lab. ``lab.json`` goes last, so that the lab can be removed again if something fails."""
    for one in sorted(folder.iterdir(), key=lambda path: path.name == "lab.json"):
        if one.is_dir() and not one.is_symlink():
            shutil.rmtree(one)
        elif one.name != "lock":
            one.unlink()


def kill(folder: Path) -> None:
    """Send SIGKILL to the peer of a folder, and wait until it has ended."""
    send_signal(folder, signal.SIGKILL)
    (folder / "paused").unlink(missing_ok=True)
    wait_until(lambda: not running(folder), END_TIMEOUT, f"{folder.name} does not end")


def pause(folder: Path) -> None:
    """Send SIGSTOP to the peer of a folder."""
    send_signal(folder, signal.SIGSTOP)
    (folder / "paused").touch()


def resume(folder: Path) -> None:
    """Send SIGCONT to the peer of a folder."""
    send_signal(folder, signal.SIGCONT)
    (folder / "paused").unlink(missing_ok=True)


def start(folder: Path) -> None:
    """Ask the lab to start the peer of a folder, and wait until it runs."""
    if running(folder):
        raise IdentityError(f"{folder.name} is running already")
    (folder / "start").touch()
    wait_until(lambda: running(folder), START_TIMEOUT, f"{folder.name} has not started")


def partition(folders: Sequence[Path], some: Sequence[int]) -> None:
    """Block messages between some peers and the rest. With ``some`` empty, block none."""
    rest = [i for i in range(len(folders)) if i not in set(some)]
    for i, folder in enumerate(folders):
        away = rest if i in set(some) else list(some)
        write_atomic(folder / "blocked", json.dumps(away).encode(), private=True, durable=False)


def send_signal(folder: Path, number: int) -> None:
    """Send a signal to the process that runs in a folder."""
    pid = running(folder)
    if pid is None:
        raise IdentityError(f"{folder.name} is not running")
    with contextlib.suppress(ProcessLookupError):  # the process has just ended
        os.kill(pid, number)


def wait_until(holds: Callable[[], object], seconds: float, otherwise: str) -> None:
    """Wait until a condition holds, or raise an IdentityError."""
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            raise IdentityError(f"{otherwise} within {seconds:g} s")
        time.sleep(0.05)


def stop_lab(folder: Path) -> list[str]:
    """End the lab of a folder and its peers. Return the names of peers that the lab itself has not ended."""
    folders = peers_of(folder)
    if running(folder):
        send_signal(folder, signal.SIGTERM)
        wait_until(lambda: not running(folder), 2 * END_TIMEOUT + 0.2 * len(folders), "the lab does not end")
    left = [peer for peer in folders if running(peer)]
    for number, seconds in ((signal.SIGTERM, END_TIMEOUT), (signal.SIGKILL, END_TIMEOUT)):
        for peer in left:
            with contextlib.suppress(IdentityError):
                send_signal(peer, number)
                resume(peer)
        with contextlib.suppress(IdentityError):
            wait_until(lambda: not any(running(peer) for peer in left), seconds, "peers do not end")
    return [peer.name for peer in left]


def free_ports(n: int) -> list[int]:
    """Return free ports on loopback."""
    found: list[int] = []
    begin = int.from_bytes(os.urandom(4), "little") % len(PORTS)
    for k in range(len(PORTS)):
        with socket.socket() as probe, contextlib.suppress(OSError):
            port = PORTS[(begin + k) % len(PORTS)]
            probe.bind(("127.0.0.1", port))
            found.append(port)
        if len(found) == n:
            return found
    raise ParameterError(
        f"there are no {n} free ports between {PORTS.start} and {PORTS.stop}: start fewer peers, or end what uses them"
    )


def read_json(path: Path, otherwise: Any) -> Any:
    """Return the content of a JSON file, or `otherwise` if it cannot be read."""
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError):
        return otherwise


def _folder_option(folder: Path) -> str:
    return "" if folder.resolve() == Path("coterie-lab").resolve() else f" --folder {folder}"
