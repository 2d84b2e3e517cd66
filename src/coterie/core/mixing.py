"""Averages over neighbours: the weights, and what agents tell each other so that both ends of a tie agree on them.

Metropolis weights (Xiao, Boyd and Lall 2005), ``W_ij = 1 / (1 + max(d_i, d_j))`` with d_i the number of neighbours, and
``W_ii = 1 - sum_j W_ij``, are symmetric, and rows sum to 1: averaging keeps the mean of all models, on any graph.
Agents tell how many neighbours they have when they greet, when that changes, and when one asks who has not heard it.
"""

from __future__ import annotations

import numpy as np

from ..errors import MismatchError
from .compile import inline, kernel
from .letters import Counter, Number, Vector
from .linear import axpy, copy_to, gather, scatter
from .models import Linear
from .rules import NamedTuple, Word, checked
from .world import EVERYONE, VACANT, data_of, owners, rows, send

#: Kinds of letters: my parameters that are not personal; how many neighbours I have, and whether I ask for yours.
MODEL, DEGREE = 0, 1
LETTERS = {MODEL: Vector(), DEGREE: (Counter(), Number(0.0, 1.0, counted=False))}
#: Where the weights come from: the numbers of neighbours, or the weights of the graph. Words are numbers inside.
MIXINGS = ("metropolis", "weights")
METROPOLIS, WEIGHTS = 0, 1
#: A number of neighbours that nobody has told yet.
UNKNOWN = -1.0


class Tie(NamedTuple):
    """State of the ties."""

    copy: np.ndarray  # (ties, q) the last parameters heard from the neighbour, those that are not personal
    neighbours: np.ndarray  # (ties,) how many neighbours it has, or UNKNOWN
    asked: np.ndarray  # (ties,) whether it has asked how many I have


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


def new_ties(world, theta):
    """State before the first letter: until a neighbour is heard, it is taken to agree."""
    owner = owners(world.tie_start)
    copy, none = np.ascontiguousarray(theta[owner][:, world.sent]), np.full(owner.shape[0], UNKNOWN)
    return Tie(copy, none, np.zeros(owner.shape[0]))


@inline
def open_tie(data, theta, ties, slot):
    """The same for one tie that is new."""
    gather(theta, data.sent, ties.copy[slot])
    ties.neighbours[slot], ties.asked[slot] = UNKNOWN, 1.0


@inline
def count_neighbours(data):
    """d_i."""
    count = 0.0
    for t in range(data.peer.shape[0]):
        if data.peer[t] != VACANT:
            count += 1.0
    return count


@inline
def mixing_weight(mixing, data, ties, mine, t):
    """W_ij of tie t, where I have so many neighbours; nothing before the other end has told how many it has."""
    if data.peer[t] == VACANT:
        return 0.0
    if mixing == WEIGHTS:
        return data.weight[t]
    if ties.neighbours[t] == UNKNOWN:
        return 0.0
    return 1.0 / (1.0 + max(mine, ties.neighbours[t]))


@inline
def average(mixing, data, theta, ties, out):
    """``out = sum_j W_ij x_j``, of the parameters that are not personal."""
    mine, rest = count_neighbours(data), 1.0
    for t in range(data.peer.shape[0]):
        rest -= mixing_weight(mixing, data, ties, mine, t)
    gather(theta, data.sent, out)
    axpy(rest - 1.0, out, out)
    for t in range(data.peer.shape[0]):
        weight = mixing_weight(mixing, data, ties, mine, t)
        if weight > 0.0:
            axpy(weight, ties.copy[t], out)


@kernel
def average_all(mixing, world, theta, tie, out):
    """The same for all agents; ``out`` has their whole models."""
    for k in range(theta.shape[0]):
        a, b = world.tie_start[k], world.tie_start[k + 1]
        data = data_of(world, k, VACANT)
        copy_to(theta[k], out[k])
        mean = out[theta.shape[0], : data.sent.shape[0]]
        average(mixing, data, theta[k], rows(tie, a, b), mean)
        scatter(mean, data.sent, out[k])


def averaged(mixing, world, theta, tie):
    """The models of all agents, averaged with what each has heard from its neighbours."""
    out = np.zeros((theta.shape[0] + 1, theta.shape[1]))  # the last row is scratch
    average_all(mixing, world._replace(model=Linear()), theta, tie, out)  # nobody asks the model
    return out[:-1]


@inline
def tell(mixing, data, theta, told, ties, outbox):
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
            unheard = ties.neighbours[t] == UNKNOWN and not greets  # those greet, too: no need to ask
            need = need or ties.asked[t] > 0.0 or unheard
            ask = 1.0 if unheard else ask
            ties.asked[t] = 0.0
    if need:
        told[0] = mine
        outbox.scratch[0], outbox.scratch[1] = mine, ask
        send(outbox, EVERYONE, DEGREE, outbox.scratch[:2])


@inline
def hear(data, ties, letter):
    """Remember what a neighbour tells."""
    if letter.slot == VACANT:
        return
    if letter.kind == MODEL and letter.text.shape[0] == data.sent.shape[0]:
        copy_to(letter.text, ties.copy[letter.slot])
    if letter.kind == DEGREE and letter.text.shape[0] == 2 and letter.text[0] >= 1.0:  # it has one neighbour, me
        ties.neighbours[letter.slot] = letter.text[0]
        if letter.text[1] > 0.0:
            ties.asked[letter.slot] = 1.0
