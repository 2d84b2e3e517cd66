"""An audit that tests whether the messages of an agent reveal more about one example than its plan allows.

The audit acts as an attacker. It puts examples of its own, canaries, into the data of one agent, runs this agent as a
real peer, sends it arbitrary messages, and only reads the messages that come back. A fair coin chooses each canary from
two candidates, and the attacker guesses the choice from the messages. If the guesses are right too often, the claim is
false.

**The test.** Differential privacy with the profile delta(eps) bounds every guessing rule, also rules that may abstain:

    P(right) - e^eps P(wrong)  <=  delta(eps)        for every eps.

Half of the runs train the attacker: a linear discriminant of all messages of a run, and for every eps the thresholds of
the scores. The guesses on the other half are counted, and Clopper-Pearson bounds on the probability of a guess, and on
the probability that a guess is right, give a lower bound of the left side, the *leak*. Over all eps and all scenarios
together, the probability of a false alert is at most ``error``.

**The canaries.** Each canary is a row +v or -v with a label so large that its gradient is always clipped, so two
neighbouring datasets differ as much as the mechanism allows. The directions v are orthogonal, so every run has one
canary for each feature. Gaussian noise is independent in orthogonal directions, and other noise, drawn for each
coordinate, is independent along the axes: these trials are independent. In the dense scenario of Laplace noise, trials
are only uncorrelated. At an eps with delta(eps) = 0 this does not matter, because each coin is guessed right with
probability at most e^eps / (1 + e^eps), given all other coins (Steinke, Nasr, Jagielski, 2023); at other eps, correct
code leaks far less in this scenario than is claimed.

===============  ======================================================================================================
scenario         errors that it reveals
===============  ======================================================================================================
restart          the peer is replaced by a new one with the same ledger after every T wakes, 4 T wakes in all: a budget
                 that is renewed, and too little noise in general
memory           T + 2 consecutive wakes, with constant messages of the neighbour: a state without noise
noise reuse      the neighbour's messages move the model back and forth, so that canaries count in one release and not
                 in the next: noise that is used twice
huge norm        one canary in eight is 10^6 times as long as allowed, and the others are short: clipping that is
                 missing, or is applied to the sum
dense            v is a row of a Hadamard matrix: clipping in the wrong norm. L2 clipping with Laplace noise is detected
                 in a plan of one release. With T = 5 releases of epsilon 1, L2 clipping is (1, 0.003)-DP where (1, 0)
                 is claimed, which would take a million trials to detect
step size        one example of length 1 or 10^6, with the same clipped gradient: step sizes that depend on the data
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

#: Names of the scenarios, in the order of the audit. Private boosting only has "restart" and "huge norm".
SCENARIOS = ("restart", "memory", "noise reuse", "huge norm", "dense", "step size")
#: Default numbers of trials of a scenario, to detect twice the budget, and to detect more than that.
MOST_TRIALS, MORE_TRIALS = 1 << 15, 1 << 13
#: Default number of trials of a scenario whose errors are obvious.
FEW_TRIALS = 1 << 12
#: Default numbers of runs with one trial each: of a scenario with obvious errors, and of private boosting.
SINGLE_TRIAL_RUNS, BOOSTING_RUNS = 1 << 8, 1 << 12
#: The epsilons to test: multiples of the plan's epsilon, and fixed values for gross errors.
EPSILON_FACTORS = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.25, 1.5)
LARGE_EPSILONS = (2.0, 4.0, 8.0)
#: Size of labels, and of the positions of the neighbour, in units of the distance that noise moves a model.
LABEL, PULL = 1e4, 1e8
#: Factor of the norm of a huge canary.
HUGE_FACTOR = 1e6
#: Weight of an agent's losses relative to its neighbour: the agent keeps 100 / 101 of its model from step to step.
MU = 100.0
#: Added to the variances of standardised messages, for directions without noise.
SHRINKAGE = 1e-9
#: Weight, in trials, of the mean variance of all canaries in the estimate of the variance of one canary.
PRIOR_TRIALS = 1
#: Largest epsilon that is tested; the exponential of a larger one might overflow.
MAX_TESTED_EPSILON = 300.0

Floats = np.ndarray[Any, np.dtype[np.float64]]
Agent = Callable[[Any, AgentArrays, Floats, Ledger], Any]


# Bounds on probabilities


def clopper_pearson(successes: int, trials: int, error: float) -> tuple[float, float]:
    """Return bounds on a probability, each wrong with probability at most ``error``: (0, 1) without trials."""
    low = 0.0 if successes == 0 else float(betaincinv(successes, trials - successes + 1, error))
    high = 1.0 if successes == trials else float(betaincinv(successes + 1, trials - successes, 1.0 - error))
    return low, high


class _Bound(NamedTuple):
    """Lower bounds of the probability of a guess, and of the probability that a guess is right.

    If only one of the two cases is ever guessed, the bound is on ``P(guess | this case) - e^eps P(guess | the other)``,
    which is twice the value relative to all trials.
    """

    guessed: float
    hit: float

    def leak(self, epsilon: float) -> float:
        """Return a lower bound of ``P(right) - e^epsilon P(wrong)``; 0 without guesses."""
        return max(0.0, self.guessed * (self.hit - math.exp(epsilon) * (1.0 - self.hit)))

    def epsilon(self, delta: float) -> float:
        """Return the largest epsilon at which the leak is above delta, or 0."""
        least = self.hit - delta / self.guessed if self.guessed > 0.0 else 0.0
        return max(0.0, math.log(least / (1.0 - self.hit))) if least > 0.0 else 0.0


def _bound(right: int, wrong: int, trials: int, error: float, sides: int = 2) -> _Bound:
    guessed = clopper_pearson(right + wrong, trials, error / 2)[0]
    return _Bound(guessed * 2 / sides, clopper_pearson(right, right + wrong, error / 2)[0])


# Scenarios


@dataclass(frozen=True)
class _Scenario:
    """One attack on an agent."""

    name: str
    runs: int
    canaries: Floats  # (m, p) the rows, before a coin chooses their signs
    labels: Floats  # (m,)
    directions: Floats | None  # (c, p) unit vectors of the trials; None for the axes
    trials: Any  # indices of the canaries of the trials
    sessions: int
    wakes: int  # of each session
    pulls: tuple[float, ...] = ()  # the neighbour's model before each wake, in every coordinate; empty for zero
    lengths: tuple[float, ...] = ()  # two lengths of the first row, one of which is to be guessed: a single trial

    @property
    def lone(self) -> bool:
        return len(self.lengths) > 0


def _scenarios(method: Any, p: int, runs: int | None) -> list[_Scenario]:
    """Return all scenarios, for a method with gradient steps."""
    plan = method.privacy.plan
    clip, bound = method.privacy.terms.clip, method.privacy.terms.row_norm
    # Noise moves a model by at most clip z / bound^2 in a step, for any number of rows.
    unit = clip * max(1.0, float(plan.noise.max())) * max(1.0, bound**-2)
    label, there = LABEL * unit, PULL * unit
    wakes = plan.steps + 2
    axes, labels, all_ = np.eye(p), np.full(p, label), slice(None)
    # The model moves to `there` at the first wake, and to the other side at every further wake.
    pulls = (there, *(2.0 * there * (-1.0) ** k for k in range(1, wakes)))
    long = np.arange(0, p, 8)
    lengths = np.ones(p)
    lengths[long] = HUGE_FACTOR
    middle = np.where(lengths > 1.0, HUGE_FACTOR * label, 0.5 * clip)
    basis, many = _dense(p, plan)

    def count(trials: int, each: int) -> int:
        return max(64, -(-trials // each)) if runs is None else runs

    return [
        _Scenario("restart", count(MOST_TRIALS, p), axes, labels, None, all_, 4, plan.steps),
        _Scenario("memory", count(MORE_TRIALS, p), axes, labels, None, all_, 1, wakes),
        _Scenario("noise reuse", count(MORE_TRIALS, p), axes, labels, None, all_, 1, wakes, pulls),
        _Scenario(
            "huge norm", count(FEW_TRIALS, long.size), axes * lengths[:, None], middle, axes[long], long, 1, wakes
        ),
        _Scenario("dense", count(many, len(basis)), basis, np.full(len(basis), label), basis, all_, 1, wakes),
        _Scenario(
            "step size", count(SINGLE_TRIAL_RUNS, 1), axes, labels, None, all_, 1, wakes, pulls, (1.0, HUGE_FACTOR)
        ),
    ]


def _dense(p: int, plan: Plan) -> tuple[Floats, int]:
    """Return directions with entries of equal size, and the number of trials."""
    q = 1 << (p.bit_length() - 1)
    basis = np.zeros((q, p))
    basis[:, :q] = hadamard(q) / math.sqrt(q)
    # The sharp peak of Laplace noise reveals most, and many canaries in one run would blur it.
    return (basis[::4], MOST_TRIALS) if plan.mechanism == "laplace" else (basis, MORE_TRIALS)


def _boosting_scenarios(plan: Plan, runs: int | None) -> list[_Scenario]:
    """Return the scenarios of private boosting: one canary, with equal outputs of all base predictors."""
    rows, all_ = np.ones((1, 2)), slice(None)
    return [
        _Scenario("restart", runs or BOOSTING_RUNS, rows, np.full(1, LABEL**2), None, all_, 4, plan.steps),
        _Scenario(
            "huge norm",
            runs or SINGLE_TRIAL_RUNS,
            HUGE_FACTOR * rows,
            np.full(1, LABEL**3),
            None,
            all_,
            1,
            plan.steps + 2,
        ),
    ]


def _arrays(method: Any, scenario: _Scenario, rows: Floats) -> AgentArrays:
    """Return the arrays of one agent with these rows and one neighbour, the attacker."""
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
    """The messages of an agent in some runs, indexed by the event in the scenario that caused them."""

    def __init__(self, scenario: _Scenario, boosts: bool, flows: bool):
        self.runs, self.p = scenario.runs, scenario.canaries.shape[1]
        self.boosts, self.flows = boosts, flows
        self.found: dict[tuple[int, ...], Floats] = {}

    def note(self, run: int, event: int, posts: Iterable[Any]) -> None:
        for order, post in enumerate(posts):
            _, kind, text = decode(post.data)
            if self.boosts:  # the sum over all messages of a kind is a sufficient statistic
                self.found.setdefault((kind,), np.zeros((self.runs, 1)))[run] += _way(kind, text)
                continue
            half = len(text) // 2 if self.flows and len(text) > self.p else len(text)  # a flow, and an estimate
            firsts = [*range(0, half, self.p), *range(half, len(text), self.p)]
            for piece, (first, last) in enumerate(zip(firsts, [*firsts[1:], len(text)], strict=True)):
                part = text[first:last]
                place = self.found.setdefault((event, order, piece), np.zeros((self.runs, self.p)))
                place[run, : len(part)] = part

    def array(self, lone: bool) -> Floats:
        """Return the messages, (runs, messages, coordinates), without constant ones."""
        messages = [self.found[key] for key in sorted(self.found)]
        if lone:  # the coordinate of the canary, and the mean of all others
            messages = [part for x in messages for part in (x[:, :1], x[:, 1:].mean(axis=1, keepdims=True))]
        messages = [x for x in messages if np.ptp(x) > 0.0]
        width = messages[0].shape[1] if messages else 1
        return np.stack(messages, axis=1) if messages else np.zeros((self.runs, 0, width))


def _way(kind: int, text: Floats) -> float:
    """Return the sum of the steps in a message of boosting, over all base predictors."""
    if kind == STEP:
        return float(np.sign(text[2]))
    return float(text[2::2].sum()) if kind == WHOLE else 0.0


def _play(method: Any, scenario: _Scenario, agent: Agent, rng: Any, tick: Callable[[], None]) -> tuple[Floats, Floats]:
    """Run a scenario; return messages (runs, messages, coordinates), and the coins to be guessed (runs, trials)."""
    p, boosts = scenario.canaries.shape[1], _boosts(method)
    rows = scenario.canaries
    if scenario.lone:
        heads, tails = (np.vstack([length * rows[:1], rows[1:]]) for length in scenario.lengths)
        both = [_arrays(method, scenario, heads), _arrays(method, scenario, tails)]
    else:
        arrays = _arrays(method, scenario, rows)  # signs only change the rows: step sizes are equal in all runs
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


# Guesses of the attacker


def _features(messages: Floats, directions: Floats | None, taught: int) -> Floats:
    """Return features of every canary, (runs, features, trials): messages along its direction, and signs of residuals.

    A residual is the part of a message not predicted by previous messages. Signs are for noise with heavy tails: with
    Laplace noise, the sign of a residual is more informative than its size.
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
    """Return scores for +1 against -1, (runs, trials), trained on the first `taught` runs."""
    if messages.shape[1] == 0 or np.ptp(coins[:taught]) == 0.0:  # no messages, or training coins of one kind
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
    spread = (square + PRIOR_TRIALS * square.mean() / taught) / (taught + PRIOR_TRIALS)
    return scores / np.maximum(spread, 1e-12 * float(known.mean()) ** 2 + np.finfo(float).tiny)


def _threshold(scores: Floats, side: Floats, epsilon: float) -> float:
    """Return the least score to guess +1 at, so that ``right - e^eps wrong`` is significant; infinite for never."""
    order = np.argsort(-scores, kind="stable")
    ranked, right = scores[order], np.cumsum(side[order] > 0)
    wrong = np.arange(1, len(ranked) + 1) - right
    factor = math.exp(epsilon)
    gain = right - factor * wrong - 4.0 * np.sqrt(right + factor * factor * wrong)
    gain[:-1][ranked[:-1] == ranked[1:]] = -np.inf  # trials with equal scores get equal guesses
    best = int(np.argmax(gain))
    if not gain[best] > 0.0:
        return math.inf
    return 0.5 * float(ranked[best] + ranked[min(best + 1, len(ranked) - 1)])


class _Count(NamedTuple):
    """Numbers of right and wrong guesses."""

    right: int
    wrong: int
    trials: int
    sides: int  # 1 if only one of the two cases is ever guessed


def _guess(scores: Floats, coins: Floats, taught: int, epsilon: float) -> _Count:
    """Learn thresholds of the scores from the first `taught` runs, and guess the coins of the other runs."""
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
    """The result of an audit.

    Attributes
    ----------
    passed : bool
    plan : Plan
        The claim.
    table : DataFrame
        For every ``scenario`` and ``epsilon``: the ``claimed`` delta at this epsilon; the ``leak``, a lower bound of
        ``tpr - e^epsilon fpr``; the number of counted ``trials``; the fractions of trials in which the attacker was
        right (``tpr``) and wrong (``fpr``), averaged over the two cases; and ``lower``, a lower bound of the true
        epsilon at the plan's delta from these guesses.
    worst : Series
        The row of the table with the largest ``leak - claimed``.
    epsilon_lower : float
        Largest lower bound of the true epsilon at the plan's delta.

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
    """Search for leaks in the messages of a private method by simulated attacks.

    An audit can show that a claim is false, but never that a claim is true: it tries the attacks in the table at the
    top of ``coterie.privacy.auditing``, on one agent, and reads messages, but does not measure times.

    Parameters
    ----------
    method : rule
        A method returned by :func:`coterie.Private`. For a learned graph, audit the method inside.
    features : int, at least 2
        Length of a model, and number of canaries. The dense scenario uses the largest power of two that is not larger.
        Ignored for private boosting, where a wake reveals so little that a run has one canary.
    runs : int, at least 2, optional
        Number of runs of each scenario. Default: enough to detect twice the budget, ``2^15 / features``; fewer in
        scenarios whose errors are obvious. For private boosting, only gross errors are detected.
    seed : int
        Seed of all random numbers, including the agent's noise, so that an audit can be repeated. The source of
        randomness of real peers is not audited.
    error : float in (0, 1)
        Largest probability that correct code fails the audit.
    scenarios : iterable of str, optional
        Names of the scenarios. Default: all, which are restart, memory, noise reuse, huge norm, dense, step size; for
        private boosting, restart and huge norm.
    agent : callable, optional
        The implementation to audit. Default: the library's peer. ``agent(method, arrays, theta, ledger)`` returns an
        object with methods ``greet()``, ``wake(dice)`` and ``receive(data)`` that return messages, like
        ``coterie.engines.peer.Peer``. The ledger is in memory; an agent made again in the same run gets the same
        ledger.
    progress : callable, optional
        Called with the number of runs done and the total number of runs.

    Returns
    -------
    Audit

    Raises
    ------
    MismatchError
        If the method has no privacy plan.
    ParameterError
        If a number is invalid, or a scenario does not exist.

    Examples
    --------
    >>> import coterie as ct
    >>> method = ct.Private("cd", epsilon=1.0, delta=1e-5, wakes_per_agent=2)
    >>> audit(method, features=16, runs=64, scenarios=["restart", "memory"])
    Audit passed: in 1024 trials of 2 scenarios (restart, memory), the messages did not tell more than epsilon=1, ...

    An agent that forgets the spent budget fails:

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
    epsilons = np.unique(
        [e for e in (*(part * plan.epsilon for part in EPSILON_FACTORS), *LARGE_EPSILONS) if e <= MAX_TESTED_EPSILON]
    )
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
