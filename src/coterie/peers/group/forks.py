"""Forks of the list of members: the evidence, which any peer can check and pass on, and how to say it.

The evidence is both lists as they were signed. It is the file ``fork`` in the folder of a peer that has seen one.
"""

from __future__ import annotations

from ...errors import DataError, MissingExtra
from .charter import Charter
from .records import from_msgpack
from .roster import Roster, read_signed, relation

try:
    import msgspec
except ImportError as error:
    raise MissingExtra('peers on a network need msgspec: pip install "coterie[network]"') from error

#: How to heal it.
CURE = (
    "ask the steward which one is right, who heals it with: coterie group update CLUB LIST, where LIST is the file "
    "roster of a peer that has the right one"
)


class Fork(msgspec.Struct, frozen=True):
    """Two signed lists of which neither continues the other: the one that is held, and another."""

    held: bytes
    other: bytes


def write_fork(fork: Fork) -> bytes:
    """The content of the file ``fork``."""
    return msgspec.msgpack.encode(fork)


def read_fork(content: bytes, what: str = "the fork") -> Fork:
    """The evidence from a file. The lists in it are not checked yet."""
    return from_msgpack(content, Fork, what)


def lists_in(content: bytes) -> list[bytes]:
    """The signed lists in a file: one, or the two of a fork."""
    try:
        fork = read_fork(content)
    except DataError:
        return [content]
    return [fork.held, fork.other]


def told(roster: Roster) -> str:
    """A list in few words, which two people can compare: version and the beginning of its hash."""
    return f"version {roster.version} ({roster.digest.hex()[:8]})"


def described(fork: Fork, charter: Charter) -> str:
    """Both lists, where they part, and whose signatures are under them."""
    (held, by), (other, other_by) = (read_signed(signed, charter) for signed in (fork.held, fork.other))
    common = sorted(set(held.history) & set(other.history))
    parted = f" Both continue version {common[-1][0]}." if common else ""
    gone = sorted({member.name for member in held.members} ^ {member.name for member in other.members})
    differ = f" They differ in {', '.join(gone[:10])}{', ...' if len(gone) > 10 else ''}." if gone else ""
    return (
        f"the list of members has forked: {told(held)}, signed by {by[:4].hex()}, is kept; {told(other)}, signed by "
        f"{other_by[:4].hex()}, does not go with it.{parted}{differ} To heal it, {CURE}"
    )


def compared(one: bytes, other: bytes, charter: Charter) -> str:
    """What one list is to another, for people."""
    (mine, _), (theirs, by) = read_signed(one, charter), read_signed(other, charter)
    match relation(mine, theirs):
        case "same":
            return f"both are {told(mine)}"
        case "fork":
            return described(Fork(one, other), charter)
        case word:
            return f"the other one, {told(theirs)}, signed by {by[:4].hex()}, is {word} than this, {told(mine)}"
