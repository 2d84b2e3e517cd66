"""The audit log: what was written stays as it was, or that it does not is noticed; a crash costs at most one line."""

from __future__ import annotations

import io
import json
import os
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from small_group import SmallGroup
from typer.testing import CliRunner

from coterie.cli.console import AUDIT_FAILED
from coterie.cli.peers import app
from coterie.errors import DataError
from coterie.peers.app.metrics import Log
from coterie.peers.node.audit_log import MAX_LINE_BYTES, AuditLog, Chronicle, read_audit
from coterie.peers.node.program import Program
from coterie.peers.transport.memory import Exchange, Memory

pytestmark = pytest.mark.plain


@pytest.fixture
def log(tmp_path):
    log = AuditLog(tmp_path / "audit.log")
    for k in range(5):
        assert log("members", version=k, joined=[f"m{k}"], removed=[])
    return log


def test_events_are_chained_and_for_the_owner_alone(log):
    found = read_audit(log.path)
    assert (found.broken, found.torn) == (None, 0)
    assert [(e.number, e.event, e.fields["version"]) for e in found.entries] == [
        (k + 1, "members", k) for k in range(5)
    ]
    assert log.path.stat().st_mode & 0o777 == 0o600
    with pytest.raises(DataError, match="there is no"):
        read_audit(log.path.with_name("another"))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda lines: [lines[0], lines[1].replace(b"m1", b"mX"), *lines[2:]], "line 3 does not follow line 2"),
        (lambda lines: [*lines[:2], *lines[3:]], "line 3 does not follow line 2"),
        (lambda lines: lines[1:], "line 1 does not follow line 0"),
        (lambda lines: [lines[1], lines[0], *lines[2:]], "line 1 does not follow line 0"),
        (lambda lines: [*lines[:2], b"nonsense", *lines[2:]], "line 3 is not an event"),
        (lambda lines: [*lines[:4], lines[4].replace(b'"number": 5', b'"number": 7')], "number 7, after 4"),
    ],
)
def test_what_was_changed_is_noticed(log, change, words):
    lines = log.path.read_bytes().splitlines()
    log.path.write_bytes(b"\n".join(change(lines)) + b"\n")
    assert words in str(read_audit(log.path).broken)
    shown = CliRunner().invoke(app, ["peer", "audit", str(log.path.parent)], catch_exceptions=False)
    assert shown.exit_code == AUDIT_FAILED
    assert "changed after it was written" in " ".join(shown.output.split())


@pytest.mark.parametrize("cut", [1, 2, 40])
def test_a_line_that_a_crash_has_torn_stays_and_is_named(log, cut):
    content = log.path.read_bytes()
    log.path.write_bytes(content[:-cut])
    assert read_audit(log.path).broken is None
    log("start", session=7)
    found = read_audit(log.path)
    assert found.broken is None
    assert found.entries[-1].fields["session"] == 7
    events = [entry.event for entry in found.entries]
    if cut == 1:  # only the end of the line was missing
        assert (found.torn, events) == (0, ["members"] * 5 + ["start"])
    else:
        assert (found.torn, events) == (1, ["members"] * 4 + ["torn", "start"])
        assert content.splitlines()[-1][: 1 - cut] in log.path.read_bytes().splitlines()  # as it was left
    assert [entry.number for entry in found.entries] == list(range(1, len(events) + 1))


def test_the_first_line_may_be_torn_too(tmp_path):
    log = AuditLog(tmp_path / "audit.log")
    log.path.write_bytes(b'{"numb')
    assert log("start")
    found = read_audit(log.path)
    assert (found.broken, found.torn, [e.event for e in found.entries]) == (None, 1, ["torn", "start"])


def test_a_disk_that_refuses_is_counted_and_no_reason_to_stop(tmp_path):
    log = AuditLog(tmp_path / "nowhere" / "audit.log")
    assert not log("start")
    assert log.failed == 1


def test_long_events_stay_readable(log):
    log("odd", text="x" * MAX_LINE_BYTES)
    log("next")
    found = read_audit(log.path)
    assert (found.broken, found.entries[-2].event, found.entries[-1].event) == (None, "odd", "next")


def test_writers_take_turns(tmp_path):
    """Each opens the file for itself, as another process would."""
    path, begin = tmp_path / "audit.log", threading.Barrier(4)

    def write(name):
        begin.wait(30)
        assert all(AuditLog(path)("event", of=name, k=k) for k in range(20))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, "abcd"))
    found = read_audit(path)
    assert (found.broken, len(found.entries)) == (None, 80)
    for name in "abcd":
        assert [e.fields["k"] for e in found.entries if e.fields["of"] == name] == list(range(20))


def test_what_happens_to_a_peer_is_written_down(tmp_path):
    group = SmallGroup("private").start()
    stream, node = io.StringIO(), group.nodes[0]
    transport = Memory(Exchange(by_hand=True), "m0", 0)
    program = Program(node, transport, tmp_path, Log(stream), expires="2030-01-01T00:00:00+00:00")
    chronicle = Chronicle(program, AuditLog(tmp_path / "audit.log"))
    chronicle.start()
    group.run_until(lambda: node.ledger.releases >= 3, 200.0, step=1.0)
    chronicle.look()
    chronicle.look()  # what is known is not written again
    for j in (0, 1, 3):
        group.nodes[j].take_roster(group.now, group.signed if j else group.change(drop=[2]))
    program.expires = "2031-01-01T00:00:00+00:00"
    node.mute(group.now, {1})
    program._status = {"served": "together"}
    chronicle.look()
    program._status = {"served": "alone", "edges": [{"name": "m3", "influence": 0.9}, {"name": "m1", "influence": 0.1}]}
    chronicle.look()
    node.mute(group.now, ())
    chronicle.stop("it was told to")
    found = read_audit(tmp_path / "audit.log")
    told = [(entry.event, entry.fields) for entry in found.entries]
    releases = node.ledger.releases
    assert found.broken is None
    assert [event for event, _ in told] == [
        "start", *["release"] * releases, "members", "muted", "certificate", "served", "heard again", "stop",
    ]  # fmt: skip
    by = dict(told)
    assert by["members"] == {"version": 2, "before_it": 1, "joined": [], "removed": ["m2"]}
    assert by["release"]["release"] == releases
    assert "theta" not in json.dumps(told)
    assert by["served"] == {"model": "alone", "instead_of": "together"}
    logged = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert logged[-1]["moves_most"] == "m3"
    assert logged[-1]["advice"] == f"coterie peer mute {tmp_path} m3"


def test_the_command_shows_and_verifies(log):
    said = CliRunner().invoke(app, ["peer", "audit", str(log.path.parent), "--last", "2", "--json"])
    told = json.loads(said.output)
    assert told["good"]
    assert [event["number"] for event in told["events"]] == [4, 5]
    assert told["head"] == read_audit(log.path).head
    assert os.path.getsize(log.path) > 0
