"""A design is one file and one line of a list: everything else takes it from there."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import pytest

import coterie as ct
from coterie.errors import DataError
from coterie.pooling.designs import DESIGNS, Design, standards_of


@dataclass(frozen=True)
class Parabolas(Design):
    """Every feature, and then its square."""

    name = "parabolas"
    part = "power"

    @classmethod
    def learn(cls, given):
        mean, scale = standards_of(given.rows)
        p = len(mean)
        design = cls(np.zeros(2 * p), np.ones(2 * p), np.tile(np.arange(p), 2))
        mean, scale = standards_of(given.some(), design)
        return replace(design, mean=mean, scale=scale)

    def unscaled(self, X):
        return np.hstack([X, X**2])

    def line(self, feature):
        return [1.0, 0.0]


def tables(n=30, m=12):
    """Agents with parabolas of their own; the second feature is a line."""
    rng = np.random.default_rng(0)
    X, agents = rng.uniform(-2.0, 2.0, size=(n * m, 2)), np.repeat(np.arange(n), m)
    bend = rng.normal(2.0, 0.5, size=n)[agents]
    return X, bend * X[:, 0] ** 2 - X[:, 1] + 0.3 * rng.normal(size=len(X)), agents


@pytest.fixture(autouse=True)
def listed(monkeypatch):
    monkeypatch.setitem(DESIGNS, Parabolas.name, Parabolas)


def test_it_is_asked_for_by_name_and_kept_in_a_file(tmp_path):
    X, y, agents = tables()
    model = ct.CollaborativeRegressor(design="parabolas").fit(X, y, agents=agents)
    assert model.design_ == "parabolas"
    assert model.coef_names_ == ("x0 power 0", "x1 power 0", "x0 power 1", "x1 power 1")
    assert abs(model.common_coef_[2] - 2.0) < 0.3
    assert model.score(X, y, agents=agents) > 0.95
    again = ct.load(ct.save(model, tmp_path / "model"))
    for asked in (agents, agents + 10_000):  # met, and never met
        np.testing.assert_allclose(again.predict(X, agents=asked), model.predict(X, agents=asked), rtol=1e-9)


@dataclass(frozen=True)
class Shifted(Parabolas):
    """Squares from a middle that is one more field."""

    name = "shifted"
    middle: np.ndarray = field(default_factory=lambda: np.zeros(1))

    @classmethod
    def learn(cls, given):
        return replace(super().learn(given), middle=np.array([0.5]))

    def unscaled(self, X):
        return np.hstack([X, (X - self.middle) ** 2])


def test_a_further_array_is_kept_in_the_file(tmp_path, monkeypatch):
    monkeypatch.setitem(DESIGNS, Shifted.name, Shifted)
    X, y, agents = tables(n=6)
    model = ct.CollaborativeRegressor(design="shifted").fit(X, y, agents=agents)
    again = ct.load(ct.save(model, tmp_path / "model"))
    np.testing.assert_allclose(again.predict(X, agents=agents), model.predict(X, agents=agents), rtol=1e-9)


def test_a_file_with_a_design_that_is_not_listed_says_so(tmp_path, monkeypatch):
    X, y, agents = tables(n=6)
    path = ct.save(ct.CollaborativeRegressor(design="parabolas").fit(X, y, agents=agents), tmp_path / "model")
    monkeypatch.delitem(DESIGNS, Parabolas.name)
    with pytest.raises(DataError, match=r"^there is no design 'parabolas'; known are linear, additive$"):
        ct.load(path)


def test_evidence_chooses_it_where_it_is_true():
    X, y, agents = tables()
    chosen = ct.CollaborativeRegressor().fit(X, y, agents=agents)
    assert chosen.design_ == "parabolas"
    report = chosen.report(folds=2)
    assert set(report.choices["candidate"]) == {"linear", "additive", "parabolas"}
    assert report.features.set_index("feature")["kind"]["x0"] == "curve"
    assert ct.CollaborativeRegressor().fit(X, X @ [1.0, 2.0] + y - y, agents=agents).design_ == "linear"


def test_and_figures_draw_it(tmp_path):
    X, y, agents = tables(n=6)
    model = ct.CollaborativeRegressor(design="parabolas").fit(X, y, agents=agents)
    assert ct.plots.curves(model, "x0").axes
    assert model.report(tmp_path / "page.html", folds=2).features is not None
