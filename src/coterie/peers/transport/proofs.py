"""Proofs of identity: certificates in TLS 1.3, pre-authentications before it, and seals for messages through relays.

A certificate is signed by the group's own authority, and proves a name.

A TLS handshake is expensive, so strangers may begin only a bounded number; and strangers at a member's own address
(behind one NAT) would use up the number for that address. So the dialling side first sends a pre-authentication: its
name, the time, and an Ed25519 signature of both and of the receiver's name. This only lets it through to the handshake,
which proves the name again. Times of one name must grow, so a recorded pre-authentication cannot be used again. The run
is not signed: a member that is still in a run that was amended is let through, too, and gets the next charter as a
non-member.

A message through a relay is sealed with a key that only sender and receiver can compute.
"""

from __future__ import annotations

import hashlib
import ssl
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

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

from ..._files import Where
from ...errors import ParameterError
from ..group.signed import SIGNATURE_BYTES, is_signed

#: First byte of a pre-authentication, and of a TLS handshake.
PREAUTH, TLS = 0x63, 0x16
#: Prefix of every signed pre-authentication.
CONTEXT = b"coterie pre-authentication 2\n"
#: Maximal difference between two clocks, in seconds.
MAX_CLOCK_DIFFERENCE = 3600.0
#: Maximal bytes of a pre-authentication.
MAX_PREAUTH_BYTES = 2 + 8 + SIGNATURE_BYTES + 63

_TIME = struct.Struct(">Q")
#: Bytes that sealing adds to a message.
SEAL_BYTES = 16 + 16 + crypto_box_NONCEBYTES


class Credentials(NamedTuple):
    """The files of a peer's key and certificates, as PEM."""

    key: Path
    certificate: Path
    authority: Path

    @classmethod
    def of(cls, folder: Where) -> Credentials:
        """Return the paths of the files in a folder."""
        return cls(Path(folder) / "tls.key", Path(folder) / "tls.crt", Path(folder) / "ca.crt")


class Proof(NamedTuple):
    """What a certificate has proven."""

    name: str
    serial: str  # of the certificate: lower-case hex without leading zeros
    expires: float  # seconds since 1970
    same_run: bool


class TlsContexts:
    """A peer's own certificate, and the checks of other certificates."""

    def __init__(self, credentials: Credentials, run: str):
        self.credentials, self._protocol = credentials, f"coterie/1/{run}"[:255]
        self.load()

    def load(self) -> None:
        """Read the files, at first and again when they have changed. If they are bad, the previous ones stay in use."""
        for path in self.credentials:
            if not path.is_file():
                raise ParameterError(f"there is no {path}: has this peer joined?")
        self.accepting, self.dialling = self._context(server=True), self._context(server=False)

    def _context(self, server: bool) -> ssl.SSLContext:
        key, certificate, authority = self.credentials
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False  # the name is a member's, and is compared with the current roster
        context.verify_mode = ssl.CERT_REQUIRED
        context.set_alpn_protocols([self._protocol])
        if server:
            context.num_tickets = 0  # no session is resumed, so the certificate is shown each time
        try:
            context.load_verify_locations(authority)
            context.load_cert_chain(certificate, key)
        except (ssl.SSLError, OSError) as error:
            raise ParameterError(
                f"{certificate}, {key.name} and {authority.name} cannot be used for TLS: {error}"
            ) from None
        return context

    @property
    def serial(self) -> str:
        """Serial number of this peer's certificate."""
        from ..group.identity import read_certificate

        return f"{read_certificate(self.credentials.certificate.read_bytes()).serial_number:x}"

    def proof(self, tls: ssl.SSLObject) -> Proof | None:
        """Return what the other side has proven, or None if the subject is not just a common name."""
        found = tls.getpeercert() or {}
        parts = [part for several in found.get("subject", ()) for part in several]
        if len(parts) != 1 or parts[0][0] != "commonName":
            return None
        serial = str(found.get("serialNumber", "")).lower().lstrip("0")
        expires = ssl.cert_time_to_seconds(str(found["notAfter"]))
        return Proof(str(parts[0][1]), serial, expires, tls.selected_alpn_protocol() == self._protocol)


# -- pre-authentications ---------------------------------------------------------------------------------------------


def _signed(sender: str, to: str, moment: bytes) -> bytes:
    return CONTEXT + b"\n".join((sender.encode(), to.encode(), moment))


def write_preauth(sender: str, to: str, sign: Callable[[bytes], bytes]) -> bytes:
    """Return the bytes to send before a handshake."""
    moment = _TIME.pack(time.time_ns())
    body = moment + sign(_signed(sender, to, moment)) + sender.encode()
    return bytes([PREAUTH, len(body)]) + body


def length(data: bytes) -> int:
    """Return the length of a pre-authentication from its first bytes."""
    return 2 + data[1] if len(data) > 1 else 2


class Preauths:
    """Checks pre-authentications of the members."""

    def __init__(self, me: str):
        self._me = me
        self._keys: dict[str, bytes] = {}
        self._last: dict[str, int] = {}

    def admit(self, keys: dict[str, bytes]) -> None:
        """Set the public keys of the members."""
        self._keys = keys
        self._last = {name: moment for name, moment in self._last.items() if name in keys}

    def claimed(self, preauth: bytes) -> str | None:
        """Return the name in a pre-authentication, or None if it is no member's or the time is not new."""
        try:
            name = preauth[2 + 8 + SIGNATURE_BYTES :].decode("ascii")
        except UnicodeDecodeError:
            return None
        if name not in self._keys or len(preauth) <= 2 + 8 + SIGNATURE_BYTES:
            return None
        (moment,) = _TIME.unpack(preauth[2:10])
        good = moment > self._last.get(name, 0) and abs(moment / 1e9 - time.time()) <= MAX_CLOCK_DIFFERENCE
        return name if good else None

    def check(self, name: str, preauth: bytes) -> bool:
        """Return whether a pre-authentication is signed with the key of a member."""
        moment, signature = preauth[2:10], preauth[10 : 10 + SIGNATURE_BYTES]
        if not is_signed(self._keys[name], signature, _signed(name, self._me, moment)):
            return False
        self._last[name] = _TIME.unpack(moment)[0]
        return True


# -- seals ------------------------------------------------------------------------------------------------------------


class Seals:
    """Seals messages to members, and opens theirs, with X25519 keys derived from the Ed25519 keys of both sides.

    Every sealed message begins with a hash of run, sender and receiver. Without it, a message could be sent back to its
    sender, because both sides have the same key.
    """

    def __init__(self, run: str, me: str, seed: bytes):
        self._run, self._me = run, me
        self._secret = crypto_sign_ed25519_sk_to_curve25519(crypto_sign_seed_keypair(seed)[1])
        self._shared: dict[bytes, bytes] = {}  # by public key

    def forget(self, known: set[bytes]) -> None:
        """Forget derived keys for other public keys than these."""
        self._shared = {key: shared for key, shared in self._shared.items() if key in known}

    def seal(self, to: str, key: bytes, message: bytes) -> bytes:
        """Seal a message to one member."""
        nonce = random(crypto_box_NONCEBYTES)
        return nonce + crypto_box_afternm(self._mark(self._me, to) + message, nonce, self._key(key))

    def open(self, sender: str, key: bytes, sealed: bytes) -> bytes | None:
        """Return the message if this member has sealed it for this peer, or None."""
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
