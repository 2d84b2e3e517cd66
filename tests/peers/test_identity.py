"""Keys and certificates: what is good works in TLS, and what is not is refused."""

import contextlib
import json
import os
import ssl
import stat
from datetime import UTC, datetime, timedelta

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519, rsa
from cryptography.x509.oid import NameOID

from coterie.errors import DataError, FileError, IdentityError, ParameterError, SignatureError
from coterie.peers.group import identity
from coterie.peers.group.signed import verify


def certified(ca_key, ca, name="ann", endpoint="127.0.0.1:7447", **more):
    key, public = identity.new_tls_key(), identity.public_bytes(identity.new_signing_key())
    csr = identity.read_csr(identity.make_csr(key, name, public), name, public)
    return key, identity.sign_csr(csr, ca_key, ca, name=name, endpoint=endpoint, **more)


def context(folder, purpose, key, certificate, ca):
    """A TLS context that shows a certificate and asks for one."""
    made = ssl.SSLContext(purpose)
    made.load_verify_locations(cadata=identity.certificate_pem(ca).decode())
    made.verify_mode = ssl.CERT_REQUIRED
    made.verify_flags |= ssl.VERIFY_X509_STRICT
    (folder / "pair.pem").write_bytes(identity.private_pem(key) + identity.certificate_pem(certificate))
    made.load_cert_chain(folder / "pair.pem")
    return made


def shake_hands(client_context, server_context, host):
    """A handshake in memory: the certificates that each side saw."""
    a, b = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = client_context.wrap_bio(a, b, server_hostname=host)
    server = server_context.wrap_bio(b, a, server_side=True)
    for _ in range(4):
        for side in (client, server):
            with contextlib.suppress(ssl.SSLWantReadError):
                side.do_handshake()
    return client.getpeercert(), server.getpeercert()


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_members_certificates_work_at_both_ends_of_tls(tmp_path, host):
    ca_key, ca = identity.make_ca("coterie test")
    server = context(tmp_path, ssl.PROTOCOL_TLS_SERVER, *certified(ca_key, ca, "bob"), ca)
    client = context(tmp_path, ssl.PROTOCOL_TLS_CLIENT, *certified(ca_key, ca, "ann", None), ca)
    seen = [dict(part[0] for part in each["subject"])["commonName"] for each in shake_hands(client, server, host)]
    assert seen == ["bob", "ann"]


def test_another_authoritys_certificate_is_refused_in_tls_and_by_the_check(tmp_path):
    (ca_key, ca), (other_key, other) = identity.make_ca("coterie test"), identity.make_ca("coterie test")
    pair = certified(other_key, other)
    server = context(tmp_path, ssl.PROTOCOL_TLS_SERVER, *certified(ca_key, ca, "bob"), ca)
    client = context(tmp_path, ssl.PROTOCOL_TLS_CLIENT, *pair, ca)
    with pytest.raises(ssl.SSLError):
        shake_hands(client, server, "127.0.0.1")
    with pytest.raises(SignatureError, match="not signed by the authority"):
        identity.check_certificate(pair[1], ca, name="ann")
    identity.check_certificate(pair[1], other, name="ann", key=pair[0], endpoint="127.0.0.1:7447")


def test_a_certificate_is_for_one_name_key_host_and_time():
    ca_key, ca = identity.make_ca("coterie test")
    key, certificate = certified(ca_key, ca, endpoint="192.0.2.7:7447")
    identity.check_certificate(certificate, ca, name="ann", key=key, endpoint="192.0.2.7:1")
    for wrong, words in (
        ({"name": "bob"}, "another name"),
        ({"key": identity.new_tls_key()}, "another TLS key"),
        ({"endpoint": "192.0.2.8:7447"}, "192.0.2.8"),
        ({"endpoint": "localhost:7447"}, "localhost"),
        ({"now": datetime.now(UTC) + timedelta(days=826)}, "expired"),
        ({"now": datetime.now(UTC) - timedelta(hours=2)}, "not good before"),
    ):
        with pytest.raises(DataError, match=words):
            identity.check_certificate(certificate, ca, **{"name": "ann", **wrong})
    # Clocks may be a little slow.
    identity.check_certificate(certificate, ca, name="ann", now=datetime.now(UTC) - timedelta(minutes=50))


def test_an_authority_is_one_and_a_member_is_none():
    ca_key, ca = identity.make_ca("coterie test")
    key, certificate = certified(ca_key, ca)
    constraints = ca.extensions.get_extension_for_class(x509.BasicConstraints)
    assert constraints.critical
    assert constraints.value.ca
    assert constraints.value.path_length == 0
    assert (ca.not_valid_after_utc - datetime.now(UTC)).days in (3651, 3652)
    assert (certificate.not_valid_after_utc - datetime.now(UTC)).days in (824, 825)
    with pytest.raises(DataError, match="may sign certificates"):
        identity.check_ca(certificate, key)
    # A member that signs for another: it is no authority.
    forged = certified(ca_key, ca)
    with pytest.raises(DataError):
        certified(key, certificate, "bob")
    with pytest.raises(DataError):
        identity.check_certificate(forged[1], certificate, name="ann")


def test_a_certificate_does_not_outlive_its_authority():
    ca_key, ca = identity.make_ca("coterie test", days=10)
    assert certified(ca_key, ca)[1].not_valid_after_utc == ca.not_valid_after_utc
    with pytest.raises(DataError, match="authority's certificate expired"):
        certified(ca_key, ca, now=datetime.now(UTC) + timedelta(days=11))


def test_authorities_with_other_kinds_of_keys():
    for key in (rsa.generate_private_key(65537, 2048), ed25519.Ed25519PrivateKey.generate()):
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "house authority")])
        now = datetime.now(UTC)
        algorithm = None if isinstance(key, ed25519.Ed25519PrivateKey) else hashes.SHA256()
        ca = (
            x509.CertificateBuilder(name, name, key.public_key(), 7, now - timedelta(1), now + timedelta(9))
            .add_extension(x509.BasicConstraints(True, None), critical=True)
            .sign(key, algorithm)
        )
        identity.check_certificate(certified(key, ca)[1], ca, name="ann")


def test_requests_that_pass_for_somebody_else_are_refused():
    tls, signing = identity.new_tls_key(), identity.new_signing_key()
    public = identity.public_bytes(signing)
    pem = identity.make_csr(tls, "ann", public)
    assert identity.read_csr(pem, "ann", public).public_key() == tls.public_key()
    # Another key in the place of the one that signed.
    old, new = (
        key.public_key().public_bytes(serialization.Encoding.X962, serialization.PublicFormat.UncompressedPoint)
        for key in (tls, identity.new_tls_key())
    )
    der = x509.load_pem_x509_csr(pem).public_bytes(serialization.Encoding.DER)
    forged = x509.load_der_x509_csr(der.replace(old, new)).public_bytes(serialization.Encoding.PEM)
    p384 = identity.make_csr(ec.generate_private_key(ec.SECP384R1()), "ann", public)
    broken = b"-----BEGIN CERTIFICATE REQUEST-----\nAAAA\n-----END CERTIFICATE REQUEST-----\n"
    for given, name, signed_with, words in (
        (pem, "bob", public, "another name"),
        (pem, "ann", identity.public_bytes(identity.new_signing_key()), "not made with this signing key"),
        (forged, "ann", public, "not signed with its own key"),
        (p384, "ann", public, "P-256"),
        *((bad, "ann", public, "cannot be read") for bad in (b"", broken, pem[:200])),
    ):
        with pytest.raises((DataError, SignatureError), match=words):
            identity.read_csr(given, name, signed_with)


def test_signatures():
    key = identity.new_signing_key()
    public, signature = identity.public_bytes(key), key.sign(b"hello")
    assert (len(public), len(signature)) == (32, 64)
    verify(public, signature, b"hello")
    other = identity.public_bytes(identity.new_signing_key())
    for bad in (
        (public, signature, b"hallo"),
        *((public, signature[:63], b"hello"), (public[:31], signature, b"hello"), (other, signature, b"hello")),
    ):
        with pytest.raises(SignatureError):
            verify(*bad)


@pytest.mark.parametrize("name", ["", "Ann", "-ann", ".", "a" * 64, "a/b", "a b", "ann\n", "änn", "*", 7, None])
def test_bad_names(name):
    with pytest.raises(ParameterError, match="name="):
        identity.check_name(name)


@pytest.mark.parametrize(
    ("endpoint", "parts"),
    [
        ("192.0.2.7:7447", ("192.0.2.7", 7447)),
        ("[2001:db8::7]:1", ("2001:db8::7", 1)),
        ("peer-1.example.org:65535", ("peer-1.example.org", 65535)),
    ],
)
def test_good_endpoints(endpoint, parts):
    assert identity.split_endpoint(endpoint) == parts


@pytest.mark.parametrize(
    "endpoint",
    [
        *("", "ann", ":1", None, 7),
        *("ann:", "ann:0", "ann:65536", "ann:07", "ann:٣", "a:1\n"),  # the port
        *("::1:7447", "[127.0.0.1]:1", "1.2.3:4", "300.1.1.1:1", "[fe80::1%eth0]:1"),  # an address, but none
        *("0.0.0.0:1", "[::]:1", "224.0.0.1:1"),  # not one
        *("-a.org:1", "a..b:1", "a b:1", "a\n:1", "tls/a:1", "a" * 64 + ":1", "a." * 200 + "b:1"),  # the host
    ],
)
def test_bad_endpoints(endpoint):
    with pytest.raises(ParameterError, match="endpoint="):
        identity.split_endpoint(endpoint)


# -- on disk ---------------------------------------------------------------------------------------------------------


def test_an_identity_is_kept_private_and_comes_back(tmp_path):
    made = identity.Identity.make(tmp_path / "ann", "ann", "127.0.0.1:7447")
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in made.folder.iterdir()}
    assert modes == {"identity.json": 0o644, "sign.key": 0o600, "tls.key": 0o600}
    assert stat.S_IMODE(made.folder.stat().st_mode) == 0o700
    again = identity.Identity.load(tmp_path / "ann")
    assert (again.name, again.listen, again.public) == ("ann", "127.0.0.1:7447", made.public)
    verify(made.public, again.sign(b"x"), b"x")
    assert identity.private_pem(made.signing_key).decode() not in repr(made)
    assert json.loads((tmp_path / "ann/identity.json").read_text()) == {
        "format": 1,
        "name": "ann",
        "listen": "127.0.0.1:7447",
    }


def test_an_identity_is_never_overwritten(tmp_path):
    made = identity.Identity.make(tmp_path, "ann")
    with pytest.raises(IdentityError, match="never overwritten"):
        identity.Identity.make(tmp_path, "ann")
    (tmp_path / "identity.json").unlink()
    with pytest.raises(IdentityError, match="never overwritten"):
        identity.Identity.make(tmp_path, "bob")
    assert (tmp_path / "sign.key").read_bytes() == identity.private_pem(made.signing_key)


def test_keys_that_others_can_read_are_refused(tmp_path):
    identity.Identity.make(tmp_path, "ann")
    for name in ("sign.key", "tls.key"):
        for mode in (0o640, 0o604, 0o620):
            (tmp_path / name).chmod(mode)
            with pytest.raises(IdentityError, match=f"chmod 600 .*{name}"):
                identity.Identity.load(tmp_path)
        (tmp_path / name).chmod(0o600)
    identity.Identity.load(tmp_path)


def test_a_folder_that_others_can_open_is_closed_if_it_is_empty(tmp_path):
    (tmp_path / "empty").mkdir(mode=0o755)
    identity.Identity.make(tmp_path / "empty", "ann")
    assert stat.S_IMODE((tmp_path / "empty").stat().st_mode) == 0o700
    (tmp_path / "full").mkdir(mode=0o755)
    (tmp_path / "full/notes").write_text("mine")
    with pytest.raises(IdentityError, match="chmod 700"):
        identity.Identity.make(tmp_path / "full", "ann")
    assert os.listdir(tmp_path / "full") == ["notes"]


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"{", b"[]", b"\xff", b"[" * 5000, b"1" * 30000),
        b'{"format": 1, "name": "ann"}',
        b'{"format": 2, "name": "ann", "listen": null}',
        b'{"format": 1, "name": "Ann", "listen": null}',
        b'{"format": 1, "name": "ann", "listen": "x"}',
    ],
)
def test_a_damaged_description_is_named(tmp_path, content):
    identity.Identity.make(tmp_path, "ann")
    (tmp_path / "identity.json").write_bytes(content)
    with pytest.raises((IdentityError, DataError), match=r"identity\.json"):
        identity.Identity.load(tmp_path)


def test_damaged_keys_are_named(tmp_path):
    made = identity.Identity.make(tmp_path, "ann")
    for name, other in (("sign.key", made.tls), ("tls.key", made.signing_key)):
        good = (tmp_path / name).read_bytes()
        p384 = identity.private_pem(ec.generate_private_key(ec.SECP384R1()))
        for bad in (
            b"",
            good[:60],
            good.replace(b"PRIVATE", b"PUBLIC"),
            identity.private_pem(other),
            p384,
            bytes(30_000),
        ):
            (tmp_path / name).write_bytes(bad)
            with pytest.raises(IdentityError, match=name) as raised:
                identity.Identity.load(tmp_path)
            assert good.splitlines()[1].decode() not in str(raised.value)
        (tmp_path / name).unlink()
        with pytest.raises(FileError, match=name):
            identity.Identity.load(tmp_path)
        (tmp_path / name).touch(0o600)
        (tmp_path / name).write_bytes(good)
    identity.Identity.load(tmp_path)
