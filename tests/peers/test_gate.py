"""What a letter must pass: every reason to refuse one, in its order, and nothing that should pass is held up."""

from __future__ import annotations

import ast
import itertools
from pathlib import Path

import numpy as np
import pytest
from small_group import SmallGroup, key_of, public

import coterie
import coterie as ct
from coterie.core.world import EVERYONE, send
from coterie.core.wrap.learned import ANSWER, ANSWER_LENGTH, ASK, OFFSET, WEIGHT
from coterie.core.wrap.sampling import SHUFFLE, SHUFFLED
from coterie.engines.wire import write_numbers
from coterie.peers.gate import (
    BURST,
    DEAREST,
    LATEST,
    REASONS,
    STIFFEST,
    Bucket,
    Gate,
    Refused,
    Terms,
    check_text,
)
from coterie.peers.node import LEAVES, PATIENCE
from coterie.peers.packet import BYE, HELLO, VERSION, WELCOME, Packet, read_packet, write_hello, write_packet

RUN, ME, ANN, BOB, STRANGER = bytes(16), 0, 1, 2, 9
LONGEST, MOST_ROWS = 500, 20


def gate_of(rate=1e6):
    """The gate of member 0, who has heard letter 5 of Ann's first boot."""
    gate = Gate(RUN, ME, LONGEST, rate, MOST_ROWS)
    gate.admit({i: public(i) for i in (ME, ANN, BOB)})
    gate.check(0.0, ANN, signed(boot=1, sequence=5))
    return gate


def signed(sign=ANN, **other):
    fields = {"version": VERSION, "run": RUN, "sender": ANN, "to": ME, "boot": 1, "sequence": 6}
    return write_packet(Packet(**fields | {"largest": 0, "kind": 0, "content": b""} | other), key_of(sign).sign)


#: What makes Ann's sixth letter a bad one, in the order in which it is looked at.
FAULTS = {
    "stranger": {"owner": STRANGER},
    "size": {"content": bytes(LONGEST)},
    "version": {"version": VERSION + 1},
    "run": {"run": bytes(15) + b"1"},
    "sender": {"sender": BOB},
    "recipient": {"to": BOB},
    "replay": {"sequence": 5},
    "signature": {"sign": BOB},
    "rows": {"largest": MOST_ROWS + 1},
}


def reason_of(gate, letter, owner=ANN, now=0.0):
    refused = None
    try:
        gate.check(now, owner, letter)
    except Refused as refusal:
        refused = refusal
    assert refused is None or (refused.reason in REASONS and str(refused).startswith(refused.reason))
    return None if refused is None else refused.reason


def faulty(*faults):
    fields = {}
    for fault in faults:
        fields |= FAULTS[fault]
    return fields.pop("owner", ANN), signed(**fields)


def test_a_good_letter_passes():
    for good in ({}, {"to": EVERYONE}, {"boot": 2, "sequence": 1}, {"largest": MOST_ROWS}, {"kind": HELLO}):
        assert reason_of(gate_of(), signed(**good)) is None


@pytest.mark.parametrize("fault", FAULTS)
def test_each_fault_has_its_reason(fault):
    owner, letter = faulty(fault)
    assert reason_of(gate_of(), letter, owner) == fault


@pytest.mark.parametrize(("first", "second"), list(itertools.combinations(FAULTS, 2)))
def test_cheap_things_are_looked_at_first(first, second):
    """In particular, no signature is verified of a letter that is refused anyway."""
    owner, letter = faulty(first, second)
    assert reason_of(gate_of(), letter, owner) == first


def test_what_is_no_letter():
    gate = gate_of()
    for bad in (b"", b"?", bytes(64), bytes(65), b"\xc1" * 200, bytes(64) + b"\x99" + bytes(20)):
        assert reason_of(gate, bad) == "format"
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
        ((2, 1), True),
        ((1, 8), False),
        ((2, 1), False),
        ((4, 1), True),
        ((3, 9), False),
        ((2**53 - 1, 2**53 - 1), True),
        ((2**53 - 1, 2**53 - 1), False),
    ]:
        letter = signed(boot=place[0], sequence=place[1])
        assert reason_of(gate, letter) == (None if passes else "replay"), place
    assert reason_of(gate, signed(sender=BOB, sign=BOB, sequence=1), BOB) is None  # each sender for itself


def test_a_forged_letter_does_not_count():
    """Or somebody could send the greatest number of all in Ann's name, and she would never be heard again."""
    gate = gate_of()
    assert reason_of(gate, signed(boot=2**53 - 1, sign=BOB)) == "signature"
    assert reason_of(gate, signed()) is None


def test_a_signed_letter_counts_whatever_it_holds():
    gate = gate_of()
    letter = signed(largest=MOST_ROWS + 1)
    assert reason_of(gate, letter) == "rows"
    assert reason_of(gate, letter) == "replay"


def test_impersonation():
    gate = gate_of()
    assert reason_of(gate, signed(sign=BOB)) == "signature"  # a member's key, but not hers
    assert reason_of(gate, signed(sign=77)) == "signature"  # nobody's
    assert reason_of(gate, signed(sender=ANN, sign=BOB), owner=BOB) == "sender"  # Bob, under her name
    assert reason_of(gate, signed(), owner=BOB) == "sender"  # her own letter, by his key
    assert reason_of(gate, signed(sender=ME, sign=ME), owner=ME) == "stranger"  # my own, coming back
    gate.admit({ME: public(ME), ANN: public(77), BOB: public(BOB)})  # she has a new key now
    assert reason_of(gate, signed(sequence=9)) == "signature"
    assert reason_of(gate, signed(sequence=1, sign=77)) is None  # and begins to count anew


def test_a_letter_cannot_be_signed_for_another_use():
    letter = signed()
    text = letter[64:]
    assert reason_of(gate_of(), key_of(ANN).sign(text) + text) == "signature"


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
    assert passed <= BURST * rate + 2.0 * rate + 1
    assert passed >= BURST * rate
    for k in range(20):
        letter = signed(sender=BOB, sign=BOB, sequence=k + 1)
        assert reason_of(gate, letter, BOB, now=k / rate) is None
    assert reason_of(gate, signed(sequence=number + 1), now=60.0) is None  # and when it is over, it is over


def test_a_flood_is_cheap():
    gate = gate_of(10.0)
    for _ in range(1000):
        reason_of(gate, b"not even a letter")
    assert reason_of(gate, signed()) == "rate"


def test_a_clock_that_goes_back_fills_no_bucket():
    bucket = Bucket(1.0, 2.0)
    assert [bucket.take(now) for now in (10.0, 10.0, 10.0, 5.0, 5.5, 6.0)] == [True, True, False, False, False, True]


# -- what is in a letter -----------------------------------------------------------------------------------------------


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


def test_damaged_numbers_are_refused(groups):
    group = groups()
    content = write_numbers(np.ones(3))
    for damage in (content[:-1], content + b"\0", content[:8], b""):
        group.nodes[0].receive(0.0, 1, group.packet(1, 0, 0, damage))
        assert group.nodes[0].last_refusal.startswith("shape")


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
            (STIFFEST, None),
            (1 / STIFFEST, None),
            (0.0, "range"),
            (-1.0, "range"),
            (2 * STIFFEST, "range"),
            (0.5 / STIFFEST, "range"),
        ]:
            assert auto.offered(1, 0, kind, [*fine, rho]) == reason, rho
    assert group.offered(1, 0, 0, fine[:3]) is None
    assert group.offered(1, 0, 0, [99.0, 99.0, 0.0]) == "norm"


@pytest.mark.parametrize("rho", [0.0, -1.0, 1e13])
def test_the_penalty_of_models_of_one_number(rho):
    """With p = 1 the penalty must not be taken for a fifth model."""
    method = ct.CollaborativeADMM()
    terms = Terms(method, method.lengths(1), p=1, radius=1e14)
    check_text(terms, {0, 1}, 1, 1, np.array([1.0, 2.0, 3.0, 4.0, 1.0]))
    with pytest.raises(Refused, match="range"):
        check_text(terms, {0, 1}, 1, 1, np.array([1.0, 2.0, 3.0, 4.0, rho]))


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


def test_what_learned_ties_are_sent(groups):
    group = groups("learned")
    max_weight = group.method.rule.max_weight
    tie = [1.0, 4.0, 2.0]  # weight, stamp, squared distance
    asked, answered = [*tie, 1.0], [*tie, 1.0, 3.0, 0.5]  # and the round; and degree and loss
    assert len(answered) == ANSWER_LENGTH
    model = [1.0, 2.0, 3.0]
    bad = [
        (0, -0.1), (0, max_weight * 1.001), (0, 1e300),
        (1, -1.0), (1, LATEST), (1, 1e300),
        (2, -1.0),
    ]  # fmt: skip
    for kind, text in ((ASK, asked), (ANSWER, answered + model), (WEIGHT, tie)):
        assert group.offered(1, 0, kind, text) is None
        for place, value in bad:
            wrong = list(text)
            wrong[place] = value
            assert group.offered(1, 0, kind, wrong) == "range", (kind, place, value)
        heavy = list(text)
        heavy[0], heavy[1] = max_weight, LATEST - 1.0
        assert group.offered(3, 2, kind, heavy) is None
    for degree, loss in ((-3.0, 0.5), (3.0, -0.5), (3.0, 2.0 * DEAREST)):
        assert group.offered(1, 0, ANSWER, [*tie, 1.0, degree, loss, *model]) == "range"
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
class Touchy(ct.CoordinateDescent):
    """A method that cannot stand a zero."""

    def receive(self, data, me, ties, letter, mail):
        if letter.text[0] == 0.0:
            raise ZeroDivisionError


def test_a_method_that_raises_is_not_the_end():
    group = SmallGroup()
    group.method = Touchy()
    group.start()
    before = group.nodes[0].theta
    assert group.offered(1, 0, 0, [0.0, 0.0, 0.0]) == "method"
    assert np.array_equal(group.nodes[0].theta, before)
    assert group.offered(1, 0, 0, [1.0, 0.0, 0.0]) is None


@ct.rule
class Chatty(ct.CoordinateDescent):
    """One that answers before it fails."""

    def receive(self, data, me, ties, letter, mail):
        if letter.text[0] == 0.0:
            send(mail, letter.sender, 0, letter.text)
            raise ZeroDivisionError


def test_what_was_posted_before_a_method_raised_is_not_sent():
    group = SmallGroup()
    group.method = Chatty()
    group.start()
    assert group.offered(1, 0, 0, [0.0, 7.0, 7.0]) == "method"
    assert {letter.text[1] for letter in group.nodes[0].peer.wake()} == {group.nodes[0].theta[1]}


def test_nobody_claims_more_rows_than_there_may_be():
    group = SmallGroup(confidence="gossip").start()
    assert group.offered(1, 0, 0, np.ones(3), largest=20) is None
    assert group.nodes[0].largest == 20
    assert group.offered(2, 0, 0, np.ones(3), largest=21) == "rows"
    group.nodes[0].receive(0.0, 2, group.packet(2, 0, HELLO, write_hello(bytes(16), 1), largest=10**9))
    assert group.nodes[0].largest == 20


# -- restarts ----------------------------------------------------------------------------------------------------------


def taken(group, node, i, data):
    """Whether a letter reaches the method, and if not, why not."""
    before, letters = node.gate.refused.copy(), node.received["letters"] + node.received["notices"]
    sends = node.receive(group.now, i, data)
    if node.received["letters"] + node.received["notices"] > letters:
        return None, sends
    return next(iter(node.gate.refused - before)), sends


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
    assert taken(group, node, 1, kept)[0] == "replay"  # its number was saved
    assert taken(group, node, 1, forgotten)[0] == "unproven"
    assert taken(group, node, 1, forgotten)[0] == "replay"
    group.send(0, hellos)
    group.settle()
    assert node.proven == {1, 2, 3}
    assert taken(group, node, 1, forgotten)[0] == "replay"
    assert taken(group, node, 1, kept)[0] == "replay"
    assert taken(group, node, 1, model(group, 1, 0, 9.0))[0] is None
    assert 8.0 not in node.peer.tie.copy


def test_a_replay_that_waits_for_the_handshake():
    """The forgotten letter comes first after the answer to this boot."""
    group = SmallGroup().start()
    group.stores[0].save(group.nodes[0].record())
    forgotten = model(group, 1, 0, 8.0)
    assert taken(group, group.nodes[0], 1, forgotten)[0] is None
    group.crash(0)
    group.start(0)
    assert 1 in group.nodes[0].proven
    assert taken(group, group.nodes[0], 1, forgotten)[0] == "replay"


def test_an_old_answer_proves_nothing():
    group = SmallGroup().start()
    group.stores[0].save(group.nodes[0].record())
    old = group.packet(1, 0, WELCOME, write_hello(group.nodes[0]._nonce, 1))  # never delivered: it is still new
    group.crash(0)
    node = group.nodes[0] = group.make(0)
    node.open(group.now)
    assert taken(group, node, 1, old)[0] is None  # which it takes in
    assert node.proven == set()  # but it is not the answer to the question of this boot
    assert taken(group, node, 1, model(group, 1, 0, 7.0))[0] == "unproven"


def test_nobody_answers_for_another():
    group = SmallGroup().start()
    group.crash(0)
    node = group.nodes[0] = group.make(0)
    node.open(group.now)
    answer = write_hello(node._nonce, 1)
    assert taken(group, node, 1, group.packet(1, 0, WELCOME, answer, sign=2))[0] == "signature"
    assert taken(group, node, 2, group.packet(2, 0, WELCOME, answer, sender=1))[0] == "sender"
    assert node.proven == set()


def test_an_unproven_sender_is_asked():
    group = SmallGroup().start()
    group.crash(0)
    node = group.nodes[0] = group.make(0)
    node.open(group.now)
    assert taken(group, node, 1, model(group, 1, 0, 7.0))[0] == "unproven"
    asked = [send for send in node.tick(group.now + PATIENCE) if send.to == 1]
    assert read_packet(asked[0].data)[0].kind == HELLO


def test_a_state_that_is_lost_is_made_up_for_by_the_clock():
    """Whoever loses its state would begin to count anew, and not be heard: so boots are at least the time of day."""
    group = SmallGroup().start(epoch=1_700_000_000)
    group.stores[1].save(b"")
    group.crash(1)
    group.nodes[1] = group.make(1, store=type(group.stores[1])(), epoch=1_700_000_100)
    group.send(1, group.nodes[1].open(group.now))
    group.settle()
    assert group.offered(1, 0, 0, np.ones(3)) is None
    last = group.nodes[0].gate.last[public(1)]
    assert last == (1_700_000_100, group.nodes[1].sequence)


def test_a_goodbye_cannot_be_replayed():
    group = SmallGroup().start()
    bye = group.packet(1, EVERYONE, BYE, LEAVES)
    assert taken(group, group.nodes[0], 1, bye)[0] is None
    assert 1 not in group.nodes[0].ties
    group.crash(1)
    group.start(1)  # it has thought better of it
    assert 1 in group.nodes[0].ties
    assert taken(group, group.nodes[0], 1, bye)[0] == "replay"
    assert 1 in group.nodes[0].ties


def test_a_goodbye_is_believed_of_who_is_there():
    """An old one that was forgotten in a crash, or never heard, takes no tie away."""
    group = SmallGroup().start()
    bye = group.packet(1, EVERYONE, BYE, LEAVES)
    group.crash(0)
    node = group.nodes[0] = group.make(0)
    hellos = node.open(group.now)
    assert taken(group, node, 1, bye)[0] == "unproven"
    assert 1 in node.ties
    group.send(0, hellos)
    group.settle()
    assert taken(group, node, 1, group.packet(1, EVERYONE, BYE, LEAVES))[0] is None
    assert 1 not in node.ties
    group.crash(0)
    assert 1 not in group.make(0).ties  # at once on disk


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
