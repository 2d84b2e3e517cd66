"""What numbers may be: every check returns its value in one type, or refuses with one wording."""

from __future__ import annotations

import math
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest

from coterie import _checks
from coterie.errors import ParameterError

NO_NUMBERS = ("1", None, True, np.True_, [1.0], np.ones(1), [[1.0], [1.0, 2.0]], 1j, 10**400, math.nan)


def test_numbers_of_every_kind_become_floats():
    for value in (1, 1.0, np.float32(1), np.int8(1), np.array(1.0), Fraction(1), Decimal(1)):
        for check in (_checks.positive, _checks.nonnegative, _checks.probability):
            found = check("x", value)
            assert (type(found), found) == (float, 1.0)
    assert _checks.fraction("x", 0.5) == 0.5
    assert type(_checks.integer("n", np.int64(3))) is int


@pytest.mark.parametrize("value", NO_NUMBERS, ids=repr)
def test_what_is_no_number_is_refused_by_all(value):
    for check in (_checks.positive, _checks.nonnegative, _checks.probability, _checks.fraction):
        with pytest.raises(ParameterError, match=r"^x = .*: expected a "):
            check("x", value)


@pytest.mark.parametrize("value", ["1", None, True, np.True_, 1.0, [1], math.nan, 0], ids=repr)
def test_integers(value):
    with pytest.raises(ParameterError, match=r"^n = .*: expected an integer >= 1$"):
        _checks.integer("n", value)


@pytest.mark.parametrize(
    ("ends", "inside", "outside"),
    [
        ("[]", (0, 1, 0.5), (-1e-300, 1.0 + 1e-15)),
        ("[)", (0, 0.5), (1, -1)),
        ("(]", (1, 0.5), (0,)),
        ("()", (0.5,), (0, 1)),
    ],
)
def test_intervals_have_the_ends_they_say(ends, inside, outside):
    for value in inside:
        assert _checks.within("x", value, 0, 1, ends) == value
    for value in outside:
        with pytest.raises(ParameterError) as refused:
            _checks.within("x", value, 0, 1, ends)
        assert str(refused.value) == f"x = {value!r}: expected a number in {ends[0]}0, 1{ends[1]}"


def test_signs_and_infinity():
    assert _checks.nonnegative("x", 0) == 0.0
    for check, value in ((_checks.positive, 0), (_checks.nonnegative, -1), (_checks.positive, math.inf)):
        with pytest.raises(ParameterError, match=r"expected a (positive|nonnegative) finite number$"):
            check("x", value)
    for value in (0, 1):
        with pytest.raises(ParameterError, match="expected a number strictly between 0 and 1"):
            _checks.fraction("x", value)


def test_a_choice_is_one_of_the_names():
    assert _checks.choice("kind", "b", ("a", "b", "c")) == "b"
    for value in ("d", None, 1, ["a"]):
        with pytest.raises(ParameterError, match=r"^kind = .*: expected 'a', 'b' or 'c'$"):
            _checks.choice("kind", value, ("a", "b", "c"))


def test_arrays_of_numbers():
    assert _checks.numbers("x", 2).shape == ()
    np.testing.assert_array_equal(_checks.numbers("x", [[1, 2.5]]), [[1.0, 2.5]])
    np.testing.assert_array_equal(_checks.numbers("x", [0, 1], zero=True), [0.0, 1.0])
    for values, says in (
        ([1.0, 0.0], r"^x\[1\] = 0.0: expected a positive finite number$"),
        ([[1.0, math.inf]], r"^x\[0, 1\] = inf: expected"),
        (-1.0, r"^x = -1.0: expected"),
        ([1.0, True], r"^x = \[1.0, True\]: expected .*, or an array of such$"),
        ([[1.0], [1.0, 2.0]], r"^x = .*: expected .*, or an array of such$"),
        ("1", r"^x = '1': expected"),
    ):
        with pytest.raises(ParameterError, match=says):
            _checks.numbers("x", values)
    with pytest.raises(ParameterError, match=r"^x\[0\] = -1.0: expected a nonnegative finite number$"):
        _checks.numbers("x", [-1.0], zero=True)
