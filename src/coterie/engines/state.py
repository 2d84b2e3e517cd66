"""The state of a stopped run: everything needed to continue exactly."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from .._digest import digest_of
from ..core.arrays import AgentArrays
from ..errors import DataError
from ..problem import Problem

#: Largest state, in bytes, that a run keeps by default.
MAX_KEPT_BYTES = 64 << 20
#: Agents' arrays that change when agents learn their edges.
EDGES = ("edge_start", "peer", "inverse", "weight", "choice")


@dataclass(frozen=True, eq=False)
class State:
    """State of a stopped run.

    States of agents, of edges and of queues are arrays, named by paths such as ``own/theta``.
    """

    driver: str  # kind of run
    setting: str  # digest of the driver's other arguments
    once: bool  # whether messages were stored once
    arrays: Mapping[str, np.ndarray]
    numbers: Mapping[str, Any]  # json values: counters, clocks, random generators
    problem: Any  # a Problem, or a record of one
    method: Any

    @property
    def size(self) -> int:
        """Size of its arrays in bytes."""
        return sum(array.nbytes for array in self.arrays.values())

    def reason_against(self, problem: Problem, method: Any, driver: str, setting: str) -> str:
        """Return why a run of this problem and method cannot continue from here; empty if it can."""
        if digests_of_method(method) != digests_of_method(self.method):
            return f"it was a run of {self.method!r}"
        if self.driver != driver:
            return f"it was a run {KINDS[self.driver]}, and this one is {KINDS[driver]}"
        if self.setting != setting:
            return "its conditions, or how neighbours are chosen, were different"
        if problem is self.problem or _same(problem, self.problem, edges=not method.edges.spare):
            return ""
        return "it was a run on another problem"


#: Description of the kind of run of each driver.
KINDS = {"Immediate": "in wakes", "Synchronous": "in rounds", "Timed": "under conditions"}


def digests_of_method(method: Any) -> str:
    """Return a digest of a method, or of the record of one."""
    return getattr(method, "stored_digest", None) or digest_of(method)


def digests_of(problem: Any) -> tuple[str, str]:
    """Return digests of a problem, or of the record of one: without its edges, and with them."""
    if hasattr(problem, "stored_digests"):
        first, second = problem.stored_digests
        return first, second
    bare = digest_of(*(getattr(problem, name) for name in problem.without_edges))
    return bare, digest_of(bare, problem.graph)


def _same(one: Any, other: Any, edges: bool) -> bool:
    return digests_of(one)[edges] == digests_of(other)[edges]


def restored(kept: Mapping[str, np.ndarray], path: str, like: Any) -> Any:
    """Return a copy of the array of a path, after checking shape and type against a given array."""
    found = kept.get(path)
    if found is None or found.dtype != np.asarray(like).dtype or found.ndim != np.ndim(like):
        raise DataError(f"the state of the run does not fit this method: {path} is missing, or of another kind")
    if not isinstance(like, np.ndarray):
        return type(like)(found[()])
    # Kernels are compiled for the memory order of an array, and for whether it is writable.
    copy = np.array(found, order="C" if like.flags.c_contiguous else "F")
    copy.flags.writeable = like.flags.writeable
    return copy


def edges_of(arrays: AgentArrays) -> dict[str, np.ndarray]:
    """Return those of the agents' arrays that hold learned edges."""
    return {f"arrays/{name}": getattr(arrays, name) for name in EDGES}


def with_edges(arrays: AgentArrays, kept: Mapping[str, np.ndarray]) -> AgentArrays:
    """Return the agents' arrays with the edges of a state."""
    return arrays._replace(**{name: restored(kept, f"arrays/{name}", getattr(arrays, name)) for name in EDGES})
