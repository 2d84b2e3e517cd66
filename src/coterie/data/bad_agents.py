"""Agents whose rows cannot be used: told all at once, or left out."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field

from ..errors import DataError
from .pieces import Piece

#: How many of them a message names.
SHOWN = 20


@dataclass(frozen=True)
class Problem:
    """Why an agent, or a piece that is nobody's, cannot be used."""

    piece: int | None  # where it was found
    agent: Hashable  # raw id; None if it is not known
    reason: str
    harmless: bool = False  # whether the rest of the piece can be used


@dataclass
class BadAgents:
    """Agents and pieces that cannot be used."""

    problems: list[Problem]

    @property
    def agents(self) -> set[Hashable]:
        """Their raw ids."""
        return {problem.agent for problem in self.problems if problem.agent is not None}

    @property
    def pieces(self) -> set[int]:
        """Pieces of which nothing can be used."""
        return {p.piece for p in self.problems if p.agent is None and p.piece is not None and not p.harmless}

    def titles(self, pieces: Sequence[Piece]) -> dict[str, tuple[Hashable, str]]:
        """What to call each of them, its id, and the first thing that is wrong."""
        found: dict[Hashable, tuple[str, str]] = {}
        for problem in self.problems:
            name = "" if problem.piece is None else pieces[problem.piece].name
            key = name if problem.agent is None else problem.agent
            title = name if problem.agent is None else title_of(problem.agent, name)
            found.setdefault(key, (title, problem.reason))
        return {title: (key, reason) for key, (title, reason) in found.items()}

    def error(self, pieces: Sequence[Piece], others: bool) -> DataError:
        """One error that lists them; with how to leave them out, if there are others that could be used."""
        titles = self.titles(pieces)
        lines = [f"{title}: {reason}" for title, (_, reason) in titles.items()]
        reasons = {reason for _, reason in titles.values()}
        advice = ""
        if others:
            advice = '; correct what is wrong, or leave such agents out: ct.Source(..., bad_agents="skip")'
        if len(lines) == 1:
            return DataError(lines[0] + advice)
        if len(reasons) == 1:
            return DataError(f"{len(lines)} times the same, first in {lines[0]}{advice}")
        more = f"\n  and {len(lines) - SHOWN} more" if len(lines) > SHOWN else ""
        listed = "".join(f"\n  {line}" for line in lines[:SHOWN])
        return DataError(f"{len(lines)} agents or files cannot be used{advice}:{listed}{more}")


@dataclass(frozen=True)
class LeftOut:
    """What is left out."""

    agents: frozenset[Hashable] = frozenset()  # raw ids
    pieces: frozenset[int] = frozenset()
    told: dict[str, str] = field(default_factory=dict)  # why, by what to call it
    reasons: dict[Hashable, str] = field(default_factory=dict)  # why, by raw id or name of the piece

    def more(self, bad: BadAgents, pieces: Sequence[Piece]) -> LeftOut:
        """With what was found bad besides."""
        titles = bad.titles(pieces)
        told = {title: reason for title, (_, reason) in titles.items()}
        reasons = dict(titles.values())
        return LeftOut(self.agents | bad.agents, self.pieces | bad.pieces, told | self.told, reasons | self.reasons)


def title_of(agent: Hashable, name: str) -> str:
    """An agent in an error, and where its rows are."""
    if agent is None:
        return name
    shown = repr(str(agent)) if isinstance(agent, str) else repr(agent)
    return f"agent {shown} ({name})" if name else f"agent {shown}"
