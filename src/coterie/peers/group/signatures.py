"""Ed25519 by libsodium, which verifies in half the time that OpenSSL takes."""

from __future__ import annotations

from collections.abc import Callable

from ...errors import MissingExtra

try:
    from nacl.bindings import crypto_sign, crypto_sign_open, crypto_sign_seed_keypair
    from nacl.exceptions import CryptoError
except ImportError as error:
    raise MissingExtra('peers on a network need pynacl: pip install "coterie[network]"') from error

#: Bytes of a signature, of a public key, and of the seed that a private key is made of.
SIGNATURE, PUBLIC, SEED = 64, 32, 32


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
