"""The pieces of a source, in the order of rows: what there is to read, before anything is read."""

from __future__ import annotations

import os
from collections.abc import Callable, Hashable, Mapping
from os import PathLike, fspath
from typing import Any
from urllib.parse import unquote

from ..errors import DataError
from .files import File, find_files, has_wildcard, is_url, suffix_of
from .frames import is_frame
from .ids import Written
from .pieces import LARGE, NULL_PARTITION, Piece, is_ref, row_groups
from .source import Source, is_dataset


def pieces_of(source: Source, agents: str | None) -> tuple[list[Piece], str | None]:
    """The parts that are read one by one, in the order of rows; and the column that holds the agents, if it is one."""
    data = source.data
    if not (agents is None or isinstance(agents, str)):
        raise DataError(
            f"agents must be the name of a column where rows come from a source, not {type(agents).__name__}"
        )
    if isinstance(data, Mapping):
        if agents is not None:
            raise DataError(f"agents={agents!r}: the agents of a mapping are its keys; leave it out")
        if not data:
            raise DataError("data is an empty mapping: at least one agent is needed")
        if None in data:
            raise DataError("None is an agent of the mapping: give every agent an id")
        return [piece for agent, value in data.items() for piece in _entry(agent, value)], None
    if is_dataset(data):
        if agents is None:
            raise DataError("agents= is missing: name the column of the Dataset that says whose row it is")
        return [Piece(f"block {k}", ref) for k, ref in enumerate(data.to_arrow_refs())], agents
    if is_frame(data):
        if agents is None:
            raise DataError("agents= is missing: name the column of the table that says whose row it is")
        return [Piece("the table", data)], agents
    paths = [data] if isinstance(data, str | PathLike) else data
    files = find_files([fspath(path) for path in paths])
    if agents is None:
        keys = {tuple(key for key, _ in file.keys) for file in files}
        agents = next(iter(keys))[0] if len(keys) == 1 and len(next(iter(keys))) == 1 else None
    pieces = []
    for file in files:
        here = dict(file.keys)
        agent = here.pop(agents, None) if agents is not None else file.stem
        if agent == NULL_PARTITION:
            raise DataError(f"{file.path}: the agent is missing: the partition {agents!r} has no value")
        known = None if agent is None else Written(agent)
        pieces += _parts(file, known, here)
    return pieces, agents


def _parts(file: File, agent: Any, keys: Mapping[str, str]) -> list[Piece]:
    """The pieces of a file: a large one is read in parts."""
    piece = Piece(file.path, _full(file.path), agent, tuple(keys.items()), size=file.size)
    groups = row_groups(file.path) if file.suffix == ".parquet" and file.size > LARGE else None
    return [piece] if groups is None else piece.groups(groups)


def _entry(agent: Hashable, value: Any) -> list[Piece]:
    """The pieces of one agent of a mapping."""
    if not isinstance(value, str | PathLike):
        return [Piece("", value, agent)]
    path = fspath(value)
    if has_wildcard(path) or suffix_of(path) is None:  # a glob or a directory
        try:
            return [part for file in find_files([path]) for part in _parts(file, agent, dict(file.keys))]
        except DataError:
            pass  # found out by whoever reads it, so that all bad agents are told of at once
    size = 0 if is_url(path) or not os.path.isfile(_full(path)) else os.path.getsize(_full(path))
    return [Piece(path, _full(path), agent, size=size)]


def _full(path: str) -> str:
    """A path that means the same wherever a worker runs."""
    if path.startswith("file://"):
        path = unquote(path.removeprefix("file://"))
    return path if is_url(path) else os.path.abspath(os.path.expanduser(path))


def placed(source: Source, put: Callable[[Any], Any]) -> Source:
    """The same source with rows and functions of a mapping put elsewhere: `put` takes one and returns a reference.

    So that what is sent to workers is small. Whatever cannot be put is refused by its agent.
    """
    if not isinstance(source.data, Mapping):
        return source
    found = {}
    for agent, value in source.data.items():
        if isinstance(value, str | PathLike) or is_ref(value):
            found[agent] = value
            continue
        try:
            found[agent] = put(value)
        except Exception as error:  # whatever the parts of a source raise
            raise DataError(
                f"the source of agent {agent!r} cannot be sent to a worker: {error}; give a path, or a function that"
                " opens what it needs itself"
            ) from error
    return Source(found, source.columns, source.bad_agents)
