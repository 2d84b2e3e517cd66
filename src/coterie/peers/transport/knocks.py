"""How a member says who it is before anything else, so that a crowd of strangers does not keep it out.

A handshake is dear, so strangers may begin only so many; and strangers at a member's own address (behind one NAT) would
use up what that address may. So whoever dials knocks first: its name, the time, and an Ed25519 signature of them and of
whom it is for. It proves nothing that the handshake would not prove again; it only is let through to it. Times of one
name must grow, so that a knock that was overheard opens nothing. The run is not named: a member that still is in one
that was amended is let through, too, and learns of it as a visitor.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable

from ..group.signed import SIGNATURE, is_signed

#: The first byte of a knock, and of a TLS handshake.
KNOCK, TLS = 0x63, 0x16
#: What is signed begins with this.
CONTEXT = b"coterie knock 1\n"
#: Clocks may differ by so many seconds.
SKEW = 3600.0
#: Bytes of a knock, at most.
LONGEST = 2 + 8 + SIGNATURE + 63

_TIME = struct.Struct(">Q")


def _signed(sender: str, to: str, moment: bytes) -> bytes:
    return CONTEXT + b"\n".join((sender.encode(), to.encode(), moment))


def write_knock(sender: str, to: str, sign: Callable[[bytes], bytes]) -> bytes:
    """What to say before a handshake."""
    moment = _TIME.pack(time.time_ns())
    body = moment + sign(_signed(sender, to, moment)) + sender.encode()
    return bytes([KNOCK, len(body)]) + body


def length(data: bytes) -> int:
    """How many bytes a knock has that begins so."""
    return 2 + data[1] if len(data) > 1 else 2


class Knocks:
    """Whose knocks are good."""

    def __init__(self, me: str):
        self._me = me
        self._keys: dict[str, bytes] = {}
        self._last: dict[str, int] = {}

    def admit(self, keys: dict[str, bytes]) -> None:
        """Public keys of the members."""
        self._keys = keys
        self._last = {name: moment for name, moment in self._last.items() if name in keys}

    def claimed(self, knock: bytes) -> str | None:
        """The name that a knock gives, if it is a member's and the knock is not an old one."""
        try:
            name = knock[2 + 8 + SIGNATURE :].decode("ascii")
        except UnicodeDecodeError:
            return None
        if name not in self._keys or len(knock) <= 2 + 8 + SIGNATURE:
            return None
        (moment,) = _TIME.unpack(knock[2:10])
        good = moment > self._last.get(name, 0) and abs(moment / 1e9 - time.time()) <= SKEW
        return name if good else None

    def check(self, name: str, knock: bytes) -> bool:
        """Whether it is that member's."""
        moment, signature = knock[2:10], knock[10 : 10 + SIGNATURE]
        if not is_signed(self._keys[name], signature, _signed(name, self._me, moment)):
            return False
        self._last[name] = _TIME.unpack(moment)[0]
        return True
