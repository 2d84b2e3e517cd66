"""Health records: any peer shows the group; what is forged, replayed or too large is refused."""

from __future__ import annotations

import io
import math

import msgspec
import pytest
from small_group import MemoryStore, SmallGroup, key_of, public

from coterie.peers.app.metrics import Log
from coterie.peers.app.status import status_of as status_of_program
from coterie.peers.node import health
from coterie.peers.node.health import HEALTH_SEAL, HealthBoard, HealthRecord, days_left, record_of
from coterie.peers.node.program import Program
from coterie.peers.transport.memory import Exchange, Memory
from coterie.peers.wire.gate import Refused
from coterie.peers.wire.packet import HEALTH

pytestmark = pytest.mark.plain


RUN = bytes(range(16))
encode = msgspec.msgpack.encode
#: A line: what 0 says reaches 5 through four others.
LINE = [(i, i + 1, 1.0) for i in range(5)]


def status_of(i, **more):
    return {
        "at": 1.7e9 + i,
        "wakes": 100 + i,
        "score": 0.123456 + i,
        "score_alone": 0.5,
        "served": "together",
        "edges": [{"alive": True}, {"alive": False}],
        "refused": {"norm": 2, "rate": 3},
        "certificate_expires": "2999-01-01T00:00:00+00:00",
        "errors": {},
    } | more


def line_of_six(words="cd", silent=(), wakes=False, edges=LINE):
    """Peers that tell of themselves, and do little else."""
    group = SmallGroup(words, sizes=(3,) * 6, edges=edges)
    for i in range(6):
        begin(group, i, share_health=i not in silent)
        if not wakes:
            group.nodes[i]._wake_at = group.nodes[i]._refresh_at = math.inf
    return group


def begin(group, i, share_health=True, **more):
    group.start(i, share_health=share_health)
    group.nodes[i].health.status = lambda: status_of(i, **more)


def seen_by(group, i):
    return {row["address"]: row for row in group.nodes[i].health.rows(group.now)}


def signed(record, key=None, seal=HEALTH_SEAL + RUN):
    body = encode(record)
    return key_of(record.address if key is None else key).sign(seal + body) + body


def record(address=1, start=1, number=1, **more):
    return msgspec.structs.replace(record_of(status_of(address), address, start, number, False), **more)


def board_of(address=0, members=4, **more):
    board = HealthBoard(RUN, address, key_of(address).sign, lambda n: bytes(n), packet_bytes=200_000, **more)
    board.admit({j: public(j) for j in range(members)})
    board.open(0.0, 1)
    return board


def reason_of(board, now, sender, content):
    """Why a packet is refused, or None."""
    try:
        board.take(now, sender, content)
    except Refused as refusal:
        return refusal.reason
    return None


# -- the group ---------------------------------------------------------------------------------------------------------


def test_any_peer_shows_the_group():
    group = line_of_six(wakes=True).run(400.0)
    for i in range(6):
        seen = seen_by(group, i)
        assert set(seen) == set(range(6))
        assert [seen[j]["wakes"] for j in range(6)] == [100 + j for j in range(6)]
        assert all(row["age"] < 300.0 for row in seen.values())
    row = seen_by(group, 5)[0]
    assert (row["score"], row["score_alone"], row["served"]) == (0.123, 0.5, "together")
    assert (row["edges"], row["alive"], row["refused"], row["expires"]) == (2, 1, 5, 100_000)


def test_records_cross_where_no_edge_does():
    group = line_of_six(edges=[(0, 1, 1.0), (2, 3, 1.0)]).run(400.0)
    assert all(set(seen_by(group, i)) == set(range(6)) for i in range(6))


def test_who_does_not_consent_says_nothing_and_passes_on_what_others_say():
    group = line_of_six(silent={2, 5}).run(400.0)
    for i in range(6):
        assert set(seen_by(group, i)) == {0, 1, 3, 4}


def test_a_group_in_which_nobody_consents_sends_no_records():
    group = line_of_six(silent=set(range(6))).run(100.0)
    assert all(seen_by(group, i) == {} and group.nodes[i].health.next_time == math.inf for i in range(6))


def test_private_rows_are_not_told_of():
    group = line_of_six("private").run(400.0)
    for row in seen_by(group, 0).values():
        assert row["score"] is row["score_alone"] is row["served"] is None
        assert row["wakes"] >= 100


def test_newer_records_replace_older_ones_and_ages_add_up_without_clocks():
    group = line_of_six().run(400.0)
    before = seen_by(group, 5)[0]
    group.nodes[0].health.status = lambda: status_of(0, wakes=999, at=12.0)  # its clock has gone back
    group.run(300.0)
    after = seen_by(group, 5)[0]
    assert after["wakes"] == 999
    assert after["number"] > before["number"]
    assert after["time"] < before["time"]
    group.crash(0)
    group.run(1000.0)
    assert 1000.0 <= seen_by(group, 5)[0]["age"] < 1300.0


def test_records_expire_everywhere_and_do_not_come_back(monkeypatch):
    group = line_of_six().run(300.0)
    group.crash(0)
    monkeypatch.setattr(health, "MAX_WAIT", 600.0)
    group.run(health.EXPIRY_SECONDS + 3000.0)
    assert all(0 not in seen_by(group, i) for i in range(1, 6))
    group.run(health.EXPIRY_SECONDS)
    assert all(0 not in seen_by(group, i) for i in range(1, 6))
    assert 0 not in group.nodes[5].health._known


def test_who_has_lost_its_state_is_heard_again():
    group = line_of_six().run(300.0)
    for _ in range(3):  # it has been started often
        group.crash(1)
        begin(group, 1)
        group.run(100.0)
    group.crash(1)
    group.stores[1] = MemoryStore()
    begin(group, 1, wakes=7)
    group.run(300.0)
    assert seen_by(group, 5)[1]["wakes"] == 7


def test_members_who_leave_the_list_leave_the_board():
    group = line_of_six().run(300.0)
    new = group.change(drop=[3])
    group.send(4, group.nodes[4].take_roster(group.now, new))
    assert set(seen_by(group, 4)) == {0, 1, 2, 4, 5}


# -- what is wrong -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (encode([(0.0, signed(record(1), key=2))]), "signature"),  # 2 speaks for 1
        (encode([(0.0, signed(record(1), seal=HEALTH_SEAL + bytes(16)))]), "signature"),  # of another run
        (encode([(0.0, signed(record(1), seal=b"coterie packet 2\n" + RUN))]), "signature"),
        (encode([(0.0, signed(record(1))[:-1] + b"\x91")]), "format"),
        (encode([(0.0, signed(record(1, score=float("nan"))))]), "format"),
        (encode([(0.0, signed(record(1, errors=("\x1b[31m",))))]), "format"),
        (encode([(0.0, signed(record(1, errors=("x",) * 5)))]), "format"),
        (encode([(float("nan"), signed(record(1)))]), "format"),
        (encode([(-1.0, signed(record(1)))]), "format"),
        (encode([(0.0, signed(record(1)) + bytes(300))]), "size"),
        (encode([(0.0, signed(record(1)))] * 17), "format"),
        (bytes(100_000), "size"),
        (b"", "format"),
        (b"\xc1", "format"),
        (encode({"a": 1}), "format"),
    ],
)
def test_what_is_wrong_is_refused(content, reason):
    board = board_of()
    with pytest.raises(Refused) as refusal:
        board.take(0.0, 2, content)
    assert refusal.value.reason == reason
    assert board.rows(0.0) == []


def test_every_bit_of_a_record_is_signed():
    good = signed(record(1))
    for bit in range(8 * len(good)):
        bad = bytearray(good)
        bad[bit // 8] ^= 1 << bit % 8
        board = board_of()
        assert reason_of(board, 0.0, 2, encode([(0.0, bytes(bad))])) in ("format", "signature", None)
        assert board.rows(0.0) == []  # None: it is of somebody unknown now


def test_a_replay_changes_nothing():
    board = board_of()
    assert board.take(0.0, 1, encode([(0.0, signed(record(1, start=2, number=5)))])) == 1
    for start, number in ((2, 5), (2, 4), (1, 9)):
        assert board.take(1.0, 2, encode([(0.0, signed(record(1, start=start, number=number, wakes=3)))])) == 0
    assert board.rows(10.0)[0]["wakes"] == 101
    assert board.rows(10.0)[0]["age"] == 10.0
    assert board.take(20.0, 2, encode([(0.0, signed(record(1, start=3, number=1, wakes=3)))])) == 1


def test_strangers_and_its_own_records_are_not_kept():
    board = board_of()
    mine, stranger = signed(record(0, start=1, number=99)), signed(record(9))
    assert board.take(0.0, 2, encode([(0.0, mine), (0.0, stranger), (health.EXPIRY_SECONDS, signed(record(1)))])) == 0
    assert board.rows(0.0) == []


def test_one_sender_cannot_flood():
    board = board_of()
    reasons = [reason_of(board, 0.01 * k, 2, encode([])) for k in range(100)]
    assert set(reasons) == {"rate", None}
    assert reasons.count("rate") >= 90
    board.take(1.0, 3, encode([]))  # others are heard


def test_a_hostile_packet_is_counted_by_the_node():
    group = line_of_six().run(50.0)
    node = group.nodes[1]
    before = node.mail.gate.refused["signature"]
    run = bytes.fromhex(group.charter.run)
    forged = signed(record(5, start=99), key=0, seal=HEALTH_SEAL + run)
    node.receive(group.now, 0, group.packet(0, 1, HEALTH, encode([(0.0, forged)])))
    assert node.mail.gate.refused["signature"] == before + 1
    assert seen_by(group, 1).get(5, {"start": 1})["start"] == 1


# -- sizes -------------------------------------------------------------------------------------------------------------


def test_the_largest_record_fits():
    largest = HealthRecord(
        address=2**31 - 1,
        start=2**53 - 1,
        number=2**53 - 1,
        time=2**53 - 1,
        version="1" * 20,
        wakes=2**53 - 1,
        score=-1.7e308,
        score_alone=-1.7e308,
        served="x" * 16,
        edges=2**53 - 1,
        alive=2**53 - 1,
        refused=2**53 - 1,
        expires=-100_000,
        errors=("x" * 16,) * 4,
    )
    assert len(encode(largest)) + 64 <= health.RECORD_BYTES


@pytest.mark.parametrize(("packet_bytes", "most"), [(1_000, 2), (200_000, 16)])
def test_a_batch_is_bounded_and_fits_a_packet(packet_bytes, most):
    members = 100
    board = HealthBoard(RUN, 0, key_of(0).sign, lambda n: bytes(n), packet_bytes=packet_bytes, shares=True)
    board.admit({j: public(j) for j in range(members)})
    board.open(0.0, 1)
    board.status = lambda: status_of(0, errors=dict.fromkeys(["disk", "radius", "reverted", "final", "removed"], 1))
    for j in range(1, members):
        board.take(10.0 * j, 1, encode([(0.0, signed(record(j)))]))
    told = set()
    for k in range(members):
        content = board.batch(2000.0 + 30.0 * k)
        batch = msgspec.msgpack.decode(content)
        assert len(batch) <= most
        assert len(content) + 256 <= packet_bytes
        told |= {msgspec.msgpack.decode(one[64:])[0] for _, one in batch}
    assert told == set(range(members))  # everybody's turn comes


def test_status_is_turned_into_a_record():
    odd = record_of({"score": math.inf, "errors": {"Disk full \x07!": 1}}, 3, 1, 1, False)
    assert (odd.score, odd.expires, odd.edges, odd.errors) == (None, None, 0, ("disk full ",))
    assert days_left("not a date") is days_left(None) is None
    assert days_left("2000-01-01") < 0


def test_a_status_shows_the_group_by_name(tmp_path):
    group = line_of_six(wakes=True).run(200.0)
    program = Program(
        group.nodes[2], Memory(Exchange(by_hand=True), "m2", 2), tmp_path, Log(io.StringIO()), clock=lambda: group.now
    )
    program._status = status_of_program(program)
    rows = {row["name"]: row for row in status_of_program(program)["group"]}
    assert set(rows) == {f"m{i}" for i in range(6)}
    assert rows["m2"]["wakes"] == group.nodes[2].wakes  # its own, from its own status
    assert rows["m1"]["wakes"] == 101
    assert program._status["messages_by"].keys() == {"m1", "m3"}
