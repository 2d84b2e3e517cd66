"""
Shrinkage: houses of 85 counties
================================

Radon was measured in 919 houses of 85 counties in Minnesota. Some counties have a hundred
houses, some have one. A separate regression for each county follows the noise of a county
with two houses. Partial pooling shrinks the coefficients of each county towards the common
model, strongly for counties with few rows and hardly for counties with many. The strength
is learned from the data, without parameters to set.
"""

import numpy as np

import coterie as ct

# %%
# One call fits a common model and a model for each county. ``floor`` is the place of the
# meter, in the basement or on the first floor, and ``uranium`` is measured in the soil of
# the county.

houses = ct.datasets.radon()
X, y = houses[["county", "floor", "uranium"]], houses["log_radon"]
model = ct.CollaborativeRegressor().fit(X, y, agents="county")
sizes = houses["county"].value_counts()
print(f"{len(sizes)} counties, {len(houses)} houses, {sizes.median():.0f} in the median")

# %%
# Each line leads from the coefficient of a county's separate regression to its coefficient
# with partial pooling. Dark lines are counties with few houses, which move most.

figure = ct.plots.shrinkage(model, ["intercept", "floor=first"])
figure.suptitle("Counties with few houses are drawn to the common value")
intercept, floor = figure.axes[:2]
intercept.set(
    title="log radon in an average house",
    xlabel="how the county learns",
    ylabel="coefficient, log pCi/l",
)
floor.set(title="first floor against basement")
ct.plots.show(figure)

# %%
# The distances of the intercepts from the common intercept, for counties with few houses
# and with many.

basement = X.assign(floor="basement")
common = model.predict(basement.assign(county="a new county"))
distance, rows = np.abs(model.predict(basement) - common), houses["county"].map(sizes)
few, many = distance[rows <= 3].mean(), distance[rows >= 20].mean()
print(f"distance: {few:.2f} with up to 3 houses, {many:.2f} with 20 or more")
assert few < 0.75 * many
