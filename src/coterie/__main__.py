"""The command ``coterie``. Commands of peers import few modules, so that they start quickly."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command line."""
    if sys.argv[1:2] and sys.argv[1] in ("peer", "group", "relay", "lab", "watch"):
        from .cli.peers import main as run
    elif sys.argv[1:] == ["--version"]:
        from ._version import __version__

        print(f"coterie {__version__}")
        return
    else:
        from .cli.main import main as run
    run()


if __name__ == "__main__":
    main()
