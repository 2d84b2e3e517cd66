"""One agent in one process: the arrays of one agent, on the compiled loop of the simulator.

A peer has no input or output of its own. The caller tells it when to wake and which messages have arrived; it returns
the messages to send, as bytes. Time, randomness and transport come from outside.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from ..core import loop
from ..core.arrays import NEEDS_ROOM, REFUSED, VACANT, AgentArrays, new_outbox, system_dice
from ..core.linear import DenseRows
from ..core.messages import Bounds, Contents, longest
from ..core.method import finished_by, shown_by
from ..core.models import Linear
from ..errors import CapacityError, DataError, LedgerError, ParameterError
from .wire import decode, encode


class Outgoing(NamedTuple):
    """A message to send."""

    sender: int  # address
    to: int  # address
    kind: int
    text: np.ndarray
    contents: Contents | None = None  # encoding of the numbers; None for doubles

    @property
    def data(self) -> bytes:
        """The message as bytes, for :meth:`Peer.receive` of another peer."""
        return encode(self.sender, self.kind, self.text, self.contents)


class Peer:
    """An agent that exchanges encoded messages.

    Parameters
    ----------
    method : rule
    arrays : AgentArrays
        Arrays of this agent (:func:`coterie.engines.arrays.part_of`).
    theta : (p,) ndarray
        Initial model. :meth:`greet` sends it: for a private method, it must be public, such as zeros or a model that
        was published before; never a locally trained model, and never :attr:`final`.
    ledger : coterie.privacy.Ledger, optional
        For private methods only: every release is debited there, durably, before its noise is drawn. Amounts spent
        before this peer began count as spent.

    Examples
    --------
    >>> import coterie as ct
    >>> from coterie.engines.peer import Peer
    >>> from coterie.engines.arrays import part_of, arrays_of
    >>> problem = ct.Problem.propagation([[0.0], [2.0]], ct.graphs.complete(2), alpha=0.5)
    >>> arrays, models = arrays_of(problem), problem.local()
    >>> ann, bob = (Peer(ct.CoordinateDescent(), part_of(arrays, i, i + 1), models[i]) for i in (0, 1))
    >>> for message in bob.greet():
    ...     ann.receive(message.data)
    []
    >>> [message.to for message in ann.wake()]  # half-way between its own model and bob's
    [1]
    >>> ann.theta.tolist()
    [1.0]
    """

    _own: Any
    _edge: Any

    def __init__(self, method: Any, arrays: AgentArrays, theta: np.ndarray, ledger: Any = None):
        if arrays.address.shape != (1,):
            raise ParameterError(f"a peer is the arrays of one agent, not of {arrays.address.shape[0]}")
        theta = np.ascontiguousarray(theta, dtype=float)
        dense = isinstance(arrays.rows, DenseRows) and isinstance(arrays.model, Linear)
        features = arrays.roles.shape[0] or (arrays.rows.values.shape[1] if dense else theta.size)
        if theta.shape != (features,) or not np.all(np.isfinite(theta)):
            raise ParameterError(f"theta must be a model of {features} finite numbers; found {theta!r}")
        self.method = method
        self._contents = Contents(method.messages, Bounds(arrays.sent.shape[0] or theta.shape[0]))
        self.resume(arrays, *method.start(arrays, theta[None, :]))
        self._account = loop.new_account(method)
        self._ledger = ledger
        plan = method.privacy.plan
        if plan is None and ledger is not None:
            raise ParameterError(f"{method!r} is not private: leave the ledger out")
        if plan is not None:
            if ledger is None:
                raise ParameterError(f"{method!r} needs a ledger, such as ct.privacy.Ledger(method.plan, path)")
            if not hasattr(ledger, "debit"):
                raise ParameterError(f"ledger must be a ct.privacy.Ledger; found {type(ledger).__name__}")
            ledger.check(plan)

    def __repr__(self) -> str:
        edges = np.count_nonzero(self.arrays.peer != VACANT)
        return f"Peer({self.method!r}, address={self.address}, edges={edges})"

    def _new_egress(self) -> loop.Egress:
        messages = self.method.traffic.max_messages + self.method.traffic.broadcasts * self.arrays.peer.shape[0]
        return loop.new_egress(messages, longest(self._contents.lengths))

    @property
    def address(self) -> int:
        """Address of the agent."""
        return int(self.arrays.address[0])

    @property
    def own(self) -> Any:
        """State of the agent. Not a copy: for storage, and for :meth:`resume`."""
        return self._own

    @property
    def edge(self) -> Any:
        """State of the agent's edges. Not a copy: for storage, and for :meth:`resume`."""
        return self._edge

    @property
    def theta(self) -> np.ndarray:
        """Model of the agent as it would use it now, a copy."""
        return shown_by(self.method, self.arrays, self._own, self._edge)[0].copy()

    @property
    def final(self) -> np.ndarray:
        """Final model, for the agent's own use. For a private method it may depend on exact data: never send it."""
        return finished_by(self.method, self.arrays, self._own, self._edge)[0]

    def greet(self) -> list[Outgoing]:
        """Return the messages of the initial exchange."""
        loop.meet(*self._state())
        return self._collect()

    def wake(self, dice: np.ndarray | None = None, peer: int | None = None, moment: float = 0.0) -> list[Outgoing]:
        """Wake the agent, and return its messages.

        Parameters
        ----------
        dice : (method.dice,) ndarray, optional
            The uniform random numbers of the wake, to replay a run. Default: from the operating system.
        peer : int, optional
            The neighbour to exchange with, to replay a run. Default: chosen by the method.
        moment : float
            Time since the start, in mean intervals between two wakes, for methods that depend on it.

        Returns
        -------
        list of Outgoing
        """
        dice = None if dice is None else self._checked(dice)
        peer = VACANT if peer is None else peer
        if peer != VACANT and peer not in self.arrays.peer:
            raise ParameterError(f"agent {self.address} has no edge to peer={peer!r}")
        releases = self._ledger is not None and not self._ledger.exhausted
        if self._ledger is not None:
            self._own.account[0] = self._ledger.account  # may include releases of an earlier process
        if releases:
            self._ledger.debit()  # before the noise is drawn: a crash loses budget, and never spends it twice
        if dice is None:
            # the key of the noise: no bit of it exists before
            dice = system_dice(self.method.traffic.dice)
        method, arrays, own, edge, outbox, egress, account = self._state()
        me, peers, moments = np.zeros(1, np.int64), np.array([peer]), np.array([moment])
        loop.run(method, arrays, own, edge, me, peers, dice[None, :], moments, outbox, egress, account, loop.NO_LIMIT)
        messages = self._collect()
        if self._ledger is not None and not np.array_equal(own.account[0], self._ledger.account):
            raise LedgerError(f"{method!r} did not spend what its ledger records: {own.account[0]} was spent")
        if releases:
            self._ledger.keep([message.data for message in messages])  # repeated messages are sent as they were
        return messages

    def receive(self, data: bytes) -> list[Outgoing]:
        """Process one message; raise a :class:`~coterie.errors.DataError` if it is not valid.

        Returns
        -------
        list of Outgoing
            Replies of the method, if any.
        """
        sender, kind, text = decode(data, self._contents)
        if sender == self.address:
            raise DataError(f"a message from {sender}, which is this agent itself")
        return self.take(sender, kind, text)

    def take(self, sender: int, kind: int, text: np.ndarray) -> list[Outgoing]:
        """Process one message that was decoded and checked already.

        Returns
        -------
        list of Outgoing
            Replies of the method, if any.
        """
        one = np.array([sender, self.address, kind, text.shape[0]]).reshape(4, 1)
        loop.accept(*self._state(), *one, text[None, :])
        return self._collect()

    def renew(self, arrays: AgentArrays) -> None:
        """Continue with other arrays: other rows, edges or weights. The state of remaining edges is kept."""
        own, edge = self.method.start(arrays, self._own.theta)
        own = loop.moved(self._own, own, slice(None), slice(None), skip=loop.RECOMPUTED_FIELDS)
        _, there, here = np.intersect1d(self.arrays.peer, arrays.peer, return_indices=True)
        stay = arrays.peer[here] != VACANT
        edge = loop.moved(self._edge, edge, there[stay], here[stay], skip=loop.RECOMPUTED_FIELDS)
        self.resume(arrays, own, edge)

    def recover(self) -> None:
        """Adopt the last release if the state is older: its messages were stored, and may have been sent already.

        For private methods that publish a model. A crash loses no release, and repeating one costs nothing.
        """
        if self._ledger is None:
            return
        own, kept = self._own, self._ledger.kept
        while not hasattr(type(own), "_fields") or "account" not in own._fields:
            own = own.model
        if not kept or own.account[0, 0] >= self._ledger.account[0]:
            return
        _, _, text = decode(kept[0])
        if text.shape == own.theta[0].shape:
            for name in ("theta", "released"):
                if name in own._fields:
                    getattr(own, name)[0] = text
            if "said" in own._fields:
                own.said[0] = 1.0
        own.account[0] = self._ledger.account

    def resume(self, arrays: AgentArrays, own: Any, edge: Any) -> None:
        """Continue from a stored state, :attr:`own` and :attr:`edge`, with the arrays whose edges they belong to."""
        self.arrays, self._own, self._edge = arrays, own, edge
        self._outbox = new_outbox(self.method, arrays, own.theta.shape[1], self.method.traffic.max_messages)
        self._egress = self._new_egress()

    def _checked(self, dice: np.ndarray) -> np.ndarray:
        """Check given random numbers."""
        given = np.ascontiguousarray(dice, dtype=float)
        if given.shape != (self.method.traffic.dice,) or not np.all((given >= 0.0) & (given < 1.0)):
            raise ParameterError(f"dice must be {self.method.traffic.dice} numbers in [0, 1); found {dice!r}")
        if getattr(self._ledger, "path", None) is not None:
            raise ParameterError("dice are for replaying a simulation: with a ledger on disk, noise must be fresh")
        return given

    def _state(self) -> tuple[Any, ...]:
        return self.method, self.arrays, self._own, self._edge, self._outbox, self._egress, self._account

    def _collect(self) -> list[Outgoing]:
        egress = self._egress
        if self._outbox.cursor[REFUSED] or egress.counter[1]:
            raise CapacityError(f"{self.method!r} posted more messages in one event than it declares")
        messages = []
        for c in range(egress.counter[0]):
            to, kind, text = int(egress.to[c]), int(egress.kind[c]), egress.text[c, : egress.length[c]].copy()
            messages.append(Outgoing(self.address, to, kind, text, self._contents))
        egress.counter[:] = 0
        if self._outbox.cursor[NEEDS_ROOM]:
            self.arrays, self._edge = loop.widen(self.method, self.arrays, self._edge, self._outbox)
            self._egress = self._new_egress()
        return messages
