"""Peer sampling: how an agent that knows only a few others meets a few random ones.

``Uniform`` draws them uniformly from everybody, which needs to know who everybody is: for comparison. ``PeerShuffling`` needs
no membership list: agents hold a small view of others, and now and then swap a part of it with the one in it that they
have not heard of for longest (Cyclon: Voulgaris, Gavidia, van Steen, 2005). An address that nobody answers at drops
out of all views by and by.

Among many agents, hardly any random one is worth an edge, and one's neighbours are hardly ever met again. ``FriendsOfFriends``
therefore asks neighbours, neighbours' neighbours, and random peers, a third of each: who resembles me resembles those
that resemble me (T-Man: Jelasity, Montresor, Babaoglu, 2009; nearest-neighbour descent: Dong, Charikar, Li, 2011). So
similar agents find each other sooner than by chance.

``CandidateList`` asks those of a list that each agent is given: where all models are in one place, those with the nearest
ones. What it comes to does not depend on how many other agents there are.

A sampler is a rule, decorated with ``@sampler``, with three handlers: ``sample`` chooses peers, ``refresh`` is called
when its agent wakes, ``merge`` when one of its messages arrives.
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

#: Kinds of messages, of which a host of samplers must know: a part of my view, to be answered; and the answer.
SHUFFLE, SHUFFLED = 3, 4
#: Addresses and ages are below it.
FARTHEST = 2.0**53


class Everyone(NamedTuple):
    """What an agent knows of others for :class:`Uniform` sampling."""

    n_agents: np.ndarray  # (n, 1) how many agents there are


class View(NamedTuple):
    """What an agent knows of others for :class:`PeerShuffling`."""

    address: np.ndarray  # (n, size) VACANT for an empty place
    age: np.ndarray  # (n, size) wakes since the address was heard from itself, as far as is known
    sent: np.ndarray  # (n, swap) places of which a copy is under way, to be used for what comes back
    random: np.ndarray  # (n, 1) state of a random generator, seeded anew by every wake


class Tips(NamedTuple):
    """What an agent knows of others for :class:`FriendsOfFriends`, beside its neighbours."""

    n_agents: np.ndarray  # (n, 1) how many agents there are
    tip: np.ndarray  # (n, size) neighbours of neighbours, or VACANT; each is asked once
    cursor: np.ndarray  # (n, 1) where the next one goes


class List(NamedTuple):
    """What an agent knows of others for :class:`CandidateList`, beside its neighbours."""

    candidate: np.ndarray  # (n, size) the agent itself for an empty place


class Sampler(ABC):
    """The parts of a sampler. A class decorated with ``@sampler`` counts as a subclass; nothing inherits from this."""

    @property
    def messages(self: Any) -> Any:
        """What its messages hold, of the two kinds that there are. Default: of who swaps addresses, so many of them."""
        return {kind: Addresses(self.swap) if self.scratch_size() else () for kind in (SHUFFLE, SHUFFLED)}

    def dice(self, kappa):
        """Uniform numbers used by a wake that samples kappa peers."""
        return kappa + 1

    @abstractmethod
    def start(self, arrays: Any) -> Any:
        """What the hosted agents know to begin with: a NamedTuple of arrays."""

    @abstractmethod
    def sample(self, data: Any, view: Any, dice: Any, out: Any) -> int:
        """Handler: write addresses of other agents; returns how many."""

    def refresh(self, data, view, dice, outbox):  # noqa: B027 - a default
        """Handler: what to do when the agent wakes. Default: nothing."""

    def merge(self, data, view, message, outbox):  # noqa: B027 - a default
        """Handler: what to do with a message. Default: nothing."""

    def scratch_size(self):
        """How many numbers of ``outbox.scratch`` a handler uses. Default: a pair for each address that it swaps."""
        return 2 * self.swap if "swap" in self._fields else 0


def sampler(cls: Any) -> Any:
    """Make a sampler of a NamedTuple class: give every part that it leaves out its default."""
    return complete(cls, Sampler)


@inline
def lists(addresses, address):
    """Whether an address is among some."""
    listed = False
    for k in range(addresses.shape[0]):
        listed = listed or addresses[k] == address
    return listed


@inline
def distinct(dice, count, population, out):
    """So many distinct numbers below ``population``, each set of them as likely as any other (Floyd's algorithm)."""
    for k in range(count):
        top = population - count + k
        chosen = int(dice[k] * (top + 1))
        out[k] = top if lists(out[:k], chosen) else chosen
    return count


@sampler
class Uniform(NamedTuple):
    """Uniform samples from all other agents. It must know how many there are, and their addresses: 0, 1, 2, ...

    Examples
    --------
    >>> import coterie as ct
    >>> ct.Learned("cd", ct.GraphRule(), sampling=ct.sampling.Uniform()).sampling
    Uniform()
    """

    def dice(self, kappa):
        """Uniform numbers used by a wake that samples kappa peers."""
        return kappa

    def start(self, arrays):
        """What the hosted agents know."""
        return Everyone(np.full((arrays.address.shape[0], 1), arrays.n_agents))

    def sample(self, data, view, dice, out):
        """Addresses of other agents; returns how many."""
        count = distinct(dice, min(out.shape[0], view.n_agents[0] - 1), view.n_agents[0] - 1, out)
        for k in range(count):
            if out[k] >= data.address:  # everybody but me
                out[k] += 1
        return count


def _check_swap(made):
    """Refuse to swap more than is known."""
    if made.swap > made.size:
        raise ParameterError(f"{made!r}: expected swap <= size")


@checked(_check_swap, size=integer, swap=integer)
@sampler
class PeerShuffling(NamedTuple):
    """Gossip-based peer sampling: agents swap parts of their views.

    Parameters
    ----------
    size : int
        How many others an agent knows at a time.
    swap : int
        How many it swaps at once.

    Examples
    --------
    >>> import coterie as ct
    >>> ct.Learned("cd", ct.GraphRule(), sampling="shuffle").sampling
    PeerShuffling(size=20, swap=8)
    """

    size: int = 20
    swap: int = 8

    def start(self, arrays):
        """What the hosted agents know to begin with: those that come after them in a circle."""
        n, known = arrays.address.shape[0], min(self.size, arrays.n_agents - 1)
        address = np.full((n, self.size), VACANT)
        address[:, :known] = (arrays.address[:, None] + 1 + np.arange(known)) % arrays.n_agents
        return View(address, np.zeros((n, self.size), np.int64), np.full((n, self.swap), VACANT), np.ones((n, 1), int))

    def sample(self, data, view, dice, out):
        """Addresses of other agents; returns how many."""
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
        """Offer a part of my view, and myself, to the one I have not heard of for longest; it leaves my view."""
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
        if known > 1:  # the last one stays: an agent that knows nobody could never come back
            view.address[oldest] = VACANT
        draw(view, self.swap - 1)
        outbox.scratch[0], outbox.scratch[1] = data.address, 0.0
        end = write(view, outbox.scratch, 2)
        send(outbox, peer, SHUFFLE, outbox.scratch[:end])

    def merge(self, data, view, message, outbox):
        """Answer with a part of my view; take in what I was sent, for what I sent or had no use for."""
        if message.kind == SHUFFLE:
            draw(view, self.swap)
            end = write(view, outbox.scratch, 0)
            send(outbox, message.sender, SHUFFLED, outbox.scratch[:end])
        take_in(data, view, message.text)


@noinline
def draw(view, count):
    """Choose so many random places of my view, and note them as sent."""
    size = view.address.shape[0]
    for k in range(view.sent.shape[0]):
        view.sent[k] = VACANT
    for k in range(count):
        view.random[0] = view.random[0] * FACTOR % MODULUS
        place = view.random[0] % size
        for _ in range(size):  # the next one that is known and not chosen yet
            if view.address[place] != VACANT and not lists(view.sent[:k], place):
                view.sent[k] = place
                break
            place = (place + 1) % size


@noinline
def write(view, out, end):
    """Addresses and ages of the places noted as sent."""
    for k in range(view.sent.shape[0]):
        place = view.sent[k]
        if place != VACANT:
            out[end], out[end + 1] = view.address[place], view.age[place]
            end += 2
    return end


@noinline
def take_in(data, view, text):
    """Addresses that I do not know yet go to empty places first, and then to those of which I have sent a copy."""
    size, turn = view.address.shape[0], 0
    for k in range(0, text.shape[0], 2):
        if not (0.0 <= text[k] < FARTHEST and 0.0 <= text[k + 1] < FARTHEST):
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
    """Neighbours, neighbours of neighbours, and random peers: a third of each. It must know how many agents there are.

    Agents that wake tell a neighbour of some of their others, and are told of some of its own. For more than some
    hundred agents: their graph gets worse with their number much more slowly than where they meet random peers only.

    Parameters
    ----------
    size : int
        How many neighbours of neighbours an agent remembers until it has asked them.
    swap : int
        How many it is told of at once.

    Examples
    --------
    >>> import coterie as ct
    >>> ct.Learned("cd", ct.GraphRule(), sampling="friends").sampling
    FriendsOfFriends(size=16, swap=4)
    """

    size: int = 16
    swap: int = 4

    def start(self, arrays):
        """What the hosted agents know to begin with: how many there are."""
        n = arrays.address.shape[0]
        return Tips(np.full((n, 1), arrays.n_agents), np.full((n, self.size), VACANT), np.zeros((n, 1), np.int64))

    def sample(self, data, view, dice, out):
        """Addresses of other agents; returns how many: what comes up twice is asked once."""
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
            if peer == VACANT:  # a random one, also where there are no neighbours yet
                peer = int(die * (view.n_agents[0] - 1))
                if peer >= data.address:  # everybody but me
                    peer += 1
            if not lists(out[:count], peer):
                out[count] = peer
                count += 1
        return count

    def refresh(self, data, view, dice, outbox):
        """Tell a random neighbour of some others."""
        slots = data.peer.shape[0]
        if slots > 0:
            place = int(dice[dice.shape[0] - 1] * slots)
            friend = unlisted(data.peer, place, view.tip[:0])
            if friend != VACANT:
                end = name_some(data.peer, place + 1, self.swap, friend, outbox.scratch)
                send(outbox, friend, SHUFFLE, outbox.scratch[:end])

    def merge(self, data, view, message, outbox):
        """Remember those I am told of who are no neighbours of mine; in turn, name some of my own."""
        for k in range(0, message.text.shape[0], 2):
            if 0.0 <= message.text[k] < view.n_agents[0]:
                peer = int(message.text[k])
                if peer != data.address and slot_of(data.peer, peer, VACANT) == VACANT:
                    view.tip[view.cursor[0]] = peer
                    view.cursor[0] = (view.cursor[0] + 1) % view.tip.shape[0]
        if message.kind == SHUFFLE and data.peer.shape[0] > 0:
            # From a place that depends on who asks, and moves on: not always the same ones.
            begin = (message.sender + view.cursor[0]) % data.peer.shape[0]
            end = name_some(data.peer, begin, self.swap, message.sender, outbox.scratch)
            send(outbox, message.sender, SHUFFLED, outbox.scratch[:end])


@noinline
def name_some(peers, place, count, but, out):
    """Write the addresses of some neighbours, with no age, from a slot on; returns where they end."""
    end = 0
    for k in range(peers.shape[0]):
        peer = peers[(place + k) % peers.shape[0]]
        if peer != VACANT and peer != but and end < 2 * count:
            out[end], out[end + 1] = peer, 0.0
            end += 2
    return end


@noinline
def unlisted(peers, place, candidates):
    """The neighbour in a slot, or in the next one, who is not among the candidates; VACANT if there is none."""
    for k in range(peers.shape[0]):
        peer = peers[(place + k) % peers.shape[0]]
        if peer != VACANT and not lists(candidates, peer):
            return peer
    return VACANT


@checked(among=partial(integers, shape=(None, None), expected="a row of agents' integers for each agent"))
@sampler
class CandidateList(NamedTuple):
    """Peers of a list that each agent is given; and now and then a neighbour who is not in it.

    Agents that learn a graph so come to the best one over the pairs in the lists, whatever their number is:
    :func:`coterie.exact_graph` takes the same lists.

    Parameters
    ----------
    among : (n, any) array_like of int
        A row for each agent: whom it may ask. Its own number is an empty place, and what is there twice counts once.

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
        """Uniform numbers used by a wake that samples kappa peers."""
        return kappa + 1

    def start(self, arrays):
        """What the hosted agents know: their rows."""
        if self.among.shape[0] != arrays.n_agents:
            raise MismatchError(f"{self!r}, and there are {arrays.n_agents} agents: give it a row for each")
        if self.among.size and not (self.among.min() >= 0 and self.among.max() < arrays.n_agents):
            raise MismatchError(
                f"candidates are {self.among.min()} to {self.among.max()}: the agents are 0 to {arrays.n_agents - 1}"
            )
        return List(self.among[arrays.address])

    def sample(self, data, view, dice, out):
        """Addresses of other agents; returns how many: what comes up twice is asked once."""
        listed = view.candidate.shape[0]
        places = distinct(dice, min(out.shape[0], listed + 1), listed + 1, out)
        count = 0
        for k in range(places):
            if out[k] < listed:
                peer = view.candidate[int(out[k])]
            else:  # one place for all other neighbours: those of others' lists, or of a graph to begin with
                peer = unlisted(data.peer, int(dice[dice.shape[0] - 1] * data.peer.shape[0]), view.candidate)
            if peer != VACANT and peer != data.address and not lists(out[:count], peer):
                out[count] = peer
                count += 1
        return count


#: Samplers by name.
SAMPLERS = {"uniform": Uniform(), "shuffle": PeerShuffling(), "friends": FriendsOfFriends()}


def resolve_sampler(sampling: Any) -> Any:
    """A sampler given as a rule or by its name."""
    sampling = named("sampling", sampling, SAMPLERS)
    if not isinstance(sampling, Sampler):
        raise ParameterError(f"{sampling!r} does not sample peers: choose one of {', '.join(SAMPLERS)}")
    return sampling
