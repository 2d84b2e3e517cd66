"""The report of a fitted estimator: one method for all of them."""

from __future__ import annotations

import os
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any


def given_names(agents: Any, y: Any) -> dict[str, str]:
    """How the columns of agents and of labels are called, as far as what a fit was given says."""
    named = {"agents": agents, "target": y}
    found = {of: value if isinstance(value, str) else getattr(value, "name", None) for of, value in named.items()}
    return {of: name for of, name in found.items() if isinstance(name, str) and name}


class Reported:
    """What has a report."""

    _given_names: Mapping[str, str] = MappingProxyType({})  # of "agents" and "target", where they are known

    def report(
        self,
        path: str | os.PathLike[str] | None = None,
        *,
        folds: int = 5,
        random_state: int = 0,
        X: Any = None,
        y: Any = None,
        agents: Any = None,
    ) -> Any:
        """Who gains how much, which features differ, who is an outlier, what was chosen and why.

        Gains are measured by cross-validation inside agents: some of an agent's rows are held out at a time, and
        predicted by this estimator fitted anew (together), by a model of the agent's other rows (alone) and by one
        model of everybody's (one model for all). Of linear and pooled models the other two are regressions whose
        strengths are learned; of boosted ones, and of those with a feature map, the same estimator alone, and for one
        agent with all rows. That takes a little more than `folds` times as long as a fit, three times that where the
        others are estimators of the same kind; of many agents, a sample is measured, and the notes say so.

        Parameters
        ----------
        path : path, optional
            Also write the report to this file, as a page for a browser: one HTML file that needs nothing else.
            `Report.save` does the same later.
        folds : int
            How many parts the rows of each agent are dealt into, to measure gains.
        random_state : int
            Seed of the folds, and of the sample of agents where these are many.
        X, y, agents
            The rows of the fit, for a model that does not have them: one from a file, or from a cluster. They may be
            named as in a fit.

        Returns
        -------
        Report
            Printing it shows it; its tables are DataFrames, and ``to_dict()`` is plain.

        Examples
        --------
        >>> import numpy as np
        >>> import coterie as ct
        >>> rng = np.random.default_rng(0)
        >>> X, agents = rng.normal(size=(200, 2)), np.repeat(np.arange(20), 10)
        >>> y = X[:, 0] * rng.normal(2.0, 1.0, size=20)[agents] + X[:, 1] + 0.5 * rng.normal(size=200)
        >>> report = ct.CollaborativeRegressor().fit(X, y, agents=agents).report()
        >>> report.features["feature"][0], len(report.outliers)
        ('x0', 0)
        >>> report.summary["gains"]["one_model"]["low"] > 0
        True
        """
        from .report import report

        return report(self, path, folds, random_state, X, y, agents)
