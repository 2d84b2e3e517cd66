"""The arrays of the agents that one process hosts: all agents, a block of them, or exactly one.

A handler of a method sees one agent: its :class:`Data`, its own state, its edges, and the current message. It never
sees the arrays of all agents, so that one handler runs in the compiled simulator, on a shard of a cluster, and on a
real peer.
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

#: An empty slot in a list of edges; also the slot of a sender to which the agent has no edge.
VACANT = -1
#: Lehmer's generator with the constants of Park, Miller and Stockmeyer (1993), which chooses the rows of a minibatch;
#: its numbers fit in plain and compiled integers.
FACTOR, MODULUS = 48271, 2**31 - 1
#: Value of ``die`` if none was drawn.
NO_DIE = -1.0
#: Roles of a parameter: personal (never sent), shared (equal for all agents), or tied (similar over the graph).
PERSONAL, SHARED, TIED = 0, 1, 2
#: Address of a message to all neighbours. Not VACANT, or a message along an empty slot would be a broadcast.
EVERYONE = -2


class AgentArrays(NamedTuple):
    """Arrays of the agents of one process. Agent k of the arrays has the address ``address[k]`` in the network."""

    loss: Any  # the loss of one example
    rows: Any  # features of all examples, DenseRows or SparseRows
    labels: np.ndarray  # (rows,)
    row_start: np.ndarray  # (n + 1,) agent k has rows row_start[k] to row_start[k + 1] - 1
    edge_start: np.ndarray  # (n + 1,) agent k has edges edge_start[k] to edge_start[k + 1] - 1
    peer: np.ndarray  # (edges,) address at the other end, or VACANT
    inverse: np.ndarray  # (edges,) slot of the edge among those of the agent at the other end, as last seen
    weight: np.ndarray  # (edges,) W_ij
    choice: np.ndarray  # (edges,) probability that the edge is chosen for an exchange, up to a factor for each agent
    row_weight: np.ndarray  # (n,) weight of one example in f_i: 1/m_i or 1
    ridge: np.ndarray  # (n,) r_i
    loss_weight: np.ndarray  # (n,) a_i, or a_i / D_ii when scaled
    curvature: np.ndarray  # (n,) L_i^loc, a bound on the curvature of f_i
    address: np.ndarray  # (n,) the agents' own addresses
    smooth: float  # s
    scaled: bool  # whether a_i grows with D_ii
    radius: float  # radius of the l1 ball that bounds the part of a model for each output
    outputs: int  # number of outputs, and so of such parts of a model
    n_agents: int  # number of agents in the whole network
    model: Any = Linear()  # computes losses from rows and parameters
    roles: np.ndarray = frozen(np.zeros(0, np.int8))  # (p,) PERSONAL, SHARED or TIED
    sent: np.ndarray = frozen(np.zeros(0, np.int64))  # (q,) indices of the parameters that are not PERSONAL
    sheet: np.ndarray = np.zeros(0)  # scratch space of the model, and room for the labels of a minibatch
    picked: Any = PickedRows(DenseRows(np.zeros((0, 0))), np.zeros(0, np.int64))  # room for the rows of a minibatch


class Data(NamedTuple):
    """Data of one agent: its examples, its part of the objective, its edges."""

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
    die: float  # random number that chose the rows of a minibatch, for models that need more randomness; else NO_DIE
    ahead: Any = None  # rows that another agent needs next: only :func:`look_ahead` may touch these


class Randomness(NamedTuple):
    """All randomness that a handler may use. The engine draws it, so that any run can be replayed."""

    dice: np.ndarray  # (dice,) uniforms on [0, 1)
    peer: int  # the chosen neighbour if an engine replays a schedule; VACANT to choose by the first of the dice
    moment: float  # time since the start, in mean intervals between two wakes of one agent


def system_dice(count: int) -> np.ndarray:
    """Return uniform numbers from the operating system, which are unpredictable: for real peers."""
    return (np.frombuffer(os.urandom(8 * count), np.uint64) >> np.uint64(11)) * 2.0**-53


class Message(NamedTuple):
    """A message as its receiver sees it."""

    sender: int  # address
    slot: int  # slot of the sender among the receiver's edges, VACANT if there is none
    kind: int  # kind, as the method numbers it
    text: np.ndarray


class Outbox(NamedTuple):
    """Outgoing messages of one event, and scratch space for the handler that writes them."""

    text: np.ndarray  # (capacity, size)
    length: np.ndarray  # (capacity,) numbers of text in use
    author: np.ndarray  # (capacity,) agent that wrote the message, as its position in the arrays
    to: np.ndarray  # (capacity,) address, or EVERYONE
    slot: np.ndarray  # (capacity,) slot of the address among the author's edges, or VACANT if unknown
    kind: np.ndarray  # (capacity,)
    cursor: np.ndarray  # HEAD, TAIL, AUTHOR, REFUSED, NEEDS_ROOM
    scratch: np.ndarray  # (method.scratch_size,) for use within one call of a handler


HEAD, TAIL, AUTHOR, REFUSED, NEEDS_ROOM = 0, 1, 2, 3, 4


def new_outbox(method, arrays, p, capacity):
    """Return an empty outbox for ``capacity`` messages of a method."""
    needs = max(method.scratch_size(arrays, p), p if method.training.jobs else 0)  # training needs room for a gradient
    text, scratch = np.zeros((capacity, longest(lengths_of(method.messages, p)))), _aligned(needs)
    return Outbox(text, *[np.zeros(capacity, np.int64) for _ in range(5)], np.zeros(5, np.int64), scratch)


def _aligned(size):
    """Return zeros aligned to a cache line, on which sums are up to a fifth faster."""
    room = np.zeros(size + 7)
    first = -room.ctypes.data % 64 // 8
    return room[first : first + size]


class Ragged(NamedTuple):
    """State of which agents hold different amounts: agent k has ``values[start[k] : start[k + 1]]``."""

    start: np.ndarray  # (n + 1,)
    values: np.ndarray


def ragged(sizes):
    """Return zeros with room for ``sizes[k]`` numbers of each agent k."""
    start = np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
    return Ragged(start, np.zeros(start[-1]))


@rule
class Heard(NamedTuple):
    """The last message of every agent, stored once, in place of one copy for each of its neighbours.

    Handlers see no difference: ``edges.copy[slot]`` is the row that the neighbour in that slot has written. This is
    correct for a method that ``publishes``, while no message is late or lost: then all neighbours have received the
    same messages.
    """

    message: np.ndarray  # (n, p) last message of each address
    peer: np.ndarray  # (edges,) address whose message each edge reads

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
    """Return the initial state of a method that ``publishes``, with messages stored once: see :class:`Heard`."""
    nothing = np.zeros(0)
    edges = {"peer": arrays.peer[:0], "inverse": arrays.inverse[:0], "weight": nothing, "choice": nothing}
    own, edge = method.start(arrays._replace(edge_start=np.zeros_like(arrays.edge_start), **edges), theta)
    return own, type(edge)(Heard(theta.copy(), arrays.peer))


def as_sender(group, address):
    """Return the state of one edge that reads the message of ``address`` itself, if messages are stored once."""
    return type(group)(*[remake(part, (part.message, address)) for part in group])


@overload(as_sender)
def _as_sender(group, address):
    each = "remake(group.{field}, (group.{field}.message, address))"
    return each_field(group, "group, address", each, each, remake=remake)


@inline
def send(outbox, to, kind, text, slot=VACANT):
    """Post a message. A full outbox drops the message and counts it in the cursor; the engine raises when it sees that.

    A given ``slot`` of the neighbour spares the receiver a search.
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
    """Return the slot of an address among the agent's edges, or VACANT. Tries the slot ``hint`` first."""
    if 0 <= hint < peers.shape[0] and peers[hint] == address:
        return hint
    slot = VACANT
    for k in range(peers.shape[0]):  # over all slots: a search without a branch is faster than one that stops
        slot = k if peers[k] == address else slot
    return slot


@inline
def choose(data, randomness):
    """Return the edge for an exchange: to the requested neighbour, or drawn by ``data.choice``; or VACANT."""
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
    """Return a_i, the weight of an agent's own loss.

    An agent without edges minimises its own loss at any positive weight.
    """
    if not data.scaled:
        return data.loss_weight
    return data.loss_weight * degree if degree > 0.0 else 1.0


@inline
def data_of(arrays, k, following=VACANT):
    """Return the data of agent k, with the rows of agent ``following``, which wakes next, for prefetching."""
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
    """Choose rows of a minibatch uniformly, with repetition, by a sequence that one random number starts.

    One random number for each row would take as much memory as the rows of all steps.
    """
    state = 1 + int(die * (MODULUS - 1))
    for k in range(out.shape[0]):
        state = state * FACTOR % MODULUS
        out[k] = min(int(state / MODULUS * m), m - 1)


@inline
def minibatch(data, die, count):
    """Return the agent's data with ``count`` of its rows; in expectation over the random number its loss is f_i."""
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
    """``out += scale * grad f_i(theta)``, with f_i as in :mod:`coterie.problem`."""
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
    """Write f_i(theta_i) of all agents."""
    for k in range(theta.shape[0]):
        out[k] = loss_of(data_of(arrays, k, VACANT), theta[k])


@kernel
def all_gradients(arrays, theta, out):
    """Add the gradients of f_i at theta_i of all agents to ``out``."""
    for k in range(theta.shape[0]):
        add_loss_gradient(data_of(arrays, k, VACANT), theta[k], 1.0, out[k])


def row(group, i):
    """Return the (nested) NamedTuple with every array indexed at i: the state of one agent."""
    if isinstance(group, Ragged):
        return group.values[group.start[i] : group.start[i + 1]]
    return type(group)(*[row(x, i) if isinstance(x, tuple) else x[i] for x in group])


def rows(group, first, last):
    """Return the (nested) NamedTuple with every array sliced: the state of one agent's edges."""
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
    """Return the data of agent k, its state, and the state of its edges: the arguments of a handler."""
    a, b = arrays.edge_start[k], arrays.edge_start[k + 1]
    return data_of(arrays, k, following), row(own, k), rows(edge, a, b)


def paper(arrays, model, batch=0):
    """Return the arrays with a model, its scratch space, and room for minibatches of ``batch`` rows."""
    most = int(np.diff(arrays.row_start).max(initial=0))
    scratch = most if isinstance(model, Linear) else model.scratch
    empty = PickedRows(DenseRows(np.zeros((0, 0))), np.zeros(batch, np.int64))
    return arrays._replace(model=model, sheet=np.zeros(scratch + batch), picked=empty)


def owners(start: np.ndarray) -> np.ndarray:
    """Return the owner of each edge, or of each row, as a position in the arrays, given where agents' parts start."""
    return np.repeat(np.arange(start.shape[0] - 1), np.diff(start))


def widened(arrays: AgentArrays, slots: np.ndarray) -> tuple[AgentArrays, np.ndarray]:
    """Return the arrays with ``slots[k]`` slots for the edges of agent k, and the new positions of the old slots."""
    before = np.diff(arrays.edge_start)
    start = np.concatenate([[0], np.cumsum(slots)])
    place = np.arange(arrays.peer.shape[0]) + np.repeat(start[:-1] - arrays.edge_start[:-1], before)
    new: dict[str, Any] = {}
    for name, empty in (("peer", VACANT), ("inverse", VACANT), ("weight", 0.0), ("choice", 0.0)):
        old = getattr(arrays, name)
        new[name] = np.full(start[-1], empty, old.dtype)
        new[name][place] = old
    return arrays._replace(edge_start=frozen(start), **new), place
