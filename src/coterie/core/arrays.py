"""The agents' arrays is the struct of arrays of the agents that one process hosts: all of them, a block, or exactly one.

A handler of a method sees one agent: its :class:`Data`, its own state, its edges, and the message in hand. It never
sees the agents' arrays, so the same handler runs in the compiled simulator, on a shard of a cluster, and on a real peer.
"""

from __future__ import annotations

import operator
import os
from typing import Any, NamedTuple

import numpy as np

from .compile import class_of, each_field, inline, kernel, overload
from .linear import DenseRows, PickedRows, axpy, copy_to, frozen, total
from .messages import lengths_of, longest
from .models import Linear
from .rules import remake, rule

#: An empty slot in a list of edges; also the slot of a sender I have no edge to.
VACANT = -1
#: Lehmer's generator with the constants of Park, Miller and Stockmeyer (1993), which picks the rows of a minibatch:
#: small enough for plain and compiled integers alike.
FACTOR, MODULUS = 48271, 2**31 - 1
#: In the place of a die where none was thrown.
NO_DIE = -1.0
#: What becomes of a parameter: it stays with its agent, is one and the same for all, or is tied over the graph.
PERSONAL, SHARED, TIED = 0, 1, 2
#: An address: all my neighbours. Not VACANT, or a message along an empty edge would be a broadcast.
EVERYONE = -2


class AgentArrays(NamedTuple):
    """The agents of one process. Agent k of the agents' arrays has the address ``address[k]`` in the network."""

    loss: Any  # the loss of one example
    rows: Any  # features of all examples, DenseRows or SparseRows
    labels: np.ndarray  # (rows,)
    row_start: np.ndarray  # (n + 1,) rows of agent k: row_start[k] to row_start[k + 1] - 1
    edge_start: np.ndarray  # (n + 1,) edges of agent k, likewise
    peer: np.ndarray  # (edges,) address at the other end, or VACANT
    inverse: np.ndarray  # (edges,) where this edge sits among those of the agent at the other end, when last seen
    weight: np.ndarray  # (edges,) W_ij
    choice: np.ndarray  # (edges,) how likely the edge is chosen for an exchange, up to a factor for each agent
    row_weight: np.ndarray  # (n,) weight of one example in f_i: 1/m_i or 1
    ridge: np.ndarray  # (n,) r_i
    loss_weight: np.ndarray  # (n,) a_i, or a_i / D_ii when scaled
    curvature: np.ndarray  # (n,) L_i^loc, a bound on the curvature of f_i
    address: np.ndarray  # (n,) the agents' own addresses
    smooth: float  # s
    scaled: bool  # whether a_i grows with D_ii
    radius: float  # of the l1 ball that each output's part of a model stays in
    outputs: int  # how many such parts a model has
    n_agents: int  # how many agents there are in the whole network
    model: Any = Linear()  # what turns rows and parameters into losses
    roles: np.ndarray = frozen(np.zeros(0, np.int8))  # (p,) PERSONAL, SHARED or TIED
    sent: np.ndarray = frozen(np.zeros(0, np.int64))  # (q,) which parameters are not PERSONAL
    sheet: np.ndarray = np.zeros(0)  # scratch paper of the model, and room for the labels of a minibatch
    picked: Any = PickedRows(DenseRows(np.zeros((0, 0))), np.zeros(0, np.int64))  # room for which rows a minibatch has


class Data(NamedTuple):
    """What one agent knows: its examples, its part of the objective, its edges."""

    loss: Any
    rows: Any
    labels: np.ndarray
    peer: np.ndarray
    weight: np.ndarray
    choice: np.ndarray
    row_weight: float
    ridge: float
    loss_weight: float
    curvature: float
    address: int
    smooth: float
    scaled: bool
    radius: float
    outputs: int
    model: Any
    roles: np.ndarray
    sent: np.ndarray
    sheet: np.ndarray
    picked: Any
    die: float  # what picked the rows of a minibatch, for models that draw more from it; else NO_DIE
    ahead: Any = None  # rows that are needed next, not by this agent: only :func:`look_ahead` may touch them


class Randomness(NamedTuple):
    """Everything random that a handler may use. The engine draws it, so that any run can be replayed."""

    dice: np.ndarray  # (dice,) uniforms on [0, 1)
    peer: int  # the neighbour to talk to where an engine replays a schedule; VACANT to let the first die choose
    moment: float  # time since the start, in mean intervals between two wakes of one agent


def system_dice(count: int) -> np.ndarray:
    """Uniform numbers from the operating system, which nobody can predict: for agents that are real."""
    return (np.frombuffer(os.urandom(8 * count), np.uint64) >> np.uint64(11)) * 2.0**-53


class Message(NamedTuple):
    """A message as its receiver sees it."""

    sender: int  # address
    slot: int  # where the sender sits among my edges, VACANT if I have none to it
    kind: int  # the method's own code
    text: np.ndarray


class Outbox(NamedTuple):
    """Outgoing messages of one event, and scratch space for the handler that writes them."""

    text: np.ndarray  # (capacity, size)
    length: np.ndarray  # (capacity,) numbers of text in use
    author: np.ndarray  # (capacity,) who wrote it, numbered in the world
    to: np.ndarray  # (capacity,) address, or EVERYONE
    slot: np.ndarray  # (capacity,) where that address sits among the author's edges, or VACANT: nobody said
    kind: np.ndarray  # (capacity,)
    cursor: np.ndarray  # HEAD, TAIL, AUTHOR, REFUSED, NEEDS_ROOM
    scratch: np.ndarray  # (method.scratch_size,) for use within one call of a handler


HEAD, TAIL, AUTHOR, REFUSED, NEEDS_ROOM = 0, 1, 2, 3, 4


def new_outbox(method, arrays, p, capacity):
    """An empty outbox for ``capacity`` messages of a method."""
    needs = max(method.scratch_size(arrays, p), p if method.training.jobs else 0)  # training writes a gradient there
    text, scratch = np.zeros((capacity, longest(lengths_of(method.messages, p)))), _aligned(needs)
    return Outbox(text, *[np.zeros(capacity, np.int64) for _ in range(5)], np.zeros(5, np.int64), scratch)


def _aligned(size):
    """Zeros that begin with a cache line: sums are made there, up to a fifth faster than across two lines."""
    room = np.zeros(size + 7)
    first = -room.ctypes.data % 64 // 8
    return room[first : first + size]


class Ragged(NamedTuple):
    """State of which agents hold different amounts: agent k has ``values[start[k] : start[k + 1]]``."""

    start: np.ndarray  # (n + 1,)
    values: np.ndarray


def ragged(sizes):
    """Room for so many numbers of each agent."""
    start = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
    return Ragged(start, np.zeros(start[-1]))


@rule
class Heard(NamedTuple):
    """The last message of every agent, stored once, in place of one copy for each of its neighbours.

    Handlers see no difference: ``edges.copy[slot]`` is the row that the neighbour in that slot has written. It holds
    for a method that ``publishes``, while no message is late or lost: then all neighbours have heard the same.
    """

    message: np.ndarray  # (n, p) by address
    peer: np.ndarray  # (edges,) whose message each edge reads

    def __getitem__(self, slot):
        return self.message[self.peer[slot]]

    def __array__(self, dtype=None, copy=None):
        return np.asarray(self.message[self.peer], dtype)


@overload(operator.getitem)
def _heard(group, slot):
    if class_of(group) is Heard:
        return lambda group, slot: group.message[group.peer[slot]]
    return None


def stored_once(method, arrays, theta):
    """State of a method that ``publishes`` before the first letter, with messages stored once: see :class:`Heard`."""
    nothing = np.zeros(0)
    edges = {"peer": arrays.peer[:0], "inverse": arrays.inverse[:0], "weight": nothing, "choice": nothing}
    own, edge = method.start(arrays._replace(edge_start=np.zeros_like(arrays.edge_start), **edges), theta)
    return own, type(edge)(Heard(theta.copy(), arrays.peer))


def as_sender(group, address):
    """The state of one edge that reads what ``address`` itself has written: where its message is stored once."""
    return type(group)(*[remake(part, (part.message, address)) for part in group])


@overload(as_sender)
def _as_sender(group, address):
    each = "remake(group.{field}, (group.{field}.message, address))"
    return each_field(group, "group, address", each, each, remake=remake)


@inline
def send(outbox, to, kind, text, slot=VACANT):
    """Post a message. A full box refuses it and says so in the cursor; the engine raises when it sees that.

    Who knows the ``slot`` of its neighbour spares the receiver a search.
    """
    k = outbox.cursor[TAIL]
    if k >= outbox.to.shape[0] or text.shape[0] > outbox.text.shape[1]:
        outbox.cursor[REFUSED] += 1
        return
    copy_to(text, outbox.text[k])
    outbox.length[k] = text.shape[0]
    outbox.author[k] = outbox.cursor[AUTHOR]
    outbox.to[k] = to
    outbox.slot[k] = slot
    outbox.kind[k] = kind
    outbox.cursor[TAIL] = k + 1


@inline
def slot_of(peers, address, hint):
    """Where an address sits among my edges, or VACANT. Looks at the slot ``hint`` first."""
    if 0 <= hint < peers.shape[0] and peers[hint] == address:
        return hint
    slot = VACANT
    for k in range(peers.shape[0]):  # to the end: a search without a branch is faster than one that stops
        slot = k if peers[k] == address else slot
    return slot


@inline
def choose(data, randomness):
    """The edge to talk along: to the neighbour asked for, or drawn as likely as ``data.choice`` says; or VACANT."""
    if randomness.peer != VACANT:
        return slot_of(data.peer, randomness.peer, VACANT)
    rest = randomness.dice[0] * total(data.choice)
    slot = VACANT
    for k in range(data.choice.shape[0]):
        if data.choice[k] > 0.0:
            slot = k
            rest -= data.choice[k]
            if rest < 0.0:
                break
    return slot


@inline
def importance(data, degree):
    """a_i: what an agent weighs its own loss with. Without edges it has only itself to please, at any weight."""
    if not data.scaled:
        return data.loss_weight
    return data.loss_weight * degree if degree > 0.0 else 1.0


@inline
def data_of(arrays, k, following=VACANT):
    """What agent k of the agents' arrays knows; and whose rows to load meanwhile, because that agent wakes next."""
    a, b = arrays.row_start[k], arrays.row_start[k + 1]
    first, last = a, a
    if following != VACANT:
        first, last = arrays.row_start[following], arrays.row_start[following + 1]
    c, d = arrays.edge_start[k], arrays.edge_start[k + 1]
    return Data(
        arrays.loss,
        arrays.rows.take(a, b),
        arrays.labels[a:b],
        arrays.peer[c:d],
        arrays.weight[c:d],
        arrays.choice[c:d],
        arrays.row_weight[k],
        arrays.ridge[k],
        arrays.loss_weight[k],
        arrays.curvature[k],
        arrays.address[k],
        arrays.smooth,
        arrays.scaled,
        arrays.radius,
        arrays.outputs,
        arrays.model,
        arrays.roles,
        arrays.sent,
        arrays.sheet,
        arrays.picked,
        NO_DIE,
        arrays.rows.take(first, last),
    )


@inline
def pick_rows(die, m, out):
    """Rows of a minibatch, each of them any of m with the same probability: one die begins a sequence that picks them.

    One die for each row would take as much memory as the rows of all steps.
    """
    state = 1 + int(die * (MODULUS - 1))
    for k in range(out.shape[0]):
        state = state * FACTOR % MODULUS
        out[k] = min(int(state / MODULUS * m), m - 1)


@inline
def minibatch(data, die, count):
    """The same agent with ``count`` of its rows: f_i in the mean over the die."""
    m = data.labels.shape[0]
    pick, labels = data.picked.pick[:count], data.sheet[:count]
    pick_rows(die, m, pick)
    for k in range(count):
        labels[k] = data.labels[pick[k]]
    return Data(
        data.loss,
        remake(data.picked, (data.rows, pick)),
        labels,
        data.peer,
        data.weight,
        data.choice,
        data.row_weight * m / count,
        data.ridge,
        data.loss_weight,
        data.curvature,
        data.address,
        data.smooth,
        data.scaled,
        data.radius,
        data.outputs,
        data.model,
        data.roles,
        data.sent,
        data.sheet[count:],
        data.picked,
        die,
        data.ahead,
    )


@inline
def add_loss_gradient(data, theta, scale, out):
    """``out += scale * grad f_i(theta)``, with f_i of :mod:`coterie.problem`."""
    data.model.gradient(data, theta, scale, out)
    axpy(2.0 * scale * data.ridge, theta, out)


@inline
def loss_of(data, theta):
    """``f_i(theta)``."""
    square = 0.0
    for k in range(theta.shape[0]):
        square += theta[k] * theta[k]
    return data.ridge * square + data.model.value(data, theta)


@kernel
def all_losses(arrays, theta, out):
    """f_i(theta_i) of all agents."""
    for k in range(theta.shape[0]):
        out[k] = loss_of(data_of(arrays, k, VACANT), theta[k])


@kernel
def all_gradients(arrays, theta, out):
    """Their gradients, added to ``out``."""
    for k in range(theta.shape[0]):
        add_loss_gradient(data_of(arrays, k, VACANT), theta[k], 1.0, out[k])


def row(group, i):
    """The same (nested) NamedTuple with every array indexed at i: one agent's part of the state."""
    if isinstance(group, Ragged):
        return group.values[group.start[i] : group.start[i + 1]]
    return type(group)(*[row(x, i) if isinstance(x, tuple) else x[i] for x in group])


def rows(group, first, last):
    """The same (nested) NamedTuple with every array sliced: one agent's part of the state of edges."""
    if isinstance(group, Heard):
        return remake(group, (group.message, group.peer[first:last]))
    return type(group)(*[rows(x, first, last) if isinstance(x, tuple) else x[first:last] for x in group])


@overload(row)
def _row(group, i):
    if class_of(group) is Ragged:
        return lambda group, i: group.values[group.start[i] : group.start[i + 1]]
    return each_field(group, "group, i", "group.{field}[i]", "row(group.{field}, i)", row=row)


@overload(rows)
def _rows(group, first, last):
    if class_of(group) is Heard:
        return lambda group, first, last: remake(group, (group.message, group.peer[first:last]))
    leaf, nest = "group.{field}[first:last]", "rows(group.{field}, first, last)"
    return each_field(group, "group, first, last", leaf, nest, rows=rows)


@inline
def agent(arrays, own, edge, k, following=VACANT):
    """What agent k knows, its state, and that of its edges: what a handler takes."""
    a, b = arrays.edge_start[k], arrays.edge_start[k + 1]
    return data_of(arrays, k, following), row(own, k), rows(edge, a, b)


def paper(arrays, model, batch=0):
    """The agents' arrays with a model, and room for its scratch paper and for minibatches of so many rows."""
    most = int(np.diff(arrays.row_start).max(initial=0))
    scratch = most if isinstance(model, Linear) else model.scratch
    empty = PickedRows(DenseRows(np.zeros((0, 0))), np.zeros(batch, np.int64))
    return arrays._replace(model=model, sheet=np.zeros(scratch + batch), picked=empty)


def owners(start: np.ndarray) -> np.ndarray:
    """Whose each edge is, or each row: the place of its agent in the world, from where those of each agent start."""
    return np.repeat(np.arange(start.shape[0] - 1), np.diff(start))


def widened(arrays: AgentArrays, slots: np.ndarray) -> tuple[AgentArrays, np.ndarray]:
    """The same arrays with so many slots for the edges of each agent, and where the old slots are now."""
    before = np.diff(arrays.edge_start)
    start = np.concatenate([[0], np.cumsum(slots)])
    place = np.arange(arrays.peer.shape[0]) + np.repeat(start[:-1] - arrays.edge_start[:-1], before)
    new: dict[str, Any] = {}
    for name, empty in (("peer", VACANT), ("inverse", VACANT), ("weight", 0.0), ("choice", 0.0)):
        old = getattr(arrays, name)
        new[name] = np.full(start[-1], empty, old.dtype)
        new[name][place] = old
    return arrays._replace(edge_start=frozen(start), **new), place
