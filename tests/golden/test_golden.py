"""What was written once is read to the same values, and what was found is found again.

A difference is a fault, or a change that somebody means: then ``make.py`` writes it anew, and the change says why.
"""

from __future__ import annotations

import json
import math

import pytest
from make import CASES, HERE, copied, files_of, numbers_of

pytestmark = [pytest.mark.plain, pytest.mark.every_case]

NUMBERS = json.loads((HERE / "numbers.json").read_text())
WITH_FILES = [name for name, case in CASES.items() if case.write is not None]


def floats(value):
    """All that are in a list of lists."""
    return [each for part in value for each in floats(part)] if isinstance(value, list) else [value]


def differences(found, stored, tolerance, place=""):
    """Where two values are not the same; numbers of one list are measured by the largest of them."""
    if isinstance(found, dict) and isinstance(stored, dict):
        for name in {**stored, **found}:
            if name not in found or name not in stored:
                yield f"{place}.{name} is {'new' if name in found else 'missing'}"
            else:
                yield from differences(found[name], stored[name], tolerance, f"{place}.{name}")
        return
    ours, theirs = floats(found), floats(stored)
    finite = [abs(each) for each in theirs if isinstance(each, float) and math.isfinite(each)]
    room = tolerance * max(finite, default=0.0)
    for k, (one, other) in enumerate(zip(ours, theirs, strict=False)):
        near = isinstance(one, float) and isinstance(other, float) and abs(one - other) <= room
        if not (near or json.dumps(one) == json.dumps(other)):
            yield f"{place}: entry {k} is {one!r}, and was {other!r}"
            return
    if len(ours) != len(theirs):
        yield f"{place} has {len(ours)} entries, and had {len(theirs)}"


def check(name, folder):
    found = list(differences(numbers_of(name, folder), NUMBERS[name], CASES[name].tolerance))
    assert not found, f"{name}\n" + "\n".join(found[:12])


def test_every_case_is_stored_and_nothing_else():
    assert set(NUMBERS) == set(CASES)


@pytest.mark.parametrize("name", WITH_FILES)
def test_files_of_that_day_are_read_to_the_same_values(name, tmp_path):
    check(name, copied(name, tmp_path))


@pytest.mark.parametrize("name", CASES)
def test_the_same_is_found_again(name, tmp_path):
    if CASES[name].write is not None:
        CASES[name].write(tmp_path)
    check(name, tmp_path)


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.same_bytes])
def test_the_same_bytes_are_written(name, tmp_path):
    CASES[name].write(tmp_path)
    for path in files_of(name).iterdir():
        assert (tmp_path / path.name).read_bytes() == path.read_bytes(), path.name
    assert len(list(tmp_path.iterdir())) == len(list(files_of(name).iterdir()))
