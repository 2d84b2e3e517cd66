"""``coterie lab``: many real peers on this machine, watched, disturbed, and compared with the exact optimum.

Every peer is a process of its own and talks to its neighbours by mutual TLS on the loopback address, as it would with
other computers. The folder of a lab:

======================  ==============================================================================================
``group``               the steward's folder
``p0``, ``p1``, ...     the peers' folders; beside the usual files ``rows.csv``, the ``work`` made of it, and ``log``
``p0/blocked``          addresses that a partition keeps away from a peer
``p0/paused``           the peer is stopped, and may be continued
``p0/start``            somebody asks the lab to start the peer again
``lock``, ``lab.json``  the process of the lab, and how many peers there are
``report.json``         what the lab saw when it looked last
======================  ==============================================================================================

Only the process of the lab starts peers; everything else may be done to them from anywhere.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import numpy as np
import typer
from rich.markup import escape
from rich.table import Table

from ..cli.console import AsJson, plain, show, talk
from ..cli.peers import app, usual_loss, usual_objective
from ..errors import DataError, IdentityError, MissingExtra, ParameterError

if TYPE_CHECKING:
    import pandas as pd

    from ..graphs import Graph
    from ..peers.agreement import Charter
    from ..problem import Problem

#: More peers than this are too many for one machine.
MOST = 500
#: Where peers listen: below the ports that systems give to outgoing connections, which could take that of a dead peer.
PORTS = range(10240, 32768)
#: For each processor: peers that start at the same time; and wakes in a second that it can do, with ten ties or so.
AT_ONCE, WAKES = 3, 50.0
#: Wakes of a peer in a second, if there are not too many of them.
RATE = 5.0
#: Wakes after which private peers have heard of each other what there is to hear.
SETTLED = 30
#: Seconds between two looks; for a peer to start or to end, at most; and between two lines where there is no terminal.
LOOK, START, END, LINE = 1.0, 60.0, 20.0, 10.0
#: Ends of a tie agree on its weight if they are as near as this, relative.
AGREED = 1e-6
#: Mean seconds between two faults, in a lab of one peer, and at least; and how long one lasts.
FAULTS, OFTEN, LASTS = 20.0, 0.75, (1.0, 6.0)
ACTIONS = ("kill", "start", "pause", "resume", "partition", "heal", "status", "stop")


class Task(NamedTuple):
    """What peers are to learn."""

    fields: dict[str, Any]  # of the charter
    agents: list[Any]  # whose rows they are
    frames: list[pd.DataFrame]  # the rows of each peer
    unseen: list[pd.DataFrame] | None  # rows that models are measured with
    graph: Graph | None  # None: ties to the nearest by local models
    neighbours: int


# -- what they learn --------------------------------------------------------------------------------------------------


def synthetic(n: int, features: int = 20, seed: int = 0, neighbours: int = 10) -> Task:
    """Peers that look for lines, some of which are alike: :func:`coterie.datasets.linear_classification`.

    Parameters
    ----------
    n, features : int
    seed : int
    neighbours : int
        Of the ties of the data set, each peer keeps so many, the heaviest, and those that others keep to it.

    Returns
    -------
    Task

    Examples
    --------
    >>> task = synthetic(5, features=3)
    >>> len(task.frames), task.graph.n
    (5, 5)
    """
    import pandas as pd

    from ..datasets import linear_classification

    rows = (10, 100)
    made = linear_classification(n=n, p=features, seed=seed, rows=rows)
    columns = [f"x{k}" for k in range(features)]

    def frames(data: Any) -> list[pd.DataFrame]:
        return [
            pd.DataFrame(data.X[a:b], columns=columns).assign(y=data.y[a:b].astype(int))
            for a, b in zip(data.start[:-1], data.start[1:], strict=True)
        ]

    fields = {"features": columns, "target": "y", "labels": ["-1", "1"], "intercept": False, "max_rows": rows[1]}
    graph = _max_weight(made.graph, neighbours)
    return Task(fields, list(range(n)), frames(made.train), frames(made.test), graph, neighbours)


def _max_weight(graph: Graph, most: int) -> Graph:
    """Ties that are among the heaviest of at least one of their ends."""
    from ..graphs import Graph

    W = graph.W.toarray()
    order = np.argsort(-W, axis=1, kind="stable")
    kept = np.zeros(W.shape, bool)
    np.put_along_axis(kept, order[:, :most], True, axis=1)
    return Graph(np.where(kept | kept.T, W, 0.0))


def from_table(
    table: Path, agent: str, target: str, n: int | None = None, ties: Path | None = None, neighbours: int = 10
) -> Task:
    """One peer for each agent of a table.

    Parameters
    ----------
    table : path
    agent, target : str
        Columns. Two values of the target are classes, more are numbers. All other columns are features; they are scaled
        to mean 0 and variance 1, which in a lab is public.
    n : int, optional
        Take the first so many agents.
    ties : path, optional
        As :func:`coterie.data.read_ties` reads them. Default: ties to those with the nearest local models.
    neighbours : int
        How many of them.

    Returns
    -------
    Task
    """
    import pandas as pd

    from ..data import AgentData
    from ..data.frames import split_frame
    from ..data.readers import read_table
    from ..graphs.reading import read_ties
    from ..peers.tables import spelt

    if agent == target:
        raise ParameterError(f"--agent and --target are both {agent!r}: they must be two columns")
    frame = read_table(table)
    features, [ids, y] = split_frame(frame, agent, target)
    for name in features.columns:
        if not pd.api.types.is_numeric_dtype(features[name]):
            raise DataError(f"{table}: column {name!r} does not hold numbers: turn it into numbers, or leave it out")
    everyone = AgentData(np.zeros((len(frame), 1)), agents=ids)
    if n is not None and n > everyone.n:
        raise ParameterError(f"{n} peers: {table} has rows of {everyone.n} agents only")
    classes = sorted({spelt(value) for value in y.unique()})
    if len(classes) != 2 and not pd.api.types.is_numeric_dtype(y):
        raise DataError(f"column {target!r} of {table} has {len(classes)} classes: peers know two, or numbers")
    values = features.to_numpy(float)
    spread = values.std(axis=0)
    owner = np.empty(len(frame), int)
    owner[everyone.origin] = everyone.owner
    number = everyone.n if n is None else n
    fields = {
        "features": [str(name) for name in features.columns],
        "target": target,
        "labels": classes if len(classes) == 2 else None,
        "center": values.mean(axis=0).tolist(),
        "scale": np.where(spread > 0, spread, 1.0).tolist(),
        "max_rows": int(everyone.sizes[:number].max()),
    }
    graph = None
    if ties is not None:
        from ..graphs import Graph

        graph = Graph(read_ties(ties, everyone.members).W[:number, :number])
    rows = frame.drop(columns=agent)
    frames = [rows[owner == i] for i in range(number)]
    return Task(fields, list(everyone.members[:number]), frames, None, graph, neighbours)


def terms(
    method: str = "cd",
    *,
    classes: bool = True,
    mu: float = 3.0,
    rate: float = RATE,
    learn: bool = False,
    epsilon: float | None = None,
) -> dict[str, Any]:
    """The fields of a charter that are not about the data.

    Parameters
    ----------
    method : str
    classes : bool
        Whether the target is one of two classes.
    mu, rate : float
    learn : bool
        Whether the peers learn the graph.
    epsilon : float, optional
        The budget, if they are private.

    Returns
    -------
    dict

    Examples
    --------
    >>> terms("admm")["objective"]
    'collaborative'
    """
    return {
        "method": method,
        "objective": usual_objective(method, epsilon is not None),
        "loss": usual_loss(method, classes),
        "mu": mu,
        "rate": rate,
        "letters_per_second": max(50.0, 25.0 * rate),
        "learned": {"lam": 1.0, "kappa": 3, "every": 10.0, "sampling": "shuffle"} if learn else None,
        "privacy": None if epsilon is None else {"epsilon": epsilon, "delta": 1e-5, "clip": 1.0, "bound": 1.0},
    }


# -- the lab ----------------------------------------------------------------------------------------------------------


class Lab:
    """Peers of a folder, as the process that starts them has them. Use it in a ``with`` statement.

    Parameters
    ----------
    folder : path
        Made, or emptied if it was that of a lab that has ended.
    task : Task
    **fields
        Of the charter: see :func:`terms`.

    Raises
    ------
    IdentityError
        A lab is running there, or something else is there.
    """

    def __init__(self, folder: str | os.PathLike[str], task: Task, **fields: Any):
        self.folder, self.task, self.fields = Path(folder).resolve(), task, fields
        self.n = len(task.frames)
        self.folders = [self.folder / f"p{i}" for i in range(self.n)]
        self.processes: list[subprocess.Popen[bytes] | None] = [None] * self.n
        self.codes: list[int | None] = [None] * self.n
        self.log: list[tuple[float, str]] = []  # what was done to the peers
        self.charter: Charter
        self._began = time.monotonic()
        self._held = contextlib.ExitStack()
        self._solved: tuple[np.ndarray, Problem, np.ndarray, float] | None = None

    def __enter__(self) -> Lab:
        from ..peers.files import private_folder
        from ..peers.program import only_one

        check_folder(self.folder)
        private_folder(self.folder)
        self._held.enter_context(only_one(self.folder))
        try:
            _clear(self.folder)
            self._prepare()
        except BaseException:
            self._held.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.stop()
        finally:
            self._held.close()

    # -- before they start --------------------------------------------------------------------------------------------

    def _prepare(self) -> None:
        """Keys, certificates, the list of members, and everybody's work: so that a process has little to do."""
        from ..data import AgentData
        from ..graphs import empty, knn
        from ..peers.files import write
        from ..peers.groups import create
        from ..peers.tables import check_charter, problem_of, rows_of, work_of
        from ..peers.work import write_work

        task, n = self.task, self.n
        write(self.folder / "lab.json", json.dumps({"format": 1, "peers": n}).encode(), durable=False)
        fields = {"title": "lab", **task.fields, **self.fields}
        check_charter(fields)
        self.charter = create(self.folder / "group", **fields)
        rows = [rows_of(self.charter, frame) for frame in task.frames]
        owner = np.repeat(np.arange(n), [len(y) for _, y in rows])
        X, y = (np.concatenate(parts) for parts in zip(*rows, strict=True))
        self._data = AgentData(X, y, agents=owner, members=range(n))
        if self.charter.learned is not None:
            self.graph = empty(n)  # they begin alone
        elif task.graph is not None:
            self.graph = task.graph
        else:
            alone = problem_of(self.charter, self._data, empty(n)).local()
            self.graph = knn(alone, min(task.neighbours, n - 1))
        _enroll(self.folder / "group", self.folders, _free_ports(n), self.graph)
        for i, (X, y) in enumerate(rows):
            work = work_of(self.charter, X, y)
            if task.unseen is not None:
                other = work_of(self.charter, *rows_of(self.charter, task.unseen[i]))
                work = work._replace(seen=other.seen, seen_labels=other.seen_labels, aside=True)
            task.frames[i].to_csv(self.folders[i] / "rows.csv", index=False)
            write(self.folders[i] / "work", write_work(work), secret=True, durable=False)
        if self.exact and self.charter.learned is None:
            self._optimum(self.graph.W.toarray())

    @property
    def exact(self) -> bool:
        """Whether there is an optimum to come to: private peers do not."""
        return self.charter.privacy is None

    # -- what is done to them -----------------------------------------------------------------------------------------

    def start(self, i: int) -> None:
        """Start a peer, which takes a second or so; nothing if it is running."""
        process = self.processes[i]
        if process is not None and process.poll() is None:
            return
        if process is not None:
            self._note(f"started p{i}")
        folder = self.folders[i]
        (folder / "paused").unlink(missing_ok=True)
        command = [sys.executable, "-m", "coterie", "peer", "run", str(folder), "--work", str(folder / "work"), "--lab"]
        # One thread for linear algebra: the peers share the processors.
        few = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "OPENBLAS", "MKL")}
        with (folder / "log").open("ab") as log:
            self.processes[i] = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=few | os.environ,
                start_new_session=True,  # Ctrl-C is for the lab, which then ends them in order
            )
        self.codes[i] = None

    def start_all(
        self, told: Callable[[int], None] = lambda up: None, stop: Callable[[], bool] = lambda: False
    ) -> None:
        """Start everybody, a few at a time, and wait until they are up.

        Parameters
        ----------
        told : callable
            Called with the number of those that are up.
        stop : callable
            True to stop waiting.
        """
        waiting, young, up = list(range(self.n))[::-1], dict[int, float](), set[int]()
        most = AT_ONCE * (os.cpu_count() or 1)
        while (waiting or young) and not stop():
            while waiting and len(young) < most:
                i = waiting.pop()
                self.start(i)
                young[i] = time.monotonic()
            for i, since in list(young.items()):
                if self.is_up(i):
                    del young[i]
                    up.add(i)
                elif (code := self._code(i)) is not None or time.monotonic() > since + START:
                    why = f"ended with code {code}" if code is not None else f"is not up after {START:g} s"
                    raise IdentityError(f"{self.folders[i].name} {why}: {_last_line(self.folders[i] / 'log')}")
            told(len(up))
            time.sleep(0.05)
        self._began = time.monotonic()

    def kill(self, i: int) -> None:
        """End a peer at once, as a crash would."""
        self._note(f"killed p{i}")
        kill(self.folders[i])
        process = self.processes[i]
        if process is not None:
            process.wait()

    def pause(self, i: int) -> None:
        """Let a peer hang."""
        self._note(f"paused p{i}")
        pause(self.folders[i])

    def resume(self, i: int) -> None:
        """Let it go on."""
        self._note(f"resumed p{i}")
        resume(self.folders[i])

    def partition(self, some: Iterable[int]) -> None:
        """Cut some peers off from the rest."""
        some = sorted(some)
        self._note(f"cut off {', '.join(f'p{i}' for i in some)}")
        partition(self.folders, some)

    def heal(self) -> None:
        """Undo the partition."""
        self._note("healed")
        partition(self.folders, [])

    def stop(self) -> None:
        """End everybody cleanly; those that do not end within some seconds, at once."""
        for folder, process in zip(self.folders, self.processes, strict=True):
            if process is not None and process.poll() is None:
                process.terminate()
                process.send_signal(signal.SIGCONT)
                (folder / "paused").unlink(missing_ok=True)
        deadline = time.monotonic() + END + 0.2 * self.n
        for i, process in enumerate(self.processes):
            if process is None:
                continue
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                self._note(f"p{i} did not end, and was killed")
                process.kill()
                process.wait()
            self._code(i)

    def obey(self) -> None:
        """Start those that somebody asks to start."""
        for i, folder in enumerate(self.folders):
            if (folder / "start").exists():
                (folder / "start").unlink()
                self.start(i)

    def _note(self, what: str) -> None:
        self.log.append((round(time.monotonic() - self._began, 1), what))

    # -- what can be seen ---------------------------------------------------------------------------------------------

    def _code(self, i: int) -> int | None:
        process = self.processes[i]
        if process is not None and process.poll() is not None:
            self.codes[i] = process.returncode
        return self.codes[i]

    def is_up(self, i: int) -> bool:
        """Whether a peer is running, and has said so."""
        process = self.processes[i]
        return process is not None and process.poll() is None and self._status(i).get("pid") == process.pid

    def state(self, i: int) -> str:
        """In one word or two."""
        if self.processes[i] is None:
            return "not started"
        code = self._code(i)
        if code is not None:
            return "killed" if code == -signal.SIGKILL else "stopped" if code == 0 else "failed"
        if (self.folders[i] / "paused").exists():
            return "paused"
        if not self.is_up(i):
            return "starting"
        away = _json(self.folders[i] / "blocked", [])
        return "cut off" if 2 * len(away) >= self.n else "up"

    def _status(self, i: int) -> dict[str, Any]:
        return _json(self.folders[i] / "status.json", {})

    def look(self) -> dict[str, Any]:
        """Everybody's state, and how far the models are from the optimum.

        Returns
        -------
        dict
            Also kept as ``report.json``.
        """
        statuses = [self._status(i) for i in range(self.n)]
        models = [_json(folder / "model.json", {}).get("published") for folder in self.folders]
        peers = [self._row(i, status) for i, status in enumerate(statuses)]
        report: dict[str, Any] = {
            "folder": str(self.folder),
            "run": self.charter.run,
            "method": self.charter.method,
            "seconds": round(time.monotonic() - self._began, 1),
            "peers": peers,
            "done": self.log,
            "gap": None,
        }
        if not self.exact:
            report |= {"epsilon": self.charter.privacy["epsilon"], "delta": self.charter.privacy["delta"]}  # type: ignore[index]
        elif all(model is not None for model in models):
            report |= self._compared(np.array(models, float), statuses, peers)
        from ..peers.files import write

        write(self.folder / "report.json", json.dumps(report, default=plain).encode(), durable=False)
        return report

    def _row(self, i: int, status: dict[str, Any]) -> dict[str, Any]:
        names = ["boot", "wakes", "letters_in", "letters_out", "score", "score_alone", "memory_mb"]
        names += ["releases", "releases_left"]
        row = {"name": self.folders[i].name, "agent": self.task.agents[i], "state": self.state(i), "distance": None}
        row |= {name: status[name] for name in names if name in status}
        return row | {"refused": sum(status.get("refused", {}).values())}

    def _compared(
        self, theta: np.ndarray, statuses: Sequence[dict[str, Any]], peers: Sequence[dict[str, Any]]
    ) -> dict[str, Any]:
        """Gap of the objective; and in their rows, the distances of the models from the optimum's."""
        W, apart = self.graph.W.toarray(), 0.0
        if self.charter.learned is not None:
            W = self._learned(statuses)
            apart = float(np.max(np.abs(W - W.T), initial=0.0) / max(np.max(W, initial=0.0), 1e-300))
            if apart > AGREED:
                return {"apart": apart}  # ends of ties do not agree yet, so there is no objective
            W = (W + W.T) / 2.0
        problem, best, value = self._optimum(W)
        for row, distance in zip(peers, np.linalg.norm(theta - best, axis=1), strict=True):
            row["distance"] = float(distance)
        gap = (problem.value(theta) - value) / (abs(value) or 1.0)
        found = {"gap": float(gap), "objective": float(problem.value(theta)), "optimum": float(value)}
        return found | ({"apart": apart, "ties": int(np.count_nonzero(W)) // 2} if self.charter.learned else {})

    def _learned(self, statuses: Sequence[dict[str, Any]]) -> np.ndarray:
        """Weights as the peers have them now."""
        W = np.zeros((self.n, self.n))
        for i, status in enumerate(statuses):
            for tie in status.get("ties", ()):
                W[i, int(tie["name"][1:])] = tie["weight"]
        return W

    def _optimum(self, W: np.ndarray) -> tuple[Problem, np.ndarray, float]:
        """Problem, exact models and their value; of a graph that has not changed, as before."""
        from ..graphs import Graph
        from ..peers.tables import problem_of

        if self._solved is None or not np.array_equal(self._solved[0], W):
            problem = problem_of(self.charter, self._data, Graph(W))
            best = problem.solve()
            self._solved = W, problem, best, float(problem.value(best))
        return self._solved[1:]


def _enroll(group: Path, folders: Sequence[Path], ports: Sequence[int], graph: Graph) -> None:
    """Everybody joins at once: as one invitation after the other, but with a single list of members."""
    from ..peers.agreement import Member, Roster, charter_json
    from ..peers.files import write
    from ..peers.groups import load_group, open_ledger, sign_next
    from ..peers.identity import MEMBER_DAYS, Identity, certificate_pem, make_csr, read_csr, sign_csr

    office = load_group(group)

    def join(i: int) -> Member:
        endpoint = f"127.0.0.1:{ports[i]}"
        me = Identity.make(folders[i], folders[i].name, endpoint)
        csr = read_csr(make_csr(me.tls, me.name, me.public), me.name, me.public)
        certificate = sign_csr(csr, office.ca_key, office.ca, name=me.name, endpoint=endpoint, days=MEMBER_DAYS)
        write(me.tls_certificate, certificate_pem(certificate), durable=False)
        write(me.ca_certificate, certificate_pem(office.ca), durable=False)
        write(me.charter, charter_json(office.charter), durable=False)
        open_ledger(me, office.charter)
        return Member(me.name, i, me.public, endpoint)

    with ThreadPoolExecutor(8) as pool:  # it is mostly the disk that they wait for
        members = list(pool.map(join, range(len(folders))))
    W = graph.W.tocoo()
    ties = [(int(a), int(b), float(w)) for a, b, w in zip(W.row, W.col, W.data, strict=True) if a < b and w > 0]
    signed = sign_next(office, Roster(office.charter.run, office.roster.version + 1, members, ties, []))
    for folder in (group, *folders):
        write(folder / "roster", signed, durable=False)


def _free_ports(n: int) -> list[int]:
    """Ports on loopback that nobody listens at."""
    found: list[int] = []
    begin = int.from_bytes(os.urandom(4), "little") % len(PORTS)
    for k in range(len(PORTS)):
        with socket.socket() as probe, contextlib.suppress(OSError):
            port = PORTS[(begin + k) % len(PORTS)]
            probe.bind(("127.0.0.1", port))
            found.append(port)
        if len(found) == n:
            return found
    raise ParameterError(f"there are no {n} free ports between {PORTS.start} and {PORTS.stop}")


def check_folder(folder: Path) -> None:
    """Refuse a folder that is in use, or not for labs.

    Parameters
    ----------
    folder : Path

    Examples
    --------
    >>> check_folder(Path("no/such/folder"))
    """
    from ..peers.program import running

    where = _with_option(folder)
    if running(folder) is not None:
        raise IdentityError(f"a lab is running in {folder}, as process {running(folder)}: coterie lab stop{where}")
    if (folder / "lab.json").exists():
        left = [peer.name for peer in peers_of(folder) if running(peer) is not None]
        if left:
            raise IdentityError(f"peers of an earlier lab still run in {folder}, {left[0]}: coterie lab stop{where}")
    elif folder.exists() and (not folder.is_dir() or any(one.name != "lock" for one in folder.iterdir())):
        raise IdentityError(f"{folder} is there already, and is not the folder of a lab: choose another --folder")


def _clear(folder: Path) -> None:
    """Remove an earlier lab; its mark goes last, so that it can be removed another time if something fails."""
    for one in sorted(folder.iterdir(), key=lambda path: path.name == "lab.json"):
        if one.is_dir() and not one.is_symlink():
            shutil.rmtree(one)
        elif one.name != "lock":
            one.unlink()


# -- what can be done from anywhere -----------------------------------------------------------------------------------


def peers_of(folder: Path) -> list[Path]:
    """The folders of the peers of a lab.

    Parameters
    ----------
    folder : Path

    Returns
    -------
    list of Path

    Raises
    ------
    IdentityError
        There is no lab.

    Examples
    --------
    >>> peers_of(Path("no/such/folder"))
    Traceback (most recent call last):
    ...
    coterie.errors.IdentityError: there is no lab in no/such/folder: coterie lab 20 --folder no/such/folder starts one
    """
    found = _json(folder / "lab.json", None)
    if found is None:
        raise IdentityError(f"there is no lab in {folder}: coterie lab 20{_with_option(folder)} starts one")
    return [folder / f"p{i}" for i in range(int(found["peers"]))]


def kill(folder: Path) -> None:
    """SIGKILL to the peer of a folder; returns when it is gone."""
    _signal(folder, signal.SIGKILL)
    (folder / "paused").unlink(missing_ok=True)
    _until(lambda: not _is_running(folder), END, f"{folder.name} does not end")


def pause(folder: Path) -> None:
    """SIGSTOP to the peer of a folder."""
    _signal(folder, signal.SIGSTOP)
    (folder / "paused").touch()


def resume(folder: Path) -> None:
    """SIGCONT to the peer of a folder."""
    _signal(folder, signal.SIGCONT)
    (folder / "paused").unlink(missing_ok=True)


def partition(folders: Sequence[Path], some: Sequence[int]) -> None:
    """No letters between some peers and the rest; with nobody in ``some``, letters between all."""
    from ..peers.files import write

    rest = [i for i in range(len(folders)) if i not in set(some)]
    for i, folder in enumerate(folders):
        away = rest if i in set(some) else list(some)
        write(folder / "blocked", json.dumps(away).encode(), secret=True, durable=False)


def _signal(folder: Path, number: int) -> None:
    from ..peers.program import running

    pid = running(folder)
    if pid is None:
        raise IdentityError(f"{folder.name} is not running")
    with contextlib.suppress(ProcessLookupError):  # it has just ended
        os.kill(pid, number)


def _is_running(folder: Path) -> bool:
    from ..peers.program import running

    return running(folder) is not None


def _until(holds: Callable[[], bool], seconds: float, otherwise: str) -> None:
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            raise IdentityError(f"{otherwise} within {seconds:g} s")
        time.sleep(0.05)


def stop_lab(folder: Path) -> list[str]:
    """End the lab of a folder, and whatever is left of it.

    Parameters
    ----------
    folder : Path

    Returns
    -------
    list of str
        Names of the peers that nobody else ended.
    """
    folders = peers_of(folder)
    if _is_running(folder):
        _signal(folder, signal.SIGTERM)
        _until(lambda: not _is_running(folder), 2 * END + 0.2 * len(folders), "the lab does not end")
    left = [peer for peer in folders if _is_running(peer)]
    for number, seconds in ((signal.SIGTERM, END), (signal.SIGKILL, END)):
        for peer in left:
            with contextlib.suppress(IdentityError):
                _signal(peer, number)
                resume(peer)
        with contextlib.suppress(IdentityError):
            _until(lambda: not any(_is_running(peer) for peer in left), seconds, "peers do not end")
    return [peer.name for peer in left]


def _json(path: Path, otherwise: Any) -> Any:
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError):
        return otherwise


def _last_line(path: Path) -> str:
    lines = path.read_text(errors="replace").strip().splitlines() if path.exists() else []
    return lines[-1] if lines else "it says nothing"


# -- faults -----------------------------------------------------------------------------------------------------------


class Faults:
    """Kills, pauses and partitions, drawn from a seed; each is undone after some seconds.

    Parameters
    ----------
    lab : Lab
    seed : int
    until : float
        Seconds, on the clock that :meth:`step` is told: from then on everything is well.
    """

    def __init__(self, lab: Lab, seed: int, until: float):
        self.lab, self.until = lab, until
        self._rng = np.random.default_rng([seed, 5])
        self._next = self._pause()
        self._undo: list[tuple[float, int, Callable[[], None]]] = []

    def _pause(self) -> float:
        return float(self._rng.exponential(max(OFTEN, FAULTS / self.lab.n)))

    def step(self, now: float) -> bool:
        """Do what is due; whether there is more to come."""
        lab, rng = self.lab, self._rng
        for item in [item for item in self._undo if item[0] <= now or now >= self.until]:
            self._undo.remove(item)
            with contextlib.suppress(IdentityError):  # somebody else has killed it
                item[2]()
        while self._next <= now < self.until:
            self._next += self._pause()
            kind, i, lasts = rng.random(), int(rng.integers(lab.n)), float(rng.uniform(*LASTS))
            some = rng.permutation(lab.n)[: int(rng.integers(1, max(2, lab.n // 2 + 1)))]
            busy = {j for _, j, _ in self._undo}
            if kind < 0.15 and -1 not in busy:
                lab.partition(int(j) for j in some)
                self._undo.append((now + lasts, -1, lab.heal))
            elif i not in busy and lab.is_up(i):
                if kind < 0.6:
                    lab.kill(i)
                    self._undo.append((now + lasts, i, lambda i=i: lab.start(i)))  # type: ignore[misc]
                else:
                    lab.pause(i)
                    self._undo.append((now + lasts, i, lambda i=i: lab.resume(i)))  # type: ignore[misc]
        return bool(self._undo) or now < self.until


# -- watching ---------------------------------------------------------------------------------------------------------


def watch(
    lab: Lab,
    seconds: float = 60.0,
    tolerance: float = 1e-6,
    faults: Faults | None = None,
    told: Callable[[dict[str, Any]], None] = lambda report: None,
    stop: threading.Event | None = None,
) -> dict[str, Any]:
    """Look at the peers until their models are at the optimum, or the time is over; then end them.

    Parameters
    ----------
    lab : Lab
        That has started.
    seconds : float
    tolerance : float
        Relative gap of the objective. Private peers: until their budgets are spent, and some wakes more.
    faults : Faults, optional
    told : callable
        Called with what was seen.
    stop : threading.Event, optional
        Ends it early.

    Returns
    -------
    dict
        What there was in the end, as :meth:`Lab.look` says it, and ``reached``.
    """
    stop = stop or threading.Event()
    began = time.monotonic()
    while (now := time.monotonic() - began) < seconds and not stop.is_set():
        lab.obey()
        more = faults.step(now) if faults is not None else False
        report = lab.look()
        told(report | {"left": seconds - now})
        if _reached(report, tolerance) and not more:
            break
        stop.wait(min(LOOK, max(0.0, seconds - now)))
    if faults is not None:
        faults.step(np.inf)
    taken = time.monotonic() - began
    states = [lab.state(i) for i in range(lab.n)]
    lab.stop()
    report = lab.look()
    for row, state in zip(report["peers"], states, strict=True):
        row["state"] = state  # what it was before all were stopped
    return report | {"seconds": round(taken, 1), "tolerance": tolerance, "reached": _reached(report, tolerance)}


def _reached(report: dict[str, Any], tolerance: float) -> bool:
    if "epsilon" in report:
        return all(row.get("releases_left") == 0 and row["wakes"] >= SETTLED for row in report["peers"])
    return report["gap"] is not None and report["gap"] <= tolerance


def table_of(report: dict[str, Any]) -> Table:
    """What was seen, to be shown."""
    peers = report["peers"]
    private = "epsilon" in report
    states = [row["state"] for row in peers]
    counts = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(sorted(states, reverse=True)))
    parts = [f"{report['method']}: {counts}", f"{report['seconds']:.0f} s"]
    if not report.get("running", True):
        parts.insert(0, "this lab has ended, and its peers with it; before that")
    if private:
        parts.append(f"private, epsilon {report['epsilon']:g}")
    elif report["gap"] is not None:
        parts.append(f"gap {report['gap']:.1e}")
    elif report.get("apart"):
        parts.append("ends of ties do not agree yet")
    table = Table(title="; ".join(parts))
    table.add_column("peer", no_wrap=True)
    table.add_column("state", no_wrap=True)
    columns = ("wakes", "in", "out", "refused", "score", "alone", "releases" if private else "distance")
    for column in columns:
        table.add_column(column, justify="right")
    colours = {"up": "green", "paused": "yellow", "cut off": "magenta", "killed": "red", "failed": "bold red"}
    for row in peers:
        name = row["name"] if row["name"] == f"p{row['agent']}" else f"{row['name']} {row['agent']}"
        state = row["state"]
        numbers = [f"{row[key]:,}" if key in row else "" for key in ("wakes", "letters_in", "letters_out", "refused")]
        numbers += [f"{row[key]:.3f}" if row.get(key) is not None else "" for key in ("score", "score_alone")]
        if private:
            made, left = row.get("releases"), row.get("releases_left")
            numbers.append("" if made is None or left is None else f"{made} of {made + left}")
        else:
            numbers.append("" if row["distance"] is None else f"{row['distance']:.1e}")
        colour = colours.get(state)
        table.add_row(escape(name), f"[{colour}]{state}[/]" if colour else state, *numbers)
    return table


@contextlib.contextmanager
def _shown(quiet: bool) -> Iterator[Callable[[dict[str, Any]], None]]:
    """Show reports on standard error: a table that changes, or a line now and then where there is no terminal."""
    if quiet:
        yield lambda report: None
    elif talk.is_terminal:
        from rich.live import Live

        with Live(console=talk, auto_refresh=False, transient=True) as live:
            yield lambda report: live.update(table_of(report), refresh=True)
    else:
        last = [-LINE]

        def line(report: dict[str, Any]) -> None:
            if report["seconds"] >= last[0] + LINE:
                last[0] = report["seconds"]
                talk.print(str(table_of(report).title), soft_wrap=True)

        yield line


@contextlib.contextmanager
def _until_signal() -> Iterator[threading.Event]:
    """Set by Ctrl-C, and by the signals that want a process to end."""
    stop, before = threading.Event(), {}
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        before[number] = signal.signal(number, lambda *_: stop.set())
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# -- the command ------------------------------------------------------------------------------------------------------


@app.command("lab")
def lab_command(
    action: Annotated[
        str | None,
        typer.Argument(metavar="N|ACTION", help=f"A number of peers to start; or {', '.join(ACTIONS)}."),
    ] = None,
    who: Annotated[
        list[str] | None, typer.Argument(help="For kill, start, pause, resume, partition: which, such as 3 or 0-4.")
    ] = None,
    folder: Annotated[Path, typer.Option(help="Of the lab; kept when it ends, replaced by the next.")] = Path(
        "coterie-lab"
    ),
    data: Annotated[
        Path | None, typer.Option(help="A table, one peer for each of its agents. Without: synthetic rows.")
    ] = None,
    agent: Annotated[str | None, typer.Option(help="With --data: the column that says whose row it is.")] = None,
    target: Annotated[str | None, typer.Option(help="With --data: the column to predict.")] = None,
    ties: Annotated[
        Path | None, typer.Option(help="With --data: a table of ties with columns agent, peer, weight.")
    ] = None,
    neighbours: Annotated[int, typer.Option(help="Nearest peers that a peer is tied to.", min=1)] = 10,
    method: Annotated[str, typer.Option(help="cd, propagation, admm, djam or boosting.")] = "cd",
    mu: Annotated[float, typer.Option(help="Own data against agreement with neighbours.")] = 3.0,
    learn: Annotated[bool, typer.Option("--learn", help="The peers learn who collaborates with whom.")] = False,
    epsilon: Annotated[float | None, typer.Option(help="Privacy: the budget of each peer.")] = None,
    rate: Annotated[
        float | None,
        typer.Option(help="Wakes of a peer in a second. Default: 5, or what the processors can do for so many peers."),
    ] = None,
    seconds: Annotated[float, typer.Option(help="Stop after so many, from when all are up.", min=0)] = 60.0,
    tolerance: Annotated[
        float, typer.Option(help="Stop when the objective is so near the optimum, relative.", min=0)
    ] = 1e-6,
    features: Annotated[int, typer.Option(help="Of synthetic rows.", min=2, max=10_000)] = 20,
    faults: Annotated[
        bool, typer.Option("--faults", help="For half of the time, now and then kill, pause and cut off peers.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Of synthetic rows and of faults.", min=0)] = 0,
    as_json: AsJson = False,
) -> None:
    """Run N real peers on this machine, and compare them with the exact optimum; or do something to them.

    From another terminal, while it runs: coterie lab kill 3 (kill -9), start 3, pause 3, resume 3, partition 0-4 (those
    against the rest), heal, status, stop.
    """
    if os.name != "posix":  # pragma: no cover - not on this platform
        raise ParameterError("a lab needs signals of POSIX: it runs on Linux and macOS")
    if action in ACTIONS:
        _act(action, who or [], folder, as_json)
        return
    if who:
        raise ParameterError(f"{' '.join(who)}: only {', '.join(ACTIONS[:5])} are done to some of the peers")
    n = _count(action, data)
    if data is None and (agent is not None or target is not None or ties is not None):
        raise ParameterError("--agent, --target and --ties go with --data")
    if data is not None and (agent is None or target is None):
        raise ParameterError("--data needs --agent and --target, the columns that say whose row it is, and what")
    if importlib.util.find_spec("zenoh") is None:
        raise MissingExtra('peers on a network need Zenoh: pip install "coterie[network]"')
    if method == "gossip-pooling":
        raise ParameterError(
            "--method gossip-pooling minimises no objective, and the lab measures how near peers come to the minimum "
            "of one: watch it in ct.simulate, or found a group of real peers with coterie group create"
        )
    check_folder(folder)
    with _until_signal() as stop:
        if data is not None:
            task = from_table(data, agent or "", target or "", n, ties, neighbours)
        else:
            task = synthetic(n or 0, features, seed, neighbours)
        rate = min(RATE, WAKES * (os.cpu_count() or 1) / len(task.frames)) if rate is None else rate
        classes = task.fields["labels"] is not None
        fields = terms(method, classes=classes, mu=mu, rate=rate, learn=learn, epsilon=epsilon)
        report = _run(Lab(folder, task, **fields), seconds, tolerance, seed if faults else None, stop, as_json)
    show(report, _conclusion(report), as_json)


def _run(
    lab: Lab, seconds: float, tolerance: float, faults: int | None, stop: threading.Event, quiet: bool
) -> dict[str, Any]:
    """From nothing to the last report."""
    began = time.monotonic()
    with contextlib.ExitStack() as stack:
        status = None if quiet else stack.enter_context(talk.status(f"keys and rows of {lab.n} peers"))
        stack.enter_context(lab)
        lab.start_all(lambda up: status.update(f"{up} of {lab.n} peers are up") if status else None, stop.is_set)
        up = round(time.monotonic() - began, 1)
        if status is not None:
            status.stop()
            talk.print(f"{lab.n} peers up after {up:.0f} s, in {lab.folder}")
        drawn = None if faults is None else Faults(lab, faults, seconds / 2.0)
        with _shown(quiet) as told:
            report = watch(lab, seconds, tolerance, drawn, told, stop) | {"start_up": up}
        from ..peers.files import write

        write(lab.folder / "report.json", json.dumps(report, default=plain).encode(), durable=False)
        return report


def _count(action: str | None, data: Path | None) -> int | None:
    if action is None and data is not None:
        return None
    try:
        n = int(action or "")
    except ValueError:
        raise ParameterError(
            f"{action or 'nothing'}: give a number of peers to start, or one of {', '.join(ACTIONS)}"
        ) from None
    if not 1 < n <= MOST:
        raise ParameterError(f"{n} peers: a lab has 2 to {MOST}")
    return n


def _act(action: str, who: Sequence[str], folder: Path, as_json: bool) -> None:
    """One of the actions, on a lab that another process runs."""
    from ..peers.program import running

    folders = peers_of(folder)
    if action == "status":
        report = _json(folder / "report.json", None)
        if report is None:
            raise IdentityError(f"the lab in {folder} has not seen its peers yet")
        report["running"] = running(folder) is not None
        show(report, table_of(report), as_json)
        return
    if action == "stop":
        lab = running(folder)
        left = stop_lab(folder)
        if lab is None and not left:
            raise IdentityError(f"no lab is running in {folder}")
        others = f"; peers it had left: {', '.join(left)}" if left else ""
        show({"stopped": lab, "left": left}, f"stopped the lab in {folder}{others}", as_json)
        return
    if running(folder) is None:
        raise IdentityError(f"no lab is running in {folder}")
    if action == "heal":
        if who:
            raise ParameterError(f"heal {' '.join(who)}: it brings all together, leave out whom")
        partition(folders, [])
        show({"healed": len(folders)}, "letters go everywhere again", as_json)
        return
    some = _numbers(action, who, len(folders))
    if action == "partition":
        if len(some) == len(folders):
            raise ParameterError(f"partition {' '.join(who)}: nobody is left on the other side")
        partition(folders, some)
    else:
        act = {"kill": kill, "pause": pause, "resume": resume, "start": _ask_to_start}[action]
        for i in some:
            act(folders[i])
    done = {"kill": "killed", "pause": "paused", "resume": "resumed", "start": "started", "partition": "cut off"}
    names = ", ".join(f"p{i}" for i in some)
    show({done[action]: some}, f"{done[action]}: {names}", as_json)


def _ask_to_start(folder: Path) -> None:
    if _is_running(folder):
        raise IdentityError(f"{folder.name} is running already")
    (folder / "start").touch()
    _until(lambda: _is_running(folder), START, f"{folder.name} has not started")


def _numbers(action: str, who: Sequence[str], n: int) -> list[int]:
    """Peers from what was typed: 3, p3, 0-4, 1,5-7."""
    if not who:
        raise ParameterError(f"{action} whom? Give numbers of peers, such as 3 or 0-4")
    found: set[int] = set()
    for part in (part for text in who for part in text.split(",")):
        first, dash, last = part.partition("-")
        try:
            low = int(first.removeprefix("p"))
            high = int(last.removeprefix("p")) if dash else low
        except ValueError:
            raise ParameterError(f"{part!r} is no peer: give numbers, such as 3 or 0-4") from None
        for i in (low, high):
            if not 0 <= i < n:
                raise ParameterError(f"there is no peer {i}: they are 0 to {n - 1}")
        if high < low:
            raise ParameterError(f"{part}: the first number must be the smaller one")
        found |= set(range(low, high + 1))
    return sorted(found)


def _with_option(folder: Path) -> str:
    return "" if folder.resolve() == Path("coterie-lab").resolve() else f" --folder {folder}"


def _conclusion(report: dict[str, Any]) -> Table:
    table = table_of(report)
    if "epsilon" in report:
        table.caption = "score: on rows of the peer's own. Private peers do not come to the optimum"
    elif report["gap"] is None:
        table.caption = "not compared with the optimum: " + (
            "ends of ties do not agree" if report.get("apart") else "some peers have no model"
        )
    else:
        sign = "<=" if report["reached"] else ">"
        table.caption = (
            f"relative gap of the objective to the exact optimum: {report['gap']:.2e} {sign} {report['tolerance']:g}; "
            "distance: of a model from its exact one"
        )
    return table
