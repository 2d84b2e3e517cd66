"""What one who looks after a peer relies on: settings, a status that is never old unnoticed, checks, mutes, units."""

from __future__ import annotations

import io
import json
import math
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock
from urllib.error import HTTPError
from urllib.request import urlopen

import numpy as np
import pytest
import typer
from processes import free_port, until
from small_group import SmallGroup
from typed import said, typed
from typer.testing import CliRunner

from coterie.cli import console
from coterie.cli.main import COMMANDS, loaded
from coterie.cli.main import app as everything
from coterie.cli.peers import app
from coterie.cli.status import _status_table
from coterie.core.method import Inspection, Privacy
from coterie.errors import CoterieError, DataError, ParameterError, RemovedError
from coterie.peers.app.metrics import Log, health, prometheus
from coterie.peers.app.status import status_of
from coterie.peers.group.groups import create, enroll
from coterie.peers.model.scores import influences, score_of
from coterie.peers.node.checks import Finding, findings, is_stale, mover, worst
from coterie.peers.node.mailbox import INBOX_PACKETS
from coterie.peers.node.process import Live, ask, notify, running
from coterie.peers.node.program import Program, _json
from coterie.peers.node.service import unit_of
from coterie.peers.node.settings import Settings, overridden, read_muted, read_settings, write_muted, write_settings
from coterie.peers.transport.memory import Exchange, Memory

pytestmark = pytest.mark.plain


DEPLOY = Path(__file__).parents[2] / "deploy"


# -- peer.toml --------------------------------------------------------------------------------------------------------


def test_what_init_writes_is_all_defaults(tmp_path):
    path = write_settings(tmp_path)
    assert read_settings(tmp_path) == Settings()
    path.write_text(re.sub(r"(?m)^# (\w+ = )", r"\1", path.read_text()))  # every example is a good value
    on = read_settings(tmp_path)
    assert (on.data, on.metrics, on.share_health, on.admin) == ("rows.csv", 9100, False, "../club")
    assert on.path(tmp_path, "data") == tmp_path / "rows.csv"
    write_settings(tmp_path, data="other.csv")  # what somebody has written is left alone
    assert read_settings(tmp_path).data == "rows.csv"
    assert read_settings(tmp_path / "nowhere") == Settings()


def test_odd_paths_survive(tmp_path):
    write_settings(tmp_path, data='/a "b"/c\\d/é.csv', metrics=0, compiled=True)
    found = read_settings(tmp_path)
    assert (found.data, found.metrics, found.compiled) == ('/a "b"/c\\d/é.csv', 0, True)
    assert found.path(tmp_path, "data") == Path(found.data)
    assert overridden(found, metrics=9100, compiled=False, holdout=None) == Settings(
        found.data, None, 9100, compiled=False
    )


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("dta = 1", "'dta' is not known; there are data, holdout"),
        ('metrics = "9100"', "metrics = '9100' must be a port"),
        ("metrics = 70000", "metrics = 70000 must be a port"),
        ("metrics = true", "metrics = True must be a port"),
        ("holdout = 1.5", "holdout = 1.5 must be a number from 0 to 0.9"),
        ("holdout = nan", "holdout = nan must be a number"),
        ('share_health = "yes"', "share_health = 'yes' must be true or false"),
        ("share_health = 1", "share_health = 1 must be true or false"),
        ('log_level = "loud"', "log_level = 'loud' must be one of info, warning"),
        ("nice = -5", "nice = -5 must be a whole number from 0 to 19"),
        ("data = [1]", "data = [1] must be a path"),
        ("[data]\nx = 1", "must be a path"),
        ("data = ", "is not TOML"),
    ],
)
def test_what_is_wrong_in_peer_toml_is_named(tmp_path, line, words):
    (tmp_path / "peer.toml").write_text(line + "\n")
    with pytest.raises((DataError, ParameterError)) as refused:
        read_settings(tmp_path)
    assert words in str(refused.value)
    assert "peer.toml" in str(refused.value)


def test_init_and_join_write_it(tmp_path):
    group, ann, bob = tmp_path / "club", tmp_path / "ann", tmp_path / "bob"
    made(group)
    said("peer", "init", ann, "--group", group, "--data", "rows.csv")
    assert read_settings(ann).data == os.path.abspath("rows.csv")
    said("peer", "init", bob)
    (bob / "peer.toml").unlink()
    said("group", "invite", group, bob / "bob.request")
    said("group", "join", bob, bob / "bob.invitation")
    assert (bob / "peer.toml").exists()
    assert [event["event"] for event in said("peer", "audit", bob)["events"]] == ["joined"]
    assert read_settings(bob).data is None


# -- a peer that runs -------------------------------------------------------------------------------------------------


def made(folder, **more):
    return create(folder, features=["a", "b"], target="y", labels=["no", "yes"], rate=5.0, **more)


@pytest.fixture(scope="module")
def peer(tmp_path_factory):
    """The folder of a peer that runs as ``coterie peer run FOLDER``, and its process."""
    where = tmp_path_factory.mktemp("run")
    made(where / "club")
    rng = np.random.default_rng(0)
    rows = [f"{a},{b},{'yes' if a > b else 'no'}" for a, b in rng.normal(size=(30, 2))]
    (where / "rows.csv").write_text("\n".join(["a,b,y", *rows]) + "\n")
    folder = where / "ann"
    enroll(where / "club", folder, "ann", f"127.0.0.1:{free_port()}")
    enroll(where / "club", where / "bob", "bob", f"127.0.0.1:{free_port()}", edges={"ann": 1.0})
    said("peer", "update", folder, where / "club/roster")
    write_settings(folder, data="../rows.csv", metrics=0)
    with open(where / "log", "wb") as log:
        process = subprocess.Popen([sys.executable, "-m", "coterie", "peer", "run", str(folder)], stderr=log)
    try:
        until(lambda: process.poll() is not None or ask(folder), "the peer does not start")
        assert process.poll() is None, (where / "log").read_text()
        yield SimpleNamespace(folder=folder, process=process, log=where / "log")
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGCONT)
            process.kill()
        process.wait(30)


def healthz(port):
    try:
        with urlopen(f"{port.replace('/metrics', '/healthz')}", timeout=5) as answer:
            return answer.status, json.load(answer)
    except HTTPError as error:
        return error.code, json.load(error)


def test_a_running_peer_tells_what_is_so_now(peer):
    status = said("peer", "status", peer.folder)
    assert (status["running"], status["stale"], status["pid"]) == (True, False, peer.process.pid)
    later = until(lambda: (s := said("peer", "status", peer.folder))["wakes"] > status["wakes"] and s, "no wakes")
    assert later["age"] < 5.0
    assert (peer.folder / "live").stat().st_mode & 0o777 == 0o600
    assert said("peer", "check", peer.folder)["health"] == "ok"
    assert typed("peer", "check", peer.folder).startswith("OK: ann: process ")
    assert healthz(status["metrics"]) == (200, {"health": "ok", "name": "ann", "findings": []})


@pytest.mark.slow
def test_a_mute_is_noticed_by_a_running_peer(peer):
    assert [edge["name"] for edge in said("peer", "status", peer.folder)["edges"]] == ["bob"]
    assert said("peer", "mute", peer.folder, "bob") == {"muted": ["bob"]}
    status = until(lambda: (s := said("peer", "status", peer.folder))["muted"] == ["bob"] and s, "it is not muted")
    assert status["edges"] == []
    assert said("peer", "mute", peer.folder, "bob", "--undo") == {"muted": []}
    until(lambda: said("peer", "status", peer.folder)["edges"], "it stays muted")
    events = until(lambda: (e := said("peer", "audit", peer.folder)["events"])[-1]["event"] == "heard again" and e, "")
    assert [event["event"] for event in events][-3:] == ["start", "muted", "heard again"]


@pytest.mark.skipif(not hasattr(resource, "prlimit"), reason="limits of another process cannot be changed here")
def test_a_full_disk_is_told(peer):
    """No file can grow: the status on the disk gets old, and nothing shows it as if it were new."""
    pid, url = peer.process.pid, said("peer", "status", peer.folder)["metrics"]
    before = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        status = until(lambda: (s := said("peer", "status", peer.folder))["status_error"] and s, "it is not told")
        assert not status["stale"]  # the peer itself has told
        assert status["errors"]["disk"] >= 1
        assert status["at"] >= json.loads((peer.folder / "status.json").read_bytes())["at"]
        table = typed("peer", "status", peer.folder)
        assert "status.json" in table
        found = said("peer", "check", peer.folder, code=2)
        assert ("critical", "disk") in {(one["level"], one["check"]) for one in found["findings"]}
        code, told = healthz(url)
        assert (code, told["health"]) == (503, "critical")
        with urlopen(url, timeout=5) as answer:
            text = answer.read().decode()
        assert re.search(r"coterie_status_written\{[^}]*\} 0.0", text)
        assert re.search(r'coterie_errors_total\{[^}]*kind="disk"\} [1-9]', text)
    finally:
        resource.prlimit(pid, resource.RLIMIT_FSIZE, before)
    until(lambda: said("peer", "status", peer.folder)["status_error"] is None, "it does not recover")


@pytest.mark.slow
def test_a_paused_peer_is_not_shown_as_well(peer):
    """Its status was written a moment before, and gets old."""
    status = peer.folder / "status.json"
    said("peer", "status", peer.folder)
    peer.process.send_signal(signal.SIGSTOP)
    try:
        old = json.loads(status.read_bytes())
        old["at"] -= 60.0  # a minute later
        status.write_bytes(json.dumps(old).encode())
        told = said("peer", "status", peer.folder)
        assert (told["running"], told["stale"], told["why_stale"]) == (True, True, "the process is paused")
        table = " ".join(typed("peer", "status", peer.folder).split())
        assert "running, but its status is 6" in table
        assert "heard" not in table
        assert "paused" in typed("peer", "check", peer.folder, code=2)
    finally:
        peer.process.send_signal(signal.SIGCONT)
    until(lambda: not said("peer", "status", peer.folder)["stale"], "it does not recover")


def test_a_killed_peer_is_not_running(peer):
    peer.process.kill()
    peer.process.wait(30)
    assert running(peer.folder) is None
    status = said("peer", "status", peer.folder)
    assert (status["running"], status["stale"]) == (False, False)
    assert "not running; this is as of" in " ".join(typed("peer", "status", peer.folder).split())
    assert "it is not running" in typed("peer", "check", peer.folder, code=2)
    assert said("peer", "audit", peer.folder)["good"]
    said("peer", "mute", peer.folder, "bob")
    assert said("peer", "audit", peer.folder)["events"][-1]["event"] == "muted"


def test_a_folder_that_is_no_peers_is_called_so(tmp_path):
    assert said("peer", "check", tmp_path, code=3)["health"] == "unknown"
    for word in ("status", "stop"):
        with pytest.raises(CoterieError, match="holds no peer"):
            typed("peer", word, tmp_path)


# -- a live status ----------------------------------------------------------------------------------------------------


def test_a_socket_in_a_folder_with_a_long_name(tmp_path):
    deep = tmp_path / ("x" * 100) / ("y" * 100)
    deep.mkdir(parents=True)
    (deep / "live").touch()  # left by a process that was killed
    live = Live(deep, lambda: b'{"name": "ann"}')
    try:
        assert ask(deep) == {"name": "ann"}
        assert ask(deep) == {"name": "ann"}
    finally:
        live.close()
    assert ask(deep) is None
    assert not (deep / "live").exists()


@pytest.mark.slow
def test_who_does_not_listen_blocks_nobody_for_long(tmp_path):
    live = Live(tmp_path, lambda: b"[" + b"1," * 3_000_000 + b"1]")
    try:
        with socket.socket(socket.AF_UNIX) as silent:
            silent.connect(str(tmp_path / "live"))
            time.sleep(0.2)
            assert ask(tmp_path) is None  # its turn may come too late, but it gets an answer or none
    finally:
        live.close()


# -- a program by hand ------------------------------------------------------------------------------------------------


@pytest.fixture
def group():
    return SmallGroup().start().run(5.0)


def program_of(group, folder, **more):
    transport = Memory(Exchange(by_hand=True), "m0", 0)
    return Program(group.nodes[0], transport, folder, Log(io.StringIO()), clock=lambda: group.now, **more)


def test_refusals_are_counted_by_sender(group, tmp_path):
    node, program = group.nodes[0], program_of(group, tmp_path)
    for _ in range(3):
        node.receive(group.now, 1, b"not a message")
    node.receive(group.now, 2, bytes(group.charter.message_bytes + 1))
    for stranger in range(77, 177):
        node.receive(group.now, stranger, b"not a message")
    for _ in range(INBOX_PACKETS + 5):
        program.inbox.put(3, b"letter")
    status = status_of(program)
    assert status["refused_by"] == {"m1": {"format": 3}, "m2": {"size": 1}, "m3": {"overflow": 5}}
    assert status["refused"]["stranger"] == 100
    assert len(node.mail.gate.refused_by) <= len(group.present) * 20  # strangers do not fill it
    assert re.search(r'refused_by_total\{[^}]*peer="m1",reason="format"\} 3', prometheus(status | {"age": 0.0}))
    table = shown(status)
    assert "m1: 3 format; m2: 1 size" in table
    status["edges"][0]["name"] = "a-much-longer-name"
    lines = [line for line in shown(status).splitlines() if "  weight " in line]
    assert len({line.index("  weight ") for line in lines}) == 1  # below each other, whatever their names


def shown(status):
    """The table of a status, as text."""
    with (capture := console.Console(width=200, file=io.StringIO())).capture() as text:
        capture.print(_status_table(status | {"stale": False, "age": 0.0, "why_stale": ""}))
    return text.get()


@pytest.mark.slow
def test_a_private_peer_that_has_ended_shows_the_model_that_it_uses(tmp_path):
    """What it has worked out for itself in the end is what predicts, so the scores are those of it."""
    program = program_of(group := SmallGroup("pooled in private").start().run(20.0), tmp_path)
    node = group.nodes[0]
    assert status_of(program)["score"] == score_of(node, node.theta)
    program._end()
    status, model = (json.loads((tmp_path / name).read_text()) for name in ("status.json", "model.json"))
    assert not status["running"]
    assert status["why"] == model["why"]
    assert status["score"] == score_of(node, program._final) != score_of(node, node.theta)


def test_a_private_peer_works_out_its_own_model_within_a_minute(tmp_path):
    """Until then it predicts with noise; later it does so now and then."""
    group = SmallGroup("pooled in private").start().run(20.0)
    program = program_of(group, tmp_path)
    began = []
    program._start_finishing = lambda: began.append(group.now - program.began)
    for seconds in range(400):
        group.now = program.began + seconds
        program._housekeeping(group.now)
    assert began == [30.0, 330.0]


def test_a_muted_neighbour_is_forgotten(tmp_path):
    """Its edge goes with all that came by it; what it says is refused; the model is again that of one's own rows."""
    group = SmallGroup(sizes=(8, 8), edges=[(0, 1, 5.0)], ridge=0.1).start().run(5.0)
    node = group.nodes[0]
    for _ in range(20):
        assert group.offered(1, 0, 0, [50.0, -50.0, 50.0]) is None
        group.run(1.0)
        group.nodes[1].peer.own.theta[0] = [50.0, -50.0, 50.0]  # it lies on
    assert np.abs(node.theta - node.work.local).max() > 1.0
    write_muted(tmp_path, ["m1", "somebody else"])
    program = program_of(group, tmp_path)
    program._look_who_is_muted()
    assert (node.edges, node.group.muted) == ({}, {1})
    assert group.offered(1, 0, 0, [50.0, -50.0, 50.0]) == "muted"
    assert node.mail.gate.refused_by[1, "muted"] == 1
    group.run(200.0)
    assert np.allclose(node.theta, node.work.local, atol=1e-3)
    assert not [mail for mail in group.mail[-50:] if mail[:2] == (0, 1)]
    assert status_of(program)["muted"] == ["m1"]

    group.crash(0)
    group.start(0)  # it is on the disk, and so is the mute
    program_of(group, tmp_path)._look_who_is_muted()
    assert group.nodes[0].edges == {}
    write_muted(tmp_path, [])
    program_of(group, tmp_path)._look_who_is_muted()
    assert group.nodes[0].edges == {1: 5.0}
    group.run(30.0)
    assert group.offered(1, 0, 0, [1.0, 1.0, 1.0]) is None


@pytest.mark.slow
@pytest.mark.parametrize("words", ["learned", "gossip-pooling", "djam"])
def test_any_method_goes_on_without_a_muted_neighbour(words, tmp_path):
    group = SmallGroup(words).start().run(20.0)
    node = group.nodes[0]
    write_muted(tmp_path, ["m1"])
    program_of(group, tmp_path)._look_who_is_muted()
    before = len(group.mail)
    group.run(30.0)
    assert 1 not in node.edges
    assert not [mail for mail in group.mail[before:] if mail[:2] == (0, 1)]
    assert node.edges
    assert np.all(np.isfinite(node.theta))


def test_mutes_that_cannot_be(ann):
    for words, message in (
        (("eve",), "'eve' is not a member"),
        (("ann",), "this peer itself"),
        (("eve", "--undo"), "is not muted"),
        ((), "mute needs"),
    ):
        with pytest.raises(CoterieError, match=message):
            typed("peer", "mute", ann, *words)
    assert said("peer", "mute", ann, "--list") == {"muted": []}
    (ann / "muted").write_text("{}")
    with pytest.raises(DataError, match="damaged"):
        read_muted(ann)


def moved_by(influence):
    """All that a status asks of a method."""
    return SimpleNamespace(inspection=Inspection(influence=influence), privacy=Privacy())


def test_the_neighbour_that_moves_the_model_most_is_named(group, tmp_path):
    node, program = group.nodes[0], program_of(group, tmp_path)
    slots = node.peer.arrays.peer.tolist()
    assert set(slots) == {1, 2, 3}
    moved = {1: 1.0, 2: 3.0, 3: float("nan")}
    node.method = moved_by(lambda arrays, own, edge: np.array([moved[j] for j in arrays.peer.tolist()]))
    assert influences(node) == {1: 0.25, 2: 0.75, 3: 0.0}
    status = status_of(program) | {"served": "alone"}
    assert mover(status) == "m2"
    assert "moves it 75%" in shown(status)
    assert "m2 moves it most (coterie peer mute FOLDER m2)" in shown(status)
    assert 'coterie_edge_influence{name="m0",run="' in prometheus(status | {"age": 0.0})
    found = findings(status, 0.0)
    assert [one.check for one in found] == ["served"]
    assert "coterie peer mute FOLDER m2" in found[0].text
    node.method = moved_by(lambda arrays, own, edge: None)
    assert influences(node) == {}
    node.method = moved_by(None)
    assert influences(node) == {}


def test_a_private_peer_does_not_tell_everybody_what_its_data_say(tmp_path):
    group = SmallGroup("private").start().run(5.0)
    program = program_of(group, tmp_path)
    status = status_of(program) | {"age": 0.0, "served": "alone"}
    assert "served_alone" not in prometheus(status)
    assert "served" not in {one["check"] for one in health(status)[1]["findings"]}
    assert "served" in {one.check for one in findings(status, 0.0)}  # its owner may know


def test_a_status_that_cannot_be_written_is_an_error(group, tmp_path):
    folder = tmp_path / "ann"
    folder.mkdir()
    stream = io.StringIO()
    program = program_of(group, folder)
    program.log = Log(stream)
    assert health(program.status)[0] is False  # nothing is known yet
    program._write_status()
    assert (program.status["status_error"], program.status["errors"]) == (None, {})
    assert health(program.status)[0] is True
    group.now += 60.0
    well, told = health(program.status)
    assert (well, told["findings"][0]["check"]) == (False, "status")  # a loop that hangs is told
    assert "coterie_status_age_seconds" in prometheus(program.status)
    folder.rename(tmp_path / "elsewhere")
    program._housekeeping(group.now)
    assert "status.json" in program.status["status_error"]
    assert "status.json" in stream.getvalue()
    assert health(program.status)[0] is False
    group.now += 100.0
    program._housekeeping(group.now)
    assert program.status["errors"]["disk"] >= 1
    (tmp_path / "elsewhere").rename(folder)
    for _ in range(2):
        program._write_status()
    assert json.loads((folder / "status.json").read_bytes())["status_error"] is None


def test_a_status_is_json_for_every_reader():
    """In which there is no NaN: also not inside of something."""
    found = json.loads(_json({"score": math.inf, "edges": [{"influence": math.nan}]}), parse_constant=pytest.fail)
    assert found == {"score": None, "edges": [{"influence": None}]}


def test_a_broken_certificate_is_an_error_and_no_end(group, tmp_path):
    program = program_of(group, tmp_path)
    text = "tls.crt, tls.key and ca.crt cannot be used for TLS"
    program.maintenance._look_at_certificate = Mock(side_effect=ParameterError(text))
    program._housekeeping(group.now)
    assert "cannot be used for TLS" in program.node.errors.last
    assert program.node.errors["maintenance"] == 1
    assert not program._stopping


# -- checks -----------------------------------------------------------------------------------------------------------

NOW = 1_800_000_000.0
WELL = {
    "name": "ann", "at": NOW, "period": 5.0, "uptime": 5000.0, "rate": 1.0, "state_age": 1.0,
    "certificate_expires": "2030-01-01T00:00:00+00:00", "disk": {"free_mb": 5000.0, "writable": True},
    "edges": [{"name": "bob", "heard": 3.0}, {"name": "eve", "heard": None}], "errors": {}, "served": "together",
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, None),
        ({"disk": {"free_mb": 100.0, "writable": True}}, ("warning", "disk")),
        ({"disk": {"free_mb": 1.0, "writable": True}}, ("critical", "disk")),
        ({"disk": {"free_mb": 5000.0, "free_entries": 3}}, ("critical", "disk")),
        ({"disk": {"free_mb": 5000.0, "writable": False}}, ("critical", "disk")),
        ({"status_error": "no space left"}, ("critical", "disk")),
        ({"certificate_expires": "2027-02-10T00:00:00+00:00"}, ("warning", "certificate")),
        ({"certificate_expires": "2027-01-20T00:00:00+00:00"}, ("critical", "certificate")),
        ({"certificate_expires": "2027-01-01T00:00:00+00:00"}, ("critical", "certificate")),
        ({"edges": [{"name": "bob", "heard": 900.0}]}, ("critical", "neighbours")),
        ({"edges": [{"name": "bob", "heard": 900.0}], "silent_minutes": 20.0}, None),
        ({"edges": [{"name": "bob", "heard": None}]}, ("critical", "neighbours")),
        ({"edges": [{"name": "bob", "heard": None}], "uptime": 30.0}, None),
        ({"edges": []}, ("warning", "neighbours")),
        ({"served": "alone"}, ("warning", "served")),
        ({"errors": {"radius": 3}, "error_at": {"radius": NOW - 10}}, ("warning", "radius")),
        ({"errors": {"radius": 3}, "error_at": {"radius": NOW - 10_000}}, None),
        # What lasts is an alert as long as it does; what was healed was never so.
        ({"errors": {"fork": 1}, "error_at": {"fork": NOW - 10_000}}, None),
        ({"errors": {"duplicate": 1}, "error_at": {"duplicate": NOW - 10}}, ("warning", "duplicate")),
        ({"errors": {"fork": 1}, "alerts": {"fork": "two rosters of one version"}}, ("critical", "fork")),
        ({"alerts": {"duplicate": "another process, says eve"}}, ("warning", "duplicate")),  # who may lie
        ({"releases_left": 0}, ("info", "privacy")),
        ({"proposal": {"changes": "coupling=2"}}, ("info", "charter")),
        ({"state_age": 5000.0}, ("warning", "state")),
        ({"state_age": 5000.0, "waits": True}, None),
        ({"state_age": 5000.0, "rate": 0.001}, None),
    ],
)
def test_every_check(changes, expected):
    found = findings(WELL | changes, 0.0, NOW)
    assert [one[:2] for one in found] == ([] if expected is None else [expected])
    assert worst(found) == ("ok" if expected is None or expected[0] == "info" else expected[0])


def test_old_statuses():
    assert not is_stale(WELL, 14.0)
    assert is_stale(WELL, 16.0)
    assert is_stale(WELL, -16.0)  # the clock was set back: it may be of any time
    assert findings(WELL, 100.0, NOW)[0][:2] == ("critical", "status")
    assert worst([Finding("critical", "a", ""), Finding("warning", "b", "")]) == "critical"


# -- services ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def ann(tmp_path):
    """The folder of a peer beside that of its group."""
    made(tmp_path / "club")
    enroll(tmp_path / "club", tmp_path / "ann", "ann", f"127.0.0.1:{free_port()}")
    return tmp_path / "ann"


@pytest.fixture
def unit(ann, tmp_path):
    """The unit of a peer, as the command writes it."""
    (tmp_path / "rows.csv").write_text("a,b,y\n")
    write_settings(ann, data="../rows.csv")
    path = tmp_path / "coterie-ann.service"
    told = typed("peer", "install", ann, "--output", tmp_path)
    assert f"  sudo install -m 644 {path} /etc/systemd/system/\n" in told  # to copy, so not broken into lines
    return path


def test_a_unit_says_what_it_must(unit, ann, tmp_path):
    lines = unit.read_text().splitlines()
    for line in (
        f"ExecStart={os.path.abspath(sys.executable)} -m coterie peer run {ann}",
        "NoNewPrivileges=yes",
        "ProtectSystem=strict",
        f"ReadWritePaths={ann}",
        f"ReadOnlyPaths={tmp_path / 'rows.csv'}",
        "CapabilityBoundingSet=",
        "Restart=on-failure",
        f"RestartPreventExitStatus=2 {console.BAD_INPUT} {console.REMOVED}",
        "RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX",
        "SystemCallFilter=@system-service",
        "Type=notify",
    ):
        assert line in lines
    # The admin's folder is written to; and what would keep the peer from working is said.
    (ann / "peer.toml").write_text('admin = "../club"\n')
    words = ["peer", "install", str(ann), "--user", "somebody", "-o", str(tmp_path)]
    done = subprocess.run([sys.executable, "-m", "coterie", *words], capture_output=True, text=True, check=True)
    assert "names no data" in done.stderr
    assert "chown -R somebody" in done.stderr
    assert f"ReadWritePaths={ann} {tmp_path / 'club'}" in unit.read_text().splitlines()
    relay = unit_of(tmp_path, "hub", "root", relay=True)
    assert "-m coterie relay " in relay
    assert "Watchdog" not in relay


def test_units_that_cannot_be(ann, tmp_path):
    with pytest.raises(ParameterError, match="such characters"):
        unit_of(tmp_path / "a b", "ann", "root")
    with pytest.raises(ParameterError, match="user"):
        unit_of(tmp_path, "ann", "root\nExecStart=/bin/sh")
    for line, message in (
        ('data = "nowhere.csv"', r"nowhere\.csv' is not a file"),
        ('admin = "../nowhere"', "nowhere' is not a folder"),
    ):
        (ann / "peer.toml").write_text(line)
        with pytest.raises(DataError, match=message):
            typed("peer", "install", ann)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not on this machine")
def test_systemd_takes_the_unit_and_finds_it_tight(unit):
    done = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True)
    if "Failed to" in done.stderr and "connect" in done.stderr:
        pytest.skip("systemd-analyze does not work here")
    assert (done.returncode, done.stderr) == (0, "")
    security = ["systemd-analyze", "security", "--offline=true", "--no-pager", str(unit)]
    done = subprocess.run(security, capture_output=True, text=True)
    level = re.search(r"Overall exposure level for .*: ([0-9.]+)", done.stdout)
    assert level, done.stderr
    assert float(level[1]) <= 3.0


def test_a_supervisor_is_told(tmp_path, monkeypatch):
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    assert not notify("READY=1")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as supervisor:
        supervisor.bind(str(tmp_path / "notify"))
        supervisor.settimeout(5)
        monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
        assert notify("READY=1")
        assert supervisor.recv(100) == b"READY=1"
    assert not notify("READY=1")


# -- dashboards and alerts --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def metrics(tmp_path_factory):
    """The names of all metrics that there are."""
    names = set()
    for words in ("cd", "private"):
        group = SmallGroup(words).start().run(5.0)
        node, program = group.nodes[0], program_of(group, tmp_path_factory.mktemp("p"), expires="2030-01-01T00:00:00Z")
        node.receive(group.now, 1, b"not a message")
        node.errors["disk"] += 1
        if words == "cd":
            node.method = moved_by(lambda arrays, own, edge: np.ones(arrays.peer.shape))
        program.served = "together"
        program._write_status()
        program._write_status()
        status = program.status | {"strangers": {"192.0.2.1": {"tls": 3}}, "muted": ["eve"], "state_age": 1.0}
        names |= set(re.findall(r"(?m)^(coterie_\w+)\{", prometheus(status)))
    return names


def used_in(text):
    return set(re.findall(r"\bcoterie_\w+", text))


def test_alerts_are_about_metrics_that_there_are(metrics):
    yaml = pytest.importorskip("yaml")
    rules = yaml.safe_load((DEPLOY / "alerts.yml").read_text())["groups"][0]["rules"]
    assert len({rule["alert"] for rule in rules}) == len(rules) > 8
    for rule in rules:
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert used_in(rule["expr"]) <= metrics, rule["alert"]
        assert rule["annotations"]["summary"]
    assert sum(bool(used_in(rule["expr"])) for rule in rules) == len(rules) - 1


def test_the_dashboard_shows_metrics_that_there_are(metrics):
    board = json.loads((DEPLOY / "grafana-dashboard.json").read_text())
    expressions = [target["expr"] for panel in board["panels"] for target in panel["targets"]]
    assert len(expressions) > 15
    assert all(used_in(one) and used_in(one) <= metrics for one in expressions)


def test_the_containers_have_no_privileges():
    yaml = pytest.importorskip("yaml")
    services = yaml.safe_load((DEPLOY / "compose.yaml").read_text())["services"]
    assert set(services) == {"ann", "bob"}
    for service in services.values():
        assert service["read_only"]
        assert service["cap_drop"] == ["ALL"]
        assert service["user"] != "0"
        assert service["volumes"]
    assert "\nUSER coterie\n" in (DEPLOY / "Containerfile").read_text()


# -- commands ---------------------------------------------------------------------------------------------------------


def test_help_knows_every_command_without_loading_it():
    for name, later in COMMANDS.items():
        own = loaded(name)
        text = " ".join((own.help or "").split("\n\n")[0].split())
        assert text == later.help, name
    names = {one.name for one in app.registered_commands} | {one.name for one in app.registered_groups}
    assert names <= set(COMMANDS)
    shown = CliRunner().invoke(everything, ["--help"]).output
    assert all(name in shown for name in COMMANDS)


LIGHT = """
import sys
from typer.testing import CliRunner
from coterie.cli.main import app as everything
from coterie.cli.peers import app
run = CliRunner().invoke
codes = [run(everything, ["--help"]).exit_code, run(app, ["peer", "--help"]).exit_code]
for words in (["check"], ["mute", "--list"], ["audit"], ["install", "--output", "."], ["status"]):
    codes.append(run(app, ["peer", words[0], "ann", *words[1:]]).exit_code)
print(codes, [name for name in ("numpy", "pandas", "scipy", "sklearn", "numba", "matplotlib") if name in sys.modules])
"""


def test_commands_load_no_more_than_they_need(unit, tmp_path):
    """What takes seconds to load is not loaded: all of these answer within half a second."""
    done = subprocess.run([sys.executable, "-c", LIGHT], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[0, 0, 2, 0, 1, 0, 1] []", done.stdout  # it does not run, and nothing is logged yet


def test_exit_codes_are_documented_and_distinct(monkeypatch, capsys):
    codes = (console.BAD_INPUT, console.AUDIT_FAILED, console.REMOVED, console.NOT_NOW)
    assert len(set(codes)) == 4
    assert all(f"{code} " in console.EXIT_CODES for code in codes)
    broken = typer.Typer()

    @broken.command()
    def fails() -> None:
        raise RemovedError("the admin has removed this peer")

    monkeypatch.setattr(sys, "argv", ["coterie"])
    with pytest.raises(SystemExit) as ended:
        console.run(broken)
    assert ended.value.code == console.REMOVED
    assert "removed" in capsys.readouterr().err


def test_a_full_disk_at_the_start_is_for_later(ann):
    """A supervisor may try again: the exit code is not that of bad input."""
    (ann / "rows.csv").write_text("a,b,y\n1,0,yes\n0,1,no\n1,2,no\n")
    run = [sys.executable, "-m", "coterie", "peer", "run", str(ann), "--data", str(ann / "rows.csv")]
    done = subprocess.run(["sh", "-c", 'ulimit -f 0; exec "$@"', "sh", *run], capture_output=True, text=True)
    assert done.returncode == console.NOT_NOW, done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_a_port_that_is_taken_is_for_later_too(tmp_path):
    """As the page for the IT department says; of a relay as of a peer."""
    made(tmp_path / "club")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        enroll(tmp_path / "club", tmp_path / "ann", "ann", where)
        typed("peer", "init", tmp_path / "hub", "--listen", where)
        typed("group", "invite", tmp_path / "club", tmp_path / "hub/hub.request", "--relay")
        typed("group", "join", tmp_path / "hub", tmp_path / "hub/hub.invitation")
        for words in (["peer", "run", str(tmp_path / "ann")], ["relay", str(tmp_path / "hub")]):
            done = subprocess.run([sys.executable, "-m", "coterie", *words], capture_output=True, text=True, timeout=60)
            assert done.returncode == console.NOT_NOW, (words, done.stderr)
            assert "in use" in done.stderr
            assert "Traceback" not in done.stderr


def test_a_status_says_which_model_is_served_until_when_and_what_the_error_was(group, tmp_path):
    """What README and peers.md promise of it."""
    status = status_of(program_of(group, tmp_path)) | {"running": True, "pid": 1, "score": 1.5, "score_alone": 0.0}
    status |= {"served": "together", "why": "not clearly worse", "scored_on": "own rows", "rows_aside": 0}
    status |= {"certificate_expires": "2031-02-03T00:00:00+00:00"}
    table = shown(status | {"errors": {"data": 1}, "last_error": "the rows could not be read [again]"})
    assert "together: not clearly worse" in table
    assert "until 2031-02-03" in table
    assert "own rows, which it has learned from" in table
    assert "1 data; the last one: the rows could not be read [again]" in table
    assert "1.5 together, 0 alone" in table
    assert "together" not in shown(status | {"served": "own", "why": "so far"})  # there is nothing to compare yet


def test_a_failed_enrolment_leaves_no_identity_in_the_way(tmp_path):
    made(tmp_path / "club")
    with pytest.raises(DataError, match="is not a member"):
        enroll(tmp_path / "club", tmp_path / "ann", "ann", edges={"bbo": 1.0})
    assert not [*(tmp_path / "ann").iterdir()]
    assert enroll(tmp_path / "club", tmp_path / "ann", "ann").me.name == "ann"


def test_a_second_peer_at_the_same_port_is_noted(tmp_path):
    made(tmp_path / "club")
    first, second = (
        typed("peer", "init", tmp_path / name, "--group", tmp_path / "club", "--listen", "127.0.0.1:7447")
        for name in ("ann", "bob")
    )
    assert "note" not in first
    made(tmp_path / "graph", objective="personalized")
    lonely = [typed("peer", "init", tmp_path / f"g{k}", "--group", tmp_path / "graph") for k in range(2)]
    assert ["no neighbours yet" in text for text in lonely] == [False, True]
    assert "ann and bob are at 127.0.0.1:7447" in " ".join(second.split())
