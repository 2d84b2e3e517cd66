"""Letters that a relay cannot read: sealed from member to member, with keys that only these two can work out."""

from __future__ import annotations

import hashlib

from nacl.bindings import (
    crypto_box_afternm,
    crypto_box_beforenm,
    crypto_box_NONCEBYTES,
    crypto_box_open_afternm,
    crypto_sign_ed25519_pk_to_curve25519,
    crypto_sign_ed25519_sk_to_curve25519,
    crypto_sign_seed_keypair,
)
from nacl.exceptions import CryptoError
from nacl.utils import random

#: By how many bytes a sealed letter is longer.
OVERHEAD = 16 + 16 + crypto_box_NONCEBYTES


class Seals:
    """Seals letters to members and opens theirs: X25519 keys made of the Ed25519 keys of both.

    In every letter, before its text, is a mark of run, sender and receiver, so that one is good for no other way; both
    have the same key, and a letter could be sent back otherwise.
    """

    def __init__(self, run: str, me: str, seed: bytes):
        self._run, self._me = run, me
        self._secret = crypto_sign_ed25519_sk_to_curve25519(crypto_sign_seed_keypair(seed)[1])
        self._shared: dict[bytes, bytes] = {}  # by public key

    def forget(self, known: set[bytes]) -> None:
        """Keep what was worked out for these keys only."""
        self._shared = {key: shared for key, shared in self._shared.items() if key in known}

    def seal(self, to: str, key: bytes, letter: bytes) -> bytes:
        """For one member."""
        nonce = random(crypto_box_NONCEBYTES)
        return nonce + crypto_box_afternm(self._mark(self._me, to) + letter, nonce, self._key(key))

    def open(self, sender: str, key: bytes, sealed: bytes) -> bytes | None:
        """The letter, if that member has sealed it for me."""
        nonce, box = sealed[:crypto_box_NONCEBYTES], sealed[crypto_box_NONCEBYTES:]
        try:
            text = crypto_box_open_afternm(box, nonce, self._key(key))
        except (CryptoError, ValueError, TypeError):
            return None
        mark = self._mark(sender, self._me)
        return text[len(mark) :] if text.startswith(mark) else None

    def _key(self, public: bytes) -> bytes:
        shared = self._shared.get(public)
        if shared is None:
            curve = crypto_sign_ed25519_pk_to_curve25519(public)
            shared = self._shared[public] = crypto_box_beforenm(curve, self._secret)
        return shared

    def _mark(self, sender: str, to: str) -> bytes:
        return hashlib.sha256("\n".join(("coterie seal 1", self._run, sender, to)).encode()).digest()[:16]
