"""
Curves of countries
===================

Life expectancy rose almost everywhere, but not along straight lines, and not along one
curve. ``CollaborativeRegressor`` fits a smooth curve for each country around a common
curve if the data need curves, and straight lines otherwise. The choice is made by the
evidence, not by the user.
"""

import coterie as ct

# %%
# 142 countries, a row every five years from 1952 to 2007 (bundled, from Gapminder).

data = ct.datasets.gapminder()
model = ct.CollaborativeRegressor().fit(
    data[["country", "year"]], data["lifeExp"], agents="country"
)
report = model.report()
print(report.choices.to_string(index=False))

# %%
# Five countries and the common curve, with 90 % bands. Cambodia and Rwanda fell in the
# years of genocide, China and Vietnam overtook the common curve, and Sweden was ahead from
# the start.

figure = ct.plots.curves(
    model, "year", ["Cambodia", "China", "Rwanda", "Sweden", "Vietnam"]
)
axes = figure.axes[0]
axes.set(
    ylabel="life expectancy at birth, years",
    title="Each country bends its own way around the common curve",
)
ct.plots.label_lines(axes)
ct.plots.show(figure)

# %%
# The report names the countries that the population does not explain.

outliers = report.outliers["agent"].drop_duplicates().tolist()
print("countries that stand out:", ", ".join(outliers))
assert model.design_ == "additive"  # curves were chosen
assert {"Cambodia", "Rwanda"} <= set(outliers)
