"""A queue of bounded length between the transport's threads and the one that works."""

from __future__ import annotations

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
        self._queue: queue.SimpleQueue[tuple[int, bytes] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._waiting: Counter[int] = Counter()
        self._bytes = 0
        self._limit = per_sender
        self.dropped = 0

    def put(self, owner: int, data: bytes) -> bool:
        """Whether there was room."""
        with self._lock:
            limit = INBOX_ROSTERS if owner == NOBODY else self._limit
            full = self._queue.qsize() >= INBOX or self._bytes + len(data) > INBOX_BYTES
            if full or self._waiting[owner] >= limit:
                self.dropped += 1
                return False
            self._waiting[owner] += 1
            self._bytes += len(data)
        self._queue.put((owner, data))
        return True

    def wake(self) -> None:
        """Let whoever waits go on. May be called from a signal handler."""
        self._queue.put(None)

    def get(self, wait: float) -> tuple[int, bytes] | None:
        """The next one, or None if there is none before so many seconds have passed."""
        try:
            item = self._queue.get(timeout=wait) if wait > 0.0 else self._queue.get_nowait()
        except queue.Empty:
            return None
        if item is not None:
            with self._lock:
                self._waiting[item[0]] -= 1
                if not self._waiting[item[0]]:
                    del self._waiting[item[0]]
                self._bytes -= len(item[1])
        return item
