"""Noise for privacy: whole numbers, drawn exactly, as a function of a key.

Floating-point noise leaks: which floats can result depends on what the noise is added to (Mironov, 2012). Here noise is
an integer multiple of a grid step, with exactly the probabilities that proofs of privacy assume: the samplers use only
fair bits, integers and comparisons. The bits are the key stream of ChaCha20, so noise is as hard to guess as its key. A
real peer takes the key from its operating system, see ``core.arrays.system_dice``; a simulation takes it from a seeded
generator, so that its noise can be computed from the seed.

The running time of the samplers depends on the result: timing a single draw reveals something about its value.

Sources: Karney, 2016, "Sampling exactly from the normal distribution", Algorithm D, for the Gaussian; Canonne, Kamath
and Steinke, 2020, "The Discrete Gaussian for Differential Privacy", Algorithms 1 and 2, for exp(-x) and the Laplace;
Bernstein, 2008, "ChaCha, a variant of Salsa20", for the key stream, whose block function is also that of RFC 8439.

All numbers stay below 2^63, so that compiled and plain code give the same bits.
"""

from __future__ import annotations

from numbers import Integral
from typing import Any

import numpy as np

from ...errors import ParameterError
from ..arrays import system_dice
from ..compile import inline, kernel, noinline

Floats = np.ndarray[Any, np.dtype[np.float64]]
Ints = np.ndarray[Any, np.dtype[np.int64]]

#: Number of uniform numbers on [0, 1) that make a key: 32 bits of each are used.
KEY = 8
#: Length of a stream: 16 words of ChaCha20's state, 16 words of the current block, and the number of words used.
SIZE = 33
#: Largest standard deviation or scale: with it, a number exceeds 2^62 only after 4096 successful trials of a series,
#: which has probability 1/4096!.
LARGEST = 2**50
BLOCK, POSITION, COUNTER = 16, 32, 12
WORD = 0xFFFFFFFF
#: Kinds of noise, for the kernel.
GAUSSIAN, LAPLACE = 0, 1


@inline
def open_stream(dice: Floats, stream: Ints) -> None:
    """Start the stream of bits of a key. A key always gives the same stream: never use one twice."""
    # "expand 32-byte k"
    stream[0], stream[1], stream[2], stream[3] = 0x61707865, 0x3320646E, 0x79622D32, 0x6B206574
    for k in range(KEY):
        stream[4 + k] = int(dice[k] * 4294967296.0)
    for k in range(COUNTER, POSITION):
        stream[k] = 0  # the counter (64 bits, as in Bernstein's design), and the nonce; no block yet
    stream[POSITION] = 16


@inline
def _quarter(a: int, b: int, c: int, d: int) -> tuple[int, int, int, int]:
    """ChaCha's quarter round."""
    # More masks than needed: with these LLVM recognises 32-bit values, and compiles a rotation to one instruction.
    a = (a + b) & WORD
    d = (d ^ a) & WORD
    d = ((d << 16) | (d >> 16)) & WORD
    c = (c + d) & WORD
    b = (b ^ c) & WORD
    b = ((b << 12) | (b >> 20)) & WORD
    a = (a + b) & WORD
    d = (d ^ a) & WORD
    d = ((d << 8) | (d >> 24)) & WORD
    c = (c + d) & WORD
    b = (b ^ c) & WORD
    b = ((b << 7) | (b >> 25)) & WORD
    return a, b, c, d


@noinline
def _refill(stream: Ints) -> None:
    """Compute the next block of the key stream."""
    # int(), since NumPy's integers are slow in plain Python
    a0, a1, a2, a3 = int(stream[0]), int(stream[1]), int(stream[2]), int(stream[3])
    b0, b1, b2, b3 = int(stream[4]), int(stream[5]), int(stream[6]), int(stream[7])
    c0, c1, c2, c3 = int(stream[8]), int(stream[9]), int(stream[10]), int(stream[11])
    d0, d1, d2, d3 = int(stream[12]), int(stream[13]), int(stream[14]), int(stream[15])
    for _ in range(10):  # a round of columns and a round of diagonals: 20 rounds
        a0, b0, c0, d0 = _quarter(a0, b0, c0, d0)
        a1, b1, c1, d1 = _quarter(a1, b1, c1, d1)
        a2, b2, c2, d2 = _quarter(a2, b2, c2, d2)
        a3, b3, c3, d3 = _quarter(a3, b3, c3, d3)
        a0, b1, c2, d3 = _quarter(a0, b1, c2, d3)
        a1, b2, c3, d0 = _quarter(a1, b2, c3, d0)
        a2, b3, c0, d1 = _quarter(a2, b3, c0, d1)
        a3, b0, c1, d2 = _quarter(a3, b0, c1, d2)
    stream[16], stream[17], stream[18], stream[19] = a0, a1, a2, a3
    stream[20], stream[21], stream[22], stream[23] = b0, b1, b2, b3
    stream[24], stream[25], stream[26], stream[27] = c0, c1, c2, c3
    stream[28], stream[29], stream[30], stream[31] = d0, d1, d2, d3
    for k in range(16):
        stream[BLOCK + k] = (stream[BLOCK + k] + stream[k]) & WORD
    stream[COUNTER] = (stream[COUNTER] + 1) & WORD
    if stream[COUNTER] == 0:
        stream[COUNTER + 1] = (stream[COUNTER + 1] + 1) & WORD


@inline
def next_word(stream: Ints) -> int:
    """Return the next 32 bits of a stream, as an integer below 2^32."""
    position = int(stream[POSITION])
    if position == 16:
        _refill(stream)
        position = 0
    stream[POSITION] = position + 1
    return int(stream[BLOCK + position])


@inline
def below(stream: Ints, n: int) -> int:
    """Return a uniform integer in [0, n)."""
    top = n - 1
    mask = top | (top >> 1)
    mask |= mask >> 2
    mask |= mask >> 4
    mask |= mask >> 8
    mask |= mask >> 16
    mask |= mask >> 32
    while True:
        value = next_word(stream) & mask
        if top > WORD:
            value |= (next_word(stream) & (mask >> 32)) << 32
        if value <= top:
            return value


@inline
def _series(stream: Ints, num: int, den: int) -> bool:
    """:func:`bernoulli_exp` for num <= den."""
    # Von Neumann: k trials in a row succeed with probability (num/den)^k / k!, the terms of exp(-num/den).
    k = 1
    while below(stream, den * k) < num:
        k += 1
    return k % 2 == 1


@noinline
def bernoulli_exp(stream: Ints, num: int, den: int) -> bool:
    """Return True with probability exp(-num/den)."""
    # exp(-1) for every integer part; stop at the first failure
    while num >= den:
        if not _series(stream, 1, 1):
            return False
        num -= den
    return _series(stream, num, den)


@noinline
def discrete_gaussian(stream: Ints, sigma: int) -> int:
    """Return an integer x with probability proportional to exp(-x^2 / (2 sigma^2))."""
    # With |x| = k sigma + j, x^2 / (2 sigma^2) = k^2/2 + k (j/sigma) + (j/sigma)^2/2.
    while True:
        k = 0
        while _series(stream, 1, 2):
            k += 1
        # The probability so far is exp(-k/2); a factor exp(-1/2) for each ordered pair out of k makes it exp(-k^2/2).
        good = True
        trials = k * (k - 1)
        while good and trials > 0:
            good = _series(stream, 1, 2)
            trials -= 1
        if not good:
            continue
        negative = below(stream, 2) == 1
        j = below(stream, sigma)
        if k == 0 and j == 0 and negative:
            continue  # otherwise zero would come twice as often, as 0 and as -0
        trials = k
        while good and trials > 0:
            good = _series(stream, j, sigma)
            trials -= 1
        if good and _series_of_square(stream, j, sigma):
            return -(k * sigma + j) if negative else k * sigma + j


@inline
def _series_of_square(stream: Ints, j: int, sigma: int) -> bool:
    """Return True with probability exp(-x^2/2), x = j/sigma < 1."""
    # x^2 would need twice the digits; three trials in a row succeed with probability x x 1/(2 i)
    i = 1
    while below(stream, sigma) < j and below(stream, sigma) < j and below(stream, 2 * i) == 0:
        i += 1
    return i % 2 == 1


@noinline
def discrete_laplace(stream: Ints, scale: int) -> int:
    """Return an integer x with probability proportional to exp(-abs(x) / scale)."""
    while True:
        u = below(stream, scale)
        if not _series(stream, u, scale):
            continue
        v = 0
        while _series(stream, 1, 1):
            v += 1
        size = u + scale * v
        negative = below(stream, 2) == 1
        if size == 0 and negative:
            continue  # otherwise zero would come twice as often, as 0 and as -0
        return -size if negative else size


@noinline
def exponential_choice(stream: Ints, scores: Ints, count: int, scale: int) -> int:
    """Return an index r < count with probability proportional to exp(scores[r] / scale)."""
    best = int(scores[0])
    for r in range(1, count):
        best = max(best, int(scores[r]))
    while True:
        r = below(stream, count)
        if bernoulli_exp(stream, best - int(scores[r]), scale):
            return r


@kernel
def sample_kernel(kind: int, scale: int, dice: Floats, stream: Ints, out: Ints) -> None:
    """Fill an array with noise."""
    open_stream(dice, stream)
    for k in range(out.shape[0]):
        if kind == GAUSSIAN:
            out[k] = discrete_gaussian(stream, scale)
        else:
            out[k] = discrete_laplace(stream, scale)


def sample(kind: str, scale: int, size: int, dice: Floats | None = None) -> Ints:
    """Return noise as a real peer draws it."""
    kinds = {"gaussian": GAUSSIAN, "laplace": LAPLACE}
    if kind not in kinds:
        raise ParameterError(f'kind={kind!r} must be "gaussian" or "laplace"')
    if not isinstance(scale, Integral) or not 1 <= scale <= LARGEST:
        raise ParameterError(
            f"scale={scale!r} must be a whole number from 1 to 2^50: noise is drawn in units of a grid"
        )
    if not isinstance(size, Integral) or size < 0:
        raise ParameterError(f"size={size!r} must be a whole number, 0 or more")
    key = system_dice(KEY) if dice is None else np.ascontiguousarray(dice, dtype=np.float64)
    if key.shape != (KEY,) or not np.all((key >= 0.0) & (key < 1.0)):
        raise ParameterError(f"dice must be {KEY} numbers on [0, 1); found {dice!r}")
    out = np.empty(int(size), dtype=np.int64)
    sample_kernel(kinds[kind], int(scale), key, np.empty(SIZE, dtype=np.int64), out)
    return out
