"""An exponential in plain arithmetic, which LLVM vectorises; the C library's is computed for one number at a time."""

from __future__ import annotations

import math

import numpy as np

from .compile import inline, or_numpy

#: A number that rounds to the nearest integer when added and subtracted; the last bits of the sum hold the integer.
ROUNDER = 1.5 * 2.0**52
#: log 2 in two parts; integer multiples of the first are exact.
LOG2_HIGH, LOG2_LOW = 0.6931471803691238, 1.9082149292705877e-10
LOG2E = 1.4426950408889634
#: Largest x for which exp(-x) has full precision.
MAX_EXPONENT = 708.0
C2, C3, C4, C5, C6, C7, C8, C9, C10, C11, C12, C13 = (1.0 / math.factorial(k) for k in range(2, 14))


@or_numpy(lambda x: math.exp(-min(x, MAX_EXPONENT)))
@inline
def exp_minus(x):
    """Return ``exp(-x)`` for x >= 0, to 1.5 units in the last place; for x > 708, the value at 708.

    With -x = n log 2 + r and |r| <= log(2) / 2, the result is 2^n times the series of exp(r).
    """
    x = -(MAX_EXPONENT if x > MAX_EXPONENT else x)
    shifted = x * LOG2E + ROUNDER
    n = shifted - ROUNDER
    r = (x - n * LOG2_HIGH) - n * LOG2_LOW
    high = C8 + r * (C9 + r * (C10 + r * (C11 + r * (C12 + r * C13))))
    tail = C2 + r * (C3 + r * (C4 + r * (C5 + r * (C6 + r * (C7 + r * high)))))
    exponent = (np.int64(np.float64(shifted).view(np.int64)) + 1023) << 52
    return (1.0 + (r + r * r * tail)) * np.int64(exponent).view(np.float64)
