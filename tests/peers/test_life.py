"""The life of a group, as typed: removal, revocation, a fork that is healed, a second admin and a hand-over."""

import os
import shutil
import socket
import subprocess
import sys

import pytest
from processes import status, until
from typed import said, typed

from coterie.errors import DataError, IdentityError, RemovedError
from coterie.peers.group.records import encoded
from coterie.peers.group.roster import Fork


def shown(*arguments):
    """What people see, on one line."""
    return " ".join(typed(*arguments).split())


@pytest.fixture
def club(tmp_path):
    said("group", "create", tmp_path / "club", "--features", "x", "--target", "y")
    for name in ("ann", "bob"):
        said("peer", "init", tmp_path / name, "--group", tmp_path / "club", "--listen", "127.0.0.1:7447")
    said("peer", "update", tmp_path / "ann", tmp_path / "club/roster")
    return tmp_path / "club"


@pytest.mark.slow
def test_a_removed_peer_says_so_with_a_code_of_its_own(tmp_path, club):
    assert "coterie peer update" in shown("group", "remove", club, "bob")
    with pytest.raises(RemovedError):
        said("peer", "update", tmp_path / "bob", club / "roster")
    command = [sys.executable, "-m", "coterie", "peer", "run", str(tmp_path / "bob"), "--data", "none.csv"]
    for _ in range(2):
        done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"COTERIE_PLAIN": "1"})
        assert done.returncode == 5
        assert "has removed it from the group (version 4)" in done.stderr


def test_a_lost_tls_key_as_typed(tmp_path, club):
    text = shown("group", "revoke", club, "bob")
    assert "coterie group request FOLDER --new-tls-key" in text
    said("peer", "update", tmp_path / "bob", club / "roster")
    assert len(said("group", "show", tmp_path / "bob")["revoked"]) == 1
    assert "revoked certificates: 1" in shown("group", "show", club)
    said("group", "request", tmp_path / "bob", "--new-tls-key")
    said("group", "invite", club, tmp_path / "bob/bob.request")
    assert said("group", "join", tmp_path / "bob", tmp_path / "bob/bob.invitation")["members"] == 2
    assert said("group", "remove", club, "bob", "--revoke")["members"] == ["ann"]
    assert len(said("group", "show", club)["revoked"]) == 2


@pytest.mark.slow
def test_a_fork_as_typed(tmp_path, club):
    shutil.copytree(club, tmp_path / "backup")
    said("group", "edge", club, "ann", "bob")
    said("peer", "update", tmp_path / "ann", club / "roster")
    shutil.rmtree(club)
    (tmp_path / "backup").rename(club)
    said("peer", "init", tmp_path / "eve", "--group", club)
    with pytest.raises(DataError, match="has forked"):
        said("peer", "update", tmp_path / "ann", club / "roster")
    (compared,) = said("group", "show", club, tmp_path / "ann/roster")["compared"]
    assert "has forked" in compared
    both = Fork((tmp_path / "ann/roster").read_bytes(), (club / "roster").read_bytes())
    (tmp_path / "ann/fork").write_bytes(encoded(both))
    assert "differ in eve" in shown("group", "show", tmp_path / "ann")
    assert len(said("group", "show", club, tmp_path / "ann/fork")["compared"]) == 2
    shutil.copytree(club, tmp_path / "again")
    assert "Invite again" in shown("group", "update", tmp_path / "again", tmp_path / "ann/roster")
    healed = said("group", "update", club, tmp_path / "ann/roster")
    assert healed == {"version": 5, "healed": True, "invite_again": ["eve"]}
    assert said("peer", "update", tmp_path / "ann", club / "roster") == {"version": 5}
    assert "both are version 5" in shown("group", "show", club, tmp_path / "ann/roster")
    assert "is newer than this, version 3" in shown("group", "show", tmp_path / "bob", club / "roster")


@pytest.mark.slow
def test_admins_as_typed(tmp_path, club):
    second = tmp_path / "second"
    assert "coterie group admin add" in shown("group", "admin", "init", second)
    text = shown("group", "admin", "add", club, second / "admin.request", "-o", tmp_path / "delegation")
    assert "coterie group admin accept" in text
    run = said("group", "show", club)["run"]
    assert said("group", "admin", "accept", second, tmp_path / "delegation", "--run", run) == {"run": run, "version": 4}
    assert said("peer", "init", tmp_path / "eve", "--group", second)["run"] == run
    assert said("group", "update", club, second / "roster")["version"] == 5
    keys = said("group", "show", club)["admins"]
    assert len(keys) == 2
    assert f"admins: {keys[0][:8]}, {keys[1][:8]}" in shown("group", "show", club)
    said("peer", "update", tmp_path / "ann", club / "roster")
    third = tmp_path / "third"
    said("group", "admin", "init", third)
    said("group", "admin", "hand-over", second, third / "admin.request")
    said("group", "admin", "accept", third, third / "admin.delegation")
    with pytest.raises(IdentityError, match="handed over"):
        said("group", "edge", second, "ann", "bob")
    said("group", "update", club, third / "roster")
    others = set(said("group", "show", club)["admins"])
    (key,) = {one for one in others if one not in keys}
    assert "coterie group update" in shown("group", "admin", "hand-over", club, key[:8])
    said("group", "update", third, club / "roster")
    assert said("group", "show", third)["admins"] == [key]
    said("group", "edge", third, "ann", "bob", "--weight", "0")
    said("peer", "update", tmp_path / "ann", third / "roster")
    assert said("group", "show", tmp_path / "ann")["edges"] == [[0, 2, 1.0], [1, 2, 1.0]]


# -- processes -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_who_was_removed_while_away_and_who_runs_twice_are_told(tmp_path, processes):
    said("group", "create", tmp_path / "club", "--features", "x", "--target", "y")
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        ports = [sock.getsockname()[1] for sock in (one, other)]
    said("peer", "init", tmp_path / "ann", "--group", tmp_path / "club", "--listen", f"127.0.0.1:{ports[0]}")
    said("peer", "init", tmp_path / "bob", "--group", tmp_path / "club", "--edge", "ann")
    eve = ("peer", "init", tmp_path / "eve", "--group", tmp_path / "club", "--listen", f"127.0.0.1:{ports[1]}")
    said(*eve, "--edge", "ann")
    said("peer", "update", tmp_path / "ann", tmp_path / "club/roster")
    (tmp_path / "rows.csv").write_text("x,y\n1,2\n2,4\n3,6.5\n4,8\n")
    rows = ("--data", "rows.csv")
    for name in ("ann", "bob"):
        processes.start(name, *rows)
    until(lambda: any(edge["answered"] for edge in status(tmp_path / "ann")["edges"]))
    said("group", "remove", tmp_path / "club", "eve")
    said("peer", "update", tmp_path / "ann", tmp_path / "club/roster")
    assert processes.start("eve", *rows).wait(90) == 5
    assert "has removed this peer from the group" in (tmp_path / "eve.log").read_text()
    # A copy of ann's folder cannot listen; one of bob's, who listens nowhere, runs, and both get to know.
    for name in ("ann", "bob"):
        shutil.copytree(
            tmp_path / name, tmp_path / f"{name}2", ignore=shutil.ignore_patterns("lock", "live", "status.json")
        )
    assert processes.start("ann2", *rows).wait(90) == 6
    assert "another copy of ann2" in (tmp_path / "ann2.log").read_text()
    processes.start("bob2", *rows)
    told = [tmp_path / name for name in ("ann", "bob", "bob2")]
    until(lambda: all("duplicate" in status(folder)["alerts"] for folder in told), seconds=200)
    for name in ("bob", "bob2"):
        assert "another process runs with this identity" in (tmp_path / f"{name}.log").read_text()
    assert "disk" not in status(tmp_path / "ann")["errors"]
