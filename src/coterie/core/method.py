"""``@method``: what a method is made of, every part of it and its default, in one place.

A method is a :class:`typing.NamedTuple` of parameters whose class says what its messages hold, and has handlers that see
one agent and nothing else. :class:`Method` lists what all methods have. What only some need to say stands in a few
records, such as :class:`Promises`: a class states what it has to say by name, ``minimises = False``, whoever asks finds
it in its record, ``method.promises.minimises``, and what nobody stated there has its default.

A composition, a method around the one in its field ``method``, is like that one in all that it does not state itself.
"""

from __future__ import annotations

import difflib
import functools
import typing
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import numpy as np

from ..errors import DeclarationError
from .arrays import VACANT, owners
from .rules import NamedTuple as NamedTuple
from .rules import rule
from .training import train_and_publish


class Posterior(typing.NamedTuple):
    """What agents know of their own models, one row for each of them; NaN where that is nothing."""

    mean: np.ndarray  # (n, p)
    covariance: np.ndarray  # (n, p, p)
    noise: np.ndarray  # (n,) variance of the labels' noise; 1 for classes
    trust: np.ndarray  # (n,) weight of the population, from 0 (its own rows only) to 1


# -- what only some methods have to say --------------------------------------------------------------------------------


class Traffic(typing.NamedTuple):
    """What one event uses, posts and touches."""

    #: Uniform numbers that a wake uses. Those of training come first: one for each minibatch.
    dice: int = 0
    #: Messages that one event may post, replies to them included.
    max_messages: int = 1
    #: How many of them may go to all neighbours. Default: all.
    broadcasts: int = 1
    #: Whether a wake talks to one neighbour, the one that ``choose(data, randomness)`` says.
    exchanges: bool = False
    #: Whether all its messages are its model, to everyone, and receiving one does nothing but keep it, or not, in
    #: ``edges.copy[message.slot]``, whoever receives it; there is no other state of edges, and ``start`` asks for none.
    #: Then a simulation in which no message is late or lost stores it once, not once for each neighbour.
    publishes: bool = False
    #: Which state a wake, with all messages that it causes, reads and changes, while no message is late or lost:
    #: ``"edges"``, the agent's own, and of its neighbours only that of their edges to it; or ``"partner"``, the agent's
    #: own and that of the one neighbour that ``choose(data, randomness)`` says. Wakes that do not meet run in parallel.
    #: None: nobody knows, and they run one after the other.
    footprint: str | None = None
    #: Whether neighbours add up what it sends, so that a message that is lost, doubled or overtaken is never made up
    #: for: then conditions in which that happens are refused.
    sums: bool = False


class Edges(typing.NamedTuple):
    """What it keeps of neighbours, and which edges it can have."""

    #: Whether ``edges.copy`` (edges, p) holds the last models received, and a wake, a round, and a message where it
    #: ``exchanges``, read nothing else of the neighbours: ``ct.robust.Trimmed`` asks for it.
    copies: bool = False
    #: Slots for new edges that an agent always has free; above 0, edges are learned.
    spare: int = 0
    #: ``enlarge(arrays, edge)``: the state of edges with more room, of a method whose handlers ask for it by
    #: ``outbox.cursor[NEEDS_ROOM] = 1``.
    enlarge: Callable[..., Any] | None = None
    #: Whether an agent whose edges change greets all its neighbours, not only the new ones: it tells of all its edges.
    greets_all: bool = False
    #: Whether it runs on one-way edges, those of a ``ct.DirectedGraph``: its edges are to whom it sends, and a message may
    #: come from somebody who is no edge of its own (``message.slot == VACANT``).
    directed: bool = False
    #: Whether models are sparse: then who learns the graph sends them as pairs of index and value.
    sparse: bool = False


class Training(typing.NamedTuple):
    """How a method trains, and how it runs in synchronous rounds."""

    #: Handlers of a method that trains, see :mod:`coterie.core.training`: ``prepare(data, me, edges, chance, outbox,
    #: phase)`` writes into ``me.job`` what to train next, and says whether there is anything; ``publish(data, me, edges,
    #: chance, outbox)`` sends what came of it. With a field ``local``, an optimiser. Its ``wake`` is these two with the
    #: training between them.
    prepare: Callable[..., Any] | None = None
    publish: Callable[..., Any] | None = None
    #: How many jobs a wake trains at most; 0 of a method that does not train, else 1 unless it says more.
    jobs: int = 0
    #: Rows of a minibatch; 0 for all rows.
    batch: int = 0
    #: Handler ``round(data, me, edges, outbox)``: the synchronous form; called for all agents before messages arrive.
    round: Callable[..., Any] | None = None
    #: Whether it has rounds: if it has that handler, or trains.
    synchronous: bool = False


class Privacy(typing.NamedTuple):
    """What a private method runs under."""

    #: The terms, and what they claim.
    terms: Any = None
    plan: Any = None
    #: How many wakes of an agent say something; None for any number.
    wakes_per_agent: int | None = None
    #: What an agent tells of its loss to those who learn a graph, a rule with ``reported_loss``; None for the loss.
    loss_report: Any = None
    #: ``finish(arrays, own, edge)``: the models that agents make for themselves in the end, and keep; None: they do not.
    finish: Callable[..., Any] | None = None


class Promises(typing.NamedTuple):
    """What it comes to, and with which problems."""

    #: Whether it minimises the objective of the problem, and not only uses its data and edges. None: it promises no
    #: optimum at all, as most methods that train.
    minimises: bool | None = True
    #: How near to the optimum, relative, it comes in some thousand wakes; a larger number for sublinear convergence.
    accuracy: float = 1e-8
    #: Whether there is more to its optimum than models, such as multipliers.
    remembers: bool = False
    #: Whether it keeps models in the balls of ``Problem.boosting``.
    on_balls: bool = False
    #: Whether it asks the model of a problem for nothing but losses and gradients, and so runs with any differentiable
    #: one. Default: if it trains.
    any_model: bool = False


class Inspection(typing.NamedTuple):
    """What can be seen of a run, by functions of ``(arrays, own, edge)``; None for what cannot."""

    #: The models that agents would use now, where these are not ``own.theta``: with what has come since they woke.
    #: Runs, traces and evaluations show them.
    shown: Callable[..., Any] | None = None
    #: What each agent takes for the population, of a method that learns one.
    population: Callable[..., Any] | None = None
    #: What each agent knows of its own model, a :class:`Posterior`.
    posterior: Callable[..., Any] | None = None
    #: How much what each edge says moves the model now, (edges,) numbers that are not negative, in units of the method's
    #: own. Default: of a method with ``copies`` the :func:`pull` of each copy.
    influence: Callable[..., Any] | None = None
    #: Agents that do not send what the method says, by number: they are left out where honest agents are judged.
    liars: tuple[int, ...] = ()


class _Record:
    """A record of a method: that of the method in it, or of defaults, with what its class states by name."""

    def __init__(self, name: str, kind: Any):
        self.name, self.kind = name, kind

    def __get__(self, method: Any, cls: Any = None) -> Any:
        if method is None:
            return self
        kind: Any = type(method)
        stated = {name: getattr(method, name) for name in _stated(kind, self.kind)}
        if "method" not in method._fields:
            return self.kind(**stated)
        inner = getattr(method.method, self.name)._asdict()
        for name in LOOKS & inner.keys() - stated.keys():
            if inner[name] is not None:
                stated[name] = functools.partial(_look_inside, method, inner[name])
        return self.kind(**inner | stated)


@functools.cache
def _stated(cls: Any, kind: Any) -> tuple[str, ...]:
    """The parts of a record that a class states itself: looked for once, since runs ask many times."""
    return tuple(name for name in kind._fields if hasattr(cls, name))


def _look_inside(method: Any, look: Any, arrays: Any, own: Any, edge: Any) -> Any:
    return look(arrays, *method.inside(arrays, own, edge))


#: Parts that look at the state of agents, which a composition may have its own around.
LOOKS = {"finish", "shown", "population", "posterior"}


def pull(arrays: Any, own: Any, edge: Any) -> np.ndarray:
    """How strongly each copy of a neighbour's model pulls: its weight among the edges, times how far it is away.

    Relative to the norm of the agent's own model, so that it is a number without units.
    """
    while "theta" not in own._fields:
        own = own.model
    while "copy" not in edge._fields:
        edge = edge.model
    owner = owners(arrays.edge_start)
    weight = np.where(arrays.peer == VACANT, 0.0, arrays.weight)
    whole = np.bincount(owner, weights=weight, minlength=own.theta.shape[0])[owner]
    told = own.theta if edge.copy.shape[1] == own.theta.shape[1] else own.theta[:, arrays.sent]  # the rest is personal
    apart = np.linalg.norm(edge.copy - told[owner], axis=1)
    size = np.maximum(np.linalg.norm(told[owner], axis=1), np.finfo(float).tiny)
    pulls: np.ndarray = np.where(weight > 0.0, weight * apart / (np.where(whole > 0.0, whole, 1.0) * size), 0.0)
    return pulls


# -- what all methods have ---------------------------------------------------------------------------------------------


class Method(ABC):
    """The parts of a method. A class decorated with ``@method`` counts as a subclass; nothing inherits from this."""

    @property
    @abstractmethod
    def messages(self) -> Any:
        """What its messages hold, by kind: ``{MODEL: Vector()}``, see :mod:`coterie.core.messages`."""

    @abstractmethod
    def scratch_size(self, arrays: Any, p: int) -> int:
        """How many numbers of ``outbox.scratch`` a handler uses."""

    @abstractmethod
    def start(self, arrays: Any, theta: Any) -> Any:
        """State before the first letter: NamedTuples of arrays, of the agents (with ``theta``) and of the edges."""

    @abstractmethod
    def wake(self, data: Any, me: Any, edges: Any, randomness: Any, outbox: Any) -> None:
        """Handler: what an agent does when its clock ticks."""

    @abstractmethod
    def receive(self, data: Any, me: Any, edges: Any, message: Any, outbox: Any) -> None:
        """Handler: what an agent does with a message."""

    def greet(self, data, me, edges, outbox):  # noqa: B027 - a default
        """Handler: the messages of the initial swap. Default: none."""

    #: Handler ``open(data, me, edges, slot)``: makes the state of a new edge, as ``start`` would. A method without it
    #: cannot begin an edge while it runs, which ``ct.Learned`` asks for.
    open = None

    def fit_for(self, problem):  # noqa: B027 - a default
        """Refuse, by a MismatchError, a problem that it cannot solve. Default: it solves all."""

    traffic = _Record("traffic", Traffic)
    edges = _Record("edges", Edges)
    training = _Record("training", Training)
    privacy = _Record("privacy", Privacy)
    promises = _Record("promises", Promises)
    inspection = _Record("inspection", Inspection)


#: The parts that stand in records, and in which.
RECORDS = {
    part: record.name for record in vars(Method).values() if isinstance(record, _Record) for part in record.kind._fields
}


class Composition(Method):
    """What a method around another is where it does not state otherwise: the same, with the same state."""

    messages = property(lambda self: self.method.messages)  # type: ignore[assignment]

    def scratch_size(self, arrays, p):
        """Those of the method."""
        return self.method.scratch_size(arrays, p)

    def fit_for(self, problem):
        """Refuse what the method refuses."""
        self.method.fit_for(problem)

    def start(self, arrays, theta):
        """State before the first letter."""
        return self.method.start(arrays, theta)

    def open(self, data, me, edges, slot):
        """A new edge."""
        self.method.open(data, me, edges, slot)

    def greet(self, data, me, edges, outbox):
        """The initial swap."""
        self.method.greet(data, me, edges, outbox)

    def wake(self, data, me, edges, randomness, outbox):
        """The method's wake."""
        self.method.wake(data, me, edges, randomness, outbox)

    def receive(self, data, me, edges, message, outbox):
        """What the method does with a message."""
        self.method.receive(data, me, edges, message, outbox)

    def inside(self, arrays, own, edge):
        """The state of the method in it, for what looks at that: what stands in fields called ``model``, or all."""
        return tuple(getattr(state, "model", state) for state in (own, edge))


def shown_by(method: Any, arrays: Any, own: Any, edge: Any) -> np.ndarray:
    """Models as the hosted agents would use them now."""
    shown = method.inspection.shown
    models: np.ndarray = own.theta if shown is None else shown(arrays, own, edge)
    return models


def finished_by(method: Any, arrays: Any, own: Any, edge: Any) -> np.ndarray:
    """Models that they have in the end: those, or what they keep to themselves. Their own, to be changed."""
    finish = method.privacy.finish
    models: np.ndarray = shown_by(method, arrays, own, edge).copy() if finish is None else finish(arrays, own, edge)
    return models


def can_open(method: Any) -> bool:
    """Whether a method, and one that it is around, can begin an edge while it runs."""
    return method.open is not None and ("method" not in method._fields or can_open(method.method))


def wake_by_training(self, data, me, edges, randomness, outbox):  # type: ignore[no-untyped-def]
    """Train what there is to train, and send what came of it."""
    train_and_publish(self, data, me, edges, randomness, outbox)


#: What follows from another part, of a class that states that one and is no composition.
FOLLOWS: tuple[tuple[str, str, Any], ...] = (
    ("max_messages", "broadcasts", property(lambda self: self.max_messages)),
    ("copies", "influence", property(lambda self: pull if self.copies else None)),
    ("round", "synchronous", True),
    ("prepare", "wake", wake_by_training),
    ("prepare", "synchronous", True),
    ("prepare", "jobs", 1),
    ("prepare", "batch", property(lambda self: self.local.batch)),
    ("prepare", "dice", property(lambda self: self.jobs * self.local.steps if self.batch else 0)),
    ("prepare", "any_model", True),
)
#: What a class says of its handlers. One with others of its own, a subclass or a composition, has to say it again.
CLAIMS = ("publishes", "footprint")
HANDLERS = ("start", "greet", "wake", "receive")


def _depth(cls: Any, name: str) -> int:
    """How far up among its bases a class has this part from."""
    return next((k for k, kind in enumerate(cls.__mro__) if name in vars(kind)), len(cls.__mro__))


def _disclaim(cls: Any) -> None:
    """Take back what was said of handlers that this class has replaced, or the method in it of its own."""
    replaced = min(_depth(cls, handler) for handler in HANDLERS)
    for name in CLAIMS:
        if _depth(cls, name) > replaced and (hasattr(cls, name) or "method" in cls._fields):
            setattr(cls, name, Traffic._field_defaults[name])


def _found(self: Any, name: str) -> Any:
    """A part that the class does not state itself, where it was asked for without its record."""
    if name in RECORDS:
        return getattr(getattr(self, RECORDS[name]), name)
    raise AttributeError(f"{type(self).__qualname__!r} has no attribute {name!r}")


def complete(cls: Any, parts: Any, more: typing.Iterable[str] = ()) -> Any:
    """Give a class of rules every part that it leaves out; refuse one that lacks a part without a default.

    There may be ``more`` parts, which have no default here.
    """
    known: dict[str, Any] = {}
    for kind in parts.__mro__[: parts.__mro__.index(ABC)]:
        known = {name: part for name, part in vars(kind).items() if not name.startswith("_")} | known
    own = {name for kind in cls.__mro__[: cls.__mro__.index(tuple)] for name in vars(kind) if not name.startswith("_")}
    what = f"the {parts.__name__.lower()} {cls.__qualname__}"
    for name in sorted(own - set(known) - set(more) - set(cls._fields)):
        close = difflib.get_close_matches(name, {*known, *more}, 1, 0.7)
        if close:
            raise DeclarationError(
                f"{what} has a part {name!r}, which is not known: is it {close[0]!r}? If not, begin its name with an "
                "underscore"
            )
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


def method(cls: Any) -> Any:
    """Make a method of a NamedTuple class: give every part that it leaves out its default, and let kernels call it.

    Parameters
    ----------
    cls : type
        A ``typing.NamedTuple`` with the parts of ``coterie.core.method.Method``. Parts that are no handlers are plain
        class attributes, or properties; those of its records, such as ``minimises`` of ``promises``, are stated in the
        same way, by their own names. A class with a field ``method`` is a composition around that one, and states what
        differs from it.

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
    ...     messages = {}
    ...     def scratch_size(self, arrays, p):
    ...         return 0
    Traceback (most recent call last):
    ...
    coterie.errors.DeclarationError: the method Silent has no 'start': State before the first letter: ...
    """
    composed = "method" in cls._fields
    for name in set(RECORDS.values()) & vars(cls).keys():
        if not isinstance(vars(cls)[name], _Record):
            parts = ", ".join(part for part, record in RECORDS.items() if record == name)
            raise DeclarationError(f"the method {cls.__qualname__}: {name!r} is made of {parts}: state these by name")
    for source, name, part in () if composed else FOLLOWS:
        if hasattr(cls, source) and not hasattr(cls, name):
            setattr(cls, name, part)
    _disclaim(cls)
    cls.__init_subclass__ = classmethod(_disclaim)
    cls.__getattr__ = _found
    return complete(cls, Composition if composed else Method, RECORDS)
