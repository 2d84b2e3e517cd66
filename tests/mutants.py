"""Plant faults, one at a time, and see that the default tests find each of them: ``make mutants``.

A mutant is a wrong line in a copy of the library. The tests named beside it are part of the default run; one of them
must fail. A mutant that survives means that something is no longer proved.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
PACKAGE = HERE.parent / "src" / "coterie"


class Mutant(NamedTuple):
    """A fault: in this file, ``before`` (which stands there once) becomes ``after``."""

    name: str
    file: str
    before: str
    after: str
    tests: str


MUTANTS: tuple[Mutant, ...] = ()


def planted(mutant: Mutant, folder: Path) -> None:
    """Copy the library to a folder, with the fault in it."""
    shutil.copytree(PACKAGE, folder / "coterie", ignore=shutil.ignore_patterns("__pycache__"))
    path = folder / "coterie" / mutant.file
    text = path.read_text()
    if text.count(mutant.before) != 1:
        raise SystemExit(f"{mutant.name}: {mutant.before!r} stands {text.count(mutant.before)} times in {mutant.file}")
    path.write_text(text.replace(mutant.before, mutant.after))


def is_killed(mutant: Mutant) -> bool:
    """Do the default tests fail on this fault?"""
    with tempfile.TemporaryDirectory() as folder:
        planted(mutant, Path(folder))
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([folder, str(HERE.parent)])}
        command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *mutant.tests.split()]
        done = subprocess.run(command, cwd=HERE.parent, env=environment, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):  # 1: tests failed; anything else: they did not run
        raise SystemExit(f"{mutant.name}: pytest ended with {done.returncode}\n{done.stdout}{done.stderr}")
    return done.returncode == 1


def main() -> int:
    """Say of every mutant whether it was killed; 1 if one survives."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="only these; default: all")
    chosen = parser.parse_args().names
    survivors = []
    for mutant in MUTANTS:
        if chosen and mutant.name not in chosen:
            continue
        killed = is_killed(mutant)
        print(f"{'killed  ' if killed else 'SURVIVED'}  {mutant.name}", flush=True)
        survivors += [] if killed else [mutant.name]
    print(f"{len(survivors)} survived" if survivors else "all killed")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
