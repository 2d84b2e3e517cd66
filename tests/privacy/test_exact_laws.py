"""The laws of the samplers to the last tail, with nothing left to chance: every way that a draw can go is followed.

A sampler asks dice of known law: ``below`` for a whole number, ``_series``, ``_series_of_square`` and ``bernoulli_exp``
for a coin. Here these are dice of ours, which answer what they are told. A way is a list of answers; its probability is
the product of theirs, and the probability of a result, the sum over the ways that lead to it. So a tail of 1e-22 is
looked at as closely as the middle, and there is no error rate. The coins are followed in the same way, down to
``below``, whose use of the key stream test_noise.py checks word for word.
"""

from __future__ import annotations

import contextlib
import functools
import math
import sys
from types import FunctionType

import numpy as np
import pytest
from scipy import stats

import coterie as ct
from coterie.core.private import noise
from coterie.core.private.noise import LARGEST

#: No way that is less likely is followed. What is looked at is more likely by far.
RAREST = 1e-26
#: No draw of these tests can go so many ways, about 30,000 at most.
MOST = 100_000
#: Rounding of a product of some hundred probabilities.
CLOSE = 1e-11
#: Of a test of frequencies.
ERROR_RATE = 1e-6


class Again(BaseException):
    """The sampler has rejected a draw, and begins anew, with the same law as before; or this way is too rare."""


class Dice:
    """Answers what it is told, and says what else it could have answered.

    A sampler begins anew where it asks at its first place again, after it has asked at another.
    """

    def __init__(self, answers, rarest):
        self.answers, self.used, self.probability, self.rarest = answers, 0, 1.0, rarest
        self.open = []  # ways that part from this one where it has no answer any more
        self.first, self.left = None, False

    def answer(self, place, choices):
        """One of the choices, which are pairs of an answer and its probability."""
        self.first = self.first or place
        self.left = self.left or place != self.first
        if self.left and place == self.first:
            raise Again
        if self.used == len(self.answers):  # the first choice now, the others later
            first, *others = choices
            self.open += [([*self.answers, way], self.probability * way[1]) for way in others]
            self.answers.append(first)
        given, probability = self.answers[self.used]
        assert (given, probability) in choices  # the same answers lead to the same question
        self.used, self.probability = self.used + 1, self.probability * probability
        if self.probability < self.rarest:
            raise Again
        return given


def place():
    frame = sys._getframe(2)
    return frame.f_code, frame.f_lasti


def each(n):
    """All numbers below n."""
    return [(value, 1.0 / n) for value in range(n)]


def law_of(sampler, arguments, coins=(), numbers=each, rarest=RAREST):
    """The probability of every result of one draw, up to the same factor for all: that it is not rejected.

    ``coins`` are those helpers which answer with their own law; ``numbers`` says what ``below`` may answer, and how
    likely that is, where not all numbers are looked at, or some stand for others.
    """
    dice = None

    def below(stream, n):
        return dice.answer(place(), [way for way in numbers(n) if way[1] > 0.0])

    def coin(law):
        def tossed(stream, num, den):
            heads = law(num, den)
            return dice.answer(place(), [way for way in ((True, heads), (False, 1.0 - heads)) if way[1] > 0.0])

        return tossed

    ours = {"below": below, **{name: coin(COINS[name]) for name in coins}}
    run = FunctionType(sampler.__code__, {**sampler.__globals__, **ours})
    law, ways, tried = {}, [([], 1.0)], 0
    while ways:
        tried += 1
        assert tried < MOST, "a draw that does not end"
        dice = Dice(ways.pop()[0], rarest)
        with contextlib.suppress(Again):
            result = run(None, *arguments)
            law[result] = law.get(result, 0.0) + dice.probability
        ways += [way for way in dice.open if way[1] > rarest]
    return law


COINS = {
    "_series": lambda num, den: math.exp(-num / den),
    "_series_of_square": lambda j, sigma: math.exp(-0.5 * (j / sigma) ** 2),
    "bernoulli_exp": lambda num, den: math.exp(-num / den),
}


# -- coins ------------------------------------------------------------------------------------------------------------


def split(at):
    """Numbers below n as a comparison with ``at`` sees them: 0 stands for those below it, ``at`` for the rest."""
    return lambda n: [(0, min(at, n) / n), (at, max(n - at, 0) / n)]


@pytest.mark.parametrize(("num", "den"), [(0, 1), (1, 1), (1, 2), (2, 3), (4, 5), (5, 5), (2**50 - 1, 2**50)])
def test_a_coin_of_exp(num, den):
    law = law_of(noise._series, (num, den), numbers=split(num))
    assert sum(law.values()) == pytest.approx(1.0, abs=1e-15)
    assert law[True] == pytest.approx(COINS["_series"](num, den), abs=1e-15)


@pytest.mark.parametrize(("j", "sigma"), [(0, 1), (0, 3), (2, 3), (3, 5), (2**50 - 1, 2**50)])
def test_a_coin_of_a_square(j, sigma):
    """Half of the questions are about sigma, the others about 2, 4, 6, ...: of these, only 0 is good."""
    law = law_of(noise._series_of_square, (j, sigma), numbers=lambda n: split(j if n == sigma else 1)(n), rarest=1e-20)
    assert sum(law.values()) == pytest.approx(1.0, abs=1e-15)
    assert law[True] == pytest.approx(COINS["_series_of_square"](j, sigma), abs=1e-15)


@pytest.mark.parametrize(("num", "den"), [(0, 5), (3, 5), (5, 5), (7, 5), (50, 1), (151, 3)])
def test_a_coin_of_any_exp(num, den):
    """Also of one that never comes in practice: exp(-50) is a probability."""
    law = law_of(noise.bernoulli_exp, (num, den), coins=("_series",))
    assert law[True] == pytest.approx(COINS["bernoulli_exp"](num, den), rel=CLOSE)
    assert sum(law.values()) == pytest.approx(1.0, rel=CLOSE)


# -- noise ------------------------------------------------------------------------------------------------------------


def weight_of(kind, x, scale):
    """``exp(-x^2 / (2 scale^2))`` or ``exp(-abs(x) / scale)``, from whole numbers."""
    return math.exp(-0.5 * (x / scale) ** 2 if kind == "gaussian" else -abs(x) / scale)


SAMPLERS = {"gaussian": noise.discrete_gaussian, "laplace": noise.discrete_laplace}
#: How far out it is looked, in widths: far beyond six, to probabilities of 1e-22.
REACH = {"gaussian": 10, "laplace": 50}


@functools.cache
def law_of_noise(kind, scale, few):
    """Of large scales, some whole numbers in every width: those at its ends, and in the middle."""

    def numbers(n):
        return each(n) if n <= few else [(value, 0.25) for value in (0, 1, n // 2, n - 1)]

    return law_of(SAMPLERS[kind], (scale,), coins=("_series", "_series_of_square"), numbers=numbers)


@pytest.mark.parametrize("scale", [1, 3, 1000, 2**21 + 7, LARGEST])
@pytest.mark.parametrize("kind", SAMPLERS)
def test_every_number_has_its_probability(kind, scale):
    """Beside that of zero, and on both sides: none is cut off, none is more or less likely than it should be."""
    law = law_of_noise(kind, scale, 8)
    found = np.array(sorted(law))
    widths = REACH[kind]
    steps = range(scale) if scale <= 8 else (0, 1, scale // 2, scale - 1)
    expected = {sign * (k * scale + j) for k in range(widths) for j in steps for sign in (1, -1)}
    assert expected <= set(found.tolist()), "some numbers cannot be drawn"
    for x in expected:
        assert law[x] / law[0] == pytest.approx(weight_of(kind, x, scale), rel=1e-9), x
    for x in found.tolist():  # what is farther out is not more likely than it should be, either
        assert law[x] <= law[0] * weight_of(kind, x, scale) * (1 + 1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("kind", SAMPLERS)
def test_the_whole_law_of_small_noise(kind):
    """Normalised, too: with all numbers looked at, what is not rejected adds up to the sum of the weights."""
    law = law_of_noise(kind, 3, 8)
    total = sum(weight_of(kind, x, 3) for x in range(-400, 401))
    assert sum(law.values()) / law[0] == pytest.approx(total, rel=CLOSE)


# -- the exponential mechanism ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "scores",
    [(0, 0, 0), (5, 0, -5), (200, 0, 199, -100), (380, 0), (0, 300, 300, 1)],
)
def test_a_clear_winner_does_not_always_win(scores):
    """The loser comes as often as it should, also where that is once in 1e23."""
    scale = 7
    law = law_of(noise.exponential_choice, (np.array(scores), len(scores), scale), coins=("bernoulli_exp",))
    best = max(scores)
    for r, score in enumerate(scores):
        expected = math.exp((score - best) / scale)
        assert law[r] / law[scores.index(best)] == pytest.approx(expected, rel=1e-9)


@pytest.mark.slow
def test_a_vertex_that_loses_clearly_is_sent_at_times():
    """Of agents whose examples all say the same, one in 40 says something else; none would if the best were taken
    where it wins clearly. A test of frequencies, error rate 1e-6.
    """
    n, p, m, epsilon, clip = 1200, 6, 12, 2.0, 0.5
    H = np.zeros((m, p))
    H[:, 0] = (
        1.0  # a slope of 1/2, which is the clip: every example has its whole part in one score, and none in others
    )
    even = 2 * np.arange(n)
    graph = ct.Graph.from_edges(2 * n, even, even + 1, np.full(n, 1.0))
    data = ct.AgentData(np.tile(H, (n, 1)), np.ones(n * m), agents=np.repeat(even, m), members=range(2 * n))
    problem = ct.Problem.boosting(data, graph, base=lambda X: X, mu=1e-9, beta=1.0, loss="logistic")
    method = ct.Private("boosting", epsilon=epsilon, delta=1e-5, wakes_per_agent=1, clip=clip, final=None)
    run = ct.simulate(problem, method, events=even, seed=3)
    wins = np.abs(run.theta[even, 0] - 1.0) < 1e-9  # the first step has length 1: the model is the vertex
    lead = m * clip * epsilon / (2 * 2 * clip)  # of exp(epsilon q / (2 Delta)), Delta = 2 clip, over a score of zero
    assert lead == 6.0
    loses = 1.0 - 1.0 / (1.0 + 2 * (p - 1) * math.exp(-lead) + math.exp(-2 * lead))
    assert stats.binomtest(int((~wins).sum()), n, loses).pvalue > ERROR_RATE
    assert len(np.unique(run.theta[even][~wins], axis=0)) > 5  # and any other may come
