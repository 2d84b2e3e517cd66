"""What of a running peer belongs into its audit log: noticed by comparing what is so now with what was so before."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from ..._version import __version__
from .audit_log import AuditLog
from .checks import mover

if TYPE_CHECKING:
    from .program import Program


class Chronicle:
    """Writes down what changes: members, releases, mutes, the certificate, and which model is used."""

    def __init__(self, program: Program, audit: AuditLog):
        self._program, self.audit = program, audit
        self._known: dict[str, Any] = {}

    def _now(self) -> dict[str, Any]:
        program = self._program
        node, ledger = program.node, program.node.ledger
        return {
            "roster": node.roster.version,
            "members": {member.name for member in node.roster.members},
            "releases": 0 if ledger is None else ledger.releases,
            "muted": {node.name_of(j) for j in node.muted},
            "certificate": program.expires,
            "served": program.status.get("served"),
        }

    def start(self) -> None:
        """The peer begins."""
        node, self._known = self._program.node, self._now()
        told = {name: self._known[name] for name in ("roster", "releases", "certificate")}
        told |= {"muted": sorted(self._known["muted"]), "members": len(self._known["members"])}
        self.audit("start", version=__version__, run=node.charter.run, boot=node.boot, pid=os.getpid(), **told)

    def look(self) -> None:
        """Write down what has changed since the last look, or the start."""
        if not self._known:
            return
        before, self._known = self._known, self._now()
        now, audit = self._known, self.audit
        if now["roster"] != before["roster"]:
            came, gone = sorted(now["members"] - before["members"]), sorted(before["members"] - now["members"])
            audit("members", version=now["roster"], before_it=before["roster"], joined=came, removed=gone)
        for number in range(before["releases"] + 1, now["releases"] + 1):
            audit("release", release=number, left=self._program.node.ledger.left)
        for name in sorted(now["muted"] - before["muted"]):
            audit("muted", name=name)
        for name in sorted(before["muted"] - now["muted"]):
            audit("heard again", name=name)
        if now["certificate"] != before["certificate"]:
            audit("certificate", expires=now["certificate"])
        if now["served"] != before["served"]:
            self._served(before["served"], now["served"])

    def _served(self, before: str | None, now: str | None) -> None:
        """Another model is used: that is for the log, too."""
        if before is None and now != "alone":
            return
        self.audit("served", model=now, instead_of=before)
        most, folder = mover(self._program.status), self._program.folder
        advice = {"moves_most": most, "advice": f"coterie peer mute {folder} {most}"} if most and now == "alone" else {}
        self._program.log("served", model=now, instead_of=before, **advice)

    def stop(self, why: str) -> None:
        """The peer ends, if it has begun."""
        if not self._known:
            return
        self.look()
        if self._program.node.trouble["removed"]:
            self.audit("removed", what=self._program.node.last_trouble)
        self.audit("stop", why=why, wakes=self._program.node.wakes)
