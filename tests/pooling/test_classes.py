"""From log-odds to probabilities: moderation, softmax, sharpness, and how well they are calibrated."""

from __future__ import annotations

import numpy as np
import pytest
from populations import drawn
from scipy import integrate, stats
from scipy.special import expit

import coterie as ct
from coterie.pooling import classes, fit, fitted
from coterie.pooling.classes import SHARPNESSES, moderated, probabilities, sharpness, softmax
from coterie.pooling.rows import Ranked


@pytest.mark.parametrize("mean", [-3.0, 0.0, 0.5, 2.0])
@pytest.mark.parametrize("variance", [0.0, 0.5, 3.0])
def test_moderated_odds_are_nearly_those_of_the_mean_probability(mean, variance):
    exact = expit(mean)
    if variance:
        density = stats.norm(mean, np.sqrt(variance)).pdf
        exact = integrate.quad(lambda z: expit(z) * density(z), mean - 20.0, mean + 20.0)[0]
    assert expit(moderated(np.array(mean), np.array(variance))) == pytest.approx(exact, abs=0.02)


def test_probabilities_of_two_and_of_several_classes():
    odds, known = np.array([-1.0, 0.3, 2.0]), np.array([True, True, False])
    both = probabilities(odds, 2.0, known)
    np.testing.assert_allclose(both.sum(axis=1), 1.0)
    np.testing.assert_allclose(both[:, 1], expit([-2.0, 0.6, 2.0]), atol=1e-12)  # strangers are not sharpened
    odds = np.array([[1.0, 0.0, -1.0], [2.0, 2.0, -3.0]])
    several = probabilities(odds, 1.5, np.array([True, False]))
    np.testing.assert_allclose(several[0], np.exp(1.5 * odds[0]) / np.exp(1.5 * odds[0]).sum())
    np.testing.assert_allclose(several[1], expit(odds[1]) / expit(odds[1]).sum())
    assert np.isfinite(softmax(np.array([[1e4, -1e4]]))).all()


def three(seed, n, m, size=2.0):
    """Rows of three classes by a softmax of agents' own models."""
    rng = np.random.default_rng(seed)
    theta = size * (rng.normal(size=(3, 3)) + 0.5 * rng.normal(size=(n, 3, 3)))
    codes = np.repeat(np.arange(n), m)
    X = np.column_stack([rng.normal(size=(n * m, 2)), np.ones(n * m)])
    z = np.einsum("ij,ikj->ik", X, theta[codes])
    return X[:, :2], np.argmax(z + rng.gumbel(size=z.shape), axis=1), codes


def test_all_classes_are_sharpened_on_the_same_rows(monkeypatch):
    """Also where a sample of the agents is enough for it: the answer is that of all rows, up to sampling."""
    X, y, codes = three(0, 80, 15)
    models = fit(X, [(y == k).astype(float) for k in range(3)], codes, 80, "logistic", "linear", "diagonal")
    everybody = sharpness(models)
    monkeypatch.setattr(classes, "MAX_SHARPNESS_ROWS", 800)
    some = sharpness(models)
    assert some != 1.0
    assert some == pytest.approx(everybody, rel=0.25)


@pytest.mark.parametrize("seed", [1, 2])
def test_sharpness_is_what_new_rows_would_ask_for(seed):
    """The best of all on 6,000 new rows of the same agents is within a quarter of it: measured within .1."""
    X, y, codes = three(seed, 40, 190)
    first = np.arange(len(y)) % 190 < 40
    model = ct.CollaborativeClassifier(design="linear").fit(X[first], y[first], agents=codes[first])
    odds = model.decision_function(X[~first], agents=codes[~first])
    losses = [-np.log(softmax(sharp * odds)[np.arange(len(odds)), y[~first]]).mean() for sharp in SHARPNESSES]
    assert model.sharpness_ == pytest.approx(SHARPNESSES[np.argmin(losses)], rel=0.25)
    assert model.sharpness_ != 1.0


def test_two_classes_of_the_model_itself_need_no_sharpening():
    """In most of ten sets: a gain of 3 nats by chance has a probability of about .014."""
    found = []
    for seed in range(10):
        X, y, codes, _ = drawn(np.random.default_rng(seed), 40, 20, 3, "logistic")
        [model] = fit(X[:, :-1], [y], codes, 40, "logistic", "linear", "diagonal")
        found.append(sharpness([model]))
    assert np.sum(np.array(found) == 1.0) >= 7


@pytest.mark.slow
def test_probabilities_are_reliable():
    """Pooled over 12 generated sets: 24,000 rows in ten bins, whose shares have standard errors of .01 at most."""
    probabilities, truth = [], []
    for seed in range(12):
        rng = np.random.default_rng(seed)
        n, m, q = [(30, 30, 3), (60, 15, 5), (100, 10, 4), (40, 50, 8)][seed % 4]
        X, y, codes, _ = drawn(rng, n, m + 2000 // n, q, "logistic")
        first = np.arange(len(y)) % (m + 2000 // n) < m
        model = ct.CollaborativeClassifier(design="linear").fit(X[first, :-1], y[first], agents=codes[first])
        probabilities.append(model.predict_proba(X[~first, :-1], agents=codes[~first])[:, 1])
        truth.append(y[~first])
    probability, y = np.concatenate(probabilities), np.concatenate(truth)
    error = [probability[part].mean() - y[part].mean() for part in np.array_split(np.argsort(probability), 10)]
    assert np.abs(error).max() < 0.03
    assert abs(np.mean(error)) < 0.01


def test_a_class_that_is_rare_or_absent_with_an_agent_is_no_obstacle():
    X, y, codes = three(3, 20, 12)
    y[codes == 0] = 0
    y[codes == 1] = 1
    model = ct.CollaborativeClassifier().fit(X, y, agents=codes)
    p = model.predict_proba(X, agents=codes)
    assert np.isfinite(p).all()
    np.testing.assert_allclose(p.sum(axis=1), 1.0)
    assert np.mean(model.predict(X[codes < 2], agents=codes[codes < 2]) == y[codes < 2]) > 0.8
    assert p[codes == 0, 0].min() > 0.02  # nobody is sure for ever


def test_samples_of_all_classes_are_the_same_agents(monkeypatch):
    """Where agents are more than a population is learned from."""
    monkeypatch.setattr(fitted, "MAX_SAMPLE_AGENTS", 30)
    X, y, codes = three(4, 60, 15)
    models = fit(X, [(y == k).astype(float) for k in range(3)], codes, 60, "logistic", "auto", "diagonal")
    samples = [Ranked(model.grouped.ranked(), model.grouped.sizes).sample(30).tolist() for model in models]
    assert samples[0] == samples[1] == samples[2]
