"""Shifts: the rows of agents, or of groups of agents, are changed in different ways, at once or step by step."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..._checks import generator, integer, nonnegative, numbers, within
from ...data.agent_data import AgentData
from ...errors import DataError, ParameterError
from ...graphs import Graph
from ...graphs.generators import clusters as tied_groups
from ...problem import Problem
from .sizes import apportion

__all__ = ["Drift", "Shifted", "clusters", "concept_shift", "drift", "feature_shift"]

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


#: A shift as a function of data and parameters; the number selects a stream of noise.
Apply = Callable[[AgentData, Mapping[str, np.ndarray], int], AgentData]


@dataclass(frozen=True, repr=False, eq=False)
class Shifted:
    """Result of a shift.

    Attributes
    ----------
    data : AgentData
        The shifted data, with the same members.
    group : ndarray of shape (n,)
        The group of each agent, 0, 1, 2, ...; agents of one group have the same shift.
    parameters : dict of str to ndarray
        Parameters of the shift: for each an array with one entry for each group.
    apply : callable
        The shift as a function of data, parameters and the number of a stream of noise, used by :meth:`on` and
        :func:`drift`.

    Examples
    --------
    >>> import coterie as ct
    >>> data = ct.AgentData(np.ones((4, 2)), y=[0, 1, 0, 1], agents=[0, 0, 1, 1])
    >>> found = ct.splits.feature_shift(data, offset=1.0, seed=0)
    >>> found
    Shifted(groups=2 (1 agent each), by offset; AgentData(agents=2, rows=4 (2 per agent), features=2, dense, labelled))
    >>> bool((found.data.X == data.X + found.parameters["offset"][[0, 0, 1, 1]]).all())
    True
    """

    data: AgentData
    group: Integers
    parameters: Mapping[str, np.ndarray]
    apply: Apply

    @property
    def n_groups(self) -> int:
        """Number of groups."""
        return int(self.group.max()) + 1

    def on(self, other: AgentData) -> Shifted:
        """Apply the same shift to other rows of these agents, such as test rows; noise is drawn again.

        Examples
        --------
        >>> import coterie as ct
        >>> data = ct.AgentData([[1.0], [2.0]], agents=["anna", "bo"])
        >>> found = ct.splits.feature_shift(data, offset=[10, 20])
        >>> found.on(ct.AgentData([[5.0]], agents=["bo"], members=["anna", "bo"])).data.X
        array([[25.]])
        """
        check_members(self.data, other)
        return Shifted(self.apply(other, self.parameters, 1), self.group, self.parameters, self.apply)

    def graph(self) -> Graph:
        """Return the graph with edges between all agents of a group, which is known if the groups are.

        Examples
        --------
        >>> import coterie as ct
        >>> data = ct.AgentData(np.ones((4, 1)), y=[1, 2, 3, 4], agents=[0, 1, 2, 3])
        >>> ct.splits.concept_shift(data, flip=[1, -1], group=[0, 1, 1, 0]).graph().W.toarray()
        array([[0., 0., 0., 1.],
               [0., 0., 1., 0.],
               [0., 1., 0., 0.],
               [1., 0., 0., 0.]])
        """
        place = np.argsort(np.argsort(self.group, kind="stable"))
        return tied_groups(np.unique(self.group, return_counts=True)[1].tolist()).relabel(place)

    def __repr__(self) -> str:
        sizes = np.bincount(self.group)
        low, high = int(sizes.min()), int(sizes.max())
        each = f"{low} agent{'s' * (low != 1)} each" if low == high else f"{low}..{high} agents each"
        what = ", ".join(self.parameters) or "nothing"
        return f"Shifted(groups={self.n_groups} ({each}), by {what}; {self.data!r})"


def feature_shift(
    data: AgentData,
    *,
    scale: Any = None,
    offset: Any = None,
    turn: Any = None,
    columns: Sequence[tuple[int, int]] = ((0, 1),),
    rotate: Any = None,
    channels: int = 1,
    noise: Any = None,
    group: Any = None,
    seed: int | np.random.Generator = 0,
) -> Shifted:
    """Change the features of each agent, or each group of agents, in its own way; labels are not changed.

    Operations are applied in this order: rotate images, turn pairs of columns, scale columns, add offsets, add noise.
    For each argument, a number is the spread of random values, drawn for every group; an array with an entry for each
    group holds the values. Apply the shift before :func:`train_test`, so that training and test rows have the same
    shift; or see :meth:`Shifted.on`.

    Parameters
    ----------
    data : AgentData
        Data with dense features.
    scale : float or array of shape (groups,) or (groups, p), optional
        A number: factors of the columns are log-normal, with this standard deviation of the logarithm. An array: the
        factors.
    offset : float or array of shape (groups,) or (groups, p), optional
        A number: offsets of the columns are normal with this standard deviation. An array: the offsets.
    turn : float or array of shape (groups,), optional
        A number: angles are uniform in [-turn, turn]. An array: the angles. In degrees, from the first column of each
        pair to the second one.
    columns : sequence of (int, int)
        The pairs of columns that `turn` rotates, all by the same angle. No column may be in two pairs.
    rotate : True or array of int of shape (groups,), optional
        Number of quarter turns, counter-clockwise, of rows that are square images, stored row by row. True: group g
        gets g quarter turns modulo four (rotated MNIST of IFCA; Ghosh et al. 2020).
    channels : int
        Number of channels of the images, stored one after the other.
    noise : float or array of shape (groups,), optional
        Standard deviation of normal noise, of all groups or of each group. In NIID-Bench (Li et al. 2022) the variance
        grows from one agent to the next: ``np.sqrt(0.1 * np.arange(1, n + 1) / n)``.
    group : array of int of shape (n,), optional
        The group of each agent. Default: each agent is a group of its own. See :func:`clusters`.
    seed : int or Generator
        Seed of all draws.

    Returns
    -------
    Shifted

    Examples
    --------
    >>> import coterie as ct
    >>> data = ct.AgentData([[1.0, 0.0], [1.0, 0.0]], y=[5, 6], agents=["anna", "bo"])
    >>> ct.splits.feature_shift(data, turn=[0, 90]).data.X.round(12) + 0.0
    array([[1., 0.],
           [0., 1.]])
    >>> image = ct.AgentData([[1, 2, 3, 4]])
    >>> ct.splits.feature_shift(image, rotate=[1]).data.X
    array([[2., 4., 1., 3.]])
    """
    rng = generator(seed)
    group, n = _groups(group, data)
    p = data.p
    found: dict[str, np.ndarray] = {}
    if rotate is not None:
        quarters = np.arange(n) if rotate is True else _array("rotate", rotate, ((n,),), whole=True)
        found["rotate"] = quarters % 4
    if turn is not None:
        found["turn"] = _drawn("turn", turn, ((n,),), lambda most: rng.uniform(-most, most, n))
    shapes = ((n,), (n, p))
    if scale is not None:
        found["scale"] = _drawn("scale", scale, shapes, lambda spread: np.exp(spread * rng.standard_normal((n, p))))
    if offset is not None:
        found["offset"] = _drawn("offset", offset, shapes, lambda spread: spread * rng.standard_normal((n, p)))
    if noise is not None:
        found["noise"] = _drawn("noise", noise, ((n,),), lambda spread: np.full(n, spread))

    integer("channels", channels)
    noise_seed = int(rng.integers(2**63))

    def apply(data: AgentData, found: Mapping[str, np.ndarray], stream: int) -> AgentData:
        X = _dense(data)
        of_row = group[data.owner]
        if "rotate" in found:
            X = _rotated_images(X, found["rotate"][of_row], channels)
        if "turn" in found:
            X = turned(X, found["turn"][of_row], columns)
        if "scale" in found:
            X *= _by_column(found["scale"])[of_row]
        if "offset" in found:
            X += _by_column(found["offset"])[of_row]
        if "noise" in found:
            drawn = np.random.default_rng([noise_seed, stream]).standard_normal(X.shape)
            X += found["noise"][of_row, None] * drawn
        shifted = data._like(X=X.astype(data.X.dtype))
        shifted._check_features()
        return shifted

    return Shifted(apply(data, found, 0), group, found, apply)


def concept_shift(
    data: AgentData,
    *,
    permute: Any = None,
    flip: Any = None,
    turn: Any = None,
    columns: Sequence[tuple[int, int]] = ((0, 1),),
    target: Callable[[Floats], Any] | None = None,
    group: Any = None,
    seed: int | np.random.Generator = 0,
) -> Shifted:
    """Change the labels of each agent, or each group of agents, in its own way; features are not changed.

    Parameters
    ----------
    data : AgentData
        Data with labels.
    permute : True or array of shape (groups, classes), optional
        Permutation of the classes. True: each group draws a permutation (clustered federated learning; Sattler
        et al. 2020), except that group 0 keeps its labels; permutations differ as long as there are enough of them. An
        array: row g holds the new class of each class, in order, in group g.
    flip : float or array of shape (groups,), optional
        Change of the labels' sign. A number: the part of the groups, drawn at random, whose labels change sign. An
        array: -1 for groups whose labels change sign, and 1 for others.
    turn : float or array of shape (groups,), optional
        For a regression: rotate features before labelling them, by angles as in :func:`feature_shift`. The difference
        ``target(turned X) - target(X)`` is added to the labels, so that their noise is kept.
    columns : sequence of (int, int)
        The pairs of columns that `turn` rotates.
    target : callable, optional
        The dependence of labels on features, for `turn`: a function of rows of features. Default: the linear function
        with an intercept that fits the rows of all agents best.
        intercept that fits the rows of all agents best.
    group : array of int of shape (n,), optional
        The group of each agent. Default: each agent is a group of its own. See :func:`clusters`.
    seed : int or Generator
        Seed of all draws.

    Returns
    -------
    Shifted

    Examples
    --------
    >>> import coterie as ct
    >>> data = ct.AgentData(np.eye(2)[[0, 1, 0, 1]], y=[1, -1, 1, -1], agents=[0, 0, 1, 1])
    >>> ct.splits.concept_shift(data, flip=[1, -1]).data.y
    array([ 1., -1., -1.,  1.])
    >>> ct.splits.concept_shift(data, turn=[0, 180], target=lambda X: X[:, 0]).data.y
    array([ 1., -1., -1., -1.])
    """
    classes = np.unique(labels_of(data))
    rng = generator(seed)
    group, n = _groups(group, data)
    found: dict[str, np.ndarray] = {}
    if turn is not None:
        if permute is not None:
            raise ParameterError("turn is for regressions, and permute for classes: give one of them")
        found["turn"] = _drawn("turn", turn, ((n,),), lambda most: rng.uniform(-most, most, n))
    elif target is not None:
        raise ParameterError("target needs turn: give the angles, or leave target out")
    concept = _fitted(data) if target is None and turn is not None else target
    if permute is not None:
        drawn = permute is True
        shape = (n, classes.size)
        found["permute"] = classes[_permutations(*shape, rng)] if drawn else _array("permute", permute, (shape,))
    if flip is not None:
        found["flip"] = _signs(flip, n, rng)

    def apply(data: AgentData, found: Mapping[str, np.ndarray], stream: int) -> AgentData:
        of_row = group[data.owner]
        y = labels_of(data).copy()
        if concept is not None:
            y += _added_by_turn(_dense(data), found["turn"][of_row], columns, concept)
        if "permute" in found:
            code = np.minimum(np.searchsorted(classes, y), classes.size - 1)
            if (classes[code] != y).any():
                raise DataError(f"there is no class {y[classes[code] != y][0]:g} among those that were permuted")
            y = found["permute"][of_row, code]
        if "flip" in found:
            y = y * found["flip"][of_row]
        shifted = data._like(y=y)
        shifted._check_labels()
        return shifted

    return Shifted(apply(data, found, 0), group, found, apply)


def turned(X: Floats, degrees: Floats, columns: Sequence[tuple[int, int]]) -> Floats:
    """Return rows with pairs of columns rotated, each row by its own angle."""
    pairs = np.asarray(columns)
    p = X.shape[1]
    if pairs.ndim != 2 or pairs.shape[1] != 2 or pairs.dtype.kind not in "iu" or not len(pairs):
        raise ParameterError(f"columns = {columns!r}: expected pairs of columns, such as [(0, 1), (2, 3)]")
    if pairs.min() < 0 or pairs.max() >= p or np.unique(pairs).size != pairs.size:
        raise ParameterError(f"columns = {columns!r}: expected different columns, from 0 to {p - 1}")
    angle = np.deg2rad(degrees)[:, None]
    cos, sin = np.cos(angle), np.sin(angle)
    first, second = X[:, pairs[:, 0]], X[:, pairs[:, 1]]
    X = X.copy()
    X[:, pairs[:, 0]], X[:, pairs[:, 1]] = cos * first - sin * second, sin * first + cos * second
    return X


def _rotated_images(X: Floats, quarters: Integers, channels: int) -> Floats:
    side = math.isqrt(X.shape[1] // channels)
    if channels * side * side != X.shape[1]:
        raise ParameterError(
            f"rotate: {X.shape[1]} features are not a square image with {channels} channel{'s' * (channels > 1)}; "
            "see channels="
        )
    images = X.reshape(len(X), channels, side, side)
    X = X.copy()
    for k in range(1, 4):
        rows = quarters == k
        X[rows] = np.rot90(images[rows], k, axes=(2, 3)).reshape(-1, X.shape[1])
    return X


def _fitted(data: AgentData) -> Callable[[Floats], Any]:
    """Return the linear function that fits all rows best, without its intercept."""
    X = _dense(data)
    slope = np.linalg.lstsq(np.column_stack([X, np.ones(len(X))]), labels_of(data), rcond=None)[0][:-1]
    return lambda rows: rows @ slope


def _added_by_turn(
    X: Floats, degrees: Floats, columns: Sequence[tuple[int, int]], target: Callable[[Floats], Any]
) -> Floats:
    added = np.asarray(target(turned(X, degrees, columns)), dtype=np.float64) - target(X)
    if added.shape != (len(X),):
        raise ParameterError(f"target gave shape {added.shape} for {len(X)} rows: expected a number for each row")
    return added


def _permutations(n: int, classes: int, rng: np.random.Generator) -> Integers:
    """Return a permutation for each group, the identity for the first; distinct ones, as long as there are enough."""
    enough = classes > 20 or math.factorial(classes) >= n
    found = [tuple(range(classes))]
    met = set(found)
    while len(found) < n:
        drawn = tuple(rng.permutation(classes).tolist())
        if not (enough and drawn in met):
            met.add(drawn)
            found.append(drawn)
    return np.array(found)


def _signs(flip: Any, n: int, rng: np.random.Generator) -> Floats:
    if np.ndim(flip):
        signs = _array("flip", flip, ((n,),))
        if not np.isin(signs, (-1.0, 1.0)).all():
            raise ParameterError(f"flip = {flip!r}: expected -1 for groups whose labels change sign, and 1 for others")
        return signs
    signs = np.ones(n)
    signs[rng.permutation(n)[: round(within("flip", flip, 0, 1) * n)]] = -1.0
    return signs


def labels_of(data: AgentData) -> Floats:
    """Return the labels of data, and refuse unlabelled data."""
    if data.y is None:
        raise DataError("a concept shift changes labels, and this data has no labels")
    return data.y


def check_members(data: AgentData, other: AgentData) -> None:
    """Refuse data with different members."""
    if data.members != other.members:
        raise DataError(
            f"the shift is of {data.n} agents and the other rows are of {other.n}: both must have the same members in "
            "the same order; see members= of ct.AgentData"
        )


def _dense(data: AgentData) -> Floats:
    """Return a copy of the features as float64; refuse sparse features."""
    if data.is_sparse:
        raise DataError(
            "this shift changes values that a sparse matrix does not store: make it dense first, with "
            "data.with_features(data.X.toarray())"
        )
    return data.X.astype(np.float64)


def _groups(group: Any, data: AgentData) -> tuple[Integers, int]:
    """Return the group of each agent, and the number of groups."""
    if group is None:
        return np.arange(data.n), data.n
    array = np.asarray(group)
    if array.shape != (data.n,) or array.dtype.kind not in "iu" or array.min() < 0:
        raise ParameterError(f"group = {group!r}: expected a number from 0 on for each of {data.n} agents")
    return array.astype(np.int64), int(array.max()) + 1


def _drawn(name: str, value: Any, shapes: tuple[tuple[int, ...], ...], draw: Callable[[float], Floats]) -> Floats:
    """Return drawn values if `value` is a number, otherwise the array of values."""
    return _array(name, value, shapes) if np.ndim(value) else draw(nonnegative(name, value))


def _array(name: str, value: Any, shapes: tuple[tuple[int, ...], ...], whole: bool = False) -> Any:
    array = np.asarray(value)
    expected = " or ".join(map(str, shapes))
    if array.shape not in shapes or array.dtype.kind not in ("iu" if whole else "iuf"):
        kind = "whole numbers" if whole else "numbers"
        raise ParameterError(
            f"{name}: found {array.dtype} of shape {array.shape}, expected {kind} of shape {expected}, by group"
        )
    if not np.isfinite(array).all():
        raise ParameterError(f"{name}: expected finite numbers, found {array[~np.isfinite(array)][0]}")
    return array.astype(np.int64 if whole else np.float64)


def _by_column(values: np.ndarray) -> np.ndarray:
    return values[:, None] if values.ndim == 1 else values


# -- shifts of groups, and gradual shifts ----------------------------------------------------------------------------


def clusters(
    data: AgentData,
    groups: int | Sequence[float],
    shift: Callable[..., Shifted],
    *,
    seed: int | np.random.Generator = 0,
    **how: Any,
) -> Shifted:
    """Put agents into groups at random, and shift each group in its own way.

    Parameters
    ----------
    data : AgentData
    groups : int or sequence of float
        Number of groups, of equal size up to one agent; or the groups' shares of the agents.
    shift : callable
        :func:`feature_shift` or :func:`concept_shift`, or a similar function with arguments `group` and `seed`.
    seed : int or Generator
        Seed of the groups and of the shift.
    **how
        Arguments of `shift`.

    Returns
    -------
    Shifted
        The group of each agent is in its `group`.

    Examples
    --------
    Four groups with different names of the digits:

    >>> import coterie as ct
    >>> from sklearn.datasets import load_digits
    >>> data = ct.splits.iid(*load_digits(return_X_y=True), n_agents=20, seed=0)
    >>> found = ct.splits.clusters(data, 4, ct.splits.concept_shift, permute=True, seed=0)
    >>> found
    Shifted(groups=4 (5 agents each), by permute; AgentData(agents=20, rows=1797 (89..90 per agent), ...))
    >>> found.parameters["permute"].shape, np.bincount(found.group).tolist()
    ((4, 10), [5, 5, 5, 5])
    """
    rng = generator(seed)
    shares = numbers("groups", groups) if np.ndim(groups) else np.ones(integer("groups", groups))
    if shares.ndim != 1 or not 1 <= shares.size <= data.n:
        raise ParameterError(f"groups = {groups!r}: expected from 1 to {data.n} groups, as many as there are agents")
    sizes = apportion(np.array([data.n]), shares, np.zeros(shares.size, np.int64), rng)
    if not sizes.all():
        raise ParameterError(f"groups = {groups!r}: group {sizes.argmin()} of {data.n} agents would have none")
    return shift(data, group=rng.permutation(np.repeat(np.arange(shares.size), sizes)), seed=rng, **how)


#: Parameters that can drift, with a function of the final value and the part of the way that is done.
GRADUAL: Mapping[str, Callable[[np.ndarray, float], np.ndarray]] = {
    "turn": lambda angle, part: part * angle,
    "offset": lambda offset, part: part * offset,
    "noise": lambda noise, part: part * noise,
    "scale": lambda scale, part: scale**part,
}


@dataclass(frozen=True, repr=False, eq=False)
class Drift:
    """A sequence of data from before a shift to after it; each is computed when accessed.

    Attributes
    ----------
    data : AgentData
        The data before the shift.
    end : Shifted
        The data after the shift, with groups and parameters.
    steps : int
        Number of steps.
    """

    data: AgentData
    end: Shifted
    steps: int
    _stream: int = 0

    def __len__(self) -> int:
        return self.steps + 1

    def __getitem__(self, step: int) -> AgentData:
        place = step + len(self) if step < 0 else step
        if not 0 <= place <= self.steps:
            raise IndexError(f"step {step} of a drift in {self.steps} steps: they go from 0 to {self.steps}")
        if place == 0:
            return self.data
        partly = {name: GRADUAL[name](value, place / self.steps) for name, value in self.end.parameters.items()}
        return self.end.apply(self.data, partly, self._stream)

    def __iter__(self) -> Iterator[AgentData]:
        return (self[step] for step in range(len(self)))

    def on(self, other: AgentData) -> Drift:
        """Apply the same drift to other rows of these agents, such as test rows; noise is drawn again.

        Examples
        --------
        >>> import coterie as ct
        >>> turning = ct.splits.drift(ct.AgentData([[1.0, 0.0]]), steps=2, turn=[90])
        >>> turning.on(ct.AgentData([[0.0, 2.0]]))[2].X.round(12)
        array([[-2.,  0.]])
        """
        return Drift(other, self.end.on(other), self.steps, 1)

    def changes(self, problem: Problem, every: int) -> list[tuple[int, Problem]]:
        """Return the argument `changes` of ``ct.simulate``: one step after every `every` wakes (or rounds, ...).

        Examples
        --------
        >>> import coterie as ct
        >>> data = ct.AgentData(np.eye(2), y=[1.0, 2.0], agents=[0, 1])
        >>> problem = ct.Problem.personalized(data, ct.graphs.complete(2), loss="squared")
        >>> [moment for moment, _ in ct.splits.drift(data, 3, turn=[90, 90]).changes(problem, every=100)]
        [100, 200, 300]
        """
        integer("every", every)
        return [(step * every, problem.on(data=self[step])) for step in range(1, len(self))]

    def __repr__(self) -> str:
        return f"Drift({self.steps} steps to {self.end!r})"


def drift(
    data: AgentData,
    steps: int,
    shift: Callable[..., Shifted] = feature_shift,
    *,
    seed: int | np.random.Generator = 0,
    **how: Any,
) -> Drift:
    """Apply a shift gradually, in equal steps.

    After step t of T, angles, offsets and noise are t / T of their final values, and factors are raised to the power
    t / T. If features turn and labels do not, the dependence of labels on features turns, too.

    Parameters
    ----------
    data : AgentData
        The data before the shift.
    steps : int
    shift : callable
        :func:`feature_shift`, or :func:`concept_shift` whose `turn` is for regressions.
    seed : int or Generator
        Seed of all draws, which are made once for the whole drift.
    **how
        Arguments of `shift`, with final values. Permutations, flips and quarter turns cannot be gradual, and are
        refused.

    Returns
    -------
    Drift
        ``steps + 1`` data sets, the first of which is `data`; ``drift.changes(problem, every)`` is for ``ct.simulate``.

    Examples
    --------
    >>> import coterie as ct
    >>> data = ct.AgentData([[1.0, 0.0]], y=[1.0])
    >>> turning = ct.splits.drift(data, steps=2, turn=[90])
    >>> [(each.X.round(3) + 0.0).tolist() for each in turning]
    [[[1.0, 0.0]], [[0.707, 0.707]], [[0.0, 1.0]]]
    """
    integer("steps", steps)
    end = shift(data, seed=seed, **how)
    jumps = sorted(set(end.parameters) - set(GRADUAL))
    if jumps or not end.parameters:
        what = f"{jumps[0]} cannot be gradual" if jumps else "no parameter drifts"
        raise ParameterError(f"{what}: expected some of {', '.join(GRADUAL)}")
    if "scale" in end.parameters and end.parameters["scale"].min() <= 0.0:
        raise ParameterError(f"scale = {end.parameters['scale'].min()}: a drift needs positive factors")
    return Drift(data, end, steps)
