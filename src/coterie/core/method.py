"""``@method``: what a method is made of, every part of it and its default, in one place.

A method is a :class:`typing.NamedTuple` of parameters whose class says what its letters hold, and has handlers that see
one agent and nothing else. :class:`Method` lists all parts; a class takes over the default of each that it leaves out,
so that whoever asks a method for a part finds it.
"""

from __future__ import annotations

import difflib
import functools
import operator
import typing
from abc import ABC, abstractmethod
from typing import Any

import numpy as np

from ..errors import DeclarationError
from .letters import lengths_of
from .rules import NamedTuple as NamedTuple
from .rules import rule
from .training import train_and_publish
from .world import VACANT


class Posterior(typing.NamedTuple):
    """What agents know of their own models, one row for each of them; NaN where that is nothing."""

    mean: np.ndarray  # (n, p)
    covariance: np.ndarray  # (n, p, p)
    noise: np.ndarray  # (n,) variance of the labels' noise; 1 for classes
    trust: np.ndarray  # (n,) weight of the population, from 0 (its own rows only) to 1


def pull(world: Any, own: Any, tie: Any) -> np.ndarray:
    """How strongly each copy of a neighbour's model pulls: its weight among the ties, times how far it is away.

    Relative to the norm of the agent's own model, so that it is a number without units.
    """
    while "theta" not in own._fields:
        own = own.model
    while "copy" not in tie._fields:
        tie = tie.model
    owner = np.repeat(np.arange(own.theta.shape[0]), np.diff(world.tie_start))
    weight = np.where(world.peer == VACANT, 0.0, world.weight)
    whole = np.bincount(owner, weights=weight, minlength=own.theta.shape[0])[owner]
    told = own.theta if tie.copy.shape[1] == own.theta.shape[1] else own.theta[:, world.sent]  # the rest is personal
    apart = np.linalg.norm(tie.copy - told[owner], axis=1)
    size = np.maximum(np.linalg.norm(told[owner], axis=1), np.finfo(float).tiny)
    pulls: np.ndarray = np.where(weight > 0.0, weight * apart / (np.where(whole > 0.0, whole, 1.0) * size), 0.0)
    return pulls


class Method(ABC):
    """The parts of a method. A class decorated with ``@method`` counts as a subclass; nothing inherits from this."""

    # -- a method must have these ----------------------------------------------------------------------------------

    @property
    @abstractmethod
    def letters(self) -> Any:
        """What its letters hold, by kind: ``{MODEL: Vector()}``, see :mod:`coterie.core.letters`."""

    @abstractmethod
    def scratch_size(self, world: Any, p: int) -> int:
        """How many numbers of ``outbox.scratch`` a handler uses."""

    @abstractmethod
    def start(self, world: Any, theta: Any) -> Any:
        """State before the first letter: NamedTuples of arrays, of the agents (with ``theta``) and of the ties."""

    @abstractmethod
    def wake(self, data: Any, me: Any, ties: Any, chance: Any, outbox: Any) -> None:
        """Handler: what an agent does when its clock ticks."""

    @abstractmethod
    def receive(self, data: Any, me: Any, ties: Any, letter: Any, outbox: Any) -> None:
        """Handler: what an agent does with a letter."""

    # -- further handlers ------------------------------------------------------------------------------------------

    def greet(self, data, me, ties, outbox):  # noqa: B027 - a default
        """Handler: the letters of the initial swap. Default: none."""

    #: Handler ``open(data, me, ties, slot)``: makes the state of a new tie, as ``start`` would. A method without it
    #: cannot begin a tie while it runs, which ``ct.Learned`` asks for.
    open = None
    #: Handler ``round(data, me, ties, outbox)``: the synchronous form; called for all agents before letters arrive.
    round = None
    #: Handlers of a method that trains, see :mod:`coterie.core.training`: ``prepare(data, me, ties, chance, outbox,
    #: phase)`` writes into ``me.job`` what to train next, and says whether there is anything; ``publish(data, me, ties,
    #: chance, outbox)`` sends what came of it. With a field ``local``, an optimiser. Its ``wake`` is these two with the
    #: training between them.
    prepare = None
    publish = None

    # -- what it needs and says ------------------------------------------------------------------------------------

    #: How many jobs a wake trains at most; 0 of a method that does not train.
    jobs = property(lambda self: 0 if self.prepare is None else 1)
    #: Rows of a minibatch; 0 for all rows. Of a composition, those of its method.
    batch = property(
        lambda self: self.method.batch if "method" in self._fields else 0 if self.prepare is None else self.local.batch
    )
    #: Uniform numbers that a wake uses. Those of training come first: one for each minibatch.
    dice = property(lambda self: self.jobs * self.local.steps if self.batch else 0)
    #: Letters that one event may post, replies to them included.
    max_letters = 1
    #: How many of them may go to all neighbours.
    broadcasts = property(lambda self: self.max_letters)
    #: Whether a wake talks to one neighbour, the one that ``choose(data, chance)`` says.
    exchanges = False
    #: Whether an agent whose ties change greets all its neighbours, not only the new ones: it tells of all
    #: its ties.
    greets_all = False
    #: Slots for new ties that an agent always has free; above 0, ties are learned.
    spare = 0
    #: Whether ``ties.copy`` (ties, p) holds the last models received, and a wake, a round, and a letter where it
    #: ``exchanges``, read nothing else of the neighbours: ``ct.Trimmed`` asks for it.
    copies = False
    #: Whether all its letters are its model, to everyone, and receiving one does nothing but keep it, or not, in
    #: ``ties.copy[letter.slot]``, whoever receives it; there is no other state of ties, and ``start`` asks for none.
    #: Then a simulation in which no letter is late or lost stores it once, not once for each neighbour.
    publishes = False
    #: Which state a wake, with all letters that it causes, reads and changes, while no letter is late or lost:
    #: ``"ties"``, the agent's own, and of its neighbours only that of their ties to it; or ``"partner"``, the agent's
    #: own and that of the one neighbour that ``choose(data, chance)`` says. Wakes that do not meet run in parallel.
    #: None: nobody knows, and they run one after the other.
    footprint = None
    #: Whether models are sparse: then who learns the graph sends them as pairs of index and value.
    sparse = False
    #: Whether it asks the model of a problem for nothing but losses and gradients, and so runs with any differentiable
    #: one. Default: if it trains; of a composition, if its method does, and nothing is private.
    any_model = property(
        lambda self: (
            self.terms is None and (self.method.any_model if "method" in self._fields else self.prepare is not None)
        )
    )
    #: Whether it runs on one-way ties, those of a ``ct.DirectedGraph``: its ties are to whom it sends, and a letter may
    #: come from somebody who is no tie of its own (``letter.slot == VACANT``).
    directed = False
    #: Whether neighbours add up what it sends, so that a letter that is lost, doubled or overtaken is never made up
    #: for: then conditions in which that happens are refused.
    sums = False
    #: Agents that do not send what the method says, by number: they are left out where honest agents are judged.
    liars = ()
    #: Whether it has rounds.
    synchronous = property(lambda self: self.round is not None or self.prepare is not None)

    # -- what it promises ------------------------------------------------------------------------------------------

    #: Whether it minimises the objective of the problem, and not only uses its data and ties. None: it promises no
    #: optimum at all, as most methods that train.
    minimises = True
    #: How near to the optimum, relative, it comes in some thousand wakes; a larger number for sublinear convergence.
    accuracy = 1e-8
    #: Whether there is more to its optimum than models, such as multipliers.
    remembers = False
    #: Whether it keeps models in the balls of ``Problem.boosting``.
    on_balls = False

    def fit_for(self, problem):  # noqa: B027 - a default
        """Refuse, by a MismatchError, a problem that it cannot solve. Default: it solves all."""

    # -- of private methods ----------------------------------------------------------------------------------------

    #: The terms it runs under, and what they claim.
    terms = None
    plan = property(lambda self: None if self.terms is None else self.terms.plan)
    #: How many wakes of an agent say something; None for any number.
    wakes_per_agent = None
    #: What an agent tells of its loss to those who learn a graph, a rule with ``reported_loss``; None for the loss.
    loss_report = None
    #: What agents do for themselves in the end; if not None, ``finish(world, own, tie)`` gives these models.
    final = None
    finish = None

    #: ``shown(world, own, tie)``: the models that agents would use now, where these are not ``own.theta``: with what
    #: has come since they woke. Runs, traces and evaluations show them.
    shown = None

    # -- state of unusual size, and what else it knows -------------------------------------------------------------

    #: ``population(world, own, tie)``: what each agent takes for the population, of a method that learns one.
    population = None
    #: ``posterior(world, own, tie)``: what each agent knows of its own model, a :class:`Posterior`.
    posterior = None
    #: ``influence(world, own, tie)``: how much what each tie says moves the model now, (ties,) numbers that are not
    #: negative, in units of the method's own. Default: of a method with ``copies`` the :func:`pull` of each copy;
    #: where there are none, nobody knows, and it is None.
    influence = property(lambda self: pull if self.copies else None)

    def enlarge(self, world, tie):
        """The state of ties with more room; a handler asks for it by ``outbox.cursor[NEEDS_ROOM] = 1``."""
        return tie

    # -- what follows ----------------------------------------------------------------------------------------------

    def lengths(self, p):
        """Numbers in a letter of each kind: so many, or a range."""
        return lengths_of(self.letters, p)


#: What a class says of its handlers. A subclass with others of its own has to say it again.
CLAIMS = ("publishes", "footprint")
HANDLERS = ("start", "greet", "wake", "receive")


def _depth(cls: Any, name: str) -> int:
    """How far up among its bases a class has this part from."""
    return next((k for k, kind in enumerate(cls.__mro__) if name in vars(kind)), len(cls.__mro__))


def _disclaim(cls: Any) -> None:
    """Take back what was said of handlers that this class has replaced."""
    for name in CLAIMS:
        if _depth(cls, name) > min(_depth(cls, handler) for handler in HANDLERS):
            setattr(cls, name, vars(Method)[name])


def wake_by_training(self, data, me, ties, chance, outbox):  # type: ignore[no-untyped-def]
    """Train what there is to train, and send what came of it."""
    train_and_publish(self, data, me, ties, chance, outbox)


def complete(cls: Any, parts: Any) -> Any:
    """Give a class of rules every part that it leaves out; refuse one that lacks a part without a default."""
    known = {name: part for name, part in vars(parts).items() if not name.startswith("_")}
    own = {name for kind in cls.__mro__[: cls.__mro__.index(tuple)] for name in vars(kind) if not name.startswith("_")}
    what = f"the {parts.__name__.lower()} {cls.__qualname__}"
    for name in sorted(own - set(known) - set(cls._fields)):
        close = difflib.get_close_matches(name, known, 1, 0.7)
        if close:
            raise DeclarationError(
                f"{what} has a part {name!r}, which is not known: is it {close[0]!r}? If not, begin its name with an "
                "underscore"
            )
    if {"prepare", "publish"} & own and "wake" not in own:
        cls.wake, own = wake_by_training, own | {"wake"}
    for name, part in known.items():
        if name in own:
            continue
        if name in parts.__abstractmethods__:
            raise DeclarationError(
                f"{what} has no {name!r}: {(part.fget if isinstance(part, property) else part).__doc__}"
            )
        setattr(cls, name, part)
    made = rule(cls)
    parts.register(made)
    return made


def method(cls: Any = None, *, keeps: tuple[str, ...] = ()) -> Any:
    """Make a method of a NamedTuple class: give every part that it leaves out its default, and let kernels call it.

    Parameters
    ----------
    cls : type
        A ``typing.NamedTuple`` with the parts of ``coterie.core.method.Method``. Constant parts are plain class
        attributes.
    keeps : tuple of str
        For a composition around the method in its field ``method``: parts that are those of that method.

    Returns
    -------
    type

    Raises
    ------
    DeclarationError
        If a part is missing, or seems to be misspelt.

    Examples
    --------
    >>> from typing import NamedTuple
    >>> import coterie as ct
    >>> @ct.method
    ... class Silent(NamedTuple):
    ...     letters = {}
    ...     def scratch_size(self, world, p):
    ...         return 0
    Traceback (most recent call last):
    ...
    coterie.errors.DeclarationError: the method Silent has no 'start': State before the first letter: ...
    """
    if cls is None:
        return functools.partial(method, keeps=keeps)
    for name in keeps:
        setattr(cls, name, property(operator.attrgetter(f"method.{name}")))
    _disclaim(cls)
    cls.__init_subclass__ = classmethod(_disclaim)
    return complete(cls, Method)
