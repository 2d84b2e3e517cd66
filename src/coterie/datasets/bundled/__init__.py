"""Three small real datasets that are part of the package. A text file beside each describes its origin."""

from __future__ import annotations

from importlib import resources
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["gapminder", "grunfeld", "radon"]


def gapminder() -> pd.DataFrame:
    """Life expectancy in 142 countries every five years from 1952 to 2007, 1,704 rows; CC0, from data under CC BY 4.0.

    Every country has its own curve, and all curves have a similar trend.

    Returns
    -------
    DataFrame
        ``country`` and ``continent`` (text), ``year``, ``lifeExp`` (life expectancy at birth, the target), ``pop``
        (population) and ``gdpPercap`` (income a head, in inflation-adjusted dollars).

    References
    ----------
    Free material from gapminder.org, in the excerpt of Jennifer Bryan's R package gapminder.

    Examples
    --------
    >>> countries = gapminder()
    >>> countries.shape, countries["country"].nunique()
    ((1704, 6), 142)
    """
    return _read("gapminder")


def grunfeld() -> pd.DataFrame:
    """Grunfeld's investment data: 11 firms of the USA over 20 years, 220 rows, public domain.

    Firms differ in how their investment depends on their value and their capital: neither one model for all firms nor a
    common model with individual intercepts fits well.

    Returns
    -------
    DataFrame
        ``firm`` (text), ``year`` (1935 to 1954), and in millions of dollars of 1947 ``invest`` (gross investment, the
        target), ``value`` (market value of the firm) and ``capital`` (plant and equipment).

    References
    ----------
    Grunfeld (1958), The Determinants of Corporate Investment. Kleiber, Zeileis (2010), The Grunfeld Data at 50.

    Examples
    --------
    >>> firms = grunfeld()
    >>> firms.shape, firms["firm"].nunique()
    ((220, 5), 11)
    """
    return _read("grunfeld")


def radon() -> pd.DataFrame:
    """Radon in 919 houses of 85 counties of Minnesota, 1 to 116 houses each, a survey of the EPA, public domain.

    The textbook example of partial pooling (Gelman, Hill, 2006, chapter 12): a county with two houses needs information
    from the others, and a county with a hundred does not. Uranium is measured for the county, the floor for the house.

    Returns
    -------
    DataFrame
        ``county`` and ``floor`` (text; the floor of the measurement: ``"basement"`` or ``"first"``), ``radon``
        (picocuries a litre), ``uranium`` (in the soil of the county, parts in a million), and ``log_radon`` (the
        target; the logarithm of 0.1 where no radon was measured).

    References
    ----------
    Price, Nero, Gelman (1996), Bayesian prediction of mean indoor radon concentrations for Minnesota counties.

    Examples
    --------
    >>> houses = radon()
    >>> houses.groupby("floor")["log_radon"].mean().round(2).to_dict()
    {'basement': 1.33, 'first': 0.71}
    """
    houses = _read("radon")
    measured = houses["radon"].to_numpy()
    return houses.assign(log_radon=np.log(np.where(measured > 0.0, measured, 0.1)))


def _read(name: str) -> pd.DataFrame:
    import pandas as pd  # imported here: the import is slow

    with resources.files(__name__).joinpath(f"{name}.csv").open(encoding="utf-8") as file:
        return pd.read_csv(file)
