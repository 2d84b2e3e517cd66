"""Runs on disk: an npz file of arrays, and a json text that describes these. Nothing in a file is ever executed.

A file holds models, trace, account and the state to continue from; for problem and method it holds only digests that
identify them, since both are code and data that the user has at hand.
"""

from __future__ import annotations

import os
from collections.abc import Hashable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pandas as pd

from .._archive import check_format, flat, packed, reading, unpacked
from .._files import write_atomic
from .._version import __version__
from ..core.methods.pooling import Population
from ..data.frames import hint
from ..data.ids import packed_id, unpacked_id
from ..errors import DataError, MismatchError, ParameterError
from ..graphs import DirectedGraph, Graph
from .run import Run
from .state import State, digests_of, digests_of_method

FORMAT = 2
#: Name of the array that holds the json text.
TEXT = "run.json"
#: Attributes of a run that are stored as numbers.
COUNTS = ("wakes", "time", "messages", "vectors", "bytes", "lost", "duplicated", "epsilon", "delta")


@dataclass(frozen=True, repr=False)
class StoredProblem:
    """Description of a run's problem in a file."""

    text: str
    members: tuple[Hashable, ...]
    p: int
    outputs: int
    graph: Graph
    stored_digests: tuple[str, str]
    _number: dict[Hashable, int] = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_number", {member: k for k, member in enumerate(self.members)})

    @property
    def n(self) -> int:
        """Number of agents."""
        return len(self.members)

    @property
    def data(self) -> StoredProblem:
        """The agents, for :meth:`index`. Their rows are not in the file."""
        return self

    def index(self, agent: Hashable) -> int:
        """Return the number of an agent."""
        if agent not in self._number:
            raise DataError(f"no agent {agent!r}; {hint(agent, self.members)}")
        return self._number[agent]

    def __repr__(self) -> str:
        return self.text


@dataclass(frozen=True, repr=False)
class StoredMethod:
    """Description of a run's method in a file."""

    text: str
    stored_digest: str

    @property
    def messages(self) -> NoReturn:
        """Kinds of messages, which are not in the file."""
        raise MismatchError(f"a run from a file knows only the name of its method, {self.text}: use the original run")

    def __repr__(self) -> str:
        return self.text


def save_run(run: Run, path: str | os.PathLike[str]) -> Path:
    """Write a run to a file, whole or not at all."""
    goal = Path(path)
    if goal.suffix != ".npz":
        raise ParameterError(f'path="{goal}": the file of a run must end with .npz')
    if run.theta is None:
        raise ParameterError("the models of this run were left on the cluster: pass fetch=True to simulate")
    if not hasattr(run.problem, "graph"):
        raise MismatchError(
            f"a run on {run.problem!r} cannot be saved: its graph is on the shards; save its trace instead"
        )
    problem, state = run.problem, run.state
    arrays = {"theta": run.theta, "tally": run.tally}
    arrays |= {f"graph/{name}": getattr(problem.graph, name) for name in Graph.digest_parts}
    arrays |= {f"trace/{k}": run.trace[name].to_numpy() for k, name in enumerate(run.trace)}
    if run.published is not None:
        arrays["published"] = run.published
    if run.population is not None:
        arrays |= dict(flat("population", run.population))
    if state is not None:
        arrays |= {f"state/{name}": array for name, array in state.arrays.items()}
    text = {
        "format": FORMAT,
        "coterie": __version__,
        "problem": {
            "text": repr(problem),
            "members": [packed_id(member) for member in problem.members],
            "p": int(problem.p),
            "outputs": int(problem.outputs),
            "directed": bool(problem.graph.directed),
            "digests": digests_of(problem),
        },
        "method": {"text": repr(run.method), "digest": digests_of_method(run.method)},
        "trace": [str(name) for name in run.trace],
        "notes": list(run.notes),
        "seed": run.seed,
        **{name: getattr(run, name) for name in COUNTS},
        "state": None
        if state is None
        else {"driver": state.driver, "setting": state.setting, "once": state.once, "numbers": dict(state.numbers)},
    }
    try:
        content = packed(arrays, text, TEXT)
    except TypeError as error:
        raise DataError(f"this run cannot be saved: {error}") from None
    goal.parent.mkdir(parents=True, exist_ok=True)
    return write_atomic(goal, content)


def load_run(path: str | os.PathLike[str]) -> Run:
    """Read a run that :func:`save_run` has written."""
    with reading(f"{path} holds a damaged run, or none"):
        arrays, text = unpacked(Path(path).read_bytes(), TEXT)
        if text is None:
            raise DataError(f"{path} holds no run: ct.save(run, path) writes one")
        check_format(f"{path} holds a run", text["format"], FORMAT)
        return _restored(text, arrays)


def _restored(text: dict[str, Any], arrays: dict[str, np.ndarray]) -> Run:
    about, kept = text["problem"], text["state"]
    start, peer, weight = (arrays[f"graph/{name}"] for name in Graph.digest_parts)
    problem = StoredProblem(
        about["text"],
        tuple(unpacked_id(member) for member in about["members"]),
        about["p"],
        about["outputs"],
        (DirectedGraph if about["directed"] else Graph).from_arrays(start, peer, weight),
        (about["digests"][0], about["digests"][1]),
    )
    method = StoredMethod(text["method"]["text"], text["method"]["digest"])
    state = None
    if kept is not None:
        own = {name.removeprefix("state/"): array for name, array in arrays.items() if name.startswith("state/")}
        state = State(kept["driver"], kept["setting"], kept["once"], own, kept["numbers"], problem, method)
    return Run(
        problem=problem,
        method=method,
        theta=arrays["theta"],
        trace=pd.DataFrame({name: arrays[f"trace/{k}"] for k, name in enumerate(text["trace"])}),
        seed=text["seed"],
        tally=arrays["tally"],
        notes=tuple(text["notes"]),
        published=arrays.get("published"),
        population=Population(*(arrays[f"population/{name}"] for name in Population._fields))
        if "population/mean" in arrays
        else None,
        state=state,
        **{name: text[name] for name in COUNTS},
    )
