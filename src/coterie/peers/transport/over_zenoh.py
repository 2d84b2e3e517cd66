"""Letters between computers: Zenoh over mutual TLS, with access control by the names in the certificates.

A peer keeps one session: it listens, and connects to every linked neighbour that can be reached. A letter is put on

    coterie/<run>/to/<receiver>/<sender>

and a broadcast on one such key for each linked neighbour, so that who hears it is decided by the sender alone, also
where a relay stands between. Letters to members that are not linked go through sessions opened when they are needed.
A member without an address of its own, and everybody who writes to it, uses a client session to a relay.

Everything is denied that is not written below (:func:`_peer_rules`, :func:`_client_rules`, :func:`_relay_rules`): a
peer lets a member put only letters from itself to this peer, and subscribe only to its own letters. A relay may put
for everybody, so letters must be signed end to end. Access control and endpoints of a Zenoh session cannot
change while it runs; where they must, it is closed and opened again, which takes milliseconds and may lose letters.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import logging
import queue
import re
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from ...core.world import EVERYONE
from ...errors import MissingExtra, ParameterError
from ..identity import check_name, split_endpoint
from . import Contact, Deliver, DeliverRoster, Reachable

log = logging.getLogger("coterie")

RUN = re.compile(r"[A-Za-z0-9_-]{1,128}")

#: A peer that hangs, or is cut off, is missed after so many milliseconds.
LEASE = 5000
#: No message of any kind is longer, in bytes; Zenoh's own limit is 1 GiB.
MESSAGE_BYTES = 1 << 20
#: Bytes that the system may hold for one connection. Zenoh cannot give up a connection while it waits to write into it,
#: so what is sent in a lease to a peer that is cut off must fit in here, or it is missed only after many minutes.
SEND_BUFFER = 1 << 20
#: Letters that may wait for a connection to be opened; more are dropped.
WAITING = 256
#: Sessions to members that are not linked, and the seconds after which an idle one is closed.
SPARE_SESSIONS, IDLE = 8, 30.0
#: Milliseconds that connecting may take, and seconds to leave an unreachable member alone.
CONNECT, PAUSE = 2000, 5.0


class Credentials(NamedTuple):
    """The files that prove who I am: PEM, as in a peer's folder."""

    key: Path
    certificate: Path
    authority: Path

    @classmethod
    def of(cls, folder: str | Path) -> Credentials:
        """Those in a folder."""
        return cls(Path(folder) / "tls.key", Path(folder) / "tls.crt", Path(folder) / "ca.crt")


def _zenoh() -> Any:
    try:
        import zenoh
    except ImportError as error:
        raise MissingExtra('peers on a network need Zenoh: pip install "coterie[network]"') from error
    return zenoh


# -- configurations ---------------------------------------------------------------------------------------------------


class _Wire(NamedTuple):
    """How a member connects at all: what all its sessions have in common."""

    run: str
    name: str
    credentials: Credentials | None  # None: insecure, on this computer only
    letter_bytes: int

    def check(self) -> None:
        _zenoh()
        if not RUN.fullmatch(self.run):
            raise ParameterError(f"a run is named by letters, digits, - and _, not {self.run!r}")
        check_name(self.name)  # names become parts of keys: a star in one would be a key to others' letters
        if not 0 < self.letter_bytes <= MESSAGE_BYTES // 2:
            raise ParameterError(f"letter_bytes must lie in 1..{MESSAGE_BYTES // 2}, not {self.letter_bytes}")
        for file in self.credentials or ():
            if not file.is_file():
                raise ParameterError(f"there is no {file}: has {self.name} joined the group?")

    def locator(self, endpoint: str) -> str:
        """An endpoint as Zenoh writes it."""
        host, _ = split_endpoint(endpoint)
        if self.credentials is not None:
            return f"tls/{endpoint}"
        with contextlib.suppress(ValueError):
            if ipaddress.ip_address(host).is_loopback:
                return f"tcp/{endpoint}"
        raise ParameterError(f"without TLS only loopback addresses such as 127.0.0.1 are allowed, not {endpoint!r}")

    def key(self, *parts: str) -> str:
        return "/".join(("coterie", self.run, *parts))

    def config(self, mode: str, listen: str | None, connect: Iterable[str], rules: Iterable[_Rule]) -> str:
        """The configuration of a session, as text: equal texts, equal sessions."""
        link: dict[str, Any] = {
            "protocols": ["tcp" if self.credentials is None else "tls"],
            "tx": {"lease": LEASE},
            "rx": {"max_message_size": MESSAGE_BYTES},
            "tcp": {"so_sndbuf": SEND_BUFFER},
        }
        config: dict[str, Any] = {
            "mode": mode,
            "listen": {"endpoints": [] if listen is None else [self.locator(listen)]},
            "connect": {
                "endpoints": [self.locator(endpoint) for endpoint in connect],
                # A client waits for this in open(), so it tries once; a peer tries in the background, for ever.
                "timeout_ms": 0 if mode == "client" else -1,
                "exit_on_failure": mode == "client",
                "retry": {"period_init_ms": 500, "period_max_ms": 4000},
            },
            # No delay: it would only make open() wait for peers that may not be there.
            "scouting": {"delay": 0, "multicast": {"enabled": False}, "gossip": {"enabled": False}},
            "transport": {
                "shared_memory": {"enabled": False},
                "unicast": {"open_timeout": CONNECT, "accept_timeout": CONNECT},
                "link": link,
            },
            "low_pass_filter": [
                {
                    "id": "letters",
                    "flows": ["ingress"],
                    "messages": ["put", "delete", "query", "reply"],
                    "key_exprs": ["**"],
                    "size_limit": self.letter_bytes,
                }
            ],
        }
        if self.credentials is not None:
            key, certificate, authority = (str(file) for file in self.credentials)
            link["tls"] = {
                "so_sndbuf": SEND_BUFFER,
                "root_ca_certificate": authority,
                "enable_mtls": True,
                "listen_private_key": key,
                "listen_certificate": certificate,
                "connect_private_key": key,
                "connect_certificate": certificate,
                "verify_name_on_connect": True,
                "close_link_on_expiration": True,
            }
            config["access_control"] = _access(rules)
        return json.dumps(config)


class _Rule(NamedTuple):
    """What the holder of a certificate may do: messages on keys, coming in from it or going out to it."""

    holder: str
    flow: str
    messages: tuple[str, ...]
    keys: tuple[str, ...]


IN, OUT = "ingress", "egress"
#: Whoever has a certificate of our authority: no member can have a name with a space in it.
ANYONE = "any one"
LISTEN, TOKEN = ("declare_subscriber",), ("liveliness_token",)
WATCH = ("declare_liveliness_subscriber", "liveliness_query")
ANYTHING = ("put", "delete", "declare_subscriber", *TOKEN, *WATCH)


def _access(rules: Iterable[_Rule]) -> dict[str, Any]:
    """Access control as Zenoh wants it: all is denied, but for these rules."""
    rules = list(rules)
    holders: dict[str, list[str]] = {}
    for number, rule in enumerate(rules):
        holders.setdefault(rule.holder, []).append(f"rule {number}")
    if not holders:  # Zenoh wants at least one; no certificate has an empty name
        return {"enabled": True, "default_permission": "deny", "rules": [], "subjects": [], "policies": []}
    return {
        "enabled": True,
        "default_permission": "deny",
        "rules": [
            {
                "id": f"rule {number}",
                "permission": "allow",
                "flows": [rule.flow],
                "messages": list(rule.messages),
                "key_exprs": list(rule.keys),
            }
            for number, rule in enumerate(rules)
        ],
        "subjects": [
            {"id": holder} if holder == ANYONE else {"id": holder, "cert_common_names": [holder]} for holder in holders
        ],
        "policies": [{"subjects": [holder], "rules": numbers} for holder, numbers in holders.items()],
    }


def _peer_rules(wire: _Wire, members: Iterable[str]) -> Iterator[_Rule]:
    """A peer, with those that connect to it and to which it connects."""
    key, me = wire.key, wire.name
    # A new member brings the roster that it is in: nobody knows it yet. It is signed, and nothing else is let in.
    yield _Rule(ANYONE, IN, ("put", *LISTEN), (key("roster", "*"),))
    yield _Rule(ANYONE, OUT, LISTEN, (key("roster", "*"),))
    for j in members:
        yield _Rule(j, IN, ("put",), (key("to", me, j), key("roster", j)))
        yield _Rule(j, IN, LISTEN, (key("to", j, "*"), key("roster", "*")))
        yield _Rule(j, IN, TOKEN, (key("alive", j),))
        yield _Rule(j, IN, WATCH, (key("alive", "*"),))
        # Going out too: while a connection is young, Zenoh sends everything, wanted or not.
        yield _Rule(j, OUT, ("put",), (key("to", j, me), key("roster", me)))
        yield _Rule(j, OUT, LISTEN, (key("to", me, "*"), key("roster", "*")))
        yield _Rule(j, OUT, TOKEN, (key("alive", me),))
        yield _Rule(j, OUT, WATCH, (key("alive", "*"),))


def _client_rules(wire: _Wire, relays: Iterable[str]) -> Iterator[_Rule]:
    """A member, with the relays it goes through."""
    key, me = wire.key, wire.name
    for relay in relays:
        yield _Rule(relay, IN, ("put",), (key("to", me, "*"), key("roster", "*")))
        yield _Rule(relay, IN, LISTEN, (key("to", "*", "*"), key("roster", "*")))
        yield _Rule(relay, IN, (*TOKEN, *WATCH), (key("alive", "*"),))
        yield _Rule(relay, OUT, ("put",), (key("to", "*", me), key("roster", me)))
        yield _Rule(relay, OUT, LISTEN, (key("to", me, "*"), key("roster", "*")))
        yield _Rule(relay, OUT, TOKEN, (key("alive", me),))
        yield _Rule(relay, OUT, WATCH, (key("alive", "*"),))


def _relay_rules(wire: _Wire, members: Iterable[str], relays: Iterable[str]) -> Iterator[_Rule]:
    """A relay, with the members that it serves and with other relays."""
    key = wire.key
    yield _Rule(ANYONE, IN, ("put", *LISTEN), (key("roster", "*"),))
    yield _Rule(ANYONE, OUT, ("put", *LISTEN), (key("roster", "*"),))
    for j in members:
        yield _Rule(j, IN, ("put",), (key("to", "*", j), key("roster", j)))
        yield _Rule(j, IN, LISTEN, (key("to", j, "*"), key("roster", "*")))
        yield _Rule(j, IN, TOKEN, (key("alive", j),))
        yield _Rule(j, IN, WATCH, (key("alive", "*"),))
        yield _Rule(j, OUT, ("put",), (key("to", j, "*"), key("roster", "*")))
        yield _Rule(j, OUT, LISTEN, (key("to", "*", "*"), key("roster", "*")))
        yield _Rule(j, OUT, (*TOKEN, *WATCH), (key("alive", "*"),))
    for other in relays:
        for flow in (IN, OUT):
            yield _Rule(other, flow, ANYTHING, (key("**"),))


# -- sessions ---------------------------------------------------------------------------------------------------------


def _shut(session: Any) -> None:
    try:
        session.close()
    except Exception as error:  # it does raise at times, and there is nothing left to do about it
        log.debug("a session did not close: %s", error)


def _reason(error: Exception) -> str:
    """What Zenoh says, in words for people."""
    text = re.sub(r"\s+at\s+\S+\.rs:\d+\.?", "", str(error))
    for number, words in (("98", "another program has this port"), ("99", "this is not an address of this computer")):
        if f"os error {number}" in text:
            return words
    return text


class _Watch(NamedTuple):
    """What belongs to one session: names seen alive on it, changed as they come and go, and my own sign of life."""

    seen: set[str]
    token: Any = None  # held, because one that nobody holds is taken back


class _Line:
    """One session that is kept open as it should be now.

    A thread of its own opens and closes, so that whoever asks for a change, perhaps inside a callback of this very
    session, never waits for it.
    """

    def __init__(
        self, title: str, wanted: Callable[[], list[str]], start: Callable[[Any], _Watch], watched: bool = False
    ):
        self._title, self._wanted, self._start, self._watched = title, wanted, start, watched
        self._session: Any = None
        self._is: str | None = None
        self._watch = _Watch(set())
        self._change = threading.Event()
        self._ended = False
        self._thread: threading.Thread | None = None

    def open(self, now: bool) -> None:
        """Begin; with ``now``, the first session is opened before this returns, or its error raised."""
        end = time.monotonic() + 0.5  # the last session of the same name may be closing at this moment
        while now and (wanted := self._wanted()):
            try:
                self._swap(wanted[0])
                break
            except Exception:
                if time.monotonic() > end:
                    raise
                time.sleep(0.05)
        self._change.set()
        self._thread = threading.Thread(target=self._keep, name=f"coterie-{self._title}", daemon=True)
        self._thread.start()

    def refresh(self) -> None:
        """Something changed that may need another session."""
        self._change.set()

    def put(self, key: str, payload: bytes) -> bool:
        session = self._session
        if session is None:
            return False
        try:
            session.put(key, payload)
        except Exception as error:  # closed at this moment
            log.debug("a letter was lost on %s: %s", self._title, error)
            return False
        return True

    def seen(self) -> set[str]:
        return set(self._watch.seen)  # copied in one step: other threads change it

    def close(self, wait: bool) -> None:
        self._ended = True
        self._change.set()
        if wait and self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()

    def _swap(self, config: str | None) -> None:
        old, self._session, self._is, self._watch = self._session, None, None, _Watch(set())
        if old is not None:
            _shut(old)
        if config is not None:
            zenoh = _zenoh()
            session = zenoh.open(zenoh.Config.from_json5(config))
            try:
                self._watch = self._start(session)
            except BaseException:
                _shut(session)
                raise
            self._session, self._is = session, config

    def _one_of(self, wanted: list[str], tries: int) -> bool:
        """Whether one of these could be opened."""
        for config in wanted:
            try:
                self._swap(config)
                return True
            except Exception as error:
                # The first times are the system's, which frees a port a moment after it was closed.
                log.log(
                    logging.WARNING if tries == 5 else logging.DEBUG,
                    "%s has no session: %s",
                    self._title,
                    _reason(error),
                )
            if self._ended:
                break
        if not wanted:
            self._swap(None)
        return not wanted

    def _keep(self) -> None:
        tries = 0
        while True:
            self._change.wait(min(0.05 * 2**tries, 4.0) if tries else 0.5 if self._watched else None)
            self._change.clear()
            if self._ended:
                break
            if self._watched and self._session is not None and not _connected(self._session):
                self._swap(None)
            wanted = self._wanted()
            if self._is in wanted or (not wanted and self._is is None):
                tries = 0
                continue
            tries = 0 if self._one_of(wanted, tries) else min(tries + 1, 10)
        self._swap(None)


class _Errand(NamedTuple):
    name: str
    config: str
    key: str
    payload: bytes


class _Dialler:
    """Letters to members that are not linked: a client session straight to each, the last few kept for a while."""

    def __init__(self, count: Callable[[str], None]):
        self._count = count
        self._errands: queue.Queue[_Errand | None] = queue.Queue(WAITING)
        self._sessions: OrderedDict[str, tuple[Any, str, float]] = OrderedDict()  # by name, the last used at the end
        self._leave_alone: dict[str, float] = {}
        self._ended = False
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()

    def send(self, errand: _Errand) -> str:
        with self._lock:
            if self._ended:
                return "dropped: closed"
            if self._thread is None:  # most peers never need it
                self._thread = threading.Thread(target=self._serve, name="coterie-dialler", daemon=True)
                self._thread.start()
        if self._leave_alone.get(errand.name, 0.0) > time.monotonic():
            return "dropped: unreachable"
        try:
            self._errands.put_nowait(errand)
        except queue.Full:
            return "dropped: queue full"
        return ""  # counted when it goes

    def close(self, wait: bool) -> None:
        with self._lock:
            self._ended = True
        with contextlib.suppress(queue.Full):
            self._errands.put_nowait(None)  # if full, the thread is busy and looks at _ended by itself
        if wait and self._thread is not None:
            self._thread.join()

    def _serve(self) -> None:
        while not self._ended:
            try:
                errand = self._errands.get(timeout=1.0)
            except queue.Empty:
                errand = None
            if errand is not None and not self._ended:
                self._count(self._run(errand))
            now = time.monotonic()
            while self._sessions and now - next(iter(self._sessions.values()))[2] > IDLE:
                _shut(self._sessions.popitem(last=False)[1][0])
        for session, _, _ in self._sessions.values():
            _shut(session)
        self._sessions.clear()

    def _run(self, errand: _Errand) -> str:
        now = time.monotonic()
        if self._leave_alone.get(errand.name, 0.0) > now:
            return "dropped: unreachable"
        session, config, _ = self._sessions.pop(errand.name, (None, "", 0.0))
        try:
            if session is not None and (config != errand.config or not _connected(session)):
                _shut(session)
                session = None
            if session is None:
                zenoh = _zenoh()
                session = zenoh.open(zenoh.Config.from_json5(errand.config))
                self._leave_alone.pop(errand.name, None)
            session.put(errand.key, errand.payload)
        except Exception as error:
            log.debug("%s cannot be reached: %s", errand.name, error)
            if session is not None:
                _shut(session)
            self._leave_alone[errand.name] = time.monotonic() + PAUSE
            return "dropped: unreachable"
        self._sessions[errand.name] = session, errand.config, time.monotonic()
        if len(self._sessions) > SPARE_SESSIONS:
            _shut(self._sessions.popitem(last=False)[1][0])
        return "sent"


def _connected(session: Any) -> bool:
    info = session.info
    return bool(info.peers_zid() or info.routers_zid())


# -- the transport ----------------------------------------------------------------------------------------------------


class ZenohTransport:
    """Letters over Zenoh and mutual TLS. Keeps the contract of :class:`Transport`."""

    def __init__(
        self,
        run: str,
        name: str,
        address: int,
        listen: str | None,
        folder: str | Path | None = None,
        *,
        credentials: Credentials | None = None,
        contacts: Iterable[Contact] = (),
        relays: Iterable[Reachable] = (),
        endpoint: str | None = None,
        letter_bytes: int = 200_000,
        insecure_loopback: bool = False,
    ):
        self._wire = _Wire(run, name, _credentials(folder, credentials, insecure_loopback), letter_bytes)
        self._wire.check()
        self._listen = listen
        self.contact = Contact(name, address, endpoint or listen)
        for place in (listen, self.contact.endpoint):
            if place is not None:
                self._wire.locator(place)
        self._relays = _relays(self._wire, relays)
        self._admitted: dict[int, Contact] = {}
        self._linked: dict[int, Contact] = {}
        self._known: dict[int, Contact] = {}
        self._addresses: dict[str, int] = {}
        self._changing = threading.Lock()
        self._deliver: Deliver | None = None
        self._roster: DeliverRoster | None = None
        self._receiving = threading.RLock()  # held while a letter is delivered, so that close can wait for it
        self._inside = threading.local()
        self._counts: Counter[str] = Counter()
        self._counting = threading.Lock()
        self._main: _Line | None = None
        self._relayed: _Line | None = None
        self._dialler: _Dialler | None = None
        self.admit(contacts)

    @property
    def counts(self) -> dict[str, int]:
        """How many letters were sent, received, and dropped by reason."""
        with self._counting:
            return dict(self._counts)

    def open(self, deliver: Deliver, roster: DeliverRoster | None = None) -> None:
        """Listen, and connect to the linked neighbours."""
        with self._changing:
            if self._deliver is not None:
                raise ParameterError(f"{self.contact.name} is open already")
            self._deliver, self._roster = deliver, roster
            title = self.contact.name
            self._dialler = _Dialler(self._count)
            self._main = _Line(title, self._wanted_main, self._start)
            self._relayed = self._relay_line() if self._relays else None
            try:
                self._main.open(now=True)
            except Exception as error:
                self._deliver = self._roster = self._main = self._relayed = self._dialler = None
                what = self._listen or "a connection"
                raise ParameterError(f"{title} cannot open {what}: {_reason(error)}") from error
            if self._relayed is not None:
                self._relayed.open(now=False)

    def admit(self, contacts: Iterable[Contact]) -> None:
        """Whom to let in, and to whom letters may go. Reopens the session if that changed."""
        self._know(admitted=self._checked(contacts))

    def link(self, contacts: Iterable[Contact]) -> None:
        """Neighbours to stay connected with. Reopens the session if that takes other connections than before."""
        self._know(linked=self._checked(contacts))

    def send(self, to: int, payload: bytes) -> None:
        """Send a letter, at most once."""
        payload = bytes(payload)
        for contact in list(self._linked.values()) if to == EVERYONE else [self._known.get(to)]:
            outcome = self._sent(contact, payload)
            if outcome:
                self._count(outcome)

    def publish_roster(self, signed: bytes, to: int = EVERYONE) -> None:
        """Give a signed roster to everybody connected with me or with my relay; or at least to one member."""
        contact, main = self._known.get(to), self._main
        key = self._wire.key("roster", self.contact.name)
        if contact is not None and main is not None and self._dialler is not None and self._afar(contact, main):
            self._count(self._dialled(self._dialler, contact, key, bytes(signed)) or "rosters")
            return
        for line in (main, self._relayed):
            if line is not None:
                line.put(key, bytes(signed))

    def use_relays(self, relays: Iterable[Reachable]) -> None:
        """Relays to go through, instead of those of before."""
        found = _relays(self._wire, relays)
        with self._changing:
            if found == self._relays:
                return
            self._relays = found
            line = self._relayed
            if line is None and self._main is not None:
                line = self._relayed = self._relay_line()
                line.open(now=False)
        if line is not None:
            line.refresh()
        if self._main is not None:
            self._main.refresh()

    def _afar(self, contact: Contact, main: _Line) -> bool:
        """Whether a member can be reached, but by a session of its own."""
        if contact.endpoint is None or self._through_relay(contact):
            return False
        return contact.address not in self._linked and contact.name not in main.seen()

    def _relay_line(self) -> _Line:
        return _Line(f"{self.contact.name}-relayed", self._wanted_relayed, self._start, watched=True)

    def _dialled(self, dialler: _Dialler, contact: Contact, key: str, payload: bytes) -> str:
        """Put something on a key of a member that is not linked."""
        mine = self._wire.key("to", contact.name, self.contact.name), self._wire.key("roster", self.contact.name)
        rules = [_Rule(contact.name, OUT, ("put",), mine)]
        config = self._wire.config("client", None, [contact.endpoint or ""], rules)
        return dialler.send(_Errand(contact.name, config, key, payload))

    def alive(self) -> set[int]:
        """Members with which there is a connection now, straight or through a relay."""
        names: set[str] = set()
        for line in (self._main, self._relayed):
            names |= set() if line is None else line.seen()
        return {self._addresses[name] for name in names if name in self._addresses}

    def close(self) -> None:
        """Stop. Twice is fine; never raises."""
        with self._receiving:
            self._deliver = self._roster = None
        with self._changing:
            parts = (self._main, self._relayed, self._dialler)
            self._main = self._relayed = self._dialler = None
        # A session waits for its callbacks when it closes: from inside one, do not wait for the session.
        wait = not getattr(self._inside, "callback", False)
        for part in parts:
            if part is not None:
                try:
                    part.close(wait)
                except Exception:
                    log.exception("%s did not close", self.contact.name)

    # -- who there is

    def _checked(self, contacts: Iterable[Contact]) -> dict[int, Contact]:
        found: dict[int, Contact] = {}
        for contact in contacts:
            if contact.address == self.contact.address:
                continue
            check_name(contact.name)
            if contact.name == self.contact.name:
                raise ParameterError(f"{contact.name} is my own name, and belongs to address {self.contact.address}")
            if contact.endpoint is not None:
                self._wire.locator(contact.endpoint)
            found[contact.address] = Contact(contact.name, contact.address, contact.endpoint)
        return found

    def _know(self, admitted: dict[int, Contact] | None = None, linked: dict[int, Contact] | None = None) -> None:
        with self._changing:
            self._admitted = self._admitted if admitted is None else admitted
            self._linked = self._linked if linked is None else linked
            self._known = {**self._admitted, **self._linked}
            self._addresses = {contact.name: address for address, contact in self._known.items()}
            lines = (self._main, self._relayed)
        for line in lines:
            if line is not None:
                line.refresh()

    def _through_relay(self, contact: Contact) -> bool:
        return bool(self._relays) and (contact.endpoint is None or self._listen is None)

    # -- sessions

    def _wanted_main(self) -> list[str]:
        if self._listen is None and self._relays:
            return []
        names = sorted(contact.name for contact in self._known.values())
        ends = {contact.endpoint for contact in self._linked.values() if contact.endpoint is not None}
        return [self._wire.config("peer", self._listen, sorted(ends), _peer_rules(self._wire, names))]

    def _wanted_relayed(self) -> list[str]:
        rules = list(_client_rules(self._wire, [relay.name for relay in self._relays]))
        return [self._wire.config("client", None, [relay.endpoint or ""], rules) for relay in self._relays]

    def _start(self, session: Any) -> _Watch:
        """Declare what a session is for: my letters, rosters, and who is alive."""
        key, me = self._wire.key, self.contact.name
        gone = _zenoh().SampleKind.DELETE
        seen: set[str] = set()

        def notice(sample: Any) -> None:
            name = str(sample.key_expr).rpartition("/")[2]
            if name != me:
                (seen.discard if sample.kind == gone else seen.add)(name)

        session.declare_subscriber(key("to", me, "*"), self._take)
        session.declare_subscriber(key("roster", "*"), self._take_roster)
        session.liveliness().declare_subscriber(key("alive", "*"), notice, history=True)
        return _Watch(seen, session.liveliness().declare_token(key("alive", me)))

    # -- letters

    def _sent(self, contact: Contact | None, payload: bytes) -> str:
        """What became of a letter; nothing if that is counted later."""
        main, relayed, dialler = self._main, self._relayed, self._dialler
        if main is None or dialler is None:
            return "dropped: closed"
        if contact is None:
            return "dropped: unknown address"
        if len(payload) > self._wire.letter_bytes:
            return "dropped: too large"
        key = self._wire.key("to", contact.name, self.contact.name)
        if relayed is not None and self._through_relay(contact):
            return "sent" if relayed.put(key, payload) else "dropped: no connection"
        if contact.address in self._linked or contact.name in main.seen():
            return "sent" if main.put(key, payload) else "dropped: no connection"
        if contact.endpoint is None:
            return "dropped: unreachable"
        return self._dialled(dialler, contact, key, payload)

    def _take(self, sample: Any) -> None:
        key, payload = str(sample.key_expr), sample.payload.to_bytes()
        address = self._addresses.get(key.rpartition("/")[2])
        if sample.kind != _zenoh().SampleKind.PUT:
            self._count("dropped: not a letter")
        elif address is None:
            self._count("dropped: not admitted")
        elif len(payload) > self._wire.letter_bytes:
            self._count("dropped: too large")
        else:
            self._hand(self._deliver_one, address, payload)

    def _deliver_one(self, address: int, payload: bytes) -> None:
        if self._deliver is not None:
            self._count("received")
            self._deliver(address, payload)

    def _take_roster(self, sample: Any) -> None:
        signed = sample.payload.to_bytes()
        self._hand(self._deliver_roster, signed)

    def _deliver_roster(self, signed: bytes) -> None:
        if self._roster is not None:
            self._roster(signed)

    def _hand(self, act: Callable[..., None], *what: Any) -> None:
        """Call back, one at a time; an error there must not end the session's own thread."""
        with self._receiving:
            self._inside.callback = True
            try:
                act(*what)
            except Exception:
                log.exception("%s could not take a letter", self.contact.name)
                self._count("dropped: deliver failed")
            finally:
                self._inside.callback = False

    def _count(self, what: str) -> None:
        with self._counting:
            self._counts[what] += 1


def _credentials(folder: str | Path | None, credentials: Credentials | None, insecure: bool) -> Credentials | None:
    if insecure:
        if folder is not None or credentials is not None:
            raise ParameterError("insecure_loopback uses no certificates: give the one or the others")
        return None
    if credentials is None and folder is None:
        raise ParameterError("give the folder with tls.key, tls.crt and ca.crt, or credentials=Credentials(...)")
    return credentials if credentials is not None else Credentials.of(folder or "")


def _relays(wire: _Wire, relays: Iterable[Reachable]) -> list[Contact]:
    found = []
    for relay in relays:
        check_name(relay.name)
        if relay.endpoint is None:
            raise ParameterError(f"relay {relay.name} has no endpoint")
        wire.locator(relay.endpoint)
        found.append(Contact(relay.name, -1, relay.endpoint))
    return found


class ZenohRelay:
    """A program that forwards letters between members that cannot connect to each other.

    It sees who writes to whom, and letters as they are; it can drop them, but not forge them, because they are signed.
    Its certificate must not have the name of a member.
    """

    def __init__(
        self,
        run: str,
        name: str,
        listen: str,
        folder: str | Path | None = None,
        *,
        credentials: Credentials | None = None,
        contacts: Iterable[Contact] = (),
        relays: Iterable[Reachable] = (),
        letter_bytes: int = 200_000,
        insecure_loopback: bool = False,
    ):
        self._wire = _Wire(run, name, _credentials(folder, credentials, insecure_loopback), letter_bytes)
        self._wire.check()
        self._listen = listen
        self._wire.locator(listen)
        self._relays = _relays(self._wire, relays)
        self._line: _Line | None = None
        self._roster: DeliverRoster | None = None
        self._names: list[str] = []
        self.admit(contacts)

    def admit(self, contacts: Iterable[Contact]) -> None:
        """Whom to serve, instead of those of before."""
        names = sorted({contact.name for contact in contacts})
        for name in names:
            check_name(name)
        if self._wire.name in names:
            raise ParameterError(f"a relay must not have the name of a member: {self._wire.name}")
        self._names = names
        if self._line is not None:
            self._line.refresh()

    def open(self) -> None:
        """Listen, and forward in the background."""
        if self._line is not None:
            raise ParameterError(f"{self._wire.name} is open already")
        self._line = _Line(self._wire.name, self._wanted, self._start)
        try:
            self._line.open(now=True)
        except Exception as error:
            self._line = None
            raise ParameterError(f"{self._wire.name} cannot open {self._listen}: {_reason(error)}") from error

    def listen(self, roster: DeliverRoster) -> None:
        """Call a function with every signed roster that is published. Unchecked: verify it."""
        self._roster = roster

    def _take_roster(self, sample: Any) -> None:
        if self._roster is not None:
            self._roster(sample.payload.to_bytes())

    def alive(self) -> set[str]:
        """Names of the members that are connected."""
        return set() if self._line is None else self._line.seen()

    def close(self) -> None:
        """Stop. Twice is fine; never raises."""
        line, self._line = self._line, None
        if line is not None:
            line.close(wait=True)

    def __enter__(self) -> Self:
        self.open()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _wanted(self) -> list[str]:
        rules = _relay_rules(self._wire, self._names, [relay.name for relay in self._relays])
        return [self._wire.config("router", self._listen, [relay.endpoint or "" for relay in self._relays], rules)]

    def _start(self, session: Any) -> _Watch:
        gone = _zenoh().SampleKind.DELETE
        seen: set[str] = set()

        def notice(sample: Any) -> None:
            name = str(sample.key_expr).rpartition("/")[2]
            (seen.discard if sample.kind == gone else seen.add)(name)

        session.declare_subscriber(self._wire.key("roster", "*"), self._take_roster)
        session.liveliness().declare_subscriber(self._wire.key("alive", "*"), notice, history=True)
        return _Watch(seen)
