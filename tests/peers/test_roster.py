"""Rosters: signed to the last bit, and checked all the same."""

import contextlib
import time

import msgspec
import pytest
import small_group
from mutations import mutations
from small_group import charter_of, key_of

from coterie.errors import DataError, ParameterError, SignatureError
from coterie.peers.group.identity import new_signing_key, public_bytes
from coterie.peers.group.roster import (
    MAX_HISTORY,
    ROSTERS,
    Member,
    Relay,
    Roster,
    make_delegation,
    read_roster,
    relation,
    sign_roster,
    signers,
)

ADMIN, CHARTER = key_of(small_group.ADMIN), charter_of()


def key(number):
    return number.to_bytes(32, "big")


def roster(version=3, n=3, **changes):
    members = [Member(f"m{i}", i, key(i + 1), f"192.0.2.{i + 1}:7447" if i else None) for i in range(n)]
    fields = {"members": members, "edges": [(0, 1, 0.5), (1, 2, 2.0)], "relays": [Relay("hub", "hub.example.org:7447")]}
    return Roster(**{"run": CHARTER.run, "version": version, **fields, **changes})


# -- rosters ---------------------------------------------------------------------------------------------------------


def test_rosters_come_back_as_they_were_signed():
    given = roster()
    again = read_roster(sign_roster(given, ADMIN), CHARTER)
    assert again == given
    assert again.neighbours(1) == {0: 0.5, 2: 2.0}
    assert again.member(2).name == "m2"
    assert again.by_name("m0").endpoint is None
    for missing in (lambda: again.member(9), lambda: again.by_name("hub"), lambda: again.neighbours(9)):
        with pytest.raises(DataError):
            missing()


def test_one_changed_bit_anywhere_is_refused():
    signed, agreed = sign_roster(roster(), ADMIN), CHARTER
    for place in range(len(signed)):
        for bit in (1, 128):
            bad = bytearray(signed)
            bad[place] ^= bit
            with pytest.raises(SignatureError):
                read_roster(bytes(bad), agreed)
    for bad in (b"", signed[:64], signed[:-1], signed + b"\0"):
        with pytest.raises(SignatureError):
            read_roster(bad, agreed)


def test_only_the_admin_signs_and_only_for_its_run():
    with pytest.raises(SignatureError, match="admin's key"):
        read_roster(sign_roster(roster(), new_signing_key()), CHARTER)
    other = charter_of(title="another")
    with pytest.raises(DataError, match=f"of run {CHARTER.run}, and not of {other.run}"):
        read_roster(sign_roster(roster(), ADMIN), other)
    # What the admin has signed as something else is no roster.
    body = msgspec.msgpack.encode(roster())
    with pytest.raises(SignatureError):
        read_roster(ADMIN.sign(body) + body, CHARTER)


def test_versions():
    old = roster(version=3)
    assert relation(old, roster(version=4)) == "newer"
    assert relation(old, roster(version=3)) != "newer"
    assert relation(old, roster(version=2)) != "newer"
    assert relation(old, Roster("0" * 32, 9)) != "newer"


def test_changes_make_new_versions():
    first = roster()
    with_four = first.with_member(Member("m3", 7, key(9)), {0: 1.5})
    assert (with_four.version, with_four.neighbours(7), with_four.neighbours(0)) == (4, {0: 1.5}, {1: 0.5, 7: 1.5})
    moved = with_four.with_member(Member("m1", 1, key(2), "192.0.2.99:1"))
    assert (moved.version, moved.neighbours(1), moved.by_name("m1").endpoint) == (5, {0: 0.5, 2: 2.0}, "192.0.2.99:1")
    gone = moved.without("m1")
    assert (gone.version, gone.neighbours(0), [one.name for one in gone.members]) == (6, {7: 1.5}, ["m0", "m2", "m3"])
    assert gone.with_edge(7, 0, 0.0).edges == []
    assert gone.with_edge(2, 0, 3).edges == [(0, 2, 3.0), (0, 7, 1.5)]
    assert gone.with_relay(Relay("hub", "192.0.2.1:1")).relays == [Relay("hub", "192.0.2.1:1")]
    assert gone.without("hub").relays == []
    assert first == roster()
    for wrong in (
        lambda: first.with_edge(0, 0),
        lambda: first.with_edge(0, 9),
        lambda: first.with_edge(0, 1, -1.0),
        lambda: first.with_member(Member("m0", 8, key(9))),
        lambda: first.with_member(Member("hub", 8, key(9))),
        lambda: first.with_member(Member("new", 8, key(1))),
        lambda: first.without("nobody"),
    ):
        with pytest.raises((ParameterError, DataError)):
            wrong()


BAD_ROSTERS = [
    {"run": "xyz"},
    {"run": "G" * 32},
    {"version": 0},
    {"version": 2**60},
    {"edges": [[0, 1, 0.0]]},
    {"edges": [[0, 1, -1.0]]},
    {"edges": [[0, 1, float("nan")]]},
    {"edges": [[0, 1, float("inf")]]},
    {"edges": [[1, 0, 1.0]]},
    {"edges": [[1, 1, 1.0]]},
    {"edges": [[0, 9, 1.0]]},
    {"edges": [[0, 1, 1.0], [0, 1, 2.0]]},
    {"edges": [[0, 1]]},
    {"members": [{"name": "a", "address": 0, "key": key(1)}, {"name": "a", "address": 1, "key": key(2)}], "edges": []},
    {"members": [{"name": "a", "address": 0, "key": key(1)}, {"name": "b", "address": 0, "key": key(2)}], "edges": []},
    {"members": [{"name": "a", "address": 0, "key": key(1)}, {"name": "b", "address": 1, "key": key(1)}], "edges": []},
    {"members": [{"name": "A", "address": 0, "key": key(1)}], "edges": []},
    {"members": [{"name": "a", "address": -1, "key": key(1)}], "edges": []},
    {"members": [{"name": "a", "address": 2**31, "key": key(1)}], "edges": []},
    {"members": [{"name": "a", "address": 0, "key": bytes(31)}], "edges": []},
    {"members": [{"name": "a", "address": 0, "key": key(1), "endpoint": "0.0.0.0:1"}], "edges": []},
    {"members": [{"name": "hub", "address": 0, "key": key(1)}], "edges": []},
    {"relays": [{"name": "hub", "endpoint": "x"}]},
    {"relays": [{"name": "hub"}]},
    {"members": None},
    {"history": [[3, bytes(16)]]},
    {"history": [[1, bytes(16)], [2, bytes(16)]]},
    {"history": [[2, bytes(15)]]},
    {"history": [[0, bytes(16)]]},
    {"voids": [b"short"]},
    {"voids": [bytes(16)] * 1000},
    {"addresses": -1},
    {"revoked": {"0a": 1}},
    {"revoked": {"XY": 1}},
    {"revoked": {"a" * 41: 1}},
    {"revoked": {"a": -1}},
    {"delegations": [{"key": key(1), "by": bytes(3), "since": 1}]},
    {"authorities": ["x" * 30_000]},
    {"surprise": 1},
]


@pytest.mark.parametrize("changes", BAD_ROSTERS, ids=str)
def test_a_roster_that_is_signed_is_checked_all_the_same(changes):
    body = msgspec.msgpack.encode({**msgspec.to_builtins(roster(), builtin_types=(bytes,)), **changes})
    with pytest.raises(DataError, match="the roster is damaged"):
        read_roster(ADMIN.sign(ROSTERS.seal + body) + body, CHARTER)


def test_what_could_not_be_read_is_not_signed():
    for changes in (
        {"edges": [(0, 1, float("nan"))]},
        {"edges": [(0, 1, -1.0)]},
        {"version": 0},
        {"run": "f"},
        {"members": [Member("m0", 0.5, key(1)), *roster().members[1:]]},
        {"members": [Member("m0", 0, b"key"), *roster().members[1:]]},
    ):
        with pytest.raises(ParameterError):
            sign_roster(roster(**changes), ADMIN)
    for fields in (("Ann", 0, key(1)), ("ann", 0, key(1), 7447), ("ann", 0, key(1), "nowhere")):
        with pytest.raises(ParameterError):
            Member(*fields)


def test_lengths_are_limited_before_parsing():
    with pytest.raises(DataError, match="4000001 bytes, more than"):
        read_roster(bytes(4_000_001), CHARTER)
    host = ".".join(["a" * 60] * 4)
    many = [Member(f"m{i}", i, key(i + 1), f"{host}:{i + 1}") for i in range(13_000)]
    with pytest.raises(ParameterError, match="13000 members"):
        sign_roster(Roster("0" * 32, 1, many), ADMIN)


def test_hostile_bytes_raise_our_own_errors_and_nothing_else():
    body = msgspec.msgpack.encode(roster())
    deep = b"\x81\xa1x" + b"\x91" * 100_000
    for bad in (*mutations(body, 2000, seed=1), deep):
        # As if the admin itself had signed it.
        with contextlib.suppress(DataError):
            read_roster(ADMIN.sign(ROSTERS.seal + bad) + bad, CHARTER)
    with pytest.raises(DataError):
        read_roster(ADMIN.sign(ROSTERS.seal + deep) + deep, CHARTER)


# -- what continues what ---------------------------------------------------------------------------------------------


def grown(base, count, weight=1.0):
    """So many versions later."""
    for k in range(count):
        base = base.with_edge(0, 2, weight + k)
    return base


def test_versions_are_chained():
    first = roster(version=1, history=[])
    later = grown(first, 3)
    assert [version for version, _ in later.history] == [3, 2, 1]
    assert later.history[-1] == (1, first.digest)
    assert (relation(first, later), relation(later, first), relation(later, later)) == ("newer", "older", "same")
    assert relation(first, later) == "newer"
    long = grown(first, MAX_HISTORY + 5)
    assert len(long.history) == MAX_HISTORY
    assert relation(first, long) == "newer"  # out of sight: the version counts
    assert relation(grown(first, 6), long) == "newer"


def test_a_fork_is_seen_from_both_sides_whatever_the_versions():
    base = grown(roster(version=1), 2)
    one, other = base.with_edge(0, 2, 9.0), base.with_edge(0, 2, 8.0)
    assert one.version == other.version
    for a in (one, grown(one, 1), grown(one, 5)):
        for b in (other, grown(other, 1), grown(other, 9)):
            assert relation(a, b) == relation(b, a) == "fork"
            assert relation(a, b) != "newer"
    assert relation(base, one) == relation(base, other) == "newer"


def test_a_healed_fork():
    base = grown(roster(version=1), 2)
    right, wrong = grown(base.with_edge(0, 2, 9.0), 2), grown(base.with_edge(0, 2, 8.0), 5)
    healed = right.healing(wrong)
    assert healed.version == max(right.version, wrong.version) + 1
    for held in (base, right, wrong, base.with_edge(0, 2, 8.0), grown(wrong, 1)):
        if held.version < healed.version:
            assert relation(held, healed) == "newer"
            assert relation(healed, held) == "older"
    after = grown(healed, 3)
    assert relation(wrong, after) == "newer"
    assert relation(after, wrong) == "older"
    # A longer void branch is no older; and who says that the other one is void, too, is no better.
    assert relation(grown(wrong, 9), healed) == "fork"
    assert relation(healed, wrong.healing(right)) == "fork"
    assert relation(after, right.with_edge(0, 2, 7.0)) == "fork"  # a third branch is one


def test_addresses_and_revocations_survive_a_fork():
    base = roster(version=1)
    right = base.with_revoked({"ab": 2000}, now=1000.0)
    wrong = base.with_member(Member("m3", 3, key(9))).without("m3").with_revoked({"cd": 2000}, now=1000.0)
    assert wrong.addresses == 4
    healed = right.healing(wrong)
    assert (healed.addresses, set(healed.revoked)) == (4, {"ab", "cd"})
    assert healed.with_revoked({"ef": 3000}, now=2500.0).revoked == {"ef": 3000}  # those that have expired are left out


def test_a_list_that_says_more_than_we_know_is_refused():
    body = msgspec.msgpack.encode({**msgspec.to_builtins(roster(), builtin_types=(bytes,)), "future": 1})
    with pytest.raises(DataError, match="newest"):
        read_roster(ADMIN.sign(ROSTERS.seal + body) + body, CHARTER)


# -- admins --------------------------------------------------------------------------------------------------------

SECOND, THIRD = new_signing_key(), new_signing_key()


def delegated(base, by, who, retires=False):
    """The next version, in which one key gives another a delegation."""
    delegation = make_delegation(base.run, public_bytes(who), by, base.version + 1, retires)
    return base.with_admin(delegation, [])


def refused(given, signer, held=None):
    try:
        read_roster(sign_roster(given, signer), CHARTER, held=held)
    except SignatureError:
        return True
    return False


def test_a_second_admin_signs_too():
    first = roster()
    both = delegated(first, ADMIN, SECOND)
    assert not refused(both, ADMIN)
    assert not refused(both.with_edge(0, 2), SECOND)
    assert not refused(both.with_edge(0, 2), ADMIN)
    assert refused(first.with_edge(0, 2), SECOND)  # a roster without the delegation
    assert refused(both, THIRD)
    third = delegated(both, SECOND, THIRD)
    assert not refused(third.with_edge(0, 2), THIRD)
    assert refused(delegated(first, THIRD, THIRD), THIRD)  # a delegation of one's own
    assert signers(CHARTER, third) == {public_bytes(one) for one in (ADMIN, SECOND, THIRD)}


def test_a_delegation_is_good_in_its_run_alone_and_to_the_last_bit():
    both = delegated(roster(), ADMIN, SECOND)
    (good,) = both.delegations
    other = make_delegation("0" * 32, good.key, ADMIN, good.since)
    for bad in (
        other,
        msgspec.structs.replace(good, key=public_bytes(THIRD)),
        msgspec.structs.replace(good, retires=True),
        msgspec.structs.replace(good, since=1),
        msgspec.structs.replace(good, signature=b""),
    ):
        forged = msgspec.structs.replace(both, delegations=[bad])
        assert refused(forged, SECOND), bad
        assert refused(forged, THIRD), bad


def test_who_has_handed_over_signs_no_more():
    before = roster()
    over = delegated(before, ADMIN, SECOND, retires=True)
    assert not refused(over, ADMIN)  # the last one
    after = over.with_edge(0, 2)
    assert not refused(after, SECOND, held=over)
    assert refused(after, ADMIN)
    with pytest.raises(SignatureError, match="handed over"):
        read_roster(sign_roster(after, ADMIN), CHARTER)
    # As if there had been no hand-over: who knows better is not deceived.
    silent = grown(before, 4)
    assert not refused(silent, ADMIN)
    assert refused(silent, ADMIN, held=over)
    assert refused(delegated(grown(before, 4), ADMIN, THIRD), ADMIN, held=over)
    assert signers(CHARTER, after) == {public_bytes(SECOND)}
    # Back again, with a delegation of the one who may give it.
    back = delegated(over, SECOND, ADMIN)
    assert not refused(back, SECOND, held=over)
    assert not refused(back.with_edge(0, 2), ADMIN, held=over)


def test_a_long_list_that_no_admin_has_signed_costs_nothing():
    """Anybody can send one: it was parsed, and an edge that is there twice was looked for among all before it."""
    edges = [[0, k + 1, 1.0] for k in range(100_000)] + [[0, 1, 1.0]]
    body = msgspec.msgpack.encode({"run": CHARTER.run, "version": 1, "edges": edges})
    began = time.process_time()
    with pytest.raises(SignatureError):
        read_roster(bytes(64) + body, CHARTER)
    with pytest.raises(DataError, match="there twice"):  # also where an admin has made the mistake
        read_roster(ADMIN.sign(ROSTERS.seal + body) + body, CHARTER)
    assert time.process_time() - began < 5.0  # it took minutes


def test_a_message_carries_the_list_of_a_thousand_members():
    """With six edges for each, long names, and room for a charter that amends this one."""
    members = [Member(f"member-{k:04d}.example.org", k, key(k + 1), f"host-{k}.example.org:7447") for k in range(1000)]
    edges = [tuple(sorted((k, (k + step) % 1000))) for k in range(1000) for step in (1, 5, 9, 30, 70, 200)]
    history = [(70 - k, bytes(16)) for k in range(MAX_HISTORY)]
    signed = sign_roster(roster(71, members=members, edges=[(*edge, 1.0) for edge in edges], history=history), ADMIN)
    assert len(signed) < CHARTER.message_bytes - 100_000


def test_a_list_says_itself_who_may_have_signed_it():
    """It is kept without the one before: a second admin's list without its delegation could not be read again."""
    second = new_signing_key()
    first = roster()
    held = first.with_admin(make_delegation(CHARTER.run, public_bytes(second), ADMIN, first.version + 1), [])
    good, bare = held.with_edge(0, 2), held._with(delegations=[]).with_edge(0, 2)
    assert read_roster(sign_roster(good, second), CHARTER, held=held) == good
    with pytest.raises(SignatureError):
        read_roster(sign_roster(bare, second), CHARTER, held=held)
