"""
A new agent with three rows
===========================

A country joins after the model was fitted. Without rows, it is predicted by the common
model. With each new row, ``partial_fit`` moves its model towards its own data, and the
models of all other countries stay unchanged. How good is the model after three rows?
"""

import copy
import warnings

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

import coterie as ct

# %%
# 42 of 142 countries are held out (bundled data, from Gapminder). They join later, with
# their rows in a random order; the last four rows of each are only used for testing.

data = ct.datasets.gapminder()[["country", "year", "lifeExp"]].sample(
    frac=1.0, random_state=0
)
new = data["country"].isin(
    np.random.default_rng(0).choice(data["country"].unique(), 42, replace=False)
)
fitted = ct.CollaborativeRegressor().fit(
    data.loc[~new, ["country", "year"]], data.loc[~new, "lifeExp"], agents="country"
)
place = data.groupby("country").cumcount()
hidden = data[new & (place >= 8)]


def together(rows):
    """Return the model after it has learned these rows of the new countries."""
    model = copy.deepcopy(fitted)
    return (
        model.partial_fit(rows[["country", "year"]], rows["lifeExp"])
        if len(rows)
        else model
    )


# %%
# The error on the hidden rows after 0, 1, ... 8 rows, compared with models of a country
# alone: the mean of its rows, or a straight line from two rows on. coterie warns about
# predictions outside the years of a country's rows; here they are intended.

warnings.simplefilter("ignore", ct.errors.ExtrapolationWarning)
errors = {"together": [], "alone": []}
for count in range(9):
    shown = data[new & (place < count)]
    predicted = together(shown).predict(hidden[["country", "year"]])
    errors["together"].append(np.sqrt(np.mean((predicted - hidden["lifeExp"]) ** 2)))
    lines = {
        name: np.polyfit(rows["year"], rows["lifeExp"], min(count - 1, 1))
        for name, rows in shown.groupby("country")
    }
    alone = [
        np.polyval(lines[name], year) if lines else np.nan
        for name, year in hidden[["country", "year"]].to_numpy()
    ]
    errors["alone"].append(np.sqrt(np.mean((np.array(alone) - hidden["lifeExp"]) ** 2)))

# %%
# On the left one country after three rows, with a 90 % interval; on the right all 42.

mine, years = data[data["country"] == "Nepal"], np.arange(1952, 2008)
grid = pd.DataFrame({"country": "Nepal", "year": years})
model = together(data[new & (place < 3)])
low, high = model.predict_interval(grid, coverage=0.9).T
blue, orange = ct.plots.COLOURS[:2]

figure, (left, right) = plt.subplots(1, 2, figsize=(8.4, 3.9), layout="constrained")
left.fill_between(years, low, high, color=blue, alpha=0.15, lw=0)
left.plot(years, model.predict(grid), color=blue)
left.plot(mine["year"][:3], mine["lifeExp"][:3], "o", color="black")
left.plot(mine["year"][3:], mine["lifeExp"][3:], "o", color="black", markerfacecolor="none")
left.set(
    title="Nepal: three rows shown (full)", xlabel="year", ylabel="life expectancy, years"
)
for name, color in (("alone", orange), ("together", blue)):
    right.plot(range(9), errors[name], "o-", color=color, label=name)
right.set(
    title="42 new countries",
    xlabel="rows of the country",
    ylabel="error on hidden rows, years",
    ylim=(0, None),
)
ct.plots.label_lines(right)
figure.suptitle("After three rows, a new country has a good model of its own")
ct.plots.show(figure)

# %%
print({name: np.round(values, 2).tolist() for name, values in errors.items()})
assert errors["together"][3] < 0.5 * errors["together"][0]  # three rows halve the error
assert errors["together"][3] < errors["alone"][3]
