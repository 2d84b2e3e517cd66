"""Groups whose model is a network: peers do what the simulator does, what is personal stays, others are refused."""

import json
import subprocess
import sys
import warnings

import msgspec
import numpy as np
import pytest
from club import Club
from small_group import EDGES, SmallGroup, charter_of, rows_of
from typed import said

import coterie as ct
from coterie.core.arrays import VACANT
from coterie.core.messages import Bounds, Contents, SingleVector, Vector, in_single
from coterie.engines.arrays import arrays_of, part_of
from coterie.engines.wire import decode
from coterie.errors import DataError, ParameterError, StateError
from coterie.peers.group.charter import MAX_MESSAGE_BYTES, charter_in, charter_json, read_charter
from coterie.peers.group.networks import load_model, model_of, roles
from coterie.peers.model.model import predict_file
from coterie.peers.model.scores import scores
from coterie.peers.model.tables import check_charter, problem_of, work_of
from coterie.peers.model.work import method_of, read_work, write_work
from coterie.peers.wire.packet import read_packet
from coterie.testing.shared import Crowd, hosted

pytestmark = pytest.mark.plain


WORDS = {
    "objective": "differentiable",
    "method": "dpsgd",
    "network": {"hidden": 4, "personal": ["head"]},
    "settings": {"rate": 0.1, "steps": 3, "batch": 4},
    "labels": ["-1", "1"],
    "loss": "logistic",
    "ridge": 0.0,
}
SIZES = (12, 16, 13, 15)
#: A linear model by NumPy, in a file of its owner.
OWN = """
import numpy as np
import coterie as ct

def model():
    def value(theta, X, y):
        return 0.5 * np.mean((X @ theta[:3] + theta[3] - y) ** 2)
    def gradient(theta, X, y):
        apart = X @ theta[:3] + theta[3] - y
        return np.append(X.T @ apart, apart.sum()) / len(y)
    def predict(theta, X):
        return {answer}
    parts = {{"{first}": slice(0, 3), "bias": slice(3, 4)}}
    return ct.models.Function(4, value, gradient, predict, initial=[0.5, 0.0, -0.5, 0.1], parts=parts)
"""


def own_file(folder, first="weight", answer="X @ theta[:3] + theta[3]"):
    path = folder / "model.py"
    path.write_text(OWN.format(first=first, answer=answer))
    return path


def group_of(sizes=SIZES, **words):
    """Members with two classes, of a charter with these words."""
    agreed = charter_of(**WORDS | words)
    X, y = rows_of(agreed, sizes)
    group = SmallGroup(agreed, sizes=sizes, work=[work_of(agreed, *rows) for rows in zip(X, y, strict=True)])
    group.X, group.y = X, y
    return group


def simulated(group):
    """The problem that a group solves, for the simulator."""
    owner = np.repeat(np.arange(4), [len(x) for x in group.X])
    data = ct.AgentData(np.concatenate(group.X), (np.concatenate(group.y) > 0).astype(int), agents=owner)
    W = np.zeros((4, 4))
    for a, b, weight in EDGES:
        W[a, b] = W[b, a] = weight
    return problem_of(group.charter, data, ct.Graph(W))


# -- the model ---------------------------------------------------------------------------------------------------------


# -- messages ---------------------------------------------------------------------------------------------------------


def test_networks_travel_in_single_precision():
    messages = in_single(ct.gossip.DPSGD().messages)
    one, other = Contents(ct.gossip.DPSGD().messages, Bounds(5)), Contents(messages, Bounds(5))
    numbers = np.random.default_rng(0).normal(size=5)
    assert len(one.write(0, numbers)) == 2 * len(other.write(0, numbers)) == 40
    assert np.array_equal(one.parse(0, one.write(0, numbers)), numbers)
    assert np.array_equal(other.parse(0, other.write(0, numbers)), numbers.astype(np.float32))
    assert {type(part) for part in messages[0]} == {SingleVector}
    count = np.array([2.0**40 + 1, 1.0])  # what counts something stays exact
    assert np.array_equal(other.parse(1, other.write(1, count)), count)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert np.isinf(SingleVector().restore(SingleVector().write(np.full(3, 1e39)), 3)).all()
    assert Vector(2).length(7) == SingleVector(2).length(7) == 14


@pytest.mark.parametrize("batch", [0, 4])
@pytest.mark.parametrize("method", ["dpsgd", "local-sgd", "tied-sgd"])
def test_peers_do_what_the_simulator_does(method, batch):
    """The same wakes and dice; every message goes to the other as bytes. The same models, to the last bit."""
    group = group_of(method=method, settings={"rate": 0.1, "steps": 3, "batch": batch})
    problem = simulated(group)
    rule, rng = method_of(group.charter), np.random.default_rng(1)
    arrays = arrays_of(problem, batch=batch)
    start = np.tile(problem.model.initial(0), (4, 1))
    order, dice = rng.integers(0, 4, 120), rng.random((120, rule.dice))
    events = order, np.full(120, VACANT), dice, np.zeros(120)
    own = hosted(rule, problem, start, events, compiled=True).own

    def short(peer, message):
        assert decode(message.data, peer._contents)[2].shape[0] <= 16

    crowd = Crowd(rule, arrays, start, short).replay(events)
    assert np.array_equal([peer.own.theta[0] for peer in crowd.peers], own.theta)
    assert np.abs(own.theta - start).min(axis=0).max() > 0.05


def test_peers_work_on_what_the_simulator_works_on():
    group = group_of().start()
    arrays = arrays_of(simulated(group), batch=4)
    for i, node in group.nodes.items():
        mine, theirs = node.peer.arrays, part_of(arrays, i, i + 1)
        for name in ("labels", "row_start", "peer", "weight", "row_weight", "ridge", "address", "roles", "sent"):
            assert np.array_equal(getattr(mine, name), getattr(theirs, name)), name
        np.testing.assert_allclose(mine.loss_weight, theirs.loss_weight, rtol=1e-15)
        assert np.array_equal(mine.rows.values, theirs.rows.values)
        assert mine.sheet.shape == theirs.sheet.shape
        assert (mine.model, mine.smooth, mine.scaled) == (theirs.model, theirs.smooth, theirs.scaled)


def test_what_is_personal_never_leaves():
    """Every message that was ever sent is read: it holds the body, rounded, and not one number of the head."""
    group = group_of().start().run(40.0)
    head = group.charter.network.personal and model_of(group.charter).parts["head.weight"].start
    bodies, messages = {i: [] for i in group.nodes}, 0
    for node in group.nodes.values():
        assert np.abs(node.theta[head:] - node.work.theta[head:]).min() > 0.0  # it was trained
    for i, _, data in group.mail:
        packet = read_packet(data)[0]
        if packet.kind == 0:
            numbers = group.nodes[i]._contents.parse(0, packet.content)
            assert numbers.shape == (head,)
            assert len(packet.content) == 4 * head
            bodies[i].append(numbers)
            messages += 1
        elif packet.kind > 0:
            assert len(packet.content) == 16  # how many neighbours, and a question
    assert messages > 100
    for i, node in group.nodes.items():
        assert np.array_equal(bodies[i][-1], node.theta[:head].astype(np.float32))
        assert not np.isin(node.theta[head:].astype(np.float32), bodies[i]).any()


def test_everybody_begins_alike_and_who_begins_again_goes_on():
    group = group_of().start(0, 1, 2)
    begun = [node.theta for node in group.nodes.values()]
    assert all(np.array_equal(theta, model_of(group.charter).initial(0)) for theta in begun)
    group.run(30.0)
    assert np.array_equal(group.work[3].theta, begun[0])  # so a newcomer's average means something
    before = group.crash(1).theta
    again = group.make(1)
    assert np.array_equal(again.theta, before)
    assert np.array_equal(again.peer.edge.copy.shape, (2, 16))
    other = group_of(network={"hidden": 5, "personal": ["head"]})
    other.stores[1] = group.stores[1]
    with pytest.raises(StateError, match="is of run"):
        other.make(1)


def test_hostile_messages_are_dropped_and_counted():
    group = group_of().start()
    good = group.nodes[1].theta[:16]
    offer = lambda numbers, kind=0: _offered(group, kind, numbers)  # noqa: E731
    assert offer(good) is None
    assert offer(group.nodes[1].theta) == "shape"  # the whole model, its head included
    assert offer(good[:-1]) == offer(np.append(good, 0.0)) == offer(good[:0]) == "shape"
    assert offer(good, kind=7) == "shape"
    assert offer(np.where(np.arange(16) == 3, np.nan, good)) == "finite"
    assert offer(np.where(np.arange(16) == 3, np.inf, good)) == "finite"
    assert offer(1e6 * good) == "norm"
    assert group.offered(1, 0, 1, [3.0, 2.0]) == "range"
    doubles = group.packet(1, 0, 0, good.astype("<f8").tobytes())
    group.nodes[0].receive(group.now, 1, doubles)
    assert group.nodes[0].mail.gate.refused["shape"] == 6
    assert group.nodes[0].mail.gate.refused_by[1, "shape"] == 6
    long = group.packet(1, 0, 0, bytes(group.charter.message_bytes + 1))
    group.nodes[0].receive(group.now, 1, long)
    assert group.nodes[0].mail.gate.refused["size"] == 1
    before = group.nodes[0].theta
    group.run(10.0)
    assert np.isfinite(group.theta).all()
    assert not np.array_equal(before, group.nodes[0].theta)


def _offered(group, kind, numbers):
    node = group.nodes[0]
    before = node.mail.gate.refused.copy()
    node.receive(group.now, 1, group.packet(1, 0, kind, np.asarray(numbers).astype("<f4").tobytes()))
    return next(iter(node.mail.gate.refused - before), None)


def test_members_may_leave_out_extremes():
    group = group_of(trim=0.34).start().run(20.0)
    assert repr(group.method).startswith("Trimmed(DPSGD(")
    assert np.abs(group.theta - model_of(group.charter).initial(0)).max() > 0.1


# -- charters ----------------------------------------------------------------------------------------------------------


def test_charters_come_back_from_their_files():
    agreed = charter_of(**WORDS)
    again = read_charter(charter_json(agreed))
    assert again == agreed
    assert again.run == agreed.run
    assert repr(method_of(again)) == "DPSGD(SGD(rate=0.1, steps=3, batch=4, momentum=0.0))"
    assert model_of(again) == ct.models.TwoLayer(3, 4, 2)
    assert model_of(charter_of(**WORDS | {"labels": None, "loss": "squared"})) == ct.models.TwoLayer(3, 4, 1)
    assert np.count_nonzero(roles(again)) == 16
    adam = charter_of(**WORDS | {"settings": {"optimiser": "adam", "rate": 0.01}})
    assert repr(method_of(adam).local).startswith("Adam(rate=0.01, steps=1")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"privacy": {"epsilon": 1.0}}, "privacy does not go with a network"),
        ({"learned": {}}, "learned does not go with a network"),
        ({"method": "cd"}, "do not go together"),
        ({"method": "gradient-tracking"}, "do not go together"),
        ({"objective": "personalized", "method": "cd"}, "'differentiable' needs a network"),
        ({"network": {"hidden": 4, "parts": [("a", 2)]}}, "either hidden"),
        ({"network": {"personal": ["head"]}}, "either hidden"),
        ({"network": {"hidden": 4, "personal": ["tail"]}}, "no parameter begins with 'tail'"),
        ({"network": {"hidden": 4, "personal": ["head", "body"]}}, "nothing to learn together"),
        ({"network": {"hidden": 50_000}}, "300002 parameters; there may be 200000 at most"),
        ({"network": {"hidden": 200_001}}, "expected a whole number <= 200000"),
        ({"network": {"hidden": 4.5}}, "expected a whole number or nothing, got a number with a point"),
        ({"network": {"parts": [("a", 100_000), ("b", 100_001)]}}, "200001 parameters"),
        ({"network": {"parts": [("a", 2), ("a", 2)]}}, "a name twice"),
        ({"network": {"hidden": 4, "file": "evil.py"}}, "unknown field"),
        ({"settings": {"rho": 1.0}}, "settings has 'rho', which is not known"),
        ({"settings": {"mixing": "weights"}}, "settings has 'mixing', which is not known"),
        ({"settings": {"rate": -1.0}}, "settings: SGD: rate = -1.0: expected a positive finite number"),
        ({"settings": {"optimiser": "os.system"}}, "must be one of sgd, adam"),
        ({"loss": "hinge"}, "a network has the loss"),
        ({"radius": 1e40}, "single precision"),
    ],
)
def test_charters_are_refused_by_name(words, said):
    with pytest.raises(ParameterError) as refused:
        charter_of(**WORDS | words)
    assert said in str(refused.value)


def test_messages_that_could_not_pass_are_refused_before_anybody_agrees():
    wide = {"network": {"hidden": 20_000, "personal": ["head"]}}
    agreed = charter_of(**WORDS | wide)
    assert 4 * 80_000 < agreed.message_bytes == 400_000
    agreed = charter_of(**WORDS | {"network": {"hidden": 30_000}})
    assert 400_000 < 4 * model_of(agreed).size < agreed.message_bytes <= MAX_MESSAGE_BYTES
    check_charter(agreed)
    with pytest.raises(ParameterError, match=r"message_bytes=300000: a message of this network takes up to 320\d\d\d"):
        check_charter(charter_of(**WORDS | wide, message_bytes=300_000))


# -- models that members bring -----------------------------------------------------------------------------------------

NUMBERS = ("--features", "x0,x1,x2", "--target", "y")


def test_members_bring_the_same_model_or_are_refused(tmp_path):
    file, club = own_file(tmp_path), tmp_path / "club"
    said("group", "create", club, *NUMBERS, "--model", file, "--personal", "bias", "--method", "local-sgd")
    agreed = charter_in(club)
    assert agreed.network.parts == [("weight", 3), ("bias", 1)]
    assert str(tmp_path) not in (club / "charter.json").read_text()  # no path, and no code
    assert "def " not in (club / "charter.json").read_text()
    assert np.count_nonzero(roles(agreed)) == 3
    assert model_of(agreed, file).size == 4
    (tmp_path / "other").mkdir()
    for charter, other, error, words in (
        (agreed, None, DataError, r"brings its model, with the parameters weight \(3\), bias \(1\)"),
        (agreed, {"first": "slope"}, DataError, r"are slope \(3\), bias \(1\), and the charter has weight"),
        (agreed, {"answer": "np.tanh(X @ theta[:3] + theta[3])"}, DataError, "with other initial predictions"),
        (agreed, {"answer": "np.zeros((len(X), 5))"}, DataError, "shape"),
        (charter_of(**WORDS), {}, ParameterError, "leave out --model"),
        (charter_of(), {}, ParameterError, "linear models"),
    ):
        with pytest.raises(error, match=words):
            model_of(charter, None if other is None else own_file(tmp_path / "other", **other))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("model = 3", r"no function model\(\)"),
        ("def model():\n    return 3", "which is no model: it has no size"),
        ("def model():\n    raise ValueError('no data here')", r"raised ValueError: no data here"),
        ("def model(:", "cannot be made: SyntaxError"),
        ("import nothing_of_that_name", "nothing_of_that_name"),
        (None, "cannot be read"),
    ],
)
def test_files_that_make_no_model_are_named(tmp_path, text, words):
    path = tmp_path / "model.py"
    if text is not None:
        path.write_text(text)
    with pytest.raises(DataError, match=words) as refused:
        load_model(path)
    assert str(path) in str(refused.value)


@pytest.mark.slow
def test_a_model_that_members_bring_is_learned_together(tmp_path):
    """Least squares by a function of NumPy: together it is that of all rows, which nobody else has."""
    file, club = own_file(tmp_path), tmp_path / "club"
    words = ("--method", "local-sgd", "--set", "rate=0.02", "--set", "steps=2")
    said("group", "create", club, *NUMBERS, "--model", file, *words)
    agreed = charter_in(club)
    model, rng = model_of(agreed, file), np.random.default_rng(0)
    X, truth = rng.normal(size=(4, 10, 3)), np.array([1.0, -2.0, 0.5, 3.0])
    y = X @ truth[:3] + truth[3] + 0.05 * rng.normal(size=(4, 10))
    agreed = msgspec.structs.replace(agreed, admin=charter_of().admin)
    work = [work_of(agreed, *rows, model=model) for rows in zip(X, y, strict=True)]
    group = SmallGroup(agreed, sizes=(10,) * 4, work=work).start().run(200.0)
    np.testing.assert_allclose(group.theta, np.tile(truth, (4, 1)), atol=0.06)
    again = read_work(write_work(work[0]), model)
    assert again.model is model
    assert np.array_equal(again.roles, work[0].roles)
    node = group.nodes[0]
    node.take_work(read_work(write_work(work[1])))  # new rows come without the model
    assert node.work.model is model
    assert np.isfinite(scores(node)["objective"])


def test_predictions_are_those_of_the_model(tmp_path):
    file, club, peer = own_file(tmp_path), tmp_path / "club", tmp_path / "ann"
    said("group", "create", club, *NUMBERS, "--model", file)
    said("peer", "init", peer, "--group", club, "--listen", "127.0.0.1:7447")
    rows = tmp_path / "rows.csv"
    rows.write_text("x0,x1,x2\n1,2,3\n0,0,0\n")
    kept = {"served": "together", "theta": [1.0, 2.0, 3.0, 4.0], "fill": None}
    (peer / "model.json").write_text(json.dumps(kept))
    assert predict_file(peer, rows, tmp_path / "out.csv", file) == (2, "together")
    assert (tmp_path / "out.csv").read_text() == "prediction\n18.0\n4.0\n"
    with pytest.raises(DataError, match="brings its model"):
        predict_file(peer, rows, tmp_path / "out.csv")
    with (peer / "peer.toml").open("a") as settings:
        settings.write(f'model = "{file}"\n')
    assert said("peer", "predict", peer, rows, "-o", tmp_path / "out.csv")["rows"] == 2
    (peer / "model.json").write_text(json.dumps(kept | {"theta": [1.0, 2.0]}))
    with pytest.raises(DataError, match="has 2 parameters, and the charter asks for 4"):
        predict_file(peer, rows, tmp_path / "out.csv", file)


def test_probabilities_are_those_of_softmax(tmp_path):
    club, peer = tmp_path / "club", tmp_path / "ann"
    said("group", "create", club, *NUMBERS, "--classes", "no,yes", "--hidden", "3", "--set", "steps=2")
    said("peer", "init", peer, "--group", club, "--listen", "127.0.0.1:7447")
    agreed = charter_in(peer)
    assert (agreed.method, agreed.ridge, agreed.intercept) == ("tied-sgd", 0.0, False)
    assert (agreed.network.shared, agreed.network.tied) == (["body"], ["head"])
    model, rows = model_of(agreed), np.random.default_rng(0).normal(size=(5, 3))
    theta = model.initial(3)
    (tmp_path / "rows.csv").write_text("x0,x1,x2\n" + "\n".join(",".join(map(str, row)) for row in rows))
    (peer / "model.json").write_text(json.dumps({"served": "together", "theta": theta.tolist()}))
    said("peer", "predict", peer, tmp_path / "rows.csv", "-o", tmp_path / "out.csv")
    score = np.exp(model.predict(theta, rows))
    found = np.genfromtxt(tmp_path / "out.csv", delimiter=",", names=True, dtype=None, encoding=None)
    np.testing.assert_allclose(found["probability"], score[:, 1] / score.sum(axis=1), rtol=1e-12)
    assert found["prediction"].tolist() == np.where(score[:, 1] > score[:, 0], "yes", "no").tolist()


@pytest.mark.slow
def test_a_peer_that_brings_another_model_does_not_start(tmp_path):
    file, club, peer = own_file(tmp_path), tmp_path / "club", tmp_path / "ann"
    said("group", "create", club, *NUMBERS, "--model", file)
    said("peer", "init", peer, "--group", club, "--listen", "127.0.0.1:7447")
    (tmp_path / "rows.csv").write_text("x0,x1,x2,y\n" + "1,2,3,4\n" * 5)
    (tmp_path / "other").mkdir()
    other = own_file(tmp_path / "other", first="slope")
    command = [sys.executable, "-m", "coterie", "peer", "run", peer, "--data", tmp_path / "rows.csv", "--wakes", "1"]
    for more, words in (([], "brings its model"), (["--model", other], "its parameters are slope (3), bias (1)")):
        done = subprocess.run([*map(str, [*command, *more])], capture_output=True, text=True, timeout=60)
        assert done.returncode == 3
        assert words in " ".join(done.stderr.split())
        assert not (peer / "state").exists()


def test_another_rate_of_learning_keeps_what_was_learned(tmp_path):
    """A charter that is amended: the model goes on where its parameters are the same, and begins anew elsewhere."""
    club = Club(tmp_path, objective="differentiable", method="local-sgd", network={"hidden": 3}, ridge=0.0)
    club.start().run(20.0).stop()
    before = club.node("ann").peer.own.theta[0]
    for changes, same in (({"settings": {"rate": 0.01}}, True), ({"network": {"hidden": 4}}, False)):
        club.amend("ann", **changes)
        node = club.node("ann")
        assert np.array_equal(node.peer.own.theta[0], before if same else model_of(node.charter).initial(0))
        assert ("begins from what was learned" in club.words) == same
        node.open(0.0)
        node.close()
    assert "another network" in club.words
