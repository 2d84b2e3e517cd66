"""Estimators that boost."""

from __future__ import annotations

import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

import coterie as ct

MODELS = {"classifier": ct.BoostedClassifier, "regressor": ct.BoostedRegressor}


@pytest.mark.filterwarnings(
    "ignore::sklearn.exceptions.ConvergenceWarning", "ignore::sklearn.exceptions.SkipTestWarning"
)
@parametrize_with_checks([model(base=8) for model in MODELS.values()])
def test_scikit_learns_contract(estimator, check):
    """All of them apply but check_array_api_input, which scikit-learn skips: coterie computes with NumPy only."""
    check(estimator)
