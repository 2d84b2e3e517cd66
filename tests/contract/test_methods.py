"""Every method keeps its contract, and the contract notices methods that do not."""

from __future__ import annotations

import pytest

import coterie as ct
from coterie.core.compile import inline
from coterie.core.linear import axpy, copy_to, fill, total
from coterie.core.method import method
from coterie.core.methods import METHODS
from coterie.core.world import EVERYONE, VACANT, add_loss_gradient, importance, send
from coterie.errors import ContractError
from coterie.testing.contracts import METHOD_CHECKS, check_method


@pytest.mark.parametrize("promise", METHOD_CHECKS)
@pytest.mark.parametrize("name", METHODS)
def test_every_method_keeps_its_promise(name, promise):
    METHOD_CHECKS[promise](METHODS[name])


@inline
def descend(data, me, ties, outbox, sign, ridge):
    """A wake of CD with its loss taken ``sign`` times and its ridge ``ridge`` times; the right one has 1 and 1."""
    theta, gradient = me.theta, outbox.scratch[: me.theta.shape[0]]
    degree = total(data.weight)
    a = importance(data, degree)
    fill(0.0, gradient)
    axpy(2.0 * data.smooth * degree, theta, gradient)
    for k in range(data.peer.shape[0]):
        axpy(-2.0 * data.smooth * data.weight[k], ties.copy[k], gradient)
    add_loss_gradient(data, theta, sign * a, gradient)
    axpy(2.0 * a * (ridge - 1.0) * data.ridge, theta, gradient)
    lipschitz = 2.0 * data.smooth * degree + a * data.curvature
    if lipschitz > 0.0:
        axpy(-1.0 / lipschitz, gradient, theta)
    send(outbox, EVERYONE, 0, theta)


@method
class Faultless(ct.CoordinateDescent):
    """The scaffold of the two faults below does not itself break a promise."""

    def wake(self, data, me, ties, chance, outbox):
        descend(data, me, ties, outbox, 1.0, 1.0)


@method
class WrongSign(ct.CoordinateDescent):
    """Climbs the loss instead of descending it."""

    def wake(self, data, me, ties, chance, outbox):
        descend(data, me, ties, outbox, -1.0, 1.0)


@method
class DroppedRidge(ct.CoordinateDescent):
    """Forgets that f_i has a ridge."""

    def wake(self, data, me, ties, chance, outbox):
        descend(data, me, ties, outbox, 1.0, 0.0)


@method
class StaleRead(ct.CoordinateDescent):
    """Reads what its neighbours thought when it started, and never looks at their letters."""

    def receive(self, data, me, ties, letter, outbox):
        pass


@method
class UnannouncedLetter(ct.CoordinateDescent):
    """Posts two letters where it announces one."""

    def greet(self, data, me, ties, outbox):
        send(outbox, EVERYONE, 0, me.theta)
        send(outbox, EVERYONE, 0, me.theta)


@method
class Favourite(ct.CoordinateDescent):
    """Listens only to neighbours of a lower number than its own."""

    def receive(self, data, me, ties, letter, outbox):
        if letter.slot != VACANT and letter.sender < data.address:
            copy_to(letter.text, ties.copy[letter.slot])


@pytest.mark.parametrize(
    ("fault", "promise"),
    [
        (WrongSign(), "optimum"),
        (StaleRead(), "optimum"),
        (DroppedRidge(), "optimum"),
        (UnannouncedLetter(), "announces its letters"),
        (Favourite(), "optimum"),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, str) else "",
)
@pytest.mark.usefixtures("seldom_compiled")
def test_planted_faults_are_found(fault, promise):
    with pytest.raises(ContractError, match=f"{type(fault).__name__}.*{promise}"):
        check_method(fault)


@pytest.mark.usefixtures("seldom_compiled")
def test_names_must_not_matter():
    with pytest.raises(ContractError, match="relabelling"):
        METHOD_CHECKS["ignores names"](Favourite())


def test_the_scaffold_of_the_faults_is_sound():
    METHOD_CHECKS["stays at the optimum"](Faultless())
    METHOD_CHECKS["reaches the optimum"](Faultless())
