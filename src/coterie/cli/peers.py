"""Commands of peers: ``coterie group``, ``coterie peer``, ``coterie relay``; :mod:`.lab` adds ``coterie lab``."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import CoterieError, IdentityError, ParameterError
from .console import EXIT_CODES, NOT_NOW, AsJson, note, refuse, run, show, talk
from .groups import Folder, brings_model, check_peer_folder, edges_of, group
from .operations import audit_peer, check_peer, install_peer, mute_peer
from .status import peer_status
from .watch import watch

#: Count of numbers in a peer's rows above which compiling its method is worth the memory; the second is for methods
#: that solve a problem at every message.
MIN_COMPILED_NUMBERS, MIN_COMPILED_NUMBERS_SOLVING = 200_000, 5_000
#: Methods that solve a problem of their own at every wake or message.
SOLVING_METHODS = ("admm", "djam", "gossip-pooling", "resilient-pooling")
#: Maximum size of a file of prepared rows, in bytes.
MAX_WORK_BYTES = 1 << 30

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, epilog=EXIT_CODES)
peer = typer.Typer(no_args_is_help=True, help="One real agent on this machine.")
app.add_typer(group, name="group")
app.add_typer(peer, name="peer")
for name, command in (
    ("status", peer_status),
    ("check", check_peer),
    ("mute", mute_peer),
    ("audit", audit_peer),
    ("install", install_peer),
):
    peer.command(name)(command)
app.command("watch")(watch)


def main() -> None:
    """Run one of these commands. Compiling is only worthwhile for a peer with many rows."""
    os.environ.setdefault("COTERIE_PLAIN", "1")
    if sys.argv[1:2] == ["lab"]:
        from . import lab  # noqa: F401 - it adds a command

    run(app)


# -- peers ------------------------------------------------------------------------------------------------------------


@peer.command("init")
def init_peer(
    folder: Folder,
    name: Annotated[str | None, typer.Option(help="Name of the peer in the group. Default: the folder's name.")] = None,
    listen: Annotated[
        str | None, typer.Option(help="HOST:PORT at which others reach the peer. Default: through a relay.")
    ] = None,
    admin: Annotated[
        Path | None,
        typer.Option("--group", help="The group's folder, if it is on this machine: the peer joins at once."),
    ] = None,
    edge: Annotated[list[str] | None, typer.Option(help="With --group: a neighbour, NAME or NAME:WEIGHT.")] = None,
    data: Annotated[
        Path | None, typer.Option(help="The peer's own rows, a csv or parquet file; stored in peer.toml.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Create the identity of a peer: keys, which never leave this folder, and a request for the group's admin."""
    from ..peers.group.groups import enroll, request
    from ..peers.group.identity import Identity
    from ..peers.node.audit_log import FILE, AuditLog
    from ..peers.node.settings import write_settings

    name = name or folder.resolve().name
    settings = {} if data is None else {"data": os.path.abspath(data)}
    if admin is not None:
        joined = enroll(admin, folder, name, listen, edges=edges_of(edge))
        write_settings(folder, **settings)
        AuditLog(folder / FILE)("joined", run=joined.charter.run, name=name, roster=joined.roster.version)
        more = "" if data is not None else " --data YOUR.csv"
        more += " --model FILE.py" if brings_model(joined.charter) else ""
        text = f"{name} is in: run {joined.charter.run}\nnext: coterie peer run {folder}{more}"
        if data is not None and not data.exists():
            text += f"\nnote: there is no {data} yet"
        if not joined.roster.neighbours(joined.roster.by_name(name).address) and len(joined.roster.members) > 1:
            text += f"\nnote: it has no neighbours yet: coterie group edge {admin} {name} OTHER"
        taken = [one.name for one in joined.roster.members if one.endpoint == listen]
        taken += [one.name for one in joined.roster.relays if one.endpoint == listen]
        if listen is not None and len(taken) > 1:
            text += f"\nnote: {' and '.join(taken)} are at {listen}, where only one of them can listen"
        show({"name": name, "run": joined.charter.run}, text, as_json)
        return
    if edge:
        raise ParameterError("--edge needs --group: edges are made by the admin (coterie group invite --edge)")
    Identity.make(folder, name, listen)
    write_settings(folder, **settings)
    path = request(folder)
    text = (
        f"{name}: keys are in {folder}; request: {path}\nSend the request to the admin, who runs\n"
        f"  coterie group invite GROUP {path.name}\n"
        f"and then, with what comes back: coterie group join {folder} INVITATION"
    )
    show({"name": name, "request": str(path)}, text, as_json)


@peer.command("update")
def update_peer(
    folder: Folder,
    source: Annotated[
        Path, typer.Argument(help="A newer roster, an announcement, a folder of them, or the group's folder.")
    ],
    as_json: AsJson = False,
) -> None:
    """Take over what the admin has signed; a running peer reads it, and passes it on to the others."""
    from ..peers.group.renewal import update

    roster, new = update(folder, source)
    told: dict[str, Any] = {"version": roster.version}
    text = f"roster, version {roster.version}"
    if source.is_dir() or new:
        told["announcements"] = ["-".join(topic) for topic in new]
        text += f"; new announcements: {', '.join(told['announcements']) or 'none'}"
    show(told, text, as_json)


@peer.command("accept")
def accept_charter(
    folder: Folder,
    run_id: Annotated[str | None, typer.Argument(metavar="RUN", help="The run's id, as the admin told it.")] = None,
    as_json: AsJson = False,
) -> None:
    """Accept the charter that the admin proposes; the keys are kept, and the model, too, if it fits the new charter."""
    from ..peers.group.amendments import accept, in_words

    done = accept(folder, run_id)
    lines = [f"accepted: run {done.charter.run}", in_words(done.changes), *done.notes]
    if done.running:
        lines.append("the peer that runs in this folder begins again by itself")
    else:
        lines.append(f"what belonged to the run before is in {folder / 'runs'}")
    told = {"run": done.charter.run, "changes": list(done.changes), "notes": done.notes, "running": done.running}
    show(told, "\n".join(lines), as_json)


@peer.command("run")
def run_peer(
    folder: Folder,
    data: Annotated[
        Path | None,
        typer.Option(
            help="This peer's own rows: a csv or parquet file. It never leaves; when it changes, it is read again. "
            "Default: as peer.toml says; if that says nothing, the peer has none, and is served by the population."
        ),
    ] = None,
    holdout: Annotated[
        float | None,
        typer.Option(
            help="Share of the rows kept aside to measure models with. Default: a fifth, at most 200, from 30 rows on.",
            min=0,
            max=0.9,
        ),
    ] = None,
    metrics: Annotated[
        int | None, typer.Option(help="Port on 127.0.0.1 for Prometheus and /healthz; 0 for any.", min=0, max=65535)
    ] = None,
    wakes: Annotated[int | None, typer.Option(help="Stop after this number of wakes.", min=1)] = None,
    compiled: Annotated[
        bool | None, typer.Option("--compiled/--plain", help="Default: compiled where there are many rows.")
    ] = None,
    admin: Annotated[
        Path | None, typer.Option(help="The group's folder: the peer passes new files in it on to the others.")
    ] = None,
    model: Annotated[
        Path | None,
        typer.Option(
            help="Where members of the group bring their model: a Python file of your own, which is run, and whose "
            "function model() returns it. Default: as peer.toml says."
        ),
    ] = None,
    lab: Annotated[bool, typer.Option("--lab", hidden=True)] = False,
    work: Annotated[Path | None, typer.Option(hidden=True, help="In place of --data: a work that is ready.")] = None,
) -> None:
    """Run a peer with the settings of peer.toml and options until it is stopped. Logs go to standard error as JSON."""
    from .._files import read_bounded
    from ..peers.group.amendments import settle
    from ..peers.group.groups import membership
    from ..peers.node.settings import overridden, read_settings

    settle(folder)
    settings = overridden(read_settings(folder), holdout=holdout, metrics=metrics, compiled=compiled)
    data, compiled = data or settings.path(folder, "data"), settings.compiled
    model = model or settings.path(folder, "model")
    joined, feed = membership(folder), None
    if work is not None:
        content = read_bounded(work, private=True, limit=MAX_WORK_BYTES)
    else:
        from ..peers.node.jobs import Feed, prepared

        feed = None if data is None else Feed(folder, data, settings.holdout, model)
        content = prepared(folder, data, settings.holdout, model)
    if settings.nice:
        os.nice(settings.nice)
    if compiled is None:
        hard = joined.charter.method in SOLVING_METHODS and joined.charter.objective != "propagation"
        compiled = len(content) > 8 * (MIN_COMPILED_NUMBERS_SOLVING if hard else MIN_COMPILED_NUMBERS)
    os.environ["COTERIE_PLAIN"] = "0" if compiled else "1"
    from ..peers.node.launch import launch  # imported only now, after COTERIE_PLAIN is set

    admin = admin or settings.path(folder, "admin")
    with _perhaps_later():
        launch(folder, joined, content, settings=settings, wakes=wakes, lab=lab, feed=feed, admin=admin, model=model)


@contextmanager
def _perhaps_later() -> Iterator[None]:
    """Exit with NOT_NOW on an error of the disk or the network: a supervisor of the peer may try again."""
    try:
        yield
    except (CoterieError, OSError) as error:
        if not isinstance(error, OSError) and not isinstance(error.__cause__, OSError):
            raise
        refuse(error)
        raise typer.Exit(NOT_NOW) from None


@peer.command("scale")
def scale_of_peer(
    folder: Folder,
    data: Annotated[Path, typer.Option(help="This peer's own rows.")],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Default: NAME.scale in the folder.")] = None,
    epsilon: Annotated[
        float | None, typer.Option(help="Privacy: the budget that is spent, once. Needs --range.")
    ] = None,
    bounds: Annotated[
        list[str] | None,
        typer.Option("--range", help="A public range, such as age=0:120, to which values are clipped; repeat it."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Write means and spreads of the columns, for a group over a graph: the admin runs group propose-scale."""
    from ..peers.group.scales import write_scale

    path = write_scale(folder, data, bounds or [], epsilon, output)
    show({"scale": str(path)}, f"{path}: send it to the admin, who runs coterie group propose-scale", as_json)


@peer.command("stop")
def stop_peer(
    folder: Folder,
    leave: Annotated[bool, typer.Option("--leave", help="Leave for good: neighbours delete the edge.")] = False,
    wait: Annotated[float, typer.Option(help="Number of seconds to wait for its end.", min=0)] = 15.0,
    as_json: AsJson = False,
) -> None:
    """Stop a running peer cleanly."""
    from ..peers.node.process import running

    pid = running(folder)
    if pid is None:
        check_peer_folder(folder)
        raise IdentityError(f"the peer in {folder} is not running")
    os.kill(pid, signal.SIGUSR1 if leave else signal.SIGTERM)
    deadline = time.monotonic() + wait
    while running(folder) == pid and time.monotonic() < deadline:
        time.sleep(0.05)
    if running(folder) == pid:
        raise IdentityError(f"process {pid} is still running after {wait:g} s")
    show({"stopped": pid}, f"stopped process {pid}", as_json)


@peer.command("predict")
def predict(
    folder: Folder,
    data: Annotated[Path, typer.Argument(help="Rows with the columns of the charter.")],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="A csv file. Default: standard output.")] = None,
    model: Annotated[
        Path | None, typer.Option(help="The file of the model, as in peer run. Default: as peer.toml says.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Predict rows with the model that a peer has learned; the peer may be running."""
    from ..peers.model.model import csv_of, predict_file, predict_table
    from ..peers.node.settings import read_settings

    words = {"together": "learned together", "alone": "trained alone", "population": "of the population"}
    words["own"] = "of its own rows: nothing is learned together yet"
    file = model or read_settings(folder).path(folder, "model")
    notes: list[str] = []
    if output is not None:
        rows, served = predict_file(folder, data, output, file, notes)
        told: dict[str, Any] = {"output": str(output)}
    else:
        columns, served = predict_table(folder, data, file, notes)
        rows, told = len(columns["prediction"]), {name: column.tolist() for name, column in columns.items()}
    text = f"{rows} rows with the model {words.get(served, served)}"
    for one in () if as_json else notes:
        note(one)
    if output is not None or as_json:
        show({"rows": rows, "model": served, "notes": notes} | told, f"{text}: {output}", as_json)
    else:
        talk.print(text)
        print(csv_of(columns), end="")


# -- relays -----------------------------------------------------------------------------------------------------------


@app.command("relay")
def run_relay(
    folder: Annotated[Path, typer.Argument(help="The folder of a peer that was invited with --relay.")],
) -> None:
    """Pass messages on between peers that cannot reach each other. The relay cannot read the messages."""
    os.environ["COTERIE_PLAIN"] = "1"
    from ..peers.node.launch import launch_relay

    with _perhaps_later():
        launch_relay(folder)


__all__ = ["app", "group", "main", "peer"]
