"""Counts of agents with one to three rows: predictions that do not explode where rows are far from an agent's own."""

import warnings

import numpy as np
import pytest

import coterie as ct


def counts(seed, columns, slopes, levels, stretch, n=200):
    """Labels with means around ten; five rows of each agent to predict, in a wider range; and their means."""
    rng = np.random.default_rng(seed)
    ids, asked = np.repeat(np.arange(n), rng.integers(1, 4, size=n)), np.repeat(np.arange(n), 5)
    own = 0.2 * rng.normal(size=columns) + slopes * rng.normal(size=(n, columns))
    level = np.log(10.0) + levels * rng.normal(size=n)
    X, new = rng.uniform(-1, 1, size=(len(ids), columns)), stretch * rng.uniform(-1, 1, size=(len(asked), columns))
    means = [np.exp(np.sum(A * own[i], axis=1) + level[i]) for A, i in ((X, ids), (new, asked))]
    y, labels = (rng.poisson(mean).astype(float) for mean in means)
    return X, y, ids, new, labels, asked, means[1]


def deviance(y, mean):
    logs = np.where(y > 0.0, y * np.log(np.maximum(y, 1.0) / mean), 0.0)
    return 2.0 * float(np.mean(logs - (y - mean)))


@pytest.mark.parametrize(
    ("columns", "slopes", "levels", "stretch", "design", "least", "times"),
    [  # measured 3.48 and 4.2, 10.1 and 11, 1.57 and 2.2; without bounds 4.29 and 6.2, 13.9 and 17, 1.57 and 2.2
        (3, 0.0, 0.3, 2.0, "additive", 3.8, 5.0),
        (1, 0.5, 0.5, 2.0, "additive", 12.0, 14.0),
        (3, 0.1, 0.3, 1.0, "auto", 1.6, 3.0),
    ],
)
def test_counts_far_from_an_agents_own_rows(columns, slopes, levels, stretch, design, least, times):
    losses, most = [], []
    for seed in range(4):
        X, y, ids, new, labels, asked, mean = counts(seed, columns, slopes, levels, stretch)
        model = ct.CollaborativeRegressor(loss="poisson", design=design).fit(X, y, agents=ids)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ct.errors.ExtrapolationWarning)
            found, std = model.predict(new, agents=asked, return_std=True)
        losses.append(deviance(labels, found))
        most.append(np.max(found / np.maximum(mean, 5.0)))
        assert np.all(std >= np.sqrt(found))
    assert np.mean(losses) < least
    assert np.mean(most) < times


def test_an_agent_that_is_sure_of_itself_is_not_bounded():
    """One of thirty has a hundred times the mean of the others, and many rows that say so."""
    rng = np.random.default_rng(0)
    ids = np.repeat(np.arange(30), 40)
    X, level = rng.normal(size=(1200, 2)), np.where(np.arange(30) == 7, np.log(400.0), np.log(4.0))
    y = rng.poisson(np.exp(level[ids] + 0.1 * X[:, 0])).astype(float)
    model = ct.CollaborativeRegressor(loss="poisson").fit(X, y, agents=ids)
    assert model.predict([[0.0, 0.0]], agents=[7])[0] == pytest.approx(400.0, rel=0.03)
