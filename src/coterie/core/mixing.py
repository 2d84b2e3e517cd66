"""Averages over neighbours: mixing weights, and the messages by which both ends of an edge agree on these.

Metropolis weights (Xiao, Boyd and Lall 2005), ``W_ij = 1 / (1 + max(d_i, d_j))`` with d_i the number of neighbours, and
``W_ii = 1 - sum_j W_ij``, are symmetric, and rows sum to 1: averaging keeps the mean of all models, on any graph.
Agents send their number of neighbours when they greet, when it changes, and in answer to an agent that does not know
it.
"""

from __future__ import annotations

import numpy as np

from ..errors import MismatchError
from .arrays import EVERYONE, VACANT, data_of, owners, rows, send
from .compile import inline, kernel
from .linear import axpy, copy_to, gather, scatter
from .messages import Counter, Number, Vector
from .models import Linear
from .rules import NamedTuple, Word, checked

#: Kinds of messages: parameters that are not personal; the sender's number of neighbours, and whether it asks for one.
MODEL, DEGREE = 0, 1
MESSAGES = {MODEL: Vector(), DEGREE: (Counter(), Number(0.0, 1.0, counted=False))}
#: Values of ``mixing``: weights from the numbers of neighbours, or the weights of the graph. Stored as numbers.
MIXINGS = ("metropolis", "weights")
METROPOLIS, WEIGHTS = 0, 1
#: A number of neighbours that is not known yet.
UNKNOWN = -1.0


class Edge(NamedTuple):
    """State of the edges."""

    copy: np.ndarray  # (edges, q) the last parameters received from the neighbour, without personal ones
    neighbours: np.ndarray  # (edges,) the neighbour's number of neighbours, or UNKNOWN
    asked: np.ndarray  # (edges,) whether the neighbour has asked for the agent's number


def mixes(cls):
    """Check ``mixing`` when a method is created, and show it in the repr if it is not the default."""

    def shown(self):
        local, word = self.__getnewargs__()
        return f"{type(self).__name__}({local!r}{'' if word == MIXINGS[METROPOLIS] else f', mixing={word!r}'})"

    cls.__repr__ = shown
    return checked(mixing=Word(*MIXINGS))(cls)


def check_mixing(method, problem):
    """With ``mixing="weights"``, raise a MismatchError for a graph whose weights are no mixing matrix."""
    degrees = problem.graph.degrees
    if method.mixing == WEIGHTS and np.any(degrees > 1.0 + 1e-9):
        most = int(np.argmax(degrees))
        raise MismatchError(
            f'mixing="weights" needs a graph whose weights are a mixing matrix: those of agent '
            f"{problem.members[most]!r} sum to {degrees[most]:g}, and must sum to at most 1; the rest is its "
            'own weight. Use mixing="metropolis", or divide the weights'
        )


def new_edges(arrays, theta):
    """Return the initial state: copies of neighbours start at the agent's own model."""
    owner = owners(arrays.edge_start)
    copy, none = np.ascontiguousarray(theta[owner][:, arrays.sent]), np.full(owner.shape[0], UNKNOWN)
    return Edge(copy, none, np.zeros(owner.shape[0]))


@inline
def open_edge(data, theta, edges, slot):
    """Initialise a new edge: the neighbour's copy starts at the agent's own model."""
    gather(theta, data.sent, edges.copy[slot])
    edges.neighbours[slot], edges.asked[slot] = UNKNOWN, 1.0


@inline
def count_neighbours(data):
    """Return d_i."""
    count = 0.0
    for t in range(data.peer.shape[0]):
        if data.peer[t] != VACANT:
            count += 1.0
    return count


@inline
def mixing_weight(mixing, data, edges, mine, t):
    """Return W_ij of edge t, for an agent with `mine` neighbours; 0 while the other end's number is unknown."""
    if data.peer[t] == VACANT:
        return 0.0
    if mixing == WEIGHTS:
        return data.weight[t]
    if edges.neighbours[t] == UNKNOWN:
        return 0.0
    return 1.0 / (1.0 + max(mine, edges.neighbours[t]))


@inline
def average(mixing, data, theta, edges, out):
    """``out = sum_j W_ij x_j`` for the parameters that are not personal."""
    mine, rest = count_neighbours(data), 1.0
    for t in range(data.peer.shape[0]):
        rest -= mixing_weight(mixing, data, edges, mine, t)
    gather(theta, data.sent, out)
    axpy(rest - 1.0, out, out)
    for t in range(data.peer.shape[0]):
        weight = mixing_weight(mixing, data, edges, mine, t)
        if weight > 0.0:
            axpy(weight, edges.copy[t], out)


@kernel
def average_all(mixing, arrays, theta, edge, out):
    """As :func:`average`, for all agents; ``out`` has their whole models."""
    for k in range(theta.shape[0]):
        a, b = arrays.edge_start[k], arrays.edge_start[k + 1]
        data = data_of(arrays, k, VACANT)
        copy_to(theta[k], out[k])
        mean = out[theta.shape[0], : data.sent.shape[0]]
        average(mixing, data, theta[k], rows(edge, a, b), mean)
        scatter(mean, data.sent, out[k])


def averaged(mixing, arrays, theta, edge):
    """Return the models of all agents, averaged with those received from neighbours."""
    out = np.zeros((theta.shape[0] + 1, theta.shape[1]))  # the last row is scratch space
    average_all(mixing, arrays._replace(model=Linear()), theta, edge, out)  # the model is not used
    return out[:-1]


@inline
def tell(mixing, data, theta, told, edges, outbox):
    """Send the parameters that are not personal to all neighbours; and the number of neighbours, if needed."""
    q, mine = data.sent.shape[0], count_neighbours(data)
    if q == 0 or mine == 0.0:
        return
    text = outbox.scratch[:q]
    gather(theta, data.sent, text)
    send(outbox, EVERYONE, MODEL, text)
    if mixing == WEIGHTS:
        return
    greets, need, ask = told[0] == UNKNOWN, told[0] != mine, 0.0
    for t in range(data.peer.shape[0]):
        if data.peer[t] != VACANT:
            unheard = edges.neighbours[t] == UNKNOWN and not greets  # neighbours that greet send their number
            need = need or edges.asked[t] > 0.0 or unheard
            ask = 1.0 if unheard else ask
            edges.asked[t] = 0.0
    if need:
        told[0] = mine
        outbox.scratch[0], outbox.scratch[1] = mine, ask
        send(outbox, EVERYONE, DEGREE, outbox.scratch[:2])


@inline
def hear(data, edges, message):
    """Store a neighbour's message."""
    if message.slot == VACANT:
        return
    if message.kind == MODEL and message.text.shape[0] == data.sent.shape[0]:
        copy_to(message.text, edges.copy[message.slot])
    if message.kind == DEGREE and message.text.shape[0] == 2 and message.text[0] >= 1.0:  # at least this agent
        edges.neighbours[message.slot] = message.text[0]
        if message.text[1] > 0.0:
            edges.asked[message.slot] = 1.0
