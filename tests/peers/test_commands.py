"""The commands of groups and peers: what they write is what the library makes of the same words."""

import os
import subprocess
import sys

import pytest
from small_group import SmallGroup
from typed import said, typed

from coterie.core.losses import Logistic
from coterie.data import AgentData
from coterie.errors import MismatchError, ParameterError
from coterie.graphs import complete
from coterie.peers.group.charter import Charter, make_charter, read_charter
from coterie.peers.model.tables import problem_of
from coterie.peers.model.work import method_of

pytestmark = pytest.mark.plain


CLASSES = ("--features", "x0,x1,x2", "--target", "y", "--classes", "-1,1")


def created(folder, *options):
    """The charter of a new group."""
    said("group", "create", folder, *options)
    return read_charter((folder / "charter.json").read_bytes())


def test_defaults_are_those_of_python(tmp_path):
    made = created(tmp_path / "group", *CLASSES)
    assert made == make_charter(features=["x0", "x1", "x2"], target="y", labels=["-1", "1"], admin=made.admin)
    learned = created(tmp_path / "learned", *CLASSES, "--learn", "--epsilon", "1")
    again = {"learned": {}, "privacy": {"epsilon": 1.0}}
    python = make_charter(features=["x0"], target="y", labels=["-1", "1"], admin=made.admin, **again)
    assert repr(method_of(learned)) == repr(method_of(python))


def test_private_boosting_can_be_agreed_on_and_run(tmp_path):
    """From the command to the messages: the default loss is one that can be private, over a public range."""
    agreed = created(tmp_path / "group", *CLASSES, "--method", "boosting", "--epsilon", "1", "--set", "stumps=12")
    assert (agreed.objective, agreed.loss) == ("boosting", "logistic")
    names = ("method", "objective", "loss", "labels", "privacy", "settings", "confidence")
    group = SmallGroup({name: getattr(agreed, name) for name in names})
    assert repr(group.method) == repr(method_of(agreed))
    group.start().run(30.0)
    assert all(ledger.releases > 0 for ledger in group.ledgers)
    assert all(node.work.loss == Logistic() and node.theta.any() for node in group.nodes.values())
    with pytest.raises(MismatchError, match="logistic"):
        created(tmp_path / "other", *CLASSES, "--method", "boosting", "--epsilon", "1", "--loss", "adaboost")
    numbers = ("--features", "x0", "--target", "y", "--method", "boosting", "--epsilon", "1")
    assert created(tmp_path / "numbers", *numbers).loss == "squared"


def test_a_boosting_charter_runs_the_loss_that_it_says(tmp_path):
    agreed = created(tmp_path / "group", *CLASSES, "--method", "boosting", "--loss", "smooth-hinge")
    group = SmallGroup({name: getattr(agreed, name) for name in ("method", "objective", "loss", "labels")})
    assert {repr(node.loss) for node in group.work} == {"SmoothHinge(gamma=1.0)"}


def test_coupling_goes_into_the_problem(tmp_path):
    """mu of the papers weighs losses here, so that four times the coupling is a quarter of their weight."""
    data = AgentData([[0.0] * 4, [1.0] * 4], [-1.0, 1.0], agents=["a", "b"])
    words = (*CLASSES, "--objective", "personalized")
    agreed = [created(tmp_path / "one", *words), created(tmp_path / "four", *words, "--coupling", "4")]
    one, four = (problem_of(charter, data, complete(2)).loss_weight for charter in agreed)
    assert (4 * four).tolist() == one.tolist()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--method", "sgd"), "method='sgd' is not known: choose one of cd,"),
        (("--loss", "logit"), "loss='logit' is not known: choose one of squared,"),
        (("--objective", "all"), "objective='all' is not known: choose one of pooling, personalized,"),
        (("--coupling", "0"), "coupling: expected a number > 0"),
        (("--learn", "--kappa", "0"), "learned: GraphRule: kappa = 0: expected an integer"),
        (("--epsilon", "-1"), "privacy: epsilon = -1"),
        (("--method", "djam", "--epsilon", "1"), "privacy: there is no private form of DJAM"),
        (("--set", "rho=1"), "settings has 'rho', which is not known"),
        (("--set", "rho"), "must be name=value"),
        (("--scale", "1,2"), "--scale 1,2: must be a number for each feature that is a number, which are"),
        (("--scale", "age=1"), "--scale age=1: must be a number for each feature"),
        (("--target-scale", "2"), "for a target that is a number"),
        (("--center", "a"), "must be numbers with commas"),
    ],
)
def test_what_is_refused_is_named(tmp_path, options, words):
    with pytest.raises(ParameterError) as refused:
        created(tmp_path / "group", *CLASSES, *options)
    assert words in str(refused.value)
    assert not (tmp_path / "group").exists()


def test_public_units_are_for_features_that_are_numbers(tmp_path):
    given = ("--features", "age,ward=a|b,dose", "--target", "ill", "--classes", "no,yes")
    for k, center in enumerate(("50,2", "dose=2,age=50", "50,0,2")):
        assert created(tmp_path / str(k), *given, "--center", center, "--scale", "9,3").center == [50.0, 0.0, 2.0]
    assert created(tmp_path / "one", *given, "--scale", "9,3").scale == [9.0, 1.0, 3.0]


def test_who_joins_is_told_the_columns_and_their_levels(tmp_path):
    created(tmp_path / "group", "--features", "age?,ward=icu|surgery", "--target", "ill", "--classes", "no,yes")
    said("peer", "init", tmp_path / "ann")
    said("group", "invite", tmp_path / "group", tmp_path / "ann/ann.request")
    told = typed("group", "join", tmp_path / "ann", tmp_path / "ann/ann.invitation")
    assert "columns: age, ward (icu, surgery); target: ill (no or yes)" in told


def test_a_private_target_without_units_is_warned_of(tmp_path):
    words = ("--features", "age", "--target", "days", "--epsilon", "1", "--center", "50", "--scale", "30")
    for name, more, warned in (("raw", (), True), ("unit", ("--target-center", "9", "--target-scale", "5"), False)):
        told = typed("group", "create", tmp_path / name, *words, *more)
        assert ("Warning: days is a number and counts as it is" in told) == warned
    assert read_charter((tmp_path / "unit/charter.json").read_bytes()).target_unit == (9.0, 5.0)


def test_a_group_comes_about(tmp_path):
    """Create, ask, invite, join, edge, remove and update, as typed."""
    group, ann, bob = tmp_path / "club", tmp_path / "ann", tmp_path / "bob"
    run = said("group", "create", group, *CLASSES)["run"]
    for folder, port in ((ann, 7447), (bob, 7448)):
        said("peer", "init", folder, "--listen", f"127.0.0.1:{port}")
    said("group", "invite", group, ann / "ann.request")
    said("group", "invite", group, bob / "bob.request", "--edge", "ann:0.5")
    assert said("group", "join", ann, ann / "ann.invitation", "--run", run)["members"] == 1
    assert said("group", "join", bob, bob / "bob.invitation") == {"run": run, "name": "bob", "members": 2}
    assert said("peer", "update", ann, group / "roster") == {"version": 3}
    assert said("group", "show", ann)["edges"] == said("group", "show", group)["edges"] == [[0, 1, 0.5]]
    assert said("group", "edge", group, "ann", "bob", "--weight", "2")["edges"] == [[0, 1, 2.0]]
    eve = said("peer", "init", tmp_path / "eve", "--group", group, "--edge", "bob")
    assert eve == {"name": "eve", "run": run}
    assert said("group", "remove", group, "bob") == {"version": 6, "members": ["ann", "eve"]}
    assert isinstance(read_charter((tmp_path / "eve/charter.json").read_bytes()), Charter)


LIGHT = """
import sys
sys.argv = ["coterie", *{words!r}]
from coterie.__main__ import main
try:
    main()
finally:
    print([name for name in {heavy!r} if name in sys.modules], file=sys.stderr)
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "heavy"),
    [
        (("peer", "--help"), ("numpy", "pandas", "numba", "scipy", "msgspec", "cryptography")),
        (("group", "show", "club"), ("numpy", "pandas", "numba", "scipy")),
        (("peer", "init", "ann"), ("numpy", "pandas", "numba", "scipy")),
        (("group", "create", "new", *CLASSES), ("pandas", "numba", "scipy", "sklearn")),
        (("group", "create", "new", *CLASSES, "--objective", "personalized"), ("pandas", "numba", "scipy", "sklearn")),
        (("peer", "predict", "bob", "rows.csv", "-o", "out.csv"), ("pandas", "numba", "scipy", "sklearn")),
    ],
)
def test_commands_load_no_more_than_they_need(tmp_path, words, heavy):
    said("group", "create", tmp_path / "club", *CLASSES)
    said("peer", "init", tmp_path / "bob", "--group", tmp_path / "club")
    (tmp_path / "bob/model.json").write_text('{"format": 1, "served": "together", "theta": [1, 2, 3, 4]}')
    (tmp_path / "rows.csv").write_text("x0,x1,x2\n1,2,3\n")
    code = LIGHT.format(words=words, heavy=heavy)
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stderr.strip().splitlines()[-1]) == (0, "[]")


def test_the_process_of_a_peer_loads_no_more_than_it_needs():
    """Most of a small peer's memory would be libraries that it does not use."""
    heavy = ("pandas", "numba", "scipy", "sklearn", "coterie.problem.problem")
    code = f"import sys, coterie.peers.node.launch\nprint([name for name in {heavy!r} if name in sys.modules])"
    plain = os.environ | {"COTERIE_PLAIN": "1"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=plain, check=True)
    assert done.stdout == "[]\n"
