"""Data at the edges: nothing to learn from, nothing to learn, or more than a model can be asked for."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from scipy import sparse

import coterie as ct
from coterie.errors import DataError, MismatchError, ParameterError
from coterie.estimators.intercepts import random_intercepts


def rows(seed=0, n=10, m=10, p=2):
    rng = np.random.default_rng(seed)
    codes = np.repeat(np.arange(n), m)
    X = rng.normal(size=(n * m, p))
    return X, X[:, 0] * (1.0 + 0.5 * rng.normal(size=n)[codes]) + 0.3 * rng.normal(size=n * m), codes


def test_members_without_rows_do_not_count():
    X, y, codes = rows(n=30)
    few = ct.CollaborativeRegressor().fit(X, y, agents=codes)
    many = ct.CollaborativeRegressor(members=range(5000)).fit(X, y, agents=codes)
    np.testing.assert_allclose(many.common_coef_, few.common_coef_, atol=1e-12)
    np.testing.assert_allclose(many.personal_variance_, few.personal_variance_, atol=1e-12)
    for found, expected in zip(
        many.predict(X[:3], agents=[4999] * 3, return_std=True),
        few.predict(X[:3], agents=[-1] * 3, return_std=True),
        strict=True,
    ):
        np.testing.assert_allclose(found, expected, atol=1e-12)


def test_nothing_but_constant_columns(tmp_path):
    _, y, codes = rows()
    model = ct.CollaborativeRegressor().fit(np.ones((len(y), 2)), y, agents=codes)
    assert model.coef_.shape == (10, 0)
    again = ct.load(ct.save(model, tmp_path))
    assert np.array_equal(
        again.predict(np.ones((2, 2)), agents=[0, 99]), model.predict(np.ones((2, 2)), agents=[0, 99])
    )


@pytest.mark.parametrize("weight", [1e-2, 1.0 / 300.0])
def test_weights_below_one(weight):
    rng = np.random.default_rng(1)
    X, codes = rng.uniform(-2.0, 2.0, size=(300, 2)), np.arange(300) % 10
    y = np.sin(3.0 * X[:, 0]) + 0.1 * rng.normal(size=300)
    model = ct.CollaborativeRegressor(design="additive").fit(X, y, agents=codes, sample_weight=np.full(300, weight))
    knots = model._models.parts[0].design.splines[0].knots
    assert knots[2] == pytest.approx(X[:, 0].min())
    assert knots[-3] == pytest.approx(X[:, 0].max(), abs=0.05)


def test_sparse_rows_for_a_model_of_many_dense_columns():
    rng = np.random.default_rng(2)
    X, codes = 3.0 + rng.normal(size=(100, 200)), np.repeat(np.arange(10), 10)
    model = ct.CollaborativeRegressor().fit(X, X[:, 0] + rng.normal(size=100), agents=codes)
    np.testing.assert_allclose(
        model.predict(sparse.csr_array(X), agents=codes), model.predict(X, agents=codes), atol=1e-12
    )


@pytest.mark.parametrize("slope", [1.5, 3.0])
def test_counts_in_many_columns(slope):
    rng = np.random.default_rng(3)
    X, codes = rng.normal(size=(100, 200)), np.repeat(np.arange(10), 10)
    y = rng.poisson(np.exp(slope * X[:, 0]))
    rate = ct.CollaborativeRegressor(loss="poisson").fit(X, y, agents=codes).predict(X, agents=codes)
    assert np.corrcoef(np.log(rate), slope * X[:, 0])[0, 1] > 0.9


@pytest.mark.parametrize(
    "settings", [{"design": "additive"}, {"deviations": "full"}, {"loss": "auto"}, {"graph": "auto"}], ids=str
)
def test_what_many_columns_do_not_have_is_refused(settings):
    X = np.random.default_rng(4).normal(size=(20, 200))
    with pytest.raises(MismatchError, match=f"{next(iter(settings))}=.* at most 150 columns"):
        ct.CollaborativeRegressor(**settings).fit(X, X[:, 0], agents=np.arange(20) % 4)


@pytest.mark.parametrize("each", [1, 2])
def test_of_few_rows_an_agent_those_left_out_tell_curves_from_lines(each):
    """With less than three rows an agent, too: curves were never tried."""
    rng = np.random.default_rng(5)
    X, codes = rng.normal(size=(300, 2)), np.arange(300) // each
    noise = rng.normal(size=300)[codes] + 0.5 * rng.normal(size=300)
    for bend, design in ((2.0 * np.sin(2.0 * X[:, 0]), "additive"), (2.0 * X[:, 0], "linear")):
        assert ct.CollaborativeRegressor().fit(X, bend + noise, agents=codes).design_ == design


def test_labels_and_columns_that_are_dates():
    days = pd.date_range("2020-01-01", periods=20)
    frame = pd.DataFrame({"x": np.arange(20.0), "day": days.strftime("%Y-%m-%d")})
    with pytest.raises(DataError, match="column 'day' holds dates or times"):
        ct.CollaborativeRegressor().fit(frame, np.arange(20.0))
    with pytest.raises(DataError, match="y holds dates or times"):
        ct.CollaborativeRegressor().fit(frame[["x"]], days)
    with pytest.raises(DataError, match=r"row 2 .* the label is missing"):
        ct.CollaborativeClassifier().fit(frame[["x"]], pd.Series(["a", "b", None, "a"] * 5))


def test_an_unknown_method_is_refused_with_those_that_fit():
    with pytest.raises(ParameterError, match="unknown method 'boosting': choose one of pooling, cd"):
        ct.CollaborativeRegressor("boosting").fit([[0.0], [1.0]], [0.0, 1.0])


@pytest.mark.parametrize(("n", "m"), [(10, 3), (4, 50), (6, 4), (30, 5)])
def test_random_intercepts_are_those_of_analysis_of_variance(n, m):
    """In a balanced layout restricted likelihood has a closed form: (MSB - MSW) / m, and MSW."""
    rng = np.random.default_rng(n + m)
    owner = np.repeat(np.arange(n), m)
    y = rng.normal(size=n)[owner] + rng.normal(size=n * m)
    means = y.reshape(n, m).mean(axis=1)
    between, within = m * np.var(means, ddof=1), np.sum((y - means[owner]) ** 2) / (n * (m - 1))
    v = max((between - within) / m, 0.0)
    expected = y.mean() + m * v / (m * v + within) * (means - y.mean())
    np.testing.assert_allclose(random_intercepts(y, owner, n, classes=False).own, expected, atol=2e-3)
