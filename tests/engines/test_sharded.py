"""Problems that shards build themselves, and every method on shards.

References: the same problem cut up by this process, bit for bit; one process, with one shard; ``Problem.value`` for
what the shards add up; for private runs, what each agent may have spent, counted by hand from who woke.
"""

from __future__ import annotations

import itertools
import logging
import sys

import numpy as np
import pytest
from scipy import sparse

import coterie as ct
from coterie.core import loop
from coterie.core.methods import boosting
from coterie.engines import shard
from coterie.engines.arrays import arrays_of
from coterie.engines.shards import Shards
from coterie.errors import ClusterError, DataError, GraphError, MismatchError, ParameterError
from ray_in_process import Local, Silent

N, P, SEED = 17, 4, 3
OBJECTIVES = {
    "personalized": (ct.Problem.personalized, {"mu": 0.7}),
    "collaborative": (ct.Problem.collaborative, {"mu": 0.5, "ridge": 0.1}),
    "separate": (ct.Problem.separate, {"loss": "squared", "ridge": 0.2}),
    "propagation": (ct.Problem.propagation, {"alpha": 0.6}),
    "boosting": (ct.Problem.boosting, {"base": ct.Stumps(6, low=-2.0, high=2.0), "mu": 0.5, "beta": 2.0}),
    "votes": (ct.Problem.boosting, {"base": ct.Stumps(6, low=-2.0, high=2.0), "loss": "logistic", "beta": 2.0}),
}
FW = ct.FrankWolfeBoosting()
METHODS = {
    "cd": ("personalized", "cd"),
    "admm": ("collaborative", "admm"),
    "djam": ("separate", "djam"),
    "propagation": ("propagation", "propagation"),
    "boosting": ("boosting", FW),
    "boosting by one clock": ("boosting", ct.FrankWolfeBoosting(clock="global")),
    "gossip-pooling": ("separate", "gossip-pooling"),
    "resilient-pooling": ("separate", "resilient-pooling"),
    "trimmed cd": ("personalized", ct.robust.Trimmed(ct.CoordinateDescent(), 0.3)),
    "trimmed djam": ("separate", ct.robust.Trimmed(ct.DJAM(), 0.3)),
    "private cd": ("personalized", ct.Private("cd", wakes_per_agent=3)),
    "private propagation": ("personalized", ct.Private("propagation")),
    "private boosting": ("votes", ct.Private(FW, wakes_per_agent=3)),
    "private pooling": ("separate", ct.Private("gossip-pooling")),
    "private trimmed cd": (
        "personalized",
        ct.Private(ct.robust.Trimmed(ct.CoordinateDescent(), 0.3), wakes_per_agent=3),
    ),
}


def weights():
    """A ring with chords, one agent without edges; weights that do not add up without rounding."""
    rng, W = np.random.default_rng(0), np.zeros((N, N))
    for i in range(N - 1):
        for j in ((i + 1) % (N - 1), (7 * i + 3) % (N - 1)):
            if i != j:
                W[i, j] = W[j, i] = rng.uniform(0.1, 1.7)
    return sparse.csr_array(W)


SIZES = np.array([4, 7, 0, 5, 6, 3, 8, 4, 5, 2, 6, 4, 5, 31, 3, 4, 2])  # one is by far the largest


def rows(i, labels=np.sign):
    rng = np.random.default_rng([5, i])
    X = rng.normal(size=(SIZES[i], P)) / 3
    return X, labels(X @ np.arange(1.0, P + 1) + 0.2 * rng.normal(size=SIZES[i]))


def build(first, last):
    parts = [rows(i) for i in range(first, last)]
    X, y = (np.concatenate(part) for part in zip(*parts, strict=True))
    data = ct.AgentData(X, y, agents=np.repeat(np.arange(first, last), SIZES[first:last]), members=range(first, last))
    return data, weights()[first:last]


def models(first, last):
    theta = np.stack([np.random.default_rng([6, i]).normal(size=P) for i in range(first, last)])
    return theta, weights()[first:last], {"confidence": np.arange(first, last) / N}


def recipe(name):
    objective, settings = OBJECTIVES[name]
    return ct.engines.ShardedProblem(models if name == "propagation" else build, N, objective, **settings)


#: In plain Python.
SLOW = ("private boosting", "private propagation", "private trimmed cd", "private cd", "resilient-pooling")


@pytest.fixture(autouse=True)
def _silent(monkeypatch, request):
    if "ray" not in request.fixturenames:
        monkeypatch.setattr(shard, "WorkerLog", Silent)


def same(one, other):
    assert np.array_equal(one.theta, other.theta)
    assert np.array_equal(one.published, other.published)
    assert np.array_equal(one.tally, other.tally)
    assert one.trace.equals(other.trace)
    assert (one.epsilon, one.delta, one.time) == (other.epsilon, other.delta, other.time)


@pytest.mark.plain
@pytest.mark.every_case
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in SLOW else ()) for name in METHODS]
)
def test_every_method(name):
    objective, method = METHODS[name]
    whole = recipe(objective).whole()
    options = {"wakes": 3 * N - 4, "seed": SEED, "every": 13}
    alone = ct.simulate(whole, method, **options)
    # With one shard nothing differs from one process, whoever has built the problem.
    same(alone, ct.simulate(whole, method, engine=Local(shards=1), **options))
    same(alone, ct.simulate(recipe(objective), method, engine=Local(shards=1), fetch=True, **options))
    for count in (2, 4):
        shipped = ct.simulate(whole, method, engine=Local(shards=count), **options)
        built = ct.simulate(recipe(objective), method, engine=Local(shards=count), fetch=True, **options)
        same(shipped, built)
        assert not np.array_equal(shipped.theta, alone.theta)  # messages come later
        # The objective is that of the whole, in the middle of a superstep as well.
        assert shipped.value == pytest.approx(whole.value(shipped.published), rel=1e-12)
        if np.isfinite(whole.radius):
            assert shipped.trace["gap"].iloc[-1] == pytest.approx(whole.gap(shipped.published), rel=1e-9)


@pytest.mark.plain
@pytest.mark.parametrize("count", [1, 3])
def test_room_for_larger_models(count, monkeypatch):
    """No step of a neighbour is lost for want of room: nobody asks for a whole model again."""
    monkeypatch.setattr(boosting, "SPARE_ENTRIES", 0)
    problem = ct.engines.ShardedProblem(build, N, ct.Problem.boosting, base=ct.Stumps(40, low=-1.0, high=1.0), beta=3.0)
    for seed in range(6):
        run = ct.simulate(problem, FW, wakes=8 * N, seed=seed, start="zeros", engine=Local(shards=count), fetch=True)
        assert np.count_nonzero(run.theta, axis=1).max() > 1  # there is room for one at first
        assert run.tally[boosting.MISSED, 0] == 0
        assert run.tally[boosting.STEP, 0] > 8 * N


@pytest.mark.plain
def test_values_on_the_way():
    whole, seen = recipe("personalized").whole(), []
    run = ct.simulate(
        whole, "cd", wakes=50, every=7, observe=lambda theta: seen.append(theta) or 0.0, engine=Local(shards=3)
    )
    assert run.trace["value"].tolist() == pytest.approx([whole.value(theta) for theta in seen], rel=1e-12)
    assert len(set(run.trace["value"])) == len(seen) == 9


@pytest.mark.plain
@pytest.mark.parametrize("start", ["local", "zeros", "given"])
@pytest.mark.parametrize("choice", ["uniform", "weight", "matrix"])
def test_starts_and_choices(start, choice):
    """Also a matrix of chances, of a problem that somebody holds."""
    rng = np.random.default_rng(8)
    whole = recipe("separate").whole()
    given = {"given": rng.normal(size=(N, P))}.get(start, start)
    chosen = {"matrix": weights() * rng.uniform(0.5, 1.0, (N, N))}.get(choice, choice)
    options = {"wakes": 40, "start": given, "choice": chosen, "seed": SEED}
    same(ct.simulate(whole, "djam", **options), ct.simulate(whole, "djam", engine=Local(shards=1), **options))
    if choice != "matrix":
        shipped = ct.simulate(whole, "djam", engine=Local(shards=3), **options)
        same(shipped, ct.simulate(recipe("separate"), "djam", engine=Local(shards=3), fetch=True, **options))


@pytest.mark.slow
def test_threads_of_a_shard_change_nothing():
    n = 600
    graph = ct.graphs.random_regular(n, 4, seed=0)
    problem = ct.Problem.propagation(np.random.default_rng(0).normal(size=(n, 3)), graph)
    one, two = (ct.simulate(problem, "cd", wakes=9 * n, engine=Local(shards=2, cpus=cpus)) for cpus in (1, 2))
    same(one, two)


# -- what is the same for all, whichever shard has it ------------------------------------------------------------------


def test_a_part_is_a_part_of_the_whole():
    whole, cuts = recipe("personalized").whole(), (0, 5, 11, N)
    for first, last in itertools.pairwise(cuts):
        block = recipe("personalized").block(first, last)
        part = shard.assembled(block, recipe("personalized").pose, first, last)
        problem, here = part.problem.among(int(SIZES.max())), part.here
        for name in ("loss_weight", "a", "importance", "ridge", "row_weight", "local_lipschitz", "block_lipschitz"):
            assert np.array_equal(getattr(problem, name)[here], getattr(whole, name)[first:last]), name
        assert np.array_equal(problem.graph.degrees[here], whole.graph.degrees[first:last])
    assert not np.array_equal(part.problem.among(99).loss_weight[here], whole.loss_weight[first:last])


@pytest.mark.plain
def test_how_reliable_a_release_is():
    """By the most rows of any agent, which only one shard has."""
    method, problem = ct.Private("propagation"), recipe("personalized")
    expected = method.start(arrays_of(problem.whole()), np.zeros((N, P)))[0].cache.reliability
    with Shards.of(problem, method, "zeros", 0, N, engine=Local(shards=4)) as driver:
        found = [actor.made.own.cache.reliability for actor in driver.shards]
    assert np.array_equal(np.concatenate(found), expected)


def bytes_of(value):
    if isinstance(value, np.ndarray):
        return value.nbytes
    return sum(map(bytes_of, value)) if isinstance(value, list | tuple) else 0


@pytest.mark.plain
def test_the_driver_does_not_grow():
    """What the driver holds beside references, which are the messages themselves here, is the same for 60 and 600."""
    held = []
    for n in (60, 600):

        def ring(first, last, n=n):
            i = np.arange(last - first)
            i, j = np.tile(i, 2), np.concatenate([first + i - 1, first + i + 1]) % n
            return np.ones((last - first, 2)), sparse.csr_array((np.ones(len(i)), (i, j)), shape=(last - first, n))

        problem = ct.engines.ShardedProblem(ring, n, ct.Problem.propagation)
        with Shards.of(problem, ct.CoordinateDescent(), "local", 0, 3 * n, engine=Local(shards=3)) as driver:
            driver.advance(2 * n, loop.NO_LIMIT)
            assert np.isfinite(driver.measures()["value"])
            assert driver.account[loop.MESSAGES] > 2 * n
            held.append(bytes_of([value for name, value in vars(driver).items() if name not in ("shards", "inbox")]))
    assert held[0] == held[1] < 2000


# -- privacy -----------------------------------------------------------------------------------------------------------


@pytest.mark.plain
def test_nobody_spends_more_and_no_noise_is_used_twice(monkeypatch):
    """Every wake has a key of its own, that of one process; accounts are what the wakes of each agent make them."""
    keys, took = [], shard.Shard._wake

    def note(self, *events):
        if events[1].size and events[1][0] != -2:  # not the greetings
            keys.append(events[2].copy())
        took(self, *events)

    monkeypatch.setattr(shard.Shard, "_wake", note)
    often, wakes = 3, 3 * N
    method = ct.Private("cd", epsilon=0.8, delta=1e-6, wakes_per_agent=often)
    with Shards.of(recipe("personalized"), method, "zeros", SEED, wakes, engine=Local(shards=3)) as driver:
        driver.advance(wakes, loop.NO_LIMIT)
        account = np.concatenate([actor.made.own.account for actor in driver.shards])
    who, _, fate = (np.random.default_rng(s) for s in np.random.SeedSequence(SEED).spawn(3))
    woke = np.bincount(who.integers(0, N, wakes), minlength=N)
    assert woke.max() > often > woke.min()
    assert np.array_equal(account[:, 0], np.minimum(woke, often))
    assert np.array_equal(account[:, 1], np.concatenate([[0.0], np.cumsum(method.terms.cost)])[np.minimum(woke, often)])
    used, drawn = np.concatenate(keys), fate.random((wakes, 8))
    assert len(np.unique(used, axis=0)) == wakes
    assert np.array_equal(np.unique(used, axis=0), np.unique(drawn, axis=0))


@pytest.mark.plain
def test_claims_of_private_runs():
    method = ct.Private("cd", epsilon=0.8, delta=1e-6, wakes_per_agent=3)
    run = ct.simulate(recipe("personalized"), method, engine=Local(shards=2))
    assert run.wakes == 3 * N  # as many as the budget is split for
    assert (run.epsilon, run.delta) == (0.8, 1e-6)
    assert any("(0.8, 1e-06)-differentially private" in note for note in run.notes)
    with pytest.raises(ParameterError, match="wakes=52: the budget was split over 3 wakes of each of 17 agents"):
        ct.simulate(recipe("personalized"), method, wakes=3 * N + 1, engine=Local(shards=2))
    with pytest.raises(ParameterError, match='start="local": locally trained models would be sent'):
        ct.simulate(recipe("personalized"), method, start="local", engine=Local(shards=2))
    warm = ct.privacy.warm_start(recipe("personalized").whole(), epsilon=0.5, delta=1e-6)
    with_start = ct.simulate(recipe("personalized"), method, start=warm, engine=Local(shards=2))
    assert with_start.epsilon == pytest.approx(0.8 + sum(plan.epsilon for plan in warm.plans))


# -- what comes back ---------------------------------------------------------------------------------------------------


@pytest.mark.plain
def test_models_come_back_if_asked_for():
    problem, options = recipe("personalized"), {"wakes": 30, "engine": Local(shards=3)}
    run = ct.simulate(problem, "cd", **options)
    assert run.theta is run.published is run.population is None
    assert run.problem.p == P
    assert "Run of CoordinateDescent() on 17 agents, 30 wakes" in repr(run)
    assert run.bits(32) == 32 * P * run.messages
    with pytest.raises(ParameterError, match="left on the cluster: pass fetch=True"):
        run.model(3)
    full = ct.simulate(problem, "cd", fetch=True, **options)
    assert np.array_equal(full.model(3), full.theta[3])
    assert full.trace.equals(run.trace)
    parts = ct.simulate(problem, "cd", fetch=lambda first, theta: (first, theta.sum(axis=1)), **options).fetched
    assert [first for first, _ in parts] == [0, 5, 11]
    assert np.array_equal(np.concatenate([sums for _, sums in parts]), full.theta.sum(axis=1))
    assert ct.simulate(problem.whole(), "cd", fetch=False, **options).theta is None
    pooled = ct.simulate(recipe("separate"), "gossip-pooling", fetch=True, **options)
    assert pooled.population.mean.shape == (N, P)


@pytest.mark.plain
def test_without_a_cluster_it_is_one_problem():
    run = ct.simulate(recipe("personalized"), "cd", wakes=30)
    same(run, ct.simulate(recipe("personalized").whole(), "cd", wakes=30))
    assert run.problem.graph.n == N


# -- what is refused ---------------------------------------------------------------------------------------------------


def changed(**changes):
    """A build with one thing wrong."""

    def wrong(first, last):
        data, edges = build(first, last)
        edges = edges.tolil()
        for (i, j), weight in changes.get("edges", {}).items():
            if first <= i < last:
                edges[i - first, j] = weight
        return (changes.get("data", lambda data, first: data)(data, first), edges.tocsr(), *changes.get("more", ()))

    return wrong


def fails(first, last):
    raise FileNotFoundError(f"rows-{first}.npz")


@pytest.mark.parametrize(
    ("wrong", "error", "message"),
    [
        (fails, DataError, r"build\(0, 8\) failed: FileNotFoundError: rows-0.npz"),
        (lambda first, last: 3, DataError, r"build\(0, 8\) must return data and edges; found int"),
        (
            changed(data=lambda data, first: data.only([0, 1])),
            DataError,
            r"build\(0, 8\) gave 2 agents and must give 8",
        ),
        (
            changed(data=lambda data, first: data.append_column() if first else data),
            DataError,
            "agents from 8 on have 5 features, and those from 0 on 4",
        ),
        (lambda first, last: (build(first, last)[0], 7.0), GraphError, "edges must be a sparse matrix|have shape"),
        (
            lambda first, last: (build(first, last)[0], weights()),
            GraphError,
            r"shape \(17, 17\); expected \(8, 17\)",
        ),
        (changed(edges={(2, 5): np.nan}), GraphError, r"W\[2, 5\] = nan: weights must be finite"),
        (changed(edges={(2, 5): -1.0}), GraphError, r"W\[2, 5\] = -1.0: weights must be nonnegative"),
        (changed(edges={(2, 2): 1.0}), GraphError, r"W\[2, 2\] = 1.0: the diagonal must be zero"),
        (changed(edges={(2, 6): 0.5}), GraphError, r"W\[2, 6\] = 0.5 but W\[6, 2\] = 0: edges are mutual"),
        # Two shards do not agree: a weight, an edge that one of them lacks, and shards that are connected one way only.
        (changed(edges={(9, 4): 0.25}), GraphError, r"W\[9, 4\] = 0.25 but W\[4, 9\] = 0: edges are mutual"),
        (changed(edges={(7, 8): 0.25}), GraphError, r"W\[8, 7\] = \S+ but W\[7, 8\] = 0.25: edges are mutual"),
        (changed(edges={(7, 8): 0.0}), GraphError, r"W\[8, 7\] = \S+ but W\[7, 8\] = 0: edges are mutual"),
        (changed(more=({"ridge": [1.0]},)), DataError, r"build\(0, 8\): ridge has shape \(1,\); there are 8 agents"),
        (changed(more=(7,)), DataError, "the third result must map names to numbers; found int"),
    ],
)
def test_bad_blocks(wrong, error, message):
    with pytest.raises(error, match=message):
        ct.simulate(ct.engines.ShardedProblem(wrong, N), "cd", wakes=5, engine=Local(shards=2))


def test_edges_one_way_only():
    """Shard 0 says that it is connected to shard 2, which knows nothing of it."""

    def lopsided(first, last):
        W = sparse.lil_array((last - first, 9))
        if first == 0:
            W[1, 7] = 0.5
        return np.zeros((last - first, 2)), W.tocsr()

    with pytest.raises(GraphError, match=r"W\[7, 1\] = 0 but W\[1, 7\] = 0.5"):
        ct.simulate(
            ct.engines.ShardedProblem(lopsided, 9, ct.Problem.propagation), "cd", wakes=5, engine=Local(shards=3)
        )


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"method": ct.Learned(ct.DJAM(), ct.GraphRule())}, ParameterError, r"learn the graph first.* run DJAM\(\)"),
        ({"method": "djam", "objective": "hinge"}, MismatchError, "DJAM needs strongly convex losses"),
        ({"method": "cd", "objective": "hinge"}, MismatchError, r"CoordinateDescent takes gradient steps, and Hinge"),
        ({"method": "boosting"}, MismatchError, "FrankWolfeBoosting is for Problem.boosting"),
        ({"objective": "stumps", "method": "boosting"}, MismatchError, "places its thresholds by the rows it sees"),
        ({"choice": np.eye(N)}, ParameterError, 'choice must be "uniform" or "weight" for a ShardedProblem'),
        ({"choice": "often"}, ParameterError, "choice='often' must be"),
        ({"start": np.zeros((3, P))}, ParameterError, r"models must have shape \(17, p\)"),
        ({"start": np.zeros((N, 9))}, ParameterError, "start has models of 9 numbers; the agents have 4 features"),
        ({"start": np.full((N, P), np.nan)}, ParameterError, "the model of agent 0 is nan at coordinate 0"),
        ({"fetch": "all"}, ParameterError, "fetch='all' must be True, False, or a function"),
        ({"fetch": False, "engine": None}, ParameterError, "fetch=... is for models on a cluster"),
        ({"events": [1, 2]}, ParameterError, "events=... does not go with engine"),
        ({"vectors": 9}, ParameterError, "vectors=... does not go with engine"),
        ({"method": "global"}, ParameterError, "is computed in one place"),
    ],
)
def test_what_is_refused(options, error, message):
    objectives = {
        "hinge": (ct.Problem.separate, {"loss": "hinge"}),
        "stumps": (ct.Problem.boosting, {"base": 5}),
    }
    objective, settings = objectives.get(options.pop("objective", None), OBJECTIVES["personalized"])
    problem = ct.engines.ShardedProblem(build, N, objective, **settings)
    with pytest.raises(error, match=message):
        ct.simulate(problem, **{"method": "cd", "wakes": 5, "engine": Local(shards=2)} | options)


@pytest.mark.parametrize(
    ("arguments", "settings", "message"),
    [
        ((3, N), {}, "build=3 must be a function"),
        ((build, 0), {}, "n = 0: expected an integer >= 1"),
        ((build, N, "cd"), {}, "objective='cd' must be a constructor"),
        ((build, N), {"ridge": np.ones(N)}, "ridge is an array: settings are common to all agents"),
    ],
)
def test_bad_recipes(arguments, settings, message):
    with pytest.raises(ParameterError, match=message):
        ct.engines.ShardedProblem(*arguments, **settings)


# -- on a real Ray -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_on_ray(ray, caplog, monkeypatch):
    def noisy(first, last):
        logging.getLogger("coterie").warning("built %d to %d", first, last)
        return build(first, last)

    with pytest.raises(ClusterError, match="workers cannot import test_sharded: install the same packages"):
        ct.simulate(recipe("personalized"), "cd", wakes=60, engine=ct.Cluster(shards=2))
    cloudpickle = pytest.importorskip("ray.cloudpickle")
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    with monkeypatch.context() as patch:
        patch.setattr(shard, "WorkerLog", Silent)
        expected = ct.simulate(recipe("personalized"), "cd", wakes=60, every=25, engine=Local(shards=2), fetch=True)
    problem = ct.engines.ShardedProblem(noisy, N, ct.Problem.personalized, mu=0.7)
    with caplog.at_level(logging.WARNING):
        run = ct.simulate(
            problem, "cd", wakes=60, every=25, engine=ct.Cluster(shards=2), fetch=lambda first, theta: theta
        )
    assert np.array_equal(np.concatenate(run.fetched), expected.theta)
    assert run.trace.equals(expected.trace)
    assert {"built 0 to 8", "built 8 to 17"} <= {record.getMessage() for record in caplog.records}
    with pytest.raises(DataError, match=r"build\((0|8), (8|17)\) failed: FileNotFoundError: rows-[08].npz"):
        ct.simulate(ct.engines.ShardedProblem(fails, N), "cd", wakes=60, engine=ct.Cluster(shards=2))
