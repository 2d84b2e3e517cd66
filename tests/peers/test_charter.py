"""Charters: every bound, every bit, and whatever else may come in their place."""

import contextlib
import json
import subprocess
import sys

import msgspec
import pytest
from mutations import mutations

import coterie as ct
from coterie.core.losses import LOSSES
from coterie.core.methods import METHODS
from coterie.errors import DataError, MismatchError, ParameterError
from coterie.peers.group.charter import (
    TRAINING,
    Charter,
    Curves,
    Encoding,
    Network,
    charter_json,
    make_charter,
    read_charter,
    usual_objective,
)
from coterie.peers.group.identity import new_signing_key, public_bytes
from coterie.peers.model.tables import check_charter, problem_of
from coterie.peers.model.work import check_parts, loss_of, method_of

ADMIN = new_signing_key()
BASE = {
    "title": "Illness",
    "features": ["age", "weight"],
    "target": "ill",
    "labels": ["no", "yes"],
    "objective": "personalized",
    "admin": public_bytes(ADMIN),
}


def charter(**changes):
    return make_charter(**{**BASE, **changes})


OTHER = {
    "title": "Sickness",
    "features": ["weight", "age"],
    "target": "sick",
    "labels": ["yes", "no"],
    "intercept": False,
    "center": [0.0, 1.0],
    "scale": [1.0, 1.0],
    "columns": Encoding(
        kinds=["number", "number"], fills=[1.0, None], source=[0, 1], parts=[("value", None), ("value", None)]
    ),
    "design": Curves(mean=[0.0, 0.0], scale=[1.0, 1.0], knots=[]),
    "objective": "collaborative",
    "loss": "hinge",
    "coupling": 1.0000000000000002,
    "ridge": 0.5,
    "confidence": "none",
    "max_rows": 1001,
    "method": "djam",
    "settings": {"c": 1e-5},
    "trim": 0.1,
    "learned": {"kappa": 3},
    "privacy": {"epsilon": 1.0},
    "radius": 1e4,
    "rate": 2.0,
    "message_bytes": 100_000,
    "messages_per_second": 51.0,
    "admin": bytes(32),
    "amends": "0" * 32,
}


#: Of a target that is a number.
TARGET = {"target_center": 1.0, "target_scale": 2.0}


def test_the_run_changes_with_every_field():
    assert set(OTHER) | {"format", "network", *TARGET} == set(Charter.__struct_fields__)
    runs = {charter().run} | {msgspec.structs.replace(charter(), **{name: value}).run for name, value in OTHER.items()}
    assert len(runs) == len(OTHER) + 1
    number = charter(labels=None, loss="squared")
    runs = {number.run} | {msgspec.structs.replace(number, **{name: value}).run for name, value in TARGET.items()}
    assert len(runs) == len(TARGET) + 1
    changes = [{"hidden": 4}, {"personal": ["head"]}, {"shared": ["body"]}, {"tied": ["head"]}, {"seed": 1}]
    own = {"hidden": None, "parts": [("a", 2)]}
    changes += [own, own | {"parts": [("b", 2)]}, own | {"parts": [("a", 3)]}, own | {"probe": [0.5]}]
    networks = [Network(hidden=3), *(msgspec.structs.replace(Network(hidden=3), **change) for change in changes)]
    agreed = charter(objective="differentiable", network={"hidden": 3})
    assert len({msgspec.structs.replace(agreed, network=network).run for network in networks}) == len(networks)


def test_the_run_of_a_charter_without_a_network_is_what_it_was_before_there_were_any():
    given = make_charter(features=["a", "b"], target="y", labels=["n", "y"], admin=bytes(32))
    assert given.run == "64ce0f98b443c6a54c5d392dac04760c"


def test_the_run_does_not_change_with_white_space_order_or_the_type_of_a_number():
    privacy = {"delta": 0.1, "epsilon": 1, "mechanism": "gaussian"}
    given = charter(coupling=2, ridge=1, center=[0, 1], privacy=privacy)
    assert (type(given.coupling), type(given.ridge), type(given.center[0])) == (float, float, float)
    content = json.loads(charter_json(given))
    for shape in ({}, {"indent": 7}, {"separators": (" , ", " : ")}, {"sort_keys": True}):
        again = read_charter(json.dumps(content, **shape).encode())
        assert again == given
        assert again.run == given.run
    assert charter(privacy={"epsilon": 1, "delta": 0.1}).run == charter(privacy={"delta": 0.1, "epsilon": 1}).run
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


#: Fields whose names are arguments of parts of the library.
PARTS = ("learned", "privacy")


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
        *(("coupling", bad) for bad in (0.0, -1.0, float("nan"), float("inf"), "1", None, True, 10**400)),
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
        *(("message_bytes", bad) for bad in (999, 1_000_001, 2e5, "many")),
        *(("messages_per_second", bad) for bad in (0.0, float("nan"))),
        *(("admin", bad) for bad in (b"", bytes(31), "x" * 32, None)),
        *(("format", bad) for bad in (0, 3, "2")),
    ],
)
def test_every_field_has_its_bounds(field, value):
    """The field is named. Types refuse it when it is read, too; what only making can tell, where a peer joins."""
    with pytest.raises(ParameterError, match=field):
        charter(**{field: value})
    content = json.loads(charter_json(charter()))
    content[field] = value if not isinstance(value, bytes) else "AAAA"
    content = json.dumps(content).encode()
    if (isinstance(value, str) and field in ("loss", "method")) or (isinstance(value, dict) and field in PARTS):
        with pytest.raises((DataError, ParameterError)):
            check_parts(read_charter(content))
    else:
        with pytest.raises(DataError):
            read_charter(content)


def test_unknown_names_tell_the_known_ones():
    for field, known in (
        ("objective", "pooling, personalized, collaborative, separate, propagation, boosting"),
        ("method", "cd, propagation, admm, djam, boosting"),
        ("loss", "squared, logistic"),
        ("confidence", "public, gossip, none"),
    ):
        with pytest.raises(ParameterError, match=known):
            charter(**{field: "strange"})
    with pytest.raises(ParameterError, match="'gaussian' or 'laplace'"):
        charter(privacy={"mechanism": "strange"})
    with pytest.raises(ParameterError, match=r"learned has 'kapa', which is not known: choose from .*kappa"):
        charter(learned={"kapa": 3})


def test_what_does_not_go_together():
    charter(confidence="gossip")
    with pytest.raises(ParameterError, match=r"gossip.*reveals a member's data"):
        charter(confidence="gossip", privacy={"epsilon": 1.0})
    with pytest.raises(ParameterError, match="no private form"):
        charter(method="djam", privacy={"epsilon": 1.0})
    charter(objective="boosting", method="boosting", loss="logistic", privacy={"mechanism": "exponential"})
    with pytest.raises(ParameterError, match="labels"):
        charter(labels=None, loss="logistic")
    with pytest.raises(ParameterError, match="message_bytes=1000"):
        check_charter(charter(features=[f"x{k}" for k in range(200)], message_bytes=1000))
    with pytest.raises(DataError, match="surprise"):
        read_charter(charter_json(charter()).replace(b'"title"', b'"surprise": 1, "title"'))


@pytest.mark.parametrize("name", METHODS)
def test_every_method_of_the_public_list_can_be_named(name):
    network = {"network": {"hidden": 3}} if name in TRAINING else {}
    words = {"method": name, "objective": usual_objective(name, False), "trim": 0.0, "intercept": True} | network
    if METHODS[name].jobs and not network:
        with pytest.raises(ParameterError, match=r"messages are lost.*peers run tied-sgd, local-sgd, dpsgd"):
            charter(**words)
        return
    agreed = charter(**words)
    assert type(method_of(agreed)) is type(METHODS[name])
    check_charter(agreed)


@pytest.mark.parametrize("name", LOSSES)
def test_every_loss_of_the_public_list_can_be_named(name):
    agreed = boosting(loss=name) if name == "adaboost" else charter(loss=name)
    assert loss_of(agreed) == LOSSES[name]


def test_a_loss_and_a_method_that_are_put_on_the_lists_can_be_named(monkeypatch):
    """Without another line anywhere: the lists are the only ones."""
    monkeypatch.setitem(LOSSES, "narrow-huber", ct.Huber(0.1))
    monkeypatch.setitem(METHODS, "impatient", ct.CollaborativeADMM(rho=3.0))
    agreed = charter(loss="narrow-huber", method="impatient", objective="personalized", settings={"rho": 2.0}, trim=0.0)
    assert loss_of(agreed) == ct.Huber(0.1)
    assert method_of(agreed) == ct.CollaborativeADMM(rho=2.0)
    check_charter(agreed)


def test_defaults_fit_the_method():
    """The same in Python and on the command line."""

    def usual(**given):
        fields = {"features": ["x"], "target": "y", "admin": bytes(32)}
        agreed = make_charter(**fields, **given)
        check_charter(agreed)
        return agreed.objective, agreed.loss, agreed.messages_per_second

    classes = {"labels": ["no", "yes"]}
    assert usual(**classes) == ("pooling", "logistic", 50.0)
    assert usual(rate=10.0) == ("pooling", "squared", 250.0)
    assert usual(learned={}, **classes)[:2] == ("personalized", "logistic")
    assert usual(method="cd")[:2] == usual(objective="personalized")[:2] == ("personalized", "squared")
    assert usual(method="admm", **classes)[:2] == ("collaborative", "logistic")
    assert usual(method="propagation")[:2] == ("propagation", "squared")
    assert usual(method="propagation", privacy={}, **classes)[:2] == ("personalized", "logistic")
    assert usual(method="boosting", **classes)[:2] == ("boosting", "adaboost")
    assert usual(method="boosting", privacy={}, **classes)[:2] == ("boosting", "logistic")
    assert usual(method="boosting", privacy={})[:2] == ("boosting", "squared")


# -- what a charter says is what runs --------------------------------------------------------------------------------


def pair(labels=(-1.0, 1.0, 1.0, -1.0)):
    return ct.AgentData([[0.0], [1.0], [0.0], [1.0]], list(labels), agents=["a", "a", "b", "b"])


def boosting(**changes):
    return charter(objective="boosting", method="boosting", features=["x"], intercept=False, **changes)


@pytest.mark.parametrize("loss", ["smooth-hinge", "logistic", "squared", "adaboost"])
def test_boosting_runs_the_loss_that_the_charter_says(loss):
    agreed = boosting(loss=loss, settings={"stumps": 3})
    problem = problem_of(agreed, pair(), ct.graphs.complete(2))
    assert problem.loss == loss_of(agreed)
    other = ct.Problem.boosting(
        pair(), ct.graphs.complete(2), ct.Stumps(3, low=-3.0, high=3.0), confidence=[0.002, 0.002], loss=loss
    )
    assert problem.solve().tolist() == other.solve().tolist()


def test_boosting_with_a_kink_is_refused_before_anybody_agrees():
    with pytest.raises(MismatchError, match="kink"):
        check_charter(boosting(loss="hinge"))


@pytest.mark.parametrize("objective", ["personalized", "collaborative", "propagation", "boosting"])
def test_coupling_is_agreement_in_every_objective(objective):
    """What is compared with: the papers' mu, which weighs agreement in boosting alone."""
    fields = {"objective": objective, "method": "boosting" if objective == "boosting" else "cd", "loss": "squared"}
    data, graph = pair(), ct.graphs.complete(2)
    apart = []
    for coupling in (0.1, 10.0):
        agreed = charter(features=["x"], intercept=False, ridge=0.1, confidence="none", coupling=coupling, **fields)
        models = problem_of(agreed, data, graph).solve()
        apart.append(abs(models[0] - models[1]).max())
    assert apart[0] > 1.5 * apart[1]
    if objective == "personalized":
        papers = ct.Problem.personalized(data, graph, "squared", mu=0.1, ridge=0.1, confidence=None)
        assert models.tolist() == papers.solve().tolist()


@pytest.mark.parametrize("found", [1, 3])
def test_a_charter_of_another_version_says_so(found):
    """Also where its fields had other names, as those of version 0.1 have."""
    fields = json.loads(charter_json(charter())) | {"format": found}
    fields["steward"] = fields.pop("admin")
    with pytest.raises(DataError, match=rf"club/charter\.json is of format {found}, .* reads format 2: .*group create"):
        read_charter(json.dumps(fields).encode(), "club/charter.json")


def test_hostile_bytes_raise_our_own_errors_and_nothing_else():
    agreed = charter(method="admm", settings={"rho": 1}, learned={"kappa": 3}, center=[0.0, 1.0])
    read = 0
    for bad in mutations(charter_json(agreed), 4000, seed=0):
        with contextlib.suppress(DataError):
            read += read_charter(bad) is not None
    assert 0 < read < 2000  # white space, or another title
    for depth in (b"[" * 100_000, b'{"a":' * 100_000, b'{"title":' + b"[" * 100_000):
        with pytest.raises(DataError):
            read_charter(depth)
    with pytest.raises(DataError, match="4000001 bytes, more than"):
        read_charter(bytes(4_000_001))


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
import coterie.peers.group.groups
print([name for name in ("numpy", "pandas", "numba", "scipy", "asyncio") if name in sys.modules])
""")
    assert said == "[]"


@pytest.mark.parametrize(
    ("missing", "package"), [("msgspec", "msgspec"), ("cryptography", "cryptography"), ("nacl", "pynacl")]
)
def test_without_the_extra_it_says_what_to_install(missing, package):
    said = alone(f"""
from coterie.errors import MissingExtra
sys.modules[{missing!r}] = None
try:
    import coterie.peers.group.groups
except MissingExtra as error:
    print(error)
""")
    assert said == f'peers on a network need {package}: pip install "coterie[network]"'
