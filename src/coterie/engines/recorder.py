"""Write the scores of a running simulation to a file, for ``coterie watch FILE``."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import FileError, ParameterError
from ..problem import Problem

Score = Callable[[np.ndarray], Any]

#: Version of the lines of a recording.
FORMAT = 2


class FileRecorder:
    """An observer of :func:`coterie.simulate` that writes the score of every agent to a file.

    Pass it as ``observe`` (or as one of several), set ``every`` to the wakes between two observations, and open another
    terminal: ``coterie watch run.jsonl`` shows the edges, and the scores as they change. The file has one json object
    per line: first the agents, then the scores at each row of the trace. The trace holds their mean.

    Parameters
    ----------
    path : path
        Path of the file, which is overwritten; its name ends with ``.jsonl``.
    problem : Problem
        Problem with the agents and edges to show.
    score : callable, optional
        Function from Theta (n, p) to the scores of all agents, (n,). Default: :meth:`coterie.Problem.losses`, the local
        losses.
    what : str
        Name of the score, such as "accuracy".
    higher : bool
        Whether larger scores are better.

    Examples
    --------
    >>> import coterie as ct
    >>> problem = ct.Problem.propagation([[0.0], [2.0]], ct.graphs.complete(2), alpha=0.5)
    >>> recorder = ct.observers.FileRecorder(getfixture("tmp_path") / "run.jsonl", problem)
    >>> run = ct.simulate(problem, "cd", wakes=4, every=2, observe=recorder)
    >>> run.trace.columns[-1], len(recorder.path.read_text().splitlines())
    ('loss', 4)
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        problem: Problem,
        score: Score | None = None,
        what: str = "loss",
        higher: bool = False,
    ):
        self.path, self.problem = Path(path), problem
        if self.path.suffix != ".jsonl":
            raise ParameterError(f'path="{self.path}" must end with .jsonl')
        if not isinstance(problem, Problem):
            raise ParameterError(f"a FileRecorder needs a Problem; found {type(problem).__name__}")
        self._score: Score = problem.losses if score is None else score
        self.__name__ = what  # the column of the trace
        i, j, weight = problem.graph.edges()
        head = {
            "coterie": "simulation",
            "format": FORMAT,
            "at": round(time.time(), 1),
            "pid": os.getpid(),
            "problem": repr(problem),
            "what": what,
            "higher": higher,
            "names": [str(name) for name in problem.members],
            "edges": [[int(a), int(b), float(f"{w:.4g}")] for a, b, w in zip(i, j, weight, strict=True)],
            "alone": self._scores(problem.local()),
        }
        self._write(head, "w")

    def __call__(self, theta: np.ndarray) -> float:
        """Write the scores of these models, and return their mean."""
        scores = self._scores(theta)
        self._write({"at": round(time.time(), 1), "scores": scores}, "a")
        known = [score for score in scores if score is not None]
        return float(np.mean(known)) if known else float("nan")

    def _scores(self, theta: np.ndarray) -> list[float | None]:
        scores = np.asarray(self._score(theta), float)
        if scores.shape != (self.problem.n,):
            raise ParameterError(f"score gave an array of shape {scores.shape}: one number for each agent is needed")
        return [float(f"{value:.5g}") if np.isfinite(value) else None for value in scores]

    def _write(self, line: dict[str, Any], mode: str) -> None:
        try:
            with open(self.path, mode) as file:
                file.write(json.dumps(line, separators=(",", ":")) + "\n")
        except OSError as error:
            raise FileError(error.errno, f"{self.path} cannot be written: {error.strerror or error}") from error
