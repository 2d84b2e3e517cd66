"""Where files of real datasets are, which do not belong to the library: tests skip where there is none."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

FOLDERS = [
    *([Path(os.environ["COTERIE_DATA"])] if os.environ.get("COTERIE_DATA") else []),
    Path(__file__).resolve().parents[2] / "shared" / "data",
]


def real(name):
    """The folder that has a real file; skips the test if there is none."""
    for folder in FOLDERS:
        if (folder / f"{name}.npz").is_file():
            return folder
    pytest.skip(f"there is no {name}.npz: set COTERIE_DATA to a folder that has it")
