"""Variance components against statsmodels 0.15 and GPBoost 1.8, as recorded by `python benchmarks/mixed_models.py`."""

from __future__ import annotations

import numpy as np
import pytest
from mixed_sets import SETS, ours

#: Standard deviations of intercepts and slopes, and the noise; the common model, its intercept first.
RESTRICTED = {
    "100 groups": ([0.793, 0.5109, 0.7077], [0.4235, 1.0205, -0.5282]),
    "20 groups": ([0.736, 0.4481, 0.652], [0.4718, 1.0133, -0.599]),
    "300 small groups": ([0.8113, 0.4882, 1.4897], [0.6191, 1.054, -0.5542]),
    "radon": ([0.1559, 0.3648, 0.748], [1.2576, 0.6478, 0.7407]),  # by dense algebra
    "grunfeld": ([73.5069, 40.3179, 42.2926], [129.3064, 133.6208, 55.4993]),
}
GPBOOST = {
    "100 groups": ([0.7887, 0.5078, 0.7074], [0.4235, 1.0206, -0.5282]),
    "20 groups": ([0.7141, 0.43, 0.6496], [0.4723, 1.01, -0.6]),
    "300 small groups": ([0.8075, 0.4832, 1.4897], [0.6192, 1.0541, -0.5542]),
    "classes": ([0.7803, 0.5663, np.nan], [0.4341, 1.0358, -0.549]),
    "counts": ([0.7901, 0.5214, np.nan], [0.59, 0.9606, -0.4805]),
    "radon": ([0.1449, 0.3499, 0.7485], [1.2559, 0.6474, 0.7429]),
    "grunfeld": ([69.2997, 37.6327, 42.1933], [129.3943, 133.5072, 55.8086]),
}


@pytest.mark.parametrize("name", RESTRICTED)
def test_restricted_likelihood(name):
    """Both take into account that the common model is learned, too: within half a per cent; common slopes are a little
    shorter, by their ridge.

    By statsmodels, and the same by a dense restricted likelihood; on radon statsmodels stops a nat below its maximum.
    """
    components, common = RESTRICTED[name]
    found, model = ours(*SETS[name]())
    np.testing.assert_allclose(found, components, rtol=0.005)
    np.testing.assert_allclose(model, common, rtol=0.03)
    assert np.all(np.abs(model[1:]) <= np.abs(common[1:]))


@pytest.mark.parametrize("name", GPBOOST)
def test_likelihood_by_gpboost(name):
    """It maximises the likelihood, which makes variances smaller by about one group of all: within a tenth."""
    components, common = GPBOOST[name]
    found, model = ours(*SETS[name]())
    known = ~np.isnan(components)
    np.testing.assert_allclose(np.array(found)[known], np.array(components)[known], rtol=0.1)
    np.testing.assert_allclose(model, common, rtol=0.04)
