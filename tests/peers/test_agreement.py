"""Charters and rosters: every bound, every bit, and whatever else may come in their place."""

import contextlib
import inspect
import json
import random
import subprocess
import sys

import msgspec
import pytest

import coterie as ct
from coterie import ties
from coterie.core import losses, methods
from coterie.core.wrap import graph_rule as rule
from coterie.errors import DataError, ParameterError, SignatureError
from coterie.peers import agreement
from coterie.peers.agreement import (
    Charter,
    Member,
    Relay,
    Roster,
    charter_json,
    newer,
    read_charter,
    read_roster,
    sign_roster,
)
from coterie.peers.identity import new_signing_key, public_bytes
from coterie.privacy import private as private_methods

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
    return Charter(**{**BASE, **changes})


def key(number):
    return number.to_bytes(32, "big")


def roster(version=3, n=3, **changes):
    members = [Member(f"m{i}", i, key(i + 1), f"192.0.2.{i + 1}:7447" if i else None) for i in range(n)]
    fields = {"members": members, "ties": [(0, 1, 0.5), (1, 2, 2.0)], "relays": [Relay("hub", "hub.example.org:7447")]}
    return Roster(charter().run, version, **{**fields, **changes})


# -- charters --------------------------------------------------------------------------------------------------------

OTHER = {
    "title": "Sickness",
    "features": ["weight", "age"],
    "target": "sick",
    "labels": ["yes", "no"],
    "intercept": False,
    "center": [0.0, 1.0],
    "scale": [1.0, 1.0],
    "objective": "collaborative",
    "loss": "hinge",
    "mu": 1.0000000000000002,
    "ridge": 0.5,
    "confidence": "none",
    "max_rows": 1001,
    "method": "djam",
    "settings": {"rho": 1},
    "trim": 0.1,
    "learned": {"kappa": 3},
    "privacy": {"epsilon": 1.0},
    "radius": 1e4,
    "rate": 2.0,
    "letter_bytes": 100_000,
    "letters_per_second": 51.0,
    "steward": bytes(32),
}


def test_the_run_changes_with_every_field():
    assert set(OTHER) | {"format"} == set(Charter.__struct_fields__)
    runs = {charter().run} | {charter(**{name: value}).run for name, value in OTHER.items()}
    assert len(runs) == len(OTHER) + 1


def test_the_run_does_not_change_with_white_space_order_or_the_type_of_a_number():
    given = charter(settings={"b": 2, "a": 1.5}, mu=2, ridge=1, center=[0, 1], privacy={"delta": 0.1, "epsilon": 1})
    assert (type(given.mu), type(given.ridge), type(given.center[0])) == (float, float, float)
    content = json.loads(charter_json(given))
    for shape in ({}, {"indent": 7}, {"separators": (" , ", " : ")}, {"sort_keys": True}):
        again = read_charter(json.dumps(content, **shape).encode())
        assert again == given
        assert again.run == given.run
    assert charter(settings={"a": 1.5, "b": 2}).run == charter(settings={"b": 2, "a": 1.5}).run
    assert len(given.run) == 32
    assert set(given.run) <= set("0123456789abcdef")


def test_charters_come_back_from_their_files():
    for changes in (
        {},
        {"labels": None, "loss": "squared"},
        {"title": "Ö ∑"},
        {"learned": {"step": "local", "max_edges": 3}},
    ):
        given = charter(**changes)
        again = read_charter(charter_json(given))
        assert again == given
        assert again.run == given.run


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("title", bad) for bad in ("x" * 501, 7, "a\x1b[2J", "\ud800")),
        *(("features", bad) for bad in ([], "age", ["age", "age"], ["age", ""], ["age", 7], [["age"]], None, ["a\n"])),
        *(("target", bad) for bad in ("age", "", None, 7)),
        *(("labels", bad) for bad in (["no"], ["no", "no"], ["a", "b", "c"], [0, 1], "no", [])),
        *(("intercept", bad) for bad in (1, None, "yes")),
        *(("center", bad) for bad in ([0.0], [0.0, float("nan")], [0.0, "1"], 0.0, [0.0, 1.0, 2.0])),
        *(("scale", bad) for bad in ([1.0], [1.0, 0.0], [1.0, -1.0], [1.0, float("inf")], [True, 1.0])),
        *(("objective", bad) for bad in ("personalised", "", None, 7, "boosting")),
        *(("loss", bad) for bad in ("logit", None, "adaboost")),
        *(("mu", bad) for bad in (0.0, -1.0, float("nan"), float("inf"), "1", None, True, 10**400)),
        *(("ridge", bad) for bad in (-1.0, float("inf"), "1/n", None)),
        *(("confidence", bad) for bad in ("size", None)),
        *(("max_rows", bad) for bad in (0, -1, 1.5, 2**60, True)),
        *(("method", bad) for bad in ("sgd", None, "boosting")),
        *(
            ("settings", bad)
            for bad in (None, {1: 1}, {"a b": 1}, {"a": None}, {"a": [1]}, {"a": float("nan")}, {"a": True})
        ),
        *(("settings", bad) for bad in ({"a": 2**60}, {f"a{k}": k for k in range(101)}, {"a": "\n"})),
        *(("trim", bad) for bad in (-0.1, 0.5, float("nan"))),
        *(
            ("learned", bad)
            for bad in ({"kapa": 3}, {"kappa": 0}, {"kappa": 2.5}, {"step": "big"}, {"sampling": "all"}, [])
        ),
        *(("learned", bad) for bad in ({"delta": 0.0}, {"lam": -1.0}, {"every": 0})),
        *(
            ("privacy", bad)
            for bad in ({"eps": 1.0}, {"epsilon": 0.0}, {"delta": 1.0}, {"clip": -1}, {"mechanism": "none"})
        ),
        *(("privacy", bad) for bad in ({"mechanism": "exponential"}, {"wakes_per_agent": 0}, {"max_rows": 1.5}, 1.0)),
        *(("radius", bad) for bad in (0.0, -1.0, float("inf"), float("nan"))),
        *(("rate", bad) for bad in (0.0, -1.0, float("inf"))),
        *(("letter_bytes", bad) for bad in (999, 1_000_001, 2e5, "many")),
        *(("letters_per_second", bad) for bad in (0.0, float("nan"))),
        *(("steward", bad) for bad in (b"", bytes(31), "x" * 32, None)),
        *(("format", bad) for bad in (0, 2, "1")),
    ],
)
def test_every_field_has_its_bounds(field, value):
    """In a charter that is made, the field is named; in one that is read, too."""
    with pytest.raises(ParameterError, match=field):
        charter(**{field: value})
    content = json.loads(charter_json(charter()))
    content[field] = value if not isinstance(value, bytes) else "AAAA"
    with pytest.raises(DataError):
        read_charter(json.dumps(content).encode())


def test_unknown_names_tell_the_known_ones():
    for field, known in (
        ("objective", "personalized, collaborative, separate, propagation, boosting"),
        ("method", "cd, propagation, admm, djam, boosting"),
        ("loss", "squared, logistic"),
        ("confidence", "public, gossip, none"),
    ):
        with pytest.raises(ParameterError, match=known):
            charter(**{field: "strange"})
    with pytest.raises(ParameterError, match="gaussian, laplace"):
        charter(privacy={"mechanism": "strange"})


def test_what_does_not_go_together():
    charter(confidence="gossip")
    with pytest.raises(ParameterError, match=r"gossip.*tells of somebody's data"):
        charter(confidence="gossip", privacy={"epsilon": 1.0})
    with pytest.raises(ParameterError, match="no private form"):
        charter(method="djam", privacy={"epsilon": 1.0})
    charter(objective="boosting", method="boosting", loss="adaboost", privacy={"mechanism": "exponential"})
    with pytest.raises(ParameterError, match="labels"):
        charter(labels=None)
    with pytest.raises(ParameterError, match="letter_bytes=1000"):
        charter(features=[f"x{k}" for k in range(200)], letter_bytes=1000)
    with pytest.raises(DataError, match="surprise"):
        read_charter(charter_json(charter()).replace(b'"title"', b'"surprise": 1, "title"'))


def test_the_names_are_those_of_the_library():
    """They are written down again because a charter must be readable without loading compilers."""
    assert set(agreement.METHODS) == set(methods.METHODS)
    assert set(agreement.LOSSES) == {*losses.LOSSES, "adaboost"}
    assert set(agreement.STEPS) == set(rule.STEPS)
    assert set(agreement.SAMPLERS) == set(ties.SAMPLERS)
    assert set(agreement.PRIVACY) == set(inspect.signature(ct.Private).parameters) - {"method"}
    assert set(agreement.LEARNED) == {*ct.GraphRule._fields, "every", "sampling"}
    assert {type(methods.METHODS[name]) for name in agreement.PRIVATE_METHODS} == set(private_methods.FORMS)
    for name in agreement.OBJECTIVES:
        assert hasattr(ct.Problem, name)


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
        read_roster(STEWARD.sign(agreement.ROSTER_SEAL + body) + body, charter())


def test_a_roster_that_is_made_is_checked():
    for changes in ({"ties": [(0, 1, float("nan"))]}, {"members": ["ann"]}, {"ties": "none"}, {"relays": {}}):
        with pytest.raises(ParameterError):
            roster(**changes)
    for fields in (("ann", 0.5, key(1)), ("ann", True, key(1)), ("ann", 0, "key"), ("ann", 0, key(1), 7447)):
        with pytest.raises(ParameterError):
            Member(*fields)


def test_lengths_are_limited_before_parsing():
    for reader in (read_charter, lambda content: read_roster(content, charter())):
        with pytest.raises(DataError, match="4000001 bytes, more than"):
            reader(bytes(4_000_001))
    host = ".".join(["a" * 60] * 4)
    many = [Member(f"m{i}", i, key(i + 1), f"{host}:{i + 1}") for i in range(13_000)]
    with pytest.raises(ParameterError, match="13000 members"):
        sign_roster(Roster("0" * 32, 1, many), STEWARD)


# -- whatever may come -----------------------------------------------------------------------------------------------


def mutations(content, n, seed):
    """Changed, cut, repeated, nested."""
    chance = random.Random(seed)
    for _ in range(n):
        bad = bytearray(content)
        for _ in range(chance.choice((1, 1, 2, 5, 20))):
            a, b = sorted(chance.randrange(len(bad) + 1) for _ in range(2))
            b = min(b, a + 40)
            match chance.randrange(5):
                case 0:
                    bad[a:b] = chance.randbytes(b - a)
                case 1:
                    del bad[a:b]
                case 2:
                    bad[a:a] = bad[a:b] * chance.randrange(1, 4)
                case 3:
                    bad[a:a] = chance.choice(
                        (b"null", b"[[[", b"{", b'"', b"-1e999", b"\xff", b"1", b"\\ud800", b"\xdd\xff\xff")
                    )
                case 4 if bad:
                    bad[min(a, len(bad) - 1)] ^= 1 << chance.randrange(8)
        yield bytes(bad)


def test_hostile_bytes_raise_our_own_errors_and_nothing_else():
    agreed = charter(settings={"a": 1}, learned={"kappa": 3}, center=[0.0, 1.0])
    read = 0
    for bad in mutations(charter_json(agreed), 4000, seed=0):
        with contextlib.suppress(DataError):
            read += read_charter(bad) is not None
    assert 0 < read < 2000  # white space, or another title
    body = msgspec.msgpack.encode(roster())
    for bad in mutations(body, 2000, seed=1):
        # As if the steward itself had signed it.
        with contextlib.suppress(DataError):
            read_roster(STEWARD.sign(agreement.ROSTER_SEAL + bad) + bad, charter())
    for depth in (b"[" * 100_000, b'{"a":' * 100_000, b'{"title":' + b"[" * 100_000):
        with pytest.raises(DataError):
            read_charter(depth)
    deep = b"\x81\xa1x" + b"\x91" * 100_000
    with pytest.raises(DataError):
        read_roster(STEWARD.sign(agreement.ROSTER_SEAL + deep) + deep, charter())


BARE = """
import pathlib, sys, types
for name in ("coterie", "coterie.peers"):
    package = types.ModuleType(name)
    package.__path__ = [str(pathlib.Path(sys.argv[1], *name.split(".")))]
    sys.modules[name] = package
"""


def alone(code):
    """What a program prints in which the packages themselves load nothing."""
    source = str(next(iter(ct.__path__)).removesuffix("coterie"))
    done = subprocess.run([sys.executable, "-c", BARE + code, source], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_needs_neither_pandas_nor_a_compiler():
    said = alone("""
import coterie.peers.groups
print([name for name in ("numpy", "pandas", "numba", "scipy", "zenoh") if name in sys.modules])
""")
    assert said == "[]"


@pytest.mark.parametrize("missing", ["msgspec", "cryptography"])
def test_without_the_extra_it_says_what_to_install(missing):
    said = alone(f"""
from coterie.errors import MissingExtra
sys.modules[{missing!r}] = None
try:
    import coterie.peers.agreement
except MissingExtra as error:
    print(error)
""")
    assert said == f'peers on a network need {missing}: pip install "coterie[network]"'
