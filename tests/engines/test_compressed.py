"""Compressed messages: what is sent, what it costs, and where methods come to with them."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

import coterie as ct
from coterie.core import loop
from coterie.core.messages import Bounds, Contents, Largest, Levels, Single, prices_of
from coterie.core.private.noise import KEY, SIZE, next_word, open_stream
from coterie.core.wrap.compression import level_of, smallest_of
from coterie.engines.arrays import arrays_of
from coterie.engines.wire import HEADER_SIZE, decode, encode, prices
from coterie.errors import DataError, MismatchError, ParameterError
from coterie.testing import hard_problem
from coterie.testing.methods import METHOD_CHECKS, Replay
from coterie.testing.shared import Crowd

HOWS = [
    ct.compression.TopK(0.4),
    ct.compression.Quantised(3),
    ct.compression.Quantised(4, random=True),
    ct.compression.Float32(),
]


def through(how, vector, seed=0):
    """The numbers of a message, and the vector that they stand for."""
    p = len(vector)
    dice, room = np.random.default_rng(seed).random(how.dice), np.zeros(max(1, how.room(p)))
    out, restored = np.zeros(2 * p + 2), np.zeros(p)
    text = out[: how.compress(vector, dice, room, out)]
    how.restore(text, restored)
    return text, restored


# -- compressions -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("share", [0.01, 0.3, 0.5, 1.0, 1, 3, 100])
def test_the_largest_entries_are_sent_as_they_are(share):
    x = np.random.default_rng(0).normal(size=20)
    k = min(share, 20) if isinstance(share, int) else max(1, round(share * 20))
    text, restored = through(ct.compression.TopK(share), x)
    kept = np.sort(np.argsort(-np.abs(x))[:k])
    assert text.tolist() == [number for c in kept for number in (c, x[c])]
    np.testing.assert_array_equal(restored, np.where(np.isin(np.arange(20), kept), x, 0.0))


def test_of_equal_entries_the_first_are_sent_and_never_more():
    assert through(ct.compression.TopK(2), np.array([1.0, -1.0, 1.0, 0.5]))[0].tolist() == [0.0, 1.0, 1.0, -1.0]
    assert through(ct.compression.TopK(3), np.zeros(5))[0].tolist() == [0.0, 0.0, 1.0, 0.0, 2.0, 0.0]
    assert len(through(ct.compression.TopK(2), np.full(6, np.nan))[0]) == 4


@pytest.mark.parametrize("seed", range(20))
def test_selection_finds_what_sorting_finds(seed):
    rng = np.random.default_rng(seed)
    values = rng.integers(0, 6, rng.integers(1, 30)).astype(float)
    rank = int(rng.integers(0, len(values)))
    assert smallest_of(values.copy(), rank) == np.sort(values)[rank]


def test_dice_between_two_levels_are_right_in_the_mean():
    """Enumerated: 64 dice evenly on [0, 1), and sizes in the same units, so that nothing is rounded."""
    dice = np.arange(64) / 64
    for size in np.arange(5 * 64) / 64:
        assert np.mean([level_of(size, die) for die in dice]) == size


@pytest.mark.parametrize("bits", [2, 4, 9])
def test_random_levels_are_those_of_qsgd(bits):
    x, how, p = np.random.default_rng(bits).normal(size=30), ct.compression.Quantised(bits, random=True), 30
    text, restored = through(how, x)
    stream = np.zeros(SIZE, np.int64)
    open_stream(np.random.default_rng(0).random(KEY), stream)
    u, s, norm = np.array([next_word(stream) for _ in x]) / 2**32, 2 ** (bits - 1) - 1, np.linalg.norm(x)
    tau = 1 + min(p / s**2, np.sqrt(p) / s)
    levels = np.sign(x) * np.floor(s * np.abs(x) / norm + u)
    np.testing.assert_array_equal(text[1:], levels)
    np.testing.assert_allclose(restored, norm / (s * tau) * levels, rtol=1e-12)


@pytest.mark.parametrize("how", [*HOWS, ct.compression.TopK(1)], ids=repr)
@pytest.mark.parametrize("p", [1, 7, 40])
def test_something_always_gets_through(how, p):
    """|x - C(x)|^2 <= (1 - delta) |x|^2: for dice, in the mean over a thousand keys, far from the bound."""
    x = np.random.default_rng(p).normal(size=p) * 10.0 ** np.random.default_rng(p).integers(-3, 3, p)
    keys = range(1000) if how.dice else range(1)
    left = np.mean([np.sum((x - through(how, x, key)[1]) ** 2) for key in keys])
    assert left <= (1 - 1 / (2 * p)) * np.sum(x * x)
    np.testing.assert_array_equal(through(how, np.zeros(p))[1], np.zeros(p))


# -- what messages cost ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("how", HOWS, ids=repr)
@pytest.mark.parametrize("p", [1, 5, 33])
def test_messages_are_as_long_as_they_are_said_to_be_and_come_back_bit_for_bit(how, p):
    messages = {0: ct.CoordinateDescent().messages[0], 1: how.parts}
    contents = Contents(messages, Bounds(p))
    text, _ = through(how, np.random.default_rng(p).normal(size=p))
    data = encode(3, 1, text, contents)
    message, number = prices(messages, p)
    assert len(data) == message[1] + len(text) * number[1]
    sender, kind, back = decode(data, contents)
    assert (sender, kind) == (3, 1)
    np.testing.assert_array_equal(back, text)
    assert contents.read(1, back, range(5))[1]
    for broken in (data[:-1], data + b"\0"):
        with pytest.raises(DataError, match="bytes"):
            decode(broken, contents)


def test_bytes_are_those_of_the_papers():
    """100 numbers: 10 pairs of 4 and 8 bytes; a scale of 8 bytes and 100 levels of 4 bits; 100 floats."""
    for part, size in ((Largest(0.1), 120), ((ct.compression.Quantised(4).parts), 58), (Single(), 400)):
        message, number = prices_of({0: part}, 100)
        lengths = [one.length(100) for one in (part if isinstance(part, tuple) else (part,))]
        assert message[0] + number[0] * sum(lengths) == size
    assert [Levels(bits).size(9) for bits in (2, 3, 8, 16)] == [3, 4, 9, 18]


def test_what_no_honest_peer_sends_is_seen():
    bounds = Bounds(5)
    good = Contents({0: Largest(2 / 5)}, bounds)
    for text, allowed in (
        ([1.0, 9.0, 3.0, 9.0], True),
        ([3.0, 9.0, 1.0, 9.0], False),
        ([1.0, 9.0, 1.0, 9.0], False),
        ([1.0, 9.0, 5.0, 9.0], False),
        ([0.5, 9.0, 1.0, 9.0], False),
    ):
        assert good.read(0, np.array(text), ())[1] is allowed
    levels = Contents({0: Levels(3)}, bounds)
    assert levels.read(0, np.array([3.0, -3.0, 0.0, 1.0, 2.0]), ())[1]
    assert not levels.read(0, np.array([4.0, 0.0, 0.0, 0.0, 0.0]), ())[1]
    assert not levels.read(0, np.array([0.5, 0.0, 0.0, 0.0, 0.0]), ())[1]


@pytest.mark.parametrize("how", HOWS, ids=repr)
def test_the_account_is_what_peers_send(how):
    method, problem = ct.compression.Compressed("cd", how, whole_every=7), hard_problem()
    replay = Replay(method, problem, 120, seed=3)
    _, own, _, account = replay.hosted(compiled=False)
    crowd = Crowd(method, arrays_of(problem), replay.start).replay(replay.parts)
    assert loop.cost_of(account, *prices(method.messages, problem.p)) == crowd.size
    np.testing.assert_array_equal(own.theta, [peer.theta for peer in crowd.peers])


def test_a_budget_of_bytes_ends_with_the_wake_that_reaches_it():
    problem, method = hard_problem(), ct.compression.Compressed("cd", ct.compression.TopK(0.4))
    run = ct.simulate(problem, method, bytes=20_000, seed=0)
    before = ct.simulate(problem, method, wakes=run.wakes - 1, seed=0)
    same = ct.simulate(problem, method, wakes=run.wakes, seed=0)
    assert before.bytes < 20_000 <= run.bytes == same.bytes
    assert np.array_equal(run.theta, same.theta)
    whole, change = run.tally
    assert run.bytes == whole[0] * (HEADER_SIZE + 24) + change[0] * (HEADER_SIZE + 2 * 12)  # two entries of three


# -- methods with compressed messages ----------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("promise", list(METHOD_CHECKS))
@pytest.mark.parametrize("how", [HOWS[0], *(pytest.param(how, marks=pytest.mark.slow) for how in HOWS[1:])], ids=repr)
def test_every_promise_of_a_method_is_kept(how, promise):
    """With whole messages now and then, also when messages are late, lost and doubled."""
    METHOD_CHECKS[promise](ct.compression.Compressed("cd", how, whole_every=5))


@pytest.mark.slow
@pytest.mark.parametrize("promise", ["reaches the optimum", "follows changes", "may be stored once"])
def test_without_whole_messages_all_that_do_not_lose_any(promise):
    METHOD_CHECKS[promise](ct.compression.Compressed("cd", HOWS[0]))


def test_with_all_entries_it_is_the_method_but_for_rounding():
    problem, events = hard_problem(), np.random.default_rng(0).integers(0, 9, 400)
    plain = ct.simulate(problem, "cd", events=events)
    for share in (1.0, 3):
        run = ct.simulate(problem, ct.compression.Compressed("cd", ct.compression.TopK(share)), events=events)
        np.testing.assert_allclose(run.theta, plain.theta, rtol=0, atol=1e-12)
    whole = ct.simulate(problem, ct.compression.Compressed("cd", ct.compression.TopK(1), whole_every=1), events=events)
    assert np.array_equal(whole.theta, plain.theta)
    assert whole.bytes == plain.bytes


def forgetful(problem, order, k):
    """Coordinate descent whose messages are the k largest entries of the model, and no memory of the others."""
    theta, W, s = problem.local(), problem.graph.W.toarray(), problem.smooth
    own, lipschitz = problem.importance, problem.block_lipschitz
    said = theta.copy()
    for i in order:
        pull = 2 * s * (W[i].sum() * theta[i] - W[i] @ said)
        theta[i] -= (pull + own[i] * (theta[i] - problem.local()[i])) / lipschitz[i]
        said[i] = np.where(np.abs(theta[i]) >= np.sort(np.abs(theta[i]))[-k], theta[i], 0.0)
    return theta


def test_what_is_left_out_is_remembered_and_so_the_optimum_is_reached():
    models = np.random.default_rng(0).normal(size=(6, 20))
    problem = ct.Problem.propagation(models, ct.graphs.ring(6), alpha=0.6)
    order = np.random.default_rng(1).integers(0, 6, 4000)
    best = problem.value(problem.solve())
    run = ct.simulate(problem, ct.compression.Compressed("cd", ct.compression.TopK(2)), events=order)
    assert problem.value(run.theta) - best <= 1e-10 * best
    assert problem.value(forgetful(problem, order, 20)) - best <= 1e-10 * best  # the reference is the method,
    assert problem.value(forgetful(problem, order, 2)) - best >= 0.05 * best  # and forgets


class TestChoco:
    """D-PSGD with compressed messages and a consensus step, against the formula in NumPy."""

    def setup_method(self):
        rng = np.random.default_rng(0)
        self.n, self.p, self.rate = 5, 6, 0.05
        X = rng.normal(size=(5 * 8, 6))
        y = X @ rng.normal(size=6) + rng.normal(size=40)
        self.X, self.y = X.reshape(5, 8, 6), y.reshape(5, 8)
        W = np.roll(np.eye(5), 1, axis=0) / 3
        self.W = W + W.T
        data = ct.AgentData(X, y, agents=np.repeat(np.arange(5), 8))
        self.problem = ct.Problem.separate(data, ct.Graph(self.W), loss="squared")
        self.start = rng.normal(size=(5, 6))

    def test_each_round_is_that_of_the_paper(self):
        from coterie.core.methods.dpsgd import DPSGD

        gamma, k = 0.6, 2
        method = ct.Robust(
            ct.compression.Compressed(DPSGD(ct.optim.SGD(self.rate), mixing="weights"), ct.compression.TopK(k)),
            ct.robust.Consensus(gamma),
        )
        run = ct.simulate(self.problem, method, rounds=30, start=self.start)
        x, shown = self.start.copy(), self.start.copy()
        for _ in range(30):
            gradient = np.einsum("nmp,nm->np", self.X, np.einsum("nmp,np->nm", self.X, x) - self.y) / 8
            x = x - self.rate * gradient + gamma * (self.W @ shown - self.W.sum(1)[:, None] * shown)
            change = x - shown
            least = np.sort(np.abs(change), axis=1)[:, -k][:, None]
            shown = shown + np.where(np.abs(change) >= least, change, 0.0)
        np.testing.assert_allclose(run.theta, x, rtol=0, atol=1e-12)
        assert run.bytes == 10 * (16 + 48) + 30 * 10 * (16 + 12 * k)


@pytest.mark.parametrize(
    ("error", "message", "make"),
    [
        (
            MismatchError,
            r"ct\.robust\.Trimmed\(ct\.compression\.Compressed",
            lambda: ct.compression.Compressed(ct.robust.Trimmed("cd"), ct.compression.TopK(0.1)),
        ),
        (
            MismatchError,
            "more than send its model",
            lambda: ct.compression.Compressed("djam", ct.compression.TopK(0.1)),
        ),
        (
            MismatchError,
            "private",
            lambda: ct.compression.Compressed(ct.Private("cd", wakes_per_agent=3), ct.compression.TopK(0.1)),
        ),
        (
            ParameterError,
            "already",
            lambda: ct.compression.Compressed(
                ct.compression.Compressed("cd", ct.compression.TopK(0.1)), ct.compression.TopK(0.1)
            ),
        ),
        (
            ParameterError,
            "handler 'open'",
            lambda: ct.Learned(ct.compression.Compressed("cd", ct.compression.TopK(0.1))),
        ),
        (ParameterError, "must be a compression", lambda: ct.compression.Compressed("cd", 0.1)),
        (ParameterError, "a share of all entries", lambda: ct.compression.TopK(0.0)),
        (ParameterError, "a share of all entries", lambda: ct.compression.TopK(1.5)),
        (ParameterError, "bits = ", lambda: ct.compression.Quantised(1)),
        (ParameterError, "True or False", lambda: ct.compression.Quantised(4, 1)),
    ],
)
def test_compositions_say_who_goes_where(error, message, make):
    with pytest.raises(error, match=message):
        make()


def test_a_defence_around_it_sees_whole_models():
    """What was said, at every neighbour, is the sum of what was sent."""
    problem = hard_problem()
    method = ct.robust.Trimmed(ct.compression.Compressed("cd", ct.compression.TopK(2)), 0.3)
    _, own, edge, _ = Replay(method, problem, 200, seed=5).hosted(compiled=False)
    np.testing.assert_array_equal(edge.said, own.sent[arrays_of(problem).peer])
    assert pickle.loads(pickle.dumps(method)) == method
    assert not np.array_equal(own.sent, own.theta)


@pytest.mark.parametrize(
    ("why", "bad"),
    [
        ("lost", ct.Conditions(loss=0.1)),
        ("twice", ct.Conditions(duplication=0.1)),
        ("overtake", ct.Conditions(latency=1.0)),
        ("away", ct.Conditions(outages=[(0, 1.0, 2.0)])),
    ],
)
def test_conditions_that_would_break_sums_are_refused(why, bad):
    problem, method = hard_problem(), ct.compression.Compressed("cd", ct.compression.TopK(2))
    with pytest.raises(MismatchError, match=f"{why}.*whole_every"):
        ct.simulate(problem, method, wakes=10, conditions=bad)


@pytest.mark.slow
def test_messages_that_are_only_late_do_no_harm():
    problem = hard_problem()
    late = ct.Conditions(latency=2.0, jitter=0.0)
    run = ct.simulate(problem, ct.compression.Compressed("cd", ct.compression.TopK(0.4)), wakes=20_000, conditions=late)
    assert problem.suboptimality(run.theta) <= 1e-9
