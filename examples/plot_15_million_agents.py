"""
A million agents on a laptop
============================

How does the cost of partial pooling grow with the number of agents? The common model and
the variances are learned from at most 2,000 agents, spread evenly over their sizes, and
then the models of all agents are computed in one pass. So time is linear in the number of
agents. This example fits up to a million agents with six rows each (generated), in some
seconds and less than a gigabyte.
"""

import time

import matplotlib.pyplot as plt
import numpy as np

import coterie as ct

# %%
# Each agent has a slope and an intercept of its own.

rng = np.random.default_rng(0)
counts, seconds, errors, alone = [1_000, 10_000, 100_000, 1_000_000], [], [], []
for n in counts:
    ids = np.repeat(np.arange(n), 6)
    x = rng.normal(size=(6 * n, 1)).astype(np.float32)
    slope, intercept = rng.normal(1.0, 0.5, size=n), rng.normal(2.0, 1.0, size=n)
    y = slope[ids] * x[:, 0] + intercept[ids] + rng.normal(size=6 * n)
    began = time.perf_counter()
    model = ct.CollaborativeRegressor().fit(x, y, agents=ids)
    seconds.append(time.perf_counter() - began)
    errors.append(np.abs(model.coef_[:, 0] - slope).mean())
    centred = x.reshape(n, 6).astype(float) - x.reshape(n, 6).mean(
        axis=1, keepdims=True, dtype=float
    )
    alone.append(
        np.abs(
            (centred * y.reshape(n, 6)).sum(axis=1) / (centred**2).sum(axis=1) - slope
        ).mean()
    )

# %%
# Seconds are those of the machine that drew this figure. Up to 100,000 agents, most of
# them go into the common model.

figure, (left, right) = plt.subplots(1, 2, figsize=(8.4, 3.9), layout="constrained")
left.loglog(counts, seconds, "o-", color=ct.plots.COLOURS[0])
for n, taken in zip(counts, seconds, strict=True):
    left.annotate(
        f"{taken:.2g} s", (n, taken), (-4, 6), textcoords="offset points", ha="right"
    )
left.set(
    title="Time",
    xlabel="agents",
    ylabel="seconds to fit",
    xlim=(200, None),
    ylim=(None, 3 * max(seconds)),
)
right.semilogx(counts, alone, "o-", color=ct.plots.COLOURS[1], label="alone")
right.semilogx(counts, errors, "o-", color=ct.plots.COLOURS[0], label="together")
right.set(title="Accuracy", xlabel="agents", ylabel="mean error of slopes", ylim=(0, None))
ct.plots.label_lines(right)
figure.suptitle("A million personal models in seconds")
ct.plots.show(figure)

# %%
# More agents hardly improve a model: a thousand agents are enough to estimate the common
# model.

print({n: f"{taken:.2f} s" for n, taken in zip(counts, seconds, strict=True)})
assert model.coef_.shape == (1_000_000, 1)
assert all(together < 0.8 * single for together, single in zip(errors, alone, strict=True))
