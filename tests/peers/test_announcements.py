"""Announcements: what the admin signs beside the roster, and how it gets to everybody."""

import contextlib
from datetime import UTC, datetime, timedelta

import msgspec
import numpy as np
import pytest
from small_group import ADMIN, SmallGroup, key_of, public

from coterie.errors import DataError, ParameterError, SignatureError
from coterie.peers.group import announcements
from coterie.peers.group.identity import certificate_der, make_ca, make_csr, new_tls_key, read_csr, sign_csr
from coterie.peers.group.signed import SIGNATURE_BYTES
from coterie.peers.wire.packet import ANNOUNCEMENT, HELLO, Refused, read_packet, write_hello

pytestmark = pytest.mark.plain


def notice(about="all", version=1, body=b"news", kind="notice", by=ADMIN, most=10**6):
    return announcements.sign_announcement(
        announcements.Announcement(kind, about, version, body), key_of(by), most, "the notice"
    )


def bundle(*signed):
    return msgspec.msgpack.encode(list(signed))


def given(group, i, *signed):
    """Member i is handed announcements, and passes them on."""
    group.send(i, group.nodes[i].take_announcements(group.now, list(signed)))
    group.settle()


def announcements_in(mail):
    """How many packets of announcements are among those of a group, or of a node."""
    return sum(read_packet(data)[0].kind == ANNOUNCEMENT for data in mail)


def held(node):
    return {topic: announcement.version for topic, announcement in node.group.board.held.items()}


def offered(group, i, j, *signed):
    """What comes of announcements that member i sends to j: reasons why they are refused."""
    before = group.nodes[j].mail.gate.refused.copy()
    group.send(j, group.nodes[j].receive(group.now, i, group.packet(i, j, ANNOUNCEMENT, bundle(*signed))))
    group.settle()
    return dict(group.nodes[j].mail.gate.refused - before)


# -- the document ------------------------------------------------------------------------------------------------------


def test_a_announcement_is_read_as_it_was_signed():
    signed = notice("ann", 7, b"text")
    assert announcements.read_announcement(signed, {public(ADMIN)}) == announcements.Announcement(
        "notice", "ann", 7, b"text"
    )
    assert announcements.read_announcement(signed, {public(1), public(ADMIN)}).topic == ("notice", "ann")


def test_no_other_key_and_no_other_seal():
    with pytest.raises(SignatureError):
        announcements.read_announcement(notice(by=3), {public(ADMIN)})
    with pytest.raises(SignatureError):
        announcements.read_announcement(notice(), set())
    group = SmallGroup()
    with pytest.raises(SignatureError):  # a roster is no announcement
        announcements.read_announcement(group.signed, {public(ADMIN)})
    body = msgspec.msgpack.encode(announcements.Announcement("notice", "all", 1, b""))
    with pytest.raises(SignatureError):
        announcements.read_announcement(key_of(ADMIN).sign(b"coterie roster 1\n" + body) + body, {public(ADMIN)})
    signed = bytearray(notice())
    for place in (3, SIGNATURE_BYTES + 2, len(signed) - 1):
        bad = bytes([*signed[:place], signed[place] ^ 1, *signed[place + 1 :]])
        with pytest.raises(SignatureError):
            announcements.read_announcement(bad, {public(ADMIN)})


def test_what_is_signed_can_be_read_again():
    for bad in ({"about": "../x"}, {"about": ""}, {"kind": "A"}, {"version": 0}, {"about": "a" * 64}):
        with pytest.raises(ParameterError):
            notice(**bad)
    body = msgspec.msgpack.encode(["notice", "../../etc/passwd", 1, b""])
    forged = key_of(ADMIN).sign(announcements.ANNOUNCEMENTS.seal + body) + body
    with pytest.raises(DataError, match="damaged"):
        announcements.read_announcement(forged, {public(ADMIN)})


def test_what_no_message_can_carry_is_not_signed():
    charter = SmallGroup(message_bytes=1000).charter
    most = announcements.room(charter)
    size = len(notice(body=b""))
    notice(body=bytes(most - size - 1), most=most)
    with pytest.raises(ParameterError, match=r"the notice takes \d+ bytes, and messages of this run carry 734"):
        notice(body=bytes(most), most=most)


# -- the board ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def board():
    return announcements.Board({public(ADMIN)}, 10_000)


def test_the_newest_of_each_topic_is_kept(board):
    for signed in (notice("a", 2), notice("b", 1), notice("a", 3)):
        board.take(signed)
    assert {topic: one.version for topic, one in board.held.items()} == {("notice", "a"): 3, ("notice", "b"): 1}
    assert board.knows(notice("a", 3))
    assert not board.knows(notice("a", 2))
    for old in (notice("a", 3, b"other"), notice("a", 2)):
        with pytest.raises(Refused, match="outdated"):
            board.take(old)
    assert board.held["notice", "a"].body == b"news"


def test_the_digest_tells_what_is_here_and_nothing_else(board):
    other = announcements.Board({public(ADMIN)}, 10_000)
    assert board.digest == other.digest == b""
    some = [notice("a"), notice("b"), notice("a", 2)]
    seen = set()
    for signed in some:
        board.take(signed)
        seen.add(board.digest)
    assert len(seen) == 3
    for signed in (some[2], some[1]):
        other.take(signed)
    assert other.digest == board.digest
    other.drop(("notice", "a"))
    assert other.digest != board.digest
    other.drop(("notice", "b"))
    assert other.digest == b""


def test_what_is_refused_has_a_reason(board):
    for signed, reason in ((notice(by=1), "signature"), (notice(body=bytes(10_000)), "size"), (b"", "signature")):
        with pytest.raises(Refused) as refused:
            board.take(signed)
        assert refused.value.reason == reason
    with pytest.raises(Refused) as refused:
        board.take(notice("ann", kind=announcements.CERTIFICATE, body=b"no certificate"))
    assert refused.value.reason == "format"
    assert not board.held
    assert board.digest == b""


def test_there_is_an_end_to_topics(board):
    for k in range(announcements.MAX_TOPICS):
        board.held["notice", f"n{k}"] = announcements.Announcement("notice", f"n{k}", 1, b"")
    with pytest.raises(Refused, match="size"):
        board.take(notice("one-more"))
    board.held.pop(("notice", "n0"))
    board.take(notice("one-more"))


def certificate(name="ann", days=10):
    """A member's certificate, as an announcement has it."""
    key, ca = make_ca("test")
    csr = read_csr(make_csr(new_tls_key(), name, bytes(32)), name, bytes(32))
    return certificate_der(sign_csr(csr, key, ca, name=name, endpoint=None, days=days))


def test_a_certificate_is_kept_until_it_expires(board):
    board.take(notice("ann", kind=announcements.CERTIFICATE, body=certificate()))
    board.take(notice("all"))
    now = datetime.now(UTC)
    board.forget(now + timedelta(days=9))
    assert len(board.held) == 2
    board.forget(now + timedelta(days=11))
    assert list(board.held) == [("notice", "all")]


def test_who_may_sign_no_longer_has_signed_nothing(board):
    board.take(notice("a"))
    before = board.digest
    board.trust({public(ADMIN), public(5)})
    assert board.digest == before
    board.take(notice("b", by=5))
    board.trust({public(5)})
    assert list(board.held) == [("notice", "b")]


def test_many_announcements_come_in_packets_that_a_message_can_carry(board):
    rng = np.random.default_rng(0)
    board.most = 2000
    signed = [notice(f"n{k}", body=bytes(int(rng.integers(0, 1700)))) for k in range(60)]
    packets = list(board.packets(signed))
    assert [one for packet in packets for one in announcements.unbundled(packet)] == signed
    assert max(map(len, packets)) <= 2000 + 10
    assert len(packets) < 60
    for one in signed:
        board.take(one)
    came = set()
    for k in range(40):
        came |= set(announcements.unbundled(board.answer(100.0 * k, 1)))
    assert came == set(signed)  # one after the other
    assert board.answer(3901.0, 1) is None  # not so soon
    assert board.answer(3901.0, 2) is not None


def test_packages():
    assert announcements.unpackaged(announcements.packaged(b"list", [])) == (b"list", [])
    assert announcements.packaged(b"list", []) == b"list"
    assert announcements.unpackaged(announcements.packaged(b"list", [b"a", b"b"])) == (b"list", [b"a", b"b"])
    assert announcements.unpackaged(announcements.packaged(b"", [b"a"])) == (b"", [b"a"])
    with pytest.raises(DataError):
        announcements.unpackaged(announcements.packaged(b"", [b"a"])[:-1])


# -- from peer to peer -------------------------------------------------------------------------------------------------


def test_a_announcement_given_to_one_peer_reaches_all():
    group = SmallGroup().start()
    given(group, 1, notice(), notice("m2"))
    assert all(held(node) == {("notice", "all"): 1, ("notice", "m2"): 1} for node in group.nodes.values())
    assert len({node.group.board.digest for node in group.nodes.values()}) == 1
    mail = len(group.mail)
    given(group, 1, notice(), notice("m2"))
    assert len(group.mail) == mail  # nobody says it twice
    assert not any(node.mail.gate.refused.total() for node in group.nodes.values())


def test_a_lost_packet_comes_again_and_two_halves_become_a_whole():
    group = SmallGroup().start()
    for i in (0, 2):
        group.nodes[i].take_announcements(group.now, [notice(f"from-{i}")])  # what they send is lost
    expected = {("notice", "from-0"): 1, ("notice", "from-2"): 1}
    group.run_until(lambda: all(held(node) == expected for node in group.nodes.values()), 600.0)
    group.run(60.0)
    before = announcements_in(data for _, _, data in group.mail)
    group.run(200.0)
    assert before == announcements_in(data for _, _, data in group.mail)  # all is said


def test_a_newer_one_replaces_an_older_one_everywhere():
    group = SmallGroup().start()
    given(group, 0, notice(version=5))
    assert offered(group, 1, 0, notice(version=6)) == {}
    assert all(held(node) == {("notice", "all"): 6} for node in group.nodes.values())


@pytest.mark.parametrize(
    ("signed", "reason"),
    [
        (notice(version=9, by=1), "signature"),  # a member's own
        (notice(version=4), "outdated"),
        (notice(version=5, body=b"another"), "outdated"),
        (notice(version=9)[:-1], "signature"),
        (b"", "signature"),
    ],
)
def test_what_is_refused_is_counted_and_not_passed_on(signed, reason):
    group = SmallGroup().start()
    given(group, 0, notice(version=5))
    mail = len(group.mail)
    assert offered(group, 1, 0, signed) == {reason: 1}
    assert len(group.mail) == mail
    assert held(group.nodes[0]) == {("notice", "all"): 5}
    assert "from 1" in group.nodes[0].mail.last_refusal


def test_too_long_and_not_a_bundle():
    group = SmallGroup(message_bytes=2000).start()
    assert offered(group, 1, 0, notice(body=bytes(3000))) == {"size": 1}  # the gate
    node = group.nodes[0]
    node.take_announcements(group.now, [notice(body=bytes(3000))])  # from the disk
    assert node.mail.gate.refused["size"] == 2
    for content in (b"", b"\x91", msgspec.msgpack.encode({"a": 1}), msgspec.msgpack.encode(b"x")):
        node.receive(group.now, 1, group.packet(1, 0, ANNOUNCEMENT, content))
    assert node.mail.gate.refused["format"] == 4
    assert not held(node)


def test_a_member_cannot_keep_others_busy_with_old_ones():
    group = SmallGroup().start()
    node = group.nodes[0]
    node.take_announcements(group.now, [notice(version=10**6)])
    old = [notice(version=k + 1) for k in range(int(announcements.ANNOUNCEMENTS_AT_ONCE) + 50)]
    for k in range(0, len(old), 100):
        offered(group, 1, 0, *old[k : k + 100])
    assert node.mail.gate.refused["outdated"] <= announcements.ANNOUNCEMENTS_AT_ONCE
    assert node.mail.gate.refused["rate"] >= 1
    assert offered(group, 2, 0, notice("b")) == {}  # others are heard
    group.now += 1.0
    assert offered(group, 1, 0, *old[:20])["outdated"] <= announcements.ANNOUNCEMENTS_PER_SECOND + 1


def test_greetings_cannot_be_used_to_be_sent_everything_again_and_again():
    group = SmallGroup().start()
    node = group.nodes[0]
    node.take_announcements(group.now, [notice(body=bytes(10_000))])
    sent = 0
    for k in range(50):
        hello = group.packet(1, 0, HELLO, write_hello(bytes(16), 1, bytes(8)))
        sent += announcements_in(send.data for send in node.receive(group.now + 0.1 * k, 1, hello))
    assert sent == 1


def test_a_greeting_without_a_digest_is_one_of_somebody_who_has_nothing():
    group = SmallGroup().start()
    hello = msgspec.msgpack.encode([bytes(16), 1])
    sent = group.nodes[0].receive(group.now, 1, group.packet(1, 0, HELLO, hello))
    assert not announcements_in(send.data for send in sent)
    assert not group.nodes[0].mail.gate.refused


def test_kinds_of_later_versions_are_passed_on():
    group = SmallGroup().start()
    given(group, 0, notice(kind="later"))
    assert all(held(node) == {("later", "all"): 1} for node in group.nodes.values())


def test_any_bytes_are_taken_or_refused():
    rng = np.random.default_rng(1)
    group = SmallGroup().start()
    node, good = group.nodes[0], bundle(notice())
    for k in range(300):
        content = bytearray(good if k % 2 else rng.bytes(int(rng.integers(0, 200))))
        for _ in range(int(rng.integers(1, 4)) if content else 0):
            content[int(rng.integers(len(content)))] = int(rng.integers(256))
        node.receive(group.now, 1, group.packet(1, 0, ANNOUNCEMENT, bytes(content)))
        with contextlib.suppress(DataError):
            announcements.unpackaged(b"coterie package 1\n" + bytes(content))
    assert set(held(node)) <= {("notice", "all")}
