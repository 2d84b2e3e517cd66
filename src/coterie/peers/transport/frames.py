"""What travels on a connection: one byte that says what it is, three that say how long, and the thing itself."""

from __future__ import annotations

import struct
from collections.abc import Mapping

_HEADER = struct.Struct(">I")
_SIZE = (1 << 24) - 1

PING = 0  # empty: any bytes that arrive are a sign of life
LETTER = 1
LIST = 2  # a signed list of members
FORWARD = 3  # to a relay: whom it is for, and a sealed letter or a list; from a relay: whom it is from
PRESENT = 4  # from a relay: the names of all that are connected with it
ADMITTED = 5  # to who has dialled: you are in
VISITING = 6  # or: you are not on my list of members, and may bring yours


def frame(kind: int, body: bytes = b"") -> bytes:
    """A frame as it travels."""
    return _HEADER.pack(kind << 24 | len(body)) + body


def forward(name: str, kind: int, body: bytes) -> bytes:
    """The body of a FORWARD: to, or from, a member."""
    plain = name.encode()
    return bytes([len(plain)]) + plain + bytes([kind]) + body


def read_forward(body: bytes) -> tuple[str, int, bytes] | None:
    """Name, kind and body of what is forwarded; None if it is no such thing."""
    size = body[0] if body else 0
    if len(body) < size + 2:
        return None
    try:
        return body[1 : size + 1].decode("ascii"), body[size + 1], body[size + 2 :]
    except UnicodeDecodeError:
        return None


class Reader:
    """Bytes to frames. One that is too long is passed over, and never kept."""

    def __init__(self, longest: Mapping[int, int]):
        self._longest = longest  # by kind; 0 for those that are not there
        self._rest = bytearray()
        self._skip = 0

    def feed(self, data: bytes) -> list[tuple[int, bytes | None]]:
        """The frames that are complete now: kind and body, or kind and None for one that is too long."""
        out: list[tuple[int, bytes | None]] = []
        rest = self._rest
        if self._skip:
            if len(data) <= self._skip:
                self._skip -= len(data)
                return out
            data, self._skip = data[self._skip :], 0
        if rest:
            rest += data
            if len(rest) < 4 or len(rest) - 4 < (_HEADER.unpack_from(rest)[0] & _SIZE):
                head = _HEADER.unpack_from(rest)[0] if len(rest) >= 4 else 0
                if head & _SIZE <= self._longest.get(head >> 24, 0):
                    return out  # the common case of a long one: nothing to look at yet
            data = bytes(rest)
            rest.clear()
        at, end = 0, len(data)
        while end - at >= 4:
            (head,) = _HEADER.unpack_from(data, at)
            kind, size = head >> 24, head & _SIZE
            if size > self._longest.get(kind, 0):
                out.append((kind, None))
                at += 4 + size
                if at > end:
                    self._skip = at - end
                    return out
                continue
            if end - at - 4 < size:
                break
            out.append((kind, data[at + 4 : at + 4 + size]))
            at += 4 + size
        if at < end:
            rest += data[at:]
        return out
