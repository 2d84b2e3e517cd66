"""The bundled datasets are those of the literature: published counts, means and regressions."""

from importlib import resources

import numpy as np
import pytest

import coterie as ct


def least_squares(target, *columns):
    A = np.column_stack([np.ones(len(target)), *columns])
    return np.linalg.lstsq(A, target, rcond=None)[0]


def test_grunfeld_counts():
    firms = ct.datasets.grunfeld()
    assert list(firms.columns) == ["firm", "year", "invest", "value", "capital"]
    assert not firms.isna().any().any()
    assert firms.groupby("firm").size().eq(20).all()
    assert firms["firm"].nunique() == 11
    assert sorted(firms["year"].unique()) == list(range(1935, 1955))


def test_grunfeld_regressions_as_published():
    """General Motors, pooled and within firms: Greene, and Kleiber and Zeileis (2010), who leave American Steel out."""
    firms = ct.datasets.grunfeld().query("firm != 'American Steel'")
    motors = firms.query("firm == 'General Motors'")
    np.testing.assert_allclose(
        least_squares(motors["invest"], motors["value"], motors["capital"]), [-149.78, 0.119, 0.371], atol=5e-3
    )
    np.testing.assert_allclose(
        least_squares(firms["invest"], firms["value"], firms["capital"]), [-42.714, 0.1156, 0.2307], atol=5e-4
    )
    numbers = firms[["invest", "value", "capital"]]
    within = numbers - numbers.groupby(firms["firm"]).transform("mean")
    np.testing.assert_allclose(
        least_squares(within["invest"], within["value"], within["capital"])[1:], [0.1101, 0.3101], atol=5e-5
    )


def test_radon_as_published():
    """Gelman and Hill (2006), pages 252 to 256."""
    houses = ct.datasets.radon()
    assert list(houses.columns) == ["county", "floor", "radon", "uranium", "log_radon"]
    assert not houses.isna().any().any()
    assert len(houses) == 919
    assert houses["floor"].value_counts().to_dict() == {"basement": 766, "first": 153}
    sizes = houses.groupby("county").size()
    assert (len(sizes), sizes.min(), sizes.max(), sizes.idxmax()) == (85, 1, 116, "St Louis")
    assert (houses.groupby("county")["uranium"].nunique() == 1).all()
    assert houses["log_radon"].mean() == pytest.approx(1.2246, abs=1e-4)
    first = (houses["floor"] == "first").to_numpy(float)
    np.testing.assert_allclose(least_squares(houses["log_radon"], first), [1.33, -0.61], atol=5e-3)


def test_gapminder_as_published():
    """The mean, and the medians of 2007 by continent, that tutorials of the R package print."""
    countries = ct.datasets.gapminder()
    assert list(countries.columns) == ["country", "continent", "year", "lifeExp", "pop", "gdpPercap"]
    assert countries.shape == (1704, 6)
    assert (countries.groupby("country").size() == 12).all()
    assert countries["lifeExp"].mean() == pytest.approx(59.47444, abs=1e-5)
    medians = countries[countries["year"] == 2007].groupby("continent")["lifeExp"].median()
    np.testing.assert_allclose(medians, [52.9265, 72.899, 72.396, 78.6085, 80.7195])


@pytest.mark.parametrize("name", ["gapminder", "grunfeld", "radon"])
def test_every_set_says_where_it_is_from_and_is_small(name):
    folder = resources.files("coterie.datasets.bundled")
    note = folder.joinpath(f"{name}.txt").read_text(encoding="utf-8")
    assert all(word in note for word in ("Source", "Licence", "Columns", "Changes"))
    table = folder.joinpath(f"{name}.csv").read_text(encoding="utf-8")
    assert any(word in note for word in ("Public domain", "CC0"))
    assert len(table) < 100_000
    for column in table.splitlines()[0].split(","):
        assert f" {column} " in note
