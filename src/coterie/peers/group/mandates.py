"""Mandates: how one key that signs lists of members allows another one to, or hands over to it.

The charter names the first steward's key, for ever: it is a part of what the run's id is the hash of. Every further key
hangs on it by a chain of mandates, each signed with a key that was allowed to sign at that time. They travel inside the
list of members, and a peer that has seen one that retires a key does not forget it.
"""

from __future__ import annotations

from collections.abc import Iterable

from ...errors import MissingExtra, SignatureError
from .identity import SigningKey, public_bytes, verify
from .records import Count, PublicKey

try:
    import msgspec
except ImportError as error:
    raise MissingExtra('peers on a network need msgspec: pip install "coterie[network]"') from error

MANDATE_SEAL = b"coterie mandate 1\n"


class Mandate(msgspec.Struct, frozen=True, omit_defaults=True):
    """The word of one steward's key that another may sign lists of members, too."""

    key: PublicKey
    by: PublicKey
    since: Count  # version of the list of members that says so first
    retires: bool = False  # whether the key that signs this signs no later version
    signature: bytes = b""


def make_mandate(run: str, key: bytes, by: SigningKey, since: int, retires: bool = False) -> Mandate:
    """A mandate for a key, good in one run."""
    mandate = Mandate(key, public_bytes(by), since, retires)
    return msgspec.structs.replace(mandate, signature=by.sign(_message(run, mandate)))


def active(first: bytes, mandates: Iterable[Mandate], run: str, version: int) -> set[bytes]:
    """The keys that may sign a version. A mandate of a key that may not sign, or not any more, gives nothing."""
    keys = {first}
    for mandate in mandates:
        if mandate.since > version or mandate.by not in keys or not _signed(run, mandate):
            continue
        keys.add(mandate.key)
        if mandate.retires and version > mandate.since and mandate.key != mandate.by:
            keys.discard(mandate.by)
    return keys


def _signed(run: str, mandate: Mandate) -> bool:
    try:
        verify(mandate.by, mandate.signature, _message(run, mandate))
    except SignatureError:
        return False
    return True


def _message(run: str, mandate: Mandate) -> bytes:
    """What is signed: a mandate of one run is worth nothing in another."""
    bare = msgspec.structs.replace(mandate, signature=b"")
    return MANDATE_SEAL + run.encode() + msgspec.msgpack.encode(bare, order="deterministic")
