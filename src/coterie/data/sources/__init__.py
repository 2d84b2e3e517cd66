"""Sources of rows: files, Ray Datasets, or an object for each agent. They are read piece by piece.

===========  ===========================================================================================
``Source``   the place of the rows; creating one reads nothing
``files``    finding and opening files, on this machine or behind a URL
``readers``  reading csv, parquet, feather and npz files
``pieces``   the parts of a source that are read one at a time
``look``     a summary of the rows of some pieces, computed on a worker or in this process
``survey``   a summary of all pieces, and the rows of some agents
===========  ===========================================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from typing import Any

from ..._checks import choice
from ...errors import DataError, ParameterError
from ..frames import is_frame

__all__ = ["Source"]

#: Handling of agents whose rows cannot be used.


@dataclass(frozen=True, eq=False)
class Source:
    r"""Place of the rows of many agents, which ``fit`` and :func:`coterie.relationship` accept in place of rows.

    A plain path, mapping or Ray Dataset is equivalent to ``Source(data)``; use a Source to set options. Rows are read
    by the workers of a cluster with ``engine=``, otherwise in this process.

    Parameters
    ----------
    data : path, list of paths, mapping, Ray Dataset or DataFrame
        * a directory, a glob, a file, a URL (``s3://``, ``gs://``, or any that pyarrow or fsspec supports), or a list
          of these, with ``.parquet``, ``.feather``, ``.csv``, ``.csv.gz`` and ``.npz`` files. The agent of a row is
          given by a column, a hive partition (``store=12/part-0.parquet``) or, without ``agents``, the name of the
          file;
        * a mapping of agent ids to a path, a function without arguments, a DataFrame or arrays ``(X, y)``. A function
          returns a DataFrame or ``(X, y)``;
        * a Ray Dataset, whose blocks are not moved; or one DataFrame.
    columns : sequence of str, optional
        Names of the features. Default: all columns except the target and the agents.
    bad_agents : {"raise", "skip"}
        Handling of agents whose rows cannot be used (because of an unreadable file, a missing label, an infinity):
        "raise" lists them all in one error, and "skip" leaves them out with a warning.

    Examples
    --------
    >>> from pathlib import Path
    >>> from tempfile import TemporaryDirectory
    >>> import coterie as ct
    >>> with TemporaryDirectory() as folder:
    ...     for shop, slope in (("north", 1), ("south", 3)):
    ...         rows = "".join(f"{x},{slope * x},yes\n" for x in range(6))
    ...         _ = Path(folder, f"{shop}.csv").write_text("price,sales,open\n" + rows)
    ...     source = ct.data.Source(folder, columns=["price"])
    ...     model = ct.CollaborativeRegressor().fit(source, "sales")
    >>> model.agents_, model.coef_.round(1).tolist()
    (('north', 'south'), [[1.0], [3.0]])
    """

    data: Any
    columns: tuple[str, ...] | None = None
    bad_agents: str = "raise"

    def __post_init__(self) -> None:
        choice("bad_agents", self.bad_agents, ("raise", "skip"))
        if self.columns is not None:
            if isinstance(self.columns, str) or not all(isinstance(name, str) for name in self.columns):
                raise ParameterError(f"columns={self.columns!r} must be a list of names, or None for all columns")
            if not self.columns or len(set(self.columns)) < len(self.columns):
                raise ParameterError(f"columns={list(self.columns)!r} must name some columns, each of them once")
            object.__setattr__(self, "columns", tuple(self.columns))
        if not is_source(self.data) and not is_frame(self.data):
            raise DataError(
                "a source is a path, a list of paths, a Ray Dataset, a DataFrame, or a mapping of agents to paths,"
                f" functions, frames or arrays; found {type(self.data).__name__}"
            )
        if isinstance(self.data, Source):
            raise DataError("data is a Source already: use it directly")

    def __repr__(self) -> str:
        data = self.data
        if isinstance(data, Mapping):
            shown = f"{len(data)} agents"
        elif _is_paths(data):
            shown = repr(data) if isinstance(data, str | PathLike) else f"{len(data)} paths"
        else:
            shown = type(data).__name__
        return f"Source({shown}, columns={self.columns}, bad_agents={self.bad_agents!r})"


def is_source(X: Any) -> bool:
    """Return whether X is a source of rows: a path, several paths, a Ray Dataset, a mapping or a Source."""
    mapping = isinstance(X, Mapping) and not hasattr(X, "shape")  # a sparse matrix of SciPy may be a dictionary
    return mapping or isinstance(X, Source) or _is_paths(X) or is_dataset(X)


def as_source(data: Any) -> Source:
    """Return a Source unchanged, and other sources as a Source with default options."""
    return data if isinstance(data, Source) else Source(data)


def _is_paths(value: Any) -> bool:
    if isinstance(value, str | PathLike):
        return True
    several = isinstance(value, Sequence) and not isinstance(value, bytes) and len(value) > 0
    return several and all(isinstance(each, str | PathLike) for each in value)


def is_dataset(value: Any) -> bool:
    """Return whether a value is a Ray Dataset."""
    return type(value).__module__.startswith("ray.data") and hasattr(value, "to_arrow_refs")


def is_ref(value: Any) -> bool:
    """Return whether a value is a reference to an object in Ray's object store."""
    return type(value).__name__ == "ObjectRef" and type(value).__module__.startswith("ray")


def placed(source: Source, put: Callable[[Any], Any]) -> Source:
    """Return a source whose mapping holds references: `put` stores an object and returns a reference.

    The source is then small enough to be sent to workers. Objects that cannot be stored are refused with their agent.
    """
    if not isinstance(source.data, Mapping):
        return source
    found = {}
    for agent, value in source.data.items():
        try:
            found[agent] = value if isinstance(value, str | PathLike) or is_ref(value) else put(value)
        except Exception as error:  # storing may raise any error
            raise DataError(
                f"the source of agent {agent!r} cannot be sent to a worker: {error}; give a path, or a function that"
                " opens what it needs itself"
            ) from error
    return replace(source, data=found)
