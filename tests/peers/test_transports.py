"""Transports keep their contract, and the one over TLS refuses what it must. Attackers speak TLS by themselves."""

import asyncio
import contextlib
import socket
import ssl
import threading
import time
import uuid

import pytest

from coterie.core.arrays import EVERYONE
from coterie.errors import ContractError, ParameterError
from coterie.peers.transport import Contact
from coterie.peers.transport.memory import Exchange, Memory
from coterie.testing import transports
from coterie.testing.transports import check_transport

pytest.importorskip("nacl")
pytest.importorskip("cryptography")

from tls_people import NAMES, RUN, contact_of, eventually, free_endpoint, public_of, seed_of, tls_context, transport_of

from coterie.peers.group import identity
from coterie.peers.transport import hub
from coterie.peers.transport.channel import (
    ADMITTED,
    FORWARD,
    LIST,
    MESSAGE,
    PRESENT,
    VISITING,
    Reader,
    forward,
    frame,
    read_forward,
)
from coterie.peers.transport.hub import Hub
from coterie.peers.transport.over_tls import TlsTransport
from coterie.peers.transport.proofs import Seals, TlsContexts
from coterie.peers.transport.relay import RelayHub, TlsRelay
from coterie.peers.wire.limits import Limits


@pytest.fixture
def relay_of(authority, closing):
    """Opens relays, for everybody if nothing else is said."""

    def made(name="post", begin=True, **options):
        given = {"contacts": [contact_of(name) for name in NAMES.values()]} | options
        relay = closing(TlsRelay("run", name, free_endpoint(), credentials=authority.credentials(name), **given))
        if begin:
            relay.open()
        return relay

    return made


@pytest.fixture
def relay(relay_of):
    return relay_of()


# -- the contract -----------------------------------------------------------------------------------------------------


def in_memory(addresses):
    exchange = Exchange()
    return {address: Memory(exchange, NAMES[address], address) for address in addresses}


def over_the_network(authority, addresses, **options):
    contacts = [contact_of(NAMES[address], free_endpoint()) for address in addresses]
    return {contact.address: transport_of(authority, contact, contacts, **options) for contact in contacts}


def test_memory_keeps_the_contract():
    check_transport(in_memory)


@pytest.mark.parametrize(
    "options",
    [
        {"uvloop": False},
        pytest.param({"uvloop": False, "seed": None}, marks=pytest.mark.slow),
        pytest.param({"uvloop": True}, marks=pytest.mark.slow),
    ],
    ids=repr,
)
def test_tls_keeps_the_contract(authority, options):
    if options["uvloop"]:
        pytest.importorskip("uvloop")
    check_transport(lambda addresses: over_the_network(authority, addresses, **options))


@pytest.mark.slow
def test_tls_through_a_relay_keeps_the_contract(authority, relay_of):
    def make(addresses):
        contacts = [contact_of(NAMES[address]) for address in addresses]
        post = relay_of(contacts=contacts)
        return {c.address: transport_of(authority, c, contacts, relays=[post]) for c in contacts}

    check_transport(make, relayed=True)


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
            time.sleep(0.2)
        super().send(to, payload)


class Gatekeeper(Memory):
    def _visit(self, goal):
        pass


class Reopening(Memory):
    """Loses a message whenever its links change."""

    def link(self, contacts):
        before = set(self._linked)
        super().link(contacts)
        self._loses = before != set(self._linked)

    def _sent(self, to, data):
        loses, self._loses = getattr(self, "_loses", False), False
        return "dropped: no connection" if loses else super()._sent(to, data)


class Forgiving(Memory):
    def _lets_in(self, other):
        return self._knows(other.contact.address)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "promise"),
    [
        (Twice, "more often"),
        (Gossip, "never sent"),
        (Trimmer, "unchanged"),
        (Restless, "open already|never sent|closed"),
        (Patient, "send waits"),
        (Gatekeeper, "does not get the other's roster"),
        pytest.param(Reopening, "lost while others come and go", marks=pytest.mark.slow),
        (Forgiving, "outlives its certificate"),
    ],
)
def test_planted_faults_are_found(fault, promise, monkeypatch):
    if fault is Patient:
        monkeypatch.setattr(transports, "MAX_SEND_SECONDS", 0.1)

    def make(addresses):
        exchange = Exchange()
        return {address: fault(exchange, NAMES[address], address) for address in addresses}

    with pytest.raises((ContractError, ParameterError), match=promise):
        check_transport(make, patience=1.0)


# -- frames -----------------------------------------------------------------------------------------------------------


def test_what_is_too_long_is_never_kept():
    reader = Reader({MESSAGE: 100})
    assert reader.feed(frame(MESSAGE, bytes(1 << 20))[:500]) == [(MESSAGE, None)]
    for _ in range(20):
        reader.feed(bytes(50_000))
    assert len(reader._rest) < 1000


# -- what is refused --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["*", "a/b", "Ann", "", "a" * 64, "@adv"])
def test_names_that_are_none(name, authority):
    with pytest.raises(ParameterError):
        TlsTransport("run", name, 0, None, credentials=authority.credentials("ann"))
    with pytest.raises(ParameterError):
        transport_of(authority, contact_of("ann"), [Contact(name, 1)])


def test_no_certificates_no_connection(tmp_path, authority, other_authority):
    with pytest.raises(ParameterError, match="folder"):
        TlsTransport("run", "ann", 0, "127.0.0.1:7447")
    with pytest.raises(ParameterError, match=r"tls\.key"):
        TlsTransport("run", "ann", 0, "127.0.0.1:7447", tmp_path)
    mixed = authority.credentials("ann")._replace(key=other_authority.credentials("ann").key)
    with pytest.raises(ParameterError, match="cannot be used for TLS"):
        TlsTransport("run", "ann", 0, None, credentials=mixed)


def test_a_taken_port_is_an_error(authority):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        ann = transport_of(authority, contact_of("ann", f"127.0.0.1:{other.getsockname()[1]}"))
        with pytest.raises(ParameterError, match="cannot open"):
            ann.open(lambda owner, payload: None)
        ann.close()


def still_works(ann, bob):
    before = len(ann.came)
    return eventually(lambda: len(ann.came) > before, lambda: bob.transport.send(0, b"still here"))


def refused(bare, endpoint, credentials, **options):
    """Whether somebody is hung up on before it hears anything."""
    try:
        client = bare(endpoint, credentials, **options)
    except (ssl.SSLError, OSError):
        return True
    return client.ended.wait(5) and not client.frames


def test_who_is_refused_at_the_door(people, bare, authority, other_authority):
    p = people("ann", "bob")
    endpoint = p.ann.contact.endpoint
    client = bare(endpoint, authority.credentials("bob"))
    assert eventually(lambda: ADMITTED in client.kinds())  # the scaffold is sound
    client.close()
    assert refused(bare, endpoint, None)
    assert refused(bare, endpoint, other_authority.credentials("bob"))
    assert refused(bare, endpoint, authority.credentials("bob"), newest=False)
    with socket.create_connection(identity.split_endpoint(endpoint)) as raw:
        raw.sendall(b"GET / HTTP/1.1\r\n\r\n")
        raw.settimeout(5)
        assert raw.recv(100) == b""
    seen = p.ann.transport.strangers()["127.0.0.1"]
    assert {"not TLS", "peer did not return a certificate"} <= seen.keys()
    assert any("certificate verify failed" in reason for reason in seen)
    assert still_works(p.ann, p.bob)
    assert {owner for owner, _ in p.ann.came} == {1}


def test_a_certificate_that_has_expired_is_refused_and_ends_a_link(people, bare, authority, monkeypatch):
    p = people("ann", "bob")
    assert still_works(p.ann, p.bob)
    soon = time.time() + 900 * 86400
    monkeypatch.setattr("coterie.peers.transport.hub.time.time", lambda: soon)
    assert eventually(lambda: p.ann.transport.counts.get("ended: its certificate has expired"))


def test_messages_are_of_whom_the_certificate_names(people, bare, authority):
    p = people("ann", "bob", "eve")
    p.eve.transport.close()
    eve = bare(p.ann.contact.endpoint, authority.credentials("eve"))
    assert eventually(lambda: ADMITTED in eve.kinds())
    eve.send(MESSAGE, b"mine")
    eve.send(FORWARD, forward("bob", MESSAGE, b"forged"))  # as a relay would
    eve.send(FORWARD, forward("ann", MESSAGE, b"forged"))
    eve.send(PRESENT, b"cat")
    eve.send(77, b"from the future")
    eve.send(MESSAGE, b"mine, too")
    assert eventually(lambda: len(p.ann.came) == 2)
    assert p.ann.came == [(7, b"mine"), (7, b"mine, too")]
    assert 2 not in p.ann.transport.alive()
    assert p.ann.transport.dropped()[7]["from: unknown kind"] == 3
    assert p.ann.transport.dropped()[7]["from: too large"] == 1  # a kind that is not there has no length
    assert not p.bob.came


def test_messages_do_not_go_to_who_sits_at_anothers_endpoint(people, authority, closing):
    p = people("ann", "bob", linked=False, ann={"seed": None})  # who pre-authenticates goes no further than that
    p.bob.transport.close()
    eve = closing(transport_of(authority, contact_of("eve", p.bob.contact.endpoint), [p.ann.contact]))
    heard = []
    eve.open(lambda owner, payload: heard.append(payload), heard.append)
    ann = p.ann.transport
    ann.admit([p.bob.contact, contact_of("eve")])
    assert eventually(lambda: ann.counts.get("ended: another name"), lambda: ann.send(1, b"secret, on demand"))
    ann.link([p.bob.contact])
    assert eventually(lambda: ann.counts["ended: another name"] >= 3, lambda: ann.send(1, b"secret"))
    assert not heard
    assert not ann.alive()


def test_too_long_messages_are_passed_over_and_counted(people, bare, authority):
    p = people("ann", "eve", linked=False)
    p.eve.transport.close()
    eve = bare(p.ann.contact.endpoint, authority.credentials("eve"))
    for size in (200_001, 900_000, 3_000_000):
        eve.send(MESSAGE, bytes(size))
    eve.send(MESSAGE, bytes(200_000))
    assert eventually(lambda: len(p.ann.came) == 1)
    assert [len(payload) for _, payload in p.ann.came] == [200_000]
    assert p.ann.transport.dropped() == {7: {"from: too large": 3}}
    assert not eve.ended.is_set()


def test_a_message_may_come_with_the_end_of_the_handshake(people, authority):
    """In one read: it is a member's, and not too much of a stranger's."""
    p = people("ann", "eve", linked=False)
    p.eve.transport.close()
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = tls_context(authority.credentials("eve")).wrap_bio(incoming, outgoing)
    with socket.create_connection(identity.split_endpoint(p.ann.contact.endpoint), timeout=10) as raw:
        with pytest.raises(ssl.SSLWantReadError):
            tls.do_handshake()
        raw.sendall(outgoing.read())
        while True:
            incoming.write(raw.recv(65_536))
            with contextlib.suppress(ssl.SSLWantReadError):
                tls.do_handshake()
                break
        tls.write(frame(MESSAGE, bytes(100_000)))
        raw.sendall(outgoing.read())
        assert eventually(lambda: [len(payload) for _, payload in p.ann.came] == [100_000])


@pytest.mark.slow
def test_who_sends_too_much_is_read_more_slowly(people, bare, authority):
    p = people("ann", "bob", "eve", ann={"messages_per_second": 50.0})
    p.eve.transport.close()
    assert still_works(p.ann, p.bob)
    eve = bare(p.ann.contact.endpoint, authority.credentials("eve"))
    text = frame(MESSAGE, bytes(1000)) * 100
    stop, sent = time.monotonic() + 2.0, []

    def flood():
        eve.sock.settimeout(2.0)
        try:
            while time.monotonic() < stop:
                eve.sock.sendall(text)
                sent.append(100)
        except OSError:
            pass

    thread = threading.Thread(target=flood)
    thread.start()
    assert still_works(p.ann, p.bob)
    thread.join()
    came = sum(owner == 7 for owner, _ in p.ann.came)
    assert p.ann.transport.counts["throttled"] >= 1
    assert came < 2000  # of more than 100,000 that would have come otherwise: the burst, and some
    assert still_works(p.ann, p.bob)


# -- non-members ------------------------------------------------------------------------------------------------------


def test_a_non_member_can_bring_a_roster_and_do_nothing_else(people, bare, authority):
    """Who was just invited is on no list that others have. Lists are signed, so any member's word will do."""
    p = people("ann", "bob")
    p.ann.transport.keep_roster(b"ours")
    eve = bare(p.ann.contact.endpoint, authority.credentials("eve"))
    for kind in (MESSAGE, FORWARD, PRESENT, ADMITTED, VISITING):
        eve.send(kind, b"" if kind > PRESENT else forward("bob", MESSAGE, b"forged"))
    eve.send(LIST, b"signed")
    assert eventually(lambda: p.ann.rosters == [b"signed"])
    assert eventually(lambda: eve.frames == [(VISITING, b""), (LIST, b"ours")])
    assert still_works(p.ann, p.bob)
    assert {payload for _, payload in p.ann.came} == {b"still here"}
    assert p.ann.transport.alive() <= {1}
    p.ann.transport.admit([p.bob.contact, contact_of("eve")])
    assert eventually(lambda: ADMITTED in eve.kinds())  # the same connection is a link now
    eve.send(MESSAGE, b"and now a message")
    assert eventually(lambda: (7, b"and now a message") in p.ann.came)
    p.ann.transport.keep_roster(b"newer")
    p.ann.transport.admit([p.bob.contact])
    assert eventually(eve.ended.is_set)
    assert eve.frames[-1] == (LIST, b"newer")  # the last thing that it hears


@pytest.mark.slow
def test_a_visit_is_short_and_non_members_are_few(people, bare, authority):
    limits = Limits(visit=0.5, non_members=2)
    p = people("ann", ann={"limits": limits})
    eve = bare(p.ann.contact.endpoint, authority.credentials("eve"))
    assert eventually(lambda: VISITING in eve.kinds())
    assert eve.ended.wait(5)
    crowd = [bare(p.ann.contact.endpoint, authority.credentials(name)) for name in ("bob", "cat", "dan")]
    assert eventually(lambda: p.ann.transport.counts.get("ended: too many non-members") == 1)
    assert all(one.ended.wait(5) for one in crowd)
    for _ in range(6):
        bare(p.ann.contact.endpoint, authority.credentials("eve"))
    assert eventually(lambda: p.ann.transport.counts.get("ended: not admitted, too often"))
    assert any("(eve)" in reason for reason in p.ann.transport.strangers()["127.0.0.1"])


def test_a_certificate_that_is_revoked_is_not_even_good_for_a_visit(people, bare, authority):
    """Who has stolen it must not be given the roster, of which its owner may be or not."""
    p = people("ann", "bob", "eve", linked=False)
    serial = p.eve.transport.serial
    assert (
        serial == f"{identity.read_certificate(authority.credentials('eve').certificate.read_bytes()).serial_number:x}"
    )
    p.eve.transport.close()
    p.ann.transport.keep_roster(b"without eve")
    p.ann.transport.admit([p.bob.contact])
    eve = bare(p.ann.contact.endpoint, authority.credentials("eve"))
    assert eventually(lambda: (LIST, b"without eve") in eve.frames)  # removed, and told
    p.ann.transport.admit([p.bob.contact], revoked=[serial])
    assert eve.ended.wait(10)  # at once, not at the end of the visit
    assert refused(bare, p.ann.contact.endpoint, authority.credentials("eve"))
    p.ann.transport.admit([p.bob.contact, p.eve.contact], revoked=[serial])  # a member, but not with this one
    assert refused(bare, p.ann.contact.endpoint, authority.credentials("eve"))
    assert "revoked (eve)" in p.ann.transport.strangers()["127.0.0.1"]


def test_another_run_is_another_group(people, bare, authority):
    p = people("ann", "bob")
    bob = bare(p.ann.contact.endpoint, authority.credentials("bob"), alpn="other")
    assert eventually(lambda: VISITING in bob.kinds())
    bob.send(MESSAGE, b"of another run")
    assert still_works(p.ann, p.bob)
    assert (1, b"of another run") not in p.ann.came


def test_certificates_are_read_anew_and_links_stay(people, authority, tmp_path, closing):
    own = tmp_path / "ann"
    own.mkdir()
    first = authority.write(own, "ann")
    endpoints = {name: free_endpoint() for name in ("ann", "bob")}
    contacts = [contact_of(name, place) for name, place in endpoints.items()]
    ann = closing(TlsTransport("run", "ann", 0, endpoints["ann"], own, contacts=contacts))
    bob = closing(transport_of(authority, contacts[1], contacts))
    came = []
    ann.open(lambda owner, payload: came.append(payload))
    bob.open(lambda owner, payload: None)
    ann.link(contacts)
    bob.link(contacts)
    assert eventually(lambda: ann.alive() == {1} and bob.alive() == {0})
    second = authority.write(own, "ann")
    assert first.serial_number != second.serial_number
    ann.reload()
    assert ann.serial == f"{second.serial_number:x}"
    assert eventually(lambda: came, lambda: bob.send(0, b"x"))
    assert not [reason for reason in bob.counts if reason.startswith("ended") and reason != "ended: double"]
    bob.admit(contacts, revoked=[f"{first.serial_number:x}"])
    assert eventually(lambda: bob.counts.get("ended: revoked"))
    came.clear()
    assert eventually(lambda: came, lambda: bob.send(0, b"with the new one"))


def test_an_error_in_deliver_ends_nothing(people):
    p = people("ann", "bob", linked=False)
    p.ann.transport.close()
    came = []
    p.ann.transport.open(lambda owner, payload: came.append(payload) or 1 / 0)
    assert eventually(lambda: len(came) >= 3, lambda: p.bob.transport.send(0, b"x"))
    assert p.ann.transport.counts["dropped: deliver failed"] >= 2


# -- connections ------------------------------------------------------------------------------------------------------


def test_who_connects_again_and_again_has_few_connections(people, bare, authority):
    """Nor is it taken for one that is away, for which relays are looked for."""
    p = people("ann", "eve", linked=False, hidden=("eve",))
    p.eve.transport.close()
    p.ann.transport.link([p.eve.contact])
    for k in range(12):
        eve = bare(p.ann.contact.endpoint, authority.credentials("eve"))
        eve.send(MESSAGE, bytes([k]))
        assert eventually(lambda k=k: (7, bytes([k])) in p.ann.came)
        assert len(p.ann.transport._hub._doubles) <= 3
    assert p.ann.transport.alive() == {7}
    assert not p.ann.transport._hub._apart


def test_a_connection_that_is_made_while_the_transport_closes_is_closed(authority):
    """There was a moment after which nobody knew of it, and it was left open."""
    loop = asyncio.SelectorEventLoop()
    goal = socket.create_server(("127.0.0.1", 0))

    class ClosedInBetween(TlsContexts):
        @property
        def dialling(self):  # asked for when there is a connection
            loop.call_soon(hub.close)
            return self._context(server=False)

        @dialling.setter
        def dialling(self, context):
            pass

    class Dialler(Hub):
        def wants(self, name):
            return True

        def place(self, name):
            return goal.getsockname()

    hub = Dialler(loop, "ann", ClosedInBetween(authority.credentials("ann"), RUN), Limits(), lambda signed: None)
    hub.admitted = frozenset({"bob"})
    hub.dial("bob")
    loop.run_until_complete(asyncio.sleep(0.2))
    assert hub.closed
    assert not hub.opening
    assert hub.counts["ended: closed by us"] == 1
    loop.close()
    goal.close()


def test_names_that_nobody_can_look_up_do_not_keep_addresses_waiting(people, authority, closing, monkeypatch):
    p = people("bob", linked=False)
    ann = closing(transport_of(authority, contact_of("ann", free_endpoint()), uvloop=False))
    look_up, answered = socket.getaddrinfo, threading.Event()

    def slow(host, *given, **more):
        if str(host).endswith(".example"):
            answered.wait(30.0)
        return look_up("127.0.0.1" if str(host).endswith(".example") else host, *given, **more)

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    ann.open(lambda owner, message: None)
    p.bob.transport.admit([ann.contact])
    strangers = [Contact(f"x{k}", 100 + k, f"x{k}.example:7447") for k in range(40)]
    ann.link(strangers)
    time.sleep(0.2)
    ann.link([*strangers, p.bob.contact])
    assert eventually(lambda: ann.alive() == {1}, patience=5.0)
    answered.set()


@pytest.mark.slow
def test_who_says_nothing_is_missed_after_three_seconds(people, bare, authority):
    p = people("ann", "eve", linked=False)
    p.eve.transport.close()
    bare(p.ann.contact.endpoint, authority.credentials("eve"))
    assert eventually(lambda: p.ann.transport.alive() == {7})
    began = time.monotonic()
    assert eventually(lambda: not p.ann.transport.alive(), patience=10)
    assert 2.5 < time.monotonic() - began < 6.0
    assert p.ann.transport.counts["ended: silent"] == 1


@pytest.mark.slow
def test_who_was_stopped_itself_does_not_blame_the_others(people, monkeypatch):
    monkeypatch.setattr(hub, "STOPPED_SECONDS", 1.0)
    p = people("ann", "bob", ann={"limits": Limits(dead=1.5)}, bob={"limits": Limits(dead=30.0)})
    assert eventually(lambda: p.ann.transport.alive() == {1} and p.bob.transport.alive() == {0})
    goes_on, came = threading.Event(), len(p.ann.came)
    p.ann.transport._thread.call(goes_on.wait, 2.0)  # for that long, it does nothing
    p.bob.transport.send(0, b"meanwhile")
    assert eventually(lambda: len(p.ann.came) > came)
    for _ in range(8):  # and the next look at who is silent
        time.sleep(0.1)
    assert "ended: silent" not in p.ann.transport.counts
    assert p.ann.transport.alive() == {1}


def test_who_does_not_read_costs_a_queue_of_bounded_length(people, bare, authority):
    p = people("ann", "bob", "eve")
    p.eve.transport.close()
    assert still_works(p.ann, p.bob)
    eve = bare(p.ann.contact.endpoint, authority.credentials("eve"))
    assert eventually(lambda: 7 in p.ann.transport.alive())
    eve.reading.clear()
    stop = time.monotonic() + 5.0
    while time.monotonic() < stop and "to: queue full" not in p.ann.transport.dropped().get(7, {}):
        for _ in range(50):
            p.ann.transport.send(7, bytes(50_000))
        time.sleep(0.02)
    assert p.ann.transport.dropped()[7]["to: queue full"] > 0
    channel = p.ann.transport._hub.channels["eve"]
    assert len(channel._queue) <= 256
    assert channel._queued == sum(map(len, channel._queue)) <= 1 << 23
    assert still_works(p.ann, p.bob)


@pytest.mark.slow
def test_connections_on_demand_are_few_and_short(people):
    p = people("ann", "bob", "cat", linked=False, ann={"limits": Limits(spare=1, idle=1.0)})
    ann = p.ann.transport
    for goal, who in ((1, p.bob), (2, p.cat)):
        ann.send(goal, b"once")  # it waits for the connection
        assert eventually(lambda who=who: who.came == [(0, b"once")])
    assert eventually(lambda: len(ann.alive()) == 1, patience=0.9)
    assert eventually(lambda: not ann.alive())
    assert ann.counts["ended: idle"] == 2


def test_who_cannot_be_reached_is_left_alone(people):
    p = people("ann", "bob", linked=False)
    ann = p.ann.transport
    p.bob.transport.close()
    for _ in range(2):
        ann.send(1, b"x")
    assert eventually(lambda: ann.counts.get("dropped: unreachable", 0) == 2)
    tried = ann.counts["failed: cannot connect"]
    for _ in range(50):
        ann.send(1, b"x")
    ann.send(99, b"x")
    assert eventually(lambda: ann.counts["dropped: unreachable"] == 52)
    assert ann.counts["failed: cannot connect"] == tried
    assert ann.dropped()[1] == {"to: unreachable": 52}
    assert ann.counts["dropped: unknown address"] == 1
    assert "sent" not in ann.counts


@pytest.mark.parametrize("host", ["::1", "localhost"])
def test_other_kinds_of_endpoints(host, authority, closing):
    try:
        place = free_endpoint("::1") if host == "::1" else f"localhost:{free_endpoint().rpartition(':')[2]}"
    except OSError:
        pytest.skip("there is no IPv6 here")
    contacts = [contact_of("ann", place), contact_of("bob")]
    ann, bob = (closing(transport_of(authority, contact, contacts)) for contact in contacts)
    came = []
    ann.open(lambda owner, payload: came.append(owner))
    bob.open(lambda owner, payload: None)
    bob.link(contacts)
    assert eventually(lambda: came == [1] * len(came) and came, lambda: bob.send(0, b"x"))


# -- relays -----------------------------------------------------------------------------------------------------------


def test_members_without_an_endpoint_are_reached_through_a_relay(people, relay):
    p = people("ann", "bob", "cat", hidden=("ann", "bob"), each={"relays": [relay]})
    everyone = (p.ann, p.bob, p.cat)
    assert eventually(
        lambda: all(len({owner for owner, _ in one.came}) == 2 for one in everyone),
        lambda: [one.transport.send(EVERYONE, uuid.uuid4().bytes) for one in everyone],
    )
    assert eventually(lambda: p.ann.transport.alive() == {1, 2} and p.bob.transport.alive() == {0, 2})
    assert relay.alive() >= {"ann", "bob"}
    for one in everyone:
        assert len(one.came) == len(set(one.came))
    assert eventually(lambda: p.ann.rosters, lambda: p.bob.transport.publish_roster(b"signed"))
    p.ann.transport.close()
    assert eventually(lambda: p.bob.transport.alive() == {2})


@pytest.mark.slow
def test_a_member_that_comes_and_goes_does_not_make_a_relay_tell_everybody_each_time(
    relay, bare, authority, monkeypatch
):
    monkeypatch.setattr("coterie.peers.transport.relay.PRESENCE_BYTES", 4)
    ann = bare(relay.endpoint, authority.credentials("ann"))
    for _ in range(5):
        eve = bare(relay.endpoint, authority.credentials("eve"))
        assert eventually(lambda: relay.alive() == {"ann", "eve"})
        eve.close()
        assert eventually(lambda: relay.alive() == {"ann"})
        time.sleep(0.2)
    assert ann.kinds().count(PRESENT) <= 3  # of ten changes; the last one comes in the end


def test_a_relay_cannot_read_messages(people, relay, monkeypatch):
    passed = []
    take_up = RelayHub.take_up
    monkeypatch.setattr(
        RelayHub, "take_up", lambda hub, c, kind, body: passed.append(body) or take_up(hub, c, kind, body)
    )
    p = people("ann", "bob", hidden=("ann", "bob"), each={"relays": [relay]})
    secret = b"weights of a model, many of them" * 4
    assert eventually(lambda: (1, secret) in p.ann.came, lambda: p.bob.transport.send(0, secret))
    assert passed
    assert not any(secret[k : k + 12] in body for body in passed for k in range(0, len(secret), 12))


def test_a_relay_cannot_forge_messages(people, relay_of, monkeypatch):
    """One that passes messages off as another's, sends them back, or repeats them elsewhere."""

    def twisted(hub, channel, kind, body):
        name, inner, sealed = read_forward(body)
        for goal, sender in (("ann", "cat"), ("ann", "ann"), ("bob", "ann"), ("cat", "bob"), ("ann", "nobody")):
            if goal in hub.channels:
                hub.channels[goal].push(frame(FORWARD, forward(sender, inner, sealed)))
        changed = sealed[:-1] + bytes([sealed[-1] ^ 1])  # not a fixed byte: one seal in 256 ends with it
        for broken in (b"", b"x", sealed[:-1], changed, bytes(100)):
            hub.channels["ann"].push(frame(FORWARD, forward("bob", MESSAGE, broken)))
        hub.channels["ann"].push(frame(MESSAGE, b"from the relay itself"))
        hub.channels["ann"].push(frame(FORWARD, b"\xff"))
        hub.channels[name].push(frame(FORWARD, forward(channel.name, inner, sealed)))

    monkeypatch.setattr(RelayHub, "take_up", twisted)
    relay = relay_of()
    p = people("ann", "bob", "cat", hidden=("ann", "bob", "cat"), each={"relays": [relay]})
    assert eventually(lambda: len(relay.alive()) == 3 and p.bob.transport.alive() == {0, 2})
    p.bob.transport.send(0, b"true")
    assert eventually(lambda: p.ann.transport.counts.get("dropped: not sealed", 0) >= 6)
    assert eventually(lambda: p.ann.came)
    assert p.ann.came == [(1, b"true")]
    assert not p.bob.came
    assert not p.cat.came


def test_seals_are_good_for_one_way_only():
    ann, bob = (Seals("run", name, seed_of(name)) for name in ("ann", "bob"))
    keys = {name: public_of(seed_of(name)) for name in ("ann", "bob", "cat")}
    sealed = ann.seal("bob", keys["bob"], b"text")
    assert bob.open("ann", keys["ann"], sealed) == b"text"
    assert bob.open("cat", keys["cat"], sealed) is None
    assert ann.open("bob", keys["bob"], sealed) is None
    assert Seals("other", "bob", seed_of("bob")).open("ann", keys["ann"], sealed) is None
    assert ann.seal("bob", keys["bob"], b"text") != sealed


def test_a_relay_bounds_what_one_member_sends_to_another(people, relay_of):
    relay = relay_of(messages_per_second=5.0)
    p = people("ann", "bob", hidden=("ann", "bob"), each={"relays": [relay]})
    assert eventually(lambda: p.bob.transport.alive() == {0})
    for _ in range(200):
        p.bob.transport.send(0, b"x")
    assert eventually(lambda: relay.dropped().get("bob", {}).get("from: too many", 0) > 100)
    assert len(p.ann.came) < 100


@pytest.mark.slow
def test_a_relay_that_comes_back_or_another_is_used(people, relay_of):
    first, second = relay_of(), relay_of("mail", begin=False)
    p = people("ann", "bob", hidden=("ann", "bob"), each={"relays": [first, second]})
    assert still_works(p.ann, p.bob)
    first.close()
    assert eventually(lambda: not p.ann.transport.alive())
    first.open()
    assert still_works(p.ann, p.bob)
    first.close()
    second.open()
    assert still_works(p.ann, p.bob)


@pytest.mark.slow
def test_who_cannot_be_reached_at_its_endpoint_is_reached_through_a_relay(people, relay, authority, closing):
    """Two behind routers: each has an endpoint that is good for nobody else."""
    contacts = [contact_of(name, free_endpoint()) for name in ("ann", "bob")]
    wrong = [contact_of(contact.name, free_endpoint()) for contact in contacts]
    ann, bob = (
        closing(transport_of(authority, contact, wrong, relays=[relay], endpoint=contact.endpoint))
        for contact in contacts
    )
    came = []
    ann.open(lambda owner, payload: came.append(owner))
    bob.open(lambda owner, payload: None)
    ann.link(wrong)
    bob.link(wrong)
    assert eventually(lambda: came, lambda: bob.send(0, b"x"))


def test_a_relay_hands_lists_on(people, relay, bare, authority):
    rosters = []
    relay.listen(rosters.append)
    relay.keep_roster(b"the relay's")
    relay.admit([contact_of("ann")])
    p = people("ann", hidden=("ann",), each={"relays": [relay]})
    bob = bare(relay.endpoint, authority.credentials("bob"))
    assert eventually(lambda: (LIST, b"the relay's") in bob.frames)
    bob.send(LIST, b"newer")
    assert eventually(lambda: rosters == [b"newer"])
    assert eventually(lambda: relay.alive() == {"ann"})
    relay.publish_roster(b"newer")
    assert eventually(lambda: p.ann.rosters == [b"newer"])


def test_a_relay_must_not_be_a_member(relay_of):
    with pytest.raises(ParameterError, match="must not have the name of a member"):
        relay_of("ann")
