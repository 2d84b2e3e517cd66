"""What a letter must pass before a method sees it.

In this order: its packet is from a member; short enough; not one too many; it decodes; its version and run are ours;
its sender owns the key that it came by; it is for us; it is newer than the last one from that sender; its signature is
good; and then what it holds: a kind that the method knows, as many numbers as there must be, all of them finite, no
model longer than the run's public radius. Anything else is refused, and counted by its reason.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Container, Mapping
from typing import Any, NamedTuple

import numpy as np

from ..core.methods.admm import AUTO, CollaborativeADMM
from ..core.methods.admm import MODEL as ADMM_MODEL
from ..core.methods.boosting import MISSED, WHOLE
from ..core.methods.pooling import FARTHEST
from ..core.world import EVERYONE
from ..core.wrap.learned import ANSWER, ANSWER_LENGTH, ASK, OFFSET, WEIGHT, Learned
from ..engines.wire import read_numbers
from ..errors import DataError, MissingExtra
from .packet import VERSION, Packet, read_packet

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
    "format",  # not a packet
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
#: A stamp of a tie counts its changes, and is below this.
LATEST = 2.0**52
#: A penalty of ADMM is no further from 1 than this.
STIFFEST = 1e12
#: What an agent tells of its loss is no larger.
DEAREST = 1e12
#: How many seconds' worth of letters may come at once.
BURST = 4.0


class Refused(DataError):  # noqa: N818 - it says what happened
    """A letter that did not pass, and why."""

    def __init__(self, reason: str, text: str):
        super().__init__(f"{reason}: {text}")
        self.reason = reason


class Bucket:
    """Lets ``rate`` through in a second, and ``capacity`` at once."""

    def __init__(self, rate: float, capacity: float):
        self.rate, self.capacity, self._left, self._then = rate, capacity, capacity, 0.0

    def take(self, now: float) -> bool:
        """Whether one more may pass."""
        self._left = min(self.capacity, self._left + max(0.0, now - self._then) * self.rate)
        self._then = now
        if self._left < 1.0:
            return False
        self._left -= 1.0
        return True


class Gate:
    """Checks packets that come to a peer, and remembers the number of the last from each sender."""

    def __init__(self, run: bytes, address: int, letter_bytes: int, letters_per_second: float, max_rows: int):
        self.run, self.address, self.letter_bytes, self.max_rows = run, address, letter_bytes, max_rows
        self.rate = letters_per_second
        self.last: dict[bytes, tuple[int, int]] = {}  # numbers, by public key
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

    def check(self, now: float, owner: int, data: bytes) -> Packet:
        """The packet that came by a key of ``owner``: authentic and new, or :class:`Refused`.

        What it holds is not looked at yet: :func:`check_letter`.
        """
        if owner not in self._keys:
            raise Refused("stranger", f"from {owner}, who is no member, or is this peer itself")
        if len(data) > self.letter_bytes:
            raise Refused("size", f"{len(data)} bytes from {owner}; at most {self.letter_bytes}")
        bucket = self._buckets.get(owner)
        if bucket is None:
            bucket = self._buckets[owner] = Bucket(self.rate, BURST * self.rate)
        if not bucket.take(now):
            raise Refused("rate", f"more than {self.rate:g} letters a second from {owner}")
        try:
            packet, signature, signed = read_packet(data)
        except DataError as error:
            raise Refused("format", f"from {owner}: {error}") from None
        if packet.version != VERSION:
            raise Refused("version", f"{packet.version} from {owner}; this is {VERSION}")
        if packet.run != self.run:
            raise Refused("run", f"{packet.run.hex()} from {owner}; this is {self.run.hex()}")
        if packet.sender != owner:
            raise Refused("sender", f"{packet.sender} by the key of {owner}")
        if packet.to not in (self.address, EVERYONE):
            raise Refused("recipient", f"from {owner} for {packet.to}; this is {self.address}")
        key, verifier = self._keys[owner]
        last = self.last.get(key)
        if last is not None and packet.number <= last:
            raise Refused("replay", f"number {packet.number} from {owner}, after {last}")
        try:
            verifier.verify(signature, signed)
        except InvalidSignature:
            raise Refused("signature", f"not {owner}'s") from None
        self.last[key] = packet.number  # it was sent by its sender, whatever it holds: never again
        if packet.largest > self.max_rows:
            raise Refused("rows", f"{owner} tells of {packet.largest} rows; at most {self.max_rows}")
        return packet


def check_letter(terms: Terms, members: Container[int], packet: Packet) -> np.ndarray:
    """The numbers of a packet of the method's; refuses what no honest peer sends."""
    try:
        text = read_numbers(packet.content)
    except DataError as error:
        raise Refused("finite" if "finite" in str(error) else "shape", f"from {packet.sender}: {error}") from None
    check_text(terms, members, packet.sender, packet.kind, text)
    return text


class Terms(NamedTuple):
    """What letters of a run may hold."""

    method: Any
    lengths: tuple[Any, ...]  # ``method.lengths(p)``
    p: int  # numbers in a model
    radius: float  # no model is longer
    ball: float = math.inf  # of boosting, whose losses may be negative, but not below this
    outputs: int = 1


def check_text(terms: Terms, members: Container[int], owner: int, kind: int, text: np.ndarray) -> None:
    """Refuse numbers of ``owner`` that no honest peer sends: ``members`` are the addresses that there are."""
    if kind >= len(terms.lengths):
        raise Refused("shape", f"kind {kind} from {owner}, which {terms.method!r} does not know")
    expected = terms.lengths[kind]
    if text.shape[0] not in (expected if isinstance(expected, range) else (expected,)):
        raise Refused("shape", f"{text.shape[0]} numbers of kind {kind} from {owner}; there must be {expected}")
    models, fair = parts(terms, terms.method, members, kind, text)
    if not fair:
        raise Refused("range", f"a number of kind {kind} from {owner} is out of its range")
    norm = max((math.hypot(*model.tolist()) for model in models), default=0.0)
    if not norm <= terms.radius:
        raise Refused("norm", f"a model of norm {norm:.4g} from {owner}; at most {terms.radius:g}")


def parts(
    terms: Terms, method: Any, members: Container[int], kind: int, text: np.ndarray
) -> tuple[list[np.ndarray], bool]:
    """The models in a letter, and whether the numbers beside them are such as an honest peer may send.

    Examples
    --------
    >>> import numpy as np
    >>> from coterie.core.methods import CollaborativeADMM
    >>> terms = Terms(CollaborativeADMM(), (2, 9, 9), p=2, radius=10.0)
    >>> models, fair = parts(terms, terms.method, (), 1, np.arange(9.0))  # four vectors, and rho
    >>> len(models), fair
    (4, True)
    """
    if isinstance(method, Learned):
        if kind >= OFFSET:
            return parts(terms, method.method, members, kind - OFFSET, text)
        if kind not in (ASK, ANSWER, WEIGHT):
            return [], all(address in members for address in text[::2])  # addresses and ages, of the sampler
        weight, stamp, square = text[:3]
        fair = 0.0 <= weight <= method.rule.max_weight and 0.0 <= stamp < LATEST and square >= 0.0
        if kind != ANSWER:
            return [], fair
        least = -terms.ball if math.isfinite(terms.ball) else 0.0
        fair = fair and text[4] >= 0.0 and least <= text[5] <= DEAREST  # degree and loss
        model = text[ANSWER_LENGTH:]
        return [model[1::2] if method.pairs else model], fair
    if getattr(method, "on_balls", False):
        return _boosted(terms, kind, text)
    if getattr(method, "flows", False) and text.shape[0] > terms.p:
        average = text[text.shape[0] // 2 :]  # beside squares, rows and flows, of which there is no saying
        weight = max(abs(average[-1]), 1.0)
        return [average[: terms.p] / weight], bool(np.all(np.abs(text) <= FARTHEST))
    if isinstance(method, CollaborativeADMM) and kind != ADMM_MODEL:
        rho = text[4 * terms.p :]
        fair = method.rho != AUTO or bool(np.all((rho >= 1.0 / STIFFEST) & (rho <= STIFFEST)))
        return list(text[: 4 * terms.p].reshape(4, terms.p)), fair
    return [text], True


def _boosted(terms: Terms, kind: int, text: np.ndarray) -> tuple[list[np.ndarray], bool]:
    """The same for boosting: a whole model as pairs, a step, or a request for the whole."""
    if kind == MISSED:
        return [], True
    fair = 0.0 <= text[0] < LATEST  # how many steps there were
    if kind == WHOLE:
        return [text[2::2]], fair
    size = terms.p // terms.outputs
    goals = text[2:]
    fair = fair and 0.0 <= text[1] <= 1.0 and goals.shape[0] == terms.outputs
    return [], fair and bool(np.all(np.abs(goals) <= size))
