"""Who belongs to the group, as far as a peer knows: the list of members, its forks, and what else the admin signs.

A list may come from anybody: it is the admin's signature that counts, and that it is newer. Two lists of which
neither continues the other are a fork: the one that is held stays, and everybody is told.
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

#: Seconds: how often a member is brought the list of members at most, and how often one may leave.
BRING_EVERY, LEAVE_EVERY = 10.0, 60.0
#: How many lists of members are looked at in a second that one member brings, and that come without a name: non-members
#: and relays bring them. How many of them at once. So nobody can keep a list from those to whom others bring it.
ROSTERS_PER_SECOND, UNNAMED_PER_SECOND, ROSTERS_AT_ONCE = 1.0, 8.0, 8.0
#: Forks of the list of members that are remembered, so that each is told of once.
MOST_FORKS = 16
#: So many members that were removed are still known by their names.
MOST_FORMER = 1000


class News(NamedTuple):
    """What a list of members is to the one that is held: "newer" and held now, "fork", "removed", or "nothing"."""

    what: str
    roster: Roster


class Members:
    """The members that a peer knows, and those that it listens to."""

    def __init__(self, charter: Charter, signed: bytes, address: int):
        self._charter, self.address, self.signed = charter, address, signed
        self.roster = read_roster(signed, charter)
        self.digest = self.roster.digest
        self.key = self.roster.member(address).key  # or it raises
        self.fork: Fork | None = None  # two lists of members that do not go together
        self.farewell: bytes | None = None  # the list of members that this peer is not on
        self.board = Board(signers(charter, self.roster), room(charter))
        self.muted: frozenset[int] = frozenset()  # whom this peer does not want to hear
        self.gone: set[int] = set()  # who has left for good
        self._forks: set[bytes] = set()  # those that were told of
        self._former: dict[int, str] = {}  # names of removed members by their addresses, which nobody gets again
        self._named = Buckets(ROSTERS_PER_SECOND, ROSTERS_AT_ONCE)
        self._unnamed = Buckets(UNNAMED_PER_SECOND, ROSTERS_AT_ONCE)
        self._brought: dict[int, float] = {}  # when a member was last given the list of members
        self._left: dict[int, float] = {}  # when a member last said that it leaves
        self.mute(())

    def name_of(self, address: int) -> str:
        """What a member is called, or was when it left; of one that was never met, its address."""
        here = next((one.name for one in self.roster.members if one.address == address), None)
        return here or self._former.get(address) or str(address)

    def mute(self, addresses: Iterable[int]) -> None:
        """Listen to these no longer; to those that were muted before, again."""
        self.muted = frozenset(addresses) - {self.address}
        self.keys = {m.address: m.key for m in self.roster.members if m.address not in self.muted}

    @property
    def for_non_members(self) -> bytes:
        """What to hand to somebody who is no member, or still in a run that was amended: both are told why."""
        ended = [signed for (kind, run), signed in self.board.signed.items() if kind == CHARTER]
        return packaged(self.signed, ended)

    def may_bring(self, now: float, to: int) -> bool:
        """Whether it is long enough since somebody was last given the list of members."""
        return once(self._brought, to, now, BRING_EVERY)

    def leaves(self, now: float, j: int) -> None:
        """A member says that it goes for good; refused if it does that again and again."""
        if not once(self._left, j, now, LEAVE_EVERY):
            raise Refused("rate", f"{j} leaves again and again")
        self.gone.add(j)

    def take(self, now: float, signed: bytes, by: int | None = None) -> News:
        """A list of members, which is held if it is newer; refused if it is not the admin's, or one too many.

        ``by`` is the member that has brought it, or NOBODY; None: it is from this machine, and looked at in any case.
        """
        if signed == self.signed or (self.fork is not None and signed == self.fork.other):
            return News("nothing", self.roster)
        if by is not None and not (self._unnamed if by == NOBODY else self._named).take(by, now):
            raise Refused("rate", f"lists of members from {by}")
        if len(signed) > self._charter.message_bytes:  # no message could have carried it
            raise Refused("size", f"a roster of {len(signed)} bytes")
        try:
            roster = read_roster(signed, self._charter, held=self.roster)
        except DataError as error:
            # The admin's own, and of another run: somebody has not gone over to an amended charter yet.
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
        """Keep what it holds, and the other list beside it."""
        if other.digest in self._forks or len(self._forks) >= MOST_FORKS:
            return False
        self._forks.add(other.digest)
        self.fork = Fork(self.signed, signed)
        return True

    def _hold(self, roster: Roster, signed: bytes) -> None:
        here = {member.address for member in roster.members}
        self._former |= {one.address: one.name for one in self.roster.members if one.address not in here}
        while len(self._former) > MOST_FORMER:
            del self._former[next(iter(self._former))]
        self.roster, self.signed, self.digest = roster, signed, roster.digest
        self._forks.clear()
        if self.fork is not None and relation(roster, read_roster(self.fork.other, self._charter)) != "fork":
            self.fork = None
        self.mute(self.muted)
        self.board.trust(signers(self._charter, roster))
