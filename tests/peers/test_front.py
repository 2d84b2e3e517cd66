"""The door holds: strangers who say nothing, or nonsense, or half of a handshake, keep no member out."""

import contextlib
import os
import socket
import ssl
import subprocess
import sys
import textwrap
import threading
import time

import pytest

pytest.importorskip("nacl")
pytest.importorskip("cryptography")

from tls_people import contact_of, eventually, public_of, seed_of, tls_context, transport_of

from coterie.peers.group import identity
from coterie.peers.group.signed import signer
from coterie.peers.transport.channel import MESSAGE
from coterie.peers.transport.front import source_of
from coterie.peers.transport.proofs import MAX_PREAUTH_BYTES, PREAUTH, Preauths, length, write_preauth
from coterie.peers.wire.limits import Limits

#: Another address of this machine, and the one where the honest are.
ELSEWHERE, HERE = "127.0.0.2", "127.0.0.1"


def client_hello():
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = tls_context(None).wrap_bio(incoming, outgoing)
    with contextlib.suppress(ssl.SSLWantReadError):
        tls.do_handshake()
    return outgoing.read()


class Crowd:
    """Strangers: so many new connections a second, each of which says something and then stays."""

    def __init__(self, endpoint, source, say, rate=500, most=1500):
        self.place, self.source, self.say, self.rate, self.most = (
            (*identity.split_endpoint(endpoint),),
            source,
            say,
            rate,
            most,
        )
        self.made, self._stop = 0, threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self):
        held, began = [], time.monotonic()
        while not self._stop.is_set():
            while self.made < (time.monotonic() - began) * self.rate:
                one = socket.socket()
                one.setblocking(False)
                with contextlib.suppress(OSError):
                    one.bind((self.source, 0))
                    one.connect_ex(self.place)
                held.append(one)
                self.made += 1
                if self.say and len(held) > 5:
                    with contextlib.suppress(OSError):
                        held[-5].send(self.say)
                if len(held) > self.most:
                    held.pop(0).close()
            time.sleep(0.002)
        for one in held:
            one.close()

    def close(self):
        self._stop.set()
        self._thread.join()


NOISE = {
    "idle": b"",
    "garbage": bytes(range(128, 256)),
    "half": client_hello(),
    "preauths": bytes([PREAUTH, 90]) + bytes(90),
}


@pytest.fixture
def crowd(closing):
    return lambda endpoint, source, kind, **options: closing(Crowd(endpoint, source, NOISE[kind], **options))


def descriptors():
    return len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else 0


@pytest.mark.skipif(sys.platform != "linux", reason="other loopback addresses than 127.0.0.1 are only there on Linux")
@pytest.mark.parametrize(
    ("kind", "uvloop"),
    [
        ("idle", None),
        *(pytest.param(kind, None, marks=pytest.mark.slow) for kind in ("garbage", "half")),
        *(pytest.param(kind, False, marks=pytest.mark.slow) for kind in ("half", "preauths")),
    ],
)
def test_a_newcomer_is_let_in_while_strangers_elsewhere_crowd_the_door(
    kind, uvloop, people, crowd, authority, closing, caplog
):
    p = people("ann", "bob", each={"uvloop": uvloop})
    assert eventually(lambda: p.ann.transport.alive() == {1})
    cat = contact_of("cat")
    p.ann.transport.admit([p.bob.contact, cat])
    noise = crowd(p.ann.contact.endpoint, ELSEWHERE, kind)
    assert eventually(lambda: noise.made > 300)
    before, sent = len(p.ann.came), 0
    newcomer = closing(transport_of(authority, cat, p.contacts, seed=None))  # it does not even pre-authenticate
    newcomer.open(lambda owner, payload: None)
    newcomer.link([p.ann.contact])
    began = time.monotonic()
    assert eventually(lambda: 2 in p.ann.transport.alive(), lambda: p.bob.transport.send(0, b"on and on"))
    took = time.monotonic() - began
    while time.monotonic() < began + 1.0:
        p.bob.transport.send(0, b"on and on")
        sent += 1
        time.sleep(0.01)
    assert eventually(lambda: len(p.ann.came) >= before + sent)  # learning goes on
    assert took < 2.0
    assert noise.made > 200
    assert len(p.ann.transport._hub.front) <= 64 + 64 + 4
    assert eventually(lambda: sum(p.ann.transport.strangers()[ELSEWHERE].values()) > 100)
    assert p.ann.transport.alive() == {1, 2}
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["idle", "garbage", "half"])
def test_strangers_at_a_members_own_address_do_not_keep_it_out(kind, people, crowd, authority, closing):
    p = people("ann", "bob", linked=False, ann={"limits": Limits(starts_address=1.0)})
    cat = contact_of("cat")  # nobody can dial it: it has to be let in
    p.ann.transport.admit([p.bob.contact, cat])
    noise = crowd(p.ann.contact.endpoint, HERE, kind)
    assert eventually(lambda: noise.made > 300)
    member = closing(transport_of(authority, cat, p.contacts))
    member.open(lambda owner, payload: None)
    began = time.monotonic()
    member.link([p.ann.contact])
    assert eventually(lambda: 2 in p.ann.transport.alive())
    assert time.monotonic() - began < 2.0


def test_who_is_besieged_dials_out(people, crowd):
    """Nobody depends on its own door: here nothing comes in at all, and there is a link all the same."""
    p = people("ann", "bob", linked=False, each={"seed": None}, ann={"limits": Limits(starts=1e-9)})
    p.ann.transport._hub.front._starts._left = 0.0
    crowd(p.ann.contact.endpoint, HERE, "half", rate=200)
    p.bob.transport.link([p.ann.contact])
    p.ann.transport.link([p.bob.contact])
    assert eventually(lambda: p.ann.transport.alive() == {1} and p.bob.transport.alive() == {0}, patience=5)


# -- pre-authentications ----------------------------------------------------------------------------------------------


def preauths_of(*names):
    preauths = Preauths("ann")
    preauths.admit({name: public_of(seed_of(name)) for name in names})
    return preauths


def test_a_preauth_is_good_once_for_one_and_from_one():
    sign = signer(seed_of("bob"))
    preauth = write_preauth("bob", "ann", sign)
    assert len(preauth) == length(preauth) <= MAX_PREAUTH_BYTES
    preauths = preauths_of("bob", "eve")
    assert preauths.claimed(preauth) == "bob"
    assert preauths.check("bob", preauth)
    assert preauths.claimed(preauth) is None  # it was overheard
    assert preauths.claimed(write_preauth("bob", "ann", sign)) == "bob"
    for false in (write_preauth("bob", "cat", sign), write_preauth("bob", "ann", signer(seed_of("eve")))):
        assert preauths.claimed(false) == "bob"
        assert not preauths.check("bob", false)
    assert preauths.claimed(write_preauth("dan", "ann", sign)) is None
    assert preauths.claimed(bytes([PREAUTH, 3]) + b"abc") is None


def test_a_preauth_of_another_day_is_none(monkeypatch):
    preauth = write_preauth("bob", "ann", signer(seed_of("bob")))
    now = time.time()
    for away in (-7200.0, 7200.0):
        monkeypatch.setattr(time, "time", lambda away=away: now + away)
        assert preauths_of("bob").claimed(preauth) is None


def test_false_preauths_are_hung_up_on_and_old_ones_open_nothing(people, bare, authority):
    p = people("ann", "bob", linked=False)
    p.bob.transport.close()
    false = write_preauth("bob", "ann", signer(seed_of("eve")))
    with pytest.raises((ssl.SSLError, OSError)):
        bare(p.ann.contact.endpoint, authority.credentials("bob"), say=false)
    assert "a false pre-authentication" in p.ann.transport.strangers()[HERE]
    good = write_preauth("bob", "ann", signer(seed_of("bob")))
    for _ in range(2):  # the second time, like anybody who does not pre-authenticate
        client = bare(p.ann.contact.endpoint, authority.credentials("bob"), say=good)
        client.send(MESSAGE, b"x")
    assert eventually(lambda: len(p.ann.came) == 2)


# -- bounds -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("address", "source"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("?", "?"),
    ],
)
def test_what_counts_as_one_source(address, source):
    assert source_of(address) == source


def connect(endpoint, say=b""):
    one = socket.create_connection(identity.split_endpoint(endpoint), timeout=5)
    one.sendall(say)
    return one


def hung_up(one):
    one.setblocking(False)
    try:
        while one.recv(4096):
            pass
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def test_those_go_first_that_say_nothing(people, closing):
    p = people("ann", ann={"limits": Limits(silent_address=4, begun_address=4)})
    endpoint = p.ann.contact.endpoint
    speaking = [closing(connect(endpoint, NOISE["half"])) for _ in range(3)]
    silent = [closing(connect(endpoint)) for _ in range(8)]
    assert eventually(lambda: all(hung_up(one) for one in silent[:4]))
    assert not any(hung_up(one) for one in [*silent[4:], *speaking])


def test_nobody_has_long_nor_much_before_a_name(people, closing):
    p = people("ann", ann={"limits": Limits(handshake=0.5)})
    endpoint = p.ann.contact.endpoint
    slow = [closing(connect(endpoint, say)) for say in (b"", NOISE["half"], NOISE["half"][:20], bytes([PREAUTH]))]
    assert not any(hung_up(one) for one in slow)
    assert eventually(lambda: all(hung_up(one) for one in slow), patience=3)
    assert p.ann.transport.strangers()[HERE] == {"too slow": 4}
    # A greeting that announces 60,000 bytes, in records of 16,000: it is never complete before there are too many.
    records = (b"\x01\x00\xea\x60" + bytes(15_996), bytes(16_000), bytes(16_000))
    long = closing(connect(endpoint))
    with contextlib.suppress(OSError):
        for record in records:
            long.sendall(b"\x16\x03\x01" + len(record).to_bytes(2, "big") + record)
            time.sleep(0.05)
    assert eventually(lambda: p.ann.transport.strangers()[HERE].get("too much before a name") == 1, patience=3)
    assert len(p.ann.transport._hub.front) == 0


def test_sources_that_are_remembered_are_bounded(people):
    p = people("ann", ann={"limits": Limits(sources=8)})
    front = p.ann.transport._hub.front
    for k in range(30):
        front._note(f"192.0.2.{k}", "not TLS")
    front._note("192.0.2.22", "not TLS")
    assert list(p.ann.transport.strangers()) == [f"192.0.2.{k}" for k in (23, 24, 25, 26, 27, 28, 29, 22)]


def test_handshakes_of_one_source_are_so_many_a_second(people, closing):
    p = people("ann", ann={"limits": Limits(starts_address=2.0)})
    ones = [closing(connect(p.ann.contact.endpoint, NOISE["half"])) for _ in range(12)]
    assert eventually(lambda: sum(hung_up(one) for one in ones) >= 6)
    assert p.ann.transport.strangers()[HERE]["too many a second from there"] >= 6


# -- descriptors ------------------------------------------------------------------------------------------------------

BESIEGED = """
    import os, resource, sys, time
    from pathlib import Path
    from coterie.peers.node.state import FileStore
    from coterie.peers.transport import Contact
    from coterie.peers.transport.over_tls import TlsTransport

    limit, folder, mine, theirs = int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], sys.argv[4]
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    contacts = [Contact("ann", 0, mine), Contact("bob", 1, theirs)]
    transport = TlsTransport("run", *contacts[0][:3], folder, contacts=contacts)
    transport.open(lambda owner, payload: None)
    transport.link(contacts)
    store = FileStore(folder / "state")
    while True:
        store.save(os.urandom(100))
        print(len(os.listdir("/proc/self/fd")), len(transport.alive()), len(transport._hub.front), flush=True)
        time.sleep(0.02)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="it looks into /proc")
@pytest.mark.parametrize("limit", [256, pytest.param(1024, marks=pytest.mark.slow)])
def test_half_open_connections_leave_descriptors_for_the_state(limit, authority, people, closing):
    p = people("bob", linked=False)
    folder = authority.credentials("ann").key.parent
    with socket.socket() as probe:
        probe.bind((HERE, 0))
        endpoint = f"{HERE}:{probe.getsockname()[1]}"
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", textwrap.dedent(BESIEGED), str(limit), str(folder), endpoint]
    process = subprocess.Popen([*command, p.bob.contact.endpoint], stdout=subprocess.PIPE, text=True, env=environment)
    rows = []
    reader = threading.Thread(target=lambda: rows.extend(tuple(map(int, line.split())) for line in process.stdout))
    try:
        ann = contact_of("ann", endpoint)
        p.bob.transport.admit([ann])
        p.bob.transport.link([ann])
        reader.start()
        assert eventually(lambda: p.bob.transport.alive() == {0})
        half = []
        for k in range(1500):
            one = closing(socket.socket())
            one.setblocking(False)
            one.bind((f"127.0.0.{2 + k % 50}", 0))
            one.connect_ex(identity.split_endpoint(endpoint))
            half.append(one)
            if k > 20 and k % 2:
                with contextlib.suppress(OSError):
                    half[k - 20].send(NOISE["half"])
            if k % 50 == 0:
                time.sleep(0.03)
        seen = len(rows)
        assert eventually(lambda: len(rows) > seen + 10)  # it goes on writing
        assert process.poll() is None
        assert p.bob.transport.alive() == {0}
        assert "ended: lost" not in p.bob.transport.counts
    finally:
        process.kill()
        process.wait()
        reader.join()
        process.stdout.close()
    assert len(rows) > 20
    assert max(row[0] for row in rows) < 0.75 * limit
    assert max(row[2] for row in rows) >= 10
    assert [row[1] for row in rows][-5:] == [1] * 5
