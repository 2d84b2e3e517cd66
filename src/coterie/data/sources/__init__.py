"""Rows that are elsewhere: in files, in a Ray Dataset, in something for each agent. They are read piece by piece.

===========  ===========================================================================================
``Source``   where rows are; nothing is read for it
``files``    finding and opening files, on this machine or behind a URL
``readers``  what is in a file: csv, parquet, feather and npz
``pieces``   the parts of a source that are read one by one, and their rows
``look``     what is known of some pieces after a look at their rows, on a worker or here
``survey``   what is known of all of them, and the rows of some agents
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

#: What to do about agents whose rows cannot be used.


@dataclass(frozen=True, eq=False)
class Source:
    r"""Where the rows of many agents are: ``fit`` and :func:`coterie.relationship` take one in place of rows.

    A plain path, mapping or Ray Dataset means the same as ``Source(data)``; options are what a Source is for. Rows are
    read where they are used: on the workers of a cluster with ``engine=``, else in this process.

    Parameters
    ----------
    data : path, list of paths, mapping, Ray Dataset or DataFrame
        * a directory, a glob, a file, a URL (``s3://``, ``gs://``, anything that pyarrow or fsspec knows), or a list of
          those, of ``.parquet``, ``.feather``, ``.csv``, ``.csv.gz`` and ``.npz`` files. Whose a row is says a column,
          a hive partition (``store=12/part-0.parquet``) or, without ``agents``, the name of the file;
        * a mapping of agent ids to a path, a function without arguments, a DataFrame or arrays ``(X, y)``. A function
          returns a DataFrame or ``(X, y)``;
        * a Ray Dataset, whose blocks stay where they are; or one DataFrame.
    columns : sequence of str, optional
        Names of the features. Default: all columns but the target and the agents.
    bad_agents : {"raise", "skip"}
        What to do about agents whose rows cannot be used (a file that cannot be read, a missing label, an infinity):
        refuse them all in one error, or leave them out with a warning.

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
            raise DataError("a source is given as the data of another one: use it as it is")

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
    """Whether it says where rows are, rather than being rows: a path, several, a Dataset, a mapping or a Source."""
    mapping = isinstance(X, Mapping) and not hasattr(X, "shape")  # a sparse matrix of SciPy may be a dictionary
    return mapping or isinstance(X, Source) or _is_paths(X) or is_dataset(X)


def as_source(data: Any) -> Source:
    """A source as it is, and anything else that is one with the usual options."""
    return data if isinstance(data, Source) else Source(data)


def _is_paths(value: Any) -> bool:
    if isinstance(value, str | PathLike):
        return True
    several = isinstance(value, Sequence) and not isinstance(value, bytes) and len(value) > 0
    return several and all(isinstance(each, str | PathLike) for each in value)


def is_dataset(value: Any) -> bool:
    """Whether it is a Dataset of Ray."""
    return type(value).__module__.startswith("ray.data") and hasattr(value, "to_arrow_refs")


def is_ref(value: Any) -> bool:
    """Whether it is a reference to something that Ray keeps."""
    return type(value).__name__ == "ObjectRef" and type(value).__module__.startswith("ray")


def placed(source: Source, put: Callable[[Any], Any]) -> Source:
    """The same source with rows and functions of a mapping put elsewhere: `put` takes one and returns a reference.

    So that what is sent to workers is small. Whatever cannot be put is refused by its agent.
    """
    if not isinstance(source.data, Mapping):
        return source
    found = {}
    for agent, value in source.data.items():
        try:
            found[agent] = value if isinstance(value, str | PathLike) or is_ref(value) else put(value)
        except Exception as error:  # whatever the parts of a source raise
            raise DataError(
                f"the source of agent {agent!r} cannot be sent to a worker: {error}; give a path, or a function that"
                " opens what it needs itself"
            ) from error
    return replace(source, data=found)
