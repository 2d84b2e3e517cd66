"""What a running peer tells about itself, and the model that it uses when its neighbours are not to be trusted."""

from __future__ import annotations

import io
import json
import logging
import re
import socket
import threading
import time
from urllib.error import HTTPError
from urllib.request import urlopen

import numpy as np
import pytest
from small_group import P, SmallGroup

from coterie.errors import ParameterError
from coterie.peers.app.metrics import LINES_PER_MINUTE, Log, Metrics, prometheus
from coterie.peers.app.status import status_of
from coterie.peers.model.scores import score_of, scores, served_by
from coterie.peers.model.tables import work_of
from coterie.peers.node.mailbox import INBOX_BYTES, INBOX_ROSTERS, NOBODY, Inbox
from coterie.peers.node.program import Program
from coterie.peers.node.settings import Settings
from coterie.peers.transport.memory import Exchange, Memory
from coterie.peers.wire.gate import REASONS

pytestmark = pytest.mark.plain


# -- the log -----------------------------------------------------------------------------------------------------------


def test_a_log_is_bounded_and_counts_what_it_leaves_out():
    stream, now = io.StringIO(), [0.0]
    log = Log(stream, clock=lambda: now[0])
    count, minutes = 50_000, 5
    for k in range(count):
        now[0] = 60.0 * minutes * k / count
        log("refused", reason="flood", number=k)
        if k % 10_000 == 0:
            log("seldom", number=k)
    now[0] += 3600.0
    log("refused", reason="the last one")
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    loud = [line for line in lines if line["event"] == "refused"]
    assert len(loud) <= LINES_PER_MINUTE * (minutes + 1) + 1
    assert len(loud) >= LINES_PER_MINUTE * minutes
    assert sum(line.get("not_logged", 0) for line in loud) + len(loud) == count + 1
    assert loud[-1]["not_logged"] > 0
    assert log.silenced == {}
    assert sum(line["event"] == "seldom" for line in lines) == 5  # others are not drowned


def test_errors_of_the_library_do_not_drown_the_failures_of_a_peer():
    """A peer that stops must be able to say why, whatever its transport has logged before."""
    stream = io.StringIO()
    log = Log(stream, clock=lambda: 0.0, level="warning")
    for _ in range(int(10 * LINES_PER_MINUTE)):
        log.emit(logging.makeLogRecord({"levelname": "ERROR", "msg": "a connection broke"}))
    log("failure", what="stops, because its ledger cannot be written")
    assert json.loads(stream.getvalue().splitlines()[-1])["what"].startswith("stops")


def test_a_log_stays_one_line_an_event():
    stream = io.StringIO()
    Log(stream, clock=lambda: 1.0)("odd", text='two\nlines and a "quote"', thing=object(), number=np.float64(2.0))
    line = json.loads(stream.getvalue())
    assert stream.getvalue().count("\n") == 1
    assert line["text"] == 'two\nlines and a "quote"'


def test_a_log_nobody_reads_is_no_reason_to_stop():
    stream = io.StringIO()
    stream.close()
    Log(stream)("event")


# -- Prometheus --------------------------------------------------------------------------------------------------------

LABEL = r'[a-zA-Z_][a-zA-Z0-9_]*="(?:[^"\\\n]|\\["\\n])*"'
SAMPLE = re.compile(rf"([a-zA-Z_:][a-zA-Z0-9_:]*)\{{({LABEL}(?:,{LABEL})*)?\}} (\S+)")
TYPE = re.compile(r"# TYPE ([a-zA-Z_:][a-zA-Z0-9_:]*) (counter|gauge)")


def parsed(text):
    """Samples of an exposition: (metric, labels) to numbers; every line must be a good one."""
    assert text.endswith("\n")
    kinds, samples = {}, {}
    for line in text.splitlines():
        if match := TYPE.fullmatch(line):
            assert match[1] not in kinds  # each metric once, all of its samples together
            kinds[match[1]] = match[2]
            continue
        match = SAMPLE.fullmatch(line)
        assert match, line
        assert list(kinds)[-1] == match[1]
        assert (match[1], match[2]) not in samples
        assert match[1].endswith("_total") == (kinds[match[1]] == "counter")
        samples[match[1], match[2]] = float(match[3])
    return samples


@pytest.fixture
def program(tmp_path):
    group = SmallGroup("private").start().run(10.0)
    node = group.nodes[0]
    node.receive(group.now, 1, b"not a message")
    node.receive(group.now, 77, b"nor this")
    transport = Memory(Exchange(by_hand=True), "m0", 0)
    options = {"settings": Settings(metrics=0), "clock": lambda: group.now}
    program = Program(node, transport, tmp_path, Log(io.StringIO()), **options)
    yield program
    program.metrics.close()


def test_a_status_as_prometheus_text(program):
    status = status_of(program)
    json.dumps(status)
    samples = parsed(prometheus(status))
    names = {name for name, _ in samples}
    assert names >= {
        "coterie_wakes_total", "coterie_starts_total", "coterie_messages_received_total", "coterie_messages_sent_total",
        "coterie_refused_total", "coterie_releases_total", "coterie_releases_left", "coterie_edge_weight",
    }  # fmt: skip
    assert not names & {"coterie_score", "coterie_score_alone", "coterie_own_loss"}  # a private peer does not tell
    status.pop("epsilon")
    assert {name for name, _ in parsed(prometheus(status))} - names == {
        "coterie_score", "coterie_score_alone", "coterie_own_loss", "coterie_served_alone", "coterie_edge_influence",
    }  # fmt: skip
    values = {
        (name, reason[1]): value
        for (name, labels), value in samples.items()
        if (reason := re.search('reason="([^"]*)"', labels))
    }
    assert values["coterie_refused_total", "format"] == values["coterie_refused_total", "stranger"] == 1.0
    assert {reason for _, reason in values} <= set(REASONS)
    assert sum(name == "coterie_edge_weight" for name, _ in samples) == 3
    assert samples["coterie_wakes_total", f'name="m0",run="{status["run"]}"'] == program.node.wakes


def test_odd_names_and_numbers_still_parse():
    status = {
        "name": 'a"b\\c\nd', "run": "", "wakes": 3, "score": float("nan"), "objective": 1e-300, "starts": 2**60,
        "score_alone": None, "refused": {'x"y': 1, "a\nb": 2}, "edges": [{"name": "\\", "weight": 0.1}], "errors": {},
    }  # fmt: skip
    samples = parsed(prometheus(status))
    assert len(samples) == 7
    assert samples["coterie_edge_weight", r'name="a\"b\\c\nd",run="",peer="\\"'] == 0.1
    assert prometheus({"name": "a", "run": "b"}) == "\n"


def test_metrics_are_for_this_machine_alone(program):
    program._status = status_of(program)
    port = program.metrics.port
    with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=5) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        assert parsed(answer.read().decode())
    with pytest.raises(HTTPError, match="404"):
        urlopen(f"http://127.0.0.1:{port}/etc/passwd", timeout=5)
    assert program.metrics._server.server_address[0] == "127.0.0.1"
    with pytest.raises(OSError), socket.create_connection(("127.0.0.2", port), timeout=2):  # noqa: PT011 - any will do
        pass
    with pytest.raises(ParameterError, match=f"127.0.0.1:{port}"):
        Metrics(port, str, lambda: (True, {}))


# -- what has come and was not looked at yet ---------------------------------------------------------------------------


def test_no_sender_fills_the_inbox_for_the_others():
    inbox = Inbox(per_sender=2)
    assert [inbox.put(7, b"packet") for _ in range(3)] == [True, True, False]
    assert inbox.put(8, b"another")
    assert inbox.dropped == {7: 1}
    assert len(inbox) == 3
    assert inbox.take() == [(7, b"packet"), (7, b"packet"), (8, b"another")]
    assert inbox.take() == []
    assert inbox.put(7, b"packet")
    assert not any(inbox.put(9, bytes(INBOX_BYTES)) for _ in range(2))  # nor by size
    assert [inbox.put(NOBODY, b"roster") for _ in range(INBOX_ROSTERS + 1)] == [True] * INBOX_ROSTERS + [False]


def test_who_waits_for_messages_is_woken():
    inbox = Inbox(per_sender=2)
    for act in (lambda: inbox.put(7, b"packet"), inbox.wake):
        waiter = threading.Thread(target=inbox.wait, args=(60.0,))
        waiter.start()
        time.sleep(0.05)
        assert waiter.is_alive()
        act()
        waiter.join(30.0)
        assert not waiter.is_alive()
        inbox.wait(60.0) if len(inbox) else None  # there is something already
        inbox.take()
    inbox.wait(0.001)
    inbox.wait(-1.0)


# -- which model to use ------------------------------------------------------------------------------------------------


def served(node):
    """What the peer uses."""
    found = served_by(node)
    return found.how, found.theta


def poisoned(holdout, poison, labels=None):
    """A peer with many rows whose neighbours all say the same, over and over."""
    group = SmallGroup({"labels": labels, "loss": "squared", "coupling": 20.0}, sizes=(20, 5, 5, 5), max_rows=20)
    rng = np.random.default_rng(2)
    X = rng.normal(size=(20, P))
    y = X @ np.array([1.0, -2.0, 1.0]) + 0.1 * rng.normal(size=20)
    group.work[0] = work_of(group.charter, X, y if labels is None else np.where(y > 0, 1.0, -1.0), holdout)
    group.start()
    node = group.nodes[0]
    for _ in range(20):
        for j in node.edges:
            assert group.offered(j, 0, 0, poison) is None  # within the radius: nothing to be seen from outside
        node._wake(group.now)
    return node


@pytest.mark.parametrize("labels", [None, ["-1", "1"]])
def test_a_poisoned_peer_falls_back_on_its_own_model(labels):
    node = poisoned(0.5, [-50.0, 60.0, -50.0], labels)
    assert node.work.aside
    word, model = served(node)
    assert word == "alone"
    assert np.array_equal(model, node.work.local)
    told = scores(node)
    assert told["scored_on"] == "rows kept aside"
    better = told["score_alone"] > told["score"] if labels else told["score_alone"] < told["score"]
    assert better


def test_rows_kept_aside_are_not_learned_from():
    group = SmallGroup(sizes=(20, 5, 5, 5))
    whole, half = (work_of(group.charter, group.X[0], group.y[0], share) for share in (0.0, 0.5))
    assert (whole.size, half.size, half.features.shape[0], half.seen.shape[0]) == (20, 10, 10, 10)
    assert not {row.tobytes() for row in half.features} & {row.tobytes() for row in half.seen}
    assert (whole.aside, half.aside) == (False, True)


def test_good_neighbours_are_listened_to():
    node = poisoned(0.5, [1.0, -2.0, 1.0])
    assert served(node)[0] == "together"
    assert np.array_equal(served(node)[1], node.theta)


def test_without_rows_kept_aside_only_what_is_useless_is_told():
    """The peer's own rows cannot judge a model that was trained on them, but for one that no chance explains."""
    assert served(poisoned(0.0, [1.5, -2.5, 1.5]))[0] == "together"
    node = poisoned(0.0, [-50.0, 60.0, -50.0])
    word, model = served(node)
    assert word == "alone"
    assert np.array_equal(model, node.work.local)
    assert "useless on its 20 rows: rmse" in scores(node)["why"]
    node.work = node.work._replace(seen=node.work.seen[:5], seen_labels=node.work.seen_labels[:5])
    assert served(node)[0] == "together"  # so few say nothing


@pytest.mark.parametrize("word", ["cd", "resilient-pooling"])
def test_before_anybody_is_heard_the_model_is_called_its_own(word):
    group = SmallGroup(word, sizes=(20, 5, 5, 5)).start(0).run(5.0)
    assert served(group.nodes[0])[0] == scores(group.nodes[0])["served"] == "own"
    if word == "resilient-pooling":  # it can tell after a restart, too
        group.crash(0)
        group.start(0).run(5.0)
        assert served(group.nodes[0])[0] == "own"
    group.start(1, 2, 3).run(5.0)
    assert served(group.nodes[0])[0] != "own"
    for i in range(4):
        group.crash(i)
    group.start(0).run(5.0)
    assert served(group.nodes[0])[0] != "own"  # it has heard them before


def test_a_private_peer_with_few_rows_does_not_use_what_it_has_published():
    """That is noise for the most part: until the model for its own use is there, it takes the one trained alone."""
    group = SmallGroup("pooled in private", sizes=(20, 5, 5, 5)).start().run(20.0)
    node = group.nodes[0]
    assert served(node)[0] == "own"
    assert np.array_equal(served(node)[1], node.work.local)
    assert "not computed yet" in scores(node)["why"]
    assert served_by(node, node.work.local).how == "together"


def test_scores():
    node = poisoned(0.5, [1.0, -2.0, 1.0])
    work = node.work
    assert score_of(node, work.local) == pytest.approx(
        float(np.sqrt(np.mean((work.seen @ work.local - work.seen_labels) ** 2)))
    )
    classes = poisoned(0.5, [1.0, -2.0, 1.0], ["-1", "1"])
    right = np.where(classes.work.seen @ classes.theta >= 0, 1.0, -1.0) == classes.work.seen_labels
    assert score_of(classes, classes.theta) == right.mean()
