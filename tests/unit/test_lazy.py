"""Packages that import a name when it is used: what they promise, what mypy sees, and what they give is the same."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import coterie as ct

PACKAGES = ["coterie", "coterie.core.methods", "coterie.peers", "coterie.privacy", "coterie.ties"]


def parts_of(package):
    """Names by module, as mypy reads them and as the table says; and the modules that mypy sees as names."""
    tree = ast.parse(Path(importlib.import_module(package).__file__).read_text())
    (choice,) = (node for node in tree.body if isinstance(node, ast.If))
    (made,) = choice.orelse
    table = ast.literal_eval(made.value.args[1])
    seen = {
        node.module and "." * (node.level - 1) + node.module: {name.name for name in node.names} for node in choice.body
    }
    modules = seen.pop(None, set())
    return seen, {module: set(names.split()) for module, names in table.items()}, modules


def test_these_are_all():
    source = Path(ct.__file__).parent
    lazy = [path for path in source.rglob("__init__.py") if "_lazy" in path.read_text()]
    assert sorted(".".join(("coterie", *path.relative_to(source).parts[:-1])) for path in lazy) == PACKAGES


@pytest.mark.parametrize("package", PACKAGES)
def test_the_table_and_the_types_agree(package):
    seen, table, modules = parts_of(package)
    assert seen == table
    found = importlib.import_module(package)
    late = set().union(modules, *table.values())
    assert late <= set(found.__all__)
    if package == "coterie":
        assert late | {"__version__"} == set(found.__all__)


@pytest.mark.parametrize("package", PACKAGES)
def test_every_name_resolves(package):
    found = importlib.import_module(package)
    _, table, modules = parts_of(package)
    for name in found.__all__:
        assert getattr(found, name) is getattr(found, name)
        assert name in dir(found)
    for module, names in table.items():
        home = importlib.import_module(f".{module}", package)
        assert all(getattr(found, name) is getattr(home, name) for name in names)
    for name in modules:
        assert getattr(found, name) is sys.modules[f"{package}.{name}"]


@pytest.mark.parametrize("package", PACKAGES)
def test_no_name_is_that_of_a_submodule(package):
    """Importing the submodule would put it in the place of the name."""
    _, table, _ = parts_of(package)
    here = Path(importlib.import_module(package).__file__).parent
    submodules = {path.stem for path in here.iterdir() if path.suffix == ".py" or path.is_dir()}
    assert not submodules & set().union(*table.values())


def test_unknown_names():
    with pytest.raises(AttributeError, match="module 'coterie' has no attribute 'Grph'"):
        _ = ct.Grph
    with pytest.raises(ImportError, match="cannot import name 'nothing'"):
        from coterie.privacy import nothing  # noqa: F401
    assert not hasattr(ct, "__wrapped__")


def test_other_rooms_are_found():
    assert ct.network.Peer is ct.engines.peer.Peer
    assert ct.world.VACANT == -1


def test_importing_coterie_imports_next_to_nothing():
    code = (
        "import sys, coterie, coterie.errors\n"
        "assert not {'numpy', 'scipy', 'numba', 'pandas'} & set(sys.modules)\n"
        "import coterie.privacy.auditing, coterie as ct\n"
        "assert callable(ct.privacy.audit)\n"
        "from coterie import *\n"
        "assert ModelPropagation is ct.methods.ModelPropagation and datasets is ct.datasets"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
