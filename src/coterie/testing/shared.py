"""Parts common to all contract checks: demands, lists of checks, replays on one host, and peers that exchange bytes."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ..core import loop
from ..core.arrays import NEEDS_ROOM, REFUSED, AgentArrays, new_outbox, stored_once
from ..engines.arrays import arrays_of, part_of
from ..engines.conditions import Conditions
from ..engines.peer import Peer
from ..errors import ContractError
from ..privacy import Ledger
from ..problem import Problem

#: Conditions with late, lost, duplicated and reordered messages, and with agents that are away.
BAD_CONDITIONS = Conditions(
    latency=1.5, jitter=1.0, loss=0.2, duplication=0.2, outages=[(0, 5.0, 40.0), (2, 20.0, 60.0)]
)


def demand(kept: bool | np.bool_, promise: str) -> None:
    """Raise a :class:`~coterie.errors.ContractError` with the broken promise, unless it is kept."""
    if not kept:
        raise ContractError(promise)


def promise(checks: dict[str, Callable[[Any], None]], concerns: Callable[[Any], Any] | None = None) -> Any:
    """Register a check under the name of the promise. `concerns` selects the subjects to check; default: all."""

    def add(check: Callable[[Any], None]) -> Callable[[Any], None]:
        @functools.wraps(check)
        def checked(subject: Any) -> None:
            if concerns is None or concerns(subject):
                check(subject)

        checks[check.__name__.strip("_").replace("_", " ")] = checked
        return checked

    return add


def check_all(checks: dict[str, Callable[[Any], None]], make: Callable[[Callable[..., None]], None], name: str) -> None:
    """Run all checks, and name the promise that is broken."""
    for promise, check in checks.items():
        try:
            make(check)
        except ContractError as broken:
            raise ContractError(f"{name} breaks a promise, {promise!r}: {broken}") from None


class Hosted(NamedTuple):
    """Final state of a replay on one host."""

    arrays: AgentArrays
    own: Any
    edge: Any
    account: np.ndarray


def hosted(method: Any, problem: Problem, start: np.ndarray, events: Any, compiled: bool, once: bool = False) -> Hosted:
    """Replay events (waking agents, neighbours, random numbers, times) on one host, compiled or in plain Python."""
    arrays = arrays_of(problem, spare=method.edges.spare, once=once, batch=method.training.batch)
    own, edge = stored_once(method, arrays, start) if once else method.start(arrays, start)
    outbox, egress = new_outbox(method, arrays, problem.p, method.traffic.max_messages), loop.new_egress(0, 1)
    account, run, done = loop.new_account(method), loop.run if compiled else loop.run.python, 0
    loop.meet(method, arrays, own, edge, outbox, egress, account, run)
    while done < len(events[0]):
        rest = (part[done:] for part in events)
        done += run(method, arrays, own, edge, *rest, outbox, egress, account, loop.NO_LIMIT)
        demand(
            not outbox.cursor[REFUSED],
            f"it posts more than max_messages = {method.traffic.max_messages} messages in one event, or one of more "
            f"than {outbox.text.shape[1]} numbers",
        )
        if outbox.cursor[NEEDS_ROOM]:
            arrays, edge = loop.widen(method, arrays, edge, outbox)
    return Hosted(arrays, own, edge, account)


def arrays(state: Any) -> list[np.ndarray]:
    """Return all arrays in a state."""
    return [leaf for part in state for leaf in (arrays(part) if isinstance(part, tuple) else [part])]


def same(one: Any, other: Any) -> bool:
    """Return whether two states are equal bit for bit."""
    pairs = zip(arrays(one), arrays(other), strict=True)
    return all(np.array_equal(a, b, equal_nan=True) for a, b in pairs)


class Crowd:
    """Peers that exchange encoded bytes, with an account; ``look(peer, message)`` is called for each posted message."""

    def __init__(
        self, method: Any, arrays: AgentArrays, start: np.ndarray, look: Callable[[Peer, Any], None] | None = None
    ):
        plan = method.privacy.plan
        self.ledgers = [None if plan is None else Ledger(plan) for _ in start]
        self.peers = [Peer(method, part_of(arrays, i, i + 1), start[i], self.ledgers[i]) for i in range(len(start))]
        self.messages = self.size = 0
        self._look = look

    def greet(self) -> Crowd:
        """Run the initial exchange."""
        for peer in self.peers:
            self._deliver(peer, peer.greet())
        return self

    def replay(self, events: Any) -> Crowd:
        """Run the initial exchange, and then these events: waking agents, neighbours, random numbers."""
        self.greet()
        for i, partner, dice in zip(*events[:3], strict=True):
            self.wake(i, dice, partner)
        return self

    def wake(self, i: int, *given: Any) -> list[Any]:
        """Wake a peer, deliver the messages that it posts and those that they cause, and return the former."""
        posts = self.peers[i].wake(*given)
        self._deliver(self.peers[i], posts)
        return posts

    def _deliver(self, peer: Peer, posts: list[Any]) -> None:
        queue = deque(self._posted(peer, posts))
        while queue:
            post = queue.popleft()
            goal = self.peers[post.to]
            queue.extend(self._posted(goal, goal.receive(post.data)))

    def _posted(self, peer: Peer, posts: list[Any]) -> list[Any]:
        for post in posts:
            self.messages, self.size = self.messages + 1, self.size + len(post.data)
            if self._look is not None:
                self._look(peer, post)
        return posts
