"""Every loss keeps its contract, and the contract notices losses that do not."""

from __future__ import annotations

import json

import numpy as np
import pytest

import coterie as ct
from coterie.core import losses, proximal
from coterie.core.losses import LOSSES, loss
from coterie.core.offsets import Offset, with_offsets
from coterie.core.rules import rule
from coterie.engines.arrays import arrays_of
from coterie.errors import ContractError, DataError, ParameterError
from coterie.testing import check_loss


@pytest.mark.parametrize("name", LOSSES)
def test_every_loss_keeps_its_contract(name):
    check_loss(LOSSES[name])


@pytest.mark.compiled
@pytest.mark.parametrize("name", LOSSES)
def test_and_keeps_it_compiled(name):
    check_loss(LOSSES[name])


@pytest.mark.parametrize("loss", [ct.SmoothHinge(0.1), ct.Huber(0.05), ct.Huber(20.0), ct.Location(ct.Huber(3.0))])
def test_with_other_parameters(loss):
    check_loss(loss, seed=1)


def faulty(base, **parts):
    """A loss that is like another but for these parts."""
    return rule(type("Faulty", (base,), parts))()


def half_of_the_pool(self, margins, labels):
    return 0.5 * ct.LogSumExp().pool(margins, labels)


def wrong_slopes(self, margins, labels, out):
    out[:] = -labels / max(1, len(labels))


def claiming(base, **claims):
    """A loss that declares what is not true of it."""
    return loss(**claims)(type("Claiming", (base,), {}))()


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (faulty(ct.Logistic, derivative=lambda self, margin, label: label * 0.5), "subgradient"),
        (faulty(ct.Squared, prox=lambda self, center, step, label: (center + label) / (1.0 + step)), "prox is not a"),
        (
            faulty(ct.Squared, value=lambda self, margin, label: 0.6 * (margin - label) * (margin - label)),
            "subgradient",
        ),
        (faulty(ct.Hinge, conjugate=lambda self, dual, label: -dual * label), "Fenchel-Young"),
        (faulty(ct.Huber, curvature=lambda self, margin, label: 0.5), "integrate"),
        (faulty(ct.Logistic, smoothness=property(lambda self: 0.2)), "smoothness"),
        (faulty(ct.Hinge, domain=lambda self, label: (-0.5, 0.5)), "conjugate"),
        (faulty(ct.SmoothHinge, dual_curvature=property(lambda self: 2.0 * self.gamma)), "kappa"),
        (faulty(ct.LogSumExp, pool=half_of_the_pool), "subgradient"),
        (faulty(ct.LogSumExp, slopes=wrong_slopes), "subgradient"),
        (claiming(ct.Squared, exact_solver=losses.INTERIOR_POINT), "interior point"),
        (claiming(ct.SmoothHinge, likelihood=losses.BERNOULLI), "log-likelihood"),
        (claiming(ct.Huber, strictly_convex=True), "flat in places"),
        (claiming(ct.Huber, proximal=losses.LEAST_SQUARES), "which its solver assumes"),
        (claiming(ct.Hinge, exact_solver=losses.NEWTON), "an exact solver that does not fit"),
        (claiming(ct.LogSumExp, smoothness=0.1), "smoothness"),
        (claiming(ct.LogSumExp, lipschitz=0.5), "Lipschitz"),
    ],
)
def test_planted_faults_and_false_declarations_are_found(fault, message):
    with pytest.raises(ContractError, match=message):
        check_loss(fault)


def test_what_a_loss_lacks_is_said_where_it_is_defined():
    with pytest.raises(TypeError, match=r"the loss Bare has no value, .*, labels"):
        loss(type("Bare", (tuple,), {}))
    with pytest.raises(TypeError, match=r"a loss declares smoothness, .*; Odd has sharpness"):
        loss(sharpness=1.0)(type("Odd", (ct.Squared,), {}))
    with pytest.raises(TypeError, match="labels = 'any': it must be one of"):
        loss(labels="any")(type("Odd", (ct.Squared,), {}))
    with pytest.raises(ContractError, match=r"decorate its class with @ct\.loss"):
        check_loss(3.0)


def test_names_and_values_find_each_other():
    for name, value in LOSSES.items():
        assert losses.resolve_loss(name, pooled=True) == value
        assert losses.loss_from_json(json.loads(json.dumps(losses.loss_to_json(value)))) == value
    assert losses.loss_from_json(losses.loss_to_json(ct.Location(ct.Huber(3.0)))) == ct.Location(ct.Huber(3.0))
    with pytest.raises(DataError, match="cannot be saved: it is not on the list"):
        losses.loss_to_json(faulty(ct.Squared))
    with pytest.raises(ParameterError, match="not a loss of single examples"):
        losses.resolve_loss("adaboost")


@pytest.mark.parametrize("make", [ct.Huber, ct.SmoothHinge])
@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf"), "wide"])
def test_bad_parameters_are_refused(make, value):
    with pytest.raises(ParameterError, match=r"expected a positive finite number"):
        make(value)


@pytest.mark.parametrize(
    ("loss", "solver"),
    [
        (ct.Location(ct.Squared()), "Pointwise"),
        (ct.Squared(), "LeastSquares"),
        (ct.Logistic(), "DualAscent"),
        (ct.Location(ct.Huber()), "DualAscent"),
    ],
)
def test_a_loss_chooses_the_solver_of_proximal_steps(loss, solver):
    data = ct.AgentData([[1.0], [2.0]], None if loss.unlabelled else [1.0, -1.0], agents=[0, 1])
    arrays = arrays_of(ct.Problem.separate(data, ct.graphs.complete(2), loss))
    assert type(proximal.prepare(arrays, 1).solver).__name__ == solver
    assert type(proximal.prepare(arrays, 1, steps=3).solver).__name__ == "GradientSteps"


def test_offsets_shift_margins():
    labels = with_offsets(np.array([1.0, -1.0]), np.array([0.5, 1.0]))
    assert labels.tolist() == [1024.5, -1025.0]
    assert Offset(ct.Logistic()).value(2.0, labels[1]) == ct.Logistic().value(3.0, -1.0)
