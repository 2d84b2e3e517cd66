"""Local training between two messages, as in FedAvg, D-PSGD and related methods.

Such a method never calls its model itself. It has three parts: ``prepare`` describes the next training, a *job*; the
engine runs the job with the method's ``local`` optimiser, for one agent or for all agents at once; ``publish`` sends
the result. ``prepare`` is called until it returns False, so that a wake may train several models, or one model in
several stages.

Step of a job on theta, with g the gradient of f_i on a minibatch (McMahan et al. 2017, Algorithm 1, ClientUpdate):

    theta <- theta - rate (g + correction)                 on the parameters that the job trains
    theta <- (theta + rate pull center) / (1 + rate pull)  on the parameters that are drawn to a center

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

#: Entries of ``job.plan``: the weight of the pull to the center; the parameters pulled; the parameters trained (ALL,
#: OWN or COMMON); the number of steps, or EVERY; and the loss before training, written by a job of no steps.
PULL, DRAWN, PART, STEPS, LOSS = 0, 1, 2, 3, 4
#: Parameters that a job trains: all, only the personal ones, or only the others.
ALL, OWN, COMMON = 0.0, 1.0, 2.0
#: Value of STEPS: as many steps as the optimiser has.
EVERY = -1.0


class Job(NamedTuple):
    """The training job of each agent. Center and correction have empty rows (n, 0) if the method does not use them."""

    theta: np.ndarray  # (n, p) parameters, trained in place
    center: np.ndarray  # (n, p) point to which parameters are pulled
    correction: np.ndarray  # (n, p) added to every gradient
    memory: np.ndarray  # (n, k p) memory of the optimiser, cleared before the first step
    plan: np.ndarray  # (n, 5) PULL, DRAWN, PART, STEPS, LOSS


def new_job(local, theta, center=False, correction=False, pull=0.0):
    """Return a job for each agent, which trains a copy of its model with all steps of an optimiser."""
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
    """Return a whole number, also if given as a float."""
    return integer(name, int(value) if isinstance(value, float | np.floating) and value % 1 == 0 else value, least)


_below_one = partial(within, low=0, high=1, ends="[)")


def _add_momentum(momentum, gradient, memory):
    """NumPy version of :func:`add_momentum`, for the process of one agent."""
    memory *= momentum
    memory += gradient
    gradient[:] = memory


@or_numpy(_add_momentum)
@inline
def add_momentum(momentum, gradient, memory):
    """``v <- momentum v + g``; overwrites the gradient with v."""
    for k in range(gradient.shape[0]):
        memory[k] = momentum * memory[k] + gradient[k]
        gradient[k] = memory[k]


def _take_adam_step(self, gradient, theta, memory, time):
    """NumPy version of :meth:`Adam.update`, for the process of one agent."""
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
    """Stochastic gradient descent, optionally with momentum: ``steps`` steps, each on a minibatch of ``batch`` rows.

    Parameters
    ----------
    rate : float
        Learning rate, > 0.
    steps : int
        Number of steps of an agent before it sends its result.
    batch : int
        Rows of a minibatch, drawn at random with repetition (see docs/how-to/bring-a-model.md); 0 for all rows.
    momentum : float
        Momentum, in [0, 1); the velocity is reset with every job.

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
        """``theta <- theta - rate v`` with ``v <- momentum v + g``; overwrites the gradient."""
        if memory.shape[0] > 0:
            add_momentum(self.momentum, gradient, memory)
        axpy(-self.rate, gradient, theta)


@checked(rate=positive, steps=_count, batch=partial(_count, least=0), beta1=_below_one, beta2=_below_one)
@rule
class Adam(NamedTuple):
    """Adam (Kingma and Ba 2015, Algorithm 1), reset with every job.

    Parameters
    ----------
    rate : float
        Learning rate, > 0.
    steps, batch : int
        As in :class:`coterie.optim.SGD`.
    beta1, beta2 : float
        Decay rates of the means of gradients and of squared gradients, in [0, 1).

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
        """Update the means of gradients and squared gradients, and take one step; time counts from 0."""
        p, beta1, beta2 = theta.shape[0], self.beta1, self.beta2
        first, second = 1.0 - beta1 ** (time + 1.0), 1.0 - beta2 ** (time + 1.0)
        for k in range(p):
            memory[k] = beta1 * memory[k] + (1.0 - beta1) * gradient[k]
            memory[p + k] = beta2 * memory[p + k] + (1.0 - beta2) * gradient[k] * gradient[k]
            theta[k] -= self.rate * (memory[k] / first) / (math.sqrt(memory[p + k] / second) + 1e-8)


def local_of(method):
    """Return the optimiser of a method that trains, or of its inner method."""
    return method.local if "local" in method._fields else local_of(method.method)


@overload(local_of)
def _local_of(method):
    if "local" in class_of(method)._fields:
        return lambda method: method.local
    return lambda method: local_of(method.method)


def job_of(own):
    """Return the job in the state of a method that trains, or of its inner method."""
    return own.job if "job" in own._fields else job_of(own.model)


@overload(job_of)
def _job_of(own):
    if "job" in class_of(own)._fields:
        return lambda own: own.job
    return lambda own: job_of(own.model)


@inline
def steps_of(local, job):
    """Return the number of steps of a job."""
    return local.steps if job.plan[STEPS] == EVERY else int(job.plan[STEPS])


def _draw(weight, roles, least, center, theta):
    """NumPy version of :func:`draw`, for the process of one agent."""
    theta += np.where(roles >= least, weight * (center - theta), 0.0)


@or_numpy(_draw)
@inline
def draw(weight, roles, least, center, theta):
    """``theta += weight (center - theta)`` for parameters whose role is ``least`` or more."""
    for k in range(theta.shape[0]):
        if roles[k] >= least:
            theta[k] += weight * (center[k] - theta[k])


@inline
def take_step(local, roles, job, gradient, time):
    """Take one step of a job, given the gradient of f_i, which is overwritten."""
    if job.correction.shape[0] > 0:
        axpy(1.0, job.correction, gradient)
    part = job.plan[PART]
    if part != ALL:  # parameters that are not trained have no gradient and no memory
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
    """Take all steps of a job of one agent, each with one random number."""
    gradient = scratch[: job.theta.shape[0]]
    steps = steps_of(local, job)
    if steps == 0:
        job.plan[LOSS] = loss_of(data, job.theta)
    fill(0.0, job.memory)
    for s in range(steps):
        fill(0.0, gradient)
        if local.batch > 0 and data.labels.shape[0] > 0:
            add_loss_gradient(minibatch(data, dice[s], local.batch), job.theta, 1.0, gradient)
        else:  # an agent without rows has the ridge only
            add_loss_gradient(data, job.theta, 1.0, gradient)
        take_step(local, data.roles, job, gradient, s)


@inline
def train_and_publish(method, data, me, edges, randomness, outbox):
    """Run a wake of a method that trains: all jobs one after the other, then publish."""
    phase, local = 0, local_of(method)
    while method.prepare(data, me, edges, randomness, outbox, phase):
        first = phase * local.steps if local.batch > 0 else 0
        train(local, data, job_of(me), randomness.dice[first:], outbox.scratch)
        phase += 1
    method.publish(data, me, edges, randomness, outbox)


@kernel
def train_one(local, arrays, job, dice, scratch):
    """Take all steps of the job of the only hosted agent, which uses no state of others."""
    train(local, data_of(arrays, 0, VACANT), row(job, 0), dice, scratch)


# -- all agents at once: equal steps, with one call of the model for all agents ---------------------------------------


@kernel
def prepare_all(method, arrays, own, edge, dice, moment, outbox, phase, busy):
    """Prepare the next job of every agent that is still busy. Return whether there is any."""
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
    """Choose the rows of a minibatch of each given agent, as positions among the rows of all hosted agents."""
    for k in range(who.shape[0]):
        first, last = row_start[who[k]], row_start[who[k] + 1]
        pick_rows(dice[k], last - first, pick[k])
        for r in range(pick.shape[1]):
            pick[k, r] += first


@kernel
def step_all(local, arrays, job, who, gradients, time):
    """Take one step of the job of each given agent, from gradients without their ridge, which are overwritten."""
    for k in range(who.shape[0]):
        mine = row(job, who[k])
        axpy(2.0 * arrays.ridge[who[k]], mine.theta, gradients[k])
        take_step(local, arrays.roles, mine, gradients[k], time)
