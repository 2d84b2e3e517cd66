"""Coordinate descent, with and without privacy (CD, DP): the task, the schemes, and what several figures measure.

The paper's private scheme is run as Theorem 1 needs it: gradients are clipped, not said to be short (erratum 2), and
the budget is split by the bound with its sums inside the roots (erratum 1). Theorem 1 to the letter, with neither, is
shown beside it, "as printed": that is not private. So are a Gaussian version of the scheme, and what we do instead: one
Gaussian release, free propagation, and a final step that is never sent.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from scipy.optimize import brentq

from coterie import datasets
from coterie.core.methods import CoordinateDescent, ModelPropagation
from coterie.datasets import LinearTask
from coterie.engines.simulator import simulate
from coterie.plots import BLUE, RED
from coterie.privacy import Private, WarmStart, warm_start
from coterie.problem import Problem

from .._experiment import Row, best_along, values
from .._figures import line

#: Of every private run: delta, total budgets, and how much of it the warm start takes.
DELTA = float(np.exp(-5.0))
EPSILONS = (0.15, 0.55, 1.05)
WARM = 0.05
#: Instances that nothing is reported of, to choose parameters on; mu is chosen for the non-private algorithm.
HELD_OUT = (1000, 1001)
DIMENSIONS = (2, 5, 10, 20, 40, 70, 100)
MUS = (0.3, 1.0, 3.0, 10.0, 30.0)
#: What private descents may choose from: iterations per agent, L1 or L2 norm to clip to. As printed, noise hardly grows
#: with the number of iterations, so that there may be more of them. Ours has no choice: mu = 1.
WAKES, MORE_WAKES, CLIPS, OUR_MU = (1, 5, 20), (1, 5, 20, 100), (1.0, 5.0), 1.0
#: Wakes of each agent in which released models are propagated.
PROPAGATION = 20
DESCENTS = ("paper", "printed", "gaussian")
#: Lines about our scheme are beside what the paper says of its own, and their verdicts are no verdicts on it.
OTHER_SCHEME = "(said of its own scheme)"
ANOTHER = "Not the paper's scheme: the verdict is on ours."


def task_of(n: int, p: int, seed: int) -> LinearTask:
    return datasets.linear_classification(n=n, p=p, seed=seed)


def problem_of(task: LinearTask, mu: float) -> Problem:
    return Problem.personalized(task.train, task.graph, mu=mu)


def accuracy(task: LinearTask, theta: np.ndarray) -> float:
    return float(task.accuracy(theta).mean())


def tune_mu(n: int, p: int, seed: int) -> Row:
    """Accuracy of the non-private optimum for each mu."""
    task = task_of(n, p, seed)
    return {"scores": [accuracy(task, problem_of(task, mu).solve()) for mu in MUS]}


def mu_of(rows: Sequence[Row]) -> float:
    return float(best_along(rows, "scores", MUS))


# -- the private schemes ----------------------------------------------------------------------------------------------


def row_norm(p: int) -> float:
    """Return the approximate L2 norm of a row that is uniform in the cube [-1, 1]^p, a public number."""
    return float(np.sqrt(p / 3.0))


def warm(problem: Problem, seed: int) -> WarmStart:
    """Return the paper's warm start: local models, released by objective perturbation (delta = 0), propagated."""
    return warm_start(problem, WARM, 0.0, "objective", row_norm=row_norm(problem.p), seed=seed)


def _choices(scheme: str, p: int) -> list[list[float]]:
    """What a scheme may choose from: [wakes, clip, norm of a row that steps are made for, budget of the warm start].

    Without clipping, gradients are as long as the rows are, and steps must be made for these; shorter ones let more of
    the noise cancel. The paper has a warm start; zeros, the other choice, leave the whole budget to the descent.
    """
    if scheme == "printed":
        norms = row_norm(p), 3.0 * row_norm(p)
        return [list(choice) for choice in product(MORE_WAKES, (float(p),), norms, (WARM, 0.0))]
    return [list(choice) for choice in product(WAKES, CLIPS, (1.0,), (WARM, 0.0) if scheme == "paper" else (0.0,))]


def _printed_step(epsilon: float, wakes: int) -> float:
    """eps_t of each of so many steps by Theorem 1 as printed, where the roots are over one step (erratum 1).

    It can be read in two ways: this one allows more, the other is no better than the plain sum of all eps_t.
    """

    def beyond(step: float) -> float:
        logarithm = min(np.log(np.e + np.sqrt(wakes) * step / DELTA), -np.log(DELTA))
        return float(min(wakes * step, wakes * step * np.tanh(step / 2.0) + step * np.sqrt(2.0 * logarithm)) - epsilon)

    return float(brentq(beyond, 0.0, epsilon))


def descent(epsilon: float, scheme: str, wakes: int, clip: float, norm: float) -> Any:
    """Private coordinate descent whose models are as they were published.

    "printed": the noise of Theorem 1 to the letter, with L_0 = 1: scale 2 / (eps_t m), on gradients that are not
    clipped. Their L1 norms are up to p, so that each step really costs p eps_t, and so it is written here.
    """
    if scheme == "gaussian":
        return Private(CoordinateDescent(), epsilon, DELTA, "gaussian", clip, wakes, final=None, row_norm=norm)
    if scheme == "paper":
        return Private(CoordinateDescent(), epsilon, DELTA, "laplace", clip, wakes, final=None, row_norm=norm)
    spent = clip * wakes * _printed_step(epsilon, wakes)
    return Private(CoordinateDescent(), spent, 0.0, "laplace", clip, wakes, final=None, row_norm=norm)


def _private(
    task: LinearTask, scheme: str, epsilon: float, mu: float, choice: Sequence[float], seed: int, start: Any
) -> np.ndarray:
    """Return the models of a private descent with a total budget of epsilon."""
    wakes, clip, norm, before = choice
    method = descent(round(epsilon - before, 9), scheme, int(wakes), clip, norm)
    return simulate(problem_of(task, mu), method, seed=seed, start=start if before else "zeros").theta


def ours(task: LinearTask, epsilon: float, seed: int, delta: float = DELTA, mu: float = OUR_MU) -> np.ndarray:
    """One Gaussian release, free propagation, and a final step that is never sent."""
    method = Private(ModelPropagation(), epsilon, delta)
    return simulate(problem_of(task, mu), method, wakes=PROPAGATION * task.train.n, seed=seed).theta


def tune_schemes(n: int, p: int, seed: int, mu: float) -> Row:
    """Accuracy of each scheme, at each budget, for each of its choices."""
    task = task_of(n, p, seed)
    start = warm(problem_of(task, mu), seed)
    return {
        f"{scheme} {epsilon}": [
            accuracy(task, _private(task, scheme, epsilon, mu, choice, seed, start)) for choice in _choices(scheme, p)
        ]
        for scheme in DESCENTS
        for epsilon in EPSILONS
    }


def chosen_by(rows: Sequence[Row], p: int) -> dict[str, list[float]]:
    return {
        f"{scheme} {epsilon}": best_along(rows, f"{scheme} {epsilon}", _choices(scheme, p))
        for scheme in DESCENTS
        for epsilon in EPSILONS
    }


def everybody(task: LinearTask, mu: float, chosen: dict[str, list[float]], seed: int) -> Iterator[tuple[str, Any]]:
    """Return all models that are compared: alone, not private, and each scheme at each budget."""
    problem = problem_of(task, mu)
    yield "local", problem.local()
    yield "free", problem.solve()
    start = warm(problem, seed)
    for name, choice in chosen.items():
        scheme, epsilon = name.split()
        yield name, _private(task, scheme, float(epsilon), mu, choice, seed, start)
    for budget in EPSILONS:
        yield f"ours {budget}", ours(task, budget, seed)


def against_local(rows: Sequence[Row], name: str) -> np.ndarray:
    return values(rows, name) - values(rows, "local")


def by_regime(axes: Axes, rows: Sequence[Row], x: str, schemes: Sequence[tuple[str, str, str | None, str]]) -> None:
    """Accuracy against x: not private, local, and each scheme in each regime."""
    line(axes, rows, x, "free", "non-private CD", "black", linestyle="-")
    line(axes, rows, x, "local", "purely local models", "black", linestyle="--")
    for scheme, style, marker, words in schemes:
        for epsilon, colour in zip(EPSILONS, (RED, "#d99a2b", BLUE), strict=True):
            label = f"$\\epsilon$ = {epsilon}{words}"
            line(axes, rows, x, f"{scheme} {epsilon}", label, colour, linestyle=style, marker=marker, markersize=4)
    axes.legend(fontsize=7, ncols=2)
