"""Shards on a cluster: the optimum of one process, exact accounts, same seed same bits, and what is refused.

References: Problem.solve for the models; for the messages, a count by hand from who woke. Most is looked at twice: with
shards in this process, and on a real Ray that is started here.
"""

from __future__ import annotations

import functools
import sys
import types
from contextlib import contextmanager

import numpy as np
import pytest

import coterie as ct
from coterie.core import loop
from coterie.core.arrays import send
from coterie.core.messages import Vector
from coterie.core.methods import resolve_method
from coterie.core.methods.descent import MODEL
from coterie.engines import shard
from coterie.engines.shards import Shards
from coterie.errors import CapacityError, ClusterError, MissingExtra, ParameterError
from ray_in_process import Here, Local, Silent

N, P, WAKES, SEED = 13, 3, 3000, 5
METHODS = {"cd": 2, "admm": 3, "propagation": 2, "djam": 3}  # and how many shards
SELDOM = [name if name == "cd" else pytest.param(name, marks=pytest.mark.slow) for name in METHODS]
methods = pytest.mark.parametrize("name", SELDOM)


@functools.cache
def example(name):
    """A ring of twelve agents with chords, one of them without rows, and one agent without edges."""
    rng = np.random.default_rng(1)
    W = np.zeros((N, N))
    for i in range(N - 1):
        for j in ((i + 1) % (N - 1), 5 * i % (N - 1)):
            if i != j:
                W[i, j] = W[j, i] = rng.uniform(0.4, 1.5)
    graph = ct.Graph(W)
    if name == "propagation":
        return ct.Problem.propagation(rng.normal(size=(N, P)), graph, alpha=0.7)
    ids = np.repeat(np.arange(N), [4, 7, 0, 5, 6, 3, 8, 4, 5, 2, 6, 4, 5])
    X = rng.normal(size=(len(ids), P))
    y = X @ rng.normal(size=P) + rng.normal(size=len(ids))
    data = ct.AgentData(X, np.sign(y), agents=ids, members=range(N))  # with the loss for which others compile, too
    if name == "cd":
        return ct.Problem.personalized(data, graph, loss=ct.Logistic(), mu=0.7)
    if name == "admm":
        return ct.Problem.collaborative(data, graph, loss=ct.Logistic(), mu=0.5, ridge=0.1)
    return ct.Problem.separate(data, graph, loss=ct.Logistic(), ridge=0.2)


def messages(name, wakes):
    """What must have been sent: both ways along each edge at first; then to all neighbours, or there and back."""
    who = np.random.default_rng(np.random.SeedSequence(SEED).spawn(3)[0]).integers(0, N, WAKES)[:wakes]
    neighbours = np.diff(example(name).graph.start)
    return neighbours.sum() + (neighbours[who].sum() if name == "cd" else 2 * (neighbours[who] > 0).sum())


@pytest.fixture(autouse=True)
def _silent(monkeypatch):
    monkeypatch.setattr(shard, "WorkerLog", Silent)


def driver_of(name, count, cluster=Local):
    return Shards.of(example(name), resolve_method(name), "local", SEED, WAKES, engine=cluster(None, count, 0.5))


@functools.cache
def expected(name, count):
    with driver_of(name, count) as driver:
        driver.advance(WAKES, loop.NO_LIMIT)
        return driver.theta, driver.account


@pytest.mark.plain
@methods
def test_shards_in_this_process(name, monkeypatch):
    problem = example(name)
    theta, account = expected(name, METHODS[name])
    best = problem.solve()
    assert abs(theta - best)[problem.determined].max() < 1e-6
    assert account[loop.MESSAGES] == messages(name, WAKES)
    # Looking on the way, in the middle of supersteps too, and a box that is emptied all the time change nothing.
    monkeypatch.setattr(shard, "BUFFER_MESSAGES", 1)
    monkeypatch.setattr(shard, "WAKES_PER_DRAW", 7)
    with driver_of(name, METHODS[name]) as driver:
        for steps in (1, 5, 7, 40, 2, 600, 0, WAKES - 655):
            driver.advance(steps, loop.NO_LIMIT)
            assert driver.theta.shape == (N, P)
        assert np.array_equal(driver.theta, theta)
        assert np.array_equal(driver.account, account)


@pytest.mark.plain
def test_a_message_is_late_by_at_most_one_superstep():
    with driver_of("cd", 3) as driver:
        seen = []
        for _ in range(4):
            driver.advance(N, loop.NO_LIMIT)
            seen.append(np.concatenate([actor.made.own.theta for actor in driver.shards]))
            for batches in driver.inbox:
                assert sum(len(batch.place) for batch in batches) > 0
        driver.advance(1, loop.NO_LIMIT)  # all shards that had mail have read it, or will before they wake anybody
        for actor in driver.shards:
            made = actor.made
            assert made.away.size > 0
            # What was heard of agents elsewhere, in the order of their numbers.
            assert np.array_equal(made.edge.copy.message[made.size :], seen[-1][made.away])


class Pool:
    """Ray whose actors are used again by the next test: most of the time here is that of workers that import."""

    def __init__(self, ray):
        self.ray, self.free = ray, []

    def __getattr__(self, name):
        return getattr(self.ray, name)

    def remote(self, **options):
        make = self.ray.remote(**options)
        return lambda kind: types.SimpleNamespace(
            remote=lambda *args: self.free.pop() if self.free else make(kind).remote(*args)
        )

    def kill(self, actor):
        self.free.append(actor)


@pytest.fixture(scope="module")
def pooled(ray):
    """Clusters that are connected already."""
    pool = Pool(ray)

    class Pooled(ct.Cluster):
        @contextmanager
        def connect(self):
            yield pool

    yield Pooled
    for actor in pool.free:
        ray.kill(actor)


@methods
def test_reaches_the_optimum(name, pooled):
    problem, count, calls = example(name), METHODS[name], []
    run = ct.simulate(
        problem,
        name,
        wakes=WAKES,
        seed=SEED,
        every=999,
        observe={"first": lambda theta: theta[0, 0]},
        progress=lambda done, total: calls.append((done, total)),
        engine=pooled(shards=count, cpus=0.5),
    )
    assert abs(run.theta - problem.solve())[problem.determined].max() < 1e-6
    assert run.trace["wakes"].tolist() == [0, 999, 1998, 2997, WAKES]
    assert run.wakes == WAKES
    assert run.messages == run.tally[:, 0].sum() == messages(name, WAKES)
    assert run.vectors == run.tally[:, 1].sum() // P == run.trace["vectors"].iloc[-1]
    assert run.bytes == run.trace["bytes"].iloc[-1]
    assert run.trace["first"].iloc[-1] == run.theta[0, 0]
    assert calls[-1] == (WAKES, WAKES)
    if name == "cd":  # one vector in a message, and no answers: exact at every row
        assert [messages(name, wakes) for wakes in run.trace["wakes"]] == run.trace["vectors"].tolist()
    # Same seed, same number of shards, same bits: whichever way messages travel, and whatever was looked at.
    theta, account = expected(name, count)
    assert np.array_equal(run.theta, theta)
    assert np.array_equal(run.tally, account[loop.KINDS :].reshape(-1, 2))


@pytest.mark.slow
def test_the_models_that_were_enough_are_those_of_the_run_though_messages_are_under_way(pooled):
    problem = example("cd")
    seen = []
    enough = ct.simulate(
        problem,
        "cd",
        wakes=500,
        seed=2,
        every=70,
        until=lambda theta: seen.append(theta) or len(seen) == 3,
        engine=pooled(shards=2, cpus=0.25),
    )
    assert enough.wakes == 140
    assert np.array_equal(enough.theta, seen[-1])
    assert ct.simulate(problem, "cd", wakes=0, engine=pooled(shards=2)).messages == messages("cd", 0)


@ct.method
class Stray(ct.CoordinateDescent):
    """Writes to somebody who is not there."""

    messages = {MODEL: Vector()}
    publishes = False

    def wake(self, data, me, edges, randomness, outbox):
        send(outbox, 99, MODEL, me.theta)


@pytest.mark.plain
def test_a_message_to_nobody():
    problem = example("cd")
    with (
        pytest.raises(CapacityError, match="99 is no agent's address"),
        Shards.of(problem, Stray(), "local", SEED, WAKES, engine=Local(None, 2)) as driver,
    ):
        driver.advance(3 * N, loop.NO_LIMIT)


def wake_for_ever(driver):
    while True:  # an actor that was killed takes a moment to die
        driver.advance(N, loop.NO_LIMIT)


@pytest.mark.slow
def test_errors_on_shards(ray, pooled):
    with driver_of("cd", 2, pooled) as driver:
        ray.kill(driver.shards[1])
        with pytest.raises(ClusterError, match="a shard is gone, and its agents with it"):
            wake_for_ever(driver)
        ray.kill(driver.shards[0])
        driver.shards = []
    with pytest.raises(ClusterError, match=r"5 shard\(s\) of 0.5 CPU\(s\) each do not fit.* room for 4"):
        driver_of("cd", 5, pooled)


def test_count():
    ray = Here()  # one machine of 4 CPUs, one that is gone
    assert ct.Cluster().count(ray, 100) == 4
    assert ct.Cluster().count(ray, 3) == 3
    assert ct.Cluster(cpus=0.1).count(ray, 100) == 4
    assert ct.Cluster(cpus=3).count(ray, 100) == 1
    assert ct.Cluster(shards=40, cpus=0.1).count(ray, 100) == 40
    assert ct.Cluster(shards=8).count(ray, 2) == 2
    for cluster in (ct.Cluster(cpus=5), ct.Cluster(shards=5), ct.Cluster(shards=2, cpus=3)):
        with pytest.raises(ClusterError, match="do not fit: the cluster has 4 CPU"):
            cluster.count(ray, 100)


@pytest.mark.parametrize(
    "wrong",
    [
        {"address": ""},
        {"address": 6379},
        {"shards": 0},
        {"shards": 2.5},
        {"shards": True},
        {"cpus": 0},
        {"cpus": float("nan")},
        {"cpus": 1.5},
        {"cpus": "all"},
        {"folder": ""},
        {"folder": 3},
    ],
    ids=str,
)
def test_bad_clusters(wrong):
    [(name, value)] = wrong.items()
    with pytest.raises(ParameterError, match=rf"{name}( = |=){value!r}"):
        ct.Cluster(**wrong)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"events": [0, 1]}, "events=... does not go with engine"),
        ({"wakes": 5, "conditions": ct.Conditions(latency=1.0)}, "conditions=... does not go with engine"),
        ({"wakes": 5, "capacity": 9}, "capacity=... does not go with engine"),
        ({"wakes": 5, "changes": [(2, example("cd"))]}, "changes=... does not go with engine"),
        ({"rounds": 5}, "rounds=... does not go with engine"),
        ({"vectors": 5}, "vectors=... does not go with engine"),
        ({"bytes": 5}, "bytes=... does not go with engine"),
        ({"wakes": 5, "engine": "ray"}, "engine='ray' must be a ct.Cluster"),
        ({"wakes": 5, "method": "global"}, r"GlobalModel\(\) is computed in one place: leave engine out"),
        ({"wakes": 5, "method": ct.Learned(ct.CoordinateDescent(), ct.GraphRule())}, "learns the graph"),
    ],
    ids=lambda value: "" if isinstance(value, str) else "-".join(value),
)
def test_what_a_cluster_cannot_do(other, message):
    given = {"method": "cd", "engine": ct.Cluster(shards=2), **other}
    with pytest.raises(ParameterError, match=message):
        ct.simulate(example("cd"), **given)


def test_a_rule_from_a_script(monkeypatch):
    monkeypatch.setattr(ct.CoordinateDescent, "__module__", "__main__")
    with pytest.raises(ParameterError, match="cannot import CoordinateDescent from a script"):
        ct.simulate(example("cd"), "cd", wakes=1, engine=ct.Cluster())


def test_without_ray(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtra, match=r"needs Ray: pip install 'coterie\[ray\]'"):
        ct.simulate(example("cd"), "cd", wakes=1, engine=ct.Cluster())


def refused(words, **_):
    raise RuntimeError(words)


def test_connections(monkeypatch):
    calls = []

    def init(address, **_):
        calls.append(address)
        if address == "auto":
            raise ConnectionError("nobody there")

    fake = types.SimpleNamespace(is_initialized=lambda: False, init=init, shutdown=lambda: calls.append("end"))
    monkeypatch.setitem(sys.modules, "ray", fake)
    with pytest.raises(ZeroDivisionError), ct.Cluster().connect():
        raise ZeroDivisionError
    assert calls == ["local", "end"]
    with (
        pytest.raises(ClusterError, match="cannot reach a cluster at 'auto': nobody there"),
        ct.Cluster("auto").connect(),
    ):
        pass
    assert calls[2:] == ["auto", "end"]
    # Nobody listens on port 1: found out at once, and Ray, which would try for minutes, is not asked.
    with (
        pytest.raises(ClusterError, match=r"cannot reach a cluster at '127\.0\.0\.1:1'.* \(nothing listens there"),
        ct.Cluster("127.0.0.1:1").connect(),
    ):
        pass
    assert calls[4:] == ["end"]

    for words, hint in [
        ("Version mismatch: The cluster was started with: Ray: 2.9.0", "install the versions of Ray and Python that"),
        ("Invalid address format: auto", "pass host and port"),
        ("Failed to connect", "if it is up: RAY_AUTH_MODE and RAY_AUTH_TOKEN must be those"),
    ]:
        fake.init = functools.partial(refused, words)
        with pytest.raises(ClusterError, match=f"{words} \\({hint}"), ct.Cluster("auto").connect():
            pass
    fake.is_initialized = lambda: True
    calls.clear()
    with ct.Cluster("auto").connect() as ray:
        assert ray is fake
    assert calls == []
