"""The peers of a lab folder as seen by the process that starts them; faults; and convergence to the optimum."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ..._files import Where, plain, private_folder, write_atomic
from ...data import AgentData
from ...errors import IdentityError
from ...graphs import Graph, empty, knn
from ..group.groups import Newcomer, create, enroll_all
from ..model.tables import problem_of, rows_of, work_of
from ..model.work import write_work
from ..node.process import only_one
from . import processes
from .processes import END_TIMEOUT, START_TIMEOUT, check_folder, free_ports, read_json
from .tasks import LabTask

if TYPE_CHECKING:
    from ...problem import Problem
    from ..group.charter import Charter

#: Maximal number of peers that start at the same time, per processor.
STARTS_PER_PROCESSOR = 3
#: Number of wakes after which private peers have received all messages of interest.
SETTLED_WAKES = 30
#: Seconds between two looks at the peers.
LOOK_EVERY = 1.0
#: Relative difference up to which the two ends of an edge agree on its weight.
WEIGHT_TOLERANCE = 1e-6
#: Mean seconds between two faults in a lab of one peer; minimal seconds; and the range of seconds that a fault lasts.
FAULT_EVERY, MIN_FAULT_EVERY, FAULT_SECONDS = 20.0, 0.75, (1.0, 6.0)


class Lab:
    """Real peers, each in a process, in a new folder or that of an ended lab, for a ``with`` statement.

    ``fields`` are those of the charter that the task does not set: :func:`~coterie.peers.lab.tasks.charter_fields`.
    """

    def __init__(self, folder: Where, task: LabTask, **fields: Any):
        self.folder, self.task, self.fields = Path(folder).resolve(), task, fields
        self.n = len(task.frames)
        self.folders = [self.folder / f"p{i}" for i in range(self.n)]
        self.processes: list[subprocess.Popen[bytes] | None] = [None] * self.n
        self.codes: list[int | None] = [None] * self.n
        self.log: list[tuple[float, str]] = []  # what was done to the peers, and when
        self.charter: Charter
        self._began = time.monotonic()
        self._held = contextlib.ExitStack()
        self._solved: tuple[np.ndarray, Problem, np.ndarray, float] | None = None

    def __enter__(self) -> Lab:
        check_folder(self.folder)
        private_folder(self.folder)
        self._held.enter_context(only_one(self.folder))
        try:
            processes.clear(self.folder)
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

    # -- preparation --------------------------------------------------------------------------------------------------

    def _prepare(self) -> None:
        """Make keys, certificates, the roster, and every peer's work, so that its process has little to do."""
        task, n = self.task, self.n
        write_atomic(self.folder / "lab.json", json.dumps({"format": 1, "peers": n}).encode(), durable=False)
        fields = {"title": "lab", **task.fields, **self.fields}
        self.charter = create(self.folder / "group", **fields)
        rows = [rows_of(self.charter, frame) for frame in task.frames]
        owner = np.repeat(np.arange(n), [len(y) for _, y in rows])
        X, y = (np.concatenate(parts) for parts in zip(*rows, strict=True))
        self._data = AgentData(X, y, agents=owner, members=range(n))
        if self.charter.learned is not None:
            self.graph = empty(n)  # peers begin without edges
        elif task.graph is not None:
            self.graph = task.graph
        else:
            alone = problem_of(self.charter, self._data, empty(n)).local()
            self.graph = knn(alone, min(task.neighbours, n - 1))
        self._enroll()
        for i, (X, y) in enumerate(rows):
            work = work_of(self.charter, X, y)
            if task.unseen is not None:
                other = work_of(self.charter, *rows_of(self.charter, task.unseen[i]))
                work = work._replace(seen=other.seen, seen_labels=other.seen_labels, aside=True)
            task.frames[i].to_csv(self.folders[i] / "rows.csv", index=False)
            write_atomic(self.folders[i] / "work", write_work(work), private=True, durable=False)
        if self.exact and self.charter.learned is None:
            self._optimum(self.graph.W.toarray())

    def _enroll(self) -> None:
        """Enrol all peers at once, in a single version of the roster."""
        W, new = self.graph.W.toarray(), []
        for i, (folder, port) in enumerate(zip(self.folders, free_ports(self.n), strict=True)):
            edges = {self.folders[j].name: float(W[i, j]) for j in np.flatnonzero(W[i, :i] > 0)}
            new.append(Newcomer(folder, folder.name, f"127.0.0.1:{port}", edges))
        enroll_all(self.folder / "group", new, durable=False)

    @property
    def exact(self) -> bool:
        """Whether there is an optimum to reach; private peers do not reach it."""
        return self.charter.privacy is None

    # -- actions on peers ---------------------------------------------------------------------------------------------

    def start(self, i: int) -> None:
        """Start a peer, unless it is running. This takes about a second."""
        process = self.processes[i]
        if process is not None and process.poll() is None:
            return
        if process is not None:
            self._note(f"started p{i}")
        folder = self.folders[i]
        (folder / "paused").unlink(missing_ok=True)
        command = [sys.executable, "-m", "coterie", "peer", "run", str(folder), "--work", str(folder / "work"), "--lab"]
        # One thread for linear algebra, because the peers share the processors.
        few = {f"{library}_NUM_THREADS": "1" for library in ("OMP", "OPENBLAS", "MKL")}
        with (folder / "log").open("ab") as log:
            self.processes[i] = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=few | os.environ,
                start_new_session=True,  # Ctrl-C goes to the lab only, which then ends the peers in order
            )
        self.codes[i] = None

    def start_all(
        self, started: Callable[[int], None] = lambda up: None, stop: Callable[[], bool] = lambda: False
    ) -> None:
        """Start all peers, a few at a time, and wait until they are up, or until ``stop`` returns True.

        ``started`` is called with the number of peers that are up.
        """
        waiting, young, up = list(range(self.n))[::-1], dict[int, float](), set[int]()
        most = STARTS_PER_PROCESSOR * (os.cpu_count() or 1)
        while (waiting or young) and not stop():
            while waiting and len(young) < most:
                i = waiting.pop()
                self.start(i)
                young[i] = time.monotonic()
            for i, since in list(young.items()):
                if self.is_up(i):
                    del young[i]
                    up.add(i)
                elif (code := self._code(i)) is not None or time.monotonic() > since + START_TIMEOUT:
                    why = f"ended with code {code}" if code is not None else f"is not up after {START_TIMEOUT:g} s"
                    raise IdentityError(f"{self.folders[i].name} {why}: {_last_line(self.folders[i] / 'log')}")
            started(len(up))
            time.sleep(0.05)
        self._began = time.monotonic()

    def kill(self, i: int) -> None:
        """Kill a peer, as a crash would end it."""
        self._note(f"killed p{i}")
        processes.kill(self.folders[i])
        process = self.processes[i]
        if process is not None:
            process.wait()

    def pause(self, i: int) -> None:
        """Pause a peer."""
        self._note(f"paused p{i}")
        processes.pause(self.folders[i])

    def resume(self, i: int) -> None:
        """Resume a paused peer."""
        self._note(f"resumed p{i}")
        processes.resume(self.folders[i])

    def partition(self, some: Iterable[int]) -> None:
        """Cut some peers off from the rest."""
        some = sorted(some)
        self._note(f"cut off {', '.join(f'p{i}' for i in some)}")
        processes.partition(self.folders, some)

    def heal(self) -> None:
        """Undo the partition."""
        self._note("healed")
        processes.partition(self.folders, [])

    def stop(self) -> None:
        """End all peers cleanly, and kill those that have not ended after some seconds."""
        for folder, process in zip(self.folders, self.processes, strict=True):
            if process is not None and process.poll() is None:
                process.terminate()
                process.send_signal(signal.SIGCONT)
                (folder / "paused").unlink(missing_ok=True)
        deadline = time.monotonic() + END_TIMEOUT + 0.2 * self.n
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
        """Start the peers that another process has asked to start."""
        for i, folder in enumerate(self.folders):
            if (folder / "start").exists():
                (folder / "start").unlink()
                self.start(i)

    def _note(self, what: str) -> None:
        self.log.append((round(time.monotonic() - self._began, 1), what))

    # -- state and report ---------------------------------------------------------------------------------------------

    def _code(self, i: int) -> int | None:
        process = self.processes[i]
        if process is not None and process.poll() is not None:
            self.codes[i] = process.returncode
        return self.codes[i]

    def is_up(self, i: int) -> bool:
        """Whether a peer is running, and has written a status."""
        process = self.processes[i]
        return process is not None and process.poll() is None and self._status(i).get("pid") == process.pid

    def state(self, i: int) -> str:
        """Return the state of a peer in one or two words."""
        if self.processes[i] is None:
            return "not started"
        code = self._code(i)
        if code is not None:
            return "killed" if code == -signal.SIGKILL else "stopped" if code == 0 else "failed"
        if (self.folders[i] / "paused").exists():
            return "paused"
        if not self.is_up(i):
            return "starting"
        blocked = read_json(self.folders[i] / "blocked", [])
        return "cut off" if 2 * len(blocked) >= self.n else "up"

    def _status(self, i: int) -> dict[str, Any]:
        return read_json(self.folders[i] / "status.json", {})

    def look(self) -> dict[str, Any]:
        """Return all peers' states and the distance of the models from the optimum; also written to ``report.json``."""
        statuses = [self._status(i) for i in range(self.n)]
        models = [read_json(folder / "model.json", {}).get("published") for folder in self.folders]
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
        self.write_report(report)
        return report

    def write_report(self, report: dict[str, Any]) -> None:
        """Write a report for other processes."""
        write_atomic(self.folder / "report.json", json.dumps(report, default=plain).encode(), durable=False)

    def _row(self, i: int, status: dict[str, Any]) -> dict[str, Any]:
        names = ["starts", "wakes", "messages_in", "messages_out", "score", "score_alone", "memory_mb"]
        names += ["releases", "releases_left"]
        row = {"name": self.folders[i].name, "agent": self.task.agents[i], "state": self.state(i), "distance": None}
        row |= {name: status[name] for name in names if name in status}
        return row | {"refused": sum(status.get("refused", {}).values())}

    def _compared(
        self, theta: np.ndarray, statuses: Sequence[dict[str, Any]], peers: Sequence[dict[str, Any]]
    ) -> dict[str, Any]:
        """Return the gap of the objective, and set the distance of each model from the optimum in its row."""
        W, apart = self.graph.W.toarray(), 0.0
        if self.charter.learned is not None:
            W = self._learned(statuses)
            apart = float(np.max(np.abs(W - W.T), initial=0.0) / max(np.max(W, initial=0.0), 1e-300))
            if apart > WEIGHT_TOLERANCE:
                return {"apart": apart}  # ends of edges do not agree yet, so there is no common objective
            W = (W + W.T) / 2.0
        problem, best, value = self._optimum(W)
        for row, distance in zip(peers, np.linalg.norm(theta - best, axis=1), strict=True):
            row["distance"] = float(distance)
        gap = (problem.value(theta) - value) / (abs(value) or 1.0)
        found = {"gap": float(gap), "objective": float(problem.value(theta)), "optimum": float(value)}
        return found | ({"apart": apart, "edges": int(np.count_nonzero(W)) // 2} if self.charter.learned else {})

    def _learned(self, statuses: Sequence[dict[str, Any]]) -> np.ndarray:
        """Return the weights that the peers have learned so far."""
        W = np.zeros((self.n, self.n))
        for i, status in enumerate(statuses):
            for edge in status.get("edges", ()):
                W[i, int(edge["name"][1:])] = edge["weight"]
        return W

    def _optimum(self, W: np.ndarray) -> tuple[Problem, np.ndarray, float]:
        """Return problem, exact models and their value. The last result is kept while the graph does not change."""
        if self._solved is None or not np.array_equal(self._solved[0], W):
            problem = problem_of(self.charter, self._data, Graph(W))
            best = problem.solve()
            self._solved = W, problem, best, float(problem.value(best))
        return self._solved[1:]


def _last_line(path: Path) -> str:
    lines = path.read_text(errors="replace").strip().splitlines() if path.exists() else []
    return lines[-1] if lines else "it says nothing"


# -- faults -----------------------------------------------------------------------------------------------------------


class Faults:
    """Kills, pauses and partitions, drawn from a seed. Each is undone after some seconds, and all are undone at
    ``until``.
    """

    def __init__(self, lab: Lab, seed: int, until: float):
        self.lab, self.until = lab, until
        self._rng = np.random.default_rng([seed, 5])
        self._next = self._pause()
        self._undo: list[tuple[float, int, Callable[[], None]]] = []

    def _pause(self) -> float:
        return float(self._rng.exponential(max(MIN_FAULT_EVERY, FAULT_EVERY / self.lab.n)))

    def step(self, now: float) -> bool:
        """Do what is due, and return whether more faults or repairs are to come."""
        lab, rng = self.lab, self._rng
        for item in [item for item in self._undo if item[0] <= now or now >= self.until]:
            self._undo.remove(item)
            with contextlib.suppress(IdentityError):  # another process has killed the peer
                item[2]()
        while self._next <= now < self.until:
            self._next += self._pause()
            kind, i, lasts = rng.random(), int(rng.integers(lab.n)), float(rng.uniform(*FAULT_SECONDS))
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
    seen: Callable[[dict[str, Any]], None] = lambda report: None,
    stop: threading.Event | None = None,
) -> dict[str, Any]:
    """Watch the peers until their models are at the optimum, or the time is over; then end them.

    The tolerance is the relative gap of the objective. Private peers run until their budgets are spent, and some wakes
    longer. ``seen`` is called with every report; ``stop`` ends the watch early. The last report has a field
    ``reached``.
    """
    stop = stop or threading.Event()
    began = time.monotonic()
    while (now := time.monotonic() - began) < seconds and not stop.is_set():
        lab.obey()
        more = faults.step(now) if faults is not None else False
        report = lab.look()
        seen(report | {"left": seconds - now})
        if _reached(report, tolerance) and not more:
            break
        stop.wait(min(LOOK_EVERY, max(0.0, seconds - now)))
    if faults is not None:
        faults.step(np.inf)
    taken = time.monotonic() - began
    states = [lab.state(i) for i in range(lab.n)]
    lab.stop()
    report = lab.look()
    for row, state in zip(report["peers"], states, strict=True):
        row["state"] = state  # the state before all peers were stopped
    return report | {"seconds": round(taken, 1), "tolerance": tolerance, "reached": _reached(report, tolerance)}


def _reached(report: dict[str, Any], tolerance: float) -> bool:
    if "epsilon" in report:
        return all(row.get("releases_left") == 0 and row["wakes"] >= SETTLED_WAKES for row in report["peers"])
    return report["gap"] is not None and report["gap"] <= tolerance
