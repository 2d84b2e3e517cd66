"""Sets with a random intercept and one random slope, for the comparison with mixed models."""

from __future__ import annotations

import numpy as np
from populations import labels

import coterie as ct
from coterie.pooling.designs import Linear
from coterie.pooling.families import FAMILIES
from coterie.pooling.population import Learner
from coterie.pooling.rows import Grouped
from coterie.pooling.sample import Sample


def generated(seed, n, m, loss, sds=(0.8, 0.5), noise=0.7):
    """n groups of about m rows, two centred features; intercepts and the slopes of the first differ."""
    rng = np.random.default_rng(seed)
    groups = np.repeat(np.arange(n), m + rng.integers(-m // 2, m // 2 + 1, size=n))
    X = rng.normal(size=(len(groups), 2))
    X -= X.mean(axis=0)
    z = 0.5 + X @ [1.0, -0.5] + sds[0] * rng.normal(size=n)[groups] + sds[1] * rng.normal(size=n)[groups] * X[:, 0]
    return X, labels(rng, z, loss, noise**2), groups, 0, loss


def radon():
    """Floor and the county's uranium; counties differ in their level and in what a basement adds."""
    houses = ct.datasets.radon()
    X = np.column_stack([houses["floor"] == "basement", np.log(houses["uranium"])]).astype(float)
    groups = np.unique(houses["county"], return_inverse=True)[1]
    return X - X.mean(axis=0), houses["log_radon"].to_numpy(), groups, 0, "squared"


def grunfeld():
    """Value and capital, in standard units; firms differ in their level and in how investment follows capital."""
    firms = ct.datasets.grunfeld()
    X = firms[["value", "capital"]].to_numpy()
    X = (X - X.mean(axis=0)) / X.std(axis=0)
    groups = np.unique(firms["firm"], return_inverse=True)[1]
    return X, firms["invest"].to_numpy(), groups, 1, "squared"


SETS = {
    "100 groups": lambda: generated(0, 100, 12, "squared"),
    "20 groups": lambda: generated(1, 20, 8, "squared"),
    "300 small groups": lambda: generated(2, 300, 4, "squared", noise=1.5),
    "classes": lambda: generated(3, 150, 30, "logistic"),
    "counts": lambda: generated(4, 100, 10, "poisson"),
    "radon": radon,
    "grunfeld": grunfeld,
}


def ours(X, y, groups, slope, loss):
    """The same by partial pooling, in the same units: [sd of intercepts, of slopes, noise], common model."""
    n, family = int(groups.max()) + 1, FAMILIES[loss]
    middle, unit = (y.mean(), y.std()) if family.noisy else (0.0, 1.0)
    grouped, design = Grouped.of(X, (y - middle) / unit, groups, n, None), Linear.of(X)
    free = np.arange(X.shape[1] + 1) == slope
    free[-1] = True
    sample = Sample(list(grouped.batches(design, np.arange(n))), n)
    found = Learner(sample, n, free, family, "diagonal").run(tol=1e-6, rounds=500).result()
    sds = np.sqrt(found.variances) * unit / np.append(design.scale, 1.0)
    slopes = found.w[:-1] * unit / design.scale
    common = [found.w[-1] * unit + middle - slopes @ design.mean, *slopes]
    return [sds[-1], sds[slope], np.sqrt(found.s2) * unit if family.noisy else np.nan], common
