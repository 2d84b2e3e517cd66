"""Evaluation of personal models: on average, for the worst agents, and compared with learning alone.

Agents and their scores differ, and a mean hides the agents that collaboration harms. An evaluation therefore also
reports the mean of the worst tenth, the gain of each agent over the model it would have alone, and the fairness of the
scores by the index of R. Jain, D. Chiu, W. Hawe (1984), "A quantitative measure of fairness and discrimination for
resource allocation in shared computer systems": ``(sum_i s_i)^2 / (n sum_i s_i^2)``, which is 1 if all scores are
equal, and 1/n if one agent has everything. Li, Sanjabi, Beirami, Smith (2020), "Fair resource allocation in federated
learning", report the mean, the worst tenth and the spread.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from .core.linear import margins_kernel, rows_of
from .core.losses import SIGNS
from .data import AgentData
from .data.agent_data import means
from .data.dictionaries import outputs
from .errors import DataError, MismatchError, ParameterError
from .problem import Problem

#: Quantities for which less is better, by their names in traces, comparisons and studies.
LOWER_IS_BETTER = {
    "value",
    "gap",
    "rmse",
    "wakes",
    "time",
    "vectors",
    "bytes",
    "messages",
    "std",
    "largest_loss",
    "certificate",
}
LOWER_IS_BETTER |= {"honest_loss", "disagreement"}
#: Number of rows that are passed to a model to find its number of outputs.
PROBE_ROWS = 3
#: Type of ``score(predicted, labels)`` for the test rows of one agent.
ScoreOf = Callable[[np.ndarray, np.ndarray], float]


def gain(difference: np.ndarray, level: float) -> dict[str, float]:
    """Return the mean gain, its uncertainty, its size relative to `level`, and the share of agents that gain."""
    from scipy import stats  # imported here, since traces do not need it

    each = difference[~np.isnan(difference)]
    n = len(each)
    mean = float(each.mean()) if n else math.nan
    se = float(each.std(ddof=1) / math.sqrt(n)) if n > 1 else math.nan
    half = se * float(stats.t.ppf(0.975, n - 1)) if n > 1 else math.nan
    relative = mean / level if level > 0.0 else math.nan
    ends = {"low": mean - half, "high": mean + half, "relative": relative}
    return {"mean": mean, "se": se} | ends | {"share": _mean(each > 0.0), "agents": n}


def jain(scores: np.ndarray) -> float:
    """Return Jain's fairness index of nonnegative numbers."""
    square = float(np.sum(scores**2))
    return float(np.sum(scores)) ** 2 / (len(scores) * square) if square > 0.0 else 1.0


def worst_tenth(scores: np.ndarray, higher: bool) -> float:
    """Return the mean of the worst tenth of the scores, at least one score."""
    ranked, count = np.sort(scores), -(-len(scores) // 10)
    return _mean(ranked[:count] if higher else ranked[len(ranked) - count :])


def _mean(values: np.ndarray) -> float:
    return float(np.mean(values)) if len(values) else math.nan


@dataclass(frozen=True, repr=False, eq=False)
class Evaluation:
    """The result of :func:`coterie.evaluate`.

    Attributes
    ----------
    members : tuple
        Agent ids.
    score : str
        Name of the score: "accuracy", "rmse", or the name of a function.
    higher : bool
        Whether more is better.
    each : (n,) ndarray
        The score of every agent; NaN for agents without test rows, which are not counted.
    alone : (n,) ndarray or None
        The scores of the models that agents learn alone.
    rows : (n,) ndarray
        Number of test rows of each agent.
    """

    members: tuple[Any, ...]
    score: str
    higher: bool
    each: np.ndarray
    alone: np.ndarray | None
    rows: np.ndarray

    @property
    def _known(self) -> np.ndarray:
        return self.each[~np.isnan(self.each)]

    @property
    def mean(self) -> float:
        """Mean score over agents."""
        return _mean(self._known)

    @property
    def std(self) -> float:
        """Standard deviation of the scores over agents."""
        return float(np.std(self._known)) if len(self._known) else math.nan

    @property
    def worst_tenth(self) -> float:
        """Mean score of the worst tenth of the agents, at least one agent."""
        return worst_tenth(self._known, self.higher)

    @property
    def fairness(self) -> float:
        """Jain's index of the scores, from 1/n to 1."""
        return jain(self._known)

    @property
    def gains(self) -> np.ndarray | None:
        """Gain of each agent over learning alone, positive if the agent is better off; None if not known."""
        if self.alone is None:
            return None
        return self.each - self.alone if self.higher else self.alone - self.each

    @property
    def summary(self) -> dict[str, float]:
        """All results as numbers by name.

        The mean score under its name, ``std``, ``worst_tenth``, ``fairness``; and, if scores alone are known, ``gain``
        (mean over agents), ``share_gaining`` (share of agents that gain), ``largest_loss`` (of one agent, at least 0).

        Examples
        --------
        >>> import coterie as ct
        >>> test = ct.AgentData([[1.0], [1.0]], [1.0, -1.0], agents=["ann", "bob"])
        >>> ct.evaluate([[1.0], [2.0]], test, test, alone=[[-1.0], [-1.0]]).summary["share_gaining"]
        0.5
        """
        found = {self.score: self.mean, "std": self.std, "worst_tenth": self.worst_tenth, "fairness": self.fairness}
        gains = self.gains
        if gains is None:
            return found
        known = gain(gains, math.nan)
        loss = float(np.max(-gains[~np.isnan(gains)], initial=0.0))
        return found | {"gain": known["mean"], "share_gaining": known["share"], "largest_loss": loss}

    @property
    def frame(self) -> pd.DataFrame:
        """One row for each agent: agent, rows, score, and, if known, alone and gain.

        Examples
        --------
        >>> import coterie as ct
        >>> test = ct.AgentData([[1.0], [1.0]], [1.0, -1.0], agents=["ann", "bob"])
        >>> ct.evaluate([[1.0], [2.0]], test, test).frame.values.tolist()
        [['ann', 1, 1.0], ['bob', 1, 0.0]]
        """
        frame = pd.DataFrame({"agent": pd.Series(self.members, dtype=object), "rows": self.rows, self.score: self.each})
        return frame if self.alone is None else frame.assign(alone=self.alone, gain=self.gains)

    def __repr__(self) -> str:
        known = self.summary
        lines = [
            f"Evaluation of {len(self._known)} agents on test rows of their own",
            f"  {self.score} {self.mean:.4g}, standard deviation {self.std:.3g}, worst tenth {self.worst_tenth:.4g}, "
            f"fairness {self.fairness:.3g} (Jain)",
        ]
        if self.alone is not None:
            lines.append(
                f"  gain over alone {known['gain']:+.3g}: {known['share_gaining']:.0%} of the agents gain, and the "
                f"largest loss of one is {known['largest_loss']:.3g}"
            )
        return "\n".join(lines)


def evaluate(
    models: Any,
    problem: Problem | AgentData,
    test: AgentData | None = None,
    *,
    score: str | ScoreOf | None = None,
    higher: bool | None = None,
    alone: Any = None,
) -> Evaluation:
    """Score the model of every agent on its own test rows.

    Parameters
    ----------
    models : (n, p) array_like, or Run
        One row for each agent.
    problem : Problem or AgentData
        The problem of the models, which defines how they predict. With an AgentData, models are linear. May be omitted
        for a run, which has its problem: ``evaluate(run, test)``.
    test : AgentData
        Test rows of all or some of the agents, with the features from which the problem was made.
    score : "accuracy", "rmse" or callable, optional
        Default: accuracy if labels are classes, otherwise the root mean squared error. Labels are classes if the model
        has one output for each class; if labels are -1 and +1; or if labels are 0 and 1 and the model gives logits,
        such as :class:`coterie.models.Torch` with ``torch.nn.BCEWithLogitsLoss()``, where one output predicts class 1
        if it is at least 0. A function ``score(predicted, labels)`` takes the predictions of one agent's model, (m,) or
        (m, outputs), and the labels of its rows.
    higher : bool, optional
        For a function: whether more is better. Default: True.
    alone : (n, p) array_like, Run, or False, optional
        Models that gains are compared with. Default: models that agents learn alone, :meth:`coterie.Problem.local`;
        none for an AgentData, or a model that is not linear. False computes no gains. With a server, models of the
        clients suffice.

    Returns
    -------
    Evaluation

    Examples
    --------
    >>> import coterie as ct
    >>> task = ct.datasets.linear_classification(n=50, p=20, seed=0)
    >>> problem = ct.Problem.personalized(task.train, task.graph)
    >>> found = ct.evaluate(ct.simulate(problem, "cd", wakes=2000), task.test)
    >>> print(found)
    Evaluation of 50 agents on test rows of their own
      accuracy 0.9218, standard deviation 0.0417, worst tenth 0.83, fairness 0.998 (Jain)
      gain over alone +0.0918: 84% of the agents gain, and the largest loss of one is 0.14
    """
    rows: Any = test
    if test is None:
        if not isinstance(getattr(models, "problem", None), Problem):
            raise ParameterError("evaluate needs test rows: evaluate(run, test), or evaluate(models, problem, test)")
        problem, rows = models.problem, problem
    return Evaluator(problem, rows, score, higher, alone)(models)


@dataclass(eq=False)
class Evaluator:
    """:func:`coterie.evaluate` for many models of one problem.

    Parameters
    ----------
    problem, test, score, higher, alone
        As in :func:`coterie.evaluate`.

    Examples
    --------
    Observe scores on test rows in a trace:

    >>> import coterie as ct
    >>> task = ct.datasets.linear_classification(n=50, p=20, seed=0)
    >>> problem = ct.Problem.personalized(task.train, task.graph)
    >>> run = ct.simulate(problem, "cd", wakes=2000, observe=ct.studies.Evaluator(problem, task.test).observers())
    >>> run.trace[["accuracy", "worst_tenth", "gain"]].round(3).values.tolist()
    [[0.83, 0.652, 0.0], [0.922, 0.83, 0.092]]
    """

    problem: Problem | AgentData
    test: AgentData
    score: Any = None
    higher: bool | None = None
    alone: Any = None
    _last: tuple[bytes, np.ndarray] = field(default=(b"", np.zeros(0)), init=False, repr=False)

    def __post_init__(self) -> None:
        problem, test = self.problem, self.test
        data = problem.data if isinstance(problem, Problem) else problem
        if not isinstance(data, AgentData):
            raise ParameterError(f"an evaluation needs a Problem, or an AgentData; found {type(problem).__name__}")
        if isinstance(problem, Problem) and problem.base is not None and isinstance(test, AgentData):
            if problem.outputs > 1:
                raise MismatchError("test rows of several classes: give an observer of your own")
            self.test = test = test.with_features(outputs(problem.base, test.X, test.where))
        if not isinstance(test, AgentData) or test.p != data.p or not set(test.members) <= set(data.members):
            raise DataError("test must be an AgentData with features of the problem, and of agents that it has")
        if test.members != data.members:  # such as a server, which has no rows
            self.test = test = test.with_members(data.members)
        if test.y is None or (isinstance(problem, Problem) and self._model is None and problem.loss.unlabelled):
            raise MismatchError("test rows need labels, and a loss that predicts them")
        self.name = self._named(self.score)
        more = self.name not in LOWER_IS_BETTER
        if self.higher is not None and not callable(self.score) and self.higher != more:
            raise ParameterError(f"higher={self.higher} is only for a function as score: leave it out for {self.name}")
        self.higher = more if self.higher is None else bool(self.higher)
        alone = self.alone
        if alone is None:
            alone = problem.local() if isinstance(problem, Problem) and self._model is None else False
        self._alone = None if alone is False else self._each(alone)

    @property
    def _model(self) -> Any:
        """The model of a problem that is not linear, otherwise None."""
        if not isinstance(self.problem, Problem) or self.problem.is_linear:
            return None
        return self.problem.model

    def _named(self, score: Any) -> str:
        """Return the name of a score."""
        if callable(score):
            return str(getattr(score, "__name__", type(score).__name__).replace("<lambda>", "score"))
        if score is None:
            classifies = self._one_for_each_class or self._two_classes
            if isinstance(self.problem, Problem) and self._model is None:
                classifies = self.problem.loss.labels == SIGNS
            score = "accuracy" if classifies else "rmse"
        if score not in ("accuracy", "rmse"):
            raise ParameterError(f'score={score!r} must be "accuracy", "rmse", or a function of predictions and labels')
        if score == "accuracy" and not (self._one_for_each_class or self._two_classes):
            raise MismatchError(
                "accuracy: the model has one output, and its meaning for the test labels is not known; known are "
                "labels -1 and +1, and labels 0 and 1 of a model that gives logits, such as ct.models.Torch with "
                "torch.nn.BCEWithLogitsLoss(). Pass a function score(predicted, labels), such as "
                "lambda predicted, labels: ((predicted > 0.5) == labels).mean()"
            )
        return str(score)

    @functools.cached_property
    def _one_for_each_class(self) -> bool:
        """Whether the model has several outputs. Several rows are passed, since some modules need more than one."""
        if self._model is None:
            return False
        if getattr(self._model, "classes", 0) > 1:
            return True
        X, m = self.test.X, self.test.n_rows
        some = X[np.arange(PROBE_ROWS) % m] if m else np.zeros((PROBE_ROWS, self.test.p))
        return _flat(self._model.predict(self._model.initial(), some)).ndim == 2

    @property
    def _two_classes(self) -> bool:
        """Whether the sign of one output distinguishes the labels."""
        y = np.asarray(self.test.y)
        logit = getattr(self._model, "logit", False)
        return bool(np.all(np.abs(y) == 1.0) or (logit and np.all(np.isin(y, (0.0, 1.0)))))

    def predictions(self, theta: np.ndarray) -> np.ndarray:
        """Return the predictions of each agent's model for its own test rows, all in one array."""
        if self._model is not None:
            X, start = self.test.X, self.test.start
            some = [k for k in range(self.test.n) if self.test.sizes[k]]
            said = [self._model.predict(theta[k], X[start[k] : start[k + 1]]) for k in some]
            return np.concatenate([_flat(each) for each in said]) if said else np.zeros(0)
        margins = np.zeros(self.test.n_rows)
        margins_kernel(rows_of(self.test.X), self.test.start, theta, margins)
        return margins

    def _each(self, models: Any) -> np.ndarray:
        """Return the score of every agent; the result for the last models is cached."""
        theta = np.ascontiguousarray(getattr(models, "theta", models), dtype=float)
        expected = (self.test.n, self.problem.p)
        if theta.shape == (self.test.n - 1, self.problem.p) and getattr(self.problem, "name", "") == "federated":
            theta = np.concatenate([np.zeros_like(theta[:1]), theta])  # models of the clients: the server's is not used
        if theta.shape != expected:
            raise ParameterError(f"models must have shape {expected}, one row for each agent; found {theta.shape}")
        if self._last[0] != (content := theta.tobytes()):
            self._last = content, self._scores(self.predictions(theta))
        return self._last[1]

    def _scores(self, predicted: np.ndarray) -> np.ndarray:
        y, start = np.asarray(self.test.y), self.test.start
        if not callable(self.score):
            if self.name == "rmse":
                each = (predicted - y) ** 2
            else:
                each = np.argmax(predicted, axis=1) == y if predicted.ndim == 2 else (predicted >= 0) == (y > 0)
            mean = means(self.test, each)
            return mean if self.name == "accuracy" else np.sqrt(mean)
        found = np.full(self.test.n, np.nan)
        for k in np.flatnonzero(self.test.sizes):
            found[k] = self.score(predicted[start[k] : start[k + 1]], y[start[k] : start[k + 1]])
        return found

    def __call__(self, models: Any) -> Evaluation:
        """Return the evaluation of some models."""
        each = self._each(models).copy()
        return Evaluation(self.test.members, self.name, bool(self.higher), each, self._alone, self.test.sizes)

    def observers(self) -> Mapping[str, Callable[[np.ndarray], float]]:
        """Return functions for ``observe=``: the mean score, ``worst_tenth``, and ``gain`` if scores alone are known.

        Returns
        -------
        mapping
        """
        names = [self.name, "worst_tenth"] + ([] if self._alone is None else ["gain"])
        return {name: Measure(self, name) for name in names}


@dataclass(frozen=True, eq=False)
class Measure:
    """One number of an evaluation, as a function of models."""

    evaluator: Evaluator
    name: str

    def __call__(self, theta: np.ndarray) -> float:
        """Return the number for these models."""
        found = self.evaluator(theta)
        if self.name == "gain":
            gains = found.gains
            assert gains is not None
            return _mean(gains[~np.isnan(gains)])
        return found.worst_tenth if self.name == "worst_tenth" else found.mean


def _flat(predicted: Any) -> np.ndarray:
    """Return predictions; those of a single output have shape (m,)."""
    found = np.asarray(predicted)
    return found[:, 0] if found.ndim == 2 and found.shape[1] == 1 else found
