"""Label skew: splits in which agents differ in their classes; and test rows of every agent.

Every split by labels first draws a table of the number of rows of each class for each agent, and then divides shuffled
rows by this table. The table depends on how often each class occurs, not on the order or type of the rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax

from ..._checks import choice, fraction, generator, integer, positive
from ...data.agent_data import AgentData
from ...data.matrix import as_labels
from ...errors import DataError, ParameterError
from .sizes import SizeRule, apportion, check_enough, draw_dirichlet, shares_of, sizes_of

__all__ = ["dirichlet", "iid", "pathological", "train_test"]

Integers = NDArray[np.int64]

#: Maximum number of repetitions of a draw that leaves an agent with too few rows.
MAX_DRAWS = 1000


def iid(
    X: Any,
    y: Any,
    n_agents: int,
    *,
    seed: int | np.random.Generator = 0,
    sizes: SizeRule | Sequence[int] | None = None,
    min_rows: int = 1,
) -> AgentData:
    """Divide rows at random: agents differ by chance alone, and by their numbers of rows.

    Parameters
    ----------
    X : array-like or sparse matrix of shape (rows, p)
    y : array-like of shape (rows,) or None
        Labels: classes or numbers.
    n_agents : int
    seed : int or Generator
    sizes : rule or sequence of int, optional
        Number of rows of each agent. Default: equal numbers, up to one row. A rule such as ``LogNormalSizes(1.0)``
        gives every agent `min_rows` rows, and shares of the other rows. Whole numbers are used unchanged; if their sum
        is less than the number of rows, the remaining rows are left out.
    min_rows : int
        Minimum number of rows of an agent.

    Returns
    -------
    AgentData
        Data of agents 0, 1, 2, ...; each row belongs to at most one agent.

    Examples
    --------
    >>> import coterie as ct
    >>> X = np.arange(10.0)[:, None]
    >>> ct.splits.iid(X, None, 3, seed=0)
    AgentData(agents=3, rows=10 (3..4 per agent), features=1, dense, unlabelled)
    >>> np.sort(ct.splits.iid(X, None, 3, sizes=ct.splits.PowerLawSizes(1.0)).sizes).tolist()
    [2, 3, 5]
    """
    rng = generator(seed)
    rows = _rows_of(X)
    counts = sizes_of(sizes, n_agents, rows, min_rows, rng)[:, None]
    return _deal(X, y, np.zeros(rows, np.int64), counts, rng)


def dirichlet(
    X: Any,
    y: Any,
    n_agents: int,
    alpha: float,
    *,
    seed: int | np.random.Generator = 0,
    each: str = "agent",
    sizes: SizeRule | Sequence[int] | None = None,
    min_rows: int = 1,
) -> AgentData:
    """Divide classes in proportions drawn from a Dirichlet distribution: a smaller alpha gives agents fewer classes.

    Parameters
    ----------
    X : array-like or sparse matrix of shape (rows, p)
    y : array-like of shape (rows,)
        Classes, as numbers. For a regression, split by bins and put the numbers back:
        ``dirichlet(X, np.digitize(y, bins), ...).with_labels(y)``.
    n_agents : int
    alpha : float
        Concentration. For large values the split approaches :func:`iid`; near 0 an agent has one class, as long as
        rows of this class are left.
    seed : int or Generator
    each : {"agent", "class"}
        With "agent", each agent draws its proportions of classes from Dirichlet(alpha * prior), where the prior is the
        frequency of each class, and then its rows; it gets no rows of a class that has run out (Hsu et al. 2019). The
        numbers of rows are given by `sizes`. With "class", each class draws the shares of all agents from
        Dirichlet(alpha, ..., alpha), where an agent that has reached an equal part of all rows gets no more
        (Yurochkin et al. 2019; also FedMA, NIID-Bench and PFLlib). The sizes follow from the draws. For C classes of
        equal size, "class" with alpha is about as uneven as "agent" with C * alpha.
    sizes : rule or sequence of int, optional
        Number of rows of each agent, as in :func:`iid`.
    min_rows : int
        Minimum number of rows of an agent. With ``each="class"``, the draw is repeated until this holds.

    Returns
    -------
    AgentData
        Data of agents 0, 1, 2, ...; each row belongs to at most one agent.

    Raises
    ------
    DataError
        If there are too few rows for `min_rows`, or no draw in a thousand satisfies it.

    References
    ----------
    T.-M. H. Hsu, H. Qi, M. Brown (2019), Measuring the effects of non-identical data distribution for federated visual
    classification. M. Yurochkin et al. (2019), Bayesian nonparametric federated learning of neural networks, ICML.

    Examples
    --------
    >>> import coterie as ct
    >>> y = np.repeat([0, 1, 2], 40)
    >>> X = np.arange(120.0)[:, None]
    >>> data = ct.splits.dirichlet(X, y, n_agents=4, alpha=0.3, seed=0)
    >>> data
    AgentData(agents=4, rows=120 (30 per agent), features=1, dense, labelled)
    >>> [np.bincount(data.rows_of(k)[1].astype(int), minlength=3).tolist() for k in range(4)]
    [[10, 11, 9], [30, 0, 0], [0, 29, 1], [0, 0, 30]]
    """
    alpha = positive("alpha", alpha)
    choice("each", each, ("agent", "class"))
    rng = generator(seed)
    codes, supply = _classes(y, _rows_of(X))
    if each == "class":
        if sizes is not None:
            raise ParameterError('sizes is for each="agent": with each="class", sizes follow from the draw')
        counts = _shares_of_classes(supply, n_agents, alpha, min_rows, rng)
    else:
        counts = _proportions_of_agents(supply, sizes_of(sizes, n_agents, codes.size, min_rows, rng), alpha, rng)
    return _deal(X, y, codes, counts, rng)


def pathological(
    X: Any,
    y: Any,
    n_agents: int,
    classes: int = 2,
    *,
    seed: int | np.random.Generator = 0,
    distinct: bool = False,
    sizes: SizeRule | Sequence[float] | None = None,
    min_rows: int = 1,
) -> AgentData:
    """Give each agent a few classes: rows are sorted by label, cut into shards, and each agent gets `classes` shards.

    A shard holds rows of one class only, so that no agent has more than `classes` classes; in the paper, shards
    sometimes hold two classes. A class is cut into shards in proportion to its rows.

    Parameters
    ----------
    X : array-like or sparse matrix of shape (rows, p)
    y : array-like of shape (rows,)
        Classes, as numbers.
    n_agents : int
    classes : int
        Number of shards of each agent, and thus its maximum number of classes.
    seed : int or Generator
    distinct : bool
        Whether the shards of an agent are all of different classes, so that it has exactly `classes` classes (as in
        FedRep and PFLlib). Otherwise two may be of the same class (McMahan et al. 2017).
    sizes : rule or sequence of float, optional
        Weights: shards of one class are cut in proportion to the weights of their agents. Default: equal weights.
    min_rows : int
        Minimum number of rows of an agent; an error is raised if an agent has fewer.

    Returns
    -------
    AgentData
        Data of agents 0, 1, 2, ...; each row belongs to one agent.

    Raises
    ------
    DataError
        If there are fewer shards than classes, too few classes for distinct shards, or an agent with fewer than
        `min_rows` rows.

    References
    ----------
    B. McMahan et al. (2017), Communication-efficient learning of deep networks from decentralized data, AISTATS.

    Examples
    --------
    >>> import coterie as ct
    >>> y = np.repeat(np.arange(5), 20)
    >>> data = ct.splits.pathological(np.ones((100, 1)), y, n_agents=10, classes=2, seed=0, distinct=True)
    >>> data
    AgentData(agents=10, rows=100 (10 per agent), features=1, dense, labelled)
    >>> {np.unique(data.rows_of(k)[1]).size for k in range(10)}
    {2}
    """
    integer("classes", classes)
    rng = generator(seed)
    codes, supply = _classes(y, _rows_of(X))
    check_enough(n_agents, codes.size, min_rows)
    shards = _shards_of_classes(supply, n_agents, classes, distinct, rng)
    held = _deal_distinct(shards, n_agents, classes, rng) if distinct else _deal_shards(shards, n_agents, classes, rng)
    share = shares_of(sizes, n_agents, rng)
    counts = np.zeros_like(held)
    for k in range(supply.size):
        weights = held[:, k] * share
        if weights.sum() <= 0:
            raise DataError(f"sizes gives no share to the agents that hold class number {k}: give each agent some")
        counts[:, k] = apportion(supply[[k]], weights, np.zeros(n_agents, np.int64), rng)
    least = counts.sum(axis=1)
    if least.min() < min_rows:
        raise DataError(
            f"agent {least.argmin()} is left with {least.min()} rows, and min_rows={min_rows}; "
            "take fewer agents, fewer classes for each, less skewed sizes, or a smaller min_rows"
        )
    return _deal(X, y, codes, counts, rng)


# -- tables: how many rows of each class each agent gets ------------------------------------------------------------


def _proportions_of_agents(supply: Integers, sizes: Integers, alpha: float, rng: np.random.Generator) -> Integers:
    """Draw q_k ~ Dirichlet(alpha * prior) for each agent, then rows by q_k without replacement (Hsu et al. 2019).

    Every agent asks for all rows that it needs; if too many rows of a class are asked for, they go to the agents that
    are first in a random order, which is drawn once. The other agents ask again without this class: the remaining part
    of q_k is also a Dirichlet draw. Every repetition exhausts a class, so that there are at most as many as classes.
    """
    wanted = draw_dirichlet(np.tile(alpha * supply / supply.sum(), (sizes.size, 1)), rng)
    order = rng.permutation(sizes.size)
    left, needed = supply.copy(), sizes.copy()
    counts = np.zeros((sizes.size, supply.size), np.int64)
    while needed.any():
        asked = rng.multinomial(needed, softmax(np.where(left > 0, wanted, -np.inf), axis=1))
        before = np.cumsum(asked[order], axis=0) - asked[order]
        given = np.empty_like(asked)
        given[order] = np.clip(left - before, 0, asked[order])
        counts += given
        left -= given.sum(axis=0)
        needed -= given.sum(axis=1)
    return counts


def _shares_of_classes(supply: Integers, n: int, alpha: float, min_rows: int, rng: np.random.Generator) -> Integers:
    """Draw p ~ Dirichlet(alpha, ..., alpha) over agents that are not full, for each class (Yurochkin et al. 2019)."""
    rows = int(supply.sum())
    check_enough(n, rows, min_rows)
    for _ in range(MAX_DRAWS):
        counts = np.zeros((n, supply.size), np.int64)
        for k in range(supply.size):
            full = counts.sum(axis=1) >= rows / n
            share = softmax(np.where(full, -np.inf, draw_dirichlet(np.full((1, n), alpha), rng)), axis=1)[0]
            cuts = np.floor(np.cumsum(share[:-1]) * supply[k]).astype(np.int64)
            counts[:, k] = np.diff(cuts, prepend=0, append=supply[k])
        least = int(counts.sum(axis=1).min())
        if least >= min_rows:
            return counts
    raise DataError(
        f"{MAX_DRAWS} draws left some agent with fewer than min_rows={min_rows} rows (the last one with {least}): "
        'take a larger alpha, fewer agents, a smaller min_rows, or each="agent", where sizes do not depend on alpha'
    )


def _shards_of_classes(supply: Integers, n: int, classes: int, distinct: bool, rng: np.random.Generator) -> Integers:
    """Return the number of shards cut from each class: at least one, and no more than its rows."""
    total, found = n * classes, supply.size
    if total < found:
        raise DataError(
            f"{n} agents with classes={classes} hold {total} shards, and y has {found} classes: "
            "some would be left out; take more agents, or more classes for each"
        )
    if distinct and classes > found:
        raise DataError(f"classes={classes}: y has only {found} classes; take fewer, or distinct=False")
    # A class has at most one shard for each row and, if distinct, at most one for each agent.
    most = np.minimum(supply, n) if distinct else supply
    if most.sum() < total:
        raise DataError(
            f"{supply.sum()} rows of {found} classes cannot be cut into {total} shards"
            f"{' of different classes for each agent' if distinct else ''}; take fewer agents or fewer classes for each"
        )
    shards = np.ones(found, np.int64)
    while (missing := total - int(shards.sum())) > 0:
        weights = np.where(shards < most, supply, 0).astype(np.float64)
        more = apportion(np.array([missing]), weights, np.zeros(found, np.int64), rng)
        shards = np.minimum(shards + more, most)
    return shards


def _deal_shards(shards: Integers, n: int, classes: int, rng: np.random.Generator) -> Integers:
    """Return how many shards of each class each agent gets, at random."""
    dealt = rng.permutation(np.repeat(np.arange(shards.size), shards)).reshape(n, classes)
    held = np.zeros((n, shards.size), np.int64)
    np.add.at(held, (np.repeat(np.arange(n), classes), dealt.ravel()), 1)
    return held


def _deal_distinct(shards: Integers, n: int, classes: int, rng: np.random.Generator) -> Integers:
    """Return shards of distinct classes: each agent in turn takes the classes with most shards left, ties at random.

    By the theorem of Gale and Ryser, this always succeeds.
    """
    left, held = shards.copy(), np.zeros((n, shards.size), np.int64)
    for agent in rng.permutation(n):
        taken = np.lexsort((rng.random(shards.size), -left))[:classes]
        held[agent, taken] = 1
        left[taken] -= 1
    return held


# -- from tables to agents ------------------------------------------------------------------------------------------


def _rows_of(X: Any) -> int:
    shape = getattr(X, "shape", None)
    return int(shape[0]) if shape else len(X)


def _classes(y: Any, rows: int) -> tuple[Integers, Integers]:
    """Return the index of each row's class, and the number of rows of each class."""
    if y is None:
        raise DataError("y is None: a split by labels needs labels; for unlabelled rows use ct.splits.iid")
    _, codes, counts = np.unique(as_labels(y, rows), return_inverse=True, return_counts=True)
    if not codes.size:
        raise DataError("X has no rows to divide among agents")
    return codes.reshape(-1).astype(np.int64), counts.astype(np.int64)


def _deal(X: Any, y: Any, codes: Integers, counts: Integers, rng: np.random.Generator) -> AgentData:
    """Divide shuffled rows of each class among agents, by a table of counts."""
    n = len(counts)
    owner = np.full(codes.size, n)
    shuffled = rng.permutation(codes.size)
    by_class = shuffled[np.argsort(codes[shuffled], kind="stable")]
    first = np.cumsum(np.bincount(codes, minlength=counts.shape[1])) - np.bincount(codes, minlength=counts.shape[1])
    for k in range(counts.shape[1]):
        takers = np.repeat(np.arange(n), counts[:, k])
        owner[by_class[first[k] : first[k] + takers.size]] = takers
    if (owner < n).all():
        return AgentData(X, y, agents=owner, members=range(n))
    # Rows that no agent gets are given to one further agent, which is then removed.
    return AgentData(X, y, agents=owner, members=range(n + 1)).restrict(owner < n).only(np.arange(n))


# -- rows for testing -----------------------------------------------------------------------------------------------


def train_test(data: AgentData, test: float = 0.25, seed: int | np.random.Generator = 0) -> tuple[AgentData, AgentData]:
    """Split each agent's rows into training and test rows.

    Each label has its share of an agent's test rows, up to one row; if labels occur once, as in a regression, test rows
    are drawn at random. An agent with two or more rows has rows of both kinds; a single row is for training.

    Parameters
    ----------
    data : AgentData
    test : float
        Part of each agent's rows that is for testing, strictly between 0 and 1.
    seed : int or Generator

    Returns
    -------
    train, test : AgentData
        Both have the members of `data` in the same order, and refer to the same input by `origin`.

    Examples
    --------
    >>> import coterie as ct
    >>> data = ct.AgentData(np.ones((12, 1)), y=[0, 1] * 6, agents=["anna"] * 8 + ["bo"] * 4)
    >>> train, test = ct.splits.train_test(data, test=0.25, seed=0)
    >>> train.members == test.members, test.sizes.tolist(), test.rows_of("anna")[1].tolist()
    (True, [2, 1], [0.0, 1.0])
    """
    fraction("test", test)
    rng = generator(seed)
    sizes = data.sizes
    totals = np.minimum(np.maximum(np.rint(test * sizes).astype(np.int64), 1), np.maximum(sizes - 1, 0))
    label = np.zeros(data.n_rows) if data.y is None else data.y
    # Rows are sorted by agent and label, and shuffled inside: the first ones of each label are for testing.
    order = np.lexsort((rng.random(data.n_rows), label, data.owner))
    owner, label = data.owner[order], label[order]
    first = np.flatnonzero(np.r_[True, (owner[1:] != owner[:-1]) | (label[1:] != label[:-1])][: order.size])
    count = np.diff(first, append=order.size)
    taken = apportion(totals, count, owner[first], rng)
    chosen = np.arange(order.size) - np.repeat(first, count) < np.repeat(taken, count)
    tested = np.zeros(data.n_rows, dtype=bool)
    tested[order] = chosen
    return _those(data, ~tested), _those(data, tested)


def _those(data: AgentData, keep: np.ndarray) -> AgentData:
    rows = np.flatnonzero(keep)
    return data._rows(rows, np.bincount(data.owner[rows], minlength=data.n))
