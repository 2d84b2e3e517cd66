"""What a peer tells the program that supervises it, such as systemd: that it is ready, and that it is alive."""

from __future__ import annotations

import contextlib
import os
import socket


def notify(text: str) -> bool:
    """Tell the supervisor, if there is one: see sd_notify(3). Whether it was told."""
    name = os.environ.get("NOTIFY_SOCKET", "")
    if not name.startswith(("/", "@")) or not hasattr(socket, "AF_UNIX"):
        return False
    with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as one:
        one.setblocking(False)
        one.sendto(text.encode(), "\0" + name[1:] if name.startswith("@") else name)
        return True
    return False
