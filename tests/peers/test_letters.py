"""Sealed letters, and a hundred thousand that are not quite."""

from __future__ import annotations

import contextlib
import random
import struct
from collections import Counter

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from village import Village, key_of, public

from coterie.engines.wire import decode, encode
from coterie.errors import DataError
from coterie.peers.gate import Gate, Refused
from coterie.peers.letters import (
    BYE,
    CONTEXT,
    HELLO,
    LETTER,
    ROSTER,
    SIGNATURE,
    WELCOME,
    Envelope,
    read_hello,
    seal,
    unseal,
    write_hello,
)

RUN = bytes(range(16))
whole = st.integers(0, 2**53 - 1)
counter = st.integers(1, 2**53 - 1)
byte = st.integers(0, 255)
envelopes = st.builds(
    Envelope,
    version=byte,
    run=st.binary(min_size=16, max_size=16),
    sender=whole,
    to=st.integers(-2, 2**53 - 1),
    boot=counter,
    sequence=counter,
    topic=byte,
    body=st.binary(max_size=200),
    largest=whole,
)


@settings(derandomize=True, deadline=None)
@given(envelope=envelopes, member=st.integers(1, 50))
def test_what_is_sealed_is_unsealed(envelope, member):
    sealed = seal(envelope, key_of(member).sign)
    found, signature, signed = unseal(sealed)
    assert found == envelope
    assert signature == sealed[:SIGNATURE]
    assert signed == CONTEXT + sealed[SIGNATURE:]
    key_of(member).public_key().verify(signature, signed)  # or it raises


@settings(derandomize=True, deadline=None, max_examples=500)
@given(sealed=st.binary(max_size=200))
def test_any_bytes_are_unsealed_or_refused(sealed):
    with contextlib.suppress(DataError):
        unseal(sealed)
    with contextlib.suppress(DataError):
        read_hello(sealed)


@settings(derandomize=True, deadline=None)
@given(nonce=st.binary(min_size=16, max_size=16), roster=whole)
def test_a_greeting_is_read_as_it_was_written(nonce, roster):
    hello = read_hello(write_hello(nonce, roster))
    assert (hello.nonce, hello.roster) == (nonce, roster)


def packed(**other):
    """An envelope that no encoder of ours would write, with a signature of zeros."""
    fields = {
        "version": 1, "run": RUN, "sender": 0, "to": 1, "boot": 1, "sequence": 1, "topic": 0, "body": b"", "largest": 0
    } | other  # fmt: skip
    return bytes(SIGNATURE) + msgspec.msgpack.encode(list(fields.values()))


@pytest.mark.parametrize(
    "bad",
    [
        {"version": -1}, {"version": 256}, {"version": 1.5}, {"version": "1"}, {"version": None},
        {"run": b"short"}, {"run": bytes(17)}, {"run": "0" * 16},
        {"sender": -1}, {"sender": 2**53}, {"sender": 2**63}, {"sender": 0.5}, {"sender": True},
        {"to": -3}, {"to": 2**53}, {"to": [1]},
        {"boot": 0}, {"boot": 2**53}, {"sequence": 0}, {"sequence": -1}, {"sequence": 2**64 - 1},
        {"topic": -1}, {"topic": 256}, {"body": "text"}, {"body": None}, {"body": [0, 1]},
        {"largest": -1}, {"largest": 2**53}, {"largest": float("nan")},
    ],
    ids=repr,
)  # fmt: skip
def test_numbers_beyond_their_bounds_are_no_letter(bad):
    assert unseal(packed())[0].run == RUN
    with pytest.raises(DataError, match="not a sealed letter"):
        unseal(packed(**bad))


def test_a_letter_is_a_whole_array_and_nothing_else():
    good = msgspec.msgpack.decode(packed()[SIGNATURE:])
    head = bytes(SIGNATURE)
    for bad in (good[:7], [], {}, {"version": 1}, 7, None, b"letter", [good]):
        with pytest.raises(DataError):
            unseal(head + msgspec.msgpack.encode(bad))
    with pytest.raises(DataError):
        unseal(packed() + b"\0")
    with pytest.raises(DataError):
        unseal(head)
    with pytest.raises(DataError):
        unseal(head + b"\x91" * 100_000)  # an array in an array in an array ...
    assert unseal(head + msgspec.msgpack.encode(good[:8]))[0].largest == 0  # the last one may be left out
    assert unseal(head + msgspec.msgpack.encode([*good, "new"]))[0].body == b""  # a field of a later version


# -- a fuzzer ----------------------------------------------------------------------------------------------------------

#: Numbers and things that go wrong.
ODD = [
    0, 1, -1, -2, 127, 128, 255, 256, 2**31, 2**53 - 1, 2**53, 2**63, 2**64 - 1, -(2**63),
    0.0, 1.5, float("nan"), float("inf"), None, True, False, "", "x", b"", b"\0", bytes(15), bytes(16), bytes(17), [],
    [[]], {}, {"a": 1},
]  # fmt: skip


def mutants(letters, count, seed):
    """Letters that nobody has signed: (owner of the key it came by, bytes)."""
    chance, honest = random.Random(seed), {payload for _, payload in letters}
    made = 0
    while made < count:
        owner, payload = chance.choice(letters)
        match chance.randrange(9):
            case 0:  # one bit
                place = chance.randrange(8 * len(payload))
                broken = bytearray(payload)
                broken[place // 8] ^= 1 << place % 8
            case 1:  # some bytes
                broken = bytearray(payload)
                for _ in range(chance.randint(1, 4)):
                    broken[chance.randrange(len(broken))] = chance.randrange(256)
            case 2:  # some bytes of the head of the envelope, where the numbers are
                broken = bytearray(payload)
                for _ in range(chance.randint(1, 3)):
                    broken[SIGNATURE + chance.randrange(40)] = chance.randrange(256)
            case 3:
                broken = payload[: chance.randrange(len(payload))]
            case 4:
                broken = payload + chance.randbytes(chance.randint(1, 40))
            case 5:  # the beginning of one and the end of another
                other = chance.choice(letters)[1]
                cut = SIGNATURE if chance.random() < 0.5 else chance.randrange(len(payload))
                broken = payload[:cut] + other[cut if chance.random() < 0.7 else chance.randrange(len(other)) :]
            case 6:  # another value or type in one field
                fields = msgspec.msgpack.decode(payload[SIGNATURE:])
                fields[chance.randrange(len(fields))] = chance.choice(ODD)
                broken = payload[:SIGNATURE] + msgspec.msgpack.encode(fields)
            case 7:  # another shape
                fields = msgspec.msgpack.decode(payload[SIGNATURE:])
                shape = chance.choice([
                    fields[: chance.randrange(len(fields))], [*fields, chance.choice(ODD)], fields[::-1], [fields],
                    dict(enumerate(fields)), chance.choice(ODD), chance.sample(fields, len(fields)),
                ])  # fmt: skip
                broken = payload[:SIGNATURE] + msgspec.msgpack.encode(shape)
            case _:  # a greater number, as who wants an old letter to count as new
                fields = msgspec.msgpack.decode(payload[SIGNATURE:])
                fields[chance.choice((4, 5))] += chance.randint(1, 1000)
                broken = payload[:SIGNATURE] + msgspec.msgpack.encode(fields)
        broken = bytes(broken)
        if broken not in honest:
            made += 1
            yield owner, broken


def test_no_mutant_passes_the_gate():
    village = Village(max_rows=20, confidence="gossip").start().run(20.0)
    letters = [(i, payload) for i, j, payload in village.mail if j == 0]
    assert len(letters) > 50
    assert {unseal(payload)[0].topic for _, payload in letters} >= {LETTER, HELLO, WELCOME}
    gate = Gate(bytes.fromhex(village.charter.run), 0, 400, 1e12, 20)
    gate.admit({i: public(i) for i in range(4)})
    reasons = Counter()
    for now, (owner, broken) in enumerate(mutants(letters, 100_000, seed=1)):
        with pytest.raises(Refused) as refusal:
            gate.check(float(now), owner, broken)
        reasons[refusal.value.reason] += 1
    assert gate.last == {}
    assert reasons.total() == 100_000
    assert set(reasons) >= {"format", "version", "run", "sender", "recipient", "signature"}
    assert reasons["signature"] < 60_000  # it is the last thing to look at, and the dearest
    for owner, payload in sorted(letters, key=lambda letter: (letter[0], unseal(letter[1])[0].sequence)):
        gate.check(1e6, owner, payload)  # and the honest ones still pass


#: Numbers that a hostile member may send.
NUMBERS = [
    np.nan, np.inf, -np.inf, 0.0, -0.0, 5e-324, -1.0, 1.0, 2.0, 0.5, 99.0, 1e3, -1e3, 1e13, 2.0**52, 2.0**53,
    1e100, 1e154, 1.7e308, -1.7e308, -2.0, 3.0, 1e-13,
]  # fmt: skip


def mutated_frame(chance, frame):
    """A frame that a hostile member might make of an honest one."""
    sender, kind, text = decode(frame)
    match chance.randrange(7):
        case 0:
            broken = bytearray(frame)
            for _ in range(chance.randint(1, 4)):
                broken[chance.randrange(len(broken))] = chance.randrange(256)
            return bytes(broken)
        case 1:
            return frame[: chance.randrange(len(frame))] + chance.randbytes(chance.randrange(20))
        case 2:  # of another kind, or from another
            sender = chance.choice((sender, sender, 0, 3, 2**40))
            return encode(sender, chance.choice((*range(12), 65_535)), text)
        case 3:  # of another length
            text = np.resize(text, chance.randrange(3 * text.size + 4)) if text.size else np.zeros(chance.randrange(9))
        case 4:  # all numbers alike
            text = np.full_like(text, chance.choice(NUMBERS))
        case _:
            text = text.copy()
            for _ in range(chance.randint(1, 3)):
                if text.size:
                    k = chance.randrange(text.size)
                    text[k] = chance.choice((*NUMBERS, -text[k], 0.1 * text[k], chance.uniform(-100, 100)))
    return encode(sender, kind, text)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("words", ["cd", "djam", "admm", "boosting", "learned", "learned boosting"])
def test_a_hostile_member_breaks_nothing(words):
    village = Village(words).start().run(40.0)
    node, chance = village.nodes[0], random.Random(words)
    frames = [
        letter.body
        for i, j, payload in village.mail
        if i == 1 and j == 0 and (letter := unseal(payload)[0]).topic == LETTER
    ]
    before, taken = node.gate.refused.total(), node.received["letters"]
    count = 3500
    for k in range(count):
        payload = village.sealed(1, 0, mutated_frame(chance, chance.choice(frames)))
        for parcel in node.hear(village.now, 1, payload):
            letter = unseal(parcel.payload)[0]
            if letter.topic == LETTER:
                decode(letter.body)  # all it says is finite
        if k % 50 == 0:
            village.send(0, node.tick(max(village.now, node.next_time)))
            village.queue.clear()
        assert np.all(np.isfinite(node.theta))
    refused = node.gate.refused.total() - before
    taken = node.received["letters"] - taken
    assert taken + refused == count  # each of them was one or the other
    assert set(node.gate.refused) >= {"shape", "finite", "norm", "sender"}
    assert taken < count // 2
    assert np.linalg.norm(node.theta) <= village.charter.radius
    village.run(30.0)
    assert np.all(np.isfinite(village.theta))


def test_hostile_talk_breaks_nothing():
    village = Village().start()
    node, chance = village.nodes[0], random.Random(7)
    bodies = [write_hello(bytes(16), 1), b"leaves", b"stops", village.signed, b"", struct.pack("<d", np.nan)]
    before = dict(node.ties)
    for _ in range(2000):
        body = bytearray(chance.choice(bodies))
        if body and chance.random() < 0.8:
            body[chance.randrange(len(body))] ^= chance.randrange(1, 256)
        topic = chance.choice((HELLO, WELCOME, BYE, ROSTER, 5, 255))
        body = b"stops" if topic == BYE else bytes(body)
        node.hear(village.now, 1, village.sealed(1, 0, body, topic=topic))
    assert node.ties == before
    assert node.roster.version == 1
    assert set(node.gate.refused) >= {"format", "signature"}
    assert 1 in node.proven  # an answer to another question proves nothing, and takes nothing back
