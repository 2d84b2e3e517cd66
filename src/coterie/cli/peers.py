"""Commands of real peers: ``coterie group``, ``coterie peer``, ``coterie relay``; :mod:`.lab` adds ``coterie lab``."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from ..errors import DataError, IdentityError, ParameterError
from .console import EXIT_CODES, AsJson, run, show, talk

#: Numbers in a peer's rows from which on it is worth the memory to compile its method; fewer if it solves its own
#: problem at every letter.
MANY, MANY_TO_SOLVE = 200_000, 5_000
#: No work that is ready is longer, in bytes.
MAX_WORK_BYTES = 1 << 30

app = typer.Typer(add_completion=False, no_args_is_help=True, pretty_exceptions_enable=False, epilog=EXIT_CODES)
group = typer.Typer(no_args_is_help=True, help="A group of peers, as its steward sees it; and joining one.")
peer = typer.Typer(no_args_is_help=True, help="One real agent on this machine.")
app.add_typer(group, name="group")
app.add_typer(peer, name="peer")

Folder = Annotated[Path, typer.Argument(help="The peer's folder.")]
GroupFolder = Annotated[Path, typer.Argument(help="The group's folder, which is the steward's.")]


def main() -> None:
    """Run one of these commands. Only a peer with many rows is worth compiling for."""
    os.environ.setdefault("COTERIE_PLAIN", "1")
    if sys.argv[1:2] == ["lab"]:
        from . import lab  # noqa: F401 - it adds a command

    run(app)


# -- groups -----------------------------------------------------------------------------------------------------------


@group.command("create")
def create_group(
    folder: GroupFolder,
    features: Annotated[str, typer.Option(help="Columns that models see, with commas between them.")],
    target: Annotated[str, typer.Option(help="The column to predict.")],
    classes: Annotated[
        str | None, typer.Option(help="The negative and the positive class, such as no,yes. Without: numbers.")
    ] = None,
    method: Annotated[str, typer.Option(help="cd, propagation, admm, djam, boosting or gossip-pooling.")] = "cd",
    objective: Annotated[
        str | None,
        typer.Option(help="personalized, collaborative, separate, propagation or boosting. Default: the method's own."),
    ] = None,
    loss: Annotated[
        str | None,
        typer.Option(
            help="For classes logistic, smooth-hinge or, to boost, adaboost; for numbers squared or huber. "
            "Default: one that fits the method."
        ),
    ] = None,
    coupling: Annotated[float, typer.Option(help="The more, the more alike are the models of neighbours.")] = 1.0,
    ridge: Annotated[str, typer.Option(help='A number, or "1/m".')] = "1/m",
    confidence: Annotated[
        str, typer.Option(help="public: rows / max-rows; gossip: rows / the largest heard of; none.")
    ] = "public",
    max_rows: Annotated[int, typer.Option(help="No member has more rows than this. Public.")] = 1000,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            help="A further argument of the method, name=value; repeat it. Boosting: stumps, beta, and low and high, "
            "the public range of the features.",
        ),
    ] = None,
    learn: Annotated[bool, typer.Option("--learn", help="The members learn who collaborates with whom.")] = False,
    lam: Annotated[float | None, typer.Option(help="For --learn: the larger, the more ties. Default: 1.")] = None,
    kappa: Annotated[
        int | None, typer.Option(help="For --learn: how many members to ask at a time. Default: 3.")
    ] = None,
    every: Annotated[
        float | None, typer.Option(help="For --learn: wakes, of anybody, between two updates. Default: 10.")
    ] = None,
    max_weight: Annotated[float | None, typer.Option(help="For --learn: no tie weighs more.")] = None,
    epsilon: Annotated[float | None, typer.Option(help="Privacy: the budget of each member.")] = None,
    delta: Annotated[float, typer.Option(help="Privacy: delta.")] = 1e-5,
    clip: Annotated[float, typer.Option(help="Privacy: gradients of an example are cut to this norm.")] = 1.0,
    row_norm: Annotated[float, typer.Option(help="Privacy: public bound on the norm of a row.")] = 1.0,
    releases: Annotated[int | None, typer.Option(help="Privacy: releases that the budget is split for.")] = None,
    trim: Annotated[
        float, typer.Option(help="Against poisoning: share of neighbours' values left out at each end.")
    ] = 0.0,
    radius: Annotated[float, typer.Option(help="No honest model is longer than this.")] = 1000.0,
    rate: Annotated[float, typer.Option(help="Wakes of a member in a second.")] = 1.0,
    center: Annotated[str | None, typer.Option(help="Public scaling: what to subtract from each feature.")] = None,
    scale: Annotated[str | None, typer.Option(help="Public scaling: what to divide each feature by then.")] = None,
    title: Annotated[str, typer.Option(help="Free text.")] = "",
    ca_key: Annotated[Path | None, typer.Option(help="Key of a certificate authority to use.")] = None,
    ca_certificate: Annotated[Path | None, typer.Option(help="Its certificate.")] = None,
    as_json: AsJson = False,
) -> None:
    """Found a group: a certificate authority, a steward's key, and a charter of public numbers."""
    from ..peers.groups import create

    if classes is not None and len(classes.split(",")) != 2:
        raise ParameterError(f"--classes {classes}: give two, the negative and the positive one, such as no,yes")
    if (ca_key is None) != (ca_certificate is None):
        raise ParameterError("--ca-key and --ca-certificate go together")
    learned = _given(lam=lam, kappa=kappa, every=every, max_weight=max_weight) if learn else None
    privacy = None
    if epsilon is not None:
        privacy = _given(epsilon=epsilon, delta=delta, clip=clip, row_norm=row_norm, wakes_per_agent=releases)
    charter = create(
        folder,
        ca=None if ca_key is None or ca_certificate is None else (ca_key, ca_certificate),
        title=title,
        features=[name.strip() for name in features.split(",")],
        target=target,
        labels=None if classes is None else [name.strip() for name in classes.split(",")],
        coupling=coupling,
        ridge=_number(ridge),
        confidence=confidence,
        max_rows=max_rows,
        method=method,
        settings=dict(_setting(one) for one in settings or ()),
        learned=learned,
        privacy=privacy,
        trim=trim,
        radius=radius,
        rate=rate,
        center=None if center is None else _floats("--center", center),
        scale=None if scale is None else _floats("--scale", scale),
        **_given(objective=objective, loss=loss),
    )
    text = (
        f"group {folder}: run {charter.run}\n"
        f"Keep {folder} to yourself: its keys are the steward's. Members begin with\n"
        "  coterie peer init FOLDER --name NAME --listen HOST:PORT\nand send you the request that it writes."
    )
    show({"run": charter.run, "folder": str(folder)}, text, as_json)


@group.command("invite")
def invite_member(
    folder: GroupFolder,
    request: Annotated[Path, typer.Argument(help="What `coterie peer init` wrote.")],
    tie: Annotated[list[str] | None, typer.Option(help="A neighbour, NAME or NAME:WEIGHT; repeat it.")] = None,
    relay: Annotated[bool, typer.Option("--relay", help="It only passes letters on.")] = False,
    replace: Annotated[
        bool, typer.Option("--replace", help="It takes the place of a member that lost its key.")
    ] = False,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="The invitation's file.")] = None,
    as_json: AsJson = False,
) -> None:
    """Take a peer into the group: sign its certificate, and write its invitation, in which there is no secret."""
    from ..peers.groups import invite

    path = invite(folder, request, ties=_ties(tie), relay=relay, replace=replace, to=output)
    show(
        {"invitation": str(path)}, f"invitation: {path}\nThe peer runs: coterie group join FOLDER {path.name}", as_json
    )


@group.command("join")
def join_group(
    folder: Folder,
    invitation: Annotated[Path, typer.Argument(help="What the steward sent.")],
    run_id: Annotated[str | None, typer.Option("--run", help="The run's id, as you heard it from the steward.")] = None,
    as_json: AsJson = False,
) -> None:
    """Join a group with an invitation. Joining again takes over a newer certificate or list of members."""
    from ..peers.groups import join

    joined = join(folder, invitation, run=run_id)
    charter = joined.charter
    told = {"run": charter.run, "name": joined.identity.name, "members": len(joined.roster.members)}
    text = f"{joined.identity.name} is in; members: {len(joined.roster.members)}; run {charter.run}\n"
    if joined.me in joined.roster.relays:
        text += f"next: coterie relay {folder}"
    else:
        text += f"columns: {', '.join(charter.features)}; target: {charter.target}\n"
        text += f"next: coterie peer run {folder} --data YOUR.csv"
    show(told, text, as_json)


@group.command("tie")
def tie_members(
    folder: GroupFolder,
    one: Annotated[str, typer.Argument(help="A member.")],
    other: Annotated[str, typer.Argument(help="Another.")],
    weight: Annotated[float, typer.Option(help="0 for no tie.")] = 1.0,
    as_json: AsJson = False,
) -> None:
    """Tie two members, in the next version of the list of members."""
    from ..peers.groups import tie

    roster = tie(folder, one, other, weight)
    show({"version": roster.version, "ties": roster.ties}, _bring(folder, roster), as_json)


@group.command("remove")
def remove_member(
    folder: GroupFolder, name: Annotated[str, typer.Argument(help="A member or a relay.")], as_json: AsJson = False
) -> None:
    """Leave a member out of the next version of the list of members."""
    from ..peers.groups import remove

    roster = remove(folder, name)
    show({"version": roster.version, "members": [m.name for m in roster.members]}, _bring(folder, roster), as_json)


def _bring(folder: Path, roster: Any) -> str:
    return (
        f"list of members, version {roster.version}: {folder / 'roster'}\n"
        f"Bring it to any one peer: coterie peer update FOLDER {folder / 'roster'}"
    )


@group.command("show")
def show_group(folder: GroupFolder, as_json: AsJson = False) -> None:
    """Members, ties and public numbers of a group; of a peer's folder, too."""
    from .._files import read_bounded
    from ..peers.charter import read_charter
    from ..peers.roster import read_roster

    if not (folder / "charter.json").exists():
        raise DataError(f"{folder} holds neither a group nor a peer that has joined one")
    charter = read_charter(read_bounded(folder / "charter.json"))
    roster = read_roster(read_bounded(folder / "roster"), charter)
    names = {member.address: member.name for member in roster.members}
    table = Table(title=f"run {charter.run}: {charter.method}, {charter.objective}; members, version {roster.version}")
    for column in ("name", "address", "endpoint", "neighbours"):
        table.add_column(column)
    for member in roster.members:
        near = ", ".join(f"{names[j]} ({w:g})" for j, w in sorted(roster.neighbours(member.address).items()))
        table.add_row(member.name, str(member.address), member.endpoint or "through a relay", near)
    for relay_ in roster.relays:
        table.add_row(relay_.name, "relay", relay_.endpoint, "")
    found = {"run": charter.run, "version": roster.version, "members": list(names.values()), "ties": roster.ties}
    show(found, table, as_json)


# -- peers ------------------------------------------------------------------------------------------------------------


@peer.command("init")
def init_peer(
    folder: Folder,
    name: Annotated[str | None, typer.Option(help="What others call this peer. Default: the folder's name.")] = None,
    listen: Annotated[
        str | None, typer.Option(help="HOST:PORT where others reach it. Without: it goes through a relay.")
    ] = None,
    steward: Annotated[
        Path | None, typer.Option("--group", help="The group's folder, if it is on this machine: joins at once.")
    ] = None,
    tie: Annotated[list[str] | None, typer.Option(help="With --group: a neighbour, NAME or NAME:WEIGHT.")] = None,
    as_json: AsJson = False,
) -> None:
    """Make an identity: keys, which never leave this folder, and a request for the group's steward."""
    from ..peers.groups import enroll, request
    from ..peers.identity import Identity

    name = name or folder.resolve().name
    if steward is not None:
        joined = enroll(steward, folder, name, listen, ties=_ties(tie))
        text = f"{name} is in: run {joined.charter.run}\nnext: coterie peer run {folder} --data YOUR.csv"
        show({"name": name, "run": joined.charter.run}, text, as_json)
        return
    if tie:
        raise ParameterError("--tie needs --group: ties are the steward's to make (coterie group invite --tie)")
    Identity.make(folder, name, listen)
    path = request(folder)
    text = (
        f"{name}: keys are in {folder}; request: {path}\nSend the request to the steward, who runs\n"
        f"  coterie group invite GROUP {path.name}\n"
        f"and then, with what comes back: coterie group join {folder} INVITATION"
    )
    show({"name": name, "request": str(path)}, text, as_json)


@peer.command("update")
def update_peer(
    folder: Folder, roster: Annotated[Path, typer.Argument(help="A newer list of members.")], as_json: AsJson = False
) -> None:
    """Take over a newer list of members; a peer that runs notices, and tells the others."""
    from ..peers.groups import refresh

    new = refresh(folder, roster)
    show({"version": new.version}, f"list of members, version {new.version}", as_json)


@peer.command("run")
def run_peer(
    folder: Folder,
    data: Annotated[
        Path | None, typer.Option(help="This peer's own rows: a csv or parquet file. It never leaves.")
    ] = None,
    holdout: Annotated[
        float, typer.Option(help="Share of the rows kept aside to measure models with.", min=0, max=0.9)
    ] = 0.0,
    metrics: Annotated[
        int | None, typer.Option(help="Port on 127.0.0.1 for Prometheus; 0 for any.", min=0, max=65535)
    ] = None,
    wakes: Annotated[int | None, typer.Option(help="Stop after so many wakes.", min=1)] = None,
    compiled: Annotated[
        bool | None, typer.Option("--compiled/--plain", help="Default: compiled where there are many rows.")
    ] = None,
    insecure_loopback: Annotated[
        bool, typer.Option("--insecure-loopback", help="No TLS; refuses any address but loopback.")
    ] = False,
    lab: Annotated[bool, typer.Option("--lab", hidden=True)] = False,
    work: Annotated[Path | None, typer.Option(hidden=True, help="In place of --data: a work that is ready.")] = None,
) -> None:
    """Run a peer until it is told to stop. Logs go to standard error, one json object a line."""
    from .._files import read_bounded
    from ..peers.groups import membership

    joined = membership(folder)
    if data is not None:
        content = _prepared(folder, data, holdout)
    elif work is not None:
        content = read_bounded(work, private=True, limit=MAX_WORK_BYTES)
    else:
        raise ParameterError("--data is missing: a peer learns from rows of its own")
    if compiled is None:
        hard = joined.charter.method in ("admm", "djam", "gossip-pooling") and joined.charter.objective != "propagation"
        compiled = len(content) > 8 * (MANY_TO_SOLVE if hard else MANY)
    os.environ["COTERIE_PLAIN"] = "0" if compiled else "1"
    from ..peers.launch import launch  # only now: what it imports is compiled or not

    launch(folder, joined, content, metrics=metrics, wakes=wakes, insecure_loopback=insecure_loopback, lab=lab)


def _prepared(folder: Path, data: Path, holdout: float) -> bytes:
    """Read the table in a process of its own, which needs far more memory than the peer."""
    command = [sys.executable, "-m", "coterie.peers.tables", str(folder), str(data), str(holdout)]
    done = subprocess.run(command, capture_output=True, env=os.environ | {"COTERIE_PLAIN": "1"})
    if done.returncode == 3:
        raise DataError(done.stderr.decode(errors="replace").strip().splitlines()[-1])
    if done.returncode:
        sys.stderr.write(done.stderr.decode(errors="replace"))
        raise SystemExit(1)
    return done.stdout


@peer.command("status")
def peer_status(folder: Folder, as_json: AsJson = False) -> None:
    """How a peer is doing: ties, letters, refusals, score, budget."""
    from ..peers.process import running

    pid = running(folder)
    if pid is not None:
        _ask_for_status(folder, pid)
    try:
        status = json.loads((folder / "status.json").read_bytes())
    except FileNotFoundError:
        raise IdentityError(
            f"the peer in {folder} has not run yet: coterie peer run {folder} --data YOUR.csv"
        ) from None
    except (OSError, ValueError) as error:
        raise IdentityError(f"{folder / 'status.json'} cannot be read: {error}") from None
    status["running"] = pid is not None
    show(status, _relay_table(status) if "relay" in status else _status_table(status), as_json)


def _ask_for_status(folder: Path, pid: int) -> None:
    """Let a running peer write its status now, and wait for that, but not for long: it may be paused."""

    def written() -> int:
        try:
            return (folder / "status.json").stat().st_mtime_ns
        except OSError:
            return 0

    before, deadline = written(), time.monotonic() + 2.0
    with contextlib.suppress(OSError):
        os.kill(pid, signal.SIGUSR2)
    while written() == before and time.monotonic() < deadline:
        time.sleep(0.02)


def _state(status: dict[str, Any]) -> str:
    """Whether it runs, and if not, of when all the rest is."""
    if status["running"]:
        return f"running, process {status['pid']}"
    return f"not running; this is as of {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(status['at']))}"


def _relay_table(status: dict[str, Any]) -> Table:
    table = Table(title=f"{status['name']}: a relay, {_state(status)}", show_header=False)
    table.add_row("endpoint", status["relay"])
    table.add_row("connected", f"{', '.join(status['connected']) or 'nobody'}; of {status['members']} members")
    return table


def _status_table(status: dict[str, Any]) -> Table:
    state = _state(status)
    table = Table(title=f"{status['name']}: {state}", show_header=False)
    table.add_column(style="bold", no_wrap=True)
    table.add_column()
    kind = "accuracy" if status.get("classes") else "rmse"
    score, alone = (status.get(name) for name in ("score", "score_alone"))
    rows = {
        "method": escape(status["method"]),
        "wakes": f"{status['wakes']:,} (boot {status['boot']}, up {status['uptime']:.0f} s)",
        "letters": f"{status['letters_in']:,} in, {status['letters_out']:,} out ({status['bytes_out'] / 1e6:.2f} MB)",
        "refused": ", ".join(f"{count:,} {reason}" for reason, count in sorted(status["refused"].items())) or "none",
        kind: "no rows" if score is None else f"{score:.4f} together, {alone:.4f} alone, on {status['scored_on']}",
    }
    if "epsilon" in status:
        total = status["releases"] + status["releases_left"]
        rows["privacy"] = (
            f"{status['releases']} of {total} releases made; the budget is epsilon {status['epsilon']:g} "
            f"at delta {status['delta']:.3g}"
        )
        if status.get("waits"):
            rows["privacy"] += "; it waits for its neighbours before it makes another"
        elif not status["releases_left"]:
            rows["privacy"] += "; it has nothing new to say, and listens"
    if status.get("trouble"):
        rows["trouble"] = ", ".join(f"{count} {what}" for what, count in status["trouble"].items())
    for name, value in rows.items():
        table.add_row(name, value)
    for k, tie in enumerate(status["ties"]):
        heard = "never heard" if tie["heard"] is None else f"heard {tie['heard']:.0f} s ago"
        here = f"  {'connected' if tie['alive'] else 'not connected'}, {heard}" if status["running"] else ""
        table.add_row("ties" if k == 0 else "", f"{tie['name']}  weight {tie['weight']:.3g}{here}")
    if not status["ties"]:
        table.add_row("ties", "none")
    return table


@peer.command("stop")
def stop_peer(
    folder: Folder,
    leave: Annotated[bool, typer.Option("--leave", help="For good: neighbours forget the tie.")] = False,
    wait: Annotated[float, typer.Option(help="Seconds to wait for its end.", min=0)] = 15.0,
    as_json: AsJson = False,
) -> None:
    """Let a running peer end cleanly."""
    from ..peers.process import running

    pid = running(folder)
    if pid is None:
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
    output: Annotated[Path, typer.Option("--output", "-o", help="A csv file for the predictions.")],
    as_json: AsJson = False,
) -> None:
    """Use the model that a peer has learned, also while it runs."""
    from ..peers.tables import predict_file

    rows, served = predict_file(folder, data, output)
    show(
        {"rows": rows, "model": served, "output": str(output)},
        f"{rows} rows with the model learned {served}: {output}",
        as_json,
    )


# -- relays -----------------------------------------------------------------------------------------------------------


@app.command("relay")
def run_relay(
    folder: Annotated[Path, typer.Argument(help="The folder of a peer that was invited with --relay.")],
) -> None:
    """Pass letters on between peers that cannot reach each other. It can read them, but not change one unnoticed."""
    os.environ["COTERIE_PLAIN"] = "1"
    from ..peers.launch import launch_relay

    launch_relay(folder)


# -- small parts ------------------------------------------------------------------------------------------------------


def _given(**options: Any) -> dict[str, Any]:
    """Those options that were given: the others have their defaults where they belong."""
    return {name: value for name, value in options.items() if value is not None}


def _ties(given: list[str] | None) -> dict[str, float]:
    ties = {}
    for one in given or ():
        name, _, weight = one.partition(":")
        try:
            ties[name] = float(weight) if weight else 1.0
        except ValueError:
            raise ParameterError(f"--tie {one}: must be NAME or NAME:WEIGHT") from None
    return ties


def _number(text: str) -> Any:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text


def _setting(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals:
        raise ParameterError(f"--set {text}: must be name=value")
    return name.strip(), _number(value.strip())


def _floats(option: str, text: str) -> list[float]:
    try:
        return [float(part) for part in text.split(",")]
    except ValueError:
        raise ParameterError(f"{option} {text}: must be numbers with commas between them") from None


__all__ = ["app", "group", "main", "peer", "talk"]
