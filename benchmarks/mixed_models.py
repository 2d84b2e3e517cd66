"""Variance components of mixed models: by statsmodels, by GPBoost, by dense algebra, and by partial pooling.

    python benchmarks/mixed_models.py

The model of each set has a random intercept and one random slope, which do not go together (``deviations="diagonal"``),
and all features as fixed effects. Others maximise the restricted (statsmodels) or the marginal likelihood (GPBoost); we
take MacKay's fixed points and a learned ridge for the common slopes. Standard deviations are in the units of the input,
those of intercepts where features have their means. tests/pooling/test_mixed_models.py has recorded what this prints.
"""

from __future__ import annotations

import sys
import warnings
from pathlib import Path

import numpy as np

import coterie as ct

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "pooling"))
from mixed_sets import SETS, ours

NAMES = ("sd of intercepts", "sd of slopes", "noise")


def by_statsmodels(X, y, groups, slope):
    import statsmodels.api as sm
    from statsmodels.regression.mixed_linear_model import MixedLM, MixedLMParams

    design = sm.add_constant(X)
    effects = np.column_stack([np.ones(len(y)), X[:, slope]])
    free = MixedLMParams.from_components(fe_params=np.ones(design.shape[1]), cov_re=np.eye(2))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = MixedLM(y, design, groups=groups, exog_re=effects).fit(free=free, reml=True)
    return [*np.sqrt(np.diag(found.cov_re)), np.sqrt(found.scale)], found.fe_params


def by_dense_algebra(X, y, groups, slope):
    """The restricted likelihood itself, by a general maximiser."""
    from scipy.optimize import minimize

    A = np.column_stack([np.ones(len(y)), X])

    def loss(logs):
        intercept, own, noise = np.exp(2.0 * logs)
        value, moment, square, right = 0.0, np.zeros((A.shape[1], A.shape[1])), 0.0, np.zeros(A.shape[1])
        for k in np.unique(groups):
            Z, t, x = A[groups == k], y[groups == k], X[groups == k, slope]
            K = intercept + own * np.outer(x, x) + noise * np.eye(len(t))
            inverse = np.linalg.inv(K)
            value += 0.5 * np.linalg.slogdet(K)[1]
            moment, right, square = moment + Z.T @ inverse @ Z, right + Z.T @ inverse @ t, square + t @ inverse @ t
        b = np.linalg.solve(moment, right)
        return value + 0.5 * (square - b @ right) + 0.5 * np.linalg.slogdet(moment)[1], b

    start = np.log(y.std()) - [1.0, 1.0, 0.3]
    found = minimize(lambda logs: loss(logs)[0], start, method="Nelder-Mead", options={"xatol": 1e-5, "fatol": 1e-7})
    return np.exp(found.x).tolist(), loss(found.x)[1]


def by_gpboost(X, y, groups, slope, likelihood="gaussian"):
    import gpboost

    model = gpboost.GPModel(
        group_data=groups,
        group_rand_coef_data=X[:, [slope]],
        ind_effect_group_rand_coef=[1],
        likelihood=likelihood,
    )
    model.fit(y=y, X=np.column_stack([np.ones(len(y)), X]))
    values = np.sqrt(np.asarray(model.get_cov_pars()).ravel())
    noise, sds = (values[0], values[1:]) if likelihood == "gaussian" else (np.nan, values)
    return [*sds, noise], np.asarray(model.get_coef()).ravel()


def main():
    for name, make in SETS.items():
        X, y, groups, slope, loss = make()
        rows = {}
        if loss == "squared":
            rows["statsmodels"] = by_statsmodels(X, y, groups, slope)
            rows["dense"] = by_dense_algebra(X, y, groups, slope)
        likelihood = {"squared": "gaussian", "logistic": "bernoulli_logit", "poisson": "poisson"}[loss]
        rows["gpboost"] = by_gpboost(X, y, groups, slope, likelihood)
        rows["coterie"] = ours(X, y, groups, slope, loss)
        print(f"{name}: {len(y)} rows, {len(np.unique(groups))} groups, {loss} ({', '.join(NAMES)}; common model)")
        for who, (components, common) in rows.items():
            print(f"  {who:12} {np.round(components, 4).tolist()} {np.round(common, 4).tolist()}")


if __name__ == "__main__":
    print(f"coterie {ct.__version__}")
    main()
