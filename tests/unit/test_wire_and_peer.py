"""Messages as bytes, and peers that exchange them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import coterie as ct
from coterie.core.arrays import EVERYONE, VACANT, send
from coterie.engines.arrays import arrays_of, part_of
from coterie.engines.peer import Peer
from coterie.engines.wire import decode, encode, message_size
from coterie.errors import CapacityError, DataError, ParameterError
from coterie.testing import hard_problem

numbers = st.lists(st.floats(allow_nan=False, allow_infinity=False), max_size=20)


@settings(derandomize=True, deadline=None)
@given(sender=st.integers(0, 2**63 - 1), kind=st.integers(0, 2**16 - 1), text=numbers)
def test_round_trip(sender, kind, text):
    frame = encode(sender, kind, np.array(text, float))
    assert len(frame) == message_size(len(text))
    back = decode(frame)
    assert back[:2] == (sender, kind)
    assert back[2].tolist() == text


@settings(derandomize=True, deadline=None, max_examples=300)
@given(frame=st.binary(max_size=80))
def test_any_bytes_are_decoded_or_refused(frame):
    try:
        _, _, text = decode(frame)
    except DataError:
        return
    assert len(frame) == message_size(len(text))
    assert np.all(np.isfinite(text))


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda frame: frame[:10], "shorter than its header"),
        (lambda frame: frame[:-1], "announces 2 numbers"),
        (lambda frame: frame + b"x", "announces 2 numbers"),
        (lambda frame: b"\x07" + frame[1:], "version 7"),
        (lambda frame: encode(2**63, 0, np.zeros(2)), "not an address"),
        (lambda frame: encode(0, 0, np.array([1.0, np.nan])), "not finite"),
        (lambda frame: encode(0, 0, np.array([1.0, np.inf])), "not finite"),
    ],
)
def test_damaged_frames_are_refused(damage, message):
    with pytest.raises(DataError, match=message):
        decode(damage(encode(0, 0, np.array([1.0, 2.0]))))


def peer(i=0, method=ct.CoordinateDescent()):  # noqa: B008 - a value
    problem = hard_problem()
    return Peer(method, part_of(arrays_of(problem), i, i + 1), problem.local()[i])


def test_a_peer_writes_to_all_its_neighbours():
    problem = hard_problem()
    posts = peer(2).wake()
    assert sorted(post.to for post in posts) == problem.graph.neighbours(2).tolist()
    assert len({post.data for post in posts}) == 1


def test_a_refused_message_changes_nothing():
    one, other = peer(), peer()
    with pytest.raises(DataError):
        one.receive(encode(1, 0, np.array([np.nan, 0.0, 0.0])))
    for length in (0, 1, 4):
        with pytest.raises(DataError, match="there must be 3"):
            one.receive(encode(1, 0, np.zeros(length)))
    with pytest.raises(DataError, match="kind 77"):
        one.receive(encode(1, 77, np.zeros(3)))
    one.wake(), other.wake()
    assert np.array_equal(one.theta, other.theta)


def test_a_message_from_a_stranger_changes_nothing():
    one, other = peer(), peer()
    assert one.receive(encode(7, 0, np.full(3, 9.0))) == []
    one.wake(), other.wake()
    assert np.array_equal(one.theta, other.theta)


def test_a_peer_is_one_agent():
    problem = hard_problem()
    with pytest.raises(ParameterError, match="not of 2"):
        Peer(ct.CoordinateDescent(), part_of(arrays_of(problem), 0, 2), problem.local()[0])


def test_a_peer_says_what_it_is():
    assert repr(peer(0)) == "Peer(CoordinateDescent(), address=0, edges=3)"


def test_a_peer_talks_to_its_neighbours_only():
    talker = peer(0, ct.DJAM())
    for somebody in (5, 99, -2):  # another component, nobody, all neighbours
        with pytest.raises(ParameterError, match=f"agent 0 has no edge to peer={somebody}"):
            talker.wake(peer=somebody)
    assert talker.wake(peer=2) != []
    assert talker.wake(peer=VACANT) != [] != talker.wake(peer=None)


@ct.rule
class Chatterbox(ct.CoordinateDescent):
    def wake(self, data, me, edges, randomness, outbox):
        send(outbox, EVERYONE, 0, me.theta)
        send(outbox, EVERYONE, 0, me.theta)


def test_unannounced_messages_are_an_error_everywhere():
    with pytest.raises(CapacityError, match="more messages"):
        peer(0, Chatterbox()).wake()
    with pytest.raises(CapacityError, match="Chatterbox"):
        ct.simulate(hard_problem(), Chatterbox(), wakes=5)


@ct.rule
class Misdirected(ct.CoordinateDescent):
    def wake(self, data, me, edges, randomness, outbox):
        send(outbox, 50_000_000, 0, me.theta)


@pytest.mark.parametrize("conditions", [None, ct.Conditions(latency=0.1)])
def test_a_message_to_nobody_is_an_error(conditions):
    with pytest.raises(CapacityError, match="no agent's address"):
        ct.simulate(hard_problem(), Misdirected(), wakes=5, conditions=conditions)
