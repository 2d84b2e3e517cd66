"""Transports over TLS for tests, certificates for them, and clients that do not run this program."""

from __future__ import annotations

import contextlib
import hashlib
import select
import socket
import ssl
import threading
import time
from types import SimpleNamespace

from coterie.peers.group import identity
from coterie.peers.group.signed import public_of
from coterie.peers.transport import Contact
from coterie.peers.transport.channel import Reader, frame
from coterie.peers.transport.over_tls import TlsTransport
from coterie.peers.transport.proofs import Credentials

NAMES = {0: "ann", 1: "bob", 2: "cat", 3: "dan", 7: "eve"}
PATIENCE = 15.0
RUN = "run"
KINDS = dict.fromkeys(range(8), 1 << 22)


def seed_of(name):
    return hashlib.sha256(name.encode()).digest()


class Authority:
    """Certificates, each with its key in a folder of its own."""

    def __init__(self, folder):
        self.folder = folder
        self.key, self.certificate = identity.make_ca("coterie test")
        self.folder.mkdir()

    def credentials(self, name, endpoint="127.0.0.1:1", mark="", **options):
        folder = self.folder / (name + mark)
        if not folder.exists():
            folder.mkdir()
            self.write(folder, name, endpoint, **options)
        return Credentials.of(folder)

    def write(self, folder, name, endpoint="127.0.0.1:1", **options):
        tls, public = identity.new_tls_key(), public_of(seed_of(name))
        csr = identity.read_csr(identity.make_csr(tls, name, public), name, public)
        own = identity.sign_csr(csr, self.key, self.certificate, name=name, endpoint=endpoint, **options)
        (folder / "tls.key").write_bytes(identity.private_pem(tls))
        (folder / "tls.crt").write_bytes(identity.certificate_pem(own))
        (folder / "ca.crt").write_bytes(identity.certificate_pem(self.certificate))
        return own


def free_endpoint(host="127.0.0.1"):
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as probe:
        probe.bind((host, 0))
        port = probe.getsockname()[1]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def eventually(happened, act=lambda: None, patience=PATIENCE):
    """Act until something happens: what it returns; False if it does not."""
    end = time.monotonic() + patience
    while time.monotonic() < end:
        act()
        found = happened()
        if found:
            return found
        time.sleep(0.02)
    return False


def contact_of(name, endpoint=None):
    address = next(k for k, one in NAMES.items() if one == name)
    return Contact(name, address, endpoint, public_of(seed_of(name)))


def transport_of(authority, contact, contacts=(), **options):
    given = {"seed": seed_of(contact.name), "credentials": authority.credentials(contact.name)} | options
    return TlsTransport(RUN, contact.name, contact.address, contact.endpoint, contacts=contacts, **given)


def opened(authority, closing, names, linked=True, hidden=(), each=None, **options):
    """Transports that admit each other and are linked; options by name, or for all."""
    contacts = [contact_of(n, None if n in hidden else free_endpoint()) for n in names]
    found = {}
    for contact in contacts:
        given = options.get(contact.name, {}) | (each or {})
        transport = transport_of(authority, contact, contacts, **given)
        came, rosters = [], []
        transport.open(lambda owner, payload, came=came: came.append((owner, payload)), rosters.append)
        found[contact.name] = SimpleNamespace(transport=closing(transport), came=came, rosters=rosters, contact=contact)
    if linked:
        for one in found.values():
            one.transport.link(contacts)
    return SimpleNamespace(**found, contacts=contacts)


def tls_context(credentials, server=False, alpn=RUN, newest=True):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED if server else ssl.CERT_NONE
    if not newest:
        context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols([f"coterie/1/{alpn}"])
    if credentials is not None:
        context.load_cert_chain(credentials.certificate, credentials.key)
        context.load_verify_locations(credentials.authority)
    return context


class Bare:
    """A connection of somebody who knows the protocol and does as it likes."""

    def __init__(self, endpoint, credentials, source=None, say=b"", **options):
        place = identity.split_endpoint(endpoint)
        raw = socket.create_connection(place, timeout=10, source_address=source)
        raw.sendall(say)
        self.sock = tls_context(credentials, **options).wrap_socket(raw)
        self.frames, self.ended = [], threading.Event()
        self.reading = threading.Event()
        self.reading.set()
        self._turn = threading.Lock()  # OpenSSL reads and writes one connection in one thread at a time
        self._reader, self._thread = Reader(KINDS), threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self):
        try:
            while True:
                self.reading.wait()
                if not self.sock.pending():
                    select.select([self.sock], [], [])
                with self._turn:
                    self.sock.settimeout(0.0)  # what came may be no data, but a ticket of TLS
                    try:
                        data = self.sock.recv(65536)
                    except ssl.SSLWantReadError:
                        continue
                    finally:
                        self.sock.settimeout(10.0)
                if not data:
                    break
                self.frames += self._reader.feed(data)
        except (OSError, ValueError):  # closed while it waited
            pass
        self.ended.set()

    def kinds(self):
        return [kind for kind, _ in self.frames]

    def send(self, kind, body=b""):
        with self._turn:
            self.sock.sendall(frame(kind, body))

    def close(self):
        self.reading.set()
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)
        self._thread.join(5)
        self.sock.close()
