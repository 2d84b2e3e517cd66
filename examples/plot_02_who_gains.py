"""
Who gains: alone, one model for all, or together
================================================

Should each country have a model of its own, should all share one, or something between?
``model.report()`` answers this question for your data by cross-validation: it fits all
three on a part of each agent's rows, and predicts the other rows. Here the data are life
expectancies of 142 countries, with twelve rows each (bundled, from Gapminder).
"""

import coterie as ct

# %%
# The report holds out a fifth of each country's rows, five times.

data = ct.datasets.gapminder()
X, y = data.drop(columns="lifeExp"), data["lifeExp"]
model = ct.CollaborativeRegressor().fit(X, y, agents="country")
report = model.report()
print(report.gains.head().to_string())

# %%
# A line for each country, from its error with the other model to its error with
# collaboration. Blue lines are countries that gain, red lines are countries that lose.

figure = ct.plots.gains(report, title="Most countries predict better together")
figure.axes[0].set_ylabel("error on held-out rows, years")
ct.plots.show(figure)

# %%
# Not every country gains: a country with enough rows of its own learns nothing from others.

alone, one_model = report.summary["gains"]["alone"], report.summary["gains"]["one_model"]
print(f"countries that gain against alone: {alone['share']:.0%}")
print(f"countries that gain against one model for all: {one_model['share']:.0%}")
assert min(alone["low"], one_model["low"]) > 0  # 95 % intervals of the mean gain
assert alone["share"] < 1
