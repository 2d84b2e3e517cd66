"""Noise: the right bits, the right probabilities, and the same in compiled and plain code.

Statistical tests are seeded; their error rates are those of a run with another seed.
"""

from __future__ import annotations

import math
import struct

import numba
import numpy as np
import pytest
from scipy import stats

from coterie.core.arrays import system_dice
from coterie.core.private import noise
from coterie.core.private.noise import KEY, LARGEST, SIZE, sample
from coterie.errors import ParameterError

pytestmark = pytest.mark.compiled

#: A test of goodness of fit fails by chance with this probability. Five standard errors are about as much.
ERROR_RATE = 1e-6
NONE = np.zeros(1, dtype=np.int64)
WORDS, BELOW, BERNOULLI, CHOICE = range(4)


@numba.njit
def fill(what, a, b, scores, stream, out):
    """Draws from an open stream. Not a ``@kernel``: the cache on disk does not watch this file."""
    for k in range(out.shape[0]):
        if what == WORDS:
            out[k] = noise.next_word(stream)
        elif what == BELOW:
            out[k] = noise.below(stream, a)
        elif what == BERNOULLI:
            out[k] = noise.bernoulli_exp(stream, a, b)
        else:
            out[k] = noise.exponential_choice(stream, scores, a, b)


def dice_of(seed):
    return np.random.default_rng(seed).random(KEY)


def opened(dice):
    stream = np.full(SIZE, -1, dtype=np.int64)  # what was there must not matter
    noise.open_stream(dice, stream)
    return stream


def draws(what, a=0, b=0, scores=NONE, size=1, seed=0, run=fill):
    out = np.empty(size, dtype=np.int64)
    run(what, a, b, np.asarray(scores, dtype=np.int64), opened(dice_of(seed)), out)
    return out


def reference_block(key, tail):
    """ChaCha20's block function as RFC 8439 tells it, on bytes: a key of 32, and 16 of counter and nonce."""
    start = list(struct.unpack("<16I", b"expand 32-byte k" + key + tail))
    state = start.copy()

    def mix(x, y, z, by):
        state[x] = (state[x] + state[y]) % 2**32
        turned = state[z] ^ state[x]
        state[z] = (turned * 2**by) % 2**32 + turned // 2 ** (32 - by)

    for turn in range(20):
        for k in range(4):
            b, c, d = (4 + k, 8 + k, 12 + k) if turn % 2 == 0 else (4 + (k + 1) % 4, 8 + (k + 2) % 4, 12 + (k + 3) % 4)
            mix(k, b, d, 16)
            mix(c, d, b, 12)
            mix(k, b, d, 8)
            mix(c, d, b, 7)
    return [(x + y) % 2**32 for x, y in zip(state, start, strict=True)]


def reference_words(dice, blocks, first=0):
    """Key stream with Bernstein's 64-bit counter and a nonce of zeros."""
    key = b"".join(struct.pack("<I", math.floor(d * 2**32)) for d in dice)
    return [word for c in range(first, first + blocks) for word in reference_block(key, struct.pack("<QQ", c, 0))]


# The key stream


def test_block_of_the_rfc():
    """RFC 8439, 2.3.2, for the reference and for ours, whose state takes its counter and nonce as well."""
    key, tail = bytes(range(32)), bytes.fromhex("01000000 00000009 0000004a 00000000")
    expected = bytes.fromhex(
        "10f1e7e4d13b5915500fdd1fa32071c4c7d1f4c733c068030422aa9ac3d46c4e"
        "d2826446079faa0914c2d705d98b02a2b5129cd1de164eb9cbd083e8a2503c4e"
    )
    assert struct.pack("<16I", *reference_block(key, tail)) == expected
    for run in (fill, fill.py_func):
        stream, out = opened(np.array(struct.unpack("<8I", key)) / 2**32), np.empty(16, dtype=np.int64)
        stream[12:16] = struct.unpack("<4I", tail)
        run(WORDS, 0, 0, NONE, stream, out)
        assert struct.pack("<16I", *out.tolist()) == expected


@pytest.mark.parametrize("run", [fill, fill.py_func])
@pytest.mark.parametrize("seed", range(3))
def test_key_stream(seed, run):
    assert draws(WORDS, size=160, seed=seed, run=run).tolist() == reference_words(dice_of(seed), 10)


@pytest.mark.parametrize("run", [fill, fill.py_func])
@pytest.mark.parametrize("counter", [2**32 - 1, 2**40 + 2**32 - 1])
def test_counter_carries(counter, run):
    dice, out = dice_of(0), np.empty(48, dtype=np.int64)
    stream = opened(dice)
    stream[12], stream[13] = counter % 2**32, counter // 2**32
    run(WORDS, 0, 0, NONE, stream, out)
    assert out.tolist() == reference_words(dice, 3, first=counter)


@pytest.mark.parametrize("n", [1, 2, 3, 2**20 + 1, 2**32 - 1, 2**32, 2**32 + 1, 3 * 2**40 + 5, 2**62 - 1, 2**62])
def test_below_uses_the_stream_as_told(n):
    """A bit mask, one word up to 2^32 and two above, and the next try for what is too large."""
    words, expected = iter(reference_words(dice_of(5), 40)), []
    while len(expected) < 50:
        value = next(words) if n <= 2**32 else next(words) + 2**32 * next(words)
        value %= 2 ** (n - 1).bit_length()
        if value < n:
            expected.append(value)
    assert draws(BELOW, n, size=50, seed=5).tolist() == expected


# Compiled and plain


@pytest.mark.parametrize(
    ("what", "a", "b"),
    [(BELOW, n, 0) for n in (1, 1000, 2**32 + 1, 2**62)]
    + [(BERNOULLI, *ab) for ab in ((0, 1), (1, 2), (7, 3), (2**62, 1), (2**50 - 1, 2**50), (2**62, 2**50))]
    + [(CHOICE, 4, scale) for scale in (1, 1000, 2**50)],
)
def test_compiled_and_plain_code_agree(what, a, b):
    scores = [2**61, 5, 700, -(2**61)] if b == 1 else [300, 5, 700, -100]
    compiled, plain = (draws(what, a, b, scores, 60, seed=3, run=run) for run in (fill, fill.py_func))
    assert compiled.tolist() == plain.tolist()


@pytest.mark.parametrize("scale", [1, 3, 2**24, 2**31 + 1, LARGEST - 1, LARGEST])
@pytest.mark.parametrize("kind", [noise.GAUSSIAN, noise.LAPLACE])
def test_compiled_and_plain_noise_agree(kind, scale):
    out = np.zeros((2, 60), dtype=np.int64)
    for run, row in zip((noise.sample_kernel, noise.sample_kernel.python), out, strict=True):
        run(kind, scale, dice_of(1), np.empty(SIZE, dtype=np.int64), row)
    assert out[0].tolist() == out[1].tolist()
    assert out[0].any()


# Probabilities


def fits(drawn, lowest, weights):
    """Chi-square of draws against the weights of whole numbers from the lowest on.

    Numbers expected fewer than ten times are taken together with the next rarest.
    """
    observed = np.bincount(drawn - lowest, minlength=len(weights))
    assert len(observed) == len(weights), "a draw is out of range"
    expected = len(drawn) * np.asarray(weights) / np.sum(weights)
    order = np.argsort(-expected)
    last = np.count_nonzero(expected >= 10) - 1
    observed, expected = (np.add.reduceat(x[order], np.arange(last + 1)) for x in (observed, expected))
    return stats.chisquare(observed, expected).pvalue > ERROR_RATE


def moment(kind, power):
    """Of the standard normal and Laplace distributions."""
    if power % 2 == 1:
        return 0
    return math.prod(range(1, power, 2)) if kind == "gaussian" else math.factorial(power)


@pytest.mark.compiled
@pytest.mark.parametrize("scale", [2**21, 2**40 + 12345, LARGEST])
@pytest.mark.parametrize("kind", ["gaussian", "laplace"])
def test_large_noise(kind, scale):
    """The grid is not to be seen any more: Kolmogorov-Smirnov, and chi-square over 64 parts of equal probability, with
    error rate 1e-6 each; moments to five standard errors.
    """
    size = 400_000
    x = sample(kind, scale, size, dice_of(scale)) / scale
    law = stats.norm() if kind == "gaussian" else stats.laplace()
    assert stats.kstest(x, law.cdf).pvalue > ERROR_RATE
    assert fits(np.floor(64 * law.cdf(x)).astype(np.int64), 0, np.ones(64))
    for power in (1, 2, 3, 4):
        mean, square = moment(kind, power), moment(kind, 2 * power)
        assert abs(np.mean(x**power) - mean) < 5 * math.sqrt((square - mean**2) / size)
    # no side is preferred, and neighbours know nothing of each other
    assert stats.binomtest(int(np.sum(x > 0)), int(np.sum(x != 0))).pvalue > ERROR_RATE
    assert abs(np.mean(x[1:] * x[:-1])) < 5 * law.var() / math.sqrt(size)


def test_bernoulli_exp_of_a_huge_number_is_false_soon():
    assert not draws(BERNOULLI, 2**62, 1, size=100_000).any()


def test_exponential_choice_of_one_and_of_far_apart():
    assert not draws(CHOICE, 1, 5, [-7, 9], size=100).any()
    assert (draws(CHOICE, 3, 1, [-(2**61), 2**61, 0], size=1000) == 1).all()


# Keys


def test_same_dice_same_noise_and_one_bit_makes_another():
    """Any of the 256 bits of the key changes half of the bits of the stream: within five standard errors."""
    dice, changed = dice_of(0), []
    noise_of_it, words = sample("gaussian", 1000, 50, dice), reference_words(dice, 1)
    assert np.array_equal(noise_of_it, sample("gaussian", 1000, 50, dice.copy()))
    for k in range(KEY):
        for bit in range(32):
            other = dice.copy()
            other[k] = (math.floor(dice[k] * 2**32) ^ (1 << bit)) / 2**32
            assert np.count_nonzero(noise_of_it != sample("gaussian", 1000, 50, other)) > 40
            stream, out = opened(other), np.empty(16, dtype=np.int64)
            fill(WORDS, 0, 0, NONE, stream, out)
            changed.append(sum((int(x) ^ y).bit_count() for x, y in zip(out, words, strict=True)))
    changed = np.array(changed) - 256
    assert np.all(np.abs(changed) < 6 * math.sqrt(128))  # error rate 256 * 2e-9
    assert abs(changed.mean()) < 5 * math.sqrt(128 / len(changed))


def test_a_prefix_does_not_depend_on_what_follows():
    assert np.array_equal(sample("laplace", 9, 100, dice_of(4)), sample("laplace", 9, 1000, dice_of(4))[:100])


def test_dice_of_the_operating_system():
    """53 bits each, each bit one half of the time (error rate 1e-6 in all), and others every time."""
    dice = system_dice(20_000)
    assert dice.dtype == np.float64
    assert 0.0 <= dice.min() <= dice.max() < 1.0
    whole = (dice * 2.0**53).astype(np.int64)
    assert np.array_equal(whole / 2.0**53, dice)
    ones = [int((whole >> bit & 1).sum()) for bit in range(53)]
    assert min(stats.binomtest(k, len(dice)).pvalue for k in ones) > ERROR_RATE / 53
    assert not np.array_equal(sample("gaussian", 2**30, 5), sample("gaussian", 2**30, 5))


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("normal", 5, 3), "kind='normal'"),
        (("gaussian", 0, 3), "scale=0"),
        (("gaussian", 2.5, 3), r"scale=2\.5"),
        (("laplace", 2**50 + 1, 3), "scale="),
        (("laplace", 5, -1), "size=-1"),
        (("laplace", 5, 1, np.zeros(7)), "dice"),
        (("laplace", 5, 1, np.ones(8)), "dice"),
        (("laplace", 5, 1, np.full(8, np.nan)), "dice"),
    ],
)
def test_refused(arguments, why):
    with pytest.raises(ParameterError, match=why):
        sample(*arguments)
