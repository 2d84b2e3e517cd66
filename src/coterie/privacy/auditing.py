"""The audit: does what an agent sends tell more about one example than its plan allows?

The audit plays the attacker. It puts examples of its own, canaries, into the data of one agent, lets that agent run as
a real peer, sends it whatever messages it likes, and reads nothing but the messages that come back. Each canary is one of
two, by a fair coin; from the messages, the attacker guesses which. If it guesses right too often, the claim is false.

**The test.** Differential privacy with the profile delta(eps) bounds every way of guessing, one that may abstain too:

    P(right) - e^eps P(wrong)  <=  delta(eps)        for every eps.

Half of the runs teach the attacker: a linear discriminant of all messages of a run, and for every eps the scores at
which to guess. The other half is counted, and Clopper-Pearson bounds on how often it guesses, and on how often it is
then right, make a lower bound of the left side, the *leak*. All eps and all scenarios together give a false alert with
probability ``error`` at most.

**The canaries.** Each is a row +v or -v with a label so large that its gradient is clipped wherever the model is: two
neighbouring datasets are as far apart as the mechanism lets them be. The directions v are orthogonal, so there is one
canary for each feature in every run. Gaussian noise is independent in orthogonal directions, any other that is drawn
for each coordinate is so along the axes: these trials are independent. In the dense scenario of Laplace noise they are
only uncorrelated. At an eps with delta(eps) = 0 that does not matter, as each coin, whatever is known of all others, is
guessed right with probability e^eps / (1 + e^eps) at most (Steinke, Nasr, Jagielski, 2023); at others, the right code
leaks far less there than is claimed.

===============  ======================================================================================================
scenario         what it shows
===============  ======================================================================================================
restart          the peer is thrown away and made anew, with the same ledger, after every T wakes, 4 T wakes in all: a
                 budget that comes back; and too little noise in general
memory           T + 2 wakes in a row, while the neighbour stays where it is: a state without noise
noise reuse      the neighbour's messages pull the model to and fro, so that canaries count in one release and not in the
                 next: noise that was used before
huge norm        one canary in eight is 10^6 times as long as it may be, and the others are short: clipping that is
                 missing, or is of the sum
dense            v is a row of a Hadamard matrix: clipping in the wrong norm. L2 clipping with Laplace noise shows in a
                 plan of one release. In T = 5 releases of epsilon 1 it is truly (1, 0.003)-DP where (1, 0) is claimed:
                 that would take a million trials to see
step size        one example of length 1 or 10^6, with the same clipped gradient: steps that are set by the data
===============  ======================================================================================================
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy.linalg import hadamard
from scipy.special import betaincinv

from .. import _checks
from ..accounting.plans import Plan
from ..core.arrays import AgentArrays
from ..core.linear import frozen
from ..core.messages import Average, lengths_of, parts_of
from ..core.methods.boosting import STEP, WHOLE
from ..core.wrap.learned import Learned
from ..data import AgentData
from ..engines.arrays import arrays_of, part_of
from ..engines.peer import Peer
from ..engines.wire import decode, encode
from ..errors import MismatchError, ParameterError
from ..graphs import complete
from ..problem import Problem
from .ledger import Ledger

__all__ = ["SCENARIOS", "Audit", "audit", "clopper_pearson"]

#: What is played, in this order. Of private boosting, only the first and "huge norm".
SCENARIOS = ("restart", "memory", "noise reuse", "huge norm", "dense", "step size")
#: Trials of a scenario, unless the caller says how many runs: to see twice the budget, or more than that.
TRIALS, FEWER = 1 << 15, 1 << 13
#: For what is seen at once, if it is there.
FEW = 1 << 12
#: Runs of which each is one trial; and of private boosting, where each is one, too.
LONE, BOOSTING = 1 << 8, 1 << 12
#: The epsilons to test, as parts of the plan's, and for what is far off.
PARTS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.25, 1.5)
FAR = (2.0, 4.0, 8.0)
#: How far canaries are from being clipped too little, in units of how far noise moves a model.
LABEL, PULL = 1e4, 1e8
#: What "huge" is.
HUGE = 1e6
#: The weight of an agent's losses against its neighbour: it remembers 100 / 101 of its model from step to step.
MU = 100.0
#: Added to variances of standardised messages: a direction without noise counts as one with this little.
SHRINKAGE = 1e-9
#: Trials of one canary count so much against the spread of all, when that of its own is estimated.
PRIOR = 1
#: No epsilon above this is tested: its exponential would be too large a number.
FARTHEST = 300.0

Floats = np.ndarray[Any, np.dtype[np.float64]]
Agent = Callable[[Any, AgentArrays, Floats, Ledger], Any]


# How often, at least


def clopper_pearson(successes: int, trials: int, error: float) -> tuple[float, float]:
    """Bounds on a probability, each of them wrong with probability ``error`` at most: (0, 1) if nothing was tried."""
    low = 0.0 if successes == 0 else float(betaincinv(successes, trials - successes + 1, error))
    high = 1.0 if successes == trials else float(betaincinv(successes + 1, trials - successes, 1.0 - error))
    return low, high


class _Bound(NamedTuple):
    """Lower bounds of how often a guess is made, and of how often it is then right.

    Who guesses one of two cases only, or nothing, is in doubt about half of the trials: what counts is
    ``P(guess | that case) - e^eps P(guess | the other)``, which is twice what it would be as a part of all trials.
    """

    guessed: float
    hit: float

    def leak(self, epsilon: float) -> float:
        """A lower bound of ``P(right) - e^epsilon P(wrong)``; who never guesses leaks 0."""
        return max(0.0, self.guessed * (self.hit - math.exp(epsilon) * (1.0 - self.hit)))

    def epsilon(self, delta: float) -> float:
        """The largest epsilon at which the leak is above delta, or 0."""
        least = self.hit - delta / self.guessed if self.guessed > 0.0 else 0.0
        return max(0.0, math.log(least / (1.0 - self.hit))) if least > 0.0 else 0.0


def _bound(right: int, wrong: int, trials: int, error: float, sides: int = 2) -> _Bound:
    guessed = clopper_pearson(right + wrong, trials, error / 2)[0]
    return _Bound(guessed * 2 / sides, clopper_pearson(right, right + wrong, error / 2)[0])


# What is played


@dataclass(frozen=True)
class _Scenario:
    """One way to provoke an agent."""

    name: str
    runs: int
    canaries: Floats  # (m, p) the rows, before a coin gives them a sign
    labels: Floats  # (m,)
    directions: Floats | None  # (c, p) unit vectors, those of the trials; None for the axes
    trials: Any  # which canaries these are
    sessions: int
    wakes: int  # of each session
    pulls: tuple[float, ...] = ()  # where the neighbour is before each wake, in every coordinate; empty for zero
    lengths: tuple[float, ...] = ()  # two of the first row, of which one is to be guessed: a lone trial

    @property
    def lone(self) -> bool:
        return len(self.lengths) > 0


def _scenarios(method: Any, p: int, runs: int | None) -> list[_Scenario]:
    """All of them, for a method with steps along gradients."""
    plan = method.privacy.plan
    clip, bound = method.privacy.terms.clip, method.privacy.terms.row_norm
    # Noise moves a model by clip z / bound^2 or less in a step, however few the rows.
    unit = clip * max(1.0, float(plan.noise.max())) * max(1.0, bound**-2)
    label, there = LABEL * unit, PULL * unit
    wakes = plan.steps + 2
    axes, labels, all_ = np.eye(p), np.full(p, label), slice(None)
    # The model is there after the first, and then on the other side each time.
    pulls = (there, *(2.0 * there * (-1.0) ** k for k in range(1, wakes)))
    long = np.arange(0, p, 8)
    lengths = np.ones(p)
    lengths[long] = HUGE
    middle = np.where(lengths > 1.0, HUGE * label, 0.5 * clip)
    basis, many = _dense(p, plan)

    def count(trials: int, each: int) -> int:
        return max(64, -(-trials // each)) if runs is None else runs

    return [
        _Scenario("restart", count(TRIALS, p), axes, labels, None, all_, 4, plan.steps),
        _Scenario("memory", count(FEWER, p), axes, labels, None, all_, 1, wakes),
        _Scenario("noise reuse", count(FEWER, p), axes, labels, None, all_, 1, wakes, pulls),
        _Scenario("huge norm", count(FEW, long.size), axes * lengths[:, None], middle, axes[long], long, 1, wakes),
        _Scenario("dense", count(many, len(basis)), basis, np.full(len(basis), label), basis, all_, 1, wakes),
        _Scenario("step size", count(LONE, 1), axes, labels, None, all_, 1, wakes, pulls, (1.0, HUGE)),
    ]


def _dense(p: int, plan: Plan) -> tuple[Floats, int]:
    """Directions with entries of equal size, and how many trials it takes."""
    q = 1 << (p.bit_length() - 1)
    basis = np.zeros((q, p))
    basis[:, :q] = hadamard(q) / math.sqrt(q)
    # The sharp peak of Laplace noise tells most, and many canaries blur it for each other.
    return (basis[::4], TRIALS) if plan.mechanism == "laplace" else (basis, FEWER)


def _boosting_scenarios(plan: Plan, runs: int | None) -> list[_Scenario]:
    """Private boosting: one canary, for which every base predictor says the same."""
    rows, all_ = np.ones((1, 2)), slice(None)
    return [
        _Scenario("restart", runs or BOOSTING, rows, np.full(1, LABEL**2), None, all_, 4, plan.steps),
        _Scenario("huge norm", runs or LONE, HUGE * rows, np.full(1, LABEL**3), None, all_, 1, plan.steps + 2),
    ]


def _arrays(method: Any, scenario: _Scenario, rows: Floats) -> AgentArrays:
    """The agents' arrays of one agent with these rows, and one neighbour, which is the attacker."""
    X = np.vstack([rows, np.zeros((1, rows.shape[1]))])
    y = np.append(scenario.labels, 0.0)
    data = AgentData(X, y, agents=np.append(np.zeros(len(rows), np.int64), 1))
    if _boosts(method):
        problem = Problem.boosting(data, complete(2), base=lambda X: X, mu=0.0, confidence=None, loss="squared")
    else:
        mu = MU / method.privacy.terms.row_norm**2
        problem = Problem.personalized(data, complete(2), loss="squared", mu=mu, ridge=0.0, confidence=None)
    method.fit_for(problem)
    return part_of(arrays_of(problem), 0, 1)


def _boosts(method: Any) -> bool:
    return bool(method.privacy.plan.mechanism == "exponential")


class _Messages:
    """What an agent has sent in some runs, each message at the place in the script where it came."""

    def __init__(self, scenario: _Scenario, boosts: bool, flows: bool):
        self.runs, self.p = scenario.runs, scenario.canaries.shape[1]
        self.boosts, self.flows = boosts, flows
        self.found: dict[tuple[int, ...], Floats] = {}

    def note(self, run: int, event: int, posts: Iterable[Any]) -> None:
        for order, post in enumerate(posts):
            _, kind, text = decode(post.data)
            if self.boosts:  # the sum over all messages of a kind tells all there is to know
                self.found.setdefault((kind,), np.zeros((self.runs, 1)))[run] += _way(kind, text)
                continue
            half = len(text) // 2 if self.flows and len(text) > self.p else len(text)  # a flow, and an estimate
            firsts = [*range(0, half, self.p), *range(half, len(text), self.p)]
            for piece, (first, last) in enumerate(zip(firsts, [*firsts[1:], len(text)], strict=True)):
                part = text[first:last]
                place = self.found.setdefault((event, order, piece), np.zeros((self.runs, self.p)))
                place[run, : len(part)] = part

    def array(self, lone: bool) -> Floats:
        """(runs, messages, coordinates), without what is always the same."""
        messages = [self.found[key] for key in sorted(self.found)]
        if lone:  # what happens to the canary, and to everything else
            messages = [part for x in messages for part in (x[:, :1], x[:, 1:].mean(axis=1, keepdims=True))]
        messages = [x for x in messages if np.ptp(x) > 0.0]
        width = messages[0].shape[1] if messages else 1
        return np.stack(messages, axis=1) if messages else np.zeros((self.runs, 0, width))


def _way(kind: int, text: Floats) -> float:
    """Which way a message of boosting goes, over all base predictors."""
    if kind == STEP:
        return float(np.sign(text[2]))
    return float(text[2::2].sum()) if kind == WHOLE else 0.0


def _play(method: Any, scenario: _Scenario, agent: Agent, rng: Any, tick: Callable[[], None]) -> tuple[Floats, Floats]:
    """Messages (runs, messages, coordinates), and the coins (runs, trials) that the attacker is after."""
    p, boosts = scenario.canaries.shape[1], _boosts(method)
    rows = scenario.canaries
    if scenario.lone:
        heads, tails = (np.vstack([length * rows[:1], rows[1:]]) for length in scenario.lengths)
        both = [_arrays(method, scenario, heads), _arrays(method, scenario, tails)]
    else:
        arrays = _arrays(method, scenario, rows)  # signs change nothing in it but the rows: the same steps, for one
    kinds = [k for k, length in enumerate(lengths_of(method.messages, p)) if length == p and not boosts]
    frames: dict[float, list[bytes]] = {
        here: [encode(1, kind, np.full(p, here)) for kind in kinds] for here in {0.0, *scenario.pulls}
    }
    coins = rng.choice([-1.0, 1.0], size=(scenario.runs, 1 if scenario.lone else len(rows)))
    flows = any(isinstance(part, Average) for message in method.messages.values() for part in parts_of(message))
    messages = _Messages(scenario, boosts, flows)
    for run, coin in enumerate(coins):
        if scenario.lone:
            arrays = both[int(coin[0] < 0)]
        else:
            arrays = arrays._replace(rows=type(arrays.rows)(frozen(coin[:, None] * rows)))
        ledger, event = Ledger(method.privacy.plan), 0
        for _ in range(scenario.sessions):
            peer = agent(method, arrays, np.zeros(p), ledger)
            messages.note(run, event, peer.greet())
            for wake in range(scenario.wakes):
                for frame in frames[scenario.pulls[wake] if scenario.pulls else 0.0]:
                    messages.note(run, event := event + 1, peer.receive(frame))
                messages.note(run, event := event + 1, peer.wake(rng.random(method.traffic.dice)))
            event += 1
        tick()
    return messages.array(scenario.lone), coins[:, scenario.trials]


# What the attacker makes of it


def _features(messages: Floats, directions: Floats | None, taught: int) -> Floats:
    """What is known of every canary, (runs, features, trials): messages along its direction, and signs of what is new.

    The second is for noise with heavy tails: of Laplace noise, the sign of what a message holds that those before do
    not tell says more than its size.
    """
    x = messages - messages[:taught].mean(axis=(0, 2), keepdims=True)
    x /= np.maximum(x[:taught].std(axis=(0, 2), keepdims=True), np.finfo(float).tiny)
    k = x.shape[1]
    flat = np.moveaxis(x[:taught], 1, 0).reshape(k, -1)
    covariance = flat @ flat.T / flat.shape[1]
    news = np.empty_like(x)
    for t in range(k):
        known = np.linalg.lstsq(covariance[:t, :t], covariance[:t, t], rcond=1e-10)[0] if t else np.zeros(0)
        news[:, t] = np.sign(x[:, t] - np.einsum("rtp,t->rp", x[:, :t], known))
    if k > 16:  # too many features are hard to learn from
        news = news.sum(axis=1, keepdims=True)
    both = np.concatenate([x, news], axis=1)
    return both if directions is None else both @ directions.T


def _scores(messages: Floats, coins: Floats, directions: Floats | None, taught: int) -> Floats:
    """How much speaks for +1 and against -1, (runs, trials), as learned from the first runs."""
    if messages.shape[1] == 0 or np.ptp(coins[:taught]) == 0.0:  # nothing to learn, or nothing to learn from
        return np.zeros(coins.shape)
    features = _features(messages, directions, taught)
    sample, side = np.moveaxis(features[:taught], 1, 2).reshape(-1, features.shape[1]), coins[:taught].ravel()
    heads, tails = (sample[side == s].mean(axis=0) for s in (1.0, -1.0))
    scale = np.maximum(sample.std(axis=0), np.finfo(float).tiny)
    within = (sample - np.where(side[:, None] > 0, heads, tails)) / scale
    covariance = within.T @ within / len(within) + SHRINKAGE * np.eye(len(scale))
    direction = np.linalg.solve(covariance, (heads - tails) / scale) / scale
    scores = np.einsum("rft,f->rt", features, direction) - 0.5 * float(direction @ (heads + tails))
    # Some canaries may have less noise than others.
    known = coins[:taught] * scores[:taught]
    square = ((known - known.mean(axis=0)) ** 2).sum(axis=0)
    spread = (square + PRIOR * square.mean() / taught) / (taught + PRIOR)
    return scores / np.maximum(spread, 1e-12 * float(known.mean()) ** 2 + np.finfo(float).tiny)


def _threshold(scores: Floats, side: Floats, epsilon: float) -> float:
    """From which score on to guess +1, so that ``right - e^eps wrong`` is well above its spread; infinite: never."""
    order = np.argsort(-scores, kind="stable")
    ranked, right = scores[order], np.cumsum(side[order] > 0)
    wrong = np.arange(1, len(ranked) + 1) - right
    factor = math.exp(epsilon)
    gain = right - factor * wrong - 4.0 * np.sqrt(right + factor * factor * wrong)
    gain[:-1][ranked[:-1] == ranked[1:]] = -np.inf  # those that look alike are guessed alike
    best = int(np.argmax(gain))
    if not gain[best] > 0.0:
        return math.inf
    return 0.5 * float(ranked[best] + ranked[min(best + 1, len(ranked) - 1)])


class _Count(NamedTuple):
    """What guesses came to."""

    right: int
    wrong: int
    trials: int
    sides: int  # 1 if only one of the two cases is ever guessed


def _guess(scores: Floats, coins: Floats, taught: int, epsilon: float) -> _Count:
    """Learn from the first runs at which scores to guess, and guess the coins of the others."""
    sample, side = scores[:taught].ravel(), coins[:taught].ravel()
    high, low = _threshold(sample, side, epsilon), -_threshold(-sample, -side, epsilon)
    if high <= low:  # guess always
        high = low = 0.5 * (high + low)
    tested, truth = scores[taught:].ravel(), coins[taught:].ravel()
    guess = np.where(tested >= high, 1.0, np.where(tested <= low, -1.0, 0.0))
    right, wrong = int(np.sum(guess * truth > 0)), int(np.sum(guess * truth < 0))
    return _Count(right, wrong, truth.size, 2 if high < math.inf and low > -math.inf else 1)


# The result


@dataclass(frozen=True, eq=False, repr=False)
class Audit:
    """What an audit found.

    Attributes
    ----------
    passed : bool
    plan : Plan
        The claim.
    table : DataFrame
        For every ``scenario`` and ``epsilon``: the delta that is ``claimed`` there; the ``leak``, a lower bound of
        ``tpr - e^epsilon fpr``; the ``trials`` that were counted; how often the attacker was right (``tpr``) and
        wrong (``fpr``), as parts of them: the means of the test for one case and of that for the other; and ``lower``:
        by these guesses alone, epsilon is not below this at the plan's delta.
    worst : Series
        The row of the table with the largest ``leak - claimed``.
    epsilon_lower : float
        The messages tell so much at least, at the plan's delta: the true epsilon is not below this.

    Examples
    --------
    >>> import coterie as ct
    >>> result = audit(ct.Private("cd", wakes_per_agent=2), features=16, runs=64, scenarios=["restart"])
    >>> result.passed, result.table.columns.tolist()
    (True, ['scenario', 'epsilon', 'claimed', 'leak', 'trials', 'tpr', 'fpr', 'lower'])
    """

    passed: bool
    plan: Plan
    table: pd.DataFrame
    epsilon_lower: float

    @property
    def worst(self) -> pd.Series:
        """The row of the table with the largest ``leak - claimed``."""
        return self.table.loc[(self.table["leak"] - self.table["claimed"]).idxmax()]

    def __repr__(self) -> str:
        promise = f"epsilon={self.plan.epsilon:g}, delta={self.plan.delta:g}"
        if not self.passed:
            row = self.worst
            return (
                f"Audit FAILED in scenario {row['scenario']!r}: the messages tell (TPR {row['tpr']:.3g}, "
                f"FPR {row['fpr']:.3g}) more than {promise} allows. At epsilon {row['epsilon']:g} the leak is at least "
                f"{row['leak']:.3g}, and {row['claimed']:.3g} is claimed; epsilon is at least {self.epsilon_lower:.3g}"
            )
        names = self.table["scenario"].unique()
        trials = int(self.table.drop_duplicates("scenario")["trials"].sum())
        return (
            f"Audit passed: in {trials} trials of {len(names)} scenarios ({', '.join(names)}), the messages did not "
            f"tell more than {promise} allows; they show an epsilon of {self.epsilon_lower:.3g}"
        )


def audit(
    method: Any,
    *,
    features: int = 64,
    runs: int | None = None,
    seed: Any = 0,
    error: float = 1e-3,
    scenarios: Iterable[str] | None = None,
    agent: Agent | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Audit:
    """Look for leaks in the messages of a private method, as an attacker would.

    An audit can show that a claim is false, and never that it is true: it tries the attacks in the table at the top of
    ``coterie.privacy.auditing``, on one agent, and reads messages, not clocks.

    Parameters
    ----------
    method : rule
        What :func:`coterie.Private` returns, with the terms that are to be audited. Of a learned graph, audit the
        method inside.
    features : int, at least 2
        Length of a model, and number of canaries. The dense scenario takes the next power of two below. For private
        boosting it does not matter: a wake says so little there that a run has one canary.
    runs : int, at least 2, optional
        Of each scenario. Default: as many as it takes to see twice the budget, which is ``2^15 / features``; fewer for
        what is seen at once. Of private boosting, it is only gross errors that are seen.
    seed : int
        The agent's noise is drawn from this seed, too, so that an audit can be repeated. Whether a peer draws its noise
        from a good source is not audited.
    error : float in (0, 1)
        With this probability, at most, does the right code fail.
    scenarios : iterable of str, optional
        Which to play; by default all: restart, memory, noise reuse, huge norm, dense, step size. Of private boosting
        there are restart and huge norm.
    agent : callable, optional
        What to audit in place of the library's own peer: ``agent(method, arrays, theta, ledger)`` returns something with
        ``greet()``, ``wake(dice)`` and ``receive(data)`` that return messages, as ``coterie.engines.peer.Peer``
        does. The ledger is in memory, and is the same one when an agent is made again in the same run.
    progress : callable, optional
        Called with the runs done and the runs in all.

    Returns
    -------
    Audit

    Raises
    ------
    MismatchError
        If the method makes no claim.
    ParameterError
        If a number is out of its range, or there is no such scenario.

    Examples
    --------
    >>> import coterie as ct
    >>> method = ct.Private("cd", epsilon=1.0, delta=1e-5, wakes_per_agent=2)
    >>> audit(method, features=16, runs=64, scenarios=["restart", "memory"])
    Audit passed: in 1024 trials of 2 scenarios (restart, memory), the messages did not tell more than epsilon=1, ...

    An agent that forgets what it has spent:

    >>> from coterie.engines.peer import Peer
    >>> def forgetful(method, arrays, theta, ledger):
    ...     return Peer(method, arrays, theta, ct.privacy.Ledger(method.plan))
    >>> audit(method, features=128, runs=128, scenarios=["restart"], agent=forgetful)
    Audit FAILED in scenario 'restart': the messages tell (TPR ..., FPR ...) more than epsilon=1, delta=1e-05 allows...
    """
    if method.privacy.plan is None:
        raise MismatchError(f"{method!r} claims nothing that could be audited: make it private with ct.Private")
    if isinstance(method, Learned):
        raise MismatchError(f"{method!r} learns a graph from what is published: audit the method inside, method.method")
    features = _checks.integer("features", features, least=2)
    runs = runs if runs is None else _checks.integer("runs", runs, least=2)
    error, seed = _checks.fraction("error", error), _checks.integer("seed", seed, least=0)
    plan = method.privacy.plan
    played = _boosting_scenarios(plan, runs) if _boosts(method) else _scenarios(method, features, runs)
    played = _chosen(played, scenarios)
    epsilons = np.unique([e for e in (*(part * plan.epsilon for part in PARTS), *FAR) if e <= FARTHEST])
    claimed = np.asarray(plan.profile(epsilons))
    share = error / (len(played) * len(epsilons))  # Bonferroni
    done, total = 0, sum(scenario.runs for scenario in played)

    def tick() -> None:
        nonlocal done
        done += 1
        if progress is not None:
            progress(done, total)

    table = []
    for scenario, source in zip(played, np.random.SeedSequence(seed).spawn(len(played)), strict=True):
        messages, coins = _play(method, scenario, agent or Peer, np.random.default_rng(source), tick)
        taught = scenario.runs // 2
        scores = _scores(messages, coins, scenario.directions, taught)
        for epsilon, delta in zip(epsilons.tolist(), claimed.tolist(), strict=True):
            count = _guess(scores, coins, taught, epsilon)
            bound = _bound(count.right, count.wrong, count.trials, share, count.sides)
            right, wrong = (2 * x / (count.sides * count.trials) for x in (count.right, count.wrong))
            seen = bound.epsilon(plan.delta)
            table.append((scenario.name, epsilon, delta, bound.leak(epsilon), count.trials, right, wrong, seen))
    frame = pd.DataFrame(table, columns=["scenario", "epsilon", "claimed", "leak", "trials", "tpr", "fpr", "lower"])
    return Audit(bool((frame["leak"] <= frame["claimed"]).all()), plan, frame, float(frame["lower"].max()))


def _chosen(played: list[_Scenario], names: Iterable[str] | None) -> list[_Scenario]:
    if names is None:
        return played
    known = {scenario.name: scenario for scenario in played}
    wanted = [names] if isinstance(names, str) else list(names)
    for name in wanted:
        if name not in known:
            raise ParameterError(f"scenarios = {names!r}: there is no {name!r}, but {', '.join(known)}")
    if not wanted:
        raise ParameterError(f"scenarios = {names!r}: expected some of {', '.join(known)}")
    return [known[name] for name in dict.fromkeys(wanted)]
