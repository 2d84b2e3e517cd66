"""Partial pooling of many agents' rows: fitting the population and all agents' models, and predicting with them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from .._threads import in_threads
from ..core.batches import batches, jobs, padded
from ..data.ids import grouping
from . import designs
from .blocks import AgentBatch, Joint, Summary, times
from .designs import DESIGNS, PLAIN, Design, Given, design_from
from .families import FAMILIES, Family
from .new_agents import LinearModels, NewAgent, best_for_new_agents
from .population import Learner, Population, left_out_loss
from .posterior import posterior
from .results import AroundCommon, Fitted
from .rows import Agents, Grouped, HeldByShards, Models, Ranked, Shard, counted, dense, hold, of_agents, ranking
from .sample import Sample
from .sums import Here, Sums, every, total
from .wide import Wide, fit_wide

#: Maximum number of agents from which the population is learned.
MAX_SAMPLE_AGENTS = 2000
#: Maximum work (rows times squared columns) of fitting a candidate design.
TRIAL_WORK_LIMIT = 2e7
#: Minimum number of agents on which designs are compared.
MIN_COMPARED_AGENTS = 100
#: Maximum number of columns of a dense model; with more, the model is computed in the span of the rows.
MAX_DENSE_COLUMNS = 150
#: With fewer agents, a feature that is constant inside every agent gets no curve: each agent is only one point of it.
MIN_AGENTS_TO_BEND = 60
#: Log evidence, in nats, by which splines or heavy tails must exceed the plain model.
MIN_EVIDENCE_GAIN = 5.0
#: Maximum variance of the logarithm of a predicted count, in units of its usual prior variance.
MAX_COUNT_VARIANCE = 1.5
#: Maximum deviation of an agent's predicted log-count, in usual standard deviations, where its own rows say little.
MAX_COUNT_DEVIATION = 4.0
#: Maximum count of numbers in the rows that are predicted at once.
MAX_PREDICTED_NUMBERS = 4_000_000
#: Approximate count of numbers that are sent at a time about agents whose rows are in other processes.
MAX_SENT_NUMBERS = 8_000_000
#: Number of batches between two reports of progress.
BATCHES_PER_REPORT = 64


class Kept(NamedTuple):
    """What a file keeps of the rows of agents: sums that suffice for their posteriors.

    The rows themselves are not kept, but Hessians and gradients of an agent with few rows may reveal them.
    """

    at: np.ndarray  # (n, q) models at which gradients and Hessians were computed
    slope: np.ndarray  # (n, q) gradients
    hessian: np.ndarray  # (n, q (q + 1) / 2) lower triangles of Hessians
    sizes: np.ndarray  # (n,) number of rows of each agent
    low: np.ndarray  # (n, p) smallest value of every feature
    high: np.ndarray

    @classmethod
    def of(cls, batches: Iterable[Any], population: Population, D: np.ndarray, sizes: np.ndarray, *ranges: Any) -> Kept:
        """Summarise the agents of some batches; `ranges` are the smallest and largest values of their features."""
        (n, q), lower = D.shape, np.tril_indices(D.shape[1])
        slope, hessian = np.zeros((n, q)), np.zeros((n, len(lower[0])))
        for batch in batches:
            k = batch.agents
            T = population.w + D[k]
            slope[k] = batch.gradient(T, population.family, population.s2)
            hessian[k] = batch.hessian(T, population.family, population.s2)[:, lower[0], lower[1]]
        few = sizes[:, None] <= 2  # ranges of one or two rows would be the rows themselves
        low, high = (np.where(few, empty, end) for empty, end in zip((np.inf, -np.inf), ranges, strict=True))
        return cls(population.w + D, slope, hessian, sizes, low, high)

    def some(self, agents: np.ndarray) -> Kept:
        """Return the summary of some agents, which is empty for agents that were added later."""
        old = agents < len(self.sizes)
        parts = []
        for part, empty in zip(self, (0.0, 0.0, 0.0, 0, np.inf, -np.inf), strict=True):
            out = np.full((len(agents), *part.shape[1:]), empty, dtype=part.dtype)
            out[old] = part[agents[old]]
            parts.append(out)
        return Kept(*parts)

    def summary(self, agents: np.ndarray) -> Summary:
        """Return the losses of all agents as quadratics, with the given numbers of the agents."""
        return Summary(agents, self.at, self.slope, _square(self.hessian, self.at.shape[1]))

    def curvature(self) -> np.ndarray:
        """Return the sum of all Hessians."""
        return _square(self.hessian.sum(axis=0), self.at.shape[1])


def _square(lower: np.ndarray, q: int) -> np.ndarray:
    """Return symmetric matrices (..., q, q) from their lower triangles."""
    out, (i, j) = np.zeros((*lower.shape[:-1], q, q)), np.tril_indices(q)
    out[..., i, j] = lower
    out[..., j, i] = lower
    return out


@dataclass(frozen=True)
class Pooled(AroundCommon, Fitted):
    """A fitted model: the population that agents share, and each agent's deviation."""

    design: Design
    population: Population
    new_agent: NewAgent
    D: np.ndarray  # (n, q) deviations
    grouped: Grouped
    kept: Kept | None = None  # replaces rows that a file did not hold
    sampled: bool = True  # whether designs were compared on fewer agents than the population was learned from

    form = "pooled"
    has_intervals = True

    @property
    def w(self) -> np.ndarray:  # type: ignore[override]
        """The common model."""
        return self.population.w

    @property
    def covariance(self) -> np.ndarray:
        """Covariance of deviations: variances (q,), or a matrix (q, q)."""
        return self.population.V

    @property
    def units(self) -> tuple[np.ndarray, np.ndarray]:
        """Mean and scale of the columns, without the ones."""
        return self.design.mean, self.design.scale

    @property
    def source(self) -> np.ndarray:
        """The feature from which each column is made."""
        return self.design.source

    @property
    def curves(self) -> list[int]:
        """The features on which predictions depend by a curve."""
        return self.design.curves

    @property
    def design_name(self) -> str:
        """Name of the design in the estimators."""
        return self.design.name

    @property
    def new_share(self) -> float:
        """Share of one model of all rows in predictions for new agents."""
        return self.new_agent.share

    def features(self) -> np.ndarray | None:
        """Return the rows in the units of their features; None if the model is from a file."""
        return self.grouped.X if self.kept is None else None

    def at_means(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Units (q,), common model (q,) and agents' models (n, q), with intercepts at the means of the columns."""
        unit = self.scale / np.append(self.design.scale, 1.0)
        center = np.append(np.zeros(self.design.size - 1), self.center)
        w = self.population.w
        return unit, w * unit + center, (w + self.D) * unit + center

    def names(self, features: tuple[str, ...]) -> tuple[str, ...]:
        """Return the names of the columns of the model, without the intercept."""
        return self.design.names(features)

    def outside(self, X: np.ndarray, codes: np.ndarray) -> dict[int, float]:
        """Return columns in which most rows lie outside their agents' training range, with the share of these rows.

        Only shares far beyond chance are returned.
        """
        known = np.flatnonzero(codes >= 0)
        if len(known) < 10:
            return {}
        asked, of = np.unique(codes[known], return_inverse=True)
        low, high = self.ranges(asked)
        sizes = self.sizes[asked]
        use = (sizes > 2)[of]
        if use.sum() < 10:
            return {}
        rows, of = dense(X[known[use]]), of[use]
        wide = high[of] > low[of]
        beyond = ((rows < low[of]) | (rows > high[of])) & wide
        share = beyond.sum(axis=0) / np.maximum(wide.sum(axis=0), 1)
        # With m training rows, the share of new rows outside is Beta(2, m - 1), one draw for each agent.
        m, asked_for = sizes.astype(float), np.bincount(of, minlength=len(asked)) / len(of)
        expected = float(asked_for @ (2.0 / (m + 1.0)))
        spread = np.sqrt(asked_for**2 @ (2.0 * np.maximum(m - 1.0, 0.0) / ((m + 1.0) ** 2 * (m + 2.0))))
        beyond_chance = (share > max(0.5, expected + 4.0 * spread)) & (wide.sum(axis=0) >= 10)
        return {int(k): float(share[k]) for k in np.flatnonzero(beyond_chance)}

    @property
    def sizes(self) -> np.ndarray:
        """Number of rows of each agent."""
        sizes = self.grouped.sizes
        if self.kept is None:
            return sizes
        old = len(self.kept.sizes)
        return np.concatenate([sizes[:old] + self.kept.sizes, sizes[old:]])

    def ranges(self, agents: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return smallest and largest values of every column for some agents; infinite for agents without rows."""
        low, high = self.grouped.ranges(agents)
        if self.kept is not None:
            old = self.kept.some(agents)
            return np.minimum(low, old.low), np.maximum(high, old.high)
        return low, high

    def batches(self, agents: np.ndarray) -> Iterator[Any]:
        """Generate batches of what is known of some agents; agents without rows are skipped."""
        if self.kept is None:
            yield from self.grouped.batches(self.design, agents)
            return
        q = self.D.shape[1]
        step = max(1, 1_000_000 // (q * q))
        for first in range(0, len(agents), step):
            some = agents[first : first + step]
            place = np.arange(first, first + len(some))
            old = self.kept.some(some).summary(place)
            later = list(self.grouped.batches(self.design, some))
            if not later:
                yield old
                continue
            # Few agents have later rows: one batch holds all agents, padded to the largest number of later rows.
            width = max(batch.X.shape[1] for batch in later)
            X, y, weight = np.zeros((len(some), width, q)), np.zeros((len(some), width)), np.zeros((len(some), width))
            for batch in later:
                m = batch.X.shape[1]
                X[batch.agents, :m], y[batch.agents, :m], weight[batch.agents, :m] = batch.X, batch.y, batch.weight
            yield Joint(old, AgentBatch(place, X, y, weight))

    def latent(
        self, X: Any, codes: np.ndarray, spread: bool = True, n_jobs: int | None = 1
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return means and variances of the linear predictors of rows; the code -1 stands for a new agent.

        Many rows are processed in parts, agent by agent, by several threads.
        """
        numbers = len(codes) * self.design.size
        if numbers <= MAX_PREDICTED_NUMBERS:
            return self._latent(X, codes, spread)
        order = grouping(codes + 1, self.n + 1)
        mean, variance = np.empty(len(codes)), np.empty(len(codes))

        def work(rows: np.ndarray) -> None:
            mean[rows], variance[rows] = self._latent(X[rows], codes[rows], spread)

        in_threads(work, np.array_split(order, -(-numbers // MAX_PREDICTED_NUMBERS)), n_jobs)
        return mean, variance

    def _latent(self, X: Any, codes: np.ndarray, spread: bool) -> tuple[np.ndarray, np.ndarray]:
        A, population = self.design.columns(dense(X)), self.population
        w, V = population.w, population.V
        new = codes < 0
        new[~new] = self.sizes[codes[~new]] == 0  # members without rows are predicted like new agents
        deviation = np.einsum("ij,ij->i", A, self.D[np.where(new, 0, codes)])
        mean = A @ w + deviation
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
        shift = int(len(agents) - known.sum())  # new agents come first
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
        if population.family.name == "poisson":
            # Columns are in standard units: this is the variance of deviations in a typical row. In a row far from the
            # agent's own rows, a deviation is mostly extrapolation of a straight line, and exp() would magnify it.
            usual = float(population.variances.sum())
            bound = MAX_COUNT_VARIANCE * (usual + float(np.trace(population.cov)))
            variance = np.where(new, variance, np.minimum(variance, bound))
            most = MAX_COUNT_DEVIATION * usual / np.sqrt(np.maximum(np.minimum(variance, usual), 1e-300))
            mean[~new] += (np.clip(deviation, -most, most) - deviation)[~new]
        return mean, np.maximum(variance, 0.0)

    def covariances(self, agents: np.ndarray) -> np.ndarray:
        """Return posterior covariances of some agents' models, (k, q, q), in the units of the design's columns.

        A_i^-1 + (I - J_i) S^-1 (I - J_i)': the uncertainty of the deviation, and of the common model.
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
        """Add rows of known or new agents and update only these agents' posteriors; the population is unchanged."""
        grouped = self.grouped.with_rows(dense(X), (y - self.center) / self.scale, codes, n, weight)
        D = np.vstack([self.D, np.zeros((n - self.n, self.D.shape[1]))])
        found = replace(self, grouped=grouped, D=D)
        touched = np.unique(codes)
        for batch in found.batches(touched):
            k = touched[batch.agents]
            D[k] = posterior(batch, self.population)
        return found

    def keep(self) -> Kept:
        """Summarise the rows of all agents."""
        everyone = np.arange(self.n)
        return Kept.of(self.batches(everyone), self.population, self.D, self.sizes, *self.ranges(everyone))

    def to_arrays(self) -> dict[str, Any]:
        """Return arrays for a file: everything except the rows."""
        population, new_agent, kept = self.population, self.new_agent, self.keep()
        return {
            "design": np.array(self.design.name),
            **self.design.to_arrays(),
            "w": population.w,
            "V": population.V,
            "numbers": np.array([population.r, population.s2, population.log_evidence, population.rounds]),
            "cov": population.cov,
            "log_sd": population.log_sd,
            "stranger_w": new_agent.w,
            "stranger": np.array([new_agent.share, new_agent.inflation, new_agent.residual]),
            "D": self.D,
            **{name: value for name, value in kept._asdict().items() if name != "at"},
        }

    @classmethod
    def from_arrays(cls, fitted: Fitted, arrays: Any) -> Pooled:
        """Return a model from arrays of a file."""
        design, w, D = design_from(arrays), arrays["w"], arrays["D"]
        q = D.shape[1]
        if design.size != q or w.shape != (q,) or arrays["V"].shape not in ((q,), (q, q)):
            raise ValueError(f"population of shape {arrays['V'].shape} for {q} columns, expected ({q},) or ({q}, {q})")
        r, s2, log_evidence, rounds = arrays["numbers"].tolist()
        population = Population(
            fitted.family, w, arrays["V"], r, s2, arrays["cov"], log_evidence, arrays["log_sd"], int(rounds)
        )
        kept = Kept(w + D, *(arrays[name] for name in Kept._fields[1:]))
        if kept.hessian.shape != (len(D), q * (q + 1) // 2):
            raise ValueError(f"Hessians of shape {kept.hessian.shape} for {len(D)} agents and {q} columns")
        nothing = Grouped.nothing(len(D), kept.low.shape[1])
        new_agent = NewAgent(arrays["stranger_w"], *arrays["stranger"].tolist())
        known = {"design": design, "population": population, "new_agent": new_agent, "D": D}
        return cls(**vars(fitted), **known, grouped=nothing, kept=kept, sampled=len(D) > MIN_COMPARED_AGENTS)


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
    """Learn the population and all agents' models for each target, all with one design.

    With more than :data:`MAX_DENSE_COLUMNS` columns, the model is linear and V diagonal, see :mod:`.wide`. ``codes``
    holds the number of the agent of every row; targets are numbers, 0 and 1 for "logistic", or counts for "poisson".
    ``loss`` is a name in :data:`.families.FAMILIES`, or "auto", which chooses between squared and student by the
    evidence; ``design="auto"`` chooses splines by the evidence. A weight of 2 counts as two rows. ``progress`` is
    called with the number of rounds done. ``n_jobs`` is the number of threads, which does not change the result; None
    uses one for each core where there is enough work.
    """
    counter = Counter(progress)
    if X.shape[1] > MAX_DENSE_COLUMNS:
        X, targets, codes, weight = counted(X, targets, codes, weight)
        return [fit_wide(X, y.astype(np.float64, copy=False), codes, n, loss, weight, counter) for y in targets]
    shard = Shard(dense(X), targets, codes, n, weight, n_jobs)
    return fit_agents(AllHere(shard), len(targets), loss, design, deviations, counter)


def fit_agents(
    agents: Agents, outputs: int, loss: str, design: str, deviations: str, counter: Callable[[], None]
) -> list[Pooled]:
    """Fit as :func:`fit` does, with rows in this or other processes, and at most :data:`MAX_DENSE_COLUMNS` columns."""
    family = FAMILIES["squared" if loss == "auto" else loss]
    units = [(0.0, 1.0)] * outputs
    if family.noisy:
        found = (designs.standards_of(HeldByShards(agents, ("labels", k))) for k in range(outputs))
        units = [(float(center[0]), float(scale[0])) for center, scale in found]
    agents.remember("units", Shard.standardise, units)
    agents.each(Shard.standardise, units)
    ranked = rank(agents)
    tasks = [
        _Task(agents, k, *unit, family, deviations, counter, ranked)  # all targets share samples and folds
        for k, unit in enumerate(units)
    ]
    rows, active, weight = total(agents, Shard.facts)
    fit = [name for name, kind in DESIGNS.items() if rows >= kind.least_rows * active]
    tried = designs_of(agents, ranked, fit if design == "auto" else [design], design != "auto")
    name, evidence, held_out = next(iter(tried)), {}, {}
    started: list[dict[str, Learner]] = [{} for _ in tasks]
    sampled = False
    if len(tried) > 1:
        # Designs are compared on the same rows, with no more rows and no higher accuracy than necessary.
        each = TRIAL_WORK_LIMIT / (max(1.0, weight / agents.n) * max(made.size for made in tried.values()) ** 2)
        some = ranked.sample(int(np.clip(each, MIN_COMPARED_AGENTS, MAX_SAMPLE_AGENTS)))
        learners = {key: [task.learner(key, made, some) for task in tasks] for key, made in tried.items()}
        for tol in (1e-1, 3e-3):
            for key in tried:
                evidence[key] = sum(learner.run(tol).result().log_evidence for learner in learners[key])
            gains = {key: evidence[key] - evidence[PLAIN] - margin(family, len(some)) for key in tried if key != PLAIN}
            if min(map(abs, gains.values())) > 10.0 + 0.01 * weight:
                break
        better = [key for key, gain in gains.items() if gain > 0.0]
        if better:
            # The evidence relies on the model, and left-out rows do not: curves must not be worse on left-out rows.
            for key in (PLAIN, *better):
                held_out[key] = sum(left_out_loss(learner, learner.result()) for learner in learners[key])
            name = min(held_out, key=lambda key: held_out[key])
        sampled = len(some) < len(ranked.sample(MAX_SAMPLE_AGENTS))
        if not sampled:
            started = [{key: learners[key][k] for key in tried} for k in range(len(tasks))]
        else:
            for task in tasks:
                task.forget(tried)
    models = [task.pooled(tried, name, evidence, held_out, started[k], loss == "auto") for k, task in enumerate(tasks)]
    return [replace(model, sampled=sampled) for model in models]


def designs_of(agents: Agents, ranked: Ranked, names: list[str], named: bool = False) -> dict[str, Design]:
    """Learn the designs of these names, which the user gave if ``named``; return the plain design if none of them is
    possible.
    """

    def some() -> Sums:
        return hold(
            agents, "values", Shard.hold_values, ranked.sample(MAX_SAMPLE_AGENTS)
        )  # a sample suffices for knots

    given = Given(
        HeldByShards(agents, "rows"),
        some,
        lambda: every(agents, Shard.constant) if agents.n < MIN_AGENTS_TO_BEND else None,
        named,
    )
    made = {name: DESIGNS[name].learn(given) for name in names}
    agents.forget("values")
    found = {name: design for name, design in made.items() if design is not None}
    plain = None if found else DESIGNS[PLAIN].learn(given)
    return found if plain is None else {PLAIN: plain}


def rank(agents: Agents) -> Ranked:
    """Order agents by their sizes and labels, see :func:`.rows.ranking`."""
    sizes, weights, sums = of_agents(agents, Shard.ranks)

    def lengths() -> np.ndarray:
        return of_agents(agents, Shard.lengths, *designs.standards_of(HeldByShards(agents, "rows")))[0]

    return Ranked(ranking(weights, sums, lengths), sizes)


class AllHere(Here):
    """All agents of a fit, held by this process."""

    def __init__(self, shard: Shard):
        super().__init__(shard)
        self.n = shard.rows.n

    def forget(self, name: Any) -> None:
        """Delete what is held under this name."""
        self.held.drop(name)

    def models(self, name: Any, task: int, agents: np.ndarray, design: Design, population: Any, tell: Any) -> Models:
        """Compute all agents' models; for a squared loss, the sample's deviations are known from learning the
        population.
        """
        grouped, D = self.held.tasks[task], np.zeros((self.n, design.size))
        D[agents] = self.held.held[name].D
        if len(agents) < self.n or not population.family.quadratic:
            everybody(self.held, task, design, population, np.arange(self.n), D, tell)
        return Models(D, grouped)


def models_of(agents: Agents, columns: int, task: int, design: Design, population: Population, tell: Any) -> Models:
    """Compute models of agents whose rows stay in other processes, for a limited number of agents at a time."""
    n, q, p = agents.n, design.size, columns
    widths = {"at": q, "slope": q, "hessian": q * (q + 1) // 2, "low": p, "high": p}
    D = np.zeros((n, q))
    kept = Kept(*(np.empty((n, widths[name])) if name in widths else np.empty(n, int) for name in Kept._fields))
    step = max(1, MAX_SENT_NUMBERS // (q + sum(widths.values())))
    for first in range(0, n, step):
        some = np.arange(first, min(first + step, n))
        for place, deviations, found in agents.each(kept_of, task, design, population, some):
            D[some[place]] = deviations
            for whole, part in zip(kept, found, strict=True):
                whole[some[place]] = part
        tell()
    return Models(D, Grouped.nothing(n, p), kept)


def kept_of(shard: Shard, task: int, design: Design, population: Population, agents: np.ndarray) -> tuple[Any, ...]:
    """Return, for the given agents whose rows this shard holds, their places among these, deviations and summaries."""
    place, mine = shard.here(agents)
    grouped, D = shard.tasks[task], np.zeros((len(mine), design.size))
    everybody(shard, task, design, population, mine, D, lambda: None)
    found = grouped.batches(design, mine)
    return place, D, Kept.of(found, population, D, grouped.sizes[mine], *grouped.ranges(mine))


def everybody(
    shard: Shard, task: int, design: Design, population: Population, agents: np.ndarray, D: np.ndarray, tell: Any
) -> None:
    """Compute the deviations of some agents of a shard, each from its own rows, and store them in D."""
    grouped = shard.tasks[task]

    def work(make: Callable[[], AgentBatch]) -> None:
        batch = make()
        D[batch.agents] = posterior(batch, population)

    parts = list(grouped.parts(design, agents))
    for first in range(0, len(parts), BATCHES_PER_REPORT):
        some = parts[first : first + BATCHES_PER_REPORT]
        in_threads(work, some, jobs(shard.n_jobs, len(grouped.y) * design.size))
        for _ in some:
            tell()


@dataclass(frozen=True)
class _Task:
    """One target of a fit."""

    agents: Agents
    number: int
    center: float
    scale: float
    family: Family
    deviations: str
    counter: Callable[[], None]
    ranked: Ranked

    def learner(self, key: str, design: Design, agents: np.ndarray, family: Family | None = None) -> Learner:
        """Return a learner of the population, from the rows of some agents, which shards hold under the key."""
        sums = hold(self.agents, (self.number, key), Shard.hold_sample, self.number, design, agents)
        free = varying(sums, design.size)
        return Learner(sums, len(agents), free, family or self.family, self.deviations, self.counter)

    def forget(self, keys: Iterable[str]) -> None:
        """Delete the samples held under these keys."""
        for key in keys:
            self.agents.forget((self.number, key))

    def pooled(
        self,
        tried: dict[str, Design],
        name: str,
        evidence: dict[str, float],
        held_out: dict[str, float],
        started: dict[str, Learner],
        tails: bool,
    ) -> Pooled:
        """Finish learning the population, continuing a started learner if there is one, then compute all agents'
        models.
        """
        design, straight, linear = tried[name], started.get(PLAIN), tried.get(PLAIN)
        agents = self.ranked.sample(MAX_SAMPLE_AGENTS)
        learner = started.get(name) or self.learner(name, design, agents)
        population = learner.run().result()
        evidence = evidence | {design.name: population.log_evidence}
        key = name
        if tails:
            heavy = self.learner("heavy tails", design, agents, FAMILIES["student"])
            found = heavy.run().result()
            evidence[f"{design.name}, heavy tails"] = found.log_evidence
            if found.log_evidence > population.log_evidence + MIN_EVIDENCE_GAIN:
                population, learner, key = found, heavy, "heavy tails"
        models = LinearModels(design.lines(), np.eye(0)) if name != PLAIN else None
        if models is not None and straight is not None and linear is not None:
            models = LinearModels(models.basis, linear.units(), (straight, straight.result()))
        new_agent = best_for_new_agents(learner, population, self.ranked.folds(agents), models)
        D, grouped, kept = self.agents.models((self.number, key), self.number, agents, design, population, self.counter)
        self.forget((*tried, "heavy tails"))
        known = (population.family, self.center, self.scale, evidence, held_out, design, population, new_agent, D)
        return Pooled(*known, grouped._replace(order=self.ranked.order if kept is None else None), kept)


def margin(family: Family, n: int) -> float:
    """Return the nats by which splines must win; for classes and counts, Laplace's error is about 0.01 an agent."""
    return MIN_EVIDENCE_GAIN if family.noisy else MIN_EVIDENCE_GAIN + 0.0125 * n


class Counter:
    """Counter of rounds over several fits."""

    def __init__(self, progress: Callable[[int], None] | None):
        self.done, self.progress = 0, progress

    def __call__(self) -> None:
        """Count one more round."""
        self.done += 1
        if self.progress is not None:
            self.progress(self.done)


def varying(sums: Sums, q: int) -> np.ndarray:
    """Return the columns that vary inside agents, and the intercept: only these can have personal coefficients.

    The variance of a column that is constant inside every agent cannot be separated from the intercept's variance, and
    would not go to zero by itself.
    """
    inside, square = total(sums, Sample.variation, q)
    return np.append(inside[:-1] > 1e-8 * square[:-1], True)
