"""What a report says, against independent computations; and the figures of pooled models."""

from __future__ import annotations

import json
import math
import tempfile
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from scipy import stats
from typer.testing import CliRunner

import coterie as ct
from coterie import pooling
from coterie.cli import main as cli
from coterie.errors import DataError, MismatchError, ParameterError
from coterie.estimators import gains as measuring
from coterie.estimators.report import features, outliers
from coterie.estimators.tuning import folds as deal
from coterie.pooling.designs import Linear
from coterie.pooling.population import INTERCEPT_PRECISION
from coterie.pooling.rows import Grouped


def population(seed=0, n=40, rows=(6, 24), sd=(1.0, 0.5, 0.2), intercept=0.7, noise=0.8):
    """Rows of agents that are as the model says: X, y, agents."""
    rng = np.random.default_rng(seed)
    codes = np.repeat(np.arange(n), rng.integers(*rows, n))
    X = rng.normal(size=(len(codes), len(sd)))
    theta = np.arange(1, len(sd) + 1) + rng.normal(size=(n, len(sd))) * sd
    y = np.sum(X * theta[codes], axis=1) + intercept * rng.normal(size=n)[codes] + noise * rng.normal(size=len(codes))
    return X, y, codes


@pytest.fixture(scope="module")
def fitted():
    X, y, codes = population()
    return ct.CollaborativeRegressor(design="linear").fit(X, y, agents=codes)


@pytest.fixture(scope="module")
def reported(fitted):
    return fitted.report()


def from_file(model):
    """As a file keeps it."""
    with tempfile.TemporaryDirectory() as folder:
        return ct.load(ct.save(model, folder))


# -- posterior covariances --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("deviations", ["full", "diagonal"])
@pytest.mark.parametrize("loss", ["squared", "logistic"])
def test_covariances_are_blocks_of_the_inverse_of_the_joint_hessian(loss, deviations):
    rng = np.random.default_rng(0)
    codes, n, q = np.array([0] * 2 + [1] * 6 + [2] * 9), 4, 3  # the last agent has no rows
    X = rng.normal(size=(17, 2))
    y = X @ [1.0, -1.0] + rng.normal(size=4)[codes] + rng.normal(size=17)
    model = pooling.fit(X, [(y > 0) * 1.0 if loss == "logistic" else y], codes, n, loss, "linear", deviations)[0]
    P = model.population
    inverse = np.linalg.inv(P.V if P.V.ndim == 2 else np.diag(P.V))
    A, H = model.design.columns(model.grouped.X), np.zeros(((n + 1) * q, (n + 1) * q))
    H[:q, :q] = n * inverse + np.diag([P.r, P.r, INTERCEPT_PRECISION])
    for i in range(n):
        rows, own = A[model.grouped.codes == i], slice(q * (i + 1), q * (i + 2))
        H[own, own] = inverse + (rows.T * P.family.curvature(rows @ (P.w + model.D[i]), P.s2)) @ rows
        H[own, :q] = H[:q, own] = -inverse
    joint = np.linalg.inv(H)
    asked = np.array([3, 0, 2, 1])
    found = model.covariances(asked)
    kept = pooling.Pooled.from_arrays(pooling.Fitted.from_dict(model.to_dict()), model.to_arrays())
    for k, i in enumerate(asked):
        own = slice(q * (i + 1), q * (i + 2))
        np.testing.assert_allclose(found[k], joint[own, own], rtol=1e-3, atol=1e-4 * np.abs(joint[own, own]).max())
    np.testing.assert_allclose(kept.covariances(asked), found, rtol=1e-6, atol=1e-9)
    # ... and say the same as variances of predictors.
    x = model.design.columns(X[:3])
    np.testing.assert_allclose(model.latent(X[:3], asked[[2, 2, 2]])[1], np.diag(x @ found[2] @ x.T), rtol=1e-8)


# -- gains ------------------------------------------------------------------------------------------------------------


def ridge_by_hand(X, y, Z):
    """A normal regression with a flat intercept, noise integrated out, strengths averaged by marginal likelihoods."""
    m, log, predicted = len(y), [], []
    for v in measuring.SLOPE_VARIANCES["squared"]:
        K = np.eye(m) + v * X @ X.T
        solved, ones = np.linalg.solve(K, np.column_stack([y, np.ones(m)])), np.ones(m)
        level = (ones @ solved[:, 0]) / (ones @ solved[:, 1])
        square = (y - level) @ np.linalg.solve(K, y - level)
        log.append(
            -0.5 * np.linalg.slogdet(K)[1] - 0.5 * math.log(ones @ solved[:, 1]) - 0.5 * (m - 1) * math.log(square)
        )
        predicted.append(level + v * Z @ X.T @ np.linalg.solve(K, y - level))
    share = np.exp(np.array(log) - max(log))
    return share @ np.array(predicted) / share.sum()


def test_gains_are_those_of_a_cross_validation_by_hand():
    X, y, codes = population(seed=3, n=9, rows=(4, 9))
    model = ct.CollaborativeRegressor(design="linear").fit(X, y, agents=codes)
    report = model.report(folds=3, random_state=1)
    fold = deal(codes, 3, 1)
    errors = {"alone": np.zeros(len(y)), "one_model": np.zeros(len(y)), "together": np.zeros(len(y))}
    for k in range(3):
        train, test = fold != k, fold == k
        one = ct.CollaborativeRegressor(design="linear", deviations="scalar").fit(X[train], y[train])
        errors["one_model"][test] = one.predict(X[test]) - y[test]
        together = ct.CollaborativeRegressor(design="linear").fit(X[train], y[train], agents=codes[train])
        errors["together"][test] = together.predict(X[test], codes[test]) - y[test]
        Z = (X - X[train].mean(axis=0)) / X[train].std(axis=0)
        for i in range(9):
            own, asked = train & (codes == i), test & (codes == i)
            errors["alone"][asked] = ridge_by_hand(Z[own], y[own], Z[asked]) - y[asked]
    for name, error in errors.items():
        rmse = np.sqrt(np.bincount(codes, error**2) / np.bincount(codes))
        np.testing.assert_allclose(report.gains[name], rmse, rtol=1e-6)
    assert report.gains["rows"].tolist() == np.bincount(codes).tolist()
    difference = (report.gains["alone"] - report.gains["together"]).to_numpy()
    told = report.summary["gains"]["alone"]
    low, high = stats.ttest_1samp(difference, 0.0).confidence_interval(0.95)
    expected = [difference.mean(), stats.sem(difference), low, high, (difference > 0).mean()]
    np.testing.assert_allclose([told[name] for name in ("mean", "se", "low", "high", "share")], expected, rtol=1e-9)
    assert told["relative"] == pytest.approx(difference.mean() / report.gains["alone"].mean())


@pytest.mark.slow
@pytest.mark.compiled
def test_gains_of_classes_are_log_losses_of_refits():
    X, y, codes = population(seed=4, n=8, rows=(6, 12))
    y = np.where(y > 3.0, "up", np.where(y < -3.0, "down", "level"))
    model = ct.CollaborativeClassifier(design="linear").fit(X, y, agents=codes)
    report = model.report(folds=3, random_state=0)
    number = np.searchsorted(model.classes_, y)
    fold, loss = deal(codes, 3, 0, number), np.zeros(len(y))
    for k in range(3):
        train, test = fold != k, fold == k
        again = ct.CollaborativeClassifier(design="linear").fit(X[train], y[train], agents=codes[train])
        loss[test] = -np.log(again.predict_proba(X[test], codes[test])[np.arange(test.sum()), number[test]])
    np.testing.assert_allclose(report.gains["together"], np.bincount(codes, loss) / np.bincount(codes), rtol=1e-6)
    assert report.summary["measure"] == "log_loss"
    assert set(report.features["class"]) == {"down", "level", "up"}
    json.dumps(report.to_dict(), allow_nan=False)


def test_an_agent_of_one_class_alone_is_not_sure_of_it():
    # About as sure as half a row of each class more would leave it, or less.
    for m in (1, 3, 10, 30):
        X = np.random.default_rng(m).normal(size=(m, 2))
        rows = Grouped.of(X, np.ones(m), np.zeros(m, int), 1, None)
        [p] = measuring._averaged(rows, rows.some(np.array([0]))._replace(X=np.zeros((1, 2))),
                                  [Linear.of(X)], "logistic")  # fmt: skip
        assert 0.5 < p < (m + 0.5) / (m + 1.0) + 0.03


@pytest.mark.slow
def test_gains_of_counts_and_of_heavy_tails():
    X, y, codes = population(seed=5, n=12, sd=(0.3, 0.2))
    counts = np.random.default_rng(0).poisson(np.exp(0.3 * y))
    report = ct.CollaborativeRegressor(loss="poisson", design="linear").fit(X, counts, agents=codes).report(folds=3)
    assert report.summary["measure"] == "deviance"
    assert report.summary["gains"]["alone"]["mean"] > 0.0
    y = y + np.where(np.arange(len(y)) % 15 == 0, 30.0, 0.0)
    model = ct.CollaborativeRegressor(loss="auto", design="linear").fit(X, y, agents=codes)
    report = model.report(folds=3)
    assert report.choices["candidate"].tolist() == ["linear, heavy tails", "linear"]
    assert report.choices["nats"][1] < -5.0
    assert np.isfinite(report.gains["alone"]).all()
    json.dumps(report.to_dict(), allow_nan=False)


def test_gains_take_weights_a_sample_and_say_what_they_leave_out(monkeypatch):
    X, y, codes = population(seed=6, n=15)
    lonely = np.concatenate([codes, [15]])
    X, y = np.vstack([X, X[:1]]), np.append(y, 0.0)
    weight = np.where(np.arange(len(y)) % 5 == 0, 0.0, 1.0)
    model = ct.CollaborativeRegressor(design="linear").fit(X, y, agents=lonely, sample_weight=weight)
    report = model.report(folds=2)
    assert any("1 agent with one row" in note for note in report.notes)
    assert np.isnan(report.gains["alone"].iloc[-1])
    assert report.summary["gains"]["alone"]["agents"] == 15
    # Rows of weight zero neither teach nor count: they are as good as not there.
    there = weight > 0.0
    X, y, lonely = X[there], y[there], lonely[there]
    fold, error = deal(lonely, 2, 0), np.zeros(len(y))
    for k in range(2):
        train, test = fold != k, fold == k
        again = ct.CollaborativeRegressor(design="linear").fit(X[train], y[train], agents=lonely[train])
        error[test] = again.predict(X[test], lonely[test]) - y[test]
    mean = (np.bincount(lonely, error**2) / np.bincount(lonely))[:15]
    np.testing.assert_allclose(report.gains["together"][:15], np.sqrt(mean), rtol=1e-6)
    monkeypatch.setattr(measuring, "MAX_SAMPLE_AGENTS", 12)
    report = model.report(folds=2)
    assert len(report.gains) == 12
    assert any("a sample of 12 of 16 agents" in note for note in report.notes)


def test_a_model_without_rows_tells_the_rest_and_takes_rows(fitted, reported):
    bare = from_file(fitted)
    report = bare.report()
    assert report.gains is None
    assert any("has no rows; to measure gains, give" in note for note in report.notes)
    pd.testing.assert_frame_equal(report.features, reported.features, check_exact=False, rtol=1e-6)
    assert set(report.outliers["by"]) <= {"coefficients"}
    X, y, codes = population()
    pd.testing.assert_frame_equal(bare.report(X=X, y=y, agents=codes).gains, reported.gains, check_exact=False)
    with pytest.raises(ParameterError, match="X and y together"):
        bare.report(X=X)
    with pytest.raises(DataError, match="was not in the training rows"):
        bare.report(X=X, y=y, agents=codes + 1)
    with pytest.raises(ParameterError, match="no rows"):
        ct.plots.shrinkage(bare)


@pytest.mark.plain
def test_what_cannot_be_measured_is_said():
    X, y, codes = population(seed=7, n=6, rows=(8, 12))
    report = ct.CollaborativeRegressor().fit(X, y).report()
    assert report.gains is None
    assert any("only one agent" in note for note in report.notes)
    assert any("nothing is known of how agents differ" in note for note in report.notes)
    report = ct.CollaborativeRegressor().fit(X, y, agents=np.arange(len(y))).report()
    assert any("no agent has two rows" in note for note in report.notes)
    assert not any("with one row, which is always used for training" in note for note in report.notes)  # said above
    model = ct.CollaborativeRegressor(method="local").fit(X, y, agents=codes)
    report = model.report(folds=2)
    assert report.outliers is None
    assert report.choices is None
    assert report.features["low"].isna().all()
    assert any("method='local' has no population" in note for note in report.notes)
    assert "Nothing was sent" in report.sent["words"][0]
    bare = from_file(model)
    assert bare.report().gains is None
    again = bare.report(folds=2, X=X, y=y, agents=codes).gains
    pd.testing.assert_frame_equal(again, report.gains, check_exact=False)
    with pytest.raises(MismatchError, match="posterior"):
        ct.plots.caterpillar(model, "x0")


def test_agents_with_one_row_each_are_not_told_apart_from_noise():
    """Half of what is left may be noise, or none of it: an interval of the differences would be made up."""
    X, y, codes = population(seed=7, n=40, rows=(1, 2))
    once = ct.CollaborativeRegressor(design="linear").fit(X[:40], y[:40], agents=np.arange(40)).report()
    level = once.features.set_index("feature").loc["intercept"]
    assert level["sd"] > 0.0
    assert math.isinf(level["high"])
    assert "not known" in str(once)
    assert any("cannot be told from noise" in note for note in once.notes)
    X, y, codes = population(seed=7, n=40, rows=(4, 5))
    several = ct.CollaborativeRegressor(design="linear").fit(X, y, agents=codes).report()
    assert several.features["high"].max() < math.inf
    assert not any("cannot be told from noise" in note for note in several.notes)


# -- features ---------------------------------------------------------------------------------------------------------


def test_features_that_differ_come_first_and_those_that_cannot_are_marked():
    X, y, codes = population(seed=8, n=60, sd=(0.1, 1.5, 0.4), intercept=0.05)
    frame = pd.DataFrame(X, columns=["little", "much", "some"]).assign(
        age=np.random.default_rng(0).normal(size=60)[codes]
    )
    report = ct.CollaborativeRegressor(design="linear").fit(frame, y, agents=codes).report(folds=2)
    table = report.features.set_index("feature")
    assert report.features["feature"][:2].tolist() == ["much", "some"]
    assert table.loc["age", "kind"] == "cannot differ"
    assert table.loc["age", "sd"] == table.loc["age", "importance"] == 0.0
    assert table.loc["much", "importance"] > 0.8
    assert table["importance"].sum() == pytest.approx(1.0)
    assert table.loc["much", "low"] < 1.5 < table.loc["much", "high"]
    assert table.loc["little", "common"] == pytest.approx(1.0, abs=0.2)
    assert table.loc["much", "effect"] == pytest.approx(abs(table.loc["much", "common"]) * X[:, 1].std(), rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("sd", [(1.0, 0.5, 0.2), (0.5, 0.5, 0.5)], ids=["apart", "alike"])
def test_intervals_of_deviations_hold_the_truth_as_often_as_they_say(sd):
    held = []
    for seed in range(40):
        X, y, codes = population(seed, sd=sd)
        table = features(ct.CollaborativeRegressor(design="linear").fit(X, y, agents=codes)).set_index("feature")
        table, truth = table.loc[["x0", "x1", "x2", "intercept"]], np.array([*sd, 0.7])
        held.append((table["low"] < truth) & (truth < table["high"]))
    # Of 160 independent intervals of 90 %, 0.90 +- 0.05 is two standard errors.
    assert 0.85 <= np.mean(held) <= 0.96


def test_a_curve_is_one_feature_with_the_variance_of_the_curve():
    rng = np.random.default_rng(0)
    codes = np.repeat(np.arange(30), 30)
    X = np.column_stack([rng.uniform(0, 3, 900), rng.normal(size=900)])
    y = np.sin(2 * X[:, 0]) * rng.normal(1.0, 0.6, 30)[codes] + 0.2 * X[:, 1] + 0.2 * rng.normal(size=900)
    model = ct.CollaborativeRegressor(design="additive").fit(X, y, agents=codes)
    table = features(model).set_index("feature")
    assert table.index.tolist()[0] == "x0"
    assert table.loc["x0", "kind"] == "curve"
    assert math.isnan(table.loc["x0", "common"])
    part = model._models.parts[0]
    mine = np.flatnonzero(part.design.source == 0)
    A = part.design.columns(X)[:, mine]
    variance = np.mean(np.einsum("ij,jk,ik->i", A, part.population.V[np.ix_(mine, mine)], A))
    assert table.loc["x0", "sd"] == pytest.approx(part.scale * math.sqrt(variance), rel=1e-6)
    bare = features(from_file(model)).set_index("feature")  # what is kept of squared errors tells the same
    assert bare.loc["x0", "sd"] == pytest.approx(table.loc["x0", "sd"], rel=1e-6)


def test_the_evidence_of_other_candidates_is_that_of_their_fits():
    X, y, codes = population(seed=9, n=30)
    settings = {"agents": codes}
    models = {
        name: ct.CollaborativeRegressor(design=name).fit(X, y, **settings) for name in ("auto", "linear", "additive")
    }
    table = models["auto"].report(folds=2).choices.set_index("candidate")
    difference = models["additive"].log_evidence_ - models["linear"].log_evidence_
    assert table.loc["linear", "chosen"]
    assert table.loc["linear", "nats"] == 0.0
    assert table.loc["additive", "nats"] == pytest.approx(difference, abs=1.0)
    # Where designs were compared on a sample of agents, their numbers are of fewer rows: the other one is fitted anew.
    auto = models["auto"]
    auto._models = replace(auto._models, parts=tuple(replace(part, sampled=True) for part in auto._models.parts))
    table = models["auto"].report(folds=2).choices.set_index("candidate")
    assert table.loc["additive", "log_evidence"] == pytest.approx(models["additive"].log_evidence_, rel=1e-9)


# -- outliers ---------------------------------------------------------------------------------------------------------


def test_planted_outliers_are_found_and_why():
    X, y, codes = population(seed=10, n=40, rows=(10, 24))
    y = y + 8.0 * X[:, 1] * (codes == 5)
    y = y + 5.0 * np.random.default_rng(0).normal(size=len(y)) * (codes == 11)
    names = np.array([f"ward {k}" for k in range(40)])
    model = ct.CollaborativeRegressor(design="linear").fit(X, y, agents=names[codes])
    found = outliers(model)
    by = {(row["agent"], row["by"]): row for row in found.to_dict(orient="records")}
    assert set(by) == {("ward 5", "coefficients"), ("ward 11", "residuals")}
    assert by["ward 5", "coefficients"]["feature"] == "x1"
    assert by["ward 5", "coefficients"]["z"] > 4.0
    assert by["ward 11", "residuals"]["z"] > 5.0


@pytest.mark.slow
@pytest.mark.compiled
def test_honest_agents_are_seldom_called_outliers():
    # All of them honest, any name is a false discovery: at most 5 % of populations may have one. Of 40, seven or more
    # would be that unlucky with a chance of 0.3 %.
    named, p = 0, []
    for seed in range(40):
        X, y, codes = population(100 + seed)
        model = ct.CollaborativeRegressor(design="linear").fit(X, y, agents=codes)
        named += len(outliers(model)) > 0
        from coterie.estimators.report import _tests

        p.append(_tests(model._models.parts[0], model._columns.names))
    assert named <= 6
    every = pd.concat(p)
    for _, part in every.groupby("by"):
        assert np.mean(part["p"] < 0.1) == pytest.approx(0.1, abs=0.02)


def test_few_rows_of_classes_are_warned_of():
    rng = np.random.default_rng(0)
    X, codes = rng.normal(size=(60, 2)), np.repeat(np.arange(30), 2)
    model = ct.CollaborativeClassifier(design="linear").fit(X, X[:, 0] + rng.normal(size=60) > 0, agents=codes)
    assert any("at most 3 rows" in note for note in model.report(folds=2).notes)


# -- what is shown ----------------------------------------------------------------------------------------------------


def test_a_report_prints_its_tables_and_is_plain_as_a_dict(reported):
    text = repr(reported)
    for phrase in ("Gains (root mean squared error", "alone", "one model", "together", "Features, by how much",
                   "Outliers", "Chosen", "What was done to columns", "new agents are predicted by"):  # fmt: skip
        assert phrase in text
    assert max(map(len, text.splitlines())) <= 120
    plain = json.loads(json.dumps(reported.to_dict(), allow_nan=False))
    assert plain["gains"][3]["together"] == reported.gains["together"][3]
    assert plain["features"][0]["feature"] == reported.features["feature"][0]


@pytest.mark.parametrize(
    ("share", "by"),
    [
        (0.0, "the common model"),
        (0.3, "a mixture of the common model and, 30 %, one model of all rows: that did best for held-out agents"),
        (1.0, "one model of all rows: that did best for held-out agents"),
    ],
)
def test_a_report_says_what_predicts_agents_never_met(fitted, monkeypatch, share, by):
    [part] = fitted._models.parts
    part = replace(part, new_agent=part.new_agent._replace(share=share))
    monkeypatch.setattr(fitted, "_models", replace(fitted._models, parts=(part,)))
    assert fitted.report(folds=2).notes[-1] == f"new agents are predicted by {by}"


def test_agents_of_any_kind_are_reported():
    X, y, codes = population(seed=11, n=6)
    ids = [("ward", int(k)) for k in codes]
    report = ct.CollaborativeRegressor(design="linear").fit(X, y, agents=ids).report(folds=2)
    assert report.gains["agent"][2] == ("ward", 2)
    assert report.to_dict()["gains"][2]["agent"] == "('ward', 2)"


# -- figures ----------------------------------------------------------------------------------------------------------


def test_shrinkage_draws_from_alone_to_together(fitted):
    figure = ct.plots.shrinkage(fitted, ["x0", "intercept"], agents=[4, 7])
    X, y, codes = population()
    Z = (X - X.mean(axis=0)) / X.std(axis=0)
    axes = figure.axes[0]
    [lines] = [part for part in axes.collections if hasattr(part, "get_segments")]
    for segment, agent in zip(lines.get_segments(), (4, 7), strict=True):
        own = codes == agent
        step = ridge_by_hand(Z[own], y[own], np.array([[0.0, 0.0, 0.0], [1.0, 0.0, 0.0]]))
        assert segment[0] == pytest.approx([0.0, (step[1] - step[0]) / X[:, 0].std()])
        assert segment[1] == pytest.approx([1.0, fitted.coef_[agent, 0]])
    common = [line.get_ydata()[0] for line in axes.lines]
    assert common == pytest.approx([fitted.common_coef_[0]])
    [lines] = [part for part in figure.axes[1].collections if hasattr(part, "get_segments")]
    at_means = fitted.predict(np.tile(X.mean(axis=0), (2, 1)), agents=[4, 7])
    assert [segment[1][1] for segment in lines.get_segments()] == pytest.approx(at_means)
    assert len(ct.plots.shrinkage(fitted).axes) == 5  # four columns differ; and a scale of colours


def test_caterpillar_draws_sorted_coefficients_with_posterior_intervals(fitted):
    figure = ct.plots.caterpillar(fitted, "x1", coverage=0.8)
    axes = figure.axes[0]
    lines = [segment for part in axes.collections if hasattr(part, "get_segments") for segment in part.get_segments()]
    by_place = sorted(lines, key=lambda segment: segment[0][1])
    order = np.argsort(fitted.coef_[:, 1])
    assert [label.get_text() for label in axes.get_yticklabels()] == [str(k) for k in order]
    part = fitted._models.parts[0]
    sd = np.sqrt(part.covariances(order)[:, 1, 1]) * part.scale / part.design.scale[1]
    half = stats.norm.ppf(0.9) * sd
    np.testing.assert_allclose([line[0][0] for line in by_place], fitted.coef_[order, 1] - half)
    np.testing.assert_allclose([line[1][0] for line in by_place], fitted.coef_[order, 1] + half)
    # The sd by another way: of a difference of predictions one unit apart, by the spread of draws from the posterior.
    far = 1e6
    x = np.zeros((1, 3))
    x[0, 1] = far
    spread = np.sqrt(part.latent(x, order[:1])[1][0]) * part.scale / far
    assert sd[0] == pytest.approx(spread, rel=1e-3)


def test_curves_are_predictions_with_other_columns_at_their_means():
    rng = np.random.default_rng(0)
    codes = np.repeat(np.arange(10), 40)
    X = np.column_stack([rng.uniform(0, 3, 400), rng.normal(2.0, 1.0, 400)])
    X[codes == 3, 0] *= 0.5  # agent 3 has seen half of it
    y = np.sin(2 * X[:, 0]) * rng.normal(1.0, 0.6, 10)[codes] + 0.5 * X[:, 1] + 0.2 * rng.normal(size=400)
    model = ct.CollaborativeRegressor(design="additive").fit(X, y, agents=codes)
    figure = ct.plots.curves(model, "x0", agents=[3, 8])
    lines = figure.axes[0].lines
    solid = {line.get_label(): line for line in lines if not line.get_label().startswith("_")}
    x = solid["8"].get_xdata()
    # Apart from a constant, what is predicted along x0 wherever the other column is.
    at = np.column_stack([x, np.full(len(x), 1.7)])
    drawn, asked = solid["8"].get_ydata(), model.predict(at, agents=[8] * len(x))
    np.testing.assert_allclose(drawn - drawn[0], asked - asked[0], atol=1e-9)
    assert solid["3"].get_xdata().max() <= X[codes == 3, 0].max()
    assert len(figure.axes[0].collections) == 3  # bands
    assert len(ct.plots.curves(model, "x0").axes[0].lines) == 11
    with pytest.raises(ParameterError, match=r"plots\.curves"):
        ct.plots.caterpillar(model, "x0")
    with pytest.raises(ParameterError, match="no column 'height'"):
        ct.plots.curves(model, "height")
    with pytest.raises(DataError, match="no agent 77"):
        ct.plots.curves(model, "x0", agents=[77])
    with pytest.raises(ParameterError, match="between 0 and 1"):
        ct.plots.curves(model, "x0", coverage=1.0)


def test_curves_of_classes_are_probabilities(fitted):
    X, y, codes = population()
    model = ct.CollaborativeClassifier(design="linear").fit(X, np.where(y > 0, "up", "down"), agents=codes)
    axes = ct.plots.curves(model, "x2", agents=[0]).axes[0]
    assert axes.get_ylabel() == "probability of 'up'"
    for line in axes.lines:
        assert 0.0 <= line.get_ydata().min() <= line.get_ydata().max() <= 1.0


def test_gains_of_a_report_are_drawn(reported):
    figure = ct.plots.gains(reported)
    for axes, base in zip(figure.axes, ("alone", "one_model"), strict=True):
        [lines] = [part for part in axes.collections if hasattr(part, "get_segments")]
        ends = np.array([segment[:, 1] for segment in lines.get_segments()])
        np.testing.assert_allclose(ends, reported.gains[[base, "together"]])
    alike = ct.plots.gains(replace(reported, gains=reported.gains.assign(rows=12)))  # agents lie side by side
    for axes in alike.axes:
        places = axes.collections[1].get_offsets()
        assert sorted(places[:, 0]) == list(range(1, len(reported.gains) + 1))
        assert (np.diff(places[np.argsort(places[:, 0]), 1]) >= 0).all()
        assert "error" in axes.get_xlabel()
    with pytest.raises(ParameterError, match="no gains"):
        ct.plots.gains(replace(reported, gains=None))
    with pytest.raises(ParameterError, match="needs a report"):
        ct.plots.gains(np.arange(3))


# -- the command ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.compiled
def test_inspect_reports_a_saved_model(reported, tmp_path):
    X, y, codes = population()
    frame = pd.DataFrame(X, columns=["x0", "x1", "x2"]).assign(ward=codes)
    folder = str(ct.save(ct.CollaborativeRegressor(design="linear").fit(frame, y, agents="ward"), tmp_path / "model"))
    run = CliRunner()
    told = json.loads(run.invoke(cli.app, ["inspect", folder, "--json"], catch_exceptions=False).stdout)
    assert told["gains"] is None
    assert [row["feature"] for row in told["features"]] == reported.features["feature"].tolist()
    table = tmp_path / "table.csv"
    frame.assign(other="text", y=y).to_csv(table, index=False)
    options = ["inspect", folder, "--data", str(table), "--target", "y", "--figures", str(tmp_path / "figures")]
    told = json.loads(run.invoke(cli.app, [*options, "--json"], catch_exceptions=False).stdout)
    assert told["gains"][5]["together"] == pytest.approx(reported.gains["together"][5])
    assert [name.split("/")[-1] for name in told["figures"]] == ["gains.png", "coefficients.png", "curves.png"]
    text = run.invoke(cli.app, options, catch_exceptions=False).stdout
    assert "Features, by how much" in text
    with pytest.raises(ParameterError, match="the model does not know its column of labels: name it with --target"):
        run.invoke(cli.app, ["inspect", folder, "--data", str(table)], catch_exceptions=False)
    with pytest.raises(ParameterError, match="name the table with --data"):
        run.invoke(cli.app, ["inspect", folder, "--target", "y"], catch_exceptions=False)
    named = ct.CollaborativeRegressor(design="linear").fit(frame, pd.Series(y, name="y"), agents="ward")
    ct.save(named, folder)  # which remembers how the labels were called
    told = run.invoke(cli.app, ["inspect", folder, "--data", str(table), "--json"], catch_exceptions=False)
    assert json.loads(told.stdout)["gains"][5]["together"] == pytest.approx(reported.gains["together"][5])


def test_edges_are_reported_and_do_not_make_outliers():
    rng = np.random.default_rng(0)
    codes = np.repeat(np.arange(40), 6)
    X = rng.normal(size=(240, 2))
    group = np.where(np.arange(40) < 20, 2.0, -2.0)
    y = X[:, 0] * group[codes] + X[:, 1] + 2.0 * rng.normal(size=240)
    W = (group[:, None] == group) * 1.0 - np.eye(40)
    model = ct.CollaborativeRegressor(design="linear", graph=W).fit(X, y, agents=codes)
    assert model.edges_.strength > 0.0
    report = model.report(folds=3)
    assert any("edges between agents are of strength" in note for note in report.notes)
    assert not len(report.outliers)
    plain = ct.CollaborativeRegressor(design="linear").fit(X, y, agents=codes)
    pd.testing.assert_frame_equal(report.features, features(plain))
    assert report.summary["errors"]["together"] < plain.report(folds=3).summary["errors"]["together"]
