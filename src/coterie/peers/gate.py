"""What a letter must pass before a method sees it.

In this order: it is from a member; short enough; not one too many; it decodes; its version and run are ours; its sender
owns the key that it came by; it is for us; it is newer than the last one from that sender; its signature is good; and
then what it holds: a kind that the method knows, as many numbers as there must be, all of them finite, no model longer
than the run's public radius. Anything else is refused, and counted by its reason.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Container, Mapping
from typing import NamedTuple

import numpy as np

from ..core.letters import Contents
from ..core.world import EVERYONE
from ..engines.wire import decode
from ..errors import DataError, MissingExtra
from .letters import VERSION, Envelope, unseal

try:
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
except ImportError as error:
    raise MissingExtra("real peers need cryptography: pip install 'coterie[network]'") from error

#: Why letters are refused.
REASONS = (
    "stranger",  # not from a member
    "size",
    "rate",  # too many in a second
    "format",  # no sealed letter
    "version",
    "run",
    "sender",  # not the owner of the key it came by
    "recipient",  # for somebody else
    "replay",  # no newer than the last one
    "signature",
    "unproven",  # may be an old one: the sender has not yet answered to this start of ours
    "rows",  # claims a larger data set than there may be
    "shape",  # a kind or a length that the method does not know
    "finite",
    "norm",  # a model beyond the public radius
    "range",  # another number that no honest peer sends
    "method",  # the method raised
)
#: How many seconds' worth of letters may come at once.
BURST = 4.0


class Refused(DataError):  # noqa: N818 - it says what happened
    """A letter that did not pass, and why."""

    def __init__(self, reason: str, text: str):
        super().__init__(f"{reason}: {text}")
        self.reason = reason


class Place(NamedTuple):
    """Where a letter stands among those of its sender: compares as (boot, sequence)."""

    boot: int
    sequence: int


class Bucket:
    """Lets so many through in a second, and some more at once.

    Examples
    --------
    >>> bucket = Bucket(rate=1.0, most=2.0)
    >>> [bucket.take(now) for now in (0.0, 0.0, 0.0, 1.0)]
    [True, True, False, True]
    """

    def __init__(self, rate: float, most: float):
        self.rate, self.most, self._left, self._then = rate, most, most, 0.0

    def take(self, now: float) -> bool:
        """Whether one more may pass."""
        self._left = min(self.most, self._left + max(0.0, now - self._then) * self.rate)
        self._then = now
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True


class Gate:
    """Checks letters, and remembers which were the last.

    Parameters
    ----------
    run : bytes
        The run's id, 16 bytes.
    address : int
        Whose gate it is.
    letter_bytes : int
        No letter may be longer.
    letters_per_second : float
        From one sender.
    max_rows : int
        No data set is larger.
    """

    def __init__(self, run: bytes, address: int, letter_bytes: int, letters_per_second: float, max_rows: int):
        self.run, self.address, self.letter_bytes, self.max_rows = run, address, letter_bytes, max_rows
        self.rate = letters_per_second
        self.last: dict[bytes, Place] = {}  # by public key
        self.refused: Counter[str] = Counter()
        self._keys: dict[int, tuple[bytes, Ed25519PublicKey]] = {}
        self._buckets: dict[int, Bucket] = {}

    def admit(self, keys: Mapping[int, bytes]) -> None:
        """Whose letters may pass: addresses and public keys."""
        self._keys = {
            address: (key, Ed25519PublicKey.from_public_bytes(key))
            for address, key in keys.items()
            if address != self.address
        }
        self._buckets = {address: bucket for address, bucket in self._buckets.items() if address in self._keys}

    def check(self, now: float, owner: int, sealed: bytes) -> Envelope:
        """The letter in a sealed one that came by a key of ``owner``: authentic and new, or :class:`Refused`.

        What the letter holds is not looked at yet: :func:`check_text`.
        """
        if owner not in self._keys:
            raise Refused("stranger", f"from {owner}, who is no member, or is this peer itself")
        if len(sealed) > self.letter_bytes:
            raise Refused("size", f"{len(sealed)} bytes from {owner}; at most {self.letter_bytes}")
        bucket = self._buckets.get(owner)
        if bucket is None:
            bucket = self._buckets[owner] = Bucket(self.rate, BURST * self.rate)
        if not bucket.take(now):
            raise Refused("rate", f"more than {self.rate:g} letters a second from {owner}")
        try:
            letter, signature, signed = unseal(sealed)
        except DataError as error:
            raise Refused("format", f"from {owner}: {error}") from None
        if letter.version != VERSION:
            raise Refused("version", f"{letter.version} from {owner}; this is {VERSION}")
        if letter.run != self.run:
            raise Refused("run", f"{letter.run.hex()} from {owner}; this is {self.run.hex()}")
        if letter.sender != owner:
            raise Refused("sender", f"{letter.sender} by the key of {owner}")
        if letter.to not in (self.address, EVERYONE):
            raise Refused("recipient", f"from {owner} for {letter.to}; this is {self.address}")
        key, verifier = self._keys[owner]
        place, last = Place(letter.boot, letter.sequence), self.last.get(key)
        if last is not None and place <= last:
            raise Refused("replay", f"letter {place} from {owner}, after {last}")
        try:
            verifier.verify(signature, signed)
        except InvalidSignature:
            raise Refused("signature", f"not {owner}'s") from None
        self.last[key] = place  # it was sent by its sender, whatever it holds: never again
        if letter.largest > self.max_rows:
            raise Refused("rows", f"{owner} tells of {letter.largest} rows; at most {self.max_rows}")
        return letter


def check_text(contents: Contents, members: Container[int], owner: int, frame: bytes) -> tuple[int, np.ndarray]:
    """Kind and numbers of a letter of a method; refuses one that no honest peer sends."""
    try:
        sender, kind, text = decode(frame)
        if sender != owner:
            raise Refused("sender", f"a frame of {sender} in a letter of {owner}")
        contents.check_length(kind, text.shape[0])
    except Refused:
        raise
    except DataError as error:
        raise Refused("finite" if "finite" in str(error) else "shape", f"from {owner}: {error}") from None
    models, allowed = contents.read(kind, text, members)
    if not allowed:
        raise Refused("range", f"a number of kind {kind} from {owner} is out of its range")
    norm = max((math.hypot(*model.tolist()) for model in models), default=0.0)
    if not norm <= contents.bounds.radius:
        raise Refused("norm", f"a model of norm {norm:.4g} from {owner}; at most {contents.bounds.radius:g}")
    return kind, text
