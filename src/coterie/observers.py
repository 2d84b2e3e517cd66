"""Observers of runs for ``simulate(..., watch=...)``: MLflow, Weights & Biases, TensorBoard.

An observer has two methods: ``record(step, measures)`` gets each row of the trace when it is made, with the number of
wakes and the measures by name; ``finish(run)`` gets the run at its end, or None if the run was interrupted. Later
records belong to a new run. Rows of the trace are made by ``every``, and columns by ``observe``.

Each observer needs a library, which is imported when the observer is created, and the extra of its name:
``coterie[mlflow]``, ``coterie[wandb]``, ``coterie[tensorboard]``.
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


def __dir__() -> list[str]:
    return sorted(__all__)


def _library(who: str, module: str, extra: str) -> Any:
    """Import a library."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtra(f"ct.observers.{who} needs {module}: pip install 'coterie[{extra}]'") from error


def _about(run: Run) -> dict[str, Any]:
    """Describe a run in words and numbers."""
    return {"method": repr(run.method), "problem": repr(run.problem), "agents": run.problem.n, "seed": run.seed}


class MLflow:
    """Record each run as a run of MLflow.

    Parameters
    ----------
    experiment : str
        Name of the experiment, which is created if it does not exist.
    name : str, optional
        Name of the run. Default: chosen by MLflow.
    uri : str, optional
        Tracking server, or a database such as ``"sqlite:///mlflow.db"``. Default: MLflow's own.
    params : mapping, optional
        Further parameters to record, such as settings.

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
        """Record one row of the trace."""
        if self._id is None:
            found = self._client.get_experiment_by_name(self.experiment)
            where = self._client.create_experiment(self.experiment) if found is None else found.experiment_id
            self._id = self._client.create_run(where, run_name=self.name).info.run_id
        now = int(1000 * time.time())
        metrics = [self._metric(name.replace(" ", "_"), value, now, step) for name, value in measures.items()]
        self._client.log_batch(self._id, metrics=metrics)

    def finish(self, run: Run | None) -> None:
        """Finish the run."""
        if self._id is not None:
            for name, value in (self.params | ({} if run is None else _about(run))).items():
                self._client.log_param(self._id, name, value)
            self._client.set_terminated(self._id, "FAILED" if run is None else "FINISHED")
            self._id = None


class WandB:
    """Record each run as a run of Weights & Biases.

    Parameters
    ----------
    project : str
    name : str, optional
        Name of the run. Default: chosen by wandb.
    mode : "online", "offline" or "disabled", optional
        Default: the value of ``WANDB_MODE``. Offline runs are files, for ``wandb sync``.
    folder : path, optional
        Folder of the run's files. Default: ``wandb`` in the current folder.
    params : mapping, optional
        Further parameters to record, such as settings.

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
        """Record one row of the trace."""
        if self._run is None:
            self._run = self._wandb.init(**self._how, reinit="create_new")
        self._run.log(dict(measures), step=step)

    def finish(self, run: Run | None) -> None:
        """Finish the run."""
        if self._run is not None:
            if run is not None:
                self._run.config.update(_about(run))
            self._run.finish(exit_code=int(run is None))
            self._run = None


class TensorBoard:
    """Write each run to an event file of TensorBoard.

    Parameters
    ----------
    folder : path
        A separate folder for each run, below the argument of ``tensorboard --logdir``.

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
        """Record one row of the trace."""
        if self._writer is None:
            self._writer = self._summary.Writer(self.folder)
        for name, value in measures.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def finish(self, run: Run | None) -> None:
        """Finish the run."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
