"""Parts common to all methods with a server: the server's position, its cohorts, and its messages.

The server is an agent without rows in the middle of a star. A round of FedAvg and related methods (McMahan et al. 2017,
Algorithm 1) has these steps, none of which waits for ever:

* the server draws a cohort, all clients or ``clients`` of them, and sends DOWN its model;
* a client in the cohort trains once, when it wakes, and sends UP the result, with its weight in the average;
* when the whole cohort has answered, the server averages and asks the next cohort. If the server wakes before that, it
  averages the answers so far; if none has come since it woke last, it asks anew.

An answer counts once. The server ignores answers of clients that were not asked or have answered already; and it
ignores the content of an answer that is not finite or has a wrong length, so that one client that diverges does not
spoil the average.

In a synchronous round all agents act, and messages are delivered together with those that they cause: answers come up,
and the next models go down, so that a round of the engine is a round of the method. The random numbers of the server's
wake draw the next cohort. The first cohort is asked in the initial exchange, without random numbers: it is spread over
the clients evenly.

A method defines the parts that differ, and :class:`Usual` has the rest: the client's training (``first_job``,
``prepare``), the server's message (``tell``), how a client reads it (``hear``) and answers (``answer``), how answers
are summed (``collect``), and the server's update from the sum (``average``).
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

#: Kinds of messages: from a client to the server, and from the server to a client.
UP, DOWN = 0, 1
#: States of a client at the server: no answer expected, an answer to an earlier request, an answer to the present one.
IDLE, LATE, ASKED = 0, 1, 2
#: Fractional part of the golden ratio: its multiples, modulo 1, are spread evenly.
GOLDEN_FRACTION = 0.6180339887498949
#: Numbers above this limit in an answer are not valid parameters.
MAX_PARAMETER = 1e300


class Round(NamedTuple):
    """State of a round: at clients whether they were asked, at the server all the rest."""

    leads: np.ndarray  # (n,) whether the agent is a server
    asked: np.ndarray  # (n, 1) whether the server waits for this client
    pending: np.ndarray  # (n, 1) number of clients of the cohort that have not answered
    waited: np.ndarray  # (n, 1) whether the server has woken since it asked, and no answer had come
    weight: np.ndarray  # (n, 1) sum of the weights of all answers
    unsound: np.ndarray  # (n, 1) number of answers without valid parameters
    sum: Ragged  # weighted sum of answers, as the method collects them
    dice: np.ndarray  # (n, clients) random numbers for the next cohort


class Edge(NamedTuple):
    """State of the edges of the server."""

    asked: np.ndarray  # (edges,) IDLE, LATE or ASKED


def servers(arrays):
    """Return which hosted agents are servers: see :func:`fit_star`."""
    return (np.diff(arrays.row_start) == 0) & ((np.diff(arrays.edge_start) > 1) | (arrays.n_agents == 2))


def new_round(method, arrays, length):
    """Return the state before the first cohort; the sum of answers has `length` numbers."""
    n, leads = arrays.address.shape[0], servers(arrays)
    dice = GOLDEN_FRACTION * np.arange(1.0, method.clients + 1.0) % 1.0
    numbers = [np.zeros((n, 1)) for _ in range(5)]
    return Round(leads, *numbers, ragged(np.where(leads, length, 0)), np.tile(dice, (n, 1)))


def new_edges(arrays):
    """Return the state of edges before the first cohort."""
    return Edge(np.zeros(arrays.peer.shape[0], np.int8))


def _optimiser(name, local, plain=False):
    """Check an optimiser; if `plain`, refuse one with a memory."""
    if not (hasattr(local, "update") and hasattr(local, "memories")):
        raise ParameterError(f"{name}={local!r} must be an optimiser, such as ct.optim.SGD(0.1, steps=5)")
    if plain and local.memories:
        raise ParameterError(
            f"{name}={local!r} has a memory, and {name.partition(':')[0]} computes gradients from single steps: pass "
            "ct.optim.SGD without momentum"
        )
    return local


def _clients(name, value):
    """Check the number of clients; None is stored as 0, so that there is one compiled type."""
    return 0 if value is None else integer(name, value, 0)


def served(*whole, plain=False, **checks):
    """``@method`` for a method with a server: adds the parts of :class:`Usual`, and checks of parameters.

    With `plain`, the method computes gradients from its steps, and takes only optimisers without a memory.
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
    """Raise a MismatchError for a problem without a server in the middle of a star."""
    name, count, sizes = type(self).__qualname__, problem.graph.n_neighbours, problem.data.sizes
    say = "make the problem by ct.Problem.federated(data, model), which adds one"
    middle = np.flatnonzero((count > 1) | ((problem.n == 2) & (count == 1) & (sizes == 0)))
    if middle.size != 1:
        raise MismatchError(
            f"{name} needs one server, an agent without rows that is the only neighbour of every other agent; in this "
            f"graph {middle.size} agents could be the server: {say}"
        )
    server = problem.members[middle[0]]
    if sizes[middle[0]]:
        raise MismatchError(
            f"{name} needs a server without rows in the middle, and agent {server!r} has {sizes[middle[0]]} rows: {say}"
        )
    if self.clients > count[middle[0]]:
        raise MismatchError(
            f"{name}(clients={self.clients}): the server {server!r} has only {count[middle[0]]} clients; ask for "
            "fewer, or omit clients for all"
        )


def fit_personal(self, problem):
    """As :func:`fit_star`; also refuse a problem without personal parameters."""
    fit_star(self, problem)
    if np.all(problem.roles >= SHARED):
        raise MismatchError(
            f"{type(self).__qualname__} is for models with personal parts, and here nothing is personal: name them, as "
            'in ct.Problem.federated(data, model, personal="head"), or use ct.federated.FedAvg'
        )
    if np.all(problem.roles < SHARED):
        raise MismatchError(f"{type(self).__qualname__}: all parameters are personal, so there is nothing to send")


# -- handlers ----------------------------------------------------------------------------------------------------------


@inline
def ask(self, data, me, edges, outbox):
    """Draw a cohort, uniformly among sets of its size, and send it the model."""
    n, post = data.peer.shape[0], me.round
    text = outbox.scratch[: self.tell(data, me, edges, outbox.scratch)]
    post.waited[0] = 0.0
    if 0 < self.clients < n:
        # Floyd's sampling (Bentley and Floyd 1987): one random number per client, and no list of the remaining ones.
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
    """Record that an answer from a client is expected."""
    if edges.asked[t] != ASKED:
        edges.asked[t] = ASKED
        post.pending[0] += 1.0


@inline
def close(self, data, me, edges, outbox):
    """End a round, with an average if there are valid answers, and begin the next."""
    post = me.round
    if post.weight[0] > 0.0:
        self.average(data, me, edges)
    elif post.unsound[0] > 1.0:  # not one broken client, but all: the engine raises when it sees this
        fill(math.nan, me.theta)
    fill(0.0, post.sum)
    post.weight[0], post.unsound[0], post.pending[0] = 0.0, 0.0, 0.0
    for t in range(data.peer.shape[0]):
        if edges.asked[t] == ASKED:
            edges.asked[t] = LATE
    ask(self, data, me, edges, outbox)


@inline
def has_work(data, me, randomness):
    """Return whether this is a client with rows that was asked.

    The server keeps its random numbers for the next cohort.
    """
    post = me.round
    if post.leads:
        copy_to(randomness.dice[randomness.dice.shape[0] - post.dice.shape[0] :], post.dice)
        return False
    return post.asked[0] > 0.0 and data.labels.shape[0] > 0


# -- defaults of most methods ------------------------------------------------------------------------------------------


class Own(NamedTuple):
    """State of the agents of FedAvg and related methods."""

    theta: np.ndarray  # (n, p) the server's model as last received, with the client's personal parameters
    job: object  # the training job
    round: Round


@inline
def weight_of(data, by_rows):
    """Return the weight of an answer: the number of rows, or 1; 0 without rows."""
    m = data.labels.shape[0]
    return float(m) if by_rows else min(float(m), 1.0)


@inline
def keep_personal(data, trained, theta):
    """Copy the personal parameters of the trained model."""
    for k in range(data.roles.shape[0]):
        if data.roles[k] < SHARED:
            theta[k] = trained[k]


@inline
def take_over(data, text, theta):
    """Copy the server's model. Return whether the text is a valid one."""
    if text.shape[0] != data.sent.shape[0]:
        return False
    scatter(text, data.sent, theta)
    return True


@inline
def write(data, theta, by_rows, out):
    """Write a model without its personal parameters, and its weight. Return how many numbers were written."""
    q = data.sent.shape[0]
    gather(theta, data.sent, out)
    out[q] = weight_of(data, by_rows)
    return q + 1


class Usual:
    """Default parts of a method with a server: those of FedAvg."""

    messages = {UP: (Vector(), Counter()), DOWN: Vector()}
    minimises = None
    #: Random numbers of training, and one for each client of a cohort.
    dice = property(
        lambda self: (  # type: ignore[attr-defined]
            (self.training.jobs * self.local.steps if self.local.batch else 0) + self.clients
        )
    )
    #: An answer, and the server's messages that it causes.
    max_messages = property(lambda self: 1 + max(self.clients, 1))  # type: ignore[attr-defined]
    broadcasts = 2
    fit_for = fit_star

    def scratch_size(self, arrays, p):
        return p + 1

    def first_job(self, theta):
        """Return jobs of clients."""
        return new_job(self.local, theta)

    def start(self, arrays, theta):
        own = Own(theta.copy(), self.first_job(theta), new_round(self, arrays, arrays.sent.shape[0]))
        return own, new_edges(arrays)

    def greet(self, data, me, edges, outbox):
        """The server asks its first cohort, or clients that join."""
        if me.round.leads:
            ask(self, data, me, edges, outbox)

    def prepare(self, data, me, edges, randomness, outbox, phase):
        """Train the server's model with all steps, with a pull to its start if there is a center."""
        if phase > 0 or not has_work(data, me, randomness):
            return False
        copy_to(me.theta, me.job.theta)
        copy_to(me.theta[: me.job.center.shape[0]], me.job.center)
        return True

    def publish(self, data, me, edges, randomness, outbox):
        """As a client, answer.

        As the server, average the answers and ask anew; without answers, wait for one more wake.
        """
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
        """As a client, store the server's message. As the server, add the answer, and go on when all have come."""
        post = me.round
        if message.slot == VACANT:
            return
        if not post.leads:
            if message.kind == DOWN and is_sound(message.text, MAX_PARAMETER) and self.hear(data, me, message.text):
                post.asked[0] = 1.0
        elif message.kind == UP and edges.asked[message.slot] != IDLE:
            if edges.asked[message.slot] == ASKED:
                post.pending[0] -= 1.0
            edges.asked[message.slot] = IDLE
            weight = message.text[message.text.shape[0] - 1] if message.text.shape[0] > 0 else 0.0
            if not is_sound(message.text, MAX_PARAMETER):
                post.unsound[0] += 1.0
            elif weight > 0.0 and self.collect(data, me, edges, message):
                post.weight[0] += weight
            if post.pending[0] == 0.0:
                close(self, data, me, edges, outbox)

    def tell(self, data, me, edges, out):
        """Write the server's model. Return how many numbers were written."""
        gather(me.theta, data.sent, out)
        return data.sent.shape[0]

    def hear(self, data, me, text):
        """Copy the server's model. Return whether the message is valid."""
        return take_over(data, text, me.theta)

    def answer(self, data, me, out):
        """Write the trained model and its weight, and keep personal parameters.

        Return how many numbers were written.
        """
        keep_personal(data, me.job.theta, me.theta)
        return write(data, me.job.theta, self.by_rows, out)

    def collect(self, data, me, edges, message):
        """Add an answer to the sum. Return whether it is valid."""
        q = data.sent.shape[0]
        if message.text.shape[0] != q + 1:
            return False
        axpy(message.text[q], message.text[:q], me.round.sum)
        return True

    def average(self, data, me, edges):
        """The server's model becomes the weighted mean of the answers."""
        for c in range(data.sent.shape[0]):
            me.theta[data.sent[c]] = me.round.sum[c] / me.round.weight[0]
