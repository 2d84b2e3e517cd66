"""A queue of bounded length between the transport's threads and the one that works."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections import Counter

#: What has come and was not looked at yet: more letters, or bytes, are dropped; and more than so many seconds' worth of
#: one sender's, or lists of members.
INBOX, INBOX_BYTES, INBOX_SECONDS, INBOX_ROSTERS = 10_000, 1 << 26, 4.0, 8
#: Whose lists of members are.
NOBODY = -1


class Inbox:
    """A queue that no sender can fill for the others: so many of each may wait."""

    def __init__(self, per_sender: int):
        self._items: list[tuple[int, bytes]] = []
        self._bell: queue.SimpleQueue[None] = queue.SimpleQueue()  # rung for who waits
        self._lock = threading.Lock()
        self._asleep = False
        self._waiting: dict[int, int] = {}
        self._bytes = 0
        self._limit = per_sender
        self.dropped: Counter[int] = Counter()  # by whose they were: members, and NOBODY

    def __len__(self) -> int:
        return len(self._items)

    def put(self, owner: int, data: bytes) -> bool:
        """Whether there was room."""
        with self._lock:
            waiting = self._waiting.get(owner, 0)
            limit = INBOX_ROSTERS if owner == NOBODY else self._limit
            full = len(self._items) >= INBOX or self._bytes + len(data) > INBOX_BYTES
            if full or waiting >= limit:
                self.dropped[owner] += 1
                return False
            self._waiting[owner] = waiting + 1
            self._bytes += len(data)
            self._items.append((owner, data))
            ring, self._asleep = self._asleep, False
        if ring:
            self._bell.put(None)
        return True

    def wake(self) -> None:
        """Let whoever waits go on. May be called from a signal handler."""
        self._bell.put(None)

    def wait(self, seconds: float) -> None:
        """Until there is something, or :meth:`wake`, or so many seconds have passed."""
        with self._lock:
            if self._items or seconds <= 0.0:
                return
            self._asleep = True
        with contextlib.suppress(queue.Empty):
            self._bell.get(timeout=seconds)
        self._asleep = False

    def take(self) -> list[tuple[int, bytes]]:
        """All that there is."""
        with self._lock:
            items, self._items = self._items, []
            self._waiting.clear()
            self._bytes = 0
        return items
