"""The ledger never lets more be sent than was planned: under kill -9, at every system call, and on damaged files."""

from __future__ import annotations

import copy
import errno
import itertools
import json
import os
import pickle
import random
import signal
import stat
import threading
import time
import traceback
from dataclasses import replace
from pathlib import Path

import numba
import numpy as np
import pytest

from coterie import _journal
from coterie.accounting.plans import make_plan
from coterie.core.private.account import ACCOUNT, NOTHING, RELEASES, SPENT, debit
from coterie.errors import BudgetError, LedgerError, MissingExtra, ParameterError
from coterie.privacy import ledger as module
from coterie.privacy.ledger import Ledger

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork"),
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
]

REAL = {name: getattr(os, name) for name in ("open", "write", "pwrite", "fsync", "ftruncate", "replace", "close")}


@pytest.fixture(autouse=True)
def _quick(request, monkeypatch):
    """Not to wait for the disk where only the order of the calls matters, or what they leave."""
    if "kill_9" not in request.node.name:
        monkeypatch.setattr(os, "fsync", lambda fd: None)
        monkeypatch.setitem(REAL, "fsync", lambda fd: None)


def plan_of(steps, **other):
    return make_plan(**{"epsilon": 1.0, "delta": 1e-5, "steps": steps, **other})


def filled(path, steps=5, debits=3):
    """A closed ledger with some debits."""
    with Ledger(plan_of(steps), path) as ledger:
        for _ in range(debits):
            ledger.debit()
    return path


def forked(work):
    """Start a process that does some work. Its exit code is 0, or 1 if the work raised."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        work()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(code)


def ended(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def broadcast(path, k):
    """What a peer does once it has drawn its noise: others now know release k."""
    fd = REAL["open"](path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    REAL["write"](fd, bytes([k]))
    REAL["fsync"](fd)
    REAL["close"](fd)


def sent(path):
    return list(path.read_bytes()) if path.exists() else []


def use_up(path, air):
    """Go on until nothing is left."""
    with Ledger.open(path) as ledger:
        while not ledger.exhausted:
            broadcast(air, ledger.debit())
        with pytest.raises(BudgetError):
            ledger.debit()
        return ledger.releases


# -- the rule --------------------------------------------------------------------------------------------------------


def test_the_rule():
    account, cost = np.zeros(ACCOUNT), np.array([0.5, 0.25, 0.25])
    assert [debit(account, cost, 1.0) for _ in range(5)] == [0, 1, 2, NOTHING, NOTHING]
    assert account[RELEASES] == 3
    assert account[SPENT] == 1.0


@pytest.mark.parametrize(
    ("cost", "limit"),
    [([0.6], 0.5), ([np.nan], 1.0), ([-1.0], 1.0), ([np.inf], 1.0), ([0.1], np.nan), ([], 1.0), ([0.0], -1.0)],
)
def test_a_refusal_changes_nothing(cost, limit):
    account = np.zeros(ACCOUNT)
    assert debit(account, np.array(cost, dtype=float), limit) == NOTHING
    assert not account.any()


def test_rounding_does_not_cost_the_last_release():
    for steps in (3, 10, 49, 1000, 100_000):
        cost = np.full(steps, 1.0 / steps)
        account = np.zeros(ACCOUNT)
        while debit(account, cost, 1.0) != NOTHING:
            pass
        assert account[RELEASES] == steps
    account = np.zeros(ACCOUNT)
    assert debit(account, np.array([1.0 + 1e-9]), 1.0) == NOTHING


@pytest.mark.compiled
def test_the_rule_is_the_same_when_compiled():
    @numba.njit
    def compiled(account, cost, limit):
        return debit(account, cost, limit)

    rng = np.random.default_rng(0)
    for _ in range(50):
        cost = rng.exponential(size=rng.integers(0, 9))
        limit = rng.uniform(0.3, 1.2) * cost.sum()
        one, other = np.zeros(ACCOUNT), np.zeros(ACCOUNT)
        for _ in range(10):
            assert debit(one, cost, limit) == compiled(other, cost, limit)
            assert np.array_equal(one, other)


# -- in memory and on disk -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("durable", [False, True])
def test_an_account_of_releases(tmp_path, durable):
    plan = plan_of(3)
    with Ledger(plan, tmp_path / "ledger" if durable else None) as ledger:
        assert (ledger.releases, ledger.left, ledger.exhausted, ledger.sessions, ledger.kept) == (0, 3, False, 1, [])
        assert ledger.debit() == 0
        assert (ledger.releases, ledger.left) == (1, 2)
        assert ledger.spent == plan.spent(1) < ledger.committed == plan.epsilon
        assert [ledger.debit(), ledger.debit()] == [1, 2]
        assert ledger.exhausted
        with pytest.raises(BudgetError, match=r"split for 3 releases, and all 3 were made; nothing was sent"):
            ledger.debit()
        assert ledger.releases == 3
        assert ledger.spent == pytest.approx(plan.epsilon, rel=1e-6)
        assert ledger.plan.digest == plan.digest


def test_what_was_spent_stays_spent(tmp_path):
    path = tmp_path / "ledger"
    numbers = []
    for session in range(1, 4):
        with Ledger(plan_of(3), path) as ledger:
            assert (ledger.sessions, ledger.releases) == (session, session - 1)
            assert ledger.account.tolist() == [session - 1, pytest.approx(sum(plan_of(3).cost[: session - 1]))]
            numbers.append(ledger.debit())
    assert numbers == [0, 1, 2]
    with Ledger.open(path) as ledger, pytest.raises(BudgetError):
        ledger.debit()
    kinds = [json.loads(line)["kind"] for line in path.read_text().splitlines()]
    assert kinds == ["plan", "boot", "debit", "boot", "debit", "boot", "debit", "boot"]


def test_its_files_are_for_the_owner_only(tmp_path):
    with Ledger(plan_of(3), tmp_path / "ledger") as ledger:
        ledger.debit()
        ledger.keep([b"letter"])
    files = sorted(tmp_path.iterdir())
    assert [file.name for file in files] == ["ledger", "ledger.head", "ledger.kept"]
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}


def test_a_record_is_on_disk_before_debit_returns(tmp_path, monkeypatch):
    with Ledger(plan_of(3), tmp_path / "ledger") as ledger:
        calls = []
        for name in ("pwrite", "fsync", "replace"):
            monkeypatch.setattr(os, name, lambda *a, name=name: (calls.append(name), REAL[name](*a))[1])
        ledger.debit()
        assert calls == ["pwrite", "fsync", "pwrite", "fsync", "replace"]  # the record, then the head
        calls.clear()
        ledger.keep([b"letter"])
        assert calls == ["pwrite", "fsync", "replace", "fsync"]  # the messages, then their name


def test_relative_paths_survive_a_change_of_directory_and_links_share_a_head(tmp_path, monkeypatch):
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    with Ledger(plan_of(3), "ledger") as ledger:
        monkeypatch.chdir(tmp_path / "elsewhere")
        ledger.debit()
    (tmp_path / "elsewhere" / "link").symlink_to(tmp_path / "ledger")
    with Ledger.open("link") as ledger:
        assert ledger.debit() == 1
    assert [file.name for file in (tmp_path / "elsewhere").iterdir()] == ["link"]


def test_repr(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    ledger = Ledger(plan_of(4))
    ledger.debit()
    assert repr(ledger) == "Ledger(gaussian, 1 of 4 releases made, epsilon=1 at delta=1e-05 committed, in memory)"
    with Ledger(plan_of(4), "a.ledger") as ledger:
        pass
    assert repr(ledger).endswith(
        "0 of 4 releases made, epsilon=1 at delta=1e-05 committed, 'a.ledger', session 1, closed)"
    )


def test_threads_share_a_ledger(tmp_path):
    numbers = []
    with Ledger(plan_of(64), tmp_path / "ledger") as ledger:
        threads = [
            threading.Thread(target=lambda: [numbers.append(ledger.debit()) for _ in range(8)]) for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert ledger.exhausted
    assert sorted(numbers) == list(range(64))


# -- crashes ---------------------------------------------------------------------------------------------------------


def lives(plan, path, air, seed, most):
    """Open, debit, broadcast, as fast as possible, killed at random times and started again. How many lives it took."""
    rng = random.Random(seed)

    def live():
        with Ledger(plan, path) as ledger:
            while not ledger.exhausted:
                broadcast(air, ledger.debit())

    for life in itertools.count(1):
        goal = len(sent(air)) + rng.randrange(15)  # in terms of work, so that a fast machine is killed as often
        pid = forked(live)
        over, status = os.waitpid(pid, os.WNOHANG)
        while not over and len(sent(air)) < goal:
            time.sleep(0.0002)
            over, status = os.waitpid(pid, os.WNOHANG)
        if not over:
            time.sleep(rng.uniform(0.0, 0.003))
            os.kill(pid, signal.SIGKILL)
            _, status = os.waitpid(pid, 0)
        code = os.waitstatus_to_exitcode(status)
        assert code in (0, -signal.SIGKILL)
        if code == 0 or len(sent(air)) > most:
            return life
        if path is not None and path.exists() and path.stat().st_size:
            with Ledger(plan, path) as ledger:
                assert ledger.releases >= len(sent(air))
    return None


@pytest.mark.parametrize("seed", [0, 1])
def test_kill_9_never_overspends(tmp_path, seed):
    plan, path, air = plan_of(100), tmp_path / "ledger", tmp_path / "air"
    count = lives(plan, path, air, seed, most=100)
    assert count > 3, "killed too late to mean anything"
    broadcasts = sent(air)
    assert 50 < len(broadcasts) <= 100
    assert len(set(broadcasts)) == len(broadcasts), "two broadcasts with the noise of one release"
    with Ledger.open(path) as ledger:
        assert ledger.releases == 100
        assert ledger.exhausted


def test_kill_9_makes_a_volatile_ledger_overspend(tmp_path):
    lives(plan_of(100), None, tmp_path / "air", 0, most=100)
    assert len(sent(tmp_path / "air")) > 100


class Stop:
    """Ends the process at the k-th system call that changes anything, and leaves what a crash there might leave.

    ======  ==========================================================================
    before  the call is not made
    half    half of what is written is written
    lost    the power fails: of the ledger, what was not synced is gone
    zeros   the power fails: the ledger has its new length, and zeros in the new place
    ======  ==========================================================================
    """

    CODE = 99

    def __init__(self, path, k=-1, how=""):
        self.path, self.k, self.how = path, k, how
        self.points = []  # of a crash that differ
        self.durable = self.content()
        for name in REAL:
            setattr(os, name, lambda *arguments, name=name: self.call(name, *arguments))
        self.made = 0

    def content(self):
        return self.path.read_bytes() if self.path.exists() else b""

    def call(self, name, *arguments):
        if self.made == self.k:
            self.stop(name, *arguments)
        self.points.append((self.made, "before"))
        if name == "pwrite":
            self.points.append((self.made, "half"))
        if self.content() != self.durable:
            self.points += [(self.made, "lost"), (self.made, "zeros")]
        self.made += 1
        result = REAL[name](*arguments)
        if name == "fsync":
            self.durable = self.content()
        return result

    def stop(self, name, *arguments):
        if self.how == "half":
            fd, content, start = arguments
            REAL[name](fd, content[: len(content) // 2], start)
        elif self.how in ("lost", "zeros"):
            now, same = self.content(), 0
            while now[: same + 1] == self.durable[: same + 1] and same < len(now):
                same += 1
            left = self.durable if self.how == "lost" else now[:same] + bytes(len(now) - same)
            fd = REAL["open"](self.path, os.O_WRONLY | os.O_TRUNC)
            REAL["write"](fd, left)
        os._exit(self.CODE)


def crashes(tmp_path, prepare, work):
    """Do the work, stopped at each of its system calls in each way. Yields what each crash leaves."""

    def place(name):
        folder = tmp_path / name
        folder.mkdir()
        prepare(folder / "ledger", folder / "air")
        return folder / "ledger", folder / "air"

    def whole():
        path, air = place("whole")
        stop = Stop(path)
        work(path, air)
        (tmp_path / "points").write_text(json.dumps(stop.points))

    assert ended(forked(whole)) == 0
    yield tmp_path / "whole" / "ledger", tmp_path / "whole" / "air"
    points = json.loads((tmp_path / "points").read_text())
    assert {how for _, how in points} == {"before", "half", "lost", "zeros"}
    for k, how in points:
        path, air = place(f"{k}-{how}")

        def stopped(path=path, air=air, k=k, how=how):
            Stop(path, k, how)
            work(path, air)

        assert ended(forked(stopped)) == Stop.CODE
        yield path, air


def test_a_crash_at_any_system_call_of_a_release(tmp_path):
    def prepare(path, air):
        with Ledger(plan_of(3), path) as ledger:
            broadcast(air, ledger.debit())
            ledger.keep([b"letter 0"])

    def work(path, air):
        with Ledger.open(path) as ledger:
            k = ledger.debit()
            ledger.keep([b"letter 1", b"more"])
            broadcast(air, k)

    seen = []
    for path, air in crashes(tmp_path, prepare, work):
        with Ledger(plan_of(3), path) as ledger:
            seen.append((ledger.releases, len(sent(air)), len(ledger.kept)))
            assert ledger.releases >= len(sent(air))
            assert ledger.kept in ([b"letter 0"], [b"letter 1", b"more"])
            if sent(air) == [0, 1]:
                assert ledger.kept == [b"letter 1", b"more"]
        assert use_up(path, air) == 3
        assert len(sent(air)) <= 3
        assert len(set(sent(air))) == len(sent(air))
    assert len(seen) > 20
    assert {(1, 1, 1), (2, 1, 1), (2, 1, 2), (2, 2, 2)} <= set(seen)


@pytest.mark.slow
def test_a_crash_at_any_system_call_of_the_making(tmp_path):
    def work(path, air):
        with Ledger(plan_of(2), path, identity=path.parent / "key") as ledger:
            (path.parent / "key").touch()
            broadcast(air, ledger.debit())

    for path, air in crashes(tmp_path, lambda *_: None, work):
        content = path.read_bytes() if path.exists() else b""
        if content and not content.strip(b"\0"):  # no ledger yet, and nothing that looks like one
            assert not sent(air)
            with pytest.raises(LedgerError, match="holds no ledger"):
                Ledger(plan_of(2), path, identity=path.parent / "key")
            continue
        with Ledger(plan_of(2), path, identity=path.parent / "key") as ledger:
            assert ledger.releases >= len(sent(air))
        assert use_up(path, air) == 2
        assert len(set(sent(air))) == len(sent(air)) <= 2


@pytest.mark.slow
@pytest.mark.parametrize("rest", [b'{"hash":"0', bytes(500) + b"\n", b"\n"])
def test_a_crash_at_any_system_call_of_a_recovery(tmp_path, rest):
    def prepare(path, air):
        filled(path, steps=4, debits=1)
        broadcast(air, 0)
        with path.open("ab") as file:
            file.write(rest)

    def work(path, air):
        Ledger.open(path).close()

    for path, air in crashes(tmp_path, prepare, work):
        with Ledger.open(path) as ledger:
            assert ledger.releases >= 2, "what was torn may have been sent"
        assert use_up(path, air) == 4
        assert len(set(sent(air))) == len(sent(air)) <= 3


@pytest.mark.slow
@pytest.mark.parametrize("last", ["debit", "boot"])
def test_torn_at_every_byte_of_the_last_record(tmp_path, last):
    path, head = filled(tmp_path / "ledger", steps=5, debits=2), tmp_path / "ledger.head"
    with Ledger.open(path) as ledger:
        if last == "debit":
            ledger.debit()
    content, newest = path.read_bytes(), head.read_bytes()
    *before, record = content.splitlines(keepends=True)
    start, previous = len(content) - len(record), json.loads(before[-1])
    behind = module._canonical({"n": previous["n"], "hash": previous["hash"]}) + b"\n"
    for cut in range(start, len(content) + 1):
        path.write_bytes(content[:cut])
        head.write_bytes(behind)
        with Ledger.open(path) as ledger:
            whole = cut == len(content) and last == "debit"
            assert ledger.releases == (3 if whole or start < cut < len(content) else 2)
        recovered = [record for line in path.read_text().splitlines() if "recovered" in (record := json.loads(line))]
        assert len(recovered) == (start < cut < len(content))
        with Ledger.open(path) as ledger:
            assert ledger.debit() == (3 if recovered or whole else 2)
        # Once the head knows the record, it was whole: no crash cuts it.
        path.write_bytes(content[:cut])
        head.write_bytes(newest)
        if cut < len(content):
            with pytest.raises(LedgerError, match="older than what was already spent"):
                Ledger.open(path)
            assert path.read_bytes() == content[:cut]


def test_a_torn_record_of_a_spent_ledger_is_cut_off(tmp_path):
    path = filled(tmp_path / "ledger", steps=2, debits=2)
    for rest in (b"{", b"\0\0\n"):
        with path.open("ab") as file:
            file.write(rest)
        with Ledger.open(path) as ledger:
            assert ledger.releases == 2
            assert ledger.exhausted
    with Ledger.open(path) as ledger:
        assert ledger.sessions == 4


# -- damage ----------------------------------------------------------------------------------------------------------


def test_any_flipped_byte_is_noticed(tmp_path):
    path = filled(tmp_path / "ledger", debits=2)
    content = path.read_bytes()
    rng = random.Random(0)
    for place in range(len(content)):
        damaged = bytearray(content)
        damaged[place] ^= rng.choice((1, rng.randrange(1, 256)))
        path.write_bytes(damaged)
        with pytest.raises(LedgerError):
            Ledger.open(path)
        assert path.read_bytes() == damaged
    path.write_bytes(content)
    Ledger.open(path).close()


def lines_of(change):
    def damage(path):
        lines = path.read_bytes().splitlines(keepends=True)
        path.write_bytes(b"".join(change(lines)))

    return damage


def head_of(change):
    def damage(path):
        head = path.with_name("ledger.head")
        head.write_bytes(change(json.loads(head.read_text())) if callable(change) else change)

    return damage


HEADS = (
    *(b"", b"{}", b"junk", b"\xff", b"3", b'{"n":"0","hash":1}\n', b'{"hash":"","n":-1}\n', b'{"hash":"a","n":1}'),
    b'{"hash":Infinity,"n":1}\n',
)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        *((head_of(head), r"\.head is damaged") for head in HEADS),
        (head_of(lambda head: module._canonical({**head, "n": head["n"] - 1}) + b"\n"), "older than"),
        (lines_of(lambda x: [*x[:2], *x[3:]]), r"line 3 does not follow"),
        (lines_of(lambda x: [*x[:2], x[3], x[2], *x[4:]]), r"line 3 does not follow"),
        (lines_of(lambda x: [*x[:3], x[2], *x[3:]]), r"line 4 does not follow"),
        (lines_of(lambda x: x[1:]), r"line 1 does not follow"),
        (lines_of(lambda x: [*x[:2], b"\n", *x[2:]]), r"line 3 is not a record"),
        (lines_of(lambda x: [*x[:2], x[2].replace(b"debit", b"boot "), *x[3:]]), r"line 3 does not have its hash"),
        (lines_of(lambda x: [*x[:2], b" " + x[2], *x[3:]]), r"line 3 does not have its hash"),
        (lines_of(lambda x: [*x[:2], b'{"n":1e999}\n', *x[3:]]), r"line 3 does not have its hash"),
        (lines_of(lambda x: x[:-1]), r"older than what was already spent: restored from a backup\?"),
        (lines_of(lambda x: x[:2]), r"older than what was already spent"),
        (lines_of(lambda x: x[:1]), r"older than what was already spent"),
        (lines_of(lambda x: []), r"holds no ledger|older than"),
        (lambda path: path.write_text("not a ledger\nat all\n"), r"line 1 is not a record"),
        (lambda path: path.write_text("a key"), r"holds no ledger"),
        (lambda path: path.unlink(), r"ledger is missing, and .*\.head says that there was one"),
    ],
)
@pytest.mark.parametrize("given", [True, False])
def test_damage_is_refused_and_left_as_it_is(tmp_path, damage, message, given):
    path = filled(tmp_path / "ledger", debits=3)
    damage(path)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    with pytest.raises(LedgerError, match=message):
        Ledger(plan_of(5), path) if given else Ledger.open(path)
    assert before == {file.name: file.read_bytes() for file in tmp_path.iterdir()}


def chained(path, records):
    """A ledger whose hashes are right, whatever it says."""
    previous, lines = module.ORIGIN, []
    for n, fields in enumerate(records):
        record, line = module._record(n, previous, **fields)
        previous = record["hash"]
        lines.append(line)
    path.write_bytes(b"".join(lines))
    path.with_name("ledger.head").write_bytes(module._canonical({"n": 0, "hash": json.loads(lines[0])["hash"]}) + b"\n")


@pytest.mark.parametrize(
    ("first", "records", "message"),
    [
        ({"digest": "0"}, [], "line 1 holds a plan that does not have its digest"),
        ({"plan": {"mechanism": 3}}, [], "line 1 holds no plan"),
        ({"plan": None}, [], "line 1 holds no plan"),
        ({"kind": "boot"}, [], "line 1 is not a plan"),
        ({"format": 2}, [], "is of format 2; this version reads format 1"),
        ({}, [{"kind": "debit", "release": 1}], "line 2 is no session and no debit"),
        ({}, [{"kind": "boot", "boot": 2, "pid": 1}], "line 2 is no session and no debit"),
        ({}, [{"kind": "refund", "release": 0}], "line 2 is no session and no debit"),
        ({}, [{"kind": "debit", "release": k} for k in range(3)], "line 4 debits release 2, which the plan does not"),
    ],
)
def test_records_that_make_no_sense(tmp_path, first, records, message):
    path = tmp_path / "ledger"
    chained(path, [{"kind": "plan", **module._described(plan_of(2)), **first}, *records])
    with pytest.raises(LedgerError, match=message):
        Ledger.open(path)


def test_a_missing_head(tmp_path):
    path = filled(tmp_path / "ledger", debits=1)
    (tmp_path / "ledger.head").unlink()
    with pytest.raises(LedgerError, match=r"\.head is missing"):
        Ledger.open(path)
    path = filled(tmp_path / "unused", debits=0)
    (tmp_path / "unused.head").unlink()
    (tmp_path / "key").touch()
    with pytest.raises(LedgerError, match=r"\.head is missing"):
        Ledger.open(path, tmp_path / "key")
    with Ledger.open(path) as ledger:  # a crash came before the head
        assert ledger.releases == 0
    assert (tmp_path / "unused.head").exists()


def test_a_head_may_be_behind(tmp_path):
    """Power may fail before the disk has the newest of several heads."""
    path = filled(tmp_path / "ledger", debits=0)
    old = (tmp_path / "ledger.head").read_bytes()
    filled(path, debits=3)
    (tmp_path / "ledger.head").write_bytes(old)
    with Ledger.open(path) as ledger:
        assert ledger.releases == 3


def test_an_old_copy_is_refused(tmp_path):
    path = filled(tmp_path / "ledger", debits=1)
    backup = path.read_bytes()
    with Ledger.open(path) as ledger:
        ledger.debit()
        ledger.keep([b"letter"])
    path.write_bytes(backup)
    with pytest.raises(LedgerError, match=r"older than what was already spent: restored from a backup\?"):
        Ledger.open(path)
    record = json.loads(backup.splitlines()[-1])  # and now the head is put back, too
    (tmp_path / "ledger.head").write_bytes(module._canonical({"n": record["n"], "hash": record["hash"]}) + b"\n")
    with pytest.raises(LedgerError, match="messages of release 1 are kept beside it, and it counts 1 releases"):
        Ledger.open(path)


def test_a_record_of_another_ledger(tmp_path):
    """A good record in its place, but of another chain: also where the last one, which the head remembers, is right."""
    one, other = (filled(tmp_path / name, steps) for name, steps in (("one", 5), ("other", 6)))
    lines, others = one.read_bytes().splitlines(keepends=True), other.read_bytes().splitlines(keepends=True)
    for k in range(1, len(lines)):
        one.write_bytes(b"".join([*lines[:k], others[k], *lines[k + 1 :]]))
        with pytest.raises(LedgerError, match=r"does not follow the line before it|is older than"):
            Ledger.open(one)
    one.write_bytes(b"".join(lines))
    Ledger.open(one).close()


def test_a_lost_ledger_of_a_known_agent(tmp_path):
    path, key = tmp_path / "ledger", tmp_path / "key"
    with Ledger(plan_of(2), path, identity=key) as ledger:  # new: first the ledger, then the key
        key.touch()
        ledger.debit()
    with Ledger(plan_of(2), path, identity=key) as ledger:
        assert ledger.releases == 1
    path.unlink()
    with pytest.raises(LedgerError, match=r"\.head says that there was one"):
        Ledger(plan_of(2), path, identity=key)
    (tmp_path / "ledger.head").unlink()
    for _ in range(2):
        with pytest.raises(LedgerError, match=r"is missing while the identity .*key exists: its budget may be spent"):
            Ledger(plan_of(2), path, identity=key)
        assert not path.exists()
    path.touch()  # as good as missing
    with pytest.raises(LedgerError, match="is missing while the identity"):
        Ledger(plan_of(2), path, identity=key)


# -- one writer ------------------------------------------------------------------------------------------------------


def test_two_writers(tmp_path):
    path = tmp_path / "ledger"
    ready, done = os.pipe(), os.pipe()

    def hold():
        with Ledger(plan_of(2), path) as ledger:
            ledger.debit()
            os.write(ready[1], b".")
            os.read(done[0], 1)

    pid = forked(hold)
    os.read(ready[0], 1)
    content = path.read_bytes()
    try:
        with pytest.raises(LedgerError, match=f"is in use by process {pid}: a ledger has one writer"):
            Ledger.open(path)
    finally:
        os.write(done[1], b".")
        assert ended(pid) == 0
        for end in (*ready, *done):
            os.close(end)
    assert path.read_bytes()[: len(content)] == content
    with Ledger.open(path) as ledger:
        with pytest.raises(LedgerError, match="is in use by this very process"):
            Ledger(plan_of(2), path)
        assert ledger.debit() == 1


def test_no_locks_on_this_platform(tmp_path, monkeypatch):
    monkeypatch.setattr(_journal, "fcntl", None)
    with pytest.raises(LedgerError, match="cannot be locked on this platform"):
        Ledger(plan_of(2), tmp_path / "ledger")
    assert not any(tmp_path.iterdir())
    assert Ledger(plan_of(2)).debit() == 0


def test_no_locks_on_this_disk(tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(_journal.fcntl, "flock", refuse)
    with pytest.raises(LedgerError, match=r"cannot be locked \(No locks available\): put it on a local disk"):
        Ledger(plan_of(2), tmp_path / "ledger")


@pytest.mark.parametrize("durable", [False, True])
def test_a_fork_cannot_spend(tmp_path, durable):
    with Ledger(plan_of(3), tmp_path / "ledger" if durable else None) as ledger:
        ledger.debit()

        def spend():
            for use in (ledger.debit, lambda: ledger.keep([b""]), lambda: ledger.kept):
                with pytest.raises(LedgerError, match=f"opened by process {os.getppid()}"):
                    use()
            ledger.close()  # does nothing

        assert ended(forked(spend)) == 0
        if durable:
            with pytest.raises(LedgerError, match="in use"):
                Ledger.open(tmp_path / "ledger")
        assert ledger.debit() == 1


def test_a_fork_that_lives_on_does_not_hold_the_lock(tmp_path):
    path = tmp_path / "ledger"
    out, done = os.pipe(), os.pipe()

    def work():
        ledger = Ledger(plan_of(3), path)
        ledger.debit()
        os.write(out[1], forked(lambda: os.read(done[0], 1)).to_bytes(8, "little"))
        time.sleep(60)

    pid = forked(work)
    os.read(out[0], 8)
    os.kill(pid, signal.SIGKILL)
    ended(pid)
    try:
        with Ledger.open(path) as ledger:
            assert ledger.debit() == 1
    finally:
        os.write(done[1], b".")
        for end in (*out, *done):
            os.close(end)


def test_use_after_close(tmp_path):
    for path in (None, tmp_path / "ledger"):
        with Ledger(plan_of(2), path) as ledger:
            ledger.debit()
        ledger.close()
        for use in (ledger.debit, lambda ledger=ledger: ledger.keep([]), lambda ledger=ledger: ledger.kept):
            with pytest.raises(LedgerError, match="is closed: open it again"):
                use()
        assert (ledger.releases, ledger.left) == (1, 1)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
def test_no_copies(copied):
    with pytest.raises(LedgerError, match="cannot be copied or pickled"):
        copied(Ledger(plan_of(2)))


@pytest.mark.parametrize("how", ["moved", "removed", "replaced"])
def test_a_file_that_goes_away_while_open(tmp_path, how):
    path = tmp_path / "ledger"
    with Ledger(plan_of(3), path) as ledger:
        ledger.debit()
        content = path.read_bytes()
        path.rename(tmp_path / "away")
        if how == "removed":
            (tmp_path / "away").unlink()
        if how == "replaced":
            path.write_bytes(content)
        with pytest.raises(LedgerError, match="was moved, replaced or removed while it was open"):
            ledger.debit()
        assert ledger.releases == 1


# -- other plans -----------------------------------------------------------------------------------------------------


def changed(**fields):
    return replace(plan_of(3), **fields)


@pytest.mark.parametrize(
    ("other", "message"),
    [
        (lambda: plan_of(3, mechanism="laplace"), r"opened for gaussian noise; the mechanism cannot change in mid-run"),
        (lambda: plan_of(3, epsilon=2.0), r"opened for epsilon=1\.0; epsilon cannot change in mid-run \(got 2\.0\)"),
        (lambda: plan_of(3, delta=1e-6), r"opened for delta=1e-05; delta cannot change in mid-run \(got 1e-06\)"),
        (lambda: None, "plan must be a Plan, got NoneType"),
        (lambda: plan_of(4), r"opened for 3 releases; the number of releases cannot change in mid-run \(got 4\)"),
        (
            lambda: changed(noise=plan_of(3).noise * np.array([1.0, 2.0, 1.0])),
            r"opened for noise\[1\]=\S+; the noise cannot change in mid-run \(got \S+\)",
        ),
    ],
)
def test_another_plan(tmp_path, other, message):
    path = filled(tmp_path / "ledger", steps=3, debits=1)
    content = path.read_bytes()
    with pytest.raises(ParameterError, match=message):
        Ledger(other(), path)
    assert path.read_bytes() == content
    with Ledger.open(path) as ledger:
        assert ledger.plan.digest == plan_of(3).digest


def test_a_plan_that_needs_more_than_is_installed(tmp_path, monkeypatch):
    def missing(_):
        raise MissingExtra("pip install coterie[privacy]")

    path = filled(tmp_path / "ledger", steps=3, debits=1)
    monkeypatch.setattr(module.Plan, "of", missing)
    with pytest.raises(MissingExtra):
        Ledger.open(path)
    with Ledger(plan_of(3), path) as ledger:  # nothing to check: it is the plan of the file
        assert ledger.releases == 1


# -- messages ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("durable", [False, True])
def test_messages_are_kept(tmp_path, durable):
    frames = [b"", b"one\ntwo", bytes(range(256)) * 50]
    with Ledger(plan_of(3), tmp_path / "ledger" if durable else None) as ledger:
        assert ledger.kept == []
        with pytest.raises(LedgerError, match="there is no release to keep messages of"):
            ledger.keep(frames)
        ledger.debit()
        ledger.keep(frames)
        assert ledger.kept == frames
        ledger.keep(frames)  # the same again
        with pytest.raises(LedgerError, match="the messages of release 0 are kept already, and differ"):
            ledger.keep([b"new noise"])
        ledger.debit()
        assert ledger.kept == frames  # the last that were sent
        ledger.keep([bytearray(b"newer")])
        assert ledger.kept == [b"newer"]
        for wrong in (b"newer", ["text"], [3]):
            with pytest.raises(ParameterError, match="messages must be a list of bytes"):
                ledger.keep(wrong)
        ledger.debit()
        ledger.keep([])
        assert ledger.kept == []


def test_messages_survive_and_are_not_drawn_anew(tmp_path):
    path = tmp_path / "ledger"
    with Ledger(plan_of(3), path) as ledger:
        ledger.debit()
        ledger.keep([b"a", b"b"])
    with Ledger.open(path) as ledger:
        assert ledger.kept == [b"a", b"b"]
        with pytest.raises(LedgerError, match="kept already, and differ"):
            ledger.keep([b"new noise"])
        ledger.debit()
    with Ledger.open(path) as ledger:  # a crash came before the messages of release 1 were kept: they were never sent
        assert ledger.kept == [b"a", b"b"]
        with pytest.raises(LedgerError, match="its noise must not be drawn again"):
            ledger.keep([b"new noise"])


def test_damaged_messages(tmp_path):
    path, kept = tmp_path / "ledger", tmp_path / "ledger.kept"
    with Ledger(plan_of(3), path) as ledger:
        ledger.debit()
        ledger.keep([b"first", b"second"])
        content = kept.read_bytes()
        for place in range(len(content)):
            kept.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
            with pytest.raises(LedgerError, match=r"\.kept are damaged"):
                ledger.kept  # noqa: B018
            kept.write_bytes(content[:place])
            with pytest.raises(LedgerError, match=r"\.kept are damaged"):
                ledger.kept  # noqa: B018
    with Ledger.open(path) as ledger:  # which is no reason to refuse the ledger
        with pytest.raises(LedgerError, match="damaged"):
            ledger.kept  # noqa: B018
        with pytest.raises(LedgerError, match="call debit"):
            ledger.keep([b"new noise"])
        kept.unlink()
        assert ledger.kept == []
        ledger.debit()
        ledger.keep([b"third"])
        assert ledger.kept == [b"third"]


# -- disks -----------------------------------------------------------------------------------------------------------


def full(*_):
    raise OSError(errno.ENOSPC, "No space left on device")


def half(fd, content, start):
    if len(content) < 2:
        full()
    return REAL["pwrite"](fd, content[: len(content) // 2], start)  # and then nothing more


def interrupted(*_):
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("name", "fault", "error", "on_disk"),
    [
        ("pwrite", full, LedgerError, 1),
        ("pwrite", half, LedgerError, 2),
        ("fsync", full, LedgerError, 2),
        ("fsync", interrupted, KeyboardInterrupt, 2),
        ("pwrite", interrupted, KeyboardInterrupt, 1),
        ("replace", full, LedgerError, 2),  # the head
        ("open", full, LedgerError, 2),
    ],
)
def test_a_disk_that_fails(tmp_path, monkeypatch, name, fault, error, on_disk):
    path = tmp_path / "ledger"
    with Ledger(plan_of(5), path) as ledger:
        ledger.debit()
        ledger.keep([b"letter"])
        with monkeypatch.context() as patch:
            patch.setattr(os, name, fault)
            with pytest.raises(
                error, match=None if error is KeyboardInterrupt else r"could not be written: .*No space"
            ):
                ledger.debit()
        assert ledger.releases <= on_disk
        content = path.read_bytes()
        for use in (ledger.debit, lambda: ledger.keep([b"other"])):
            with pytest.raises(LedgerError, match="could not be written before"):
                use()
        assert path.read_bytes() == content
        assert ledger.kept == [b"letter"]
    with Ledger.open(path) as ledger:
        assert ledger.releases == on_disk
        assert ledger.debit() == on_disk


def test_a_short_write_is_gone_on_with(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "pwrite", lambda fd, content, start: REAL["pwrite"](fd, content[:7], start))
    path = filled(tmp_path / "ledger")
    with Ledger.open(path) as ledger:
        assert ledger.releases == 3


def test_messages_that_cannot_be_kept(tmp_path, monkeypatch):
    with Ledger(plan_of(5), tmp_path / "ledger") as ledger:
        ledger.debit()
        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", full)
            with pytest.raises(LedgerError, match=r"the messages of release 0 could not be kept in .*No space"):
                ledger.keep([b"letter"])
        assert ledger.kept == []
        ledger.keep([b"letter"])
        assert ledger.debit() == 1


def test_paths_that_cannot_be(tmp_path):
    with pytest.raises(LedgerError, match="no/where cannot be opened: No such file or directory"):
        Ledger(plan_of(2), "no/where")
    with pytest.raises(LedgerError, match="cannot be opened: Is a directory"):
        Ledger(plan_of(2), tmp_path)
    other = tmp_path / "key"
    other.write_text("secret")
    with pytest.raises(LedgerError, match="key holds no ledger"):
        Ledger(plan_of(2), other)
    assert other.read_text() == "secret"
    assert sorted(Path(tmp_path).iterdir()) == [other]


def test_a_full_disk_while_opening_gives_the_lock_back(tmp_path, monkeypatch):
    path = filled(tmp_path / "ledger")
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(LedgerError, match="cannot be opened: No space left on device"):
            Ledger.open(path)
    with Ledger.open(path) as ledger:
        assert ledger.releases == 3


def test_macos_syncs_the_disk_too(tmp_path, monkeypatch):
    calls = []
    monkeypatch.setattr(_journal.fcntl, "F_FULLFSYNC", 51, raising=False)
    monkeypatch.setattr(_journal.fcntl, "fcntl", lambda fd, command: calls.append(command))
    filled(tmp_path / "ledger", debits=1)
    assert set(calls) == {51}
    monkeypatch.setattr(_journal.fcntl, "fcntl", full)
    filled(tmp_path / "ledger", debits=1)
