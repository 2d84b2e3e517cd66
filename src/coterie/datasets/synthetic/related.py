"""Tasks that are copies of a few parent tasks, or of their opposites (DMTRL, Section 7.1)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import expit

from ..._checks import choice, integer, nonnegative, positive
from ...data.agent_data import AgentData, means
from ...errors import ParameterError


@dataclass(frozen=True)
class RelatedTasks:
    """Tasks that are copies of a few parents, some with the opposite sign.

    Attributes
    ----------
    train, test : AgentData
        One member for each task. Labels are -1 and +1, or real numbers if the loss is squared.
    targets : (n, p) ndarray
        The true weights of the tasks.
    correlation : (n, n) ndarray
        The true correlations of the tasks: cosines of the angles between their weights.
    parent : (n,) ndarray
        The number of the parent of each task; the number of the task itself for a parent.
    sign : (n,) ndarray
        1.0 for copies of the parent's weights, -1.0 for copies of their opposite.
    loss : str
        The loss for which the labels were drawn.
    """

    train: AgentData
    test: AgentData
    targets: np.ndarray
    correlation: np.ndarray
    parent: np.ndarray
    sign: np.ndarray
    loss: str

    def error(self, theta: np.ndarray) -> np.ndarray:
        """Return the test error of each task's model: the share of wrong labels, or the root mean squared error.

        Parameters
        ----------
        theta : (n, p) ndarray

        Returns
        -------
        (n,) ndarray

        Examples
        --------
        >>> task = related_tasks(n=4, p=10, rows=20, test_rows=2000, parents=1, seed=0)
        >>> bool((task.error(task.targets) < 0.25).all()), bool((task.error(-task.targets) > 0.75).all())
        (True, True)
        """
        if np.shape(theta) != self.targets.shape:
            raise ParameterError(f"theta has shape {np.shape(theta)}: expected {self.targets.shape}, a row per task")
        margins = np.einsum("rk,rk->r", self.test.X, np.asarray(theta)[self.test.owner])
        squared = self.loss == "squared"
        wrong = np.square(margins - self.test.y) if squared else np.where(margins >= 0, 1.0, -1.0) != self.test.y
        mean = means(self.test, wrong)
        return np.sqrt(mean) if squared else mean


def related_tasks(
    n: int = 16,
    p: int = 100,
    seed: int | np.random.Generator = 0,
    rows: ArrayLike = 1894,
    test_rows: ArrayLike = 811,
    parents: int = 3,
    noise: float = 0.1,
    parents_of: ArrayLike | None = None,
    scale: float = 3.0,
    loss: str = "logistic",
) -> RelatedTasks:
    """Tasks with positive and negative relationships (DMTRL, Section 7.1).

    Parents have random weights. Every other task chooses one of the parents and a sign at random, and has the parent's
    weights times the sign, plus noise. Features are standard normal.

    The weights of a parent have norm `scale`, which is therefore the standard deviation of its margins. At 3, labels
    are informative but not separable: the true weights are wrong on 16 % of them, and no others are right on all of a
    task's training rows once it has about six for each feature.

    Parameters
    ----------
    n, p : int
        Number of tasks, and of features.
    seed : int or Generator
    rows, test_rows : int or (n,) int array_like
        Number of training and test rows of each task. A single number is their mean: the tasks then have between half
        and one and a half times as many, in even steps and in random order. The task with the most training rows then
        also has the most test rows.
    parents : int
        Number of parents, evenly spaced among the tasks: 0, 5 and 10 by default.
    noise : float
        Standard deviation of the noise on each weight, relative to the root mean square of the parent's weights.
    parents_of : (n,) int array_like, optional
        The parent of each task, its own number for a parent. Replaces `parents` and the random choice of parents; signs
        are still random. Larger families make tasks more correlated, as in :func:`synthetic2`.
    scale : float
        Standard deviation of the parents' margins.
    loss : {"logistic", "squared"}
        The loss whose negative is the log-likelihood of the labels. Logistic: +1 with probability
        ``1 / (1 + exp(-margin))``, else -1. Squared: the margin plus standard normal noise.

    Returns
    -------
    RelatedTasks

    Examples
    --------
    >>> task = related_tasks(seed=0)
    >>> task.train.n, task.train.p, task.train.n_rows + task.test.n_rows
    (16, 100, 43280)
    >>> np.unique(task.parent).tolist()
    [0, 5, 10]
    >>> same = task.parent[:, None] == task.parent
    >>> bool(np.abs(task.correlation[same]).min() > 0.9 > 0.5 > np.abs(task.correlation[~same]).max())
    True
    """
    integer("n", n)
    integer("p", p)
    nonnegative("noise", noise)
    positive("scale", scale)
    choice("loss", loss, ("logistic", "squared"))
    rng = np.random.default_rng(seed)
    rank = rng.permutation(n)
    train_sizes, test_sizes = _sizes("rows", rows, rank), _sizes("test_rows", test_rows, rank)
    if parents_of is None:
        if not 1 <= parents <= n:
            raise ParameterError(f"parents={parents} must lie between 1 and the number of tasks, {n}")
        first = np.arange(parents) * (n // parents)
        parent = rng.choice(first, size=n)
        parent[first] = first
    else:
        parent = np.asarray(parents_of)
        if parent.shape != (n,) or parent.dtype.kind not in "iu":
            raise ParameterError(f"parents_of={parents_of!r} must be {n} numbers of tasks, one for each task")
        if parent.min() < 0 or parent.max() >= n:
            raise ParameterError(f"parents_of={parents_of!r} must be numbers of tasks, from 0 to {n - 1}")
        orphan = np.flatnonzero(parent[parent] != parent)
        if orphan.size:
            k = int(orphan[0])
            raise ParameterError(f"parents_of[{k}] = {parent[k]} is no parent: parents_of[{parent[k]}] must be itself")
    sign = rng.choice([-1.0, 1.0], size=n)
    child = parent != np.arange(n)
    sign[~child] = 1.0
    # A direction is drawn for every task, and only those of parents are used.
    drawn = rng.normal(size=(n, p))
    drawn *= scale / np.linalg.norm(drawn, axis=1, keepdims=True)
    targets = sign[:, None] * drawn[parent]
    targets[child] += noise * scale / np.sqrt(p) * rng.normal(size=(n, p))[child]

    def draw(sizes: np.ndarray) -> AgentData:
        owner = np.repeat(np.arange(n), sizes)
        X = rng.normal(size=(owner.size, p))
        margins = np.einsum("rk,rk->r", X, targets[owner])
        if loss == "squared":
            y = margins + rng.normal(size=owner.size)
        else:
            y = np.where(rng.random(owner.size) < expit(margins), 1.0, -1.0)
        return AgentData(X, y, agents=owner, members=range(n))

    direction = targets / np.linalg.norm(targets, axis=1, keepdims=True)
    correlation = np.clip(direction @ direction.T, -1.0, 1.0)
    np.fill_diagonal(correlation, 1.0)
    return RelatedTasks(draw(train_sizes), draw(test_sizes), targets, correlation, parent, sign, loss)


def synthetic1(seed: int | np.random.Generator = 0, rows: ArrayLike = 1894, test_rows: ArrayLike = 811) -> RelatedTasks:
    """Synthetic 1 of DMTRL, Section 7.1: 16 tasks of 100 features in three families of nearly the same size.

    The parents are tasks 1, 6 and 11, which have the numbers 0, 5 and 10 here; the families have 6, 5 and 5 tasks. The
    family and the sign of each other task are random. The paper does not describe its noise and its families, but
    reports rho = 6.2418, where rho is ``max_i sum_k |sigma_ik| / sigma_ii`` (Lemma 10). Here, rho of the true
    correlations is 6.8 on average over seeds, with a standard deviation of 0.4. Three families of 16 tasks can hardly
    have less, since one of them has 6.

    Parameters
    ----------
    seed : int or Generator
    rows, test_rows : int or (16,) int array_like
        As in :func:`related_tasks`.

    Returns
    -------
    RelatedTasks

    Examples
    --------
    >>> task = synthetic1(seed=0)
    >>> task.train.n_rows + task.test.n_rows, np.unique(task.parent, return_counts=True)[1].tolist()
    (43280, [6, 5, 5])
    """
    return _families((6, 5, 5), seed, rows, test_rows)


def synthetic2(seed: int | np.random.Generator = 0, rows: ArrayLike = 1894, test_rows: ArrayLike = 811) -> RelatedTasks:
    """Synthetic 2 of DMTRL, Section 7.1: the instances of :func:`synthetic1`, for tasks that are more correlated.

    The families have 13, 2 and 1 tasks. The parents and all instances are those of :func:`synthetic1` with the same
    seed; the children, and so their labels, are not. Rho of the true correlations (Lemma 10) is 13.0 on average over
    seeds, with a standard deviation of 0.1, and 12.9457 in the paper.

    Parameters
    ----------
    seed : int or Generator
    rows, test_rows : int or (16,) int array_like
        As in :func:`related_tasks`.

    Returns
    -------
    RelatedTasks

    Examples
    --------
    >>> first, second = synthetic1(seed=0), synthetic2(seed=0)
    >>> np.array_equal(first.train.X, second.train.X), np.array_equal(first.train.y, second.train.y)
    (True, False)
    """
    return _families((13, 2, 1), seed, rows, test_rows)


def _families(
    sizes: tuple[int, int, int], seed: int | np.random.Generator, rows: ArrayLike, test_rows: ArrayLike
) -> RelatedTasks:
    """Return tasks with the parents 0, 5 and 10, and families of the given sizes."""
    # The number of draws does not depend on the sizes, so that the two presets have the same instances.
    rng = np.random.default_rng(seed)
    parents = np.array([0, 5, 10])
    parent = np.arange(16)
    parent[rng.permutation(np.setdiff1d(parent, parents))] = np.repeat(parents, np.array(sizes) - 1)
    return related_tasks(seed=rng, rows=rows, test_rows=test_rows, parents_of=parent, noise=0.2)


def _sizes(name: str, rows: ArrayLike, rank: np.ndarray) -> np.ndarray:
    """Return the numbers of rows of tasks: as given, or growing with the rank from half to one and a half times the
    mean.
    """
    n = rank.size
    sizes = np.asarray(rows)
    if sizes.dtype.kind not in "iu" or sizes.shape not in ((), (n,)) or sizes.min() < 1:
        raise ParameterError(f"{name}={rows!r} must be a whole number >= 1, or {n} of them, one for each task")
    if sizes.ndim:
        return sizes
    # Truncated rather than rounded down, so that steps up and down cancel: the mean is exactly as given.
    return sizes + np.trunc(int(sizes) * (2 * rank - (n - 1)) / (2 * max(n - 1, 1))).astype(int)
