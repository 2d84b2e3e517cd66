"""The wheel and the source archive: what is in them, that they install, and that they run where nothing else is."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

import coterie

pytest.importorskip("build", reason="building needs the package build")
ROOT = Path(__file__).parents[2]
#: What a user of types writes: a name that is missing, or untyped, is an error.
TYPED = """
import coterie as ct

data = ct.datasets.gapminder()
model = ct.CollaborativeRegressor(design="linear").fit(data[["year", "country"]], data["lifeExp"], agents="country")
run: ct.Run
reveal_type(ct.CollaborativeRegressor)
reveal_type(ct.simulate)
"""


def run(*command, **options):
    done = subprocess.run([*map(str, command)], text=True, capture_output=True, timeout=900, check=False, **options)
    assert done.returncode == 0, f"{' '.join(map(str, command))}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


def build(source, out, *what):
    run(sys.executable, "-m", "build", "--no-isolation", *what, "--outdir", out, source)
    return [*out.iterdir()]


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The wheel and the sdist of this tree."""
    files = build(ROOT, tmp_path_factory.mktemp("dist"), "--wheel", "--sdist")
    [wheel], [sdist] = ([file for file in files if file.name.endswith(end)] for end in (".whl", ".tar.gz"))
    return wheel, sdist


def content(wheel):
    with zipfile.ZipFile(wheel) as archive:
        return {name: hashlib.sha256(archive.read(name)).hexdigest() for name in archive.namelist()}


def bare(environment):
    """The environment without what would let a process find this tree."""
    kept = {key: value for key, value in environment.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")}
    return kept | {"COTERIE_CACHE": "cache"}


def test_the_wheel_holds_the_package_and_nothing_else(built):
    inside = {name for name in content(built[0]) if ".dist-info/" not in name}
    here = {str(path.relative_to(ROOT / "src")) for path in (ROOT / "src" / "coterie").rglob("*") if path.is_file()}
    here = {name for name in here if "__pycache__" not in name}
    assert inside == here
    assert {"coterie/py.typed", "coterie/__init__.pyi", "coterie/datasets/bundled/radon.csv"} <= inside
    assert not [name for name in inside if "chaos" in name or "bad_members" in name]
    names = [name for name in content(built[0]) if ".dist-info/" in name]
    assert any(name.endswith("licenses/LICENSE") for name in names)


def test_the_source_archive_is_whole_and_makes_the_same_wheel(built, tmp_path):
    with tarfile.open(built[1]) as archive:
        archive.extractall(tmp_path, filter="data")
    [folder] = tmp_path.iterdir()
    for name in ("README.md", "LICENSE", "CHANGELOG.md", "SECURITY.md", "CONTRIBUTING.md", "CITATION.cff", "Makefile"):
        assert (folder / name).read_bytes() == (ROOT / name).read_bytes()
    for name in ("tests", "docs", "examples", "papers", "benchmarks"):
        assert any((folder / name).rglob("*.*")), name
    [wheel] = build(folder, tmp_path / "again", "--wheel")
    assert content(wheel) == content(built[0])


@pytest.mark.slow
def test_the_wheel_runs_in_a_venv_of_its_own(built, tmp_path):
    """Dependencies are those of this process, and coterie is the wheel's."""
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv" / "bin" / "python"
    packages = run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip()
    (Path(packages) / "beside.pth").write_text(sysconfig.get_path("purelib"))
    environment = bare(os.environ)
    options = {"env": environment, "cwd": tmp_path}
    run(python, "-m", "pip", "install", "--no-deps", "--no-index", "--force-reinstall", built[0], **options)
    where = run(python, "-c", "import coterie; print(coterie.__file__)", **options)
    assert where.startswith(str(tmp_path))
    assert coterie.__version__ in run(python.parent / "coterie", "--version", **options)
    assert "together" in run(python.parent / "coterie", "demo", **options)


@pytest.mark.slow
def test_the_wheel_installs_with_its_dependencies_and_is_typed(built, tmp_path):
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv" / "bin" / "python"
    options = {"env": bare(os.environ), "cwd": tmp_path}
    install = [python, "-m", "pip", "install", "--quiet", f"coterie[network] @ {built[0].as_uri()}"]
    done = subprocess.run([*map(str, install)], text=True, capture_output=True, timeout=900, check=False, **options)
    if done.returncode and "No matching distribution" in done.stderr:
        pytest.skip(f"no package index: {done.stderr.splitlines()[-1]}")
    assert done.returncode == 0, done.stderr
    run(python, "-m", "pip", "check", **options)
    assert "together" in run(python.parent / "coterie", "demo", **options)
    assert "Usage" in run(python.parent / "coterie", "peer", "--help", **options)
    (tmp_path / "user.py").write_text(TYPED)
    config = tmp_path / "mypy.ini"
    config.write_text("[mypy]\nstrict = true\n[mypy-pandas.*,sklearn.*,scipy.*]\nignore_missing_imports = true\n")
    told = run(
        sys.executable, "-m", "mypy", "--config-file", config, "--python-executable", python, "user.py", **options
    )
    revealed = [line for line in told.splitlines() if "Revealed type" in line]
    assert len(revealed) == 2
    assert not [line for line in revealed if 'is "Any"' in line]
