"""
Peers that lie
==============

A neighbour may be broken, or hostile, and send numbers that have nothing to do with its
data. An average follows every neighbour that is far enough out. ``ct.robust.Trimmed`` and
``ct.Robust`` wrap a method and replace the average by one that ignores extreme values. How
many liars can they tolerate?
"""

import matplotlib.pyplot as plt
import numpy as np

import coterie as ct

# %%
# A hundred agents look for linear boundaries (generated), and exchange models with similar
# ones by coordinate descent. At every wake, liars send their models with opposite sign and
# ten times as long.

task = ct.datasets.linear_classification(n=100, seed=0)
problem = ct.Problem.personalized(task.train, task.graph, mu=4.0)
liars = np.random.default_rng(0).permutation(100)
shares = [0, 1, 5, 10, 20, 30]


def accuracy(defence, count):
    """Mean test accuracy of the honest agents."""
    attacked = (
        ct.robust.Attacked("cd", liars[:count], ct.robust.Attack(own=-10.0))
        if count
        else "cd"
    )
    run = ct.simulate(problem, defence(attacked), wakes=5_000, seed=0)
    honest = np.setdiff1d(np.arange(100), liars[:count])
    return task.accuracy(run.theta)[honest].mean()


# %%
# Three averages: over all neighbours, or without the largest and the smallest values of
# each coordinate, 10 % or 40 % at both ends. ``ct.Robust`` has other rules, such as medians
# and Krum.

defences = {
    "no defence": lambda method: method,
    "trimmed by 10 %": lambda method: ct.robust.Trimmed(method, 0.1),
    "trimmed by 40 %": lambda method: ct.robust.Trimmed(method, 0.4),
}
found = {
    name: [accuracy(defence, count) for count in shares]
    for name, defence in defences.items()
}

# %%
figure, axes = plt.subplots(figsize=(6.4, 4.2), layout="constrained")
for (name, values), color in zip(
    found.items(), [ct.plots.COLOURS[k] for k in (1, 4, 0)], strict=True
):
    axes.plot(shares, values, "o-", color=color, label=name)
alone = task.accuracy(problem.local()).mean()
axes.axhline(alone, color=ct.plots.GREY, ls="--", label="alone")
axes.set(
    xlabel="liars, % of the agents",
    ylabel="mean test accuracy of honest agents",
    ylim=(0.4, 1),
)
axes.set_title("Liars ruin a plain mean; a trimmed one withstands them")
ct.plots.label_lines(axes)
ct.plots.show(figure)

# %%
# A defence must expect enough liars, and has a price: without liars, it ignores honest
# neighbours that differ.

print(
    {name: np.round(values, 2).tolist() for name, values in found.items()},
    "alone:",
    round(float(alone), 2),
)
at = shares.index(20)
assert found["no defence"][at] < alone < found["trimmed by 40 %"][at]
assert found["trimmed by 40 %"][0] < found["no defence"][0]
