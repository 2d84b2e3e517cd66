"""Every method keeps its contract, and the contract notices methods that do not."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest

import coterie as ct
from coterie.core.arrays import EVERYONE, VACANT, add_loss_gradient, choose, importance, send
from coterie.core.compile import inline
from coterie.core.linear import axpy, copy_to, fill, total
from coterie.core.messages import Numbers, Vector
from coterie.core.method import RECORDS, Method, method, pull
from coterie.core.methods import METHODS, resolve_method
from coterie.errors import ContractError, ParameterError
from coterie.testing.methods import METHOD_CHECKS, check_method

COMPILED = "compiled equals python"

#: Methods that share most of their handlers with one that is not named here: one family is one server or one way to
#: mix. The default run tries these on a few promises, and leaves their compiled code to `make test-all`.
RELATIVES = {
    "fedprox", "scaffold", "fedper", "fedrep", "ditto", "pfedme", "apfl", "ifca",
    "local-sgd", "gradient-tracking", "tied-sgd", "resilient-pooling",
}  # fmt: skip
FEW = ("keeps to what it declares", "reaches the optimum")


@pytest.mark.compiled
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name in RELATIVES else ()) for name in METHODS]
)
def test_compiled_code_does_what_python_does_bit_by_bit(name):
    METHOD_CHECKS[COMPILED](METHODS[name])


#: Promises that take long in plain Python; compiled they are kept below, and in short in tests/engines.
FAR = ("stays at the optimum", "follows changes", "reaches the optimum", "survives late and lost messages")
LATER = ("survives late and lost messages", "leaves the isolated alone", "follows changes")
LONG = {
    "gossip-pooling": FAR,
    "resilient-pooling": FAR,
    "boosting": ("follows changes", "its rounds reach the optimum", "survives late and lost messages"),
    "djam": (*LATER, "teaches those without data"),
    "admm": (*LATER, "stays at the optimum", "teaches those without data", "solves other objectives"),
    "cd": ("leaves the isolated alone",),
    "propagation": ("leaves the isolated alone",),
}


def takes_long(name, promise):
    return promise in LONG.get(name, ()) or (name in RELATIVES and promise not in FEW)


#: Networks that are compiled take as long for one method as for another: the default run tries one of them.
NETWORK = "compiled equals python with a network"
OTHERS = [
    pytest.param(name, promise, marks=pytest.mark.slow if takes_long(name, promise) else ())
    for name in METHODS
    for promise in METHOD_CHECKS
    if promise not in (COMPILED, NETWORK)
]


@pytest.mark.compiled
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name == "dpsgd" else pytest.mark.slow) for name in METHODS if METHODS[name].jobs],
)
def test_compiled_code_trains_a_network_as_python_does_bit_by_bit(name):
    METHOD_CHECKS[NETWORK](METHODS[name])


@pytest.mark.every_case
@pytest.mark.plain
@pytest.mark.parametrize(("name", "promise"), OTHERS)
def test_every_method_keeps_its_promise(name, promise):
    METHOD_CHECKS[promise](METHODS[name])


@pytest.mark.compiled
@pytest.mark.slow
@pytest.mark.parametrize(("name", "promise"), OTHERS)
def test_and_keeps_it_compiled(name, promise):
    METHOD_CHECKS[promise](METHODS[name])


@inline
def descend(data, me, edges, outbox, sign, ridge):
    """A wake of CD with its loss taken ``sign`` times and its ridge ``ridge`` times; the right one has 1 and 1."""
    theta, gradient = me.theta, outbox.scratch[: me.theta.shape[0]]
    degree = total(data.weight)
    a = importance(data, degree)
    fill(0.0, gradient)
    axpy(2.0 * data.smooth * degree, theta, gradient)
    for k in range(data.peer.shape[0]):
        axpy(-2.0 * data.smooth * data.weight[k], edges.copy[k], gradient)
    add_loss_gradient(data, theta, sign * a, gradient)
    axpy(2.0 * a * (ridge - 1.0) * data.ridge, theta, gradient)
    lipschitz = 2.0 * data.smooth * degree + a * data.curvature
    if lipschitz > 0.0:
        axpy(-1.0 / lipschitz, gradient, theta)
    send(outbox, EVERYONE, 0, theta)


def faulty(base, **parts):
    """A method that is like another but for these parts."""
    return method(type("Faulty", (base,), parts))()


def descending(sign, ridge):
    """Coordinate descent by the wake above."""

    def wake(self, data, me, edges, randomness, outbox):
        descend(data, me, edges, outbox, sign, ridge)

    return faulty(ct.CoordinateDescent, wake=wake)


@method
class StaleRead(ct.CoordinateDescent):
    """Reads what its neighbours thought when it started, and never looks at their messages."""

    def receive(self, data, me, edges, message, outbox):
        pass


@method
class UnannouncedMessage(ct.CoordinateDescent):
    """Posts two messages where it announces one."""

    def greet(self, data, me, edges, outbox):
        send(outbox, EVERYONE, 0, me.theta)
        send(outbox, EVERYONE, 0, me.theta)


@method
class Favourite(ct.CoordinateDescent):
    """Listens only to neighbours of a lower number than its own."""

    def receive(self, data, me, edges, message, outbox):
        if message.slot != VACANT and message.sender < data.address:
            copy_to(message.text, edges.copy[message.slot])


DECLARED = "'keeps to what it declares':"
#: Asks for less scratch than a wake takes a piece of, which would be shorter without a word.
SHORT = faulty(ct.CoordinateDescent, scratch_size=lambda self, arrays, p: p - 1)
#: Declares numbers between -1e-3 and 1e-3, and sends others.
BEYOND = faulty(ct.CoordinateDescent, messages={0: Numbers(1, 0, 1e-3)})


@method
class SecondDie(ct.DJAM):
    """Asks for one die, and reads two."""

    def wake(self, data, me, edges, randomness, outbox):
        if randomness.dice[1] < 2.0 and data.peer.shape[0] > 0:
            send(outbox, data.peer[0], 1, me.theta)


@method
class LongScratch(ct.CoordinateDescent):
    """Writes one number more than it has scratch for."""

    def greet(self, data, me, edges, outbox):
        for k in range(me.theta.shape[0]):
            outbox.scratch[k + 1] = me.theta[k]
        send(outbox, EVERYONE, 0, me.theta)


@method
class ToSlot(ct.DJAM):
    """Sends to the slot of a neighbour, which is somebody's number, instead of its address."""

    def wake(self, data, me, edges, randomness, outbox):
        slot = choose(data, randomness)
        if slot != VACANT:
            send(outbox, slot, 1, me.theta)


@method
class Undeclared(ct.CoordinateDescent):
    """Sends a message of a kind that it does not declare."""

    def greet(self, data, me, edges, outbox):
        send(outbox, EVERYONE, 1, me.theta)


@method
class Half(ct.CoordinateDescent):
    """Sends half a model."""

    def greet(self, data, me, edges, outbox):
        send(outbox, EVERYONE, 0, me.theta[:1])


@pytest.mark.parametrize(
    ("fault", "promise", "complaint"),
    [
        # More than they declare: found before anything of them is compiled, where it would read and write elsewhere.
        (faulty(ct.DJAM, dice=0), DECLARED, "wake reads or writes beyond the end.*dice=0"),
        (SecondDie(), DECLARED, "wake reads or writes beyond the end.*dice=1"),
        (
            LongScratch(),
            DECLARED,
            "greet reads or writes beyond the end of an array, entry 3 of an array of 3: .*scratch than the 3 numbers",
        ),
        (
            SHORT,
            DECLARED,
            "wake reads or writes beyond the end of an array, entries up to 3 of an array of 2: .*scratch than the 2",
        ),
        (ToSlot(), DECLARED, "wake sends a message to [0-3], which is no agent's address: to a slot"),
        (
            UnannouncedMessage(),
            DECLARED,
            "greet posts more than max_messages = 1 messages, or one of more than 3 numbers",
        ),
        (Undeclared(), DECLARED, "greet posts what 'messages' does not declare: a message of kind 1"),
        (Half(), DECLARED, "greet posts what 'messages' does not declare: .* 1 numbers; there must be 3"),
        (BEYOND, DECLARED, "greet posts what 'messages' does not declare: a number of kind 0 is out of its range"),
        (descending(-1.0, 1.0), "optimum", ""),  # climbs the loss
        (descending(1.0, 0.0), "optimum", ""),  # forgets that f_i has a ridge
        (StaleRead(), "optimum", ""),
        (Favourite(), "optimum", ""),
        (
            faulty(Favourite, publishes=True),
            "stored once",
            "",
        ),  # says that it makes no difference who receives a message
        (faulty(ct.DJAM, footprint="edges"), "footprint", ""),  # it makes a neighbour update its model, too
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else "",
)
def test_planted_faults_are_found(fault, promise, complaint):
    with pytest.raises(ContractError, match=f"{type(fault).__qualname__}.*{promise}.*{complaint}"):
        check_method(fault)


def test_messages_that_are_not_announced_are_found_by_kernels_too():
    with pytest.raises(ContractError, match="posts more than max_messages = "):
        METHOD_CHECKS["announces its messages"](UnannouncedMessage())


def test_names_must_not_matter():
    with pytest.raises(ContractError, match="relabelling"):
        METHOD_CHECKS["ignores names"](Favourite())


def test_the_scaffold_of_the_faults_is_sound():
    for promise in ("stays at the optimum", "reaches the optimum"):
        METHOD_CHECKS[promise](descending(1.0, 1.0))


# ---------------------------------------------------------------- what a class must declare


def parts(**more):
    """A class body with all that a method must have."""
    handlers = {"wake": ct.DJAM.wake, "receive": ct.DJAM.receive, "start": ct.DJAM.start}
    return {"messages": {0: Vector()}, "scratch_size": ct.DJAM.scratch_size, **handlers, **more}


def declared(**body):
    return method(type("Mine", (NamedTuple("Mine", []),), body))


def test_every_part_that_is_left_out_has_its_default():
    mine = declared(**parts())()
    for name in set(RECORDS.values()):
        record = getattr(mine, name)
        assert record == type(record)(), name
        assert [getattr(mine, part) for part in record._fields] == list(record), name  # without its record, too
    assert mine.open is None
    assert mine.greet(None, None, None, None) is mine.fit_for(None) is None
    assert isinstance(mine, Method)
    with pytest.raises(AttributeError, match="'Mine' has no attribute 'minimizes'"):
        mine.minimizes  # noqa: B018


def test_what_follows_from_a_part_need_not_be_said():
    assert declared(**parts(round=ct.ModelPropagation.round))().training.synchronous
    assert declared(**parts(max_messages=3))().traffic.broadcasts == 3
    assert declared(**parts(copies=True))().inspection.influence is pull
    trains = ct.gossip.LocalSGD(ct.optim.SGD(0.1, steps=4, batch=2))
    assert (trains.training.jobs, trains.training.batch, trains.traffic.dice) == (1, 2, 4)
    assert trains.training.synchronous
    assert trains.promises.any_model


def test_a_composition_is_like_the_method_in_it():
    @method
    class Around(NamedTuple):
        method: object
        accuracy = 0.5

    pooling = Around(ct.gossip.GossipPooling())
    assert pooling.promises == pooling.method.promises._replace(accuracy=0.5)
    assert (pooling.traffic, pooling.messages) == (pooling.method.traffic, pooling.method.messages)
    problem = ct.Problem.separate(ct.AgentData([[1.0]] * 6, [1.0, 2.0, 4.0] * 2, agents=[0, 0, 0, 1, 1, 1]), two())
    runs = [ct.simulate(problem, one, wakes=40, seed=0) for one in (pooling, pooling.method)]
    np.testing.assert_array_equal(runs[0].theta, runs[1].theta)
    np.testing.assert_array_equal(runs[0].population.mean, runs[1].population.mean)
    private = Around(Around(ct.Private("cd", wakes_per_agent=3)))
    assert private.privacy.plan == private.method.method.privacy.plan
    assert not private.promises.any_model


def test_a_composition_with_handlers_of_its_own_says_again_what_it_claims_of_them():
    @method
    class Listens(NamedTuple):
        method: object

        def receive(self, data, me, edges, message, outbox):
            self.method.receive(data, me, edges, message, outbox)

    inner, around = ct.CoordinateDescent().traffic, Listens(ct.CoordinateDescent()).traffic
    assert (inner.publishes, inner.footprint) == (True, "edges")
    assert around == inner._replace(publishes=False, footprint=None)


def test_private_methods_have_no_handlers_but_their_own_and_broadcast_what_they_post():
    for inside in ("cd", "propagation", "gossip-pooling"):
        private = ct.Private(inside, wakes_per_agent=3) if inside == "cd" else ct.Private(inside)
        assert private.training.round is private.training.prepare is private.training.publish is None
        assert private.traffic.broadcasts <= private.traffic.max_messages


def two():
    return ct.graphs.complete(2)


@pytest.mark.parametrize("name", sorted(set(RECORDS.values())))
def test_a_record_is_stated_by_its_parts(name):
    with pytest.raises(TypeError, match=f"the method Mine: '{name}' is made of [a-z_, ]*: state these by name"):
        declared(**parts(**{name: {}}))


@pytest.mark.parametrize("missing", sorted(Method.__abstractmethods__))
def test_a_part_that_is_missing_is_named_when_the_class_is_defined(missing):
    body = parts()
    del body[missing]
    with pytest.raises(TypeError, match=f"the method Mine has no '{missing}': [A-Z]"):
        declared(**body)


@pytest.mark.parametrize(
    ("wrong", "right"),
    [("exchange", "exchanges"), ("recieve", "receive"), ("broadcast", "broadcasts"), ("minimizes", "minimises")],
)
def test_a_part_that_is_misspelt_is_named_when_the_class_is_defined(wrong, right):
    with pytest.raises(TypeError, match=f"has a part '{wrong}', which is not known: is it '{right}'"):
        declared(**parts(**{wrong: True}))
    declared(**parts(**{f"_{wrong}": True}))


@pytest.mark.parametrize("value", [ct.CoordinateDescent, ct.Squared(), ct.baselines.GlobalModel(), None, 3.0], ids=repr)
def test_what_is_no_method_is_refused(value):
    with pytest.raises(ParameterError, match="not a method that agents can run"):
        resolve_method(value)
    with pytest.raises(ContractError, match="decorated with @ct"):
        check_method(value)


def test_compositions_keep_what_they_are_made_of():
    private = ct.Private("cd", epsilon=2.0, wakes_per_agent=3)
    for made in (private, ct.robust.Trimmed(private), ct.Learned(private), ct.Learned(ct.robust.Trimmed(private))):
        assert (made.privacy.plan, made.privacy.terms) == (private.plan, private.terms), made
        assert made.privacy.finish is not None
        assert made.loss_report == private.loss_report
    assert repr(private.loss_report) == "HiddenLoss()"
    assert repr(ct.robust.Trimmed(ct.Private("cd", loss_fraction=0.2)).loss_report) == "ReleasedLoss()"
    assert ct.robust.Trimmed(private).wakes_per_agent == 3
    assert ct.Learned(private).wakes_per_agent is None  # it goes on to learn edges when all is said
    assert [ct.robust.Trimmed(name).synchronous for name in ("cd", "propagation", "djam")] == [False, True, False]
    assert ct.Learned("admm").remembers
    boosting = ct.Private("boosting")
    assert (boosting.on_balls, boosting.sparse, boosting.messages) == (True, True, ct.FrankWolfeBoosting().messages)
    assert ct.Learned("boosting").on_balls
