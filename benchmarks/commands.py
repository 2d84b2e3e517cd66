"""How long commands take to answer: ``python benchmarks/commands.py``. The target is half a second each.

A founded group and a peer in a temporary folder; every command in a process of its own, the best of three. On a busy
machine the seconds of the processor say more than those of the clock.
"""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TARGET = 0.5
RUNS = 3


def seconds(folder: Path, *words: str) -> tuple[float, float, int]:
    """Return wall-clock seconds, CPU seconds and exit code of one command."""
    began, used = time.perf_counter(), processor()
    done = subprocess.run([sys.executable, "-m", "coterie", *words], cwd=folder, capture_output=True)
    return time.perf_counter() - began, processor() - used, done.returncode


def processor() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def main() -> None:
    once = (
        "group create club --features a,b --target y --classes no,yes",
        "peer init ann --group club --listen 127.0.0.1:7447",
        "peer init bob --listen 127.0.0.1:7448",
        "group invite club bob/bob.request --edge ann",
        "group join bob bob/bob.invitation",
        "peer update ann club/roster",
    )
    often = (
        "--version",
        "--help",
        "peer --help",
        "group --help",
        "group show club",
        "group edge club ann bob --weight 2",
        "peer status ann",
        "peer check ann",
        "peer mute ann --list",
        "peer audit ann",
    )
    with tempfile.TemporaryDirectory() as folder:
        print(f"{'seconds':>8}{'CPU':>8}  command (exit code)")
        for words in once:
            show(words, *seconds(Path(folder), *words.split()))
        for words in often:
            show(words, *min(seconds(Path(folder), *words.split()) for _ in range(RUNS)))


def show(words: str, took: float, used: float, code: int) -> None:
    print(f"{took:8.2f}{used:8.2f}{' !' if took > TARGET else '  '}coterie {words} ({code})", flush=True)


if __name__ == "__main__":
    main()
