"""``coterie lab``: many real peers on this machine, watched, disturbed, and compared with the exact optimum."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from ..errors import IdentityError, ParameterError
from .console import AsJson, bar, columns, show, talk, until_signal, waiting
from .peers import app

if TYPE_CHECKING:
    from ..peers.lab import Lab

#: Maximum number of peers in a lab on one machine.
MAX_PEERS = 500
#: Wakes per second that a processor can do, with about ten edges for each peer.
MAX_WAKES_PER_CORE = 50.0
#: Seconds between two lines of progress without a terminal.
SECONDS_PER_LINE = 10.0
ACTIONS = ("kill", "start", "pause", "resume", "partition", "heal", "status", "stop")


@app.command("lab")
def lab_command(
    action: Annotated[
        str | None, typer.Argument(metavar="N|ACTION", help=f"A number of peers to start; or {', '.join(ACTIONS)}.")
    ] = None,
    who: Annotated[
        list[str] | None,
        typer.Argument(help="For kill, start, pause, resume, partition: numbers of peers, such as 3 or 0-4."),
    ] = None,
    folder: Annotated[
        Path, typer.Option(help="Folder of the lab; kept at its end, and replaced by the next lab.")
    ] = Path("coterie-lab"),
    data: Annotated[
        Path | None, typer.Option(help="A table, with one peer for each of its agents. Default: synthetic rows.")
    ] = None,
    agent: Annotated[str | None, typer.Option(help="With --data: the column of agents.")] = None,
    target: Annotated[str | None, typer.Option(help="With --data: the column to predict.")] = None,
    edges: Annotated[
        Path | None, typer.Option(help="With --data: a table of edges with columns agent, peer, weight.")
    ] = None,
    neighbours: Annotated[int, typer.Option(help="Number of nearest peers that each peer has edges to.", min=1)] = 10,
    method: Annotated[str, typer.Option(help="cd, propagation, admm, djam or boosting.")] = "cd",
    coupling: Annotated[
        float | None, typer.Option(help="Larger values make neighbours' models more alike. Default: mu = 3.")
    ] = None,
    learn: Annotated[bool, typer.Option("--learn", help="The peers learn who collaborates with whom.")] = False,
    epsilon: Annotated[float | None, typer.Option(help="Privacy: the budget of each peer.")] = None,
    rate: Annotated[
        float | None,
        typer.Option(help="Wakes of a peer in a second. Default: 5, or what the processors can do for so many peers."),
    ] = None,
    seconds: Annotated[float, typer.Option(help="Stop this long after all peers have started.", min=0)] = 60.0,
    tolerance: Annotated[
        float, typer.Option(help="Stop when the relative distance to the optimum is at most this.", min=0)
    ] = 1e-6,
    features: Annotated[int, typer.Option(help="Number of features of synthetic rows.", min=2, max=10_000)] = 20,
    faults: Annotated[
        bool, typer.Option("--faults", help="Kill, pause and cut off peers at random for half of the time.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Seed of synthetic rows and of faults.", min=0)] = 0,
    as_json: AsJson = False,
) -> None:
    """Run N real peers on this machine and compare them with the exact optimum; or control a running lab.

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
    if data is None and (agent is not None or target is not None or edges is not None):
        raise ParameterError("--agent, --target and --edges go with --data")
    if data is not None and (agent is None or target is None):
        raise ParameterError("--data needs --agent and --target: the columns of each row's agent and label")
    from ..core.methods import METHODS
    from ..peers.lab import Lab, charter_fields, from_table, synthetic
    from ..peers.lab.processes import check_folder
    from ..peers.lab.tasks import WAKES_PER_SECOND

    if method in METHODS and not METHODS[method].promises.minimises:
        raise ParameterError(
            f"--method {method} minimises no objective, and the lab measures how near peers come to the minimum "
            "of one: watch it in ct.simulate, or found a group of real peers with coterie group create"
        )
    check_folder(folder)
    with until_signal(signal.SIGINT, signal.SIGTERM, signal.SIGHUP) as stop:
        if data is not None:
            task = from_table(data, agent or "", target or "", n, edges, neighbours)
        else:
            task = synthetic(n or 0, features, seed, neighbours)
        most = MAX_WAKES_PER_CORE * (os.cpu_count() or 1) / len(task.frames)
        rate = min(WAKES_PER_SECOND, most) if rate is None else rate
        classes = task.fields["labels"] is not None
        fields = charter_fields(method, classes=classes, coupling=coupling, rate=rate, learn=learn, epsilon=epsilon)
        report = _run(Lab(folder, task, **fields), seconds, tolerance, seed if faults else None, stop, as_json)
    show(report, _conclusion(report), as_json)


def _run(
    lab: Lab, seconds: float, tolerance: float, faults: int | None, stop: threading.Event, quiet: bool
) -> dict[str, Any]:
    """Start the lab, watch it, and return the last report."""
    from ..peers.lab import Faults, watch

    began = time.monotonic()
    with contextlib.ExitStack() as stack:
        with waiting(f"making keys and rows of {lab.n} peers", quiet):
            stack.enter_context(lab)
        with bar("starting peers", quiet) as progress:
            lab.start_all(lambda up: progress(up, lab.n), stop.is_set)
        up = round(time.monotonic() - began, 1)
        if not quiet:
            talk.print(f"{lab.n} peers up after {up:.0f} s, in {lab.folder}")
        drawn = None if faults is None else Faults(lab, faults, seconds / 2.0)
        with _shown(quiet, seconds) as seen:
            report = watch(lab, seconds, tolerance, drawn, seen, stop) | {"start_up": up}
        lab.write_report(report)
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
    if not 1 < n <= MAX_PEERS:
        raise ParameterError(f"{n} peers: a lab has 2 to {MAX_PEERS}")
    return n


def _act(action: str, who: Sequence[str], folder: Path, as_json: bool) -> None:
    """Apply one of the actions to a lab that another process runs."""
    from ..peers.lab import processes
    from ..peers.node.process import running

    folders = processes.peers_of(folder)
    if action == "status":
        report = processes.read_json(folder / "report.json", None)
        if report is None:
            raise IdentityError(f"the lab in {folder} has not seen its peers yet")
        report["running"] = running(folder) is not None
        show(report, table_of(report), as_json)
        return
    if action == "stop":
        lab = running(folder)
        left = processes.stop_lab(folder)
        if lab is None and not left:
            raise IdentityError(f"no lab is running in {folder}")
        others = f"; peers it had left: {', '.join(left)}" if left else ""
        show({"stopped": lab, "left": left}, f"stopped the lab in {folder}{others}", as_json)
        return
    if running(folder) is None:
        raise IdentityError(f"no lab is running in {folder}")
    if action == "heal":
        if who:
            raise ParameterError(f"heal {' '.join(who)}: it connects all peers again, so name none of them")
        processes.partition(folders, [])
        show({"healed": len(folders)}, "messages go everywhere again", as_json)
        return
    some = _numbers(action, who, len(folders))
    if action == "partition":
        if len(some) == len(folders):
            raise ParameterError(f"partition {' '.join(who)}: no peer is left on the other side")
        processes.partition(folders, some)
    else:
        for i in some:
            getattr(processes, action)(folders[i])
    done = {"kill": "killed", "pause": "paused", "resume": "resumed", "start": "started", "partition": "cut off"}
    word, names = done[action], ", ".join(f"p{i}" for i in some)
    show({word: some}, f"{word}: {names}", as_json)


def _numbers(action: str, who: Sequence[str], n: int) -> list[int]:
    """Parse numbers of peers: 3, p3, 0-4, 1,5-7."""
    if not who:
        raise ParameterError(f"{action} needs numbers of peers, such as 3 or 0-4")
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
                raise ParameterError(f"there is no peer {i}: peers are numbered 0 to {n - 1}")
        if high < low:
            raise ParameterError(f"{part}: the first number must be the smaller one")
        found |= set(range(low, high + 1))
    return sorted(found)


def table_of(report: dict[str, Any], limit: float | None = None) -> Table:
    """Return a report as a table, with the time limit while the lab runs."""
    peers = report["peers"]
    private = "epsilon" in report
    states = [row["state"] for row in peers]
    counts = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(sorted(states, reverse=True)))
    parts = [
        f"{report['method']}: {counts}",
        f"{report['seconds']:.0f}{'' if limit is None else f' of at most {limit:g}'} s",
    ]
    if not report.get("running", True):
        parts.insert(0, "this lab has ended, and its peers with it; before that")
    if private:
        parts.append(f"private, epsilon {report['epsilon']:g}")
    elif report["gap"] is not None:
        parts.append(f"gap {report['gap']:.1e}")
    elif report.get("apart"):
        parts.append("ends of edges do not agree yet")
    numbers = ("wakes", "in", "out", "refused", "score", "alone", "releases" if private else "distance")
    table = Table(*columns("peer", "state", right=numbers, no_wrap=True), title="; ".join(parts))
    colours = {"up": "green", "paused": "yellow", "cut off": "magenta", "killed": "red", "failed": "bold red"}
    for row in peers:
        name = row["name"] if row["name"] == f"p{row['agent']}" else f"{row['name']} {row['agent']}"
        state = row["state"]
        cells = [f"{row[key]:,}" if key in row else "" for key in ("wakes", "messages_in", "messages_out", "refused")]
        cells += [f"{row[key]:.3f}" if row.get(key) is not None else "" for key in ("score", "score_alone")]
        if private:
            made, left = row.get("releases"), row.get("releases_left")
            cells.append("" if made is None or left is None else f"{made} of {made + left}")
        else:
            cells.append("" if row["distance"] is None else f"{row['distance']:.1e}")
        colour = colours.get(state)
        table.add_row(escape(name), f"[{colour}]{state}[/]" if colour else state, *cells)
    return table


@contextlib.contextmanager
def _shown(quiet: bool, limit: float) -> Iterator[Callable[[dict[str, Any]], None]]:
    """Show reports on standard error: as a live table, or as occasional lines without a terminal."""
    if quiet:
        yield lambda report: None
    elif talk.is_terminal:
        from rich.live import Live

        with Live(console=talk, auto_refresh=False, transient=True) as live:
            yield lambda report: live.update(table_of(report, limit), refresh=True)
    else:
        last = [-SECONDS_PER_LINE]

        def line(report: dict[str, Any]) -> None:
            if report["seconds"] >= last[0] + SECONDS_PER_LINE:
                last[0] = report["seconds"]
                talk.print(str(table_of(report, limit).title), soft_wrap=True)

        yield line


def _conclusion(report: dict[str, Any]) -> Table:
    table = table_of(report)
    if "epsilon" in report:
        table.caption = "score: on rows of the peer's own. Private peers do not come to the optimum"
    elif report["gap"] is None:
        table.caption = "not compared with the optimum: " + (
            "ends of edges do not agree" if report.get("apart") else "some peers have no model"
        )
    else:
        sign = "<=" if report["reached"] else ">"
        table.caption = (
            f"relative gap of the objective to the exact optimum: {report['gap']:.2e} {sign} {report['tolerance']:g}; "
            "distance: of a model from its exact one"
        )
    return table
