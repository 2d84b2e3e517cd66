"""Where others can watch runs: MLflow, Weights & Biases, TensorBoard; for ``simulate(..., watch=...)``.

An observer is anything with two methods: ``record(step, measures)`` gets each row of the trace as it comes, after so
many wakes, as numbers by name; ``finish(run)`` gets the run at its end, or None if it was broken off. What is recorded
after that belongs to a new run. Give a trace rows with ``every``, and columns with ``observe``.

Each of these needs a library that is imported when one is made, and an extra of its own name: ``coterie[mlflow]``,
``coterie[wandb]``, ``coterie[tensorboard]``.
"""

from __future__ import annotations

import importlib
import os
import time
from collections.abc import Mapping
from typing import Any

from ._progress import progress_bar
from .engines.recorder import FileRecorder
from .engines.run import Run
from .errors import MissingExtra

__all__ = ["FileRecorder", "MLflow", "TensorBoard", "WandB", "progress_bar"]


def _library(who: str, module: str, extra: str) -> Any:
    """A library, imported now."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtra(f"ct.observers.{who} needs {module}: pip install 'coterie[{extra}]'") from error


def _about(run: Run) -> dict[str, Any]:
    """What a run was, in words and numbers."""
    return {"method": repr(run.method), "problem": repr(run.problem), "agents": run.problem.n, "seed": run.seed}


class MLflow:
    """Records each run as a run of MLflow.

    Parameters
    ----------
    experiment : str
        Made if it does not exist.
    name : str, optional
        Of the run. Default: MLflow makes one up.
    uri : str, optional
        Where the tracking server is, or a database such as ``"sqlite:///mlflow.db"``. Default: MLflow's own.
    params : mapping, optional
        What else is to be on record, such as settings.

    Examples
    --------
    ::

        run = ct.simulate(problem, "cd", wakes=10_000, every=1000, watch=ct.observers.MLflow("first"))
    """

    def __init__(
        self, experiment: str, name: str | None = None, uri: str | None = None, params: Mapping[str, Any] | None = None
    ):
        mlflow = _library("MLflow", "mlflow", "mlflow")
        self._client, self._metric = mlflow.MlflowClient(tracking_uri=uri), mlflow.entities.Metric
        self.experiment, self.name, self.params = experiment, name, dict(params or {})
        self._id: str | None = None

    def record(self, step: int, measures: Mapping[str, float]) -> None:
        """One row of the trace."""
        if self._id is None:
            found = self._client.get_experiment_by_name(self.experiment)
            where = self._client.create_experiment(self.experiment) if found is None else found.experiment_id
            self._id = self._client.create_run(where, run_name=self.name).info.run_id
        now = int(1000 * time.time())
        metrics = [self._metric(name.replace(" ", "_"), value, now, step) for name, value in measures.items()]
        self._client.log_batch(self._id, metrics=metrics)

    def finish(self, run: Run | None) -> None:
        """The end of the run."""
        if self._id is not None:
            for name, value in (self.params | ({} if run is None else _about(run))).items():
                self._client.log_param(self._id, name, value)
            self._client.set_terminated(self._id, "FAILED" if run is None else "FINISHED")
            self._id = None


class WandB:
    """Records each run as a run of Weights & Biases.

    Parameters
    ----------
    project : str
    name : str, optional
        Of the run. Default: wandb makes one up.
    mode : "online", "offline" or "disabled", optional
        Default: as ``WANDB_MODE`` says. Offline runs are files, for ``wandb sync``.
    folder : path, optional
        Where its files go. Default: ``wandb`` in the current one.
    params : mapping, optional
        What else is to be on record, such as settings.

    Examples
    --------
    ::

        run = ct.simulate(problem, "cd", wakes=10_000, every=1000, watch=ct.observers.WandB("first", mode="offline"))
    """

    def __init__(
        self,
        project: str,
        name: str | None = None,
        mode: str | None = None,
        folder: str | os.PathLike[str] | None = None,
        params: Mapping[str, Any] | None = None,
    ):
        self._wandb = _library("WandB", "wandb", "wandb")
        self._how = {"project": project, "name": name, "mode": mode, "dir": folder, "config": dict(params or {})}
        self._run: Any = None

    def record(self, step: int, measures: Mapping[str, float]) -> None:
        """One row of the trace."""
        if self._run is None:
            self._run = self._wandb.init(**self._how, reinit="create_new")
        self._run.log(dict(measures), step=step)

    def finish(self, run: Run | None) -> None:
        """The end of the run."""
        if self._run is not None:
            if run is not None:
                self._run.config.update(_about(run))
            self._run.finish(exit_code=int(run is None))
            self._run = None


class TensorBoard:
    """Writes each run as an event file of TensorBoard.

    Parameters
    ----------
    folder : path
        A folder of its own for each run, below the one that ``tensorboard --logdir`` looks at.

    Examples
    --------
    ::

        run = ct.simulate(problem, "cd", wakes=10_000, every=1000, watch=ct.observers.TensorBoard("runs/first"))
    """

    def __init__(self, folder: str | os.PathLike[str]):
        self._summary = _library("TensorBoard", "tensorboard.summary", "tensorboard")
        self.folder = os.fspath(folder)
        self._writer: Any = None

    def record(self, step: int, measures: Mapping[str, float]) -> None:
        """One row of the trace."""
        if self._writer is None:
            self._writer = self._summary.Writer(self.folder)
        for name, value in measures.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def finish(self, run: Run | None) -> None:
        """The end of the run."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
