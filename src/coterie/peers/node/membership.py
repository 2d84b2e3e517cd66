"""The members of the group as a peer knows them: the roster, its forks, and the admin's announcements.

A roster may come from anybody, because only the admin's signature and its version count. Two rosters of which neither
continues the other are a fork: the held one stays, and all neighbours are informed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from ...errors import DataError, SignatureError
from ..group.announcements import CHARTER, Board, packaged, room
from ..group.charter import Charter
from ..group.roster import Fork, Roster, read_roster, relation, signers
from ..wire.limits import Buckets, once
from ..wire.packet import Refused
from .mailbox import NOBODY

#: Minimal seconds between two rosters sent to a member, and between two departures of a member.
BRING_EVERY, LEAVE_EVERY = 10.0, 60.0
#: Rosters that are read per second from one member, and from senders without a name (non-members and relays); and how
#: many at once. The separate limits keep one sender from blocking rosters that others bring.
ROSTERS_PER_SECOND, UNNAMED_PER_SECOND, ROSTERS_AT_ONCE = 1.0, 8.0, 8.0
#: Maximal number of forks that are remembered, so that each is reported once.
MAX_FORKS = 16
#: Maximal number of removed members whose names are remembered.
MAX_FORMER_MEMBERS = 1000


class News(NamedTuple):
    """Relation of a received roster to the held one: "newer" (and held now), "fork", "removed", or "nothing"."""

    what: str
    roster: Roster


class Members:
    """The members that a peer knows, and those whose messages it accepts."""

    def __init__(self, charter: Charter, signed: bytes, address: int):
        self._charter, self.address, self.signed = charter, address, signed
        self.roster = read_roster(signed, charter)
        self.digest = self.roster.digest
        self.key = self.roster.member(address).key  # raises a DataError if there is no such member
        self.fork: Fork | None = None  # two rosters of which neither continues the other
        self.farewell: bytes | None = None  # the roster that removed this peer
        self.board = Board(signers(charter, self.roster), room(charter))
        self.muted: frozenset[int] = frozenset()  # addresses of members that this peer ignores
        self.gone: set[int] = set()  # addresses of members that have left for good
        self._forks: set[bytes] = set()  # hashes of forks that were reported
        self._former: dict[int, str] = {}  # names of removed members, by address; addresses are never reused
        self._named = Buckets(ROSTERS_PER_SECOND, ROSTERS_AT_ONCE)
        self._unnamed = Buckets(UNNAMED_PER_SECOND, ROSTERS_AT_ONCE)
        self._brought: dict[int, float] = {}  # when a member was last sent the roster
        self._left: dict[int, float] = {}  # when a member last left
        self.mute(())

    def name_of(self, address: int) -> str:
        """Return the name of a member or former member, or the address as text."""
        here = next((one.name for one in self.roster.members if one.address == address), None)
        return here or self._former.get(address) or str(address)

    def mute(self, addresses: Iterable[int]) -> None:
        """Mute exactly these members."""
        self.muted = frozenset(addresses) - {self.address}
        self.keys = {m.address: m.key for m in self.roster.members if m.address not in self.muted}

    @property
    def for_non_members(self) -> bytes:
        """Package for non-members and for members of an amended run: the held roster, and the charter that follows the
        run.
        """
        ended = [signed for (kind, run), signed in self.board.signed.items() if kind == CHARTER]
        return packaged(self.signed, ended)

    def may_bring(self, now: float, to: int) -> bool:
        """Return whether a member may be sent the roster again."""
        return once(self._brought, to, now, BRING_EVERY)

    def leaves(self, now: float, j: int) -> None:
        """Note that a member leaves for good. Raise Refused if it does so too often."""
        if not once(self._left, j, now, LEAVE_EVERY):
            raise Refused("rate", f"{j} leaves again and again")
        self.gone.add(j)

    def take(self, now: float, signed: bytes, by: int | None = None) -> News:
        """Take in a roster, and hold it if it is newer. Raise Refused if no admin signed it, or if rosters come too
        often.

        ``by`` is the member that sent it, or NOBODY. None means that it is from this machine, without a limit.
        """
        if signed == self.signed or (self.fork is not None and signed == self.fork.other):
            return News("nothing", self.roster)
        if by is not None and not (self._unnamed if by == NOBODY else self._named).take(by, now):
            raise Refused("rate", f"rosters from {by}")
        if len(signed) > self._charter.message_bytes:  # no message could have carried it
            raise Refused("size", f"a roster of {len(signed)} bytes")
        try:
            roster = read_roster(signed, self._charter, held=self.roster)
        except DataError as error:
            # A roster of another run that is signed by the admin: its sender has another charter, before or after an
            # amendment.
            raise Refused("signature" if isinstance(error, SignatureError) else "run", f"a roster: {error}") from None
        what = relation(self.roster, roster)
        if what == "fork":
            return News(what if self._is_new_fork(roster, signed) else "nothing", roster)
        if what != "newer":
            return News("nothing", roster)
        if self.key not in {member.key for member in roster.members if member.address == self.address}:
            self.farewell = signed
            return News("removed", roster)
        self._hold(roster, signed)
        return News(what, roster)

    def _is_new_fork(self, other: Roster, signed: bytes) -> bool:
        """Remember a fork, and return whether it is new."""
        if other.digest in self._forks or len(self._forks) >= MAX_FORKS:
            return False
        self._forks.add(other.digest)
        self.fork = Fork(self.signed, signed)
        return True

    def _hold(self, roster: Roster, signed: bytes) -> None:
        here = {member.address for member in roster.members}
        self._former |= {one.address: one.name for one in self.roster.members if one.address not in here}
        while len(self._former) > MAX_FORMER_MEMBERS:
            del self._former[next(iter(self._former))]
        self.roster, self.signed, self.digest = roster, signed, roster.digest
        self._forks.clear()
        if self.fork is not None and relation(roster, read_roster(self.fork.other, self._charter)) != "fork":
            self.fork = None
        self.mute(self.muted)
        self.board.trust(signers(self._charter, roster))
