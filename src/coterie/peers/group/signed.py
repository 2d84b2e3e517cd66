"""What is signed: one envelope for lists of members, delegations, announcements, requests, invitations and appointments.

A signature is of a seal, which says what is signed, and of the record in msgpack: so none is good for anything else. It
stands before the record, as peers pass it on (:meth:`Signed.pack`), or it is a field of the record, as people send it
(:meth:`Signed.sign`). Signatures are Ed25519's, by libsodium, which verifies in half the time that OpenSSL takes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic

import msgspec
from cryptography.hazmat.primitives.asymmetric import ed25519
from nacl.bindings import crypto_sign, crypto_sign_open, crypto_sign_seed_keypair
from nacl.exceptions import CryptoError

from ...errors import ParameterError, SignatureError
from .records import Record, encoded, from_json, from_msgpack

SigningKey = ed25519.Ed25519PrivateKey
#: Bytes of a signature, and of a public key.
SIGNATURE, PUBLIC = 64, 32


def signer(seed: bytes) -> Callable[[bytes], bytes]:
    """Turns messages into signatures."""
    secret = crypto_sign_seed_keypair(seed)[1]

    def sign(message: bytes) -> bytes:
        return crypto_sign(message, secret)[:SIGNATURE]

    return sign


def public_of(seed: bytes) -> bytes:
    """The public key that goes with a seed."""
    return crypto_sign_seed_keypair(seed)[0]


def is_signed(public: bytes, signature: bytes, message: bytes) -> bool:
    """Whether a message was signed with a key."""
    if len(public) != PUBLIC or len(signature) != SIGNATURE:
        return False
    try:
        crypto_sign_open(signature + message, public)
    except CryptoError:
        return False
    return True


def verify(public: bytes, signature: bytes, message: bytes, what: str = "the message") -> None:
    """Refuse a message that was not signed with a key."""
    if not is_signed(bytes(public), bytes(signature), message):
        raise SignatureError(f"{what} is not signed with the key {bytes(public[:8]).hex()}...")


@dataclass(frozen=True)
class Signed(Generic[Record]):
    """How records of one kind are signed, checked, written, read and refused.

    Parameters
    ----------
    kind : type
        Of the records.
    seal : bytes
        What a signature begins with.
    keys : function, optional
        The keys that may sign a record, of the record: one that people send says itself whose it is.
    others : str, optional
        Who beside the first of them may sign, for an error.
    """

    kind: type[Record]
    seal: bytes
    keys: Callable[[Any], Sequence[bytes]] = lambda record: ()
    others: str = ""

    def pack(self, record: Record, key: SigningKey, what: str) -> bytes:
        """The signature, and the record in msgpack. What could not be read again is not signed."""
        body = encoded(record)
        from_msgpack(body, self.kind, what, ParameterError)
        return key.sign(self.seal + body) + body

    def signer(self, content: bytes, keys: Iterable[bytes]) -> bytes | None:
        """Which of these keys has signed something packed, if any. Nothing of it is parsed."""
        return _signer(keys, bytes(content[:SIGNATURE]), self.seal + bytes(content[SIGNATURE:]))

    def unpack(self, content: bytes, keys: Iterable[bytes], what: str) -> Record:
        """The record, if one of these keys of admins has signed it. Nothing is parsed before that is sure."""
        if self.signer(content, keys) is None:
            raise SignatureError(f"{what} is not signed with the admin's key")
        return from_msgpack(bytes(content[SIGNATURE:]), self.kind, what)

    def sign(self, record: Record, key: SigningKey, run: str = "") -> Record:
        """The record with its signature; with a `run`, it is worth nothing in another."""
        return msgspec.structs.replace(record, signature=key.sign(self._message(record, run)))  # type: ignore[call-arg]

    def is_by(self, record: Any, keys: Iterable[bytes], run: str = "") -> bool:
        """Whether one of these keys has signed a record."""
        try:
            message = self._message(record, run)
        except (ValueError, OverflowError):  # text that cannot be written
            return False
        return _signer(keys, record.signature, message) is not None

    def read(self, content: bytes, what: str) -> Record:
        """A record that people have sent as json, if it is signed with a key that may."""
        found = from_json(content, self.kind, what)
        keys = self.keys(found)
        if not self.is_by(found, keys):
            raise SignatureError(f"{what} is not signed with the key {keys[0][:8].hex()}...{self.others}")
        return found

    def _message(self, record: Record, run: str) -> bytes:
        """What is signed: what it is, and all of it but the signature."""
        return self.seal + run.encode() + encoded(msgspec.structs.replace(record, signature=b""))  # type: ignore[call-arg]


def _signer(keys: Iterable[bytes], signature: bytes, message: bytes) -> bytes | None:
    return next((key for key in keys if is_signed(key, signature, message)), None)
