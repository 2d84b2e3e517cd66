"""What was published is what was sent; the clean model that an agent has for itself is nowhere but at home.

Not in ``run.published``, not in what graphs are learned from, not in the ``published`` of a peer's model.json, and not
in any message after it was worked out.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

import coterie as ct
from coterie.engines.arrays import arrays_of
from coterie.engines.wire import decode, read_numbers
from coterie.peers.model.scores import model_of
from coterie.peers.wire.packet import read_packet
from coterie.testing.shared import Crowd

sys.path.insert(0, str(Path(__file__).parents[1] / "peers"))
from small_group import SmallGroup

N, P = 6, 3


def rows(scale=1.0, seed=0):
    """Rows that are all clipped, and whose clipped gradients at zero do not depend on their scale."""
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(5 * N, P))
    y = X @ [1.0, -2.0, 0.5] + rng.normal(size=N).repeat(5)
    X *= scale * 20.0 / np.linalg.norm(X, axis=1, keepdims=True)
    return ct.AgentData(X, 20.0 * np.sign(y), agents=np.repeat(np.arange(N), 5))


def problem_of(name, data, graph=None):
    graph = ct.graphs.complete(N) if graph is None else graph
    if name == "boosting":
        signs = ct.AgentData(data.X, np.sign(data.y), agents=np.repeat(np.arange(N), 5))
        return ct.Problem.boosting(signs, graph, base=lambda X: X, beta=1.0, loss="logistic")
    make = (
        ct.Problem.pooling if name == "gossip-pooling" and hasattr(ct.Problem, "pooling") else ct.Problem.personalized
    )
    return make(data, graph, loss="squared")


NAMES = ("cd", "propagation", "boosting", "gossip-pooling")
OFTEN = {"cd": {"wakes_per_agent": 2}, "boosting": {"wakes_per_agent": 2}}


def private(name, final):
    return ct.Private(name, epsilon=4.0, clip=0.5, final=final, **OFTEN.get(name, {}))


def run_of(name, final, data=None, learned=False, wakes=None):
    problem = problem_of(name, rows() if data is None else data)
    method = private(name, final)
    if learned:
        method = ct.Learned(method, ct.GraphRule(kappa=2), every=2)
    wakes = wakes or (2 * N if name in OFTEN else 60)
    return ct.simulate(problem, method, wakes=wakes, seed=4)


@pytest.mark.parametrize(
    ("name", "learned"),
    [(name, learned) for name in NAMES for learned in (False, True) if name != NAMES[-1] or not learned],
)
def test_a_run_publishes_what_it_would_without_a_final_step(name, learned):
    own, plain = (run_of(name, final, learned=learned) for final in ("local", None))
    assert own.published is not None
    np.testing.assert_array_equal(own.published, plain.published)
    np.testing.assert_array_equal(plain.published, plain.theta)
    assert not np.isclose(own.theta, own.published).all(axis=1).any()  # nobody has published what it keeps
    np.testing.assert_array_equal(own.graph.W.toarray(), plain.graph.W.toarray())  # nor learned a graph from it
    assert (own.messages, own.bytes, own.notes) == (plain.messages, plain.bytes, plain.notes)
    assert (own.epsilon, own.delta, own.plan) == (plain.epsilon, plain.delta, plain.plan)
    np.testing.assert_array_equal(own.tally, plain.tally)
    assert own.trace.equals(plain.trace)


def test_what_is_published_is_blind_to_what_was_clipped():
    """Rows three times as long say the same when they are clipped, to the last bit; clean models tell them apart."""
    short, long = (run_of("cd", "local", rows(scale), wakes=1) for scale in (1.0, 3.0))
    np.testing.assert_array_equal(short.published, long.published)
    assert short.published.any()
    assert not np.isclose(short.theta, long.theta).all(axis=1).any()


def test_what_goes_on_from_a_run_has_its_own_models_published():
    first = run_of("cd", "local")
    both = ct.simulate(first.problem, private("cd", "local"), seed=5, start=first.published).after(first)
    assert not np.isclose(both.published, both.theta).all(axis=1).any()
    assert not np.array_equal(both.published, first.published)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name == "boosting" else ()) for name in NAMES]
)
def test_peers_send_nothing_else(name):
    """Whatever is asked of a peer, also after it has looked at its own model: messages hold what it has published."""
    problem, method = problem_of(name, rows(), ct.graphs.ring(N)), private(name, "local")
    sent = [[] for _ in range(N)]
    crowd = Crowd(
        method,
        arrays_of(problem),
        np.zeros((N, P)),
        lambda peer, message: sent[message.sender].append(decode(message.data)[2]),
    )
    for turn in range(4):
        crowd.greet()
        for i, peer in enumerate(crowd.peers):
            crowd.wake(i)
            published = peer.theta
            final = peer.final
            np.testing.assert_array_equal(peer.theta, published)
            if name in ("cd", "propagation"):  # whose messages are their models
                np.testing.assert_array_equal(sent[i][-1], published)
                assert turn < 1 or not any(np.isclose(text, final, rtol=1e-6, atol=0.0).any() for text in sent[i])


@pytest.mark.parametrize("words", ["private", "published"])
def test_the_model_file_of_a_peer(words):
    """``published`` is what its neighbours have; ``theta`` what it has worked out; and that is never sent."""
    group = SmallGroup(words).start().run(60.0)
    node = group.nodes[0]
    final = node.peer.final
    model = model_of(node, final)
    texts = {i: [] for i in group.nodes}
    for i, _, data in group.mail:
        packet = read_packet(data)[0]
        if packet.kind == 0:
            texts[i].append(read_numbers(packet.content))
    np.testing.assert_array_equal(model["published"], texts[0][-1])
    np.testing.assert_array_equal(model["theta"], final)
    assert not np.isclose(model["published"], final).any()
    for j in node.edges:  # and it is what they hold of it
        other = group.nodes[j].peer
        slot = int(np.flatnonzero(other.arrays.peer == 0)[0])
        np.testing.assert_array_equal(other.edge.copy[slot], model["published"])
    # Begun again, and asked by everybody, it says no more than that.
    del group.mail[:]
    group.crash(0)
    group.start(0).run(30.0)
    said = [read_numbers(read_packet(data)[0].content) for i, _, data in group.mail if i == 0 and _kind(data) == 0]
    assert said
    assert not any(np.isclose(text, final).any() for text in said)
    if words == "private":
        assert all(np.array_equal(text, model["published"]) for text in said)


def _kind(data):
    return read_packet(data)[0].kind
