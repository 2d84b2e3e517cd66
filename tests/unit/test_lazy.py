"""Packages that import a name when it is used: what they promise, what mypy sees, and what they give is the same."""

from __future__ import annotations

import ast
import functools
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import coterie as ct

PACKAGE = Path(ct.__file__).parent
STUBS = sorted(PACKAGE.rglob("__init__.pyi"))


def name_of(stub):
    return ".".join(("coterie", *stub.relative_to(PACKAGE).parts[:-1]))


def names_in(stub):
    """Names by the module that has them, as mypy reads them; None for modules that are names themselves."""
    found = {}
    for node in ast.parse(stub.read_text()).body:
        if isinstance(node, ast.ImportFrom):
            found.setdefault(node.module, set()).update(name.name for name in node.names)
    return found


@pytest.mark.parametrize("stub", STUBS, ids=name_of)
def test_what_mypy_sees_is_what_is_there(stub):
    package = importlib.import_module(name_of(stub))
    for module, names in names_in(stub).items():
        for name in names:
            home = importlib.import_module(f"{name_of(stub)}.{module or name}")
            assert getattr(package, name) is (home if module is None else getattr(home, name))
            assert name in dir(package)
    assert set().union(*names_in(stub).values()) == set(package.__all__)


@pytest.mark.parametrize("stub", STUBS, ids=name_of)
def test_no_name_is_that_of_a_submodule(stub):
    """Importing the submodule would put it in the place of the name."""
    submodules = {path.stem for path in stub.parent.iterdir() if path.suffix == ".py" or path.is_dir()}
    late = set().union(*(names for module, names in names_in(stub).items() if module is not None))
    assert not submodules & late


@pytest.mark.parametrize("package", ["coterie", "coterie.graphs", "coterie.privacy", "coterie.peers"])
def test_unknown_names(package):
    with pytest.raises(AttributeError, match="nothing"):
        _ = importlib.import_module(package).nothing


def test_a_name_of_version_0_1_says_where_it_is():
    for name, place in ct._MOVED.items():
        with pytest.raises(AttributeError, match=f"coterie.{name} is now coterie.{place}$"):
            getattr(ct, name)
        assert functools.reduce(getattr, place.split("."), ct) is not None


def test_every_public_name_of_privacy_resolves():
    assert all(getattr(ct.privacy, name) is not None for name in ct.privacy.__all__)


def test_importing_coterie_imports_next_to_nothing():
    code = (
        "import sys, coterie, coterie.errors\n"
        "assert not {'numpy', 'scipy', 'numba', 'pandas'} & set(sys.modules)\n"
        "import coterie.privacy.auditing, coterie as ct\n"
        "assert callable(ct.privacy.audit)\n"
        "from coterie import *\n"
        "assert simulate is ct.simulate and datasets is ct.datasets"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
