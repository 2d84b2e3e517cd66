"""A thread with an event loop, a queue of calls to run in it, and the base class of endpoints with a hub in such a
thread.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import re
import threading
from collections import Counter, deque
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from ..._files import Where
from ...errors import ParameterError
from ..group.identity import check_name, split_endpoint
from ..wire.limits import Limits, descriptors
from .hub import Hub
from .proofs import Credentials, TlsContexts

log = logging.getLogger("coterie")

#: Maximal number of waiting calls; further calls are dropped.
MAX_WAITING_CALLS = 20_000
#: Seconds for sending what is queued when an endpoint is closed.
CLOSE_TIMEOUT = 0.1
RUN = re.compile(r"[A-Za-z0-9_-]{1,128}")
AnyHub = TypeVar("AnyHub", bound=Hub)
MakeHub = Callable[[asyncio.AbstractEventLoop, Limits], AnyHub]


def new_loop(uvloop: bool | None = None) -> asyncio.AbstractEventLoop:
    """Return an event loop: uvloop's if it is installed, unless `uvloop` is False."""
    if uvloop is not False:
        try:
            found: asyncio.AbstractEventLoop = importlib.import_module("uvloop").new_event_loop()
            return found
        except ImportError:
            if uvloop:
                raise
    return asyncio.SelectorEventLoop()


async def _settle() -> None:
    """Wait for tasks in progress, and cancel those that take too long, so that every connection is closed."""
    left = asyncio.all_tasks() - {asyncio.current_task()}
    if left:
        _, left = await asyncio.wait(left, timeout=CLOSE_TIMEOUT)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
    for _ in range(3):  # closed sockets are released in the next rounds
        await asyncio.sleep(0)


class LoopThread:
    """A thread that runs an event loop until :meth:`end`."""

    def __init__(self, name: str, uvloop: bool | None = None):
        self.loop = new_loop(uvloop)
        self._mail: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._woken = False
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self, begin: Callable[[], None]) -> None:
        """Start the thread, and return when `begin` has run in it. An exception in `begin` is raised here."""
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
        """Whether the caller is in this thread."""
        return threading.get_ident() == self._thread.ident

    def call(self, act: Callable[..., object], *what: Any) -> bool:
        """Run a function in the loop's thread, in the order of calls. Return False if too many calls wait."""
        if len(self._mail) >= MAX_WAITING_CALLS:
            return False
        self._mail.append((act, what))
        if not self._woken:  # one wakeup of the loop for all calls that wait
            self._woken = True
            try:
                self.loop.call_soon_threadsafe(self._do)
            except RuntimeError:  # the loop has ended
                return False
        return True

    def _do(self) -> None:
        self._woken = False
        for _ in range(len(self._mail)):
            act, what = self._mail.popleft()
            try:
                act(*what)
            except Exception:  # an error in one call must not prevent the next ones
                log.exception("%s could not do something", self._thread.name)

    def end(self, last: Callable[[], bool], abandon: Callable[[], None]) -> None:
        """Run a last function, and stop. Waits for the thread, unless called in it.

        If ``last`` returns True, bytes are still to be sent and get a moment; ``abandon`` drops what is left.
        """

        def stop() -> None:
            self.loop.call_later(CLOSE_TIMEOUT if last() else 0.0, give_up)

        def give_up() -> None:
            abandon()
            self.loop.call_soon(self.loop.stop)

        if self.inside:
            stop()
        elif self._thread.is_alive():
            self.loop.call_soon_threadsafe(stop)
            self._thread.join()


class Endpoint(Generic[AnyHub]):
    """Base class of a peer's transport and of a relay: a name, certificates, and a hub in a thread while it is open."""

    def __init__(
        self,
        run: str,
        name: str,
        listen: str | None,
        folder: Where | None = None,
        *,
        credentials: Credentials | None = None,
        message_bytes: int = 200_000,
        limits: Limits | None = None,
        uvloop: bool | None = None,
    ):
        if not RUN.fullmatch(run):
            raise ParameterError(f"run={run!r:.140} must be 1 to 128 letters, digits, - and _")
        if credentials is None and folder is None:
            raise ParameterError("give the folder with tls.key, tls.crt and ca.crt, or credentials=Credentials(...)")
        self.name, self._run = check_name(name), run
        self._listen = None if listen is None else split_endpoint(listen, "listen")
        self._contexts = TlsContexts(credentials or Credentials.of(folder or ""), run)
        self._limits, self._uvloop = (limits or Limits())._replace(message=message_bytes), uvloop
        self._kept: bytes | None = None
        self._revoked: frozenset[str] = frozenset()
        self._changing = threading.RLock()
        self._thread: LoopThread | None = None
        self._hub: AnyHub | None = None
        self._before: Counter[str] = Counter()  # counts before the last opening

    @property
    def counts(self) -> dict[str, int]:
        """Numbers of messages sent, received or forwarded, and dropped by reason; and of ended connections by
        reason.
        """
        hub = self._hub
        return dict(self._before + Counter() if hub is None else self._before + hub.counts.copy())

    def strangers(self) -> dict[str, dict[str, int]]:
        """Numbers of connections that failed before a name was proven, by source and reason."""
        hub = self._hub
        return {} if hub is None else {source: dict(counts) for source, counts in list(hub.front.failures.items())}

    def reload(self) -> None:
        """Read the certificates again, for new connections. Existing connections stay."""
        self._contexts.load()

    def keep_roster(self, signed: bytes) -> None:
        """Set the roster for non-members."""
        self._kept = kept = bytes(signed)
        self._do(lambda hub: setattr(hub, "kept", kept))

    def dropped(self) -> dict[Any, dict[str, int]]:
        """Numbers of dropped messages from and to members, by name, since the endpoint was opened."""
        hub = self._hub
        return {} if hub is None else {name: dict(counts) for name, counts in dict(hub.dropped).items()}

    def _open(self, make: MakeHub[AnyHub], begin: Callable[[AnyHub], None]) -> None:
        """Make a hub, and run it in a thread of its own."""
        with self._changing:
            if self._thread is not None:
                raise ParameterError(f"{self.name} is open already")
            thread = LoopThread(f"coterie-{self.name}", self._uvloop)
            hub = self._hub = make(thread.loop, self._limits.within(descriptors()))
            hub.kept = self._kept

            def first() -> None:
                hub.open(self._listen)
                begin(hub)

            try:
                thread.start(first)
            except OSError as error:
                self._hub = None
                where = "a connection" if self._listen is None else f"{self._listen[0]} port {self._listen[1]}"
                raise ParameterError(f"{self.name} cannot open {where}: {error.strerror or error}") from error
            self._thread = thread

    def close(self) -> None:
        """Stop. May be called twice, and never raises."""
        with self._changing:
            thread, hub = self._thread, self._hub
            self._thread = self._hub = None
            if hub is not None:
                self._before += hub.counts.copy()
        if thread is not None and hub is not None:
            thread.end(hub.close, hub.abandon)

    def _do(self, act: Callable[[AnyHub], object]) -> None:
        """Call a function with the hub, in the hub's thread."""
        hub, thread = self._hub, self._thread
        if hub is not None and thread is not None:
            thread.call(act, hub)
