"""A thread with an event loop in it, a way to hand it things to do, and what has a hub of connections there."""

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
from .proofs import Credentials, Papers

log = logging.getLogger("coterie")

#: Things that may wait to be done; what is more is not done.
WAITING = 20_000
#: Seconds for what was sent before the end.
FAREWELL = 0.1
RUN = re.compile(r"[A-Za-z0-9_-]{1,128}")
AnyHub = TypeVar("AnyHub", bound=Hub)
MakeHub = Callable[[asyncio.AbstractEventLoop, Limits], AnyHub]


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


class Endpoint(Generic[AnyHub]):
    """What a peer's transport and a relay have in common: who they are, and a hub in a thread while they are open."""

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
        self._papers = Papers(credentials or Credentials.of(folder or ""), run)
        self._limits, self._uvloop = (limits or Limits())._replace(message=message_bytes), uvloop
        self._kept: bytes | None = None
        self._revoked: frozenset[str] = frozenset()
        self._changing = threading.RLock()
        self._thread: LoopThread | None = None
        self._hub: AnyHub | None = None
        self._before: Counter[str] = Counter()  # counts of earlier openings

    @property
    def counts(self) -> dict[str, int]:
        """How many messages were sent, received or forwarded, and dropped by reason; and how connections ended."""
        hub = self._hub
        return dict(self._before + Counter() if hub is None else self._before + hub.counts.copy())

    def strangers(self) -> dict[str, dict[str, int]]:
        """Connections that came to nothing before a name was proven, by source and reason."""
        hub = self._hub
        return {} if hub is None else {source: dict(counts) for source, counts in list(hub.front.failures.items())}

    def reload(self) -> None:
        """Read certificates anew, for connections that are made from now on. Those that there are stay."""
        self._papers.load()

    def keep_roster(self, signed: bytes) -> None:
        """The list of members to hand to non-members."""
        self._kept = kept = bytes(signed)
        self._do(lambda hub: setattr(hub, "kept", kept))

    def dropped(self) -> dict[Any, dict[str, int]]:
        """What was dropped of messages from and to members, by name, since it was opened."""
        hub = self._hub
        return {} if hub is None else {name: dict(counts) for name, counts in dict(hub.dropped).items()}

    def _open(self, make: MakeHub[AnyHub], begin: Callable[[AnyHub], None]) -> None:
        """Make a hub, and begin in a thread of its own."""
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
        """Stop. Twice is fine; never raises."""
        with self._changing:
            thread, hub = self._thread, self._hub
            self._thread = self._hub = None
            if hub is not None:
                self._before += hub.counts.copy()
        if thread is not None and hub is not None:
            thread.end(hub.close, hub.abandon)

    def _do(self, act: Callable[[AnyHub], object]) -> None:
        """Let the hub do something, in its own thread."""
        hub, thread = self._hub, self._thread
        if hub is not None and thread is not None:
            thread.call(act, hub)
