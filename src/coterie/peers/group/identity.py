"""A peer's identity: a key that signs its messages, a key for TLS, and a certificate from the group's authority.

The two keys have different purposes. The Ed25519 key signs messages from end to end, also through relays; the roster
identifies a member by this key. The EC P-256 key is for TLS connections, which only certificates of the group's own
authority can open. Private keys never leave their folder: the admin sees a request, which both keys have signed.
"""

from __future__ import annotations

import contextlib
import ipaddress
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from ..._files import Where, private_folder, read_bounded, write_atomic, write_new
from ...errors import CoterieError, DataError, IdentityError, ParameterError, SignatureError
from .records import read_json, to_json
from .signed import SigningKey, signer

#: A name is the common name of a certificate and a part of the keys under which messages are sent.
NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,62}")
#: Days for which certificates are valid: of a member, and of an authority.
MEMBER_DAYS, CA_DAYS = 825, 3652
#: Maximal difference between two clocks.
MAX_CLOCK_DIFFERENCE = timedelta(hours=1)
#: Prefix of the URI in a certificate request that names the signing key, so that neither key can be exchanged.
SIGNING_KEY_URI = "urn:coterie:ed25519:"

_HOST = re.compile(r"(?!-)[A-Za-z0-9-]{1,63}(?<!-)(\.(?!-)[A-Za-z0-9-]{1,63}(?<!-))*")
_LOOPBACK: tuple[x509.GeneralName, ...] = (
    x509.DNSName("localhost"),
    x509.IPAddress(ipaddress.ip_address("127.0.0.1")),
    x509.IPAddress(ipaddress.ip_address("::1")),
)

AuthorityKey = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey | ed25519.Ed25519PrivateKey


# -- names and endpoints ---------------------------------------------------------------------------------------------


def check_name(name: Any) -> str:
    """Return a member's name. Raise a ParameterError if it is not allowed."""
    if not (isinstance(name, str) and NAME.fullmatch(name)):
        shown = repr(name) if len(repr(name)) <= 80 else f"{repr(name)[:80]}..."
        raise ParameterError(
            f'name={shown} must be 1 to 63 of a-z, 0-9, "_", "." and "-", and begin with a letter or a digit'
        )
    return name


def split_endpoint(endpoint: Any, what: str = "endpoint") -> tuple[str, int]:
    """Return host, without brackets, and port of an endpoint that others can connect to."""
    host, _, port = endpoint.rpartition(":") if isinstance(endpoint, str) and len(endpoint) <= 300 else ("", "", "")
    bracketed = host.startswith("[") and host.endswith("]")
    address = _ip(host[1:-1] if bracketed else host)
    right = address.version == (6 if bracketed else 4) if address else bool(_HOST.fullmatch(host)) and len(host) <= 253
    # A mistyped IPv4 address is not taken for the name of a host.
    if not right or (address is None and re.fullmatch(r"[0-9.]+", host)):
        raise ParameterError(f'{what}={endpoint!r:.320} must be "host:port", such as "192.0.2.7:7447" or "[::1]:7447"')
    if not (re.fullmatch(r"[1-9][0-9]{0,4}", port) and int(port) <= 65535):
        raise ParameterError(f"{what}={endpoint!r}: the port must be a number from 1 to 65535")
    if address is not None and (address.is_unspecified or address.is_multicast):
        raise ParameterError(f"{what}={endpoint!r} must be one address that others can connect to, not all or many")
    return host[1:-1] if bracketed else host, int(port)


def _ip(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return None if "%" in host else ipaddress.ip_address(host)
    except ValueError:
        return None


def _alternative_names(endpoint: str | None) -> list[x509.GeneralName]:
    """Names for which a server's certificate is valid."""
    if endpoint is None:
        return []
    host = split_endpoint(endpoint)[0]
    address = _ip(host)
    if host.lower() == "localhost" or (address is not None and address.is_loopback):
        own = [] if address is None else [x509.IPAddress(address)]
        return [*own, *(name for name in _LOOPBACK if name not in own)]
    return [x509.DNSName(host.lower()) if address is None else x509.IPAddress(address)]


# -- keys ------------------------------------------------------------------------------------------------------------


def new_signing_key() -> SigningKey:
    """Return a new Ed25519 key."""
    return ed25519.Ed25519PrivateKey.generate()


def new_tls_key() -> ec.EllipticCurvePrivateKey:
    """Return a new EC P-256 key."""
    return ec.generate_private_key(ec.SECP256R1())


def public_bytes(key: SigningKey) -> bytes:
    """Return the 32 bytes of a signing key's public key."""
    return key.public_key().public_bytes_raw()


def private_pem(key: AuthorityKey) -> bytes:
    """Return a private key as PEM PKCS8, not encrypted."""
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def read_key(path: Path, kind: Any, words: str) -> Any:
    """Read a private key from a file that only its owner can read. `words` describe the required kind of key."""
    content = read_bounded(path, private=True, limit=20_000)
    try:
        key = serialization.load_pem_private_key(content, password=None)
    except Exception:  # the error must name the file, and must not show any part of a key
        key = None  # type: ignore[assignment]
    p256 = not isinstance(key, ec.EllipticCurvePrivateKey) or isinstance(key.curve, ec.SECP256R1)
    if not isinstance(key, kind) or (kind is ec.EllipticCurvePrivateKey and not p256):
        raise IdentityError(f"{path} is damaged: it does not hold {words} (PEM, not encrypted)")
    return key


# -- certificates ----------------------------------------------------------------------------------------------------


def make_ca(name: str, days: int = CA_DAYS) -> tuple[ec.EllipticCurvePrivateKey, x509.Certificate]:
    """Make an authority: a key, and a certificate that is signed with the key itself."""
    key, moment = new_tls_key(), _moment(None)
    subject = _named(name)
    return key, _issued(
        subject, key.public_key(), subject, key, moment - MAX_CLOCK_DIFFERENCE, moment + timedelta(days=days), ca=True
    )


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _issued(
    issuer: x509.Name,
    key: Any,
    subject: x509.Name,
    ca_key: AuthorityKey,
    begins: datetime,
    ends: datetime,
    *more: x509.ExtensionType,
    ca: bool = False,
) -> x509.Certificate:
    """Return a certificate for a key of an authority or a member, signed with an authority's key."""
    builder = (
        x509.CertificateBuilder(issuer, subject, key, x509.random_serial_number())
        .not_valid_before(begins)
        .not_valid_after(ends)
        .add_extension(x509.BasicConstraints(ca=ca, path_length=0 if ca else None), critical=True)
        .add_extension(_usage(certificates=ca), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )
    for extension in more:
        builder = builder.add_extension(extension, critical=False)
    return builder.sign(ca_key, None if isinstance(ca_key, ed25519.Ed25519PrivateKey) else hashes.SHA256())


def check_ca(certificate: x509.Certificate, key: AuthorityKey | None = None, now: datetime | None = None) -> None:
    """Refuse a certificate that cannot sign certificates of members. `key`, if given, must be its key."""
    what = "the authority's certificate"
    with parsing(what):
        constraints, usage = (_extension(certificate, kind) for kind in (x509.BasicConstraints, x509.KeyUsage))
        if constraints is None or not constraints.ca or not (usage is None or usage.key_cert_sign):
            raise DataError(f"{what} is not one that may sign certificates (BasicConstraints, KeyUsage)")
        if key is not None and certificate.public_key() != key.public_key():
            raise DataError(f"{what} is of another key")
        _check_dates(certificate, what, now)


def make_csr(tls_key: ec.EllipticCurvePrivateKey, name: str, public: bytes) -> bytes:
    """Return a certificate request that is signed with the TLS key and names the signing key."""
    signing = x509.SubjectAlternativeName([x509.UniformResourceIdentifier(SIGNING_KEY_URI + public.hex())])
    request = x509.CertificateSigningRequestBuilder(_named(check_name(name))).add_extension(signing, critical=False)
    return request.sign(tls_key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)


def read_csr(pem: bytes, name: str, public: bytes) -> x509.CertificateSigningRequest:
    """Read a certificate request. Refuse another name, another signing key, or a TLS key that is not P-256 or has not
    signed.
    """
    what = f"the certificate request of {name}"
    with parsing(what):
        csr = x509.load_pem_x509_csr(pem)
        key = csr.public_key()
        if not (isinstance(key, ec.EllipticCurvePublicKey) and isinstance(key.curve, ec.SECP256R1)):
            raise DataError(f"{what} is not for an EC P-256 key")
        if not csr.is_signature_valid:
            raise SignatureError(f"{what} is not signed with its own key")
        if _common_name(csr) != name:
            raise DataError(f"{what} is for another name")
        names = _extension(csr, x509.SubjectAlternativeName)
        found = [] if names is None else names.get_values_for_type(x509.UniformResourceIdentifier)
        if found != [SIGNING_KEY_URI + public.hex()]:
            raise DataError(f"{what} was not made with this signing key")
        return csr


def sign_csr(
    csr: x509.CertificateSigningRequest | x509.Certificate,
    ca_key: AuthorityKey,
    ca: x509.Certificate,
    *,
    name: str,
    endpoint: str | None,
    days: int = MEMBER_DAYS,
    since: datetime | None = None,
    now: datetime | None = None,
) -> x509.Certificate:
    """Sign a member's certificate, which expires no later than the authority's own. Only the key is taken from the
    request.

    The certificate is valid from now on, or from the earlier moment ``since``.
    """
    if not (isinstance(days, int) and 1 <= days <= 36525):
        raise ParameterError(f"days={days!r} must be a whole number from 1 to 36525")
    check_ca(ca, ca_key, now)
    moment = _moment(now)
    ends = min(moment + timedelta(days=days), ca.not_valid_after_utc)
    begins = max(min(moment - MAX_CLOCK_DIFFERENCE, since or moment), min(ca.not_valid_before_utc, moment))
    subject_key = _extension(ca, x509.SubjectKeyIdentifier)
    more: list[x509.ExtensionType] = [
        x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]),
        x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key())
        if subject_key is None
        else x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(subject_key),
    ]
    if names := _alternative_names(endpoint):
        more.append(x509.SubjectAlternativeName(names))
    return _issued(ca.subject, csr.public_key(), _named(check_name(name)), ca_key, begins, ends, *more)


def check_certificate(
    certificate: x509.Certificate,
    ca: x509.Certificate,
    *,
    name: str,
    key: ec.EllipticCurvePrivateKey | None = None,
    endpoint: str | None = None,
    now: datetime | None = None,
) -> None:
    """Refuse a certificate that is not this member's, not from this authority, or not valid for TLS today."""
    what = f"the certificate of {name}"
    with parsing(what):
        check_ca(ca, now=now)
        try:
            certificate.verify_directly_issued_by(ca)
        except Exception:  # for a wrong issuer, a wrong signature or an unknown algorithm
            raise SignatureError(f"{what} is not signed by the authority") from None
        if _common_name(certificate) != name:
            raise DataError(f"{what} is of another name, {_common_name(certificate)!r:.80}")
        if key is not None and certificate.public_key() != key.public_key():
            raise DataError(f"{what} is for another TLS key")
        constraints = _extension(certificate, x509.BasicConstraints)
        usage = _extension(certificate, x509.ExtendedKeyUsage)
        if constraints is None or constraints.ca or usage is None:
            raise DataError(f"{what} is not a member's")
        if not {ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH} <= set(usage):
            raise DataError(f"{what} is not good for both ends of a TLS connection")
        names = _extension(certificate, x509.SubjectAlternativeName)
        missing = [each for each in _alternative_names(endpoint) if names is None or each not in list(names)]
        if missing:
            raise DataError(f"{what} is not good for {endpoint}: it lacks {missing[0].value}")
        _check_dates(certificate, what, now)


def read_certificate(pem: bytes, what: str = "the certificate") -> x509.Certificate:
    """Read a certificate from PEM."""
    with parsing(what):
        certificate = x509.load_pem_x509_certificate(pem)
        # These parts are parsed on first access, so access them where errors are caught.
        _ = certificate.subject, certificate.issuer, certificate.extensions, certificate.public_key()
        return certificate


def certificate_pem(certificate: x509.Certificate) -> bytes:
    """Return a certificate as PEM."""
    return certificate.public_bytes(serialization.Encoding.PEM)


def certificate_der(certificate: x509.Certificate) -> bytes:
    """Return a certificate as DER, its shortest form."""
    return certificate.public_bytes(serialization.Encoding.DER)


def serial_of(certificate: x509.Certificate) -> str:
    """Return the serial number of a certificate in hex, as in rosters."""
    return f"{certificate.serial_number:x}"


def read_authorities(path: Path) -> list[x509.Certificate]:
    """Read all certificates in a file, at least one."""
    with parsing(f"the authorities' certificates {path}"):
        return x509.load_pem_x509_certificates(read_bounded(path))


def issuer_of(certificate: x509.Certificate, authorities: list[x509.Certificate]) -> x509.Certificate:
    """Return the authority that has signed a certificate, or the first one if none has, for the caller's check to
    refuse.
    """
    for authority in authorities:
        try:
            certificate.verify_directly_issued_by(authority)
        except Exception:
            continue
        return authority
    return authorities[0]


def _moment(now: datetime | None) -> datetime:
    # Certificates have times in whole seconds.
    return (datetime.now(UTC) if now is None else now).replace(microsecond=0)


def _usage(certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=not certificates,
        key_cert_sign=certificates,
        crl_sign=certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _extension(holder: x509.Certificate | x509.CertificateSigningRequest, kind: type[Any]) -> Any:
    try:
        return holder.extensions.get_extension_for_class(kind).value
    except x509.ExtensionNotFound:
        return None


def _common_name(holder: x509.Certificate | x509.CertificateSigningRequest) -> str | None:
    """Return the common name if the subject has no other parts, or None."""
    parts = list(holder.subject)
    return str(parts[0].value) if len(parts) == 1 and parts[0].oid == NameOID.COMMON_NAME else None


def _check_dates(certificate: x509.Certificate, what: str, now: datetime | None) -> None:
    moment = datetime.now(UTC) if now is None else now
    if moment < certificate.not_valid_before_utc:
        raise DataError(f"{what} is not good before {certificate.not_valid_before_utc:%Y-%m-%d %H:%M} UTC")
    if moment > certificate.not_valid_after_utc:
        raise DataError(f"{what} expired on {certificate.not_valid_after_utc:%Y-%m-%d %H:%M} UTC: have it renewed")


@contextlib.contextmanager
def parsing(what: str) -> Iterator[None]:
    """Turn every error inside the block into a DataError that names `what`."""
    try:
        yield
    except CoterieError:
        raise
    except Exception as error:
        raise DataError(f"{what} cannot be read: {error!s:.200}") from None


# -- an identity -----------------------------------------------------------------------------------------------------


class _Described(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The file ``identity.json``: the public part of an identity."""

    format: Literal[1] = 1
    name: str
    listen: str | None  # such as "192.0.2.7:7447"; None: reachable through a relay only

    def __post_init__(self) -> None:
        check_name(self.name)
        if self.listen is not None:
            split_endpoint(self.listen, "listen")


@dataclass(frozen=True)
class Identity:
    """A peer's name and keys, in a folder of their own."""

    folder: Path
    name: str
    listen: str | None
    signing_key: SigningKey = field(repr=False, compare=False)
    tls: ec.EllipticCurvePrivateKey = field(repr=False, compare=False)

    @classmethod
    def make(cls, folder: Where, name: str, listen: str | None = None) -> Identity:
        """Make new keys in a folder, which is created if necessary. Existing keys are never overwritten."""
        described = _Described(name=name, listen=listen)
        where = private_folder(folder)
        peer = cls(where, name, listen, new_signing_key(), new_tls_key())
        files = {
            where / "sign.key": private_pem(peer.signing_key),
            where / "tls.key": private_pem(peer.tls),
            where / "identity.json": to_json(described),
        }
        write_new(files, {"sign.key", "tls.key"}, "an identity")
        return peer

    def unmake(self) -> None:
        """Delete the files that `make` has written, for an identity that was never used."""
        for name in ("identity.json", "tls.key", "sign.key"):
            (self.folder / name).unlink(missing_ok=True)

    @classmethod
    def load(cls, folder: Where) -> Identity:
        """Load the identity in a folder."""
        where = Path(folder)
        path = where / "identity.json"
        if not path.is_file():
            raise IdentityError(f"{where} holds no identity: there is no identity.json in it")
        try:
            found = read_json(path, _Described, limit=20_000)
        except DataError as error:
            raise IdentityError(str(error)) from None
        signing = read_key(where / "sign.key", SigningKey, "an Ed25519 key")
        tls = read_key(where / "tls.key", ec.EllipticCurvePrivateKey, "an EC P-256 key")
        return cls(where, found.name, found.listen, signing, tls)

    def move(self, listen: str | None) -> Identity:
        """Change the endpoint in the folder, and return the new identity. A new request has to tell the admin."""
        write_atomic(self.folder / "identity.json", to_json(_Described(name=self.name, listen=listen)))
        return replace(self, listen=listen)

    def rekey(self) -> Identity:
        """Replace the TLS key in the folder, and return the new identity."""
        key = new_tls_key()
        write_atomic(self.folder / "tls.key", private_pem(key), private=True)
        return replace(self, tls=key)

    @cached_property
    def sign(self) -> Callable[[bytes], bytes]:
        """Sign a message. Every message begins with its kind, so that a signature of one kind is not valid for
        another.
        """
        return signer(self.seed)

    @property
    def seed(self) -> bytes:
        """The secret 32 bytes from which the signing key is made."""
        return self.signing_key.private_bytes_raw()

    @property
    def public(self) -> bytes:
        """The 32 bytes of the public signing key."""
        return public_bytes(self.signing_key)

    @property
    def certificate(self) -> x509.Certificate:
        """The certificate in the folder, after joining."""
        path = self.folder / "tls.crt"
        return read_certificate(read_bounded(path), str(path))
