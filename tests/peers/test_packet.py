"""Packets, and many thousands that are not quite."""

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
from mutations import mutations
from small_group import SmallGroup, key_of, public

from coterie.engines.wire import read_numbers, write_numbers
from coterie.errors import DataError
from coterie.peers.wire import packet as wire
from coterie.peers.wire.gate import Gate, Refused

pytestmark = pytest.mark.plain


RUN = bytes(range(16))
whole = st.integers(0, 2**53 - 1)
counter = st.integers(1, 2**53 - 1)
byte = st.integers(0, 255)
packets = st.builds(
    wire.Packet,
    version=byte,
    run=st.binary(min_size=16, max_size=16),
    sender=whole,
    to=st.integers(-2, 2**53 - 1),
    session=counter,
    sequence=counter,
    largest=whole,
    kind=st.integers(-128, 2**16 - 1),
    content=st.binary(max_size=200),
)


@settings(derandomize=True, deadline=None)
@given(packet=packets, member=st.integers(1, 50))
def test_what_is_written_is_read(packet, member):
    data = wire.write_packet(packet, key_of(member).sign)
    found, signature, signed = wire.read_packet(data)
    assert found == packet
    assert signature == data[: wire.SIGNATURE_BYTES]
    assert signed == wire.CONTEXT + data[wire.SIGNATURE_BYTES :]
    key_of(member).public_key().verify(signature, signed)  # or it raises


@settings(derandomize=True, deadline=None, max_examples=500)
@given(data=st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data):
    for reader in (wire.read_packet, wire.read_hello, read_numbers):
        with contextlib.suppress(DataError):
            reader(data)


@settings(derandomize=True, deadline=None)
@given(nonce=st.binary(min_size=16, max_size=16), roster=whole)
def test_a_greeting_is_read_as_it_was_written(nonce, roster):
    hello = wire.read_hello(wire.write_hello(nonce, roster))
    assert (hello.nonce, hello.roster) == (nonce, roster)


def packed(**other):
    """A packet that no encoder of ours would write, with a signature of zeros."""
    fields = {
        "version": 2, "run": RUN, "sender": 0, "to": 1, "session": 1, "sequence": 1, "largest": 0, "kind": 0,
        "content": b"",
    } | other  # fmt: skip
    return bytes(wire.SIGNATURE_BYTES) + msgspec.msgpack.encode(list(fields.values()))


@pytest.mark.parametrize(
    "bad",
    [
        {"version": -1}, {"version": 256}, {"version": 1.5}, {"version": "1"}, {"version": None},
        {"run": b"short"}, {"run": bytes(17)}, {"run": "0" * 16},
        {"sender": -1}, {"sender": 2**53}, {"sender": 2**63}, {"sender": 0.5}, {"sender": True},
        {"to": -3}, {"to": 2**53}, {"to": [1]},
        {"session": 0}, {"session": 2**53}, {"sequence": 0}, {"sequence": -1}, {"sequence": 2**64 - 1},
        {"kind": -129}, {"kind": 2**16}, {"content": "text"}, {"content": None}, {"content": [0, 1]},
        {"largest": -1}, {"largest": 2**53}, {"largest": float("nan")},
    ],
    ids=repr,
)  # fmt: skip
def test_numbers_beyond_their_bounds_are_no_packet(bad):
    assert wire.read_packet(packed())[0].run == RUN
    with pytest.raises(DataError, match="not a packet"):
        wire.read_packet(packed(**bad))


def test_a_packet_is_a_whole_array_and_nothing_else():
    good = msgspec.msgpack.decode(packed()[wire.SIGNATURE_BYTES :])
    head = bytes(wire.SIGNATURE_BYTES)
    for bad in (good[:7], good[:8], [], {}, {"version": 1}, 7, None, b"packet", [good]):
        with pytest.raises(DataError):
            wire.read_packet(head + msgspec.msgpack.encode(bad))
    with pytest.raises(DataError):
        wire.read_packet(packed() + b"\0")
    with pytest.raises(DataError):
        wire.read_packet(head)
    with pytest.raises(DataError):
        wire.read_packet(head + b"\x91" * 100_000)  # an array in an array in an array ...
    assert (
        wire.read_packet(head + msgspec.msgpack.encode([*good, "new"]))[0].content == b""
    )  # a field of a later version


# -- a fuzzer ----------------------------------------------------------------------------------------------------------


def mutants(messages, count):
    """Messages that nobody has signed: (owner of the key it came by, bytes)."""
    honest = {data for _, data in messages}
    for k, (owner, data) in enumerate(messages):
        fields = msgspec.msgpack.decode(data[wire.SIGNATURE_BYTES :])
        fields[5] += 1000  # as who wants an old message to count as new
        yield owner, data[: wire.SIGNATURE_BYTES] + msgspec.msgpack.encode(fields)
        yield from ((owner, bad) for bad in mutations(data, count // len(messages), k) if bad not in honest)


@pytest.mark.parametrize("count", [15_000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_no_mutant_passes_the_gate(count):
    group = SmallGroup(max_rows=20, confidence="gossip").start().run(20.0)
    messages = [(i, data) for i, j, data in group.mail if j == 0]
    assert len(messages) > 50
    assert {wire.read_packet(data)[0].kind for _, data in messages} >= {0, wire.HELLO, wire.WELCOME}
    gate = Gate(bytes.fromhex(group.charter.run), 0, 400, 1e12, 20)
    gate.admit({i: public(i) for i in range(4)})
    reasons = Counter()
    for now, (owner, broken) in enumerate(mutants(messages, count)):
        with pytest.raises(Refused) as refusal:
            gate.check(float(now), owner, broken)
        reasons[refusal.value.reason] += 1
    assert gate.last == {}
    assert reasons.total() > 0.8 * count
    assert set(reasons) >= {"format", "version", "run", "sender", "recipient", "signature"}
    assert reasons["signature"] < 0.6 * reasons.total()  # it is the last thing to look at, and the dearest
    for owner, data in sorted(messages, key=lambda message: (message[0], wire.read_packet(message[1])[0].sequence)):
        gate.check(1e6, owner, data)  # and the honest ones still pass


#: Numbers that a hostile member may send.
NUMBERS = [
    np.nan, np.inf, -np.inf, 0.0, -0.0, 5e-324, -1.0, 1.0, 2.0, 0.5, 99.0, 1e3, -1e3, 1e13, 2.0**52, 2.0**53,
    1e100, 1e154, 1.7e308, -1.7e308, -2.0, 3.0, 1e-13,
]  # fmt: skip


def mutated(randomness, kind, text):
    """Kind and content that a hostile member might make of an honest message."""
    match randomness.randrange(7):
        case 0:
            broken = bytearray(write_numbers(text))
            for _ in range(randomness.randint(1, 4) if broken else 0):
                broken[randomness.randrange(len(broken))] = randomness.randrange(256)
            return kind, bytes(broken)
        case 1:
            content = write_numbers(text)
            return kind, content[: randomness.randrange(len(content) + 1)] + randomness.randbytes(
                randomness.randrange(20)
            )
        case 2:
            return randomness.choice((*range(12), 65_535)), write_numbers(text)
        case 3:  # of another length
            text = (
                np.resize(text, randomness.randrange(3 * text.size + 4))
                if text.size
                else np.zeros(randomness.randrange(9))
            )
        case 4:  # all numbers alike
            text = np.full_like(text, randomness.choice(NUMBERS))
        case _:
            text = text.copy()
            for _ in range(randomness.randint(1, 3)):
                if text.size:
                    k = randomness.randrange(text.size)
                    text[k] = randomness.choice((*NUMBERS, -text[k], 0.1 * text[k], randomness.uniform(-100, 100)))
    return kind, write_numbers(text)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("words", ["cd", "djam", "admm", "boosting", "learned", "learned boosting"])
def test_a_hostile_member_breaks_nothing(words):
    group = SmallGroup(words).start().run(40.0)
    node, randomness = group.nodes[0], random.Random(words)
    packets = [wire.read_packet(data)[0] for i, j, data in group.mail if (i, j) == (1, 0)]
    messages = [(packet.kind, read_numbers(packet.content)) for packet in packets if packet.kind >= 0]
    before, taken = node.mail.gate.refused.total(), node.mail.received["messages"]
    count = 1500
    for k in range(count):
        data = group.packet(1, 0, *mutated(randomness, *randomness.choice(messages)))
        for send in node.receive(group.now, 1, data):
            packet = wire.read_packet(send.data)[0]
            if packet.kind >= 0:
                read_numbers(packet.content)  # all it says is finite
        if k % 50 == 0:
            group.send(0, node.tick(max(group.now, node.next_time)))
            group.queue.clear()
        assert np.all(np.isfinite(node.theta))
    refused = node.mail.gate.refused.total() - before
    taken = node.mail.received["messages"] - taken
    assert taken + refused == count  # each of them was one or the other
    assert set(node.mail.gate.refused) >= {"shape", "finite", "norm"}
    assert taken < count // 2
    assert np.linalg.norm(node.theta) <= group.charter.radius
    group.run(30.0)
    assert np.all(np.isfinite(group.theta))


def test_hostile_notices_break_nothing():
    group = SmallGroup().start()
    node, randomness = group.nodes[0], random.Random(7)
    contents = [wire.write_hello(bytes(16), 1), b"leaves", b"stops", group.signed, b"", struct.pack("<d", np.nan)]
    before = dict(node.edges)
    for _ in range(2000):
        content = bytearray(randomness.choice(contents))
        if content and randomness.random() < 0.8:
            content[randomness.randrange(len(content))] ^= randomness.randrange(1, 256)
        kind = randomness.choice((wire.HELLO, wire.WELCOME, wire.BYE, wire.ROSTER, -5, -128))
        content = b"stops" if kind == wire.BYE else bytes(content)
        node.receive(group.now, 1, group.packet(1, 0, kind, content))
    assert node.edges == before
    assert node.group.roster.version == 1
    assert set(node.mail.gate.refused) >= {"format", "signature"}
    assert 1 in node.fresh.proven  # an answer to another question proves nothing, and takes nothing back
