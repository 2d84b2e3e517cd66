"""A ledger of an agent's releases, which enforces the privacy budget across crashes and restarts.

A release is made in this order: **debit, fsync, draw, send**. :meth:`Ledger.debit` returns when its record is on the
disk; only then noise is drawn, and messages are sent. If a crash comes in between, the release is lost, and is not
refunded. A message that has to be sent again is sent as the same bytes (:meth:`Ledger.keep`, :attr:`Ledger.kept`),
never with new noise.

A ledger with a path is three files:

=================  ====================================================================================================
``<path>``         one record a line, as json: the plan, then a "boot" for each session and a "debit" for each release.
                   Each record holds the hash of the record before. Append-only, and locked while it is open.
``<path>.head``    the number and the hash of the last record. A ledger without that record was restored from an old
                   copy, and is refused.
``<path>.kept``    the messages of the last release whose messages were kept
=================  ====================================================================================================

A record that a crash has left incomplete counts as a release: it is replaced by a debit.

The hashes protect against accidents, not against the owner of the files, who can rewrite them. If all files are
restored together to an old state, this cannot be detected, so exclude ledgers from backups and machine images.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
import weakref
from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from .._files import Where, sync, write_atomic
from .._journal import Link, LogFile, hash_of, lockable, parsed
from ..accounting.plans import Plan
from ..core.private.account import ACCOUNT, NOTHING, RELEASES, debit
from ..errors import BudgetError, LedgerError, MissingExtra, ParameterError

__all__ = ["Ledger"]

FORMAT = 1
#: The word for a session in the file. Ledgers outlive versions, so the word of the first version stays.
SESSION = "boot"
#: The hash before the first record.
ORIGIN = "0" * 64
#: The chain of records; every record also contains its own hash.
LINK = Link("previous", ORIGIN, lambda line, record: "" if record is None else str(record.get("hash")))


class Ledger:
    """An account of releases, in memory or on disk.

    Parameters
    ----------
    plan : Plan
        The allowed releases: their number, their noise, and their cost.
    path : path, optional
        The file of the ledger, created if missing; ``<path>.head`` and ``<path>.kept`` are in the same folder. Use a
        local disk. Without a path, the ledger is in memory and is lost when the process ends: for simulations only.
    identity : path, optional
        The key file that identifies this agent to others. If the key exists and the ledger does not, the ledger was
        lost, and an error is raised, because the budget may be spent. So create the ledger of a new agent *before* its
        key.

    Raises
    ------
    LedgerError
        If the ledger is damaged, missing, older than the releases already made, or in use by another writer.
    ParameterError
        If the ledger was created for another plan.

    Notes
    -----
    A ledger can be open only once, in one process. It cannot be used in a fork of that process, and cannot be copied or
    pickled, because a copy would spend the same budget again. Threads may share a ledger.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> from coterie.privacy import make_plan
    >>> plan = make_plan(epsilon=1.0, delta=1e-5, steps=2)
    >>> with TemporaryDirectory() as folder:
    ...     with Ledger(plan, f"{folder}/ledger") as ledger:
    ...         k = ledger.debit()  # on disk now: draw noise of size plan.noise[k], keep the messages, send them
    ...         ledger.keep([b"a message"])
    ...     with Ledger.open(f"{folder}/ledger") as ledger:  # after a crash, say
    ...         k, ledger.releases, ledger.left, ledger.sessions, ledger.kept
    (0, 1, 1, 2, [b'a message'])
    >>> ledger = Ledger(plan)
    >>> ledger.debit(), ledger.debit(), ledger.exhausted
    (0, 1, True)
    >>> ledger.debit()
    Traceback (most recent call last):
    ...
    coterie.errors.BudgetError: the budget (epsilon=1 at delta=1e-05) was split for 2 releases, and all 2 were made; ...
    """

    _plan: Plan
    _account: np.ndarray
    _closed: bool
    _broken: bool  # a record could not be written whole
    _in_hand: bool  # a release was debited, and its messages may be kept
    _messages: _Messages | None  # the messages kept last
    _journal: _Journal | None

    def __init__(self, plan: Plan, path: Where | None = None, *, identity: Where | None = None) -> None:
        if not isinstance(plan, Plan):
            raise ParameterError(f"plan must be a Plan, got {type(plan).__name__}: make one with make_plan")
        self._start(plan, path, identity)

    @classmethod
    def open(cls, path: Where, identity: Where | None = None) -> Ledger:
        """Open the ledger in an existing file, with the plan in that file."""
        ledger = cls.__new__(cls)
        ledger._start(None, path, identity)
        return ledger

    # -- state -------------------------------------------------------------------------------------------------------

    @property
    def plan(self) -> Plan:
        """The plan of allowed releases."""
        return self._plan

    @property
    def path(self) -> str | None:
        """The file, or None for a ledger in memory."""
        return self._path

    @property
    def releases(self) -> int:
        """Number of releases debited so far."""
        return int(self._account[RELEASES])

    @property
    def left(self) -> int:
        """Number of releases that may still be made."""
        return self._max_releases - self.releases

    @property
    def exhausted(self) -> bool:
        """Whether no release is left; the agent then sends nothing more that depends on its data."""
        return self.left == 0

    @property
    def spent(self) -> float:
        """Epsilon, at the delta of the plan, of the releases debited so far.

        Report :attr:`committed` instead, because the time at which an agent stops may depend on its data.
        """
        return float(self._plan.spent(self.releases))

    @property
    def committed(self) -> float:
        """Epsilon of the whole plan, the value to report."""
        return float(self._plan.epsilon)

    @property
    def sessions(self) -> int:
        """Number of times that the ledger was opened, including this one."""
        return self._sessions

    @property
    def account(self) -> np.ndarray:
        """A copy of the account: releases and their costs, in the layout of ``coterie.core.private.account``."""
        return self._account.copy()

    def check(self, plan: Plan) -> None:
        """Refuse a plan that differs from the ledger's plan: the guarantee cannot change in mid-run."""
        _same(self._path, self._plan, plan)

    def __repr__(self) -> str:
        where = "in memory" if self._path is None else f"{self._path!r}, session {self._sessions}"
        shut = ", closed" if self._closed else ""
        return (
            f"Ledger({self._plan.mechanism}, {self.releases} of {self._max_releases} releases made, "
            f"epsilon={self.committed:g} at delta={self._plan.delta:g} committed, {where}{shut})"
        )

    # -- releases ----------------------------------------------------------------------------------------------------

    def debit(self) -> int:
        """Spend one release; return its number, from 0, when the record is on the disk, and noise may be drawn.

        The noise of release k is ``plan.noise[k]``. After a BudgetError nothing was spent. After a LedgerError the
        release may or may not be spent: the ledger refuses further releases until it is opened again.
        """
        self._check_process()  # before the lock, which may be locked forever in a fork
        with self._lock:
            self._check_use()
            self._in_hand = False
            after = self._account.copy()
            k = debit(after, self._cost, self._limit)
            if k == NOTHING:
                raise BudgetError(
                    f"the budget (epsilon={self.committed:g} at delta={self._plan.delta:g}) was split for "
                    f"{self._max_releases} releases, and all {self._max_releases} were made; nothing was sent"
                )
            if self._journal is None:
                self._account = after
            else:
                with self._writing():
                    self._journal.append("debit", release=k)
                    self._account = after  # on disk: the release stays spent, even if the head cannot be written
                    self._journal.write_head()
            self._in_hand = True
            return k

    def keep(self, messages: Iterable[bytes]) -> None:
        """Store all messages of the release just debited, before they are sent, in place of earlier messages.

        Raises a LedgerError if no release was debited since the ledger was opened, or if other messages of the same
        release are stored already: a second draw of noise would be a second release.
        """
        given = list(messages)
        for message in given:
            if not isinstance(message, bytes | bytearray | memoryview):
                raise ParameterError(f"messages must be a list of bytes; there is a {type(message).__name__} in it")
        now = [bytes(message) for message in given]
        self._check_process()  # before the lock, which may be locked forever in a fork
        with self._lock:
            self._check_use()
            k = self.releases - 1
            if self._messages is not None and self._messages.release == k:
                if self._messages.contents == now:
                    return
                raise LedgerError(
                    f"the messages of release {k} are kept already, and differ: send the kept messages again, or debit "
                    "a new release"
                )
            if not self._in_hand:
                raise LedgerError(
                    "there is no release to keep messages of: call debit() first. A release debited before the ledger "
                    "was opened is lost: its noise must not be drawn again"
                )
            kept = _Messages(k, now)
            if self._journal is not None:
                with _refusing(f"the messages of release {k} could not be kept in {self._journal.path}.kept"):
                    write_atomic(f"{self._journal.path}.kept", kept.packed(), private=True, one_writer=True)
            self._messages = kept

    @property
    def kept(self) -> list[bytes]:
        """The stored messages of the last release, to be sent again; empty if there are none."""
        self._check_process()
        self._check_use(reading=True)
        messages = self._messages if self._journal is None else self._read_kept(self._journal)
        return [] if messages is None else list(messages.contents)

    def close(self) -> None:
        """Release the lock. The account can still be read, but nothing more can be spent."""
        if not self._closed and self._pid == os.getpid():
            with self._lock:
                self._closed = True
                if self._journal is not None:
                    self._journal.log.close()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> Any:
        raise LedgerError("a ledger cannot be copied or pickled: the copy would spend the same budget again")

    # -- opening -----------------------------------------------------------------------------------------------------

    def _start(self, plan: Plan | None, path: Where | None, identity: Where | None) -> None:
        self._path = None if path is None else os.fspath(path)
        self._pid, self._lock = os.getpid(), threading.RLock()
        self._account = np.zeros(ACCOUNT)
        self._sessions = 1
        self._closed = self._broken = self._in_hand = False
        self._messages, self._journal = None, None
        if self._path is None:
            assert plan is not None
            self._follow(plan)
            return
        with _refusing(f"the ledger {self._path} cannot be opened"):
            journal = _Journal(self._path, identity, make=plan is not None)
            try:
                self._read(journal, plan, identity)
            except BaseException:
                journal.log.close()
                raise
        self._journal = journal
        _OPEN.add(self)

    def _read(self, journal: _Journal, plan: Plan | None, identity: Where | None) -> None:
        """Check all files, then repair the effects of a crash, then count a session; all checks precede all writes."""
        if not journal.records:
            journal.begin(plan, identity)
        self._follow(_planned(journal, plan))
        if plan is not None:
            _same(self._path, self._plan, plan)
        journal.check_head(identity)
        self._replay(journal)
        with contextlib.suppress(LedgerError):  # damaged messages are refused by `kept`
            self._messages = self._read_kept(journal)
        if self._messages is not None and self._messages.release >= self.releases:
            raise LedgerError(
                f"the ledger {self._path} is older than what was already spent: messages of release "
                f"{self._messages.release} are kept beside it, and it counts {self.releases} releases. Restored from a "
                f"backup? {_REMEDY}"
            )
        if journal.torn:
            after = self._account.copy()
            k = debit(after, self._cost, self._limit)
            if k == NOTHING:
                journal.cut()
            else:
                journal.append("debit", release=k, recovered=True)
                self._account = after
            journal.write_head()
        journal.append(SESSION, **{SESSION: self._sessions}, pid=self._pid)
        journal.write_head()

    def _follow(self, plan: Plan) -> None:
        self._plan, self._cost, self._limit = plan, np.asarray(plan.cost), float(plan.limit)
        account = np.zeros(ACCOUNT)
        while debit(account, self._cost, self._limit) != NOTHING:
            pass
        self._max_releases = int(account[RELEASES])

    def _replay(self, journal: _Journal) -> None:
        """Compute the account and the number of sessions from the records."""
        self._sessions = 1
        for line, record in enumerate(journal.records[1:], 2):
            kind = record.get("kind")
            if kind == SESSION and record.get(SESSION) == self._sessions:
                self._sessions += 1
            elif kind == "debit" and record.get("release") == self.releases:
                if debit(self._account, self._cost, self._limit) == NOTHING:
                    raise _damaged(self._path, line, f"debits release {self.releases}, which the plan does not have")
            else:
                raise _damaged(self._path, line, "is no session and no debit that may follow the lines before it")

    def _read_kept(self, journal: _Journal) -> _Messages | None:
        path = f"{journal.path}.kept"
        try:
            with _refusing(f"the messages in {path} cannot be read"):
                content = _content(path)
            return None if content is None else _Messages.of(content)
        except (ValueError, KeyError, TypeError, RecursionError):
            raise LedgerError(
                f"the messages in {path} are damaged. Delete that file: they are then not sent again; a new release is"
            ) from None

    # -- use ---------------------------------------------------------------------------------------------------------

    def _check_process(self) -> None:
        name = self._path or "in memory"
        if self._pid != os.getpid():
            raise LedgerError(
                f"the ledger ({name}) was opened by process {self._pid}, and this is process {os.getpid()}, a fork of "
                "it, which would spend the same budget again: let one process make all releases"
            )

    def _check_use(self, reading: bool = False) -> None:
        name = self._path or "in memory"
        if self._closed:
            raise LedgerError(f"the ledger ({name}) is closed: open it again")
        if self._broken and not reading:
            raise LedgerError(
                f"the ledger {name} could not be written before, and what is on the disk is not known: close it, and "
                "open it again"
            )
        if self._journal is not None and not self._journal.log.in_place:
            raise LedgerError(f"the ledger {name} was moved, replaced or removed while it was open: put it back")

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """Refuse further releases after any failure to write a whole record, also after an interrupt."""
        self._broken = True
        with _refusing(f"the ledger {self._path} could not be written: send nothing, and open it again when it can be"):
            yield
        self._broken = False

    def _abandon(self) -> None:
        """Close the file in a forked process; the lock stays with the process that opened the ledger."""
        if self._journal is not None:
            self._journal.log.file.close()


class _Messages(NamedTuple):
    """The messages of one release."""

    release: int
    contents: list[bytes]

    def packed(self) -> bytes:
        body = b"".join(self.contents)
        head = {"release": self.release, "lengths": [len(message) for message in self.contents]}
        checksum = hash_of(_canonical(head) + body)
        return _canonical({**head, "sha256": checksum}) + b"\n" + body

    @classmethod
    def of(cls, content: bytes) -> _Messages:
        head, _, body = content.partition(b"\n")
        fields = json.loads(head.decode("ascii"))
        ends = np.cumsum([0, *fields["lengths"]]).tolist()
        messages = cls(fields["release"], [body[a:b] for a, b in pairwise(ends)])
        if messages.packed() != content:
            raise ValueError("the checksum is not that of the messages")
        return messages


class _Journal:
    """The locked file of hash-chained records, and the head file."""

    def __init__(self, path: str, identity: Where | None, make: bool) -> None:
        if not lockable():
            raise LedgerError(f"the ledger {path} cannot be locked on this platform: two processes could spend at once")
        self.name, self.path = path, os.path.realpath(path)
        if not os.path.exists(self.path):
            if os.path.exists(f"{self.path}.head"):
                raise LedgerError(
                    f"the ledger {path} is missing, and {path}.head says that there was one: its budget may be spent. "
                    f"{_REMEDY}"
                )
            _check_identity(path, identity)
            if not make:
                raise LedgerError(f"there is no ledger {path}: make one with Ledger(plan, path)")
        self.log = LogFile(self.path, make=make)
        try:
            self._take_lock()
            self.content = self.log.file.readall() or b""
            if not self.log.in_place:
                raise LedgerError(f"the ledger {path} was replaced while it was being opened: try again")
            self.records, self.log.size = _chain(path, self.content)
            self.torn = self.log.size < len(self.content)
        except BaseException:
            self.log.file.close()
            raise

    @property
    def last(self) -> str:
        """Hash of the last record."""
        return str(self.records[-1]["hash"]) if self.records else ORIGIN

    def _take_lock(self) -> None:
        try:
            self.log.lock(wait=False)
        except BlockingIOError:
            pid = _writer(_content(self.path) or b"")
            who = "another writer" if pid is None else f"process {pid}"
            who = "this very process" if pid == os.getpid() else who
            raise LedgerError(f"the ledger {self.name} is in use by {who}: a ledger has one writer") from None
        except OSError as error:
            raise LedgerError(
                f"the ledger {self.name} cannot be locked ({error.strerror}): put it on a local disk"
            ) from error

    def begin(self, plan: Plan | None, identity: Where | None) -> None:
        """Write the first record, or complete it if a crash has left a part of it."""
        line = b"" if plan is None else _record(0, ORIGIN, "plan", **_described(plan))[1]
        if plan is None or not line.startswith(self.content):
            raise LedgerError(
                f"{self.name} holds no ledger: its first line is not a plan. If it is what a crash left of a ledger "
                "that was being made, delete it; if it is something else, choose another path"
            )
        if os.path.exists(f"{self.path}.head"):
            raise _rolled_back(self.name)
        _check_identity(self.name, identity)
        self.torn = False  # the file begins with a valid part of the record
        self.append("plan", **_described(plan))
        self.write_head()

    def check_head(self, identity: Where | None) -> None:
        """Refuse a ledger without the record named by the head."""
        content = _content(f"{self.path}.head")
        if content is None:
            if any(record.get("kind") == "debit" for record in self.records) or _exists(identity):
                raise LedgerError(
                    f"{self.name}.head is missing, so the ledger {self.name} may be older than what was already spent. "
                    f"{_REMEDY}"
                )
            return  # a crash came between the first record and its head
        head = parsed(content) or {}
        n, digest = head.get("n"), head.get("hash")
        told = {"n": n, "hash": digest}
        if type(n) is not int or n < 0 or type(digest) is not str or _canonical(told) + b"\n" != content:
            raise LedgerError(
                f"{self.name}.head is damaged, so the ledger {self.name} may be older than what was already spent. "
                f"{_REMEDY}"
            )
        # The ledger may have more records: a crash may come between a record and its head.
        if n >= len(self.records) or self.records[n]["hash"] != digest:
            raise _rolled_back(self.name)

    def append(self, kind: str, **fields: Any) -> None:
        """Append a record; it is on the disk when this returns, but the head is not."""
        record, line = _record(len(self.records), self.last, kind, **fields)
        if self.torn:
            # A crash before the record is complete must leave a torn record, so one byte stays and is overwritten.
            start = self.log.size
            os.ftruncate(self.log.file.fileno(), start + 1)
            self.log.append(line[:1])
            self.log.size, self.torn = start, False
        self.log.append(line)
        self.records.append(record)

    def cut(self) -> None:
        """Remove an incomplete last record; call it only if no release is left that would overwrite it."""
        os.ftruncate(self.log.file.fileno(), self.log.size)
        sync(self.log.file.fileno())
        self.torn = False

    def write_head(self) -> None:
        """Write number and hash of the last record."""
        first = not os.path.exists(f"{self.path}.head")
        head = _canonical({"n": len(self.records) - 1, "hash": self.last}) + b"\n"
        write_atomic(f"{self.path}.head", head, private=True, one_writer=True, sync_name=first)


_OPEN: weakref.WeakSet[Ledger] = weakref.WeakSet()


def _abandon_all() -> None:
    for ledger in list(_OPEN):
        ledger._abandon()


if hasattr(os, "register_at_fork"):
    # Otherwise a fork would hold the lock after the death of the process that opened the ledger.
    os.register_at_fork(after_in_child=_abandon_all)


# -- records ---------------------------------------------------------------------------------------------------------


def _canonical(fields: dict[str, Any]) -> bytes:
    return json.dumps(fields, sort_keys=True, separators=(",", ":"), allow_nan=False).encode("ascii")


def _record(n: int, previous: str, kind: str, **fields: Any) -> tuple[dict[str, Any], bytes]:
    """Return a record and its line."""
    record = {**fields, "n": n, "kind": kind, "previous": previous}
    record["hash"] = hash_of(_canonical(record))
    return record, _canonical(record) + b"\n"


def _chain(path: str, content: bytes) -> tuple[list[dict[str, Any]], int]:
    """Return the records of a file, and the offset of their end; anything behind is a torn record."""
    *lines, tail = content.split(b"\n")
    records: list[dict[str, Any]] = []
    end = 0
    for number, (record, follows, _) in enumerate(LINK.follow(lines), 1):
        line = lines[number - 1]
        if record is None:
            if number == len(lines) and not tail:
                break
            raise _damaged(path, number, "is not a record")
        if not _unchanged(record, line):
            raise _damaged(path, number, "does not have its hash")
        if not follows or record.get("n") != number - 1:
            raise _damaged(path, number, "does not follow the line before it")
        records.append(record)
        end += len(line) + 1
    return records, end


def _unchanged(record: dict[str, Any], line: bytes) -> bool:
    """Whether a line is byte for byte the line that was written."""
    rest = {name: value for name, value in record.items() if name != "hash"}
    try:
        return _canonical(record) == line and hash_of(_canonical(rest)) == record.get("hash")
    except ValueError:  # infinities
        return False


def _described(plan: Plan) -> dict[str, Any]:
    return {"format": FORMAT, "plan": plan.describe(), "digest": plan.digest}


def _planned(journal: _Journal, given: Plan | None) -> Plan:
    """Return the plan in a ledger's first record."""
    first = journal.records[0]
    if first.get("kind") != "plan":
        raise _damaged(journal.name, 1, "is not a plan")
    if first.get("format") != FORMAT:
        raise LedgerError(
            f"the ledger {journal.name} is of format {first.get('format')}; this version reads format {FORMAT}"
        )
    if given is not None and {**first, **_described(given)} == first:
        return given  # checking the plan again may take seconds
    try:
        plan = Plan.of(first["plan"])
        whole = plan.digest == first["digest"]
    except MissingExtra:
        raise
    except Exception as error:  # the message must name the line for every error
        raise _damaged(journal.name, 1, f"holds no plan ({error!r})") from error
    if not whole:
        raise _damaged(journal.name, 1, "holds a plan that does not have its digest")
    return plan


def _same(path: str | None, old: Plan, new: Plan) -> None:
    """Refuse a plan that differs from the ledger's plan."""
    if new.digest == old.digest:
        return
    unlike = np.asarray(new.noise) != np.asarray(old.noise) if new.steps == old.steps else np.array([True])
    k = int(np.argmax(unlike))
    rows = (
        (new.mechanism != old.mechanism, "the mechanism", f"{old.mechanism} noise", f"{new.mechanism} noise"),
        (new.epsilon != old.epsilon, "epsilon", f"epsilon={old.epsilon!r}", f"{new.epsilon!r}"),
        (new.delta != old.delta, "delta", f"delta={old.delta!r}", f"{new.delta!r}"),
        (new.accountant != old.accountant, "the accountant", f"accountant={old.accountant!r}", f"{new.accountant!r}"),
        (new.steps != old.steps, "the number of releases", f"{old.steps} releases", f"{new.steps}"),
        (unlike.any(), "the noise", f"noise[{k}]={float(old.noise[k])!r}", f"{float(new.noise[k])!r}"),
        (True, "the plan", f"plan {old.digest[:8]}", f"plan {new.digest[:8]}"),
    )
    what, was, now = next(row[1:] for row in rows if row[0])
    name = f"the ledger {path}" if path else "the ledger"
    raise ParameterError(
        f"{name} was opened for {was}; {what} cannot change in mid-run (got {now}): go on with the plan of the ledger, "
        "Ledger.open(path)"
    )


def _writer(content: bytes) -> int | None:
    """Return the process that opened a ledger last, or None if that cannot be read."""
    for line in reversed(content.split(b"\n")):
        record = parsed(line)
        if record is not None and record.get("kind") == SESSION:
            pid = record.get("pid")
            return pid if isinstance(pid, int) else None
    return None


# -- refusals --------------------------------------------------------------------------------------------------------

_REMEDY = "Its files cannot tell what was spent: put back the newest ones, or start as a new agent, with a new identity"


def _damaged(path: str | None, line: int, what: str) -> LedgerError:
    return LedgerError(f"the ledger {path} is damaged: line {line} {what}. {_REMEDY}")


def _rolled_back(path: str) -> LedgerError:
    return LedgerError(
        f"the ledger {path} is older than what was already spent: restored from a backup? The record that {path}.head "
        f"remembers is not in it. {_REMEDY}"
    )


def _exists(identity: Where | None) -> bool:
    return identity is not None and os.path.lexists(identity)


def _check_identity(path: str, identity: Where | None) -> None:
    if _exists(identity):
        raise LedgerError(
            f"the ledger {path} is missing while the identity {os.fspath(identity)} exists: its budget may be spent; "  # type: ignore[arg-type]
            "put the ledger back if it is the last one, or begin with a new identity in another folder: that is a "
            "new budget, and both count"
        )


@contextlib.contextmanager
def _refusing(what: str) -> Iterator[None]:
    """Raise errors of the operating system as LedgerError with the words `what`."""
    try:
        yield
    except OSError as error:
        raise LedgerError(f"{what}: {error.strerror or error}") from error


# -- files -----------------------------------------------------------------------------------------------------------


def _content(path: str) -> bytes | None:
    """Return the content of a file, or None if the file does not exist."""
    try:
        with open(path, "rb") as file:
            return file.read()
    except FileNotFoundError:
        return None
