"""What a peer keeps: whole or refused, its own, replaced in one piece, and enough to go on from."""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat

import msgspec
import numpy as np
import pytest
from small_group import WORDS, MemoryStore, P, SmallGroup

from coterie.core.methods import METHODS
from coterie.engines.wire import encode
from coterie.errors import StateError
from coterie.peers.group.charter import TRAINING
from coterie.peers.model.work import method_of
from coterie.peers.node import state as states
from coterie.peers.wire.packet import read_packet
from coterie.privacy import Ledger

pytestmark = pytest.mark.plain


def small():
    arrays = states.pack("own", {"theta": np.arange(2.0)[None, :]}) | states.pack("arrays", {"peer": np.array([1, -1])})
    return states.Record("00" * 16, 7, 3, 20, 12, [5], arrays)


def test_one_flipped_bit_or_a_part_of_it_is_refused():
    content = states.write_record(small())
    assert states.read_record(content) == small()
    for place in range(8 * len(content)):
        broken = bytearray(content)
        broken[place // 8] ^= 1 << place % 8
        with pytest.raises(StateError):
            states.read_record(bytes(broken))
    for cut in range(len(content)):
        with pytest.raises(StateError):
            states.read_record(content[:cut])
    for more in (b"\0", content):
        with pytest.raises(StateError, match="checksum"):
            states.read_record(content + more)


def test_a_good_checksum_of_something_else():
    for thing in (
        [],
        {},
        {"run": 7},
        "state",
        msgspec.structs.asdict(small()) | {"arrays": {"own.theta": ["<f8", [1]]}},
    ):
        text = msgspec.msgpack.encode(thing)
        with pytest.raises(StateError, match="cannot be read"):
            states.read_record(states.MAGIC + hashlib.sha256(text).digest() + text)


@pytest.mark.parametrize("shape", [[3], [-1, -2], [1, 2, 0], [2**40, 2**40], [], [1, 1]])
def test_an_array_has_the_shape_it_announces_and_holds_numbers(shape):
    with pytest.raises(StateError, match="shape it announces"):
        states.unpack({"own.theta": ("<f8", shape, bytes(16))}, "own.theta")
    for dtype in ("|O", "O", "<c16", "|V16", ">f8", "<U4", "f8,O", "<M8[s]", ""):
        with pytest.raises(StateError, match="no method keeps"):
            states.unpack({"own.theta": (dtype, [2], bytes(16))}, "own.theta")


def test_whose_state_it_is():
    group = SmallGroup().start()
    content = group.nodes[0].record()
    record = states.read_record(content)

    def begin(member=0, words="cd", **other):
        store = MemoryStore()
        store.save(states.write_record(msgspec.structs.replace(record, **other)))
        return SmallGroup(words).make(member, store=store)

    assert begin().starts == record.starts + 1
    arrays = record.arrays
    for other, message in (
        ({"words": "djam"}, r"of run .*, and the charter beside it of run .*coterie peer accept.*move the .*state"),
        ({"run": "00" * 16}, rf"of run {'00' * 16}, and the charter beside it of run {record.run}"),
        ({"member": 1}, r"of member 0, and this is 1, .*move the state file away"),
        ({"address": 3}, "of member 3, and this is 0"),
        ({"arrays": {path: array for path, array in arrays.items() if path != "edge.copy"}}, r"no 'edge\.copy'"),
        ({"arrays": arrays | states.pack("own", {"theta": np.zeros((1, P + 1))})}, "models of shape"),
        ({"arrays": arrays | states.pack("edge", {"copy": np.zeros((2, P))})}, r"edge\.copy of the state is of shape"),
        ({"arrays": arrays | states.pack("edge", {"copy": np.zeros((3, P), int)})}, r"edge\.copy of the state"),
    ):
        with pytest.raises(StateError, match=message):
            begin(**other)


# -- files -------------------------------------------------------------------------------------------------------------


def test_a_file_is_its_owners_alone(tmp_path):
    store = states.FileStore(tmp_path / "state")
    assert store.load() is None
    before = os.umask(0)
    try:
        store.save(b"first")
    finally:
        os.umask(before)
    assert stat.S_IMODE(store.path.stat().st_mode) == 0o600
    store.save(b"second")
    assert stat.S_IMODE(store.path.stat().st_mode) == 0o600
    assert store.load() == b"second"
    assert [path.name for path in tmp_path.iterdir()] == ["state"]  # nothing is left lying about


def full(*_, **__):
    raise OSError(28, "No space left on device")


@pytest.mark.parametrize("more", [0, 10_000])  # which needs a larger file
@pytest.mark.parametrize("saves", [1, 2, 3])
def test_a_file_is_saved_whole_or_not_at_all(tmp_path, monkeypatch, saves, more):
    """Whatever fails on the way, there is the old content or the new one."""
    store = states.FileStore(tmp_path / "state")
    for k in range(saves):
        store.save(b"old" * (saves - k))
    for name in ("open", "pwrite", "fsync", "replace", "close"):
        with monkeypatch.context() as patch:
            patch.setattr(os, name, full)
            with contextlib.suppress(OSError):  # what fails after the content is there may pass unnoticed
                store.save(b"new" + bytes(more))
        assert store.load() in (b"old", b"new" + bytes(more)), name
        assert states.FileStore(store.path).load() == store.load()
    store.save(b"newest")
    assert store.load() == b"newest"
    assert [path.name for path in tmp_path.iterdir()] == ["state"]


@pytest.mark.parametrize("saves", [2, 3, 4])
def test_of_a_save_that_is_cut_off_the_one_before_is_left(tmp_path, saves):
    """Wherever the power fails: the file is as it was but for a part of what was to be written."""
    store, contents = states.FileStore(tmp_path / "state"), [bytes([65 + k]) * (40 + k) for k in range(saves)]
    for content in contents[:-1]:
        store.save(content)
    before = store.path.read_bytes()
    store.save(contents[-1])
    after = store.path.read_bytes()
    changed = [k for k, (a, b) in enumerate(zip(before, after, strict=True)) if a != b]
    other = tmp_path / "cut off"
    for cut in range(changed[0], changed[-1] + 2):
        for torn in (after[:cut] + before[cut:], before[:cut] + after[cut:]):  # disks write in any order
            other.write_bytes(torn)
            assert states.FileStore(other).load() in contents[-2:]
    other.write_bytes(before)
    assert states.FileStore(other).load() == contents[-2]


def test_a_save_makes_no_file(tmp_path, monkeypatch):
    """One write and one wait for the disk, and no name changes: that is what makes it cheap."""
    store = states.FileStore(tmp_path / "state")
    store.save(b"first")
    file = store.path.stat().st_ino
    monkeypatch.setattr(os, "replace", full)
    synced = []
    fsync = os.fsync
    monkeypatch.setattr(os, "fsync", lambda fd: synced.append(os.fstat(fd).st_ino) or fsync(fd))
    for k in range(5):
        store.save(b"content %d" % k)
        assert states.FileStore(store.path).load() == b"content %d" % k
    assert synced == [file] * 5
    assert store.path.stat().st_ino == file


def test_a_file_that_was_moved_away_is_made_again(tmp_path):
    store = states.FileStore(tmp_path / "state")
    store.save(b"first")
    store.path.rename(tmp_path / "moved")
    store.save(b"second")
    (tmp_path / "other").write_bytes(b"a backup")
    os.replace(tmp_path / "other", store.path)
    store.save(b"third")
    assert store.load() == b"third"
    assert states.FileStore(tmp_path / "moved").load() == b"first"


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(OSError, match="nowhere"):
        states.FileStore(tmp_path / "nowhere" / "state").save(b"")
    (tmp_path / "state").mkdir()
    with pytest.raises(StateError, match="cannot read"):
        states.FileStore(tmp_path / "state").load()


def test_a_damaged_file_is_refused_and_kept(tmp_path):
    group = SmallGroup()
    store = states.FileStore(tmp_path / "state")
    node = group.make(0, store=store)
    node.open(0.0)
    whole, record = store.path.read_bytes(), store.load()
    at = whole.index(record)
    for place in (at - 1, at, at + len(record) - 1):
        content = bytearray(whole)
        content[place] ^= 1
        store.path.write_bytes(content)
        with pytest.raises(StateError, match="checksum"):
            group.make(0, store=store)
        assert store.path.read_bytes() == content  # for whoever wants to know what happened
    store.path.write_bytes(b"something else")
    with pytest.raises(StateError, match="not a state"):
        group.make(0, store=store)


# -- a restart ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("words", WORDS)
def test_a_restored_peer_goes_on_as_if_nothing_had_happened(words):
    """The same dice and messages: the same models, to the last bit."""
    fixed = {"settings": {"rho": 1.0}} if words == "admm" else {}  # when it looks at its penalty again is not kept
    group = SmallGroup(words, **fixed).start().run(15.0)
    node = group.nodes[0]
    node._save()
    ledgers = [None, None]
    if group.ledgers[0] is not None:
        ledgers = [Ledger(group.method.plan) for _ in range(2)]
        for ledger in ledgers:
            for _ in range(min(2, group.ledgers[0].releases)):
                ledger.debit()
    one, other = (group.make(0, ledger=ledger) for ledger in ledgers)
    one.peer._own, one.peer._edge = node.peer.own, node.peer.edge
    one.peer.arrays = node.peer.arrays
    one.peer.resume(one.peer.arrays, one.peer.own, one.peer.edge)
    mail = [data for i, j, data in group.mail if i == 2 and j == 0 and read_packet(data)[0].kind >= 0]
    rng = np.random.default_rng(3)
    assert mail
    for k, data in enumerate(mail[-10:]):
        packet, dice = read_packet(data)[0], rng.random(group.method.dice)
        message = encode(packet.sender, packet.kind, node._contents.parse(packet.kind, packet.content))
        sent = [peer.receive(message) + peer.wake(dice, moment=float(k)) for peer in (one.peer, other.peer)]
        assert [(sent.to, sent.data) for sent in sent[0]] == [(sent.to, sent.data) for sent in sent[1]]
        assert np.array_equal(one.theta, other.theta)


def test_every_method_is_tried():
    tried = {repr(type(method_of(SmallGroup(words).charter))) for words in WORDS}
    assert {repr(type(method)) for name, method in METHODS.items() if name in TRAINING or not method.jobs} <= tried


def test_a_state_with_edges_that_are_gone():
    group = SmallGroup().start().run(5.0)
    group.nodes[0]._save()
    copies = dict(zip(group.nodes[0].peer.arrays.peer.tolist(), group.nodes[0].peer.edge.copy.copy(), strict=True))
    group.change(drop=[1])
    again = group.make(0)
    assert sorted(again.edges) == [2, 3]
    for j, copy in zip(again.peer.arrays.peer.tolist(), again.peer.edge.copy, strict=True):
        assert np.array_equal(copy, copies[j])
