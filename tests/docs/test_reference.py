"""Every public name is in the reference, once, and its page can be made."""

from __future__ import annotations

import re
import sys
import types
from pathlib import Path

import pytest

import coterie as ct

DOCS = Path(__file__).parents[2] / "docs"
sys.path.insert(0, str(DOCS / "_ext"))

import reference  # noqa: E402

MODULES = [module for name in ct.__all__ if isinstance(module := getattr(ct, name), types.ModuleType)]
MODULES.remove(ct.dev)  # has a page of its own: docs/how-to/bring-a-method.md
LISTED = reference.listed()


def test_every_name_of_the_package_is_listed():
    listed = {id(reference.value(name)) for name in LISTED}
    modules = set(map(id, [*MODULES, ct.dev]))
    missing = [name for name in ct.__all__ if id(getattr(ct, name)) not in listed | modules and name != "__version__"]
    assert not missing


def test_what_methods_are_written_with_is_on_the_page_about_it():
    words = set(re.findall(r"\w+", (DOCS / "how-to" / "bring-a-method.md").read_text(encoding="utf-8")))
    assert not set(ct.dev.__all__) - words


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_every_name_of_a_module_is_listed(module):
    listed = {id(reference.value(name)) for name in LISTED}
    values = {name: getattr(module, name) for name in reference.public(module)}
    missing = [name for name, value in values.items() if id(value) not in listed]
    assert [name for name in missing if not isinstance(values[name], types.ModuleType)] == []


def test_nothing_is_listed_twice_and_no_two_pages_have_one_file_name():
    names = reference.filenames()
    assert len({id(reference.value(name)) for name in LISTED}) == len(LISTED)
    assert len({names.get(name, name).lower() for name in LISTED}) == len(LISTED)


def test_members_are_ours_and_documented():
    shown = reference.members("coterie.CollaborativeRegressor")
    assert {"fit", "predict", "partial_fit", "report"} <= set(shown)
    assert "get_params" not in shown  # scikit-learn's
    assert reference.members("coterie.Hinge") == []  # for engines, not for people
