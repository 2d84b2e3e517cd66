"""Whose certificates a peer trusts: the file ``ca.crt``, with one authority or, where there are more stewards, several.

An invitation brings the certificate of one authority. A list of members that names authorities names all of them.
"""

from __future__ import annotations

from pathlib import Path

from ..._files import read_bounded, write_atomic
from ...errors import DataError, MissingExtra
from .roster import Roster

try:
    from cryptography import x509
except ImportError as error:
    raise MissingExtra('peers on a network need cryptography: pip install "coterie[network]"') from error


#: What to say to a peer whose certificate is.
REVOKED = "the steward has revoked this peer's certificate. To be invited again, make a request with a new TLS key"


def serial_of(certificate: x509.Certificate) -> str:
    """The serial number of a certificate, as a roster has it."""
    return f"{certificate.serial_number:x}"


def is_revoked(folder: Path, roster: Roster) -> bool:
    """Whether a list of members revokes the own certificate of a peer's folder."""
    path = folder / "tls.crt"
    return bool(roster.revoked) and path.exists() and serial_of(read_authorities(path)[0]) in roster.revoked


def authorities_pem(roster: Roster, brought: bytes) -> bytes:
    """What ``ca.crt`` has to be, of a list of members and the authority that an invitation has brought."""
    return "".join(roster.authorities).encode() if roster.authorities else brought


def keep_authorities(folder: Path, roster: Roster) -> None:
    """Let ``ca.crt`` be what a list of members says; before the list is kept, which is looked at once."""
    path, wanted = folder / "ca.crt", authorities_pem(roster, b"")
    if wanted and not (path.exists() and read_bounded(path) == wanted):
        write_atomic(path, wanted)


def read_authorities(path: Path) -> list[x509.Certificate]:
    """All certificates in a file, at least one."""
    try:
        return x509.load_pem_x509_certificates(read_bounded(path))
    except ValueError as error:
        raise DataError(f"the authorities' certificates {path} cannot be read: {error!s:.200}") from None


def issuer_of(certificate: x509.Certificate, authorities: list[x509.Certificate]) -> x509.Certificate:
    """The authority that has signed a certificate; the first one if none has, which a check of it will find out."""
    for authority in authorities:
        try:
            certificate.verify_directly_issued_by(authority)
        except Exception:
            continue
        return authority
    return authorities[0]
