"""What proves who somebody is on a connection: certificates of the group's own authority, and TLS 1.3 with them."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import NamedTuple

from ...errors import ParameterError


class Credentials(NamedTuple):
    """The files that prove who I am: PEM, as in a peer's folder."""

    key: Path
    certificate: Path
    authority: Path

    @classmethod
    def of(cls, folder: str | Path) -> Credentials:
        """Those in a folder."""
        return cls(Path(folder) / "tls.key", Path(folder) / "tls.crt", Path(folder) / "ca.crt")


class Proof(NamedTuple):
    """What a certificate has proven."""

    name: str
    serial: str  # of the certificate: lower-case hex without leading zeros
    expires: float  # seconds since 1970
    same_run: bool


class Papers:
    """My own, and how to look at others'."""

    def __init__(self, credentials: Credentials, run: str):
        self.credentials, self._protocol = credentials, f"coterie/1/{run}"[:255]
        self.load()

    def load(self) -> None:
        """Read the files, again where they have changed. If they are not good, what was there before stays."""
        for path in self.credentials:
            if not path.is_file():
                raise ParameterError(f"there is no {path}: has this peer joined?")
        self.accepting, self.dialling = self._context(server=True), self._context(server=False)

    def _context(self, server: bool) -> ssl.SSLContext:
        key, certificate, authority = self.credentials
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False  # the name is a member's, and is compared with the list of now
        context.verify_mode = ssl.CERT_REQUIRED
        context.set_alpn_protocols([self._protocol])
        if server:
            context.num_tickets = 0  # nothing is resumed: the certificate is shown each time
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
        """Serial number of my own certificate."""
        from ..group.identity import read_certificate

        return f"{read_certificate(self.credentials.certificate.read_bytes()).serial_number:x}"

    def proof(self, tls: ssl.SSLObject) -> Proof | None:
        """What the other side has proven, which is a name and nothing else; None if its certificate names another."""
        found = tls.getpeercert() or {}
        parts = [part for several in found.get("subject", ()) for part in several]
        if len(parts) != 1 or parts[0][0] != "commonName":
            return None
        serial = str(found.get("serialNumber", "")).lower().lstrip("0")
        expires = ssl.cert_time_to_seconds(str(found["notAfter"]))
        return Proof(str(parts[0][1]), serial, expires, tls.selected_alpn_protocol() == self._protocol)
