"""Reader of PFLlib's format (Zhang et al. 2023): folders ``train`` and ``test`` of ``0.npz``, ``1.npz``, ...

Each file has one entry, ``data``: a dictionary with arrays ``x`` and ``y``, as a Python object. It is read without
executing anything, see :mod:`coterie.datasets.object_arrays`.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..errors import DataError
from .object_arrays import read_npz
from .originals import Originals, stacked
from .sources import Arrays

__all__ = ["pfllib"]

#: Advice for a file that holds other objects than arrays.
ADVICE = (
    "write plain arrays instead, where you trust the file: d = np.load(file, allow_pickle=True)['data'].item(); "
    "np.savez(file, x=..., y=...) with a number for each feature and label"
)


def pfllib(files: Originals) -> Arrays:
    """Return the arrays of a PFLlib set: images and series as rows of numbers. Agents are the numbers of the files."""
    parts, agent, split = [], [], []
    for part, folder in enumerate(("train", "test")):
        for file in files.inside(folder, ".npz"):
            stem = file.rpartition("/")[2][: -len(".npz")]
            if not stem.isdecimal():
                raise DataError(f"{file}: expected the number of a client for its name, such as 0.npz")
            x, y = _rows(files.content(file), file)
            parts.append((file, x, y))
            agent.append(np.full(len(y), int(stem)))
            split.append(np.full(len(y), part, dtype=np.int8))
    names, codes = np.unique(np.concatenate(agent), return_inverse=True)
    return {
        **stacked(parts),
        "agent": codes.reshape(-1).astype(np.int32),
        "split": np.concatenate(split),
        "agent_names": names,
    }


def _rows(content: bytes, file: str) -> tuple[np.ndarray, np.ndarray]:
    try:
        found: Any = read_npz(content)
        # The dictionary of PFLlib, or plain arrays that were written as ADVICE says.
        data = found.get("data", found)
        x, y = (np.asarray(data[key]) for key in ("x", "y"))
    except (DataError, ValueError, KeyError, TypeError, IndexError) as error:
        what = f"no {error}" if isinstance(error, KeyError) else error
        raise DataError(f"{file} is not a file of PFLlib: {what}; {ADVICE}") from error
    if x.dtype.kind not in "biuf" or y.dtype.kind not in "biuf" or x.ndim < 2 or y.shape != (len(x),):
        raise DataError(
            f"{file}: x is {x.dtype} of shape {x.shape}, and y {y.dtype} of shape {y.shape}; "
            f"expected rows of numbers, and a number for each of them; {ADVICE}"
        )
    return x, y
