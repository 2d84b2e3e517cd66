"""Wakes in parallel: several threads run one compiled loop, each on a part of the wakes.

The wakes of a batch are drawn before it begins. Wakes that do not touch each other run at the same time, in levels
(:mod:`coterie.core.levels`): the result is that of one thread, bit for bit. A lock-free run omits the levels.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from ..core import loop
from ..core.arrays import NEEDS_ROOM, REFUSED, AgentArrays, Outbox, new_outbox
from ..core.levels import arrange
from ..core.linear import PickedRows
from ..core.messages import lengths_of, longest
from ..errors import ParameterError

if TYPE_CHECKING:
    from .drivers import Immediate

#: Supported values of ``footprint``.
FOOTPRINTS = ("edges", "partner")
#: Number of agents from which threads are used by default: a level holds about n / (3 (degree + 1)) wakes.
MANY_AGENTS = 10_000
#: Smallest number of wakes per thread call: a call takes some microseconds, as does a wake.
MIN_WAKES_PER_CALL = 32
#: Parts of a level for each thread: a thread that is done takes another part.
PARTS_PER_THREAD = 4
#: Largest number of wakes that are arranged at a time, while earlier wakes run.
MAX_ARRANGED_WAKES = 1 << 15
#: Levels are counted up to this number, then from zero again.
MAX_LEVEL = 1 << 30

Slice = tuple[int, int]


class ThreadArrays(NamedTuple):
    """Arrays that one thread writes to, besides the state of agents."""

    outbox: Outbox
    egress: loop.Egress
    account: np.ndarray
    sheet: np.ndarray  # scratch space of the model
    picked: PickedRows  # rows of a minibatch


class Team:
    """Threads that process the wakes of a driver in parallel."""

    def __init__(self, count: int, n: int, lock_free: bool = False):
        self.count, self.lock_free = count, lock_free
        self._pool: Any = ThreadPoolExecutor(max(1, count - 1), thread_name_prefix="coterie")
        self._last, self._floor = np.zeros(n, np.int32), 0

    def close(self) -> None:
        """Stop the threads."""
        self._pool.shutdown(cancel_futures=True)

    def run(self, driver: Immediate, events: Sequence[np.ndarray], budget: loop.Budget) -> int:
        """Process wakes in parallel while the budget certainly lasts.

        Return their number: the caller runs the remaining ones.
        """
        done = 0
        while True:
            sure = certain(driver, events[0][done:], budget)
            if sure < self.count * MIN_WAKES_PER_CALL:
                return done
            cuts = [*range(done, done + sure, MAX_ARRANGED_WAKES), done + sure]
            spans = [[part[a:b] for part in events] for a, b in itertools.pairwise(cuts)]
            ready = self._arranged(driver, spans[0])
            for following in [*spans[1:], None]:
                ahead = None if following is None else self._pool.submit(self._arranged, driver, following)
                self._take(driver, *ready)
                ready = None if ahead is None else ahead.result()
            done += sure

    def _take(self, driver: Immediate, events: list[np.ndarray], stages: list[list[Slice]]) -> None:
        """Let the threads process wakes that are arranged in stages."""
        box, nobody = driver.outbox, loop.new_egress(0, 1)
        arrays = driver.arrays
        hands = [ThreadArrays(box, driver.egress, driver.account, arrays.sheet, arrays.picked)]
        for _ in range(1, self.count):
            outbox = new_outbox(driver.method, arrays, driver.problem.p, box.to.shape[0])
            egress, account = nobody._replace(counter=np.zeros(2, np.int64)), loop.new_account(driver.method)
            picked = PickedRows(arrays.picked.rows, np.zeros_like(arrays.picked.pick))
            hands.append(ThreadArrays(outbox, egress, account, np.zeros_like(arrays.sheet), picked))
        for stage in stages:
            while stage:
                stage = self._at_once(driver, events, hands, stage)
                for hand in hands[1:]:
                    box.cursor[REFUSED] += hand.outbox.cursor[REFUSED] + hand.egress.counter[1]
                    box.cursor[NEEDS_ROOM] |= hand.outbox.cursor[NEEDS_ROOM]
                    hand.outbox.cursor[NEEDS_ROOM] = 0
                driver.settle()
        for hand in hands[1:]:
            driver.account += hand.account

    def _arranged(self, driver: Immediate, events: list[np.ndarray]) -> Any:
        """Return the wakes in the order of their levels, and the stages in which they run."""
        if self.lock_free:
            return events, [self._parts(0, events[0].shape[0])]
        if self._floor > MAX_LEVEL:
            self._last[:], self._floor = 0, 0
        order, peers, dice, _ = events
        place, first = in_levels(driver.method, driver.arrays, order, peers, dice, self._last, self._floor)
        self._floor += first.shape[0] - 1
        return [part[place] for part in events], list(self._stages(first))

    def _stages(self, first: np.ndarray) -> Iterator[list[Slice]]:
        """Yield stages of parts that run at once: the parts of one large level, or small levels as one part."""
        large = np.flatnonzero(np.diff(first) >= 2 * MIN_WAKES_PER_CALL)
        end = 0
        for a, b in zip(first[large].tolist(), first[large + 1].tolist(), strict=True):
            if a > end:
                yield [(end, a)]
            yield self._parts(a, b)
            end = b
        if end < first[-1]:
            yield [(end, int(first[-1]))]

    def _parts(self, a: int, b: int) -> list[Slice]:
        """Return parts of equal size of wakes ``a`` to ``b - 1``."""
        cuts = (
            np.linspace(a, b, 1 + max(1, min((b - a) // MIN_WAKES_PER_CALL, PARTS_PER_THREAD * self.count)))
            .astype(int)
            .tolist()
        )
        return list(itertools.pairwise(cuts))

    def _at_once(
        self, driver: Immediate, events: list[np.ndarray], hands: list[ThreadArrays], stage: list[Slice]
    ) -> list[Slice]:
        """Let the threads process the parts of a stage. Return the rest of parts that had to stop."""
        turn, left = itertools.count(), []

        def work(hand: ThreadArrays) -> None:
            *boxes, sheet, picked = hand
            arrays = driver.arrays._replace(sheet=sheet, picked=picked)
            state = driver.method, arrays, driver.own, driver.edge
            while (k := next(turn)) < len(stage):
                a, b = stage[k]
                a += loop.run(*state, *(part[a:b] for part in events), *boxes, loop.NO_LIMIT)
                if a < b:
                    left.append((a, b))

        others = [self._pool.submit(work, hand) for hand in hands[1 : len(stage)]]
        work(hands[0])
        for other in others:
            if not other.cancel():  # threads that have not begun find nothing left to do
                other.result()
        return left


def in_levels(
    method: Any,
    arrays: AgentArrays,
    order: np.ndarray,
    peers: np.ndarray,
    dice: np.ndarray,
    last: np.ndarray,
    floor: int = 0,
) -> tuple[np.ndarray, np.ndarray]:
    """Return the wakes in the order of their levels, the start of each level, and the end of the last one."""
    if method.traffic.footprint not in FOOTPRINTS:
        raise ParameterError(
            f"{method!r}: footprint={method.traffic.footprint!r} must be one of {', '.join(FOOTPRINTS)}, or None"
        )
    if method.traffic.footprint == "partner" and not method.traffic.exchanges:
        raise ParameterError(f'{method!r}: footprint="partner" is for a method that exchanges with one neighbour')
    count = order.shape[0]
    level, first, place = np.empty(count, np.int32), np.empty(count + 1, np.int32), np.empty(count, np.int64)
    edges = arrays.edge_start, arrays.peer, arrays.choice
    depth = arrange(order, peers, dice, *edges, method.traffic.footprint == "partner", floor, last, level, first, place)
    return place, first[: depth + 1]


def certain(driver: Immediate, order: np.ndarray, budget: loop.Budget) -> int:
    """Return how many of these wakes certainly fit the budget, even if each has the largest possible cost."""
    if not np.isfinite(budget.limit):
        return int(order.shape[0])
    method, arrays = driver.method, driver.arrays
    messages = np.full(order.shape[0], method.traffic.max_messages)
    if method.traffic.footprint == "edges":
        degree = arrays.edge_start[order + 1] - arrays.edge_start[order]
        messages = method.traffic.broadcasts * degree + (method.traffic.max_messages - method.traffic.broadcasts)
    lengths = [longest([length]) for length in lengths_of(method.messages, driver.problem.p)]
    cost = messages * np.max(budget.message + budget.number * lengths, initial=0.0)
    spent = loop.cost_of(driver.account, budget.message, budget.number)
    return int(np.searchsorted(spent + np.cumsum(cost) - cost, budget.limit))
