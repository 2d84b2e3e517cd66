"""Peer sampling: how an agent that knows only a few others finds random peers.

``Uniform`` draws peers uniformly from all agents, which needs the full membership list: for comparison.
``PeerShuffling`` needs no list: agents hold a small view of others, and regularly exchange a part of this view with the
member that they have not heard from for longest (Cyclon: Voulgaris, Gavidia, van Steen, 2005). The address of an agent
that no longer answers gradually disappears from all views.

Among many agents, a random peer is rarely worth an edge, and similar agents rarely meet. ``FriendsOfFriends`` therefore
draws a third each of neighbours, of neighbours' neighbours, and of random peers: agents similar to a neighbour are
likely to be similar to the agent itself (T-Man: Jelasity, Montresor, Babaoglu, 2009; nearest-neighbour descent: Dong,
Charikar, Li, 2011). Similar agents so find each other faster than by chance.

``CandidateList`` draws from a list that is given for each agent, for example of agents with the nearest models, if all
models are known in one place. The result does not depend on the number of other agents.

A sampler is a rule, decorated with ``@sampler``, with three handlers: ``sample`` chooses peers, ``refresh`` is called
when the agent wakes, ``merge`` when a message of the sampler arrives.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from ..._checks import integer, integers, named
from ...errors import MismatchError, ParameterError
from ..arrays import FACTOR, MODULUS, VACANT, send, slot_of
from ..compile import inline, noinline
from ..messages import Addresses
from ..method import complete
from ..rules import checked

#: Kinds of messages that compositions reserve for samplers: a part of a view, to be answered; and the answer.
SHUFFLE, SHUFFLED = 3, 4
#: Exclusive upper bound of addresses and ages.
ADDRESS_LIMIT = 2.0**53


class Everyone(NamedTuple):
    """State of an agent for :class:`Uniform` sampling."""

    n_agents: np.ndarray  # (n, 1) number of agents


class View(NamedTuple):
    """State of an agent for :class:`PeerShuffling`."""

    address: np.ndarray  # (n, size) VACANT for an empty place
    age: np.ndarray  # (n, size) wakes since the address was last heard from directly, as far as is known
    sent: np.ndarray  # (n, swap) places whose addresses were sent, and may be replaced by those in the answer
    random: np.ndarray  # (n, 1) state of a random generator, seeded at every wake


class Tips(NamedTuple):
    """State of an agent for :class:`FriendsOfFriends`, in addition to its neighbours."""

    n_agents: np.ndarray  # (n, 1) number of agents
    tip: np.ndarray  # (n, size) neighbours of neighbours, or VACANT; each is asked once
    cursor: np.ndarray  # (n, 1) next place to write


class List(NamedTuple):
    """State of an agent for :class:`CandidateList`, in addition to its neighbours."""

    candidate: np.ndarray  # (n, size) candidates; the agent itself marks an empty place


class Sampler(ABC):
    """Parts of a sampler. A class decorated with ``@sampler`` is registered as a subclass, without inheriting."""

    @property
    def messages(self: Any) -> Any:
        """Content of messages, of at most two kinds.

        Default: addresses, ``swap`` of them, for samplers that exchange some.
        """
        return {kind: Addresses(self.swap) if self.scratch_size() else () for kind in (SHUFFLE, SHUFFLED)}

    def dice(self, kappa):
        """Return how many uniform random numbers a wake that samples kappa peers uses."""
        return kappa + 1

    @abstractmethod
    def start(self, arrays: Any) -> Any:
        """Return the initial state of the hosted agents: a NamedTuple of arrays."""

    @abstractmethod
    def sample(self, data: Any, view: Any, dice: Any, out: Any) -> int:
        """Write addresses of other agents, and return how many (a handler)."""

    def refresh(self, data, view, dice, outbox):  # noqa: B027 - a default
        """Act when the agent wakes (a handler). Default: do nothing."""

    def merge(self, data, view, message, outbox):  # noqa: B027 - a default
        """Process a message (a handler). Default: do nothing."""

    def scratch_size(self):
        """Return how many numbers of ``outbox.scratch`` a handler uses.

        Default: a pair for each address that is exchanged.
        """
        return 2 * self.swap if "swap" in self._fields else 0


def sampler(cls: Any) -> Any:
    """Turn a NamedTuple class into a sampler: add the defaults of parts that it leaves out."""
    return complete(cls, Sampler)


@inline
def lists(addresses, address):
    """Return whether an address is in an array of addresses."""
    listed = False
    for k in range(addresses.shape[0]):
        listed = listed or addresses[k] == address
    return listed


@inline
def distinct(dice, count, population, out):
    """Write `count` distinct numbers below ``population``, uniformly among all such sets (Floyd's algorithm)."""
    for k in range(count):
        top = population - count + k
        chosen = int(dice[k] * (top + 1))
        out[k] = top if lists(out[:k], chosen) else chosen
    return count


@sampler
class Uniform(NamedTuple):
    """Uniform samples of all other agents. Needs the number of agents, whose addresses are 0, 1, 2, ...

    Examples
    --------
    >>> import coterie as ct
    >>> ct.Learned("cd", ct.GraphRule(), sampling=ct.sampling.Uniform()).sampling
    Uniform()
    """

    def dice(self, kappa):
        return kappa

    def start(self, arrays):
        return Everyone(np.full((arrays.address.shape[0], 1), arrays.n_agents))

    def sample(self, data, view, dice, out):
        count = distinct(dice, min(out.shape[0], view.n_agents[0] - 1), view.n_agents[0] - 1, out)
        for k in range(count):
            if out[k] >= data.address:  # skip the agent itself
                out[k] += 1
        return count


def _check_swap(made):
    """Refuse a larger exchange than the view."""
    if made.swap > made.size:
        raise ParameterError(f"{made!r}: expected swap <= size")


@checked(_check_swap, size=integer, swap=integer)
@sampler
class PeerShuffling(NamedTuple):
    """Gossip-based peer sampling: agents exchange parts of their views.

    Parameters
    ----------
    size : int
        Number of other agents in a view.
    swap : int
        Number of addresses in an exchange.

    Examples
    --------
    >>> import coterie as ct
    >>> ct.Learned("cd", ct.GraphRule(), sampling="shuffle").sampling
    PeerShuffling(size=20, swap=8)
    """

    size: int = 20
    swap: int = 8

    def start(self, arrays):
        """Each view starts with the agents that follow its owner on a circle."""
        n, known = arrays.address.shape[0], min(self.size, arrays.n_agents - 1)
        address = np.full((n, self.size), VACANT)
        address[:, :known] = (arrays.address[:, None] + 1 + np.arange(known)) % arrays.n_agents
        return View(address, np.zeros((n, self.size), np.int64), np.full((n, self.swap), VACANT), np.ones((n, 1), int))

    def sample(self, data, view, dice, out):
        known = 0
        for k in range(view.address.shape[0]):
            known += 1 if view.address[k] != VACANT else 0
        count = distinct(dice, min(out.shape[0], known), known, out)
        for k in range(count):
            rest = out[k]
            for place in range(view.address.shape[0]):
                if view.address[place] != VACANT:
                    if rest == 0:
                        out[k] = view.address[place]
                        break
                    rest -= 1
        return count

    def refresh(self, data, view, dice, outbox):
        """Send a part of the view, and the agent's own address, to the oldest member of the view, which is removed."""
        view.random[0] = 1 + int(dice[dice.shape[0] - 1] * (MODULUS - 2))
        oldest, known = VACANT, 0
        for k in range(view.address.shape[0]):
            if view.address[k] != VACANT:
                known += 1
                view.age[k] += 1
                if oldest == VACANT or view.age[k] > view.age[oldest]:
                    oldest = k
        if oldest == VACANT:
            return
        peer = view.address[oldest]
        if known > 1:  # keep the last member: an agent with an empty view could never return
            view.address[oldest] = VACANT
        draw(view, self.swap - 1)
        outbox.scratch[0], outbox.scratch[1] = data.address, 0.0
        end = write(view, outbox.scratch, 2)
        send(outbox, peer, SHUFFLE, outbox.scratch[:end])

    def merge(self, data, view, message, outbox):
        """Answer with a part of the view; store the received addresses in place of empty or sent ones."""
        if message.kind == SHUFFLE:
            draw(view, self.swap)
            end = write(view, outbox.scratch, 0)
            send(outbox, message.sender, SHUFFLED, outbox.scratch[:end])
        take_in(data, view, message.text)


@noinline
def draw(view, count):
    """Choose `count` random places of the view, and mark these as sent."""
    size = view.address.shape[0]
    for k in range(view.sent.shape[0]):
        view.sent[k] = VACANT
    for k in range(count):
        view.random[0] = view.random[0] * FACTOR % MODULUS
        place = view.random[0] % size
        for _ in range(size):  # the next place that is filled and not chosen yet
            if view.address[place] != VACANT and not lists(view.sent[:k], place):
                view.sent[k] = place
                break
            place = (place + 1) % size


@noinline
def write(view, out, end):
    """Write addresses and ages of the places marked as sent."""
    for k in range(view.sent.shape[0]):
        place = view.sent[k]
        if place != VACANT:
            out[end], out[end + 1] = view.address[place], view.age[place]
            end += 2
    return end


@noinline
def take_in(data, view, text):
    """Store unknown addresses first in empty places, and then in place of addresses that were sent."""
    size, turn = view.address.shape[0], 0
    for k in range(0, text.shape[0], 2):
        if not (0.0 <= text[k] < ADDRESS_LIMIT and 0.0 <= text[k + 1] < ADDRESS_LIMIT):
            continue
        peer, age = int(text[k]), int(text[k + 1])
        if peer == data.address:
            continue
        place, known = VACANT, False
        for c in range(size):
            if view.address[c] == peer:
                known = True
                view.age[c] = min(view.age[c], age)
            elif view.address[c] == VACANT and place == VACANT:
                place = c
        while not known and place == VACANT and turn < view.sent.shape[0]:
            place = view.sent[turn]
            turn += 1
        if not known and place != VACANT:
            view.address[place], view.age[place] = peer, age


@checked(_check_swap, size=integer, swap=integer)
@sampler
class FriendsOfFriends(NamedTuple):
    """Neighbours, neighbours of neighbours, and random peers: a third of each. Needs the number of agents.

    An agent that wakes exchanges addresses of neighbours with a random neighbour. For more than some hundred agents:
    the quality of the graph decreases with their number much more slowly than with random peers only.

    Parameters
    ----------
    size : int
        Number of neighbours of neighbours that an agent stores until it has asked them.
    swap : int
        Number of addresses in a message.

    Examples
    --------
    >>> import coterie as ct
    >>> ct.Learned("cd", ct.GraphRule(), sampling="friends").sampling
    FriendsOfFriends(size=16, swap=4)
    """

    size: int = 16
    swap: int = 4

    def start(self, arrays):
        n = arrays.address.shape[0]
        return Tips(np.full((n, 1), arrays.n_agents), np.full((n, self.size), VACANT), np.zeros((n, 1), np.int64))

    def sample(self, data, view, dice, out):
        """Write addresses of other agents, and return how many: peers that are drawn twice are asked once."""
        count = 0
        for k in range(out.shape[0]):
            source = int(3.0 * dice[k])
            die = 3.0 * dice[k] - source
            peer = VACANT
            if source == 0 and data.peer.shape[0] > 0:
                peer = unlisted(data.peer, int(die * data.peer.shape[0]), view.tip[:0])
            elif source == 1:
                place = int(die * view.tip.shape[0])
                for _ in range(view.tip.shape[0]):
                    if view.tip[place] != VACANT:
                        break
                    place = (place + 1) % view.tip.shape[0]
                peer = view.tip[place]
                view.tip[place] = VACANT
            if peer == VACANT:  # a random peer, also for an agent without neighbours
                peer = int(die * (view.n_agents[0] - 1))
                if peer >= data.address:  # skip the agent itself
                    peer += 1
            if not lists(out[:count], peer):
                out[count] = peer
                count += 1
        return count

    def refresh(self, data, view, dice, outbox):
        """Send a random neighbour the addresses of some others."""
        slots = data.peer.shape[0]
        if slots > 0:
            place = int(dice[dice.shape[0] - 1] * slots)
            friend = unlisted(data.peer, place, view.tip[:0])
            if friend != VACANT:
                end = name_some(data.peer, place + 1, self.swap, friend, outbox.scratch)
                send(outbox, friend, SHUFFLE, outbox.scratch[:end])

    def merge(self, data, view, message, outbox):
        """Store received addresses of agents that are no neighbours; answer with addresses of neighbours."""
        for k in range(0, message.text.shape[0], 2):
            if 0.0 <= message.text[k] < view.n_agents[0]:
                peer = int(message.text[k])
                if peer != data.address and slot_of(data.peer, peer, VACANT) == VACANT:
                    view.tip[view.cursor[0]] = peer
                    view.cursor[0] = (view.cursor[0] + 1) % view.tip.shape[0]
        if message.kind == SHUFFLE and data.peer.shape[0] > 0:
            # Start at a place that depends on the sender and changes over time, for variety.
            begin = (message.sender + view.cursor[0]) % data.peer.shape[0]
            end = name_some(data.peer, begin, self.swap, message.sender, outbox.scratch)
            send(outbox, message.sender, SHUFFLED, outbox.scratch[:end])


@noinline
def name_some(peers, place, count, but, out):
    """Write the addresses of some neighbours, with age 0, from a slot on; return the end of the text."""
    end = 0
    for k in range(peers.shape[0]):
        peer = peers[(place + k) % peers.shape[0]]
        if peer != VACANT and peer != but and end < 2 * count:
            out[end], out[end + 1] = peer, 0.0
            end += 2
    return end


@noinline
def unlisted(peers, place, candidates):
    """Return the neighbour in a slot, or in the next one, that is not a candidate; VACANT if there is none."""
    for k in range(peers.shape[0]):
        peer = peers[(place + k) % peers.shape[0]]
        if peer != VACANT and not lists(candidates, peer):
            return peer
    return VACANT


@checked(among=partial(integers, shape=(None, None), expected="a row of agents' integers for each agent"))
@sampler
class CandidateList(NamedTuple):
    """Peers from a list that is given for each agent; and occasionally a neighbour that is not on the list.

    Agents that learn a graph with this sampler reach the optimum over the pairs in the lists, whatever the number of
    agents: :func:`coterie.exact_graph` takes equal lists.

    Parameters
    ----------
    among : (n, any) array_like of int
        A row for each agent: the agents that it may ask. Its own number marks an empty place; repetitions count once.

    Examples
    --------
    >>> import coterie as ct
    >>> ct.Learned("cd", ct.GraphRule(), sampling=ct.sampling.CandidateList([[1, 2], [0, 2], [0, 1]])).sampling
    CandidateList(2 of each of 3 agents)
    """

    among: np.ndarray

    def __repr__(self):
        return f"CandidateList({self.among.shape[1]} of each of {self.among.shape[0]} agents)"

    def dice(self, kappa):
        return kappa + 1

    def start(self, arrays):
        if self.among.shape[0] != arrays.n_agents:
            raise MismatchError(f"{self!r}, and there are {arrays.n_agents} agents: pass a row for each agent")
        if self.among.size and not (self.among.min() >= 0 and self.among.max() < arrays.n_agents):
            raise MismatchError(
                f"candidates are {self.among.min()} to {self.among.max()}: the agents are 0 to {arrays.n_agents - 1}"
            )
        return List(self.among[arrays.address])

    def sample(self, data, view, dice, out):
        """Write addresses of other agents, and return how many: peers that are drawn twice are asked once."""
        listed = view.candidate.shape[0]
        places = distinct(dice, min(out.shape[0], listed + 1), listed + 1, out)
        count = 0
        for k in range(places):
            if out[k] < listed:
                peer = view.candidate[int(out[k])]
            else:  # one place for all other neighbours, from others' lists or the initial graph
                peer = unlisted(data.peer, int(dice[dice.shape[0] - 1] * data.peer.shape[0]), view.candidate)
            if peer != VACANT and peer != data.address and not lists(out[:count], peer):
                out[count] = peer
                count += 1
        return count


#: Samplers, by name.
SAMPLERS = {"uniform": Uniform(), "shuffle": PeerShuffling(), "friends": FriendsOfFriends()}


def resolve_sampler(sampling: Any) -> Any:
    """Return a sampler, given as a rule or by its name."""
    sampling = named("sampling", sampling, SAMPLERS)
    if not isinstance(sampling, Sampler):
        raise ParameterError(f"{sampling!r} does not sample peers: choose one of {', '.join(SAMPLERS)}")
    return sampling
