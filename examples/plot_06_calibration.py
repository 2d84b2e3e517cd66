"""
Calibration: do intervals and probabilities keep their word?
============================================================

A 90 % interval should contain nine of ten labels, and of the houses with a predicted
probability of 30 %, three in ten should belong to the class. Models of counties with two or
three rows usually fail this test. Here both are checked on rows that no model has seen.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.model_selection import KFold

import coterie as ct

# %%
# Radon in 919 houses of 85 counties (bundled). Each tenth of the houses is predicted by
# models of the other nine: numbers with intervals of seven sizes, and the probability of
# more than 4 pCi/l, where mitigation is advised.

houses = ct.datasets.radon()
X, y = houses[["county", "floor", "uranium"]], houses["log_radon"].to_numpy()
high = y > np.log(4.0)
nominal = np.array([0.3, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95])
held = np.zeros((len(y), len(nominal)), bool)
probability = np.zeros(len(y))
for train, test in KFold(10, shuffle=True, random_state=0).split(X):
    numbers = ct.CollaborativeRegressor().fit(X.iloc[train], y[train], agents="county")
    for k, coverage in enumerate(nominal):
        low, top = numbers.predict_interval(X.iloc[test], coverage=coverage).T
        held[test, k] = (low <= y[test]) & (y[test] <= top)
    classes = ct.CollaborativeClassifier().fit(X.iloc[train], high[train], agents="county")
    probability[test] = classes.predict_proba(X.iloc[test])[:, 1]

# %%
# If the model is calibrated, points lie on the diagonal in both panels. Bars are 95 %
# intervals of the sampling error.

groups = np.array_split(np.argsort(probability), 6)
stated, seen = np.array([[probability[g].mean(), high[g].mean()] for g in groups]).T
figure, panels = plt.subplots(
    1, 2, figsize=(8.4, 4.2), sharex=True, sharey=True, layout="constrained"
)
for axes, x, share, count in (
    (panels[0], nominal, held.mean(axis=0), len(y)),
    (panels[1], stated, seen, len(y) / len(groups)),
):
    axes.plot([0, 1], [0, 1], color=ct.plots.GREY, lw=1)
    axes.errorbar(
        x,
        share,
        1.96 * np.sqrt(share * (1 - share) / count),
        fmt="o",
        color=ct.plots.BLUE,
        capsize=3,
    )
    axes.set_aspect("equal")
panels[0].set(
    title="Intervals",
    xlabel="coverage asked for",
    ylabel="share of houses inside the interval",
)
panels[1].set(
    title="Probabilities",
    xlabel="probability of high radon",
    ylabel="share of houses with high radon",
)
figure.suptitle("Intervals and probabilities mean what they say")
ct.plots.show(figure)

# %%
print(
    "coverage:",
    dict(zip(nominal.tolist(), held.mean(axis=0).round(3).tolist(), strict=True)),
)
print(
    "probabilities:",
    dict(zip(stated.round(2).tolist(), seen.round(2).tolist(), strict=True)),
)
assert np.abs(held.mean(axis=0) - nominal).max() < 0.05
assert np.abs(stated - seen).max() < 0.12  # of 153 houses a share is known to about 0.08
