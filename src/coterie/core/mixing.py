"""Averages over neighbours: the weights, and what agents tell each other so that both ends of an edge agree on them.

Metropolis weights (Xiao, Boyd and Lall 2005), ``W_ij = 1 / (1 + max(d_i, d_j))`` with d_i the number of neighbours, and
``W_ii = 1 - sum_j W_ij``, are symmetric, and rows sum to 1: averaging keeps the mean of all models, on any graph.
Agents tell how many neighbours they have when they greet, when that changes, and when one asks who has not heard it.
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

#: Kinds of messages: my parameters that are not personal; how many neighbours I have, and whether I ask for yours.
MODEL, DEGREE = 0, 1
MESSAGES = {MODEL: Vector(), DEGREE: (Counter(), Number(0.0, 1.0, counted=False))}
#: Where the weights come from: the numbers of neighbours, or the weights of the graph. Words are numbers inside.
MIXINGS = ("metropolis", "weights")
METROPOLIS, WEIGHTS = 0, 1
#: A number of neighbours that nobody has told yet.
UNKNOWN = -1.0


class Edge(NamedTuple):
    """State of the edges."""

    copy: np.ndarray  # (edges, q) the last parameters heard from the neighbour, those that are not personal
    neighbours: np.ndarray  # (edges,) how many neighbours it has, or UNKNOWN
    asked: np.ndarray  # (edges,) whether it has asked how many I have


def mixes(cls):
    """Refuse a word for ``mixing`` that is not known when a method is made, and show the word where it is unusual."""

    def shown(self):
        local, word = self.__getnewargs__()
        return f"{type(self).__name__}({local!r}{'' if word == MIXINGS[METROPOLIS] else f', mixing={word!r}'})"

    cls.__repr__ = shown
    return checked(mixing=Word(*MIXINGS))(cls)


def check_mixing(method, problem):
    """Refuse a graph whose weights are no mixing matrix, if they are to be one."""
    degrees = problem.graph.degrees
    if method.mixing == WEIGHTS and np.any(degrees > 1.0 + 1e-9):
        most = int(np.argmax(degrees))
        raise MismatchError(
            f'mixing="weights" needs a graph whose weights are a mixing matrix: those of agent '
            f"{problem.members[most]!r} sum up to {degrees[most]:g}, and may not to more than 1; what is left is its "
            'own weight. Use mixing="metropolis", or divide the weights'
        )


def new_edges(arrays, theta):
    """State before the first letter: until a neighbour is heard, it is taken to agree."""
    owner = owners(arrays.edge_start)
    copy, none = np.ascontiguousarray(theta[owner][:, arrays.sent]), np.full(owner.shape[0], UNKNOWN)
    return Edge(copy, none, np.zeros(owner.shape[0]))


@inline
def open_edge(data, theta, edges, slot):
    """The same for one edge that is new."""
    gather(theta, data.sent, edges.copy[slot])
    edges.neighbours[slot], edges.asked[slot] = UNKNOWN, 1.0


@inline
def count_neighbours(data):
    """d_i."""
    count = 0.0
    for t in range(data.peer.shape[0]):
        if data.peer[t] != VACANT:
            count += 1.0
    return count


@inline
def mixing_weight(mixing, data, edges, mine, t):
    """W_ij of edge t, where I have so many neighbours; nothing before the other end has told how many it has."""
    if data.peer[t] == VACANT:
        return 0.0
    if mixing == WEIGHTS:
        return data.weight[t]
    if edges.neighbours[t] == UNKNOWN:
        return 0.0
    return 1.0 / (1.0 + max(mine, edges.neighbours[t]))


@inline
def average(mixing, data, theta, edges, out):
    """``out = sum_j W_ij x_j``, of the parameters that are not personal."""
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
    """The same for all agents; ``out`` has their whole models."""
    for k in range(theta.shape[0]):
        a, b = arrays.edge_start[k], arrays.edge_start[k + 1]
        data = data_of(arrays, k, VACANT)
        copy_to(theta[k], out[k])
        mean = out[theta.shape[0], : data.sent.shape[0]]
        average(mixing, data, theta[k], rows(edge, a, b), mean)
        scatter(mean, data.sent, out[k])


def averaged(mixing, arrays, theta, edge):
    """The models of all agents, averaged with what each has heard from its neighbours."""
    out = np.zeros((theta.shape[0] + 1, theta.shape[1]))  # the last row is scratch
    average_all(mixing, arrays._replace(model=Linear()), theta, edge, out)  # nobody asks the model
    return out[:-1]


@inline
def tell(mixing, data, theta, told, edges, outbox):
    """My parameters that are not personal, to all neighbours; and how many these are, if there is need."""
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
            unheard = edges.neighbours[t] == UNKNOWN and not greets  # those greet, too: no need to ask
            need = need or edges.asked[t] > 0.0 or unheard
            ask = 1.0 if unheard else ask
            edges.asked[t] = 0.0
    if need:
        told[0] = mine
        outbox.scratch[0], outbox.scratch[1] = mine, ask
        send(outbox, EVERYONE, DEGREE, outbox.scratch[:2])


@inline
def hear(data, edges, message):
    """Remember what a neighbour tells."""
    if message.slot == VACANT:
        return
    if message.kind == MODEL and message.text.shape[0] == data.sent.shape[0]:
        copy_to(message.text, edges.copy[message.slot])
    if message.kind == DEGREE and message.text.shape[0] == 2 and message.text[0] >= 1.0:  # it has one neighbour, me
        edges.neighbours[message.slot] = message.text[0]
        if message.text[1] > 0.0:
            edges.asked[message.slot] = 1.0
