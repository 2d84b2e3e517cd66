"""Jobs that other processes can import."""

import math
import os
from pathlib import Path

SCALE = 2.0


def small(method, mu, seed):
    """Numbers that follow from the settings; each call leaves a line in a diary."""
    if "DIARY" in os.environ:
        with Path(os.environ["DIARY"]).open("a") as diary:
            diary.write(f"{method} {mu} {seed}\n")
    if os.environ.get("FAIL_AT") == f"{method} {mu} {seed}":
        raise ZeroDivisionError("as asked")
    return {"accuracy": len(method) * mu / 3 + math.sin(seed), "bytes": SCALE * seed}


def lossy(task, method, lost, seed):
    """Of 0.0 lost the first method is better, of 0.2 the second."""
    return {"accuracy": len(method) * (lost - 0.1) + (task == "b") + seed / 100}
