"""``coterie group``: creating and administering a group of peers, and joining one."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from typer.core import TyperCommand
from typer.main import get_command

from ..errors import DataError, IdentityError, ParameterError
from .console import AsJson, columns, show

group = typer.Typer(no_args_is_help=True, help="A group of peers, as its admin sees it; and joining one.")

Folder = Annotated[Path, typer.Argument(help="The peer's folder.")]
GroupFolder = Annotated[Path, typer.Argument(help="The group's folder, which is the admin's.")]
admin = typer.Typer(no_args_is_help=True, help="Adding a second admin, or handing over to another one.")
group.add_typer(admin, name="admin")


def brings_model(charter: Any) -> bool:
    """Return whether members of the group bring their own model."""
    return bool(charter.network) and charter.network.hidden is None


def check_peer_folder(folder: Path) -> None:
    """Refuse a folder that holds no peer."""
    if not (folder / "identity.json").is_file():
        raise IdentityError(f"{folder} holds no peer: there is no identity.json in it")


class _Create(TyperCommand):
    """Placeholder of the command until it is used: its options are fields of a charter, whose libraries load slowly."""

    @cached_property
    def whole(self) -> Any:
        """The command itself."""
        alone = typer.Typer(add_completion=False)
        alone.command(self.name, help=self.help)(_with_options(_create))
        return get_command(alone)

    @property
    def params(self) -> Any:
        """The arguments and options of the command itself, for tools that read them, such as the reference."""
        return self.whole.params

    @params.setter
    def params(self, given: Any) -> None:
        """Ignore the parameters of the placeholder."""

    def make_context(self, info_name: Any, args: Any, parent: Any = None, **extra: Any) -> Any:
        """Return the context of the command itself."""
        return self.whole.make_context(info_name, args, parent, **extra)


def _with_options(command: Callable[..., None]) -> Callable[..., None]:
    """Return the command with the options of a charter between its folder and --json, in place of ``given``."""
    from ..peers.group.declare import FLAGS, options

    signature = inspect.signature(command, eval_str=True)
    folder, as_json = (signature.parameters[name] for name in ("folder", "as_json"))
    asked = [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=inspect.Parameter.empty if option.default is ... else option.default,
            annotation=Annotated[option.kind, typer.Option(*FLAGS.get(name, ()), help=option.help)],
        )
        for name, option in options().items()
    ]
    last = as_json.replace(kind=inspect.Parameter.KEYWORD_ONLY)
    command.__signature__ = signature.replace(parameters=[folder, *asked, last])  # type: ignore[attr-defined]
    return command


@group.command("create", cls=_Create)
def create_group() -> None:
    """Found a group: a certificate authority, an admin's key, and a charter of public numbers."""


def _create(folder: GroupFolder, as_json: AsJson = False, **given: Any) -> None:
    from ..peers.group.declare import fields_of
    from ..peers.group.groups import create

    sample, target, fields = given["sample"], given["target"], fields_of(given)
    ca = None if given["ca_key"] is None else (given["ca_key"], given["ca_certificate"])
    charter = create(folder, model=given["model"], ca=ca, **fields)
    public = "" if sample is None else f"Columns, levels, means and knots of {sample} are public in this group.\n"
    if charter.privacy is not None and charter.scale is None and charter.design is None:
        public += "Rows count as if none were longer than --row-norm: in other units, give --center and --scale.\n"
    if charter.privacy is not None and charter.labels is None and given["target_scale"] is None:
        public += (
            f"Warning: {target} is a number and counts as it is, and privacy cuts what one row can say to --clip.\n"
            "  Where it is not within about -1 and 1, little or nothing is learned from the others: give\n"
            f"  --target-center and --target-scale, a usual {target} and how far others are from it, by public\n"
            f"  knowledge. To begin again, delete {folder}.\n"
        )
    text = (
        f"group {folder}: run {charter.run}\n{public}"
        f"Keep {folder} to yourself: its keys are the admin's. Members begin with\n"
        "  coterie peer init FOLDER --name NAME --listen HOST:PORT\nand send you the request that it writes."
    )
    show({"run": charter.run, "folder": str(folder)}, text, as_json)


@group.command("propose-scale")
def propose_scale(
    folder: GroupFolder,
    scales: Annotated[list[Path], typer.Argument(help="Files that members wrote with `coterie peer scale`.")],
    as_json: AsJson = False,
) -> None:
    """Propose center and scale of the columns, for objectives over a graph: medians of the members' values."""
    from ..peers.group.amendments import amend
    from ..peers.group.scales import combined

    found = combined(folder, scales)
    run = amend(folder, center=found.center, scale=found.scale).run
    lines = [f"{name}: center {c:.6g}, scale {s:.6g}" for name, c, s in zip(*found, strict=True)]
    told = {"run": run, "center": found.center, "scale": found.scale}
    show(told, "\n".join([*lines, f"run {run}", _propose(folder)]), as_json)


@group.command("invite")
def invite_member(
    folder: GroupFolder,
    request: Annotated[Path, typer.Argument(help="The request that `coterie peer init` wrote.")],
    edge: Annotated[list[str] | None, typer.Option(help="A neighbour, NAME or NAME:WEIGHT; repeat it.")] = None,
    relay: Annotated[bool, typer.Option("--relay", help="The peer is a relay, which only passes messages on.")] = False,
    replace: Annotated[bool, typer.Option("--replace", help="The peer replaces a member that lost its key.")] = False,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="The invitation's file.")] = None,
    as_json: AsJson = False,
) -> None:
    """Admit a peer to the group: sign its certificate, and write its invitation, which contains no secret."""
    from ..peers.group.groups import invite

    path = invite(folder, request, edges=edges_of(edge), relay=relay, replace=replace, to=output)
    text = f"invitation: {path}\nThe peer runs: coterie group join FOLDER {path.name}"
    show({"invitation": str(path)}, text, as_json)


@group.command("join")
def join_group(
    folder: Folder,
    invitation: Annotated[Path, typer.Argument(help="The invitation that the admin sent.")],
    run_id: Annotated[str | None, typer.Option("--run", help="The run's id, as you heard it from the admin.")] = None,
    as_json: AsJson = False,
) -> None:
    """Join a group with an invitation. Joining again takes over a newer certificate or list of members."""
    from ..peers.group.groups import join
    from ..peers.node.audit_log import FILE, AuditLog
    from ..peers.node.settings import read_settings, write_settings

    joined = join(folder, invitation, run=run_id)
    write_settings(folder)
    told_of = {"run": joined.charter.run, "name": joined.identity.name, "roster": joined.roster.version}
    AuditLog(folder / FILE)("joined", certificate=joined.expires.isoformat(), **told_of)
    charter = joined.charter
    told = {"run": charter.run, "name": joined.identity.name, "members": len(joined.roster.members)}
    text = f"{joined.identity.name} is in; members: {len(joined.roster.members)}; run {charter.run}\n"
    if joined.me in joined.roster.relays:
        text += f"next: coterie relay {folder}"
    else:
        text += f"columns: {', '.join(_column(charter, j) for j in range(len(charter.features)))}; "
        text += f"target: {charter.target} ({'a number' if charter.labels is None else ' or '.join(charter.labels)})\n"
        settings = read_settings(folder)
        more = "" if settings.data is not None else " --data YOUR.csv"
        more += " --model FILE.py" if brings_model(charter) and settings.model is None else ""
        text += f"next: coterie peer run {folder}{more}"
    show(told, text, as_json)


def _column(charter: Any, feature: int) -> str:
    """Return the name of a feature, with its levels if it holds text."""
    name, columns = str(charter.features[feature]), charter.columns
    if columns is None or columns.kinds[feature] == "number":
        return name
    levels = [text for j, (_, text) in zip(columns.source, columns.parts, strict=True) if j == feature and text]
    reference = columns.reference(feature)
    return f"{name} ({', '.join(levels if reference is None else [reference, *levels])})"


@group.command("edge")
def edge_members(
    folder: GroupFolder,
    one: Annotated[str, typer.Argument(help="A member.")],
    other: Annotated[str, typer.Argument(help="Another.")],
    weight: Annotated[float, typer.Option(help="0 for no edge.")] = 1.0,
    as_json: AsJson = False,
) -> None:
    """Connect two members by an edge, in the next version of the list of members."""
    from ..peers.group.groups import edge

    roster = edge(folder, one, other, weight)
    show({"version": roster.version, "edges": roster.edges}, _bring(folder, roster), as_json)


@group.command("remove")
def remove_member(
    folder: GroupFolder,
    name: Annotated[str, typer.Argument(help="A member or a relay.")],
    revoke: Annotated[
        bool,
        typer.Option(
            "--revoke", help="Also revoke its certificate: no peer accepts its connections, not even to tell it."
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Remove a member from the next version of the list of members. When the member connects, it is told, and stops."""
    from ..peers.group.groups import remove

    roster = remove(folder, name, revoked=revoke)
    show({"version": roster.version, "members": [m.name for m in roster.members]}, _bring(folder, roster), as_json)


@group.command("revoke")
def revoke_certificate(
    folder: GroupFolder,
    name: Annotated[str, typer.Argument(help="A member or a relay.")],
    serial: Annotated[
        str | None,
        typer.Option(help="Serial number of one certificate, in hex, for a certificate that another admin has signed."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Revoke the certificates of a member whose TLS key is lost. The member stays, and must be invited again."""
    from ..peers.group.groups import revoke

    roster = revoke(folder, name, serial)
    text = f"{_bring(folder, roster)}\n{name} needs a new certificate. It runs\n"
    text += "  coterie group request FOLDER --new-tls-key\nand you: coterie group invite"
    show({"version": roster.version, "revoked": sorted(roster.revoked)}, f"{text} {folder} {name}.request", as_json)


@group.command("request")
def request_again(
    folder: Folder,
    new_tls_key: Annotated[
        bool,
        typer.Option("--new-tls-key", help="Make a new TLS key, if the present one is lost or was seen by others."),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Write a new request for a peer that has an identity, so that it can be invited again."""
    from ..peers.group.groups import request

    path = request(folder, new_tls_key=new_tls_key)
    text = f"request: {path}\nSend it to the admin, who runs: coterie group invite GROUP {path.name}"
    show({"request": str(path)}, text, as_json)


@group.command("update")
def update_group(
    folder: GroupFolder,
    roster: Annotated[Path, typer.Argument(help="The file roster of a peer, or of another admin.")],
    as_json: AsJson = False,
) -> None:
    """Take over the list that members hold, after restoring a backup, or when another admin has signed a newer one."""
    from ..peers.group.groups import update

    new, healed, lost = update(folder, roster)
    text = f"goes on from version {new.version}"
    if healed:
        text = f"there were two lists; yours is void from now on\n{_bring(folder, new)}"
    if lost:
        text += f"\nInvite again, because they are on the void list alone: {', '.join(lost)}"
    show({"version": new.version, "healed": healed, "invite_again": lost}, text, as_json)


def _bring(folder: Path, roster: Any) -> str:
    return (
        f"list of members, version {roster.version}: {folder / 'roster'}\n"
        f"Bring it to any one peer: coterie peer update FOLDER {folder / 'roster'}"
    )


@group.command("renew")
def renew_certificates(
    folder: GroupFolder,
    within: Annotated[
        float, typer.Option(help="Renew certificates that expire within this number of days.", min=0)
    ] = 60.0,
    days: Annotated[
        int | None, typer.Option(help="Number of days for which the new certificates are valid.", min=1)
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Renew the certificates of members and relays that expire soon; peers pass the new ones on."""
    from ..peers.group.renewal import renew

    done = renew(folder, within, **_given(days=days))
    lines = [f"renewed: {', '.join(done.renewed) or 'none'}"]
    if done.unknown:
        lines.append(f"not known here, so invite them again: {', '.join(done.unknown)}")
    if done.capped:
        lines.append(f"the group's authority itself expires soon, so no longer ones are made: {', '.join(done.capped)}")
    if done.revoked:
        lines.append(f"revoked, so invite them again with new TLS keys: {', '.join(done.revoked)}")
    if not any(done):
        lines = [f"renewed: none, as no certificate ends within {within:g} days, or a new one would hardly last longer"]
    if done.renewed:
        lines.append(f"Bring them to any one peer: coterie peer update FOLDER {folder / 'announcements'}")
    told = {"renewed": done.renewed, "unknown": done.unknown, "capped": done.capped, "revoked": done.revoked}
    show(told, "\n".join(lines), as_json)


@group.command("amend")
def amend_charter(
    folder: GroupFolder,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="A field of the charter, field=value or field.name=value; repeat it."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Propose another charter to the members: a new run, with the same members, keys and edges."""
    from ..peers.group.amendments import amend, changes_of, differences, in_words
    from ..peers.group.charter import charter_in

    old = charter_in(folder)
    new = amend(folder, **changes_of(old, settings or ()))
    text = f"run {new.run} follows {old.run}: {in_words(differences(old, new))}\n{_propose(folder)}"
    show({"run": new.run, "amends": old.run}, text, as_json)


def _propose(folder: Path) -> str:
    """Return the next steps after amending a charter."""
    return (
        f"Bring it to any one peer: coterie peer update FOLDER {folder / 'announcements'}\n"
        "Each member that wants it runs: coterie peer accept FOLDER"
    )


@group.command("show")
def show_group(
    folder: GroupFolder,
    other: Annotated[
        Path | None, typer.Argument(help="A list to compare with: of a peer, of another admin, or the file fork.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show members, edges and public numbers of a group or a peer's folder, and whether two lists are compatible."""
    from .._files import read_bounded
    from ..peers.group.charter import charter_in
    from ..peers.group.roster import compared, described, lists_in, read_fork, read_roster, signers, version_text

    if not (folder / "charter.json").exists():
        raise DataError(f"{folder} holds neither a group nor a peer that has joined one")
    charter, signed = charter_in(folder), read_bounded(folder / "roster")
    roster = read_roster(signed, charter)
    names = {member.address: member.name for member in roster.members}
    title = f"run {charter.run}: {charter.method}, {charter.objective}; members, {version_text(roster)}"
    table = Table(*columns("name", "address", "endpoint", "neighbours"), title=title)
    for member in roster.members:
        near = ", ".join(f"{names[j]} ({w:g})" for j, w in sorted(roster.neighbours(member.address).items()))
        table.add_row(member.name, str(member.address), member.endpoint or "through a relay", near)
    for relay_ in roster.relays:
        table.add_row(relay_.name, "relay", relay_.endpoint, "")
    found: dict[str, Any] = {"run": charter.run, "version": roster.version, "members": list(names.values())}
    keys = sorted(key.hex() for key in signers(charter, roster, version=roster.version + 1))
    found |= {"edges": roster.edges, "hash": roster.digest.hex(), "admins": keys, "revoked": sorted(roster.revoked)}
    lines = [] if len(keys) == 1 else [f"admins: {', '.join(key[:8] for key in keys)}"]
    if roster.revoked:
        lines.append(f"revoked certificates: {len(roster.revoked)}")
    if (folder / "fork").exists():
        found["fork"] = described(read_fork(read_bounded(folder / "fork")), charter)
        lines.append(found["fork"])
    if other is not None:
        found["compared"] = [compared(signed, one, charter) for one in lists_in(read_bounded(other))]
        lines += found["compared"]
    table.caption = "\n".join(lines) or None
    show(found, table, as_json)


# -- admins ---------------------------------------------------------------------------------------------------------


@admin.command("init")
def init_admin(
    folder: Annotated[Path, typer.Argument(help="A new folder, which is to be this admin's.")],
    as_json: AsJson = False,
) -> None:
    """Create keys, which never leave this folder, for a second admin on this machine, and a request for the first
    admin.
    """
    from ..peers.group.admins import ask_as_admin

    path = ask_as_admin(folder)
    text = f"request: {path}\nSend it to the admin, who runs: coterie group admin add GROUP {path.name}\n"
    text += f"and then, with what comes back: coterie group admin accept {folder} admin.delegation"
    show({"request": str(path)}, text, as_json)


@admin.command("add")
def add_admin(
    folder: GroupFolder,
    request: Annotated[Path, typer.Argument(help="The request that `coterie group admin init` wrote.")],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="The file for the second admin.")] = None,
    as_json: AsJson = False,
) -> None:
    """Allow a second admin to sign lists of members and certificates."""
    from ..peers.group.admins import appoint

    _show_delegation(folder, appoint(folder, request, to=output), as_json)


@admin.command("hand-over")
def hand_over_group(
    folder: GroupFolder,
    key: Annotated[str, typer.Argument(help="The other admin's request, or its key if it is one already.")],
    output: Annotated[Path | None, typer.Option("--output", "-o", help="The file for the new admin.")] = None,
    as_json: AsJson = False,
) -> None:
    """Hand over to another admin; the key of this admin is no longer accepted."""
    from ..peers.group.admins import appoint, hand_over

    if Path(key).is_file():
        _show_delegation(folder, appoint(folder, key, retire=True, to=output), as_json)
        return
    roster = hand_over(folder, key)
    text = f"{_bring(folder, roster)}\nand to the other admin: coterie group update GROUP {folder / 'roster'}"
    show({"version": roster.version}, text, as_json)


def _show_delegation(folder: Path, path: Path, as_json: bool) -> None:
    text = f"delegation: {path}\nThe other admin runs: coterie group admin accept FOLDER {path.name}\n"
    text += f"Bring the new list of members to any one peer: coterie peer update FOLDER {folder / 'roster'}"
    show({"delegation": str(path)}, text, as_json)


@admin.command("accept")
def accept_administration(
    folder: Annotated[Path, typer.Argument(help="The folder that `coterie group admin init` made.")],
    delegation: Annotated[Path, typer.Argument(help="The delegation that the first admin sent.")],
    run_id: Annotated[str | None, typer.Option("--run", help="The run's id, as you heard it from the admin.")] = None,
    as_json: AsJson = False,
) -> None:
    """Become an admin: the folder becomes a group's folder, for all commands of an admin."""
    from ..peers.group.admins import accept_delegation

    roster = accept_delegation(folder, delegation, run_id)
    text = f"admin of run {roster.run}; members: {len(roster.members)}; list of members, version {roster.version}\n"
    text += f"Before you sign, take over what other admins have signed: coterie group update {folder} LIST"
    show({"run": roster.run, "version": roster.version}, text, as_json)


# -- helpers ----------------------------------------------------------------------------------------------------------


def _given(**options: Any) -> dict[str, Any]:
    """Return the options that were given; other options have their defaults in the called function."""
    return {name: value for name, value in options.items() if value is not None}


def edges_of(given: list[str] | None) -> dict[str, float]:
    """Return weights by name from options NAME or NAME:WEIGHT."""
    edges = {}
    for one in given or ():
        name, _, weight = one.partition(":")
        try:
            edges[name] = float(weight) if weight else 1.0
        except ValueError:
            raise ParameterError(f"--edge {one}: must be NAME or NAME:WEIGHT") from None
    return edges


__all__ = ["Folder", "edges_of", "group"]
