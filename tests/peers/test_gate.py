"""What a message must pass: every reason to refuse one, in its order, and nothing that should pass is held up."""

from __future__ import annotations

import ast
import itertools
from pathlib import Path

import numpy as np
import pytest
from small_group import SmallGroup, key_of, public

import coterie
import coterie as ct
from coterie.core.arrays import EVERYONE, send
from coterie.core.messages import MAX_COUNT, MAX_LOSS, Bounds, Contents
from coterie.core.methods.admm import MAX_RHO
from coterie.core.wrap.learned import ANSWER, ANSWER_LENGTH, ASK, OFFSET, WEIGHT
from coterie.core.wrap.sampling import SHUFFLE, SHUFFLED
from coterie.engines.wire import write_numbers
from coterie.peers.node.freshness import ASK_BURST, ASK_RATE, DOUBLED_LASTS, FIRST_WAIT
from coterie.peers.node.node import LEAVES
from coterie.peers.wire import packet as wire
from coterie.peers.wire.gate import BURST_SECONDS, REASONS, Gate, Refused, check_message
from coterie.peers.wire.limits import Bucket

pytestmark = pytest.mark.plain


RUN, ME, ANN, BOB, STRANGER = bytes(16), 0, 1, 2, 9
LONGEST, MOST_ROWS = 500, 20


def gate_of(rate=1e6):
    """The gate of member 0, who has heard message 5 of Ann's first session."""
    gate = Gate(RUN, ME, LONGEST, rate, MOST_ROWS)
    gate.admit({i: public(i) for i in (ME, ANN, BOB)})
    gate.prove(gate.check(0.0, ANN, signed(session=1, sequence=5)))
    return gate


def signed(sign=ANN, **other):
    fields = {"version": wire.VERSION, "run": RUN, "sender": ANN, "to": ME, "session": 1, "sequence": 6}
    return wire.write_packet(
        wire.Packet(**fields | {"largest": 0, "kind": 0, "content": b""} | other), key_of(sign).sign
    )


#: What makes Ann's sixth message a bad one, in the order in which it is looked at.
FAULTS = {
    "stranger": {"owner": STRANGER},
    "size": {"content": bytes(LONGEST)},
    "version": {"version": wire.VERSION + 1},
    "run": {"run": bytes(15) + b"1"},
    "sender": {"sender": BOB},
    "recipient": {"to": BOB},
    "replay": {"sequence": 5},
    "signature": {"sign": BOB},
    "rows": {"largest": MOST_ROWS + 1},
}


def reason_of(gate, message, owner=ANN, now=0.0):
    refused = None
    try:
        gate.check(now, owner, message)
    except Refused as refusal:
        refused = refusal
    assert refused is None or (refused.reason in REASONS and str(refused).startswith(refused.reason))
    return None if refused is None else refused.reason


def faulty(*faults):
    fields = {}
    for fault in faults:
        fields |= FAULTS[fault]
    return fields.pop("owner", ANN), signed(**fields)


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_has_its_reason(fault):
    owner, message = faulty(fault)
    assert reason_of(gate_of(), message, owner) == fault


@pytest.mark.parametrize(("first", "second"), list(itertools.combinations(FAULTS, 2)))
def test_cheap_things_are_looked_at_first(first, second):
    """In particular, no signature is verified of a message that is refused anyway."""
    owner, message = faulty(first, second)
    assert reason_of(gate_of(), message, owner) == first


def test_what_is_a_message():
    for good in ({}, {"to": EVERYONE}, {"session": 2, "sequence": 1}, {"largest": MOST_ROWS}, {"kind": wire.HELLO}):
        assert reason_of(gate_of(), signed(**good)) is None
    text = signed()[64:]
    assert reason_of(gate_of(), key_of(ANN).sign(text) + text) == "signature"  # it was signed for another use
    gate = gate_of()
    for bad in (b"", b"?", bytes(64), bytes(65), b"\xc1" * 200, bytes(64) + b"\x99" + bytes(20)):
        with pytest.raises(Refused, match=f"^format: from {ANN}: "):
            gate.check(0.0, ANN, bad)
    assert reason_of(gate, b"?", owner=STRANGER) == "stranger"
    assert reason_of(gate, bytes(LONGEST + 1)) == "size"
    assert reason_of(gate, bytes(LONGEST)) == "format"


def test_the_order_of_numbers():
    gate = gate_of()
    for place, passes in [
        ((1, 5), False),
        ((1, 4), False),
        ((1, 7), True),
        ((1, 6), False),  # late: it is as good as lost
        ((2, 1), True),  # it is for others to ask what speaks now
        ((2, 1), True),
        ((1, 8), True),  # and until then nothing changes
        ((1, 8), False),
        ((2**53 - 1, 2**53 - 1), True),
        ((1, 9), True),
    ]:
        message = signed(session=place[0], sequence=place[1])
        assert reason_of(gate, message) == (None if passes else "replay"), place
    assert reason_of(gate, signed(sender=BOB, sign=BOB, sequence=1), BOB) is None  # each sender for itself
    assert (gate.session_of(ANN), gate.session_of(BOB), gate.session_of(STRANGER)) == (1, None, None)


def test_the_session_that_has_proved_itself_counts():
    gate = gate_of()
    packet = gate.check(0.0, ANN, signed(session=9, sequence=40))
    gate.prove(packet)
    assert gate.session_of(ANN) == 9
    assert reason_of(gate, signed(session=9, sequence=40)) == "replay"
    assert reason_of(gate, signed(session=9, sequence=50)) is None
    gate.prove(packet)  # once more, and late: numbers do not go back
    assert reason_of(gate, signed(session=9, sequence=45)) == "replay"
    gate.prove(gate.check(0.0, ANN, signed(session=3, sequence=1)))  # sessions need not grow
    assert reason_of(gate, signed(session=3, sequence=1)) == "replay"
    assert reason_of(gate, signed(session=3, sequence=2)) is None


def test_a_forged_message_does_not_count():
    """Or somebody could send the greatest number of all in Ann's name, and she would never be heard again."""
    gate = gate_of()
    assert reason_of(gate, signed(sequence=2**53 - 1, sign=BOB)) == "signature"
    assert reason_of(gate, signed()) is None


def test_a_signed_message_counts_whatever_it_holds():
    gate = gate_of()
    message = signed(largest=MOST_ROWS + 1)
    assert reason_of(gate, message) == "rows"
    assert reason_of(gate, message) == "replay"


def test_impersonation():
    gate = gate_of()
    assert reason_of(gate, signed(sign=BOB)) == "signature"  # a member's key, but not hers
    assert reason_of(gate, signed(sign=77)) == "signature"  # nobody's
    assert reason_of(gate, signed(sender=ANN, sign=BOB), owner=BOB) == "sender"  # Bob, under her name
    assert reason_of(gate, signed(), owner=BOB) == "sender"  # her own message, by his key
    assert reason_of(gate, signed(sender=ME, sign=ME), owner=ME) == "stranger"  # my own, coming back
    gate.admit({ME: public(ME), ANN: public(77), BOB: public(BOB)})  # she has a new key now
    assert reason_of(gate, signed(sequence=9)) == "signature"
    assert reason_of(gate, signed(sequence=1, sign=77)) is None  # and begins to count anew


def test_who_was_removed_is_a_stranger():
    gate = gate_of()
    gate.admit({ME: public(ME), BOB: public(BOB)})
    assert reason_of(gate, signed()) == "stranger"
    gate.admit({ME: public(ME), ANN: public(ANN)})
    assert reason_of(gate, signed(sequence=5)) == "replay"  # back again: her numbers are not forgotten


def test_a_flood_is_held_up_and_others_are_not():
    rate = 10.0
    gate = gate_of(rate)
    passed, number = 1, 5
    for k in range(2000):  # for two seconds, a thousand a second
        number += 1
        reason = reason_of(gate, signed(sequence=number), now=k / 1000)
        assert reason in (None, "rate")
        passed += reason is None
    assert passed <= BURST_SECONDS * rate + 2.0 * rate + 1
    assert passed >= BURST_SECONDS * rate
    for k in range(20):
        message = signed(sender=BOB, sign=BOB, sequence=k + 1)
        assert reason_of(gate, message, BOB, now=k / rate) is None
    assert reason_of(gate, signed(sequence=number + 1), now=60.0) is None  # and when it is over, it is over
    for _ in range(1000):
        reason_of(gate, b"not even a message", now=60.0)
    assert reason_of(gate, signed(sequence=number + 2), now=60.0) == "rate"


def test_a_clock_that_goes_back_fills_no_bucket():
    bucket = Bucket(1.0, 2.0)
    assert [bucket.take(now) for now in (10.0, 10.0, 10.0, 5.0, 5.5, 6.0)] == [True, True, False, False, False, True]


# -- what is in a message ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def groups():
    made = {}

    def group(words="cd", **more):
        key = repr((words, more))
        if key not in made:
            made[key] = SmallGroup(words, **more).start()
        return made[key]

    return group


def test_what_any_method_is_sent(groups):
    group = groups()
    for kind, text, reason in [
        (0, [1.0, 2.0, 3.0], None),
        (0, [100.0, 0.0, 0.0], None),
        (0, [100.0, 1e-3, 0.0], "norm"),
        (0, [1e200, 1e200, 0.0], "norm"),  # its square is not finite
        (0, [-1.7e308, 0.0, 0.0], "norm"),
        (0, [1.0, 2.0], "shape"),
        (0, [1.0, 2.0, 3.0, 4.0], "shape"),
        (0, [], "shape"),
        (1, [1.0, 2.0, 3.0], "shape"),
        (65_535, [1.0, 2.0, 3.0], "shape"),
        (0, [np.nan, 0.0, 0.0], "finite"),
        (0, [0.0, np.inf, 0.0], "finite"),
        (0, [0.0, 0.0, -np.inf], "finite"),
    ]:
        assert group.offered(1, 0, kind, text) == reason, (kind, text)


def test_admm_sends_four_vectors_and_a_penalty(groups):
    group, auto = groups("admm", settings={"rho": 1.0}), groups("admm", settings={"rho": "auto"})
    fine = np.full(12, 50.0)
    for kind in (1, 2):
        assert group.offered(1, 0, kind, fine) is None
        assert auto.offered(1, 0, kind, [*fine, 1.0]) is None
        assert auto.offered(1, 0, kind, fine) == "shape"
        assert group.offered(1, 0, kind, [*fine, 1.0]) == "shape"
        for vector in range(4):  # each of them, not only the first
            long = fine.copy()
            long[3 * vector : 3 * vector + 3] = 60.0
            assert group.offered(1, 0, kind, long) == "norm"
            assert auto.offered(1, 0, kind, [*long, 1.0]) == "norm"
        for rho, reason in [
            (MAX_RHO, None),
            (1 / MAX_RHO, None),
            (0.0, "range"),
            (-1.0, "range"),
            (2 * MAX_RHO, "range"),
            (0.5 / MAX_RHO, "range"),
        ]:
            assert auto.offered(1, 0, kind, [*fine, rho]) == reason, rho
    assert group.offered(1, 0, 0, fine[:3]) is None
    assert group.offered(1, 0, 0, [99.0, 99.0, 0.0]) == "norm"


@pytest.mark.parametrize("rho", [0.0, -1.0, 1e13])
def test_the_penalty_of_models_of_one_number(rho):
    """With p = 1 the penalty must not be taken for a fifth model."""
    contents = Contents(ct.CollaborativeADMM().messages, Bounds(1, radius=1e14))

    def packet(penalty):
        return wire.read_packet(signed(kind=1, content=write_numbers(np.array([1.0, 2.0, 3.0, 4.0, penalty]))))[0]

    assert check_message(contents, {0, 1}, packet(1.0)).tolist() == [1.0, 2.0, 3.0, 4.0, 1.0]
    with pytest.raises(Refused, match=r"range: from \d+: a number of kind 1 is out of its range$"):  # and no numbers
        check_message(contents, {0, 1}, packet(rho))


def test_boosting_sends_pairs(groups):
    group = groups("boosting")
    for text, reason in [
        ([5.0, 0.0, 99.0, 7.0, 1.0], None),  # 5 steps; entry 0 is 99, entry 7 is 1
        ([5.0, 0.0, 99.0, 7.0, 99.0], "norm"),
        ([5.0, 0.0, -101.0], "norm"),
        ([5.0], None),  # nothing but zeros
        ([5.0, 1.0], "shape"),  # half a pair
        ([], "shape"),
        ([5.0, 0.0, np.inf], "finite"),
    ]:
        assert group.offered(1, 0, 0, text) == reason, text


def test_what_learned_edges_are_sent(groups):
    group = groups("learned")
    max_weight = group.method.rule.max_weight
    edge = [1.0, 4.0, 2.0]  # weight, stamp, squared distance
    asked, answered = [*edge, 1.0], [*edge, 1.0, 3.0, 0.5]  # and the round; and degree and loss
    assert len(answered) == ANSWER_LENGTH
    model = [1.0, 2.0, 3.0]
    bad = [
        (0, -0.1), (0, max_weight * 1.001), (0, 1e300),
        (1, -1.0), (1, MAX_COUNT), (1, 1e300),
        (2, -1.0),
    ]  # fmt: skip
    for kind, text in ((ASK, asked), (ANSWER, answered + model), (WEIGHT, edge)):
        assert group.offered(1, 0, kind, text) is None
        for place, value in bad:
            wrong = list(text)
            wrong[place] = value
            assert group.offered(1, 0, kind, wrong) == "range", (kind, place, value)
        heavy = list(text)
        heavy[0], heavy[1] = max_weight, MAX_COUNT - 1.0
        assert group.offered(3, 2, kind, heavy) is None
    for degree, loss in ((-3.0, 0.5), (3.0, -0.5), (3.0, 2.0 * MAX_LOSS)):
        assert group.offered(1, 0, ANSWER, [*edge, 1.0, degree, loss, *model]) == "range"
    assert group.offered(1, 0, ANSWER, [*answered, 99.0, 99.0, 0.0]) == "norm"
    assert group.offered(1, 0, ANSWER, answered) == "shape"
    assert group.offered(1, 0, OFFSET, model) is None
    assert group.offered(1, 0, OFFSET, [99.0, 99.0, 0.0]) == "norm"
    assert group.offered(1, 0, OFFSET + 1, model) == "shape"
    for kind in (SHUFFLE, SHUFFLED):  # addresses and ages
        assert group.offered(1, 0, kind, [2.0, 0.0, 3.0, 7.0]) is None
        for nobody in (77.0, -1.0, 0.5, 1e300):
            assert group.offered(1, 0, kind, [2.0, 0.0, nobody, 7.0]) == "range"
    pairs = groups("learned boosting")
    assert pairs.offered(1, 0, ANSWER, [*answered, 2.0, 99.0]) is None
    assert pairs.offered(1, 0, ANSWER, [*answered, 2.0, 101.0]) == "norm"
    assert pairs.offered(1, 0, ANSWER, [*answered, 2.0]) == "shape"


@ct.rule
class Chatty(ct.CoordinateDescent):
    """A method that cannot stand a zero, and answers before it fails."""

    def receive(self, data, me, edges, message, outbox):
        if message.text[0] == 0.0:
            send(outbox, message.sender, 0, message.text)
            raise ZeroDivisionError


def test_a_method_that_raises_is_not_the_end_and_what_it_had_posted_is_not_sent():
    group = SmallGroup()
    group.method = Chatty()
    group.start()
    before = group.nodes[0].theta
    assert group.offered(1, 0, 0, [0.0, 7.0, 7.0]) == "method"
    assert np.array_equal(group.nodes[0].theta, before)
    assert group.offered(1, 0, 0, [1.0, 0.0, 0.0]) is None
    assert {message.text[1] for message in group.nodes[0].peer.wake()} == {group.nodes[0].theta[1]}


def test_nobody_claims_more_rows_than_there_may_be():
    group = SmallGroup(confidence="gossip").start()
    assert group.offered(1, 0, 0, np.ones(3), largest=20) is None
    assert group.nodes[0].largest == 20
    assert group.offered(2, 0, 0, np.ones(3), largest=21) == "rows"
    group.nodes[0].receive(0.0, 2, group.packet(2, 0, wire.HELLO, wire.write_hello(bytes(16), 1), largest=10**9))
    assert group.nodes[0].largest == 20


# -- restarts ----------------------------------------------------------------------------------------------------------


def taken(group, node, i, data):
    """Whether a message reaches the method, and if not, why not."""
    before, messages = node.mail.gate.refused.copy(), node.mail.received["messages"] + node.mail.received["notices"]
    sends = node.receive(group.now, i, data)
    if node.mail.received["messages"] + node.mail.received["notices"] > messages:
        return None, sends
    return next(iter(node.mail.gate.refused - before)), sends


def model(group, i, to, value):
    return group.packet(i, to, 0, write_numbers(np.full(3, value)))


def test_a_replay_after_a_restart():
    group = SmallGroup().start()
    node = group.nodes[0]
    kept = model(group, 1, 0, 7.0)
    assert taken(group, node, 1, kept)[0] is None
    group.stores[0].save(node.record())
    forgotten = model(group, 1, 0, 8.0)  # heard after the last save
    assert taken(group, node, 1, forgotten)[0] is None
    group.crash(0)

    node = group.nodes[0] = group.make(0)
    hellos = node.open(group.now)
    for message in (kept, forgotten, forgotten):
        assert taken(group, node, 1, message)[0] == "unproven"
    group.send(0, hellos)
    group.settle()
    assert node.fresh.proven == {1, 2, 3}
    assert taken(group, node, 1, forgotten)[0] == "replay"
    assert taken(group, node, 1, kept)[0] == "replay"
    assert taken(group, node, 1, model(group, 1, 0, 9.0))[0] is None
    assert 8.0 not in node.peer.edge.copy


def question(node, to):
    """The nonce of the question that a peer has just asked another."""
    return node.fresh._asked[to]


def test_an_old_answer_proves_nothing():
    group = SmallGroup().start()
    group.stores[0].save(group.nodes[0].record())
    asked = group.nodes[0]._question(1)
    old = group.packet(
        1, 0, wire.WELCOME, wire.write_hello(question(group.nodes[0], 1), 1)
    )  # never delivered: it is still new
    group.crash(0)
    node = group.nodes[0] = group.make(0)
    node.open(group.now)
    assert taken(group, node, 1, old)[0] == "unproven"  # it is not the answer to the question of this session
    assert node.fresh.proven == set()
    assert taken(group, node, 1, model(group, 1, 0, 7.0))[0] == "unproven"
    assert wire.read_packet(asked.data)[0].kind == wire.HELLO


def test_nobody_answers_for_another():
    group = SmallGroup().start()
    group.crash(0)
    node = group.nodes[0] = group.make(0)
    node.open(group.now)
    answer = wire.write_hello(question(node, 1), 1)
    assert taken(group, node, 1, group.packet(1, 0, wire.WELCOME, answer, sign=2))[0] == "signature"
    assert taken(group, node, 2, group.packet(2, 0, wire.WELCOME, answer, sender=1))[0] == "sender"
    assert (
        taken(group, node, 2, group.packet(2, 0, wire.WELCOME, answer))[0] == "unproven"
    )  # each is asked another question
    assert node.fresh.proven == set()
    assert len({question(node, j) for j in (1, 2, 3)}) == 3


def test_a_question_is_answered_once():
    """Or the answer of an old session, kept back, could bring it back, and all its messages with it."""
    group = SmallGroup().start()
    node, old_session = group.nodes[0], group.nodes[1].fresh.session
    group.now += 10.0
    node._question(1)
    late = group.packet(1, 0, wire.WELCOME, wire.write_hello(question(node, 1), 1))
    messages = [model(group, 1, 0, float(k)) for k in range(3)]
    for message in messages:
        assert taken(group, node, 1, message)[0] is None
    group.crash(1)
    group.start(1)
    assert node.mail.gate.session_of(1) == group.nodes[1].fresh.session != old_session
    assert taken(group, node, 1, late)[0] == "unproven"
    assert node.mail.gate.session_of(1) == group.nodes[1].fresh.session
    for message in messages:
        assert taken(group, node, 1, message)[0] == "unproven"
    # The same where its sender has left meanwhile.
    group.now += 100.0
    node._question(1)
    late = group.packet(1, 0, wire.WELCOME, wire.write_hello(question(node, 1), 1))
    message = model(group, 1, 0, 9.0)
    assert taken(group, node, 1, message)[0] is None
    assert taken(group, node, 1, group.packet(1, EVERYONE, wire.BYE, LEAVES))[0] is None
    assert taken(group, node, 1, late)[0] in ("unproven", "replay")
    assert 1 not in node.fresh.proven
    assert taken(group, node, 1, message)[0] in ("unproven", "replay")


def test_messages_of_other_sessions_make_no_storm():
    """Somebody who replays what another session sent makes a peer ask, but not for each of them."""
    group = SmallGroup().start()
    old = [model(group, 1, 0, 1.0) for _ in range(300)]
    group.crash(1)
    group.start(1)
    node, before = group.nodes[0], group.nodes[0].mail.sent["packets"]
    for k, message in enumerate(old):
        group.now += 0.01
        assert taken(group, node, 1, message)[0] == "unproven"
        if k % 10 == 0 and node.next_time <= group.now:
            group.send(0, [send for send in node._say_hello(group.now) if send.to == 1])
            group.settle()
    assert node.mail.sent["packets"] - before <= 3 * (ASK_RATE * 3.0 + ASK_BURST)
    assert 1 in node.fresh.proven
    assert group.offered(1, 0, 0, np.ones(3)) is None


def test_an_unproven_sender_is_asked():
    group = SmallGroup().start()
    group.crash(0)
    node = group.nodes[0] = group.make(0)
    node.open(group.now)
    assert taken(group, node, 1, model(group, 1, 0, 7.0))[0] == "unproven"
    asked = [send for send in node.tick(group.now + FIRST_WAIT) if send.to == 1]
    assert wire.read_packet(asked[0].data)[0].kind == wire.HELLO


@pytest.mark.parametrize("clock", [0.0, 2 * 365.25 * 86400.0, -1e9])
def test_neither_a_lost_state_nor_a_wrong_clock_mutes_a_peer(clock):
    """Sessions need not grow: a peer that starts anew is heard as soon as it has answered."""
    group = SmallGroup().start()
    for k in range(3):
        group.crash(1)
        node = group.nodes[1] = group.make(1, store=type(group.stores[1])())  # nothing is left of it
        group.send(1, node.open(clock if k == 1 else 0.0))
        group.settle()
        assert group.offered(1, 0, 0, np.ones(3)) is None
        assert group.offered(0, 1, 0, np.ones(3)) is None
        assert group.nodes[0].mail.gate.last[public(1)] == (node.fresh.session, node.fresh.sequence)
    assert group.nodes[0].errors == {}


def test_a_goodbye_cannot_be_replayed():
    group = SmallGroup().start()
    bye = group.packet(1, EVERYONE, wire.BYE, LEAVES)
    assert taken(group, group.nodes[0], 1, bye)[0] is None
    assert 1 not in group.nodes[0].edges
    group.crash(1)
    group.start(1)  # it has thought better of it
    assert 1 in group.nodes[0].edges
    assert taken(group, group.nodes[0], 1, bye)[0] == "unproven"
    assert 1 in group.nodes[0].edges


def test_a_goodbye_is_believed_of_who_is_there():
    """An old one that was forgotten in a crash, or never heard, takes no edge away."""
    group = SmallGroup().start()
    bye = group.packet(1, EVERYONE, wire.BYE, LEAVES)
    group.crash(0)
    node = group.nodes[0] = group.make(0)
    hellos = node.open(group.now)
    assert taken(group, node, 1, bye)[0] == "unproven"
    assert 1 in node.edges
    group.send(0, hellos)
    group.settle()
    assert taken(group, node, 1, group.packet(1, EVERYONE, wire.BYE, LEAVES))[0] is None
    assert 1 not in node.edges
    group.crash(0)
    assert 1 not in group.make(0).edges  # at once on disk


# -- two of one --------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_two_processes_with_one_identity_are_told():
    """From a folder that was copied: both speak, both can prove it, and both get to know."""
    group = SmallGroup().start()
    first, twin = group.nodes[1], group.make(1, store=type(group.stores[1])())
    twin._random = np.random.default_rng(99).bytes
    assert first.fresh.session != twin.fresh.session
    told = []
    group.nodes[1] = twin
    group.send(1, twin.open(group.now))
    group.settle()
    assert group.nodes[0].errors["duplicate"] == 0  # it may have been started again
    for k in range(6):
        group.now += 10.0
        group.nodes[1] = first if k % 2 == 0 else twin
        group.send(1, [group.nodes[1]._question(j) for j in (0, 2)])
        group.settle()
        told.append(group.nodes[1].errors.alerts.get("duplicate", ""))
    assert group.nodes[0].errors["duplicate"] >= 3
    assert "two processes run with the identity of m1" in group.nodes[0].errors.alerts["duplicate"]
    assert all("another process runs with this identity" in text for text in told[2:])
    for node in (first, twin):
        assert f"{first.fresh.session:x}" in node.errors.alerts["duplicate"]
        assert f"{twin.fresh.session:x}" in node.errors.alerts["duplicate"]
    group.crash(1)
    group.run(DOUBLED_LASTS + 100.0)  # and when it is over, it is over
    assert "duplicate" not in group.nodes[0].errors.alerts


def test_a_peer_that_restarts_often_is_no_duplicate():
    group = SmallGroup().start()
    for _ in range(8):
        group.crash(1)
        group.run(1.0)
        group.start(1)
    assert all(not node.errors["duplicate"] for node in group.nodes.values())


def test_what_a_notice_of_two_must_be():
    group = SmallGroup().start()
    node = group.nodes[0]
    for content in (
        b"",
        b"x",
        wire.write_duplicate(node.fresh.session, node.fresh.session),
        wire.write_duplicate(7, 8),
    ):
        node.receive(group.now, 1, group.packet(1, 0, wire.DUPLICATE, content))
        assert "duplicate" not in node.errors.alerts
    node.receive(
        group.now, 1, group.packet(1, 0, wire.DUPLICATE, wire.write_duplicate(7, node.fresh.session), session=4)
    )
    assert "duplicate" not in node.errors.alerts  # of a session that has not proved itself
    node.receive(group.now, 1, group.packet(1, 0, wire.DUPLICATE, wire.write_duplicate(7, node.fresh.session)))
    assert "says m1" in node.errors.alerts["duplicate"]


# -- nothing in the package makes objects of bytes ---------------------------------------------------------------------

BANNED_MODULES = {"pickle", "cPickle", "_pickle", "cloudpickle", "dill", "marshal", "shelve", "jsonpickle", "yaml"}
BANNED_CALLS = {"eval", "exec", "__import__"}
BANNED_ATTRIBUTES = {("joblib", "load"), ("joblib", "dump"), ("torch", "load"), ("yaml", "load"), ("pd", "read_pickle")}
#: Where Python is written and run on purpose, from nothing but names of fields.
ALLOWED = {("core/numba_backend.py", "exec")}


def unsafe(tree):
    """What a syntax tree has in it that may run what it reads."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from (name.name for name in names if name.name.partition(".")[0] in BANNED_MODULES)
            case ast.ImportFrom(module=str(module)) if module.partition(".")[0] in BANNED_MODULES:
                yield module
            case ast.ImportFrom(module="joblib", names=names):
                yield from (f"joblib.{name.name}" for name in names if name.name in ("load", "dump"))
            case ast.Call(func=ast.Name(id=name)) if name in BANNED_CALLS:
                yield name
            case ast.Attribute(value=ast.Name(id=owner), attr=name) if (owner, name) in BANNED_ATTRIBUTES:
                yield f"{owner}.{name}"
            case ast.Attribute(attr="read_pickle" | "to_pickle" as name):
                yield name
            case ast.keyword(arg="allow_pickle", value=value) if not (
                isinstance(value, ast.Constant) and value.value is False
            ):
                yield "allow_pickle"
            case ast.Constant(value=str(text)) if text in BANNED_MODULES - {"yaml"}:
                yield f"the name {text!r}"


@pytest.mark.parametrize(
    "code",
    [
        "import pickle", "from pickle import loads", "import marshal as m", "import os, shelve", "eval('1')",
        "exec(code)", "np.load(f, allow_pickle=True)", "np.load(f, allow_pickle=yes)", "joblib.load(f)",
        "from joblib import dump", "yaml.load(f)", "import yaml", "pd.read_pickle(f)", "frame.to_pickle(f)",
        "import cloudpickle", "importlib.import_module('pickle')", "__import__('x')",
    ],
)  # fmt: skip
def test_the_lint_finds(code):
    assert list(unsafe(ast.parse(code)))


def test_the_package_makes_no_objects_of_bytes():
    root = Path(coterie.__file__).parent
    paths = sorted(root.rglob("*.py"))
    assert len(paths) > 60
    found = {
        (str(path.relative_to(root)), what) for path in paths for what in unsafe(ast.parse(path.read_text("utf8")))
    }
    assert found - ALLOWED == set()
    assert found >= ALLOWED  # or it is allowed for nothing
