"""Messages are declared by their parts: lengths, models, ranges and bits follow."""

from __future__ import annotations

import math

import numpy as np
import pytest

import coterie as ct
from coterie.core import messages
from coterie.core.messages import MAX_COUNT, MAX_LOSS, Choices, Contents, Number, Pairs, bits_of, lengths_of, longest
from coterie.core.methods import METHODS
from coterie.errors import DataError

MESSAGES = {
    0: messages.Vector(),
    1: (messages.Vector(2), Number(0.0, 1.0)),
    2: (messages.Counter(), Pairs()),
    3: (),
    4: (Number(), Choices(), Number(-1.0, 1.0)),
    5: (messages.Numbers(2, 3, 10.0), messages.Average(2, 3, 10.0)),
    6: messages.Addresses(2),
    7: messages.Loss(),
}
BOUNDS = messages.Bounds(p=4, radius=9.0, outputs=2)


def read(kind, numbers, bounds=BOUNDS, members=(3, 5)):
    contents = Contents(MESSAGES, bounds)
    contents.check_length(kind, len(numbers))
    return contents.read(kind, np.array(numbers, float), members)


def test_lengths():
    expected = (4, 9, range(1, 10, 2), 0, range(3, 7), 22, range(0, 5, 2), 1)
    assert lengths_of(MESSAGES, 4) == Contents(MESSAGES, BOUNDS).lengths == expected
    assert (longest(expected), longest(())) == (22, 0)
    with pytest.raises(ValueError, match="too many"):
        lengths_of({0: (Pairs(), Choices())}, 4)


@pytest.mark.parametrize(
    ("kind", "count"), [(0, 3), (0, 5), (1, 8), (2, 0), (2, 2), (2, 11), (3, 1), (4, 2), (4, 7), (6, 3), (8, 0)]
)
def test_lengths_that_are_refused(kind, count):
    with pytest.raises(DataError, match=f"a message of kind {kind}"):
        Contents(MESSAGES, BOUNDS).check_length(kind, count)


def test_the_models_in_a_message():
    assert [m.tolist() for m in read(1, [1, 2, 3, 4, 5, 6, 7, 8, 0.5])[0]] == [[1, 2, 3, 4], [5, 6, 7, 8]]
    assert [m.tolist() for m in read(2, [7, 0, 1.5, 2, -2.5])[0]] == [[1.5, -2.5]]
    assert [read(kind, numbers)[0] for kind, numbers in ((3, []), (4, [9, 1, 2, 0]), (6, [3, 9]))] == [[], [], []]
    flow, sums = np.zeros(11), np.arange(11.0)  # of the weight at the end, at least 1 counts
    assert [m.tolist() for m in read(5, [*flow, *sums])[0]] == [[0.0, 0.1, 0.2, 0.3]]  # over the weight, which is 10
    assert [m.tolist() for m in read(5, [*flow, *sums[:10], -0.5])[0]] == [[0.0, 1.0, 2.0, 3.0]]


#: By kind: numbers that an honest peer may send, and numbers that it may not.
SENT = {
    1: ([[*[0] * 8, 1.0]], [[*[0] * 8, 1.1], [*[0] * 8, -0.1]]),
    2: ([[0], [MAX_COUNT - 0.5]], [[MAX_COUNT], [-1]]),
    # Two columns for each of two outputs; and two outputs.
    4: ([[1e300, 2, -2, 1]], [[0, 3, 0, 1], [0, 1, 1], [0, 1, 1, 1, 1], [0, 1, 1, 2]]),
    5: ([[10.0] * 22], [[*[0] * 5, -10.1, *[0] * 16], [*[0] * 21, 10.1]]),
    6: ([[], [3, 1e9, 5, -1]], [[3, 0, 4, 0], [3.5, 0]]),
    7: ([[0.0], [MAX_LOSS]], [[2 * MAX_LOSS], [-0.1]]),
}


@pytest.mark.parametrize("kind", SENT)
def test_the_numbers_that_an_honest_peer_may_send(kind):
    for numbers, allowed in zip(SENT[kind], (True, False), strict=True):
        assert [read(kind, one)[1] for one in numbers] == [allowed] * len(numbers)


def test_losses_may_be_negative_in_a_ball():
    assert read(7, [-2.0], BOUNDS._replace(ball=2.0))[1]
    assert not read(7, [-2.1], BOUNDS._replace(ball=2.0))[1]


def test_bits_by_the_definition():
    step, whole = METHODS["boosting"].messages[1], METHODS["boosting"].messages[0]
    # Three messages for two outputs: a real number each, and six choices of one of two columns and a sign.
    assert bits_of(step, 3, 3 * 4, BOUNDS, 32) == 3 * 32 + 6 * (math.log2(2) + 1)
    assert bits_of(whole, 2, 2 + 2 * 5, BOUNDS, 32) == 5 * (32 + math.log2(4))  # five entries in both
    assert bits_of((), 7, 0, BOUNDS, 32) == 0
    learned = ct.Learned("cd", ct.GraphRule(kappa=2), sampling="shuffle").messages
    counted = [bits_of(learned[kind], 1, length, BOUNDS, 32) / 32 for kind, length in enumerate((4, 10, 3, 4, 4, 4))]
    assert counted == [0, 6, 1, 0, 0, 4]  # degree, loss and model; a weight; the method's model
