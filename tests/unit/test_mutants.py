"""The faults of ``make mutants`` can be planted: what they replace is there. That they are found takes minutes."""

from __future__ import annotations

import pytest

from tests.mutants import HERE, MUTANTS, PACKAGE


@pytest.mark.every_case
@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_every_fault_can_be_planted(mutant):
    assert (PACKAGE / mutant.file).read_text().count(mutant.before) == 1, "the code has changed: plant it elsewhere"
    for test in mutant.tests:
        path, _, function = test.partition("::")
        # A case that is named runs, whether or not the default run would take it: a function takes its default cases.
        assert "[" not in function, "name the test, not one of its cases"
        assert not function or f"def {function}(" in (HERE.parent / path).read_text()


def test_faults_have_names_of_their_own():
    assert len({mutant.name for mutant in MUTANTS}) == len(MUTANTS)
