"""Partial pooling of many agents' rows: the population, everybody's own model, and what is predicted with them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from .._threads import in_threads
from ..core.batches import batches, jobs, padded
from ..data.ids import grouping, is_sorted
from . import designs
from .blocks import Batch, Joint, Summary, one_plus, times
from .designs import Design
from .families import FAMILIES, Family, Student
from .new_agents import FOLDS, LinearModels, NewAgent, best_for_new_agents
from .population import Learner, Population, left_out_loss, solve
from .results import Fitted
from .wide import Wide, dense, fit_wide

#: Agents that the population is learned from, at most: it belongs to all of them alike.
SAMPLE = 2000
#: Rows times squared columns of a design that is only tried, at most.
TRIAL = 2e7
#: With more columns than this, the model is found in the span of the rows.
WIDE = 150
#: With fewer agents than this, a feature that is constant inside each of them is not bent: they are its only points.
MANY = 60
#: Nats by which splines, or heavy tails, must win.
MARGIN = 5.0
#: Numbers in the rows that are predicted at once, at most.
AT_ONCE = 4_000_000
#: Batches between two words about progress.
WORD = 64
#: Newton steps of one agent's posterior, at most, and when they end.
STEPS, TOLERANCE = 50, 1e-9


class Grouped(NamedTuple):
    """Rows of features and labels, those of one agent side by side."""

    X: np.ndarray  # (rows, p)
    y: np.ndarray  # (rows,) in standard units
    weight: np.ndarray | None  # (rows,)
    start: np.ndarray  # (n + 1,) where the rows of each agent begin
    order: np.ndarray | None = None  # agents as ranked() has them

    @classmethod
    def of(cls, X: np.ndarray, y: np.ndarray, codes: np.ndarray, n: int, weight: np.ndarray | None) -> Grouped:
        """A copy, from the number of the agent of every row: what is given may change later."""
        start = np.concatenate([[0], np.cumsum(np.bincount(codes, minlength=n))])
        if is_sorted(codes):
            return cls(X.copy(), y.copy(), None if weight is None else weight.copy(), start)
        order = grouping(codes, n)
        return cls(X[order], y[order], None if weight is None else weight[order], start)

    @property
    def n(self) -> int:
        """How many agents."""
        return len(self.start) - 1

    @property
    def sizes(self) -> np.ndarray:
        """Rows of each agent."""
        return np.diff(self.start)

    @property
    def codes(self) -> np.ndarray:
        """The number of the agent of every row."""
        return np.repeat(np.arange(self.n), self.sizes)

    @property
    def total(self) -> float:
        """How many rows; a weight of 2 counts as two."""
        return float(len(self.y) if self.weight is None else self.weight.sum())

    def batches(self, design: Design, agents: np.ndarray) -> Iterator[Batch]:
        """The rows of some agents, as the design has them; agents are numbered as they are listed."""
        return (make() for make in self.parts(design, agents))

    def parts(self, design: Design, agents: np.ndarray) -> Iterator[Callable[[], Batch]]:
        """The same batches, none of them made yet: a thread makes its own, so that few are there at a time."""
        sizes, start = self.sizes[agents], self.start[agents]
        for k, width in batches(sizes, design.size):
            yield partial(self._batch, design, k, start[k], sizes[k], width)

    def _batch(self, design: Design, agents: np.ndarray, start: np.ndarray, sizes: np.ndarray, width: int) -> Batch:
        rows, real = padded(start, sizes, width)
        X = design.columns(self.X[rows.ravel()]).reshape(*rows.shape, -1)
        weight = real.astype(float) if self.weight is None else np.where(real, self.weight[rows], 0.0)
        return Batch(agents, X, self.y[rows], weight)

    def constant(self) -> np.ndarray:
        """Columns that are constant inside every agent."""
        first = self.X[np.minimum(self.start[:-1], max(0, len(self.X) - 1))]
        return ~np.any(np.repeat(first, self.sizes, axis=0) != self.X, axis=0)

    def rows(self, agents: np.ndarray) -> Any:
        """The rows of some agents; all of them, in place, if these are all agents."""
        if len(agents) == self.n:
            return slice(None)
        mine = np.zeros(self.n, bool)
        mine[agents] = True
        return np.repeat(mine, self.sizes)

    def sample(self, max_agents: int) -> np.ndarray:
        """At most so many agents, evenly over the order of their sizes and labels, whatever they are called."""
        ranked = self.ranked()
        ranked = ranked[self.sizes[ranked] > 0]  # nobody learns from agents without rows
        if len(ranked) > max_agents:
            ranked = ranked[np.linspace(0, len(ranked) - 1, max_agents).astype(int)]
        return np.sort(ranked)

    def folds(self, agents: np.ndarray) -> np.ndarray:
        """The fold of each of some agents, dealt out in the order of their sizes and labels."""
        rank = np.empty(self.n, dtype=np.int64)
        rank[self.ranked()] = np.arange(self.n)
        return np.argsort(np.argsort(rank[agents])) % min(FOLDS, len(agents))

    def ranked(self, n_jobs: int | None = 1) -> np.ndarray:
        """Agents in the order of their sizes, of their labels and, where these are alike, of their features.

        Whatever the units and the order of rows, so that nothing that is chosen by it depends on them.
        """
        if self.order is not None:
            return self.order
        weight = np.ones(1) if self.weight is None else self.weight
        sizes = self.sizes if self.weight is None else self._sums(weight)
        sums = np.abs(self._sums(weight * self.y))
        order = np.lexsort((sums, sizes))
        if np.all((np.diff(sums[order]) != 0.0) | (np.diff(sizes[order]) != 0)):
            return order
        return np.lexsort((self._sums(weight * self.lengths(n_jobs)), sums, sizes))

    def lengths(self, n_jobs: int | None = 1) -> np.ndarray:
        """Squared length of every row in standard units; in blocks, so that no other copy of X is made."""
        mean, scale = designs.standards(self.X, self.weight, n_jobs)
        out = np.empty(len(self.y))

        def measure(block: slice) -> None:
            out[block] = np.sum(((self.X[block] - mean) / scale) ** 2, axis=1)

        in_threads(measure, designs.blocks_of(self.X), n_jobs)
        return out

    def _sums(self, values: np.ndarray) -> np.ndarray:
        """Over the rows of each agent, without the noise of rounding."""
        return np.round(np.add.reduceat(np.append(values, 0.0), self.start[:-1]) * (self.sizes > 0), 9)


class Kept(NamedTuple):
    """What a file keeps of the rows of agents: enough for their posteriors.

    Not the rows; but Hessians and gradients of an agent with few rows tell what these were.
    """

    summary: Summary
    sizes: np.ndarray  # (n,) rows of each agent
    low: np.ndarray  # (n, p) least value of every feature
    high: np.ndarray

    def some(self, agents: np.ndarray, width: int) -> Kept:
        """Of some agents; nothing of those that came later."""
        old = agents < len(self.sizes)
        parts = []
        for part, empty in (
            (self.sizes, 0),
            (self.low, np.inf),
            (self.high, -np.inf),
            *((x, 0.0) for x in self.summary[1:]),
        ):
            out = np.full((len(agents), *part.shape[1:]), empty, dtype=part.dtype)
            out[old] = part[agents[old]]
            parts.append(out)
        return Kept(Summary(np.arange(width, width + len(agents)), *parts[3:]), *parts[:3])


@dataclass(frozen=True)
class Pooled(Fitted):
    """A fitted model: what all agents share, and how each of them deviates."""

    design: Design
    population: Population
    new_agent: NewAgent
    D: np.ndarray  # (n, q) deviations
    grouped: Grouped
    kept: Kept | None = None  # in place of rows that a file did not hold

    @property
    def design_name(self) -> str:
        """Either "linear" or "additive"."""
        return self.design.name

    @property
    def log_evidence(self) -> float:
        """Of the rows that the population was learned from."""
        return self.population.log_evidence

    @property
    def rounds(self) -> int:
        """Steps of the strengths."""
        return self.population.rounds

    @property
    def s2(self) -> float:
        """Variance of the noise, in standard units."""
        return self.population.s2

    @property
    def n(self) -> int:
        """How many agents."""
        return len(self.D)

    def coefficients(self) -> tuple[np.ndarray, np.ndarray]:
        """Common model (q,) and models of the agents (n, q), for columns of the design before it scales them.

        The intercept is last.
        """
        both = self.population.w + np.vstack([np.zeros(self.D.shape[1]), self.D])
        slopes = both[:, :-1] / self.design.scale
        intercepts = both[:, -1] - slopes @ self.design.mean
        out = np.column_stack([slopes, intercepts]) * self.scale
        out[:, -1] += self.center
        return out[0], out[1:]

    def names(self, features: tuple[str, ...]) -> tuple[str, ...]:
        """Of the columns of the model, without the intercept."""
        bent = [f"{features[k]} spline {j}" for k, spline in self.design.splines.items() for j in range(spline.size)]
        return (*(name for k, name in enumerate(features) if k not in self.design.splines), *bent)

    def variances(self) -> tuple[np.ndarray, np.ndarray]:
        """Variances of deviations in the units of :meth:`coefficients`, and the sd of their logarithms, (q,).

        That of the intercept, the last, is where the columns have their means.
        """
        unit = self.scale / np.append(self.design.scale, 1.0)
        return self.population.variances * unit**2, self.population.log_sd

    def outside(self, X: np.ndarray, codes: np.ndarray) -> dict[int, float]:
        """Columns in which most rows lie outside the range of their agents' own, and what share of them does.

        Only what is far beyond chance is worth a word.
        """
        known = np.flatnonzero(codes >= 0)
        if len(known) < 10:
            return {}
        asked, of = np.unique(codes[known], return_inverse=True)
        low, high = self.ranges(asked)
        sizes = self.sizes()[asked]
        use = (sizes > 2)[of]
        if use.sum() < 10:
            return {}
        rows, of = dense(X[known[use]]), of[use]
        wide = high[of] > low[of]
        beyond = ((rows < low[of]) | (rows > high[of])) & wide
        share = beyond.sum(axis=0) / np.maximum(wide.sum(axis=0), 1)
        # Of m own rows, the share of others outside is Beta(2, m - 1), one draw for each agent.
        m, asked_for = sizes.astype(float), np.bincount(of, minlength=len(asked)) / len(of)
        chance = float(asked_for @ (2.0 / (m + 1.0)))
        spread = np.sqrt(asked_for**2 @ (2.0 * np.maximum(m - 1.0, 0.0) / ((m + 1.0) ** 2 * (m + 2.0))))
        beyond_chance = (share > max(0.5, chance + 4.0 * spread)) & (wide.sum(axis=0) >= 10)
        return {int(k): float(share[k]) for k in np.flatnonzero(beyond_chance)}

    def sizes(self) -> np.ndarray:
        """Rows of each agent."""
        sizes = self.grouped.sizes
        return sizes if self.kept is None else sizes + self.kept.some(np.arange(self.n), 0).sizes

    def ranges(self, agents: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Least and largest value of every column in the rows of some agents, who must have rows to have a range."""
        low = np.full((len(agents), self.grouped.X.shape[1]), np.inf)
        high = -low
        if self.kept is not None:
            _, _, low, high = self.kept.some(agents, 0)
        sizes, start = self.grouped.sizes[agents], self.grouped.start[agents]
        for k, width in batches(sizes, low.shape[1]):
            rows, _ = padded(start[k], sizes[k], width)  # padding repeats the first row
            low[k] = np.minimum(low[k], self.grouped.X[rows].min(axis=1))
            high[k] = np.maximum(high[k], self.grouped.X[rows].max(axis=1))
        return low, high

    def batches(self, agents: np.ndarray) -> Iterator[Any]:
        """What is known of some agents, in batches; those of whom nothing is are left out."""
        if self.kept is None:
            yield from self.grouped.batches(self.design, agents)
            return
        q = self.D.shape[1]
        step = max(1, 1_000_000 // (q * q))
        for first in range(0, len(agents), step):
            some = agents[first : first + step]
            old = self.kept.some(some, first).summary
            place = old.agents
            later = list(self.grouped.batches(self.design, some))
            if not later:
                yield old
                continue
            # One batch for all of them, as wide as the widest: few agents have later rows.
            width = max(batch.X.shape[1] for batch in later)
            X, y, weight = np.zeros((len(some), width, q)), np.zeros((len(some), width)), np.zeros((len(some), width))
            for batch in later:
                m = batch.X.shape[1]
                X[batch.agents, :m], y[batch.agents, :m], weight[batch.agents, :m] = batch.X, batch.y, batch.weight
            yield Joint(old, Batch(place, X, y, weight))

    def latent(
        self, X: Any, codes: np.ndarray, spread: bool = True, n_jobs: int | None = 1
    ) -> tuple[np.ndarray, np.ndarray]:
        """Means and variances of the linear predictors of rows of agents; -1 is an agent never met.

        Many rows are taken in parts, agent by agent, by several threads.
        """
        numbers = len(codes) * self.design.size
        if numbers <= AT_ONCE:
            return self._latent(X, codes, spread)
        order = grouping(codes + 1, self.n + 1)
        mean, variance = np.empty(len(codes)), np.empty(len(codes))

        def work(rows: np.ndarray) -> None:
            mean[rows], variance[rows] = self._latent(X[rows], codes[rows], spread)

        in_threads(work, np.array_split(order, -(-numbers // AT_ONCE)), n_jobs)
        return mean, variance

    def _latent(self, X: Any, codes: np.ndarray, spread: bool) -> tuple[np.ndarray, np.ndarray]:
        A, population = self.design.columns(dense(X)), self.population
        w, V = population.w, population.V
        new = codes < 0
        new[~new] = self.sizes()[codes[~new]] == 0  # of members without rows, no more is known than of new agents
        mean = A @ w + np.einsum("ij,ij->i", A, self.D[np.where(new, 0, codes)])
        mean[new] = A[new] @ self.new_agent.w
        if not spread:
            return mean, np.zeros(len(mean))
        # x' (V - V C V) x + u' S^-1 u, u = x - C V x; C = 0 for agents without rows.
        VA = times(V, A)
        CVA = np.zeros_like(A)
        agents, of = np.unique(codes, return_inverse=True)
        known = agents >= 0
        asked = np.bincount(of, minlength=len(agents))
        order = np.argsort(of, kind="stable")
        start = np.concatenate([[0], np.cumsum(asked)])[:-1]
        shift = int(len(agents) - known.sum())  # agents never met come first
        for batch in self.batches(agents[known]):
            k = batch.agents + shift
            block = batch.block(w + self.D[agents[k]], population.family, population.s2, V)
            for part, width in batches(asked[k], A.shape[1]):
                place, real = padded(start[k[part]], asked[k[part]], width)
                rows = order[place]
                found = block.some(part).rows(VA[rows])
                CVA[rows[real]] = found[real]
        u = A - CVA
        variance = np.einsum("ij,ij->i", VA, A - CVA) + np.einsum("ij,ij->i", u @ population.cov, u)
        variance[new] = self.new_agent.variance(A[new], population)
        return mean, np.maximum(variance, 0.0)

    def covariances(self, agents: np.ndarray) -> np.ndarray:
        """Posterior covariances of the models of some agents, (k, q, q), in the units of the design's columns.

        A_i^-1 + (I - J_i) S^-1 (I - J_i)': what is not known of the deviation, and of the common model.
        """
        population, q = self.population, self.D.shape[1]
        V = population.V if population.V.ndim == 2 else np.diag(population.V)
        VC = np.zeros((len(agents), q, q))  # the gains J_i; zero for agents without rows
        for batch in self.batches(agents):
            k = batch.agents
            block = batch.block(population.w + self.D[agents[k]], population.family, population.s2, population.V)
            VC[k] = block.rows(np.broadcast_to(V, (len(k), q, q)))
        left = np.eye(q) - VC
        out = left @ V + left @ population.cov @ left.transpose(0, 2, 1)
        return 0.5 * (out + out.transpose(0, 2, 1))

    def with_rows(self, X: np.ndarray, y: np.ndarray, codes: np.ndarray, n: int, weight: np.ndarray | None) -> Pooled:
        """More rows, of agents met and of new ones: their own posteriors, nobody else's; the population stays."""
        old, X = self.grouped, dense(X)
        both = None
        if old.weight is not None or weight is not None:
            parts = zip((old.weight, weight), (old.y, y), strict=True)
            both = np.concatenate([np.ones(len(labels)) if given is None else given for given, labels in parts])
        labels = np.concatenate([old.y, (y - self.center) / self.scale])
        grouped = Grouped.of(np.concatenate([old.X, X]), labels, np.concatenate([old.codes, codes]), n, both)
        D = np.vstack([self.D, np.zeros((n - self.n, self.D.shape[1]))])
        found = replace(self, grouped=grouped, D=D)
        touched = np.unique(codes)
        for batch in found.batches(touched):
            k = touched[batch.agents]
            D[k] = posterior(batch, self.population)
        return found

    def summary(self) -> Summary:
        """Models of everybody, with gradients and Hessians of their losses there."""
        n, q = self.D.shape
        slope, H = np.zeros((n, q)), np.zeros((n, q, q))
        for batch in self.batches(np.arange(n)):
            k = batch.agents
            T = self.population.w + self.D[k]
            slope[k] = batch.gradient(T, self.population.family, self.population.s2)
            H[k] = batch.hessian(T, self.population.family, self.population.s2)
        return Summary(np.arange(n), self.population.w + self.D, slope, H)

    def to_arrays(self) -> dict[str, Any]:
        """For a file: everything but the rows."""
        population, new_agent, summary = self.population, self.new_agent, self.summary()
        lower = np.tril_indices(self.D.shape[1])
        low, high = self.ranges(np.arange(self.n))
        return {
            **self.design.to_arrays(),
            "w": population.w,
            "V": population.V,
            "numbers": np.array([population.r, population.s2, population.log_evidence, population.rounds]),
            "cov": population.cov,
            "log_sd": population.log_sd,
            "stranger_w": new_agent.w,
            "stranger": np.array([new_agent.share, new_agent.inflation, new_agent.residual]),
            "D": self.D,
            "slope": summary.slope,
            "hessian": summary.H[:, lower[0], lower[1]],
            "sizes": self.sizes(),
            # What would be rows themselves is left out.
            "low": np.where(self.sizes()[:, None] > 2, low, np.inf),
            "high": np.where(self.sizes()[:, None] > 2, high, -np.inf),
        }

    @classmethod
    def from_arrays(cls, fitted: Fitted, arrays: Any) -> Pooled:
        """Back from a file."""
        design, w, D = Design.from_arrays(arrays), arrays["w"], arrays["D"]
        (n, q), lower = D.shape, np.tril_indices(D.shape[1])
        if design.size != q or w.shape != (q,) or arrays["V"].shape not in ((q,), (q, q)):
            raise ValueError(f"a population of {arrays['V'].shape} for {q} columns")
        r, s2, log_evidence, rounds = arrays["numbers"].tolist()
        population = Population(
            fitted.family, w, arrays["V"], r, s2, arrays["cov"], log_evidence, arrays["log_sd"], int(rounds)
        )
        H = np.zeros((n, q, q))
        H[:, lower[0], lower[1]] = arrays["hessian"]
        H[:, lower[1], lower[0]] = arrays["hessian"]
        summary = Summary(np.arange(n), w + D, arrays["slope"], H)
        kept = Kept(summary, arrays["sizes"], arrays["low"], arrays["high"])
        nothing = Grouped(np.empty((0, arrays["low"].shape[1])), np.empty(0), None, np.zeros(n + 1, dtype=np.int64))
        new_agent = NewAgent(arrays["stranger_w"], *arrays["stranger"].tolist())
        return cls(
            **vars(fitted), design=design, population=population, new_agent=new_agent, D=D, grouped=nothing, kept=kept
        )


def posterior(batch: Any, population: Population) -> np.ndarray:
    """Deviations of the agents of a batch given the population, by Newton's method."""
    family, w, V, s2 = population.family, population.w, population.V, population.s2
    D = np.zeros((len(batch.agents), len(w)))
    if isinstance(family, Student):  # it may have several modes: the one that squared errors lead to
        D = posterior(batch, population._replace(family=FAMILIES["squared"]))
    if isinstance(batch, Batch) and batch.X.shape[1] < batch.X.shape[2]:
        return _posterior_in_rows(batch, population, D)
    a = solve(V, D)
    for _ in range(STEPS):
        gradient = batch.gradient(w + D, family, s2)
        block = batch.block(w + D, family, s2, V)
        da = block.apply(times(V, gradient) + D) - gradient - a
        dD = times(V, da)
        if family.quadratic:
            return D + dD

        def value(t: Any, D: np.ndarray = D, a: np.ndarray = a, dD: np.ndarray = dD, da: np.ndarray = da) -> np.ndarray:
            own = 0.5 * np.sum((a + t * da) * (D + t * dD), axis=1)
            return batch.loss(w + D + t * dD, family, s2) + own

        t = _steps(value, len(D))
        a, D = a + t * da, D + t * dD
        if np.abs(t * dD).max(initial=0.0) < TOLERANCE:
            break
    return D


def _posterior_in_rows(batch: Batch, population: Population, D: np.ndarray) -> np.ndarray:
    """The same in the span of the rows, d = V X' alpha: a step costs m^3, whatever the number of columns."""
    family, s2 = population.family, population.s2
    VX = times(population.V, batch.X)
    gram = np.matmul(VX, batch.X.transpose(0, 2, 1))
    base = batch.X @ population.w
    z = base + batch.latent(D)
    alpha = np.zeros_like(base)
    if isinstance(family, Student):  # where squared errors led to
        alpha = batch.weight * (batch.y - z) / s2
    for _ in range(STEPS):
        u = np.sqrt(batch.weight * family.curvature(z, s2))
        b = u * u * (z - base) - batch.weight * family.slope(z, batch.y, s2)
        right = u * np.matmul(gram, b[..., None])[..., 0]
        new = b - u * np.linalg.solve(one_plus(gram, u), right[..., None])[..., 0]
        step = new - alpha
        dz = np.matmul(gram, new[..., None])[..., 0] + base - z

        def value(t: Any, z: np.ndarray = z, alpha: np.ndarray = alpha, dz: Any = dz, step: Any = step) -> np.ndarray:
            there = z + t * dz
            own = 0.5 * np.sum((alpha + t * step) * (there - base), axis=1)
            return (batch.weight * family.loss(there, batch.y, s2)).sum(axis=1) + own

        t = 1.0 if family.quadratic else _steps(value, len(z))
        z, alpha = z + t * dz, alpha + t * step
        if family.quadratic or np.abs(t * dz).max(initial=0.0) < TOLERANCE:
            break
    return np.matmul(alpha[:, None, :], VX)[:, 0]


def _steps(value: Callable[[Any], np.ndarray], k: int) -> np.ndarray:
    """For each agent, 1 halved until its objective does not rise."""
    here, t = value(0.0), np.ones((k, 1))
    for _ in range(12):
        worse = ~(value(t) <= here + 1e-9 * np.abs(here))
        if not worse.any():
            break
        t[worse] *= 0.5
    return t


def fit(
    X: np.ndarray,
    targets: list[np.ndarray],
    codes: np.ndarray,
    n: int,
    loss: str = "squared",
    design: str = "auto",
    deviations: str = "full",
    weight: np.ndarray | None = None,
    progress: Callable[[int], None] | None = None,
    n_jobs: int | None = 1,
) -> list[Pooled] | list[Wide]:
    """Learn the population, and everybody's model, of each target; all of them in one design.

    With more than :data:`WIDE` columns, the model is linear and V diagonal, see :mod:`.wide`. ``codes`` numbers the
    agent of every row; targets are numbers, 0 and 1 for "logistic", counts for "poisson". ``loss`` is a name of
    :data:`.families.FAMILIES`, or "auto": squared, or student where evidence asks for it; ``design="auto"`` has splines
    where evidence asks for them. A weight of 2 counts as two rows. ``progress`` gets the number of rounds done.
    ``n_jobs`` threads work, which changes no result; None: one for each core where there is enough work.
    """
    family = FAMILIES["squared" if loss == "auto" else loss]
    counter = _Counter(progress)
    if weight is not None and not weight.all():  # rows that count nothing are no rows
        there = weight > 0.0
        X, targets, codes, weight = X[there], [y[there] for y in targets], codes[there], weight[there]
    if X.shape[1] > WIDE:
        return [fit_wide(X, y.astype(np.float64, copy=False), codes, n, loss, weight, counter) for y in targets]
    X = dense(X)
    rows_ = Grouped.of(X, np.arange(len(codes)), codes, n, weight)  # once: all targets are labels of the same rows
    tasks = [_Task(rows_, y, weight, family, deviations, counter, n_jobs) for y in targets]
    threads = jobs(n_jobs, X.size)
    order = tasks[0].grouped.ranked(threads)
    for task in tasks:  # samples and folds are the same for all of them
        task.grouped = task.grouped._replace(order=order)
    grouped = tasks[0].grouped
    tried: dict[str, Design] = {}
    if design != "additive":
        tried["linear"] = designs.linear(grouped.X, grouped.weight, threads)
    # Two rows an agent cannot tell a curve from noise.
    if design == "additive" or (design == "auto" and len(grouped.y) >= 3 * np.count_nonzero(grouped.sizes)):
        rows = grouped.rows(grouped.sample(SAMPLE))  # knots and scales do not need everybody
        weight_ = None if grouped.weight is None else grouped.weight[rows]
        bent = designs.additive(grouped.X[rows], weight_, grouped.constant() if n < MANY else None)
        if bent is not None:
            tried["additive"] = bent
        elif not tried:
            tried["linear"] = designs.linear(grouped.X, grouped.weight, threads)
    name, evidence, held_out = next(iter(tried)), {}, {}
    started: list[dict[str, Learner]] = [{} for _ in tasks]
    if len(tried) > 1:
        # Evidence is compared on the same rows, on no more of them and no more exactly than it takes.
        each = TRIAL / (max(1.0, grouped.total / n) * tried["additive"].size ** 2)
        agents = grouped.sample(int(np.clip(each, 100, SAMPLE)))
        learners = {key: [task.learner(made, agents) for task in tasks] for key, made in tried.items()}
        for tol in (1e-1, 3e-3):
            for key in tried:
                evidence[key] = sum(learner.run(tol).result().log_evidence for learner in learners[key])
            gain = evidence["additive"] - evidence["linear"] - margin(family, len(agents))
            if abs(gain) > 10.0 + 0.01 * grouped.total:
                break
        name = "additive" if gain > 0.0 else "linear"
        if gain > 0.0:
            # Evidence trusts the model; rows left out one at a time do not. Curves must not be worse there.
            for key in tried:
                held_out[key] = sum(left_out_loss(learner, learner.result()) for learner in learners[key])
            name = min(held_out, key=lambda key: held_out[key])
        if len(agents) == len(grouped.sample(SAMPLE)):
            started = [{key: learners[key][k] for key in tried} for k in range(len(tasks))]
    return [task.pooled(tried, name, evidence, held_out, started[k], loss == "auto") for k, task in enumerate(tasks)]


class _Task:
    """One target of a fit."""

    def __init__(
        self,
        rows: Grouped,  # whose labels are their places in y
        y: np.ndarray,
        weight: np.ndarray | None,  # in the order of y
        family: Family,
        deviations: str,
        counter: _Counter,
        n_jobs: int | None,
    ):
        self.family, self.deviations, self.counter, self.n_jobs = family, deviations, counter, n_jobs
        self.center, self.scale = 0.0, 1.0
        y = y.astype(np.float64, copy=False)
        if family.noisy:
            mean, spread = designs.standards(y[:, None], weight)
            self.center, self.scale = float(mean[0]), float(spread[0])
        self.grouped = rows._replace(y=((y - self.center) / self.scale)[rows.y])

    def learner(self, design: Design, agents: np.ndarray, family: Family | None = None) -> Learner:
        """Of the population, from the rows of some agents."""
        parts = list(self.grouped.batches(design, agents))
        free = varying(parts, design.size)
        return Learner(parts, len(agents), free, family or self.family, self.deviations, self.counter, self.n_jobs)

    def pooled(
        self,
        tried: dict[str, Design],
        name: str,
        evidence: dict[str, float],
        held_out: dict[str, float],
        started: dict[str, Learner],
        tails: bool,
    ) -> Pooled:
        """The population to the end, from where it was started; and then everybody."""
        design, straight, linear = tried[name], started.get("linear"), tried.get("linear")
        agents, grouped = self.grouped.sample(SAMPLE), self.grouped
        learner = started.get(name) or self.learner(design, agents)
        population = learner.run().result()
        evidence = evidence | {design.name: population.log_evidence}
        if tails:
            heavy = self.learner(design, agents, FAMILIES["student"])
            found = heavy.run().result()
            evidence[f"{design.name}, heavy tails"] = found.log_evidence
            if found.log_evidence > population.log_evidence + MARGIN:
                population, learner = found, heavy
        models = LinearModels(design.lines(), np.eye(0)) if design.splines else None
        if models is not None and straight is not None and linear is not None:
            models = LinearModels(models.basis, linear.units(), (straight, straight.result()))
        new_agent = best_for_new_agents(learner, population, grouped.folds(agents), models)
        D = np.zeros((grouped.n, design.size))
        D[agents] = learner.D
        if len(agents) < grouped.n or not population.family.quadratic:
            self._everybody(design, population, D)
        return Pooled(
            population.family, self.center, self.scale, evidence, held_out, design, population, new_agent, D, grouped
        )

    def _everybody(self, design: Design, population: Population, D: np.ndarray) -> None:
        """The deviations of all agents, each from its own rows: into D."""

        def work(make: Callable[[], Batch]) -> None:
            batch = make()
            D[batch.agents] = posterior(batch, population)

        parts = list(self.grouped.parts(design, np.arange(self.grouped.n)))
        n_jobs = jobs(self.n_jobs, len(self.grouped.y) * design.size)
        for first in range(0, len(parts), WORD):
            some = parts[first : first + WORD]
            in_threads(work, some, n_jobs)
            for _ in some:
                self.counter()


def margin(family: Family, n: int) -> float:
    """Nats by which splines must win; Laplace's evidence of classes and counts is off by about a hundredth an agent."""
    return MARGIN if family.noisy else MARGIN + 0.0125 * n


class _Counter:
    """Counts rounds over several fits."""

    def __init__(self, progress: Callable[[int], None] | None):
        self.done, self.progress = 0, progress

    def __call__(self) -> None:
        self.done += 1
        if self.progress is not None:
            self.progress(self.done)


def varying(parts: list[Batch], q: int) -> np.ndarray:
    """Columns that vary inside agents, and the intercept: only these can have personal coefficients.

    A column that is constant inside every agent would share the intercept's variance for ever: its own does not go to
    zero by itself.
    """
    inside, total = np.zeros(q), np.zeros(q)
    for batch in parts:
        weight = batch.weight[..., None]
        mean = np.sum(weight * batch.X, axis=1, keepdims=True) / np.maximum(weight.sum(axis=1, keepdims=True), 1e-300)
        inside += np.sum(weight * (batch.X - mean) ** 2, axis=(0, 1))
        total += np.sum(weight * batch.X**2, axis=(0, 1))
    return np.append(inside[:-1] > 1e-8 * total[:-1], True)
