"""Compressions: the encodings with which :class:`coterie.compression.Compressed` sends changes of models.

Each is a rule with ``compress(vector, dice, room, out)``, which writes the numbers of a message and returns how many,
and ``restore(text, out)``, which computes the vector that the receiver uses. Together these are the operator C of the
papers: the sender calls ``restore`` on its own message, so that both ends hold equal vectors.

===============  ====================================================================================================
rule             from
===============  ====================================================================================================
``TopK``         Stich, Cordonnier, Jaggi (2018), "Sparsified SGD with memory"
``Quantised``    Alistarh, Grubic, Li, Tomioka, Vojnovic (2017), "QSGD", (4); with ``random=False``, rounding
``Float32``      single precision
===============  ====================================================================================================
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from numbers import Integral, Real
from typing import Any

import numpy as np

from ..._checks import flag, integer
from ...errors import ParameterError
from ..compile import inline, noinline
from ..linear import copy_to, fill
from ..messages import Largest, Levels, Number, Single, entries_of
from ..method import NamedTuple, complete
from ..private.noise import KEY, SIZE, next_word, open_stream
from ..rules import checked, made_by


class Compression(ABC):
    """Parts of a compression. A class decorated with ``@compression`` is registered as a subclass."""

    @property
    @abstractmethod
    def parts(self) -> Any:
        """Content of a message: one or several parts of :mod:`coterie.core.messages`."""

    @abstractmethod
    def compress(self, vector: Any, dice: Any, room: Any, out: Any) -> int:
        """Write a vector into ``out``, and return how many numbers were written (a handler)."""

    @abstractmethod
    def fits(self, text: Any, size: Any) -> Any:
        """Return whether these numbers could encode a vector of this size, to check received messages (a handler)."""

    @abstractmethod
    def restore(self, text: Any, out: Any) -> None:
        """Restore the vector from its numbers (a handler)."""

    #: Number of uniform random numbers that ``compress`` uses.
    dice = 0

    def room(self, p):
        """Return how many numbers of scratch space ``compress`` needs."""
        return 0


def compression(cls):
    """Turn a NamedTuple class into a compression: add the defaults of parts that it leaves out."""
    return complete(cls, Compression)


@noinline
def smallest_of(values, rank):
    """Return the value of the given rank in sorted order, by Hoare's selection, which permutes the values."""
    low, high = 0, values.shape[0] - 1
    while low < high:
        pivot = values[(low + high) // 2]
        i, j = low, high
        while i <= j:
            while values[i] < pivot:
                i += 1
            while pivot < values[j]:
                j -= 1
            if i <= j:
                values[i], values[j] = values[j], values[i]
                i += 1
                j -= 1
        if rank <= j:
            high = j
        elif rank >= i:
            low = i
        else:
            break
    return values[rank]


def _top(share=0.1, number=0):
    if isinstance(share, Integral) and not isinstance(share, bool) and share >= 1 and number == 0:
        return 0.0, int(share)
    if isinstance(share, bool) or not (isinstance(share, Real) and (number or 0 < share <= 1)):
        raise ParameterError(f"TopK({share!r}): pass a share of all entries in (0, 1], or their number as an integer")
    return float(share), int(number)


@made_by(_top)
@compression
class TopK(NamedTuple):
    """The largest entries, as pairs of index and value, 12 bytes each; all others are treated as zero.

    Parameters
    ----------
    share : float or int
        Share of the entries, in (0, 1]; or the number of entries, as an integer.

    Examples
    --------
    >>> import coterie as ct
    >>> ct.compression.Compressed("cd", ct.compression.TopK(0.1))
    Compressed(CoordinateDescent(), TopK(0.1))
    """

    share: float = 0.1
    number: int = 0

    def __repr__(self):
        return f"TopK({self.number or self.share})"

    @property
    def parts(self):
        """Pairs of index and value."""
        return Largest(self.share, self.number)

    def room(self, p):
        """The absolute values of all entries, to find the smallest that is sent."""
        return p

    def compress(self, vector, dice, room, out):
        """Write the largest entries in the order of their indices; among equal ones, the first."""
        p = vector.shape[0]
        k = entries_of(self.share, self.number, p)
        size = room[:p]
        for c in range(p):
            size[c] = abs(vector[c]) if vector[c] == vector[c] else math.inf
        bound = smallest_of(size, p - k)
        larger = 0
        for c in range(p):
            larger += 1 if not abs(vector[c]) <= bound else 0  # counts NaN, too
        equal, end = k - larger, 0
        for c in range(p):
            least = abs(vector[c]) == bound
            if not abs(vector[c]) <= bound or (least and equal > 0):
                equal -= 1 if least else 0
                if end < 2 * k:
                    out[end], out[end + 1] = c, vector[c]
                    end += 2
        return end

    def fits(self, text, size):
        return text.shape[0] % 2 == 0 and text.shape[0] <= 2 * size

    def restore(self, text, out):
        """Restore the pairs; all other entries are zero."""
        fill(0.0, out)
        for k in range(0, text.shape[0], 2):
            if 0.0 <= text[k] < out.shape[0]:
                out[int(text[k])] = text[k + 1]


@inline
def level_of(size, die):
    """Round a number >= 0 down or up at random, so that the expectation over the random number is the number itself."""
    return math.floor(size + die)


def _bits(name, value):
    """Check the number of bits: a sign and levels."""
    bits = integer(name, value, least=2)
    if bits > 16:
        raise ParameterError(f"{name} = {value!r}: expected an integer from 2 to 16, for a sign and levels")
    return bits


@checked(bits=_bits, random=flag)
@compression
class Quantised(NamedTuple):
    """Every entry as an integer level of a few bits, relative to a scale that is sent with the levels.

    With ``random``, levels are those of QSGD, as CHOCO (Section 3.2) scales them: with s = 2^(bits-1) - 1 and uniform
    u, ``C(x) = sign(x) |x|_2 / (s tau) floor(s |x| / |x|_2 + u)``,  ``tau = 1 + min(p / s^2, sqrt(p) / s)``.  The
    expectation of ``tau C(x)`` is x. Without, every entry is rounded to the nearest level, and the largest entry is
    level s.

    Parameters
    ----------
    bits : int
        Number of bits of each entry, from 2 to 16.
    random : bool
        Whether an entry between two levels is rounded at random.

    Examples
    --------
    >>> import coterie as ct
    >>> ct.compression.Compressed("cd", ct.compression.Quantised(4))
    Compressed(CoordinateDescent(), Quantised(bits=4, random=False))
    """

    bits: int = 4
    random: bool = False

    @property
    def parts(self):
        """A scale, and the levels."""
        return Number(0.0), Levels(self.bits)

    @property
    def dice(self):
        """A key, if rounding is random."""
        return KEY if self.random else 0

    def room(self, p):
        """The random stream of a key."""
        return SIZE

    def compress(self, vector, dice, room, out):
        """Write the scale, and the levels."""
        p, top = vector.shape[0], 2 ** (self.bits - 1) - 1
        largest, square = 0.0, 0.0
        for c in range(p):
            largest = max(largest, abs(vector[c]))
        for c in range(p):
            part = vector[c] / largest if largest > 0.0 else 0.0  # or small squares would underflow
            square += part * part
        scale = largest * math.sqrt(square) if self.random else largest
        stream = room.view(np.int64)[:SIZE]
        if self.random:
            open_stream(dice, stream)
        spread = p / (top * top)
        tau = 1.0 + min(spread, math.sqrt(spread)) if self.random else 1.0
        out[0] = scale / (top * tau) if scale > 0.0 else 0.0
        for c in range(p):
            die = 0.5
            if self.random:
                die = next_word(stream) * 2.0**-32
            level = 0.0
            if scale > 0.0:
                level = min(level_of(top * (abs(vector[c]) / scale), die), top)
            out[1 + c] = -level if vector[c] < 0.0 else level
        return 1 + p

    def fits(self, text, size):
        """There must be a nonnegative scale, and a level for each entry."""
        return text.shape[0] == size + 1

    def restore(self, text, out):
        """Multiply the levels by the scale."""
        for c in range(out.shape[0]):
            out[c] = text[0] * text[1 + c]


@compression
class Float32(NamedTuple):
    """Every entry in single precision, 4 bytes each.

    Examples
    --------
    >>> import coterie as ct
    >>> ct.compression.Compressed("cd", ct.compression.Float32())
    Compressed(CoordinateDescent(), Float32())
    """

    parts = Single()

    def compress(self, vector, dice, room, out):
        """Write rounded entries."""
        for c in range(vector.shape[0]):
            out[c] = np.float32(vector[c])
        return vector.shape[0]

    def fits(self, text, size):
        """There must be one number for each entry."""
        return text.shape[0] == size

    def restore(self, text, out):
        """Copy the entries."""
        copy_to(text, out)
