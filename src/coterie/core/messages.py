"""Content of messages, declared by kind; read by buffers, the codec, the accounts and the check of received messages.

A method states ``messages = {MODEL: Vector(), ASK: (Vector(4), Number(0.0, 1.0))}``: for each kind one part, or several
parts in the order in which they are written; ``()`` for a message without content. Kinds count from 0. At most one part
of a message may vary in length. A part also defines how its numbers are encoded, by default 8 bytes each; code that
counts or writes bytes uses this definition.
"""

from __future__ import annotations

import math
from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ..errors import DataError
from .compile import inline

#: Exclusive upper bound of counters in messages, such as numbers of steps.
MAX_COUNT = 2.0**52
#: Largest loss that an agent may report.
MAX_LOSS = 1e12
#: Bytes of a double.
NUMBER_SIZE = 8


#: Encoding of a pair of index and value.
_PAIR = np.dtype([("index", "<u4"), ("value", "<f8")])


class Unsound(DataError):  # noqa: N818 - names the fault of a message
    """A message that no honest peer sends: with a wrong shape, or with numbers that are not finite or too large."""

    def __init__(self, reason: str, text: str):
        super().__init__(text)
        self.reason = reason  # "shape", "finite", "range" or "norm"


@inline
def is_sound(text, largest):
    """Return whether no number exceeds `largest` in absolute value; for handlers, which may receive anything."""
    sound = True
    for k in range(text.shape[0]):
        sound = sound and abs(text[k]) <= largest  # false for NaN
    return sound


def finite(text: np.ndarray) -> np.ndarray:
    """Return the numbers unchanged; raise a :class:`~coterie.errors.DataError` if one is not finite."""
    # A finite sum of squares implies finite numbers; np.vdot computes it fast and never warns.
    if not math.isfinite(np.vdot(text, text)) and not np.all(np.isfinite(text)):
        raise Unsound("finite", "a message holds a number that is not finite")
    return text


@inline
def entries_of(share, count, p):
    """Return the number of selected entries: ``count``, or the fraction ``share`` of p if count is 0; at least one."""
    if count == 0:
        count = math.ceil(share * p - 1e-9)
    return min(max(count, 1), p)


class Bounds(NamedTuple):
    """Bounds on the messages of a run."""

    p: int  # number of parameters of a model
    radius: float = math.inf  # largest norm of a model
    ball: float = math.inf  # radius of boosting's ball; minus this is the lower bound of its losses
    outputs: int = 1


class Part:
    """One part of a message."""

    def length(self, p: int) -> int | range:
        """Return how many numbers this part has, for models of p numbers; a range if the length varies."""
        return 1

    def models(self, numbers: np.ndarray, bounds: Bounds) -> list[np.ndarray]:
        """Return the models in this part, whose norms are checked against the public radius."""
        return []

    def allowed(self, numbers: np.ndarray, bounds: Bounds, members: Container[int]) -> bool:
        """Return whether an honest peer could have sent these numbers."""
        return True

    def bits(self, count: float, bounds: Bounds, number_bits: int) -> float:
        """Return the information in `count` numbers of this part, in bits, as counted in DADA, Section D."""
        return count * number_bits

    def size(self, count: int) -> int:
        """Return the bytes of `count` numbers of this part; proportional to `count` if the length varies."""
        return NUMBER_SIZE * count

    def write(self, numbers: np.ndarray) -> bytes:
        """Encode the numbers as bytes: little-endian doubles."""
        return numbers.astype("<f8", copy=False).tobytes()

    def restore(self, data: bytes, count: int) -> np.ndarray:
        """Decode `count` numbers from as many bytes as :meth:`size` returns."""
        return np.frombuffer(data, "<f8").astype(np.float64)


@dataclass(frozen=True)
class Vector(Part):
    """One or several models, one after the other."""

    count: int = 1

    def length(self, p):
        return self.count * p

    def models(self, numbers, bounds):
        return list(numbers.reshape(self.count, bounds.p))


class Floats(Part):
    """Numbers in single precision, 4 bytes each: the receiver gets rounded values."""

    def size(self, count):
        return 4 * count

    def write(self, numbers):
        """Encode as little-endian floats; a number too large for a float becomes infinite, and receivers refuse it."""
        with np.errstate(over="ignore"):
            return numbers.astype("<f4").tobytes()

    def restore(self, data, count):
        with np.errstate(invalid="ignore"):  # for signalling NaNs: the receiver checks for numbers that are not finite
            return np.frombuffer(data, "<f4").astype(np.float64)


@dataclass(frozen=True)
class SingleVector(Floats, Vector):
    """One or several models in single precision."""


def in_single(messages: Mapping[int, Any]) -> dict[int, Any]:
    """Return the messages with their models in single precision; counters stay as they are."""
    return {
        kind: tuple(SingleVector(part.count) if type(part) is Vector else part for part in parts_of(message))
        for kind, message in messages.items()
    }


@dataclass(frozen=True)
class Pairs(Part):
    """A sparse model: pairs of index and value."""

    def length(self, p):
        """Two numbers for each nonzero entry."""
        return range(0, 2 * p + 1, 2)

    def models(self, numbers, bounds):
        """The values; zeros do not change the norm."""
        return [numbers[1::2]]

    def bits(self, count, bounds, number_bits):
        """Count an index as one of p."""
        return count / 2 * (number_bits + math.log2(bounds.p))


@dataclass(frozen=True)
class Single(Floats):
    """A vector of p numbers in single precision, already rounded by the sender."""

    def length(self, p):
        return p


@dataclass(frozen=True)
class Largest(Part):
    """The largest entries of a vector, a number or a share of them: pairs of index (4 bytes) and value (8 bytes)."""

    share: float
    count: int = 0

    def length(self, p):
        """Two numbers for each entry."""
        return 2 * entries_of(self.share, self.count, p)

    def allowed(self, numbers, bounds, members):
        """Indices must lie in the vector and be strictly increasing."""
        index = numbers[::2]
        steps = np.diff(index, prepend=-1.0, append=bounds.p)
        return bool(np.all(index == np.floor(index)) and np.all(steps > 0))

    def bits(self, count, bounds, number_bits):
        """Count an index as one of p."""
        return count / 2 * (number_bits + math.log2(bounds.p))

    def size(self, count):
        """12 bytes for each pair."""
        return 6 * count

    def write(self, numbers):
        """Encode index and value alternately."""
        pairs = np.empty(numbers.shape[0] // 2, _PAIR)
        pairs["index"], pairs["value"] = numbers[::2], numbers[1::2]
        return pairs.tobytes()

    def restore(self, data, count):
        """Decode index and value alternately."""
        pairs = np.frombuffer(data, _PAIR)
        return np.column_stack([pairs["index"], pairs["value"]]).astype(np.float64).ravel()


@dataclass(frozen=True)
class Levels(Part):
    """A vector of p integers of ``number_bits`` bits each, from -(2^(bits-1) - 1) to 2^(bits-1) - 1."""

    number_bits: int

    @property
    def largest(self) -> int:
        """Largest integer."""
        return 2 ** (self.number_bits - 1) - 1

    def length(self, p):
        return p

    def allowed(self, numbers, bounds, members):
        """The numbers must be integers within the range."""
        return bool(np.all((np.abs(numbers) <= self.largest) & (numbers == np.floor(numbers))))

    def bits(self, count, bounds, number_bits):
        """Count the declared number of bits for each integer."""
        return count * self.number_bits

    def size(self, count):
        """Total size in bits, padded to whole bytes."""
        return -(-count * self.number_bits // 8)

    def write(self, numbers):
        """Encode the integers one after the other, lowest bit first."""
        shifted = numbers.astype(np.int64) + self.largest
        bits = (shifted[:, None] >> np.arange(self.number_bits)) & 1
        return np.packbits(bits.astype(np.uint8).ravel(), bitorder="little").tobytes()

    def restore(self, data, count):
        """Decode the integers, as doubles."""
        bits = np.unpackbits(np.frombuffer(data, np.uint8), count=count * self.number_bits, bitorder="little")
        whole = bits.reshape(count, self.number_bits).astype(np.int64) @ (1 << np.arange(self.number_bits))
        return (whole - self.largest).astype(np.float64)


@dataclass(frozen=True)
class Number(Part):
    """One number between two bounds.

    If not ``counted``, the number is left out of the count of bits, as in the papers.
    """

    low: float = -math.inf
    high: float = math.inf
    counted: bool = True

    def allowed(self, numbers, bounds, members):
        """The number must lie between the bounds, inclusive."""
        return bool(self.low <= numbers[0] <= self.high)

    def bits(self, count, bounds, number_bits):
        """Count one real number, or nothing."""
        return count * number_bits if self.counted else 0.0


def Counter() -> Number:  # noqa: N802 - named as the parts
    """Return a part for a counter: a number from 0 to below :data:`MAX_COUNT`."""
    return Number(0.0, math.nextafter(MAX_COUNT, 0.0), counted=False)


@dataclass(frozen=True)
class Loss(Part):
    """The loss that an agent reports; negative only if models stay in a ball."""

    def allowed(self, numbers, bounds, members):
        """Boosting's loss is a logarithm, and is at least minus the radius of the ball."""
        least = -bounds.ball if math.isfinite(bounds.ball) else 0.0
        return bool(least <= numbers[0] <= MAX_LOSS)


@dataclass(frozen=True)
class Choices(Part):
    """For each output one of its columns, as ``sign (column + 1)``; 0 for none."""

    def length(self, p):
        """One number for each output; there are at most as many outputs as columns."""
        return range(1, p + 1)

    def allowed(self, numbers, bounds, members):
        """There must be one column for each output."""
        columns = bounds.p // bounds.outputs
        return numbers.shape[0] == bounds.outputs and bool(np.all(np.abs(numbers) <= columns))

    def bits(self, count, bounds, number_bits):
        """Count a column and a sign."""
        return count * (math.log2(bounds.p // bounds.outputs) + 1)


@dataclass(frozen=True)
class Numbers(Part):
    """``each p + more`` numbers between ``least`` and ``largest``."""

    each: int
    more: int = 0
    largest: float = math.inf
    least: float = -math.inf

    def length(self, p):
        return self.each * p + self.more

    def allowed(self, numbers, bounds, members):
        """The numbers must lie within the bounds."""
        return bool(np.all((np.abs(numbers) <= self.largest) & (numbers >= self.least)))


@dataclass(frozen=True)
class Average(Numbers):
    """An average over agents: first of a model, last of the weight with which the model was added."""

    def models(self, numbers, bounds):
        """Return the mean model; the other averages have no norm to check."""
        return [numbers[: bounds.p] / max(abs(numbers[-1]), 1.0)]


@dataclass(frozen=True)
class Addresses(Part):
    """Up to ``count`` pairs of a member's address and an age."""

    count: int

    def length(self, p):
        """Two numbers for each pair."""
        return range(0, 2 * self.count + 1, 2)

    def allowed(self, numbers, bounds, members):
        """The addresses must be members'."""
        return all(address in members for address in numbers[::2])

    def bits(self, count, bounds, number_bits):
        """Peer sampling is left out of the count of bits."""
        return 0.0


def parts_of(message: Any) -> tuple[Part, ...]:
    """Return the parts of a declared message."""
    return message if isinstance(message, tuple) else (message,)


def is_numbers(message: Any) -> bool:
    """Return whether a declared message holds single numbers only, such as a counter, and no model."""
    return all(isinstance(part, Number) for part in parts_of(message))


def length_of(message: Any, p: int) -> int | range:
    """Return how many numbers a message holds, or the range of possible lengths."""
    fixed, spans = 0, []
    for part in parts_of(message):
        length = part.length(p)
        if isinstance(length, range):
            spans.append(length)
        else:
            fixed += length
    if not spans:
        return fixed
    [span] = spans
    return range(span.start + fixed, span.stop + fixed, span.step)


def lengths_of(messages: Mapping[int, Any], p: int) -> tuple[int | range, ...]:
    """Return the lengths of the messages of every kind."""
    return tuple(length_of(messages[kind], p) for kind in range(len(messages)))


def longest(lengths: Any) -> int:
    """Return the largest length of a message of any kind; 0 if there are none."""
    return max((length[-1] if isinstance(length, range) else length for length in lengths), default=0)


def bits_of(message: Any, messages: float, numbers: float, bounds: Bounds, number_bits: int) -> float:
    """Return the information, in bits, of `messages` messages of a kind that hold `numbers` numbers together."""
    lengths = [part.length(bounds.p) for part in parts_of(message)]
    rest = numbers - messages * sum(length for length in lengths if not isinstance(length, range))
    total = 0.0
    for part, length in zip(parts_of(message), lengths, strict=True):
        total += part.bits(rest if isinstance(length, range) else messages * length, bounds, number_bits)
    return total


def prices_of(messages: Mapping[int, Any], p: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the bytes of a message of each kind without its header, and the bytes of each number in it."""
    message, number = np.zeros(len(messages)), np.full(len(messages), float(NUMBER_SIZE))
    for kind in range(len(messages)):
        lengths = [(part, part.length(p)) for part in parts_of(messages[kind])]
        for part, length in lengths:
            if isinstance(length, range):
                number[kind] = part.size(length.step) / length.step
        for part, length in lengths:
            if not isinstance(length, range):  # correct for the difference to the size per number
                message[kind] += part.size(length) - number[kind] * length
    return message, number


class Contents:
    """The contents that a method's messages may have in a run, checked by receivers before handlers see a message."""

    def __init__(self, messages: Mapping[int, Any], bounds: Bounds):
        self.bounds, self.lengths = bounds, lengths_of(messages, bounds.p)
        self._parts = [
            [(part, part.length(bounds.p)) for part in parts_of(messages[kind])] for kind in range(len(messages))
        ]

    def check_length(self, kind: int, count: int) -> None:
        """Refuse a message of an unknown kind or length."""
        if kind >= len(self.lengths):
            raise Unsound("shape", f"a message of kind {kind}, which the method does not know")
        expected = self.lengths[kind]
        if count not in expected if isinstance(expected, range) else count != expected:
            raise Unsound("shape", f"a message of kind {kind} with {count} numbers; there must be {expected}")

    def _split(self, kind: int, count: int) -> list[tuple[Part, int]]:
        """Return the parts of a message of `count` numbers, and how many numbers each part has."""
        rest = count - sum(length for _, length in self._parts[kind] if not isinstance(length, range))
        return [(part, rest if isinstance(length, range) else length) for part, length in self._parts[kind]]

    def write(self, kind: int, numbers: np.ndarray) -> bytes:
        """Encode the numbers of a message as bytes."""
        data, at = b"", 0
        for part, count in self._split(kind, numbers.shape[0]):
            data += part.write(numbers[at : at + count])
            at += count
        return data

    def restore(self, kind: int, count: int, data: bytes) -> np.ndarray:
        """Decode `count` numbers of a message from bytes; raise :class:`~coterie.errors.DataError` on failure."""
        self.check_length(kind, count)
        parts = self._split(kind, count)
        size = sum(part.size(held) for part, held in parts)
        if len(data) != size:
            raise Unsound(
                "shape", f"a message of kind {kind} with {count} numbers in {len(data)} bytes; there must be {size}"
            )
        numbers, at = [np.zeros(0)], 0
        for part, held in parts:
            numbers.append(part.restore(data[at : at + part.size(held)], held))
            at += part.size(held)
        return np.concatenate(numbers)

    def parse(self, kind: int, data: bytes) -> np.ndarray:
        """Decode a message from bytes alone, whose length determines how many numbers there are."""
        if kind >= len(self.lengths):
            raise Unsound("shape", f"a message of kind {kind}, which the method does not know")
        count, size, each = 0, len(data), 0.0
        for part, length in self._parts[kind]:
            if isinstance(length, range):
                each = part.size(length.step) / length.step
            else:
                count, size = count + length, size - part.size(length)
        return self.restore(kind, count + (max(0, round(size / each)) if each else 0), data)

    def read(self, kind: int, numbers: np.ndarray, members: Container[int]) -> tuple[list[np.ndarray], bool]:
        """Return the models in a message of a valid length, and whether its other numbers are valid."""
        models: list[np.ndarray] = []
        allowed, at = True, 0
        for part, count in self._split(kind, numbers.shape[0]):
            end = at + count
            allowed = allowed and part.allowed(numbers[at:end], self.bounds, members)
            models += part.models(numbers[at:end], self.bounds)
            at = end
        return models, allowed

    def check(self, kind: int, numbers: np.ndarray, members: Container[int]) -> np.ndarray:
        """Return the numbers; raise :class:`Unsound` if no honest peer sends them. `members` are all addresses."""
        self.check_length(kind, numbers.shape[0])
        models, allowed = self.read(kind, finite(numbers), members)
        if not allowed:
            raise Unsound("range", f"a number of kind {kind} is out of its range")
        norm = max((math.sqrt(np.vdot(model, model)) for model in models), default=0.0)
        if not norm <= self.bounds.radius:
            raise Unsound("norm", f"a model of norm {norm:.4g}; at most {self.bounds.radius:g}")
        return numbers
