"""A thread with an event loop in it, and a way to hand it things to do."""

from __future__ import annotations

import asyncio
import importlib
import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

log = logging.getLogger("coterie")

#: Things that may wait to be done; what is more is not done.
WAITING = 20_000
#: Seconds for what was sent before the end.
FAREWELL = 0.1


def new_loop(uvloop: bool | None = None) -> asyncio.AbstractEventLoop:
    """An event loop: uvloop's where it is installed and nothing else is asked for."""
    if uvloop is not False:
        try:
            found: asyncio.AbstractEventLoop = importlib.import_module("uvloop").new_event_loop()
            return found
        except ImportError:
            if uvloop:
                raise
    return asyncio.SelectorEventLoop()


async def _settle() -> None:
    """Let what has begun come to an end, so that every connection is closed."""
    left = asyncio.all_tasks() - {asyncio.current_task()}
    if left:
        _, left = await asyncio.wait(left, timeout=FAREWELL)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
    for _ in range(3):  # closed sockets are let go in the next rounds
        await asyncio.sleep(0)


class LoopThread:
    """Runs a loop until :meth:`end`."""

    def __init__(self, name: str, uvloop: bool | None = None):
        self.loop = new_loop(uvloop)
        self._mail: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._woken = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self, begin: Callable[[], None]) -> None:
        """Begin in the thread, and return when that is done; what it raises is raised here."""
        done, faults = threading.Event(), list[BaseException]()

        def first() -> None:
            try:
                begin()
            except BaseException as fault:
                faults.append(fault)
                self.loop.stop()
            done.set()

        self.loop.call_soon(first)
        self._thread.start()
        done.wait()
        if faults:
            self._thread.join()
            raise faults[0]

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_forever()
            self.loop.run_until_complete(_settle())
        finally:
            self.loop.close()

    @property
    def inside(self) -> bool:
        """Whether this is its own thread."""
        return threading.get_ident() == self._thread.ident

    def call(self, act: Callable[..., object], *what: Any) -> bool:
        """Do something in the loop's thread, in the order in which it was asked for; False if there is too much."""
        if len(self._mail) >= WAITING:
            return False
        self._mail.append((act, what))
        if not self._woken:  # one waking of the loop for all that is asked for meanwhile
            self._woken = True
            try:
                self.loop.call_soon_threadsafe(self._do)
            except RuntimeError:  # it has ended
                return False
        return True

    def _do(self) -> None:
        self._woken = False
        for _ in range(len(self._mail)):
            act, what = self._mail.popleft()
            try:
                act(*what)
            except Exception:  # one thing that fails must not take the others with it
                log.exception("%s could not do something", self._thread.name)

    def end(self, last: Callable[[], bool], abandon: Callable[[], None]) -> None:
        """Do a last thing, and stop. Waits for it, unless this is its own thread.

        If ``last`` says that something is under way, it is given a moment; ``abandon`` gives up what is left.
        """

        def stop() -> None:
            self.loop.call_later(FAREWELL if last() else 0.0, give_up)

        def give_up() -> None:
            abandon()
            self.loop.call_soon(self.loop.stop)

        if self.inside:
            stop()
        elif self._thread.is_alive():
            self.loop.call_soon_threadsafe(stop)
            self._thread.join()
