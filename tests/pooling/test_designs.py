"""Columns as they are and as splines: against scikit-learn, and what evidence chooses."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.preprocessing import SplineTransformer

import coterie as ct
from coterie.pooling import fit
from coterie.pooling.designs import Linear, Values, design_from, standards
from coterie.pooling.designs.additive import MAX_SPLINE_COLUMNS, SHARES, Spline, additive_of, earning
from coterie.pooling.designs.values import quantiles_of
from coterie.pooling.sums import Here


def quantiles(x, shares, weight=None):
    return quantiles_of(Here(Values(x[:, None], weight)), [0], shares)[0]


def additive(X, weight=None, keep_linear=None, max_columns=MAX_SPLINE_COLUMNS):
    return additive_of(Here(Values(X, weight)), keep_linear, max_columns)


def features(seed=0, rows=200):
    """Three columns with many values, one with two, one with a few."""
    rng = np.random.default_rng(seed)
    return np.column_stack(
        [
            rng.normal(size=rows),
            rng.exponential(size=rows) * 100.0,
            rng.integers(0, 2, size=rows),
            rng.uniform(-3.0, 5.0, size=rows),
            rng.integers(0, 5, size=rows),
        ]
    )


@pytest.mark.parametrize("draw", ["normal", "exponential", "integers"])
def test_splines_are_those_of_scikit_learn(draw):
    """Also beyond the outermost knots, where they go on as lines, and at the knots themselves."""
    rng = np.random.default_rng(1)
    x = rng.integers(0, 30, size=300).astype(float) if draw == "integers" else getattr(rng, draw)(size=300)
    far = np.concatenate([x, np.linspace(x.min() - 5.0, x.max() + 5.0, 101), np.quantile(x, [0, 0.25, 0.5, 0.75, 1])])
    reference = SplineTransformer(n_knots=5, degree=2, knots="quantile", extrapolation="linear", include_bias=False)
    expected = reference.fit(x[:, None]).transform(far[:, None])
    np.testing.assert_allclose(Spline.through(quantiles(x, SHARES)).columns(far), expected, atol=1e-9)


def test_knots_that_coincide_count_once():
    x = np.concatenate([np.zeros(100), np.arange(1.0, 11.0)])
    spline = Spline.through(quantiles(x, SHARES))
    assert np.all(np.diff(spline.knots) > 0.0)
    assert np.isfinite(spline.columns(np.linspace(-1.0, 12.0, 50))).all()


@pytest.mark.parametrize("make", [Linear.of, additive])
def test_lines_are_every_linear_function(make):
    """Also outside the knots, by as much as the range itself."""
    X = features()
    design, rng = make(X), np.random.default_rng(2)
    low, high = X.min(axis=0), X.max(axis=0)
    anywhere = rng.uniform(2.0 * low - high, 2.0 * high - low, size=(100, 5))
    for _ in range(3):
        model = rng.normal(size=6)
        np.testing.assert_allclose(
            design.columns(anywhere) @ (design.lines() @ model), anywhere @ model[:-1] + model[-1], atol=1e-7
        )


@pytest.mark.parametrize("make", [Linear.of, additive])
def test_columns_are_in_standard_units_with_ones_last(make):
    X = features()
    weight = np.random.default_rng(3).uniform(size=len(X))
    A = make(X, weight).columns(X)
    np.testing.assert_allclose(A[:, -1], 1.0)
    np.testing.assert_allclose(weight @ A[:, :-1] / weight.sum(), 0.0, atol=1e-9)
    np.testing.assert_allclose(weight @ A[:, :-1] ** 2 / weight.sum(), 1.0, atol=1e-9)


def test_units_take_scales_back():
    X = features()
    design, model = additive(X), np.random.default_rng(4).normal(size=additive(X).size)
    plain = design.units() @ model
    np.testing.assert_allclose(design.unscaled(X) @ plain[:-1] + plain[-1], design.columns(X) @ model, atol=1e-9)


def test_only_columns_with_more_than_six_values_are_bent():
    X = features()
    design = additive(X)
    assert sorted(design.splines) == [0, 1, 3]
    assert design.name == "additive"
    assert design.source.tolist() == [2, 4] + [0] * 5 + [1] * 5 + [3] * 5
    assert sorted(additive(X, keep_linear=np.arange(5) == 1).splines) == [0, 3]
    assert additive(X[:, [2, 4]]) is None
    assert Linear.of(X).name == "linear"
    late = np.zeros((8000, 1))
    late[2000:, 0] = np.arange(6000)  # values that the first rows do not show
    assert additive(late) is not None


@pytest.mark.parametrize("seed", range(5))
def test_weighted_quantiles_are_those_of_repeated_rows(seed):
    rng = np.random.default_rng(seed)
    x, weight, shares = rng.normal(size=40), rng.integers(0, 4, size=40), np.linspace(0.0, 1.0, 5)
    expected = np.quantile(np.repeat(x, weight), shares)
    np.testing.assert_allclose(quantiles(x, shares, weight.astype(float)), expected, atol=1e-9)
    np.testing.assert_allclose(quantiles(x, shares), np.quantile(x, shares))


def test_standards_of_constants_and_of_large_numbers():
    X = np.column_stack([np.full(50, 3.0), 1e9 + np.arange(50.0), np.zeros(50)])
    mean, scale = standards(X)
    np.testing.assert_allclose(mean, X.mean(axis=0))
    np.testing.assert_allclose(scale, [1.0, X[:, 1].std(), 1.0])


@pytest.mark.parametrize("make", [Linear.of, additive])
def test_a_design_comes_back_from_a_file(make):
    X = features()
    design = make(X)
    again = design_from(design.to_arrays())
    assert again.name == design.name
    assert np.array_equal(again.columns(X), design.columns(X))
    assert np.array_equal(again.lines(), design.lines())


def wave(seed, family, bent):
    """30 agents of 20 rows; a sine, or a line."""
    rng = np.random.default_rng(seed)
    codes = np.repeat(np.arange(30), 20)
    X = rng.uniform(-2.0, 2.0, size=(600, 2))
    z = (np.sin(2.0 * X[:, 0]) * 2.0 if bent else X[:, 0]) + 0.5 * rng.normal(size=30)[codes] + 0.3 * X[:, 1]
    if family == "logistic":
        return X, (rng.uniform(size=600) < 1.0 / (1.0 + np.exp(-2.0 * z))).astype(float), codes
    if family == "poisson":
        return X, rng.poisson(np.exp(z)).astype(float), codes
    return X, z + 0.5 * rng.normal(size=600), codes


@pytest.mark.parametrize("family", ["squared", "logistic", "poisson"])
def test_curves_are_chosen_for_a_sine_and_lines_for_a_line(family):
    """Every one of three sines; of four lines all but one at most (none, as measured; the margin is 5 nats)."""
    for seed in range(3):
        X, y, codes = wave(seed, family, bent=True)
        [model] = fit(X, [y], codes, 30, family)
        assert model.design_name == "additive"
        assert model.evidence["additive"] > model.evidence["linear"] + 20.0
        assert model.held_out["additive"] < model.held_out["linear"]
    chosen = []
    for seed in range(4):
        X, y, codes = wave(seed, family, bent=False)
        chosen.append(fit(X, [y], codes, 30, family)[0].design_name)
    assert chosen.count("linear") >= 3


def test_curves_predict_a_sine_better():
    """Of held-out rows the curve's error is near the noise, .5; a line's is more than twice that."""
    X, y, codes = wave(9, "squared", bent=True)
    train = np.arange(600) % 20 < 14
    errors = {}
    for design in ("linear", "additive"):
        model = ct.CollaborativeRegressor(design=design).fit(X[train], y[train], agents=codes[train])
        errors[design] = np.sqrt(np.mean((model.predict(X[~train], agents=codes[~train]) - y[~train]) ** 2))
    assert errors["additive"] < 0.62
    assert errors["linear"] > 1.0


def test_no_curve_through_a_handful_of_agents():
    """A column of the agent itself has as many values as there are agents: with few of them it stays as it is."""
    rng = np.random.default_rng(5)
    codes = np.repeat(np.arange(12), 20)
    X = np.column_stack([rng.normal(size=240), rng.normal(size=12)[codes]])
    [model] = fit(X, [np.sin(3.0 * X[:, 0]) + rng.normal(size=12)[codes]], codes, 12, "squared", "additive")
    assert sorted(model.design.splines) == [0]


def test_additive_models_are_linear_where_there_is_nothing_to_bend():
    rng = np.random.default_rng(6)
    X, codes = rng.integers(0, 3, size=(60, 2)).astype(float), np.repeat(np.arange(6), 10)
    [model] = fit(X, [X[:, 0] + 0.1 * rng.normal(size=60)], codes, 6, "squared", "additive")
    assert model.design_name == "linear"


def waves(n, m, p, bent, seed=0):
    """Rows of n agents with lines of three columns, and waves of some others."""
    rng = np.random.default_rng(seed)
    codes, X = np.repeat(np.arange(n), m), rng.normal(size=(n * m, p))
    z = X[:, :3].sum(axis=1) + 2.0 * np.sin(2.0 * X[:, list(bent)]).sum(axis=1) + rng.normal(size=n)[codes]
    return X, z + 0.5 * rng.normal(size=n * m), codes


@pytest.mark.parametrize(("p", "most"), [(40, 150), pytest.param(120, 161, marks=pytest.mark.slow)])
def test_with_many_columns_those_that_earn_most_are_bent(p, most):
    """Splines of all would make 201 columns, or 601: they once went without a word."""
    bent = (5, 17, p - 1)
    X, y, codes = waves(100, 12, p, bent)
    [model] = fit(X, [y], codes, 100, design="auto")
    assert model.design_name == "additive"
    assert set(bent) < set(model.curves) < set(range(p))
    assert model.design.size <= most


def test_a_design_that_is_asked_for_by_name_bends_all_columns():
    X, y, codes = waves(60, 10, 32, (5,))
    model = ct.CollaborativeRegressor(design="additive").fit(X, y, agents=codes)
    assert {name.split(" ")[0] for name in model.coef_names_ if "spline" in name} == {f"x{k}" for k in range(32)}


def test_what_columns_earn_is_the_same_in_several_places():
    X, y, _ = waves(30, 8, 6, (4,))
    labels, sizes, weight = y[:, None], np.full(30, 8), np.random.default_rng(1).integers(1, 3, 240).astype(float)
    parts = [
        labelled(X[rows], labels[rows], sizes[which], weight[rows])
        for rows, which in ((slice(0, 80), slice(0, 10)), (slice(80, 80), slice(0, 0)), (slice(80, 240), slice(10, 30)))
    ]
    whole = labelled(X, labels, sizes, weight)
    splines = additive(X).splines
    for room in (4, 8, 24):
        found = earning(Places(parts), splines, room)
        assert found.keys() == earning(Here(whole), splines, room).keys()
        assert 4 in found
        assert len(found) == room // 4
    # One column: squares about the means of agents, of the curve less those of the line.
    x, B = X[:, :1], splines[0].columns(X[:, 0])
    [(G, g)] = labelled(X, labels, sizes).products({0: splines[0].columns})
    about = [A - np.repeat(A.reshape(30, 8, -1).mean(axis=1), 8, axis=0) for A in (B, labels, x)]
    np.testing.assert_allclose(G, about[0].T @ about[0], atol=1e-10)
    np.testing.assert_allclose(g, about[0].T @ about[1], atol=1e-10)
    np.testing.assert_allclose(splines[0].line() @ g, about[2].T @ about[1][:, 0], atol=1e-8)


def labelled(X, labels, sizes, weight=None):
    values = Values(X, weight)
    values.labels, values.sizes = labels, sizes
    return values


class Places:
    """Values in several places, asked in turn."""

    def __init__(self, parts):
        self.parts = parts

    def each(self, work, *given, again=True):
        return [work(part, *given) for part in self.parts]

    def remember(self, name, work, *given):
        pass


@pytest.mark.parametrize("kind", ["rows", "repeated rows", "weights"])
@pytest.mark.parametrize("seed", range(6))
def test_quantiles_of_values_in_several_places_are_those_of_all_of_them(kind, seed):
    """Exactly: of counted rows to the last bit, whatever the order of magnitude; some places have no rows."""
    rng = np.random.default_rng(seed)
    rows = int(rng.integers(1, 150))
    X = rng.normal(size=(rows, 4)) * [1.0, 1.0, 1e200, 0.0]
    X[:, 1] = np.round(X[:, 1])
    X[rng.uniform(size=X.shape) < 0.1] = -0.0
    weights = {"rows": None, "repeated rows": rng.integers(1, 4, rows).astype(float)}
    weight = weights.get(kind, rng.uniform(0.1, 2.0, rows))
    of = rng.integers(0, 4, rows)
    parts = [Values(X[of == k], None if weight is None else weight[of == k]) for k in range(5)]
    shares = np.linspace(0.0, 1.0, 9)
    found = quantiles_of(Places(parts), [0, 1, 2, 3], shares)
    for k in range(4):
        if kind == "weights":
            np.testing.assert_allclose(found[k], quantiles(X[:, k], shares, weight), rtol=1e-9)
        else:
            again = X[:, k] if weight is None else np.repeat(X[:, k], weight.astype(int))
            np.testing.assert_array_equal(found[k], np.quantile(again, shares))


def test_a_design_of_values_in_several_places_is_that_of_all_of_them():
    rng = np.random.default_rng(0)
    X = rng.exponential(size=(300, 4))
    # Seven values are more than a few, although no place has as many.
    X[:, 1], X[:, 2] = rng.integers(0, 3, 300), np.repeat(np.arange(7.0), 43)[:300]
    found = additive_of(Places([Values(part) for part in np.split(X, [100, 200])]))
    whole = additive(X)
    assert found.splines.keys() == whole.splines.keys() == {0, 2, 3}
    for name, expected in whole.to_arrays().items():
        np.testing.assert_allclose(found.to_arrays()[name], expected, rtol=1e-12)
