"""One signature format for rosters, delegations, announcements, requests, invitations and appointments.

A signature covers a seal, which names the kind of record, and the record in msgpack, so a signature of one kind is not
valid for another. The signature either stands before the record, as peers pass the record on (:meth:`Signed.pack`), or
is a field of the record, as people send it (:meth:`Signed.sign`). Signatures are Ed25519, computed by libsodium, which
verifies in half the time that OpenSSL takes.
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
#: Bytes of a signature, and bytes of a public key.
SIGNATURE_BYTES, PUBLIC_KEY_BYTES = 64, 32


def signer(seed: bytes) -> Callable[[bytes], bytes]:
    """Return a function that signs messages with the key of a seed."""
    secret = crypto_sign_seed_keypair(seed)[1]

    def sign(message: bytes) -> bytes:
        return crypto_sign(message, secret)[:SIGNATURE_BYTES]

    return sign


def public_of(seed: bytes) -> bytes:
    """Return the public key that belongs to a seed."""
    return crypto_sign_seed_keypair(seed)[0]


def is_signed(public: bytes, signature: bytes, message: bytes) -> bool:
    """Return whether a message was signed with a key."""
    if len(public) != PUBLIC_KEY_BYTES or len(signature) != SIGNATURE_BYTES:
        return False
    try:
        crypto_sign_open(signature + message, public)
    except CryptoError:
        return False
    return True


def verify(public: bytes, signature: bytes, message: bytes, what: str = "the message") -> None:
    """Raise a SignatureError unless a message was signed with a key."""
    if not is_signed(bytes(public), bytes(signature), message):
        raise SignatureError(f"{what} is not signed with the key {bytes(public[:8]).hex()}...")


@dataclass(frozen=True)
class Signed(Generic[Record]):
    """Signing, checking, writing and reading of records of one kind.

    Parameters
    ----------
    kind : type
        Type of the records.
    seal : bytes
        Bytes that every signed message begins with.
    keys : function, optional
        Returns the keys that may sign a given record. Records that people send name their own signer.
    others : str, optional
        Other keys that may sign, in words for error messages.
    """

    kind: type[Record]
    seal: bytes
    keys: Callable[[Any], Sequence[bytes]] = lambda record: ()
    others: str = ""

    def pack(self, record: Record, key: SigningKey, what: str) -> bytes:
        """Return the signature and the record in msgpack. A record that could not be read again is not signed."""
        body = encoded(record)
        from_msgpack(body, self.kind, what, ParameterError)
        return key.sign(self.seal + body) + body

    def signer(self, content: bytes, keys: Iterable[bytes]) -> bytes | None:
        """Return the one of these keys that has signed packed content, or None. The content is not parsed."""
        return _signer(keys, bytes(content[:SIGNATURE_BYTES]), self.seal + bytes(content[SIGNATURE_BYTES:]))

    def unpack(self, content: bytes, keys: Iterable[bytes], what: str) -> Record:
        """Return the record if one of these admin keys has signed it. Nothing is parsed before the signature is
        verified.
        """
        if self.signer(content, keys) is None:
            raise SignatureError(f"{what} is not signed with the admin's key")
        return from_msgpack(bytes(content[SIGNATURE_BYTES:]), self.kind, what)

    def sign(self, record: Record, key: SigningKey, run: str = "") -> Record:
        """Return the record with its signature. With a `run`, the signature is valid in that run only."""
        return msgspec.structs.replace(record, signature=key.sign(self._message(record, run)))  # type: ignore[call-arg]

    def is_by(self, record: Any, keys: Iterable[bytes], run: str = "") -> bool:
        """Return whether one of these keys has signed a record."""
        try:
            message = self._message(record, run)
        except (ValueError, OverflowError):  # a field holds text that cannot be encoded
            return False
        return _signer(keys, record.signature, message) is not None

    def read(self, content: bytes, what: str) -> Record:
        """Return a record that people have sent as JSON, if a permitted key has signed it."""
        found = from_json(content, self.kind, what)
        keys = self.keys(found)
        if not self.is_by(found, keys):
            raise SignatureError(f"{what} is not signed with the key {keys[0][:8].hex()}...{self.others}")
        return found

    def _message(self, record: Record, run: str) -> bytes:
        """Return the signed bytes: the seal, and the record without its signature."""
        return self.seal + run.encode() + encoded(msgspec.structs.replace(record, signature=b""))  # type: ignore[call-arg]


def _signer(keys: Iterable[bytes], signature: bytes, message: bytes) -> bytes | None:
    return next((key for key in keys if is_signed(key, signature, message)), None)
