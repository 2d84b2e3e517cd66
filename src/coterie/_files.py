"""Where coterie keeps what can be made or fetched again: compiled kernels, converted datasets."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def cache_root() -> Path:
    """``$COTERIE_CACHE``, or the user's cache directory.

    Returns
    -------
    Path

    Examples
    --------
    >>> cache_root().is_absolute() or "COTERIE_CACHE" in os.environ
    True
    """
    root = os.environ.get("COTERIE_CACHE")
    if root is not None:
        return Path(root)
    home = Path(os.path.expanduser("~"))
    return {
        "win32": Path(os.environ.get("LOCALAPPDATA", home / "AppData" / "Local")) / "coterie",
        "darwin": home / "Library" / "Caches" / "coterie",
    }.get(sys.platform, Path(os.environ.get("XDG_CACHE_HOME", home / ".cache")) / "coterie")
