"""Contract checks for transports of peers."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np

from ..core.arrays import EVERYONE
from ..peers.transport import Transport
from .shared import check_all, demand, promise

#: Seconds within which ``send`` of a transport must return.
MAX_SEND_SECONDS = 1.0


#: All checks of a transport, in order.
TRANSPORT_CHECKS: dict[str, Callable[[_Post], None]] = {}


class _Post:
    """Open transports, with an account of what was sent and received."""

    def __init__(
        self, make: Callable[[list[int]], dict[int, Transport]], message_bytes: int, patience: float, relayed: bool
    ):
        self.message_bytes, self.patience, self.relayed = message_bytes, patience, relayed
        self.members = make([3, 0, 7])
        self.linked: dict[int, list[int]] = {address: [] for address in self.members}
        self.may_come: Counter[tuple[int, int, bytes]] = Counter()  # receiver, sender, payload
        self.came: Counter[tuple[int, int, bytes]] = Counter()
        self.rosters: dict[int, list[bytes]] = {address: [] for address in self.members}
        self.news = threading.Condition()
        self.number = 0
        for address in self.members:
            self.open(address)

    def open(self, address: int, also: Callable[[int, bytes], None] | None = None) -> None:
        def deliver(owner: int, payload: bytes) -> None:
            with self.news:
                self.came[address, owner, payload] += 1
                self.news.notify_all()
            if also is not None:
                also(owner, payload)

        self.members[address].open(deliver, roster=self.rosters[address].append)

    def link(self, address: int, peers: list[int]) -> None:
        self.linked[address] = peers
        self.members[address].link(self.members[peer].contact for peer in peers)

    def fresh(self, size: int = 20) -> bytes:
        """Return a payload that was not used before."""
        self.number += 1
        return self.number.to_bytes(8, "big").ljust(size, b".")

    def send(self, sender: int, to: int, payload: bytes, arrives: bool = True) -> bytes:
        goals = self.linked[sender] if to == EVERYONE else [to]
        with self.news:
            self.may_come.update((goal, sender, payload) for goal in goals if arrives)
        start = time.monotonic()
        self.members[sender].send(to, payload)
        demand(time.monotonic() - start < MAX_SEND_SECONDS, "send waits")
        return payload

    def until(self, act: Callable[[], bytes], sender: int, goals: list[int], promise: str) -> None:
        """Repeat until one message reaches all receivers, since messages may get lost while connections form."""
        end = time.monotonic() + self.patience
        while True:
            payload = act()
            again = time.monotonic() + 0.2
            with self.news:
                while not all(self.came[goal, sender, payload] for goal in goals) and time.monotonic() < again:
                    self.news.wait(again - time.monotonic())
                if all(self.came[goal, sender, payload] for goal in goals):
                    return
            demand(time.monotonic() < end, promise)

    def wait(self, missing: Callable[[], Any], promise: str, act: Callable[[], Any] = lambda: None) -> None:
        """Repeat until nothing is missing; a placeholder in `promise` shows what is missing when time runs out."""
        end = time.monotonic() + self.patience
        while left := missing():
            demand(time.monotonic() < end, promise.format(left))
            act()
            time.sleep(0.02)

    def reach(self, sender: int, goal: int, promise: str) -> None:
        self.until(lambda: self.send(sender, goal, self.fresh()), sender, [goal], promise)

    def reach_everyone(self, sender: int, promise: str) -> None:
        act = lambda: self.send(sender, EVERYONE, self.fresh())  # noqa: E731
        self.until(act, sender, self.linked[sender], promise)

    def arrived(self, owner: int | None, receiver: int) -> int:
        """Return how many messages reached a receiver; from one sender, if given."""
        with self.news:
            return sum(n for (to, by, _), n in self.came.items() if to == receiver and owner in (None, by))

    def close(self) -> None:
        """Close all transports, and check the account."""
        for member in self.members.values():
            member.close()
            member.close()
        for (receiver, owner, payload), times in self.came.items():
            what = f"a message of {len(payload)} bytes that reached {receiver} as from {owner}"
            demand(self.may_come[receiver, owner, payload] > 0, f"{what} was never sent")
            demand(times <= self.may_come[receiver, owner, payload], f"{what} arrived more often than it was sent")
        for address, member in self.members.items():
            received = self.arrived(None, address)
            demand(member.counts.get("received", 0) == received, "it counts other messages than it delivers")


@promise(TRANSPORT_CHECKS)
def _one_message_reaches_one(post: _Post) -> None:
    post.link(3, [0])
    for sender, goal in ((3, 0), (0, 3), (3, 7), (7, 0)):
        post.reach(sender, goal, f"no message from {sender} reaches {goal}, which is admitted")


@promise(TRANSPORT_CHECKS)
def _everyone_is_all_linked_and_nobody_else(post: _Post) -> None:
    for links in ([0], [0, 7], [7], [0, 7]):
        post.link(3, links)
        post.reach_everyone(3, f"no broadcast reaches all linked peers, {links}")
    post.link(0, [3])
    post.link(3, [7])  # 0 stays linked with 3
    post.reach_everyone(3, "no broadcast reaches the linked peer")
    post.reach_everyone(0, "no broadcast reaches a peer that is linked with others only")
    post.link(3, [])
    post.send(3, EVERYONE, post.fresh())
    post.reach(3, 0, "no message reaches a member that is no longer linked")


@promise(TRANSPORT_CHECKS)
def _bytes_arrive_unchanged(post: _Post) -> None:
    post.link(3, [0])
    noise = np.random.default_rng(0).bytes(post.message_bytes)
    for payload in (b"", b"\0", bytes(range(256)), noise[: post.message_bytes // 2], noise):
        for to in (0, EVERYONE):
            act = lambda to=to, payload=payload: post.send(3, to, payload)  # noqa: E731
            post.until(act, 3, [0], f"a message of {len(payload)} bytes does not arrive unchanged")


@promise(TRANSPORT_CHECKS)
def _too_long_messages_vanish(post: _Post) -> None:
    post.link(3, [0])
    post.reach(3, 0, "no message arrives")
    for size in (post.message_bytes + 1, 10 * post.message_bytes):
        for to in (0, 7, EVERYONE):
            post.send(3, to, post.fresh(size), arrives=False)
        post.reach(3, 0, "after a message that is too long, no other arrives")
        post.reach(3, 7, "after a message that is too long, no other arrives at a member that is not linked")


@promise(TRANSPORT_CHECKS)
def _absent_peers_do_not_matter(post: _Post) -> None:
    post.link(3, [0, 7])
    post.members[0].close()
    for to in (0, 99, EVERYONE):
        for _ in range(20):
            post.send(3, to, post.fresh())
    post.link(3, [7])
    for _ in range(20):
        post.send(3, 0, post.fresh())
    post.reach(3, 7, "no message reaches a peer while another is absent")


@promise(TRANSPORT_CHECKS)
def _closed_is_closed(post: _Post) -> None:
    post.link(3, [0])
    post.reach(3, 0, "no message arrives")
    member = post.members[3]
    member.close()
    member.close()
    for to in (0, 7, EVERYONE):
        post.send(3, to, post.fresh(), arrives=False)
    member.publish_roster(b"roster")
    post.link(3, [0, 7])
    demand(not member.alive(), "it reports peers as alive although it is closed")
    post.reach(7, 0, "no message arrives after another peer has closed")


@promise(TRANSPORT_CHECKS)
def _who_comes_back_is_reached(post: _Post) -> None:
    post.link(3, [0, 7])
    post.link(0, [3])
    post.reach_everyone(3, "no broadcast arrives")
    post.members[0].close()
    post.send(3, EVERYONE, post.fresh())
    post.open(0)
    post.reach_everyone(3, "no broadcast reaches a peer that came back")
    post.reach(3, 0, "no message reaches a peer that came back")
    post.reach_everyone(0, "no broadcast of a peer that came back arrives")


@promise(TRANSPORT_CHECKS)
def _callbacks_may_use_it(post: _Post) -> None:
    """Callbacks answer, relink and close inside deliver."""
    member = post.members[0]
    member.close()
    done = threading.Event()

    def answer(owner: int, payload: bytes) -> None:
        post.send(0, owner, payload)
        post.link(0, [owner])
        if payload.startswith(b"close"):
            member.close()
            done.set()

    post.open(0, also=answer)
    post.link(3, [0])

    def ask() -> bytes:
        return post.send(3, 0, post.fresh())

    post.until(ask, 0, [3], "no answer that is sent inside deliver arrives")
    close = lambda: post.send(3, 0, b"close" + post.fresh())  # noqa: E731
    post.wait(lambda: not done.is_set(), "it cannot be closed inside deliver", close)
    post.open(0)
    post.reach(3, 0, "it cannot be opened again after it was closed inside deliver")


@promise(TRANSPORT_CHECKS)
def _threads_may_share_it(post: _Post) -> None:
    post.link(3, [0, 7])
    post.reach_everyone(3, "no broadcast arrives")
    messages = [post.fresh() for _ in range(200)]
    for payload in messages:
        post.may_come.update((goal, 3, payload) for goal in (0, 7))
    faults: list[BaseException] = []

    def work(mine: list[bytes]) -> None:
        try:
            for payload in mine:
                post.members[3].send(EVERYONE, payload)
        except BaseException as fault:
            faults.append(fault)

    threads = [threading.Thread(target=work, args=(messages[k::4],)) for k in range(4)]
    for thread in threads:
        thread.start()
    post.link(3, [0, 7])  # changes nothing
    for thread in threads:
        thread.join()
    demand(not faults, f"sending from several threads fails: {faults[:1]}")
    post.reach_everyone(3, "no broadcast arrives after several threads have sent")
    for goal in (0, 7):
        arrived = sum(post.came[goal, 3, payload] > 0 for payload in messages)
        demand(arrived > 0, f"of {len(messages)} messages sent by several threads, none arrives")


@promise(TRANSPORT_CHECKS)
def _rosters_are_published(post: _Post) -> None:
    post.link(3, [0])
    publish = lambda: post.members[3].publish_roster(b"signed")  # noqa: E731
    post.wait(lambda: not post.rosters[0], "no roster reaches a linked peer", publish)
    demand(set(post.rosters[0]) == {b"signed"}, "a roster changes in transit")


@promise(TRANSPORT_CHECKS)
def _non_members_exchange_rosters_and_nothing_else(post: _Post) -> None:
    host, guest = post.members[0], post.members[7]
    host.admit([post.members[3].contact])
    host.keep_roster(b"of the host")
    guest.keep_roster(b"of the guest")
    post.link(7, [0])

    def missing() -> list[int]:
        return [k for k, roster in ((0, b"of the guest"), (7, b"of the host")) if roster not in post.rosters[k]]

    visit = lambda: post.send(7, 0, post.fresh())  # noqa: E731 - which may come when it is admitted
    post.wait(missing, "of a non-member and its host, {0[0]} does not get the other's roster", visit)
    demand(not post.arrived(7, 0), "a message of a non-member is delivered")
    host.admit([post.members[3].contact, guest.contact])
    post.reach(7, 0, "no message of a former non-member arrives after its admission")


@promise(TRANSPORT_CHECKS)
def _others_stay_connected(post: _Post) -> None:
    """While members come and go, no message between two others is lost."""
    post.link(3, [0])
    post.reach(3, 0, "no message arrives")
    contacts = {address: member.contact for address, member in post.members.items()}
    sent = []
    for links in ([0, 7], [0], [7, 0], [0]):
        post.link(3, links)
        post.members[0].admit([contacts[3], contacts[7]] if len(links) > 1 else [contacts[3]])
        for _ in range(10):
            sent.append(post.send(3, 0, post.fresh()))
            time.sleep(0.005)

    def lost() -> int:
        return sum(not post.came[0, 3, payload] for payload in sent)

    post.wait(lost, f"{{}} of {len(sent)} messages are lost while others come and go")


@promise(TRANSPORT_CHECKS)
def _revoked_certificates_are_refused(post: _Post) -> None:
    host, guest = post.members[0], post.members[7]
    if post.relayed or guest.serial is None:
        return  # a relay checks the certificates of its clients
    contacts = [post.members[3].contact, guest.contact]
    post.link(7, [0])
    post.reach(7, 0, "no message arrives")
    host.admit(contacts, revoked=[guest.serial])
    post.wait(lambda: 7 in host.alive(), "a connection outlives its certificate")
    before = post.arrived(7, 0)
    for _ in range(10):
        post.send(7, 0, post.fresh())
        time.sleep(0.03)
    demand(post.arrived(7, 0) == before, "a message arrives from a peer whose certificate is revoked")
    host.admit(contacts)
    post.reach(7, 0, "no message arrives when a certificate is valid again")


def check_transport(
    make: Callable[[list[int]], dict[int, Transport]],
    message_bytes: int = 200_000,
    patience: float = 20.0,
    relayed: bool = False,
) -> None:
    """Check the contract of a transport; see ``TRANSPORT_CHECKS``.

    Messages may get lost, so a message that must arrive is repeated until it does; at the end, the account is checked:
    every message that arrived was sent, by that owner, to that receiver, and arrived at most once.

    Parameters
    ----------
    Returns a transport for each address, not open yet, without links, on a common network, and with all members
    admitted. Called once for every check.
    message_bytes : int
        The longest message, in bytes.
    patience : float
        Seconds after which the check gives up on a message that must arrive.
    relayed : bool
        Whether the transports communicate through a relay only, and so do not see each other's certificates.

    Raises
    ------
    ContractError

    Examples
    --------
    >>> from coterie.peers.transport.memory import Exchange, Memory
    >>> from coterie.testing import check_transport
    >>> def make(addresses):
    ...     exchange = Exchange()
    ...     return {address: Memory(exchange, f"peer{address}", address) for address in addresses}
    >>> check_transport(make)
    """

    def on_new_ones(check: Callable[[_Post], None]) -> None:
        post = _Post(make, message_bytes, patience, relayed)
        try:
            check(post)
        except BaseException:
            for member in post.members.values():
                member.close()
            raise
        post.close()

    check_all(TRANSPORT_CHECKS, on_new_ones, "a transport")
