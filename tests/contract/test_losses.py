"""Every loss keeps its contract, and the contract notices losses that do not."""

from __future__ import annotations

import pytest

import coterie as ct
from coterie.core.losses import LOSSES
from coterie.core.rules import rule
from coterie.errors import ContractError, ParameterError
from coterie.testing.contracts import check_loss


@pytest.mark.parametrize("name", LOSSES)
def test_every_loss_keeps_its_contract(name):
    check_loss(LOSSES[name])


@pytest.mark.parametrize("loss", [ct.SmoothHinge(0.1), ct.Huber(0.05), ct.Huber(20.0), ct.Location(ct.Huber(3.0))])
def test_with_other_parameters(loss):
    check_loss(loss, seed=1)


@rule
class WrongSlope(ct.Logistic):
    def derivative(self, margin, label):
        return label * 0.5


@rule
class WrongProx(ct.Squared):
    def prox(self, center, step, label):
        return (center + label) / (1.0 + step)


@rule
class WrongConjugate(ct.Hinge):
    def conjugate(self, dual, label):
        return -dual * label


@rule
class WrongCurvature(ct.Huber):
    def curvature(self, margin, label):
        return 0.5


@rule
class OverconfidentBound(ct.Logistic):
    smoothness = property(lambda self: 0.2)


@rule
class WrongDomain(ct.Hinge):
    def domain(self, label):
        return -0.5, 0.5


@rule
class WrongDualCurvature(ct.SmoothHinge):
    dual_curvature = property(lambda self: 2.0 * self.gamma)


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        (WrongSlope(), "subgradient"),
        (WrongProx(), "prox is not a minimiser"),
        (WrongConjugate(), "Fenchel-Young"),
        (WrongCurvature(), "integrate"),
        (OverconfidentBound(), "smoothness"),
        (WrongDomain(), "conjugate"),
        (WrongDualCurvature(), "kappa"),
    ],
)
def test_planted_faults_are_found(fault, message):
    with pytest.raises(ContractError, match=message):
        check_loss(fault)


def test_a_kinked_value_with_a_smooth_slope_is_found():
    @rule
    class Inconsistent(ct.Squared):
        def value(self, margin, label):
            r = margin - label
            return 0.6 * r * r

    with pytest.raises(ContractError, match=r"finite differences|subgradient"):
        check_loss(Inconsistent())


@pytest.mark.parametrize("make", [ct.Huber, ct.SmoothHinge])
@pytest.mark.parametrize("value", [0.0, -1.0, float("nan"), float("inf"), "wide"])
def test_bad_parameters_are_refused(make, value):
    with pytest.raises(ParameterError, match=r"must be a positive number"):
        make(value)
