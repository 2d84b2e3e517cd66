"""Agents that send other messages than the method prescribes: ``Attacked(method, agents, attack)``.

Liars follow the method, but change the models in the messages that they send. With theta the liar's own model, and m
and s the mean and standard deviation of the models that its honest neighbours have sent to the liar, coordinate by
coordinate, the message becomes

    own theta + mean m + spread s + noise N(0, 1) + shift.

======================  =========================================================================================
attack                  coefficients, and source
======================  =========================================================================================
``"sign-flip"``         own = -1
``"scaled"``            own = 10
``"noise"``             own = 1, noise = 1
``"constant"``          shift = 1
``"little"``            mean = 1, spread = -1.5: "a little is enough", Baruch, Baruch, Goldberg (2019), Algorithm 3
``"inner-product"``     mean = -0.5: Xie, Koyejo, Gupta (2020), "Fall of Empires", Section 4
======================  =========================================================================================

The last two are for colluding liars: liars know each other, use the models of honest neighbours only, and send equal
lies if these models are equal. Liars that flip labels change their data, not their messages:
:func:`coterie.robust.flip_labels`.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import partial
from typing import Any

import numpy as np

from ..._checks import integer, named, within
from ...errors import MismatchError, ParameterError
from ..arrays import TAIL, VACANT
from ..compile import inline, noinline
from ..messages import Vector, is_numbers
from ..method import NamedTuple, method
from ..methods import resolve_method
from ..private.noise import KEY, SIZE, discrete_gaussian, open_stream
from ..rules import checked, made_by, rule
from . import parts
from .parts import WITHOUT_SERVER, has_inside, heard_number, refuse_server
from .robust import Robust

#: Number of integers that represent one standard deviation of the noise.
GRID = 1 << 20


_finite = partial(within, low=-math.inf, high=math.inf, ends="()")


@checked(own=_finite, mean=_finite, spread=_finite, noise=_finite, shift=_finite)
@rule
class Attack(NamedTuple):
    """The message of a liar: ``own theta + mean m + spread s + noise N(0, 1) + shift``, coordinate by coordinate.

    Parameters
    ----------
    own : float
        Coefficient of the liar's own model.
    mean, spread : float
        Coefficients of the mean, and of the standard deviation, of the models that honest neighbours have sent to the
        liar.
    noise : float
        Standard deviation of Gaussian noise.
    shift : float
        Constant that is added.

    Examples
    --------
    >>> import coterie as ct
    >>> ct.robust.Attack(own=-3.0)
    Attack(own=-3.0, mean=0.0, spread=0.0, noise=0.0, shift=0.0)
    """

    own: float = 0.0
    mean: float = 0.0
    spread: float = 0.0
    noise: float = 0.0
    shift: float = 0.0

    @property
    def looks(self):
        """Return whether the attack depends on the models of neighbours."""
        return self.mean != 0.0 or self.spread != 0.0


@rule
class Silence(NamedTuple):
    """No noise. A class of its own, so that code for noise is compiled only if it is needed."""

    def draw(self, stream):
        """Return zero."""
        return 0.0


@rule
class Gaussian(NamedTuple):
    """Standard Gaussian noise, on a fine grid."""

    def draw(self, stream):
        """Return one number; 0 before the first wake, which supplies the random key."""
        return discrete_gaussian(stream, GRID) / GRID if stream[0] != 0 else 0.0


#: Attacks, by name.
ATTACKS = {
    "sign-flip": Attack(own=-1.0),
    "scaled": Attack(own=10.0),
    "noise": Attack(own=1.0, noise=1.0),
    "constant": Attack(shift=1.0),
    "little": Attack(mean=1.0, spread=-1.5),
    "inner-product": Attack(mean=-0.5),
}


class Own(NamedTuple):
    """State of the agents."""

    model: Any  # state of the method
    lies: np.ndarray  # (n,) whether the agent is a liar
    stream: np.ndarray  # (n, SIZE) random stream of the agent's noise; zeros before its first wake

    theta, account = parts.theta, parts.account


@inline
def among(agents, address):
    """Return whether an address is in a sorted array of agents."""
    place = np.searchsorted(agents, address)
    return place < agents.shape[0] and agents[place] == address


@noinline
def known_to(agents, data, edges, c):
    """Return mean and standard deviation of coordinate c over honest neighbours' models; zeros without any."""
    count, mean, square = 0, 0.0, 0.0
    for k in range(data.peer.shape[0]):
        if data.peer[k] != VACANT and not among(agents, data.peer[k]):
            count += 1
            mean += heard_number(edges, k, c)
    if count == 0:
        return 0.0, 0.0
    mean /= count
    for k in range(data.peer.shape[0]):
        if data.peer[k] != VACANT and not among(agents, data.peer[k]):
            far = heard_number(edges, k, c) - mean
            square += far * far
    return mean, math.sqrt(square / count)


@noinline
def falsify(self, data, me, edges, outbox, first):
    """Replace the models in a liar's messages from ``first`` on."""
    attack = self.attack
    looks = attack.mean != 0.0 or attack.spread != 0.0
    for h in range(first, outbox.cursor[TAIL]):
        if (self.models >> outbox.kind[h]) & 1 == 0:  # not a model
            continue
        text = outbox.text[h]
        for c in range(outbox.length[h]):
            value = attack.own * text[c] + attack.shift
            if looks:
                mean, spread = known_to(self.agents, data, edges, c)
                value += attack.mean * mean + attack.spread * spread
            text[c] = value + attack.noise * self.source.draw(me.stream)


def _liars(method, agents, attack="sign-flip"):
    """Check and complete the fields of an attacked method; refuse a method whose messages are not models."""
    method = resolve_method(method)
    attack = named("attack", attack, ATTACKS, ", or pass a ct.robust.Attack(...)")
    if not isinstance(attack, Attack):
        raise ParameterError(f"attack={attack!r} must be one of {', '.join(ATTACKS)}, or a ct.robust.Attack(...)")
    if isinstance(agents, str) or not isinstance(agents, Iterable):
        raise ParameterError(f"agents={agents!r} must be a list of agents' numbers, from 0 on")
    numbers = np.unique(np.array([integer("agents", k, least=0) for k in agents], np.int64))
    if len(method.inspection.liars):
        raise ParameterError(f"{method!r} has liars already: pass all liars at once")
    if method.privacy.plan is not None or method.edges.spare:
        raise MismatchError(f"{method!r} is private, or learns its graph: attacks on such methods are not supported")
    refuse_server(
        method,
        "and its messages differ by kind, models down and answers with their weight up, for which no attack is "
        "defined: an attack would be",
        f"ct.robust.flip_labels(data, agents) for clients that lie with their data, or {WITHOUT_SERVER}",
    )
    models = sum(1 << kind for kind, message in method.messages.items() if isinstance(message, Vector))
    if not all(isinstance(message, Vector) or is_numbers(message) for message in method.messages.values()):
        instead = (
            "attack the method whose messages are compressed, ct.compression.Compressed(ct.robust.Attacked(...))"
            if has_inside(method, "how")
            else "use one whose messages are models, such as ct.CoordinateDescent() or ct.gossip.DPSGD(...), or lie "
            "with data, ct.robust.flip_labels(data, agents)"
        )
        raise MismatchError(f"{method!r} sends more than models, for which no attack is defined: {instead}")
    if attack.looks and not (method.edges.copies or isinstance(method, Robust)):
        raise MismatchError(f"{method!r} keeps no models of neighbours, which {attack!r} needs")
    return method, numbers, attack, int(method.traffic.dice), Gaussian() if attack.noise else Silence(), models


@made_by(_liars, lambda self: (self.method, self.agents.tolist(), self.attack))
@method
class Attacked(NamedTuple):
    """A method with liars: agents that follow the method, but change the models in the messages they send.

    The liars are listed in ``run.method.liars`` and in ``run.notes``, the other agents in ``run.honest``; the trace has
    a column ``honest_loss``, the mean of the honest agents' losses. All randomness comes from the run's random numbers.

    Parameters
    ----------
    method : rule or str
        A method whose messages are models; it may be, or contain, a defence, since liars see messages before the
        defence. Compression goes around this composition.
    agents : list of int
        Numbers of the liars.
    attack : "sign-flip", "scaled", "noise", "constant", "little", "inner-product", or a ct.robust.Attack

    Examples
    --------
    Two of nine agents lie, which hardly affects agents that take the median of the received models.

    >>> import numpy as np
    >>> import coterie as ct
    >>> models = 1.0 + 0.1 * np.random.default_rng(0).normal(size=(9, 3))
    >>> problem = ct.Problem.propagation(models, ct.graphs.complete(9), alpha=0.99)
    >>> for method in (ct.CoordinateDescent(), ct.Robust("cd", ct.robust.Median())):
    ...     attacked = ct.robust.Attacked(method, [3, 7], ct.robust.Attack(own=-5.0))
    ...     run = ct.simulate(problem, attacked, wakes=2000, seed=0)
    ...     print(abs(run.theta - models)[run.honest].max().round(1))
    1.1
    0.2
    >>> run.notes
    ('agents 3, 7 lied: run.honest leaves them out',)
    """

    method: Any
    agents: np.ndarray
    attack: Any = ATTACKS["sign-flip"]
    inner_dice: int = 0
    source: Any = Silence()  # source of noise
    models: int = 1  # bit mask of the kinds of messages that are models

    open = None  # under a learned graph, the neighbours of liars are not known
    synchronous = property(parts.has_rounds)
    wake, round, prepare, publish = parts.wake, parts.round, parts.prepare, parts.publish

    def __repr__(self):
        return f"Attacked({self.method!r}, {self.agents.tolist()}, {self.attack!r})"

    @property
    def liars(self):
        """Return the numbers of the liars."""
        return tuple(self.agents.tolist())

    footprint = property(lambda self: self.method.traffic.footprint)

    @property
    def publishes(self):
        """Return whether messages may be stored once: not if the first messages' attack depends on neighbours."""
        return self.method.traffic.publishes and not self.attack.looks

    @property
    def dice(self):
        """The method's random numbers, and a key for noise."""
        return self.inner_dice + (KEY if self.attack.noise else 0)

    def fit_for(self, problem):
        """Refuse a problem without those agents, or one that the method cannot solve."""
        if self.agents.size and self.agents[-1] >= problem.n:
            raise MismatchError(f"agent {self.agents[-1]} is to lie: the agents are 0 to {problem.n - 1}")
        self.method.fit_for(problem)

    def start(self, arrays, theta):
        """State of the method, and which agents lie."""
        own, edge = self.method.start(arrays, theta)
        return Own(own, np.isin(arrays.address, self.agents), np.zeros((theta.shape[0], SIZE), np.int64)), edge

    def edit(self, data, me, edges, dice, outbox, first):
        """Replace the models that liars send."""
        if me.lies:
            if self.attack.noise != 0.0 and dice.shape[0] > 0:
                open_stream(dice, me.stream)
            falsify(self, data, me, edges, outbox, first)

    def greet(self, data, me, edges, outbox):
        """As the method; liars lie from the initial exchange on."""
        first = outbox.cursor[TAIL]
        self.method.greet(data, me.model, edges, outbox)
        self.edit(data, me, edges, outbox.scratch[:0], outbox, first)

    def receive(self, data, me, edges, message, outbox):
        """As the method; the answers of liars are replaced."""
        first = outbox.cursor[TAIL]
        self.method.receive(data, me.model, edges, message, outbox)
        self.edit(data, me, edges, outbox.scratch[:0], outbox, first)
