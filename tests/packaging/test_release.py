"""What a release says of itself: one version, a changelog, a citation, licences that are known."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import venv
from importlib import metadata
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name
from packaging.version import Version

import coterie

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "release"))
import licences  # noqa: E402
import oldest  # noqa: E402

PAGE = (ROOT / "docs" / "licences.md").read_text()
LISTED = dict(re.findall(r"^\| ([\w.-]+) \| (.+?) \|", PAGE, re.MULTILINE))


def releases():
    """The versions of the changelog and their days, newest first."""
    return re.findall(
        r"^## (\d+\.\d+\.\d+) \((\d{4}-\d{2}-\d{2})\)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE
    )


def test_one_version_everywhere():
    cited = (ROOT / "CITATION.cff").read_text()
    [version], days = (re.findall(rf"^{key}: (\S+)$", cited, re.MULTILINE) for key in ("version", "date-released"))
    here = Version(coterie.__version__)
    if not releases():  # nothing was released yet, so there is no day to cite
        assert (version, days) == (coterie.__version__, [])
        assert here.is_devrelease
        return
    assert [releases()[0]] == [(version, *days)]
    assert here > Version(version) if here.is_devrelease else here == Version(version)


def test_versions_of_the_changelog_go_down():
    numbers = [tuple(map(int, version.split("."))) for version, _ in releases()]
    days = [day for _, day in releases()]
    assert numbers == sorted(numbers, reverse=True)
    assert days == sorted(days, reverse=True)


def test_the_citation_is_one():
    """The fields that readers of CITATION.cff need, and every paper that the docs have a page of."""
    yaml = pytest.importorskip("yaml")
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert {"cff-version", "message", "title", "authors", "version", "license"} <= set(cited)
    assert len(cited["references"]) == 5
    assert all(one["authors"] and one["title"] and one["year"] for one in cited["references"])


def test_every_dependency_has_a_licence_that_is_listed_and_permissive():
    asked = licences.direct()
    named = {canonicalize_name(one.name) for needs in asked.values() for one in needs}
    assert named <= set(LISTED)
    assert [name for name, text in LISTED.items() if name != "package" and not licences.is_permissive(text)] == []


@pytest.mark.slow
def test_what_is_installed_here_is_permissive():
    """Not in the default run: others may change what their packages bring at any time."""
    brought = licences.closure([one for needs in licences.direct().values() for one in needs])
    assert "numpy" in brought
    assert {
        name: licences.licence(name) for name in brought if not licences.is_permissive(licences.licence(name))
    } == {}


def test_a_licence_that_is_not_permissive_is_found():
    assert not licences.is_permissive("GNU General Public License v3 (GPLv3)")
    assert not licences.is_permissive("not stated")
    assert not licences.is_permissive("MIT AND GPL-3.0-only")
    assert not licences.is_permissive("for limited use, without a disclaimer")
    assert licences.is_permissive("GPL-2.0-only OR BSD-3-Clause")
    assert licences.is_permissive("BSD-3-Clause AND MIT")


def test_lower_bounds_are_what_oldest_installs():
    pins = dict(line.split("==") for line in oldest.pins())
    assert {"numpy", "scipy", "numba", "msgspec", "polars"} <= set(pins)
    assert f"numpy>={pins['numpy']}" in (ROOT / "pyproject.toml").read_text()


@pytest.mark.slow
def test_the_bill_of_materials_has_every_component_with_its_version(tmp_path):
    """The tool of `make sbom`, on what is installed here."""
    venv.create(tmp_path / "tool", with_pip=True)
    pip = [tmp_path / "tool" / "bin" / "pip", "install", "--quiet", "cyclonedx-bom>=5.0"]
    done = subprocess.run(pip, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode and "No matching distribution" in done.stderr:
        pytest.skip("no package index")
    command = [tmp_path / "tool" / "bin" / "cyclonedx-py", "environment", sys.prefix]
    subprocess.run([*command, "--pyproject", ROOT / "pyproject.toml", "-o", tmp_path / "sbom.json"], check=True)
    found = json.loads((tmp_path / "sbom.json").read_text())
    versions = {canonicalize_name(part["name"]): part["version"] for part in found["components"]}
    assert found["metadata"]["component"]["name"] == "coterie"
    assert all(versions[name] == metadata.version(name) for name in ("numpy", "scipy", "numba", "typer"))
