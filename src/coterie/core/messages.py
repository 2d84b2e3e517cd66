"""What messages hold, declared by kind: the one place that buffers, codec, accounts and the gate of peers read.

A method says ``messages = {MODEL: Vector(), ASK: (Vector(4), Number(0.0, 1.0))}``: for each kind one part, or several in
the order in which they are written; ``()`` for a message that says nothing but its kind. Kinds count from 0. At most one
part of a message may vary in length. A part also says how its numbers are written, 8 bytes each unless it knows better:
whoever counts bytes, and whoever writes them, asks it.
"""

from __future__ import annotations

import math
from collections.abc import Container, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from ..errors import DataError
from .compile import inline

#: Counters in messages (steps taken, changes of an edge) are below it.
MAX_COUNT = 2.0**52
#: What an agent tells of its loss is no larger.
MAX_LOSS = 1e12
#: Bytes of a number that is written as it is.
NUMBER_SIZE = 8


#: How a pair of index and value is written.
_PAIR = np.dtype([("index", "<u4"), ("value", "<f8")])


class Unsound(DataError):  # noqa: N818 - it says what is the matter with a message
    """A message that no honest peer sends: of a wrong shape, or with numbers that are not finite, or too large."""

    def __init__(self, reason: str, text: str):
        super().__init__(text)
        self.reason = reason  # "shape", "finite", "range" or "norm"


@inline
def is_sound(text, largest):
    """Whether no number is larger than an honest neighbour's: for handlers, which may be sent anything."""
    sound = True
    for k in range(text.shape[0]):
        sound = sound and abs(text[k]) <= largest  # false for NaN
    return sound


def finite(text: np.ndarray) -> np.ndarray:
    """The same numbers; a :class:`~coterie.errors.DataError` if one is not finite."""
    # A sum of squares that is finite has only finite numbers in it, and is quick (and np.vdot never warns).
    if not math.isfinite(np.vdot(text, text)) and not np.all(np.isfinite(text)):
        raise Unsound("finite", "a message holds a number that is not finite")
    return text


@inline
def entries_of(share, count, p):
    """How many of p entries: ``count``, or this share of them if it is 0; at least one."""
    if count == 0:
        count = math.ceil(share * p - 1e-9)
    return min(max(count, 1), p)


class Bounds(NamedTuple):
    """What bounds the messages of a run."""

    p: int  # numbers in a model
    radius: float = math.inf  # no model has a larger norm
    ball: float = math.inf  # of boosting, whose losses may be negative, but not below this
    outputs: int = 1


class Part:
    """One part of a message."""

    def length(self, p: int) -> int | range:
        """How many numbers it takes, for models of p numbers; a range if that varies."""
        return 1

    def models(self, numbers: np.ndarray, bounds: Bounds) -> list[np.ndarray]:
        """The models in it, none of which may leave the public radius."""
        return []

    def allowed(self, numbers: np.ndarray, bounds: Bounds, members: Container[int]) -> bool:
        """Could an honest peer have sent these numbers?"""
        return True

    def bits(self, count: float, bounds: Bounds, number_bits: int) -> float:
        """What so many numbers of such parts say, in bits, as DADA, Section D counts them."""
        return count * number_bits

    def size(self, count: int) -> int:
        """Bytes that so many of its numbers take; in proportion to them, if their number varies."""
        return NUMBER_SIZE * count

    def write(self, numbers: np.ndarray) -> bytes:
        """Its numbers as bytes: little-endian doubles."""
        return numbers.astype("<f8", copy=False).tobytes()

    def restore(self, data: bytes, count: int) -> np.ndarray:
        """So many numbers from as many bytes as :meth:`size` says."""
        return np.frombuffer(data, "<f8").astype(np.float64)


@dataclass(frozen=True)
class Vector(Part):
    """So many models, one after the other."""

    count: int = 1

    def length(self, p):
        """P numbers each."""
        return self.count * p

    def models(self, numbers, bounds):
        """Every one of them."""
        return list(numbers.reshape(self.count, bounds.p))


class Floats(Part):
    """Numbers in single precision, 4 bytes each: a receiver gets them rounded."""

    def size(self, count):
        """4 bytes each."""
        return 4 * count

    def write(self, numbers):
        """Little-endian floats; one that is too large for them is infinite, and is refused by the receiver."""
        with np.errstate(over="ignore"):
            return numbers.astype("<f4").tobytes()

    def restore(self, data, count):
        """The same numbers in double precision."""
        with np.errstate(invalid="ignore"):  # of a NaN that signals: who receives it looks for what is not finite
            return np.frombuffer(data, "<f4").astype(np.float64)


@dataclass(frozen=True)
class SingleVector(Floats, Vector):
    """So many models in single precision."""


def in_single(messages: Mapping[int, Any]) -> dict[int, Any]:
    """The same messages with the models in them in single precision; what counts something stays as it is."""
    return {
        kind: tuple(SingleVector(part.count) if type(part) is Vector else part for part in parts_of(message))
        for kind, message in messages.items()
    }


@dataclass(frozen=True)
class Pairs(Part):
    """A sparse model: pairs of index and value."""

    def length(self, p):
        """Two numbers for each entry that is not zero."""
        return range(0, 2 * p + 1, 2)

    def models(self, numbers, bounds):
        """Its values; zeros do not matter to a norm."""
        return [numbers[1::2]]

    def bits(self, count, bounds, number_bits):
        """An index is one of p."""
        return count / 2 * (number_bits + math.log2(bounds.p))


@dataclass(frozen=True)
class Single(Floats):
    """A vector of p numbers in single precision, which the sender has rounded already."""

    def length(self, p):
        """P numbers."""
        return p


@dataclass(frozen=True)
class Largest(Part):
    """The largest entries of a vector: pairs of index, 4 bytes, and value, 8. So many of them, or a share of all."""

    share: float
    count: int = 0

    def length(self, p):
        """Two numbers each."""
        return 2 * entries_of(self.share, self.count, p)

    def allowed(self, numbers, bounds, members):
        """Indices are of the vector, each once, in their order."""
        index = numbers[::2]
        steps = np.diff(index, prepend=-1.0, append=bounds.p)
        return bool(np.all(index == np.floor(index)) and np.all(steps > 0))

    def bits(self, count, bounds, number_bits):
        """An index is one of p."""
        return count / 2 * (number_bits + math.log2(bounds.p))

    def size(self, count):
        """12 bytes for two numbers."""
        return 6 * count

    def write(self, numbers):
        """Index and value by turns."""
        pairs = np.empty(numbers.shape[0] // 2, _PAIR)
        pairs["index"], pairs["value"] = numbers[::2], numbers[1::2]
        return pairs.tobytes()

    def restore(self, data, count):
        """Index and value by turns, as numbers."""
        pairs = np.frombuffer(data, _PAIR)
        return np.column_stack([pairs["index"], pairs["value"]]).astype(np.float64).ravel()


@dataclass(frozen=True)
class Levels(Part):
    """A vector of p whole numbers of so many bits each, from -(2^(bits-1) - 1) up to the same with plus."""

    number_bits: int

    @property
    def largest(self) -> int:
        """The largest of them."""
        return 2 ** (self.number_bits - 1) - 1

    def length(self, p):
        """P numbers."""
        return p

    def allowed(self, numbers, bounds, members):
        """Whole, and none too large."""
        return bool(np.all((np.abs(numbers) <= self.largest) & (numbers == np.floor(numbers))))

    def bits(self, count, bounds, number_bits):
        """As many as were asked for."""
        return count * self.number_bits

    def size(self, count):
        """The bits of all of them, and the rest of the last byte."""
        return -(-count * self.number_bits // 8)

    def write(self, numbers):
        """One after the other, the lowest bit of each first."""
        shifted = numbers.astype(np.int64) + self.largest
        bits = (shifted[:, None] >> np.arange(self.number_bits)) & 1
        return np.packbits(bits.astype(np.uint8).ravel(), bitorder="little").tobytes()

    def restore(self, data, count):
        """The whole numbers, as doubles."""
        bits = np.unpackbits(np.frombuffer(data, np.uint8), count=count * self.number_bits, bitorder="little")
        whole = bits.reshape(count, self.number_bits).astype(np.int64) @ (1 << np.arange(self.number_bits))
        return (whole - self.largest).astype(np.float64)


@dataclass(frozen=True)
class Number(Part):
    """One number between bounds. One that is not ``counted`` says nothing, as the papers count bits."""

    low: float = -math.inf
    high: float = math.inf
    counted: bool = True

    def allowed(self, numbers, bounds, members):
        """Between the bounds, both included."""
        return bool(self.low <= numbers[0] <= self.high)

    def bits(self, count, bounds, number_bits):
        """A real number, or nothing."""
        return count * number_bits if self.counted else 0.0


def Counter() -> Number:  # noqa: N802 - a part, as the others
    """A number that counts something: from 0 to below :data:`MAX_COUNT`."""
    return Number(0.0, math.nextafter(MAX_COUNT, 0.0), counted=False)


@dataclass(frozen=True)
class Loss(Part):
    """What an agent tells of its loss: negative only where models stay in a ball."""

    def allowed(self, numbers, bounds, members):
        """Boosting's loss is a logarithm, and is no smaller than minus the radius of the ball."""
        least = -bounds.ball if math.isfinite(bounds.ball) else 0.0
        return bool(least <= numbers[0] <= MAX_LOSS)


@dataclass(frozen=True)
class Choices(Part):
    """For each output one of its columns, as ``sign (column + 1)``; 0 for none."""

    def length(self, p):
        """One for each output, of which there are at most as many as columns."""
        return range(1, p + 1)

    def allowed(self, numbers, bounds, members):
        """As many as there are outputs, each of them a column."""
        columns = bounds.p // bounds.outputs
        return numbers.shape[0] == bounds.outputs and bool(np.all(np.abs(numbers) <= columns))

    def bits(self, count, bounds, number_bits):
        """A column and a sign."""
        return count * (math.log2(bounds.p // bounds.outputs) + 1)


@dataclass(frozen=True)
class Numbers(Part):
    """``each p + more`` numbers, none of them larger than ``largest``, nor smaller than ``least``."""

    each: int
    more: int = 0
    largest: float = math.inf
    least: float = -math.inf

    def length(self, p):
        """So many for each number of a model, and some more."""
        return self.each * p + self.more

    def allowed(self, numbers, bounds, members):
        """None is too large, or too small."""
        return bool(np.all((np.abs(numbers) <= self.largest) & (numbers >= self.least)))


@dataclass(frozen=True)
class Average(Numbers):
    """The same as an average over agents: of a model first, and of the weight that it was added with last."""

    def models(self, numbers, bounds):
        """The mean model. Of squares, rows and what else is averaged, there is no saying."""
        return [numbers[: bounds.p] / max(abs(numbers[-1]), 1.0)]


@dataclass(frozen=True)
class Addresses(Part):
    """Up to ``count`` pairs of a member's address and an age."""

    count: int

    def length(self, p):
        """Two numbers each."""
        return range(0, 2 * self.count + 1, 2)

    def allowed(self, numbers, bounds, members):
        """Nobody is made up."""
        return all(address in members for address in numbers[::2])

    def bits(self, count, bounds, number_bits):
        """Sampling is not counted."""
        return 0.0


def parts_of(message: Any) -> tuple[Part, ...]:
    """The parts of a declared message."""
    return message if isinstance(message, tuple) else (message,)


def is_numbers(message: Any) -> bool:
    """Whether a declared message holds nothing but single numbers, such as a count, and no model."""
    return all(isinstance(part, Number) for part in parts_of(message))


def length_of(message: Any, p: int) -> int | range:
    """How many numbers a message holds: so many, or a range of what may be."""
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
    """The same for every kind."""
    return tuple(length_of(messages[kind], p) for kind in range(len(messages)))


def longest(lengths: Any) -> int:
    """The most numbers in a message of any kind; 0 where there are none."""
    return max((length[-1] if isinstance(length, range) else length for length in lengths), default=0)


def bits_of(message: Any, messages: float, numbers: float, bounds: Bounds, number_bits: int) -> float:
    """What so many messages of a kind say, which hold so many numbers together."""
    lengths = [part.length(bounds.p) for part in parts_of(message)]
    rest = numbers - messages * sum(length for length in lengths if not isinstance(length, range))
    total = 0.0
    for part, length in zip(parts_of(message), lengths, strict=True):
        total += part.bits(rest if isinstance(length, range) else messages * length, bounds, number_bits)
    return total


def prices_of(messages: Mapping[int, Any], p: int) -> tuple[np.ndarray, np.ndarray]:
    """What a message of each kind costs in bytes, its header apart, and each number in it beside."""
    message, number = np.zeros(len(messages)), np.full(len(messages), float(NUMBER_SIZE))
    for kind in range(len(messages)):
        lengths = [(part, part.length(p)) for part in parts_of(messages[kind])]
        for part, length in lengths:
            if isinstance(length, range):
                number[kind] = part.size(length.step) / length.step
        for part, length in lengths:
            if not isinstance(length, range):  # by how much it differs from what its numbers are counted with
                message[kind] += part.size(length) - number[kind] * length
    return message, number


class Contents:
    """What the messages of a method may hold in a run: what a receiver checks before the method sees one."""

    def __init__(self, messages: Mapping[int, Any], bounds: Bounds):
        self.bounds, self.lengths = bounds, lengths_of(messages, bounds.p)
        self._parts = [
            [(part, part.length(bounds.p)) for part in parts_of(messages[kind])] for kind in range(len(messages))
        ]

    def check_length(self, kind: int, count: int) -> None:
        """Refuse a message of a kind, or of a length, that the method does not know."""
        if kind >= len(self.lengths):
            raise Unsound("shape", f"a message of kind {kind}, which the method does not know")
        expected = self.lengths[kind]
        if count not in expected if isinstance(expected, range) else count != expected:
            raise Unsound("shape", f"a message of kind {kind} with {count} numbers; there must be {expected}")

    def _split(self, kind: int, count: int) -> list[tuple[Part, int]]:
        """The parts of a message of so many numbers, and how many are in each."""
        rest = count - sum(length for _, length in self._parts[kind] if not isinstance(length, range))
        return [(part, rest if isinstance(length, range) else length) for part, length in self._parts[kind]]

    def write(self, kind: int, numbers: np.ndarray) -> bytes:
        """The numbers of a message as bytes."""
        data, at = b"", 0
        for part, count in self._split(kind, numbers.shape[0]):
            data += part.write(numbers[at : at + count])
            at += count
        return data

    def restore(self, kind: int, count: int, data: bytes) -> np.ndarray:
        """So many numbers of a message from its bytes; a :class:`~coterie.errors.DataError` for anything else."""
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
        """The same from its bytes alone, which say how many numbers there are."""
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
        """The models in a message of a good length, and whether all other numbers are such as an honest peer sends."""
        models: list[np.ndarray] = []
        allowed, at = True, 0
        for part, count in self._split(kind, numbers.shape[0]):
            end = at + count
            allowed = allowed and part.allowed(numbers[at:end], self.bounds, members)
            models += part.models(numbers[at:end], self.bounds)
            at = end
        return models, allowed

    def check(self, kind: int, numbers: np.ndarray, members: Container[int]) -> np.ndarray:
        """The same numbers; :class:`Unsound` if no honest peer sends them. ``members`` are the addresses there are."""
        self.check_length(kind, numbers.shape[0])
        models, allowed = self.read(kind, finite(numbers), members)
        if not allowed:
            raise Unsound("range", f"a number of kind {kind} is out of its range")
        norm = max((math.sqrt(np.vdot(model, model)) for model in models), default=0.0)
        if not norm <= self.bounds.radius:
            raise Unsound("norm", f"a model of norm {norm:.4g}; at most {self.bounds.radius:g}")
        return numbers
