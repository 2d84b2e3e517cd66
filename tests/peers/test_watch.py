"""The page of ``coterie watch``, without a browser: who may see it, and what it is told."""

from __future__ import annotations

import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time

import numpy as np
import pytest
from typed import typed
from watched import lab_folder, peer_folder, recording

import coterie as ct
from coterie.errors import IdentityError, ParameterError
from coterie.peers.app.watch import history as histories
from coterie.peers.app.watch.history import History, bands_of
from coterie.peers.app.watch.server import Server, Watch
from coterie.peers.app.watch.sources import LabSource, PeerSource, SimulationSource, source_of

pytestmark = pytest.mark.plain


@pytest.fixture
def server(tmp_path):
    with Server(PeerSource(peer_folder(tmp_path / "ann")), every=0.05) as running:
        yield running


def ask(server, path=None, method="GET", **headers):
    """Status, headers and body of an answer; ``path`` is within what the token opens."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    target = f"/{server.token}/{path}" if path is None or not path.startswith("/") else path
    connection.putrequest(method, target if path is not None else "/", skip_host=True)
    for name, value in ({"Host": f"127.0.0.1:{server.port}"} | headers).items():
        if value is not None:
            connection.putheader(name.replace("_", "-"), value)
    connection.endheaders()
    answer = connection.getresponse()
    body = answer.read()
    connection.close()
    return answer.status, dict(answer.getheaders()), body


def told(server, path):
    status, _, body = ask(server, path)
    assert status == 200
    return json.loads(body)


# -- who may see it ----------------------------------------------------------------------------------------------------


#: Paths of files that are none of the page's, whatever token is before them.
OTHER_FILES = (
    "../watch.py", "..%2fserver.py", "server.py", "%2e%2e/%2e%2e/identity.json", "identity.json", "//etc/passwd",
    "/etc/passwd", "index.html", "watch.js/", "sign.key",
)  # fmt: skip


def test_there_is_nothing_without_the_token_from_elsewhere_or_but_its_own_files(server):
    token, port = server.token, server.port
    wrong = token[:-1] + ("A" if token[-1] != "A" else "B")
    paths = ["/", "/watch.js", "/state.json", f"/{wrong}/", f"/{token[:-1]}/", f"/{token}x/", "//", "/%C3%A9"]
    hosts = ["evil.example", f"evil.example:{port}", "127.0.0.1", f"127.0.0.1:{port + 1}", "", None]
    refused = [({"path": path}, 403) for path in paths] + [({"path": "", "Host": host}, 403) for host in hosts]
    refused += [({"path": "state.json", "method": "POST"}, 405), ({"path": "state.json", "method": "TRACE"}, 405)]
    for request, expected in refused:
        status, headers, body = ask(server, **request)
        assert status == expected, request
        assert token.encode() not in body
        assert expected == 403 or headers["Allow"] == "GET"
    assert all(ask(server, path)[0] in (403, 404) for path in OTHER_FILES)
    assert len(token) >= 32
    assert ask(server, "")[0] == ask(server, "state.json", Host=f"localhost:{port}")[0] == 200


def test_headers_keep_everything_else_out(server):
    for path in ("", "watch.js", "watch.css", "icon.svg", "state.json", "nothing", "/"):
        _, headers, _ = ask(server, path, Origin="http://evil.example")
        policy = headers["Content-Security-Policy"]
        assert policy.startswith("default-src 'none';")
        assert "unsafe" not in policy
        assert "http" not in policy
        assert "frame-ancestors 'none'" in policy
        assert not [name for name in headers if name.lower().startswith("access-control")]
        assert headers["Cache-Control"] == "no-store"
        assert headers["Referrer-Policy"] == "no-referrer"
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Cross-Origin-Resource-Policy"] == "same-origin"


def test_it_listens_on_loopback_alone(server):
    assert server._http.server_address[0] == "127.0.0.1"
    others = [address for *_, (address, *_) in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)]
    for address in {address for address in others if not address.startswith("127.")}:
        with pytest.raises(OSError, match=r".*"):
            socket.create_connection((address, server.port), timeout=1).close()


def test_a_ticket_opens_the_page_once(server):
    ticket = "/" + server.ticket_url.rpartition("/")[2]
    assert server.token not in server.ticket_url
    status, headers, _ = ask(server, ticket)
    assert (status, headers["Location"]) == (303, f"/{server.token}/")
    assert ask(server, ticket)[0] == 403
    assert ask(server, "/")[0] == 403


def test_the_page_refers_to_nothing_elsewhere(server):
    for path in ("", "watch.js", "watch.css", "icon.svg"):
        text = ask(server, path)[2].decode().replace("http://www.w3.org/2000/svg", "")
        assert not re.search(r"https?:|//[a-z0-9]+\.|@import|url\(", text), path
        assert "innerHTML" not in text
        assert not re.search(r"<script(?! src=\"watch.js\")|style=|onclick|eval\(", text)


def test_idle_connections_do_not_close_the_page(server):
    idle = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(40)]
    try:
        assert ask(server, "state.json")[0] == 200
    finally:
        for one in idle:
            one.close()


# -- what it is told ---------------------------------------------------------------------------------------------------


def test_a_peer_and_its_group(tmp_path):
    folder = peer_folder(tmp_path / "ann", private=True)
    with Server(source_of(folder)) as server:
        state = told(server, "state.json")
        assert (state["kind"], state["title"], state["state"], state["me"]) == ("peer", "ann", "running", "ann")
        assert (state["epsilon"], state["releases"], state["releases_left"]) == (1.0, 3, 37)
        assert state["errors"] == ["disk (2)"]
        rows = {row["name"]: row for row in state["agents"]}
        assert list(rows) == ["ann", "bob", "cleo", "dan"]
        assert rows["bob"]["state"] == "connected"
        assert rows["cleo"]["state"] == "not connected"
        assert (rows["dan"]["state"], rows["dan"]["score"], rows["dan"]["age"]) == ("reported", 0.71, 12.0)
        assert told(server, "edges.json")["edges"] == [[0, 1, 1.0, True, 0.75], [0, 2, 0.5, False, 0.1]]
        detail = told(server, "agent.json?name=ann")
        assert detail["together"] == [0.8]
        senders = {row["name"]: row for row in detail["senders"]}
        assert (senders["bob"]["messages"], senders["bob"]["refused"]) == (40, {"norm": 3})
        assert senders["eve"]["refused"] == {"signature": 9}


def test_a_peer_that_does_not_run_says_how_to_start_it(tmp_path):
    folder = tmp_path / "ann"
    folder.mkdir()
    (folder / "identity.json").write_text("{}")
    source = source_of(folder)
    view = source.look()
    assert view.facts["state"] == "waiting"
    assert f"coterie peer run {folder}" in view.facts["message"]
    peer_folder(folder, pid=2**22 + 1)
    assert source.look().facts["state"] == "stopped"
    peer_folder(folder, at=time.time() - 100)
    assert source.look().facts["state"] == "stale"
    for file in folder.iterdir():
        file.unlink()
    folder.rmdir()
    assert source.look().facts["state"] == "missing"


def test_alerts_and_proposals_are_told(tmp_path):
    proposal = {"run": "1" * 32, "changes": "rate 2 in place of 1", "accept": "coterie peer accept ann"}
    folder = peer_folder(tmp_path / "ann", alerts={"fork": "two rosters"}, proposal=proposal)
    facts = source_of(folder).look().facts
    assert facts["errors"] == ["fork", "disk (2)"]
    told = [event["what"] for event in facts["events"]]
    assert told[0] == "two rosters"
    assert "coterie peer accept ann" in told[-1]


def test_a_relay(tmp_path):
    folder = tmp_path / "hub"
    folder.mkdir()
    status = {"name": "hub", "relay": "10.0.0.1:7447", "run": "0" * 32, "pid": os.getpid(), "members": 3}
    (folder / "status.json").write_text(json.dumps(status | {"connected": ["ann", "bob"], "at": time.time()}))
    view = source_of(folder).look()
    assert (view.facts["kind"], view.facts["state"]) == ("relay", "running")
    assert [row["name"] for row in view.agents] == ["ann", "bob"]


def test_a_lab(tmp_path):
    folder = lab_folder(tmp_path / "lab", 6)
    view = source_of(folder).look()
    assert isinstance(source_of(folder), LabSource)
    assert [row["name"] for row in view.agents] == [f"p{i}" for i in range(6)]
    assert [row["state"] for row in view.agents] == ["up", "up", "up", "up", "killed", "starting"]
    assert view.facts["gap"] == 0.01
    assert view.facts["events"][0] == {"at": 7.5, "what": "killed p4"}
    edges = {(a, b): alive for a, b, _, alive, _ in view.edges}
    assert edges[0, 1] is True
    assert edges[3, 4] is False


def test_another_lab_in_the_same_folder_begins_anew(tmp_path):
    folder = lab_folder(tmp_path / "lab", 4)
    watch = Watch(source_of(folder))
    watch.look()
    before = watch.answer("history.json", {})
    assert len(before["times"]) == 1
    lab_folder(folder, 4, run="f" * 32)
    watch.look()
    query = {"generation": [str(before["generation"])], "begin": ["1"]}
    after = watch.answer("history.json", query)
    assert (after["begin"], len(after["times"])) == (0, 1)
    assert after["generation"] != before["generation"]


def test_a_recording_is_read_on(tmp_path):
    path = tmp_path / "run.jsonl"
    source = source_of(path)
    assert isinstance(source, SimulationSource)
    assert source.look().facts["state"] == "waiting"
    recording(path, 5, 3)
    view = source.look()
    assert (len(view.agents), len(view.edges), [moment for moment, _ in view.scores]) == (5, 5, [1, 2, 3])
    with path.open("a") as file:
        file.write('{"at": 1.0, "scores": [1, 1')
        file.flush()
        assert source.look().scores == []
        file.write(", 1, 1, null]}\n")
    view = source.look()
    assert view.scores[0][1]["a0"][0] == 1
    assert view.agents[4]["score"] is None
    path.write_text("something else\n")
    assert source.look().facts["state"] == "missing"


def test_a_recorder_writes_what_watch_reads(tmp_path):
    rng = np.random.default_rng(0)
    problem = ct.Problem.propagation(rng.normal(size=(6, 2)), ct.graphs.ring(6), alpha=0.5)
    recorder = ct.observers.FileRecorder(tmp_path / "run.jsonl", problem)
    run = ct.simulate(problem, "cd", wakes=30, every=10, observe=recorder)
    watch = Watch(source_of(recorder.path))
    watch.look()
    state = watch.answer("state.json", {})
    assert (state["kind"], state["moments"], state["score"]) == ("simulation", 4, {"name": "loss", "higher": False})
    assert [row["name"] for row in state["agents"]] == [str(name) for name in problem.members]
    line = watch.answer("history.json", {})
    assert line["times"] == [1, 2, 3, 4]
    assert run.trace["loss"].iloc[-1] == pytest.approx(problem.losses(run.theta).mean(), rel=1e-4)
    with pytest.raises(ParameterError, match="jsonl"):
        ct.observers.FileRecorder(tmp_path / "run.txt", problem)
    with pytest.raises(ParameterError, match="one number for each"):
        ct.observers.FileRecorder(tmp_path / "run.jsonl", problem, score=lambda theta: 1.0)


def test_what_cannot_be_watched_is_refused(tmp_path):
    with pytest.raises(IdentityError, match="cannot be watched"):
        source_of(tmp_path / "nowhere")
    (tmp_path / "admin.key").touch()
    with pytest.raises(IdentityError, match="admin"):
        typed("watch", tmp_path, "--no-browser")


def test_damaged_files_do_not_end_the_watch(tmp_path):
    folder = peer_folder(tmp_path / "ann")
    with Server(source_of(folder), every=0.01) as server:
        for content in ("{", "[]", "null", '{"name": 3}', '{"edges": 4, "name": "x"}', '{"pid": "x", "name": "x"}'):
            (folder / "status.json").write_text(content)
            time.sleep(0.05)
            told(server, "state.json")
        peer_folder(folder)
        deadline = time.monotonic() + 10.0
        while told(server, "state.json")["state"] != "running":
            assert time.monotonic() < deadline
            time.sleep(0.02)


# -- history -----------------------------------------------------------------------------------------------------------


def test_history_is_bounded_and_spans_everything():
    history, page = History(moments=50), {"generation": -1, "times": []}
    for k in range(1000):
        history.add(float(k), {"a": (k / 1000, 0.5), "b": (None, None)})
        assert len(history.times) <= 50
        news = history.since(page["generation"], len(page["times"]))  # told from where the page is
        kept = page["times"][: news["begin"]] if news["generation"] == page["generation"] else []
        page = {"generation": news["generation"], "times": kept + news["times"]}
        assert page["times"] == history.times
    assert history.since(history.generation, len(history.times))["times"] == []
    assert history.times[0] == 0.0
    assert history.times[-1] > 950.0
    curve = history.of("a")["together"]
    assert curve == pytest.approx([time / 1000 for time in history.times], abs=1e-5)
    assert set(history.of("b")["together"]) == {None}
    steps = np.diff(history.times)
    assert steps.max() <= 2 * steps.min()


def test_many_agents_are_told_as_bands_and_members_may_join():
    history = History()
    few = {f"a{k}": (float(k), float(-k)) for k in range(histories.MAX_LINES)}
    history.add(0.0, few)
    assert history.since(-1, 0)["lines"]["a3"] == [3.0]
    history.add(1.0, few | {"late": (7.0, None)})
    found = history.since(-1, 0)
    assert "lines" not in found
    assert history.of("late")["together"] == [None, 7.0]
    assert history.of("nobody")["together"] == [None, None]
    assert found["together"][0] == pytest.approx(np.quantile(np.arange(12.0), histories.BANDS), rel=1e-4)
    assert bands_of([]) == [None] * 5


# -- the command -------------------------------------------------------------------------------------------------------


def test_the_command_starts_at_once_and_ends_by_ctrl_c(tmp_path):
    folder = peer_folder(tmp_path / "ann")
    began = time.monotonic()
    command = [sys.executable, "-m", "coterie", "watch", str(folder), "--no-browser"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        url = process.stdout.readline().strip()
        took = time.monotonic() - began
        found = re.fullmatch(r"http://127\.0\.0\.1:(\d+)/([\w-]{32,})/", url)
        assert found, url
        connection = http.client.HTTPConnection("127.0.0.1", int(found[1]), timeout=10)
        connection.request("GET", f"/{found[2]}/state.json")
        assert json.loads(connection.getresponse().read())["title"] == "ann"
        connection.close()
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 0
        assert "Traceback" not in process.stderr.read()
    assert took < 5.0  # half a second where nothing else runs


def test_watching_loads_little():
    code = (
        "import sys, coterie.cli.watch, coterie.peers.app.watch.server; "
        "print(*[m for m in ('numpy', 'pandas', 'scipy', 'numba', 'cryptography') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == ""
