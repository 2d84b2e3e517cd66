"""Local training: what FedAvg, D-PSGD and their like do between two messages.

Such a method never asks its model anything. It has three parts: ``prepare`` says what to train next, a *job*; the
engine runs the job with the method's ``local`` optimiser, for one agent or for all of them at once; ``publish`` sends
what came of it. With ``prepare`` called again and again, until it says that there is nothing left to train, a wake may
train several models, or one in several stages.

A step of a job on theta, with g the gradient of f_i on a minibatch (McMahan et al. 2017, Algorithm 1, ClientUpdate):

    theta <- theta - rate (g + correction)                 on the parameters that the job trains
    theta <- (theta + rate pull center) / (1 + rate pull)  on those that are drawn to a center

The pull, a term ``pull/2 |theta - center|^2`` of the objective (FedProx, Ditto, edges), is a proximal step: an explicit
one would diverge for agents with little weight.
"""

from __future__ import annotations

import math
from functools import partial

import numpy as np

from .._checks import integer, positive, within
from .arrays import (
    AUTHOR,
    SHARED,
    VACANT,
    Randomness,
    add_loss_gradient,
    agent,
    data_of,
    loss_of,
    minibatch,
    pick_rows,
    row,
)
from .compile import class_of, inline, kernel, or_numpy, overload
from .linear import axpy, fill
from .rules import NamedTuple, checked, rule

#: What ``job.plan`` holds: how strongly theta is drawn to the center; the parameters so drawn, and those trained (ALL,
#: OWN or COMMON); how many steps, or all of the optimiser's (EVERY); and the loss before them, of a job of no steps.
PULL, DRAWN, PART, STEPS, LOSS = 0, 1, 2, 3, 4
#: Which parameters a job trains: all, only the personal ones, or only the others.
ALL, OWN, COMMON = 0.0, 1.0, 2.0
#: As many steps as the optimiser takes.
EVERY = -1.0


class Job(NamedTuple):
    """What each agent trains. Empty rows (n, 0) of center or correction: there is none."""

    theta: np.ndarray  # (n, p) parameters, trained in place
    center: np.ndarray  # (n, p) what they are drawn to
    correction: np.ndarray  # (n, p) added to every gradient
    memory: np.ndarray  # (n, k p) of the optimiser, cleared before the first step
    plan: np.ndarray  # (n, 5) PULL, DRAWN, PART, STEPS, LOSS


def new_job(local, theta, center=False, correction=False, pull=0.0):
    """A job for each agent, that trains a copy of its model by all steps of an optimiser."""
    n, p = theta.shape
    plan = np.zeros((n, 5))
    plan[:, PULL], plan[:, DRAWN], plan[:, STEPS] = pull, SHARED, EVERY
    return Job(
        theta.copy(),
        theta.copy() if center else np.zeros((n, 0)),
        np.zeros((n, p if correction else 0)),
        np.zeros((n, local.memories * p)),
        plan,
    )


def _count(name, value, least=1):
    """A whole number, also one that is a float."""
    return integer(name, int(value) if isinstance(value, float | np.floating) and value % 1 == 0 else value, least)


_below_one = partial(within, low=0, high=1, ends="[)")


def _add_momentum(momentum, gradient, memory):
    """The same with NumPy, for the process of one agent."""
    memory *= momentum
    memory += gradient
    gradient[:] = memory


@or_numpy(_add_momentum)
@inline
def add_momentum(momentum, gradient, memory):
    """``v <- momentum v + g``, which takes the gradient's place."""
    for k in range(gradient.shape[0]):
        memory[k] = momentum * memory[k] + gradient[k]
        gradient[k] = memory[k]


def _take_adam_step(self, gradient, theta, memory, time):
    """The same with NumPy, for the process of one agent."""
    mean, square = memory.reshape(2, -1)
    mean *= self.beta1
    mean += (1.0 - self.beta1) * gradient
    square *= self.beta2
    square += (1.0 - self.beta2) * gradient * gradient
    first, second = 1.0 - self.beta1 ** (time + 1.0), 1.0 - self.beta2 ** (time + 1.0)
    theta -= self.rate * (mean / first) / (np.sqrt(square / second) + 1e-8)


@checked(rate=positive, steps=_count, batch=partial(_count, least=0), momentum=_below_one)
@rule
class SGD(NamedTuple):
    """Stochastic gradient descent, with momentum if asked for: ``steps`` steps, each on a minibatch of ``batch`` rows.

    Parameters
    ----------
    rate : float
        Learning rate, > 0.
    steps : int
        Steps that an agent takes before it sends something.
    batch : int
        Rows of a minibatch, drawn at random with repetition (docs/how-to/bring-a-model.md says how); 0 for all rows.
    momentum : float
        In [0, 1); it begins anew with every job.

    Examples
    --------
    >>> import coterie as ct
    >>> ct.optim.SGD(0.1, steps=5, batch=16)
    SGD(rate=0.1, steps=5, batch=16, momentum=0.0)
    """

    rate: float = 0.1
    steps: int = 1
    batch: int = 0
    momentum: float = 0.0

    memories = property(lambda self: 1 if self.momentum > 0.0 else 0)

    def update(self, gradient, theta, memory, time):
        """``theta <- theta - rate v`` with ``v <- momentum v + g``; the gradient is spent."""
        if memory.shape[0] > 0:
            add_momentum(self.momentum, gradient, memory)
        axpy(-self.rate, gradient, theta)


@checked(rate=positive, steps=_count, batch=partial(_count, least=0), beta1=_below_one, beta2=_below_one)
@rule
class Adam(NamedTuple):
    """Adam (Kingma and Ba 2015, Algorithm 1), which begins anew with every job.

    Parameters
    ----------
    rate : float
        Learning rate, > 0.
    steps, batch : int
        As in :class:`coterie.optim.SGD`.
    beta1, beta2 : float
        Decay of the means of gradients and of their squares, in [0, 1).

    Examples
    --------
    >>> import coterie as ct
    >>> ct.optim.Adam(0.01, steps=5, batch=16)
    Adam(rate=0.01, steps=5, batch=16, beta1=0.9, beta2=0.999)
    """

    rate: float = 0.001
    steps: int = 1
    batch: int = 0
    beta1: float = 0.9
    beta2: float = 0.999

    memories = property(lambda self: 2)

    @or_numpy(_take_adam_step)
    def update(self, gradient, theta, memory, time):
        """The means of gradients and squares, and a step by both; time counts from 0."""
        p, beta1, beta2 = theta.shape[0], self.beta1, self.beta2
        first, second = 1.0 - beta1 ** (time + 1.0), 1.0 - beta2 ** (time + 1.0)
        for k in range(p):
            memory[k] = beta1 * memory[k] + (1.0 - beta1) * gradient[k]
            memory[p + k] = beta2 * memory[p + k] + (1.0 - beta2) * gradient[k] * gradient[k]
            theta[k] -= self.rate * (memory[k] / first) / (math.sqrt(memory[p + k] / second) + 1e-8)


def local_of(method):
    """The optimiser of a method that trains, or of the one in it."""
    return method.local if "local" in method._fields else local_of(method.method)


@overload(local_of)
def _local_of(method):
    if "local" in class_of(method)._fields:
        return lambda method: method.local
    return lambda method: local_of(method.method)


def job_of(own):
    """The job in the state of a method that trains, or of the one in it."""
    return own.job if "job" in own._fields else job_of(own.model)


@overload(job_of)
def _job_of(own):
    if "job" in class_of(own)._fields:
        return lambda own: own.job
    return lambda own: job_of(own.model)


@inline
def steps_of(local, job):
    """How many steps a job takes."""
    return local.steps if job.plan[STEPS] == EVERY else int(job.plan[STEPS])


def _draw(weight, roles, least, center, theta):
    """The same with NumPy, for the process of one agent."""
    theta += np.where(roles >= least, weight * (center - theta), 0.0)


@or_numpy(_draw)
@inline
def draw(weight, roles, least, center, theta):
    """``theta += weight (center - theta)``, where the role is ``least`` or more."""
    for k in range(theta.shape[0]):
        if roles[k] >= least:
            theta[k] += weight * (center[k] - theta[k])


@inline
def take_step(local, roles, job, gradient, time):
    """One step of a job, given the gradient of f_i, which is spent."""
    if job.correction.shape[0] > 0:
        axpy(1.0, job.correction, gradient)
    part = job.plan[PART]
    if part != ALL:  # what is not trained has no gradient, and no memory of one
        for k in range(gradient.shape[0]):
            if (roles[k] < SHARED) != (part == OWN):
                gradient[k] = 0.0
    local.update(gradient, job.theta, job.memory, float(time))
    pull = local.rate * job.plan[PULL]
    if pull > 0.0:
        weight = pull / (1.0 + pull)
        draw(weight, roles, job.plan[DRAWN], job.center, job.theta)


@inline
def train(local, data, job, dice, scratch):
    """All steps of a job of one agent, each with a die of its own."""
    gradient = scratch[: job.theta.shape[0]]
    steps = steps_of(local, job)
    if steps == 0:
        job.plan[LOSS] = loss_of(data, job.theta)
    fill(0.0, job.memory)
    for s in range(steps):
        fill(0.0, gradient)
        if local.batch > 0 and data.labels.shape[0] > 0:
            add_loss_gradient(minibatch(data, dice[s], local.batch), job.theta, 1.0, gradient)
        else:  # of who has no rows, the ridge
            add_loss_gradient(data, job.theta, 1.0, gradient)
        take_step(local, data.roles, job, gradient, s)


@inline
def train_and_publish(method, data, me, edges, randomness, outbox):
    """A wake of a method that trains: job after job, then what is to be sent."""
    phase, local = 0, local_of(method)
    while method.prepare(data, me, edges, randomness, outbox, phase):
        first = phase * local.steps if local.batch > 0 else 0
        train(local, data, job_of(me), randomness.dice[first:], outbox.scratch)
        phase += 1
    method.publish(data, me, edges, randomness, outbox)


@kernel
def train_one(local, arrays, job, dice, scratch):
    """All steps of the job of the only the hosted agents, who asks nobody."""
    train(local, data_of(arrays, 0, VACANT), row(job, 0), dice, scratch)


# -- all agents at once: the same steps around one call of the model for all of them -----------------------------------


@kernel
def prepare_all(method, arrays, own, edge, dice, moment, outbox, phase, busy):
    """What every agent that is still busy trains next. Returns whether anybody does."""
    anybody = False
    for k in range(arrays.address.shape[0]):
        if busy[k]:
            outbox.cursor[AUTHOR] = k
            data, me, edges = agent(arrays, own, edge, k)
            busy[k] = method.prepare(data, me, edges, Randomness(dice[k], VACANT, moment), outbox, phase)
            if busy[k]:
                fill(0.0, job_of(me).memory)
                anybody = True
    return anybody


@kernel
def pick_all(row_start, who, dice, pick):
    """Which rows the minibatch of each of these agents has, numbered in the world."""
    for k in range(who.shape[0]):
        first, last = row_start[who[k]], row_start[who[k] + 1]
        pick_rows(dice[k], last - first, pick[k])
        for r in range(pick.shape[1]):
            pick[k, r] += first


@kernel
def step_all(local, arrays, job, who, gradients, time):
    """One step of the job of each of these agents, given gradients without their ridge, which are spent."""
    for k in range(who.shape[0]):
        mine = row(job, who[k])
        axpy(2.0 * arrays.ridge[who[k]], mine.theta, gradients[k])
        take_step(local, arrays.roles, mine, gradients[k], time)
