"""Results of a study."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from .. import plots
from ..errors import ParameterError
from ..evaluation import LOWER_IS_BETTER
from .tables import StudyTable, which_are_best

#: One or several names of settings or results.
Names = str | Sequence[str]


@dataclass(frozen=True, repr=False, eq=False)
class Study:
    """The result of :func:`coterie.studies.study`.

    Attributes
    ----------
    frame : DataFrame
        One row for each call: its settings, its seed, and the results of the job.
    settings, values : tuple of str
        Names of the columns that are settings, and of those that are results.
    seconds : float
        CPU seconds of all calls, including those that an earlier call of the study had finished.
    failures : tuple
        (settings, error) of failed calls, for the study in a :class:`~coterie.errors.StudyError`.
    """

    frame: pd.DataFrame
    settings: tuple[str, ...]
    values: tuple[str, ...]
    seconds: float = 0.0
    failures: tuple[tuple[dict[str, Any], Exception], ...] = ()

    def table(
        self,
        value: Names | None = None,
        rows: Names | None = None,
        columns: Names | None = None,
        where: Mapping[str, Any] | None = None,
        higher: bool | None = None,
        best_of: str | None = None,
    ) -> StudyTable:
        """Return means over seeds with their standard errors.

        Parameters
        ----------
        value : str or sequence of str, optional
            Results to show; only one with ``columns``. Default: all results.
        rows : str or sequence of str, optional
            Settings with a row for each value. Default: all settings but ``columns``.
        columns : str or sequence of str, optional
            Settings with a column for each value. Default: columns are results.
        where : mapping, optional
            Values of settings to select, such as ``{"mu": 1.0}``. Every setting that is neither in rows nor in columns
            must be selected, unless it has one value only.
        higher : bool, optional
            Whether more is better. Default: less is better for objectives, errors and costs with their usual names,
            and more for everything else.
        best_of : "line" or "column", optional
            Whether best values are marked in each row or in each column. Default: in each row, if there are
            ``columns``, otherwise in each column. Use ``"column"`` if rows are methods and columns are tasks.

        Returns
        -------
        StudyTable

        Examples
        --------
        >>> import coterie as ct
        >>> def job(method, mu, seed):
        ...     return {"score": mu * len(method) + seed}
        >>> found = ct.studies.study(job, {"method": ["cd", "djam"], "mu": [1, 2]}, seeds=[0, 2])
        >>> found.table("score", rows="mu", columns="method")
        method         cd       djam
        mu
        1       3.0 ± 1.0  5.0 ± 1.0
        2       5.0 ± 1.0  9.0 ± 1.0
        """
        if best_of not in (None, "line", "column"):
            raise ParameterError(f'best_of={best_of!r} must be "line" or "column"')
        values = self._known("value", value, self.values)
        if columns is not None and len(values) != 1:
            raise ParameterError(
                f"value must be one of {', '.join(self.values)} where columns={columns!r} is a setting"
            )
        across = [] if columns is None else self._known("columns", columns, self.settings)
        down = [name for name in self.settings if name not in across]
        down = down if rows is None else self._known("rows", rows, self.settings)
        if set(down) & set(across):
            raise ParameterError(f"columns={columns!r} is among rows, too")
        frame = self._where(where or {})
        for name in self.settings:
            if name not in (*down, *across, *(where or {})) and frame[name].nunique(dropna=False) > 1:
                raise ParameterError(
                    f"{name} has several values, and is neither in rows nor in columns: say where={{{name!r}: ...}}"
                )
        if not (down or across):  # one line
            frame = frame.assign(**{"": "all"})
            down = [""]
        groups = frame.groupby([*down, *across], sort=False, dropna=False)[values]
        mean, error = groups.mean(), groups.sem()
        if across:
            lines, order = _in_order(frame, down), _in_order(frame, across)
            level = across if len(across) > 1 else across[0]
            mean, error = (
                part[values[0]].unstack(level).reindex(lines).reindex(columns=order) for part in (mean, error)
            )
        more = {name: self._more_is_better(values[0] if across else name, higher) for name in mean.columns}
        along_rows = bool(across) if best_of is None else best_of == "line"
        return StudyTable(mean, error, which_are_best(mean, along_rows, more))

    def best(self, value: str, where: Mapping[str, Any] | None = None, higher: bool | None = None) -> dict[str, Any]:
        """Return the settings with the best mean over seeds; the first of equal ones.

        Parameters
        ----------
        value : str
            Name of a result.
        where, higher
            As in :meth:`table`.

        Returns
        -------
        dict

        Examples
        --------
        >>> import coterie as ct
        >>> found = ct.studies.study(lambda mu, seed: {"rmse": (mu - 2) ** 2 + seed}, {"mu": [1, 2, 3]})
        >>> found.best("rmse")
        {'mu': 2}
        """
        self._known("value", value, self.values)
        frame = self._where(where or {})
        found = frame.groupby(list(self.settings), sort=False, dropna=False)[value].mean() if self.settings else None
        if found is None:
            return {}
        if found.isna().all():
            raise ParameterError(f"{value} is NaN everywhere: there is no best")
        place = found.idxmax() if self._more_is_better(value, higher) else found.idxmin()
        chosen = place if len(self.settings) > 1 else (place,)
        plain = (each.item() if isinstance(each, np.generic) else each for each in chosen)
        return dict(zip(self.settings, plain, strict=True))

    def plot(
        self,
        value: str | None = None,
        x: str | None = None,
        by: str | None = None,
        where: Mapping[str, Any] | None = None,
    ) -> Figure:
        """Plot a result along one setting: a line for each value of another one, with bands of a standard error.

        Parameters
        ----------
        value : str, optional
            Default: the first result.
        x : str, optional
            Setting on the x-axis. Default: a numeric setting with the most values, or the first setting.
        by : str, optional
            Setting with a line for each value. Default: the other setting, if there are two.
        where : mapping, optional
            As in :meth:`table`.

        Returns
        -------
        Figure

        Examples
        --------
        >>> import coterie as ct
        >>> found = ct.studies.study(lambda mu, seed: {"rmse": mu + seed}, {"mu": [0.01, 0.1, 1.0]}, seeds=range(3))
        >>> axes = found.plot().axes[0]
        >>> axes.get_xscale(), axes.get_yscale(), axes.get_ylabel()
        ('log', 'linear', 'rmse')
        """
        value = self._known("value", value, self.values)[0]
        if not self.settings:
            raise ParameterError("there are no settings to draw anything along")
        if x is None:
            free = [name for name in self.settings if name != by and name not in (where or {})] or list(self.settings)
            x = max(
                free, key=lambda name: (pd.api.types.is_numeric_dtype(self.frame[name]), self.frame[name].nunique())
            )
        self._known("x", x, self.settings)
        others = [name for name in self.settings if name != x and name not in (where or {})]
        if by is None and len(others) == 1:
            by = others[0]
        table = self.table(value, rows=x, columns=by, where=where)
        return plots.settings(table.mean, table.error, value, x, by)

    def _known(self, what: str, names: Names | None, allowed: tuple[str, ...]) -> list[str]:
        chosen = list(allowed) if names is None else [names] if isinstance(names, str) else list(names)
        for name in chosen:
            if name not in allowed:
                raise ParameterError(f"{what}={name!r} must be one of {', '.join(allowed) or 'nothing: there is none'}")
        return chosen

    def _where(self, where: Mapping[str, Any]) -> pd.DataFrame:
        frame = self.frame
        for name, wanted in where.items():
            self._known("where", name, self.settings)
            frame = frame[frame[name] == wanted]
        if not len(frame):
            raise ParameterError("nothing was found" + (f" where {dict(where)}" if where else ""))
        return frame

    def _more_is_better(self, name: str, higher: bool | None) -> bool:
        """Return `higher`, or the default by usual names. The worst tenth of an error is also an error."""
        if name == "worst_tenth" and "rmse" in self.values:
            name = "rmse"
        return name not in LOWER_IS_BETTER if higher is None else higher

    def __repr__(self) -> str:
        seeds = self.frame["seed"].nunique()
        head = f"Study of {len(self.frame)} pieces, {seeds} seed{'s' if seeds != 1 else ''}: mean ± standard error"
        shown = repr(self.table()) if len(self.frame) and self.values else "nothing was found"
        said = [f"failed: {settings}: {error}" for settings, error in self.failures]
        return "\n".join([head, shown, *said])


def framed(rows: Sequence[dict[str, Any]], settings: Sequence[str]) -> tuple[pd.DataFrame, tuple[str, ...]]:
    """Return rows as a frame, and the names of the results."""
    values = tuple(dict.fromkeys(name for row in rows for name in row if name not in (*settings, "seed")))
    frame = pd.DataFrame(rows, columns=[*settings, "seed", *values])
    for name in values:
        frame[name] = pd.to_numeric(frame[name]) if frame[name].notna().any() else np.nan
    return frame, values


def _in_order(frame: pd.DataFrame, names: list[str]) -> list[Any]:
    """Return the distinct values of some settings in the order of the grid; tuples of values for several settings."""
    keys = list(dict.fromkeys(frame[names].itertuples(index=False, name=None)))
    return [key[0] for key in keys] if len(names) == 1 else keys
