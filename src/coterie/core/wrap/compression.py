"""Vectors in fewer bytes: the ways in which :class:`coterie.compression.Compressed` writes what has changed.

Each is a rule with ``compress(vector, dice, room, out)``, which writes the numbers of a message and says how many they
are, and ``restore(text, out)``, what the receiver makes of them. That is the operator C of the papers: the sender calls
``restore`` on its own message, so that both ends know the same.

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
    """The parts of a compression. A class decorated with ``@compression`` counts as a subclass."""

    @property
    @abstractmethod
    def parts(self) -> Any:
        """What its messages hold: a part, or several, of :mod:`coterie.core.messages`."""

    @abstractmethod
    def compress(self, vector: Any, dice: Any, room: Any, out: Any) -> int:
        """Handler: write a vector into ``out``; returns how many numbers that takes."""

    @abstractmethod
    def fits(self, text: Any, size: Any) -> Any:
        """Handler: could these be the numbers of a vector of this size? Whoever receives a message asks first."""

    @abstractmethod
    def restore(self, text: Any, out: Any) -> None:
        """Handler: the vector that these numbers stand for."""

    #: Uniform numbers that it uses.
    dice = 0

    def room(self, p):
        """How many numbers of scratch paper it uses."""
        return 0


def compression(cls):
    """Make a compression of a NamedTuple class: give every part that it leaves out its default."""
    return complete(cls, Compression)


@noinline
def smallest_of(values, rank):
    """The number that would stand at place ``rank`` if these were sorted; they are moved about. Hoare's selection."""
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
        raise ParameterError(f"TopK({share!r}): pass a share of all entries in (0, 1], or a whole number of them")
    return float(share), int(number)


@made_by(_top)
@compression
class TopK(NamedTuple):
    """The largest entries, as pairs of index and value, 12 bytes each; all others count as zero.

    Parameters
    ----------
    share : float or int
        A share of the entries, in (0, 1]; or how many, as a whole number.

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
        """The sizes of all entries, to find the smallest that is sent."""
        return p

    def compress(self, vector, dice, room, out):
        """The largest entries in the order of their indices; of equal ones, the first."""
        p = vector.shape[0]
        k = entries_of(self.share, self.number, p)
        size = room[:p]
        for c in range(p):
            size[c] = abs(vector[c]) if vector[c] == vector[c] else math.inf
        bound = smallest_of(size, p - k)
        larger = 0
        for c in range(p):
            larger += 1 if not abs(vector[c]) <= bound else 0  # what is not a number, too
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
        """Pairs."""
        return text.shape[0] % 2 == 0 and text.shape[0] <= 2 * size

    def restore(self, text, out):
        """Zeros, but for the pairs."""
        fill(0.0, out)
        for k in range(0, text.shape[0], 2):
            if 0.0 <= text[k] < out.shape[0]:
                out[int(text[k])] = text[k + 1]


@inline
def level_of(size, die):
    """A number >= 0 as a whole one: rounded down, or up, and so in the mean over the die the number itself."""
    return math.floor(size + die)


def _bits(name, value):
    """A sign, and levels."""
    bits = integer(name, value, least=2)
    if bits > 16:
        raise ParameterError(f"{name} = {value!r}: expected an integer from 2 to 16, a sign and levels")
    return bits


@checked(bits=_bits, random=flag)
@compression
class Quantised(NamedTuple):
    """Every entry as a level of so many bits, of a scale that is sent with them.

    With ``random``, levels are those of QSGD, as CHOCO (Section 3.2) scales them: with s = 2^(bits-1) - 1 and dice u,
    ``C(x) = sign(x) |x|_2 / (s tau) floor(s |x| / |x|_2 + u)``,  ``tau = 1 + min(p / s^2, sqrt(p) / s)``.  In the mean
    over the dice, ``tau C(x)`` is x. Else levels are the nearest ones, and s of them are the largest entry.

    Parameters
    ----------
    bits : int
        For each entry, from 2 to 16.
    random : bool
        Whether dice decide where an entry goes that lies between two levels.

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
        """A key, if there are dice."""
        return KEY if self.random else 0

    def room(self, p):
        """The stream of dice that belongs to a key."""
        return SIZE

    def compress(self, vector, dice, room, out):
        """The size of a level, and levels."""
        p, top = vector.shape[0], 2 ** (self.bits - 1) - 1
        largest, square = 0.0, 0.0
        for c in range(p):
            largest = max(largest, abs(vector[c]))
        for c in range(p):
            part = vector[c] / largest if largest > 0.0 else 0.0  # or small numbers would have no square
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
        """A size, and a level for each entry."""
        return text.shape[0] == size + 1

    def restore(self, text, out):
        """Levels times the size of one."""
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
        """Rounded entries."""
        for c in range(vector.shape[0]):
            out[c] = np.float32(vector[c])
        return vector.shape[0]

    def fits(self, text, size):
        """As many entries."""
        return text.shape[0] == size

    def restore(self, text, out):
        """The entries."""
        copy_to(text, out)
