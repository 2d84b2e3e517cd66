"""Rosters: signed to the last bit, and checked all the same."""

import contextlib

import msgspec
import pytest
from mutations import mutations

from coterie.errors import DataError, ParameterError, SignatureError
from coterie.peers.charter import make_charter
from coterie.peers.identity import new_signing_key, public_bytes
from coterie.peers.roster import ROSTER_SEAL, Member, Relay, Roster, newer, read_roster, sign_roster

STEWARD = new_signing_key()
BASE = {
    "title": "Illness",
    "features": ["age", "weight"],
    "target": "ill",
    "labels": ["no", "yes"],
    "objective": "personalized",
    "steward": public_bytes(STEWARD),
}


def charter(**changes):
    return make_charter(**{**BASE, **changes})


def key(number):
    return number.to_bytes(32, "big")


def roster(version=3, n=3, **changes):
    members = [Member(f"m{i}", i, key(i + 1), f"192.0.2.{i + 1}:7447" if i else None) for i in range(n)]
    fields = {"members": members, "ties": [(0, 1, 0.5), (1, 2, 2.0)], "relays": [Relay("hub", "hub.example.org:7447")]}
    return Roster(**{"run": charter().run, "version": version, **fields, **changes})


# -- rosters ---------------------------------------------------------------------------------------------------------


def test_rosters_come_back_as_they_were_signed():
    given = roster()
    again = read_roster(sign_roster(given, STEWARD), charter())
    assert again == given
    assert again.neighbours(1) == {0: 0.5, 2: 2.0}
    assert again.member(2).name == "m2"
    assert again.by_name("m0").endpoint is None
    for missing in (lambda: again.member(9), lambda: again.by_name("hub"), lambda: again.neighbours(9)):
        with pytest.raises(DataError):
            missing()


def test_one_changed_bit_anywhere_is_refused():
    signed, agreed = sign_roster(roster(), STEWARD), charter()
    for place in range(len(signed)):
        for bit in (1, 128):
            bad = bytearray(signed)
            bad[place] ^= bit
            with pytest.raises(SignatureError):
                read_roster(bytes(bad), agreed)
    for bad in (b"", signed[:64], signed[:-1], signed + b"\0"):
        with pytest.raises(SignatureError):
            read_roster(bad, agreed)


def test_only_the_steward_signs_and_only_for_its_run():
    with pytest.raises(SignatureError, match="steward's key"):
        read_roster(sign_roster(roster(), new_signing_key()), charter())
    other = charter(title="another")
    with pytest.raises(DataError, match=f"of run {charter().run}, and not of {other.run}"):
        read_roster(sign_roster(roster(), STEWARD), other)
    # What the steward has signed as something else is no roster.
    body = msgspec.msgpack.encode(roster())
    with pytest.raises(SignatureError):
        read_roster(STEWARD.sign(body) + body, charter())


def test_versions():
    old = roster(version=3)
    assert newer(None, old)
    assert newer(old, roster(version=4))
    assert not newer(old, roster(version=3))
    assert not newer(old, roster(version=2))
    assert not newer(old, Roster("0" * 32, 9))


def test_changes_make_new_versions():
    first = roster()
    with_four = first.with_member(Member("m3", 7, key(9)), {0: 1.5})
    assert (with_four.version, with_four.neighbours(7), with_four.neighbours(0)) == (4, {0: 1.5}, {1: 0.5, 7: 1.5})
    moved = with_four.with_member(Member("m1", 1, key(2), "192.0.2.99:1"))
    assert (moved.version, moved.neighbours(1), moved.by_name("m1").endpoint) == (5, {0: 0.5, 2: 2.0}, "192.0.2.99:1")
    gone = moved.without_member("m1")
    assert (gone.version, gone.neighbours(0), [one.name for one in gone.members]) == (6, {7: 1.5}, ["m0", "m2", "m3"])
    assert gone.with_tie(7, 0, 0.0).ties == []
    assert gone.with_tie(2, 0, 3).ties == [(0, 2, 3.0), (0, 7, 1.5)]
    assert gone.with_relay(Relay("hub", "192.0.2.1:1")).relays == [Relay("hub", "192.0.2.1:1")]
    assert gone.without_relay("hub").relays == []
    assert first == roster()
    for wrong in (
        lambda: first.with_tie(0, 0),
        lambda: first.with_tie(0, 9),
        lambda: first.with_tie(0, 1, -1.0),
        lambda: first.with_member(Member("m0", 8, key(9))),
        lambda: first.with_member(Member("hub", 8, key(9))),
        lambda: first.with_member(Member("new", 8, key(1))),
        lambda: first.without_member("hub"),
        lambda: first.without_relay("m0"),
    ):
        with pytest.raises((ParameterError, DataError)):
            wrong()


BAD_ROSTERS = [
    {"run": "xyz"},
    {"run": "G" * 32},
    {"version": 0},
    {"version": 2**60},
    {"ties": [[0, 1, 0.0]]},
    {"ties": [[0, 1, -1.0]]},
    {"ties": [[0, 1, float("nan")]]},
    {"ties": [[0, 1, float("inf")]]},
    {"ties": [[1, 0, 1.0]]},
    {"ties": [[1, 1, 1.0]]},
    {"ties": [[0, 9, 1.0]]},
    {"ties": [[0, 1, 1.0], [0, 1, 2.0]]},
    {"ties": [[0, 1]]},
    {"members": [{"name": "a", "address": 0, "key": key(1)}, {"name": "a", "address": 1, "key": key(2)}], "ties": []},
    {"members": [{"name": "a", "address": 0, "key": key(1)}, {"name": "b", "address": 0, "key": key(2)}], "ties": []},
    {"members": [{"name": "a", "address": 0, "key": key(1)}, {"name": "b", "address": 1, "key": key(1)}], "ties": []},
    {"members": [{"name": "A", "address": 0, "key": key(1)}], "ties": []},
    {"members": [{"name": "a", "address": -1, "key": key(1)}], "ties": []},
    {"members": [{"name": "a", "address": 2**31, "key": key(1)}], "ties": []},
    {"members": [{"name": "a", "address": 0, "key": bytes(31)}], "ties": []},
    {"members": [{"name": "a", "address": 0, "key": key(1), "endpoint": "0.0.0.0:1"}], "ties": []},
    {"members": [{"name": "hub", "address": 0, "key": key(1)}], "ties": []},
    {"relays": [{"name": "hub", "endpoint": "x"}]},
    {"relays": [{"name": "hub"}]},
    {"members": None},
]


@pytest.mark.parametrize("changes", BAD_ROSTERS, ids=str)
def test_a_roster_that_is_signed_is_checked_all_the_same(changes):
    body = msgspec.msgpack.encode({**msgspec.to_builtins(roster(), builtin_types=(bytes,)), **changes})
    with pytest.raises(DataError, match="the roster is damaged"):
        read_roster(STEWARD.sign(ROSTER_SEAL + body) + body, charter())


def test_what_could_not_be_read_is_not_signed():
    for changes in (
        {"ties": [(0, 1, float("nan"))]},
        {"ties": [(0, 1, -1.0)]},
        {"version": 0},
        {"run": "f"},
        {"members": [Member("m0", 0.5, key(1)), *roster().members[1:]]},
        {"members": [Member("m0", 0, b"key"), *roster().members[1:]]},
    ):
        with pytest.raises(ParameterError):
            sign_roster(roster(**changes), STEWARD)
    for fields in (("Ann", 0, key(1)), ("ann", 0, key(1), 7447), ("ann", 0, key(1), "nowhere")):
        with pytest.raises(ParameterError):
            Member(*fields)


def test_lengths_are_limited_before_parsing():
    with pytest.raises(DataError, match="4000001 bytes, more than"):
        read_roster(bytes(4_000_001), charter())
    host = ".".join(["a" * 60] * 4)
    many = [Member(f"m{i}", i, key(i + 1), f"{host}:{i + 1}") for i in range(13_000)]
    with pytest.raises(ParameterError, match="13000 members"):
        sign_roster(Roster("0" * 32, 1, many), STEWARD)


def test_hostile_bytes_raise_our_own_errors_and_nothing_else():
    body = msgspec.msgpack.encode(roster())
    deep = b"\x81\xa1x" + b"\x91" * 100_000
    for bad in (*mutations(body, 2000, seed=1), deep):
        # As if the steward itself had signed it.
        with contextlib.suppress(DataError):
            read_roster(STEWARD.sign(ROSTER_SEAL + bad) + bad, charter())
    with pytest.raises(DataError):
        read_roster(STEWARD.sign(ROSTER_SEAL + deep) + deep, charter())
