"""What all methods with a server share: who it is, whom it asks, what goes down to clients and comes up from them.

The server is an agent without rows in the middle of a star. A round of FedAvg and its like (McMahan et al. 2017,
Algorithm 1) is this, and nothing in it waits for ever:

* the server draws a cohort, all clients or so many of them, and sends it DOWN what they need;
* a client that was asked trains when it wakes, once, and sends UP what came of it, with the weight that it counts with;
* when all of the cohort have answered, the server averages and asks the next one. If it wakes before that, it takes
  what has come; if nothing has come since it woke last, it asks anew.

An answer counts once: who was not asked, or has answered already, is ignored, and so is an answer that is not finite or
of a wrong length: one client that diverges does not spoil the average. It counts as an answer, that is all.

In a synchronous round all agents act, and messages are delivered with those that they cause: answers come up, and the
next models go down. So a round of the engine is a round of the method. The dice of the server's own turn draw the next
cohort. The first cohort is asked in the initial swap, where there are no dice: it is spread over the clients evenly.

A method says what differs, and :class:`Usual` has the rest: what a client trains (``first_job``, ``prepare``), what the
server tells (``tell``), what a client makes of it (``hear``) and answers (``answer``), how an answer is added up
(``collect``), and what the server makes of the sum (``average``).
"""

from __future__ import annotations

import math
from functools import partial

import numpy as np

from ..._checks import flag, integer
from ...errors import MismatchError, ParameterError
from ..arrays import EVERYONE, SHARED, VACANT, Ragged, ragged, send
from ..compile import inline
from ..linear import axpy, copy_to, fill, gather, scatter
from ..messages import Counter, Vector, is_sound
from ..method import NamedTuple, method
from ..rules import checked
from ..training import new_job

#: Kinds of messages: of a client to the server, and of the server to a client.
UP, DOWN = 0, 1
#: What the server knows of a client: nothing is to come, an answer to an earlier question, one to the present one.
IDLE, LATE, ASKED = 0, 1, 2
#: The fractional part of the golden ratio: its multiples, modulo 1, are spread as evenly as can be.
GOLDEN = 0.6180339887498949
#: Numbers so large are none that a model could use.
LARGEST = 1e300


class Round(NamedTuple):
    """How far a round is: for clients whether they were asked, for the server all the rest."""

    leads: np.ndarray  # (n,) whether this is the server
    asked: np.ndarray  # (n, 1) whether the server waits for me
    pending: np.ndarray  # (n, 1) how many of the cohort have not answered
    waited: np.ndarray  # (n, 1) whether the server has woken since it asked, and nothing had come
    weight: np.ndarray  # (n, 1) of all answers
    unsound: np.ndarray  # (n, 1) how many answers had no numbers that a model may have
    sum: Ragged  # their weighted sum, as the method adds them up
    dice: np.ndarray  # (n, clients) for the next cohort


class Edge(NamedTuple):
    """State of the edges of the server."""

    asked: np.ndarray  # (edges,) IDLE, LATE or ASKED


def servers(arrays):
    """Which the hosted agents are servers: see :func:`fit_star`."""
    return (np.diff(arrays.row_start) == 0) & ((np.diff(arrays.edge_start) > 1) | (arrays.n_agents == 2))


def new_round(method, arrays, length):
    """Before anybody is asked; the sum of answers has so many numbers."""
    n, leads = arrays.address.shape[0], servers(arrays)
    dice = GOLDEN * np.arange(1.0, method.clients + 1.0) % 1.0
    numbers = [np.zeros((n, 1)) for _ in range(5)]
    return Round(leads, *numbers, ragged(np.where(leads, length, 0)), np.tile(dice, (n, 1)))


def new_edges(arrays):
    """Nobody is asked."""
    return Edge(np.zeros(arrays.peer.shape[0], np.int8))


def _optimiser(name, local, plain=False):
    """An optimiser; a plain one has no memory."""
    if not (hasattr(local, "update") and hasattr(local, "memories")):
        raise ParameterError(f"{name}={local!r} must be an optimiser, such as ct.optim.SGD(0.1, steps=5)")
    if plain and local.memories:
        raise ParameterError(
            f"{name}={local!r} has a memory, and {name.partition(':')[0]} reads gradients off single steps: pass "
            "ct.optim.SGD without momentum"
        )
    return local


def _clients(name, value):
    """How many clients; None is 0 inside, for one compiled type."""
    return 0 if value is None else integer(name, value, 0)


def served(*whole, plain=False, **checks):
    """``@method`` for a method with a server, which says what is not usual, and the checks of its parameters.

    A method that reads gradients off its steps takes `plain` optimisers only, those without a memory.
    """

    def decorate(cls):
        for name, part in vars(Usual).items():
            if not name.startswith("__") and name not in vars(cls):
                setattr(cls, name, part)
        usual = {"local": partial(_optimiser, plain=plain), "clients": _clients, "by_rows": flag}
        fields = {name: check for name, check in (usual | checks).items() if name in cls._fields}
        return checked(*whole, **fields)(method(cls))

    return decorate


def fit_star(self, problem):
    """Refuse a problem without a server in the middle of a star."""
    name, count, sizes = type(self).__qualname__, problem.graph.n_neighbours, problem.data.sizes
    say = "make the problem by ct.Problem.federated(data, model), which adds one"
    middle = np.flatnonzero((count > 1) | ((problem.n == 2) & (count == 1) & (sizes == 0)))
    if middle.size != 1:
        raise MismatchError(
            f"{name} needs one server, an agent without rows that all others are tied to, and to nobody else; in this "
            f"graph {middle.size} agents could be one: {say}"
        )
    server = problem.members[middle[0]]
    if sizes[middle[0]]:
        raise MismatchError(
            f"{name} needs a server without rows in the middle, and agent {server!r} has {sizes[middle[0]]}: {say}"
        )
    if self.clients > count[middle[0]]:
        raise MismatchError(
            f"{name}(clients={self.clients}): the server {server!r} has only {count[middle[0]]} clients; ask for "
            "fewer, or leave clients out for all"
        )


def fit_personal(self, problem):
    """The same, and refuse a problem without personal parameters."""
    fit_star(self, problem)
    if np.all(problem.roles >= SHARED):
        raise MismatchError(
            f"{type(self).__qualname__} is for models with personal parts, and here nothing is personal: say which, as "
            'in ct.Problem.federated(data, model, personal="head"), or use ct.federated.FedAvg'
        )
    if np.all(problem.roles < SHARED):
        raise MismatchError(f"{type(self).__qualname__}: all parameters are personal, so there is nothing to send")


# -- handlers ----------------------------------------------------------------------------------------------------------


@inline
def ask(self, data, me, edges, outbox):
    """Draw a cohort, each set of so many clients alike, and tell it."""
    n, post = data.peer.shape[0], me.round
    text = outbox.scratch[: self.tell(data, me, edges, outbox.scratch)]
    post.waited[0] = 0.0
    if 0 < self.clients < n:
        # Floyd's sampling (Bentley and Floyd 1987): one die for each, and no list of those left.
        for c in range(self.clients):
            last = n - self.clients + c
            t = min(int(post.dice[c] * (last + 1)), last)
            if edges.asked[t] == ASKED:
                t = last
            if data.peer[t] != VACANT:
                expect(post, edges, t)
                send(outbox, data.peer[t], DOWN, text, t)
    else:
        for t in range(n):
            if data.peer[t] != VACANT:
                expect(post, edges, t)
        send(outbox, EVERYONE, DOWN, text)


@inline
def expect(post, edges, t):
    """An answer from a client is to come."""
    if edges.asked[t] != ASKED:
        edges.asked[t] = ASKED
        post.pending[0] += 1.0


@inline
def close(self, data, me, edges, outbox):
    """End a round, if with an average, and begin the next."""
    post = me.round
    if post.weight[0] > 0.0:
        self.average(data, me, edges)
    elif post.unsound[0] > 1.0:  # not one client that is broken, but all: the engine raises when it sees that
        fill(math.nan, me.theta)
    fill(0.0, post.sum)
    post.weight[0], post.unsound[0], post.pending[0] = 0.0, 0.0, 0.0
    for t in range(data.peer.shape[0]):
        if edges.asked[t] == ASKED:
            edges.asked[t] = LATE
    ask(self, data, me, edges, outbox)


@inline
def has_work(data, me, randomness):
    """Whether this is a client that was asked, and has rows. The server keeps its dice for the next cohort."""
    post = me.round
    if post.leads:
        copy_to(randomness.dice[randomness.dice.shape[0] - post.dice.shape[0] :], post.dice)
        return False
    return post.asked[0] > 0.0 and data.labels.shape[0] > 0


# -- what most methods say ---------------------------------------------------------------------------------------------


class Own(NamedTuple):
    """State of the agents of FedAvg and its like."""

    theta: np.ndarray  # (n, p) the server's model as I last heard it, with my personal parameters
    job: object  # what I train
    round: Round


@inline
def weight_of(data, by_rows):
    """What an answer counts with: the number of rows, or 1; nothing without rows."""
    m = data.labels.shape[0]
    return float(m) if by_rows else min(float(m), 1.0)


@inline
def keep_personal(data, trained, theta):
    """Take over the personal parameters of what was trained."""
    for k in range(data.roles.shape[0]):
        if data.roles[k] < SHARED:
            theta[k] = trained[k]


@inline
def take_over(data, text, theta):
    """Take over the server's model. Returns whether it is one."""
    if text.shape[0] != data.sent.shape[0]:
        return False
    scatter(text, data.sent, theta)
    return True


@inline
def write(data, theta, by_rows, out):
    """Write a model, without what is personal, and its weight. Returns how many numbers."""
    q = data.sent.shape[0]
    gather(theta, data.sent, out)
    out[q] = weight_of(data, by_rows)
    return q + 1


class Usual:
    """What a method with a server is where it does not say otherwise: FedAvg."""

    messages = {UP: (Vector(), Counter()), DOWN: Vector()}
    minimises = None
    #: Those of training, and one for each client of a cohort.
    dice = property(
        lambda self: (self.training.jobs * self.local.steps if self.local.batch else 0) + self.clients  # type: ignore[attr-defined]
    )
    #: An answer, and what it makes the server send.
    max_messages = property(lambda self: 1 + max(self.clients, 1))  # type: ignore[attr-defined]
    broadcasts = 2
    fit_for = fit_star

    def scratch_size(self, arrays, p):
        """Numbers of scratch paper that a handler needs: gradients, and messages."""
        return p + 1

    def first_job(self, theta):
        """What clients train."""
        return new_job(self.local, theta)

    def start(self, arrays, theta):
        """State before the first letter."""
        own = Own(theta.copy(), self.first_job(theta), new_round(self, arrays, arrays.sent.shape[0]))
        return own, new_edges(arrays)

    def greet(self, data, me, edges, outbox):
        """The server asks its first cohort, or clients that join."""
        if me.round.leads:
            ask(self, data, me, edges, outbox)

    def prepare(self, data, me, edges, randomness, outbox, phase):
        """The server's model, by all steps, drawn to where it was if there is a center."""
        if phase > 0 or not has_work(data, me, randomness):
            return False
        copy_to(me.theta, me.job.theta)
        copy_to(me.theta[: me.job.center.shape[0]], me.job.center)
        return True

    def publish(self, data, me, edges, randomness, outbox):
        """A client answers. The server takes what has come, and asks anew; if nothing has, it gives them time once."""
        post = me.round
        if post.leads:
            if post.weight[0] > 0.0 or post.waited[0] > 0.0:
                close(self, data, me, edges, outbox)
            else:
                post.waited[0] = 1.0
        elif post.asked[0] > 0.0:
            post.asked[0] = 0.0
            send(outbox, EVERYONE, UP, outbox.scratch[: self.answer(data, me, outbox.scratch)])

    def receive(self, data, me, edges, message, outbox):
        """A client hears what to train. The server adds up answers, and goes on when all have come."""
        post = me.round
        if message.slot == VACANT:
            return
        if not post.leads:
            if message.kind == DOWN and is_sound(message.text, LARGEST) and self.hear(data, me, message.text):
                post.asked[0] = 1.0
        elif message.kind == UP and edges.asked[message.slot] != IDLE:
            if edges.asked[message.slot] == ASKED:
                post.pending[0] -= 1.0
            edges.asked[message.slot] = IDLE
            weight = message.text[message.text.shape[0] - 1] if message.text.shape[0] > 0 else 0.0
            if not is_sound(message.text, LARGEST):
                post.unsound[0] += 1.0
            elif weight > 0.0 and self.collect(data, me, edges, message):
                post.weight[0] += weight
            if post.pending[0] == 0.0:
                close(self, data, me, edges, outbox)

    def tell(self, data, me, edges, out):
        """Write the server's model. Returns how many numbers."""
        gather(me.theta, data.sent, out)
        return data.sent.shape[0]

    def hear(self, data, me, text):
        """Take over the server's model. Returns whether it is one."""
        return take_over(data, text, me.theta)

    def answer(self, data, me, out):
        """Write the trained model and its weight, and keep what is personal. Returns how many numbers."""
        keep_personal(data, me.job.theta, me.theta)
        return write(data, me.job.theta, self.by_rows, out)

    def collect(self, data, me, edges, message):
        """Add an answer to the sum. Returns whether it is one."""
        q = data.sent.shape[0]
        if message.text.shape[0] != q + 1:
            return False
        axpy(message.text[q], message.text[:q], me.round.sum)
        return True

    def average(self, data, me, edges):
        """The weighted mean of answers becomes the server's model."""
        for c in range(data.sent.shape[0]):
            me.theta[data.sent[c]] = me.round.sum[c] / me.round.weight[0]
