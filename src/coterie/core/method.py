"""The ``@method`` decorator, and every part that a method can have, with its default.

A method is a :class:`typing.NamedTuple` of parameters. Its class declares the content of its messages, and has handlers
that see the data and state of one agent only. :class:`Method` lists the parts that all methods have. Optional parts are
grouped in records such as :class:`Promises`: a class states an optional part as an attribute, ``minimises = False``,
and other modules read it from the record, ``method.promises.minimises``. A part that is not stated has its default.

A composition is a method with a field ``method``. It inherits every part of that method that it does not state itself.
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
    """The agents' posteriors of their own models, one row for each agent; NaN where an agent has none yet."""

    mean: np.ndarray  # (n, p)
    covariance: np.ndarray  # (n, p, p)
    noise: np.ndarray  # (n,) variance of the labels' noise; 1 for classes
    trust: np.ndarray  # (n,) weight of the population, from 0 (its own rows only) to 1


# -- optional parts ----------------------------------------------------------------------------------------------------


class Traffic(typing.NamedTuple):
    """Random numbers, messages and state that one event of a method uses."""

    #: Number of uniform random numbers per wake. Those of training come first, one for each minibatch.
    dice: int = 0
    #: Largest number of messages that one event may post, including replies.
    max_messages: int = 1
    #: Largest number of these messages that may go to all neighbours. Default: all.
    broadcasts: int = 1
    #: Whether a wake communicates with one neighbour only, the one that ``choose(data, randomness)`` returns.
    exchanges: bool = False
    #: Whether each message is the sender's model, sent to all neighbours, and the receiver only stores it in
    #: ``edges.copy[message.slot]`` or ignores it; edges have no other state, and ``start`` creates none. A simulation
    #: in which no message is late or lost then stores each model once, not once for each neighbour.
    publishes: bool = False
    #: The state that a wake and its messages read and change, while no message is late or lost. ``"edges"``: the
    #: agent's own state, and its neighbours' state of their edges to it. ``"partner"``: the agent's own state, and that
    #: of the one neighbour that ``choose(data, randomness)`` returns. Wakes whose states do not overlap run in
    #: parallel. None: unknown, so that wakes run one after the other.
    footprint: str | None = None
    #: Whether neighbours sum up what the method sends, so that a lost, duplicated or overtaken message corrupts the sum
    #: for good. Conditions with such messages are refused.
    sums: bool = False


class Edges(typing.NamedTuple):
    """State that a method keeps for each neighbour, and the kinds of edges it supports."""

    #: Whether ``edges.copy`` (edges, p) holds the last models received, and handlers use nothing else of the
    #: neighbours: not in a wake, not in a round, nor in ``receive`` if the method ``exchanges``. ``ct.robust.Trimmed``
    #: needs this.
    copies: bool = False
    #: Number of free slots that each agent reserves for new edges; if above 0, edges are learned.
    spare: int = 0
    #: ``enlarge(arrays, edge)``: returns the state of edges with more room, for a method whose handlers request room by
    #: ``outbox.cursor[NEEDS_ROOM] = 1``.
    enlarge: Callable[..., Any] | None = None
    #: Whether an agent whose edges change greets all its neighbours, not only the new ones.
    greets_all: bool = False
    #: Whether the method runs on the one-way edges of a ``ct.DirectedGraph``. An agent sends along its own edges, and
    #: may receive messages from agents to which it has no edge (``message.slot == VACANT``).
    directed: bool = False
    #: Whether models are sparse; graph learning then sends them as pairs of index and value.
    sparse: bool = False


class Training(typing.NamedTuple):
    """How a method trains, and how it runs in synchronous rounds."""

    #: Handlers of a method that trains, see :mod:`coterie.core.training`. ``prepare(data, me, edges, randomness,
    #: outbox, phase)`` writes the next training job into ``me.job``, and returns whether there is one. ``publish(data,
    #: me, edges, randomness, outbox)`` sends the result. The method has a field ``local``, its optimiser, and its
    #: ``wake`` is ``prepare``, training, and ``publish``.
    prepare: Callable[..., Any] | None = None
    publish: Callable[..., Any] | None = None
    #: Largest number of jobs per wake: 0 for a method that does not train, otherwise 1 by default.
    jobs: int = 0
    #: Number of rows of a minibatch; 0 for all rows.
    batch: int = 0
    #: Handler ``round(data, me, edges, outbox)``: one synchronous round. Called for all agents before messages arrive.
    round: Callable[..., Any] | None = None
    #: Whether the method can run in synchronous rounds. Default: if it has a ``round`` handler, or trains.
    synchronous: bool = False


class Privacy(typing.NamedTuple):
    """Privacy of a method."""

    #: The terms of the privacy guarantee, and the guarantee that they give.
    terms: Any = None
    plan: Any = None
    #: Number of wakes of an agent that send something; None if unlimited.
    wakes_per_agent: int | None = None
    #: Mechanism for the loss that an agent reports to a rule that learns the graph from losses (``reported_loss``);
    #: None to report the exact loss.
    loss_report: Any = None
    #: ``finish(arrays, own, edge)``: returns the final models, which agents keep to themselves. None if there is no
    #: such step.
    finish: Callable[..., Any] | None = None


class Promises(typing.NamedTuple):
    """What a method guarantees, and for which problems."""

    #: Whether the method minimises the objective of the problem. False: it converges to another point. None: it
    #: converges to no optimum, as most methods that train.
    minimises: bool | None = True
    #: Relative distance to the optimum after some thousand wakes; larger for methods that converge sublinearly.
    accuracy: float = 1e-8
    #: Whether the optimum includes more than models, such as multipliers.
    remembers: bool = False
    #: Whether models stay in the balls of ``Problem.boosting``.
    on_balls: bool = False
    #: Whether the method uses only losses and gradients of a model, and so runs with any differentiable one. Default:
    #: if it trains.
    any_model: bool = False


class Inspection(typing.NamedTuple):
    """Functions of ``(arrays, own, edge)`` that inspect the state of a run; None where a method has none."""

    #: The models that agents would use now, if these are not ``own.theta``, for example because messages have arrived
    #: since the last wake. Runs, traces and evaluations use these models.
    shown: Callable[..., Any] | None = None
    #: Each agent's estimate of the population, for methods that learn one.
    population: Callable[..., Any] | None = None
    #: Each agent's :class:`Posterior` of its own model.
    posterior: Callable[..., Any] | None = None
    #: Influence of each edge on the agent's model, (edges,) nonnegative numbers in a unit that the method chooses.
    #: Default: :func:`pull` for a method with ``copies``.
    influence: Callable[..., Any] | None = None
    #: Numbers of the agents that do not follow the method; evaluations of honest agents leave them out.
    liars: tuple[int, ...] = ()


class _Record:
    """Descriptor of a record: values of the inner method, or defaults, updated with the attributes of the class."""

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
    """Names of the parts of a record that a class states itself; cached, since runs ask often."""
    return tuple(name for name in kind._fields if hasattr(cls, name))


def _look_inside(method: Any, look: Any, arrays: Any, own: Any, edge: Any) -> Any:
    return look(arrays, *method.inside(arrays, own, edge))


#: Parts that read the agents' state, and that a composition calls with the state of its inner method.
LOOKS = {"finish", "shown", "population", "posterior"}


def pull(arrays: Any, own: Any, edge: Any) -> np.ndarray:
    """Return how strongly each copy of a neighbour's model pulls: its share of the weights, times its distance.

    The distance is relative to the norm of the agent's own model, so that the result has no unit.
    """
    while "theta" not in own._fields:
        own = own.model
    while "copy" not in edge._fields:
        edge = edge.model
    owner = owners(arrays.edge_start)
    weight = np.where(arrays.peer == VACANT, 0.0, arrays.weight)
    whole = np.bincount(owner, weights=weight, minlength=own.theta.shape[0])[owner]
    told = own.theta if edge.copy.shape[1] == own.theta.shape[1] else own.theta[:, arrays.sent]  # drop personal ones
    apart = np.linalg.norm(edge.copy - told[owner], axis=1)
    size = np.maximum(np.linalg.norm(told[owner], axis=1), np.finfo(float).tiny)
    pulls: np.ndarray = np.where(weight > 0.0, weight * apart / (np.where(whole > 0.0, whole, 1.0) * size), 0.0)
    return pulls


# -- parts of all methods ----------------------------------------------------------------------------------------------


class Method(ABC):
    """Parts of all methods. A class decorated with ``@method`` is registered as a subclass, without inheriting."""

    @property
    @abstractmethod
    def messages(self) -> Any:
        """Content of the messages of each kind: ``{MODEL: Vector()}``, see :mod:`coterie.core.messages`."""

    @abstractmethod
    def scratch_size(self, arrays: Any, p: int) -> int:
        """Return the number of entries of ``outbox.scratch`` that a handler uses."""

    @abstractmethod
    def start(self, arrays: Any, theta: Any) -> Any:
        """Return the initial state: NamedTuples of arrays, one of the agents (with ``theta``) and one of the edges."""

    @abstractmethod
    def wake(self, data: Any, me: Any, edges: Any, randomness: Any, outbox: Any) -> None:
        """Act when the agent's clock ticks (a handler)."""

    @abstractmethod
    def receive(self, data: Any, me: Any, edges: Any, message: Any, outbox: Any) -> None:
        """Process a message (a handler)."""

    def greet(self, data, me, edges, outbox):  # noqa: B027 - a default
        """Send the messages of the initial exchange (a handler). Default: none."""

    #: Handler ``open(data, me, edges, slot)``: initialises the state of a new edge, as ``start`` does. A method without
    #: it cannot add edges during a run, which ``ct.Learned`` needs.
    open = None

    def fit_for(self, problem):  # noqa: B027 - a default
        """Raise a MismatchError for a problem that the method cannot solve. Default: accept all."""

    traffic = _Record("traffic", Traffic)
    edges = _Record("edges", Edges)
    training = _Record("training", Training)
    privacy = _Record("privacy", Privacy)
    promises = _Record("promises", Promises)
    inspection = _Record("inspection", Inspection)


#: The record that each optional part belongs to.
RECORDS = {
    part: record.name for record in vars(Method).values() if isinstance(record, _Record) for part in record.kind._fields
}


class Composition(Method):
    """Base of a method around another one: every part that it does not state is that of the inner method."""

    messages = property(lambda self: self.method.messages)  # type: ignore[assignment]

    def scratch_size(self, arrays, p):
        return self.method.scratch_size(arrays, p)

    def fit_for(self, problem):
        self.method.fit_for(problem)

    def start(self, arrays, theta):
        return self.method.start(arrays, theta)

    def open(self, data, me, edges, slot):
        self.method.open(data, me, edges, slot)

    def greet(self, data, me, edges, outbox):
        self.method.greet(data, me, edges, outbox)

    def wake(self, data, me, edges, randomness, outbox):
        self.method.wake(data, me, edges, randomness, outbox)

    def receive(self, data, me, edges, message, outbox):
        self.method.receive(data, me, edges, message, outbox)

    def inside(self, arrays, own, edge):
        """Return the state of the inner method, for functions that inspect it: the fields called ``model``, or all."""
        return tuple(getattr(state, "model", state) for state in (own, edge))


def shown_by(method: Any, arrays: Any, own: Any, edge: Any) -> np.ndarray:
    """Return the models that agents would use now."""
    shown = method.inspection.shown
    models: np.ndarray = own.theta if shown is None else shown(arrays, own, edge)
    return models


def finished_by(method: Any, arrays: Any, own: Any, edge: Any) -> np.ndarray:
    """Return a copy of the final models: those that agents would use now, or the result of ``finish``."""
    finish = method.privacy.finish
    models: np.ndarray = shown_by(method, arrays, own, edge).copy() if finish is None else finish(arrays, own, edge)
    return models


def can_open(method: Any) -> bool:
    """Return whether a method, and every method inside it, can add an edge during a run."""
    return method.open is not None and ("method" not in method._fields or can_open(method.method))


def wake_by_training(self, data, me, edges, randomness, outbox):  # type: ignore[no-untyped-def]
    """Train every job, then send the result."""
    train_and_publish(self, data, me, edges, randomness, outbox)


#: Parts that follow from another part, if the class states that part and is no composition.
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
#: Parts that make a claim about handlers. A class with other handlers, a subclass or a composition, must state them
#: anew.
CLAIMS = ("publishes", "footprint")
HANDLERS = ("start", "greet", "wake", "receive")


def _depth(cls: Any, name: str) -> int:
    """Return the position, among the bases of a class, of the one that defines a part."""
    return next((k for k, kind in enumerate(cls.__mro__) if name in vars(kind)), len(cls.__mro__))


def _disclaim(cls: Any) -> None:
    """Reset claims about handlers that this class, or its inner method, has replaced."""
    replaced = min(_depth(cls, handler) for handler in HANDLERS)
    for name in CLAIMS:
        if _depth(cls, name) > replaced and (hasattr(cls, name) or "method" in cls._fields):
            setattr(cls, name, Traffic._field_defaults[name])


def _found(self: Any, name: str) -> Any:
    """Return a part that was asked for without its record and is not stated by the class."""
    if name in RECORDS:
        return getattr(getattr(self, RECORDS[name]), name)
    raise AttributeError(f"{type(self).__qualname__!r} has no attribute {name!r}")


def complete(cls: Any, parts: Any, more: typing.Iterable[str] = ()) -> Any:
    """Give a class of rules the default of every part that it leaves out; refuse a class that lacks a required part.

    `more` are the names of further parts, without a default here.
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
    """Turn a NamedTuple class into a method: add defaults of the parts it leaves out, and let kernels call it.

    Parameters
    ----------
    cls : type
        A ``typing.NamedTuple`` with the parts of ``coterie.core.method.Method``. Parts other than handlers are plain
        class attributes or properties; parts of a record, such as ``minimises`` of ``promises``, are stated in the
        same way, under their own names. A class with a field ``method`` is a composition around that method, and
        states only the parts that differ.

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
    coterie.errors.DeclarationError: the method Silent has no 'start': Return the initial state: ...
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
