"""Transports keep their contract, and the one over Zenoh refuses what it must. Attackers are bare Zenoh sessions."""

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import textwrap
import threading
import time
import uuid
from types import SimpleNamespace

import pytest

from coterie.core.world import EVERYONE
from coterie.errors import ContractError, MissingExtra, ParameterError
from coterie.peers.transport import Contact, Transport
from coterie.peers.transport.memory import Exchange, Memory
from coterie.testing.contracts import check_transport

zenoh = pytest.importorskip("zenoh")
pytest.importorskip("cryptography")

from coterie.peers import identity  # noqa: E402
from coterie.peers.transport import over_zenoh  # noqa: E402
from coterie.peers.transport.over_zenoh import Credentials, ZenohRelay, ZenohTransport  # noqa: E402

NAMES = {0: "ann", 1: "bob", 2: "cat", 3: "dan", 7: "eve"}
PATIENCE = 15.0
REMOTE = zenoh.Locality.REMOTE  # a session also hears itself, whatever others allow


# -- scaffold ---------------------------------------------------------------------------------------------------------


class Authority:
    """Certificates, each with its key in a folder of its own."""

    def __init__(self, folder):
        self.folder = folder
        self.key, self.certificate = identity.make_ca("coterie test")
        self.folder.mkdir()

    def credentials(self, name, endpoint="127.0.0.1:1"):
        folder = self.folder / name
        if not folder.exists():
            folder.mkdir()
            tls, public = identity.new_tls_key(), identity.public_bytes(identity.new_signing_key())
            csr = identity.read_csr(identity.make_csr(tls, name, public), name, public)
            own = identity.sign_csr(csr, self.key, self.certificate, name=name, endpoint=endpoint)
            (folder / "tls.key").write_bytes(identity.private_pem(tls))
            (folder / "tls.crt").write_bytes(identity.certificate_pem(own))
            (folder / "ca.crt").write_bytes(identity.certificate_pem(self.certificate))
        return Credentials.of(folder)


@pytest.fixture(scope="module")
def authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("group") / "ca")


@pytest.fixture(scope="module")
def other_authority(tmp_path_factory):
    return Authority(tmp_path_factory.mktemp("strangers") / "ca")


def free_endpoint():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


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


@pytest.fixture
def closing():
    """Closes what is entered in it, also when the test fails."""
    with contextlib.ExitStack() as stack:
        yield lambda thing: stack.enter_context(contextlib.closing(thing))


@pytest.fixture
def people(authority, closing):
    """Opens transports over mutual TLS: ``people("ann", "bob")`` admit each other and are linked."""

    def make(*names, linked=True, relays=(), hidden=(), **options):
        contacts = [Contact(n, k, None if n in hidden else free_endpoint()) for k, n in NAMES.items() if n in names]
        found = {}
        for contact in contacts:
            credentials = authority.credentials(contact.name)
            transport = ZenohTransport(
                "run",
                *contact,
                credentials=credentials,
                contacts=contacts,
                relays=relays,
                **options.get(contact.name, {}),
            )
            came, rosters = [], []
            transport.open(lambda owner, payload, came=came: came.append((owner, payload)), rosters.append)
            found[contact.name] = SimpleNamespace(
                transport=closing(transport), came=came, rosters=rosters, contact=contact
            )
        if linked:
            for one in found.values():
                one.transport.link(contacts)
        return SimpleNamespace(**found)

    return make


@pytest.fixture
def bare(closing):
    """Opens bare Zenoh sessions, as somebody might who does not run this program."""

    def open_session(credentials, connect=None, listen=None, plain=False, authority=None, refused=False):
        tls = {"root_ca_certificate": str(authority or credentials.authority), "enable_mtls": True}
        if credentials is not None:
            for side in ("listen", "connect"):
                tls |= {
                    f"{side}_private_key": str(credentials.key),
                    f"{side}_certificate": str(credentials.certificate),
                }
        kind = "tcp" if plain else "tls"
        config = {
            "mode": "peer" if listen else "client",
            "listen": {"endpoints": [f"{kind}/{listen}"] if listen else []},
            "connect": {
                "endpoints": [f"{kind}/{connect}"] if connect else [],
                "timeout_ms": 1000,  # and so long, with 0 only once, when it has lost its connection
                "retry": {"period_init_ms": 50, "period_max_ms": 200},
            },
            "scouting": {"multicast": {"enabled": False}, "gossip": {"enabled": False}},
            "transport": {"unicast": {"open_timeout": 1000}, "link": {"tls": tls if not plain else {}}},
        }

        def attempt():
            return zenoh.open(zenoh.Config.from_json5(json.dumps(config)))

        def patiently():  # a session that is being opened again does not answer for a moment
            with contextlib.suppress(zenoh.ZError):
                return attempt()

        if refused:
            with pytest.raises(zenoh.ZError):
                attempt()
            return None
        return closing(eventually(patiently))

    return open_session


def key(*parts):
    return "/".join(("coterie", "run", *parts))


# -- the contract -----------------------------------------------------------------------------------------------------


def in_memory(addresses):
    exchange = Exchange()
    return {address: Memory(exchange, NAMES[address], address) for address in addresses}


def over_the_network(addresses, **options):
    contacts = [Contact(NAMES[address], address, free_endpoint()) for address in addresses]
    return {
        c.address: ZenohTransport("run", *c, contacts=contacts, **{k: v(c.name) for k, v in options.items()})
        for c in contacts
    }


def test_memory_keeps_the_contract():
    check_transport(in_memory)


def test_zenoh_over_mutual_tls_keeps_the_contract(authority):
    check_transport(lambda addresses: over_the_network(addresses, credentials=authority.credentials))


@pytest.mark.slow
def test_zenoh_on_the_loopback_keeps_the_contract():
    check_transport(lambda addresses: over_the_network(addresses, insecure_loopback=lambda name: True))


def test_zenoh_through_a_relay_keeps_the_contract(authority, closing):
    def make(addresses):
        post = Contact("post", -1, free_endpoint())
        contacts = [Contact(NAMES[address], address, None) for address in addresses]
        relay = ZenohRelay("run", "post", post.endpoint, credentials=authority.credentials("post"), contacts=contacts)
        closing(relay).open()
        return {
            c.address: ZenohTransport(
                "run", *c, credentials=authority.credentials(c.name), contacts=contacts, relays=[post]
            )
            for c in contacts
        }

    check_transport(make)


def test_transports_have_the_shape_of_the_protocol():
    assert isinstance(Memory(Exchange(), "ann", 0), Transport)
    assert isinstance(ZenohTransport("run", "ann", 0, None, insecure_loopback=True), Transport)


class Twice(Memory):
    def send(self, to, payload):
        super().send(to, payload)
        super().send(to, payload)


class Gossip(Memory):
    def send(self, to, payload):
        super().send(to, payload)
        super().send(7 if to != 7 else 0, payload)


class Trimmer(Memory):
    def send(self, to, payload):
        super().send(to, payload.rstrip(b"\0"))


class Restless(Memory):
    def close(self):
        pass


class Patient(Memory):
    def send(self, to, payload):
        if to == 99:
            time.sleep(1.1)
        super().send(to, payload)


@pytest.mark.parametrize(
    ("fault", "promise"),
    [
        (Twice, "more often"),
        (Gossip, "never sent"),
        (Trimmer, "unchanged"),
        (Restless, "open already|never sent|closed"),
        (Patient, "send waits"),
    ],
)
def test_planted_faults_are_found(fault, promise):
    def make(addresses):
        exchange = Exchange()
        return {address: fault(exchange, NAMES[address], address) for address in addresses}

    with pytest.raises((ContractError, ParameterError), match=promise):
        check_transport(make, patience=1.0)


def test_an_exchange_by_hand_delivers_in_order():
    exchange = Exchange(by_hand=True)
    ann, bob = (Memory(exchange, name, k) for k, name in enumerate(("ann", "bob")))
    came = []
    ann.open(lambda owner, payload: came.append((0, payload)))
    bob.open(lambda owner, payload: (came.append((1, payload)), bob.send(0, b"answer")))
    ann.send(1, b"one")
    ann.send(1, b"two")
    assert not came
    assert len(exchange) == 2
    assert exchange.run(limit=1) == 1
    assert exchange.run() == 3
    assert came == [(1, b"one"), (1, b"two"), (0, b"answer"), (0, b"answer")]


# -- what is refused at the door --------------------------------------------------------------------------------------


@pytest.mark.parametrize("place", ["0.0.0.0:7447", "192.0.2.1:7447", "[::]:7447", "example.org:7447", "localhost:7447"])
def test_without_tls_only_the_loopback(place):
    def make(**options):
        return ZenohTransport("run", "ann", 0, None, insecure_loopback=True, **options)

    with pytest.raises(ParameterError):
        ZenohTransport("run", "ann", 0, place, insecure_loopback=True)
    with pytest.raises(ParameterError):
        make(contacts=[Contact("bob", 1, place)])
    with pytest.raises(ParameterError):
        make(relays=[Contact("post", -1, place)])
    ann = make()
    with pytest.raises(ParameterError):
        ann.admit([Contact("bob", 1, place)])
    with pytest.raises(ParameterError):
        ann.link([Contact("bob", 1, place)])
    with pytest.raises(ParameterError):
        ZenohRelay("run", "post", place, insecure_loopback=True)


@pytest.mark.parametrize("name", ["*", "a/b", "**", "$*", "Ann", "", "a" * 64, "@adv"])
def test_names_that_would_be_keys_to_others_letters(name):
    with pytest.raises(ParameterError):
        ZenohTransport("run", name, 0, None, insecure_loopback=True)
    with pytest.raises(ParameterError):
        ZenohTransport("run", "ann", 0, None, insecure_loopback=True, contacts=[Contact(name, 1)])


def test_no_certificates_no_connection(tmp_path):
    with pytest.raises(ParameterError, match="folder"):
        ZenohTransport("run", "ann", 0, "127.0.0.1:7447")
    with pytest.raises(ParameterError, match=r"tls\.key"):
        ZenohTransport("run", "ann", 0, "127.0.0.1:7447", tmp_path)


def test_without_zenoh_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "zenoh", None)
    with pytest.raises(MissingExtra, match=r"coterie\[network\]"):
        ZenohTransport("run", "ann", 0, None, insecure_loopback=True)


def test_a_taken_port_is_an_error():
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        ann = ZenohTransport("run", "ann", 0, f"127.0.0.1:{other.getsockname()[1]}", insecure_loopback=True)
        with pytest.raises(ParameterError, match="cannot open"):
            ann.open(lambda owner, payload: None)
        ann.close()


# -- attacks ----------------------------------------------------------------------------------------------------------


def still_works(ann, bob):
    before = len(ann.came)
    return eventually(lambda: len(ann.came) > before, lambda: bob.transport.send(0, b"still here"))


def test_who_does_not_speak_tls_is_refused(people, bare):
    p = people("ann", "bob")
    host, port = identity.split_endpoint(p.ann.contact.endpoint)
    assert still_works(p.ann, p.bob)
    bare(None, connect=p.ann.contact.endpoint, plain=True, authority="none", refused=True)
    with socket.create_connection((host, port)) as raw:
        raw.sendall(os.urandom(5000))
        raw.settimeout(5)
        with contextlib.suppress(ConnectionError):
            assert b"coterie" not in raw.recv(1000)
    assert still_works(p.ann, p.bob)
    assert {owner for owner, _ in p.ann.came} == {1}


def test_no_certificate_or_one_of_others_is_refused(people, bare, authority, other_authority):
    p = people("ann", "bob")
    assert bare(authority.credentials("bob"), connect=p.ann.contact.endpoint)  # the scaffold is sound
    trusted = authority.credentials("ann").authority
    bare(None, connect=p.ann.contact.endpoint, authority=trusted, refused=True)
    bare(other_authority.credentials("bob"), connect=p.ann.contact.endpoint, authority=trusted, refused=True)
    assert still_works(p.ann, p.bob)


def test_a_member_cannot_put_on_anothers_keys(people, bare, authority):
    p = people("ann", "bob", "eve")
    p.eve.transport.close()
    eve = bare(authority.credentials("eve"), connect=p.ann.contact.endpoint)

    def attack():
        eve.put(key("to", "ann", "bob"), b"forged")
        eve.put(key("to", "ann", "*"), b"forged")
        eve.put(key("to", "*", "eve"), b"forged")
        eve.put(key("to", "*", "*"), b"forged")
        eve.put(key("**"), b"forged")
        eve.delete(key("to", "ann", "eve"))
        eve.put(key("to", "bob", "eve"), b"forwarded")  # a peer is not a relay
        eve.put(key("to", "ann", "eve"), b"mine")

    assert eventually(lambda: p.ann.came.count((7, b"mine")) >= 3, attack)
    assert {payload for _, payload in p.ann.came} == {b"mine"}
    assert not p.bob.came
    assert not p.ann.rosters
    assert "dropped: not a letter" not in p.ann.transport.counts


def test_a_member_cannot_hear_letters_to_another(people, bare, authority):
    p = people("ann", "bob", "eve")
    p.eve.transport.close()
    heard, own = [], []
    eve = bare(authority.credentials("eve"), connect=p.ann.contact.endpoint)
    for pattern in (key("to", "bob", "*"), key("to", "*", "ann"), key("to", "**"), "**", key("**"), "coterie/**"):
        eve.declare_subscriber(pattern, lambda sample: heard.append(str(sample.key_expr)), allowed_origin=REMOTE)
    eve.declare_subscriber(key("to", "eve", "*"), lambda sample: own.append(sample.payload.to_bytes()))

    def talk():
        p.ann.transport.send(EVERYONE, b"to all neighbours")
        p.ann.transport.send(1, b"to bob")
        p.bob.transport.send(0, b"to ann")

    assert eventually(lambda: len(own) >= 3 and len(p.bob.came) >= 3, talk)
    assert all(name.startswith((key("to", "eve"), key("roster"))) for name in heard)
    assert set(own) == {b"to all neighbours"}


def test_letters_do_not_go_to_who_sits_at_anothers_endpoint(people, bare, authority):
    p = people("ann", "bob", linked=False)
    p.bob.transport.close()
    heard = []
    eve = bare(authority.credentials("eve"), listen=p.bob.contact.endpoint)  # a member, on the same computer
    for pattern in ("**", key("to", "bob", "*")):
        eve.declare_subscriber(pattern, lambda sample: heard.append(str(sample.key_expr)), allowed_origin=REMOTE)
    token = eve.liveliness().declare_token(key("alive", "eve"))
    ann = p.ann.transport
    ann.admit([p.bob.contact, Contact("eve", 7, None)])
    assert eventually(lambda: ann.counts.get("sent", 0) >= 3, lambda: ann.send(1, b"secret, on demand"))
    ann.link([p.bob.contact])
    assert eventually(lambda: 7 in ann.alive(), lambda: ann.send(1, b"secret"))  # so they are connected
    for _ in range(3):
        ann.send(1, b"secret")
    assert not heard
    token.undeclare()


def test_a_member_cannot_pretend_that_another_is_alive(people, bare, authority):
    p = people("ann", "bob", "eve", linked=False)
    p.bob.transport.close()
    p.eve.transport.close()
    eve = bare(authority.credentials("eve"), connect=p.ann.contact.endpoint)
    tokens = [eve.liveliness().declare_token(key("alive", name)) for name in ("bob", "eve")]
    assert eventually(lambda: 7 in p.ann.transport.alive())
    assert p.ann.transport.alive() == {7}
    tokens[1].undeclare()
    assert eventually(lambda: not p.ann.transport.alive())


def test_too_long_letters_are_dropped_on_arrival(people, bare, authority):
    p = people("ann", "eve", linked=False)
    p.eve.transport.close()
    eve = bare(authority.credentials("eve"), connect=p.ann.contact.endpoint)

    def attack():
        for size in (200_001, 900_000, 3_000_000):
            eve.put(key("to", "ann", "eve"), bytes(size), congestion_control=zenoh.CongestionControl.BLOCK)
        eve.put(key("to", "ann", "eve"), bytes(200_000), congestion_control=zenoh.CongestionControl.BLOCK)

    assert eventually(lambda: len(p.ann.came) >= 2, attack)
    assert {len(payload) for _, payload in p.ann.came} == {200_000}
    assert "dropped: too large" not in p.ann.transport.counts  # it never came so far


def test_who_is_not_admitted_is_not_heard(people, bare, authority):
    p = people("ann", "bob")
    eve = bare(authority.credentials("eve"), connect=p.ann.contact.endpoint)  # a certificate, but not in the roster
    for _ in range(5):
        eve.put(key("to", "ann", "eve"), b"let me in")
    assert still_works(p.ann, p.bob)
    assert {owner for owner, _ in p.ann.came} == {1}
    p.ann.transport.admit([p.bob.contact, Contact("eve", 7)])
    assert eventually(lambda: (7, b"let me in") in p.ann.came, lambda: eve.put(key("to", "ann", "eve"), b"let me in"))
    p.ann.transport.admit([p.bob.contact])
    p.ann.came.clear()
    for _ in range(5):
        eve.put(key("to", "ann", "eve"), b"once more")
    assert still_works(p.ann, p.bob)
    assert {owner for owner, _ in p.ann.came} == {1}


def test_a_newcomer_can_bring_a_roster_and_do_nothing_else(people, bare, authority):
    """Who was just invited is in no roster that others have. Rosters are signed, so any member's key will do."""
    p = people("ann", "bob")
    eve = bare(authority.credentials("eve"), connect=p.ann.contact.endpoint)
    heard, seen = [], set()
    for pattern in ("**", key("**"), key("to", "**"), key("to", "bob", "*"), key("to", "eve", "*"), key("alive", "*")):
        eve.declare_subscriber(pattern, lambda sample: heard.append(str(sample.key_expr)), allowed_origin=REMOTE)
    eve.liveliness().declare_subscriber(key("alive", "*"), lambda sample: seen.add(str(sample.key_expr)), history=True)
    tokens = [eve.liveliness().declare_token(key("alive", name)) for name in ("bob", "eve")]
    p.ann.transport.admit([p.bob.contact])  # changes nothing

    def attack():
        for name in ("bob", "eve", "*"):
            eve.put(key("to", "ann", name), b"forged")
        eve.put(key("**"), b"forged")
        eve.delete(key("roster", "eve"))
        p.ann.transport.send(1, b"secret")
        eve.put(key("roster", "eve"), b"signed")

    assert eventually(lambda: len(p.ann.rosters) >= 3 and len(p.bob.came) >= 3, attack)
    assert still_works(p.ann, p.bob)
    assert set(p.ann.rosters) == {b"signed"}
    assert {payload for _, payload in p.ann.came} == {b"still here"}
    assert p.ann.transport.alive() <= {1}
    assert "dropped: not admitted" not in p.ann.transport.counts  # no letter of eve's came so far
    assert not heard
    assert seen == {key("alive", "bob"), key("alive", "eve")}  # its own, for a session also hears itself
    for token in tokens:
        token.undeclare()


def test_an_error_in_deliver_ends_nothing(people):
    p = people("ann", "bob", linked=False)
    p.ann.transport.close()
    came = []
    p.ann.transport.open(lambda owner, payload: came.append(payload) or 1 / 0)
    assert eventually(lambda: len(came) >= 3, lambda: p.bob.transport.send(0, b"x"))
    assert p.ann.transport.counts["dropped: deliver failed"] >= 2


# -- connections ------------------------------------------------------------------------------------------------------


def test_linked_peers_see_each_other_alive(people):
    p = people("ann", "bob")
    assert eventually(lambda: p.ann.transport.alive() == {1} and p.bob.transport.alive() == {0})
    p.bob.transport.close()
    assert eventually(lambda: not p.ann.transport.alive())


def test_the_session_is_opened_again_only_if_it_must(people):
    p = people("ann", "bob")
    line = p.ann.transport._main
    assert eventually(lambda: p.ann.transport.alive() == {1})
    session = line._session
    p.ann.transport.link([p.bob.contact])
    p.ann.transport.admit([p.bob.contact])
    assert still_works(p.ann, p.bob)
    assert line._session is session
    p.ann.transport.link([])
    assert eventually(lambda: line._session not in (session, None))


@pytest.mark.slow
def test_connections_on_demand_are_few_and_wait_for_nobody(people, monkeypatch):
    monkeypatch.setattr(over_zenoh, "SPARE_SESSIONS", 1)
    p = people("ann", "bob", "cat", linked=False)
    ann = p.ann.transport
    for _ in range(2):
        for goal, who in ((1, p.bob), (2, p.cat)):
            before = len(who.came)
            assert eventually(lambda who=who, n=before: len(who.came) > n, lambda goal=goal: ann.send(goal, b"x"))
            assert len(ann._dialler._sessions) == 1
    with socket.socket() as mute:  # it takes connections and says nothing
        mute.bind(("127.0.0.1", 0))
        mute.listen()
        ann.admit([*ann._known.values(), Contact("dan", 3, f"127.0.0.1:{mute.getsockname()[1]}")])
        start = time.monotonic()
        for _ in range(2 * over_zenoh.WAITING):
            ann.send(3, b"x")
        assert time.monotonic() - start < 1.5
        assert ann.counts["dropped: queue full"] >= over_zenoh.WAITING - 10
        assert eventually(lambda: ann.counts.get("dropped: unreachable", 0) > 0)
        assert time.monotonic() - start < 2.5 + over_zenoh.CONNECT / 1000


def test_idle_connections_are_closed(people, monkeypatch):
    monkeypatch.setattr(over_zenoh, "IDLE", 0.1)
    p = people("ann", "bob", linked=False)
    ann = p.ann.transport
    assert eventually(lambda: p.bob.came, lambda: ann.send(1, b"x"))
    assert eventually(lambda: not ann._dialler._sessions)


# -- relays -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def relay(authority, closing):
    contacts = [Contact(name, k, None) for k, name in NAMES.items()]
    relay = ZenohRelay("run", "post", free_endpoint(), credentials=authority.credentials("post"), contacts=contacts)
    relay.open()
    return closing(relay)


def test_members_without_an_endpoint_are_reached_through_a_relay(people, relay):
    post = Contact("post", -1, relay._listen)
    p = people("ann", "bob", "cat", hidden=("ann",), relays=[post])
    everyone = (p.ann, p.bob, p.cat)
    assert eventually(
        lambda: all(len({owner for owner, _ in one.came}) == 2 for one in everyone),
        lambda: [one.transport.send(EVERYONE, uuid.uuid4().bytes) for one in everyone],
    )
    assert eventually(lambda: p.ann.transport.alive() == {1, 2} and p.bob.transport.alive() == {0, 2})
    assert relay.alive() == {"ann", "bob", "cat"}
    for one in everyone:  # bob and cat are connected in two ways, and nothing came twice
        assert len(one.came) == len(set(one.came))
    assert eventually(lambda: p.ann.rosters, lambda: p.bob.transport.publish_roster(b"signed"))
    p.ann.transport.close()
    assert eventually(lambda: p.bob.transport.alive() == {2})


def test_a_relay_keeps_members_to_their_own_keys(people, relay, bare, authority):
    post = Contact("post", -1, relay._listen)
    p = people("ann", "bob", "eve", hidden=("ann", "bob", "eve"), relays=[post])
    p.eve.transport.close()
    heard, own = [], []
    eve = bare(authority.credentials("eve"), connect=post.endpoint)
    for pattern in (key("to", "ann", "*"), key("to", "**"), "**", key("**")):
        eve.declare_subscriber(pattern, lambda sample: heard.append(str(sample.key_expr)), allowed_origin=REMOTE)
    eve.declare_subscriber(key("to", "eve", "*"), lambda sample: own.append(sample.payload.to_bytes()))
    token = eve.liveliness().declare_token(key("alive", "cat"))

    def attack():
        eve.put(key("to", "ann", "bob"), b"forged")
        eve.put(key("to", "ann", "*"), b"forged")
        eve.put(key("to", "*", "eve"), b"to all")
        eve.put(key("to", "ann", "eve"), b"mine")
        p.bob.transport.send(0, b"secret")
        p.bob.transport.send(7, b"to eve")

    def done():
        return p.ann.came.count((7, b"mine")) >= 3 and p.ann.came.count((1, b"secret")) >= 3 and len(own) >= 3

    assert eventually(done, attack)
    assert {payload for _, payload in p.ann.came} == {b"mine", b"secret"}
    assert not p.bob.came
    assert not p.ann.rosters
    assert all(name.startswith(key("to", "eve")) for name in heard)
    assert "cat" not in relay.alive()
    token.undeclare()


@pytest.mark.slow
def test_a_relay_that_comes_back_or_another_is_used(people, authority, closing):
    places = [Contact("post", -1, free_endpoint()), Contact("mail", -1, free_endpoint())]
    contacts = [Contact(name, k, None) for k, name in NAMES.items()]
    first, second = (
        ZenohRelay("run", place.name, place.endpoint, credentials=authority.credentials(place.name), contacts=contacts)
        for place in places
    )
    closing(first).open()
    p = people("ann", "bob", hidden=("ann", "bob"), relays=places)
    assert still_works(p.ann, p.bob)
    first.close()
    assert eventually(lambda: not p.ann.transport.alive())
    time.sleep(1.0)  # longer than a client tries by itself
    first.open()
    assert still_works(p.ann, p.bob)
    first.close()
    closing(second).open()
    assert still_works(p.ann, p.bob)


def test_a_relay_must_not_be_a_member(authority):
    with pytest.raises(ParameterError, match="must not have the name of a member"):
        ZenohRelay(
            "run", "ann", free_endpoint(), credentials=authority.credentials("ann"), contacts=[Contact("ann", 0)]
        )


# -- two computers, as far as the system can tell ---------------------------------------------------------------------

PEER = """
    import json, sys, time
    from coterie.peers.transport import Contact
    from coterie.peers.transport.over_zenoh import ZenohTransport
    from coterie.core.world import EVERYONE

    me, other, folder = int(sys.argv[1]), 1 - int(sys.argv[1]), sys.argv[2]
    contacts = [Contact("ann", 0, "10.213.7.1:7447"), Contact("bob", 1, "10.213.7.2:7447")]
    came = []
    transport = ZenohTransport("run", *contacts[me], folder, contacts=contacts)
    transport.open(lambda owner, payload: came.append(owner))
    transport.link([contacts[other]])
    while True:
        transport.send(EVERYONE, b"x" * 1000)
        print(json.dumps([len(came), sorted(transport.alive())]), flush=True)
        time.sleep(0.05)
"""


class Process:
    def __init__(self, space, number, folder):
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        command = ["ip", "netns", "exec", space, sys.executable, "-c", textwrap.dedent(PEER), str(number), str(folder)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        self.came, self.alive = 0, []
        self.reader = threading.Thread(target=self._read)
        self.reader.start()

    def _read(self):
        for line in self.process.stdout:
            self.came, self.alive = json.loads(line)

    def close(self):
        self.process.kill()
        self.process.wait()
        self.reader.join()
        self.process.stdout.close()


@pytest.mark.slow
def test_two_computers_and_a_cable_that_is_cut(tmp_path, closing):
    if os.name != "posix" or os.geteuid() != 0 or shutil.which("ip") is None:
        pytest.skip("network namespaces need root and the program ip")
    mark = uuid.uuid4().hex[:6]
    spaces, ends = [f"ct{mark}a", f"ct{mark}b"], [f"v{mark}a", f"v{mark}b"]

    def ip(*words, check=True):
        return subprocess.run(["ip", *words], check=check, capture_output=True, text=True)

    made = ip("netns", "add", spaces[0], check=False)
    if made.returncode:
        pytest.skip(f"network namespaces are not allowed here: {made.stderr.strip()}")
    try:
        ip("netns", "add", spaces[1])
        ip("link", "add", ends[0], "netns", spaces[0], "type", "veth", "peer", "name", ends[1], "netns", spaces[1])
        group = Authority(tmp_path / "ca")
        for k, (space, end, name) in enumerate(zip(spaces, ends, ("ann", "bob"), strict=True)):
            ip("-n", space, "addr", "add", f"10.213.7.{k + 1}/24", "dev", end)
            ip("-n", space, "link", "set", end, "up")
            group.credentials(name, f"10.213.7.{k + 1}:7447")
        ann, bob = (
            closing(Process(space, k, tmp_path / "ca" / n))
            for k, (space, n) in enumerate(zip(spaces, ("ann", "bob"), strict=True))
        )
        assert eventually(lambda: ann.came > 3 and bob.came > 3 and ann.alive == [1] and bob.alive == [0], patience=30)
        ip("-n", spaces[0], "link", "set", ends[0], "down")
        assert eventually(lambda: ann.alive == [] and bob.alive == [], patience=15)
        before = ann.came, bob.came
        ip("-n", spaces[0], "link", "set", ends[0], "up")
        assert eventually(lambda: ann.came > before[0] and bob.came > before[1], patience=30)
        assert eventually(lambda: ann.alive == [1] and bob.alive == [0])
    finally:
        for space in spaces:
            ip("netns", "del", space, check=False)
